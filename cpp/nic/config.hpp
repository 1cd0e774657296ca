// cpp/nic/config.hpp: the configuration of an endpoint, which a provider's policy decides.
#pragma once

#include <cstdint>

#include "nic/command_queue.hpp"
#include "nic/reorder.hpp"
#include "nic/rules.hpp"
#include "nic/rx_buffers.hpp"
#include "nic/rx_mode.hpp"
#include "nic/telemetry.hpp"

namespace weft::nic {

// The range from which the NIC chooses an endpoint's number if the application gives none.
struct PidRange {
  uint32_t first = 0x40000000u;
  uint32_t last = 0x7fffffffu;
};

// How an endpoint sends and receives messages: the provider's protocol. Design: docs/design/messages.md.
struct MessageConfig {
  // Longer messages wait in the sender's memory until a receive takes them. The receiver has shorter ones at once.
  uint64_t eager_max = 16384;
  uint64_t eager_part = 0;  // bytes that a message of several frames brings along; at most wire::kStagedPayloadMax
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

}  // namespace weft::nic
