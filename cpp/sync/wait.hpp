// cpp/sync/wait.hpp: a thread that waits for a call on an object that it has mapped: it looks for some microseconds,
// then sleeps on the object's words. Asleep, it looks four times a second.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "base/backoff.hpp"
#include "base/cache.hpp"
#include "sync/object.hpp"

namespace weft::sync {

constexpr int kLooksFirst = 40;  // before the first sleep: about 4 us, the cost of sleeping and being woken
constexpr uint64_t kSliceNsMin = 5'000'000, kSliceNsMax = 250'000'000;

// Sleeps of one wait: each slice is twice as long as the slice before. After a slice in which nobody called, the next
// look also finds out whether the processes in the way still run.
class Slices {
 public:
  // At most `left_ns`.
  [[nodiscard]] uint64_t next(uint64_t left_ns) noexcept {
    const uint64_t now = slice_ns_;
    slice_ns_ = std::min(slice_ns_ * 2, kSliceNsMax);
    return std::min(now, left_ns);
  }

 private:
  uint64_t slice_ns_ = kSliceNsMin;
};

// A call that waits for nothing but its turn to change the object.
inline Outcome do_now(const Object& object, Call& call, World& world) noexcept {
  for (;;) {
    const Outcome outcome = step(object, call, world);
    if (outcome != Outcome::busy) return outcome;
    call.look = true;
    sched_yield();
  }
}

// The last look of a call whose time is over: waits at most a second for its turn.
inline Outcome last_look(const Object& object, Call& call, World& world) noexcept {
  constexpr int kTries = 20'000;
  Backoff backoff(0, 0);
  call.look = true;  // the process in the way may have ended just now
  for (int i = 0;; ++i) {
    const Outcome outcome = step(object, call, world);
    if (outcome != Outcome::busy || i == kTries) return outcome;
    backoff.pause();
  }
}

// A party that waits no longer leaves its barrier. done: the last party has come just now; `again`: the party has left.
inline Outcome leave(const Object& object, Call& call, World& world) noexcept {
  Call leaving = call;
  leaving.op = Op::withdraw;
  (void)do_now(object, leaving, world);
  if (leaving.value == 0) return Outcome::again;
  call.value = leaving.value2;
  return Outcome::done;
}

// Takes a lock that another process has, if the process releases it within about 1 us, as at the end of a short block.
// Not if a thread of this process has it: the thread may need what the caller holds to release it.
[[gnu::noinline]] inline bool take_soon(Head& head, uint64_t mine) noexcept {
  constexpr int kLooks = 64;
  for (int look = 0; look < kLooks; ++look) {
    const uint64_t word = head.word.load(std::memory_order_relaxed);
    if ((word & kMarked) != 0 || (word & kHolderMask) == mine) return false;
    if (!is_held(word) && take_lock(head, mine)) return true;
    cpu_relax();
  }
  return false;
}

// One slice. `again` or `busy`: the caller continues, after it has checked the clock, signals, and whether the object
// still has an owner. Without the GIL.
inline Outcome wait_slice(const Object& object, Call& call, World& world, Slices& slices, uint64_t left_ns) noexcept {
  Outcome outcome = Outcome::again;
  Head& head = *object.head;
  if (!call.sleeps) {
    for (int i = 0; i < kLooksFirst; ++i) {
      outcome = step(object, call, world);
      if (outcome != Outcome::again && outcome != Outcome::busy) return outcome;
      for (int j = 0; j < 4; ++j) cpu_relax();
    }
  }
  call.sleeps = true;
  bool on_word = object.kind == Kind::lock || outcome == Outcome::busy;
  const bool for_room = call.op == Op::put || call.op == Op::reserve;
  Bell& bell = for_room ? head.room : head.go;
  uint64_t word = 0;
  uint32_t heard = 0;
  const void* at = &bell;
  if (!on_word) {
    heard = listen(bell);
    outcome = step(object, call, world);
    on_word = outcome == Outcome::busy;
    if (!on_word && outcome != Outcome::again) return outcome;
  }
  if (on_word) {  // the lock, or the guard
    if (!announce_sleep(head.word, &word)) return step(object, call, world);
    heard = static_cast<uint32_t>(word);  // the low half, which comes first in memory
    at = &head.word;
    outcome = step(object, call, world);
    if (outcome != Outcome::busy && (outcome != Outcome::again || object.kind != Kind::lock)) return outcome;
  }
  if (left_ns == 0) return outcome;
  // A guard that is held for long may belong to a killed process, which does not ring the bell.
  const uint64_t before_ns = world.now_ns();
  const uint64_t slice_ns = slices.next(left_ns);
  futex_wait(at, heard, slice_ns);
  call.look = world.now_ns() - before_ns + kSliceNsMin >= slice_ns;
  return Outcome::again;
}

}  // namespace weft::sync
