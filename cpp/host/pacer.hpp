// cpp/host/pacer.hpp: when a polling thread yields its core. PollPacer measures its yields: a long yield means that
// another thread wants this core, so it then yields more often.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cassert>
#include <cstdint>

namespace weft::host {

inline uint64_t now_ns() {
  timespec ts;
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

// True: more threads want to run than the machine has processors; or the system does not tell.
bool is_crowded() noexcept;

// Decides when a loop that finds no work yields: every 2nd empty round on a busy core, every 64th on an idle core.
class PollPacer {
 public:
  PollPacer() noexcept = default;
  // For rounds that take nanoseconds: more of them, each number a power of two less one, so that an answer can come
  // between two yields. After a yield of hog_ns or longer the rounds are the most: a thread that computes has taken a
  // time slice, and a wait that ends before the next yield loses no other. Threads that poll give the core back sooner.
  PollPacer(uint32_t busy_mask, uint32_t idle_mask, uint32_t hog_mask, int64_t hog_ns) noexcept
      : busy_mask_(busy_mask), idle_mask_(idle_mask), hog_mask_(hog_mask), hog_ns_(hog_ns), mask_(idle_mask) {
    assert((busy_mask & (busy_mask + 1)) == 0 && (hog_mask & (hog_mask + 1)) == 0 && "a power of two less one");
    assert((idle_mask & (idle_mask + 1)) == 0 && busy_mask <= idle_mask && "a busy core yields more often");
  }
  void found() noexcept {
    empty_ = 0;
    if (!s_found.load(std::memory_order_relaxed)) s_found.store(true, std::memory_order_relaxed);
  }
  // Of a counter: a value that has changed is a find.
  void saw(uint64_t value) noexcept {
    if (value != seen_) found();
    seen_ = value;
  }
  // Counts an empty round; true: yield now.
  [[nodiscard]] bool due() noexcept { return (++empty_ & mask_) == 0; }
  // The last yield took long: other threads want this core.
  [[nodiscard]] bool shares_core() const noexcept { return mask_ == busy_mask_; }
  [[nodiscard]] uint64_t yielded_ns() const noexcept { return yielded_ns_; }  // the last yield
  // Returns CLOCK_MONOTONIC after the yield, in nanoseconds.
  uint64_t yield_measured() noexcept {
    const uint64_t before = now_ns();
    sched_yield();
    const uint64_t after = now_ns();
    const auto ns = static_cast<int64_t>(after - before);
    // Measured: a yield takes 0.2..0.6 us when no thread waits for the core, 2 us and more when one does.
    yielded_ns_ = static_cast<uint64_t>(ns);
    if (ns >= hog_ns_) {
      mask_ = hog_mask_;
    } else {
      mask_ = ns > 1'500 ? busy_mask_ : (mask_ < idle_mask_ ? (mask_ << 1) | 1 : idle_mask_);
    }
    return after;
  }
  // Of a thread that posts nothing; posted: what the other threads have posted so far. True: they post now, and this
  // one makes their progress, most likely under a lock of the program that they need for the next operation: they would
  // wait for it until the processes to which this thread yields give the core back. Measured with NIXL on two
  // processors: 30 us a transfer instead of 84.
  [[nodiscard]] bool serves_posters(uint64_t posted) noexcept {
    constexpr uint64_t kLatelyNs = 200'000;
    const uint64_t now = now_ns();
    if (posted != posted_) {
      posted_ = posted;
      posted_ns_ = now;
    }
    return now - posted_ns_ < kLatelyNs;
  }
  // For polls that return at once: a yield; where threads outnumber the processors, and the whole process has found
  // nothing for a millisecond, now and then a sleep of some 55 us, because a yield is not enough:
  // docs/design/progress.md.
  void yield_or_rest(bool (*crowded)() noexcept = is_crowded) noexcept {
    constexpr uint64_t kPatienceNs = 1'000'000, kBetweenNs = 150'000;
    const uint64_t now = yield_measured();
    const bool begins = now - yielded_ns_ - last_ns_ > kPatienceNs;  // nobody has polled
    last_ns_ = now;
    if (begins || s_found.load(std::memory_order_relaxed)) {
      s_found.store(false, std::memory_order_relaxed);
      rest_ns_ = now + kPatienceNs;
    } else if (now >= rest_ns_) {
      rest_ns_ = now + kBetweenNs;
      if (!crowded()) return;  // a rank may wait for a neighbour's store, which no queue shows
      constexpr timespec kShortest{0, 1};
      clock_nanosleep(CLOCK_MONOTONIC, 0, &kShortest, nullptr);
    }
  }

 private:
  // Something was found, in whichever queue: a program waits for all. Written seldom: threads that find share the line.
  static inline std::atomic<bool> s_found{false};

  uint32_t busy_mask_ = 1, idle_mask_ = 63, hog_mask_ = 63;
  int64_t hog_ns_ = INT64_MAX;
  uint32_t empty_ = 0;
  uint32_t mask_ = 63;
  uint64_t yielded_ns_ = 0;
  uint64_t last_ns_ = 0, rest_ns_ = 0;  // the last yield_or_rest(), and when it may rest
  uint64_t seen_ = 0;
  uint64_t posted_ = 0, posted_ns_ = 0;  // what others have posted, and when that changed
};

}  // namespace weft::host
