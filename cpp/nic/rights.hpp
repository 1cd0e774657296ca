// cpp/nic/rights.hpp: the rights that an operation needs at its target, and the target's counters that count it.
#pragma once

#include <cstdint>

#include "mem/table.hpp"
#include "nic/atomics.hpp"
#include "nic/op.hpp"

namespace weft::nic {

constexpr uint32_t want_of(OpKind kind) noexcept {
  return kind == OpKind::read ? mem::kRemoteRead : mem::kRemoteWrite;
}

// The rights that an atomic needs at the target.
constexpr uint32_t want_of(AtomicFamily family, AtomicOp op) noexcept {
  if (family == AtomicFamily::base) return mem::kAtomicWrite;
  return op == AtomicOp::atomic_read ? mem::kAtomicRead : mem::kAtomicRead | mem::kAtomicWrite;
}

// Which of a region's counters count an access. A fetching atomic reads and modifies the region, so it counts as both;
// fi_mr(3) fi_mr_bind counts modifications. An endpoint's counters follow the initiator's request instead.
constexpr uint32_t region_notify(bool read, bool atomic, AtomicOp op) noexcept {
  const bool modifies = atomic ? op != AtomicOp::atomic_read : !read;
  return (read ? mem::kMrNotifyRead : 0) | (modifies ? mem::kMrNotifyWrite : 0);
}

}  // namespace weft::nic
