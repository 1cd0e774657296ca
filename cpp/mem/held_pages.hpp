// cpp/mem/held_pages.hpp: pages that the NIC keeps using after a fork, like hardware that pins them: the first process
// that writes to such a page gets a new page, and the NIC stays with the old one.
//
// How: a held page is moved to a memfd, at the offset that equals its address. The process maps the page from the file,
// shared, at its old address; the NIC uses a second mapping, the alias. Before a fork the process's mapping becomes
// private: then the first process that writes, parent or child, gets a copy, and the alias still refers to the file's
// page. Pages held after a fork go to a new file. Source: fi_cxi(7) "RDMA and Fork Overview".
//
// Only whole pages of private writable memory are held, so that moving them affects no other process. The bytes must
// not change during the move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/fd.hpp"
#include "base/lock.hpp"

namespace weft::mem {

class HeldPages {
 public:
  // Holds the pages for `owner` until release() and returns their alias. Returns `address` and holds nothing if the
  // range is not whole pages of private memory, or if the system refuses.
  // kept: children do not get the pages (MADV_DONTFORK), so a fork copies nothing.
  uint64_t hold(const void* owner, uint64_t address, uint64_t length, bool kept);
  // The process's address for an address in the owner's alias; `alias` itself if it is not in the alias.
  [[nodiscard]] uint64_t original(const void* owner, uint64_t alias) const;
  void release(const void* owner) noexcept;
  // True if any owner holds pages.
  [[nodiscard]] bool any() const noexcept { return any_.load(std::memory_order_relaxed); }

  void before_fork() noexcept;
  void after_fork_in_parent() noexcept { mutex_.unlock_after_fork(); }
  void after_fork_in_child() noexcept;  // the child has copies of the pages and holds none

 private:
  struct Page {
    uint32_t users;
    bool kept;
    uint64_t born;   // value of forks_ when the page was moved
    uint64_t inode;  // of the page's file
  };
  struct Held {
    uint64_t address, length, alias, forks;
  };
  bool move(uint64_t begin, uint64_t end, bool kept);
  void make_own(uint64_t page, const Page& what) noexcept;

  mutable RankedMutex<lock_rank::kHeldPages> mutex_;
  std::atomic<bool> any_{false};  // changed under the mutex
  UniqueFd file_ GUARDED_BY(mutex_);
  uint64_t inode_ GUARDED_BY(mutex_) = 0;
  uint64_t forks_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Page> pages_ GUARDED_BY(mutex_);  // by address
  std::unordered_map<const void*, Held> held_ GUARDED_BY(mutex_);
  std::vector<std::byte> bytes_ GUARDED_BY(mutex_) = std::vector<std::byte>(4096);  // buffer for moving a page
};

}  // namespace weft::mem
