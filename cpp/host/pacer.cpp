// cpp/host/pacer.cpp: see pacer.hpp.
#include "host/pacer.hpp"

#include <unistd.h>

#include <cstdio>

namespace weft::host {

static const long g_processors = ::sysconf(_SC_NPROCESSORS_ONLN);

// Some 6 us.
bool is_crowded() noexcept {
  long running = 0;
  std::FILE* const file = std::fopen("/proc/loadavg", "re");
  if (file == nullptr) return true;
  const bool told = std::fscanf(file, "%*s %*s %*s %ld/", &running) == 1;
  (void)std::fclose(file);
  return !told || running > g_processors;
}

}  // namespace weft::host
