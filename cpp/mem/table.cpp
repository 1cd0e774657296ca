// cpp/mem/table.cpp: the owner's side of the memory table, and the readers' slow paths.
#include "mem/table.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <string>

#include "base/backoff.hpp"

namespace weft::mem {

// ---- readers ---------------------------------------------------------------------------------------------------

uint32_t TableView::find_client_key_slow(uint32_t domain, uint64_t key, uint32_t start) const noexcept {
  const auto* index = reinterpret_cast<const std::atomic<uint32_t>*>(base_ + layout_.index_at);
  const uint32_t mask = layout_.index_size - 1;
  // An owner killed in the middle of a rebuild leaves the version odd, so stop after about a second of retries.
  constexpr int kRoundsMax = 20'000;
  Backoff backoff;
  for (int round = 0; round < kRoundsMax; ++round) {
    const uint64_t version = header().index_version.load(std::memory_order_acquire);
    uint32_t at = start;
    for (uint32_t probes = 0; probes <= mask; ++probes, at = (at + 1) & mask) {
      const uint32_t word = index[at].load(std::memory_order_acquire);
      if (word == 0) break;
      if (word == kTombstone) continue;
      const uint32_t slot = word - kIndexBias;
      if (slot < layout_.mr_count_max && entry_is(mr(slot), domain, key)) return slot;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    // A miss is valid only if the version is even (no rebuild is running) and has not changed during the search.
    if ((version & 1) == 0 && header().index_version.load(std::memory_order_relaxed) == version) return kNoSlot;
    backoff.pause();
  }
  return kNoSlot;
}

bool TableView::bound_among(uint32_t ep_bound, uint32_t binding) const noexcept {
  if ((ep_bound & kEpSeveral) == 0) return false;
  const uint32_t where = ep_bound & ~kEpSeveral;
  // A peer may have written the index and the count: check both.
  if (where >= kIovEntryCount) return false;
  const auto* list = reinterpret_cast<const uint32_t*>(base_ + layout_.iov_at + where * sizeof(IovEntry));
  const size_t room = (kIovEntryCount - where) * sizeof(IovEntry) / sizeof(uint32_t) - 1;
  const size_t count = std::min<size_t>({load_relaxed(list[0]), room, kEpCountMax});
  for (size_t i = 1; i <= count; ++i) {
    if (load_relaxed(list[i]) == binding) return true;
  }
  return false;
}

Status TableView::explain(const MrEntry& entry, uint64_t state, uint64_t key, const EpEntry& endpoint) const noexcept {
  const uint64_t generation = generation_of(state);
  if (endpoint.flags.load(std::memory_order_relaxed) & kEpProvKey) {
    const auto parsed = wire::ProviderKey::parse(key);
    if (parsed.generation == 0 || parsed.generation > generation) return Status::no_key;
    if (parsed.generation < generation || load_relaxed(entry.key) != key) return Status::stale_key;
  } else if (load_relaxed(entry.key) != key) {
    return Status::no_key;
  }
  if (load_relaxed(entry.domain) != load_relaxed(endpoint.domain)) return Status::no_key;
  switch (state_of(state)) {
    case MrState::disabled:
      return Status::not_enabled;
    case MrState::free:
    case MrState::closing:
      return Status::stale_key;
    case MrState::enabled:
      break;
  }
  return Status::no_key;
}

// ---- the owner -------------------------------------------------------------------------------------------------

Table::Table(uint32_t mr_count_max) : layout_(mr_count_max) {
  if (mr_count_max == 0 || mr_count_max > wire::kKeySlotMax || (mr_count_max & (mr_count_max - 1)) != 0) {
    throw Error(fi_err::kEINVAL,
                "mr_count_max must be a power of two up to 2097152, not " + std::to_string(mr_count_max));
  }
  fd_ = make_memfd("weft-table", layout_.bytes);
  mapping_ = Mapping::shared(fd_.get(), layout_.bytes, true, "the memory table");
  seal_read_only(fd_.get());
  writable_ = mapping_.data();
  for (uint32_t i = 0; i < kEpCountMax; ++i) ep_free_.push_back(i);
  auto* header = new (writable_) TableHeader;
  header->magic = kTableMagic;
  header->mr_count_max = layout_.mr_count_max;
  header->index_size = layout_.index_size;
  static_cast<TableView&>(*this) = TableView(writable_, mr_count_max);
}

uint32_t Table::iov_allocate(size_t count) {
  mutex_.assert_held();
  for (auto it = iov_free_.begin(); it != iov_free_.end(); ++it) {
    const auto [first, free] = *it;
    if (free < count) continue;
    iov_free_.erase(it);
    if (free > count) iov_free_.emplace(first + static_cast<uint32_t>(count), free - static_cast<uint32_t>(count));
    return first;
  }
  throw Error(fi_err::kENOSPC, "too many regions of several buffers: no " + std::to_string(count) + " of the " +
                                   std::to_string(kIovEntryCount) + " buffer entries are free in a row; close some");
}

void Table::iov_release(uint32_t first, uint32_t count) noexcept {
  mutex_.assert_held();
  auto next = iov_free_.lower_bound(first);
  if (next != iov_free_.end() && first + count == next->first) {
    count += next->second;
    next = iov_free_.erase(next);
  }
  if (next != iov_free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == first) {
      previous->second += count;
      return;
    }
  }
  iov_free_.emplace(first, count);
}

uint32_t Table::insert(const MrRequest& request) {
  const Guard lock(mutex_);
  if (request.client_key && find_client_key(request.domain, *request.client_key) != kNoSlot) {
    throw Error(fi_err::kENOKEY,
                "requested_key " + std::to_string(*request.client_key) +
                    " is already in use by a region of this domain: close that region or choose another key");
  }
  const size_t notes =
      static_cast<size_t>(std::ranges::count_if(request.notes, [](const DeviceNote& n) { return n.iface != 0; }));
  const bool several = request.buffers.size() > 1 || request.guard != nullptr;
  const size_t iov_count =
      (several ? request.buffers.size() : 0) + kIovPerRecord * (notes + (request.guard != nullptr ? 1 : 0));
  if (free_slots_.empty() && slots_used_ == layout_.mr_count_max) {
    throw Error(fi_err::kENOSPC, "all " + std::to_string(layout_.mr_count_max) +
                                     " entries of the memory table are in use: close some regions");
  }
  const uint32_t first_iov = iov_count != 0 ? iov_allocate(iov_count) : 0;  // the last call that can throw
  uint32_t slot;
  if (!free_slots_.empty()) {
    slot = free_slots_.back();
    free_slots_.pop_back();
  } else {
    slot = slots_used_++;  // still zero, which is a valid free entry for concurrent readers
    indexed_at_.emplace_back(0, 0);
  }
  MrEntry& e = entry(slot);
  const uint64_t generation = generation_of(e.state.load(std::memory_order_relaxed)) + 1;
  uint64_t length = 0;
  for (const MrBuffer& buffer : request.buffers) length += buffer.length;
  // Readers may read these fields now, and discard them until the state is "enabled".
  store_relaxed(e.length, length);
  store_relaxed(e.base, request.base);
  // kRemoteRead << 2 is kAtomicRead, kRemoteWrite << 2 is kAtomicWrite.
  static_assert(kRemoteRead << 2 == kAtomicRead && kRemoteWrite << 2 == kAtomicWrite);
  uint32_t atomics = (request.access & (kRemoteRead | kRemoteWrite)) << 2;
  // FI_ATOMIC_READ alone needs no more than this right; the other atomics that read also write.
  if (request.fetches_need_both && (atomics & kAtomicWrite) == 0) atomics &= ~kAtomicRead;
  store_relaxed(e.access, request.access | atomics | (request.guard != nullptr ? kMrGuarded : 0));
  store_relaxed(e.ep_bound, uint32_t{0});
  store_relaxed(e.domain, request.domain);
  e.local_addr = request.buffers.empty() ? 0 : request.buffers[0].local_addr;
  // The iov area holds: the buffers, if there are several; the guard; the notes.
  uint64_t record_at = first_iov + (several ? request.buffers.size() : 0);
  if (request.guard != nullptr) {
    std::memcpy(static_cast<void*>(iov_at(record_at)), request.guard, sizeof(AccessGuard));
    record_at += kIovPerRecord;
  }
  const auto place = [&](size_t i) {
    MrBuffer b = request.buffers[i];
    if (i < request.notes.size() && request.notes[i].iface != 0) {
      std::memcpy(static_cast<void*>(iov_at(record_at)), &request.notes[i], sizeof(DeviceNote));
      b.segment = kDeviceSegment;
      b.where = record_at;
      record_at += kIovPerRecord;
    }
    return b;
  };
  if (!several) {
    const MrBuffer b = request.buffers.empty() ? MrBuffer{} : place(0);
    e.iov_count = 1;
    e.segment = b.segment;
    e.where = b.where;
  } else {
    e.where = first_iov;
    e.iov_count = static_cast<uint16_t>(request.buffers.size());
    e.segment = kIovSegment;
    for (size_t i = 0; i < request.buffers.size(); ++i) {
      const MrBuffer b = place(i);
      *iov_at(e.where + i) = {b.local_addr, b.length, b.where, b.segment, 0};
    }
  }
  store_relaxed(e.key, request.client_key ? *request.client_key : wire::ProviderKey{slot, generation}.emit());
  // SYNC POINT: release: a reader that sees this state sees the fields above.
  const MrState first = request.enabled ? MrState::enabled : MrState::disabled;
  e.state.store(generation << 8 | static_cast<uint64_t>(first), std::memory_order_release);
  if (request.client_key) index_insert(slot);
  live_count_.fetch_add(1, std::memory_order_relaxed);
  return slot;
}

uint64_t Table::registered_bytes() const {
  const Guard lock(mutex_);
  uint64_t sum = 0;
  for (uint32_t slot = 0; slot < slots_used_; ++slot) {
    const MrEntry& e = reinterpret_cast<const MrEntry*>(writable_ + layout_.mr_at)[slot];
    if (state_of(e.state.load(std::memory_order_relaxed)) == MrState::free) continue;
    if (__builtin_add_overflow(sum, e.length, &sum)) return UINT64_MAX;  // a region of the whole address space
  }
  return sum;
}

void Table::release_ep_list(MrEntry& e) noexcept {
  mutex_.assert_held();
  if ((e.ep_bound & kEpSeveral) == 0) return;
  const uint32_t where = e.ep_bound & ~kEpSeveral;
  iov_release(where, iov_per_ep_list(reinterpret_cast<const EpList*>(iov_at(where))->count));
  store_relaxed(e.ep_bound, uint32_t{0});
}

void Table::bind_eps(uint32_t slot, std::span<const uint32_t> bindings) {
  const Guard lock(mutex_);
  MrEntry& e = entry(slot);
  assert(state_of(e.state.load(std::memory_order_relaxed)) != MrState::enabled && "before peers may use the region");
  revise(e);
  if (bindings.size() < 2) {
    release_ep_list(e);
    store_relaxed(e.ep_bound, bindings.empty() ? 0 : bindings[0]);
    return;
  }
  const uint32_t where = iov_allocate(iov_per_ep_list(bindings.size()));
  release_ep_list(e);
  auto* list = reinterpret_cast<uint32_t*>(iov_at(where));
  store_relaxed(list[0], static_cast<uint32_t>(bindings.size()));
  for (size_t i = 0; i < bindings.size(); ++i) store_relaxed(list[i + 1], bindings[i]);
  store_relaxed(e.ep_bound, kEpSeveral | where);
}

// One step between disabled and enabled, because other threads may change the revision meanwhile.
static_assert((static_cast<int>(MrState::disabled) ^ 3) == static_cast<int>(MrState::enabled));
void Table::enable(uint32_t slot) noexcept {
  MrEntry& e = entry(slot);  // a used single-use region stays closing
  if (state_of(e.state.load(std::memory_order_relaxed)) == MrState::disabled)
    e.state.fetch_xor(3, std::memory_order_release);
}

// Peers cache the entry's fields while its state word is unchanged. Several threads may change the word at a time.
void Table::revise(MrEntry& e) noexcept {
  uint64_t state = e.state.load(std::memory_order_relaxed), next;
  do {
    next = (state & ~kStateRevisionMask) | ((state + kStateRevision) & kStateRevisionMask);
  } while (!e.state.compare_exchange_weak(state, next, std::memory_order_release, std::memory_order_relaxed));
}

void Table::add_access_flags(uint32_t slot, uint32_t flags) {
  MrEntry& e = entry(slot);
  if ((__atomic_fetch_or(&e.access, flags, __ATOMIC_RELAXED) & flags) != flags) revise(e);
}

void Table::disable(uint32_t slot) noexcept {
  MrEntry& e = entry(slot);
  uint64_t state = e.state.load(std::memory_order_relaxed);
  // Do not overwrite "closing", which the engine sets after the use of a single-use region.
  while (state_of(state) == MrState::enabled &&
         !e.state.compare_exchange_weak(state, state ^ 3, std::memory_order_seq_cst)) {
  }
}

void Table::begin_close(uint32_t slot) noexcept {
  entry(slot).state.fetch_or(static_cast<uint64_t>(MrState::closing), std::memory_order_seq_cst);
}

void Table::use_up(uint32_t slot) noexcept {
  add_access_flags(slot, kMrUsedUp);
  begin_close(slot);
}

void Table::reopen(uint32_t slot) noexcept {
  if (used_up(slot)) return;
  entry(slot).state.fetch_and(~uint64_t{1}, std::memory_order_release);  // closing to enabled
}

void Table::release(uint32_t slot) noexcept {
  const Guard lock(mutex_);
  assert(slot < slots_used_ && "the slot was ever used");
  MrEntry& e = entry(slot);
  assert(state_of(e.state.load(std::memory_order_relaxed)) != MrState::free && "a slot is released once");
  if (indexed_at_[slot].first != 0) index_erase(slot);
  release_ep_list(e);
  if (e.segment == kIovSegment) {
    uint32_t count = e.iov_count + ((e.access & kMrGuarded) != 0 ? kIovPerRecord : 0);
    for (uint32_t i = 0; i < e.iov_count; ++i) {
      if (iov_at(e.where + i)->segment == kDeviceSegment) count += kIovPerRecord;
    }
    iov_release(static_cast<uint32_t>(e.where), count);
  } else if (e.segment == kDeviceSegment) {
    iov_release(static_cast<uint32_t>(e.where), kIovPerRecord);
  }
  const uint64_t state = e.state.load(std::memory_order_relaxed);
  e.state.store((state & ~uint64_t{3}) | static_cast<uint64_t>(MrState::free), std::memory_order_release);
  free_slots_.push_back(slot);
  live_count_.fetch_sub(1, std::memory_order_relaxed);
}

void Table::index_insert(uint32_t slot) {
  mutex_.assert_held();
  const MrEntry& e = entry(slot);
  const uint32_t mask = layout_.index_size - 1;
  uint32_t at = static_cast<uint32_t>(key_hash(e.domain, e.key)) & mask;
  // The index is twice as large as the table, so the search finds a free word. Tombstones are not reused, so that their
  // list stays exact; a rebuild clears them.
  while (index()[at].load(std::memory_order_relaxed) != 0) at = (at + 1) & mask;
  // SYNC POINT: a reader that finds the slot in the index sees the entry written before.
  index()[at].store(slot + kIndexBias, std::memory_order_release);
  indexed_.push_back(slot);
  indexed_at_[slot] = {static_cast<uint32_t>(indexed_.size()), at};
}

void Table::index_erase(uint32_t slot) noexcept {
  mutex_.assert_held();
  const uint32_t mask = layout_.index_size - 1;
  const auto [position_plus_one, at] = indexed_at_[slot];
  assert(position_plus_one != 0 && "the slot has a client key");
  // At the end of a run of keys no tombstone is needed.
  const bool run_ends = index()[(at + 1) & mask].load(std::memory_order_relaxed) == 0;
  index()[at].store(run_ends ? 0 : kTombstone, std::memory_order_release);
  if (!run_ends) tombstones_.push_back(at);
  const uint32_t moved = indexed_.back();
  indexed_[position_plus_one - 1] = moved;
  indexed_at_[moved].first = position_plus_one;
  indexed_.pop_back();
  indexed_at_[slot] = {0, 0};
  // The first bound pays the work of a rebuild with at least as many erasures. The second, a quarter of the index,
  // keeps free words in a small table: index_insert and readers stop at a free word.
  if ((tombstones_.size() > 64 && tombstones_.size() * 2 > indexed_.size()) ||
      tombstones_.size() > layout_.index_size / 4) {
    index_rebuild();
  }
}

void Table::index_rebuild() noexcept {
  mutex_.assert_held();
  auto* header = reinterpret_cast<TableHeader*>(writable_);
  // SYNC POINT: odd version: readers that miss a key during the rebuild search again.
  header->index_version.fetch_add(1, std::memory_order_seq_cst);
  for (const uint32_t at : tombstones_) index()[at].store(0, std::memory_order_relaxed);
  tombstones_.clear();
  for (const uint32_t slot : indexed_) index()[indexed_at_[slot].second].store(0, std::memory_order_relaxed);
  const std::vector<uint32_t> slots = std::move(indexed_);
  indexed_.clear();
  indexed_.reserve(slots.size());
  for (const uint32_t slot : slots) index_insert(slot);
  header->index_version.fetch_add(1, std::memory_order_seq_cst);
}

// ---- holds of this process on places of peers --------------------------------------------------------------------

void Table::set_nic_id(const NicId& id) noexcept {
  auto* header = reinterpret_cast<TableHeader*>(writable_);
  store_relaxed(header->nic.first, id.first);
  store_relaxed(header->nic.second, id.second);
}

uint32_t Table::begin_hold(const NicId& owner, uint32_t segment, uint64_t offset, uint64_t length) {
  const Guard lock(hold_mutex_);
  auto* header = reinterpret_cast<TableHeader*>(writable_);
  uint32_t hold = header->holds_used.load(std::memory_order_relaxed);
  const bool again = !free_holds_.empty();
  if (again) {
    hold = free_holds_.back();
    free_holds_.pop_back();
  } else if (hold == kHoldCountMax) {
    return kNoHold;
  } else if (free_holds_.capacity() <= hold) {
    free_holds_.reserve(std::max<size_t>(64, 2 * size_t{hold}));  // end_hold() allocates nothing
  }
  auto& h = reinterpret_cast<HoldEntry*>(writable_ + layout_.hold_at)[hold];
  store_relaxed(h.segment, segment);
  store_relaxed(h.owner.first, owner.first);
  store_relaxed(h.owner.second, owner.second);
  store_relaxed(h.offset, offset);
  store_relaxed(h.length, length);
  // SYNC POINT: an owner that sees the hold sees its fields; see each_hold().
  h.held.store(1, std::memory_order_seq_cst);
  if (!again) header->holds_used.store(hold + 1, std::memory_order_seq_cst);
  return hold;
}

void Table::end_hold(uint32_t hold) noexcept {
  if (hold == kNoHold || is_parents()) return;
  const Guard lock(hold_mutex_);
  assert(reinterpret_cast<HoldEntry*>(writable_ + layout_.hold_at)[hold].held.load(std::memory_order_relaxed) == 1);
  // SYNC POINT: all accesses through the pointer happen before the hold ends.
  reinterpret_cast<HoldEntry*>(writable_ + layout_.hold_at)[hold].held.store(0, std::memory_order_release);
  reinterpret_cast<TableHeader*>(writable_)->holds_ended.fetch_add(1, std::memory_order_seq_cst);
  free_holds_.push_back(hold);
}

uint32_t Table::open_ep(uint32_t domain, uint32_t flags, const wire::EpAddress& address, uint32_t* generation) {
  const Guard lock(mutex_);
  if (ep_free_.empty()) {
    throw Error(fi_err::kENOSPC, "all " + std::to_string(kEpCountMax) + " endpoints of this NIC are open: close some");
  }
  const uint32_t index_of_ep = ep_free_.front();
  ep_free_.pop_front();
  auto& e = reinterpret_cast<EpEntry*>(writable_ + layout_.ep_at)[index_of_ep];
  store_relaxed(e.domain, domain);
  e.address = address;  // only this process reads it
  // An address that no endpoint has: its pid is never assigned.
  store_relaxed(e.peer.nic, ~uint32_t{0});
  e.flags.store(flags, std::memory_order_relaxed);
  *generation = e.generation.load(std::memory_order_relaxed) + 1;
  e.generation.store(*generation, std::memory_order_release);
  return index_of_ep;
}

void Table::set_ep_room(uint32_t index_of_ep, bool room) noexcept {
  auto& flags = reinterpret_cast<EpEntry*>(writable_ + layout_.ep_at)[index_of_ep].flags;
  room ? flags.fetch_and(~kEpNoRoom, std::memory_order_seq_cst) : flags.fetch_or(kEpNoRoom, std::memory_order_seq_cst);
}

void Table::set_ep_peer(uint32_t index_of_ep, const wire::EpAddress& peer) noexcept {
  wire::EpAddress& p = reinterpret_cast<EpEntry*>(writable_ + layout_.ep_at)[index_of_ep].peer;
  // Written field by field: a reader of a half-written address finds no match for its initiator and refuses it.
  store_relaxed(p.nic, ~uint32_t{0});
  store_relaxed(p.pid, peer.pid);
  store_relaxed(p.vni, peer.vni);
  store_relaxed(p.reserved, peer.reserved);
  store_relaxed(p.nic, peer.nic);
}

void Table::close_ep(uint32_t index_of_ep) noexcept {
  const Guard lock(mutex_);
  assert(index_of_ep < kEpCountMax && ep_free_.size() < kEpCountMax && "the endpoint is open");
  auto& e = reinterpret_cast<EpEntry*>(writable_ + layout_.ep_at)[index_of_ep];
  e.generation.fetch_add(1, std::memory_order_seq_cst);
  ep_free_.push_back(index_of_ep);
}

// ---- consistency ---------------------------------------------------------------------------------------------------

#if !defined(NDEBUG)
void Table::check() {
  const Guard lock(mutex_);
  assert(slots_used_ <= layout_.mr_count_max && indexed_at_.size() == slots_used_ &&
         "slots are used from the first on");
  assert(live_count() == slots_used_ - free_slots_.size() && "a slot that was used is live, or free");
  std::vector<bool> is_free(slots_used_);
  for (const uint32_t slot : free_slots_) {
    assert(slot < slots_used_ && !is_free[slot] && "a free slot is in the list once");
    is_free[slot] = true;
  }
  size_t with_keys = 0;
  for (uint32_t slot = 0; slot < slots_used_; ++slot) {
    assert((state_of(entry(slot).state.load(std::memory_order_relaxed)) == MrState::free) == is_free[slot]);
    with_keys += indexed_at_[slot].first != 0 ? 1 : 0;
    assert((!is_free[slot] || indexed_at_[slot].first == 0) && "no key leads to a free slot");
  }
  assert(with_keys == indexed_.size() && "slots with client keys are listed");
  for (size_t i = 0; i < indexed_.size(); ++i) {
    const auto [position_plus_one, at] = indexed_at_[indexed_[i]];
    assert(position_plus_one == i + 1 && "a slot knows its place in the list");
    assert(index()[at].load(std::memory_order_relaxed) == indexed_[i] + kIndexBias && "the index leads to the slot");
  }
  for (const uint32_t at : tombstones_) assert(index()[at].load(std::memory_order_relaxed) == kTombstone);
  uint32_t behind = 0;
  for (const auto& [first, count] : iov_free_) {
    assert(count != 0 && (first > behind || first == 0) && count <= kIovEntryCount - first &&
           "free buffers are joined");
    behind = first + count;
  }
  std::vector<bool> seen(kEpCountMax);
  for (const uint32_t at : ep_free_) {
    assert(at < kEpCountMax && !seen[at] && "a free endpoint is in the list once");
    seen[at] = true;
  }
}
#endif

}  // namespace weft::mem
