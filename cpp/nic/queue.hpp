// cpp/nic/queue.hpp: completion queues: the NIC's reports to its process. Written and read under the lock of their
// domain, except for the entries of received messages: the receive side adds them without that lock, and read()
// collects them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <concepts>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/cache.hpp"
#include "base/lock.hpp"
#include "base/mapping.hpp"
#include "nic/entry.hpp"
#include "nic/event.hpp"

namespace weft::nic {

class CompletionQueue {
 public:
  // Entries beyond the capacity, which could not be refused in advance: errors, and entries of requests that peers had
  // sent before they learned that there is no room.
  static constexpr uint32_t kOverflowMax = 1u << 20;

  // overruns (FI_RM_DISABLED): peers are not held back, and an entry without room overruns the queue for good.
  // huge: the entries go into huge pages if the kernel has some.
  explicit CompletionQueue(uint32_t capacity, bool overruns = false, bool huge = false)
      : may_overrun(overruns), capacity_(capacity), promised_max_(capacity) {
    uint32_t slots = 1;
    while (slots < capacity) slots *= 2;
    if (huge) huge_ = Mapping::huge(slots * sizeof(CqEntry), &huge_error_);
    if (huge_.data() != nullptr) {
      ring_ = reinterpret_cast<CqEntry*>(huge_.data());
      std::uninitialized_default_construct_n(ring_, slots);
    } else {
      plain_.resize(slots);
      ring_ = plain_.data();
    }
    mask_ = slots - 1;
  }
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // Operations under way take no room: the unread entries alone fill the queue. Their entries then lie beyond the
  // capacity if need be. Call before the queue is used.
  void fill_by_entries() noexcept { promised_max_ = kOverflowMax; }
  // HOT (requires the domain's lock): room for one more success, besides those reserved by operations under way.
  [[nodiscard, gnu::always_inline]] bool has_room() const noexcept {
    const uint32_t unread = count_ + count_overflow_;
    return unread + reserved_ < promised_max_ && unread + unacked_ < capacity_ && !overrun;
  }
  // The unread entries fill the queue: no operation that might add an entry begins, and peers are held back. Entries
  // reserved by operations under way do not count here, because two sides could then wait for each other.
  [[nodiscard]] bool full() const noexcept { return unread() >= capacity_; }
  // The slots of entries that were read are free again only when `batch` of them have been read, as if hardware learned
  // of readers by an acknowledgement for each batch. A batch is at most the capacity. Call before the queue is used.
  void acknowledge_by(uint32_t batch) noexcept {
    ack_batch_ = std::min(batch, capacity_);
    has_more_to_do_ = ack_batch_ > 1;
  }
  [[nodiscard]] uint64_t acknowledgements() const noexcept { return acks_; }
  void reserve() noexcept { ++reserved_; }
  void unreserve() noexcept {
    assert(reserved_ != 0 && "room was promised");
    --reserved_;
  }
  void push(const CqEntry& entry) noexcept {
    if (count_ <= mask_ && count_overflow_ == 0) [[likely]] {
      ring_[(head_ + count_) & mask_] = entry;
      ++count_;
    } else {
      push_late(entry);
    }
    event.notify();
  }
  // Adds an entry that a peer caused. taken: also if the queue has overrun. late: beyond the capacity; `receiver` is
  // called when there is room. refused: beyond kOverflowMax too.
  enum class Taken : uint8_t { taken, late, refused };
  Taken push_remote(const CqEntry& entry, Receiver* receiver) noexcept;
  // Registers an endpoint that receives here, which reserves memory so that push_remote() allocates none.
  void add_receiver() {
    shut_.reserve(++receivers_);
    const Guard guard(received_lock_);
    starved_.reserve(receivers_);
  }
  void remove_receiver(Receiver* receiver) noexcept {
    --receivers_;
    std::erase(shut_, receiver);
    const Guard guard(received_lock_);
    std::erase(starved_, receiver);
  }
  // Adds the completion of a receive. Any thread, without the domain's lock. fill(RxEntry&) sets every field.
  template <typename Fill>
    requires std::invocable<Fill&, RxEntry&>
  void push_received(Fill&& fill) noexcept {
    {
      const Guard guard(received_lock_);
      const uint32_t tail = received_tail_.load(std::memory_order_relaxed);
      // SYNC POINT: acquire pairs with the release in take_received(): the entry has been read.
      const uint32_t n = tail - received_head_.load(std::memory_order_acquire);
      if (n >= received_.size() || received_late_count_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
        RxEntry late;
        fill(late);
        push_received_late(late);
      } else {
        fill(received_[tail & (received_.size() - 1)]);
        // SYNC POINT: the entry is visible to a reader that sees this tail.
        received_tail_.store(tail + 1, std::memory_order_release);
      }
      note_received();
    }
    event.notify();
  }
  void push_received(const RxEntry& entry) noexcept {
    push_received([&](RxEntry& e) { e = entry; });
  }
  // True: as many completions of receives wait as the queue has entries. Then remembers the receiver, whose
  // on_receive_room() is called. Any thread, without the domain's lock.
  [[nodiscard]] bool is_full_of_receives(Receiver* receiver) noexcept {
    return received() >= capacity_ && note_starved(receiver);
  }
  // A buffer for several messages ended without a last entry: its context is the queue's, for the entries that share
  // it, and take_contexts() returns it.
  void keep_context(uint64_t context) noexcept;
  std::vector<uint64_t> take_contexts();
  // The address vector ends: finds the senders of waiting entries now.
  void forget_sources(const AddressVector* sources) noexcept;
  // HOT. Adds a local completion, which has no source address. Inlined by force, as admits(): a call costs a put 2 ns.
  [[gnu::always_inline]] void push_local(uint64_t context, uint64_t flags, uint64_t len) noexcept {
    if (count_ <= mask_ && count_overflow_ == 0) [[likely]] {
      CqEntry& e = ring_[(head_ + count_) & mask_];
      e.context = context;
      e.flags = flags;
      e.len = len;
      e.buf = e.data = e.tag = 0;
      e.error = 0;
      e.reserved = 0;
      e.source = ~uint64_t{0};
      ++count_;
      event.notify();
    } else {
      push(CqEntry{context, flags, len, 0, 0, 0, ~uint64_t{0}, 0, 0});
    }
  }
  // Adds an error. Out of memory the error loses its text.
  void push_error(CqEntry entry, CqError error) noexcept;

  // Takes up to `max` successes from the head and stops before an error. Returns their number; *error_waits: the head
  // is an error now.
  size_t read(CqEntry* out, size_t max, bool* error_waits);
  bool read_error(CqEntry* entry, CqError* error);

  [[nodiscard]] bool error_waits() noexcept {
    collect();
    const CqEntry* e = head();
    return e != nullptr && e->error != 0;
  }
  [[nodiscard]] uint32_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool in_huge_pages() const noexcept { return huge_.data() != nullptr; }
  [[nodiscard]] int huge_error() const noexcept { return huge_error_; }  // the kernel's refusal of huge pages; 0: none
  // A check without the lock, for readers that would find nothing. True: there was no entry; one may come a moment
  // later.
  [[nodiscard]] bool looks_empty() const noexcept {
    return count_ == 0 && count_overflow_ == 0 && !overrun.load(std::memory_order_relaxed) &&
           received_events_.load(std::memory_order_acquire) == received_seen_ && received() == 0;
  }
  [[nodiscard]] uint32_t unread() const noexcept { return count_ + count_overflow_ + received(); }
  [[nodiscard]] uint32_t reserved() const noexcept { return reserved_ - unacked_; }
  [[nodiscard]] uint32_t unacknowledged() const noexcept { return unacked_; }

  Event event;
  std::atomic<bool> signaled{false};
  std::atomic<bool> overrun{false};  // entries were lost: the present ones can be read, and the queue takes no more
  const bool may_overrun;

 private:
  // A number that changes under the domain's lock and is also read without the lock.
  class Number {
   public:
    operator uint32_t() const noexcept { return n_.load(std::memory_order_relaxed); }
    Number& operator=(uint32_t n) noexcept {
      n_.store(n, std::memory_order_relaxed);
      return *this;
    }
    Number& operator++() noexcept { return *this = *this + 1; }
    Number& operator--() noexcept { return *this = *this - 1; }

   private:
    std::atomic<uint32_t> n_{0};
  };
  static constexpr uint32_t kNoText = ~uint32_t{0};  // CqEntry::error of an error without a CqError (out of memory)
  // Moves the entries of receives behind the other entries.
  void collect() noexcept {
    if (received_events_.load(std::memory_order_acquire) != received_seen_) [[unlikely]]
      collect_now();
  }
  [[gnu::noinline]] void collect_now() noexcept;
  // Entries of receives. Exact for the reader, and for a holder of received_lock_ an upper bound.
  [[nodiscard]] uint32_t received() const noexcept {
    const uint32_t head = received_head_.load(std::memory_order_acquire);
    return received_tail_.load(std::memory_order_acquire) - head + received_late_count_.load(std::memory_order_acquire);
  }
  // Requires received_lock_: the reader has something to do.
  void note_received() noexcept {
    // SYNC POINT: what the reader has to do is visible to a reader that sees this number.
    received_events_.store(received_events_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  [[gnu::noinline]] void push_received_late(const RxEntry& entry) noexcept;
  [[gnu::noinline]] bool move_late() noexcept;
  [[gnu::noinline]] size_t read_received(CqEntry* out, size_t max) noexcept;
  size_t take_received(CqEntry* out, size_t max) noexcept;
  static bool find_source(const RxEntry& received, CqEntry* entry) noexcept;
  void push_collected(const RxEntry& received) noexcept;
  [[gnu::noinline]] bool note_starved(Receiver* receiver) noexcept;
  [[nodiscard]] const CqEntry* head() const noexcept;
  void pop() noexcept;
  [[gnu::noinline]] void push_late(const CqEntry& entry) noexcept;
  // After `n` entries were read.
  void note_read(uint32_t n) noexcept {
    if (has_more_to_do_) [[unlikely]]
      after_read(n);
  }
  [[gnu::noinline]] void after_read(uint32_t n) noexcept;
  [[gnu::noinline]] void open() noexcept;

  uint32_t capacity_;
  uint32_t promised_max_;  // entries that are unread, or reserved by operations under way
  uint32_t mask_ = 0;
  uint32_t head_ = 0, reserved_ = 0;
  Number count_, count_overflow_;
  bool has_more_to_do_ = false;           // read() has more to do than to take entries: ack_batch_, shut_
  Number received_seen_;                  // received_events_ when the reader had done everything
  uint32_t ack_batch_ = 1, unacked_ = 0;  // unacked_: entries that were read and still take their slots
  uint64_t acks_ = 0;
  CqEntry* ring_ = nullptr;  // in one of the next two
  std::vector<CqEntry> plain_;
  Mapping huge_;
  int huge_error_ = 0;
  std::deque<CqEntry> overflow_;
  std::vector<std::unique_ptr<CqError>> errors_;
  std::vector<uint32_t> errors_free_;
  std::vector<Receiver*> shut_;  // receivers that wait for room
  size_t receivers_ = 0;

  // Entries of receives: a ring, filled under received_lock_ and emptied without it under the domain's lock. Entries
  // without room are late: the reader, which holds both locks then, makes the ring larger when it has emptied it.
  alignas(kCacheLine) RankedSpin<lock_rank::kQueueReceived> received_lock_;
  std::atomic<bool> received_lost_{false};  // no memory for an entry
  std::atomic<bool> starving_{false};       // starved_ is not empty
  std::atomic<uint32_t> received_tail_{0}, received_head_{0};
  std::atomic<uint32_t> received_events_{0};  // grows when the reader has something to do
  std::atomic<uint32_t> received_late_count_{0};
  std::vector<RxEntry> received_;
  std::deque<RxEntry> received_late_ GUARDED_BY(received_lock_);
  std::vector<uint64_t> contexts_;
  std::vector<Receiver*> starved_ GUARDED_BY(received_lock_);  // receivers that wait for room
};

// HOT. True if there is a queue, with room for the completion of a new operation if the operation wants one.
[[nodiscard, gnu::always_inline]] inline bool admits(const CompletionQueue* cq, bool wants) noexcept {
  return cq != nullptr && (!wants || cq->has_room());
}

}  // namespace weft::nic
