// cpp/nic/op.hpp: an operation under way, and the table that maps answers to operations.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "base/status.hpp"
#include "link/link.hpp"
#include "nic/atomics.hpp"
#include "nic/rx.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

class Endpoint;
struct Flow;
struct Route;

constexpr size_t kIovMax = 8;
static_assert(kIovMax <= 8);  // a uint8_t has a bit for each buffer

enum class OpKind : uint8_t { write, read, atomic, batch, cm, send, pull };

// Fields used by every operation come first, so a one-buffer, one-range operation touches few cache lines.
struct Op {
  uint64_t id = 0;                   // the number in its answers; 0: unused
  uint64_t sequence = 0;             // in the order of posting
  Endpoint* ep = nullptr;            // outlives its operations
  std::shared_ptr<Flow> flow;        // to the target
  Op* next = nullptr;                // in the flow's list of waiting operations
  const link::Peer* peer = nullptr;  // set with the first frame; the loss of the peer ends the operation
  uint64_t flags = 0, context = 0, imm = 0, total = 0;
  uint64_t at_offset = 0, at_total = 0;  // submitted bytes: of remote[at_remote], and of all ranges
  uint32_t frames_out = 0;
  Status status = Status::ok;
  OpKind kind{};
  uint8_t local_count = 0, compare_count = 0, result_count = 0, remote_count = 0, at_remote = 0;
  AtomicFamily family{};
  AtomicOp atomic_op{};
  Datatype datatype{};
  bool wants_completion = false, inject_call = false, check_sent = false, submitted = false, data_done = false;
  bool holds_cq_room = false, counted = false, asks_room = false;
  bool held_back = false;                               // FI_MORE: begins at Endpoint::ring()
  uint8_t device_result_count = 0, device_results = 0;  // device_results bit i: device_result[i] is device memory
  uint32_t children = 0;
  Op* parent = nullptr;              // part of a vectored call: the call's Op
  std::shared_ptr<Route> failed_at;  // vectored call: the route of its first failure
  int32_t* status_out = nullptr;
  // send
  uint64_t tag = 0;
  uint32_t number = 0;       // of the message, in its flow
  uint32_t epoch = 0;        // Flow::epoch when the message was sent
  uint32_t lent = kNotLent;  // the slot of the buffer in the memory table
  bool tagged = false, numbered = false, has_id = false, wants_match = false;
  bool arrived = false, matched = false;  // the receiver has the message; a receive has it
  uint8_t attempts = 0;                   // that the receiver refused, for lack of a receive (FI_PROTO_CXI_RNR)
  uint64_t retry_at_ns = 0;               // not 0: waits for the next attempt
  uint64_t give_up_at_ns = 0;
  static constexpr uint32_t kNotLent = ~uint32_t{0};
  std::unique_ptr<RxPull> pull;
  std::vector<std::byte> held;    // copy of the data (inject, operands of atomics, data from or to a device)
  std::vector<uint64_t> cookies;  // objects of the caller, returned when the operation is done
  wire::RmaRange remote[kIovMax];
  iovec local[kIovMax];  // data, or an atomic's operand
  iovec compare[kIovMax];
  iovec result[kIovMax];
  // Destinations of the result in device memory; the result arrives in `held`, from `device_at` on.
  iovec device_result[kIovMax];
  uint64_t device_at = 0;
};

// The operations under way of one domain. Requires the domain's lock.
// An operation's number contains its slot, a sequence number (so that a late answer finds no operation) and its domain.
class OpTable {
 public:
  static constexpr uint32_t kSlotBits = 24, kSequenceBits = 24;
  static constexpr uint64_t kSequenceMask = (uint64_t{1} << kSequenceBits) - 1;
  static constexpr uint32_t domain_of(uint64_t id) noexcept {
    return static_cast<uint32_t>(id >> (kSlotBits + kSequenceBits));
  }

  // `next`: the first sequence number, where the previous domain of this index stopped.
  OpTable(uint32_t domain, uint64_t next) noexcept : domain_(domain), next_(next) {}

  Op* add() {
    if (free_.empty()) grow();
    const uint32_t slot = free_.back();
    free_.pop_back();
    if (!slots_[slot]) [[unlikely]]
      slots_[slot] = std::make_unique<Op>();
    Op* op = slots_[slot].get();
    if ((next_ & kSequenceMask) == 0) [[unlikely]]
      ++next_;  // number 0 means no operation
    op->sequence = next_++;
    op->id = uint64_t{domain_} << (kSlotBits + kSequenceBits) | (op->sequence & kSequenceMask) << kSlotBits | slot;
    return op;
  }

  [[nodiscard]] Op* find(uint64_t id) const noexcept {
    const uint64_t slot = slot_of(id);
    if (id == 0 || slot >= slots_.size() || !slots_[slot] || slots_[slot]->id != id) return nullptr;
    return slots_[slot].get();
  }

  void remove(Op* op) noexcept {
    const uint32_t slot = slot_of(op->id);
    if (free_.size() >= kSpareMax) [[unlikely]] {
      slots_[slot].reset();
    } else {
      std::vector<std::byte> held = std::move(op->held);
      std::vector<uint64_t> cookies = std::move(op->cookies);
      held.clear();
      cookies.clear();
      std::destroy_at(op);
      ::new (op) Op;               // not Op{}, which would clear the arrays, most of the object
      op->held = std::move(held);  // reuse the memory of these vectors
      op->cookies = std::move(cookies);
    }
    free_.push_back(slot);  // grow() has reserved room for all slots
  }

  template <typename Visit>
  void each(Visit&& visit) const {
    for (const auto& op : slots_) {
      if (op && op->id != 0) visit(op.get());
    }
  }

  [[nodiscard]] uint64_t next() const noexcept { return next_; }

 private:
  static constexpr size_t kSpareMax = 1024;  // freed objects kept for reuse
  static constexpr uint32_t slot_of(uint64_t id) noexcept { return id & ((1u << kSlotBits) - 1); }

  [[gnu::noinline]] void grow() {
    const size_t now = slots_.size(), then = now == 0 ? 64 : 2 * now;
    if (then > size_t{1} << kSlotBits) throw std::bad_alloc();
    free_.reserve(then);
    slots_.resize(then);
    for (size_t slot = then; slot > now; --slot) free_.push_back(static_cast<uint32_t>(slot - 1));
  }

  uint32_t domain_;
  uint64_t next_;
  std::vector<std::unique_ptr<Op>> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace weft::nic
