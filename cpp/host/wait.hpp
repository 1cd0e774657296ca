// cpp/host/wait.hpp: a thread that waits for the NIC: it spins briefly, yields for a while, then sleeps on an event.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "base/cache.hpp"
#include "host/pacer.hpp"
#include "nic/nic.hpp"

namespace weft::host {

constexpr uint64_t kForever = ~uint64_t{0};

// The deadline `seconds` from now; negative: none, as in fi_cq_sread.
inline uint64_t deadline_in(double seconds) {
  return seconds >= 0 && seconds < 1e9 ? now_ns() + static_cast<uint64_t>(seconds * 1e9) : kForever;
}

// Two limits of polling before a thread sleeps: the time in which its core ran no other thread, and the time in all.
constexpr uint64_t kPollNs = 20'000, kPollAllNs = 1'000'000;

// Polls until ready() is true, as any polling thread does: the engine leaves the links to it, and peers need no system
// call to wake the engine.
// briefly: gives up when the core should be yielded, after 2 us at most. Otherwise begins with a yield, and gives up
// as above or at the deadline.
template <typename Ready>
bool poll_until(nic::Nic& nic, PollPacer& pacer, bool briefly, uint64_t deadline, Ready&& ready) {
  for (uint64_t begun = 0, elsewhere = 0;;) {
    if (!briefly) {
      const uint64_t now = pacer.yield_measured();
      if (begun == 0) begun = now - pacer.yielded_ns();
      elsewhere += pacer.yielded_ns();
      if (now - begun > kPollAllNs || now - begun - elsewhere > kPollNs || now >= deadline) return ready();
    }
    do {
      if (ready()) return true;
      nic.release_kept();
      if (nic.poll_from_app() != 0 && ready()) return true;
      cpu_relax();
    } while (!pacer.shares_core() && !pacer.due());  // a busy core: one look a turn
    if (briefly) return false;
  }
}

enum class Turn : uint8_t { more, ready, late };

// One turn of a wait: polls, and then sleeps on the event for at most look_ns. Without the caller's lock.
template <typename Ready>
Turn wait_turn(nic::Nic& nic, nic::Event& event, PollPacer& pacer, uint64_t deadline, int64_t look_ns, Ready&& ready) {
  assert(look_ns > 0 && "a sleep ends");
  if (poll_until(nic, pacer, false, deadline, ready)) return Turn::ready;
  const uint64_t now = now_ns();
  if (now >= deadline) return ready() ? Turn::ready : Turn::late;
  const int64_t slice = deadline == kForever ? look_ns : std::min(static_cast<int64_t>(deadline - now), look_ns);
  Turn turn = Turn::more;
  event.enter();
  const uint32_t seen = event.sequence();
  if (ready()) {
    turn = Turn::ready;
  } else if (nic.has_engine()) {
    nic.prepare_app_sleep();
    if (!ready()) event.sleep(seen, slice);
  } else {
    nic.wait_as_engine(slice);
  }
  event.leave();
  return turn;
}

}  // namespace weft::host
