// cpp/bind/common.hpp: shared by the files of the binding: boxes that own NIC objects, arguments, buffers, errors.
//
// Data-path methods are plain CPython methods (METH_FASTCALL) in the type's slots: they cross from Python into the NIC
// once, parse their arguments without allocating, and keep the GIL unless the copy is long. All other methods use
// nanobind.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>
#if PY_VERSION_HEX < 0x030b0000
#include <longintrepr.h>
#endif

#include <algorithm>
#include <atomic>
#include <cassert>
#include <concepts>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind/seam.hpp"
#include "call/call.hpp"
#include "call/quota.hpp"
#include "host/host.hpp"
#include "host/pacer.hpp"

namespace nb = nanobind;

namespace weft::bind {

// ---- the GIL -------------------------------------------------------------------------------------------------------

inline bool interpreter_ends() noexcept {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Releases the GIL for a scope. While the interpreter shuts down, Python before 3.14 ends a thread that asks for the
// GIL by unwinding its stack. That would run destructors, which drop Python objects, without the GIL, and end the
// process at a noexcept or catch (...) frame. So the thread sleeps here until the process ends, as in Python 3.14.
class ReleasedGil {
 public:
  ReleasedGil() : state_((assert(PyGILState_Check() && "the caller has the GIL"), PyEval_SaveThread())) {}
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // the unwinding, which nothing else can be
      for (;;) ::pause();
    }
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

// Copies of at least this size release the GIL. Releasing and taking it costs a tenth of a 64 KiB copy in cache if no
// other thread wants it, and several such copies if one does. Shorter copies delay other threads by 3 to 13 us.
constexpr uint64_t kReleaseGilBytes = 131072;

// ---- errors --------------------------------------------------------------------------------------------------------

// What a function of the binding returns after an error was set: false, or null.
struct Failed {
  template <std::same_as<bool> B>
  operator B() const noexcept {  // NOLINT: implicit, as below
    return false;
  }
  template <typename T>
  operator T*() const noexcept {
    return nullptr;
  }
};

// A part of a message: a text, or a number.
struct Part {
  template <typename T>
  Part(const T& value) {  // NOLINT: implicit
    if constexpr (std::integral<T>) {
      text = std::to_string(value);
    } else {
      text = value;
    }
  }
  std::string text;
};

// Sets a TypeError, as PyErr_Format() does.
template <typename... Values>
[[gnu::cold]] Failed type_error(const char* format, Values... values) {
  PyErr_Format(PyExc_TypeError, format, values...);
  return {};
}
// Sets the Python exception that weft.errors makes from (FI_ code, message). The message is the parts in a row.
Failed set_error(int fi_code, std::span<const Part> parts);
template <typename... Parts>
[[gnu::cold]] Failed set_error(int fi_code, const Parts&... parts) {
  const Part all[]{parts...};
  return set_error(fi_code, std::span<const Part>(all));
}
// The same for nanobind functions.
template <typename... Parts>
[[noreturn, gnu::cold]] void raise(int fi_code, const Parts&... parts) {
  set_error(fi_code, parts...);
  throw nb::python_error();
}

// ---- the process ---------------------------------------------------------------------------------------------------

// Incremented in the child of a fork, where objects made before the fork are not usable.
extern int g_fork_generation;
void count_forks();  // from now on
// The numbers of NICs of other hosts: one table for the process, because addresses are parsed before there is a NIC.
const std::shared_ptr<link::Routes>& routes() noexcept;
void watch_forks(host::HostNic* nic);
void unwatch_forks(host::HostNic* nic) noexcept;

// A NIC, shared by all objects made on it.
struct NicBox {
  explicit NicBox(const host::HostConfig& config) : host(std::make_unique<host::HostNic>(config)) {
    watch_forks(host.get());
  }
  ~NicBox() {
    unwatch_forks(host.get());
    // A forked child must not end the parent's threads and connections.
    if (fork_generation != g_fork_generation) (void)host.release();
  }
  std::unique_ptr<host::HostNic> host;
  std::vector<struct DomainBox*> domains;  // the open domains; guarded by the GIL
  int fork_generation = g_fork_generation;
};

struct PyNic {
  std::shared_ptr<NicBox> box;
};
std::shared_ptr<NicBox>& box_of(PyNic& nic);  // raises if the NIC is closed or belongs to the parent process

struct MemoryRegionCore;
struct RegionTakes;

// What mr_reg, bind and enable do without Python for ordinary regions; takes: the resources that a region takes.
struct RegionRules : nic::RegionRules {
  RegionTakes* takes = nullptr;
  nb::object takes_object;
};

struct DomainBox {
  DomainBox(std::shared_ptr<NicBox> n, const nic::DomainConfig& config)
      : nic(std::move(n)),
        domain(std::make_unique<nic::Domain>(&nic->host->nic(), config)),
        config(domain->config()),
        rules{config.regions, nullptr, {}} {
    nic->domains.push_back(this);
  }
  ~DomainBox() {
    const Seam seam;
    std::erase(nic->domains, this);
    if (forked()) (void)domain.release();
  }
  [[nodiscard]] bool forked() const noexcept { return nic->fork_generation != g_fork_generation; }
  // Drops the references of finished operations. Requires the GIL.
  void drain() {
    if (domain->has_released()) [[unlikely]]
      drain_now();
  }
  void drain_now();
  // Calls on_news; true if the result is true. Requires the GIL; keeps an error that is set.
  bool tell(uint32_t pid, const char* what);

  std::shared_ptr<NicBox> nic;
  std::unique_ptr<nic::Domain> domain;
  const nic::DomainConfig& config;
  std::vector<uint64_t> released;  // the memory of drain_now()
  bool closed = false;
  nb::object on_news;                   // called with the pid of an endpoint and the name of what it tells
  RegionRules rules;                    // how regions are made, bound and enabled without Python
  MemoryRegionCore* regions = nullptr;  // intrusive list of the open regions; guarded by the GIL
};

// ---- Python objects ------------------------------------------------------------------------------------------------

struct DomainCore {
  std::shared_ptr<DomainBox> box;
};
struct AddressVectorCore {
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::AddressVector> av;
  bool closed = false;
};
struct OfiCq;
struct OfiCntr;  // ofi.hpp
struct CompletionQueueCore {
  std::shared_ptr<OfiCq> lib;  // of a real libfabric: then the members below are empty, but for `format`
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::CompletionQueue> cq;
  std::shared_ptr<host::EventfdNotifier> notifier;
  int format = 0;
  std::atomic<bool> closed = false;
  host::PollPacer pacer{};
  ~CompletionQueueCore();
};
struct CounterCore {
  std::shared_ptr<OfiCntr> lib;  // of a real libfabric: then the members below are empty
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::Counter> counter;
  std::shared_ptr<host::EventfdNotifier> notifier;
  std::atomic<bool> closed = false;
  host::PollPacer pacer{};
  int value_errno = 0, errors_errno = 0, threshold_errno = 0;  // the codes that refuse numbers above the limits
  nb::object written_to;                                       // the client's write-back buffer
  ~CounterCore();
};
struct MappingCore {
  ~MappingCore();
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::MemoryRegion> region;
  uint64_t address, length;
};

// References to the exporters of a region's memory: mostly one.
class Kept {
 public:
  void push_back(nb::object object) {
    if (!first_.is_valid()) {
      first_ = std::move(object);
      return;
    }
    if (rest_ == nullptr) rest_ = std::make_unique<std::vector<nb::object>>();
    rest_->push_back(std::move(object));
  }
  [[nodiscard]] PyObject* first() const noexcept { return first_.ptr(); }  // borrowed, or null
  template <typename Visit>
  void each(Visit&& visit) const {
    if (first_.is_valid()) visit(first_);
    if (rest_ != nullptr) {
      for (const nb::object& object : *rest_) visit(object);
    }
  }
  void clear() noexcept {
    const Kept dropped = std::move(*this);  // freeing may run Python code that looks at the region
    rest_ = nullptr;
  }

 private:
  nb::object first_;
  std::unique_ptr<std::vector<nb::object>> rest_;
};

// There may be millions of regions: members that few need are in the Python object's __dict__ or MemoryRegion::Rare.
struct MemoryRegionCore {
  static constexpr uint32_t kNoNumber = 0xffffffff;
  using Took = call::RegionQuota::Took;
  MemoryRegionCore(std::shared_ptr<DomainBox> b, std::shared_ptr<nic::MemoryRegion> r, Kept exporters, uint64_t bytes,
                   bool read_only)
      : box(std::move(b)), region(std::move(r)), keep(std::move(exporters)), length(bytes), readonly(read_only) {}
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::MemoryRegion> region;
  Kept keep;
  uint64_t length = 0;
  uint64_t device = 0;
  uint32_t iface = mem::kHmemSystem;  // the memory's interface
  // Attributes of weft.fi.MemoryRegion, stored here so that an ordinary region never creates its __dict__.
  int site_at = 0;              // instruction in `site`
  uint32_t number = kNoNumber;  // of RegionTakes
  Took took = Took::nothing;    // of RegionTakes
  bool mapped = false;          // of RegionTakes: counted in its place
  bool readonly = false;
  bool bare = false;    // registered by (address, length): no object keeps the memory alive
  bool light = false;   // its object was made by new_region(): nanobind's tables do not know it
  bool staged = false;  // registered by mr_reg itself, on a domain whose regions are bound and enabled
  bool fixed = false;   // enable() was called: no further bindings
  bool py_closed = false;
  bool special = false;      // close() must check bindings and sub-MRs
  nb::object site;           // the code that made the region
  nb::object domain;         // weft.fi.Domain
  nb::object bound;          // the endpoint that it is bound to, or a tuple of endpoints and counters
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
  // Gives back the region's resources of RegionTakes. Requires the GIL.
  void give_back();
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
// A handle of an endpoint: the endpoint's own, or an alias. The members from `goes` on are the handle's, not the
// endpoint's.
struct EndpointCore {
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::Endpoint> ep;
  uint64_t goes = ~uint64_t{0};  // bit_of() each call that goes on at once; other calls go to _asked first
  uint64_t lane = 0;             // of an alias: nic::flag::kLane bits of its operations
  uint64_t one_sided = 0;        // as lane, with the policy's call_flags: of transfers and atomics
  nic::CallFlags flags{};        // by nic::FlagCall: the flags of calls without a flags argument
  bool alias = false;            // the endpoint belongs to another core
  bool tells_context = false;    // failed inject calls report the endpoint's context (Python: the attribute `context`)
  EndpointCore(PyObject* object, std::shared_ptr<DomainBox> b, const nic::EndpointConfig& config);
  EndpointCore(PyObject* object, const EndpointCore& original);  // an alias
  [[nodiscard]] uint64_t flags_of(nic::FlagCall call) const noexcept { return flags[static_cast<size_t>(call)]; }
  EndpointCore(const EndpointCore&) = delete;
  EndpointCore& operator=(const EndpointCore&) = delete;
  ~EndpointCore();
};

extern PyTypeObject* g_mr_type;
extern PyTypeObject* g_mr_slice_type;

// ---- buffers: the fast path of weft.buffers ------------------------------------------------------------------------

struct Buf {
  std::byte* data = nullptr;
  size_t length = 0;
  bool readonly = false;
  PyObject* owner = nullptr;      // borrowed from the argument
  PyObject* keepalive = nullptr;  // owned
  bool has_view = false;
  bool bare = false;                         // (address, length), or part of a bare region: no object owns the memory
  uint32_t iface = mem::kHmemSystem;         // the memory's interface, as the object states it
  const MemoryRegionCore* region = nullptr;  // the region of a buffer that is a region or a slice of one
  Py_buffer view;                            // valid if has_view: 80 bytes that the fast path does not clear

  Buf() noexcept {}  // leaves view uninitialized
  Buf(const Buf&) = delete;
  Buf& operator=(const Buf&) = delete;
  ~Buf() { release(); }
  void release() noexcept {
    if (has_view) PyBuffer_Release(&view);
    Py_XDECREF(keepalive);
    has_view = false;
    keepalive = nullptr;
  }
  // Takes address and length of `obj`; false with a Python error set. length_arg (or null) shortens the buffer.
  bool acquire(PyObject* obj, bool writable, PyObject* length_arg = nullptr);
  // Like acquire(), for memory that the processor itself accesses: refuses device memory.
  bool acquire_host(PyObject* obj, bool writable);
  // A new reference to an object that keeps the memory valid; null with an error set.
  [[nodiscard]] PyObject* hold() const;
  // For a region or a slice of one: the object that owns the region's memory, borrowed; otherwise null. The region
  // drops its own reference when it is closed, possibly while an operation is under way.
  [[nodiscard]] PyObject* region_memory() const noexcept { return region == nullptr ? nullptr : region->keep.first(); }
};

// The buffer in the form of cpp/call, without a descriptor.
inline call::Local local_of(const Buf& b) {
  const nic::MemoryRegion* own = b.region != nullptr ? b.region->region.get() : nullptr;
  return {b.data, b.length, nullptr, own, b.iface, b.bare, false};
}
// Bytes of an element; 0 for an unknown datatype.
constexpr size_t element_bytes(uint64_t datatype) noexcept {
  return datatype < nic::kDatatypeCount ? nic::datatype_size(static_cast<nic::Datatype>(datatype)) : 0;
}
// HOT. Refuses an array whose elements are not of the datatype; false with an error set. Memory without an element
// type, and arrays of bytes (uint8, void), are taken as they are. name: the argument.
bool fits_datatype(const char* method, const char* name, PyObject* obj, uint64_t datatype);
// Finds the device allocation that contains a buffer, if any; false with a Python error set if the domain was opened
// without FI_HMEM, or the runtime is missing.
bool find_device(DomainBox& box, const Buf& buf, const char* method, std::optional<mem::DeviceMemory>* found);
// Checks that memory is mapped at a bare local buffer, before the processor accesses it; false with an error set.
bool bare_is_there(const Buf& buf, const char* method, bool writable);

// Keeps a buffer's memory alive while the GIL is released, because another thread may close the buffer's region. Other
// buffers are kept alive by the reference or export that the call holds.
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

// ---- arguments -----------------------------------------------------------------------------------------------------

// Names of a method's parameters in order; the first `positional` may be given by position.
struct Signature {
  const char* method;
  std::vector<const char*> names;
  size_t positional;
  size_t required;
  std::vector<PyObject*> interned;
};
// HOT. Fills out[] (borrowed, null where absent); false with TypeError set.
bool parse(Signature& s, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** out);

// HOT. The number of an int, without a call (4 ns). False: outside 0 to 2**64 - 1. Wide: it is mostly above 2**30.
template <bool Wide = false>
[[gnu::always_inline]] inline bool int_number(PyObject* o, uint64_t* out) {
#if PYLONG_BITS_IN_DIGIT == 30 && PY_VERSION_HEX < 0x030f0000
#if PY_VERSION_HEX < 0x030c0000
  const auto size = static_cast<size_t>(Py_SIZE(o));  // negative if the number is negative
  const digit* digits = reinterpret_cast<PyLongObject*>(o)->ob_digit;
#else
  constexpr uintptr_t kNegative = 2, kSizeShift = 3;  // of lv_tag: 3.12 to 3.14
  const uintptr_t tag = reinterpret_cast<PyLongObject*>(o)->long_value.lv_tag;
  if ((tag & kNegative) != 0) [[unlikely]]
    return false;
  const size_t size = tag >> kSizeShift;
  const digit* digits = reinterpret_cast<PyLongObject*>(o)->long_value.ob_digit;
#endif
  if (__builtin_expect_with_probability(size <= 1, !Wide, 0.9)) {
    *out = size == 0 ? 0 : digits[0];
    return true;
  }
  *out = digits[0] | uint64_t{digits[1]} << 30;
  if (size == 2) [[likely]]
    return true;
  if (size > 3 || digits[2] >= 16) return false;
  *out |= uint64_t{digits[2]} << 60;
  return true;
#else
  *out = PyLong_AsUnsignedLongLong(o);
  if (*out != ~uint64_t{0} || PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
#endif
}

inline bool to_u64(PyObject* o, uint64_t* out) {
  if (o == nullptr) return true;                         // keeps the default
  if (PyLong_Check(o) && int_number(o, out)) [[likely]]  // also the enumerations of weft.flags
    return true;
  PyObject* index = PyNumber_Index(o);
  if (index == nullptr) return false;
  *out = PyLong_AsUnsignedLongLong(index);
  Py_DECREF(index);
  return !(*out == ~uint64_t{0} && PyErr_Occurred());
}

// Replaces the current error by one that names the argument, which must be a number from 0 to 2**64 - 1.
void name_bad_number(PyObject* o, const char* method, const char* name);
inline bool to_u64(PyObject* o, uint64_t* out, const char* method, const char* name) {
  if (to_u64(o, out)) [[likely]]
    return true;
  name_bad_number(o, method, name);
  return false;
}

PyObject* none_or(PyObject* o);
// WEFT_PUT(d, counts, hits, misses): d["hits"] = counts.hits, and so on.
#define WEFT_PUT(to, from, ...) WEFT_PUT_ALL(WEFT_PUT_EACH(to, from, __VA_ARGS__))
#define WEFT_PUT_ALL(...) WEFT_PUT_FOUR(WEFT_PUT_FOUR(WEFT_PUT_FOUR(WEFT_PUT_FOUR(__VA_ARGS__))))
#define WEFT_PUT_FOUR(...) WEFT_PUT_ONE(WEFT_PUT_ONE(WEFT_PUT_ONE(WEFT_PUT_ONE(__VA_ARGS__))))
#define WEFT_PUT_ONE(...) __VA_ARGS__
#define WEFT_PUT_EACH(to, from, name, ...) \
  (to)[#name] = (from).name __VA_OPT__(; WEFT_PUT_AGAIN WEFT_PUT_NONE(to, from, __VA_ARGS__))
#define WEFT_PUT_AGAIN() WEFT_PUT_EACH
#define WEFT_PUT_NONE ()
// Sets an object that lives until the process ends, or the next one takes its place.
inline void keep(PyObject*& place, nb::object object) {
  Py_XDECREF(std::exchange(place, object.release().ptr()));
}

// The text as a Python object, borrowed.
template <Text kName>
PyObject* interned() {
  static PyObject* const name = PyUnicode_InternFromString(kName.text);
  return name;
}
// Calls a method of a Python subclass with the same arguments.
PyObject* forward(PyObject* self, PyObject* name, PyObject* const* args = nullptr, Py_ssize_t nargs = 0,
                  PyObject* kwnames = nullptr);

// Raises if the domain cannot be made.
DomainCore make_domain(PyNic& nic, const nic::DomainConfig& config);
// Registers, and makes a MemoryRegionCore in raw memory; false with a Python error set.
bool make_region(MemoryRegionCore* self, const std::shared_ptr<DomainBox>& box, std::span<PyObject* const> buffers,
                 uint64_t access, uint64_t requested_key, bool owned, bool enabled, uint32_t kind = 0,
                 nic::RegionExtra extra = {}, bool unowned = false);

// The parts of the module: each registers its functions and types, in this order.
// clang-format off
#define WEFT_PARTS(part) \
  part(errors) part(buffers) part(limits) part(tables) part(nic) part(takes) part(domain) part(cm) part(av) part(cq) \
  part(cntr) part(mr) part(atomic) part(reduction) part(rules) part(message_config) part(endpoint) part(calls) \
  part(selections) part(elements) part(collective) part(probes) part(numpy_memory) part(cache) part(ucp) \
  part(ucp_worker) part(ucp_endpoint) part(window) part(sync) part(ofi_info) part(ofi) part(ofi_event_queues) \
  part(ofi_endpoint) part(ofi_groups) part(ofi_work) part(ofi_regions) part(ofi_passive) part(held) part(triggers)
// clang-format on
#define WEFT_PART(name) void register_##name(Module& m);
WEFT_PARTS(WEFT_PART)
#undef WEFT_PART

}  // namespace weft::bind
