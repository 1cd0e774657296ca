// cpp/bind/message_config.cpp: how an endpoint sends and receives messages; a provider's policy sets the values.
#include "bind/objects.hpp"
#include "wire/frame.hpp"

namespace weft::bind {

void register_message_config(Module& m) {
  using nic::MatchMode;
  using nic::MessageConfig;
  nb::enum_<MatchMode>(m, "MatchMode", "Where the messages of an endpoint are matched: FI_CXI_RX_MATCH_MODE.")
      .value("unlimited", MatchMode::unlimited, "As in hardware, without a limit of list entries.")
      .value("hardware", MatchMode::hardware, "In hardware; without list entries flow control begins.")
      .value("hybrid", MatchMode::hybrid, "In hardware; without list entries in software from then on.")
      .value("software", MatchMode::software, "In software, which needs no list entries.");
  Class<MessageConfig>(m, "MessageConfig",
                       "How an endpoint sends and receives messages. Two capabilities of the endpoint, SOURCE and\n"
                       "SOURCE_ERR, are set beside these values.")
      .def(nb::init<>())
      .def_rw(
          "eager_max", &MessageConfig::eager_max,
          "Longer messages wait in the sender's memory until a receive takes them; the receiver has shorter ones at "
          "once.")
      .def_prop_rw(
          "eager_part", [](const MessageConfig& c) { return c.eager_part; },
          [](MessageConfig& c, uint64_t n) { c.eager_part = std::min<uint64_t>(n, wire::kStagedPayloadMax); },
          "Bytes that a message of several frames brings along. At most the payload of one frame; more is cut to "
          "that.")
      .def_rw("copy_max", &MessageConfig::copy_max,
              "Messages up to this length are copied by the call if they cannot be sent at once.")
      .def_rw("tagged_ids", &MessageConfig::tagged_ids,
              "The most tagged messages that may wait to be pulled at a time; 0: any number.")
      .def_rw("untagged_ids", &MessageConfig::untagged_ids, "The same for untagged messages.")
      .def_rw("min_multi_recv", &MessageConfig::min_multi_recv,
              "OPT_MIN_MULTI_RECV: a buffer for several messages ends when fewer bytes are left.")
      .def_rw("posted_max", &MessageConfig::posted_max, "The most receives.")
      .def_rw("unexpected_max", &MessageConfig::unexpected_max, "The most messages without a receive.")
      .def_prop_rw(
          "buffer_bytes", [](const MessageConfig& c) { return c.buffers.bytes; },
          [](MessageConfig& c, size_t n) { c.buffers.bytes = n; }, "Bytes of a buffer for messages without a receive.")
      .def_prop_rw(
          "buffers_min", [](const MessageConfig& c) { return c.buffers.posted_min; },
          [](MessageConfig& c, uint32_t n) { c.buffers.posted_min = c.mode.buffers = n; },
          "Buffers that are ready in advance. In hardware mode each takes a list entry.")
      .def_prop_rw(
          "buffers_cached", [](const MessageConfig& c) { return c.buffers.cached_max; },
          [](MessageConfig& c, uint32_t n) { c.buffers.cached_max = n; },
          "The most buffers that are kept when no message needs them; 0: all.")
      .def_prop_rw(
          "buffers_max", [](const MessageConfig& c) { return c.buffers.count_max; },
          [](MessageConfig& c, uint32_t n) { c.buffers.count_max = n; },
          "The most buffers; when all are full, senders have to wait.")
      .def_prop_rw(
          "mode", [](const MessageConfig& c) { return c.mode.mode; },
          [](MessageConfig& c, MatchMode mode) { c.mode.mode = mode; },
          "Where messages are matched, and so whether receives and messages take list entries.")
      .def(
          "set_entries",
          [](MessageConfig& c, nb::handle_t<mem::Ledger> ledger, uint32_t slot, uint32_t kind) {
            if (slot >= mem::Ledger::kSlotsMax || kind >= mem::Ledger::kKinds)
              raise(fi_err::kEINVAL, "MessageConfig: no such slot or kind");
            // An endpoint that is never closed uses the ledger until the process ends, so the ledger lives as long.
            ledger.inc_ref();
            c.mode.entries = {nb::cast<mem::Ledger*>(ledger), slot, kind};
          },
          nb::arg("ledger"), nb::arg("slot"), nb::arg("kind"),
          "The list entries of a service: a kind of resource in the ledger, for the process with this slot. The slot\n"
          "must be open until the endpoint is closed; the ledger is kept until the process ends.")
      .def_prop_rw(
          "size", [](const MessageConfig& c) { return c.mode.size; },
          [](MessageConfig& c, uint32_t n) { c.mode.size = n; }, "rx_attr.size: see by_receives and by_messages.")
      .def_prop_rw(
          "lossless", [](const MessageConfig& c) { return c.mode.lossless; },
          [](MessageConfig& c, bool on) { c.mode.lossless = on; },
          "In hardware mode a message without a list entry waits at its sender, and no flow control begins.")
      .def_prop_rw(
          "early_for_messages", [](const MessageConfig& c) { return c.mode.early_for_messages; },
          [](MessageConfig& c, bool on) { c.mode.early_for_messages = on; },
          "hybrid: changes to software when a message without a receive takes one of the last `requests_min` entries.")
      .def_prop_rw(
          "early_for_receives", [](const MessageConfig& c) { return c.mode.early_for_receives; },
          [](MessageConfig& c, bool on) { c.mode.early_for_receives = on; }, "The same for a posted receive.")
      .def_prop_rw(
          "by_receives", [](const MessageConfig& c) { return c.mode.by_receives; },
          [](MessageConfig& c, bool on) { c.mode.by_receives = on; },
          "hybrid: changes to software when more receives than `size` are posted.")
      .def_prop_rw(
          "by_messages", [](const MessageConfig& c) { return c.mode.by_messages; },
          [](MessageConfig& c, bool on) { c.mode.by_messages = on; },
          "hybrid: changes to software when more messages than `size` have no receive.")
      .def_prop_rw(
          "requests_bytes", [](const MessageConfig& c) { return c.requests.bytes; },
          [](MessageConfig& c, size_t n) { c.requests.bytes = n; },
          "As buffer_bytes, for messages that are matched by software.")
      .def_prop_rw(
          "requests_min", [](const MessageConfig& c) { return c.requests.posted_min; },
          [](MessageConfig& c, uint32_t n) { c.requests.posted_min = c.mode.requests = n; },
          "As buffers_min; each takes a list entry.")
      .def_prop_rw(
          "requests_cached", [](const MessageConfig& c) { return c.requests.cached_max; },
          [](MessageConfig& c, uint32_t n) { c.requests.cached_max = n; }, "As buffers_cached.")
      .def_prop_rw(
          "requests_max", [](const MessageConfig& c) { return c.requests.count_max; },
          [](MessageConfig& c, uint32_t n) { c.requests.count_max = n; }, "As buffers_max.")
      .def_rw("append_retry_ns", &MessageConfig::append_retry_ns,
              "Nanoseconds that a receive waits for a list entry before it fails; 0: as the mode has it.")
      .def_rw("credits", &MessageConfig::credits,
              "Short messages that one sender may send without an answer; 0: every message is answered.")
      .def_rw("unordered", &MessageConfig::unordered,
              "Messages have no order, and a message without a receive is not kept: its sender sends it again.")
      .def_rw("retry_ns_max", &MessageConfig::retry_ns_max,
              "Such a message fails if it has found no receive for so many nanoseconds.")
      .def_rw(
          "stop_ns", &MessageConfig::stop_ns,
          "Nanoseconds after which refused messages are sent again, if the receiver has not asked for them earlier.")
      .def_rw("delivery_complete", &MessageConfig::delivery_complete,
              "DELIVERY_COMPLETE of a send waits until the message is in the receiver's buffer.")
      .def_rw(
          "control_slots", &MessageConfig::control_slots,
          "Slots of the queue in which control messages wait for the application's progress; more are dropped, and\n"
          "the refused message is sent again after stop_ns. 0: no queue.")
      .def_rw(
          "reads_max", &MessageConfig::reads_max,
          "The rest of a long message is read by operations that start at the application's progress, so many at a\n"
          "time; 0: the NIC fetches it at once.")
      .def_rw("registers_buffers", &MessageConfig::registers_buffers,
              "The buffers for messages without a receive are registered with the runtimes of devices.")
      .def_rw("software_counts", &MessageConfig::software_counts,
              "Software counts receives, and the ends of pulled or match-complete sends: counters have them after the\n"
              "application's next progress.")
      .def_rw("tells_buffers", &MessageConfig::tells_buffers,
              "Completions of all receives have the address of the message, not only those of MULTI_RECV.");
}

}  // namespace weft::bind
