// cpp/nic/paging.cpp: page requests of on-demand paging, where an endpoint is told how many are answered in time.
//
// A NIC that translates on demand requests each missing page of a transfer from the kernel. If many requests wait at
// the same time, those at the end are not answered in time, and the transfer fails. Model: of the pages that one
// transfer finds missing, the first `page_requests_max` become present; if there are more, the transfer ends before it
// moves a byte. Repeating the transfer goes on with the next pages. Without a limit the kernel makes pages present
// while the copy waits, and no time-out occurs. Source: fi_cxi(7) "ODP Support and Fork".
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "nic/fast.inl"

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

// Requests the missing pages of a range; false: more than the limit of the transfer, whose requests so far `asked` has.
bool Endpoint::request_pages(const std::byte* data, uint64_t length, uint32_t* asked) {
  return length == 0 || each_missing(data, length, [&](const std::byte* page) {
           if (*asked == config_.page_requests_max) {
             page_timeouts_.fetch_add(1, std::memory_order_relaxed);
             return false;
           }
           ++*asked;
           page_requests_.fetch_add(1, std::memory_order_relaxed);
           std::byte one;
           (void)copy_guarded_hot(&one, page, 1);  // a fault here is the copy's to report
           return true;
         });
}

}  // namespace weft::nic
