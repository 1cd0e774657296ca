// cpp/nic/domain.cpp: domains, address vectors and regions: everything that is set up before data moves.
#include <algorithm>

#include "nic/nic.hpp"

namespace weft::nic {

// ---- Domain ------------------------------------------------------------------------------------------------------

Domain::Domain(Nic* nic, const DomainConfig& config)
    : nic_(nic), config_(config), index_(nic->add_domain(this)), ops_(index_, nic->next_op()) {
  activity_ = &nic->table().own_activity(index_);
  mem::keep_fault_handler();
}

Domain::~Domain() {
  close();
}

void Domain::close() noexcept {
  if (nic_ == nullptr) return;
  nic_->remove_domain(this);
}

void Domain::lock_slow() noexcept {
  Backoff backoff;
  for (;;) {
    uint64_t word = activity_->word.load(std::memory_order_relaxed);
    if ((word & 1) == 0 && activity_->word.compare_exchange_strong(word, word + 1, std::memory_order_seq_cst)) return;
    backoff.pause();
  }
}

std::shared_ptr<Endpoint> Domain::make_endpoint(const EndpointConfig& config) {
  return std::make_shared<Endpoint>(this, config);
}

std::shared_ptr<MemoryRegion> Domain::register_region(std::span<const iovec> list, uint64_t access,
                                                      uint64_t requested_key, bool unowned, bool enabled, uint32_t kind,
                                                      const RegionExtra& extra) {
  mem::MrBuffer one;
  std::vector<mem::MrBuffer> more(list.size() > 1 ? list.size() : 0);
  const std::span<mem::MrBuffer> buffers = list.size() > 1 ? std::span(more) : std::span(&one, list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    mem::MrBuffer& b = buffers[i];
    b = {reinterpret_cast<uint64_t>(list[i].iov_base), list[i].iov_len, 0, mem::kNoSegment};
    if (const auto place = nic_->segments().find(list[i].iov_base, list[i].iov_len)) {
      b.segment = place->segment;
      b.where = place->offset;
    }
  }
  const auto bits = static_cast<uint32_t>(access & mem::kAccessMask);
  const bool remote = (bits & (mem::kRemoteRead | mem::kRemoteWrite)) != 0;
  if (!remote) {  // local use only: no entry, no key
    auto region = std::make_shared<MemoryRegion>(this, buffers, 0, wire::kKeyNotAvail, bits, false);
    if (enabled) region->make_usable();  // nobody else has it yet
    return region;
  }
  mem::MrRequest request;
  request.buffers = buffers;
  request.base = config_.virt_addr && !buffers.empty() ? extra.base.value_or(buffers[0].local_addr) : 0;
  request.access = bits | kind | (unowned ? mem::kMrUnowned : 0);
  request.domain = static_cast<uint16_t>(index_);
  request.notes = extra.notes;
  request.guard = extra.guard;
  if (!config_.prov_key) request.client_key = requested_key;
  request.enabled = enabled;
  // Before the table has it: nothing below may fail.
  auto region = std::make_shared<MemoryRegion>(this, buffers, 0, wire::kKeyNotAvail, bits, true);
  region->slot_ = nic_->table().insert(request);
  region->key_ = nic_->table().mr(region->slot_).key;
  region->enabled_ = enabled;
  return region;
}

void Domain::bind_region_counter(const std::shared_ptr<MemoryRegion>& region, std::shared_ptr<Counter> counter,
                                 uint64_t flags) {
  if (region->closed()) throw Error(fi_err::kEOPBADSTATE, "the region is closed");
  const std::lock_guard objects(nic_->objects_mutex_);
  const auto bound = std::ranges::find(region->counters_, counter, &MemoryRegion::BoundCounter::counter);
  if (bound != region->counters_.end()) {
    bound->flags |= flags;
  } else {
    region->counters_.push_back({std::move(counter), flags});
  }
  if (!region->remote_) return;
  nic_->counted_regions_[region->slot_] = region;
  nic_->table().add_access_flags(region->slot_, ((flags & flag::kRemoteWrite) != 0 ? mem::kMrNotifyWrite : 0) |
                                                    ((flags & flag::kRemoteRead) != 0 ? mem::kMrNotifyRead : 0));
}

size_t Domain::pump(PeerEp& target) noexcept {
  size_t moved = 0;
  while (!target.waiting.empty()) {
    Op* op = target.waiting.front();
    // advance() may finish the operation, which must not be in the list then; its place stays, so that nothing is
    // allocated to put it back. Who pumps holds the target.
    target.waiting.front() = nullptr;
    if (!op->ep->advance_safely(op)) {
      target.waiting.front() = op;
      break;
    }
    target.waiting.pop_front();
    nic_->waiting_ops_.fetch_sub(1, std::memory_order_relaxed);
    ++moved;
  }
  return moved;
}

uint64_t Domain::map_raw(uint64_t key) {
  const DomainLock guard(this);
  // Handles stand far from the keys that applications choose and from those that NICs make: a key that was not mapped
  // is refused, and does not name the region of some handle.
  if (next_handle_ == 0) next_handle_ = uint64_t{1} << 63 | nic_->random().next() >> 24 << 22;
  const uint64_t handle = next_handle_++;
  raw_keys_.emplace(handle, key);
  return handle;
}

bool Domain::unmap_raw(uint64_t handle) {
  const DomainLock guard(this);
  return raw_keys_.erase(handle) == 1;
}

// Without memory for the list, what the caller lent stays lent: it must not be used again too early.
void Domain::release_cookies(Op* op) noexcept {
  if (op->cookies.empty()) return;
  try {
    released_.insert(released_.end(), op->cookies.begin(), op->cookies.end());
  } catch (const std::bad_alloc&) {
    return;
  }
  released_count_.store(released_.size(), std::memory_order_relaxed);
}

void Domain::release_context(uint64_t context) noexcept {
  if (context == 0) return;
  try {
    released_.push_back(context);
  } catch (const std::bad_alloc&) {
    return;
  }
  released_count_.store(released_.size(), std::memory_order_relaxed);
}

bool Domain::attach(uint64_t op_id, std::span<const uint64_t> cookies) {
  const DomainLock guard(this);
  Op* op = ops_.find(op_id);
  if (op == nullptr) return false;
  op->cookies.insert(op->cookies.end(), cookies.begin(), cookies.end());
  return true;
}

std::vector<uint64_t> Domain::take_released() {
  const DomainLock guard(this);
  released_count_.store(0, std::memory_order_relaxed);
  return std::exchange(released_, {});
}

std::optional<mem::DeviceMemory> Nic::device_memory(uint64_t address, uint64_t length) {
  const mem::Devices& devices = *parts_.devices;
  mem::RegistrationCache* cache = parts_.cache;
  if (!devices.any()) return std::nullopt;
  if (cache != nullptr) {
    for (uint32_t iface = 1; iface < mem::kHmemIfaceCount; ++iface) {
      if (devices.runtime(iface) == nullptr) continue;
      // Device 0 in the key stands for all: with unified addressing no two devices share an address.
      if (const auto hit = cache->find(address, length, iface, 0)) {
        return mem::DeviceMemory{iface,          static_cast<mem::DeviceMemoryKind>(hit->user & 0xff),
                                 hit->user >> 8, hit->address,
                                 hit->length,    hit->buffer_id};
      }
    }
  }
  const auto found = devices.find(address);
  if (!found || cache == nullptr || found->buffer_id == 0) return found;
  const uint64_t at = address - found->base;
  if (at > found->length || length > found->length - at) return found;  // not all of it: nothing to remember
  (void)cache->search(found->base, found->length, found->iface, 0, [&](uint64_t, uint64_t) {
    mem::CachedMapping mapping;
    mapping.address = found->base;
    mapping.length = found->length;
    mapping.iface = found->iface;
    mapping.buffer_id = found->buffer_id;
    mapping.host_access = found->kind == mem::DeviceMemoryKind::host;
    mapping.user = found->device << 8 | static_cast<uint64_t>(found->kind);
    return mapping;
  });
  return found;
}

// ---- AddressVector -----------------------------------------------------------------------------------------------

uint64_t AddressVector::insert(const wire::EpAddress& address) {
  const auto here = domain_->nic_->local_name(address);
  const DomainLock guard(domain_);
  if (const auto it = by_address_.find(address); it != by_address_.end()) return it->second;
  auto entry = std::make_shared<PeerEp>();
  entry->address = address;
  entry->domain = domain_;
  uint64_t fi_addr;
  if (free_.empty()) {
    fi_addr = entries_.size();
    entries_.push_back(entry);
  } else {
    const auto lowest = std::ranges::min_element(free_);
    fi_addr = *lowest;
    free_.erase(lowest);
    entries_[fi_addr] = entry;
  }
  by_address_.emplace(address, fi_addr);
  // Frames that come by the shm link have the name that this host knows.
  if (here) by_address_.emplace(*here, fi_addr);
  domain_->peer_eps_.push_back(entry);
  return fi_addr;
}

bool AddressVector::remove(uint64_t fi_addr) {
  const DomainLock guard(domain_);
  if (fi_addr >= entries_.size() || !entries_[fi_addr]) return false;
  remove_locked(fi_addr);
  return true;
}

void AddressVector::forget(const PeerEp& target) {
  const auto it = by_address_.find(target.address);
  if (it != by_address_.end() && entries_[it->second].get() == &target) remove_locked(it->second);
}

void AddressVector::remove_locked(uint64_t fi_addr) {
  std::erase_if(by_address_, [&](const auto& known) { return known.second == fi_addr; });
  // Operations under way hold the entry; they end as they would have.
  entries_[fi_addr] = nullptr;
  free_.push_back(fi_addr);
  std::erase_if(domain_->peer_eps_, [](const auto& weak) { return weak.expired(); });
}

std::optional<wire::EpAddress> AddressVector::lookup(uint64_t fi_addr) const {
  const DomainLock guard(domain_);
  if (fi_addr >= entries_.size() || !entries_[fi_addr]) return std::nullopt;
  return entries_[fi_addr]->address;
}

uint64_t AddressVector::find(const wire::EpAddress& address) const {
  const auto it = by_address_.find(address);
  return it == by_address_.end() ? wire::kKeyNotAvail : it->second;
}

// ---- MemoryRegion ------------------------------------------------------------------------------------------------

void MemoryRegion::bind_endpoint(const Endpoint& ep) {
  if (closed() || enabled_) throw Error(fi_err::kEOPBADSTATE, "bind a region before it is enabled");
  if (!ep.enabled()) throw Error(fi_err::kEOPBADSTATE, "bind a region to an endpoint that is enabled");
  const uint32_t binding = mem::ep_binding(ep.index(), ep.generation());
  if (std::ranges::find(eps_, binding) == eps_.end()) eps_.push_back(binding);
}

bool MemoryRegion::hold() noexcept {
  Backoff backoff;
  for (;;) {
    Life life = Life::open;
    if (life_.compare_exchange_strong(life, Life::held, std::memory_order_acquire)) return true;
    if (life == Life::closed) return false;
    backoff.pause();  // another thread is at it
  }
}

void MemoryRegion::enable() {
  if (!hold()) throw Error(fi_err::kEOPBADSTATE, "the region is closed");
  try {
    make_usable();
  } catch (...) {  // no room for the list of endpoints
    let_go(Life::open);
    throw;
  }
  let_go(Life::open);
}

void MemoryRegion::make_usable() {
  if (enabled_) return;
  if (remote_) {
    if (!eps_.empty()) domain_->nic_->table().bind_eps(slot_, eps_);
    domain_->nic_->table().enable(slot_);
  }
  enabled_ = true;
}

bool MemoryRegion::disable(std::string* why) {
  if (!hold()) throw Error(fi_err::kEOPBADSTATE, "the region is closed");
  bool done = true;
  if (enabled_ && remote_) {
    domain_->nic_->table().disable(slot_);
    *why = domain_->nic_->quiesce(slot_);
    done = why->empty();
    if (!done) domain_->nic_->table().enable(slot_);
  }
  if (done) enabled_ = false;
  let_go(Life::open);
  return done;
}

uint64_t MemoryRegion::base() const noexcept {
  return remote_ && !closed() ? mem::load_relaxed(domain_->nic_->table().mr(slot_).base) : 0;
}

bool MemoryRegion::used_up() const noexcept {
  if (!remote_ || closed()) return false;
  const mem::MrEntry& e = domain_->nic_->table().mr(slot_);
  return (mem::load_relaxed(e.access) & mem::kMrSingleUse) != 0 &&
         mem::state_of(e.state.load(std::memory_order_acquire)) == mem::MrState::closing;
}

bool MemoryRegion::close(std::string* why) {
  if (!hold()) return true;
  const bool revoked = !remote_ || revoke(why);
  let_go(revoked ? Life::closed : Life::open);
  return revoked;
}

bool MemoryRegion::revoke(std::string* why) {
  Nic& nic = *domain_->nic_;
  if (enabled_) {
    nic.table().begin_close(slot_);
    *why = nic.quiesce(slot_);
    if (!why->empty()) {
      nic.table().reopen(slot_);
      return false;
    }
  }
  if (!counters_.empty()) {  // before the slot can be another region's
    const std::lock_guard objects(nic.objects_mutex_);
    nic.counted_regions_.erase(slot_);
  }
  nic.table().release(slot_);
  return true;
}

}  // namespace weft::nic
