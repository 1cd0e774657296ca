// cpp/nic/reorder.hpp: operations of an endpoint overtake each other wherever no rule orders them, to find programs
// that rely on more order than they requested. One seed gives one sequence of decisions.
//
// An operation may be *kept*, so that later operations pass it. A write may land *late*: its initiator has the
// completion, but the data is not, or only partly, in the target's memory; FI_TRANSMIT_COMPLETE permits that. The
// endpoint submits a kept operation when another must follow it, after some later operations, when the application
// polls, and at the first progress after kDueNs. No operation is lost: closing the endpoint submits its kept
// operations, and closing a region waits for the late writes to it.
//
// Source: fi_endpoint(3) "msg_order", fi_cxi(7) "Message Ordering", "PCIe Ordering", "High Rate Put", "Unreliable
// AMOs".
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fields.hpp"
#include "link/link.hpp"
#include "nic/aliases.hpp"
#include "nic/args.hpp"
#include "nic/op.hpp"
#include "nic/order.hpp"

namespace weft::nic {

#define WEFT_TARGET_ORDERS(X)              \
  X(as_asked, 0, "As the operation asks.") \
  X(strict, 1, "All in order.")            \
  X(relaxed, 2, "No order.")
WEFT_ENUM(TargetOrder, uint8_t, WEFT_TARGET_ORDERS, "The order of a write's packets in the target's memory.");

struct ReorderConfig {
  WEFT_TABLE(10, ReorderConfig, "Operations that overtake each other wherever no rule orders them.");
  WEFT_FIELD(1, on, bool, false, none, "False: none does.");
  WEFT_FIELD(2, seed, uint64_t, 0, none, "One seed gives one sequence of decisions.");
  WEFT_FIELD(3, raw_bytes, uint64_t, ~uint64_t{0}, bytes, "Up to which the order of a read after a write holds.");
  WEFT_FIELD(4, war_bytes, uint64_t, ~uint64_t{0}, bytes, "Up to which the order of a write after a read holds.");
  WEFT_FIELD(5, waw_bytes, uint64_t, ~uint64_t{0}, bytes, "Up to which the order of a write after a write holds.");
  WEFT_FIELD(6, target, TargetOrder, TargetOrder::as_asked, none, "How a write's packets land.");
};

// The properties of an operation that decide which others it may pass.
struct Ordered {
  const Flow* flow = nullptr;
  uint64_t bytes = 0;
  OpClass cls = OpClass::write;
  uint8_t lane = 0;  // 0: the endpoint; others: its aliases
  bool reads = false, writes = false;
  bool unordered = false;  // unreliable atomics and High Rate Puts
  bool pcie = false;       // atomics over PCIe: other operations are not ordered with them
};

bool must_follow(const Ordered& earlier, const Ordered& later, uint64_t msg_order,
                 const ReorderConfig& limits) noexcept;

// One seed gives one sequence of decisions.
class Decisions {
 public:
  static constexpr uint64_t kDueNs = 20'000'000;  // the time that something is kept or late, at most

  explicit Decisions(const ReorderConfig& config) noexcept : target_(config.target), state_(config.seed) {}
  // A number below n, by splitmix64.
  uint64_t below(uint64_t n) noexcept {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % n;
  }
  // The packets of a write that are late, while the others land at once. A strictly ordered packet lands after all
  // packets before it: the last packet of an ordered write, every packet of an unordered write. The others may pass
  // each other. ReorderConfig::target makes all packets strictly ordered, or none.
  std::vector<bool> late_packets(uint64_t bytes, bool ordered);

 private:
  TargetOrder target_;
  uint64_t state_;
};

// What one endpoint keeps, and has landing. Callers hold the domain's lock.
class Reorder {
 public:
  // The port outlives its Reorder.
  Reorder(TxPort& tx, const ReorderConfig& config, const Aliases& aliases) noexcept
      : tx_(tx), limits_(config), aliases_(aliases), decide_(config) {}

  // What decides the order of an operation with this key, these flags and so many bytes.
  [[nodiscard]] Ordered ordered(const Flow& flow, OpKind kind, AtomicFamily family, AtomicOp op, Datatype datatype,
                                uint64_t key, uint64_t flags, uint64_t bytes) const noexcept;
  // Called before an operation starts: submits what it must not pass. True: keep the operation.
  bool keeps(const Ordered& what, uint64_t flags);
  uint64_t keep(Op* op, const Ordered& what);  // returns its number
  void forget(const Op* op) noexcept;          // it has ended
  // Performs a write that lands late, and reports its completion if requested. False: the write cannot be late.
  bool write_late(Flow& flow, const RmaArgs& args, const Ordered& what, uint64_t total, bool wants);
  // True if an unreliable atomic is lost. `done`: it was performed and only its answer is lost.
  bool loses(const Ordered& what, bool* done) noexcept;

  // Submits all kept operations, in an order chosen by the seed: none of them must follow another.
  void release_kept();
  void release_all();  // the late writes too
  size_t release_due(uint64_t now_ns);
  void land_all() noexcept;

 private:
  struct Kept {
    Op* op;
    Ordered what;
    uint32_t lag;  // submitted after this many later operations
    uint64_t due_ns;
  };
  // A write whose initiator has the completion. packets: those that are not in the target's memory yet.
  struct Late {
    Ordered what;
    std::shared_ptr<Flow> flow;
    std::shared_ptr<link::Peer> peer;  // keeps the memory mapped
    std::byte* there;
    std::vector<std::byte> data;
    std::vector<bool> packets;
    bool hrp;
    uint32_t activity;
    uint32_t lag;
    uint64_t due_ns;
  };

  [[nodiscard]] bool follows(const Ordered& later, const Ordered& earlier) const noexcept {
    return must_follow(earlier, later, aliases_.at(later.lane).msg_order, limits_);
  }
  void release(size_t i);  // submits the i-th kept operation
  void forget(size_t i) noexcept;
  void land(size_t i) noexcept;  // copies the rest of the i-th late write to the target's memory

  TxPort& tx_;
  ReorderConfig limits_;
  const Aliases& aliases_;
  std::vector<Kept> kept_;
  std::vector<Late> late_;
  Decisions decide_;
};

}  // namespace weft::nic
