// cpp/link/cma.hpp: process_vm_readv/writev over whole transfers: every byte, or the reason why not.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <span>

#include "base/status.hpp"

namespace weft::link {

// Both lists describe the same number of bytes. fault: a page is missing or may not be accessed so.
// peer_gone: no such process. access: the kernel forbids it.
// `life` is the process's mark: where it says that the process runs another program, nothing more is copied, and what
// was being copied when it did may have gone wrong (peer_gone as well).
// The kernel finds the memory by the process id once a call has begun. What runs between the look at the mark and that
// moment cannot be shut out: some hundred nanoseconds, or as long as this thread is preempted there.
Status cma_copy_all(pid_t pid, const std::atomic<uint32_t>& life, bool to_peer, std::span<const iovec> local,
                    std::span<const iovec> remote) noexcept;

}  // namespace weft::link
