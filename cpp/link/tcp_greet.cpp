// cpp/link/tcp_greet.cpp: greetings of both directions, until a connection lives or has failed.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "link/tcp.hpp"
#include "link/tcp_socket.hpp"

namespace weft::link {

namespace {

constexpr size_t kLiveMax = 4096;
constexpr size_t kAnswersMax = 4;  // per round

// The address for calls to a caller: the IP address it called from, and the port in its hello. The IP address in its
// hello is ignored, so that a member cannot impersonate another host.
wire::HostAddress seen_as(const wire::HostAddress& remote, const wire::HostAddress& listen) noexcept {
  if (listen.family == 0) return {};
  wire::HostAddress host = remote;
  host.port = listen.port;
  return host;
}

// Our address as the peer sees it: the IP address of our end, with our listening port.
wire::HostAddress us_from(int fd, const wire::HostAddress& listen) noexcept {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) return {};
  wire::HostAddress host = seen_as(from_sockaddr(own), listen);
  host.scope = 0;  // the scope is meaningless on another host
  return host;
}

std::string why_of(wire::TcpReject reason, uint16_t version) {
  std::string why = text_of(reason);
  if (reason == wire::TcpReject::version) {
    why += " (" + std::to_string(version) + ", this one " + std::to_string(wire::kTcpVersion) + ")";
  }
  return why;
}

}  // namespace

// Reads the hellos that have arrived, so that greets() knows the callers. The polling thread reads the proofs.
void TcpLink::take_hellos() {
  mutex_.assert_held();
  if (!listener_.valid()) return;
  accept_all();
  std::vector<uint64_t> silent;
  for (const auto& [id, p] : pending_) {
    if (!p.outbound && !p.heard) silent.push_back(id);
  }
  for (const uint64_t id : silent) {
    if (pending_.contains(id)) hear(id, true);
  }
}

// True if the NIC at `host` has called us and its greeting is under way.
bool TcpLink::greets(const wire::HostAddress& host, uint16_t vni) const {
  mutex_.assert_held();
  return std::ranges::any_of(pending_, [&](const auto& entry) {
    const Pending& p = entry.second;
    return p.heard && p.hello.vni == vni && seen_as(p.remote, p.hello.listen) == host;
  });
}

// Tie-break for simultaneous calls: if we are already calling this caller, or are connected to it by a call of ours,
// the NIC with the smaller uuid keeps its own connection. A caller that does not listen is never rejected for this
// reason.
bool TcpLink::crosses_ours(const Pending& p) {
  mutex_.assert_held();
  const wire::Greeting& hello = p.hello;
  if (p.outbound || hello.listen.family == 0 || !(uuid_ < hello.uuid)) return false;
  const wire::HostAddress caller = seen_as(p.remote, hello.listen);
  for (const auto& [id, other] : pending_) {
    if (other.outbound && other.vni == hello.vni && other.remote == caller) return true;
  }
  for (const auto& peer : live_) {
    const TcpPeer::About& about = peer->about;
    if (!about.outbound || about.vni != hello.vni || about.uuid != hello.uuid || about.us != hello.called) continue;
    // Reject once per connection. A caller that calls again did not find our connection: it knows us by another
    // address, or it has lost the connection without our knowledge. In the latter case its kernel answers the ping with
    // a reset.
    if (peer->crossed || peer->dead() || peer->broken() != Status::ok) continue;
    peer->crossed = true;
    peer->ping();
    return true;
  }
  return false;
}

void TcpLink::on_pending(uint64_t id, uint32_t events) {
  mutex_.assert_held();
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;
  Pending& p = it->second;
  if (p.connecting) {
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
    int error = 0;
    socklen_t size = sizeof(error);
    (void)::getsockopt(p.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      give_up(id, status_of_errno(error), std::strerror(error));
      return;
    }
    p.connecting = false;
    epoll_event e{};
    e.events = EPOLLIN | EPOLLRDHUP;
    e.data.u64 = id;
    (void)::epoll_ctl(events_->fd(), EPOLL_CTL_MOD, p.fd.get(), &e);
    wire::HostAddress called = p.remote;
    called.scope = 0;  // the scope is meaningless on another host
    p.greeting = std::make_unique<Handshake>(true, *secret_, self(p.remote), p.vni, called);
    // If the peer has already rejected us, the send fails; hear() below then reads the reason.
    if (send_greeting(p.fd.get(), p.greeting->hello())) return;
  }
  hear(id, false);
}

// Answering a hello costs about 0.3 ms, sending one costs an attacker nothing. So answer only a few hellos per round
// and serve open connections in between.
void TcpLink::answer_hellos() {
  mutex_.assert_held();
  for (size_t answered = 0; answered < kAnswersMax && !unanswered_.empty();) {
    const uint64_t id = unanswered_.front();
    unanswered_.pop_front();
    const auto it = pending_.find(id);
    if (it == pending_.end()) continue;
    ++answered;
    it->second.waiting_ns = clock_.now_ns();
    on_greeting(id, it->second.hello);
  }
}

void TcpLink::hear(uint64_t id, bool hello_only) {
  mutex_.assert_held();
  Pending& p = pending_.at(id);
  for (;;) {
    const ssize_t n = ::recv(p.fd.get(), p.in.data() + p.have, p.in.size() - p.have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      // A NIC that refuses sends a reject first, so a hang-up without one means that the peer died.
      give_up(id, n == 0 ? Status::peer_gone : status_of_errno(errno),
              n == 0 ? "the other side hung up during the greeting: is it a NIC of Weft?" : std::strerror(errno));
      return;
    }
    p.have += static_cast<size_t>(n);
    // The first four bytes are enough to detect another protocol.
    uint32_t magic = 0;
    if (p.have >= sizeof(magic)) std::memcpy(&magic, p.in.data(), sizeof(magic));
    if (p.have >= sizeof(magic) && magic != wire::kTcpMagic) {
      give_up(id, Status::refused, "the message is no greeting of Weft");
      return;
    }
    if (const auto other = wire::parse_other_version(std::span(p.in).first(p.have))) {
      on_greeting(id, *other);
      return;
    }
    if (p.have < p.in.size()) continue;
    p.have = 0;
    const auto greeting = wire::parse_greeting(p.in);
    if (!greeting || (!p.outbound && p.waiting_ns == 0)) {  // or a second greeting before our answer to the first
      give_up(id, Status::refused, "the message is no greeting of Weft");
      return;
    }
    if (!p.outbound && !p.heard && greeting->type == wire::GreetingType::hello) {
      p.heard = true;
      p.hello = *greeting;
      p.waiting_ns = 0;
      unanswered_.push_back(id);
      return;
    }
    const bool last = greeting->type == wire::GreetingType::welcome || greeting->type == wire::GreetingType::proof;
    on_greeting(id, *greeting);
    // Packets follow the last greeting; the connection reads them.
    if (last || hello_only || !pending_.contains(id)) return;
  }
}

void TcpLink::on_greeting(uint64_t id, const wire::Greeting& in) {
  mutex_.assert_held();
  Pending& p = pending_.at(id);
  wire::Greeting out;
  const auto crossed = [&] {
    if (!crosses_ours(p)) return false;
    turn_away(p.fd.get(), wire::TcpReject::crossed);
    give_up(id, Status::again, "both NICs called each other; our connection is used");
    return true;
  };
  if (in.type == wire::GreetingType::hello && p.heard && crossed()) return;
  const Handshake::Step step = p.greeting->on(in, &out);
  // Check again: a call of ours that stopped waiting for this greeting may be under way now.
  if (step == Handshake::Step::last && crossed()) return;
  switch (step) {
    case Handshake::Step::reply:
      if (!send_greeting(p.fd.get(), out)) give_up(id, Status::peer_gone, "the other side hung up");
      return;
    case Handshake::Step::last:
      if (live_.size() >= kLiveMax) {
        turn_away(p.fd.get(), wire::TcpReject::busy);
        give_up(id, Status::refused, "there are " + std::to_string(kLiveMax) + " connections already");
      } else if (!send_greeting(p.fd.get(), out)) {
        give_up(id, Status::peer_gone, "the other side hung up");
      } else {
        ++statistics_.accepted;
        go_live(id);
      }
      return;
    case Handshake::Step::done:
      go_live(id);
      return;
    case Handshake::Step::refused:
      (void)send_greeting(p.fd.get(), out);
      give_up(id, status_of(p.greeting->reason()), why_of(p.greeting->reason(), in.version));
      return;
    case Handshake::Step::failed:
      p.busy = p.greeting->reason() == wire::TcpReject::busy;
      if (p.busy && p.outbound) {  // call again until the operation's deadline
        reasons_[p.remote] = "calling " + text_of(p.remote) + ": " + text_of(wire::TcpReject::busy);
      }
      give_up(id, status_of(p.greeting->reason()),
              "the other side refused: " + why_of(p.greeting->reason(), in.version));
      return;
  }
}

void TcpLink::go_live(uint64_t id) {
  mutex_.assert_held();
  auto node = pending_.extract(id);
  Pending& p = node.mapped();
  events_->remove(p.fd.get());
  TcpPeer::About about;
  about.uuid = p.greeting->theirs().uuid;
  about.vni = p.greeting->vni();
  about.outbound = p.outbound;
  about.remote = p.remote;
  about.host = p.outbound ? p.remote : seen_as(p.remote, p.greeting->theirs().listen);
  if (p.outbound) about.us = us_from(p.fd.get(), p.greeting->hello().listen);
  const auto peer = std::make_shared<TcpPeer>(this, routes_, std::move(p.fd), p.greeting->keys(), about, &*data_, id);
  if (all_watched_) peer->watch(true);
  live_.push_back(peer);
  live_count_.store(live_.size(), std::memory_order_release);
  watch();
  reasons_.erase(about.host);
  for (TcpPeer::Call& c : p.calls) {
    if (const auto route = routes_.find(c.address.nic)) ask(*peer, *route, std::move(c));
  }
  warm();
}

void TcpLink::give_up(uint64_t id, Status status, const std::string& why) {
  mutex_.assert_held();
  auto node = pending_.extract(id);
  Pending& p = node.mapped();
  events_->remove(p.fd.get());
  if (status != Status::again) {
    note(p.outbound ? p.remote : wire::HostAddress{},
         (p.outbound ? "calling " : "a call from ") + text_of(p.remote) + ": " + why);
    ++statistics_.refused;
  }
  for (TcpPeer::Call& c : p.calls) {
    if (status == Status::again) {
      retries_.push_back({std::move(c), clock_.now_ns() + (p.busy ? kBusyNs : kRetryNs)});
    } else {
      happen({Happened::resolved, std::move(c.token), status, nullptr, 0, 0});
    }
  }
}

}  // namespace weft::link
