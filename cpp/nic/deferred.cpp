// cpp/nic/deferred.cpp: frames that wait for peers whose rings are full: answers that did not fit, and requests behind
// a read whose answer did not fit. Each peer has its own queue, so that a stuck peer does not delay the others.
//
// wire/frame.hpp bounds the queue: a correct peer never has more than unanswered_max requests without an answer, so the
// NIC hangs up on a peer that would exceed this. The progress lock guards all queues.
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

// Count of the peer's entries beyond an endpoint's queue.
struct Late {
  uint32_t ep_index;
  uint32_t count;
  uint64_t shut_number;
};

struct Owed final : link::NicState {
  std::deque<Deferred> queue;
  uint32_t requests = 0;  // requests in the queue
  bool retrying = false;  // the front is being served or sent again
  bool stuck = false;     // the front still finds no room
  std::vector<Late> late;
};

Owed* owed_to(const link::Peer& peer) noexcept {
  return static_cast<Owed*>(peer.nic_state.get());
}

}  // namespace

void Nic::defer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload,
                bool serve_again) noexcept {
  if (peer->dead()) return;
  try {
    if (!peer->nic_state) peer->nic_state = std::make_unique<Owed>();
    Owed& owed = *owed_to(*peer);
    if (!owed.retrying && owed.queue.size() >= peer->unanswered_max) {
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
    owed.queue.push_back(std::move(item));
    if (owed.queue.size() == 1) owed_.push_back(peer);
    if (serve_again) ++owed.requests;
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

// True: a request of this peer waits for room, and its later requests must wait behind it.
bool Nic::must_follow(const link::Peer& peer) noexcept {
  const Owed* owed = owed_to(peer);
  return owed != nullptr && owed->requests != 0;
}

// Serves or sends each peer's frames in order, until one finds no room.
size_t Nic::retry_deferred() noexcept {
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
      if (owed.queue.empty()) break;                                                    // the connection was dropped
      if (request && !(owed.stuck && owed.queue.front().serve_again)) --owed.requests;  // at most its answer waits now
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
  Owed* owed = owed_to(peer);
  if (owed == nullptr || owed->queue.empty()) return;
  deferred_count_.fetch_sub(owed->queue.size(), std::memory_order_seq_cst);
  owed->queue.clear();
  owed->requests = 0;
  if (!owed->retrying) std::erase_if(owed_, [&](const auto& p) { return p.get() == &peer; });
}

void Nic::hang_up(const std::shared_ptr<link::Peer>& peer, Status why) noexcept {
  forget_deferred(*peer);
  peer->link()->hang_up(*peer, why);
}

}  // namespace weft::nic
