// cpp/bind/cntr.cpp: counters as Python types: one type, of Weft's NIC or of a real libfabric (CounterCore::lib).
#include <nanobind/stl/array.h>

#include "bind/ofi_queue.hpp"
#include "bind/params.hpp"
#include "bind/signatures.hpp"
#include "nic/client_memory.hpp"

namespace weft::bind {

namespace {

constexpr int64_t kPageLook = 1'000'000;  // interval at which a waiting thread reads a counter's page

// The page of a counter: a writable buffer.
struct CounterPageCore {
  std::shared_ptr<nic::CounterPage> page;
  std::weak_ptr<nic::Counter> counter;
  std::shared_ptr<DomainBox> box;
};

int page_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  auto* core = nb::inst_ptr<CounterPageCore>(self);
  return PyBuffer_FillInfo(view, self, core->page->data(), nic::CounterPage::kBytes, 0, flags);
}
PyType_Slot g_page_slots[] = {{Py_bf_getbuffer, slot<page_getbuffer>()}, {0, nullptr}};

bool cntr_usable(CounterCore* core) {
  if (!core->closed && core->box && !core->box->forked()) return true;
  return set_error(fi_err::kEOPBADSTATE, "the counter is closed, or belongs to the parent process");
}

// False with an error set: the client's memory was missing when the NIC wrote the counter back.
bool buffer_is_there(const CounterCore* core) {
  if (core->counter->memory() == nullptr || !core->counter->memory()->take_fault()) [[likely]]
    return true;
  return set_error(fi_err::kEFAULT,
                   "the NIC could not write the counter back: its buffer has no memory behind it any more\n"
                   "  try: keep the buffer while the counter is open, or set another one");
}

uint64_t read_now(const CounterCore* core, bool errors) {
  if (nic::ClientMemory* memory = core->counter->memory(); memory != nullptr) [[unlikely]]
    return memory->read(errors);
  return errors ? core->counter->errors() : core->counter->value();
}

// ---- of a real libfabric --------------------------------------------------------------------------------------------

// HOT.
PyObject* lib_read(const OfiCntr& c, const char* name, uint64_t (*ofi::CntrOps::*which)(ofi::FidCntr*)) {
  if (!ofi_usable(c.h, name, "counter")) [[unlikely]]
    return nullptr;
  const auto call = ofi::op(c.get()->ops, which);
  if (call != nullptr) [[likely]]
    return number(call(c.get()));
  return ofi_missing(name);
}

// Looks again and again instead of calling fi_cntr_wait, which no signal interrupts: in some providers
// its timeout does not end a wait for operations that need the application's progress.
PyObject* lib_wait(const std::shared_ptr<OfiCntr> c, uint64_t threshold, uint64_t deadline) {
  uint64_t failures = 0;
  for (bool first = true;; first = false) {
    if (!ofi_usable(c->h, "cntr.wait", "counter")) return nullptr;
    const auto read = ofi::op(c->get()->ops, &ofi::CntrOps::read);
    const auto readerr = ofi::op(c->get()->ops, &ofi::CntrOps::readerr);
    if (read == nullptr || readerr == nullptr) return ofi_missing("cntr.wait");
    if (read(c->get()) >= threshold) Py_RETURN_NONE;
    const uint64_t now_failed = readerr(c->get());
    if (first) failures = now_failed;
    if (now_failed != failures) {
      return set_error(fi_err::kEAVAIL,
                       "cntr.wait: an operation failed: readerr() counts failures, the completion queue has "
                       "its entry");
    }
    if (slice_ms(deadline) == 0)
      return set_error(fi_err::kETIMEDOUT, "cntr.wait: the counter has not reached the threshold within the timeout");
    rest();
    if (PyErr_CheckSignals() != 0) return nullptr;
  }
}

// ---- calls ----------------------------------------------------------------------------------------------------------

PyObject* cntr_read(PyObject* self, PyObject*) {
  auto* core = nb::inst_ptr<CounterCore>(self);
  if (core->lib) return lib_read(*core->lib, "cntr.read", &ofi::CntrOps::read);
  if (!cntr_usable(core)) return nullptr;
  core->box->drain();
  if (core->notifier) core->notifier->drain();
  if (core->box->domain->nic()->poll_from_app() != 0) core->pacer.found();
  core->pacer.saw(core->counter->value());
  if (core->pacer.due()) [[unlikely]] {
    const ReleasedGil released;
    core->pacer.yield_or_rest();
  }
  core->box->domain->software_progress();
  const uint64_t value = read_now(core, false);
  return buffer_is_there(core) ? number(value) : nullptr;
}

PyObject* cntr_readerr(PyObject* self, PyObject*) {
  auto* core = nb::inst_ptr<CounterCore>(self);
  if (core->lib) return lib_read(*core->lib, "cntr.readerr", &ofi::CntrOps::readerr);
  if (!cntr_usable(core)) return nullptr;
  core->box->domain->nic()->poll_from_app();
  core->box->domain->software_progress();
  const uint64_t errors = read_now(core, true);
  return buffer_is_there(core) ? number(errors) : nullptr;
}

// add(), set() ...: `here` of the NIC's counter, `there` of the library's.
template <Text kCall, bool errors, auto here, auto there>
void change(CounterCore& c, nb::handle value) {
  const char* const call = kCall.text;
  if (c.lib) {
    const auto found = ofi::op(ofi_counter(c, call)->get()->ops, there);
    if (found == nullptr) ofi_raise_missing(call);
    return ofi_check(call, found(c.lib->get(), number_of(value, call, "value")));
  }
  check_usable(c, "counter");
  const uint64_t n = number_of(value, call, "value");
  const uint64_t max = errors ? c.counter->limits().errors_max : c.counter->limits().value_max;
  if (n > max) {
    raise(errors ? c.errors_errno : c.value_errno, call, ": value ", n, "\n  rule: at most ", max,
          ", the largest that the counter holds");
  }
  (c.counter.get()->*here)(n);
  run_triggers(*c.box);
}

PyObject* cntr_wait(PyObject* self, PyObject* (&a)[2]) {
  uint64_t threshold = 0, deadline;
  if (!to_u64(a[0], &threshold, "cntr.wait", "threshold") || !deadline_of(a[1], &deadline, "cntr.wait")) {
    return nullptr;
  }
  auto* core = nb::inst_ptr<CounterCore>(self);
  if (core->lib) return lib_wait(core->lib, threshold, deadline);
  if (!cntr_usable(core)) return nullptr;
  const auto counter = core->counter;
  const auto keep = core->box;
  const uint64_t max = counter->limits().value_max;
  if (threshold > max) {
    return set_error(core->threshold_errno, "cntr.wait: threshold ", threshold, "\n  rule: at most ", max,
                     ", the largest value that the counter reaches");
  }
  nic::ClientMemory* const memory = counter->memory();
  const uint64_t errors = counter->errors();
  if (memory != nullptr) memory->write_back_at(threshold);
  const int r = wait_for(
      *keep->domain->nic(), counter->event, core->pacer, deadline,
      [&] {
        keep->domain->software_progress();
        if (memory != nullptr) (void)memory->look();
        return counter->value() >= threshold || counter->errors() != errors ||
               core->closed.load(std::memory_order_relaxed);
      },
      memory != nullptr ? kPageLook : kSleepSlice);
  if (r < 0) return nullptr;
  if (!cntr_usable(core)) return nullptr;  // another thread has closed the counter
  if (!buffer_is_there(core)) return nullptr;
  if (counter->value() >= threshold) Py_RETURN_NONE;
  if (counter->errors() != errors) {
    return set_error(fi_err::kEAVAIL,
                     "an operation that the counter counts failed: its entry is in the completion queue");
  }
  const std::string before =
      ", and " + std::to_string(errors) + " operations had failed before: see readerr() and the completion queue";
  return set_error(fi_err::kETIMEDOUT, "the counter is at ", counter->value(), " of ", threshold, " at the timeout",
                   errors == 0 ? "" : before.c_str());
}

PyMethodDef g_cntr_methods[] = {
    {"read", method<cntr_read>(), METH_NOARGS,
     "The number of successful events so far (fi_cntr_read). Drives the NIC's progress.\n\nSource: fi_cntr(3) "
     "fi_cntr_read."},
    {"readerr", method<cntr_readerr>(), METH_NOARGS,
     "The number of failed events so far (fi_cntr_readerr).\n\nSource: fi_cntr(3) fi_cntr_readerr."},
    {"wait", method<parsed<cntr_wait, "wait", "threshold! timeout">>(), kFast,
     "Waits until the value reaches threshold (fi_cntr_wait).\n\n"
     "timeout  seconds; None or negative: no limit.\n\n"
     "Raises TimedOut; Available if the error value changed during the wait. Source: fi_cntr(3) fi_cntr_wait."},
    {nullptr, nullptr, 0, nullptr}};

// Stops writing the client's buffer and reading its page.
void leave(CounterCore& c) {
  if (!c.box || !c.counter || c.box->forked() || c.counter->memory() == nullptr) return;
  c.box->domain->nic()->unwatch(c.counter.get());
  c.counter->memory()->set_buffer(nullptr, false);
}

nic::ClientMemory& memory_of(CounterCore& c) {
  if (!c.lib) check_usable(c, "counter");
  if (c.lib || c.counter->memory() == nullptr)
    raise(fi_err::kENOSYS, "this counter has no write-back buffer and no page");
  return *c.counter->memory();
}

void set_wb_buffer(CounterCore& c, nb::handle buffer) {
  nic::ClientMemory& memory = memory_of(c);
  Buf buf;
  if (!buf.acquire(buffer.ptr(), true)) throw nb::python_error();
  if (buf.length < sizeof(uint64_t)) {
    raise(fi_err::kEINVAL, "set_wb_buffer: a buffer of ", buf.length, " bytes; the counter writes 8");
  }
  std::optional<mem::DeviceMemory> device;
  if ((buf.iface != mem::kHmemSystem || (buf.bare && c.box->config.hmem)) &&
      !find_device(*c.box, buf, "set_wb_buffer", &device)) {
    throw nb::python_error();
  }
  if (!device && buf.bare && !bare_is_there(buf, "set_wb_buffer", true)) throw nb::python_error();
  PyObject* keep = buf.hold();
  if (keep == nullptr) throw nb::python_error();
  memory.set_buffer(buf.data, device.has_value());
  c.written_to = nb::steal(keep);  // releases the previous buffer, which the NIC no longer writes
}

CounterPageCore get_mmio(CounterCore& c) {
  nic::ClientMemory& memory = memory_of(c);
  CounterPageCore page{memory.page(), c.counter, c.box};
  c.box->domain->nic()->watch(c.counter);
  return page;
}

}  // namespace

const std::shared_ptr<OfiCntr>& ofi_counter(const CounterCore& core, const char* call) {
  if (!core.lib) raise(fi_err::kEINVAL, call, ": the counter is of Weft's NIC");
  (void)ofi_open(OfiCore<OfiCntr>{core.lib}, call);
  return core.lib;
}

CounterCore::~CounterCore() {
  const Seam seam;
  leave(*this);
}

void register_cntr(Module& m) {
  Class<CounterPageCore>(
      m, "CounterPage", nb::type_slots(g_page_slots),
      "The page of a counter: a writable buffer of 4096 bytes. A store of 8 bytes at offset 0 adds to the value, at\n"
      "64 to the failures; 0 stored at 128 resets the value, at 192 the failures. The page stays mapped while a\n"
      "reference to this object exists; after the counter is closed, stores have no effect.")
      .def_prop<"address">([](const CounterPageCore& p) { return reinterpret_cast<uint64_t>(p.page->data()); })
      .def_prop<"nbytes">([](const CounterPageCore&) { return nic::CounterPage::kBytes; })
      .about("Has the effect of a plain store, at once. No store made by this call is lost.")
      .def<"store(offset, value)">([](CounterPageCore& p, size_t offset, uint64_t value) {
        using Page = nic::CounterPage;
        if (offset != Page::kAddValue && offset != Page::kAddErrors && offset != Page::kResetValue &&
            offset != Page::kResetErrors) {
          raise(fi_err::kEINVAL, "offset ", offset, ": the page has words at 0, 64, 128 and 192");
        }
        const auto counter = p.counter.lock();
        if (counter == nullptr) return;
        counter->memory()->store(offset, value);
        run_triggers(*p.box);
      });
  Class<CounterCore> cntr(m, "CounterCore", nb::type_slots(method_slots<"CounterCore", g_cntr_methods>()),
                          "The NIC's side of a counter.");
  def_waits(cntr, &CounterCore::lib,
            "A descriptor that becomes readable when the counter changes (wait_obj FD), or -1.");
  cntr.def<"__init__(domain, config, flags=0)">(
          [](CounterCore* self, DomainCore& d, const nic::CounterConfig& config, uint64_t) {
            auto& box = box_of(d);
            auto counter = std::make_shared<nic::Counter>(nic::CounterLimits{config.value_max, config.errors_max});
            counter->counts_bytes = config.events == 1;
            std::shared_ptr<host::EventfdNotifier> notifier;
            if (config.wait_obj == kWaitFd) {
              notifier = std::make_shared<host::EventfdNotifier>();
              counter->event.set_notifier(notifier);
            }
            if (config.client_memory) {
              counter->set_memory(std::make_unique<nic::ClientMemory>(counter.get(), &box->domain->nic()->devices()));
              counter->memory()->cached.store(config.cached, std::memory_order_relaxed);
            }
            new (self) CounterCore();
            self->box = box;
            self->counter = std::move(counter);
            self->notifier = std::move(notifier);
            self->value_errno = config.value_errno;
            self->errors_errno = config.errors_errno;
            self->threshold_errno = config.threshold_errno;
          })
      .about("flags: of struct fi_cntr_attr, for a real libfabric.")
      .def<"__init__(domain, config, flags)">([](CounterCore* self, const OfiCore<OfiDomain>& domain,
                                                 const nic::CounterConfig& config, uint64_t flags) {
        const ofi::FidDomain* d = ofi_open(domain, "cntr_open").get();
        auto made = std::make_shared<OfiCntr>();
        made->domain = domain.box;
        open_waiting(*made, "cntr_open", domain.box->get(), ofi::op(d->ops, &ofi::DomainOps::cntr_open),
                     ofi::CntrAttr{static_cast<int>(config.events), static_cast<int>(config.wait_obj), nullptr, flags});
        new (self) CounterCore();
        self->lib = std::move(made);
      })
      .about("Adds to the value (fi_cntr_add). Source: fi_cntr(3) fi_cntr_add.")
      .def<"add(self, value?: int) -> None">(&change<"cntr.add", false, &nic::Counter::add, &ofi::CntrOps::add>)
      .about("Sets the value (fi_cntr_set). Source: fi_cntr(3) fi_cntr_set.")
      .def<"set(self, value?: int) -> None">(&change<"cntr.set", false, &nic::Counter::set, &ofi::CntrOps::set>)
      .about("Adds to the error value (fi_cntr_adderr). Source: fi_cntr(3) fi_cntr_adderr.")
      .def<"adderr(self, value?: int) -> None">(
          &change<"cntr.adderr", true, &nic::Counter::add_errors, &ofi::CntrOps::adderr>)
      .about("Sets the error value (fi_cntr_seterr). Source: fi_cntr(3) fi_cntr_seterr.")
      .def<"seterr(self, value?: int) -> None">(
          &change<"cntr.seterr", true, &nic::Counter::set_errors, &ofi::CntrOps::seterr>)
      .about(
          "Sets the buffer to which the NIC writes the counter: now, and at every later write-back. The NIC writes\n"
          "the first 8 bytes of a writable buffer (host memory, device memory, or (address, length)) and no longer\n"
          "those of the previous buffer. The counter keeps a reference to the buffer.\n"
          "Source: fi_cxi(7) \"CXI Counter Extensions\".")
      .def<"set_wb_buffer(self, buffer?: object) -> None">(set_wb_buffer)
      .about(
          "Returns the counter's page for plain stores; every call returns the same object.\n"
          "Source: fi_cxi(7) \"CXI Counter Extensions\".")
      .def<"get_mmio">(get_mmio)
      .about("Writes the counter back when its value reaches `value`; at once if it already has.")
      .def<"write_back_at(self, value?: int) -> None">([](CounterCore& c, nb::handle value) {
        memory_of(c).write_back_at(number_of(value, "cntr.write_back_at", "value"));
      })
      .about("True: read() returns the value written back last.")
      .def_prop<"cached">(
          [](const CounterCore& c) { return c.counter->memory() != nullptr && c.counter->memory()->cached.load(); },
          [](CounterCore& c, bool on) { memory_of(c).cached = on; })
      .def<"close">([](CounterCore& c) {
        if (c.lib) return ofi_check("cntr.close", c.lib->h.shut());
        c.closed = true;
        leave(c);
        // The NIC no longer triggers by this counter; it may still count deferred work that was queued earlier.
        if (!c.box->forked()) c.box->domain->triggers().forget(c.counter.get());
        c.written_to.reset();
        if (!c.box->forked()) c.counter->event.tell();
      });
}

}  // namespace weft::bind
