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
class TxPort;

class AddressVector {
 public:
  // symmetric (FI_SYMMETRIC): the application promises that the vectors of all its processes have the same entries.
  // user_ids (FI_AV_USER_ID): a peer without a user id has none to show.
  explicit AddressVector(Domain* domain, bool symmetric = false, bool user_ids = false)
      : domain_(domain), symmetric_(symmetric), user_ids_only_(user_ids) {}
  uint64_t insert(const wire::EpAddress& address);
  bool remove(uint64_t fi_addr);
  [[nodiscard]] std::optional<wire::EpAddress> lookup(uint64_t fi_addr) const;
  // The fi_addr first, first + stride ... to last that are in use, ascending, `most` at most. stride: at least 1.
  [[nodiscard]] std::vector<uint64_t> in_use(uint64_t first, uint64_t last, uint64_t stride, uint64_t most) const;
  // The reverse look-up. kKeyNotAvail (FI_ADDR_NOTAVAIL): unknown. Requires the domain's lock.
  [[nodiscard]] uint64_t find(const wire::EpAddress& address) const;
  // The same for a sender that names itself by its fi_addr. A symmetric vector compares only that entry: the promise
  // may be broken, and a peer may lie.
  [[nodiscard]] uint64_t source(const wire::EpAddress& address, uint32_t index) const {
    if (symmetric_ && index < entries_.size() && entries_[index] && entries_[index]->address == address) return index;
    return find(address);
  }
  [[nodiscard]] bool symmetric() const noexcept { return symmetric_; }
  // False: the fi_addr is not in use.
  bool set_user_id(uint64_t fi_addr, uint64_t id);
  // What completions report for a peer: its user id, or its fi_addr. Requires the domain's lock.
  [[nodiscard]] uint64_t shown(uint64_t fi_addr) const {
    if (user_ids_.empty() && !user_ids_only_) [[likely]]
      return fi_addr;
    const auto it = user_ids_.find(fi_addr);
    return it != user_ids_.end() ? it->second : user_ids_only_ ? wire::kKeyNotAvail : fi_addr;
  }
  [[nodiscard]] uint64_t user_id(uint64_t fi_addr) const;
  [[nodiscard]] uint64_t reverse_lookups() const;
  [[nodiscard]] size_t count() const noexcept { return entries_.size() - free_.size(); }

  // These require the domain's lock. The route of an entry; null: not in use. slots(): every fi_addr is below.
  [[nodiscard]] std::shared_ptr<Route> route(uint64_t fi_addr) const noexcept {
    return fi_addr < entries_.size() ? entries_[fi_addr] : nullptr;
  }
  [[nodiscard]] size_t slots() const noexcept { return entries_.size(); }
  // The enabled endpoints that are bound to this vector.
  void add_user(TxPort* tx) { users_.push_back(tx); }
  void remove_user(const TxPort* tx) noexcept { std::erase(users_, tx); }

 private:
  Domain* domain_;
  const bool symmetric_, user_ids_only_;
  mutable uint64_t reverse_lookups_ = 0;
  std::vector<std::shared_ptr<Route>> entries_;  // by fi_addr; null: free
  std::vector<TxPort*> users_;
  std::vector<uint64_t> free_;
  std::unordered_map<uint64_t, uint64_t> user_ids_;                                // by fi_addr
  std::unordered_map<wire::EpAddress, uint64_t, wire::EpAddressHash> by_address_;  // also by the address on this host
};

}  // namespace weft::nic
