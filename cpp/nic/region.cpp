// cpp/nic/region.cpp: the life of a region: bound, enabled, disabled, closed.
#include "nic/region.hpp"

#include <algorithm>

#include "base/backoff.hpp"
#include "nic/nic.hpp"

namespace weft::nic {

void MemoryRegion::bind_endpoint(const Endpoint& ep) {
  if (state_.load(std::memory_order_acquire) != State::disabled)
    throw Error(fi_err::kEOPBADSTATE, "bind a region before it is enabled");
  if (!ep.enabled()) throw Error(fi_err::kEOPBADSTATE, "bind a region to an endpoint that is enabled");
  const uint32_t binding = mem::ep_binding(ep.index(), ep.generation());
  if (std::ranges::find(eps_, binding) == eps_.end()) eps_.push_back(binding);
}

MemoryRegion::State MemoryRegion::begin_change() noexcept {
  Backoff backoff;
  for (;;) {
    State state = state_.load(std::memory_order_acquire);
    if (state == State::closed) return state;
    if (state != State::changing && state_.compare_exchange_strong(state, State::changing, std::memory_order_acquire)) {
      return state;
    }
    backoff.pause();  // another thread is at it
  }
}

void MemoryRegion::enable() {
  const State before = begin_change();
  if (before == State::closed) throw Error(fi_err::kEOPBADSTATE, "the region is closed");
  try {
    if (before == State::disabled) publish();
  } catch (...) {  // no room for the list of endpoints
    end_change(before);
    throw;
  }
  end_change(State::enabled);
}

// Lets peers reach the region.
void MemoryRegion::publish() {
  if (!remote_) return;
  if (!eps_.empty()) domain_->nic_->table().bind_eps(slot_, eps_);
  domain_->nic_->table().enable(slot_);
}

bool MemoryRegion::disable(std::string* why) {
  const State before = begin_change();
  if (before == State::closed) throw Error(fi_err::kEOPBADSTATE, "the region is closed");
  if (before == State::enabled && remote_) {
    domain_->nic_->table().disable(slot_);
    *why = domain_->nic_->quiesce(slot_);
    if (!why->empty()) {
      domain_->nic_->table().enable(slot_);
      end_change(before);
      return false;
    }
  }
  end_change(State::disabled);
  return true;
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
  const State before = begin_change();
  if (before == State::closed) return true;
  const bool revoked = !remote_ || revoke(before == State::enabled, why);
  end_change(revoked ? State::closed : before);
  return revoked;
}

bool MemoryRegion::revoke(bool was_enabled, std::string* why) {
  Nic& nic = *domain_->nic_;
  if (was_enabled) {
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
