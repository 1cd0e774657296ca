// cpp/provider/wait.hpp: waiting for the NIC in a thread of a C program. bind/wait.hpp is the same for Python threads,
// which also give up the GIL and look for signals.
#pragma once

#include "host/wait.hpp"

namespace weft::provider {

// timeout in milliseconds; negative: none.
inline uint64_t deadline_in(int timeout) noexcept {
  return timeout < 0 ? host::kForever : host::now_ns() + static_cast<uint64_t>(timeout) * 1'000'000;
}

constexpr int64_t kSleepSlice = 50'000'000;
constexpr int64_t kPageLook = 1'000'000;  // at a counter's page, in which stores wake nobody

// Waits until ready() is true, and asks it at least once in a slice; false at the deadline.
template <typename Ready>
bool wait_for(nic::Nic& nic, nic::Event& event, host::PollPacer& memory, uint64_t deadline, Ready&& ready,
              int64_t slice = kSleepSlice) {
  host::PollPacer pacer = memory;
  pacer.found();
  if (host::poll_until(nic, pacer, true, deadline, ready)) return true;
  for (;;) {
    const host::Turn turn = host::wait_turn(nic, event, pacer, deadline, slice, ready);
    memory = pacer;
    if (turn != host::Turn::more) return turn == host::Turn::ready;
  }
}

}  // namespace weft::provider
