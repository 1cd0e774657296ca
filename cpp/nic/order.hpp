// cpp/nic/order.hpp: the order of an endpoint's operations to one peer: which classes must not pass which earlier ones.
// Source: fi_endpoint(3) "msg_order", fi_rma(3) and fi_atomic(3) FI_FENCE.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace weft::nic {

// Connection messages are sends. A fetching atomic reads and writes. All atomics are one class, so an order requested
// for fetching or for other atomics holds for both.
enum class OpClass : uint8_t { send, write, read, atomic };
constexpr size_t kClassCount = 4;

// A set of classes as bits.
using ClassSet = uint8_t;
constexpr ClassSet class_bit(OpClass c) noexcept {
  return static_cast<ClassSet>(1u << static_cast<unsigned>(c));
}
constexpr ClassSet kEveryClass = (1u << kClassCount) - 1;

// libfabric's msg_order bits (rdma/fabric.h).
namespace order {
constexpr uint64_t kRar = 1ull << 0, kRaw = 1ull << 1, kRas = 1ull << 2, kWar = 1ull << 3, kWaw = 1ull << 4,
                   kWas = 1ull << 5, kSar = 1ull << 6, kSaw = 1ull << 7, kSas = 1ull << 8, kStrict = 0x1ff,
                   kRmaRar = 1ull << 32, kRmaRaw = 1ull << 33, kRmaWar = 1ull << 34, kRmaWaw = 1ull << 35,
                   kAtomicRar = 1ull << 36, kAtomicRaw = 1ull << 37, kAtomicWar = 1ull << 38, kAtomicWaw = 1ull << 39;
}  // namespace order

struct OrderRules {
  std::array<ClassSet, kClassCount> waits_for{};  // by class: classes of earlier operations that it must not pass
  bool fence_covers_all = false;                  // FI_FENCE waits for operations to every peer, not only to its own

  [[nodiscard]] constexpr ClassSet of(OpClass c) const noexcept { return waits_for[static_cast<size_t>(c)]; }
};

constexpr OrderRules order_rules(uint64_t msg_order, bool fence_covers_all) noexcept {
  using namespace order;
  const auto has = [=](uint64_t bits) { return (msg_order & bits) != 0; };
  const auto set = [](bool send, bool write, bool read, bool atomic) {
    return static_cast<ClassSet>((send ? class_bit(OpClass::send) : 0) | (write ? class_bit(OpClass::write) : 0) |
                                 (read ? class_bit(OpClass::read) : 0) | (atomic ? class_bit(OpClass::atomic) : 0));
  };
  OrderRules rules;
  rules.waits_for = {
      set(has(kSas), has(kSaw), has(kSar), has(kSaw | kSar)),
      set(has(kWas), has(kWaw | kRmaWaw), has(kWar | kRmaWar), has(kWaw | kWar)),
      set(has(kRas), has(kRaw | kRmaRaw), has(kRar | kRmaRar), has(kRaw | kRar)),
      set(has(kWas | kRas), has(kWaw | kRaw), has(kWar | kRar),
          has(kRar | kRaw | kWar | kWaw | kAtomicRar | kAtomicRaw | kAtomicWar | kAtomicWaw)),
  };
  rules.fence_covers_all = fence_covers_all;
  return rules;
}

}  // namespace weft::nic
