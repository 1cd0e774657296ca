// tests/cpp/sodium.hpp: libsodium for programs without Python: unit tests, fuzz targets, microbenchmarks.
//
// The functions come from PyNaCl's extension module, which exports libsodium's. That module needs one object of Python
// when it is loaded, and Python's functions only when it is used as a module, which these programs do not do. So the
// main
// programs export the object (ENABLE_EXPORTS) and bind functions lazily.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/sodium.hpp"
#include "wire/tcp.hpp"

#ifndef WEFT_SODIUM
#define WEFT_SODIUM ""
#endif

extern "C" {
[[gnu::visibility("default"), gnu::used]] inline char _Py_NoneStruct[64];
}

namespace weft::test {

// WEFT_SODIUM_LIBRARY in the environment, or the library that the build has found.
inline const Sodium& sodium() {
  static const Sodium found = [] {
    const char* asked = std::getenv("WEFT_SODIUM_LIBRARY");
    const char* path = asked != nullptr ? asked : WEFT_SODIUM;
    const auto missing = [&](const char* what) {
      std::fprintf(stderr,
                   "no libsodium: '%s': %s\n  try: pip install 'pynacl>=1.6' into the environment of the build and "
                   "configure again,"
                   " or WEFT_SODIUM_LIBRARY=path of a libsodium.so (1.0.19 or newer)\n",
                   path, what);
      std::exit(1);
    };
    void* library = *path == '\0' ? nullptr : ::dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) missing(*path == '\0' ? "none was found" : ::dlerror());
    const auto find = [&](const char* name) {
      void* address = ::dlsym(library, name);
      if (address == nullptr) missing(name);
      return address;
    };
    if (reinterpret_cast<int (*)()>(find("sodium_init"))() < 0) missing("sodium_init() failed");
    std::array<void*, Sodium::kNames.size()> addresses;
    for (size_t i = 0; i < addresses.size(); ++i) addresses[i] = find(Sodium::kNames[i]);
    return Sodium::from(addresses);
  }();
  return found;
}

// A key for tests: the text, padded with zeros.
inline wire::Bytes32 key_of(std::string_view text) {
  wire::Bytes32 key{};
  std::memcpy(key.data(), text.data(), std::min(text.size(), key.size()));
  return key;
}

}  // namespace weft::test
