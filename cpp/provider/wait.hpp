// cpp/provider/wait.hpp: waiting for the NIC in a thread of a C program: it polls briefly, yields for a while, then
// sleeps. bind/wait.hpp is the same for Python threads, which also give up the GIL and look for signals.
#pragma once

#include <time.h>

#include <algorithm>

#include "host/pacer.hpp"
#include "nic/nic.hpp"

namespace weft::provider {

constexpr uint64_t kForever = ~uint64_t{0};

inline uint64_t now_ns() noexcept {
  timespec ts;
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

// timeout in milliseconds; negative: none.
inline uint64_t deadline_in(int timeout) noexcept {
  return timeout < 0 ? kForever : now_ns() + static_cast<uint64_t>(timeout) * 1'000'000;
}

// Waits until ready() is true; false at the deadline.
template <typename Ready>
bool wait_for(nic::Nic& nic, nic::Event& event, host::PollPacer& memory, uint64_t deadline, Ready&& ready) {
  constexpr uint64_t kPollNs = 20'000, kPollAllNs = 1'000'000;
  constexpr int64_t kSliceNs = 50'000'000;
  host::PollPacer pacer = memory;
  pacer.found();
  for (;;) {
    for (uint64_t begun = 0, elsewhere = 0;;) {
      do {
        if (ready()) return true;
        nic.release_kept();
        if (nic.poll_from_app() != 0 && ready()) return true;
        cpu_relax();
      } while (!pacer.shares_core() && !pacer.due());  // a busy core: one look a turn
      const uint64_t now = pacer.yield_measured();
      memory = pacer;
      if (begun == 0) begun = now - pacer.yielded_ns();
      elsewhere += pacer.yielded_ns();
      if (now - begun > kPollAllNs || now - begun - elsewhere > kPollNs || now >= deadline) break;
    }
    if (ready()) return true;
    const uint64_t now = now_ns();
    if (now >= deadline) return false;
    const int64_t slice = deadline == kForever ? kSliceNs : std::min(static_cast<int64_t>(deadline - now), kSliceNs);
    event.enter();
    const uint32_t seen = event.sequence();
    if (!ready()) {
      if (nic.has_engine()) {
        nic.prepare_app_sleep();
        if (!ready()) event.sleep(seen, slice);
      } else {
        nic.wait_as_engine(slice);
      }
    }
    event.leave();
  }
}

}  // namespace weft::provider
