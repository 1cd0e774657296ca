// cpp/nic/groups.cpp: the groups of an endpoint: whose frame is whose, joins that queue, and members that call early.
// See group.hpp.
#include <algorithm>
#include <utility>

#include "nic/group.hpp"
#include "nic/nic.hpp"

namespace weft::nic {

using wire::ReduceWhat;

void Groups::add(const std::shared_ptr<Group>& group) {
  domain_->assert_held();
  groups_.push_back(group);
  std::erase_if(untold_,
                [&](const Untold& u) { return u.key == group->config_.key && u.member == group->config_.member; });
  start_queued();
}

// A join begins: the members that have called already may not call again.
void Groups::take_callers(Group& group) {
  domain_->assert_held();
  std::erase_if(callers_, [&](const Caller& c) {
    if (c.body.group != group.config_.key || c.body.to != group.config_.member) return false;
    auto peer = c.peer.lock();
    if (!peer) return true;
    for (Group::Edge& e : group.tiers_[0].edges) {
      // Another set may have the same key.
      if (e.member != c.body.from || group.config_.members[e.member].pid != c.pid || e.route->address.vni != c.vni)
        continue;
      group.note_caller(e, std::move(peer), c.body, c.pid);
      return true;
    }
    return false;
  });
}

// Begins each join in the queue, except joins behind an unfinished join of the same set and member.
void Groups::start_queued() noexcept {
  domain_->assert_held();
  for (size_t i = 0; i < groups_.size(); ++i) {
    const std::shared_ptr<Group> g = groups_[i];
    if (g->state_ != Group::State::queued) continue;
    const bool waits = std::ranges::any_of(groups_, [&](const auto& other) {
      return other->state_ == Group::State::gathering && other->config_.key == g->config_.key &&
             other->config_.member == g->config_.member;
    });
    if (waits) continue;
    try {
      g->begin();
    } catch (const std::exception&) {
      g->lose(Status::no_memory, g->config_.member);
    }
  }
}

std::shared_ptr<Group> Groups::find(uint64_t address) const noexcept {
  domain_->assert_held();
  for (const auto& g : groups_) {
    if (g->address_ == address) return g;
  }
  return nullptr;
}

void Groups::remove(Group* group) noexcept {
  domain_->assert_held();
  std::erase_if(groups_, [&](const auto& g) { return g.get() == group; });
  start_queued();
}

// HOT. Lines: those of the group, its edges, a slot.
void Groups::on_frame(link::Peer& peer, const wire::Frame& frame, std::span<const std::byte> payload) noexcept {
  domain_->assert_held();
  const wire::Reduce& body = frame.reduce;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& g = *groups_[i];
    if (g.config_.member != body.to || !g.listens()) continue;
    if (body.tier == 0 ? g.config_.key != body.group : g.number_ != body.group || !g.has_number()) continue;
    // The next join of a set may begin when all have joined, and news of a loss ends both.
    const bool lost = body.what == static_cast<uint8_t>(ReduceWhat::lost);
    if (body.tier == 0 && !lost && g.state_ != Group::State::gathering) continue;
    Group::Edge* const edge = g.edge_of(peer, frame);
    if (edge == nullptr) {
      if (g.state_ == Group::State::joined) ++g.ignored_;
      continue;  // another set may have the same key
    }
    try {
      g.on_frame(*edge, frame, payload);  // ends no group: only calls of the application do
    } catch (const std::exception&) {
      g.lose(Status::no_memory, g.config_.member);
    }
    // A set whose member is lost: every join of the set ends.
    if (body.tier != 0 || !lost) return;
  }
  const auto what = static_cast<ReduceWhat>(body.what);
  if (body.tier != 0 || (what != ReduceWhat::up && what != ReduceWhat::call)) return;
  if (tell_untold(peer, frame)) return;
  // Of a join that this endpoint has not begun. Should the endpoint close instead, the caller has to know.
  const bool begun = std::ranges::any_of(groups_, [&](const auto& g) {
    const bool waits = g->state_ == Group::State::queued || g->state_ == Group::State::gathering;
    return waits && g->config_.key == body.group && g->config_.member == body.to;
  });
  const bool noted = std::ranges::any_of(callers_, [&](const Caller& c) {
    return c.body.group == body.group && c.body.from == body.from && c.body.to == body.to;
  });
  if (begun || noted) return;
  try {
    if (callers_.size() >= kCallersMax) callers_.erase(callers_.begin());
    callers_.push_back({peer.weak_from_this(), body, frame.source.pid, frame.source.vni});
  } catch (const std::bad_alloc&) {  // without a note
  }
}

// Members that have sent nothing may not have joined yet: they drop this notice, and learn of the loss as they join.
void Groups::remember_untold(const Group& group) noexcept {
  domain_->assert_held();
  for (const Group::Edge& e : group.tiers_[0].edges) {
    if (e.known || untold_.size() >= kUntoldMax) continue;
    try {
      untold_.push_back({group.config_.key, group.config_.member, e.member, group.lost_,
                         group.config_.members[e.member].pid, e.route->address.vni, group.broken_});
    } catch (const std::bad_alloc&) {
      return;
    }
  }
}

// Tells a joining member that its neighbour's join has failed before.
bool Groups::tell_untold(link::Peer& peer, const wire::Frame& frame) noexcept {
  domain_->assert_held();
  const wire::Reduce& body = frame.reduce;
  const auto it = std::ranges::find_if(untold_, [&](const Untold& u) {
    return u.key == body.group && u.member == body.to && u.neighbour == body.from && u.pid == frame.source.pid &&
           u.vni == frame.source.vni;
  });
  if (it == untold_.end()) return false;
  tell_lost(peer.shared_from_this(), body, frame.source.vni, it->status, it->lost);
  untold_.erase(it);
  return true;
}

// Answers `up` and `call` of a member that this endpoint has not found itself.
void Groups::tell_lost(const std::shared_ptr<link::Peer>& peer, const wire::Reduce& said, uint16_t vni, Status status,
                       uint32_t lost) noexcept {
  wire::Frame f;
  f.kind = wire::FrameKind::reduce;
  f.status = static_cast<int32_t>(status);
  f.ep_index = static_cast<uint32_t>(said.value >> 32);
  f.ep_generation = static_cast<uint32_t>(said.value);
  f.source = {ep_->address().nic, ep_->address().pid, vni, 0};
  f.reduce = {};
  f.reduce.group = said.group;
  f.reduce.value = lost;
  f.reduce.from = said.to;
  f.reduce.to = said.from;
  f.reduce.what = static_cast<uint8_t>(ReduceWhat::lost);
  domain_->nic()->send_notice(peer, f, {});
}

void Groups::on_route(const Route& route, Status status) noexcept {
  domain_->assert_held();
  for (size_t i = 0; i < groups_.size(); ++i) {
    const std::shared_ptr<Group> g = groups_[i];
    try {
      if (g->joining()) g->on_route(route, status);
    } catch (const std::exception&) {
      g->lose(Status::no_memory, g->config_.member);
    }
  }
}

void Groups::on_peer_down(const link::Peer& peer) noexcept {
  domain_->assert_held();
  for (size_t i = 0; i < groups_.size(); ++i) {
    const std::shared_ptr<Group> g = groups_[i];
    g->on_peer_down(peer);
  }
}

void Domain::tell_groups(const Route& route, Status status) noexcept {
  for (size_t i = 0; i < groups_.size(); ++i) groups_[i]->on_route(route, status);
}

std::shared_ptr<Group> Endpoint::group(uint64_t address) const noexcept {
  const DomainLock guard(domain_);
  return groups_ ? groups_->find(address) : nullptr;
}

void Groups::close_all() noexcept {
  domain_->assert_held();
  const auto all = std::exchange(groups_, {});
  for (const auto& g : all) g->leave();
  for (const Caller& c : std::exchange(callers_, {})) {
    if (const auto peer = c.peer.lock()) tell_lost(peer, c.body, c.vni, Status::no_endpoint, c.body.to);
  }
  domain_->remove_groups(this);
}

// A frame of a collective group.
void Nic::on_reduce(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                    std::span<const std::byte> payload) noexcept {
  progress_mutex_.assert_held();
  if (Endpoint* const ep = live_ep(frame); ep != nullptr) {
    const DomainLock guard(ep->domain());
    if (!ep->closed()) {
      try {
        ep->make_groups().on_frame(*peer, frame, payload);
      } catch (const std::bad_alloc&) {
        hang_up(peer, Status::no_memory);
      }
      return;
    }
  }
  const auto what = static_cast<ReduceWhat>(frame.reduce.what);
  if (what != ReduceWhat::up && what != ReduceWhat::call) return;
  wire::Frame f = frame;
  f.ep_index = static_cast<uint32_t>(frame.reduce.value >> 32);
  f.ep_generation = static_cast<uint32_t>(frame.reduce.value);
  f.status = static_cast<int32_t>(Status::no_endpoint);
  std::swap(f.reduce.from, f.reduce.to);
  f.reduce.what = static_cast<uint8_t>(ReduceWhat::gone);
  f.payload_length = 0;
  f.where = wire::PayloadWhere::none;
  send_notice(peer, f, {});
}

}  // namespace weft::nic
