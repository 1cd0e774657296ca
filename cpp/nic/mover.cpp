// cpp/nic/mover.cpp: see mover.hpp.
#include "nic/mover.hpp"

#include "nic/fast.inl"
#include "nic/iov.hpp"
#include "wire/call.hpp"

namespace weft::nic {

void Mover::remember(Route& route, const mem::MrView& view, uint64_t key) {
  route.domain->assert_held();
  const mem::MrEntry& e = *view.entry;
  const link::Peer& peer = *route.peer;
  if (e.segment == mem::kIovSegment) return;
  // Do not cache a guarded region: the domain's other endpoints share the cache, and the region may refuse them.
  if ((e.access & mem::kMrGuarded) != 0) [[unlikely]] {
    const mem::AccessGuard* guard = peer.table.guard(e);
    if (guard == nullptr || guard->has_source != 0) return;
  }
  const mem::MrView whole{view.entry, view.slot, 0, view.state};
  const uint64_t length = mem::load_relaxed(e.length);  // once: the peer can change its table at any time
  Piece piece;
  uint32_t count = 0, missing = 0;
  Opened none;
  const Reach reach = translate(peer, route.domain->nic()->devices(), whole, length, &piece, &count, &missing, &none);
  const bool by_kernel = reach == Reach::cma && e.segment == mem::kNoSegment;
  if (by_kernel) piece.pointer = reinterpret_cast<std::byte*>(piece.remote);
  if (reach != Reach::direct && !by_kernel) return;
  const uint32_t ep_flags = route.ep_entry->flags.load(std::memory_order_relaxed);
  uint32_t allowed = 0;
  if ((e.access & mem::kMrNotifyRead) == 0 && (ep_flags & mem::kEpNotifyRead) == 0) {
    allowed |= e.access & (ep_flags << 9) & (mem::kRemoteRead | mem::kAtomicRead);
  }
  if ((e.access & mem::kMrNotifyWrite) == 0 && (ep_flags & mem::kEpNotifyWrite) == 0) {
    allowed |= e.access & (ep_flags << 9) & (mem::kRemoteWrite | mem::kAtomicWrite);
  }
  mem::Gate::Slot* turns = nullptr;
  if ((e.access & mem::kMrTurns) != 0 && (allowed & (mem::kAtomicRead | mem::kAtomicWrite)) != 0) {
    turns = route.domain->turns_at(peer, e.segment);
    if (turns == nullptr) allowed &= ~(mem::kAtomicRead | mem::kAtomicWrite);
  }
  const uint32_t copied = by_kernel ? allowed & (mem::kRemoteRead | mem::kRemoteWrite) : 0;
  route.translations[translation_of(key)] = {
      key, &e, view.state, e.base, length, piece.pointer, by_kernel ? 0 : allowed, copied, turns};
}

[[gnu::noinline]] std::byte* Mover::learn(Route& route, uint64_t key, uint64_t addr, uint64_t length,
                                          uint32_t want) noexcept {
  domain_->assert_held();
  if (!route.ready || !route.peer->table.valid() || route.peer->dead()) return nullptr;
  mem::MrView view;
  if (route.peer->table.check(seen_by(route), route.ep_index, route.ep_generation, key, addr, length, want, view) !=
      Status::ok) {
    return nullptr;
  }
  remember(route, view, key);
  return model_.flows(route) ? pointer(route, key, addr, length, want) : nullptr;
}

bool Mover::copied_by_kernel(const std::shared_ptr<Flow>& of, OpKind kind, const iovec& here, uint64_t addr,
                             uint64_t key, uint64_t flags) {
  domain_->assert_held();
  Route& route = *of->route;
  std::byte* const place = model_.flows(route) ? pointer(route, key, addr, here.iov_len, want_of(kind), true) : nullptr;
  if (place == nullptr) return false;
  const std::shared_ptr<Flow> flow = of;  // the address vector may change outside the lock
  const std::shared_ptr<link::Peer> peer = route.peer;
  const auto slot = route.translations[translation_of(key)].entry - &peer->table.mr(0);
  const iovec there{place, here.iov_len};
  errors_->reserve();
  const Status status = copy_unlocked(*flow, class_of(kind), static_cast<uint32_t>(slot),
                                      [&] { return peer->cma_copy(kind == OpKind::write, {&here, 1}, {&there, 1}); });
  errors_->unreserve();
  if (flow->waits()) domain_->pump(*flow);
  if (status != Status::ok || peer->dead() || route.peer != peer || !open_) return false;
  ++domain_->statistics.cma;
  domain_->statistics.bytes += here.iov_len;
  if (kind == OpKind::write) tell_changed(route);
  model_.count(route, kind, {}, {}, key, flags, here.iov_len, false, false);
  return true;
}

// ---- reads and writes ----------------------------------------------------------------------------------------------

// The direct path: key check, copy, and a notice if the target counts accesses. A long copy is made
// outside the lock, if it may be.
Mover::Moved Mover::move(Flow& flow, const Transfer& transfer, Status* status) {
  domain_->assert_held();
  Route& route = *flow.route;
  link::Peer& peer = *route.peer;
  mem::Devices& devices = domain_->nic()->devices();
  const uint32_t want = want_of(transfer.kind);
  mem::MrView view;
  Piece pieces[kMaxPieces];
  uint32_t count = 0, missing = 0, entry_flags = 0;
  Opened opened;
  bool by_device = transfer.device != 0;
  Reach reach = Reach::direct;
  for (const wire::RmaRange& range : transfer.remote) {
    *status = peer.table.check(seen_by(route), route.ep_index, route.ep_generation, range.key, range.addr, range.length,
                               want, view);
    if (*status != Status::ok) [[unlikely]]
      return Moved::failed;
    entry_flags |= view.entry->access;
    const Reach r = translate(peer, devices, view, range.length, pieces, &count, &missing, &opened);
    if (r == Reach::direct || r == Reach::cma) remember(route, view, range.key);
    if (r == Reach::missing) [[unlikely]] {
      peer.link()->request_segment(peer, missing);
      return Moved::park;
    }
    if (r == Reach::device) {
      by_device = true;
    } else if (r != Reach::direct) {
      reach = r == Reach::frames || reach == Reach::frames ? Reach::frames : Reach::cma;
    }
  }
  if (reach == Reach::frames) return Moved::frames;
  if ((transfer.flags & flag::kRemoteCqData) != 0 && !route.takes_data()) [[unlikely]]
    return Moved::park;
  const mem::Devices* copier = by_device ? &devices : nullptr;
  if (Pager* const pager = model_.pager(); pager != nullptr && !by_device) [[unlikely]] {
    const std::span<const Piece> mapped(pieces, reach == Reach::direct ? count : 0);
    if (!pager->request(transfer.local, mapped)) {
      *status = Status::page_request;
      return Moved::failed;
    }
  }

  const bool to_peer = transfer.kind == OpKind::write;
  const std::span<const iovec> local = transfer.local;
  if (reach == Reach::direct && !by_device && transfer.total <= domain_->nic()->limits().inline_copy_bytes) [[likely]] {
    if (count == 1 && local.size() == 1) [[likely]] {
      auto* here = static_cast<std::byte*>(local[0].iov_base);
      if (!(to_peer ? copy_guarded_hot(pieces[0].pointer, here, transfer.total)
                    : copy_guarded_hot(here, pieces[0].pointer, transfer.total))) {
        *status = Status::fault;
      }
    } else {
      *status = nic::move(peer, to_peer, local.data(), local.size(), pieces, count);
    }
    if (*status != Status::ok) [[unlikely]]
      return Moved::failed;
    ++domain_->statistics.direct;
  } else if (transfer.total != 0) {
    reach == Reach::direct ? ++domain_->statistics.direct : ++domain_->statistics.cma;
    const auto copy = [&](link::Peer& to) {
      return nic::move(to, to_peer, local.data(), local.size(), pieces, count, copier, transfer.device);
    };
    if (transfer.may_unlock) {
      const uint32_t slot = transfer.remote.size() == 1 ? view.slot : mem::TableView::kNoSlot;
      const std::shared_ptr<link::Peer> kept = route.peer;  // which may die and leave the route in the meantime
      errors_->reserve();
      *status = copy_unlocked(flow, to_peer ? OpClass::write : OpClass::read, slot, [&] { return copy(*kept); });
      errors_->unreserve();
      // No notice if the peer died or the endpoint was closed during the copy.
      if (*status == Status::ok && (kept->dead() || route.peer != kept)) *status = Status::peer_gone;
      if (!open_) *status = Status::canceled;
      if (flow.waits()) domain_->pump(flow);
    } else {
      *status = copy(peer);
    }
    if (*status == Status::access) *status = Status::fault;
    if (*status != Status::ok) return Moved::failed;
  }
  domain_->statistics.bytes += transfer.total;
  if (to_peer) tell_changed(route);

  const uint32_t region_notifies = to_peer ? mem::kMrNotifyWrite : mem::kMrNotifyRead;
  const uint32_t ep_notify = to_peer ? mem::kEpNotifyWrite : mem::kEpNotifyRead;
  const bool has_data = (transfer.flags & flag::kRemoteCqData) != 0;
  const wire::RmaRange& first = transfer.remote[0];
  model_.count(route, transfer.kind, {}, {}, first.key, transfer.flags, transfer.total,
               (entry_flags & region_notifies) != 0, false);
  if (has_data || (entry_flags & region_notifies) != 0 ||
      (peer.table.ep(route.ep_index).flags.load(std::memory_order_relaxed) & ep_notify) != 0) [[unlikely]] {
    *status = notify(route, !to_peer, false, first, transfer.total, has_data, transfer.imm);
    if (*status == Status::again) return Moved::no_room;
    if (*status != Status::ok) return Moved::failed;
  }
  return Moved::done;
}

[[gnu::noinline, gnu::cold]] void Mover::wake_parked(Route& route) noexcept {
  if (route.peer == nullptr) return;
  if (route.peer->same_process) {
    route.domain->nic()->wake_parked();
  } else {
    route.peer->link()->wake(*route.peer);
  }
}

Status Mover::notify(Route& route, bool read, bool atomic, const wire::RmaRange& range, uint64_t total, bool has_data,
                     uint64_t imm, AtomicOp op) {
  wire::Frame f;
  f.kind = wire::FrameKind::notice;
  f.atomic_op = static_cast<uint8_t>(op);
  f.flags = static_cast<uint8_t>((has_data ? wire::kFrameHasData : 0) | (read ? wire::kFrameIsRead : 0) |
                                 (atomic ? wire::kFrameIsAtomic : 0) | wire::kFrameLast);
  f.access.key = range.key;
  f.access.addr = range.addr;
  f.access.length = total;
  f.access.data = imm;
  f.ep_index = route.ep_index;
  f.ep_generation = route.ep_generation;
  f.source = seen_by(route);
  return route.peer->link()->submit(*route.peer, f, {});
}

// ---- atomics -------------------------------------------------------------------------------------------------------

Mover::Moved Mover::update(Route& route, const AtomicArgs& args, uint64_t total, Status* status) {
  domain_->assert_held();
  if (args.op == static_cast<AtomicOp>(wire::kCallOp)) return Moved::frames;  // a call of the owner's NIC
  link::Peer& peer = *route.peer;
  const uint32_t want = want_of(args.family, args.op);
  Piece pieces[kMaxPieces];
  mem::Gate::Slot* turns[kMaxPieces];
  uint32_t count = 0, missing = 0, entry_flags = 0;
  Opened opened;
  const size_t size = datatype_size(args.datatype);
  for (const wire::RmaRange& range : args.remote) {
    mem::MrView view;
    *status = peer.table.check(seen_by(route), route.ep_index, route.ep_generation, range.key, range.addr, range.length,
                               want, view);
    if (*status != Status::ok) [[unlikely]]
      return Moved::failed;
    entry_flags |= view.entry->access;
    const uint32_t before = count;
    switch (translate(peer, domain_->nic()->devices(), view, range.length, pieces, &count, &missing, &opened)) {
      case Reach::direct:
        remember(route, view, range.key);
        break;
      case Reach::missing:
        peer.link()->request_segment(peer, missing);
        return Moved::park;
      default:
        // Loads and stores do not reach the memory: the owner's engine executes the atomic, and answers a misalignment.
        return Moved::frames;
    }
    mem::Gate::Slot* slot = nullptr;
    if ((view.entry->access & mem::kMrTurns) != 0) [[unlikely]] {
      if (view.entry->segment != mem::kIovSegment) slot = domain_->turns_at(peer, view.entry->segment);
      if (slot == nullptr) return Moved::frames;  // no slot is free, or several buffers: the owner's engine does it
    }
    for (uint32_t i = before; i < count; ++i) {
      turns[i] = slot;
      const auto address = reinterpret_cast<uintptr_t>(pieces[i].pointer);
      if (address % atomic_alignment(args.datatype) != 0 || pieces[i].length % size != 0) {
        *status = Status::misaligned;
        return Moved::failed;
      }
      if (atomic_width(args.datatype, address) == AtomicWidth::locked) return Moved::frames;
    }
  }
  if ((args.flags & flag::kRemoteCqData) != 0 && !route.takes_data()) [[unlikely]]
    return Moved::park;
  // Runs of elements: each ends with the target's piece or with a buffer of a local list.
  uint64_t done = 0;
  alignas(16) std::byte operand_room[64], compare_room[64], result_room[64];
  for (uint32_t i = 0; i < count; ++i) {
    const mem::ElementTurn turn(turns[i]);
    uint64_t offset = 0;
    while (offset < pieces[i].length) {
      const void* operand = nullptr;
      const void* compare = nullptr;
      void* result = nullptr;
      uint64_t run = pieces[i].length - offset;
      if (args.operand.size() <= 1 && args.compare.size() <= 1 && args.result.size() <= 1) [[likely]] {
        if (!args.operand.empty()) operand = static_cast<const std::byte*>(args.operand[0].iov_base) + done;
        if (!args.compare.empty()) compare = static_cast<const std::byte*>(args.compare[0].iov_base) + done;
        if (!args.result.empty()) result = static_cast<std::byte*>(args.result[0].iov_base) + done;
      } else {
        run = size;
        if (!args.operand.empty()) {
          *status = gather(args.operand, done, operand_room, size);
          operand = operand_room;
        }
        if (!args.compare.empty()) {
          if (*status == Status::ok) *status = gather(args.compare, done, compare_room, size);
          compare = compare_room;
        }
        result = args.result.empty() ? nullptr : result_room;
      }
      if (*status == Status::ok &&
          !apply_here(peer, args.op, args.datatype, pieces[i].pointer + offset, operand, compare, result, run)) {
        *status = Status::fault;
      }
      if (*status == Status::ok && result == result_room) *status = scatter(args.result, done, result_room, size);
      if (*status != Status::ok) return Moved::failed;
      offset += run;
      done += run;
    }
  }
  ++domain_->statistics.direct;
  domain_->statistics.bytes += total;
  if (args.op != AtomicOp::atomic_read) tell_changed(route);
  const bool read = args.family != AtomicFamily::base;
  const uint32_t region_notifies = region_notify(read, true, args.op);
  const uint32_t ep_notify = read ? mem::kEpNotifyRead : mem::kEpNotifyWrite;
  const bool has_data = (args.flags & flag::kRemoteCqData) != 0;
  model_.count(route, OpKind::atomic, args.family, args.datatype, args.remote[0].key, args.flags, total,
               (entry_flags & region_notifies) != 0, false);
  if (has_data || (entry_flags & region_notifies) != 0 ||
      (peer.table.ep(route.ep_index).flags.load(std::memory_order_relaxed) & ep_notify) != 0) [[unlikely]] {
    *status = notify(route, read, true, args.remote[0], total, has_data, args.imm, args.op);
    if (*status == Status::again) return Moved::no_room;
    if (*status != Status::ok) return Moved::failed;
  }
  return Moved::done;
}

}  // namespace weft::nic
