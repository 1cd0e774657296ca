// cpp/bind/elements_index.cpp: from Python's indices to those of cpp/array: integers, slices, tuples, index arrays.
#include "bind/elements.hpp"
#include "bind/signatures.hpp"

namespace weft::bind {

static_assert(sizeof(npy_intp) == sizeof(int64_t) && array::kDimsMax >= NPY_MAXDIMS);

namespace {

using array::Index;

bool is_integer(PyObject* o) {
  return PyLong_CheckExact(o) || PyArray_IsScalar(o, Integer);
}

// HOT. An integer index; false: not an exact integer (True is none). Runs no Python code.
bool to_index(PyObject* o, int64_t* out) {
  if (!is_integer(o)) return false;
  *out = PyNumber_AsSsize_t(o, nullptr);  // clips: then out of range
  return *out != -1 || PyErr_Occurred() == nullptr;
}

bool plain_bound(PyObject* o) {
  return o == Py_None || is_integer(o);
}

// False with the error of a bound or a step set.
bool to_slice(PyObject* key, Index* out) {
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(key, &start, &stop, &step) < 0) return false;
  out->kind = Index::Kind::slice;
  out->start = start, out->stop = stop, out->step = step;
  return true;
}

// One item of an index whose conversion runs no Python code; false without an error: not such an item.
bool to_plain(PyObject* key, Index* out) {
  if (PySlice_Check(key)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(key);
    if (!plain_bound(slice->start) || !plain_bound(slice->stop) || !plain_bound(slice->step)) return false;
    if (to_slice(key, out)) return true;
    PyErr_Clear();  // a step of 0
    return false;
  }
  if (key == Py_Ellipsis || key == Py_None) {
    out->kind = key == Py_None ? Index::Kind::new_axis : Index::Kind::ellipsis;
    return true;
  }
  out->kind = Index::Kind::integer;
  return to_index(key, &out->at);
}

// Any item of an index: `other` for an object that is no item.
void to_any(PyObject* key, Index* out) {
  if (to_plain(key, out)) return;
  *out = {.kind = Index::Kind::other};
  if (PySlice_Check(key)) {
    if (!to_slice(key, out)) PyErr_Clear();
  } else if (!PyBool_Check(key) && !PyArray_IsScalar(key, Bool)) {
    const nb::object whole = nb::steal(PyNumber_Index(key));
    if (whole.is_valid()) *out = {.kind = Index::Kind::integer, .at = PyNumber_AsSsize_t(whole.ptr(), nullptr)};
    PyErr_Clear();
  }
}

std::span<PyObject* const> items_of(PyObject* const& key) {
  if (!PyTuple_Check(key)) return {&key, 1};
  return {reinterpret_cast<PyTupleObject*>(key)->ob_item, static_cast<size_t>(PyTuple_GET_SIZE(key))};
}

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

namespace {

// An index with an ellipsis, a new axis, or a NumPy integer.
[[gnu::noinline]] bool pick_listed(const Place& p, std::span<PyObject* const> items, Picked* s) {
  constexpr size_t kItemsMax = 2 * array::kPlaceDimsMax;
  Index index[kItemsMax];
  if (items.size() > kItemsMax) return false;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!to_plain(items[i], &index[i])) return false;
  }
  return array::pick(p, {index, items.size()}, s);
}

}  // namespace

bool pick(const Place& p, PyObject* key, Picked* s) {
  int64_t i;
  if (PyLong_CheckExact(key) && p.rows) [[likely]]
    return to_index(key, &i) && array::pick_row(p, i, s);
  const auto items = items_of(key);
  array::Selecting selecting(p.layout(), s);
  for (PyObject* item : items) {
    if (selecting.left() == 0) return pick_listed(p, items, s);
    if (PyLong_CheckExact(item)) {
      if (!to_index(item, &i) || !selecting.integer(i)) return false;
    } else if (Index slice; PySlice_Check(item) && to_plain(item, &slice)) {
      selecting.slice(slice.start, slice.stop, slice.step);
    } else {
      return pick_listed(p, items, s);
    }
  }
  selecting.whole(selecting.left());
  selecting.end(false);
  return array::pick_selected(p, s);
}

bool pick_rows(const Place& p, PyObject* indices, nic::Rows* rows, Picked* s, nb::object* held) {
  if (!p.rows) return false;
  *held = whole_indices(indices);
  if (!held->is_valid()) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(held->ptr());
  const auto* dims = reinterpret_cast<const int64_t*>(PyArray_DIMS(array));
  const std::span whole{static_cast<const int64_t*>(PyArray_DATA(array)), static_cast<size_t>(PyArray_SIZE(array))};
  return array::pick_rows(p, whole, {dims, static_cast<size_t>(PyArray_NDIM(array))}, rows, s) &&
         s->dims <= NPY_MAXDIMS;
}

// ---- what weft.share asks ------------------------------------------------------------------------------------------

namespace {

// A tuple of integers; false with an error set.
bool to_numbers(PyObject* given, std::vector<int64_t>* out) {
  if (!PyTuple_Check(given)) return type_error("shape and strides are tuples of integers");
  out->resize(static_cast<size_t>(PyTuple_GET_SIZE(given)));
  for (size_t i = 0; i < out->size(); ++i) {
    (*out)[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(given, static_cast<Py_ssize_t>(i)));
    if ((*out)[i] == -1 && PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

struct Lists {
  std::vector<int64_t> shape, strides;
  [[nodiscard]] array::Layout layout() const { return {shape, strides}; }
  bool take(PyObject* shape_given, PyObject* strides_given) {
    if (!to_numbers(shape_given, &shape) || !to_numbers(strides_given, &strides)) return false;
    if (shape.size() == strides.size()) return true;
    return type_error("shape and strides have the same length");
  }
};

nb::object tuple_of(std::span<const int64_t> numbers) {
  nb::object found = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; i < numbers.size() && found.is_valid(); ++i) {
    PyTuple_SET_ITEM(found.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromSsize_t(numbers[i]));
  }
  return found;
}

// select_part(key, shape, strides)
PyObject* select_part(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  Lists lists;
  if (nargs != 3) return type_error("select_part(key, shape: tuple, strides: tuple)");
  if (!have_numpy() || !lists.take(args[1], args[2])) return nullptr;
  const auto items = items_of(args[0]);
  std::vector<Index> index(items.size());
  for (size_t i = 0; i < items.size(); ++i) to_any(items[i], &index[i]);
  array::Selection s;
  if (const array::Refused why = array::select(lists.layout(), index, &s)) {
    if (why.why == array::Refused::Why::other) {
      PyObject* item = items[static_cast<size_t>(why.item)];
      if (!PySlice_Check(item)) return PyLong_FromLong(why.item);
      (void)to_slice(item, &index[0]);  // its error
      return nullptr;
    }
    nb::object given;
    if (why.why == array::Refused::Why::bounds) {
      given = nb::steal(PyNumber_Index(items[static_cast<size_t>(why.item)]));
      if (given.is_valid()) given = nb::steal(PyObject_Str(given.ptr()));
      if (!given.is_valid()) return nullptr;
    }
    const std::string text = array::explain(why, given.is_valid() ? nb::cast<std::string>(given) : std::string());
    PyErr_SetString(PyExc_IndexError, text.c_str());
    return nullptr;
  }
  const auto dims = static_cast<size_t>(s.dims);
  const nb::object shape = tuple_of({s.shape, dims}), strides = tuple_of({s.strides, dims});
  if (!shape.is_valid() || !strides.is_valid()) return nullptr;
  return Py_BuildValue("(LOO)", static_cast<long long>(s.offset), shape.ptr(), strides.ptr());
}

// pieces_of(shape, strides, itemsize)
PyObject* pieces_of(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  Lists lists;
  uint64_t item = 0;
  if (nargs != 3) return type_error("pieces_of(shape: tuple, strides: tuple, itemsize: int)");
  if (!lists.take(args[0], args[1]) || !to_u64(args[2], &item, "pieces_of", "itemsize")) return nullptr;
  size_t outer = 0;
  const uint64_t block = array::piece_bytes(lists.layout(), static_cast<int64_t>(item), &outer);
  size_t kept = 0;
  for (size_t i = 0; i < outer; ++i) {
    if (lists.shape[i] == 1) continue;
    lists.shape[kept] = lists.shape[i];
    lists.strides[kept++] = lists.strides[i];
  }
  const nb::object shape = tuple_of({lists.shape.data(), kept}), strides = tuple_of({lists.strides.data(), kept});
  if (!shape.is_valid() || !strides.is_valid()) return nullptr;
  return Py_BuildValue("(KOO)", static_cast<unsigned long long>(block), shape.ptr(), strides.ptr());
}

PyMethodDef g_functions[] = {
    {"select_part", method<select_part>(), METH_FASTCALL,
     "What a[key] selects of an array of this shape and these byte strides, as (byte offset, shape, byte strides); or\n"
     "the number of the item of the key that is no index. Raises IndexError."},
    {"pieces_of", method<pieces_of>(), METH_FASTCALL,
     "A selection that has elements as equal pieces of memory: (bytes of a piece, shape, byte strides of their "
     "starts)."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void register_selections(Module& m) {
  if (PyModule_AddFunctions(m.ptr(), with_signatures("", g_functions)) != 0) throw nb::python_error();
}

}  // namespace weft::bind
