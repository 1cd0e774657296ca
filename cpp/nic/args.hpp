// cpp/nic/args.hpp: the arguments of an endpoint's calls, and their result.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nic/atomics.hpp"
#include "nic/op.hpp"
#include "nic/rules.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

// One remote access as the caller describes it.
struct RmaArgs {
  OpKind kind = OpKind::write;
  uint64_t dest = 0;  // fi_addr
  std::span<const iovec> local;
  std::span<const wire::RmaRange> remote;
  uint64_t flags = 0;  // operation flags, already merged with the endpoint's defaults
  uint64_t context = 0;
  uint64_t imm = 0;
  bool inject_call = false;  // fi_inject_*: reports no success
  uint8_t device = 0;        // bit i: local[i] is device memory
};

struct AtomicArgs {
  uint64_t dest = 0;
  AtomicFamily family = AtomicFamily::base;
  AtomicOp op{};
  Datatype datatype{};
  std::span<const iovec> operand;  // lengths in bytes
  std::span<const iovec> compare;
  std::span<const iovec> result;
  std::span<const wire::RmaRange> remote;  // lengths in bytes
  uint64_t flags = 0;
  uint64_t context = 0;
  uint64_t imm = 0;
  bool inject_call = false;
  uint8_t operand_device = 0, compare_device = 0, result_device = 0;  // bit i: that buffer is device memory
};

// A call on an object: wire/call.hpp.
struct CallArgs {
  uint64_t dest = 0, addr = 0, key = 0;
  std::span<const std::byte> request;
  std::byte* answer = nullptr;  // as long as the request
  uint64_t context = 0;
};

// Copies in host memory of an atomic's buffers, where some of them are device memory: operand, compare, result.
struct HostCopies {
  std::vector<std::byte> room;  // empty: there are no copies
  std::array<iovec, 3> list;
  Status make(const mem::Devices& devices, AtomicArgs* args, uint64_t total);
};

// A message to send: fi_msg(3), fi_tagged(3).
struct SendArgs {
  uint64_t dest = 0;  // fi_addr
  std::span<const iovec> local;
  uint64_t tag = 0, data = 0;  // data: with flag::kRemoteCqData
  uint64_t flags = 0;          // operation flags, already merged with the endpoint's defaults
  uint64_t context = 0;
  bool tagged = false;
  bool inject_call = false;  // fi_inject, fi_tinject and those with data: reports no success
  uint8_t device = 0;        // bit i: local[i] is device memory
};

// A receive to post, or what FI_PEEK looks for.
struct ReceiveArgs {
  uint64_t source = ~uint64_t{0};  // fi_addr; FI_ADDR_UNSPEC: from any endpoint
  std::span<const iovec> local;    // with kMultiRecv: one buffer
  uint64_t tag = 0, ignore = 0;
  uint64_t flags = 0;  // kCompletion, kMultiRecv, kPeek, kClaim, kDiscard, kMore
  uint64_t context = 0;
  bool tagged = false;
  uint8_t device = 0;                 // bit i: local[i] is device memory
  std::span<const uint64_t> cookies;  // objects that the receive needs; Domain::take_released() returns them
  bool deferred = false;              // reports its completion only with kCompletion
  std::shared_ptr<Counter> counter;   // counts the receive instead of the endpoint's counter
};

// One descriptor of a vectored call: weft.fi.RMA_DESC.
struct BatchDesc {
  uint64_t local_offset;
  uint64_t length;
  uint64_t dest_addr;
  uint64_t remote_addr;
  uint64_t key;
  int32_t status;
  uint32_t reserved;
};
static_assert(sizeof(BatchDesc) == 48);

// Pieces of one region for Endpoint::move_rows_now(): `count` pieces of `bytes`. Piece i is at local + i * local_step
// in local memory, and at addr + i * step, or addr + index[i] * step, in the region.
struct Rows {
  std::byte* local = nullptr;
  uint64_t bytes = 0, count = 0;
  uint64_t local_step = 0;
  uint64_t addr = 0;
  int64_t step = 0;
  const int64_t* index = nullptr;  // null: 0, 1, 2 ...
  uint64_t limit = 0;              // of indices; negative indices count from it
};

// An atomic on `count` neighbouring elements for Endpoint::update_now(). Lists that the family does not use are null.
struct Update {
  AtomicFamily family = AtomicFamily::base;
  AtomicOp op{};
  Datatype datatype{};
  const std::byte* operand = nullptr;
  const std::byte* compare = nullptr;
  std::byte* result = nullptr;
  uint64_t count = 1;
};

// fault: a page failed, and some elements after the first `done` may be updated.
// raced: the process was stopped for seconds, and others updated elements after the first `done` at the same time.
struct Updated {
  uint64_t done = 0;
  bool fault = false, raced = false;
};

struct PostResult {
  Refusal refusal = Refusal::none;
  bool context_used = false;  // a completion with the context was or will be delivered
  uint64_t op_id = 0;         // not zero: under way; the operation needs the buffers until it is done
};

}  // namespace weft::nic
