// cpp/bind/arglist.cpp: the lists of a call; see arglist.hpp.
#include "bind/arglist.hpp"

namespace weft::bind {

bool BufList::acquire(EndpointCore* core, PyObject* list, bool writable, PyObject* count_arg, const char* method,
                      size_t element) {
  if (list == nullptr || list == Py_None) return true;
  const nb::object fast = nb::steal(PySequence_Fast(list, ""));
  if (!fast.is_valid()) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Format(PyExc_TypeError, "%s: a list of buffers is needed, not %R", method, list);
    }
    return false;
  }
  uint64_t n = static_cast<uint64_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
  if (count_arg != nullptr && count_arg != Py_None) {
    uint64_t wanted = 0;
    if (!to_u64(count_arg, &wanted, method, "count")) return false;
    if (wanted > n) {
      set_error(fi_err::kEINVAL, std::string(method) + ": count is " + std::to_string(wanted) + " but the list has " +
                                     std::to_string(n) + " buffers");
      return false;
    }
    n = wanted;
  }
  call::Why why;
  if (call::check_local_count(*core->ep, n, &why, receives) != Refusal::none) return refuse(core, method, why);
  for (size_t i = 0; i < n; ++i) {
    // The item keeps the memory alive, even if the buffer is a temporary attribute of the item.
    PyObject* item = PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(i));
    nb::object addr, elements;
    if (element != 0 && PyObject_HasAttrString(item, "addr") && PyObject_HasAttrString(item, "count") &&
        !PyTuple_Check(item)) {
      addr = nb::steal(PyObject_GetAttrString(item, "addr"));
      elements = nb::steal(PyObject_GetAttrString(item, "count"));
    }
    Buf& buf = bufs[i];
    if (!buf.acquire(addr.is_valid() ? addr.ptr() : item, writable)) return false;
    if (element != 0 && !fits_datatype(method, "a buffer", addr.is_valid() ? addr.ptr() : item, datatype)) return false;
    if (elements.is_valid() && !elements.is_none()) {
      uint64_t e = 0;
      if (!to_u64(elements.ptr(), &e, method, "count")) return false;
      if (e > buf.length / element) {
        set_error(fi_err::kEINVAL, std::string(method) + ": count " + std::to_string(e) +
                                       " passes the end of a buffer of " + std::to_string(buf.length) + " bytes");
        return false;
      }
      buf.length = e * element;
    }
    pointers[i] = &buf;
    locals[i] = local_of(buf);
    ++count;
  }
  return true;
}

bool BufList::convert_descs(EndpointCore* core, PyObject* descs, const char* method) {
  if (descs == nullptr || descs == Py_None) return true;
  const bool ignored = core->ep->config().rules.desc_ignored;
  const bool list = !ignored && PySequence_Check(descs) && !PyObject_TypeCheck(descs, g_mr_type);
  const nb::object fast = list ? nb::steal(PySequence_Fast(descs, "desc must be a sequence")) : nb::object();
  if (list && !fast.is_valid()) return false;
  const size_t given = list ? static_cast<size_t>(PySequence_Fast_GET_SIZE(fast.ptr())) : count;
  if (given < count) {
    set_error(fi_err::kEINVAL, std::string(method) + ": desc has " + std::to_string(given) + " entries for " +
                                   std::to_string(count) + " buffers: give one for each, or None in its place");
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    PyObject* one = list ? PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(i)) : descs;
    if (!convert_desc(core, one, method, &locals[i])) return false;
  }
  return true;
}

uint64_t BufList::total() const {
  uint64_t n = 0;
  for (const call::Local& l : span()) {
    if (__builtin_add_overflow(n, l.length, &n)) return ~uint64_t{0};
  }
  return n;
}

bool remote_list(EndpointCore* core, PyObject* list, PyObject* count_arg, const char* method, size_t element,
                 std::array<wire::RmaRange, nic::kIovMax>& out, size_t* count) {
  PyObject* fast = PySequence_Fast(list, "");
  if (fast == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Format(PyExc_TypeError, "%s: rma_iov must be a sequence of fi.RmaIov (fi.RmaIoc for atomics), not %R",
                   method, list);
    }
    return false;
  }
  size_t n = static_cast<size_t>(PySequence_Fast_GET_SIZE(fast));
  bool ok = true;
  if (count_arg != nullptr && count_arg != Py_None) {
    uint64_t wanted = 0;
    ok = to_u64(count_arg, &wanted, method, "rma_iov_count");
    if (ok && wanted > n) {
      set_error(fi_err::kEINVAL, std::string(method) + ": rma_iov_count is " + std::to_string(wanted) +
                                     " but rma_iov has " + std::to_string(n) + " entries");
      ok = false;
    }
    n = wanted;
  }
  call::Why why;
  if (ok && call::check_remote_count(*core->ep, n, &why) != Refusal::none) ok = refuse(core, method, why);
  for (size_t i = 0; ok && i < n; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(fast, static_cast<Py_ssize_t>(i));
    uint64_t length = 0;
    if (PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 3) {
      ok = to_u64(PyTuple_GET_ITEM(item, 0), &out[i].addr, method, "addr of a remote piece") &&
           to_u64(PyTuple_GET_ITEM(item, 1), &length, method, "len of a remote piece") &&
           to_u64(PyTuple_GET_ITEM(item, 2), &out[i].key, method, "key of a remote piece");
    } else {
      const Attr addr(item, "addr"), len(item, element != 0 ? "count" : "len"), key(item, "key");
      ok = addr.value != nullptr && len.value != nullptr && key.value != nullptr &&
           to_u64(addr.value, &out[i].addr, method, "addr of a remote piece") &&
           to_u64(len.value, &length, method, "len of a remote piece") &&
           to_u64(key.value, &out[i].key, method, "key of a remote piece");
    }
    if (ok && element != 0 && length > ~uint64_t{0} / element) {
      set_error(fi_err::kEMSGSIZE, std::string(method) + ": count " + std::to_string(length) + " is too large");
      ok = false;
    }
    out[i].length = element != 0 ? length * element : length;
  }
  *count = n;
  Py_DECREF(fast);
  return ok;
}

}  // namespace weft::bind
