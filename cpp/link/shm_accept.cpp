// cpp/link/shm_accept.cpp: callers: the limit of callers without a greeting, and rejecting callers.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "link/descriptors.hpp"
#include "link/shm_names.hpp"
#include "link/shm_peer.hpp"

namespace weft::link {

void ShmLink::accept_all(uint32_t listener_id) {
  mutex_.assert_held();
  for (size_t accepted = 0; accepted < kAcceptsMax; ++accepted) {
    if (!spare_fd_.valid()) spare_fd_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const int listener = listeners_.at(listener_id).fd.get();
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid() && (errno == EMFILE || errno == ENFILE) && spare_fd_.valid()) {
      // Out of descriptors. The call would stay in the queue and wake us again and again: accept it with the spare
      // descriptor and hang up.
      spare_fd_.reset();
      UniqueFd refused(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      const bool more = refused.valid();  // false: the queue was empty (accept checks for EMFILE first)
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
    if (!epoll_.try_add(fd.get(), id, EPOLLIN | EPOLLRDHUP)) continue;  // out of kernel memory: the caller may retry
    conn.fd = std::move(fd);
    conns_.emplace(id, std::move(conn));
    on_packet(id);  // usually the greeting has arrived already, and the caller then cannot be evicted
    if (const auto it = conns_.find(id); it == conns_.end() || it->second.state != ConnState::awaiting_hello) continue;
    pending_.push_back(id);
    if (pending_.size() <= kShmPendingMax) continue;
    std::erase_if(pending_, [&](uint32_t one) {  // callers that have greeted or hung up
      mutex_.assert_held();
      const auto it = conns_.find(one);
      return it == conns_.end() || it->second.state != ConnState::awaiting_hello;
    });
    if (pending_.size() > kShmPendingMax) (void)evict_oldest_pending();
  }
}

// Too many callers lack a greeting: evicts the oldest, which has had the most time. The list has no callers that have
// greeted.
bool ShmLink::evict_oldest_pending() {
  mutex_.assert_held();
  while (!pending_.empty()) {
    const uint32_t id = pending_.front();
    pending_.pop_front();
    auto it = conns_.find(id);
    if (it == conns_.end() || it->second.state != ConnState::awaiting_hello) continue;
    on_packet(id);  // its greeting may have arrived in the meantime
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

// Tells the other side the reason for the hang-up.
void ShmLink::part(int fd, wire::RejectReason reason) noexcept {
  wire::Hello h;
  h.type = wire::HelloType::goodbye;
  h.reason = reason;
  (void)!::send(fd, &h, sizeof(h), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace weft::link
