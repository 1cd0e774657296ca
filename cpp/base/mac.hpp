// cpp/base/mac.hpp: the tag of a short message that has a number of its own: a universal hash, hidden by a one-time pad
// (Wegman and Carter, New hash functions and their use in authentication and set equality, 1981).
//
//   tag = (k0 m0 + k1 m1 + ... mod 2^61 - 1) + SipHash-2-4(pad, number)   mod 2^64
//
// m are the message's 32-bit words, k secret numbers below 2^61 - 1. Whoever knows neither k nor the pad makes another
// message fit a tag with a chance of at most 2^-60: two messages of one length differ in some word, and one k in 2^61 -
// 1 gives their hashes a certain difference. No number may be used twice under one key, and the length of a message
// must be told by its words.
//
// HOT: 120 bytes take some 50 ns and 32 bytes 30, the pad included; a SipHash of them takes 80 and 30.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/siphash.hpp"

namespace weft {

constexpr size_t kMacBytesMax = 120;

struct MacKey {
  std::array<uint64_t, kMacBytesMax / 4> factors{};
  SipKey pad{};

  MacKey() = default;
  bool operator==(const MacKey&) const = default;
  // 32 secret bytes that are used for nothing else.
  explicit MacKey(std::span<const std::byte, 32> secret) noexcept {
    SipKey seed;
    std::memcpy(seed.data(), secret.data(), sizeof(seed));
    std::memcpy(pad.data(), secret.data() + sizeof(seed), sizeof(pad));
    for (uint64_t i = 0; i < factors.size(); ++i) {
      factors[i] = siphash24(seed, std::as_bytes(std::span(&i, 1))) & ((uint64_t{1} << 61) - 1);
    }
  }
};

// `in`: a multiple of 4 bytes, at most kMacBytesMax. Not in line: after a system call its instructions come from the
// second cache, once for all who call it within the same packet.
[[gnu::noinline]] inline uint64_t mac_tag(const MacKey& key, uint64_t number, std::span<const std::byte> in) noexcept {
  __extension__ typedef unsigned __int128 Wide;
  constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
  Wide even = 0, odd = 0;  // of products below 2^93: they cannot overflow
  const size_t words = in.size() / 4;
  size_t i = 0;
  for (; i + 1 < words; i += 2) {
    uint32_t m[2];
    std::memcpy(m, in.data() + 4 * i, sizeof(m));
    even += Wide{key.factors[i]} * m[0];
    odd += Wide{key.factors[i + 1]} * m[1];
  }
  if (i < words) {
    uint32_t m;
    std::memcpy(&m, in.data() + 4 * i, sizeof(m));
    even += Wide{key.factors[i]} * m;
  }
  const Wide sum = even + odd;
  uint64_t hash = (static_cast<uint64_t>(sum) & kPrime) + static_cast<uint64_t>(sum >> 61);
  hash = (hash & kPrime) + (hash >> 61);
  if (hash >= kPrime) hash -= kPrime;
  return hash + siphash24(key.pad, std::as_bytes(std::span(&number, 1)));
}

}  // namespace weft
