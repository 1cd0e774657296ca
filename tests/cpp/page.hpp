// tests/cpp/page.hpp: the size of a page of memory.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace weft::test {

inline const size_t kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));

}  // namespace weft::test
