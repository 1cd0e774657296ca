// cpp/link/tcp_find.cpp: finding the NIC at an address: an open connection, a greeting that is under way, or a call.
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "link/tcp.hpp"
#include "link/tcp_names.hpp"
#include "link/tcp_socket.hpp"

namespace weft::link {

namespace {

// How long a call waits for a greeting that the peer has begun: some round trips to a distant host. The limit also
// bounds the delay that a caller without the secret can cause.
constexpr uint64_t kGreetingNs = 20'000'000;

}  // namespace

std::optional<wire::EpAddress> TcpLink::local_name(const wire::EpAddress& address) {
  const auto route = routes_.find(address.nic);
  if (!route) return std::nullopt;
  const wire::EpAddress name{route->nic, address.pid, address.vni, 0};
  std::optional<wire::HostAddress> bound, known_as;
  {
    const Guard lock(mutex_);
    bound = bound_;
    known_as = known_as_;
  }
  const bool everywhere = bound && is_wildcard(*bound);
  if (route->host == known_as || (route->host == bound && !everywhere)) return name;
  if (!is_ours(route->host)) return std::nullopt;
  if (everywhere && route->host.port == bound->port) return name;
  if (!config_.here_by_shm) return std::nullopt;
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  for (const bool wildcard : {true, false}) {
    sockaddr_un there;
    const socklen_t length = here_name(route->host, wildcard, &there);
    if (fd.valid() && ::connect(fd.get(), reinterpret_cast<sockaddr*>(&there), length) == 0) return name;
  }
  return std::nullopt;
}

std::string TcpLink::explain(const wire::EpAddress& address) const {
  const auto route = routes_.find(address.nic);
  if (!route) return {};
  const Guard lock(mutex_);
  const auto it = reasons_.find(route->host);
  return it == reasons_.end() ? std::string{} : it->second;
}

Link::Resolving TcpLink::resolve(const wire::EpAddress& address, const std::shared_ptr<void>& token, Found*) {
  const auto route = routes_.find(address.nic);
  if (!route) return Resolving::no;
  {
    const Guard lock(mutex_);
    if (!secret_) {
      reasons_[route->host] =
          "this process has no secret for the tcp link: give all hosts the same WEFT_SECRET or WEFT_SECRET_FILE, or "
          "weft.open(secret=...); one is made by: python -c 'import secrets; print(secrets.token_hex(32))'";
      happen({Happened::resolved, token, Status::secret, nullptr, 0, 0});
    } else if (!start()) {
      happen({Happened::resolved, token, Status::no_memory, nullptr, 0, 0});
    } else {
      reach(*route, {address, token, clock_.now_ns() + 2 * config_.timeout_ns});
    }
  }
  warm();
  waiter_.wake();
  return Resolving::later;
}

// Finds the newest connection: an older one may lead to a process that has been replaced, or may be lost on the peer's
// side only.
std::shared_ptr<TcpPeer> TcpLink::find(const wire::HostAddress& host, uint16_t vni) const {
  mutex_.assert_held();
  for (auto it = live_.rbegin(); it != live_.rend(); ++it) {
    const TcpPeer& peer = **it;
    if (peer.about.vni == vni && peer.about.host == host && !peer.dead() && peer.broken() == Status::ok) return *it;
  }
  return nullptr;
}

// Resolving threads call this too, so it must not open a connection: only the polling thread changes live_.
void TcpLink::reach(const Route& route, TcpPeer::Call call_, bool may_wait) {
  mutex_.assert_held();
  if (const auto peer = find(route.host, call_.address.vni)) {
    ask(*peer, route, std::move(call_));
    return;
  }
  for (auto& [id, pending] : pending_) {
    if (pending.outbound && pending.remote == route.host && pending.vni == call_.address.vni) {
      pending.calls.push_back(std::move(call_));
      return;
    }
  }
  if (may_wait) {
    take_hellos();
    if (greets(route.host, call_.address.vni)) {
      retries_.push_back({std::move(call_), clock_.now_ns() + kGreetingNs, true});
      return;
    }
  }
  call(route, std::move(call_));
}

void TcpLink::ask(TcpPeer& peer, const Route& route, TcpPeer::Call call_) {
  mutex_.assert_held();
  if (peer.asks_open >= wire::kTcpAsksMax) {  // retried when earlier resolves have been answered
    retries_.push_back({std::move(call_), clock_.now_ns() + kRetryNs});
    return;
  }
  wire::ResolveBody body;
  body.id = peer.next_ask++;
  body.address = {route.nic, call_.address.pid, call_.address.vni, 0};
  peer.asked.emplace(body.id, std::move(call_));
  ++peer.asks_open;
  peer.send_control(wire::PacketType::resolve, body);
}

Handshake::Self TcpLink::self(const wire::HostAddress& remote) {
  Handshake::Self s;
  s.uuid = uuid_;
  s.encrypt = config_.encryption == Encryption::automatic ? !is_loopback(remote) : config_.encryption == Encryption::on;
  if (known_as_) s.listen = *known_as_;
  s.listen.scope = 0;  // the scope is meaningless on another host
  for (wire::Bytes32* drawn : {&s.nonce, &s.scalar}) {
    for (size_t i = 0; i < drawn->size(); i += 8) {
      const uint64_t word = random_.next();
      std::memcpy(drawn->data() + i, &word, 8);
    }
  }
  return s;
}

void TcpLink::call(const Route& route, TcpPeer::Call call_) {
  mutex_.assert_held();
  sockaddr_storage name;
  const socklen_t length = to_sockaddr(route.host, &name);
  Pending p;
  p.fd = UniqueFd(::socket(name.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  p.remote = route.host;
  p.vni = call_.address.vni;
  p.outbound = p.connecting = true;
  p.deadline_ns = clock_.now_ns() + config_.timeout_ns;
  const uint64_t id = next_id_++;
  Status status = Status::ok;
  if (!p.fd.valid()) {
    status = Status::no_memory;
  } else {
    set_options(p.fd.get(), config_.timeout_ns);
    if (is_loopback(route.host) || is_ours(route.host)) set_unpaced(p.fd.get());
    if (::connect(p.fd.get(), reinterpret_cast<sockaddr*>(&name), length) != 0 && errno != EINPROGRESS) {
      status = status_of_errno(errno);
      reasons_[route.host] = "calling " + text_of(route.host) + ": " + std::strerror(errno);
    } else if (!events_->try_add(p.fd.get(), id, EPOLLOUT | EPOLLRDHUP)) {
      status = Status::no_memory;
    }
  }
  if (status != Status::ok) {
    happen({Happened::resolved, std::move(call_.token), status, nullptr, 0, 0});
    return;
  }
  ++statistics_.called;
  p.calls.push_back(std::move(call_));
  pending_.emplace(id, std::move(p));
  set_timer(true);
}

}  // namespace weft::link
