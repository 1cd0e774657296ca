// cpp/nic/nic.cpp: the NIC's objects by number, its statistics, and fork().
#include "nic/nic.hpp"

#include <algorithm>

#include "nic/parking.hpp"

namespace weft::nic {

namespace {

class NoWorld final : public sync::World {
 public:
  [[nodiscard]] sync::Who self() const noexcept override { return {}; }
  [[nodiscard]] bool gone(sync::Who) noexcept override { return false; }
  [[nodiscard]] uint64_t now_ns() noexcept override { return 0; }
  void fence_all() noexcept override {}
};
// Not inside world(), where the engine's first call would make the object: after a fork at this instant the child would
// see the object under construction for ever, and its own engine would wait for it.
NoWorld g_no_world;

}  // namespace

Nic::Nic(Parts parts, Limits limits)
    : parts_(std::move(parts)),
      limits_(limits),
      parking_(std::make_unique<Parking>(this)),
      eps_(mem::kEpCountMax),
      domains_(mem::kDomainCountMax),
      live_eps_(mem::kEpCountMax),
      ports_(mem::kEpCountMax) {}

Nic::~Nic() {
  stop_engine();
}

sync::World& Nic::world() noexcept {
  return parts_.world != nullptr ? *parts_.world : g_no_world;
}

void Nic::add_domain(Domain* domain) {
  const Guard objects(objects_mutex_);
  for (uint32_t i = 0; i < domains_.size(); ++i) {
    if (domains_[i].load(std::memory_order_relaxed) != nullptr) continue;
    domain->place(i, &table().own_activity(i), next_op_);
    // SYNC POINT: the domain is complete before a frame, or another thread, finds it here.
    domains_[i].store(domain, std::memory_order_release);
    return;
  }
  throw Error(fi_err::kENOSPC, "all " + std::to_string(domains_.size()) + " domains of this NIC are open: close some");
}

void Nic::remove_domain(Domain* domain) noexcept {
  {
    const Guard objects(objects_mutex_);
    if (domains_[domain->index()].load(std::memory_order_relaxed) != domain) return;
    domains_[domain->index()].store(nullptr, std::memory_order_relaxed);
    next_op_ = std::max(next_op_, domain->operations().next());
  }
  end_frames();  // the frame under way may have found the domain
}

NicStatistics Nic::statistics() {
  NicStatistics s;
  const Guard objects(objects_mutex_);
  for (const std::atomic<Domain*>& slot : domains_) {
    Domain* const domain = slot.load(std::memory_order_relaxed);
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    s.direct_ops += domain->statistics.direct.value();
    s.cma_ops += domain->statistics.cma.value();
    s.framed_ops += domain->statistics.framed.value();
    s.failed_ops += domain->statistics.failed.value();
    s.bytes += domain->statistics.bytes.value();
  }
  s.frames_served = frames_served_.value();
  s.engine_wakes = engine_wakes_.load(std::memory_order_relaxed);
  s.helped_ops = helped_ops_.load(std::memory_order_relaxed);
  s.waiting_ops = waiting_ops_.load(std::memory_order_relaxed);
  s.deferred = deferred_count_.load(std::memory_order_relaxed);
  for (link::Link* link : parts_.links) {
    for (const auto& peer : link->peers()) s.peers += peer->same_process ? 0 : 1;
  }
  s.regions = table().live_count();
  s.allocated_bytes = segments().allocated_bytes();
  s.resting_bytes = segments().resting_bytes();
  return s;
}

void Nic::before_fork() {
  progress_mutex_.lock_at_fork();
  for (link::Link* link : parts_.links) link->before_fork();
}

void Nic::after_fork_in_parent() noexcept {
  for (link::Link* link : parts_.links) link->after_fork_in_parent();
  progress_mutex_.unlock_after_fork();
}

void Nic::after_fork_in_child() noexcept {
  if (engine_.joinable()) engine_.detach();  // the thread does not exist in the child
  for (link::Link* link : parts_.links) link->after_fork_in_child();
  table().close_fd();
  segments().close_fds();
}

std::optional<mem::DeviceMemory> Nic::device_memory(uint64_t address, uint64_t length) {
  const mem::Devices& devices = *parts_.devices;
  mem::RegistrationCache* cache = parts_.cache;
  if (!devices.any()) return std::nullopt;
  if (cache != nullptr) {
    for (uint32_t iface = 1; iface < mem::kHmemIfaceCount; ++iface) {
      if (devices.runtime(iface) == nullptr) continue;
      // The cache stores all devices under device 0: with unified addressing no two devices share an address.
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
  if (at > found->length || length > found->length - at) return found;  // the range passes the allocation: not cached
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

void Nic::publish(const std::shared_ptr<Endpoint>& ep) {
  objects_mutex_.assert_held();
  const uint32_t index = ep->index();
  if (ep->port() != nullptr) ports_[index].store(ep->port(), std::memory_order_release);
  eps_[index] = ep;
  live_eps_[index].store(ep.get(), std::memory_order_release);
}

void Nic::withdraw(uint32_t index) noexcept {
  objects_mutex_.assert_held();
  eps_[index] = nullptr;
  live_eps_[index].store(nullptr, std::memory_order_relaxed);
  ports_[index].store(nullptr, std::memory_order_release);
}

}  // namespace weft::nic
