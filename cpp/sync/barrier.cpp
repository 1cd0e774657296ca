// cpp/sync/barrier.cpp: barriers: parties that wait until all have come. A party that has ended breaks the barrier if
// the barrier knows the party: because it waits here, or passed the last time.
#include "sync/layout.hpp"

namespace weft::sync {

namespace {

constexpr uint64_t kCame = 0xffffffff;
constexpr uint64_t phase_of(uint64_t state) noexcept {
  return state >> 32;
}
// Call::state of a wait: the phase in which the party came, plus 1, and its ticket.
constexpr uint64_t kTicketShift = 40;
constexpr uint32_t kTicketMask = 0xffffff;
constexpr uint64_t phase_of_wait(uint64_t state) noexcept {
  return (state & ((uint64_t{1} << kTicketShift) - 1)) - 1;
}
constexpr uint32_t ticket_of_wait(uint64_t state) noexcept {
  return static_cast<uint32_t>(state >> kTicketShift);
}

class Barrier {
 public:
  explicit Barrier(const Object& object) noexcept
      : head_(*object.head), body_(barrier_of(object)), seats_(seats_of(object)), parties_(object.n) {}

  [[nodiscard]] uint64_t state() const noexcept { return body_.state.load(std::memory_order_seq_cst); }
  [[nodiscard]] uint64_t broken() const noexcept { return body_.broken.load(std::memory_order_seq_cst); }
  // The parties that have come; a peer may have written any number.
  [[nodiscard]] uint64_t came(uint64_t state) const noexcept {
    return (state & kCame) < parties_ ? state & kCame : parties_ - 1;
  }

  // True: the last one. Requires the guard.
  bool arrive(Call& call) noexcept {
    const uint64_t now = state(), n = came(now);
    Seat& seat = seat_at(phase_of(now), n);
    seat.token.store(call.token, std::memory_order_relaxed);
    seat.word.store(holder_word(call.who, call.for_other), std::memory_order_relaxed);
    uint32_t ticket = (body_.tickets.load(std::memory_order_relaxed) + 1) & kTicketMask;
    if (ticket == 0) ticket = 1;  // 0: the seat of a party whose wait reset() has ended
    body_.tickets.store(ticket, std::memory_order_relaxed);
    seat.count.store(ticket, std::memory_order_relaxed);
    call.state = (phase_of(now) + 1) | uint64_t{ticket} << kTicketShift;
    call.value = n;
    const bool last = n + 1 == parties_;
    const uint64_t next = last ? (phase_of(now) + 1) << 32 : phase_of(now) << 32 | (n + 1);
    body_.state.store(next, std::memory_order_seq_cst);  // the commit
    return last;
  }
  // The result of a party whose phase is over: the number of its seat, or that reset() ended its wait. The seats stay
  // as they are until it comes again, unless more processes than `parties` take turns: then the number may be 0.
  Outcome passed(Call& call) noexcept {
    for (uint64_t i = 0; i < parties_; ++i) {
      if (seat_at(phase_of_wait(call.state), i).count.load(std::memory_order_relaxed) != ticket_of_wait(call.state)) {
        continue;
      }
      call.value = i;
      return Outcome::done;
    }
    call.value = 0;
    // A phase that reset() ended is the phase before the first phase since reset().
    call.value2 = body_.first.load(std::memory_order_relaxed) == ((phase_of_wait(call.state) + 1) & kCame) ? 1 : 0;
    return call.value2 != 0 ? Outcome::broken : Outcome::done;
  }
  // Takes an arrival back. Requires the guard.
  void withdraw(const Call& call) noexcept {
    const uint64_t now = state(), n = came(now);
    for (uint64_t i = n; i-- > 0;) {
      Seat& seat = seat_at(phase_of(now), i);
      if (!is_of(seat, call) || seat.count.load(std::memory_order_relaxed) != ticket_of_wait(call.state)) continue;
      const Seat& last = seat_at(phase_of(now), n - 1);
      seat.count.store(last.count.load(std::memory_order_relaxed), std::memory_order_relaxed);
      seat.token.store(last.token.load(std::memory_order_relaxed), std::memory_order_relaxed);
      seat.word.store(last.word.load(std::memory_order_relaxed), std::memory_order_relaxed);
      body_.state.store(phase_of(now) << 32 | (n - 1), std::memory_order_seq_cst);  // the commit
      return;
    }
  }
  void break_by(uint64_t pid) noexcept {
    uint64_t whole = 0;
    body_.broken.compare_exchange_strong(whole, pid + 1, std::memory_order_seq_cst);
    ring(head_.go);
  }
  // Breaks the barrier if a party has ended, or is the party that is gone.
  void look(World& world, const Call* gone) noexcept {
    const uint64_t now = state();
    find_dead(phase_of(now), came(now), world, gone);
    if (phase_of(now) > body_.first.load(std::memory_order_relaxed)) {
      find_dead(phase_of(now) - 1, parties_, world, gone);
    }
  }
  // Waiting parties get Outcome::broken. Requires the guard.
  void reset() noexcept {
    const uint64_t now = state(), n = came(now);
    const uint64_t next = n == 0 ? phase_of(now) : (phase_of(now) + 1) & kCame;
    for (uint64_t i = 0; i < n; ++i) seat_at(phase_of(now), i).count.store(0, std::memory_order_relaxed);
    body_.first.store(next, std::memory_order_relaxed);
    body_.state.store(next << 32, std::memory_order_seq_cst);
    body_.broken.store(0, std::memory_order_seq_cst);
  }

 private:
  Seat& seat_at(uint64_t phase, uint64_t i) noexcept { return seats_[(phase & 1) * parties_ + i]; }
  void find_dead(uint64_t phase, uint64_t count, World& world, const Call* gone) noexcept {
    Turn turn(body_.asked[phase & 1], count);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = turn.seat(i);
      const Seat& seat = seat_at(phase, at);
      if (gone != nullptr ? !is_of(seat, *gone) : !turn.ask(at) || !is_dead(seat, world)) continue;
      break_by(who_of(seat.word.load(std::memory_order_relaxed)).pid);
      return;
    }
  }

  Head& head_;
  BarrierBody& body_;
  Seat* seats_;
  uint64_t parties_;
};

}  // namespace

Outcome step_barrier(const Object& object, Call& call, World& world) noexcept {
  Barrier barrier(object);
  const auto broken = [&](uint64_t by) {
    call.value = by - 1;
    call.value2 = 0;
    return Outcome::broken;
  };
  // A process that was killed while it changed the barrier may have come, or left, without a trace.
  const auto held = [&](const Guard& guard) {
    if (guard.from_the_dead()) barrier.break_by(guard.dead());
    return guard.held();
  };
  switch (call.op) {
    case Op::wait: {
      if (call.state != 0) {
        const uint64_t phase = phase_of_wait(call.state);
        if (phase_of(barrier.state()) != phase) return barrier.passed(call);
        if (barrier.broken() == 0 && call.look) {
          // Under the guard: parties that passed, and ended since, are not taken for missing parties.
          Guard guard(*object.head, call, world);
          if (held(guard) && phase_of(barrier.state()) == phase) barrier.look(world, nullptr);
        }
        if (phase_of(barrier.state()) != phase) return barrier.passed(call);
        const uint64_t by = barrier.broken();  // once: reset() may come between two looks
        return by == 0 ? Outcome::again : broken(by);
      }
      bool last;
      {
        Guard guard(*object.head, call, world);
        if (!held(guard)) return Outcome::busy;
        if (const uint64_t by = barrier.broken(); by != 0) return broken(by);
        last = barrier.arrive(call);
      }
      if (!last) return Outcome::again;
      ring(object.head->go);
      call.changed = true;
      return Outcome::done;
    }
    case Op::withdraw: {
      Guard guard(*object.head, call, world);
      if (!held(guard)) return Outcome::busy;
      bool passed = false;
      if (phase_of(barrier.state()) == phase_of_wait(call.state)) {
        barrier.withdraw(call);
      } else {
        passed = barrier.passed(call) == Outcome::done;  // all have come meanwhile
      }
      call.value2 = passed ? call.value : 0;
      call.value = passed ? 1 : 0;
      return Outcome::done;
    }
    case Op::abort:
      barrier.break_by(0);
      call.changed = true;
      return Outcome::done;
    case Op::reset: {
      {
        Guard guard(*object.head, call, world);
        if (!guard.held()) return Outcome::busy;
        barrier.reset();
      }
      ring(object.head->go);
      call.changed = true;
      return Outcome::done;
    }
    case Op::look:
      call.value = barrier.came(barrier.state());
      call.value2 = barrier.broken();
      return Outcome::done;
    case Op::gone: {
      Guard guard(*object.head, call, world);
      if (!held(guard)) return Outcome::busy;
      barrier.look(world, &call);
      guard.drop();
      call.changed = true;
      return Outcome::done;
    }
    default:
      return Outcome::damaged;
  }
}

}  // namespace weft::sync
