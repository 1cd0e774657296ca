// cpp/nic/nic.hpp: the software NIC: domains, endpoints, regions, and the one engine that serves them.
//
//   Nic ── Domain ── Endpoint ── Flow ── Route ── link::Peer
//     │       ├───── AddressVector (fi_addr -> Route)
//     │       ├───── CompletionQueue, Counter
//     │       └───── MemoryRegion (an entry of mem::Table)
//     └── links (self, shm, ...), engine thread
//
// Locks, in the order in which they may be taken: progress lock, region-serving lock, a domain's lock, link locks.
// A domain's lock is an activity word of the memory table: taking it is what tells peers' owners that we are accessing.
//
// This room opens no file, reads no clock and draws no random number itself: clock, random numbers, links, limits and
// the place to sleep are parameters.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/spinlock.hpp"
#include "link/link.hpp"
#include "mem/cache.hpp"
#include "mem/guard.hpp"
#include "mem/segment.hpp"
#include "mem/table.hpp"
#include "nic/args.hpp"
#include "nic/atomics.hpp"
#include "nic/av.hpp"
#include "nic/cm.hpp"
#include "nic/domain.hpp"
#include "nic/endpoint.hpp"
#include "nic/op.hpp"
#include "nic/queue.hpp"
#include "nic/region.hpp"
#include "nic/rights.hpp"
#include "nic/route.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

struct Limits {
  uint32_t mr_count_max = 1u << 21;
  // Longer copies are made outside the domain's lock, which costs 250 ns: 64 KiB take some microseconds, about what a
  // thread that waits for the lock spins before it yields.
  size_t inline_copy_bytes = 64 * 1024;
  size_t iov_count_max = 8;
  size_t atomic_bytes_max = 4096;          // a call
  uint64_t close_wait_ns = 5'000'000'000;  // how long closing a region waits for peers that are copying
};

struct NicStatistics {
  uint64_t direct_ops = 0, cma_ops = 0, framed_ops = 0, failed_ops = 0, bytes = 0;
  uint64_t frames_served = 0, engine_wakes = 0, peers = 0, regions = 0, allocated_bytes = 0;
  uint64_t resting_bytes = 0;  // freed, and kept for peers that have pointers to it
  uint64_t waiting_ops = 0;    // posted, and not yet handed to a link
  uint64_t deferred = 0;       // answers, and frames that wait behind them, for peers that take nothing at the moment
};

class Nic final : public link::FrameSink, public mem::PlaceHolders {
 public:
  struct Parts {  // what the NIC is built on; links are tried in order
    Clock* clock = nullptr;
    Random* random = nullptr;
    link::Waiter* waiter = nullptr;
    mem::Table* table = nullptr;
    mem::SegmentSet* segments = nullptr;
    mem::Devices* devices = nullptr;
    mem::RegistrationCache* cache = nullptr;  // null: none
    std::vector<link::Link*> links;
  };
  Nic(Parts parts, Limits limits)
      : parts_(std::move(parts)), limits_(limits), eps_(mem::kEpCountMax), domains_(mem::kDomainCountMax) {}
  ~Nic() override { stop_engine(); }

  void start_engine();
  void stop_engine() noexcept;
  [[nodiscard]] bool has_engine() const noexcept { return has_engine_.load(std::memory_order_relaxed); }

  // The device allocation around [address, address + length), as the registration cache or the runtimes know it.
  std::optional<mem::DeviceMemory> device_memory(uint64_t address, uint64_t length);
  // One round: frames, connections, waiting operations. Returns how much was done; 0 also when another thread is at it.
  // Connections cost system calls; a polling thread leaves them to the engine where there is one.
  size_t progress(bool events = true);
  // The first page of this process's [address, address + length) that is not there, or not readable.
  std::optional<uint64_t> missing_page(uint64_t address, uint64_t length);
  // The application is at it: while it comes back the engine leaves the links to it, and looks in once a millisecond.
  uint64_t note_app() noexcept {
    const uint64_t polls = app_polls_.load(std::memory_order_relaxed) + 1;
    app_polls_.store(polls, std::memory_order_relaxed);
    return polls;
  }
  // HOT. What a polling thread calls: as cheap as one load while nothing waits.
  size_t poll_from_app() {
    const uint64_t polls = note_app();
    bool ready = waiting_ops_.load(std::memory_order_relaxed) != 0;
    for (link::Link* l : parts_.links) ready |= l->maybe_ready();
    if (!ready && (has_engine() || (polls & 63) != 0)) [[likely]]
      return 0;
    return progress(!has_engine());
  }
  // Call before sleeping on an Event: arms the engine thread to serve the NIC meanwhile.
  void prepare_app_sleep();
  // Without an engine thread: the calling thread sleeps in its place, at most timeout_ns.
  void wait_as_engine(int64_t timeout_ns);

  [[nodiscard]] mem::Table& table() noexcept { return *parts_.table; }
  [[nodiscard]] mem::SegmentSet& segments() noexcept { return *parts_.segments; }
  [[nodiscard]] mem::Devices& devices() noexcept { return *parts_.devices; }
  [[nodiscard]] mem::RegistrationCache* cache() noexcept { return parts_.cache; }
  [[nodiscard]] Clock& clock() noexcept { return *parts_.clock; }
  [[nodiscard]] Random& random() noexcept { return *parts_.random; }
  [[nodiscard]] link::Waiter& waiter() noexcept { return *parts_.waiter; }
  [[nodiscard]] const std::vector<link::Link*>& links() const noexcept { return parts_.links; }
  [[nodiscard]] const Limits& limits() const noexcept { return limits_; }
  [[nodiscard]] NicStatistics statistics();
  // How many connections to peers have ended: a change tells a poller to look at its peers.
  [[nodiscard]] uint64_t downs() const noexcept { return downs_.load(std::memory_order_acquire); }

  // What links know of an address: its name on this host, how it is written, why it was not reached.
  [[nodiscard]] std::optional<wire::EpAddress> local_name(const wire::EpAddress& address) const;
  [[nodiscard]] std::string text_of(const wire::EpAddress& address) const;
  [[nodiscard]] std::string explain(const wire::EpAddress& address) const;

  // Around fork(): what the child looks at must be whole.
  void before_fork();
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;

  // PlaceHolders: what this process's table and those of its peers say.
  void held_places(std::vector<mem::HeldPlace>& out) override;
  uint64_t holds_stamp() override;

  // FrameSink
  void on_frame(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                std::span<const std::byte> payload) override;
  void on_resolved(const std::shared_ptr<void>& token, Status status, const std::shared_ptr<link::Peer>& peer,
                   uint32_t ep_index, uint32_t ep_generation) override;
  void on_peer_down(const std::shared_ptr<link::Peer>& peer) override;

 private:
  friend class Domain;
  friend class Endpoint;
  friend class MemoryRegion;
  void engine_loop();
  size_t progress_locked(bool events) noexcept;
  size_t pump_all();
  bool serve_write(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                   std::span<const std::byte> payload);
  void serve(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload);
  // Without memory the answer is no_memory: nothing that a peer asks for ends the process or leaves this room.
  void serve_safely(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                    std::span<const std::byte> payload) noexcept;
  void answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& request, Status status,
              std::span<const std::byte> payload, uint8_t room = 0) noexcept;
  Status room_of(const wire::Frame& frame, uint8_t* room) const;
  void on_answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                 std::span<const std::byte> payload) noexcept;
  Status on_cm(const wire::Frame& frame, std::span<const std::byte> payload);
  uint8_t local_event(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, uint32_t slot, bool read,
                      uint64_t bytes) noexcept;
  // How the check of this frame's operation ended, if it had one; forgets it with the last frame.
  Status announced(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, uint64_t* total);
  void count_frame() noexcept {  // with the progress lock: one thread at a time
    frames_served_.store(frames_served_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  // What waits for a peer that takes nothing: deferred.cpp.
  void defer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload,
             bool serve_again) noexcept;
  size_t retry_deferred() noexcept;
  void forget_deferred(link::Peer& peer) noexcept;
  [[nodiscard]] static bool must_follow(const link::Peer& peer) noexcept;
  // Counts an entry of the peer beyond an endpoint's queue; false: it has had too many since its peers were told.
  static bool count_late(link::Peer& peer, uint32_t ep_index, uint64_t shut_number) noexcept;
  void hang_up(const std::shared_ptr<link::Peer>& peer, Status why) noexcept;
  // Something waits that only progress() can move on, and no peer will ring for it.
  void need_engine() noexcept;
  [[nodiscard]] bool must_look_again() const noexcept {
    return deferred_count_.load(std::memory_order_seq_cst) != 0 || waiting_ops_.load(std::memory_order_seq_cst) != 0;
  }
  uint32_t add_domain(Domain* domain);
  void remove_domain(Domain* domain) noexcept;
  uint64_t next_op() {
    const std::lock_guard objects(objects_mutex_);
    return next_op_;
  }
  // Waits until all accesses that began before have ended. Empty: they have; otherwise names the peer that has not.
  std::string quiesce(uint32_t slot);
  uint32_t begin_long_activity(uint32_t slot) noexcept;
  void end_long_activity(uint32_t at) noexcept;
  // The ways from the first-th on; false: no link reaches it.
  bool resolve(const std::shared_ptr<Route>& route, uint32_t first = 0);

  Parts parts_;
  Limits limits_;
  alignas(kCacheLine) std::atomic<uint64_t> app_polls_{0};
  std::atomic<uint64_t> waiting_ops_{0};  // operations that progress() must move on
  std::atomic<uint64_t> downs_{0};
  alignas(kCacheLine) std::mutex progress_mutex_;
  SpinLock serve_lock_;  // held while a frame accesses a region: closing a region waits for it
  uint32_t busy_rounds_ = 0;
  std::vector<std::shared_ptr<link::Peer>> owed_;  // peers for which something waits
  std::atomic<size_t> deferred_count_{0};          // frames that wait, of all peers; changed with the progress lock
  std::atomic<bool> engine_rests_{false};          // it will not look again unless it is woken
  // Operations of several ranges that a peer has announced: what the check found, until their last frame.
  struct Announced {
    uint64_t op_id;
    uint64_t total;  // bytes of all ranges
    Status status;
  };
  static constexpr size_t kAnnouncedMax = 256;  // per peer; beyond it the oldest is dropped, which harms only that peer
  std::unordered_map<link::Peer*, std::deque<Announced>> announced_;
  mutable std::mutex objects_mutex_;  // eps_, domains_, counted_regions_, next_op_
  std::vector<std::shared_ptr<Endpoint>> eps_;
  std::vector<Domain*> domains_;
  std::unordered_map<uint32_t, std::weak_ptr<MemoryRegion>> counted_regions_;
  uint64_t next_op_ = 1;  // a new domain's first: a late answer to one of a closed domain must not find another
  std::thread engine_;
  std::atomic<bool> has_engine_{false};  // not engine_.joinable(): the engine itself asks while engine_ is assigned
  std::atomic<bool> stopping_{false};
  std::atomic<bool> engine_armed_{false};
  std::atomic<uint32_t> sleepers_{0};  // threads that have armed the doorbell to sleep until it rings
  std::atomic<uint64_t> frames_served_{0}, engine_wakes_{0};
};

}  // namespace weft::nic
