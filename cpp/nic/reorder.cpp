// cpp/nic/reorder.cpp: see reorder.hpp.
#include "nic/reorder.hpp"

#include <algorithm>
#include <utility>

#include "nic/fast.inl"
#include "nic/iov.hpp"

namespace weft::nic {

namespace {

constexpr uint64_t kFlushes = flag::kDeliveryComplete | flag::kMatchComplete | flag::kCommitComplete;
constexpr uint64_t kLagMax = 8;         // later operations that may pass a kept one
constexpr uint64_t kLossesOneOf = 8;    // one unreliable atomic of this many is lost
constexpr uint32_t kLatePagesMax = 64;  // late writes of all endpoints: each has a word of Nic::begin_long_activity()
constexpr size_t kKeptMax = 16, kLateMax = 4;  // of one endpoint
constexpr uint64_t kLateBytesMax = uint64_t{64} << 10;

}  // namespace

bool must_follow(const Ordered& earlier, const Ordered& later, uint64_t msg_order,
                 const ReorderConfig& limits) noexcept {
  using namespace order;
  if (earlier.flow != later.flow || earlier.lane != later.lane) return false;
  if (earlier.unordered || later.unordered || earlier.pcie != later.pcie) return false;
  const uint64_t bytes = std::max(earlier.bytes, later.bytes);
  // The bits for all operations, then those for two reads or writes, or for two atomics.
  const bool rma = earlier.cls != OpClass::atomic && later.cls != OpClass::atomic;
  const bool atomic = earlier.cls == OpClass::atomic && later.cls == OpClass::atomic;
  const auto has = [&](uint64_t all, uint64_t of_rma, uint64_t of_atomics) {
    return (msg_order & (all | (rma ? of_rma : 0) | (atomic ? of_atomics : 0))) != 0;
  };
  if (earlier.writes && later.writes && bytes <= limits.waw_bytes && has(kWaw, kRmaWaw, kAtomicWaw)) return true;
  if (earlier.writes && later.reads && bytes <= limits.raw_bytes && has(kRaw, kRmaRaw, kAtomicRaw)) return true;
  if (earlier.reads && later.writes && bytes <= limits.war_bytes && has(kWar, kRmaWar, kAtomicWar)) return true;
  if (earlier.reads && later.reads && has(kRar, kRmaRar, kAtomicRar)) return true;
  // FI_ORDER_WAW: writes and all atomics with each other; a fetching one then is an ordered read.
  const bool written = earlier.writes || later.writes;
  return written && !rma && earlier.cls != OpClass::read && later.cls != OpClass::read && (msg_order & kWaw) != 0;
}

std::vector<bool> Decisions::late_packets(uint64_t bytes, bool ordered) {
  const size_t count = packets_of(bytes);
  std::vector<bool> left(count, true);
  if (target_ == TargetOrder::relaxed) {
    for (size_t i = 0; i < count; ++i) left[i] = below(2) == 0;
  } else if (ordered && target_ == TargetOrder::as_asked) {
    for (size_t i = 0; i + 1 < count; ++i) left[i] = below(2) == 0;
  } else {
    std::fill_n(left.begin(), below(count), false);
  }
  return left;
}

Ordered Reorder::ordered(const Flow& flow, OpKind kind, AtomicFamily family, AtomicOp op, Datatype datatype,
                         uint64_t key, uint64_t flags, uint64_t bytes) const noexcept {
  Ordered o;
  o.flow = &flow;
  o.bytes = bytes;
  o.cls = class_of(kind);
  o.lane = lane_of(flags);
  o.reads = kind == OpKind::read || (kind == OpKind::atomic && family != AtomicFamily::base);
  o.writes = kind == OpKind::write || (kind == OpKind::atomic && op != AtomicOp::atomic_read);
  if (kind == OpKind::atomic) o.pcie = (flags & tx_.config().traffic.pcie_flag) != 0;
  const uint16_t how = tx_.model().travel(kind, family, datatype, key, flags);
  o.unordered = (how & traffic::kHrp) != 0 || (kind == OpKind::atomic && (how & traffic::kRestricted) != 0);
  return o;
}

bool Reorder::keeps(const Ordered& what, uint64_t flags) {
  tx_.domain()->assert_held();
  if ((flags & flag::kFence) != 0) {
    release_all();
    return false;
  }
  const uint32_t nic = what.flow->route->address.nic;
  for (size_t i = 0; i < late_.size();) {
    Late& l = late_[i];
    // A NIC places acknowledged data before later data. For High Rate Puts the fabric acknowledges, not the NIC.
    const bool arrived = !l.hrp && l.flow->route->address.nic == nic;
    if (arrived || l.lag == 0 || follows(what, l.what)) {
      land(i);
    } else {
      --l.lag;
      ++i;
    }
  }
  for (size_t i = 0; i < kept_.size();) {
    Kept& k = kept_[i];
    if (k.lag == 0 || follows(what, k.what)) {
      release(i);
    } else {
      --k.lag;
      ++i;
    }
  }
  constexpr uint64_t kAtOnce = flag::kIfUnfinished | flag::kOnlyNow;
  return (flags & kAtOnce) == 0 && kept_.size() < kKeptMax && decide_.below(2) == 0;
}

uint64_t Reorder::keep(Op* op, const Ordered& what) {
  tx_.domain()->assert_held();
  Nic& nic = *tx_.domain()->nic();
  try {
    kept_.push_back(
        {op, what, static_cast<uint32_t>(decide_.below(kLagMax)), nic.clock().now_ns() + Decisions::kDueNs});
  } catch (const std::bad_alloc&) {
    return tx_.queue_op(op);
  }
  nic.add_kept();
  nic.need_engine();
  return op->id;
}

void Reorder::release(size_t i) {
  Op* const op = kept_[i].op;
  forget(i);
  (void)tx_.queue_op(op);
}

void Reorder::forget(size_t i) noexcept {
  kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
  tx_.domain()->nic()->drop_kept();
}

void Reorder::forget(const Op* op) noexcept {
  const auto it = std::ranges::find(kept_, op, &Kept::op);
  if (it != kept_.end()) forget(static_cast<size_t>(it - kept_.begin()));
}

void Reorder::release_kept() {
  tx_.domain()->assert_held();
  while (!kept_.empty()) release(decide_.below(kept_.size()));
}

void Reorder::release_all() {
  tx_.domain()->assert_held();
  land_all();
  release_kept();
}

size_t Reorder::release_due(uint64_t now_ns) {
  tx_.domain()->assert_held();
  size_t n = 0;
  for (size_t i = 0; i < late_.size();) {
    late_[i].due_ns <= now_ns ? (land(i), ++n) : ++i;
  }
  for (size_t i = 0; i < kept_.size();) {
    kept_[i].due_ns <= now_ns ? (release(i), ++n) : ++i;
  }
  return n;
}

bool Reorder::write_late(Flow& flow, const RmaArgs& args, const Ordered& what, uint64_t total, bool wants) {
  tx_.domain()->assert_held();
  Nic& nic = *tx_.domain()->nic();
  Route& route = *flow.route;
  constexpr uint64_t kPlain = kFlushes | flag::kRemoteCqData | flag::kIfUnfinished | flag::kOnlyNow | flag::kFence;
  if (args.kind != OpKind::write || args.device != 0 || args.remote.size() != 1 || (args.flags & kPlain) != 0 ||
      total == 0 || total > kLateBytesMax || late_.size() >= kLateMax || route.ep_entry == nullptr ||
      nic.late_writes() >= kLatePagesMax || decide_.below(2) != 0) {
    return false;
  }
  const wire::RmaRange& range = args.remote[0];
  std::byte* const there = tx_.pointer_to(route, range.key, range.addr, total, mem::kRemoteWrite);
  if (there == nullptr) return false;
  Late l;
  l.data.resize(total);
  if (gather(args.local, 0, l.data.data(), total) != Status::ok) return false;
  l.what = what;
  l.flow = flow.shared_from_this();
  l.peer = route.peer;
  l.there = there;
  l.hrp = (tx_.model().travel(OpKind::write, {}, {}, range.key, args.flags) & traffic::kHrp) != 0;
  const bool in_order = (aliases_.at(what.lane).msg_order & (order::kWaw | order::kRmaWaw)) != 0;
  l.packets = decide_.late_packets(total, in_order);
  l.lag = static_cast<uint32_t>(decide_.below(kLagMax));
  l.due_ns = nic.clock().now_ns() + Decisions::kDueNs;
  for (size_t i = 0; i < l.packets.size(); ++i) {
    const size_t from = i * kPacketBytes, n = std::min<size_t>(kPacketBytes, total - from);
    if (!l.packets[i] && !copy_guarded_hot(there + from, l.data.data() + from, n)) return false;
  }
  late_.push_back(std::move(l));
  // SYNC POINT: as with long copies, the activity is visible before the lock's word becomes even, so an owner that
  // closes the region waits until the write has landed.
  const mem::MrEntry* const entry = route.translations[translation_of(range.key)].entry;
  late_.back().activity = nic.begin_long_activity(static_cast<uint32_t>(entry - &route.peer->table.mr(0)));
  nic.add_late_write();
  nic.need_engine();
  ++tx_.domain()->statistics.direct;
  tx_.domain()->statistics.bytes += total;
  tx_.model().count(route, OpKind::write, {}, {}, range.key, args.flags, total, false, false);
  tx_.complete(wants, args.context, completion_flags(OpKind::write, {}), total);
  return true;
}

void Reorder::land(size_t i) noexcept {
  tx_.domain()->assert_held();
  Nic& nic = *tx_.domain()->nic();
  Late l = std::move(late_[i]);
  late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(i));
  for (size_t at = 0; at < l.packets.size(); ++at) {
    const size_t from = at * kPacketBytes;
    // A page that is gone takes no data, and would have taken none without the delay.
    if (l.packets[at]) {
      (void)copy_guarded_hot(l.there + from, l.data.data() + from,
                             std::min<size_t>(kPacketBytes, l.data.size() - from));
    }
  }
  nic.end_long_activity(l.activity);
  nic.drop_late_write();
}

void Reorder::land_all() noexcept {
  while (!late_.empty()) land(0);
}

bool Reorder::loses(const Ordered& what, bool* done) noexcept {
  if (what.cls != OpClass::atomic || !what.unordered || decide_.below(kLossesOneOf) != 0) return false;
  *done = decide_.below(2) == 0;
  return true;
}

size_t Domain::release_due(uint64_t now_ns) {
  assert_held();
  size_t n = 0;
  for (Reorder* one : reordering_) n += one->release_due(now_ns);
  return n;
}

void Nic::release_kept_now() {
  const Guard objects(objects_mutex_);
  for (const std::atomic<Domain*>& slot : domains_) {
    Domain* const domain = slot.load(std::memory_order_relaxed);
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    for (Reorder* one : domain->reordering()) one->release_kept();
  }
}

void Nic::land_late() noexcept {
  if (late_writes_.load(std::memory_order_relaxed) == 0) return;
  const Guard objects(objects_mutex_);
  for (const std::atomic<Domain*>& slot : domains_) {
    Domain* const domain = slot.load(std::memory_order_relaxed);
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    for (Reorder* one : domain->reordering()) one->land_all();
  }
}

}  // namespace weft::nic
