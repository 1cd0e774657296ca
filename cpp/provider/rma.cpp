// cpp/provider/rma.cpp: fi_rma(3).
//
// HOT: the calls of one buffer.
#include "provider/calls.hpp"

namespace weft::provider {

namespace {

using nic::OpKind;

struct Place {
  uint64_t dest, addr, key;
};

// HOT.
template <OpKind kind>
ssize_t transfer(Ep& ep, const char* name, const void* buf, size_t length, void* desc, const Place& to, void* context,
                 bool inject = false, bool with_data = false, uint64_t data = 0) noexcept {
  call::Transfer t;
  t.kind = kind;
  t.inject = inject;
  t.local = local_of(ep, buf, length, desc);
  t.dest = to.dest;
  t.addr = to.addr;
  t.key = to.key;
  t.flags = (inject ? ep.ep->config().tx_op_flags : ep.flags_of(call::flag_call(kind))) |
            (with_data ? nic::flag::kRemoteCqData : 0);
  t.context = context_of(context);
  t.imm = data;
  return run(ep, name, t);
}

template <OpKind kind>
ssize_t vector(Ep& ep, const char* name, const iovec* iov, void** desc, size_t count, const Place& to,
               void* context) noexcept {
  Locals locals;
  if (!locals.take(ep, iov, desc, count)) return refuse_long_list(ep, name, count);
  wire::RmaRange range;
  range.addr = to.addr;
  range.key = to.key;
  range.length = 0;
  for (const call::Local& l : locals.span()) range.length += l.length;
  call::ListTransfer t;
  t.kind = kind;
  t.local = locals.span();
  t.remote = {&range, 1};
  t.dest = to.dest;
  t.flags = ep.flags_of(call::flag_call(kind));
  t.context = context_of(context);
  return run(ep, name, t);
}

template <OpKind kind, ofi::OpType deferred>
ssize_t message(ofi::FidEp* fid, const char* name, const ofi::MsgRma* m, uint64_t flags) noexcept {
  if (is_triggered(of(fid), flags)) [[unlikely]]
    return triggered(name, deferred, ofi::OpRma{fid, *m, flags});
  return transfer_message(of(fid), name, kind, *m, flags);
}

void* rma_context(ofi::FidEp* fid) noexcept {
  return of(fid).inject_context ? fid->fid.context : nullptr;
}

ssize_t no_data_writes(Ep& ep, const char* name) noexcept {
  return refuse(
      ep.domain->fabric->front, Subject::ep_data, name, fi_err::kENOSYS,
      std::string_view("this provider delivers no data with a write\n  rule: on cxi, later releases have writes with "
                       "data where the domain makes the keys (FI_MR_PROV_KEY) and has a cq_data_size\n  try: write, "
                       "then another write of a flag; or WEFT_CXI_RELEASE=current and FI_CXI_ENABLE_WRITEDATA=1"));
}

ssize_t rma_read(ofi::FidEp* fid, void* buf, size_t length, void* desc, ofi::Addr source, uint64_t addr, uint64_t key,
                 void* context) {
  return transfer<OpKind::read>(of(fid), "fi_read", buf, length, desc, {source, addr, key}, context);
}
ssize_t rma_readv(ofi::FidEp* fid, const iovec* iov, void** desc, size_t count, ofi::Addr source, uint64_t addr,
                  uint64_t key, void* context) {
  return vector<OpKind::read>(of(fid), "fi_readv", iov, desc, count, {source, addr, key}, context);
}
ssize_t rma_readmsg(ofi::FidEp* fid, const ofi::MsgRma* m, uint64_t flags) {
  return message<OpKind::read, ofi::kOpRead>(fid, "fi_readmsg", m, flags);
}
ssize_t rma_write(ofi::FidEp* fid, const void* buf, size_t length, void* desc, ofi::Addr dest, uint64_t addr,
                  uint64_t key, void* context) {
  return transfer<OpKind::write>(of(fid), "fi_write", buf, length, desc, {dest, addr, key}, context);
}
ssize_t rma_writev(ofi::FidEp* fid, const iovec* iov, void** desc, size_t count, ofi::Addr dest, uint64_t addr,
                   uint64_t key, void* context) {
  return vector<OpKind::write>(of(fid), "fi_writev", iov, desc, count, {dest, addr, key}, context);
}
ssize_t rma_writemsg(ofi::FidEp* fid, const ofi::MsgRma* m, uint64_t flags) {
  return message<OpKind::write, ofi::kOpWrite>(fid, "fi_writemsg", m, flags);
}
ssize_t rma_inject(ofi::FidEp* fid, const void* buf, size_t length, ofi::Addr dest, uint64_t addr, uint64_t key) {
  return transfer<OpKind::write>(of(fid), "fi_inject_write", buf, length, nullptr, {dest, addr, key}, rma_context(fid),
                                 true);
}
ssize_t rma_writedata(ofi::FidEp* fid, const void* buf, size_t length, void* desc, uint64_t data, ofi::Addr dest,
                      uint64_t addr, uint64_t key, void* context) {
  if (!of(fid).data_writes) return no_data_writes(of(fid), "fi_writedata");
  return transfer<OpKind::write>(of(fid), "fi_writedata", buf, length, desc, {dest, addr, key}, context, false, true,
                                 data);
}
ssize_t rma_injectdata(ofi::FidEp* fid, const void* buf, size_t length, uint64_t data, ofi::Addr dest, uint64_t addr,
                       uint64_t key) {
  if (!of(fid).data_writes) return no_data_writes(of(fid), "fi_inject_writedata");
  return transfer<OpKind::write>(of(fid), "fi_inject_writedata", buf, length, nullptr, {dest, addr, key},
                                 rma_context(fid), true, true, data);
}

}  // namespace

ssize_t transfer_message(Ep& ep, const char* name, OpKind kind, const ofi::MsgRma& m, uint64_t flags,
                         const Later* later) noexcept {
  Locals locals;
  if (!locals.take(ep, m.iov, m.desc, m.iov_count)) return refuse_long_list(ep, name, m.iov_count);
  std::array<wire::RmaRange, nic::kIovMax> remote;
  if (m.rma_iov_count > remote.size() || (m.rma_iov == nullptr && m.rma_iov_count != 0))
    return refuse_long_list(ep, name, m.rma_iov_count);
  for (size_t i = 0; i < m.rma_iov_count; ++i) {
    remote[i].addr = m.rma_iov[i].addr;
    remote[i].length = m.rma_iov[i].len;
    remote[i].key = m.rma_iov[i].key;
  }
  call::ListTransfer t;
  t.kind = kind;
  t.message = true;
  t.local = locals.span();
  t.remote = {remote.data(), m.rma_iov_count};
  t.dest = m.addr;
  t.flags = flags;
  t.context = context_of(m.context);
  t.imm = m.data;
  return start(ep, name, t, later);
}

ofi::RmaOps g_rma_ops{sizeof(ofi::RmaOps), rma_read,     rma_readv,  rma_readmsg,   rma_write,
                      rma_writev,          rma_writemsg, rma_inject, rma_writedata, rma_injectdata};

}  // namespace weft::provider
