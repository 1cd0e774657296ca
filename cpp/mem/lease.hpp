// cpp/mem/lease.hpp: a mapping of a part of a segment that keeps the segment's owner from reusing that part.
// The kernel keeps the lease: a read lock (an OFD lock, fcntl(2)) on the part's bytes of the segment's file. A mapping
// keeps the open file, and with it the lock. So the lease lives as long as the mapping: in a forked child too, without
// the connection to the owner, and never longer than its processes (kill -9).
//   holder: under a hold on the place (table.hpp) -> lock the bytes -> map them -> the hold may end
//   owner:  revoke, free -> read the holds -> ask the kernel for locks -> do not reuse a place that is held or locked
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/mapping.hpp"

namespace weft::mem {

class Lease {
 public:
  Lease() = default;
  // Maps [offset, offset + length) of a segment's file, length > 0. Not writable: the pages are read-only, and
  // mprotect(2) cannot make them writable. Throws Error(ENOMEM), Error(EMFILE).
  // Without /proc, or if the file system refuses locks, the mapping is made without a lock, and only the hold remains.
  static Lease take(int fd, uint64_t offset, uint64_t length, bool writable);

  [[nodiscard]] std::byte* data() const noexcept { return data_; }  // the byte at `offset`
  [[nodiscard]] bool locked() const noexcept { return locked_; }
  [[nodiscard]] size_t mapped_bytes() const noexcept { return mapping_.size(); }
  void reset() noexcept { mapping_.reset(); }

 private:
  Mapping mapping_;
  std::byte* data_ = nullptr;
  bool locked_ = false;
};

// True if any process has a lease on a part of [offset, offset + length) of a segment's file.
bool leased(int fd, uint64_t offset, uint64_t length) noexcept;

}  // namespace weft::mem
