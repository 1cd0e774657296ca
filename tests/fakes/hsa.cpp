// tests/fakes/hsa.cpp: an HSA runtime (ROCr) without a GPU, for the tests: the functions that Weft calls, over host memory.
// As in cuda.cpp the pointer that programs get is PROT_NONE, and the runtime copies by a second mapping.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Agent {
  uint64_t handle;
};
constexpr Agent kCpu{1}, kGpus[] = {{20}, {21}};
struct Info {
  uint32_t size, type;
  void *agent_base, *host_base;
  size_t bytes;
  void* user_data;
  Agent owner;
  uint32_t global_flags;
};
struct Ipc {
  int32_t process, fd;
  uint64_t bytes, id, rest;
};
static_assert(sizeof(Ipc) == 32);
struct Block {
  int gpu;  // -1: pinned host memory
  int fd;
  uint64_t bytes, id;
  char* shadow;
};
std::mutex g_mutex;
std::map<uint64_t, Block> g_blocks;
uint64_t g_next_id = 1, g_copies = 0, g_dmabufs = 0;

const std::pair<const uint64_t, Block>* block_of(uint64_t address) {
  auto it = g_blocks.upper_bound(address);
  if (it == g_blocks.begin()) return nullptr;
  --it;
  return address - it->first < it->second.bytes ? &*it : nullptr;
}
char* reach(uint64_t address) {
  const auto* found = block_of(address);
  return found == nullptr ? reinterpret_cast<char*>(address) : found->second.shadow + (address - found->first);
}
uint64_t map_block(int gpu, int fd, uint64_t bytes, uint64_t id) {
  void* seen = ::mmap(nullptr, bytes, gpu >= 0 ? PROT_NONE : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  void* shadow = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const auto address = reinterpret_cast<uint64_t>(seen);
  g_blocks[address] = {gpu, fd, bytes, id, static_cast<char*>(shadow)};
  return address;
}

}  // namespace

extern "C" {
int hsa_init() { return 0; }
int hsa_iterate_agents(int (*visit)(Agent, void*), void* data) {
  visit(kCpu, data);
  for (const Agent gpu : kGpus) visit(gpu, data);
  return 0;
}
int hsa_agent_get_info(Agent agent, int what, void* out) {
  if (what != 17) return 1;
  return *static_cast<uint32_t*>(out) = agent.handle == kCpu.handle ? 0 : 1, 0;
}
int hsa_amd_pointer_info(const void* pointer, Info* info, void*, void*, void*) {
  const std::lock_guard lock(g_mutex);
  const auto* found = block_of(reinterpret_cast<uint64_t>(pointer));
  info->type = found == nullptr ? 0 : 1;
  if (found == nullptr) return 0;
  info->agent_base = info->host_base = reinterpret_cast<void*>(found->first);
  info->bytes = found->second.bytes;
  info->owner = found->second.gpu < 0 ? kCpu : kGpus[found->second.gpu];
  return 0;
}
int hsa_memory_copy(void* to, const void* from, size_t n) {
  const std::lock_guard lock(g_mutex);
  ++g_copies;
  std::memmove(reach(reinterpret_cast<uint64_t>(to)), reach(reinterpret_cast<uint64_t>(from)), n);
  return 0;
}
int hsa_amd_ipc_memory_create(void* base, size_t bytes, Ipc* handle) {
  const std::lock_guard lock(g_mutex);
  const auto* found = block_of(reinterpret_cast<uint64_t>(base));
  if (found == nullptr || found->second.gpu < 0 || bytes > found->second.bytes) return 1;
  *handle = {::getpid(), found->second.fd, found->second.bytes, found->second.id, 0};
  return 0;
}
int hsa_amd_ipc_memory_attach(const Ipc* handle, size_t, uint32_t, const Agent*, void** out) {
  const std::lock_guard lock(g_mutex);
  const std::string path = "/proc/" + std::to_string(handle->process) + "/fd/" + std::to_string(handle->fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return 1;
  *out = reinterpret_cast<void*>(map_block(0, fd, handle->bytes, handle->id));
  return 0;
}
int hsa_amd_ipc_memory_detach(void* pointer) {
  const std::lock_guard lock(g_mutex);
  return g_blocks.erase(reinterpret_cast<uint64_t>(pointer)) == 1 ? 0 : 1;
}

int hsa_amd_portable_export_dmabuf(const void* pointer, size_t bytes, int* fd, uint64_t* offset) {
  const std::lock_guard lock(g_mutex);
  const auto address = reinterpret_cast<uint64_t>(pointer);
  const auto* found = block_of(address);
  if (found == nullptr || found->second.gpu < 0 || address + bytes > found->first + found->second.bytes) return 1;
  ++g_dmabufs;
  *offset = address - found->first;
  return (*fd = ::fcntl(found->second.fd, F_DUPFD_CLOEXEC, 0)) < 0 ? 1 : 0;
}

// ---- what the tests ask: copies, DMA-bufs
uint64_t fake_hsa_count(int which) {
  const std::lock_guard lock(g_mutex);
  return which == 0 ? g_copies : g_dmabufs;
}

// ---- what a program would call, flattened: memory of a GPU, or pinned (gpu -1)
uint64_t fake_hsa_allocate(size_t bytes, int gpu) {
  const std::lock_guard lock(g_mutex);
  const uint64_t rounded = (bytes + 4095) / 4096 * 4096;
  const int fd = ::memfd_create("fake-hsa", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(rounded)) != 0) return 0;
  return map_block(gpu, fd, rounded, g_next_id++);
}
}
