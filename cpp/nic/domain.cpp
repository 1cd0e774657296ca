// cpp/nic/domain.cpp: domains: the lock, registration, raw keys, objects returned to the caller.
#include <algorithm>
#include <cassert>

#include "base/backoff.hpp"
#include "base/slab.hpp"
#include "nic/nic.hpp"

namespace weft::nic {

constinit thread_local bool t_posts = false;

Domain::Domain(Nic* nic, const DomainConfig& config)
    : triggers_(std::make_shared<TriggerUnit>(this)), nic_(nic), config_(config) {
  nic->add_domain(this);  // last: from here on other threads find the domain
  mem::keep_fault_handler();
}

Domain::~Domain() {
  close();
}

void Domain::close() noexcept {
  if (nic_ == nullptr) return;
  triggers_->close();
  nic_->drop_mappings_of(this);
  nic_->remove_domain(this);
}

void Domain::wait_for_lock() noexcept {
  Backoff backoff;
  for (;;) {
    uint64_t word = activity_->word.load(std::memory_order_relaxed);
    if ((word & 1) == 0 && activity_->word.compare_exchange_strong(word, word + 1, std::memory_order_seq_cst)) return;
    backoff.pause();
  }
}

TelemetryWriter& Domain::telemetry(uint32_t nic) {
  assert_held();
  const TelemetryPage* page = &nic_->telemetry().of(nic);
  const auto known = std::ranges::find(telemetry_, page, [](const auto& w) { return w->page(); });
  if (known != telemetry_.end()) return **known;
  telemetry_.push_back(nic_->telemetry().writer(nic));
  return *telemetry_.back();
}

EndpointConfig EndpointConfig::in(const DomainConfig& domain) const {
  EndpointConfig c = *this;
  c.rules.mr_local = domain.mr_local;
  c.rules.mr_hmem = domain.mr_hmem;
  c.rules.hmem = domain.hmem;
  c.messages.source = (caps & rx_cap::kSource) != 0;
  c.messages.source_error = (caps & rx_cap::kSourceErr) != 0;
  c.messages.eager_part = std::min<uint64_t>(c.messages.eager_part, wire::kStagedPayloadMax);
  return c;
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
  bool turns = false;
  for (size_t i = 0; i < list.size(); ++i) {
    mem::MrBuffer& b = buffers[i];
    b = {reinterpret_cast<uint64_t>(list[i].iov_base), list[i].iov_len, 0, mem::kNoSegment};
    if (const auto place = nic_->segments().find(list[i].iov_base, list[i].iov_len)) {
      b.segment = place->segment;
      b.where = place->offset;
      turns = turns || nic_->segments().takes_turns(list[i].iov_base, list[i].iov_len);
    }
  }
  const auto bits = static_cast<uint32_t>(access & mem::kAccessMask);
  const bool remote = (bits & (mem::kRemoteRead | mem::kRemoteWrite)) != 0;
  if (!remote) {  // local use only: no table entry, no key
    auto region = std::allocate_shared<MemoryRegion>(SlabAllocator<MemoryRegion>(), this, buffers, 0,
                                                     wire::kKeyNotAvail, bits, false);
    if (enabled) region->end_change(MemoryRegion::State::enabled);
    return region;
  }
  mem::MrRequest request;
  request.buffers = buffers;
  request.base = config_.virt_addr && !buffers.empty() ? extra.base.value_or(buffers[0].local_addr) : 0 - extra.before;
  request.access = bits | kind | (unowned ? mem::kMrUnowned : 0) | (turns ? mem::kMrTurns : 0);
  if (turns) nic_->turns_.store(true, std::memory_order_release);
  request.domain = static_cast<uint16_t>(index_);
  request.notes = extra.notes;
  request.guard = extra.guard;
  if (!config_.prov_key) request.client_key = standard_key(requested_key);
  request.fetches_need_both = config_.fetches_need_both;
  request.enabled = enabled;
  if (extra.later) {
    auto region = std::allocate_shared<MemoryRegion>(SlabAllocator<MemoryRegion>(), this, buffers, 0,
                                                     wire::kKeyNotAvail, bits, false);
    auto entry = std::make_unique<MemoryRegion::Entry>();
    entry->base = request.base;
    entry->access = request.access;
    entry->notes.assign(extra.notes.begin(), extra.notes.end());
    if (extra.guard != nullptr) entry->guard = *extra.guard;
    region->rare().later = std::move(entry);
    return region;
  }
  // Allocate before the insert: nothing after the insert may throw.
  auto region = std::allocate_shared<MemoryRegion>(SlabAllocator<MemoryRegion>(), this, buffers, 0, wire::kKeyNotAvail,
                                                   bits, true);
  region->slot_ = nic_->table().insert(request);
  region->key_ = nic_->table().mr(region->slot_).key;
  if (config_.standard_below != 0 && !config_.prov_key) region->key_ = requested_key;
  if (enabled) region->end_change(MemoryRegion::State::enabled);
  return region;
}

void Domain::bind_region_counter(const std::shared_ptr<MemoryRegion>& region, std::shared_ptr<Counter> counter,
                                 uint64_t flags) {
  // Excludes a close(): another region could get the slot meanwhile.
  const MemoryRegion::State state = region->begin_change();
  if (state == MemoryRegion::State::closed) throw Error(fi_err::kEOPBADSTATE, "the region is closed");
  const struct Unchanged {
    MemoryRegion& region;
    MemoryRegion::State state;
    ~Unchanged() { region.end_change(state); }
  } unchanged{*region, state};
  const Guard objects(nic_->objects_mutex_);
  auto& counters = region->rare().counters;
  const auto bound = std::ranges::find(counters, counter, &MemoryRegion::BoundCounter::counter);
  if (bound != counters.end()) {
    bound->flags |= flags;
  } else {
    counters.push_back({std::move(counter), flags});
  }
  if (!region->remote_) return;
  nic_->counted_regions_[region->slot_] = region;
  nic_->table().add_access_flags(region->slot_, notify_flags(flags));
}

mem::Updater Domain::updater() const noexcept {
  return nic_->updater(index_);
}

mem::Gate::Slot* Domain::turns_at(const link::Peer& peer, uint32_t segment) noexcept {
  mem::Gate* const gate = peer.same_process ? nic_->segments().gate(segment)
                                            : mem::Gate::in(peer.segment_base(segment), peer.segment_bytes(segment));
  return gate != nullptr ? gate->slot_of(updater()) : nullptr;
}

size_t Domain::pump(Flow& flow) noexcept {
  assert_held();
  if (!flow.waits()) return 0;
  const std::shared_ptr<Flow> kept = flow.shared_from_this();  // its last operation may own the only reference
  size_t moved = 0;
  Op* passed = nullptr;  // an unordered message that waits for its next attempt: later messages pass it
  for (Op* op; (op = passed != nullptr ? passed->next : flow.first) != nullptr;) {
    // Remove the operation from the list first: advance() may finish it.
    Op*& from = passed != nullptr ? passed->next : flow.first;
    from = op->next;
    op->next = nullptr;
    if (!op->tx->advance_safely(op)) {
      op->next = from;
      from = op;
      if (op->kind != OpKind::send || op->send().retry_at_ns == 0) break;
      passed = op;
      continue;
    }
    nic_->drop_waiting();
    ++moved;
  }
  if (!flow.waits()) {
    take_off(flow);
  } else if (passed != nullptr && passed->next == nullptr) {
    flow.last = passed;  // the last operation may have left from behind it
  }
  return moved;
}

void Domain::pump_route(const Route& route) noexcept {
  assert_held();
  for (Flow *flow = waiting_, *next = nullptr; flow != nullptr; flow = next) {
    next = flow->next_waiting;
    if (flow->route.get() == &route) pump(*flow);
  }
}

void Domain::wait(Op* op) noexcept {
  assert_held();
  Flow& flow = *op->flow;
  assert(op->tx->domain() == this && op != flow.last && "the operation is of this domain, and waits once");
  op->next = nullptr;
  if (flow.waits()) {
    flow.last->next = op;
  } else {
    flow.first = op;
    flow.busy |= Flow::kWaiting;
    flow.previous_waiting = nullptr;
    flow.next_waiting = waiting_;
    if (waiting_ != nullptr) waiting_->previous_waiting = &flow;
    waiting_ = &flow;
  }
  flow.last = op;
  nic_->add_waiting();
}

void Domain::wait_in_order(Op* op) noexcept {
  assert_held();
  Flow& flow = *op->flow;
  if (!flow.waits() || flow.last->sequence < op->sequence) {
    wait(op);
    return;
  }
  Op** at = &flow.first;
  while ((*at)->sequence < op->sequence) at = &(*at)->next;
  op->next = *at;
  *at = op;
  nic_->add_waiting();
}

void Domain::take_off(Flow& flow) noexcept {
  assert_held();
  assert(!flow.waits() && (flow.busy & Flow::kWaiting) != 0 && "the flow is listed, and has no operation left");
  flow.last = nullptr;
  flow.busy &= static_cast<ClassSet>(~Flow::kWaiting);
  (flow.previous_waiting != nullptr ? flow.previous_waiting->next_waiting : waiting_) = flow.next_waiting;
  if (flow.next_waiting != nullptr) flow.next_waiting->previous_waiting = flow.previous_waiting;
  flow.previous_waiting = flow.next_waiting = nullptr;
}

void Domain::stop_waiting(Op* op) noexcept {
  assert_held();
  Flow& flow = *op->flow;
  Op* before = nullptr;
  for (Op* at = flow.first; at != op; before = at, at = at->next) {
    if (at == nullptr) return;
  }
  (before != nullptr ? before->next : flow.first) = op->next;
  if (flow.last == op) flow.last = before;
  op->next = nullptr;
  nic_->drop_waiting();
  if (!flow.waits()) take_off(flow);
}

std::shared_ptr<Route> Domain::route_to(const wire::EpAddress& address) {
  assert_held();
  forget_unused_routes();
  std::weak_ptr<Route>& known = routes_[address];
  std::shared_ptr<Route> route = known.lock();
  if (!route) known = route = std::make_shared<Route>(this, address);
  return route;
}

std::shared_ptr<Route> Domain::own_route(const wire::EpAddress& address) {
  assert_held();
  forget_unused_routes();
  auto route = std::make_shared<Route>(this, address);
  own_routes_.push_back(route);
  return route;
}

void Domain::forget_unused_routes() {
  assert_held();
  if (routes_.size() + own_routes_.size() < routes_kept_) return;
  std::erase_if(routes_, [](const auto& known) { return known.second.expired(); });
  std::erase_if(own_routes_, [](const auto& known) { return known.expired(); });
  routes_kept_ = std::max<size_t>(64, 2 * (routes_.size() + own_routes_.size()));
}

uint64_t Domain::map_raw(uint64_t key) {
  const DomainLock guard(this);
  // Handles are far from the keys that applications choose and that NICs make, so that a key which was not mapped is
  // refused instead of matching a handle.
  if (next_handle_ == 0) next_handle_ = uint64_t{1} << 63 | nic_->random().next() >> 24 << 22;
  const uint64_t handle = next_handle_++;
  raw_keys_.emplace(handle, key);
  return handle;
}

bool Domain::unmap_raw(uint64_t handle) {
  const DomainLock guard(this);
  return raw_keys_.erase(handle) == 1;
}

// Out of memory for the list, the caller's objects are never returned: reusing them too early would be worse.
void Domain::release_cookies(Op* op) noexcept {
  assert_held();
  if (op->cookies.empty()) return;
  try {
    released_.insert(released_.end(), op->cookies.begin(), op->cookies.end());
  } catch (const std::bad_alloc&) {
    return;
  }
  ops_released_.store(!released_.empty(), std::memory_order_relaxed);
}

void Domain::release_context(uint64_t context) noexcept {
  assert_held();
  if (context == 0) return;
  try {
    released_.push_back(context);
  } catch (const std::bad_alloc&) {
    return;
  }
  ops_released_.store(!released_.empty(), std::memory_order_relaxed);
}

bool Domain::attach(uint64_t op_id, std::span<const uint64_t> cookies) {
  const DomainLock guard(this);
  Op* op = ops_.find(op_id);
  if (op == nullptr) return false;
  op->cookies.insert(op->cookies.end(), cookies.begin(), cookies.end());
  return true;
}

// ---- the provider's software ----------------------------------------------------------------------------------------

void Domain::run_software() noexcept {
  software_waits_.store(false, std::memory_order_seq_cst);  // before the look: work that comes meanwhile is noted again
  std::vector<std::shared_ptr<Endpoint>> all;
  {
    const Guard guard(late_lock_);
    for (const auto& counter : late_counters_) counter->fold();
    try {
      for (const WithSoftware& known : software_) {
        if (auto ep = known.ep.lock()) all.push_back(std::move(ep));
      }
    } catch (const std::bad_alloc&) {
      note_software();  // the next call tries again
    }
  }
  for (const auto& ep : all) ep->software_progress();
}

void Domain::add_software(const std::shared_ptr<Endpoint>& ep) {
  const Guard guard(late_lock_);
  software_.push_back({ep.get(), ep});
}

void Domain::remove_software(const Endpoint* ep) noexcept {
  const Guard guard(late_lock_);
  std::erase_if(software_, [&](const WithSoftware& known) { return known.at == ep; });
}

void Domain::add_late_counter(const std::shared_ptr<Counter>& counter) {
  const Guard guard(late_lock_);
  late_counters_.push_back(counter);
}

// One entry, for one endpoint.
void Domain::remove_late_counter(const std::shared_ptr<Counter>& counter) noexcept {
  counter->fold();
  const Guard guard(late_lock_);
  if (const auto it = std::ranges::find(late_counters_, counter); it != late_counters_.end()) late_counters_.erase(it);
}

void Domain::release_received(std::span<const uint64_t> cookies, uint64_t context) noexcept {
  if (cookies.empty() && context == 0) return;
  const Guard guard(received_lock_);
  try {
    received_.insert(received_.end(), cookies.begin(), cookies.end());
    if (context != 0) received_.push_back(context);
  } catch (const std::bad_alloc&) {
    return;  // as in release_cookies()
  }
  receives_released_.store(true, std::memory_order_relaxed);
}

void Domain::take_released(std::vector<uint64_t>* into) {
  into->clear();
  {
    const Guard received(received_lock_);
    received_.swap(*into);  // each of the two keeps its memory for the next round
    receives_released_.store(false, std::memory_order_relaxed);
  }
  if (!ops_released_.load(std::memory_order_relaxed)) [[likely]]
    return;
  const DomainLock guard(this);
  into->insert(into->end(), released_.begin(), released_.end());
  released_.clear();
  ops_released_.store(false, std::memory_order_relaxed);
}

void Domain::tell(uint32_t pid, News what) noexcept {
  const Guard guard(received_lock_);
  const std::pair<uint32_t, News> one{pid, what};
  try {
    if (std::ranges::find(news_, one) == news_.end()) news_.push_back(one);
  } catch (const std::bad_alloc&) {
    return;
  }
  news_waits_.store(true, std::memory_order_relaxed);
}

std::vector<std::pair<uint32_t, News>> Domain::take_news() {
  const Guard guard(received_lock_);
  news_waits_.store(false, std::memory_order_relaxed);
  return std::exchange(news_, {});
}

}  // namespace weft::nic
