// cpp/sync/layout.hpp: the bodies of semaphores, barriers and queues. Private to the room.
#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "sync/guard.hpp"
#include "sync/object.hpp"

namespace weft::sync {

// Permits that are in no seat: limit - seated. Committed: limit, and the permits of the seats. Derived: seated (the sum
// of the seats' permits, idle ones too), and one past the highest seat that was ever taken.
struct alignas(kCacheLine) SemaphoreBody {
  std::atomic<int64_t> limit;
  std::atomic<int64_t> seated;
  std::atomic<uint64_t> seats_used;
  std::atomic<uint32_t> asked;  // the seat at which the next look begins
  // Object::item seats follow.
};

// Committed: state. The seats of a phase are valid up to the number that has come; two sets take turns, so that the
// parties of the last phase are known while the next one gathers.
struct alignas(kCacheLine) BarrierBody {
  std::atomic<uint64_t> state;     // phase << 32 | parties that have come
  std::atomic<uint64_t> broken;    // 0, or 1 + the pid that ended (1: aborted)
  std::atomic<uint64_t> first;     // the first phase since reset(): older seats mean nothing
  std::atomic<uint32_t> tickets;   // of arrivals: a party's seat may move when another one leaves
  std::atomic<uint32_t> asked[2];  // by phase % 2: the seat at which the next look begins
  // Two times Object::n seats follow.
};

// Committed: the states of the slots, head, tail. Positions grow without end; a position's slot is position % slots.
struct alignas(kCacheLine) QueueBody {
  alignas(kCacheLine) std::atomic<uint64_t> head;
  alignas(kCacheLine) std::atomic<uint64_t> tail;
  // Object::n slots follow.
};

// The seats for which one step checks whether their processes still run: a few a step, round robin.
class Turn {
 public:
  Turn(std::atomic<uint32_t>& from, uint64_t seats) noexcept
      : from_(from), first_(seats != 0 ? from.load(std::memory_order_relaxed) % seats : 0), seats_(seats) {}
  [[nodiscard]] uint64_t first() const noexcept { return first_; }
  // False: enough for this step; the next step begins here.
  [[nodiscard]] bool ask(uint64_t seat) noexcept {
    if (asked_ < kAskedPerStep) {
      ++asked_;
      return true;
    }
    if (!ended_) from_.store(static_cast<uint32_t>(seat), std::memory_order_relaxed);
    ended_ = true;
    return false;
  }
  // The seat after `n` other seats.
  [[nodiscard]] uint64_t seat(uint64_t n) const noexcept { return (first_ + n) % seats_; }

 private:
  std::atomic<uint32_t>& from_;
  uint64_t first_, seats_;
  int asked_ = 0;
  bool ended_ = false;
};

// A slot and its record.
struct alignas(16) Slot {
  LockWord state;               // kSlotFree, kSlotFull, or holder_word() of the copier, plus kSlotWriting, kSlotReading
  std::atomic<uint64_t> token;  // with kForOther
  std::atomic<uint64_t> length;
  std::atomic<uint64_t> type;
};
static_assert(sizeof(Slot) == 32);
constexpr uint64_t kSlotFree = 0, kSlotFull = 1, kSlotWriting = 2, kSlotReading = 3;  // bits 0 and 1: as of a lock word
constexpr uint64_t kSlotStates = 3;
constexpr uint64_t slot_stride(uint64_t item) noexcept {
  return sizeof(Slot) + ((item + 15) & ~uint64_t{15});
}

inline SemaphoreBody& semaphore_of(const Object& o) noexcept {
  return *reinterpret_cast<SemaphoreBody*>(o.body);
}
inline Seat* seats_of(const Object& o) noexcept {
  static_assert(sizeof(SemaphoreBody) == sizeof(BarrierBody));
  return reinterpret_cast<Seat*>(o.body + sizeof(SemaphoreBody));
}
inline BarrierBody& barrier_of(const Object& o) noexcept {
  return *reinterpret_cast<BarrierBody*>(o.body);
}
inline QueueBody& queue_of(const Object& o) noexcept {
  return *reinterpret_cast<QueueBody*>(o.body);
}
inline Slot& slot_of(const Object& o, uint64_t index) noexcept {
  assert(index < o.n && "a slot of this queue");
  return *reinterpret_cast<Slot*>(o.body + sizeof(QueueBody) + index * slot_stride(o.item));
}
inline std::byte* record_of(Slot& slot) noexcept {
  return reinterpret_cast<std::byte*>(&slot) + sizeof(Slot);
}

}  // namespace weft::sync
