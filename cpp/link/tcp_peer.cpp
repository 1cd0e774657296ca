// cpp/link/tcp_peer.cpp: see tcp_peer.hpp. Sending first, then receiving.
#include "link/tcp_peer.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checksum.hpp"
#include "link/routes.hpp"
#include "mem/guard.hpp"

namespace weft::link {

namespace {

constexpr size_t kCopyMax = 4096;                  // longer payload waits for no company
constexpr size_t kSumPiece = 680 * kChecksumStep;  // 16 KiB: still in the nearest cache when it is summed
constexpr size_t kBatchBytes = 16 << 10;           // so many bytes of small packets are worth a system call
// The peer's pipeline runs dry where it has to wait for what these packets say: that so much arrived, or is wanted.
constexpr uint64_t kBatchCost = uint64_t{512} << 10;
constexpr size_t kOutMax = size_t{256} << 10;  // waiting to be sent, before submit() says again
constexpr size_t kInBytes = size_t{32} << 10;
constexpr size_t kTailBytes = 4096;  // read behind a long payload: the next packet's head, and not much of its payload
constexpr size_t kLandMin = 4096;    // shorter payload is copied from the buffer, in one piece
constexpr uint32_t kNicsMax = 1024;  // of a process: each that is named gets an entry in the table of routes
constexpr int kRoundsMax = 4;        // of reading one connection, before another's turn

// Not the C library's recv() and send(): those are cancellation points, for which a process with threads pays 20 ns
// each, also where nothing has come.
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

TcpPeer::TcpPeer(Link* link, UniqueFd fd, const SessionKeys& keys, const About& a, EpollSet* set, uint64_t number)
    : Peer(link), about(a), id(number), fd_(std::move(fd)), keys_(keys), set_(set), in_(kInBytes) {
  payload_max = wire::kTcpPayloadMax;
  unanswered_max = wire::kTcpInFlightFrames;
  cma_reason = "the peer is on another host";
}

std::string TcpPeer::describe() const {
  return "the process at " + text_of(about.host.family != 0 ? about.host : about.remote);
}

std::string TcpPeer::why() const {
  const std::lock_guard lock(why_mutex_);
  return why_;
}

void TcpPeer::fail(Status status, const std::string& why) noexcept {
  try {
    const std::lock_guard lock(why_mutex_);
    if (why_.empty()) why_ = why;
  } catch (const std::bad_alloc&) {  // without its reason
  }
  Status ok = Status::ok;
  broken_.compare_exchange_strong(ok, status, std::memory_order_acq_rel);
}

void TcpPeer::die(Status why) {
  mark_dead(why);
  const std::lock_guard lock(send_mutex_);
  if (fd_.valid() && watched_) set_->remove(fd_.get());
  fd_.reset();
  clear_out();
  answer_ = {};
}

// ---- sending -----------------------------------------------------------------------------------------------------

uint32_t TcpPeer::wanted_events() const noexcept {
  return EPOLLIN | EPOLLRDHUP | (wants_out_ ? uint32_t{EPOLLOUT} : 0u);
}

// Level-triggered: what is there when it enters the set wakes at once.
void TcpPeer::watch(bool watched) {
  const std::lock_guard lock(send_mutex_);
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
  if (out_.size() - out_end_ < bytes) [[unlikely]] {
    if (out_at_ != 0) {  // what is sent makes room
      std::memmove(out_.data(), out_.data() + out_at_, out_bytes());
      out_end_ -= out_at_;
      out_at_ = 0;
    }
    if (out_.size() - out_end_ < bytes) out_.resize(std::max(2 * out_.size(), out_end_ + bytes));
  }
  return out_.data() + out_end_;
}

void TcpPeer::append(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  std::memcpy(room(bytes.size()), bytes.data(), bytes.size());
  out_end_ += bytes.size();
}

void TcpPeer::emit_done() {
  std::byte* head = room(wire::kPacketHeadMax);
  out_end_ += wire::emit_packet(keys_.send, sent_++, wire::PacketType::done, std::exchange(answer_, {}),
                                std::span(head, wire::kPacketHeadMax));
}

bool TcpPeer::flush_locked() {
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
  const std::lock_guard lock(send_mutex_);
  if (!fd_.valid() || broken() != Status::ok || wants_out_) return false;
  return flush_locked();
}

// HOT. One system call, or none where packets wait for company.
Status TcpPeer::send(wire::Frame& frame, std::span<const std::byte> payload) {
  const std::lock_guard lock(send_mutex_);
  try {
    return send_locked(frame, payload);
  } catch (const std::bad_alloc&) {  // what was counted does not fit what was sent any more
    fail(Status::no_memory, "no memory");
    return Status::no_memory;
  }
}

Status TcpPeer::send_locked(wire::Frame& frame, std::span<const std::byte> payload) {
  if (dead()) return down_status();
  if (const Status status = broken(); status != Status::ok) return status;
  if (payload.size() > wire::kTcpPayloadMax) return Status::invalid;
  const bool answer = frame.kind == wire::FrameKind::answer;
  frame.where = wire::PayloadWhere::none;
  const uint64_t waiting = ours_.open();
  uint32_t cost = frame.staged_chunk;  // an answer repeats what the request counted
  if (!answer) {
    frame.payload_length = static_cast<uint32_t>(payload.size());
    cost = frame.staged_chunk = wire::cost_of(frame);
    if (waiting >= wire::kTcpInFlightFrames || (waiting != 0 && ours_.open_bytes() + cost > wire::kTcpInFlightBytes)) {
      if (out_bytes() != 0 || answer_.there != 0) flush_locked();
      return Status::again;
    }
  }
  // The kernel's buffer was full, and nobody has seen it otherwise: asking again costs what the peer's packets need.
  if (wants_out_ && (payload.size() > kCopyMax || out_bytes() >= kOutMax)) return Status::again;
  if (out_bytes() >= kOutMax) flush_locked();
  if (out_bytes() >= kOutMax) return Status::again;
  // Counted before it is sent: the peer's reaction may be read by another thread at once.
  if (answer) {
    theirs_.end(cost);
  } else {
    ours_.begin(cost);
  }
  spoke_.store(true, std::memory_order_relaxed);
  const auto flush_if_due = [&] {
    if (!wants_out_ && (out_bytes() >= kBatchBytes || out_cost_ >= kBatchCost || (!answer && waiting == 0))) {
      flush_locked();
    } else {
      unflushed_.store(true, std::memory_order_relaxed);
    }
  };
  constexpr uint8_t kTells = wire::kFrameNoRoom | wire::kFrameRoom;
  if (answer && frame.status == 0 && payload.empty() && (frame.flags & kTells) == 0) {
    if (answer_.there != 0) emit_done();
    answer_ = {frame.op_id, cost, 1};
    out_cost_ += cost;
    flush_if_due();
    return Status::ok;
  }
  // A copy is sent: what the checksum was made of. The application or a peer may change the memory at any time.
  std::byte* packet = room(wire::kPacketHeadMax + payload.size());
  std::byte* body = packet + wire::kPacketHeadMax;
  Checksum checksum;
  for (size_t at = 0; at < payload.size(); at += kSumPiece) {
    const size_t n = std::min(kSumPiece, payload.size() - at);
    if (!mem::copy_guarded(body + at, payload.data() + at, n)) [[unlikely]] {  // nothing of the packet was sent
      answer ? theirs_.end(cost, true) : ours_.begin(cost, true);
      return Status::fault;
    }
    checksum.add({body + at, n});
  }
  frame.payload_length = payload.empty() ? 0 : checksum.sum();  // the prefix tells the length
  if (answer) frame.source = {};
  const wire::DoneBody with = std::exchange(answer_, {});
  (void)wire::emit_frame(keys_.send, sent_++, frame, with, payload.size(), std::span(packet, wire::kPacketHeadMax));
  frame.payload_length = static_cast<uint32_t>(payload.size());
  out_end_ += wire::kPacketHeadMax + payload.size();
  out_cost_ += cost;
  if (payload.size() > kCopyMax && !wants_out_) {
    flush_locked();
  } else {
    flush_if_due();
  }
  return Status::ok;
}

void TcpPeer::send_control(wire::PacketType type, const wire::ResolveBody& body) {
  const std::lock_guard lock(send_mutex_);
  if (!fd_.valid() || broken() != Status::ok) return;
  // What can wait for a peer that keeps to the limits: packets up to kOutMax and the frame that passed it, the peer's
  // asks and ours.
  constexpr size_t kWaitingMax =
      kOutMax + wire::kTcpPayloadMax + (2 * size_t{wire::kTcpAsksMax} + 16) * wire::kPacketHeadMax;
  if (out_bytes() >= kWaitingMax) {
    fail(Status::protocol, "it asks for endpoints and does not read the answers");
    return;
  }
  std::array<std::byte, wire::kPacketHeadMax> head;
  append(std::span(head).first(wire::emit_packet(keys_.send, sent_++, type, body, std::span(head))));
  flush_locked();
}

void TcpPeer::ping_if_silent() {
  if (spoke_.exchange(false, std::memory_order_relaxed)) return;
  const std::lock_guard lock(send_mutex_);
  if (!fd_.valid() || broken() != Status::ok || out_bytes() != 0 || answer_.there != 0) return;
  std::array<std::byte, wire::kPacketHeadMax> head;
  append(std::span(head).first(wire::emit_ping(keys_.send, sent_++, std::span(head))));
  flush_locked();
}

void TcpPeer::ping() {
  const std::lock_guard lock(send_mutex_);
  if (!fd_.valid() || broken() != Status::ok || wants_out_) return;
  std::array<std::byte, wire::kPacketHeadMax> head;
  append(std::span(head).first(wire::emit_ping(keys_.send, sent_++, std::span(head))));
  flush_locked();
}

void TcpPeer::say_goodbye() noexcept {
  try {
    const std::lock_guard lock(send_mutex_);
    if (!fd_.valid() || broken() != Status::ok || wants_out_) return;
    if (answer_.there != 0) emit_done();
    std::array<std::byte, wire::kPacketHeadMax> head;
    append(std::span(head).first(wire::emit_goodbye(keys_.send, sent_++, std::span(head))));
    flush_locked();
  } catch (const std::bad_alloc&) {  // the hang-up tells, without its reason
  }
}

// ---- receiving ---------------------------------------------------------------------------------------------------

// Bytes of the payload that is being taken: from the buffer first, then from the kernel.
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
           n == 0 ? "it hung up" : std::string("receiving: ") + std::strerror(errno));
    }
    return 0;
  }
  const auto got = static_cast<size_t>(n);
  if (got > into.size()) in_end_ = got - into.size();
  dry_ = got < into.size() + kTailBytes;
  return std::min(got, into.size());
}

// More bytes into the buffer. False: there are none now, or the connection is broken.
bool TcpPeer::fill() {
  if (in_begin_ == in_end_) {
    in_begin_ = in_end_ = 0;
  } else if (in_begin_ != 0) {
    std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
    in_end_ -= in_begin_;
    in_begin_ = 0;
  }
  // Behind a long payload there is often another: what is read here of it must be copied once more.
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
    fail(Status::peer_gone, "it hung up");
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
      const std::lock_guard lock(send_mutex_);
      want_out(false);
      flush_locked();
      n = 1;  // who waits for room tries again now
    }
  }
  // An answer that came with the last frame is for the next round, if there is one.
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
  if (!dry_) return n != 0 ? n : 1;  // there is more, for the next round
  // Nothing new: what waited for company goes now.
  if (!heard && unflushed_.load(std::memory_order_relaxed)) flush();
  return n;
}

// A request keeps to the limits and names an endpoint that it may; its source becomes one that we know it by.
bool TcpPeer::admit(wire::Frame& frame, TcpControl& control) {
  if (frame.kind == wire::FrameKind::answer) {
    // More answers than requests is a lie, and one about what they cost only hurts who tells it.
    if (ours_.open() == 0) {
      fail(Status::protocol, "an answer that nobody asked for");
      return false;
    }
    ours_.end(std::min<uint64_t>(ours_.open_bytes(), frame.staged_chunk));
    return true;
  }
  const uint32_t cost = wire::cost_of(frame);
  const uint64_t frames = theirs_.open(), bytes = theirs_.open_bytes();
  theirs_.begin(cost);
  if (frames >= wire::kTcpInFlightFrames || (frames != 0 && bytes + cost > wire::kTcpInFlightBytes)) {
    fail(Status::protocol, "more requests at a time than the protocol permits");
    return false;
  }
  if (frame.source.nic >= kNicsMax || frame.source.vni != about.vni ||
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
    source_number_ = route_number({about.host, source_nic_});
  }
  frame.source.nic = source_number_;
}

// True: the payload is complete and was delivered, or was changed on its way. It is collected and checked before any of
// it reaches its place: a checksum of bytes that have landed would also fail where somebody else has written there
// since, which is legal, and damaged bytes would have done their damage.
bool TcpPeer::take_payload(FrameSink& sink, const std::shared_ptr<Peer>& self) {
  const uint64_t length = frame_.payload_length;
  while (done_ < length) {
    const size_t got = read({collected_.data() + done_, length - done_});
    done_ += got;
    if (got == 0 || (dry_ && done_ < length && in_begin_ == in_end_)) return false;
  }
  taking_ = false;
  const std::span<const std::byte> payload(collected_.data(), length);
  if (holds(payload, sum_)) sink.on_frame(self, frame_, payload);
  return true;
}

bool TcpPeer::holds(std::span<const std::byte> payload, uint32_t sum) {
  if (payload.empty() || checksum_of(payload) == sum) [[likely]]
    return true;
  fail(Status::corrupted, "payload of a packet was changed on its way");
  return false;
}

// An answer that went well: counted at once, for deliver_done() to give to the NIC. False: the connection is broken.
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

// Whole packets in the buffer. Every field is checked before it is used; what is wrong ends the connection.
size_t TcpPeer::parse(FrameSink& sink, const std::shared_ptr<Peer>& self, TcpControl& control, size_t budget) {
  size_t n = 0;
  while (n < budget && broken() == Status::ok) {
    if (taken_.there != 0 && in_begin_ != in_end_) deliver_done(sink, self);  // the frame it came with was not the last
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
      fail(Status::protocol, "what it sent is no packet");
      return n;
    }
    if (prefix->sequence != received_) {
      fail(Status::protocol, "packet " + std::to_string(prefix->sequence) + " came where packet " +
                                 std::to_string(received_) + " was due: it was repeated, or others are missing");
      return n;
    }
    const size_t body = wire::body_bytes(prefix->type), head = sizeof(wire::PacketPrefix) + body;
    if (in.size() < head) return n;
    if (!wire::seal_holds(keys_.receive, received_, in.first(head))) {
      fail(Status::protocol, "a packet was changed on its way");
      return n;
    }
    ++received_;
    long_ = prefix->length >= kLandMin;
    const auto bytes = in.subspan(sizeof(wire::PacketPrefix), body);
    if (prefix->type != wire::PacketType::frame) {
      in_begin_ += head;
      if (prefix->type == wire::PacketType::ping) continue;
      if (prefix->type == wire::PacketType::goodbye) {
        fail(Status::closed, "it closed its NIC");
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
    uint32_t sum = 0;
    auto frame = wire::parse_tcp_frame(bytes, payload_length, &sum);
    if (!frame) {
      fail(Status::protocol, "a frame with a field outside its range");
      return n;
    }
    wire::DoneBody with;
    std::memcpy(&with, bytes.data() + offsetof(wire::FrameBody, done), sizeof(with));
    const bool whole = in.size() - head >= payload_length;
    if (with.there != 0) {
      if (!take_done(control, with)) return n;
      // Answers reach the NIC in the order in which they came.
      if (!whole || frame->kind == wire::FrameKind::answer || !control.polled()) deliver_done(sink, self);
    }
    if (!admit(*frame, control)) return n;
    in_begin_ += head;
    if (whole) {
      in_begin_ += payload_length;
      ++n;
      if (!holds(in.subspan(head, payload_length), sum)) return n;
      sink.on_frame(self, *frame, in.subspan(head, payload_length));
      continue;
    }
    frame_ = *frame;
    sum_ = sum;
    done_ = 0;
    taking_ = true;
    if (collected_.size() < payload_length) collected_.resize(payload_length);  // kept for the next
  }
  return n;
}

}  // namespace weft::link
