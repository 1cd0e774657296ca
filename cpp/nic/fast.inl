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

[[gnu::always_inline]] inline void Endpoint::complete(bool wants, uint64_t context, uint64_t flags, uint64_t len) {
  domain_->assert_held();
  if (wants) tx_cq_->push_local(context, flags, len & length_mask_);
  const auto& counter = (flags & flag::kRead) != 0 ? read_cntr_ : write_cntr_;
  if (counter) [[unlikely]]
    counter->add(counter->counts_bytes ? len : 1);
}

// HOT: one load of a line that rarely changes. Memory of the route's peer has changed by our stores: its NIC looks at
// the calls that wait for it (parking.hpp).
[[gnu::always_inline]] inline void Endpoint::tell_changed(Route& route) noexcept {
  // SYNC POINT: the stores come before this load, as far as the compiler goes; the NIC that parks a watch makes all
  // processors pass a barrier (World::fence_all) before it looks at the memory, so one of the two sees the other.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (route.parked != nullptr && route.parked->load(std::memory_order_relaxed) != 0) [[unlikely]]
    wake_parked(route);
}

// HOT. Requires that the flow's `busy` has none of stops_ and that keys are no handles (raw_keys_).
// A pointer for loads and stores of `length` bytes at addr that need no notice to the owner; null: take the long
// path. Reads the cached translation, the owner's region entry and endpoint entry (shared lines); stores nothing.
[[gnu::always_inline]] inline std::byte* Endpoint::fast_target(Route& route, uint64_t key, uint64_t addr,
                                                               uint64_t length, uint32_t want) noexcept {
  if (!model_.flows(route)) [[unlikely]]
    return nullptr;
  const Translation& t = route.translations[translation_of(key)];
  if (t.key != key || t.entry == nullptr) return nullptr;
  // SYNC POINT: read after taking the domain's lock: either the owner sees us busy, or we see the key revoked.
  if (t.entry->state.load(std::memory_order_acquire) != t.state) return nullptr;
  if (route.ep_entry->generation.load(std::memory_order_relaxed) != route.ep_generation) return nullptr;
  const uint64_t offset = addr - t.base;
  if ((t.allowed & want) != want || offset > t.length || length > t.length - offset) return nullptr;
  return t.pointer + offset;
}

// Executes an atomic on mapped memory in this thread; false: a page failed. One element of 4 or 8 bytes in a peer's
// segment needs no guarded call (17 ns): a segment is sealed, so its pages stay, and instructions with fixups copy the
// application's words.
[[gnu::always_inline]] inline bool apply_here(const link::Peer& peer, AtomicOp op, Datatype datatype, std::byte* target,
                                              const void* operand, const void* compare, void* result, size_t count) {
  const size_t size = datatype_size(datatype);
  if (count != 1 || (size != 8 && size != 4) || peer.same_process) [[unlikely]]
    return atomic_guarded(op, datatype, target, operand, compare, result, count);
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
