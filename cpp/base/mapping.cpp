// cpp/base/mapping.cpp: mmap, memfd_create and seals.
#include "base/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/status.hpp"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26  // Linux 3.8, linux/mman.h
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

namespace weft {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 4096;
}  // namespace

Mapping Mapping::huge(size_t size, int* error) noexcept {
  const size_t whole = (size + kHugePage - 1) / kHugePage * kHugePage;
  void* p = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT), -1, 0);
  *error = p == MAP_FAILED ? errno : 0;
  return p == MAP_FAILED ? Mapping() : Mapping(static_cast<std::byte*>(p), whole);
}

Mapping Mapping::shared(int fd, size_t size, bool writable, const char* what, uint64_t offset) {
  const int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  // The kernel uses huge pages only where address and file offset agree modulo 2 MiB, so place large mappings so.
  void* wanted = nullptr;
  if (size >= kHugePage) {
    void* room = ::mmap(nullptr, size + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room != MAP_FAILED) {
      const auto begin = reinterpret_cast<uintptr_t>(room);
      const uintptr_t aligned = begin + (offset + kHugePage - begin % kHugePage) % kHugePage;
      if (aligned != begin) ::munmap(room, aligned - begin);
      const uintptr_t end = (aligned + size + kPage - 1) / kPage * kPage;
      if (end < begin + size + kHugePage) ::munmap(reinterpret_cast<void*>(end), begin + size + kHugePage - end);
      wanted = reinterpret_cast<void*>(aligned);
    }
  }
  void* p = ::mmap(wanted, size, prot, MAP_SHARED | MAP_NORESERVE | (wanted != nullptr ? MAP_FIXED : 0), fd,
                   static_cast<off_t>(offset));
  if (p == MAP_FAILED) {
    const int why = errno;
    if (wanted != nullptr) ::munmap(wanted, size);
    errno = why;
    throw Error(fi_err::kENOMEM, std::string("cannot map ") + what + " (" + std::to_string(size) +
                                     " bytes): " + std::strerror(errno) + "; look at `ulimit -v`");
  }
  return Mapping(static_cast<std::byte*>(p), size);
}

void Mapping::reset() noexcept {
  if (base_ != nullptr) ::munmap(base_, size_);
  base_ = nullptr;
  size_ = 0;
}

UniqueFd make_memfd(const char* name, size_t size) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    throw Error(errno == EMFILE ? fi_err::kEMFILE : fi_err::kENOMEM,
                std::string("memfd_create(") + name + "): " + std::strerror(errno));
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    throw Error(fi_err::kENOMEM, std::string("cannot size memfd ") + name + " to " + std::to_string(size) +
                                     " bytes: " + std::strerror(errno) + "; look at `ulimit -f`");
  }
  return fd;
}

void seal_read_only(int fd) {
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    // Kernels before 5.1 lack F_SEAL_FUTURE_WRITE: peers, which run as the same user, can map the table writable.
    seal_size(fd);
  }
}

void seal_size(int fd) {
  (void)::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

}  // namespace weft
