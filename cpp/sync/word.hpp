// cpp/sync/word.hpp: words in shared memory on which processes sleep: lock words, which name their holder, and bells.
//
// A lock word is robust: it names the process that holds it by pid and start time, and a waiter checks whether that
// process still runs. A bell tells sleepers that something has changed; it costs one load while nobody sleeps. Waits
// are cut into slices (wait.hpp): a sleeper whose wake-up was lost with a killed process looks again by itself.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace weft::sync {

// A process: its pid, and its start time in clock ticks since boot (the low 32 bits), which a later process with the
// same pid does not have.
struct Who {
  uint32_t pid = 0, start = 0;
  bool operator==(const Who&) const = default;
};

// The services of the system that the objects use.
class World {
 public:
  virtual ~World() = default;
  [[nodiscard]] virtual Who self() const noexcept = 0;
  // The process has ended. False when in doubt.
  [[nodiscard]] virtual bool gone(Who who) noexcept = 0;
  // Monotonic, the same for all processes of the host; some milliseconds coarse.
  [[nodiscard]] virtual uint64_t now_ns() noexcept = 0;
  // Afterwards every thread of every process that takes part has passed a full barrier: its earlier stores can be seen,
  // and its later loads are not older. Nothing where the system does not offer it.
  virtual void fence_all() noexcept = 0;
  // This process takes part. Called by a NIC's own thread: it takes 10 ms in a process with threads.
  virtual void take_part() noexcept {}
};

// ---- futexes -------------------------------------------------------------------------------------------------------
// Not FUTEX_PRIVATE: the words are in memory that several processes map.

inline void futex_wait(const void* word, uint32_t value, uint64_t timeout_ns) noexcept {
  const timespec ts{static_cast<time_t>(timeout_ns / 1'000'000'000), static_cast<long>(timeout_ns % 1'000'000'000)};
  ::syscall(SYS_futex, word, FUTEX_WAIT, value, &ts, nullptr, 0);
}
// The number of threads that were woken.
inline long futex_wake(const void* word, int count) noexcept {
  return ::syscall(SYS_futex, word, FUTEX_WAKE, count, nullptr, nullptr, 0);
}

// ---- lock words ----------------------------------------------------------------------------------------------------
// Bits: 0 threads may sleep; 1 the last holder died; 2 to 23 pid; 24 held for a process of another host, or of another
// isolation; 32 to 63 start time. Sleepers wait on the low half, which changes when the holder changes: two holders
// with the same pid have a free word between them.

using LockWord = std::atomic<uint64_t>;
static_assert(LockWord::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

constexpr uint64_t kWaiters = 1, kMarked = 2, kForOther = uint64_t{1} << 24;
constexpr uint64_t kHolderMask = ~(kWaiters | kMarked);
constexpr uint32_t kPidMask = 0x3fffff;  // PID_MAX_LIMIT of the kernel is 2^22

constexpr uint64_t holder_word(Who who, bool for_other) noexcept {
  return uint64_t{who.start} << 32 | uint64_t{who.pid & kPidMask} << 2 | (for_other ? kForOther : 0);
}
constexpr Who who_of(uint64_t word) noexcept {
  return {static_cast<uint32_t>(word >> 2) & kPidMask, static_cast<uint32_t>(word >> 32)};
}
constexpr bool is_held(uint64_t word) noexcept {
  return (word & kHolderMask) != 0;
}

// HOT: one locked instruction. Takes a free word without a mark.
inline bool try_take(LockWord& word, uint64_t mine) noexcept {
  uint64_t free = 0;
  return word.compare_exchange_strong(free, mine, std::memory_order_seq_cst);
}
// Says that a thread is about to sleep until the word changes. False: the word is free, or changed just now.
inline bool announce_sleep(LockWord& word, uint64_t* seen) noexcept {
  uint64_t w = word.load(std::memory_order_seq_cst);
  if (!is_held(w)) return false;
  if ((w & kWaiters) == 0 && !word.compare_exchange_strong(w, w | kWaiters, std::memory_order_seq_cst)) return false;
  *seen = w | kWaiters;
  return true;
}
// HOT: one locked instruction. The caller holds the word. The thread that is woken takes the word with kWaiters, so
// that the next release wakes the next thread.
inline void let_go(LockWord& word) noexcept {
  // SYNC POINT: the holder's writes are visible to the next holder; and the full barrier precedes the look at bells.
  if ((word.exchange(0, std::memory_order_seq_cst) & kWaiters) != 0) [[unlikely]]
    futex_wake(&word, 1);
}

// ---- bells ---------------------------------------------------------------------------------------------------------
// Bit 0: threads may sleep. The other bits count.

using Bell = std::atomic<uint32_t>;

// Before a thread looks whether it must sleep: the value to sleep on.
inline uint32_t listen(Bell& bell) noexcept {
  // SYNC POINT: the bit is set before the thread looks; a thread that makes a change looks at the bit afterwards
  // (ring).
  return bell.fetch_or(1, std::memory_order_seq_cst) | 1;
}
// HOT: one load while nobody sleeps. Wakes up to `count` sleepers. Call it after the change, and after a full barrier.
inline void ring(Bell& bell, int count = INT_MAX) noexcept {
  if ((bell.load(std::memory_order_seq_cst) & 1) == 0) [[likely]]
    return;
  const uint32_t now = bell.fetch_add(2, std::memory_order_seq_cst) + 2;
  if (futex_wake(&bell, count) == 0) {
    // Nobody sleeps. A thread that has just set the bit finds another value when it goes to sleep, and looks again; or
    // it has gone to sleep since, and is woken.
    uint32_t value = now;
    if (bell.compare_exchange_strong(value, now & ~uint32_t{1}, std::memory_order_seq_cst)) futex_wake(&bell, INT_MAX);
  }
}

}  // namespace weft::sync
