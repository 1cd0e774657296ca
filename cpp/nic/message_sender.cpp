// cpp/nic/message_sender.cpp: see message_sender.hpp.
//
// HOT (post, credited): no system call, no allocation, one lock. Lines touched: the domain's activity word
// (written), the endpoint, the Flow (written), the Route, the link's lines and one ring slot (written), one completion
// entry (written). Benchmark: bench/cpp/messages.cpp.
#include "nic/message_sender.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "nic/explain.hpp"
#include "nic/fast.inl"
#include "nic/iov.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

namespace {

// FI_PROTO_CXI_RNR: the waits before further attempts; the last one repeats.
constexpr std::array<uint64_t, 5> kRetryWaitNs = {1'000, 11'000, 81'000, 271'000, 641'000};

// Messages of a flow that begins anew get other numbers.
void forget_numbers(Flow& flow) noexcept {
  for (Op* op = flow.first; op != nullptr; op = op->next) {
    if (op->kind == OpKind::send) op->send().numbered = false;
  }
}

// True if the peer's endpoint shares its table, and is open: a credited message has no answer that would report a
// closed endpoint.
bool is_open(const Route& route) noexcept {
  return route.ep_entry != nullptr && route.ep_entry->generation.load(std::memory_order_relaxed) == route.ep_generation;
}

constexpr uint64_t send_flags(bool tagged) noexcept {
  return flag::kSend | (tagged ? flag::kTagged : flag::kMsg);
}

}  // namespace

MessageSender::MessageSender(TxPort& tx, Domain* domain, const MessageConfig& config, const OrderRules& order) noexcept
    : tx_(tx), domain_(domain), config_(config), order_(order), retry_ns_max_(config.retry_ns_max) {
  const ClassSet others = order.of(OpClass::write) | order.of(OpClass::read) | order.of(OpClass::atomic);
  takes_credits_ = (others & class_bit(OpClass::send)) == 0;
  const auto of_send = order.of(OpClass::send);
  stops_ =
      static_cast<ClassSet>((of_send & ~class_bit(OpClass::send)) | Flow::kWaiting | Flow::kForeign | Flow::kLongSend);
}

wire::Frame MessageSender::message_frame(const Route& route, const Flow& flow, uint64_t tag, uint64_t data,
                                         uint64_t total, bool tagged, uint64_t flags) const noexcept {
  wire::Frame f;
  f.kind = wire::FrameKind::message;
  f.flags = static_cast<uint8_t>((tagged ? wire::kMessageTagged : 0) |
                                 ((flags & flag::kRemoteCqData) != 0 ? wire::kMessageHasData : 0) |
                                 (config_.unordered ? wire::kMessageUnordered : 0));
  f.traffic = tx_.model().counts() ? traffic::kCounted : uint8_t{0};
  f.ep_index = route.ep_index;
  f.ep_generation = route.ep_generation;
  f.source = tx_.mover().seen_by(route);
  f.message = {
      .tag = tag, .data = data, .length = total, .key = 0, .sequence = flow.next_number, .sender = flow.sender};
  return f;
}

// counter: counts the message, or null. late: the NIC has told software of the end, and software counts it.
inline void MessageSender::complete(bool wants, uint64_t context, bool tagged, uint64_t len, Counter* counter,
                                    bool late) noexcept {
  if (wants) tx_.queue()->push_local(context, send_flags(tagged), tx_.shown_length(len));
  if (counter == nullptr) [[likely]]
    return;
  const uint64_t n = counter->counts_bytes ? len : 1;
  if (late) {
    counter->add_late(n, 0);
    domain_->note_software();
  } else {
    counter->add(n);
  }
}

// True if the call may send the message as a credited one.
inline bool MessageSender::may_credit(const Flow& flow, const SendArgs& args, uint64_t total) const noexcept {
  constexpr uint64_t kLonger = flag::kFence | flag::kMatchComplete | flag::kDeliveryComplete;
  return !config_.unordered && total <= wire::kInlinePayloadMax && (flow.busy & stops_) == 0 &&
         flow.epoch == flow.route->epoch && is_open(*flow.route) && (args.flags & kLonger) == 0 && args.device == 0 &&
         args.local.size() <= 1;
}

// HOT. Sends a credited message: one frame, and nothing remains.
[[gnu::always_inline]] inline Status MessageSender::submit_credited(Flow& flow, uint64_t tag, uint64_t data,
                                                                    bool tagged, uint64_t flags,
                                                                    std::span<const std::byte> bytes) {
  Route& route = *flow.route;
  link::Peer& peer = *route.peer;
  Status s;
  if (peer.takes_briefs) [[likely]] {
    wire::Brief b;
    b.ep_index = static_cast<uint16_t>(route.ep_index);
    const bool has_data = (flags & flag::kRemoteCqData) != 0;
    const size_t at = has_data ? wire::kBriefDataBytes : 0;
    b.flags = static_cast<uint8_t>((tagged ? wire::kMessageTagged : 0) | (has_data ? wire::kMessageHasData : 0) |
                                   (tx_.model().counts() ? wire::kBriefCounted : 0));
    b.rest = static_cast<uint8_t>(at + bytes.size());
    b.sender = flow.sender;
    b.tag = tag;
    b.ep_generation = route.ep_generation;
    b.sequence = flow.next_number;
    // The caller's pages may be missing, so its bytes are read before a slot of the ring is claimed.
    std::byte rest[wire::kBriefRestMax];
    std::memset(rest, 0, 24);
    if (has_data) std::memcpy(rest, &data, sizeof(data));
    if (!bytes.empty() && !copy_guarded_hot(rest + at, bytes.data(), bytes.size())) [[unlikely]]
      return Status::fault;
    s = peer.link()->submit_brief(peer, b, rest);
  } else {
    wire::Frame f = message_frame(route, flow, tag, data, bytes.size(), tagged, flags);
    f.flags |= wire::kMessageCredited;
    s = peer.link()->submit(peer, f, bytes);
  }
  if (s != Status::ok) [[unlikely]]
    return s;
  ++flow.next_number;
  --flow.credits;
  flow.set_long_send();
  ++domain_->statistics.direct;
  domain_->statistics.bytes += bytes.size();
  return s;
}

// The same for a message that waits in the flow, whose turn it is.
bool MessageSender::may_credit(const Op& op) const noexcept {
  constexpr uint64_t kLonger = flag::kFence | flag::kMatchComplete | flag::kDeliveryComplete;
  const Flow& flow = *op.flow;
  return !config_.unordered && op.total <= wire::kInlinePayloadMax && op.local.size() == 1 &&
         flow.epoch == flow.route->epoch && is_open(*flow.route) && (op.flags & kLonger) == 0 && takes_credits_ &&
         !tx_.model().counts() && op.status == Status::ok && op.send().retry_at_ns == 0;
}

[[gnu::always_inline]] inline PostResult MessageSender::send_credited(Flow& flow, const SendArgs& args, uint64_t total,
                                                                      bool wants) {
  const std::span<const std::byte> bytes(
      args.local.empty() ? nullptr : static_cast<const std::byte*>(args.local[0].iov_base), total);
  if (submit_credited(flow, args.tag, args.data, args.tagged, args.flags, bytes) != Status::ok) [[unlikely]]
    return {Refusal::not_now};  // the long way tries again, or reports the failure
  tx_.model().count_message(args.flags, total);
  complete(wants, args.context, args.tagged, total, counter_.get());
  return {Refusal::none, wants};
}

PostResult MessageSender::post(const SendArgs& args) {
  if (tx_.trace() != nullptr) [[unlikely]] {
    const uint64_t began_ns = tx_.trace()->now_ns();
    return tx_.traced(OpKind::send, args.dest, sum_bytes(args.local), args.tag, began_ns, post_untraced(args));
  }
  return post_untraced(args);
}

[[gnu::always_inline]] inline PostResult MessageSender::post_untraced(const SendArgs& args) {
  bool asks = false;
  const PostResult result = post_message(args, &asks);
  // The answer that brings credits would otherwise wait for the application's next poll, while it sends without them.
  if (asks) [[unlikely]]
    domain_->nic()->poll_if_ready();
  return result;
}

// *asks: the answer to an earlier message brings credits.
PostResult MessageSender::post_message(const SendArgs& args, bool* asks) {
  const uint64_t total = sum_bytes(args.local);
  if (args.local.size() > kIovMax) return {Refusal::too_many_pieces};
  if (total == kNoSum) return {Refusal::length_mismatch};
  if (total > tx_.config().max_msg_size) return {Refusal::too_long};
  const MessageConfig& m = config_;

  const PostLock guard(domain_);
  const bool held = tx_.holds_or_rings(args.flags);
  bool wants;
  Flow* flow;
  if (const Refusal r = tx_.check_post(args.dest, args.flags, args.inject_call, &wants, &flow); r != Refusal::none)
      [[unlikely]] {
    if (held) tx_.ring();
    return {r};
  }
  *asks = flow->asks_credits && flow->credits_max != 0;
  if (flow->stopped && !m.unordered) [[unlikely]]
    return {Refusal::flow_stopped};
  if (Reorder* const reorder = tx_.model().reorder();
      reorder != nullptr && (order_.of(OpClass::send) & (class_bit(OpClass::write) | class_bit(OpClass::atomic))) != 0)
    reorder->release_kept();
  if (!held && may_credit(*flow, args, total) && !tx_.model().is_down(*flow->route)) [[likely]] {
    const PostResult sent = send_credited(*flow, args, total, wants);
    if (sent.refusal == Refusal::none) [[likely]]
      return sent;
  }
  if (const Refusal r = tx_.check_unfinished(args.flags, &wants); r != Refusal::none) return {r};
  if (lacks_id(args.tagged, total)) [[unlikely]] {
    no_id_bytes_ = std::max(no_id_bytes_, total);
    if (std::has_single_bit(++no_id_)) domain_->tell(tx_.address().pid, News::no_id);
    return {Refusal::rdzv_full};
  }
  Op* op = tx_.make_op(OpKind::send, *flow, wants, args.flags, args.context, args.data, total, args.inject_call);
  if (!take_args(op, args)) {
    tx_.finish(op);
    return {Refusal::none, true};
  }
  return {Refusal::none, true, held ? tx_.hold(op) : tx_.queue_op(op)};
}

// Too many messages of the kind wait to be pulled for one more of this length.
bool MessageSender::lacks_id(bool tagged, uint64_t total) const noexcept {
  const MessageConfig& m = config_;
  const uint32_t ids_max = tagged ? m.tagged_ids : m.untagged_ids;
  return total > m.eager_max && ids_max != 0 && (tagged ? tagged_ids_ : untagged_ids_) >= ids_max;
}

// The arguments of a message in its operation. False: op->status tells why not.
bool MessageSender::take_args(Op* op, const SendArgs& args) {
  const MessageConfig& m = config_;
  const uint64_t total = op->total;
  Op::Send& send = op->send();
  send.tag = args.tag;
  send.tagged = args.tagged;
  send.wants_match =
      (args.flags & flag::kMatchComplete) != 0 || (m.delivery_complete && (args.flags & flag::kDeliveryComplete) != 0);
  send.announced = total > std::min<uint64_t>(m.eager_max, wire::kStagedPayloadMax);
  if (total > m.eager_max) {
    send.has_id = true;
    ++(args.tagged ? tagged_ids_ : untagged_ids_);
  }
  if (const Status bar = tx_.barred(*op->flow->route); bar != Status::ok) [[unlikely]] {
    op->status = bar;
    return false;
  }
  const bool copies = args.inject_call || (args.flags & flag::kInject) != 0 || total <= m.copy_max || total == 0;
  if (args.device != 0 || copies || (args.local.size() > 1 && !send.announced)) {
    op->held.resize(total);
    op->status = args.device != 0
                     ? copy_device(domain_->nic()->devices(), args.local, args.device, op->held.data(), true)
                     : gather(args.local, 0, op->held.data(), total);
    op->local.set({op->held.data(), total});
  } else {
    op->local.set(args.local);
  }
  return op->status == Status::ok;
}

// ---- the frame of a message ----------------------------------------------------------------------------------------

// Sends the frame of a message. True: the operation has left the waiting list.
bool MessageSender::advance(Op* op) {
  domain_->assert_held();
  Flow& flow = *op->flow;
  Route& route = *flow.route;
  Op::Send& send = op->send();
  const MessageConfig& m = config_;
  if (flow.epoch != route.epoch) [[unlikely]] {
    flow.forget_messages();
    forget_numbers(flow);
    send.numbered = false;
  }
  if (flow.restart && flow.unanswered == 0) {
    restart_flow(flow);
    send.numbered = false;  // in no list at present
  }
  if (flow.restart) return false;
  if (send.retry_at_ns != 0 || flow.stopped) [[unlikely]] {
    const uint64_t now = domain_->nic()->clock().now_ns();
    if (now < (flow.stopped ? flow.retry_at_ns : send.retry_at_ns)) return false;
    flow.stopped = false;
    flow.set_long_send();
  }
  if (flow.window != 0 && flow.unanswered >= flow.window) [[unlikely]]
    return false;
  const bool first = flow.sender == Flow::kNoSender;
  if (first && flow.unanswered != 0) return false;  // the answer to the first message tells the flow's number
  if (!first && !send.numbered && may_credit(*op)) {
    if ((flow.busy & Flow::kLongSend) == 0) {
      const std::span<const std::byte> all(static_cast<const std::byte*>(op->local[0].iov_base), op->total);
      const Status s = submit_credited(flow, send.tag, op->data, send.tagged, op->flags, all);
      if (s == Status::again) return false;
      op->status = s;
      tx_.finish(op);
      return true;
    }
    // The answer under way brings credits. A message without one would need an answer of its own.
    if (flow.credits == 0 && flow.asks_credits && flow.credits_max != 0) return false;
  }
  wire::Frame f = message_frame(route, flow, send.tag, op->data, op->total, send.tagged, op->flags);
  f.op_id = op->id;
  if (send.numbered) f.message.sequence = send.number;
  if (first) {
    f.flags |= wire::kMessageFirst;
    if (tx_.av().symmetric()) f.message.sender = static_cast<uint32_t>(tx_.av().find(f.source));  // unknown: kNoIndex
  }
  if (send.wants_match) f.flags |= wire::kMessageWantsMatch;
  std::span<const std::byte> bytes;
  std::vector<std::byte> gathered;
  uint64_t n = op->total;
  if (send.announced) {
    f.flags |= wire::kMessageRendezvous | (send.has_id ? 0 : wire::kMessageWhole);
    n = std::min({op->total, m.eager_part, uint64_t{route.peer->payload_max}});
    if (send.lent == Op::Send::kNotLent) lend(op);
    if (send.lent != Op::Send::kNotLent) f.message.key = domain_->nic()->table().mr(send.lent).key;
  }
  if (op->local.size() == 1) {
    bytes = {static_cast<const std::byte*>(op->local[0].iov_base), n};
  } else if (n != 0) {
    gathered.resize(n);
    op->status = gather(op->local, 0, gathered.data(), n);
    bytes = gathered;
  }
  const Status s = op->status != Status::ok ? op->status : tx_.submit_request(route, f, bytes);
  if (s == Status::again) return false;
  if (s != Status::ok) {
    op->status = s;
    // Later messages have later numbers: the receiver must not wait for this one.
    if (send.numbered && !m.unordered) flow.restart = true;
    tx_.finish(op);
    return true;
  }
  op->peer = route.peer.get();
  op->submitted = true;
  send.retry_at_ns = 0;
  ++op->frames_out;
  ++flow.unanswered;
  if (!op->counted) {
    op->counted = true;
    flow.begin(OpClass::send);
  }
  if (!send.numbered) {
    send.numbered = true;
    send.epoch = flow.epoch;
    send.number = flow.next_number;
    if (!m.unordered) ++flow.next_number;
    ++domain_->statistics.framed;
    domain_->statistics.bytes += op->total;
  }
  flow.asks_credits = true;
  flow.set_long_send();
  return true;
}

// Enters the message's buffers into the memory table, so that a receiver on this host reads them itself. Without a
// shared table the receiver asks for frames.
void MessageSender::lend(Op* op) {
  const Route& route = *op->flow->route;
  if (route.ep_entry == nullptr) return;
  mem::MrBuffer buffers[kIovMax];
  for (size_t i = 0; i < op->local.size(); ++i) {
    const iovec& v = op->local[i];
    buffers[i] = {reinterpret_cast<uint64_t>(v.iov_base), v.iov_len, 0, mem::kNoSegment};
    if (const auto place = domain_->nic()->segments().find(v.iov_base, v.iov_len)) {
      buffers[i].segment = place->segment;
      buffers[i].where = place->offset;
    }
  }
  mem::MrRequest request;
  request.buffers = {buffers, op->local.size()};
  request.access = mem::kRemoteRead;
  request.domain = mem::kLentDomain;
  request.enabled = true;
  try {
    op->send().lent = domain_->nic()->table().insert(request);
  } catch (const Error&) {  // the table is full: the receiver asks for frames
  }
}

// taken: the receiver, the only reader, has said that it needs the buffer no more, or is gone.
void MessageSender::unlend(Op* op, bool taken) noexcept {
  if (op->send().lent == Op::Send::kNotLent) return;
  mem::Table& table = domain_->nic()->table();
  const uint32_t slot = std::exchange(op->send().lent, Op::Send::kNotLent);
  table.begin_close(slot);
  if (taken) {
    table.release(slot);
    return;
  }
  try {
    lent_.push_back(slot);           // close() waits for the reader
  } catch (const std::bad_alloc&) {  // the entry is not used again
  }
}

// ---- answers -------------------------------------------------------------------------------------------------------

void Nic::on_reply(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame) noexcept {
  peer->end_request();
  Domain* const domain = domain_of(frame.op_id);
  if (domain == nullptr) return;
  const DomainLock guard(domain);
  Op* op = domain->operations().find(frame.op_id);
  if (op == nullptr || op->kind != OpKind::send || op->peer != peer.get() || op->frames_out == 0) return;
  op->tx->messages().on_reply(op, static_cast<Status>(frame.status), frame.flags, frame.reply);
}

// The answer to a message; a plain answer has no flags and an empty reply.
void MessageSender::on_reply(Op* op, Status status, uint8_t flags, const wire::Reply& reply) noexcept {
  const std::shared_ptr<Flow> kept = op->flow;
  Flow& flow = *kept;
  Op::Send& send = op->send();
  --op->frames_out;
  if (op->counted) {
    op->counted = false;
    flow.end(OpClass::send);
  }
  const bool of_flow = send.epoch == flow.epoch && flow.unanswered != 0;  // not of an earlier connection
  if (of_flow) flow.asks_credits = --flow.unanswered != 0;
  if (status == Status::ok && of_flow) {
    if (flow.sender == Flow::kNoSender) flow.sender = reply.sender;
    // The receiver chose the number: more credits than a flow can use have no effect.
    flow.credits = static_cast<uint32_t>(std::min<uint64_t>(uint64_t{flow.credits} + reply.credits, 1u << 16));
    flow.credits_max = std::max(flow.credits_max, flow.credits);
    if (!takes_credits_) flow.credits = 0;
  }
  if (status == Status::no_endpoint && !op->asked_again && op->status == Status::ok) [[unlikely]] {
    // It is sent again, to the endpoint that has the address now, when the messages under way have been answered.
    op->asked_again = true;
    op->submitted = false;
    op->peer = nullptr;
    if (of_flow) {
      flow.restart = true;
      if (flow.unanswered == 0 && flow.epoch == flow.route->epoch) flow.route->set_lost();
    } else {
      send.numbered = false;
    }
    domain_->wait_in_order(op);
  } else if (status != Status::ok) {
    op->status = status;
    if (of_flow && (!config_.unordered || status == Status::no_endpoint)) flow.restart = true;
    tx_.finish(op);
  } else if ((flags & wire::kReplyRefused) != 0) {
    if (!config_.unordered) {
      stop_flow(flow, op);
    } else if (!retry_later(op)) {
      op->status = Status::not_ready;
      tx_.finish(op);
    }
  } else {
    if (flow.window != 0) [[unlikely]] {
      if (tx_.trace() != nullptr && flow.stopped_at_ns != 0) tx_.record(TraceKind::resumed, flow.route.get());
      flow.stopped_at_ns = 0;
      flow.window = flow.window < wire::kUnansweredMax ? 2 * flow.window : 0;
    }
    if ((flags & wire::kReplyArrived) != 0 && !send.matched) {
      send.arrived = true;
    } else {
      send.matched = true;
      tx_.finish(op);
    }
  }
  flow.set_long_send();
  if (flow.waits()) domain_->pump(flow);
}

// The receiver had no room for the message: it waits, in front of the later messages of its flow.
void MessageSender::stop_flow(Flow& flow, Op* refused) noexcept {
  refused->submitted = false;
  domain_->wait_in_order(refused);
  const uint64_t now = domain_->nic()->clock().now_ns();
  if (flow.stopped_at_ns == 0) {
    flow.stopped_at_ns = now;
    if (tx_.trace() != nullptr) [[unlikely]]
      tx_.record(TraceKind::stopped, flow.route.get());
  }
  retries_.fetch_add(1, std::memory_order_relaxed);
  flow.stopped = true;
  flow.window = 1;
  flow.retry_at_ns = now + config_.stop_ns;
  if (std::has_single_bit(++stops_seen_)) domain_->tell(tx_.address().pid, News::stopped);
  domain_->nic()->need_engine();
}

// FI_PROTO_CXI_RNR: no receive was posted. False: the message's time for attempts is over.
bool MessageSender::retry_later(Op* refused) noexcept {
  const uint64_t now = domain_->nic()->clock().now_ns();
  Op::Send& send = refused->send();
  if (send.attempts == 0) send.give_up_at_ns = now + retry_ns_max_;
  if (now >= send.give_up_at_ns) return false;
  send.retry_at_ns = now + kRetryWaitNs[std::min<size_t>(send.attempts, kRetryWaitNs.size() - 1)];
  if (send.attempts < 255) ++send.attempts;
  if (tx_.trace() != nullptr) [[unlikely]]
    tx_.record(TraceKind::retry, refused->flow->route.get(), refused->id, refused->total, send.attempts);
  retries_.fetch_add(1, std::memory_order_relaxed);
  refused->submitted = false;
  domain_->wait_in_order(refused);
  domain_->nic()->need_engine();
  return true;
}

void MessageSender::set_retry_time(uint64_t ns) noexcept {
  const DomainLock guard(domain_);
  retry_ns_max_ = ns;
}

// The messages of the flow that were under way have been answered, and one was lost: begin with number 0 again.
void MessageSender::restart_flow(Flow& flow) noexcept {
  end_flow(flow);
  if (tx_.trace() != nullptr && flow.stopped_at_ns != 0) [[unlikely]]
    tx_.record(TraceKind::resumed, flow.route.get());
  flow.restart = flow.stopped = false;
  flow.stopped_at_ns = 0;
  forget_numbers(flow);
}

MessageSender::State MessageSender::state() const {
  const DomainLock guard(domain_);
  State s;
  s.tagged_ids = tagged_ids_;
  s.untagged_ids = untagged_ids_;
  s.no_id = no_id_;
  s.no_id_bytes = no_id_bytes_;
  s.stops = stops_seen_;
  s.controls = controls_;
  s.controls_dropped = controls_dropped_;
  const uint64_t now = domain_->nic()->clock().now_ns();
  for (size_t dest = 0; dest < tx_.flows().size(); ++dest) {
    if (!tx_.flows()[dest] || tx_.flows()[dest]->stopped_at_ns == 0) continue;
    ++s.stopped;
    const uint64_t age = now - std::min(now, tx_.flows()[dest]->stopped_at_ns);
    if (age < s.stopped_ns) continue;
    s.stopped_ns = age;
    s.stopped_dest = dest;
  }
  return s;
}

// Tells the receiver to forget the flow.
void MessageSender::end_flow(Flow& flow) noexcept {
  const Route& route = *flow.route;
  if (flow.sender != Flow::kNoSender && route.ready && route.peer && !route.peer->dead()) {
    wire::Frame f;
    f.kind = wire::FrameKind::leave;
    f.ep_index = route.ep_index;
    f.ep_generation = route.ep_generation;
    f.source = tx_.mover().seen_by(route);
    f.reply = {};
    f.reply.sender = flow.sender;
    domain_->nic()->send_notice(route.peer, f);
  }
  flow.sender = Flow::kNoSender;
  flow.next_number = flow.credits = 0;
  flow.set_long_send();
}

void Nic::on_done(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame) noexcept {
  Domain* const domain = domain_of(frame.op_id);
  if (domain == nullptr) return;
  if (frame.kind == wire::FrameKind::help) {
    if (help_copy(*domain, *peer, frame)) helped_ops_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const DomainLock guard(domain);
  Op* op = domain->operations().find(frame.op_id);
  if (op == nullptr || op->kind != OpKind::send || op->peer != peer.get()) return;
  if (frame.kind == wire::FrameKind::done) {
    const auto status = static_cast<Status>(frame.status);
    if (op->status == Status::ok) op->status = status == Status::again ? Status::protocol : status;
    op->tx->messages().on_taken(op);
    return;
  }
  op->tx->messages().on_ready(*op->flow);
}

// A control message: the receiver takes messages of the flow again. Without room in the queue it is dropped; the NIC
// then sends the refused message again at retry_at_ns, and if that is refused too, a control message follows later.
void MessageSender::on_ready(Flow& flow) noexcept {
  ++controls_;
  const uint32_t slots = config_.control_slots;
  if (slots == 0) {
    resume_flow(flow);
    return;
  }
  try {
    if (control_.size() >= slots) {
      ++controls_dropped_;
      return;
    }
    control_.push_back(flow.shared_from_this());
  } catch (const std::bad_alloc&) {
    ++controls_dropped_;
    return;
  }
  domain_->note_software();
  tx_.queue()->event.notify();  // a waiting reader makes the progress
}

void MessageSender::resume_flow(Flow& flow) noexcept {
  flow.stopped = false;
  flow.set_long_send();
  if (flow.waits()) domain_->pump(flow);
}

void MessageSender::run_controls() noexcept {
  const DomainLock guard(domain_);
  for (const auto& flow : std::exchange(control_, {})) resume_flow(*flow);
}

void MessageSender::on_taken(Op* op) noexcept {
  op->send().matched = true;
  if (op->send().arrived && op->frames_out == 0)
    tx_.finish(op);  // otherwise the answer, which is still to come, ends it
}

// Called by tx_.finish().
void MessageSender::end(Op* op, Flow& flow) noexcept {
  const bool dead = op->peer != nullptr && op->status == op->peer->down_status() && op->peer->dead();
  const Op::Send& send = op->send();
  unlend(op, send.matched || !send.numbered || dead);
  if (send.has_id) --(send.tagged ? tagged_ids_ : untagged_ids_);
  if (op->status != Status::ok) {
    report_failure(op, *flow.route);
    return;
  }
  tx_.model().count_message(op->flags, op->total);
  // A counter of deferred work belongs to the NIC.
  const bool late = config_.software_counts && (send.has_id || send.wants_match) && !op->counter;
  complete(op->wants_completion, op->context, send.tagged, op->total, op->counter ? op->counter.get() : counter_.get(),
           late);
  if (!op->wants_completion) domain_->release_context(op->context);
}

// ---- failures ------------------------------------------------------------------------------------------------------

void MessageSender::report_failure(Op* op, Route& route) noexcept {
  if (tx_.drops(op)) return;
  ++domain_->statistics.failed;
  CqEntry entry;
  entry.context = op->context;
  entry.flags = send_flags(op->send().tagged);
  CqError error;
  const auto [err, prov] = domain_->config().statuses[op->status];
  error.err = err;
  error.prov_errno = op->status == Status::canceled && op->send().attempts != 0
                         ? domain_->config().statuses[Status::not_ready].prov  // the last refusal
                         : prov;
  error.status = op->status;
  error.olen = op->total;
  try {
    error.text = explain_message(tx_, *op, route);
  } catch (const std::bad_alloc&) {
  }
  error.peer = route.address;
  error.own = tx_.address();
  tx_.queue()->push_error(entry, std::move(error));
  if (const auto& counter = op->counter ? op->counter : counter_) counter->add_errors(1);
  if (op->status == Status::no_endpoint) route.set_lost();
}

}  // namespace weft::nic
