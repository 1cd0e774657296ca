// cpp/base/backoff.hpp: waiting for another thread or process, which may need this core: spin briefly, yield, then
// sleep. The one place below host where a thread sleeps for a time: what it waits for is another thread's step, never
// the time.
#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>

#include "base/cache.hpp"

namespace weft {

class Backoff {
 public:
  // pause() spins for `spins` rounds, then yields for `yields` rounds, then sleeps 50 us a round.
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

}  // namespace weft
