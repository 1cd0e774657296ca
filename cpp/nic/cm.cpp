// cpp/nic/cm.cpp: the messages of connected endpoints: sending and receiving.
#include "nic/nic.hpp"

namespace weft::nic {

void Endpoint::bind_cm(std::shared_ptr<CmQueue> queue, uint64_t token, bool listens) {
  const DomainLock guard(domain_);
  cm_ = std::move(queue);
  cm_token_ = token;
  listens_ = listens;
}

PostResult Endpoint::send_cm(const wire::EpAddress& to, CmKind kind, uint64_t connection,
                             std::span<const std::byte> data) {
  const uint64_t fi_addr = listens_ ? 0 : av_->insert(to);
  const DomainLock guard(domain_);
  if (state_ != State::enabled) return {state_ == State::closed ? Refusal::closed : Refusal::not_enabled};
  // A passive endpoint sends only rejections, to any number of addresses, so the flow lives only as long as its
  // operation. The messages of an active endpoint stay behind the operations that it has posted to the peer.
  std::shared_ptr<Flow> passing;
  if (listens_) passing = std::make_shared<Flow>(domain_->route_to(to));
  Flow* const flow = listens_ ? passing.get() : flow_of(fi_addr);
  if (flow == nullptr) return {Refusal::bad_address};
  if (kind == CmKind::request) cm_request_ = connection;
  Op* op = make_op(OpKind::cm, *flow, false, 0, 0, 0, data.size(), false);
  op->connect() = {kind, connection};
  op->held.assign(data.begin(), data.end());
  return {Refusal::none, true, queue_op(op)};
}

bool Endpoint::advance_cm(Op* op) {
  begin_frames(op);
  wire::Frame f = frame_of(*op);
  f.kind = wire::FrameKind::cm;
  f.connect.connection = op->connect().connection;
  f.connect.message = static_cast<uint16_t>(op->connect().kind);
  f.flags = wire::kFrameLast;
  const Status s = submit_request(*op->flow->route, f, op->held);
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

void Endpoint::connect_to(const std::optional<wire::EpAddress>& peer) {
  const uint64_t fi_addr = peer ? av_->insert(*peer) : ~uint64_t{0};
  const DomainLock guard(domain_);
  fixed_dest_ = fi_addr;
  if (state_ == State::enabled) {
    domain_->nic_->table().set_ep_peer(index_, peer.value_or(wire::EpAddress{~uint32_t{0}, 0, 0, 0}));
  }
}

Status Nic::on_cm(const wire::Frame& frame, std::span<const std::byte> payload) {
  const auto kind = static_cast<CmKind>(frame.connect.message);
  if (kind < CmKind::request || kind > CmKind::shutdown || payload.size() > kCmDataMax) return Status::protocol;
  Endpoint* const ep = live_ep(frame);
  if (ep == nullptr) return Status::no_endpoint;
  const DomainLock guard(ep->domain_);
  if (ep->closed()) return Status::no_endpoint;                                            // since live_ep()
  if (!ep->cm_ || (kind == CmKind::request && !ep->listens_)) return Status::no_endpoint;  // it does not listen
  CmEvent event;
  event.token = ep->cm_token_;
  event.kind = kind;
  event.source = frame.source;
  event.connection = frame.connect.connection;
  event.data.assign(payload.begin(), payload.end());
  if (!ep->cm_->push(std::move(event))) return Status::backlog;
  // Change the rights at once, not when the application reads the event: a peer that has accepted may write, and a peer
  // that has shut down may not.
  if (kind == CmKind::accept && frame.connect.connection == ep->cm_request_) {
    table().set_ep_peer(frame.ep_index, frame.source);
  } else if (kind == CmKind::shutdown && mem::peer_of(table().ep(frame.ep_index)) == frame.source) {
    table().set_ep_peer(frame.ep_index, {~uint32_t{0}, 0, 0, 0});
  }
  return Status::ok;
}

}  // namespace weft::nic
