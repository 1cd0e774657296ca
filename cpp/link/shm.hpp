// cpp/link/shm.hpp: the link between processes of one host and one user.
//
// Identity: an endpoint's address is an abstract Unix socket name; the kernel keeps the name unique, drops it with the
// process and separates network namespaces. Over that socket two NICs check each other's credentials (SO_PEERCRED) and
// pass descriptors:
//   ring      frames to us (MPSC), writable by peers                            } shm_area.hpp
//   staging   payloads too long for a ring slot; read-only to peers             }
//   table     our memory table, read-only to peers                     } not when either side is strict
//   segments  memory that Weft allocated: peers load and store there   }
// The peers of a NIC share its ring and staging memory. If either side is strict, a connection has its own.
// The socket is also the doorbell: one byte, sent with MSG_DONTWAIT, so the peer cannot make the send block. (A passed
// eventfd could block: both sides share its O_NONBLOCK flag.)
// A hang-up of the socket announces the peer's death; kill -9 leaves nothing behind. If descriptors of a dead process
// live on (inherited across exec(), or held by a bare fork), a pidfd announces the end of the process and a mark in the
// table (mem/life.hpp), checked before each copy by process_vm_*, the end of its program.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/lock.hpp"
#include "link/epoll.hpp"
#include "link/link.hpp"
#include "link/shm_area.hpp"
#include "ring/mpsc.hpp"
#include "wire/hello.hpp"

namespace weft::link {

constexpr uint32_t kPrivateTurn = 64;                         // frames taken from one private ring before the next ring
constexpr uint32_t kShmPeerMax = kSharedArea.producer_count;  // connections, and producer ids 1 .. 4095
constexpr uint64_t kHandshakeNs = 30'000'000'000;             // then a target that does not answer has timed out
constexpr size_t kShmPendingMax = 64;                         // callers without a greeting

struct ShmConfig {
  bool strict = false;  // share no table and no segments; every access goes through the owner's engine
  bool cma = true;      // try process_vm_readv/writev
};

class ShmPeer;

class ShmLink final : public Link {
 public:
  ShmLink(const ShmConfig& config, mem::Table& table, mem::SegmentSet& segments, Clock& clock, Random& random,
          Waiter& waiter);
  ~ShmLink() override;

  void claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) override;
  void release(const wire::EpAddress& address) noexcept override;
  Resolving resolve(const wire::EpAddress& address, const std::shared_ptr<void>& token, Found* found) override;
  Status submit(Peer& peer, wire::Frame& frame, std::span<const std::byte> payload) override;
  Status submit_brief(Peer& peer, const wire::Brief& brief, const std::byte* rest) override;
  void request_segment(Peer& peer, uint32_t segment) override;
  void wake(Peer& peer) noexcept override;
  void hang_up(Peer& peer, Status why) noexcept override;
  [[nodiscard]] bool maybe_ready() const noexcept override {
    if (private_count_.load(std::memory_order_relaxed) != 0) return true;  // polls read these rings: recently active
    const auto* word = hint_word_.load(std::memory_order_relaxed);
    return word == nullptr || word->load(std::memory_order_relaxed) != hint_free_.load(std::memory_order_relaxed);
  }
  size_t poll(FrameSink& sink, size_t budget) override;
  size_t poll_events(FrameSink& sink) override;
  bool prepare_sleep() override;
  [[nodiscard]] bool has_timers() const override;
  void before_fork() override { mutex_.lock_at_fork(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock_after_fork(); }
  void after_fork_in_child() noexcept override;
  [[nodiscard]] std::vector<std::shared_ptr<Peer>> peers() const override;
  [[nodiscard]] std::vector<std::shared_ptr<Peer>> users() const override;
  [[nodiscard]] bool each_peer(PeerTest holds, uint32_t argument) const override;
  [[nodiscard]] std::string explain(const wire::EpAddress& address) const override;

#if !defined(NDEBUG)
  void check() {  // of the shared ring
    const Guard lock(shared_.inbox_mutex);
    shared_.inbox.consumer.check();
  }
#endif
  // A copy has found its peer dead: the next poll_events() checks all peers and reports the death.
  void notice_death();

 private:
  struct Listener {
    UniqueFd fd;
    wire::EpAddress address;
    uint32_t ep_index, ep_generation;
  };
  enum class ConnState { awaiting_hello, awaiting_welcome, live };
  struct Conn {
    UniqueFd fd;
    ConnState state{};
    bool outbound = false;       // this NIC made the call
    bool is_private = false;     // the connection has an area of its own
    std::unique_ptr<Area> area;  // outbound, until there is a peer
    wire::EpAddress address;     // the endpoint that the caller asks for
    std::vector<std::shared_ptr<void>> tokens;
    std::shared_ptr<ShmPeer> peer;
    uint32_t producer_id = 0;  // the other side's producer id in our shared ring
    uint32_t listener = 0;     // inbound: the endpoint whose socket accepted the call
    uint64_t deadline_ns = 0;
  };
  // A peer that has lost its connection. Its threads may still copy, and send what they have claimed room for, until
  // its process ends or closes its end of the socket, which it does when none of its threads begins anew. Until then
  // nobody else gets the memory through which it sends and reads.
  struct Parted {
    UniqueFd fd;  // until the peer has closed its end
    std::shared_ptr<ShmPeer> peer;
    uint32_t producer_id = 0;
  };
  struct Retry {
    wire::EpAddress address;
    std::shared_ptr<void> token;
    uint64_t deadline_ns;
    bool is_private = false;  // an earlier call was answered with wants_private
  };
  struct Happened {  // reported to the sink after the lock is released
    enum Kind { resolved, segment, down } kind;
    std::shared_ptr<void> token;
    Status status;
    std::shared_ptr<Peer> peer;
    uint32_t ep_index = 0, ep_generation = 0;
  };
  struct Resolved {
    std::weak_ptr<ShmPeer> peer;
    uint32_t ep_index, ep_generation;
  };

  [[nodiscard]] wire::Hello own_hello(wire::HelloType type, bool is_private) const;
  bool send_hello(int fd, wire::Hello hello, const Area& area);
  Status start_connect(const wire::EpAddress& address, std::shared_ptr<void> token, bool is_private);
  void call_again(uint32_t conn_id, bool is_private);
  void accept_all(uint32_t listener_id);
  bool evict_oldest_pending();
  void on_packet(uint32_t conn_id);
  void on_hello(uint32_t conn_id, const wire::Hello& hello, std::vector<UniqueFd>& fds,
                std::span<const std::byte> tail);
  void on_welcome(uint32_t conn_id, const wire::Hello& hello, std::vector<UniqueFd>& fds,
                  std::span<const std::byte> tail);
  std::shared_ptr<ShmPeer> make_peer(const Conn& conn, const wire::Hello& hello, std::vector<UniqueFd>& fds,
                                     std::span<const std::byte> tail);
  void publish(uint32_t conn_id, std::shared_ptr<ShmPeer> peer);
  void watch_process(const ShmPeer& peer);
  [[nodiscard]] bool deaths_due();
  void drop_conn(uint32_t conn_id, Status why);
  [[nodiscard]] bool is_producer(uint32_t id) const;
  void release_producer(uint32_t id);
  [[nodiscard]] bool has_parted(Parted& parted);
  void part(int fd, wire::RejectReason reason) noexcept;
  void note(const wire::EpAddress& address, const std::string& what);
  // Called by the polling thread.
  bool take(FrameSink& sink, const std::shared_ptr<ShmPeer>& peer, const ring::Message& message);
  static bool take_brief(FrameSink& sink, ShmPeer& peer, const ring::Message& message);
  size_t poll_private(FrameSink& sink, size_t budget);
  void watch_shared();
  void audit_shared();
  void frames_were_lost();
  void awake(const std::shared_ptr<ShmPeer>& peer);
  void drop_hung_up();
  void reject(int fd, wire::RejectReason reason) noexcept;
  uint32_t take_producer_id();
  void reclaim_all() noexcept;
  void store_hint() noexcept;

  ShmConfig config_;
  mem::Table& table_;
  mem::SegmentSet& segments_;
  Clock& clock_;
  Random& random_;
  Waiter& waiter_;
  std::array<uint8_t, 16> uuid_{};
  std::array<uint8_t, 16> nonce_{};
  EpollSet epoll_;
  UniqueFd audit_timer_;
  bool audit_timer_on_ = false;
  UniqueFd spare_fd_;  // closed to accept and reject a caller when the process has no descriptor left
  Area shared_;
  std::atomic<const std::atomic<uint64_t>*> hint_word_{nullptr};
  std::atomic<uint64_t> hint_free_{0};
  std::atomic<bool> chunks_wanted_{false}, frames_lost_{false};
  // Peers with an area of their own whose rings polls read. The polling thread changes the list; a thread that goes to
  // sleep reads it.
  RankedMutex<lock_rank::kShmPrivate> private_mutex_;
  std::vector<std::shared_ptr<ShmPeer>> private_;
  std::atomic<size_t> private_count_{0};
  size_t private_next_ = 0;  // index in private_ of the ring to poll next

  mutable RankedMutex<lock_rank::kShm> mutex_;
  std::map<uint32_t, Listener> listeners_ GUARDED_BY(mutex_);
  std::map<uint32_t, Conn> conns_ GUARDED_BY(mutex_);
  std::map<uint32_t, Parted> parted_ GUARDED_BY(mutex_);  // by the numbers of their connections
  std::deque<uint32_t> pending_ GUARDED_BY(mutex_);       // callers that may lack a greeting, oldest first
  uint32_t next_id_ GUARDED_BY(mutex_) = 2;
  std::deque<uint32_t> free_producers_ GUARDED_BY(mutex_);
  std::deque<Retry> retries_ GUARDED_BY(mutex_);
  std::vector<Happened> happened_ GUARDED_BY(mutex_);
  std::unordered_map<wire::EpAddress, Resolved, wire::EpAddressHash> resolved_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ShmPeer>> producers_;  // by producer id; read by the polling thread, written under mutex_
  std::map<wire::EpAddress, std::string> reasons_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> happened_count_{0};
  std::atomic<bool> deaths_{false};
  std::atomic<uint64_t> deaths_looked_ns_{0};
  std::atomic<bool> hang_ups_{false};
  bool has_pending_handshake_ GUARDED_BY(mutex_) = false;
};

}  // namespace weft::link
