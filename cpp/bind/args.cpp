// cpp/bind/args.cpp: a method's arguments by position and by name.
#include "bind/common.hpp"

#include <algorithm>
#include <string_view>

namespace weft::bind {

void name_bad_number(PyObject* o, const char* method, const char* name) {
  const bool number = PyLong_Check(o) || PyErr_ExceptionMatches(PyExc_OverflowError);
  if (!number && !PyErr_ExceptionMatches(PyExc_TypeError)) return;  // keep the exception of __index__
  PyErr_Clear();
  if (number) {
    PyObject* text = PyUnicode_FromFormat("%s: %s is %R; it has to be 0 to 2**64 - 1", method, name, o);
    const char* utf8 = text != nullptr ? PyUnicode_AsUTF8(text) : nullptr;
    if (utf8 != nullptr) set_error(fi_err::kEINVAL, utf8);
    Py_XDECREF(text);
    return;
  }
  const std::string_view what = name;
  const char* tip = what == "dest_addr" || what == "src_addr"
                        ? ": pass what av.insert() returned for the peer's address"
                    : what == "key"  ? ": pass mr.key of the peer's region"
                    : what == "addr" ? ": pass the offset in the peer's region (a virtual address under MR_VIRT_ADDR)"
                                     : "";
  PyErr_Format(PyExc_TypeError, "%s: %s must be an int, not %R%s", method, name, o, tip);
}

bool parse(Signature& s, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** out) {
  const size_t n = s.names.size();
  if (s.interned.empty()) {
    for (const char* name : s.names) s.interned.push_back(PyUnicode_InternFromString(name));
  }
  if (static_cast<size_t>(nargs) > s.positional)
    return type_error("%s() takes at most %zu positional arguments (%zd given)", s.method, s.positional, nargs);
  for (Py_ssize_t i = 0; i < nargs; ++i) out[i] = args[i];
  for (size_t i = static_cast<size_t>(nargs); i < n; ++i) out[i] = nullptr;
  if (kwnames != nullptr) {
    const Py_ssize_t count = PyTuple_GET_SIZE(kwnames);
    size_t guess = static_cast<size_t>(nargs);  // keywords usually follow the order of the parameters
    for (Py_ssize_t k = 0; k < count; ++k) {
      PyObject* name = PyTuple_GET_ITEM(kwnames, k);
      size_t at = n;
      for (size_t i = guess, probe = 0; probe < n; ++probe, ++i) {
        if (i == n) i = 0;  // a division instead costs 4 ns a name
        if (s.interned[i] == name) {
          at = i;
          break;
        }
      }
      if (at == n) {  // not interned: compare by value
        for (size_t i = 0; i < n && at == n; ++i) {
          const int equal = PyObject_RichCompareBool(s.interned[i], name, Py_EQ);
          if (equal < 0) return false;
          if (equal != 0) at = i;
        }
      }
      if (at == n) return type_error("%s() got an unexpected keyword argument '%U'", s.method, name);
      if (out[at] != nullptr) return type_error("%s() got multiple values for argument '%s'", s.method, s.names[at]);
      out[at] = args[nargs + k];
      guess = at + 1;
    }
  }
  for (size_t i = 0; i < s.required; ++i) {
    if (out[i] == nullptr) return type_error("%s() needs the argument '%s'", s.method, s.names[i]);
  }
  return true;
}

PyObject* forward(PyObject* self, PyObject* name, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  constexpr size_t kMost = 16;
  const size_t all =
      static_cast<size_t>(nargs) + (kwnames == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(kwnames)));
  if (all > kMost) return type_error("%U() takes at most %zu arguments", name, kMost);
  PyObject* with_self[kMost + 1] = {self};
  std::copy_n(args, all, with_self + 1);
  return PyObject_VectorcallMethod(name, with_self, static_cast<size_t>(nargs) + 1, kwnames);
}

}  // namespace weft::bind
