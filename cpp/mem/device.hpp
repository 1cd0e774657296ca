// cpp/mem/device.hpp: memory of devices (FI_HMEM): what the NIC asks of a device's runtime, and what a region of such
// memory tells peers.
//
// Hardware would reach the device over PCIe. Here the runtime copies: in the initiator's process where the memory is
// its own or was opened through the runtime's IPC (peer-to-peer), otherwise in the owner's engine. Model: hardware has
// no order between such a copy and a kernel of the device; neither have we. A program that wants one synchronizes its
// streams before it posts, as with a real NIC.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/status.hpp"

namespace weft::mem {

class Monitor;

constexpr uint32_t kHmemSystem = 0;  // enum fi_hmem_iface
constexpr uint32_t kHmemIfaceCount = 6;

enum class DeviceMemoryKind : uint8_t {
  device,   // the device's own: no load or store of the processor reaches it
  managed,  // moves between device and host on demand
  host,     // the host's, made by the device's runtime (pinned): loads and stores reach it
};

// What lies at an address, as a runtime knows it.
struct DeviceMemory {
  uint32_t iface = kHmemSystem;
  DeviceMemoryKind kind = DeviceMemoryKind::device;
  uint64_t device = 0;            // number of the device in this process
  uint64_t base = 0, length = 0;  // the allocation around the address
  uint64_t buffer_id = 0;         // another allocation at the same address has another
};

// What a region's entry in the memory table says about device memory: how a peer opens it.
struct DeviceNote {
  uint64_t device = 0;
  uint64_t base = 0, length = 0;  // the allocation, in the owner's address space
  uint64_t buffer_id = 0;
  uint32_t iface = kHmemSystem;  // system: no note
  uint32_t has_ipc = 0;
  std::array<std::byte, 16> uuid{};  // of the device: numbers differ between processes
  std::array<std::byte, 64> ipc{};   // the runtime's own handle
  uint64_t reserved = 0;
};
static_assert(sizeof(DeviceNote) == 128);

// One device interface's run-time library, loaded when it is first needed. Any thread may call.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  [[nodiscard]] virtual uint32_t iface() const noexcept = 0;
  [[nodiscard]] virtual uint64_t device_count() const noexcept = 0;
  // What lies at an address; nothing when this runtime does not know it.
  [[nodiscard]] virtual std::optional<DeviceMemory> find(uint64_t address) noexcept = 0;
  // The identity of the allocation at an address, for a look at every use: cheaper than find(). 0: none is there.
  [[nodiscard]] virtual uint64_t identity(uint64_t address) noexcept = 0;
  // Copies between any two places that this process can name, devices or host; returns when the bytes are there.
  virtual bool copy(void* to, const void* from, size_t length) noexcept = 0;
  // Makes asynchronous copies of the program's own into this memory be seen before ours. Once an allocation.
  virtual void prepare(uint64_t address) noexcept = 0;
  // Fills uuid, has_ipc and ipc; leaves has_ipc 0 where the runtime does not share this memory.
  virtual void share(DeviceNote& note) noexcept = 0;
  // The allocation of another process's note, in this address space; null where it cannot be had.
  virtual std::byte* open(const DeviceNote& note) noexcept = 0;
  virtual void close(std::byte* opened) noexcept = 0;
  // A DMA-buf descriptor of [address, address + length), the caller's to close; -1 with *why.
  virtual int export_dmabuf(uint64_t address, uint64_t length, std::string* why) noexcept = 0;
  // Memory of the first device, or memory that moves to it on demand; 0 with *why.
  virtual uint64_t allocate(uint64_t length, bool managed, std::string* why) noexcept {
    (void)length, (void)managed;
    *why = "Weft allocates no memory by this runtime";
    return 0;
  }
  virtual void release(uint64_t address) noexcept { (void)address; }
};

class Devices;
// A monitor that is asked at every hit of the registration cache whether the allocation is still the same one.
std::shared_ptr<Monitor> make_device_monitor(const Devices& devices, uint32_t iface);

// A runtime's library. It stays loaded: calls in it may outlive this object.
class RuntimeLibrary {
 public:
  // what, otherwise: for the reasons. "the driver's library", "it is no CUDA driver, or one before 11.7".
  RuntimeLibrary(const std::string& path, const char* what, const char* otherwise, std::string* why);
  [[nodiscard]] bool loaded() const noexcept { return handle_ != nullptr; }
  // False, with *why: it is needed, and not there.
  template <typename Function>
  bool find(const char* name, Function*& function, bool needed = true) {
    function = reinterpret_cast<Function*>(look_up(name, needed));
    return function != nullptr || !needed;
  }

 private:
  void* look_up(const char* name, bool needed);
  std::string path_;
  const char* otherwise_;
  std::string* why_;
  void* handle_;
};

// Loads a runtime; null with *why (what was looked for, what was found, what to do).
std::unique_ptr<DeviceRuntime> load_cuda(const std::string& library, std::string* why);
std::unique_ptr<DeviceRuntime> load_rocr(const std::string& library, std::string* why);

// The runtimes of this process, and the memory of peers that they have opened.
class Devices {
 public:
  Devices() = default;
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  void add(std::unique_ptr<DeviceRuntime> runtime);
  [[nodiscard]] DeviceRuntime* runtime(uint32_t iface) const noexcept {
    return iface < kHmemIfaceCount ? runtimes_[iface].load(std::memory_order_acquire) : nullptr;
  }
  // False: no runtime is loaded, and no memory is a device's as far as this process can know. One load.
  [[nodiscard]] bool any() const noexcept { return any_.load(std::memory_order_acquire); }
  [[nodiscard]] std::optional<DeviceMemory> find(uint64_t address) const noexcept;
  // One side of a copy, and whether it is a device's.
  struct Side {
    const void* at;
    bool device;
  };
  // Copies `length` bytes. Status::device where the runtime refuses, or knows no memory at a side that is a device's:
  // it was freed, and to take it for the host's would end the process.
  Status copy(Side to, Side from, size_t length) const noexcept;
  // Describes memory for the table. shared: peers may open it; what they have open does not follow when other memory
  // takes the place of this (FI_MR_ALLOCATED promises that none does).
  [[nodiscard]] DeviceNote note(const DeviceMemory& found, bool shared) const noexcept;

  // FI_HMEM_DISABLE_P2P: memory of a peer's device is never opened here; its owner copies.
  void set_p2p(bool on) noexcept { p2p_.store(on, std::memory_order_relaxed); }
  [[nodiscard]] bool p2p() const noexcept { return p2p_.load(std::memory_order_relaxed); }

  // Memory of a peer that stays open as long as this object lives.
  struct Opened {
    Opened(DeviceRuntime* r, std::byte* b) noexcept : runtime(r), base(b) {}
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    ~Opened() { runtime->close(base); }
    DeviceRuntime* runtime;
    std::byte* base;
  };
  // The note's allocation, opened now or before; null where that cannot be done (then the owner copies). `owner`
  // tells processes apart.
  std::shared_ptr<Opened> open(const void* owner, const DeviceNote& note);
  void forget(const void* owner);  // its process is gone

 private:
  struct Known {
    const void* owner;
    uint64_t base, length, buffer_id;
    std::shared_ptr<Opened> opened;  // null: it was tried, and is not to be had
  };
  static constexpr size_t kOpenedMax = 64;  // the longest unused is closed for a new one

  std::atomic<DeviceRuntime*> runtimes_[kHmemIfaceCount]{};
  std::atomic<bool> any_{false}, p2p_{true};
  std::mutex mutex_;        // of known_
  std::list<Known> known_;  // most recently used first
};

}  // namespace weft::mem
