// cpp/sync/object.hpp: locks, semaphores, events, barriers and queues in shared memory.
//
// An object is a block of memory that any number of processes map. A call is one step() that never waits: it is done,
// or the answer is `again`. A caller that wants to wait sleeps on the object's words (wait.hpp), or asks the NIC of the
// memory's owner to keep the call until it can be done (nic/parking.hpp). So every path runs the same code on the same
// memory.
//
//   Head     what the object is, and its words
//   body     seats of a semaphore or a barrier, the slots of a queue
//
// Robust: a lock's word names its holder. The state of semaphores, barriers and queues changes under a guard, a lock
// word too, and every change takes effect by one store (the commit): a process that is killed between two stores leaves
// the state before the change or after it. The next process that takes the guard computes derived values anew.
//
// A process that shares the memory can write anything there: step() copies the numbers it trusts when the object is
// opened, checks every other number that it reads, and has no loop whose length the memory decides.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/cache.hpp"
#include "base/fields.hpp"
#include "sync/word.hpp"

namespace weft::sync {

// The numbers of these three enums are in frames. weft.share uses their names.
#define WEFT_SYNC_KINDS(X)        \
  X(lock, 1, "A lock.")           \
  X(semaphore, 2, "A semaphore.") \
  X(event, 3, "An event.")        \
  X(barrier, 4, "A barrier.")     \
  X(queue, 5, "A queue of records.")
WEFT_ENUM(Kind, uint32_t, WEFT_SYNC_KINDS, "The kinds of objects that processes share.");

#define WEFT_SYNC_OPS(X)                                                                                              \
  X(take, 1, "lock (a: 1 to take it from the dead), semaphore")                                                       \
  X(release, 2, "lock (a: value2 of a take() from the dead: to them again), semaphore (a: permits)")                  \
  X(set, 3, "event")                                                                                                  \
  X(clear, 4, "event")                                                                                                \
  X(wait, 5, "event, barrier")                                                                                        \
  X(withdraw, 6, "barrier: ends a wait that has not come to its end (state: of the wait)")                            \
  X(abort, 7, "barrier")                                                                                              \
  X(reset, 8, "barrier")                                                                                              \
  X(put, 9, "queue: in, a: the record's type, b: a number for unput")                                                 \
  X(get, 10, "queue: out")                                                                                            \
  X(reserve, 11, "queue, for records that are copied outside the guard: a slot to write (a: bytes, b: type); commit") \
  X(commit, 12, "queue: a: the slot")                                                                                 \
  X(claim, 13, "queue: a slot to read; free_slot")                                                                    \
  X(free_slot, 14,                                                                                                    \
    "queue: a: the slot. Of a slot to write: its record is never delivered. Of one to read, b: 1: the record "        \
    "becomes the first again; `again` if others have taken later ones. b: 2: also then, by a copy; `again` if the "   \
    "queue is full")                                                                                                  \
  X(look, 15, "value, value2, value3: what there is")                                                                 \
  X(gone, 16, "the process for which the owner's NIC has called (token) is lost")                                     \
  X(close, 17, "wakes everyone; every call then ends")                                                                \
  X(put_back, 18, "queue: in, a: the record's type: the first record again, for one who got it in vain")              \
  X(unput, 19, "queue: a: value of a put, b: its number: the record is not delivered; `not_holder`: others have it")
WEFT_ENUM(Op, uint16_t, WEFT_SYNC_OPS, "The calls of such an object.");
constexpr uint16_t kOpMax = std::size(kOpChoices);

#define WEFT_SYNC_OUTCOMES(X)                                                                                 \
  X(done, 0, "done")                                                                                          \
  X(again, 1, "not now")                                                                                      \
  X(died, 2, "lock: the process that held it ended; value: its pid, value2: 1 for one that a NIC called for") \
  X(not_holder, 3, "lock: value: the pid that holds it")                                                      \
  X(closed, 4, "the object is closed")                                                                        \
  X(broken, 5, "barrier: value: the pid that ended, 0: aborted; value2: 1: reset() while this party waited")  \
  X(too_long, 6, "queue: value: bytes of the record, or of a slot")                                           \
  X(damaged, 7, "the memory does not hold such an object")                                                    \
  X(no_seat, 8, "semaphore: too many processes have permits")                                                 \
  X(canceled, 9, "the call waits in the owner's NIC no longer")                                               \
  X(busy, 10, "not now, because another process is changing the object")
WEFT_ENUM(Outcome, uint32_t, WEFT_SYNC_OUTCOMES, "How a call of such an object ended.");

// One call.
struct Call {
  Op op{};
  bool for_other = false;  // by the owner's NIC, for a process that does not map the memory: `token` names it
  bool look = false;       // check whether processes that are in the way have ended (reads /proc)
  bool sleeps = false;     // a thread of this process has slept, and others may still sleep
  Who who;
  uint64_t token = 0;
  uint64_t a = 0, b = 0;
  uint64_t state = 0;  // of a wait: kept from step to step. Of claim: the record's length
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  uint64_t in_bytes = 0, out_bytes = 0;  // out_bytes: room
  // Results.
  uint64_t value = 0, value2 = 0, value3 = 0;
  uint64_t length = 0;   // of a record
  bool changed = false;  // waiters may be able to go on
  // semaphore, take: where the process's permits are noted, and the tag of the seat.
  struct Seat* seat = nullptr;
  uint64_t tag = 0;
};

struct alignas(kCacheLine) Head {
  uint64_t magic;
  uint32_t kind, version;
  uint64_t bytes;          // of the object
  uint64_t n;              // semaphore: permits at first; barrier: parties; queue: slots
  uint64_t item;           // semaphore: seats; queue: bytes of a record
  uint32_t pid_namespace;  // of the processes that may map it: pids mean the same to them
  std::atomic<uint32_t> closed;
  uint32_t form_bytes;  // queue: the text behind the slots that says what its records are, for weft.share
  // The line that calls write.
  alignas(kCacheLine) LockWord word;  // lock: the holder; event: the state; otherwise: the guard
  Bell go;                            // a waiter can take, get, pass
  Bell room;                          // a waiter can put
  std::atomic<uint64_t> since_ns;     // lock: when a caller first found it taken (World::now_ns); 0: none has
  std::atomic<uint64_t> token;        // lock: of the holder, if it does not map the memory
  std::atomic<uint64_t> other;        // lock: pid of that holder on its host
};
static_assert(sizeof(Head) == 2 * kCacheLine);

constexpr uint64_t kMagic = 0x31636e7974666577;  // "weftync1"
constexpr uint32_t kVersion = 3;
constexpr uint64_t kFormBytesMax = 1 << 16;
constexpr uint64_t kSlotsMax = uint64_t{1} << 31;
constexpr uint64_t kPartiesMax = 1u << 16;
constexpr uint64_t kSeatsMax = 1024;
constexpr int kAskedPerStep = 16;  // processes of which one call finds out whether they run: 10 us each
constexpr uint64_t kCopyUnderGuard =
    32768;  // longer records are copied outside the guard: it takes 2 us to copy so much

// A process that has permits of a semaphore, or that has come to a barrier. Free: word 0.
struct Seat {
  LockWord word;                // holder_word()
  std::atomic<uint64_t> token;  // with kForOther
  std::atomic<uint32_t> count;  // barrier: the ticket
  uint32_t reserved;
  std::atomic<uint64_t> permits;  // semaphore: see below
};
static_assert(sizeof(Seat) == 32);

// An object that has been opened: the numbers are copies.
struct Object {
  Head* head = nullptr;
  std::byte* body = nullptr;
  Kind kind{};
  uint64_t n = 0, item = 0;
};

// The bytes of an object; nothing for numbers that no object has.
std::optional<uint64_t> bytes_of(Kind kind, uint64_t n, uint64_t item, uint64_t form_bytes = 0) noexcept;
// Makes an object in zeroed memory of bytes_of() bytes, which is aligned to a cache line.
Object create(std::byte* memory, Kind kind, uint64_t n, uint64_t item, uint32_t pid_namespace,
              std::span<const std::byte> form = {}) noexcept;
// The object in `memory`; nothing if there is none that fits `length`.
std::optional<Object> open(std::byte* memory, uint64_t length) noexcept;

// One call, without waiting.
Outcome step(const Object& object, Call& call, World& world) noexcept;

// HOT: the uncontended lock; one locked instruction each. take_lock() is false if step() has to decide. Reading the
// clock would take as long as the rest, so the caller that finds the lock taken notes the time.
inline bool take_lock(Head& head, uint64_t mine) noexcept {
  if (head.closed.load(std::memory_order_relaxed) != 0 || !try_take(head.word, mine)) [[unlikely]]
    return false;
  head.since_ns.store(0, std::memory_order_relaxed);
  return true;
}
bool release_with_waiters(Head& head, uint64_t mine) noexcept;
inline bool release_lock(Head& head, uint64_t mine) noexcept {
  // Not by an exchange: two threads that release at the same time must not free the lock of the next holder.
  uint64_t word = mine;
  if (!head.word.compare_exchange_strong(word, 0, std::memory_order_seq_cst)) [[unlikely]]
    return release_with_waiters(head, mine);
  return true;
}

// HOT: semaphores. Permits that a process gives back stay in its seat, idle, until it takes them again, or until
// another process that finds no other permit takes them back, under the guard. So a process that takes and gives uses
// one locked instruction each, on a word that names whose permits they are. Bits of Seat::permits: 0 to 31 permits that
// are taken; 32 to 47 idle permits; 48 to 63 a tag, another for each process that gets the seat. The sum of both
// changes only under the guard.
constexpr uint64_t kTaken = 1, kIdle = uint64_t{1} << 32, kTag = uint64_t{1} << 48;
constexpr uint64_t kTakenMask = kIdle - 1, kIdleMask = kTag - kIdle, kTagMask = ~(kTag - 1);
// False: step() has to decide. The seat and the tag come from an earlier take() of the same process.
inline bool take_permit(const Head& head, Seat* seat, uint64_t tag, uint64_t mine) noexcept {
  if (seat == nullptr || head.closed.load(std::memory_order_relaxed) != 0 ||
      seat->word.load(std::memory_order_relaxed) != mine) [[unlikely]] {
    return false;
  }
  uint64_t now = seat->permits.load(std::memory_order_relaxed);
  if ((now & kTagMask) != tag || (now & kIdleMask) == 0 || (now & kTakenMask) == kTakenMask) [[unlikely]]
    return false;
  return seat->permits.compare_exchange_strong(now, now - kIdle + kTaken, std::memory_order_seq_cst);
}
inline bool give_permit(Head& head, Seat* seat, uint64_t tag, uint64_t mine) noexcept {
  if (seat == nullptr || head.closed.load(std::memory_order_relaxed) != 0 ||
      seat->word.load(std::memory_order_relaxed) != mine) [[unlikely]] {
    return false;
  }
  uint64_t now = seat->permits.load(std::memory_order_relaxed);
  if ((now & kTagMask) != tag || (now & kTakenMask) == 0 || (now & kIdleMask) == kIdleMask) [[unlikely]]
    return false;
  // SYNC POINT: a full barrier before the look at the bell: a process that wants a permit listens first, then looks at
  // the seats, so it finds the idle permit, or is woken.
  if (!seat->permits.compare_exchange_strong(now, now + kIdle - kTaken, std::memory_order_seq_cst)) return false;
  ring(head.go, 1);
  return true;
}

// HOT: events. Bit 0: set; the other bits count how often it was set.
inline bool event_is_set(const Head& head) noexcept {
  return (head.word.load(std::memory_order_acquire) & 1) != 0;
}
void set_event(Head& head) noexcept;
void clear_event(Head& head) noexcept;

// The parts of step(), by kind.
Outcome step_lock(const Object& object, Call& call, World& world) noexcept;
Outcome step_event(const Object& object, Call& call) noexcept;
Outcome step_semaphore(const Object& object, Call& call, World& world) noexcept;
Outcome step_barrier(const Object& object, Call& call, World& world) noexcept;
Outcome step_queue(const Object& object, Call& call, World& world) noexcept;

}  // namespace weft::sync
