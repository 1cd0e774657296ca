// cpp/bind/elements_pick.cpp: from an index to pieces of memory: integers, slices, tuples of them, index arrays.
#include "bind/elements.hpp"

namespace weft::bind {

namespace {

bool is_integer(PyObject* o) {
  return PyLong_CheckExact(o) || PyArray_IsScalar(o, Integer);
}

// HOT. An integer index; false: not an exact integer (True is none), or too large. Runs no Python code.
bool to_index(PyObject* o, npy_intp* out) {
  if (!is_integer(o)) return false;
  *out = PyNumber_AsSsize_t(o, nullptr);  // clips: then out of range
  return *out != -1 || PyErr_Occurred() == nullptr;
}

bool plain_bound(PyObject* o) {
  return o == Py_None || is_integer(o);
}

// A dimension of a selection.
struct Dim {
  npy_intp n, stride;
};

// Sets the pieces of a selection with these dimensions; false: more than one step, or no elements.
bool to_pieces(const Place& p, const Dim* dims, int count, Picked* s) {
  s->dims = count;
  s->block = static_cast<uint64_t>(p.item);
  s->count = 1;
  s->step = 0;
  bool apart = false;
  for (int i = count - 1; i >= 0; --i) {
    const auto [n, stride] = dims[i];
    s->shape[i] = n;
    if (n == 0) return false;
    if (n == 1) continue;
    if (!apart && stride == static_cast<npy_intp>(s->block)) {
      s->block *= static_cast<uint64_t>(n);
    } else if (!apart) {
      apart = true;
      s->count = static_cast<uint64_t>(n);
      s->step = stride;
    } else if (stride == s->step * static_cast<int64_t>(s->count)) {
      s->count *= static_cast<uint64_t>(n);
    } else {
      return false;
    }
  }
  return true;
}

// Adds what a slice selects of dimension `axis`.
bool take_slice(const Place& p, int axis, PyObject* key, uint64_t* offset, Dim* out) {
  const auto* slice = reinterpret_cast<PySliceObject*>(key);
  if (!plain_bound(slice->start) || !plain_bound(slice->stop) || !plain_bound(slice->step)) return false;
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(key, &start, &stop, &step) < 0) {
    PyErr_Clear();  // a step of 0
    return false;
  }
  out->n = PySlice_AdjustIndices(p.shape[axis], &start, &stop, step);
  if (__builtin_mul_overflow(step, p.strides[axis], &out->stride)) return false;
  if (out->n == 0) return false;
  *offset += static_cast<uint64_t>(start) * static_cast<uint64_t>(p.strides[axis]);
  return true;
}

bool take_integer(const Place& p, int axis, PyObject* key, uint64_t* offset) {
  npy_intp i;
  if (!to_index(key, &i)) return false;
  const npy_intp n = p.shape[axis];
  if (i < 0) i += n;
  if (i < 0 || i >= n) return false;
  *offset += static_cast<uint64_t>(i) * static_cast<uint64_t>(p.strides[axis]);
  return true;
}

}  // namespace

bool pick_all(const Place& p, Picked* s) {
  Dim dims[kElementDims];
  for (int i = 0; i < p.dims; ++i) dims[i] = {p.shape[i], p.strides[i]};
  s->addr = p.base;
  s->whole = true;
  return to_pieces(p, dims, p.dims, s);
}

bool pick(const Place& p, PyObject* key, Picked* s) {
  s->whole = false;
  if (PyLong_CheckExact(key) && p.rows) [[likely]] {
    uint64_t offset = 0;
    if (!take_integer(p, 0, key, &offset)) return false;
    s->addr = p.base + offset;
    s->block = static_cast<uint64_t>(p.row);
    s->count = 1;
    s->step = 0;
    s->dims = p.dims - 1;
    for (int i = 0; i < s->dims; ++i) s->shape[i] = p.shape[i + 1];
    return true;
  }
  if (key == Py_Ellipsis) return pick_all(p, s);
  PyObject* const* keys = &key;
  Py_ssize_t count = 1;
  if (PyTuple_CheckExact(key)) {
    count = PyTuple_GET_SIZE(key);
    keys = reinterpret_cast<PyTupleObject*>(key)->ob_item;
  }
  if (count > p.dims) return false;
  Dim dims[kElementDims];
  int found = 0;
  uint64_t offset = 0;
  for (int axis = 0; axis < p.dims; ++axis) {
    if (axis >= count) {
      dims[found++] = {p.shape[axis], p.strides[axis]};
    } else if (PySlice_Check(keys[axis])) {
      if (!take_slice(p, axis, keys[axis], &offset, &dims[found])) return false;
      ++found;
    } else if (!take_integer(p, axis, keys[axis], &offset)) {
      return false;
    }
  }
  s->addr = p.base + offset;
  return to_pieces(p, dims, found, s);
}

namespace {

// The indices as an array of int64 in one piece, or null without an error.
nb::object whole_indices(PyObject* given) {
  nb::object found = nb::borrow(given);
  if (PyList_CheckExact(given)) {
    found = nb::steal(PyArray_FROM_O(given));
    if (!found.is_valid()) PyErr_Clear();
  }
  if (!found.is_valid() || !PyArray_CheckExact(found.ptr())) return {};
  auto* array = reinterpret_cast<PyArrayObject*>(found.ptr());
  const int type = PyArray_TYPE(array);
  const bool integers = PyTypeNum_ISINTEGER(type) && (PyTypeNum_ISSIGNED(type) || PyArray_ITEMSIZE(array) < 8);
  if (!integers) return {};
  static_assert(sizeof(npy_intp) == sizeof(int64_t));
  if (PyArray_ITEMSIZE(array) == 8 && PyArray_ISCARRAY_RO(array)) return found;
  PyArray_Descr* wanted = PyArray_DescrFromType(NPY_INTP);
  found = nb::steal(PyArray_FromArray(array, wanted, NPY_ARRAY_CARRAY_RO));
  if (!found.is_valid()) PyErr_Clear();
  return found;
}

}  // namespace

bool pick_rows(const Place& p, PyObject* indices, nic::Rows* rows, Picked* s, nb::object* held) {
  if (!p.rows || p.shape[0] == 0 || p.row == 0) return false;
  *held = whole_indices(indices);
  if (!held->is_valid()) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(held->ptr());
  const int dims = PyArray_NDIM(array);
  s->dims = dims + p.dims - 1;
  if (s->dims > NPY_MAXDIMS || s->dims == 0) return false;
  for (int i = 0; i < dims; ++i) s->shape[i] = PyArray_DIM(array, i);
  for (int i = 1; i < p.dims; ++i) s->shape[dims + i - 1] = p.shape[i];
  const auto* index = static_cast<const int64_t*>(PyArray_DATA(array));
  const npy_intp count = PyArray_SIZE(array), n = p.shape[0];
  bool good = count != 0;
  for (npy_intp i = 0; i < count; ++i) good &= index[i] >= -n && index[i] < n;
  if (!good) return false;
  s->addr = p.base;
  s->block = static_cast<uint64_t>(p.row);
  s->count = static_cast<uint64_t>(count);
  s->step = p.strides[0];
  rows->bytes = rows->local_step = s->block;
  rows->count = s->count;
  rows->addr = p.base;
  rows->step = p.strides[0];
  rows->index = index;
  rows->limit = static_cast<uint64_t>(n);
  return true;
}

}  // namespace weft::bind
