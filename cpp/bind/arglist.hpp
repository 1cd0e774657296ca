// cpp/bind/arglist.hpp: lists of buffers and of remote pieces, and the fields of a message struct.
#pragma once

#include <sys/uio.h>

#include <array>

#include "bind/ep.hpp"

namespace weft::bind {

struct BufList {
  std::array<Buf, nic::kIovMax> bufs;
  std::array<const Buf*, nic::kIovMax> pointers{};
  std::array<iovec, nic::kIovMax> iov{};
  size_t count = 0;
  uint64_t total = 0;
  uint8_t device = 0;  // bit i: bufs[i] is a device's memory

  // `list`: a sequence of buffers (or of objects with .addr and .count, then in elements of `element` bytes).
  bool acquire(EndpointCore& core, PyObject* list, bool writable, PyObject* count_arg, const char* method,
               size_t element = 0) {
    if (list == nullptr || list == Py_None) return true;
    PyObject* fast = PySequence_Fast(list, "");
    if (fast == nullptr) {
      if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Format(PyExc_TypeError, "%s: a list of buffers is needed, not %R", method, list);
      }
      return false;
    }
    size_t n = static_cast<size_t>(PySequence_Fast_GET_SIZE(fast));
    if (count_arg != nullptr && count_arg != Py_None) {
      uint64_t wanted = 0;
      if (!to_u64(count_arg, &wanted, method, "count")) {
        Py_DECREF(fast);
        return false;
      }
      if (wanted > n) {
        Py_DECREF(fast);
        set_error(fi_err::kEINVAL, std::string(method) + ": count is " + std::to_string(wanted) + " but the list has " +
                                       std::to_string(n) + " buffers");
        return false;
      }
      n = wanted;
    }
    bool ok = n <= core.iov_limit;
    if (!ok) {
      set_error(fi_err::kEINVAL, std::string(method) + ": " + std::to_string(n) + " buffers are more than iov_limit, " +
                                     std::to_string(core.iov_limit) + ": split the call");
    }
    for (size_t i = 0; ok && i < n; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(fast, static_cast<Py_ssize_t>(i));
      PyObject* addr = nullptr;
      PyObject* elements = nullptr;
      if (element != 0 && PyObject_HasAttrString(item, "addr") && PyObject_HasAttrString(item, "count") &&
          !PyTuple_Check(item)) {
        addr = PyObject_GetAttrString(item, "addr");
        elements = PyObject_GetAttrString(item, "count");
      }
      bool of_device = false;
      ok = bufs[i].acquire(addr != nullptr ? addr : item, writable) &&
           is_device(*core.box, bufs[i], method, writable, &of_device);
      if (of_device) device = static_cast<uint8_t>(device | 1u << i);
      if (ok && elements != nullptr && elements != Py_None) {
        uint64_t e = 0;
        ok = to_u64(elements, &e, method, "count");
        if (ok && e > bufs[i].length / element) {
          set_error(fi_err::kEINVAL, std::string(method) + ": count " + std::to_string(e) +
                                         " passes the end of a buffer of " + std::to_string(bufs[i].length) + " bytes");
          ok = false;
        }
        if (ok) bufs[i].length = e * element;
      }
      // The item's own attribute object may be temporary: the item in the caller's list keeps the memory.
      Py_XDECREF(elements);
      Py_XDECREF(addr);
      if (!ok) break;
      pointers[i] = &bufs[i];
      iov[i] = {bufs[i].data, bufs[i].length};
      total += bufs[i].length;
      ++count;
    }
    Py_DECREF(fast);
    return ok;
  }
  [[nodiscard]] std::span<const iovec> span() const { return {iov.data(), count}; }
  [[nodiscard]] bool descs_ok(EndpointCore* core, PyObject* descs, LocalUse use, const char* method) const {
    return bind::descs_ok(core, descs, std::span(bufs).first(count), device, use, method);
  }
};

// An attribute of a message struct; an owned reference that lives as long as the holder.
struct Attr {
  explicit Attr(PyObject* owner, const char* name) : value(PyObject_GetAttrString(owner, name)) {
    if (value == nullptr && PyErr_ExceptionMatches(PyExc_AttributeError)) {
      PyErr_Format(PyExc_TypeError, "msg must be an fi.MsgRma (fi.MsgAtomic for atomics): %R has no attribute '%s'",
                   owner, name);
    }
  }
  Attr(const Attr&) = delete;
  Attr& operator=(const Attr&) = delete;
  ~Attr() { Py_XDECREF(value); }
  PyObject* value;
};

// The remote list of a message: objects with .addr, .len (or .count, in elements) and .key, or triples.
bool remote_list(const EndpointCore& core, PyObject* list, PyObject* count_arg, const char* method, size_t element,
                 std::array<wire::RmaRange, nic::kIovMax>& out, size_t* count);

}  // namespace weft::bind
