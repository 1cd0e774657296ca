// cpp/nic/rules.hpp: the rules of an endpoint's calls, and the refusals: plain data that a provider's policy makes and
// cpp/call enforces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "nic/atomics.hpp"
#include "nic/entry.hpp"
#include "nic/op.hpp"

namespace weft::nic {

// Why a call was refused. The numbers are internal; Python sees the names.
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
  too_many_pieces,  // more than the NIC can describe, independent of the rules
  no_capability,
  forked,        // the endpoint belongs to the parent process
  not_now,       // flag::kOnlyNow: the operation would outlast the call
  rx_full,       // no more receives fit
  rdzv_full,     // MessageConfig::tagged_ids, untagged_ids
  flow_stopped,  // the receiver has refused earlier messages, and takes no more at present
  no_claim,      // FI_CLAIM: the context has claimed no message
  rx_changing,   // the endpoint changes its match mode
  rx_no_entry,   // the service has no list entry for a receive
  // By the rules of calls.
  bad_flags,
  too_many_buffers,  // iov_max
  bad_range_count,   // rma_iov_max, or none at all
  inject_too_long,
  unknown_atomic,     // not a number of an operation or a datatype
  too_many_elements,  // atomic_count_max
  no_atomic,          // this operation does not exist for this datatype and family
  part_element,       // a buffer is not a whole number of elements
  no_element,         // the buffers hold no whole element
  short_buffer,       // a buffer holds fewer elements than the call asks for
  bad_key,            // the key has none of the provider's key forms
  key_offset,         // the address plus the offset in the key exceeds the form's limit
  no_fence,           // FI_FENCE without the capability
  flags_clash,        // flags of an atomic or a receive that its target, or another flag, excludes
  bad_tag,            // bits of a tag or of an ignore mask that the provider does not have
  no_context,         // FI_CLAIM without a context
  no_message_data,    // remote CQ data of a message, and the domain has none
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
  no_page,  // no memory is mapped at a bare address
};
constexpr size_t kRefusalCount = static_cast<size_t>(Refusal::no_page) + 1;

using RefusalErrnos = std::array<int16_t, kRefusalCount>;

// The man pages' codes.
constexpr RefusalErrnos default_errnos() noexcept {
  RefusalErrnos of{};
  for (int16_t& e : of) e = fi_err::kEINVAL;
  const auto set = [&](Refusal r, int e) { of[static_cast<size_t>(r)] = static_cast<int16_t>(e); };
  set(Refusal::none, 0);
  for (const Refusal r : {Refusal::cq_full, Refusal::tx_full, Refusal::not_now, Refusal::rx_full, Refusal::rdzv_full,
                          Refusal::flow_stopped, Refusal::rx_changing}) {
    set(r, fi_err::kEAGAIN);
  }
  for (const Refusal r : {Refusal::not_enabled, Refusal::closed, Refusal::forked}) set(r, fi_err::kEOPBADSTATE);
  set(Refusal::no_cq, fi_err::kENOCQ);
  set(Refusal::rx_no_entry, fi_err::kENOSPC);
  set(Refusal::not_connected, fi_err::kENOTCONN);
  set(Refusal::too_long, fi_err::kEMSGSIZE);
  set(Refusal::inject_too_long, fi_err::kEMSGSIZE);
  set(Refusal::bad_key, fi_err::kEKEYREJECTED);
  set(Refusal::no_capability, fi_err::kEOPNOTSUPP);
  set(Refusal::unknown_atomic, fi_err::kEOPNOTSUPP);
  set(Refusal::no_atomic, fi_err::kEOPNOTSUPP);
  set(Refusal::too_many_elements, fi_err::kEMSGSIZE);
  set(Refusal::bad_flags, fi_err::kEBADFLAGS);
  for (const Refusal r : {Refusal::no_hmem, Refusal::no_device_runtime, Refusal::unknown_device_memory}) {
    set(r, fi_err::kENOSYS);
  }
  set(Refusal::no_page, fi_err::kEFAULT);
  return of;
}

// Calls that take flags of their own.
enum class FlagCall : uint8_t { write, read, batch, atomic, fetch, compare, send, tsend, recv, trecv };
constexpr size_t kFlagCallCount = 10;

constexpr uint64_t kMsgFlags = flag::kRemoteCqData | flag::kCompletion | flag::kMore | flag::kInject |
                               flag::kInjectComplete | flag::kTransmitComplete | flag::kDeliveryComplete |
                               flag::kFence | flag::kCommitComplete;
constexpr uint64_t kSendFlags = (kMsgFlags & ~flag::kCommitComplete) | flag::kMatchComplete;
constexpr uint64_t kRecvFlags =
    flag::kCompletion | flag::kMore | flag::kMultiRecv | flag::kPeek | flag::kClaim | flag::kDiscard;

// Capabilities that decide about receives (fi_getinfo(3)).
namespace rx_cap {
constexpr uint64_t kTaggedDirectedRecv = 1ull << 45, kTaggedMultiRecv = 1ull << 46, kSourceErr = 1ull << 50,
                   kSource = 1ull << 57, kDirectedRecv = 1ull << 59;
}  // namespace rx_cap

// The rules of messages, besides the flags of their calls.
struct MsgRules {
  uint64_t tag_mask = ~uint64_t{0};  // the bits of tags and of ignore masks
  uint64_t receive_flags = 0;        // of receives whose call takes no flags (rx_attr.op_flags)
  uint32_t recv_iov_max = kIovMax;   // at most kIovMax
  bool data = true;                  // messages carry remote CQ data
};

// A form of peers' keys: (key & mask) == value. Some forms contain an offset, which the target adds to the address of
// the call; sum_max limits the sum.
struct KeyForm {
  uint64_t mask = 0, value = 0;
  uint64_t offset_mask = 0;  // after the shift; 0: no offset
  uint32_t offset_shift = 0;
  uint64_t sum_max = ~uint64_t{0};  // of the offset, the address and the length

  [[nodiscard]] constexpr bool has(uint64_t key) const noexcept { return (key & mask) == value; }
  [[nodiscard]] constexpr bool reaches(uint64_t key, uint64_t addr, uint64_t length) const noexcept {
    uint64_t sum = key >> offset_shift & offset_mask;
    return !__builtin_add_overflow(sum, addr, &sum) && !__builtin_add_overflow(sum, length, &sum) && sum <= sum_max;
  }
};
constexpr size_t kKeyFormMax = 4;

// By family and operation: the datatypes, bit = Datatype.
using AtomicTable = std::array<std::array<uint32_t, kAtomicOpCount>, 3>;
const AtomicTable& all_atomics() noexcept;  // what the atomics unit can do

// The defaults are the general provider's rules.
struct OpRules {
  bool mr_collective = false;         // FI_MR_COLLECTIVE: buffers of collectives need one, registered for that use
  bool mr_local = false;              // FI_MR_LOCAL: every local buffer needs a descriptor
  bool mr_hmem = false;               // FI_MR_HMEM: local buffers in device memory need one
  bool hmem = false;                  // FI_HMEM: local buffers may be device memory
  bool desc_ignored = false;          // given descriptors are ignored: interfaces before 1.22 without FI_MR_LOCAL
  bool more = false;                  // set by the endpoint: one of the next four is not the default
  bool only_receives_cancel = false;  // fi_cancel ends no operation that has not started, only receives
  bool fence_needs_cap = false;       // FI_FENCE is refused without the capability FI_FENCE
  bool local_lengths = false;         // a call with one remote range takes its length from the local buffers
  uint8_t key_form_count = 0;         // 0: keys are any 64 bits
  uint64_t fence_also = 0;            // flags with the effect of FI_FENCE, with or without the capability
  uint64_t data_key_mask = 0;         // writes with data go only to keys with (key & mask) == value; 0: to all
  uint64_t data_key_value = 0;
  uint32_t iov_max = kIovMax, rma_iov_max = kIovMax;  // at most kIovMax
  uint64_t atomic_bytes_max = 4096;                   // per call; the NIC's own limit is Limits::atomic_bytes_max
  uint64_t atomic_count_max = ~uint64_t{0};           // elements of one call
  std::array<uint64_t, kFlagCallCount> flags = {
      kMsgFlags,
      kMsgFlags & ~(flag::kRemoteCqData | flag::kInject | flag::kCommitComplete),
      flag::kCompletion | flag::kMore | flag::kTransmitComplete | flag::kDeliveryComplete | flag::kInjectComplete |
          flag::kCommitComplete,
      kMsgFlags,
      kMsgFlags & ~(flag::kInject | flag::kRemoteCqData),
      kMsgFlags & ~(flag::kInject | flag::kRemoteCqData),
      kSendFlags,
      kSendFlags,
      kRecvFlags,
      kRecvFlags,
  };
  MsgRules messages;
  // Atomics over PCIe: with this flag only the fetching sum of these datatypes exists.
  uint64_t pcie_flag = 0;
  uint32_t pcie_datatypes = 0;
  std::array<KeyForm, kKeyFormMax> key_forms{};
  AtomicTable atomics = all_atomics();
  std::shared_ptr<const std::vector<std::pair<uint64_t, std::string>>> flag_names;  // of the provider's own flags
  RefusalErrnos errnos = default_errnos();

  // HOT. True: the checks of call::check_more() pass.
  [[nodiscard]] bool is_simple(uint64_t call_flags, uint64_t key) const noexcept {
    if (!more) [[likely]]
      return true;
    if ((call_flags & (flag::kFence | flag::kRemoteCqData | fence_also)) != 0) return false;
    const auto takes = [&](const KeyForm& form) { return form.has(key) && form.offset_mask == 0; };
    return takes(key_forms[0]) || (key_form_count > 1 && takes(key_forms[1]));  // an unused form takes every key
  }
  [[nodiscard]] int errno_of(Refusal r) const noexcept { return errnos[static_cast<size_t>(r)]; }
  [[nodiscard]] uint64_t flags_of(FlagCall call) const noexcept { return flags[static_cast<size_t>(call)]; }
  [[nodiscard]] bool has_atomic(Datatype datatype, AtomicOp op, AtomicFamily family,
                                uint64_t call_flags) const noexcept {
    if ((call_flags & pcie_flag) != 0) [[unlikely]] {
      return family == AtomicFamily::fetch && op == AtomicOp::sum &&
             (pcie_datatypes >> static_cast<uint32_t>(datatype) & 1) != 0;
    }
    return (atomics[static_cast<size_t>(family)][static_cast<size_t>(op)] >> static_cast<uint32_t>(datatype) & 1) != 0;
  }
};

}  // namespace weft::nic
