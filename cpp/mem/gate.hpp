// cpp/mem/gate.hpp: turns between updates of single elements of a segment (atomic instructions) and updates of blocks
// (plain loads and stores, thirty times faster), which exclude each other. In the last page of each segment, which
// every process that maps the segment may write.
//
// Which memory: allocations of at least kTurnsBytesMin. All regions over such memory take turns, whoever registers
// them,
//           so that no update goes around the gate. Counters and locks in small arrays never wait for a block.
// How they agree, each with a full barrier between its two steps (Dekker's algorithm):
//   one element:  mark our slot as updating -> no claim? -> update -> mark it idle. Many at a time, no system call
//   a block:      set the claim -> no other slot is updating? -> update -> clear the claim. One at a time
// Progress: blocking. A block that waits for long gives up, and is updated by atomic instructions. A block gives way to
//           elements that wait for the claim.
// Death:    the segment's owner clears the slots and the claim of a process when its connection ends.
// A process that is stopped within a block: after some seconds an element that waits takes the claim away and goes on.
//           end() then returns false to the stopped process, which reports that updates may be lost. Bounds:
// kSlotCount updaters (domains of NICs); another one finds no slot, and the owner's engine updates for it. Trust:    a
// process may write anything here. The worst effect is that updates of this segment are slow, or fail.
// Source:   fi_atomic(3): an update is atomic with respect to other atomics, not to writes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/backoff.hpp"
#include "base/cache.hpp"

namespace weft::mem {

constexpr size_t kGateBytes = 4096;           // of a segment, not allocated to arrays
constexpr size_t kTurnsBytesMin = 16 * 1024;  // 2,048 elements of 8 bytes by instructions: 10 us

// Who updates: a domain of a NIC, or the NIC's engine. Never 0; the upper bits are the NIC's.
using Updater = uint64_t;
constexpr uint64_t kUpdaterOfNic = ~uint64_t{0xffff};
constexpr Updater updater_of(uint64_t nic_first, uint64_t nic_second, uint32_t domain) noexcept {
  uint64_t mixed = (nic_first ^ (nic_second << 31 | nic_second >> 33)) * 0xd6e8feb86659fd93ull;
  mixed ^= mixed >> 32;
  return mixed << 16 | uint64_t{1} << 63 | (domain & 0xffff);
}

struct Gate {
  // base, bytes: a segment as it is mapped here, from a page boundary on.
  static Gate* in(std::byte* base, uint64_t bytes) noexcept {
    return base == nullptr || bytes < kGateBytes ? nullptr : reinterpret_cast<Gate*>(base + bytes - kGateBytes);
  }

  enum Phase : uint32_t { idle = 0, updating = 1, waiting = 2 };  // waiting: for the claim
  struct alignas(kCacheLine) Slot {
    std::atomic<Updater> updater{0};
    std::atomic<uint32_t> phase{idle};

    [[nodiscard]] Gate& gate() noexcept {
      return *reinterpret_cast<Gate*>(reinterpret_cast<uintptr_t>(this) & ~uintptr_t{kGateBytes - 1});
    }
  };
  static constexpr uint32_t kSlotCount = 62;

  alignas(kCacheLine) std::atomic<Updater> claim{0};
  std::atomic<uint64_t> claims{0};  // that were ever set
  std::atomic<uint32_t> used{0};    // one past the highest slot that was ever taken
  Slot slots[kSlotCount];

  // The updater's slot, or a free one that becomes its slot; null: all are taken. One thread of an updater at a time.
  Slot* slot_of(Updater me) noexcept {
    const uint32_t count = std::min(used.load(std::memory_order_acquire), kSlotCount);
    for (uint32_t i = 0; i < count; ++i) {
      if (slots[i].updater.load(std::memory_order_relaxed) == me) return &slots[i];
    }
    for (uint32_t i = 0; i < kSlotCount; ++i) {
      Updater none = 0;
      if (!slots[i].updater.compare_exchange_strong(none, me, std::memory_order_acq_rel)) continue;
      // SYNC POINT: before the slot is first marked: the holder of a claim that misses the slot is seen by its updater.
      uint32_t seen = used.load(std::memory_order_relaxed);
      while (seen < i + 1 && !used.compare_exchange_weak(seen, i + 1, std::memory_order_seq_cst)) {
      }
      return &slots[i];
    }
    return nullptr;
  }

  // Frees what a process has left: its connection to the segment's owner has ended.
  void forget(Updater of_nic) noexcept {
    const uint32_t count = std::min(used.load(std::memory_order_acquire), kSlotCount);
    for (uint32_t i = 0; i < count; ++i) {
      Updater found = slots[i].updater.load(std::memory_order_relaxed);
      if (found == 0 || ((found ^ of_nic) & kUpdaterOfNic) != 0) continue;
      slots[i].phase.store(idle, std::memory_order_release);
      (void)slots[i].updater.compare_exchange_strong(found, 0, std::memory_order_acq_rel);
    }
    Updater holder = claim.load(std::memory_order_acquire);
    if (holder != 0 && ((holder ^ of_nic) & kUpdaterOfNic) == 0) {
      (void)claim.compare_exchange_strong(holder, 0, std::memory_order_acq_rel);
    }
  }
};
static_assert(sizeof(Gate) <= kGateBytes);

// The turn of a thread that updates elements by atomic instructions. slot: its updater's; null: no turns are needed.
// Only one thread of an updater at a time.
class ElementTurn {
 public:
  // HOT. Two stores and a load; a cache line that other processes only read unless they update blocks.
  explicit ElementTurn(Gate::Slot* slot) noexcept : slot_(slot) {
    if (slot == nullptr) [[likely]]
      return;
    // SYNC POINT: a full barrier: either we see the claim, or its holder sees us updating.
    slot->phase.exchange(Gate::updating, std::memory_order_seq_cst);
    if (slot->gate().claim.load(std::memory_order_seq_cst) != 0) [[unlikely]]
      wait();
  }
  ~ElementTurn() {
    // SYNC POINT: the update is visible to the holder of a claim that sees this store.
    if (slot_ != nullptr) slot_->phase.store(Gate::idle, std::memory_order_release);
  }
  ElementTurn(const ElementTurn&) = delete;
  ElementTurn& operator=(const ElementTurn&) = delete;

 private:
  // Longer than a busy machine keeps a thread from running: 1 s of sleeps, and as much again of timers' slack.
  static constexpr uint32_t kRoundsMax = 20'000;
  // Of all claims together. Blocks give way to a waiting element, so only a misbehaving process reaches this limit.
  static constexpr uint32_t kRoundsOfAllMax = 3 * kRoundsMax;
  [[gnu::noinline]] void wait() noexcept {
    Gate& gate = slot_->gate();
    Backoff backoff;
    uint64_t claims = gate.claims.load(std::memory_order_relaxed);
    uint32_t rounds = 0, of_all = 0;  // of this claim; of all claims
    do {
      slot_->phase.store(Gate::waiting, std::memory_order_seq_cst);
      for (Updater holder; (holder = gate.claim.load(std::memory_order_acquire)) != 0; ++rounds, ++of_all) {
        const uint64_t now = gate.claims.load(std::memory_order_relaxed);
        if (now != claims) {
          claims = now;
          rounds = 0;
        }
        if (rounds > kRoundsMax || of_all > kRoundsOfAllMax) {
          (void)gate.claim.compare_exchange_strong(holder, 0, std::memory_order_acq_rel);
          rounds = 0;
        }
        if (of_all > kRoundsOfAllMax) break;
        backoff.pause();
      }
      slot_->phase.exchange(Gate::updating, std::memory_order_seq_cst);  // SYNC POINT: as in the constructor
    } while (gate.claim.load(std::memory_order_seq_cst) != 0 && ++of_all <= kRoundsOfAllMax);
  }

  Gate::Slot* slot_;
};

// The turn of a thread that updates a block by plain loads and stores.
class BlockTurn {
 public:
  // me: the caller's updater, which is inside no ElementTurn.
  BlockTurn(Gate* gate, Updater me) noexcept : gate_(gate), me_(me) {
    for (bool gave_way = false;; gave_way = true) {
      if (!claim()) return;
      const Gate::Slot* waits = nullptr;
      if (!others_end(&waits)) {
        (void)end();
        return;
      }
      if (waits == nullptr || gave_way) {
        taken_ = true;
        return;
      }
      (void)end();
      Backoff backoff;
      for (uint32_t round = 0; round < kGiveWayRounds; ++round) {
        if (waits->phase.load(std::memory_order_acquire) != Gate::waiting) break;
        backoff.pause();
      }
    }
  }
  ~BlockTurn() {
    if (taken_) (void)end();
  }
  BlockTurn(const BlockTurn&) = delete;
  BlockTurn& operator=(const BlockTurn&) = delete;
  // False: others do not end their updates in time. Use atomic instructions.
  [[nodiscard]] bool taken() const noexcept { return taken_; }
  // Ends the turn. False: others have gone on before, because this thread took too long.
  [[nodiscard]] bool end() noexcept {
    taken_ = false;
    Updater holder = me_;
    // SYNC POINT: the block is visible to all that find no claim.
    return gate_->claim.compare_exchange_strong(holder, 0, std::memory_order_acq_rel);
  }

 private:
  static constexpr uint32_t kRoundsMax = 2'000;    // some 0.1 s
  static constexpr uint32_t kGiveWayRounds = 324;  // spins, yields, and four sleeps
  bool claim() noexcept {
    Backoff backoff;
    for (uint32_t round = 0; round < kRoundsMax; ++round) {
      Updater none = 0;
      // SYNC POINT: a full barrier: either a slot's updater sees the claim, or we see it updating.
      if (gate_->claim.load(std::memory_order_relaxed) == 0 &&
          gate_->claim.compare_exchange_strong(none, me_, std::memory_order_seq_cst)) {
        gate_->claims.store(gate_->claims.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        return true;
      }
      backoff.pause();
    }
    return false;
  }
  // *waits: an updater that waits for the claim.
  bool others_end(const Gate::Slot** waits) noexcept {
    Backoff backoff;
    uint32_t round = 0;
    const uint32_t count = std::min(gate_->used.load(std::memory_order_seq_cst), Gate::kSlotCount);
    for (uint32_t i = 0; i < count; ++i) {
      const Gate::Slot& slot = gate_->slots[i];
      uint32_t phase;
      while ((phase = slot.phase.load(std::memory_order_seq_cst)) == Gate::updating) {
        if (++round == kRoundsMax) return false;
        backoff.pause();
      }
      if (phase == Gate::waiting) *waits = &slot;
    }
    return true;
  }

  Gate* gate_;
  Updater me_;
  bool taken_ = false;
};

}  // namespace weft::mem
