// cpp/nic/aliases.hpp: the aliases of one endpoint: the order and the traffic class of each alias's operations. Callers
// hold the lock of the endpoint's domain.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "nic/entry.hpp"
#include "nic/telemetry.hpp"

namespace weft::nic {

struct AliasSlot {
  uint64_t msg_order = 0;
  uint8_t tclass = 0;  // below kTclassCount
};

// An alias's number is in flag::kLane of its operations; number 0 is the endpoint itself. Operations of different
// aliases are not ordered. Aliases beyond the last slot share the last slot.
class Aliases {
 public:
  Aliases(uint64_t msg_order, uint8_t tclass) noexcept { set(0, msg_order, tclass); }

  [[nodiscard]] const AliasSlot& of(uint64_t flags) const noexcept { return slots_[lane_of(flags)]; }
  [[nodiscard]] const AliasSlot& at(uint8_t number) const noexcept { return slots_[number]; }
  void set(uint8_t number, uint64_t msg_order, uint8_t tclass) noexcept {
    slots_[number % kLaneCount] = {msg_order, static_cast<uint8_t>(tclass % kTclassCount)};
  }
  uint8_t open(uint64_t msg_order) noexcept {
    const auto number = static_cast<uint8_t>(std::min<int>(std::countr_one(used_), kLaneCount - 1));
    used_ |= uint32_t{1} << number;
    slots_[number] = {msg_order, slots_[0].tclass};
    return number;
  }
  void close(uint8_t number) noexcept {
    if (number + 1u < kLaneCount) used_ &= ~(uint32_t{1} << number);
  }

 private:
  std::array<AliasSlot, kLaneCount> slots_{};
  uint32_t used_ = 1;  // one bit a slot
};

}  // namespace weft::nic
