// cpp/link/tcp.cpp: see tcp.hpp. Frames, lost connections, timers.
#include "link/tcp.hpp"

#include <sched.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace weft::link {

namespace {

constexpr size_t kLogMax = 64;
constexpr size_t kAskEach = 4;         // up to this number polls read every connection; above it they ask epoll
constexpr int32_t kHotPolls = 20'000;  // polls without a packet until the engine watches the sockets: about 10 ms
constexpr uint32_t kBusyPolls = 16;    // polls that find packets before the sockets leave the epoll set
constexpr uint64_t kLingerNs = 30'000;

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
  static_cast<TcpPeer&>(peer).give_up(why, "the peer asks for more than it takes answers to");  // poll() drops it
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
    // SYNC POINT: data already read into our buffer triggers no epoll event, so wake the sleeper ourselves. This wakes
    // a thread that checked the flag before it was set; a later thread sees the flag. An answer may be a millisecond
    // late, so for an answer wake only a sleeper that has armed the sockets (it arms them before it checks the flag).
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
    const Guard lock(mutex_);
    const std::vector<std::shared_ptr<TcpPeer>> all = live_;
    for (const auto& peer : all) {
      if (peer->broken() != Status::ok) drop(peer);
    }
    ++n;
  }
  if (n != 0) {
    warm();
    if (armed_.load(std::memory_order_relaxed) && ++busy_ >= kBusyPolls) {
      const Guard lock(mutex_);
      arm(false);
    }
    if (!heard_.load(std::memory_order_relaxed)) heard_.store(true, std::memory_order_relaxed);
  } else if (const int32_t hot = hot_.load(std::memory_order_relaxed); hot > 0) {
    hot_.store(hot - 1, std::memory_order_relaxed);
    if (hot == 1) {  // the engine waits for the sockets from now on
      const Guard lock(mutex_);
      arm(true);
    }
  }
  if (happened_count_.load(std::memory_order_acquire) != 0) deliver(sink);
  return n;
}

void TcpLink::leave_to_polls() {
  const bool armed = hot_.load(std::memory_order_relaxed) <= 0;
  if (armed_.load(std::memory_order_relaxed) == armed) return;
  const Guard lock(mutex_);
  arm(armed);
}

void TcpLink::arm(bool armed) {
  if (armed_.exchange(armed, std::memory_order_seq_cst) != armed) watch();
}

// Armed: a packet wakes the engine. Unarmed, few connections: polls read each of them, and none is in an epoll set.
// Unarmed, many connections: polls query the set, which then wakes no thread. Sets are level-triggered: data present
// when the set is armed wakes the engine at once.
void TcpLink::watch() {
  mutex_.assert_held();
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
  const Guard lock(mutex_);
  bool idle = happened_.empty();
  for (const auto& peer : live_) {
    if (peer->unflushed()) peer->flush();
    idle = idle && !peer->has_buffered() && peer->broken() == Status::ok;
  }
  if (!idle) return false;
  // Within kLingerNs of a packet the next packet is likely to come before a sleeper could wake: yield, do not sleep.
  const uint64_t now = clock_.now_ns();
  if (heard_.exchange(false, std::memory_order_relaxed)) heard_ns_ = now;
  if (now - heard_ns_ < kLingerNs) {
    ::sched_yield();
    return false;
  }
  arm(true);  // data that has arrived in the meantime wakes the engine at once
  busy_ = 0;
  return std::ranges::none_of(live_, [](const auto& peer) { return peer->has_buffered(); });  // SYNC POINT: see poll()
}

bool TcpLink::has_timers() const {
  const Guard lock(mutex_);
  return !retries_.empty() || !unanswered_.empty();
}

wire::ResolveBody TcpLink::on_resolve(TcpPeer& peer, const wire::ResolveBody& asked) {
  wire::ResolveBody answer = asked;
  answer.status = static_cast<int32_t>(Status::no_endpoint);
  answer.ep_index = answer.ep_generation = 0;
  const Guard lock(mutex_);
  const auto it = claimed_.find(asked.address);
  if (it != claimed_.end() && asked.address.vni == peer.about.vni) {
    answer.status = 0;
    answer.ep_index = it->second.first;
    answer.ep_generation = it->second.second;
  }
  return answer;
}

void TcpLink::on_resolved(TcpPeer& peer, const wire::ResolveBody& answer) {
  const Guard lock(mutex_);
  if (peer.asks_open != 0) --peer.asks_open;
  const auto it = peer.asked.find(answer.id);
  if (it == peer.asked.end()) return;  // the resolve timed out
  const auto self = std::ranges::find(live_, &peer, [](const auto& p) { return p.get(); });
  const bool ok = answer.status == 0 && answer.ep_index < mem::kEpCountMax && self != live_.end();
  happen({Happened::resolved, std::move(it->second.token), ok ? Status::ok : Status::no_endpoint, ok ? *self : nullptr,
          answer.ep_index, answer.ep_generation});
  peer.asked.erase(it);
}

bool TcpLink::may_name(uint32_t ep_index, uint32_t ep_generation, uint16_t vni) {
  if (ep_index >= mem::kEpCountMax) return false;
  const mem::EpEntry& ep = table_.ep(ep_index);
  // A closed endpoint passes: the access reports it by its generation check. Its slot may belong to another VNI now.
  return ep.generation.load(std::memory_order_acquire) != ep_generation || ep.address.vni == vni || ep.address.vni == 0;
}

// ---- lost connections, timers ------------------------------------------------------------------------------------

void TcpLink::note(const wire::HostAddress& host, const std::string& what, bool logged) {
  mutex_.assert_held();
  if (reasons_.size() >= kReasonsMax) reasons_.clear();
  if (host.family != 0) reasons_[host] = what;
  if (log_.size() >= kLogMax) log_.pop_front();
  log_.push_back(what);
  if (config_.log && logged) std::fprintf(stderr, "weft: tcp: %s\n", what.c_str());
}

void TcpLink::happen(Happened&& what) {
  mutex_.assert_held();
  happened_.push_back(std::move(what));
  happened_count_.store(happened_.size(), std::memory_order_release);
}

void TcpLink::drop(const std::shared_ptr<TcpPeer>& peer) {
  mutex_.assert_held();
  const Status status = peer->broken() != Status::ok ? peer->broken() : Status::peer_gone;
  happened_.reserve(happened_.size() + peer->asked.size() +
                    1);  // if this throws, nothing has changed and the next poll tries again
  try {
    const std::string why = peer->why();
    note(peer->about.host,
         "the connection " + std::string(peer->about.outbound ? "to " : "from ") + text_of(peer->about.remote) +
             " is lost: " + (why.empty() ? "closed" : why),
         status != Status::closed);  // a peer that says goodbye is no loss
  } catch (const std::bad_alloc&) {  // the peer's operations end without a reason in their text
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
  mutex_.assert_held();
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
  mutex_.assert_held();
  if (timer_on_ == on) return;
  timer_on_ = on;
  // A quarter of the timeout: a silent connection sends four pings before its timeout.
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
    const Guard lock(mutex_);
    if (!events_) {
      if (happened_.empty()) return 0;
    } else {
      epoll_event events[64];
      const int count = events_->wait(events, 64, 0);
      for (int i = 0; i < count; ++i) {
        const uint64_t name = events[i].data.u64;
        if (name == kNameData) continue;  // poll() reads the connections
        ++n;
        if (name == kNameListener) {
          accept_all();
        } else if (name == kNameTimer) {
          tick();
        } else {
          on_pending(name, events[i].events);
        }
      }
      answer_hellos();
      n += unanswered_.size();
      if (!retries_.empty()) {
        const uint64_t now = clock_.now_ns();
        std::vector<Retry> retries;
        retries.swap(retries_);
        for (Retry& r : retries) {
          const auto route = routes_.find(r.call.address.nic);
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
    const Guard lock(mutex_);
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

}  // namespace weft::link
