// cpp/mem/huge_pages.hpp: huge pages for shared memory, where the system's own rule gives none.
#pragma once

#include <cstdint>

namespace weft::mem {

// Puts huge pages behind [address, address + length) of a segment, whose bytes stay, in whole blocks of 2 MiB. For
// systems that give shared memory none by themselves. False: the kernel refused (before Linux 6.1 always), and the
// range keeps small pages, some of them allocated now.
bool use_huge_pages(uint64_t address, uint64_t length) noexcept;

}  // namespace weft::mem
