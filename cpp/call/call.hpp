// cpp/call/call.hpp: the calls of an endpoint as a provider library offers them: checked by the endpoint's OpRules,
// then posted. No Python: the binding and a C library can use the same calls.
//
// Each call has two steps, so that a caller can release its own locks between them: check() refuses the call or fills
// in what the operation needs; post() starts the operation. Each refusal sets a `Why`; explain() makes its text and
// OpRules::errno_of() its code. post() refuses the calls of an endpoint that is not enabled.
//
// HOT: Transfer. Its checks are inline and cost four tests for a call without special options.
#pragma once

#include <array>
#include <span>
#include <string>

#include "call/local.hpp"

namespace weft::call {

using nic::FlagCall;
using nic::OpKind;
using nic::PostResult;

constexpr uint64_t kNoPeer = ~uint64_t{0};

constexpr LocalUse use_of(OpKind kind) noexcept {
  return kind == OpKind::read ? LocalUse::result : LocalUse::source;
}

// Whether the endpoint was opened for calls of this kind: OpKind::read, write or atomic. Atomics need either side of an
// initiator: an endpoint that is a target alone initiates nothing.
inline bool capable(const nic::Endpoint& ep, OpKind kind) noexcept {
  const uint64_t caps = ep.config().caps;
  if (kind == OpKind::atomic)
    return (caps & nic::flag::kAtomic) != 0 && (caps & (nic::flag::kRead | nic::flag::kWrite)) != 0;
  const uint64_t needed = nic::flag::kRma | (kind == OpKind::read ? nic::flag::kRead : nic::flag::kWrite);
  return (caps & needed) == needed;
}
// Whether the data of a call is copied, by the call's name or by its flags.
constexpr bool injects(OpKind kind, bool inject_call, uint64_t flags) noexcept {
  return inject_call || (kind == OpKind::write && (flags & nic::flag::kInject) != 0);
}
// The default flags of an endpoint's side, for the side's calls without a flags argument: each gets the flags that its
// call with flags takes. No call without data gets REMOTE_CQ_DATA.
void set_default_flags(const nic::OpRules& rules, bool receives, uint64_t op_flags, nic::CallFlags* calls) noexcept;
// The flags that a handle's transfers and atomics have besides those of their calls: the handle's lane, and `more`, of
// which any that fences becomes FI_FENCE.
inline uint64_t one_sided_flags(const nic::OpRules& rules, uint64_t lane, uint64_t more) noexcept {
  const uint64_t fences = more & rules.fence_also;
  return lane | (more & ~fences) | (fences != 0 ? nic::flag::kFence : 0);
}
Refusal check_flags(const nic::Endpoint& ep, FlagCall call, uint64_t flags, Why* why);
Refusal check_fence(const nic::Endpoint& ep, uint64_t flags, Why* why);  // FI_FENCE may need the capability
Refusal check_local_count(const nic::Endpoint& ep, uint64_t count, Why* why, bool receives = false);
Refusal check_remote_count(const nic::Endpoint& ep, uint64_t count, Why* why);

// ---- fi_rma(3) -----------------------------------------------------------------------------------------------------

constexpr FlagCall flag_call(OpKind kind) noexcept {
  return kind == OpKind::read ? FlagCall::read : FlagCall::write;
}

// One buffer to or from one range: fi_read, fi_write, fi_inject_write and the calls with data.
struct Transfer {
  OpKind kind = OpKind::write;
  bool inject = false;  // fi_inject_*: the buffer may be reused at once, and no success is reported
  bool device = false;  // set by check()
  Local local;
  uint64_t dest = kNoPeer, addr = 0, key = 0;
  uint64_t flags = 0;  // the endpoint's, or the call's own
  uint64_t context = 0, imm = 0;
};

// Checks that few providers need: the right to fence, and the form of keys. Replaces other flags that fence by
// FI_FENCE.
Refusal check_more(const nic::Endpoint& ep, uint64_t* flags, std::span<const wire::RmaRange> remote, Why* why);
Refusal check_more(const nic::Endpoint& ep, Transfer& t, Why* why);
// Replaces any refusal by "closed" or "not enabled" if the endpoint is closed or not enabled.
void put_state_first(const nic::Endpoint& ep, Why* why) noexcept;

Refusal refuse_transfer(const nic::Endpoint& ep, const Transfer& t, Refusal refusal, Why* why);
// The refusal of a call whose buffer or length is refused: a refusal of its flags comes first.
Refusal refuse_flags_first(const nic::Endpoint& ep, const Transfer& t, Refusal refusal, Why* why);

// HOT.
[[nodiscard]] inline Refusal check(const nic::Endpoint& ep, Transfer& t, Why* why) {
  if (!capable(ep, t.kind)) [[unlikely]]
    return refuse_transfer(ep, t, Refusal::no_capability, why);
  if (t.local.bare && t.local.length > ep.config().max_msg_size) [[unlikely]]  // before its pages are populated
    return refuse_flags_first(ep, t, Refusal::too_long, why);
  if (const Refusal r = check_local(ep, t.local, use_of(t.kind), !t.inject, &t.device, why); r != Refusal::none)
      [[unlikely]] {
    return check_fence(ep, t.flags, why) != Refusal::none ? why->refusal : why->set(r);
  }
  if (t.local.length > ep.config().inject_size && injects(t.kind, t.inject, t.flags)) [[unlikely]]
    return refuse_flags_first(ep, t, Refusal::inject_too_long, why);
  if (!ep.config().rules.is_simple(t.flags, t.key)) [[unlikely]]
    return check_more(ep, t, why);
  return Refusal::none;
}

PostResult post_device(nic::Endpoint& ep, const Transfer& t);

// HOT.
inline PostResult post(nic::Endpoint& ep, const Transfer& t) {
  if (t.device) [[unlikely]]
    return post_device(ep, t);
  return ep.post_one(t.kind, t.local.data, t.local.length, t.dest, t.addr, t.key, t.flags, t.context, t.imm, t.inject);
}

// Lists of buffers and ranges: fi_readv, fi_writev, fi_readmsg, fi_writemsg.
struct ListTransfer {
  OpKind kind = OpKind::write;
  bool message = false;  // flags are the call's own
  std::span<const Local> local;
  std::span<const wire::RmaRange> remote;
  uint64_t dest = kNoPeer, flags = 0, context = 0, imm = 0;
  // Set by check().
  uint64_t total = 0;
  uint8_t device = 0;    // bit i: local[i] is device memory
  wire::RmaRange whole;  // in place of remote, under OpRules::local_lengths
  std::array<iovec, nic::kIovMax> iov;
};
[[nodiscard]] Refusal check(const nic::Endpoint& ep, ListTransfer& t, Why* why);
PostResult post(nic::Endpoint& ep, const ListTransfer& t);

// Many transfers in one call, within one local buffer.
struct Batch {
  OpKind kind = OpKind::write;
  bool device = false;  // set by check()
  Local local;
  std::span<nic::BatchDesc> descs;
  uint64_t flags = 0, context = 0;
};
[[nodiscard]] Refusal check(const nic::Endpoint& ep, Batch& b, Why* why);
PostResult post(nic::Endpoint& ep, const Batch& b);

// ---- fi_atomic(3) --------------------------------------------------------------------------------------------------

constexpr FlagCall flag_call(nic::AtomicFamily family) noexcept {
  return family == nic::AtomicFamily::base    ? FlagCall::atomic
         : family == nic::AtomicFamily::fetch ? FlagCall::fetch
                                              : FlagCall::compare;
}
constexpr uint64_t kAllElements = ~uint64_t{0};

// Every form of an atomic. The checks ignore the buffers (`operand`, `compare`, `result`) that the family does not use.
struct Atomic {
  nic::AtomicFamily family = nic::AtomicFamily::base;
  bool inject = false;
  bool message = false;                                 // flags are the call's own
  bool single = false;                                  // one buffer of each kind, of which `count` elements are used
  uint64_t datatype = ~uint64_t{0}, op = ~uint64_t{0};  // numbers of fi_datatype and fi_op
  uint64_t count = kAllElements;                        // kAllElements: all of the operand, or, without one, the result
  std::span<const Local> operand, compare, result;
  std::span<wire::RmaRange> remote;  // lengths in bytes
  bool whole = false;                // one range; its length is the length of the buffers
  uint64_t dest = kNoPeer, flags = 0, context = 0, imm = 0;
  // Set by check_pair(): bytes of an element, and whether the operation has an operand.
  uint64_t size = 0;
  bool has_operand = true;
  // Set by check().
  uint64_t total = 0;
  uint8_t operand_device = 0, compare_device = 0, result_device = 0;
  std::array<iovec, nic::kIovMax> operand_iov, compare_iov, result_iov;

  [[nodiscard]] bool has_compare() const noexcept { return family == nic::AtomicFamily::compare; }
  [[nodiscard]] bool has_result() const noexcept { return family != nic::AtomicFamily::base; }
};
// Checks capability, flags, operation and datatype, which do not depend on the buffers. Call it before check().
[[nodiscard]] Refusal check_pair(const nic::Endpoint& ep, Atomic& a, Why* why);
[[nodiscard]] Refusal check(const nic::Endpoint& ep, Atomic& a, Why* why);
PostResult post(nic::Endpoint& ep, const Atomic& a);

// Elements allowed in one call, and bytes of an element; 0 elements: the operation does not exist.
struct AtomicLimit {
  uint64_t count, size;
};
AtomicLimit atomic_limit(const nic::OpRules& rules, const nic::Limits& limits, uint64_t datatype, uint64_t op,
                         uint64_t family) noexcept;

// ---- words ---------------------------------------------------------------------------------------------------------

// Names of enum fi_datatype and enum fi_op, without FI_; the number if it has no name.
std::string datatype_name(uint64_t datatype);
std::string op_name(uint64_t op);
// The text of a refusal: what was asked, what was found, which rule, what to do next. `method`: the call, at its start.
std::string explain(nic::Endpoint& ep, const char* method, const Why& why);
std::string hex(uint64_t n);
// The names of flags, and the number of flags without a name.
std::string flag_names(const nic::OpRules& rules, uint64_t flags);
// The text for refusals of local buffers, which need no endpoint.
std::string explain_local(const char* method, const Why& why);

}  // namespace weft::call
