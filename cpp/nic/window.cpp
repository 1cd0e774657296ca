// cpp/nic/window.cpp: see window.hpp; also the owner's check for holds before it reuses a place.
#include "nic/window.hpp"

#include "nic/nic.hpp"

namespace weft::nic {

namespace {

// Finds the one buffer that contains [offset, offset + length) of a region; false: several buffers, or none.
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
  if (table_.is_parents()) return;  // in a forked child: the hold belongs to the parent
  const bool waits = hold_ != mem::Table::kNoHold && !current();
  table_.end_hold(hold_);
  // The owner may keep the place at rest because of this hold. It checks at its next allocation, or at once when woken.
  if (waits) peer_->link()->wake(*peer_);
}

TxPort::Window TxPort::window(uint64_t dest, uint64_t key, uint64_t addr, uint64_t length, uint32_t want) {
  key = domain_->standard_key(key);
  // SYNC POINT: the lock is an activity: an owner that revokes the key after our check waits for us, and then sees the
  // hold.
  const DomainLock guard(domain_);
  dest = dest_of(dest);
  if (state_ != State::enabled) return {.status = Status::no_endpoint};
  if (Reorder* const reorder = model_.reorder()) reorder->release_all();
  const Flow* const flow = flow_of(dest);
  if (flow == nullptr) return {.status = Status::no_endpoint};
  Route& route = *flow->route;
  if (const Status bar = barred(route); bar != Status::ok) return {.status = bar};
  if (!route.ready) return {};
  link::Peer& peer = *route.peer;
  if (peer.dead()) return {.status = peer.down_status()};
  if (!peer.table.valid()) return {.status = Status::ok};  // another host, or the peer shares no memory
  mem::MrView view;
  if (const Status s =
          peer.table.check(mover_.seen_by(route), route.ep_index, route.ep_generation, key, addr, length, want, view);
      s != Status::ok) {
    return {.status = s};
  }
  const mem::MrEntry& e = *view.entry;
  // No pointer if the owner counts accesses (it needs a notice of each), if the region is single-use (the owner's
  // engine executes its operation), or if pages may be missing (accesses through a pointer are not guarded).
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
    // The peer wrote these values: check them before making a pointer.
    const uint64_t bytes = peer.segment_bytes(piece.segment);
    if (piece.where > bytes || length > bytes - piece.where) return {.status = Status::ok};
    pointer = base + piece.where;
  }
  mem::Table& table = domain_->nic()->table();
  uint32_t hold = mem::Table::kNoHold;
  if (piece.segment != mem::kNoSegment) {
    hold = table.begin_hold(peer.table.nic_id(), piece.segment, piece.where, length);
    if (hold == mem::Table::kNoHold) return {.status = Status::no_memory};
  }
  return {.status = Status::ok,
          .pointer = pointer,
          .keep = std::make_shared<Hold>(table, hold, route.peer, &e, key, view.state),
          .fd = piece.segment == mem::kNoSegment ? -1
                : peer.same_process              ? domain_->nic()->segments().fd(piece.segment)
                                                 : peer.segment_fd(piece.segment),
          .where = piece.where};
}

void Nic::held_places(std::vector<mem::HeldPlace>& out) {
  // SYNC POINT: the regions are revoked before the holds are read.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const mem::NicId id = table().nic_id();
  const auto visit = [&](uint32_t segment, uint64_t offset, uint64_t length) {
    out.push_back({segment, offset, length});
  };
  table().each_hold(id, visit);
  for (const auto& mapping : mappings()) {  // mappings that let_go() could not close
    const mem::MrBuffer& b = mapping->buffers()[0];
    if (b.segment != mem::kNoSegment) visit(b.segment, b.where, b.length);
  }
  {
    const Guard lock(mappings_mutex_);
    out.insert(out.end(), abandoned_.begin(), abandoned_.end());
  }
  for (link::Link* link : parts_.links) {
    for (const auto& peer : link->users()) {
      if (peer->table.valid() && !peer->same_process) peer->table.each_hold(id, visit);
    }
  }
}

uint64_t Nic::holds_stamp() {
  constexpr uint64_t kFar = 0x9e3779b97f4a7c15;  // the sum changes when a peer is lost, and when it leaves
  uint64_t stamp = downs() * kFar + table().header().holds_ended.load(std::memory_order_seq_cst);
  for (link::Link* link : parts_.links) {
    for (const auto& peer : link->users()) {
      if (peer->table.valid() && !peer->same_process) {
        stamp += 1 + peer->table.header().holds_ended.load(std::memory_order_seq_cst);
      }
    }
  }
  return stamp;
}

}  // namespace weft::nic
