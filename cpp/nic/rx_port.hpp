// cpp/nic/rx_port.hpp: the receive side of an enabled endpoint: passes arriving messages to its receive context, posts
// receives there, reports completions, and pulls the rest of long messages from their senders.
//
// Callers: frames come under the progress lock; receives come from any thread, without the domain's lock. Order of
// locks: base/lock_rank.hpp.
// A pull copies outside every lock, under a long activity of this process's table where it reads a peer's memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/lock.hpp"
#include "link/link.hpp"
#include "nic/args.hpp"
#include "nic/counter.hpp"
#include "nic/entry.hpp"
#include "nic/reorder.hpp"
#include "nic/rx.hpp"
#include "nic/trace.hpp"

namespace weft::nic {

class AddressVector;
class Domain;
class Endpoint;
class Nic;
struct MessageConfig;

class RxPort final : private RxSink {
 public:
  // In Receive::flags, beside libfabric's: the application asked for a completion; the receive has a More.
  static constexpr uint64_t kWants = 1ull << 62, kHasMore = 1ull << 61;

  // The queue takes the completions of receives. sources: FI_SOURCE.
  RxPort(Endpoint* ep, std::shared_ptr<CompletionQueue> cq, std::shared_ptr<Counter> counter, bool selective,
         const AddressVector* sources, uint64_t seed);

  // HOT. Requires the progress lock.
  RxReply arrive(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload);
  RxAnswer arrive(const link::Peer& peer, const wire::BriefView& brief) noexcept {
    return rx_.arrive_brief(peer.number, brief);
  }
  // HOT. from: only messages of this address; null: of any.
  PostResult post(const ReceiveArgs& args, const wire::EpAddress* from);
  // Takes the list entries that the endpoint needs. False: its service has too few.
  [[nodiscard]] bool open() noexcept { return rx_.open(); }
  [[nodiscard]] RxContext& context() noexcept { return rx_; }
  [[nodiscard]] uint32_t generation() const noexcept { return generation_; }
  void set_min_multi_recv(uint64_t bytes) noexcept { min_multi_recv_.store(bytes, std::memory_order_relaxed); }

  // Makes the pulls that wait. Any thread, without a lock of the NIC. Returns the number of pulls that ended.
  // at_once: also what WEFT_CXI_REORDER delays.
  size_t run_pulls(bool at_once = false) noexcept;
  // Called by Endpoint::software_progress().
  void software_progress() noexcept {
    if (reads_max_ != 0) {
      run_reads();
    } else if (relaxed_) {
      run_pulls(true);
    }
  }
  [[nodiscard]] bool has_pulls() const noexcept { return pull_count_.load(std::memory_order_relaxed) != 0; }
  struct Pulls {
    uint64_t gets = 0, reads = 0;  // rendezvous messages whose rest the NIC, or software, has fetched
    uint32_t reads_most = 0;       // reads at a time
  };
  [[nodiscard]] Pulls pulls() const noexcept {
    return {gets_.load(std::memory_order_relaxed), reads_.load(std::memory_order_relaxed),
            reads_most_.load(std::memory_order_relaxed)};
  }
  // The receiver's buffers of a pull. Throws std::bad_alloc.
  std::vector<iovec> buffers_of(const RxPull& pull);
  // A pull by frames has ended.
  void pulled(const RxPull& pull, Status status) noexcept;
  // As for pulls: changes of the match mode, and receives that wait for a list entry.
  void settle() noexcept;
  [[nodiscard]] bool is_unsettled() const noexcept { return unsettled_.load(std::memory_order_relaxed); }
  // Discards receives without completions. Requires the domain's lock for `sources`; end_pulls() follows without it.
  void close() noexcept;
  void end_pulls() noexcept;  // waits for copies of other threads

 private:
  // The state of a receive beyond its entry in the match unit, which has room for one object of the caller unless the
  // receive takes several messages.
  struct More {
    uint8_t device = 0;             // bit i: list[i] is device memory; the bytes go to `bounce` first
    std::vector<uint64_t> cookies;  // objects of the caller after the first
    std::vector<iovec> list;        // several buffers, or device memory
    std::vector<std::byte> bounce;
    std::shared_ptr<Counter> counter;  // counts the receive instead of counter_
  };
  struct Held {
    uint64_t cookie = 0;         // an object of the caller; 0: none
    std::unique_ptr<More> more;  // null unless the receive has kHasMore
    [[nodiscard]] bool used() const noexcept { return cookie != 0 || more != nullptr; }
  };

  bool is_full() noexcept override;
  bool store(uint32_t extra, uint64_t offset, std::span<const std::byte> bytes) noexcept override;
  void completed(const RxCompletion& completion) noexcept override;
  void received(const Posted& receive, const wire::BriefView& message, const wire::EpAddress& source,
                uint32_t index) noexcept override;
  void pull(const RxPull& pull) noexcept override;
  void done(uint64_t peer, uint64_t op_id, uint64_t bytes) noexcept override;
  void lost(uint64_t peer, uint64_t op_id, Status why) noexcept override;
  void dropped(uint64_t context, uint64_t object, bool multi) noexcept override;
  void unsettled() noexcept override;
  uint64_t now_ns() noexcept override;
  void kept(const RxMessage& message) noexcept override;
  void changed(const RxMode::Statistics& mode) noexcept override;
  void record(TraceKind kind, uint64_t bytes, uint64_t tag, uint32_t peer, uint64_t id = 0,
              Status status = Status::ok) noexcept;
  void ready(uint64_t peer, uint64_t op_id, uint32_t sender) noexcept override;

  uint32_t hold(const ReceiveArgs& args, uint64_t length, uint64_t* flags);  // throws std::bad_alloc
  More& more(uint32_t extra) noexcept;                                       // of a receive with kHasMore
  Held take_held(uint32_t extra) noexcept;
  static uint64_t device_address(const More& more, uint64_t in_bounce) noexcept;
  void release(uint32_t extra, uint64_t object, uint64_t context) noexcept;
  void tell_done(uint64_t peer, uint64_t op_id, Status status, uint64_t bytes) noexcept;
  void report(const RxCompletion& completion, Status status, uint64_t flags) noexcept;
  // A pull that software_progress() starts.
  [[nodiscard]] bool is_read(const RxPull& pull) const noexcept { return reads_max_ != 0 && !pull.eager; }
  void run_reads() noexcept;
  bool run_pull(RxPull& pull, bool at_once) noexcept;  // true: it has ended
  bool run_carried(RxPull& pull, const std::shared_ptr<link::Peer>& peer, bool at_once, Status* status) noexcept;
  Status copy_kept(const RxPull& pull) noexcept;
  void end_read() noexcept;
  bool put_back(const RxPull& pull) noexcept;
  void land_some(const RxPull& pull, const std::shared_ptr<link::Peer>& peer) noexcept;
  PostResult peek(const ReceiveArgs& args, const Pattern& what, const wire::EpAddress* from) noexcept;
  enum class Pulled : uint8_t { ended, later, by_frames };
  Pulled pull_now(RxPull& pull, const std::shared_ptr<link::Peer>& peer, Status* status) noexcept;
  [[nodiscard]] bool may_share(const RxPull& pull, link::Peer& peer) const noexcept;
  Pulled pull_shared(RxPull& pull, const std::shared_ptr<link::Peer>& peer, uint64_t from, Status* status) noexcept;
  Pulled end_shared(RxPull& pull, Status* status) noexcept;
  void await_shared(RxPull& pull) noexcept;

  Endpoint* ep_;
  Domain* domain_;
  Nic* nic_;
  const std::shared_ptr<CompletionQueue> cq_;
  const std::shared_ptr<Counter> counter_;
  const AddressVector* const sources_;
  EndpointTrace* const trace_;  // null: not traced
  const uint32_t generation_;
  const bool selective_, source_error_, tells_buffers_, software_counts_;
  std::atomic<uint64_t> min_multi_recv_;
  const uint32_t reads_max_;  // not 0: pulls of rendezvous messages are reads, which software_progress() starts
  std::optional<Decisions> relaxed_;
  RankedSpin<lock_rank::kRelaxed> relaxed_lock_;  // guards relaxed_, and keeps eager messages in order
  RxContext rx_;

  RankedSpin<lock_rank::kHeld> held_lock_;
  std::deque<Held> held_ GUARDED_BY(held_lock_);
  std::vector<uint32_t> held_free_ GUARDED_BY(held_lock_);
  std::deque<RxPull> pulls_ GUARDED_BY(held_lock_), reads_waiting_ GUARDED_BY(held_lock_);
  std::atomic<uint32_t> pull_count_{0}, pulling_{0};  // pull_count_: the length of pulls_
  uint32_t reads_now_ GUARDED_BY(held_lock_) = 0;     // requires held_lock_
  std::atomic<uint32_t> reads_most_{0};
  std::atomic<uint64_t> gets_{0}, reads_{0};
  std::atomic<bool> closed_{false}, unsettled_{false};
};

}  // namespace weft::nic
