// cpp/bind/atomic.cpp: the data-path methods of fi_atomic(3).
//
// HOT: the calls of one buffer. They parse arguments in place, read buffers without an export if their type allows, and
// allocate nothing. Benchmark: bench/bench_atomic.py.
#include <array>
#include <optional>

#include "bind/arglist.hpp"
#include "bind/deferred.hpp"

namespace weft::bind {

namespace {

using nic::AtomicFamily;

// Checks and posts. results: the buffers to keep until the operation ends (operands are copied). Steals no reference.
PyObject* run(EndpointCore* core, const char* method, call::Atomic& a, PyObject* context,
              std::span<const Buf* const> results) {
  call::Why why;
  if (call::check(*core->ep, a, &why) != Refusal::none) [[unlikely]] {
    refuse(core, method, why);
    return nullptr;
  }
  PyObject* c = context != nullptr ? context : Py_None;
  const bool has_context = !a.inject || context != nullptr;
  if (has_context) {
    Py_INCREF(c);
    a.context = reinterpret_cast<uint64_t>(c);
  }
  a.flags |= core->lane;
  const nic::PostResult r = call::post(*core->ep, a);
  if (has_context && !r.context_used) Py_DECREF(c);
  if (r.refusal != Refusal::none) [[unlikely]] {
    refuse(core, method, r.refusal, a.dest, a.total);
    return nullptr;
  }
  if (r.op_id != 0 && a.has_result()) [[unlikely]]
    hold_buffers(core, r.op_id, results.data(), results.size());
  Py_RETURN_NONE;
}

bool read_numbers(const char* method, PyObject* datatype, PyObject* op, PyObject* dest, call::Atomic* a) {
  return to_u64(datatype, &a->datatype, method, "datatype") && to_u64(op, &a->op, method, "op") &&
         to_u64(dest, &a->dest, method, "dest_addr");
}

// ---- one buffer ----------------------------------------------------------------------------------------------------

// The arguments of a call with one buffer of each kind; null where absent.
struct OneAtomic {
  PyObject *buf = nullptr, *desc = nullptr;
  PyObject *compare = nullptr, *compare_desc = nullptr;
  PyObject *result = nullptr, *result_desc = nullptr;
  PyObject *dest = nullptr, *addr = nullptr, *key = nullptr;
  PyObject *datatype = nullptr, *op = nullptr;
  PyObject *context = nullptr, *count = nullptr;
};

// HOT.
PyObject* one_atomic(EndpointCore* core, const char* method, AtomicFamily family, const OneAtomic& p, bool inject) {
  if (!usable(core, method)) [[unlikely]]
    return nullptr;
  call::Atomic a;
  call::Why why;
  wire::RmaRange range;
  a.family = family;
  a.inject = inject;
  a.single = true;
  a.flags = core->ep->config().tx_op_flags;
  if (!read_numbers(method, p.datatype, p.op, p.dest, &a) || !target_ok(method, p.addr, p.key, &range.addr, &range.key))
      [[unlikely]] {
    return nullptr;
  }
  if (call::check_pair(*core->ep, a, &why) != Refusal::none) [[unlikely]] {
    refuse(core, method, why);
    return nullptr;
  }
  Buf operand, compare, result;
  if ((a.has_operand && !operand.acquire(p.buf, false)) || (a.has_compare() && !compare.acquire(p.compare, false)) ||
      (a.has_result() && !result.acquire(p.result, true))) [[unlikely]] {
    return nullptr;
  }
  if ((a.has_operand && !fits_datatype(method, "buf", p.buf, a.datatype)) ||
      (a.has_compare() && !fits_datatype(method, "compare", p.compare, a.datatype)) ||
      (a.has_result() && !fits_datatype(method, "result", p.result, a.datatype))) [[unlikely]] {
    return nullptr;
  }
  call::Local of_operand = local_of(operand), of_compare = local_of(compare), of_result = local_of(result);
  if (!convert_desc(core, p.desc, method, &of_operand) || !convert_desc(core, p.compare_desc, method, &of_compare) ||
      !convert_desc(core, p.result_desc, method, &of_result)) [[unlikely]] {
    return nullptr;
  }
  if (p.count != nullptr && p.count != Py_None) {
    if (!to_u64(p.count, &a.count, method, "count")) return nullptr;
  }
  a.operand = {&of_operand, 1};
  a.compare = {&of_compare, 1};
  a.result = {&of_result, 1};
  a.remote = {&range, 1};
  a.whole = true;
  const Buf* results[] = {&result};
  return run(core, method, a, p.context, results);
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

}  // namespace

PyObject* ep_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[9];
  if (!parse(g_atomic, args, nargs, kwnames, a)) return nullptr;
  OneAtomic p;
  const auto& [buf, desc, dest_addr, addr, key, datatype, op, context, count] = a;
  if (!present("atomic", {{dest_addr, "dest_addr"}, {datatype, "datatype"}, {op, "op"}})) return nullptr;
  p.buf = buf, p.desc = desc, p.dest = dest_addr, p.addr = addr, p.key = key, p.datatype = datatype, p.op = op;
  p.context = context, p.count = count;
  return one_atomic(self_of(self), "atomic", AtomicFamily::base, p, false);
}
PyObject* ep_inject_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse(g_inject_atomic, args, nargs, kwnames, a)) return nullptr;
  OneAtomic p;
  const auto& [buf, dest_addr, addr, key, datatype, op, count] = a;
  if (!present("inject_atomic", {{dest_addr, "dest_addr"}, {datatype, "datatype"}, {op, "op"}})) return nullptr;
  p.buf = buf, p.dest = dest_addr, p.addr = addr, p.key = key, p.datatype = datatype, p.op = op, p.count = count;
  const nb::object context = inject_context(self);
  p.context = context.ptr();
  return one_atomic(self_of(self), "inject_atomic", AtomicFamily::base, p, true);
}
PyObject* ep_fetch_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[11];
  if (!parse(g_fetch_atomic, args, nargs, kwnames, a)) return nullptr;
  OneAtomic p;
  const auto& [buf, desc, result, result_desc, dest_addr, addr, key, datatype, op, context, count] = a;
  if (!present("fetch_atomic",
               {{buf, "buf"}, {result, "result"}, {dest_addr, "dest_addr"}, {datatype, "datatype"}, {op, "op"}})) {
    return nullptr;
  }
  p.buf = buf, p.desc = desc, p.result = result, p.result_desc = result_desc, p.dest = dest_addr, p.addr = addr;
  p.key = key, p.datatype = datatype, p.op = op, p.context = context, p.count = count;
  return one_atomic(self_of(self), "fetch_atomic", AtomicFamily::fetch, p, false);
}
PyObject* ep_compare_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[13];
  if (!parse(g_compare_atomic, args, nargs, kwnames, a)) return nullptr;
  OneAtomic p;
  const auto& [buf, desc, compare, compare_desc, result, result_desc, dest_addr, addr, key, datatype, op, context,
               count] = a;
  if (!present("compare_atomic", {{buf, "buf"},
                                  {compare, "compare"},
                                  {result, "result"},
                                  {dest_addr, "dest_addr"},
                                  {datatype, "datatype"},
                                  {op, "op"}})) {
    return nullptr;
  }
  p.buf = buf, p.desc = desc, p.compare = compare, p.compare_desc = compare_desc, p.result = result;
  p.result_desc = result_desc, p.dest = dest_addr, p.addr = addr, p.key = key, p.datatype = datatype, p.op = op;
  p.context = context, p.count = count;
  return one_atomic(self_of(self), "compare_atomic", AtomicFamily::compare, p, false);
}

// ---- lists and messages --------------------------------------------------------------------------------------------

namespace {

// The arguments of a call with lists. The ranges are in `rma`, or addr and key describe the only one.
struct ListAtomic {
  PyObject *iov = nullptr, *iov_count = nullptr, *desc = nullptr;
  PyObject *comparev = nullptr, *compare_desc = nullptr;
  PyObject *resultv = nullptr, *result_desc = nullptr;
  PyObject *dest = nullptr, *addr = nullptr, *key = nullptr;
  PyObject *rma = nullptr, *rma_count = nullptr;
  PyObject *datatype = nullptr, *op = nullptr;
  PyObject *context = nullptr, *data = nullptr;
};

PyObject* list_atomic(EndpointCore* core, const char* method, AtomicFamily family, const ListAtomic& p,
                      std::optional<uint64_t> flags, bool message, Deferral* later = nullptr) {
  if (!usable(core, method)) return nullptr;
  call::Atomic a;
  call::Why why;
  a.family = family;
  a.flags = flags.value_or(core->ep->config().tx_op_flags);
  a.message = message;
  if (!read_numbers(method, p.datatype, p.op, p.dest, &a) || !to_u64(p.data, &a.imm, method, "data")) return nullptr;
  if (call::check_pair(*core->ep, a, &why) != Refusal::none) {
    refuse(core, method, why);
    return nullptr;
  }
  BufList operand, compare, result;
  operand.datatype = compare.datatype = result.datatype = a.datatype;
  if ((a.has_operand && (!operand.acquire(core, p.iov, false, p.iov_count, method, a.size) ||
                         !operand.convert_descs(core, p.desc, method))) ||
      (a.has_compare() && (!compare.acquire(core, p.comparev, false, nullptr, method, a.size) ||
                           !compare.convert_descs(core, p.compare_desc, method))) ||
      (a.has_result() && (!result.acquire(core, p.resultv, true, nullptr, method, a.size) ||
                          !result.convert_descs(core, p.result_desc, method)))) {
    return nullptr;
  }
  std::array<wire::RmaRange, nic::kIovMax> remote;
  size_t remote_count = 1;
  if (p.rma != nullptr) {
    if (!remote_list(core, p.rma, p.rma_count, method, a.size, remote, &remote_count)) return nullptr;
  } else {
    if (!target_ok(method, p.addr, p.key, &remote[0].addr, &remote[0].key)) return nullptr;
    a.whole = true;
  }
  a.operand = operand.span();
  a.compare = compare.span();
  a.result = result.span();
  a.remote = {remote.data(), remote_count};
  if (later != nullptr) {
    std::array<const Buf*, 3 * nic::kIovMax> all;
    size_t count = 0;
    for (const BufList* list : {&operand, &compare, &result}) {
      for (size_t i = 0; i < list->count; ++i) all[count++] = list->pointers[i];
    }
    return queue(core, method, a, p.context, std::span(all).first(count), *later);
  }
  return run(core, method, a, p.context, {result.pointers.data(), result.count});
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
  if (!parse(g_atomicv, args, nargs, kwnames, a)) return nullptr;
  ListAtomic p;
  const auto& [iov, desc, dest_addr, addr, key, datatype, op, context] = a;
  if (!present("atomicv", {{dest_addr, "dest_addr"}, {datatype, "datatype"}, {op, "op"}})) return nullptr;
  p.iov = iov, p.desc = desc, p.dest = dest_addr, p.addr = addr, p.key = key, p.datatype = datatype, p.op = op;
  p.context = context;
  EndpointCore* core = self_of(self);
  return list_atomic(core, "atomicv", AtomicFamily::base, p, std::nullopt, false);
}
PyObject* ep_fetch_atomicv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[10];
  if (!parse(g_fetch_atomicv, args, nargs, kwnames, a)) return nullptr;
  ListAtomic p;
  const auto& [iov, desc, resultv, result_desc, dest_addr, addr, key, datatype, op, context] = a;
  if (!present("fetch_atomicv", {{resultv, "resultv"}, {dest_addr, "dest_addr"}, {datatype, "datatype"}, {op, "op"}})) {
    return nullptr;
  }
  p.iov = iov, p.desc = desc, p.resultv = resultv, p.result_desc = result_desc, p.dest = dest_addr, p.addr = addr;
  p.key = key, p.datatype = datatype, p.op = op, p.context = context;
  EndpointCore* core = self_of(self);
  return list_atomic(core, "fetch_atomicv", AtomicFamily::fetch, p, std::nullopt, false);
}
PyObject* ep_compare_atomicv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[12];
  if (!parse(g_compare_atomicv, args, nargs, kwnames, a)) return nullptr;
  ListAtomic p;
  const auto& [iov, desc, comparev, compare_desc, resultv, result_desc, dest_addr, addr, key, datatype, op, context] =
      a;
  if (!present("compare_atomicv", {{comparev, "comparev"},
                                   {resultv, "resultv"},
                                   {dest_addr, "dest_addr"},
                                   {datatype, "datatype"},
                                   {op, "op"}})) {
    return nullptr;
  }
  p.iov = iov, p.desc = desc, p.comparev = comparev, p.compare_desc = compare_desc, p.resultv = resultv;
  p.result_desc = result_desc, p.dest = dest_addr, p.addr = addr, p.key = key, p.datatype = datatype, p.op = op;
  p.context = context;
  EndpointCore* core = self_of(self);
  return list_atomic(core, "compare_atomicv", AtomicFamily::compare, p, std::nullopt, false);
}

namespace {

Signature g_atomicmsg{"atomicmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_fetch_atomicmsg{"fetch_atomicmsg", {"msg", "resultv", "result_desc", "flags"}, 4, 2, {}};
Signature g_compare_atomicmsg{
    "compare_atomicmsg", {"msg", "comparev", "compare_desc", "resultv", "result_desc", "flags"}, 6, 2, {}};

}  // namespace

PyObject* atomic_msg(EndpointCore* core, const char* method, AtomicFamily family, PyObject* msg, PyObject* flags_arg,
                     const AtomicLists& lists, Deferral* later) {
  ListAtomic p;
  p.comparev = lists.comparev, p.compare_desc = lists.compare_desc;
  p.resultv = lists.resultv, p.result_desc = lists.result_desc;
  uint64_t flags = 0;
  if (!to_u64(flags_arg, &flags, method, "flags")) return nullptr;
  const Attr iov(msg, "msg_iov"), iov_count(msg, "iov_count"), rma(msg, "rma_iov"), rma_count(msg, "rma_iov_count"),
      addr(msg, "addr"), desc(msg, "desc"), context(msg, "context"), data(msg, "data"), datatype(msg, "datatype"),
      op(msg, "op");
  for (const Attr* a : {&iov, &iov_count, &rma, &rma_count, &addr, &desc, &context, &data, &datatype, &op}) {
    if (a->value == nullptr) return nullptr;
  }
  p.iov = iov.value, p.iov_count = iov_count.value, p.desc = desc.value;
  p.rma = rma.value, p.rma_count = rma_count.value;
  p.dest = addr.value, p.datatype = datatype.value, p.op = op.value;
  p.context = context.value, p.data = data.value;
  return list_atomic(core, method, family, p, flags, true, later);
}

PyObject* ep_atomicmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[2];
  if (!parse(g_atomicmsg, args, nargs, kwnames, a)) return nullptr;
  const auto& [msg, flags] = a;
  return atomic_msg(self_of(self), "atomicmsg", AtomicFamily::base, msg, flags, {});
}
PyObject* ep_fetch_atomicmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[4];
  if (!parse(g_fetch_atomicmsg, args, nargs, kwnames, a)) return nullptr;
  const auto& [msg, resultv, result_desc, flags] = a;
  const AtomicLists lists{.resultv = resultv, .result_desc = result_desc};
  return atomic_msg(self_of(self), "fetch_atomicmsg", AtomicFamily::fetch, msg, flags, lists);
}
PyObject* ep_compare_atomicmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[6];
  if (!parse(g_compare_atomicmsg, args, nargs, kwnames, a)) return nullptr;
  const auto& [msg, comparev, compare_desc, resultv, result_desc, flags] = a;
  if (!present("compare_atomicmsg", {{resultv, "resultv"}})) return nullptr;
  const AtomicLists lists{comparev, compare_desc, resultv, result_desc};
  return atomic_msg(self_of(self), "compare_atomicmsg", AtomicFamily::compare, msg, flags, lists);
}

void register_atomic(Module& m) {
  m.def(
      "atomic_valid",
      [](uint32_t datatype, uint32_t op, uint32_t family) {
        static const nic::OpRules rules;
        const call::AtomicLimit a = call::atomic_limit(rules, nic::Limits{}, datatype, op, family);
        return nb::make_tuple(a.count, a.size);
      },
      nb::arg("datatype"), nb::arg("op"), nb::arg("family"),
      nb::sig("def atomic_valid(datatype: int, op: int, family: int) -> tuple[int, int]"),
      "Returns the default limit (elements of one call, bytes of one element); (0, size) if the operation does not\n"
      "exist for the datatype. EndpointCore.atomic_limit() returns an endpoint's own limit.");
}

}  // namespace weft::bind
