// cpp/bind/ep_methods.cpp: the data-path methods of an endpoint, with their documentation.
#include <vector>

#include "bind/ep.hpp"
#include "bind/signatures.hpp"

namespace weft::bind {

namespace {

PyObject* ask(PyObject* self, size_t number, EpMethod* call, PyObject* const* args, Py_ssize_t nargs,
              PyObject* kwnames);

// HOT. A call of a handle.
template <EpMethod* call, size_t number>
PyObject* called(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static_assert(number < 64, "EndpointCore::goes has a bit for each call");
  if ((self_of(self)->goes >> number & 1) != 0) [[likely]]
    return call(self, args, nargs, kwnames);
  return ask(self, number, call, args, nargs, kwnames);
}

// A call's number is its place in the table.
constexpr size_t kFirst = __COUNTER__ + 1;
#define WEFT_CALL(name, params, doc) {#name, method<called<ep_##name, __COUNTER__ - kFirst>>(), kFast, doc},

PyMethodDef g_methods[] = {
#include "bind/calls.inl"
    {nullptr, nullptr, 0, nullptr}};

// A call that the handle's method _asked may refuse, or do; it answers NotImplemented if the call is to go on.
PyObject* ask(PyObject* self, size_t number, EpMethod* call, PyObject* const* args, Py_ssize_t nargs,
              PyObject* kwnames) {
  const char* const name = g_methods[number].ml_name;
  if (self_of(self)->box == nullptr) {  // an object whose __init__() has not run
    return set_error(fi_err::kEOPBADSTATE, name, ": no endpoint was opened\n  try: fi.Domain.endpoint()");
  }
  const nb::object text = nb::steal(PyUnicode_FromString(name));
  std::vector<PyObject*> all{self, text.ptr()};
  all.insert(all.end(), args, args + nargs + (kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0));
  PyObject* done = PyObject_VectorcallMethod(interned<"_asked">(), all.data(), static_cast<size_t>(nargs) + 2, kwnames);
  if (done != Py_NotImplemented) return done;
  Py_DECREF(done);
  return call(self, args, nargs, kwnames);
}

}  // namespace

uint64_t bit_of(std::string_view call) {
  for (size_t number = 0; g_methods[number].ml_name != nullptr; ++number) {
    if (call == g_methods[number].ml_name) return uint64_t{1} << number;
  }
  raise(fi_err::kEINVAL, "an endpoint has no call ", call);
}

void register_calls(Module& m) {
  m.about("The data-path calls of endpoints: (name, table, form, kind, params) each, as in cpp/bind/calls.inl.")
      .def<"calls() -> list[tuple[str, str, str, str, str]]">([] {
        static constexpr const char* kRows[][5] = {
#define WEFT_TRANSFER(name, entry, form, kind, params, doc) {#name, "rma", #form, #kind, params},
#define WEFT_BATCH(name, kind, params, doc) {#name, "batch", "one", #kind, params},
#define WEFT_ATOMIC(name, form, family, params, doc) {#name, "atomic", #form, #family, params},
#define WEFT_MESSAGE(name, table, entry, form, side, params, doc) {#name, #table, #form, #side, params},
#define WEFT_COLLECTIVE(name, kind, params, doc) {#name, "collective", "one", #kind, params},
#include "bind/calls.inl"
        };
        nb::list all;
        for (const auto& row : kRows) all.append(nb::make_tuple(row[0], row[1], row[2], row[3], row[4]));
        return all;
      });
}

PyType_Slot g_endpoint_slots[] = {{Py_tp_methods, with_signatures("EndpointCore", g_methods)}, {0, nullptr}};

}  // namespace weft::bind
