// cpp/nic/domain.hpp: a domain: endpoints, address vectors, queues and regions that share one lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/lock.hpp"
#include "base/status.hpp"
#include "base/tally.hpp"
#include "mem/table.hpp"
#include "nic/config.hpp"
#include "nic/endpoint.hpp"
#include "nic/op.hpp"
#include "nic/region.hpp"
#include "nic/route.hpp"
#include "nic/trigger.hpp"

namespace weft::nic {

class Nic;
class AddressVector;
class Group;
class Groups;

// Kinds of an endpoint's reports to its application besides completions. match_mode: RxMode::Statistics has changed.
// no_id: a send was refused because too many messages wait to be pulled. stopped: a receiver has refused a message.
enum class News : uint8_t { match_mode, no_id, stopped };

class Domain {
 public:
  Domain(Nic* nic, const DomainConfig& config);
  ~Domain();
  void close() noexcept;

  [[gnu::always_inline]] void lock() noexcept {
    held_locks::check(lock_rank::kDomain);
    uint64_t word = activity_->word.load(std::memory_order_relaxed);
    // SYNC POINT: this full barrier publishes our activity before we read any table entry (mem/table.hpp).
    if ((word & 1) == 0 && activity_->word.compare_exchange_strong(word, word + 1, std::memory_order_seq_cst))
        [[likely]] {
      fence_after_lock();
      held_locks::add(lock_rank::kDomain, this);
      return;
    }
    wait_for_lock();
    fence_after_lock();
    held_locks::add(lock_rank::kDomain, this);
  }
  [[gnu::always_inline]] void unlock() noexcept {
    held_locks::remove(this);
    // SYNC POINT: every access made under the lock ends before the word becomes even.
    activity_->word.store(activity_->word.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  // In builds with assertions: ends the process unless the calling thread holds the lock.
  void assert_held() const noexcept { held_locks::require(lock_rank::kDomain, this); }

  std::shared_ptr<Endpoint> make_endpoint(const EndpointConfig& config);
  // Registers a region; throws ENOKEY, ENOSPC. `unowned`: bare addresses, whose pages may be missing.
  // kind: mem::kMrSingleUse, mem::kMrPersistent, mem::kMrByOwner.
  std::shared_ptr<MemoryRegion> register_region(std::span<const iovec> buffers, uint64_t access, uint64_t requested_key,
                                                bool unowned, bool enabled, uint32_t kind = 0,
                                                const RegionExtra& extra = {});

  // Lets peers access the whole pages around [address, address + length) through an endpoint, by a key that is not in
  // use; offset 0 is `address`. mapping.cpp describes how a mapping ends. Throws ENOKEY, ENOSPC.
  std::shared_ptr<MemoryRegion> map_memory(const Endpoint& ep, uint64_t address, uint64_t length, uint64_t access,
                                           uint64_t key);

  void bind_region_counter(const std::shared_ptr<MemoryRegion>& region, std::shared_ptr<Counter> counter,
                           uint64_t flags);

  // Makes a handle for a peer's key. mapped_key() requires the lock; kKeyNotAvail: unknown handle.
  uint64_t map_raw(uint64_t key);
  bool unmap_raw(uint64_t handle);
  // The key in tables of a key that applications use.
  [[nodiscard]] uint64_t standard_key(uint64_t key) const noexcept {
    return key < config_.standard_below ? key | kStandardKey : key;
  }
  [[nodiscard]] uint64_t mapped_key(uint64_t handle) const noexcept {
    assert_held();
    if (config_.standard_below != 0) return standard_key(handle);
    const auto it = raw_keys_.find(handle);
    return it == raw_keys_.end() ? wire::kKeyNotAvail : it->second;
  }

  // Attaches objects that an operation needs until it is done; take_released() then returns them. False: already done.
  bool attach(uint64_t op_id, std::span<const uint64_t> cookies);
  // HOT. True: take_released() or take_news() has something to give.
  [[nodiscard]] bool has_released() const noexcept {
    return ops_released_.load(std::memory_order_relaxed) || receives_released_.load(std::memory_order_relaxed) ||
           has_news();
  }
  [[nodiscard]] bool has_news() const noexcept { return news_waits_.load(std::memory_order_relaxed); }
  // The objects and the context (0: none) of a receive. Any thread, without the lock.
  void release_received(std::span<const uint64_t> cookies, uint64_t context) noexcept;
  // HOT. *into: its content is replaced, and its memory used again.
  void take_released(std::vector<uint64_t>* into);
  std::vector<uint64_t> take_released() {
    std::vector<uint64_t> released;
    take_released(&released);
    return released;
  }
  // A report to the application besides completions, which take_news() returns. Any thread, without the lock.
  void tell(uint32_t pid, News what) noexcept;
  std::vector<std::pair<uint32_t, News>> take_news();

  // HOT. What the provider's software does on hardware, when the application makes progress: counts of receives,
  // control messages, reads of the rest of messages. The application's calls make it. Any thread, without a lock of the
  // NIC.
  void software_progress() noexcept {
    if (software_waits_.load(std::memory_order_relaxed)) [[unlikely]]
      run_software();
  }
  // Software has something to do. Any thread, under any lock.
  void note_software() noexcept { software_waits_.store(true, std::memory_order_seq_cst); }
  [[nodiscard]] bool software_waits() const noexcept { return software_waits_.load(std::memory_order_seq_cst); }

  // Requires the lock. This domain's counts for a NIC; they live as long as the domain.
  TelemetryWriter& telemetry(uint32_t nic);
  // Requires the lock. The slot of this domain's atomics on a segment of a peer; null: there is no free one, or no such
  // segment.
  [[nodiscard]] mem::Gate::Slot* turns_at(const link::Peer& peer, uint32_t segment) noexcept;
  // Requires the lock. Submits the flow's waiting operations as far as possible.
  size_t pump(Flow& flow) noexcept;

  [[nodiscard]] Nic* nic() const noexcept { return nic_; }
  [[nodiscard]] OpTable& operations() noexcept { return ops_; }  // requires the lock
  [[nodiscard]] TriggerUnit& triggers() const noexcept { return *triggers_; }
  // Starts deferred work that counters have made ready. Call it without the lock, after a counter was changed.
  [[gnu::always_inline]] void run_triggers() noexcept {
    if (triggers_->has_work()) [[unlikely]]
      triggers_->run();
  }
  [[nodiscard]] const DomainConfig& config() const noexcept { return config_; }
  [[nodiscard]] uint32_t index() const noexcept { return index_; }
  struct Statistics {
    Tally direct, cma, framed, failed, bytes;
    // Any thread, without the lock.
    [[nodiscard]] uint64_t posted() const noexcept { return direct.value() + cma.value() + framed.value(); }
  } statistics;
#if !defined(NDEBUG)
  void check() const;  // check.cpp; requires the lock
#endif

  // ---- for the other classes of the room ---------------------------------------------------------------------------
  // These require the lock.
  size_t release_due(uint64_t now_ns);  // of reordering_
  void pump_route(const Route& route) noexcept;
  void wait(Op* op) noexcept;           // appends an operation to its flow's waiting operations
  void wait_in_order(Op* op) noexcept;  // the same, in front of operations that were posted later
  void stop_waiting(Op* op) noexcept;   // removes an operation from its flow's list, if it is in the list
  void take_off(Flow& flow) noexcept;   // removes a flow without waiting operations from waiting_
  // The route to the address: shared by the domain; own_route(): for one endpoint alone.
  std::shared_ptr<Route> route_to(const wire::EpAddress& address);
  std::shared_ptr<Route> own_route(const wire::EpAddress& address);
  void forget_unused_routes();
  template <typename Visit>
  void each_route(Visit&& visit) {
    assert_held();
    for (const auto& [address, known] : routes_) {
      if (const auto route = known.lock()) visit(*route);
    }
    for (const auto& known : own_routes_) {
      if (const auto route = known.lock()) visit(*route);
    }
  }
  // Who updates elements (mem/gate.hpp).
  [[nodiscard]] mem::Updater updater() const noexcept;
  // The flows in which operations wait, from this one on; null: none.
  [[nodiscard]] Flow* first_waiting() const noexcept { return waiting_; }
  // Called by Nic::add_domain(): the domain's number, its activity word, and the number of its first operation.
  void place(uint32_t index, mem::ActivityWord* activity, uint64_t first_op) {
    index_ = index;
    activity_ = activity;
    ops_ = OpTable(index, first_op);
  }
  // Of enabled endpoints whose operations overtake each other; the lists of groups of endpoints that have joined one.
  void add_reordering(Reorder* one) { reordering_.push_back(one); }
  void remove_reordering(const Reorder* one) noexcept { std::erase(reordering_, one); }
  [[nodiscard]] std::span<Reorder* const> reordering() const noexcept { return reordering_; }
  void add_groups(Groups* groups) { groups_.push_back(groups); }
  void remove_groups(const Groups* groups) noexcept { std::erase(groups_, groups); }
  [[nodiscard]] std::span<Groups* const> groups() const noexcept { return groups_; }
  [[nodiscard]] const std::shared_ptr<TriggerUnit>& shared_triggers() const noexcept { return triggers_; }
  // Endpoints whose software makes progress, and counters that software changes.
  void add_software(const std::shared_ptr<Endpoint>& ep);
  void remove_software(const Endpoint* ep) noexcept;
  void add_late_counter(const std::shared_ptr<Counter>& counter);
  void remove_late_counter(const std::shared_ptr<Counter>& counter) noexcept;
  void tell_groups(const Route& route, Status status) noexcept;
  void release_cookies(Op* op) noexcept;
  void release_context(uint64_t context) noexcept;

 private:
  [[gnu::noinline, gnu::cold]] void wait_for_lock() noexcept;
  static void fence_after_lock() noexcept {
#if !defined(__x86_64__)  // elsewhere a locked instruction is not a full barrier for later loads
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
  [[gnu::noinline]] void run_software() noexcept;

  std::shared_ptr<TriggerUnit> triggers_;
  mem::ActivityWord* activity_ = nullptr;  // in the cache line of `statistics`, which every operation writes
  Nic* nic_;
  DomainConfig config_;
  uint32_t index_ = 0;
  OpTable ops_;
  std::vector<uint64_t> released_;
  RankedSpin<lock_rank::kDomainReceived> received_lock_;
  std::vector<uint64_t> received_ GUARDED_BY(received_lock_);
  std::vector<std::pair<uint32_t, News>> news_ GUARDED_BY(received_lock_);
  // Not empty: released_, received_, news_.
  std::atomic<bool> ops_released_{false}, receives_released_{false}, news_waits_{false};
  std::unordered_map<wire::EpAddress, std::weak_ptr<Route>, wire::EpAddressHash> routes_;
  std::vector<std::weak_ptr<Route>> own_routes_;
  size_t routes_kept_ = 64;  // at this count routes without users are removed
  Flow* waiting_ = nullptr;  // flows in which operations wait
  std::vector<Reorder*> reordering_;
  std::atomic<bool> software_waits_{false};
  RankedSpin<lock_rank::kDomainLate> late_lock_;
  struct WithSoftware {
    const Endpoint* at;
    std::weak_ptr<Endpoint> ep;
  };
  std::vector<WithSoftware> software_ GUARDED_BY(late_lock_);  // enabled endpoints whose software makes progress
  std::vector<std::shared_ptr<Counter>> late_counters_ GUARDED_BY(late_lock_);
  std::vector<Groups*> groups_;                      // of endpoints that have joined a group
  std::unordered_map<uint64_t, uint64_t> raw_keys_;  // handle -> key
  uint64_t next_handle_ = 0;
  std::vector<std::unique_ptr<TelemetryWriter>> telemetry_;  // one for each page in which this domain counts
};

struct DomainLock {
  [[gnu::always_inline]] explicit DomainLock(Domain* d) noexcept : domain(d) { domain->lock(); }
  [[gnu::always_inline]] ~DomainLock() { domain->unlock(); }
  DomainLock(const DomainLock&) = delete;
  DomainLock& operator=(const DomainLock&) = delete;
  Domain* domain;
};

// The calling thread has posted an operation, in whichever domain.
extern thread_local constinit bool t_posts [[gnu::tls_model("initial-exec")]];

// The lock of a call that posts: then also starts the deferred work that the call's completions have triggered.
struct PostLock {
  [[gnu::always_inline]] explicit PostLock(Domain* d) noexcept : domain(d) {
    t_posts = true;
    domain->lock();
  }
  [[gnu::always_inline]] ~PostLock() {
    domain->unlock();
    domain->run_triggers();
  }
  PostLock(const PostLock&) = delete;
  PostLock& operator=(const PostLock&) = delete;
  Domain* domain;
};

}  // namespace weft::nic
