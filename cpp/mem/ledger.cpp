// cpp/mem/ledger.cpp: see ledger.hpp.
#include "mem/ledger.hpp"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/status.hpp"

namespace weft::mem {

namespace {
constexpr uint64_t kMagic = 0x31726567'64656c77ull + sizeof(pthread_mutex_t);
constexpr time_t kLockSeconds = 10;
}  // namespace

struct Ledger::Head {
  uint64_t magic;
  uint64_t id;
  pthread_mutex_t mutex;
  uint32_t rows_used, slots_used;  // one past the highest that was ever used
  Counts totals;
  // By kind, the sum over all services of what their users have, or of their reservation where that is more.
  Counts kept;
};
struct Ledger::Row {
  uint32_t service;  // 0: unused
  uint32_t users;    // slots
  Counts most, reserved, held;
};
struct Ledger::Slot {
  Who who;
  uint32_t service;  // 0: unused
  uint32_t row;
  Counts held;
};

// Holds the lock. A process that was killed while it held the lock may have left the rows half-changed.
class Ledger::Lock {
 public:
  explicit Lock(Ledger& of) : mutex_(of.head().mutex) {
    int failed = ::pthread_mutex_trylock(&mutex_);
    if (failed == EBUSY) [[unlikely]]
      failed = wait();
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
  int wait() {
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += kLockSeconds;
    return ::pthread_mutex_timedlock(&mutex_, &until);
  }
  pthread_mutex_t& mutex_;
};

Ledger::Ledger(int fd) : mapping_(Mapping::shared(fd, bytes(), true, "the ledger of resources")) {}

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
  const int32_t others = head().kept[kind] - std::max(row.held[kind], row.reserved[kind]);
  return std::min(row.most[kind] - row.held[kind], head().totals[kind] - others - row.held[kind]);
}

// recount() can compute everything but the slot again.
void Ledger::move(Slot& slot, size_t kind, int32_t count) noexcept {
  Row& row = rows()[std::min(slot.row, kRowsMax - 1)];
  slot.held[kind] += count;
  head().kept[kind] -= std::max(row.held[kind], row.reserved[kind]);
  row.held[kind] += count;
  head().kept[kind] += std::max(row.held[kind], row.reserved[kind]);
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
    for (size_t k = 0; k < kKinds; ++k) row->held[k] += slot->held[k];
  }
  h.kept = {};
  for (Row* row = rows(); row != rows_end; ++row) {
    if (row->users == 0 && std::ranges::all_of(row->reserved, [](int32_t n) { return n == 0; })) row->service = 0;
    if (row->service == 0) continue;
    for (size_t k = 0; k < kKinds; ++k) h.kept[k] += std::max(row->held[k], row->reserved[k]);
  }
}

void Ledger::set_limits(std::span<const Limits> all) {
  const Lock lock(*this);
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
  slot->held = {};
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
  const Lock lock(*this);
  Slot& mine = slots()[slot];
  if (left(rows()[std::min(mine.row, kRowsMax - 1)], kind) < count) return false;
  move(mine, kind, count);
  return true;
}

void Ledger::give(uint32_t slot, size_t kind, int32_t count) {
  const Lock lock(*this);
  move(slots()[slot], kind, -count);
}

int32_t Ledger::there(uint32_t service, size_t kind) {
  const Lock lock(*this);
  const Row* row = find_row(service);
  return row == nullptr ? 0 : left(*row, kind);
}

std::vector<Ledger::Held> Ledger::held() {
  std::vector<Held> found;
  found.reserve(64);
  const Lock lock(*this);
  for (uint32_t i = 0; i < std::min(head().slots_used, kSlotsMax); ++i) {
    const Slot& s = slots()[i];
    if (s.service != 0) found.push_back({i, s.service, s.who, s.held});
  }
  return found;
}

}  // namespace weft::mem
