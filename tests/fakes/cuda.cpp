// tests/fakes/cuda.cpp: a CUDA driver without a GPU, for the tests: the functions of the driver API that Weft calls, over
// host memory.
//
// Device memory is a memfd that is mapped twice: the pointer that programs get is PROT_NONE, so that a load or store of the
// processor ends the process, as it would on the real thing; the driver's own copies go by a second mapping. Handles of
// IPC name the memfd by process and descriptor; opening one gives a new PROT_NONE range, and only in another process,
// as the driver has it. A call that copies without a current context fails.
//
//   WEFT_FAKE_CUDA_DEVICES      how many devices there are (2)
//   WEFT_FAKE_CUDA_NO_IPC=1     memory cannot be shared (as of a memory pool)
//   WEFT_FAKE_CUDA_FAIL=copy    copies fail (a sticky error of the context)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kInvalidContext = 201,
              kMapFailed = 205, kAlreadyMapped = 208, kIllegalAddress = 700, kNotSupported = 801;

enum class Kind { device, managed, host };
struct Block {
  Kind kind;
  int device;
  int fd;
  uint64_t bytes;
  char* shadow;  // where the driver itself reads and writes
  uint64_t id;
  bool opened;  // of another process
};

std::mutex g_mutex;
std::map<uint64_t, Block> g_blocks;
std::map<uint64_t, uint64_t> g_registered;  // host memory that the program has registered: address, bytes
bool g_ready = false;
uint64_t g_next_id = 1;
uint64_t g_copies = 0, g_opens = 0, g_closes = 0, g_queries = 0, g_dmabufs = 0;
thread_local int g_depth = 0;
thread_local int g_current[64];

int device_count() {
  const char* n = std::getenv("WEFT_FAKE_CUDA_DEVICES");
  return n != nullptr ? std::atoi(n) : 2;
}
bool says(const char* name, const char* value) {
  const char* found = std::getenv(name);
  return found != nullptr && std::strcmp(found, value) == 0;
}

uint64_t registered_bytes() {
  uint64_t sum = 0;
  for (const auto& [address, bytes] : g_registered) sum += bytes;
  return sum;
}

const std::pair<const uint64_t, Block>* block_of(uint64_t address) {
  auto it = g_blocks.upper_bound(address);
  if (it == g_blocks.begin()) return nullptr;
  --it;
  return address - it->first < it->second.bytes ? &*it : nullptr;
}

int map_block(uint64_t* out, int fd, uint64_t bytes, Kind kind, int device, bool opened, uint64_t id) {
  const int rights = kind == Kind::device ? PROT_NONE : PROT_READ | PROT_WRITE;
  void* seen = ::mmap(nullptr, bytes, rights, MAP_SHARED, fd, 0);
  void* shadow = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (seen == MAP_FAILED || shadow == MAP_FAILED) return kMapFailed;
  *out = reinterpret_cast<uint64_t>(seen);
  g_blocks[*out] = {kind, device, fd, bytes, static_cast<char*>(shadow), id, opened};
  return kSuccess;
}

int allocate(uint64_t* out, size_t bytes, Kind kind) {
  const std::lock_guard lock(g_mutex);
  if (!g_ready) return kNotInitialized;
  if (g_depth == 0) return kInvalidContext;
  if (bytes == 0) return kInvalidValue;
  const uint64_t rounded = (bytes + 4095) / 4096 * 4096;
  const int fd = ::memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(rounded)) != 0) return kOutOfMemory;
  return map_block(out, fd, rounded, kind, g_current[g_depth - 1], false, g_next_id++);
}

void drop(std::map<uint64_t, Block>::iterator it) {
  ::munmap(reinterpret_cast<void*>(it->first), it->second.bytes);
  ::munmap(it->second.shadow, it->second.bytes);
  ::close(it->second.fd);
  g_blocks.erase(it);
}

// Where the driver may touch [address, address + n); null where the range leaves its allocation.
char* reach(uint64_t address, size_t n) {
  const auto* found = block_of(address);
  if (found == nullptr) return reinterpret_cast<char*>(address);  // the host's, pageable
  if (n > found->second.bytes - (address - found->first)) return nullptr;
  return found->second.shadow + (address - found->first);
}

struct Handle {  // 64 bytes
  int32_t process, fd, device, reserved;
  uint64_t bytes, id;
  char rest[32];
};
static_assert(sizeof(Handle) == 64);
struct HandleByValue {
  char bytes[64];
};

}  // namespace

extern "C" {

int cuInit(unsigned) {
  const std::lock_guard lock(g_mutex);
  if (says("WEFT_FAKE_CUDA_FAIL", "init")) return 100;
  g_ready = true;
  return kSuccess;
}
int cuDeviceGetCount(int* n) { return *n = device_count(), kSuccess; }
int cuDeviceGet(int* device, int number) {
  if (number < 0 || number >= device_count()) return kInvalidValue;
  return *device = number, kSuccess;
}
int cuDeviceGetUuid(char* uuid, int device) {
  std::memset(uuid, 0, 16);
  std::snprintf(uuid, 16, "fake-gpu-%d", device);
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  return *context = reinterpret_cast<void*>(static_cast<intptr_t>(device + 1)), kSuccess;
}
int cuCtxPushCurrent_v2(void* context) {
  if (context == nullptr || g_depth == 64) return kInvalidContext;
  g_current[g_depth++] = static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
  return kSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  if (g_depth == 0) return kInvalidContext;
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(g_current[--g_depth] + 1));
  return kSuccess;
}
int cuPointerGetAttribute(void* out, int attribute, uint64_t address) {
  const std::lock_guard lock(g_mutex);
  ++g_queries;
  if (!g_ready) return kNotInitialized;
  const auto* found = block_of(address);
  if (found == nullptr) return kInvalidValue;
  const Block& b = found->second;
  switch (attribute) {
    case 2:
      return *static_cast<uint32_t*>(out) = b.kind == Kind::host ? 1 : 2, kSuccess;
    case 7:
      return *static_cast<uint64_t*>(out) = b.id, kSuccess;
    case 8:
      return *static_cast<uint32_t*>(out) = b.kind == Kind::managed, kSuccess;
    case 9:
      return *static_cast<int*>(out) = b.device, kSuccess;
    case 11:
      return *static_cast<uint64_t*>(out) = found->first, kSuccess;
    case 12:
      return *static_cast<size_t*>(out) = b.bytes, kSuccess;
    default:
      return kInvalidValue;
  }
}
int cuPointerSetAttribute(const void*, int attribute, uint64_t address) {
  const std::lock_guard lock(g_mutex);
  return attribute == 6 && block_of(address) != nullptr ? kSuccess : kInvalidValue;
}
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t n, void* stream) {
  const std::lock_guard lock(g_mutex);
  if (g_depth == 0 || stream == nullptr) return kInvalidContext;
  if (says("WEFT_FAKE_CUDA_FAIL", "copy")) return kIllegalAddress;
  char *there = reach(to, n), *here = reach(from, n);
  if (there == nullptr || here == nullptr) return kInvalidValue;
  std::memmove(there, here, n);
  ++g_copies;
  return kSuccess;
}
int cuStreamCreate(void** stream, unsigned) {
  if (g_depth == 0) return kInvalidContext;
  return *stream = std::malloc(1), kSuccess;
}
int cuStreamSynchronize(void* stream) { return stream != nullptr ? kSuccess : kInvalidValue; }
int cuIpcGetMemHandle(Handle* handle, uint64_t address) {
  const std::lock_guard lock(g_mutex);
  const auto* found = block_of(address);
  if (found == nullptr || found->second.kind != Kind::device || found->second.opened) return kInvalidValue;
  if (says("WEFT_FAKE_CUDA_NO_IPC", "1")) return kNotSupported;
  *handle = {};
  handle->process = ::getpid();
  handle->fd = found->second.fd;
  handle->device = found->second.device;
  handle->bytes = found->second.bytes;
  handle->id = found->second.id;
  return kSuccess;
}
int cuIpcOpenMemHandle_v2(uint64_t* out, HandleByValue by_value, unsigned) {
  const std::lock_guard lock(g_mutex);
  Handle handle;
  std::memcpy(&handle, &by_value, sizeof(handle));
  if (g_depth == 0 || handle.process == ::getpid()) return kInvalidContext;
  for (const auto& [address, b] : g_blocks) {
    if (b.opened && b.id == handle.id) return kAlreadyMapped;
  }
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return kMapFailed;
  ++g_opens;
  return map_block(out, fd, handle.bytes, Kind::device, handle.device, true, handle.id);
}
int cuIpcCloseMemHandle(uint64_t address) {
  const std::lock_guard lock(g_mutex);
  const auto it = g_blocks.find(address);
  if (it == g_blocks.end() || !it->second.opened) return kInvalidValue;
  ++g_closes;
  drop(it);
  return kSuccess;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == kIllegalAddress    ? "an illegal memory access was encountered"
          : error == kInvalidContext ? "invalid device context"
          : error == kNotSupported   ? "operation not supported"
                                     : "an error of the fake driver";
  return kSuccess;
}
int cuMemGetHandleForAddressRange(void* out, uint64_t address, size_t n, int type, unsigned long long) {
  const std::lock_guard lock(g_mutex);
  const auto* found = block_of(address);
  if (found == nullptr || found->second.kind != Kind::device || type != 1) return kInvalidValue;
  if (address != found->first || n % 4096 != 0 || n > found->second.bytes) return kInvalidValue;
  ++g_dmabufs;
  return *static_cast<int*>(out) = ::fcntl(found->second.fd, F_DUPFD_CLOEXEC, 0), kSuccess;
}

// ---- what a program would call
int cuMemAlloc_v2(uint64_t* out, size_t n) { return allocate(out, n, Kind::device); }
int cuMemAllocManaged(uint64_t* out, size_t n, unsigned) { return allocate(out, n, Kind::managed); }
int cuMemHostAlloc(void** out, size_t n, unsigned) { return allocate(reinterpret_cast<uint64_t*>(out), n, Kind::host); }
int cuMemFree_v2(uint64_t address) {
  const std::lock_guard lock(g_mutex);
  const auto it = g_blocks.find(address);
  if (it == g_blocks.end()) return kInvalidValue;
  drop(it);
  return kSuccess;
}
int cuMemHostRegister_v2(void* address, size_t n, unsigned flags) {
  const std::lock_guard lock(g_mutex);
  if (g_depth == 0) return kInvalidContext;
  const auto at = reinterpret_cast<uint64_t>(address);
  if (n == 0 || flags != 1 || g_registered.contains(at)) return kInvalidValue;
  g_registered[at] = n;
  return kSuccess;
}
int cuMemHostUnregister(void* address) {
  const std::lock_guard lock(g_mutex);
  if (g_depth == 0) return kInvalidContext;
  return g_registered.erase(reinterpret_cast<uint64_t>(address)) != 0 ? kSuccess : kInvalidValue;
}
int cuMemFreeHost(void* address) { return cuMemFree_v2(reinterpret_cast<uint64_t>(address)); }

// ---- what the tests ask: copies, opens, closes, queries, DMA-bufs; pieces of registered host memory, and their bytes
uint64_t fake_cuda_count(int which) {
  const std::lock_guard lock(g_mutex);
  return which == 0 ? g_copies : which == 1 ? g_opens : which == 2 ? g_closes : which == 3 ? g_queries
         : which == 4 ? g_dmabufs : which == 5 ? g_registered.size() : registered_bytes();
}
}
