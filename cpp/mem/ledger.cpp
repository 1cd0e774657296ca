// cpp/mem/ledger.cpp: see ledger.hpp.
#include "mem/ledger.hpp"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/cache.hpp"
#include "base/status.hpp"

namespace weft::mem {

namespace {
constexpr uint64_t kMagic = 0x32726567'64656c77ull + sizeof(pthread_mutex_t);
constexpr uint64_t kLockSeconds = 10, kSecondNs = 1'000'000'000;

// The atomic word of a slot for one kind: bits 0 to 30 the units in the cache; bit 31: the cache may not be used; bits
// 32 to 63 the units that went back, modulo 2^32.
constexpr uint32_t kDirect = uint32_t{1} << 31;
constexpr uint32_t low_of(uint64_t word) noexcept {
  return static_cast<uint32_t>(word);
}
constexpr uint32_t cached_in(uint64_t word) noexcept {
  return low_of(word) & ~kDirect;
}
// Modulo 2^32: another process may write anything into the file.
constexpr int32_t sum(int32_t a, int32_t b) noexcept {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
constexpr int32_t difference(int32_t a, int32_t b) noexcept {
  return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}
}  // namespace

struct Ledger::Head {
  uint64_t magic;
  uint64_t id;
  pthread_mutex_t mutex;
  uint32_t rows_used, slots_used;  // one past the highest that was ever used
  Counts totals;
  // By kind, the sum over all services of their users' units, or of the service's reservation if that is more.
  Counts kept;
};
struct Ledger::Row {
  uint32_t service;  // 0: unused
  uint32_t users;    // slots
  Counts most, reserved, held;
};
struct alignas(kCacheLine) Ledger::Slot {
  Who who;
  uint32_t service;  // 0: unused
  uint32_t row;
  Counts granted;  // changes under the lock, modulo 2^32
  std::array<std::atomic<uint64_t>, kKinds> words;

  // This slot's part of the service's sum: the units in use, and the units in the cache.
  [[nodiscard]] int32_t held(size_t kind, uint64_t word) const noexcept {
    return static_cast<int32_t>(static_cast<uint32_t>(granted[kind]) - static_cast<uint32_t>(word >> 32));
  }
  [[nodiscard]] int32_t held(size_t kind) const noexcept {
    return held(kind, words[kind].load(std::memory_order_acquire));
  }
  [[nodiscard]] int32_t used(size_t kind) const noexcept {
    const uint64_t word = words[kind].load(std::memory_order_acquire);
    return difference(held(kind, word), static_cast<int32_t>(cached_in(word)));
  }
  void clear() noexcept {
    granted = {};
    for (auto& word : words) word.store(0, std::memory_order_relaxed);
  }
};

// Holds the lock. A process that was killed while it held the lock may have left the rows half-changed.
class Ledger::Lock {
 public:
  explicit Lock(Ledger& of) : mutex_(of.head().mutex) {
    int failed = ::pthread_mutex_trylock(&mutex_);
    if (failed == EBUSY) [[unlikely]]
      failed = wait_until(of.calendar_.now_ns() + kLockSeconds * kSecondNs);
    if (failed == EOWNERDEAD) {
      of.recount();
      failed = ::pthread_mutex_consistent(&mutex_);
    }
    if (failed != 0) {
      throw Error(fi_err::kEBUSY, std::string("another process has been in the ledger of the device's resources for ") +
                                      std::to_string(kLockSeconds) + " s (is it stopped?): " + std::strerror(failed));
    }
  }
  ~Lock() { ::pthread_mutex_unlock(&mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int wait_until(uint64_t ns) {
    const timespec until{static_cast<time_t>(ns / kSecondNs), static_cast<long>(ns % kSecondNs)};
    return ::pthread_mutex_timedlock(&mutex_, &until);
  }
  pthread_mutex_t& mutex_;
};

Ledger::Ledger(int fd, Clock& calendar)
    : mapping_(Mapping::shared(fd, bytes(), true, "the ledger of resources")), calendar_(calendar) {}

size_t Ledger::bytes() noexcept {
  return 4096 + sizeof(Row) * kRowsMax + sizeof(Slot) * kSlotsMax;
}

Ledger::Head& Ledger::head() const noexcept {
  static_assert(sizeof(Head) <= 4096);
  return *reinterpret_cast<Head*>(mapping_.data());
}
Ledger::Row* Ledger::rows() const noexcept {
  return reinterpret_cast<Row*>(mapping_.data() + 4096);
}
Ledger::Slot* Ledger::slots() const noexcept {
  static_assert((4096 + sizeof(Row) * kRowsMax) % kCacheLine == 0 && sizeof(Slot) == 2 * kCacheLine);
  return reinterpret_cast<Slot*>(mapping_.data() + 4096 + sizeof(Row) * kRowsMax);
}

void Ledger::begin(uint64_t id, const Counts& totals) {
  Head& h = head();
  pthread_mutexattr_t shared;
  ::pthread_mutexattr_init(&shared);
  ::pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(&h.mutex, &shared);
  ::pthread_mutexattr_destroy(&shared);
  h.totals = totals;
  h.id = id;
  __atomic_store_n(&h.magic, kMagic, __ATOMIC_RELEASE);  // last: a file without it is no ledger yet
}

bool Ledger::is(uint64_t id) const noexcept {
  return __atomic_load_n(&head().magic, __ATOMIC_ACQUIRE) == kMagic && head().id == id;
}

Ledger::Row* Ledger::find_row(uint32_t service) const noexcept {
  Row* const end = rows() + std::min(head().rows_used, kRowsMax);
  Row* const found = std::find_if(rows(), end, [&](const Row& row) { return row.service == service; });
  return found == end ? nullptr : found;
}

Ledger::Row& Ledger::row_of(uint32_t service) {
  Row* row = find_row(service);
  if (row != nullptr) return *row;
  row = find_row(0);
  if (row == nullptr) {
    if (head().rows_used >= kRowsMax) {
      throw Error(fi_err::kENOSPC, std::to_string(kRowsMax) + " services of the device are reserved or in use");
    }
    row = rows() + head().rows_used++;
  }
  *row = {};
  row->service = service;
  return *row;
}

// A service cannot take what other services have, nor what is reserved for them.
int32_t Ledger::left(const Row& row, size_t kind) const noexcept {
  const int32_t held = row.held[kind];
  const int32_t others = difference(head().kept[kind], std::max(held, row.reserved[kind]));
  return std::min(difference(row.most[kind], held), difference(difference(head().totals[kind], others), held));
}

// The slot has changed already: recount() would compute the same sums.
void Ledger::add_to_sums(const Slot& slot, size_t kind, int32_t count) noexcept {
  Row& row = rows()[std::min(slot.row, kRowsMax - 1)];
  int32_t& kept = head().kept[kind];
  kept = difference(kept, std::max(row.held[kind], row.reserved[kind]));
  row.held[kind] = sum(row.held[kind], count);
  kept = sum(kept, std::max(row.held[kind], row.reserved[kind]));
}

void Ledger::grant(Slot& slot, size_t kind, int32_t count, int32_t cached) noexcept {
  slot.granted[kind] = sum(slot.granted[kind], count);
  add_to_sums(slot, kind, count);
  slot.words[kind].fetch_add(static_cast<uint64_t>(cached), std::memory_order_acq_rel);
}

// Takes all units but `keep` out of a cache, and returns them to the service.
void Ledger::reclaim(Slot& slot, size_t kind, uint32_t keep) noexcept {
  std::atomic<uint64_t>& word = slot.words[kind];
  uint64_t now = word.load(std::memory_order_acquire), back;
  do {
    if (cached_in(now) <= keep) return;
    back = cached_in(now) - keep;
    // SYNC POINT: from here on the units are neither the process's nor in the slot's count.
  } while (!word.compare_exchange_weak(now, now - back + (back << 32), std::memory_order_acq_rel));
  add_to_sums(slot, kind, -static_cast<int32_t>(back));
}

void Ledger::reclaim_all(size_t kind) noexcept {
  for (Slot* slot = slots(); slot != slots() + std::min(head().slots_used, kSlotsMax); ++slot) {
    if (slot->service != 0) reclaim(*slot, kind);
  }
}

void Ledger::recount() noexcept {
  Head& h = head();
  Row* const rows_end = rows() + std::min(h.rows_used, kRowsMax);
  for (Row* row = rows(); row != rows_end; ++row) row->held = {}, row->users = 0;
  for (Slot* slot = slots(); slot != slots() + std::min(h.slots_used, kSlotsMax); ++slot) {
    Row* row = slot->service != 0 ? find_row(slot->service) : nullptr;
    if (row == nullptr) {
      slot->service = 0;
      continue;
    }
    slot->row = static_cast<uint32_t>(row - rows());
    ++row->users;
    for (size_t k = 0; k < kKinds; ++k) row->held[k] = sum(row->held[k], slot->held(k));
  }
  h.kept = {};
  for (Row* row = rows(); row != rows_end; ++row) {
    if (row->users == 0 && std::ranges::all_of(row->reserved, [](int32_t n) { return n == 0; })) row->service = 0;
    if (row->service == 0) continue;
    for (size_t k = 0; k < kKinds; ++k) h.kept[k] = sum(h.kept[k], std::max(row->held[k], row->reserved[k]));
  }
}

void Ledger::set_limits(std::span<const Limits> all) {
  const Lock lock(*this);
  for (size_t k = 0; k < kKinds; ++k) reclaim_all(k);
  for (Row* row = rows(); row != rows() + std::min(head().rows_used, kRowsMax); ++row) {
    if (std::ranges::none_of(all, [&](const Limits& one) { return one.service == row->service; })) {
      row->most = row->reserved = {};
    }
  }
  for (const Limits& one : all) {
    const bool reserves = std::ranges::any_of(one.reserved, [](int32_t n) { return n != 0; });
    Row* row = reserves ? &row_of(one.service) : find_row(one.service);
    if (row != nullptr) row->most = one.most, row->reserved = one.reserved;
  }
  recount();
  // A process that has more units than the new limits keeps them, and the units that it returns may not go to its
  // cache.
  for (Slot* slot = slots(); slot != slots() + std::min(head().slots_used, kSlotsMax); ++slot) {
    for (size_t k = 0; k < kKinds && slot->service != 0; ++k) {
      if (left(rows()[std::min(slot->row, kRowsMax - 1)], k) < 0) {
        slot->words[k].fetch_or(kDirect, std::memory_order_acq_rel);
      } else {
        slot->words[k].fetch_and(~uint64_t{kDirect}, std::memory_order_acq_rel);
      }
    }
  }
}

uint32_t Ledger::open(const Who& who, uint32_t service) {
  const Lock lock(*this);
  Head& h = head();
  Row& row = row_of(service);
  Slot* const end = slots() + std::min(h.slots_used, kSlotsMax);
  Slot* slot = std::find_if(slots(), end, [](const Slot& s) { return s.service == 0; });
  if (slot == end) {
    if (h.slots_used >= kSlotsMax) throw Error(fi_err::kENOSPC, "too many processes use the device's services");
    ++h.slots_used;
  }
  slot->who = who;
  slot->clear();
  slot->row = static_cast<uint32_t>(&row - rows());
  __atomic_store_n(&slot->service, service, __ATOMIC_RELEASE);  // last: recount() reads slots that have a service
  ++row.users;
  return static_cast<uint32_t>(slot - slots());
}

void Ledger::empty(Slot& slot) noexcept {
  slot.service = 0;
  recount();
}

void Ledger::close(uint32_t slot) {
  const Lock lock(*this);
  empty(slots()[slot]);
}

void Ledger::drop(uint32_t slot, const Who& who) {
  const Lock lock(*this);
  if (slot < kSlotsMax && slots()[slot].who == who) empty(slots()[slot]);
}

bool Ledger::take(uint32_t slot, size_t kind, int32_t count) {
  assert(slot < kSlotsMax && kind < kKinds && count >= 0);
  Slot& mine = slots()[slot];
  uint64_t word = mine.words[kind].load(std::memory_order_relaxed);
  while (static_cast<int32_t>(low_of(word)) >= count) {  // kDirect makes the number negative
    if (mine.words[kind].compare_exchange_weak(word, word - static_cast<uint32_t>(count), std::memory_order_acq_rel))
        [[likely]] {
      return true;
    }
  }
  return take_slowly(mine, kind, count);
}

void Ledger::give(uint32_t slot, size_t kind, int32_t count) {
  assert(slot < kSlotsMax && kind < kKinds && count >= 0);
  if (count == 0) return;
  Slot& mine = slots()[slot];
  const auto more = static_cast<uint32_t>(count);
  const uint32_t cached = low_of(mine.words[kind].fetch_add(more, std::memory_order_acq_rel)) + more;
  if (cached > 2 * uint32_t{kChunk}) [[unlikely]]  // kDirect makes the number large
    give_slowly(mine, kind);
}

bool Ledger::take_slowly(Slot& mine, size_t kind, int32_t count) {
  const Lock lock(*this);
  const Row& row = rows()[std::min(mine.row, kRowsMax - 1)];
  reclaim(mine, kind);
  const int32_t there = left(row, kind);
  if (there >= count) {
    const int32_t cached = std::min(difference(there, count) / 8, kChunk);
    grant(mine, kind, count + cached, cached);
    return true;
  }
  // Twice: during the first pass a process may have taken from a cache that this pass reached later, and another
  // process may have returned units to a cache that was already empty.
  for (int pass = 0; pass < 2 && left(row, kind) < count; ++pass) reclaim_all(kind);
  if (left(row, kind) < count) return false;
  grant(mine, kind, count, 0);
  return true;
}

void Ledger::give_slowly(Slot& mine, size_t kind) {
  const Lock lock(*this);
  const bool direct = (low_of(mine.words[kind].load(std::memory_order_acquire)) & kDirect) != 0;
  reclaim(mine, kind, direct ? 0 : kChunk);
}

int32_t Ledger::there(uint32_t service, size_t kind) {
  const Lock lock(*this);
  reclaim_all(kind);
  const Row* row = find_row(service);
  return row == nullptr ? 0 : left(*row, kind);
}

std::vector<Ledger::Held> Ledger::held() {
  std::vector<Held> found;
  found.reserve(64);
  const Lock lock(*this);
  for (uint32_t i = 0; i < std::min(head().slots_used, kSlotsMax); ++i) {
    const Slot& s = slots()[i];
    if (s.service == 0) continue;
    Held& one = found.emplace_back(Held{i, s.service, s.who, {}});
    for (size_t k = 0; k < kKinds; ++k) one.held[k] = s.used(k);
  }
  return found;
}

#if !defined(NDEBUG)
void Ledger::check() {
  const Lock lock(*this);
  const Head& h = head();
  assert(h.rows_used <= kRowsMax && h.slots_used <= kSlotsMax);
  std::vector<Row> sums(h.rows_used);
  for (const Slot* slot = slots(); slot != slots() + h.slots_used; ++slot) {
    if (slot->service == 0) continue;
    assert(slot->row < h.rows_used && rows()[slot->row].service == slot->service && "a slot has its service's row");
    ++sums[slot->row].users;
    for (size_t k = 0; k < kKinds; ++k) {
      assert(slot->used(k) >= 0 && "no process has returned more than it took");
      sums[slot->row].held[k] += slot->held(k);
    }
  }
  Counts kept{};
  for (uint32_t i = 0; i < h.rows_used; ++i) {
    const Row& row = rows()[i];
    if (row.service == 0) continue;
    assert(row.users == sums[i].users && "a row counts its users");
    assert(row.held == sums[i].held && "a row has the sum of what its users hold");
    for (size_t k = 0; k < kKinds; ++k) kept[k] += std::max(row.held[k], row.reserved[k]);
  }
  assert(kept == h.kept && "the head has the sum of what is held or reserved");
}
#endif

}  // namespace weft::mem
