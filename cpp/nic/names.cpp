// cpp/nic/names.cpp: what peers are called, and why one could not be reached.
#include "nic/nic.hpp"

namespace weft::nic {

std::optional<wire::EpAddress> Nic::local_name(const wire::EpAddress& address) const {
  if (address.nic < wire::kRemoteNic) [[likely]]
    return std::nullopt;
  for (link::Link* link : parts_.links) {
    if (auto here = link->local_name(address)) return here;
  }
  return std::nullopt;
}

std::string Nic::explain(const wire::EpAddress& address) const {
  for (const link::Link* link : parts_.links) {
    if (std::string why = link->explain(address); !why.empty()) return why;
  }
  return {};
}

std::string Nic::text_of(const wire::EpAddress& address) const {
  for (const link::Link* link : parts_.links) {
    if (auto text = link->name_of(address)) return *text;
  }
  return address.text();
}

}  // namespace weft::nic
