// cpp/nic/iov.hpp: lists of the application's buffers: their sums, and copies from and to them.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "mem/device.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

// The sum of an invalid list: a list without pieces, or with more bytes than an address space.
constexpr uint64_t kNoSum = ~uint64_t{0};

inline uint64_t sum_bytes(std::span<const iovec> list) noexcept {
  uint64_t n = 0;
  for (const iovec& v : list) {
    if (__builtin_add_overflow(n, v.iov_len, &n)) return kNoSum;
  }
  return n;
}
uint64_t sum_bytes(std::span<const wire::RmaRange> list) noexcept;

// Copies all bytes of a list to `host`, or `host` to the list, through the devices' runtimes.
Status copy_device(const mem::Devices& devices, std::span<const iovec> list, uint8_t of_device, std::byte* host,
                   bool to_host) noexcept;

// Gathers `length` bytes, from byte `offset` on, from a list of the application's buffers. fault: a page failed.
Status gather(std::span<const iovec> list, uint64_t offset, std::byte* out, uint64_t length) noexcept;

// Scatters `length` bytes over a list of the application's buffers, from byte `offset` on. fault: a page failed.
Status scatter(std::span<const iovec> list, uint64_t offset, const std::byte* in, uint64_t length) noexcept;

// The same for bytes.size() bytes from byte `offset` of the list on.
Status copy_device_part(const mem::Devices& devices, std::span<const iovec> list, uint8_t of_device, uint64_t offset,
                        std::span<std::byte> host, bool to_host) noexcept;

// The buffers of [offset, offset + length) of a list. Throws std::bad_alloc.
std::vector<iovec> part_of(std::span<const iovec> list, uint64_t offset, uint64_t length);

}  // namespace weft::nic
