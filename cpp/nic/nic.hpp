// cpp/nic/nic.hpp: the software NIC: domains, endpoints, regions, and the one engine that serves them.
//
//   Nic ── Domain ── Endpoint ── Flow ── Route ── link::Peer
//     │       ├───── AddressVector (fi_addr -> Route)
//     │       ├───── CompletionQueue, Counter
//     │       └───── MemoryRegion (an entry of mem::Table)
//     └── links (self, shm, ...), engine thread
//
// Order of locks: base/lock_rank.hpp.
// A domain's lock is an activity word of the memory table: taking it tells the owners of regions that we access them.
//
// This room opens no file, reads no clock and draws no random number itself: clock, random numbers, links, limits and
// the waiter are parameters.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/lock.hpp"
#include "link/link.hpp"
#include "mem/cache.hpp"
#include "mem/guard.hpp"
#include "mem/segment.hpp"
#include "mem/table.hpp"
#include "nic/args.hpp"
#include "nic/atomics.hpp"
#include "nic/av.hpp"
#include "nic/cm.hpp"
#include "nic/counter.hpp"
#include "nic/domain.hpp"
#include "nic/endpoint.hpp"
#include "nic/notices.hpp"
#include "nic/op.hpp"
#include "nic/region.hpp"
#include "nic/rights.hpp"
#include "nic/route.hpp"
#include "nic/snapshot.hpp"
#include "nic/telemetry.hpp"
#include "nic/trace.hpp"
#include "sync/word.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

class Parking;

struct Limits {
  uint32_t mr_count_max = 1u << 21;
  // Longer copies are made outside the domain's lock, which costs 250 ns. 64 KiB take some microseconds, about as long
  // as a thread that waits for the lock spins before it yields.
  size_t inline_copy_bytes = 64 * 1024;
  size_t atomic_bytes_max = 4096;          // per call
  uint64_t close_wait_ns = 5'000'000'000;  // how long closing a region waits for peers that are copying
};

struct NicStatistics {
  uint64_t direct_ops = 0, cma_ops = 0, framed_ops = 0, failed_ops = 0, bytes = 0;
  uint64_t frames_served = 0, engine_wakes = 0, peers = 0, regions = 0, allocated_bytes = 0;
  uint64_t helped_ops = 0;     // messages of which this process, their sender, has copied a part
  uint64_t resting_bytes = 0;  // freed memory that is kept for peers with pointers to it
  uint64_t waiting_ops = 0;    // operations posted but not yet passed to a link
  uint64_t deferred = 0;       // answers, and frames queued behind them, for peers without room at present
};

class Nic final : public link::FrameSink, public mem::PlaceHolders {
 public:
  struct Parts {  // the objects that the NIC uses; links are tried in order
    Clock* clock = nullptr;
    Random* random = nullptr;
    link::Waiter* waiter = nullptr;
    mem::Table* table = nullptr;
    mem::SegmentSet* segments = nullptr;
    mem::Devices* devices = nullptr;
    mem::RegistrationCache* cache = nullptr;  // null: none
    Viewers* viewers = nullptr;               // null: none
    Trace* trace = nullptr;                   // null: nothing is recorded
    sync::World* world = nullptr;             // null: no process is ever found to have ended
    std::vector<link::Link*> links;
  };
  Nic(Parts parts, Limits limits);
  ~Nic() override;

  void start_engine();
  void stop_engine() noexcept;
  [[nodiscard]] bool has_engine() const noexcept { return has_engine_.load(std::memory_order_relaxed); }

  // The device allocation around [address, address + length), as the registration cache or the runtimes know it.
  std::optional<mem::DeviceMemory> device_memory(uint64_t address, uint64_t length);
  // One round: frames, connections, waiting operations. Returns the number of steps; 0 also while another thread is in
  // a round. Connections (`events`) cost system calls; a polling thread leaves them to the engine if there is one.
  size_t progress(bool events = true);
  // The first page of this process's [address, address + length) that is missing or not readable.
  std::optional<uint64_t> missing_page(uint64_t address, uint64_t length);
  // Notes that the application polls: while it keeps polling, the engine leaves the links to it, with one round a ms.
  uint64_t note_app() noexcept {
    const uint64_t polls = app_polls_.load(std::memory_order_relaxed) + 1;
    app_polls_.store(polls, std::memory_order_relaxed);
    return polls;
  }
  // HOT. The call of a polling thread: a few loads while there is no work.
  size_t poll_from_app() {
    const uint64_t polls = note_app();
    bool ready = waiting_ops_.load(std::memory_order_relaxed) != 0;
    if (ready) release_kept();
    for (link::Link* l : parts_.links) ready |= l->maybe_ready();
    if (!ready && (has_engine() || (polls & 63) != 0)) [[likely]]
      return 0;
    return progress(!has_engine());
  }
  // A round if a link has frames, for a caller whose own work waits for one. The caller holds no lock of the NIC.
  void poll_if_ready() {
    for (link::Link* l : parts_.links) {
      if (!l->maybe_ready()) continue;
      progress(false);
      return;
    }
  }
  // Submits kept operations (reorder.hpp), because the application polls.
  void release_kept() {
    if (kept_ops_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      release_kept_now();
  }
  // Memory of this process has changed by stores of this process: calls that wait for it are looked at again.
  void wake_parked() noexcept {
    if (table().parked().load(std::memory_order_seq_cst) != 0) [[unlikely]]
      parts_.waiter->wake();
  }
  // Call before sleeping on an Event: arms the engine thread to serve the NIC during the sleep.
  void prepare_app_sleep();
  // Without an engine thread: the calling thread sleeps in the engine's place, at most timeout_ns.
  void wait_as_engine(int64_t timeout_ns);

  // Makes progress() read the page of this counter, until unwatch().
  void watch(const std::shared_ptr<Counter>& counter);
  void unwatch(const Counter* counter) noexcept;

  [[nodiscard]] TelemetryPages& telemetry() noexcept { return telemetry_; }
  // Counts an operation that reached a device. Any thread.
  void count_at(uint32_t nic, uint16_t how, uint64_t bytes, bool counts) noexcept;
  // An access of this process to a peer's region that ends outside a domain's lock (revoke.cpp).
  uint32_t begin_long_activity(uint32_t slot) noexcept;
  void end_long_activity(uint32_t at) noexcept;
  [[nodiscard]] mem::Table& table() noexcept { return *parts_.table; }
  [[nodiscard]] mem::SegmentSet& segments() noexcept { return *parts_.segments; }
  // Who updates elements (mem/gate.hpp): a domain, by its number, or the engine.
  static constexpr uint32_t kEngineUpdater = 0xffff;
  [[nodiscard]] mem::Updater updater(uint32_t domain) noexcept {
    const mem::NicId id = table().nic_id();
    return mem::updater_of(id.first, id.second, domain);
  }
  [[nodiscard]] mem::Devices& devices() noexcept { return *parts_.devices; }
  [[nodiscard]] mem::RegistrationCache* cache() noexcept { return parts_.cache; }
  [[nodiscard]] Trace* trace() noexcept { return parts_.trace; }
  [[nodiscard]] Clock& clock() noexcept { return *parts_.clock; }
  // No other group of this NIC has the same address.
  [[nodiscard]] uint64_t new_group_address() noexcept {
    return group_addresses_.fetch_add(1, std::memory_order_relaxed);
  }
  [[nodiscard]] Random& random() noexcept { return *parts_.random; }
  [[nodiscard]] sync::World& world() noexcept;
  [[nodiscard]] link::Waiter& waiter() noexcept { return *parts_.waiter; }
  [[nodiscard]] const std::vector<link::Link*>& links() const noexcept { return parts_.links; }
  [[nodiscard]] const Limits& limits() const noexcept { return limits_; }
  [[nodiscard]] NicStatistics statistics();
  // The state of domains, endpoints, queues, counters and peers, as JSON: snapshot.cpp. Throws std::bad_alloc.
  [[nodiscard]] std::string snapshot();
  // Number of connections that have ended: at a change a poller checks its peers.
  [[nodiscard]] uint64_t downs() const noexcept { return downs_.load(std::memory_order_acquire); }

  // The links' knowledge of an address: the address on this host, the text form, why connecting failed.
  [[nodiscard]] std::optional<wire::EpAddress> local_name(const wire::EpAddress& address) const;
  [[nodiscard]] std::string text_of(const wire::EpAddress& address, const AddressText& as = {}) const;
  [[nodiscard]] std::string explain(const wire::EpAddress& address) const;

#if !defined(NDEBUG)
  void check();  // check.cpp. The caller holds no lock of the NIC
#endif
  // Around fork(), so that the child finds consistent data.
  void before_fork();
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;

  // PlaceHolders: reads the holds in the tables of this process and its peers.
  void let_go(const mem::HeldPlace& place) override;
  void held_places(std::vector<mem::HeldPlace>& out) override;
  uint64_t holds_stamp() override;

  // FrameSink
  void on_frame(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                std::span<const std::byte> payload) override;
  void on_brief(link::Peer& peer, const wire::BriefView& brief) override;
  void on_resolved(const std::shared_ptr<void>& token, Status status, const std::shared_ptr<link::Peer>& peer,
                   uint32_t ep_index, uint32_t ep_generation) override;
  void on_peer_down(const std::shared_ptr<link::Peer>& peer) override;
  void on_peer_gone(const std::shared_ptr<link::Peer>& peer) override;

  // ---- for the other classes of the room ---------------------------------------------------------------------------
  // Wakes the engine: work waits for progress(), and no peer will ring for it.
  void need_engine() noexcept;
  // payload: at most Notices::kPayloadMax bytes.
  void send_notice(const std::shared_ptr<link::Peer>& peer, const wire::Frame& notice,
                   std::span<const std::byte> payload = {}) noexcept;
  // Tries the links from number `first` on; false: no link reaches the address.
  bool resolve(const std::shared_ptr<Route>& route, uint32_t first = 0);
  std::shared_ptr<link::Peer> peer_of(uint64_t number) noexcept;  // null: lost
  void wake_pulls() noexcept;
  void end_frames() noexcept { const Guard frames(progress_mutex_); }  // waits for the frame under way
  // Does something while no frame is under way, as the links do that bring frames.
  template <typename Do>
  void between_frames(Do&& what) {
    const Guard frames(progress_mutex_);
    what();
  }
  // Counts a peer's entry beyond an endpoint's queue; false: the peer has sent too many entries since it was told
  // NoRoom.
  static bool count_late(link::Peer& peer, uint32_t ep_index, uint64_t shut_number) noexcept;
  // Waits until all accesses that began earlier have ended. Returns an empty text, or names the peer that did not end.
  std::string quiesce(uint32_t slot);
  // Call it without any lock of the NIC.
  void close_mappings_of(const Endpoint& ep) noexcept;
  // Answers a request of a peer. Requires the progress lock.
  void answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& request, Status status,
              std::span<const std::byte> payload, uint8_t room = 0) noexcept;
  // Held while a frame accesses a region; closing a region takes it.
  [[nodiscard]] RankedSpin<lock_rank::kServe>& serve_lock() noexcept { return serve_lock_; }
  // The enabled endpoints, by number. publish() and withdraw() require objects_lock().
  [[nodiscard]] RankedMutex<lock_rank::kObjects>& objects_lock() noexcept { return objects_mutex_; }
  void publish(const std::shared_ptr<Endpoint>& ep);
  void withdraw(uint32_t index) noexcept;
  // Operations that progress() must submit, and the kept ones among them; late writes that progress() must land.
  void add_waiting() noexcept { waiting_ops_.fetch_add(1, std::memory_order_seq_cst); }
  void drop_waiting() noexcept { waiting_ops_.fetch_sub(1, std::memory_order_relaxed); }
  void add_kept() noexcept { kept_ops_.fetch_add(1, std::memory_order_relaxed), add_waiting(); }
  void drop_kept() noexcept { kept_ops_.fetch_sub(1, std::memory_order_relaxed), drop_waiting(); }
  void add_late_write() noexcept { late_writes_.fetch_add(1, std::memory_order_relaxed), add_waiting(); }
  void drop_late_write() noexcept { late_writes_.fetch_sub(1, std::memory_order_relaxed), drop_waiting(); }
  // Deferred work that progress() must start.
  void add_works(uint64_t n) noexcept {
    works_.fetch_add(n, std::memory_order_seq_cst);
    waiting_ops_.fetch_add(n, std::memory_order_seq_cst);
  }
  void drop_works(uint64_t n) noexcept {
    works_.fetch_sub(n, std::memory_order_seq_cst);
    waiting_ops_.fetch_sub(n, std::memory_order_seq_cst);
  }
  [[nodiscard]] uint32_t late_writes() const noexcept { return late_writes_.load(std::memory_order_relaxed); }

 private:
  friend class Domain;
  friend class MemoryRegion;
  void engine_loop();
  size_t progress_locked(bool events) noexcept;
  size_t pump_all();
  size_t run_triggers() noexcept;  // of all domains; requires the progress lock
  void release_kept_now();
  // Lands late writes of this process. The caller holds no lock of the NIC.
  void land_late() noexcept;
  bool serve_write(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                   std::span<const std::byte> payload);
  void serve(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload);
  void take_frame(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                  std::span<const std::byte> payload);
  // Out of memory the answer is no_memory: a peer's request neither ends the process nor throws out of this room.
  void serve_safely(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                    std::span<const std::byte> payload) noexcept;
  Status room_of(const wire::Frame& frame, uint8_t* room) const;
  void on_answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                 std::span<const std::byte> payload) noexcept;
  Status on_cm(const wire::Frame& frame, std::span<const std::byte> payload);
  // Messages: receive.cpp, and message.cpp for the sender's side.
  void on_message(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                  std::span<const std::byte> payload);
  void on_reply(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame) noexcept;
  void on_done(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame) noexcept;
  void on_leave(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame) noexcept;
  void serve_pull(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame);
  // These require the progress lock, under which the result stays valid; null: closed.
  [[nodiscard]] Domain* domain_of(uint64_t op_id) const noexcept {
    const uint32_t index = OpTable::domain_of(op_id);
    return index < domains_.size() ? domains_[index].load(std::memory_order_acquire) : nullptr;
  }
  [[nodiscard]] Endpoint* live_ep(const wire::Frame& frame) const noexcept;
  RxPort* port_of(uint32_t ep_index, uint32_t ep_generation) noexcept;
  void on_brief_as_frame(link::Peer& peer, const wire::BriefView& brief);
  void know(const std::shared_ptr<link::Peer>& peer);
  std::atomic<bool> turns_{false};  // a region of this NIC takes turns
  void forget_messages(const link::Peer& peer) noexcept;
  void on_reduce(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                 std::span<const std::byte> payload) noexcept;
  size_t send_notices() noexcept;
  size_t run_pulls() noexcept;
  uint8_t local_event(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, const mem::MrView& view,
                      bool read, uint64_t bytes) noexcept;
  // The result of the check frame of this frame's operation, if there was one; deleted at the last frame.
  Status announced(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, uint64_t* total);
  void count_frame() noexcept { ++frames_served_; }  // requires the progress lock
  // Frames for a peer without room: deferred.cpp.
  void defer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload,
             bool serve_again) noexcept;
  bool defer_leave(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame) noexcept;
  size_t retry_deferred() noexcept;
  void forget_deferred(link::Peer& peer) noexcept;
  [[nodiscard]] static bool must_follow(const link::Peer& peer) noexcept;
  void hang_up(const std::shared_ptr<link::Peer>& peer, Status why) noexcept;
  [[nodiscard]] bool must_look_again() const noexcept;
  size_t look_at_pages() noexcept;
  [[nodiscard]] bool is_cut_off(const wire::Frame& frame) noexcept;
  [[nodiscard]] bool is_cut_off(uint32_t ep_index) noexcept;
  // Counts an access that frames of an initiator asked for.
  void count_served(const wire::Frame& frame, bool counts, uint64_t bytes) noexcept;
  // Gives the domain its number, activity word and operation numbers. Throws ENOSPC.
  void add_domain(Domain* domain);
  void remove_domain(Domain* domain) noexcept;
  // Whether quiesce() would have nothing to wait for. Waits for nothing itself.
  bool quiet(uint32_t slot) noexcept;
  [[nodiscard]] std::vector<std::shared_ptr<MemoryRegion>> mappings() const;
  void drop_mappings_of(const Domain* domain) noexcept;

  Parts parts_;
  Limits limits_;
  alignas(kCacheLine) std::atomic<uint64_t> app_polls_{0};
  std::atomic<uint64_t> waiting_ops_{0};                // operations that progress() must submit, and works_
  std::atomic<uint64_t> works_{0};                      // deferred work that progress() must start
  std::atomic<uint32_t> kept_ops_{0}, late_writes_{0};  // reorder.hpp
  std::atomic<size_t> watched_count_{0};                // size of watched_: progress() reads their pages
  std::atomic<uint64_t> downs_{0};
  alignas(kCacheLine) RankedSpin<lock_rank::kProgress> progress_mutex_;
  RankedSpin<lock_rank::kServe> serve_lock_;  // held while a frame accesses a region; closing a region takes it
  std::unique_ptr<Parking> parking_;
  uint32_t busy_rounds_ GUARDED_BY(progress_mutex_) = 0;
  std::vector<std::shared_ptr<link::Peer>> owed_ GUARDED_BY(progress_mutex_);  // peers with deferred frames
  std::atomic<size_t> deferred_count_{0};  // deferred frames of all peers; changed under the progress lock
  std::atomic<bool> engine_rests_{false};  // the engine sleeps until it is woken
  // A peer's operation of several ranges: the result of its check frame, kept until its last frame.
  struct Announced {
    uint64_t op_id;
    uint64_t total;  // bytes of all ranges
    Status status;
  };
  static constexpr size_t kAnnouncedMax = 256;  // per peer; then the oldest is dropped, which harms only that peer
  std::unordered_map<link::Peer*, std::deque<Announced>> announced_ GUARDED_BY(progress_mutex_);
  mutable RankedMutex<lock_rank::kObjects> objects_mutex_;  // also for changes of domains_, live_eps_ and ports_
  std::vector<std::shared_ptr<Endpoint>> eps_ GUARDED_BY(objects_mutex_);
  // By number: the open domains, the enabled endpoints, and the ports of those that receive messages. The handling of
  // frames reads them under the progress lock alone. close() stores null and then takes the progress lock once, so what
  // a frame's handler has found lives until the handler is done. Others read them under objects_mutex_.
  std::vector<std::atomic<Domain*>> domains_;
  std::vector<std::atomic<Endpoint*>> live_eps_;
  std::vector<std::atomic<RxPort*>> ports_;
  Notices notices_;
  std::atomic<bool> pulls_wait_{false};
  RankedSpin<lock_rank::kKnown> known_lock_;
  std::unordered_map<uint64_t, std::weak_ptr<link::Peer>> known_
      GUARDED_BY(known_lock_);  // peers that have sent messages, by number
  std::unordered_map<uint32_t, std::weak_ptr<MemoryRegion>> counted_regions_ GUARDED_BY(objects_mutex_);
  mutable RankedMutex<lock_rank::kMappings> mappings_mutex_;
  std::vector<std::shared_ptr<MemoryRegion>> mappings_
      GUARDED_BY(mappings_mutex_);  // open ones, and closed ones until the next is made
  std::vector<mem::HeldPlace> abandoned_
      GUARDED_BY(mappings_mutex_);            // places of mappings that a peer still held when their domain ended
  std::atomic<uint64_t> group_addresses_{1};  // the next one
  uint64_t next_op_ GUARDED_BY(objects_mutex_) =
      1;  // first number of a new domain, so that late answers for a closed domain match no operation
  TelemetryPages telemetry_;
  RankedMutex<lock_rank::kWatched> watched_mutex_;
  std::vector<std::shared_ptr<Counter>> watched_ GUARDED_BY(watched_mutex_);  // counters with a page for client stores
  std::thread engine_;
  std::atomic<bool> has_engine_{false};  // replaces engine_.joinable(): the engine reads it while engine_ is assigned
  std::atomic<bool> stopping_{false};
  std::atomic<bool> engine_armed_{false};
  std::atomic<bool> events_due_{false};  // an engine without a turn: the next round has events
  std::atomic<uint32_t> sleepers_{0};    // threads that have armed the doorbell and sleep until it rings
  Tally frames_served_;
  std::atomic<uint64_t> engine_wakes_{0}, helped_ops_{0};
};

}  // namespace weft::nic
