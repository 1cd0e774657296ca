// cpp/bind/cntr.cpp: counters as Python types.
#include "bind/objects.hpp"
#include "bind/wait.hpp"

namespace weft::bind {

namespace {

bool cntr_usable(CounterCore* core) {
  if (!core->closed && core->box && !core->box->forked()) return true;
  set_error(fi_err::kEOPBADSTATE, "the counter is closed, or belongs to the parent process");
  return false;
}

PyObject* cntr_read(PyObject* self, PyObject*) {
  auto* core = nb::inst_ptr<CounterCore>(self);
  if (!cntr_usable(core)) return nullptr;
  core->box->drain();
  if (core->notifier) core->notifier->drain();
  core->box->domain->nic()->poll_from_app();
  if (core->pacer.due()) [[unlikely]] {
    const ReleasedGil released;
    core->pacer.yield_measured();
  }
  return number(core->counter->value());
}

Signature g_wait_sig{"wait", {"threshold", "timeout"}, 2, 1, {}};

PyObject* cntr_wait(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[2];
  uint64_t threshold = 0, deadline;
  if (!parse(g_wait_sig, args, nargs, kwnames, a) || !to_u64(a[0], &threshold, "cntr.wait", "threshold") ||
      !deadline_of(a[1], &deadline)) {
    return nullptr;
  }
  auto* core = nb::inst_ptr<CounterCore>(self);
  if (!cntr_usable(core)) return nullptr;
  const auto counter = core->counter;
  const auto keep = core->box;
  const uint64_t errors = counter->errors();
  const int r = wait_for(*keep->domain->nic(), counter->event, deadline, [&] {
    return counter->value() >= threshold || counter->errors() != errors || core->closed.load(std::memory_order_relaxed);
  });
  if (r < 0) return nullptr;
  if (!cntr_usable(core)) return nullptr;  // closed by another thread meanwhile
  if (counter->value() >= threshold) Py_RETURN_NONE;
  if (counter->errors() != errors) {
    set_error(fi_err::kEAVAIL, "an operation that the counter counts failed: its entry is in the completion queue");
  } else {
    set_error(fi_err::kETIMEDOUT, "the counter stands at " + std::to_string(counter->value()) + " of " +
                                      std::to_string(threshold) + " at the timeout" +
                                      (errors == 0 ? std::string()
                                                   : ", and " + std::to_string(errors) +
                                                         " operations had failed before: see readerr() and the "
                                                         "completion queue"));
  }
  return nullptr;
}

PyMethodDef g_cntr_methods[] = {
    {"read", cntr_read, METH_NOARGS,
     "The number of successful events so far (fi_cntr_read). Drives the NIC's progress.\n\nSource: fi_cntr(3) "
     "fi_cntr_read."},
    {"wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(cntr_wait)), METH_FASTCALL | METH_KEYWORDS,
     "Waits until the value reaches threshold (fi_cntr_wait).\n\n"
     "timeout  seconds; None or negative: forever.\n"
     "Raises TimedOut; Available when the error value changed meanwhile. Source: fi_cntr(3) fi_cntr_wait."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot g_cntr_slots[] = {{Py_tp_methods, g_cntr_methods}, {0, nullptr}};

}  // namespace

void register_cntr(nb::module_& m) {
  nb::class_<CounterCore> cntr(m, "CounterCore", nb::type_slots(g_cntr_slots), "The NIC's side of a counter.");
  cntr.def(
          "__init__",
          [](CounterCore* self, DomainCore& d, int events, int wait_obj) {
            auto& box = box_of(d);
            auto counter = std::make_shared<nic::Counter>();
            counter->counts_bytes = events == 1;
            std::shared_ptr<host::EventfdNotifier> notifier;
            if (wait_obj == kWaitFd) {
              notifier = translating([] { return std::make_shared<host::EventfdNotifier>(); });
              counter->event.set_notifier(notifier);
            }
            new (self) CounterCore{box, std::move(counter), std::move(notifier), false, {}};
          },
          nb::arg("domain"), nb::kw_only(), nb::arg("events") = 0, nb::arg("wait_obj") = 1)
      .def_prop_ro(
          "fd", [](const CounterCore& c) { return c.notifier ? c.notifier->fd() : -1; },
          "A descriptor that becomes readable when the counter changes (wait_obj FD), or -1.")
      .def(
          "readerr",
          [](CounterCore& c) {
            check_usable(c, "counter");
            c.box->domain->nic()->poll_from_app();
            return c.counter->errors();
          },
          "The number of failed events so far (fi_cntr_readerr).")
      .def(
          "add",
          [](CounterCore& c, nb::handle value) {
            check_usable(c, "counter");
            c.counter->add(number_of(value, "cntr.add", "value"));
          },
          nb::arg("value").none(), nb::sig("def add(self, value: int) -> None"), "Adds to the value (fi_cntr_add).")
      .def(
          "set",
          [](CounterCore& c, nb::handle value) {
            check_usable(c, "counter");
            c.counter->set(number_of(value, "cntr.set", "value"));
          },
          nb::arg("value").none(), nb::sig("def set(self, value: int) -> None"), "Sets the value (fi_cntr_set).")
      .def(
          "adderr",
          [](CounterCore& c, nb::handle value) {
            check_usable(c, "counter");
            c.counter->add_errors(number_of(value, "cntr.adderr", "value"));
          },
          nb::arg("value").none(), nb::sig("def adderr(self, value: int) -> None"),
          "Adds to the error value (fi_cntr_adderr).")
      .def(
          "seterr",
          [](CounterCore& c, nb::handle value) {
            check_usable(c, "counter");
            c.counter->set_errors(number_of(value, "cntr.seterr", "value"));
          },
          nb::arg("value").none(), nb::sig("def seterr(self, value: int) -> None"),
          "Sets the error value (fi_cntr_seterr).")
      .def("close", [](CounterCore& c) {
        c.closed = true;
        if (!c.box->forked()) c.counter->event.tell();
      });
}

}  // namespace weft::bind
