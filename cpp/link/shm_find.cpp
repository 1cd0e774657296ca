// cpp/link/shm_find.cpp: reaching an address (an endpoint of this process, a connection, or a call), and our greeting.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "link/shm_names.hpp"
#include "link/shm_peer.hpp"

namespace weft::link {

namespace {

bool is_gone(pid_t pid) noexcept {
  const UniqueFd process = open_process(pid);
  return process.valid() ? has_exited(process.get()) : errno == ESRCH;
}

}  // namespace

Link::Resolving ShmLink::resolve(const wire::EpAddress& address, const std::shared_ptr<void>& token, Found* found) {
  if (address.nic >= wire::kRemoteNic) return Resolving::no;
  {
    const Guard lock(mutex_);
    if (const auto known = resolved_.find(address); known != resolved_.end()) {
      const auto peer = known->second.peer.lock();
      // Use the cached answer only while the peer's table shows the same generation of the endpoint; otherwise ask
      // again.
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

// `is_private`: the connection gets an area of its own.
Status ShmLink::start_connect(const wire::EpAddress& address, std::shared_ptr<void> token, bool is_private) {
  mutex_.assert_held();
  Conn conn;
  conn.fd = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!conn.fd.valid()) return Status::no_memory;
  std::string why;
  if (const Status status = connect_to(conn.fd.get(), address, &why); status != Status::ok) {
    if (!why.empty()) note(address, why);
    return status;
  }
  // A child that inherited a dead process's descriptors keeps the socket's name alive, but no process will answer.
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
  if (is_private) conn.area->close_fds();  // the peer has its own descriptors
  if (!sent) {
    if (conn.producer_id != 0) free_producers_.push_back(conn.producer_id);
    // The peer evicted this caller before its greeting arrived, or closed the endpoint; the next call finds out.
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

// Calls again, because the other side asked for it (wants_private, busy).
void ShmLink::call_again(uint32_t conn_id, bool is_private) {
  mutex_.assert_held();
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

// Sends `hello` with the descriptors that its type carries; false, with errno set: it cannot be sent now.
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

}  // namespace weft::link
