// cpp/mem/rocr.cpp: AMD's devices through the HSA runtime (ROCr), loaded at run time: Weft builds and runs without
// ROCm. Values and signatures are those of the HSA Runtime Programmer's Reference and of its AMD extension.
#include <cstring>
#include <vector>

#include "mem/device.hpp"

namespace weft::mem {

namespace {

using HsaStatus = int;
struct HsaAgent {
  uint64_t handle;
};
struct HsaPointerInfo {  // hsa_amd_pointer_info_t; `size` tells the runtime how many fields we know
  uint32_t size;
  uint32_t type;
  void* agent_base;
  void* host_base;
  size_t bytes;
  void* user_data;
  HsaAgent owner;
  uint32_t global_flags;
};
struct HsaIpc {
  uint32_t words[8];
};

constexpr HsaStatus kRocrSuccess = 0;
constexpr int kAgentInfoDevice = 17;
constexpr uint32_t kDeviceTypeGpu = 1;
constexpr uint32_t kPointerUnknown = 0, kPointerLocked = 2;

struct RocrApi {
  HsaStatus (*init)();
  HsaStatus (*iterate_agents)(HsaStatus (*)(HsaAgent, void*), void*);
  HsaStatus (*agent_get_info)(HsaAgent, int, void*);
  HsaStatus (*pointer_info)(const void*, HsaPointerInfo*, void* (*)(size_t), uint32_t*, HsaAgent**);
  HsaStatus (*memory_copy)(void*, const void*, size_t);
  HsaStatus (*ipc_create)(void*, size_t, HsaIpc*);
  HsaStatus (*ipc_attach)(const HsaIpc*, size_t, uint32_t, const HsaAgent*, void**);
  HsaStatus (*ipc_detach)(void*);
  HsaStatus (*export_dmabuf)(const void*, size_t, int*, uint64_t*);  // may be missing
};

class RocrRuntime final : public DeviceRuntime {
 public:
  RocrRuntime(const RocrApi& api, std::vector<HsaAgent> gpus) : api_(api), gpus_(std::move(gpus)) {}

  [[nodiscard]] uint32_t iface() const noexcept override { return 2; }
  [[nodiscard]] uint64_t device_count() const noexcept override { return gpus_.size(); }

  std::optional<DeviceMemory> find(uint64_t address) noexcept override {
    HsaPointerInfo info{};
    info.size = sizeof(info);
    if (api_.pointer_info(reinterpret_cast<void*>(address), &info, nullptr, nullptr, nullptr) != kRocrSuccess ||
        info.type == kPointerUnknown) {
      return std::nullopt;
    }
    DeviceMemory found;
    found.iface = iface();
    found.kind = DeviceMemoryKind::host;  // pinned host memory, or a pool of the processor's agent
    for (size_t i = 0; i < gpus_.size(); ++i) {
      if (gpus_[i].handle != info.owner.handle || info.type == kPointerLocked) continue;
      found.kind = DeviceMemoryKind::device;
      found.device = i;
    }
    const auto base = reinterpret_cast<uint64_t>(info.agent_base);
    found.base = address - base < info.bytes ? base : reinterpret_cast<uint64_t>(info.host_base);
    found.length = info.bytes;
    found.buffer_id = found.base ^ found.length << 20 ^ (info.owner.handle + 1);
    return found;
  }

  // The runtime has no id for an allocation, so its address and size form the identity.
  uint64_t identity(uint64_t address) noexcept override {
    const auto found = find(address);
    return found ? found->buffer_id : 0;
  }

  bool copy(void* to, const void* from, size_t length) noexcept override {
    return api_.memory_copy(to, from, length) == kRocrSuccess;  // synchronous
  }

  void prepare(uint64_t) noexcept override {}

  void share(DeviceNote& note) noexcept override {
    HsaIpc handle;
    if (api_.ipc_create(reinterpret_cast<void*>(note.base), note.length, &handle) != kRocrSuccess) return;
    std::memcpy(note.ipc.data(), &handle, sizeof(handle));
    std::memcpy(&note.buffer_id, &handle, sizeof(note.buffer_id));  // the handle identifies one allocation
    note.has_ipc = 1;
  }

  std::byte* open(const DeviceNote& note) noexcept override {
    HsaIpc handle;
    std::memcpy(&handle, note.ipc.data(), sizeof(handle));
    void* base = nullptr;
    const auto count = static_cast<uint32_t>(gpus_.size());
    if (api_.ipc_attach(&handle, note.length, count, gpus_.data(), &base) != kRocrSuccess) return nullptr;
    return static_cast<std::byte*>(base);
  }
  void close(std::byte* opened) noexcept override { api_.ipc_detach(opened); }

  int export_dmabuf(uint64_t address, uint64_t length, std::string* why) noexcept override {
    int fd = -1;
    uint64_t offset = 0;
    if (api_.export_dmabuf == nullptr) {
      *why = "the HSA runtime has no hsa_amd_portable_export_dmabuf (ROCm 5.6 has it)";
    } else if (api_.export_dmabuf(reinterpret_cast<void*>(address), length, &fd, &offset) != kRocrSuccess) {
      *why = "the HSA runtime refused to export it";
      fd = -1;
    }
    return fd;
  }

 private:
  RocrApi api_;
  std::vector<HsaAgent> gpus_;
};

struct Search {
  const RocrApi* api;
  std::vector<HsaAgent> gpus;
};

}  // namespace

std::unique_ptr<DeviceRuntime> load_rocr(const std::string& library, std::string* why) {
  RuntimeLibrary from(library, "the runtime's library", "it is no HSA runtime of ROCm", why);
  if (!from.loaded()) return nullptr;
  RocrApi api{};
  if (!from.find("hsa_init", api.init) || !from.find("hsa_iterate_agents", api.iterate_agents) ||
      !from.find("hsa_agent_get_info", api.agent_get_info) || !from.find("hsa_amd_pointer_info", api.pointer_info) ||
      !from.find("hsa_memory_copy", api.memory_copy) || !from.find("hsa_amd_ipc_memory_create", api.ipc_create) ||
      !from.find("hsa_amd_ipc_memory_attach", api.ipc_attach) ||
      !from.find("hsa_amd_ipc_memory_detach", api.ipc_detach) ||
      !from.find("hsa_amd_portable_export_dmabuf", api.export_dmabuf, false)) {
    return nullptr;
  }
  if (api.init() != kRocrSuccess) {
    *why = "hsa_init failed: no AMD device, or no right to /dev/kfd";
    return nullptr;
  }
  Search search{&api, {}};
  api.iterate_agents(
      [](HsaAgent agent, void* data) -> HsaStatus {
        auto* s = static_cast<Search*>(data);
        uint32_t type = 0;
        if (s->api->agent_get_info(agent, kAgentInfoDevice, &type) == kRocrSuccess && type == kDeviceTypeGpu) {
          s->gpus.push_back(agent);
        }
        return kRocrSuccess;
      },
      &search);
  if (search.gpus.empty()) {
    *why = "the HSA runtime sees no GPU";
    return nullptr;
  }
  return std::make_unique<RocrRuntime>(api, std::move(search.gpus));
}

}  // namespace weft::mem
