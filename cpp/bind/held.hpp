// cpp/bind/held.hpp: the pages that this process's NICs hold for domains that asked for it (mem/held_pages.hpp).
#pragma once

#include <sys/uio.h>

#include "bind/common.hpp"
#include "mem/held_pages.hpp"

namespace weft::bind {

mem::HeldPages& held_pages();
// True if any domain holds pages; otherwise the calls below are not needed.
extern bool g_holding;
// If the domain holds pages, holds those of `piece` and replaces its address by the alias for the NIC.
void hold(const DomainBox* box, const void* owner, iovec* piece);

}  // namespace weft::bind
