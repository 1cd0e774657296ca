// cpp/mem/change_log.hpp: address ranges whose pages changed, from the monitor that sees it to the cache that depends
// on it. Producers: push() anyone, also in the middle of malloc and in a signal handler: it allocates nothing, takes no
// lock and never waits. Consumer: watch(), drain() one at a time, under the consumer's own lock; pending() anyone.
// Full: 256 unread changes become one change of everything, which is always safe, only slower.
// Preemption: a producer that is stopped between claim and publish holds its change back, and with it drain().
// Ordering: a change that was pushed before a call returned is seen by every drain() that starts after the call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/backoff.hpp"
#include "base/cache.hpp"

namespace weft::mem {

struct Change {
  uint64_t begin = 0, end = 0;
  bool unmapped = true;  // false: the mapping is as before, its pages were dropped (madvise)
};

class ChangeLog {
 public:
  static constexpr size_t kChangeMax = 256;

  // ---- producers
  [[nodiscard]] bool concerns(uint64_t begin, uint64_t end) const noexcept {
    return begin < high_.load(std::memory_order_relaxed) && end > low_.load(std::memory_order_relaxed);
  }
  void push(const Change& change) noexcept {
    uint64_t at = head_.load(std::memory_order_relaxed);
    do {
      if (at - tail_.load(std::memory_order_acquire) >= kChangeMax) {
        everything_.store(true, std::memory_order_seq_cst);
        return;
      }
    } while (!head_.compare_exchange_weak(at, at + 1, std::memory_order_seq_cst, std::memory_order_relaxed));
    Slot& slot = slots_[at % kChangeMax];
    slot.begin.store(change.begin, std::memory_order_relaxed);
    slot.end.store(change.end, std::memory_order_relaxed);
    slot.unmapped.store(change.unmapped, std::memory_order_relaxed);
    // SYNC POINT: pairs with the acquire in drain(): the range is readable once the turn is.
    slot.turn.store(at + 1, std::memory_order_release);
  }
  // Around taking changes from somewhere that lets the changing call return as soon as they are taken (userfaultfd):
  // between the two, consumers wait.
  void begin_taking() noexcept { taking_.store(true, std::memory_order_seq_cst); }
  void end_taking() noexcept { taking_.store(false, std::memory_order_release); }

  // ---- the consumer
  // From here on changes of [begin, end) concern us. Only grows, until forget().
  void watch(uint64_t begin, uint64_t end) noexcept {
    if (begin < low_.load(std::memory_order_relaxed)) low_.store(begin, std::memory_order_relaxed);
    if (end > high_.load(std::memory_order_relaxed)) high_.store(end, std::memory_order_relaxed);
    // SYNC POINT: a change that begins after this sees the range; one that began before is seen by Monitor::changing.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void forget() noexcept {
    low_.store(~uint64_t{0}, std::memory_order_relaxed);
    high_.store(0, std::memory_order_relaxed);
  }
  // HOT: three loads of one cache line, which is written only when something changes.
  [[nodiscard]] bool pending() const noexcept {
    return head_.load(std::memory_order_acquire) != tail_.load(std::memory_order_relaxed) ||
           everything_.load(std::memory_order_relaxed) || taking_.load(std::memory_order_acquire);
  }
  template <typename Each>
  void drain(Each&& each) {
    Backoff backoff;
    while (taking_.load(std::memory_order_acquire)) backoff.pause();
    if (everything_.exchange(false, std::memory_order_seq_cst)) each(Change{0, ~uint64_t{0}, true});
    uint64_t at = tail_.load(std::memory_order_relaxed);
    const uint64_t head = head_.load(std::memory_order_acquire);
    for (; at != head; ++at) {
      const Slot& slot = slots_[at % kChangeMax];
      while (slot.turn.load(std::memory_order_acquire) != at + 1) backoff.pause();
      each(Change{slot.begin.load(std::memory_order_relaxed), slot.end.load(std::memory_order_relaxed),
                  slot.unmapped.load(std::memory_order_relaxed)});
      // SYNC POINT: the slot may be written again.
      tail_.store(at + 1, std::memory_order_release);
    }
  }
  // In a forked child, where a producer may have been lost half-way.
  void reset_after_fork() noexcept {
    tail_.store(head_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    taking_.store(false, std::memory_order_relaxed);
    everything_.store(true, std::memory_order_relaxed);
  }

 private:
  struct Slot {
    std::atomic<uint64_t> turn{0}, begin{0}, end{0};
    std::atomic<bool> unmapped{true};
  };
  alignas(kCacheLine) std::atomic<uint64_t> head_{0}, tail_{0};
  std::atomic<uint64_t> low_{~uint64_t{0}}, high_{0};  // what is watched lies in [low, high)
  std::atomic<bool> everything_{false}, taking_{false};
  alignas(kCacheLine) std::array<Slot, kChangeMax> slots_;
};

}  // namespace weft::mem
