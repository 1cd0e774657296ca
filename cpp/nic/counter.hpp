// cpp/nic/counter.hpp: counters: how many operations succeeded, and how many failed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "nic/event.hpp"

namespace weft::nic {

class ClientMemory;  // client_memory.hpp
class TriggerUnit;   // trigger.hpp

// The largest values of a counter. A count saturates: a wrapped count would hide failures, and a peer can announce any
// number of bytes.
struct CounterLimits {
  uint64_t value_max = ~uint64_t{0};
  uint64_t errors_max = ~uint64_t{0};
};

class Counter {
 public:
  explicit Counter(const CounterLimits& limits = {}) noexcept;
  ~Counter();
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  [[nodiscard]] uint64_t value() const noexcept { return value_.load(std::memory_order_seq_cst); }
  [[nodiscard]] uint64_t errors() const noexcept { return errors_.load(std::memory_order_acquire); }
  [[nodiscard]] const CounterLimits& limits() const noexcept { return limits_; }
  // Atomic: the application and the NIC add from several threads. HOT: add().
  void add(uint64_t n) noexcept {
    const uint64_t now = add_to(value_, n, limits_.value_max).now;
    if (memory_ != nullptr) [[unlikely]]
      tell_memory(false);
    // SYNC POINT: the value was written before this load, and arm() comes before a load of the value: one of the two
    // sees the other.
    if (now >= armed_at_.load(std::memory_order_seq_cst)) [[unlikely]]
      trigger(now);
    event.notify();
  }
  void set(uint64_t n) noexcept {
    value_.store(n, std::memory_order_seq_cst);
    if (memory_ != nullptr) [[unlikely]]
      tell_memory(n == 0);
    if (n >= armed_at_.load(std::memory_order_seq_cst)) [[unlikely]]
      trigger(n);
    event.notify();
  }
  void add_errors(uint64_t n) noexcept {
    const uint64_t old = add_to(errors_, n, limits_.errors_max).old;
    if (memory_ != nullptr) [[unlikely]]
      tell_memory(old == 0 && n != 0);
    event.notify();
  }
  void set_errors(uint64_t n) noexcept {
    const uint64_t old = errors_.exchange(n, std::memory_order_acq_rel);
    if (memory_ != nullptr) [[unlikely]]
      tell_memory(n == 0 || old == 0);
    event.notify();
  }
  bool counts_bytes = false;  // FI_CNTR_EVENTS_BYTES

  // Events that software counts, not the NIC: the counter has them after fold(), which Domain::software_progress()
  // calls. A waiting thread is woken at once, to make that progress.
  void add_late(uint64_t n, uint64_t errors) noexcept {
    (void)add_to(late_, n, ~uint64_t{0});
    (void)add_to(late_errors_, errors, ~uint64_t{0});
    event.notify();
  }
  void fold() noexcept {
    if (const uint64_t n = late_.exchange(0, std::memory_order_acq_rel); n != 0) add(n);
    if (const uint64_t n = late_errors_.exchange(0, std::memory_order_acq_rel); n != 0) add_errors(n);
  }

  // The counter's client memory, or null. Set before the counter is used.
  [[nodiscard]] ClientMemory* memory() const noexcept { return memory_.get(); }
  void set_memory(std::unique_ptr<ClientMemory> memory) noexcept;

  // Of TriggerUnit, under its lock: the smallest value that triggers work, which is passed to
  // TriggerUnit::on_counter().
  static constexpr uint64_t kNoTrigger = ~uint64_t{0};
  void arm(uint64_t at) noexcept { armed_at_.store(at, std::memory_order_seq_cst); }
  // The unit of the counter's triggers, set once. False: the counter has another unit.
  bool join(const std::shared_ptr<TriggerUnit>& unit) noexcept;
  [[nodiscard]] const std::shared_ptr<TriggerUnit>& unit() const noexcept { return unit_; }

  Event event;

 private:
  [[gnu::noinline, gnu::cold]] void trigger(uint64_t reached) noexcept;
  [[gnu::noinline]] void tell_memory(bool write_back) noexcept;
  struct Change {
    uint64_t old, now;
  };
  // Adds, saturating at `max`.
  static Change add_to(std::atomic<uint64_t>& to, uint64_t n, uint64_t max) noexcept {
    uint64_t old = to.load(std::memory_order_relaxed), sum;
    do {
      if (__builtin_add_overflow(old, n, &sum) || sum > max) sum = max;
    } while (!to.compare_exchange_weak(old, sum, std::memory_order_seq_cst, std::memory_order_relaxed));
    return {old, sum};
  }

  std::atomic<uint64_t> value_{0};
  std::atomic<uint64_t> errors_{0};
  std::atomic<uint64_t> late_{0}, late_errors_{0};
  std::atomic<uint64_t> armed_at_{kNoTrigger};
  CounterLimits limits_;
  std::unique_ptr<ClientMemory> memory_;
  std::shared_ptr<TriggerUnit> unit_;
};

}  // namespace weft::nic
