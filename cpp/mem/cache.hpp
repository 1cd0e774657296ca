// cpp/mem/cache.hpp: the registration cache: what is known of a range of memory, for as long as it stays true.
//
//   RegistrationCache::Ref ref = cache.search(address, length, iface, device, resolve);
//   ref->persistent ...        // what resolve() found, now or earlier
//
// A hit is an entry that contains what is asked for. Entries may overlap: a mapping is known for the range that was
// asked for and for nothing around it, so two are never joined; one that lies within a newer one is dropped once no
// Ref holds it. A Ref keeps its mapping readable; after a monitor has reported a change the entry is not found again
// and stale() of its Refs is true. The least recently used entries go when a limit is reached, never held ones:
// when all are held, what is found then is handed out without being kept.
//
// Thread safety: any thread. Locks: one spin lock, under which no resolver, no monitor and nothing of the caller runs,
// and which no producer of changes ever takes: a change made while the lock is held, by this very thread too, only goes
// to the change log. Every look-up empties the log first.
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

#include "base/spinlock.hpp"
#include "mem/change_log.hpp"
#include "mem/device.hpp"
#include "mem/monitor.hpp"

namespace weft::mem {

constexpr uint32_t kIfaceMax = 16;  // fi_hmem_iface has six in fi_mr(3)
constexpr uint64_t kCacheCountDefault = 1024;
constexpr uint64_t kUnlimited = ~uint64_t{0};

// What is true of [address, address + length) of one interface and device. Plain data; the resolver fills it.
struct CachedMapping {
  uint64_t address = 0, length = 0;
  uint32_t iface = kHmemSystem;
  uint64_t device = 0;
  uint64_t buffer_id = 0;   // identity of the allocation or file behind it; what Monitor::valid() compares
  bool host_access = true;  // the processor may load and store there
  bool persistent = false;  // a shared mapping of a file
  bool has_ipc = false;     // another process can open it by ipc
  uint64_t ipc_base = 0, ipc_length = 0;
  std::array<std::byte, 64> ipc{};
  uint64_t user = 0;  // the resolver's own
};

struct CacheLimits {
  uint64_t count_max = kCacheCountDefault;  // FI_MR_CACHE_MAX_COUNT; 0: every look-up resolves
  uint64_t bytes_max = kUnlimited;          // FI_MR_CACHE_MAX_SIZE
};

struct CacheStatistics {
  uint64_t hits = 0, misses = 0;  // a miss was resolved
  uint64_t evictions = 0;         // gave way to a limit, or to flush()
  uint64_t invalidations = 0;     // a change of the memory removed them
  uint64_t uncached = 0;          // resolved and not kept
  uint64_t entries = 0, bytes = 0, held = 0;
};

class RegistrationCache {
  struct Node {
    std::atomic<uint32_t> references{0};  // the index has one, each Ref has one
    std::atomic<bool> stale{false};
    bool indexed = false;
    uint64_t begin = 0, end = 0;  // of the mapping
    // The tree: by (begin, node), a heap by priority, `reach` is the largest end below.
    Node *left = nullptr, *right = nullptr;
    uint64_t reach = 0, priority = 0;
    Node *newer = nullptr, *older = nullptr;            // by use
    uint64_t subscribed_begin = 0, subscribed_end = 0;  // with the monitor
    std::shared_ptr<Monitor> monitor;
    CachedMapping mapping;
  };

 public:
  // A counted reference. Cheap to make and to drop: no lock, no allocation.
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
    // The memory changed since. Only told for what the cache kept: cached().
    [[nodiscard]] bool stale() const noexcept { return node_->stale.load(std::memory_order_acquire); }
    [[nodiscard]] bool cached() const noexcept { return cached_; }
    void reset() noexcept {
      if (node_ != nullptr) cache_->release(std::exchange(node_, nullptr));
    }
    void abandon() noexcept { node_ = nullptr; }  // in a forked child: the cache is the parent's

   private:
    friend class RegistrationCache;
    Ref(RegistrationCache* cache, Node* node, bool cached) noexcept : cache_(cache), node_(node), cached_(cached) {}
    RegistrationCache* cache_ = nullptr;
    Node* node_ = nullptr;
    bool cached_ = false;
  };

  // system: the monitor of system memory; null: there is none, and nothing about system memory is cached.
  explicit RegistrationCache(const CacheLimits& limits, std::shared_ptr<Monitor> system = nullptr);
  ~RegistrationCache();
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  // The mapping that contains [address, address + length); resolve(address, length) says it where it is not known, and
  // has to answer with one that contains the range (EINVAL otherwise). What it throws comes through.
  // HOT on a hit: no system call, no allocation, one short lock. Benchmark: "cache".
  template <typename Resolve>
  Ref search(uint64_t address, uint64_t length, uint32_t iface, uint64_t device, Resolve&& resolve) {
    if (Ref hit = find(address, length, iface, device)) [[likely]]
      return hit;
    Miss miss(*this, address, length, iface, device);
    return miss.finish(resolve(address, length));
  }
  // Only what is known already.
  Ref find(uint64_t address, uint64_t length, uint32_t iface, uint64_t device);

  // The memory changed: entries of any device of the interface that overlap are gone at the return. How many they were.
  size_t notify(uint32_t iface, uint64_t address, uint64_t length);
  // Drops entries that no Ref holds; with lru_only false all entries, held or not.
  size_t flush(bool lru_only);
  // The monitor of an interface's memory; null: there is none, and nothing about it is cached. Entries under the old
  // monitor are dropped. An imported monitor, an application's, takes precedence until it is removed with null.
  void set_monitor(uint32_t iface, std::shared_ptr<Monitor> monitor);
  void import_monitor(uint32_t iface, std::shared_ptr<Monitor> monitor);
  // Whether memory of an interface may be kept at all (FI_MR_CUDA_CACHE_MONITOR_ENABLED ...).
  void set_enabled(uint32_t iface, bool on);

  [[nodiscard]] std::shared_ptr<Monitor> monitor(uint32_t iface) const;
  [[nodiscard]] const CacheLimits& limits() const noexcept { return limits_; }
  [[nodiscard]] CacheStatistics statistics();
  // Why the last thing that was not kept was not; empty when that never happened.
  [[nodiscard]] std::string reason() const;

  void before_fork() { lock_.lock(); }
  void after_fork_in_parent() noexcept { lock_.unlock(); }
  void after_fork_in_child() noexcept;

 private:
  struct Space {  // of one interface and device: addresses of two devices never meet
    uint32_t iface = kHmemSystem;
    uint64_t device = 0;
    Node* root = nullptr;
  };
  struct Garbage {  // what is left to do once the lock is given up
    struct Range {
      std::shared_ptr<Monitor> monitor;
      uint64_t begin, end;
    };
    std::vector<Range> ranges;
  };
  // A look-up that is being resolved.
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
    uint64_t begin_ = 0, end_ = 0;      // what is watched
    std::shared_ptr<Monitor> monitor_;  // subscribed to
    bool listed_ = false, dirty_ = false, keep_ = false;
    Miss *next_ = nullptr, **link_ = nullptr;
  };

  void release(Node* node) noexcept;
  // With the lock:
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
  // Without:
  void clear_away(Garbage& garbage) noexcept;
  void note(std::string why);
  void choose_monitor(uint32_t iface, std::shared_ptr<Monitor> own, std::shared_ptr<Monitor> imported);
  [[nodiscard]] static size_t recent_at(uint64_t address, uint64_t device) noexcept {
    return (address >> 12 ^ address >> 18 ^ device) % kRecent;
  }

  static constexpr size_t kRecent = 64;
  static constexpr size_t kNodesAtOnce = 64;

  CacheLimits limits_;
  alignas(kCacheLine) mutable SpinLock lock_;
  std::array<Node*, kRecent> recent_{};  // where the last hits were; nodes are never given back, so a look is safe
  std::vector<std::unique_ptr<Space>> spaces_;
  Node *newest_ = nullptr, *oldest_ = nullptr;
  Node* free_ = nullptr;  // through `left`
  std::vector<std::unique_ptr<Node[]>> nodes_;
  Miss* misses_under_way_ = nullptr;
  std::array<std::shared_ptr<Monitor>, kIfaceMax> monitors_;        // in force
  std::array<std::shared_ptr<Monitor>, kIfaceMax> own_, imported_;  // what that is chosen from
  std::array<bool, kIfaceMax> enabled_;
  std::array<bool, kIfaceMax> checks_{};  // monitors_[i]->checks_hits()
  CacheStatistics counts_;
  std::string reason_;
  ChangeLog log_;
};

}  // namespace weft::mem
