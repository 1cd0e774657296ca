// cpp/nic/rules.hpp: what calls may ask of an endpoint, and how a call is refused: plain data that a provider's policy
// makes and cpp/call enforces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "nic/atomics.hpp"
#include "nic/op.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

// Why a call was refused at once. The numbers are internal; Python sees the names.
enum class Refusal : uint8_t {
  none = 0,
  // By the endpoint.
  cq_full,
  tx_full,
  not_enabled,
  closed,
  no_cq,          // no completion queue is bound for what the endpoint starts
  bad_address,    // the fi_addr is not in the address vector
  not_connected,  // FI_EP_MSG
  length_mismatch,
  too_long,
  too_many_pieces,  // more than the NIC can describe, whatever the rules say
  no_capability,
  forked,   // the endpoint is the parent process's
  not_now,  // flag::kOnlyNow: it would take longer than the call
  // By the rules of calls.
  bad_flags,
  too_many_buffers,  // iov_max
  bad_range_count,   // rma_iov_max, or none at all
  inject_too_long,
  no_atomic,     // this operation does not exist for this datatype and family
  part_element,  // a buffer is not a whole number of elements
  no_element,    // the buffers hold none
  short_buffer,  // a buffer holds fewer elements than the call names
  // By the rules of local buffers.
  no_desc,         // a descriptor is required
  no_device_desc,  // a descriptor is required of device memory
  desc_closed,
  desc_foreign,    // the descriptor belongs to another domain
  desc_elsewhere,  // the descriptor does not cover the buffer
  desc_no_right,
  no_hmem,            // device memory, and the domain was opened without FI_HMEM
  no_device_runtime,  // the interface's runtime is not loaded
  unknown_device_memory,
  past_allocation,
  no_page,  // a bare address has no memory behind it
};
constexpr size_t kRefusalCount = static_cast<size_t>(Refusal::no_page) + 1;

using RefusalErrnos = std::array<int16_t, kRefusalCount>;

// The man pages' codes.
constexpr RefusalErrnos default_errnos() noexcept {
  RefusalErrnos of{};
  for (int16_t& e : of) e = fi_err::kEINVAL;
  const auto set = [&](Refusal r, int e) { of[static_cast<size_t>(r)] = static_cast<int16_t>(e); };
  set(Refusal::none, 0);
  for (const Refusal r : {Refusal::cq_full, Refusal::tx_full, Refusal::not_now}) set(r, fi_err::kEAGAIN);
  for (const Refusal r : {Refusal::not_enabled, Refusal::closed, Refusal::forked}) set(r, fi_err::kEOPBADSTATE);
  set(Refusal::no_cq, fi_err::kENOCQ);
  set(Refusal::not_connected, fi_err::kENOTCONN);
  set(Refusal::too_long, fi_err::kEMSGSIZE);
  set(Refusal::inject_too_long, fi_err::kEMSGSIZE);
  set(Refusal::no_capability, fi_err::kEOPNOTSUPP);
  set(Refusal::no_atomic, fi_err::kEOPNOTSUPP);
  set(Refusal::bad_flags, fi_err::kEBADFLAGS);
  for (const Refusal r : {Refusal::no_hmem, Refusal::no_device_runtime, Refusal::unknown_device_memory}) {
    set(r, fi_err::kENOSYS);
  }
  set(Refusal::no_page, fi_err::kEFAULT);
  return of;
}

// Calls that take flags of their own.
enum class FlagCall : uint8_t { write, read, batch, atomic, fetch };
constexpr size_t kFlagCallCount = 5;

constexpr uint64_t kMsgFlags = flag::kRemoteCqData | flag::kCompletion | flag::kMore | flag::kInject |
                               flag::kInjectComplete | flag::kTransmitComplete | flag::kDeliveryComplete |
                               flag::kFence | flag::kCommitComplete;

// By family and operation: the datatypes, bit = Datatype.
using AtomicTable = std::array<std::array<uint32_t, kAtomicOpCount>, 3>;
const AtomicTable& all_atomics() noexcept;  // what the atomics unit can do

// The defaults are the general provider's rules.
struct OpRules {
  bool mr_local = false;  // FI_MR_LOCAL: every local buffer needs a descriptor
  bool mr_hmem = false;   // FI_MR_HMEM: local buffers in device memory need one
  bool hmem = false;      // FI_HMEM: local buffers may be device memory
  bool desc_ignored =
      false;  // descriptors that are given are not looked at: interfaces before 1.22 without FI_MR_LOCAL
  uint32_t iov_max = kIovMax, rma_iov_max = kIovMax;  // at most kIovMax
  uint64_t atomic_bytes_max = 4096;                   // of one call; the NIC's own limit is Limits::atomic_bytes_max
  uint64_t atomic_count_max = ~uint64_t{0};           // elements of one call
  std::array<uint64_t, kFlagCallCount> flags = {
      kMsgFlags,
      kMsgFlags & ~(flag::kRemoteCqData | flag::kInject | flag::kCommitComplete),
      flag::kCompletion | flag::kMore | flag::kTransmitComplete | flag::kDeliveryComplete | flag::kInjectComplete |
          flag::kCommitComplete,
      kMsgFlags,
      kMsgFlags & ~(flag::kInject | flag::kRemoteCqData),
  };
  AtomicTable atomics = all_atomics();
  RefusalErrnos errnos = default_errnos();

  [[nodiscard]] int errno_of(Refusal r) const noexcept { return errnos[static_cast<size_t>(r)]; }
  [[nodiscard]] uint64_t flags_of(FlagCall call) const noexcept { return flags[static_cast<size_t>(call)]; }
  [[nodiscard]] bool has_atomic(Datatype datatype, AtomicOp op, AtomicFamily family) const noexcept {
    return (atomics[static_cast<size_t>(family)][static_cast<size_t>(op)] >> static_cast<uint32_t>(datatype) & 1) != 0;
  }
};

}  // namespace weft::nic
