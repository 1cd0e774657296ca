// cpp/provider/eq.cpp: event queues: what a program writes to them, and what objects of Weft report.
#include <poll.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "provider/objects.hpp"
#include "provider/wait.hpp"

namespace weft::provider {

namespace {

constexpr uint64_t kPeekFlag = uint64_t{1} << 19;
constexpr int kWaitNoneObj = 0, kEqWaitFd = 3;

int eq_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<EqShell*>(fid);
  Eq& eq = shell->of;
  if (eq.forked()) return 0;  // the parent's
  if (eq.uses != 0) return in_use(eq, "an endpoint is bound to the event queue\n  try: close the endpoint first");
  --eq.fabric->uses;
  delete shell;
  return 0;
}

int eq_control(ofi::Fid* fid, int command, void* arg) {
  const Eq& eq = of(as<ofi::FidEq>(fid));
  const bool waits = eq.wait_obj == kEqWaitFd;
  return control_waiting(front_of(eq), Subject::eq, command, arg, eq.wait_obj, waits ? eq.notifier.get() : nullptr);
}

// Makes events of the NIC's messages until an event waits. Further messages wait in the NIC, whose queue is bounded.
void pull(Eq& eq) REQUIRES(eq.lock) {
  if (!eq.events.empty()) return;
  eq.notifier->drain();  // first: a message that arrives later notifies again
  while (eq.events.empty()) {
    const auto message = eq.messages->pop();
    if (!message) return;
    if (const auto owner = eq.owners.find(message->token); owner != eq.owners.end())
      owner->second.handler(eq, owner->second.fid, *message);
  }
}

// Runs a call that looks for an event, after a round of progress.
template <typename F>
ssize_t looking(Eq& eq, const char* call, F&& f) {
  if (eq.forked()) return refuse_forked(eq, call);
  return guarded(eq.fabric->front, Subject::eq, call, [&]() UNCHECKED {
    std::shared_ptr<host::HostNic> host;
    {
      const Guard guard(eq.lock);
      host = eq.host;
    }
    if (host != nullptr) (void)host->nic().poll_from_app();
    const Guard guard(eq.lock);
    pull(eq);
    return static_cast<int>(f());
  });
}

void take_first(Eq& eq, uint64_t flags) REQUIRES(eq.lock) {
  if ((flags & kPeekFlag) != 0) return;
  eq.events.pop_front();
  pull(eq);
}

ssize_t eq_read(ofi::FidEq* fid, uint32_t* event, void* out, size_t size, uint64_t flags) {
  Eq& eq = of(fid);
  return looking(eq, "fi_eq_read", [&]() UNCHECKED -> ssize_t {
    if (eq.events.empty()) return -fi_err::kEAGAIN;
    const Eq::Event& first = eq.events.front();
    if (first.failed) return -fi_err::kEAVAIL;
    // A connection's data is cut to the program's room.
    const size_t least = first.fid == nullptr || first.whole ? first.entry.size() : offsetof(ofi::EqCmEntry, data);
    if (size < std::min(least, first.entry.size())) return -code::kETOOSMALL;
    const size_t length = std::min(size, first.entry.size());
    *event = first.number;
    std::memcpy(out, first.entry.data(), length);
    take_first(eq, flags);
    return static_cast<ssize_t>(length);
  });
}

ssize_t eq_readerr(ofi::FidEq* fid, ofi::EqErrEntry* out, uint64_t flags) {
  Eq& eq = of(fid);
  return looking(eq, "fi_eq_readerr", [&]() UNCHECKED -> ssize_t {
    if (eq.events.empty() || !eq.events.front().failed) return -fi_err::kEAGAIN;
    const Eq::Event& first = eq.events.front();
    ofi::EqErrEntry found;
    std::memcpy(&found, first.entry.data(), sizeof(found));
    eq.err_data = first.err_data;
    // fi_eq(3): the data goes into the caller's buffer, if there is one; otherwise the caller gets the queue's.
    const bool given = out->err_data != nullptr && out->err_data_size != 0;
    found.err_data = given ? out->err_data : eq.err_data.empty() ? nullptr : eq.err_data.data();
    found.err_data_size = given ? std::min(out->err_data_size, eq.err_data.size()) : eq.err_data.size();
    if (given) std::memcpy(found.err_data, eq.err_data.data(), found.err_data_size);
    *out = found;
    take_first(eq, flags);
    return sizeof(found);
  });
}

ssize_t eq_write(ofi::FidEq* fid, uint32_t event, const void* data, size_t size, uint64_t flags) {
  Eq& eq = of(fid);
  if (eq.forked()) return refuse_forked(eq, "fi_eq_write");
  if (!eq.writable || flags != 0 || (data == nullptr && size != 0)) {
    return refuse(eq.fabric->front, Subject::eq, "fi_eq_write", fi_err::kEINVAL,
                  "fi_eq_write: the queue was opened without FI_WRITE, or there are flags, or the event is NULL");
  }
  return guarded(eq.fabric->front, Subject::eq, "fi_eq_write", [&] {
    const Guard guard(eq.lock);
    Eq::Event written;
    written.number = event;
    written.entry.assign(static_cast<const char*>(data), size);
    eq.post(std::move(written));
    return static_cast<int>(size);
  });
}

ssize_t eq_sread(ofi::FidEq* fid, uint32_t* event, void* out, size_t size, int timeout, uint64_t flags) {
  Eq& eq = of(fid);
  if (eq.wait_obj == kWaitNoneObj) {
    return refuse(eq.fabric->front, Subject::eq, "fi_eq_sread", fi_err::kENOSYS,
                  "fi_eq_sread: the queue was opened with FI_WAIT_NONE\n  try: wait_obj FI_WAIT_UNSPEC");
  }
  // The NIC's engine wakes a waiting thread. Without one the thread has the work; and before the first endpoint is
  // bound nobody knows which of the two.
  constexpr uint64_t kSleepMs = INT_MAX, kUnboundMs = 50, kManualMs = 1;
  const uint64_t deadline = deadline_in(timeout);
  for (;;) {
    const ssize_t n = eq_read(fid, event, out, size, flags);
    const uint64_t now = host::now_ns();
    if (n != -fi_err::kEAGAIN || now >= deadline) return n;
    uint64_t sleep;
    {
      const Guard guard(eq.lock);
      sleep = eq.host == nullptr ? kUnboundMs : eq.host->nic().has_engine() ? kSleepMs : kManualMs;
    }
    if (deadline != host::kForever) sleep = std::min(sleep, (deadline - now + 999'999) / 1'000'000);
    pollfd wait{eq.notifier->fd(), POLLIN, 0};
    (void)::poll(&wait, 1, static_cast<int>(sleep));
  }
}

const char* eq_strerror(ofi::FidEq* fid, int prov_errno, const void*, char* buf, size_t length) {
  return text_of_errno(of(fid).lease, prov_errno, buf, length);
}

ofi::FidOps g_eq_fid_ops = fid_ops(eq_close, eq_control);
ofi::EqOps g_eq_ops{sizeof(ofi::EqOps), eq_read, eq_readerr, eq_write, eq_sread, eq_strerror};

}  // namespace

bool eq_is_empty(ofi::Fid* fid) {
  Eq& eq = of(as<ofi::FidEq>(fid));
  const Guard guard(eq.lock);
  pull(eq);
  return eq.events.empty();
}

uint64_t attach(Eq& eq, ofi::Fid* owner, Eq::Handler handler, const std::shared_ptr<host::HostNic>& host,
                nic::Endpoint& endpoint, bool listens) {
  static std::atomic<uint64_t> tokens{0};
  const uint64_t token = ++tokens;
  const Guard guard(eq.lock);
  eq.host = host;
  eq.owners[token] = {owner, handler};
  endpoint.cm().bind(eq.messages, token, listens);
  return token;
}

std::vector<Eq::Event> detach(Eq& eq, ofi::Fid* owner, uint64_t token) {
  const Guard guard(eq.lock);
  eq.owners.erase(token);
  std::vector<Eq::Event> unread = take_unread(eq, owner);
  pull(eq);
  return unread;
}

std::vector<Eq::Event> take_unread(Eq& eq, const ofi::Fid* fid) {
  std::vector<Eq::Event> unread;
  for (auto it = eq.events.begin(); it != eq.events.end();) {
    if (it->fid != fid) {
      ++it;
      continue;
    }
    unread.push_back(std::move(*it));
    it = eq.events.erase(it);
  }
  return unread;
}

int open_eq(ofi::FidFabric* fabric_fid, ofi::EqAttr* attr, ofi::FidEq** out, void* context) {
  Fabric& fabric = of(fabric_fid);
  return guarded(fabric.front, Subject::eq, "fi_eq_open", [&] {
    const ofi::EqAttr none{};
    const ofi::EqAttr& a = attr != nullptr ? *attr : none;
    Record question;
    question.add("ask", "eq", "provider", fabric.front.name, "fabric", fabric.name, "size", a.size, "flags", a.flags,
                 "wait_obj", static_cast<uint64_t>(a.wait_obj));
    auto shell = std::make_unique<EqShell>();
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(fabric.front, Subject::eq, "fi_eq_open", answer); r != 0) return r;
    Eq& eq = shell->of;
    eq.lease.take(answer);
    eq.fabric = &fabric;
    eq.wait_obj = static_cast<int>(answer.number("wait_obj"));
    eq.trywaits = answer.flag("trywaits");
    eq.writable = (a.flags & nic::flag::kWrite) != 0;
    shell->fid.fid = {kClassEq, context, &g_eq_fid_ops};
    shell->fid.ops = &g_eq_ops;
    ++fabric.uses;
    *out = &shell.release()->fid;
    return 0;
  });
}

}  // namespace weft::provider
