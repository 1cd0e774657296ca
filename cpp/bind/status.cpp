// cpp/bind/status.cpp: the statuses of operations, as an enum that Python and the NIC share.
#include <nanobind/nanobind.h>

#include "bind/common.hpp"

namespace weft::bind {

void register_status(Module& m) {
  nb::enum_<Status>(m, "Status", nb::is_arithmetic(),
                    "How an operation ended. A domain's policy maps each status to the provider's error codes.")
      .value("ok", Status::ok)
      .value("no_key", Status::no_key)
      .value("stale_key", Status::stale_key)
      .value("access", Status::access)
      .value("bounds", Status::bounds)
      .value("not_enabled", Status::not_enabled)
      .value("wrong_endpoint", Status::wrong_endpoint)
      .value("no_endpoint", Status::no_endpoint)
      .value("peer_gone", Status::peer_gone)
      .value("refused", Status::refused)
      .value("misaligned", Status::misaligned)
      .value("canceled", Status::canceled)
      .value("fault", Status::fault)
      .value("timeout", Status::timeout)
      .value("unsupported", Status::unsupported)
      .value("invalid", Status::invalid)
      .value("again", Status::again)
      .value("protocol", Status::protocol)
      .value("no_memory", Status::no_memory)
      .value("device", Status::device)
      .value("unauthorized", Status::unauthorized)
      .value("unreachable", Status::unreachable)
      .value("endpoint_access", Status::endpoint_access)
      .value("closed", Status::closed)
      .value("secret", Status::secret)
      .value("version", Status::version)
      .value("corrupted", Status::corrupted)
      .value("backlog", Status::backlog)
      .value("truncated", Status::truncated)
      .value("no_message", Status::no_message)
      .value("no_source", Status::no_source)
      .value("not_ready", Status::not_ready)
      .value("page_request", Status::page_request)
      .value("no_entry", Status::no_entry);
  m.def(
      "status_errno", [](Status status) { return fi_errno(status); }, nb::arg("status"),
      "The FI_ code of a status according to the man pages.");
}

}  // namespace weft::bind
