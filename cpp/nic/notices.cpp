// cpp/nic/notices.cpp: frames without answers that wait for room at their peer.
#include "nic/notices.hpp"

#include <algorithm>
#include <new>

#include "base/backoff.hpp"

namespace weft::nic {

namespace {
// Peers have their turns in the order of their numbers, so that no address in memory decides the order.
uint64_t turn_of(const link::Peer& peer) noexcept {
  return peer.number;
}
}  // namespace

bool Notices::give(const std::shared_ptr<link::Peer>& peer, const wire::Frame& notice,
                   std::span<const std::byte> payload) noexcept {
  wire::Frame f = notice;
  bool first = count_.load(std::memory_order_relaxed) == 0;
  if (!first) {
    const Guard guard(lock_);
    first = !sending_ && !queues_.contains(turn_of(*peer));
  }
  if (first && peer->link()->submit(*peer, f, payload) != Status::again) return false;
  try {
    const Guard guard(lock_);
    Queue& queue = queues_[turn_of(*peer)];
    if (queue.peer == nullptr) queue.peer = peer;
    if (queue.over != Status::ok) return true;
    if (queue.notices.size() >= kWaitingMax) {
      queue.over = Status::protocol;
      return true;
    }
    Notice& kept = queue.notices.emplace_back(Notice{notice, {}, payload.size()});
    std::ranges::copy(payload, kept.payload.begin());
    count_.fetch_add(1, std::memory_order_seq_cst);
    return true;
  } catch (const std::bad_alloc&) {
    // Without the notice the peer would wait for ever.
    Backoff backoff;
    while (!peer->dead() && peer->link()->submit(*peer, f, payload) == Status::again) backoff.pause();
    return false;
  }
}

size_t Notices::send(std::vector<Lost>* lost) noexcept {
  Queues taken;
  {
    const Guard guard(lock_);
    taken.swap(queues_);
    sending_ = true;
  }
  size_t n = 0;
  for (auto at = taken.begin(); at != taken.end();) {
    Queue& queue = at->second;
    if (queue.over == Status::ok) {
      const size_t sent = send_queue(queue);
      n += sent;
      count_.fetch_sub(sent, std::memory_order_relaxed);
      if (!queue.notices.empty()) {
        ++at;
        continue;
      }
    } else {
      try {
        lost->push_back({queue.peer, queue.over});
      } catch (const std::bad_alloc&) {  // the next send() tries again
        ++at;
        continue;
      }
      count_.fetch_sub(queue.notices.size(), std::memory_order_relaxed);
    }
    at = taken.erase(at);
  }
  put_back(taken);
  return n;
}

size_t Notices::send_queue(Queue& queue) noexcept {
  size_t n = 0;
  for (; !queue.notices.empty(); queue.notices.pop_front(), ++n) {
    const Notice& next = queue.notices.front();
    wire::Frame f = next.frame;
    const auto payload = std::span(next.payload).first(next.payload_bytes);
    if (queue.peer->link()->submit(*queue.peer, f, payload) == Status::again) break;
  }
  return n;
}

// The notices that came meanwhile go behind the notices that have waited.
void Notices::put_back(Queues& rest) noexcept {
  const Guard guard(lock_);
  sending_ = false;
  while (!rest.empty()) {
    auto node = rest.extract(rest.begin());
    const auto found = queues_.find(node.key());
    if (found == queues_.end()) {
      queues_.insert(std::move(node));
      continue;
    }
    Queue& old = node.mapped();
    Queue& fresh = found->second;
    if (fresh.over != Status::ok) old.over = fresh.over;
    const size_t counted = old.notices.size() + fresh.notices.size();
    try {
      for (Notice& one : fresh.notices) old.notices.push_back(one);
      if (old.notices.size() > kWaitingMax) old.over = Status::protocol;
    } catch (const std::bad_alloc&) {
      old.over = Status::no_memory;
    }
    count_.fetch_sub(counted - old.notices.size(), std::memory_order_relaxed);
    found->second = std::move(old);
  }
}

}  // namespace weft::nic
