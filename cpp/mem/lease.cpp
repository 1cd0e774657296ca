// cpp/mem/lease.cpp: see lease.hpp.
#include "mem/lease.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/fd.hpp"
#include "base/status.hpp"
#include "mem/segment.hpp"

namespace weft::mem {

namespace {

struct flock range(short type, uint64_t offset, uint64_t length) noexcept {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = static_cast<off_t>(length);
  return lock;
}

// A new open file: the lock and the rights of `fd` itself are those of all processes that have received it.
UniqueFd open_again(int fd, bool writable) {
  char path[32];
  (void)std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  UniqueFd own(::open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  if (!own.valid() && (errno == EMFILE || errno == ENFILE)) {
    throw Error(fi_err::kEMFILE,
                std::string("cannot open a segment: ") + std::strerror(errno) + "; look at `ulimit -n`");
  }
  return own;
}

}  // namespace

Lease Lease::take(int fd, uint64_t offset, uint64_t length, bool writable) {
  const UniqueFd own = open_again(fd, writable);
  Lease lease;
  if (own.valid()) {
    struct flock lock = range(F_RDLCK, offset, length);
    lease.locked_ = ::fcntl(own.get(), F_OFD_SETLK, &lock) == 0;
  }
  const uint64_t begin = offset / kAllocationAlign * kAllocationAlign;
  const uint64_t end = (offset + length + kAllocationAlign - 1) / kAllocationAlign * kAllocationAlign;
  lease.mapping_ = Mapping::shared(own.valid() ? own.get() : fd, end - begin, writable, "an array of a peer", begin);
  (void)::madvise(lease.mapping_.data(), lease.mapping_.size(), MADV_HUGEPAGE);  // as the owner does
  lease.data_ = lease.mapping_.data() + (offset - begin);
  return lease;  // the descriptor is closed; the mapping keeps the open file
}

bool leased(int fd, uint64_t offset, uint64_t length) noexcept {
  struct flock lock = range(F_WRLCK, offset, length);
  return ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace weft::mem
