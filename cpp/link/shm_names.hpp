// cpp/link/shm_names.hpp: the abstract Unix socket names of a host's endpoints.
//
// An endpoint's usual name is "weft-<version>-<user>-<nic>-<vni>-<pid>". Any user can bind any abstract name, so
// another user may already hold the name that an endpoint needs. The endpoint then binds the usual name with a random
// tail, which no other process can guess, and callers find it in /proc/net/unix, which lists the names of their
// network namespace. Endpoint and caller trust only the kernel (SO_PEERCRED) about the owner of a socket. Neither a
// file nor an environment variable is used.
#pragma once

#include <string>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/status.hpp"
#include "wire/address.hpp"

namespace weft::link {

// A socket that listens for callers of `address`. Throws Error(EADDRINUSE): another endpoint of this user has the
// address; EMFILE; EIO.
UniqueFd listen_at(const wire::EpAddress& address, Random& random);

// Connects `fd` to the endpoint at `address`. ok; again: the endpoint's queue is full; no_endpoint; refused: only
// sockets of other users have the name (`*why` names the user).
Status connect_to(int fd, const wire::EpAddress& address, std::string* why);

// True if an endpoint of this user, in any process of this network namespace, has this NIC and VNI, with any pid.
bool has_vni(uint32_t nic, uint16_t vni);

}  // namespace weft::link
