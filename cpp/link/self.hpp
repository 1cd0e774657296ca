// cpp/link/self.hpp: the link of a process to itself: every access is a load or a store; a queue holds frames.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "base/lock.hpp"
#include "link/link.hpp"

namespace weft::link {

class SelfLink final : public Link {
 public:
  SelfLink(mem::Table& table, Waiter& waiter);
  ~SelfLink() override;

  void claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) override;
  void release(const wire::EpAddress& address) noexcept override;
  Resolving resolve(const wire::EpAddress& address, const std::shared_ptr<void>& token, Found* found) override;
  Status submit(Peer& peer, wire::Frame& frame, std::span<const std::byte> payload) override;
  void request_segment(Peer&, uint32_t) override {}
  [[nodiscard]] bool maybe_ready() const noexcept override { return queued_.load(std::memory_order_relaxed) != 0; }
  size_t poll(FrameSink& sink, size_t budget) override;
  size_t poll_events(FrameSink&) override { return 0; }
  bool prepare_sleep() override;
  [[nodiscard]] bool has_timers() const override { return false; }
  void after_fork_in_child() noexcept override {}
  [[nodiscard]] std::vector<std::shared_ptr<Peer>> peers() const override { return {peer_}; }
  [[nodiscard]] bool each_peer(PeerTest holds, uint32_t argument) const override { return holds(*peer_, argument); }

 private:
  struct Queued {
    wire::Frame frame;
    std::vector<std::byte> payload;
  };
  static constexpr size_t kQueueMax = 8192;

  Waiter& waiter_;
  std::shared_ptr<Peer> peer_;
  mutable RankedMutex<lock_rank::kSelf> mutex_;
  std::unordered_map<wire::EpAddress, std::pair<uint32_t, uint32_t>, wire::EpAddressHash> claimed_ GUARDED_BY(mutex_);
  std::deque<Queued> queue_ GUARDED_BY(mutex_);
  std::atomic<size_t> queued_{0};
  std::atomic<bool> sleeping_{false};
};

}  // namespace weft::link
