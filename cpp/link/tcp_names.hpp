// cpp/link/tcp_names.hpp: addresses of this host for the tcp link.
#pragma once

#include <sys/un.h>

#include "link/routes.hpp"

namespace weft::link {

// The abstract socket name of a NIC that listens at `host`: processes of this host and user that find it use shm.
socklen_t here_name(const wire::HostAddress& host, bool wildcard, sockaddr_un* out) noexcept;
bool is_wildcard(const wire::HostAddress& host) noexcept;
// True if the address belongs to this network namespace, that is, a socket can bind it.
bool is_ours(const wire::HostAddress& host) noexcept;
// The source address of packets to distant hosts; without a route, the first address of an interface, or loopback.
wire::HostAddress usual_address(uint8_t family, uint16_t port) noexcept;

}  // namespace weft::link
