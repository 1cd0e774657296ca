// cpp/nic/reach.cpp: see reach.hpp.
#include "nic/reach.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "mem/guard.hpp"

namespace weft::nic {

using mem::copy_guarded_hot;

namespace {

// noinline, so that accesses to host memory do not pay for this code.
[[gnu::noinline]] void locate_device(const link::Peer& peer, mem::Devices& devices, uint64_t where, uint64_t local_addr,
                                     Piece* out, Opened* opened) {
  out->device = true;
  if (!devices.any()) return;
  if (peer.same_process) {
    out->pointer = reinterpret_cast<std::byte*>(out->remote);
    return;
  }
  const mem::DeviceNote* shared = peer.table.note(where);
  if (shared == nullptr) return;
  mem::DeviceNote note;
  std::memcpy(&note, shared, sizeof(note));  // check and use one copy: the peer can change its table at any time
  const uint64_t at = out->remote - note.base;
  if (local_addr < note.base || at > note.length || out->length > note.length - at) return;
  if (auto open = devices.open(&peer, note)) {
    out->pointer = open->base + at;
    opened->push_back(std::move(open));
  }
}

inline bool locate(const link::Peer& peer, mem::Devices& devices, uint32_t segment, uint64_t where, uint64_t local_addr,
                   uint64_t offset, uint64_t length, Piece* out, uint32_t* missing, Opened* opened) {
  out->remote = local_addr + offset;
  out->length = length;
  out->pointer = nullptr;
  out->device = false;
  if (segment == mem::kDeviceSegment) [[unlikely]] {
    locate_device(peer, devices, where, local_addr, out, opened);
    return true;
  }
  if (peer.same_process) {
    out->pointer = reinterpret_cast<std::byte*>(local_addr + offset);
    return true;
  }
  if (segment == mem::kNoSegment) return true;
  std::byte* base = peer.segment_base(segment);
  if (base == nullptr) {
    *missing = segment;
    return false;
  }
  // The peer wrote these values: check them before making a pointer.
  const uint64_t at = where + offset;
  const uint64_t bytes = peer.segment_bytes(segment);
  if (at > bytes || length > bytes - at) return true;
  out->pointer = base + at;
  return true;
}

}  // namespace

Reach translate(const link::Peer& peer, mem::Devices& devices, const mem::MrView& view, uint64_t length, Piece* pieces,
                uint32_t* count, uint32_t* missing, Opened* opened) {
  const mem::MrEntry& e = *view.entry;
  const uint32_t first = *count;
  if ((e.access & (mem::kMrSingleUse | mem::kMrByOwner)) != 0) [[unlikely]] {
    if ((e.access & mem::kMrSingleUse) != 0 || !peer.same_process) return Reach::frames;
  }
  if (e.segment != mem::kIovSegment) {
    if (*count == kMaxPieces) return Reach::frames;
    if (!locate(peer, devices, e.segment, e.where, e.local_addr, view.offset, length, &pieces[*count], missing,
                opened)) {
      return Reach::missing;
    }
    ++*count;
  } else {
    uint64_t offset = view.offset, left = length;
    for (const mem::IovEntry& iov : peer.table.iov(e)) {
      if (offset >= iov.length) {
        offset -= iov.length;
        continue;
      }
      const uint64_t n = std::min(left, iov.length - offset);
      if (n == 0) break;
      if (*count == kMaxPieces) return Reach::frames;
      if (!locate(peer, devices, iov.segment, iov.where, iov.local_addr, offset, n, &pieces[*count], missing, opened)) {
        return Reach::missing;
      }
      ++*count;
      left -= n;
      offset = 0;
    }
  }
  bool any_direct = false, any_cma = false, any_device = false;
  for (uint32_t i = first; i < *count; ++i) {
    (pieces[i].pointer != nullptr ? any_direct : any_cma) = true;
    any_device = any_device || pieces[i].device;
    if (pieces[i].device && pieces[i].pointer == nullptr) return Reach::frames;
  }
  if (any_device && any_cma) return Reach::frames;
  if (any_device) return Reach::device;
  if (!any_cma) return Reach::direct;
  if (!peer.cma) return Reach::frames;
  return any_direct ? Reach::mixed : Reach::cma;
}

Status move(link::Peer& peer, bool to_peer, const iovec* local, size_t local_count, const Piece* pieces, uint32_t count,
            const mem::Devices* devices, uint8_t of_device) {
  bool all_remote = devices == nullptr;
  for (uint32_t i = 0; i < count; ++i) all_remote = all_remote && pieces[i].pointer == nullptr;
  if (all_remote) {
    iovec remote[kMaxPieces];
    for (uint32_t i = 0; i < count; ++i) remote[i] = {reinterpret_cast<void*>(pieces[i].remote), pieces[i].length};
    return peer.cma_copy(to_peer, {local, local_count}, {remote, count});
  }
  size_t at = 0, done = 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t offset = 0;
    while (offset < pieces[i].length) {
      while (at < local_count && done == local[at].iov_len) {
        ++at;
        done = 0;
      }
      if (at == local_count) return Status::ok;
      size_t n = std::min<size_t>(pieces[i].length - offset, local[at].iov_len - done);
      auto* here = static_cast<std::byte*>(local[at].iov_base) + done;
      if (std::byte* there = pieces[i].pointer; there != nullptr) {
        if (devices != nullptr) {
          const mem::Devices::Side ours{here, (of_device >> at & 1) != 0}, theirs{there + offset, pieces[i].device};
          const Status s = to_peer ? devices->copy(theirs, ours, n) : devices->copy(ours, theirs, n);
          if (s != Status::ok) return s;
        } else if (!(to_peer ? copy_guarded_hot(there + offset, here, n) : copy_guarded_hot(here, there + offset, n))) {
          return Status::fault;
        }
      } else if (devices != nullptr) {  // the kernel copies only host memory
        constexpr size_t kBounceBytes = 1u << 20;
        n = std::min(n, kBounceBytes);
        const std::unique_ptr<std::byte[]> bounce(new (std::nothrow)
                                                      std::byte[n]);  // nothrow: the lock may be released
        if (bounce == nullptr) return Status::no_memory;
        const iovec l{bounce.get(), n}, r{reinterpret_cast<void*>(pieces[i].remote + offset), n};
        const mem::Devices::Side ours{here, (of_device >> at & 1) != 0}, between{bounce.get(), false};
        Status s = to_peer ? devices->copy(between, ours, n) : Status::ok;
        if (s == Status::ok) s = peer.cma_copy(to_peer, {&l, 1}, {&r, 1});
        if (s == Status::ok && !to_peer) s = devices->copy(ours, between, n);
        if (s != Status::ok) return s;
      } else {
        const iovec l{here, n}, r{reinterpret_cast<void*>(pieces[i].remote + offset), n};
        if (const Status s = peer.cma_copy(to_peer, {&l, 1}, {&r, 1}); s != Status::ok) return s;
      }
      offset += n;
      done += n;
    }
  }
  return Status::ok;
}

}  // namespace weft::nic
