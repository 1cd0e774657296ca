// cpp/nic/fast.inl: inline functions of the data path, shared by its files: rma.cpp, batch.cpp, amo.cpp, op.cpp.
#pragma once

#include "mem/guard.hpp"
#include "nic/nic.hpp"

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

// HOT. Requires that the flow's `busy` has none of stops_ and that keys are no handles (raw_keys_).
// A pointer for loads and stores of `length` bytes at addr that need no notice to the owner; null: take the long
// path. Reads the cached translation, the owner's region entry and endpoint entry (shared lines); stores nothing.
[[gnu::always_inline]] inline std::byte* Endpoint::fast_target(Route& route, uint64_t key, uint64_t addr,
                                                               uint64_t length, uint32_t want) noexcept {
  if (counts_ != nullptr && (counts_->link_down() || route.telemetry == nullptr || route.telemetry->link_down()))
      [[unlikely]] {
    return nullptr;
  }
  const Translation& t = route.translations[translation_of(key)];
  if (t.key != key || t.entry == nullptr) return nullptr;
  // SYNC POINT: read after taking the domain's lock: either the owner sees us busy, or we see the key revoked.
  if (t.entry->state.load(std::memory_order_acquire) != t.state) return nullptr;
  if (route.ep_entry->generation.load(std::memory_order_relaxed) != route.ep_generation) return nullptr;
  const uint64_t offset = addr - t.base;
  if ((t.allowed & want) != want || offset > t.length || length > t.length - offset) return nullptr;
  return t.pointer + offset;
}

}  // namespace weft::nic
