// cpp/nic/region.hpp: a registered region.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mem/table.hpp"
#include "nic/counter.hpp"

namespace weft::nic {

class Nic;
class Domain;
class Endpoint;

// A registered region. Only this object holds its state; the entry in the table holds the current rights of peers.
class MemoryRegion : public std::enable_shared_from_this<MemoryRegion> {
 public:
  MemoryRegion(Domain* domain, std::span<const mem::MrBuffer> buffers, uint32_t slot, uint64_t key, uint32_t access,
               bool remote)
      : domain_(domain), key_(key), slot_(slot), access_(access), remote_(remote), single_(buffers.size() == 1) {
    if (single_) {
      only_ = buffers[0];
    } else {
      rare().buffers.assign(buffers.begin(), buffers.end());
    }
  }

  void bind_endpoint(const Endpoint& ep);
  // key: only for a region whose key is made when it is enabled (RegionExtra::later).
  void enable(std::optional<uint64_t> key = std::nullopt);
  // Replaces enable(): peers access the memory through a mapping, and the region gets the mapping's key. The region has
  // no table entry of its own, so closing it revokes no access.
  void enable_mapped(const std::shared_ptr<MemoryRegion>& mapping);
  // Revokes access until enable(); returns when no copy is running. Fails like close(): false and *why.
  bool disable(std::string* why);
  // Revokes the key, waits until no copy is running, frees the entry. False: a peer did not finish in time; the region
  // is then unchanged and *why names the peer. Call it without any lock of the NIC. If several threads call it, one
  // closes and the others wait.
  bool close(std::string* why);
  // close() where no copy is running and no other thread changes the region; otherwise false, and nothing has changed.
  // Waits only for short locks.
  bool close_at_once() noexcept;

  // kKeyNotAvail if peers have no right to the region, or if its key is not made yet.
  [[nodiscard]] uint64_t key() const noexcept { return key_.load(std::memory_order_relaxed); }
  // The address of the region's first byte in peers' requests.
  [[nodiscard]] uint64_t base() const noexcept;
  [[nodiscard]] uint32_t access() const noexcept { return access_; }
  [[nodiscard]] bool enabled() const noexcept { return state_.load(std::memory_order_acquire) == State::enabled; }
  // True for a single-use region after its one operation.
  [[nodiscard]] bool used_up() const noexcept;
  [[nodiscard]] bool closed() const noexcept { return state_.load(std::memory_order_acquire) == State::closed; }
  [[nodiscard]] std::span<const mem::MrBuffer> buffers() const noexcept {
    return single_ ? std::span(&only_, 1) : std::span<const mem::MrBuffer>(rare_->buffers);
  }
  // Whether it is bound to the endpoint of this mem::ep_binding().
  [[nodiscard]] bool bound_to(uint32_t binding) const noexcept;
  [[nodiscard]] Domain* domain() const noexcept { return domain_; }

 private:
  friend class Nic;
  friend class Domain;
  // disabled <-> enabled; either -> closed. changing: a thread enables, disables or closes, and others wait.
  enum class State : uint8_t { disabled, enabled, changing, closed };
  // Begins a change and returns the old state; `closed`: there is no change to make. end_change() ends the change.
  State begin_change() noexcept;
  void end_change(State state) noexcept { state_.store(state, std::memory_order_release); }
  // The data that publish() enters in the table for a region whose key is made late.
  struct Entry {
    uint64_t base = 0;
    uint32_t access = 0;
    std::vector<mem::DeviceNote> notes;
    std::optional<mem::AccessGuard> guard;
  };
  void enter(std::optional<uint64_t> key);
  void publish(std::optional<uint64_t> key);
  bool revoke(bool was_enabled, std::string* why);

  struct BoundCounter {
    std::shared_ptr<Counter> counter;
    uint64_t flags;  // kRemoteRead, kRemoteWrite
  };
  // Members that few regions use. A program may have millions of regions: the others leave this out.
  struct Rare {
    std::vector<mem::MrBuffer> buffers;     // unless there is exactly one
    std::unique_ptr<Entry> later;           // data of an entry that is not made yet
    std::shared_ptr<MemoryRegion> mapping;  // the mapping through which peers access the region
    std::vector<uint32_t> eps;              // bindings after the first
    std::vector<BoundCounter> counters;
  };
  Rare& rare() {
    if (rare_ == nullptr) rare_ = std::make_unique<Rare>();
    return *rare_;
  }
  [[nodiscard]] bool late() const noexcept { return rare_ != nullptr && rare_->later != nullptr; }
  [[nodiscard]] std::span<const BoundCounter> counters() const noexcept {
    return rare_ != nullptr ? std::span<const BoundCounter>(rare_->counters) : std::span<const BoundCounter>();
  }

  Domain* domain_;
  mem::MrBuffer only_;
  std::unique_ptr<Rare> rare_;
  std::atomic<uint64_t> key_;
  uint32_t slot_;
  uint32_t access_;
  uint32_t ep_ = 0;           // mem::ep_binding() of its first endpoint; 0: any endpoint of the domain
  std::atomic<bool> remote_;  // the region has a table entry
  bool single_;               // it has one buffer, only_
  std::atomic<State> state_{State::disabled};
};

// The table entry's flags for a counter of these accesses: kRemoteRead, kRemoteWrite.
uint32_t notify_flags(uint64_t flags) noexcept;

struct RegionExtra {                         // options that few regions use
  std::span<const mem::DeviceNote> notes{};  // one per buffer; iface 0: host memory
  const mem::AccessGuard* guard = nullptr;
  std::optional<uint64_t> base;  // virtual addressing: address of the first byte, if not the mapped address
  // The key is made when the region is enabled: until then it has no table entry. Requires `enabled` to be false.
  bool later = false;
  uint64_t before = 0;  // without virtual addressing: bytes from the region's first byte to peers' offset 0
};

}  // namespace weft::nic
