// cpp/bind/rma.cpp: the data-path methods of fi_rma(3).
//
// HOT: write, read, inject_write. They parse arguments in place, read the buffer without an export if its type allows,
// keep the GIL for short copies, and allocate nothing. Benchmark: bench/bench_rma.py.
#include <array>

#include "bind/arglist.hpp"
#include "bind/deferred.hpp"
#include "bind/params.hpp"

namespace weft::bind {

namespace {

constexpr const char* peer_name(OpKind kind) noexcept {
  return kind == OpKind::read ? "src_addr" : "dest_addr";
}

// ---- one buffer ----------------------------------------------------------------------------------------------------

// Takes the buffer of a call; None is C's NULL, legal for a transfer of no bytes.
bool take_buffer(const char* method, PyObject* obj, bool writable, PyObject* len, Buf* b) {
  if (obj != Py_None) [[likely]]
    return b->acquire(obj, writable, len);
  uint64_t asked = 1;
  if (len != nullptr && len != Py_None && !to_u64(len, &asked, method, "len")) return false;
  b->owner = obj;
  if (asked == 0) return true;
  return set_error(fi_err::kEINVAL, method,
                   ": buf is None (NULL): give memory, or None with len=0 for a transfer of no bytes");
}

// HOT.
PyObject* move_one(PyObject* self, const char* method, OpKind kind, const BufferArgs& a, bool inject = false) {
  EndpointCore* core = self_of(self);
  if (!usable(core, method)) [[unlikely]]
    return nullptr;
  Buf b;
  if (!take_buffer(method, a.buf, kind == OpKind::read, a.len, &b)) [[unlikely]]
    return nullptr;
  call::Transfer t;
  t.kind = kind;
  t.inject = inject;
  t.local = local_of(b);
  t.flags = inject ? core->ep->config().tx_op_flags : core->flags_of(call::flag_call(kind));
  if (!target_ok(method, a.addr, a.key, &t.addr, &t.key) || !to_u64(a.peer, &t.dest, method, peer_name(kind)) ||
      !convert_desc(core, a.desc, method, &t.local)) [[unlikely]] {
    return nullptr;
  }
  if (a.data != nullptr) {
    t.flags |= nic::flag::kRemoteCqData;
    if (!to_u64(a.data, &t.imm, method, "data")) return nullptr;
  }
  const Buf* bufs[] = {&b};
  const nb::object own = inject ? inject_context(self) : nb::object();
  return check_and_post(core, method, t, inject ? own.ptr() : a.context, inject, bufs, t.dest, b.length);
}

// ---- lists of buffers ----------------------------------------------------------------------------------------------

PyObject* run(EndpointCore* core, const char* method, call::ListTransfer& t, PyObject* context, const BufList& list) {
  return check_and_post(core, method, t, context, false, {list.pointers.data(), list.count}, t.dest, t.total);
}

PyObject* move_list(PyObject* self, const char* method, OpKind kind, const BufferArgs& a) {
  EndpointCore* core = self_of(self);
  if (!usable(core, method)) return nullptr;
  BufList list;
  wire::RmaRange range;
  call::ListTransfer t;
  if (!list.acquire(core, a.buf, kind == OpKind::read, a.len, method) ||
      !target_ok(method, a.addr, a.key, &range.addr, &range.key) || !to_u64(a.peer, &t.dest, method, peer_name(kind)) ||
      !list.convert_descs(core, a.desc, method)) {
    return nullptr;
  }
  range.length = list.total();
  t.kind = kind;
  t.flags = core->flags_of(call::flag_call(kind));
  t.local = list.span();
  t.remote = {&range, 1};
  return run(core, method, t, a.context, list);
}

}  // namespace

PyObject* transfer_msg(EndpointCore* core, const char* method, OpKind kind, PyObject* msg, PyObject* flags,
                       Deferral* later) {
  if (!usable(core, method)) return nullptr;
  call::ListTransfer t;
  if (!to_u64(flags, &t.flags, method, "flags")) return nullptr;
  const Attr iov(msg, "msg_iov"), iov_count(msg, "iov_count"), rma(msg, "rma_iov"), rma_count(msg, "rma_iov_count"),
      addr(msg, "addr"), desc(msg, "desc"), context(msg, "context"), data(msg, "data");
  for (const Attr* attr : {&iov, &iov_count, &rma, &rma_count, &addr, &desc, &context, &data}) {
    if (attr->value == nullptr) return nullptr;
  }
  BufList list;
  std::array<wire::RmaRange, nic::kIovMax> remote;
  size_t remote_count = 0;
  if (!list.acquire(core, iov.value, kind == OpKind::read, iov_count.value, method) ||
      !remote_list(core, rma.value, rma_count.value, method, 0, remote, &remote_count) ||
      !to_u64(addr.value, &t.dest, method, "addr") || !to_u64(data.value, &t.imm, method, "data") ||
      !list.convert_descs(core, desc.value, method)) {
    return nullptr;
  }
  t.kind = kind;
  t.message = true;
  t.local = list.span();
  t.remote = {remote.data(), remote_count};
  if (later != nullptr) return queue(core, method, t, context.value, {list.pointers.data(), list.count}, *later);
  return run(core, method, t, context.value, list);
}

// ---- vectored calls ------------------------------------------------------------------------------------------------

namespace {

struct BatchArgs {
  PyObject *local = nullptr, *descs = nullptr, *context = nullptr, *flags = nullptr;
  using P = BatchArgs;
  static constexpr auto kParams =
      params<P>("local", &P::local, "descs", &P::descs, "context", &P::context, "flags", &P::flags);
};

PyObject* batch_call(PyObject* self, const char* method, OpKind kind, const BatchArgs& a) {
  EndpointCore* core = self_of(self);
  if (!usable(core, method)) return nullptr;
  Buf local, descs;
  if (!local.acquire(a.local, kind == OpKind::read) || !descs.acquire(a.descs, true)) return nullptr;
  if (descs.iface != mem::kHmemSystem)
    return set_error(fi_err::kEINVAL, method, ": descs is device memory; descriptors are the host's");
  if (descs.length % sizeof(nic::BatchDesc) != 0 ||
      reinterpret_cast<uintptr_t>(descs.data) % alignof(nic::BatchDesc) != 0) {
    return set_error(fi_err::kEINVAL, method, ": descs has ", descs.length,
                     " bytes, not a whole number of 48-byte descriptors: make it with dtype fi.RMA_DESC");
  }
  call::Batch b;
  b.kind = kind;
  b.local = local_of(local);
  b.descs = {reinterpret_cast<nic::BatchDesc*>(descs.data), descs.length / sizeof(nic::BatchDesc)};
  b.flags = core->flags_of(call::FlagCall::batch);
  if (a.flags != Py_None && !to_u64(a.flags, &b.flags, method, "flags")) return nullptr;
  const Buf* bufs[] = {&local, &descs};
  return check_and_post(core, method, b, a.context, false, bufs, 0, local.length);
}

}  // namespace

// ---- methods -------------------------------------------------------------------------------------------------------

namespace {

template <Form form>
using ArgsFor = ArgsOf<form, BufferArgs>;

PyObject* move_inject(PyObject* self, const char* method, OpKind kind, const BufferArgs& a) {
  return move_one(self, method, kind, a, true);
}
PyObject* move_message(PyObject* self, const char* method, OpKind kind, const StructArgs& a) {
  return transfer_msg(self_of(self), method, kind, a.msg, a.flags);
}

}  // namespace

#define WEFT_TRANSFER(name, entry, form, kind, params, doc) \
  WEFT_METHOD(ep_##name, ArgsFor<Form::form>, #name, params, move_##form(self, M::kName, OpKind::kind, a))
#define WEFT_BATCH(name, kind, params, doc) \
  WEFT_METHOD(ep_##name, BatchArgs, #name, params, batch_call(self, M::kName, OpKind::kind, a))
#include "bind/calls.inl"

}  // namespace weft::bind
