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
#include "nic/queue.hpp"

namespace weft::nic {

class Nic;
class Domain;
class Endpoint;

// A registered region. Its state is here alone; the entry in the table says what peers may do with it at the moment.
class MemoryRegion : public std::enable_shared_from_this<MemoryRegion> {
 public:
  MemoryRegion(Domain* domain, std::span<const mem::MrBuffer> buffers, uint32_t slot, uint64_t key, uint32_t access,
               bool remote)
      : domain_(domain), slot_(slot), key_(key), access_(access), remote_(remote) {
    if (buffers.size() == 1) {
      only_ = buffers[0];
    } else {
      several_.assign(buffers.begin(), buffers.end());
    }
  }

  void bind_endpoint(const Endpoint& ep);
  void enable();
  // Takes access away until enable(); returns when no copy is running any more. Fails as close() does: false and *why.
  bool disable(std::string* why);
  // Revokes the key, waits until no copy is running, frees the entry. False when a peer did not finish in time: the
  // region is then as before and *why names the peer. Call without any lock of the NIC. When several threads call, one
  // closes and the others wait for it.
  bool close(std::string* why);

  [[nodiscard]] uint64_t key() const noexcept { return key_; }
  // What peers call its first byte.
  [[nodiscard]] uint64_t base() const noexcept;
  [[nodiscard]] uint32_t access() const noexcept { return access_; }
  [[nodiscard]] bool enabled() const noexcept { return state_.load(std::memory_order_acquire) == State::enabled; }
  // A single-use region whose one operation was done.
  [[nodiscard]] bool used_up() const noexcept;
  [[nodiscard]] bool closed() const noexcept { return state_.load(std::memory_order_acquire) == State::closed; }
  [[nodiscard]] std::span<const mem::MrBuffer> buffers() const noexcept {
    return several_.empty() && only_ ? std::span(&*only_, 1) : std::span(several_);
  }
  [[nodiscard]] Domain* domain() const noexcept { return domain_; }

 private:
  friend class Nic;
  friend class Domain;
  // disabled <-> enabled; either -> closed. changing: a thread enables, disables or closes, and others wait for it.
  enum class State : uint8_t { disabled, enabled, changing, closed };
  // Begins a change; returns the state before, closed if there is nothing to change any more. end_change() ends it.
  State begin_change() noexcept;
  void end_change(State state) noexcept { state_.store(state, std::memory_order_release); }
  void publish();
  bool revoke(bool was_enabled, std::string* why);

  Domain* domain_;
  std::optional<mem::MrBuffer> only_;  // nearly every region has one buffer: no allocation for it
  std::vector<mem::MrBuffer> several_;
  uint32_t slot_;
  uint64_t key_;
  uint32_t access_;
  bool remote_;  // has an entry in the table
  std::atomic<State> state_{State::disabled};
  std::vector<uint32_t> eps_;  // mem::ep_binding() of the endpoints that it is bound to; none: any of the domain
  struct BoundCounter {
    std::shared_ptr<Counter> counter;
    uint64_t flags;  // kRemoteRead, kRemoteWrite
  };
  std::vector<BoundCounter> counters_;
};

struct RegionExtra {                         // what few regions have
  std::span<const mem::DeviceNote> notes{};  // of the buffers; iface 0: the host's
  const mem::AccessGuard* guard = nullptr;
  std::optional<uint64_t> base;  // under virtual addressing: address of the first byte, where it is not mapped there
};

}  // namespace weft::nic
