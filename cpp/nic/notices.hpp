// cpp/nic/notices.hpp: frames that have no answer, and wait for room at their peer: in order for each peer, bounded.
// Callers: give() any thread; send() with the progress lock. Both take link locks.
// A peer that takes no frames, while notices to it accumulate, is hung up at kWaitingMax, so that its notices do not
// fill this process's memory. A flow is told of room once, and a group's members are a few steps apart, so a peer that
// is only stopped stays far below.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/lock.hpp"
#include "link/link.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

class Notices {
 public:
  static constexpr size_t kPayloadMax = 64;
  static constexpr size_t kWaitingMax = 8192;  // for each peer: two megabytes

  // Sends a frame now or, if the link has no room or others to the peer wait, in a later send(). payload: at most
  // kPayloadMax bytes. True: a later send() is needed.
  bool give(const std::shared_ptr<link::Peer>& peer, const wire::Frame& notice,
            std::span<const std::byte> payload) noexcept;

  // Sends the frames for which there is room; returns their number. `lost` gets the peers to hang up: peers with too
  // many notices, or with a notice for which there was no memory.
  struct Lost {
    std::shared_ptr<link::Peer> peer;
    Status why;
  };
  size_t send(std::vector<Lost>* lost) noexcept;

  [[nodiscard]] bool empty() const noexcept { return count_.load(std::memory_order_seq_cst) == 0; }
  [[nodiscard]] size_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  struct Notice {
    wire::Frame frame;
    std::array<std::byte, kPayloadMax> payload;
    size_t payload_bytes;
  };
  struct Queue {
    std::shared_ptr<link::Peer> peer;
    std::deque<Notice> notices;
    Status over = Status::ok;  // why the peer is to be hung up
  };
  using Queues = std::map<uint64_t, Queue>;  // by Peer::number: in an order that no address of memory decides

  static size_t send_queue(Queue& queue) noexcept;
  void put_back(Queues& rest) noexcept;

  RankedSpin<lock_rank::kNotices> lock_;
  Queues queues_ GUARDED_BY(lock_);
  bool sending_ GUARDED_BY(lock_) = false;  // send() has the queues: a new notice must not pass those in its hands
  std::atomic<size_t> count_{0};
};

}  // namespace weft::nic
