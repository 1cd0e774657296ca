// cpp/nic/rules.hpp: the rules of an endpoint's calls, and the refusals: plain data that a provider's policy makes and
// cpp/call enforces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/fields.hpp"
#include "base/status.hpp"
#include "nic/atomics.hpp"
#include "nic/entry.hpp"
#include "nic/op.hpp"

namespace weft::nic {

// Each refusal: what was found, and the man pages' code. First those of the endpoint, then those of the rules of calls
// (from bad_flags on), then those of local buffers (from no_desc on).
#define WEFT_REFUSALS(X)                                                                                             \
  X(none, 0, "the call is not refused", 0)                                                                           \
  X(cq_full, 1, "the completion queue has no room", fi_err::kEAGAIN)                                                 \
  X(tx_full, 2, "the most operations are under way", fi_err::kEAGAIN)                                                \
  X(not_enabled, 3, "the endpoint is not enabled", fi_err::kEOPBADSTATE)                                             \
  X(closed, 4, "the endpoint is closed", fi_err::kEOPBADSTATE)                                                       \
  X(no_cq, 5, "no completion queue is bound for what the endpoint starts", fi_err::kENOCQ)                           \
  X(bad_address, 6, "the fi_addr is not in the address vector", fi_err::kEINVAL)                                     \
  X(not_connected, 7, "the endpoint has no connection (FI_EP_MSG)", fi_err::kENOTCONN)                               \
  X(length_mismatch, 8, "local buffers and remote ranges differ in length", fi_err::kEINVAL)                         \
  X(too_long, 9, "longer than max_msg_size", fi_err::kEMSGSIZE)                                                      \
  X(too_many_pieces, 10, "more than the NIC can describe, independent of the rules", fi_err::kEINVAL)                \
  X(no_capability, 11, "the endpoint lacks the capability", fi_err::kEOPNOTSUPP)                                     \
  X(forked, 12, "the endpoint belongs to the parent process", fi_err::kEOPBADSTATE)                                  \
  X(not_now, 13, "the operation would outlast the call", fi_err::kEAGAIN)                                            \
  X(rx_full, 14, "no more receives fit", fi_err::kEAGAIN)                                                            \
  X(rdzv_full, 15, "MessageConfig.tagged_ids or untagged_ids: too many messages wait to be pulled", fi_err::kEAGAIN) \
  X(flow_stopped, 16, "the receiver has refused earlier messages, and takes no more at present", fi_err::kEAGAIN)    \
  X(no_claim, 17, "the context has claimed no message (FI_CLAIM)", fi_err::kEINVAL)                                  \
  X(rx_changing, 18, "the endpoint changes its match mode", fi_err::kEAGAIN)                                         \
  X(rx_no_entry, 19, "the service has no list entry for a receive", fi_err::kENOSPC)                                 \
  X(bad_flags, 20, "flags that the call does not take", fi_err::kEBADFLAGS)                                          \
  X(too_many_buffers, 21, "more local buffers than iov_max", fi_err::kEINVAL)                                        \
  X(bad_range_count, 22, "more remote ranges than rma_iov_max, or none", fi_err::kEINVAL)                            \
  X(inject_too_long, 23, "longer than inject_size", fi_err::kEMSGSIZE)                                               \
  X(unknown_atomic, 24, "not a number of an operation or a datatype", fi_err::kEOPNOTSUPP)                           \
  X(too_many_elements, 25, "more elements than atomic_count_max", fi_err::kEMSGSIZE)                                 \
  X(no_atomic, 26, "this operation does not exist for this datatype and family", fi_err::kEOPNOTSUPP)                \
  X(part_element, 27, "a buffer is not a whole number of elements", fi_err::kEINVAL)                                 \
  X(no_element, 28, "the buffers hold no whole element", fi_err::kEINVAL)                                            \
  X(short_buffer, 29, "a buffer holds fewer elements than the call asks for", fi_err::kEINVAL)                       \
  X(bad_key, 30, "the key has none of the provider's key forms", fi_err::kEKEYREJECTED)                              \
  X(key_offset, 31, "the address plus the offset in the key exceeds the form's limit", fi_err::kEINVAL)              \
  X(no_fence, 32, "FI_FENCE without the capability", fi_err::kEINVAL)                                                \
  X(flags_clash, 33, "flags of an atomic or a receive that its target, or another flag, excludes", fi_err::kEINVAL)  \
  X(bad_tag, 34, "bits of a tag or of an ignore mask that the provider does not have", fi_err::kEINVAL)              \
  X(no_context, 35, "FI_CLAIM without a context", fi_err::kEINVAL)                                                   \
  X(no_message_data, 36, "remote CQ data of a message, and the domain has none", fi_err::kEINVAL)                    \
  X(no_desc, 37, "a descriptor is required", fi_err::kEINVAL)                                                        \
  X(no_device_desc, 38, "a descriptor is required of device memory", fi_err::kEINVAL)                                \
  X(desc_closed, 39, "the descriptor's region is closed", fi_err::kEINVAL)                                           \
  X(desc_foreign, 40, "the descriptor belongs to another domain", fi_err::kEINVAL)                                   \
  X(desc_elsewhere, 41, "the descriptor does not cover the buffer", fi_err::kEINVAL)                                 \
  X(desc_no_right, 42, "the descriptor's region lacks the access", fi_err::kEINVAL)                                  \
  X(no_hmem, 43, "device memory, and the domain was opened without FI_HMEM", fi_err::kENOSYS)                        \
  X(no_device_runtime, 44, "the interface's runtime is not loaded", fi_err::kENOSYS)                                 \
  X(unknown_device_memory, 45, "device memory that its runtime does not know", fi_err::kENOSYS)                      \
  X(past_allocation, 46, "past the end of an allocation of a device", fi_err::kEINVAL)                               \
  X(no_page, 47, "no memory is mapped at a bare address", fi_err::kEFAULT)                                           \
  X(null_buffer, 48, "a buffer is NULL, and its length is not 0", fi_err::kEINVAL)
WEFT_ENUM(Refusal, uint8_t, WEFT_REFUSALS, "Why a call was refused.");
constexpr size_t kRefusalCount = std::size(kRefusalChoices);

using RefusalErrnos = std::array<int16_t, kRefusalCount>;

// The man pages' codes.
constexpr RefusalErrnos default_errnos() noexcept {
#define WEFT_REFUSAL_ERRNO(name, number, text, code) code,
  return {WEFT_REFUSALS(WEFT_REFUSAL_ERRNO)};
#undef WEFT_REFUSAL_ERRNO
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

struct MsgRules {
  WEFT_TABLE(7, MsgRules, "The rules of messages, besides the flags of their calls.");
  WEFT_FIELD(1, tag_mask, uint64_t, ~uint64_t{0}, bits, "The bits that tags and ignore masks may have.");
  WEFT_FIELD(2, receive_flags, uint64_t, 0, flags, "Flags of receives whose call takes no flags.");
  WEFT_FIELD_IN(3, recv_iov_max, uint32_t, kIovMax, none, 1, kIovMax, "The most buffers of one receive.");
  WEFT_FIELD(4, data, bool, true, none, "Messages may carry remote CQ data.");
};

// Some forms contain an offset, which the target adds to the address of the call; sum_max limits the sum.
struct KeyForm {
  WEFT_TABLE(8, KeyForm, "A form of peers' keys: key & mask == value.");
  WEFT_FIELD(1, mask, uint64_t, 0, key, "The bits that tell the form.");
  WEFT_FIELD(2, value, uint64_t, 0, key, "Their values.");
  WEFT_FIELD(3, offset_mask, uint64_t, 0, key, "The bits of an offset, after the shift; 0: the form has no offset.");
  WEFT_FIELD_IN(4, offset_shift, uint32_t, 0, bits, 0, 63, "The shift of the offset.");
  WEFT_FIELD(5, sum_max, uint64_t, ~uint64_t{0}, bytes, "The most of the offset, the address and the length together.");

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

using CallFlags = std::array<uint64_t, kFlagCallCount>;
constexpr CallFlags default_call_flags() noexcept {
  constexpr uint64_t kNoData = ~(flag::kInject | flag::kRemoteCqData);
  return {
      kMsgFlags,
      kMsgFlags & kNoData & ~flag::kCommitComplete,
      flag::kCompletion | flag::kMore | flag::kTransmitComplete | flag::kDeliveryComplete | flag::kInjectComplete |
          flag::kCommitComplete,
      kMsgFlags,
      kMsgFlags & kNoData,
      kMsgFlags & kNoData,
      kSendFlags,
      kSendFlags,
      kRecvFlags,
      kRecvFlags,
  };
}
using KeyForms = std::array<KeyForm, kKeyFormMax>;

// The defaults are the general provider's rules.
struct OpRules {
  WEFT_TABLE(6, OpRules,
             "The rules of an endpoint's calls. New rules admit all that the NIC can do, and refuse other calls with "
             "the codes of the man pages.");
  WEFT_FIELD(1, mr_collective, bool, false, none,
             "Buffers of collectives need a descriptor, of a region for that use (FI_MR_COLLECTIVE).");
  WEFT_FIELD(2, mr_local, bool, false, none, "Every local buffer needs a descriptor; set by the domain (FI_MR_LOCAL).");
  WEFT_FIELD(3, mr_hmem, bool, false, none,
             "Local buffers in device memory need a descriptor; set by the domain (FI_MR_HMEM).");
  WEFT_FIELD(4, hmem, bool, false, none, "Local buffers may be device memory; set by the domain (FI_HMEM).");
  WEFT_FIELD(5, desc_ignored, bool, false, none, "Given descriptors are ignored, as in a domain that ignores them.");
  bool more = false;  // set by the endpoint: one of the next four is not the default
  WEFT_FIELD(6, only_receives_cancel, bool, false, none,
             "cancel() ends receives, and no operation that has not started.");
  WEFT_FIELD(7, fence_needs_cap, bool, false, none, "FENCE is refused without the capability FENCE.");
  WEFT_FIELD(8, local_lengths, bool, false, none,
             "A call with one remote range takes its length from the local buffers.");
  WEFT_FIELD_IN(9, key_form_count, uint8_t, 0, none, 0, kKeyFormMax,
                "Forms of keys in use; a key that has none of the forms is refused at the call (bad_key). 0: keys are "
                "any 64 bits.");
  WEFT_FIELD(10, fence_also, uint64_t, 0, flags,
             "Flags with the effect of FENCE, with or without the capability. A call takes them if set_flags() admits "
             "them.");
  WEFT_FIELD(11, data_key_mask, uint64_t, 0, key,
             "Writes with data go only to keys with key & data_key_mask == data_key_value; 0: to all.");
  WEFT_FIELD(12, data_key_value, uint64_t, 0, key, "See data_key_mask.");
  WEFT_FIELD_IN(13, iov_max, uint32_t, kIovMax, none, 1, kIovMax, "The most local buffers of one call.");
  WEFT_FIELD_IN(14, rma_iov_max, uint32_t, kIovMax, none, 1, kIovMax, "The most remote ranges of one call.");
  WEFT_FIELD(15, atomic_bytes_max, uint64_t, 4096, bytes, "The most of one atomic. The NIC's own limit also applies.");
  WEFT_FIELD(16, atomic_count_max, uint64_t, ~uint64_t{0}, none, "The most elements of one atomic.");
  WEFT_FIELD(17, flags, CallFlags, default_call_flags(), flags, "The flags that each call takes, by FlagCall.");
  WEFT_FIELD(18, messages, MsgRules, {}, none, "The rules of messages, besides the flags of their calls.");
  WEFT_FIELD(19, pcie_flag, uint64_t, 0, flags,
             "The flag of atomics over PCIe. With this flag only the fetching sum exists.");
  WEFT_FIELD(20, pcie_datatypes, uint32_t, 0, bits, "The datatypes of atomics over PCIe: bit n stands for datatype n.");
  WEFT_FIELD(21, key_forms, KeyForms, {}, none, "The forms of peers' keys.");
  WEFT_FIELD(22, atomics, AtomicTable, all_atomics(), bits,
             "By family and operation: the datatypes, bit n for datatype n.");
  WEFT_FIELD(23, flag_names, Labels, {}, none, "Names of the provider's own flags, for the texts of refusals.");
  WEFT_FIELD(24, errnos, RefusalErrnos, default_errnos(), code, "The FI_ code of each Refusal.");

  // Offers only what the atomics unit can do.
  void settle() noexcept {
    for (size_t family = 0; family < atomics.size(); ++family)
      for (size_t op = 0; op < atomics[family].size(); ++op) atomics[family][op] &= all_atomics()[family][op];
  }

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
