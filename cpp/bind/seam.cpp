// cpp/bind/seam.cpp: the object whose lock stands for the GIL, and references to objects that may be going.
#include "bind/seam.hpp"

#include <cassert>

#if defined(Py_GIL_DISABLED) && PY_VERSION_HEX < 0x030e0000
bool nb_try_inc_ref(PyObject* object) noexcept;  // nanobind's, for Python 3.13; since 3.14 CPython has it
#endif

namespace weft::bind {

#ifdef Py_GIL_DISABLED
PyObject* g_seam = nullptr;

void make_seam() {
  if (g_seam == nullptr) g_seam = PyList_New(0);
  if (g_seam == nullptr) throw nb::python_error();
}

PyObject* still_alive(PyObject* object) noexcept {
#if PY_VERSION_HEX < 0x030e0000
  return ::nb_try_inc_ref(object) ? object : nullptr;
#else
  return PyUnstable_TryIncRef(object) ? object : nullptr;
#endif
}
#else
void make_seam() {}

PyObject* still_alive(PyObject* object) noexcept {
  assert(PyGILState_Check() && Py_REFCNT(object) > 0 && "nobody destroys the object now");
  return Py_NewRef(object);
}
#endif

}  // namespace weft::bind
