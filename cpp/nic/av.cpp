// cpp/nic/av.cpp: see av.hpp.
#include "nic/av.hpp"

#include <algorithm>

#include "nic/nic.hpp"

namespace weft::nic {

uint64_t AddressVector::insert(const wire::EpAddress& address) {
  const auto here = domain_->nic_->local_name(address);
  const DomainLock guard(domain_);
  if (const auto it = by_address_.find(address); it != by_address_.end()) return it->second;
  auto entry = std::make_shared<PeerEp>();
  entry->address = address;
  entry->domain = domain_;
  uint64_t fi_addr;
  if (free_.empty()) {
    fi_addr = entries_.size();
    entries_.push_back(entry);
  } else {
    const auto lowest = std::ranges::min_element(free_);
    fi_addr = *lowest;
    free_.erase(lowest);
    entries_[fi_addr] = entry;
  }
  by_address_.emplace(address, fi_addr);
  // Frames that come by the shm link have the name that this host knows.
  if (here) by_address_.emplace(*here, fi_addr);
  domain_->peer_eps_.push_back(entry);
  return fi_addr;
}

bool AddressVector::remove(uint64_t fi_addr) {
  const DomainLock guard(domain_);
  if (fi_addr >= entries_.size() || !entries_[fi_addr]) return false;
  remove_locked(fi_addr);
  return true;
}

void AddressVector::forget(const PeerEp& target) {
  const auto it = by_address_.find(target.address);
  if (it != by_address_.end() && entries_[it->second].get() == &target) remove_locked(it->second);
}

void AddressVector::remove_locked(uint64_t fi_addr) {
  std::erase_if(by_address_, [&](const auto& known) { return known.second == fi_addr; });
  // Operations under way hold the entry; they end as they would have.
  entries_[fi_addr] = nullptr;
  free_.push_back(fi_addr);
  std::erase_if(domain_->peer_eps_, [](const auto& weak) { return weak.expired(); });
}

std::optional<wire::EpAddress> AddressVector::lookup(uint64_t fi_addr) const {
  const DomainLock guard(domain_);
  if (fi_addr >= entries_.size() || !entries_[fi_addr]) return std::nullopt;
  return entries_[fi_addr]->address;
}

uint64_t AddressVector::find(const wire::EpAddress& address) const {
  const auto it = by_address_.find(address);
  return it == by_address_.end() ? wire::kKeyNotAvail : it->second;
}

}  // namespace weft::nic
