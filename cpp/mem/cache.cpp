// cpp/mem/cache.cpp: see cache.hpp.
#include "mem/cache.hpp"

#include <algorithm>
#include <cassert>

#include "base/status.hpp"

namespace weft::mem {

namespace {

constexpr uint64_t kPage = 4096;

uint64_t mix(uint64_t x) noexcept {  // priorities of the tree: pseudo-random, the same in every run
  x ^= x >> 31;
  x *= 0x7fb5d329728ea185;
  x ^= x >> 27;
  x *= 0x81dadef4bc2dd44d;
  return x ^ x >> 33;
}

void check_iface(uint32_t iface) {
  if (iface >= kIfaceMax) {
    throw Error(fi_err::kEINVAL, "interface " + std::to_string(iface) + " is none of fi_hmem_iface: 0 (system) to " +
                                     std::to_string(kIfaceMax - 1));
  }
}

}  // namespace

// ---- look-up -----------------------------------------------------------------------------------------------------

RegistrationCache::Ref RegistrationCache::find(uint64_t address, uint64_t length, uint32_t iface, uint64_t device) {
  if (iface >= kIfaceMax || length == 0 || address + length < address) return {};
  const uint64_t end = address + length;
  Node* found = nullptr;
  std::shared_ptr<Monitor> judge;
  Garbage garbage;
  {
    const Guard guard(lock_);
    if (log_.pending()) [[unlikely]]
      look_at_changes(garbage);
    Node*& recent = recent_[recent_at(address, device)];
    if (recent != nullptr && recent->indexed && recent->begin <= address && end <= recent->end &&
        recent->mapping.iface == iface && recent->mapping.device == device) [[likely]] {
      found = recent;
    } else if (const Space* space = space_of(iface, device)) {
      found = containing(space->root, address, end);
      if (found != nullptr) recent = found;
    }
    if (found != nullptr) {
      // Relaxed is enough: under the lock the index's own reference keeps the node alive.
      found->references.fetch_add(1, std::memory_order_relaxed);
      if (found != newest_) to_front(found);
      if (checks_[iface]) [[unlikely]]
        judge = monitors_[iface];
      else
        ++counts_.hits;
    }
  }
  if (!garbage.ranges.empty()) [[unlikely]]
    clear_away(garbage);
  if (found == nullptr) return {};
  Ref ref(this, found, true);
  if (judge == nullptr) [[likely]]
    return ref;
  const bool valid = judge->valid(found->mapping, address, length);
  {
    const Guard guard(lock_);
    if (valid) {
      ++counts_.hits;
    } else if (found->indexed) {
      remove(*space_of(iface, device), found, garbage);
      ++counts_.invalidations;
    }
  }
  clear_away(garbage);
  return valid ? std::move(ref) : Ref();
}

RegistrationCache::Miss::Miss(RegistrationCache& cache, uint64_t address, uint64_t length, uint32_t iface,
                              uint64_t device)
    : cache_(cache), address_(address), length_(length), iface_(iface), device_(device) {
  check_iface(iface);
  if (length == 0 || address + length < address) {
    throw Error(fi_err::kEINVAL, "a range of " + std::to_string(length) + " bytes at " + std::to_string(address) +
                                     " is empty or passes the end of the address space");
  }
  begin_ = address;
  end_ = address + length;
  if (iface == kHmemSystem) {  // monitors report changes in whole pages
    begin_ &= ~(kPage - 1);
    end_ = (end_ + kPage - 1) & ~(kPage - 1);
  }
  std::shared_ptr<Monitor> monitor;
  {
    const Guard guard(cache_.lock_);
    ++cache_.counts_.misses;
    if (cache_.limits_.count_max == 0 || !cache_.enabled_[iface] || cache_.monitors_[iface] == nullptr) return;
    monitor = cache_.monitors_[iface];
    keep_ = true;
    listed_ = true;
    next_ = cache_.misses_under_way_;
    link_ = &cache_.misses_under_way_;
    if (next_ != nullptr) next_->link_ = &next_;
    cache_.misses_under_way_ = this;
    if (iface == kHmemSystem) cache_.log_.watch(begin_, end_);
  }
  // Watch before resolving: the monitor reports a change in between, and this mapping is then not cached.
  std::string why;
  if (!monitor->subscribe(begin_, end_, cache_.log_, &why)) {
    keep_ = false;
    cache_.note(std::move(why));
    return;
  }
  monitor_ = std::move(monitor);
  if (monitor_->changing(begin_, end_)) keep_ = false;
}

RegistrationCache::Miss::~Miss() {
  if (listed_) {
    const Guard guard(cache_.lock_);
    *link_ = next_;
    if (next_ != nullptr) next_->link_ = link_;
  }
  if (monitor_ != nullptr) {
    Garbage garbage;
    garbage.ranges.push_back({std::move(monitor_), begin_, end_});
    cache_.clear_away(garbage);
  }
}

RegistrationCache::Ref RegistrationCache::Miss::finish(const CachedMapping& found) {
  if (found.address > address_ || found.address + found.length < address_ + length_) {
    throw Error(fi_err::kEINVAL, "the resolver answered with a mapping of " + std::to_string(found.length) +
                                     " bytes that does not contain the " + std::to_string(length_) +
                                     " bytes that were asked for");
  }
  CachedMapping mapping = found;
  mapping.iface = iface_;
  mapping.device = device_;
  if (iface_ == kHmemSystem) {  // keep only the watched pages: others could change unseen
    const uint64_t begin = std::max(mapping.address, begin_);
    const uint64_t end = std::min(mapping.address + mapping.length, end_);
    mapping.address = begin;
    mapping.length = end - begin;
  }
  Garbage garbage;
  Node* node;
  bool kept = false;
  {
    const Guard guard(cache_.lock_);
    if (keep_ && cache_.log_.pending()) cache_.look_at_changes(garbage);
    if (monitor_ != cache_.monitors_[iface_]) keep_ = false;  // another thread has replaced the monitor
    node = cache_.take_node();
    node->references.store(1, std::memory_order_relaxed);
    node->stale.store(false, std::memory_order_relaxed);
    node->begin = mapping.address;
    node->end = mapping.address + mapping.length;
    node->mapping = mapping;
    Space* space = nullptr;
    if (keep_ && !dirty_) {
      space = cache_.space_of(iface_, device_);
      // Another thread may have cached the range first; then ours is returned without being cached.
      const bool known = space != nullptr && containing(space->root, node->begin, node->end) != nullptr;
      kept = !known && cache_.make_room(mapping.length, garbage);
    }
    if (kept) {
      if (space == nullptr) {
        cache_.spaces_.push_back(std::make_unique<Space>(Space{iface_, device_, nullptr}));
        space = cache_.spaces_.back().get();
      }
      std::vector<Node*> within;
      overlapping(space->root, node->begin, node->end, within);
      for (Node* old : within) {
        if (node->begin <= old->begin && old->end <= node->end &&
            old->references.load(std::memory_order_acquire) == 1) {
          cache_.remove(*space, old, garbage);
        }
      }
      node->references.store(2, std::memory_order_relaxed);
      node->indexed = true;
      node->priority = mix(node->begin ^ node->end << 20);
      node->subscribed_begin = begin_;
      node->subscribed_end = end_;
      node->monitor = std::move(monitor_);
      space->root = insert(space->root, node);
      cache_.to_front(node);
      ++cache_.counts_.entries;
      cache_.counts_.bytes += mapping.length;
      cache_.recent_[recent_at(address_, device_)] = node;
    } else {
      ++cache_.counts_.uncached;
    }
  }
  cache_.clear_away(garbage);
  return Ref(&cache_, node, kept);
}

void RegistrationCache::release(Node* node) noexcept {
  // SYNC POINT: release: our reads of the node end before its reuse; acquire: for the thread that reuses the node.
  if (node->references.fetch_sub(1, std::memory_order_acq_rel) != 1) [[likely]]
    return;
  assert(!node->indexed && "the index holds a reference to its nodes");
  const Guard guard(lock_);
  node->left = free_;
  free_ = node;
}

// ---- changes -----------------------------------------------------------------------------------------------------

void RegistrationCache::look_at_changes(Garbage& garbage) {
  lock_.assert_held();
  log_.drain([&](const Change& change) {
    lock_.assert_held();
    counts_.invalidations += invalidate(kHmemSystem, change.begin, change.end, garbage);
  });
}

size_t RegistrationCache::invalidate(uint32_t iface, uint64_t begin, uint64_t end, Garbage& garbage) {
  lock_.assert_held();
  for (Miss* miss = misses_under_way_; miss != nullptr; miss = miss->next_) {
    if (miss->iface_ == iface && miss->begin_ < end && begin < miss->end_) miss->dirty_ = true;
  }
  size_t count = 0;
  for (auto& space : spaces_) {
    if (space->iface != iface || space->root == nullptr) continue;
    std::vector<Node*> found;
    overlapping(space->root, begin, end, found);
    for (Node* node : found) remove(*space, node, garbage);
    count += found.size();
  }
  return count;
}

size_t RegistrationCache::notify(uint32_t iface, uint64_t address, uint64_t length) {
  check_iface(iface);
  const uint64_t end = address + length < address ? ~uint64_t{0} : address + length;
  Garbage garbage;
  size_t count;
  {
    const Guard guard(lock_);
    count = length == 0 ? 0 : invalidate(iface, address, end, garbage);
    counts_.invalidations += count;
  }
  clear_away(garbage);
  return count;
}

size_t RegistrationCache::flush(bool lru_only) {
  Garbage garbage;
  size_t count = 0;
  {
    const Guard guard(lock_);
    if (log_.pending()) look_at_changes(garbage);
    for (Node* node = oldest_; node != nullptr;) {
      Node* next = node->newer;
      if (!lru_only || node->references.load(std::memory_order_acquire) == 1) {
        remove(*space_of(node->mapping.iface, node->mapping.device), node, garbage);
        ++count;
      }
      node = next;
    }
    counts_.evictions += count;
  }
  clear_away(garbage);
  return count;
}

void RegistrationCache::remove(Space& space, Node* node, Garbage& garbage) {
  lock_.assert_held();
  assert(node->indexed && counts_.entries != 0 && counts_.bytes >= node->mapping.length);
  garbage.ranges.push_back({std::move(node->monitor), node->subscribed_begin, node->subscribed_end});
  space.root = erase(space.root, node);
  unlink(node);
  node->indexed = false;
  node->stale.store(true, std::memory_order_release);
  --counts_.entries;
  counts_.bytes -= node->mapping.length;
  if (counts_.entries == 0 && misses_under_way_ == nullptr) log_.forget();
  if (node->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    node->left = free_;
    free_ = node;
  }
}

bool RegistrationCache::make_room(uint64_t bytes, Garbage& garbage) {
  lock_.assert_held();
  if (bytes > limits_.bytes_max) return false;
  const auto fits = [&] {
    lock_.assert_held();
    return counts_.entries < limits_.count_max && counts_.bytes <= limits_.bytes_max - bytes;
  };
  // One pass from the oldest node on. Held nodes move to the front, so that the next pass does not meet them again.
  for (uint64_t looks = counts_.entries; !fits() && looks != 0; --looks) {
    Node* node = oldest_;
    if (node->references.load(std::memory_order_acquire) == 1) {
      remove(*space_of(node->mapping.iface, node->mapping.device), node, garbage);
      ++counts_.evictions;
    } else {
      to_front(node);
    }
  }
  return fits();
}

void RegistrationCache::clear_away(Garbage& garbage) noexcept {
  for (Garbage::Range& range : garbage.ranges) {
    if (range.monitor != nullptr) range.monitor->unsubscribe(range.begin, range.end, log_);
  }
  garbage.ranges.clear();
}

// ---- the tree ----------------------------------------------------------------------------------------------------

RegistrationCache::Space* RegistrationCache::space_of(uint32_t iface, uint64_t device) noexcept {
  lock_.assert_held();
  for (const auto& space : spaces_) {
    if (space->iface == iface && space->device == device) return space.get();
  }
  return nullptr;
}

RegistrationCache::Node* RegistrationCache::containing(Node* root, uint64_t begin, uint64_t end) noexcept {
  while (root != nullptr && root->reach >= end) {
    if (root->begin > begin) {
      root = root->left;
    } else if (root->end >= end) {
      return root;
    } else {
      // All nodes on the left begin early enough; if one of them reaches far enough, it contains the range.
      root = root->left != nullptr && root->left->reach >= end ? root->left : root->right;
    }
  }
  return nullptr;
}

void RegistrationCache::update(Node* node) noexcept {
  node->reach = node->end;
  if (node->left != nullptr && node->left->reach > node->reach) node->reach = node->left->reach;
  if (node->right != nullptr && node->right->reach > node->reach) node->reach = node->right->reach;
}

namespace {
template <typename Node>
bool before(const Node* a, const Node* b) noexcept {
  return a->begin != b->begin ? a->begin < b->begin : a < b;
}
}  // namespace

RegistrationCache::Node* RegistrationCache::insert(Node* root, Node* node) noexcept {
  if (root == nullptr) {
    node->left = node->right = nullptr;
    node->reach = node->end;
    return node;
  }
  if (before(node, root)) {
    Node* child = root->left = insert(root->left, node);
    if (child->priority > root->priority) {
      root->left = child->right;
      child->right = root;
      update(root);
      update(child);
      return child;
    }
  } else {
    Node* child = root->right = insert(root->right, node);
    if (child->priority > root->priority) {
      root->right = child->left;
      child->left = root;
      update(root);
      update(child);
      return child;
    }
  }
  update(root);
  return root;
}

RegistrationCache::Node* RegistrationCache::erase(Node* root, Node* node) noexcept {
  if (root == nullptr) return nullptr;
  if (root != node) {
    if (before(node, root)) {
      root->left = erase(root->left, node);
    } else {
      root->right = erase(root->right, node);
    }
    update(root);
    return root;
  }
  if (root->left == nullptr) return root->right;
  if (root->right == nullptr) return root->left;
  Node* up;  // rotate the child with the higher priority up, and continue below it
  if (root->left->priority > root->right->priority) {
    up = root->left;
    root->left = up->right;
    up->right = erase(root, node);
  } else {
    up = root->right;
    root->right = up->left;
    up->left = erase(root, node);
  }
  update(up);
  return up;
}

void RegistrationCache::overlapping(Node* root, uint64_t begin, uint64_t end, std::vector<Node*>& out) {
  if (root == nullptr || root->reach <= begin) return;
  overlapping(root->left, begin, end, out);
  if (root->begin >= end) return;
  if (root->end > begin) out.push_back(root);
  overlapping(root->right, begin, end, out);
}

// ---- by use ------------------------------------------------------------------------------------------------------

void RegistrationCache::unlink(Node* node) noexcept {
  lock_.assert_held();
  if (node != newest_ && node->newer == nullptr) return;  // not in the list yet
  (node->newer != nullptr ? node->newer->older : newest_) = node->older;
  (node->older != nullptr ? node->older->newer : oldest_) = node->newer;
  node->newer = node->older = nullptr;
}

void RegistrationCache::to_front(Node* node) noexcept {
  lock_.assert_held();
  unlink(node);
  node->older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = node;
  newest_ = node;
}

RegistrationCache::Node* RegistrationCache::take_node() {
  lock_.assert_held();
  if (free_ == nullptr) {
    nodes_.push_back(std::make_unique<Node[]>(kNodesAtOnce));
    for (size_t i = 0; i < kNodesAtOnce; ++i) {
      nodes_.back()[i].left = free_;
      free_ = &nodes_.back()[i];
    }
  }
  Node* node = free_;
  free_ = node->left;
  node->newer = node->older = nullptr;
  node->indexed = false;
  return node;
}

// ---- set-up and questions ----------------------------------------------------------------------------------------

RegistrationCache::RegistrationCache(const CacheLimits& limits, std::shared_ptr<Monitor> system) : limits_(limits) {
  monitors_[kHmemSystem] = own_[kHmemSystem] = std::move(system);
  enabled_.fill(true);
}

RegistrationCache::~RegistrationCache() {
  (void)flush(false);
}

void RegistrationCache::set_monitor(uint32_t iface, std::shared_ptr<Monitor> monitor) {
  replace(&RegistrationCache::own_, iface, std::move(monitor));
}

void RegistrationCache::import_monitor(uint32_t iface, std::shared_ptr<Monitor> monitor) {
  replace(&RegistrationCache::imported_, iface, std::move(monitor));
}

void RegistrationCache::replace(Monitors RegistrationCache::* source, uint32_t iface,
                                std::shared_ptr<Monitor> monitor) {
  check_iface(iface);
  std::shared_ptr<Monitor> chosen;
  Garbage garbage;
  {
    const Guard guard(lock_);
    std::swap((this->*source)[iface], monitor);  // the old monitors end outside the lock: they may be Python objects
    chosen = imported_[iface] != nullptr ? imported_[iface] : own_[iface];
    if (monitors_[iface] != chosen) {
      std::swap(monitors_[iface], chosen);
      checks_[iface] = monitors_[iface] != nullptr && monitors_[iface]->checks_hits();
      counts_.invalidations += invalidate(iface, 0, ~uint64_t{0}, garbage);
    }
  }
  clear_away(garbage);
}

void RegistrationCache::set_enabled(uint32_t iface, bool on) {
  check_iface(iface);
  Garbage garbage;
  {
    const Guard guard(lock_);
    enabled_[iface] = on;
    if (!on) counts_.invalidations += invalidate(iface, 0, ~uint64_t{0}, garbage);
  }
  clear_away(garbage);
}

std::shared_ptr<Monitor> RegistrationCache::monitor(uint32_t iface) const {
  check_iface(iface);
  const Guard guard(lock_);
  return monitors_[iface];
}

CacheStatistics RegistrationCache::statistics() {
  Garbage garbage;
  CacheStatistics counts;
  {
    const Guard guard(lock_);
    if (log_.pending()) look_at_changes(garbage);
    counts = counts_;
    for (const Node* node = oldest_; node != nullptr; node = node->newer) {
      counts.held += node->references.load(std::memory_order_relaxed) > 1;
    }
  }
  clear_away(garbage);
  return counts;
}

void RegistrationCache::note(std::string why) {
  const Guard guard(lock_);
  reason_.swap(why);
}

std::string RegistrationCache::reason() const {
  const Guard guard(lock_);
  return reason_;
}

void RegistrationCache::after_fork_in_child() noexcept {
  lock_.unlock_after_fork();
  log_.reset_after_fork();
}

}  // namespace weft::mem
