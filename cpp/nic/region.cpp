// cpp/nic/region.cpp: the life of a region: bound, enabled, disabled, closed.
#include "nic/region.hpp"

#include <algorithm>

#include "base/backoff.hpp"
#include "nic/nic.hpp"

namespace weft::nic {

uint32_t notify_flags(uint64_t flags) noexcept {
  return ((flags & flag::kRemoteWrite) != 0 ? mem::kMrNotifyWrite : 0) |
         ((flags & flag::kRemoteRead) != 0 ? mem::kMrNotifyRead : 0);
}

void MemoryRegion::bind_endpoint(const Endpoint& ep) {
  if (state_.load(std::memory_order_acquire) != State::disabled)
    throw Error(fi_err::kEOPBADSTATE, "bind a region before it is enabled");
  if (!ep.enabled()) throw Error(fi_err::kEOPBADSTATE, "bind a region to an endpoint that is enabled");
  const uint32_t binding = mem::ep_binding(ep.index(), ep.generation());
  if (bound_to(binding)) return;
  if (ep_ == 0) {
    ep_ = binding;
  } else {
    rare().eps.push_back(binding);
  }
}

bool MemoryRegion::bound_to(uint32_t binding) const noexcept {
  return ep_ == binding || (rare_ != nullptr && std::ranges::find(rare_->eps, binding) != rare_->eps.end());
}

MemoryRegion::State MemoryRegion::begin_change() noexcept {
  Backoff backoff;
  for (;;) {
    State state = state_.load(std::memory_order_acquire);
    if (state == State::closed) return state;
    if (state != State::changing && state_.compare_exchange_strong(state, State::changing, std::memory_order_acquire)) {
      return state;
    }
    backoff.pause();  // another thread is changing the region
  }
}

void MemoryRegion::enable(std::optional<uint64_t> key) {
  const State before = begin_change();
  if (before == State::closed) throw Error(fi_err::kEOPBADSTATE, "the region is closed");
  try {
    if (before == State::disabled) publish(key);
  } catch (...) {  // the key is in use, or there is no room for an entry or for the list of endpoints
    end_change(before);
    throw;
  }
  end_change(State::enabled);
}

void MemoryRegion::enable_mapped(const std::shared_ptr<MemoryRegion>& mapping) {
  const State before = begin_change();
  if (before == State::closed) throw Error(fi_err::kEOPBADSTATE, "the region is closed");
  if (before == State::disabled && !late()) {
    end_change(before);
    throw Error(fi_err::kEINVAL,
                "the region already has a table entry: only a region whose key is made late can use a mapping");
  }
  if (before == State::disabled) {
    rare_->later = nullptr;
    rare_->mapping = mapping;
    key_.store(mapping->key(), std::memory_order_relaxed);
  }
  end_change(State::enabled);
}

// Enters a region with a late key in the table. Peers find the region disabled until publish() is done.
void MemoryRegion::enter(std::optional<uint64_t> key) {
  Nic& nic = *domain_->nic();
  if (domain_->config().prov_key == key.has_value() || key == wire::kKeyNotAvail) {
    throw Error(fi_err::kEINVAL, domain_->config().prov_key ? "the keys of this domain are made by the NIC"
                                                            : "a key is needed to enable the region");
  }
  const Guard objects(nic.objects_mutex_);  // excludes a thread that binds a counter now
  mem::MrRequest request;
  request.buffers = buffers();
  Entry& later = *rare_->later;
  request.base = later.base;
  request.access = later.access;
  request.domain = static_cast<uint16_t>(domain_->index());
  request.notes = later.notes;
  request.guard = later.guard ? &*later.guard : nullptr;
  request.client_key = key;
  request.fetches_need_both = domain_->config().fetches_need_both;
  for (const BoundCounter& bound : counters()) request.access |= notify_flags(bound.flags);
  slot_ = nic.table().insert(request);
  key_.store(nic.table().mr(slot_).key, std::memory_order_relaxed);
  remote_.store(true, std::memory_order_relaxed);
  rare_->later = nullptr;
  if (!counters().empty()) nic.counted_regions_[slot_] = weak_from_this();
}

// Enables the region for peers.
void MemoryRegion::publish(std::optional<uint64_t> key) {
  if (late()) enter(key);
  if (!remote_) return;
  if (ep_ != 0 && rare_ != nullptr && !rare_->eps.empty()) {
    std::vector<uint32_t> all{ep_};
    all.insert(all.end(), rare_->eps.begin(), rare_->eps.end());
    domain_->nic()->table().bind_eps(slot_, all);
  } else if (ep_ != 0) {
    domain_->nic()->table().bind_eps(slot_, {&ep_, 1});
  }
  domain_->nic()->table().enable(slot_);
}

bool MemoryRegion::disable(std::string* why) {
  const State before = begin_change();
  if (before == State::closed) throw Error(fi_err::kEOPBADSTATE, "the region is closed");
  if (before == State::enabled && remote_) {
    domain_->nic()->table().disable(slot_);
    domain_->nic()->land_late();
    *why = domain_->nic()->quiesce(slot_);
    if (!why->empty()) {
      domain_->nic()->table().enable(slot_);
      end_change(before);
      return false;
    }
  }
  end_change(State::disabled);
  return true;
}

uint64_t MemoryRegion::base() const noexcept {
  return remote_ && !closed() ? mem::load_relaxed(domain_->nic()->table().mr(slot_).base) : 0;
}

bool MemoryRegion::used_up() const noexcept {
  return remote_ && !closed() && domain_->nic()->table().used_up(slot_);
}

bool MemoryRegion::close(std::string* why) {
  const State before = begin_change();
  if (before == State::closed) return true;
  const bool revoked = !remote_ || revoke(before == State::enabled, why);
  end_change(revoked ? State::closed : before);
  return revoked;
}

bool MemoryRegion::close_at_once() noexcept {
  State before = state_.load(std::memory_order_acquire);
  if (before == State::closed) return true;
  if (before == State::changing || !counters().empty() ||
      !state_.compare_exchange_strong(before, State::changing, std::memory_order_acquire)) {
    return false;
  }
  if (remote_) {
    mem::Table& table = domain_->nic()->table();
    if (before == State::enabled) {
      table.begin_close(slot_);
      if (!domain_->nic()->quiet(slot_)) {
        table.reopen(slot_);
        end_change(before);
        return false;
      }
    }
    table.release(slot_);
    domain_->nic()->wake_parked();
  }
  end_change(State::closed);
  return true;
}

bool MemoryRegion::revoke(bool was_enabled, std::string* why) {
  Nic& nic = *domain_->nic();
  if (was_enabled) {
    nic.table().begin_close(slot_);
    nic.land_late();
    *why = nic.quiesce(slot_);
    if (!why->empty()) {
      nic.table().reopen(slot_);
      return false;
    }
  }
  if (!counters().empty()) {  // before another region can get the slot
    const Guard objects(nic.objects_mutex_);
    nic.counted_regions_.erase(slot_);
  }
  nic.table().release(slot_);
  nic.wake_parked();  // calls that wait for a change of the region end
  return true;
}

}  // namespace weft::nic
