// cpp/wire/frame.hpp: the one frame that NICs exchange: requests, answers and notices.
// 88 bytes, little endian, then up to kInlinePayloadMax bytes of payload, or a reference to staged payload.
// The receiver copies a frame out of shared memory before parse() checks it, because the peer can change the shared
// bytes at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "wire/address.hpp"

namespace weft::wire {

enum class FrameKind : uint8_t {
  write = 1,   // put payload into the region
  read = 2,    // answer with bytes of the region
  atomic = 3,  // apply; fetching families answer with the values before
  check = 4,   // payload: RmaRange list; verify all of them before the fragments that follow under the same op_id
  answer = 5,  // status, and payload for reads and fetches
  notice = 6,  // an access was already done by load/store: count it, deliver its immediate data
  cm = 7,  // connecting endpoints: atomic_op is the message (nic/cm.hpp), imm_data the connection, payload private data
};

enum class PayloadWhere : uint8_t { none = 0, in_frame = 1, staged = 2 };

constexpr uint8_t kFrameHasData = 1;   // imm_data is valid: deliver a completion entry at the target
constexpr uint8_t kFrameLast = 2;      // last fragment of its operation
constexpr uint8_t kFrameIsRead = 4;    // notice: the access was a read
constexpr uint8_t kFrameIsAtomic = 8;  // notice/data: the access was an atomic
constexpr uint8_t kFrameCommit = 16;   // FI_COMMIT_COMPLETE: answer when the bytes are durable
// Flags of answers to requests with immediate data. NoRoom: the target's queue is full, and the initiator holds back
// further requests with data until the target answers a check frame with kFrameHasData (the question) with Room.
constexpr uint8_t kFrameNoRoom = 32, kFrameRoom = 64;
constexpr uint8_t kFrameFlagsMask = 127;
constexpr uint8_t kFrameFamilyMax = 2;  // AtomicFamily::compare

struct Frame {
  FrameKind kind{};
  PayloadWhere where{};
  uint8_t flags = 0;
  uint8_t family = 0;     // atomics: AtomicFamily
  uint16_t datatype = 0;  // atomics: Datatype; high byte of every request: its traffic bits (nic/telemetry.hpp)
  uint16_t atomic_op = 0;
  int32_t status = 0;           // answers: Status
  uint32_t payload_length = 0;  // bytes of payload, wherever they are
  uint64_t op_id = 0;           // the initiator's number of the operation; answers repeat it
  uint64_t key = 0;
  uint64_t addr = 0;         // start of the whole accessed range, in the key's address space
  uint64_t length = 0;       // length of the whole accessed range (checked as a whole for every fragment)
  uint64_t frag_offset = 0;  // where in that range this frame's bytes belong
  uint64_t imm_data = 0;
  uint32_t ep_index = 0;  // target endpoint's slot, and the generation it had when the initiator resolved it
  uint32_t ep_generation = 0;
  EpAddress source;           // the initiating endpoint
  uint32_t staged_chunk = 0;  // where == staged: chunk number in the sender's staging memory
};
static_assert(sizeof(Frame) == 88 && alignof(Frame) == 8);
static_assert(offsetof(Frame, op_id) == 16 && offsetof(Frame, imm_data) == 56 && offsetof(Frame, source) == 72);

struct RmaRange {
  uint64_t addr = 0;
  uint64_t length = 0;
  uint64_t key = 0;
};
static_assert(sizeof(RmaRange) == 24);

// Limit of unanswered requests from one NIC to another. The initiator keeps to the limit; the target hangs up on a peer
// for which more answers than that are waiting. The limit bounds the memory that a stopped peer occupies: a request on
// shm carries up to 64 KiB, so at most 16 MiB wait for one peer.
constexpr uint32_t kUnansweredMax = 256;

// Limit of one peer's entries that wait for room in one endpoint's queue. It exceeds what any link can have under way
// when the peer learns that the queue is full (kFrameNoRoom); the NIC hangs up on a peer that passes it.
constexpr uint32_t kLateDataMax = 8192;

constexpr size_t kInlinePayloadMax = 240 - sizeof(Frame);
constexpr size_t kStagedPayloadMax = size_t{64} << 10;

inline void emit(const Frame& frame, std::span<std::byte> out) noexcept {
  std::memcpy(out.data(), &frame, sizeof(frame));
}

// The frame in `in`, or nothing when a field is outside its range.
inline std::optional<Frame> parse(std::span<const std::byte> in) noexcept {
  if (in.size() < sizeof(Frame)) return std::nullopt;
  Frame f;
  std::memcpy(static_cast<void*>(&f), in.data(), sizeof(f));
  const auto kind = static_cast<uint8_t>(f.kind);
  if (kind < 1 || kind > static_cast<uint8_t>(FrameKind::cm)) return std::nullopt;
  if (f.flags > kFrameFlagsMask || f.family > kFrameFamilyMax || f.source.reserved != 0) return std::nullopt;
  switch (f.where) {
    case PayloadWhere::none:
      if (f.payload_length != 0) return std::nullopt;
      break;
    case PayloadWhere::in_frame:
      if (f.payload_length > kInlinePayloadMax || f.payload_length > in.size() - sizeof(Frame)) return std::nullopt;
      break;
    case PayloadWhere::staged:
      if (f.payload_length > kStagedPayloadMax) return std::nullopt;
      break;
    default:
      return std::nullopt;
  }
  return f;
}

}  // namespace weft::wire
