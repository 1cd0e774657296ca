// cpp/bind/ucp_atomic.cpp: ucp_atomic_op_nbx.
#include "bind/ucp_post.hpp"

namespace weft::bind {

namespace {

// Converts a number to the bits of an element; false with UcsError set if the element cannot hold the number.
bool operand_of(const char* method, PyObject* number, ucp::Atomic* a) {
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(number, &overflow);
  bool fits = overflow == 0 && (a->size == 8 || (n >= INT32_MIN && n <= UINT32_MAX));
  a->operand = static_cast<uint64_t>(n);
  if (overflow > 0 && a->size == 8) {
    a->operand = PyLong_AsUnsignedLongLong(number);
    fits = PyErr_Occurred() == nullptr;
    PyErr_Clear();
  }
  if (fits) return true;
  const nb::object text = nb::steal(PyObject_Repr(number));
  PyErr_Clear();
  return refuse(method, {kInvalidParam, ": the operand " +
                                            (text.is_valid() ? nb::cast<std::string>(text).substr(0, 60) : "given") +
                                            " does not fit an element of " + std::to_string(a->size) +
                                            " B\n  rule: a signed or an unsigned number of the element's size"});
}

}  // namespace

PyObject* ep_atomic_op_nbx(PyObject* self, PyObject* (&a)[12]) {
  static const char* const method = "atomic_op_nbx";
  UcpEp& ep = *nb::inst_ptr<UcpEp>(self);
  UcpOptions o;
  bool plain = true;
  for (size_t i = 4; i < 11; ++i) plain = plain && !given(a[i]);
  if (!plain && !read_options(method, a[4], a[5], a[6], a[7], a[8], a[9], a[10], o)) return translated();
  if (given(a[11])) o.reply = a[11];
  ucp::Atomic atomic;
  if (!ucp_u64(method, "opcode", a[0], &atomic.opcode) || !ucp_u64(method, "remote_addr", a[2], &atomic.remote)) {
    return nullptr;
  }

  // The operand: a number, or the first element of a buffer.
  Buf b;
  if (o.datatype) {
    atomic.size = (*o.datatype & ucp::kClassMask) == ucp::kClassContig ? *o.datatype >> ucp::kClassShift : 0;
  } else if (given(a[4])) {
    return refuse(method, {kInvalidParam,
                           ": param has no datatype\n  try: OP_ATTR_FIELD_DATATYPE in op_attr_mask, and "
                           "datatype=ucp.dt_make_contig(4 or 8)"});
  }
  const bool number = PyLong_Check(a[1]);
  if (number) {
    if (!o.datatype) atomic.size = 8;
    if ((atomic.size == 4 || atomic.size == 8) && !operand_of(method, a[1], &atomic)) return nullptr;
  } else {
    nb::object held;
    PyObject* buffer = a[1];
    if (!by_memh(ep, o, &buffer, false, held) || !slice_ok(buffer, false, method)) return nullptr;
    if (!b.acquire_host(buffer, false)) return translated();
    if (!o.datatype) atomic.size = b.length;
  }
  const uint64_t available = number ? atomic.size : b.length;
  if (!atomic.has_operand(available, o.count)) [[unlikely]]
    return refuse(method, atomic.why_no_operand(available, o.count));
  if (!number) std::memcpy(&atomic.operand, b.data, atomic.size);
  if (!usable(ep, method, atomic.feature())) return nullptr;
  const bool replies = given(o.reply);
  if (!atomic.is_operation(replies)) [[unlikely]]
    return refuse(method, atomic.why_no_operation(replies));
  Buf reply;
  if (replies) {
    if (!slice_ok(o.reply, true, method)) return nullptr;
    if (!reply.acquire_host(o.reply, true)) return translated();
    if (reply.length < atomic.size) return refuse(method, atomic.why_no_room(reply.length));
    atomic.reply = reply.data;
  }
  UcpRkey* rkey;
  uint64_t dest;
  if (!address_of(ep, method, a[3], &rkey, &dest)) return nullptr;
  if (rkey->length == 0) return refuse(method, ucp::without_bytes());
  ucp::AtomicPost posting(atomic, *rkey, dest);

  const Buf* bufs[] = {&reply};
  const bool quiet = !replies && (o.flags & ucp::kNoImmCmpl) == 0;
  const auto post = [&](uint64_t context, uint64_t flags) { return posting(*ep.port->nic, context, flags); };
  if (o.flags == 0) [[likely]] {
    if (PyObject* r = attempt(ep, rkey, a[3], &o, quiet, bufs, replies ? 1 : 0, post); r != nullptr || PyErr_Occurred())
      return r;
  }
  const KeptMemory kept(reply);
  return launch(ep, method, rkey, a[3], o, 1, replies, quiet, bufs, replies ? 1 : 0,
                [&](size_t, uint64_t context, uint64_t flags) { return post(context, flags); });
}

}  // namespace weft::bind
