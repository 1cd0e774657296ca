// cpp/provider/msg.cpp: fi_msg(3) and fi_tagged(3).
//
// HOT: the calls of one buffer.
#include "provider/calls.hpp"

namespace weft::provider {

ssize_t refuse_call(Ep& ep, const char* call, const call::Why& refused) noexcept {
  call::Why why = refused;
  call::put_state_first(*ep.ep, &why);
  const int number = ep.ep->config().rules.errno_of(why.refusal);
  if (number == fi_err::kEAGAIN) {
    ep.ep->note_again();
    return -number;  // the caller tries again: not worth a text
  }
  const Front& front = ep.domain->fabric->front;
  if_explained(front, Subject::ep_data,
               [&] { explain(front, Subject::ep_data, call, call::explain(*ep.ep, call, why)); });
  return -number;
}

ssize_t refuse_post(Ep& ep, const char* call, Refusal refusal, uint64_t dest, uint64_t total) noexcept {
  call::Why why;
  why.dest = dest;
  why.asked = total;
  why.set(refusal);
  return refuse_call(ep, call, why);
}

ssize_t refuse_long_list(Ep& ep, const char* call, size_t count) noexcept {
  if (count <= nic::kIovMax)
    return refuse(ep.domain->fabric->front, Subject::ep_data, call, fi_err::kEINVAL,
                  std::string(call) + ": a list is NULL whose count is not 0\n  try: the list, or the count 0");
  call::Why why;
  why.what = "iov_count";
  why.set(Refusal::too_many_buffers, count, ep.ep->config().rules.iov_max);
  return refuse_call(ep, call, why);
}

namespace {

// HOT.
struct One {
  const void* buf;
  size_t length;
  void* desc;
  uint64_t peer, tag = 0, ignore = 0;
  void* context = nullptr;
};

template <bool tagged>
constexpr auto kSends = tagged ? call::FlagCall::tsend : call::FlagCall::send;
template <bool tagged>
constexpr auto kReceives = tagged ? call::FlagCall::trecv : call::FlagCall::recv;

template <bool tagged, bool with_data = false>
ssize_t send_one(Ep& ep, const char* name, const One& m, uint64_t data, bool inject) noexcept {
  const call::Local local = local_of(ep, m.buf, m.length, m.desc);
  call::Send s;
  s.tagged = tagged;
  s.inject = inject;
  s.data = with_data;
  s.local = {&local, 1};
  s.dest = m.peer;
  s.tag = m.tag;
  s.imm = data;
  s.flags = inject ? nic::flag::kInject : ep.flags_of(kSends<tagged>);
  s.context = context_of(m.context);
  return run(ep, name, s);
}

void* own_context(ofi::FidEp* fid) noexcept {
  return of(fid).inject_context ? fid->fid.context : nullptr;
}

template <bool tagged>
ssize_t recv_one(Ep& ep, const char* name, const One& m) noexcept {
  const call::Local local = local_of(ep, m.buf, m.length, m.desc);
  call::Receive r;
  r.tagged = tagged;
  r.has_context = m.context != nullptr;
  r.local = {&local, m.length == 0 && m.buf == nullptr ? size_t{0} : size_t{1}};
  r.source = m.peer;
  r.tag = m.tag;
  r.ignore = m.ignore;
  r.flags = ep.flags_of(kReceives<tagged>);
  r.context = context_of(m.context);
  return run(ep, name, r);
}

template <bool tagged>
ssize_t send_list(Ep& ep, const char* name, const iovec* iov, void** desc, size_t count, uint64_t dest, uint64_t tag,
                  void* context, uint64_t data, uint64_t flags, bool message, const Later* later = nullptr) noexcept {
  Locals locals;
  if (!locals.take(ep, iov, desc, count)) return refuse_long_list(ep, name, count);
  call::Send s;
  s.tagged = tagged;
  s.message = message;
  s.local = locals.span();
  s.dest = dest;
  s.tag = tag;
  s.imm = data;
  s.flags = flags;
  s.context = context_of(context);
  return start(ep, name, s, later);
}

template <bool tagged>
ssize_t recv_list(Ep& ep, const char* name, const iovec* iov, void** desc, size_t count, uint64_t source, uint64_t tag,
                  uint64_t ignore, void* context, uint64_t flags, bool message, const Later* later = nullptr) noexcept {
  Locals locals;
  const bool buffers = (flags & nic::flag::kPeek) == 0;  // a peek has none
  if (buffers && !locals.take(ep, iov, desc, count)) return refuse_long_list(ep, name, count);
  call::Receive r;
  r.tagged = tagged;
  r.message = message;
  r.has_context = context != nullptr;
  r.local = locals.span();
  r.source = source;
  r.tag = tag;
  r.ignore = ignore;
  r.flags = flags;
  r.context = context_of(context);
  return start(ep, name, r, later);
}

// ---- fi_msg(3) ------------------------------------------------------------------------------------------------------

ssize_t msg_recv(ofi::FidEp* fid, void* buf, size_t length, void* desc, ofi::Addr source, void* context) {
  return recv_one<false>(of(fid), "fi_recv", {buf, length, desc, source, 0, 0, context});
}
ssize_t msg_recvv(ofi::FidEp* fid, const iovec* iov, void** desc, size_t count, ofi::Addr source, void* context) {
  return recv_list<false>(of(fid), "fi_recvv", iov, desc, count, source, 0, 0, context,
                          of(fid).flags_of(kReceives<false>), false);
}
ssize_t msg_recvmsg(ofi::FidEp* fid, const ofi::Msg* m, uint64_t flags) {
  if (is_triggered(of(fid), flags)) [[unlikely]]
    return triggered("fi_recvmsg", ofi::kOpRecv, ofi::OpMsg{fid, *m, flags});
  return recv_message(of(fid), "fi_recvmsg", *m, flags);
}
ssize_t msg_send(ofi::FidEp* fid, const void* buf, size_t length, void* desc, ofi::Addr dest, void* context) {
  return send_one<false>(of(fid), "fi_send", {buf, length, desc, dest, 0, 0, context}, 0, false);
}
ssize_t msg_sendv(ofi::FidEp* fid, const iovec* iov, void** desc, size_t count, ofi::Addr dest, void* context) {
  return send_list<false>(of(fid), "fi_sendv", iov, desc, count, dest, 0, context, 0, of(fid).flags_of(kSends<false>),
                          false);
}
ssize_t msg_sendmsg(ofi::FidEp* fid, const ofi::Msg* m, uint64_t flags) {
  if (is_triggered(of(fid), flags)) [[unlikely]]
    return triggered("fi_sendmsg", ofi::kOpSend, ofi::OpMsg{fid, *m, flags});
  return send_message(of(fid), "fi_sendmsg", *m, flags);
}
ssize_t msg_inject(ofi::FidEp* fid, const void* buf, size_t length, ofi::Addr dest) {
  return send_one<false>(of(fid), "fi_inject", {buf, length, nullptr, dest, 0, 0, own_context(fid)}, 0, true);
}
ssize_t msg_senddata(ofi::FidEp* fid, const void* buf, size_t length, void* desc, uint64_t data, ofi::Addr dest,
                     void* context) {
  return send_one<false, true>(of(fid), "fi_senddata", {buf, length, desc, dest, 0, 0, context}, data, false);
}
ssize_t msg_injectdata(ofi::FidEp* fid, const void* buf, size_t length, uint64_t data, ofi::Addr dest) {
  return send_one<false, true>(of(fid), "fi_injectdata", {buf, length, nullptr, dest, 0, 0, own_context(fid)}, data,
                               true);
}

// ---- fi_tagged(3) ---------------------------------------------------------------------------------------------------

ssize_t tagged_recv(ofi::FidEp* fid, void* buf, size_t length, void* desc, ofi::Addr source, uint64_t tag,
                    uint64_t ignore, void* context) {
  return recv_one<true>(of(fid), "fi_trecv", {buf, length, desc, source, tag, ignore, context});
}
ssize_t tagged_recvv(ofi::FidEp* fid, const iovec* iov, void** desc, size_t count, ofi::Addr source, uint64_t tag,
                     uint64_t ignore, void* context) {
  return recv_list<true>(of(fid), "fi_trecvv", iov, desc, count, source, tag, ignore, context,
                         of(fid).flags_of(kReceives<true>), false);
}
ssize_t tagged_recvmsg(ofi::FidEp* fid, const ofi::MsgTagged* m, uint64_t flags) {
  if (is_triggered(of(fid), flags)) [[unlikely]]
    return triggered("fi_trecvmsg", ofi::kOpTrecv, ofi::OpTagged{fid, *m, flags});
  return recv_message(of(fid), "fi_trecvmsg", *m, flags);
}
ssize_t tagged_send(ofi::FidEp* fid, const void* buf, size_t length, void* desc, ofi::Addr dest, uint64_t tag,
                    void* context) {
  return send_one<true>(of(fid), "fi_tsend", {buf, length, desc, dest, tag, 0, context}, 0, false);
}
ssize_t tagged_sendv(ofi::FidEp* fid, const iovec* iov, void** desc, size_t count, ofi::Addr dest, uint64_t tag,
                     void* context) {
  return send_list<true>(of(fid), "fi_tsendv", iov, desc, count, dest, tag, context, 0, of(fid).flags_of(kSends<true>),
                         false);
}
ssize_t tagged_sendmsg(ofi::FidEp* fid, const ofi::MsgTagged* m, uint64_t flags) {
  if (is_triggered(of(fid), flags)) [[unlikely]]
    return triggered("fi_tsendmsg", ofi::kOpTsend, ofi::OpTagged{fid, *m, flags});
  return send_message(of(fid), "fi_tsendmsg", *m, flags);
}
ssize_t tagged_inject(ofi::FidEp* fid, const void* buf, size_t length, ofi::Addr dest, uint64_t tag) {
  return send_one<true>(of(fid), "fi_tinject", {buf, length, nullptr, dest, tag, 0, own_context(fid)}, 0, true);
}
ssize_t tagged_senddata(ofi::FidEp* fid, const void* buf, size_t length, void* desc, uint64_t data, ofi::Addr dest,
                        uint64_t tag, void* context) {
  return send_one<true, true>(of(fid), "fi_tsenddata", {buf, length, desc, dest, tag, 0, context}, data, false);
}
ssize_t tagged_injectdata(ofi::FidEp* fid, const void* buf, size_t length, uint64_t data, ofi::Addr dest,
                          uint64_t tag) {
  return send_one<true, true>(of(fid), "fi_tinjectdata", {buf, length, nullptr, dest, tag, 0, own_context(fid)}, data,
                              true);
}

}  // namespace

ssize_t send_message(Ep& ep, const char* name, const ofi::Msg& m, uint64_t flags, const Later* later) noexcept {
  return send_list<false>(ep, name, m.iov, m.desc, m.iov_count, m.addr, 0, m.context, m.data, flags, true, later);
}
ssize_t recv_message(Ep& ep, const char* name, const ofi::Msg& m, uint64_t flags, const Later* later) noexcept {
  return recv_list<false>(ep, name, m.iov, m.desc, m.iov_count, m.addr, 0, 0, m.context, flags, true, later);
}
ssize_t send_message(Ep& ep, const char* name, const ofi::MsgTagged& m, uint64_t flags, const Later* later) noexcept {
  return send_list<true>(ep, name, m.iov, m.desc, m.iov_count, m.addr, m.tag, m.context, m.data, flags, true, later);
}
ssize_t recv_message(Ep& ep, const char* name, const ofi::MsgTagged& m, uint64_t flags, const Later* later) noexcept {
  return recv_list<true>(ep, name, m.iov, m.desc, m.iov_count, m.addr, m.tag, m.ignore, m.context, flags, true, later);
}

ofi::MsgOps g_msg_ops{sizeof(ofi::MsgOps), msg_recv,    msg_recvv,  msg_recvmsg,  msg_send,
                      msg_sendv,           msg_sendmsg, msg_inject, msg_senddata, msg_injectdata};
ofi::TaggedOps g_tagged_ops{sizeof(ofi::TaggedOps), tagged_recv,    tagged_recvv,  tagged_recvmsg,  tagged_send,
                            tagged_sendv,           tagged_sendmsg, tagged_inject, tagged_senddata, tagged_injectdata};

}  // namespace weft::provider
