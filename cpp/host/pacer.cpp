// cpp/host/pacer.cpp: see pacer.hpp.
#include "host/pacer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace weft::host {

// Some 2 us.
bool is_crowded() noexcept {
  static const int file = ::open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
  static const long processors = ::sysconf(_SC_NPROCESSORS_ONLN);
  char text[64] = {};
  long running = 0;
  if (file < 0 || ::pread(file, text, sizeof(text) - 1, 0) <= 0) return true;
  return std::sscanf(text, "%*s %*s %*s %ld/", &running) != 1 || running > processors;
}

}  // namespace weft::host
