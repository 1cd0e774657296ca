// cpp/nic/event.hpp: an event on which threads sleep. notify() costs one load while no thread sleeps.
#pragma once

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>

namespace weft::nic {

// A further receiver of notify(): a file descriptor for the user's own poll loop, or the engine's waiter.
class Notifier {
 public:
  virtual ~Notifier() = default;
  virtual void notify() noexcept = 0;
};

// Protocol of a waiter: enter(); seen = sequence(); check the state (under the notifying thread's lock, or an atomic
// that this thread changes before notify()); if there is no work, sleep(seen, ...); leave().
class Event {
 public:
  // HOT: one load while no thread waits.
  void notify() noexcept {
    // SYNC POINT: the state was written before this load, and a waiter enters before it checks: one sees the other.
    if (interested_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
      tell();
  }
  void enter() noexcept {
    interested_.fetch_add(1, std::memory_order_seq_cst);
    // SYNC POINT: a full fence in every thread: a processor may do the load of notify() before the store ahead of it,
    // and a fence there would be on the hot path. Without the system call a wake-up may be a slice late.
    const auto membarrier = [](int command) { return ::syscall(SYS_membarrier, command, 0, 0); };
    if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0 && membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0)
      (void)membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  }
  void leave() noexcept { interested_.fetch_sub(1, std::memory_order_seq_cst); }
  [[nodiscard]] uint32_t sequence() const noexcept { return sequence_.load(std::memory_order_acquire); }
  void sleep(uint32_t seen, int64_t timeout_ns) noexcept {
    timespec ts{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&sequence_), FUTEX_WAIT_PRIVATE, seen, &ts, nullptr, 0);
  }
  void tell() noexcept {
    sequence_.fetch_add(1, std::memory_order_seq_cst);
    if (interested_.load(std::memory_order_relaxed) > (notifier_ ? 1u : 0u)) {
      ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&sequence_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
    if (notifier_) notifier_->notify();
  }
  void set_notifier(std::shared_ptr<Notifier> notifier) {  // call it before the event is used
    notifier_ = std::move(notifier);
    enter();
  }

 private:
  std::atomic<uint32_t> interested_{0};
  std::atomic<uint32_t> sequence_{0};
  std::shared_ptr<Notifier> notifier_;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace weft::nic
