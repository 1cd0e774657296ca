// cpp/ring/mpsc.hpp: bounded multi-producer single-consumer ring in shared memory, robust against producers that die.
// Callers: MpscProducer in any process that maps the memory, any thread; MpscConsumer in one process, calls serialized.
// Progress: producers lock-free; the consumer never waits for a producer. Preemption or death of a producer between
//           try_claim and publish delays that one slot: the consumer takes later slots, producers step over it.
// Ordering: messages of one producer id arrive in the order of their claims. Producers are not ordered with each other.
// Limits: a producer that holds a claim holds back its own later messages. A message is at most 240 bytes.
// Trust: the consumer checks every shared word against its private state and refuses wrong words
//        (PollStatus::corrupt); it copies a message out before it reads it. A producer that misuses the ring can lose
//        or forge messages of others in the same ring (it can write the memory), but cannot crash the consumer.
// Source: DESIGN.md "The NIC": rings; the claim follows the idea of per-slot sequence words with helping on the tail.
//
// How it works. Ticket t (0, 1, 2 ...) is slot t % N in lap t / N. A slot's state word holds lap, producer id, phase:
//
//     FREE(lap) --claim: CAS--> CLAIMED(lap, id) --publish: store--> FULL(lap, id) --consumer: store--> FREE(lap + 1)
//                                                \--abandon: store--> SKIP(lap, id) --/
//
// The claim is the one CAS on the slot; `tail` is only a hint of the next ticket, and every producer may move it past a
// claimed slot, so a producer that dies between the two blocks no other. When the consumer finds a claimed slot with a
// published slot behind it, it records the claimed slot as a *hole* (private list, at most N) and goes on. It publishes
// its position (`head_hint`) only while it has holes: from the position a producer that finds a slot still claimed from
// the lap before learns whether that slot is a hole, to be skipped, or the ring is full.
//
// Two short cuts for latency. A producer moves the tail behind the publication, so that the move is also the fence
// before the doorbell. The consumer frees the slots that it took at the head in batches: when it finds no message, so
// that the stores, to lines that producers' cores hold, do not delay a message that has arrived; at the latest when a
// sixteenth of the ring waits to be freed. Until a batch is freed, producers see its slots as full. Only producers do,
// because every step that looks at more than the head, or publishes the position, frees the batch first.
#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define WEFT_RING_NO_FENCES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEFT_RING_NO_FENCES 1
#endif
#endif

namespace weft::ring {

inline constexpr size_t kCacheLine = 64;
inline constexpr size_t kSlotBytes = 256;  // 4 lines: most NIC commands and small payloads in one slot
inline constexpr size_t kPayloadBytes = kSlotBytes - 16;
inline constexpr uint32_t kSlotCountMin = 2;
inline constexpr uint32_t kSlotCountMax = 1U << 20;

namespace detail {

enum class Phase : uint64_t { free = 0, claimed = 1, full = 2, skip = 3 };

/// State word: lap in bits 18..63 (46 bits: 2^46 laps are more than a century at 10^9 messages a second and N >= 2^6),
/// producer id in bits 2..17, phase in bits 0..1.
constexpr uint64_t make_state(uint64_t lap, uint16_t producer, Phase phase) noexcept {
  return lap << 18 | static_cast<uint64_t>(producer) << 2 | static_cast<uint64_t>(phase);
}
constexpr uint64_t lap_of(uint64_t state) noexcept {
  return state >> 18;
}
constexpr uint16_t producer_of(uint64_t state) noexcept {
  return static_cast<uint16_t>(state >> 2);
}
constexpr Phase phase_of(uint64_t state) noexcept {
  return static_cast<Phase>(state & 3);
}
inline constexpr uint64_t kProducerMask = uint64_t{0xffff} << 2;
inline constexpr uint64_t kLapMask = (uint64_t{1} << 46) - 1;

struct alignas(kCacheLine) Slot {
  std::atomic<uint64_t> state;
  uint32_t length;  // bytes of payload used
  uint32_t kind;    // the caller's: an operation code
  std::byte payload[kPayloadBytes];
};
static_assert(sizeof(Slot) == kSlotBytes && offsetof(Slot, length) == 8 && offsetof(Slot, payload) == 16);

inline constexpr uint64_t kMagic = 0x31'67'6e'69'52'74'66'57;  // "WftRing1"

struct Header {
  alignas(kCacheLine) uint64_t magic;  // line 0: marks the memory for a person with a debugger; no program reads it
  uint32_t slot_count;
  uint32_t slot_bytes;
  alignas(kCacheLine) std::atomic<uint64_t> tail;       // line 1: next ticket, a hint; written by producers
  alignas(kCacheLine) std::atomic<uint64_t> head_hint;  // line 2: consumer's position, written only while it has holes
  alignas(kCacheLine) std::atomic<uint32_t> armed;      // line 3: 1 while the consumer wants to be woken
};
static_assert(sizeof(Header) == 4 * kCacheLine);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

inline Slot* slots_of(Header* header) noexcept {
  return reinterpret_cast<Slot*>(header + 1);
}

}  // namespace detail

/// Bytes of shared memory for a ring, 64-byte aligned.
[[nodiscard]] constexpr size_t ring_bytes(uint32_t slot_count) noexcept {
  return sizeof(detail::Header) + static_cast<size_t>(slot_count) * kSlotBytes;
}

// ---- producer
// -------------------------------------------------------------------------------------------------------------

/// A claimed slot: write the payload, then publish or abandon the claim, once. A claim dropped without either leaves a
/// hole that only producer_dead() closes. Claim is a plain value: a destructor would not run when the process dies.
class Claim {
 public:
  [[nodiscard]] explicit operator bool() const noexcept { return slot_ != nullptr; }
  [[nodiscard]] std::span<std::byte, kPayloadBytes> payload() const noexcept {
    return std::span<std::byte, kPayloadBytes>(slot_->payload);
  }

 private:
  friend class MpscProducer;
  Claim() = default;
  Claim(detail::Slot* slot, uint64_t claimed, uint64_t ticket = ~uint64_t{0}) noexcept
      : slot_(slot), claimed_(claimed), ticket_(ticket) {}
  detail::Slot* slot_ = nullptr;
  uint64_t claimed_ = 0;
  uint64_t ticket_ = ~uint64_t{0};  // no tail has this value
};

class MpscProducer {
 public:
  /// Attaches to a ring that a consumer has made in `memory`. The consumer sends `slot_count` and the producer's `id`
  /// outside the ring, because any producer may have overwritten the memory, header included, and a new producer must
  /// still be able to attach. Empty if the memory is too short or the count is not valid for a ring.
  [[nodiscard]] static std::optional<MpscProducer> attach(std::span<std::byte> memory, uint32_t slot_count,
                                                          uint16_t id) noexcept;

  /// The next free slot, or an empty Claim: the ring is full (or so contended that it is worth yielding). publish()
  /// moves the tail; until then other producers find the tail one behind and move it themselves.
  // HOT: no syscall, no allocation, no lock. Reads the tail's line, and one CAS on the slot's first line.
  [[nodiscard]] Claim try_claim() noexcept {
    const uint64_t ticket = header_->tail.load(std::memory_order_relaxed);
    detail::Slot& slot = slots_[ticket & mask_];
    const uint64_t lap = (ticket >> shift_) & detail::kLapMask;
    uint64_t expected = detail::make_state(lap, 0, detail::Phase::free);
    const uint64_t claimed = detail::make_state(lap, id_, detail::Phase::claimed);
    // SYNC POINT: acquire pairs with the consumer's release of FREE: its reads of the old payload are over.
    if (slot.state.compare_exchange_strong(expected, claimed, std::memory_order_acquire, std::memory_order_relaxed))
        [[likely]] {
      return {&slot, claimed, ticket};
    }
    return try_claim_slow();
  }

  /// Makes the message visible. `length` <= 240 bytes of the payload count. The Claim is used up. True: the consumer
  /// has to be woken (eventfd, futex); exactly one of the producers that publish after an arm() gets true.
  // HOT: a release store to the slot's first line, one locked exchange on the tail's line, one load of `armed`. The
  // exchange is also the fence between the store and the load.
  bool publish(const Claim& claim, size_t length, uint32_t kind = 0) noexcept {
    assert(claim && detail::phase_of(claim.claimed_) == detail::Phase::claimed && "a claim that was made");
    claim.slot_->length = static_cast<uint32_t>(length);
    claim.slot_->kind = kind;
    // SYNC POINT: payload, length and kind are visible to a consumer that sees FULL with acquire. CLAIMED -> FULL is
    // + 1.
    claim.slot_->state.store(claim.claimed_ + 1, std::memory_order_release);
    // The tail is a hint. A failed exchange means that another producer has moved it.
    // SYNC POINT: release: a thread that sees the tail behind this ticket sees the claim (audit).
    uint64_t ticket = claim.ticket_;
#if defined(WEFT_RING_NO_FENCES)
    // The thread sanitizer does not model fences. The exchange alone is also correct (the two exchanges on `armed`
    // are totally ordered), but it would move the line between producers at every message.
    header_->tail.compare_exchange_strong(ticket, ticket + 1, std::memory_order_release, std::memory_order_relaxed);
    return header_->armed.exchange(0, std::memory_order_seq_cst) != 0;
#else
    // SYNC POINT: either this load sees armed = 1, or the consumer's check after arm() sees our FULL: publish, fence,
    // load here; exchange, fence, check there (Dekker). On x86-64 a locked instruction, successful or not, is the
    // fence.
    header_->tail.compare_exchange_strong(ticket, ticket + 1, std::memory_order_seq_cst, std::memory_order_seq_cst);
#if !defined(__x86_64__)
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
    if (header_->armed.load(std::memory_order_seq_cst) == 0) [[likely]]
      return false;
    return header_->armed.exchange(0, std::memory_order_seq_cst) != 0;
#endif
  }

  /// Gives the slot back: the consumer skips it and reports no message.
  void abandon(const Claim& claim) noexcept {
    assert(claim && "a claim that was made");
    claim.slot_->state.store(claim.claimed_ + 2, std::memory_order_release);
  }

  /// The consumer sleeps, or is about to: the next message has to wake it.
  [[nodiscard]] bool is_awaited() const noexcept { return header_->armed.load(std::memory_order_relaxed) != 0; }

  [[nodiscard]] uint16_t id() const noexcept { return id_; }
  [[nodiscard]] uint32_t slot_count() const noexcept { return static_cast<uint32_t>(mask_ + 1); }

 private:
  MpscProducer(detail::Header* header, uint32_t slot_count, uint16_t id) noexcept;
  [[gnu::noinline]] Claim try_claim_slow() noexcept;

  detail::Header* header_;
  detail::Slot* slots_;
  uint64_t mask_;
  uint32_t shift_;
  uint16_t id_;
};

// ---- consumer
// -------------------------------------------------------------------------------------------------------------

enum class PollStatus : uint8_t {
  empty,    // no message now
  message,  // a message was taken
  corrupt,  // a shared word has a value that no correct producer writes; see MpscConsumer::last_corruption. Poll again.
};

/// A message, copied out of the ring: producers can no longer change it. The producer id comes from the slot, so any
/// process that maps the ring can have forged it.
struct Message {
  uint16_t producer = 0;
  uint32_t kind = 0;
  uint32_t length = 0;
  alignas(16) std::byte payload[kPayloadBytes];
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {payload, length}; }
};

/// The word that a poll (or audit) refused, for the log. The slot has been freed and the ring still works.
struct Corruption {
  enum class What : uint8_t { none, state, length, tail, head } what = What::none;
  uint32_t slot = 0;
  uint64_t found = 0;     // the word
  uint64_t expected = 0;  // the correct value, or the limit that the word exceeds
};

struct RingStatistics {
  uint64_t taken = 0, skipped = 0, holes_opened = 0, tickets_closed = 0, corruptions = 0;
  uint32_t holes = 0;  // now
};

class MpscConsumer {
 public:
  /// Makes an empty ring in `memory`, which must be 64-byte aligned, at least ring_bytes(slot_count) long, and not yet
  /// known to any producer. slot_count: a power of two, 2 .. 2^20. Empty if one of these does not hold.
  /// first_ticket is for tests of the lap's wrap-around.
  [[nodiscard]] static std::optional<MpscConsumer> create(std::span<std::byte> memory, uint32_t slot_count,
                                                          uint64_t first_ticket = 0);

  /// Takes the next message, if there is one, into `message`.
  // HOT: no syscall, no allocation, no lock. Reads the slot's first line and as many as the payload has. Writes the
  // first lines of many slots at a time: a store to a line that the producer's core still holds would delay the locked
  // instructions behind it by one transfer of the line for each message.
  [[nodiscard]] PollStatus poll(Message& message) noexcept {
    return poll_in_place([&message](uint16_t producer, uint32_t kind, std::span<const std::byte> payload) noexcept {
      message.producer = producer;
      message.kind = kind;
      message.length = static_cast<uint32_t>(payload.size());
      if (payload.size() <= kCacheLine - 16) {
        std::memcpy(message.payload, payload.data(), kCacheLine - 16);  // the slot's first line, without a call
      } else {
        std::memcpy(message.payload, payload.data(), payload.size());
      }
    });
  }

  /// Like poll, without the copy: calls take(producer, kind, payload) before the slot is freed. take must not throw and
  /// must not call the ring.
  /// WARNING, time of check to time of use: `payload` is shared memory. A hostile or broken producer may change it
  /// while it is being read, between two reads of one field too. Copy each field once, then check the copy.
  template <class Take>
  [[nodiscard]] PollStatus poll_in_place(Take&& take) noexcept {
    if (holes_.empty()) [[likely]] {
      detail::Slot& slot = slots_[head_ & mask_];
      // SYNC POINT: pairs with the release in publish: payload, length and kind of a FULL slot are visible.
      uint64_t state = slot.state.load(std::memory_order_acquire);
      const uint64_t lap = lap_at(head_);
      // Most producers publish a claimed slot within nanoseconds: look again before the search for later messages.
      for (uint32_t i = 0;
           i < kClaimedReads && (state & ~detail::kProducerMask) == detail::make_state(lap, 0, detail::Phase::claimed);
           ++i) {
        state = slot.state.load(std::memory_order_acquire);
      }
      if ((state & ~detail::kProducerMask) == detail::make_state(lap, 0, detail::Phase::full)) [[likely]] {
        const PollStatus status = deliver(slot, state, take);
        ++head_;
        // The slots were last used a ring ago: the line behind the next one comes while this message is handled.
        __builtin_prefetch(&slots_[(head_ + 1) & mask_]);
        if (++taken_unfreed_ >= free_batch_max_) [[unlikely]]
          free_taken();
        return status;
      }
      if (state == detail::make_state(lap, 0, detail::Phase::free) && head_ >= skip_check_until_) {
        if (wants_idle()) free_taken();
        return PollStatus::empty;
      }
    }
    free_taken();
    const Found found = find();
    if (found.status != PollStatus::message) return found.status;
    detail::Slot& slot = slots_[found.ticket & mask_];
    const PollStatus status = deliver(slot, found.state, take);
    release(found);
    return status;
  }

  /// True if poll() would find nothing. A hint while producers are running; exact after arm() for sleeping.
  // HOT: one load of the head slot's first line, unless there are holes.
  [[nodiscard]] bool empty() const noexcept {
    if (holes_.empty() && head_ >= skip_check_until_) [[likely]] {
      const uint64_t state = slots_[head_ & mask_].state.load(std::memory_order_acquire);
      if (state == detail::make_state(lap_at(head_), 0, detail::Phase::free)) return true;
      if (detail::phase_of(state) != detail::Phase::claimed) return false;
    }
    return empty_slow();
  }

  /// A poll of the empty ring would free a batch of slots.
  [[nodiscard]] bool wants_idle() const noexcept { return taken_unfreed_ >= free_batch_; }

  /// Lets other threads than the consumer's check for work: there may be a message once *word differs from `free`.
  /// No word: assume that there is work, be it a batch of slots to free. Valid until the next poll.
  struct Hint {
    const std::atomic<uint64_t>* word = nullptr;
    uint64_t free = 0;
  };
  [[nodiscard]] Hint hint() const noexcept {
    if (!holes_.empty() || head_ < skip_check_until_ || wants_idle()) return {};
    return {&slots_[head_ & mask_].state, detail::make_state(lap_at(head_), 0, detail::Phase::free)};
  }

  /// Before sleeping: arm(), then check empty() again, then sleep on the doorbell only if the ring is still empty.
  /// A producer that publishes after arm() rings.
  void arm() noexcept {
    free_taken();
    header_->armed.exchange(1, std::memory_order_seq_cst);
#if !defined(WEFT_RING_NO_FENCES)
    // SYNC POINT: the loads of the following empty() come after armed = 1 is visible; see needs_doorbell.
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
  void disarm() noexcept { header_->armed.store(0, std::memory_order_relaxed); }
  [[nodiscard]] bool armed() const noexcept { return header_->armed.load(std::memory_order_relaxed) != 0; }

  /// The processes of the producers whose ids satisfy `dead(id)`, ids that were never assigned included, are gone: the
  /// consumer skips their unpublished claims and still delivers their published messages. Call it only after a death,
  /// or after the producer has said that it publishes nothing more: a living producer could still store into a slot
  /// that another has claimed since. Cost: one load a slot. Returns the slots freed.
  template <class Dead>
  size_t producers_dead(Dead&& dead) noexcept {
    size_t freed = 0;
    for (uint64_t i = 0; i <= mask_; ++i) {
      std::atomic<uint64_t>& word = slots_[i].state;
      uint64_t state = word.load(std::memory_order_relaxed);
      if (detail::phase_of(state) != detail::Phase::claimed || !dead(detail::producer_of(state))) continue;
      // To SKIP, not to FREE: the scan, or the walk over the holes, later frees the slot and updates the statistics.
      if (word.compare_exchange_strong(state, state + 2, std::memory_order_acq_rel)) ++freed;
    }
    return freed;
  }

  /// Checks the words of the header, which poll() does not read. A tail overwritten with a far larger value makes the
  /// ring look full to producers; a slightly larger one leaves tickets without claims; a larger position lets producers
  /// step over waiting messages. Returns corrupt if it repaired a word (messages may be lost), otherwise empty. Cheap;
  /// call it before sleeping and now and then.
  PollStatus audit() noexcept;
  /// Checks every slot against its lap: producers would claim a slot with an older lap for a ticket that the scan has
  /// passed, and its message would never be taken. One load a slot; call it now and then.
  PollStatus audit_slots() noexcept;
  /// Empties the ring, but for the slots that a producer whose id satisfies `may_publish` has claimed.
  template <class MayPublish>
  void reset(MayPublish&& may_publish) noexcept {
    taken_unfreed_ = 0;
    skip_check_until_ = head_;
    const auto stays = [&](uint64_t ticket) {
      const uint64_t state = slots_[ticket & mask_].state.load(std::memory_order_acquire);
      const uint16_t id = detail::producer_of(state);
      return state == detail::make_state(lap_at(ticket), id, detail::Phase::claimed) && may_publish(id);
    };
    for (size_t i = holes_.size(); i-- > 0;) {
      if (!stays(holes_[i].ticket)) remove_hole(i);
    }
    for (uint64_t ticket = head_; ticket != head_ + mask_ + 1; ++ticket) {
      if (!is_hole(ticket) && !stays(ticket)) free_slot(slots_[ticket & mask_], lap_at(ticket));
    }
    header_->head_hint.store(head_, std::memory_order_relaxed);
    header_->tail.store(head_, std::memory_order_release);
  }

  [[nodiscard]] const Corruption& last_corruption() const noexcept { return corruption_; }
  [[nodiscard]] RingStatistics statistics() const noexcept;
  [[nodiscard]] uint32_t slot_count() const noexcept { return static_cast<uint32_t>(mask_ + 1); }
#if !defined(NDEBUG)
  void check() const;  // of this object alone, whatever producers have written
#endif

 private:
  /// A slot that the scan has passed: it was claimed and not published at that time, or it was published by a producer
  /// with an older hole.
  struct Hole {
    uint64_t ticket;
    uint16_t producer;
  };
  struct Found {
    PollStatus status = PollStatus::empty;
    uint64_t ticket = 0;
    uint64_t state = 0;
    int64_t hole = -1;  // index in holes_, or -1: at the head
  };

  MpscConsumer(detail::Header* header, uint32_t slot_count, uint64_t first_ticket);

  /// Frees the slots of the messages that poll() has taken at the head. Producers see these as messages that wait, so
  /// they are freed before anything that tells producers, or checks, how far the scan is.
  void free_taken() noexcept {
    assert(taken_unfreed_ <= free_batch_max_ && "poll() frees a full batch");
    for (; taken_unfreed_ != 0; --taken_unfreed_) {
      const uint64_t ticket = head_ - taken_unfreed_;
      free_slot(slots_[ticket & mask_], lap_at(ticket) + 1);
    }
  }

  uint64_t lap_at(uint64_t ticket) const noexcept { return (ticket >> shift_) & detail::kLapMask; }

  void free_slot(detail::Slot& slot, uint64_t lap) noexcept {
    // SYNC POINT: our reads of the payload end before the next claim of this slot can begin to write.
    slot.state.store(detail::make_state(lap & detail::kLapMask, 0, detail::Phase::free), std::memory_order_release);
  }

  template <class Take>
  PollStatus deliver(detail::Slot& slot, uint64_t state, Take&& take) noexcept {
    const uint32_t length = __atomic_load_n(&slot.length, __ATOMIC_RELAXED);  // read once: it is checked, then used
    if (length > kPayloadBytes) [[unlikely]]
      return corrupt(Corruption::What::length, slot, length, kPayloadBytes);
    take(detail::producer_of(state), slot.kind, std::span<const std::byte>(slot.payload, length));
    ++taken_;
    return PollStatus::message;
  }

  [[gnu::noinline]] Found find() noexcept;
  Found find_in_holes() noexcept;
  Found find_at_head() noexcept;
  void release(const Found& found) noexcept;
  void publish_head() noexcept;
  void remove_hole(size_t index) noexcept;
  void open_hole(uint64_t ticket, uint16_t producer) noexcept;
  [[nodiscard]] bool empty_slow() const noexcept;
  [[gnu::noinline]] PollStatus corrupt(Corruption::What what, const detail::Slot& slot, uint64_t found,
                                       uint64_t expected) noexcept;
  bool is_hole(uint64_t ticket) const noexcept {
    return (hole_bits_[(ticket & mask_) / 64] >> (ticket & mask_) % 64 & 1) != 0;
  }
  bool is_blocked(uint16_t producer) const noexcept { return (blocked_bits_[producer / 64] >> producer % 64 & 1) != 0; }

  static constexpr uint32_t kClaimedReads = 64;
  static constexpr uint32_t kFreeBatch = 16, kFreeBatchMax = 64;

  detail::Header* header_;
  detail::Slot* slots_;
  uint64_t mask_;
  uint32_t shift_;
  // Slots that a poll of the empty ring frees, and that any poll frees: at most a sixteenth of the ring.
  uint32_t free_batch_, free_batch_max_;
  uint32_t taken_unfreed_ = 0;  // the last tickets below the head: taken, and their slots not freed
  uint64_t head_;               // ticket of the scan; private, so no other process can change it
  uint64_t skip_check_until_ =
      0;  // producers may have skipped tickets below this one: check the tail when such a slot is free
  uint64_t taken_ = 0;
  std::vector<Hole> holes_;             // by ticket; capacity slot_count from the start
  std::vector<uint64_t> hole_bits_;     // one bit a slot: it is in holes_
  std::vector<uint64_t> blocked_bits_;  // one bit a producer id: it has an older hole (valid inside find only)
  RingStatistics statistics_;
  Corruption corruption_;
};

}  // namespace weft::ring
