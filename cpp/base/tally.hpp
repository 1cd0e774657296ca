// cpp/base/tally.hpp: a count that one thread at a time changes, under whatever lock it has, and any thread reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft {

class Tally {
 public:
  [[nodiscard]] uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }
  Tally& operator+=(uint64_t n) noexcept {
    value_.store(value() + n, std::memory_order_relaxed);
    return *this;
  }
  Tally& operator++() noexcept { return *this += 1; }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace weft
