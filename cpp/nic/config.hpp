// cpp/nic/config.hpp: the settings of domains, endpoints, queues and counters: what a provider's policy decides.
//
// Each is a table (base/fields.hpp): its fields in Python, in records, in snapshots and in docs/reference/settings.md
// are these lines. A new setting is a line here and a line in the policy.
#pragma once

#include <cstdint>
#include <string>

#include "base/fields.hpp"
#include "base/status.hpp"
#include "nic/command_queue.hpp"
#include "nic/reorder.hpp"
#include "nic/rules.hpp"
#include "nic/rx_buffers.hpp"
#include "nic/rx_mode.hpp"
#include "nic/telemetry.hpp"
#include "wire/address.hpp"

namespace weft::nic {

// ---- domains --------------------------------------------------------------------------------------------------------

struct AddressText {
  WEFT_TABLE(16, AddressText, "The form of addresses in texts.");
  WEFT_FIELD(1, form, std::string, {}, none,
             "{nic}, {nic:x}, {pid} and {vni} are replaced by the numbers; empty: the form of the links.");
  WEFT_FIELD(2, nic_mask, uint32_t, ~uint32_t{0}, bits, "Bits of the NIC's number that the texts show.");

  [[nodiscard]] std::string of(const wire::EpAddress& address) const;
};

struct RegionRules {
  WEFT_TABLE(13, RegionRules,
             "What registering, binding and enabling an ordinary region needs, without a question to the policy.");
  WEFT_FIELD(1, quick, bool, false, none,
             "Registers one buffer without flags by itself; otherwise each registration is a question.");
  WEFT_FIELD(2, disabled, bool, false, none, "Regions are made disabled, to be bound and enabled (FI_MR_ENDPOINT).");
  WEFT_FIELD(3, key_ignored, bool, false, none, "The provider makes the keys.");
  WEFT_FIELD(4, key_later, bool, false, none, "A region has its key when it is enabled, not when it is registered.");
  WEFT_FIELD(5, local_free, bool, false, none,
             "Regions that peers have no right to take no key, and are enabled at once.");
  WEFT_FIELD(6, needs_bind, bool, false, none, "A region is enabled after it is bound.");
  WEFT_FIELD(7, ep_busy, bool, false, none,
             "An endpoint cannot be closed while regions are bound to it; otherwise the region cannot.");
  WEFT_FIELD(8, decided, bool, false, none,
             "Enabling asks the policy, unless the region's resources and its key are known.");
  WEFT_FIELD(9, access, uint64_t, 0, flags, "All access bits that exist; registrations with others are questions.");
  WEFT_FIELD(10, key_end, uint64_t, 0, key, "Keys of applications are below this number.");
  WEFT_FIELD(11, key_meanings, uint64_t, 0, key, "Bits that keys of applications do not have.");
};

struct WorkRules {
  WEFT_TABLE(20, WorkRules, "The rules of deferred work (FI_QUEUE_WORK).");
  WEFT_FIELD(1, receives_wait, bool, true, none, "Receives may have a threshold above 0.");
  WEFT_FIELD(2, single, bool, false, none, "An operation has at most one local buffer, and exactly one remote range.");
  WEFT_FIELD(3, flags, uint64_t, ~uint64_t{0}, flags, "The most flags of an operation, besides FI_MORE.");
  WEFT_FIELD(4, sends_unchecked, bool, false, none,
             "A send is refused only for FI_INJECT; other flags that it does not know have no effect.");
  WEFT_FIELD(5, write_back, uint64_t, 0, flags, "The flag that writes the triggering counter back; 0: there is none.");
};

struct DomainConfig {
  WEFT_TABLE(1, DomainConfig, "The settings of a domain.");
  WEFT_FIELD(1, nic, uint32_t, 0, none, "The number of the NIC of its objects.");
  WEFT_FIELD(2, prov_key, bool, false, none, "The NIC makes the keys of regions (FI_MR_PROV_KEY).");
  WEFT_FIELD(3, virt_addr, bool, false, none, "Peers name places in regions by virtual address (FI_MR_VIRT_ADDR).");
  WEFT_FIELD(4, raw_keys, bool, false, none, "Transfers take handles of map_key() as keys (FI_MR_RAW).");
  WEFT_FIELD(5, statuses, StatusMap, {}, none, "What applications see of each status of a failed operation.");
  WEFT_FIELD(6, addresses, AddressText, {}, none, "The form of addresses in the domain's texts.");
  WEFT_FIELD(7, fetches_need_both, bool, false, none,
             "FI_ATOMIC_READ needs FI_REMOTE_READ and FI_REMOTE_WRITE, as other fetching atomics.");
  WEFT_FIELD(8, standard_below, uint64_t, 0, key,
             "Not 0: the keys below are those of optimized regions for peers, and of standard regions for this domain; "
             "the two kinds of domains do not find each other's regions.");
  WEFT_FIELD(9, mr_local, bool, false, none, "Local buffers need a descriptor (FI_MR_LOCAL).");
  WEFT_FIELD(10, hmem, bool, false, none, "Buffers may be device memory (FI_HMEM).");
  WEFT_FIELD(11, mr_hmem, bool, false, none, "Buffers in device memory need a descriptor (FI_MR_HMEM).");
  WEFT_FIELD(12, mr_allocated, bool, false, none, "Registered memory has pages, which stay (FI_MR_ALLOCATED).");
  WEFT_FIELD(13, desc_ignored, bool, false, none, "Local descriptors are ignored.");
  WEFT_FIELD(14, may_overrun, bool, false, none, "Peers may overrun completion queues (FI_RM_DISABLED).");
  WEFT_FIELD(15, empty_region_errno, int32_t, fi_err::kEINVAL, code,
             "The code that refuses a region of 0 bytes; 0: there are such regions.");
  WEFT_FIELD(16, regions, RegionRules, {}, none, "How regions are registered, bound and enabled.");
  WEFT_FIELD(17, work, WorkRules, {}, none, "What deferred work may be.");
};
// Tables of regions have the keys below standard_below with this bit.
constexpr uint64_t kStandardKey = uint64_t{1} << 32;

// ---- endpoints ------------------------------------------------------------------------------------------------------

struct PidRange {
  WEFT_TABLE(12, PidRange, "The range from which the NIC chooses an endpoint's number if the application gives none.");
  WEFT_FIELD(1, first, uint32_t, 0x40000000u, none, "The smallest number.");
  WEFT_FIELD(2, last, uint32_t, 0x7fffffffu, none, "The largest number.");
};

// Design: docs/design/messages.md.
struct MessageConfig {
  WEFT_TABLE(3, MessageConfig, "How an endpoint sends and receives messages: the provider's protocol.");
  WEFT_FIELD(1, eager_max, uint64_t, 16384, bytes,
             "Longer messages wait in the sender's memory until a receive takes them; the receiver has shorter ones at "
             "once.");
  WEFT_FIELD(2, eager_part, uint64_t, 0, bytes,
             "What a message of several frames brings along. At most the payload of one frame; more is cut to that.");
  WEFT_FIELD(3, copy_max, uint64_t, 256, bytes,
             "Messages up to this length are copied by the call if they cannot be sent at once.");
  WEFT_FIELD(4, tagged_ids, uint32_t, 0, none,
             "The most tagged messages that may wait to be pulled at a time; 0: any number.");
  WEFT_FIELD(5, untagged_ids, uint32_t, 0, none, "The same for untagged messages.");
  WEFT_FIELD(6, min_multi_recv, uint64_t, 64, bytes,
             "OPT_MIN_MULTI_RECV of a new endpoint: a buffer for several messages ends when less is left.");
  WEFT_FIELD(7, posted_max, uint32_t, 1u << 30, none, "The most receives.");
  WEFT_FIELD(8, unexpected_max, uint32_t, 1u << 30, none, "The most messages without a receive.");
  WEFT_FIELD(9, buffers, RxBufferConfig, {}, none,
             "Buffers for messages without a receive. In hardware mode each takes a list entry.");
  WEFT_FIELD(10, requests, RxBufferConfig, {.posted_min = 0}, none, "Such buffers for matching by software.");
  WEFT_FIELD(11, match, RxModeConfig, {}, none, "Where messages are matched.");
  WEFT_FIELD(12, append_retry_ns, uint64_t, 0, nanoseconds,
             "What a receive waits for a list entry before it fails; 0: as the mode has it.");
  WEFT_FIELD(13, credits, uint32_t, 32, none,
             "Short messages that one sender may send without an answer; 0: every message is answered.");
  WEFT_FIELD(14, unordered, bool, false, none,
             "Messages have no order, and one without a receive is sent again instead of kept (FI_PROTO_CXI_RNR).");
  WEFT_FIELD(15, retry_ns_max, uint64_t, 500'000'000, nanoseconds,
             "Such a message fails if it has found no receive for so long.");
  WEFT_FIELD(16, stop_ns, uint64_t, 5'000'000, nanoseconds,
             "Refused messages are sent again after this time, if the receiver has not asked for them earlier.");
  WEFT_FIELD(17, delivery_complete, bool, true, none,
             "DELIVERY_COMPLETE of a send waits until the message is in the receiver's buffer.");
  WEFT_FIELD(
      18, control_slots, uint32_t, 0, none,
      "Slots of the queue in which control messages (a receiver takes messages again) wait for the application's "
      "progress; more are dropped, and the refused message is sent again after stop_ns. 0: no queue.");
  WEFT_FIELD(19, reads_max, uint32_t, 0, none,
             "The rest of a long message is read by operations that start at the application's progress, so many at a "
             "time; 0: the NIC fetches it at once.");
  WEFT_FIELD(20, registers_buffers, bool, false, none,
             "The buffers for messages without a receive are registered with the runtimes of devices.");
  WEFT_FIELD(21, software_counts, bool, false, none,
             "Software counts receives, and the ends of pulled or match-complete sends: counters have them after the "
             "application's next progress.");
  WEFT_FIELD(22, tells_buffers, bool, true, none,
             "Completions of all receives have the address of the message, not only those of MULTI_RECV.");
  bool source = false, source_error = false;  // FI_SOURCE, FI_SOURCE_ERR of the endpoint's capabilities
};

struct EndpointConfig {
  WEFT_TABLE(2, EndpointConfig, "The settings of an endpoint.");
  WEFT_FIELD(1, caps, uint64_t, 0, flags, "Its capabilities.");
  WEFT_FIELD(2, tx_size, uint32_t, 1024, none, "The most operations under way.");
  WEFT_FIELD(3, inject_size, uint64_t, 256, bytes, "The most that an operation with INJECT sends.");
  WEFT_FIELD(4, max_msg_size, uint64_t, ~uint64_t{0} >> 1, bytes, "The most of one operation.");
  WEFT_FIELD(5, msg_order, uint64_t, 0, flags, "The order of its operations: FI_ORDER_ bits.");
  WEFT_FIELD(6, tx_op_flags, uint64_t, 0, flags, "Flags of operations whose call takes no flags.");
  WEFT_FIELD(7, vni, uint16_t, 0, none, "Its VNI.");
  WEFT_FIELD(8, foreign_key, bool, false, none, "Its VNI is not the domain's.");
  WEFT_FIELD(9, own_vni, bool, false, none, "It reaches peers on its own VNI, whatever the address vector has.");
  WEFT_FIELD(10, connected, bool, false, none, "It has one peer, by a connection (FI_EP_MSG).");
  WEFT_FIELD(11, fence_covers_all, bool, false, none,
             "FI_FENCE waits for operations to every peer, not only to the operation's own.");
  WEFT_FIELD(12, tclass, uint8_t, 0, none, "The traffic class in telemetry, 0 to 4.");
  WEFT_FIELD(13, holds_more, bool, false, none,
             "Operations with MORE wait for the next one without it, or until no more fit.");
  WEFT_FIELD(14, tells_lengths, bool, true, none, "Completions of its operations have the length; otherwise 0.");
  WEFT_FIELD(15, close_drops, bool, false, none,
             "Operations that are under way when it is closed have no entries; otherwise they end as canceled.");
  WEFT_FIELD(16, traffic, TrafficRules, {}, none, "How telemetry counts its operations.");
  WEFT_FIELD(17, reorder, ReorderConfig, {}, none, "Which of its operations overtake each other.");
  WEFT_FIELD(18, pids, PidRange, {}, none, "Numbers that the NIC chooses from.");
  WEFT_FIELD(19, messages, MessageConfig, {}, none, "How messages are sent and received.");
  WEFT_FIELD(20, commands, CommandQueueConfig, {}, none, "A modelled command queue.");
  WEFT_FIELD(21, accelerated, bool, false, none,
             "Collectives as on Slingshot: its operators, accumulators and errors.");
  WEFT_FIELD(22, prefer_numbers, bool, false, none,
             "Of accelerated reductions: MIN, MAX and MINMAXLOC of a NaN and a number are the number.");
  WEFT_FIELD(23, page_requests_max, uint32_t, 0, none,
             "Missing pages that one transfer gets in time, otherwise it fails; 0: any number.");
  WEFT_FIELD(24, tells_context, bool, false, none,
             "A failed inject call has the endpoint's context in its error entry.");
  WEFT_FIELD(25, rules, OpRules, {}, none, "The rules of its calls, checked before an operation is posted.");

  // The settings of an endpoint of this domain: what the domain, and the limits of the wire, decide for it.
  [[nodiscard]] EndpointConfig in(const DomainConfig& domain) const;
};

// ---- queues and counters --------------------------------------------------------------------------------------------

struct QueueConfig {
  WEFT_TABLE(17, QueueConfig, "The settings of a completion queue.");
  WEFT_FIELD(1, size, uint32_t, 1024, none, "Entries.");
  WEFT_FIELD(2, format, uint32_t, 0, none, "The format of its entries: enum fi_cq_format.");
  WEFT_FIELD(3, wait_obj, uint32_t, 1, none, "How a program waits: enum fi_wait_obj. FD: the queue has a descriptor.");
  WEFT_FIELD(4, huge, bool, false, none, "The entries lie in huge pages if the kernel has some.");
  WEFT_FIELD(5, ack_batch, uint32_t, 1, none,
             "Entries that are read until the NIC is told of all of them and can use their slots again.");
  WEFT_FIELD(6, reserves, bool, true, none,
             "Operations under way reserve the room of their completions; otherwise unread entries alone count.");
};

struct CounterConfig {
  WEFT_TABLE(18, CounterConfig, "The settings of a counter.");
  WEFT_FIELD(1, events, uint32_t, 0, none, "What it counts: enum fi_cntr_events; 1: bytes.");
  WEFT_FIELD(2, wait_obj, uint32_t, 1, none, "How a program waits: enum fi_wait_obj. FD: it has a descriptor.");
  WEFT_FIELD(3, value_max, uint64_t, ~uint64_t{0}, none, "The largest value, at which it saturates.");
  WEFT_FIELD(4, errors_max, uint64_t, ~uint64_t{0}, none, "The largest error value, likewise.");
  WEFT_FIELD(5, value_errno, int32_t, fi_err::kEINVAL, code, "The code that refuses larger values.");
  WEFT_FIELD(6, errors_errno, int32_t, fi_err::kEINVAL, code, "The code that refuses larger error values.");
  WEFT_FIELD(7, threshold_errno, int32_t, fi_err::kEINVAL, code, "The code that refuses larger thresholds.");
  WEFT_FIELD(8, client_memory, bool, false, none, "set_wb_buffer() and get_mmio() are available.");
  WEFT_FIELD(9, cached, bool, false, none,
             "read() returns the value written back last, and requests the next write-back.");
};

}  // namespace weft::nic
