// cpp/provider/front.inl: a front file: all of libweft-fi.so and libcxi-fi.so but their names. Each is one unit without
// the C++ library, because every program that uses libfabric loads it.
#include <dlfcn.h>
#include <pthread.h>

#include <cstring>

#include "provider/front.hpp"

namespace weft::provider {

namespace {

constexpr int kNoData = -61;
constexpr int kNoSys = -38;
// Utility providers (ofi_rxm, ofi_rxd, ofi_mrail) look for a provider below them with this flag, in every program that
// uses libfabric: the answer must cost nothing.
constexpr uint64_t kForUtility = uint64_t{1} << 59;
constexpr int kWarn = 0;

Front g_front;
FiProvider g_provider;
const Library* g_library;
bool g_sought;
pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;

void warn(const char* what, const char* why) noexcept {
  if (g_front.log_enabled(&g_provider, kWarn, 0) != 0)
    g_front.log(&g_provider, kWarn, 0, "weft", 0, "%s: %s\n", what, why);
}

// libweft_provider.so in the folder of this file; null, with a warning, if it cannot be loaded.
const Library* library() noexcept {
  pthread_mutex_lock(&g_lock);
  if (!g_sought) {
    g_sought = true;
    Dl_info here;
    char path[4096];
    const char* const slash =
        ::dladdr(reinterpret_cast<void*>(&library), &here) != 0 ? std::strrchr(here.dli_fname, '/') : nullptr;
    const size_t folder = slash == nullptr ? 0 : static_cast<size_t>(slash + 1 - here.dli_fname);
    if (folder + std::strlen(kLibraryFile) < sizeof(path)) {
      std::memcpy(path, here.dli_fname, folder);
      std::strcpy(path + folder, kLibraryFile);
      void* const handle = ::dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
      if (handle == nullptr) {
        warn("the library of Weft's providers cannot be loaded", ::dlerror());
      } else {
        const auto* found = static_cast<const Library*>(::dlsym(handle, kLibraryName));
        if (found != nullptr && found->release == kRelease) {
          g_library = found;
        } else {
          warn(path, "is of another release of Weft than this provider file");
        }
      }
    }
  }
  pthread_mutex_unlock(&g_lock);
  return g_library;
}

int getinfo(uint32_t version, const char* node, const char* service, uint64_t flags, const ofi::Info* hints,
            ofi::Info** info) {
  if ((flags & kForUtility) != 0) return kNoData;
  const Library* const of = library();
  return of == nullptr ? kNoData : of->getinfo(g_front, version, node, service, flags, hints, info);
}

int fabric(ofi::FabricAttr* attr, ofi::FidFabric** out, void* context) {
  const Library* const of = library();
  return of == nullptr ? kNoSys : of->fabric(g_front, attr, out, context);
}

void cleanup() {
  if (g_library != nullptr) g_library->cleanup(g_front);
}

template <typename Function>
bool find(void* in, const char* name, Function** out) noexcept {
  *out = reinterpret_cast<Function*>(::dlsym(in, name));
  return *out != nullptr;
}

}  // namespace

FiProvider* make_front(const char* name, void* caller) noexcept {
  Dl_info core;
  if (::dladdr(caller, &core) == 0) return nullptr;
  // The libfabric that called, not a libfabric that the loader finds by name. A libfabric that is linked into the
  // program is the program's own file, whose handle has no name.
  void* handle = ::dlopen(core.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) handle = ::dlopen(nullptr, RTLD_LAZY | RTLD_NOLOAD);
  uint32_t (*fi_version)() = nullptr;
  if (handle == nullptr || !find(handle, "fi_version", &fi_version) || !find(handle, "fi_dupinfo", &g_front.dupinfo) ||
      !find(handle, "fi_freeinfo", &g_front.freeinfo) || !find(handle, "fi_log_enabled", &g_front.log_enabled) ||
      !find(handle, "fi_log", &g_front.log)) {
    return nullptr;
  }
  g_front.name = name;
  g_front.version = fi_version();
  g_front.provider = &g_provider;
  // libfabric prefers it to its own provider of the same name, whose version is 205.10 at most.
  g_provider.version = version(9002, 0);
  g_provider.fi_version = g_front.version;
  g_provider.name = name;
  g_provider.getinfo = getinfo;
  g_provider.fabric = fabric;
  g_provider.cleanup = cleanup;
  return &g_provider;
}

}  // namespace weft::provider
