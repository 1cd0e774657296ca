// cpp/link/cma.hpp: process_vm_readv/writev over whole transfers: every byte, or the reason why not.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <span>

#include "base/status.hpp"

namespace weft::link {

// Both lists describe the same number of bytes. fault: a page is missing or may not be accessed so.
// peer_gone: no such process. access: the kernel forbids it.
Status cma_copy_all(pid_t pid, bool to_peer, std::span<const iovec> local, std::span<const iovec> remote) noexcept;

}  // namespace weft::link
