// cpp/bind/message_counts.cpp: what Python sees of an endpoint's messages besides completions.
#include "bind/ep.hpp"
#include "nic/rx_port.hpp"

namespace weft::bind {

nb::dict message_statistics(nic::Endpoint& ep) {
  static constexpr const char* kStates[] = {"hardware", "changing", "software"};
  static constexpr const char* kCauses[] = {
      "", "no entry for a message", "no entry for a receive", "few entries", "many receives", "many messages"};
  nb::dict d;
  const nic::MessageSender::State send = ep.messages().state();
  d["tagged_ids"] = send.tagged_ids;
  d["untagged_ids"] = send.untagged_ids;
  d["no_id"] = send.no_id;
  d["no_id_bytes"] = send.no_id_bytes;
  d["stops"] = send.stops;
  d["stopped"] = send.stopped;
  d["stopped_s"] = static_cast<double>(send.stopped_ns) * 1e-9;
  d["stopped_dest"] = send.stopped_dest;
  d["control_slots"] = ep.config().messages.control_slots;
  d["controls"] = send.controls;
  d["controls_dropped"] = send.controls_dropped;
  nic::RxPort* const port = ep.closed() ? nullptr : ep.port();
  const nic::RxContext::Statistics rx = port != nullptr ? port->context().statistics() : nic::RxContext::Statistics{};
  d["posted"] = rx.match.posted + rx.waiting;
  d["unexpected"] = rx.match.unexpected + rx.match.claimed;
  d["matched"] = rx.matched;
  d["kept"] = rx.unexpected;
  d["refused"] = rx.refused;
  d["flows"] = rx.flows;
  d["flows_by_index"] = rx.flows_by_index;
  d["buffers"] = rx.buffers.buffers;
  d["buffers_posted"] = rx.buffers.posted;
  d["buffers_most"] = rx.buffers.buffers_most;
  d["buffers_registered"] = rx.buffers.registered;
  const nic::RxPort::Pulls pulls = port != nullptr ? port->pulls() : nic::RxPort::Pulls{};
  d["gets"] = pulls.gets;
  d["reads"] = pulls.reads;
  d["reads_most"] = pulls.reads_most;
  const nic::RxModeConfig& mode = ep.config().messages.match;
  d["mode"] = nic::name_of(mode.mode);
  d["state"] = port != nullptr ? kStates[static_cast<size_t>(rx.mode.state)] : "";
  d["cause"] = kCauses[static_cast<size_t>(rx.mode.cause)];
  d["entries_of_receives"] = rx.mode.receives;
  d["entries_of_messages"] = rx.mode.messages;
  d["entries_of_buffers"] = rx.mode.buffers;
  d["entries_wanted"] = rx.mode.wanted_most;
  d["changes"] = rx.mode.changes;
  d["flow_controls"] = rx.mode.stops;
  d["pauses"] = rx.mode.pauses;
  d["onloaded"] = rx.mode.onloaded;
  d["no_entries"] = rx.mode.no_entries;
  d["waiting"] = rx.waiting;
  d["append_attempts"] = rx.append_attempts;
  return d;
}

nb::tuple unreceived(nic::Endpoint& ep, size_t max) {
  size_t total = 0;
  const std::vector<nic::Endpoint::Unreceived> all = ep.unreceived(max, &total);
  nb::list out;
  for (const auto& [m, source] : all) {
    const uint64_t flags =
        (m.tagged ? nic::flag::kTagged : nic::flag::kMsg) | (m.has_data ? nic::flag::kRemoteCqData : uint64_t{0});
    out.append(nb::make_tuple(flags, m.length, m.data, m.tag, source));
  }
  return nb::make_tuple(out, total);
}

}  // namespace weft::bind
