// cpp/nic/queue.hpp: completion queues and counters: where the NIC tells its process what happened.
// Both are written and read under their domain's lock (a counter's value may be read without it).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "nic/event.hpp"
#include "wire/address.hpp"

namespace weft::nic {

// Completion flags are libfabric's (rdma/fabric.h).
namespace flag {
constexpr uint64_t kMsg = 1ull << 1, kRma = 1ull << 2, kTagged = 1ull << 3, kAtomic = 1ull << 4, kRead = 1ull << 8,
                   kWrite = 1ull << 9, kRecv = 1ull << 10, kSend = 1ull << 11, kRemoteRead = 1ull << 12,
                   kRemoteWrite = 1ull << 13, kRemoteCqData = 1ull << 17, kMore = 1ull << 18, kFence = 1ull << 21,
                   kCompletion = 1ull << 24, kInject = 1ull << 25, kRmaEvent = 1ull << 56, kInjectComplete = 1ull << 26,
                   kTransmitComplete = 1ull << 27, kDeliveryComplete = 1ull << 28, kCommitComplete = 1ull << 30,
                   kMrSingleUse = 1ull << 41, kRmaPmem = 1ull << 49, kSelectiveCompletion = 1ull << 59;
// Ours, of endpoints with selective completion. Unfinished: an operation that is not done when the call returns reports
// its completion. OnlyNow: such an operation is not begun.
constexpr uint64_t kIfUnfinished = 1ull << 62, kOnlyNow = 1ull << 63;
}  // namespace flag

struct CqEntry {
  uint64_t context = 0;
  uint64_t flags = 0;
  uint64_t len = 0;
  uint64_t buf = 0;
  uint64_t data = 0;
  uint64_t tag = 0;
  uint64_t source = ~uint64_t{0};  // target side: the initiator's fi_addr, or FI_ADDR_NOTAVAIL
  uint32_t error = 0;              // 0, or the number of its CqError + 1
  uint32_t reserved = 0;
};
static_assert(sizeof(CqEntry) == 64);

struct CqError {
  int err = 0;         // FI_ code
  int prov_errno = 0;  // what the provider calls the status (StatusMap)
  Status status = Status::ok;
  uint64_t olen = 0;  // bytes that did not arrive
  std::string text;   // what was asked, what was found
};

// An endpoint that told its peers to hold back writes with data. on_room() runs when the queue has room again.
class Receiver {
 public:
  virtual void on_room() noexcept = 0;

 protected:
  ~Receiver() = default;
};

class CompletionQueue {
 public:
  // Entries beyond the capacity are what could not be refused when it was asked for: errors, and what peers had sent
  // before they learned that there is no room.
  static constexpr uint32_t kOverflowMax = 1u << 20;

  // overruns: FI_RM_DISABLED, peers are not held back, and what finds no room ends the queue.
  explicit CompletionQueue(uint32_t capacity, bool overruns = false) : may_overrun(overruns), capacity_(capacity) {
    uint32_t slots = 1;
    while (slots < capacity) slots *= 2;
    ring_.resize(slots);
    mask_ = slots - 1;
  }

  // HOT (with the domain's lock): room for one more success, beside those that operations under way have reserved.
  [[nodiscard]] bool has_room() const noexcept { return count_ + count_overflow_ + reserved_ < capacity_ && !overrun; }
  // As many entries are unread as it holds: nothing more is begun that might add one, and peers are held back. What
  // operations under way have reserved does not count here: each of two sides could wait for the other's to end.
  [[nodiscard]] bool full() const noexcept { return unread() >= capacity_; }
  void reserve() noexcept { ++reserved_; }
  void unreserve() noexcept { --reserved_; }
  void push(const CqEntry& entry) noexcept {
    if (count_ <= mask_ && count_overflow_ == 0) [[likely]] {
      ring_[(head_ + count_) & mask_] = entry;
      ++count_;
    } else {
      push_late(entry);
    }
    event.notify();
  }
  // An entry that a peer caused. taken: also where the queue has overrun. late: beyond the capacity; `receiver` is
  // called when there is room. refused: far beyond.
  enum class Taken : uint8_t { taken, late, refused };
  Taken push_remote(const CqEntry& entry, Receiver* receiver) noexcept;
  // Endpoints that receive here, so that telling them allocates nothing.
  void add_receiver() { shut_.reserve(++receivers_); }
  void remove_receiver(Receiver* receiver) noexcept {
    --receivers_;
    std::erase(shut_, receiver);
  }
  // The source address is stored for every entry of a peer; a local completion has none.
  void push_local(uint64_t context, uint64_t flags, uint64_t len) noexcept {
    if (count_ <= mask_ && count_overflow_ == 0) [[likely]] {
      CqEntry& e = ring_[(head_ + count_) & mask_];
      e.context = context;
      e.flags = flags;
      e.len = len;
      e.buf = e.data = e.tag = 0;
      e.error = 0;
      e.source = ~uint64_t{0};
      ++count_;
      event.notify();
    } else {
      push(CqEntry{context, flags, len, 0, 0, 0, ~uint64_t{0}, 0, 0});
    }
  }
  // Without memory for it the error loses its text.
  void push_error(CqEntry entry, CqError error) noexcept;

  // Takes up to `max` successes from the head; stops before an error. Returns how many; *error_waits tells that the
  // head is an error now.
  size_t read(CqEntry* out, size_t max, bool* error_waits);
  bool read_error(CqEntry* entry, CqError* error);

  [[nodiscard]] bool error_waits() const noexcept {
    const CqEntry* e = head();
    return e != nullptr && e->error != 0;
  }
  [[nodiscard]] uint32_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] uint32_t unread() const noexcept { return count_ + count_overflow_; }
  [[nodiscard]] uint32_t reserved() const noexcept { return reserved_; }

  Event event;
  std::atomic<bool> signaled{false};
  bool overrun = false;  // entries were lost: what is there can be read, and nothing comes any more
  const bool may_overrun;

 private:
  static constexpr uint32_t kNoText = ~uint32_t{0};  // CqEntry::error of one whose CqError found no memory
  [[nodiscard]] const CqEntry* head() const noexcept;
  void pop() noexcept;
  [[gnu::noinline]] void push_late(const CqEntry& entry) noexcept;
  void open_if_read() noexcept {
    if (!shut_.empty() && count_overflow_ == 0 && count_ <= capacity_ / 2) [[unlikely]]
      open();
  }
  [[gnu::noinline]] void open() noexcept;

  uint32_t capacity_;
  uint32_t mask_ = 0;
  uint32_t head_ = 0, count_ = 0, reserved_ = 0, count_overflow_ = 0;
  std::vector<CqEntry> ring_;
  std::deque<CqEntry> overflow_;
  std::vector<std::unique_ptr<CqError>> errors_;
  std::vector<uint32_t> errors_free_;
  std::vector<Receiver*> shut_;  // that wait for room
  size_t receivers_ = 0;
};

class Counter {
 public:
  [[nodiscard]] uint64_t value() const noexcept { return value_.load(std::memory_order_acquire); }
  [[nodiscard]] uint64_t errors() const noexcept { return errors_.load(std::memory_order_acquire); }
  // Users and the NIC add from several threads, so these are atomic.
  void add(uint64_t n) noexcept {
    add_to(value_, n);
    event.notify();
  }
  void set(uint64_t n) noexcept {
    value_.store(n, std::memory_order_release);
    event.notify();
  }
  void add_errors(uint64_t n) noexcept {
    add_to(errors_, n);
    event.notify();
  }
  void set_errors(uint64_t n) noexcept {
    errors_.store(n, std::memory_order_release);
    event.notify();
  }
  bool counts_bytes = false;  // FI_CNTR_EVENTS_BYTES

  Event event;

 private:
  // Up to the largest value and no further: a peer may name any number of bytes.
  static void add_to(std::atomic<uint64_t>& to, uint64_t n) noexcept {
    uint64_t old = to.load(std::memory_order_relaxed), sum;
    do {
      if (__builtin_add_overflow(old, n, &sum)) sum = ~uint64_t{0};
    } while (!to.compare_exchange_weak(old, sum, std::memory_order_release, std::memory_order_relaxed));
  }

  std::atomic<uint64_t> value_{0};
  std::atomic<uint64_t> errors_{0};
};

}  // namespace weft::nic
