// cpp/nic/group.cpp: the life of a collective group: its trees, its join, and how it ends. See group.hpp.
#include "nic/group.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "nic/nic.hpp"

namespace weft::nic {

using wire::ReduceWhat;

namespace {

// Positions begin to end - 1 of a part of the tree; `begin` is at its top.
struct Part {
  uint32_t begin, end;
};

// The tree over members first, first + step ... (`count` of them): each child heads a part of about equal length of
// those behind its parent. Returns the part below `member`.
Part add_neighbours(Tree& tree, uint32_t member, uint32_t first, uint32_t step, uint32_t count, uint32_t radix) {
  Part here{0, count};
  const uint32_t wanted = (member - first) / step;
  for (;;) {
    const uint32_t rest = here.end - here.begin - 1;
    const uint32_t parts = std::min(radix, rest);
    uint32_t at = here.begin + 1;
    Part next = here;
    for (uint32_t i = 0; i < parts; ++i) {
      const uint32_t length = rest / parts + (i < rest % parts ? 1 : 0);
      if (wanted == here.begin) {
        tree.children.push_back(first + at * step);
      } else if (wanted >= at && wanted < at + length) {
        tree.parent = first + here.begin * step;
        next = {at, at + length};
      }
      at += length;
    }
    if (wanted == here.begin) return here;
    here = next;
  }
}

}  // namespace

Tree Tree::of(uint32_t member, uint32_t count, uint32_t radix, uint32_t block) {
  radix = std::clamp(radix, 1u, kGroupRadixMax);
  block = std::clamp(block, 1u, std::max(count, 1u));
  Tree tree;
  tree.parent = member;
  const uint32_t first = member / block * block;
  const Part part = add_neighbours(tree, member, first, 1, std::min(block, count - first), radix);
  tree.below = part.end - part.begin;
  if (member == first) {
    const Part blocks = add_neighbours(tree, member, 0, block, (count - 1) / block + 1, kBlockRadix);
    tree.below = static_cast<uint32_t>(std::min<uint64_t>(uint64_t{blocks.end} * block, count) - first);
  }
  return tree;
}

// ---- the join ------------------------------------------------------------------------------------------------------

Group::Group(Endpoint* ep, GroupConfig config)
    : ep_(ep),
      domain_(ep->domain()),
      config_(std::move(config)),
      address_(domain_->nic()->new_group_address()),
      count_(static_cast<uint32_t>(config_.members.size())) {
  config_.join_radix = std::clamp(config_.join_radix, 1u, kGroupRadixMax);
  config_.radix = std::clamp(config_.radix, 1u, kGroupRadixMax);
  if (config_.block == 0) config_.block = count_;
  config_.block = std::clamp(config_.block, 1u, count_);
}

std::shared_ptr<Group> Endpoint::join(GroupConfig config) {
  if (config.members.empty() || config.member >= config.members.size())
    throw Error(fi_err::kEINVAL, "a group has at least one member, and the endpoint is one of them");
  const auto group = std::make_shared<Group>(this, std::move(config));
  const DomainLock guard(domain_);
  if (state_ != State::enabled) throw Error(fi_err::kEOPBADSTATE, "the endpoint is not enabled");
  make_groups().add(group);
  return group;
}

Groups& Endpoint::make_groups() {
  if (!groups_) {
    auto groups = std::make_shared<Groups>(this, domain_);
    domain_->add_groups(groups.get());
    groups_ = std::move(groups);
  }
  return *groups_;
}

uint64_t Group::own_number() const noexcept {
  return uint64_t{ep_->index()} << 32 | ep_->generation();
}

void Group::begin() {
  state_ = State::gathering;
  attempt_ = ++ep_->groups()->attempts_;
  build(0, Tree::of(config_.member, count_, config_.join_radix, count_));
}

void Group::build(uint8_t number, const Tree& tree) {
  Tier& tier = tiers_[number];
  const bool equals = number == 1 && exchanges_;
  tier.edges.reserve(equals ? count_ : tree.children.size() + 1);
  for (const uint32_t child : tree.children) {
    Edge& e = tier.edges.emplace_back();
    e.member = child;
    e.child = true;
  }
  tier.children = static_cast<uint32_t>(tree.children.size());
  tier.below = tree.below;
  if (config_.member != 0) {
    tier.edges.emplace_back().member = tree.parent;
    tier.parent = &tier.edges.back();
  }
  if (equals && config_.member != 0) {  // the tree is a star around member 0
    for (uint32_t other = 1; other < count_; ++other) {
      if (other == config_.member) continue;
      Edge& e = tier.edges.emplace_back();
      e.member = other;
      e.equal = true;
      ++tier.equals;
    }
  }
  for (Edge& e : tier.edges) {
    const wire::EpAddress& a = config_.members[e.member];
    e.route =
        domain_->route_to(ep_->config().own_vni ? wire::EpAddress{a.nic, a.pid, ep_->config().vni, a.reserved} : a);
  }
  if (number == 0) ep_->groups()->take_callers(*this);  // first: the join may fail below, before a neighbour is found
  for (Edge& e : tier.edges) {
    if (joining()) resolve(number, e, false);
  }
  if (joining()) say(number);
}

// again: the route's address has turned out to be wrong.
void Group::resolve(uint8_t tier, Edge& e, bool again) {
  Route& route = *e.route;
  if (!ep_->speaks_to(route)) {
    lose(Status::unauthorized, e.member);
    return;
  }
  const bool stale =
      route.ready && (again || route.peer->dead() ||
                      (route.ep_entry != nullptr &&
                       route.ep_entry->generation.load(std::memory_order_acquire) != route.ep_generation));
  if (stale) route.set_lost();
  e.fresh = e.fresh || !route.ready;
  if (!route.ready && !route.resolving && !domain_->nic()->resolve(e.route)) {
    lose(Status::no_endpoint, e.member);
    return;
  }
  if (route.ready) adopt(tier, e);
}

// The neighbour's endpoint has been found: repeat the frames that it, or we, may have missed.
void Group::adopt(uint8_t tier, Edge& e) {
  e.peer = e.route->peer;
  e.ep_index = e.route->ep_index;
  e.ep_generation = e.route->ep_generation;
  call(tier, e);
}

// To a child: say `up`. To the parent: call me, or tell me that the join has failed before. To an equal: I have found
// you; call me, if I have not heard of you.
void Group::call(uint8_t tier, const Edge& e) {
  send(e, tier, ReduceWhat::call, {.value = own_number(), .sequence = e.child || e.heard ? attempt_ : 0});
}

// If all members below have joined: tells the parent, or, as the root, ends the round.
void Group::say(uint8_t number) {
  Tier& tier = tiers_[number];
  if (!joining() || tier.heard != tier.children + tier.equals) return;
  if (number == 1 && state_ != State::agreed) return;
  if (tier.parent != nullptr) {
    if (tier.said || tier.asked == 0 || !tier.parent->peer) return;
    tier.said = true;
    send(*tier.parent, number, ReduceWhat::up, {.value = own_number(), .sequence = tier.asked, .error = join_error_});
    return;
  }
  if (number == 0) {
    if (state_ != State::gathering) return;
    all_gathered(domain_->nic()->random().next(), config_.radix, config_.block);
  } else if (!config_.asks || supplied_) {
    end_join(multicast_ | uint64_t{mcast_root_} << 32, join_error_);
  }
}

void Group::all_gathered(uint64_t number, uint32_t radix, uint32_t block) {
  number_ = number;
  config_.radix = std::clamp(radix, 1u, kGroupRadixMax);
  config_.block = std::clamp(block, 1u, count_);
  state_ = State::agreed;
  exchanges_ = count_ == 2 || (count_ <= kExchangeMax && config_.block == count_ && config_.radix + 1 >= count_);
  if (exchanges_) contributions_.resize(size_t{2 * kReductionsMax} * count_);
  for (const Edge& e : tiers_[0].edges) {
    if (e.child) {
      send(e, 0, ReduceWhat::welcome, {.value = number_, .sequence = config_.radix, .block = config_.block});
    }
  }
  if (config_.member == 0 && config_.asks) report(true);
  build(1, Tree::of(config_.member, count_, config_.radix, config_.block));
  if (ep_->groups()) ep_->groups()->start_queued();  // the join's key is free again
}

void Group::end_join(uint64_t value, uint16_t error) {
  multicast_ = static_cast<uint16_t>(value);
  mcast_root_ = static_cast<uint32_t>(value >> 32);
  for (const Edge& e : tiers_[1].edges) {
    if (e.child) send(e, 1, ReduceWhat::joined, {.value = value, .error = error});
  }
  // From now on news of a loss takes the way of the results.
  tiers_[0] = {};
  if (error != 0) {
    fail_join(error);
    return;
  }
  state_ = State::joined;
  report(false);
  for (Edge& e : tiers_[1].edges) {
    if (e.ended != Status::ok) lose(e.ended, e.lost, &e);
    if (!e.peer) lose(Status::no_endpoint, e.member, &e);
  }
}

// Every member ends the join with this error.
void Group::fail_join(uint16_t error) {
  join_error_ = error;
  state_ = State::broken;
  broken_ = Status::refused;
  report(false);
}

void Group::supply(uint16_t multicast, uint32_t root, uint16_t error) {
  const DomainLock guard(domain_);
  if (supplied_ || state_ != State::agreed || config_.member != 0) return;
  supplied_ = true;
  multicast_ = multicast;
  mcast_root_ = root;
  join_error_ = std::max(join_error_, error);
  say(1);
}

// Tells the event queue. agreed: member 0 asks for a multicast address; otherwise the join has ended.
void Group::report(bool agreed) noexcept {
  CmEvent event;
  event.kind = agreed ? CmKind::group_agreed : state_ == State::joined ? CmKind::group_joined : CmKind::group_failed;
  event.connection = address_;
  event.status = broken_;
  ep_->cm().tell(std::move(event));
}

// ---- loss ----------------------------------------------------------------------------------------------------------

// The group is at its end. teller: the neighbour that said so. quiet: the application closes the group itself.
void Group::lose(Status status, uint32_t member, const Edge* teller, bool quiet) noexcept {
  if (state_ != State::gathering && state_ != State::agreed && state_ != State::joined) return;
  const bool was_joining = joining(), was_gathering = state_ == State::gathering;
  state_ = State::broken;
  broken_ = status == Status::ok || static_cast<size_t>(status) >= kStatusCount ? Status::protocol : status;
  lost_ = member;
  for (uint8_t tier = 0; tier < 2; ++tier) {
    for (Edge& e : tiers_[tier].edges) {
      if (!e.peer && e.caller) {
        e.peer = e.caller;
        e.known = true;
      }
      // Members that exchange wait for each other's word.
      if (e.peer && (&e != teller || exchanges_)) send(e, tier, ReduceWhat::lost, {.value = member}, {}, broken_);
    }
  }
  if (exchanges_ && !was_joining && !quiet) {
    settle();
  } else {
    fail_reductions(quiet ? Status::canceled : broken_);
  }
  if (was_joining && !quiet) report(false);
  Groups& groups = *ep_->groups();
  if (was_gathering) {
    groups.remember_untold(*this);
    groups.start_queued();
  }
}

// Nothing more comes of a neighbour, which is lost, or has said that `member` is. After this member's `up`, member 0
// decides what becomes of the join.
void Group::end(Edge& e, Status status, uint32_t member) noexcept {
  if (exchanges_ && e.ended == Status::ok) {
    e.ended = status == Status::ok ? Status::protocol : status;
    e.lost = member;
  }
  if (e.equal && joining() && tiers_[1].said) return;
  lose(status, member, &e);
  if (exchanges_) settle();
}

std::string Group::describe_loss() const {
  const std::string who =
      "member " + std::to_string(lost_) + " of " + std::to_string(count_) + " (" +
      domain_->nic()->text_of(config_.members[lost_ < count_ ? lost_ : 0], domain_->config().addresses) + ")";
  switch (broken_) {
    case Status::closed:
      return who + " has closed the group or its endpoint";
    case Status::canceled:
      return who + " closed the group before all members had joined";
    case Status::no_endpoint:
      return who + ": no endpoint is there; it was never enabled, or it has been closed, or its process has ended";
    case Status::peer_gone:
      return who + ": its process has ended, or its host is lost";
    case Status::unauthorized:
      return who + " is on another VNI than this endpoint";
    default:
      return who + " is lost: the connection to it ended with status " + std::to_string(static_cast<int>(broken_));
  }
}

void Group::close() noexcept {
  const DomainLock guard(domain_);
  if (state_ == State::closed) return;
  const std::shared_ptr<Groups> groups = ep_->groups();
  leave();
  groups->remove(this);
}

// Requires the lock. The application or the endpoint closes the group.
void Group::leave() noexcept {
  // Also if all reductions have completed: later ones of the neighbours would wait for ever.
  lose(joining() ? Status::canceled : Status::closed, config_.member, nullptr, true);
  fail_reductions(Status::canceled);  // of a broken group
  for (Tier& tier : tiers_) tier = {};
  state_ = State::closed;
}

void Group::on_route(const Route& route, Status status) {
  for (uint8_t tier = 0; tier < 2; ++tier) {
    for (Edge& e : tiers_[tier].edges) {
      if (e.route.get() != &route || e.peer || !joining()) continue;
      if (route.ready) {
        adopt(tier, e);
      } else if (!route.resolving) {
        lose(status == Status::ok ? Status::no_endpoint : status, e.member);
      }
    }
  }
}

void Group::on_peer_down(const link::Peer& peer) {
  for (size_t tier = exchanges_ ? 1 : 0; tier < tiers_.size(); ++tier) {  // those who exchange are all in tier 1
    for (Edge& e : tiers_[tier].edges) {
      if (e.peer.get() != &peer && e.in != peer.number) continue;
      end(e, peer.down_status(), e.member);
      if (!exchanges_) return;  // otherwise several members may be in the process
    }
  }
}

// ---- frames --------------------------------------------------------------------------------------------------------

void Group::send(const Edge& e, uint8_t tier, ReduceWhat what, const Said& said, std::span<const std::byte> payload,
                 Status status) noexcept {
  assert(e.peer && "the neighbour has been found");
  wire::Frame f;
  f.kind = wire::FrameKind::reduce;
  f.status = static_cast<int32_t>(status);
  f.ep_index = e.ep_index;
  f.ep_generation = e.ep_generation;
  f.source = ep_->mover().seen_by(*e.route);
  f.reduce = {};
  f.reduce.group = tier == 0 ? config_.key : number_;
  f.reduce.value = said.value;
  f.reduce.from = config_.member;
  f.reduce.to = e.member;
  f.reduce.sequence = said.sequence;
  f.reduce.block = said.block;
  f.reduce.error = said.error;
  f.reduce.what = static_cast<uint8_t>(what);
  f.reduce.tier = tier;
  ++frames_;
  domain_->nic()->send_notice(e.peer, f, payload);
}

// We have not found this neighbour yet, so the frame may be from another process: the sender is only told of a loss.
void Group::note_caller(Edge& e, std::shared_ptr<link::Peer> peer, const wire::Reduce& said, uint32_t pid) {
  const auto what = static_cast<ReduceWhat>(said.what);
  if ((what != ReduceWhat::call && what != ReduceWhat::up) || pid != config_.members[e.member].pid) return;
  e.caller = std::move(peer);
  e.ep_index = static_cast<uint32_t>(said.value >> 32);
  e.ep_generation = static_cast<uint32_t>(said.value);
}

// The neighbour that sent a frame; null: no neighbour of ours, or a neighbour that we have not found yet, which is
// called later.
Group::Edge* Group::edge_of(link::Peer& peer, const wire::Frame& frame) {
  for (Edge& e : tiers_[frame.reduce.tier].edges) {
    if (e.member != frame.reduce.from) continue;
    if (!e.peer) {
      note_caller(e, peer.shared_from_this(), frame.reduce, frame.source.pid);
      return nullptr;
    }
    if (e.in == peer.number) return &e;
    // Links may have a connection for each direction.
    const bool same = e.peer.get() == &peer ||
                      (e.peer->link() == peer.link() && peer.process_id != 0 && e.peer->process_id == peer.process_id);
    if (!same) return nullptr;
    // The answer to a frame for an endpoint that is gone has no endpoint as its source.
    if (frame.reduce.what == static_cast<uint8_t>(ReduceWhat::gone)) return &e;
    const wire::EpAddress& a = config_.members[e.member];
    if (frame.source.pid != a.pid || frame.source.vni != e.route->address.vni) return nullptr;
    e.in = peer.number;
    return &e;
  }
  return nullptr;
}

void Group::on_frame(Edge& edge, const wire::Frame& frame, std::span<const std::byte> payload) {
  const wire::Reduce& body = frame.reduce;
  const auto what = static_cast<ReduceWhat>(body.what);
  Edge* const e = &edge;
  e->known = true;
  Tier& tier = tiers_[body.tier];
  const bool of_parent = e == tier.parent;
  switch (what) {
    case ReduceWhat::part:
      // Of an equal it may come before member 0's word that the join has ended.
      if (body.tier == 1 && (exchanges_ || (e->child && state_ == State::joined))) [[likely]] {
        on_part(*e, frame, payload);
        return;
      }
      break;
    case ReduceWhat::result:
      if (state_ == State::joined && body.tier == 1 && of_parent && !exchanges_) [[likely]] {
        on_result(frame, payload);
        return;
      }
      break;
    case ReduceWhat::up:
    case ReduceWhat::call:
      if (!joining()) return;
      if (what == ReduceWhat::call) {
        if (e->equal && !e->heard) {
          e->heard = true;
          ++tier.heard;
          say(body.tier);
        }
        if (!of_parent) {
          if (!e->equal || body.sequence == 0) call(body.tier, *e);
          return;
        }
        tier.asked = body.sequence;
        tier.said = false;
        say(body.tier);
        return;
      }
      if (!e->child) break;
      if (e->heard || body.sequence != attempt_) return;
      e->heard = true;
      ++tier.heard;
      if (body.tier == 1) join_error_ = std::max(join_error_, body.error);
      say(body.tier);
      return;
    case ReduceWhat::welcome:
      if (state_ != State::gathering || body.tier != 0 || !of_parent || !tier.said) break;
      all_gathered(body.value, body.sequence, body.block);
      return;
    case ReduceWhat::joined:
      if (state_ != State::agreed || body.tier != 1 || !of_parent || !tier.said) break;
      end_join(body.value, body.error);
      return;
    case ReduceWhat::lost:
      end(*e, static_cast<Status>(frame.status), body.value < count_ ? static_cast<uint32_t>(body.value) : e->member);
      return;
    case ReduceWhat::gone:
      // A child that has said `up` was there.
      if (!joining() || e->fresh || (e->child && e->heard)) {
        end(*e, Status::no_endpoint, e->member);
      } else {
        if (std::exchange(e->heard, false)) --tier.heard;
        e->peer = nullptr;
        resolve(body.tier, *e, true);
      }
      return;
  }
  ++ignored_;
}

}  // namespace weft::nic
