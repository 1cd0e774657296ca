// cpp/nic/landing.cpp: long payload that goes from a link's socket straight to where it belongs; and names of peers.
//
// The owner's checks are those of Nic::serve(), made anew for every piece: between two pieces a region may be closed.
// A piece is read under serve_lock_ (a write) or the domain's lock (an answer), for which closing a region or an
// endpoint waits; it is at most one frame's payload, some 30 us.
#include <algorithm>

#include "nic/nic.hpp"

namespace weft::nic {

namespace {

constexpr size_t kPiecesMax = 8;
// What a region may be for its bytes to be written by the kernel; any other way of access is serve()'s.
constexpr uint32_t kPlainAccess =
    mem::kAccessMask | mem::kMrNotifyRead | mem::kMrNotifyWrite | mem::kMrSingleUse | mem::kMrUnowned;

}  // namespace

Status Nic::land(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, uint64_t done,
                 link::PayloadSource& source, size_t* got) {
  if (frame.kind == wire::FrameKind::answer) return land_answer(peer, frame, done, source, got);
  if (frame.kind == wire::FrameKind::write) return land_write(peer, frame, done, source, got);
  return Status::again;
}

Status Nic::land_write(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, uint64_t done,
                       link::PayloadSource& source, size_t* got) {
  if (done == 0 && !owed_.empty() && must_follow(*peer)) return Status::again;
  if ((frame.flags & wire::kFrameCommit) != 0) return Status::again;
  if (!announced_.empty()) {  // a range of several: none is written where one of them was refused
    if (const auto list = announced_.find(peer.get()); list != announced_.end()) {
      for (auto a = list->second.rbegin(); a != list->second.rend(); ++a) {
        if (a->op_id == frame.op_id && a->status != Status::ok) return a->status;
        if (a->op_id == frame.op_id) break;
      }
    }
  }
  const std::lock_guard serving(serve_lock_);  // SYNC POINT: quiesce() takes it after it has revoked the key
  mem::MrView view;
  const Status status = table().check(frame.source, frame.ep_index, frame.ep_generation, frame.key, frame.addr,
                                      frame.length, mem::kRemoteWrite, view);
  if (status != Status::ok) return status;
  const mem::MrEntry& e = *view.entry;
  if ((e.access & ~kPlainAccess) != 0) return Status::again;
  if (frame.frag_offset > frame.length || frame.payload_length > frame.length - frame.frag_offset) {
    return Status::protocol;
  }
  uint64_t offset = view.offset + frame.frag_offset + done, left = frame.payload_length - done;
  const mem::IovEntry single{e.local_addr, e.length, e.where, e.segment, 0};
  const std::span<const mem::IovEntry> list =
      e.segment == mem::kIovSegment ? table().iov(e) : std::span<const mem::IovEntry>(&single, 1);
  std::array<iovec, kPiecesMax> pieces;
  size_t count = 0;
  for (const mem::IovEntry& iov : list) {
    if (iov.segment == mem::kDeviceSegment) return Status::again;  // its runtime copies: serve() asks it
    if (offset >= iov.length) {
      offset -= iov.length;
      continue;
    }
    const uint64_t n = std::min(left, iov.length - offset);
    if (n == 0 || count == kPiecesMax) break;
    pieces[count++] = {reinterpret_cast<void*>(iov.local_addr + offset), n};
    left -= n;
    offset = 0;
  }
  if (count == 0) return Status::fault;
  *got = source.read(std::span(pieces).first(count));
  return source.fault() ? Status::fault : Status::ok;
}

Status Nic::land_answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, uint64_t done,
                        link::PayloadSource& source, size_t* got) {
  const uint32_t index = OpTable::domain_of(frame.op_id);
  const std::lock_guard objects(objects_mutex_);
  if (index >= domains_.size() || domains_[index] == nullptr) return Status::canceled;
  Domain* domain = domains_[index];
  const DomainLock guard(domain);
  const Op* found = domain->ops_.find(frame.op_id);
  if (found == nullptr || found->peer != peer.get()) return Status::canceled;
  const Op& op = *found;
  if (op.kind != OpKind::read) return Status::again;
  if (op.frames_out == 0 || op.status != Status::ok || frame.status != 0) return Status::canceled;
  const uint64_t at = frame.imm_data;
  if (at > op.total || frame.payload_length > op.total - at) return Status::protocol;
  uint64_t offset = at + done, left = frame.payload_length - done;
  std::array<iovec, kPiecesMax> pieces;
  size_t count = 0;
  for (size_t i = 0; i < op.local_count && left != 0; ++i) {
    if (offset >= op.local[i].iov_len) {
      offset -= op.local[i].iov_len;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(left, op.local[i].iov_len - offset);
    pieces[count++] = {static_cast<std::byte*>(op.local[i].iov_base) + offset, n};
    left -= n;
    offset = 0;
  }
  if (count == 0) return Status::protocol;
  *got = source.read(std::span(pieces).first(count));
  return source.fault() ? Status::fault : Status::ok;
}

// The payload of a frame is in its place, or will never be: what serve() and on_answer() do after the copy.
void Nic::on_landed(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, Status status) {
  count_frame();
  if (frame.kind == wire::FrameKind::answer) {
    wire::Frame f = frame;
    if (status != Status::ok && status != Status::canceled) f.status = static_cast<int32_t>(status);
    on_answer(peer, f, {});
    return;
  }
  uint64_t total = frame.length;
  if (const Status failed = announced(peer, frame, &total); status == Status::ok) status = failed;
  uint32_t slot = mem::TableView::kNoSlot;
  if (status == Status::ok) {
    const std::lock_guard serving(serve_lock_);
    mem::MrView view;
    status = table().check(frame.source, frame.ep_index, frame.ep_generation, frame.key, frame.addr, frame.length,
                           mem::kRemoteWrite, view);
    if (status == Status::ok) {
      slot = view.slot;
      const bool last = (frame.flags & wire::kFrameLast) != 0;
      if (last && (view.entry->access & mem::kMrSingleUse) != 0) table().begin_close(slot);
    }
  }
  uint8_t room = 0;
  if (status == Status::ok && (frame.flags & wire::kFrameLast) != 0) {
    room = local_event(peer, frame, slot, false, total);
  }
  answer(peer, frame, status, {}, room);
}

// ---- names -------------------------------------------------------------------------------------------------------

std::optional<wire::EpAddress> Nic::local_name(const wire::EpAddress& address) const {
  if (address.nic < wire::kRemoteNic) [[likely]]
    return std::nullopt;
  for (link::Link* link : parts_.links) {
    if (auto here = link->local_name(address)) return here;
  }
  return std::nullopt;
}

std::string Nic::explain(const wire::EpAddress& address) const {
  for (const link::Link* link : parts_.links) {
    if (std::string why = link->explain(address); !why.empty()) return why;
  }
  return {};
}

std::string Nic::text_of(const wire::EpAddress& address) const {
  for (const link::Link* link : parts_.links) {
    if (auto text = link->name_of(address)) return *text;
  }
  return address.text();
}

}  // namespace weft::nic
