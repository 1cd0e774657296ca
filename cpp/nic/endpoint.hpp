// cpp/nic/endpoint.hpp: an endpoint: checks, orders, fences and counts every operation.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "link/link.hpp"
#include "mem/table.hpp"
#include "nic/aliases.hpp"
#include "nic/args.hpp"
#include "nic/cm.hpp"
#include "nic/counter.hpp"
#include "nic/entry.hpp"
#include "nic/model.hpp"
#include "nic/mover.hpp"
#include "nic/op.hpp"
#include "nic/order.hpp"
#include "nic/reorder.hpp"
#include "nic/route.hpp"
#include "nic/rx_buffers.hpp"
#include "nic/rx_port.hpp"
#include "nic/telemetry.hpp"
#include "nic/trace.hpp"
#include "nic/trigger.hpp"
#include "wire/address.hpp"

namespace weft::nic {

class Nic;
class Hold;
class Domain;
class AddressVector;
class Group;
class Groups;
struct GroupConfig;

// The range from which the NIC chooses an endpoint's number if the application gives none.
struct PidRange {
  uint32_t first = 0x40000000u;
  uint32_t last = 0x7fffffffu;
};

// How an endpoint sends and receives messages: the provider's protocol. Design: docs/design/messages.md.
struct MessageConfig {
  uint64_t eager_max = 16384;  // longer messages are pulled by the receiver; at most wire::kStagedPayloadMax
  uint64_t eager_part = 0;     // bytes that such a message brings along
  // Messages up to this length are copied when they cannot be sent at once, so that the caller can reuse its buffer.
  uint64_t copy_max = 256;
  uint32_t tagged_ids = 0;  // messages that may wait to be pulled at a time; 0: any number
  uint32_t untagged_ids = 0;
  uint64_t min_multi_recv = 64;    // OPT_MIN_MULTI_RECV when the endpoint is enabled
  uint32_t posted_max = 1u << 30;  // receives
  uint32_t unexpected_max = 1u << 30;
  RxBuffers::Config buffers;   // of unexpected messages, matched by hardware
  RxBuffers::Config requests;  // of those matched by software
  RxModeConfig mode;
  uint64_t append_retry_ns = 0;         // a receive waits so long for a list entry, and then fails; 0: by the mode
  uint32_t credits = 32;                // credited messages of one sender; 0: every message is answered
  bool unordered = false;               // FI_PROTO_CXI_RNR: no order, and nothing unexpected is kept
  uint64_t retry_ns_max = 500'000'000;  // such a message fails if it has found no receive for so long
  uint64_t stop_ns = 5'000'000;         // after a refusal messages are sent again after this time, if not told earlier
  bool delivery_complete = true;        // FI_DELIVERY_COMPLETE of a send waits for the receiver's buffer
  // Control messages (the receiver takes messages again) wait in a queue of so many slots for software_progress();
  // those without room are dropped. 0: no queue, they take effect at once.
  uint32_t control_slots = 0;
  uint32_t reads_max = 0;          // software_progress() starts pulls, so many at a time; 0: the NIC pulls at once
  bool registers_buffers = false;  // buffers of unexpected messages are known to the runtimes of devices
  bool software_counts = false;    // receives, and the ends of long sends, are counted by software_progress()
  bool tells_buffers = true;       // completions of plain receives have the buffer's address
  bool source = false, source_error = false;  // FI_SOURCE, FI_SOURCE_ERR
};

struct EndpointConfig {
  uint64_t caps = 0;
  uint32_t tx_size = 1024;
  uint64_t inject_size = 256;
  uint64_t max_msg_size = ~uint64_t{0} >> 1;
  uint64_t msg_order = 0;  // FI_ORDER_ bits: see order_rules()
  uint64_t tx_op_flags = 0;
  uint16_t vni = 0;
  bool foreign_key = false;       // its VNI is not the domain's
  bool own_vni = false;           // it reaches peers on its own VNI, whatever the address vector has
  bool connected = false;         // FI_EP_MSG: one peer, set by connect_to()
  bool fence_covers_all = false;  // FI_FENCE waits for operations to every peer, not only to its own
  uint8_t tclass = 0;             // below kTclassCount, as telemetry counts it
  bool holds_more = false;        // operations with FI_MORE wait for the next one without it, or until no more fit
  bool tells_lengths = true;      // completions of its operations have the length; otherwise 0
  bool close_drops = false;       // operations under way at close() end without entries; otherwise as canceled
  TrafficRules traffic;
  ReorderConfig reorder;
  PidRange pids;
  MessageConfig messages;
  CommandQueueConfig commands;
  bool accelerated = false;        // collectives as on Slingshot: its operators, accumulators and errors
  bool prefer_numbers = false;     // of accelerated reductions: reduce_op()
  uint32_t page_requests_max = 0;  // missing pages that one transfer gets in time (paging.cpp); 0: all
  OpRules rules;                   // enforced by cpp/call before post()
};

class Endpoint final : public std::enable_shared_from_this<Endpoint>, private Receiver {
 public:
  Endpoint(Domain* domain, const EndpointConfig& config);

  void bind_cq(std::shared_ptr<CompletionQueue> cq, uint64_t flags);
  void bind_counter(std::shared_ptr<Counter> counter, uint64_t flags);
  void bind_av(std::shared_ptr<AddressVector> av);
  // Claims the address; without a pid the NIC chooses one. Throws EADDRINUSE, ENOAV, ENOCQ, EOPBADSTATE.
  // vnis: under FI_AV_AUTH_KEY all VNIs of the endpoint's address vector; otherwise empty.
  // try_only: releases the claimed address at once and checks nothing else.
  enum class Claim : uint8_t { keep, try_only };
  uint32_t enable(uint32_t nic, std::optional<uint32_t> pid, std::span<const uint16_t> vnis = {},
                  Claim claim = Claim::keep);
  void close() noexcept;
  size_t cancel(uint64_t context);
  // The numbers of aliases (aliases.hpp).
  uint8_t open_lane();
  void close_lane(uint8_t lane) noexcept;
  void set_lane(uint8_t lane, uint64_t msg_order, uint8_t tclass);

  // Connecting. The queue receives, with the token, arriving messages and the outcomes of sent ones.
  // listens: the endpoint accepts connection requests.
  void bind_cm(std::shared_ptr<CmQueue> queue, uint64_t token, bool listens);
  // Posts a message to the endpoint at `to`. Refused like transfers when queues are full.
  PostResult send_cm(const wire::EpAddress& to, CmKind kind, uint64_t connection, std::span<const std::byte> data);
  // Directs transfers to this peer, the only one that may access the endpoint's regions. nullopt: no peer.
  void connect_to(const std::optional<wire::EpAddress>& peer);

  // A pointer to a peer's memory mapped in this process. While `keep` exists, the memory stays mapped, and the peer
  // does not reuse its place for another region, even after it has closed the region.
  struct Window {
    Status status = Status::again;         // again: the connection or the mapping is still being made
    std::byte* pointer = nullptr;          // null: loads and stores do not reach the memory
    std::shared_ptr<Hold> keep = nullptr;  // the caller drops it before the NIC
    // For a mapping of its own (mem/lease.hpp), made while `keep` exists: the file of the segment, and the place in it.
    int fd = -1;  // -1: not in a segment
    uint64_t where = 0;
  };
  // want: mem::kRemoteRead, mem::kRemoteWrite. The NIC does not count accesses through the pointer, and closing the
  // region does not end them.
  Window window(uint64_t dest, uint64_t key, uint64_t addr, uint64_t length, uint32_t want);
  // The process that operations to `dest` reach; null: not connected.
  std::shared_ptr<link::Peer> peer_of(uint64_t dest);
  // How the connection to a peer ended; ok: it is up, or was never made.
  Status down_status(uint64_t dest);
  // True: operations wait because the peer's completion queue has no room for their data entries.
  bool held_back(uint64_t dest);

  // The data path. HOT; see endpoint.cpp.
  PostResult post(const RmaArgs& asked);
  // One buffer to or from one range: post() for the common case, with a shorter path.
  PostResult post_one(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr, uint64_t key,
                      uint64_t flags, uint64_t context, uint64_t imm, bool inject_call);
  PostResult post_atomic(const AtomicArgs& args);
  PostResult post_atomic_generally(const AtomicArgs& asked);
  // A call on an object in the peer's memory, which the peer's NIC executes (parking.hpp). The answer is as long as the
  // request, at most Limits::atomic_bytes_max.
  PostResult post_call(const CallArgs& call);
  PostResult post_batch(OpKind kind, std::byte* local, uint64_t local_length, std::span<BatchDesc> descs,
                        uint64_t flags, uint64_t context, bool device = false);

  // Accesses by load and store that end within the call, or do not begin: without a queue, a context or a completion.
  // They return what was done; the caller posts the rest, and gets the errors of posting. Any thread; now.cpp.
  // False: nothing was done, or a page failed and a part was copied.
  bool move_now(OpKind kind, std::byte* local, uint64_t length, uint64_t dest, uint64_t addr, uint64_t key) noexcept;
  // The number of leading rows that were copied.
  uint64_t move_rows_now(OpKind kind, const Rows& rows, uint64_t dest, uint64_t key) noexcept;
  // The number of leading elements (rows) that were updated.
  Updated update_now(const Update& update, uint64_t dest, uint64_t addr, uint64_t key) noexcept;
  // `update` is the update of each row; its operand and count are ignored: the rows have theirs.
  Updated update_rows_now(const Update& update, const Rows& rows, uint64_t dest, uint64_t key) noexcept;

  [[nodiscard]] EndpointTrace* trace() const noexcept { return trace_.get(); }

  // Whether an operation to `dest` could be queued as deferred work; *flow: to it. start() starts such work; it
  // requires the domain's lock. Defined in trigger.cpp.
  Refusal check_deferred(uint64_t dest, std::shared_ptr<Flow>* flow);
  Work::Outcome start(Work& work);

  // Messages. Refused with rx_full if no more receives fit, with no_claim if the context has claimed no message.
  PostResult post_send(const SendArgs& args);
  PostResult post_receive(const ReceiveArgs& args);
  // OPT_MIN_MULTI_RECV, for receives that are posted later.
  void set_min_multi_recv(uint64_t bytes) noexcept;
  // MessageConfig::mode and requests. False: too late, the endpoint is enabled.
  [[nodiscard]] bool set_match_mode(const MessageConfig& config) noexcept;
  // What keeps messages from being sent.
  struct SendState {
    uint32_t tagged_ids = 0, untagged_ids = 0;    // messages that wait to be pulled
    uint64_t no_id = 0, no_id_bytes = 0;          // sends refused for want of an id, and the longest of them
    uint64_t stops = 0;                           // refusals by receivers
    uint32_t stopped = 0;                         // peers that take no messages at present
    uint64_t stopped_ns = 0;                      // for how long the oldest of them has taken none
    uint64_t stopped_dest = 0;                    // its fi_addr
    uint64_t controls = 0, controls_dropped = 0;  // control messages that arrived, and those of them without room
  };
  [[nodiscard]] SendState send_state() const;
  // The oldest messages that no receive has taken, with the senders' fi_addr; *total: their number. Empty for an
  // endpoint that is not enabled or receives nothing. Throws std::bad_alloc.
  struct Unreceived {
    RxCompletion message;
    uint64_t source;  // FI_ADDR_NOTAVAIL: not in the address vector
  };
  [[nodiscard]] std::vector<Unreceived> unreceived(size_t max, size_t* total);
  // Begins to join a collective group (group.hpp). Throws EINVAL, EOPBADSTATE.
  std::shared_ptr<Group> join(GroupConfig config);
  // The group that calls name by this number; null: none of this endpoint's.
  [[nodiscard]] std::shared_ptr<Group> group(uint64_t address) const noexcept;
  // MessageConfig::retry_ns_max, for messages that are refused for the first time later.
  void set_retry_time(uint64_t ns) noexcept;

  [[nodiscard]] Domain* domain() const noexcept { return domain_; }
  [[nodiscard]] const EndpointConfig& config() const noexcept { return config_; }
  [[nodiscard]] bool enabled() const noexcept { return state_ == State::enabled; }
  [[nodiscard]] bool closed() const noexcept { return state_ == State::closed; }
  // The number of groups of operations that FI_MORE held and that were begun together.
  [[nodiscard]] uint64_t batches() const noexcept { return batches_.load(std::memory_order_relaxed); }
  // The model of the command queue: its counts, and the slots known to be free; all 0 without a model.
  [[nodiscard]] std::pair<CommandQueue::Counts, uint32_t> commands() const;
  // A call was refused, and the caller may try again.
  void note_again() noexcept { again_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t page_requests() const noexcept {
    return model_.pager() != nullptr ? model_.pager()->requests() : 0;
  }
  [[nodiscard]] uint64_t page_timeouts() const noexcept {
    return model_.pager() != nullptr ? model_.pager()->timeouts() : 0;
  }
  [[nodiscard]] uint32_t outstanding() const noexcept { return outstanding_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint32_t index() const noexcept { return index_; }
  [[nodiscard]] uint32_t generation() const noexcept { return generation_; }
  [[nodiscard]] const wire::EpAddress& address() const noexcept { return address_; }
  [[nodiscard]] const CompletionQueue* tx_cq() const noexcept { return tx_cq_.get(); }
  // The receive side; null until enable(), and for endpoints that receive no messages.
  [[nodiscard]] RxPort* port() const noexcept { return port_.load(std::memory_order_acquire); }

 private:
  friend class Domain;
  friend class Group;
  friend class Groups;
  friend class Nic;
  friend class AddressVector;
  friend class RxPort;
  friend class TriggerUnit;
  [[nodiscard]] Receiver* receiver() noexcept { return this; }
  // trace.cpp. The calls without their record; traced(): the record of a call, which returns the call's result.
  PostResult post_untraced(const RmaArgs& asked);
  PostResult post_atomic_untraced(const AtomicArgs& asked);
  PostResult post_batch_untraced(OpKind kind, std::byte* local, uint64_t local_length, std::span<BatchDesc> descs,
                                 uint64_t flags, uint64_t context, bool device);
  PostResult post_send_untraced(const SendArgs& args);
  PostResult traced(OpKind kind, uint64_t dest, uint64_t bytes, uint64_t arg, uint64_t began_ns, PostResult result);
  void record(TraceKind kind, const Op& op) noexcept;
  void record(TraceKind kind, const Route* route, uint64_t id = 0, uint64_t bytes = 0, uint64_t arg = 0,
              Status status = Status::ok) noexcept;
  template <typename Put>
  void put_state(Put&& put) const;  // for viewers: snapshot.cpp
  enum class State : uint8_t { created, enabled, closed };
  using Moved = Mover::Moved;

  [[nodiscard]] uint32_t table_flags() const noexcept;
  Refusal check_post(uint64_t dest, uint64_t flags, bool inject_call, bool* wants, Flow** flow);
  // This endpoint's flow to a peer of its address vector; null: no such peer.
  Flow* flow_of(uint64_t fi_addr) {
    return fi_addr < flows_.size() && flows_[fi_addr] ? flows_[fi_addr].get() : make_flow(fi_addr);
  }
  Flow* make_flow(uint64_t fi_addr);
  void set_plain() noexcept {
    plain_ = state_ == State::enabled && model_.is_plain() && held_.empty() && raw_keys_ == 0 && trace_ == nullptr;
  }
  void drop_flow(uint64_t fi_addr) noexcept;  // the peer left the address vector
  // True if the call itself may do the operation, by load and store or through the kernel.
  [[nodiscard]] bool may_go_direct(const Flow& flow, OpClass c, uint64_t flags) const noexcept;
  // True if a fenced operation has to wait for earlier ones.
  [[nodiscard]] bool fence_holds(const Flow& flow, uint64_t sequence) const noexcept;
  std::span<const wire::RmaRange> named(std::span<const wire::RmaRange> remote, wire::RmaRange* room) const;
  // Copies an operation's sources out of device memory, and gives it host memory for results in device memory.
  bool stage(Op* op, std::span<const iovec> read_from, std::span<const iovec> written_to, uint8_t device,
             uint64_t total);
  // True if the route's VNI is one of this endpoint's.
  [[nodiscard]] bool speaks_to(const Route& route) const noexcept {
    return ((route.address.vni ^ config_.vni) & vni_mask_) == 0;
  }
  // The status that refuses operations to a peer; ok: they are allowed.
  [[nodiscard]] Status barred(Route& route) noexcept {
    if (!speaks_to(route)) [[unlikely]]
      return Status::unauthorized;
    return model_.is_down(route) ? Status::unreachable : Status::ok;
  }
  void complete(bool wants, uint64_t context, uint64_t flags, uint64_t len);
  void fail(uint64_t context, uint64_t flags, Status status, std::string text, uint64_t total,
            const wire::RmaRange& range, const Route* route) noexcept;
  void finish(Op* op) noexcept;  // completes or fails the operation, then frees it
  // Called by finish(): reports the outcome of a connection message.
  void report_cm(Op* op, const Route& route) noexcept;
  void end_access(Op* op, Route& route) noexcept;
  void end_batch(Op* op, Route& route) noexcept;
  void end_part(Op* op, Route& route) noexcept;  // of a vectored call
  void complete_op(Op* op, uint64_t flags) noexcept;
  // True: the endpoint is closed, so the failure is reported to nobody.
  bool drops(const Op* op) noexcept;
  void report_failure(Op* op, const char* what, uint64_t flags, const wire::RmaRange& range, Route& route) noexcept;
  [[nodiscard]] std::string failure_text(const char* what, const wire::RmaRange& range, Status status,
                                         const Route& route) const noexcept;
  [[nodiscard]] std::string describe(const char* what, const wire::RmaRange& range, const Route& route,
                                     Status status) const;
  Op* make_op(OpKind kind, Flow& flow, bool wants, uint64_t flags, uint64_t context, uint64_t imm, uint64_t total,
              bool inject_call);
  bool advance(Op* op);  // true: the operation left the waiting queue
  bool advance_safely(Op* op) noexcept;
  PostResult post_one_by_frames(OpKind kind, void* local, uint64_t length, uint64_t to, uint64_t addr, uint64_t key,
                                uint64_t flags, uint64_t context, uint64_t imm, bool inject_call);
  bool take_args(Op* op, const RmaArgs& args);
  bool take_args(Op* op, const AtomicArgs& args, std::span<const iovec> of_device);
  bool take_args(Op* op, const SendArgs& args);
  // False: a page of the caller's buffers failed, and op->status is set.
  static bool keep_local(Op* op, std::span<const iovec> local);
  [[gnu::noinline]] PostResult post_one_generally(OpKind kind, void* local, uint64_t length, uint64_t dest,
                                                  uint64_t addr, uint64_t key, uint64_t flags, uint64_t context,
                                                  uint64_t imm, bool inject_call);
  bool advance_frames(Op* op);
  bool advance_cm(Op* op);
  void begin_frames(Op* op) noexcept;
  [[nodiscard]] wire::Frame frame_of(const Op& op) const noexcept;
  // Appends an operation to the flow's waiting operations, and submits as many as possible. Returns its number.
  uint64_t queue_op(Op* op);
  // FI_MORE: holds the operation, with those held earlier, until ring().
  uint64_t hold(Op* op);
  // followed: the operation that ends the batch is posted next.
  void ring(bool followed = false);
  // True if the operation is to be held; otherwise starts the held operations.
  bool holds_or_rings(uint64_t flags) {
    if (!config_.holds_more) [[likely]]
      return false;
    if ((flags & flag::kMore) != 0) return true;
    ring(true);
    return false;
  }
  // Defined in reorder.cpp: operations overtake each other.
  [[nodiscard]] Ordered ordered(const Flow& flow, OpKind kind, AtomicFamily family, AtomicOp op, Datatype datatype,
                                uint64_t key, uint64_t flags, uint64_t bytes) const noexcept;
  [[nodiscard]] uint64_t order_of(const Ordered& what) const noexcept;
  bool reorders(const Ordered& what, uint64_t flags);
  uint64_t keep(Op* op, const Ordered& what);
  void release(size_t i);
  void forget_kept(size_t i) noexcept;
  void forget_kept(const Op* op) noexcept;
  void release_kept();
  void release_all();
  size_t release_due(uint64_t now_ns);
  bool write_late(Flow& flow, const RmaArgs& args, const Ordered& what, uint64_t total, bool wants);
  void land(size_t i) noexcept;
  void land_all() noexcept;
  bool loses(const Ordered& what, bool* done);
  // Checks that an operation which outlasts its call may begin; *wants: it reports its completion.
  Refusal check_unfinished(uint64_t flags, bool* wants) const;
  // The destination of a transfer: a connected endpoint ignores the call's.
  [[nodiscard]] uint64_t dest_of(uint64_t dest) const noexcept { return connected_ ? fixed_dest_ : dest; }
  // HOT. Mover::pointer(), if the links are up.
  [[nodiscard]] std::byte* pointer_to(const Route& route, uint64_t key, uint64_t addr, uint64_t length,
                                      uint32_t want) const noexcept {
    return model_.flows(route) ? Mover::pointer(route, key, addr, length, want) : nullptr;
  }
  // now.cpp.
  std::byte* reach_now(OpClass c, uint64_t dest, uint64_t key, uint64_t addr, uint64_t length, uint32_t want,
                       Flow** flow) noexcept;
  Flow* open_flow(uint64_t to) noexcept;
  bool move_long_now(OpKind kind, std::byte* local, uint64_t length, Flow& flow, std::byte* there,
                     uint64_t key) noexcept;
  void count_now(Route& route, OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key,
                 uint64_t bytes) noexcept;
  void count_remote(bool read, bool failed, uint64_t bytes);
  Status submit_request(Route& route, wire::Frame& frame, std::span<const std::byte> payload);
  void ask_for_room(Op* op);
  void on_room() noexcept override;
  void on_receive_room() noexcept override;
  // message.cpp, for an Op of kind send.
  bool may_credit(const Flow& flow, const SendArgs& args, uint64_t total) const noexcept;
  bool may_credit(const Op& op) const noexcept;
  Status submit_credited(Flow& flow, uint64_t tag, uint64_t data, bool tagged, uint64_t flags,
                         std::span<const std::byte> bytes);
  PostResult send_credited(Flow& flow, const SendArgs& args, uint64_t total, bool wants);
  bool advance_send(Op* op);
  PostResult post_message(const SendArgs& args, bool* asks);
  void lend(Op* op);
  void unlend(Op* op, bool taken) noexcept;
  void restart_flow(Flow& flow) noexcept;
  void stop_flow(Flow& flow, Op* refused) noexcept;
  void on_ready(Flow& flow) noexcept;
  void resume_flow(Flow& flow) noexcept;
  void software_progress() noexcept;  // called by Domain::run_software()
  bool retry_later(Op* refused) noexcept;
  void on_reply(Op* op, Status status, uint8_t flags, const wire::Reply& reply) noexcept;
  void on_taken(Op* op) noexcept;
  void end_send(Op* op, Flow& flow) noexcept;
  [[nodiscard]] std::string describe_message(const Op& op, const Route& route) const;
  [[nodiscard]] std::string describe_status(std::string text, const wire::RmaRange& range, const Route& route,
                                            Status status) const;
  void end_message_flow(Flow& flow) noexcept;
  void complete_send(bool wants, uint64_t context, bool tagged, uint64_t len, Counter* counter,
                     bool late = false) noexcept;
  [[nodiscard]] bool lacks_id(bool tagged, uint64_t total) const noexcept;
  void report_send_failure(Op* op, Route& route) noexcept;
  [[nodiscard]] wire::Frame message_frame(const Route& route, const Flow& flow, uint64_t tag, uint64_t data,
                                          uint64_t total, bool tagged, uint64_t flags) const noexcept;
  // Makes an operation that pulls the rest of a message by frames. False: out of memory.
  bool pull_by_frames(const RxPull& pull, const std::shared_ptr<link::Peer>& peer) noexcept;
  bool advance_pull(Op* op);
  // Requires the domain's lock. Delivers the entry of a peer's write with data; returns the answer's flag: 0, NoRoom.
  uint8_t receive_data(link::Peer& peer, const CqEntry& entry, bool* over) noexcept;

  // Two cache lines that a short operation reads: everything else of the endpoint is behind them.
  alignas(kCacheLine) Domain* domain_;
  uint64_t short_bytes_max_;  // up to this length (at most max_msg_size) copies are made under the lock
  uint64_t long_way_;         // flags of operations that need more than a copy
  Model model_;
  // By class: bits of Flow::busy that keep an operation from going direct: classes it must not pass, kWaiting, and
  // kForeign.
  std::array<ClassSet, kClassCount> stops_{};
  State state_ = State::created;
  bool plain_ = false;  // the short paths may be taken: see set_plain()
  bool selective_ = false;
  bool connected_;                            // config_.connected
  std::vector<std::shared_ptr<Flow>> flows_;  // by fi_addr; null: no operation was ever posted
  std::shared_ptr<CompletionQueue> tx_cq_;
  std::shared_ptr<Counter> write_cntr_, read_cntr_;
  uint64_t fixed_dest_ = ~uint64_t{0};
  uint64_t length_mask_;  // 0: completions have no length

  Mover mover_;
  std::unique_ptr<EndpointTrace> trace_;  // null: not traced. In the line of the settings that every call reads
  EndpointConfig config_;
  std::atomic<uint64_t> batches_{0};
  uint64_t atomic_bytes_max_;
  std::atomic<uint64_t> again_{0}, retries_{0};  // for viewers: refused calls, messages sent again
  std::vector<std::shared_ptr<Flow>> held_;      // FI_MORE: flows with held operations
  std::atomic<uint32_t> outstanding_{0};  // operations that have an Op; changed under the lock, read by any thread
  std::shared_ptr<CompletionQueue> rx_cq_;
  std::shared_ptr<AddressVector> av_;
  std::shared_ptr<Counter> remote_write_cntr_, remote_read_cntr_, send_cntr_, recv_cntr_;
  std::unique_ptr<RxPort> port_owner_;
  std::atomic<RxPort*> port_{nullptr};  // set by enable(), if the endpoint receives messages
  bool rx_selective_ = false;
  bool takes_credits_ = true;                   // false: later operations wait for messages, which then need an answer
  ClassSet send_stops_ = 0;                     // bits of Flow::busy that keep a message from being sent by the call
  uint32_t tagged_ids_ = 0, untagged_ids_ = 0;  // messages that wait to be pulled
  uint64_t no_id_ = 0, no_id_bytes_ = 0, stops_seen_ = 0;
  uint64_t full_in_pass_ = 0;                   // of TriggerUnit: the pass in which this endpoint's queues were full
  std::vector<std::shared_ptr<Flow>> control_;  // control messages that wait for software: flows that may go on
  uint64_t controls_ = 0, controls_dropped_ = 0;
  std::vector<uint32_t> lent_;  // buffers of canceled messages, which peers may still be reading
  uint32_t index_ = 0, generation_ = 0;
  bool shut_ = false;         // peers have been told that rx_cq_ has no room
  uint64_t shut_number_ = 0;  // grows each time that peers are told
  wire::EpAddress address_;
  uint16_t vni_mask_ = 0xffff;  // 0: several VNIs; the address vector has the VNI of each peer
  uint16_t raw_keys_;           // not 0: tables have other keys than calls: Domain::mapped_key()
  OrderRules order_;
  Aliases aliases_;
  std::vector<uint16_t> vnis_;  // all VNIs of this endpoint
  Groups& make_groups();
  std::shared_ptr<Groups> groups_;  // null: none was ever joined, nor has a peer called
  std::shared_ptr<CmQueue> cm_;
  bool listens_ = false;
  uint64_t cm_token_ = 0, cm_request_ = 0;  // cm_request_: of the last connection request
};

}  // namespace weft::nic
