// cpp/ucp/post.hpp: posting the transfers and atomics of UCP: their rules, their parts, and when a call waits for room.
#pragma once

#include <sys/uio.h>

#include <cstring>
#include <optional>
#include <span>

#include "ucp/port.hpp"

namespace weft::ucp {

// OP_ATTR_FLAG_*
constexpr uint64_t kNoImmCmpl = 1u << 16, kFastCmpl = 1u << 17, kForceImmCmpl = 1u << 18, kMultiSend = 1u << 19;
// ucp_datatype_t
constexpr uint64_t kClassMask = 7, kClassContig = 0, kClassIov = 2, kClassShift = 3;

// A call's data, as its options describe it.
struct Amount {
  uint64_t flags = 0;
  std::optional<uint64_t> datatype{}, count{};
  [[nodiscard]] bool is_list() const noexcept { return datatype && (*datatype & kClassMask) == kClassIov; }
};
Refused check_flags(uint64_t flags);
// The bytes of a transfer from or to a buffer of `available` bytes.
Refused length_of(const Amount& amount, uint64_t available, uint64_t* length);
Refused without_bytes();  // the remote key is that of a region without bytes

// ---- operations ----------------------------------------------------------------------------------------------------

// The binding's owner of a request.
template <typename H>
concept Holder = requires(H h) {
  h.keep();    // the NIC's queue has a reference to the request
  h.forget();  // it has none
  { h.collect() } -> std::convertible_to<size_t>;
  { h.wait() } -> std::convertible_to<bool>;  // for completions to make room; false: the call is given up
};

struct Launched {
  enum class End : uint8_t { done, under_way, refused, given_up };
  End end = End::done;
  bool partly = false;  // refused, given_up: some parts are under way, and end by themselves
  Refused why;
};

Refused refused_by_nic(nic::Refusal refusal);
Refused never_immediate();

// Posts an operation in one or more parts by `post(part, flags)`. Waits while there is no room. replies: the operation
// brings data back.
template <Holder H, typename Post>
Launched launch(Peer& ep, Request& request, uint64_t attr_flags, size_t parts, H& holder, Post&& post) {
  using End = Launched::End;
  Port& port = *ep.port;
  const bool now = (attr_flags & kForceImmCmpl) != 0, always = (attr_flags & kNoImmCmpl) != 0;
  uint64_t flags = now ? nic::flag::kOnlyNow : always ? nic::flag::kCompletion : nic::flag::kIfUnfinished;
  if (ep.fence != port.fence_count) [[unlikely]]
    flags |= nic::flag::kFence;
  Launched result;
  bool pending = false;
  request.parts = 1;  // our reference, dropped when all parts are posted: completions may come earlier
  for (size_t i = 0; i < parts; ++i) {
    ++request.parts;
    holder.keep();
    nic::PostResult r;
    bool room = true;
    for (;;) {
      r = post(i, flags);
      if (r.refusal != nic::Refusal::cq_full && r.refusal != nic::Refusal::tx_full) [[likely]]
        break;
      room = holder.wait();
      if (!room) break;
    }
    const bool posted = room && r.refusal == nic::Refusal::none;
    if (posted && r.context_used) {
      pending = true;
    } else {
      --request.parts;
      holder.forget();
    }
    if (!posted) [[unlikely]] {
      result.end = room ? End::refused : End::given_up;
      result.partly = pending;
      if (room) result.why = refused_by_nic(r.refusal);
      --request.parts;
      return result;
    }
    flags &= ~nic::flag::kFence;
  }
  ep.fence = port.fence_count;
  --request.parts;
  if (!pending) [[likely]]
    return result;
  result.end = End::under_way;
  if (now) [[unlikely]] {  // the owner's table refused the operation: the error entry is already in the queue
    while (request.parts != 0 && holder.collect() != 0) continue;
    result.end = End::refused;
    result.why = {request.first_failure, ": " + request.text};
  }
  return result;
}

// ---- transfers -----------------------------------------------------------------------------------------------------

// A put or a get of pieces of local memory, one after the other at the remote address.
struct Transfer {
  nic::OpKind kind;
  uint64_t dest = 0, remote = 0;
  const Rkey* key = nullptr;
  std::span<const iovec> pieces;
  bool device = false;
  uint64_t posted = 0;  // bytes of earlier parts

  [[nodiscard]] size_t parts() const noexcept { return (pieces.size() + nic::kIovMax - 1) / nic::kIovMax; }
  [[nodiscard]] uint64_t bytes() const noexcept;
  // The owner checks each part separately, so a list that passes the end is refused before a part that fits is sent.
  [[nodiscard]] bool passes_end() const noexcept;
  // The refusal, in the words of the owner's memory table.
  [[nodiscard]] std::string why_passes_end() const;
  nic::PostResult post(nic::Endpoint& ep, size_t part, uint64_t context, uint64_t flags);
};

// ---- atomics -------------------------------------------------------------------------------------------------------

// ucp_atomic_op_t
enum : uint64_t { kAdd, kSwap, kCswap, kAnd, kOr, kXor, kAtomicOps };

// ucp_atomic_op_nbx of one element.
struct Atomic {
  uint64_t opcode = 0, remote = 0, size = 0;
  alignas(8) uint64_t operand = 0;
  std::byte* reply = nullptr;  // null: none

  // HOT. available: bytes of the operand's buffer; of a number, its size.
  [[nodiscard]] bool has_operand(uint64_t available, const std::optional<uint64_t>& count) const noexcept {
    return (size == 4 || size == 8) && available != 0 && (available & (size - 1)) == 0 && (!count || *count == 1);
  }
  [[nodiscard]] Refused why_no_operand(uint64_t available, const std::optional<uint64_t>& count) const;
  [[nodiscard]] uint32_t feature() const noexcept { return size == 4 ? kFeatureAmo32 : kFeatureAmo64; }
  // HOT.
  [[nodiscard]] bool is_operation(bool replies) const noexcept {
    return opcode < kAtomicOps && (replies || (opcode != kSwap && opcode != kCswap)) && (remote & (size - 1)) == 0;
  }
  [[nodiscard]] Refused why_no_operation(bool replies) const;
  [[nodiscard]] Refused why_no_room(uint64_t length) const;  // for a reply
};

// HOT. An atomic as the NIC takes it. It points to the Atomic and into itself.
class AtomicPost {
 public:
  AtomicPost(const Atomic& a, const Rkey& key, uint64_t dest) noexcept
      : range_{a.remote + key.bias, a.size, key.key},
        operand_{const_cast<uint64_t*>(&a.operand), a.size},  // NOLINT: the NIC reads it
        compare_{operand_.iov_base, a.size},  // copied whole, it would wait for the two stores of operand_
        result_{a.reply, a.size} {
    static constexpr nic::AtomicOp kOps[] = {nic::AtomicOp::sum,  nic::AtomicOp::atomic_write, nic::AtomicOp::cswap,
                                             nic::AtomicOp::band, nic::AtomicOp::bor,          nic::AtomicOp::bxor};
    args_.datatype = a.size == 4 ? nic::Datatype::uint32 : nic::Datatype::uint64;
    args_.op = kOps[a.opcode];
    args_.dest = dest;
    args_.remote = {&range_, 1};
    args_.operand = {&operand_, 1};
    if (a.reply == nullptr) return;
    args_.family = nic::AtomicFamily::fetch;
    args_.result = {&result_, 1};
    if (a.opcode != kCswap) return;
    args_.family = nic::AtomicFamily::compare;  // the reply buffer contains the new value, `operand` the expected one
    std::memcpy(&desired_, a.reply, a.size);
    operand_.iov_base = &desired_;
    args_.compare = {&compare_, 1};
  }
  AtomicPost(const AtomicPost&) = delete;
  AtomicPost& operator=(const AtomicPost&) = delete;
  nic::PostResult operator()(nic::Endpoint& ep, uint64_t context, uint64_t flags) {
    args_.flags = flags;
    args_.context = context;
    return ep.post_atomic(args_);
  }

 private:
  alignas(8) uint64_t desired_ = 0;
  wire::RmaRange range_;
  iovec operand_, compare_, result_;
  nic::AtomicArgs args_;
};

}  // namespace weft::ucp
