// cpp/mem/cuda.cpp: CUDA through its driver API, loaded at run time: Weft builds and runs without CUDA.
// Values and signatures are those of the driver API's documentation, "CUDA Driver API": Unified Addressing, Memory
// Management, Peer Context Memory Access.

#include <cstring>
#include <vector>

#include "base/lock.hpp"
#include "mem/device.hpp"

namespace weft::mem {

namespace {

using CUresult = int;
using CUdevice = int;
using CUcontext = void*;
using CUstream = void*;
using CUdeviceptr = uint64_t;
struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};
static_assert(sizeof(CUipcMemHandle) == sizeof(DeviceNote::ipc));

constexpr CUresult kCudaSuccess = 0;
constexpr int kPointerMemoryType = 2, kPointerSyncMemops = 6, kPointerBufferId = 7, kPointerIsManaged = 8,
              kPointerDeviceOrdinal = 9, kPointerRangeStart = 11, kPointerRangeSize = 12;
constexpr uint32_t kMemoryTypeHost = 1;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kIpcLazyPeerAccess = 1;
constexpr int kHandleTypeDmabuf = 1;
constexpr unsigned kAttachGlobal = 1;
constexpr unsigned kHostRegisterPortable = 1;  // for all contexts

// All functions that Weft uses, in the versions that a driver of CUDA 11.7 or later exports.
struct CudaApi {
  CUresult (*init)(unsigned);
  CUresult (*device_get_count)(int*);
  CUresult (*device_get)(CUdevice*, int);
  CUresult (*device_get_uuid)(CUuuid*, CUdevice);
  CUresult (*primary_ctx_retain)(CUcontext*, CUdevice);
  CUresult (*ctx_push)(CUcontext);
  CUresult (*ctx_pop)(CUcontext*);
  CUresult (*pointer_get_attribute)(void*, int, CUdeviceptr);
  CUresult (*pointer_set_attribute)(const void*, int, CUdeviceptr);
  CUresult (*memcpy_async)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
  CUresult (*stream_create)(CUstream*, unsigned);
  CUresult (*stream_synchronize)(CUstream);
  CUresult (*ipc_get_mem_handle)(CUipcMemHandle*, CUdeviceptr);
  CUresult (*ipc_open_mem_handle)(CUdeviceptr*, CUipcMemHandle, unsigned);
  CUresult (*ipc_close_mem_handle)(CUdeviceptr);
  CUresult (*get_error_string)(CUresult, const char**);
  CUresult (*mem_alloc)(CUdeviceptr*, size_t);
  CUresult (*mem_alloc_managed)(CUdeviceptr*, size_t, unsigned);
  CUresult (*mem_free)(CUdeviceptr);
  CUresult (*mem_host_register)(void*, size_t, unsigned);  // these two and the next one may be missing
  CUresult (*mem_host_unregister)(void*);
  CUresult (*mem_get_handle_for_address_range)(void*, CUdeviceptr, size_t, int, unsigned long long);
};

class CudaRuntime final : public DeviceRuntime {
 public:
  CudaRuntime(const CudaApi& api, std::vector<CUuuid> uuids) : api_(api), devices_(uuids.size()) {
    for (size_t i = 0; i < uuids.size(); ++i) devices_[i].uuid = uuids[i];
  }

  [[nodiscard]] uint32_t iface() const noexcept override { return 1; }
  [[nodiscard]] uint64_t device_count() const noexcept override { return devices_.size(); }

  std::optional<DeviceMemory> find(uint64_t address) noexcept override {
    uint32_t type = 0;
    if (api_.pointer_get_attribute(&type, kPointerMemoryType, address) != kCudaSuccess || type == 0)
      return std::nullopt;
    DeviceMemory found;
    found.iface = iface();
    uint32_t managed = 0;
    int ordinal = 0;
    size_t size = 0;
    api_.pointer_get_attribute(&managed, kPointerIsManaged, address);
    api_.pointer_get_attribute(&ordinal, kPointerDeviceOrdinal, address);
    api_.pointer_get_attribute(&found.buffer_id, kPointerBufferId, address);
    if (api_.pointer_get_attribute(&found.base, kPointerRangeStart, address) != kCudaSuccess ||
        api_.pointer_get_attribute(&size, kPointerRangeSize, address) != kCudaSuccess) {
      found.base = address;
    }
    found.length = size;
    found.device = static_cast<uint64_t>(ordinal < 0 ? 0 : ordinal);
    found.kind = managed != 0              ? DeviceMemoryKind::managed
                 : type == kMemoryTypeHost ? DeviceMemoryKind::host
                                           : DeviceMemoryKind::device;
    return found;
  }

  uint64_t identity(uint64_t address) noexcept override {
    uint64_t id = 0;
    return api_.pointer_get_attribute(&id, kPointerBufferId, address) == kCudaSuccess ? id : 0;
  }

  bool copy(void* to, const void* from, size_t length) noexcept override {
    const auto destination = reinterpret_cast<CUdeviceptr>(to), source = reinterpret_cast<CUdeviceptr>(from);
    const Device* device = device_of(destination);
    if (device == nullptr) device = device_of(source);
    if (device == nullptr) return false;
    const Entered entered(*this, *device);
    if (!entered.ok) return false;
    // A stream of our own, so that the copy does not wait for the program's kernels: one of them may wait for its
    // bytes.
    const CUstream stream = take_stream(*device);
    if (stream == nullptr) return false;
    const bool done = api_.memcpy_async(destination, source, length, stream) == kCudaSuccess &&
                      api_.stream_synchronize(stream) == kCudaSuccess;
    give_stream(*device, stream);
    return done;
  }

  uint64_t allocate(uint64_t length, bool managed, std::string* why) noexcept override {
    const Entered entered(*this, devices_[0]);
    CUdeviceptr address = 0;
    const CUresult r = !entered.ok ? -1
                       : managed   ? api_.mem_alloc_managed(&address, length, kAttachGlobal)
                                   : api_.mem_alloc(&address, length);
    if (r == kCudaSuccess) return address;
    const char* words = nullptr;
    *why = entered.ok && api_.get_error_string(r, &words) == kCudaSuccess && words != nullptr
               ? std::string("the driver says: ") + words
               : "the driver refused";
    return 0;
  }

  void release(uint64_t address) noexcept override {
    const Entered entered(*this, devices_[0]);
    if (entered.ok) api_.mem_free(address);
  }

  bool register_host(void* memory, size_t length) noexcept override {
    if (api_.mem_host_register == nullptr || api_.mem_host_unregister == nullptr) return false;
    const Entered entered(*this, devices_[0]);
    return entered.ok && api_.mem_host_register(memory, length, kHostRegisterPortable) == kCudaSuccess;
  }

  void unregister_host(void* memory) noexcept override {
    const Entered entered(*this, devices_[0]);
    if (entered.ok) api_.mem_host_unregister(memory);
  }

  void prepare(uint64_t address) noexcept override {
    const uint32_t on = 1;
    api_.pointer_set_attribute(&on, kPointerSyncMemops, address);
  }

  void share(DeviceNote& note) noexcept override {
    if (note.device >= devices_.size()) return;
    const Entered entered(*this, devices_[note.device]);
    CUipcMemHandle handle;
    if (!entered.ok || api_.ipc_get_mem_handle(&handle, note.base) != kCudaSuccess) return;
    std::memcpy(note.ipc.data(), &handle, sizeof(handle));
    std::memcpy(note.uuid.data(), &devices_[note.device].uuid, sizeof(CUuuid));
    note.has_ipc = 1;
  }

  std::byte* open(const DeviceNote& note) noexcept override {
    for (const Device& device : devices_) {
      if (std::memcmp(&device.uuid, note.uuid.data(), sizeof(CUuuid)) != 0) continue;
      const Entered entered(*this, device);
      CUipcMemHandle handle;
      std::memcpy(&handle, note.ipc.data(), sizeof(handle));
      CUdeviceptr base = 0;
      if (!entered.ok || api_.ipc_open_mem_handle(&base, handle, kIpcLazyPeerAccess) != kCudaSuccess) return nullptr;
      return reinterpret_cast<std::byte*>(base);
    }
    return nullptr;  // this process does not see the device
  }

  void close(std::byte* opened) noexcept override {
    const auto base = reinterpret_cast<CUdeviceptr>(opened);
    if (const Device* device = device_of(base)) {
      const Entered entered(*this, *device);
      if (entered.ok) api_.ipc_close_mem_handle(base);
    }
  }

  int export_dmabuf(uint64_t address, uint64_t length, std::string* why) noexcept override {
    if (api_.mem_get_handle_for_address_range == nullptr) {
      *why = "the driver is older than CUDA 11.7, which has cuMemGetHandleForAddressRange";
      return -1;
    }
    const Device* device = device_of(address);
    int fd = -1;
    CUresult result = 0;
    if (device != nullptr) {
      const Entered entered(*this, *device);
      result = api_.mem_get_handle_for_address_range(&fd, address, length, kHandleTypeDmabuf, 0);
      if (entered.ok && result == kCudaSuccess) return fd;
    }
    const char* text = "no device memory there";
    if (device != nullptr) api_.get_error_string(result, &text);
    *why = text;
    return -1;
  }

 private:
  struct Device {
    CUuuid uuid{};
    mutable RankedMutex<lock_rank::kCuda> mutex;  // guards the members below
    mutable CUcontext context GUARDED_BY(mutex) = nullptr;
    mutable std::vector<CUstream> idle GUARDED_BY(mutex);
  };

  // Makes the device's primary context current in this thread during its life: driver calls without a context fail.
  struct Entered {
    Entered(CudaRuntime& runtime, const Device& device) : api(runtime.api_) {
      CUcontext context = nullptr;
      {
        const Guard lock(device.mutex);
        if (device.context == nullptr) {
          CUdevice handle = 0;
          const auto number = static_cast<int>(&device - runtime.devices_.data());
          if (api.device_get(&handle, number) != kCudaSuccess ||
              api.primary_ctx_retain(&device.context, handle) != kCudaSuccess) {
            device.context = nullptr;
          }
        }
        context = device.context;
      }
      ok = context != nullptr && api.ctx_push(context) == kCudaSuccess;
    }
    ~Entered() {
      CUcontext popped = nullptr;
      if (ok) api.ctx_pop(&popped);
    }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    const CudaApi& api;
    bool ok = false;
  };

  const Device* device_of(CUdeviceptr address) noexcept {
    uint32_t type = 0;
    int ordinal = -1;
    if (api_.pointer_get_attribute(&type, kPointerMemoryType, address) != kCudaSuccess || type == 0 ||
        api_.pointer_get_attribute(&ordinal, kPointerDeviceOrdinal, address) != kCudaSuccess || ordinal < 0 ||
        static_cast<size_t>(ordinal) >= devices_.size()) {
      return nullptr;
    }
    return &devices_[static_cast<size_t>(ordinal)];
  }

  CUstream take_stream(const Device& device) noexcept {
    const Guard lock(device.mutex);
    if (!device.idle.empty()) {
      const CUstream stream = device.idle.back();
      device.idle.pop_back();
      return stream;
    }
    CUstream stream = nullptr;
    return api_.stream_create(&stream, kStreamNonBlocking) == kCudaSuccess ? stream : nullptr;
  }
  void give_stream(const Device& device, CUstream stream) noexcept {
    const Guard lock(device.mutex);
    device.idle.push_back(stream);
  }

  CudaApi api_;
  std::vector<Device> devices_;
};

}  // namespace

std::unique_ptr<DeviceRuntime> load_cuda(const std::string& library, std::string* why) {
  RuntimeLibrary from(library, "the driver's library", "it is no CUDA driver, or one before 11.7", why);
  if (!from.loaded()) return nullptr;
  CudaApi api{};
  if (!from.find("cuInit", api.init) || !from.find("cuDeviceGetCount", api.device_get_count) ||
      !from.find("cuDeviceGet", api.device_get) || !from.find("cuDeviceGetUuid", api.device_get_uuid) ||
      !from.find("cuDevicePrimaryCtxRetain", api.primary_ctx_retain) ||
      !from.find("cuCtxPushCurrent_v2", api.ctx_push) || !from.find("cuCtxPopCurrent_v2", api.ctx_pop) ||
      !from.find("cuPointerGetAttribute", api.pointer_get_attribute) ||
      !from.find("cuPointerSetAttribute", api.pointer_set_attribute) || !from.find("cuMemcpyAsync", api.memcpy_async) ||
      !from.find("cuStreamCreate", api.stream_create) || !from.find("cuStreamSynchronize", api.stream_synchronize) ||
      !from.find("cuIpcGetMemHandle", api.ipc_get_mem_handle) ||
      !from.find("cuIpcOpenMemHandle_v2", api.ipc_open_mem_handle) || !from.find("cuMemAlloc_v2", api.mem_alloc) ||
      !from.find("cuMemAllocManaged", api.mem_alloc_managed) || !from.find("cuMemFree_v2", api.mem_free) ||
      !from.find("cuIpcCloseMemHandle", api.ipc_close_mem_handle) ||
      !from.find("cuGetErrorString", api.get_error_string) ||
      !from.find("cuMemHostRegister_v2", api.mem_host_register, false) ||
      !from.find("cuMemHostUnregister", api.mem_host_unregister, false) ||
      !from.find("cuMemGetHandleForAddressRange", api.mem_get_handle_for_address_range, false)) {
    return nullptr;
  }
  const auto text = [&](CUresult result) {
    const char* words = nullptr;
    return api.get_error_string(result, &words) == kCudaSuccess && words != nullptr ? std::string(words)
                                                                                    : "error " + std::to_string(result);
  };
  if (const CUresult r = api.init(0); r != kCudaSuccess) {
    *why = "cuInit: " + text(r);
    return nullptr;
  }
  int count = 0;
  if (const CUresult r = api.device_get_count(&count); r != kCudaSuccess || count <= 0) {
    *why = r != kCudaSuccess ? "cuDeviceGetCount: " + text(r) : "the driver sees no device (CUDA_VISIBLE_DEVICES?)";
    return nullptr;
  }
  std::vector<CUuuid> uuids(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    if (api.device_get(&device, i) == kCudaSuccess) api.device_get_uuid(&uuids[static_cast<size_t>(i)], device);
  }
  return std::make_unique<CudaRuntime>(api, std::move(uuids));
}

}  // namespace weft::mem
