// cpp/link/shm_names.hpp: the abstract Unix sockets by which endpoints of a host are found.
//
// An endpoint's usual name is "weft-<version>-<user>-<nic>-<vni>-<pid>". Any user may bind any abstract name, so
// another user may sit on one that an endpoint will take. Then the endpoint binds that name with a random tail, which
// which no other process can know before, and callers find it in /proc/net/unix, which lists the names of their own
// network namespace. Both believe only the kernel's word (SO_PEERCRED) on whose socket it is. No file and no
// environment variable takes part.
#pragma once

#include <functional>
#include <string>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/status.hpp"
#include "wire/address.hpp"

namespace weft::link {

// A socket that listens for callers of `address`. Throws Error(EADDRINUSE): another endpoint of this user has it;
// EMFILE; EIO.
UniqueFd listen_at(const wire::EpAddress& address, Random& random);

// Connects `fd` to the endpoint at `address`. ok; again: its queue is full; no_endpoint; refused: only other users'
// sockets have its name (`*why` tells whose).
Status connect_to(int fd, const wire::EpAddress& address, std::string* why);

}  // namespace weft::link
