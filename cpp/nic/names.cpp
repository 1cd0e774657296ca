// cpp/nic/names.cpp: the text form of addresses, and why connecting to one failed.
#include <cstdio>
#include <cstring>

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

std::string AddressText::of(const wire::EpAddress& address) const {
  const uint32_t nic = address.nic & nic_mask;
  char hex[12];
  std::snprintf(hex, sizeof(hex), "%x", nic);
  const std::pair<const char*, std::string> numbers[] = {{"{nic}", std::to_string(nic)},
                                                         {"{nic:x}", hex},
                                                         {"{pid}", std::to_string(address.pid)},
                                                         {"{vni}", std::to_string(address.vni)}};
  std::string text = form;
  for (const auto& [name, number] : numbers) {
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + number.size())) {
      text.replace(at, std::strlen(name), number);
    }
  }
  return text;
}

std::string Nic::text_of(const wire::EpAddress& address, const AddressText& as) const {
  if (!as.form.empty()) {
    for (link::Link* link : parts_.links) {
      if (const auto place = link->place_of(address)) {
        return as.of({place->nic, address.pid, address.vni, 0}) + " at " + place->host;
      }
    }
    return as.of(address);
  }
  for (const link::Link* link : parts_.links) {
    if (auto text = link->name_of(address)) return *text;
  }
  return address.text();
}

}  // namespace weft::nic
