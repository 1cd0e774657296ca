// cpp/bind/signatures.cpp: see signatures.hpp. Nothing here runs in a call whose arguments fit, but one indirect jump.
#include "bind/signatures.hpp"

#include <array>
#include <cstring>
#include <deque>
#include <string>

namespace weft::bind {

namespace {

struct TextSignature {
  const char* type;
  const char* method;
  const char* text;
};
constexpr TextSignature kTextSignatures[] = {
#include "bind/text_signatures.inc"  // made by text_signatures.py
};

constexpr const char* kWording = "weft._signatures";
constexpr const char* kNanobinds = "incompatible function arguments";

// nanobind has a few functions that call an object, chosen by its parameters. Each of its objects holds a pointer to
// such a function; our functions take their places, and each calls the function that it replaced.
constexpr size_t kCallersMax = 8;
std::array<vectorcallfunc, kCallersMax> g_replaced{};

// The count of arguments in a vectorcall's second argument: CPython and nanobind keep flags in its upper bits.
constexpr size_t kCountMask = ~size_t{0} >> 8;

// Replaces nanobind's TypeError by one of ours, if the current error is nanobind's.
void reword(PyObject* function, PyObject* const* args, size_t count, PyObject* names) {
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) return;
  nb::python_error caught;  // takes the current error
  try {
    if (std::strstr(nb::str(caught.value()).c_str(), kNanobinds) == nullptr) {
      caught.restore();
      return;
    }
    nb::list types;  // not the values: the object that a constructor makes is not ready
    for (size_t i = 0; i < count; ++i) types.append(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(args[i]))));
    const nb::object keywords = names == nullptr ? nb::object(nb::tuple()) : nb::borrow(names);
    for (size_t i = 0; i < nb::len(keywords); ++i) {
      types.append(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(args[count + i]))));
    }
    const nb::object text = nb::module_::import_(kWording).attr("refusal")(nb::handle(function), types, keywords);
    PyErr_SetObject(PyExc_TypeError, text.ptr());
  } catch (nb::python_error& failed) {
    failed.restore();
  }
}

template <size_t I>
PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  PyObject* found = g_replaced[I](self, args, nargsf, names);
  if (found == nullptr) [[unlikely]]
    reword(self, args, nargsf & kCountMask, names);
  return found;
}

template <size_t... I>
constexpr std::array<vectorcallfunc, sizeof...(I)> callers(std::index_sequence<I...>) {
  return {call<I>...};
}
constexpr auto kCallers = callers(std::make_index_sequence<kCallersMax>{});

// Puts our caller in the place of nanobind's. Functions of a kind that comes after the eighth keep nanobind's messages.
void explain(PyObject* function) {
  const Py_ssize_t offset = Py_TYPE(function)->tp_vectorcall_offset;
  if (offset <= 0) return;
  auto* place = reinterpret_cast<vectorcallfunc*>(reinterpret_cast<char*>(function) + offset);
  for (size_t i = 0; i < kCallersMax; ++i) {
    if (*place == kCallers[i]) return;  // met before: the same function under another name
    if (g_replaced[i] == nullptr) g_replaced[i] = *place;
    if (g_replaced[i] == *place) {
      *place = kCallers[i];
      return;
    }
  }
}

PyObject* signature_of(PyObject* function, void* /*closure*/) {
  PyObject* module = PyImport_ImportModule(kWording);
  if (module == nullptr) return nullptr;
  PyObject* found = PyObject_CallMethod(module, "signature", "O", function);
  Py_DECREF(module);
  return found;
}

PyGetSetDef g_signature = {"__signature__", signature_of, nullptr, "For inspect.signature().", nullptr};

// nanobind's types refuse new attributes, so the descriptor goes into the dictionary. They are of this module alone
// (NB_DOMAIN), and no code has used them yet.
void add_signature(PyTypeObject* type) {
  const nb::object descriptor = nb::steal(PyDescr_NewGetSet(type, &g_signature));
  if (!descriptor.is_valid()) throw nb::python_error();
#if PY_VERSION_HEX >= 0x030C0000
  const nb::object dict = nb::steal(PyType_GetDict(type));
#else
  const nb::object dict = nb::borrow(type->tp_dict);
#endif
  if (PyDict_SetItemString(dict.ptr(), "__signature__", descriptor.ptr()) != 0) throw nb::python_error();
  PyType_Modified(type);
}

bool is_kind(nb::handle value, const char* name) {
  return std::strcmp(Py_TYPE(value.ptr())->tp_name, name) == 0;
}

}  // namespace

PyMethodDef* with_signatures(const char* type, PyMethodDef* methods) {
  static std::deque<std::string> docs;  // CPython keeps pointers to them
  for (PyMethodDef* method = methods; method->ml_name != nullptr; ++method) {
    for (const TextSignature& known : kTextSignatures) {
      if (std::strcmp(known.type, type) != 0 || std::strcmp(known.method, method->ml_name) != 0) continue;
      docs.push_back(std::string(known.text) + (method->ml_doc == nullptr ? "" : method->ml_doc));
      method->ml_doc = docs.back().c_str();
    }
  }
  return methods;
}

void explain_functions(Module& m) {
  PyTypeObject *function = nullptr, *method = nullptr, *bound = nullptr;
  const auto visit = [&](nb::handle value) {
    if (is_kind(value, "nanobind.nb_func")) {
      function = Py_TYPE(value.ptr());
    } else if (is_kind(value, "nanobind.nb_method")) {
      method = Py_TYPE(value.ptr());
      if (bound == nullptr) bound = Py_TYPE(value.attr("__get__")(m).ptr());  // any object can be bound
    } else {
      return;
    }
    explain(value.ptr());
  };
  for (const nb::handle value : nb::list(m.attr("__dict__").attr("values")())) {
    visit(value);
    if (!PyType_Check(value.ptr())) continue;
    for (const nb::handle member : nb::list(value.attr("__dict__").attr("values")())) {
      visit(member);
      if (Py_TYPE(member.ptr()) == &PyProperty_Type) {
        for (const char* accessor : {"fget", "fset"}) visit(member.attr(accessor));
      } else if (PyObject_TypeCheck(member.ptr(), reinterpret_cast<PyTypeObject*>(&PyStaticMethod_Type))) {
        visit(member.attr("__func__"));
      }
    }
  }
  for (PyTypeObject* type : {function, method, bound}) {
    if (type != nullptr) add_signature(type);
  }
}

}  // namespace weft::bind
