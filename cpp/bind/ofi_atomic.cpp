// cpp/bind/ofi_atomic.cpp: atomics of a real libfabric's endpoints.
#include "bind/arglist.hpp"
#include "bind/ofi_ep.hpp"

namespace weft::bind {

namespace {

enum class Family { base, fetch, compare };

struct Pair {
  int datatype = 0, op = 0;
  size_t size = 0;
  bool take(PyObject* datatype_arg, PyObject* op_arg, const char* method) {
    uint64_t type = 0, what = 0;
    if (!to_u64(datatype_arg, &type, method, "datatype") || !to_u64(op_arg, &what, method, "op")) return false;
    if (type >= std::size(kOfiElement) || what >= 1024) {
      set_error(fi_err::kEOPNOTSUPP, std::string(method) + ": " + call::op_name(what) + " on " +
                                         call::datatype_name(type) + " is no pair of fi_atomic(3)");
      return false;
    }
    datatype = static_cast<int>(type);
    op = static_cast<int>(what);
    size = kOfiElement[type];
    return true;
  }
};

// FI_ATOMIC_READ alone has no operand; libfabric reads NULL in the place of any other's.
constexpr int kAtomicRead = 10;

bool operand_ok(const char* method, Family family, const Pair& pair, bool given) {
  if (given || (family == Family::fetch && pair.op == kAtomicRead)) [[likely]]
    return true;
  set_error(fi_err::kEINVAL, std::string(method) + ": buf is None (NULL), which is for ATOMIC_READ alone: give memory");
  return false;
}

struct OneAtomic {
  PyObject *buf = nullptr, *desc = nullptr, *compare = nullptr, *compare_desc = nullptr, *result = nullptr,
           *result_desc = nullptr, *dest = nullptr, *addr = nullptr, *key = nullptr, *datatype = nullptr, *op = nullptr,
           *context = nullptr, *count = nullptr;
};

// The elements of a buffer; false with an error set if it is not a whole number of them.
bool elements(const char* method, const char* name, const Buf& b, const Pair& pair, size_t* count) {
  const size_t size = pair.size;
  if (!fits_datatype(method, name, b.owner, static_cast<uint64_t>(pair.datatype))) return false;
  if (b.length % size == 0) {
    *count = b.length / size;
    return true;
  }
  set_error(fi_err::kEINVAL, std::string(method) + ": " + name + ": a buffer of " + std::to_string(b.length) +
                                 " bytes is no whole number of elements of " + std::to_string(size));
  return false;
}

// The most elements of a call are the library's to say; some providers do not check them, and write beyond their
// memory.
bool count_ok(OfiEp& ep, const char* method, Family family, const Pair& pair, uint64_t count) {
  const auto call = ofi::op(ep.get()->atomic, family == Family::base    ? &ofi::AtomicOps::writevalid
                                              : family == Family::fetch ? &ofi::AtomicOps::readwritevalid
                                                                        : &ofi::AtomicOps::compwritevalid);
  size_t most = 0;
  const int r = call == nullptr ? -fi_err::kENOSYS : call(ep.get(), pair.datatype, pair.op, &most);
  if (r == -fi_err::kENOSYS || (r == 0 && count <= most)) [[likely]]
    return true;
  if (r != 0) {
    ofi_set_error(method, r,
                  call::op_name(static_cast<uint64_t>(pair.op)) + " on " +
                      call::datatype_name(static_cast<uint64_t>(pair.datatype)));
  } else {
    set_error(fi_err::kEMSGSIZE, std::string(method) + ": " + std::to_string(count) + " elements; at most " +
                                     std::to_string(most) +
                                     " in a call\n  try: several calls (query_atomic tells how many)");
  }
  return false;
}

// HOT. A call with one buffer of each kind.
PyObject* one_atomic(PyObject* self, const char* method, Family family, const OneAtomic& p, bool inject) {
  OfiEp* ep = ofi_ep_of(self, method);
  if (ep == nullptr) return nullptr;
  Pair pair;
  Buf operand, compare, result;
  void *desc = nullptr, *compare_desc = nullptr, *result_desc = nullptr;
  ofi::Addr peer = ~uint64_t{0};
  uint64_t addr = 0, key = 0;
  size_t count = 0;
  if (!pair.take(p.datatype, p.op, method) || !to_u64(p.dest, &peer, method, "dest_addr") ||
      !target_ok(method, p.addr, p.key, &addr, &key) || !operand_ok(method, family, pair, p.buf != Py_None) ||
      (p.buf != Py_None && !ofi_take(p.buf, false, nullptr, method, &operand)) || !ofi_desc(p.desc, method, &desc)) {
    return nullptr;
  }
  if (p.buf == Py_None) operand.owner = p.buf;
  if (p.buf != Py_None && !elements(method, "buf", operand, pair, &count)) return nullptr;
  std::array<const Buf*, 3> bufs{&operand, nullptr, nullptr};
  size_t held = 1;
  if (family == Family::compare) {
    size_t n = 0;
    if (!ofi_take(p.compare, false, nullptr, method, &compare) || !ofi_desc(p.compare_desc, method, &compare_desc) ||
        !elements(method, "compare", compare, pair, &n)) {
      return nullptr;
    }
    bufs[held++] = &compare;
    count = std::min(count, n);
  }
  if (family != Family::base) {
    size_t n = 0;
    if (!ofi_take(p.result, true, nullptr, method, &result) || !ofi_desc(p.result_desc, method, &result_desc) ||
        !elements(method, "result", result, pair, &n)) {
      return nullptr;
    }
    bufs[held++] = &result;
    count = p.buf == Py_None ? n : count;
    if (n < count) {
      set_error(fi_err::kEINVAL, std::string(method) + ": result has room for " + std::to_string(n) + " elements of " +
                                     std::to_string(count));
      return nullptr;
    }
  }
  if (p.count != nullptr && p.count != Py_None) {
    uint64_t wanted = 0;
    if (!to_u64(p.count, &wanted, method, "count")) return nullptr;
    if (wanted > count) {
      set_error(fi_err::kEINVAL, std::string(method) + ": count is " + std::to_string(wanted) + ", the buffers have " +
                                     std::to_string(count) + " elements");
      return nullptr;
    }
    count = wanted;
  }
  const OfiOp op{method, kOfiTransmit, ep->tx_flags | (inject ? kOfiInject : 0), count * pair.size, false};
  if (!ofi_ready(*ep, method, peer, false) || (!inject && !ofi_described(*ep, method, operand, desc)) ||
      !ofi_described(*ep, method, compare, compare_desc) || !ofi_described(*ep, method, result, result_desc) ||
      !count_ok(*ep, method, family, pair, count) || !ofi_fits(*ep, op, 1, family == Family::base)) {
    return nullptr;
  }
  if (inject) {
    return ofi_post_inject(ep, op, [&]() -> ssize_t {
      const auto call = ofi::op(ep->get()->atomic, &ofi::AtomicOps::inject);
      return call == nullptr ? -fi_err::kENOSYS
                             : call(ep->get(), operand.data, count, peer, addr, key, pair.datatype, pair.op);
    });
  }
  return ofi_post(ep, op, p.context, bufs.data(), held, [&](void* context) -> ssize_t {
    const ofi::AtomicOps* ops = ep->get()->atomic;
    if (family == Family::base) {
      const auto call = ofi::op(ops, &ofi::AtomicOps::write);
      return call == nullptr
                 ? -fi_err::kENOSYS
                 : call(ep->get(), operand.data, count, desc, peer, addr, key, pair.datatype, pair.op, context);
    }
    if (family == Family::fetch) {
      const auto call = ofi::op(ops, &ofi::AtomicOps::readwrite);
      return call == nullptr ? -fi_err::kENOSYS
                             : call(ep->get(), operand.data, count, desc, result.data, result_desc, peer, addr, key,
                                    pair.datatype, pair.op, context);
    }
    const auto call = ofi::op(ops, &ofi::AtomicOps::compwrite);
    return call == nullptr ? -fi_err::kENOSYS
                           : call(ep->get(), operand.data, count, desc, compare.data, compare_desc, result.data,
                                  result_desc, peer, addr, key, pair.datatype, pair.op, context);
  });
}

struct ListAtomic {
  PyObject *iov = nullptr, *iov_count = nullptr, *desc = nullptr, *comparev = nullptr, *compare_desc = nullptr,
           *resultv = nullptr, *result_desc = nullptr, *dest = nullptr, *addr = nullptr, *key = nullptr, *rma = nullptr,
           *rma_count = nullptr, *datatype = nullptr, *op = nullptr, *context = nullptr, *data = nullptr;
};

// A call with lists: with a message's flags, or with one remote place.
PyObject* list_atomic(PyObject* self, const char* method, Family family, const ListAtomic& p, PyObject* flags_arg,
                      bool message) {
  OfiEp* ep = ofi_ep_of(self, method);
  if (ep == nullptr) return nullptr;
  Pair pair;
  OfiList operand, compare, result;
  ofi::Addr peer = ~uint64_t{0};
  uint64_t addr = 0, key = 0, flags = message ? 0 : ep->tx_flags, data = 0;
  OfiRemote remote;
  if (!to_u64(flags_arg, &flags, method, "flags") || !pair.take(p.datatype, p.op, method)) return nullptr;
  operand.datatype = compare.datatype = result.datatype = static_cast<uint64_t>(pair.datatype);
  if (!to_u64(p.dest, &peer, method, "dest_addr") || !to_u64(p.data, &data, method, "data") ||
      !operand.acquire(p.iov, false, p.iov_count, method, pair.size) || !operand.take_descs(p.desc, method) ||
      !operand_ok(method, family, pair, operand.count != 0)) {
    return nullptr;
  }
  if (family == Family::compare && (!compare.acquire(p.comparev, false, nullptr, method, pair.size) ||
                                    !compare.take_descs(p.compare_desc, method))) {
    return nullptr;
  }
  if (family != Family::base &&
      (!result.acquire(p.resultv, true, nullptr, method, pair.size) || !result.take_descs(p.result_desc, method))) {
    return nullptr;
  }
  if (message ? !ofi_remote(p.rma, p.rma_count, method, true, &remote.iov, &remote.count)
              : !target_ok(method, p.addr, p.key, &addr, &key)) {
    return nullptr;
  }
  OfiTrigger trigger;
  if (message && !trigger.take(*ep, method, flags, p.context)) return nullptr;
  OfiOp op{method, kOfiTransmit, flags, operand.total, false};
  if (trigger.cntr != nullptr) op.trigger = &trigger;
  const uint64_t bytes = operand.count != 0 ? operand.total : result.total;  // a read has no operand
  if (!ofi_ready(*ep, method, peer, false) || !operand.all_described(*ep, method) ||
      !compare.all_described(*ep, method) || !result.all_described(*ep, method) ||
      !count_ok(*ep, method, family, pair, bytes / pair.size)) {
    return nullptr;
  }
  for (const OfiList* list : {&operand, &compare, &result}) {
    if (!ofi_fits(*ep, op, list->count, family == Family::base)) return nullptr;
  }
  if ((family == Family::compare && compare.total < bytes) || (family != Family::base && result.total < bytes)) {
    set_error(fi_err::kEINVAL, std::string(method) + ": the operands have " + std::to_string(bytes) +
                                   " bytes, the values to compare with " + std::to_string(compare.total) +
                                   ", the room for results " + std::to_string(result.total) +
                                   "\n  try: lists of the same number of elements");
    return nullptr;
  }
  if (message && !remote.fits(*ep, method, bytes / pair.size, "elements")) return nullptr;
  std::array<const Buf*, 3 * ofi::kIovMax> bufs;
  size_t held = 0;
  for (const OfiList* list : {&operand, &compare, &result}) {
    for (size_t i = 0; i < list->count; ++i) bufs[held++] = list->pointers[i];
  }
  return ofi_post(ep, op, p.context, bufs.data(), held, [&](void* context) -> ssize_t {
    const ofi::AtomicOps* ops = ep->get()->atomic;
    if (message) {
      const ofi::MsgAtomic msg{operand.ioc.data(), operand.descs(), operand.count, peer,    remote.iov.data(),
                               remote.count,       pair.datatype,   pair.op,       context, data};
      if (family == Family::base) {
        const auto call = ofi::op(ops, &ofi::AtomicOps::writemsg);
        return call == nullptr ? -fi_err::kENOSYS : call(ep->get(), &msg, flags);
      }
      if (family == Family::fetch) {
        const auto call = ofi::op(ops, &ofi::AtomicOps::readwritemsg);
        return call == nullptr ? -fi_err::kENOSYS
                               : call(ep->get(), &msg, result.ioc.data(), result.descs(), result.count, flags);
      }
      const auto call = ofi::op(ops, &ofi::AtomicOps::compwritemsg);
      return call == nullptr ? -fi_err::kENOSYS
                             : call(ep->get(), &msg, compare.ioc.data(), compare.descs(), compare.count,
                                    result.ioc.data(), result.descs(), result.count, flags);
    }
    if (family == Family::base) {
      const auto call = ofi::op(ops, &ofi::AtomicOps::writev);
      return call == nullptr ? -fi_err::kENOSYS
                             : call(ep->get(), operand.ioc.data(), operand.descs(), operand.count, peer, addr, key,
                                    pair.datatype, pair.op, context);
    }
    if (family == Family::fetch) {
      const auto call = ofi::op(ops, &ofi::AtomicOps::readwritev);
      return call == nullptr ? -fi_err::kENOSYS
                             : call(ep->get(), operand.ioc.data(), operand.descs(), operand.count, result.ioc.data(),
                                    result.descs(), result.count, peer, addr, key, pair.datatype, pair.op, context);
    }
    const auto call = ofi::op(ops, &ofi::AtomicOps::compwritev);
    return call == nullptr ? -fi_err::kENOSYS
                           : call(ep->get(), operand.ioc.data(), operand.descs(), operand.count, compare.ioc.data(),
                                  compare.descs(), compare.count, result.ioc.data(), result.descs(), result.count, peer,
                                  addr, key, pair.datatype, pair.op, context);
  });
}

PyObject* atomic_struct(PyObject* self, const char* method, Family family, PyObject* msg, ListAtomic p,
                        PyObject* flags) {
  const char* type = "fi.MsgAtomic";
  const Attr iov(msg, "msg_iov", type), iov_count(msg, "iov_count", type), rma(msg, "rma_iov", type),
      rma_count(msg, "rma_iov_count", type), addr(msg, "addr", type), desc(msg, "desc", type),
      context(msg, "context", type), data(msg, "data", type), datatype(msg, "datatype", type), op(msg, "op", type);
  for (const Attr* a : {&iov, &iov_count, &rma, &rma_count, &addr, &desc, &context, &data, &datatype, &op}) {
    if (a->value == nullptr) return nullptr;
  }
  p.iov = iov.value, p.iov_count = iov_count.value, p.desc = desc.value, p.rma = rma.value;
  p.rma_count = rma_count.value, p.dest = addr.value, p.datatype = datatype.value, p.op = op.value;
  p.context = context.value, p.data = data.value;
  return list_atomic(self, method, family, p, flags, true);
}

Signature g_atomic{
    "atomic", {"buf", "desc", "dest_addr", "addr", "key", "datatype", "op", "context", "count"}, 8, 1, {}};
Signature g_inject_atomic{"inject_atomic", {"buf", "dest_addr", "addr", "key", "datatype", "op", "count"}, 6, 1, {}};
Signature g_fetch_atomic{
    "fetch_atomic",
    {"buf", "desc", "result", "result_desc", "dest_addr", "addr", "key", "datatype", "op", "context", "count"},
    10,
    0,
    {}};
Signature g_compare_atomic{"compare_atomic",
                           {"buf", "desc", "compare", "compare_desc", "result", "result_desc", "dest_addr", "addr",
                            "key", "datatype", "op", "context", "count"},
                           12,
                           0,
                           {}};
Signature g_atomicv{"atomicv", {"iov", "desc", "dest_addr", "addr", "key", "datatype", "op", "context"}, 8, 1, {}};
Signature g_fetch_atomicv{
    "fetch_atomicv",
    {"iov", "desc", "resultv", "result_desc", "dest_addr", "addr", "key", "datatype", "op", "context"},
    10,
    1,
    {}};
Signature g_compare_atomicv{"compare_atomicv",
                            {"iov", "desc", "comparev", "compare_desc", "resultv", "result_desc", "dest_addr", "addr",
                             "key", "datatype", "op", "context"},
                            12,
                            1,
                            {}};
Signature g_atomicmsg{"atomicmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_fetch_atomicmsg{"fetch_atomicmsg", {"msg", "resultv", "result_desc", "flags"}, 4, 2, {}};
Signature g_compare_atomicmsg{
    "compare_atomicmsg", {"msg", "comparev", "compare_desc", "resultv", "result_desc", "flags"}, 6, 2, {}};

#define WEFT_DEFINE(name, count)                                                                     \
  PyObject* ofi_##name(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) { \
    PyObject* a[count];                                                                              \
    if (!parse(g_##name, args, nargs, kwnames, a)) return nullptr;

}  // namespace

WEFT_DEFINE(atomic, 9)
if (!present("atomic", {{a[2], "dest_addr"}, {a[5], "datatype"}, {a[6], "op"}})) return nullptr;
return one_atomic(self, "atomic", Family::base,
                  {.buf = a[0],
                   .desc = a[1],
                   .dest = a[2],
                   .addr = a[3],
                   .key = a[4],
                   .datatype = a[5],
                   .op = a[6],
                   .context = a[7],
                   .count = a[8]},
                  false);
}
WEFT_DEFINE(inject_atomic, 7)
if (!present("inject_atomic", {{a[1], "dest_addr"}, {a[4], "datatype"}, {a[5], "op"}})) return nullptr;
return one_atomic(self, "inject_atomic", Family::base,
                  {.buf = a[0], .dest = a[1], .addr = a[2], .key = a[3], .datatype = a[4], .op = a[5], .count = a[6]},
                  true);
}
WEFT_DEFINE(fetch_atomic, 11)
if (!present("fetch_atomic",
             {{a[0], "buf"}, {a[2], "result"}, {a[4], "dest_addr"}, {a[7], "datatype"}, {a[8], "op"}})) {
  return nullptr;
}
return one_atomic(self, "fetch_atomic", Family::fetch,
                  {.buf = a[0],
                   .desc = a[1],
                   .result = a[2],
                   .result_desc = a[3],
                   .dest = a[4],
                   .addr = a[5],
                   .key = a[6],
                   .datatype = a[7],
                   .op = a[8],
                   .context = a[9],
                   .count = a[10]},
                  false);
}
WEFT_DEFINE(compare_atomic, 13)
if (!present(
        "compare_atomic",
        {{a[0], "buf"}, {a[2], "compare"}, {a[4], "result"}, {a[6], "dest_addr"}, {a[9], "datatype"}, {a[10], "op"}})) {
  return nullptr;
}
return one_atomic(self, "compare_atomic", Family::compare,
                  {.buf = a[0],
                   .desc = a[1],
                   .compare = a[2],
                   .compare_desc = a[3],
                   .result = a[4],
                   .result_desc = a[5],
                   .dest = a[6],
                   .addr = a[7],
                   .key = a[8],
                   .datatype = a[9],
                   .op = a[10],
                   .context = a[11],
                   .count = a[12]},
                  false);
}
WEFT_DEFINE(atomicv, 8)
if (!present("atomicv", {{a[2], "dest_addr"}, {a[5], "datatype"}, {a[6], "op"}})) return nullptr;
return list_atomic(
    self, "atomicv", Family::base,
    {.iov = a[0], .desc = a[1], .dest = a[2], .addr = a[3], .key = a[4], .datatype = a[5], .op = a[6], .context = a[7]},
    nullptr, false);
}
WEFT_DEFINE(fetch_atomicv, 10)
if (!present("fetch_atomicv", {{a[2], "resultv"}, {a[4], "dest_addr"}, {a[7], "datatype"}, {a[8], "op"}}))
  return nullptr;
return list_atomic(self, "fetch_atomicv", Family::fetch,
                   {.iov = a[0],
                    .desc = a[1],
                    .resultv = a[2],
                    .result_desc = a[3],
                    .dest = a[4],
                    .addr = a[5],
                    .key = a[6],
                    .datatype = a[7],
                    .op = a[8],
                    .context = a[9]},
                   nullptr, false);
}
WEFT_DEFINE(compare_atomicv, 12)
if (!present("compare_atomicv",
             {{a[2], "comparev"}, {a[4], "resultv"}, {a[6], "dest_addr"}, {a[9], "datatype"}, {a[10], "op"}})) {
  return nullptr;
}
return list_atomic(self, "compare_atomicv", Family::compare,
                   {.iov = a[0],
                    .desc = a[1],
                    .comparev = a[2],
                    .compare_desc = a[3],
                    .resultv = a[4],
                    .result_desc = a[5],
                    .dest = a[6],
                    .addr = a[7],
                    .key = a[8],
                    .datatype = a[9],
                    .op = a[10],
                    .context = a[11]},
                   nullptr, false);
}
WEFT_DEFINE(atomicmsg, 2)
return atomic_struct(self, "atomicmsg", Family::base, a[0], {}, a[1]);
}
WEFT_DEFINE(fetch_atomicmsg, 4)
return atomic_struct(self, "fetch_atomicmsg", Family::fetch, a[0], {.resultv = a[1], .result_desc = a[2]}, a[3]);
}
WEFT_DEFINE(compare_atomicmsg, 6)
if (!present("compare_atomicmsg", {{a[3], "resultv"}})) return nullptr;
return atomic_struct(self, "compare_atomicmsg", Family::compare, a[0],
                     {.comparev = a[1], .compare_desc = a[2], .resultv = a[3], .result_desc = a[4]}, a[5]);
}

}  // namespace weft::bind
