// cpp/link/descriptors.hpp: file descriptors reserved for the application and connected peers; callers get the others.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace weft::link {

constexpr rlim_t kReservedFds = 64;  // at most; of a small limit the last eighth

// True if `fd`, which accept() returned, is below the reserve. (The kernel returns the lowest free number.)
inline bool leaves_reserve(int fd) noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return static_cast<rlim_t>(fd) < limit.rlim_cur - std::min(kReservedFds, limit.rlim_cur / 8);
}

}  // namespace weft::link
