// cpp/mem/maps.hpp: what the system says is mapped at an address (/proc/self/maps): the resolver for system memory.
#pragma once

#include <optional>
#include <string>

#include "mem/cache.hpp"

namespace weft::mem {

// Facts that hold for all of [address, address + length): persistent (a shared mapping of one file, or several, on
// disk), buffer_id (device and inode of the file, 0 without), user (offset in it). Throws EFAULT where a part is not
// mapped.
CachedMapping describe_system_memory(uint64_t address, uint64_t length);
// The first address of the range that is no shared mapping of a file; nothing where all of it is.
std::optional<uint64_t> first_not_persistent(uint64_t address, uint64_t length);
// Whether a part of the range is System V shared memory (shmat).
bool has_system_v_memory(uint64_t begin, uint64_t end);

}  // namespace weft::mem
