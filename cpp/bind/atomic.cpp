// cpp/bind/atomic.cpp: the data-path methods of fi_atomic(3).
//
// HOT: the calls of one buffer. Arguments are parsed in place, the buffer is looked at without an export
// where its type allows, the GIL is kept for short copies, and nothing is allocated. Benchmark: bench/bench_atomic.py.
#include <algorithm>
#include <array>

#include "bind/arglist.hpp"
#include "nic/atomics.hpp"

namespace weft::bind {

namespace {

bool atomic_pair(const char* method, uint64_t datatype, uint64_t op, nic::AtomicFamily family, nic::AtomicArgs* args) {
  if (datatype < nic::kDatatypeCount && op < nic::kAtomicOpCount &&
      nic::atomic_valid(static_cast<nic::Datatype>(datatype), static_cast<nic::AtomicOp>(op), family)) [[likely]] {
    args->datatype = static_cast<nic::Datatype>(datatype);
    args->op = static_cast<nic::AtomicOp>(op);
    args->family = family;
    return true;
  }
  set_error(fi_err::kEOPNOTSUPP, std::string(method) + ": operation " + std::to_string(op) + " on datatype " +
                                     std::to_string(datatype) +
                                     " does not exist in this family: ask atomicvalid() first");
  return false;
}

bool post_atomic(EndpointCore* core, const char* method, nic::AtomicArgs& args, PyObject* context,
                 const std::vector<const Buf*>& bufs, uint64_t total) {
  PyObject* c = context != nullptr ? context : Py_None;
  if (!args.inject_call) {
    Py_INCREF(c);
    args.context = reinterpret_cast<uint64_t>(c);
  }
  const nic::PostResult r = core->ep->post_atomic(args);
  if (!args.inject_call && !r.context_used) Py_DECREF(c);
  if (r.refusal != Refusal::none) [[unlikely]]
    return refuse(core, method, r.refusal, args.dest, total);
  if (r.op_id != 0) [[unlikely]]
    return hold_buffers(core, r.op_id, bufs.data(), bufs.size());
  return true;
}

struct AtomicParams {
  PyObject *buf = nullptr, *compare = nullptr, *result = nullptr;
  PyObject *desc = nullptr, *compare_desc = nullptr, *result_desc = nullptr;
  PyObject *dest = nullptr, *addr = nullptr, *key = nullptr, *datatype = nullptr, *op = nullptr, *context = nullptr,
           *count = nullptr;
};

PyObject* one_atomic(EndpointCore* core, const char* method, nic::AtomicFamily family, const AtomicParams& p,
                     bool inject) {
  if (!usable(core, core->can_atomic, method, "ATOMIC")) [[unlikely]]
    return nullptr;
  nic::AtomicArgs args;
  args.dest = ~uint64_t{0};
  uint64_t datatype = ~uint64_t{0}, op = ~uint64_t{0};
  wire::RmaRange range;
  if (!to_u64(p.datatype, &datatype, method, "datatype") || !to_u64(p.op, &op, method, "op") ||
      !to_u64(p.dest, &args.dest, method, "dest_addr") || !target_ok(method, p.addr, p.key, &range)) [[unlikely]] {
    return nullptr;
  }
  if (!atomic_pair(method, datatype, op, family, &args)) [[unlikely]]
    return nullptr;
  const size_t size = nic::datatype_size(args.datatype);
  const bool uses_operand = args.op != nic::AtomicOp::atomic_read;
  Buf b, c, r;
  if (uses_operand && !b.acquire(p.buf, false)) [[unlikely]]
    return nullptr;
  if (family == nic::AtomicFamily::compare && !c.acquire(p.compare, false)) [[unlikely]]
    return nullptr;
  if (family != nic::AtomicFamily::base && !r.acquire(p.result, true)) [[unlikely]]
    return nullptr;
  bool of_b = false, of_c = false, of_r = false;
  if (!is_device(*core->box, b, method, false, &of_b) || !is_device(*core->box, c, method, false, &of_c) ||
      !is_device(*core->box, r, method, true, &of_r)) [[unlikely]] {
    return nullptr;
  }
  args.operand_device = of_b ? 1 : 0;
  args.compare_device = of_c ? 1 : 0;
  args.result_device = of_r ? 1 : 0;
  if (!inject || of_b) {
    if (uses_operand && !desc_ok(core, p.desc, b, LocalUse::source, of_b, method)) return nullptr;
    if (family == nic::AtomicFamily::compare && !desc_ok(core, p.compare_desc, c, LocalUse::source, of_c, method))
      return nullptr;
    if (family != nic::AtomicFamily::base && !desc_ok(core, p.result_desc, r, LocalUse::result, of_r, method))
      return nullptr;
  }
  const uint64_t available = uses_operand ? b.length : r.length;
  uint64_t count = available / size;
  if (p.count != nullptr && p.count != Py_None) {
    if (!to_u64(p.count, &count, method, "count")) return nullptr;
  } else if (available % size != 0) [[unlikely]] {
    set_error(fi_err::kEINVAL, std::string(method) + ": a buffer of " + std::to_string(available) +
                                   " bytes is no whole number of elements of " + std::to_string(size) +
                                   " bytes: give count, or a part of the buffer");
    return nullptr;
  }
  const uint64_t total = count > ~uint64_t{0} / size ? ~uint64_t{0} : count * size;
  const auto holds = [&](const Buf& x, const char* what) {
    if (total <= x.length) return true;
    set_error(fi_err::kEINVAL, std::string(method) + ": " + std::to_string(count) + " elements need " +
                                   std::to_string(total) + " bytes; " + what + " has " + std::to_string(x.length));
    return false;
  };
  if (total == 0) {
    set_error(fi_err::kEINVAL,
              std::string(method) + ": the buffers hold no whole element of " + std::to_string(size) + " bytes");
    return nullptr;
  }
  if ((uses_operand && !holds(b, "buf")) || (family == nic::AtomicFamily::compare && !holds(c, "compare")) ||
      (family != nic::AtomicFamily::base && !holds(r, "result"))) {
    return nullptr;
  }
  if (inject && !inject_length_ok(core, method, total)) return nullptr;
  const iovec bi{b.data, total}, ci{c.data, total}, ri{r.data, total};
  if (uses_operand) args.operand = {&bi, 1};
  if (family == nic::AtomicFamily::compare) args.compare = {&ci, 1};
  if (family != nic::AtomicFamily::base) args.result = {&ri, 1};
  range.length = total;
  args.remote = {&range, 1};
  args.flags = core->ep->config().tx_op_flags;
  args.inject_call = inject;
  PyObject* context = p.context != nullptr ? p.context : Py_None;
  if (!inject) {
    Py_INCREF(context);
    args.context = reinterpret_cast<uint64_t>(context);
  }
  const nic::PostResult posted = core->ep->post_atomic(args);
  if (!inject && !posted.context_used) Py_DECREF(context);
  if (posted.refusal != Refusal::none) [[unlikely]] {
    refuse(core, method, posted.refusal, args.dest, total);
    return nullptr;
  }
  if (posted.op_id != 0 && family != nic::AtomicFamily::base) [[unlikely]] {  // operands were copied
    const Buf* bufs[] = {&r};
    hold_buffers(core, posted.op_id, bufs, 1);
  }
  Py_RETURN_NONE;
}

Signature g_atomic{
    "atomic", {"buf", "desc", "dest_addr", "addr", "key", "datatype", "op", "context", "count"}, 8, 7, {}};
Signature g_inject_atomic{"inject_atomic", {"buf", "dest_addr", "addr", "key", "datatype", "op", "count"}, 6, 6, {}};
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

}  // namespace

PyObject* ep_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[9];
  g_atomic.required = 1;
  if (!parse_slow(g_atomic, args, nargs, kwnames, a)) return nullptr;
  if (!present("atomic", {{a[2], "dest_addr"}, {a[5], "datatype"}, {a[6], "op"}})) return nullptr;
  AtomicParams p;
  p.desc = a[1];
  p.buf = a[0], p.dest = a[2], p.addr = a[3], p.key = a[4], p.datatype = a[5], p.op = a[6], p.context = a[7],
  p.count = a[8];
  return one_atomic(self_of(self), "atomic", nic::AtomicFamily::base, p, false);
}
PyObject* ep_inject_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  g_inject_atomic.required = 1;
  if (!parse_slow(g_inject_atomic, args, nargs, kwnames, a)) return nullptr;
  if (!present("inject_atomic", {{a[1], "dest_addr"}, {a[4], "datatype"}, {a[5], "op"}})) return nullptr;
  AtomicParams p;
  p.buf = a[0], p.dest = a[1], p.addr = a[2], p.key = a[3], p.datatype = a[4], p.op = a[5], p.count = a[6];
  return one_atomic(self_of(self), "inject_atomic", nic::AtomicFamily::base, p, true);
}
PyObject* ep_fetch_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[11];
  if (!parse_slow(g_fetch_atomic, args, nargs, kwnames, a)) return nullptr;
  if (!present("fetch_atomic",
               {{a[0], "buf"}, {a[2], "result"}, {a[4], "dest_addr"}, {a[7], "datatype"}, {a[8], "op"}})) {
    return nullptr;
  }
  AtomicParams p;
  p.desc = a[1], p.result_desc = a[3];
  p.buf = a[0], p.result = a[2], p.dest = a[4], p.addr = a[5], p.key = a[6], p.datatype = a[7], p.op = a[8],
  p.context = a[9], p.count = a[10];
  return one_atomic(self_of(self), "fetch_atomic", nic::AtomicFamily::fetch, p, false);
}
PyObject* ep_compare_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[13];
  if (!parse_slow(g_compare_atomic, args, nargs, kwnames, a)) return nullptr;
  if (!present("compare_atomic", {{a[0], "buf"},
                                  {a[2], "compare"},
                                  {a[4], "result"},
                                  {a[6], "dest_addr"},
                                  {a[9], "datatype"},
                                  {a[10], "op"}})) {
    return nullptr;
  }
  AtomicParams p;
  p.desc = a[1], p.compare_desc = a[3], p.result_desc = a[5];
  p.buf = a[0], p.compare = a[2], p.result = a[4], p.dest = a[6], p.addr = a[7], p.key = a[8], p.datatype = a[9],
  p.op = a[10], p.context = a[11], p.count = a[12];
  return one_atomic(self_of(self), "compare_atomic", nic::AtomicFamily::compare, p, false);
}

namespace {

// The list and message forms share one body.
PyObject* list_atomic(EndpointCore* core, const char* method, nic::AtomicFamily family, PyObject* iov,
                      PyObject* iov_count, PyObject* comparev, PyObject* resultv, PyObject* dest,
                      PyObject* datatype_arg, PyObject* op_arg, PyObject* context, uint64_t flags, PyObject* data,
                      PyObject* rma, PyObject* rma_count, PyObject* addr, PyObject* key,
                      const std::array<PyObject*, 3>& descs) {
  if (!usable(core, core->can_atomic, method, "ATOMIC")) return nullptr;
  nic::AtomicArgs args;
  args.dest = ~uint64_t{0};
  uint64_t datatype = ~uint64_t{0}, op = ~uint64_t{0};
  if (!to_u64(datatype_arg, &datatype, method, "datatype") || !to_u64(op_arg, &op, method, "op") ||
      !to_u64(dest, &args.dest, method, "dest_addr") || !to_u64(data, &args.imm, method, "data") ||
      !atomic_pair(method, datatype, op, family, &args)) {
    return nullptr;
  }
  const size_t size = nic::datatype_size(args.datatype);
  const bool uses_operand = args.op != nic::AtomicOp::atomic_read;
  BufList operand, compare, result;
  std::array<wire::RmaRange, nic::kIovMax> remote;
  size_t remote_count = 0;
  if (uses_operand && !operand.acquire(*core, iov, false, iov_count, method, size)) return nullptr;
  if (family == nic::AtomicFamily::compare && !compare.acquire(*core, comparev, false, nullptr, method, size))
    return nullptr;
  if (family != nic::AtomicFamily::base && !result.acquire(*core, resultv, true, nullptr, method, size)) return nullptr;
  if ((uses_operand && !operand.descs_ok(core, descs[0], LocalUse::source, method)) ||
      (family == nic::AtomicFamily::compare && !compare.descs_ok(core, descs[1], LocalUse::source, method)) ||
      (family != nic::AtomicFamily::base && !result.descs_ok(core, descs[2], LocalUse::result, method))) {
    return nullptr;
  }
  const uint64_t total = uses_operand ? operand.total : result.total;
  if (rma != nullptr) {
    if (!remote_list(*core, rma, rma_count, method, size, remote, &remote_count)) return nullptr;
  } else {
    remote[0] = {0, total, 0};
    remote_count = 1;
    if (!target_ok(method, addr, key, &remote[0])) return nullptr;
  }
  for (const BufList* l : {&operand, &compare, &result}) {
    for (size_t i = 0; i < l->count; ++i) {
      if (l->iov[i].iov_len % size != 0) {
        set_error(fi_err::kEINVAL, std::string(method) + ": a buffer of " + std::to_string(l->iov[i].iov_len) +
                                       " bytes is no whole number of elements of " + std::to_string(size) + " bytes");
        return nullptr;
      }
    }
  }
  if (total == 0) {
    set_error(fi_err::kEINVAL, std::string(method) + ": the lists hold no element");
    return nullptr;
  }
  if ((flags & nic::flag::kInject) != 0 && !inject_length_ok(core, method, total)) return nullptr;
  args.operand_device = operand.device;
  args.compare_device = compare.device;
  args.result_device = result.device;
  args.operand = operand.span();
  args.compare = compare.span();
  args.result = result.span();
  args.remote = {remote.data(), remote_count};
  args.flags = flags;
  std::vector<const Buf*> bufs(result.pointers.begin(),
                               result.pointers.begin() + static_cast<std::ptrdiff_t>(result.count));
  if (!post_atomic(core, method, args, context, bufs, total)) return nullptr;
  Py_RETURN_NONE;
}

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

}  // namespace

PyObject* ep_atomicv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[8];
  if (!parse_slow(g_atomicv, args, nargs, kwnames, a)) return nullptr;
  EndpointCore* core = self_of(self);
  if (!present("atomicv", {{a[2], "dest_addr"}, {a[5], "datatype"}, {a[6], "op"}})) return nullptr;
  return list_atomic(core, "atomicv", nic::AtomicFamily::base, a[0], nullptr, nullptr, nullptr, a[2], a[5], a[6], a[7],
                     core->ep->config().tx_op_flags, nullptr, nullptr, nullptr, a[3], a[4], {a[1], nullptr, nullptr});
}
PyObject* ep_fetch_atomicv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[10];
  if (!parse_slow(g_fetch_atomicv, args, nargs, kwnames, a)) return nullptr;
  EndpointCore* core = self_of(self);
  if (!present("fetch_atomicv", {{a[2], "resultv"}, {a[4], "dest_addr"}, {a[7], "datatype"}, {a[8], "op"}})) {
    return nullptr;
  }
  return list_atomic(core, "fetch_atomicv", nic::AtomicFamily::fetch, a[0], nullptr, nullptr, a[2], a[4], a[7], a[8],
                     a[9], core->ep->config().tx_op_flags, nullptr, nullptr, nullptr, a[5], a[6],
                     {a[1], nullptr, a[3]});
}
PyObject* ep_compare_atomicv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[12];
  if (!parse_slow(g_compare_atomicv, args, nargs, kwnames, a)) return nullptr;
  EndpointCore* core = self_of(self);
  if (!present("compare_atomicv",
               {{a[2], "comparev"}, {a[4], "resultv"}, {a[6], "dest_addr"}, {a[9], "datatype"}, {a[10], "op"}})) {
    return nullptr;
  }
  return list_atomic(core, "compare_atomicv", nic::AtomicFamily::compare, a[0], nullptr, a[2], a[4], a[6], a[9], a[10],
                     a[11], core->ep->config().tx_op_flags, nullptr, nullptr, nullptr, a[7], a[8], {a[1], a[3], a[5]});
}

namespace {

Signature g_atomicmsg{"atomicmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_fetch_atomicmsg{"fetch_atomicmsg", {"msg", "resultv", "result_desc", "flags"}, 4, 2, {}};
Signature g_compare_atomicmsg{
    "compare_atomicmsg", {"msg", "comparev", "compare_desc", "resultv", "result_desc", "flags"}, 6, 2, {}};

PyObject* atomic_message(EndpointCore* core, const char* method, nic::AtomicFamily family, PyObject* msg,
                         PyObject* comparev, PyObject* resultv, PyObject* flags_arg, PyObject* compare_desc = nullptr,
                         PyObject* result_desc = nullptr) {
  uint64_t flags = 0;
  if (!to_u64(flags_arg, &flags, method, "flags")) return nullptr;
  const uint64_t allowed =
      family == nic::AtomicFamily::base ? kMsgFlags : kMsgFlags & ~(nic::flag::kInject | nic::flag::kRemoteCqData);
  if (!flags_ok(flags, allowed, method)) return nullptr;
  const Attr iov(msg, "msg_iov"), iov_count(msg, "iov_count"), rma(msg, "rma_iov"), rma_count(msg, "rma_iov_count"),
      addr(msg, "addr"), desc(msg, "desc"), context(msg, "context"), data(msg, "data"), datatype(msg, "datatype"),
      op(msg, "op");
  for (const Attr* a : {&iov, &iov_count, &rma, &rma_count, &addr, &desc, &context, &data, &datatype, &op}) {
    if (a->value == nullptr) return nullptr;
  }
  return list_atomic(core, method, family, iov.value, iov_count.value, comparev, resultv, addr.value, datatype.value,
                     op.value, context.value, flags, data.value, rma.value, rma_count.value, nullptr, nullptr,
                     {desc.value, compare_desc, result_desc});
}

}  // namespace

PyObject* ep_atomicmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[2];
  if (!parse_slow(g_atomicmsg, args, nargs, kwnames, a)) return nullptr;
  return atomic_message(self_of(self), "atomicmsg", nic::AtomicFamily::base, a[0], nullptr, nullptr, a[1]);
}
PyObject* ep_fetch_atomicmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[4];
  if (!parse_slow(g_fetch_atomicmsg, args, nargs, kwnames, a)) return nullptr;
  return atomic_message(self_of(self), "fetch_atomicmsg", nic::AtomicFamily::fetch, a[0], nullptr, a[1], a[3], nullptr,
                        a[2]);
}
PyObject* ep_compare_atomicmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[6];
  if (!parse_slow(g_compare_atomicmsg, args, nargs, kwnames, a)) return nullptr;
  if (!present("compare_atomicmsg", {{a[3], "resultv"}})) return nullptr;
  return atomic_message(self_of(self), "compare_atomicmsg", nic::AtomicFamily::compare, a[0], a[1], a[3], a[5], a[2],
                        a[4]);
}

void register_atomic(nb::module_& m) {
  m.def(
      "atomic_valid",
      [](uint32_t datatype, uint32_t op, uint32_t family) {
        const auto d = static_cast<nic::Datatype>(datatype);
        const size_t size = datatype < nic::kDatatypeCount ? nic::datatype_size(d) : 0;
        const bool ok = size != 0 && op < nic::kAtomicOpCount && family <= 2 &&
                        nic::atomic_valid(d, static_cast<nic::AtomicOp>(op), static_cast<nic::AtomicFamily>(family));
        return nb::make_tuple(ok ? nic::Limits{}.atomic_bytes_max / size : 0, size);
      },
      nb::arg("datatype"), nb::arg("op"), nb::arg("family"),
      nb::sig("def atomic_valid(datatype: int, op: int, family: int) -> tuple[int, int]"),
      "(elements that one call may hold, bytes of an element); (0, size) where the pair does not exist.");
}

}  // namespace weft::bind
