// cpp/call/av_set.hpp: the addresses of a set (fi_av_set(3)): in order, each once.
// Not locked: calls that change one set exclude each other in the application.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

namespace weft::call {

class AddressSet {
 public:
  // Each address once.
  explicit AddressSet(std::vector<uint64_t> addresses = {});

  // These return why the set did not change; empty: it did.
  std::string insert(uint64_t address);
  std::string remove(uint64_t address);
  // The order stays; a union appends. The other set may be this one.
  void unite(const AddressSet& other);
  void intersect(const AddressSet& other);
  void subtract(const AddressSet& other);

  [[nodiscard]] const std::vector<uint64_t>& addresses() const noexcept { return in_order_; }
  [[nodiscard]] bool has(uint64_t address) const noexcept { return known_.contains(address); }

 private:
  void keep(const AddressSet& other, bool common);

  std::vector<uint64_t> in_order_;
  std::unordered_set<uint64_t> known_;
};

}  // namespace weft::call
