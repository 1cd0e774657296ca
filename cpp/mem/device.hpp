// cpp/mem/device.hpp: device memory (FI_HMEM): the interface to a device's runtime, and the note with which peers open
// a region of such memory.
//
// Hardware would reach the device over PCIe. Here the runtime copies: in the initiator's process if the memory is its
// own or was opened through the runtime's IPC (peer-to-peer), otherwise in the owner's engine. Model: as with hardware,
// such a copy has no order with a kernel of the device. A program that needs an order synchronizes its streams before
// it posts, as with a real NIC.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/lock.hpp"
#include "base/status.hpp"

namespace weft::mem {

class Monitor;

constexpr uint32_t kHmemSystem = 0;  // enum fi_hmem_iface
constexpr uint32_t kHmemIfaceCount = 6;

enum class DeviceMemoryKind : uint8_t {
  device,   // on the device: the processor's loads and stores do not reach it
  managed,  // moves between device and host on demand
  host,     // host memory pinned by the device's runtime: loads and stores reach it
};

// A runtime's facts about an address.
struct DeviceMemory {
  uint32_t iface = kHmemSystem;
  DeviceMemoryKind kind = DeviceMemoryKind::device;
  uint64_t device = 0;            // number of the device in this process
  uint64_t base = 0, length = 0;  // the allocation that contains the address
  uint64_t buffer_id = 0;         // differs between successive allocations at the same address
};

// The record of device memory in a region's entry of the memory table: a peer opens the allocation with it.
struct DeviceNote {
  uint64_t device = 0;
  uint64_t base = 0, length = 0;  // the allocation, in the owner's address space
  uint64_t buffer_id = 0;
  uint32_t iface = kHmemSystem;  // system: no note
  uint32_t has_ipc = 0;
  std::array<std::byte, 16> uuid{};  // of the device: device numbers differ between processes
  std::array<std::byte, 64> ipc{};   // the runtime's IPC handle
  uint64_t reserved = 0;
};
static_assert(sizeof(DeviceNote) == 128);

// The run-time library of one device interface, loaded at first use. Any thread may call.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  [[nodiscard]] virtual uint32_t iface() const noexcept = 0;
  [[nodiscard]] virtual uint64_t device_count() const noexcept = 0;
  // The memory at an address; empty if this runtime does not know the address.
  [[nodiscard]] virtual std::optional<DeviceMemory> find(uint64_t address) noexcept = 0;
  // The identity of the allocation at an address, cheaper than find(), for a check at every use. 0: no allocation.
  [[nodiscard]] virtual uint64_t identity(uint64_t address) noexcept = 0;
  // Copies between any two addresses of this process, on devices or host; returns when the bytes have arrived.
  virtual bool copy(void* to, const void* from, size_t length) noexcept = 0;
  // Orders the program's own asynchronous copies into this allocation before ours. Called once per allocation.
  virtual void prepare(uint64_t address) noexcept = 0;
  // Fills uuid, has_ipc and ipc; leaves has_ipc 0 if the runtime cannot share this memory.
  virtual void share(DeviceNote& note) noexcept = 0;
  // Opens the allocation of another process's note in this address space; null if that is not possible.
  virtual std::byte* open(const DeviceNote& note) noexcept = 0;
  virtual void close(std::byte* opened) noexcept = 0;
  // A DMA-buf descriptor of [address, address + length), which the caller closes; -1 with *why.
  virtual int export_dmabuf(uint64_t address, uint64_t length, std::string* why) noexcept = 0;
  // Allocates memory on the first device, or managed memory; 0 with *why.
  virtual uint64_t allocate(uint64_t length, bool managed, std::string* why) noexcept {
    (void)length, (void)managed;
    *why = "Weft allocates no memory by this runtime";
    return 0;
  }
  virtual void release(uint64_t address) noexcept { (void)address; }
  // Page-locks host memory of this process, so that the device's copies from and to it are fast. False: refused, or the
  // runtime has no such call.
  virtual bool register_host(void* memory, size_t length) noexcept {
    (void)memory, (void)length;
    return false;
  }
  virtual void unregister_host(void* memory) noexcept { (void)memory; }
};

class Devices;
// A monitor that checks at every hit of the registration cache whether the allocation is still the same.
std::shared_ptr<Monitor> make_device_monitor(const Devices& devices, uint32_t iface);

// A runtime's library. The library stays loaded, because calls in it may outlive this object.
class RuntimeLibrary {
 public:
  // what, otherwise: parts of *why, such as "the driver's library", "it is no CUDA driver, or one before 11.7".
  RuntimeLibrary(const std::string& path, const char* what, const char* otherwise, std::string* why);
  [[nodiscard]] bool loaded() const noexcept { return handle_ != nullptr; }
  // False, with *why: the function is needed, and the library lacks it.
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

// Loads a runtime; null with *why (library looked for, result, what to do).
std::unique_ptr<DeviceRuntime> load_cuda(const std::string& library, std::string* why);
std::unique_ptr<DeviceRuntime> load_rocr(const std::string& library, std::string* why);
std::unique_ptr<DeviceRuntime> load_ze(const std::string& library, std::string* why);

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
  // False: no runtime is loaded, so this process knows no device memory. One load.
  [[nodiscard]] bool any() const noexcept { return any_.load(std::memory_order_acquire); }
  [[nodiscard]] std::optional<DeviceMemory> find(uint64_t address) const noexcept;
  // One side of a copy; device: it is device memory.
  struct Side {
    const void* at;
    bool device;
  };
  // Copies `length` bytes. Status::device: the runtime refuses, or does not know the device memory of a side. Such
  // memory was freed, and a load or store to it, as to host memory, would end the process.
  Status copy(Side to, Side from, size_t length) const noexcept;
  // Registers host memory with all runtimes that take it. True: one has, and unregister_host() must follow.
  bool register_host(void* memory, size_t length) const noexcept;
  void unregister_host(void* memory) const noexcept;
  // The processor's window into device memory: a mapping of it (base, length) at `at`. Copies of up to near_bytes bytes
  // whose device memory lies in windows are loads and stores, and spare the device's copy engine. buffer_id: the
  // allocation that the window shows; other memory at these addresses is not reached through it.
  void add_window(uint64_t base, uint64_t length, std::byte* at, uint64_t buffer_id);
  bool remove_window(uint64_t base, const std::byte* at) noexcept;
  void set_near_bytes(uint64_t most) noexcept { near_bytes_.store(most, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t near_copies() const noexcept { return near_copies_.load(std::memory_order_relaxed); }
  // Describes memory for the table. shared: peers may open it. A peer's mapping stays with the old allocation if other
  // memory takes its place (under FI_MR_ALLOCATED the application promises that this does not happen).
  [[nodiscard]] DeviceNote note(const DeviceMemory& found, bool shared) const noexcept;

  // FI_HMEM_DISABLE_P2P: off: this process never opens device memory of peers; the owner copies.
  void set_p2p(bool on) noexcept { p2p_.store(on, std::memory_order_relaxed); }
  [[nodiscard]] bool p2p() const noexcept { return p2p_.load(std::memory_order_relaxed); }

  // A peer's memory, open while this object lives.
  struct Opened {
    Opened(DeviceRuntime* r, std::byte* b) noexcept : runtime(r), base(b) {}
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    ~Opened() { runtime->close(base); }
    DeviceRuntime* runtime;
    std::byte* base;
  };
  // The note's allocation, opened now or earlier; null if that is not possible (the owner copies then). `owner`
  // identifies the process.
  std::shared_ptr<Opened> open(const void* owner, const DeviceNote& note);
  void forget(const void* owner);  // the process is gone

 private:
  struct Known {
    const void* owner;
    uint64_t base, length, buffer_id;
    std::shared_ptr<Opened> opened;  // null: opening was tried and failed
  };
  struct Window {
    uint64_t base, length, buffer_id;
    std::byte* at;
  };
  // The address for loads and stores of a side; null: there is no window.
  [[nodiscard]] std::byte* near(const Side& side, size_t length) const noexcept;
  bool copy_near(const Side& to, const Side& from, size_t length) const noexcept;
  static constexpr size_t kOpenedMax = 64;  // at the limit the least recently used is closed

  std::atomic<DeviceRuntime*> runtimes_[kHmemIfaceCount]{};
  std::atomic<bool> any_{false}, p2p_{true};
  RankedMutex<lock_rank::kDevicesOpened> mutex_;
  std::list<Known> known_ GUARDED_BY(mutex_);  // most recently used first
  std::atomic<uint64_t> near_bytes_{0};
  mutable std::atomic<uint64_t> near_copies_{0};
  std::atomic<size_t> window_count_{0};
  mutable RankedShared<lock_rank::kDeviceWindows>
      windows_mutex_;  // held during a copy through one, so that it stays mapped
  std::vector<Window> windows_ GUARDED_BY(windows_mutex_);
};

}  // namespace weft::mem
