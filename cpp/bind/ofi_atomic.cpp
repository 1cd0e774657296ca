// cpp/bind/ofi_atomic.cpp: atomics of a real libfabric's endpoints.
#include "bind/atomic_args.hpp"
#include "bind/ofi_ep.hpp"

namespace weft::bind {

namespace {

using Family = nic::AtomicFamily;
using Ops = ofi::AtomicOps;

struct Pair {
  int datatype = 0, op = 0;
  size_t size = 0;
  bool take(PyObject* datatype_arg, PyObject* op_arg, const char* method) {
    uint64_t type = 0, what = 0;
    if (!to_u64(datatype_arg, &type, method, "datatype") || !to_u64(op_arg, &what, method, "op")) return false;
    size = element_bytes(type);
    if (size == 0 || what >= 1024) {
      return set_error(fi_err::kEOPNOTSUPP, method, ": ", call::op_name(what), " on ", call::datatype_name(type),
                       " is no pair of fi_atomic(3)");
    }
    datatype = static_cast<int>(type);
    op = static_cast<int>(what);
    return true;
  }
};

// FI_ATOMIC_READ alone has no operand; libfabric reads NULL in the place of any other's.
constexpr int kAtomicRead = 10;

bool operand_ok(const char* method, Family family, const Pair& pair, bool given) {
  if (given || (family == Family::fetch && pair.op == kAtomicRead)) [[likely]]
    return true;
  return set_error(fi_err::kEINVAL, method, ": buf is None (NULL), which is for ATOMIC_READ alone: give memory");
}

// The elements of a buffer; false with an error set if it is not a whole number of them.
bool elements(const char* method, const char* name, const Buf& b, const Pair& pair, size_t* count) {
  const size_t size = pair.size;
  if (!fits_datatype(method, name, b.owner, static_cast<uint64_t>(pair.datatype))) return false;
  if (b.length % size == 0) {
    *count = b.length / size;
    return true;
  }
  return set_error(fi_err::kEINVAL, method, ": ", name, ": a buffer of ", b.length,
                   " bytes is no whole number of elements of ", size);
}

// The most elements of a call are the library's to say; some providers do not check them, and write beyond their
// memory.
bool count_ok(OfiEp& ep, const char* method, Family family, const Pair& pair, uint64_t count) {
  const auto valid = family == Family::base    ? &Ops::writevalid
                     : family == Family::fetch ? &Ops::readwritevalid
                                               : &Ops::compwritevalid;
  size_t most = 0;
  const auto r = ofi_call(ep.get()->atomic, valid, ep.get(), pair.datatype, pair.op, &most);
  if (r == -fi_err::kENOSYS || (r == 0 && count <= most)) [[likely]]
    return true;
  if (r == 0) {
    return set_error(fi_err::kEMSGSIZE, method, ": ", count, " elements; at most ", most,
                     " in a call\n  try: several calls (query_atomic tells how many)");
  }
  return ofi_set_error(method, r,
                       call::op_name(static_cast<uint64_t>(pair.op)) + " on " +
                           call::datatype_name(static_cast<uint64_t>(pair.datatype)));
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
    if (n < count) return set_error(fi_err::kEINVAL, method, ": result has room for ", n, " elements of ", count);
  }
  if (p.count != nullptr && p.count != Py_None) {
    uint64_t wanted = 0;
    if (!to_u64(p.count, &wanted, method, "count")) return nullptr;
    if (wanted > count)
      return set_error(fi_err::kEINVAL, method, ": count is ", wanted, ", the buffers have ", count, " elements");
    count = wanted;
  }
  const OfiOp op{method, kOfiTransmit, ep->tx_flags | (inject ? flag::kInject : 0), count * pair.size, false};
  if (!ofi_ready(*ep, method, peer, false) || (!inject && !ofi_described(*ep, method, operand, desc)) ||
      !ofi_described(*ep, method, compare, compare_desc) || !ofi_described(*ep, method, result, result_desc) ||
      !count_ok(*ep, method, family, pair, count) || !ofi_fits(*ep, op, 1, family == Family::base)) {
    return nullptr;
  }
  if (inject) {
    return ofi_post_inject(ep, op, [&] {
      return ofi_call(ep->get()->atomic, &Ops::inject, ep->get(), operand.data, count, peer, addr, key, pair.datatype,
                      pair.op);
    });
  }
  return ofi_post(ep, op, p.context, bufs.data(), held, [&](void* c) -> ssize_t {
    ofi::FidEp* const to = ep->get();
    const auto [type, what] = std::pair(pair.datatype, pair.op);
    if (family == Family::base)
      return ofi_call(to->atomic, &Ops::write, to, operand.data, count, desc, peer, addr, key, type, what, c);
    if (family == Family::fetch) {
      return ofi_call(to->atomic, &Ops::readwrite, to, operand.data, count, desc, result.data, result_desc, peer, addr,
                      key, type, what, c);
    }
    return ofi_call(to->atomic, &Ops::compwrite, to, operand.data, count, desc, compare.data, compare_desc, result.data,
                    result_desc, peer, addr, key, type, what, c);
  });
}

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
    return set_error(fi_err::kEINVAL, method, ": the operands have ", bytes, " bytes, the values to compare with ",
                     compare.total, ", the room for results ", result.total,
                     "\n  try: lists of the same number of elements");
  }
  if (message && !remote.fits(*ep, method, bytes / pair.size, "elements")) return nullptr;
  std::array<const Buf*, 3 * ofi::kIovMax> bufs;
  size_t held = 0;
  for (const OfiList* list : {&operand, &compare, &result}) {
    for (size_t i = 0; i < list->count; ++i) bufs[held++] = list->pointers[i];
  }
  return ofi_post(ep, op, p.context, bufs.data(), held, [&](void* c) -> ssize_t {
    ofi::FidEp* const to = ep->get();
    const ofi::AtomicOps* ops = to->atomic;
    const auto [type, what] = std::pair(pair.datatype, pair.op);
    const auto [from, compares, into] = std::tuple(operand.ioc.data(), compare.ioc.data(), result.ioc.data());
    if (message) {
      const ofi::MsgAtomic msg{
          from, operand.descs(), operand.count, peer, remote.iov.data(), remote.count, type, what, c, data};
      if (family == Family::base) return ofi_call(ops, &Ops::writemsg, to, &msg, flags);
      if (family == Family::fetch)
        return ofi_call(ops, &Ops::readwritemsg, to, &msg, into, result.descs(), result.count, flags);
      return ofi_call(ops, &Ops::compwritemsg, to, &msg, compares, compare.descs(), compare.count, into, result.descs(),
                      result.count, flags);
    }
    if (family == Family::base) {
      return ofi_call(ops, &Ops::writev, to, from, operand.descs(), operand.count, peer, addr, key, type, what, c);
    }
    if (family == Family::fetch) {
      return ofi_call(ops, &Ops::readwritev, to, from, operand.descs(), operand.count, into, result.descs(),
                      result.count, peer, addr, key, type, what, c);
    }
    return ofi_call(ops, &Ops::compwritev, to, from, operand.descs(), operand.count, compares, compare.descs(),
                    compare.count, into, result.descs(), result.count, peer, addr, key, type, what, c);
  });
}

template <Form form>
PyObject* called(PyObject* self, const char* method, Family family, AtomicArgsFor<form> a) {
  if constexpr (form == Form::message) {
    const AtomicFields fields(a.msg, "fi.MsgAtomic");
    return fields.read(&a) ? list_atomic(self, method, family, a, a.flags, true) : nullptr;
  } else if constexpr (form == Form::list) {
    return list_atomic(self, method, family, a, nullptr, false);
  } else {
    return one_atomic(self, method, family, a, form == Form::inject);
  }
}

}  // namespace

#define WEFT_ATOMIC(name, form, family, params, doc)                \
  WEFT_METHOD(ofi_##name, AtomicArgsFor<Form::form>, #name, params, \
              called<Form::form>(self, M::kName, Family::family, a))
#include "bind/calls.inl"

}  // namespace weft::bind
