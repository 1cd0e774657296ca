// cpp/nic/revoke.cpp: waits until all accesses that began before a revocation have ended.
#include <algorithm>

#include "base/backoff.hpp"
#include "nic/nic.hpp"

namespace weft::nic {

namespace {

constexpr uint64_t kAnySlot = 0xffffff;  // long activity that covers several regions

// Whether a word of activity says that a region is in use: any region, where the word is a domain's lock.
bool concerns(uint32_t index, uint64_t word, uint32_t slot) noexcept {
  const uint64_t of = word >> 1 & 0xffffff;
  return (word & 1) != 0 && (index < mem::kDomainCountMax || of == kAnySlot || of == slot);
}

}  // namespace

uint32_t Nic::begin_long_activity(uint32_t slot) noexcept {
  // Requires a domain's lock, so only different domains contend. A free word is even.
  const uint64_t coded = slot == mem::TableView::kNoSlot ? kAnySlot : slot;
  for (uint32_t at = 0;; ++at) {  // take the first free word, so that quiesce() reads few words
    const uint32_t index = mem::kDomainCountMax + at % mem::kLongActivityCount;
    auto& word = table().own_activity(index).word;
    uint64_t old = word.load(std::memory_order_relaxed);
    if ((old & 1) != 0) {
      cpu_relax();
      continue;
    }
    const uint64_t sequence = (old >> 25) + 1;
    if (word.compare_exchange_strong(old, sequence << 25 | coded << 1 | 1, std::memory_order_seq_cst)) return index;
  }
}

void Nic::end_long_activity(uint32_t index) noexcept {
  auto& word = table().own_activity(index).word;
  word.store(word.load(std::memory_order_relaxed) & ~uint64_t{1}, std::memory_order_release);
}

bool Nic::quiet(uint32_t slot) noexcept {
  if (!serve_lock_.try_lock()) return false;
  serve_lock_.unlock();
  if (late_writes_.load(std::memory_order_relaxed) != 0) return false;
  const auto idle = [](const link::Peer& peer, uint32_t of) {
    return !peer.table.valid() ||
           peer.table.each_activity([of](uint32_t i, uint64_t word) { return !concerns(i, word, of); });
  };
  return std::ranges::all_of(parts_.links, [&](const link::Link* link) { return link->each_peer(idle, slot); });
}

std::string Nic::quiesce(uint32_t slot) {
  if (quiet(slot)) return {};
  {
    const Guard serving(serve_lock_);
  }
  uint64_t deadline = 0;
  for (link::Link* link : parts_.links) {
    for (const auto& peer : link->users()) {
      // Waits until one word of the peer changes; false: the deadline has passed.
      const auto wait_for = [&](uint32_t index, uint64_t seen) {
        if (!concerns(index, seen, slot)) return true;
        const auto& word = peer->table.activity(index).word;
        if (deadline == 0) deadline = parts_.clock->now_ns() + limits_.close_wait_ns;
        Backoff backoff(256, 1024);
        while (word.load(std::memory_order_acquire) == seen && (!peer->dead() || peer->lingers())) {
          backoff.pause();
          if (backoff.sleeping()) progress();  // the peer may be dead; without an engine only this call notices
          if (backoff.sleeping() && parts_.clock->now_ns() > deadline) return false;
        }
        return true;
      };
      if (peer->table.valid() && !peer->table.each_activity(wait_for)) {
        return peer->describe() + " has been copying to or from it for longer than " +
               std::to_string(limits_.close_wait_ns / 1'000'000'000) + " s (is it stopped?)";
      }
    }
  }
  return {};
}

}  // namespace weft::nic
