// cpp/call/fold.hpp: the reduction unit without a network: folds into accumulators of 64 bytes, which reductions with
// FI_MORE use (fi_cxi(7)).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "nic/reduction.hpp"

namespace weft::call {

// A reduction, by the numbers of the caller's library. general: operations of the general provider. prefer_numbers:
// MIN, MAX and MINMAXLOC of a NaN and a number are the number.
struct Reduction {
  uint64_t op = 0, datatype = 0, count = 0;
  bool general = false, prefer_numbers = false;

  [[nodiscard]] std::optional<nic::ReduceOp> found() const noexcept;
  // Bytes of the caller's data; 0: too many elements; none: there is no such operation on the datatype.
  [[nodiscard]] std::optional<size_t> bytes() const noexcept;
};

// These return why they did nothing; empty: done.
// Folds `from` into an accumulator, which is zeros at first. pre_reduced: `from` is an accumulator too, and the
// reduction is not read.
std::string fold(std::span<const std::byte> from, std::span<std::byte> into, const Reduction& reduction,
                 bool pre_reduced);
// Writes an accumulator's values and status; status -1: the accumulator is empty, or none.
std::string unfold(std::span<const std::byte> accumulator, std::span<std::byte> out, uint64_t count, uint64_t datatype,
                   int* status);

}  // namespace weft::call
