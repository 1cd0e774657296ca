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

std::vector<bool> Reorder::land_some(uint64_t bytes, bool ordered) {
  const size_t count = packets_of(bytes);
  std::vector<bool> left(count, true);
  if (limits.target == TargetOrder::relaxed) {
    for (size_t i = 0; i < count; ++i) left[i] = below(2) == 0;
  } else if (ordered && limits.target == TargetOrder::as_asked) {
    for (size_t i = 0; i + 1 < count; ++i) left[i] = below(2) == 0;
  } else {
    std::fill_n(left.begin(), below(count), false);
  }
  return left;
}

Ordered TxPort::ordered(const Flow& flow, OpKind kind, AtomicFamily family, AtomicOp op, Datatype datatype,
                        uint64_t key, uint64_t flags, uint64_t bytes) const noexcept {
  Ordered o;
  o.flow = &flow;
  o.bytes = bytes;
  o.cls = class_of(kind);
  o.lane = lane_of(flags);
  o.reads = kind == OpKind::read || (kind == OpKind::atomic && family != AtomicFamily::base);
  o.writes = kind == OpKind::write || (kind == OpKind::atomic && op != AtomicOp::atomic_read);
  if (kind == OpKind::atomic) o.pcie = (flags & config_.traffic.pcie_flag) != 0;
  const uint16_t how = model_.travel(kind, family, datatype, key, flags);
  o.unordered = (how & traffic::kHrp) != 0 || (kind == OpKind::atomic && (how & traffic::kRestricted) != 0);
  return o;
}

uint64_t TxPort::order_of(const Ordered& what) const noexcept {
  return aliases_.at(what.lane).msg_order;
}

// Called before an operation starts; true: keep it. The caller holds the domain's lock throughout.
bool TxPort::reorders(const Ordered& what, uint64_t flags) {
  domain_->assert_held();
  Reorder& r = *model_.reorder();
  if ((flags & flag::kFence) != 0) {
    release_all();
    return false;
  }
  const uint32_t nic = what.flow->route->address.nic;
  for (size_t i = 0; i < r.late.size();) {
    Reorder::Late& l = r.late[i];
    // A NIC places acknowledged data before later data. For High Rate Puts the fabric acknowledges, not the NIC.
    const bool arrived = !l.hrp && l.flow->route->address.nic == nic;
    if (arrived || l.lag == 0 || must_follow(l.what, what, order_of(what), r.limits)) {
      land(i);
    } else {
      --l.lag;
      ++i;
    }
  }
  for (size_t i = 0; i < r.kept.size();) {
    Reorder::Kept& k = r.kept[i];
    if (k.lag == 0 || must_follow(k.what, what, order_of(what), r.limits)) {
      release(i);
    } else {
      --k.lag;
      ++i;
    }
  }
  constexpr uint64_t kAtOnce = flag::kIfUnfinished | flag::kOnlyNow;
  return (flags & kAtOnce) == 0 && r.kept.size() < Reorder::kKeptMax && r.below(2) == 0;
}

uint64_t TxPort::keep(Op* op, const Ordered& what) {
  domain_->assert_held();
  Nic& nic = *domain_->nic();
  Reorder& r = *model_.reorder();
  try {
    r.kept.push_back({op, what, static_cast<uint32_t>(r.below(kLagMax)), nic.clock().now_ns() + Reorder::kDueNs});
  } catch (const std::bad_alloc&) {
    return queue_op(op);
  }
  nic.add_kept();
  nic.need_engine();
  return op->id;
}

// Submits the i-th kept operation.
void TxPort::release(size_t i) {
  Op* const op = model_.reorder()->kept[i].op;
  forget_kept(i);
  (void)queue_op(op);
}

void TxPort::forget_kept(size_t i) noexcept {
  model_.reorder()->kept.erase(model_.reorder()->kept.begin() + static_cast<std::ptrdiff_t>(i));
  domain_->nic()->drop_kept();
}

void TxPort::forget_kept(const Op* op) noexcept {
  if (model_.reorder() == nullptr) return;
  const auto it = std::ranges::find(model_.reorder()->kept, op, &Reorder::Kept::op);
  if (it != model_.reorder()->kept.end()) forget_kept(static_cast<size_t>(it - model_.reorder()->kept.begin()));
}

// Submits all kept operations, in an order chosen by the seed: none of them must follow another.
void TxPort::release_kept() {
  domain_->assert_held();
  Reorder& r = *model_.reorder();
  while (!r.kept.empty()) release(r.below(r.kept.size()));
}

void TxPort::release_all() {
  domain_->assert_held();
  land_all();
  release_kept();
}

size_t TxPort::release_due(uint64_t now_ns) {
  domain_->assert_held();
  Reorder& r = *model_.reorder();
  size_t n = 0;
  for (size_t i = 0; i < r.late.size();) {
    r.late[i].due_ns <= now_ns ? (land(i), ++n) : ++i;
  }
  for (size_t i = 0; i < r.kept.size();) {
    r.kept[i].due_ns <= now_ns ? (release(i), ++n) : ++i;
  }
  return n;
}

// Performs a write as Reorder::Late and reports its completion if requested; false: the write cannot be late.
bool TxPort::write_late(Flow& flow, const RmaArgs& args, const Ordered& what, uint64_t total, bool wants) {
  domain_->assert_held();
  Reorder& r = *model_.reorder();
  Nic& nic = *domain_->nic();
  Route& route = *flow.route;
  constexpr uint64_t kPlain = kFlushes | flag::kRemoteCqData | flag::kIfUnfinished | flag::kOnlyNow | flag::kFence;
  if (args.kind != OpKind::write || args.device != 0 || args.remote.size() != 1 || (args.flags & kPlain) != 0 ||
      total == 0 || total > Reorder::kLateBytesMax || r.late.size() >= Reorder::kLateMax || route.ep_entry == nullptr ||
      nic.late_writes() >= kLatePagesMax || r.below(2) != 0) {
    return false;
  }
  const wire::RmaRange& range = args.remote[0];
  std::byte* const there = pointer_to(route, range.key, range.addr, total, mem::kRemoteWrite);
  if (there == nullptr) return false;
  Reorder::Late l;
  l.data.resize(total);
  if (gather(args.local, 0, l.data.data(), total) != Status::ok) return false;
  l.what = what;
  l.flow = flow.shared_from_this();
  l.peer = route.peer;
  l.there = there;
  l.hrp = (model_.travel(OpKind::write, {}, {}, range.key, args.flags) & traffic::kHrp) != 0;
  const bool in_order = (order_of(what) & (order::kWaw | order::kRmaWaw)) != 0;
  l.packets = r.land_some(total, in_order);
  l.lag = static_cast<uint32_t>(r.below(kLagMax));
  l.due_ns = nic.clock().now_ns() + Reorder::kDueNs;
  for (size_t i = 0; i < l.packets.size(); ++i) {
    const size_t from = i * kPacketBytes, n = std::min<size_t>(kPacketBytes, total - from);
    if (!l.packets[i] && !copy_guarded_hot(there + from, l.data.data() + from, n)) return false;
  }
  r.late.push_back(std::move(l));
  // SYNC POINT: as with long copies, the activity is visible before the lock's word becomes even, so an owner that
  // closes the region waits until the write has landed.
  const mem::MrEntry* const entry = route.translations[translation_of(range.key)].entry;
  r.late.back().activity = nic.begin_long_activity(static_cast<uint32_t>(entry - &route.peer->table.mr(0)));
  nic.add_late_write();
  nic.need_engine();
  ++domain_->statistics.direct;
  domain_->statistics.bytes += total;
  model_.count(route, OpKind::write, {}, {}, range.key, args.flags, total, false, false);
  complete(wants, args.context, completion_flags(OpKind::write, {}), total);
  return true;
}

// Copies the rest of the i-th late write to the target's memory.
void TxPort::land(size_t i) noexcept {
  domain_->assert_held();
  Nic& nic = *domain_->nic();
  Reorder::Late l = std::move(model_.reorder()->late[i]);
  model_.reorder()->late.erase(model_.reorder()->late.begin() + static_cast<std::ptrdiff_t>(i));
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

void TxPort::land_all() noexcept {
  while (!model_.reorder()->late.empty()) land(0);
}

// True if an unreliable atomic is lost. `done`: it was performed and only its answer is lost.
bool TxPort::loses(const Ordered& what, bool* done) {
  if (what.cls != OpClass::atomic || !what.unordered || model_.reorder()->below(kLossesOneOf) != 0) return false;
  *done = model_.reorder()->below(2) == 0;
  return true;
}

size_t Domain::release_due(uint64_t now_ns) {
  assert_held();
  size_t n = 0;
  for (TxPort* tx : reordering_) n += tx->release_due(now_ns);
  return n;
}

void Nic::release_kept_now() {
  const Guard objects(objects_mutex_);
  for (const std::atomic<Domain*>& slot : domains_) {
    Domain* const domain = slot.load(std::memory_order_relaxed);
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    for (TxPort* tx : domain->reordering()) tx->release_kept();
  }
}

void Nic::land_late() noexcept {
  if (late_writes_.load(std::memory_order_relaxed) == 0) return;
  const Guard objects(objects_mutex_);
  for (const std::atomic<Domain*>& slot : domains_) {
    Domain* const domain = slot.load(std::memory_order_relaxed);
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    for (TxPort* tx : domain->reordering()) tx->land_all();
  }
}

}  // namespace weft::nic
