// cpp/host/trace_file.cpp: see trace_file.hpp.
#include "host/trace_file.hpp"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace weft::host {

namespace {

// The command line of this process: words with a space between them.
std::string command_line() {
  std::string text(256, '\0');
  const UniqueFd file(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
  const ssize_t n = file.valid() ? ::read(file.get(), text.data(), text.size()) : 0;
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  std::ranges::replace(text, '\0', ' ');
  return text.substr(text.rfind('/', text.find(' ')) + 1);
}

}  // namespace

TraceFile::TraceFile(const std::string& folder, size_t records, Clock& clock, Random& random) {
  records = std::bit_ceil(std::clamp(records, kRecordsMin, kRecordsMax));
  const size_t bytes = nic::Trace::bytes_for(records);
  char name[64];
  std::snprintf(name, sizeof(name), "/%d-%016llx.weft-trace", static_cast<int>(::getpid()),
                static_cast<unsigned long long>(random.next()));
  const std::string path = folder + name;
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  int failed = file.valid() ? ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)) : errno;
  if (failed != 0) {
    if (file.valid()) (void)::unlink(path.c_str());
    throw Error(failed, "WEFT_TRACE: the trace " + path + " of " + std::to_string(bytes) +
                            " B cannot be made: " + std::strerror(failed));
  }
  memory_ = Mapping::shared(file.get(), bytes, true, "trace");
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  const uint64_t at = static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  trace_ = std::make_unique<nic::Trace>(std::span(memory_.data(), bytes), records, clock, at, command_line());
}

}  // namespace weft::host
