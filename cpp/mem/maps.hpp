// cpp/mem/maps.hpp: the mappings of this process (/proc/self/maps): the cache's resolver for system memory.
#pragma once

#include <optional>

#include "mem/cache.hpp"

namespace weft::mem {

// Facts about all of [address, address + length): persistent (a shared mapping of one or several files on disk),
// buffer_id (device and inode of the file, 0 without a file), user (offset in the file). Throws EFAULT if a part is not
// mapped.
CachedMapping describe_system_memory(uint64_t address, uint64_t length);
// The first address of the range that is not in a shared mapping of a file; empty if all of it is.
std::optional<uint64_t> first_not_persistent(uint64_t address, uint64_t length);
// The first address of the range that is in no mapping with the right to write; empty if all of it is in such ones.
std::optional<uint64_t> first_not_writable(uint64_t address, uint64_t length);
// True if a part of the range is System V shared memory (shmat).
bool has_system_v_memory(uint64_t begin, uint64_t end);
// The name of the files that HeldPages moves pages to.
constexpr const char* kHeldPagesFile = "weft-held-pages";
// True if all of the range is writable private memory, anonymous or of such a file, not a stack.
bool is_plain_memory(uint64_t begin, uint64_t end);
// True if all of the range is mapped from the file with that inode.
bool is_mapped_from(uint64_t begin, uint64_t end, uint64_t inode);

}  // namespace weft::mem
