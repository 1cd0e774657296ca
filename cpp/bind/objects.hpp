// cpp/bind/objects.hpp: shared by the files of the objects (nic, domain, av, cq, cntr, mr, ep).
#pragma once

#include "bind/common.hpp"

namespace weft::bind {

constexpr uint32_t kWaitFd = 3, kWaitPollFd = 6;  // FI_WAIT_FD, FI_WAIT_POLLFD

constexpr size_t kReadMax = 64;  // entries of a completion queue that are taken at a time
// Uninitialized memory for entries: constructing an array of CqEntry would clear 4 KiB per call.
struct CqRoom {
  alignas(nic::CqEntry) std::byte bytes[kReadMax * sizeof(nic::CqEntry)];
  nic::CqEntry* data() noexcept { return reinterpret_cast<nic::CqEntry*>(bytes); }
};
static_assert(std::is_trivially_copyable_v<nic::CqEntry>);

std::shared_ptr<DomainBox>& box_of(DomainCore& d);  // raises if it is closed or belongs to the parent process

template <typename T>
void check_usable(const T& core, const char* what) {
  if (!core.box || core.closed) raise(fi_err::kEOPBADSTATE, what, " is closed");
  if (core.box->forked()) {
    raise(fi_err::kEOPBADSTATE, "this ", what, " belongs to the parent process: a forked child opens its own fabric");
  }
}

inline PyObject* number(uint64_t n) {
  return PyLong_FromUnsignedLongLong(n);
}

// Converts a number from Python; throws an error that names the argument.
inline uint64_t number_of(nb::handle value, const char* method, const char* name) {
  uint64_t n = 0;
  if (!to_u64(value.ptr(), &n, method, name)) throw nb::python_error();
  return n;
}

// ---- regions (mr_object.cpp, mr_steps.cpp) -------------------------------------------------------------------------

// An object of a subclass of MemoryRegionCore, whose core is not made yet; null with a Python error set. Either
// make_region() succeeds and region_made() follows, or drop_region() does.
PyObject* new_region(PyObject* type, MemoryRegionCore** core);
void region_made(PyObject* region, MemoryRegionCore* core) noexcept;
void drop_region(PyObject* region) noexcept;
// Called once, with the type: learns how to make light objects (mr_object.cpp), and how to free them.
void own_objects(PyTypeObject* type);
bool light_regions();  // whether new_region() makes light objects
void allow_light_regions(bool allowed);
// Records the Python line that called a C function, as sys._getframe() would.
void note_site(MemoryRegionCore* core);

int region_traverse(PyObject* self, visitproc visit, void* arg);
int region_clear(PyObject* self);
int region_setattro(PyObject* self, PyObject* name, PyObject* value);
PyObject* region_bind(PyObject* self, PyObject* (&a)[2]);
PyObject* region_enable(PyObject* self, PyObject*);
PyObject* region_close(PyObject* self, PyObject*);
bool close_released(nic::MemoryRegion& region, std::string* why);  // without the GIL
bool close_region(MemoryRegionCore& r);  // false with a Python error set: the region is still open

// Members of the NIC's type.
void register_hmem(Class<PyNic>& nic);
void register_telemetry(Class<PyNic>& nic);
void register_tcp(Module& m, Class<PyNic>& nic);

// Starts deferred work after a counter was changed. Requires the GIL, and no lock of the NIC.
inline void run_triggers(const DomainBox& box) {
  if (!box.domain->triggers().has_work()) [[likely]]
    return;
  const ReleasedGil released;
  box.domain->triggers().run();
}

}  // namespace weft::bind
