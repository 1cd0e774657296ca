// cpp/provider/atomic.cpp: fi_atomic(3).
//
// HOT: the calls of one buffer.
#include "provider/calls.hpp"

namespace weft::provider {

namespace {

using nic::AtomicFamily;

struct Values {  // one buffer of a kind
  const void* buf = nullptr;
  void* desc = nullptr;
};
struct ValueLists {  // buffers of a kind, in elements
  const ofi::Ioc* iov = nullptr;
  void** desc = nullptr;
  size_t count = 0;
};

// The checks take a call's numbers as unsigned, and name unknown numbers.
void set_pair(call::Atomic* a, int datatype, int op) noexcept {
  a->datatype = static_cast<uint64_t>(static_cast<uint32_t>(datatype));
  a->op = static_cast<uint64_t>(static_cast<uint32_t>(op));
}

// HOT.
ssize_t one_atomic(Ep& ep, const char* name, AtomicFamily family, Values operand, Values compare, Values result,
                   size_t count, uint64_t dest, uint64_t addr, uint64_t key, int datatype, int op, void* context,
                   bool inject = false) noexcept {
  if (ep.forked()) [[unlikely]]
    return refuse_forked(ep, name);
  call::Atomic a;
  call::Why why;
  wire::RmaRange range;
  a.family = family;
  a.inject = inject;
  a.single = true;
  a.flags = inject ? ep.ep->config().tx_op_flags : ep.flags_of(call::flag_call(family));
  a.dest = dest;
  set_pair(&a, datatype, op);
  if (call::check_pair(*ep.ep, a, &why) != Refusal::none) [[unlikely]]
    return refuse_call(ep, name, why);
  range.addr = addr;
  range.key = key;
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, a.size, &bytes)) bytes = ~size_t{0};
  const call::Local of_operand = local_of(ep, operand.buf, bytes, operand.desc),
                    of_compare = local_of(ep, compare.buf, bytes, compare.desc),
                    of_result = local_of(ep, result.buf, bytes, result.desc);
  a.count = count;
  a.operand = {&of_operand, 1};
  a.compare = {&of_compare, 1};
  a.result = {&of_result, 1};
  a.remote = {&range, 1};
  a.whole = true;
  a.context = context_of(context);
  return run(ep, name, a);
}

struct ElementLists {
  std::array<call::Local, nic::kIovMax> list;
  size_t count = 0;

  bool take(const Ep& ep, const ValueLists& from, uint64_t size) noexcept {
    if (from.count > list.size() || (from.iov == nullptr && from.count != 0)) return false;
    for (count = 0; count < from.count; ++count) {
      size_t bytes = 0;
      if (__builtin_mul_overflow(from.iov[count].count, size, &bytes)) bytes = ~size_t{0};
      list[count] = local_of(ep, from.iov[count].addr, bytes, from.desc != nullptr ? from.desc[count] : nullptr);
    }
    return true;
  }
  [[nodiscard]] std::span<const call::Local> span() const noexcept { return {list.data(), count}; }
};

// The rest of a call with lists, whose family, flags, target and numbers are in `a`.
ssize_t list_atomic(Ep& ep, const char* name, call::Atomic& a, const ValueLists& operand, const ValueLists& compare,
                    const ValueLists& result, const ofi::RmaIov* remote, size_t remote_count, bool whole,
                    const Later* later = nullptr) noexcept {
  if (ep.forked()) return refuse_forked(ep, name);
  call::Why why;
  if (call::check_pair(*ep.ep, a, &why) != Refusal::none) return refuse_call(ep, name, why);
  ElementLists of_operand, of_compare, of_result;
  if (!of_operand.take(ep, operand, a.size) || !of_compare.take(ep, compare, a.size) ||
      !of_result.take(ep, result, a.size)) {
    return refuse_long_list(ep, name, operand.count);
  }
  std::array<wire::RmaRange, nic::kIovMax> ranges;
  if (remote_count > ranges.size() || (remote == nullptr && remote_count != 0))
    return refuse_long_list(ep, name, remote_count);
  for (size_t i = 0; i < remote_count; ++i) {
    ranges[i].addr = remote[i].addr;
    ranges[i].key = remote[i].key;
    if (__builtin_mul_overflow(remote[i].len, a.size, &ranges[i].length)) ranges[i].length = ~uint64_t{0};
  }
  a.operand = of_operand.span();
  a.compare = of_compare.span();
  a.result = of_result.span();
  a.remote = {ranges.data(), remote_count};
  a.whole = whole;
  return start(ep, name, a, later);
}

ssize_t vector_atomic(Ep& ep, const char* name, AtomicFamily family, const ValueLists& operand,
                      const ValueLists& compare, const ValueLists& result, uint64_t dest, uint64_t addr, uint64_t key,
                      int datatype, int op, void* context) noexcept {
  call::Atomic a;
  a.family = family;
  a.flags = ep.flags_of(call::flag_call(family));
  a.dest = dest;
  a.context = context_of(context);
  set_pair(&a, datatype, op);
  const ofi::RmaIov remote{addr, 0, key};
  return list_atomic(ep, name, a, operand, compare, result, &remote, 1, true);
}

void* atomic_context(ofi::FidEp* fid) noexcept {
  return of(fid).inject_context ? fid->fid.context : nullptr;
}

ssize_t atomic_write(ofi::FidEp* fid, const void* buf, size_t count, void* desc, ofi::Addr dest, uint64_t addr,
                     uint64_t key, int type, int op, void* context) {
  return one_atomic(of(fid), "fi_atomic", AtomicFamily::base, {buf, desc}, {}, {}, count, dest, addr, key, type, op,
                    context);
}
ssize_t atomic_writev(ofi::FidEp* fid, const ofi::Ioc* iov, void** desc, size_t count, ofi::Addr dest, uint64_t addr,
                      uint64_t key, int type, int op, void* context) {
  return vector_atomic(of(fid), "fi_atomicv", AtomicFamily::base, {iov, desc, count}, {}, {}, dest, addr, key, type, op,
                       context);
}
ssize_t atomic_writemsg(ofi::FidEp* fid, const ofi::MsgAtomic* m, uint64_t flags) {
  if (is_triggered(of(fid), flags)) [[unlikely]]
    return triggered("fi_atomicmsg", ofi::kOpAtomic, ofi::OpAtomic{fid, *m, flags});
  return atomic_message(of(fid), "fi_atomicmsg", AtomicFamily::base, *m, {}, {}, flags);
}
ssize_t atomic_inject(ofi::FidEp* fid, const void* buf, size_t count, ofi::Addr dest, uint64_t addr, uint64_t key,
                      int type, int op) {
  return one_atomic(of(fid), "fi_inject_atomic", AtomicFamily::base, {buf, nullptr}, {}, {}, count, dest, addr, key,
                    type, op, atomic_context(fid), true);
}
ssize_t atomic_readwrite(ofi::FidEp* fid, const void* buf, size_t count, void* desc, void* result, void* result_desc,
                         ofi::Addr dest, uint64_t addr, uint64_t key, int type, int op, void* context) {
  return one_atomic(of(fid), "fi_fetch_atomic", AtomicFamily::fetch, {buf, desc}, {}, {result, result_desc}, count,
                    dest, addr, key, type, op, context);
}
ssize_t atomic_readwritev(ofi::FidEp* fid, const ofi::Ioc* iov, void** desc, size_t count, ofi::Ioc* result,
                          void** result_desc, size_t result_count, ofi::Addr dest, uint64_t addr, uint64_t key,
                          int type, int op, void* context) {
  return vector_atomic(of(fid), "fi_fetch_atomicv", AtomicFamily::fetch, {iov, desc, count}, {},
                       {result, result_desc, result_count}, dest, addr, key, type, op, context);
}
ssize_t atomic_readwritemsg(ofi::FidEp* fid, const ofi::MsgAtomic* m, ofi::Ioc* result, void** result_desc,
                            size_t result_count, uint64_t flags) {
  const ofi::MsgValues fetch{result, result_desc, result_count};
  if (is_triggered(of(fid), flags)) [[unlikely]]
    return triggered("fi_fetch_atomicmsg", ofi::kOpFetchAtomic, ofi::OpFetchAtomic{fid, *m, fetch, flags});
  return atomic_message(of(fid), "fi_fetch_atomicmsg", AtomicFamily::fetch, *m, {}, fetch, flags);
}
ssize_t atomic_compwrite(ofi::FidEp* fid, const void* buf, size_t count, void* desc, const void* compare,
                         void* compare_desc, void* result, void* result_desc, ofi::Addr dest, uint64_t addr,
                         uint64_t key, int type, int op, void* context) {
  return one_atomic(of(fid), "fi_compare_atomic", AtomicFamily::compare, {buf, desc}, {compare, compare_desc},
                    {result, result_desc}, count, dest, addr, key, type, op, context);
}
ssize_t atomic_compwritev(ofi::FidEp* fid, const ofi::Ioc* iov, void** desc, size_t count, const ofi::Ioc* compare,
                          void** compare_desc, size_t compare_count, ofi::Ioc* result, void** result_desc,
                          size_t result_count, ofi::Addr dest, uint64_t addr, uint64_t key, int type, int op,
                          void* context) {
  return vector_atomic(of(fid), "fi_compare_atomicv", AtomicFamily::compare, {iov, desc, count},
                       {compare, compare_desc, compare_count}, {result, result_desc, result_count}, dest, addr, key,
                       type, op, context);
}
ssize_t atomic_compwritemsg(ofi::FidEp* fid, const ofi::MsgAtomic* m, const ofi::Ioc* compare, void** compare_desc,
                            size_t compare_count, ofi::Ioc* result, void** result_desc, size_t result_count,
                            uint64_t flags) {
  const ofi::MsgValues values{compare, compare_desc, compare_count}, fetch{result, result_desc, result_count};
  if (is_triggered(of(fid), flags)) [[unlikely]]
    return triggered("fi_compare_atomicmsg", ofi::kOpCompareAtomic,
                     ofi::OpCompareAtomic{fid, *m, fetch, values, flags});
  return atomic_message(of(fid), "fi_compare_atomicmsg", AtomicFamily::compare, *m, values, fetch, flags);
}

// The most elements of a call; -EOPNOTSUPP: the operation does not exist.
int valid(ofi::FidEp* fid, AtomicFamily family, int type, int op, size_t* count) noexcept {
  const Ep& ep = of(fid);
  if (ep.forked()) return refuse_forked(ep, "fi_atomicvalid");
  const call::AtomicLimit limit =
      call::atomic_limit(ep.ep->config().rules, ep.domain->host->nic().limits(), static_cast<uint32_t>(type),
                         static_cast<uint32_t>(op), static_cast<uint64_t>(family));
  if (limit.count == 0) return -fi_err::kEOPNOTSUPP;
  if (count != nullptr) *count = limit.count;
  return 0;
}
int atomic_writevalid(ofi::FidEp* fid, int type, int op, size_t* count) {
  return valid(fid, AtomicFamily::base, type, op, count);
}
int atomic_readwritevalid(ofi::FidEp* fid, int type, int op, size_t* count) {
  return valid(fid, AtomicFamily::fetch, type, op, count);
}
int atomic_compwritevalid(ofi::FidEp* fid, int type, int op, size_t* count) {
  return valid(fid, AtomicFamily::compare, type, op, count);
}

}  // namespace

ssize_t atomic_message(Ep& ep, const char* name, AtomicFamily family, const ofi::MsgAtomic& m,
                       const ofi::MsgValues& compare, const ofi::MsgValues& result, uint64_t flags,
                       const Later* later) noexcept {
  call::Atomic a;
  a.family = family;
  a.message = true;
  a.flags = flags;
  a.dest = m.addr;
  a.context = context_of(m.context);
  a.imm = m.data;
  set_pair(&a, m.datatype, m.op);
  const auto list = [](const ofi::MsgValues& of) { return ValueLists{of.iov, of.desc, of.iov_count}; };
  return list_atomic(ep, name, a, {m.iov, m.desc, m.iov_count}, list(compare), list(result), m.rma_iov, m.rma_iov_count,
                     false, later);
}

ofi::AtomicOps g_atomic_ops{sizeof(ofi::AtomicOps), atomic_write,         atomic_writev,       atomic_writemsg,
                            atomic_inject,          atomic_readwrite,     atomic_readwritev,   atomic_readwritemsg,
                            atomic_compwrite,       atomic_compwritev,    atomic_compwritemsg, atomic_writevalid,
                            atomic_readwritevalid,  atomic_compwritevalid};

}  // namespace weft::provider
