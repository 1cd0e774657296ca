// cpp/nic/window.cpp: see window.hpp; and what an owner asks before it uses a place again.
#include "nic/window.hpp"

#include "nic/nic.hpp"

namespace weft::nic {

namespace {

// One piece of memory in which [offset, offset + length) of a region lies; false where it is in several, or in none.
bool find_piece(const link::Peer& peer, const mem::MrEntry& e, uint64_t offset, uint64_t length, mem::IovEntry* out) {
  const mem::IovEntry single{e.local_addr, e.length, e.where, e.segment, 0};
  const std::span<const mem::IovEntry> list =
      e.segment == mem::kIovSegment ? peer.table.iov(e) : std::span<const mem::IovEntry>(&single, 1);
  for (const mem::IovEntry& iov : list) {
    if (offset >= iov.length) {
      offset -= iov.length;
      continue;
    }
    if (length > iov.length - offset) return false;
    *out = {iov.local_addr + offset, length, iov.where + offset, iov.segment, 0};
    return true;
  }
  return false;
}

}  // namespace

Hold::~Hold() {
  if (table_.is_parents()) return;  // a forked child holds nothing: its parent does
  const bool waits = hold_ != mem::Table::kNoHold && !current();
  table_.end_hold(hold_);
  // The owner may be resting the place for us. It looks again with its next allocation; sooner when it is told.
  if (waits) peer_->link()->wake(*peer_);
}

Endpoint::Window Endpoint::window(uint64_t dest, uint64_t key, uint64_t addr, uint64_t length, uint32_t want) {
  // SYNC POINT: under the lock, which is an activity: an owner that revokes the key after our check waits for us, and
  // then sees the hold.
  const DomainLock guard(domain_);
  dest = dest_of(dest);
  if (state_ != State::enabled) return {.status = Status::no_endpoint};
  const Flow* const flow = flow_of(dest);
  if (flow == nullptr) return {.status = Status::no_endpoint};
  Route& route = *flow->route;
  if (!speaks_to(route)) return {.status = Status::unauthorized};
  if (!route.ready) return {};
  link::Peer& peer = *route.peer;
  if (peer.dead()) return {.status = peer.down_status()};
  if (!peer.table.valid()) return {.status = Status::ok};  // another host, or its memory is not shared
  mem::MrView view;
  if (const Status s =
          peer.table.check(seen_by(route), route.ep_index, route.ep_generation, key, addr, length, want, view);
      s != Status::ok) {
    return {.status = s};
  }
  const mem::MrEntry& e = *view.entry;
  // An owner that counts accesses must hear of each, one operation only is the owner's engine's to do, and nothing
  // guards the accesses through a pointer against pages that may be missing.
  constexpr uint32_t kNotHere = mem::kMrNotifyRead | mem::kMrNotifyWrite | mem::kMrSingleUse | mem::kMrUnowned;
  mem::IovEntry piece;
  if ((e.access & kNotHere) != 0 || ((e.access & mem::kMrByOwner) != 0 && !peer.same_process) ||
      !find_piece(peer, e, view.offset, length, &piece) || piece.segment == mem::kDeviceSegment) {
    return {.status = Status::ok};
  }
  std::byte* pointer = nullptr;
  if (peer.same_process) {
    pointer = reinterpret_cast<std::byte*>(piece.local_addr);
  } else {
    if (piece.segment == mem::kNoSegment) return {.status = Status::ok};
    std::byte* base = peer.segment_base(piece.segment);
    if (base == nullptr) {
      peer.link()->request_segment(peer, piece.segment);
      return {};
    }
    // The table is the peer's: what it says is checked before it becomes a pointer.
    const uint64_t bytes = peer.segment_bytes(piece.segment);
    if (piece.where > bytes || length > bytes - piece.where) return {.status = Status::ok};
    pointer = base + piece.where;
  }
  mem::Table& table = domain_->nic_->table();
  uint32_t hold = mem::Table::kNoHold;
  if (piece.segment != mem::kNoSegment) {
    hold = table.begin_hold(peer.table.nic_id(), piece.segment, piece.where, length);
    if (hold == mem::Table::kNoHold) return {.status = Status::no_memory};
  }
  return {.status = Status::ok,
          .pointer = pointer,
          .keep = std::make_shared<Hold>(table, hold, route.peer, &e, key, e.state.load(std::memory_order_relaxed))};
}

void Nic::held_places(std::vector<mem::HeldPlace>& out) {
  // SYNC POINT: the revocations of the regions come before the looks at the holds.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const mem::NicId id = table().nic_id();
  const auto visit = [&](uint32_t segment, uint64_t offset, uint64_t length) {
    out.push_back({segment, offset, length});
  };
  table().each_hold(id, visit);
  for (link::Link* link : parts_.links) {
    for (const auto& peer : link->peers()) {
      if (peer->table.valid() && !peer->same_process) peer->table.each_hold(id, visit);
    }
  }
}

uint64_t Nic::holds_stamp() {
  constexpr uint64_t kFar = 0x9e3779b97f4a7c15;  // a lost peer takes its count along: no sum comes again by chance
  uint64_t stamp = downs() * kFar + table().header().holds_ended.load(std::memory_order_seq_cst);
  for (link::Link* link : parts_.links) {
    for (const auto& peer : link->peers()) {
      if (peer->table.valid() && !peer->same_process) {
        stamp += peer->table.header().holds_ended.load(std::memory_order_seq_cst) + kFar;
      }
    }
  }
  return stamp;
}

}  // namespace weft::nic
