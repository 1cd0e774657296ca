// cpp/link/tcp_setup.cpp: construction of the link, its settings, listening, statistics.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "link/tcp.hpp"
#include "link/tcp_names.hpp"
#include "link/tcp_socket.hpp"

namespace weft::link {

TcpLink::TcpLink(const TcpConfig& config, Routes& routes, mem::Table& table, Clock& clock, Random& random,
                 Waiter& waiter)
    : Link(LinkKind::tcp),
      config_(config),
      routes_(routes),
      table_(table),
      clock_(clock),
      random_(random),
      waiter_(waiter) {
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
  pending_.clear();  // their greetings use the secret
  if (secret_) secret_->sodium.wipe(&secret_->key, sizeof(secret_->key));
}

// Opens the link's descriptors at its first use: a process that uses only its own host needs none. False: the process
// has no descriptor left.
bool TcpLink::start() {
  mutex_.assert_held();
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

void TcpLink::set_secret(const Sodium& sodium, const wire::Bytes32& key) {
  const Guard lock(mutex_);
  if (!secret_) secret_ = {sodium, key};
  if (secret_->sodium.compare(&secret_->key, &key, sizeof(key)) != 0) {
    throw Error(fi_err::kEBUSY, "this process has another secret already: it is set once");
  }
}

bool TcpLink::has_secret() const {
  const Guard lock(mutex_);
  return secret_.has_value();
}

void TcpLink::set_timeout(uint64_t timeout_ns) {
  const Guard lock(mutex_);
  if (events_ && timeout_ns != config_.timeout_ns) {
    throw Error(fi_err::kEBUSY, "the tcp link is in use: set the timeout before the first use");
  }
  config_.timeout_ns = timeout_ns;
}

void TcpLink::set_encryption(Encryption when) {
  const Guard lock(mutex_);
  if (events_ && when != config_.encryption) {
    throw Error(fi_err::kEBUSY, "the tcp link is in use: set the encryption before the first use");
  }
  config_.encryption = when;
}

wire::HostAddress TcpLink::listen(const wire::HostAddress& on, std::optional<wire::HostAddress> known_as) {
  const Guard lock(mutex_);
  if (!secret_) {
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
  const Guard lock(mutex_);
  return known_as_;
}

std::vector<std::string> TcpLink::log() const {
  const Guard lock(mutex_);
  return {log_.begin(), log_.end()};
}

TcpLink::Statistics TcpLink::statistics() const {
  const Guard lock(mutex_);
  return statistics_;
}

void TcpLink::claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) {
  const Guard lock(mutex_);
  claimed_[address] = {ep_index, ep_generation};
}

void TcpLink::release(const wire::EpAddress& address) noexcept {
  const Guard lock(mutex_);
  claimed_.erase(address);
}

UNCHECKED void TcpLink::after_fork_in_child() noexcept {
  for (const auto& peer : live_) peer->close_in_child();
  for (auto& [id, p] : pending_) p.fd.reset();
  for (UniqueFd* fd : {&timer_, &listener_, &here_, &spare_fd_}) fd->reset();
  if (events_) events_->close();
  if (data_) data_->close();
}

std::vector<std::shared_ptr<Peer>> TcpLink::peers() const {
  const Guard lock(mutex_);
  return {live_.begin(), live_.end()};
}

bool TcpLink::each_peer(PeerTest holds, uint32_t argument) const {
  const Guard lock(mutex_);
  return std::ranges::all_of(live_, [&](const auto& peer) { return holds(*peer, argument); });
}

}  // namespace weft::link
