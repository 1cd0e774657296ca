// cpp/host/world.cpp: see world.hpp.
#include "host/world.hpp"

#include <fcntl.h>
#include <linux/membarrier.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/fd.hpp"

namespace weft::host {

namespace {

struct Stat {
  bool known = false;  // the fields below are known
  bool ended = false;  // a zombie, or dead
  uint32_t start = 0;
};

Stat stat_of(uint32_t pid) noexcept {
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/%u/stat", pid);
  const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return {};
  char text[1024];
  const ssize_t n = ::read(file.get(), text, sizeof(text) - 1);
  if (n <= 0) return {};
  text[n] = 0;
  // The name, in parentheses, may have any characters: the fields begin behind its end. The third is the state, the
  // 20th the number of threads, the 22nd the start time (proc(5)). A main thread that has ended before the others is a
  // zombie, too, and the process runs.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ') return {};
  at += 2;
  Stat found{.known = true, .ended = *at == 'Z' || *at == 'X'};
  for (int field = 3; field < 22; ++field) {
    at = std::strchr(at, ' ');
    if (at == nullptr) return {};
    ++at;
    if (field + 1 == 20 && std::strtoull(at, nullptr, 10) > 1) found.ended = false;
  }
  found.start = static_cast<uint32_t>(std::strtoull(at, nullptr, 10));
  return found;
}

// /proc shows this process under its own number: it is the /proc of its pid namespace.
bool proc_is_ours(uint32_t pid) noexcept {
  char text[32];
  const ssize_t n = ::readlink("/proc/self", text, sizeof(text) - 1);
  if (n <= 0) return false;
  text[n] = 0;
  return std::strtoul(text, nullptr, 10) == pid;
}

}  // namespace

HostWorld::HostWorld() {
  const auto pid = static_cast<uint32_t>(::getpid());
  const Stat own = proc_is_ours(pid) ? stat_of(pid) : Stat{};
  self_ = {pid, own.start};
  sees_processes_ = own.known;
}

void HostWorld::take_part() noexcept {
  (void)::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
}

bool HostWorld::gone(sync::Who who) noexcept {
  if (who.pid == 0 || who.pid == self_.pid) return who.pid != 0 && who.start != self_.start && who.start != 0;
  // Not from /proc, which hides the processes of other users if it is mounted with hidepid.
  if (::kill(static_cast<pid_t>(who.pid), 0) != 0 && errno == ESRCH) return true;
  if (!sees_processes_) return false;
  const Stat found = stat_of(who.pid);
  if (!found.known) return false;
  return found.ended || (who.start != 0 && found.start != who.start);
}

uint64_t HostWorld::now_ns() noexcept {
  timespec ts;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

void HostWorld::fence_all() noexcept {
  (void)::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
}

}  // namespace weft::host
