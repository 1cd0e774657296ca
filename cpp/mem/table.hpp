// cpp/mem/table.hpp: the memory table: the regions that a process offers, and the rights of peers to them.
// It is in the owner's control segment; peers map it read-only and read it without locks.
//
// How a reader and the owner agree (hazard words; the reader writes nothing to the owner's memory):
//   reader: publish an activity word in ITS OWN table (busy) -> full fence -> check the entry -> copy -> clear the word
//   owner, to revoke: set the entry's state to closing -> full fence -> wait until each activity word that was busy has
//                     changed -> only then change the entry or release the memory
// So an entry that a reader finds enabled under its published activity stays unchanged until the reader clears the
// word.
//
// Pointers that outlive an access use the same protocol (hazard pointers):
//   reader: under an activity: check the entry -> enter a hold on the place in ITS OWN table -> return the pointer
//   owner:  revoke as above, free the memory -> full fence -> read the holds of all peers -> do not reuse a place that
//           one of them names
// A hold ends when the reader clears it or the connection ends: the owner then no longer reads the peer's table.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/cache.hpp"
#include "base/lock.hpp"
#include "base/mapping.hpp"
#include "base/status.hpp"
#include "mem/device.hpp"
#include "mem/life.hpp"
#include "wire/address.hpp"
#include "wire/key.hpp"

namespace weft::mem {

constexpr uint64_t kTableMagic = 0x3242415446455757ull;
constexpr uint32_t kEpCountMax = 4096;
constexpr uint32_t kDomainCountMax = 256;     // activity words 0 .. 255: one per domain, also the domain's lock
constexpr uint32_t kLongActivityCount = 256;  // activity words 256 .. 511: one per copy made outside the lock
constexpr uint16_t kLentDomain = 0xffff;      // of buffers that are lent to the receiver of a message: no domain
constexpr uint32_t kActivityCount = kDomainCountMax + kLongActivityCount;
constexpr uint32_t kIovEntryCount = 1u << 16;
constexpr uint32_t kHoldCountMax = 1u << 16;

constexpr uint32_t kNoSegment = 0xffffffff;      // foreign memory: process_vm_* or the owner's engine
constexpr uint32_t kIovSegment = 0xfffffffe;     // several buffers: `where` is the index of the first in the iov area
constexpr uint32_t kDeviceSegment = 0xfffffffd;  // device memory: `where` is the index of its DeviceNote there

// The access word: the low 16 bits are libfabric's access bits, the high bits are Weft's flags.
constexpr uint32_t kRemoteRead = 0x1000;
constexpr uint32_t kRemoteWrite = 0x2000;
// Atomics have separate access bits, so that an endpoint can serve RMA without atomics, or the reverse. A region grants
// them with REMOTE_READ and REMOTE_WRITE (Table::insert).
constexpr uint32_t kAtomicRead = 0x4000;
constexpr uint32_t kAtomicWrite = 0x8000;
constexpr uint32_t kAccessMask = 0xffff;
constexpr uint32_t kMrNotifyRead = 1u << 16;  // a counter of the owner counts reads of this region
constexpr uint32_t kMrNotifyWrite = 1u << 17;
constexpr uint32_t kMrUnowned = 1u << 18;  // registered as a bare address range: its pages may be missing
// FI_MR_SINGLE_USE: the owner's engine executes the one operation and then revokes the key.
constexpr uint32_t kMrSingleUse = 1u << 19;
constexpr uint32_t kMrPersistent = 1u << 20;  // FI_RMA_PMEM: mapped from a file; a commit flushes it
// Only some peers may use the region: its AccessGuard follows its buffers in the iov area.
constexpr uint32_t kMrGuarded = 1u << 21;
// process_vm_* cannot access the memory (pinned by a device's runtime, or a DMA-buf): the owner copies.
constexpr uint32_t kMrByOwner = 1u << 22;
// Updates of elements and of blocks take turns: gate.hpp.
constexpr uint32_t kMrTurns = 1u << 23;
constexpr uint32_t kMrUsedUp = 1u << 24;  // the one operation of a single-use region has been executed

enum class MrState : uint32_t { free = 0, disabled = 1, enabled = 2, closing = 3 };

struct alignas(kCacheLine) MrEntry {
  std::atomic<uint64_t> state{0};  // generation << 8 | revision << 2 | MrState: every change of the entry changes it
  uint64_t key = 0;
  uint64_t base = 0;  // address of the first byte in the key's address space (0, or its virtual address)
  uint64_t length = 0;
  uint64_t local_addr = 0;  // virtual address in the owner
  uint64_t where = 0;       // offset in the segment, or first entry in the iov area
  uint32_t segment = kNoSegment;
  uint32_t access = 0;
  uint32_t ep_bound = 0;  // 0: any endpoint of the domain; ep_binding() of one; kEpSeveral | index of an EpList
  uint16_t domain = 0;
  uint16_t iov_count = 0;
};
static_assert(sizeof(MrEntry) == kCacheLine);

constexpr uint64_t kStateRevision = 4, kStateRevisionMask = 0xfc;
constexpr MrState state_of(uint64_t word) noexcept {
  return static_cast<MrState>(word & 3);
}
constexpr uint64_t generation_of(uint64_t word) noexcept {
  return word >> 8;
}

// A reader may read a slot while its owner fills it for a new region. The reader discards those values (the state is
// not "enabled" yet), but each access must be atomic.
template <typename T>
T load_relaxed(const T& from) noexcept {
  return __atomic_load_n(&from, __ATOMIC_RELAXED);
}
template <typename T>
void store_relaxed(T& to, T value) noexcept {
  __atomic_store_n(&to, value, __ATOMIC_RELAXED);
}
inline bool entry_is(const MrEntry& entry, uint32_t domain, uint64_t key) noexcept {
  return load_relaxed(entry.key) == key && load_relaxed(entry.domain) == domain;
}

struct IovEntry {
  uint64_t local_addr = 0;
  uint64_t length = 0;
  uint64_t where = 0;
  uint32_t segment = kNoSegment;
  uint32_t reserved = 0;
};
static_assert(sizeof(IovEntry) == 32);

// The initiators that a region admits: those with one of these VNIs (authorization keys), or only one endpoint.
struct AccessGuard {
  static constexpr size_t kVniMax = 32;
  uint32_t vni_count = 0;  // 0: any
  uint32_t has_source = 0;
  wire::EpAddress source;
  std::array<uint16_t, kVniMax> vnis{};
  std::array<std::byte, 44> reserved{};

  [[nodiscard]] bool admits(const wire::EpAddress& from) const noexcept {
    if (has_source != 0 && source != from) return false;
    const size_t n = vni_count < kVniMax ? vni_count : kVniMax;  // a peer may have written any value
    for (size_t i = 0; i < n; ++i) {
      if (vnis[i] == from.vni) return true;
    }
    return n == 0;
  }
};
static_assert(sizeof(AccessGuard) == 128);
// A DeviceNote or an AccessGuard takes this many entries of the iov area.
constexpr uint32_t kIovPerRecord = sizeof(DeviceNote) / sizeof(IovEntry);
static_assert(sizeof(DeviceNote) == sizeof(AccessGuard) && sizeof(DeviceNote) % sizeof(IovEntry) == 0);

// The endpoint that a region is bound to: its slot and the low bits of the slot's generation, which distinguish it from
// an endpoint that gets the slot later. Never 0: an open endpoint's generation is odd.
constexpr uint32_t kEpSeveral = 0x80000000;
constexpr uint32_t ep_binding(uint32_t index, uint32_t generation) noexcept {
  return (index & (kEpCountMax - 1)) | (generation << 12 & ~kEpSeveral);
}
static_assert(kEpCountMax == 1u << 12 && kIovEntryCount < kEpSeveral);
// The list of a region bound to several endpoints, in the iov area; further bindings follow it.
struct EpList {
  uint32_t count = 0;
  std::array<uint32_t, 7> first{};
};
static_assert(sizeof(EpList) == sizeof(IovEntry));
constexpr uint32_t iov_per_ep_list(size_t count) noexcept {
  return static_cast<uint32_t>((sizeof(uint32_t) * (count + 1) + sizeof(IovEntry) - 1) / sizeof(IovEntry));
}

constexpr uint32_t kEpProvKey = 1;     // keys are provider keys
constexpr uint32_t kEpNotifyRead = 2;  // a counter counts remote reads of this endpoint
constexpr uint32_t kEpNotifyWrite = 4;
constexpr uint32_t kEpRemoteRead = 8;  // the endpoint's capabilities: RMA ...
constexpr uint32_t kEpRemoteWrite = 16;
constexpr uint32_t kEpAtomicRead = 32;  // ... and atomics
constexpr uint32_t kEpAtomicWrite = 64;
constexpr uint32_t kEpConnected = 128;   // only its connected peer may access its regions
constexpr uint32_t kEpForeignKey = 256;  // its authorization key is not the domain's: regions must name the key
constexpr uint32_t kEpNoRoom = 512;      // its completion queue has no room for writes with data at present
static_assert((kRemoteRead >> 9) == kEpRemoteRead && (kRemoteWrite >> 9) == kEpRemoteWrite);
static_assert((kAtomicRead >> 9) == kEpAtomicRead && (kAtomicWrite >> 9) == kEpAtomicWrite);

struct alignas(kCacheLine) EpEntry {
  std::atomic<uint32_t> generation{0};  // even: closed; odd: open
  std::atomic<uint32_t> flags{0};
  uint32_t domain = 0;
  wire::EpAddress address;  // vni 0: the endpoint has several VNIs
  wire::EpAddress peer;     // kEpConnected: the connected peer
};
static_assert(sizeof(EpEntry) == kCacheLine);
inline wire::EpAddress peer_of(const EpEntry& endpoint) noexcept {
  const wire::EpAddress& p = endpoint.peer;
  return {load_relaxed(p.nic), load_relaxed(p.pid), load_relaxed(p.vni), load_relaxed(p.reserved)};
}

struct alignas(kCacheLine) ActivityWord {
  std::atomic<uint64_t> word{0};  // odd: busy. Even values grow, so that a waiter sees any change.
};

// Identifies a NIC among all running NICs: random.
struct NicId {
  uint64_t first = 0, second = 0;
  bool operator==(const NicId&) const = default;
};

// A place in a segment of another NIC (or of this one) to which this process has given out pointers.
struct alignas(kCacheLine) HoldEntry {
  std::atomic<uint32_t> held{0};
  uint32_t segment = 0;
  NicId owner;
  uint64_t offset = 0, length = 0;
};
static_assert(sizeof(HoldEntry) == kCacheLine);

struct alignas(kCacheLine) TableHeader {
  uint64_t magic = 0;
  uint32_t mr_count_max = 0;
  uint32_t index_size = 0;
  std::atomic<uint64_t> index_version{0};  // grows when the key index is rearranged
  // One past the highest activity word that was ever used, of domains and of long copies: quiesce() reads only the
  // words below it. Grows before a word above it is written for the first time.
  std::atomic<uint32_t> domains_used{0};
  std::atomic<uint32_t> longs_used{0};
  std::atomic<uint32_t> life{0};  // of the owner's program: life.hpp
  NicId nic;
  std::atomic<uint32_t> holds_used{0};   // one past the highest hold that was ever used
  std::atomic<uint64_t> holds_ended{0};  // number of holds that have ended
  // Calls that wait for changes of the owner's memory (nic/parking.hpp). Not 0: who changes it by stores wakes the
  // owner.
  std::atomic<uint32_t> parked{0};
};
static_assert(sizeof(TableHeader) <= 4096);

// Offsets of the table's parts; owner and readers compute the same ones.
struct TableLayout {
  explicit constexpr TableLayout(uint32_t mr_count) noexcept
      : mr_count_max(mr_count),
        index_size(mr_count * 2),
        ep_at(4096),
        activity_at(ep_at + sizeof(EpEntry) * kEpCountMax),
        hold_at(activity_at + sizeof(ActivityWord) * kActivityCount),
        iov_at(hold_at + sizeof(HoldEntry) * kHoldCountMax),
        mr_at(iov_at + sizeof(IovEntry) * kIovEntryCount),
        index_at(mr_at + sizeof(MrEntry) * mr_count),
        bytes(index_at + sizeof(uint32_t) * index_size) {}
  uint32_t mr_count_max, index_size;
  size_t ep_at, activity_at, hold_at, iov_at, mr_at, index_at, bytes;
};

struct MrView {  // the result of a successful check
  const MrEntry* entry = nullptr;
  uint32_t slot = 0;
  uint64_t offset = 0;  // from the region's first byte
  uint64_t state = 0;   // the entry's state word at the check: enabled. The owner may have changed the word since
};

// Read access to the table of this process or of a peer. Checks every index that it reads from the table.
class TableView {
 public:
  TableView() = default;
  TableView(const std::byte* base, uint32_t mr_count_max) noexcept : layout_(mr_count_max), base_(base) {}

  [[nodiscard]] bool valid() const noexcept { return base_ != nullptr; }
  [[nodiscard]] const EpEntry& ep(uint32_t index) const noexcept {
    return reinterpret_cast<const EpEntry*>(base_ + layout_.ep_at)[index & (kEpCountMax - 1)];
  }
  [[nodiscard]] const ActivityWord& activity(uint32_t index) const noexcept {
    return reinterpret_cast<const ActivityWord*>(base_ + layout_.activity_at)[index];
  }
  [[nodiscard]] const MrEntry& mr(uint32_t slot) const noexcept {
    return reinterpret_cast<const MrEntry*>(base_ + layout_.mr_at)[slot];
  }
  [[nodiscard]] std::span<const IovEntry> iov(const MrEntry& entry) const noexcept {
    const auto* all = reinterpret_cast<const IovEntry*>(base_ + layout_.iov_at);
    if (entry.where >= kIovEntryCount || entry.iov_count > kIovEntryCount - entry.where) return {};
    return {all + entry.where, entry.iov_count};
  }
  // Null if the index, which a peer may have written, is out of range.
  [[nodiscard]] const DeviceNote* note(uint64_t where) const noexcept { return record<DeviceNote>(where); }
  [[nodiscard]] const AccessGuard* guard(const MrEntry& entry) const noexcept {
    return record<AccessGuard>(load_relaxed(entry.where) + load_relaxed(entry.iov_count));
  }
  // True: the owner's process died, or runs another program. One load of a line that rarely changes.
  [[nodiscard]] bool owner_gone() const noexcept { return life_over(header().life); }
  [[nodiscard]] NicId nic_id() const noexcept {
    return {load_relaxed(header().nic.first), load_relaxed(header().nic.second)};
  }
  // Calls visit(segment, offset, length) for each hold on a place of `owner`. A hold that the other process is writing
  // may be read half-written: the owner then treats a wrong place as held, and checks again later.
  template <typename Visit>
  void each_hold(const NicId& owner, Visit&& visit) const {
    const auto* all = reinterpret_cast<const HoldEntry*>(base_ + layout_.hold_at);
    // SYNC POINT: pairs with begin_hold(): the owner sees every hold entered before its region was revoked.
    const uint32_t used = std::min(header().holds_used.load(std::memory_order_seq_cst), kHoldCountMax);
    for (uint32_t i = 0; i < used; ++i) {
      const HoldEntry& h = all[i];
      if (h.held.load(std::memory_order_seq_cst) == 0) continue;
      if (load_relaxed(h.owner.first) != owner.first || load_relaxed(h.owner.second) != owner.second) continue;
      visit(load_relaxed(h.segment), load_relaxed(h.offset), load_relaxed(h.length));
    }
  }
  // Whether holds(index, word) is true of each word of activity: the domains' locks before the long copies, because a
  // long copy is announced before its lock is released. The other process writes the counts, so they are limited here.
  template <typename Test>
  bool each_activity(Test&& holds) const {
    const auto all = [&](uint32_t first, const std::atomic<uint32_t>& used, uint32_t most) {
      const uint32_t end = first + std::min(used.load(std::memory_order_seq_cst), most);
      for (uint32_t i = first; i < end; ++i) {
        if (!holds(i, activity(i).word.load(std::memory_order_seq_cst))) return false;
      }
      return true;
    };
    return all(0, header().domains_used, kDomainCountMax) &&
           all(kDomainCountMax, header().longs_used, kLongActivityCount);
  }
  [[nodiscard]] const TableHeader& header() const noexcept { return *reinterpret_cast<const TableHeader*>(base_); }
  [[nodiscard]] uint32_t mr_count_max() const noexcept { return layout_.mr_count_max; }

  // HOT: may `from` access [addr, addr + length) with `want` (kRemoteRead, kRemoteWrite, kAtomicRead, kAtomicWrite)
  // through endpoint ep_index?
  // Touches the endpoint's line and the entry's line, and for client keys one word of the index. No store.
  Status check(const wire::EpAddress& from, uint32_t ep_index, uint32_t ep_generation, uint64_t key, uint64_t addr,
               uint64_t length, uint32_t want, MrView& out) const noexcept {
    const EpEntry& endpoint = ep(ep_index);
    if (endpoint.generation.load(std::memory_order_acquire) != ep_generation) [[unlikely]]
      return Status::no_endpoint;
    const uint32_t flags = endpoint.flags.load(std::memory_order_relaxed), domain = load_relaxed(endpoint.domain);
    uint32_t slot;
    if (flags & kEpProvKey) {
      slot = static_cast<uint32_t>(key & wire::kKeySlotMax);
      if (slot >= layout_.mr_count_max) [[unlikely]]
        return Status::no_key;
    } else {
      slot = find_client_key(domain, key);
      if (slot == kNoSlot) [[unlikely]]
        return Status::no_key;
    }
    const MrEntry& entry = mr(slot);
    // SYNC POINT: pairs with the owner's release store when the region was enabled: the entry's fields are visible.
    const uint64_t state = entry.state.load(std::memory_order_acquire);
    if (state_of(state) != MrState::enabled || !entry_is(entry, domain, key)) [[unlikely]] {
      return explain(entry, state, key, endpoint);
    }
    const uint64_t offset = addr - load_relaxed(entry.base), entry_length = load_relaxed(entry.length);
    if (offset > entry_length || length > entry_length - offset) [[unlikely]]
      return Status::bounds;
    // The endpoint's capability bits have the order of the access bits: 0x1000 >> 9 is kEpRemoteRead.
    const uint32_t access = load_relaxed(entry.access);
    if ((access & (want | kMrGuarded)) != want || (flags & (want >> 9 | kEpForeignKey | kEpConnected)) != (want >> 9))
        [[unlikely]] {
      if ((access & want) != want) return Status::access;
      if ((flags & (want >> 9)) != (want >> 9)) return Status::endpoint_access;
      if ((flags & kEpConnected) != 0 && peer_of(endpoint) != from) return Status::unauthorized;
      if ((access & kMrGuarded) != 0 || (flags & kEpForeignKey) != 0) {
        const AccessGuard* g = (access & kMrGuarded) != 0 ? guard(entry) : nullptr;
        if (g == nullptr || !g->admits(from)) return Status::unauthorized;
      }
    }
    const uint32_t ep_bound = load_relaxed(entry.ep_bound);
    if (ep_bound != 0 && ep_bound != ep_binding(ep_index, ep_generation)) [[unlikely]] {
      if (!bound_among(ep_bound, ep_binding(ep_index, ep_generation))) return Status::wrong_endpoint;
    }
    out = {&entry, slot, offset, state};
    return Status::ok;
  }

  // A buffer that its owner has lent to the receiver of a message (kLentDomain): keys of no endpoint reach it. No
  // store.
  Status check_lent(uint64_t key, uint64_t offset, uint64_t length, MrView& out) const noexcept {
    const auto slot = static_cast<uint32_t>(key & wire::kKeySlotMax);
    if (slot >= layout_.mr_count_max) return Status::no_key;
    const MrEntry& entry = mr(slot);
    const uint64_t state = entry.state.load(std::memory_order_acquire);  // SYNC POINT: as in check()
    if (state_of(state) != MrState::enabled || !entry_is(entry, kLentDomain, key)) return Status::stale_key;
    const uint64_t entry_length = load_relaxed(entry.length);
    if (offset > entry_length || length > entry_length - offset) return Status::bounds;
    out = {&entry, slot, offset, state};
    return Status::ok;
  }

  static constexpr uint32_t kNoSlot = 0xffffffff;
  [[nodiscard]] uint32_t find_client_key(uint32_t domain, uint64_t key) const noexcept {
    const auto* index = reinterpret_cast<const std::atomic<uint32_t>*>(base_ + layout_.index_at);
    const uint32_t mask = layout_.index_size - 1;
    const uint32_t start = static_cast<uint32_t>(key_hash(domain, key)) & mask;
    const uint32_t first = index[start].load(std::memory_order_acquire);
    if (first > kTombstone) [[likely]] {
      const uint32_t slot = first - kIndexBias;
      if (slot < layout_.mr_count_max && entry_is(mr(slot), domain, key)) return slot;
    }
    // A miss may be wrong while the owner rearranges the index: the slow path checks again.
    return find_client_key_slow(domain, key, start);
  }

  static constexpr uint64_t key_hash(uint32_t domain, uint64_t key) noexcept {
    // Sixteen neighbouring keys share a cache line; the upper bits, well mixed, choose the line. Without mixing, dense
    // keys would fill neighbouring lines as one long run, and every key that hashes into it would probe to its end.
    uint64_t x = key >> 4 ^ uint64_t { domain } << 48;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    return x << 4 | (key & 15);
  }

 protected:
  static constexpr uint32_t kTombstone = 1;
  static constexpr uint32_t kIndexBias = 2;

 private:
  template <typename T>
  [[nodiscard]] const T* record(uint64_t where) const noexcept {
    if (where > kIovEntryCount - kIovPerRecord) return nullptr;
    return reinterpret_cast<const T*>(base_ + layout_.iov_at + where * sizeof(IovEntry));
  }
  [[nodiscard]] uint32_t find_client_key_slow(uint32_t domain, uint64_t key, uint32_t start) const noexcept;
  // True if the list of ep_bound contains this binding.
  [[nodiscard]] bool bound_among(uint32_t ep_bound, uint32_t binding) const noexcept;
  [[nodiscard]] Status explain(const MrEntry& entry, uint64_t state, uint64_t key,
                               const EpEntry& endpoint) const noexcept;

  TableLayout layout_{1};
  const std::byte* base_ = nullptr;
};

struct MrBuffer {
  uint64_t local_addr = 0;
  uint64_t length = 0;
  uint64_t where = 0;
  uint32_t segment = kNoSegment;
};

struct MrRequest {
  std::span<const MrBuffer> buffers;
  uint64_t base = 0;
  uint32_t access = 0;  // access bits and kMr* flags
  uint16_t domain = 0;
  std::optional<uint64_t> client_key;   // any 64 bits but kKeyNotAvail; empty: the table makes a provider key
  std::span<const DeviceNote> notes{};  // one per buffer, or empty; iface 0: that buffer is host memory
  const AccessGuard* guard = nullptr;
  bool fetches_need_both = false;  // FI_ATOMIC_READ, too, needs both rights
  // The entry is published already enabled: a racing reader finds either no key or a usable region, never a disabled
  // one.
  bool enabled = false;
};

// The owner's table. Its calls are control path: one short lock, O(1), no system call after the pages are touched.
class Table : public TableView {
 public:
  explicit Table(uint32_t mr_count_max);

  // Enters a region; throws Error(ENOKEY) for a client key in use, Error(ENOSPC) when full.
  uint32_t insert(const MrRequest& request);
  void enable(uint32_t slot) noexcept;
  // Binds a region that is not enabled to these endpoints (ep_binding()) and no others. Throws Error(ENOSPC).
  void bind_eps(uint32_t slot, std::span<const uint32_t> bindings);
  void add_access_flags(uint32_t slot, uint32_t flags);
  // SYNC POINT: after either returns, every later check() fails; the caller must wait for accesses that began earlier.
  void disable(uint32_t slot) noexcept;  // until enable()
  void begin_close(uint32_t slot) noexcept;
  void use_up(uint32_t slot) noexcept;  // begin_close() of a single-use region, by its operation
  void reopen(uint32_t slot) noexcept;  // undoes begin_close() of an enabled region, unless the region is used up
  [[nodiscard]] bool used_up(uint32_t slot) const noexcept { return (load_relaxed(mr(slot).access) & kMrUsedUp) != 0; }
  void release(uint32_t slot) noexcept;

  uint32_t open_ep(uint32_t domain, uint32_t flags, const wire::EpAddress& address, uint32_t* generation);
  void set_ep_room(uint32_t index, bool room) noexcept;  // kEpNoRoom
  // Sets the peer of a connected endpoint; until then every peer's access through the endpoint is refused.
  void set_ep_peer(uint32_t index, const wire::EpAddress& peer) noexcept;
  void close_ep(uint32_t index) noexcept;

  [[nodiscard]] ActivityWord& own_activity(uint32_t index) noexcept {
    assert(index < kDomainCountMax + kLongActivityCount && "a domain's number, or a long activity's");
    auto& header = *reinterpret_cast<TableHeader*>(writable_);
    auto& used = index < kDomainCountMax ? header.domains_used : header.longs_used;
    const uint32_t wanted = (index < kDomainCountMax ? index : index - kDomainCountMax) + 1;
    uint32_t seen = used.load(std::memory_order_relaxed);
    while (seen < wanted && !used.compare_exchange_weak(seen, wanted, std::memory_order_seq_cst)) {
    }
    return reinterpret_cast<ActivityWord*>(writable_ + layout_.activity_at)[index];
  }
  [[nodiscard]] std::atomic<uint32_t>& parked() noexcept { return reinterpret_cast<TableHeader*>(writable_)->parked; }
  [[nodiscard]] std::atomic<uint32_t>& life() noexcept { return reinterpret_cast<TableHeader*>(writable_)->life; }
  void set_nic_id(const NicId& id) noexcept;
  static constexpr uint32_t kNoHold = 0xffffffff;
  // Enters a hold; kNoHold if all entries are in use.
  uint32_t begin_hold(const NicId& owner, uint32_t segment, uint64_t offset, uint64_t length);
  void end_hold(uint32_t hold) noexcept;
  // True in a forked child, where the table belongs to the parent.
  [[nodiscard]] bool is_parents() const noexcept { return !fd_.valid(); }

  [[nodiscard]] const TableLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] uint32_t live_count() const noexcept { return live_count_.load(std::memory_order_relaxed); }
  // The bytes of all regions; memory in several regions counts several times.
  [[nodiscard]] uint64_t registered_bytes() const;
  void close_fd() noexcept { fd_.reset(); }
#if !defined(NDEBUG)
  using TableView::check;
  void check();  // what must be true while no thread holds the lock
#endif

 private:
  MrEntry& entry(uint32_t slot) noexcept {
    assert(slot < layout_.mr_count_max && "a slot of this table");
    return reinterpret_cast<MrEntry*>(writable_ + layout_.mr_at)[slot];
  }
  std::atomic<uint32_t>* index() noexcept {
    return reinterpret_cast<std::atomic<uint32_t>*>(writable_ + layout_.index_at);
  }
  void index_insert(uint32_t slot);
  void index_erase(uint32_t slot) noexcept;
  void index_rebuild() noexcept;
  uint32_t iov_allocate(size_t count);
  void iov_release(uint32_t first, uint32_t count) noexcept;
  void release_ep_list(MrEntry& e) noexcept;  // requires the mutex
  static void revise(MrEntry& e) noexcept;    // after a change of the entry's fields
  [[nodiscard]] IovEntry* iov_at(uint64_t where) noexcept {
    return reinterpret_cast<IovEntry*>(writable_ + layout_.iov_at) + where;
  }

  TableLayout layout_;
  UniqueFd fd_;
  Mapping mapping_;
  std::byte* writable_ = nullptr;
  mutable RankedMutex<lock_rank::kTable> mutex_;
  std::vector<uint32_t> free_slots_ GUARDED_BY(mutex_);
  uint32_t slots_used_ GUARDED_BY(mutex_) = 0;
  std::vector<uint32_t> tombstones_ GUARDED_BY(mutex_);  // positions of the tombstones in the index
  std::vector<uint32_t> indexed_ GUARDED_BY(mutex_);     // slots with client keys, for rebuilding
  std::vector<std::pair<uint32_t, uint32_t>> indexed_at_
      GUARDED_BY(mutex_);  // by slot: position in indexed_ + 1 (0: none), position in the index
  std::map<uint32_t, uint32_t> iov_free_ GUARDED_BY(mutex_){
      {0, kIovEntryCount}};  // first -> count; neighbouring ranges are joined
  std::deque<uint32_t> ep_free_ GUARDED_BY(
      mutex_);  // longest free first: readers of a slot's old endpoint have most likely finished before its reuse
  std::atomic<uint32_t> live_count_{0};
  RankedMutex<lock_rank::kTableHolds> hold_mutex_;
  std::vector<uint32_t> free_holds_ GUARDED_BY(hold_mutex_);
};

}  // namespace weft::mem
