// cpp/mem/huge_pages.cpp: MADV_COLLAPSE, which works where shmem_enabled is "never".
#include "mem/huge_pages.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <vector>

#include "base/lock.hpp"
#include "mem/segment.hpp"

namespace weft::mem {

namespace {
constexpr uint64_t kHugePage = uint64_t{2} << 20;
}  // namespace

bool use_huge_pages(uint64_t address, uint64_t length) noexcept {
#ifndef MADV_COLLAPSE
  constexpr int MADV_COLLAPSE = 25;  // Linux 6.1, <asm-generic/mman-common.h>
#endif
  const uint64_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uint64_t end = (address + length) / kHugePage * kHugePage;
  if (begin >= end) return true;
  // The kernel refuses a block without any page. One small page in each costs less than the 512 faults it replaces:
  // 80 MiB are ready in 5 ms, and filled page by page in 48 ms.
  for (uint64_t block = begin; block < end; block += kHugePage) {
    if (!populate(block, kAllocationAlign, true)) return false;
  }
  int done;
  do {
    done = ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_COLLAPSE);
  } while (done != 0 && errno == EINTR);
  return done == 0;
}

// ---- huge pages as memory is touched -------------------------------------------------------------------------------

namespace {
using Pause = std::chrono::microseconds;
constexpr Pause kPauseMin{100}, kPauseMax{20'000};
constexpr uint32_t kIdleLooksMax = 200;  // about 4 s
constexpr uint64_t kAheadMax = 64;       // blocks; never more than about as many as were touched in order before
constexpr uint64_t kAtOnce = 8;          // blocks of a call: each call has the other processors empty their lists
constexpr uint32_t kRefusalsMax = 16;    // in a row: about 0.2 s
constexpr size_t kRangesMax = 64;        // each look costs a system call a range
}  // namespace

struct PageFollower::State {
  struct Range {
    int fd;
    uint64_t offset;   // of `begin` in the file
    uint64_t address;  // as given to follow()
    uint64_t begin;    // of the first block
    std::vector<bool> done;
    uint64_t next = 0;   // the block behind those that were prepared last
    uint64_t ahead = 2;  // blocks to prepare
    uint32_t idle = 0, refusals = 0;

    // The first block from `from` on that has a page and no huge page yet; the number of blocks: none.
    [[nodiscard]] uint64_t touched(uint64_t from) const noexcept {
      for (;;) {
        from = static_cast<uint64_t>(std::find(done.begin() + static_cast<ptrdiff_t>(from), done.end(), false) -
                                     done.begin());
        if (from == done.size()) return from;
        const off_t data = ::lseek(fd, static_cast<off_t>(offset + from * kHugePage), SEEK_DATA);
        if (data < 0 || static_cast<uint64_t>(data) >= offset + done.size() * kHugePage) return done.size();
        const uint64_t block = (static_cast<uint64_t>(data) - offset) / kHugePage;
        if (!done[block]) return block;
        from = block;
      }
    }
  };

  RankedMutex<lock_rank::kHugePages> mutex;
  std::condition_variable news;
  std::atomic<size_t> following{0};  // size of `ranges`, readable without the mutex
  std::atomic<uint32_t> callers{0};  // wait for the mutex: the thread lets them in between two blocks
  std::vector<Range> ranges GUARDED_BY(mutex);
  bool stop GUARDED_BY(mutex) = false;

  // Handles what was touched in a range; true: a huge page was made.
  bool look(Range& range) {
    bool any = false;
    for (uint64_t block = range.touched(0); block < range.done.size(); block = range.touched(block)) {
      range.ahead = block == range.next ? std::min(range.ahead * 2, kAheadMax) : 1;
      const uint64_t end = std::min<uint64_t>(block + range.ahead, range.done.size());
      while (block < end && range.refusals < kRefusalsMax) {
        const uint64_t first = block;
        while (block < end && block < first + kAtOnce && !range.done[block]) ++block;
        if (block == first) {
          ++block;
        } else if (use_huge_pages(range.begin + first * kHugePage, (block - first) * kHugePage)) {
          for (uint64_t i = first; i < block; ++i) range.done[i] = true;
          range.refusals = 0;
          any = true;
        } else {
          ++range.refusals;  // no huge page is free, or the pages are in use: later looks try again
        }
        range.next = std::max(range.next, block);
        if (callers.load(std::memory_order_relaxed) != 0) return any;
      }
      if (range.refusals >= kRefusalsMax) break;
    }
    return any;
  }

  // The condition variable gives up the lock and takes it again, which the analysis does not follow.
  void run() UNCHECKED {
    std::unique_lock lock(mutex.plain());  // for `news`; no other lock is taken here
    Pause pause = kPauseMin;
    while (!stop) {
      if (ranges.empty()) {
        news.wait(lock);
        pause = kPauseMin;
        continue;
      }
      bool any = false;
      for (size_t i = 0; i < ranges.size() && callers.load(std::memory_order_relaxed) == 0; ++i) {
        const bool touched = look(ranges[i]);
        ranges[i].idle = touched ? 0 : ranges[i].idle + 1;
        any = any || touched;
      }
      std::erase_if(ranges, [](const Range& r) {
        return r.idle >= kIdleLooksMax || r.refusals >= kRefusalsMax ||
               std::ranges::find(r.done, false) == r.done.end();
      });
      following.store(ranges.size(), std::memory_order_relaxed);
      pause = any ? kPauseMin : std::min(pause * 2, kPauseMax);
      news.wait_for(lock, pause);
    }
  }

  template <typename Do>
  void with_ranges(Do&& change) {
    callers.fetch_add(1, std::memory_order_relaxed);
    {
      const Guard lock(mutex);
      change();
      following.store(ranges.size(), std::memory_order_relaxed);
    }
    callers.fetch_sub(1, std::memory_order_relaxed);
  }
};

bool PageFollower::here() const noexcept {
  return state_ != nullptr && pid_ == ::getpid();
}

PageFollower::~PageFollower() {
  if (!here()) {
    // In a forked child the lock may be held by a thread that the child does not have.
    if (state_ != nullptr) (void)new std::shared_ptr<State>(std::move(state_));
    return;
  }
  state_->with_ranges([&] {
    state_->mutex.assert_held();
    state_->ranges.clear();
    state_->stop = true;
  });
  state_->news.notify_one();
}

void PageFollower::follow(int fd, uint64_t offset, uint64_t address, uint64_t length) {
  const uint64_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uint64_t end = (address + length) / kHugePage * kHugePage;
  if (begin >= end) return;
  if (state_ == nullptr) {
    auto state = std::make_shared<State>();
    sigset_t all, before;  // the application's handlers run in its own threads
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([state] { state->run(); }).detach();
    } catch (...) {
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    state_ = std::move(state);
    pid_ = ::getpid();
  }
  if (!here()) return;
  State::Range range{.fd = fd, .offset = offset + (begin - address), .address = address, .begin = begin, .done = {}};
  range.done.resize((end - begin) / kHugePage);
  state_->with_ranges([&] {
    state_->mutex.assert_held();
    if (state_->ranges.size() == kRangesMax) state_->ranges.erase(state_->ranges.begin());
    state_->ranges.push_back(std::move(range));
  });
  state_->news.notify_one();
}

bool PageFollower::active() const noexcept {
  return here() && state_->following.load(std::memory_order_relaxed) != 0;
}

void PageFollower::forget(uint64_t address) noexcept {
  if (!here()) return;
  state_->with_ranges([&] {
    state_->mutex.assert_held();
    std::erase_if(state_->ranges, [&](const State::Range& r) { return r.address == address; });
  });
}

}  // namespace weft::mem
