// cpp/wire/brief.hpp: the short form of a credited message: what the receiver's record of the flow does not tell.
// 24 bytes, little endian, then the message's data (8 bytes, if kMessageHasData), then its bytes. With a ring slot's
// own 16 bytes, a message of up to 24 bytes (16 with data) is one cache line. A receiver copies it out of shared memory
// before parse_brief() checks it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "wire/frame.hpp"

namespace weft::wire {

// The message crosses a fabric whose devices count, so the receiver looks whether its device's link is down.
constexpr uint8_t kBriefCounted = 128;
constexpr uint8_t kBriefFlagsMask = kMessageTagged | kMessageHasData | kBriefCounted;

// The flags that the message has in every form.
constexpr uint8_t message_flags(uint8_t brief_flags) noexcept {
  return brief_flags & (kMessageTagged | kMessageHasData);
}

struct Brief {
  uint16_t ep_index = 0;  // target endpoint's slot, and its generation
  uint8_t flags = 0;      // of a message, and kBriefCounted
  uint8_t rest = 0;       // bytes behind these: data and payload
  uint32_t sender = 0;    // the receiver's number of the flow
  uint64_t tag = 0;
  uint32_t ep_generation = 0;
  uint32_t sequence = 0;
};
static_assert(sizeof(Brief) == 24 && offsetof(Brief, tag) == 8);

constexpr size_t kBriefDataBytes = 8;
constexpr size_t kBriefRestMax = kBriefDataBytes + kInlinePayloadMax;
static_assert(sizeof(Brief) + kBriefRestMax <= 240 && kBriefRestMax <= 255);

// A checked copy of the head; payload is a part of the bytes that were parsed.
struct BriefView {
  Brief head;
  uint64_t data = 0;
  std::span<const std::byte> payload;
};

// Nothing if a length or a flag is outside its range.
inline std::optional<BriefView> parse_brief(std::span<const std::byte> in) noexcept {
  if (in.size() < sizeof(Brief)) return std::nullopt;
  BriefView v;
  std::memcpy(&v.head, in.data(), sizeof(Brief));
  v.payload = in.subspan(sizeof(Brief));
  if ((v.head.flags & ~kBriefFlagsMask) != 0 || v.head.rest != v.payload.size()) return std::nullopt;
  if ((v.head.flags & kMessageHasData) != 0) {
    if (v.payload.size() < kBriefDataBytes) return std::nullopt;
    std::memcpy(&v.data, v.payload.data(), kBriefDataBytes);
    v.payload = v.payload.subspan(kBriefDataBytes);
  }
  if (v.payload.size() > kInlinePayloadMax) return std::nullopt;
  return v;
}

}  // namespace weft::wire
