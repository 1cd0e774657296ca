// cpp/nic/deferred.cpp: frames that wait for peers whose rings are full: answers that did not fit, and requests behind
// a read whose answer did not fit. Each peer has its own queue, so that a stuck peer does not delay the others.
//
// The queue is bounded, and the NIC hangs up on a peer that would exceed a bound. A correct peer never has more than
// unanswered_max requests without an answer (wire/frame.hpp), and sends no more credited messages, which have no
// answer, in a flow than the flow has credits. The end of a flow waits behind the flow's messages. The progress lock
// guards all queues.
#include <algorithm>
#include <new>

#include "nic/nic.hpp"

namespace weft::nic {

namespace {

struct Deferred {
  wire::Frame frame;
  std::vector<std::byte> payload;
  bool serve_again;  // a request; otherwise an answer
};

// The messages of one flow in the queue.
struct Behind {
  uint32_t ep_index, ep_generation, sender;
  uint32_t messages = 0;  // the credited ones included
  uint32_t credited = 0;
  bool leaves = false;  // the flow's end is in the queue too
};

// Count of the peer's entries beyond an endpoint's queue.
struct Late {
  uint32_t ep_index;
  uint32_t count;
  uint64_t shut_number;
};

struct Owed final : link::NicState {
  std::deque<Deferred> queue;
  uint32_t requests = 0;        // requests in the queue
  uint32_t without_answer = 0;  // of these: credited messages, and ends of flows
  std::vector<Behind> flows;
  bool retrying = false;  // the front is being served or sent again
  bool stuck = false;     // the front still finds no room
  std::vector<Late> late;
};

Owed* owed_to(const link::Peer& peer) noexcept {
  return static_cast<Owed*>(peer.nic_state.get());
}

bool has_answer(const wire::Frame& request) noexcept {
  return request.kind == wire::FrameKind::message ? (request.flags & wire::kMessageCredited) == 0
                                                  : request.kind != wire::FrameKind::leave;
}

// The place of a flow's messages in Owed::flows. f: one of them, or the flow's end.
std::vector<Behind>::iterator find_flow(Owed& owed, const wire::Frame& f) noexcept {
  const uint32_t sender = f.kind == wire::FrameKind::message ? f.message.sender : f.reply.sender;
  return std::ranges::find_if(owed.flows, [&](const Behind& b) {
    return b.sender == sender && b.ep_index == f.ep_index && b.ep_generation == f.ep_generation;
  });
}

// A request was put into the queue. `flows` has room for one more.
void note_deferred(Owed& owed, const wire::Frame& f) noexcept {
  if (f.kind == wire::FrameKind::message) {
    auto flow = find_flow(owed, f);
    if (flow == owed.flows.end()) flow = owed.flows.insert(flow, {f.ep_index, f.ep_generation, f.message.sender});
    ++flow->messages;
    if (!has_answer(f)) ++flow->credited;
  } else if (f.kind == wire::FrameKind::leave) {
    find_flow(owed, f)->leaves = true;
  }
  ++owed.requests;
  if (!has_answer(f)) ++owed.without_answer;
}

// A request was served; at most its answer is still in the queue.
void note_served(Owed& owed, const wire::Frame& f) noexcept {
  --owed.requests;
  if (!has_answer(f)) --owed.without_answer;
  if (f.kind != wire::FrameKind::message && f.kind != wire::FrameKind::leave) return;
  const auto flow = find_flow(owed, f);
  if (f.kind == wire::FrameKind::message) {
    --flow->messages;
    if (!has_answer(f)) --flow->credited;
  } else {
    flow->leaves = false;
  }
  if (flow->messages == 0 && !flow->leaves) owed.flows.erase(flow);
}

}  // namespace

void Nic::defer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload,
                bool serve_again) noexcept {
  progress_mutex_.assert_held();
  if (peer->dead()) return;
  try {
    if (!peer->nic_state) peer->nic_state = std::make_unique<Owed>();
    Owed& owed = *owed_to(*peer);
    bool over = false;
    if (owed.retrying) {  // takes the place of what is retried
    } else if (!serve_again || has_answer(frame)) {
      over = owed.queue.size() - owed.without_answer >= peer->unanswered_max;
    } else if (frame.kind == wire::FrameKind::message) {
      RxPort* const port = port_of(frame.ep_index, frame.ep_generation);
      if (port == nullptr) return;  // nobody waits for a credited message to an endpoint that is gone
      const auto flow = find_flow(owed, frame);
      const uint32_t before = flow == owed.flows.end() ? 0 : flow->credited;
      over = before >= port->context().credits_of_flow(peer->number, frame.message.sender);
    }
    if (over) {
      hang_up(peer, Status::protocol);
      return;
    }
    Deferred item{frame, {payload.begin(), payload.end()}, serve_again};
    if (owed.retrying) {
      owed.queue.front() = std::move(item);
      owed.stuck = true;
      return;
    }
    if (owed.queue.empty()) owed_.reserve(owed_.size() + 1);
    if (serve_again) owed.flows.reserve(owed.flows.size() + 1);
    owed.queue.push_back(std::move(item));
    if (owed.queue.size() == 1) owed_.push_back(peer);
    if (serve_again) note_deferred(owed, frame);
    deferred_count_.fetch_add(1, std::memory_order_seq_cst);
    need_engine();
  } catch (const std::bad_alloc&) {
    if (!peer->same_process) {
      hang_up(peer, Status::no_memory);  // otherwise the peer's operation would get no answer
      return;
    }
    wire::Frame failed = frame;
    failed.kind = wire::FrameKind::answer;
    failed.status = static_cast<int32_t>(Status::no_memory);
    on_answer(peer, failed, {});
  }
}

// Puts the end of a flow behind the flow's messages in the queue. False: there are none.
bool Nic::defer_leave(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame) noexcept {
  Owed* const owed = owed_to(*peer);
  if (owed == nullptr) return false;
  const auto flow = find_flow(*owed, frame);
  if (flow == owed->flows.end()) return false;
  if (!flow->leaves) defer(peer, frame, {}, true);
  return true;
}

// True: a request of this peer waits for room, and its later requests must wait behind it.
bool Nic::must_follow(const link::Peer& peer) noexcept {
  const Owed* owed = owed_to(peer);
  return owed != nullptr && owed->requests != 0;
}

// Serves or sends each peer's frames in order, until one finds no room.
size_t Nic::retry_deferred() noexcept {
  progress_mutex_.assert_held();
  size_t n = 0;
  for (size_t i = 0; i < owed_.size();) {
    const std::shared_ptr<link::Peer> peer = owed_[i];
    Owed& owed = *owed_to(*peer);
    owed.retrying = true;
    while (!owed.queue.empty()) {
      Deferred item = std::move(owed.queue.front());  // the slot stays, so putting the item back allocates nothing
      const bool request = item.serve_again;
      owed.stuck = false;
      if (request) {
        serve_safely(peer, item.frame, item.payload);
      } else if (peer->link()->submit(*peer, item.frame, item.payload) == Status::again) {
        owed.queue.front() = std::move(item);
        owed.stuck = true;
      }
      if (owed.queue.empty()) break;  // the connection was dropped
      if (request && !(owed.stuck && owed.queue.front().serve_again)) note_served(owed, item.frame);
      if (owed.stuck) break;
      owed.queue.pop_front();
      deferred_count_.fetch_sub(1, std::memory_order_seq_cst);
      ++n;
    }
    owed.retrying = false;
    // on_peer_down() cannot run here: links call it only while the NIC polls them.
    if (owed.queue.empty()) {
      owed_.erase(owed_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return n;
}

bool Nic::count_late(link::Peer& peer, uint32_t ep_index, uint64_t shut_number) noexcept {
  try {
    if (!peer.nic_state) peer.nic_state = std::make_unique<Owed>();
    auto& all = owed_to(peer)->late;
    auto it = std::ranges::find(all, ep_index, &Late::ep_index);
    if (it == all.end()) it = all.insert(it, {ep_index, 0, shut_number});
    if (it->shut_number != shut_number) *it = {ep_index, 0, shut_number};
    return ++it->count <= wire::kLateDataMax;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Nic::forget_deferred(link::Peer& peer) noexcept {
  progress_mutex_.assert_held();
  Owed* owed = owed_to(peer);
  if (owed == nullptr || owed->queue.empty()) return;
  deferred_count_.fetch_sub(owed->queue.size(), std::memory_order_seq_cst);
  owed->queue.clear();
  owed->flows.clear();
  owed->requests = owed->without_answer = 0;
  if (!owed->retrying) std::erase_if(owed_, [&](const auto& p) { return p.get() == &peer; });
}

void Nic::hang_up(const std::shared_ptr<link::Peer>& peer, Status why) noexcept {
  forget_deferred(*peer);
  peer->link()->hang_up(*peer, why);
}

}  // namespace weft::nic
