// cpp/call/quota.hpp: the resources that regions take of their provider, as data, so that taking them asks nobody.
//
// The caller makes all calls under its lock.
#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mem/ledger.hpp"

namespace weft::call {

// A pool of the numbers from 0 to count - 1; the lowest free number is taken first.
class Numbers {
 public:
  explicit Numbers(uint32_t count) : count_(count), used_((count + 63) / 64) {}
  std::optional<uint32_t> take();
  bool give(uint32_t n) noexcept;  // false: n was not taken
  [[nodiscard]] uint32_t taken() const noexcept { return taken_; }

 private:
  uint32_t count_, taken_ = 0;
  size_t first_ = 0;  // words before this one have no free number
  std::vector<uint64_t> used_;
};

// Counts of several kinds of resource.
class Stock {
 public:
  explicit Stock(std::vector<std::string> kinds) : kinds_(std::move(kinds)), counts_(kinds_.size()) {}
  [[nodiscard]] std::optional<size_t> kind(const std::string& name) const;
  [[nodiscard]] const std::string& name(size_t kind) const { return kinds_[kind]; }
  [[nodiscard]] size_t kinds() const noexcept { return kinds_.size(); }
  int64_t& operator[](size_t kind) noexcept {
    assert(kind < counts_.size() && "a kind of this stock");
    return counts_[kind];
  }
  bool take(size_t kind, int64_t count) noexcept;  // false: there are fewer, and nothing is taken

 private:
  std::vector<std::string> kinds_;
  std::vector<int64_t> counts_;
};

// Consecutive numbers of a given number of bits, at most 63.
class Sequence {
 public:
  Sequence(uint64_t first, uint32_t bits) : next_(first) {
    assert(bits < 64 && "the numbers fit");
    mask_ = (uint64_t{1} << bits) - 1;
  }
  uint64_t next() noexcept { return ++next_ & mask_; }

 private:
  uint64_t next_, mask_ = 0;
};

// A region takes a number when it is registered, and resources of one kind when it is enabled.
struct RegionQuota {
  enum class Took : uint8_t { nothing, low, high };
  struct Some {
    size_t kind = 0;
    int32_t count = 0;
  };
  // The pointers are of objects that the owner keeps.
  Numbers* numbers = nullptr;
  mem::Ledger* ledger = nullptr;
  Stock* taken = nullptr;
  uint32_t slot = 0;  // in the ledger
  Some low, high;
  bool closed = false;  // the slot was given back: regions take and return nothing more

  // If applications choose the keys: a region with a smaller key than this takes `low`, any other takes `high`.
  uint64_t below = 0;

  // If the provider makes the key when the region is enabled: the key is base | sequence << shift | number. A region
  // with a smaller number than numbers_below takes `low` if available, and its key has optimized_bit; any other region
  // takes `high`.
  Sequence* sequence = nullptr;  // null: the provider makes no keys, or keys are made elsewhere
  uint64_t base = 0, optimized_bit = 0;
  uint32_t numbers_below = 0, shift = 0;

  [[nodiscard]] const Some& some(Took took) const noexcept { return took == Took::low ? low : high; }
  [[nodiscard]] Took for_key(uint64_t key) const noexcept { return key < below ? Took::low : Took::high; }
  [[nodiscard]] bool may_have_low(uint32_t number) const noexcept { return number < numbers_below; }
  [[nodiscard]] uint64_t make_key(Took took, uint32_t number) noexcept {
    assert(sequence != nullptr && "the provider makes the keys");
    return base | (took == Took::low ? optimized_bit : 0) | sequence->next() << shift | number;
  }
  // False: fewer are free, or the slot was given back. Throws Error if another process holds the ledger for long.
  bool take(Took took);
  void give(Took took);
};

}  // namespace weft::call
