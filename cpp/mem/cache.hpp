// cpp/mem/cache.hpp: the registration cache: facts about ranges of memory, kept until the memory changes.
//
//   RegistrationCache::Ref ref = cache.search(address, length, iface, device, resolve);
//   ref->persistent ...        // the result of resolve(), from this call or an earlier one
//
// A hit is an entry that contains the requested range. Entries may overlap and are never joined, because the resolver
// answers only for the requested range. An entry inside a newer one is dropped when no Ref holds it. A Ref keeps its
// mapping readable; after a monitor has reported a change, look-ups no longer find the entry, and stale() of its Refs
// is true. At a limit the least recently used entries that no Ref holds are evicted; if Refs hold all entries, a new
// mapping is returned without being cached.
//
// Thread safety: any thread. Locks: one spin lock. No resolver, monitor or caller's code runs under the lock, and no
// producer of changes takes it: a change made while the lock is held, even by the same thread, only goes to the change
// log. Every look-up empties the log first.
//
// Source: fi_mr(3) "Memory registration cache".
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/lock.hpp"
#include "mem/change_log.hpp"
#include "mem/device.hpp"
#include "mem/monitor.hpp"

namespace weft::mem {

constexpr uint32_t kIfaceMax = 16;  // fi_hmem_iface has six in fi_mr(3)
constexpr uint64_t kCacheCountDefault = 1024;
constexpr uint64_t kUnlimited = ~uint64_t{0};

// Facts about [address, address + length) of one interface and device. Plain data; the resolver fills it.
struct CachedMapping {
  uint64_t address = 0, length = 0;
  uint32_t iface = kHmemSystem;
  uint64_t device = 0;
  uint64_t buffer_id = 0;   // identity of the allocation or file; Monitor::valid() compares it
  bool host_access = true;  // the processor may load and store there
  bool persistent = false;  // a shared mapping of a file
  bool has_ipc = false;     // another process can open it by ipc
  std::array<std::byte, 64> ipc{};
  uint64_t user = 0;  // for the resolver's own use
};

struct CacheLimits {
  uint64_t count_max = kCacheCountDefault;  // FI_MR_CACHE_MAX_COUNT; 0: every look-up resolves
  uint64_t bytes_max = kUnlimited;          // FI_MR_CACHE_MAX_SIZE
};

struct CacheStatistics {
  uint64_t hits = 0, misses = 0;  // a miss: the resolver was called
  uint64_t evictions = 0;         // entries removed by a limit or by flush()
  uint64_t invalidations = 0;     // entries removed by a change of the memory
  uint64_t uncached = 0;          // mappings resolved but not cached
  uint64_t entries = 0, bytes = 0, held = 0;
};

class RegistrationCache {
  struct Node {
    std::atomic<uint32_t> references{0};  // one for the index and one for each Ref
    std::atomic<bool> stale{false};
    bool indexed = false;
    uint64_t begin = 0, end = 0;  // of the mapping
    // The tree (a treap): ordered by (begin, node), a heap by priority; `reach` is the largest end in the subtree.
    Node *left = nullptr, *right = nullptr;
    uint64_t reach = 0, priority = 0;
    Node *newer = nullptr, *older = nullptr;            // by use
    uint64_t subscribed_begin = 0, subscribed_end = 0;  // with the monitor
    std::shared_ptr<Monitor> monitor;
    CachedMapping mapping;
  };

 public:
  // A counted reference. Making or dropping one takes no lock and allocates nothing.
  class Ref {
   public:
    Ref() = default;
    Ref(Ref&& o) noexcept : cache_(o.cache_), node_(std::exchange(o.node_, nullptr)), cached_(o.cached_) {}
    Ref& operator=(Ref&& o) noexcept {
      if (this != &o) {
        reset();
        cache_ = o.cache_;
        node_ = std::exchange(o.node_, nullptr);
        cached_ = o.cached_;
      }
      return *this;
    }
    Ref(const Ref&) = delete;
    Ref& operator=(const Ref&) = delete;
    ~Ref() { reset(); }

    explicit operator bool() const noexcept { return node_ != nullptr; }
    const CachedMapping& operator*() const noexcept { return node_->mapping; }
    const CachedMapping* operator->() const noexcept { return &node_->mapping; }
    // True: the memory has changed since the look-up. Only meaningful if the mapping is in the cache: cached().
    [[nodiscard]] bool stale() const noexcept { return node_->stale.load(std::memory_order_acquire); }
    [[nodiscard]] bool cached() const noexcept { return cached_; }
    void reset() noexcept {
      if (node_ != nullptr) cache_->release(std::exchange(node_, nullptr));
    }
    void abandon() noexcept { node_ = nullptr; }  // for a forked child, where the cache belongs to the parent

   private:
    friend class RegistrationCache;
    Ref(RegistrationCache* cache, Node* node, bool cached) noexcept : cache_(cache), node_(node), cached_(cached) {}
    RegistrationCache* cache_ = nullptr;
    Node* node_ = nullptr;
    bool cached_ = false;
  };

  // system: the monitor of system memory; null: system memory is not cached.
  explicit RegistrationCache(const CacheLimits& limits, std::shared_ptr<Monitor> system = nullptr);
  ~RegistrationCache();
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  // The mapping that contains [address, address + length). On a miss resolve(address, length) supplies it and must
  // return a mapping that contains the range (EINVAL otherwise). Exceptions of resolve() pass through.
  // HOT on a hit: no system call, no allocation, one short lock. Benchmark: "cache".
  template <typename Resolve>
  Ref search(uint64_t address, uint64_t length, uint32_t iface, uint64_t device, Resolve&& resolve) {
    if (Ref hit = find(address, length, iface, device)) [[likely]]
      return hit;
    Miss miss(*this, address, length, iface, device);
    return miss.finish(resolve(address, length));
  }
  // Like search(), without resolving: an empty Ref on a miss.
  Ref find(uint64_t address, uint64_t length, uint32_t iface, uint64_t device);

  // Reports changed memory: removes the overlapping entries of all devices of the interface. Returns their number.
  size_t notify(uint32_t iface, uint64_t address, uint64_t length);
  // Drops entries that no Ref holds; with lru_only false all entries, held or not.
  size_t flush(bool lru_only);
  // Sets the monitor of an interface's memory; null: the cache stores nothing of this interface. Drops the entries of
  // the old monitor. An imported monitor, which the application supplies, has precedence until it is removed by null.
  void set_monitor(uint32_t iface, std::shared_ptr<Monitor> monitor);
  void import_monitor(uint32_t iface, std::shared_ptr<Monitor> monitor);
  // Allows or forbids caching of an interface's memory (FI_MR_CUDA_CACHE_MONITOR_ENABLED ...).
  void set_enabled(uint32_t iface, bool on);

  [[nodiscard]] std::shared_ptr<Monitor> monitor(uint32_t iface) const;
  [[nodiscard]] const CacheLimits& limits() const noexcept { return limits_; }
  [[nodiscard]] CacheStatistics statistics();
  // Why the latest uncached mapping was not cached; empty if every mapping was.
  [[nodiscard]] std::string reason() const;

  void before_fork() { lock_.lock_at_fork(); }
  void after_fork_in_parent() noexcept { lock_.unlock_after_fork(); }
  void after_fork_in_child() noexcept;

 private:
  struct Space {  // the entries of one interface and device, whose addresses are a space of their own
    uint32_t iface = kHmemSystem;
    uint64_t device = 0;
    Node* root = nullptr;
  };
  struct Garbage {  // work to do after the lock is released
    struct Range {
      std::shared_ptr<Monitor> monitor;
      uint64_t begin, end;
    };
    std::vector<Range> ranges;
  };
  // A look-up whose resolver is running.
  class Miss {
   public:
    Miss(RegistrationCache& cache, uint64_t address, uint64_t length, uint32_t iface, uint64_t device);
    ~Miss();
    Miss(const Miss&) = delete;
    Miss& operator=(const Miss&) = delete;
    Ref finish(const CachedMapping& found);

   private:
    friend class RegistrationCache;
    RegistrationCache& cache_;
    uint64_t address_, length_;
    uint32_t iface_;
    uint64_t device_;
    uint64_t begin_ = 0, end_ = 0;      // the watched range
    std::shared_ptr<Monitor> monitor_;  // the monitor that watches it
    bool listed_ = false, dirty_ = false, keep_ = false;
    Miss *next_ = nullptr, **link_ = nullptr;
  };

  void release(Node* node) noexcept;
  // These require the lock:
  [[nodiscard]] Space* space_of(uint32_t iface, uint64_t device) noexcept;
  [[nodiscard]] static Node* containing(Node* root, uint64_t begin, uint64_t end) noexcept;
  static Node* insert(Node* root, Node* node) noexcept;
  static Node* erase(Node* root, Node* node) noexcept;
  static void update(Node* node) noexcept;
  static void overlapping(Node* root, uint64_t begin, uint64_t end, std::vector<Node*>& out);
  void to_front(Node* node) noexcept;
  void unlink(Node* node) noexcept;
  Node* take_node();
  void remove(Space& space, Node* node, Garbage& garbage);
  size_t invalidate(uint32_t iface, uint64_t begin, uint64_t end, Garbage& garbage);
  void look_at_changes(Garbage& garbage);
  bool make_room(uint64_t bytes, Garbage& garbage);
  // These run without the lock:
  void clear_away(Garbage& garbage) noexcept;
  void note(std::string why);
  using Monitors = std::array<std::shared_ptr<Monitor>, kIfaceMax>;
  void replace(Monitors RegistrationCache::* source, uint32_t iface, std::shared_ptr<Monitor> monitor);
  [[nodiscard]] static size_t recent_at(uint64_t address, uint64_t device) noexcept {
    return (address >> 12 ^ address >> 18 ^ device) % kRecent;
  }

  static constexpr size_t kRecent = 64;
  static constexpr size_t kNodesAtOnce = 64;

  CacheLimits limits_;
  alignas(kCacheLine) mutable RankedSpin<lock_rank::kCache> lock_;
  std::array<Node*, kRecent> recent_
      GUARDED_BY(lock_){};  // the nodes of the last hits; nodes are never freed, so reading one is safe
  std::vector<std::unique_ptr<Space>> spaces_ GUARDED_BY(lock_);
  Node *newest_ GUARDED_BY(lock_) = nullptr, *oldest_ GUARDED_BY(lock_) = nullptr;
  Node* free_ GUARDED_BY(lock_) = nullptr;  // list of unused nodes, linked by `left`
  std::vector<std::unique_ptr<Node[]>> nodes_ GUARDED_BY(lock_);
  Miss* misses_under_way_ GUARDED_BY(lock_) = nullptr;
  Monitors monitors_ GUARDED_BY(lock_);                          // in force
  Monitors own_ GUARDED_BY(lock_), imported_ GUARDED_BY(lock_);  // imported_[i], if set, has precedence over own_[i]
  std::array<bool, kIfaceMax> enabled_ GUARDED_BY(lock_);
  std::array<bool, kIfaceMax> checks_ GUARDED_BY(lock_){};  // monitors_[i]->checks_hits()
  CacheStatistics counts_ GUARDED_BY(lock_);
  std::string reason_ GUARDED_BY(lock_);
  ChangeLog log_;
};

}  // namespace weft::mem
