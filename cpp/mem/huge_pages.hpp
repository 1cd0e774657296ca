// cpp/mem/huge_pages.hpp: huge pages for shared memory, where the system's own rule gives none.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

namespace weft::mem {

// Puts huge pages behind [address, address + length) of a segment, whose bytes stay, in whole blocks of 2 MiB. For
// systems that give shared memory none by themselves. False: the kernel refused (before Linux 6.1 always), and the
// range keeps small pages, some of them allocated now.
bool use_huge_pages(uint64_t address, uint64_t length) noexcept;

// Puts huge pages behind memory that the application has begun to touch: memory that is never touched stays empty.
//
// A thread finds the blocks of 2 MiB that have a page (SEEK_DATA) and collapses them. Behind blocks that are touched in
// order it prepares as many further blocks, so that a program that fills an array soon writes to huge pages. The thread
// sleeps without a limit when it follows no range, and drops a range that was not touched for some seconds.
class PageFollower {
 public:
  PageFollower() = default;
  ~PageFollower();
  PageFollower(const PageFollower&) = delete;
  PageFollower& operator=(const PageFollower&) = delete;

  // Follows the blocks in [address, address + length), which is mapped from `fd` at `offset`. May throw bad_alloc and
  // system_error (no thread can be started).
  void follow(int fd, uint64_t offset, uint64_t address, uint64_t length);
  // Call before the memory is freed or its mapping changes: waits until the thread has left the range, for some
  // milliseconds at most.
  void forget(uint64_t address) noexcept;
  // False: forget() has nothing to do.
  [[nodiscard]] bool active() const noexcept;

 private:
  struct State;
  [[nodiscard]] bool here() const noexcept;
  std::shared_ptr<State> state_;  // shared with the thread
  pid_t pid_ = 0;                 // a forked child has no thread, and its parent's ranges are not its own
};

}  // namespace weft::mem
