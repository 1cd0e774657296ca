// cpp/base/backoff.hpp: spin briefly, then yield, then sleep: polling that survives more pollers than cores.
// A yield that took long means that somebody else wanted this core; the next round then yields at once.
#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>

#include "base/cache.hpp"

namespace weft {

class Backoff {
 public:
  // After `spins` rounds of pause it yields; after `yields` rounds of yield it sleeps 50 us a round.
  explicit Backoff(uint32_t spins = 64, uint32_t yields = 256) noexcept : spins_(spins), yields_(yields) {}

  void pause() noexcept {
    if (round_ < spins_) {
      cpu_relax();
    } else if (round_ < spins_ + yields_) {
      sched_yield();
    } else {
      timespec ts{0, 50'000};
      nanosleep(&ts, nullptr);
    }
    ++round_;
  }
  [[nodiscard]] bool sleeping() const noexcept { return round_ >= spins_ + yields_; }
  void reset() noexcept { round_ = 0; }

 private:
  uint32_t spins_, yields_;
  uint32_t round_ = 0;
};

// Paces a loop that polls for work and finds none: most rounds cost nothing, some give the core away.
class PollPacer {
 public:
  void found() noexcept { empty_ = 0; }
  // An empty round; true when it is time to yield.
  [[nodiscard]] bool due() noexcept { return (++empty_ & mask_) == 0; }
  void yield_measured() noexcept {
    timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    sched_yield();
    clock_gettime(CLOCK_MONOTONIC, &b);
    const int64_t ns = (b.tv_sec - a.tv_sec) * 1'000'000'000 + (b.tv_nsec - a.tv_nsec);
    // Measured: a yield with nobody waiting is 0.2..0.6 us; with somebody it is a scheduling round of 2 us and up.
    mask_ = ns > 1'500 ? 3 : (mask_ < 63 ? (mask_ << 1) | 1 : 63);
  }

 private:
  uint32_t empty_ = 0;
  uint32_t mask_ = 63;
};

}  // namespace weft
