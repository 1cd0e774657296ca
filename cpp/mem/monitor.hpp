// cpp/mem/monitor.hpp: memory monitors report that the pages behind an address have changed.
//
//   memhooks     sees munmap, mmap(MAP_FIXED), mremap, madvise, brk, shmat and shmdt of libc, its own calls included:
//   the
//                first bytes of those functions lead here. An entry is gone before the pages are.
//                Not seen: system calls made without libc's functions, and what the dynamic linker does in dlclose.
//   userfaultfd  the kernel reports what happens to registered ranges, whatever code does it. It reports after the
//   fact: while
//                munmap() has not returned, another thread that is given the same addresses may still meet the entry.
//   kdreg2       HPE's kernel module.
//   disabled     nothing watches system memory, so nothing about it is cached.
//
// Source: fi_mr(3) "Memory registration cache", FI_MR_CACHE_MONITOR.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "mem/change_log.hpp"

namespace weft::mem {

struct CachedMapping;

class Monitor {
 public:
  Monitor() = default;
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;
  virtual ~Monitor() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  // Whether it could work here; otherwise *why. Changes nothing.
  [[nodiscard]] virtual bool available(std::string* why) = 0;
  // From the return on, changes of [begin, end) come to the log, until unsubscribe() with the same arguments. Counted:
  // the first subscription starts the mechanism, the end of the last one stops it. False and *why where the range
  // cannot be watched. Called without any lock of a cache.
  virtual bool subscribe(uint64_t begin, uint64_t end, ChangeLog& log, std::string* why) = 0;
  virtual void unsubscribe(uint64_t begin, uint64_t end, ChangeLog& log) noexcept = 0;
  // A change of [begin, end) that began before subscribe() may not have taken effect yet.
  [[nodiscard]] virtual bool changing(uint64_t begin, uint64_t end) noexcept {
    (void)begin, (void)end;
    return false;
  }
  // Watching now.
  [[nodiscard]] virtual bool active() noexcept = 0;
  // Monitors that cannot be told of changes are asked at every hit instead (device memory). Without any lock of a
  // cache.
  [[nodiscard]] virtual bool checks_hits() const noexcept { return false; }
  [[nodiscard]] virtual bool valid(const CachedMapping& mapping, uint64_t address, uint64_t length) {
    (void)mapping, (void)address, (void)length;
    return true;
  }
  virtual void after_fork_in_child() noexcept {}
};

std::shared_ptr<Monitor> make_memhooks_monitor();
std::shared_ptr<Monitor> make_userfaultfd_monitor();
std::shared_ptr<Monitor> make_kdreg2_monitor();
// By the value of FI_MR_CACHE_MONITOR: "" is this machine's default, "disabled" null. Throws EINVAL for others.
std::shared_ptr<Monitor> make_system_monitor(std::string_view name);

}  // namespace weft::mem
