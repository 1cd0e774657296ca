// cpp/call/quota.cpp: see quota.hpp.
#include "call/quota.hpp"

#include <algorithm>
#include <bit>
#include <cassert>

namespace weft::call {

std::optional<uint32_t> Numbers::take() {
  if (taken_ == count_) return std::nullopt;
  while (first_ < used_.size() && used_[first_] == ~uint64_t{0}) ++first_;
  const auto n = static_cast<uint32_t>(64 * first_ + static_cast<size_t>(std::countr_one(used_[first_])));
  if (n >= count_) return std::nullopt;
  used_[first_] |= uint64_t{1} << n % 64;
  ++taken_;
  return n;
}

bool Numbers::give(uint32_t n) noexcept {
  const uint64_t bit = uint64_t{1} << n % 64;
  if (n >= count_ || (used_[n / 64] & bit) == 0) return false;
  assert(taken_ != 0 && "the count is that of the bits");
  used_[n / 64] &= ~bit;
  --taken_;
  first_ = std::min<size_t>(first_, n / 64);
  return true;
}

std::optional<size_t> Stock::kind(const std::string& name) const {
  const auto found = std::ranges::find(kinds_, name);
  if (found == kinds_.end()) return std::nullopt;
  return static_cast<size_t>(found - kinds_.begin());
}

bool Stock::take(size_t kind, int64_t count) noexcept {
  assert(kind < counts_.size() && count >= 0 && "a kind of this stock");
  if (counts_[kind] < count) return false;
  counts_[kind] -= count;
  return true;
}

bool RegionQuota::take(Took took) {
  assert(took != Took::nothing && ledger != nullptr && taken != nullptr && "a region takes something of a service");
  const Some& wanted = some(took);
  if (closed || !ledger->take(slot, wanted.kind, wanted.count)) return false;
  (*taken)[wanted.kind] += wanted.count;
  return true;
}

void RegionQuota::give(Took took) {
  if (closed) return;
  const Some& back = some(took);
  assert((*taken)[back.kind] >= back.count && "a region gives back what it took");
  (*taken)[back.kind] -= back.count;
  ledger->give(slot, back.kind, back.count);
}

}  // namespace weft::call
