// cpp/nic/cm_port.cpp: see cm_port.hpp.
#include "nic/cm_port.hpp"

#include "nic/explain.hpp"
#include "nic/nic.hpp"

namespace weft::nic {

void CmPort::bind(std::shared_ptr<CmQueue> queue, uint64_t token, bool listens) {
  const DomainLock guard(tx_.domain());
  queue_ = std::move(queue);
  token_ = token;
  listens_ = takes_requests_ = listens;
}

PostResult CmPort::send(const wire::EpAddress& to, CmKind kind, uint64_t connection, std::span<const std::byte> data) {
  const uint64_t fi_addr = listens_ ? 0 : tx_.av().insert(to);
  const DomainLock guard(tx_.domain());
  if (!tx_.enabled()) return {tx_.closed() ? Refusal::closed : Refusal::not_enabled};
  // A passive endpoint sends only rejections, to any number of addresses, so the flow lives only as long as its
  // operation. The messages of an active endpoint stay behind the operations that it has posted to the peer.
  std::shared_ptr<Flow> passing;
  if (listens_) passing = std::make_shared<Flow>(tx_.domain()->route_to(to));
  Flow* const flow = listens_ ? passing.get() : tx_.flow_of(fi_addr);
  if (flow == nullptr) return {Refusal::bad_address};
  if (kind == CmKind::request) {
    request_ = connection;
    asked_ = fi_addr;
  }
  Op* op = tx_.make_op(OpKind::cm, *flow, false, 0, 0, 0, data.size(), false);
  op->connect() = {kind, connection};
  op->held.assign(data.begin(), data.end());
  return {Refusal::none, true, tx_.queue_op(op)};
}

void CmPort::refuse_waiting() noexcept {
  if (!listens_) return;
  {
    const DomainLock guard(tx_.domain());
    takes_requests_ = false;
  }
  try {
    while (const auto request = queue_->withdraw(token_))
      (void)send(request->source, CmKind::reject, request->connection, {});
  } catch (const std::bad_alloc&) {  // their senders hear of the end when this process ends
  }
}

bool CmPort::advance(Op* op) {
  tx_.begin_frames(op);
  wire::Frame f = tx_.frame_of(*op);
  f.kind = wire::FrameKind::cm;
  f.connect.connection = op->connect().connection;
  f.connect.message = static_cast<uint16_t>(op->connect().kind);
  f.flags = wire::kFrameLast;
  const Status s = TxPort::submit_request(*op->flow->route, f, op->held);
  if (s == Status::again) return false;
  op->submitted = true;
  if (s == Status::ok) {
    ++op->frames_out;
  } else {
    op->status = s;
    tx_.finish(op);
  }
  return true;
}

[[gnu::noinline]] void CmPort::report(Op& op, const Route& route) noexcept {
  CmEvent event;
  event.kind = op.status == Status::ok ? CmKind::delivered : CmKind::failed;
  event.what = op.connect().kind;
  event.connection = op.connect().connection;
  event.status = op.status;
  tell_explained(std::move(event), route);
}

void CmPort::on_peer_down(const std::shared_ptr<link::Peer>& peer) noexcept {
  for (const uint64_t dest : {tx_.dest_of(0), asked_}) {
    const auto flow = dest < tx_.flows().size() ? tx_.flows()[dest] : nullptr;
    if (!flow || !flow->route->ready || flow->route->peer != peer) continue;
    CmEvent event;
    event.kind = CmKind::lost;
    event.connection = request_;
    event.status = peer->down_status();
    tell_explained(std::move(event), *flow->route);
    return;
  }
}

void CmPort::tell_explained(CmEvent event, const Route& route) noexcept {
  if (event.status != Status::ok) {
    const std::string text = explain_safely(tx_, "connection request", {}, route, event.status);
    const auto bytes = std::as_bytes(std::span(text));
    try {
      event.data.assign(bytes.begin(), bytes.end());
    } catch (const std::bad_alloc&) {
      event.data.clear();
    }
  }
  tell(std::move(event));
}

void CmPort::tell(CmEvent event) noexcept {
  if (!queue_) return;
  event.token = token_;
  (void)queue_->push(std::move(event));
}

Status CmPort::take(CmEvent event) noexcept {
  if (!queue_ || (event.kind == CmKind::request && !takes_requests_)) return Status::no_endpoint;  // it does not listen
  event.token = token_;
  return queue_->push(std::move(event)) ? Status::ok : Status::backlog;
}

Status Nic::on_cm(const wire::Frame& frame, std::span<const std::byte> payload) {
  const auto kind = static_cast<CmKind>(frame.connect.message);
  if (kind < CmKind::request || kind > CmKind::shutdown || payload.size() > kCmDataMax) return Status::protocol;
  Endpoint* const ep = live_ep(frame);
  if (ep == nullptr) return Status::no_endpoint;
  const DomainLock guard(ep->domain());
  if (ep->closed()) return Status::no_endpoint;  // since live_ep()
  CmEvent event;
  event.kind = kind;
  event.source = frame.source;
  event.connection = frame.connect.connection;
  event.data.assign(payload.begin(), payload.end());
  if (const Status taken = ep->cm().take(std::move(event)); taken != Status::ok) return taken;
  // Change the rights at once, not when the application reads the event: a peer that has accepted may write, and a peer
  // that has shut down may not.
  if (kind == CmKind::accept && frame.connect.connection == ep->cm().requested()) {
    table().set_ep_peer(frame.ep_index, frame.source);
  } else if (kind == CmKind::shutdown && mem::peer_of(table().ep(frame.ep_index)) == frame.source) {
    table().set_ep_peer(frame.ep_index, {~uint32_t{0}, 0, 0, 0});
  }
  return Status::ok;
}

}  // namespace weft::nic
