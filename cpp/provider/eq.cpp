// cpp/provider/eq.cpp: event queues: what a program writes to them. Endpoints of the type FI_EP_RDM have no events.
#include <cstring>

#include "provider/objects.hpp"

namespace weft::provider {

namespace {

constexpr uint64_t kPeekFlag = uint64_t{1} << 19;
constexpr int kEqWaitFd = 3;

int eq_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<EqShell*>(fid);
  Eq& eq = shell->of;
  if (eq.uses != 0) {
    return refuse(eq.fabric->front, Subject::eq, "fi_close", fi_err::kEBUSY,
                  "fi_close: an endpoint is bound to the event queue\n  try: close the endpoint first");
  }
  Helper::of_process().give_back(eq.lease);
  --eq.fabric->uses;
  delete shell;
  return 0;
}

int eq_control(ofi::Fid* fid, int command, void* arg) {
  const Eq& eq = of(as<ofi::FidEq>(fid));
  if (command == ofi::kGetWait && eq.notifier != nullptr) {
    *static_cast<int*>(arg) = eq.notifier->fd();
    return 0;
  }
  if (command == ofi::kGetWaitObj) {
    *static_cast<int*>(arg) = eq.wait_obj;
    return 0;
  }
  return -fi_err::kENOSYS;
}

ssize_t take_event(Eq& eq, uint32_t* event, void* out, size_t size, uint64_t flags) REQUIRES(eq.lock) {
  if (eq.events.empty()) return -fi_err::kEAGAIN;
  Eq::Event& first = eq.events.front();
  if (size < first.data.size()) return -code::kETOOSMALL;
  *event = first.number;
  const auto length = static_cast<ssize_t>(first.data.size());
  std::memcpy(out, first.data.data(), first.data.size());
  if ((flags & kPeekFlag) == 0) eq.events.pop_front();
  if (eq.notifier && eq.events.empty()) eq.notifier->drain();
  return length;
}

ssize_t eq_read(ofi::FidEq* fid, uint32_t* event, void* out, size_t size, uint64_t flags) {
  Eq& eq = of(fid);
  const Guard guard(eq.lock);
  return take_event(eq, event, out, size, flags);
}

ssize_t eq_readerr(ofi::FidEq*, ofi::EqErrEntry*, uint64_t) {
  return -fi_err::kEAGAIN;
}

ssize_t eq_write(ofi::FidEq* fid, uint32_t event, const void* data, size_t size, uint64_t flags) {
  Eq& eq = of(fid);
  if (!eq.writable || flags != 0) {
    return refuse(eq.fabric->front, Subject::eq, "fi_eq_write", fi_err::kEINVAL,
                  "fi_eq_write: the queue was opened without FI_WRITE, or there are flags");
  }
  return guarded(eq.fabric->front, Subject::eq, "fi_eq_write", [&] {
    const Guard guard(eq.lock);
    eq.events.push_back({event, std::string(static_cast<const char*>(data), size)});
    eq.more.notify_all();
    if (eq.notifier) eq.notifier->notify();
    return static_cast<int>(size);
  });
}

// The condition variable gives up the lock and takes it again, which the analysis does not follow.
UNCHECKED ssize_t eq_sread(ofi::FidEq* fid, uint32_t* event, void* out, size_t size, int timeout, uint64_t flags) {
  Eq& eq = of(fid);
  std::unique_lock guard(eq.lock.plain());
  const auto there = [&]() UNCHECKED { return !eq.events.empty(); };
  if (timeout < 0) {
    eq.more.wait(guard, there);
  } else {
    (void)eq.more.wait_for(guard, std::chrono::milliseconds(timeout), there);
  }
  return take_event(eq, event, out, size, flags);
}

const char* eq_strerror(ofi::FidEq*, int, const void*, char* buf, size_t length) {
  if (buf != nullptr && length != 0) buf[0] = '\0';
  return "";
}

ofi::FidOps make_eq_fid_ops() noexcept {
  ofi::FidOps ops = fid_ops(eq_close);
  ops.control = eq_control;
  return ops;
}
ofi::FidOps g_eq_fid_ops = make_eq_fid_ops();
ofi::EqOps g_eq_ops{sizeof(ofi::EqOps), eq_read, eq_readerr, eq_write, eq_sread, eq_strerror};

}  // namespace

bool eq_is_empty(ofi::Fid* fid) {
  Eq& eq = of(as<ofi::FidEq>(fid));
  const Guard guard(eq.lock);
  return eq.events.empty();
}

int open_eq(ofi::FidFabric* fabric_fid, ofi::EqAttr* attr, ofi::FidEq** out, void* context) {
  Fabric& fabric = of(fabric_fid);
  return guarded(fabric.front, Subject::eq, "fi_eq_open", [&] {
    const ofi::EqAttr none{};
    const ofi::EqAttr& a = attr != nullptr ? *attr : none;
    Record question;
    question.add("ask", "eq");
    question.add("provider", fabric.front.name);
    question.add("fabric", fabric.name);
    question.add("size", a.size);
    question.add("flags", a.flags);
    question.add("wait_obj", static_cast<uint64_t>(a.wait_obj));
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(fabric.front, Subject::eq, "fi_eq_open", answer); r != 0) return r;
    auto shell = std::make_unique<EqShell>();
    Eq& eq = shell->of;
    eq.lease = answer.number("lease");
    eq.fabric = &fabric;
    eq.wait_obj = static_cast<int>(answer.number("wait_obj"));
    eq.writable = (a.flags & nic::flag::kWrite) != 0;
    if (eq.wait_obj == kEqWaitFd) eq.notifier = std::make_unique<host::EventfdNotifier>();
    shell->fid.fid = {kClassEq, context, &g_eq_fid_ops};
    shell->fid.ops = &g_eq_ops;
    ++fabric.uses;
    *out = &shell.release()->fid;
    return 0;
  });
}

}  // namespace weft::provider
