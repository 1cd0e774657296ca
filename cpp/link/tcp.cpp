// cpp/link/tcp.cpp: see tcp.hpp. Frames first, then finding peers, greetings, and what goes wrong.
#include "link/tcp.hpp"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "link/tcp_socket.hpp"

namespace weft::link {

namespace {

constexpr uint64_t kNameListener = 1, kNameTimer = 2, kNameData = 3;  // in events_; others are pending greetings
constexpr size_t kLiveMax = 4096, kLogMax = 64, kReasonsMax = 256;
constexpr size_t kAskEach = 4;         // with so few connections each is read; with more the kernel is asked which
constexpr int32_t kHotPolls = 20'000;  // without a packet, until polling leaves the sockets to the engine: some 10 ms
constexpr uint32_t kBusyPolls = 16;    // that found packets: whoever polls goes on without being woken
constexpr uint64_t kLingerNs = 30'000;
constexpr uint64_t kRetryNs = 50'000'000;
// For a peer's greeting that has begun: some round trips of a far host. Whoever has not proved yet that it knows the
// secret does not delay a call for longer.
constexpr uint64_t kGreetingNs = 20'000'000;

// The name by which processes of this host and user know that somebody who listens there can be reached by shm.
socklen_t here_name(const wire::HostAddress& host, bool wildcard, sockaddr_un* out) noexcept {
  std::memset(out, 0, sizeof(*out));
  out->sun_family = AF_UNIX;
  const std::string where = wildcard ? "*:" + std::to_string(host.port) : text_of(host);
  const int n = std::snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "weft-tcp-%u-%s",
                              static_cast<unsigned>(::geteuid()), where.c_str());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                std::min(static_cast<size_t>(n), sizeof(out->sun_path) - 2));
}

bool is_wildcard(const wire::HostAddress& host) noexcept {
  return host.ip == std::array<uint8_t, 16>{};
}

// An address of this network namespace: only such a one can be bound.
bool is_ours(const wire::HostAddress& host) noexcept {
  sockaddr_storage name;
  wire::HostAddress any_port = host;
  any_port.port = 0;
  const socklen_t length = to_sockaddr(any_port, &name);
  const UniqueFd fd(::socket(name.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd.valid() && ::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0;
}

// The address that packets to far away leave from; without a way out the first of an interface, or loopback.
wire::HostAddress usual_address(uint8_t family, uint16_t port) noexcept {
  // Documentation prefixes (RFC 5737, RFC 3849): connect() of a datagram socket only looks up the route.
  wire::HostAddress far = parse_host(family == 4 ? "192.0.2.1" : "2001:db8::1", 9);
  sockaddr_storage name;
  socklen_t length = to_sockaddr(far, &name);
  const UniqueFd fd(::socket(name.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (fd.valid() && ::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0) {
    length = sizeof(name);
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0) {
      wire::HostAddress found = from_sockaddr(name);
      found.port = port;
      return found;
    }
  }
  wire::HostAddress found = parse_host(family == 4 ? "127.0.0.1" : "::1", port);
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* a = all; a != nullptr; a = a->ifa_next) {
    if (a->ifa_addr == nullptr || (a->ifa_flags & IFF_UP) == 0 || (a->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const int wanted = family == 4 ? AF_INET : AF_INET6;
    if (a->ifa_addr->sa_family != wanted) continue;
    sockaddr_storage one{};
    std::memcpy(&one, a->ifa_addr, family == 4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    const wire::HostAddress candidate = from_sockaddr(one);
    if (candidate.scope != 0) continue;  // means nothing on another host
    found = candidate;
    found.port = port;
    break;
  }
  ::freeifaddrs(all);
  return found;
}

}  // namespace

// ---- frames ------------------------------------------------------------------------------------------------------

void TcpLink::warm() noexcept {
  hot_.store(kHotPolls, std::memory_order_relaxed);
}

Status TcpLink::submit(Peer& peer, wire::Frame& frame, std::span<const std::byte> payload) {
  warm();
  return static_cast<TcpPeer&>(peer).send(frame, payload);
}

void TcpLink::hang_up(Peer& peer, Status why) noexcept {
  static_cast<TcpPeer&>(peer).give_up(why, "it asks for more than it takes answers to");  // poll() drops it
}

size_t TcpLink::poll(FrameSink& sink, size_t budget) {
  if (live_count_.load(std::memory_order_relaxed) == 0) return 0;
  size_t n = 0;
  const auto serve = [&](const std::shared_ptr<TcpPeer>& peer) {
    try {
      if (n < budget) n += peer->receive(sink, peer, *this, budget - n);
    } catch (const std::exception&) {
      peer->give_up(Status::no_memory, "no memory");
    }
    // SYNC POINT: no socket tells of what was read and stays behind. Whoever looked before the flag was set, and sleeps
    // by now, is woken; whoever looks later sees it. For an answer that can be a millisecond late nobody is woken who
    // has not armed the sockets, which he does before he looks (prepare_sleep).
    if (peer->has_packets() || (peer->has_buffered() && armed_.load(std::memory_order_seq_cst))) [[unlikely]]
      waiter_.wake();
  };
  if (live_.size() <= kAskEach) {
    for (const auto& peer : live_) serve(peer);
  } else {
    epoll_event ready[64];
    const int count = data_->wait(ready, 64, 0);
    for (int i = 0; i < count; ++i) {
      const auto it = std::ranges::find(live_, ready[i].data.u64, [](const auto& p) { return p->id; });
      if (it != live_.end()) serve(*it);
    }
    for (const auto& peer : live_) {
      if (peer->has_buffered()) {
        serve(peer);
      } else if (peer->unflushed()) {
        peer->flush();
      }
    }
  }
  bool broken = false;
  for (const auto& peer : live_) broken = broken || peer->broken() != Status::ok;
  if (broken) [[unlikely]] {
    const std::lock_guard lock(mutex_);
    const std::vector<std::shared_ptr<TcpPeer>> all = live_;
    for (const auto& peer : all) {
      if (peer->broken() != Status::ok) drop(peer);
    }
    ++n;
  }
  if (n != 0) {
    warm();
    if (armed_.load(std::memory_order_relaxed) && ++busy_ >= kBusyPolls) {
      const std::lock_guard lock(mutex_);
      arm(false);
    }
    if (!heard_.load(std::memory_order_relaxed)) heard_.store(true, std::memory_order_relaxed);
  } else if (const int32_t hot = hot_.load(std::memory_order_relaxed); hot > 0) {
    hot_.store(hot - 1, std::memory_order_relaxed);
    if (hot == 1) {  // from here on the engine waits for the sockets
      const std::lock_guard lock(mutex_);
      arm(true);
    }
  }
  if (happened_count_.load(std::memory_order_acquire) != 0) deliver(sink);
  return n;
}

void TcpLink::leave_to_polls() {
  const bool armed = hot_.load(std::memory_order_relaxed) <= 0;
  if (armed_.load(std::memory_order_relaxed) == armed) return;
  const std::lock_guard lock(mutex_);
  arm(armed);
}

void TcpLink::arm(bool armed) {
  if (armed_.exchange(armed, std::memory_order_seq_cst) != armed) watch();
}

// Armed: a packet wakes the engine. Unarmed: polls read few connections one by one, which then are in no set; of many
// they ask the set, which then wakes nobody. Level-triggered: what is there when it is armed wakes at once.
void TcpLink::watch() {
  if (!events_) return;
  const bool armed = armed_.load(std::memory_order_relaxed), each = live_.size() <= kAskEach;
  const bool all = armed || !each;
  if (!all || !all_watched_) {
    for (const auto& peer : live_) peer->watch(all);
    all_watched_ = all;
  }
  if (const bool wanted = armed || each; data_watched_ != wanted) {
    data_watched_ = wanted;
    epoll_event e{};
    e.events = wanted ? EPOLLIN : 0u;
    e.data.u64 = kNameData;
    (void)::epoll_ctl(events_->fd(), EPOLL_CTL_MOD, data_->fd(), &e);
  }
}

bool TcpLink::prepare_sleep() {
  if (live_count_.load(std::memory_order_acquire) == 0) return happened_count_.load(std::memory_order_acquire) == 0;
  const std::lock_guard lock(mutex_);
  bool idle = happened_.empty();
  for (const auto& peer : live_) {
    if (peer->unflushed()) peer->flush();
    idle = idle && !peer->has_buffered() && peer->broken() == Status::ok;
  }
  if (!idle) return false;
  // To sleep and to be woken takes longer than the next packet, where one follows the other. Others may have the core.
  const uint64_t now = clock_.now_ns();
  if (heard_.exchange(false, std::memory_order_relaxed)) heard_ns_ = now;
  if (now - heard_ns_ < kLingerNs) {
    ::sched_yield();
    return false;
  }
  arm(true);  // what has come meanwhile wakes at once
  busy_ = 0;
  return std::ranges::none_of(live_, [](const auto& peer) { return peer->has_buffered(); });  // SYNC POINT: see poll()
}

bool TcpLink::has_timers() const {
  const std::lock_guard lock(mutex_);
  return !retries_.empty();
}

wire::ResolveBody TcpLink::on_resolve(TcpPeer& peer, const wire::ResolveBody& asked) {
  wire::ResolveBody answer = asked;
  answer.status = static_cast<int32_t>(Status::no_endpoint);
  answer.ep_index = answer.ep_generation = 0;
  const std::lock_guard lock(mutex_);
  const auto it = claimed_.find(asked.address);
  if (it != claimed_.end() && asked.address.vni == peer.about.vni) {
    answer.status = 0;
    answer.ep_index = it->second.first;
    answer.ep_generation = it->second.second;
  }
  return answer;
}

void TcpLink::on_resolved(TcpPeer& peer, const wire::ResolveBody& answer) {
  const std::lock_guard lock(mutex_);
  if (peer.asks_open != 0) --peer.asks_open;
  const auto it = peer.asked.find(answer.id);
  if (it == peer.asked.end()) return;  // asked too long ago
  const auto self = std::ranges::find(live_, &peer, [](const auto& p) { return p.get(); });
  const bool ok = answer.status == 0 && answer.ep_index < mem::kEpCountMax && self != live_.end();
  happen({Happened::resolved, std::move(it->second.token), ok ? Status::ok : Status::no_endpoint, ok ? *self : nullptr,
          answer.ep_index, answer.ep_generation});
  peer.asked.erase(it);
}

bool TcpLink::may_name(uint32_t ep_index, uint32_t ep_generation, uint16_t vni) {
  if (ep_index >= mem::kEpCountMax) return false;
  const mem::EpEntry& ep = table_.ep(ep_index);
  // Of an endpoint that was closed meanwhile the owner's check tells; its slot may be another VNI's by now.
  return ep.generation.load(std::memory_order_acquire) != ep_generation || ep.address.vni == vni || ep.address.vni == 0;
}

// ---- finding peers -----------------------------------------------------------------------------------------------

std::optional<wire::EpAddress> TcpLink::local_name(const wire::EpAddress& address) {
  const auto route = route_of(address.nic);
  if (!route) return std::nullopt;
  const wire::EpAddress name{route->nic, address.pid, address.vni, 0};
  {
    const std::lock_guard lock(mutex_);
    if (known_as_ && route->host == *known_as_) return name;
    if (bound_ && route->host.port == bound_->port && !is_wildcard(*bound_) && route->host == *bound_) return name;
  }
  if (!is_ours(route->host)) return std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    if (bound_ && is_wildcard(*bound_) && route->host.port == bound_->port) return name;
  }
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
  const auto route = route_of(address.nic);
  if (!route) return {};
  const std::lock_guard lock(mutex_);
  const auto it = reasons_.find(route->host);
  return it == reasons_.end() ? std::string{} : it->second;
}

Link::Resolving TcpLink::resolve(const wire::EpAddress& address, const std::shared_ptr<void>& token, Found*) {
  const auto route = route_of(address.nic);
  if (!route) return Resolving::no;
  {
    const std::lock_guard lock(mutex_);
    if (secret_.empty()) {
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

// The newest: an older one may be to a process that another has replaced, or one that the peer has lost, and nobody has
// told us yet.
std::shared_ptr<TcpPeer> TcpLink::find(const wire::HostAddress& host, uint16_t vni) const {
  for (auto it = live_.rbegin(); it != live_.rend(); ++it) {
    const TcpPeer& peer = **it;
    if (peer.about.vni == vni && peer.about.host == host && !peer.dead() && peer.broken() == Status::ok) return *it;
  }
  return nullptr;
}

// By whoever resolves, too, so no connection comes to life in here: live_ is changed by who polls.
void TcpLink::reach(const Route& route, TcpPeer::Call call_, bool may_wait) {
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
  if (peer.asks_open >= wire::kTcpAsksMax) {  // once others are answered
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

Handshake::Self TcpLink::self() {
  Handshake::Self s;
  s.uuid = uuid_;
  if (known_as_) s.listen = *known_as_;
  s.listen.scope = 0;  // means nothing on another host
  for (size_t i = 0; i < s.nonce.size(); i += 8) {
    const uint64_t word = random_.next();
    std::memcpy(s.nonce.data() + i, &word, 8);
  }
  return s;
}

void TcpLink::call(const Route& route, TcpPeer::Call call_) {
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
    wire::HostAddress called = route.host;
    called.scope = 0;
    p.greeting.emplace(true, secret_, self(), p.vni, called);
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

// ---- greetings ---------------------------------------------------------------------------------------------------

namespace {

// Where a caller can be called: the port that it names, at the address that it called from. Of its own address it says
// what it likes, and who knows the secret is still not to be taken for another host.
wire::HostAddress seen_as(const wire::HostAddress& remote, const wire::HostAddress& listen) noexcept {
  if (listen.family == 0) return {};
  wire::HostAddress host = remote;
  host.port = listen.port;
  return host;
}

// What the other end makes of it, of us: our end's address, with the port where we listen.
wire::HostAddress us_from(int fd, const wire::HostAddress& listen) noexcept {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) return {};
  wire::HostAddress host = seen_as(from_sockaddr(own), listen);
  host.scope = 0;  // means nothing on another host
  return host;
}

}  // namespace

// What callers have said by now, as far as a caller is known by it. Their proofs are left to who polls.
void TcpLink::take_hellos() {
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

// The NIC there has called us, and its greeting is under way.
bool TcpLink::greets(const wire::HostAddress& host, uint16_t vni) const {
  return std::ranges::any_of(pending_, [&](const auto& entry) {
    const Pending& p = entry.second;
    return p.heard && p.greeting->vni() == vni && seen_as(p.remote, p.greeting->theirs().listen) == host;
  });
}

// Our call to whoever greets here is under way, or it has answered it already: then ours goes on, if our uuid is the
// smaller one. A NIC that cannot be called has nothing but its own calls.
bool TcpLink::crosses_ours(const Pending& p) {
  const wire::Greeting& hello = p.greeting->theirs();
  if (p.outbound || hello.listen.family == 0 || !(uuid_ < hello.uuid)) return false;
  const wire::HostAddress caller = seen_as(p.remote, hello.listen);
  for (const auto& [id, other] : pending_) {
    if (other.outbound && other.vni == hello.vni && other.remote == caller) return true;
  }
  for (const auto& peer : live_) {
    const TcpPeer::About& about = peer->about;
    if (!about.outbound || about.vni != hello.vni || about.uuid != hello.uuid || about.us != hello.called) continue;
    // Only once: who calls again does not find this connection. It knows us by another name, or has lost the connection
    // without our knowledge; in that case its kernel answers the ping with a reset.
    if (peer->crossed || peer->dead() || peer->broken() != Status::ok) continue;
    peer->crossed = true;
    peer->ping();
    return true;
  }
  return false;
}

void TcpLink::on_pending(uint64_t id, uint32_t events) {
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
    if (!send_greeting(p.fd.get(), p.greeting->hello())) give_up(id, Status::peer_gone, "it hung up");
    return;
  }
  hear(id, false);
}

void TcpLink::hear(uint64_t id, bool hello_only) {
  Pending& p = pending_.at(id);
  for (;;) {
    const ssize_t n = ::recv(p.fd.get(), p.in.data() + p.have, p.in.size() - p.have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      // A NIC that refuses says so first; one that was killed at this moment says nothing.
      give_up(id, n == 0 ? Status::peer_gone : status_of_errno(errno),
              n == 0 ? "it hung up during the greeting: is it a NIC of Weft?" : std::strerror(errno));
      return;
    }
    p.have += static_cast<size_t>(n);
    // A stranger's first bytes are enough to know one.
    uint32_t magic = 0;
    if (p.have >= sizeof(magic)) std::memcpy(&magic, p.in.data(), sizeof(magic));
    if (p.have >= sizeof(magic) && magic != wire::kTcpMagic) {
      give_up(id, Status::refused, "what it said is no greeting of Weft");
      return;
    }
    if (p.have < p.in.size()) continue;
    p.have = 0;
    const auto greeting = wire::parse_greeting(p.in);
    if (!greeting) {
      give_up(id, Status::refused, "what it said is no greeting of Weft");
      return;
    }
    const bool last = greeting->type == wire::GreetingType::welcome || greeting->type == wire::GreetingType::proof;
    on_greeting(id, *greeting);
    // What follows the last greeting are packets, which the connection reads.
    if (last || hello_only || !pending_.contains(id)) return;
  }
}

void TcpLink::on_greeting(uint64_t id, const wire::Greeting& in) {
  Pending& p = pending_.at(id);
  wire::Greeting out;
  const Handshake::Step step = p.greeting->on(in, &out);
  if (!p.outbound && step == Handshake::Step::reply) p.heard = true;
  // At its proof once more: a call of ours that waited for it in vain may be under way by now.
  if ((step == Handshake::Step::reply || step == Handshake::Step::last) && crosses_ours(p)) {
    out = {};
    out.type = wire::GreetingType::reject;
    out.reason = wire::TcpReject::crossed;
    (void)send_greeting(p.fd.get(), out);
    give_up(id, Status::again, "both called each other; ours goes on");
    return;
  }
  switch (step) {
    case Handshake::Step::reply:
      if (!send_greeting(p.fd.get(), out)) give_up(id, Status::peer_gone, "it hung up");
      return;
    case Handshake::Step::last:
      if (live_.size() >= kLiveMax) {
        out = {};
        out.type = wire::GreetingType::reject;
        out.reason = wire::TcpReject::busy;
        (void)send_greeting(p.fd.get(), out);
        give_up(id, Status::refused, "there are " + std::to_string(kLiveMax) + " connections already");
      } else if (!send_greeting(p.fd.get(), out)) {
        give_up(id, Status::peer_gone, "it hung up");
      } else {
        ++statistics_.accepted;
        go_live(id);
      }
      return;
    case Handshake::Step::done:
      go_live(id);
      return;
    case Handshake::Step::refused: {
      (void)send_greeting(p.fd.get(), out);
      std::string why = text_of(p.greeting->reason());
      if (p.greeting->reason() == wire::TcpReject::version) {
        why += " (" + std::to_string(in.version) + ", this one " + std::to_string(wire::kTcpVersion) + ")";
      }
      give_up(id, status_of(p.greeting->reason()), why);
      return;
    }
    case Handshake::Step::failed:
      give_up(id, status_of(p.greeting->reason()), std::string("it refused: ") + text_of(p.greeting->reason()));
      return;
  }
}

void TcpLink::go_live(uint64_t id) {
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
  const auto peer = std::make_shared<TcpPeer>(this, std::move(p.fd), p.greeting->keys(), about, &*data_, id);
  if (all_watched_) peer->watch(true);
  live_.push_back(peer);
  live_count_.store(live_.size(), std::memory_order_release);
  watch();
  reasons_.erase(about.host);
  for (TcpPeer::Call& c : p.calls) {
    if (const auto route = route_of(c.address.nic)) ask(*peer, *route, std::move(c));
  }
  warm();
}

void TcpLink::give_up(uint64_t id, Status status, const std::string& why) {
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
      retries_.push_back({std::move(c), clock_.now_ns() + kRetryNs});
    } else {
      happen({Happened::resolved, std::move(c.token), status, nullptr, 0, 0});
    }
  }
}

// ---- what goes wrong ---------------------------------------------------------------------------------------------

void TcpLink::note(const wire::HostAddress& host, const std::string& what) {
  if (reasons_.size() >= kReasonsMax) reasons_.clear();
  if (host.family != 0) reasons_[host] = what;
  if (log_.size() >= kLogMax) log_.pop_front();
  log_.push_back(what);
  if (config_.log) std::fprintf(stderr, "weft: tcp: %s\n", what.c_str());
}

void TcpLink::happen(Happened&& what) {
  happened_.push_back(std::move(what));
  happened_count_.store(happened_.size(), std::memory_order_release);
}

void TcpLink::drop(const std::shared_ptr<TcpPeer>& peer) {
  const Status status = peer->broken() != Status::ok ? peer->broken() : Status::peer_gone;
  happened_.reserve(happened_.size() + peer->asked.size() + 1);  // or not at all: the next poll tries again
  try {
    const std::string why = peer->why();
    note(peer->about.host, "the connection " + std::string(peer->about.outbound ? "to " : "from ") +
                               text_of(peer->about.remote) + " is lost: " + (why.empty() ? "closed" : why));
  } catch (const std::bad_alloc&) {  // what waits on it is told without a reason
  }
  ++statistics_.lost;
  peer->die(status);
  std::erase(live_, peer);
  live_count_.store(live_.size(), std::memory_order_release);
  watch();
  for (auto& [id, c] : peer->asked) happen({Happened::resolved, std::move(c.token), status, nullptr, 0, 0});
  peer->asked.clear();
  happen({Happened::down, nullptr, status, peer, 0, 0});
}

void TcpLink::tick() {
  uint64_t expirations;
  (void)!::read(timer_.get(), &expirations, sizeof(expirations));
  const uint64_t now = clock_.now_ns();
  std::vector<uint64_t> late;
  for (const auto& [id, p] : pending_) {
    if (now > p.deadline_ns) late.push_back(id);
  }
  for (const uint64_t id : late) {
    const bool connecting = pending_.at(id).connecting;
    give_up(id, Status::timeout, connecting ? "no answer in time" : "the greeting did not come to an end in time");
  }
  for (const auto& peer : live_) {
    peer->ping_if_silent();
    std::erase_if(peer->asked, [&](auto& asked) {
      if (now <= asked.second.deadline_ns) return false;
      happen({Happened::resolved, std::move(asked.second.token), Status::timeout, nullptr, 0, 0});
      return true;
    });
  }
  set_timer(!pending_.empty() || !live_.empty());
}

void TcpLink::set_timer(bool on) {
  if (timer_on_ == on) return;
  timer_on_ = on;
  // A quarter of the timeout: a silent connection says something four times before it would be given up.
  const uint64_t ns = on ? std::max<uint64_t>(config_.timeout_ns / 4, 10'000'000) : 0;
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
  spec.it_value.tv_nsec = static_cast<long>(ns % 1'000'000'000);
  spec.it_interval = spec.it_value;
  (void)::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

size_t TcpLink::poll_events(FrameSink& sink) {
  size_t n = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!events_) {
      if (happened_.empty()) return 0;
    } else {
      epoll_event events[64];
      const int count = events_->wait(events, 64, 0);
      for (int i = 0; i < count; ++i) {
        const uint64_t name = events[i].data.u64;
        if (name == kNameData) continue;  // poll() reads those
        ++n;
        if (name == kNameListener) {
          accept_all();
        } else if (name == kNameTimer) {
          tick();
        } else {
          on_pending(name, events[i].events);
        }
      }
      if (!retries_.empty()) {
        const uint64_t now = clock_.now_ns();
        std::vector<Retry> retries;
        retries.swap(retries_);
        for (Retry& r : retries) {
          const auto route = route_of(r.call.address.nic);
          if (!route || now > r.call.deadline_ns) {
            happen({Happened::resolved, std::move(r.call.token), Status::timeout, nullptr, 0, 0});
          } else if (now >= r.at_ns || find(route->host, r.call.address.vni) ||
                     (r.waited && !greets(route->host, r.call.address.vni))) {
            reach(*route, std::move(r.call), !r.waited);
          } else {
            retries_.push_back(std::move(r));
          }
        }
      }
    }
    n += happened_.size();
  }
  deliver(sink);
  return n;
}

void TcpLink::deliver(FrameSink& sink) {
  std::vector<Happened> happened;
  {
    const std::lock_guard lock(mutex_);
    happened.swap(happened_);
    happened_count_.store(0, std::memory_order_release);
  }
  for (const Happened& h : happened) {
    if (h.kind == Happened::resolved) {
      sink.on_resolved(h.token, h.status, h.peer, h.ep_index, h.ep_generation);
    } else {
      sink.on_peer_down(h.peer);
    }
  }
}

// ---- set-up ------------------------------------------------------------------------------------------------------

TcpLink::TcpLink(const TcpConfig& config, mem::Table& table, Clock& clock, Random& random, Waiter& waiter)
    : config_(config), table_(table), clock_(clock), random_(random), waiter_(waiter) {
  for (size_t i = 0; i < uuid_.size(); i += 8) {
    const uint64_t word = random.next();
    std::memcpy(uuid_.data() + i, &word, 8);
  }
}

TcpLink::~TcpLink() {
  for (const auto& peer : live_) {
    peer->say_goodbye();
    peer->die(Status::peer_gone);
  }
}

// A process that stays on its host has no descriptor for the link. False: there is none left.
bool TcpLink::start() {
  if (events_) return true;
  try {
    timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!timer_.valid()) return false;
    spare_fd_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    data_.emplace();
    EpollSet events;
    events.add(timer_.get(), kNameTimer);
    events.add(data_->fd(), kNameData, 0);
    waiter_.watch(events.fd());
    events_.emplace(std::move(events));
  } catch (const Error&) {
    return false;
  }
  armed_ = true;
  watch();
  return true;
}

void TcpLink::set_secret(std::span<const std::byte> secret) {
  if (secret.size() < kSecretBytesMin) {
    throw Error(fi_err::kEINVAL, "the secret has " + std::to_string(secret.size()) + " bytes, " +
                                     std::to_string(kSecretBytesMin) + " are needed at least");
  }
  const std::lock_guard lock(mutex_);
  if (!secret_.empty() && !equal_in_constant_time(secret_, secret)) {
    throw Error(fi_err::kEBUSY, "this process has another secret already: it is set once");
  }
  if (secret_.empty()) secret_.assign(secret.begin(), secret.end());
}

bool TcpLink::has_secret() const {
  const std::lock_guard lock(mutex_);
  return !secret_.empty();
}

void TcpLink::set_timeout(uint64_t timeout_ns) {
  const std::lock_guard lock(mutex_);
  if (events_ && timeout_ns != config_.timeout_ns) {
    throw Error(fi_err::kEBUSY, "the tcp link is in use: set its timeout before");
  }
  config_.timeout_ns = timeout_ns;
}

wire::HostAddress TcpLink::listen(const wire::HostAddress& on, std::optional<wire::HostAddress> known_as) {
  const std::lock_guard lock(mutex_);
  if (secret_.empty()) {
    throw Error(fi_err::kEACCES,
                "listening on " + text_of(on) +
                    ": without a secret anybody could call\n"
                    "  try: the same WEFT_SECRET (or WEFT_SECRET_FILE) on all hosts, or weft.open(secret=...)\n"
                    "  made by: python -c 'import secrets; print(secrets.token_hex(32))'");
  }
  if (bound_) {
    const bool same = bound_->family == on.family && bound_->ip == on.ip && (on.port == 0 || on.port == bound_->port);
    if (same && (!known_as || known_as->ip == known_as_->ip)) return *known_as_;
    throw Error(fi_err::kEBUSY, "this process listens on " + text_of(*bound_) + " already: a NIC listens in one place");
  }
  if (!start()) throw Error(fi_err::kEMFILE, "listening: no file descriptor is left: raise the limit (ulimit -n)");
  sockaddr_storage name;
  socklen_t length = to_sockaddr(on, &name);
  UniqueFd fd(::socket(name.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw Error(fi_err::kEMFILE, std::string("socket: ") + std::strerror(errno));
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), length) != 0 || ::listen(fd.get(), 512) != 0) {
    throw Error(errno == EADDRINUSE ? fi_err::kEADDRINUSE : fi_err::kEINVAL,
                "listening on " + text_of(on) + ": " + std::strerror(errno));
  }
  length = sizeof(name);
  (void)::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length);
  wire::HostAddress bound = on;
  bound.port = from_sockaddr(name).port;
  if (known_as) {
    if (known_as->port == 0) known_as->port = bound.port;
  } else {
    known_as = is_wildcard(bound) ? usual_address(bound.family, bound.port) : bound;
  }
  if (config_.here_by_shm) {
    UniqueFd here(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un own;
    const socklen_t own_length = here_name(bound, is_wildcard(bound), &own);
    if (here.valid() && ::bind(here.get(), reinterpret_cast<sockaddr*>(&own), own_length) == 0) here_ = std::move(here);
  }
  events_->add(fd.get(), kNameListener);
  listener_ = std::move(fd);
  bound_ = bound;
  known_as_ = known_as;
  return *known_as_;
}

std::optional<wire::HostAddress> TcpLink::listening() const {
  const std::lock_guard lock(mutex_);
  return known_as_;
}

std::vector<std::string> TcpLink::log() const {
  const std::lock_guard lock(mutex_);
  return {log_.begin(), log_.end()};
}

TcpLink::Statistics TcpLink::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

void TcpLink::claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) {
  const std::lock_guard lock(mutex_);
  claimed_[address] = {ep_index, ep_generation};
}

void TcpLink::release(const wire::EpAddress& address) noexcept {
  const std::lock_guard lock(mutex_);
  claimed_.erase(address);
}

void TcpLink::after_fork_in_child() noexcept {
  for (const auto& peer : live_) peer->close_in_child();
  for (auto& [id, p] : pending_) p.fd.reset();
  for (UniqueFd* fd : {&timer_, &listener_, &here_, &spare_fd_}) fd->reset();
  if (events_) events_->close();
  if (data_) data_->close();
}

std::vector<std::shared_ptr<Peer>> TcpLink::peers() const {
  const std::lock_guard lock(mutex_);
  return {live_.begin(), live_.end()};
}

}  // namespace weft::link
