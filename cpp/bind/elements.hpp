// cpp/bind/elements.hpp: shared by the files of `Elements`, the base class of weft.RemoteArray: access to elements of a
// mapped array in one call from Python, without a Python frame.
//
// What a call cannot do at once (a path other than load and store, an index or a value of another kind, an error) is
// left to a method of the Python class with the same arguments, which does the same and raises the errors. Nothing is
// done in that case, or what was done does no harm if it is done again.
#pragma once

#ifndef PY_ARRAY_UNIQUE_SYMBOL
#define PY_ARRAY_UNIQUE_SYMBOL weft_elements_numpy
#define NO_IMPORT_ARRAY
#endif
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include "array/place.hpp"
#include "bind/ep.hpp"

#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

namespace weft::bind {

using array::kElementBytesMax, array::Picked;

// A selection of an owner's array, and the way to it. Constant.
struct Place : array::Place {
  Place() = default;
  Place(const Place& other);
  Place& operator=(const Place&) = delete;
  ~Place();

  mutable uint32_t users = 1;      // under the GIL: the array, and calls that go on
  PyArray_Descr* descr = nullptr;  // owned
  bool scalar = false;             // elements are NumPy scalars that need no array
  std::shared_ptr<DomainBox> box;  // outlives ep
};

struct Elements {
  PyObject ob_base;
  // Null: no region. Another thread, or Python code that a conversion or the garbage collector runs, may replace it.
  const Place* place;
};

inline void drop(const Place* place) noexcept {
  if (place != nullptr && --place->users == 0) delete place;
}

// A place that a call uses, kept although the array may get another place. Null: use the Python method.
class Used {
 public:
  explicit Used(const Place* place) noexcept : place_(place) {
    if (place != nullptr) [[likely]]
      ++place->users;
  }
  ~Used() { drop(place_); }
  Used(const Used&) = delete;
  Used& operator=(const Used&) = delete;
  const Place& operator*() const noexcept { return *place_; }
  const Place* operator->() const noexcept { return place_; }
  explicit operator bool() const noexcept { return place_ != nullptr; }

 private:
  const Place* place_;
};

// HOT. The place of an array that loads and stores may reach.
inline Used place_of(PyObject* self) noexcept {
  const Place* p = reinterpret_cast<Elements*>(self)->place;
  if (p == nullptr || p->ep == nullptr || p->box->forked()) [[unlikely]]
    p = nullptr;
  return Used(p);
}

// ---- elements_index.cpp: from Python's objects to array::Index ----------------------------------------------------

// These return false, without a Python error, for whatever the Python methods must do.
bool pick(const Place& p, PyObject* key, Picked* s);
// *held keeps the memory of the indices.
bool pick_rows(const Place& p, PyObject* indices, nic::Rows* rows, Picked* s, nb::object* held);
// An index that is a list or an array.
inline bool is_index_array(PyObject* key) {
  return PyList_CheckExact(key) || PyArray_CheckExact(key);
}

// ---- elements_value.cpp: values -----------------------------------------------------------------------------------

void learn_dtype(Place* p);  // from descr
// HOT. The element that a Python number becomes by NumPy's assignment; false: let NumPy do it. wraps: negative numbers
// become unsigned ones.
bool store_value(const Place& p, PyObject* value, std::byte* out, bool wraps = false);
PyObject* load_value(const Place& p, const std::byte* from);  // new reference
// An array in one piece with the elements and the shape of a selection; null: not such an array.
std::byte* same_array(const Place& p, PyObject* array, const Picked& s, bool writable);
// read_only: what t[key] returns where NumPy would return a view.
PyObject* new_array(const Place& p, const Picked& s, bool read_only = false);
extern PyTypeObject* g_copy_type;  // of such arrays: weft.share.ReadOnlyCopy

// ---- elements.cpp, elements_atomic.cpp ----------------------------------------------------------------------------

// Calls a method of the Python class; null arguments are left out.
PyObject* in_python(PyObject* self, PyObject* method, std::initializer_list<PyObject*> arguments);
bool have_numpy();  // NumPy's C functions can be called; false with an error set

// Whether a call copies for so long that other threads should run.
constexpr uint64_t kLongRows = 512;
inline bool takes_long(uint64_t bytes, uint64_t count) {
  return bytes * count >= kReleaseGilBytes || count > kLongRows;
}
// HOT. Runs an access, without the GIL if it takes long.
template <typename Access>
auto released(bool long_one, Access&& access) {
  if (!long_one) [[likely]]
    return access();
  const ReleasedGil without;
  return access();
}

extern PyMethodDef g_element_atomics[];  // fetch_add and its kin
extern PyGetSetDef g_element_getset[];   // add
bool make_adder_type(Module& m);

}  // namespace weft::bind
