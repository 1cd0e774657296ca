// cpp/link/tcp_names.hpp: addresses of this host, as the tcp link needs them.
#pragma once

#include <sys/un.h>

#include "link/routes.hpp"

namespace weft::link {

// The name by which processes of this host and user know that somebody who listens there can be reached by shm.
socklen_t here_name(const wire::HostAddress& host, bool wildcard, sockaddr_un* out) noexcept;
bool is_wildcard(const wire::HostAddress& host) noexcept;
// An address of this network namespace: only such a one can be bound.
bool is_ours(const wire::HostAddress& host) noexcept;
// The address that packets to far away leave from; without a way out the first of an interface, or loopback.
wire::HostAddress usual_address(uint8_t family, uint16_t port) noexcept;

}  // namespace weft::link
