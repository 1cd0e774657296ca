// cpp/nic/serve.cpp: serves the frames of peers: accesses to this process's memory, and the answers.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "mem/guard.hpp"
#include "nic/nic.hpp"
#include "nic/parking.hpp"

namespace weft::nic {

using mem::copy_guarded;

void Nic::on_frame(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                   std::span<const std::byte> payload) {
  count_frame();
  if (parts_.trace != nullptr) [[unlikely]] {
    TraceRecord r;
    r.t_ns = parts_.trace->now_ns();
    take_frame(peer, frame, payload);
    if (!wire::is_request(frame.kind)) return;
    r.duration_ns = parts_.trace->now_ns() - r.t_ns;
    r.kind = TraceKind::served;
    r.what = static_cast<uint8_t>(frame.kind);
    r.id = frame.op_id;
    r.bytes = payload.size();
    r.peer = frame.source.pid;
    r.endpoint = TraceRecord::kNoEndpoint;
    parts_.trace->add(r);
    return;
  }
  take_frame(peer, frame, payload);
}

[[gnu::always_inline]] inline void Nic::take_frame(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                                                   std::span<const std::byte> payload) {
  progress_mutex_.assert_held();
  switch (frame.kind) {
    case wire::FrameKind::answer:
      on_answer(peer, frame, payload);
      return;
    case wire::FrameKind::message:
      if (owed_.empty() || !must_follow(*peer)) [[likely]] {
        serve_safely(peer, frame, payload);
      } else {
        defer(peer, frame, payload, true);
      }
      return;
    case wire::FrameKind::reply:
      on_reply(peer, frame);
      return;
    case wire::FrameKind::done:
    case wire::FrameKind::ready:
    case wire::FrameKind::help:
      on_done(peer, frame);
      return;
    case wire::FrameKind::leave:
      if (owed_.empty() || !defer_leave(peer, frame)) on_leave(peer, frame);
      return;
    case wire::FrameKind::reduce:
      on_reduce(peer, frame, payload);
      return;
    case wire::FrameKind::notice: {
      mem::MrView view;
      const bool read = (frame.flags & wire::kFrameIsRead) != 0;
      const Status s = table().check(frame.source, frame.ep_index, frame.ep_generation, frame.access.key,
                                     frame.access.addr, 0, 0, view);
      local_event(peer, frame, s == Status::ok ? view : mem::MrView{}, read, frame.access.length);
      return;
    }
    case wire::FrameKind::write:
      if (owed_.empty() && serve_write(peer, frame, payload)) [[likely]]
        return;
      [[fallthrough]];
    default:
      if (!owed_.empty() && must_follow(*peer)) {
        defer(peer, frame, payload, true);
      } else {
        serve_safely(peer, frame, payload);
      }
  }
}

void Nic::serve_safely(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                       std::span<const std::byte> payload) noexcept {
  try {
    if (frame.kind == wire::FrameKind::message) {
      on_message(peer, frame, payload);
    } else if (frame.kind == wire::FrameKind::leave) {
      on_leave(peer, frame);
    } else {
      serve(peer, frame, payload);
    }
  } catch (const std::exception&) {  // thrown before an answer was sent
    answer(peer, frame, Status::no_memory, {});
  }
}

// HOT. Serves a write to plain memory without options; false: nothing was done, take the long path. Touches the
// endpoint's and the region's entry, the target's lines, and the link's lines for the answer.
bool Nic::serve_write(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                      std::span<const std::byte> payload) {
  progress_mutex_.assert_held();
  if (!announced_.empty() || (frame.flags & wire::kFrameCommit) != 0 || is_cut_off(frame)) [[unlikely]]
    return false;
  mem::MrView view;
  Status status = Status::ok;
  {
    const Guard serving(serve_lock_);  // SYNC POINT: quiesce() takes this lock after revoking the key
    if (table().check(frame.source, frame.ep_index, frame.ep_generation, frame.access.key, frame.access.addr,
                      frame.access.length, mem::kRemoteWrite, view) != Status::ok) [[unlikely]]
      return false;
    const mem::MrEntry& e = *view.entry;
    if ((e.access & mem::kMrSingleUse) != 0 || e.segment == mem::kIovSegment || e.segment == mem::kDeviceSegment ||
        frame.access.frag_offset > frame.access.length ||
        payload.size() > frame.access.length - frame.access.frag_offset) [[unlikely]]
      return false;
    auto* const here = reinterpret_cast<std::byte*>(e.local_addr + view.offset + frame.access.frag_offset);
    if (!payload.empty() && !copy_guarded(here, payload.data(), payload.size())) [[unlikely]]
      status = Status::fault;
  }
  if (status != Status::ok) [[unlikely]] {
    answer(peer, frame, status, {});
    return true;
  }
  const uint8_t room =
      (frame.flags & wire::kFrameLast) != 0 ? local_event(peer, frame, view, false, frame.access.length) : uint8_t{0};
  answer(peer, frame, Status::ok, {}, room);
  return true;
}

// Serves an access that the initiator cannot make itself. The link has checked the form of the frame; this checks its
// rights.
void Nic::serve(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload) {
  progress_mutex_.assert_held();
  if (peer->dead()) return;  // the connection was dropped after this frame was sent
  if (frame.kind == wire::FrameKind::cm) {
    answer(peer, frame, on_cm(frame, payload), {});
    return;
  }
  if (frame.kind == wire::FrameKind::pull) {
    serve_pull(peer, frame);
    return;
  }
  if (frame.kind == wire::FrameKind::atomic && frame.atomic_op == wire::kCallOp) {
    parking_->serve(peer, frame, payload);
    return;
  }
  if (frame.kind == wire::FrameKind::check && (frame.flags & wire::kFrameHasData) != 0) {
    uint8_t room = 0;
    const Status found = room_of(frame, &room);
    answer(peer, frame, found, {}, room);
    return;
  }
  if (is_cut_off(frame)) [[unlikely]] {
    answer(peer, frame, Status::unreachable, {});
    return;
  }
  uint64_t total = frame.access.length;
  if (const Status failed = announced(peer, frame, &total); failed != Status::ok) {
    answer(peer, frame, failed, {});
    return;
  }
  const auto family = static_cast<AtomicFamily>(frame.family);
  const auto op = static_cast<AtomicOp>(frame.atomic_op);
  const auto datatype = static_cast<Datatype>(frame.datatype);
  const bool atomic = frame.kind == wire::FrameKind::atomic ||
                      (frame.kind == wire::FrameKind::check && (frame.flags & wire::kFrameIsAtomic) != 0);
  uint32_t want = mem::kRemoteWrite;
  bool read = false;
  if (atomic) {
    if (frame.family > static_cast<uint8_t>(AtomicFamily::compare)) {
      answer(peer, frame, Status::protocol, {});
      return;
    }
    read = family != AtomicFamily::base;
    want = want_of(family, op);
  } else if (frame.kind == wire::FrameKind::read || (frame.flags & wire::kFrameIsRead) != 0) {
    read = true;
    want = mem::kRemoteRead;
  }

  if (frame.kind == wire::FrameKind::check) {
    Announced found{frame.op_id, 0, Status::ok};
    for (size_t at = 0; at + sizeof(wire::RmaRange) <= payload.size() && found.status == Status::ok;
         at += sizeof(wire::RmaRange)) {
      wire::RmaRange range;
      std::memcpy(&range, payload.data() + at, sizeof(range));
      mem::MrView view;
      found.status = table().check(frame.source, frame.ep_index, frame.ep_generation, range.key, range.addr,
                                   range.length, want, view);
      found.total += range.length;
    }
    auto& list = announced_[peer.get()];
    if (list.size() == kAnnouncedMax) list.pop_front();
    list.push_back(found);
    answer(peer, frame, found.status, {});
    return;
  }

  std::vector<std::byte> bounce;
  std::span<const std::byte> back;
  Status status;
  bool single_use = false;
  std::vector<iovec> written;  // ranges of a persistent region to flush
  const bool commit = (frame.flags & wire::kFrameCommit) != 0 && !(read && !atomic);
  std::unique_lock serving(serve_lock_);  // SYNC POINT: quiesce() takes this lock after revoking the key
  mem::MrView view;
  status = table().check(frame.source, frame.ep_index, frame.ep_generation, frame.access.key, frame.access.addr,
                         frame.access.length, want, view);
  if (status == Status::ok) {
    const mem::MrEntry& e = *view.entry;
    single_use = (e.access & mem::kMrSingleUse) != 0;
    // The bytes of [offset, offset + n) of the region as pieces of our own memory.
    uint64_t begin = 0, n = 0;
    if (atomic) {
      n = frame.access.length;
      const size_t size = datatype_size(datatype);
      const size_t operands = (op == AtomicOp::atomic_read ? 0 : 1) + (family == AtomicFamily::compare ? 1 : 0);
      if (size == 0 || !atomic_valid(datatype, op, family) || n % size != 0 || n > limits_.atomic_bytes_max) {
        status = Status::unsupported;
      } else if (payload.size() < operands * n) {
        status = Status::protocol;
      }
    } else if (frame.kind == wire::FrameKind::write) {
      begin = frame.access.frag_offset;
      n = payload.size();
    } else {
      begin = frame.access.frag_offset;
      n = static_cast<uint64_t>(std::max(frame.status, 0));
      if (n > peer->payload_max) status = Status::protocol;
    }
    if (status == Status::ok && (begin > frame.access.length || n > frame.access.length - begin))
      status = Status::protocol;
    if (status == Status::ok && commit && (e.access & mem::kMrPersistent) == 0) status = Status::unsupported;
    if (status == Status::ok) {
      uint64_t offset = view.offset + begin, left = n, done = 0;
      mem::IovEntry single{e.local_addr, e.length, e.where, e.segment, 0};
      std::span<const mem::IovEntry> list = e.segment == mem::kIovSegment ? table().iov(e) : std::span(&single, 1);
      const auto of_device = [](const mem::IovEntry& iov) { return iov.segment == mem::kDeviceSegment; };
      if (read && (list.size() > 1 || atomic || std::ranges::any_of(list, of_device))) bounce.resize(n);
      for (const mem::IovEntry& iov : list) {
        if (offset >= iov.length && !(iov.length == 0 && left == 0)) {
          offset -= iov.length;
          continue;
        }
        const uint64_t m = std::min(left, iov.length - offset);
        auto* here = reinterpret_cast<std::byte*>(iov.local_addr + offset);
        if (m == 0) break;
        if (atomic) {
          if (reinterpret_cast<uintptr_t>(here) % atomic_alignment(datatype) != 0) {
            status = Status::misaligned;
            break;
          }
          std::byte* word = here;
          std::vector<std::byte> copy;
          const bool device = of_device(iov);
          if (device) {
            // Model: hardware sends an atomic over PCIe. Here the update is atomic with respect to the fabric's
            // operations, which this engine serializes, but not to the device's own accesses.
            copy.resize(m);
            word = copy.data();
            status = parts_.devices->copy({word, false}, {here, true}, m);
            if (status != Status::ok) break;
          }
          // A turn of the engine: one at a time, because of serve_lock_.
          const bool turns = (e.access & mem::kMrTurns) != 0;
          mem::Gate* const gate = turns ? segments().gate(iov.segment) : nullptr;
          mem::Gate::Slot* const turn_slot = gate != nullptr ? gate->slot_of(updater(kEngineUpdater)) : nullptr;
          std::optional<mem::BlockTurn> alone;  // where no slot is free
          if (gate != nullptr && turn_slot == nullptr) alone.emplace(gate, updater(kEngineUpdater));
          const mem::ElementTurn turn(turn_slot);
          if (alone && !alone->taken()) {
            status = Status::timeout;
            break;
          }
          const std::byte* operand = op == AtomicOp::atomic_read ? nullptr : payload.data() + done;
          const std::byte* compare = family == AtomicFamily::compare ? payload.data() + n + done : nullptr;
          if (!atomic_guarded(op, datatype, word, operand, compare, read ? bounce.data() + done : nullptr,
                              m / datatype_size(datatype))) {
            status = Status::fault;
          }
          if (device && status == Status::ok) status = parts_.devices->copy({here, true}, {word, false}, m);
        } else if (read) {
          if (bounce.empty()) {
            back = {here, m};
          } else if (of_device(iov)) {
            status = parts_.devices->copy({bounce.data() + done, false}, {here, true}, m);
          } else if (!copy_guarded(bounce.data() + done, here, m)) {
            status = Status::fault;
          }
        } else if (of_device(iov)) {
          status = parts_.devices->copy({here, true}, {payload.data() + done, false}, m);
        } else if (!copy_guarded(here, payload.data() + done, m)) {
          status = Status::fault;
        }
        if (status != Status::ok) break;
        if (commit) written.push_back({here, m});
        offset = 0;
        left -= m;
        done += m;
        if (left == 0) break;
      }
      if (!bounce.empty()) back = bounce;
    }
  }
  if (status == Status::ok && frame.kind == wire::FrameKind::read && !back.empty()) {
    // The link copies the answer out of the region under the lock, so the region cannot be closed; it reports a failed
    // page.
    wire::Frame f = frame;
    f.kind = wire::FrameKind::answer;
    f.status = 0;
    const Status sent = peer->link()->submit(*peer, f, back);
    if (sent == Status::ok && single_use && (frame.flags & wire::kFrameLast) != 0) table().use_up(view.slot);
    serving.unlock();
    if (sent == Status::again) defer(peer, frame, {}, true);
    if (sent == Status::fault) answer(peer, frame, sent, {});
    if (sent == Status::ok && (frame.flags & wire::kFrameLast) != 0) local_event(peer, frame, view, true, total);
    return;
  }
  if (status == Status::ok && single_use && (frame.flags & wire::kFrameLast) != 0) table().use_up(view.slot);
  serving.unlock();
  // Flush without the lock, because the disk is slow. If the region is closed during the flush, its pages may be gone,
  // which is an error.
  for (size_t i = 0; i < written.size() && status == Status::ok; ++i) {
    const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const uintptr_t from = reinterpret_cast<uintptr_t>(written[i].iov_base) & ~(page - 1);
    const uintptr_t to = reinterpret_cast<uintptr_t>(written[i].iov_base) + written[i].iov_len;
    if (::msync(reinterpret_cast<void*>(from), to - from, MS_SYNC) != 0) status = Status::fault;
  }
  uint8_t room = 0;
  if (status == Status::ok && (frame.flags & wire::kFrameLast) != 0) {
    room = local_event(peer, frame, view, read, total);
  }
  answer(peer, frame, status, back, room);
}

void Nic::answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& request, Status status,
                 std::span<const std::byte> payload, uint8_t room) noexcept {
  wire::Frame f = request;
  f.kind = wire::FrameKind::answer;
  f.flags =
      static_cast<uint8_t>((f.flags & wire::flags_mask(f.kind) & ~(wire::kFrameNoRoom | wire::kFrameRoom)) | room);
  f.status = static_cast<int32_t>(status);
  if (status != Status::ok) payload = {};
  if (peer->link()->submit(*peer, f, payload) == Status::again) {
    defer(peer, f, payload, false);
  }
}

Status Nic::announced(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, uint64_t* total) {
  progress_mutex_.assert_held();
  if (announced_.empty() || frame.kind == wire::FrameKind::check) [[likely]]
    return Status::ok;
  const auto of_peer = announced_.find(peer.get());
  if (of_peer == announced_.end()) return Status::ok;
  auto& list = of_peer->second;
  const auto newest =
      std::find_if(list.rbegin(), list.rend(), [&](const Announced& a) { return a.op_id == frame.op_id; });
  if (newest == list.rend()) return Status::ok;
  const auto it = std::prev(newest.base());
  *total = it->total;
  const Status status = it->status;
  // A failed operation may have sent its last frame, or stopped at the first answer: its number is never used again.
  if ((frame.flags & wire::kFrameLast) != 0) list.erase(it);
  if (list.empty()) announced_.erase(of_peer);
  return status;
}

// True if the link of the frame's target NIC is down.
bool Nic::is_cut_off(const wire::Frame& frame) noexcept {
  return frame.traffic != 0 && frame.ep_index < mem::kEpCountMax && is_cut_off(frame.ep_index);
}

// The same of the NIC of an endpoint.
bool Nic::is_cut_off(uint32_t ep_index) noexcept {
  try {
    return telemetry_.of(mem::load_relaxed(table().ep(ep_index).address.nic)).link_down();
  } catch (const std::exception&) {  // no memory for a page
    return false;
  }
}

void Nic::count_served(const wire::Frame& frame, bool counts, uint64_t bytes) noexcept {
  if (frame.ep_index >= mem::kEpCountMax) return;
  count_at(mem::load_relaxed(table().ep(frame.ep_index).address.nic), frame.traffic & traffic::kInFrames, bytes,
           counts);
}

void Nic::count_at(uint32_t nic, uint16_t how, uint64_t bytes, bool counts) noexcept {
  try {
    TelemetryWriter(&telemetry_, &telemetry_.of(nic), TelemetryPage::kBlocks).add_target(how, bytes, counts);
  } catch (const std::exception&) {  // out of memory for a page
  }
}

// Counts a peer's access to our memory and delivers its immediate data. Returns the flag for the answer. view: of the
// access, or empty; the region may have been closed since.
uint8_t Nic::local_event(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, const mem::MrView& view,
                         bool read, uint64_t bytes) noexcept {
  // Usually no counter is bound. Peers use the same flags to decide whether to send a notice.
  const bool atomic = frame.kind == wire::FrameKind::atomic || (frame.flags & wire::kFrameIsAtomic) != 0;
  const uint32_t notify = region_notify(read, atomic, static_cast<AtomicOp>(frame.atomic_op));
  const uint32_t ep_notify = read ? mem::kEpNotifyRead : mem::kEpNotifyWrite;
  const bool of_region = view.entry != nullptr && (mem::load_relaxed(view.entry->access) & notify) != 0;
  if (frame.traffic != 0) [[unlikely]]
    count_served(frame, of_region, bytes);
  if ((frame.flags & wire::kFrameHasData) == 0 && frame.ep_index < mem::kEpCountMax &&
      (table().ep(frame.ep_index).flags.load(std::memory_order_relaxed) & ep_notify) == 0 && !of_region) [[likely]] {
    return 0;
  }
  std::unique_lock objects(objects_mutex_, std::defer_lock);
  if (of_region) objects.lock();  // for counted_regions_
  Endpoint* const ep = live_ep(frame);
  if (ep == nullptr) return 0;
  std::optional<DomainLock> guard(std::in_place, ep->domain());
  if (ep->closed()) return 0;  // since live_ep()
  Counter* const counter = ep->remote_counter(read);
  if (counter) counter->add(counter->counts_bytes ? bytes : 1);
  // fi_mr(3) fi_mr_bind: a region's counter counts accesses through an endpoint opened with FI_RMA_EVENT.
  if (of_region && (ep->config().caps & flag::kRmaEvent) != 0) {
    objects_mutex_.assert_held();
    const bool same =
        mem::generation_of(view.entry->state.load(std::memory_order_relaxed)) == mem::generation_of(view.state);
    if (const auto it = counted_regions_.find(view.slot); same && it != counted_regions_.end()) {
      if (const auto region = it->second.lock()) {
        const uint64_t events = ((notify & mem::kMrNotifyRead) != 0 ? flag::kRemoteRead : 0) |
                                ((notify & mem::kMrNotifyWrite) != 0 ? flag::kRemoteWrite : 0);
        for (const auto& [c, flags] : region->counters()) {
          if ((flags & events) != 0) c->add(c->counts_bytes ? bytes : 1);
        }
      }
    }
  }
  if ((frame.flags & wire::kFrameHasData) != 0 && ep->rx_queue() != nullptr) {
    CqEntry entry;
    entry.flags = (atomic ? flag::kAtomic : flag::kRma) | flag::kRemoteWrite | flag::kRemoteCqData;
    entry.len = bytes;
    entry.data = frame.access.data;
    entry.source = ep->av().shown(ep->av().find(frame.source));
    bool over = false;
    const uint8_t room = ep->receive_data(*peer, entry, &over);
    if (over) {
      guard.reset();
      if (objects.owns_lock()) objects.unlock();
      hang_up(peer, Status::protocol);
    }
    return room;
  }
  return 0;
}

}  // namespace weft::nic
