// cpp/nic/entry.hpp: the contents of a completion queue: the flags of completions, entries, errors, and the receives
// that are on their way to it. Apart from the queue (queue.hpp), so that a change of the queue compiles its users alone
// again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "wire/address.hpp"

namespace weft::nic {

class AddressVector;
class CompletionQueue;

// Completion flags are libfabric's (rdma/fabric.h). kClaim is a flag of receives, kSelectiveCompletion of bindings.
namespace flag {
constexpr uint64_t kMsg = 1ull << 1, kRma = 1ull << 2, kTagged = 1ull << 3, kAtomic = 1ull << 4, kRead = 1ull << 8,
                   kWrite = 1ull << 9, kRecv = 1ull << 10, kSend = 1ull << 11, kRemoteRead = 1ull << 12,
                   kRemoteWrite = 1ull << 13, kRemoteCqData = 1ull << 17, kMore = 1ull << 18, kFence = 1ull << 21,
                   kCollective = 1ull << 6, kMultiRecv = 1ull << 16, kPeek = 1ull << 19, kDiscard = 1ull << 58,
                   kClaim = 1ull << 59, kCompletion = 1ull << 24, kInject = 1ull << 25, kRmaEvent = 1ull << 56,
                   kInjectComplete = 1ull << 26, kTransmitComplete = 1ull << 27, kDeliveryComplete = 1ull << 28,
                   kCommitComplete = 1ull << 30, kMatchComplete = 1ull << 31, kMrSingleUse = 1ull << 41,
                   kRmaPmem = 1ull << 49, kPreReduced = 1ull << 57, kSelectiveCompletion = 1ull << 59;
// Ours, in bits that no flag of an operation has, neither libfabric's nor a provider's. For endpoints with selective
// completion: an operation that is not done when the call returns reports its completion (IfUnfinished), or is not
// begun (OnlyNow). Merged: the fabric merges its response with an earlier one's. Lane: which of the endpoint's aliases
// it is from; 0: none.
constexpr uint64_t kIfUnfinished = 1ull << 37, kOnlyNow = 1ull << 38, kMerged = 1ull << 39;
constexpr uint32_t kLaneShift = 32;
constexpr uint64_t kLane = 31ull << kLaneShift;
}  // namespace flag

constexpr uint8_t lane_of(uint64_t flags) noexcept {
  return static_cast<uint8_t>((flags & flag::kLane) >> flag::kLaneShift);
}
constexpr size_t kLaneCount = 32;

struct CqEntry {
  uint64_t context = 0;
  uint64_t flags = 0;
  uint64_t len = 0;
  uint64_t buf = 0;
  uint64_t data = 0;
  uint64_t tag = 0;
  uint64_t source = ~uint64_t{0};  // target side: the initiator's fi_addr, or FI_ADDR_NOTAVAIL
  uint32_t error = 0;              // 0, or the number of its CqError + 1
  uint32_t reserved = 0;           // kSharedContext: a later entry of the same receive has the context too
  static constexpr uint32_t kSharedContext = 1;
};
static_assert(sizeof(CqEntry) == 64);

struct CqError {
  int err = 0;         // FI_ code
  int prov_errno = 0;  // the provider's number of the status (StatusMap)
  Status status = Status::ok;
  uint64_t olen = 0;     // bytes that did not arrive
  bool decided = false;  // err and prov_errno are final; otherwise the provider may replace them, because it knows more
  std::string text;      // what was asked, what was found
  // For a provider that decides by more than the status: the key, the operation's target (pid 0: none), its initiator.
  uint64_t key = 0;
  wire::EpAddress peer, own;
};

// The completion of a receive, or what a peek found.
struct RxEntry {
  CqEntry entry;
  const AddressVector* sources = nullptr;  // FI_SOURCE: finds the sender's fi_addr when the entry is collected
  wire::EpAddress from;                    // the sender
  uint32_t index = ~0u;                    // the fi_addr by which the sender names itself (FI_SYMMETRIC); ~0: none
  bool source_error = false;               // FI_SOURCE_ERR: a sender that is not in `sources` is an error
  Status status = Status::ok;
  StatusCode code{0, 0};       // of the status
  StatusCode no_source{0, 0};  // of Status::no_source
  uint64_t cut = 0;            // bytes that did not fit
  // What was asked, what was found. Throws std::bad_alloc.
  [[nodiscard]] std::string describe(Status failed) const;
};

// An endpoint that told its peers to hold back writes with data. on_room() runs when the queue has room again.
class Receiver {
 public:
  virtual void on_room() noexcept = 0;
  // The queue takes entries of received messages again.
  virtual void on_receive_room() noexcept = 0;

 protected:
  ~Receiver() = default;
};

}  // namespace weft::nic
