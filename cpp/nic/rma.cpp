// cpp/nic/rma.cpp: reads and writes of one call: direct access first, frames where that is not possible.
//
// HOT (post, 8-byte direct put): no system call, no allocation, one lock. Lines touched: the domain's activity word
// (written), the endpoint, the address vector's entry, the peer's endpoint entry and region entry (read, shared), the
// target's line (written), one completion entry (written). Benchmark: bench/cpp/main.cpp (put8).
#include <algorithm>
#include <cstring>

#include "nic/fast.inl"
#include "nic/iov.hpp"
#include "nic/reach.hpp"

namespace weft::nic {

Refusal Endpoint::check_post(uint64_t dest, uint64_t flags, bool inject_call, bool* wants, PeerEp** target,
                             std::shared_ptr<PeerEp>** shared) {
  if (state_ != State::enabled) [[unlikely]]
    return state_ == State::closed ? Refusal::closed : Refusal::not_enabled;
  *wants = !inject_call && (!selective_ || (flags & flag::kCompletion) != 0);
  if (!cq_admits(*wants)) [[unlikely]]
    return tx_cq_ ? Refusal::cq_full : Refusal::no_cq;
  dest = dest_of(dest);
  if (dest >= av_->entries_.size() || !av_->entries_[dest]) [[unlikely]]
    return config_.connected ? Refusal::not_connected : Refusal::bad_address;
  *shared = &av_->entries_[dest];
  *target = av_->entries_[dest].get();
  return Refusal::none;
}

void Endpoint::remember(PeerEp& target, const mem::MrView& view, uint64_t key) {
  const mem::MrEntry& e = *view.entry;
  const link::Peer& peer = *target.peer;
  if (e.segment == mem::kIovSegment) return;
  const mem::MrView whole{view.entry, view.slot, 0};
  Piece piece;
  uint32_t count = 0, missing = 0;
  Opened none;
  if (translate(peer, target.domain->nic()->devices(), whole, e.length, &piece, &count, &missing, &none) !=
      Reach::direct) {
    return;
  }
  const uint32_t ep_flags = target.ep_entry->flags.load(std::memory_order_relaxed);
  uint32_t allowed = 0;
  if ((e.access & mem::kMrNotifyRead) == 0 && (ep_flags & mem::kEpNotifyRead) == 0) {
    allowed |= e.access & (ep_flags << 9) & (mem::kRemoteRead | mem::kAtomicRead);
  }
  if ((e.access & mem::kMrNotifyWrite) == 0 && (ep_flags & mem::kEpNotifyWrite) == 0) {
    allowed |= e.access & (ep_flags << 9) & (mem::kRemoteWrite | mem::kAtomicWrite);
  }
  target.translations[translation_of(key)] = {
      key, &e, e.state.load(std::memory_order_relaxed), e.base, e.length, piece.pointer, allowed};
}

PostResult Endpoint::post_one(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr, uint64_t key,
                              uint64_t flags, uint64_t context, uint64_t imm, bool inject_call) {
  if (length <= short_bytes_max_ && (flags & kLongWay) == 0) [[likely]] {
    const DomainLock guard(domain_);
    const uint64_t to = dest_of(dest);
    if (state_ == State::enabled && to < av_->entries_.size() && av_->entries_[to]) [[likely]] {
      PeerEp& target = *av_->entries_[to];
      const bool wants = !inject_call && (!selective_ || (flags & flag::kCompletion) != 0);
      if (target.ep_entry != nullptr && target.outstanding == 0 && target.waiting.empty() && cq_admits(wants))
          [[likely]] {
        const bool write = kind == OpKind::write;
        std::byte* there = fast_target(target, key, addr, length, write ? mem::kRemoteWrite : mem::kRemoteRead);
        if (there != nullptr) [[likely]] {
          auto* here = static_cast<std::byte*>(local);
          if (write ? copy_guarded_hot(there, here, length) : copy_guarded_hot(here, there, length)) [[likely]] {
            ++domain_->statistics.direct;
            domain_->statistics.bytes += length;
            complete(wants, context, write ? flag::kRma | flag::kWrite : flag::kRma | flag::kRead, length);
            return {Refusal::none, wants};
          }  // a page failed: the long way says so
        }
      } else if (target.ready && target.ep_entry == nullptr && raw_keys_ == 0 && speaks_to(target)) {
        return post_framed(kind, local, length, to, addr, key, flags, context, imm, inject_call);
      }
    }
  }
  return post_one_slow(kind, local, length, dest, addr, key, flags, context, imm, inject_call);
}

// To a peer that shares no memory there is one way only. With the domain's lock.
[[gnu::noinline]] PostResult Endpoint::post_framed(OpKind kind, void* local, uint64_t length, uint64_t to,
                                                   uint64_t addr, uint64_t key, uint64_t flags, uint64_t context,
                                                   uint64_t imm, bool inject_call) {
  bool wants = !inject_call && (!selective_ || (flags & flag::kCompletion) != 0);
  if (!cq_admits(wants)) return {tx_cq_ ? Refusal::cq_full : Refusal::no_cq};
  if (const Refusal r = check_unfinished(flags, &wants); r != Refusal::none) return {r};
  const std::shared_ptr<PeerEp>& target = av_->entries_[to];
  Op* op = make_op(kind, target, wants, flags, context, imm, length, inject_call);
  op->remote[0] = {addr, length, key};
  op->remote_count = 1;
  const iovec piece{local, length};
  if (!keep_local(op, {&piece, 1})) {
    finish(op);
    return {Refusal::none, true};
  }
  return {Refusal::none, true, queue_op(*target, op)};
}

// Where the operation's bytes come from or go to: the caller's buffers, or a copy of what it may reuse at once.
bool Endpoint::keep_local(Op* op, std::span<const iovec> local) {
  if ((op->inject_call || (op->flags & flag::kInject) != 0) && op->kind == OpKind::write) {
    op->held.resize(op->total);
    op->status = gather(local, 0, op->held.data(), op->total);
    op->local[0] = {op->held.data(), op->held.size()};
    op->local_count = 1;
  } else {
    std::ranges::copy(local, op->local);
    op->local_count = static_cast<uint8_t>(local.size());
  }
  return op->status == Status::ok;
}

// Apart, so that the short way sets up no stack for it.
PostResult Endpoint::post_one_slow(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr,
                                   uint64_t key, uint64_t flags, uint64_t context, uint64_t imm, bool inject_call) {
  const iovec piece{local, length};
  const wire::RmaRange range{addr, length, key};
  RmaArgs args;
  args.kind = kind;
  args.dest = dest;
  args.local = {&piece, 1};
  args.remote = {&range, 1};
  args.flags = flags;
  args.context = context;
  args.imm = imm;
  args.inject_call = inject_call;
  return post(args);
}

// The ranges of an operation as the peer knows them. With the domain's lock.
std::span<const wire::RmaRange> Endpoint::named(std::span<const wire::RmaRange> remote, wire::RmaRange* room) const {
  if (raw_keys_ == 0) [[likely]]
    return remote;
  for (size_t i = 0; i < remote.size(); ++i) {
    room[i] = {remote[i].addr, remote[i].length, domain_->mapped_key(remote[i].key)};
  }
  return {room, remote.size()};
}

PostResult Endpoint::post(const RmaArgs& asked) {
  RmaArgs args = asked;
  const uint64_t total = args.local.size() == 1 ? args.local[0].iov_len : sum_bytes(args.local);
  const uint64_t remote_total = args.remote.size() == 1 ? args.remote[0].length : sum_bytes(args.remote);
  if (args.local.size() > kIovMax || args.remote.size() > kIovMax) return {Refusal::too_many_pieces};
  if (total != remote_total || total == kNoSum) return {Refusal::length_mismatch};
  if (total > config_.max_msg_size) return {Refusal::too_long};

  const DomainLock guard(domain_);
  bool wants;
  PeerEp* target;
  std::shared_ptr<PeerEp>* shared;
  if (const Refusal r = check_post(args.dest, args.flags, args.inject_call, &wants, &target, &shared);
      r != Refusal::none) [[unlikely]] {
    return {r};
  }
  wire::RmaRange room[kIovMax];
  args.remote = named(args.remote, room);
  std::shared_ptr<PeerEp> kept;
  if (!speaks_to(*target)) [[unlikely]] {
    if (!wants && tx_cq_->full()) return {Refusal::cq_full};
    fail(args.context, completion_flags(args.kind, {}), Status::unauthorized,
         describe(args.kind == OpKind::read ? "read" : "write", args.remote[0], *target, Status::unauthorized), total);
    count_remote(args.kind == OpKind::read, true, 0);
    return {Refusal::none, true};
  }
  const bool fence = (args.flags & flag::kFence) != 0;
  bool data_done = false;
  const bool commit = (args.flags & flag::kCommitComplete) != 0;  // the owner flushes its file
  if (!commit && target->ready && target->waiting.empty() && target->peer->table.valid() && !target->peer->dead() &&
      (target->outstanding == 0 || (!fence && config_.msg_order == 0))) [[likely]] {
    kept = *shared;  // a copy outside the lock lets others change the address vector meanwhile
    Status status = Status::ok;
    switch (try_direct(*target, args.kind, args.local.data(), args.local.size(), args.remote.data(), args.remote.size(),
                       total, args.flags, args.imm, &status, true, args.device)) {
      case Direct::done:
        complete(wants, args.context, completion_flags(args.kind, {}), total);
        return {Refusal::none, wants};
      case Direct::failed:
        if (!wants && tx_cq_->full()) return {Refusal::cq_full};  // there is no room for its error
        fail(args.context, completion_flags(args.kind, {}), status,
             describe(args.kind == OpKind::read ? "read" : "write", args.remote[0], *target, status), total);
        if (status == Status::no_endpoint) target->set_lost();  // ask again next time
        count_remote(args.kind == OpKind::read, true, 0);
        return {Refusal::none, true};
      case Direct::no_room:
        data_done = true;
        break;
      case Direct::frames:
      case Direct::park:
        break;
    }
  }
  if (const Refusal r = check_unfinished(args.flags, &wants); r != Refusal::none) return {r};
  Op* op =
      make_op(args.kind, kept ? kept : *shared, wants, args.flags, args.context, args.imm, total, args.inject_call);
  op->data_done = data_done;
  std::copy(args.remote.begin(), args.remote.end(), op->remote);
  op->remote_count = static_cast<uint8_t>(args.remote.size());
  if (args.device && !data_done) {
    const bool write = args.kind == OpKind::write;
    if (!stage(op, write ? args.local : std::span<const iovec>{}, write ? std::span<const iovec>{} : args.local,
               args.device, total)) {
      finish(op);
      return {Refusal::none, true};
    }
  } else if (!keep_local(op, args.local)) {
    finish(op);
    return {Refusal::none, true};
  }
  return {Refusal::none, true, queue_op(*target, op)};
}

// The direct path: key check, copy, and a notice where the target wants to know. With the domain's lock; a long copy is
// made outside of it under an activity word of its own (only if may_unlock).
Endpoint::Direct Endpoint::try_direct(PeerEp& target, OpKind kind, const iovec* local, size_t local_count,
                                      const wire::RmaRange* remote, size_t remote_count, uint64_t total, uint64_t flags,
                                      uint64_t imm, Status* status, bool may_unlock, uint8_t device) {
  link::Peer& peer = *target.peer;
  mem::Devices& devices = domain_->nic_->devices();
  const uint32_t want = want_of(kind);
  mem::MrView view;
  Piece pieces[kMaxPieces];
  uint32_t count = 0, missing = 0, entry_flags = 0;
  Opened opened;
  bool by_device = device != 0;
  std::shared_ptr<link::Peer> kept;  // while the lock is released the peer may die and leave `target`
  Reach reach = Reach::direct;
  for (size_t i = 0; i < remote_count; ++i) {
    *status = peer.table.check(seen_by(target), target.ep_index, target.ep_generation, remote[i].key, remote[i].addr,
                               remote[i].length, want, view);
    if (*status != Status::ok) [[unlikely]]
      return Direct::failed;
    entry_flags |= view.entry->access;
    const Reach r = translate(peer, devices, view, remote[i].length, pieces, &count, &missing, &opened);
    if (r == Reach::direct) remember(target, view, remote[i].key);
    if (r == Reach::missing) [[unlikely]] {
      peer.link()->request_segment(peer, missing);
      return Direct::park;
    }
    if (r == Reach::device) {
      by_device = true;
    } else if (r != Reach::direct) {
      reach = r == Reach::frames || reach == Reach::frames ? Reach::frames : Reach::cma;
    }
  }
  if (reach == Reach::frames) return Direct::frames;
  if ((flags & flag::kRemoteCqData) != 0 && !target.takes_data()) [[unlikely]]
    return Direct::park;
  const mem::Devices* copier = by_device ? &devices : nullptr;

  const bool to_peer = kind == OpKind::write;
  if (reach == Reach::direct && !by_device && total <= domain_->nic_->limits_.inline_copy_bytes) [[likely]] {
    if (count == 1 && local_count == 1) [[likely]] {
      auto* here = static_cast<std::byte*>(local[0].iov_base);
      if (!(to_peer ? copy_guarded_hot(pieces[0].pointer, here, total)
                    : copy_guarded_hot(here, pieces[0].pointer, total))) {
        *status = Status::fault;
      }
    } else {
      *status = move(peer, to_peer, local, local_count, pieces, count);
    }
    if (*status != Status::ok) [[unlikely]]
      return Direct::failed;
    ++domain_->statistics.direct;
  } else if (total != 0) {
    reach == Reach::direct ? ++domain_->statistics.direct : ++domain_->statistics.cma;
    if (may_unlock) {
      // SYNC POINT: the long activity is visible before the lock's word becomes even, so a closing owner that saw the
      // lock released sees the long activity. It stands for all regions of the call: slot 'any'.
      Nic& nic = *domain_->nic_;
      const uint32_t activity = nic.begin_long_activity(remote_count == 1 ? view.slot : mem::TableView::kNoSlot);
      kept = target.peer;
      const std::shared_ptr<CompletionQueue> cq = tx_cq_;
      ++target.outstanding;
      ++target.long_copies;
      long_copies_.fetch_add(1, std::memory_order_relaxed);
      cq->reserve();
      domain_->unlock();
      *status = move(*kept, to_peer, local, local_count, pieces, count, copier, device);
      nic.end_long_activity(activity);
      domain_->lock();
      cq->unreserve();
      long_copies_.fetch_sub(1, std::memory_order_release);
      --target.outstanding;
      --target.long_copies;
      // Meanwhile the peer may have died, and the endpoint may have been closed: then no notice is due.
      if (*status == Status::ok && (kept->dead() || target.peer != kept)) *status = Status::peer_gone;
      if (state_ != State::enabled) *status = Status::canceled;
      if (!target.waiting.empty()) domain_->pump(target);
    } else {
      *status = move(peer, to_peer, local, local_count, pieces, count, copier, device);
    }
    if (*status == Status::access) *status = Status::fault;
    if (*status != Status::ok) return Direct::failed;
  }
  domain_->statistics.bytes += total;

  const uint32_t notify = to_peer ? mem::kMrNotifyWrite : mem::kMrNotifyRead;
  const uint32_t ep_notify = to_peer ? mem::kEpNotifyWrite : mem::kEpNotifyRead;
  const bool has_data = (flags & flag::kRemoteCqData) != 0;
  if (has_data || (entry_flags & notify) != 0 ||
      (peer.table.ep(target.ep_index).flags.load(std::memory_order_relaxed) & ep_notify) != 0) [[unlikely]] {
    *status = send_notice(target, !to_peer, false, remote[0], total, has_data, imm);
    if (*status == Status::again) return Direct::no_room;
    if (*status != Status::ok) return Direct::failed;
  }
  return Direct::done;
}

Status Endpoint::send_notice(PeerEp& target, bool read, bool atomic, const wire::RmaRange& range, uint64_t total,
                             bool has_data, uint64_t imm, AtomicOp op) {
  wire::Frame f;
  f.kind = wire::FrameKind::notice;
  f.atomic_op = static_cast<uint8_t>(op);
  f.flags = static_cast<uint8_t>((has_data ? wire::kFrameHasData : 0) | (read ? wire::kFrameIsRead : 0) |
                                 (atomic ? wire::kFrameIsAtomic : 0) | wire::kFrameLast);
  f.key = range.key;
  f.addr = range.addr;
  f.length = total;
  f.imm_data = imm;
  f.ep_index = target.ep_index;
  f.ep_generation = target.ep_generation;
  f.source = seen_by(target);
  return target.peer->link()->submit(*target.peer, f, {});
}

void Endpoint::count_remote(bool read, bool failed, uint64_t bytes) {
  const auto& counter = read ? read_cntr_ : write_cntr_;
  if (!counter) return;
  if (failed) {
    counter->add_errors(1);
  } else {
    counter->add(counter->counts_bytes ? bytes : 1);
  }
}

void Endpoint::fail(uint64_t context, uint64_t flags, Status status, std::string text, uint64_t total) noexcept {
  ++domain_->statistics.failed;
  CqEntry entry;
  entry.context = context;
  entry.flags = flags;
  CqError error;
  const auto [err, prov] = domain_->config_.statuses[status];
  error.err = err;
  error.prov_errno = prov;
  error.status = status;
  error.olen = total;
  error.text = std::move(text);
  tx_cq_->push_error(entry, std::move(error));
}

}  // namespace weft::nic
