// cpp/bind/elements_atomic.cpp: the atomic calls of `Elements`: fetch_add, compare_swap, swap, fetch_op, add, add.at.
//
// HOT: calls on one element. One call from Python, one into the NIC (Endpoint::update_now). Benchmark:
// bench/bench_elements.py.
#include "bind/elements.hpp"
#include "bind/params.hpp"
#include "bind/signatures.hpp"

#include <structmember.h>

namespace weft::bind {

namespace {

using nic::AtomicFamily;
using nic::AtomicOp;

// An operation by name; null: not a name of one.
const array::NamedOp* find_op(PyObject* name) {
  if (name == nullptr) return array::find_op("sum");
  if (!PyUnicode_CheckExact(name)) return nullptr;
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name, &length);
  if (text != nullptr) return array::find_op({text, static_cast<size_t>(length)});
  PyErr_Clear();  // no text of UTF-8
  return nullptr;
}

// A call on elements. op_given: the name of the operation, or what the caller gave in its place.
struct AtomicCall {
  const char* name;
  AtomicFamily family;
  AtomicOp op;
  PyObject *index, *value, *expected = Py_None, *op_given = Py_None;
  bool known = true;  // op is valid
};

PyObject* sum_name() {
  return interned<"sum">();
}

PyObject* default_value() {
  static PyObject* const one = PyLong_FromLong(1);
  return one;
}

PyObject* call_in_python(PyObject* self, const AtomicCall& c) {
  const nb::object family = nb::steal(PyLong_FromLong(static_cast<long>(c.family)));
  const nb::object name = nb::steal(PyUnicode_FromString(c.name));
  if (!family.is_valid() || !name.is_valid()) return nullptr;
  return in_python(self, interned<"_atomic">(), {family.ptr(), c.op_given, c.index, c.value, c.expected, name.ptr()});
}

// HOT.
PyObject* one_element(PyObject* self, const AtomicCall& c) {
  if (const Used p = place_of(self); p && c.known) [[likely]] {
    Picked s;
    alignas(16) std::byte operand[kElementBytesMax], compare[kElementBytesMax], result[kElementBytesMax];
    if (p->has_op(c.op, c.family) && pick(*p, c.index, &s) && s.one_element() &&
        store_value(*p, c.value, operand, true) &&
        (c.family != AtomicFamily::compare || store_value(*p, c.expected, compare, true))) [[likely]] {
      nic::Update update;
      update.family = c.family;
      update.op = c.op;
      update.operand = operand;
      if (c.family == AtomicFamily::compare) update.compare = compare;
      if (c.family != AtomicFamily::base) update.result = result;
      if (array::update(*p, update, s.addr).done == 1) [[likely]] {
        if (c.family == AtomicFamily::base) Py_RETURN_NONE;
        return load_value(*p, result);
      }
    }
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  return call_in_python(self, c);
}

Signature g_add{"add", {"index", "value", "op"}, 3, 1, {}};

PyObject* elements_fetch_add(PyObject* self, PyObject* (&a)[2]) {
  return one_element(self, {.name = "fetch_add",
                            .family = AtomicFamily::fetch,
                            .op = AtomicOp::sum,
                            .index = a[0],
                            .value = a[1] != nullptr ? a[1] : default_value(),
                            .op_given = sum_name()});
}

PyObject* elements_compare_swap(PyObject* self, PyObject* (&a)[3]) {
  return one_element(self, {.name = "compare_swap",
                            .family = AtomicFamily::compare,
                            .op = AtomicOp::cswap,
                            .index = a[0],
                            .value = a[2],
                            .expected = a[1]});
}

PyObject* elements_swap(PyObject* self, PyObject* (&a)[2]) {
  return one_element(self, {.name = "swap",
                            .family = AtomicFamily::fetch,
                            .op = AtomicOp::atomic_write,
                            .index = a[0],
                            .value = a[1],
                            .op_given = interned<"replace">()});
}

PyObject* elements_fetch_op(PyObject* self, PyObject* (&a)[3]) {
  const array::NamedOp* op = find_op(a[1]);
  return one_element(self, {.name = "fetch_op",
                            .family = AtomicFamily::fetch,
                            .op = op != nullptr ? op->op : AtomicOp::sum,
                            .index = a[0],
                            .value = a[2],
                            .op_given = a[1],
                            .known = op != nullptr});
}

// ---- add ----------------------------------------------------------------------------------------------------------

// `t.add`: callable, and has `.at`.
struct Adder {
  PyObject ob_base;
  vectorcallfunc call;
  PyObject* array;
};

PyTypeObject* g_adder_type = nullptr;

Adder* adder_of(PyObject* self) {
  return reinterpret_cast<Adder*>(self);
}

// Raises the error of an update that ended early.
PyObject* fault(const char* name, const nic::Updated& u) {
  if (u.raced) {
    return set_error(fi_err::kEIO, name,
                     ": this process was stopped for seconds within the update, so others "
                     "went on: updates that they made meanwhile to elements after the first ",
                     u.done, " may be lost");
  }
  return set_error(fi_err::kEFAULT, name, ": a page of the values or of the array failed; the first ", u.done,
                   " elements are updated, and possibly some after them");
}

// t.add(block): element by element, to all of the array. The rest, which may be all, is left to _add_block().
PyObject* add_block(PyObject* self, PyObject* block, PyObject* op_name) {
  uint64_t done = 0;
  const array::NamedOp* op = find_op(op_name);
  if (const Used p = place_of(self); p && op != nullptr && p->has_op(op->op, AtomicFamily::base)) {
    Picked s;
    std::byte* local = nullptr;
    if (array::pick_all(*p, &s) && s.count == 1 && (local = same_array(*p, block, s, false)) != nullptr) {
      nic::Update update;
      update.op = op->op;
      update.operand = local;
      update.count = s.block / static_cast<uint64_t>(p->type.bytes);
      const uint64_t all = update.count;
      const nic::Updated u =
          released(s.block >= kReleaseGilBytes / 8, [&] { return array::update(*p, update, s.addr); });
      if (u.fault || u.raced) return fault("add", u);
      if (u.done == all) Py_RETURN_NONE;
      done = u.done;
    }
  }
  const nb::object first = nb::steal(PyLong_FromUnsignedLongLong(done));
  return in_python(self, interned<"_add_block">(), {block, op_name != nullptr ? op_name : sum_name(), first.ptr()});
}

// t.add.at(indices, values). The rows that were not updated are left to _add_at().
PyObject* add_rows(PyObject* self, PyObject* indices, PyObject* values, PyObject* op_name) {
  uint64_t done = 0;
  const array::NamedOp* op = find_op(op_name);
  const Used p = place_of(self);
  if (p && op != nullptr && is_index_array(indices) && p->has_op(op->op, AtomicFamily::base)) {
    nic::Rows rows;
    nb::object held;
    Picked s;
    alignas(16) std::byte room[kElementBytesMax];
    if (pick_rows(*p, indices, &rows, &s, &held)) {
      rows.local = same_array(*p, values, s, false);
      if (rows.local == nullptr && rows.bytes == static_cast<uint64_t>(p->type.bytes) &&
          store_value(*p, values, room, true)) {
        rows.local = room;
        rows.local_step = 0;
      }
      if (rows.local != nullptr) {
        const nic::Updated u =
            released(takes_long(rows.bytes, rows.count), [&] { return array::update_rows(*p, op->op, rows); });
        if (u.fault || u.raced) return fault("add.at", u);
        if (u.done == rows.count) Py_RETURN_NONE;
        done = u.done;
      }
    }
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  const nb::object first = nb::steal(PyLong_FromUnsignedLongLong(done));
  return in_python(self, interned<"_add_at">(),
                   {indices, values, op_name != nullptr ? op_name : sum_name(), first.ptr()});
}

// _scatter(op, starts, block, operand) -> int: updates the piece of `block` bytes at each address, in order; returns
// the number of pieces done.
PyObject* elements_scatter(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  uint64_t op = 0, block = 0;
  if (nargs != 4 || !PyArray_CheckExact(args[1]) || !PyArray_CheckExact(args[3]))
    return type_error("_scatter(op: int, starts: ndarray, block: int, operand: ndarray)");
  if (!to_u64(args[0], &op, "_scatter", "op") || !to_u64(args[2], &block, "_scatter", "block")) return nullptr;
  auto* starts = reinterpret_cast<PyArrayObject*>(args[1]);
  auto* operand = reinterpret_cast<PyArrayObject*>(args[3]);
  const auto count = static_cast<uint64_t>(PyArray_SIZE(starts));
  const Used p = place_of(self);
  if (!p || op >= nic::kAtomicOpCount || !p->has_op(static_cast<AtomicOp>(op), AtomicFamily::base) ||
      PyArray_TYPE(starts) != NPY_INTP || !PyArray_ISCARRAY_RO(starts) || !PyArray_IS_C_CONTIGUOUS(operand) ||
      !PyArray_EquivTypes(PyArray_DESCR(operand), p->descr) || block % static_cast<uint64_t>(p->type.bytes) != 0 ||
      count * block != static_cast<uint64_t>(PyArray_NBYTES(operand))) {
    return PyLong_FromLong(0);
  }
  nic::Rows rows;
  rows.local = static_cast<std::byte*>(PyArray_DATA(operand));
  rows.bytes = rows.local_step = block;
  rows.count = count;
  rows.step = 1;
  rows.index = static_cast<const int64_t*>(PyArray_DATA(starts));
  rows.limit = uint64_t{1} << 63;
  const nic::Updated u = released(takes_long(rows.bytes, rows.count),
                                  [&] { return array::update_rows(*p, static_cast<AtomicOp>(op), rows); });
  return u.fault || u.raced ? fault("add.at", u) : PyLong_FromUnsignedLongLong(u.done);
}

// A block of values, and no index: an array, which is no index of the atomic calls.
bool is_block(PyObject* o) {
  if (PyArray_Check(o)) return PyArray_NDIM(reinterpret_cast<PyArrayObject*>(o)) != 0;
  if (PyLong_Check(o) || PyTuple_Check(o) || PySlice_Check(o) || PyList_Check(o) || o == Py_Ellipsis || o == Py_None ||
      PyUnicode_Check(o) || PyArray_CheckScalar(o) || PyFloat_Check(o)) {
    return false;
  }
  return PyObject_CheckBuffer(o) != 0 || PyObject_HasAttr(o, interned<"__array__">()) != 0 ||
         PyObject_HasAttr(o, interned<"__dlpack__">()) != 0;
}

PyObject* adder_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  PyObject* a[3];
  if (!parse(g_add, args, PyVectorcall_NARGS(nargsf), kwnames, a)) return nullptr;
  const auto& [index, value, op_name] = a;
  PyObject* const array = adder_of(self)->array;
  if (value == nullptr && !PyLong_CheckExact(index) && is_block(index)) return add_block(array, index, op_name);
  const array::NamedOp* op = find_op(op_name);
  return one_element(array, {.name = "add",
                             .family = AtomicFamily::base,
                             .op = op != nullptr ? op->op : AtomicOp::sum,
                             .index = index,
                             .value = value != nullptr ? value : default_value(),
                             .op_given = op_name != nullptr ? op_name : sum_name(),
                             .known = op != nullptr});
}

PyObject* adder_at(PyObject* self, PyObject* (&a)[3]) {
  return add_rows(adder_of(self)->array, a[0], a[1] != nullptr ? a[1] : default_value(), a[2]);
}

void adder_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(adder_of(self)->array);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* adder_repr(PyObject* self) {
  return PyUnicode_FromFormat("<add of %R>", adder_of(self)->array);
}

PyObject* adder_signature(PyObject*, void*) {
  // inspect reads no text of a callable object: it asks for this.
  const nb::object inspect = nb::steal(PyImport_ImportModule("inspect"));
  if (!inspect.is_valid()) return nullptr;
  try {
    const nb::object parameter = inspect.attr("Parameter"), any = parameter.attr("POSITIONAL_OR_KEYWORD");
    nb::list all;
    all.append(parameter("index", any));
    all.append(parameter("value", any, nb::arg("default") = 1));
    all.append(parameter("op", any, nb::arg("default") = "sum"));
    return inspect.attr("Signature")(all).release().ptr();
  } catch (nb::python_error& e) {
    e.restore();
    return nullptr;
  }
}

PyObject* elements_add(PyObject* self, void*) {
  auto* found = adder_of(g_adder_type->tp_alloc(g_adder_type, 0));
  if (found == nullptr) return nullptr;
  found->call = kEntry<adder_call>;
  found->array = Py_NewRef(self);
  return reinterpret_cast<PyObject*>(found);
}

constexpr const char* kAddDoc =
    "add(index, value=1, op='sum'), add(block, op='sum')\n\n"
    "Add to elements, or combine them as `fetch_op` does, each atomically, and return nothing. Needs only \"w\" "
    "access,\n"
    "and moves half the bytes of a `fetch_add`.\n\n"
    "index   basic index of one element or several; `...` for all.\n"
    "value   a number, or an array that broadcasts to the selection.\n"
    "block   in place of index and value: an array of the shape of this array, added element by element:\n"
    "        `t.add(gradients)`, `t.at[10:20].add(part)`.\n\n"
    "`t.add.at(indices, values)` adds to rows by index, as numpy.add.at. Raises as `fetch_add`.";

constexpr const char* kAtDoc =
    "Add to rows by index, each element atomically: numpy.add.at. An index that occurs several times counts each "
    "time.\n\n"
    "indices   array of integers, negative ones counted from the end; a mask; or a tuple of them, one a dimension.\n"
    "values    a number, or an array that broadcasts to the shape of `t[indices]`.\n"
    "op        as for `fetch_op`.\n\n"
    "Raises IndexError (out of bounds: nothing is updated), ValueError, TypeError, AccessDenied.";

PyMethodDef g_adder_methods[] = {{"at", method<parsed<adder_at, "add.at", "indices! values op">>(), kFast, kAtDoc},
                                 {nullptr, nullptr, 0, nullptr}};
PyGetSetDef g_adder_getset[] = {{"__signature__", adder_signature, nullptr, "The signature of the call.", nullptr},
                                {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMemberDef g_adder_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Adder, call), READONLY, nullptr},
                                 {nullptr, 0, 0, 0, nullptr}};

#define WEFT_CALL(name, params, doc) {#name, method<parsed<elements_##name, #name, params>>(), kFast, doc}

}  // namespace

PyMethodDef g_element_atomics[] = {
    WEFT_CALL(fetch_add, "index! value",
              "Add to elements, each atomically, and return their previous values.\n\n"
              "index   basic index of one element or several; `...` for all.\n"
              "value   a number, or an array that broadcasts to the selection.\n\n"
              "Returns a scalar for one element, otherwise an array. Atomic with respect to all atomic calls, of any\n"
              "process. Raises TypeError (a dtype without atomics; a value of another kind), AccessDenied (not shared\n"
              "\"rw\")."),
    WEFT_CALL(
        compare_swap, "index! expected! value!",
        "Set elements that equal `expected` to `value`, each atomically, and return the previous values of all.\n\n"
        "Elements whose returned value equals `expected` were set: `if t.compare_swap(3, 0, pid) == 0: ...mine...`.\n"
        "Arguments and errors as `fetch_add`."),
    WEFT_CALL(swap, "index! value!",
              "Set elements, each atomically, and return their previous values. Arguments and errors as `fetch_add`."),
    WEFT_CALL(fetch_op, "index! op! value!",
              "Combine elements with a value, each atomically, and return their previous values.\n\n"
              "op   \"sum\", \"prod\", \"min\", \"max\", \"and\", \"or\", \"xor\" (bits), \"replace\".\n\n"
              "Other arguments and errors as `fetch_add`; InvalidArgument for another op."),
    {"_scatter", method<elements_scatter>(), METH_FASTCALL,
     "Updates the pieces of `block` bytes at these addresses, each atomically, in order; returns how many are done."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef g_element_getset[] = {{"add", elements_add, nullptr, kAddDoc, nullptr},
                                  {nullptr, nullptr, nullptr, nullptr, nullptr}};

bool make_adder_type(Module& m) {
  static PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>(kAddDoc)},
                                {Py_tp_dealloc, slot<adder_dealloc>()},
                                {Py_tp_call, slot<PyVectorcall_Call>()},
                                {Py_tp_repr, slot<adder_repr>()},
                                {Py_tp_methods, with_signatures("Adder", g_adder_methods)},
                                {Py_tp_getset, g_adder_getset},
                                {Py_tp_members, g_adder_members},
                                {0, nullptr}};
  static PyType_Spec spec{"weft._nic.Adder", sizeof(Adder), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) return false;
  g_adder_type = reinterpret_cast<PyTypeObject*>(type);
  m.attr("Adder") = nb::borrow(type);
  return true;
}

}  // namespace weft::bind
