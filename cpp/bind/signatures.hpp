// cpp/bind/signatures.hpp: signatures that inspect.signature() and help() show, and errors of arguments that do not
// fit.
#pragma once

#include "bind/common.hpp"

namespace weft::bind {

// Puts the text signatures of a type's plain CPython methods in front of their doc strings, where CPython reads them.
// Returns `methods`. `type` is "" for functions of the module. The signatures are stub_patterns.txt's.
PyMethodDef* with_signatures(const char* type, PyMethodDef* methods);

// For nb::type_slots of a type that has these methods and no other slots.
template <Text kType, PyMethodDef* kMethods>
PyType_Slot* method_slots() {
  static PyType_Slot slots[] = {{Py_tp_methods, with_signatures(kType.text, kMethods)}, {0, nullptr}};
  return slots;
}

// For all functions and methods that nanobind made, once they are all in the module: `__signature__`, and a TypeError
// in the words of weft._signatures instead of nanobind's "incompatible function arguments".
void explain_functions(Module& m);

}  // namespace weft::bind
