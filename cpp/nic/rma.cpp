// cpp/nic/rma.cpp: reads and writes: direct access if possible, otherwise frames.
//
// HOT (post, 8-byte direct put): no system call, no allocation, one lock. Lines touched: the domain's activity word
// (written), the endpoint, its Flow and the Route, the peer's endpoint entry and region entry (read, shared), the
// target's line (written), one completion entry (written). Benchmark: bench/cpp/main.cpp (put8).
#include <cstring>

#include "nic/explain.hpp"
#include "nic/fast.inl"
#include "nic/iov.hpp"
#include "nic/queue.hpp"
#include "wire/call.hpp"

namespace weft::nic {

Flow* TxPort::make_flow(uint64_t fi_addr) {
  domain_->assert_held();
  std::shared_ptr<Route> shared = av_->route(fi_addr);
  if (!shared) return nullptr;
  if (fi_addr >= flows_.size()) flows_.resize(av_->slots());
  // Targets may admit a connected endpoint and refuse others, so other endpoints must not share its translations.
  if (config_.own_vni) {
    shared = domain_->route_to({shared->address.nic, shared->address.pid, config_.vni, shared->address.reserved});
  }
  flows_[fi_addr] = std::make_shared<Flow>(config_.connected ? domain_->own_route(shared->address) : shared);
  if (!speaks_to(*shared)) flows_[fi_addr]->busy |= Flow::kForeign;
  return flows_[fi_addr].get();
}

void TxPort::drop_flow(uint64_t fi_addr) noexcept {
  domain_->assert_held();
  if (fi_addr < flows_.size() && flows_[fi_addr]) messages_.end_flow(*flows_[fi_addr]);
  if (fi_addr < flows_.size()) flows_[fi_addr] = nullptr;  // operations under way keep the flow and end normally
}

bool TxPort::may_go_direct(const Flow& flow, OpClass c, uint64_t flags) const noexcept {
  const Route& route = *flow.route;
  if ((flags & flag::kCommitComplete) != 0) return false;  // the owner flushes its file
  if (!route.ready || !route.peer->table.valid() || route.peer->dead()) return false;
  if ((flow.busy & stops_[static_cast<size_t>(c)]) != 0) return false;
  return (flags & flag::kFence) == 0 || !fence_holds(flow, ~uint64_t{0});
}

bool TxPort::fence_holds(const Flow& flow, uint64_t sequence) const noexcept {
  domain_->assert_held();
  if ((flow.busy & kEveryClass) != 0) return true;
  if (!order_.fence_covers_all) return false;
  if (mover_.copies()) return true;
  bool earlier = false;
  domain_->operations().each([&](const Op* op) {
    earlier = earlier || (op->tx == this && op->sequence < sequence && op->kind != OpKind::batch);
  });
  return earlier;
}

PostResult TxPort::post_one(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr, uint64_t key,
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
        std::byte* there = pointer_to(route, key, addr, length, write ? mem::kRemoteWrite : mem::kRemoteRead);
        if (there != nullptr) [[likely]] {
          auto* here = static_cast<std::byte*>(local);
          if (write ? copy_guarded_hot(there, here, length) : copy_guarded_hot(here, there, length)) [[likely]] {
            if (write) Mover::tell_changed(route);
            ++domain_->statistics.direct;
            domain_->statistics.bytes += length;
            model_.count(route, kind, {}, {}, key, flags, length, false, false);
            complete(wants, context, write ? flag::kRma | flag::kWrite : flag::kRma | flag::kRead, length);
            return {Refusal::none, wants};
          }  // a page failed: post() reports the failure
        } else if (mover_.copied_by_kernel(flows_[to], kind, {local, length}, addr, key, flags)) {
          complete(wants, context, write ? flag::kRma | flag::kWrite : flag::kRma | flag::kRead, length);
          return {Refusal::none, wants};
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
[[gnu::noinline]] PostResult TxPort::post_one_by_frames(OpKind kind, void* local, uint64_t length, uint64_t to,
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
bool TxPort::keep_local(Op* op, std::span<const iovec> local) {
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
PostResult TxPort::post_one_generally(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr,
                                      uint64_t key, uint64_t flags, uint64_t context, uint64_t imm, bool inject_call) {
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
std::span<const wire::RmaRange> TxPort::named(std::span<const wire::RmaRange> remote, wire::RmaRange* room) const {
  if (raw_keys_ == 0) [[likely]]
    return remote;
  for (size_t i = 0; i < remote.size(); ++i) {
    room[i] = {remote[i].addr, remote[i].length, domain_->mapped_key(remote[i].key)};
  }
  return {room, remote.size()};
}

PostResult TxPort::post(const RmaArgs& asked) {
  if (trace_ != nullptr) [[unlikely]] {
    const uint64_t began_ns = trace_->now_ns();
    return traced(asked.kind, asked.dest, sum_bytes(asked.remote), asked.remote.empty() ? 0 : asked.remote[0].key,
                  began_ns, post_untraced(asked));
  }
  return post_untraced(asked);
}

PostResult TxPort::post_untraced(const RmaArgs& asked) {
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
    if (Reorder* const reorder = model_.reorder()) reorder->release_kept();
    return {r};
  }
  wire::RmaRange room[kIovMax];
  args.remote = named(args.remote, room);
  const std::shared_ptr<Flow> kept = flow->shared_from_this();  // the address vector may change outside the lock
  Route& route = *flow->route;
  if (const Status bar = barred(route); bar != Status::ok) [[unlikely]] {
    if (!wants && tx_cq_->full()) return {Refusal::cq_full};
    fail(args.context, completion_flags(args.kind, {}), bar,
         explain(*this, args.kind == OpKind::read ? "read" : "write", args.remote[0], route, bar), total,
         args.remote[0], &route);
    count_remote(args.kind == OpKind::read, true, 0);
    return {Refusal::none, true};
  }
  bool data_done = false, kept_back = false;
  Ordered what;
  if (Reorder* const reorder = model_.reorder(); reorder != nullptr && !args.remote.empty()) [[unlikely]] {
    what = reorder->ordered(*flow, args.kind, {}, {}, {}, args.remote[0].key, args.flags, total);
    kept_back = reorder->keeps(what, args.flags) && !held;
    if (!held && !kept_back && may_go_direct(*flow, class_of(args.kind), args.flags) &&
        reorder->write_late(*flow, args, what, total, wants)) {
      return {Refusal::none, wants};
    }
  }
  if (!held && !kept_back &&
      may_go_direct(*flow, args.kind == OpKind::read ? OpClass::read : OpClass::write, args.flags)) [[likely]] {
    Status status = Status::ok;
    switch (mover_.move(*flow,
                        {.kind = args.kind,
                         .local = args.local,
                         .remote = args.remote,
                         .total = total,
                         .flags = args.flags,
                         .imm = args.imm,
                         .device = args.device,
                         .may_unlock = true},
                        &status)) {
      case Moved::done:
        complete(wants, args.context, completion_flags(args.kind, {}), total);
        return {Refusal::none, wants};
      case Moved::failed:
        // The address is resolved again.
        if (route.is_old()) break;
        if (!wants && tx_cq_->full()) return {Refusal::cq_full};  // no room for the operation's error
        fail(args.context, completion_flags(args.kind, {}), status,
             explain(*this, args.kind == OpKind::read ? "read" : "write", args.remote[0], route, status), total,
             args.remote[0], &route);
        if (status == Status::no_endpoint) route.set_lost();
        count_remote(args.kind == OpKind::read, true, 0);
        return {Refusal::none, true};
      case Moved::no_room:
        data_done = true;
        break;
      case Moved::frames:
      case Moved::park:
        break;
    }
  }
  if (const Refusal r = check_unfinished(args.flags, &wants); r != Refusal::none) {
    if (Reorder* const reorder = model_.reorder()) reorder->release_kept();
    return {r};
  }
  Op* op = make_op(args.kind, *flow, wants, args.flags, args.context, args.imm, total, args.inject_call);
  op->access().data_done = data_done;
  if (!take_args(op, args)) {
    finish(op);
    return {Refusal::none, true};
  }
  return {Refusal::none, true, held ? hold(op) : kept_back ? model_.reorder()->keep(op, what) : queue_op(op)};
}

// The arguments of a transfer in its operation. False: op->status tells why not.
bool TxPort::take_args(Op* op, const RmaArgs& args) {
  op->access().remote.set(args.remote);
  if (args.device == 0 || op->access().data_done) return keep_local(op, args.local);
  const bool write = args.kind == OpKind::write;
  return stage(op, write ? args.local : std::span<const iovec>{}, write ? std::span<const iovec>{} : args.local,
               args.device, op->total);
}

PostResult TxPort::post_call(const CallArgs& call) {
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

void TxPort::count_remote(bool read, bool failed, uint64_t bytes) {
  const auto& counter = read ? read_cntr_ : write_cntr_;
  if (!counter) return;
  if (failed) {
    counter->add_errors(1);
  } else {
    counter->add(counter->counts_bytes ? bytes : 1);
  }
}

void TxPort::fail(uint64_t context, uint64_t flags, Status status, std::string text, uint64_t total,
                  const wire::RmaRange& range, const Route* route) noexcept {
  ++domain_->statistics.failed;
  if (trace_ != nullptr) [[unlikely]]
    record(TraceKind::failed, route, 0, total, range.key, status);
  CqEntry entry;
  entry.context = context;
  entry.flags = flags;
  CqError error;
  const auto [err, prov] = domain_->config().statuses[status];
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
