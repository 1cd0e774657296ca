// cpp/sync/semaphore.cpp: semaphores. Each process that has permits has a seat, so that its permits come back when it
// ends; a process that gives more than it has taken adds permits.
#include "sync/layout.hpp"

namespace weft::sync {

namespace {

int64_t clamp(uint64_t n) noexcept {
  constexpr uint64_t kMost = uint64_t{1} << 62;
  return static_cast<int64_t>(n < kMost ? n : kMost);
}

class Semaphore {
 public:
  explicit Semaphore(const Object& object) noexcept
      : body_(semaphore_of(object)), seats_(seats_of(object)), count_(object.item) {
    const uint64_t used = body_.seats_used.load(std::memory_order_relaxed);
    used_ = used < count_ ? used : count_;
  }

  // Computes `used` from the seats, and frees those of processes that have ended (some are asked about, in turn).
  // Requires the guard.
  void recount(World& world, bool look, const Call* gone = nullptr) noexcept {
    int64_t used = 0;
    used_ = count_;  // seats_used may not have been written
    Turn turn(body_.asked, count_);
    for (uint64_t i = 0; i < count_; ++i) {
      const uint64_t at = turn.seat(i);
      Seat& seat = seats_[at];
      const uint32_t count = seat.count.load(std::memory_order_relaxed);
      if (count == 0) continue;
      if ((gone != nullptr && is_of(seat, *gone)) || (look && turn.ask(at) && is_dead(seat, world))) {
        seat.count.store(0, std::memory_order_release);  // the commit
        continue;
      }
      used += count;
    }
    body_.used.store(used, std::memory_order_relaxed);
  }

  Seat* seat_of(const Call& call) noexcept {
    for (uint64_t i = 0; i < used_; ++i) {
      if (seats_[i].count.load(std::memory_order_relaxed) != 0 && is_of(seats_[i], call)) return &seats_[i];
    }
    return nullptr;
  }

  Outcome take(const Call& call) noexcept {
    if (free() <= 0) return Outcome::again;
    Seat* seat = seat_of(call);
    if (seat == nullptr) {
      for (uint64_t i = 0; i < count_ && seat == nullptr; ++i) {
        if (seats_[i].count.load(std::memory_order_relaxed) != 0) continue;
        seat = &seats_[i];
        if (i >= used_) body_.seats_used.store(i + 1, std::memory_order_relaxed);
      }
      if (seat == nullptr) return Outcome::no_seat;
      seat->token.store(call.token, std::memory_order_relaxed);
      seat->word.store(holder_word(call.who, call.for_other), std::memory_order_relaxed);
    }
    const uint32_t count = seat->count.load(std::memory_order_relaxed);
    if (count == UINT32_MAX) return Outcome::no_seat;
    seat->count.store(count + 1, std::memory_order_release);  // the commit
    body_.used.store(body_.used.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return Outcome::done;
  }

  void give(const Call& call, uint64_t n) noexcept {
    Seat* seat = seat_of(call);
    if (seat != nullptr) {
      const uint32_t count = seat->count.load(std::memory_order_relaxed);
      const auto back = static_cast<uint32_t>(n < count ? n : count);
      seat->count.store(count - back, std::memory_order_release);  // the commit
      body_.used.store(body_.used.load(std::memory_order_relaxed) - back, std::memory_order_relaxed);
      n -= back;
    }
    if (n != 0) {
      int64_t limit = body_.limit.load(std::memory_order_relaxed);
      if (__builtin_add_overflow(limit, clamp(n), &limit)) limit = INT64_MAX;
      body_.limit.store(limit, std::memory_order_release);  // the commit
    }
  }

  [[nodiscard]] int64_t free() const noexcept {
    int64_t found;
    if (__builtin_sub_overflow(body_.limit.load(std::memory_order_relaxed), body_.used.load(std::memory_order_relaxed),
                               &found)) {
      return 0;
    }
    return found;
  }

 private:
  SemaphoreBody& body_;
  Seat* seats_;
  uint64_t count_, used_;
};

}  // namespace

Outcome step_semaphore(const Object& object, Call& call, World& world) noexcept {
  Head& head = *object.head;
  Outcome outcome = Outcome::done;
  int64_t wake = 0;
  {
    Guard guard(head, call, world);
    if (!guard.held()) return Outcome::busy;
    Semaphore semaphore(object);
    const int64_t before = semaphore.free();
    const bool gone = call.op == Op::gone;
    const bool stuck = call.look && call.op == Op::take && before <= 0;
    if (guard.from_the_dead() || stuck || gone) semaphore.recount(world, call.look, gone ? &call : nullptr);
    switch (call.op) {
      case Op::take:
        outcome = semaphore.take(call);
        break;
      case Op::release:
        semaphore.give(call, call.a);
        break;
      case Op::look:
      case Op::gone:
        break;
      default:
        return Outcome::damaged;
    }
    call.value = static_cast<uint64_t>(semaphore.free() > 0 ? semaphore.free() : 0);
    wake = semaphore.free() - (before > 0 ? before : 0);
    if (outcome == Outcome::done && call.op == Op::take) ++wake;  // permits that came back from the dead, less this one
  }
  if (wake > 0) {
    ring(head.go, static_cast<int>(wake < INT_MAX ? wake : INT_MAX));
    call.changed = true;
  }
  return outcome;
}

}  // namespace weft::sync
