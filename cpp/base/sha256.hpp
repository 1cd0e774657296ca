// cpp/base/sha256.hpp: SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), small and without a library.
// For handshakes: a few blocks a connection, so it is written to be read. Checked against the published vectors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft {

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] Digest finish() noexcept;  // the object is used up

 private:
  void block(const std::byte* bytes) noexcept;
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> rest_{};
  size_t rest_length_ = 0;
  uint64_t total_ = 0;
};

class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> key) noexcept;
  HmacSha256& update(std::span<const std::byte> bytes) noexcept {
    inner_.update(bytes);
    return *this;
  }
  [[nodiscard]] Digest finish() noexcept;

 private:
  Sha256 inner_;
  std::array<std::byte, 64> outer_key_{};
};

// Takes the same time wherever the two differ: how long a refusal takes tells nothing about the secret.
[[nodiscard]] bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

}  // namespace weft
