// cpp/sync/guard.hpp: the guard of an object, and whose seat it is. Private to the room.
#pragma once

#include "sync/object.hpp"

namespace weft::sync {

// Holds an object's guard for a scope. Guards are held for some ten nanoseconds, or for the copy of a short record; a
// guard that is not free soon is held by a process that lost its core, or that was killed.
class Guard {
 public:
  Guard(Head& head, const Call& call, World& world) noexcept : word_(head.word) {
    const uint64_t mine = holder_word(call.who, call.for_other);
    if (!try_take(word_, mine)) [[unlikely]] {
      state_ = take_slowly(mine, call, world);
      return;
    }
    state_ = State::held;
  }
  ~Guard() { drop(); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // False: not now.
  [[nodiscard]] bool held() const noexcept { return state_ != State::busy; }
  // The process that held the guard was killed: derived values must be computed anew from the committed values.
  [[nodiscard]] bool from_the_dead() const noexcept { return state_ == State::inherited; }
  [[nodiscard]] uint32_t dead() const noexcept { return dead_; }  // its pid
  void drop() noexcept {
    if (held()) let_go(word_);
    state_ = State::busy;
  }

 private:
  enum class State : uint8_t { busy, held, inherited };
  State take_slowly(uint64_t mine, const Call& call, World& world) noexcept;

  LockWord& word_;
  State state_ = State::busy;
  uint32_t dead_ = 0;
};

inline bool is_of(const Seat& seat, const Call& call) noexcept {
  return seat.word.load(std::memory_order_relaxed) == holder_word(call.who, call.for_other) &&
         (!call.for_other || seat.token.load(std::memory_order_relaxed) == call.token);
}
// The process of the seat has ended, as far as the system tells. `gone` reports processes for which a NIC calls.
inline bool is_dead(const Seat& seat, World& world) noexcept {
  const uint64_t word = seat.word.load(std::memory_order_relaxed);
  return is_held(word) && world.gone(who_of(word));
}

}  // namespace weft::sync
