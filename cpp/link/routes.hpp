// cpp/link/routes.hpp: local NIC numbers for NICs of other hosts.
//
// wire::EpAddress contains a NIC number of 32 bits. This table assigns the numbers from wire::kRemoteNic on, one for
// each (host, port, NIC there) that the process learns of; they are valid only in this process. The table only grows,
// so a number keeps its meaning. The process has one table, because it parses addresses before it has a NIC.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>

#include "wire/tcp.hpp"

namespace weft::link {

struct Route {
  wire::HostAddress host;
  uint32_t nic = 0;  // its number there

  auto operator<=>(const Route&) const = default;
};

// Returns the number of a route and assigns one if the route is new. Thread-safe.
uint32_t route_number(const Route& route);

// The same for a route that a peer announces. The table never shrinks, so each listening process of a host can announce
// at most kToldNicsMax NICs; further ones get kUnknownNic.
constexpr uint32_t kToldNicsMax = 1024;
uint32_t told_route_number(const Route& route);
std::optional<Route> route_of(uint32_t nic);

std::string ip_of(const wire::HostAddress& host);
// "10.0.0.1:7000", "[fe80::1%eth0]:7000".
std::string text_of(const wire::HostAddress& host);
// "weft://10.0.0.1:7000/0/1/5"; for an address of this host, EpAddress::text().
std::string text_of(const wire::EpAddress& address);

// Parses numeric addresses only, without name lookup. Throws Error(EINVAL).
wire::HostAddress parse_host(const std::string& ip, uint16_t port);

wire::HostAddress from_sockaddr(const sockaddr_storage& from) noexcept;
socklen_t to_sockaddr(const wire::HostAddress& host, sockaddr_storage* out) noexcept;

}  // namespace weft::link
