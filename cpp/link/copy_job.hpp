// cpp/link/copy_job.hpp: a long copy that both processes of a connection make: the receiver from the front, the sender,
// which would wait for the receiver meanwhile, from the back.
//
// The job is in memory that both can write. Each side takes the next part at its own end until nothing is left: the
// receiver half of the rest; the sender, who comes a moment later to what the first half has left, most of it. The
// sender reports each part that it has copied; the receiver waits for the last report, because the sender writes into
// the receiver's memory. A side trusts no word: it knows where its own end is, and a sender that finds another value
// takes no further part. A receiver that finds one gives up the copy.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

#include "base/cache.hpp"

namespace weft::link {

struct alignas(kCacheLine) CopyJob {
  std::atomic<uint64_t> left;      // number << 32 | front << 16 | back: nobody has taken the units [front, back)
  std::atomic<uint64_t> reported;  // number << 32 | kGaveUp | units that the sender has copied
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(CopyJob) == kCacheLine);

// One side of a copy.
class CopyShare {
 public:
  static constexpr uint64_t kUnitBytes = 4096;    // or a multiple, in a copy of more than kUnitsMax units
  static constexpr uint64_t kLeastBytes = 28672;  // of a part: its system call costs as much as copying 24 KiB

  struct Part {
    uint64_t offset, bytes;
  };
  CopyShare(CopyJob* job, uint32_t number, uint64_t bytes) noexcept : job_(job), number_(number), bytes_(bytes) {
    while ((bytes + unit_ - 1) / unit_ > kUnitsMax) unit_ *= 2;
    units_ = (bytes + unit_ - 1) / unit_;
    back_ = units_;
  }

  // ---- the receiver ------------------------------------------------------------------------------------------------
  void begin() noexcept {
    job_->reported.store(word(0), std::memory_order_relaxed);
    // SYNC POINT: a sender that sees this number sees no report of an earlier copy.
    job_->left.store(word(units_), std::memory_order_release);
  }
  std::optional<Part> take_front() noexcept { return take(true); }
  // Takes all that is left.
  void stop() noexcept {
    while (take_front()) {
    }
  }
  // After take_front() has found nothing. mine: the sender has taken no part.
  enum class Theirs : uint8_t { mine, copied, under_way, gave_up, broken };
  [[nodiscard]] Theirs theirs() const noexcept {
    const uint64_t now = job_->left.load(std::memory_order_acquire), front = front_of(now), back = now & kUnitsMax;
    if (now >> 32 != number_ || front != back || back > units_) return Theirs::broken;
    // SYNC POINT: pairs with the release in report(): the sender's bytes are in our memory.
    const uint64_t said = job_->reported.load(std::memory_order_acquire), copied = said & kUnitsMax;
    if (said >> 32 != number_ || copied > units_ - back) return Theirs::broken;
    if ((said & kGaveUp) != 0) return Theirs::gave_up;
    return back == units_ ? Theirs::mine : copied == units_ - back ? Theirs::copied : Theirs::under_way;
  }

  // ---- the sender --------------------------------------------------------------------------------------------------
  std::optional<Part> take_back() noexcept { return take(false); }
  // The parts taken so far are copied, or the last one failed: then the sender writes no more.
  void report(bool copied) noexcept {
    job_->reported.store(word(copied ? units_ - back_ : kGaveUp), std::memory_order_release);
  }

 private:
  static constexpr uint64_t kUnitsMax = 0xffff, kGaveUp = uint64_t{1} << 31;
  static constexpr uint64_t front_of(uint64_t left) noexcept { return left >> 16 & kUnitsMax; }
  [[nodiscard]] uint64_t word(uint64_t low) const noexcept { return uint64_t{number_} << 32 | low; }

  std::optional<Part> take(bool front) noexcept {
    uint64_t now = job_->left.load(std::memory_order_acquire);
    for (;;) {
      const uint64_t first = front_of(now), end = now & kUnitsMax;
      // The other side moves its own end alone, and inwards.
      const bool ours = now >> 32 == number_ && (front ? first == front_ && end <= back_ : end == back_);
      if (!ours || first >= end) return std::nullopt;
      const uint64_t all = end - first, least = std::max<uint64_t>(kLeastBytes / unit_, 1);
      uint64_t n = std::max(front ? all / 2 : all - all / 4, least);
      if (n + least > all) n = all;
      const uint64_t at = front ? first : end - n;
      if (!job_->left.compare_exchange_weak(now, front ? word((first + n) << 16 | end) : word(first << 16 | at),
                                            std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      if (front) {
        front_ = first + n;
        back_ = end;
      } else {
        back_ = at;
      }
      return Part{at * unit_, std::min(n * unit_, bytes_ - at * unit_)};
    }
  }

  CopyJob* job_;
  uint32_t number_;
  uint64_t bytes_, unit_ = kUnitBytes, units_ = 0;
  uint64_t front_ = 0, back_ = 0;  // as this side knows them
};

// A connection's jobs.
struct CopyHelp {
  CopyJob* ours = nullptr;    // for copies from the peer's memory; null: the link has none
  CopyJob* theirs = nullptr;  // for the peer's copies from our memory
  uint32_t number = 0;        // of the last copy

  // False: another copy uses the job, or the peer did not help last time, for it copies itself: asked again after as
  // many copies as it had to be asked in vain, 31 at most.
  [[nodiscard]] bool begin() noexcept {
    if (used_.exchange(true, std::memory_order_acquire)) return false;
    if (skip_ == 0) return true;
    --skip_;
    used_.store(false, std::memory_order_release);
    return false;
  }
  void end(bool helped) noexcept {
    skips_ = helped ? 0 : std::min(2 * skips_ + 1, 31);
    skip_ = skips_;
    used_.store(false, std::memory_order_release);
  }

 private:
  std::atomic<bool> used_{false};
  int skip_ = 0, skips_ = 0;  // of whoever uses the job
};

}  // namespace weft::link
