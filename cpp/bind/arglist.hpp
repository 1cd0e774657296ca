// cpp/bind/arglist.hpp: lists of buffers and of remote pieces, and the fields of a message struct.
#pragma once

#include <array>
#include <span>

#include "bind/ep.hpp"

namespace weft::bind {

// The entries of a list that a call uses: the number that its count argument gives, or all.
struct Entries {
  nb::object list;
  size_t count = 0;
  // remote: of remote pieces, not of buffers. False with an error set.
  bool take(PyObject* from, PyObject* count_arg, bool remote, const char* method);
  PyObject* operator[](size_t i) const { return PySequence_Fast_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i)); }
};

// An entry of a list of buffers: a buffer, or an object with .addr and .count, in elements of `element` bytes.
struct BufEntry {
  BufEntry(PyObject* item, size_t element);
  // Shortens the buffer, which was taken, to the entry's elements. False with an error set.
  bool shorten(Buf* b, const char* method, uint64_t datatype) const;
  PyObject* buffer;  // the item keeps the memory alive, even if the buffer is a temporary attribute of the item

 private:
  size_t element_;
  nb::object addr_, elements_;
};

// A remote piece: an object with .addr, .len (of an atomic: .count, in elements) and .key, or a triple.
bool remote_piece(PyObject* item, bool atomic, const char* method, uint64_t* addr, uint64_t* length, uint64_t* key);

// The descriptors of `count` buffers: f(descriptor, i). descs: a sequence of them, or, with `same`, one for all.
template <typename F>
bool each_desc(PyObject* descs, bool same, size_t count, const char* method, F&& f) {
  const nb::object list = same ? nb::object() : nb::steal(PySequence_Fast(descs, "desc must be a sequence"));
  if (!same && !list.is_valid()) return false;
  const size_t given = same ? count : static_cast<size_t>(PySequence_Fast_GET_SIZE(list.ptr()));
  if (given < count) {
    return set_error(fi_err::kEINVAL, method, ": desc has ", given, " entries for ", count,
                     " buffers: give one for each, or None in its place");
  }
  for (size_t i = 0; i < count; ++i) {
    if (!f(same ? descs : PySequence_Fast_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i)), i)) return false;
  }
  return true;
}

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

constexpr const char* kMsgTypes = "fi.MsgRma (fi.MsgAtomic for atomics)";

// An attribute of a message struct, as an owned reference.
struct Attr {
  // expected: the struct that the call takes, for the text of the error.
  explicit Attr(PyObject* owner, const char* name, const char* expected = kMsgTypes)
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

// The fields that all message structs have.
struct MsgFields {
  // type: as Attr's `expected`.
  MsgFields(PyObject* msg, const char* type)
      : iov(msg, "msg_iov", type),
        desc(msg, "desc", type),
        count(msg, "iov_count", type),
        addr(msg, "addr", type),
        context(msg, "context", type),
        data(msg, "data", type) {}
  [[nodiscard]] bool all() const {
    for (const Attr* attr : {&iov, &desc, &count, &addr, &context, &data}) {
      if (attr->value == nullptr) return false;
    }
    return true;
  }
  Attr iov, desc, count, addr, context, data;
};

// The remote list of a message: objects with .addr, .len (or .count, in elements) and .key, or triples.
bool remote_list(EndpointCore* core, PyObject* list, PyObject* count_arg, const char* method, size_t element,
                 std::array<wire::RmaRange, nic::kIovMax>& out, size_t* count);

}  // namespace weft::bind
