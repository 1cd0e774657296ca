// cpp/mem/held_pages.cpp: see held_pages.hpp.
#include "mem/held_pages.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/mapping.hpp"
#include "base/status.hpp"
#include "mem/maps.hpp"

namespace weft::mem {

namespace {

constexpr size_t kFileSize = size_t{1} << 47;  // sparse: an offset for each address of the process

const auto g_page_size = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));

void* at(uint64_t address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT: an address of the process
}

bool map_fixed(uint64_t address, uint64_t length, int how, int fd) noexcept {
  return ::mmap(at(address), length, PROT_READ | PROT_WRITE, how | MAP_FIXED, fd, static_cast<off_t>(address)) !=
         MAP_FAILED;
}

}  // namespace

uint64_t HeldPages::hold(const void* owner, uint64_t address, uint64_t length, bool kept) {
  const uint64_t page = g_page_size;
  if (length == 0 || address % page != 0 || length % page != 0 || address + length > kFileSize) return address;
  release(owner);
  const Guard lock(mutex_);
  try {
    if (!file_.valid()) {
      UniqueFd file = make_memfd(kHeldPagesFile, kFileSize);
      struct stat about{};
      if (::fstat(file.get(), &about) != 0) return address;
      inode_ = about.st_ino;
      file_ = std::move(file);
    }
    // Pages held before a fork and kept from children are in an older file, and process and NIC already share them: use
    // them at their own address.
    for (uint64_t p = address; p < address + length; p += page) {
      const auto known = pages_.find(p);
      if (known != pages_.end() ? known->second.inode != inode_ || !is_mapped_from(p, p + page, inode_)
                                : !is_plain_memory(p, p + page) && !is_mapped_from(p, p + page, inode_)) {
        return address;
      }
    }
    for (uint64_t p = address; p < address + length; p += page) {
      if (!pages_.contains(p) && !move(p, p + page, kept)) return address;
    }
    void* alias = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), static_cast<off_t>(address));
    if (alias == MAP_FAILED) return address;
    (void)::madvise(alias, length, MADV_DONTFORK);
    held_[owner] = {address, length, reinterpret_cast<uint64_t>(alias), forks_};
    for (uint64_t p = address; p < address + length; p += page) ++pages_.at(p).users;
    any_.store(true, std::memory_order_relaxed);
    return reinterpret_cast<uint64_t>(alias);
  } catch (const Error&) {  // no file, or the maps cannot be read
    return address;
  }
}

// Moves a page to the file. The kernel copies the bytes, so an unreadable page makes pwrite() fail instead of faulting.
bool HeldPages::move(uint64_t begin, uint64_t end, bool kept) {
  mutex_.assert_held();
  const uint64_t length = end - begin;
  if (::pwrite(file_.get(), at(begin), length, static_cast<off_t>(begin)) != static_cast<ssize_t>(length)) return false;
  if (!map_fixed(begin, length, MAP_SHARED, file_.get())) return false;
  if (kept) (void)::madvise(at(begin), length, MADV_DONTFORK);
  pages_[begin] = {0, kept, forks_, inode_};
  return true;
}

uint64_t HeldPages::original(const void* owner, uint64_t alias) const {
  const Guard lock(mutex_);
  const auto found = held_.find(owner);
  if (found == held_.end() || alias - found->second.alias >= found->second.length) return alias;
  return found->second.address + (alias - found->second.alias);
}

void HeldPages::release(const void* owner) noexcept {
  const Guard lock(mutex_);
  const auto found = held_.find(owner);
  if (found == held_.end()) return;
  const Held held = found->second;
  held_.erase(found);
  any_.store(!held_.empty(), std::memory_order_relaxed);
  ::munmap(at(held.alias), held.length);
  for (uint64_t p = held.address; p < held.address + held.length; p += g_page_size) {
    const auto page = pages_.find(p);
    // Skip a page that was moved again after a fork: this owner held the older page.
    if (page == pages_.end() || page->second.born > held.forks || --page->second.users != 0) continue;
    make_own(p, page->second);
    pages_.erase(page);
  }
}

// Gives the process a private copy of the page, unless other memory is mapped at the address now.
void HeldPages::make_own(uint64_t page, const Page& what) noexcept {
  mutex_.assert_held();
  try {
    if (!is_mapped_from(page, page + g_page_size, what.inode)) return;
  } catch (const std::exception&) {  // the maps cannot be read: the page stays as it is
    return;
  }
  bytes_.assign(static_cast<std::byte*>(at(page)), static_cast<std::byte*>(at(page)) + g_page_size);
  if (::mmap(at(page), g_page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
      MAP_FAILED) {
    std::ranges::copy(bytes_, static_cast<std::byte*>(at(page)));
  }
}

UNCHECKED void HeldPages::before_fork() noexcept {
  mutex_.lock_at_fork();
  for (auto page = pages_.begin(); page != pages_.end();) {
    if (page->second.kept) {
      ++page;
      continue;
    }
    try {
      if (is_mapped_from(page->first, page->first + g_page_size, page->second.inode))
        (void)map_fixed(page->first, g_page_size, MAP_PRIVATE, file_.get());
    } catch (const std::exception&) {  // the maps cannot be read: parent and child share the page
    }
    page = pages_.erase(page);
  }
  ++forks_;
  file_.reset();  // pages held from now on go to a new file: the child maps pages of this one
}

UNCHECKED void HeldPages::after_fork_in_child() noexcept {
  pages_.clear();
  held_.clear();
  any_.store(false, std::memory_order_relaxed);
  file_.reset();
  mutex_.unlock_after_fork();
}

}  // namespace weft::mem
