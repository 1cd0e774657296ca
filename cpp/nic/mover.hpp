// cpp/nic/mover.hpp: how an endpoint's bytes reach a peer's memory without the peer: by loads and stores, through the
// kernel, through a device's runtime; or not at all, and then frames carry them.
//
// Callers hold the domain's lock. The reach of a region is asked here alone; a new way (between two devices, say) is a
// new case of reach.hpp and of this file.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <span>

#include "nic/args.hpp"
#include "nic/model.hpp"
#include "nic/op.hpp"
#include "nic/reach.hpp"
#include "nic/route.hpp"
#include "wire/address.hpp"

namespace weft::nic {

class CompletionQueue;
class Domain;
class Nic;

class Mover {
 public:
  // done: only a completion is due. failed: `status` tells why. frames: the owner's engine has to do it. park: later,
  // when a segment is mapped or the peer's queue has room. no_room: the bytes have moved, and the notice is still due.
  enum class Moved : uint8_t { done, failed, frames, park, no_room };
  struct Transfer {
    OpKind kind = OpKind::write;  // or read
    std::span<const iovec> local;
    std::span<const wire::RmaRange> remote;
    uint64_t total = 0;  // bytes of either list
    uint64_t flags = 0, imm = 0;
    uint8_t device = 0;       // bit i: local[i] is device memory
    bool may_unlock = false;  // a long copy may be made outside the lock
  };

  Mover(Domain* domain, Model& model) noexcept : domain_(domain), model_(model) {}

  // The endpoint is enabled, with this address. The queue keeps room for the error of a long copy.
  void open(const wire::EpAddress& address, CompletionQueue* errors) noexcept {
    address_ = address;
    errors_ = errors;
    open_ = true;
  }
  void close() noexcept { open_ = false; }

  // HOT. A pointer for loads and stores of `length` bytes at addr that need no notice to the owner; null: take the long
  // way. Requires that the links are up (Model::flows), and that keys are no handles.
  // by_kernel: an address of the owner's process, for the kernel's copy.
  static std::byte* pointer(const Route& route, uint64_t key, uint64_t addr, uint64_t length, uint32_t want,
                            bool by_kernel = false) noexcept;
  // Checks the region and makes its translation; null if loads and stores cannot do the access.
  std::byte* learn(Route& route, uint64_t key, uint64_t addr, uint64_t length, uint32_t want) noexcept;
  // HOT. Memory of the route's peer has changed by our stores: its NIC looks at the calls that wait for it.
  static void tell_changed(Route& route) noexcept;

  // A copy by the kernel, outside the lock, by a known translation. False: move() does it, again if need be.
  bool copied_by_kernel(const std::shared_ptr<Flow>& of, OpKind kind, const iovec& here, uint64_t addr, uint64_t key,
                        uint64_t flags);
  Moved move(Flow& flow, const Transfer& transfer, Status* status);
  Moved update(Route& route, const AtomicArgs& args, uint64_t total, Status* status);
  // The notice of an access, for an owner that counts accesses or gets data.
  Status notify(Route& route, bool read, bool atomic, const wire::RmaRange& range, uint64_t total, bool has_data,
                uint64_t imm, AtomicOp op = {});

  // One long copy, made outside the lock under an activity of its own: a region that is being closed waits for it.
  // slot: of the region in the peer's table, or kNoSlot for several. Throws nothing of its own.
  template <typename Copy>
  auto copy_unlocked(Flow& flow, OpClass c, uint32_t slot, Copy&& copy);
  // Long copies of other threads are under way. Any thread.
  [[nodiscard]] bool copies() const noexcept { return long_copies_.load(std::memory_order_acquire) != 0; }

  // The endpoint's address, as the peer's VNI has it.
  [[nodiscard]] wire::EpAddress seen_by(const Route& route) const noexcept {
    return {address_.nic, address_.pid, route.address.vni, 0};
  }

 private:
  static void remember(Route& route, const mem::MrView& view, uint64_t key);
  static void wake_parked(Route& route) noexcept;

  Domain* domain_;
  Model& model_;
  CompletionQueue* errors_ = nullptr;
  wire::EpAddress address_;
  std::atomic<uint32_t> long_copies_{0};
  bool open_ = false;
};

// Reads the cached translation, the owner's region entry and endpoint entry (shared lines); stores nothing.
[[gnu::always_inline]] inline std::byte* Mover::pointer(const Route& route, uint64_t key, uint64_t addr,
                                                        uint64_t length, uint32_t want, bool by_kernel) noexcept {
  const Translation& t = route.translations[translation_of(key)];
  if (t.key != key || t.entry == nullptr) return nullptr;
  // SYNC POINT: read after taking the domain's lock: either the owner sees us busy, or we see the key revoked.
  if (t.entry->state.load(std::memory_order_acquire) != t.state) return nullptr;
  if (route.ep_entry->generation.load(std::memory_order_relaxed) != route.ep_generation) return nullptr;
  const uint64_t offset = addr - t.base;
  if (((by_kernel ? t.by_kernel : t.allowed) & want) != want || offset > t.length || length > t.length - offset)
    return nullptr;
  return t.pointer + offset;
}

[[gnu::always_inline]] inline void Mover::tell_changed(Route& route) noexcept {
  // SYNC POINT: the stores come before this load, as far as the compiler goes; the NIC that parks a watch makes all
  // processors pass a barrier (World::fence_all) before it looks at the memory, so one of the two sees the other.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (route.parked != nullptr && route.parked->load(std::memory_order_relaxed) != 0) [[unlikely]]
    wake_parked(route);
}

}  // namespace weft::nic
