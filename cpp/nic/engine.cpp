// cpp/nic/engine.cpp: what the NIC does while its application does not call: frames, connections, waiting operations.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "nic/nic.hpp"

namespace weft::nic {

namespace {

constexpr size_t kFrameBudget = 256;      // a round
constexpr uint32_t kBusyRounds = 16;      // that find frames, until connections are looked at in spite of them
constexpr int64_t kSnoozeNs = 1'000'000;  // while an application thread polls, the engine looks in once a while
constexpr uint64_t kAnySlot = 0xffffff;   // long activity that covers several regions

uint64_t activity_slot(uint64_t word) noexcept {
  return word >> 1 & 0xffffff;
}

}  // namespace

// ---- progress ----------------------------------------------------------------------------------------------------

size_t Nic::progress(bool events) {
  const std::unique_lock lock(progress_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return 0;
  return progress_locked(events);
}

// What peers cause is caught where it is caused; what is left here is our own want of memory, and is tried again.
size_t Nic::progress_locked(bool events) noexcept try {
  size_t n = 0;
  for (link::Link* link : parts_.links) {
    // A thread that polls has seen by the hints which link has something; an empty poll of another costs it 60 ns.
    if (events || link->maybe_ready()) n += link->poll(*this, kFrameBudget);
  }
  // Where frames are, the next ones are more urgent than connections, which take system calls to look at.
  if (events && (n == 0 || ++busy_rounds_ % kBusyRounds == 0)) {
    size_t happened = 0;
    for (link::Link* link : parts_.links) happened += link->poll_events(*this);
    if (n != 0 || !has_engine()) mem::keep_fault_handler();  // an engine that is not so busy does it when it wakes
    if (happened != 0) {
      if (segments().resting()) segments().look_at_holds();  // a peer may have rung because it holds a place no more
      // SYNC POINT: it may have been the doorbell's signal. Whoever takes it takes the frame that it was for, published
      // after the poll above; and a thread that sleeps must arm the doorbell again, or later frames ring no more.
      size_t frames = 0;
      for (link::Link* link : parts_.links) frames += link->poll(*this, kFrameBudget);
      if (frames >= kFrameBudget || sleepers_.load(std::memory_order_seq_cst) != 0) parts_.waiter->wake();
      n += happened + frames;
    }
  }
  if (!owed_.empty()) n += retry_deferred();
  if (waiting_ops_.load(std::memory_order_relaxed) != 0) n += pump_all();
  return n;
} catch (const std::exception&) {
  return 0;
}

size_t Nic::pump_all() {
  size_t n = 0;
  const std::lock_guard objects(objects_mutex_);
  for (Domain* domain : domains_) {
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    std::vector<std::shared_ptr<PeerEp>> targets;
    for (const auto& weak : domain->peer_eps_) {
      if (auto target = weak.lock(); target && !target->waiting.empty()) targets.push_back(std::move(target));
    }
    for (const auto& target : targets) n += domain->pump(*target);
  }
  return n;
}

void Nic::start_engine() {
  stopping_.store(false);
  // Signals are the application's: none may be delivered to this thread, where no handler's effect would be seen.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  engine_ = std::thread([this] { engine_loop(); });
  has_engine_.store(true, std::memory_order_relaxed);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

void Nic::stop_engine() noexcept {
  if (!engine_.joinable()) return;
  stopping_.store(true, std::memory_order_seq_cst);
  parts_.waiter->wake();
  engine_.join();
  has_engine_.store(false, std::memory_order_relaxed);
}

void Nic::engine_loop() {
  uint64_t seen_polls = app_polls_.load(std::memory_order_relaxed);
  while (!stopping_.load(std::memory_order_acquire)) {
    size_t n = 0;
    {
      // A polling application thread may be at it; then there is nothing for us to do.
      const std::unique_lock lock(progress_mutex_, std::try_to_lock);
      if (lock.owns_lock()) n = progress_locked(true);
    }
    if (n != 0) continue;
    const uint64_t polls = app_polls_.load(std::memory_order_relaxed);
    if (polls != seen_polls && !engine_armed_.load(std::memory_order_relaxed)) {
      // The application polls: let it. Nobody rings our doorbell, which saves its peers a system call a frame.
      seen_polls = polls;
      for (link::Link* link : parts_.links) link->leave_to_polls();
      parts_.waiter->wait(kSnoozeNs);
      mem::keep_fault_handler();
      continue;
    }
    engine_armed_.store(false, std::memory_order_relaxed);
    seen_polls = polls;
    bool idle = true;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);  // before the doorbell is armed; see progress_locked()
    // SYNC POINT: first the word, then the look; need_engine() looks at the word after it has counted what waits.
    engine_rests_.store(true, std::memory_order_seq_cst);
    bool timers = must_look_again();
    for (link::Link* link : parts_.links) {
      idle = link->prepare_sleep() && idle;
      timers = timers || link->has_timers();
    }
    if (idle) {
      engine_wakes_.fetch_add(1, std::memory_order_relaxed);
      parts_.waiter->wait(timers ? kSnoozeNs : -1);
      mem::keep_fault_handler();  // the application may have installed handlers meanwhile
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    engine_rests_.store(false, std::memory_order_relaxed);
  }
}

void Nic::need_engine() noexcept {
  if (!engine_rests_.load(std::memory_order_seq_cst)) [[likely]]
    return;
  if (engine_rests_.exchange(false, std::memory_order_seq_cst)) parts_.waiter->wake();
}

void Nic::prepare_app_sleep() {
  if (!has_engine()) return;
  // The engine may be snoozing because we polled; arm the links for it, so that the next frame wakes it at once.
  engine_armed_.store(true, std::memory_order_relaxed);
  bool idle = true;
  for (link::Link* link : parts_.links) idle = link->prepare_sleep() && idle;
  if (!idle || waiting_ops_.load(std::memory_order_relaxed) != 0) parts_.waiter->wake();
}

void Nic::wait_as_engine(int64_t timeout_ns) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  bool idle = true, timers = must_look_again();
  for (link::Link* link : parts_.links) {
    idle = link->prepare_sleep() && idle;
    timers = timers || link->has_timers();
  }
  if (idle) parts_.waiter->wait(timers && (timeout_ns < 0 || timeout_ns > kSnoozeNs) ? kSnoozeNs : timeout_ns);
  mem::keep_fault_handler();
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  progress();
}

// ---- finding peers -----------------------------------------------------------------------------------------------

// With the domain's lock.
bool Nic::resolve(const std::shared_ptr<PeerEp>& target, uint32_t first) {
  // A name for other hosts that is one of this host: by the shorter ways first, by the name that they know.
  const auto links = static_cast<uint32_t>(parts_.links.size());
  const auto here = first < links ? local_name(target->address) : std::nullopt;
  for (uint32_t way = here ? first : std::max(first, links); way < 2 * links; ++way) {
    link::Link* link = parts_.links[way % links];
    link::Link::Found found;
    target->asked = way;
    switch (link->resolve(way < links ? *here : target->address, target, &found)) {
      case link::Link::Resolving::no:
        continue;
      case link::Link::Resolving::later:
        target->resolving = true;
        return true;
      case link::Link::Resolving::found:
        target->set_ready(found.peer, found.ep_index, found.ep_generation);
        return true;
    }
  }
  return false;
}

void Nic::on_resolved(const std::shared_ptr<void>& token, Status status, const std::shared_ptr<link::Peer>& peer,
                      uint32_t ep_index, uint32_t ep_generation) {
  const auto target = std::static_pointer_cast<PeerEp>(token);
  const std::lock_guard objects(objects_mutex_);
  if (std::ranges::find(domains_, target->domain) == domains_.end()) return;  // closed meanwhile
  Domain* domain = target->domain;
  const DomainLock guard(domain);
  target->resolving = false;
  try {
    if (status != Status::ok && status != Status::canceled && resolve(target, target->asked + 1)) {
      if (target->ready) domain->pump(*target);
      return;
    }
  } catch (const std::exception&) {
    status = Status::no_memory;
  }
  if (status == Status::ok) {
    target->set_ready(peer, ep_index, ep_generation);
    domain->pump(*target);
    return;
  }
  for (size_t left = target->waiting.size(); left != 0; --left) {
    Op* op = target->waiting.front();
    target->waiting.pop_front();
    waiting_ops_.fetch_sub(1, std::memory_order_relaxed);
    op->status = status;
    op->ep->finish(op);
  }
}

void Nic::on_segment(const std::shared_ptr<link::Peer>&) {
  // Operations that waited for it are tried again by the round that is running.
}

void Nic::on_peer_down(const std::shared_ptr<link::Peer>& peer) {
  announced_.erase(peer.get());
  parts_.devices->forget(peer.get());
  forget_deferred(*peer);
  const std::lock_guard objects(objects_mutex_);
  for (Domain* domain : domains_) {
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    const auto is_lost = [&](const Op* op) {
      return op->kind != OpKind::batch && (op->peer == peer.get() || (op->target->ready && op->target->peer == peer));
    };
    const auto end = [&](Op* op) {
      auto& waiting = op->target->waiting;
      if (const auto it = std::ranges::find(waiting, op); it != waiting.end()) {
        waiting.erase(it);
        waiting_ops_.fetch_sub(1, std::memory_order_relaxed);
      }
      op->status = peer->down_status();
      op->ep->finish(op);
    };
    // In the order of posting. Without memory for a list one at a time, which takes longer.
    std::vector<Op*> lost;
    try {
      domain->ops_.each([&](Op* op) {
        if (is_lost(op)) lost.push_back(op);
      });
    } catch (const std::bad_alloc&) {
      lost.clear();
    }
    std::ranges::sort(lost, {}, &Op::sequence);
    for (Op* op : lost) end(op);
    for (Op* first = nullptr;; first = nullptr) {
      domain->ops_.each([&](Op* op) {
        if (is_lost(op) && (first == nullptr || op->sequence < first->sequence)) first = op;
      });
      if (first == nullptr) break;
      end(first);
    }
    for (const std::shared_ptr<Endpoint>& ep : eps_) {
      if (!ep || ep->domain_ != domain || !ep->cm_ || ep->fixed_dest_ >= ep->av_->entries_.size()) continue;
      const auto& target = ep->av_->entries_[ep->fixed_dest_];
      if (!target || !target->ready || target->peer != peer) continue;
      CmEvent event;
      event.token = ep->cm_token_;
      event.kind = CmKind::lost;
      event.status = peer->down_status();
      (void)ep->cm_->push(std::move(event));
    }
    for (const auto& weak : domain->peer_eps_) {
      // The next operation asks again: another process may have taken the address by then.
      if (auto target = weak.lock(); target && target->ready && target->peer == peer) {
        target->set_lost();
        target->peer = nullptr;
        target->down = peer->down_status();
      }
    }
  }
  downs_.fetch_add(1, std::memory_order_seq_cst);
  for (const std::shared_ptr<Endpoint>& ep : eps_) {  // who sleeps until something happens may want to know
    if (ep && ep->tx_cq_) ep->tx_cq_->event.notify();
  }
}

// ---- serving peers' frames ---------------------------------------------------------------------------------------

void Nic::on_frame(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                   std::span<const std::byte> payload) {
  count_frame();
  switch (frame.kind) {
    case wire::FrameKind::answer:
      on_answer(peer, frame, payload);
      return;
    case wire::FrameKind::notice: {
      mem::MrView view;
      const bool read = (frame.flags & wire::kFrameIsRead) != 0;
      const Status s =
          table().check(frame.source, frame.ep_index, frame.ep_generation, frame.key, frame.addr, 0, 0, view);
      local_event(peer, frame, s == Status::ok ? view.slot : mem::TableView::kNoSlot, read, frame.length);
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
    serve(peer, frame, payload);
  } catch (const std::exception&) {  // thrown before anything was answered
    answer(peer, frame, Status::no_memory, {});
  }
}

// HOT. A write into plain memory of which nothing more is asked; false: nothing was done, take the long way. Touches
// the endpoint's entry and the region's, the target's lines, and what the link sends the answer by.
bool Nic::serve_write(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                      std::span<const std::byte> payload) {
  if (!announced_.empty() || (frame.flags & wire::kFrameCommit) != 0) [[unlikely]]
    return false;
  uint32_t slot;
  Status status = Status::ok;
  {
    const std::lock_guard serving(serve_lock_);  // SYNC POINT: quiesce() takes it after it has revoked the key
    mem::MrView view;
    if (table().check(frame.source, frame.ep_index, frame.ep_generation, frame.key, frame.addr, frame.length,
                      mem::kRemoteWrite, view) != Status::ok) [[unlikely]]
      return false;
    const mem::MrEntry& e = *view.entry;
    if ((e.access & mem::kMrSingleUse) != 0 || e.segment == mem::kIovSegment || e.segment == mem::kDeviceSegment ||
        frame.frag_offset > frame.length || payload.size() > frame.length - frame.frag_offset) [[unlikely]]
      return false;
    auto* const here = reinterpret_cast<std::byte*>(e.local_addr + view.offset + frame.frag_offset);
    if (!payload.empty() && !copy_guarded(here, payload.data(), payload.size())) [[unlikely]]
      status = Status::fault;
    slot = view.slot;
  }
  if (status != Status::ok) [[unlikely]] {
    answer(peer, frame, status, {});
    return true;
  }
  const uint8_t room =
      (frame.flags & wire::kFrameLast) != 0 ? local_event(peer, frame, slot, false, frame.length) : uint8_t{0};
  answer(peer, frame, Status::ok, {}, room);
  return true;
}

// An access that the initiator could not make itself. Its frame was checked for form; here for right.
void Nic::serve(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload) {
  if (peer->dead()) return;  // it was hung up on, and this came before
  if (frame.kind == wire::FrameKind::cm) {
    answer(peer, frame, on_cm(frame, payload), {});
    return;
  }
  if (frame.kind == wire::FrameKind::check && (frame.flags & wire::kFrameHasData) != 0) {
    uint8_t room = 0;
    const Status found = room_of(frame, &room);
    answer(peer, frame, found, {}, room);
    return;
  }
  uint64_t total = frame.length;
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
  uint32_t slot = mem::TableView::kNoSlot;
  bool single_use = false;
  std::vector<iovec> written;  // of a persistent region: to be flushed
  const bool commit = (frame.flags & wire::kFrameCommit) != 0 && !(read && !atomic);
  std::unique_lock serving(serve_lock_);  // SYNC POINT: quiesce() takes it after it has revoked the key
  mem::MrView view;
  status =
      table().check(frame.source, frame.ep_index, frame.ep_generation, frame.key, frame.addr, frame.length, want, view);
  if (status == Status::ok) {
    slot = view.slot;
    const mem::MrEntry& e = *view.entry;
    single_use = (e.access & mem::kMrSingleUse) != 0;
    // The bytes of [offset, offset + n) of the region as pieces of our own memory.
    uint64_t begin = 0, n = 0;
    if (atomic) {
      n = frame.length;
      const size_t size = datatype_size(datatype);
      const size_t operands = (op == AtomicOp::atomic_read ? 0 : 1) + (family == AtomicFamily::compare ? 1 : 0);
      if (size == 0 || !atomic_valid(datatype, op, family) || n % size != 0 || n > limits_.atomic_bytes_max) {
        status = Status::unsupported;
      } else if (payload.size() < operands * n) {
        status = Status::protocol;
      }
    } else if (frame.kind == wire::FrameKind::write) {
      begin = frame.frag_offset;
      n = payload.size();
    } else {
      begin = frame.frag_offset;
      n = static_cast<uint64_t>(std::max(frame.status, 0));
      if (n > peer->payload_max) status = Status::protocol;
    }
    if (status == Status::ok && (begin > frame.length || n > frame.length - begin)) status = Status::protocol;
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
            // Model: hardware sends an atomic over PCIe. Here it is atomic among the fabric's operations, which all
            // come by this engine, and not with the device's own.
            copy.resize(m);
            word = copy.data();
            status = parts_.devices->copy({word, false}, {here, true}, m);
            if (status != Status::ok) break;
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
    // The answer is copied out of the region while it cannot be closed; the link says so where a page of it failed.
    wire::Frame f = frame;
    f.kind = wire::FrameKind::answer;
    f.status = 0;
    const Status sent = peer->link()->submit(*peer, f, back);
    if (sent == Status::ok && single_use && (frame.flags & wire::kFrameLast) != 0) table().begin_close(slot);
    serving.unlock();
    if (sent == Status::again) defer(peer, frame, {}, true);
    if (sent == Status::fault) answer(peer, frame, sent, {});
    if (sent == Status::ok && (frame.flags & wire::kFrameLast) != 0) local_event(peer, frame, slot, true, total);
    return;
  }
  if (status == Status::ok && single_use && (frame.flags & wire::kFrameLast) != 0) table().begin_close(slot);
  serving.unlock();
  // Without the lock: the disk takes its time. A region closed meanwhile may have lost its pages, which is an error.
  for (size_t i = 0; i < written.size() && status == Status::ok; ++i) {
    const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const uintptr_t from = reinterpret_cast<uintptr_t>(written[i].iov_base) & ~(page - 1);
    const uintptr_t to = reinterpret_cast<uintptr_t>(written[i].iov_base) + written[i].iov_len;
    if (::msync(reinterpret_cast<void*>(from), to - from, MS_SYNC) != 0) status = Status::fault;
  }
  uint8_t room = 0;
  if (status == Status::ok && (frame.flags & wire::kFrameLast) != 0) {
    room = local_event(peer, frame, slot, read, total);
  }
  answer(peer, frame, status, back, room);
}

std::optional<uint64_t> Nic::missing_page(uint64_t address, uint64_t length) {
  if (length == 0) return std::nullopt;
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  constexpr size_t kAtOnce = 64;
  std::array<std::byte, kAtOnce> bytes;
  const auto readable = [&](uint64_t first, size_t count) {  // a byte of each page
    std::array<iovec, kAtOnce> pages;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t at = i == 0 ? first : (first & ~(page - 1)) + i * page;
      pages[i] = {reinterpret_cast<void*>(at), 1};
    }
    const iovec here{bytes.data(), count};
    for (link::Link* link : parts_.links) {
      for (const auto& peer : link->peers()) {
        if (peer->same_process) {
          return peer->cma_copy(false, {&here, 1}, std::span(pages).first(count)) == Status::ok;
        }
      }
    }
    return false;
  };
  const uint64_t end = address + length;
  for (uint64_t at = address; at < end;) {
    const uint64_t pages_left = ((end - 1) / page) - (at / page) + 1;
    const size_t count = static_cast<size_t>(std::min<uint64_t>(pages_left, kAtOnce));
    if (!readable(at, count)) {
      for (size_t i = 0; i < count; ++i) {
        const uint64_t single = i == 0 ? at : (at & ~(page - 1)) + i * page;
        if (!readable(single, 1)) return single;
      }
    }
    at = (at & ~(page - 1)) + count * page;
  }
  return std::nullopt;
}

void Nic::answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& request, Status status,
                 std::span<const std::byte> payload, uint8_t room) noexcept {
  wire::Frame f = request;
  f.kind = wire::FrameKind::answer;
  f.flags = static_cast<uint8_t>((f.flags & ~(wire::kFrameNoRoom | wire::kFrameRoom)) | room);
  f.status = static_cast<int32_t>(status);
  if (status != Status::ok) payload = {};
  if (peer->link()->submit(*peer, f, payload) == Status::again) {
    defer(peer, f, payload, false);
  }
}

Status Nic::announced(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, uint64_t* total) {
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
  // A failed operation may have sent its last frame, or have stopped at the first answer: its numbers never come again.
  if ((frame.flags & wire::kFrameLast) != 0) list.erase(it);
  if (list.empty()) announced_.erase(of_peer);
  return status;
}

void Nic::on_answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                    std::span<const std::byte> payload) noexcept {
  peer->end_request();  // also of an operation that was canceled meanwhile
  const uint32_t index = OpTable::domain_of(frame.op_id);
  const std::lock_guard objects(objects_mutex_);
  if (index >= domains_.size() || domains_[index] == nullptr) return;
  Domain* domain = domains_[index];
  const DomainLock guard(domain);
  Op* op = domain->ops_.find(frame.op_id);
  if (op == nullptr || op->peer != peer.get() || op->frames_out == 0) return;  // canceled, or not this peer's to answer
  const auto status = static_cast<Status>(frame.status);
  if ((frame.flags & (wire::kFrameNoRoom | wire::kFrameRoom)) != 0) [[unlikely]] {
    op->target->no_room = (frame.flags & wire::kFrameNoRoom) != 0;
    if (!op->target->no_room) op->target->ask_room_wait_ns = op->target->ask_room_at_ns = 0;
  }
  op->asks_room = false;
  if (status != Status::ok) {
    if (op->status == Status::ok) op->status = status;
  } else if (!payload.empty()) {
    const uint64_t offset = op->kind == OpKind::read ? frame.imm_data : frame.frag_offset;
    if (offset > op->total || payload.size() > op->total - offset) {
      op->status = Status::protocol;
    } else if (op->kind == OpKind::read || op->kind == OpKind::atomic) {
      const bool read = op->kind == OpKind::read;
      const std::span<const iovec> list(read ? op->local : op->result, read ? op->local_count : op->result_count);
      const Status landed = scatter(list, offset, payload.data(), payload.size());
      if (landed != Status::ok && op->status == Status::ok) op->status = landed;
    }
  }
  --op->frames_out;
  if (op->frames_out == 0 && op->submitted && op->target->waiting.empty()) [[likely]] {
    op->ep->finish(op);
    return;
  }
  const std::shared_ptr<PeerEp> target = op->target;
  if (op->frames_out == 0 && op->submitted) {
    op->ep->finish(op);
  } else if (op->status != Status::ok && !op->submitted) {
    // It failed while the rest of it still waits to be sent: send no more.
    if (const auto waiting = std::ranges::find(target->waiting, op); waiting != target->waiting.end()) {
      target->waiting.erase(waiting);
      waiting_ops_.fetch_sub(1, std::memory_order_relaxed);
    }
    op->submitted = true;
    if (op->frames_out == 0) op->ep->finish(op);
  }
  if (!target->waiting.empty()) domain->pump(*target);
}

Status Nic::on_cm(const wire::Frame& frame, std::span<const std::byte> payload) {
  const auto kind = static_cast<CmKind>(frame.atomic_op);
  if (kind < CmKind::request || kind > CmKind::shutdown || payload.size() > kCmDataMax) return Status::protocol;
  const std::lock_guard objects(objects_mutex_);
  if (frame.ep_index >= eps_.size()) return Status::no_endpoint;
  const std::shared_ptr<Endpoint> ep = eps_[frame.ep_index];
  if (!ep || ep->generation_ != frame.ep_generation) return Status::no_endpoint;
  const DomainLock guard(ep->domain_);
  if (!ep->cm_ || (kind == CmKind::request && !ep->listens_)) return Status::no_endpoint;  // nobody listens
  CmEvent event;
  event.token = ep->cm_token_;
  event.kind = kind;
  event.source = frame.source;
  event.connection = frame.imm_data;
  event.data.assign(payload.begin(), payload.end());
  if (!ep->cm_->push(std::move(event))) return Status::backlog;
  // At once, not when the application reads of it: a peer that has accepted may write, one that left may not.
  if (kind == CmKind::accept && frame.imm_data == ep->cm_request_) {
    table().set_ep_peer(frame.ep_index, frame.source);
  } else if (kind == CmKind::shutdown && mem::peer_of(table().ep(frame.ep_index)) == frame.source) {
    table().set_ep_peer(frame.ep_index, {~uint32_t{0}, 0, 0, 0});
  }
  return Status::ok;
}

// The answer to a peer that asks whether an endpoint's queue takes data again.
Status Nic::room_of(const wire::Frame& frame, uint8_t* room) const {
  const std::lock_guard objects(objects_mutex_);
  if (frame.ep_index >= eps_.size()) return Status::no_endpoint;
  const std::shared_ptr<Endpoint> ep = eps_[frame.ep_index];
  if (!ep || ep->generation_ != frame.ep_generation) return Status::no_endpoint;
  const DomainLock guard(ep->domain_);
  *room = ep->shut_ ? wire::kFrameNoRoom : wire::kFrameRoom;
  return Status::ok;
}

// A peer accessed our memory: count it, deliver its immediate data. Returns the flag for the answer.
uint8_t Nic::local_event(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, uint32_t slot, bool read,
                         uint64_t bytes) noexcept {
  // Mostly nobody wants to know. The flags are those by which peers decide whether to tell of a direct access.
  const bool atomic = frame.kind == wire::FrameKind::atomic || (frame.flags & wire::kFrameIsAtomic) != 0;
  const uint32_t notify = region_notify(read, atomic, static_cast<AtomicOp>(frame.atomic_op));
  const uint32_t ep_notify = read ? mem::kEpNotifyRead : mem::kEpNotifyWrite;
  if ((frame.flags & wire::kFrameHasData) == 0 && frame.ep_index < mem::kEpCountMax &&
      (table().ep(frame.ep_index).flags.load(std::memory_order_relaxed) & ep_notify) == 0 &&
      (slot == mem::TableView::kNoSlot || (mem::load_relaxed(table().mr(slot).access) & notify) == 0)) [[likely]] {
    return 0;
  }
  std::unique_lock objects(objects_mutex_);
  if (frame.ep_index >= eps_.size()) return 0;
  const std::shared_ptr<Endpoint> ep = eps_[frame.ep_index];
  if (!ep || ep->generation_ != frame.ep_generation) return 0;
  std::optional<DomainLock> guard(std::in_place, ep->domain_);
  const auto& counter = read ? ep->remote_read_cntr_ : ep->remote_write_cntr_;
  if (counter) counter->add(counter->counts_bytes ? bytes : 1);
  // fi_mr(3) fi_mr_bind: a region's counter counts what comes through an endpoint opened with FI_RMA_EVENT.
  if (slot != mem::TableView::kNoSlot && (ep->config_.caps & flag::kRmaEvent) != 0) {
    if (const auto it = counted_regions_.find(slot); it != counted_regions_.end()) {
      if (const auto region = it->second.lock()) {
        const uint64_t events = ((notify & mem::kMrNotifyRead) != 0 ? flag::kRemoteRead : 0) |
                                ((notify & mem::kMrNotifyWrite) != 0 ? flag::kRemoteWrite : 0);
        for (const auto& [c, flags] : region->counters_) {
          if ((flags & events) != 0) c->add(c->counts_bytes ? bytes : 1);
        }
      }
    }
  }
  if ((frame.flags & wire::kFrameHasData) != 0 && ep->rx_cq_) {
    CqEntry entry;
    entry.flags = (atomic ? flag::kAtomic : flag::kRma) | flag::kRemoteWrite | flag::kRemoteCqData;
    entry.len = bytes;
    entry.data = frame.imm_data;
    entry.source = ep->av_->find(frame.source);
    bool over = false;
    const uint8_t room = ep->receive_data(*peer, entry, &over);
    if (over) {
      guard.reset();
      objects.unlock();
      hang_up(peer, Status::protocol);
    }
    return room;
  }
  return 0;
}

// ---- revocation --------------------------------------------------------------------------------------------------

uint32_t Nic::begin_long_activity(uint32_t slot) noexcept {
  // With a domain's lock. A free word is odd-free: even. Contention is between domains only.
  const uint64_t coded = slot == mem::TableView::kNoSlot ? kAnySlot : slot;
  for (uint32_t at = 0;; ++at) {  // the first that is free: who waits for the words reads few
    const uint32_t index = mem::kDomainCountMax + at % mem::kLongActivityCount;
    auto& word = table().own_activity(index).word;
    uint64_t old = word.load(std::memory_order_relaxed);
    if ((old & 1) != 0) {
      cpu_relax();
      continue;
    }
    const uint64_t sequence = (old >> 25) + 1;
    if (word.compare_exchange_strong(old, sequence << 25 | coded << 1 | 1, std::memory_order_seq_cst)) return index;
  }
}

void Nic::end_long_activity(uint32_t index) noexcept {
  auto& word = table().own_activity(index).word;
  word.store(word.load(std::memory_order_relaxed) & ~uint64_t{1}, std::memory_order_release);
}

std::string Nic::quiesce(uint32_t slot) {
  {
    const std::lock_guard serving(serve_lock_);
  }
  uint64_t deadline = 0;
  // Waits for one word of a peer; false when it takes too long.
  const auto wait_for = [&](const link::Peer& peer, uint32_t index) {
    const auto& word = peer.table.activity(index).word;
    const uint64_t seen = word.load(std::memory_order_seq_cst);
    if ((seen & 1) == 0) return true;
    if (index >= mem::kDomainCountMax && activity_slot(seen) != kAnySlot && activity_slot(seen) != slot) return true;
    if (deadline == 0) deadline = parts_.clock->now_ns() + limits_.close_wait_ns;
    Backoff backoff(256, 1024);
    while (word.load(std::memory_order_acquire) == seen && !peer.dead()) {
      backoff.pause();
      if (backoff.sleeping()) progress();  // it may be dead, and without an engine nobody else would hear of it
      if (backoff.sleeping() && parts_.clock->now_ns() > deadline) return false;
    }
    return true;
  };
  for (link::Link* link : parts_.links) {
    for (const auto& peer : link->peers()) {
      if (!peer->table.valid()) continue;
      // Domains' locks first, long copies second: a long copy is announced before its lock is released. The marks are
      // the peer's word, so they are bounded here.
      const mem::TableHeader& header = peer->table.header();
      const uint32_t domains = std::min(header.domains_used.load(std::memory_order_seq_cst), mem::kDomainCountMax);
      bool done = true;
      for (uint32_t i = 0; i < domains && done; ++i) done = wait_for(*peer, i);
      const uint32_t longs = std::min(header.longs_used.load(std::memory_order_seq_cst), mem::kLongActivityCount);
      for (uint32_t i = 0; i < longs && done; ++i) done = wait_for(*peer, mem::kDomainCountMax + i);
      if (!done) {
        return peer->describe() + " has been copying to or from it for longer than " +
               std::to_string(limits_.close_wait_ns / 1'000'000'000) + " s (is it stopped?)";
      }
    }
  }
  return {};
}

// ---- objects -----------------------------------------------------------------------------------------------------

uint32_t Nic::add_domain(Domain* domain) {
  const std::lock_guard objects(objects_mutex_);
  for (uint32_t i = 0; i < domains_.size(); ++i) {
    if (domains_[i] == nullptr) {
      domains_[i] = domain;
      return i;
    }
  }
  throw Error(fi_err::kENOSPC, "all " + std::to_string(domains_.size()) + " domains of this NIC are open: close some");
}

void Nic::remove_domain(Domain* domain) noexcept {
  const std::lock_guard objects(objects_mutex_);
  if (domains_[domain->index_] != domain) return;
  domains_[domain->index_] = nullptr;
  next_op_ = std::max(next_op_, domain->ops_.next());
}

NicStatistics Nic::statistics() {
  NicStatistics s;
  const std::lock_guard objects(objects_mutex_);
  for (Domain* domain : domains_) {
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    s.direct_ops += domain->statistics.direct;
    s.cma_ops += domain->statistics.cma;
    s.framed_ops += domain->statistics.framed;
    s.failed_ops += domain->statistics.failed;
    s.bytes += domain->statistics.bytes;
  }
  s.frames_served = frames_served_.load(std::memory_order_relaxed);
  s.engine_wakes = engine_wakes_.load(std::memory_order_relaxed);
  s.waiting_ops = waiting_ops_.load(std::memory_order_relaxed);
  s.deferred = deferred_count_.load(std::memory_order_relaxed);
  for (link::Link* link : parts_.links) {
    for (const auto& peer : link->peers()) s.peers += peer->same_process ? 0 : 1;
  }
  s.regions = table().live_count();
  s.allocated_bytes = segments().allocated_bytes();
  s.resting_bytes = segments().resting_bytes();
  return s;
}

void Nic::before_fork() {
  progress_mutex_.lock();
  for (link::Link* link : parts_.links) link->before_fork();
}

void Nic::after_fork_in_parent() noexcept {
  for (link::Link* link : parts_.links) link->after_fork_in_parent();
  progress_mutex_.unlock();
}

void Nic::after_fork_in_child() noexcept {
  if (engine_.joinable()) engine_.detach();  // the thread does not exist here
  for (link::Link* link : parts_.links) link->after_fork_in_child();
  table().close_fd();
  segments().close_fds();
}

}  // namespace weft::nic
