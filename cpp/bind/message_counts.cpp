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
  WEFT_PUT(d, send, tagged_ids, untagged_ids, no_id, no_id_bytes, stops, stopped, stopped_dest, controls,
           controls_dropped);
  d["stopped_s"] = static_cast<double>(send.stopped_ns) * 1e-9;
  d["control_slots"] = ep.config().messages.control_slots;
  nic::RxPort* const port = ep.closed() ? nullptr : ep.port();
  const nic::RxContext::Statistics rx = port != nullptr ? port->context().statistics() : nic::RxContext::Statistics{};
  d["posted"] = rx.match.posted + rx.waiting;
  d["unexpected"] = rx.match.unexpected + rx.match.claimed;
  d["kept"] = rx.unexpected;
  WEFT_PUT(d, rx, matched, refused, flows, flows_by_index, waiting, append_attempts);
  d["buffers"] = rx.buffers.buffers;
  d["buffers_posted"] = rx.buffers.posted;
  d["buffers_most"] = rx.buffers.buffers_most;
  d["buffers_registered"] = rx.buffers.registered;
  const nic::RxPort::Pulls pulls = port != nullptr ? port->pulls() : nic::RxPort::Pulls{};
  WEFT_PUT(d, pulls, gets, reads, reads_most);
  const nic::RxModeConfig& mode = ep.config().messages.match;
  d["mode"] = nic::name_of(mode.mode);
  d["state"] = port != nullptr ? kStates[static_cast<size_t>(rx.mode.state)] : "";
  d["cause"] = kCauses[static_cast<size_t>(rx.mode.cause)];
  d["entries_of_receives"] = rx.mode.receives;
  d["entries_of_messages"] = rx.mode.messages;
  d["entries_of_buffers"] = rx.mode.buffers;
  d["entries_wanted"] = rx.mode.wanted_most;
  d["flow_controls"] = rx.mode.stops;
  WEFT_PUT(d, rx.mode, changes, pauses, onloaded, no_entries);
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
