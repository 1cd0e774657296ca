// tests/fakes/ze.cpp: Level Zero without a GPU, for the tests: the functions that Weft calls, over host memory.
// As in cuda.cpp the pointer that programs get is PROT_NONE, and the runtime copies by a second mapping.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

namespace {

struct Properties {
  uint32_t stype;
  void* next;
  uint32_t type;
  uint64_t id, page_size;
};
struct ExportFd {
  uint32_t stype;
  const void* next;
  uint32_t flags;
  int fd;
};
struct Block {
  int kind;  // 1 host, 2 device, 3 shared
  int device;
  int fd;
  uint64_t bytes, id;
  char* shadow;
};
std::mutex g_mutex;
std::map<uint64_t, Block> g_blocks;
uint64_t g_next_id = 1, g_copies = 0, g_exports = 0;
int g_drivers[2], g_devices[2][2], g_contexts[2], g_list;

const std::pair<const uint64_t, Block>* block_of(const void* pointer) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  auto it = g_blocks.upper_bound(address);
  if (it == g_blocks.begin()) return nullptr;
  --it;
  return address - it->first < it->second.bytes ? &*it : nullptr;
}
char* reach(const void* pointer) {
  const auto* found = block_of(pointer);
  if (found == nullptr) return static_cast<char*>(const_cast<void*>(pointer));
  return found->second.shadow + (reinterpret_cast<uint64_t>(pointer) - found->first);
}

}  // namespace

extern "C" {
int zeInit(uint32_t flags) { return flags == 1 ? 0 : 1; }
int zeDriverGet(uint32_t* count, void** out) {
  if (out == nullptr) return *count = 2, 0;
  for (uint32_t i = 0; i < *count && i < 2; ++i) out[i] = &g_drivers[i];
  return 0;
}
int zeDeviceGet(void* driver, uint32_t* count, void** out) {
  const int d = static_cast<int>(static_cast<int*>(driver) - g_drivers);
  if (out == nullptr) return *count = 2, 0;
  for (uint32_t i = 0; i < *count && i < 2; ++i) out[i] = &g_devices[d][i];
  return 0;
}
int zeContextCreate(void* driver, const uint32_t* desc, void** out) {
  if (*desc != 0xd) return 1;
  *out = &g_contexts[static_cast<int*>(driver) - g_drivers];
  return 0;
}
int zeMemGetAllocProperties(void* context, const void* pointer, Properties* out, void** device) {
  const std::lock_guard lock(g_mutex);
  if (out->stype != 0x17) return 1;
  out->type = 0;
  const auto* found = block_of(pointer);
  if (found == nullptr) return 0;
  const Block& block = found->second;
  if (context != &g_contexts[block.device >> 1]) return 0;  // memory of the other driver
  out->type = static_cast<uint32_t>(block.kind);
  out->id = block.id;
  out->page_size = 4096;
  *device = block.kind == 1 ? nullptr : &g_devices[block.device >> 1][block.device & 1];
  auto* fd = static_cast<ExportFd*>(out->next);
  if (fd != nullptr && fd->stype == 0x1a && fd->flags == 2 && block.kind == 2) {
    fd->fd = ::dup(block.fd);
    ++g_exports;
  }
  return 0;
}
int zeMemGetAddressRange(void*, const void* pointer, void** base, size_t* bytes) {
  const std::lock_guard lock(g_mutex);
  const auto* found = block_of(pointer);
  if (found == nullptr) return 1;
  *base = reinterpret_cast<void*>(found->first);
  *bytes = found->second.bytes;
  return 0;
}
int zeCommandListCreateImmediate(void*, void*, const uint32_t* desc, void** out) {
  *out = &g_list;
  return *desc == 0xe && desc[7] == 1 ? 0 : 1;  // word 7: the mode, synchronous
}
int zeCommandListAppendMemoryCopy(void*, void* to, const void* from, size_t n, void*, uint32_t, void*) {
  const std::lock_guard lock(g_mutex);
  ++g_copies;
  std::memmove(reach(to), reach(from), n);
  return 0;
}

// ---- what a program would call, flattened: memory of a kind, of device 0 to 3 (two of each driver)
uint64_t fake_ze_allocate(size_t bytes, int kind, int device) {
  const std::lock_guard lock(g_mutex);
  const uint64_t rounded = (bytes + 4095) / 4096 * 4096;
  const int fd = ::memfd_create("fake-ze", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(rounded)) != 0) return 0;
  void* seen = ::mmap(nullptr, rounded, kind == 2 ? PROT_NONE : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  void* shadow = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const auto address = reinterpret_cast<uint64_t>(seen);
  g_blocks[address] = {kind, device, fd, rounded, g_next_id++, static_cast<char*>(shadow)};
  return address;
}
// The allocation is freed, and another has its addresses.
void fake_ze_replace(uint64_t address) {
  const std::lock_guard lock(g_mutex);
  g_blocks.at(address).id = g_next_id++;
}
// What the loader was asked for so far: copies, exported descriptors.
uint64_t fake_ze_count(int which) {
  const std::lock_guard lock(g_mutex);
  return which == 0 ? g_copies : g_exports;
}
}
