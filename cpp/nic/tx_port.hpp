// cpp/nic/tx_port.hpp: the send side of an endpoint: posts, orders, fences, counts and ends every operation.
//
// Callers of the first part hold no lock; those of the second part, the other classes of this room, hold the domain's.
// Files: rma.cpp, amo.cpp, batch.cpp, now.cpp (posting), op.cpp (operations that outlast their call), window.cpp,
// tx_port.cpp (the rest). Messages are MessageSender's, connection messages CmPort's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "link/link.hpp"
#include "nic/args.hpp"
#include "nic/cm_port.hpp"
#include "nic/config.hpp"
#include "nic/counter.hpp"
#include "nic/entry.hpp"
#include "nic/message_sender.hpp"
#include "nic/model.hpp"
#include "nic/mover.hpp"
#include "nic/op.hpp"
#include "nic/order.hpp"
#include "nic/route.hpp"
#include "nic/trace.hpp"
#include "nic/trigger.hpp"
#include "wire/address.hpp"

namespace weft::nic {

class AddressVector;
class CompletionQueue;
class Domain;
class Hold;
class RxPort;

class TxPort {
 public:
  enum class State : uint8_t { created, enabled, closed };

  // ---- for callers without a lock ----------------------------------------------------------------------------------
  // The data path. HOT; see rma.cpp, amo.cpp.
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
  PostResult post_send(const SendArgs& args) { return messages_.post(args); }

  // Accesses that end within the call, or do not begin: without a queue, a context or a completion. One piece by load
  // and store or through the kernel, all others by load and store.
  // They return the part that was done; the caller posts the rest, and gets the errors of posting. Any thread; now.cpp.
  // False: nothing was done, or a page failed and a part was copied.
  bool move_now(OpKind kind, std::byte* local, uint64_t length, uint64_t dest, uint64_t addr, uint64_t key) noexcept;
  // The number of leading rows that were copied.
  uint64_t move_rows_now(OpKind kind, const Rows& rows, uint64_t dest, uint64_t key) noexcept;
  // The number of leading elements (rows) that were updated.
  Updated update_now(const Update& update, uint64_t dest, uint64_t addr, uint64_t key) noexcept;
  // `update` is the update of each row; its operand and count are ignored: the rows have theirs.
  Updated update_rows_now(const Update& update, const Rows& rows, uint64_t dest, uint64_t key) noexcept;

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
  // Whether an operation to `dest` could be queued as deferred work; *flow: to it.
  Refusal check_deferred(uint64_t dest, std::shared_ptr<Flow>* flow);

  // The numbers of aliases (aliases.hpp).
  uint8_t open_lane();
  void close_lane(uint8_t lane) noexcept;
  void set_lane(uint8_t lane, uint64_t msg_order, uint8_t tclass);
  // The counts of the command queue, and the slots known to be free; all 0 without a model of the queue.
  [[nodiscard]] std::pair<CommandQueue::Counts, uint32_t> commands() const;

  [[nodiscard]] Domain* domain() const noexcept { return domain_; }
  [[nodiscard]] const EndpointConfig& config() const noexcept { return config_; }
  [[nodiscard]] bool enabled() const noexcept { return state_ == State::enabled; }
  [[nodiscard]] bool closed() const noexcept { return state_ == State::closed; }
  [[nodiscard]] EndpointTrace* trace() const noexcept { return trace_.get(); }
  [[nodiscard]] MessageSender& messages() noexcept { return messages_; }
  [[nodiscard]] CmPort& cm() noexcept { return cm_; }
  // The number of groups of operations that FI_MORE held and that were begun together.
  [[nodiscard]] uint64_t batches() const noexcept { return batches_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t page_requests() const noexcept {
    return model_.pager() != nullptr ? model_.pager()->requests() : 0;
  }
  [[nodiscard]] uint64_t page_timeouts() const noexcept {
    return model_.pager() != nullptr ? model_.pager()->timeouts() : 0;
  }
  // A call was refused, and the caller may try again.
  void note_again() noexcept { again_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t again() const noexcept { return again_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint32_t outstanding() const noexcept { return outstanding_.load(std::memory_order_relaxed); }

  // ---- for the other classes of the room, which hold the domain's lock ---------------------------------------------
  // This endpoint's flow to a peer of its address vector; null: no such peer.
  Flow* flow_of(uint64_t fi_addr) {
    return fi_addr < flows_.size() && flows_[fi_addr] ? flows_[fi_addr].get() : make_flow(fi_addr);
  }
  [[nodiscard]] std::span<const std::shared_ptr<Flow>> flows() const noexcept { return flows_; }
  void drop_flow(uint64_t fi_addr) noexcept;  // the peer left the address vector
  // The destination of a transfer: a connected endpoint ignores the call's.
  [[nodiscard]] uint64_t dest_of(uint64_t dest) const noexcept { return connected_ ? fixed_dest_ : dest; }

  Refusal check_post(uint64_t dest, uint64_t flags, bool inject_call, bool* wants, Flow** flow);
  // Checks that an operation which outlasts its call may begin; *wants: it reports its completion.
  Refusal check_unfinished(uint64_t flags, bool* wants) const;
  Op* make_op(OpKind kind, Flow& flow, bool wants, uint64_t flags, uint64_t context, uint64_t imm, uint64_t total,
              bool inject_call);
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
  bool advance_safely(Op* op) noexcept;  // true: the operation left the waiting queue
  void finish(Op* op) noexcept;          // completes or fails the operation, then frees it
  // Starts deferred work.
  Work::Outcome start(Work& work);
  // Of TriggerUnit: the pass in which this endpoint's queues were full.
  uint64_t full_in_pass = 0;

  void begin_frames(Op* op) noexcept;  // the first frame of an operation goes out
  [[nodiscard]] wire::Frame frame_of(const Op& op) const noexcept;
  static Status submit_request(Route& route, wire::Frame& frame, std::span<const std::byte> payload);
  // Makes an operation that pulls the rest of a message by frames. False: out of memory.
  bool pull_by_frames(RxPort& port, const RxPull& pull, const std::shared_ptr<link::Peer>& peer) noexcept;

  // HOT. Counts an operation that has ended, and writes its entry.
  void complete(bool wants, uint64_t context, uint64_t flags, uint64_t len);
  // HOT. Mover::pointer(), if the links are up.
  // Inlined by force: as a call, this costs a put of eight bytes a fifth of its time.
  [[nodiscard]] [[gnu::always_inline]] std::byte* pointer_to(const Route& route, uint64_t key, uint64_t addr,
                                                             uint64_t length, uint32_t want) const noexcept {
    return model_.flows(route) ? Mover::pointer(route, key, addr, length, want) : nullptr;
  }
  // The status that refuses operations to a peer; ok: they are allowed.
  [[nodiscard]] Status barred(Route& route) noexcept {
    if (!speaks_to(route)) [[unlikely]]
      return Status::unauthorized;
    return model_.is_down(route) ? Status::unreachable : Status::ok;
  }
  // True if the route's VNI is one of this endpoint's.
  [[nodiscard]] bool speaks_to(const Route& route) const noexcept {
    return ((route.address.vni ^ config_.vni) & vni_mask_) == 0;
  }
  // True: the endpoint is closed, so the failure is reported to nobody.
  bool drops(const Op* op) noexcept;
  [[nodiscard]] bool selective() const noexcept { return selective_; }
  [[nodiscard]] CompletionQueue* queue() const noexcept { return tx_cq_.get(); }
  [[nodiscard]] const wire::EpAddress& address() const noexcept { return address_; }
  [[nodiscard]] uint64_t shown_length(uint64_t length) const noexcept { return length & length_mask_; }
  [[nodiscard]] Model& model() noexcept { return model_; }
  [[nodiscard]] const Model& model() const noexcept { return model_; }
  [[nodiscard]] Mover& mover() noexcept { return mover_; }
  [[nodiscard]] const OrderRules& order() const noexcept { return order_; }
  [[nodiscard]] AddressVector& av() const noexcept { return *av_; }
  [[nodiscard]] const Counter* write_counter() const noexcept { return write_cntr_.get(); }
  [[nodiscard]] const Counter* read_counter() const noexcept { return read_cntr_.get(); }

  void record(TraceKind kind, const Op& op) noexcept;
  void record(TraceKind kind, const Route* route, uint64_t id = 0, uint64_t bytes = 0, uint64_t arg = 0,
              Status status = Status::ok) noexcept;
  // Records a call that posted an operation, or a refusal that the caller repeats. Returns `result`.
  PostResult traced(OpKind kind, uint64_t dest, uint64_t bytes, uint64_t arg, uint64_t began_ns, PostResult result);

 protected:
  TxPort(Domain* domain, const EndpointConfig& config);
  ~TxPort();
  TxPort(const TxPort&) = delete;
  TxPort& operator=(const TxPort&) = delete;

  void set_plain() noexcept {
    plain_ = state_ == State::enabled && model_.is_plain() && held_.empty() && raw_keys_ == 0 && trace_ == nullptr;
  }
  // Ends the operations under way as canceled (close_drops: without entries); late answers find no operation.
  void close_operations() noexcept;
  // Tells every receiver to forget its flow.
  void close_flows() noexcept;
  // Ends the operations with this context that have not begun. Returns their number.
  size_t cancel_operations(uint64_t context);

 private:
  using Moved = Mover::Moved;
  // The calls without their record.
  PostResult post_untraced(const RmaArgs& asked);
  PostResult post_atomic_untraced(const AtomicArgs& asked);
  PostResult post_batch_untraced(OpKind kind, std::byte* local, uint64_t local_length, std::span<BatchDesc> descs,
                                 uint64_t flags, uint64_t context, bool device);
  PostResult post_one_by_frames(OpKind kind, void* local, uint64_t length, uint64_t to, uint64_t addr, uint64_t key,
                                uint64_t flags, uint64_t context, uint64_t imm, bool inject_call);
  [[gnu::noinline]] PostResult post_one_generally(OpKind kind, void* local, uint64_t length, uint64_t dest,
                                                  uint64_t addr, uint64_t key, uint64_t flags, uint64_t context,
                                                  uint64_t imm, bool inject_call);
  Flow* make_flow(uint64_t fi_addr);
  // True if the call itself may do the operation, by load and store or through the kernel.
  [[nodiscard]] bool may_go_direct(const Flow& flow, OpClass c, uint64_t flags) const noexcept;
  // True if a fenced operation has to wait for earlier ones.
  [[nodiscard]] bool fence_holds(const Flow& flow, uint64_t sequence) const noexcept;
  std::span<const wire::RmaRange> named(std::span<const wire::RmaRange> remote, wire::RmaRange* room) const;
  // now.cpp.
  std::byte* reach_now(OpClass c, uint64_t dest, uint64_t key, uint64_t addr, uint64_t length, uint32_t want,
                       Flow** flow) noexcept;
  Flow* open_flow(uint64_t to) noexcept;
  bool move_generally_now(OpKind kind, std::byte* local, uint64_t length, uint64_t dest, uint64_t addr,
                          uint64_t key) noexcept;
  void count_now(Route& route, OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key,
                 uint64_t bytes) noexcept;

  bool advance(Op* op);
  bool advance_frames(Op* op);
  bool advance_pull(Op* op);
  void ask_for_room(Op* op);
  bool take_args(Op* op, const RmaArgs& args);
  bool take_args(Op* op, const AtomicArgs& args, std::span<const iovec> of_device);
  // False: a page of the caller's buffers failed, and op->status is set.
  static bool keep_local(Op* op, std::span<const iovec> local);
  // Copies an operation's sources out of device memory, and gives it host memory for results in device memory.
  bool stage(Op* op, std::span<const iovec> read_from, std::span<const iovec> written_to, uint8_t device,
             uint64_t total);

  void complete_op(Op* op, uint64_t flags) noexcept;
  void count_remote(bool read, bool failed, uint64_t bytes);
  void fail(uint64_t context, uint64_t flags, Status status, std::string text, uint64_t total,
            const wire::RmaRange& range, const Route* route) noexcept;
  void end_access(Op* op, Route& route) noexcept;
  void end_batch(Op* op, Route& route) noexcept;
  void end_part(Op* op, Route& route) noexcept;  // of a vectored call
  void report_failure(Op* op, const char* what, uint64_t flags, const wire::RmaRange& range, Route& route) noexcept;

 protected:
  // The two cache lines that a short operation reads; all other members are behind them.
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

  std::unique_ptr<EndpointTrace> trace_;  // null: not traced. In the line of the settings that every call reads
  EndpointConfig config_;
  std::atomic<uint32_t> outstanding_{0};  // operations that have an Op; changed under the lock, read by any thread
  uint64_t atomic_bytes_max_;
  Mover mover_;
  std::vector<std::shared_ptr<Flow>> held_;  // FI_MORE: flows with held operations
  std::atomic<uint64_t> batches_{0}, again_{0};
  std::shared_ptr<AddressVector> av_;
  wire::EpAddress address_;
  uint16_t vni_mask_ = 0xffff;  // 0: several VNIs; the address vector has the VNI of each peer
  uint16_t raw_keys_;           // not 0: tables have other keys than calls: Domain::mapped_key()
  OrderRules order_;
  Aliases aliases_;
  MessageSender messages_;
  CmPort cm_;
};

}  // namespace weft::nic
