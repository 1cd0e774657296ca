// cpp/nic/iov.cpp: see iov.hpp.
#include "nic/iov.hpp"

#include <algorithm>

#include "mem/guard.hpp"

namespace weft::nic {

using mem::copy_guarded;

uint64_t sum_bytes(std::span<const wire::RmaRange> list) noexcept {
  if (list.empty()) return kNoSum;
  uint64_t n = 0;
  for (const wire::RmaRange& r : list) {
    if (__builtin_add_overflow(n, r.length, &n)) return kNoSum;
  }
  return n;
}

Status copy_device(const mem::Devices& devices, std::span<const iovec> list, uint8_t of_device, std::byte* host,
                   bool to_host) noexcept {
  for (size_t i = 0; i < list.size(); ++i) {
    const mem::Devices::Side ours{host, false}, theirs{list[i].iov_base, (of_device >> i & 1) != 0};
    const Status s =
        to_host ? devices.copy(ours, theirs, list[i].iov_len) : devices.copy(theirs, ours, list[i].iov_len);
    if (s != Status::ok) return s;
    host += list[i].iov_len;
  }
  return Status::ok;
}

Status copy_device_part(const mem::Devices& devices, std::span<const iovec> list, uint8_t of_device, uint64_t offset,
                        std::span<std::byte> host, bool to_host) noexcept {
  std::byte* at = host.data();
  uint64_t left = host.size();
  for (size_t i = 0; i < list.size() && left != 0; ++i) {
    if (offset >= list[i].iov_len) {
      offset -= list[i].iov_len;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(left, list[i].iov_len - offset);
    const mem::Devices::Side ours{at, false},
        theirs{static_cast<std::byte*>(list[i].iov_base) + offset, (of_device >> i & 1) != 0};
    const Status s = to_host ? devices.copy(ours, theirs, n) : devices.copy(theirs, ours, n);
    if (s != Status::ok) return s;
    at += n;
    left -= n;
    offset = 0;
  }
  return Status::ok;
}

std::vector<iovec> part_of(std::span<const iovec> list, uint64_t offset, uint64_t length) {
  std::vector<iovec> part;
  for (const iovec& v : list) {
    if (offset >= v.iov_len) {
      offset -= v.iov_len;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(length, v.iov_len - offset);
    if (n == 0) break;
    part.push_back({static_cast<std::byte*>(v.iov_base) + offset, n});
    length -= n;
    offset = 0;
  }
  return part;
}

Status gather(std::span<const iovec> list, uint64_t offset, std::byte* out, uint64_t length) noexcept {
  for (const iovec& v : list) {
    if (length == 0) break;
    if (offset >= v.iov_len) {
      offset -= v.iov_len;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(length, v.iov_len - offset);
    if (!copy_guarded(out, static_cast<const std::byte*>(v.iov_base) + offset, n)) return Status::fault;
    out += n;
    length -= n;
    offset = 0;
  }
  return Status::ok;
}

Status scatter(std::span<const iovec> list, uint64_t offset, const std::byte* in, uint64_t length) noexcept {
  for (const iovec& v : list) {
    if (length == 0) break;
    if (offset >= v.iov_len) {
      offset -= v.iov_len;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(length, v.iov_len - offset);
    if (!copy_guarded(static_cast<std::byte*>(v.iov_base) + offset, in, n)) return Status::fault;
    in += n;
    length -= n;
    offset = 0;
  }
  return Status::ok;
}

}  // namespace weft::nic
