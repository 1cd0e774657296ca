// cpp/bind/elements.cpp: the type `Elements`: t[key], t[key] = x, read, write, fill, take, put.
//
// HOT: all calls. One call from Python, one into the NIC (Endpoint::move_now). No allocation but the result's. The GIL
// is kept for short copies. Benchmark: bench/bench_elements.py.
#define PY_ARRAY_UNIQUE_SYMBOL weft_elements_numpy
#include "bind/elements.hpp"
#include "bind/params.hpp"
#include "bind/signatures.hpp"

#include <algorithm>
#include <utility>

namespace weft::bind {

// ---- the place ----------------------------------------------------------------------------------------------------

Place::Place(const Place& other) : array::Place(other), descr(other.descr), scalar(other.scalar), box(other.box) {
  Py_XINCREF(descr);
}

Place::~Place() {
  Py_XDECREF(descr);
}

bool have_numpy() {
  return PyArray_API != nullptr || _import_array() >= 0;
}

PyObject* in_python(PyObject* self, PyObject* method, std::initializer_list<PyObject*> arguments) {
  PyObject* stack[8] = {self};
  size_t count = 1;
  for (PyObject* argument : arguments) {
    if (argument != nullptr) stack[count++] = argument;
  }
  return PyObject_VectorcallMethod(method, stack, count, nullptr);
}

namespace {

PyTypeObject* g_elements_type = nullptr;

Elements* elements_of(PyObject* self) {
  return reinterpret_cast<Elements*>(self);
}

void set_place(PyObject* self, std::unique_ptr<Place> place) {
  drop(std::exchange(elements_of(self)->place, place.release()));
}

PyObject* elements_new(PyTypeObject* type, PyObject*, PyObject*) {
  if (!have_numpy()) return nullptr;
  return type->tp_alloc(type, 0);  // cleared: no place
}

int elements_init(PyObject*, PyObject*, PyObject*) {
  return 0;
}

void elements_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  drop(elements_of(self)->place);
  type->tp_free(self);
  Py_DECREF(type);
}

// _lay(base, key, dtype, shape, strides)
PyObject* elements_lay(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 5 || !PyArray_DescrCheck(args[2]) || !PyTuple_Check(args[3]) || !PyTuple_Check(args[4]) ||
      PyTuple_GET_SIZE(args[3]) != PyTuple_GET_SIZE(args[4])) {
    return type_error("_lay(base: int, key: int | None, dtype, shape: tuple, strides: tuple)");
  }
  auto* descr = reinterpret_cast<PyArray_Descr*>(args[2]);
  const Py_ssize_t dims = PyTuple_GET_SIZE(args[3]);
  if (args[1] == Py_None || static_cast<size_t>(dims) > array::kPlaceDimsMax || PyDataType_ELSIZE(descr) <= 0 ||
      PyDataType_REFCHK(descr)) {
    set_place(self, nullptr);
    Py_RETURN_NONE;
  }
  auto p = std::make_unique<Place>();
  if (!to_u64(args[0], &p->base, "_lay", "base") || !to_u64(args[1], &p->key, "_lay", "key")) return nullptr;
  p->dims = static_cast<size_t>(dims);
  for (Py_ssize_t i = 0; i < dims; ++i) {
    p->shape[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[3], i));
    p->strides[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[4], i));
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  p->rows = array::rows_are_whole(p->layout(), PyDataType_ELSIZE(descr), &p->row);
  Py_INCREF(descr);
  p->descr = descr;
  learn_dtype(p.get());
  set_place(self, std::move(p));
  Py_RETURN_NONE;
}

// _link(ep, peer)
PyObject* elements_link(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  EndpointCore* core = nullptr;
  if (nargs != 2 || !nb::try_cast(nb::handle(args[0]), core) || core == nullptr)
    return type_error("_link(ep: Endpoint, peer: int)");
  uint64_t peer = 0;
  if (!to_u64(args[1], &peer, "_link", "peer")) return nullptr;
  const Place* old = elements_of(self)->place;
  if (old == nullptr) Py_RETURN_NONE;
  auto p = std::make_unique<Place>(*old);
  // Calls through the endpoint's rules take this way alone: see nic/rules.hpp.
  const bool plain = call::capable(*core->ep, OpKind::read) && call::capable(*core->ep, OpKind::write) &&
                     !core->ep->config().rules.more;
  p->ep = plain ? core->ep : nullptr;
  p->box = plain ? core->box : nullptr;
  p->peer = peer;
  set_place(self, std::move(p));
  Py_RETURN_NONE;
}

bool are_elements(PyObject* other, const char* call) {
  if (PyObject_TypeCheck(other, g_elements_type)) return true;
  PyErr_SetString(PyExc_TypeError, call);
  return false;
}

// _adopt(other): the selection of another array, and the way to it.
PyObject* elements_adopt(PyObject* self, PyObject* other) {
  if (!are_elements(other, "_adopt(other: Elements)")) return nullptr;
  const Place* from = elements_of(other)->place;
  if (from != nullptr) ++from->users;
  drop(std::exchange(elements_of(self)->place, from));
  Py_RETURN_NONE;
}

// _join(other): the same way as another selection of the same owner's array.
PyObject* elements_join(PyObject* self, PyObject* other) {
  if (!are_elements(other, "_join(other: Elements)")) return nullptr;
  const Place* from = elements_of(other)->place;
  const Place* old = elements_of(self)->place;
  if (old == nullptr || from == nullptr || from->ep == nullptr) Py_RETURN_NONE;
  auto p = std::make_unique<Place>(*old);
  p->ep = from->ep;
  p->box = from->box;
  p->peer = from->peer;
  set_place(self, std::move(p));
  Py_RETURN_NONE;
}

// ---- copies -------------------------------------------------------------------------------------------------------

bool move_rows(OpKind kind, const Place& p, const nic::Rows& rows) {
  return released(takes_long(rows.bytes, rows.count), [&] { return array::move_rows(kind, p, rows); });
}
// HOT. False: use the Python method. One piece apart: if both branches read block and count, GCC reads them at once and
// waits for the two stores by which pick() has just set them, 3 ns.
inline bool move(OpKind kind, const Place& p, const Picked& s, std::byte* local) {
  if (s.count == 1) [[likely]] {
    return released(s.block >= kReleaseGilBytes, [&] { return array::move_piece(kind, p, s.addr, local, s.block); });
  }
  return released(takes_long(s.block, s.count), [&] { return array::move(kind, p, s, local); });
}
bool spread(const Place& p, const Picked& s, const nic::Rows* chosen, const std::byte* element) {
  return released(takes_long(s.block, s.count), [&] { return array::spread(p, s, chosen, element); });
}

// HOT. A selection's elements; null without an error: use the Python method.
inline PyObject* read_picked(const Place& p, const Picked& s, bool read_only) {
  if (s.one_element()) [[likely]] {
    if (!p.scalar) return nullptr;
    alignas(16) std::byte room[kElementBytesMax];
    if (!array::move_piece(OpKind::read, p, s.addr, room, s.block)) return nullptr;
    return load_value(p, room);
  }
  nb::object found = nb::steal(new_array(p, s, read_only));
  if (!found.is_valid()) return nullptr;
  auto* local = static_cast<std::byte*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(found.ptr())));
  return move(OpKind::read, p, s, local) ? found.release().ptr() : nullptr;
}

// HOT. t[key] = value; false without an error: use the Python method.
inline bool write_picked(const Place& p, const Picked& s, const nic::Rows* chosen, PyObject* value) {
  if (PyArray_CheckExact(value)) {
    std::byte* local = same_array(p, value, s, false);
    if (local == nullptr) return false;
    if (chosen == nullptr) return move(OpKind::write, p, s, local);
    nic::Rows rows = *chosen;
    rows.local = local;
    return move_rows(OpKind::write, p, rows);
  }
  alignas(16) std::byte room[kElementBytesMax];
  if (!store_value(p, value, room)) return false;
  if (chosen == nullptr && s.bytes() == static_cast<uint64_t>(p.type.bytes))
    return array::move_piece(OpKind::write, p, s.addr, room, s.block);
  return spread(p, s, chosen, room);
}

PyObject* elements_getitem(PyObject* self, PyObject* key) {
  if (const Used p = place_of(self); p) [[likely]] {
    Picked s;
    PyObject* found = nullptr;
    if (is_index_array(key)) [[unlikely]] {
      nic::Rows rows;
      nb::object held;
      if (pick_rows(*p, key, &rows, &s, &held)) {
        nb::object array = nb::steal(new_array(*p, s));
        if (!array.is_valid()) return nullptr;
        rows.local = static_cast<std::byte*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())));
        if (move_rows(OpKind::read, *p, rows)) found = array.release().ptr();
      }
    } else if (pick(*p, key, &s)) [[likely]] {
      found = read_picked(*p, s, true);
    }
    if (found != nullptr || PyErr_Occurred() != nullptr) [[likely]]
      return found;
  }
  return in_python(self, interned<"_get_item">(), {key});
}

// For callers of the sequence protocol, such as reversed().
PyObject* elements_item(PyObject* self, Py_ssize_t i) {
  const nb::object key = nb::steal(PyLong_FromSsize_t(i));
  return key.is_valid() ? elements_getitem(self, key.ptr()) : nullptr;
}

int elements_setitem(PyObject* self, PyObject* key, PyObject* value) {
  if (value == nullptr) {
    PyErr_SetString(PyExc_TypeError, "elements of a remote array cannot be deleted");
    return -1;
  }
  if (const Used p = place_of(self); p) [[likely]] {
    Picked s;
    bool done = false;
    if (is_index_array(key)) [[unlikely]] {
      nic::Rows rows;
      nb::object held;
      done = pick_rows(*p, key, &rows, &s, &held) && write_picked(*p, s, &rows, value);
    } else if (pick(*p, key, &s)) [[likely]] {
      done = write_picked(*p, s, nullptr, value);
    }
    if (done) [[likely]]
      return 0;
    if (PyErr_Occurred() != nullptr) return -1;
  }
  PyObject* found = in_python(self, interned<"_set_item">(), {key, value});
  if (found == nullptr) return -1;
  Py_DECREF(found);
  return 0;
}

// ---- methods ------------------------------------------------------------------------------------------------------

PyObject* elements_read(PyObject* self, PyObject* (&a)[1]) {
  PyObject* out = none_or(a[0]);
  Py_DECREF(out);  // None lives forever, other objects as long as the call's arguments
  if (const Used p = place_of(self); p) {
    Picked s;
    if (array::pick_all(*p, &s)) {
      if (out == Py_None) {
        s.whole = false;
        PyObject* found = read_picked(*p, s, false);
        if (found != nullptr || PyErr_Occurred() != nullptr) return found;
      } else if (std::byte* local = same_array(*p, out, s, true); local != nullptr) {
        if (move(OpKind::read, *p, s, local)) return Py_NewRef(out);
      }
    }
  }
  return in_python(self, interned<"_read">(), {out});
}

PyObject* elements_write(PyObject* self, PyObject* (&a)[1]) {
  if (const Used p = place_of(self); p) {
    Picked s;
    std::byte* local = nullptr;
    if (array::pick_all(*p, &s) && (local = same_array(*p, a[0], s, false)) != nullptr &&
        move(OpKind::write, *p, s, local)) {
      Py_RETURN_NONE;
    }
  }
  return in_python(self, interned<"_write">(), {a[0]});
}

PyObject* elements_fill(PyObject* self, PyObject* (&a)[1]) {
  if (const Used p = place_of(self); p) {
    Picked s;
    alignas(16) std::byte room[kElementBytesMax];
    if (array::pick_all(*p, &s) && store_value(*p, a[0], room) && spread(*p, s, nullptr, room)) Py_RETURN_NONE;
  }
  return in_python(self, interned<"_fill">(), {a[0]});
}

bool first_axis(PyObject* axis) {
  if (axis == nullptr) return true;
  return PyLong_CheckExact(axis) && PyLong_AsSsize_t(axis) == 0;
}

PyObject* elements_take(PyObject* self, PyObject* (&a)[3]) {
  static PyObject* const zero = PyLong_FromLong(0);
  const auto& [indices, axis, out] = a;
  if (const Used p = place_of(self); p && first_axis(axis)) {
    nic::Rows rows;
    nb::object held;
    Picked s;
    if (pick_rows(*p, indices, &rows, &s, &held)) {
      const bool makes = out == nullptr || out == Py_None;
      nb::object target = makes ? nb::steal(new_array(*p, s)) : nb::borrow(out);
      if (!target.is_valid()) return nullptr;
      rows.local = same_array(*p, target.ptr(), s, true);
      if (rows.local != nullptr && move_rows(OpKind::read, *p, rows)) return target.release().ptr();
    }
  }
  PyErr_Clear();
  return in_python(self, interned<"_take_rows">(),
                   {indices, axis != nullptr ? axis : zero, out != nullptr ? out : Py_None});
}

PyObject* elements_put(PyObject* self, PyObject* (&a)[3]) {
  static PyObject* const zero = PyLong_FromLong(0);
  const auto& [indices, values, axis] = a;
  if (const Used p = place_of(self); p && first_axis(axis)) {
    nic::Rows rows;
    nb::object held;
    Picked s;
    if (pick_rows(*p, indices, &rows, &s, &held) && write_picked(*p, s, &rows, values)) Py_RETURN_NONE;
  }
  PyErr_Clear();
  return in_python(self, interned<"_put_rows">(), {indices, values, axis != nullptr ? axis : zero});
}

#define WEFT_CALL(name, params, doc) {#name, method<parsed<elements_##name, #name, params>>(), kFast, doc}

PyMethodDef g_methods[] = {
    WEFT_CALL(
        read, "out",
        "Read all elements, in one copy.\n\n"
        "out   the destination: a writable C-contiguous array of the same shape and dtype (NumPy, torch ...), or\n"
        "      a writable buffer of as many bytes; None for a new NumPy array.\n\n"
        "Returns the new array, or `out`. Raises ValueError (shape), TypeError (dtype), AccessDenied (out is\n"
        "read-only)."),
    WEFT_CALL(
        write, "value!",
        "Write all elements, in one copy if `value` is a C-contiguous array of the same dtype.\n\n"
        "value   an array of the same shape (NumPy, torch, a list ...), of a dtype that NumPy converts safely.\n\n"
        "`t[...] = value` also broadcasts and converts. Raises ValueError (shape), TypeError (dtype)."),
    WEFT_CALL(fill, "value!",
              "Set every element to a value.\n\n"
              "value   one value, converted as NumPy's assignment does.\n\n"
              "Raises ValueError (an array), TypeError (dtype), and the errors of the class."),
    WEFT_CALL(
        take, "indices! axis out",
        "Rows by index, in one vectored operation: `numpy.asarray(t).take(indices, axis)`.\n\n"
        "indices   array of integers of any shape, negative ones counted from the end; or a mask along the axis.\n"
        "axis      of the array; the first (NumPy's own default is the flattened array).\n"
        "out       the destination, as for `read`.\n\n"
        "Returns an array of shape `shape[:axis] + indices.shape + shape[axis+1:]`, or `out`.\n"
        "Raises IndexError (out of bounds: nothing is read), TypeError."),
    WEFT_CALL(put, "indices! values! axis",
              "Write rows by index, in one vectored operation: `a[indices] = values` along an axis.\n\n"
              "indices, axis   as for `take`. A row with several values gets the last one.\n"
              "values          converted and broadcast to the shape that `take` returns.\n\n"
              "Raises IndexError (out of bounds: nothing is written), ValueError, TypeError."),
    {"_lay", method<elements_lay>(), METH_FASTCALL,
     "The selection: address of the first element in the owner's region (bytes), the region's key (None: no region),\n"
     "dtype, shape, byte strides. Ends the effect of _link()."},
    {"_link", method<elements_link>(), METH_FASTCALL,
     "The way to the owner: an enabled endpoint, and the owner's fi_addr."},
    {"_adopt", method<elements_adopt>(), METH_O,
     "The selection of another array, and the way to its owner, in place of this array's."},
    {"_join", method<elements_join>(), METH_O, "The way to the owner as another selection has it."},
    {nullptr, nullptr, 0, nullptr}};

constexpr const char* kDoc =
    "Access to the elements of another process's array in one call. Subclasses have the methods of the same names "
    "with\n"
    "an underscore (_get_item, _set_item, _read ...), for what load and store cannot do.";

}  // namespace

void register_elements(Module& m) {
  if (!make_adder_type(m)) throw nb::python_error();
  static std::vector<PyMethodDef> methods;
  for (const PyMethodDef* from :
       {static_cast<const PyMethodDef*>(g_methods), static_cast<const PyMethodDef*>(g_element_atomics)}) {
    for (; from->ml_name != nullptr; ++from) methods.push_back(*from);
  }
  methods.push_back({nullptr, nullptr, 0, nullptr});
  static PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>(kDoc)},
                                {Py_tp_new, slot<elements_new>()},
                                {Py_tp_init, slot<elements_init>()},
                                {Py_tp_dealloc, slot<elements_dealloc>()},
                                {Py_mp_subscript, slot<elements_getitem>()},
                                {Py_mp_ass_subscript, slot<elements_setitem>()},
                                {Py_sq_item, slot<elements_item>()},
                                {Py_tp_methods, with_signatures("Elements", methods.data())},
                                {Py_tp_getset, g_element_getset},
                                {0, nullptr}};
  static PyType_Spec spec{"weft._nic.Elements", sizeof(Elements), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  const nb::object type = nb::steal(PyType_FromSpec(&spec));
  if (!type.is_valid()) throw nb::python_error();
  g_elements_type = reinterpret_cast<PyTypeObject*>(nb::borrow(type).release().ptr());  // kept forever
  m.attr("Elements") = type;
  m.about("The subclass of numpy.ndarray of what t[key] returns, where NumPy would return a view. Kept forever.")
      .def<"set_copy_type(type: type) -> None">([](nb::handle copy) {
        if (!PyType_Check(copy.ptr())) throw nb::type_error("a subclass of numpy.ndarray");
        g_copy_type = reinterpret_cast<PyTypeObject*>(nb::borrow(copy).release().ptr());
      });
}

}  // namespace weft::bind
