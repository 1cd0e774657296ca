// cpp/bind/mr_object.cpp: the Python objects of regions: allocation, garbage collection, deallocation.
//
// A program may have millions of regions. So a region made by mr_reg itself is not in nanobind's table of instances:
// entering it would cost more than the registration, and no code looks a region's object up by its core. And the
// garbage collector does not track the object until it refers to others: by an attribute, or by an endpoint.
#include <cstring>

#include "bind/objects.hpp"

namespace weft::bind {

namespace {

destructor g_usual_dealloc = nullptr;

// After PyObject nanobind stores 8 bytes: the offset of the core, and the state. They are the same for all regions.
constexpr size_t kHeadBytes = 8;
unsigned char g_head[kHeadBytes];
size_t g_core_at = 0;

bool learn_head(PyObject* type) {
  nb::object sample = nb::inst_alloc(type);
  if (!sample.is_valid()) return false;
  PyObject* object = sample.ptr();
  g_core_at = static_cast<size_t>(reinterpret_cast<std::byte*>(nb::inst_ptr<MemoryRegionCore>(sample)) -
                                  reinterpret_cast<std::byte*>(object));
  nb::inst_set_state(sample, true, true);
  std::memcpy(g_head, reinterpret_cast<std::byte*>(object) + sizeof(PyObject), kHeadBytes);
  nb::inst_set_state(sample, false, false);  // the sample has no core: its deallocation must not destroy one
  return true;
}

void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

void region_dealloc(PyObject* self) {
  auto* core = reinterpret_cast<MemoryRegionCore*>(reinterpret_cast<std::byte*>(self) + g_core_at);
  if (g_core_at == 0 || !core->light) {
    g_usual_dealloc(self);
    return;
  }
  if (PyObject_GC_IsTracked(self)) PyObject_GC_UnTrack(self);
  if (Py_TYPE(self)->tp_weaklistoffset != 0) PyObject_ClearWeakRefs(self);
  PyObject** dict = _PyObject_GetDictPtr(self);
  if (dict != nullptr) Py_CLEAR(*dict);
  core->~MemoryRegionCore();
  free_object(self);
}

}  // namespace

void own_dealloc(PyTypeObject* type) noexcept {
  g_usual_dealloc = type->tp_dealloc;
  type->tp_dealloc = region_dealloc;
}

PyObject* new_region(PyObject* type, MemoryRegionCore** core) {
  if (g_core_at == 0 && !learn_head(type)) return nullptr;
  PyObject* self = PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type), 0);
  if (self == nullptr) return nullptr;
  PyObject_GC_UnTrack(self);
  *core = reinterpret_cast<MemoryRegionCore*>(reinterpret_cast<std::byte*>(self) + g_core_at);
  return self;
}

void region_made(PyObject* region, MemoryRegionCore* core) noexcept {
  std::memcpy(reinterpret_cast<std::byte*>(region) + sizeof(PyObject), g_head, kHeadBytes);
  core->light = true;
}

void drop_region(PyObject* region) noexcept {
  free_object(region);
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
  if (nb::inst_ready(self)) nb::inst_ptr<MemoryRegionCore>(self)->bound.reset();
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
