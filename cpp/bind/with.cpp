// cpp/bind/with.cpp: see with.hpp. CPython before 3.14 binds both methods to the object each time that it runs `with`.
// For methods of a PyMethodDef it makes two objects, which takes longer than a lock's instructions (30 ns). Here they
// come from a short list.
//
// HOT: method_get(), bound_call(), bound_dealloc(). Benchmark: bench/bench_coordination.py.
#include "bind/with.hpp"

#include <structmember.h>

#include <cstddef>

namespace weft::bind {

namespace {

// An entry of the type's dictionary: a descriptor, as CPython's own methods are.
struct Method {
  PyObject ob_base;
  vectorcallfunc call;
  WithCall does;
  PyTypeObject* of;
  const char* name;
  const char* doc;
  const char* signature;
  bool takes_more;  // arguments that it does not use
};

// A method with its object. In the garbage collector's lists while it is alive: the object may keep it.
struct Bound {
  PyObject ob_base;
  vectorcallfunc call;
  const Method* method;
  PyObject* self;
  Bound* next;  // while it is dead
};

PyTypeObject *g_method_type = nullptr, *g_bound_type = nullptr;
constexpr int kKept = 8;
Bound* g_kept = nullptr;  // under the GIL, or the seam
int g_kept_count = 0;

Method* method_of(PyObject* o) {
  return reinterpret_cast<Method*>(o);
}
Bound* bound_of(PyObject* o) {
  return reinterpret_cast<Bound*>(o);
}

PyObject* run(const Method& m, PyObject* self, Py_ssize_t nargs, PyObject* kwnames) {
  if (self == nullptr || !PyObject_TypeCheck(self, m.of)) [[unlikely]]
    return type_error("%s() is a method of '%s' objects", m.name, m.of->tp_name);
  if ((nargs != 0 && !m.takes_more) || kwnames != nullptr) [[unlikely]]
    return type_error("%s() takes no %sarguments", m.name, kwnames != nullptr ? "keyword " : "");
  return m.does(self);
}

PyObject* method_call(PyObject* o, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  const Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  return run(*method_of(o), nargs == 0 ? nullptr : args[0], nargs - 1, kwnames);
}

PyObject* bound_call(PyObject* o, PyObject* const*, size_t nargsf, PyObject* kwnames) {
  return run(*bound_of(o)->method, bound_of(o)->self, PyVectorcall_NARGS(nargsf), kwnames);
}

PyObject* method_get(PyObject* o, PyObject* object, PyObject*) {
  if (object == nullptr || object == Py_None) return Py_NewRef(o);
  Bound* bound = g_kept;
  if (bound != nullptr) [[likely]] {
    g_kept = bound->next;
    --g_kept_count;
    PyObject_Init(&bound->ob_base, g_bound_type);
  } else {
    bound = PyObject_GC_New(Bound, g_bound_type);
    if (bound == nullptr) return nullptr;
    bound->call = kEntry<bound_call>;
  }
  bound->method = method_of(o);  // which lives forever
  bound->self = Py_NewRef(object);
  PyObject_GC_Track(&bound->ob_base);
  return &bound->ob_base;
}

void bound_dealloc(PyObject* o) {
  PyObject_GC_UnTrack(o);
  PyTypeObject* type = Py_TYPE(o);
  Py_CLEAR(bound_of(o)->self);
  if (g_kept_count < kKept) [[likely]] {
    ++g_kept_count;
    bound_of(o)->next = g_kept;
    g_kept = bound_of(o);
  } else {
    PyObject_GC_Del(o);
  }
  Py_DECREF(type);
}
int bound_traverse(PyObject* o, visitproc visit, void* arg) {
  Py_VISIT(bound_of(o)->self);
  Py_VISIT(Py_TYPE(o));
  return 0;
}
int bound_clear(PyObject* o) {
  Py_CLEAR(bound_of(o)->self);
  return 0;
}

PyObject* method_repr(PyObject* o) {
  return PyUnicode_FromFormat("<method '%s' of '%s' objects>", method_of(o)->name, method_of(o)->of->tp_name);
}
PyObject* bound_repr(PyObject* o) {
  const Bound* bound = bound_of(o);
  return PyUnicode_FromFormat("<method %s of %R>", bound->method->name, bound->self != nullptr ? bound->self : Py_None);
}

// Attributes, as CPython's methods have them.
template <const char* Method::* text>
PyObject* get_text(PyObject* o, void* of_bound) {
  const Method* m = of_bound != nullptr ? bound_of(o)->method : method_of(o);
  return PyUnicode_FromString(m->*text);
}
PyObject* get_qualname(PyObject* o, void* of_bound) {
  const Method* m = of_bound != nullptr ? bound_of(o)->method : method_of(o);
  const nb::object outer = nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(m->of), "__qualname__"));
  return outer.is_valid() ? PyUnicode_FromFormat("%U.%s", outer.ptr(), m->name) : nullptr;
}
PyObject* get_class(PyObject* o, void*) {
  return Py_NewRef(reinterpret_cast<PyObject*>(method_of(o)->of));
}

char g_of_bound;
#define WEFT_TEXTS(of)                                                              \
  {"__name__", get_text<&Method::name>, nullptr, nullptr, of},                      \
      {"__doc__", get_text<&Method::doc>, nullptr, nullptr, of},                    \
      {"__text_signature__", get_text<&Method::signature>, nullptr, nullptr, of}, { \
    "__qualname__", get_qualname, nullptr, nullptr, of                              \
  }
PyGetSetDef g_method_getset[] = {WEFT_TEXTS(nullptr),
                                 {"__objclass__", get_class, nullptr, nullptr, nullptr},
                                 {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyGetSetDef g_bound_getset[] = {WEFT_TEXTS(&g_of_bound), {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMemberDef g_method_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Method, call), READONLY, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
PyMemberDef g_bound_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Bound, call), READONLY, nullptr},
                                 {"__self__", T_OBJECT, offsetof(Bound, self), READONLY, nullptr},
                                 {nullptr, 0, 0, 0, nullptr}};

bool make_types() {
  if (g_bound_type != nullptr) return true;
  constexpr unsigned kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_VECTORCALL;
  static PyType_Slot of_methods[] = {{Py_tp_descr_get, slot<method_get>()}, {Py_tp_call, slot<PyVectorcall_Call>()},
                                     {Py_tp_repr, slot<method_repr>()},     {Py_tp_getset, g_method_getset},
                                     {Py_tp_members, g_method_members},     {0, nullptr}};
  static PyType_Spec methods{"weft._nic.WithMethod", sizeof(Method), 0, kFlags | Py_TPFLAGS_METHOD_DESCRIPTOR,
                             of_methods};
  static PyType_Slot of_bound[] = {{Py_tp_dealloc, slot<bound_dealloc>()},
                                   {Py_tp_traverse, reinterpret_cast<void*>(bound_traverse)},
                                   {Py_tp_clear, reinterpret_cast<void*>(bound_clear)},
                                   {Py_tp_call, slot<PyVectorcall_Call>()},
                                   {Py_tp_repr, slot<bound_repr>()},
                                   {Py_tp_getset, g_bound_getset},
                                   {Py_tp_members, g_bound_members},
                                   {0, nullptr}};
  static PyType_Spec bound{"weft._nic.WithCall", sizeof(Bound), 0, kFlags | Py_TPFLAGS_HAVE_GC, of_bound};
  g_method_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&methods));
  if (g_method_type == nullptr) return false;
  g_bound_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&bound));
  return g_bound_type != nullptr;
}

bool add(PyTypeObject* type, WithCall does, const char* name, const char* doc, const char* signature, bool more) {
  auto* made = PyObject_New(Method, g_method_type);
  if (made == nullptr) return false;
  made->call = kEntry<method_call>;
  made->does = does;
  made->of = type;
  made->name = name;
  made->doc = doc;
  made->signature = signature;
  made->takes_more = more;
  // The reference is kept: bound methods point to it.
  return PyObject_SetAttrString(reinterpret_cast<PyObject*>(type), name, &made->ob_base) == 0;
}

}  // namespace

bool make_with(PyTypeObject* type, WithCall enter, WithCall exit) {
  return make_types() && add(type, enter, "__enter__", "Acquires.", "($self, /)", false) &&
         add(type, exit, "__exit__", "Releases.", "($self, /, *error)", true);
}

}  // namespace weft::bind
