// cpp/ofi/slots.hpp: the contexts of operations under way.
//
// Under FI_CONTEXT and FI_CONTEXT2 the library writes to the struct that an operation's context points to, until the
// operation has completed. A slot is such a struct, with what the operation holds: the application's context and the
// objects that own its buffers, as opaque numbers. Slots belong to the completion queue that will report the operation,
// and stay where they are: a late completion of a closed endpoint still finds its slot.
//
// Threads: the caller serialises all calls. Cost: take() and give() touch the slot alone.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace weft::ofi {

constexpr size_t kIovMax = 16;  // most buffers of a list

// What owns the buffers of an operation, taken out of its slot.
struct Owners {
  uint64_t held[2];
  std::unique_ptr<std::vector<uint64_t>> more;

  template <typename Drop>
  void each(Drop&& drop) const {
    for (const uint64_t owner : held) {
      if (owner != 0) drop(owner);
    }
    if (more == nullptr) return;
    for (const uint64_t owner : *more) drop(owner);
  }
};

struct alignas(64) Slot {
  void* internal[8];                      // struct fi_context2: the library's
  uint64_t context = 0;                   // the application's context; 0: none
  uint64_t held[2] = {};                  // owners of buffers
  std::vector<uint64_t>* more = nullptr;  // further owners
  const void* endpoint = nullptr;         // whose operation it is; null: the endpoint is closed
  uint64_t sequence = 0;                  // order of posting
  Slot* next_free = nullptr;
  bool busy = false;
  bool receives = false;
  bool silent = false;                                                  // the application wants no entry of a success
  bool multi = false;                                                   // FI_MULTI_RECV: has several completions
  bool large = false;                                                   // of many bytes
  enum class Claim : uint8_t { none, peeks, has } claim = Claim::none;  // FI_PEEK with FI_CLAIM, and its message
  // A cache line for the library, and one for us.

  void hold(uint64_t owner) {
    for (uint64_t& place : held) {
      if (place == 0) {
        place = owner;
        return;
      }
    }
    if (more == nullptr) more = new std::vector<uint64_t>;
    more->push_back(owner);
  }
  // Forgets the owners. Dropping them may run Python code, which may use or close the queue: give the slot back first.
  Owners take_owners() noexcept {
    return {{std::exchange(held[0], 0), std::exchange(held[1], 0)},
            std::unique_ptr<std::vector<uint64_t>>(std::exchange(more, nullptr))};
  }
};

static_assert(sizeof(Slot) == 128);

class Slots {
 public:
  Slots() = default;
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;
  ~Slots();

  // HOT. A free slot.
  [[gnu::always_inline]] Slot* take(const void* endpoint) {
    if (free_ == nullptr) [[unlikely]]
      grow();
    Slot* slot = free_;
    assert(!slot->busy && "a free slot is in the list once");
    free_ = slot->next_free;
    if (free_ != nullptr) __builtin_prefetch(&free_->context, 1);  // of the next call
    slot->endpoint = endpoint;
    slot->busy = true;
    slot->sequence = ++sequence_;
    ++busy_;
    return slot;
  }
  // HOT. Ends a slot, whose owners and context have been taken out.
  void give(Slot* slot) noexcept {
    assert(slot->busy && busy_ != 0 && "a slot is given back once");
    assert(slot->held[0] == 0 && slot->more == nullptr && "its owners have been taken out");
    slot->context = 0;
    slot->busy = slot->receives = slot->silent = slot->multi = slot->large = false;
    slot->claim = Slot::Claim::none;
    slot->next_free = free_;
    free_ = slot;
    --busy_;
  }
  // The slot in use that a completion's context points to; null: the completion is not of an operation of ours.
  [[nodiscard]] Slot* find(const void* context) const noexcept {
    for (const Slab& slab : slabs_) {
      const auto at = reinterpret_cast<uintptr_t>(context) - reinterpret_cast<uintptr_t>(slab.slots.get());
      if (at < slab.count * sizeof(Slot)) {
        Slot* slot = slab.slots.get() + at / sizeof(Slot);
        return at % sizeof(Slot) == 0 && slot->busy ? slot : nullptr;
      }
    }
    return nullptr;
  }
  // Another context of a slot: of deferred work, whose context is in its own struct.
  void name(const void* context, Slot* slot) {
    assert(slot->busy && "the slot has an operation");
    named_.emplace_back(context, slot);
  }
  // The slot that such a context names, which it then names no more; null: none.
  Slot* unname(const void* context) noexcept {
    for (auto one = named_.begin(); one != named_.end(); ++one) {
      if (one->first != context) continue;
      Slot* slot = one->second;
      named_.erase(one);
      return slot;
    }
    return nullptr;
  }
  [[nodiscard]] size_t busy() const noexcept { return busy_; }
  // Calls visit(slot) for each slot in use.
  template <typename Visit>
  void each(Visit&& visit) const {
    for (size_t s = 0; s < slabs_.size(); ++s) {
      for (size_t i = 0; i < slabs_[s].count; ++i) {
        Slot& slot = slabs_[s].slots[i];
        if (slot.busy) visit(&slot);
      }
    }
  }

 private:
  struct Slab {
    std::unique_ptr<Slot[]> slots;
    size_t count;
  };
  void grow();

  std::vector<Slab> slabs_;
  std::vector<std::pair<const void*, Slot*>> named_;
  Slot* free_ = nullptr;
  uint64_t sequence_ = 0;
  size_t busy_ = 0;
};

}  // namespace weft::ofi
