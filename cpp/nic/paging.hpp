// cpp/nic/paging.hpp: page requests of on-demand paging, where an endpoint is told how many are answered in time.
//
// A NIC that translates on demand requests each missing page of a transfer from the kernel. If many requests wait at
// the same time, those at the end are not answered in time, and the transfer fails. Model: of the pages that one
// transfer finds missing, the first `at_a_time` become present; if there are more, the transfer ends before it moves a
// byte. Repeating the transfer goes on with the next pages. Without a limit the kernel makes pages present while the
// copy waits, and no time-out occurs. Source: fi_cxi(7) "ODP Support and Fork".
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::nic {

struct Piece;

class Pager {
 public:
  explicit Pager(uint32_t at_a_time) noexcept : at_a_time_(at_a_time) {}

  // 0: every page is in time, and nothing has to be requested.
  [[nodiscard]] uint32_t at_a_time() const noexcept { return at_a_time_; }
  // Requests the missing pages of the buffers of one transfer, and of pieces that are mapped here; false: there are
  // too many.
  bool request(std::span<const iovec> local, std::span<const Piece> mapped) noexcept;
  // Read by any thread.
  [[nodiscard]] uint64_t requests() const noexcept { return requests_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t timeouts() const noexcept { return timeouts_.load(std::memory_order_relaxed); }

 private:
  bool request(const std::byte* data, uint64_t length, uint32_t* asked) noexcept;

  const uint32_t at_a_time_;
  std::atomic<uint64_t> requests_{0}, timeouts_{0};
};

}  // namespace weft::nic
