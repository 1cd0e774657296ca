// cpp/bind/cache.cpp: the registration cache as a Python type; resolvers and monitors that are Python.
//
// Python code of the application (a resolver, a monitor's subscribe(), valid() and so on) runs here under the GIL,
// never under a lock of the cache or inside a memory hook.
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
      WEFT_PUT(d, mapping, address, length, iface, device, buffer_id, user);
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
      .about(
          "Looks up the mapping that contains the range: in the cache, or resolved now.\n\n"
          "resolve  called as resolve(address, length) on a miss; returns the fields of the mapping. None: the NIC's "
          "own "
          "resolver.")
      .def<
          "__init__(self, nic: Nic, address: int, length: int, iface: int = 0, device: int = 0, resolve: "
          "Callable[[int, int], dict[str, int]] | None = None) -> None">(
          [](CacheRef* self, PyNic& nic, uint64_t address, uint64_t length, uint32_t iface, uint64_t device,
             nb::handle resolve) {
            const auto box = box_of(nic);
            new (self) CacheRef{
                box, box->host->cache().search(address, length, iface, device, [&](uint64_t at, uint64_t bytes) {
                  return resolve.is_none() ? resolve_plainly(iface, at, bytes) : resolve_in_python(resolve, at, bytes);
                })};
          })
      .about("The first address of the mapping.")
      .def_prop<"address">(&field_of<&mem::CachedMapping::address>)
      .about("Length of the mapping in bytes.")
      .def_prop<"length">(&field_of<&mem::CachedMapping::length>)
      .def_prop<"iface">(&field_of<&mem::CachedMapping::iface>)
      .def_prop<"device">(&field_of<&mem::CachedMapping::device>)
      .about("Identity of the allocation or file behind the mapping; 0 if there is none.")
      .def_prop<"buffer_id">(&field_of<&mem::CachedMapping::buffer_id>)
      .about("For the resolver's own use; of a file the offset in the file.")
      .def_prop<"user">(&field_of<&mem::CachedMapping::user>)
      .about("True if the processor can read the memory.")
      .def_prop<"host_access">(&field_of<&mem::CachedMapping::host_access>)
      .about("True for a shared mapping of a file.")
      .def_prop<"persistent">(&field_of<&mem::CachedMapping::persistent>)
      .about("True if the mapping is in the cache.")
      .def_prop<"cached">([](const CacheRef& r) { return ref_of(r).cached(); })
      .about("True if the memory has changed since the look-up. Only meaningful if `cached`.")
      .def_prop<"stale">([](const CacheRef& r) { return ref_of(r).stale(); })
      .def_prop<"released">([](const CacheRef& r) { return !r.ref; })
      .def<"release">([](CacheRef& r) {
        if (r.box->fork_generation != g_fork_generation) r.ref.abandon();
        r.ref.reset();
      });

  m.about("Reports that memory has changed. Returns the number of entries removed.")
      .def<"cache_notify(nic, iface, address, length)">(
          [](PyNic& nic, uint32_t iface, uint64_t address, uint64_t length) {
            return cache_of(nic).notify(iface, address, length);
          });
  m.about(
       "Removes entries: with lru_only those that nobody holds, otherwise all. Returns the number of entries removed.")
      .def<"cache_flush(nic, lru_only)">([](PyNic& nic, bool lru_only) { return cache_of(nic).flush(lru_only); });
  m.about(
       "Sets the application's monitor of an interface's memory; None: back to the NIC's own monitor, if there is one.")
      .def<"cache_set_monitor(nic, iface, monitor?, name)">(
          [](PyNic& nic, uint32_t iface, nb::object monitor, const std::string& name) {
            std::shared_ptr<mem::Monitor> made;
            if (!monitor.is_none()) made = std::make_shared<PythonMonitor>(std::move(monitor), name);
            cache_of(nic).import_monitor(iface, std::move(made));
          });
  m.about(
       "Returns counts, limits, and the state of the monitor of system memory: its name, whether it is watching,\n"
       "whether it works here, and if not, why.")
      .def<"cache_state(nic: Nic) -> dict[str, Any]">([](PyNic& nic) {
        const auto box = box_of(nic);
        mem::RegistrationCache& cache = box->host->cache();
        const mem::CacheStatistics counts = cache.statistics();
        const std::shared_ptr<mem::Monitor> monitor = cache.monitor(mem::kHmemSystem);
        std::string why;
        nb::dict d;
        WEFT_PUT(d, counts, hits, misses, evictions, invalidations, uncached, entries, bytes, held);
        WEFT_PUT(d, cache.limits(), count_max, bytes_max);
        d["monitor"] = monitor == nullptr ? std::string("disabled") : std::string(monitor->name());
        d["active"] = monitor != nullptr && monitor->active();
        d["available"] = monitor == nullptr || monitor->available(&why);
        d["why"] = why;
        d["reason"] = cache.reason();
        return d;
      });
  m.about("Returns (name, whether it works here, why not) of a monitor. The empty name is this machine's default.")
      .def<"probe_monitor(name)">([](const std::string& name) {
        std::string why;
        const auto monitor = mem::make_system_monitor(name);
        const bool works = monitor != nullptr && monitor->available(&why);
        return std::tuple(std::string(monitor == nullptr ? "disabled" : monitor->name()), works, why);
      });
  m.about("Returns the first address of the range that is not in a shared mapping of a file; None if all of it is.")
      .def<"first_not_persistent(address, length)">(&mem::first_not_persistent);
  m.about("Returns the first address of the range that is not mapped for writing; None if all of it is.")
      .def<"first_not_writable(address, length)">(&mem::first_not_writable);
}

}  // namespace weft::bind
