// cpp/wire/frame.hpp: the one frame that NICs exchange: requests, answers and notices. A head and a body; the kind says
// which body.
// 88 bytes, little endian, then up to kInlinePayloadMax bytes of payload, or a reference to staged payload.
// The receiver copies a frame out of shared memory before parse() checks it, because the peer can change the shared
// bytes at any time.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "wire/address.hpp"

namespace weft::wire {

enum class FrameKind : uint8_t {
  write = 1,    // put payload into the region
  read = 2,     // answer with bytes of the region
  atomic = 3,   // apply; fetching families answer with the values before
  check = 4,    // payload: RmaRange list; verify all of them before the fragments that follow under the same op_id
  answer = 5,   // status, and payload for reads, fetches and pulls
  notice = 6,   // an access was already done by load/store: count it, deliver its immediate data
  cm = 7,       // connecting endpoints; payload: private data
  message = 8,  // fi_msg(3), fi_tagged(3); payload: the message, or its first bytes
  reply = 9,    // the answer to a message, if a status is not enough
  pull = 10,    // answer with bytes of a message that the receiver of this frame has sent
  done = 11,    // the message `op_id` has been matched, and its bytes pulled; or its endpoint has closed: the operation
                // ends with the status. No answer
  ready = 12,   // a flow whose message was refused may send again. No answer
  leave = 13,   // a flow has ended at its sender. No answer
  reduce = 14,  // a step of a join or a reduction, from a neighbour in a collective group's tree. No answer
  help = 15,  // the receiver copies the message `op_id`, and its sender may copy a part (link/copy_job.hpp). No answer
};
constexpr uint8_t kFrameKindMax = static_cast<uint8_t>(FrameKind::help);
// Requests have an answer, and count against the limits of unanswered requests.
constexpr bool is_answer(FrameKind kind) noexcept {
  return kind == FrameKind::answer || kind == FrameKind::reply;
}
constexpr bool is_request(FrameKind kind) noexcept {
  return !is_answer(kind) && kind != FrameKind::notice && kind < FrameKind::done;
}

enum class PayloadWhere : uint8_t { none = 0, in_frame = 1, staged = 2 };

constexpr uint8_t kFrameHasData = 1;   // access.data is valid: deliver a completion entry at the target
constexpr uint8_t kFrameLast = 2;      // last fragment of its operation
constexpr uint8_t kFrameIsRead = 4;    // notice: the access was a read
constexpr uint8_t kFrameIsAtomic = 8;  // notice/data: the access was an atomic
constexpr uint8_t kFrameCommit = 16;   // FI_COMMIT_COMPLETE: answer when the bytes are durable
// Flags of answers to requests with immediate data. NoRoom: the target's queue is full, and the initiator holds back
// further requests with data until the target answers a check frame with kFrameHasData (the question) with Room.
constexpr uint8_t kFrameNoRoom = 32, kFrameRoom = 64;
constexpr uint8_t flags_mask(FrameKind kind) noexcept {
  return kind == FrameKind::message ? 255 : 127;
}
constexpr uint8_t kFrameFamilyMax = 2;  // AtomicFamily::compare

// Flags of messages.
constexpr uint8_t kMessageTagged = 1, kMessageHasData = 2;
constexpr uint8_t kMessageRendezvous = 4;   // the receiver pulls what the frame does not bring
constexpr uint8_t kMessageCredited = 8;     // the receiver has promised to take the message; no answer
constexpr uint8_t kMessageFirst = 16;       // of its flow
constexpr uint8_t kMessageUnordered = 32;   // FI_PROTO_CXI_RNR
constexpr uint8_t kMessageWantsMatch = 64;  // done follows when a receive has the message
// Beside rendezvous, of an eager message that is longer than a frame: the receiver pulls when the frame arrives.
constexpr uint8_t kMessageWhole = 128;

// Flags of replies. Refused: send it again later. Arrived: done follows.
constexpr uint8_t kReplyRefused = 1, kReplyArrived = 2;

// The body of an access to memory, of its answer and its notice. The answer repeats the request's body.
struct Access {
  uint64_t key;
  uint64_t addr;         // start of the whole accessed range, in the key's address space
  uint64_t length;       // length of the whole accessed range (checked as a whole for every fragment)
  uint64_t frag_offset;  // where in that range this frame's bytes belong
  uint64_t data;         // immediate data; of a read: where its bytes belong in the initiator's buffers
};
// The body of a message.
struct MessageBody {
  uint64_t tag, data;
  uint64_t length;    // of the whole message
  uint64_t key;       // rendezvous: the sender's buffer, for a receiver that reads the sender's table; 0: by frames
  uint32_t sequence;  // in the flow, from 0; wraps
  // The receiver's number of the flow. First message: the fi_addr of the sender (FI_SYMMETRIC), or ~0.
  uint32_t sender;
};
// The body of reply, done, ready and leave.
struct Reply {
  uint32_t sender;   // the receiver's number of the flow
  uint32_t credits;  // further messages that may be sent as credited ones
  uint64_t length;   // done: bytes that the receiver took
  uint64_t reserved[3];
};
// The body of connecting.
struct Connect {
  uint64_t connection;
  uint16_t message;  // nic/cm.hpp
  uint16_t reserved[15];
};
// The body of a pull: part of a message; the answer repeats it.
struct Pull {
  uint64_t message;  // the operation's number at the receiver of this frame
  uint64_t offset;   // in the message
  uint64_t place;    // where the bytes belong in the puller's buffer
  uint64_t reserved[2];
};
// The body of help: bytes [offset, offset + length) of the message go to `place` in the receiver's address space.
struct Help {
  uint64_t place, offset, length;
  uint32_t number;  // of the copy
  uint32_t reserved[3];
};
// The body of reduce: from one member of a collective group to a neighbour in its tree (nic/group.hpp).
struct Reduce {
  uint64_t group;     // tier 0: the join's key; tier 1: the group's number
  uint64_t value;     // by `what`
  uint32_t from, to;  // members' numbers: of the sender, of the receiver
  uint32_t sequence;  // part, result: of the reduction, from 0; wraps. welcome: the tree's radix
  uint32_t block;     // welcome: consecutive members that share a host
  uint16_t error;     // ready, joined: the largest error so far
  uint8_t what;       // ReduceWhat
  uint8_t tier;       // 0: the tree of the join; 1: the group's own
  uint32_t reserved;
};
// up, call: `value` is the sender's endpoint, slot in the upper half, generation in the lower.
enum class ReduceWhat : uint8_t {
  up = 1,       // the sender and the members below have joined; sequence: that of the parent's call
  call = 2,     // the sender has joined. To a child: say `up`. To others: call me. sequence: the sender's attempt, or 0
  welcome = 3,  // tier 0, downwards: all members have joined; value: the group's number
  joined = 4,   // tier 1, downwards: the join has ended; value: the multicast address, and its root's number << 32
  part = 5,     // upwards, or to every other member: contributions
  result = 6,   // downwards
  lost = 7,     // the member `value` is gone: the group is at its end. Frame::status says why
  gone = 8,     // no such endpoint: answers up and call
};
constexpr uint8_t kReduceWhatMax = static_cast<uint8_t>(ReduceWhat::gone);

struct Frame {
  FrameKind kind{};
  PayloadWhere where{};
  uint8_t flags = 0;
  uint8_t family = 0;     // atomics: AtomicFamily
  uint8_t datatype = 0;   // atomics: Datatype
  uint8_t atomic_op = 0;  // atomics: AtomicOp
  uint8_t traffic = 0;    // requests: nic/telemetry.hpp
  uint8_t reserved = 0;
  int32_t status = 0;           // answers, done: Status. read, pull: bytes that the answer should bring
  uint32_t payload_length = 0;  // bytes of payload, wherever they are
  uint64_t op_id = 0;           // the initiator's number of the operation; answers repeat it. done: the receiver's
  uint32_t ep_index = 0;        // target endpoint's slot, and the generation it had when the initiator resolved it
  uint32_t ep_generation = 0;
  EpAddress source;           // the initiating endpoint
  uint32_t staged_chunk = 0;  // where == staged: chunk number in the sender's staging memory
  union {                     // by kind
    Access access{};
    MessageBody message;
    Reply reply;
    Connect connect;
    Pull pull;
    Help help;
    Reduce reduce;
  };
};
static_assert(sizeof(Frame) == 88 && alignof(Frame) == 8);
static_assert(offsetof(Frame, op_id) == 16 && offsetof(Frame, source) == 32 && offsetof(Frame, access) == 48);
static_assert(sizeof(Access) == 40 && sizeof(MessageBody) == 40 && sizeof(Reply) == 40 && sizeof(Connect) == 40 &&
              sizeof(Pull) == 40 && sizeof(Help) == 40 && sizeof(Reduce) == 40);

struct RmaRange {
  uint64_t addr = 0;
  uint64_t length = 0;
  uint64_t key = 0;
};
static_assert(sizeof(RmaRange) == 24);

// Limit of unanswered requests from one NIC to another. The initiator keeps to the limit; the target hangs up on a peer
// for which more answers than that are waiting. Credited messages, which have no answer, are limited by the credits of
// their flows. The limit bounds the memory that a stopped peer occupies: a request on
// shm carries up to 64 KiB, so at most 16 MiB wait for one peer.
constexpr uint32_t kUnansweredMax = 256;

// Limit of one peer's entries that wait for room in one endpoint's queue. It exceeds what any link can have under way
// when the peer learns that the queue is full (kFrameNoRoom); the NIC hangs up on a peer that passes it.
constexpr uint32_t kLateDataMax = 8192;

constexpr size_t kInlinePayloadMax = 240 - sizeof(Frame);
constexpr size_t kStagedPayloadMax = size_t{64} << 10;

inline void emit(const Frame& frame, std::span<std::byte> out) noexcept {
  assert(out.size() >= sizeof(frame) && "a frame fits");
  std::memcpy(out.data(), &frame, sizeof(frame));
}

// The frame in `in`, or nothing when a field is outside its range.
inline std::optional<Frame> parse(std::span<const std::byte> in) noexcept {
  if (in.size() < sizeof(Frame)) return std::nullopt;
  Frame f;
  std::memcpy(static_cast<void*>(&f), in.data(), sizeof(f));
  const auto kind = static_cast<uint8_t>(f.kind);
  if (kind < 1 || kind > kFrameKindMax) return std::nullopt;
  if ((f.flags & ~flags_mask(f.kind)) != 0 || f.family > kFrameFamilyMax || f.source.reserved != 0 || f.reserved != 0) {
    return std::nullopt;
  }
  // The receiver's record of such a message is then small beside the message's bytes, which are counted.
  if ((f.flags & kMessageWhole) != 0 && f.message.length <= kStagedPayloadMax) return std::nullopt;
  if (f.kind == FrameKind::reduce &&
      (f.reduce.what < 1 || f.reduce.what > kReduceWhatMax || f.reduce.tier > 1 || f.reduce.reserved != 0)) {
    return std::nullopt;
  }
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
