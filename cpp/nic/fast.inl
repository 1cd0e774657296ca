// cpp/nic/fast.inl: inline functions of the data path, shared by its files: rma.cpp, batch.cpp, amo.cpp, now.cpp,
// op.cpp.
#pragma once

#include "mem/guard.hpp"
#include "nic/nic.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

using mem::copy_guarded_hot;

// Flags of an operation that needs more than a copy.
constexpr uint64_t kLongWay = flag::kRemoteCqData | flag::kFence | flag::kCommitComplete;

constexpr uint64_t completion_flags(OpKind kind, AtomicFamily family) noexcept {
  if (kind == OpKind::atomic) return flag::kAtomic | (family == AtomicFamily::base ? flag::kWrite : flag::kRead);
  return flag::kRma | (kind == OpKind::read ? flag::kRead : flag::kWrite);
}

constexpr OpClass class_of(OpKind kind) noexcept {
  switch (kind) {
    case OpKind::write:
      return OpClass::write;
    case OpKind::read:
      return OpClass::read;
    case OpKind::atomic:
      return OpClass::atomic;
    case OpKind::pull:
      return OpClass::read;
    case OpKind::batch:
    case OpKind::cm:
    case OpKind::send:
      break;
  }
  return OpClass::send;
}

// HOT.
inline Refusal TxPort::check_post(uint64_t dest, uint64_t flags, bool inject_call, bool* wants, Flow** flow) {
  domain_->assert_held();
  if (state_ != State::enabled) [[unlikely]]
    return state_ == State::closed ? Refusal::closed : Refusal::not_enabled;
  *wants = !inject_call && (!selective_ || (flags & flag::kCompletion) != 0);
  if (!admits(tx_cq_.get(), *wants)) [[unlikely]]
    return tx_cq_ ? Refusal::cq_full : Refusal::no_cq;
  *flow = flow_of(dest_of(dest));
  if (*flow == nullptr) [[unlikely]]
    return config_.connected ? Refusal::not_connected : Refusal::bad_address;
  if (CommandQueue* const commands = model_.commands(); commands != nullptr) [[unlikely]] {
    if (outstanding_ >= config_.tx_size || !commands->put(config_.holds_more && (flags & flag::kMore) != 0)) {
      return Refusal::tx_full;
    }
  }
  return Refusal::none;
}

[[gnu::always_inline]] inline void TxPort::complete(bool wants, uint64_t context, uint64_t flags, uint64_t len) {
  domain_->assert_held();
  if (wants) tx_cq_->push_local(context, flags, len & length_mask_);
  const auto& counter = (flags & flag::kRead) != 0 ? read_cntr_ : write_cntr_;
  if (counter) [[unlikely]]
    counter->add(counter->counts_bytes ? len : 1);
}

template <typename Copy>
auto Mover::copy_unlocked(Flow& flow, OpClass c, uint32_t slot, Copy&& copy) {
  domain_->assert_held();
  Nic& nic = *domain_->nic();
  // SYNC POINT: the long activity is visible before the lock's word becomes even, so a closing owner that sees the lock
  // released sees the long activity.
  const uint32_t activity = nic.begin_long_activity(slot);
  flow.begin_copy(c);
  long_copies_.fetch_add(1, std::memory_order_relaxed);
  domain_->unlock();
  const auto result = copy();
  nic.end_long_activity(activity);
  domain_->lock();
  long_copies_.fetch_sub(1, std::memory_order_release);
  flow.end_copy(c);
  return result;
}

// Executes an atomic on `bytes` of mapped memory in this thread; false: a page failed. One element of 4 or 8 bytes in a
// peer's segment needs no guarded call (17 ns): a segment is sealed, so its pages stay, and instructions with fixups
// copy the application's words.
[[gnu::always_inline]] inline bool apply_here(const link::Peer& peer, AtomicOp op, Datatype datatype, std::byte* target,
                                              const void* operand, const void* compare, void* result, size_t bytes) {
  const size_t size = datatype_size(datatype);
  if (bytes != size || (size != 8 && size != 4) || peer.same_process) [[unlikely]]
    return atomic_guarded(op, datatype, target, operand, compare, result, bytes / size);
  if (op == AtomicOp::sum && (datatype == Datatype::int64 || datatype == Datatype::uint64)) [[likely]] {
    bool possible;
    const bool done = mem::add_guarded_hot(target, operand, result, &possible);
    if (possible) [[likely]]
      return done;
  }
  alignas(8) std::byte ours[8], expected[8], before[8];
  if (operand != nullptr && !mem::copy_guarded_hot(ours, static_cast<const std::byte*>(operand), size)) return false;
  if (compare != nullptr && !mem::copy_guarded_hot(expected, static_cast<const std::byte*>(compare), size))
    return false;
  atomic_apply(op, datatype, target, ours, expected, result != nullptr ? before : nullptr, 1);
  return result == nullptr || mem::copy_guarded_hot(static_cast<std::byte*>(result), before, size);
}

}  // namespace weft::nic
