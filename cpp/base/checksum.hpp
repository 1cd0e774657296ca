// cpp/base/checksum.hpp: a checksum of payload, by which bytes that a network, a memory or a driver has changed are
// found. It is no protection against somebody who changes bytes on purpose and makes the checksum fit.
//
// Three CRC-32C (Castagnoli) side by side: word i of 8 bytes goes to number i % 3, because the processor's instruction
// takes three cycles and one can begin each cycle; the bytes behind the last 24 go to the first. The sum is the CRC of
// the first, continued over the other two. A change of up to 32 bits within one word is always found, any other with a
// chance of 1 - 2^-32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace weft {

namespace detail {

inline constexpr auto kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}();

struct TableCrc {
  static uint32_t byte(uint32_t crc, uint8_t b) noexcept { return (crc >> 8) ^ kCrcTable[(crc ^ b) & 0xff]; }
  static uint32_t word(uint32_t crc, uint64_t w) noexcept {
    for (int i = 0; i < 8; ++i) crc = byte(crc, static_cast<uint8_t>(w >> (8 * i)));
    return crc;
  }
};

struct Lanes {
  uint32_t a = ~uint32_t{0}, b = ~uint32_t{0}, c = ~uint32_t{0};
};

template <typename Crc>
[[gnu::always_inline]] inline Lanes add(Lanes lanes, const std::byte* p, size_t n) noexcept {
  uint32_t a = lanes.a, b = lanes.b, c = lanes.c;
  for (; n >= 24; n -= 24, p += 24) {
    uint64_t w[3];
    std::memcpy(w, p, sizeof(w));
    a = Crc::word(a, w[0]);
    b = Crc::word(b, w[1]);
    c = Crc::word(c, w[2]);
  }
  for (; n != 0; --n, ++p) a = Crc::byte(a, std::to_integer<uint8_t>(*p));
  return {a, b, c};
}

#if defined(__x86_64__)
// The attribute is the caller's too, so the steps are written out where it stands.
[[gnu::target("sse4.2")]] inline Lanes add_with_instruction(Lanes lanes, const std::byte* p, size_t n) noexcept {
  uint64_t a = lanes.a, b = lanes.b, c = lanes.c;
  for (; n >= 24; n -= 24, p += 24) {
    uint64_t w[3];
    std::memcpy(w, p, sizeof(w));
    a = _mm_crc32_u64(a, w[0]);
    b = _mm_crc32_u64(b, w[1]);
    c = _mm_crc32_u64(c, w[2]);
  }
  auto tail = static_cast<uint32_t>(a);
  for (; n != 0; --n, ++p) tail = _mm_crc32_u8(tail, std::to_integer<uint8_t>(*p));
  return {tail, static_cast<uint32_t>(b), static_cast<uint32_t>(c)};
}
inline const bool kHasCrcInstruction = __builtin_cpu_supports("sse4.2") != 0;
#elif defined(__ARM_FEATURE_CRC32)
struct ArmCrc {
  static uint32_t byte(uint32_t crc, uint8_t b) noexcept { return __crc32cb(crc, b); }
  static uint32_t word(uint32_t crc, uint64_t w) noexcept { return __crc32cd(crc, w); }
};
#endif

}  // namespace detail

// Piece by piece: all pieces but the last have a multiple of kChecksumStep bytes.
constexpr size_t kChecksumStep = 24;
class Checksum {
 public:
  void add(std::span<const std::byte> piece) noexcept {
#if defined(__x86_64__)
    lanes_ = detail::kHasCrcInstruction ? detail::add_with_instruction(lanes_, piece.data(), piece.size())
                                        : detail::add<detail::TableCrc>(lanes_, piece.data(), piece.size());
#elif defined(__ARM_FEATURE_CRC32)
    lanes_ = detail::add<detail::ArmCrc>(lanes_, piece.data(), piece.size());
#else
    lanes_ = detail::add<detail::TableCrc>(lanes_, piece.data(), piece.size());
#endif
  }
  [[nodiscard]] uint32_t sum() const noexcept {
    return ~detail::TableCrc::word(lanes_.a, uint64_t{lanes_.c} << 32 | lanes_.b);
  }

 private:
  detail::Lanes lanes_;
};

inline uint32_t checksum_of(std::span<const std::byte> bytes) noexcept {
  Checksum checksum;
  checksum.add(bytes);
  return checksum.sum();
}

}  // namespace weft
