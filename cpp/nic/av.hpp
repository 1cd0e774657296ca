// cpp/nic/av.hpp: an address vector: maps fi_addr numbers to peers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "nic/route.hpp"
#include "wire/address.hpp"

namespace weft::nic {

class Nic;
class Domain;
class Endpoint;

class AddressVector {
 public:
  explicit AddressVector(Domain* domain) : domain_(domain) {}
  uint64_t insert(const wire::EpAddress& address);
  bool remove(uint64_t fi_addr);
  [[nodiscard]] std::optional<wire::EpAddress> lookup(uint64_t fi_addr) const;
  [[nodiscard]] uint64_t find(const wire::EpAddress& address) const;  // kKeyNotAvail (FI_ADDR_NOTAVAIL): unknown
  [[nodiscard]] size_t count() const noexcept { return entries_.size() - free_.size(); }

 private:
  friend class Endpoint;
  friend class Nic;
  Domain* domain_;
  std::vector<std::shared_ptr<Route>> entries_;  // by fi_addr; null: free
  std::vector<Endpoint*> users_;                 // the enabled endpoints bound to this vector
  std::vector<uint64_t> free_;
  std::unordered_map<wire::EpAddress, uint64_t, wire::EpAddressHash> by_address_;  // also by the address on this host
};

}  // namespace weft::nic
