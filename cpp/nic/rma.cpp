// cpp/nic/rma.cpp: reads and writes: direct access if possible, otherwise frames.
//
// HOT (post, 8-byte direct put): no system call, no allocation, one lock. Lines touched: the domain's activity word
// (written), the endpoint, its Flow and the Route, the peer's endpoint entry and region entry (read, shared), the
// target's line (written), one completion entry (written). Benchmark: bench/cpp/main.cpp (put8).
#include <algorithm>
#include <cstring>

#include "nic/fast.inl"
#include "nic/iov.hpp"
#include "nic/queue.hpp"
#include "nic/reach.hpp"
#include "wire/call.hpp"

namespace weft::nic {

Refusal Endpoint::check_post(uint64_t dest, uint64_t flags, bool inject_call, bool* wants, Flow** flow) {
  domain_->assert_held();
  if (state_ != State::enabled) [[unlikely]]
    return state_ == State::closed ? Refusal::closed : Refusal::not_enabled;
  *wants = !inject_call && (!selective_ || (flags & flag::kCompletion) != 0);
  if (!admits(tx_cq_.get(), *wants)) [[unlikely]]
    return tx_cq_ ? Refusal::cq_full : Refusal::no_cq;
  *flow = flow_of(dest_of(dest));
  if (*flow == nullptr) [[unlikely]]
    return config_.connected ? Refusal::not_connected : Refusal::bad_address;
  if (CommandQueue* const commands = model_.commands(); commands != nullptr) [[unlikely]] {
    if (outstanding_ >= config_.tx_size || !commands->put(config_.holds_more && (flags & flag::kMore) != 0)) {
      return Refusal::tx_full;
    }
  }
  return Refusal::none;
}

Flow* Endpoint::make_flow(uint64_t fi_addr) {
  domain_->assert_held();
  if (fi_addr >= av_->entries_.size() || !av_->entries_[fi_addr]) return nullptr;
  if (fi_addr >= flows_.size()) flows_.resize(av_->entries_.size());
  // Targets may admit a connected endpoint and refuse others, so other endpoints must not share its translations.
  std::shared_ptr<Route> shared = av_->entries_[fi_addr];
  if (config_.own_vni) {
    shared = domain_->route_to({shared->address.nic, shared->address.pid, config_.vni, shared->address.reserved});
  }
  flows_[fi_addr] = std::make_shared<Flow>(config_.connected ? domain_->own_route(shared->address) : shared);
  if (!speaks_to(*shared)) flows_[fi_addr]->busy |= Flow::kForeign;
  return flows_[fi_addr].get();
}

void Endpoint::drop_flow(uint64_t fi_addr) noexcept {
  domain_->assert_held();
  if (fi_addr < flows_.size() && flows_[fi_addr]) end_message_flow(*flows_[fi_addr]);
  if (fi_addr < flows_.size()) flows_[fi_addr] = nullptr;  // operations under way keep the flow and end normally
}

bool Endpoint::may_go_direct(const Flow& flow, OpClass c, uint64_t flags) const noexcept {
  const Route& route = *flow.route;
  if ((flags & flag::kCommitComplete) != 0) return false;  // the owner flushes its file
  if (!route.ready || !route.peer->table.valid() || route.peer->dead()) return false;
  if ((flow.busy & stops_[static_cast<size_t>(c)]) != 0) return false;
  return (flags & flag::kFence) == 0 || !fence_holds(flow, ~uint64_t{0});
}

bool Endpoint::fence_holds(const Flow& flow, uint64_t sequence) const noexcept {
  domain_->assert_held();
  if ((flow.busy & kEveryClass) != 0) return true;
  if (!order_.fence_covers_all) return false;
  if (long_copies_.load(std::memory_order_relaxed) != 0) return true;
  bool earlier = false;
  domain_->ops_.each([&](const Op* op) {
    earlier = earlier || (op->ep == this && op->sequence < sequence && op->kind != OpKind::batch);
  });
  return earlier;
}

void Endpoint::remember(Route& route, const mem::MrView& view, uint64_t key) {
  route.domain->assert_held();
  const mem::MrEntry& e = *view.entry;
  const link::Peer& peer = *route.peer;
  if (e.segment == mem::kIovSegment) return;
  // Do not cache a guarded region: the domain's other endpoints share the cache, and the region may refuse them.
  if ((e.access & mem::kMrGuarded) != 0) [[unlikely]] {
    const mem::AccessGuard* guard = peer.table.guard(e);
    if (guard == nullptr || guard->has_source != 0) return;
  }
  const mem::MrView whole{view.entry, view.slot, 0};
  Piece piece;
  uint32_t count = 0, missing = 0;
  Opened none;
  if (translate(peer, route.domain->nic()->devices(), whole, e.length, &piece, &count, &missing, &none) !=
      Reach::direct) {
    return;
  }
  const uint32_t ep_flags = route.ep_entry->flags.load(std::memory_order_relaxed);
  uint32_t allowed = 0;
  if ((e.access & mem::kMrNotifyRead) == 0 && (ep_flags & mem::kEpNotifyRead) == 0) {
    allowed |= e.access & (ep_flags << 9) & (mem::kRemoteRead | mem::kAtomicRead);
  }
  if ((e.access & mem::kMrNotifyWrite) == 0 && (ep_flags & mem::kEpNotifyWrite) == 0) {
    allowed |= e.access & (ep_flags << 9) & (mem::kRemoteWrite | mem::kAtomicWrite);
  }
  mem::Gate::Slot* turns = nullptr;
  if ((e.access & mem::kMrTurns) != 0 && (allowed & (mem::kAtomicRead | mem::kAtomicWrite)) != 0) {
    turns = route.domain->turns_at(peer, e.segment);
    if (turns == nullptr) allowed &= ~(mem::kAtomicRead | mem::kAtomicWrite);
  }
  route.translations[translation_of(key)] = {
      key, &e, e.state.load(std::memory_order_relaxed), e.base, e.length, piece.pointer, allowed, turns};
}

PostResult Endpoint::post_one(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr, uint64_t key,
                              uint64_t flags, uint64_t context, uint64_t imm, bool inject_call) {
  if (length <= short_bytes_max_ && (flags & long_way_) == 0) [[likely]] {
    const PostLock guard(domain_);
    const uint64_t to = dest_of(dest);
    if (plain_ && to < flows_.size() && flows_[to]) [[likely]] {
      const Flow& flow = *flows_[to];
      Route& route = *flow.route;
      const bool wants = !inject_call && (!selective_ || (flags & flag::kCompletion) != 0);
      const bool write = kind == OpKind::write;
      if (route.ep_entry != nullptr &&
          (flow.busy & stops_[static_cast<size_t>(write ? OpClass::write : OpClass::read)]) == 0 &&
          admits(tx_cq_.get(), wants)) [[likely]] {
        std::byte* there = fast_target(route, key, addr, length, write ? mem::kRemoteWrite : mem::kRemoteRead);
        if (there != nullptr) [[likely]] {
          auto* here = static_cast<std::byte*>(local);
          if (write ? copy_guarded_hot(there, here, length) : copy_guarded_hot(here, there, length)) [[likely]] {
            if (write) tell_changed(route);
            ++domain_->statistics.direct;
            domain_->statistics.bytes += length;
            model_.count(route, kind, {}, {}, key, flags, length, false, false);
            complete(wants, context, write ? flag::kRma | flag::kWrite : flag::kRma | flag::kRead, length);
            return {Refusal::none, wants};
          }  // a page failed: post() reports the failure
        }
      } else if (route.ready && route.ep_entry == nullptr && (flow.busy & Flow::kForeign) == 0 &&
                 !model_.is_down(route)) {
        return post_one_by_frames(kind, local, length, to, addr, key, flags, context, imm, inject_call);
      }
    }
  }
  return post_one_generally(kind, local, length, dest, addr, key, flags, context, imm, inject_call);
}

// post_one() for a peer that shares no memory: frames without trying direct access. Requires the domain's lock.
[[gnu::noinline]] PostResult Endpoint::post_one_by_frames(OpKind kind, void* local, uint64_t length, uint64_t to,
                                                          uint64_t addr, uint64_t key, uint64_t flags, uint64_t context,
                                                          uint64_t imm, bool inject_call) {
  bool wants = !inject_call && (!selective_ || (flags & flag::kCompletion) != 0);
  if (!admits(tx_cq_.get(), wants)) return {tx_cq_ ? Refusal::cq_full : Refusal::no_cq};
  if (const Refusal r = check_unfinished(flags, &wants); r != Refusal::none) return {r};
  Op* op = make_op(kind, *flows_[to], wants, flags, context, imm, length, inject_call);
  op->access().remote.set({addr, length, key});
  const iovec piece{local, length};
  if (!keep_local(op, {&piece, 1})) {
    finish(op);
    return {Refusal::none, true};
  }
  return {Refusal::none, true, queue_op(op)};
}

// Sets the operation's local buffers: the caller's, or a copy if the caller may reuse its buffer at once.
bool Endpoint::keep_local(Op* op, std::span<const iovec> local) {
  if ((op->inject_call || (op->flags & flag::kInject) != 0) && op->kind == OpKind::write) {
    op->held.resize(op->total);
    op->status = gather(local, 0, op->held.data(), op->total);
    op->local.set({op->held.data(), op->held.size()});
  } else {
    op->local.set(local);
  }
  return op->status == Status::ok;
}

// noinline, so that post_one() sets up no stack frame for it.
PostResult Endpoint::post_one_generally(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr,
                                        uint64_t key, uint64_t flags, uint64_t context, uint64_t imm,
                                        bool inject_call) {
  const iovec piece{local, length};
  const wire::RmaRange range{addr, length, key};
  RmaArgs args;
  args.kind = kind;
  args.dest = dest;
  args.local = {&piece, 1};
  args.remote = {&range, 1};
  args.flags = flags;
  args.context = context;
  args.imm = imm;
  args.inject_call = inject_call;
  return post(args);
}

// Replaces raw key handles by the peer's keys. Requires the domain's lock.
std::span<const wire::RmaRange> Endpoint::named(std::span<const wire::RmaRange> remote, wire::RmaRange* room) const {
  if (raw_keys_ == 0) [[likely]]
    return remote;
  for (size_t i = 0; i < remote.size(); ++i) {
    room[i] = {remote[i].addr, remote[i].length, domain_->mapped_key(remote[i].key)};
  }
  return {room, remote.size()};
}

PostResult Endpoint::post(const RmaArgs& asked) {
  if (trace_ != nullptr) [[unlikely]] {
    const uint64_t began_ns = trace_->now_ns();
    return traced(asked.kind, asked.dest, sum_bytes(asked.remote), asked.remote.empty() ? 0 : asked.remote[0].key,
                  began_ns, post_untraced(asked));
  }
  return post_untraced(asked);
}

PostResult Endpoint::post_untraced(const RmaArgs& asked) {
  RmaArgs args = asked;
  const uint64_t total = args.local.size() == 1 ? args.local[0].iov_len : sum_bytes(args.local);
  const uint64_t remote_total = args.remote.size() == 1 ? args.remote[0].length : sum_bytes(args.remote);
  if (args.local.size() > kIovMax || args.remote.size() > kIovMax) return {Refusal::too_many_pieces};
  if (total != remote_total || total == kNoSum) return {Refusal::length_mismatch};
  if (total > config_.max_msg_size) return {Refusal::too_long};

  const PostLock guard(domain_);
  const bool held = holds_or_rings(args.flags);
  bool wants;
  Flow* flow;
  if (const Refusal r = check_post(args.dest, args.flags, args.inject_call, &wants, &flow); r != Refusal::none)
      [[unlikely]] {
    if (held) ring();  // the operations in the way may be the held ones
    if (model_.reorder()) release_kept();
    return {r};
  }
  wire::RmaRange room[kIovMax];
  args.remote = named(args.remote, room);
  const std::shared_ptr<Flow> kept = flow->shared_from_this();  // the address vector may change outside the lock
  Route& route = *flow->route;
  if (const Status bar = barred(route); bar != Status::ok) [[unlikely]] {
    if (!wants && tx_cq_->full()) return {Refusal::cq_full};
    fail(args.context, completion_flags(args.kind, {}), bar,
         describe(args.kind == OpKind::read ? "read" : "write", args.remote[0], route, bar), total, args.remote[0],
         &route);
    count_remote(args.kind == OpKind::read, true, 0);
    return {Refusal::none, true};
  }
  bool data_done = false, kept_back = false;
  Ordered what;
  if (model_.reorder() && !args.remote.empty()) [[unlikely]] {
    what = ordered(*flow, args.kind, {}, {}, {}, args.remote[0].key, args.flags, total);
    kept_back = reorders(what, args.flags) && !held;
    if (!held && !kept_back && may_go_direct(*flow, class_of(args.kind), args.flags) &&
        write_late(*flow, args, what, total, wants)) {
      return {Refusal::none, wants};
    }
  }
  if (!held && !kept_back &&
      may_go_direct(*flow, args.kind == OpKind::read ? OpClass::read : OpClass::write, args.flags)) [[likely]] {
    Status status = Status::ok;
    switch (try_direct(*flow, args.kind, args.local.data(), args.local.size(), args.remote.data(), args.remote.size(),
                       total, args.flags, args.imm, &status, true, args.device)) {
      case Direct::done:
        complete(wants, args.context, completion_flags(args.kind, {}), total);
        return {Refusal::none, wants};
      case Direct::failed:
        if (!wants && tx_cq_->full()) return {Refusal::cq_full};  // no room for the operation's error
        fail(args.context, completion_flags(args.kind, {}), status,
             describe(args.kind == OpKind::read ? "read" : "write", args.remote[0], route, status), total,
             args.remote[0], &route);
        if (status == Status::no_endpoint) route.set_lost();  // the next operation resolves the address again
        count_remote(args.kind == OpKind::read, true, 0);
        return {Refusal::none, true};
      case Direct::no_room:
        data_done = true;
        break;
      case Direct::frames:
      case Direct::park:
        break;
    }
  }
  if (const Refusal r = check_unfinished(args.flags, &wants); r != Refusal::none) {
    if (model_.reorder()) release_kept();
    return {r};
  }
  Op* op = make_op(args.kind, *flow, wants, args.flags, args.context, args.imm, total, args.inject_call);
  op->access().data_done = data_done;
  if (!take_args(op, args)) {
    finish(op);
    return {Refusal::none, true};
  }
  return {Refusal::none, true, held ? hold(op) : kept_back ? keep(op, what) : queue_op(op)};
}

// The arguments of a transfer in its operation. False: op->status tells why not.
bool Endpoint::take_args(Op* op, const RmaArgs& args) {
  op->access().remote.set(args.remote);
  if (args.device == 0 || op->access().data_done) return keep_local(op, args.local);
  const bool write = args.kind == OpKind::write;
  return stage(op, write ? args.local : std::span<const iovec>{}, write ? std::span<const iovec>{} : args.local,
               args.device, op->total);
}

// The direct path: key check, copy, and a notice if the target counts accesses. Requires the domain's lock; with
// may_unlock a long copy is made outside the lock under its own activity word.
Endpoint::Direct Endpoint::try_direct(Flow& flow, OpKind kind, const iovec* local, size_t local_count,
                                      const wire::RmaRange* remote, size_t remote_count, uint64_t total, uint64_t flags,
                                      uint64_t imm, Status* status, bool may_unlock, uint8_t device) {
  domain_->assert_held();
  Route& route = *flow.route;
  link::Peer& peer = *route.peer;
  mem::Devices& devices = domain_->nic_->devices();
  const uint32_t want = want_of(kind);
  mem::MrView view;
  Piece pieces[kMaxPieces];
  uint32_t count = 0, missing = 0, entry_flags = 0;
  Opened opened;
  bool by_device = device != 0;
  std::shared_ptr<link::Peer> kept;  // keeps the peer, which may die and leave the route while the lock is released
  Reach reach = Reach::direct;
  for (size_t i = 0; i < remote_count; ++i) {
    *status = peer.table.check(seen_by(route), route.ep_index, route.ep_generation, remote[i].key, remote[i].addr,
                               remote[i].length, want, view);
    if (*status != Status::ok) [[unlikely]]
      return Direct::failed;
    entry_flags |= view.entry->access;
    const Reach r = translate(peer, devices, view, remote[i].length, pieces, &count, &missing, &opened);
    if (r == Reach::direct) remember(route, view, remote[i].key);
    if (r == Reach::missing) [[unlikely]] {
      peer.link()->request_segment(peer, missing);
      return Direct::park;
    }
    if (r == Reach::device) {
      by_device = true;
    } else if (r != Reach::direct) {
      reach = r == Reach::frames || reach == Reach::frames ? Reach::frames : Reach::cma;
    }
  }
  if (reach == Reach::frames) return Direct::frames;
  if ((flags & flag::kRemoteCqData) != 0 && !route.takes_data()) [[unlikely]]
    return Direct::park;
  const mem::Devices* copier = by_device ? &devices : nullptr;
  if (Pager* const pager = model_.pager(); pager != nullptr && !by_device) [[unlikely]] {
    const std::span<const Piece> mapped(pieces, reach == Reach::direct ? count : 0);
    if (!pager->request({local, local_count}, mapped)) {
      *status = Status::page_request;
      return Direct::failed;
    }
  }

  const bool to_peer = kind == OpKind::write;
  if (reach == Reach::direct && !by_device && total <= domain_->nic_->limits_.inline_copy_bytes) [[likely]] {
    if (count == 1 && local_count == 1) [[likely]] {
      auto* here = static_cast<std::byte*>(local[0].iov_base);
      if (!(to_peer ? copy_guarded_hot(pieces[0].pointer, here, total)
                    : copy_guarded_hot(here, pieces[0].pointer, total))) {
        *status = Status::fault;
      }
    } else {
      *status = move(peer, to_peer, local, local_count, pieces, count);
    }
    if (*status != Status::ok) [[unlikely]]
      return Direct::failed;
    ++domain_->statistics.direct;
  } else if (total != 0) {
    reach == Reach::direct ? ++domain_->statistics.direct : ++domain_->statistics.cma;
    if (may_unlock) {
      // SYNC POINT: the long activity is visible before the lock's word becomes even, so a closing owner that sees the
      // lock released sees the long activity. For several regions the activity's slot is `any`.
      Nic& nic = *domain_->nic_;
      const uint32_t activity = nic.begin_long_activity(remote_count == 1 ? view.slot : mem::TableView::kNoSlot);
      kept = route.peer;
      const std::shared_ptr<CompletionQueue> cq = tx_cq_;
      const OpClass c = to_peer ? OpClass::write : OpClass::read;
      flow.begin_copy(c);
      long_copies_.fetch_add(1, std::memory_order_relaxed);
      cq->reserve();
      domain_->unlock();
      *status = move(*kept, to_peer, local, local_count, pieces, count, copier, device);
      nic.end_long_activity(activity);
      domain_->lock();
      cq->unreserve();
      long_copies_.fetch_sub(1, std::memory_order_release);
      flow.end_copy(c);
      // No notice if the peer died or the endpoint was closed during the copy.
      if (*status == Status::ok && (kept->dead() || route.peer != kept)) *status = Status::peer_gone;
      if (state_ != State::enabled) *status = Status::canceled;
      if (flow.waits()) domain_->pump(flow);
    } else {
      *status = move(peer, to_peer, local, local_count, pieces, count, copier, device);
    }
    if (*status == Status::access) *status = Status::fault;
    if (*status != Status::ok) return Direct::failed;
  }
  domain_->statistics.bytes += total;
  if (to_peer) tell_changed(route);

  const uint32_t notify = to_peer ? mem::kMrNotifyWrite : mem::kMrNotifyRead;
  const uint32_t ep_notify = to_peer ? mem::kEpNotifyWrite : mem::kEpNotifyRead;
  const bool has_data = (flags & flag::kRemoteCqData) != 0;
  model_.count(route, kind, {}, {}, remote[0].key, flags, total, (entry_flags & notify) != 0, false);
  if (has_data || (entry_flags & notify) != 0 ||
      (peer.table.ep(route.ep_index).flags.load(std::memory_order_relaxed) & ep_notify) != 0) [[unlikely]] {
    *status = send_notice(route, !to_peer, false, remote[0], total, has_data, imm);
    if (*status == Status::again) return Direct::no_room;
    if (*status != Status::ok) return Direct::failed;
  }
  return Direct::done;
}

[[gnu::noinline, gnu::cold]] void Endpoint::wake_parked(Route& route) noexcept {
  if (route.peer == nullptr) return;
  if (route.peer->same_process) {
    domain_->nic_->wake_parked();
  } else {
    route.peer->link()->wake(*route.peer);
  }
}

PostResult Endpoint::post_call(const CallArgs& call) {
  const iovec in{const_cast<std::byte*>(call.request.data()), call.request.size()};  // NOLINT: an operand, only read
  const iovec out{call.answer, call.request.size()};
  const wire::RmaRange range{call.addr, call.request.size(), call.key};
  AtomicArgs args;
  args.dest = call.dest;
  args.family = AtomicFamily::fetch;
  args.op = static_cast<AtomicOp>(wire::kCallOp);
  args.datatype = Datatype::uint8;
  args.operand = {&in, 1};
  args.result = {&out, 1};
  args.remote = {&range, 1};
  args.flags = flag::kCompletion;
  args.context = call.context;
  return post_atomic_generally(args);
}

Status Endpoint::send_notice(Route& route, bool read, bool atomic, const wire::RmaRange& range, uint64_t total,
                             bool has_data, uint64_t imm, AtomicOp op) {
  wire::Frame f;
  f.kind = wire::FrameKind::notice;
  f.atomic_op = static_cast<uint8_t>(op);
  f.flags = static_cast<uint8_t>((has_data ? wire::kFrameHasData : 0) | (read ? wire::kFrameIsRead : 0) |
                                 (atomic ? wire::kFrameIsAtomic : 0) | wire::kFrameLast);
  f.access.key = range.key;
  f.access.addr = range.addr;
  f.access.length = total;
  f.access.data = imm;
  f.ep_index = route.ep_index;
  f.ep_generation = route.ep_generation;
  f.source = seen_by(route);
  return route.peer->link()->submit(*route.peer, f, {});
}

void Endpoint::count_remote(bool read, bool failed, uint64_t bytes) {
  const auto& counter = read ? read_cntr_ : write_cntr_;
  if (!counter) return;
  if (failed) {
    counter->add_errors(1);
  } else {
    counter->add(counter->counts_bytes ? bytes : 1);
  }
}

void Endpoint::fail(uint64_t context, uint64_t flags, Status status, std::string text, uint64_t total,
                    const wire::RmaRange& range, const Route* route) noexcept {
  ++domain_->statistics.failed;
  if (trace_ != nullptr) [[unlikely]]
    record(TraceKind::failed, route, 0, total, range.key, status);
  CqEntry entry;
  entry.context = context;
  entry.flags = flags;
  CqError error;
  const auto [err, prov] = domain_->config_.statuses[status];
  error.err = err;
  error.prov_errno = prov;
  error.status = status;
  error.olen = total;
  error.text = std::move(text);
  error.key = range.key;
  if (route != nullptr) error.peer = route->address;
  error.own = address_;
  tx_cq_->push_error(entry, std::move(error));
}

}  // namespace weft::nic
