// cpp/wire/address.hpp: the address of an endpoint: the format in frames and in socket names.
// Twelve bytes, little endian: nic u32, pid u32, vni u16, reserved u16 (0).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::wire {

// NIC numbers from kRemoteNic on are local names of NICs of other hosts (link/routes.hpp). Never in a frame.
constexpr uint32_t kRemoteNic = 0x80000000u;
constexpr uint32_t kUnknownNic = 0xffffffffu;  // a NIC that has no address: it does not listen

struct EpAddress {
  uint32_t nic = 0;
  uint32_t pid = 0;
  uint16_t vni = 0;
  uint16_t reserved = 0;

  auto operator<=>(const EpAddress&) const = default;
  [[nodiscard]] std::string text() const {
    return "weft://" + std::to_string(nic) + "/" + std::to_string(vni) + "/" + std::to_string(pid);
  }
};
static_assert(sizeof(EpAddress) == 12);

struct EpAddressHash {
  size_t operator()(const EpAddress& a) const noexcept {
    const uint64_t x = (uint64_t{a.nic} << 32 | a.pid) * 0x9e3779b97f4a7c15ull + a.vni;
    return static_cast<size_t>(x ^ (x >> 29));
  }
};

}  // namespace weft::wire
