// cpp/link/shm_setup.cpp: construction of the link, the names that endpoints claim, and fork().
#include <fcntl.h>
#include <sys/timerfd.h>

#include <cstring>

#include "link/shm_names.hpp"
#include "link/shm_peer.hpp"

namespace weft::link {

ShmLink::ShmLink(const ShmConfig& config, mem::Table& table, mem::SegmentSet& segments, Clock& clock, Random& random,
                 Waiter& waiter)
    : Link(LinkKind::shm),
      config_(config),
      table_(table),
      segments_(segments),
      clock_(clock),
      random_(random),
      waiter_(waiter),
      audit_timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
      spare_fd_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      shared_(kSharedArea),
      producers_(kShmPeerMax) {
  for (size_t i = 0; i < 16; i += 8) {
    const uint64_t u = random.next(), v = random.next();
    std::memcpy(uuid_.data() + i, &u, 8);
    std::memcpy(nonce_.data() + i, &v, 8);
  }
  mem::NicId id;
  std::memcpy(&id, uuid_.data(), sizeof(id));
  table_.set_nic_id(id);
  for (uint32_t i = 1; i < kShmPeerMax; ++i) free_producers_.push_back(i);
  if (!audit_timer_.valid()) throw Error(fi_err::kEMFILE, std::string("timerfd: ") + std::strerror(errno));
  epoll_.add(audit_timer_.get(), kNameAudit);
  waiter_.watch(epoll_.fd());
}

ShmLink::~ShmLink() {
  for (const auto& [id, conn] : conns_) {
    if (conn.state == ConnState::live) part(conn.fd.get(), wire::RejectReason::none);
  }
}

uint32_t ShmLink::take_producer_id() {
  mutex_.assert_held();
  if (free_producers_.empty()) return 0;
  const uint32_t id = free_producers_.front();
  free_producers_.pop_front();
  return id;
}

void ShmLink::claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) {
  Listener listener{listen_at(address, random_), address, ep_index, ep_generation};
  const Guard lock(mutex_);
  const uint32_t id = next_id_++;
  epoll_.add(listener.fd.get(), id);
  listeners_.emplace(id, std::move(listener));
}

void ShmLink::release(const wire::EpAddress& address) noexcept {
  const Guard lock(mutex_);
  for (auto it = listeners_.begin(); it != listeners_.end(); ++it) {
    if (it->second.address == address) {
      epoll_.remove(it->second.fd.get());
      listeners_.erase(it);
      return;
    }
  }
}

UNCHECKED void ShmLink::after_fork_in_child() noexcept {
  // The parent's descriptors must not live on in the child: peers would not notice the parent's death.
  for (auto& [id, listener] : listeners_) listener.fd.reset();
  for (auto& [id, conn] : conns_) {
    conn.fd.reset();
    if (!conn.peer) continue;
    conn.peer->pidfd.reset();
    for (UniqueFd& fd : conn.peer->segment_fds) fd.reset();
  }
  for (auto& [id, parted] : parted_) {
    parted.fd.reset();
    parted.peer->pidfd.reset();
    for (UniqueFd& fd : parted.peer->segment_fds) fd.reset();
  }
  audit_timer_.reset();
  spare_fd_.reset();
  shared_.close_fds();
  epoll_.close();
}

std::string ShmLink::explain(const wire::EpAddress& address) const {
  const Guard lock(mutex_);
  const auto it = reasons_.find(address);
  return it == reasons_.end() ? std::string{} : it->second;
}

std::vector<std::shared_ptr<Peer>> ShmLink::peers() const {
  const Guard lock(mutex_);
  std::vector<std::shared_ptr<Peer>> all;
  for (const auto& [id, conn] : conns_) {
    if (conn.peer && conn.state == ConnState::live) all.push_back(conn.peer);
  }
  return all;
}

std::vector<std::shared_ptr<Peer>> ShmLink::users() const {
  std::vector<std::shared_ptr<Peer>> all = peers();
  const Guard lock(mutex_);
  for (const auto& [id, parted] : parted_) all.push_back(parted.peer);
  return all;
}

bool ShmLink::each_peer(PeerTest holds, uint32_t argument) const {
  const Guard lock(mutex_);
  for (const auto& [id, parted] : parted_) {
    if (!holds(*parted.peer, argument)) return false;
  }
  for (const auto& [id, conn] : conns_) {
    if (conn.peer && conn.state == ConnState::live && !holds(*conn.peer, argument)) return false;
  }
  return true;
}

}  // namespace weft::link
