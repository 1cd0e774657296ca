// cpp/link/tcp_names.hpp: addresses of this host, as the tcp link needs them.
#pragma once

#include <sys/un.h>

#include "link/routes.hpp"

namespace weft::link {

// The abstract socket name of a NIC that listens at `host`: processes of this host and user that find it use shm.
socklen_t here_name(const wire::HostAddress& host, bool wildcard, sockaddr_un* out) noexcept;
bool is_wildcard(const wire::HostAddress& host) noexcept;
// Whether the address belongs to this network namespace, that is, can be bound.
bool is_ours(const wire::HostAddress& host) noexcept;
// The address that packets to distant hosts leave from; without a route the first of an interface, or loopback.
wire::HostAddress usual_address(uint8_t family, uint16_t port) noexcept;

}  // namespace weft::link
