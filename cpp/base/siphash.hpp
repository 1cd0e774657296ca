// cpp/base/siphash.hpp: SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed 64-bit tag of a short message.
// HOT: a frame's header of 108 bytes takes some 60 ns, which a system call of 1 us and more hides.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace weft {

using SipKey = std::array<uint64_t, 2>;

inline uint64_t siphash24(const SipKey& key, std::span<const std::byte> in) noexcept {
  uint64_t v0 = 0x736f6d6570736575ull ^ key[0], v1 = 0x646f72616e646f6dull ^ key[1];
  uint64_t v2 = 0x6c7967656e657261ull ^ key[0], v3 = 0x7465646279746573ull ^ key[1];
  // In line: a call for each round cost as much as the round. (The attribute stands where both compilers take it.)
  const auto round = [&]() __attribute__((always_inline)) {
    v0 += v1, v1 = std::rotl(v1, 13), v1 ^= v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16), v3 ^= v2;
    v0 += v3, v3 = std::rotl(v3, 21), v3 ^= v0;
    v2 += v1, v1 = std::rotl(v1, 17), v1 ^= v2, v2 = std::rotl(v2, 32);
  };
  const uint64_t length = in.size();
  for (; in.size() >= 8; in = in.subspan(8)) {
    uint64_t m;
    std::memcpy(&m, in.data(), 8);  // little endian, as all of wire/ is
    v3 ^= m;
    round();
    round();
    v0 ^= m;
  }
  uint64_t last = length << 56;
  for (size_t i = 0; i < in.size(); ++i) last |= std::to_integer<uint64_t>(in[i]) << (8 * i);
  v3 ^= last;
  round();
  round();
  v0 ^= last;
  v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) round();
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace weft
