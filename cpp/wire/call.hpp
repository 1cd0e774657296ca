// cpp/wire/call.hpp: calls on objects in the receiver's memory (sync/object.hpp), and watches of its bytes: the operand
// and the result of an atomic with the operation kCallOp. Both have the length of the access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace weft::wire {

constexpr uint8_t kCallOp = 0x80;  // Frame::atomic_op; no AtomicOp has this number

// park: answer when the call can be done, instead of `again`. watch: answer when the bytes at the address differ from
// the operand's. cancel: end the parked call of this sender with the number `a`. mapped: the sender has mapped the
// object, and calls for itself (`pid`, `start`); otherwise the receiver calls for it. given_up, with cancel: the sender
// will not see the answer of its call `a`. What that call has taken goes back; what it gives back is given in any case.
constexpr uint16_t kCallPark = 1, kCallWatch = 2, kCallCancel = 4, kCallMapped = 8, kCallGivenUp = 16;
constexpr uint16_t kCallFlagsMask = 31;

struct CallRequest {
  uint16_t op = 0;  // sync::Op
  uint16_t flags = 0;
  uint32_t pid = 0, start = 0;
  uint32_t in_bytes = 0;   // which follow
  uint32_t out_bytes = 0;  // room for them in the answer, behind CallAnswer
  uint32_t reserved = 0;
  uint64_t token = 0;  // names the caller among those of its process
  uint64_t id = 0;     // of a parked call, for `cancel`
  uint64_t a = 0, b = 0;
  uint64_t state = 0;
};
static_assert(sizeof(CallRequest) == 64);

struct CallAnswer {
  uint32_t outcome = 0;  // sync::Outcome
  uint32_t length = 0;   // bytes that follow
  uint64_t value = 0, value2 = 0, value3 = 0;
  uint64_t state = 0;
};
static_assert(sizeof(CallAnswer) == 40);

// The request in `in`, or nothing when a field is outside its range.
inline std::optional<CallRequest> parse_call(std::span<const std::byte> in) noexcept {
  CallRequest r;
  if (in.size() < sizeof(r)) return std::nullopt;
  std::memcpy(&r, in.data(), sizeof(r));
  if (r.flags > kCallFlagsMask || r.reserved != 0 || r.in_bytes > in.size() - sizeof(r)) return std::nullopt;
  if (in.size() < sizeof(CallAnswer) || r.out_bytes > in.size() - sizeof(CallAnswer)) return std::nullopt;
  return r;
}

}  // namespace weft::wire
