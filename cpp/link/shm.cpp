// cpp/link/shm.cpp: see shm.hpp. Fast part first (submit, poll), then the handshake, then set-up.
#include "link/shm.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "link/cma.hpp"
#include "mem/guard.hpp"

namespace weft::link {

namespace {

constexpr uint64_t kNameDoorbell = 1;  // epoll names: 1 doorbell, otherwise the id of a listener or a connection

uint64_t coarse_ns() noexcept {
  timespec ts;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

socklen_t socket_name(const wire::EpAddress& a, sockaddr_un* out) noexcept {
  std::memset(out, 0, sizeof(*out));
  out->sun_family = AF_UNIX;
  const int n = std::snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "weft-%u-%u-%u-%u-%u", wire::kHelloVersion,
                              static_cast<unsigned>(::geteuid()), a.nic, a.vni, a.pid);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
}

// Maps what another process sent. Its size is asked from the kernel and must be sealed: an access behind the end of a
// file, or to one that is cut off later, is a SIGBUS.
Mapping map_checked(int fd, size_t size, bool writable, const char* what) {
  struct stat status{};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (::fstat(fd, &status) != 0 || size == 0 || static_cast<uint64_t>(status.st_size) < size || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
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
      pollfd p{pidfd.get(), POLLIN, 0};
      if (pidfd.valid() && ::poll(&p, 1, 0) == 1) return Status::peer_gone;
      alive_checked_ns.store(now, std::memory_order_relaxed);
    }
    return cma_copy_all(process_id, to_peer, local, remote);
  }
  [[nodiscard]] uint64_t consumed() const noexcept {
    return reinterpret_cast<const std::atomic<uint64_t>*>(staging.data())[producer_id].load(std::memory_order_acquire);
  }
  void die() noexcept { mark_dead(); }
  void set_segment(uint32_t i, Mapping mapping) {
    std::byte* base = mapping.data();
    (void)::madvise(base, mapping.size(), MADV_HUGEPAGE);  // as the owner does
    segment_bytes_[i] = mapping.size();
    segment_mappings.push_back(std::move(mapping));
    segments_[i].store(base, std::memory_order_release);
  }

  std::array<uint8_t, 16> uuid{};
  uint32_t producer_id = 0;  // under which we produce into its ring
  UniqueFd doorbell, pidfd;
  Mapping ring_mapping, staging, table_mapping;
  std::optional<ring::MpscProducer> producer;
  std::vector<Mapping> segment_mappings;
  uint32_t segment_count_told = 0;
  int socket_fd = -1;  // owned by the connection
  uint32_t conn_id = 0;
  std::vector<uint32_t> segments_asked;
  std::atomic<uint64_t> alive_checked_ns{0};

  SpinLock submit_lock;           // keeps the order of staged chunks the order of frames
  std::deque<uint32_t> staged;    // chunks on their way to this peer, oldest first
  uint64_t staged_freed = 0;      // how many of them it has consumed
  uint64_t consumed_from_it = 0;  // staged payloads of its that we are done with
};

// ---- frames: the fast part ---------------------------------------------------------------------------------------

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
  if (payload.size() > wire::kInlinePayloadMax) {
    if (!peer.staged.empty()) {  // what the peer has consumed is free again
      for (uint64_t consumed = peer.consumed(); peer.staged_freed < consumed && !peer.staged.empty();
           ++peer.staged_freed) {
        const std::lock_guard chunks(chunk_lock_);
        free_chunks_.push_back(peer.staged.front());
        peer.staged.pop_front();
      }
    }
    {
      const std::lock_guard chunks(chunk_lock_);
      // No peer may hold more chunks than it leaves free (a dynamic threshold): one that has stopped reading keeps half
      // of them, the next a third, and there is always one for a peer that reads.
      if (free_chunks_.size() <= peer.staged.size()) {
        chunks_wanted_.store(true, std::memory_order_relaxed);
        return Status::again;
      }
      chunk = free_chunks_.back();
      free_chunks_.pop_back();
    }
    frame.where = wire::PayloadWhere::staged;
    frame.staged_chunk = chunk;
  } else if (!payload.empty()) {
    frame.where = wire::PayloadWhere::in_frame;
  }
  const auto give_back = [&](Status status) {
    if (chunk != kNoChunk) {
      const std::lock_guard chunks(chunk_lock_);
      free_chunks_.push_back(chunk);
    }
    return status;
  };
  const ring::Claim slot = peer.producer->try_claim();
  if (!slot) return give_back(Status::again);
  const std::span<std::byte> out = slot.payload();
  wire::emit(frame, out);
  const bool staged = chunk != kNoChunk;
  if (!payload.empty()) {
    std::byte* const to = staged ? staged_chunk(chunk) : out.data() + sizeof(wire::Frame);
    // It is the application's memory, whose pages may fail.
    if (!mem::copy_guarded(to, payload.data(), payload.size())) [[unlikely]] {
      peer.producer->abandon(slot);
      return give_back(Status::fault);
    }
  }
  if (staged) peer.staged.push_back(chunk);
  const size_t used = sizeof(wire::Frame) + (staged ? 0 : payload.size());
  peer.producer->publish(slot, used);
  if (peer.producer->needs_doorbell()) ring_eventfd(peer.doorbell.get());
  return Status::ok;
}

size_t ShmLink::poll(FrameSink& sink, size_t budget) {
  if (chunks_wanted_.load(std::memory_order_relaxed)) reclaim_all();
  size_t n = 0;
  ring::Message message;
  while (n < budget) {
    ring::PollStatus polled;
    {
      const std::lock_guard lock(consumer_mutex_);
      polled = consumer_.poll(message);
    }
    if (polled == ring::PollStatus::empty) break;
    ++n;
    if (polled == ring::PollStatus::corrupt) continue;  // that slot is free again; who did it cannot be told
    const uint16_t producer = message.producer;
    const std::shared_ptr<ShmPeer> peer = producer < producers_.size() ? producers_[producer] : nullptr;
    if (!peer) continue;  // its connection is gone
    const std::span<const std::byte> bytes = message.bytes();
    const auto frame = wire::parse(bytes);
    std::span<const std::byte> payload;
    if (frame) {
      if (frame->where == wire::PayloadWhere::in_frame) {
        payload = bytes.subspan(sizeof(wire::Frame), frame->payload_length);
      } else if (frame->where == wire::PayloadWhere::staged && frame->staged_chunk < kStagingChunkCount) {
        payload = {peer->staging.data() + kStagingHeaderBytes + size_t{frame->staged_chunk} * wire::kStagedPayloadMax,
                   frame->payload_length};
      }
    }
    const bool staged = frame && frame->where == wire::PayloadWhere::staged;
    if (!frame || (staged && frame->staged_chunk >= kStagingChunkCount)) {
      // It does not speak our protocol: hang up. Its operations fail, nobody else notices.
      const std::lock_guard lock(mutex_);
      drop_conn(peer->conn_id, Status::protocol);
      continue;
    }
    sink.on_frame(peer, *frame, payload);
    if (staged) {
      // SYNC POINT: the payload was read before the sender may use its chunk again.
      reinterpret_cast<std::atomic<uint64_t>*>(staging_.data())[producer].store(++peer->consumed_from_it,
                                                                                std::memory_order_release);
    }
  }
  store_hint();
  return n;
}

void ShmLink::store_hint() noexcept {
  const std::lock_guard lock(consumer_mutex_);
  const auto hint = consumer_.hint();
  hint_free_.store(hint.free, std::memory_order_relaxed);
  hint_word_.store(hint.word, std::memory_order_relaxed);
}

void ShmLink::reclaim_all() noexcept {
  chunks_wanted_.store(false, std::memory_order_relaxed);
  for (const auto& peer : producers_) {
    if (!peer) continue;
    const std::lock_guard lock(peer->submit_lock);
    for (uint64_t consumed = peer->consumed(); peer->staged_freed < consumed && !peer->staged.empty();
         ++peer->staged_freed) {
      const std::lock_guard chunks(chunk_lock_);
      free_chunks_.push_back(peer->staged.front());
      peer->staged.pop_front();
    }
  }
}

bool ShmLink::prepare_sleep() {
  const std::lock_guard lock(consumer_mutex_);
  consumer_.audit();  // polls never read the ring's tail; a scribbled one would look full to producers for ever
  consumer_.arm();
  return consumer_.empty() && happened_count_.load(std::memory_order_acquire) == 0;
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
      if (peer && !peer->dead() && peer->table.valid() &&
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
    const Status status = start_connect(address, token);
    if (status == Status::again) {
      retries_.push_back({address, token, clock_.now_ns() + kHandshakeNs});
    } else if (status != Status::ok) {
      happened_.push_back({Happened::resolved, token, status, nullptr, 0, 0});
    }
    happened_count_.store(happened_.size(), std::memory_order_release);
  }
  waiter_.wake();
  return Resolving::later;
}

Status ShmLink::start_connect(const wire::EpAddress& address, std::shared_ptr<void> token) {
  Conn conn;
  conn.fd = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!conn.fd.valid()) return Status::no_memory;
  sockaddr_un name;
  const socklen_t length = socket_name(address, &name);
  if (::connect(conn.fd.get(), reinterpret_cast<sockaddr*>(&name), length) != 0) {
    return errno == EAGAIN ? Status::again : Status::no_endpoint;
  }
  ucred credentials{};
  socklen_t credentials_size = sizeof(credentials);
  if (::getsockopt(conn.fd.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &credentials_size) != 0 ||
      credentials.uid != ::geteuid()) {
    return Status::refused;  // somebody else sits on that name
  }
  conn.producer_id = take_producer_id();
  if (conn.producer_id == 0) return Status::no_memory;
  wire::Hello hello = own_hello(wire::HelloType::hello);
  hello.address = address;
  hello.producer_id = conn.producer_id;
  if (!send_hello(conn.fd.get(), hello)) {
    free_producers_.push_back(conn.producer_id);
    return errno == EAGAIN ? Status::again : Status::no_endpoint;
  }
  conn.outbound = true;
  conn.state = ConnState::awaiting_welcome;
  conn.address = address;
  conn.deadline_ns = clock_.now_ns() + kHandshakeNs;
  conn.tokens.push_back(std::move(token));
  const uint32_t id = next_id_++;
  if (!epoll_.try_add(conn.fd.get(), id, EPOLLIN | EPOLLRDHUP)) {
    free_producers_.push_back(conn.producer_id);
    return Status::no_memory;
  }
  conns_.emplace(id, std::move(conn));
  return Status::ok;
}

wire::Hello ShmLink::own_hello(wire::HelloType type) const {
  wire::Hello h;
  h.type = type;
  h.flags = config_.strict ? wire::kHelloStrict : 0;
  h.uuid = uuid_;
  h.ring_slot_count = kRingSlotCount;
  h.staging_bytes = staging_.size();
  h.table_bytes = table_.layout().bytes;
  h.mr_count_max = table_.mr_count_max();
  h.probe_address = reinterpret_cast<uint64_t>(nonce_.data());
  h.nonce = nonce_;
  return h;
}

// Sends `hello` with the descriptors that its type carries; false with errno set when it cannot be sent now.
bool ShmLink::send_hello(int fd, wire::Hello hello) {
  std::vector<int> fds;
  std::vector<uint64_t> sizes;
  if (hello.type == wire::HelloType::hello || hello.type == wire::HelloType::welcome) {
    fds = {doorbell_.get(), ring_fd_.get(), staging_fd_.get()};
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
    Conn conn;
    conn.state = ConnState::awaiting_hello;
    conn.listener = listener_id;
    conn.deadline_ns = clock_.now_ns() + kHandshakeNs;
    const uint32_t id = next_id_++;
    if (!epoll_.try_add(fd.get(), id, EPOLLIN | EPOLLRDHUP)) continue;  // out of kernel memory: it may call again
    conn.fd = std::move(fd);
    conns_.emplace(id, std::move(conn));
  }
}

void ShmLink::reject(int fd, wire::RejectReason reason) noexcept {
  wire::Hello h;
  h.type = wire::HelloType::reject;
  h.reason = reason;
  (void)!::send(fd, &h, sizeof(h), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ShmLink::on_packet(uint32_t conn_id) {
  constexpr int kPacketsMax = 64;  // a round: others want to be served, too
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
          drop_conn(conn_id, hello->reason == wire::RejectReason::no_endpoint ? Status::no_endpoint : Status::refused);
          return;
        case wire::HelloType::segment_request: {
          if (conn.state != ConnState::live) {
            drop_conn(conn_id, Status::protocol);
            return;
          }
          wire::Hello answer = own_hello(wire::HelloType::segment);
          answer.segment = hello->segment;
          answer.segment_bytes = config_.strict ? 0 : segments_.bytes(hello->segment);
          if (!send_hello(conn.fd.get(), answer)) drop_conn(conn_id, Status::peer_gone);
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
    } catch (const Error&) {
      reject(conn.fd.get(), wire::RejectReason::malformed);
      drop_conn(conn_id, Status::no_memory);
      return;
    }
  }
}

// Maps what the other side sent. Every size is checked against what its kind must have.
std::shared_ptr<ShmPeer> ShmLink::make_peer(int socket_fd, const wire::Hello& hello, std::vector<UniqueFd>& fds,
                                            std::span<const std::byte> tail) {
  const bool shares = (hello.flags & wire::kHelloStrict) == 0;
  const size_t expected = 3 + (shares ? 1 + hello.segment_count : 0);
  const size_t staging_bytes = kStagingHeaderBytes + size_t{kStagingChunkCount} * wire::kStagedPayloadMax;
  if (fds.size() != expected || hello.segment_count > mem::kSegmentCountMax ||
      hello.ring_slot_count != kRingSlotCount || hello.staging_bytes != staging_bytes || hello.producer_id == 0 ||
      hello.producer_id >= kShmPeerMax || tail.size() != (shares ? 8 * hello.segment_count : 0) ||
      (shares && (hello.mr_count_max == 0 || hello.mr_count_max > wire::kKeySlotMax ||
                  mem::TableLayout(hello.mr_count_max).bytes != hello.table_bytes))) {
    throw Error(fi_err::kEPROTO, "malformed hello");
  }
  auto peer = std::make_shared<ShmPeer>(this);
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  (void)::getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size);
  peer->process_id = credentials.pid;
  peer->uuid = hello.uuid;
  peer->producer_id = hello.producer_id;
  peer->socket_fd = socket_fd;
  peer->doorbell = std::move(fds[0]);
  peer->ring_mapping = map_checked(fds[1].get(), ring::ring_bytes(kRingSlotCount), true, "a peer's ring");
  peer->staging = map_checked(fds[2].get(), staging_bytes, false, "a peer's staging memory");
  peer->producer = ring::MpscProducer::attach(std::span(peer->ring_mapping.data(), peer->ring_mapping.size()),
                                              static_cast<uint16_t>(hello.producer_id));
  if (!peer->producer || peer->producer->slot_count() != kRingSlotCount) throw Error(fi_err::kEPROTO, "not a ring");
  if (shares && !config_.strict) {
    peer->table_mapping = map_checked(fds[3].get(), hello.table_bytes, false, "a peer's memory table");
    peer->table = mem::TableView(peer->table_mapping.data(), hello.mr_count_max);
    for (uint32_t i = 0; i < hello.segment_count; ++i) {
      uint64_t bytes;
      std::memcpy(&bytes, tail.data() + 8 * i, 8);
      peer->set_segment(i, map_checked(fds[4 + i].get(), bytes, true, "a peer's segment"));
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
      peer->pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, credentials.pid, 0)));
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
  } else {
    conn.producer_id = take_producer_id();
    if (conn.producer_id == 0) why = wire::RejectReason::too_many_peers;
  }
  if (why != wire::RejectReason::none) {
    reject(conn.fd.get(), why);
    drop_conn(conn_id, Status::refused);
    return;
  }
  conn.peer = make_peer(conn.fd.get(), hello, fds, tail);
  conn.peer->conn_id = conn_id;
  conn.address = hello.address;
  conn.state = ConnState::live;
  producers_[conn.producer_id] = conn.peer;
  wire::Hello welcome = own_hello(wire::HelloType::welcome);
  welcome.address = hello.address;
  welcome.producer_id = conn.producer_id;
  welcome.ep_index = listener->second.ep_index;
  welcome.ep_generation = listener->second.ep_generation;
  if (!send_hello(conn.fd.get(), welcome)) drop_conn(conn_id, Status::peer_gone);
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
    peer = make_peer(conn.fd.get(), hello, fds, tail);
    peer->conn_id = conn_id;
    conn.peer = peer;
    conn.state = ConnState::live;
    producers_[conn.producer_id] = peer;
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
  wire::Hello ask = own_hello(wire::HelloType::segment_request);
  ask.segment = segment;
  if (::send(peer.socket_fd, &ask, sizeof(ask), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
    peer.segments_asked.push_back(segment);
}

void ShmLink::drop_conn(uint32_t conn_id, Status why) {
  const auto it = conns_.find(conn_id);
  if (it == conns_.end()) return;
  Conn conn = std::move(it->second);
  conns_.erase(it);
  epoll_.remove(conn.fd.get());
  for (auto& token : conn.tokens) happened_.push_back({Happened::resolved, std::move(token), why, nullptr, 0, 0});
  if (conn.peer && conn.peer->conn_id == conn_id) {
    conn.peer->die();
    {
      const std::lock_guard lock(conn.peer->submit_lock);
      const std::lock_guard chunks(chunk_lock_);
      for (const uint32_t chunk : conn.peer->staged) free_chunks_.push_back(chunk);
      conn.peer->staged.clear();
    }
    conn.peer->socket_fd = -1;
    happened_.push_back({Happened::down, nullptr, why, conn.peer, 0, 0});
    std::erase_if(resolved_, [&](const auto& r) { return r.second.peer.lock() == conn.peer; });
  }
  if (conn.producer_id != 0) {
    producers_[conn.producer_id] = nullptr;
    {
      const std::lock_guard lock(consumer_mutex_);
      consumer_.producer_dead(static_cast<uint16_t>(conn.producer_id));
    }
    reinterpret_cast<std::atomic<uint64_t>*>(staging_.data())[conn.producer_id].store(0, std::memory_order_release);
    free_producers_.push_back(conn.producer_id);  // oldest first: an id rests long before it is used again
  }
  happened_count_.store(happened_.size(), std::memory_order_release);
}

size_t ShmLink::poll_events(FrameSink& sink) {
  std::vector<Happened> happened;
  size_t n_events = 0;
  {
    const std::lock_guard lock(mutex_);
    epoll_event events[64];
    const int n = epoll_.wait(events, 64, 0);
    for (int i = 0; i < n; ++i) {
      const uint64_t name = events[i].data.u64;
      if (name == kNameDoorbell) {
        drain_eventfd(doorbell_.get());
      } else if (listeners_.contains(static_cast<uint32_t>(name))) {
        accept_all(static_cast<uint32_t>(name));
      } else {
        on_packet(static_cast<uint32_t>(name));
      }
      ++n_events;
    }
    if (!retries_.empty() || has_pending_handshake_) {
      const uint64_t now = clock_.now_ns();
      std::deque<Retry> retries;
      retries.swap(retries_);
      for (Retry& r : retries) {
        std::shared_ptr<void> kept = r.token;
        const Status status = now > r.deadline_ns ? Status::timeout : start_connect(r.address, std::move(r.token));
        if (status == Status::again) {
          retries_.push_back({r.address, std::move(kept), r.deadline_ns});
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
      waiter_(waiter),
      doorbell_(make_eventfd()),
      spare_fd_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      ring_fd_(make_memfd("weft-ring", ring::ring_bytes(kRingSlotCount))),
      ring_(Mapping::shared(ring_fd_.get(), ring::ring_bytes(kRingSlotCount), true, "the ring")),
      consumer_(ring::MpscConsumer::create(std::span(ring_.data(), ring_.size()), kRingSlotCount).value()),
      staging_fd_(
          make_memfd("weft-staging", kStagingHeaderBytes + size_t{kStagingChunkCount} * wire::kStagedPayloadMax)),
      staging_(Mapping::shared(staging_fd_.get(),
                               kStagingHeaderBytes + size_t{kStagingChunkCount} * wire::kStagedPayloadMax, true,
                               "staging memory")),
      producers_(kShmPeerMax) {
  seal_size(ring_fd_.get());
  seal_read_only(staging_fd_.get());
  for (size_t i = 0; i < 16; i += 8) {
    const uint64_t u = random.next(), v = random.next();
    std::memcpy(uuid_.data() + i, &u, 8);
    std::memcpy(nonce_.data() + i, &v, 8);
  }
  for (uint32_t i = 0; i < kStagingChunkCount; ++i) free_chunks_.push_back(kStagingChunkCount - 1 - i);
  for (uint32_t i = 1; i < kShmPeerMax; ++i) free_producers_.push_back(i);
  epoll_.add(doorbell_.get(), kNameDoorbell);
  waiter_.watch(epoll_.fd());
}

ShmLink::~ShmLink() = default;

uint32_t ShmLink::take_producer_id() {
  if (free_producers_.empty()) return 0;
  const uint32_t id = free_producers_.front();
  free_producers_.pop_front();
  return id;
}

void ShmLink::claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) {
  Listener listener{UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), address, ep_index,
                    ep_generation};
  if (!listener.fd.valid()) throw Error(fi_err::kEMFILE, std::string("socket: ") + std::strerror(errno));
  sockaddr_un name;
  const socklen_t length = socket_name(address, &name);
  if (::bind(listener.fd.get(), reinterpret_cast<sockaddr*>(&name), length) != 0) {
    if (errno == EADDRINUSE) {
      throw Error(fi_err::kEADDRINUSE, "address " + address.text() +
                                           " is taken by another endpoint on this host: choose another service number, "
                                           "or none and let the endpoint choose");
    }
    throw Error(fi_err::kEIO, "bind " + address.text() + ": " + std::strerror(errno));
  }
  if (::listen(listener.fd.get(), 4096) != 0) throw Error(fi_err::kEIO, std::string("listen: ") + std::strerror(errno));
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
    if (conn.peer) {
      conn.peer->doorbell.reset();
      conn.peer->pidfd.reset();
    }
  }
  doorbell_.reset();
  spare_fd_.reset();
  ring_fd_.reset();
  staging_fd_.reset();
  epoll_.close();
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
