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
  set_error(fi_err::kEINVAL,
            std::string(method) + ": buf is None (NULL): give memory, or None with len=0 for a transfer of no bytes");
  return false;
}

// The arguments of a call with one buffer, with a list of them, or with a batch; null where absent.
struct Args {
  PyObject *buf = nullptr, *len = nullptr, *desc = nullptr, *peer = nullptr, *addr = nullptr, *key = nullptr,
           *context = nullptr, *data = nullptr;
  static constexpr auto kParams = std::to_array<Param<Args>>({{"buf", &Args::buf},
                                                              {"iov", &Args::buf},
                                                              {"len", &Args::len},
                                                              {"count", &Args::len},
                                                              {"desc", &Args::desc},
                                                              {"dest_addr", &Args::peer},
                                                              {"src_addr", &Args::peer},
                                                              {"addr", &Args::addr},
                                                              {"key", &Args::key},
                                                              {"context", &Args::context},
                                                              {"data", &Args::data}});
};

// HOT.
PyObject* one_buffer(PyObject* self, const char* method, OpKind kind, const Args& a, bool inject) {
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

PyObject* vector_call(PyObject* self, const char* method, OpKind kind, const Args& a) {
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
  static constexpr auto kParams = std::to_array<Param<BatchArgs>>({{"local", &BatchArgs::local},
                                                                   {"descs", &BatchArgs::descs},
                                                                   {"context", &BatchArgs::context},
                                                                   {"flags", &BatchArgs::flags}});
};

PyObject* batch_call(PyObject* self, const char* method, OpKind kind, const BatchArgs& a) {
  EndpointCore* core = self_of(self);
  if (!usable(core, method)) return nullptr;
  Buf local, descs;
  if (!local.acquire(a.local, kind == OpKind::read) || !descs.acquire(a.descs, true)) return nullptr;
  if (descs.iface != mem::kHmemSystem) {
    set_error(fi_err::kEINVAL, std::string(method) + ": descs is device memory; descriptors are the host's");
    return nullptr;
  }
  if (descs.length % sizeof(nic::BatchDesc) != 0 ||
      reinterpret_cast<uintptr_t>(descs.data) % alignof(nic::BatchDesc) != 0) {
    set_error(fi_err::kEINVAL, std::string(method) + ": descs has " + std::to_string(descs.length) +
                                   " bytes, not a whole number of 48-byte descriptors: make it with dtype fi.RMA_DESC");
    return nullptr;
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

WEFT_METHOD(ep_write, Args, "write", "buf! desc dest_addr addr key context|len",
            one_buffer(self, M::kName, OpKind::write, a, false))
WEFT_METHOD(ep_read, Args, "read", "buf! desc src_addr addr key context|len",
            one_buffer(self, M::kName, OpKind::read, a, false))
WEFT_METHOD(ep_writedata, Args, "writedata", "buf! desc data! dest_addr addr key context|len",
            one_buffer(self, M::kName, OpKind::write, a, false))
WEFT_METHOD(ep_inject_write, Args, "inject_write", "buf! dest_addr addr key|len",
            one_buffer(self, M::kName, OpKind::write, a, true))
WEFT_METHOD(ep_inject_writedata, Args, "inject_writedata", "buf! data! dest_addr addr key|len",
            one_buffer(self, M::kName, OpKind::write, a, true))
WEFT_METHOD(ep_readv, Args, "readv", "iov! desc src_addr addr key context|count",
            vector_call(self, M::kName, OpKind::read, a))
WEFT_METHOD(ep_writev, Args, "writev", "iov! desc dest_addr addr key context|count",
            vector_call(self, M::kName, OpKind::write, a))
WEFT_METHOD(ep_readmsg, StructArgs, "readmsg", "msg! flags",
            transfer_msg(self_of(self), M::kName, OpKind::read, a.msg, a.flags))
WEFT_METHOD(ep_writemsg, StructArgs, "writemsg", "msg! flags",
            transfer_msg(self_of(self), M::kName, OpKind::write, a.msg, a.flags))
WEFT_METHOD(ep_read_batch, BatchArgs, "read_batch", "local! descs! context flags",
            batch_call(self, M::kName, OpKind::read, a))
WEFT_METHOD(ep_write_batch, BatchArgs, "write_batch", "local! descs! context flags",
            batch_call(self, M::kName, OpKind::write, a))

}  // namespace weft::bind
