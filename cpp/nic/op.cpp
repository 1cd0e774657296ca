// cpp/nic/op.cpp: operations that outlast their call: making, queueing, sending frames, taking answers, ending.
#include <algorithm>
#include <utility>

#include "nic/fast.inl"
#include "nic/iov.hpp"
#include "nic/reach.hpp"

namespace weft::nic {

namespace {

constexpr uint64_t kLongSendBytes = uint64_t{64} << 10;  // sending an operation of this size takes about 10 us

std::span<const std::byte> as_bytes(const std::string& text) noexcept {
  return std::as_bytes(std::span(text));
}

}  // namespace

Op* Endpoint::make_op(OpKind kind, Flow& flow, bool wants, uint64_t flags, uint64_t context, uint64_t imm,
                      uint64_t total, bool inject_call) {
  domain_->assert_held();
  Op* op = domain_->ops_.add();
  op->kind = kind;
  op->ep = this;
  op->flow = flow.shared_from_this();
  op->wants_completion = wants;
  op->inject_call = inject_call;
  op->flags = flags;
  op->context = context;
  op->imm = imm;
  op->total = total;
  if (kind != OpKind::pull) ++outstanding_;
  if (wants) {
    tx_cq_->reserve();
    op->holds_cq_room = true;
  }
  return op;
}

Refusal Endpoint::check_unfinished(uint64_t flags, bool* wants) const {
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
uint64_t Endpoint::queue_op(Op* op) {
  domain_->assert_held();
  // During a long send, leave acknowledgements to the sender's next poll: the engine would compete with the sender.
  if (op->total >= kLongSendBytes) domain_->nic_->note_app();
  const std::shared_ptr<Flow> flow = op->flow;
  const uint64_t id = op->id;  // advance() may end the operation, and its Op may be reused
  if (!flow->waits() && advance_safely(op)) [[likely]]
    return id;
  domain_->wait(op);
  domain_->pump(*flow);
  if (flow->waits() && !flow->route->resolving) domain_->nic_->need_engine();
  return id;
}

uint64_t Endpoint::hold(Op* op) {
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

void Endpoint::ring(bool followed) {
  domain_->assert_held();
  if (held_.empty()) return;
  if (commands_) commands_->ring(followed);
  batches_.fetch_add(1, std::memory_order_relaxed);
  const std::vector<std::shared_ptr<Flow>> flows = std::exchange(held_, {});
  set_plain();
  for (const auto& flow : flows) {
    bool answered = false;  // the fabric merges the responses to one peer's High Rate Puts that are under way together
    for (Op* op = flow->first; op != nullptr; op = op->next) {
      if (!std::exchange(op->held_back, false) || counts_ == nullptr) continue;
      if ((travels(op->kind, op->family, op->datatype, op->remote[0].key, op->flags) & traffic::kHrp) == 0) continue;
      if (std::exchange(answered, true)) op->flags |= flag::kMerged;
    }
  }
  for (const auto& flow : flows) domain_->pump(*flow);
  if (std::ranges::any_of(flows, [](const auto& flow) { return flow->waits() && !flow->route->resolving; })) {
    domain_->nic_->need_engine();
  }
}

// HOT (CXI). Lines: the lines of the domain's two blocks of counts, which no other thread writes.
void Endpoint::count_traffic(Route& route, OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key,
                             uint64_t flags, uint64_t bytes, bool counts, bool framed) noexcept {
  const uint16_t how = travels(kind, family, datatype, key, flags);
  counts_->add_sent(lanes_[lane_of(flags)].tclass, packets_of(bytes));
  if (!framed && (route.telemetry != nullptr || find_counts(route))) [[likely]]
    route.telemetry->add_target(how, bytes, counts);
  if ((how & traffic::kHrp) != 0) {
    counts_->add(Telemetry::hrp_ack, 1);
    if ((flags & flag::kMerged) == 0) counts_->add(Telemetry::hrp_response, 1);
  }
}

bool Endpoint::find_counts(Route& route) noexcept {
  if (route.telemetry == nullptr) {
    try {
      route.telemetry = &domain_->telemetry(route.address.nic);
    } catch (const std::exception&) {  // out of memory for a page: operations to this peer are not counted
    }
  }
  return route.telemetry != nullptr;
}

bool Endpoint::link_is_down(Route& route) noexcept {
  find_counts(route);
  return cut_off(route);
}

bool Endpoint::cut_off(const Route& route) const noexcept {
  return counts_ != nullptr && (counts_->link_down() || (route.telemetry != nullptr && route.telemetry->link_down()));
}

// Ends an operation that is in no waiting list: reports it, returns its buffers, recycles the Op.
void Endpoint::finish(Op* op) noexcept {
  domain_->assert_held();
  const std::shared_ptr<Flow> flow = std::move(op->flow);
  if (op->counted) flow->end(class_of(op->kind));
  if (op->parent == nullptr && op->kind != OpKind::pull) --outstanding_;
  if (op->holds_cq_room) tx_cq_->unreserve();
  if (op->device_result_count != 0 && op->status == Status::ok) [[unlikely]] {
    op->status = copy_device(domain_->nic_->devices(), {op->device_result, op->device_result_count}, op->device_results,
                             op->held.data() + op->device_at, false);
  }
  const bool accesses = op->kind < OpKind::batch;
  if (counts_ != nullptr && op->counted && op->status == Status::ok && accesses) [[unlikely]] {
    count_traffic(*flow->route, op->kind, op->family, op->datatype, op->remote[0].key, op->flags, op->total, false,
                  true);
  }
  if (op->kind == OpKind::send) [[unlikely]] {
    end_send(op, *flow);
  } else if (op->kind == OpKind::pull) [[unlikely]] {
    port_owner_->pulled(*op->pull, op->status);
  } else if (op->status == Status::ok && op->parent == nullptr && op->kind != OpKind::cm) [[likely]] {
    const OpKind as = op->kind == OpKind::batch ? (op->data_done ? OpKind::read : OpKind::write) : op->kind;
    complete(op->wants_completion, op->context, completion_flags(as, op->family), op->total);
    if (!op->wants_completion) domain_->release_context(op->context);
  } else if (op->kind == OpKind::cm) {
    report_cm(op, *flow->route);
  } else if (op->parent != nullptr) {
    end_part(op, *flow->route);
  } else {
    report_failure(op, op->failed_at ? *op->failed_at : *flow->route);
  }
  if (reorder_) [[unlikely]]
    forget_kept(op);
  domain_->release_cookies(op);
  domain_->ops_.remove(op);
}

// The text is empty if there is no memory for it.
std::string Endpoint::failure_text(const char* what, const Op& op, const Route& route) const noexcept {
  try {
    return describe(what, op.remote[0], route, op.status);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

[[gnu::noinline]] void Endpoint::report_cm(Op* op, const Route& route) noexcept {
  if (!cm_) return;
  CmEvent event;
  event.token = cm_token_;
  event.kind = op->status == Status::ok ? CmKind::delivered : CmKind::failed;
  event.what = static_cast<CmKind>(op->atomic_op);
  event.connection = op->imm;
  event.status = op->status;
  if (op->status != Status::ok) {
    const std::string text = failure_text("connection request", *op, route);
    try {
      event.data.assign(as_bytes(text).begin(), as_bytes(text).end());
    } catch (const std::bad_alloc&) {
      event.data.clear();
    }
  }
  (void)cm_->push(std::move(event));
}

[[gnu::noinline]] void Endpoint::end_part(Op* op, Route& route) noexcept {
  Op* const parent = op->parent;
  *op->status_out = domain_->config_.statuses[op->status].err;
  if (op->status != Status::ok && parent->status == Status::ok) {
    parent->status = op->status;
    parent->remote[0] = op->remote[0];  // the call's error text describes this range
    parent->failed_at = route.shared_from_this();
  }
  if (--parent->children == 0 && parent->submitted) finish(parent);
}

[[gnu::noinline]] void Endpoint::report_failure(Op* op, Route& route) noexcept {
  const char* what = op->kind == OpKind::read     ? "read"
                     : op->kind == OpKind::write  ? "write"
                     : op->kind == OpKind::atomic ? "atomic"
                                                  : "vectored call, first of its failures,";
  const uint64_t flags = completion_flags(op->kind, op->family);
  fail(op->context, op->kind == OpKind::batch ? flag::kRma : flags, op->status, failure_text(what, *op, route),
       op->total, op->remote[0], &route);
  count_remote((flags & flag::kRead) != 0, true, 0);
  if (op->status == Status::no_endpoint) route.set_lost();
}

bool Endpoint::advance_safely(Op* op) noexcept {
  try {
    return advance(op);
  } catch (const std::exception&) {  // out of memory; answers to frames already sent find no operation
    op->status = Status::no_memory;
    finish(op);
    return true;
  }
}

// Submits a waiting operation as far as possible. True: it left the waiting list (all frames sent, or it has ended).
bool Endpoint::advance(Op* op) {
  domain_->assert_held();
  if (op->held_back) return false;
  Flow& flow = *op->flow;
  Route& t = *flow.route;
  if (counts_ != nullptr && !op->counted && !op->check_sent && link_is_down(t)) [[unlikely]] {
    op->status = Status::unreachable;
    finish(op);
    return true;
  }
  if (!t.ready) {
    if (!t.resolving && !domain_->nic_->resolve(flow.route)) {
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
  const bool started = op->counted || op->check_sent;
  // Frames stay in order behind earlier frames; loads and stores would overtake these.
  const bool ordered_behind = (flow.busy & must_not_pass) != 0;
  if (op->data_done) {
    const bool atomic = op->kind == OpKind::atomic;
    if ((op->flags & flag::kRemoteCqData) != 0 && !t.takes_data()) return false;
    const bool read = op->kind == OpKind::read || (atomic && op->family != AtomicFamily::base);
    const Status s = send_notice(t, read, atomic, op->remote[0], op->total, (op->flags & flag::kRemoteCqData) != 0,
                                 op->imm, op->atomic_op);
    if (s == Status::again) return false;
    op->status = s;
    finish(op);
    return true;
  }
  if (op->kind == OpKind::cm) return advance_frames(op);
  if (op->kind == OpKind::send) return advance_send(op);
  if (op->kind == OpKind::pull) return advance_pull(op);
  if (!started && t.peer->table.valid() && !ordered_behind && (op->flags & flag::kCommitComplete) == 0) {
    Status status = Status::ok;
    Direct direct;
    if (op->kind == OpKind::atomic) {
      AtomicArgs a;
      a.family = op->family;
      a.op = op->atomic_op;
      a.datatype = op->datatype;
      a.operand = {op->local, op->local_count};
      a.compare = {op->compare, op->compare_count};
      a.result = {op->result, op->result_count};
      a.remote = {op->remote, op->remote_count};
      a.flags = op->flags;
      a.imm = op->imm;
      direct = try_direct_atomic(t, a, op->total, &status);
    } else {
      direct = try_direct(flow, op->kind, op->local, op->local_count, op->remote, op->remote_count, op->total,
                          op->flags, op->imm, &status, false, 0);
    }
    switch (direct) {
      case Direct::done:
      case Direct::failed:
        op->status = status;
        finish(op);
        return true;
      case Direct::no_room:
        op->data_done = true;
        return false;
      case Direct::park:
        return false;
      case Direct::frames:
        break;
    }
  }
  return advance_frames(op);
}

bool Endpoint::advance_frames(Op* op) {
  Route& t = *op->flow->route;
  if (!op->counted) {
    op->counted = true;
    op->peer = t.peer.get();
    op->flow->begin(class_of(op->kind));
    ++domain_->statistics.framed;
  }
  wire::Frame f;
  f.op_id = op->id;
  f.ep_index = t.ep_index;
  f.ep_generation = t.ep_generation;
  f.source = seen_by(t);
  if (op->kind == OpKind::cm) {
    f.kind = wire::FrameKind::cm;
    f.connect.connection = op->imm;
    f.connect.message = static_cast<uint16_t>(op->atomic_op);
    f.flags = wire::kFrameLast;
    const Status s = submit_request(t, f, op->held);
    if (s == Status::again) return false;
    op->submitted = true;
    if (s == Status::ok) {
      ++op->frames_out;
    } else {
      op->status = s;
      finish(op);
    }
    return true;
  }
  // Several remote ranges: have the target check all of them first, so that a bad range leaves the others unchanged.
  if (op->remote_count > 1 && !op->check_sent) {
    f.kind = wire::FrameKind::check;
    f.family = static_cast<uint8_t>(op->family);
    f.flags = op->kind == OpKind::read ? wire::kFrameIsRead : op->kind == OpKind::atomic ? wire::kFrameIsAtomic : 0;
    f.atomic_op = static_cast<uint8_t>(op->atomic_op);
    const auto bytes = std::as_bytes(std::span(op->remote, op->remote_count));
    const Status s = submit_request(t, f, bytes);
    if (s == Status::again) return false;
    if (s != Status::ok) {
      op->status = s;
      if (op->frames_out == 0) finish(op);
      return true;
    }
    op->check_sent = true;
    ++op->frames_out;
  }
  std::byte gathered[8192];  // an atomic's operand and compare values
  for (;;) {
    const wire::RmaRange& range = op->remote[op->at_remote];
    const uint64_t left = range.length - op->at_offset;
    f.access.key = range.key;
    f.access.addr = range.addr;
    f.access.length = range.length;
    f.access.frag_offset = op->at_offset;
    if (counts_ != nullptr) [[unlikely]] {
      const uint16_t how = travels(op->kind, op->family, op->datatype, range.key, op->flags) & traffic::kInFrames;
      f.traffic = static_cast<uint8_t>(how);
    }
    f.flags = (op->flags & flag::kCommitComplete) != 0 && op->kind != OpKind::read ? wire::kFrameCommit : 0;
    std::span<const std::byte> payload;
    uint64_t n = 0;
    switch (op->kind) {
      case OpKind::write: {
        f.kind = wire::FrameKind::write;
        uint64_t offset = op->at_total;
        for (uint8_t i = 0; i < op->local_count; ++i) {
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
        f.access.data = op->at_total;  // the answer repeats it: the offset of its bytes
        f.payload_length = 0;
        break;
      case OpKind::atomic: {
        f.kind = wire::FrameKind::atomic;
        f.family = static_cast<uint8_t>(op->family);
        f.atomic_op = static_cast<uint8_t>(op->atomic_op);
        f.datatype = static_cast<uint8_t>(op->datatype);
        n = range.length;
        f.access.frag_offset = op->at_total;  // the answer repeats it
        uint64_t bytes = 0;
        if (op->local_count != 0) {
          (void)gather({op->local, op->local_count}, op->at_total, gathered, n);  // reads op->held: cannot fail
          bytes = n;
        }
        if (op->compare_count != 0) {
          (void)gather({op->compare, op->compare_count}, op->at_total, gathered + n, n);
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
    const bool last = op->at_remote + 1 == op->remote_count && op->at_offset + n == range.length;
    if (last) {
      f.flags |= wire::kFrameLast;
      if (op->kind != OpKind::read && (op->flags & flag::kRemoteCqData) != 0) {
        if (!t.takes_data()) [[unlikely]] {
          if (t.ep_entry == nullptr) ask_for_room(op);
          return false;
        }
        f.flags |= wire::kFrameHasData;
        f.access.data = op->imm;
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
    op->at_offset += n;
    op->at_total += n;
    if (op->at_offset == range.length) {
      op->at_offset = 0;
      ++op->at_remote;
    }
    if (last) break;
  }
  op->submitted = true;
  return true;
}

bool Endpoint::stage(Op* op, std::span<const iovec> read_from, std::span<const iovec> written_to, uint8_t device,
                     uint64_t total) {
  op->held.resize(total);
  op->local[0] = {op->held.data(), total};
  op->local_count = 1;
  std::ranges::copy(written_to, op->device_result);
  op->device_result_count = static_cast<uint8_t>(written_to.size());
  op->device_results = device;
  op->status = copy_device(domain_->nic_->devices(), read_from, device, op->held.data(), true);
  return op->status == Status::ok;
}

void Nic::on_answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                    std::span<const std::byte> payload) noexcept {
  peer->end_request();  // also for an operation that has been canceled
  const uint32_t index = OpTable::domain_of(frame.op_id);
  const std::lock_guard objects(objects_mutex_);
  if (index >= domains_.size() || domains_[index] == nullptr) return;
  Domain* domain = domains_[index];
  const DomainLock guard(domain);
  Op* op = domain->ops_.find(frame.op_id);
  if (op == nullptr || op->peer != peer.get() || op->frames_out == 0) return;  // canceled, or another peer's operation
  const auto status = static_cast<Status>(frame.status);
  if (op->kind == OpKind::send) {
    op->ep->on_reply(op, status, 0, {});
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
      const std::span<const iovec> list(read ? op->local : op->result, read ? op->local_count : op->result_count);
      const Status landed = scatter(list, offset, payload.data(), payload.size());
      if (landed != Status::ok && op->status == Status::ok) op->status = landed;
    }
  }
  --op->frames_out;
  if (op->frames_out == 0 && op->submitted && !op->flow->waits()) [[likely]] {
    op->ep->finish(op);
    return;
  }
  const std::shared_ptr<Flow> flow = op->flow;
  if (op->frames_out == 0 && op->submitted) {
    op->ep->finish(op);
  } else if (op->status != Status::ok && !op->submitted) {
    domain->stop_waiting(op);  // the operation failed: do not send its remaining frames
    op->submitted = true;
    if (op->frames_out == 0) op->ep->finish(op);
  }
  if (flow->waits()) domain->pump(*flow);
}

}  // namespace weft::nic
