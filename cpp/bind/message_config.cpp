// cpp/bind/message_config.cpp: how an endpoint sends and receives messages; a provider's policy sets the values.
#include "bind/objects.hpp"
#include "wire/frame.hpp"

namespace weft::bind {

void register_message_config(nb::module_& m) {
  using nic::MessageConfig;
  nb::class_<MessageConfig>(
      m, "MessageConfig",
      "How an endpoint sends and receives messages. Two capabilities of the endpoint, SOURCE and\n"
      "SOURCE_ERR, are set beside these values.")
      .def(nb::init<>())
      .def_prop_rw(
          "eager_max", [](const MessageConfig& c) { return c.eager_max; },
          [](MessageConfig& c, uint64_t n) { c.eager_max = std::min<uint64_t>(n, wire::kStagedPayloadMax); },
          "Longer messages are pulled by the receiver. At most the payload of one frame; more is cut to that.")
      .def_prop_rw(
          "eager_part", [](const MessageConfig& c) { return c.eager_part; },
          [](MessageConfig& c, uint64_t n) { c.eager_part = std::min<uint64_t>(n, wire::kStagedPayloadMax); },
          "Bytes that such a message brings along; cut likewise.")
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
          [](MessageConfig& c, uint32_t n) { c.buffers.posted_min = n; }, "Buffers that are ready in advance.")
      .def_prop_rw(
          "buffers_cached", [](const MessageConfig& c) { return c.buffers.cached_max; },
          [](MessageConfig& c, uint32_t n) { c.buffers.cached_max = n; },
          "The most buffers that are kept when no message needs them; 0: all.")
      .def_prop_rw(
          "buffers_max", [](const MessageConfig& c) { return c.buffers.count_max; },
          [](MessageConfig& c, uint32_t n) { c.buffers.count_max = n; },
          "The most buffers; when all are full, senders have to wait.")
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
      .def_rw("tells_buffers", &MessageConfig::tells_buffers,
              "Completions of all receives have the address of the message, not only those of MULTI_RECV.");
}

}  // namespace weft::bind
