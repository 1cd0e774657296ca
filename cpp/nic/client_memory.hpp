// cpp/nic/client_memory.hpp: a counter in its client's memory: the word to which the NIC writes the counter back, and
// the page through which plain stores change it. Source: fi_cxi(7) "CXI Counter Extensions"; cassini's ct_writeback.
//
// The NIC writes the word when the counter is opened, gets a buffer, is read or set to 0, when its failures leave 0,
// and at the values passed to write_back_at(); at no other time.
//
// Model: the page is memory, not a device. The NIC sees a store when it reads the page: at a call on the counter, in
// each round of progress, and once a millisecond in the engine. Of two stores to one word between two reads the first
// is lost; ClientMemory::store() loses none. The stores found by one read take effect in this order: resets, then sums.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/lock.hpp"
#include "base/mapping.hpp"
#include "mem/device.hpp"
#include "nic/counter.hpp"

namespace weft::nic {

// The word: bits 0 .. 47 the value, 48 .. 54 the failures, 63 set: the NIC has written the word.
namespace writeback {
constexpr uint64_t kValueMax = (uint64_t{1} << 48) - 1, kErrorsMax = 127, kWritten = uint64_t{1} << 63;
constexpr uint64_t word(uint64_t value, uint64_t errors) noexcept {
  return kWritten | (errors & kErrorsMax) << 48 | (value & kValueMax);
}
constexpr uint64_t value_of(uint64_t word) noexcept {
  return word & kValueMax;
}
constexpr uint64_t errors_of(uint64_t word) noexcept {
  return word >> 48 & kErrorsMax;
}
}  // namespace writeback

// The page, reference-counted: it may outlive its counter, and stores to it then have no effect.
class CounterPage {
 public:
  static constexpr size_t kBytes = 4096;
  // Offsets of the words. The NIC adds values stored to the first two; a 0 stored to the last two resets.
  static constexpr size_t kAddValue = 0, kAddErrors = 64, kResetValue = 128, kResetErrors = 192;

  CounterPage();  // throws Error(ENOMEM)
  [[nodiscard]] std::byte* data() const noexcept { return mapping_.data(); }
  struct Stored {
    uint64_t value = 0, errors = 0;
    bool reset_value = false, reset_errors = false;
    [[nodiscard]] bool any() const noexcept { return value != 0 || errors != 0 || reset_value || reset_errors; }
  };
  // Takes the stores since the last call. One thread at a time.
  Stored look() noexcept;

 private:
  [[nodiscard]] uint64_t* cell(size_t offset) const noexcept {
    return reinterpret_cast<uint64_t*>(mapping_.data() + offset);
  }
  Mapping mapping_;
};

class ClientMemory {
 public:
  ClientMemory(Counter* counter, mem::Devices* devices) noexcept : counter_(counter), devices_(devices) {
    write_back();
  }

  // Sets the word to write back to, and writes it at once. Before the first call the word is one of our own.
  void set_buffer(void* where, bool device) noexcept;
  // True once after each write that failed because the buffer's pages were missing.
  bool take_fault() noexcept { return faulted_.exchange(false, std::memory_order_relaxed); }
  // Writes back when the counter reaches this value, or at once if it has.
  void write_back_at(uint64_t value);
  // Reads the counter and writes it back; with `cached` returns the value written last, and writes back.
  uint64_t read(bool errors) noexcept;
  std::atomic<bool> cached{false};

  std::shared_ptr<CounterPage> page();  // made at the first call
  // Applies the stores made to the page; true: there was one.
  bool look() noexcept;
  // Has the effect of a plain store to a word of the page, at once.
  void store(size_t offset, uint64_t value) noexcept;

  // Called by the counter.
  void on_change(bool write) noexcept;

 private:
  bool take(const CounterPage::Stored& stored) noexcept;
  void write_back() noexcept {
    const Guard guard(lock_);
    write_locked();
  }
  void write_locked() noexcept;

  Counter* counter_;
  mem::Devices* devices_;
  RankedSpin<lock_rank::kClientMemory> lock_;  // not held while the counter is changed
  uint64_t last_ GUARDED_BY(lock_) = 0;
  void* buffer_ GUARDED_BY(lock_) = nullptr;
  bool of_device_ GUARDED_BY(lock_) = false;
  std::multiset<uint64_t> at_ GUARDED_BY(lock_);  // values at which the counter is written back
  std::atomic<bool> faulted_{false};
  RankedMutex<lock_rank::kCounterPage> page_mutex_;  // also for reading the page's words
  std::shared_ptr<CounterPage> page_ GUARDED_BY(page_mutex_);
  std::atomic<bool> has_page_{false};
};

}  // namespace weft::nic
