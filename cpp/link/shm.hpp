// cpp/link/shm.hpp: the link between processes of one host and one user.
//
// Identity: an endpoint's address is an abstract Unix socket name; the kernel keeps it unique, drops it with the
// process and separates network namespaces. Over that socket two NICs check each other (SO_PEERCRED) and pass
// descriptors:
//   doorbell  eventfd: wakes the other engine
//   ring      every peer's frames to us (MPSC), writable by peers
//   staging   payloads too long for a ring slot, and how far we consumed others' payloads; read-only to peers
//   table     our memory table, read-only to peers                     } not when either side is strict
//   segments  memory that Weft allocated: peers load and store there   }
// Its hang-up is how a dead peer is noticed; nothing is left behind by kill -9.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/spinlock.hpp"
#include "link/epoll.hpp"
#include "link/link.hpp"
#include "ring/mpsc.hpp"
#include "wire/hello.hpp"

namespace weft::link {

constexpr uint32_t kShmPeerMax = 4096;                           // producer ids 1 .. 4095
constexpr uint32_t kRingSlotCount = 4096;                        // 1 MiB
constexpr uint32_t kStagingChunkCount = 256;                     // of 64 KiB: 16 MiB, sparse
constexpr size_t kStagingHeaderBytes = size_t{8} * kShmPeerMax;  // consumed counters, one a producer
constexpr uint64_t kHandshakeNs = 30'000'000'000;                // a target that never answers: timeout

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
  void request_segment(Peer& peer, uint32_t segment) override;
  [[nodiscard]] bool maybe_ready() const noexcept override {
    const auto* word = hint_word_.load(std::memory_order_relaxed);
    return word == nullptr || word->load(std::memory_order_relaxed) != hint_free_.load(std::memory_order_relaxed);
  }
  size_t poll(FrameSink& sink, size_t budget) override;
  size_t poll_events(FrameSink& sink) override;
  bool prepare_sleep() override;
  [[nodiscard]] bool has_timers() const override;
  void before_fork() override { mutex_.lock(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock(); }
  void after_fork_in_child() noexcept override;
  [[nodiscard]] std::vector<std::shared_ptr<Peer>> peers() const override;

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
    bool outbound = false;    // we called
    wire::EpAddress address;  // wanted (outbound) or asked for (inbound)
    std::vector<std::shared_ptr<void>> tokens;
    std::shared_ptr<ShmPeer> peer;
    uint32_t producer_id = 0;  // that we gave the other side
    uint32_t listener = 0;     // inbound: through which endpoint it came
    uint64_t deadline_ns = 0;
  };
  struct Retry {
    wire::EpAddress address;
    std::shared_ptr<void> token;
    uint64_t deadline_ns;
  };
  struct Happened {  // told to the sink once the lock is dropped
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

  [[nodiscard]] wire::Hello own_hello(wire::HelloType type) const;
  bool send_hello(int fd, wire::Hello hello);
  Status start_connect(const wire::EpAddress& address, std::shared_ptr<void> token);
  void accept_all(uint32_t listener_id);
  void on_packet(uint32_t conn_id);
  void on_hello(uint32_t conn_id, const wire::Hello& hello, std::vector<UniqueFd>& fds,
                std::span<const std::byte> tail);
  void on_welcome(uint32_t conn_id, const wire::Hello& hello, std::vector<UniqueFd>& fds,
                  std::span<const std::byte> tail);
  std::shared_ptr<ShmPeer> make_peer(int socket_fd, const wire::Hello& hello, std::vector<UniqueFd>& fds,
                                     std::span<const std::byte> tail);
  void drop_conn(uint32_t conn_id, Status why);
  void reject(int fd, wire::RejectReason reason) noexcept;
  uint32_t take_producer_id();
  void reclaim_all() noexcept;
  [[nodiscard]] std::byte* staged_chunk(uint32_t chunk) const noexcept {
    return staging_.data() + kStagingHeaderBytes + size_t{chunk} * wire::kStagedPayloadMax;
  }
  void store_hint() noexcept;

  ShmConfig config_;
  mem::Table& table_;
  mem::SegmentSet& segments_;
  Clock& clock_;
  Waiter& waiter_;
  std::array<uint8_t, 16> uuid_{};
  std::array<uint8_t, 16> nonce_{};
  EpollSet epoll_;
  UniqueFd doorbell_;
  UniqueFd spare_fd_;  // given up to answer a caller when the process has no descriptor left
  UniqueFd ring_fd_;
  Mapping ring_;
  ring::MpscConsumer consumer_;  // by whoever holds the NIC's progress lock
  std::mutex consumer_mutex_;    // a thread that goes to sleep looks at it too
  std::atomic<const std::atomic<uint64_t>*> hint_word_{nullptr};
  std::atomic<uint64_t> hint_free_{0};
  UniqueFd staging_fd_;
  Mapping staging_;
  SpinLock chunk_lock_;
  std::vector<uint32_t> free_chunks_;
  std::atomic<bool> chunks_wanted_{false};

  mutable std::mutex mutex_;
  std::map<uint32_t, Listener> listeners_;
  std::map<uint32_t, Conn> conns_;
  uint32_t next_id_ = 2;
  std::deque<uint32_t> free_producers_;
  std::deque<Retry> retries_;
  std::vector<Happened> happened_;
  std::unordered_map<wire::EpAddress, Resolved, wire::EpAddressHash> resolved_;
  std::vector<std::shared_ptr<ShmPeer>> producers_;  // by producer id; read by the polling thread, written under mutex_
  std::atomic<uint64_t> happened_count_{0};
  bool has_pending_handshake_ = false;
};

}  // namespace weft::link
