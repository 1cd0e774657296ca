// cpp/nic/now.cpp: accesses that end within the call, or do not begin.
//
// They serve callers that wait for each operation: no completion is queued, so none has to be read. What needs frames,
// or is an error, is left to the calls that post; so are rows and updates that loads and stores cannot do.
//
// HOT (8 bytes): no system call, no allocation, one lock. Lines touched as by post_one() (rma.cpp), less those of the
// completion queue. Benchmark: bench/bench_elements.py.
#include <algorithm>
#include <bit>
#include <new>

#include "nic/fast.inl"

namespace weft::nic {

namespace {

// Work of one hold of the lock, which bounds the wait of other threads and of closing regions.
constexpr uint64_t kRowsPerHold = 256;
constexpr uint64_t kRowBytesPerHold = 64 * 1024;
constexpr uint64_t kUpdateBytesPerHold = 4096;
constexpr uint64_t kBlockBytesPerHold = 128 * 1024;  // by plain loads and stores: some 5 us
// A block of fewer bytes is not worth a turn, because all other updates of the segment wait for the turn.
constexpr uint64_t kBlockBytesMin = 1024;

constexpr OpClass kind_class(OpKind kind) noexcept {
  return kind == OpKind::write ? OpClass::write : OpClass::read;
}

// Where the next rows are in the region; false: an index is out of range.
inline bool row_address(const Rows& rows, uint64_t i, uint64_t* addr) noexcept {
  int64_t at = static_cast<int64_t>(i);
  if (rows.index != nullptr) {
    at = rows.index[i];
    if (at < 0) at += static_cast<int64_t>(rows.limit);
    if (static_cast<uint64_t>(at) >= rows.limit) return false;
  }
  *addr = rows.addr + static_cast<uint64_t>(at) * static_cast<uint64_t>(rows.step);
  return true;
}

}  // namespace

Flow* TxPort::open_flow(uint64_t to) noexcept {
  try {
    return flow_of(to);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// HOT. Requires the lock. A pointer for loads and stores of [addr, addr + length); null: they are not enough, or the
// access is refused. As long as the lock is held, other accesses within the same region need no further check.
[[gnu::always_inline]] inline std::byte* TxPort::reach_now(OpClass c, uint64_t dest, uint64_t key, uint64_t addr,
                                                           uint64_t length, uint32_t want, Flow** flow) noexcept {
  if (!plain_ || read_cntr_ != nullptr || write_cntr_ != nullptr) [[unlikely]]
    return nullptr;
  const uint64_t to = dest_of(dest);
  Flow* const found = to < flows_.size() && flows_[to] ? flows_[to].get() : open_flow(to);
  if (found == nullptr) [[unlikely]]
    return nullptr;
  *flow = found;
  Route& route = *found->route;
  if (route.ep_entry == nullptr || (found->busy & stops_[static_cast<size_t>(c)]) != 0) [[unlikely]]
    return nullptr;
  std::byte* const there = pointer_to(route, key, addr, length, want);
  return there != nullptr ? there : mover_.learn(route, key, addr, length, want);
}

[[gnu::always_inline]] inline void TxPort::count_now(Route& route, OpKind kind, AtomicFamily family, Datatype datatype,
                                                     uint64_t key, uint64_t bytes) noexcept {
  if (kind != OpKind::read) Mover::tell_changed(route);
  ++domain_->statistics.direct;
  domain_->statistics.bytes += bytes;
  model_.count(route, kind, family, datatype, key, 0, bytes, false, false);
}

bool TxPort::move_now(OpKind kind, std::byte* local, uint64_t length, uint64_t dest, uint64_t addr,
                      uint64_t key) noexcept {
  const DomainLock guard(domain_);
  const bool write = kind == OpKind::write;
  const uint32_t want = write ? mem::kRemoteWrite : mem::kRemoteRead;
  Flow* flow;
  std::byte* const there =
      length <= short_bytes_max_ ? reach_now(kind_class(kind), dest, key, addr, length, want, &flow) : nullptr;
  if (there == nullptr) [[unlikely]]
    return move_generally_now(kind, local, length, dest, addr, key);
  if (!(write ? copy_guarded_hot(there, local, length) : copy_guarded_hot(local, there, length))) [[unlikely]]
    return false;
  count_now(*flow->route, kind, {}, {}, key, length);
  return true;
}

// A long copy, which is made outside the lock; memory that is not mapped here, or whose owner counts accesses. False:
// nothing was done, a page failed, the peer died, the endpoint was closed.
[[gnu::noinline]] bool TxPort::move_generally_now(OpKind kind, std::byte* local, uint64_t length, uint64_t dest,
                                                  uint64_t addr, uint64_t key) noexcept try {
  domain_->assert_held();
  const bool possible = plain_ && read_cntr_ == nullptr && write_cntr_ == nullptr;
  Flow* const flow = possible ? open_flow(dest_of(dest)) : nullptr;
  if (flow == nullptr || barred(*flow->route) != Status::ok || !may_go_direct(*flow, kind_class(kind), 0)) return false;
  const std::shared_ptr<Flow> kept = flow->shared_from_this();  // the address vector may change outside the lock
  const iovec here{local, length};
  const wire::RmaRange there{addr, length, key};
  Status status = Status::ok;
  const Mover::Transfer transfer{
      .kind = kind, .local = {&here, 1}, .remote = {&there, 1}, .total = length, .may_unlock = true};
  return mover_.move(*flow, transfer, &status) == Moved::done;
} catch (const std::bad_alloc&) {
  return false;
}

uint64_t TxPort::move_rows_now(OpKind kind, const Rows& rows, uint64_t dest, uint64_t key) noexcept {
  const bool write = kind == OpKind::write;
  const uint32_t want = write ? mem::kRemoteWrite : mem::kRemoteRead;
  uint64_t done = 0, addr = 0;
  if (rows.bytes > short_bytes_max_) {
    for (; done < rows.count; ++done) {
      if (!row_address(rows, done, &addr) ||
          !move_now(kind, rows.local + done * rows.local_step, rows.bytes, dest, addr, key)) {
        break;
      }
    }
    return done;
  }
  while (done < rows.count) {
    const DomainLock guard(domain_);
    Flow* flow;
    if (!row_address(rows, done, &addr) ||
        reach_now(kind_class(kind), dest, key, addr, rows.bytes, want, &flow) == nullptr) {
      return done;
    }
    // A copy: the compiler keeps its fields in registers, although the rows are written.
    const Translation region = flow->route->translations[translation_of(key)];
    const uint64_t hold = std::clamp<uint64_t>(kRowBytesPerHold / std::max<uint64_t>(rows.bytes, 1), 1, kRowsPerHold);
    const uint64_t first = done, end = std::min(rows.count, done + hold);
    bool good = true;
    for (; done < end; ++done) {
      good = row_address(rows, done, &addr);
      const uint64_t offset = addr - region.base;
      good = good && offset <= region.length && rows.bytes <= region.length - offset;
      if (!good) break;
      std::byte* const there = region.pointer + offset;
      std::byte* const here = rows.local + done * rows.local_step;
      good = write ? copy_guarded_hot(there, here, rows.bytes) : copy_guarded_hot(here, there, rows.bytes);
      if (!good) [[unlikely]]
        break;
    }
    if (done != first) count_now(*flow->route, kind, {}, {}, key, (done - first) * rows.bytes);
    if (!good) return done;
  }
  return done;
}

Updated TxPort::update_now(const Update& update, uint64_t dest, uint64_t addr, uint64_t key) noexcept {
  const uint64_t size = datatype_size(update.datatype);
  const uint32_t want = want_of(update.family, update.op);
  const auto at = [&](auto* list, uint64_t element) { return list != nullptr ? list + element * size : nullptr; };
  const uint64_t most = kUpdateBytesPerHold >> std::countr_zero(size);  // a division would cost as much as the update
  uint64_t done = 0;
  bool in_blocks = update.family == AtomicFamily::base;
  while (done < update.count) {
    uint64_t n = std::min(update.count - done, most);
    const DomainLock guard(domain_);
    Flow* flow;
    std::byte* const there = reach_now(OpClass::atomic, dest, key, addr + done * size, n * size, want, &flow);
    if (there == nullptr || atomic_width(update.datatype, reinterpret_cast<uintptr_t>(there)) == AtomicWidth::locked)
        [[unlikely]] {
      break;
    }
    const Translation& region = flow->route->translations[translation_of(key)];
    mem::Gate::Slot* const slot = region.turns;
    bool updated = false;
    if (in_blocks && slot != nullptr && n * size >= kBlockBytesMin) {
      mem::BlockTurn turn(&slot->gate(), domain_->updater());
      in_blocks = turn.taken();
      if (in_blocks) [[likely]] {
        const uint64_t room = region.length - static_cast<uint64_t>(there - region.pointer);
        n = std::min({update.count - done, kBlockBytesPerHold / size, room / size});
        if (!block_guarded(update.op, update.datatype, there, at(update.operand, done), n)) return {done, true};
        if (!turn.end()) return {done, false, true};
        updated = true;
      }
    }
    if (!updated) {
      const mem::ElementTurn turn(slot);
      if (!apply_here(*flow->route->peer, update.op, update.datatype, there, at(update.operand, done),
                      at(update.compare, done), at(update.result, done), n * size)) [[unlikely]] {
        return {done, true};
      }
    }
    count_now(*flow->route, OpKind::atomic, update.family, update.datatype, key, n * size);
    done += n;
  }
  return {done, false};
}

Updated TxPort::update_rows_now(const Update& update, const Rows& rows, uint64_t dest, uint64_t key) noexcept {
  const uint64_t size = datatype_size(update.datatype), n = rows.bytes / size;
  const uint32_t want = want_of(update.family, update.op);
  const uint64_t hold = std::clamp<uint64_t>(kUpdateBytesPerHold / std::max<uint64_t>(rows.bytes, 1), 1, kRowsPerHold);
  uint64_t done = 0, addr = 0;
  if (rows.bytes > kUpdateBytesPerHold) {
    for (; done < rows.count; ++done) {
      if (!row_address(rows, done, &addr)) break;
      Update one = update;
      one.operand = rows.local + done * rows.local_step;
      one.count = n;
      const Updated u = update_now(one, dest, addr, key);
      if (u.done != n) return {done, u.fault || (u.done != 0 && !u.raced), u.raced};
    }
    return {done, false};
  }
  while (done < rows.count) {
    const DomainLock guard(domain_);
    Flow* flow;
    if (!row_address(rows, done, &addr) ||
        reach_now(OpClass::atomic, dest, key, addr, rows.bytes, want, &flow) == nullptr) {
      break;
    }
    const Translation region = flow->route->translations[translation_of(key)];
    const link::Peer& peer = *flow->route->peer;
    const uint64_t first = done, end = std::min(rows.count, done + hold);
    const mem::ElementTurn turn(region.turns);
    bool good = true, fault = false;
    for (; done < end && good; ++done) {
      good = row_address(rows, done, &addr);
      const uint64_t offset = addr - region.base;
      good = good && offset <= region.length && rows.bytes <= region.length - offset;
      std::byte* const there = region.pointer + offset;
      if (!good || atomic_width(update.datatype, reinterpret_cast<uintptr_t>(there)) == AtomicWidth::locked) {
        good = false;
        break;
      }
      fault = !apply_here(peer, update.op, update.datatype, there, rows.local + done * rows.local_step, nullptr,
                          nullptr, rows.bytes);
      if (fault) [[unlikely]]
        break;
    }
    if (done != first) {
      count_now(*flow->route, OpKind::atomic, update.family, update.datatype, key, (done - first) * rows.bytes);
    }
    if (!good || fault) return {done, fault};
  }
  return {done, false};
}

}  // namespace weft::nic
