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
#include "nic/nic.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

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
        domain_->nic()->table().set_ep_room(index_, false);
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
  domain_->nic()->table().set_ep_room(index_, true);
}

// Answers a peer's question whether an endpoint's queue has room for data.
Status Nic::room_of(const wire::Frame& frame, uint8_t* room) const {
  Endpoint* const ep = live_ep(frame);
  if (ep == nullptr) return Status::no_endpoint;
  const DomainLock guard(ep->domain());
  if (ep->closed()) return Status::no_endpoint;  // since live_ep()
  *room = ep->shut() ? wire::kFrameNoRoom : wire::kFrameRoom;
  return Status::ok;
}

}  // namespace weft::nic
