// tests/cpp/wrapping.hpp: links that wrap a link: WrappingLink passes everything on; DelayingLink holds back what
// arrives, by a seed, so that flows overtake each other; LosingLink ends connections, by a seed.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "base/clock.hpp"
#include "link/link.hpp"

namespace weft::test {

// A random source of a seed. The library's distributions are not the same everywhere; below() is.
class Seeded final : public Random {
 public:
  explicit Seeded(uint64_t seed) noexcept : state_(seed) {}
  [[nodiscard]] uint64_t next() override {  // splitmix64
    uint64_t z = state_ += 0x9e37'79b9'7f4a'7c15;
    z = (z ^ z >> 30) * 0xbf58'476d'1ce4'e5b9;
    z = (z ^ z >> 27) * 0x94d0'49bb'1331'11eb;
    return z ^ z >> 31;
  }
  uint64_t below(uint64_t n) noexcept { return next() % n; }
  bool one_in(uint64_t n) noexcept { return below(n) == 0; }

 private:
  uint64_t state_;
};

// The NIC is given this link in the place of `inner`, after inner.wrap_in(*this). Between them it may do what it likes
// with a call: down in the functions of Link, up in those of FrameSink.
class WrappingLink : public link::Link, protected link::FrameSink {
 public:
  explicit WrappingLink(link::Link& inner) noexcept : Link(link::LinkKind::self), inner_(inner) {}

  void wrap_in(link::Link& outer) noexcept override { inner_.wrap_in(outer); }
  void claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) override {
    inner_.claim(address, ep_index, ep_generation);
  }
  void release(const wire::EpAddress& address) noexcept override { inner_.release(address); }
  Resolving resolve(const wire::EpAddress& address, const std::shared_ptr<void>& token, Found* found) override {
    return inner_.resolve(address, token, found);
  }
  [[nodiscard]] std::optional<wire::EpAddress> local_name(const wire::EpAddress& address) override {
    return inner_.local_name(address);
  }
  [[nodiscard]] std::optional<Place> place_of(const wire::EpAddress& address) const override {
    return inner_.place_of(address);
  }
  [[nodiscard]] std::optional<std::string> name_of(const wire::EpAddress& address) const override {
    return inner_.name_of(address);
  }
  [[nodiscard]] std::string explain(const wire::EpAddress& address) const override { return inner_.explain(address); }
  Status submit(link::Peer& peer, wire::Frame& frame, std::span<const std::byte> payload) override {
    return inner_.submit(peer, frame, payload);
  }
  Status submit_brief(link::Peer& peer, const wire::Brief& brief, const std::byte* rest) override {
    return inner_.submit_brief(peer, brief, rest);
  }
  void request_segment(link::Peer& peer, uint32_t segment) override { inner_.request_segment(peer, segment); }
  void wake(link::Peer& peer) noexcept override { inner_.wake(peer); }
  void hang_up(link::Peer& peer, Status why) noexcept override { inner_.hang_up(peer, why); }
  [[nodiscard]] bool maybe_ready() const noexcept override { return inner_.maybe_ready(); }
  size_t poll(link::FrameSink& sink, size_t budget) override {
    sink_ = &sink;
    return inner_.poll(*this, budget);
  }
  size_t poll_events(link::FrameSink& sink) override {
    sink_ = &sink;
    return inner_.poll_events(*this);
  }
  void leave_to_polls() override { inner_.leave_to_polls(); }
  bool prepare_sleep() override { return inner_.prepare_sleep(); }
  [[nodiscard]] bool has_timers() const override { return inner_.has_timers(); }
  void before_fork() override { inner_.before_fork(); }
  void after_fork_in_parent() noexcept override { inner_.after_fork_in_parent(); }
  void after_fork_in_child() noexcept override { inner_.after_fork_in_child(); }
  [[nodiscard]] std::vector<std::shared_ptr<link::Peer>> peers() const override { return inner_.peers(); }
  [[nodiscard]] std::vector<std::shared_ptr<link::Peer>> users() const override { return inner_.users(); }
  [[nodiscard]] bool each_peer(PeerTest holds, uint32_t argument) const override {
    return inner_.each_peer(holds, argument);
  }

 protected:
  void on_frame(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                std::span<const std::byte> payload) override {
    sink_->on_frame(peer, frame, payload);
  }
  void on_brief(link::Peer& peer, const wire::BriefView& brief) override { sink_->on_brief(peer, brief); }
  void on_resolved(const std::shared_ptr<void>& token, Status status, const std::shared_ptr<link::Peer>& peer,
                   uint32_t ep_index, uint32_t ep_generation) override {
    sink_->on_resolved(token, status, peer, ep_index, ep_generation);
  }
  void on_peer_down(const std::shared_ptr<link::Peer>& peer) override { sink_->on_peer_down(peer); }
  void on_peer_gone(const std::shared_ptr<link::Peer>& peer) override { sink_->on_peer_gone(peer); }

  [[nodiscard]] link::Link& inner() noexcept { return inner_; }
  [[nodiscard]] link::FrameSink& sink() noexcept { return *sink_; }

 private:
  link::Link& inner_;
  link::FrameSink* sink_ = nullptr;  // of the poll under way
};

// Drops nothing. What arrives waits for a time from the seed, at most `longest_ns`. Frames of one flow (from one peer
// for one endpoint) keep their order, others overtake them.
class DelayingLink final : public WrappingLink {
 public:
  DelayingLink(link::Link& inner, Clock& clock, uint64_t seed, uint64_t longest_ns) noexcept
      : WrappingLink(inner), clock_(clock), random_(seed), longest_ns_(longest_ns) {}

  [[nodiscard]] bool maybe_ready() const noexcept override {
    return WrappingLink::maybe_ready() || first_due_.load(std::memory_order_relaxed) <= clock_.now_ns();
  }
  size_t poll(link::FrameSink& to, size_t budget) override {
    const size_t n = WrappingLink::poll(to, budget);
    return n + deliver(clock_.now_ns(), budget);
  }
  bool prepare_sleep() override { return WrappingLink::prepare_sleep() && first_due_.load() == kNever; }
  [[nodiscard]] bool has_timers() const override { return WrappingLink::has_timers() || first_due_.load() != kNever; }
  [[nodiscard]] uint64_t delayed() const noexcept { return delayed_.load(); }
  [[nodiscard]] uint64_t overtaken() const noexcept { return overtaken_.load(); }

 private:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  struct Held {
    std::shared_ptr<link::Peer> peer;
    bool is_brief = false;
    wire::Frame frame;
    wire::BriefView brief;
    std::vector<std::byte> payload;
  };
  using Flow = std::pair<uint64_t, uint32_t>;  // the peer's number, the endpoint's slot at the target

  void on_frame(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                std::span<const std::byte> payload) override {
    hold(Held{peer, false, frame, {}, {payload.begin(), payload.end()}}, frame.ep_index);
  }
  void on_brief(link::Peer& peer, const wire::BriefView& brief) override {
    hold(Held{peer.shared_from_this(), true, {}, brief, {brief.payload.begin(), brief.payload.end()}},
         brief.head.ep_index);
  }
  // What a peer sent before it was lost arrives before the news of its loss.
  void on_peer_down(const std::shared_ptr<link::Peer>& peer) override {
    deliver(kNever, kNever, peer.get());
    std::erase_if(last_due_, [&](const auto& flow) { return flow.first.first == peer->number; });
    WrappingLink::on_peer_down(peer);
  }
  void hold(Held&& held, uint32_t ep_index) {
    uint64_t& last = last_due_[Flow{held.peer->number, ep_index}];
    last = std::max(last, clock_.now_ns() + random_.below(longest_ns_ + 1));
    if (!held_.empty() && held_.rbegin()->first.first > last) ++overtaken_;
    held_.emplace(std::pair{last, next_++}, std::move(held));
    ++delayed_;
    note_due();
  }
  size_t deliver(uint64_t now, size_t budget, const link::Peer* of = nullptr) {
    size_t n = 0;
    for (auto at = held_.begin(); n < budget && at != held_.end() && at->first.first <= now;) {
      if (of != nullptr && at->second.peer.get() != of) {
        ++at;
        continue;
      }
      Held held = std::move(at->second);
      at = held_.erase(at);
      held.brief.payload = held.payload;
      held.is_brief ? sink().on_brief(*held.peer, held.brief) : sink().on_frame(held.peer, held.frame, held.payload);
      ++n;
    }
    note_due();
    return n;
  }
  void note_due() noexcept { first_due_.store(held_.empty() ? kNever : held_.begin()->first.first); }

  Clock& clock_;
  Seeded random_;
  uint64_t longest_ns_;
  std::map<std::pair<uint64_t, uint64_t>, Held> held_;  // by due time, then by arrival
  std::map<Flow, uint64_t> last_due_;
  uint64_t next_ = 0;
  std::atomic<uint64_t> delayed_{0}, overtaken_{0};
  std::atomic<uint64_t> first_due_{kNever};
};

// Ends the connection over which a frame came, about once in `frames` frames and `most` times in all; the frame itself
// still arrives.
class LosingLink final : public WrappingLink {
 public:
  LosingLink(link::Link& inner, uint64_t seed, uint64_t frames, uint64_t most) noexcept
      : WrappingLink(inner), random_(seed), frames_(frames), most_(most) {}

  [[nodiscard]] uint64_t lost() const noexcept { return hung_up_count_.load(std::memory_order_relaxed); }

 private:
  void on_frame(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                std::span<const std::byte> payload) override {
    WrappingLink::on_frame(peer, frame, payload);
    if (!random_.one_in(frames_) || hung_up_.size() == most_ || !hung_up_.insert(peer->number).second) return;
    inner().hang_up(*peer, Status::peer_gone);
    hung_up_count_.store(hung_up_.size(), std::memory_order_relaxed);
  }

  Seeded random_;
  const uint64_t frames_, most_;
  std::set<uint64_t> hung_up_;  // numbers of peers: a link may drop a connection later, after further frames
  std::atomic<uint64_t> hung_up_count_{0};
};

}  // namespace weft::test
