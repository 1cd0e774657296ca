// cpp/link/cma.hpp: process_vm_readv/writev over whole transfers: every byte, or the reason why not.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <span>

#include "base/status.hpp"

namespace weft::link {

// Both lists describe the same number of bytes. fault: a page is missing or its protection forbids the access.
// peer_gone: no such process. access: the kernel forbids it.
// `life` is the life mark of the process (mem/life.hpp), checked before each system call and after the last. If it says
// that the process runs another program, the copy stops; bytes of the last call may be wrong (also peer_gone).
// Remaining race: the kernel resolves the process id after the check. An exec() or the reuse of the id in between goes
// unnoticed: some hundred nanoseconds, or as long as this thread is preempted there.
Status cma_copy_all(pid_t pid, const std::atomic<uint32_t>& life, bool to_peer, std::span<const iovec> local,
                    std::span<const iovec> remote) noexcept;

}  // namespace weft::link
