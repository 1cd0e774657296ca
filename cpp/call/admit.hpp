// cpp/call/admit.hpp: the initiators that a region admits by its authorization key (fi_mr(3)).
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "mem/table.hpp"
#include "nic/nic.hpp"

namespace weft::call {

// Those of these VNIs, or the one endpoint. Throws ENOSPC for more VNIs than a region takes.
inline mem::AccessGuard admit(nic::Nic& nic, std::span<const uint16_t> vnis, std::optional<wire::EpAddress> source) {
  mem::AccessGuard guard;
  if (vnis.size() > guard.vnis.size()) {
    throw Error(fi_err::kENOSPC, std::to_string(vnis.size()) + " authorization keys; a region takes at most " +
                                     std::to_string(guard.vnis.size()));
  }
  guard.vni_count = static_cast<uint32_t>(vnis.size());
  std::ranges::copy(vnis, guard.vnis.begin());
  if (source) {
    guard.has_source = 1;
    // Frames from processes of this host carry the address on this host.
    guard.source = nic.local_name(*source).value_or(*source);
  }
  return guard;
}

}  // namespace weft::call
