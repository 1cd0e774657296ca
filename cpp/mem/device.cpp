// cpp/mem/device.cpp: see device.hpp.
#include "mem/device.hpp"

#include <dlfcn.h>

#include <algorithm>

#include "mem/cache.hpp"
#include "mem/guard.hpp"

namespace weft::mem {

namespace {

class DeviceMonitor final : public Monitor {
 public:
  DeviceMonitor(const Devices& devices, uint32_t iface) : devices_(devices), iface_(iface) {}
  [[nodiscard]] std::string_view name() const noexcept override {
    return iface_ == 1 ? "cuda" : iface_ == 2 ? "rocr" : "ze";
  }
  [[nodiscard]] bool available(std::string*) override { return true; }
  bool subscribe(uint64_t, uint64_t, ChangeLog&, std::string*) override { return true; }
  void unsubscribe(uint64_t, uint64_t, ChangeLog&) noexcept override {}
  [[nodiscard]] bool active() noexcept override { return devices_.runtime(iface_) != nullptr; }
  [[nodiscard]] bool checks_hits() const noexcept override { return true; }
  [[nodiscard]] bool valid(const CachedMapping& mapping, uint64_t address, uint64_t) override {
    DeviceRuntime* runtime = devices_.runtime(iface_);
    return runtime != nullptr && runtime->identity(address) == mapping.buffer_id;
  }

 private:
  const Devices& devices_;
  uint32_t iface_;
};

}  // namespace

std::shared_ptr<Monitor> make_device_monitor(const Devices& devices, uint32_t iface) {
  return std::make_shared<DeviceMonitor>(devices, iface);
}

RuntimeLibrary::RuntimeLibrary(const std::string& path, const char* what, const char* otherwise, std::string* why)
    : path_(path), otherwise_(otherwise), why_(why), handle_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* error = ::dlerror();
  *why_ = std::string(what) + " could not be loaded: " + (error != nullptr ? error : path_);
}

void* RuntimeLibrary::look_up(const char* name, bool needed) {
  void* found = ::dlsym(handle_, name);
  if (found == nullptr && needed) *why_ = path_ + " has no " + name + ": " + otherwise_;
  return found;
}

Devices::~Devices() {
  known_.clear();
  for (auto& runtime : runtimes_) delete runtime.exchange(nullptr);
}

void Devices::add(std::unique_ptr<DeviceRuntime> runtime) {
  const uint32_t iface = runtime->iface();
  DeviceRuntime* none = nullptr;
  if (runtimes_[iface].compare_exchange_strong(none, runtime.get(), std::memory_order_acq_rel)) {
    (void)runtime.release();
    any_.store(true, std::memory_order_release);
  }
}

std::optional<DeviceMemory> Devices::find(uint64_t address) const noexcept {
  for (const auto& slot : runtimes_) {
    DeviceRuntime* runtime = slot.load(std::memory_order_acquire);
    if (runtime == nullptr) continue;
    if (const auto found = runtime->find(address)) return found;
  }
  return std::nullopt;
}

Status Devices::copy(Side to, Side from, size_t length) const noexcept {
  if (length == 0) return Status::ok;
  if (!to.device && !from.device) {
    auto* const there = static_cast<std::byte*>(const_cast<void*>(to.at));
    return copy_guarded(there, static_cast<const std::byte*>(from.at), length) ? Status::ok : Status::fault;
  }
  if (window_count_.load(std::memory_order_acquire) != 0 && length <= near_bytes_.load(std::memory_order_relaxed) &&
      copy_near(to, from, length)) {
    return Status::ok;
  }
  DeviceRuntime* chosen = nullptr;
  for (const Side& side : {from, to}) {
    if (!side.device) continue;
    chosen = nullptr;
    for (const auto& slot : runtimes_) {
      DeviceRuntime* runtime = slot.load(std::memory_order_acquire);
      if (runtime != nullptr && runtime->identity(reinterpret_cast<uint64_t>(side.at)) != 0) chosen = runtime;
    }
    if (chosen == nullptr) return Status::device;
  }
  return chosen->copy(const_cast<void*>(to.at), from.at, length) ? Status::ok : Status::device;
}

void Devices::add_window(uint64_t base, uint64_t length, std::byte* at, uint64_t buffer_id) {
  const Guard lock(windows_mutex_);
  windows_.push_back({base, length, buffer_id, at});
  window_count_.store(windows_.size(), std::memory_order_release);
}

bool Devices::remove_window(uint64_t base, const std::byte* at) noexcept {
  const Guard lock(windows_mutex_);
  const size_t gone = std::erase_if(windows_, [&](const Window& w) { return w.base == base && w.at == at; });
  window_count_.store(windows_.size(), std::memory_order_release);
  return gone != 0;
}

std::byte* Devices::near(const Side& side, size_t length) const noexcept {
  windows_mutex_.assert_held();
  const auto address = reinterpret_cast<uint64_t>(side.at);
  if (!side.device) return reinterpret_cast<std::byte*>(address);
  for (const Window& w : windows_) {
    const uint64_t offset = address - w.base;
    if (offset >= w.length || length > w.length - offset) continue;
    const auto found = find(address);
    return found && found->buffer_id == w.buffer_id ? w.at + offset : nullptr;
  }
  return nullptr;
}

bool Devices::copy_near(const Side& to, const Side& from, size_t length) const noexcept {
  const SharedGuard lock(windows_mutex_);
  std::byte* const there = near(to, length);
  const std::byte* const here = near(from, length);
  if (there == nullptr || here == nullptr || !copy_guarded(there, here, length)) return false;
  near_copies_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

DeviceNote Devices::note(const DeviceMemory& found, bool shared) const noexcept {
  DeviceNote note;
  note.device = found.device;
  note.base = found.base;
  note.length = found.length;
  note.buffer_id = found.buffer_id;
  note.iface = found.iface;
  if (DeviceRuntime* r = runtime(found.iface)) {
    r->prepare(found.base);
    if (shared && found.kind == DeviceMemoryKind::device && p2p()) r->share(note);
  }
  return note;
}

std::shared_ptr<Devices::Opened> Devices::open(const void* owner, const DeviceNote& note) {
  if (note.has_ipc == 0 || !p2p()) return nullptr;
  DeviceRuntime* const r = runtime(note.iface);
  if (r == nullptr) return nullptr;
  const Guard lock(mutex_);
  const auto same = std::ranges::find_if(
      known_, [&](const Known& k) { return k.owner == owner && k.base == note.base && k.buffer_id == note.buffer_id; });
  if (same != known_.end()) {
    known_.splice(known_.begin(), known_, same);
    return same->opened;
  }
  // An older allocation at the same addresses: close its mapping before opening the new one.
  known_.remove_if([&](const Known& k) {
    return k.owner == owner && k.base < note.base + note.length && note.base < k.base + k.length;
  });
  if (known_.size() >= kOpenedMax) known_.pop_back();
  std::byte* base = r->open(note);
  known_.push_front(
      {owner, note.base, note.length, note.buffer_id, base == nullptr ? nullptr : std::make_shared<Opened>(r, base)});
  return known_.front().opened;
}

bool Devices::register_host(void* memory, size_t length) const noexcept {
  bool taken = false;
  for (const auto& known : runtimes_) {
    DeviceRuntime* const runtime = known.load(std::memory_order_acquire);
    if (runtime != nullptr && runtime->register_host(memory, length)) taken = true;
  }
  return taken;
}

void Devices::unregister_host(void* memory) const noexcept {
  for (const auto& known : runtimes_) {
    if (DeviceRuntime* const runtime = known.load(std::memory_order_acquire); runtime != nullptr)
      runtime->unregister_host(memory);
  }
}

void Devices::forget(const void* owner) {
  const Guard lock(mutex_);
  known_.remove_if([&](const Known& k) { return k.owner == owner; });
}

}  // namespace weft::mem
