// cpp/mem/monitor.hpp: memory monitors report that the pages at an address have changed.
//
//   memhooks     sees munmap, mmap(MAP_FIXED), mremap, madvise, brk, shmat and shmdt of libc, libc's own calls
//                included: a jump replaces the first bytes of these functions. The entry is removed before the pages.
//                Not seen: system calls made without libc's functions, and the dynamic linker's calls in dlclose.
//   userfaultfd  the kernel reports changes of registered ranges, whatever code makes them. It reports after the fact:
//                until munmap() returns, another thread that gets the same addresses may still find the entry.
//   kdreg2       HPE's kernel module.
//   disabled     no monitor watches system memory, so the cache stores none of it.
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
  // True if the monitor can work here; false with *why. Changes nothing.
  [[nodiscard]] virtual bool available(std::string* why) = 0;
  // After the return, the log receives changes of [begin, end) until unsubscribe() with the same arguments. Counted:
  // the first subscription starts the mechanism, the end of the last one stops it. False with *why if the range cannot
  // be watched. The caller holds no lock of a cache.
  virtual bool subscribe(uint64_t begin, uint64_t end, ChangeLog& log, std::string* why) = 0;
  virtual void unsubscribe(uint64_t begin, uint64_t end, ChangeLog& log) noexcept = 0;
  // True: a change of [begin, end) that began before subscribe() may not have taken effect yet.
  [[nodiscard]] virtual bool changing(uint64_t begin, uint64_t end) noexcept {
    (void)begin, (void)end;
    return false;
  }
  // True while the mechanism is running.
  [[nodiscard]] virtual bool active() noexcept = 0;
  // True for monitors that receive no reports (device memory): the cache calls valid() at every hit instead, without
  // holding a lock.
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
// Makes the monitor named by FI_MR_CACHE_MONITOR: "": this machine's default; "disabled": null. EINVAL: unknown name.
std::shared_ptr<Monitor> make_system_monitor(std::string_view name);

}  // namespace weft::mem
