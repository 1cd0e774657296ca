// cpp/nic/trace.hpp: a record of what a NIC does, for a timeline: operations, matches, triggers, stalls, frames served.
//
// The records are in a file that the caller maps (host/trace_file.hpp), so they stay when the process is killed. The
// file is a head, and a ring of 64-byte records. Any thread adds; nothing waits. When the ring is full, the newest
// record replaces the oldest. A record whose place is still being written, by a thread that was stopped for a whole
// round, is dropped. Readers: src/weft/observe/records.py, which knows this layout.
//
// Cost when off: Endpoint::traced_, a byte in a cache line that every operation reads; the shortest paths are chosen by
// Endpoint::plain_, which a traced endpoint never sets, and have no test of their own. Benchmark: bench/cpp (put8,
// messages). Source of the timeline's format: Trace Event Format (Chromium), "JSON Object Format".
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/cache.hpp"
#include "base/clock.hpp"
#include "base/status.hpp"

namespace weft::nic {

// What a record tells. t_ns: its time; of one with a duration: its begin. The numbers are those of the file.
enum class TraceKind : uint8_t {
  call = 1,         // a call posted an operation. what: OpKind; id: of the operation, 0: done in the call; duration
  begin = 2,        // an operation outlasts its call. what: OpKind; id; bytes; peer; arg: tag or key
  end = 3,          // the same has ended. what; id; bytes; status
  failed = 4,       // an operation failed in its call. bytes; status; peer; arg: key
  post = 5,         // a receive was posted. bytes: of its buffer; arg: tag; id: context
  matched = 6,      // a rendezvous found its receive, and its bytes are pulled. bytes; arg: tag; peer
  received = 7,     // a receive has a message. bytes; arg: tag; peer; status; id: context
  kept = 8,         // a message found no receive, and is kept. bytes; arg: tag; peer
  stall = 9,        // a call was refused with FI_EAGAIN. what: Refusal
  go_on = 10,       // the next call was not refused. what: Refusal; id: number of refused calls
  stopped = 11,     // flow control: a receiver takes no messages. peer
  resumed = 12,     // the receiver takes messages again. peer
  retry = 13,       // a message is sent again later. id; arg: attempts
  match_mode = 14,  // what: RxMode::State; arg: RxMode::Cause
  served = 15,      // a frame of a peer was served. what: wire::FrameKind; bytes; duration; peer
  triggered = 16,   // a triggered operation began. what: OpKind; arg: threshold; id: of the work
  peer_lost = 17,   // arg: process id of the peer
};

// A record of the file.
struct TraceRecord {
  uint64_t t_ns = 0, duration_ns = 0;
  uint64_t id = 0, bytes = 0, arg = 0;
  uint32_t thread = 0;    // set by Trace::add()
  uint32_t peer = 0;      // pid of the peer's endpoint
  uint16_t endpoint = 0;  // index in TraceHead::endpoints, or kNoEndpoint
  TraceKind kind{};
  uint8_t what = 0;
  int32_t status = 0;

  static constexpr uint16_t kNoEndpoint = 0xffff;
};
static_assert(sizeof(TraceRecord) == 56 && offsetof(TraceRecord, thread) == 40 && offsetof(TraceRecord, peer) == 44 &&
              offsetof(TraceRecord, endpoint) == 48 && offsetof(TraceRecord, status) == 52);

struct TraceSlot {
  // 0: never used; odd: being written; even: 2 * (number of the record + 1).
  std::atomic<uint64_t> state;
  TraceRecord record;
};
static_assert(sizeof(TraceSlot) == kCacheLine);

struct TraceHead {
  static constexpr uint32_t kVersion = 1;
  static constexpr size_t kBytes = 64 * 1024, kEndpoints = 960, kThreads = 64;
  struct EndpointName {
    std::atomic<uint32_t> used;  // 0: this entry is not written yet
    uint32_t nic, pid;
    uint16_t vni, domain;
    char text[48];
  };
  struct ThreadName {
    std::atomic<uint32_t> used;
    uint32_t thread;
    char name[24];
  };

  char magic[8];  // "WEFTTRC", 0
  uint32_t version, record_bytes;
  uint64_t slots;       // a power of two
  uint64_t process;     // pid
  uint64_t started_ns;  // of the clock of the records
  uint64_t started_at;  // the same moment, in nanoseconds since 1970
  std::atomic<uint64_t> added, dropped;
  std::atomic<uint32_t> endpoint_count, thread_count;
  char command[64];  // the command line, ending in 0
  ThreadName threads[kThreads];
  EndpointName endpoints[kEndpoints];
};
static_assert(sizeof(TraceHead::EndpointName) == 64 && sizeof(TraceHead::ThreadName) == 32);
static_assert(offsetof(TraceHead, threads) == 136 && sizeof(TraceHead) <= TraceHead::kBytes);

class Trace {
 public:
  // bytes_for(): the size of a file with `records` places, a power of two.
  static constexpr size_t bytes_for(size_t records) noexcept { return TraceHead::kBytes + records * sizeof(TraceSlot); }
  // memory: zeros, bytes_for(records) of them, which outlive this object. at: nanoseconds since 1970.
  Trace(std::span<std::byte> memory, size_t records, Clock& clock, uint64_t at, std::string_view command) noexcept;

  [[nodiscard]] uint64_t now_ns() noexcept { return clock_.now_ns(); }
  // Adds a record; sets its thread. Any thread.
  void add(TraceRecord record) noexcept;
  // Names an endpoint; returns its index for records. Beyond kEndpoints: kNoEndpoint.
  uint16_t name_endpoint(uint32_t nic, uint32_t pid, uint16_t vni, uint32_t domain, std::string_view text) noexcept;
  // For the unit of triggered operations: work with this number began, because its counter reached the threshold.
  void triggered(uint16_t endpoint, uint8_t what, uint64_t threshold, uint64_t work) noexcept;

 private:
  uint32_t thread_number() noexcept;

  TraceHead* head_;
  TraceSlot* slots_;
  uint64_t mask_;
  Clock& clock_;
  const uint64_t serial_;  // no other Trace of this process and its children has the same
};

// An endpoint's part of a trace: the calls that are refused now.
class EndpointTrace {
 public:
  explicit EndpointTrace(Trace* trace) noexcept : trace_(trace) {}
  void set_name(uint16_t index) noexcept { endpoint_ = index; }
  [[nodiscard]] Trace& trace() noexcept { return *trace_; }
  [[nodiscard]] uint16_t endpoint() const noexcept { return endpoint_; }
  [[nodiscard]] uint64_t now_ns() noexcept { return trace_->now_ns(); }

  // Adds a record of this endpoint. t_ns 0: now.
  void add(TraceRecord record) noexcept;
  // A call was refused, to be repeated.
  void refused(uint8_t refusal) noexcept;
  // A call was not refused.
  void went_on() noexcept;

 private:
  Trace* trace_;
  uint16_t endpoint_ = TraceRecord::kNoEndpoint;
  std::atomic<uint64_t> refusals_{0};
  std::atomic<uint8_t> refusal_{0};
};

}  // namespace weft::nic
