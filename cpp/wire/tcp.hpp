// cpp/wire/tcp.hpp: what two NICs say on a TCP connection.
//
// First greetings, 144 bytes each, little endian:
//   hello      dialer to acceptor: who I am, what I called, which VNI, a nonce
//   challenge  acceptor to dialer: who I am, a nonce of mine
//   proof      dialer to acceptor: mac over both greetings, with the VNI's key
//   welcome    acceptor to dialer: the same the other way, under another label; or
//   reject     with a reason; the sender hangs up
// The acceptor proves itself last, so that a stranger who calls gets nothing that was made with the secret.
//
// Then packets: a prefix of 24 bytes, a body whose length the type tells, and for frames `length - 104` bytes of
// payload. The prefix (but the tag) and the body are covered by the tag (base/mac.hpp), keyed for this connection and
// direction; payload is not, but by a checksum that stands in the frame's payload_length (the prefix tells the length):
// that finds faults, not somebody who changes payload on purpose. `sequence` counts packets from 0, so that none can be
// repeated, dropped or moved.
//
//   0..7   tag       8..15  sequence    16..19 length of body and payload    20 type    21..23 zero
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "base/mac.hpp"
#include "base/sha256.hpp"
#include "base/status.hpp"
#include "wire/address.hpp"
#include "wire/frame.hpp"

namespace weft::wire {

constexpr uint32_t kTcpMagic = 0x43544657;  // "WFTC"
constexpr uint16_t kTcpVersion = 4;

// Limits of a connection; the receiver enforces them.
constexpr size_t kTcpPayloadMax = size_t{512}
                                  << 10;       // of one frame: large enough that its header and its answer cost nothing
constexpr uint32_t kTcpInFlightFrames = 1024;  // requests without an answer, a direction
constexpr uint64_t kTcpInFlightBytes = uint64_t{16} << 20;  // of payload and of what reads have asked for

constexpr uint32_t kTcpAsksMax = 1024;  // resolves without an answer, a direction

// Where a NIC listens: an IP address and a port.
struct HostAddress {
  uint8_t family = 0;  // 0 none, 4, 6
  uint8_t reserved = 0;
  uint16_t port = 0;
  uint32_t scope = 0;            // IPv6 link-local: the interface, of this host
  std::array<uint8_t, 16> ip{};  // IPv4: the first four

  auto operator<=>(const HostAddress&) const = default;
};
static_assert(sizeof(HostAddress) == 24);

enum class GreetingType : uint8_t { hello = 1, challenge = 2, proof = 3, welcome = 4, reject = 5 };

enum class TcpReject : uint8_t {
  none = 0,
  version = 1,    // the two speak different versions
  secret = 2,     // the proof was made with another secret
  malformed = 3,  // not a greeting, or not the one whose turn it was
  busy = 4,       // too many connections
  crossed = 5,    // we are just calling you: take that call
};

struct Greeting {
  uint32_t magic = kTcpMagic;
  uint16_t version = kTcpVersion;
  GreetingType type{};
  TcpReject reason{};
  uint16_t vni = 0;
  uint16_t reserved = 0;
  uint32_t nic = 0;                 // number of the sender's NIC in its process
  std::array<uint8_t, 16> uuid{};   // of the sender's NIC
  std::array<uint8_t, 32> nonce{};  // hello, challenge: of the sender
  HostAddress listen;               // where the sender can be called, or none
  HostAddress called;               // hello: what the dialer called
  Digest mac{};                     // proof, welcome
};
static_assert(sizeof(Greeting) == 144);
static_assert(offsetof(Greeting, uuid) == 16 && offsetof(Greeting, listen) == 64 && offsetof(Greeting, mac) == 112);

inline void emit_greeting(const Greeting& g, std::span<std::byte> out) noexcept {
  std::memcpy(out.data(), &g, sizeof(g));
}

inline std::optional<Greeting> parse_greeting(std::span<const std::byte> in) noexcept {
  if (in.size() < sizeof(Greeting)) return std::nullopt;
  Greeting g;
  std::memcpy(static_cast<void*>(&g), in.data(), sizeof(g));
  const auto type = static_cast<uint8_t>(g.type);
  if (g.magic != kTcpMagic || type < 1 || type > static_cast<uint8_t>(GreetingType::reject)) return std::nullopt;
  if (g.reason > TcpReject::crossed || g.reserved != 0) return std::nullopt;
  for (const HostAddress* a : {&g.listen, &g.called}) {
    if ((a->family != 0 && a->family != 4 && a->family != 6) || a->reserved != 0) return std::nullopt;
  }
  return g;
}

// goodbye: the sender closes its NIC, and nothing follows.
enum class PacketType : uint8_t { frame = 1, ping = 2, resolve = 3, resolved = 4, done = 5, goodbye = 6 };

struct PacketPrefix {
  uint64_t tag = 0;
  uint64_t sequence = 0;
  uint32_t length = 0;
  PacketType type{};
  std::array<uint8_t, 3> zero{};
};
static_assert(sizeof(PacketPrefix) == 24 && offsetof(PacketPrefix, type) == 20);

// resolve: is there an endpoint at `address`? resolved: its slot and generation.
struct ResolveBody {
  uint64_t id = 0;
  EpAddress address;
  int32_t status = 0;
  uint32_t ep_index = 0;
  uint32_t ep_generation = 0;
};
static_assert(sizeof(ResolveBody) == 32);

// done: the answer to a request that went well and has nothing to bring back.
struct DoneBody {
  uint64_t op_id = 0;
  uint32_t cost = 0;
  uint32_t there = 0;  // 1; or 0 behind a frame that brings none
};
static_assert(sizeof(DoneBody) == 16);

// frame: with room for a `done` that travels with it. Prefix and body are two cache lines.
struct FrameBody {
  Frame frame;
  DoneBody done;
};
static_assert(sizeof(FrameBody) == 104 && sizeof(PacketPrefix) + sizeof(FrameBody) == 128);

constexpr size_t body_bytes(PacketType type) noexcept {
  switch (type) {
    case PacketType::done:
      return sizeof(DoneBody);
    case PacketType::frame:
      return sizeof(FrameBody);
    case PacketType::ping:
    case PacketType::goodbye:
      return 0;
    case PacketType::resolve:
    case PacketType::resolved:
      return sizeof(ResolveBody);
  }
  return 0;
}
constexpr size_t kPacketHeadMax = sizeof(PacketPrefix) + sizeof(FrameBody);

// The prefix in `in`, or nothing where a field is outside its range. The tag is checked by seal_holds().
inline std::optional<PacketPrefix> parse_prefix(std::span<const std::byte> in) noexcept {
  if (in.size() < sizeof(PacketPrefix)) return std::nullopt;
  PacketPrefix p;
  std::memcpy(static_cast<void*>(&p), in.data(), sizeof(p));
  const auto type = static_cast<uint8_t>(p.type);
  if (type < 1 || type > static_cast<uint8_t>(PacketType::goodbye) || p.zero != std::array<uint8_t, 3>{}) {
    return std::nullopt;
  }
  const size_t body = body_bytes(p.type);
  if (p.length < body || p.length - body > (p.type == PacketType::frame ? kTcpPayloadMax : 0)) return std::nullopt;
  return p;
}

// `head`: prefix and body. The type in the prefix tells how long it is.
static_assert(kPacketHeadMax - sizeof(uint64_t) <= kMacBytesMax);
inline uint64_t packet_tag(const MacKey& key, uint64_t sequence, std::span<const std::byte> head) noexcept {
  return mac_tag(key, sequence, head.subspan(sizeof(uint64_t)));
}
// `sequence`: the one that is due, which the packet names too.
inline bool seal_holds(const MacKey& key, uint64_t sequence, std::span<const std::byte> head) noexcept {
  uint64_t tag;
  std::memcpy(&tag, head.data(), sizeof(tag));
  return tag == packet_tag(key, sequence, head);
}

// Writes prefix and body, which may be given in two parts; returns how many bytes that is.
template <typename... Part>
size_t emit_packet_of(const MacKey& key, uint64_t sequence, PacketType type, size_t payload_length,
                      std::span<std::byte> out, const Part&... part) noexcept {
  PacketPrefix p;
  p.sequence = sequence;
  p.length = static_cast<uint32_t>((sizeof(Part) + ... + 0) + payload_length);
  p.type = type;
  std::memcpy(out.data(), &p, sizeof(p));
  size_t head = sizeof(p);
  ((std::memcpy(out.data() + head, &part, sizeof(part)), head += sizeof(part)), ...);
  const uint64_t tag = packet_tag(key, sequence, out.first(head));
  std::memcpy(out.data(), &tag, sizeof(tag));
  return head;
}
template <typename Body>
size_t emit_packet(const MacKey& key, uint64_t sequence, PacketType type, const Body& body,
                   std::span<std::byte> out) noexcept {
  return emit_packet_of(key, sequence, type, 0, out, body);
}
inline size_t emit_ping(const MacKey& key, uint64_t sequence, std::span<std::byte> out) noexcept {
  return emit_packet_of(key, sequence, PacketType::ping, 0, out);
}
inline size_t emit_goodbye(const MacKey& key, uint64_t sequence, std::span<std::byte> out) noexcept {
  return emit_packet_of(key, sequence, PacketType::goodbye, 0, out);
}
inline size_t emit_frame(const MacKey& key, uint64_t sequence, const Frame& frame, const DoneBody& done,
                         size_t payload_length, std::span<std::byte> out) noexcept {
  return emit_packet_of(key, sequence, PacketType::frame, payload_length, out, frame, done);
}

// What a request counts against kTcpInFlightBytes: its payload, or what it asks for.
inline uint32_t cost_of(const Frame& f) noexcept {
  if (f.kind == FrameKind::read) return f.status > 0 ? static_cast<uint32_t>(f.status) : 0;
  return f.payload_length;
}

// The frame of a packet, its payload length taken from the prefix; nothing where a field is outside its range. `*sum`:
// the checksum that its payload must have.
// Beside what wire::parse asks: a frame that a peer may send over tcp, with its cost in staged_chunk (the answer
// repeats it), and an answer with a status that ends an operation.
inline std::optional<Frame> parse_tcp_frame(std::span<const std::byte> body, uint32_t payload_length,
                                            uint32_t* sum) noexcept {
  std::array<std::byte, sizeof(Frame)> head;
  if (body.size() < head.size()) return std::nullopt;
  std::memcpy(head.data(), body.data(), head.size());
  std::memcpy(sum, head.data() + offsetof(Frame, payload_length), sizeof(*sum));
  std::memset(head.data() + offsetof(Frame, payload_length), 0, sizeof(*sum));
  if (payload_length == 0 && *sum != 0) return std::nullopt;
  auto f = parse(head);
  if (!f || f->where != PayloadWhere::none) return std::nullopt;
  f->payload_length = payload_length;
  f->where = payload_length != 0 ? PayloadWhere::in_frame : PayloadWhere::none;
  switch (f->kind) {
    case FrameKind::answer:
      if (f->status < 0 || f->status > 64 || f->status == static_cast<int32_t>(Status::again)) return std::nullopt;
      if (f->staged_chunk > kTcpPayloadMax) return std::nullopt;
      break;
    case FrameKind::read:
      if (payload_length != 0 || f->status < 0 || static_cast<size_t>(f->status) > kTcpPayloadMax) return std::nullopt;
      if (f->staged_chunk != cost_of(*f)) return std::nullopt;
      break;
    case FrameKind::write:
    case FrameKind::atomic:
    case FrameKind::check:
    case FrameKind::cm:
      if (f->staged_chunk != cost_of(*f)) return std::nullopt;
      break;
    case FrameKind::notice:  // says that an access was made by load and store, which nobody here can do
      return std::nullopt;
  }
  return f;
}

}  // namespace weft::wire
