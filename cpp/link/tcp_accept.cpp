// cpp/link/tcp_accept.cpp: callers that have proved nothing yet. They shut out neither each other nor the application.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "link/descriptors.hpp"
#include "link/tcp.hpp"
#include "link/tcp_socket.hpp"

namespace weft::link {

namespace {

constexpr size_t kPendingMax = 256;  // callers whose greeting is under way

void turn_away(int fd) noexcept {
  wire::Greeting g;
  g.type = wire::GreetingType::reject;
  g.reason = wire::TcpReject::busy;
  (void)send_greeting(fd, g);
}

}  // namespace

void TcpLink::accept_all() {
  for (;;) {
    sockaddr_storage from;
    socklen_t length = sizeof(from);
    UniqueFd fd(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid() && (errno == EMFILE || errno == ENFILE) && spare_fd_.valid()) {
      // Out of descriptors. The call would stay in the queue and wake us for ever: take it with the spare one, hang up.
      spare_fd_.reset();
      const UniqueFd refused(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      spare_fd_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!refused.valid()) return;
      continue;
    }
    if (!fd.valid()) return;
    if (!has_room_for(fd)) {
      turn_away(fd.get());
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
    p.deadline_ns = clock_.now_ns() + config_.timeout_ns;
    p.greeting.emplace(false, secret_, self(), uint16_t{0}, wire::HostAddress{});
    const uint64_t id = next_id_++;
    if (!events_->try_add(fd.get(), id, EPOLLIN | EPOLLRDHUP)) continue;
    p.fd = std::move(fd);
    pending_.emplace(id, std::move(p));
    set_timer(true);
    hear(id, true);  // mostly its hello is there already, and then no newcomer can push it out
  }
}

// Where there are too many callers, or only descriptors of the reserve, the oldest silent one makes room.
bool TcpLink::has_room_for(UniqueFd& fd) {
  size_t callers = 0;
  for (const auto& [id, p] : pending_) callers += p.outbound ? 0 : 1;
  const bool leaves = leaves_reserve(fd.get());
  if (callers < kPendingMax && leaves) return true;
  if (!evict_silent()) return false;
  if (leaves) return true;
  UniqueFd lower(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (lower.valid()) fd = std::move(lower);
  return leaves_reserve(fd.get());
}

// The oldest caller that has said nothing has had the most time. One that has greeted is not pushed out: it is a round
// trip away from its proof, and its own deadline ends it otherwise.
bool TcpLink::evict_silent() {
  std::vector<uint64_t> silent;  // oldest first
  for (const auto& [id, p] : pending_) {
    if (!p.outbound && !p.heard) silent.push_back(id);
  }
  for (const uint64_t id : silent) {
    hear(id, true);  // it may have greeted meanwhile
    const auto it = pending_.find(id);
    if (it == pending_.end()) return true;
    if (it->second.heard) continue;
    turn_away(it->second.fd.get());
    give_up(id, Status::refused, "too many callers at once, and it had not greeted");
    return true;
  }
  return false;
}

}  // namespace weft::link
