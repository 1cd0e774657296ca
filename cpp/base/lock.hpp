// cpp/base/lock.hpp: locks that know their rank (lock_rank.hpp). In builds with assertions each thread keeps a list of
// the locks that it holds, and a lock taken out of order ends the process with both names; elsewhere a ranked lock is
// the lock alone.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/guarded.hpp"
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
class LOCK_CLASS Ranked {
 public:
  [[gnu::always_inline]] void lock() noexcept(noexcept(std::declval<Lock&>().lock())) ACQUIRE() UNCHECKED {
    held_locks::check(rank);
    lock_.lock();
    held_locks::add(rank, this);
  }
  // Never waits, so the order of ranks does not matter to this call.
  bool try_lock() noexcept TRY_ACQUIRE(true) UNCHECKED {
    if (!lock_.try_lock()) return false;
    held_locks::add(rank, this);
    return true;
  }
  [[gnu::always_inline]] void unlock() noexcept RELEASE() UNCHECKED {
    held_locks::remove(this);
    lock_.unlock();
  }
  ACQUIRE_SHARED()
  UNCHECKED void lock_shared()
    requires requires(Lock& of) { of.lock_shared(); }
  {
    held_locks::check(rank);
    lock_.lock_shared();
    held_locks::add(rank, this);
  }
  RELEASE_SHARED()
  UNCHECKED void unlock_shared() noexcept
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
  void assert_held() const noexcept ASSERT_HELD() { held_locks::require(rank, this); }
  // The lock alone, without its rank: for condition variables, in a thread that takes no other lock.
  [[nodiscard]] Lock& plain() noexcept { return lock_; }

 private:
  Lock lock_;
};

// Holds a lock from here to the end of the block.
template <typename Lock>
class GUARD_CLASS Guard {
 public:
  [[gnu::always_inline]] explicit Guard(Lock& lock) noexcept(noexcept(lock.lock())) ACQUIRE(lock) : lock_(lock) {
    lock_.lock();
  }
  [[gnu::always_inline]] ~Guard() RELEASE() { lock_.unlock(); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  Lock& lock_;
};

// The same, with other readers.
template <typename Lock>
class GUARD_CLASS SharedGuard {
 public:
  explicit SharedGuard(Lock& lock) ACQUIRE_SHARED(lock) : lock_(lock) { lock_.lock_shared(); }
  ~SharedGuard() RELEASE() { lock_.unlock_shared(); }
  SharedGuard(const SharedGuard&) = delete;
  SharedGuard& operator=(const SharedGuard&) = delete;

 private:
  Lock& lock_;
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
