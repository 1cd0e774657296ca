// cpp/wire/hello.hpp: the greeting of two processes of a host on their Unix socket, before they share memory.
// One message a packet (SOCK_SEQPACKET), 120 bytes, little endian; file descriptors travel beside it (SCM_RIGHTS) in
// the order: ring, staging, and unless the sender is strict: table, segments (their sizes follow as u64 each).
// A packet of one byte is the doorbell: the receiver polls its ring.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "wire/address.hpp"

namespace weft::wire {

constexpr uint32_t kHelloMagic = 0x54464557;  // "WEFT"
constexpr uint16_t kHelloVersion = 10;
constexpr size_t kDoorbellBytes = 1;

enum class HelloType : uint8_t {
  hello = 1,            // initiator to target, with descriptors
  welcome = 2,          // target to initiator, with descriptors
  reject = 3,           // target to initiator; reason says why; the sender hangs up
  segment_request = 4,  // `segment` is the number of the wanted segment
  segment = 5,          // with one descriptor
  goodbye = 6,          // in either direction; the sender then hangs up. reason none: the sender closed its NIC
};

enum class RejectReason : uint32_t {
  none = 0,
  version = 1,
  user = 2,
  no_endpoint = 3,
  too_many_peers = 4,
  malformed = 5,
  wants_private = 6,  // the target is strict: call again with a ring and staging memory for this connection alone
  lost_frames = 7,    // a process overwrote the ring that the receiver shares with others: frames may be lost
  busy = 8,           // too many callers have connected without a greeting: call again
};

constexpr uint8_t kHelloStrict = 1;   // sender shares no table and no segments: every access goes through its engine
constexpr uint8_t kHelloPrivate = 2;  // ring and staging memory are for this connection alone; strict senders say so

struct Hello {
  uint32_t magic = kHelloMagic;
  uint16_t version = kHelloVersion;
  HelloType type{};
  uint8_t flags = 0;
  std::array<uint8_t, 16> uuid{};  // of the sender's NIC
  EpAddress address;               // hello and welcome: the endpoint that the initiator asks for
  uint32_t producer_id = 0;        // the receiver's producer id in the sender's ring
  uint32_t ep_index = 0;           // welcome: the endpoint's slot ...
  uint32_t ep_generation = 0;      // ... and generation
  RejectReason reason{};
  uint32_t ring_slot_count = 0;
  uint64_t staging_bytes = 0;
  uint64_t table_bytes = 0;
  uint32_t mr_count_max = 0;
  uint32_t segment_count = 0;
  uint32_t segment = 0;  // segment, segment_request: number of the segment
  uint32_t reserved = 0;
  uint64_t segment_bytes = 0;  // segment: its size
  uint64_t probe_address = 0;  // address of the sender's nonce; the receiver probes process_vm_readv with it
  std::array<uint8_t, 16> nonce{};
};
static_assert(sizeof(Hello) == 120);
static_assert(offsetof(Hello, address) == 24 && offsetof(Hello, staging_bytes) == 56);

inline std::optional<Hello> parse_hello(std::span<const std::byte> in) noexcept {
  if (in.size() < sizeof(Hello)) return std::nullopt;
  Hello h;
  std::memcpy(static_cast<void*>(&h), in.data(), sizeof(h));
  const auto type = static_cast<uint8_t>(h.type);
  if (h.magic != kHelloMagic || type < 1 || type > static_cast<uint8_t>(HelloType::goodbye)) return std::nullopt;
  return h;
}

}  // namespace weft::wire
