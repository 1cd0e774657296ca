// cpp/nic/message_sender.hpp: the messages that an endpoint sends: fi_msg(3), fi_tagged(3).
//
// Three protocols (docs/design/messages.md). Credited: the frame brings the message, the receiver has promised to take
// it, and the send ends at once. Eager: the frame brings the message, and the answer ends the send. Rendezvous: the
// frame brings the first bytes, the receiver pulls the rest, and `done` ends the send. Eager messages of several frames
// are pulled like these, but at once, into the receiver's memory if no receive is posted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nic/args.hpp"
#include "nic/config.hpp"
#include "nic/op.hpp"
#include "nic/order.hpp"
#include "nic/route.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

class Counter;
class Domain;
class TxPort;

class MessageSender {
 public:
  MessageSender(TxPort& tx, Domain* domain, const MessageConfig& config, const OrderRules& order) noexcept;

  // ---- for callers without a lock ----------------------------------------------------------------------------------
  PostResult post(const SendArgs& args);
  // Counts of messages that cannot be sent.
  struct State {
    uint32_t tagged_ids = 0, untagged_ids = 0;    // messages that wait to be pulled
    uint64_t no_id = 0, no_id_bytes = 0;          // sends refused for want of an id, and the longest of them
    uint64_t stops = 0;                           // refusals by receivers
    uint32_t stopped = 0;                         // peers that take no messages at present
    uint64_t stopped_ns = 0;                      // for how long the oldest of them has taken none
    uint64_t stopped_dest = 0;                    // its fi_addr
    uint64_t controls = 0, controls_dropped = 0;  // control messages that arrived, and those of them without room
  };
  [[nodiscard]] State state() const;
  // MessageConfig::retry_ns_max, for messages that are refused for the first time later.
  void set_retry_time(uint64_t ns) noexcept;
  [[nodiscard]] uint64_t retries() const noexcept { return retries_.load(std::memory_order_relaxed); }
  // Control messages that wait for software take effect.
  void run_controls() noexcept;

  // ---- for the other classes of the room, which hold the domain's lock ---------------------------------------------
  void count_with(std::shared_ptr<Counter> counter) noexcept { counter_ = std::move(counter); }
  [[nodiscard]] const std::shared_ptr<Counter>& counter() const noexcept { return counter_; }
  // Too many messages of the kind wait to be pulled for one more of this length.
  [[nodiscard]] bool lacks_id(bool tagged, uint64_t total) const noexcept;
  // The arguments of a message in its operation. False: op->status tells why not.
  bool take_args(Op* op, const SendArgs& args);
  // Sends the frame of a message. True: the operation has left the waiting list.
  bool advance(Op* op);
  // Called by TxPort::finish().
  void end(Op* op, Flow& flow) noexcept;
  // The answer to a message; a plain answer has no flags and an empty reply.
  void on_reply(Op* op, Status status, uint8_t flags, const wire::Reply& reply) noexcept;
  void on_ready(Flow& flow) noexcept;
  void on_taken(Op* op) noexcept;
  // Tells the receiver to forget the flow.
  void end_flow(Flow& flow) noexcept;
  void close() noexcept { control_.clear(); }
  // Slots of the memory table with buffers of canceled messages, which peers may still be reading.
  [[nodiscard]] std::span<const uint32_t> lent() const noexcept { return lent_; }

 private:
  PostResult post_untraced(const SendArgs& args);
  PostResult post_message(const SendArgs& args, bool* asks);
  bool may_credit(const Flow& flow, const SendArgs& args, uint64_t total) const noexcept;
  bool may_credit(const Op& op) const noexcept;
  Status submit_credited(Flow& flow, uint64_t tag, uint64_t data, bool tagged, uint64_t flags,
                         std::span<const std::byte> bytes);
  PostResult send_credited(Flow& flow, const SendArgs& args, uint64_t total, bool wants);
  [[nodiscard]] wire::Frame message_frame(const Route& route, const Flow& flow, uint64_t tag, uint64_t data,
                                          uint64_t total, bool tagged, uint64_t flags) const noexcept;
  void lend(Op* op);
  void unlend(Op* op, bool taken) noexcept;
  void restart_flow(Flow& flow) noexcept;
  void stop_flow(Flow& flow, Op* refused) noexcept;
  void resume_flow(Flow& flow) noexcept;
  bool retry_later(Op* refused) noexcept;
  void complete(bool wants, uint64_t context, bool tagged, uint64_t len, Counter* counter, bool late = false) noexcept;
  void report_failure(Op* op, Route& route) noexcept;

  TxPort& tx_;
  Domain* domain_;
  const MessageConfig& config_;
  std::shared_ptr<Counter> counter_;
  bool takes_credits_;  // false: later operations wait for messages, which then need an answer
  ClassSet stops_;      // bits of Flow::busy that keep a message from being sent by the call
  const OrderRules& order_;
  uint64_t retry_ns_max_;
  uint32_t tagged_ids_ = 0, untagged_ids_ = 0;  // messages that wait to be pulled
  uint64_t no_id_ = 0, no_id_bytes_ = 0, stops_seen_ = 0;
  std::atomic<uint64_t> retries_{0};            // messages sent again
  std::vector<std::shared_ptr<Flow>> control_;  // control messages that wait for software: flows that may go on
  uint64_t controls_ = 0, controls_dropped_ = 0;
  std::vector<uint32_t> lent_;
};

// A receiver copies a message of the domain, and this thread, which polls, copies parts of it (shared_copy.cpp).
// Without the lock. False: it has copied none.
bool help_copy(Domain& domain, link::Peer& peer, const wire::Frame& frame) noexcept;

}  // namespace weft::nic
