// cpp/link/shm.cpp: see shm.hpp. Fast part first (submit, poll), then the handshake, then set-up.
#include "link/shm.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "link/cma.hpp"
#include "link/descriptors.hpp"
#include "link/shm_names.hpp"
#include "mem/guard.hpp"

namespace weft::link {

namespace {

constexpr size_t kPrivateEach = 16;           // so few private rings are looked at in each poll
constexpr uint32_t kPrivateIdlePolls = 1024;  // of more, those rest that were found empty so often
constexpr uint32_t kPrivateTurn = 64;         // frames of one private ring, before the next one's turn
constexpr uint64_t kNameAudit = 1;            // epoll names: this, or the id of a listener or a connection
constexpr time_t kAuditSeconds = 1;
constexpr size_t kReasonsMax = 256;
constexpr uint64_t kNameOfProcess = uint64_t{1} << 32;  // beside a connection's id: the process at its other end
constexpr uint64_t kDeathsLookNs = 50'000'000;          // how often marks of peers' ends are looked at

uint64_t coarse_ns() noexcept {
  timespec ts;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

// Wakes the peer. It never blocks: where the peer has not read the last ones, it has something to read, and is awake.
void ring_doorbell(int fd) noexcept {
  constexpr std::byte kRing[wire::kDoorbellBytes]{};
  (void)!::send(fd, kRing, sizeof(kRing), MSG_NOSIGNAL | MSG_DONTWAIT);
}

UniqueFd open_process(pid_t pid) noexcept {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool has_exited(int pidfd) noexcept {
  pollfd p{pidfd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

bool is_gone(pid_t pid) noexcept {
  const UniqueFd process = open_process(pid);
  return process.valid() ? has_exited(process.get()) : errno == ESRCH;
}

// Maps what another process sent. Its size is asked from the kernel and must be sealed: an access behind the end of a
// file, or to one that is cut off later, is a SIGBUS. Only memory has seals, so nothing else is asked of a file whose
// system might take its time to answer.
Mapping map_checked(int fd, size_t size, bool writable, const char* what) {
  struct stat status{};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (size == 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd, &status) != 0 ||
      static_cast<uint64_t>(status.st_size) < size) {
    throw Error(fi_err::kEPROTO, std::string(what) + " is not a sealed memfd of " + std::to_string(size) + " bytes");
  }
  return Mapping::shared(fd, size, writable, what);
}

}  // namespace

// ---- a peer ------------------------------------------------------------------------------------------------------

class ShmPeer final : public Peer {
 public:
  explicit ShmPeer(Link* link) : Peer(link) {}
  ~ShmPeer() override = default;

  [[nodiscard]] std::string describe() const override { return "process " + std::to_string(process_id); }

  Status cma_copy(bool to_peer, std::span<const iovec> local, std::span<const iovec> remote) override {
    if (dead()) return Status::peer_gone;
    // A process id can be used again after the process died. Once per tick (4 ms) the process itself is asked for;
    // within a tick the system cannot run through all ids.
    const uint64_t now = coarse_ns();
    if (alive_checked_ns.load(std::memory_order_relaxed) != now) {
      if (pidfd.valid() && has_exited(pidfd.get())) {
        static_cast<ShmLink*>(link())->notice_death();
        return Status::peer_gone;
      }
      alive_checked_ns.store(now, std::memory_order_relaxed);
    }
    const Status status = cma_copy_all(process_id, table.header().life, to_peer, local, remote);
    if (status == Status::peer_gone) static_cast<ShmLink*>(link())->notice_death();
    return status;
  }
  [[nodiscard]] uint64_t consumed() const noexcept {
    return reinterpret_cast<const std::atomic<uint64_t>*>(staging.data())[producer_id].load(std::memory_order_acquire);
  }
  // Its process died, or runs another program.
  [[nodiscard]] bool has_ended() const noexcept { return table.valid() && table.owner_gone(); }
  void die(Status why) noexcept { mark_dead(why == Status::ok ? Status::peer_gone : why); }
  // A chunk of the peer's staging memory; null where it has none of that number.
  [[nodiscard]] const std::byte* staged_payload(uint32_t chunk) const noexcept {
    const AreaShape& shape = area_shape(is_private());
    return chunk < shape.chunk_count ? staging.data() + shape.header_bytes() + size_t{chunk} * wire::kStagedPayloadMax
                                     : nullptr;
  }
  [[nodiscard]] bool is_private() const noexcept { return own_area != nullptr; }
  // What the peer has consumed is free again. With submit_lock.
  void reclaim() noexcept {
    if (staged.empty()) return;
    for (const uint64_t count = consumed(); staged_freed < count && !staged.empty(); ++staged_freed) {
      area->staging.give_back(staged.front());
      staged.pop_front();
    }
  }
  void set_segment(uint32_t i, Mapping mapping) {
    std::byte* base = mapping.data();
    (void)::madvise(base, mapping.size(), MADV_HUGEPAGE);  // as the owner does
    segment_bytes_[i] = mapping.size();
    segment_mappings.push_back(std::move(mapping));
    segments_[i].store(base, std::memory_order_release);
  }

  std::array<uint8_t, 16> uuid{};
  uint32_t producer_id = 0;        // under which we produce into its ring
  std::unique_ptr<Area> own_area;  // of this connection alone
  Area* area = nullptr;            // that, or the link's
  uint32_t inbox_id = 0;           // under which the peer produces into our ring
  UniqueFd pidfd;
  Mapping ring_mapping, staging, table_mapping;
  std::optional<ring::MpscProducer> producer;
  std::vector<Mapping> segment_mappings;
  uint32_t segment_count_told = 0;
  int socket_fd = -1;  // owned by the connection
  uint32_t conn_id = 0;
  std::vector<uint32_t> segments_asked;
  std::atomic<uint64_t> alive_checked_ns{0};
  std::atomic<Status> hung_up{Status::ok};  // otherwise why

  SpinLock submit_lock;           // keeps the order of staged chunks the order of frames
  std::deque<uint32_t> staged;    // chunks on their way to this peer, oldest first
  uint64_t staged_freed = 0;      // how many of them it has consumed
  uint64_t consumed_from_it = 0;  // staged payloads of its that we are done with
};

// ---- frames: the fast part ---------------------------------------------------------------------------------------

// What is under way when a peer learns that there is no room: a full ring, and one operation a domain that has looked.
static_assert(kSharedArea.slot_count + wire::kUnansweredMax + mem::kDomainCountMax <= wire::kLateDataMax);

// HOT: no system call unless the other engine sleeps, no allocation; one ring slot (2 to 4 lines) is written.
Status ShmLink::submit(Peer& base, wire::Frame& frame, std::span<const std::byte> payload) {
  auto& peer = static_cast<ShmPeer&>(base);
  const std::lock_guard lock(peer.submit_lock);
  // Under the lock: drop_conn() takes it after die(), so no chunk is staged for a peer whose chunks were given back.
  if (peer.dead()) return Status::peer_gone;
  frame.payload_length = static_cast<uint32_t>(payload.size());
  frame.where = wire::PayloadWhere::none;
  constexpr uint32_t kNoChunk = ~uint32_t{0};
  uint32_t chunk = kNoChunk;
  Staging& staging = peer.area->staging;
  if (payload.size() > wire::kInlinePayloadMax) {
    peer.reclaim();
    const auto taken = staging.take(peer.staged.size());
    if (!taken) {
      if (!peer.is_private()) chunks_wanted_.store(true, std::memory_order_relaxed);
      return Status::again;
    }
    try {
      peer.staged.push_back(*taken);  // before a slot is claimed, which must not stay unpublished
    } catch (const std::bad_alloc&) {
      staging.give_back(*taken);
      return Status::again;
    }
    frame.where = wire::PayloadWhere::staged;
    frame.staged_chunk = chunk = *taken;
  } else if (!payload.empty()) {
    frame.where = wire::PayloadWhere::in_frame;
  }
  const auto give_back = [&](Status status) {
    if (chunk != kNoChunk) {
      peer.staged.pop_back();
      staging.give_back(chunk);
    }
    return status;
  };
  const ring::Claim slot = peer.producer->try_claim();
  if (!slot) return give_back(Status::again);
  const std::span<std::byte> out = slot.payload();
  wire::emit(frame, out);
  const bool staged = chunk != kNoChunk;
  if (!payload.empty()) {
    std::byte* const to = staged ? staging.chunk(chunk) : out.data() + sizeof(wire::Frame);
    // It is the application's memory, whose pages may fail.
    if (!mem::copy_guarded(to, payload.data(), payload.size())) [[unlikely]] {
      peer.producer->abandon(slot);
      return give_back(Status::fault);
    }
  }
  const size_t used = sizeof(wire::Frame) + (staged ? 0 : payload.size());
  peer.producer->publish(slot, used);
  if (peer.producer->needs_doorbell()) ring_doorbell(peer.socket_fd);
  return Status::ok;
}

size_t ShmLink::poll(FrameSink& sink, size_t budget) {
  if (chunks_wanted_.load(std::memory_order_relaxed)) reclaim_all();
  size_t n = 0;
  ring::Message message;
  while (n < budget) {
    ring::PollStatus polled;
    {
      const std::lock_guard lock(shared_.inbox_mutex);
      polled = shared_.inbox.consumer.poll(message);
    }
    if (polled == ring::PollStatus::empty) break;
    ++n;
    if (polled == ring::PollStatus::corrupt) {
      frames_lost_.store(true, std::memory_order_relaxed);
      continue;
    }
    const uint16_t producer = message.producer;
    const std::shared_ptr<ShmPeer> peer = producer < producers_.size() ? producers_[producer] : nullptr;
    if (!peer) continue;  // its connection is gone
    if (!take(sink, peer, message)) {
      // It does not speak our protocol: hang up. Its operations fail, nobody else notices.
      const std::lock_guard lock(mutex_);
      drop_conn(peer->conn_id, Status::protocol);
    }
  }
  if (!private_.empty()) n += poll_private(sink, budget);
  if (frames_lost_.load(std::memory_order_relaxed)) [[unlikely]]
    frames_were_lost();
  store_hint();
  return n;
}

// False: what the peer sent is no frame.
bool ShmLink::take(FrameSink& sink, const std::shared_ptr<ShmPeer>& peer, const ring::Message& message) {
  const std::span<const std::byte> bytes = message.bytes();
  const auto frame = wire::parse(bytes);
  if (!frame) return false;
  std::span<const std::byte> payload;
  const bool staged = frame->where == wire::PayloadWhere::staged;
  if (frame->where == wire::PayloadWhere::in_frame) {
    payload = bytes.subspan(sizeof(wire::Frame), frame->payload_length);
  } else if (staged) {
    const std::byte* from = peer->staged_payload(frame->staged_chunk);
    if (from == nullptr) return false;
    payload = {from, frame->payload_length};
  }
  sink.on_frame(peer, *frame, payload);
  if (staged) {
    // SYNC POINT: the payload was read before the sender may use its chunk again.
    peer->area->staging.consumed(peer->inbox_id).store(++peer->consumed_from_it, std::memory_order_release);
  }
  return true;
}

// Rings of one peer each. Of many only those are looked at whose peers have spoken lately; the others ring.
size_t ShmLink::poll_private(FrameSink& sink, size_t budget) {
  const size_t count = private_.size();
  size_t n = 0;
  std::vector<std::shared_ptr<ShmPeer>> broken, resting;
  for (size_t i = 0; i < count && n < budget; ++i) {
    if (++private_next_ >= count) private_next_ = 0;
    const std::shared_ptr<ShmPeer> peer = private_[private_next_];
    Area& area = *peer->own_area;
    ring::Message message;
    bool any = false, good = true;
    for (uint32_t turn = 0; turn < kPrivateTurn && good; ++turn) {
      ring::PollStatus polled;
      {
        const std::lock_guard lock(area.inbox_mutex);
        polled = area.inbox.consumer.poll(message);
      }
      if (polled == ring::PollStatus::empty) break;
      any = true;
      ++n;
      // Only this peer writes there: what is wrong with its ring is its doing.
      good = polled == ring::PollStatus::message && message.producer == kPrivateProducer && take(sink, peer, message);
    }
    if (!good) broken.push_back(peer);
    if (any) {
      area.idle.store(0, std::memory_order_relaxed);
    } else if (area.idle.fetch_add(1, std::memory_order_relaxed) > kPrivateIdlePolls && count > kPrivateEach) {
      const std::lock_guard lock(area.inbox_mutex);
      area.inbox.consumer.arm();
      if (area.inbox.consumer.empty()) resting.push_back(peer);
    }
  }
  if (!resting.empty()) {
    const std::lock_guard lock(private_mutex_);
    for (const auto& peer : resting) {
      peer->own_area->active = false;
      std::erase(private_, peer);
    }
    private_count_.store(private_.size(), std::memory_order_relaxed);
  }
  if (!broken.empty()) {
    const std::lock_guard lock(mutex_);
    for (const auto& peer : broken) drop_conn(peer->conn_id, Status::protocol);
  }
  return n;
}

// A peer's doorbell rang.
void ShmLink::awake(const std::shared_ptr<ShmPeer>& peer) {
  peer->own_area->idle.store(0, std::memory_order_relaxed);
  if (std::exchange(peer->own_area->active, true)) return;
  const std::lock_guard lock(private_mutex_);
  private_.push_back(peer);
  private_count_.store(private_.size(), std::memory_order_relaxed);
}

// Somebody has scribbled over the ring that peers share. Whose frames are lost cannot be told, and an operation whose
// frame or answer is lost would wait for ever: hang up on all who share the ring. What they have under way fails with
// that reason, and their next operation calls again.
void ShmLink::frames_were_lost() {
  const std::lock_guard lock(mutex_);
  frames_lost_.store(false, std::memory_order_relaxed);
  std::vector<uint32_t> sharers;
  for (const auto& [id, conn] : conns_) {
    if (conn.state == ConnState::live && !conn.is_private) sharers.push_back(id);
  }
  for (const uint32_t id : sharers) {
    Conn& conn = conns_.at(id);
    note(conn.address, "a process has written over this process's ring, so frames may be lost");
    part(conn.fd.get(), wire::RejectReason::lost_frames);
    drop_conn(id, Status::protocol);
  }
  const std::lock_guard ring(shared_.inbox_mutex);
  shared_.inbox.consumer.reset();  // nobody is left who may produce
}

// While there are peers that share the ring, it is audited once a second: one of them may have overwritten a frame, or
// the word by which producers know that we sleep, and then nothing else wakes us.
void ShmLink::watch_shared() {
  const bool wanted = std::ranges::any_of(
      conns_, [](const auto& c) { return c.second.state == ConnState::live && !c.second.is_private; });
  if (wanted == audit_timer_on_) return;
  audit_timer_on_ = wanted;
  itimerspec spec{};
  spec.it_value.tv_sec = spec.it_interval.tv_sec = wanted ? kAuditSeconds : 0;
  (void)::timerfd_settime(audit_timer_.get(), 0, &spec, nullptr);
}

void ShmLink::audit_shared() {
  drain_eventfd(audit_timer_.get());
  const std::lock_guard ring(shared_.inbox_mutex);
  auto& consumer = shared_.inbox.consumer;
  if (consumer.audit() == ring::PollStatus::corrupt || consumer.audit_slots() == ring::PollStatus::corrupt) {
    frames_lost_.store(true, std::memory_order_relaxed);
  }
}

void ShmLink::store_hint() noexcept {
  const std::lock_guard lock(shared_.inbox_mutex);
  const auto hint = shared_.inbox.consumer.hint();
  hint_free_.store(hint.free, std::memory_order_relaxed);
  hint_word_.store(hint.word, std::memory_order_relaxed);
}

void ShmLink::reclaim_all() noexcept {
  chunks_wanted_.store(false, std::memory_order_relaxed);
  for (const auto& peer : producers_) {
    if (!peer) continue;
    const std::lock_guard lock(peer->submit_lock);
    peer->reclaim();
  }
}

bool ShmLink::prepare_sleep() {
  if (deaths_due()) return false;
  bool idle = true;
  const auto arm = [&](Area& area) {
    const std::lock_guard lock(area.inbox_mutex);
    // Polls never read the ring's header: a scribbled one would look full to producers for ever.
    auto& consumer = area.inbox.consumer;
    if (consumer.audit() == ring::PollStatus::corrupt && &area == &shared_) {
      frames_lost_.store(true, std::memory_order_relaxed);
      idle = false;
    }
    consumer.arm();
    idle = consumer.empty() && idle;
  };
  arm(shared_);
  if (private_count_.load(std::memory_order_relaxed) != 0) {
    const std::lock_guard lock(private_mutex_);
    for (const auto& peer : private_) {
      arm(*peer->own_area);
      peer->own_area->idle.fetch_add(kPrivateTurn, std::memory_order_relaxed);
    }
  }
  return idle && happened_count_.load(std::memory_order_acquire) == 0 && !hang_ups_.load(std::memory_order_seq_cst);
}

bool ShmLink::has_timers() const {
  const std::lock_guard lock(mutex_);
  if (!retries_.empty()) return true;
  return std::any_of(conns_.begin(), conns_.end(), [](const auto& c) { return c.second.state != ConnState::live; });
}

// ---- finding peers -----------------------------------------------------------------------------------------------

Link::Resolving ShmLink::resolve(const wire::EpAddress& address, const std::shared_ptr<void>& token, Found* found) {
  if (address.nic >= wire::kRemoteNic) return Resolving::no;
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = resolved_.find(address); known != resolved_.end()) {
      const auto peer = known->second.peer.lock();
      // Only while its table says that the very endpoint still lives; otherwise ask again.
      if (peer && !peer->dead() && peer->table.valid() && !peer->table.owner_gone() &&
          peer->table.ep(known->second.ep_index).generation.load(std::memory_order_acquire) ==
              known->second.ep_generation) {
        *found = {peer, known->second.ep_index, known->second.ep_generation};
        return Resolving::found;
      }
      resolved_.erase(known);
    }
    for (auto& [id, conn] : conns_) {
      if (conn.state == ConnState::awaiting_welcome && conn.address == address) {
        conn.tokens.push_back(token);
        return Resolving::later;
      }
    }
    const Status status = start_connect(address, token, config_.strict);
    if (status == Status::again) {
      retries_.push_back({address, token, clock_.now_ns() + kHandshakeNs, config_.strict});
    } else if (status != Status::ok) {
      happened_.push_back({Happened::resolved, token, status, nullptr, 0, 0});
    }
    happened_count_.store(happened_.size(), std::memory_order_release);
  }
  waiter_.wake();
  return Resolving::later;
}

// `is_private`: with an area of its own.
Status ShmLink::start_connect(const wire::EpAddress& address, std::shared_ptr<void> token, bool is_private) {
  Conn conn;
  conn.fd = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!conn.fd.valid()) return Status::no_memory;
  std::string why;
  if (const Status status = connect_to(conn.fd.get(), address, &why); status != Status::ok) {
    if (!why.empty()) note(address, why);
    return status;
  }
  // A child that holds a dead process's descriptors keeps its name, and nobody will answer.
  ucred listener{};
  socklen_t size = sizeof(listener);
  if (::getsockopt(conn.fd.get(), SOL_SOCKET, SO_PEERCRED, &listener, &size) == 0 && listener.pid != 0 &&
      is_gone(listener.pid)) {
    return Status::no_endpoint;
  }
  conn.is_private = is_private;
  if (is_private) {
    try {
      conn.area = std::make_unique<Area>(kPrivateArea);
    } catch (const std::exception&) {
      return Status::no_memory;
    }
  } else {
    conn.producer_id = take_producer_id();
    if (conn.producer_id == 0) return Status::no_memory;
  }
  wire::Hello hello = own_hello(wire::HelloType::hello, is_private);
  hello.address = address;
  hello.producer_id = is_private ? kPrivateProducer : conn.producer_id;
  const bool sent = send_hello(conn.fd.get(), hello, is_private ? *conn.area : shared_);
  const int error = errno;
  if (is_private) conn.area->close_fds();  // the peer has its own
  if (!sent) {
    if (conn.producer_id != 0) free_producers_.push_back(conn.producer_id);
    // Hung up on before it could greet, in a crowd of callers; or the endpoint is closed, as the next call will find.
    return error == EAGAIN || error == EPIPE || error == ECONNRESET ? Status::again : Status::no_endpoint;
  }
  conn.outbound = true;
  conn.state = ConnState::awaiting_welcome;
  conn.address = address;
  conn.deadline_ns = clock_.now_ns() + kHandshakeNs;
  conn.tokens.push_back(std::move(token));
  const uint32_t id = next_id_++;
  if (!epoll_.try_add(conn.fd.get(), id, EPOLLIN | EPOLLRDHUP)) {
    if (conn.producer_id != 0) free_producers_.push_back(conn.producer_id);
    return Status::no_memory;
  }
  conns_.emplace(id, std::move(conn));
  return Status::ok;
}

// The other side asked for another call.
void ShmLink::call_again(uint32_t conn_id, bool is_private) {
  Conn& conn = conns_.at(conn_id);
  for (auto& token : std::exchange(conn.tokens, {})) {
    retries_.push_back({conn.address, std::move(token), clock_.now_ns() + kHandshakeNs, is_private});
  }
  drop_conn(conn_id, Status::again);
}

wire::Hello ShmLink::own_hello(wire::HelloType type, bool is_private) const {
  wire::Hello h;
  h.type = type;
  h.flags = static_cast<uint8_t>((config_.strict ? wire::kHelloStrict : 0) | (is_private ? wire::kHelloPrivate : 0));
  h.uuid = uuid_;
  h.ring_slot_count = area_shape(is_private).slot_count;
  h.staging_bytes = area_shape(is_private).staging_bytes();
  h.table_bytes = table_.layout().bytes;
  h.mr_count_max = table_.mr_count_max();
  h.probe_address = reinterpret_cast<uint64_t>(nonce_.data());
  h.nonce = nonce_;
  return h;
}

// Sends `hello` with the descriptors that its type carries; false with errno set when it cannot be sent now.
bool ShmLink::send_hello(int fd, wire::Hello hello, const Area& area) {
  std::vector<int> fds;
  std::vector<uint64_t> sizes;
  if (hello.type == wire::HelloType::hello || hello.type == wire::HelloType::welcome) {
    fds = {area.inbox.fd(), area.staging.fd()};
    if (!config_.strict) {
      fds.push_back(table_.fd());
      hello.segment_count = segments_.count();
      for (uint32_t i = 0; i < hello.segment_count; ++i) {
        fds.push_back(segments_.fd(i));
        sizes.push_back(segments_.bytes(i));
      }
    }
  } else if (hello.type == wire::HelloType::segment && hello.segment_bytes != 0) {
    fds = {segments_.fd(hello.segment)};
  }
  iovec iov[2] = {{&hello, sizeof(hello)}, {sizes.data(), sizes.size() * sizeof(uint64_t)}};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * std::max<size_t>(fds.size(), 1)));
  msghdr message{};
  message.msg_iov = iov;
  message.msg_iovlen = sizes.empty() ? 1 : 2;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

void ShmLink::accept_all(uint32_t listener_id) {
  for (;;) {
    const int listener = listeners_.at(listener_id).fd.get();
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid() && (errno == EMFILE || errno == ENFILE) && spare_fd_.valid()) {
      // Out of descriptors. The call would stay in the queue and wake us for ever: take it with the spare one and hang
      // up.
      spare_fd_.reset();
      UniqueFd refused(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      const bool more = refused.valid();  // EMFILE comes before the look at the queue: it may have been empty
      if (more) reject(refused.get(), wire::RejectReason::too_many_peers);
      refused.reset();
      spare_fd_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!more) return;
      continue;
    }
    if (!fd.valid()) return;
    ucred credentials{};
    socklen_t size = sizeof(credentials);
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0 || credentials.uid != ::geteuid()) {
      reject(fd.get(), wire::RejectReason::user);
      continue;
    }
    if (!leaves_reserve(fd.get())) {
      reject(fd.get(), evict_oldest_pending() ? wire::RejectReason::busy : wire::RejectReason::too_many_peers);
      continue;
    }
    Conn conn;
    conn.state = ConnState::awaiting_hello;
    conn.listener = listener_id;
    conn.deadline_ns = clock_.now_ns() + kHandshakeNs;
    const uint32_t id = next_id_++;
    if (!epoll_.try_add(fd.get(), id, EPOLLIN | EPOLLRDHUP)) continue;  // out of kernel memory: it may call again
    conn.fd = std::move(fd);
    conns_.emplace(id, std::move(conn));
    on_packet(id);  // mostly the greeting is there already, and then nobody can push the caller out
    if (const auto it = conns_.find(id); it == conns_.end() || it->second.state != ConnState::awaiting_hello) continue;
    pending_.push_back(id);
    if (pending_.size() <= kShmPendingMax) continue;
    std::erase_if(pending_, [&](uint32_t one) {  // those that have greeted or gone
      const auto it = conns_.find(one);
      return it == conns_.end() || it->second.state != ConnState::awaiting_hello;
    });
    if (pending_.size() > kShmPendingMax) (void)evict_oldest_pending();
  }
}

// A crowd of callers who say nothing: the oldest has had the most time. One that has greeted is not among them.
bool ShmLink::evict_oldest_pending() {
  while (!pending_.empty()) {
    const uint32_t id = pending_.front();
    pending_.pop_front();
    auto it = conns_.find(id);
    if (it == conns_.end() || it->second.state != ConnState::awaiting_hello) continue;
    on_packet(id);  // it may have greeted meanwhile
    it = conns_.find(id);
    if (it == conns_.end() || it->second.state != ConnState::awaiting_hello) continue;
    reject(it->second.fd.get(), wire::RejectReason::busy);
    drop_conn(id, Status::refused);
    return true;
  }
  return false;
}

void ShmLink::reject(int fd, wire::RejectReason reason) noexcept {
  wire::Hello h;
  h.type = wire::HelloType::reject;
  h.reason = reason;
  (void)!::send(fd, &h, sizeof(h), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Tells the other side why the hang-up comes.
void ShmLink::part(int fd, wire::RejectReason reason) noexcept {
  wire::Hello h;
  h.type = wire::HelloType::goodbye;
  h.reason = reason;
  (void)!::send(fd, &h, sizeof(h), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ShmLink::note(const wire::EpAddress& address, const std::string& what) {
  if (reasons_.size() >= kReasonsMax) reasons_.clear();
  reasons_[address] = what;
}

void ShmLink::on_packet(uint32_t conn_id) {
  constexpr int kPacketsMax = 64;  // a round: others want to be served, too
  bool was_reset = false;
  for (int packet = 0; packet < kPacketsMax; ++packet) {
    const auto it = conns_.find(conn_id);
    if (it == conns_.end()) return;
    Conn& conn = it->second;
    alignas(8) std::byte bytes[sizeof(wire::Hello) + 8 * mem::kSegmentCountMax];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)];
    iovec iov{bytes, sizeof(bytes)};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = ::recvmsg(conn.fd.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      // The peer hung up with packets of ours unread. What it said before that is still to be read.
      if (errno == ECONNRESET && !std::exchange(was_reset, true)) continue;
      // A listener that is closed with our call still in its queue resets the connection: its process may well live.
      drop_conn(conn_id, conn.state == ConnState::awaiting_welcome ? Status::no_endpoint : Status::peer_gone);
      return;
    }
    std::vector<UniqueFd> fds;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        fds.emplace_back(fd);
      }
    }
    if (n == 0) {
      drop_conn(conn_id, conn.state == ConnState::awaiting_welcome ? Status::no_endpoint : Status::peer_gone);
      return;
    }
    if (n == wire::kDoorbellBytes && conn.state == ConnState::live) {
      if (conn.peer->is_private()) awake(conn.peer);
      return;  // what else there is wakes again
    }
    const std::span<const std::byte> all(bytes, static_cast<size_t>(n));
    const auto hello = wire::parse_hello(all);
    if (!hello) {
      reject(conn.fd.get(), wire::RejectReason::malformed);
      drop_conn(conn_id, Status::protocol);
      return;
    }
    const std::span<const std::byte> tail = all.subspan(sizeof(wire::Hello));
    try {
      switch (hello->type) {
        case wire::HelloType::hello:
          if (conn.state != ConnState::awaiting_hello) {
            drop_conn(conn_id, Status::protocol);
            return;
          }
          on_hello(conn_id, *hello, fds, tail);
          break;
        case wire::HelloType::welcome:
          if (conn.state != ConnState::awaiting_welcome || hello->version != wire::kHelloVersion) {
            drop_conn(conn_id, Status::protocol);
            return;
          }
          on_welcome(conn_id, *hello, fds, tail);
          break;
        case wire::HelloType::reject:
          if (conn.state == ConnState::awaiting_welcome && hello->reason == wire::RejectReason::busy) {
            call_again(conn_id, conn.is_private);
          } else if (conn.state == ConnState::awaiting_welcome && !conn.is_private &&
                     hello->reason == wire::RejectReason::wants_private) {
            call_again(conn_id, true);
          } else {
            drop_conn(conn_id, hello->reason == wire::RejectReason::no_endpoint ? Status::no_endpoint
                               : hello->reason == wire::RejectReason::version   ? Status::version
                                                                                : Status::refused);
          }
          return;
        case wire::HelloType::goodbye:
          if (hello->reason == wire::RejectReason::lost_frames) {
            note(conn.address, "a process has written over the peer's ring, so frames may be lost");
          }
          drop_conn(conn_id, conn.state != ConnState::live               ? Status::no_endpoint
                             : hello->reason == wire::RejectReason::none ? Status::closed
                                                                         : Status::protocol);
          return;
        case wire::HelloType::segment_request: {
          if (conn.state != ConnState::live) {
            drop_conn(conn_id, Status::protocol);
            return;
          }
          wire::Hello answer = own_hello(wire::HelloType::segment, conn.is_private);
          answer.segment = hello->segment;
          answer.segment_bytes = config_.strict ? 0 : segments_.bytes(hello->segment);
          if (!send_hello(conn.fd.get(), answer, shared_)) drop_conn(conn_id, Status::peer_gone);
          break;
        }
        case wire::HelloType::segment:
          // A table that names a segment which its owner then denies is broken: operations would ask for ever.
          if (!conn.peer || hello->segment >= mem::kSegmentCountMax || fds.size() != 1 || hello->segment_bytes == 0) {
            drop_conn(conn_id, Status::protocol);
            return;
          }
          if (conn.peer->segment_base(hello->segment) == nullptr) {
            conn.peer->set_segment(hello->segment,
                                   map_checked(fds[0].get(), hello->segment_bytes, true, "a peer's segment"));
          }
          std::erase(conn.peer->segments_asked, hello->segment);
          happened_.push_back({Happened::segment, nullptr, Status::ok, conn.peer, 0, 0});
          happened_count_.store(happened_.size(), std::memory_order_release);
          break;
      }
    } catch (const Error& e) {
      const bool theirs = e.fi_code() == fi_err::kEPROTO;
      reject(conn.fd.get(), theirs ? wire::RejectReason::malformed : wire::RejectReason::too_many_peers);
      drop_conn(conn_id, theirs ? Status::protocol : Status::no_memory);
      return;
    }
  }
}

// Maps what the other side sent. Every size is checked against what its kind must have.
std::shared_ptr<ShmPeer> ShmLink::make_peer(const Conn& conn, const wire::Hello& hello, std::vector<UniqueFd>& fds,
                                            std::span<const std::byte> tail) {
  const bool shares = (hello.flags & wire::kHelloStrict) == 0, is_private = (hello.flags & wire::kHelloPrivate) != 0;
  const AreaShape& shape = area_shape(is_private);
  const size_t expected = 2 + (shares ? 1 + hello.segment_count : 0);
  if (is_private != conn.is_private || (!is_private && !shares) || fds.size() != expected ||
      hello.segment_count > mem::kSegmentCountMax || hello.ring_slot_count != shape.slot_count ||
      hello.staging_bytes != shape.staging_bytes() || hello.producer_id == 0 ||
      hello.producer_id >= shape.producer_count || tail.size() != (shares ? 8 * hello.segment_count : 0) ||
      (shares && (hello.mr_count_max == 0 || hello.mr_count_max > wire::kKeySlotMax ||
                  mem::TableLayout(hello.mr_count_max).bytes != hello.table_bytes))) {
    throw Error(fi_err::kEPROTO, "malformed hello");
  }
  auto peer = std::make_shared<ShmPeer>(this);
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  (void)::getsockopt(conn.fd.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size);
  peer->process_id = credentials.pid;
  // Before the probe: a process that has taken the id of the one that called does not have its nonce.
  if (credentials.pid != 0) peer->pidfd = open_process(credentials.pid);
  peer->uuid = hello.uuid;
  peer->producer_id = hello.producer_id;
  peer->socket_fd = conn.fd.get();
  peer->area = &shared_;
  peer->inbox_id = is_private ? kPrivateProducer : conn.producer_id;
  peer->ring_mapping = map_checked(fds[0].get(), shape.ring_bytes(), true, "a peer's ring");
  peer->staging = map_checked(fds[1].get(), shape.staging_bytes(), false, "a peer's staging memory");
  peer->producer = ring::MpscProducer::attach(std::span(peer->ring_mapping.data(), peer->ring_mapping.size()),
                                              shape.slot_count, static_cast<uint16_t>(hello.producer_id));
  if (!peer->producer) throw Error(fi_err::kEPROTO, "not a ring");
  if (shares && !config_.strict) {
    peer->table_mapping = map_checked(fds[2].get(), hello.table_bytes, false, "a peer's memory table");
    peer->table = mem::TableView(peer->table_mapping.data(), hello.mr_count_max);
    for (uint32_t i = 0; i < hello.segment_count; ++i) {
      uint64_t bytes;
      std::memcpy(&bytes, tail.data() + 8 * i, 8);
      peer->set_segment(i, map_checked(fds[3 + i].get(), bytes, true, "a peer's segment"));
    }
    if (!config_.cma) {
      peer->cma_reason = "switched off (WEFT_CMA=0)";
    } else if (credentials.pid == 0) {
      peer->cma_reason = "the peer lives in another process namespace";
    } else {
      // The live probe: read the peer's nonce where it says that it keeps it.
      std::array<uint8_t, 16> seen{};
      iovec local{seen.data(), seen.size()};
      iovec remote{reinterpret_cast<void*>(hello.probe_address), seen.size()};
      const ssize_t n = ::process_vm_readv(credentials.pid, &local, 1, &remote, 1, 0);
      if (n == static_cast<ssize_t>(seen.size()) && seen == hello.nonce) {
        peer->cma = true;
      } else {
        peer->cma_reason =
            n < 0 ? std::string("process_vm_readv: ") + std::strerror(errno) : "the probe read other bytes";
      }
    }
  } else {
    peer->cma_reason = "isolation is strict";
  }
  return peer;
}

void ShmLink::on_hello(uint32_t conn_id, const wire::Hello& hello, std::vector<UniqueFd>& fds,
                       std::span<const std::byte> tail) {
  Conn& conn = conns_.at(conn_id);
  const auto listener = listeners_.find(conn.listener);
  wire::RejectReason why = wire::RejectReason::none;
  if (hello.version != wire::kHelloVersion) {
    why = wire::RejectReason::version;
  } else if (listener == listeners_.end() || listener->second.address != hello.address) {
    why = wire::RejectReason::no_endpoint;
  } else if (conn.is_private = (hello.flags & wire::kHelloPrivate) != 0; config_.strict && !conn.is_private) {
    why = wire::RejectReason::wants_private;
  } else if (conns_.size() > kShmPeerMax) {
    why = wire::RejectReason::too_many_peers;
  } else if (!conn.is_private) {
    conn.producer_id = take_producer_id();
    if (conn.producer_id == 0) why = wire::RejectReason::too_many_peers;
  }
  if (why != wire::RejectReason::none) {
    reject(conn.fd.get(), why);
    drop_conn(conn_id, Status::refused);
    return;
  }
  std::shared_ptr<ShmPeer> peer = make_peer(conn, hello, fds, tail);
  if (conn.is_private) conn.area = std::make_unique<Area>(kPrivateArea);
  conn.address = hello.address;
  publish(conn_id, std::move(peer));
  wire::Hello welcome = own_hello(wire::HelloType::welcome, conn.is_private);
  welcome.address = hello.address;
  welcome.producer_id = conn.peer->inbox_id;
  welcome.ep_index = listener->second.ep_index;
  welcome.ep_generation = listener->second.ep_generation;
  const bool sent = send_hello(conn.fd.get(), welcome, *conn.peer->area);
  if (conn.is_private) conn.peer->area->close_fds();  // the peer has its own
  if (!sent) drop_conn(conn_id, Status::peer_gone);
}

// From here on the peer's frames are taken.
void ShmLink::publish(uint32_t conn_id, std::shared_ptr<ShmPeer> peer) {
  Conn& conn = conns_.at(conn_id);
  peer->conn_id = conn_id;
  conn.state = ConnState::live;
  conn.peer = std::move(peer);
  watch_process(*conn.peer);
  reasons_.erase(conn.address);
  if (!conn.is_private) {
    producers_[conn.producer_id] = conn.peer;
    return;
  }
  conn.peer->own_area = std::move(conn.area);
  conn.peer->area = conn.peer->own_area.get();
  const std::lock_guard lock(private_mutex_);
  private_.push_back(conn.peer);
  private_count_.store(private_.size(), std::memory_order_relaxed);
}

void ShmLink::on_welcome(uint32_t conn_id, const wire::Hello& hello, std::vector<UniqueFd>& fds,
                         std::span<const std::byte> tail) {
  Conn& conn = conns_.at(conn_id);
  // One connection a direction: another endpoint of a NIC that we know already is reached over the connection that is
  // there, if we made it. One that the other side made may be one too many to it, and then it hangs up at any time:
  // when two NICs call each other at once, each would drop its own call in favour of the other's, and both would be
  // gone.
  std::shared_ptr<ShmPeer> peer;
  for (const auto& [id, other] : conns_) {
    if (id != conn_id && other.outbound && other.state == ConnState::live && other.peer && !other.peer->dead() &&
        other.peer->uuid == hello.uuid) {
      peer = other.peer;
      break;
    }
  }
  const bool already = peer != nullptr;
  if (!already) {
    peer = make_peer(conn, hello, fds, tail);
    publish(conn_id, peer);
  }
  resolved_[conn.address] = {peer, hello.ep_index, hello.ep_generation};
  for (auto& token : conn.tokens) {
    happened_.push_back({Happened::resolved, std::move(token), Status::ok, peer, hello.ep_index, hello.ep_generation});
  }
  conn.tokens.clear();
  if (already) drop_conn(conn_id, Status::ok);
}

void ShmLink::request_segment(Peer& base, uint32_t segment) {
  auto& peer = static_cast<ShmPeer&>(base);
  const std::lock_guard lock(mutex_);
  if (peer.dead() || std::ranges::find(peer.segments_asked, segment) != peer.segments_asked.end()) return;
  wire::Hello ask = own_hello(wire::HelloType::segment_request, peer.is_private());
  ask.segment = segment;
  if (::send(peer.socket_fd, &ask, sizeof(ask), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
    peer.segments_asked.push_back(segment);
}

// A process that dies while its descriptors live on, in a child that none of its handlers around fork() saw, hangs up
// nothing.
void ShmLink::watch_process(const ShmPeer& peer) {
  if (peer.pidfd.valid()) (void)epoll_.try_add(peer.pidfd.get(), kNameOfProcess | peer.conn_id, EPOLLIN);
}

void ShmLink::notice_death() {
  deaths_.store(true, std::memory_order_release);
  waiter_.wake();
}

// Has a peer ended without a hang-up? It runs another program, which inherited its descriptors.
bool ShmLink::deaths_due() {
  if (deaths_.load(std::memory_order_acquire)) return true;
  const uint64_t now = coarse_ns();
  if (now - deaths_looked_ns_.load(std::memory_order_relaxed) < kDeathsLookNs) return false;
  deaths_looked_ns_.store(now, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  if (std::ranges::none_of(conns_, [](const auto& c) { return c.second.peer && c.second.peer->has_ended(); })) {
    return false;
  }
  deaths_.store(true, std::memory_order_release);
  return true;
}

void ShmLink::wake(Peer& base) noexcept {
  auto& peer = static_cast<ShmPeer&>(base);
  const std::lock_guard lock(peer.submit_lock);  // drop_conn() takes it after die(), before the socket is closed
  if (!peer.dead()) ring_doorbell(peer.socket_fd);
}

// Takes and sends nothing any more; poll_events() drops the connection, since its frames are just being read.
void ShmLink::hang_up(Peer& base, Status why) noexcept {
  auto& peer = static_cast<ShmPeer&>(base);
  if (peer.dead()) return;
  peer.hung_up.store(why, std::memory_order_relaxed);
  peer.die(why);
  hang_ups_.store(true, std::memory_order_seq_cst);
}

void ShmLink::drop_hung_up() {
  if (!hang_ups_.exchange(false, std::memory_order_seq_cst)) return;
  std::vector<std::pair<uint32_t, Status>> found;
  for (const auto& [id, conn] : conns_) {
    if (!conn.peer || conn.peer->conn_id != id) continue;
    const Status why = conn.peer->hung_up.load(std::memory_order_relaxed);
    if (why != Status::ok) found.emplace_back(id, why);
  }
  for (const auto& [id, why] : found) {
    reject(conns_.at(id).fd.get(), wire::RejectReason::malformed);
    drop_conn(id, why);
  }
}

void ShmLink::drop_conn(uint32_t conn_id, Status why) {
  const auto it = conns_.find(conn_id);
  if (it == conns_.end()) return;
  Conn conn = std::move(it->second);
  conns_.erase(it);
  epoll_.remove(conn.fd.get());
  for (auto& token : conn.tokens) happened_.push_back({Happened::resolved, std::move(token), why, nullptr, 0, 0});
  if (conn.peer && conn.peer->conn_id == conn_id) {
    if (conn.peer->pidfd.valid()) epoll_.remove(conn.peer->pidfd.get());
    if (why == Status::protocol) part(conn.fd.get(), wire::RejectReason::malformed);
    conn.peer->die(why);
    {
      const std::lock_guard lock(conn.peer->submit_lock);
      for (const uint32_t chunk : conn.peer->staged) conn.peer->area->staging.give_back(chunk);
      conn.peer->staged.clear();
    }
    conn.peer->socket_fd = -1;
    if (conn.is_private) {
      const std::lock_guard lock(private_mutex_);
      std::erase(private_, conn.peer);
      private_count_.store(private_.size(), std::memory_order_relaxed);
    }
    happened_.push_back({Happened::down, nullptr, why, conn.peer, 0, 0});
    std::erase_if(resolved_, [&](const auto& r) { return r.second.peer.lock() == conn.peer; });
  }
  if (conn.producer_id != 0) {
    producers_[conn.producer_id] = nullptr;
    {
      // Its claims, and those in the name of nobody, which only a peer that scribbles makes.
      std::vector<bool> alive(kShmPeerMax);
      for (const auto& [id, other] : conns_) alive[other.producer_id] = other.producer_id != 0;
      const std::lock_guard lock(shared_.inbox_mutex);
      shared_.inbox.consumer.producers_dead([&](uint16_t id) { return id >= kShmPeerMax || !alive[id]; });
    }
    shared_.staging.consumed(conn.producer_id).store(0, std::memory_order_release);
    free_producers_.push_back(conn.producer_id);  // oldest first: an id rests long before it is used again
  }
  happened_count_.store(happened_.size(), std::memory_order_release);
}

size_t ShmLink::poll_events(FrameSink& sink) {
  std::vector<Happened> happened;
  size_t n_events = 0;
  const bool deaths = deaths_due();
  {
    const std::lock_guard lock(mutex_);
    drop_hung_up();
    epoll_event events[64];
    const int n = epoll_.wait(events, 64, 0);
    for (int i = 0; i < n; ++i) {
      const uint64_t name = events[i].data.u64;
      if (name == kNameAudit) {
        audit_shared();
      } else if (listeners_.contains(static_cast<uint32_t>(name))) {
        accept_all(static_cast<uint32_t>(name));
      } else {
        on_packet(static_cast<uint32_t>(name));
        // What it still said was heard.
        if ((name & kNameOfProcess) != 0) drop_conn(static_cast<uint32_t>(name), Status::peer_gone);
      }
      ++n_events;
    }
    if (deaths) {
      deaths_.store(false, std::memory_order_relaxed);
      std::vector<uint32_t> ended;
      for (const auto& [id, conn] : conns_) {
        if (conn.peer && conn.peer->has_ended()) ended.push_back(id);
      }
      for (const uint32_t id : ended) drop_conn(id, Status::peer_gone);
      n_events += ended.size();
    }
    {
      // A process that polls all the time does not come to prepare_sleep().
      const std::lock_guard ring(shared_.inbox_mutex);
      if (shared_.inbox.consumer.audit() == ring::PollStatus::corrupt) frames_lost_.store(true);
    }
    if (!retries_.empty() || has_pending_handshake_) {
      const uint64_t now = clock_.now_ns();
      std::deque<Retry> retries;
      retries.swap(retries_);
      for (Retry& r : retries) {
        std::shared_ptr<void> kept = r.token;
        const Status status =
            now > r.deadline_ns ? Status::timeout : start_connect(r.address, std::move(r.token), r.is_private);
        if (status == Status::again) {
          retries_.push_back({r.address, std::move(kept), r.deadline_ns, r.is_private});
        } else if (status != Status::ok) {
          happened_.push_back({Happened::resolved, std::move(kept), status, nullptr, 0, 0});
        }
      }
      std::vector<uint32_t> late;
      for (const auto& [id, conn] : conns_) {
        if (conn.state != ConnState::live && now > conn.deadline_ns) late.push_back(id);
      }
      for (const uint32_t id : late) drop_conn(id, Status::timeout);
    }
    has_pending_handshake_ =
        std::any_of(conns_.begin(), conns_.end(), [](const auto& c) { return c.second.state != ConnState::live; });
    if (n > 0) watch_shared();
    happened.swap(happened_);
    happened_count_.store(0, std::memory_order_release);
  }
  for (const Happened& h : happened) {
    switch (h.kind) {
      case Happened::resolved:
        sink.on_resolved(h.token, h.status, h.peer, h.ep_index, h.ep_generation);
        break;
      case Happened::segment:
        sink.on_segment(h.peer);
        break;
      case Happened::down:
        sink.on_peer_down(h.peer);
        break;
    }
  }
  return n_events + happened.size();
}

// ---- set-up ------------------------------------------------------------------------------------------------------

ShmLink::ShmLink(const ShmConfig& config, mem::Table& table, mem::SegmentSet& segments, Clock& clock, Random& random,
                 Waiter& waiter)
    : config_(config),
      table_(table),
      segments_(segments),
      clock_(clock),
      random_(random),
      waiter_(waiter),
      audit_timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
      spare_fd_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      shared_(kSharedArea),
      producers_(kShmPeerMax) {
  for (size_t i = 0; i < 16; i += 8) {
    const uint64_t u = random.next(), v = random.next();
    std::memcpy(uuid_.data() + i, &u, 8);
    std::memcpy(nonce_.data() + i, &v, 8);
  }
  mem::NicId id;
  std::memcpy(&id, uuid_.data(), sizeof(id));
  table_.set_nic_id(id);
  for (uint32_t i = 1; i < kShmPeerMax; ++i) free_producers_.push_back(i);
  if (!audit_timer_.valid()) throw Error(fi_err::kEMFILE, std::string("timerfd: ") + std::strerror(errno));
  epoll_.add(audit_timer_.get(), kNameAudit);
  waiter_.watch(epoll_.fd());
}

ShmLink::~ShmLink() {
  for (const auto& [id, conn] : conns_) {
    if (conn.state == ConnState::live) part(conn.fd.get(), wire::RejectReason::none);
  }
}

uint32_t ShmLink::take_producer_id() {
  if (free_producers_.empty()) return 0;
  const uint32_t id = free_producers_.front();
  free_producers_.pop_front();
  return id;
}

void ShmLink::claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) {
  Listener listener{listen_at(address, random_), address, ep_index, ep_generation};
  const std::lock_guard lock(mutex_);
  const uint32_t id = next_id_++;
  epoll_.add(listener.fd.get(), id);
  listeners_.emplace(id, std::move(listener));
}

void ShmLink::release(const wire::EpAddress& address) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto it = listeners_.begin(); it != listeners_.end(); ++it) {
    if (it->second.address == address) {
      epoll_.remove(it->second.fd.get());
      listeners_.erase(it);
      return;
    }
  }
}

void ShmLink::after_fork_in_child() noexcept {
  // The parent's descriptors must not live on in the child, or nobody would notice the parent's death.
  for (auto& [id, listener] : listeners_) listener.fd.reset();
  for (auto& [id, conn] : conns_) {
    conn.fd.reset();
    if (conn.peer) conn.peer->pidfd.reset();
  }
  audit_timer_.reset();
  spare_fd_.reset();
  shared_.close_fds();
  epoll_.close();
}

std::string ShmLink::explain(const wire::EpAddress& address) const {
  const std::lock_guard lock(mutex_);
  const auto it = reasons_.find(address);
  return it == reasons_.end() ? std::string{} : it->second;
}

std::vector<std::shared_ptr<Peer>> ShmLink::peers() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Peer>> all;
  for (const auto& [id, conn] : conns_) {
    if (conn.peer && conn.state == ConnState::live) all.push_back(conn.peer);
  }
  return all;
}

}  // namespace weft::link
