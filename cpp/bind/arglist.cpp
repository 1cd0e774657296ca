// cpp/bind/arglist.cpp: the lists of a call; see arglist.hpp.
#include "bind/arglist.hpp"

namespace weft::bind {

bool Entries::take(PyObject* from, PyObject* count_arg, bool remote, const char* method) {
  list = nb::steal(PySequence_Fast(from, ""));
  if (!list.is_valid()) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Format(PyExc_TypeError,
                   remote ? "%s: rma_iov must be a sequence of fi.RmaIov (fi.RmaIoc for atomics), not %R"
                          : "%s: a list of buffers is needed, not %R",
                   method, from);
    }
    return false;
  }
  count = static_cast<size_t>(PySequence_Fast_GET_SIZE(list.ptr()));
  if (count_arg == nullptr || count_arg == Py_None) return true;
  const char* name = remote ? "rma_iov_count" : "count";
  uint64_t wanted = 0;
  if (!to_u64(count_arg, &wanted, method, name)) return false;
  if (wanted > count) {
    return set_error(fi_err::kEINVAL, method, ": ", name, " is ", wanted, " but ", (remote ? "rma_iov" : "the list"),
                     " has ", count, (remote ? " entries" : " buffers"));
  }
  count = wanted;
  return true;
}

BufEntry::BufEntry(PyObject* item, size_t element) : buffer(item), element_(element) {
  if (element == 0 || PyTuple_Check(item) || !PyObject_HasAttrString(item, "addr") ||
      !PyObject_HasAttrString(item, "count")) {
    return;
  }
  addr_ = nb::steal(PyObject_GetAttrString(item, "addr"));
  elements_ = nb::steal(PyObject_GetAttrString(item, "count"));
  if (addr_.is_valid()) buffer = addr_.ptr();
}

bool BufEntry::shorten(Buf* b, const char* method, uint64_t datatype) const {
  if (element_ == 0) return true;
  if (!fits_datatype(method, "a buffer", buffer, datatype)) return false;
  if (!elements_.is_valid() || elements_.is_none()) return true;
  uint64_t n = 0;
  if (!to_u64(elements_.ptr(), &n, method, "count")) return false;
  if (n > b->length / element_)
    return set_error(fi_err::kEINVAL, method, ": count ", n, " passes the end of a buffer of ", b->length, " bytes");
  b->length = n * element_;
  return true;
}

bool remote_piece(PyObject* item, bool atomic, const char* method, uint64_t* addr, uint64_t* length, uint64_t* key) {
  const auto read = [&](PyObject* a, PyObject* l, PyObject* k) {
    return a != nullptr && l != nullptr && k != nullptr && to_u64(a, addr, method, "addr of a remote piece") &&
           to_u64(l, length, method, "len of a remote piece") && to_u64(k, key, method, "key of a remote piece");
  };
  if (PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 3)
    return read(PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1), PyTuple_GET_ITEM(item, 2));
  const Attr a(item, "addr"), l(item, atomic ? "count" : "len"), k(item, "key");
  return read(a.value, l.value, k.value);
}

bool BufList::acquire(EndpointCore* core, PyObject* list, bool writable, PyObject* count_arg, const char* method,
                      size_t element) {
  if (list == nullptr || list == Py_None) return true;
  Entries entries;
  if (!entries.take(list, count_arg, false, method)) return false;
  call::Why why;
  if (call::check_local_count(*core->ep, entries.count, &why, receives) != Refusal::none)
    return refuse(core, method, why);
  for (size_t i = 0; i < entries.count; ++i) {
    const BufEntry entry(entries[i], element);
    Buf& buf = bufs[i];
    if (!buf.acquire(entry.buffer, writable) || !entry.shorten(&buf, method, datatype)) return false;
    pointers[i] = &buf;
    locals[i] = local_of(buf);
    ++count;
  }
  return true;
}

bool BufList::convert_descs(EndpointCore* core, PyObject* descs, const char* method) {
  if (descs == nullptr || descs == Py_None) return true;
  const bool same =
      core->ep->config().rules.desc_ignored || !PySequence_Check(descs) || PyObject_TypeCheck(descs, g_mr_type);
  return each_desc(descs, same, count, method,
                   [&](PyObject* desc, size_t i) { return convert_desc(core, desc, method, &locals[i]); });
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
  Entries entries;
  if (!entries.take(list, count_arg, true, method)) return false;
  call::Why why;
  if (call::check_remote_count(*core->ep, entries.count, &why) != Refusal::none) return refuse(core, method, why);
  for (size_t i = 0; i < entries.count; ++i) {
    uint64_t length = 0;
    if (!remote_piece(entries[i], element != 0, method, &out[i].addr, &length, &out[i].key)) return false;
    if (element != 0 && length > ~uint64_t{0} / element)
      return set_error(fi_err::kEMSGSIZE, method, ": count ", length, " is too large");
    out[i].length = element != 0 ? length * element : length;
  }
  *count = entries.count;
  return true;
}

}  // namespace weft::bind
