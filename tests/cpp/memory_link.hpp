// tests/cpp/memory_link.hpp: a fabric in the memory of one process, for many NICs that one thread drives: frames arrive
// after times from a seed by a clock that the test moves, so that a run can be repeated exactly.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "link/link.hpp"
#include "mem/guard.hpp"
#include "wrapping.hpp"

namespace weft::test {

class VirtualClock final : public Clock {
 public:
  [[nodiscard]] uint64_t now_ns() override { return now_; }
  void pass(uint64_t ns) noexcept { now_ += ns; }

 private:
  uint64_t now_ = 1'000'000'000;
};

// Nobody sleeps.
class NoWaiter final : public link::Waiter {
 public:
  void wait(int64_t) override {}
  void wake() override {}
  void watch(int) override {}
};

// A NIC's memory that peers can reach. Peers keep it, as a mapping keeps the memory of a process that has ended.
struct NicMemory {
  explicit NicMemory(uint64_t number) : table(1024) { table.set_nic_id({number, ~number}); }
  mem::SegmentSet segments;
  mem::Table table;
};

class MemoryLink;
class MemoryPeer;

// The wires between the links of a fabric.
struct MemoryFabric {
  MemoryFabric(VirtualClock& c, uint64_t seed) noexcept : clock(c), random(seed) {}
  struct Named {
    MemoryLink* link;
    uint32_t ep_index, ep_generation;
  };
  VirtualClock& clock;
  Seeded random;
  std::map<wire::EpAddress, Named> names;
  // Called for each frame, message in the short form, resolution and loss that arrives.
  std::function<void(uint32_t nic, const std::string& what)> heard;
};

class MemoryPeer final : public link::Peer {
 public:
  MemoryPeer(MemoryLink* link, uint32_t to, std::shared_ptr<NicMemory> of, bool shares);
  [[nodiscard]] std::string describe() const override { return "NIC " + std::to_string(to); }
  Status cma_copy(bool to_peer, std::span<const iovec> local, std::span<const iovec> remote) override {
    if (dead()) return down_status();
    if (!table.valid()) return Status::unsupported;
    size_t here = 0, there = 0, here_done = 0, there_done = 0;
    while (here < local.size() && there < remote.size()) {
      const size_t n = std::min(local[here].iov_len - here_done, remote[there].iov_len - there_done);
      auto* const ours = static_cast<std::byte*>(local[here].iov_base) + here_done;
      auto* const theirs = static_cast<std::byte*>(remote[there].iov_base) + there_done;
      if (!(to_peer ? mem::copy_guarded(theirs, ours, n) : mem::copy_guarded(ours, theirs, n))) return Status::fault;
      if ((here_done += n) == local[here].iov_len) ++here, here_done = 0;
      if ((there_done += n) == remote[there].iov_len) ++there, there_done = 0;
    }
    return Status::ok;
  }
  void die(Status why) noexcept { mark_dead(why); }
  void show_segments() {
    for (uint32_t i = 0; table.valid() && i < memory->segments.count(); ++i) {
      segment_bytes_[i] = memory->segments.bytes(i);
      auto* const gate = reinterpret_cast<std::byte*>(memory->segments.gate(i));
      segments_[i].store(gate + mem::kGateBytes - segment_bytes_[i], std::memory_order_release);
    }
  }

  MemoryLink* const owner;
  const uint32_t to;
  const std::shared_ptr<NicMemory> memory;
  std::weak_ptr<MemoryPeer> other;  // the other end
  uint32_t under_way = 0;           // frames from here
  uint64_t last_due = 0;            // of a frame to here: frames of a connection stay in order
};

class MemoryLink final : public link::Link {
 public:
  static constexpr uint32_t kUnderWayMax = 12;

  // shares(a, b): whether two NICs may read each other's tables; otherwise every access between them is a frame.
  MemoryLink(MemoryFabric& fabric, uint32_t nic, std::shared_ptr<NicMemory> memory, bool (*shares)(uint32_t, uint32_t))
      : Link(link::LinkKind::memory), fabric_(fabric), nic_(nic), memory_(std::move(memory)), shares_(shares) {}
  ~MemoryLink() override {
    for (const auto& peer : peers_) {
      if (const auto other = peer->other.lock()) other->owner->lose(other, Status::closed);
    }
    std::erase_if(fabric_.names, [&](const auto& name) { return name.second.link == this; });
  }

  void claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) override {
    if (!fabric_.names.try_emplace(address, MemoryFabric::Named{this, ep_index, ep_generation}).second) {
      throw Error(fi_err::kEADDRINUSE, "address " + address.text() + " is taken by another endpoint");
    }
  }
  void release(const wire::EpAddress& address) noexcept override { fabric_.names.erase(address); }
  Resolving resolve(const wire::EpAddress& address, const std::shared_ptr<void>& token, Found*) override {
    Arriving a;
    a.kind = Arriving::resolved;
    a.token = token;
    const auto name = fabric_.names.find(address);
    if (name == fabric_.names.end() || name->second.link == this) {
      a.status = Status::no_endpoint;
    } else {
      a.peer = connect(*name->second.link);
      a.ep_index = name->second.ep_index;
      a.ep_generation = name->second.ep_generation;
    }
    arrive(std::move(a), due());
    return Resolving::later;
  }
  Status submit(link::Peer& base, wire::Frame& frame, std::span<const std::byte> payload) override {
    Arriving a;
    a.kind = Arriving::frame;
    a.message = frame;
    a.message.payload_length = static_cast<uint32_t>(payload.size());
    a.payload.resize(payload.size());
    if (!payload.empty() && !mem::copy_guarded(a.payload.data(), payload.data(), payload.size())) return Status::fault;
    return send(static_cast<MemoryPeer&>(base), std::move(a));
  }
  Status submit_brief(link::Peer& base, const wire::Brief& brief, const std::byte* rest) override {
    Arriving a;
    a.kind = Arriving::brief;
    a.payload.resize(sizeof(brief) + brief.rest);
    std::memcpy(a.payload.data(), &brief, sizeof(brief));
    std::memcpy(a.payload.data() + sizeof(brief), rest, brief.rest);
    return send(static_cast<MemoryPeer&>(base), std::move(a));
  }
  void request_segment(link::Peer& peer, uint32_t) override { static_cast<MemoryPeer&>(peer).show_segments(); }
  void hang_up(link::Peer& base, Status why) noexcept override {
    auto& peer = static_cast<MemoryPeer&>(base);
    if (const auto other = peer.other.lock()) other->owner->lose(other, Status::peer_gone);
    lose(std::static_pointer_cast<MemoryPeer>(peer.shared_from_this()), why);
  }
  [[nodiscard]] bool maybe_ready() const noexcept override {
    return !arriving_.empty() && arriving_.begin()->first.first <= fabric_.clock.now_ns();
  }
  size_t poll(link::FrameSink& sink, size_t budget) override {
    size_t n = 0;
    for (; n < budget && maybe_ready(); ++n) {
      const Arriving a = std::move(arriving_.begin()->second);
      arriving_.erase(arriving_.begin());
      take(sink, a);
    }
    return n;
  }
  size_t poll_events(link::FrameSink&) override { return 0; }
  bool prepare_sleep() override { return arriving_.empty(); }
  [[nodiscard]] bool has_timers() const override { return !arriving_.empty(); }
  void after_fork_in_child() noexcept override {}
  [[nodiscard]] std::vector<std::shared_ptr<link::Peer>> peers() const override {
    return {peers_.begin(), peers_.end()};
  }
  [[nodiscard]] const std::vector<std::shared_ptr<MemoryPeer>>& connections() const noexcept { return peers_; }
  [[nodiscard]] bool idle() const noexcept { return arriving_.empty(); }

 private:
  friend class MemoryPeer;
  struct Arriving {
    enum Kind { frame, brief, resolved, down } kind{};
    std::shared_ptr<MemoryPeer> peer;
    wire::Frame message;
    std::vector<std::byte> payload;
    std::shared_ptr<void> token;
    Status status = Status::ok;
    uint32_t ep_index = 0, ep_generation = 0;
  };

  [[nodiscard]] uint64_t due() { return fabric_.clock.now_ns() + 500 + fabric_.random.below(20'000); }
  std::shared_ptr<MemoryPeer> connect(MemoryLink& to) {
    for (const auto& peer : peers_) {
      if (peer->to == to.nic_) return peer;
    }
    const bool shares = shares_(nic_, to.nic_);
    const auto ours = std::make_shared<MemoryPeer>(this, to.nic_, to.memory_, shares);
    const auto theirs = std::make_shared<MemoryPeer>(&to, nic_, memory_, shares);
    ours->other = theirs;
    theirs->other = ours;
    peers_.push_back(ours);
    to.peers_.push_back(theirs);
    return ours;
  }
  void arrive(Arriving&& a, uint64_t at) { arriving_.emplace(std::pair{at, next_++}, std::move(a)); }
  Status send(MemoryPeer& from, Arriving&& a) {
    const auto other = from.other.lock();
    if (from.dead() || other == nullptr || other->dead()) return Status::peer_gone;
    if (from.under_way >= kUnderWayMax || fabric_.random.one_in(4)) return Status::again;  // callers must cope
    ++from.under_way;
    a.peer = other;
    other->last_due = std::max(other->last_due, due());
    other->owner->arrive(std::move(a), other->last_due);
    return Status::ok;
  }
  void lose(const std::shared_ptr<MemoryPeer>& peer, Status why) {
    if (peer->dead()) return;
    peer->die(why);
    std::erase(peers_, peer);
    Arriving a;
    a.kind = Arriving::down;
    a.peer = peer;
    a.status = why;
    arrive(std::move(a), std::max(peer->last_due, due()));
  }
  void take(link::FrameSink& sink, const Arriving& a);

  MemoryFabric& fabric_;
  const uint32_t nic_;
  const std::shared_ptr<NicMemory> memory_;
  bool (*const shares_)(uint32_t, uint32_t);
  std::vector<std::shared_ptr<MemoryPeer>> peers_;
  std::map<std::pair<uint64_t, uint64_t>, Arriving> arriving_;  // by time, then by number
  uint64_t next_ = 0;
};

inline MemoryPeer::MemoryPeer(MemoryLink* link, uint32_t to_nic, std::shared_ptr<NicMemory> of, bool shares)
    : Peer(link), owner(link), to(to_nic), memory(std::move(of)) {
  if (!shares) return;
  table = memory->table;
  cma = true;
  takes_briefs = true;
  show_segments();
}

// FNV-1a.
inline uint64_t digest(std::span<const std::byte> bytes) noexcept {
  uint64_t h = 0xcbf2'9ce4'8422'2325;
  for (const std::byte b : bytes) h = (h ^ static_cast<uint64_t>(b)) * 0x100'0000'01b3;
  return h;
}

inline void MemoryLink::take(link::FrameSink& sink, const Arriving& a) {
  const auto hear = [&](const char* kind, uint64_t head) {
    char text[160];
    std::snprintf(text, sizeof(text), "%s from %u, head %016llx, %zu bytes %016llx, %s", kind,
                  a.peer ? a.peer->to : ~0u, static_cast<unsigned long long>(head), a.payload.size(),
                  static_cast<unsigned long long>(digest(a.payload)),
                  std::to_string(static_cast<int>(a.status)).c_str());
    if (fabric_.heard) fabric_.heard(nic_, text);
  };
  switch (a.kind) {
    case Arriving::frame:
    case Arriving::brief:
      if (const auto other = a.peer->other.lock()) --other->under_way;
      if (a.peer->dead()) return;  // its last frames are lost with it
      if (a.kind == Arriving::brief) {
        hear("brief", 0);
        if (const auto view = wire::parse_brief(a.payload)) sink.on_brief(*a.peer, *view);
        return;
      }
      hear(("frame " + std::to_string(static_cast<int>(a.message.kind))).c_str(),
           digest(std::as_bytes(std::span(&a.message, 1))));
      sink.on_frame(a.peer, a.message, a.payload);
      return;
    case Arriving::resolved:
      hear("resolved", uint64_t{a.ep_index} << 32 | a.ep_generation);
      if (a.peer && a.peer->dead()) {
        sink.on_resolved(a.token, Status::peer_gone, nullptr, 0, 0);
      } else {
        sink.on_resolved(a.token, a.status, a.peer, a.ep_index, a.ep_generation);
      }
      return;
    case Arriving::down:
      hear("down", 0);
      sink.on_peer_down(a.peer);
      return;
  }
}

}  // namespace weft::test
