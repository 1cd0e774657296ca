// cpp/nic/av.cpp: see av.hpp.
#include "nic/av.hpp"

#include <algorithm>

#include "nic/nic.hpp"

namespace weft::nic {

uint64_t AddressVector::insert(const wire::EpAddress& address) {
  const auto here = domain_->nic()->local_name(address);
  const DomainLock guard(domain_);
  if (const auto it = by_address_.find(address); it != by_address_.end()) return it->second;
  auto entry = domain_->route_to(address);
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
  // Frames from the shm link carry the address on this host.
  if (here) by_address_.emplace(*here, fi_addr);
  return fi_addr;
}

bool AddressVector::remove(uint64_t fi_addr) {
  const DomainLock guard(domain_);
  if (fi_addr >= entries_.size() || !entries_[fi_addr]) return false;
  std::erase_if(by_address_, [&](const auto& known) { return known.second == fi_addr; });
  for (TxPort* tx : users_) tx->drop_flow(fi_addr);
  user_ids_.erase(fi_addr);
  entries_[fi_addr] = nullptr;
  free_.push_back(fi_addr);
  return true;
}

std::optional<wire::EpAddress> AddressVector::lookup(uint64_t fi_addr) const {
  const DomainLock guard(domain_);
  if (fi_addr >= entries_.size() || !entries_[fi_addr]) return std::nullopt;
  return entries_[fi_addr]->address;
}

std::vector<uint64_t> AddressVector::in_use(uint64_t first, uint64_t last, uint64_t stride, uint64_t most) const {
  const DomainLock guard(domain_);
  std::vector<uint64_t> found;
  for (uint64_t at = first; at <= last && at < entries_.size() && found.size() < most;) {
    if (entries_[at]) found.push_back(at);
    if (__builtin_add_overflow(at, stride, &at)) break;
  }
  return found;
}

bool AddressVector::set_user_id(uint64_t fi_addr, uint64_t id) {
  const DomainLock guard(domain_);
  if (fi_addr >= entries_.size() || !entries_[fi_addr]) return false;
  user_ids_[fi_addr] = id;
  return true;
}

uint64_t AddressVector::user_id(uint64_t fi_addr) const {
  const DomainLock guard(domain_);
  return shown(fi_addr);
}

uint64_t AddressVector::reverse_lookups() const {
  const DomainLock guard(domain_);
  return reverse_lookups_;
}

uint64_t AddressVector::find(const wire::EpAddress& address) const {
  ++reverse_lookups_;
  const auto it = by_address_.find(address);
  return it == by_address_.end() ? wire::kKeyNotAvail : it->second;
}

}  // namespace weft::nic
