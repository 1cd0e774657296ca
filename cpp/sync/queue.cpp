// cpp/sync/queue.cpp: queues: bounded rings of records, for many producers and many consumers, first in, first out.
//
// Each position between head and tail has a record. put() writes the record into the slot of the tail, marks the slot
// as full, and moves the tail; get() copies the record of the head, and moves the head. A record longer than
// kCopyUnderGuard is copied without the guard: meanwhile its slot names the process that copies.
//   Killed while it writes:  the slot is still marked as being written, and get() steps over it: such a record is never
//                            delivered.
//   Killed while it reads:   the record is lost with the process that had taken it.
#include <algorithm>
#include <cstring>

#include "sync/layout.hpp"

namespace weft::sync {

namespace {

constexpr int kDeadPerStep = 16;  // slots of dead producers that one call steps over

class Queue {
 public:
  Queue(const Object& object, Call& call, World& world) noexcept
      : object_(object), body_(queue_of(object)), call_(call), world_(world) {}

  [[nodiscard]] uint64_t size() const noexcept {
    const uint64_t head = body_.head.load(std::memory_order_seq_cst);  // first: without the guard both may grow
    return std::min(body_.tail.load(std::memory_order_seq_cst) - head, object_.n);
  }

  // The free slot at the tail. Requires the guard.
  Outcome find_room(uint64_t* found) noexcept {
    const uint64_t tail = body_.tail.load(std::memory_order_relaxed);
    if (tail - body_.head.load(std::memory_order_relaxed) >= object_.n) return Outcome::again;
    *found = tail % object_.n;
    const uint64_t state = slot_of(object_, *found).state.load(std::memory_order_acquire);
    // Not free: a consumer still copies the record of the lap before, or a producer was killed before it moved the
    // tail.
    if ((state & kSlotStates) == kSlotReading && !(call_.look && world_.gone(who_of(state)))) return Outcome::again;
    return Outcome::done;
  }
  [[nodiscard]] uint64_t tail() const noexcept { return body_.tail.load(std::memory_order_relaxed); }
  void move_tail() noexcept {
    body_.tail.store(body_.tail.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);  // the commit
  }
  void move_head() noexcept {
    body_.head.store(body_.head.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);  // the commit
  }
  // Notes that the caller copies a slot's record without the guard. For a caller that copies by itself (reserve,
  // claim), value is the slot, and value2 the place of its record in the object.
  void name(uint64_t index, uint64_t as) noexcept {
    Slot& slot = slot_of(object_, index);
    slot.token.store(call_.token, std::memory_order_relaxed);
    slot.state.store(holder_word(call_.who, call_.for_other) | as, std::memory_order_release);
    call_.value = index;
    call_.value2 = static_cast<uint64_t>(record_of(slot) - reinterpret_cast<std::byte*>(object_.head));
  }

  // The full slot at the head; steps over slots of dead producers. Requires the guard.
  Outcome find_record(uint64_t* found) noexcept {
    for (int i = 0; i < kDeadPerStep; ++i) {
      if (size() == 0) return Outcome::again;
      *found = body_.head.load(std::memory_order_relaxed) % object_.n;
      Slot& slot = slot_of(object_, *found);
      // SYNC POINT: acquire pairs with the release in note(): the record is visible.
      const uint64_t state = slot.state.load(std::memory_order_acquire);
      if (state == kSlotFull) return Outcome::done;
      if ((state & kSlotStates) == kSlotWriting && !(call_.look && world_.gone(who_of(state)))) return Outcome::again;
      slot.state.store(kSlotFree, std::memory_order_relaxed);  // killed while it wrote, or between two stores of get()
      move_head();
      freed_ = true;
    }
    return Outcome::again;
  }

  // A slot that this caller copies, by the number that reserve or claim gave. Not under the guard: nobody else changes
  // the slot meanwhile.
  [[nodiscard]] Slot* own_slot(uint64_t as) noexcept {
    if (call_.a >= object_.n) return nullptr;
    Slot& slot = slot_of(object_, call_.a);
    if (slot.state.load(std::memory_order_relaxed) != (holder_word(call_.who, call_.for_other) | as) ||
        (call_.for_other && slot.token.load(std::memory_order_relaxed) != call_.token)) {
      return nullptr;
    }
    return &slot;
  }
  // Makes the record of a slot that was claimed the first again. Requires the guard.
  Outcome unclaim(Slot& slot, uint64_t index) noexcept {
    const uint64_t head = body_.head.load(std::memory_order_relaxed);
    if (head == 0 || (head - 1) % object_.n != index || size() >= object_.n) return Outcome::again;
    slot.state.store(kSlotFull, std::memory_order_release);
    body_.head.store(head - 1, std::memory_order_seq_cst);  // the commit
    return Outcome::done;
  }
  // The free slot before the head. Requires the guard.
  Outcome find_room_before(uint64_t* found) noexcept {
    const uint64_t head = body_.head.load(std::memory_order_relaxed);
    if (head == 0 || size() >= object_.n) return Outcome::again;
    *found = (head - 1) % object_.n;
    const uint64_t state = slot_of(object_, *found).state.load(std::memory_order_acquire);
    return (state & kSlotStates) == kSlotReading ? Outcome::again : Outcome::done;
  }
  void move_head_back() noexcept {
    body_.head.store(body_.head.load(std::memory_order_relaxed) - 1, std::memory_order_seq_cst);  // the commit
  }
  // Frees the slot of a record, by the position and the number of its put. False: the record is there no more. Requires
  // the guard.
  bool unput(uint64_t position, uint64_t number) noexcept {
    const uint64_t head = body_.head.load(std::memory_order_relaxed), tail = body_.tail.load(std::memory_order_relaxed);
    if (position - head >= tail - head || tail - head > object_.n) return false;
    Slot& slot = slot_of(object_, position % object_.n);
    if (slot.state.load(std::memory_order_relaxed) != kSlotFull ||
        slot.token.load(std::memory_order_relaxed) != number) {
      return false;
    }
    slot.state.store(kSlotFree, std::memory_order_relaxed);  // between two records: get() steps over it
    if (position + 1 == tail) {
      body_.tail.store(position, std::memory_order_seq_cst);
    } else if (position == head) {
      move_head();
    }
    return true;
  }
  // Gives back the slots that a process with a lost NIC had in hand. Requires the guard. Slots that were never used are
  // not touched, so that their memory stays unallocated.
  void forget(uint64_t mine) noexcept {
    const uint64_t tail = body_.tail.load(std::memory_order_relaxed);
    for (uint64_t i = 0; i < object_.n && i < tail; ++i) {
      Slot& slot = slot_of(object_, (tail - 1 - i) % object_.n);
      const uint64_t state = slot.state.load(std::memory_order_relaxed);
      if ((state & ~kSlotStates) != mine || slot.token.load(std::memory_order_relaxed) != call_.token) continue;
      // Neither state is kSlotFull: get() steps over the slot, put() uses it.
      if ((state & kSlotStates) == kSlotWriting || (state & kSlotStates) == kSlotReading) {
        slot.state.store(kSlotFree, std::memory_order_release);
        freed_ = true;
      }
    }
  }
  [[nodiscard]] bool freed() const noexcept { return freed_; }

 private:
  const Object& object_;
  QueueBody& body_;
  Call& call_;
  World& world_;
  bool freed_ = false;
};

// Number of sleepers that one record, or one free slot, wakes: all, if sleepers may have found this slot in their way
// and slept again.
int woken(bool was_in_the_way) noexcept {
  return was_in_the_way ? INT_MAX : 1;
}

Outcome put(const Object& object, Call& call, World& world, Queue& queue, bool reserve) noexcept {
  const uint64_t bytes = reserve ? call.a : call.in_bytes, type = reserve ? call.b : call.a;
  if (bytes > object.item) {
    call.value = object.item;
    return Outcome::too_long;
  }
  const bool under_guard = !reserve && bytes <= kCopyUnderGuard;
  uint64_t at = 0;
  {
    Guard guard(*object.head, call, world);
    if (!guard.held()) return Outcome::busy;
    const uint64_t position = queue.tail();
    if (const Outcome found = queue.find_room(&at); found != Outcome::done) return found;
    Slot& slot = slot_of(object, at);
    slot.length.store(bytes, std::memory_order_relaxed);
    slot.type.store(type, std::memory_order_relaxed);
    if (under_guard) {
      slot.token.store(call.b, std::memory_order_relaxed);
      call.value = position;
      if (bytes != 0) std::memcpy(record_of(slot), call.in, bytes);
      // SYNC POINT: release pairs with the acquire in find_record(): the record is visible.
      slot.state.store(kSlotFull, std::memory_order_release);
    } else {
      queue.name(at, kSlotWriting);
    }
    queue.move_tail();
  }
  if (reserve) return Outcome::done;
  if (!under_guard) {
    Slot& slot = slot_of(object, at);
    std::memcpy(record_of(slot), call.in, bytes);
    slot.state.store(kSlotFull, std::memory_order_seq_cst);  // SYNC POINT: as above; and before the look at the bell
  }
  ring(object.head->go, woken(!under_guard));
  call.changed = true;
  return Outcome::done;
}

Outcome get(const Object& object, Call& call, World& world, Queue& queue, bool claim) noexcept {
  Outcome outcome;
  uint64_t at = 0;
  bool copied = false;
  {
    Guard guard(*object.head, call, world);
    if (!guard.held()) return Outcome::busy;
    outcome = queue.find_record(&at);
    if (outcome == Outcome::done) {
      Slot& slot = slot_of(object, at);
      call.length = slot.length.load(std::memory_order_relaxed);
      call.value3 = slot.type.load(std::memory_order_relaxed);
      if (call.length > object.item) return Outcome::damaged;
      if (!claim && call.length > call.out_bytes) {
        call.value = call.length;
        return Outcome::too_long;  // the record stays
      }
      copied = !claim && call.length <= kCopyUnderGuard;
      if (copied) {
        if (call.length != 0) std::memcpy(call.out, record_of(slot), call.length);
        slot.state.store(kSlotFree, std::memory_order_release);
      } else {
        queue.name(at, kSlotReading);
        call.state = call.length;
      }
      queue.move_head();
    }
  }
  if (outcome == Outcome::done && !claim && !copied) {
    Slot& slot = slot_of(object, at);
    std::memcpy(call.out, record_of(slot), call.length);
    slot.state.store(kSlotFree, std::memory_order_seq_cst);  // before the look at the bell
  }
  if (queue.freed() || (outcome == Outcome::done && !claim)) {
    ring(object.head->room, woken(queue.freed() || !copied));
    call.changed = true;
  }
  return outcome;
}

// Under the guard, whatever its length: no other process may find the slot half written, and this is rare.
Outcome put_back(const Object& object, Call& call, World& world, Queue& queue) noexcept {
  if (call.in_bytes > object.item) {
    call.value = object.item;
    return Outcome::too_long;
  }
  {
    Guard guard(*object.head, call, world);
    if (!guard.held()) return Outcome::busy;
    uint64_t at = 0;
    if (const Outcome found = queue.find_room_before(&at); found != Outcome::done) return found;
    Slot& slot = slot_of(object, at);
    slot.length.store(call.in_bytes, std::memory_order_relaxed);
    slot.type.store(call.a, std::memory_order_relaxed);
    slot.token.store(0, std::memory_order_relaxed);
    if (call.in_bytes != 0) std::memcpy(record_of(slot), call.in, call.in_bytes);
    slot.state.store(kSlotFull, std::memory_order_release);
    queue.move_head_back();
  }
  ring(object.head->go);
  call.changed = true;
  return Outcome::done;
}

// The record of a slot that was claimed and not read becomes the first again, by a copy under the guard as in
// put_back().
Outcome unclaim(const Object& object, Call& call, World& world, Queue& queue) noexcept {
  bool copied = false;
  {
    Guard guard(*object.head, call, world);
    if (!guard.held()) return Outcome::busy;
    Slot* slot = queue.own_slot(kSlotReading);
    if (slot == nullptr) return Outcome::not_holder;
    Outcome found = queue.unclaim(*slot, call.a);
    if (found == Outcome::again && call.b == 2) {
      uint64_t at = 0;
      found = queue.find_room_before(&at);
      if (found == Outcome::done) {
        Slot& to = slot_of(object, at);
        const uint64_t bytes = slot->length.load(std::memory_order_relaxed);
        if (bytes > object.item) return Outcome::damaged;
        to.length.store(bytes, std::memory_order_relaxed);
        to.type.store(slot->type.load(std::memory_order_relaxed), std::memory_order_relaxed);
        if (bytes != 0 && &to != slot) std::memcpy(record_of(to), record_of(*slot), bytes);
        to.state.store(kSlotFull, std::memory_order_release);
        queue.move_head_back();
        if (&to != slot) slot->state.store(kSlotFree, std::memory_order_seq_cst);
        copied = true;
      }
    }
    if (found != Outcome::done) return found;
  }
  ring(object.head->go);
  if (copied) ring(object.head->room);
  call.changed = true;
  return Outcome::done;
}

}  // namespace

Outcome step_queue(const Object& object, Call& call, World& world) noexcept {
  Queue queue(object, call, world);
  switch (call.op) {
    case Op::put:
      return put(object, call, world, queue, false);
    case Op::reserve:
      return put(object, call, world, queue, true);
    case Op::get:
      return get(object, call, world, queue, false);
    case Op::claim:
      return get(object, call, world, queue, true);
    case Op::commit:
    case Op::free_slot: {
      if (call.op == Op::free_slot && call.b != 0) return unclaim(object, call, world, queue);
      const bool commits = call.op == Op::commit;
      Slot* slot = queue.own_slot(commits ? kSlotWriting : kSlotReading);
      const bool abandons = slot == nullptr && !commits;
      if (abandons) slot = queue.own_slot(kSlotWriting);  // get() steps over it
      if (slot == nullptr) return Outcome::not_holder;
      slot->state.store(commits ? kSlotFull : kSlotFree, std::memory_order_seq_cst);
      ring(commits || abandons ? object.head->go : object.head->room, woken(true));
      call.changed = true;
      return Outcome::done;
    }
    case Op::put_back:
      return put_back(object, call, world, queue);
    case Op::unput: {
      {
        Guard guard(*object.head, call, world);
        if (!guard.held()) return Outcome::busy;
        if (!queue.unput(call.a, call.b)) return Outcome::not_holder;
      }
      ring(object.head->room);
      call.changed = true;
      return Outcome::done;
    }
    case Op::look:
      call.value = queue.size();
      return Outcome::done;
    case Op::gone: {
      {
        Guard guard(*object.head, call, world);
        if (!guard.held()) return Outcome::busy;
        queue.forget(holder_word(call.who, call.for_other));
      }
      if (queue.freed()) {
        ring(object.head->go);
        ring(object.head->room);
        call.changed = true;
      }
      return Outcome::done;
    }
    default:
      return Outcome::damaged;
  }
}

}  // namespace weft::sync
