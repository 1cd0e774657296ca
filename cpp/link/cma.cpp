// cpp/link/cma.cpp: the kernel copies at most 2 GiB and 1024 pieces per call; continue where it stopped.
#include "link/cma.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "mem/life.hpp"

namespace weft::link {

namespace {

constexpr size_t kPiecesMax = 64;              // per call
constexpr size_t kBytesMax = size_t{1} << 30;  // per call; the kernel's limit is a page below 2 GiB

// Walks an iovec list by bytes.
struct Cursor {
  std::span<const iovec> list;
  size_t piece = 0, done_in_piece = 0;

  size_t take(iovec* out, size_t out_max, size_t bytes_max, size_t* bytes) const {
    size_t n = 0, total = 0, at = piece, skip = done_in_piece;
    while (n < out_max && at < list.size() && total < bytes_max) {
      const size_t length = std::min(list[at].iov_len - skip, bytes_max - total);
      if (length != 0) {
        out[n++] = {static_cast<std::byte*>(list[at].iov_base) + skip, length};
        total += length;
      }
      ++at;
      skip = 0;
    }
    *bytes = total;
    return n;
  }
  void advance(size_t bytes) {
    while (bytes != 0) {
      const size_t left = list[piece].iov_len - done_in_piece;
      if (bytes < left) {
        done_in_piece += bytes;
        return;
      }
      bytes -= left;
      ++piece;
      done_in_piece = 0;
    }
  }
};

}  // namespace

Status cma_copy_all(pid_t pid, const std::atomic<uint32_t>& life, bool to_peer, std::span<const iovec> local,
                    std::span<const iovec> remote) noexcept {
  if (local.size() == 1 && remote.size() == 1 && local[0].iov_len <= kBytesMax && !mem::life_over(life)) [[likely]] {
    const ssize_t n = to_peer ? ::process_vm_writev(pid, local.data(), 1, remote.data(), 1, 0)
                              : ::process_vm_readv(pid, local.data(), 1, remote.data(), 1, 0);
    if (n == static_cast<ssize_t>(local[0].iov_len) && !mem::life_over(life)) [[likely]]
      return Status::ok;
  }
  Cursor here{local}, there{remote};
  for (;;) {
    iovec l[kPiecesMax], r[kPiecesMax];
    size_t l_bytes = 0, r_bytes = 0;
    const size_t ln = here.take(l, kPiecesMax, kBytesMax, &l_bytes);
    const size_t rn = there.take(r, kPiecesMax, l_bytes, &r_bytes);
    // Checked before each call and after the last one.
    if (mem::life_over(life)) return Status::peer_gone;
    if (l_bytes == 0 || r_bytes == 0) return Status::ok;
    // The kernel copies as many bytes as the shorter of the two lists has.
    const ssize_t n = to_peer ? ::process_vm_writev(pid, l, ln, r, rn, 0) : ::process_vm_readv(pid, l, ln, r, rn, 0);
    if (n < 0) {
      switch (errno) {
        case ESRCH:
          return Status::peer_gone;
        case EPERM:
        case ENOSYS:
          return Status::access;
        case ENOMEM:
          return Status::no_memory;
        default:
          return Status::fault;
      }
    }
    if (n == 0) return Status::fault;
    here.advance(static_cast<size_t>(n));
    there.advance(static_cast<size_t>(n));
  }
}

}  // namespace weft::link
