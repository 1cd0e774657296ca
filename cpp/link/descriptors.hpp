// cpp/link/descriptors.hpp: the file descriptors that callers leave to the application and to peers that are connected.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace weft::link {

constexpr rlim_t kReservedFds = 64;  // where the limit is large; otherwise its last eighth

// Whether `fd`, which accept() returned, is not taken from the reserve. (The kernel gives the lowest free number.)
inline bool leaves_reserve(int fd) noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return static_cast<rlim_t>(fd) < limit.rlim_cur - std::min(kReservedFds, limit.rlim_cur / 8);
}

}  // namespace weft::link
