// cpp/link/shm_lost.cpp: how connections end (deaths, goodbyes, hang-ups), and the events of sockets.

#include <algorithm>
#include <cerrno>

#include "link/shm_peer.hpp"

namespace weft::link {

namespace {

constexpr uint64_t kDeathsLookNs = 50'000'000;  // interval between checks of the peers' life marks
constexpr int kPacketsMax = 64;                 // per round, so that one peer does not delay the others

}  // namespace

// Watches the pidfd: if a child made without fork() handlers keeps a dead process's descriptors, its sockets do not
// hang up.
void ShmLink::watch_process(const ShmPeer& peer) {
  if (peer.pidfd.valid()) (void)epoll_.try_add(peer.pidfd.get(), kNameOfProcess | peer.conn_id, EPOLLIN);
}

void ShmLink::notice_death() {
  deaths_.store(true, std::memory_order_release);
  waiter_.wake();
}

// True: a peer ended without a hang-up (it runs another program, which inherited its descriptors): check all peers.
bool ShmLink::deaths_due() {
  if (deaths_.load(std::memory_order_acquire)) return true;
  const uint64_t now = clock_.coarse_ns();
  if (now - deaths_looked_ns_.load(std::memory_order_relaxed) < kDeathsLookNs) return false;
  deaths_looked_ns_.store(now, std::memory_order_relaxed);
  const Guard lock(mutex_);
  if (std::ranges::none_of(conns_, [](const auto& c) { return c.second.peer && c.second.peer->has_ended(); })) {
    return false;
  }
  deaths_.store(true, std::memory_order_release);
  return true;
}

void ShmLink::wake(Peer& base) noexcept {
  auto& peer = static_cast<ShmPeer&>(base);
  const Guard lock(peer.submit_lock);  // drop_conn() takes it after die(), before the socket is closed
  if (!peer.dead()) ring_doorbell(peer.socket_fd);
}

// Stops sending and taking frames. poll_events() drops the connection later, because this call comes from reading the
// peer's frames.
void ShmLink::hang_up(Peer& base, Status why) noexcept {
  auto& peer = static_cast<ShmPeer&>(base);
  if (peer.dead()) return;
  peer.hung_up.store(why, std::memory_order_relaxed);
  peer.die(why);
  hang_ups_.store(true, std::memory_order_seq_cst);
}

void ShmLink::drop_hung_up() {
  mutex_.assert_held();
  if (!hang_ups_.exchange(false, std::memory_order_seq_cst)) return;
  std::vector<std::pair<uint32_t, Status>> found;
  for (const auto& [id, conn] : conns_) {
    if (!conn.peer || conn.peer->conn_id != id) continue;
    const Status why = conn.peer->hung_up.load(std::memory_order_relaxed);
    if (why != Status::ok) found.emplace_back(id, why);
  }
  for (const auto& [id, why] : found) {
    reject(conns_.at(id).fd.get(), wire::RejectReason::malformed);
    drop_conn(id, why);
  }
}

void ShmLink::drop_conn(uint32_t conn_id, Status why) {
  mutex_.assert_held();
  const auto it = conns_.find(conn_id);
  if (it == conns_.end()) return;
  Conn conn = std::move(it->second);
  conns_.erase(it);
  const bool lives = conn.peer && conn.peer->conn_id == conn_id;
  if (!lives) epoll_.remove(conn.fd.get());
  for (auto& token : conn.tokens) happened_.push_back({Happened::resolved, std::move(token), why, nullptr, 0, 0});
  if (lives) {
    if (why == Status::protocol) part(conn.fd.get(), wire::RejectReason::malformed);
    conn.peer->die(why);
    {
      const Guard lock(conn.peer->submit_lock);
      conn.peer->socket_fd = -1;
    }
    if (conn.is_private) {
      const Guard lock(private_mutex_);
      std::erase(private_, conn.peer);
      private_count_.store(private_.size(), std::memory_order_relaxed);
    }
    happened_.push_back({Happened::down, nullptr, why, conn.peer, 0, 0});
    std::erase_if(resolved_, [&](const auto& r) { return r.second.peer.lock() == conn.peer; });
  }
  if (conn.producer_id != 0) producers_[conn.producer_id] = nullptr;
  if (lives) {
    parted_.emplace(conn_id, Parted{std::move(conn.fd), conn.peer, conn.producer_id});
  } else {
    release_producer(conn.producer_id);
  }
  happened_count_.store(happened_.size(), std::memory_order_release);
}

bool ShmLink::is_producer(uint32_t id) const {
  mutex_.assert_held();
  const auto has = [id](const auto& one) { return one.second.producer_id == id; };
  return id != 0 && (std::ranges::any_of(conns_, has) || std::ranges::any_of(parted_, has));
}

void ShmLink::release_producer(uint32_t id) {
  mutex_.assert_held();
  if (id == 0) return;
  {
    // Free the peer's claims, and claims with an unknown producer id, which only an overwritten slot has.
    const Guard lock(shared_.inbox_mutex);
    shared_.inbox.consumer.producers_dead([&](uint16_t one) UNCHECKED { return !is_producer(one); });
  }
  shared_.staging.consumed(id).store(0, std::memory_order_release);
  free_producers_.push_back(id);  // a queue, so that an id is reused as late as possible
}

// True: the peer uses nothing of ours any more.
bool ShmLink::has_parted(Parted& parted) {
  mutex_.assert_held();
  ShmPeer& peer = *parted.peer;
  const bool ended = !peer.lingers();
  if (parted.fd.valid()) {
    // SYNC POINT: on_peer_down() is done: none of our threads begins an access to the peer's memory.
    (void)::shutdown(parted.fd.get(), SHUT_WR);
    std::byte packet;
    ssize_t n = 1;
    for (int i = 0; n > 0 && i < kPacketsMax; ++i) n = ::recv(parted.fd.get(), &packet, sizeof(packet), MSG_DONTWAIT);
    if (!ended && (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))) return false;
    epoll_.remove(parted.fd.get());
    parted.fd.reset();
    {
      const Guard lock(peer.submit_lock);
      for (const uint32_t chunk : peer.staged) peer.area->staging.give_back(chunk);
      peer.staged.clear();
    }
    release_producer(std::exchange(parted.producer_id, 0));
  }
  bool idle = ended || peer.table.each_activity([](uint32_t, uint64_t word) { return (word & 1) == 0; });
  if (!ended) peer.table.each_hold(table_.nic_id(), [&](uint32_t, uint64_t, uint64_t) { idle = false; });
  if (idle && peer.pidfd.valid()) epoll_.remove(peer.pidfd.get());
  return idle;
}

size_t ShmLink::poll_events(FrameSink& sink) {
  std::vector<Happened> happened;
  size_t n_events = 0;
  bool parts = false;
  epoll_event events[64];
  int n = 0;
  std::vector<uint32_t> ended;
  const bool deaths = deaths_due();
  {
    const Guard lock(mutex_);
    drop_hung_up();
    n = epoll_.wait(events, 64, 0);
    if (deaths) deaths_.store(false, std::memory_order_relaxed);
    for (auto it = conns_.begin(); deaths && it != conns_.end(); ++it)
      if (it->second.peer && it->second.peer->has_ended()) ended.push_back(it->first);
  }
  // What these peers have published comes before their end.
  constexpr uint32_t kRounds = kPrivateArea.slot_count / kPrivateTurn;
  for (uint32_t i = 0; i < kRounds && (n > 0 || deaths) && poll(sink, kSharedArea.slot_count) != 0; ++i) {
  }
  {
    const Guard lock(mutex_);
    for (int i = 0; i < n; ++i) {
      const uint64_t name = events[i].data.u64;
      if (name == kNameAudit) {
        audit_shared();
      } else if (listeners_.contains(static_cast<uint32_t>(name))) {
        accept_all(static_cast<uint32_t>(name));
      } else {
        on_packet(static_cast<uint32_t>(name));
        // on_packet() has read everything that the process had sent.
        if ((name & kNameOfProcess) != 0) drop_conn(static_cast<uint32_t>(name), Status::peer_gone);
      }
      ++n_events;
    }
    for (const uint32_t id : ended) drop_conn(id, Status::peer_gone);
    n_events += ended.size();
    {
      // Audit here too: a process that polls without pause never calls prepare_sleep().
      const Guard ring(shared_.inbox_mutex);
      if (shared_.inbox.consumer.audit() == ring::PollStatus::corrupt) frames_lost_.store(true);
    }
    if (!retries_.empty() || has_pending_handshake_) {
      const uint64_t now = clock_.now_ns();
      std::deque<Retry> retries;
      retries.swap(retries_);
      for (Retry& r : retries) {
        std::shared_ptr<void> kept = r.token;
        const Status status =
            now > r.deadline_ns ? Status::timeout : start_connect(r.address, std::move(r.token), r.is_private);
        if (status == Status::again) {
          retries_.push_back({r.address, std::move(kept), r.deadline_ns, r.is_private});
        } else if (status != Status::ok) {
          happened_.push_back({Happened::resolved, std::move(kept), status, nullptr, 0, 0});
        }
      }
      std::vector<uint32_t> late;
      for (const auto& [id, conn] : conns_) {
        if (conn.state != ConnState::live && now > conn.deadline_ns) late.push_back(id);
      }
      for (const uint32_t id : late) drop_conn(id, Status::timeout);
    }
    has_pending_handshake_ =
        std::any_of(conns_.begin(), conns_.end(), [](const auto& c) { return c.second.state != ConnState::live; });
    if (n > 0) watch_shared();
    parts = !parted_.empty();
    happened.swap(happened_);
    happened_count_.store(0, std::memory_order_release);
  }
  for (const Happened& h : happened) {
    switch (h.kind) {
      case Happened::resolved:
        sink.on_resolved(h.token, h.status, h.peer, h.ep_index, h.ep_generation);
        break;
      case Happened::segment:  // the current round retries the operations that waited for the segment
        break;
      case Happened::down:
        sink.on_peer_down(h.peer);
        break;
    }
  }
  if (!parts) return n_events + happened.size();
  std::vector<std::shared_ptr<Peer>> gone;
  {
    const Guard lock(mutex_);
    for (auto it = parted_.begin(); it != parted_.end();) {
      const bool over = has_parted(it->second);
      if (over) gone.push_back(it->second.peer);
      it = over ? parted_.erase(it) : std::next(it);
    }
  }
  for (const auto& peer : gone) sink.on_peer_gone(peer);
  return n_events + happened.size() + gone.size();
}

}  // namespace weft::link
