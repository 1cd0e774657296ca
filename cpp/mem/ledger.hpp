// cpp/mem/ledger.hpp: the resources of a device that each process has taken, in a file that the processes map.
//
//   file: head (totals, lock) | rows: a service each, with its limits and the sum of its users | slots: a process each
//
// A process takes resources of its service in chunks, under one lock in the file, and keeps those that it does not use
// in its slot's cache: a take is then one atomic instruction on a word that only this process uses, and so is a return.
// Limits are exact between processes all the same: before a take is refused, it takes the contents of all caches, by an
// atomic instruction on each, and looks again. The counts of a slot are two words: the sum of all grants, which changes
// under the lock, and the atomic word, which has the units in the cache and the sum of all that went back. So taking
// units out of another process's cache is one step, which a kill cannot divide.
//
// The lock is a robust futex, without system calls unless two processes need it at once. If a process is killed while
// it holds the lock, the next holder learns of it and computes the sums again from the slots. The slot of a killed
// process remains until drop(); the caller decides which processes are dead. Callers: any thread of any process that
// maps the file.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/mapping.hpp"

namespace weft::mem {

class Ledger {
 public:
  static constexpr size_t kKinds = 8;
  static constexpr uint32_t kRowsMax = 512, kSlotsMax = 2048;
  static constexpr int32_t kChunk = 64;  // units that a take adds to an empty cache, at most 1/8 of the free ones
  using Counts = std::array<int32_t, kKinds>;

  struct Who {  // identifies a process: pid, start time, pid namespace
    uint64_t pid = 0, start = 0, space = 0;
    bool operator==(const Who&) const = default;
  };
  struct Limits {
    uint32_t service = 0;
    Counts most{}, reserved{};
  };
  struct Held {
    uint32_t slot = 0, service = 0;
    Who who;
    Counts held{};
  };

  // Maps a file of bytes() bytes; throws Error. `calendar`: the time of the day since 1970, by which the system's locks
  // count; read only by a call that waits for another process.
  Ledger(int fd, Clock& calendar);
  static size_t bytes() noexcept;
  // Makes a file of zeros an empty ledger; no other process may use the file. `id` identifies the file and the boot of
  // the system: in a copy of the file, or in a file from before a boot, nobody would release a lock that was held.
  void begin(uint64_t id, const Counts& totals);
  [[nodiscard]] bool is(uint64_t id) const noexcept;

  // Sets the limits of all services that exist. Users of any other service keep their resources and can take no more.
  // Throws ENOSPC; EBUSY if another process holds the lock for long.
  void set_limits(std::span<const Limits> all);
  // A slot for a process that uses a service; throws ENOSPC.
  uint32_t open(const Who& who, uint32_t service);
  void close(uint32_t slot);  // returns all resources of the slot
  // close(), if the slot still belongs to this process.
  void drop(uint32_t slot, const Who& who);

  // HOT: one locked instruction on the slot's own line; every kChunk calls at most the lock. No system call unless
  // another process holds the lock. Benchmark: bench/bench_cxi.py (mr_reg, bind, enable).
  // take(): false if fewer than `count` are free; then nothing is taken.
  bool take(uint32_t slot, size_t kind, int32_t count);
  void give(uint32_t slot, size_t kind, int32_t count);

  // The number that a service can still take; negative if others have taken what was reserved for it later.
  [[nodiscard]] int32_t there(uint32_t service, size_t kind);
  [[nodiscard]] std::vector<Held> held();  // what is in use, without the units in caches
#if !defined(NDEBUG)
  void check();  // of a file that no stranger has written into
#endif

 private:
  struct Head;
  struct Row;
  struct Slot;
  class Lock;
  [[nodiscard]] Head& head() const noexcept;
  [[nodiscard]] Row* rows() const noexcept;
  [[nodiscard]] Slot* slots() const noexcept;
  [[nodiscard]] Row* find_row(uint32_t service) const noexcept;
  Row& row_of(uint32_t service);
  // These require the lock.
  [[nodiscard]] int32_t left(const Row& row, size_t kind) const noexcept;
  void add_to_sums(const Slot& slot, size_t kind, int32_t count) noexcept;
  void grant(Slot& slot, size_t kind, int32_t count, int32_t cached) noexcept;
  void reclaim(Slot& slot, size_t kind, uint32_t keep = 0) noexcept;
  void reclaim_all(size_t kind) noexcept;
  void recount() noexcept;
  void empty(Slot& slot) noexcept;

  [[gnu::noinline]] bool take_slowly(Slot& slot, size_t kind, int32_t count);
  [[gnu::noinline]] void give_slowly(Slot& slot, size_t kind);

  Mapping mapping_;
  Clock& calendar_;
};

}  // namespace weft::mem
