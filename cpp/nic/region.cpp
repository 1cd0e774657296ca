// cpp/nic/region.cpp: the life of a region: bound, enabled, disabled, closed.
#include "nic/region.hpp"

#include <algorithm>

#include "base/backoff.hpp"
#include "nic/nic.hpp"

namespace weft::nic {

void MemoryRegion::bind_endpoint(const Endpoint& ep) {
  if (closed() || enabled_) throw Error(fi_err::kEOPBADSTATE, "bind a region before it is enabled");
  if (!ep.enabled()) throw Error(fi_err::kEOPBADSTATE, "bind a region to an endpoint that is enabled");
  const uint32_t binding = mem::ep_binding(ep.index(), ep.generation());
  if (std::ranges::find(eps_, binding) == eps_.end()) eps_.push_back(binding);
}

bool MemoryRegion::hold() noexcept {
  Backoff backoff;
  for (;;) {
    Life life = Life::open;
    if (life_.compare_exchange_strong(life, Life::held, std::memory_order_acquire)) return true;
    if (life == Life::closed) return false;
    backoff.pause();  // another thread is at it
  }
}

void MemoryRegion::enable() {
  if (!hold()) throw Error(fi_err::kEOPBADSTATE, "the region is closed");
  try {
    make_usable();
  } catch (...) {  // no room for the list of endpoints
    let_go(Life::open);
    throw;
  }
  let_go(Life::open);
}

void MemoryRegion::make_usable() {
  if (enabled_) return;
  if (remote_) {
    if (!eps_.empty()) domain_->nic_->table().bind_eps(slot_, eps_);
    domain_->nic_->table().enable(slot_);
  }
  enabled_ = true;
}

bool MemoryRegion::disable(std::string* why) {
  if (!hold()) throw Error(fi_err::kEOPBADSTATE, "the region is closed");
  bool done = true;
  if (enabled_ && remote_) {
    domain_->nic_->table().disable(slot_);
    *why = domain_->nic_->quiesce(slot_);
    done = why->empty();
    if (!done) domain_->nic_->table().enable(slot_);
  }
  if (done) enabled_ = false;
  let_go(Life::open);
  return done;
}

uint64_t MemoryRegion::base() const noexcept {
  return remote_ && !closed() ? mem::load_relaxed(domain_->nic_->table().mr(slot_).base) : 0;
}

bool MemoryRegion::used_up() const noexcept {
  if (!remote_ || closed()) return false;
  const mem::MrEntry& e = domain_->nic_->table().mr(slot_);
  return (mem::load_relaxed(e.access) & mem::kMrSingleUse) != 0 &&
         mem::state_of(e.state.load(std::memory_order_acquire)) == mem::MrState::closing;
}

bool MemoryRegion::close(std::string* why) {
  if (!hold()) return true;
  const bool revoked = !remote_ || revoke(why);
  let_go(revoked ? Life::closed : Life::open);
  return revoked;
}

bool MemoryRegion::revoke(std::string* why) {
  Nic& nic = *domain_->nic_;
  if (enabled_) {
    nic.table().begin_close(slot_);
    *why = nic.quiesce(slot_);
    if (!why->empty()) {
      nic.table().reopen(slot_);
      return false;
    }
  }
  if (!counters_.empty()) {  // before the slot can be another region's
    const std::lock_guard objects(nic.objects_mutex_);
    nic.counted_regions_.erase(slot_);
  }
  nic.table().release(slot_);
  return true;
}

}  // namespace weft::nic
