// cpp/nic/revoke.cpp: waits until all accesses that began before a revocation have ended.
#include <algorithm>

#include "base/backoff.hpp"
#include "nic/nic.hpp"

namespace weft::nic {

namespace {

constexpr uint64_t kAnySlot = 0xffffff;  // long activity that covers several regions

uint64_t activity_slot(uint64_t word) noexcept {
  return word >> 1 & 0xffffff;
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
    if (!peer.table.valid()) return true;
    const mem::TableHeader& header = peer.table.header();  // in the order of quiesce()
    const uint32_t domains = std::min(header.domains_used.load(std::memory_order_seq_cst), mem::kDomainCountMax);
    for (uint32_t i = 0; i < domains; ++i) {
      if ((peer.table.activity(i).word.load(std::memory_order_seq_cst) & 1) != 0) return false;
    }
    const uint32_t longs = std::min(header.longs_used.load(std::memory_order_seq_cst), mem::kLongActivityCount);
    for (uint32_t i = 0; i < longs; ++i) {
      const uint64_t seen = peer.table.activity(mem::kDomainCountMax + i).word.load(std::memory_order_seq_cst);
      if ((seen & 1) != 0 && (activity_slot(seen) == kAnySlot || activity_slot(seen) == of)) return false;
    }
    return true;
  };
  return std::ranges::all_of(parts_.links, [&](const link::Link* link) { return link->each_peer(idle, slot); });
}

std::string Nic::quiesce(uint32_t slot) {
  if (quiet(slot)) return {};
  {
    const Guard serving(serve_lock_);
  }
  uint64_t deadline = 0;
  // Waits until one word of a peer changes; false: the deadline has passed.
  const auto wait_for = [&](const link::Peer& peer, uint32_t index) {
    const auto& word = peer.table.activity(index).word;
    const uint64_t seen = word.load(std::memory_order_seq_cst);
    if ((seen & 1) == 0) return true;
    if (index >= mem::kDomainCountMax && activity_slot(seen) != kAnySlot && activity_slot(seen) != slot) return true;
    if (deadline == 0) deadline = parts_.clock->now_ns() + limits_.close_wait_ns;
    Backoff backoff(256, 1024);
    while (word.load(std::memory_order_acquire) == seen && !peer.dead()) {
      backoff.pause();
      if (backoff.sleeping()) progress();  // the peer may be dead; without an engine only this call notices
      if (backoff.sleeping() && parts_.clock->now_ns() > deadline) return false;
    }
    return true;
  };
  for (link::Link* link : parts_.links) {
    for (const auto& peer : link->peers()) {
      if (!peer->table.valid()) continue;
      // Check the domains' locks first, then the long copies: a long copy is announced before its lock is released. The
      // peer writes the counts, so limit them here.
      const mem::TableHeader& header = peer->table.header();
      const uint32_t domains = std::min(header.domains_used.load(std::memory_order_seq_cst), mem::kDomainCountMax);
      bool done = true;
      for (uint32_t i = 0; i < domains && done; ++i) done = wait_for(*peer, i);
      const uint32_t longs = std::min(header.longs_used.load(std::memory_order_seq_cst), mem::kLongActivityCount);
      for (uint32_t i = 0; i < longs && done; ++i) done = wait_for(*peer, mem::kDomainCountMax + i);
      if (!done) {
        return peer->describe() + " has been copying to or from it for longer than " +
               std::to_string(limits_.close_wait_ns / 1'000'000'000) + " s (is it stopped?)";
      }
    }
  }
  return {};
}

}  // namespace weft::nic
