// cpp/nic/peer.hpp: the peer endpoint behind an entry of an address vector, and what is remembered of its regions.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "base/cache.hpp"
#include "base/status.hpp"
#include "link/link.hpp"
#include "mem/table.hpp"
#include "nic/op.hpp"
#include "wire/address.hpp"
#include "wire/key.hpp"

namespace weft::nic {

class Domain;

// What an initiator remembers of a region it reached by load and store. Valid while the owner's entry still has the
// same state word: then nothing about the region has changed.
struct alignas(kCacheLine) Translation {
  uint64_t key = 0;
  const mem::MrEntry* entry = nullptr;
  uint64_t state = 0;
  uint64_t base = 0;
  uint64_t length = 0;
  std::byte* pointer = nullptr;  // to the region's first byte
  uint32_t allowed = 0;          // the rights that are granted and need no notice
};
static_assert(sizeof(Translation) == kCacheLine);
constexpr size_t kTranslationCount = 4;
constexpr size_t translation_of(uint64_t key) noexcept {
  return (key ^ key >> wire::kKeySlotBits) & (kTranslationCount - 1);
}

// The peer endpoint behind one address-vector entry. Everything under the domain's lock.
struct PeerEp {
  wire::EpAddress address;
  bool ready = false;
  bool resolving = false;
  uint32_t ep_index = 0, ep_generation = 0;
  uint32_t outstanding = 0;  // operations under way: frames, and long copies
  uint32_t long_copies = 0;  // those of them that a thread is copying outside the lock
  uint32_t asked = 0;        // how many ways to find it were tried, the last of which is under way
  std::shared_ptr<link::Peer> peer;
  Status down = Status::ok;  // how the last way there ended
  std::deque<Op*> waiting;   // in order; the front may be partly submitted
  // Of a peer whose table is not shared: its queue takes no more data, and when to ask for room again.
  bool no_room = false;
  uint64_t ask_room_at_ns = 0, ask_room_wait_ns = 0;
  Domain* domain = nullptr;
  const mem::EpEntry* ep_entry = nullptr;  // in the peer's table; null where that is not shared
  Translation translations[kTranslationCount];

  void set_ready(std::shared_ptr<link::Peer> p, uint32_t index, uint32_t generation) {
    peer = std::move(p);
    ep_index = index;
    ep_generation = generation;
    ep_entry = peer->table.valid() ? &peer->table.ep(index) : nullptr;
    down = Status::ok;
    no_room = false;
    for (Translation& t : translations) t = {};
    ready = true;
  }
  // Whether the endpoint's queue takes entries of what is written with data.
  [[nodiscard]] bool takes_data() const noexcept {
    if (ep_entry == nullptr) return !no_room;
    return (ep_entry->flags.load(std::memory_order_acquire) & mem::kEpNoRoom) == 0 ||
           ep_entry->generation.load(std::memory_order_acquire) != ep_generation;
  }
  void set_lost() noexcept {
    ready = false;
    ep_entry = nullptr;
    for (Translation& t : translations) t = {};
  }
};

}  // namespace weft::nic
