// cpp/link/shm_greet.cpp: greetings until a connection lives, and segments that peers announce later.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "link/shm_peer.hpp"

namespace weft::link {

namespace {

// Maps a file from another process. The kernel's size of the file must be large enough and sealed: an access past the
// end of a file, or to a file truncated later, raises SIGBUS. Only memory files have seals, so the check of the seals
// comes first: fstat() of a file on a slow file system could block.
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

void ShmLink::note(const wire::EpAddress& address, const std::string& what) {
  mutex_.assert_held();
  if (reasons_.size() >= kReasonsMax) reasons_.clear();
  reasons_[address] = what;
}

void ShmLink::on_packet(uint32_t conn_id) {
  mutex_.assert_held();
  constexpr int kPacketsMax = 64;  // per round, so that one peer does not delay the others
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
      // The peer hung up with packets of ours unread. Read the packets it sent before that.
      if (errno == ECONNRESET && !std::exchange(was_reset, true)) continue;
      // A listener that closes with our call still in its queue resets the connection; its process may be alive.
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
      return;  // the remaining packets wake the thread again
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
          // The peer's table names a segment that the peer then denies: hang up, or operations would ask without end.
          if (!conn.peer || hello->segment >= mem::kSegmentCountMax || fds.size() != 1 || hello->segment_bytes == 0) {
            drop_conn(conn_id, Status::protocol);
            return;
          }
          if (conn.peer->segment_base(hello->segment) == nullptr) {
            Mapping mapping = map_checked(fds[0].get(), hello->segment_bytes, true, "a peer's segment");
            conn.peer->set_segment(hello->segment, std::move(mapping), std::move(fds[0]));
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

// Maps the memory that the other side sent, and checks the size of each file against the required size.
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
  auto peer = std::make_shared<ShmPeer>(this, clock_);
  peer->takes_briefs = !conn.is_private;
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  (void)::getsockopt(conn.fd.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size);
  peer->process_id = credentials.pid;
  // Open the pidfd before the probe: if another process has reused the caller's id, it does not have the nonce.
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
      Mapping mapping = map_checked(fds[3 + i].get(), bytes, true, "a peer's segment");
      peer->set_segment(i, std::move(mapping), std::move(fds[3 + i]));
    }
    if (!config_.cma) {
      peer->cma_reason = "switched off (WEFT_CMA=0)";
    } else if (credentials.pid == 0) {
      peer->cma_reason = "the peer lives in another process namespace";
    } else {
      // Probe: read the peer's nonce at the address in its hello.
      std::array<uint8_t, 16> seen{};
      iovec local{seen.data(), seen.size()};
      iovec remote{reinterpret_cast<void*>(hello.probe_address), seen.size()};
      const ssize_t n = ::process_vm_readv(credentials.pid, &local, 1, &remote, 1, 0);
      if (n == static_cast<ssize_t>(seen.size()) && seen == hello.nonce) {
        peer->cma = true;
        const auto job = [&](std::byte* ring, uint32_t id) {
          return reinterpret_cast<CopyJob*>(ring + shape.jobs_at()) + id;
        };
        if (!is_private) {
          peer->help.ours = job(shared_.inbox.memory(), peer->inbox_id);
          peer->help.theirs = job(peer->ring_mapping.data(), peer->producer_id);
        }
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
  mutex_.assert_held();
  Conn& conn = conns_.at(conn_id);
  const auto listener = listeners_.find(conn.listener);
  wire::RejectReason why = wire::RejectReason::none;
  if (hello.version != wire::kHelloVersion) {
    why = wire::RejectReason::version;
  } else if (listener == listeners_.end() || listener->second.address != hello.address) {
    why = wire::RejectReason::no_endpoint;
  } else if (conn.is_private = (hello.flags & wire::kHelloPrivate) != 0; config_.strict && !conn.is_private) {
    why = wire::RejectReason::wants_private;
  } else if (conns_.size() + parted_.size() > kShmPeerMax) {
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
  if (conn.is_private) conn.peer->area->close_fds();  // the peer has its own descriptors
  if (!sent) drop_conn(conn_id, Status::peer_gone);
}

// Publishes the peer: polls take its frames from now on.
void ShmLink::publish(uint32_t conn_id, std::shared_ptr<ShmPeer> peer) {
  mutex_.assert_held();
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
  const Guard lock(private_mutex_);
  private_.push_back(conn.peer);
  private_count_.store(private_.size(), std::memory_order_relaxed);
}

void ShmLink::on_welcome(uint32_t conn_id, const wire::Hello& hello, std::vector<UniqueFd>& fds,
                         std::span<const std::byte> tail) {
  mutex_.assert_held();
  Conn& conn = conns_.at(conn_id);
  // One connection per direction: if we already called this NIC for another endpoint, use that connection and drop the
  // new one. Do not reuse a connection that the other side made: when two NICs call each other at once, each would drop
  // its own call in favour of the other's, and both connections would be lost.
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
  const Guard lock(mutex_);
  if (peer.dead() || std::ranges::find(peer.segments_asked, segment) != peer.segments_asked.end()) return;
  wire::Hello ask = own_hello(wire::HelloType::segment_request, peer.is_private());
  ask.segment = segment;
  if (::send(peer.socket_fd, &ask, sizeof(ask), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
    peer.segments_asked.push_back(segment);
}

}  // namespace weft::link
