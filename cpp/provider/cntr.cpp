// cpp/provider/cntr.cpp: counters.
#include "nic/counter.hpp"

#include "provider/objects.hpp"
#include "provider/wait.hpp"

namespace weft::provider {

namespace {

constexpr int kCntrWaitFd = 3;

int cntr_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<CntrShell*>(fid);
  Cntr& c = shell->of;
  if (c.forked()) return leave_to_parent(shell);
  if (c.uses != 0) {
    return refuse(c.domain->fabric->front, Subject::cntr, "fi_close", fi_err::kEBUSY,
                  "fi_close: an endpoint or a region is bound to the counter\n  try: close it first");
  }
  Helper::of_process().give_back(c.lease);
  --c.domain->uses;
  delete shell;
  return 0;
}

int cntr_control(ofi::Fid* fid, int command, void* arg) {
  const Cntr& c = of(as<ofi::FidCntr>(fid));
  if (command == ofi::kGetWait && c.notifier != nullptr) {
    *static_cast<int*>(arg) = c.notifier->fd();
    return 0;
  }
  if (command == ofi::kGetWaitObj) {
    *static_cast<int*>(arg) = c.wait_obj;
    return 0;
  }
  return -fi_err::kENOSYS;
}

void make_progress(Cntr& c) {
  if (c.notifier) c.notifier->drain();
  (void)c.domain->host->nic().poll_from_app();
  if (c.pacer.due()) [[unlikely]]
    c.pacer.yield_measured();
  c.domain->domain->software_progress();
  c.domain->forget_released();
}

uint64_t cntr_read(ofi::FidCntr* fid) {
  Cntr& c = of(fid);
  if (c.forked()) return 0;
  make_progress(c);
  return c.counter->value();
}

uint64_t cntr_readerr(ofi::FidCntr* fid) {
  Cntr& c = of(fid);
  if (c.forked()) return 0;
  make_progress(c);
  return c.counter->errors();
}

// Changes a counter, and starts the deferred work that its value triggers.
template <typename Change>
int change(ofi::FidCntr* fid, const char* call, uint64_t value, bool errors, Change&& by) {
  Cntr& c = of(fid);
  if (c.forked()) return -fi_err::kEOPBADSTATE;
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
  if (c.forked()) return -fi_err::kEOPBADSTATE;
  if (threshold > c.counter->limits().value_max) return -fi_err::kEINVAL;
  const uint64_t errors = c.counter->errors();
  nic::Domain& domain = *c.domain->domain;
  (void)wait_for(*domain.nic(), c.counter->event, c.pacer, deadline_in(timeout), [&] {
    domain.software_progress();
    return c.counter->value() >= threshold || c.counter->errors() != errors;
  });
  if (c.counter->value() >= threshold) return 0;
  return c.counter->errors() != errors ? -fi_err::kEAVAIL : -fi_err::kETIMEDOUT;
}

ofi::FidOps make_cntr_fid_ops() noexcept {
  ofi::FidOps ops = fid_ops(cntr_close);
  ops.control = cntr_control;
  return ops;
}
ofi::FidOps g_cntr_fid_ops = make_cntr_fid_ops();
ofi::CntrOps g_cntr_ops{sizeof(ofi::CntrOps), cntr_read,  cntr_readerr, cntr_add, cntr_set, cntr_wait,
                        cntr_adderr,          cntr_seterr};

}  // namespace

int open_cntr(ofi::FidDomain* domain_fid, ofi::CntrAttr* attr, ofi::FidCntr** out, void* context) {
  Domain& d = of(domain_fid);
  if (d.forked()) return -fi_err::kEOPBADSTATE;
  return guarded(d.fabric->front, Subject::cntr, "fi_cntr_open", [&] {
    const ofi::CntrAttr none{};
    const ofi::CntrAttr& a = attr != nullptr ? *attr : none;
    Record question;
    question.add("ask", "cntr");
    question.add("of", d.lease);
    question.add("events", static_cast<uint64_t>(a.events));
    question.add("wait_obj", static_cast<uint64_t>(a.wait_obj));
    question.add("flags", a.flags);
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(d.fabric->front, Subject::cntr, "fi_cntr_open", answer); r != 0) return r;
    auto shell = std::make_unique<CntrShell>();
    Cntr& c = shell->of;
    c.lease = answer.number("lease");
    c.domain = &d;
    c.wait_obj = static_cast<int>(answer.number("wait_obj"));
    c.counter =
        std::make_shared<nic::Counter>(nic::CounterLimits{answer.number("value_max"), answer.number("errors_max")});
    c.counter->counts_bytes = a.events == 1;
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
