// cpp/bind/common.hpp: what the files of the binding share: boxes that own NIC objects, arguments, buffers, errors.
//
// Data-path methods are plain CPython methods (METH_FASTCALL) in the type's slots: they cross from Python into the NIC
// once, parse their arguments without allocating, and keep the GIL unless the copy is long. Everything else is
// nanobind.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/host.hpp"

namespace nb = nanobind;

namespace weft::bind {

// ---- the GIL -------------------------------------------------------------------------------------------------------

// Gives the GIL up for a scope. Python before 3.14 ends a thread that asks for it while the interpreter ends, by
// unwinding its stack: a noexcept or a catch (...) on the way, and nanobind has one around every function, makes that a
// crash. So a thread that comes back too late stays here, as Python 3.14 has it; and what waits for long is a plain
// method, not a nanobind function, because the interpreter may also end while we stand in line. The thread that ends
// the interpreter gives the GIL up as well, in destructors: it was told so when it did.
class ReleasedGil {
 public:
  ReleasedGil() : ends_(ends()), state_(PyEval_SaveThread()) {}
  ~ReleasedGil() noexcept(false) {
    while (!ends_ && ends()) ::pause();
    PyEval_RestoreThread(state_);
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  static bool ends() noexcept {
#if PY_VERSION_HEX >= 0x030d0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
  }
  bool ends_;
  PyThreadState* state_;
};

// From here on the GIL is given away for the copy. Away and back costs a tenth of a 64 KiB copy in cache when nobody
// wants it, and several such copies when somebody does; other threads wait 3 to 13 us for it at most.
constexpr uint64_t kReleaseGilBytes = 131072;

// ---- errors --------------------------------------------------------------------------------------------------------

// Sets the Python error that weft/errors.py makes of (FI_ code, message).
void set_error(int fi_code, const std::string& message);
[[noreturn]] void raise(int fi_code, const std::string& message);  // for nanobind functions

template <typename F>
auto translating(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const Error& e) {
    raise(e.fi_code(), e.what());
  }
}

// ---- the process ---------------------------------------------------------------------------------------------------

// Grows in the child of a fork: whatever was made before is not usable there.
extern int g_fork_generation;
void watch_forks(host::HostNic* nic);
void unwatch_forks(host::HostNic* nic) noexcept;

// A NIC, shared by everything made on it.
struct NicBox {
  explicit NicBox(const host::HostConfig& config) : host(std::make_unique<host::HostNic>(config)) {
    watch_forks(host.get());
  }
  ~NicBox() {
    unwatch_forks(host.get());
    // In a forked child the parent's threads and connections are not ours to end.
    if (fork_generation != g_fork_generation) (void)host.release();
  }
  std::unique_ptr<host::HostNic> host;
  std::vector<struct DomainBox*> domains;  // that live; under the GIL
  int fork_generation = g_fork_generation;
};

struct PyNic {
  std::shared_ptr<NicBox> box;
};
std::shared_ptr<NicBox>& box_of(PyNic& nic);  // raises where it is closed or the parent's

struct MemoryRegionCore;

struct DomainBox {
  DomainBox(std::shared_ptr<NicBox> n, const nic::DomainConfig& config)
      : nic(std::move(n)), domain(std::make_unique<nic::Domain>(&nic->host->nic(), config)) {
    nic->domains.push_back(this);
  }
  ~DomainBox() {
    std::erase(nic->domains, this);
    if (forked()) (void)domain.release();
  }
  [[nodiscard]] bool forked() const noexcept { return nic->fork_generation != g_fork_generation; }
  // Gives the references of finished operations back to Python. With the GIL.
  void drain() {
    if (domain->has_released()) [[unlikely]]
      drain_now();
  }
  void drain_now();

  std::shared_ptr<NicBox> nic;
  std::unique_ptr<nic::Domain> domain;
  bool closed = false;
  bool mr_local = false;                // FI_MR_LOCAL: local buffers need a descriptor
  bool may_overrun = false;             // FI_RM_DISABLED: its completion queues are not guarded against peers
  bool hmem = false;                    // FI_HMEM: buffers may be a device's memory
  bool mr_hmem = false;                 // FI_MR_HMEM: those need a descriptor
  bool mr_allocated = false;            // FI_MR_ALLOCATED: nothing takes the place of registered memory
  bool desc_ignored = false;            // an interface before 1.22, without FI_MR_LOCAL
  int empty_region_errno = 0;           // what a region of 0 bytes is refused with; 0: it is made
  MemoryRegionCore* regions = nullptr;  // the open ones, as a list through them; under the GIL
};

// ---- Python objects
// --------------------------------------------------------------------------------------------------

struct DomainCore {
  std::shared_ptr<DomainBox> box;
  bool mr_plain = false;   // mr_reg may take the short way: no mode of the domain makes a registration special
  uint64_t mr_access = 0;  // all access bits that there are
};
struct AddressVectorCore {
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::AddressVector> av;
  bool closed = false;
};
struct CompletionQueueCore {
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::CompletionQueue> cq;
  std::shared_ptr<host::EventfdNotifier> notifier;
  int format = 0;
  std::atomic<bool> closed = false;
  PollPacer pacer;
  ~CompletionQueueCore();
};
struct CounterCore {
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::Counter> counter;
  std::shared_ptr<host::EventfdNotifier> notifier;
  std::atomic<bool> closed = false;
  PollPacer pacer;
};
struct MemoryRegionCore {
  MemoryRegionCore(std::shared_ptr<DomainBox> b, std::shared_ptr<nic::MemoryRegion> r,
                   std::vector<nb::object> exporters, uint64_t bytes, bool read_only)
      : box(std::move(b)), region(std::move(r)), keep(std::move(exporters)), length(bytes), readonly(read_only) {}
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::MemoryRegion> region;
  std::vector<nb::object> keep;  // the exporters
  uint64_t length = 0;
  bool readonly = false;
  bool bare = false;                  // registered by bare addresses: nobody holds the memory
  uint32_t iface = mem::kHmemSystem;  // whose memory it is
  uint64_t device = 0;
  // What weft.fi.MemoryRegion would keep in its __dict__, which a region that nothing is special about then never
  // makes.
  bool py_closed = false;
  bool special = false;      // close() has more to look at: bindings, sub-MRs
  int site_at = 0;           // instruction of
  nb::object site;           // the code that made the region
  nb::object domain;         // weft.fi.Domain
  PyObject* self = nullptr;  // this region's object, while it is in the domain's list
  MemoryRegionCore *next = nullptr, **link = nullptr;

  void enlist(PyObject* object) noexcept {
    if (link != nullptr || !box) return;
    self = object;
    next = box->regions;
    link = &box->regions;
    if (next != nullptr) next->link = &next;
    box->regions = this;
  }
  void delist() noexcept {
    if (link == nullptr) return;
    *link = next;
    if (next != nullptr) next->link = link;
    link = nullptr;
  }
  ~MemoryRegionCore();
};
struct MrSlice {
  MemoryRegionCore* core = nullptr;
  nb::object owner;  // the MemoryRegionCore's Python object
  std::byte* data = nullptr;
  size_t length = 0;
};
struct CmQueueCore {
  std::shared_ptr<NicBox> box;
  std::shared_ptr<nic::CmQueue> queue;
  std::shared_ptr<host::FdNotifier> notifier;
};
struct EndpointCore {
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::Endpoint> ep;
  bool can_read = false, can_write = false, can_atomic = false;
  uint64_t iov_limit = 0, rma_iov_limit = 0;
  ~EndpointCore();
};

extern PyTypeObject* g_mr_type;
extern PyTypeObject* g_mr_slice_type;

// ---- buffers: the fast side of the one door for arrays
// -----------------------------------------------------------------

struct Buf {
  std::byte* data = nullptr;
  size_t length = 0;
  bool readonly = false;
  PyObject* owner = nullptr;      // borrowed from the argument
  PyObject* keepalive = nullptr;  // owned
  bool has_view = false;
  bool bare = false;                         // (address, length), or of a region of such: nobody holds the memory
  uint32_t iface = mem::kHmemSystem;         // whose memory it is, as far as the object says
  const MemoryRegionCore* region = nullptr;  // of which it is a slice, or all
  Py_buffer view;                            // only where has_view: 80 bytes that the fast path does not clear

  Buf() noexcept {}  // view stays as it is
  Buf(const Buf&) = delete;
  Buf& operator=(const Buf&) = delete;
  ~Buf() { release(); }
  void release() noexcept {
    if (has_view) PyBuffer_Release(&view);
    Py_XDECREF(keepalive);
    has_view = false;
    keepalive = nullptr;
  }
  // Address and length of `obj`; false with a Python error set. length_arg (or null) shortens it.
  bool acquire(PyObject* obj, bool writable, PyObject* length_arg = nullptr);
  // The same, for what the processor itself reads or writes: a device's memory is refused.
  bool acquire_host(PyObject* obj, bool writable);
  // A new reference to something that keeps the memory where it is; null with an error set.
  [[nodiscard]] PyObject* hold() const;
  // Of a region or a slice of one: what keeps the region's memory where it is, borrowed; otherwise null. The region's
  // own reference goes when the region is closed, which may be while an operation is under way.
  [[nodiscard]] PyObject* region_memory() const noexcept {
    return region == nullptr || region->keep.empty() ? nullptr : region->keep[0].ptr();
  }
};

// Whether an acquired buffer is a device's memory, to be copied by its runtime; false with a Python error set where the
// domain was opened without FI_HMEM, or the runtime is missing. Host buffers of such domains cost one test.
bool find_device_slow(DomainBox& box, Buf& buf, const char* method, std::optional<mem::DeviceMemory>* found);
// That a local buffer is there, which nobody keeps where it is: the processor is about to touch it.
bool bare_is_there(const Buf& buf, const char* method, bool writable);
// HOT. writable: it will be written to.
inline bool is_device(DomainBox& box, Buf& buf, const char* method, bool writable, bool* device) {
  if (buf.iface == mem::kHmemSystem && !buf.bare) [[likely]]
    return true;
  std::optional<mem::DeviceMemory> found;
  if ((box.hmem || buf.iface != mem::kHmemSystem) && !find_device_slow(box, buf, method, &found)) return false;
  if (!found && buf.bare && !bare_is_there(buf, method, writable)) return false;
  *device = *device || found.has_value();
  return true;
}

// Keeps a buffer's memory where it is while the GIL is released: another thread may close the buffer's region.
// Everything else is kept by the call's own reference or export.
class KeptMemory {
 public:
  explicit KeptMemory(const Buf& buf) : memory_(buf.region_memory()) { Py_XINCREF(memory_); }
  ~KeptMemory() { Py_XDECREF(memory_); }
  KeptMemory(KeptMemory&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

 private:
  PyObject* memory_;
};

// ---- arguments
// ---------------------------------------------------------------------------------------------------------

// Names of a method's parameters in order; the first `positional` may be given by position.
struct Signature {
  const char* method;
  std::vector<const char*> names;
  size_t positional;
  size_t required;
  std::vector<PyObject*> interned;
};
// HOT. Fills out[] (borrowed, null where absent); false with TypeError set.
bool parse_slow(Signature& s, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** out);

inline bool to_u64(PyObject* o, uint64_t* out) {
  if (o == nullptr) return true;     // keeps the default
  if (PyLong_Check(o)) [[likely]] {  // also the enumerations of weft.flags
    *out = PyLong_AsUnsignedLongLong(o);
  } else {
    PyObject* index = PyNumber_Index(o);
    if (index == nullptr) return false;
    *out = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
  }
  return !(*out == ~uint64_t{0} && PyErr_Occurred());
}

// The error of an argument that is no number from 0 to 2**64 - 1, in place of the one that is set.
void name_bad_number(PyObject* o, const char* method, const char* name);
inline bool to_u64(PyObject* o, uint64_t* out, const char* method, const char* name) {
  if (to_u64(o, out)) [[likely]]
    return true;
  name_bad_number(o, method, name);
  return false;
}

PyObject* none_or(PyObject* o);

// Raises where no domain can be made.
DomainCore make_domain(PyNic& nic, const nic::DomainConfig& config);
// Registers, and makes a MemoryRegionCore in raw memory; false with a Python error set.
bool make_region(MemoryRegionCore* self, const std::shared_ptr<DomainBox>& box, std::span<PyObject* const> buffers,
                 uint64_t access, uint64_t requested_key, bool owned, bool enabled, uint32_t kind = 0,
                 nic::RegionExtra extra = {}, bool unowned = false);

void register_status(nb::module_& m);
void register_errors(nb::module_& m);
void register_buffers(nb::module_& m);
void register_endpoint(nb::module_& m);
void register_tcp(nb::module_& m, nb::class_<PyNic>& nic);
void register_probes(nb::module_& m);
void register_numpy_memory(nb::module_& m);
void register_cache(nb::module_& m);
void register_ucp(nb::module_& m);
void register_window(nb::module_& m);

}  // namespace weft::bind
