// cpp/wire/tcp.hpp: greetings and packets of two NICs on a TCP connection. Little endian.
//
// First greetings, 184 bytes each:
//   hello      dialer to acceptor: the dialer's NIC, the address it called, the VNI, a nonce, the dialer's share
//   challenge  acceptor to dialer: the acceptor's NIC, its share, its proof that it knows the secret
//   proof      dialer to acceptor: the dialer's proof
//   welcome    acceptor to dialer: the connection is accepted, with another proof. Or, in place of any of these,
//   reject     a reason; the sender hangs up
// Shares and proofs are those of a key exchange that the secret authenticates (link/tcp_auth.hpp). The first eight
// bytes (magic, version, type, reason) mean the same in every version, so that two versions can tell each other.
//
// Then packets, made of sealed records (wire/seal.hpp), each followed by a tag of 32 bytes:
//   prefix      8 bytes, sent in the clear: 0..3 length of body and payload, 4 type, 5..7 zero
//   body        the type determines its length
//   payload     of a frame: in the same record up to kTogetherMax bytes, otherwise in a record of its own
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/status.hpp"
#include "wire/address.hpp"
#include "wire/frame.hpp"
#include "wire/seal.hpp"

namespace weft::wire {

constexpr uint32_t kTcpMagic = 0x43544657;  // "WFTC"
constexpr uint16_t kTcpVersion = 8;

// Limits of a connection; the receiver enforces them.
constexpr size_t kTcpPayloadMax = size_t{512}
                                  << 10;       // of one frame: so large that header and answer add no measurable cost
constexpr uint32_t kTcpInFlightFrames = 1024;  // unanswered requests per direction
constexpr uint64_t kTcpInFlightBytes = uint64_t{16} << 20;  // payload of unanswered requests, and bytes asked by reads

constexpr uint32_t kTcpAsksMax = 1024;  // unanswered resolves per direction

// The IP address and the port on which a NIC listens.
struct HostAddress {
  uint8_t family = 0;  // 0 none, 4, 6
  uint8_t reserved = 0;
  uint16_t port = 0;
  uint32_t scope = 0;            // IPv6 link-local: index of this host's interface
  std::array<uint8_t, 16> ip{};  // IPv4: the first four

  auto operator<=>(const HostAddress&) const = default;
};
static_assert(sizeof(HostAddress) == 24);

enum class GreetingType : uint8_t { hello = 1, challenge = 2, proof = 3, welcome = 4, reject = 5 };

// The last column is what a connection ends with. malformed: also a greeting out of turn. crossed: of simultaneous
// connects the sender keeps its own.
#define WEFT_TCP_REJECTS(X)                                                            \
  X(none, 0, "no reason", refused)                                                     \
  X(version, 1, "another version of Weft's tcp protocol", version)                     \
  X(secret, 2, "the secrets differ: give both processes the same WEFT_SECRET", secret) \
  X(malformed, 3, "the message is no greeting of Weft", refused)                       \
  X(busy, 4, "no room for another connection", again)                                  \
  X(crossed, 5, "a call in the other direction is used", again)
WEFT_ENUM(TcpReject, uint8_t, WEFT_TCP_REJECTS, "Why a caller is turned away.");
using Bytes32 = std::array<std::byte, 32>;

struct Greeting {
  uint32_t magic = kTcpMagic;
  uint16_t version = kTcpVersion;
  GreetingType type{};
  TcpReject reason{};
  uint16_t vni = 0;
  uint16_t reserved = 0;
  uint32_t nic = 0;                // number of the sender's NIC in its process
  std::array<uint8_t, 16> uuid{};  // of the sender's NIC
  Bytes32 nonce{};                 // hello: the dialer's
  HostAddress listen;              // where the sender listens, or family 0
  HostAddress called;              // hello: the address that the dialer called
  Bytes32 proof{};                 // challenge, proof, welcome
  Bytes32 share{};                 // hello, challenge: a point of the curve
  uint8_t encrypt = 0;             // hello, challenge: 1: the sender wants packets encrypted
  std::array<uint8_t, 7> zero{};
};
static_assert(sizeof(Greeting) == 184);
static_assert(offsetof(Greeting, uuid) == 16 && offsetof(Greeting, listen) == 64 && offsetof(Greeting, proof) == 112 &&
              offsetof(Greeting, share) == 144);
constexpr size_t kGreetingHeadBytes = 8;  // magic, version, type, reason

inline void emit_greeting(const Greeting& g, std::span<std::byte> out) noexcept {
  std::memcpy(out.data(), &g, sizeof(g));
}

inline std::optional<Greeting> parse_greeting(std::span<const std::byte> in) noexcept {
  if (in.size() < sizeof(Greeting)) return std::nullopt;
  Greeting g;
  std::memcpy(static_cast<void*>(&g), in.data(), sizeof(g));
  if (g.encrypt > 1 || g.zero != std::array<uint8_t, 7>{}) return std::nullopt;
  const auto type = static_cast<uint8_t>(g.type);
  if (g.magic != kTcpMagic || type < 1 || type > static_cast<uint8_t>(GreetingType::reject)) return std::nullopt;
  if (g.reason > TcpReject::crossed || g.reserved != 0) return std::nullopt;
  for (const HostAddress* a : {&g.listen, &g.called}) {
    if ((a->family != 0 && a->family != 4 && a->family != 6) || a->reserved != 0) return std::nullopt;
  }
  return g;
}

// The head of a greeting of another version: the fields that are the same in every version. Empty if the bytes received
// so far (`in`) are too few, no greeting, or a greeting of this version.
inline std::optional<Greeting> parse_other_version(std::span<const std::byte> in) noexcept {
  if (in.size() < kGreetingHeadBytes) return std::nullopt;
  Greeting g;
  std::memcpy(static_cast<void*>(&g), in.data(), kGreetingHeadBytes);
  if (g.magic != kTcpMagic || g.version == kTcpVersion) return std::nullopt;
  return g;
}

// goodbye: the sender closes its NIC; nothing follows.
enum class PacketType : uint8_t { frame = 1, ping = 2, resolve = 3, resolved = 4, done = 5, goodbye = 6 };

struct PacketPrefix {
  uint32_t length = 0;
  PacketType type{};
  std::array<uint8_t, 3> zero{};
};
static_assert(sizeof(PacketPrefix) == 8 && offsetof(PacketPrefix, type) == 4);

// resolve: is there an endpoint at `address`? resolved: its slot and generation.
struct ResolveBody {
  uint64_t id = 0;
  EpAddress address;
  int32_t status = 0;
  uint32_t ep_index = 0;
  uint32_t ep_generation = 0;
};
static_assert(sizeof(ResolveBody) == 32);

// done: the answer to a request that succeeded and returns no data.
struct DoneBody {
  uint64_t op_id = 0;
  uint32_t cost = 0;
  uint32_t there = 0;  // 1: valid; 0: the frame carries no `done`
};
static_assert(sizeof(DoneBody) == 16);

// frame: the frame and a field for a `done` that travels with it.
struct FrameBody {
  Frame frame;
  DoneBody done;
};
static_assert(sizeof(FrameBody) == 104);

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
constexpr size_t kPacketBytesMax = kPacketHeadMax + kTagBytes;  // of a packet without payload

// Payload up to this length is sealed in the record of its frame, longer payload in a record of its own.
constexpr size_t kTogetherMax = 4096;
// Offset of a frame's payload in its packet, and length of that packet.
constexpr size_t payload_at(size_t payload) noexcept {
  return kPacketHeadMax + (payload > kTogetherMax ? kTagBytes : 0);
}
constexpr size_t frame_bytes(size_t payload) noexcept {
  return payload_at(payload) + payload + kTagBytes;
}

// The prefix in `in`, or nothing if a field is outside its range. It is authentic only after its record has opened.
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

// Length of the first record after the prefix: the body, and the payload that is sealed with it.
constexpr size_t first_content(const PacketPrefix& p) noexcept {
  const size_t body = body_bytes(p.type), payload = p.length - body;
  return payload > kTogetherMax ? body : p.length;
}

// Writes and seals the first record of a packet: prefix, body (which may be given in parts) and, up to kTogetherMax
// bytes, the payload, which already follows the body in `out`. Returns the record's length with its tag.
template <typename... Part>
size_t emit_packet_of(Seal& seal, PacketType type, size_t payload_length, std::byte* out,
                      const Part&... part) noexcept {
  constexpr size_t kBody = (sizeof(Part) + ... + 0);
  PacketPrefix p;
  p.length = static_cast<uint32_t>(kBody + payload_length);
  p.type = type;
  std::memcpy(out, &p, sizeof(p));
  size_t head = sizeof(p);
  ((std::memcpy(out + head, &part, sizeof(part)), head += sizeof(part)), ...);
  const size_t content = kBody + (payload_length > kTogetherMax ? 0 : payload_length);
  seal.close(out, sizeof(p), content);
  return sizeof(p) + content + kTagBytes;
}
template <typename Body>
size_t emit_packet(Seal& seal, PacketType type, const Body& body, std::byte* out) noexcept {
  return emit_packet_of(seal, type, 0, out, body);
}
inline size_t emit_ping(Seal& seal, std::byte* out) noexcept {
  return emit_packet_of(seal, PacketType::ping, 0, out);
}
inline size_t emit_goodbye(Seal& seal, std::byte* out) noexcept {
  return emit_packet_of(seal, PacketType::goodbye, 0, out);
}
// The caller has placed the payload at out + payload_at(payload_length). Returns frame_bytes(payload_length).
inline size_t emit_frame(Seal& seal, const Frame& frame, const DoneBody& done, size_t payload_length,
                         std::byte* out) noexcept {
  const size_t first = emit_packet_of(seal, PacketType::frame, payload_length, out, frame, done);
  if (payload_length <= kTogetherMax) return first;
  seal.close(out + first, 0, payload_length);
  return first + payload_length + kTagBytes;
}

// The bytes that a request counts against kTcpInFlightBytes: its payload, or the bytes that a read asks for.
inline uint32_t cost_of(const Frame& f) noexcept {
  if (f.kind == FrameKind::read || f.kind == FrameKind::pull) return f.status > 0 ? static_cast<uint32_t>(f.status) : 0;
  return f.payload_length;
}

// The frame of a packet, with the payload length of the prefix; nothing if a field is outside its range.
// Checks more than wire::parse: the kind may be sent over tcp, staged_chunk is the request's cost (the answer repeats
// it), and the status of an answer ends an operation.
inline std::optional<Frame> parse_tcp_frame(std::span<const std::byte> body, uint32_t payload_length) noexcept {
  auto f = parse(body);
  if (!f || f->where != PayloadWhere::none || f->payload_length != 0) return std::nullopt;
  f->payload_length = payload_length;
  f->where = payload_length != 0 ? PayloadWhere::in_frame : PayloadWhere::none;
  switch (f->kind) {
    case FrameKind::answer:
    case FrameKind::reply:
      if (f->status < 0 || f->status > 64 || f->status == static_cast<int32_t>(Status::again)) return std::nullopt;
      if (f->staged_chunk > kTcpPayloadMax) return std::nullopt;
      break;
    case FrameKind::read:
    case FrameKind::pull:
      if (payload_length != 0 || f->status < 0 || static_cast<size_t>(f->status) > kTcpPayloadMax) return std::nullopt;
      if (f->staged_chunk != cost_of(*f)) return std::nullopt;
      break;
    case FrameKind::write:
    case FrameKind::atomic:
    case FrameKind::check:
    case FrameKind::cm:
    case FrameKind::message:
      if (f->staged_chunk != cost_of(*f)) return std::nullopt;
      break;
    case FrameKind::done:
      if (f->status < 0 || f->status > 64 || f->status == static_cast<int32_t>(Status::again)) return std::nullopt;
      [[fallthrough]];
    case FrameKind::ready:
    case FrameKind::leave:
      if (payload_length != 0 || f->staged_chunk != 0) return std::nullopt;
      break;
    case FrameKind::reduce:
      if (f->status < 0 || f->status > 64 || payload_length > kInlinePayloadMax || f->staged_chunk != 0) {
        return std::nullopt;
      }
      break;
    case FrameKind::notice:  // reports an access by load or store, which no peer of this link can make
    case FrameKind::help:    // of a copy by the kernel
      return std::nullopt;
  }
  return f;
}

}  // namespace weft::wire
