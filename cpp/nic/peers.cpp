// cpp/nic/peers.cpp: how peers are found and lost.
#include <algorithm>

#include "nic/nic.hpp"

namespace weft::nic {

// With the domain's lock.
bool Nic::resolve(const std::shared_ptr<PeerEp>& target, uint32_t first) {
  // A name for other hosts that is one of this host: by the shorter ways first, by the name that they know.
  const auto links = static_cast<uint32_t>(parts_.links.size());
  const auto here = first < links ? local_name(target->address) : std::nullopt;
  for (uint32_t way = here ? first : std::max(first, links); way < 2 * links; ++way) {
    link::Link* link = parts_.links[way % links];
    link::Link::Found found;
    target->asked = way;
    switch (link->resolve(way < links ? *here : target->address, target, &found)) {
      case link::Link::Resolving::no:
        continue;
      case link::Link::Resolving::later:
        target->resolving = true;
        return true;
      case link::Link::Resolving::found:
        target->set_ready(found.peer, found.ep_index, found.ep_generation);
        return true;
    }
  }
  return false;
}

void Nic::on_resolved(const std::shared_ptr<void>& token, Status status, const std::shared_ptr<link::Peer>& peer,
                      uint32_t ep_index, uint32_t ep_generation) {
  const auto target = std::static_pointer_cast<PeerEp>(token);
  const std::lock_guard objects(objects_mutex_);
  if (std::ranges::find(domains_, target->domain) == domains_.end()) return;  // closed meanwhile
  Domain* domain = target->domain;
  const DomainLock guard(domain);
  target->resolving = false;
  try {
    if (status != Status::ok && status != Status::canceled && resolve(target, target->asked + 1)) {
      if (target->ready) domain->pump(*target);
      return;
    }
  } catch (const std::exception&) {
    status = Status::no_memory;
  }
  if (status == Status::ok) {
    target->set_ready(peer, ep_index, ep_generation);
    domain->pump(*target);
    return;
  }
  for (size_t left = target->waiting.size(); left != 0; --left) {
    Op* op = target->waiting.front();
    target->waiting.pop_front();
    waiting_ops_.fetch_sub(1, std::memory_order_relaxed);
    op->status = status;
    op->ep->finish(op);
  }
}

void Nic::on_segment(const std::shared_ptr<link::Peer>&) {
  // Operations that waited for it are tried again by the round that is running.
}

void Nic::on_peer_down(const std::shared_ptr<link::Peer>& peer) {
  announced_.erase(peer.get());
  parts_.devices->forget(peer.get());
  forget_deferred(*peer);
  const std::lock_guard objects(objects_mutex_);
  for (Domain* domain : domains_) {
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    const auto is_lost = [&](const Op* op) {
      return op->kind != OpKind::batch && (op->peer == peer.get() || (op->target->ready && op->target->peer == peer));
    };
    const auto end = [&](Op* op) {
      auto& waiting = op->target->waiting;
      if (const auto it = std::ranges::find(waiting, op); it != waiting.end()) {
        waiting.erase(it);
        waiting_ops_.fetch_sub(1, std::memory_order_relaxed);
      }
      op->status = peer->down_status();
      op->ep->finish(op);
    };
    // In the order of posting. Without memory for a list one at a time, which takes longer.
    std::vector<Op*> lost;
    try {
      domain->ops_.each([&](Op* op) {
        if (is_lost(op)) lost.push_back(op);
      });
    } catch (const std::bad_alloc&) {
      lost.clear();
    }
    std::ranges::sort(lost, {}, &Op::sequence);
    for (Op* op : lost) end(op);
    for (Op* first = nullptr;; first = nullptr) {
      domain->ops_.each([&](Op* op) {
        if (is_lost(op) && (first == nullptr || op->sequence < first->sequence)) first = op;
      });
      if (first == nullptr) break;
      end(first);
    }
    for (const std::shared_ptr<Endpoint>& ep : eps_) {
      if (!ep || ep->domain_ != domain || !ep->cm_ || ep->fixed_dest_ >= ep->av_->entries_.size()) continue;
      const auto& target = ep->av_->entries_[ep->fixed_dest_];
      if (!target || !target->ready || target->peer != peer) continue;
      CmEvent event;
      event.token = ep->cm_token_;
      event.kind = CmKind::lost;
      event.status = peer->down_status();
      (void)ep->cm_->push(std::move(event));
    }
    for (const auto& weak : domain->peer_eps_) {
      // The next operation asks again: another process may have taken the address by then.
      if (auto target = weak.lock(); target && target->ready && target->peer == peer) {
        target->set_lost();
        target->peer = nullptr;
        target->down = peer->down_status();
      }
    }
  }
  downs_.fetch_add(1, std::memory_order_seq_cst);
  for (const std::shared_ptr<Endpoint>& ep : eps_) {  // who sleeps until something happens may want to know
    if (ep && ep->tx_cq_) ep->tx_cq_->event.notify();
  }
}

}  // namespace weft::nic
