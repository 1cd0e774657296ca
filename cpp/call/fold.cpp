// cpp/call/fold.cpp: see fold.hpp.
#include "call/fold.hpp"

#include <limits>

namespace weft::call {

namespace {

template <typename T>
bool fits(uint64_t number) noexcept {
  return number <= std::numeric_limits<T>::max();
}

std::string too_short(const char* name, size_t has, size_t needs) {
  return std::string(name) + " has " + std::to_string(has) + " bytes; " + std::to_string(needs) + " are needed";
}

constexpr const char* kNoAccumulator =
    ": these 64 bytes are no accumulator\n  try: zeros before the first call, and no other writes to them";

}  // namespace

std::optional<nic::ReduceOp> Reduction::found() const noexcept {
  if (!fits<uint16_t>(op) || !fits<uint16_t>(datatype)) return std::nullopt;
  const auto type = static_cast<nic::Datatype>(datatype);
  const auto number = static_cast<uint16_t>(op);
  return general ? nic::general_reduce_op(number, type) : nic::reduce_op(number, type, prefer_numbers);
}

std::optional<size_t> Reduction::bytes() const noexcept {
  const auto known = found();
  if (!known) return std::nullopt;
  return nic::payload_bytes(*known, static_cast<nic::Datatype>(datatype), count).value_or(0);
}

std::string fold(std::span<const std::byte> from, std::span<std::byte> into, const Reduction& r, bool pre_reduced) {
  constexpr size_t kRoom = nic::kReduceAccumulatorBytes;
  if (into.size() < kRoom) return too_short("result", into.size(), kRoom);
  std::optional<nic::Partial> partial;
  if (pre_reduced) {
    if (from.size() < kRoom) return too_short("buf", from.size(), kRoom);
    partial = nic::pre_reduced(from.data());
    if (!partial) return std::string("buf") + kNoAccumulator;
  } else {
    const auto bytes = r.bytes();
    if (!bytes) {
      return "operation " + std::to_string(r.op) + " on datatype " + std::to_string(r.datatype) +
             " is no reduction here\n  try: Domain.query_collective, which knows the supported pairs";
    }
    if (*bytes == 0) {
      return "count " + std::to_string(r.count) + " of datatype " + std::to_string(r.datatype) +
             "\n  rule: at least 1, at most 32 bytes; exactly 1 for MINMAXLOC and REPSUM";
    }
    if (from.size() < *bytes) return too_short("buf", from.size(), *bytes);
    partial = nic::contribution(*r.found(), static_cast<nic::Datatype>(r.datatype), from.data(), r.count);
  }
  if (!nic::fold(into.data(), *partial)) return std::string("result") + kNoAccumulator;
  return {};
}

std::string unfold(std::span<const std::byte> accumulator, std::span<std::byte> out, uint64_t count, uint64_t datatype,
                   int* status) {
  *status = -1;
  if (accumulator.size() < nic::kReduceAccumulatorBytes) {
    return too_short("accumulator", accumulator.size(), nic::kReduceAccumulatorBytes);
  }
  const auto partial = nic::pre_reduced(accumulator.data());
  if (!partial) return {};
  const auto type = static_cast<nic::Datatype>(datatype);
  const auto bytes = fits<uint16_t>(datatype) ? nic::payload_bytes(partial->op, type, count) : std::nullopt;
  if (!bytes) {
    return "count " + std::to_string(count) + " of datatype " + std::to_string(datatype) +
           " does not fit the accumulator's operation";
  }
  if (out.size() < *bytes) return too_short("out", out.size(), *bytes);
  nic::result(*partial, type, out.data(), count);
  *status = static_cast<int>(partial->status);
  return {};
}

}  // namespace weft::call
