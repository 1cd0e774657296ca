// cpp/sync/semaphore.cpp: semaphores. Each process that has permits has a seat, so that its permits come back when it
// ends; a process that gives more permits than it has taken adds permits. Permits that a process gives back stay in its
// seat until another process wants them: object.hpp.
#include "sync/layout.hpp"

namespace weft::sync {

namespace {

int64_t clamp(uint64_t n) noexcept {
  constexpr uint64_t kMost = uint64_t{1} << 62;
  return static_cast<int64_t>(n < kMost ? n : kMost);
}

constexpr int kTries = 64;  // to change a seat's word, which its process changes meanwhile

int64_t seated(uint64_t permits) noexcept {
  return static_cast<int64_t>((permits & kTakenMask) + (permits & kIdleMask) / kIdle);
}

// Requires the guard.
class Semaphore {
 public:
  explicit Semaphore(const Object& object) noexcept
      : body_(semaphore_of(object)), seats_(seats_of(object)), count_(object.item) {
    const uint64_t used = body_.seats_used.load(std::memory_order_relaxed);
    used_ = used < count_ ? used : count_;
  }

  // Computes `seated` from the seats, and frees the seats of processes that have ended (a step checks a few, round
  // robin).
  void recount(World& world, bool look, const Call* gone = nullptr) noexcept {
    int64_t sum = 0;
    used_ = count_;  // seats_used may not have been written
    Turn turn(body_.asked, count_);
    for (uint64_t i = 0; i < count_; ++i) {
      const uint64_t at = turn.seat(i);
      Seat& seat = seats_[at];
      const uint64_t permits = seat.permits.load(std::memory_order_relaxed);
      if (seated(permits) == 0) continue;
      if ((gone != nullptr && is_of(seat, *gone)) || (look && turn.ask(at) && is_dead(seat, world))) {
        seat.permits.store(permits & kTagMask, std::memory_order_release);  // the commit
        continue;
      }
      sum += seated(permits);
    }
    came_back_ = came_back_ || sum < body_.seated.load(std::memory_order_relaxed);
    body_.seated.store(sum, std::memory_order_relaxed);
  }

  // Takes back the permits that are idle in seats.
  void take_back() noexcept {
    int64_t back = 0;
    for (uint64_t i = 0; i < used_; ++i) {
      uint64_t now = seats_[i].permits.load(std::memory_order_seq_cst);
      for (int tries = 0; tries < kTries && (now & kIdleMask) != 0; ++tries) {
        if (!seats_[i].permits.compare_exchange_strong(now, now & ~kIdleMask, std::memory_order_seq_cst)) continue;
        back += static_cast<int64_t>((now & kIdleMask) / kIdle);
        break;
      }
    }
    unseat(back);
    came_back_ = came_back_ || back != 0;
  }

  Outcome take(Call& call) noexcept {
    Seat* seat = seat_of(call);
    if (seat != nullptr) {
      uint64_t now = seat->permits.load(std::memory_order_relaxed);
      if ((now & kTakenMask) == kTakenMask) return Outcome::no_seat;
      if ((now & kIdleMask) != 0 &&
          seat->permits.compare_exchange_strong(now, now - kIdle + kTaken, std::memory_order_seq_cst)) {
        return found(call, *seat);
      }
    }
    if (free() <= 0) take_back();
    if (free() <= 0) return Outcome::again;
    if (seat == nullptr && (seat = free_seat()) == nullptr) {
      take_back();  // the refusal empties seats
      seat = free_seat();
    }
    if (seat == nullptr) return Outcome::no_seat;
    if (seated(seat->permits.load(std::memory_order_relaxed)) == 0) {
      const uint64_t tag = (seat->permits.load(std::memory_order_relaxed) & kTagMask) + kTag;
      seat->token.store(call.token, std::memory_order_relaxed);
      seat->word.store(holder_word(call.who, call.for_other), std::memory_order_relaxed);
      seat->permits.store(tag | kTaken, std::memory_order_seq_cst);  // the commit
    } else {
      seat->permits.fetch_add(kTaken, std::memory_order_seq_cst);  // the commit
    }
    unseat(-1);
    return found(call, *seat);
  }

  // False: the process's own calls have come between, and nothing is done.
  bool give(const Call& call, uint64_t n) noexcept {
    if (Seat* seat = seat_of(call); seat != nullptr) {
      uint64_t now = seat->permits.load(std::memory_order_relaxed), back;
      int tries = 0;
      do {
        back = n < (now & kTakenMask) ? n : now & kTakenMask;
        if (++tries > kTries) return false;
      } while (!seat->permits.compare_exchange_strong(now, now - back, std::memory_order_seq_cst));  // the commit
      unseat(static_cast<int64_t>(back));
      n -= back;
    }
    if (n != 0) {
      int64_t limit = body_.limit.load(std::memory_order_relaxed);
      if (__builtin_add_overflow(limit, clamp(n), &limit)) limit = INT64_MAX;
      body_.limit.store(limit, std::memory_order_release);  // the commit
    }
    return true;
  }

  // Permits that are in no seat.
  [[nodiscard]] int64_t free() const noexcept { return left(body_.seated.load(std::memory_order_relaxed)); }
  // Permits of dead processes, and idle permits, are in no seat now.
  [[nodiscard]] bool came_back() const noexcept { return came_back_; }
  // Permits that nobody has taken.
  [[nodiscard]] int64_t value() const noexcept {
    int64_t taken = 0;
    for (uint64_t i = 0; i < used_; ++i) {
      taken += static_cast<int64_t>(seats_[i].permits.load(std::memory_order_relaxed) & kTakenMask);
    }
    return left(taken);
  }

 private:
  [[nodiscard]] int64_t left(int64_t less) const noexcept {
    int64_t found;
    return __builtin_sub_overflow(body_.limit.load(std::memory_order_relaxed), less, &found) ? 0 : found;
  }
  void unseat(int64_t n) noexcept {
    int64_t now;
    if (__builtin_sub_overflow(body_.seated.load(std::memory_order_relaxed), n, &now)) now = INT64_MAX;
    body_.seated.store(now, std::memory_order_relaxed);
  }
  Seat* seat_of(const Call& call) noexcept {
    for (uint64_t i = 0; i < used_; ++i) {
      if (seated(seats_[i].permits.load(std::memory_order_relaxed)) != 0 && is_of(seats_[i], call)) return &seats_[i];
    }
    return nullptr;
  }
  Seat* free_seat() noexcept {
    for (uint64_t i = 0; i < count_; ++i) {
      if (seated(seats_[i].permits.load(std::memory_order_relaxed)) != 0) continue;
      if (i >= used_) body_.seats_used.store(used_ = i + 1, std::memory_order_relaxed);
      return &seats_[i];
    }
    return nullptr;
  }
  static Outcome found(Call& call, Seat& seat) noexcept {
    call.seat = &seat;
    call.tag = seat.permits.load(std::memory_order_relaxed) & kTagMask;
    return Outcome::done;
  }

  SemaphoreBody& body_;
  Seat* seats_;
  uint64_t count_, used_;
  bool came_back_ = false;
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
        if (!semaphore.give(call, call.a)) return Outcome::busy;
        break;
      case Op::look:
        call.value = static_cast<uint64_t>(semaphore.value() > 0 ? semaphore.value() : 0);
        break;
      case Op::gone:
        break;
      default:
        return Outcome::damaged;
    }
    if (call.op == Op::take) {
      wake = semaphore.came_back() ? semaphore.free() : 0;
    } else if (__builtin_sub_overflow(semaphore.free(), before > 0 ? before : 0, &wake)) {
      wake = 0;
    }
  }
  if (wake > 0) {
    ring(head.go, static_cast<int>(wake < INT_MAX ? wake : INT_MAX));
    call.changed = true;
  }
  return outcome;
}

}  // namespace weft::sync
