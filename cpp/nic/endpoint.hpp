// cpp/nic/endpoint.hpp: an endpoint: every operation passes it, where it is checked, ordered, fenced and counted.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "link/link.hpp"
#include "mem/table.hpp"
#include "nic/args.hpp"
#include "nic/cm.hpp"
#include "nic/op.hpp"
#include "nic/order.hpp"
#include "nic/queue.hpp"
#include "nic/route.hpp"
#include "wire/address.hpp"

namespace weft::nic {

class Nic;
class Hold;
class Domain;
class AddressVector;

// The endpoint numbers from which the NIC chooses one where the application names none.
struct PidRange {
  uint32_t first = 0x40000000u;
  uint32_t last = 0x7fffffffu;
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
  bool connected = false;         // FI_EP_MSG: one peer, of connect_to()
  bool fence_covers_all = false;  // FI_FENCE waits for operations to every peer, not only to its own
  PidRange pids;
  OpRules rules;  // of the calls that stand before post(): cpp/call
};

class Endpoint final : public std::enable_shared_from_this<Endpoint>, private Receiver {
 public:
  Endpoint(Domain* domain, const EndpointConfig& config);

  void bind_cq(std::shared_ptr<CompletionQueue> cq, uint64_t flags);
  void bind_counter(std::shared_ptr<Counter> counter, uint64_t flags);
  void bind_av(std::shared_ptr<AddressVector> av);
  // Claims the identity; without a pid a free one is chosen. Throws EADDRINUSE, ENOAV, ENOCQ, EOPBADSTATE.
  // vnis: under FI_AV_AUTH_KEY, those of its address vector, all of which it answers to; otherwise none.
  uint32_t enable(uint32_t nic, std::optional<uint32_t> pid, std::span<const uint16_t> vnis = {});
  void close() noexcept;
  size_t cancel(uint64_t context);

  // Connecting. What arrives, and what becomes of what was sent, goes to the queue with the token.
  // listens: requests are taken.
  void bind_cm(std::shared_ptr<CmQueue> queue, uint64_t token, bool listens);
  // Posts a message to the endpoint at `to`. EAGAIN-like refusals as for transfers.
  PostResult send_cm(const wire::EpAddress& to, CmKind kind, uint64_t connection, std::span<const std::byte> data);
  // Transfers now go to this peer, and only this peer may access the endpoint's regions. nullopt: no peer at all.
  void connect_to(const std::optional<wire::EpAddress>& peer);

  // A peer's bytes as this process has them mapped. While `keep` is held they stay mapped, and the peer hands their
  // place to no other region, even after it closed the one that they were.
  struct Window {
    Status status = Status::again;         // again: the way to the peer, or to the memory, is still being made
    std::byte* pointer = nullptr;          // null where loads and stores do not get there
    std::shared_ptr<Hold> keep = nullptr;  // to be dropped before the NIC
  };
  // want: mem::kRemoteRead, mem::kRemoteWrite. Accesses through it are not counted, and closing the region cannot end
  // them.
  Window window(uint64_t dest, uint64_t key, uint64_t addr, uint64_t length, uint32_t want);
  // How the way to a peer ended; ok while it is whole, or was never made.
  Status down_status(uint64_t dest);
  // Operations wait because the peer's completion queue has no room for what they bring.
  bool held_back(uint64_t dest);

  // The data path. HOT; see endpoint.cpp.
  PostResult post(const RmaArgs& asked);
  // One buffer to or from one range: the same as post(), shorter.
  PostResult post_one(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr, uint64_t key,
                      uint64_t flags, uint64_t context, uint64_t imm, bool inject_call);
  PostResult post_atomic(const AtomicArgs& args);
  PostResult post_atomic_generally(const AtomicArgs& asked);
  PostResult post_batch(OpKind kind, std::byte* local, uint64_t local_length, std::span<BatchDesc> descs,
                        uint64_t flags, uint64_t context, bool device = false);

  [[nodiscard]] Domain* domain() const noexcept { return domain_; }
  [[nodiscard]] const EndpointConfig& config() const noexcept { return config_; }
  [[nodiscard]] bool enabled() const noexcept { return state_ == State::enabled; }
  [[nodiscard]] bool closed() const noexcept { return state_ == State::closed; }
  [[nodiscard]] uint32_t outstanding() const noexcept { return outstanding_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint32_t index() const noexcept { return index_; }
  [[nodiscard]] uint32_t generation() const noexcept { return generation_; }
  [[nodiscard]] const wire::EpAddress& address() const noexcept { return address_; }
  [[nodiscard]] const CompletionQueue* tx_cq() const noexcept { return tx_cq_.get(); }

 private:
  friend class Domain;
  friend class Nic;
  friend class AddressVector;
  enum class State : uint8_t { created, enabled, closed };
  enum class Direct : uint8_t { done, failed, frames, park, no_room };

  [[nodiscard]] uint32_t table_flags() const noexcept;
  Refusal check_post(uint64_t dest, uint64_t flags, bool inject_call, bool* wants, Flow** flow);
  // What this endpoint has under way towards a peer of its address vector; null where there is no such peer.
  Flow* flow_of(uint64_t fi_addr) {
    return fi_addr < flows_.size() && flows_[fi_addr] ? flows_[fi_addr].get() : make_flow(fi_addr);
  }
  Flow* make_flow(uint64_t fi_addr);
  void drop_flow(uint64_t fi_addr) noexcept;  // the peer left the address vector
  // Whether an operation may be done in the call, by load and store or by the kernel.
  [[nodiscard]] bool may_go_direct(const Flow& flow, OpClass c, uint64_t flags) const noexcept;
  // Whether an operation that is fenced has to wait for earlier ones.
  [[nodiscard]] bool fence_holds(const Flow& flow, uint64_t sequence) const noexcept;
  Direct try_direct(Flow& flow, OpKind kind, const iovec* local, size_t local_count, const wire::RmaRange* remote,
                    size_t remote_count, uint64_t total, uint64_t flags, uint64_t imm, Status* status, bool may_unlock,
                    uint8_t device);
  std::span<const wire::RmaRange> named(std::span<const wire::RmaRange> remote, wire::RmaRange* room) const;
  // Takes what an operation reads out of device memory, and gives it host memory for what it writes there.
  bool stage(Op* op, std::span<const iovec> read_from, std::span<const iovec> written_to, uint8_t device,
             uint64_t total);
  // How the target sees this endpoint: it answers to the VNIs that it and its peers share.
  [[nodiscard]] bool speaks_to(const Route& route) const noexcept {
    return ((route.address.vni ^ config_.vni) & vni_mask_) == 0;
  }
  [[nodiscard]] wire::EpAddress seen_by(const Route& route) const noexcept {
    return {address_.nic, address_.pid, route.address.vni, 0};
  }
  Direct try_direct_atomic(Route& route, const AtomicArgs& args, uint64_t total, Status* status);
  void complete(bool wants, uint64_t context, uint64_t flags, uint64_t len);
  void fail(uint64_t context, uint64_t flags, Status status, std::string text, uint64_t total) noexcept;
  void finish(Op* op) noexcept;  // complete or fail, then forget
  // What finish() tells, and whom, where no completion is due.
  void report_cm(Op* op, const Route& route) noexcept;
  void end_part(Op* op, Route& route) noexcept;  // of a vectored call
  void report_failure(Op* op, Route& route) noexcept;
  [[nodiscard]] std::string failure_text(const char* what, const Op& op, const Route& route) const noexcept;
  [[nodiscard]] std::string describe(const char* what, const wire::RmaRange& range, const Route& route,
                                     Status status) const;
  Op* make_op(OpKind kind, Flow& flow, bool wants, uint64_t flags, uint64_t context, uint64_t imm, uint64_t total,
              bool inject_call);
  bool advance(Op* op);  // true when it left the waiting queue
  bool advance_safely(Op* op) noexcept;
  PostResult post_one_by_frames(OpKind kind, void* local, uint64_t length, uint64_t to, uint64_t addr, uint64_t key,
                                uint64_t flags, uint64_t context, uint64_t imm, bool inject_call);
  // False: a page of the caller's buffers failed; op->status says so.
  static bool keep_local(Op* op, std::span<const iovec> local);
  [[gnu::noinline]] PostResult post_one_generally(OpKind kind, void* local, uint64_t length, uint64_t dest,
                                                  uint64_t addr, uint64_t key, uint64_t flags, uint64_t context,
                                                  uint64_t imm, bool inject_call);
  bool advance_frames(Op* op);
  // Puts an operation behind those that wait for the peer, and moves them on. Returns its number.
  uint64_t queue_op(Op* op);
  // HOT. Whether the queue takes the completion of a new operation, if it wants one.
  [[nodiscard]] bool cq_admits(bool wants) const noexcept {
    return tx_cq_ != nullptr && (!wants || tx_cq_->has_room());
  }
  // Whether an operation that takes longer than the call may begin; sets what make_op() is to report.
  Refusal check_unfinished(uint64_t flags, bool* wants) const;
  // Where a transfer goes: a connected endpoint disregards what the call says.
  [[nodiscard]] uint64_t dest_of(uint64_t dest) const noexcept { return config_.connected ? fixed_dest_ : dest; }
  std::byte* fast_target(Route& route, uint64_t key, uint64_t addr, uint64_t length, uint32_t want) noexcept;
  static void remember(Route& route, const mem::MrView& view, uint64_t key);
  Status send_notice(Route& route, bool read, bool atomic, const wire::RmaRange& range, uint64_t total, bool has_data,
                     uint64_t imm, AtomicOp op = {});
  void count_remote(bool read, bool failed, uint64_t bytes);
  Status submit_request(Route& route, wire::Frame& frame, std::span<const std::byte> payload);
  void ask_for_room(Op* op);
  void on_room() noexcept override;
  // With the domain's lock. What a peer wrote with data; the flag for its answer: 0 or kFrameNoRoom.
  uint8_t receive_data(link::Peer& peer, const CqEntry& entry, bool* over) noexcept;

  Domain* domain_;
  EndpointConfig config_;
  uint64_t short_bytes_max_;  // copied under the lock, and within max_msg_size
  uint64_t atomic_bytes_max_;
  State state_ = State::created;
  // By class: what of a flow keeps an operation from going direct: classes that it must not pass, and waiting ones.
  std::array<ClassSet, kClassCount> stops_{};
  std::vector<std::shared_ptr<Flow>> flows_;  // by fi_addr; null: nothing was ever posted there
  bool selective_ = false;
  std::atomic<uint32_t> outstanding_{0};  // operations that have an Op; changed under the lock, read by anyone
  std::atomic<uint32_t> long_copies_{0};
  std::shared_ptr<CompletionQueue> tx_cq_, rx_cq_;
  std::shared_ptr<AddressVector> av_;
  std::shared_ptr<Counter> write_cntr_, read_cntr_, remote_write_cntr_, remote_read_cntr_;
  uint32_t index_ = 0, generation_ = 0;
  bool shut_ = false;         // its peers were told that rx_cq_ has no room ...
  uint64_t shut_number_ = 0;  // ... so many times
  wire::EpAddress address_;
  uint16_t vni_mask_ = 0xffff;  // 0: of several VNIs, the address vector says which peer uses which
  uint16_t raw_keys_;           // not 0: keys are handles of map_raw()
  OrderRules order_;
  std::vector<uint16_t> vnis_;  // all that it answers to
  uint64_t fixed_dest_ = ~uint64_t{0};
  std::shared_ptr<CmQueue> cm_;
  bool listens_ = false;
  uint64_t cm_token_ = 0, cm_request_ = 0;  // of the last connection that was asked for
};

}  // namespace weft::nic
