// cpp/nic/amo.cpp: atomics: this process executes them if loads and stores reach the target, else the owner's engine.

#include "nic/explain.hpp"
#include "nic/fast.inl"
#include "nic/iov.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

// HOT (one element, mapped target): no system call, no allocation, one lock; cache lines as for a put, and the locked
// instruction takes the target's line for writing. Benchmark: bench/cpp/main.cpp (fetch-add).
PostResult TxPort::post_atomic(const AtomicArgs& args) {
  if (args.remote.size() == 1 && args.operand.size() <= 1 && args.compare.size() <= 1 && args.result.size() <= 1 &&
      (args.flags & long_way_) == 0 && (args.operand_device | args.compare_device | args.result_device) == 0)
      [[likely]] {
    const wire::RmaRange& range = args.remote[0];
    const uint64_t total = range.length;
    const bool fits =
        (args.operand.empty() || args.operand[0].iov_len == total) &&
        (args.family == AtomicFamily::base || (!args.result.empty() && args.result[0].iov_len == total)) &&
        (args.family != AtomicFamily::compare || (!args.compare.empty() && args.compare[0].iov_len == total)) &&
        total <= atomic_bytes_max_;
    const PostLock guard(domain_);
    const uint64_t to = dest_of(args.dest);
    if (fits && plain_ && to < flows_.size() && flows_[to]) [[likely]] {
      const Flow& flow = *flows_[to];
      Route& route = *flow.route;
      const bool wants = !args.inject_call && (!selective_ || (args.flags & flag::kCompletion) != 0);
      if (route.ep_entry != nullptr && (flow.busy & stops_[static_cast<size_t>(OpClass::atomic)]) == 0 &&
          admits(tx_cq_.get(), wants)) [[likely]] {
        std::byte* there = pointer_to(route, range.key, range.addr, total, want_of(args.family, args.op));
        const auto address = reinterpret_cast<uintptr_t>(there);
        if (there != nullptr && atomic_width(args.datatype, address) != AtomicWidth::locked) [[likely]] {
          const uint64_t flags = completion_flags(OpKind::atomic, args.family);
          bool applied;
          {
            const mem::ElementTurn turn(route.translations[translation_of(range.key)].turns);
            applied = apply_here(*route.peer, args.op, args.datatype, there,
                                 args.operand.empty() ? nullptr : args.operand[0].iov_base,
                                 args.compare.empty() ? nullptr : args.compare[0].iov_base,
                                 args.result.empty() ? nullptr : args.result[0].iov_base, total);
          }
          if (!applied) [[unlikely]] {
            // Fail instead of taking the long path: some elements may have been updated.
            fail(args.context, flags, Status::fault, explain(*this, "atomic", range, route, Status::fault), total,
                 range, &route);
            count_remote((flags & flag::kRead) != 0, true, 0);
            return {Refusal::none, true};
          }
          Mover::tell_changed(route);
          ++domain_->statistics.direct;
          domain_->statistics.bytes += total;
          model_.count(route, OpKind::atomic, args.family, args.datatype, range.key, args.flags, total, false, false);
          complete(wants, args.context, flags, total);
          return {Refusal::none, wants};
        }
      }
    }
  }
  return post_atomic_generally(args);
}

PostResult TxPort::post_atomic_generally(const AtomicArgs& asked) {
  if (trace_ != nullptr) [[unlikely]] {
    const uint64_t began_ns = trace_->now_ns();
    return traced(OpKind::atomic, asked.dest, sum_bytes(asked.remote), asked.remote.empty() ? 0 : asked.remote[0].key,
                  began_ns, post_atomic_untraced(asked));
  }
  return post_atomic_untraced(asked);
}

PostResult TxPort::post_atomic_untraced(const AtomicArgs& asked) {
  AtomicArgs args = asked;
  if (args.operand.size() > kIovMax || args.compare.size() > kIovMax || args.result.size() > kIovMax ||
      args.remote.size() > kIovMax) {
    return {Refusal::too_many_pieces};
  }
  const uint64_t total = sum_bytes(args.remote);
  if (total == kNoSum) return {Refusal::length_mismatch};
  if (total > atomic_bytes_max_) return {Refusal::too_long};
  if ((!args.operand.empty() && sum_bytes(args.operand) != total) ||
      (args.family != AtomicFamily::base && sum_bytes(args.result) != total) ||
      (args.family == AtomicFamily::compare && sum_bytes(args.compare) != total)) {
    return {Refusal::length_mismatch};
  }
  HostCopies host;
  const mem::Devices& devices = domain_->nic()->devices();
  const Status staged = host.make(devices, &args, total);
  const bool device = !host.room.empty();
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
  Route& route = *flow->route;
  bool data_done = false;
  const uint64_t flags = completion_flags(OpKind::atomic, args.family);
  const auto failed = [&](Status status) -> PostResult {
    if (!wants && tx_cq_->full()) return {Refusal::cq_full};  // no room for the operation's error
    fail(args.context, flags, status, explain(*this, "atomic", args.remote[0], route, status), total, args.remote[0],
         &route);
    if (status == Status::no_endpoint) route.set_lost();
    count_remote((flags & flag::kRead) != 0, true, 0);
    return {Refusal::none, true};
  };
  wire::RmaRange names[kIovMax];
  args.remote = named(args.remote, names);
  if (staged != Status::ok) return failed(staged);
  if (const Status bar = barred(route); bar != Status::ok) return failed(bar);
  bool kept_back = false;
  Ordered what;
  if (Reorder* const reorder = model_.reorder(); reorder != nullptr && !args.remote.empty()) [[unlikely]] {
    what = reorder->ordered(*flow, OpKind::atomic, args.family, args.op, args.datatype, args.remote[0].key, args.flags,
                            total);
    kept_back = reorder->keeps(what, args.flags) && !held && !device;
    bool done = false;
    if (!held && !kept_back && may_go_direct(*flow, OpClass::atomic, args.flags) && reorder->loses(what, &done)) {
      Status status = Status::ok;
      if (done && mover_.update(route, args, total, &status) == Moved::failed) return failed(status);
      return failed(Status::timeout);
    }
  }
  if (!held && !kept_back && may_go_direct(*flow, OpClass::atomic, args.flags)) [[likely]] {
    Status status = Status::ok;
    const Moved moved = mover_.update(route, args, total, &status);
    if (device && (moved == Moved::done || moved == Moved::no_room)) {
      status = copy_device(devices, asked.result, args.result_device, host.room.data() + 2 * total, false);
      if (status != Status::ok) return failed(status);
    }
    switch (moved) {
      case Moved::done:
        complete(wants, args.context, flags, total);
        return {Refusal::none, wants};
      case Moved::failed:
        if (route.is_old()) break;  // the address is resolved again
        return failed(status);
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
  Op* op = make_op(OpKind::atomic, *flow, wants, args.flags, args.context, args.imm, total, args.inject_call);
  op->access().data_done = data_done;
  if (!take_args(op, args, device ? asked.result : std::span<const iovec>{})) {
    finish(op);
    return {Refusal::none, true};
  }
  return {Refusal::none, true, held ? hold(op) : kept_back ? model_.reorder()->keep(op, what) : queue_op(op)};
}

// The arguments of an atomic, in host memory, in its operation. of_device: where the result goes, if some buffers are
// device memory. False: op->status tells why not.
bool TxPort::take_args(Op* op, const AtomicArgs& args, std::span<const iovec> of_device) {
  const uint64_t total = op->total;
  Op::Access& access = op->access();
  access.family = args.family;
  access.op = args.op;
  access.datatype = args.datatype;
  access.remote.set(args.remote);
  // Copy the operands: the caller of inject may reuse them at once, and copying a few bytes is cheaper than tracking.
  op->held.resize(3 * total);
  if (!args.operand.empty()) {
    op->status = gather(args.operand, 0, op->held.data(), total);
    op->local.set({op->held.data(), total});
  }
  if (!args.compare.empty()) {
    if (op->status == Status::ok) op->status = gather(args.compare, 0, op->held.data() + total, total);
    access.compare.set({op->held.data() + total, total});
  }
  if (op->status != Status::ok) return false;
  if (!of_device.empty() && !access.data_done) {
    access.device_results = args.result_device;
    access.result.set({op->held.data() + 2 * total, total});
    access.device_at = 2 * total;
    access.device_result.set(of_device);
  } else {
    access.result.set(args.result);
  }
  return true;
}

// Replaces buffers in device memory by copies.
Status HostCopies::make(const mem::Devices& devices, AtomicArgs* args, uint64_t total) {
  if ((args->operand_device | args->compare_device | args->result_device) == 0) return Status::ok;
  room.resize(3 * total);
  for (size_t i = 0; i < 3; ++i) list[i] = {room.data() + i * total, total};
  Status staged = Status::ok;
  if (!args->operand.empty()) {
    staged = copy_device(devices, args->operand, args->operand_device, room.data(), true);
    args->operand = {&list[0], 1};
  }
  if (!args->compare.empty()) {
    if (staged == Status::ok) {
      staged = copy_device(devices, args->compare, args->compare_device, room.data() + total, true);
    }
    args->compare = {&list[1], 1};
  }
  if (!args->result.empty()) args->result = {&list[2], 1};
  return staged;
}

}  // namespace weft::nic
