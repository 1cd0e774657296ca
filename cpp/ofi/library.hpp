// cpp/ofi/library.hpp: a real libfabric, found at run time.
//
// One library a process. It is opened by the first call of load() and never closed: libfabric starts threads and keeps
// state of its providers. Source: fi_getinfo(3), fi_fabric(3), fi_version(3), dlopen(3).
#pragma once

#include <string>

#include "ofi/abi.hpp"

namespace weft::ofi {

constexpr uint32_t version(uint32_t major, uint32_t minor) noexcept {
  return major << 16 | minor;
}
constexpr uint32_t kOldest = version(1, 14);  // older libraries are refused

struct Library {
  std::string path;      // as it was opened
  uint32_t version = 0;  // FI_VERSION(major, minor)
  int (*getinfo)(uint32_t, const char* node, const char* service, uint64_t flags, const Info* hints, Info**) = nullptr;
  void (*freeinfo)(Info*) = nullptr;
  Info* (*dupinfo)(const Info*) = nullptr;
  int (*fabric)(FabricAttr*, FidFabric**, void* context) = nullptr;
  const char* (*strerror)(int) = nullptr;
};

// The library, if load() has opened one; otherwise null.
const Library* library() noexcept;

// Opens the library of a path or a name ("libfabric.so.1"). Null, with the reason in *why, if there is none, if it
// lacks a function, or if it is older than kOldest. A library that is open already is returned, whatever the path. The
// caller serialises calls.
const Library* load(const char* path, std::string* why);

}  // namespace weft::ofi
