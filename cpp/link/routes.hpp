// cpp/link/routes.hpp: the NIC numbers under which NICs of other hosts are known here.
//
// wire::EpAddress names a NIC by a number of 32 bits. Numbers from wire::kRemoteNic on are handed out here, one for
// each (host, port, NIC there) that this process has heard of; they mean nothing outside of it. The table only grows,
// so a number stays what it is. It is the process's, not a NIC's: addresses are read and written before there is one.
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

// The number of a route, a new one if it was never asked for. Thread-safe.
uint32_t route_number(const Route& route);
std::optional<Route> route_of(uint32_t nic);

std::string ip_of(const wire::HostAddress& host);
// "10.0.0.1:7000", "[fe80::1%eth0]:7000".
std::string text_of(const wire::HostAddress& host);
// "weft://10.0.0.1:7000/0/1/5", or what EpAddress::text() says of an address of this host.
std::string text_of(const wire::EpAddress& address);

// Numbers only: no name is looked up. Throws Error(EINVAL).
wire::HostAddress parse_host(const std::string& ip, uint16_t port);

wire::HostAddress from_sockaddr(const sockaddr_storage& from) noexcept;
socklen_t to_sockaddr(const wire::HostAddress& host, sockaddr_storage* out) noexcept;

}  // namespace weft::link
