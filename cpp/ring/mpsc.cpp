// cpp/ring/mpsc.cpp: the slow paths of the ring (holes, laps, corruption) and its set-up. See mpsc.hpp.
#include "ring/mpsc.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <new>

namespace weft::ring {

using detail::Header;
using detail::kLapMask;
using detail::lap_of;
using detail::make_state;
using detail::Phase;
using detail::phase_of;
using detail::producer_of;
using detail::Slot;

namespace {

/// a - b on the 46-bit circle of laps, as a signed number.
int64_t lap_distance(uint64_t a, uint64_t b) noexcept {
  return static_cast<int64_t>((a - b) << 18) >> 18;
}

bool good_count(uint32_t slot_count) noexcept {
  return slot_count >= kSlotCountMin && slot_count <= kSlotCountMax && std::has_single_bit(slot_count);
}

bool good_memory(std::span<std::byte> memory) noexcept {
  return memory.size() >= sizeof(Header) && reinterpret_cast<uintptr_t>(memory.data()) % kCacheLine == 0;
}

}  // namespace

// ---- producer ------------------------------------------------------------------------------------------------------

/// The tail was behind, or the ring is full, or the slot is a hole from the lap before. Each turn moves one ticket
/// forward, claims or gives up; turns_max ends the loop when another process keeps overwriting the tail.
Claim MpscProducer::try_claim_slow() noexcept {
  const uint64_t turns_max = 4 * (mask_ + 1) + 64;
  for (uint64_t turn = 0; turn < turns_max; ++turn) {
    uint64_t ticket = header_->tail.load(std::memory_order_relaxed);
    const uint64_t lap = (ticket >> shift_) & kLapMask;
    Slot& slot = slots_[ticket & mask_];
    uint64_t state = slot.state.load(std::memory_order_relaxed);
    const int64_t ahead = lap_distance(lap_of(state), lap);
    if (ahead == 0 && phase_of(state) == Phase::free) {
      const uint64_t claimed = make_state(lap, id_, Phase::claimed);
      // SYNC POINT: as in try_claim.
      if (slot.state.compare_exchange_strong(state, claimed, std::memory_order_acquire, std::memory_order_relaxed)) {
        header_->tail.compare_exchange_strong(ticket, ticket + 1, std::memory_order_release, std::memory_order_relaxed);
        return {&slot, claimed};
      }
      continue;
    }
    if (ahead < 0) {
      // The slot has been in use since an earlier lap. If the consumer's scan has passed that ticket, the slot is a
      // hole: step over it. Otherwise the ring is full. So the tail is never more than one ring ahead of the consumer.
      if (phase_of(state) == Phase::free) return {};
      // SYNC POINT: acquire pairs with the release of head_hint: if the slot was freed before the scan went on, the
      // second load of its state shows that. Without the second load a producer would step over a slot freed between
      // the two loads, and the consumer, which has no hole there, would wait for that ticket without end.
      if (static_cast<int64_t>(header_->head_hint.load(std::memory_order_acquire) - ticket + mask_) < 0) return {};
      if (slot.state.load(std::memory_order_relaxed) != state) continue;
    }
    // A producer has claimed the slot and not moved the tail (it may be dead), or the slot was taken and freed since,
    // or it is a hole: move the tail for it.
    header_->tail.compare_exchange_strong(ticket, ticket + 1, std::memory_order_release, std::memory_order_relaxed);
  }
  return {};
}

std::optional<MpscProducer> MpscProducer::attach(std::span<std::byte> memory, uint32_t slot_count,
                                                 uint16_t id) noexcept {
  if (!good_memory(memory) || !good_count(slot_count) || memory.size() < ring_bytes(slot_count)) return std::nullopt;
  return MpscProducer(reinterpret_cast<Header*>(memory.data()), slot_count, id);
}

MpscProducer::MpscProducer(Header* header, uint32_t slot_count, uint16_t id) noexcept
    : header_(header),
      slots_(detail::slots_of(header)),
      mask_(slot_count - 1),
      shift_(static_cast<uint32_t>(std::countr_zero(slot_count))),
      id_(id) {}

// ---- consumer: looking ---------------------------------------------------------------------------------------------

MpscConsumer::Found MpscConsumer::find() noexcept {
  if (!holes_.empty()) {
    const Found found = find_in_holes();
    if (found.status != PollStatus::empty) return found;
  }
  return find_at_head();
}

/// Finds the oldest published hole whose producer has no older hole still open, and closes abandoned holes on the way.
/// If it finds none, every hole is either unpublished or held back.
MpscConsumer::Found MpscConsumer::find_in_holes() noexcept {
  Found found;
  size_t marked = 0;
  for (size_t i = 0; i < holes_.size();) {
    const Hole hole = holes_[i];
    Slot& slot = slots_[hole.ticket & mask_];
    const uint64_t lap = lap_at(hole.ticket);
    const uint64_t state = slot.state.load(std::memory_order_acquire);  // SYNC POINT: as in poll_in_place.
    const bool ours = lap_of(state) == lap && producer_of(state) == hole.producer && phase_of(state) != Phase::free;
    if (!ours) {
      found.status = corrupt(Corruption::What::state, slot, state, make_state(lap, hole.producer, Phase::claimed));
      release({PollStatus::corrupt, hole.ticket, state, static_cast<int64_t>(i)});
      break;
    }
    if (phase_of(state) == Phase::skip) {
      ++statistics_.skipped;
      release({PollStatus::empty, hole.ticket, state, static_cast<int64_t>(i)});
      continue;
    }
    if (phase_of(state) == Phase::full && !is_blocked(hole.producer)) {
      found = {PollStatus::message, hole.ticket, state, static_cast<int64_t>(i)};
      break;
    }
    blocked_bits_[hole.producer / 64] |= uint64_t{1} << hole.producer % 64;
    marked = ++i;
  }
  for (size_t i = 0; i < std::min(marked, holes_.size()); ++i) blocked_bits_[holes_[i].producer / 64] = 0;
  return found;
}

/// Scans from the head past claimed slots and known holes to the first published slot. The slots it passed become holes
/// only if it finds one, so a producer that is about to publish costs nothing.
MpscConsumer::Found MpscConsumer::find_at_head() noexcept {
  const uint64_t end = head_ + mask_ + 1;
  for (uint64_t ticket = head_; ticket != end; ++ticket) {
    if (is_hole(ticket)) continue;  // from an earlier lap, still open: this ticket will be (or was) skipped
    Slot& slot = slots_[ticket & mask_];
    const uint64_t lap = lap_at(ticket);
    uint64_t state = slot.state.load(std::memory_order_acquire);  // SYNC POINT: as in poll_in_place.
    const bool free = state == make_state(lap, 0, Phase::free);
    if (!free && lap_of(state) == lap && phase_of(state) == Phase::claimed) continue;
    if (free) {
      // No producer claimed the ticket: either none has reached it yet, or they skipped it while the slot was a hole.
      if (ticket >= skip_check_until_ || header_->tail.load(std::memory_order_relaxed) <= ticket) return {};
      // Skipped: close the ticket, unless a producer with an old view of the tail claims it at this moment.
      if (!slot.state.compare_exchange_strong(state, make_state((lap + 1) & kLapMask, 0, Phase::free),
                                              std::memory_order_acq_rel))
        return {};  // that producer publishes the ticket and rings the doorbell
      ++statistics_.tickets_closed;
    }
    for (uint64_t passed = head_; passed != ticket; ++passed)
      if (!is_hole(passed))
        open_hole(passed, producer_of(slots_[passed & mask_].state.load(std::memory_order_relaxed)));
    head_ = ticket;
    publish_head();
    if (free) {
      ++head_;
      continue;
    }
    if (lap_of(state) != lap || phase_of(state) == Phase::free) {
      const PollStatus status = corrupt(Corruption::What::state, slot, state, make_state(lap, 0, Phase::free));
      release({status, ticket, state, -1});
      return {status, ticket, state, -1};
    }
    if (phase_of(state) == Phase::skip) {
      ++statistics_.skipped;
      release({PollStatus::empty, ticket, state, -1});
      continue;
    }
    // Published. If its producer has an older unpublished message (a hole), the message becomes a hole and waits.
    const bool held_back = std::any_of(holes_.begin(), holes_.end(),
                                       [&](const Hole& hole) { return hole.producer == producer_of(state); });
    if (!held_back) return {PollStatus::message, ticket, state, -1};
    open_hole(ticket, producer_of(state));
    ++head_;
    publish_head();
  }
  return {};
}

/// Every ticket below the head is freed or a hole. While there are holes, try_claim_slow() needs the position.
void MpscConsumer::publish_head() noexcept {
  // SYNC POINT: a producer that sees this position sees the frees of all tickets below the head.
  if (!holes_.empty()) header_->head_hint.store(head_, std::memory_order_release);
}

/// Frees a slot whose message was taken or dropped, for the next ticket that the scan will reach.
void MpscConsumer::release(const Found& found) noexcept {
  Slot& slot = slots_[found.ticket & mask_];
  assert(taken_unfreed_ == 0 && "find() frees the batch first: slots are freed in order");
  if (found.hole < 0) {
    free_slot(slot, lap_at(found.ticket) + 1);
    head_ = found.ticket + 1;
    return;
  }
  remove_hole(static_cast<size_t>(found.hole));
  // The first ticket of this slot at or after the head: the scan would never see a claim with an older ticket.
  const uint64_t next = head_ + ((found.ticket - head_) & mask_);
  skip_check_until_ = std::max(skip_check_until_, next + 1);
  free_slot(slot, lap_at(next));
}

void MpscConsumer::open_hole(uint64_t ticket, uint16_t producer) noexcept {
  assert(!is_hole(ticket) && holes_.size() <= mask_ && "a slot is one hole at most");
  holes_.push_back({ticket, producer});  // never more than slot_count: capacity is there
  hole_bits_[(ticket & mask_) / 64] |= uint64_t{1} << (ticket & mask_) % 64;
  ++statistics_.holes_opened;
}

void MpscConsumer::remove_hole(size_t index) noexcept {
  assert(index < holes_.size() && is_hole(holes_[index].ticket) && "the hole is open");
  const uint64_t slot = holes_[index].ticket & mask_;
  hole_bits_[slot / 64] &= ~(uint64_t{1} << slot % 64);
  holes_.erase(holes_.begin() + static_cast<std::ptrdiff_t>(index));
}

/// empty() when one word does not give the answer. Returns false for everything that poll() would act on.
bool MpscConsumer::empty_slow() const noexcept {
  for (const Hole& hole : holes_) {
    const uint64_t state = slots_[hole.ticket & mask_].state.load(std::memory_order_acquire);
    if (state == make_state(lap_at(hole.ticket), hole.producer, Phase::claimed)) continue;
    // A published message that an older claim of the same producer holds back counts as absent.
    const bool held_back = phase_of(state) == Phase::full && std::any_of(&holes_[0], &hole, [&](const Hole& older) {
                             return older.producer == hole.producer;
                           });
    if (!held_back) return false;
  }
  for (uint64_t ticket = head_; ticket != head_ + mask_ + 1; ++ticket) {
    if (is_hole(ticket)) continue;
    const uint64_t state = slots_[ticket & mask_].state.load(std::memory_order_acquire);
    const uint64_t lap = lap_at(ticket);
    if (lap_of(state) == lap && phase_of(state) == Phase::claimed) continue;
    if (state == make_state(lap, 0, Phase::free))
      return ticket >= skip_check_until_ || header_->tail.load(std::memory_order_relaxed) <= ticket;
    return false;
  }
  return true;
}

// ---- consumer: the dead and the broken -----------------------------------------------------------------------------

PollStatus MpscConsumer::audit() noexcept {
  free_taken();
  const uint64_t size = mask_ + 1;
  PollStatus status = PollStatus::empty;
  // Only this consumer writes its position, and the position never decreases.
  if (const uint64_t hint = header_->head_hint.load(std::memory_order_relaxed); hint > head_) [[unlikely]] {
    header_->head_hint.store(head_, std::memory_order_release);
    status = corrupt(Corruption::What::head, slots_[head_ & mask_], hint, head_);
  }
  // The tail is at most one ring ahead of the scan. It is at most one ticket behind the scan (a producer died before it
  // moved the tail) or, past holes, one ring.
  // SYNC POINT: acquire pairs with the release that moves the tail: the claims of the tickets below it are visible.
  const uint64_t tail = header_->tail.load(std::memory_order_acquire);
  if (static_cast<int64_t>(tail - head_) > static_cast<int64_t>(size) ||
      static_cast<int64_t>(head_ - tail) > static_cast<int64_t>(size + 1)) {
    header_->tail.store(head_, std::memory_order_relaxed);
    return corrupt(Corruption::What::tail, slots_[head_ & mask_], tail, head_);
  }
  // A ticket below the tail was claimed before the tail moved past it, or skipped. If its slot is free nevertheless, a
  // process has overwritten the slot or the tail. The scan then closes the tickets up to the tail, because it would
  // otherwise wait for the first of them without end.
  if (tail > head_ && head_ >= skip_check_until_) {
    const Slot& slot = slots_[head_ & mask_];
    const uint64_t state = slot.state.load(std::memory_order_acquire);
    if (state == make_state(lap_at(head_), 0, Phase::free)) [[unlikely]] {
      skip_check_until_ = tail;
      status = corrupt(Corruption::What::tail, slot, tail, head_);
    }
  }
  return status;
}

PollStatus MpscConsumer::audit_slots() noexcept {
  free_taken();
  for (uint64_t ticket = head_; ticket != head_ + mask_ + 1; ++ticket) {
    if (is_hole(ticket)) continue;  // each poll checks the holes
    const Slot& slot = slots_[ticket & mask_];
    const uint64_t state = slot.state.load(std::memory_order_acquire);
    if (lap_of(state) != lap_at(ticket)) [[unlikely]]
      return corrupt(Corruption::What::state, slot, state, make_state(lap_at(ticket), 0, Phase::free));
  }
  return PollStatus::empty;
}

PollStatus MpscConsumer::corrupt(Corruption::What what, const Slot& slot, uint64_t found, uint64_t expected) noexcept {
  corruption_ = {what, static_cast<uint32_t>(&slot - slots_), found, expected};
  ++statistics_.corruptions;
  return PollStatus::corrupt;
}

RingStatistics MpscConsumer::statistics() const noexcept {
  RingStatistics now = statistics_;
  now.taken = taken_;
  now.holes = static_cast<uint32_t>(holes_.size());
  return now;
}

#if !defined(NDEBUG)
void MpscConsumer::check() const {
  assert(taken_unfreed_ < free_batch_max_ && "a full batch is freed");
  assert(holes_.size() <= mask_ + 1 && holes_.capacity() >= mask_ + 1 && "open_hole() allocates nothing");
  size_t bits = 0;
  for (const uint64_t word : hole_bits_) bits += static_cast<size_t>(std::popcount(word));
  assert(bits == holes_.size() && "a hole has one bit, and a bit one hole");
  for (size_t i = 0; i < holes_.size(); ++i) {
    assert(is_hole(holes_[i].ticket) && holes_[i].ticket < head_ && "the scan has passed a hole");
    assert((i == 0 || holes_[i - 1].ticket < holes_[i].ticket) && "holes lie in the order of their tickets");
  }
  for (const uint64_t word : blocked_bits_) assert(word == 0 && "producers are blocked inside a search only");
}
#endif

// ---- consumer: set-up ----------------------------------------------------------------------------------------------

std::optional<MpscConsumer> MpscConsumer::create(std::span<std::byte> memory, uint32_t slot_count,
                                                 uint64_t first_ticket) {
  if (!good_memory(memory) || !good_count(slot_count) || memory.size() < ring_bytes(slot_count)) return std::nullopt;
  auto* header = new (memory.data()) Header{};
  auto* slots = detail::slots_of(header);
  const auto shift = static_cast<uint32_t>(std::countr_zero(slot_count));
  for (uint64_t ticket = first_ticket; ticket != first_ticket + slot_count; ++ticket) {
    auto* slot = new (&slots[ticket & (slot_count - 1)]) Slot{};
    slot->state.store(make_state((ticket >> shift) & kLapMask, 0, Phase::free), std::memory_order_relaxed);
  }
  header->tail.store(first_ticket, std::memory_order_relaxed);
  header->head_hint.store(first_ticket, std::memory_order_relaxed);
  header->slot_count = slot_count;
  header->slot_bytes = kSlotBytes;
  header->magic = detail::kMagic;
  return MpscConsumer(header, slot_count, first_ticket);
}

MpscConsumer::MpscConsumer(Header* header, uint32_t slot_count, uint64_t first_ticket)
    : header_(header),
      slots_(detail::slots_of(header)),
      mask_(slot_count - 1),
      shift_(static_cast<uint32_t>(std::countr_zero(slot_count))),
      free_batch_(std::clamp(slot_count / 16, 1u, kFreeBatch)),
      free_batch_max_(std::clamp(slot_count / 16, 1u, kFreeBatchMax)),
      head_(first_ticket),
      hole_bits_((slot_count + 63) / 64),
      blocked_bits_(65536 / 64) {
  holes_.reserve(slot_count);
}

}  // namespace weft::ring
