// cpp/mem/ze.cpp: Intel's devices through Level Zero's loader, loaded at run time: Weft builds and runs without it.
// Values and signatures are those of the oneAPI Level Zero specification, "Core Programming Guide".
#include <vector>

#include "base/lock.hpp"
#include "mem/device.hpp"

namespace weft::mem {

namespace {

using ZeResult = int;
using ZeHandle = void*;  // of a driver, device, context or command list

constexpr ZeResult kZeSuccess = 0;
constexpr uint32_t kInitGpuOnly = 1;
// ze_structure_type_t
constexpr uint32_t kContextDesc = 0xd, kQueueDesc = 0xe, kAllocationProperties = 0x17, kExportFd = 0x1a;
constexpr uint32_t kMemoryHost = 1, kMemoryDevice = 2, kMemoryShared = 3;  // ze_memory_type_t
constexpr uint32_t kDmaBuf = 2;                                            // ze_external_memory_type_flag_t
constexpr uint32_t kSynchronous = 1;                                       // ze_command_queue_mode_t

struct ContextDesc {
  uint32_t type = kContextDesc;
  const void* next = nullptr;
  uint32_t flags = 0;
};
struct QueueDesc {
  uint32_t type = kQueueDesc;
  const void* next = nullptr;
  uint32_t ordinal = 0, index = 0, flags = 0, mode = kSynchronous, priority = 0;
};
struct ExportFd {  // in: flags, out: fd
  uint32_t type = kExportFd;
  const void* next = nullptr;
  uint32_t flags = kDmaBuf;
  int fd = -1;
};
struct AllocationProperties {
  uint32_t type = kAllocationProperties;
  void* next = nullptr;
  uint32_t memory = 0;
  uint64_t id = 0;
  uint64_t page_size = 0;
};

struct ZeApi {
  ZeResult (*init)(uint32_t);
  ZeResult (*driver_get)(uint32_t*, ZeHandle*);
  ZeResult (*device_get)(ZeHandle, uint32_t*, ZeHandle*);
  ZeResult (*context_create)(ZeHandle, const ContextDesc*, ZeHandle*);
  ZeResult (*mem_properties)(ZeHandle, const void*, AllocationProperties*, ZeHandle*);
  ZeResult (*mem_range)(ZeHandle, const void*, void**, size_t*);
  ZeResult (*list_create)(ZeHandle, ZeHandle, const QueueDesc*, ZeHandle*);
  ZeResult (*append_copy)(ZeHandle, void*, const void*, size_t, ZeHandle, uint32_t, ZeHandle*);
};

class ZeRuntime final : public DeviceRuntime {
 public:
  struct Driver {
    ZeHandle context;
    std::vector<ZeHandle> devices;
  };
  ZeRuntime(const ZeApi& api, std::vector<Driver> drivers) : api_(api) {
    for (size_t d = 0; d < drivers.size(); ++d) {
      for (size_t i = 0; i < drivers[d].devices.size(); ++i) {
        devices_.emplace_back(drivers[d].context, drivers[d].devices[i], d << 16 | i);
      }
    }
  }

  [[nodiscard]] uint32_t iface() const noexcept override { return 3; }
  [[nodiscard]] uint64_t device_count() const noexcept override { return devices_.size(); }

  std::optional<DeviceMemory> find(uint64_t address) noexcept override {
    AllocationProperties properties;
    const Device* device = nullptr;
    if (!look(address, &properties, &device)) return std::nullopt;
    DeviceMemory found;
    found.iface = iface();
    found.kind = properties.memory == kMemoryDevice   ? DeviceMemoryKind::device
                 : properties.memory == kMemoryShared ? DeviceMemoryKind::managed
                                                      : DeviceMemoryKind::host;
    found.device = device->number;
    found.buffer_id = properties.id;
    void* base = nullptr;
    size_t size = 0;
    found.base = address;
    if (api_.mem_range(device->context, reinterpret_cast<void*>(address), &base, &size) == kZeSuccess) {
      found.base = reinterpret_cast<uint64_t>(base);
      found.length = size;
    }
    return found;
  }

  uint64_t identity(uint64_t address) noexcept override {
    AllocationProperties properties;
    const Device* device = nullptr;
    return look(address, &properties, &device) ? properties.id : 0;
  }

  bool copy(void* to, const void* from, size_t length) noexcept override {
    AllocationProperties properties;
    const Device* device = nullptr;
    if (!look(reinterpret_cast<uint64_t>(to), &properties, &device) &&
        !look(reinterpret_cast<uint64_t>(from), &properties, &device)) {
      return false;
    }
    const Guard lock(device->mutex);  // a command list is for one thread at a time
    if (device->list == nullptr) {
      const QueueDesc desc;
      if (api_.list_create(device->context, device->handle, &desc, &device->list) != kZeSuccess) {
        device->list = nullptr;
        return false;
      }
    }
    // A synchronous list: the call returns when the bytes are there.
    return api_.append_copy(device->list, to, from, length, nullptr, 0, nullptr) == kZeSuccess;
  }

  void prepare(uint64_t) noexcept override {}

  // Level Zero's IPC handle is a descriptor, which would have to travel to the peer: the owner copies instead.
  void share(DeviceNote&) noexcept override {}
  std::byte* open(const DeviceNote&) noexcept override { return nullptr; }
  void close(std::byte*) noexcept override {}

  int export_dmabuf(uint64_t address, uint64_t length, std::string* why) noexcept override {
    ExportFd fd;
    AllocationProperties properties;
    properties.next = &fd;
    (void)length;  // Level Zero exports whole allocations, as do all who call
    for (const Device& device : devices_) {
      ZeHandle owner = nullptr;
      if (api_.mem_properties(device.context, reinterpret_cast<void*>(address), &properties, &owner) == kZeSuccess &&
          fd.fd >= 0) {
        return fd.fd;
      }
    }
    *why = "Level Zero exports only memory that was allocated for export (ze_external_memory_export_desc_t)";
    return -1;
  }

 private:
  struct Device {
    Device(ZeHandle c, ZeHandle h, uint64_t n) : context(c), handle(h), number(n) {}
    ZeHandle context, handle;
    uint64_t number;                                   // as fi_hmem_ze_device makes it
    mutable RankedMutex<lock_rank::kLevelZero> mutex;  // guards list
    mutable ZeHandle list GUARDED_BY(mutex) = nullptr;
  };

  bool look(uint64_t address, AllocationProperties* properties, const Device** device) noexcept {
    ZeHandle asked = nullptr;
    for (const Device& one : devices_) {
      if (one.context == asked) continue;  // the devices of a driver share its context
      asked = one.context;
      ZeHandle owner = nullptr;
      if (api_.mem_properties(one.context, reinterpret_cast<void*>(address), properties, &owner) != kZeSuccess ||
          properties->memory < kMemoryHost || properties->memory > kMemoryShared) {
        continue;
      }
      *device = &one;  // memory of the host belongs to no device
      for (const Device& each : devices_) {
        if (each.handle == owner) *device = &each;
      }
      return true;
    }
    return false;
  }

  ZeApi api_;
  std::list<Device> devices_;
};

}  // namespace

std::unique_ptr<DeviceRuntime> load_ze(const std::string& library, std::string* why) {
  RuntimeLibrary from(library, "the loader's library", "it is no Level Zero loader of version 1.0 or later", why);
  if (!from.loaded()) return nullptr;
  ZeApi api{};
  if (!from.find("zeInit", api.init) || !from.find("zeDriverGet", api.driver_get) ||
      !from.find("zeDeviceGet", api.device_get) || !from.find("zeContextCreate", api.context_create) ||
      !from.find("zeMemGetAllocProperties", api.mem_properties) || !from.find("zeMemGetAddressRange", api.mem_range) ||
      !from.find("zeCommandListCreateImmediate", api.list_create) ||
      !from.find("zeCommandListAppendMemoryCopy", api.append_copy)) {
    return nullptr;
  }
  if (api.init(kInitGpuOnly) != kZeSuccess) {
    *why = "zeInit failed: no driver of an Intel GPU, or no right to /dev/dri";
    return nullptr;
  }
  uint32_t count = 0;
  std::vector<ZeHandle> handles;
  if (api.driver_get(&count, nullptr) == kZeSuccess) handles.resize(count);
  if (count == 0 || api.driver_get(&count, handles.data()) != kZeSuccess) handles.clear();
  std::vector<ZeRuntime::Driver> drivers;
  size_t devices = 0;
  for (const ZeHandle driver : handles) {
    ZeRuntime::Driver made{nullptr, {}};
    const ContextDesc desc;
    uint32_t number = 0;
    if (api.context_create(driver, &desc, &made.context) == kZeSuccess &&
        api.device_get(driver, &number, nullptr) == kZeSuccess && number != 0) {
      made.devices.resize(number);
      if (api.device_get(driver, &number, made.devices.data()) != kZeSuccess) made.devices.clear();
    }
    devices += made.devices.size();
    drivers.push_back(std::move(made));  // also without devices: numbers count drivers by their positions
  }
  if (devices == 0) {
    *why = "Level Zero sees no GPU (ZE_AFFINITY_MASK?)";
    return nullptr;
  }
  return std::make_unique<ZeRuntime>(api, std::move(drivers));
}

}  // namespace weft::mem
