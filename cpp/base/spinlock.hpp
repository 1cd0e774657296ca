// cpp/base/spinlock.hpp: a lock for sections of a few hundred instructions; a waiter spins, then yields, then sleeps.
#pragma once

#include <atomic>

#include "base/backoff.hpp"

namespace weft {

class SpinLock {
 public:
  [[gnu::always_inline]] void lock() noexcept {
    if (!try_lock()) [[unlikely]]
      wait();
  }
  bool try_lock() noexcept {
    // SYNC POINT: acquire pairs with the release in unlock(): the next holder sees the writes of the previous one.
    return !held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire);
  }
  void unlock() noexcept { held_.store(false, std::memory_order_release); }

 private:
  [[gnu::noinline, gnu::cold]] void wait() noexcept {
    Backoff backoff;
    while (!try_lock()) backoff.pause();
  }

  std::atomic<bool> held_{false};
};

}  // namespace weft
