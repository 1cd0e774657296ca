// cpp/link/tcp_accept.cpp: callers that have not proved the secret yet, and the limits that keep them from locking out
// each other and the application.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "link/descriptors.hpp"
#include "link/tcp.hpp"
#include "link/tcp_socket.hpp"

namespace weft::link {

namespace {

// True if the limits count the addresses as one caller: an IPv4 address, or an IPv6 /64 network, which one host may
// own.
bool same_origin(const wire::HostAddress& a, const wire::HostAddress& b) noexcept {
  return a.family == b.family && std::memcmp(a.ip.data(), b.ip.data(), a.family == 4 ? 4 : 8) == 0;
}

}  // namespace

void TcpLink::accept_all() {
  mutex_.assert_held();
  for (size_t accepted = 0; accepted < kAcceptsMax; ++accepted) {
    if (!spare_fd_.valid()) spare_fd_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    sockaddr_storage from;
    socklen_t length = sizeof(from);
    UniqueFd fd(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid() && (errno == EMFILE || errno == ENFILE) && spare_fd_.valid()) {
      // Out of descriptors. The call would stay queued and wake us again and again: accept it with the spare descriptor
      // and hang up.
      spare_fd_.reset();
      UniqueFd refused(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      const bool more = refused.valid();
      if (more) turn_away(refused.get(), wire::TcpReject::busy);
      refused.reset();  // the spare descriptor has room again
      spare_fd_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!more) return;
      ++statistics_.refused;
      continue;
    }
    if (!fd.valid()) return;
    if (!has_room_for(fd, from_sockaddr(from))) {
      turn_away(fd.get(), wire::TcpReject::busy);
      note({}, "a call from " + text_of(from_sockaddr(from)) + ": too many callers at once, or too few descriptors");
      ++statistics_.refused;
      continue;
    }
    set_options(fd.get(), config_.timeout_ns);
    Pending p;
    p.remote = from_sockaddr(from);
    sockaddr_storage own;
    length = sizeof(own);
    const bool within = ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
                        from_sockaddr(own).ip == p.remote.ip;
    if (within || is_loopback(p.remote)) set_unpaced(fd.get());
    p.waiting_ns = clock_.now_ns();
    p.deadline_ns = p.waiting_ns + config_.timeout_ns;
    p.greeting = std::make_unique<Handshake>(false, *secret_, self(p.remote), uint16_t{0}, wire::HostAddress{});
    const uint64_t id = next_id_++;
    if (!events_->try_add(fd.get(), id, EPOLLIN | EPOLLRDHUP)) continue;
    p.fd = std::move(fd);
    pending_.emplace(id, std::move(p));
    set_timer(true);
    hear(id, true);  // the hello has usually arrived already; it protects the caller from eviction
  }
}

// Limits the callers whose greeting is under way, in total and per address. From half the limit on, each caller has
// config_.hurry_ns for its next message. At the limit, or when only reserved descriptors are left, the oldest caller
// without a hello is evicted.
bool TcpLink::has_room_for(UniqueFd& fd, const wire::HostAddress& from) {
  mutex_.assert_held();
  const auto callers = [&](const wire::HostAddress* of) {
    mutex_.assert_held();
    return static_cast<size_t>(std::ranges::count_if(pending_, [&](const auto& entry) {
      return !entry.second.outbound && (of == nullptr || same_origin(entry.second.remote, *of));
    }));
  };
  for (const wire::HostAddress* of : {&from, static_cast<const wire::HostAddress*>(nullptr)}) {
    const size_t limit = of != nullptr ? kCallersOfOneMax : kCallersMax;
    if (callers(of) >= limit / 2) hurry_callers(of);
    if (callers(of) >= limit && !evict_silent(of)) return false;
  }
  if (leaves_reserve(fd.get())) return true;
  if (!evict_silent(nullptr)) return false;
  UniqueFd lower(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (lower.valid()) fd = std::move(lower);
  return leaves_reserve(fd.get());
}

// Ends the greetings of callers whose next message is overdue.
void TcpLink::hurry_callers(const wire::HostAddress* of) {
  mutex_.assert_held();
  const uint64_t now = clock_.now_ns();
  std::vector<uint64_t> slow;
  for (const auto& [id, p] : pending_) {
    if (!p.outbound && p.waiting_ns != 0 && now - p.waiting_ns > config_.hurry_ns &&
        (of == nullptr || same_origin(p.remote, *of))) {
      slow.push_back(id);
    }
  }
  for (const uint64_t id : slow) {
    const int fd = pending_.at(id).fd.get();
    std::byte first;
    if (::recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) > 0) continue;  // data has arrived: the polling thread reads it
    turn_away(fd, wire::TcpReject::busy);
    give_up(id, Status::refused, "the caller kept us waiting while other callers came");
  }
}

// Evicts the oldest caller (of that address) without a hello, which has had the most time. A caller that has sent its
// hello stays: it is one round trip away from its proof.
bool TcpLink::evict_silent(const wire::HostAddress* of) {
  mutex_.assert_held();
  std::vector<uint64_t> silent;  // oldest first
  for (const auto& [id, p] : pending_) {
    if (!p.outbound && !p.heard && (of == nullptr || same_origin(p.remote, *of))) silent.push_back(id);
  }
  for (const uint64_t id : silent) {
    hear(id, true);  // its hello may have arrived in the meantime
    const auto it = pending_.find(id);
    if (it == pending_.end()) return true;
    if (it->second.heard) continue;
    turn_away(it->second.fd.get(), wire::TcpReject::busy);
    give_up(id, Status::refused, "too many callers at once, and this one had not greeted");
    return true;
  }
  return false;
}

}  // namespace weft::link
