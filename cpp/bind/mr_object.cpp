// cpp/bind/mr_object.cpp: the Python objects of regions: allocation, garbage collection, deallocation.
//
// A program may have millions of regions. So a region made by mr_reg itself is light: it is not in nanobind's table of
// instances, because entering it would cost more than the registration, and no code looks a region's object up by its
// core. And the garbage collector does not track the object until it refers to others: by an attribute, or by an
// endpoint.
//
// After PyObject nanobind stores 8 bytes: the offset of the core, and the state. A light object needs the same 8 bytes,
// which are private to nanobind. They are copied from an object that nanobind made, and checked when the module is
// loaded: if anything about them is not as expected, nanobind makes every object.
#include <algorithm>
#include <cstring>

#include "bind/objects.hpp"

namespace weft::bind {

namespace {

destructor g_usual_dealloc = nullptr;

constexpr size_t kHeadBytes = 8;
constexpr size_t kCoreAt = sizeof(PyObject) + kHeadBytes;
unsigned char g_head[kHeadBytes];
bool g_known = false;  // g_head was learnt and checked
bool g_light = false;  // new_region() makes light objects

std::byte* bytes_of(PyObject* object) {
  return reinterpret_cast<std::byte*>(object);
}
MemoryRegionCore* core_at(PyObject* region) {
  return reinterpret_cast<MemoryRegionCore*>(bytes_of(region) + kCoreAt);
}
void write_head(PyObject* region) {
  std::memcpy(bytes_of(region) + sizeof(PyObject), g_head, kHeadBytes);
}

void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

// True if an object that nanobind made has the expected form: PyObject, a head of 8 bytes, the core, and then only
// zeros
// (__dict__ and the list of weak references, which do not exist yet).
bool as_expected(PyObject* sample) {
  const auto size = static_cast<size_t>(Py_TYPE(sample)->tp_basicsize);
  return Py_TYPE(sample)->tp_itemsize == 0 && kCoreAt % alignof(MemoryRegionCore) == 0 &&
         kCoreAt + sizeof(MemoryRegionCore) <= size && nb::inst_ptr<MemoryRegionCore>(sample) == core_at(sample) &&
         std::all_of(bytes_of(sample) + kCoreAt, bytes_of(sample) + size,
                     [](std::byte b) { return b == std::byte{0}; });
}

// Copies the head from two objects that nanobind made, and makes a third object by hand: nanobind's functions must then
// see a ready object with its core at the expected place. None of them has a core, so no destructor may run.
bool learn_head(PyObject* type) {
  if (!PyType_IS_GC(reinterpret_cast<PyTypeObject*>(type))) return false;
  unsigned char heads[2][kHeadBytes];
  for (auto& head : heads) {
    const nb::object sample = nb::inst_alloc(type);
    if (!as_expected(sample.ptr())) return false;
    nb::inst_mark_ready(sample);
    std::memcpy(head, bytes_of(sample.ptr()) + sizeof(PyObject), kHeadBytes);
    nb::inst_set_state(sample, false, false);
  }
  if (std::memcmp(heads[0], heads[1], kHeadBytes) != 0) return false;
  std::memcpy(g_head, heads[0], kHeadBytes);
  PyObject* made = PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type), 0);
  if (made == nullptr) throw nb::python_error();
  PyObject_GC_UnTrack(made);
  write_head(made);
  const bool taken = nb::inst_ready(made) && nb::inst_state(made) == std::pair(true, true) &&
                     nb::inst_ptr<MemoryRegionCore>(made) == core_at(made);
  free_object(made);
  return taken;
}

void region_dealloc(PyObject* self) {
  if (!g_known || !core_at(self)->light) {
    g_usual_dealloc(self);
    return;
  }
  if (PyObject_GC_IsTracked(self)) PyObject_GC_UnTrack(self);
  if (Py_TYPE(self)->tp_weaklistoffset != 0) PyObject_ClearWeakRefs(self);
  PyObject** dict = _PyObject_GetDictPtr(self);
  if (dict != nullptr) Py_CLEAR(*dict);
  core_at(self)->~MemoryRegionCore();
  free_object(self);
}

}  // namespace

void own_objects(PyTypeObject* type) {
  g_usual_dealloc = type->tp_dealloc;
  type->tp_dealloc = region_dealloc;
#ifdef Py_GIL_DISABLED
  // Other threads may take references: nanobind's objects are prepared for that, light objects are not.
#else
  g_light = g_known = learn_head(reinterpret_cast<PyObject*>(type));
#endif
}

bool light_regions() {
  return g_light;
}

void allow_light_regions(bool allowed) {
  g_light = allowed && g_known;
}

PyObject* new_region(PyObject* type, MemoryRegionCore** core) {
  if (g_light) [[likely]] {
    PyObject* self = PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type), 0);
    if (self == nullptr) return nullptr;
    PyObject_GC_UnTrack(self);
    *core = core_at(self);
    return self;
  }
  try {
    nb::object made = nb::inst_alloc(type);
    *core = nb::inst_ptr<MemoryRegionCore>(made);
    return made.release().ptr();
  } catch (nb::python_error& failed) {
    failed.restore();
    return nullptr;
  }
}

void region_made(PyObject* region, MemoryRegionCore* core) noexcept {
  core->light = g_light;
  if (core->light) [[likely]] {
    write_head(region);
  } else {
    nb::inst_mark_ready(region);
  }
}

void drop_region(PyObject* region) noexcept {
  if (g_light) {
    free_object(region);
  } else {
    Py_DECREF(region);
  }
}

int region_traverse(PyObject* self, visitproc visit, void* arg) {
  PyObject** dict = _PyObject_GetDictPtr(self);
  if (dict != nullptr) Py_VISIT(*dict);
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<MemoryRegionCore>(self)->bound.ptr());
  Py_VISIT(Py_TYPE(self));
  return 0;
}

int region_clear(PyObject* self) {
  PyObject** dict = _PyObject_GetDictPtr(self);
  if (dict != nullptr) Py_CLEAR(*dict);
  if (nb::inst_ready(self)) {
    auto* core = nb::inst_ptr<MemoryRegionCore>(self);
    if (core->mapped && core->box && !core->box->forked()) core->give_back();  // it needs `bound`
    core->bound.reset();
  }
  return 0;
}

int region_setattro(PyObject* self, PyObject* name, PyObject* value) {
  if (!PyObject_GC_IsTracked(self)) PyObject_GC_Track(self);
  return PyObject_GenericSetAttr(self, name, value);
}

void note_site(MemoryRegionCore* core) {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return;
  core->site = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
#if PY_VERSION_HEX >= 0x030B0000
  core->site_at = PyFrame_GetLasti(frame);
#else
  if (PyObject* at = PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_lasti")) {
    core->site_at = static_cast<int>(PyLong_AsLong(at));
    Py_DECREF(at);
  }
#endif
}

}  // namespace weft::bind
