// cpp/bind/atomic.cpp: the data-path methods of fi_atomic(3).
//
// HOT: the calls of one buffer. They parse arguments in place, read buffers without an export if their type allows, and
// allocate nothing. Benchmark: bench/bench_atomic.py.
#include <array>
#include <optional>

#include "bind/atomic_args.hpp"
#include "bind/deferred.hpp"

namespace weft::bind {

namespace {

using nic::AtomicFamily;

// Checks and posts. results: the buffers to keep until the operation ends (operands are copied). Steals no reference.
PyObject* run(EndpointCore* core, const char* method, call::Atomic& a, PyObject* context,
              std::span<const Buf* const> results) {
  call::Why why;
  if (call::check(*core->ep, a, &why) != Refusal::none) [[unlikely]]
    return refuse(core, method, why);
  PyObject* c = context != nullptr ? context : Py_None;
  const bool has_context = !a.inject || context != nullptr;
  if (has_context) {
    Py_INCREF(c);
    a.context = reinterpret_cast<uint64_t>(c);
  }
  a.flags |= core->one_sided;
  const nic::PostResult r = call::post(*core->ep, a);
  if (has_context && !r.context_used) Py_DECREF(c);
  if (r.refusal != Refusal::none) [[unlikely]]
    return refuse(core, method, r.refusal, a.dest, a.total);
  if (r.op_id != 0 && a.has_result()) [[unlikely]]
    hold_buffers(core, r.op_id, results.data(), results.size());
  Py_RETURN_NONE;
}

bool read_numbers(const char* method, PyObject* datatype, PyObject* op, PyObject* dest, call::Atomic* a) {
  return to_u64(datatype, &a->datatype, method, "datatype") && to_u64(op, &a->op, method, "op") &&
         to_u64(dest, &a->dest, method, "dest_addr");
}

// ---- one buffer ----------------------------------------------------------------------------------------------------

// HOT.
PyObject* one_atomic(PyObject* self, const char* method, AtomicFamily family, const OneAtomic& p, bool inject) {
  EndpointCore* core = self_of(self);
  if (!usable(core, method)) [[unlikely]]
    return nullptr;
  call::Atomic a;
  call::Why why;
  wire::RmaRange range;
  a.family = family;
  a.inject = inject;
  a.single = true;
  a.flags = inject ? core->ep->config().tx_op_flags : core->flags_of(call::flag_call(family));
  if (!read_numbers(method, p.datatype, p.op, p.dest, &a) || !target_ok(method, p.addr, p.key, &range.addr, &range.key))
      [[unlikely]] {
    return nullptr;
  }
  if (call::check_pair(*core->ep, a, &why) != Refusal::none) [[unlikely]]
    return refuse(core, method, why);
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
  if (p.count != nullptr && p.count != Py_None && !to_u64(p.count, &a.count, method, "count")) return nullptr;
  a.operand = {&of_operand, 1};
  a.compare = {&of_compare, 1};
  a.result = {&of_result, 1};
  a.remote = {&range, 1};
  a.whole = true;
  const Buf* results[] = {&result};
  const nb::object own = inject ? inject_context(self) : nb::object();
  return run(core, method, a, inject ? own.ptr() : p.context, results);
}

// ---- lists and messages --------------------------------------------------------------------------------------------

PyObject* list_atomic(EndpointCore* core, const char* method, AtomicFamily family, const ListAtomic& p,
                      std::optional<uint64_t> flags, bool message, Deferral* later = nullptr) {
  if (!usable(core, method)) return nullptr;
  call::Atomic a;
  call::Why why;
  a.family = family;
  a.flags = flags.value_or(core->flags_of(call::flag_call(family)));
  a.message = message;
  if (!read_numbers(method, p.datatype, p.op, p.dest, &a) || !to_u64(p.data, &a.imm, method, "data")) return nullptr;
  if (call::check_pair(*core->ep, a, &why) != Refusal::none) return refuse(core, method, why);
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

}  // namespace

PyObject* atomic_msg(EndpointCore* core, const char* method, AtomicFamily family, ListAtomic p, Deferral* later) {
  uint64_t flags = 0;
  if (!to_u64(p.flags, &flags, method, "flags")) return nullptr;
  const AtomicFields fields(p.msg, kMsgTypes);
  return fields.read(&p) ? list_atomic(core, method, family, p, flags, true, later) : nullptr;
}

namespace {

template <Form form>
PyObject* called(PyObject* self, const char* method, AtomicFamily family, const AtomicArgsFor<form>& a) {
  if constexpr (form == Form::message) {
    return atomic_msg(self_of(self), method, family, a);
  } else if constexpr (form == Form::list) {
    return list_atomic(self_of(self), method, family, a, std::nullopt, false);
  } else {
    return one_atomic(self, method, family, a, form == Form::inject);
  }
}

}  // namespace

#define WEFT_ATOMIC(name, form, family, params, doc)               \
  WEFT_METHOD(ep_##name, AtomicArgsFor<Form::form>, #name, params, \
              called<Form::form>(self, M::kName, AtomicFamily::family, a))
#include "bind/calls.inl"

void register_atomic(Module& m) {
  m.about(
       "Returns the default limit (elements of one call, bytes of one element); (0, size) if the operation does not\n"
       "exist for the datatype. EndpointCore.atomic_limit() returns an endpoint's own limit.")
      .def<"atomic_valid(datatype, op, family)">([](uint32_t datatype, uint32_t op, uint32_t family) {
        static const nic::OpRules rules;
        const call::AtomicLimit a = call::atomic_limit(rules, nic::Limits{}, datatype, op, family);
        return std::pair(a.count, a.size);
      });
}

}  // namespace weft::bind
