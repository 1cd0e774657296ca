// cpp/nic/receive.cpp: receiving messages: posting receives, the frames of messages, and pulls by frames.
#include <algorithm>

#include "nic/iov.hpp"
#include "nic/nic.hpp"

namespace weft::nic {

PostResult Endpoint::post_receive(const ReceiveArgs& args) {
  RxPort* const port = port_.load(std::memory_order_acquire);
  if (port == nullptr) [[unlikely]] {
    const DomainLock guard(domain_);
    return {state_ == State::created  ? Refusal::not_enabled
            : state_ == State::closed ? Refusal::closed
                                      : Refusal::no_capability};
  }
  if (args.local.size() > kIovMax) return {Refusal::too_many_pieces};
  if (args.source == ~uint64_t{0}) [[likely]]
    return port->post(args, nullptr);
  wire::EpAddress from;
  {
    const DomainLock guard(domain_);
    const std::shared_ptr<Route> route = av_->route(args.source);
    if (!route) return {Refusal::bad_address};
    from = route->address;
  }
  // Frames from processes of this host have the address on this host.
  from = domain_->nic()->local_name(from).value_or(from);
  return port->post(args, &from);
}

void Endpoint::set_min_multi_recv(uint64_t bytes) noexcept {
  config_.messages.min_multi_recv = bytes;
  if (RxPort* const port = port_.load(std::memory_order_acquire); port != nullptr) port->set_min_multi_recv(bytes);
}

bool Endpoint::set_match_mode(const MessageConfig& config) noexcept {
  const DomainLock guard(domain_);
  if (state_ != State::created) return false;
  config_.messages.match = config.match;
  config_.messages.requests = config.requests;
  return true;
}

std::vector<Endpoint::Unreceived> Endpoint::unreceived(size_t max, size_t* total) {
  *total = 0;
  RxPort* const port = port_.load(std::memory_order_acquire);
  if (port == nullptr || closed()) return {};
  std::vector<Unreceived> all;
  for (const RxCompletion& one : port->context().unexpected_messages(max, total)) all.push_back({one, 0});
  const DomainLock guard(domain_);
  for (Unreceived& one : all) one.source = av_->shown(av_->source(one.message.source, one.message.index));
  return all;
}

void Endpoint::on_receive_room() noexcept {
  if (RxPort* const port = port_.load(std::memory_order_relaxed); port != nullptr) port->context().resume();
}

// ---- frames --------------------------------------------------------------------------------------------------------

// The endpoint of a frame; null: it is closed.
Endpoint* Nic::live_ep(const wire::Frame& frame) const noexcept {
  if (frame.ep_index >= live_eps_.size()) return nullptr;
  Endpoint* const ep = live_eps_[frame.ep_index].load(std::memory_order_acquire);
  return ep != nullptr && ep->generation() == frame.ep_generation ? ep : nullptr;
}

// HOT. The port of a frame's endpoint; null: the endpoint is closed, or receives no messages.
RxPort* Nic::port_of(uint32_t ep_index, uint32_t ep_generation) noexcept {
  progress_mutex_.assert_held();
  if (ep_index >= mem::kEpCountMax) return nullptr;
  RxPort* const port = ports_[ep_index].load(std::memory_order_acquire);
  return port != nullptr && port->generation() == ep_generation ? port : nullptr;
}

// HOT. A credited message has arrived. Requires the progress lock. Lines: the port's pointer; the endpoint's entry;
// then those of RxContext::arrive_brief().
void Nic::on_brief(link::Peer& peer, const wire::BriefView& brief) {
  progress_mutex_.assert_held();
  const bool waits = !owed_.empty() && must_follow(peer);  // behind deferred frames
  RxPort* const port = port_of(brief.head.ep_index, brief.head.ep_generation);
  if (port == nullptr || waits ||
      (table().ep(brief.head.ep_index).flags.load(std::memory_order_relaxed) & mem::kEpConnected) != 0 ||
      ((brief.head.flags & wire::kBriefCounted) != 0 && is_cut_off(brief.head.ep_index))) [[unlikely]] {
    on_brief_as_frame(peer, brief);
    return;
  }
  if (peer.dead()) [[unlikely]]
    return;
  count_frame();
  const RxAnswer answer = port->arrive(peer, brief);
  if (answer == RxAnswer::none || answer == RxAnswer::closed) [[likely]]
    return;
  hang_up(peer.shared_from_this(), answer == RxAnswer::no_memory ? Status::no_memory : Status::protocol);
}

// The same in the long form. A credited message to a closed endpoint is dropped, because nobody waits for it.
void Nic::on_brief_as_frame(link::Peer& peer, const wire::BriefView& brief) {
  RxPort* const port = port_of(brief.head.ep_index, brief.head.ep_generation);
  if (port == nullptr) return;
  const auto source = port->context().source_of_flow(peer.number, brief.head.sender);
  wire::Frame f;
  f.kind = wire::FrameKind::message;
  f.flags = wire::message_flags(brief.head.flags) | wire::kMessageCredited;
  f.traffic = (brief.head.flags & wire::kBriefCounted) != 0 ? traffic::kCounted : uint8_t{0};
  f.payload_length = static_cast<uint32_t>(brief.payload.size());
  f.ep_index = brief.head.ep_index;
  f.ep_generation = brief.head.ep_generation;
  if (source) f.source = *source;
  f.message = {.tag = brief.head.tag,
               .data = brief.data,
               .length = brief.payload.size(),
               .key = 0,
               .sequence = brief.head.sequence,
               .sender = brief.head.sender};
  on_frame(peer.shared_from_this(), f, brief.payload);
}

// HOT. A message has arrived. Requires the progress lock.
void Nic::on_message(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                     std::span<const std::byte> payload) {
  progress_mutex_.assert_held();
  if (peer->dead()) return;
  RxPort* const port = port_of(frame.ep_index, frame.ep_generation);
  const bool credited = (frame.flags & wire::kMessageCredited) != 0;
  Status status = Status::ok;
  if (port == nullptr) [[unlikely]] {
    status = live_ep(frame) != nullptr ? Status::endpoint_access : Status::no_endpoint;
  } else if (const mem::EpEntry& ep = table().ep(frame.ep_index);
             (ep.flags.load(std::memory_order_relaxed) & mem::kEpConnected) != 0 && mem::peer_of(ep) != frame.source)
      [[unlikely]] {
    status = Status::unauthorized;
  } else if (is_cut_off(frame)) [[unlikely]] {
    if ((frame.flags & wire::kMessageFirst) == 0) port->context().cut(peer->number, frame.message.sender);
    status = Status::unreachable;
  }
  if (status != Status::ok) [[unlikely]] {
    if (!credited) answer(peer, frame, status, {});
    return;
  }
  if ((frame.flags & wire::kMessageFirst) != 0) [[unlikely]]
    know(peer);
  const RxReply reply = port->arrive(peer, frame, payload);
  switch (reply.answer) {
    case RxAnswer::none:
      return;
    case RxAnswer::done:
    case RxAnswer::arrived:
    case RxAnswer::refused:
      break;
    case RxAnswer::closed:
      if (!credited) answer(peer, frame, Status::no_endpoint, {});
      return;
    case RxAnswer::broken:
      hang_up(peer, Status::protocol);
      return;
    case RxAnswer::no_memory:
      credited ? hang_up(peer, Status::no_memory) : answer(peer, frame, Status::no_memory, {});
      return;
  }
  if (reply.answer == RxAnswer::done && reply.credits == 0 && (frame.flags & wire::kMessageFirst) == 0) {
    answer(peer, frame, Status::ok, {});
    return;
  }
  wire::Frame f = frame;
  f.kind = wire::FrameKind::reply;
  f.flags = reply.answer == RxAnswer::refused   ? wire::kReplyRefused
            : reply.answer == RxAnswer::arrived ? wire::kReplyArrived
                                                : uint8_t{0};
  f.status = 0;
  f.reply = {};
  f.reply.sender = reply.sender;
  f.reply.credits = reply.credits;
  if (peer->link()->submit(*peer, f, {}) == Status::again) defer(peer, f, {}, false);
  if (port->has_pulls()) [[unlikely]]
    port->run_pulls();
}

void Nic::on_leave(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame) noexcept {
  if (RxPort* const port = port_of(frame.ep_index, frame.ep_generation); port != nullptr)
    port->context().end_flow(peer->number, frame.reply.sender);
}

// Makes the peer known by its number: completions and pulls of its messages may come later, from any thread.
void Nic::know(const std::shared_ptr<link::Peer>& peer) {
  const Guard guard(known_lock_);
  known_.insert_or_assign(peer->number, peer);
}

std::shared_ptr<link::Peer> Nic::peer_of(uint64_t number) noexcept {
  const Guard guard(known_lock_);
  const auto it = known_.find(number);
  return it == known_.end() ? nullptr : it->second.lock();
}

// Ends the messages and flows of a lost peer.
void Nic::forget_messages(const link::Peer& peer) noexcept {
  progress_mutex_.assert_held();
  objects_mutex_.assert_held();
  {
    const Guard guard(known_lock_);
    if (known_.erase(peer.number) == 0) return;
  }
  for (const std::shared_ptr<Endpoint>& ep : eps_) {
    if (ep && ep->port() != nullptr) ep->port()->context().peer_down(peer.number);
  }
  wake_pulls();  // those from the peer end with an error
}

// ---- pulls by frames -----------------------------------------------------------------------------------------------

bool TxPort::pull_by_frames(RxPort& port, const RxPull& pull, const std::shared_ptr<link::Peer>& peer) noexcept try {
  std::vector<iovec> here = port.buffers_of(pull);
  const DomainLock guard(domain_);
  if (state_ != State::enabled) return false;
  const auto route = domain_->own_route(pull.completion.source);
  route->set_ready(peer, 0, 0);
  const auto flow = std::make_shared<Flow>(route);
  Op* op = make_op(OpKind::pull, *flow, false, 0, 0, 0, pull.bytes, true);
  op->local.set(here);
  op->pull().of = pull;
  op->pull().port = &port;
  (void)queue_op(op);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

bool TxPort::advance_pull(Op* op) {
  Route& route = *op->flow->route;
  Op::Pull& pull = op->pull();
  if (!op->counted) domain_->statistics.bytes += op->total;
  begin_frames(op);
  wire::Frame f;
  f.kind = wire::FrameKind::pull;
  f.op_id = op->id;
  f.source = address_;
  while (pull.at_total != op->total) {
    const uint64_t n = std::min(op->total - pull.at_total, uint64_t{route.peer->payload_max});
    f.status = static_cast<int32_t>(n);
    f.pull = {.message = pull.of.op_id, .offset = pull.of.from + pull.at_total, .place = pull.at_total, .reserved = {}};
    f.payload_length = 0;
    const Status s = submit_request(route, f, {});
    if (s == Status::again) return false;
    if (s != Status::ok) {
      op->status = s;
      op->submitted = true;
      if (op->frames_out == 0) finish(op);
      return true;
    }
    ++op->frames_out;
    pull.at_total += n;
  }
  op->submitted = true;
  return true;
}

// Answers a pull: bytes of a message that waits for its receiver.
void Nic::serve_pull(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame) {
  progress_mutex_.assert_held();
  Status status = Status::stale_key;
  if (Domain* const domain = domain_of(frame.pull.message); domain != nullptr) {
    const DomainLock guard(domain);
    const Op* op = domain->operations().find(frame.pull.message);
    const auto n = static_cast<uint64_t>(std::max(frame.status, 0));
    if (op != nullptr && op->kind == OpKind::send && op->peer == peer.get() && op->send().announced) {
      if (frame.pull.offset > op->total || n > op->total - frame.pull.offset || n > peer->payload_max) {
        status = Status::protocol;
      } else {
        std::vector<std::byte> bounce;
        std::span<const std::byte> bytes;
        status = Status::ok;
        if (op->local.size() == 1) {
          bytes = {static_cast<const std::byte*>(op->local[0].iov_base) + frame.pull.offset, n};
        } else {
          bounce.resize(n);
          status = gather(op->local, frame.pull.offset, bounce.data(), n);
          bytes = bounce;
        }
        if (status == Status::ok) {
          // Copied under the lock, so that the message cannot end.
          wire::Frame f = frame;
          f.kind = wire::FrameKind::answer;
          f.status = 0;
          status = peer->link()->submit(*peer, f, bytes);
          if (status == Status::ok) return;
        }
      }
    }
  }
  if (status == Status::again) {
    defer(peer, frame, {}, true);
  } else {
    answer(peer, frame, status, {});
  }
}

// ---- notices without answers ---------------------------------------------------------------------------------------

// Sends a frame that has no answer, now or, if the link has no room, in a later round. Any thread; takes link locks.
void Nic::send_notice(const std::shared_ptr<link::Peer>& peer, const wire::Frame& notice,
                      std::span<const std::byte> payload) noexcept {
  if (notices_.give(peer, notice, payload)) need_engine();
}

size_t Nic::send_notices() noexcept {
  progress_mutex_.assert_held();
  std::vector<Notices::Lost> lost;
  const size_t n = notices_.send(&lost);
  for (const Notices::Lost& one : lost) hang_up(one.peer, one.why);
  return n;
}

void Nic::wake_pulls() noexcept {
  pulls_wait_.store(true, std::memory_order_seq_cst);
  need_engine();
}

// Copies outside the locks that guard endpoints.
size_t Nic::run_pulls() noexcept {
  progress_mutex_.assert_held();
  if (!pulls_wait_.exchange(false, std::memory_order_seq_cst)) return 0;
  size_t n = 0;
  for (std::atomic<RxPort*>& slot : ports_) {
    RxPort* const port = slot.load(std::memory_order_acquire);
    if (port == nullptr) continue;
    if (port->is_unsettled()) port->settle();
    if (port->has_pulls()) n += port->run_pulls();
  }
  return n;
}

}  // namespace weft::nic
