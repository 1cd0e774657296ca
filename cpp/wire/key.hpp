// cpp/wire/key.hpp: provider keys.
// Format (64 bits): bits 0..21 slot in the owner's memory table, bits 22..63 generation of that slot, counted from 1.
// Every registration increments the generation of its slot, so the key of a closed region never reaches a newer region.
// 42 bits hold more registrations of one slot than a process can make.
#pragma once

#include <cassert>
#include <cstdint>

namespace weft::wire {

constexpr uint32_t kKeySlotBits = 22;
constexpr uint32_t kKeySlotMax = (1u << kKeySlotBits) - 1;
constexpr uint64_t kKeyNotAvail = ~uint64_t{0};  // FI_KEY_NOTAVAIL

struct ProviderKey {
  uint32_t slot = 0;
  uint64_t generation = 0;

  static constexpr ProviderKey parse(uint64_t key) noexcept {
    return {static_cast<uint32_t>(key & kKeySlotMax), key >> kKeySlotBits};
  }
  [[nodiscard]] constexpr uint64_t emit() const noexcept {
    assert(slot <= kKeySlotMax && "a key names a slot of the table");
    return generation << kKeySlotBits | slot;
  }
};

}  // namespace weft::wire
