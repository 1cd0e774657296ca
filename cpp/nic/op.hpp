// cpp/nic/op.hpp: an operation under way, and the table that maps answers to operations.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <variant>
#include <vector>

#include "base/status.hpp"
#include "link/link.hpp"
#include "nic/atomics.hpp"
#include "nic/cm.hpp"
#include "nic/rx.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

class Counter;
class RxPort;
class TxPort;
struct Flow;
struct Route;

constexpr size_t kIovMax = 8;
static_assert(kIovMax <= 8);  // a uint8_t has a bit for each buffer

enum class OpKind : uint8_t { write, read, atomic, batch, cm, send, pull };

// A list of at most kIovMax: one element is in the object, several are in memory of their own.
template <typename T>
class ShortList {
 public:
  void set(const T& one) noexcept {
    one_ = one;
    count_ = 1;
  }
  // Throws std::bad_alloc.
  void set(std::span<const T> all) {
    assert(all.size() <= kIovMax && "the caller has checked the length of the list");
    if (all.size() == 1) {
      set(all[0]);
      return;
    }
    if (all.size() > 1 && !several_) several_ = std::make_unique<T[]>(kIovMax);
    std::ranges::copy(all, several_.get());
    count_ = static_cast<uint8_t>(all.size());
  }
  [[nodiscard]] const T* data() const noexcept { return count_ > 1 ? several_.get() : &one_; }
  [[nodiscard]] size_t size() const noexcept { return count_; }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  const T& operator[](size_t i) const noexcept { return data()[i]; }
  operator std::span<const T>() const noexcept { return {data(), count_}; }  // NOLINT: an implicit view

 private:
  T one_;  // not initialized: count_ elements are valid
  uint8_t count_ = 0;
  std::unique_ptr<T[]> several_;
};

// An operation: a head, which every kind has, and a body by kind.
struct Op {
  // Of write, read and atomic: what happens in the peer's memory.
  struct Access {
    ShortList<wire::RmaRange> remote;
    uint64_t at_offset = 0, at_total = 0;  // submitted bytes: of remote[at_remote], and of all ranges
    uint8_t at_remote = 0;
    uint32_t epoch = 0;  // Route::epoch when the first frame was sent
    bool check_sent = false;
    bool data_done = false;  // the bytes have moved; only the notice for the peer is missing
    AtomicFamily family{};
    AtomicOp op{};
    Datatype datatype{};
    uint8_t device_results = 0;  // bit i: device_result[i] is device memory
    ShortList<iovec> compare, result;
    // Destinations of the result in device memory; the result arrives in `held`, from `device_at` on.
    ShortList<iovec> device_result;
    uint64_t device_at = 0;
    int32_t* status_out = nullptr;  // of a part of a vectored call
  };
  // Of a vectored call, whose parts are operations.
  struct Batch {
    uint32_t children = 0;
    bool reads = false;
    std::shared_ptr<Route> failed_at;  // of its first failure
    wire::RmaRange failed_range{};
  };
  struct Connect {
    CmKind kind{};
    uint64_t connection = 0;
  };
  struct Send {
    static constexpr uint32_t kNotLent = ~uint32_t{0};
    uint64_t tag = 0;
    uint32_t number = 0;       // of the message, in its flow
    uint32_t epoch = 0;        // Flow::epoch when the message was sent
    uint32_t lent = kNotLent;  // the slot of the buffer in the memory table
    bool tagged = false, numbered = false, wants_match = false;
    bool announced = false;                 // the receiver pulls what the frame does not bring
    bool has_id = false;                    // waits for its receive: a rendezvous
    bool arrived = false, matched = false;  // the receiver has the message; a receive has it
    bool helped = false;                    // the receiver has asked for help with its copy
    uint8_t attempts = 0;                   // that the receiver refused, for lack of a receive (FI_PROTO_CXI_RNR)
    uint64_t retry_at_ns = 0;               // not 0: waits for the next attempt
    uint64_t give_up_at_ns = 0;
  };
  struct Pull {
    RxPull of;
    RxPort* port = nullptr;  // which asked for it
    uint64_t at_total = 0;   // bytes asked for
  };

  uint64_t id = 0;                   // the number in its answers; 0: unused
  uint64_t sequence = 0;             // in the order of posting
  TxPort* tx = nullptr;              // outlives its operations
  std::shared_ptr<Flow> flow;        // to the target
  Op* next = nullptr;                // in the flow's list of waiting operations
  const link::Peer* peer = nullptr;  // set with the first frame; the loss of the peer ends the operation
  uint64_t flags = 0, context = 0, total = 0;
  uint64_t data = 0;  // remote CQ data
  uint32_t frames_out = 0;
  Status status = Status::ok;
  OpKind kind{};
  bool wants_completion = false, inject_call = false, submitted = false, holds_cq_room = false, counted = false;
  bool asks_room = false;
  bool asked_again = false;          // the endpoint it was for was closed: the address has been resolved once more
  bool held_back = false;            // FI_MORE: begins at TxPort::ring()
  Op* parent = nullptr;              // part of a vectored call: the call's Op
  ShortList<iovec> local;            // the caller's buffers, or `held`
  std::vector<std::byte> held;       // copy of the data (inject, operands of atomics, data from or to a device)
  std::vector<uint64_t> cookies;     // objects of the caller, returned when the operation is done
  std::shared_ptr<Counter> counter;  // of deferred work: counts the operation instead of the endpoint's counter

  [[nodiscard]] bool accesses() const noexcept { return kind < OpKind::batch; }
  [[nodiscard]] bool has_body() const noexcept {
    return body_.index() == (accesses() ? 1 : static_cast<size_t>(kind) - 1);
  }
  // The body; only that of the kind exists.
  Access& access() noexcept { return of<Access>(); }
  [[nodiscard]] const Access& access() const noexcept { return of<Access>(); }
  Batch& batch() noexcept { return of<Batch>(); }
  Connect& connect() noexcept { return of<Connect>(); }
  Send& send() noexcept { return of<Send>(); }
  [[nodiscard]] const Send& send() const noexcept { return of<Send>(); }
  Pull& pull() noexcept { return of<Pull>(); }
  // A body for a new operation of this kind.
  void set_kind(OpKind of_kind) noexcept {
    kind = of_kind;
    switch (of_kind) {
      case OpKind::write:
      case OpKind::read:
      case OpKind::atomic:
        body_.emplace<Access>();
        break;
      case OpKind::batch:
        body_.emplace<Batch>();
        break;
      case OpKind::cm:
        body_.emplace<Connect>();
        break;
      case OpKind::send:
        body_.emplace<Send>();
        break;
      case OpKind::pull:
        body_.emplace<Pull>();
        break;
    }
  }

 private:
  template <typename Body>
  Body& of() noexcept {
    assert(std::holds_alternative<Body>(body_));
    return *std::get_if<Body>(&body_);
  }
  template <typename Body>
  [[nodiscard]] const Body& of() const noexcept {
    assert(std::holds_alternative<Body>(body_));
    return *std::get_if<Body>(&body_);
  }
  std::variant<std::monostate, Access, Batch, Connect, Send, Pull> body_;
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
  explicit OpTable(uint32_t domain = 0, uint64_t next = 1) noexcept : domain_(domain), next_(next) {}

  Op* add() {
    if (free_.empty()) grow();
    const uint32_t slot = free_.back();
    free_.pop_back();
    if (!slots_[slot]) [[unlikely]]
      slots_[slot] = std::make_unique<Op>();
    Op* op = slots_[slot].get();
    assert(op->id == 0 && "no operation is under way in a free slot");
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
    assert(find(op->id) == op && "the operation is in the table");
    const uint32_t slot = slot_of(op->id);
    if (free_.size() >= kSpareMax) [[unlikely]] {
      slots_[slot].reset();
    } else {
      std::vector<std::byte> held = std::move(op->held);
      std::vector<uint64_t> cookies = std::move(op->cookies);
      held.clear();
      cookies.clear();
      std::destroy_at(op);
      ::new (op) Op;
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
#if !defined(NDEBUG)
  void check() const;  // check.cpp
#endif

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
