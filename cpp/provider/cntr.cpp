// cpp/provider/cntr.cpp: counters.
#include "nic/counter.hpp"

#include "mem/maps.hpp"
#include "mem/segment.hpp"
#include "nic/client_memory.hpp"
#include "provider/ext.hpp"
#include "provider/objects.hpp"
#include "provider/wait.hpp"

namespace weft::provider {

namespace {

constexpr int kCntrWaitFd = 3;

int cntr_refuse(const Cntr& c, const char* call, int number, const std::string& text) {
  return refuse(c.domain->fabric->front, Subject::cntr, call, number, text);
}

int cntr_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<CntrShell*>(fid);
  Cntr& c = shell->of;
  if (c.forked()) return 0;  // the parent's
  if (c.uses != 0) return in_use(c, "an endpoint or a region is bound to the counter\n  try: close it first");
  c.domain->domain->triggers().forget(c.counter.get());
  if (c.counter->memory() != nullptr) {  // the program may unmap its buffer
    c.domain->host->nic().unwatch(c.counter.get());
    c.counter->memory()->set_buffer(nullptr, false);
  }
  --c.domain->uses;
  delete shell;
  return 0;
}

// FI_GETOPSFLAG, FI_SETOPSFLAG: FI_CXI_CNTR_CACHED.
int cntr_flags(const Cntr& c, int command, uint64_t* flags) {
  const Front& front = c.domain->fabric->front;
  if (flags == nullptr)
    return cntr_refuse(c, "fi_control", fi_err::kEINVAL, "fi_control: a pointer to the flags is needed");
  return guarded(front, Subject::cntr, "fi_control", [&] {
    Record question = question_about("control", c.lease);
    question.add("command", static_cast<uint64_t>(command));
    if (command == ofi::kSetOpsFlag) question.add("value", *flags);
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(front, Subject::cntr, "fi_control", answer); r != 0) return r;
    if (command == ofi::kGetOpsFlag) {
      *flags = answer.number("value");
    } else if (c.counter->memory() != nullptr) {
      c.counter->memory()->cached.store(*flags != 0, std::memory_order_relaxed);
    }
    return 0;
  });
}

int cntr_control(ofi::Fid* fid, int command, void* arg) {
  const Cntr& c = of(as<ofi::FidCntr>(fid));
  if (c.forked()) return refuse_forked(c, "fi_control");
  if (command == ofi::kGetWait && c.notifier != nullptr) {
    *static_cast<int*>(arg) = c.notifier->fd();
    return 0;
  }
  if (command == ofi::kGetWaitObj) {
    *static_cast<int*>(arg) = c.wait_obj;
    return 0;
  }
  if (command == ofi::kGetOpsFlag || command == ofi::kSetOpsFlag)
    return cntr_flags(c, command, static_cast<uint64_t*>(arg));
  return control_beyond(c.domain->fabric->front, Subject::cntr, c.lease, command, arg, nullptr);
}

void make_progress(Cntr& c) {
  if (c.notifier) c.notifier->drain();
  if (c.domain->host->nic().poll_from_app() != 0) c.pacer.found();
  c.pacer.saw(c.counter->value());
  pace(c.pacer, *c.domain->domain);
  c.domain->domain->software_progress();
  c.domain->forget_released();
}

uint64_t cntr_read(ofi::FidCntr* fid) {
  Cntr& c = of(fid);
  if (c.forked()) {
    (void)refuse_forked(c, "fi_cntr_read");
    return 0;
  }
  make_progress(c);
  if (nic::ClientMemory* const memory = c.counter->memory(); memory != nullptr) return memory->read(false);
  return c.counter->value();
}

uint64_t cntr_readerr(ofi::FidCntr* fid) {
  Cntr& c = of(fid);
  if (c.forked()) {
    (void)refuse_forked(c, "fi_cntr_readerr");
    return 0;
  }
  make_progress(c);
  if (nic::ClientMemory* const memory = c.counter->memory(); memory != nullptr) return memory->read(true);
  return c.counter->errors();
}

// Changes a counter, and starts the deferred work that its value triggers.
template <typename Change>
int change(ofi::FidCntr* fid, const char* call, uint64_t value, bool errors, Change&& by) {
  Cntr& c = of(fid);
  if (c.forked()) return refuse_forked(c, call);
  const nic::CounterLimits& limits = c.counter->limits();
  if (value > (errors ? limits.errors_max : limits.value_max)) {
    return refuse(c.domain->fabric->front, Subject::cntr, call, fi_err::kEINVAL,
                  std::string(call) + ": " + std::to_string(value) + " is more than the counter holds");
  }
  by(*c.counter);
  c.domain->domain->run_triggers();
  return 0;
}

int cntr_add(ofi::FidCntr* fid, uint64_t n) {
  return change(fid, "fi_cntr_add", n, false, [&](nic::Counter& c) { c.add(n); });
}
int cntr_set(ofi::FidCntr* fid, uint64_t n) {
  return change(fid, "fi_cntr_set", n, false, [&](nic::Counter& c) { c.set(n); });
}
int cntr_adderr(ofi::FidCntr* fid, uint64_t n) {
  return change(fid, "fi_cntr_adderr", n, true, [&](nic::Counter& c) { c.add_errors(n); });
}
int cntr_seterr(ofi::FidCntr* fid, uint64_t n) {
  return change(fid, "fi_cntr_seterr", n, true, [&](nic::Counter& c) { c.set_errors(n); });
}

int cntr_wait(ofi::FidCntr* fid, uint64_t threshold, int timeout) {
  Cntr& c = of(fid);
  if (c.forked()) return refuse_forked(c, "fi_cntr_wait");
  if (const uint64_t most = c.counter->limits().value_max; threshold > most) {
    return cntr_refuse(c, "fi_cntr_wait", fi_err::kEINVAL,
                       "fi_cntr_wait: " + std::to_string(threshold) +
                           " is more than the counter holds\n  try: at most " + std::to_string(most));
  }
  if (c.wait_obj == 0 && !c.trywaits)  // weft waits for any counter, as libfabric's own providers do
    return cntr_refuse(c, "fi_cntr_wait", c.domain->errno_of("WAIT_NONE"),
                       "fi_cntr_wait: the counter was opened with FI_WAIT_NONE\n  try: wait_obj FI_WAIT_UNSPEC");
  const uint64_t errors = c.counter->errors();
  nic::Domain& domain = *c.domain->domain;
  nic::ClientMemory* const memory = c.counter->memory();
  if (memory != nullptr) memory->write_back_at(threshold);
  (void)wait_for(
      *domain.nic(), c.counter->event, c.pacer, deadline_in(timeout),
      [&] {
        domain.software_progress();
        if (memory != nullptr) (void)memory->look();
        return c.counter->value() >= threshold || c.counter->errors() != errors;
      },
      memory != nullptr ? kPageLook : kSleepSlice);
  if (c.counter->value() >= threshold) return 0;
  if (c.counter->errors() == errors) return -fi_err::kETIMEDOUT;
  return cntr_refuse(c, "fi_cntr_wait", fi_err::kEAVAIL,
                     "fi_cntr_wait: an operation that the counter counts has failed\n  rule: its endpoint's completion "
                     "queue has the reason, in an error entry\n  try: fi_cq_readerr");
}

// ---- struct fi_cxi_cntr_ops -----------------------------------------------------------------------------------------

struct CounterOps {
  int (*set_wb_buffer)(ofi::Fid*, void* buffer, size_t length);
  int (*get_mmio_addr)(ofi::Fid*, void** address, size_t* length);
};

int set_wb_buffer(ofi::Fid* fid, void* buffer, size_t length) {
  static const char* const call = "set_wb_buffer";
  if (fid == nullptr || fid->fclass != kClassCntr) return refuse_kind(call, fid, "a counter");
  Cntr& c = of(as<ofi::FidCntr>(fid));
  if (c.forked()) return refuse_forked(c, call);
  return guarded(c.domain->fabric->front, Subject::cntr, call, [&] {
    if (buffer == nullptr || length < sizeof(uint64_t)) {
      return cntr_refuse(c, call, fi_err::kEINVAL,
                         buffer == nullptr
                             ? "set_wb_buffer: no buffer"
                             : "set_wb_buffer: a buffer of " + std::to_string(length) + " bytes; the counter writes 8");
    }
    const auto at = reinterpret_cast<uint64_t>(buffer);
    if (!mem::populate(at, sizeof(uint64_t), false))
      return cntr_refuse(c, call, fi_err::kEFAULT, "set_wb_buffer: no memory is mapped there");
    if (mem::first_not_writable(at, sizeof(uint64_t)))
      return cntr_refuse(c, call, fi_err::kEACCES, "set_wb_buffer: the buffer is read-only");
    c.counter->memory()->set_buffer(buffer, false);
    return 0;
  });
}

int get_mmio_addr(ofi::Fid* fid, void** address, size_t* length) {
  static const char* const call = "get_mmio_addr";
  if (fid == nullptr || fid->fclass != kClassCntr) return refuse_kind(call, fid, "a counter");
  Cntr& c = of(as<ofi::FidCntr>(fid));
  if (c.forked()) return refuse_forked(c, call);
  return guarded(c.domain->fabric->front, Subject::cntr, call, [&] {
    if (address == nullptr || length == nullptr)
      return cntr_refuse(c, call, fi_err::kEINVAL, "get_mmio_addr: room for the address and the length is needed");
    *address = c.counter->memory()->page()->data();
    *length = nic::CounterPage::kBytes;
    c.domain->host->nic().watch(c.counter);
    return 0;
  });
}

CounterOps g_counter_ops{set_wb_buffer, get_mmio_addr};

int cntr_open_ops(ofi::Fid* fid, const char* name, uint64_t flags, void** ops, void*) {
  const Cntr& c = of(as<ofi::FidCntr>(fid));
  if (c.forked()) return refuse_forked(c, "fi_open_ops");
  return open_beyond(*c.domain->fabric, Subject::cntr, c.lease, name, flags, ops, &g_counter_ops, nullptr);
}

ofi::FidOps g_cntr_fid_ops = fid_ops(cntr_close, cntr_control, nullptr, cntr_open_ops);
ofi::CntrOps g_cntr_ops{sizeof(ofi::CntrOps), cntr_read,  cntr_readerr, cntr_add, cntr_set, cntr_wait,
                        cntr_adderr,          cntr_seterr};

}  // namespace

int open_cntr(ofi::FidDomain* domain_fid, ofi::CntrAttr* attr, ofi::FidCntr** out, void* context) {
  Domain& d = of(domain_fid);
  if (d.forked()) return refuse_forked(d, "fi_cntr_open");
  return guarded(d.fabric->front, Subject::cntr, "fi_cntr_open", [&] {
    const ofi::CntrAttr none{.events = 0, .wait_obj = 1, .wait_set = nullptr, .flags = 0};  // FI_WAIT_UNSPEC
    const ofi::CntrAttr& a = attr != nullptr ? *attr : none;
    Record question = question_about("cntr", d.lease);
    question.add("events", static_cast<uint64_t>(a.events), "wait_obj", static_cast<uint64_t>(a.wait_obj), "flags",
                 a.flags);
    auto shell = std::make_unique<CntrShell>();
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(d.fabric->front, Subject::cntr, "fi_cntr_open", answer); r != 0) return r;
    Cntr& c = shell->of;
    c.lease.take(answer);
    c.domain = &d;
    c.wait_obj = static_cast<int>(answer.number("wait_obj"));
    c.trywaits = answer.flag("trywaits");
    c.counter =
        std::make_shared<nic::Counter>(nic::CounterLimits{answer.number("value_max"), answer.number("errors_max")});
    c.counter->counts_bytes = a.events == 1;
    if (answer.flag("client_memory")) {
      c.counter->set_memory(std::make_unique<nic::ClientMemory>(c.counter.get(), &d.host->nic().devices()));
      c.counter->memory()->cached.store(answer.flag("cached"), std::memory_order_relaxed);
    }
    if (c.wait_obj == kCntrWaitFd) {
      c.notifier = std::make_shared<host::EventfdNotifier>();
      c.counter->event.set_notifier(c.notifier);
    }
    shell->fid.fid = {kClassCntr, context, &g_cntr_fid_ops};
    shell->fid.ops = &g_cntr_ops;
    ++d.uses;
    *out = &shell.release()->fid;
    return 0;
  });
}

}  // namespace weft::provider
