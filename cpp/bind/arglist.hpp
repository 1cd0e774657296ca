// cpp/bind/arglist.hpp: lists of buffers and of remote pieces, and the fields of a message struct.
#pragma once

#include <array>
#include <span>

#include "bind/ep.hpp"

namespace weft::bind {

// A list of buffers: the application's objects, and their form for cpp/call.
struct BufList {
  std::array<Buf, nic::kIovMax> bufs;
  std::array<const Buf*, nic::kIovMax> pointers{};
  std::array<call::Local, nic::kIovMax> locals;
  size_t count = 0;
  bool receives = false;             // of a receive, which has a limit of its own
  uint64_t datatype = ~uint64_t{0};  // of an atomic's elements

  // `list`: a sequence of buffers, or of objects with .addr and .count (in elements of `element` bytes).
  // `count_arg`: the number of entries to use. False with a Python error set.
  bool acquire(EndpointCore* core, PyObject* list, bool writable, PyObject* count_arg, const char* method,
               size_t element = 0);
  // descs: a sequence with a descriptor or None per buffer, one region that covers all buffers, or None.
  bool convert_descs(EndpointCore* core, PyObject* descs, const char* method);
  [[nodiscard]] std::span<const call::Local> span() const { return {locals.data(), count}; }
  [[nodiscard]] uint64_t total() const;  // bytes; saturates
};

// An attribute of a message struct, as an owned reference.
struct Attr {
  // expected: the struct that the call takes, for the text of the error.
  explicit Attr(PyObject* owner, const char* name, const char* expected = "fi.MsgRma (fi.MsgAtomic for atomics)")
      : value(PyObject_GetAttrString(owner, name)) {
    if (value == nullptr && PyErr_ExceptionMatches(PyExc_AttributeError)) {
      PyErr_Format(PyExc_TypeError, "msg must be an %s: %R has no attribute '%s'", expected, owner, name);
    }
  }
  Attr(const Attr&) = delete;
  Attr& operator=(const Attr&) = delete;
  ~Attr() { Py_XDECREF(value); }
  PyObject* value;
};

// The remote list of a message: objects with .addr, .len (or .count, in elements) and .key, or triples.
bool remote_list(EndpointCore* core, PyObject* list, PyObject* count_arg, const char* method, size_t element,
                 std::array<wire::RmaRange, nic::kIovMax>& out, size_t* count);

}  // namespace weft::bind
