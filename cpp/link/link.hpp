// cpp/link/link.hpp: what the NIC asks of a link, and what a link tells the NIC. The NIC knows links by this header
// only.
//
// A link finds peers (resolve), carries frames to them (submit) and hands received frames to a FrameSink (poll). A peer
// whose memory can be reached by load and store also has a PeerMemory; the NIC then needs no frame for most accesses.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "mem/segment.hpp"
#include "mem/table.hpp"
#include "wire/address.hpp"
#include "wire/frame.hpp"

namespace weft::link {

class Link;

// What the NIC keeps with a peer, so that it need not look for it. The link only holds it.
struct NicState {
  NicState() = default;
  NicState(const NicState&) = delete;
  NicState& operator=(const NicState&) = delete;
  virtual ~NicState() = default;
};

// The other NIC, as this link reaches it. Lives as long as it is referenced; dead(): it will not answer any more.
class Peer {
 public:
  explicit Peer(Link* link) noexcept : link_(link) {}
  virtual ~Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  [[nodiscard]] Link* link() const noexcept { return link_; }
  [[nodiscard]] bool dead() const noexcept { return dead_.load(std::memory_order_acquire); }
  [[nodiscard]] virtual std::string describe() const = 0;

  // Direct access. table.valid() is false where nothing is shared; segment_base() is null for a segment that is not
  // mapped (ask Link::request_segment). The arrays are written before the peer is published and grow only.
  mem::TableView table;
  [[nodiscard]] std::byte* segment_base(uint32_t segment) const noexcept {
    return segment < mem::kSegmentCountMax ? segments_[segment].load(std::memory_order_acquire) : nullptr;
  }
  [[nodiscard]] uint64_t segment_bytes(uint32_t segment) const noexcept { return segment_bytes_[segment]; }
  bool same_process = false;
  bool cma = false;        // process_vm_readv/writev were tried against this very process and work
  int32_t process_id = 0;  // as this process sees it
  std::string cma_reason;  // why cma is off

  std::unique_ptr<NicState> nic_state;  // with the NIC's progress lock

  // Requests to this peer that it has not answered, of all domains: at most unanswered_max (wire/frame.hpp). Counted up
  // by any thread that posts, down by the thread that polls.
  [[nodiscard]] bool begin_request() noexcept {
    const uint32_t answered = answered_.load(std::memory_order_acquire);
    if (asked_.fetch_add(1, std::memory_order_relaxed) - answered < unanswered_max) [[likely]]
      return true;
    asked_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  void undo_request() noexcept { asked_.fetch_sub(1, std::memory_order_relaxed); }
  void end_request() noexcept {
    const uint32_t answered = answered_.load(std::memory_order_relaxed);
    // A peer that answers more than it was asked gains nothing by it.
    if (asked_.load(std::memory_order_acquire) != answered) answered_.store(answered + 1, std::memory_order_release);
  }
  uint32_t unanswered_max = wire::kUnansweredMax;

  // Of one frame to or from this peer.
  size_t payload_max = wire::kStagedPayloadMax;
  // Why it is dead: how the operations end that were under way.
  [[nodiscard]] Status down_status() const noexcept { return down_status_.load(std::memory_order_relaxed); }

  // Copies between local buffers and the peer's address space without its help; same order of bytes on both sides.
  virtual Status cma_copy(bool to_peer, std::span<const iovec> local, std::span<const iovec> remote) = 0;

 protected:
  void mark_dead(Status why = Status::peer_gone) noexcept {
    down_status_.store(why, std::memory_order_relaxed);
    dead_.store(true, std::memory_order_release);
  }
  std::atomic<std::byte*> segments_[mem::kSegmentCountMax]{};
  uint64_t segment_bytes_[mem::kSegmentCountMax]{};

 private:
  Link* link_;
  std::atomic<uint32_t> asked_{0}, answered_{0};
  std::atomic<bool> dead_{false};
  std::atomic<Status> down_status_{Status::peer_gone};
};

// What a link reports to the NIC. Called with no link lock held, by the thread that polls (one at a time).
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // `frame` was parsed; `payload` is valid during the call only and may lie in memory that the peer can change.
  virtual void on_frame(const std::shared_ptr<Peer>& peer, const wire::Frame& frame,
                        std::span<const std::byte> payload) = 0;
  // The answer to resolve(): on ok, `peer` and the endpoint's slot and generation there.
  virtual void on_resolved(const std::shared_ptr<void>& token, Status status, const std::shared_ptr<Peer>& peer,
                           uint32_t ep_index, uint32_t ep_generation) = 0;
  virtual void on_peer_down(const std::shared_ptr<Peer>& peer) = 0;
};

class Link {
 public:
  virtual ~Link() = default;

  // Claims an address for an endpoint of this process; throws Error(EADDRINUSE).
  virtual void claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) = 0;
  virtual void release(const wire::EpAddress& address) noexcept = 0;

  // Finds the endpoint at `address`. found: at once. later: FrameSink::on_resolved answers with `token`.
  // no: this link cannot reach such an address.
  enum class Resolving { no, later, found };
  struct Found {
    std::shared_ptr<Peer> peer;
    uint32_t ep_index = 0, ep_generation = 0;
  };
  virtual Resolving resolve(const wire::EpAddress& address, const std::shared_ptr<void>& token, Found* found) = 0;

  // The name that processes of this host know an endpoint by, where `address` is a name for other hosts.
  [[nodiscard]] virtual std::optional<wire::EpAddress> local_name(const wire::EpAddress&) { return std::nullopt; }
  // `address` as people write it, where this link knows more of it than its numbers.
  [[nodiscard]] virtual std::optional<std::string> name_of(const wire::EpAddress&) const { return std::nullopt; }
  // Why the last attempt to reach `address` failed, or why its peer is lost; empty where there is nothing to
  // tell than the status does.
  [[nodiscard]] virtual std::string explain(const wire::EpAddress&) const { return {}; }

  // HOT. Sends one frame. ok: it is on its way, and payload may be reused. again: no room now. peer_gone: never.
  virtual Status submit(Peer& peer, wire::Frame& frame, std::span<const std::byte> payload) = 0;
  virtual void request_segment(Peer& peer, uint32_t segment) = 0;
  // Has the peer's engine look around: something of ours that it reads has changed. A hint.
  virtual void wake(Peer&) noexcept {}
  // Ends the connection to a peer that does not keep to the protocol; FrameSink::on_peer_down() follows. Called by the
  // thread that polls.
  virtual void hang_up(Peer&, Status) noexcept {}

  // True (a hint) when poll() would find something. One cache line.
  [[nodiscard]] virtual bool maybe_ready() const noexcept = 0;
  virtual size_t poll(FrameSink& sink, size_t budget) = 0;  // frames
  virtual size_t poll_events(FrameSink& sink) = 0;          // connections: system calls
  // The application polls: do not wake the engine for what its polls will find. Until prepare_sleep().
  virtual void leave_to_polls() {}
  // Asks to be woken (through the waiter it was made with); false when there is work already.
  virtual bool prepare_sleep() = 0;
  [[nodiscard]] virtual bool has_timers() const = 0;  // something must be retried: do not sleep for long
  virtual void before_fork() {}
  virtual void after_fork_in_parent() noexcept {}
  virtual void after_fork_in_child() noexcept = 0;  // drop every descriptor; touch nothing else
  [[nodiscard]] virtual std::vector<std::shared_ptr<Peer>> peers() const = 0;
};

// Where an engine sleeps: made with the links, which wake it.
class Waiter {
 public:
  virtual ~Waiter() = default;
  virtual void wait(int64_t timeout_ns) = 0;  // negative: until woken
  virtual void wake() = 0;
  virtual void watch(int fd) = 0;  // wake when this descriptor becomes readable
};

}  // namespace weft::link
