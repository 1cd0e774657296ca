// cpp/mem/change_log.hpp: a queue of address ranges whose pages changed, from a monitor to a cache.
// Producers: any thread calls push(), even in the middle of malloc or in a signal handler: push() allocates nothing,
// takes no lock and never waits. Consumer: watch() and drain() under the consumer's own lock; pending() any thread.
// Full: 256 unread changes become one change of all addresses, which is always safe, only slower.
// Preemption: a producer that is stopped between claim and publish holds back its change and the later ones.
// Ordering: every drain() that starts after a push() has returned sees that change.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/backoff.hpp"
#include "base/cache.hpp"

namespace weft::mem {

struct Change {
  uint64_t begin = 0, end = 0;
  bool unmapped = true;  // false: the mapping remains, only its pages were dropped (madvise)
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
    // SYNC POINT: pairs with the acquire in drain(): a consumer that sees the turn sees the range.
    slot.turn.store(at + 1, std::memory_order_release);
  }
  // Bracket a read of reports that lets the changing call return before the change is in the log (userfaultfd):
  // pending() is true and drain() waits between the two calls.
  void begin_taking() noexcept { taking_.store(true, std::memory_order_seq_cst); }
  void end_taking() noexcept { taking_.store(false, std::memory_order_release); }

  // ---- the consumer
  // Extends the watched range to include [begin, end). The range only grows, until forget().
  void watch(uint64_t begin, uint64_t end) noexcept {
    if (begin < low_.load(std::memory_order_relaxed)) low_.store(begin, std::memory_order_relaxed);
    if (end > high_.load(std::memory_order_relaxed)) high_.store(end, std::memory_order_relaxed);
    // SYNC POINT: a change that begins later sees the range; Monitor::changing() reports one that began earlier.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void forget() noexcept {
    low_.store(~uint64_t{0}, std::memory_order_relaxed);
    high_.store(0, std::memory_order_relaxed);
  }
  // HOT: three loads of one cache line, which is written only at a change.
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
      // SYNC POINT: our reads of the slot end before a producer writes it again.
      tail_.store(at + 1, std::memory_order_release);
    }
  }
  // For a forked child: fork() may have lost a producer between claim and publish.
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
  std::atomic<uint64_t> low_{~uint64_t{0}}, high_{0};  // the watched range is [low, high)
  std::atomic<bool> everything_{false}, taking_{false};
  alignas(kCacheLine) std::array<Slot, kChangeMax> slots_;
};

}  // namespace weft::mem
