// cpp/base/lock.hpp: locks that know their rank (lock_rank.hpp). In builds with assertions each thread keeps a list of
// the locks that it holds, and a lock taken out of order ends the process with both names; elsewhere a ranked lock is
// the lock alone.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/lock_rank.hpp"
#include "base/spinlock.hpp"

namespace weft {

// What the calling thread holds. Empty functions in a release.
namespace held_locks {
#if defined(NDEBUG)
inline void check(const LockRank&) noexcept {}
inline void add(const LockRank&, const void*) noexcept {}
inline void remove(const void*) noexcept {}
inline void require(const LockRank&, const void*) noexcept {}
#else
void check(const LockRank& wanted) noexcept;  // before a lock of this rank is taken
void add(const LockRank& rank, const void* lock) noexcept;
void remove(const void* lock) noexcept;
void require(const LockRank& rank, const void* lock) noexcept;  // ends the process unless the thread holds the lock
#endif
}  // namespace held_locks

template <typename Lock, const LockRank& rank>
class Ranked {
 public:
  [[gnu::always_inline]] void lock() noexcept(noexcept(std::declval<Lock&>().lock())) {
    held_locks::check(rank);
    lock_.lock();
    held_locks::add(rank, this);
  }
  // Never waits, so the order of ranks does not matter to this call.
  bool try_lock() noexcept {
    if (!lock_.try_lock()) return false;
    held_locks::add(rank, this);
    return true;
  }
  [[gnu::always_inline]] void unlock() noexcept {
    held_locks::remove(this);
    lock_.unlock();
  }
  void lock_shared()
    requires requires(Lock& of) { of.lock_shared(); }
  {
    held_locks::check(rank);
    lock_.lock_shared();
    held_locks::add(rank, this);
  }
  void unlock_shared() noexcept
    requires requires(Lock& of) { of.lock_shared(); }
  {
    held_locks::remove(this);
    lock_.unlock_shared();
  }

  // A fork takes the locks of every NIC and every slab of the process, one after another, and the child has no other
  // thread: the locks that a fork holds are not in the thread's list.
  void lock_at_fork() { lock_.lock(); }
  void unlock_after_fork() noexcept { lock_.unlock(); }

  // In builds with assertions: ends the process unless the calling thread holds the lock.
  void assert_held() const noexcept { held_locks::require(rank, this); }
  // The lock alone, without its rank: for condition variables, in a thread that takes no other lock.
  [[nodiscard]] Lock& plain() noexcept { return lock_; }

 private:
  Lock lock_;
};

template <const LockRank& rank>
using RankedSpin = Ranked<SpinLock, rank>;
template <const LockRank& rank>
using RankedMutex = Ranked<std::mutex, rank>;
template <const LockRank& rank>
using RankedShared = Ranked<std::shared_mutex, rank>;

static_assert(sizeof(RankedSpin<lock_rank::kSlab>) == sizeof(SpinLock));
static_assert(sizeof(RankedMutex<lock_rank::kTable>) == sizeof(std::mutex));
static_assert(sizeof(RankedShared<lock_rank::kDeviceWindows>) == sizeof(std::shared_mutex));

}  // namespace weft
