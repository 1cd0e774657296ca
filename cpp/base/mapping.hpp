// cpp/base/mapping.hpp: a memory mapping that is unmapped once, and memfds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/fd.hpp"

namespace weft {

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& o) noexcept : base_(std::exchange(o.base_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  Mapping& operator=(Mapping&& o) noexcept {
    if (this != &o) {
      reset();
      base_ = std::exchange(o.base_, nullptr);
      size_ = std::exchange(o.size_, 0);
    }
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reset(); }

  // Maps `size` bytes of fd shared, from `offset` (whole pages) on; throws Error(ENOMEM) with the system's reason.
  static Mapping shared(int fd, size_t size, bool writable, const char* what, uint64_t offset = 0);

  // Private memory in huge pages of 2 MiB, which the administrator reserves. Empty, with *error: the kernel's refusal.
  static Mapping huge(size_t size, int* error) noexcept;

  [[nodiscard]] std::byte* data() const noexcept { return base_; }
  [[nodiscard]] size_t size() const noexcept { return size_; }
  void reset() noexcept;

 private:
  Mapping(std::byte* base, size_t size) noexcept : base_(base), size_(size) {}
  std::byte* base_ = nullptr;
  size_t size_ = 0;
};

// An anonymous sparse file of `size` bytes: the kernel allocates pages at first access, frees them after the last user.
UniqueFd make_memfd(const char* name, size_t size);
// Refuses new writable mappings and changes of the size; existing writable mappings stay. Also refuses further seals,
// because a seal that a peer adds would lock out processes that map the file later.
void seal_read_only(int fd);
void seal_size(int fd);

}  // namespace weft
