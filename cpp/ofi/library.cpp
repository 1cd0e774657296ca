// cpp/ofi/library.cpp: see library.hpp.
#include "ofi/library.hpp"

#include <dlfcn.h>
#include <signal.h>

#include <array>

namespace weft::ofi {

namespace {

Library g_library;
bool g_loaded = false;

template <typename Call>
bool find(void* handle, const char* name, Call* call, std::string* why) {
  // The default version of the symbol: the one that belongs to the library's newest structs.
  *call = reinterpret_cast<Call>(::dlsym(handle, name));
  if (*call == nullptr) *why = std::string("it has no ") + name;
  return *call != nullptr;
}

// Keeps the process's handlers of signals: libraries that libfabric loads (PSM, PSM2) install handlers of crashes.
class KeptHandlers {
 public:
  KeptHandlers() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], nullptr, &before_[i]);
  }
  ~KeptHandlers() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  KeptHandlers(const KeptHandlers&) = delete;
  KeptHandlers& operator=(const KeptHandlers&) = delete;

 private:
  static constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGFPE, SIGINT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace

const Library* library() noexcept {
  return g_loaded ? &g_library : nullptr;
}

const Library* load(const char* path, std::string* why) {
  if (g_loaded) return &g_library;
  void* handle = nullptr;
  {
    const KeptHandlers kept;
    handle = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    *why = reason == nullptr ? "dlopen failed" : reason;
    return nullptr;
  }
  Library found;
  uint32_t (*version_of)() = nullptr;
  bool ok = find(handle, "fi_version", &version_of, why);
  if (ok) {
    found.version = version_of();
    if (found.version < kOldest) {
      *why = "it is libfabric " + std::to_string(found.version >> 16) + "." + std::to_string(found.version & 0xffff) +
             ", older than 1.14";
      ok = false;
    }
  }
  ok = ok && find(handle, "fi_getinfo", &found.getinfo, why) && find(handle, "fi_freeinfo", &found.freeinfo, why) &&
       find(handle, "fi_dupinfo", &found.dupinfo, why) && find(handle, "fi_fabric", &found.fabric, why) &&
       find(handle, "fi_strerror", &found.strerror, why);
  if (!ok) {
    ::dlclose(handle);
    return nullptr;
  }
  found.path = path;
  g_library = found;
  g_loaded = true;
  return &g_library;
}

}  // namespace weft::ofi
