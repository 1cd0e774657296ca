// cpp/nic/room.cpp: flow control of writes with data when a target's completion queue is full (FI_RM_ENABLED).
//
// A write with data (FI_REMOTE_CQ_DATA) needs an entry of the target's queue. If it finds the queue full, the target
// keeps the entry beyond the capacity and sets a flag: in its memory table, which initiators of this host read before
// such a write, and in the answers to frames. Initiators then hold further writes with data to that endpoint, in order,
// in their own transmit queues, until these are full and calls return EAGAIN. The number of writes under way when the
// flag is set is bounded (wire::kLateDataMax), and none is lost. Other endpoints and writes without data are not
// affected, except writes to the same endpoint posted behind a held one.
//
// The target clears the flag when its queue has been read half empty. Initiators of this host see that in the table;
// others ask.
#include <algorithm>

#include "nic/nic.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

namespace {

constexpr uint64_t kAskFirstNs = 250'000, kAskLastNs = 8'000'000;

}  // namespace

// Sends a request frame. again: the link is full, or the peer has the maximum of unanswered requests.
Status Endpoint::submit_request(Route& route, wire::Frame& frame, std::span<const std::byte> payload) {
  link::Peer& peer = *route.peer;
  if (!peer.begin_request()) return Status::again;
  const Status s = peer.link()->submit(peer, frame, payload);
  if (s != Status::ok) [[unlikely]]
    peer.undo_request();
  return s;
}

// Sends the question for room for the first waiting operation; the answer sets or clears Route::no_room.
void Endpoint::ask_for_room(Op* op) {
  Route& t = *op->flow->route;
  const uint64_t now = domain_->nic_->clock().now_ns();
  if (op->asks_room || now < t.ask_room_at_ns) return;
  t.ask_room_wait_ns = std::clamp(2 * t.ask_room_wait_ns, kAskFirstNs, kAskLastNs);
  t.ask_room_at_ns = now + t.ask_room_wait_ns;
  wire::Frame f;
  f.kind = wire::FrameKind::check;
  f.flags = wire::kFrameHasData;
  f.op_id = op->id;
  f.ep_index = t.ep_index;
  f.ep_generation = t.ep_generation;
  f.source = mover_.seen_by(t);
  if (submit_request(t, f, {}) != Status::ok) return;  // a lost peer is reported by on_peer_down()
  ++op->frames_out;
  op->asks_room = true;
}

uint8_t Endpoint::receive_data(link::Peer& peer, const CqEntry& entry, bool* over) noexcept {
  domain_->assert_held();
  if (peer.dead()) return 0;  // the connection was dropped after this frame was sent
  switch (rx_cq_->push_remote(entry, this)) {
    case CompletionQueue::Taken::taken:
      return 0;
    case CompletionQueue::Taken::late:
      if (!shut_) {
        shut_ = true;
        ++shut_number_;
        domain_->nic_->table().set_ep_room(index_, false);
      }
      *over = !Nic::count_late(peer, index_, shut_number_) && !peer.same_process;
      return wire::kFrameNoRoom;
    case CompletionQueue::Taken::refused:
      *over = true;
      return wire::kFrameNoRoom;
  }
  return 0;
}

void Endpoint::on_room() noexcept {
  domain_->assert_held();
  shut_ = false;
  domain_->nic_->table().set_ep_room(index_, true);
}

bool Endpoint::held_back(uint64_t dest) {
  const DomainLock guard(domain_);
  dest = dest_of(dest);
  if (dest >= flows_.size() || !flows_[dest]) return false;
  const Flow& flow = *flows_[dest];
  return flow.route->ready && flow.waits() && !flow.route->takes_data();
}

// Answers a peer's question whether an endpoint's queue has room for data.
Status Nic::room_of(const wire::Frame& frame, uint8_t* room) const {
  Endpoint* const ep = live_ep(frame);
  if (ep == nullptr) return Status::no_endpoint;
  const DomainLock guard(ep->domain_);
  if (ep->closed()) return Status::no_endpoint;  // since live_ep()
  *room = ep->shut_ ? wire::kFrameNoRoom : wire::kFrameRoom;
  return Status::ok;
}

}  // namespace weft::nic
