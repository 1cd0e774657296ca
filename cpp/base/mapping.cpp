// cpp/base/mapping.cpp: mmap, memfd_create and seals.
#include "base/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/status.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

namespace weft {

Mapping Mapping::shared(int fd, size_t size, bool writable, const char* what) {
  const int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* p = ::mmap(nullptr, size, prot, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED) {
    throw Error(fi_err::kENOMEM, std::string("cannot map ") + what + " (" + std::to_string(size) + " bytes): " +
                                     std::strerror(errno) + "; look at `ulimit -v`");
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
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) != 0) {
    // Kernels before 5.1: peers can then map the table writable if they insist; same user, so no boundary is lost.
    (void)::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  }
}

void seal_size(int fd) { (void)::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW); }

}  // namespace weft
