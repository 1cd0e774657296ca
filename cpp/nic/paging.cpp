// cpp/nic/paging.cpp: see paging.hpp.
#include "nic/paging.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "mem/guard.hpp"
#include "nic/reach.hpp"

namespace weft::nic {

namespace {

constexpr size_t kPagesAtOnce = 256;

// Calls missing(address) for each page of the range that is not present; false from it ends the search.
template <typename Missing>
bool each_missing(const std::byte* data, uint64_t length, Missing&& missing) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uint64_t>(data) & ~(page - 1);
  const uint64_t end = reinterpret_cast<uint64_t>(data) + length;
  unsigned char present[kPagesAtOnce];
  for (uint64_t at = begin; at < end; at += kPagesAtOnce * page) {
    const uint64_t count = std::min<uint64_t>((end - at + page - 1) / page, kPagesAtOnce);
    // Fails where nothing is mapped: the copy finds and reports that.
    if (::mincore(reinterpret_cast<void*>(at), count * page, present) != 0) continue;
    for (uint64_t i = 0; i < count; ++i) {
      if ((present[i] & 1) == 0 && !missing(reinterpret_cast<std::byte*>(at + i * page))) return false;
    }
  }
  return true;
}

}  // namespace

bool Pager::request(std::span<const iovec> local, std::span<const Piece> mapped) noexcept {
  uint32_t asked = 0;
  for (const iovec& v : local) {
    if (!request(static_cast<const std::byte*>(v.iov_base), v.iov_len, &asked)) return false;
  }
  for (const Piece& piece : mapped) {
    if (!request(piece.pointer, piece.length, &asked)) return false;
  }
  return true;
}

// asked: requests of the transfer so far.
bool Pager::request(const std::byte* data, uint64_t length, uint32_t* asked) noexcept {
  return length == 0 || each_missing(data, length, [&](const std::byte* page) {
           if (*asked == at_a_time_) {
             timeouts_.fetch_add(1, std::memory_order_relaxed);
             return false;
           }
           ++*asked;
           requests_.fetch_add(1, std::memory_order_relaxed);
           std::byte one;
           (void)mem::copy_guarded_hot(&one, page, 1);  // a fault here is the copy's to report
           return true;
         });
}

}  // namespace weft::nic
