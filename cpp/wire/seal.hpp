// cpp/wire/seal.hpp: the seal of one direction of a tcp connection: AEGIS-128L, from libsodium.
//
// A record has three parts: `clear` bytes, never encrypted; `content` bytes, encrypted if the connection encrypts; and
// a tag of 32 bytes that authenticates both. The nonce is the record's number, counted from 0 and not sent, so a record
// that an attacker repeats, drops, moves or reflects does not open. Keys are not rotated: 2^64 records last 58,000
// years at 10 million a second.
//
// HOT: sealing or opening 150 bytes takes about 50 ns, 512 KiB about 40 us (with AES instructions).
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/sodium.hpp"

namespace weft::wire {

constexpr size_t kTagBytes = 32;
constexpr size_t kSealKeyBytes = 16;

class Seal {
 public:
  Seal() = default;
  Seal(const Sodium& sodium, std::span<const std::byte, kSealKeyBytes> key, bool encrypts) noexcept
      : encrypt_(sodium.aegis128l_encrypt), decrypt_(sodium.aegis128l_decrypt), encrypts_(encrypts) {
    std::memcpy(key_.data(), key.data(), key_.size());
  }
  bool operator==(const Seal&) const = default;

  // Seals the record at `at` in place and writes its tag after the content.
  void close(std::byte* at, size_t clear, size_t content) noexcept {
    assert(encrypt_ != nullptr && "the seal has a key");
    auto* p = reinterpret_cast<Sodium::Byte*>(at);
    const auto* nonce = reinterpret_cast<const Sodium::Byte*>(number_.data());
    Sodium::Length length = 0;
    if (encrypts_) {
      (void)encrypt_(p + clear, &length, p + clear, content, p, clear, nullptr, nonce, key_.data());
    } else {
      (void)encrypt_(p + clear + content, &length, nullptr, 0, p, clear + content, nullptr, nonce, key_.data());
    }
    ++number_[0];
  }
  // Opens the record at `at` in place; the tag follows the content. False: the bytes are not the next record of the
  // connection; the content is undefined then.
  [[nodiscard]] bool open(std::byte* at, size_t clear, size_t content) noexcept {
    assert(decrypt_ != nullptr && "the seal has a key");
    auto* p = reinterpret_cast<Sodium::Byte*>(at);
    const auto* nonce = reinterpret_cast<const Sodium::Byte*>(number_.data());
    Sodium::Length length = 0;
    const int failed =
        encrypts_ ? decrypt_(p + clear, &length, nullptr, p + clear, content + kTagBytes, p, clear, nonce, key_.data())
                  : decrypt_(nullptr, &length, nullptr, p + clear + content, kTagBytes, p, clear + content, nonce,
                             key_.data());
    ++number_[0];
    return failed == 0;
  }
  [[nodiscard]] bool encrypts() const noexcept { return encrypts_; }
  [[nodiscard]] uint64_t number() const noexcept { return number_[0]; }  // of the next record
  void skip_to(uint64_t number) noexcept { number_[0] = number; }
  void forget() noexcept { key_ = {}; }  // the connection is over

 private:
  decltype(Sodium::aegis128l_encrypt) encrypt_ = nullptr;
  decltype(Sodium::aegis128l_decrypt) decrypt_ = nullptr;
  std::array<uint64_t, 2> number_{};  // the nonce: the second word stays 0
  std::array<Sodium::Byte, kSealKeyBytes> key_{};
  bool encrypts_ = true;
};

}  // namespace weft::wire
