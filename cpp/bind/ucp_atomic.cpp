// cpp/bind/ucp_atomic.cpp: ucp_atomic_op_nbx.
#include "bind/ucp_post.hpp"

namespace weft::bind {

namespace {

// ucp_atomic_op_t
enum : uint64_t { kAdd, kSwap, kCswap, kAnd, kOr, kXor, kAtomicOps };

Signature g_atomic{"atomic_op_nbx",
                   {"opcode", "buffer", "remote_addr", "rkey", "param", "count", "cb", "user_data", "memh", "flags",
                    "datatype", "reply_buffer"},
                   5,
                   4,
                   {}};

// Converts a number to the bits of an element; false with UcsError set if the element cannot hold the number.
bool operand_of(const char* method, PyObject* number, uint64_t size, uint64_t* out) {
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(number, &overflow);
  bool fits = overflow == 0 && (size == 8 || (n >= INT32_MIN && n <= UINT32_MAX));
  *out = static_cast<uint64_t>(n);
  if (overflow > 0 && size == 8) {
    *out = PyLong_AsUnsignedLongLong(number);
    fits = PyErr_Occurred() == nullptr;
    PyErr_Clear();
  }
  if (fits) return true;
  const nb::object text = nb::steal(PyObject_Repr(number));
  PyErr_Clear();
  refuse(kInvalidParam, std::string(method) + ": the operand " +
                            (text.is_valid() ? nb::cast<std::string>(text).substr(0, 60) : "given") +
                            " does not fit an element of " + std::to_string(size) +
                            " B\n  rule: a signed or an unsigned number of the element's size");
  return false;
}

}  // namespace

PyObject* ep_atomic_op_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const method = "atomic_op_nbx";
  PyObject* a[12];
  if (!parse(g_atomic, args, nargs, kwnames, a)) return nullptr;
  UcpEp& ep = *nb::inst_ptr<UcpEp>(self);
  UcpOptions o;
  bool plain = true;
  for (size_t i = 4; i < 11; ++i) plain = plain && !given(a[i]);
  if (!plain && !read_options(method, a[4], a[5], a[6], a[7], a[8], a[9], a[10], o)) return translated();
  if (given(a[11])) o.reply = a[11];
  uint64_t opcode = 0, remote = 0;
  if (!ucp_u64(method, "opcode", a[0], &opcode) || !ucp_u64(method, "remote_addr", a[2], &remote)) return nullptr;

  // The operand: a number, or the first element of a buffer.
  alignas(8) uint64_t operand = 0, desired = 0, old = 0;
  Buf b;
  uint64_t size = 0;
  if (o.has_datatype) {
    size = (o.datatype & kClassMask) == kClassContig ? o.datatype >> kClassShift : 0;
  } else if (given(a[4])) {
    refuse(kInvalidParam, std::string(method) +
                              ": param has no datatype\n  try: OP_ATTR_FIELD_DATATYPE in op_attr_mask, and "
                              "datatype=ucp.dt_make_contig(4 or 8)");
    return nullptr;
  }
  const bool number = PyLong_Check(a[1]);
  if (number) {
    if (!o.has_datatype) size = 8;
    if ((size == 4 || size == 8) && !operand_of(method, a[1], size, &operand)) return nullptr;
  } else {
    nb::object held;
    PyObject* buffer = a[1];
    if (!by_memh(ep, o, &buffer, false, held) || !slice_ok(buffer, false, method)) return nullptr;
    if (!b.acquire_host(buffer, false)) return translated();
    if (!o.has_datatype) size = b.length;
  }
  if (size != 4 && size != 8) {
    refuse(kInvalidParam, std::string(method) + ": elements of " + std::to_string(size) +
                              " B\n  rule: the datatype is dt_make_contig(4) or dt_make_contig(8), and one element");
    return nullptr;
  }
  if (!number) {
    if (b.length == 0 || b.length % size != 0) {
      refuse(kInvalidParam, std::string(method) + ": the buffer has " + std::to_string(b.length) + " B, the element " +
                                std::to_string(size) + "\n  rule: the operand is the first of whole elements");
      return nullptr;
    }
    std::memcpy(&operand, b.data, size);
  }
  if (o.has_count && o.count != 1) {
    refuse(kInvalidParam, std::string(method) + ": count is " + std::to_string(o.count) +
                              "; it has to be 1\n  try: a call for each element");
    return nullptr;
  }
  if (!usable(ep, method, size == 4 ? kFeatureAmo32 : kFeatureAmo64, size == 4 ? "AMO32" : "AMO64")) return nullptr;
  if (opcode >= kAtomicOps) {
    refuse(kInvalidParam, std::string(method) + ": there is no atomic operation " + std::to_string(opcode) +
                              "\n  rule: ATOMIC_OP_ADD, SWAP, CSWAP, AND, OR or XOR");
    return nullptr;
  }
  const bool replies = given(o.reply);
  if (!replies && (opcode == kSwap || opcode == kCswap)) {
    refuse(kInvalidParam, std::string(method) + ": " + (opcode == kSwap ? "SWAP" : "CSWAP") +
                              " needs a reply_buffer: the old value goes there" +
                              (opcode == kCswap ? ", and the new one is taken from there" : ""));
    return nullptr;
  }
  if (remote % size != 0) {
    refuse(kInvalidParam, std::string(method) + ": remote_addr " + hex(remote) + " is no multiple of " +
                              std::to_string(size) + ": atomics need natural alignment\n  try: align the element");
    return nullptr;
  }
  Buf reply;
  if (replies) {
    if (!slice_ok(o.reply, true, method)) return nullptr;
    if (!reply.acquire_host(o.reply, true)) return translated();
    if (reply.length < size) {
      refuse(kInvalidParam, std::string(method) + ": reply_buffer has " + std::to_string(reply.length) +
                                " B, the element " + std::to_string(size));
      return nullptr;
    }
  }
  UcpRkey* rkey;
  uint64_t dest;
  if (!address_of(ep, method, a[3], &rkey, &dest)) return nullptr;
  if (rkey->length == 0) {
    refuse(kInvalidParam, std::string(method) +
                              ": the remote key is that of a region without bytes\n  try: map a region that has some");
    return nullptr;
  }

  nic::AtomicArgs atomic;
  const wire::RmaRange range{remote + rkey->bias, size, rkey->key};
  iovec operand_piece{&operand, size}, compare_piece{&operand, size}, result_piece{&old, size};
  atomic.datatype = size == 4 ? nic::Datatype::uint32 : nic::Datatype::uint64;
  atomic.family = !replies           ? nic::AtomicFamily::base
                  : opcode == kCswap ? nic::AtomicFamily::compare
                                     : nic::AtomicFamily::fetch;
  static constexpr nic::AtomicOp kOps[] = {nic::AtomicOp::sum,  nic::AtomicOp::atomic_write, nic::AtomicOp::cswap,
                                           nic::AtomicOp::band, nic::AtomicOp::bor,          nic::AtomicOp::bxor};
  atomic.op = kOps[opcode];
  atomic.dest = dest;
  atomic.remote = {&range, 1};
  atomic.operand = {&operand_piece, 1};
  if (opcode == kCswap) {  // the reply buffer contains the new value, `buffer` the expected one
    std::memcpy(&desired, reply.data, size);
    operand_piece.iov_base = &desired;
    atomic.compare = {&compare_piece, 1};
  }
  if (replies) {
    result_piece.iov_base = reply.data;
    atomic.result = {&result_piece, 1};
  }
  const Buf* bufs[] = {&reply};
  const bool quiet = !replies && (o.flags & kNoImmCmpl) == 0;
  const auto post = [&](uint64_t context, uint64_t flags) {
    atomic.flags = flags;
    atomic.context = context;
    return ep.worker->nic_ep->ep->post_atomic(atomic);
  };
  if (o.flags == 0) [[likely]] {
    if (PyObject* r = attempt(ep, rkey, a[3], &o, quiet, bufs, replies ? 1 : 0, post); r != nullptr || PyErr_Occurred())
      return r;
  }
  const KeptMemory kept(reply);
  return launch(ep, method, rkey, a[3], o, 1, replies, quiet, bufs, replies ? 1 : 0,
                [&](size_t, uint64_t context, uint64_t flags) { return post(context, flags); });
}

}  // namespace weft::bind
