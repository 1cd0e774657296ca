// cpp/bind/ofi_cntr.cpp: counters of a real libfabric.
#include "bind/ofi_queue.hpp"
#include "bind/signatures.hpp"

namespace weft::bind {

namespace {

void make_cntr(OfiCore<OfiCntr>* self, const OfiCore<OfiDomain>& domain, int events, int wait_obj, uint64_t flags) {
  OfiDomain& d = ofi_open(domain, "cntr_open");
  const auto call = ofi::op(d.get()->ops, &ofi::DomainOps::cntr_open);
  if (call == nullptr) ofi_raise_missing("cntr_open");
  ofi::CntrAttr attr{events, wait_obj, nullptr, flags};
  ofi::FidCntr* fid = nullptr;
  ofi_check("cntr_open", call(d.get(), &attr, &fid, nullptr));
  auto box = std::make_shared<OfiCntr>();
  box->domain = domain.box;
  box->h.fid = &fid->fid;
  new (self) OfiCore<OfiCntr>{box};
}

// HOT.
PyObject* read_cntr(PyObject* self, const char* name, uint64_t (*ofi::CntrOps::*which)(ofi::FidCntr*)) {
  const OfiCntr& cntr = *nb::inst_ptr<OfiCore<OfiCntr>>(self)->box;
  if (cntr.h.fid == nullptr || cntr.h.closing || cntr.h.forked()) [[unlikely]] {
    set_error(fi_err::kEOPBADSTATE,
              std::string(name) + (cntr.h.forked() ? ": this counter belongs to the parent process: a forked child "
                                                     "opens its own fabric"
                                                   : ": the counter is closed"));
    return nullptr;
  }
  if (!ofi_all_enabled(cntr.h, name)) return nullptr;
  const auto call = ofi::op(cntr.get()->ops, which);
  if (call != nullptr) [[likely]]
    return number(call(cntr.get()));
  (void)ofi_missing(name);
  return nullptr;
}
PyObject* cntr_read(PyObject* self, PyObject*) {
  return read_cntr(self, "cntr.read", &ofi::CntrOps::read);
}
PyObject* cntr_readerr(PyObject* self, PyObject*) {
  return read_cntr(self, "cntr.readerr", &ofi::CntrOps::readerr);
}
void change_cntr(OfiCore<OfiCntr>& self, const char* name, nb::handle value,
                 int (*ofi::CntrOps::*which)(ofi::FidCntr*, uint64_t)) {
  OfiCntr& cntr = ofi_open(self, name);
  const auto call = ofi::op(cntr.get()->ops, which);
  if (call == nullptr) ofi_raise_missing(name);
  ofi_check(name, call(cntr.get(), number_of(value, name, "value")));
}

Signature g_wait{"wait", {"threshold", "timeout"}, 2, 1, {}};

// Looks again and again instead of calling fi_cntr_wait, which no signal interrupts: in some providers
// its timeout does not end a wait for operations that need the application's progress.
PyObject* cntr_wait(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[2];
  uint64_t threshold = 0, deadline = 0;
  if (!parse(g_wait, args, nargs, kwnames, a) || !to_u64(a[0], &threshold, "cntr.wait", "threshold") ||
      !deadline_of(a[1], &deadline, "cntr.wait")) {
    return nullptr;
  }
  const std::shared_ptr<OfiCntr> kept = nb::inst_ptr<OfiCore<OfiCntr>>(self)->box;
  OfiCntr& cntr = *kept;
  uint64_t failures = 0;
  for (bool first = true;; first = false) {
    if (cntr.h.fid == nullptr || cntr.h.closing || cntr.h.forked()) {
      set_error(fi_err::kEOPBADSTATE, cntr.h.forked() ? "cntr.wait: this counter belongs to the parent process"
                                                      : "cntr.wait: the counter is closed");
      return nullptr;
    }
    if (!ofi_all_enabled(cntr.h, "cntr.wait")) return nullptr;
    const auto read = ofi::op(cntr.get()->ops, &ofi::CntrOps::read);
    const auto readerr = ofi::op(cntr.get()->ops, &ofi::CntrOps::readerr);
    if (read == nullptr || readerr == nullptr) {
      (void)ofi_missing("cntr.wait");
      return nullptr;
    }
    if (read(cntr.get()) >= threshold) Py_RETURN_NONE;
    const uint64_t now_failed = readerr(cntr.get());
    if (first) failures = now_failed;
    if (now_failed != failures) {
      set_error(fi_err::kEAVAIL,
                "cntr.wait: an operation failed: readerr() counts failures, the completion queue has "
                "its entry");
      return nullptr;
    }
    if (slice_ms(deadline) == 0) {
      set_error(110, "cntr.wait: the counter has not reached the threshold within the timeout");  // FI_ETIMEDOUT
      return nullptr;
    }
    rest();
    if (PyErr_CheckSignals() != 0) return nullptr;
  }
}

PyMethodDef g_cntr_methods[] = {
    {"read", method<cntr_read>(), METH_NOARGS, "The success value (fi_cntr_read)."},
    {"readerr", method<cntr_readerr>(), METH_NOARGS, "The error value (fi_cntr_readerr)."},
    {"wait", method<cntr_wait>(), METH_FASTCALL | METH_KEYWORDS,
     "Waits until the success value is at least threshold, without the GIL (fi_cntr_wait). timeout: seconds; None: no "
     "limit.\n\n"
     "Raises TimedOut, or Available if the error value changed. Source: fi_cntr(3) fi_cntr_wait."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyType_Slot g_ofi_cntr_slots[] = {{Py_tp_methods, with_signatures("OfiCounterCore", g_cntr_methods)}, {0, nullptr}};

void register_ofi_counters(Module& m) {
  Class<OfiCore<OfiCntr>>(m, "OfiCounterCore", nb::type_slots(g_ofi_cntr_slots), "A counter of a real libfabric.")
      .def("__init__", &make_cntr, nb::arg("domain"), nb::arg("events"), nb::arg("wait_obj"), nb::arg("flags"))
      .def("close_core", [](OfiCore<OfiCntr>& self) { ofi_check("cntr.close", self.box->h.shut()); })
      .def_prop_ro("in_use", &ofi_in_use<OfiCntr>, "True while an object that uses this one exists.")
      .def(
          "add", [](OfiCore<OfiCntr>& c, nb::handle v) { change_cntr(c, "cntr.add", v, &ofi::CntrOps::add); },
          nb::arg("value"), nb::sig("def add(self, value: int) -> None"), "Adds to the success value (fi_cntr_add).")
      .def(
          "set", [](OfiCore<OfiCntr>& c, nb::handle v) { change_cntr(c, "cntr.set", v, &ofi::CntrOps::set); },
          nb::arg("value"), nb::sig("def set(self, value: int) -> None"), "Sets the success value (fi_cntr_set).")
      .def(
          "adderr", [](OfiCore<OfiCntr>& c, nb::handle v) { change_cntr(c, "cntr.adderr", v, &ofi::CntrOps::adderr); },
          nb::arg("value"), nb::sig("def adderr(self, value: int) -> None"),
          "Adds to the error value (fi_cntr_adderr).")
      .def(
          "seterr", [](OfiCore<OfiCntr>& c, nb::handle v) { change_cntr(c, "cntr.seterr", v, &ofi::CntrOps::seterr); },
          nb::arg("value"), nb::sig("def seterr(self, value: int) -> None"), "Sets the error value (fi_cntr_seterr).")
      .def("fd_core", &descriptor<OfiCntr>)
      .def_prop_ro("fid", &number_of_fid<OfiCntr>);
}

}  // namespace weft::bind
