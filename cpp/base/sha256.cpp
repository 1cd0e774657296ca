// cpp/base/sha256.cpp: see sha256.hpp.
#include "base/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace weft {

namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

void Sha256::block(const std::byte* bytes) noexcept {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = std::to_integer<uint32_t>(bytes[4 * i]) << 24 | std::to_integer<uint32_t>(bytes[4 * i + 1]) << 16 |
           std::to_integer<uint32_t>(bytes[4 * i + 2]) << 8 | std::to_integer<uint32_t>(bytes[4 * i + 3]);
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> worked{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += worked[i];
}

void Sha256::update(std::span<const std::byte> bytes) noexcept {
  total_ += bytes.size();
  if (rest_length_ != 0) {
    const size_t n = std::min(bytes.size(), rest_.size() - rest_length_);
    if (n != 0) std::memcpy(rest_.data() + rest_length_, bytes.data(), n);
    rest_length_ += n;
    bytes = bytes.subspan(n);
    if (rest_length_ < rest_.size()) return;
    block(rest_.data());
    rest_length_ = 0;
  }
  for (; bytes.size() >= 64; bytes = bytes.subspan(64)) block(bytes.data());
  if (!bytes.empty()) std::memcpy(rest_.data(), bytes.data(), bytes.size());
  rest_length_ = bytes.size();
}

Digest Sha256::finish() noexcept {
  const uint64_t bits = total_ * 8;
  const std::array<std::byte, 64> padding{std::byte{0x80}};
  update(std::span(padding).first(rest_length_ < 56 ? 56 - rest_length_ : 120 - rest_length_));
  std::array<std::byte, 8> length;
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(length);
  Digest out;
  for (size_t i = 0; i < 32; ++i) out[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

HmacSha256::HmacSha256(std::span<const std::byte> key) noexcept {
  std::array<std::byte, 64> padded{};
  if (key.size() > padded.size()) {
    Sha256 hash;
    hash.update(key);
    const Digest digest = hash.finish();
    std::memcpy(padded.data(), digest.data(), digest.size());
  } else if (!key.empty()) {
    std::memcpy(padded.data(), key.data(), key.size());
  }
  std::array<std::byte, 64> inner_key;
  for (size_t i = 0; i < padded.size(); ++i) {
    inner_key[i] = padded[i] ^ std::byte{0x36};
    outer_key_[i] = padded[i] ^ std::byte{0x5c};
  }
  inner_.update(inner_key);
}

Digest HmacSha256::finish() noexcept {
  const Digest inner = inner_.finish();
  Sha256 outer;
  outer.update(outer_key_);
  outer.update(inner);
  return outer.finish();
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  if (a.size() != b.size()) return false;
  volatile uint8_t different = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    different = static_cast<uint8_t>(different | std::to_integer<uint8_t>(a[i] ^ b[i]));
  }
  return different == 0;
}

}  // namespace weft
