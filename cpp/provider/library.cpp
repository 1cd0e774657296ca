// cpp/provider/library.cpp: what libweft_provider.so exports: getinfo, fabric, cleanup.
#include "base/status.hpp"
#include "provider/fabric.hpp"
#include "provider/helper.hpp"
#include "provider/info.hpp"
#include "provider/log.hpp"

namespace weft::provider {

namespace {

constexpr int kNoDataCode = 61;
constexpr uint32_t kPolicyVersion = version(2, 1);  // the interface that policy describes
constexpr uint64_t kNumericHost = uint64_t{1} << 55, kSource = uint64_t{1} << 57;

// Under RESCAN and like flags Weft has nothing to do: it keeps no list of devices.
int library_getinfo(const Front& front, uint32_t version, const char* node, const char* service, uint64_t flags,
                    const ofi::Info* hints, ofi::Info** info) {
  *info = nullptr;
  try {
    Record question;
    question.add("ask", "getinfo", "provider", front.name, "version",
                 version < kPolicyVersion ? version : kPolicyVersion, "flags", flags & (kNumericHost | kSource));
    if (node != nullptr) question.add("node", std::string_view(node));
    if (service != nullptr) question.add("service", std::string_view(service));
    if (hints != nullptr) question.add("hints", record_of(*hints, version));
    const Record answer = Helper::of_process().ask(question);
    if (answer.has("errno")) return refused(front, Subject::core, "fi_getinfo", answer);
    ofi::Info** last = info;
    for (const Record& offer : answer.all("offer")) {
      *last = info_of(front, offer);
      if (*last == nullptr) {
        if (*info != nullptr) front.freeinfo(*info);
        *info = nullptr;
        return -fi_err::kENOMEM;
      }
      last = &(*last)->next;
    }
    return *info == nullptr ? -kNoDataCode : 0;
  } catch (const std::bad_alloc&) {
    if (*info != nullptr) front.freeinfo(*info);
    *info = nullptr;
    return -fi_err::kENOMEM;
  }
}

}  // namespace

}  // namespace weft::provider

extern "C" __attribute__((visibility("default"))) const weft::provider::Library weft_provider_library;
const weft::provider::Library weft_provider_library{weft::provider::kRelease, weft::provider::library_getinfo,
                                                    weft::provider::open_fabric, weft::provider::cleanup};
