// cpp/link/tcp_peer.cpp: see tcp_peer.hpp. Sending first, then receiving.
#include "link/tcp_peer.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "link/routes.hpp"
#include "mem/guard.hpp"

namespace weft::link {

namespace {

constexpr size_t kCopyMax = 4096;         // frames with longer payload are sent at once
constexpr size_t kBatchBytes = 16 << 10;  // small packets share a system call up to this size
// Waiting packets that acknowledge or request this much payload are sent at once: the peer's pipeline would run dry.
constexpr uint64_t kBatchCost = uint64_t{512} << 10;
constexpr size_t kOutMax = size_t{256} << 10;  // with this many waiting bytes submit() returns `again`
constexpr size_t kInBytes = size_t{32} << 10;
constexpr size_t kTailBytes = 4096;  // read ahead after a long payload: the next packet's head
constexpr int kRoundsMax = 4;        // reads of one connection before the next connection is served

// Direct system calls: the C library's recv() and send() are cancellation points, which cost 20 ns per call in a
// process with threads, even when no data has arrived.
ssize_t receive_now(int fd, void* into, size_t bytes) noexcept {
  return ::syscall(SYS_recvfrom, fd, into, bytes, MSG_DONTWAIT, nullptr, nullptr);
}
ssize_t send_now(int fd, const void* from, size_t bytes) noexcept {
  return ::syscall(SYS_sendto, fd, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT, nullptr, 0);
}

}  // namespace

Status status_of_errno(int error) noexcept {
  switch (error) {
    case ECONNREFUSED:
      return Status::no_endpoint;
    case ETIMEDOUT:
      return Status::timeout;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
      return Status::unreachable;
    case ENOMEM:
    case ENOBUFS:
    case EMFILE:
    case ENFILE:
      return Status::no_memory;
    default:
      return Status::peer_gone;
  }
}

TcpPeer::TcpPeer(Link* link, Routes& routes, UniqueFd fd, const SessionKeys& keys, const About& a, EpollSet* set,
                 uint64_t own_id)
    : Peer(link), about(a), id(own_id), routes_(routes), fd_(std::move(fd)), keys_(keys), set_(set), in_(kInBytes) {
  payload_max = wire::kTcpPayloadMax;
  unanswered_max = wire::kTcpInFlightFrames;
  cma_reason = "the peer is on another host";
}

std::string TcpPeer::describe() const {
  return "the process at " + text_of(about.host.family != 0 ? about.host : about.remote);
}

std::string TcpPeer::why() const {
  const Guard lock(why_mutex_);
  return why_;
}

void TcpPeer::fail(Status status, const std::string& why) noexcept {
  try {
    const Guard lock(why_mutex_);
    if (why_.empty()) why_ = why;
  } catch (const std::bad_alloc&) {  // fails without a reason in the text
  }
  Status ok = Status::ok;
  broken_.compare_exchange_strong(ok, status, std::memory_order_acq_rel);
}

void TcpPeer::die(Status why) {
  mark_dead(why);
  const Guard lock(send_mutex_);
  if (fd_.valid() && watched_) set_->remove(fd_.get());
  fd_.reset();
  clear_out();
  answer_ = {};
  keys_.send.forget();
  keys_.receive.forget();
}

// ---- sending -----------------------------------------------------------------------------------------------------

uint32_t TcpPeer::wanted_events() const noexcept {
  send_mutex_.assert_held();
  return EPOLLIN | EPOLLRDHUP | (wants_out_ ? uint32_t{EPOLLOUT} : 0u);
}

// Level-triggered: data present when the socket enters the set wakes the engine at once.
void TcpPeer::watch(bool watched) {
  const Guard lock(send_mutex_);
  if (watched_ == watched || !fd_.valid()) return;
  watched_ = watched;
  if (!watched) {
    set_->remove(fd_.get());
  } else if (!set_->try_add(fd_.get(), id, wanted_events())) {
    watched_ = false;
    fail(Status::no_memory, "the kernel has no memory to wait for it");
  }
}

void TcpPeer::want_out(bool wanted) {
  send_mutex_.assert_held();
  if (wants_out_ == wanted) return;
  wants_out_ = wanted;
  full_.store(wanted, std::memory_order_relaxed);
  if (!watched_) return;
  epoll_event e{};
  e.events = wanted_events();
  e.data.u64 = id;
  (void)::epoll_ctl(set_->fd(), EPOLL_CTL_MOD, fd_.get(), &e);
}

std::byte* TcpPeer::room(size_t bytes) {
  send_mutex_.assert_held();
  if (out_.size() - out_end_ < bytes) [[unlikely]] {
    if (out_at_ != 0) {  // reuse the space of bytes already sent
      std::memmove(out_.data(), out_.data() + out_at_, out_bytes());
      out_end_ -= out_at_;
      out_at_ = 0;
    }
    if (out_.size() - out_end_ < bytes) out_.resize(std::max(2 * out_.size(), out_end_ + bytes));
  }
  return out_.data() + out_end_;
}

void TcpPeer::emit_done() {
  send_mutex_.assert_held();
  std::byte* packet = room(wire::kPacketBytesMax);
  out_end_ += wire::emit_packet(keys_.send, wire::PacketType::done, std::exchange(answer_, {}), packet);
}

bool TcpPeer::flush_locked() {
  send_mutex_.assert_held();
  bool any = false;
  out_cost_ = 0;
  if (answer_.there != 0) emit_done();
  while (out_bytes() != 0) {
    const ssize_t n = send_now(fd_.get(), out_.data() + out_at_, out_bytes());
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) {
        fail(status_of_errno(errno), std::string("sending: ") + std::strerror(errno));
        break;
      }
      want_out(true);
      return any;
    }
    any = true;
    out_at_ += static_cast<size_t>(n);
  }
  clear_out();
  want_out(false);
  unflushed_.store(false, std::memory_order_relaxed);
  return any;
}

bool TcpPeer::flush() {
  const Guard lock(send_mutex_);
  if (!fd_.valid() || broken() != Status::ok || wants_out_) return false;
  return flush_locked();
}

// HOT. One system call, or none if the packet waits to share one.
Status TcpPeer::send(wire::Frame& frame, std::span<const std::byte> payload) {
  const Guard lock(send_mutex_);
  try {
    return send_locked(frame, payload);
  } catch (const std::bad_alloc&) {  // the counts no longer match the packets sent
    fail(Status::no_memory, "no memory");
    return Status::no_memory;
  }
}

Status TcpPeer::send_locked(wire::Frame& frame, std::span<const std::byte> payload) {
  send_mutex_.assert_held();
  if (dead()) return down_status();
  if (const Status status = broken(); status != Status::ok) return status;
  if (payload.size() > wire::kTcpPayloadMax) return Status::invalid;
  const bool answer = wire::is_answer(frame.kind), request = wire::is_request(frame.kind);
  frame.where = wire::PayloadWhere::none;
  const uint64_t waiting = ours_.open();
  uint32_t cost = frame.staged_chunk;  // an answer repeats the cost of its request
  if (request) {
    frame.payload_length = static_cast<uint32_t>(payload.size());
    cost = frame.staged_chunk = wire::cost_of(frame);
    if (waiting >= wire::kTcpInFlightFrames || (waiting != 0 && ours_.open_bytes() + cost > wire::kTcpInFlightBytes)) {
      if (out_bytes() != 0 || answer_.there != 0) flush_locked();
      return Status::again;
    }
  }
  // The kernel's buffer was full at the last attempt, and no poll has seen room since: do not waste a system call.
  if (wants_out_ && (payload.size() > kCopyMax || out_bytes() >= kOutMax)) return Status::again;
  if (out_bytes() >= kOutMax) flush_locked();
  if (out_bytes() >= kOutMax) return Status::again;
  // Count before sending: another thread may read the peer's answer at once.
  if (answer) {
    theirs_.end(cost);
  } else if (request) {
    ours_.begin(cost);
  }
  spoke_.store(true, std::memory_order_relaxed);
  const auto flush_if_due = [&] {
    send_mutex_.assert_held();
    if (!wants_out_ && (out_bytes() >= kBatchBytes || out_cost_ >= kBatchCost || (!answer && waiting == 0))) {
      flush_locked();
    } else {
      unflushed_.store(true, std::memory_order_relaxed);
    }
  };
  constexpr uint8_t kTells = wire::kFrameNoRoom | wire::kFrameRoom;
  if (frame.kind == wire::FrameKind::answer && frame.status == 0 && payload.empty() && (frame.flags & kTells) == 0) {
    if (answer_.there != 0) emit_done();
    answer_ = {frame.op_id, cost, 1};
    out_cost_ += cost;
    flush_if_due();
    return Status::ok;
  }
  // Seal and send a copy: the application or a peer may change the memory at any time.
  std::byte* packet = room(wire::frame_bytes(payload.size()));
  if (!payload.empty() && !mem::copy_guarded(packet + wire::payload_at(payload.size()), payload.data(), payload.size()))
      [[unlikely]] {
    if (answer) theirs_.end(cost, true);
    if (request) ours_.begin(cost, true);  // undo the count: the packet was not sent
    return Status::fault;
  }
  frame.payload_length = 0;  // the prefix contains the length
  if (answer || frame.kind == wire::FrameKind::done) frame.source = {};
  const wire::DoneBody with = std::exchange(answer_, {});
  out_end_ += wire::emit_frame(keys_.send, frame, with, payload.size(), packet);
  frame.payload_length = static_cast<uint32_t>(payload.size());
  out_cost_ += cost;
  if (payload.size() > kCopyMax && !wants_out_) {
    flush_locked();
  } else {
    flush_if_due();
  }
  return Status::ok;
}

void TcpPeer::send_control(wire::PacketType type, const wire::ResolveBody& body) {
  const Guard lock(send_mutex_);
  if (!fd_.valid() || broken() != Status::ok) return;
  // The most that can wait for a peer that keeps to the limits: packets up to kOutMax plus one frame, and the resolves
  // of both sides.
  constexpr size_t kWaitingMax =
      kOutMax + wire::kTcpPayloadMax + (2 * size_t{wire::kTcpAsksMax} + 16) * wire::kPacketBytesMax;
  if (out_bytes() >= kWaitingMax) {
    fail(Status::protocol, "the peer asks for endpoints and does not read the answers");
    return;
  }
  std::byte* packet = room(wire::kPacketBytesMax);
  out_end_ += wire::emit_packet(keys_.send, type, body, packet);
  flush_locked();
}

void TcpPeer::ping_if_silent() {
  if (spoke_.exchange(false, std::memory_order_relaxed)) return;
  const Guard lock(send_mutex_);
  if (!fd_.valid() || broken() != Status::ok || out_bytes() != 0 || answer_.there != 0) return;
  std::byte* packet = room(wire::kPacketBytesMax);
  out_end_ += wire::emit_ping(keys_.send, packet);
  flush_locked();
}

void TcpPeer::ping() {
  const Guard lock(send_mutex_);
  if (!fd_.valid() || broken() != Status::ok || wants_out_) return;
  std::byte* packet = room(wire::kPacketBytesMax);
  out_end_ += wire::emit_ping(keys_.send, packet);
  flush_locked();
}

void TcpPeer::say_goodbye() noexcept {
  try {
    const Guard lock(send_mutex_);
    if (!fd_.valid() || broken() != Status::ok || wants_out_) return;
    if (answer_.there != 0) emit_done();
    std::byte* packet = room(wire::kPacketBytesMax);
    out_end_ += wire::emit_goodbye(keys_.send, packet);
    flush_locked();
  } catch (const std::bad_alloc&) {  // the peer sees the hang-up without a goodbye
  }
}

// ---- receiving ---------------------------------------------------------------------------------------------------

// Reads bytes of the payload being collected: from the buffer first, then from the kernel.
size_t TcpPeer::read(std::span<std::byte> into) {
  if (in_begin_ != in_end_) {
    const size_t n = std::min(into.size(), in_end_ - in_begin_);
    std::memcpy(into.data(), in_.data() + in_begin_, n);
    in_begin_ += n;
    return n;
  }
  in_begin_ = in_end_ = 0;
  const iovec pieces[2] = {{into.data(), into.size()}, {in_.data(), kTailBytes}};
  ssize_t n;
  do {
    n = ::readv(fd_.get(), pieces, 2);
  } while (n < 0 && errno == EINTR);
  if (n <= 0) {
    if (n < 0 && errno == EAGAIN) {
      dry_ = true;
    } else {
      fail(n == 0 ? Status::peer_gone : status_of_errno(errno),
           n == 0 ? "the other side hung up" : std::string("receiving: ") + std::strerror(errno));
    }
    return 0;
  }
  const auto got = static_cast<size_t>(n);
  if (got > into.size()) in_end_ = got - into.size();
  dry_ = got < into.size() + kTailBytes;
  return std::min(got, into.size());
}

// Reads more bytes into the buffer. False: no bytes have arrived, or the connection is broken.
bool TcpPeer::fill() {
  if (in_begin_ == in_end_) {
    in_begin_ = in_end_ = 0;
  } else if (in_begin_ != 0) {
    std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
    in_end_ -= in_begin_;
    in_begin_ = 0;
  }
  // After a long payload another is likely. Read little ahead: payload bytes read here would be copied once more.
  const size_t room = std::min(in_.size(), in_end_ + (long_ ? kTailBytes : in_.size())) - in_end_;
  ssize_t n;
  do {
    n = receive_now(fd_.get(), in_.data() + in_end_, room);
  } while (n < 0 && errno == EINTR);
  if (n > 0) {
    dry_ = static_cast<size_t>(n) < room;
    in_end_ += static_cast<size_t>(n);
    return true;
  }
  dry_ = true;
  if (n == 0) {
    fail(Status::peer_gone, "the other side hung up");
  } else if (errno != EAGAIN) {
    fail(status_of_errno(errno), std::string("receiving: ") + std::strerror(errno));
  }
  return false;
}

size_t TcpPeer::receive(FrameSink& sink, const std::shared_ptr<Peer>& self, TcpControl& control, size_t budget) {
  size_t n = 0;
  if (taken_.there != 0) {
    deliver_done(sink, self);
    n = 1;
  }
  if (!fd_.valid()) return n;
  dry_ = false;
  buffered_.store(Left::nothing, std::memory_order_relaxed);
  if (full_.load(std::memory_order_relaxed)) [[unlikely]] {
    pollfd p{fd_.get(), POLLOUT, 0};
    if (::poll(&p, 1, 0) == 1) {
      const Guard lock(send_mutex_);
      want_out(false);
      flush_locked();
      n = 1;  // reports progress, so that a sender that waits for room retries
    }
  }
  // An answer that came with the last frame is left for the next round, if there will be one.
  const auto settle = [&](bool again) {
    if (taken_.there == 0) return;
    if (again && broken() == Status::ok) {
      buffered_.store(Left::answer, std::memory_order_seq_cst);
    } else {
      deliver_done(sink, self);
    }
  };
  bool heard = false;
  for (int round = 0; round < kRoundsMax; ++round) {
    const size_t parsed = parse(sink, self, control, budget > n ? budget - n : 1);
    n += parsed;
    heard = heard || parsed != 0;
    if (broken() != Status::ok || n >= budget) settle(false);
    if (broken() != Status::ok) return n;
    if (n >= budget) {
      buffered_.store(in_begin_ != in_end_ ? Left::packets : Left::nothing, std::memory_order_seq_cst);
      return n;
    }
    if (dry_ || !fill()) break;
    heard = true;
  }
  settle(true);
  if (!dry_) return n != 0 ? n : 1;  // the next round reads the rest
  // Nothing new arrived: send the packets that waited for more.
  if (!heard && unflushed_.load(std::memory_order_relaxed)) flush();
  return n;
}

// Checks a request's limits and its right to address the endpoint, and replaces its source NIC by our number for it.
bool TcpPeer::admit(wire::Frame& frame, TcpControl& control) {
  if (frame.kind == wire::FrameKind::done) return true;
  if (wire::is_answer(frame.kind)) {
    // More answers than requests are a protocol error; a wrong cost in an answer harms only the peer that sent it.
    if (ours_.open() == 0) {
      fail(Status::protocol, "an answer that nobody asked for");
      return false;
    }
    ours_.end(std::min<uint64_t>(ours_.open_bytes(), frame.staged_chunk));
    return true;
  }
  const uint32_t cost = wire::cost_of(frame);
  const uint64_t frames = theirs_.open(), bytes = theirs_.open_bytes();
  const bool request = wire::is_request(frame.kind);
  if (request) theirs_.begin(cost);
  if (request && (frames >= wire::kTcpInFlightFrames || (frames != 0 && bytes + cost > wire::kTcpInFlightBytes))) {
    fail(Status::protocol, "more requests at a time than the protocol permits");
    return false;
  }
  // These name an operation of ours; the NIC compares its peer.
  if (frame.kind == wire::FrameKind::pull || frame.kind == wire::FrameKind::ready) return true;
  if (frame.source.nic >= wire::kRemoteNic || frame.source.vni != about.vni ||
      !control.may_name(frame.ep_index, frame.ep_generation, about.vni)) {
    fail(Status::protocol, "a frame of another VNI or NIC than the connection's");
    return false;
  }
  trace_source(frame);
  return true;
}

void TcpPeer::trace_source(wire::Frame& frame) {
  if (about.host.family == 0) {
    frame.source.nic = wire::kUnknownNic;
    return;
  }
  if (frame.source.nic != source_nic_) {
    source_nic_ = frame.source.nic;
    source_number_ = routes_.told_number({about.host, source_nic_});
  }
  frame.source.nic = source_number_;
}

// True: the payload is complete, and was delivered or found corrupted. All of it is collected and opened before any
// byte reaches its destination: a region never holds unauthenticated bytes, not even for a moment.
bool TcpPeer::take_payload(FrameSink& sink, const std::shared_ptr<Peer>& self) {
  const uint64_t length = frame_.payload_length, sealed = length + wire::kTagBytes;
  while (done_ < sealed) {
    const size_t got = read({collected_.data() + done_, sealed - done_});
    done_ += got;
    if (got == 0 || (dry_ && done_ < sealed && in_begin_ == in_end_)) return false;
  }
  taking_ = false;
  if (opens(collected_.data(), 0, length)) sink.on_frame(self, frame_, {collected_.data(), length});
  return true;
}

bool TcpPeer::opens(std::byte* at, size_t clear, size_t content) {
  if (keys_.receive.open(at, clear, content)) [[likely]]
    return true;
  fail(Status::corrupted,
       "record " + std::to_string(keys_.receive.number() - 1) +
           " was changed on its way, or is not the one that was due: a record was repeated, or records are missing");
  return false;
}

// Counts an answer of success, which deliver_done() passes to the NIC later. False: the connection is broken.
bool TcpPeer::take_done(TcpControl& control, const wire::DoneBody& done) {
  if (done.there != 1) {
    fail(Status::protocol, "an answer with a field outside its range");
    return false;
  }
  wire::Frame answer;
  answer.kind = wire::FrameKind::answer;
  answer.staged_chunk = done.cost;
  if (!admit(answer, control)) return false;
  taken_ = done;
  return true;
}

void TcpPeer::deliver_done(FrameSink& sink, const std::shared_ptr<Peer>& self) {
  wire::Frame answer;
  answer.kind = wire::FrameKind::answer;
  answer.op_id = std::exchange(taken_, {}).op_id;
  sink.on_frame(self, answer, {});
}

// Handles the whole packets in the buffer. Every field is checked before use; a wrong one ends the connection.
size_t TcpPeer::parse(FrameSink& sink, const std::shared_ptr<Peer>& self, TcpControl& control, size_t budget) {
  size_t n = 0;
  while (n < budget && broken() == Status::ok) {
    if (taken_.there != 0 && in_begin_ != in_end_) deliver_done(sink, self);  // its frame was not the last
    if (taking_) {
      const uint64_t before = done_;
      const bool complete = take_payload(sink, self);
      if (complete || done_ != before) ++n;
      if (!complete) return n;
      continue;
    }
    const std::span<const std::byte> in(in_.data() + in_begin_, in_end_ - in_begin_);
    if (in.size() < sizeof(wire::PacketPrefix)) return n;
    const auto prefix = wire::parse_prefix(in);
    if (!prefix) {
      fail(Status::protocol, "the peer sent what is no packet");
      return n;
    }
    const size_t body = wire::body_bytes(prefix->type), content = wire::first_content(*prefix);
    const size_t head = sizeof(wire::PacketPrefix) + content + wire::kTagBytes;
    if (in.size() < head) return n;
    if (!opens(in_.data() + in_begin_, sizeof(wire::PacketPrefix), content)) return n;
    long_ = prefix->length >= wire::kTogetherMax;
    const auto bytes = in.subspan(sizeof(wire::PacketPrefix), body);
    if (prefix->type != wire::PacketType::frame) {
      in_begin_ += head;
      if (prefix->type == wire::PacketType::ping) continue;
      if (prefix->type == wire::PacketType::goodbye) {
        fail(Status::closed, "the peer closed its NIC");
        return n;
      }
      if (prefix->type == wire::PacketType::done) {
        wire::DoneBody done;
        std::memcpy(&done, bytes.data(), sizeof(done));
        if (!take_done(control, done)) return n;
        deliver_done(sink, self);
        ++n;
        continue;
      }
      wire::ResolveBody said;
      std::memcpy(static_cast<void*>(&said), bytes.data(), sizeof(said));
      ++n;
      if (prefix->type == wire::PacketType::resolve) {
        send_control(wire::PacketType::resolved, control.on_resolve(*this, said));
      } else {
        control.on_resolved(*this, said);
      }
      continue;
    }
    const auto payload_length = static_cast<uint32_t>(prefix->length - body);
    auto frame = wire::parse_tcp_frame(bytes, payload_length);
    if (!frame) {
      fail(Status::protocol, "a frame with a field outside its range");
      return n;
    }
    wire::DoneBody with;
    std::memcpy(&with, bytes.data() + offsetof(wire::FrameBody, done), sizeof(with));
    const bool apart = payload_length > wire::kTogetherMax;
    const bool whole = !apart || in.size() - head >= payload_length + wire::kTagBytes;
    if (with.there != 0) {
      if (!take_done(control, with)) return n;
      // Answers reach the NIC in the order of their arrival.
      if (!whole || !wire::is_request(frame->kind) || !control.polled()) deliver_done(sink, self);
    }
    if (!admit(*frame, control)) return n;
    in_begin_ += head;
    if (whole) {
      std::byte* payload = in_.data() + in_begin_ - wire::kTagBytes - payload_length;
      if (apart) {
        payload = in_.data() + in_begin_;
        in_begin_ += payload_length + wire::kTagBytes;
      }
      ++n;
      if (apart && !opens(payload, 0, payload_length)) return n;
      sink.on_frame(self, *frame, {payload, payload_length});
      continue;
    }
    frame_ = *frame;
    done_ = 0;
    taking_ = true;
    // The buffer only grows; later payloads reuse it.
    if (collected_.size() < payload_length + wire::kTagBytes) collected_.resize(payload_length + wire::kTagBytes);
  }
  return n;
}

}  // namespace weft::link
