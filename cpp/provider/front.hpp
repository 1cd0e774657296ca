// cpp/provider/front.hpp: what a front file, libweft-fi.so or libcxi-fi.so, and the provider library tell each other.
//
// libfabric loads a front file for each provider (fi_prov_ini gives one struct fi_provider). A front finds the
// libfabric that called it, answers questions that are not meant for Weft, and loads libweft_provider.so, which lies
// beside it, for all other questions. No front and no part of the library links a libfabric: one process may have
// several, and the loader may find none by name.
#pragma once

#include <cstdint>

#include "ofi/abi.hpp"

namespace weft::provider {

// struct fi_provider, as all versions of libfabric have it.
struct FiProvider {
  uint32_t version, fi_version;
  void* context[4];  // libfabric's own
  const char* name;
  int (*getinfo)(uint32_t version, const char* node, const char* service, uint64_t flags, const ofi::Info* hints,
                 ofi::Info** info);
  int (*fabric)(ofi::FabricAttr* attr, ofi::FidFabric** fabric, void* context);
  void (*cleanup)();
};
static_assert(sizeof(FiProvider) == 72);

// The libfabric that loaded a front, and the front's provider.
struct Front {
  const char* name;  // of the provider: weft, cxi
  uint32_t version;  // fi_version() of the libfabric
  ofi::Info* (*dupinfo)(const ofi::Info*);
  void (*freeinfo)(ofi::Info*);
  int (*log_enabled)(const FiProvider*, int level, int subsystem);
  void (*log)(const FiProvider*, int level, int subsystem, const char* function, int line, const char* format, ...);
  const FiProvider* provider;
};

constexpr uint32_t version(uint32_t major, uint32_t minor) noexcept {
  return major << 16 | minor;
}

// What libweft_provider.so exports, under the name kLibraryName. A front and a library of different releases have
// different numbers, and do not work together.
struct Library {
  uint32_t release;
  int (*getinfo)(const Front& front, uint32_t version, const char* node, const char* service, uint64_t flags,
                 const ofi::Info* hints, ofi::Info** info);
  int (*fabric)(const Front& front, ofi::FabricAttr* attr, ofi::FidFabric** fabric, void* context);
  void (*cleanup)(const Front& front);
};
constexpr uint32_t kRelease = 1;
constexpr const char* kLibraryFile = "libweft_provider.so";
constexpr const char* kLibraryName = "weft_provider_library";

// Makes the provider of a front file; null: the calling libfabric is not suitable for Weft. caller: the place in
// libfabric to which fi_prov_ini returns.
FiProvider* make_front(const char* name, void* caller) noexcept;

}  // namespace weft::provider
