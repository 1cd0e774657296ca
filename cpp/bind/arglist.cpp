// cpp/bind/arglist.cpp: the lists of a call; see arglist.hpp.
#include "bind/arglist.hpp"

namespace weft::bind {

bool remote_list(const EndpointCore& core, PyObject* list, PyObject* count_arg, const char* method, size_t element,
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
  if (ok && (n == 0 || n > core.rma_iov_limit)) {
    set_error(fi_err::kEINVAL, std::string(method) + ": rma_iov has " + std::to_string(n) + " entries; 1 to " +
                                   std::to_string(core.rma_iov_limit) + " (rma_iov_limit) are possible");
    ok = false;
  }
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
