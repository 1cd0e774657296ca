// cpp/nic/window.hpp: a pointer to a peer's memory that outlives the call that returned it.
#pragma once

#include <memory>

#include "link/link.hpp"
#include "mem/table.hpp"

namespace weft::nic {

// Keeps a place mapped here, and keeps its owner from reusing the place for another region.
class Hold {
 public:
  // `hold`: index in this process's table; Table::kNoHold: the place is not in a segment. `key` and `state`: values of
  // the region's entry when the pointer was made.
  Hold(mem::Table& table, uint32_t hold, std::shared_ptr<link::Peer> peer, const mem::MrEntry* entry, uint64_t key,
       uint64_t state) noexcept
      : table_(table), hold_(hold), peer_(std::move(peer)), entry_(entry), key_(key), state_(state) {}
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  [[nodiscard]] link::Peer& peer() const noexcept { return *peer_; }
  // True if the region is unchanged and its owner alive. False: the pointer is still safe to use (the place is not
  // reused), but the owner no longer uses the memory.
  [[nodiscard]] bool current() const noexcept {
    const uint64_t now = entry_->state.load(std::memory_order_acquire);
    return !peer_->dead() && mem::state_of(now) == mem::MrState::enabled &&
           mem::generation_of(now) == mem::generation_of(state_) && mem::load_relaxed(entry_->key) == key_;
  }

 private:
  mem::Table& table_;
  uint32_t hold_;
  std::shared_ptr<link::Peer> peer_;  // its table and segments stay mapped
  const mem::MrEntry* entry_;
  uint64_t key_, state_;
};

}  // namespace weft::nic
