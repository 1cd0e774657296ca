// cpp/nic/peers.cpp: finding and losing peers.
#include <algorithm>

#include "nic/group.hpp"
#include "nic/nic.hpp"
#include "nic/parking.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

// Requires the domain's lock.
bool Nic::resolve(const std::shared_ptr<Route>& route, uint32_t first) {
  route->domain->assert_held();
  // An address for other hosts may be a NIC of this host: try the local links first, with the address on this host.
  const auto links = static_cast<uint32_t>(parts_.links.size());
  const auto here = first < links ? local_name(route->address) : std::nullopt;
  for (uint32_t way = here ? first : std::max(first, links); way < 2 * links; ++way) {
    link::Link* link = parts_.links[way % links];
    link::Link::Found found;
    route->asked = way;
    switch (link->resolve(way < links ? *here : route->address, route, &found)) {
      case link::Link::Resolving::no:
        continue;
      case link::Link::Resolving::later:
        route->resolving = true;
        return true;
      case link::Link::Resolving::found:
        route->set_ready(found.peer, found.ep_index, found.ep_generation);
        return true;
    }
  }
  return false;
}

void Nic::on_resolved(const std::shared_ptr<void>& token, Status status, const std::shared_ptr<link::Peer>& peer,
                      uint32_t ep_index, uint32_t ep_generation) {
  progress_mutex_.assert_held();
  const auto route = std::static_pointer_cast<Route>(token);
  const auto is_its = [&](const auto& slot) { return slot.load(std::memory_order_acquire) == route->domain; };
  if (std::ranges::none_of(domains_, is_its)) return;  // the domain was closed
  Domain* domain = route->domain;
  const DomainLock guard(domain);
  route->resolving = false;
  try {
    if (status != Status::ok && status != Status::canceled && resolve(route, route->asked + 1)) {
      if (route->ready) {
        domain->pump_route(*route);
        domain->tell_groups(*route, Status::ok);
      }
      return;
    }
  } catch (const std::exception&) {
    status = Status::no_memory;
  }
  if (status == Status::ok) {
    route->set_ready(peer, ep_index, ep_generation);
    domain->pump_route(*route);
    domain->tell_groups(*route, Status::ok);
    return;
  }
  for (Flow *flow = domain->first_waiting(), *next = nullptr; flow != nullptr; flow = next) {
    next = flow->next_waiting;
    if (flow->route != route) continue;
    const std::shared_ptr<Flow> kept = flow->shared_from_this();
    while (Op* op = flow->first) {
      domain->stop_waiting(op);
      op->status = status;
      op->tx->finish(op);
    }
  }
  domain->tell_groups(*route, status);
}

// Frees what a process has left of its turns in our segments: it ends no update any more. A process may have further
// connections: one for each direction, and one that it gives up because it has another.
void Nic::on_peer_gone(const std::shared_ptr<link::Peer>& peer) {
  if (!turns_.load(std::memory_order_acquire) || !peer->table.valid()) return;
  const mem::NicId id = peer->table.nic_id();
  const auto another = [](const link::Peer& one, uint32_t number) {
    return !one.table.valid() || static_cast<uint32_t>(one.table.nic_id().first) != number;
  };
  if (!peer->link()->each_peer(another, static_cast<uint32_t>(id.first))) return;
  for (uint32_t i = 0; i < segments().count(); ++i) {
    if (mem::Gate* const gate = segments().gate(i)) gate->forget(mem::updater_of(id.first, id.second, 0));
  }
}

void Nic::on_peer_down(const std::shared_ptr<link::Peer>& peer) {
  progress_mutex_.assert_held();
  announced_.erase(peer.get());
  parts_.devices->forget(peer.get());
  forget_deferred(*peer);
  parking_->on_peer_down(*peer);
  if (!peer->lingers()) on_peer_gone(peer);
  const Guard objects(objects_mutex_);
  forget_messages(*peer);
  for (const std::atomic<Domain*>& slot : domains_) {
    Domain* const domain = slot.load(std::memory_order_relaxed);
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    const auto is_lost = [&](const Op* op) {
      return op->kind != OpKind::batch &&
             (op->peer == peer.get() || (op->flow->route->ready && op->flow->route->peer == peer));
    };
    const auto end = [&](Op* op) {
      domain->stop_waiting(op);
      op->status = peer->down_status();
      op->tx->finish(op);
    };
    // End the operations in the order of posting. Out of memory for a list, one at a time, which takes longer.
    std::vector<Op*> lost;
    try {
      domain->operations().each([&](Op* op) {
        if (is_lost(op)) lost.push_back(op);
      });
    } catch (const std::bad_alloc&) {
      lost.clear();
    }
    std::ranges::sort(lost, {}, &Op::sequence);
    for (Op* op : lost) end(op);
    for (Op* first = nullptr;; first = nullptr) {
      domain->operations().each([&](Op* op) {
        if (is_lost(op) && (first == nullptr || op->sequence < first->sequence)) first = op;
      });
      if (first == nullptr) break;
      end(first);
    }
    for (size_t i = 0; i < domain->groups().size(); ++i) domain->groups()[i]->on_peer_down(*peer);
    for (const std::shared_ptr<Endpoint>& ep : eps_) {
      if (!ep || ep->domain() != domain) continue;
      if (ep->cm().bound()) ep->cm().on_peer_down(peer);
      for (const auto& flow : ep->flows()) {
        if (flow && flow->route->ready && flow->route->peer == peer) flow->forget_messages();
      }
    }
    domain->each_route([&](Route& route) {
      // The next operation resolves the address again, because another process may have taken it.
      if (!route.ready || route.peer != peer) return;
      route.set_lost();
      route.peer = nullptr;
      route.down = peer->down_status();
    });
  }
  downs_.fetch_add(1, std::memory_order_seq_cst);
  for (const std::shared_ptr<Endpoint>& ep : eps_) {  // wakes threads that sleep on a queue: a peer is lost
    if (ep && ep->queue() != nullptr) ep->queue()->event.notify();
  }
}

}  // namespace weft::nic
