// cpp/nic/op.cpp: operations that outlast their call: making, queueing, sending frames, taking answers, ending.
#include <algorithm>
#include <cassert>
#include <utility>

#include "nic/explain.hpp"
#include "nic/fast.inl"
#include "nic/iov.hpp"

namespace weft::nic {

namespace {

constexpr uint64_t kLongSendBytes = uint64_t{64} << 10;  // sending an operation of this size takes about 10 us

// No endpoint took the frames of an access: the access begins anew at the endpoint that has the address now. False: the
// access has failed.
bool begin_again(Op* op) noexcept {
  if (op->status != Status::no_endpoint || !op->accesses() || op->asked_again) return false;
  Op::Access& access = op->access();
  if (op->kind == OpKind::atomic && access.remote.size() != 1) return false;  // the first ranges may have been updated
  Route& route = *op->flow->route;
  if (access.epoch == route.epoch) route.set_lost();  // otherwise the address has been resolved since
  op->asked_again = true;
  op->status = Status::ok;
  op->submitted = op->counted = access.check_sent = false;
  op->flow->end(class_of(op->kind));
  op->peer = nullptr;
  access.at_offset = access.at_total = access.at_remote = 0;
  op->tx->domain()->wait_in_order(op);
  return true;
}

}  // namespace

Op* TxPort::make_op(OpKind kind, Flow& flow, bool wants, uint64_t flags, uint64_t context, uint64_t imm, uint64_t total,
                    bool inject_call) {
  domain_->assert_held();
  Op* op = domain_->operations().add();
  op->set_kind(kind);
  op->tx = this;
  op->flow = flow.shared_from_this();
  op->wants_completion = wants;
  op->inject_call = inject_call;
  op->flags = flags;
  op->context = context;
  op->data = imm;
  op->total = total;
  if (kind != OpKind::pull) ++outstanding_;
  if (wants) {
    tx_cq_->reserve();
    op->holds_cq_room = true;
  }
  if (trace_ != nullptr) [[unlikely]]
    record(TraceKind::begin, *op);
  return op;
}

Refusal TxPort::check_unfinished(uint64_t flags, bool* wants) const {
  if ((flags & (flag::kIfUnfinished | flag::kOnlyNow)) != 0) [[unlikely]] {
    if ((flags & flag::kOnlyNow) != 0) return Refusal::not_now;
    if (!tx_cq_->has_room()) return Refusal::cq_full;
    *wants = true;
  }
  if (outstanding_ >= config_.tx_size) return Refusal::tx_full;
  if (!*wants && tx_cq_->full()) return Refusal::cq_full;  // a failure needs an entry too
  if (state_ != State::enabled) return Refusal::closed;    // closed during the copy
  return Refusal::none;
}

// Appends an operation to its flow's waiting operations, and submits as many as possible. Returns its number.
uint64_t TxPort::queue_op(Op* op) {
  domain_->assert_held();
  // During a long send, leave acknowledgements to the sender's next poll: the engine would compete with the sender.
  if (op->total >= kLongSendBytes) domain_->nic()->note_app();
  const std::shared_ptr<Flow> flow = op->flow;
  const uint64_t id = op->id;  // advance() may end the operation, and its Op may be reused
  if (!flow->waits() && advance_safely(op)) [[likely]]
    return id;
  domain_->wait(op);
  domain_->pump(*flow);
  if (flow->waits() && !flow->route->resolving) domain_->nic()->need_engine();
  return id;
}

uint64_t TxPort::hold(Op* op) {
  domain_->assert_held();
  const uint64_t id = op->id;  // ring() may end the operation
  const bool wants = op->holds_cq_room;
  op->held_back = true;
  held_.push_back(op->flow);
  plain_ = false;
  domain_->wait(op);
  // Ring when the queue is full: no later post could.
  if (outstanding_ >= config_.tx_size || (wants ? !tx_cq_->has_room() : tx_cq_->full())) ring();
  return id;
}

void TxPort::ring(bool followed) {
  domain_->assert_held();
  if (held_.empty()) return;
  if (CommandQueue* const commands = model_.commands(); commands != nullptr) commands->ring(followed);
  batches_.fetch_add(1, std::memory_order_relaxed);
  const std::vector<std::shared_ptr<Flow>> flows = std::exchange(held_, {});
  set_plain();
  for (const auto& flow : flows) {
    bool answered = false;  // the fabric merges the responses to one peer's High Rate Puts that are under way together
    for (Op* op = flow->first; op != nullptr; op = op->next) {
      if (!std::exchange(op->held_back, false) || !model_.counts()) continue;
      if (!op->accesses()) continue;
      const Op::Access& a = op->access();
      if ((model_.travel(op->kind, a.family, a.datatype, a.remote[0].key, op->flags) & traffic::kHrp) == 0) continue;
      if (std::exchange(answered, true)) op->flags |= flag::kMerged;
    }
  }
  for (const auto& flow : flows) domain_->pump(*flow);
  if (std::ranges::any_of(flows, [](const auto& flow) { return flow->waits() && !flow->route->resolving; })) {
    domain_->nic()->need_engine();
  }
}

// Ends an operation that is in no waiting list: reports it, returns its buffers, recycles the Op.
void TxPort::finish(Op* op) noexcept {
  domain_->assert_held();
  assert(op->tx == this && op->next == nullptr && op != op->flow->first && "the operation waits in no list");
  if (trace_ != nullptr) [[unlikely]]
    record(TraceKind::end, *op);
  const std::shared_ptr<Flow> flow = std::move(op->flow);
  if (op->counted) flow->end(class_of(op->kind));
  assert((op->parent != nullptr || op->kind == OpKind::pull || outstanding_ != 0) && "the operation was counted");
  if (op->parent == nullptr && op->kind != OpKind::pull) --outstanding_;
  if (op->holds_cq_room) tx_cq_->unreserve();
  switch (op->kind) {
    case OpKind::write:
    case OpKind::read:
    case OpKind::atomic:
      end_access(op, *flow->route);
      break;
    case OpKind::batch:
      end_batch(op, *flow->route);
      break;
    case OpKind::cm:
      cm_.report(*op, *flow->route);
      break;
    case OpKind::send:
      messages_.end(op, *flow);
      break;
    case OpKind::pull:
      op->pull().port->pulled(op->pull().of, op->status);
      break;
  }
  if (Reorder* const reorder = model_.reorder()) [[unlikely]]
    reorder->forget(op);
  domain_->release_cookies(op);
  domain_->operations().remove(op);
}

void TxPort::end_access(Op* op, Route& route) noexcept {
  const Op::Access& a = op->access();
  if (!a.device_result.empty() && op->status == Status::ok) [[unlikely]] {
    op->status =
        copy_device(domain_->nic()->devices(), a.device_result, a.device_results, op->held.data() + a.device_at, false);
  }
  if (op->counted && op->status == Status::ok)
    model_.count(route, op->kind, a.family, a.datatype, a.remote[0].key, op->flags, op->total, false, true);
  if (op->parent != nullptr) {
    end_part(op, route);
  } else if (op->status == Status::ok) [[likely]] {
    complete_op(op, completion_flags(op->kind, a.family));
  } else {
    const char* what = op->kind == OpKind::read ? "read" : op->kind == OpKind::write ? "write" : "atomic";
    report_failure(op, what, completion_flags(op->kind, a.family), a.remote[0], route);
  }
}

void TxPort::end_batch(Op* op, Route& route) noexcept {
  const Op::Batch& b = op->batch();
  if (op->status == Status::ok) [[likely]] {
    complete_op(op, completion_flags(b.reads ? OpKind::read : OpKind::write, {}));
  } else {
    report_failure(op, "vectored call, first of its failures,", flag::kRma, b.failed_range,
                   b.failed_at ? *b.failed_at : route);
  }
}

void TxPort::complete_op(Op* op, uint64_t flags) noexcept {
  if (op->counter) [[unlikely]] {
    if (op->wants_completion) tx_cq_->push_local(op->context, flags, op->total & length_mask_);
    op->counter->add(op->counter->counts_bytes ? op->total : 1);
  } else {
    complete(op->wants_completion, op->context, flags, op->total);
  }
  if (!op->wants_completion) domain_->release_context(op->context);
}

bool TxPort::drops(const Op* op) noexcept {
  if (state_ != State::closed || !config_.close_drops) return false;
  domain_->release_context(op->context);
  return true;
}

[[gnu::noinline]] void TxPort::end_part(Op* op, Route& route) noexcept {
  Op* const parent = op->parent;
  *op->access().status_out = domain_->config().statuses[op->status].err;
  Op::Batch& batch = parent->batch();
  assert(batch.children != 0 && "the call waits for its parts");
  if (op->status != Status::ok && parent->status == Status::ok) {
    parent->status = op->status;
    batch.failed_range = op->access().remote[0];  // the call's error text describes this range
    batch.failed_at = route.shared_from_this();
  }
  if (--batch.children == 0 && parent->submitted) finish(parent);
}

[[gnu::noinline]] void TxPort::report_failure(Op* op, const char* what, uint64_t flags, const wire::RmaRange& range,
                                              Route& route) noexcept {
  if (drops(op)) return;
  fail(op->context, flags, op->status, explain_safely(*this, what, range, route, op->status), op->total, range, &route);
  if (op->counter) {
    op->counter->add_errors(1);
  } else {
    count_remote((flags & flag::kRead) != 0, true, 0);
  }
  if (op->status == Status::no_endpoint) route.set_lost();
}

bool TxPort::advance_safely(Op* op) noexcept {
  try {
    return advance(op);
  } catch (const std::exception&) {  // out of memory; answers to frames already sent find no operation
    op->status = Status::no_memory;
    finish(op);
    return true;
  }
}

// Submits a waiting operation as far as possible. True: it left the waiting list (all frames sent, or it has ended).
bool TxPort::advance(Op* op) {
  domain_->assert_held();
  if (op->held_back) return false;
  Flow& flow = *op->flow;
  Route& t = *flow.route;
  const bool started = op->counted || (op->accesses() && op->access().check_sent);
  if (!started && model_.is_down(t)) [[unlikely]] {
    op->status = Status::unreachable;
    finish(op);
    return true;
  }
  // Hardware delivers to the endpoint that has the address now. Messages under way are answered first, in their order.
  const bool may_ask =
      op->accesses() ? !started && !op->access().data_done : op->kind == OpKind::send && flow.unanswered == 0;
  if (may_ask && t.is_old() && !op->asked_again) [[unlikely]] {
    op->asked_again = true;  // once: a peer may name a closed endpoint for ever
    t.set_lost();
  }
  if (!t.ready) {
    if (!t.resolving && !domain_->nic()->resolve(flow.route)) {
      op->status = Status::no_endpoint;
      finish(op);
      return true;
    }
    if (!t.ready) return false;
  }
  if (t.peer->dead()) {
    op->status = t.peer->down_status();
    finish(op);
    return true;
  }
  if ((op->flags & flag::kFence) != 0 && !op->counted && fence_holds(flow, op->sequence)) return false;
  // Wait for long copies of other threads that this operation must not pass: its frames would overtake them.
  // Connection messages pass no operation.
  const ClassSet must_not_pass = op->kind == OpKind::cm ? kEveryClass : order_.of(class_of(op->kind));
  if ((flow.copying & must_not_pass) != 0 && !op->counted) return false;
  // Frames stay in order behind earlier frames; loads and stores would overtake these.
  const bool ordered_behind = (flow.busy & must_not_pass) != 0;
  if (op->kind == OpKind::cm) return cm_.advance(op);
  if (op->kind == OpKind::send) return messages_.advance(op);
  if (op->kind == OpKind::pull) return advance_pull(op);
  Op::Access& access = op->access();
  if (access.data_done) {
    const bool atomic = op->kind == OpKind::atomic;
    if ((op->flags & flag::kRemoteCqData) != 0 && !t.takes_data()) return false;
    const bool read = op->kind == OpKind::read || (atomic && access.family != AtomicFamily::base);
    const Status s = mover_.notify(t, read, atomic, access.remote[0], op->total, (op->flags & flag::kRemoteCqData) != 0,
                                   op->data, access.op);
    if (s == Status::again) return false;
    op->status = s;
    finish(op);
    return true;
  }
  if (!started && t.peer->table.valid() && !ordered_behind && (op->flags & flag::kCommitComplete) == 0) {
    Status status = Status::ok;
    Moved moved;
    if (op->kind == OpKind::atomic) {
      AtomicArgs a;
      a.family = access.family;
      a.op = access.op;
      a.datatype = access.datatype;
      a.operand = op->local;
      a.compare = access.compare;
      a.result = access.result;
      a.remote = access.remote;
      a.flags = op->flags;
      a.imm = op->data;
      moved = mover_.update(t, a, op->total, &status);
    } else {
      moved = mover_.move(flow,
                          {.kind = op->kind,
                           .local = op->local,
                           .remote = access.remote,
                           .total = op->total,
                           .flags = op->flags,
                           .imm = op->data},
                          &status);
    }
    switch (moved) {
      case Moved::done:
      case Moved::failed:
        op->status = status;
        finish(op);
        return true;
      case Moved::no_room:
        access.data_done = true;
        return false;
      case Moved::park:
        return false;
      case Moved::frames:
        break;
    }
  }
  return advance_frames(op);
}

// The first frame of an operation goes out.
void TxPort::begin_frames(Op* op) noexcept {
  if (op->counted) return;
  op->counted = true;
  if (op->accesses()) op->access().epoch = op->flow->route->epoch;
  op->peer = op->flow->route->peer.get();
  op->flow->begin(class_of(op->kind));
  ++domain_->statistics.framed;
}

wire::Frame TxPort::frame_of(const Op& op) const noexcept {
  const Route& t = *op.flow->route;
  wire::Frame f;
  f.op_id = op.id;
  f.ep_index = t.ep_index;
  f.ep_generation = t.ep_generation;
  f.source = mover_.seen_by(t);
  return f;
}

bool TxPort::advance_frames(Op* op) {
  Route& t = *op->flow->route;
  Op::Access& access = op->access();
  begin_frames(op);
  wire::Frame f = frame_of(*op);
  // Several remote ranges: have the target check all of them first, so that a bad range leaves the others unchanged.
  if (access.remote.size() > 1 && !access.check_sent) {
    f.kind = wire::FrameKind::check;
    f.family = static_cast<uint8_t>(access.family);
    f.flags = op->kind == OpKind::read ? wire::kFrameIsRead : op->kind == OpKind::atomic ? wire::kFrameIsAtomic : 0;
    f.atomic_op = static_cast<uint8_t>(access.op);
    const auto bytes = std::as_bytes(std::span<const wire::RmaRange>(access.remote));
    const Status s = submit_request(t, f, bytes);
    if (s == Status::again) return false;
    if (s != Status::ok) {
      op->status = s;
      if (op->frames_out == 0) finish(op);
      return true;
    }
    access.check_sent = true;
    ++op->frames_out;
  }
  std::byte gathered[8192];  // an atomic's operand and compare values
  for (;;) {
    const wire::RmaRange& range = access.remote[access.at_remote];
    const uint64_t left = range.length - access.at_offset;
    f.access.key = range.key;
    f.access.addr = range.addr;
    f.access.length = range.length;
    f.access.frag_offset = access.at_offset;
    if (model_.counts()) [[unlikely]] {
      const uint16_t how =
          model_.travel(op->kind, access.family, access.datatype, range.key, op->flags) & traffic::kInFrames;
      f.traffic = static_cast<uint8_t>(how);
    }
    f.flags = (op->flags & flag::kCommitComplete) != 0 && op->kind != OpKind::read ? wire::kFrameCommit : 0;
    std::span<const std::byte> payload;
    uint64_t n = 0;
    switch (op->kind) {
      case OpKind::write: {
        f.kind = wire::FrameKind::write;
        uint64_t offset = access.at_total;
        for (size_t i = 0; i < op->local.size(); ++i) {
          if (offset >= op->local[i].iov_len) {
            offset -= op->local[i].iov_len;
            continue;
          }
          n = std::min({left, op->local[i].iov_len - offset, uint64_t{t.peer->payload_max}});
          payload = {static_cast<const std::byte*>(op->local[i].iov_base) + offset, n};
          break;
        }
        break;
      }
      case OpKind::read:
        f.kind = wire::FrameKind::read;
        n = std::min(left, uint64_t{t.peer->payload_max});
        f.access.data = access.at_total;  // the answer repeats it: the offset of its bytes
        f.payload_length = 0;
        break;
      case OpKind::atomic: {
        f.kind = wire::FrameKind::atomic;
        f.family = static_cast<uint8_t>(access.family);
        f.atomic_op = static_cast<uint8_t>(access.op);
        f.datatype = static_cast<uint8_t>(access.datatype);
        n = range.length;
        f.access.frag_offset = access.at_total;  // the answer repeats it
        uint64_t bytes = 0;
        if (!op->local.empty()) {
          (void)gather(op->local, access.at_total, gathered, n);  // reads op->held: cannot fail
          bytes = n;
        }
        if (!access.compare.empty()) {
          (void)gather(access.compare, access.at_total, gathered + n, n);
          bytes = 2 * n;
        }
        payload = {gathered, bytes};
        break;
      }
      case OpKind::batch:
      case OpKind::cm:
      case OpKind::send:
      case OpKind::pull:
        return true;
    }
    const bool last = access.at_remote + size_t{1} == access.remote.size() && access.at_offset + n == range.length;
    if (last) {
      f.flags |= wire::kFrameLast;
      if (op->kind != OpKind::read && (op->flags & flag::kRemoteCqData) != 0) {
        if (!t.takes_data()) [[unlikely]] {
          if (t.ep_entry == nullptr) ask_for_room(op);
          return false;
        }
        f.flags |= wire::kFrameHasData;
        f.access.data = op->data;
      }
    }
    // A read frame passes the part of the range that it wants in (frag_offset, status).
    if (op->kind == OpKind::read) f.status = static_cast<int32_t>(n);
    const Status s = submit_request(t, f, payload);
    if (s == Status::again) return false;
    if (s != Status::ok) {
      op->status = s;
      op->submitted = true;
      if (op->frames_out == 0) finish(op);
      return true;
    }
    ++op->frames_out;
    access.at_offset += n;
    access.at_total += n;
    if (access.at_offset == range.length) {
      access.at_offset = 0;
      ++access.at_remote;
    }
    if (last) break;
  }
  op->submitted = true;
  return true;
}

bool TxPort::stage(Op* op, std::span<const iovec> read_from, std::span<const iovec> written_to, uint8_t device,
                   uint64_t total) {
  op->held.resize(total);
  op->local.set({op->held.data(), total});
  op->access().device_result.set(written_to);
  op->access().device_results = device;
  op->status = copy_device(domain_->nic()->devices(), read_from, device, op->held.data(), true);
  return op->status == Status::ok;
}

void Nic::on_answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                    std::span<const std::byte> payload) noexcept {
  peer->end_request();  // also for an operation that has been canceled
  Domain* const domain = domain_of(frame.op_id);
  if (domain == nullptr) return;
  const DomainLock guard(domain);
  Op* op = domain->operations().find(frame.op_id);
  if (op == nullptr || op->peer != peer.get() || op->frames_out == 0) return;  // canceled, or another peer's operation
  const auto status = static_cast<Status>(frame.status);
  if (op->kind == OpKind::send) {
    op->tx->messages().on_reply(op, status, 0, {});
    return;
  }
  if ((frame.flags & (wire::kFrameNoRoom | wire::kFrameRoom)) != 0) [[unlikely]] {
    Route& route = *op->flow->route;
    route.no_room = (frame.flags & wire::kFrameNoRoom) != 0;
    if (!route.no_room) route.ask_room_wait_ns = route.ask_room_at_ns = 0;
  }
  op->asks_room = false;
  if (status != Status::ok) {
    if (op->status == Status::ok) op->status = status;
  } else if (!payload.empty()) {
    const bool pull = op->kind == OpKind::pull;
    const uint64_t offset = pull                       ? frame.pull.place
                            : op->kind == OpKind::read ? frame.access.data
                                                       : frame.access.frag_offset;
    if (offset > op->total || payload.size() > op->total - offset) {
      op->status = Status::protocol;
    } else if (op->kind == OpKind::read || op->kind == OpKind::atomic || pull) {
      const bool read = op->kind != OpKind::atomic;
      const std::span<const iovec> list = read ? op->local : op->access().result;
      const Status landed = scatter(list, offset, payload.data(), payload.size());
      if (landed != Status::ok && op->status == Status::ok) op->status = landed;
    }
  }
  assert(op->tx->domain() == domain && op->flow->route->domain == domain);
  --op->frames_out;
  if (op->frames_out == 0 && op->submitted && op->status == Status::ok && !op->flow->waits()) [[likely]] {
    op->tx->finish(op);
    return;
  }
  const std::shared_ptr<Flow> flow = op->flow;
  if (op->status != Status::ok && !op->submitted) {
    domain->stop_waiting(op);  // the operation failed: do not send its remaining frames
    op->submitted = true;
  }
  if (op->frames_out == 0 && op->submitted && !begin_again(op)) op->tx->finish(op);
  if (flow->waits()) domain->pump(*flow);
}

}  // namespace weft::nic
