// cpp/link/link.hpp: the interface between the NIC and its links (Link, Peer), and the link's reports to the NIC
// (FrameSink). Of this room the NIC includes this header and copy_job.hpp.
//
// A link finds peers (resolve), carries frames to them (submit) and passes received frames to a FrameSink (poll). If
// loads and stores reach the peer's memory, Peer::table is valid; the NIC then needs no frame for most accesses.
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
#include "link/copy_job.hpp"
#include "mem/segment.hpp"
#include "mem/table.hpp"
#include "wire/address.hpp"
#include "wire/brief.hpp"
#include "wire/frame.hpp"

namespace weft::link {

class Link;

constexpr size_t kReasonsMax = 256;  // addresses for which a link remembers why it does not reach them
constexpr size_t kAcceptsMax = 64;   // calls taken in a round: a flood must not keep the thread from open connections

// The NIC's state for a peer, stored in the peer so that the NIC needs no lookup. The link only owns it.
struct NicState {
  NicState() = default;
  NicState(const NicState&) = delete;
  NicState& operator=(const NicState&) = delete;
  virtual ~NicState() = default;
};

// The other NIC of a connection. Reference-counted; dead(): the peer will send no more answers.
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  explicit Peer(Link* link) noexcept;
  virtual ~Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // The link through which the NIC sends to this peer: the link that made the peer, or the outermost link that wraps
  // it.
  [[nodiscard]] Link* link() const noexcept { return link_; }
  void go_through(Link& outer) noexcept { link_ = &outer; }  // see Link::wrap_in()
  [[nodiscard]] bool dead() const noexcept { return dead_.load(std::memory_order_acquire); }
  [[nodiscard]] virtual std::string describe() const = 0;

  // Direct access. table.valid() is false if the peer shares no memory; segment_base() is null for a segment that is
  // not mapped (call Link::request_segment). The link fills the arrays before it publishes the peer, then only adds.
  mem::TableView table;
  [[nodiscard]] std::byte* segment_base(uint32_t segment) const noexcept {
    return segment < mem::kSegmentCountMax ? segments_[segment].load(std::memory_order_acquire) : nullptr;
  }
  [[nodiscard]] uint64_t segment_bytes(uint32_t segment) const noexcept { return segment_bytes_[segment]; }
  // The file of a segment that is mapped, for more mappings of it (mem/lease.hpp); -1: there is none.
  [[nodiscard]] virtual int segment_fd(uint32_t) const noexcept { return -1; }
  bool same_process = false;
  bool cma = false;           // process_vm_readv/writev work: the link tried them with this process
  bool takes_briefs = false;  // Link::submit_brief works
  int32_t process_id = 0;     // in this process's pid namespace
  std::string cma_reason;     // why cma is off

  // No other peer of this NIC ever has the same number. Not 0.
  const uint64_t number;

  std::unique_ptr<NicState> nic_state;  // guarded by the NIC's progress lock

  // Limits the unanswered requests to this peer, of all domains, to unanswered_max (wire/frame.hpp). Any posting thread
  // begins a request; only the polling thread ends one.
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
    // Surplus answers are ignored: they must not raise the limit.
    if (asked_.load(std::memory_order_acquire) != answered) answered_.store(answered + 1, std::memory_order_release);
  }
  uint32_t unanswered_max = wire::kUnansweredMax;

  // Payload limit of one frame to or from this peer.
  size_t payload_max = wire::kStagedPayloadMax;
  // Why the peer is dead: the status with which the operations under way end.
  [[nodiscard]] Status down_status() const noexcept { return down_status_.load(std::memory_order_relaxed); }

  // Copies between local buffers and the peer's address space without the peer's help; both lists give the same bytes.
  virtual Status cma_copy(bool to_peer, std::span<const iovec> local, std::span<const iovec> remote) = 0;
  CopyHelp help;
  // The peer looks at its frames now: no system call wakes it.
  [[nodiscard]] virtual bool is_awake() const noexcept { return false; }
  // The peer's process has not ended. A system call.
  [[nodiscard]] virtual bool runs() const noexcept { return true; }
  // Though dead(), its threads may still use memory that loads and stores reach.
  [[nodiscard]] virtual bool lingers() const noexcept { return false; }

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

// A link's reports to the NIC. The polling thread (one at a time) makes the calls and holds no lock of the link.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // `frame` is a checked copy; `payload` is valid only during the call and may be memory that the peer can change.
  virtual void on_frame(const std::shared_ptr<Peer>& peer, const wire::Frame& frame,
                        std::span<const std::byte> payload) = 0;
  // A credited message (wire/brief.hpp): a checked copy, and bytes that are valid only during the call. Only from peers
  // with takes_briefs.
  virtual void on_brief(Peer&, const wire::BriefView&) {}
  // The answer to resolve(): on ok, `peer` and the endpoint's slot and generation at the peer.
  virtual void on_resolved(const std::shared_ptr<void>& token, Status status, const std::shared_ptr<Peer>& peer,
                           uint32_t ep_index, uint32_t ep_generation) = 0;
  virtual void on_peer_down(const std::shared_ptr<Peer>& peer) = 0;
  // The peer is no user of our memory any more (Link::users); after on_peer_down().
  virtual void on_peer_gone(const std::shared_ptr<Peer>&) {}
};

// Which link of its NIC a link is: a NIC has at most one of each kind, not counting those that wrap others.
enum class LinkKind : uint8_t { self, shm, tcp, memory };

class Link {
 public:
  explicit Link(LinkKind kind) noexcept : numbers_(uint64_t{static_cast<uint8_t>(kind)} << 56) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Another link stands between this link and the NIC from now on, and is given to the NIC in its place: it sees every
  // call of the NIC, and every report to the NIC. Before the NIC uses the link.
  virtual void wrap_in(Link& outer) noexcept {
    outermost_ = &outer;
    for (const auto& peer : peers()) peer->go_through(outer);
  }
  [[nodiscard]] Link* outermost() const noexcept { return outermost_; }
  [[nodiscard]] uint64_t next_number() noexcept { return numbers_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Claims an address for an endpoint of this process; throws Error(EADDRINUSE).
  virtual void claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) = 0;
  virtual void release(const wire::EpAddress& address) noexcept = 0;

  // Finds the endpoint at `address`. found: *found is filled. later: FrameSink::on_resolved is called with `token`.
  // no: this link cannot reach such an address.
  enum class Resolving { no, later, found };
  struct Found {
    std::shared_ptr<Peer> peer;
    uint32_t ep_index = 0, ep_generation = 0;
  };
  virtual Resolving resolve(const wire::EpAddress& address, const std::shared_ptr<void>& token, Found* found) = 0;

  // The address of an endpoint for processes of this host, if `address` is its address for other hosts.
  [[nodiscard]] virtual std::optional<wire::EpAddress> local_name(const wire::EpAddress&) { return std::nullopt; }
  // The place of an endpoint of another host: the host, "10.0.0.1:7000", and the NIC's number there. name_of() gives
  // the text form of an address that has such a place.
  struct Place {
    std::string host;
    uint32_t nic;
  };
  [[nodiscard]] virtual std::optional<Place> place_of(const wire::EpAddress&) const { return std::nullopt; }
  [[nodiscard]] virtual std::optional<std::string> name_of(const wire::EpAddress&) const { return std::nullopt; }
  // Why the last attempt to reach `address` failed, or why its peer is lost; empty if the link knows no more than the
  // status says.
  [[nodiscard]] virtual std::string explain(const wire::EpAddress&) const { return {}; }

  // HOT. Sends one frame. ok: the frame is sent or queued, and payload may be reused. again: no room; retry later.
  virtual Status submit(Peer& peer, wire::Frame& frame, std::span<const std::byte> payload) = 0;
  // HOT. Sends a credited message to a peer with takes_briefs. `rest`: 24 bytes can be read, or brief.rest if that is
  // more; none of them fails.
  virtual Status submit_brief(Peer&, const wire::Brief&, const std::byte*) { return Status::again; }
  virtual void request_segment(Peer& peer, uint32_t segment) = 0;
  // Wakes the peer's engine, because memory of ours that the engine reads has changed. A hint.
  virtual void wake(Peer&) noexcept {}
  // Ends the connection to a peer that breaks the protocol; FrameSink::on_peer_down() follows. Called by the polling
  // thread.
  virtual void hang_up(Peer&, Status) noexcept {}

  // True (a hint) if poll() would find a frame. Reads one cache line.
  [[nodiscard]] virtual bool maybe_ready() const noexcept = 0;
  virtual size_t poll(FrameSink& sink, size_t budget) = 0;  // frames
  virtual size_t poll_events(FrameSink& sink) = 0;          // connections: system calls
  // The application polls: until prepare_sleep(), do not wake the engine for events that a poll will find.
  virtual void leave_to_polls() {}
  // Arms the waiter of this link; false if there is work already.
  virtual bool prepare_sleep() = 0;
  [[nodiscard]] virtual bool has_timers() const = 0;  // an attempt must be repeated soon: sleep only briefly
  virtual void before_fork() {}
  virtual void after_fork_in_parent() noexcept {}
  virtual void after_fork_in_child() noexcept = 0;  // closes every descriptor and changes nothing else
  [[nodiscard]] virtual std::vector<std::shared_ptr<Peer>> peers() const = 0;
  // peers(), and the peers that have lost their connection and may still copy to or from our memory.
  [[nodiscard]] virtual std::vector<std::shared_ptr<Peer>> users() const { return peers(); }
  // Whether `holds` is true for each of users(); makes no copies. The link may be locked: `holds` does not call the
  // link.
  using PeerTest = bool (*)(const Peer& peer, uint32_t argument);
  [[nodiscard]] virtual bool each_peer(PeerTest holds, uint32_t argument) const {
    for (const auto& peer : users()) {
      if (!holds(*peer, argument)) return false;
    }
    return true;
  }

 private:
  Link* outermost_ = this;
  std::atomic<uint64_t> numbers_;  // the last one that a peer has got
};

inline Peer::Peer(Link* link) noexcept : number(link->next_number()), link_(link->outermost()) {}

// An engine sleeps in its Waiter; the links, which get the waiter at construction, wake it.
class Waiter {
 public:
  virtual ~Waiter() = default;
  virtual void wait(int64_t timeout_ns) = 0;  // negative: until woken
  virtual void wake() = 0;
  virtual void watch(int fd) = 0;  // wake when this descriptor becomes readable
};

}  // namespace weft::link
