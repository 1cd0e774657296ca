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
  [[nodiscard]] std::string_view name() const noexcept override { return iface_ == 1 ? "cuda" : "rocr"; }
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
  const std::lock_guard lock(mutex_);
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

void Devices::forget(const void* owner) {
  const std::lock_guard lock(mutex_);
  known_.remove_if([&](const Known& k) { return k.owner == owner; });
}

}  // namespace weft::mem
