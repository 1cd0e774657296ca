// cpp/sync/object.cpp: making and opening objects; the guard; locks and events.
#include "sync/object.hpp"

#include <cstring>
#include <new>

#include "sync/guard.hpp"
#include "sync/layout.hpp"

namespace weft::sync {

namespace {

constexpr int kSpins = 64;        // looks at a guard that is held: about a microsecond
constexpr int kSpinsLooking = 4;  // of the owner's NIC, which has other things to do

}  // namespace

std::optional<uint64_t> bytes_of(Kind kind, uint64_t n, uint64_t item, uint64_t form_bytes) noexcept {
  uint64_t body = 0;
  if (form_bytes > (kind == Kind::queue ? kFormBytesMax : 0)) return std::nullopt;
  switch (kind) {
    case Kind::lock:
    case Kind::event:
      break;
    case Kind::semaphore:
      if (n > uint64_t{1} << 62 || item < 1 || item > kSeatsMax) return std::nullopt;
      body = sizeof(SemaphoreBody) + item * sizeof(Seat);
      break;
    case Kind::barrier:
      if (n < 1 || n > kPartiesMax) return std::nullopt;
      body = sizeof(BarrierBody) + 2 * n * sizeof(Seat);
      break;
    case Kind::queue:
      if (n < 1 || n > kSlotsMax || item > uint64_t{1} << 40 || __builtin_mul_overflow(n, slot_stride(item), &body) ||
          __builtin_add_overflow(body, sizeof(QueueBody), &body) || body > uint64_t{1} << 46) {
        return std::nullopt;
      }
      break;
    default:
      return std::nullopt;
  }
  return sizeof(Head) + body + form_bytes;
}

Object create(std::byte* memory, Kind kind, uint64_t n, uint64_t item, uint32_t pid_namespace,
              std::span<const std::byte> form) noexcept {
  auto* head = new (memory) Head{};
  head->kind = static_cast<uint32_t>(kind);
  head->version = kVersion;
  head->bytes = *bytes_of(kind, n, item, form.size());
  head->n = n;
  head->item = item;
  head->pid_namespace = pid_namespace;
  head->form_bytes = static_cast<uint32_t>(form.size());
  if (!form.empty()) std::memcpy(memory + head->bytes - form.size(), form.data(), form.size());
  const Object made{head, memory + sizeof(Head), kind, n, item};
  if (kind == Kind::semaphore) {
    semaphore_of(made).limit.store(static_cast<int64_t>(n), std::memory_order_relaxed);
  }
  // SYNC POINT: last. A process that finds the magic number finds the object.
  __atomic_store_n(&head->magic, kMagic, __ATOMIC_RELEASE);
  return made;
}

std::optional<Object> open(std::byte* memory, uint64_t length) noexcept {
  // A peer may name any memory as an object, of any alignment.
  if (length < sizeof(Head) || reinterpret_cast<uintptr_t>(memory) % alignof(Head) != 0) return std::nullopt;
  auto* head = reinterpret_cast<Head*>(memory);
  if (__atomic_load_n(&head->magic, __ATOMIC_ACQUIRE) != kMagic) return std::nullopt;
  // Each number is read once: another process may change it.
  const uint32_t kind = __atomic_load_n(&head->kind, __ATOMIC_RELAXED);
  const uint64_t n = __atomic_load_n(&head->n, __ATOMIC_RELAXED), item = __atomic_load_n(&head->item, __ATOMIC_RELAXED);
  if (__atomic_load_n(&head->version, __ATOMIC_RELAXED) != kVersion) return std::nullopt;
  const auto bytes = bytes_of(static_cast<Kind>(kind), n, item, __atomic_load_n(&head->form_bytes, __ATOMIC_RELAXED));
  if (!bytes || *bytes > length) return std::nullopt;
  return Object{head, memory + sizeof(Head), static_cast<Kind>(kind), n, item};
}

Outcome step(const Object& object, Call& call, World& world) noexcept {
  call.changed = false;
  Head& head = *object.head;
  if (call.op == Op::close) {
    head.closed.store(1, std::memory_order_seq_cst);
    futex_wake(&head.word, INT_MAX);
    ring(head.go);
    ring(head.room);
    call.changed = true;
    return Outcome::done;
  }
  if (head.closed.load(std::memory_order_relaxed) != 0) return Outcome::closed;
  switch (object.kind) {
    case Kind::lock:
      return step_lock(object, call, world);
    case Kind::event:
      return step_event(object, call);
    case Kind::semaphore:
      return step_semaphore(object, call, world);
    case Kind::barrier:
      return step_barrier(object, call, world);
    case Kind::queue:
      return step_queue(object, call, world);
  }
  return Outcome::damaged;
}

// ---- the guard -----------------------------------------------------------------------------------------------------

[[gnu::noinline]] Guard::State Guard::take_slowly(uint64_t mine, const Call& call, World& world) noexcept {
  // A thread that has slept keeps the bit of other sleepers.
  const uint64_t wanted = mine | (call.sleeps ? kWaiters : 0);
  const int spins = call.for_other ? kSpinsLooking : kSpins;
  for (int i = 0; i < spins; ++i) {
    if (word_.load(std::memory_order_relaxed) == 0 && try_take(word_, wanted)) return State::held;
    cpu_relax();
  }
  uint64_t word = word_.load(std::memory_order_seq_cst);
  if (!is_held(word)) {
    return word_.compare_exchange_strong(word, wanted | (word & kWaiters), std::memory_order_seq_cst) ? State::held
                                                                                                      : State::busy;
  }
  // A NIC that calls for others holds guards only in one step at a time: it is alive as long as its process is.
  if (!call.look || !world.gone(who_of(word))) return State::busy;
  dead_ = who_of(word).pid;
  return word_.compare_exchange_strong(word, wanted | kWaiters, std::memory_order_seq_cst) ? State::inherited
                                                                                           : State::busy;
}

// ---- locks ---------------------------------------------------------------------------------------------------------

namespace {

// The pid of the process that holds a lock, or held it when it died; on its own host.
uint64_t pid_in(const Head& head, uint64_t word) noexcept {
  return (word & kForOther) != 0 ? head.other.load(std::memory_order_relaxed) : who_of(word).pid;
}

// Marks a lock whose holder has ended, and wakes all waiters.
void mark(Head& head, uint64_t word) noexcept {
  if (head.word.compare_exchange_strong(word, word | kMarked, std::memory_order_seq_cst)) {
    futex_wake(&head.word, INT_MAX);
  }
}

// Undoes a take from a dead holder (`dead` is the word that take() found), and wakes all waiters.
bool to_the_dead(Head& head, uint64_t mine, uint64_t dead) noexcept {
  const uint64_t then = (dead & kHolderMask) | kMarked;
  if (!is_held(then)) return release_lock(head, mine);
  uint64_t word = mine;
  while (!head.word.compare_exchange_strong(word, then, std::memory_order_seq_cst)) {
    if (word != (mine | kWaiters)) return false;
  }
  futex_wake(&head.word, INT_MAX);
  return true;
}

}  // namespace

bool release_with_waiters(Head& head, uint64_t mine) noexcept {
  uint64_t word = mine | kWaiters;
  if (!head.word.compare_exchange_strong(word, 0, std::memory_order_seq_cst)) return false;
  futex_wake(&head.word, 1);
  return true;
}

Outcome step_lock(const Object& object, Call& call, World& world) noexcept {
  Head& head = *object.head;
  const uint64_t mine = holder_word(call.who, call.for_other);
  uint64_t word = head.word.load(std::memory_order_seq_cst);
  switch (call.op) {
    case Op::take: {
      if (is_held(word) && (word & kMarked) == 0 && call.look && world.gone(who_of(word))) {
        mark(head, word);
        word = head.word.load(std::memory_order_seq_cst);
        call.changed = true;
      }
      const bool marked = (word & kMarked) != 0;
      if (is_held(word) && !marked) {
        uint64_t unknown = 0;
        if (head.since_ns.load(std::memory_order_relaxed) == 0) {
          head.since_ns.compare_exchange_strong(unknown, world.now_ns(), std::memory_order_relaxed);
        }
        return Outcome::again;
      }
      if (marked && call.a == 0) {
        call.value = pid_in(head, word);
        call.value2 = (word & kForOther) != 0 ? 1 : 0;
        return Outcome::died;
      }
      const uint64_t next = mine | (word & kWaiters) | (call.sleeps ? kWaiters : 0);
      if (!head.word.compare_exchange_strong(word, next, std::memory_order_seq_cst)) return Outcome::again;
      head.since_ns.store(0, std::memory_order_relaxed);
      if (call.for_other) {
        head.token.store(call.token, std::memory_order_relaxed);
        head.other.store(call.b, std::memory_order_relaxed);
      }
      call.value = marked ? 1 : 0;
      call.value2 = marked ? word & ~kWaiters : 0;
      return Outcome::done;
    }
    case Op::release:
      if ((word & (kHolderMask | kMarked)) != mine ||
          (call.for_other && head.token.load(std::memory_order_relaxed) != call.token) ||
          !(call.a != 0 ? to_the_dead(head, mine, call.a) : release_lock(head, mine))) {
        call.value = (word & kMarked) != 0 ? 0 : pid_in(head, word);
        return Outcome::not_holder;
      }
      call.changed = true;
      return Outcome::done;
    case Op::look: {
      if (is_held(word) && (word & kMarked) == 0 && call.look && world.gone(who_of(word))) {
        mark(head, word);
        word = head.word.load(std::memory_order_seq_cst);
        call.changed = true;
      }
      const uint64_t since = head.since_ns.load(std::memory_order_relaxed), now = world.now_ns();
      const bool other = (word & kForOther) != 0;
      call.value = pid_in(head, word);
      call.value2 = is_held(word) && since != 0 && now > since ? now - since : 0;
      call.value3 = ((word & kMarked) != 0 ? 1u : 0u) | (other ? 2u : 0u);
      return Outcome::done;
    }
    case Op::gone:
      if ((word & kForOther) != 0 && (word & kMarked) == 0 &&
          head.token.load(std::memory_order_relaxed) == call.token) {
        mark(head, word);
        call.changed = true;
      }
      return Outcome::done;
    default:
      return Outcome::damaged;
  }
}

// ---- events --------------------------------------------------------------------------------------------------------

void set_event(Head& head) noexcept {
  uint64_t word = head.word.load(std::memory_order_seq_cst);
  while ((word & 1) == 0 && !head.word.compare_exchange_weak(word, word + 1, std::memory_order_seq_cst)) {
  }
  ring(head.go);
}

void clear_event(Head& head) noexcept {
  uint64_t word = head.word.load(std::memory_order_seq_cst);
  while ((word & 1) != 0 && !head.word.compare_exchange_weak(word, word + 1, std::memory_order_seq_cst)) {
  }
}

Outcome step_event(const Object& object, Call& call) noexcept {
  Head& head = *object.head;
  const uint64_t word = head.word.load(std::memory_order_seq_cst);
  switch (call.op) {
    case Op::set:
      set_event(head);
      call.changed = true;
      return Outcome::done;
    case Op::clear:
      clear_event(head);
      return Outcome::done;
    case Op::look:
      call.value = word & 1;
      return Outcome::done;
    case Op::wait:
      // state: the word when the wait began, plus 1. An event that was set and cleared meanwhile ends the wait, too.
      if ((word & 1) != 0 || (call.state != 0 && call.state - 1 != word)) return Outcome::done;
      call.state = word + 1;
      return Outcome::again;
    case Op::gone:
      return Outcome::done;
    default:
      return Outcome::damaged;
  }
}

}  // namespace weft::sync
