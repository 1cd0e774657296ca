// cpp/nic/pages.cpp: finds missing pages in a range of this process's memory.
#include <unistd.h>

#include <algorithm>

#include "nic/nic.hpp"

namespace weft::nic {

std::optional<uint64_t> Nic::missing_page(uint64_t address, uint64_t length) {
  if (length == 0) return std::nullopt;
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  constexpr size_t kAtOnce = 64;
  std::array<std::byte, kAtOnce> bytes;
  const auto readable = [&](uint64_t first, size_t count) {  // reads one byte of each page
    std::array<iovec, kAtOnce> pages;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t at = i == 0 ? first : (first & ~(page - 1)) + i * page;
      pages[i] = {reinterpret_cast<void*>(at), 1};
    }
    const iovec here{bytes.data(), count};
    for (link::Link* link : parts_.links) {
      for (const auto& peer : link->peers()) {
        if (peer->same_process) {
          return peer->cma_copy(false, {&here, 1}, std::span(pages).first(count)) == Status::ok;
        }
      }
    }
    return false;
  };
  const uint64_t end = address + length;
  for (uint64_t at = address; at < end;) {
    const uint64_t pages_left = ((end - 1) / page) - (at / page) + 1;
    const size_t count = static_cast<size_t>(std::min<uint64_t>(pages_left, kAtOnce));
    if (!readable(at, count)) {
      for (size_t i = 0; i < count; ++i) {
        const uint64_t single = i == 0 ? at : (at & ~(page - 1)) + i * page;
        if (!readable(single, 1)) return single;
      }
    }
    at = (at & ~(page - 1)) + count * page;
  }
  return std::nullopt;
}

}  // namespace weft::nic
