// cpp/link/routes.cpp: see routes.hpp.
#include "link/routes.hpp"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstring>

namespace weft::link {

uint32_t Routes::add(const Route& route) {
  lock_.assert_held();
  const auto [it, added] = numbers_.try_emplace(route, wire::kRemoteNic + static_cast<uint32_t>(routes_.size()));
  if (added) routes_.push_back(route);
  return it->second;
}

uint32_t Routes::number(const Route& route) {
  const Guard lock(lock_);
  return add(route);
}

uint32_t Routes::told_number(const Route& route) {
  const Guard lock(lock_);
  if (const auto known = numbers_.find(route); known != numbers_.end()) return known->second;
  uint32_t& told = told_[route.host];
  if (told >= kToldNicsMax) return wire::kUnknownNic;
  ++told;
  return add(route);
}

std::optional<Route> Routes::find(uint32_t nic) const {
  if (nic < wire::kRemoteNic) return std::nullopt;
  const Guard lock(lock_);
  const size_t at = nic - wire::kRemoteNic;
  if (at >= routes_.size()) return std::nullopt;
  return routes_[at];
}

std::string Routes::text_of(const wire::EpAddress& address) const {
  const auto route = find(address.nic);
  if (!route) return address.text();
  return "weft://" + link::text_of(route->host) + "/" + std::to_string(route->nic) + "/" + std::to_string(address.vni) +
         "/" + std::to_string(address.pid);
}

std::string ip_of(const wire::HostAddress& host) {
  char text[INET6_ADDRSTRLEN] = "nowhere";
  if (host.family == 4) ::inet_ntop(AF_INET, host.ip.data(), text, sizeof(text));
  if (host.family == 6) ::inet_ntop(AF_INET6, host.ip.data(), text, sizeof(text));
  if (host.family != 6 || host.scope == 0) return text;
  char name[IF_NAMESIZE];
  return std::string(text) + "%" +
         (::if_indextoname(host.scope, name) != nullptr ? std::string(name) : std::to_string(host.scope));
}

std::string text_of(const wire::HostAddress& host) {
  const std::string ip = ip_of(host);
  return (host.family == 6 ? "[" + ip + "]" : ip) + ":" + std::to_string(host.port);
}

wire::HostAddress parse_host(const std::string& ip, uint16_t port) {
  wire::HostAddress host;
  host.port = port;
  if (::inet_pton(AF_INET, ip.c_str(), host.ip.data()) == 1) {
    host.family = 4;
    return host;
  }
  const size_t percent = ip.find('%');
  if (::inet_pton(AF_INET6, ip.substr(0, percent).c_str(), host.ip.data()) == 1) {
    host.family = 6;
    if (percent != std::string::npos) {
      host.scope = ::if_nametoindex(ip.c_str() + percent + 1);
      if (host.scope == 0) host.scope = static_cast<uint32_t>(std::strtoul(ip.c_str() + percent + 1, nullptr, 10));
    }
    return host;
  }
  throw Error(fi_err::kEINVAL, "'" + ip + "' is no IP address");
}

wire::HostAddress from_sockaddr(const sockaddr_storage& from) noexcept {
  wire::HostAddress host;
  if (from.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(from);
    host.family = 4;
    host.port = ntohs(in.sin_port);
    std::memcpy(host.ip.data(), &in.sin_addr, 4);
  } else if (from.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(from);
    host.port = ntohs(in.sin6_port);
    if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) {  // an IPv4 caller of a listener on [::]: use its IPv4 address
      host.family = 4;
      std::memcpy(host.ip.data(), in.sin6_addr.s6_addr + 12, 4);
    } else {
      host.family = 6;
      host.scope = in.sin6_scope_id;
      std::memcpy(host.ip.data(), &in.sin6_addr, 16);
    }
  }
  return host;
}

socklen_t to_sockaddr(const wire::HostAddress& host, sockaddr_storage* out) noexcept {
  std::memset(out, 0, sizeof(*out));
  if (host.family == 6) {
    auto& in = reinterpret_cast<sockaddr_in6&>(*out);
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(host.port);
    in.sin6_scope_id = host.scope;
    std::memcpy(&in.sin6_addr, host.ip.data(), 16);
    return sizeof(sockaddr_in6);
  }
  auto& in = reinterpret_cast<sockaddr_in&>(*out);
  in.sin_family = AF_INET;
  in.sin_port = htons(host.port);
  std::memcpy(&in.sin_addr, host.ip.data(), 4);
  return sizeof(sockaddr_in);
}

}  // namespace weft::link
