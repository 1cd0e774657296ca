// cpp/call/av_set.cpp: see av_set.hpp.
#include "call/av_set.hpp"

#include <algorithm>
#include <utility>

namespace weft::call {

namespace {

constexpr uint64_t kNobody = ~uint64_t{0};  // FI_ADDR_NOTAVAIL and FI_ADDR_UNSPEC

}  // namespace

AddressSet::AddressSet(std::vector<uint64_t> addresses)
    : in_order_(std::move(addresses)), known_(in_order_.begin(), in_order_.end()) {}

std::string AddressSet::insert(uint64_t address) {
  if (address == kNobody) return "addr " + std::to_string(address) + " is no fi_addr of a peer";
  if (!known_.insert(address).second) return "fi_addr " + std::to_string(address) + " is in the set already";
  in_order_.push_back(address);
  return {};
}

std::string AddressSet::remove(uint64_t address) {
  if (known_.erase(address) == 0) return "fi_addr " + std::to_string(address) + " is not in the set";
  in_order_.erase(std::ranges::find(in_order_, address));
  return {};
}

void AddressSet::unite(const AddressSet& other) {
  for (size_t i = 0, n = other.in_order_.size(); i < n; ++i) {
    if (known_.insert(other.in_order_[i]).second) in_order_.push_back(other.in_order_[i]);
  }
}

void AddressSet::intersect(const AddressSet& other) {
  keep(other, true);
}

void AddressSet::subtract(const AddressSet& other) {
  keep(other, false);
}

void AddressSet::keep(const AddressSet& other, bool common) {
  std::erase_if(in_order_, [&](uint64_t one) { return other.has(one) != common; });
  known_ = {in_order_.begin(), in_order_.end()};
}

}  // namespace weft::call
