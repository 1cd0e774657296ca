// cpp/provider/calls.hpp: what the calls of an endpoint share: buffers, checks, posting, refusals. The rules and the
// texts are cpp/call's, as for Python programs.
#pragma once

#include <array>
#include <span>

#include "call/call.hpp"
#include "call/deferred.hpp"
#include "call/msg.hpp"
#include "provider/objects.hpp"

namespace weft::provider {

using nic::Refusal;

// Cold: the number of a refusal, explained.
[[gnu::noinline, gnu::cold]] ssize_t refuse_call(Ep& ep, const char* call, const call::Why& why) noexcept;
[[gnu::noinline, gnu::cold]] ssize_t refuse_post(Ep& ep, const char* call, Refusal refusal, uint64_t dest,
                                                 uint64_t total) noexcept;

// HOT.
inline call::Local local_of(const Ep& ep, const void* buf, size_t length, void* desc) noexcept {
  call::Local local;
  local.data = static_cast<std::byte*>(const_cast<void*>(buf));
  local.length = length;
  local.bare = buf == nullptr && length != 0;  // so that it is looked at, and refused
  if (desc != nullptr) {
    local.desc_given = true;
    if (!ep.desc_ignored) local.desc = static_cast<const MrShell*>(desc)->of.region.get();
  }
  return local;
}

inline uint64_t context_of(const void* context) noexcept {
  return reinterpret_cast<uint64_t>(context);
}

// The buffers of a call.
struct Locals {
  std::array<call::Local, nic::kIovMax> list;
  size_t count = 0;  // as the caller gave it; a list that is too long is refused by its count
  [[nodiscard]] std::span<const call::Local> span() const noexcept { return {list.data(), count}; }

  // False: more buffers than any rule allows, or no list.
  bool take(const Ep& ep, const iovec* iov, void** desc, size_t n) noexcept {
    if (n > list.size() || (iov == nullptr && n != 0)) return false;
    for (count = 0; count < n; ++count)
      list[count] = local_of(ep, iov[count].iov_base, iov[count].iov_len, desc != nullptr ? desc[count] : nullptr);
    return true;
  }
};

ssize_t refuse_long_list(Ep& ep, const char* call, size_t count) noexcept;

inline uint64_t total_of(const call::Transfer& t) noexcept {
  return t.local.length;
}
template <typename Call>
uint64_t total_of(const Call& c) noexcept {
  return c.total;
}
inline uint64_t peer_of(const call::Receive& r) noexcept {
  return r.source;
}
template <typename Call>
uint64_t peer_of(const Call& c) noexcept {
  return c.dest;
}

// HOT. Checks and posts a call.
template <typename Call>
ssize_t run(Ep& ep, const char* name, Call& c) noexcept {
  if (ep.forked()) [[unlikely]]
    return refuse_forked(ep, name);
  try {
    call::Why why;
    if (call::check(*ep.ep, c, &why) != Refusal::none) [[unlikely]]
      return refuse_call(ep, name, why);
    c.flags |= requires { c.tagged; } ? ep.lane : ep.one_sided;
    const nic::PostResult r = call::post(*ep.ep, c);
    if (r.refusal != Refusal::none) [[unlikely]]
      return refuse_post(ep, name, r.refusal, peer_of(c), total_of(c));
    return 0;
  } catch (const Error& e) {
    return refuse(ep.domain->fabric->front, Subject::ep_data, name, e.fi_code(), e.what());
  } catch (const std::bad_alloc&) {
    return -fi_err::kENOMEM;
  }
}

// How an operation of deferred work (fi_trigger(3)) starts: work.cpp.
struct Later {
  uint64_t threshold = 0, owner = 0;
  std::shared_ptr<nic::Counter> trigger, counter;
  bool write_back = false;
};
// Queues work that is filled in, but for its start.
ssize_t queue_work(Domain& d, const char* name, std::unique_ptr<nic::Work> work, const Later& later);

template <typename Call>
constexpr bool kReceives = std::is_same_v<Call, call::Receive>;

// Checks and posts a call, or makes it deferred work.
template <typename Call>
ssize_t start(Ep& ep, const char* name, Call& c, const Later* later) noexcept {
  if (later == nullptr) [[likely]]
    return run(ep, name, c);
  if constexpr (kReceives<Call>) {
    if (later->threshold == 0) {  // posted now
      c.deferred = true;
      c.counter = later->counter;
      return run(ep, name, c);
    }
  }
  try {
    auto work = std::make_unique<nic::Work>();
    call::Why why;
    if (call::defer(*ep.ep, c, requires { c.tagged; } ? ep.lane : ep.one_sided, work.get(), &why) != Refusal::none)
      return refuse_call(ep, name, why);
    return queue_work(*ep.domain, name, std::move(work), *later);
  } catch (const Error& e) {
    return refuse(ep.domain->fabric->front, Subject::ep_data, name, e.fi_code(), e.what());
  } catch (const std::bad_alloc&) {
    return -fi_err::kENOMEM;
  }
}

// The calls with a message, which deferred work has too.
ssize_t send_message(Ep& ep, const char* name, const ofi::Msg& m, uint64_t flags,
                     const Later* later = nullptr) noexcept;
ssize_t recv_message(Ep& ep, const char* name, const ofi::Msg& m, uint64_t flags,
                     const Later* later = nullptr) noexcept;
ssize_t send_message(Ep& ep, const char* name, const ofi::MsgTagged& m, uint64_t flags,
                     const Later* later = nullptr) noexcept;
ssize_t recv_message(Ep& ep, const char* name, const ofi::MsgTagged& m, uint64_t flags,
                     const Later* later = nullptr) noexcept;
ssize_t transfer_message(Ep& ep, const char* name, nic::OpKind kind, const ofi::MsgRma& m, uint64_t flags,
                         const Later* later = nullptr) noexcept;
ssize_t atomic_message(Ep& ep, const char* name, nic::AtomicFamily family, const ofi::MsgAtomic& m,
                       const ofi::MsgValues& compare, const ofi::MsgValues& result, uint64_t flags,
                       const Later* later = nullptr) noexcept;

// ---- FI_TRIGGER ----------------------------------------------------------------------------------------------------

constexpr uint64_t kTriggerFlag = 1ull << 20;

// A call with a message whose flags have FI_TRIGGER, on an endpoint with the capability: fi_trigger(3).
inline bool is_triggered(const Ep& ep, uint64_t flags) noexcept {
  return (flags & kTriggerFlag) != 0 && ep.triggers;
}
[[gnu::noinline]] ssize_t triggered(ofi::FidEp* fid, const char* name, int op_type, void* op, uint64_t* flags,
                                    const void* context) noexcept;
template <typename Op>
[[gnu::noinline]] ssize_t triggered(const char* name, int op_type, Op op) noexcept {
  return triggered(op.ep, name, op_type, &op, &op.flags, op.msg.context);
}

}  // namespace weft::provider
