// cpp/bind/cache.cpp: the registration cache as a Python type; resolvers and monitors that are Python.
//
// Python code of the application (a resolver, a monitor's subscribe(), valid() and so on) runs here under the GIL,
// never under a lock of the cache or inside a memory hook.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bind/common.hpp"
#include "mem/maps.hpp"

namespace weft::bind {

namespace {

// The result of one look-up. Python holds it until release().
struct CacheRef {
  std::shared_ptr<NicBox> box;
  mem::RegistrationCache::Ref ref;
  ~CacheRef() {
    if (box && box->fork_generation != g_fork_generation) ref.abandon();
  }
};

const mem::RegistrationCache::Ref& ref_of(const CacheRef& r) {
  if (!r.ref) raise(fi_err::kEOPBADSTATE, "the mapping was released");
  return r.ref;
}

template <auto kField>
auto field_of(const CacheRef& r) {
  return (*ref_of(r)).*kField;
}

// weft.fi.MemMonitor. Errors of its unsubscribe() are printed, because the cache has no caller to raise them to.
class PythonMonitor final : public mem::Monitor {
 public:
  PythonMonitor(nb::object monitor, std::string name) : monitor_(std::move(monitor)), name_(std::move(name)) {}
  ~PythonMonitor() override {
    const nb::gil_scoped_acquire gil;
    const Seam seam;
    monitor_.reset();
  }
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] bool available(std::string*) override { return true; }
  bool subscribe(uint64_t begin, uint64_t end, mem::ChangeLog&, std::string* why) override {
    const nb::gil_scoped_acquire gil;
    const Seam seam;
    try {
      monitor_.attr("subscribe")(begin, end - begin);
    } catch (nb::python_error& e) {
      *why = "the memory monitor " + name_ + " refused: " + e.what();
      return false;
    }
    ++subscriptions_;
    return true;
  }
  void unsubscribe(uint64_t begin, uint64_t end, mem::ChangeLog&) noexcept override {
    const nb::gil_scoped_acquire gil;
    const Seam seam;
    --subscriptions_;
    try {
      monitor_.attr("unsubscribe")(begin, end - begin);
    } catch (nb::python_error& e) {
      e.discard_as_unraisable(name_.c_str());
    }
  }
  [[nodiscard]] bool active() noexcept override { return subscriptions_ != 0; }
  [[nodiscard]] bool checks_hits() const noexcept override { return true; }
  [[nodiscard]] bool valid(const mem::CachedMapping& mapping, uint64_t address, uint64_t length) override {
    const nb::gil_scoped_acquire gil;
    const Seam seam;
    try {
      nb::dict d;
      d["address"] = mapping.address;
      d["length"] = mapping.length;
      d["iface"] = mapping.iface;
      d["device"] = mapping.device;
      d["buffer_id"] = mapping.buffer_id;
      d["user"] = mapping.user;
      return nb::cast<bool>(monitor_.attr("_valid")(address, length, d));
    } catch (nb::python_error& e) {
      e.discard_as_unraisable(name_.c_str());
      return false;
    }
  }

 private:
  nb::object monitor_;
  std::string name_;
  std::atomic<int64_t> subscriptions_{0};
};

mem::RegistrationCache& cache_of(PyNic& nic) {
  return box_of(nic)->host->cache();
}

// The NIC's own resolver: /proc/self/maps for system memory, only the address for device memory.
mem::CachedMapping resolve_plainly(uint32_t iface, uint64_t address, uint64_t length) {
  if (iface == mem::kHmemSystem) return mem::describe_system_memory(address, length);
  mem::CachedMapping found;
  found.address = address;
  found.length = length;
  found.host_access = false;
  return found;
}

mem::CachedMapping resolve_in_python(nb::handle resolve, uint64_t address, uint64_t length) {
  const nb::dict said = nb::cast<nb::dict>(resolve(address, length));
  mem::CachedMapping found;
  found.address = nb::cast<uint64_t>(said["address"]);
  found.length = nb::cast<uint64_t>(said["length"]);
  if (said.contains("buffer_id")) found.buffer_id = nb::cast<uint64_t>(said["buffer_id"]);
  if (said.contains("host_access")) found.host_access = nb::cast<uint64_t>(said["host_access"]) != 0;
  if (said.contains("persistent")) found.persistent = nb::cast<uint64_t>(said["persistent"]) != 0;
  if (said.contains("user")) found.user = nb::cast<uint64_t>(said["user"]);
  return found;
}

}  // namespace

void register_cache(Module& m) {
  Class<CacheRef>(m, "CacheRef",
                  "The result of a look-up in the registration cache. The mapping is held until release().")
      .def(
          "__init__",
          [](CacheRef* self, PyNic& nic, uint64_t address, uint64_t length, uint32_t iface, uint64_t device,
             nb::handle resolve) {
            const auto box = box_of(nic);
            new (self) CacheRef{
                box, box->host->cache().search(address, length, iface, device, [&](uint64_t at, uint64_t bytes) {
                  return resolve.is_none() ? resolve_plainly(iface, at, bytes) : resolve_in_python(resolve, at, bytes);
                })};
          },
          nb::arg("nic"), nb::arg("address"), nb::arg("length"), nb::arg("iface") = 0, nb::arg("device") = 0,
          nb::arg("resolve").none() = nb::none(),
          nb::sig("def __init__(self, nic: Nic, address: int, length: int, iface: int = 0, device: int = 0, resolve: "
                  "Callable[[int, int], dict[str, int]] | None = None) -> None"),
          "Looks up the mapping that contains the range: in the cache, or resolved now.\n\n"
          "resolve  called as resolve(address, length) on a miss; returns the fields of the mapping. None: the NIC's "
          "own "
          "resolver.")
      .def_prop_ro("address", &field_of<&mem::CachedMapping::address>, "The first address of the mapping.")
      .def_prop_ro("length", &field_of<&mem::CachedMapping::length>, "Length of the mapping in bytes.")
      .def_prop_ro("iface", &field_of<&mem::CachedMapping::iface>)
      .def_prop_ro("device", &field_of<&mem::CachedMapping::device>)
      .def_prop_ro("buffer_id", &field_of<&mem::CachedMapping::buffer_id>,
                   "Identity of the allocation or file behind the mapping; 0 if there is none.")
      .def_prop_ro("user", &field_of<&mem::CachedMapping::user>,
                   "For the resolver's own use; of a file the offset in the file.")
      .def_prop_ro("host_access", &field_of<&mem::CachedMapping::host_access>,
                   "True if the processor can read the memory.")
      .def_prop_ro("persistent", &field_of<&mem::CachedMapping::persistent>, "True for a shared mapping of a file.")
      .def_prop_ro(
          "cached", [](const CacheRef& r) { return ref_of(r).cached(); }, "True if the mapping is in the cache.")
      .def_prop_ro(
          "stale", [](const CacheRef& r) { return ref_of(r).stale(); },
          "True if the memory has changed since the look-up. Only meaningful if `cached`.")
      .def_prop_ro("released", [](const CacheRef& r) { return !r.ref; })
      .def("release", [](CacheRef& r) {
        if (r.box->fork_generation != g_fork_generation) r.ref.abandon();
        r.ref.reset();
      });

  m.def(
      "cache_notify",
      [](PyNic& nic, uint32_t iface, uint64_t address, uint64_t length) {
        return cache_of(nic).notify(iface, address, length);
      },
      nb::arg("nic"), nb::arg("iface"), nb::arg("address"), nb::arg("length"),
      "Reports that memory has changed. Returns the number of entries removed.");
  m.def(
      "cache_flush", [](PyNic& nic, bool lru_only) { return cache_of(nic).flush(lru_only); }, nb::arg("nic"),
      nb::arg("lru_only"),
      "Removes entries: with lru_only those that nobody holds, otherwise all. Returns the number of entries removed.");
  m.def(
      "cache_set_monitor",
      [](PyNic& nic, uint32_t iface, nb::object monitor, const std::string& name) {
        std::shared_ptr<mem::Monitor> made;
        if (!monitor.is_none()) made = std::make_shared<PythonMonitor>(std::move(monitor), name);
        cache_of(nic).import_monitor(iface, std::move(made));
      },
      nb::arg("nic"), nb::arg("iface"), nb::arg("monitor").none(), nb::arg("name"),
      "Sets the application's monitor of an interface's memory; None: back to the NIC's own monitor, if there is one.");
  m.def(
      "cache_state",
      [](PyNic& nic) {
        const auto box = box_of(nic);
        mem::RegistrationCache& cache = box->host->cache();
        const mem::CacheStatistics counts = cache.statistics();
        const std::shared_ptr<mem::Monitor> monitor = cache.monitor(mem::kHmemSystem);
        std::string why;
        nb::dict d;
        d["hits"] = counts.hits;
        d["misses"] = counts.misses;
        d["evictions"] = counts.evictions;
        d["invalidations"] = counts.invalidations;
        d["uncached"] = counts.uncached;
        d["entries"] = counts.entries;
        d["bytes"] = counts.bytes;
        d["held"] = counts.held;
        d["count_max"] = cache.limits().count_max;
        d["bytes_max"] = cache.limits().bytes_max;
        d["monitor"] = monitor == nullptr ? std::string("disabled") : std::string(monitor->name());
        d["active"] = monitor != nullptr && monitor->active();
        d["available"] = monitor == nullptr || monitor->available(&why);
        d["why"] = why;
        d["reason"] = cache.reason();
        return d;
      },
      nb::arg("nic"), nb::sig("def cache_state(nic: Nic) -> dict[str, Any]"),
      "Returns counts, limits, and the state of the monitor of system memory: its name, whether it is watching,\n"
      "whether it works here, and if not, why.");
  m.def(
      "probe_monitor",
      [](const std::string& name) {
        std::string why;
        const auto monitor = mem::make_system_monitor(name);
        const bool works = monitor != nullptr && monitor->available(&why);
        return std::tuple(std::string(monitor == nullptr ? "disabled" : monitor->name()), works, why);
      },
      nb::arg("name"),
      "Returns (name, whether it works here, why not) of a monitor. The empty name is this machine's default.");
  m.def("first_not_persistent", &mem::first_not_persistent, nb::arg("address"), nb::arg("length"),
        "Returns the first address of the range that is not in a shared mapping of a file; None if all of it is.");
  m.def("first_not_writable", &mem::first_not_writable, nb::arg("address"), nb::arg("length"),
        "Returns the first address of the range that is not mapped for writing; None if all of it is.");
}

}  // namespace weft::bind
