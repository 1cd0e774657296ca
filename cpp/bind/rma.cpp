// cpp/bind/rma.cpp: the data-path methods of fi_rma(3).
//
// HOT: write, read, inject_write. They parse arguments in place, read the buffer without an export if its type allows,
// keep the GIL for short copies, and allocate nothing. Benchmark: bench/bench_rma.py.
#include <array>

#include "bind/arglist.hpp"
#include "bind/deferred.hpp"

namespace weft::bind {

namespace {

constexpr const char* peer_name(OpKind kind) noexcept {
  return kind == OpKind::read ? "src_addr" : "dest_addr";
}

// ---- one buffer ----------------------------------------------------------------------------------------------------

Signature g_read{"read", {"buf", "desc", "src_addr", "addr", "key", "context", "len"}, 6, 1, {}};
Signature g_write{"write", {"buf", "desc", "dest_addr", "addr", "key", "context", "len"}, 6, 1, {}};
Signature g_writedata{"writedata", {"buf", "desc", "data", "dest_addr", "addr", "key", "context", "len"}, 7, 1, {}};
Signature g_inject_write{"inject_write", {"buf", "dest_addr", "addr", "key", "len"}, 4, 1, {}};
Signature g_inject_writedata{"inject_writedata", {"buf", "data", "dest_addr", "addr", "key", "len"}, 5, 1, {}};

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

// The arguments of a call with one buffer; null where absent.
struct OneBuffer {
  PyObject* buf;
  PyObject* len;
  PyObject* desc;
  PyObject* peer;
  PyObject* addr;
  PyObject* key;
  PyObject* context;
  PyObject* data;
};

// HOT.
PyObject* one_buffer(EndpointCore* core, const char* method, OpKind kind, const OneBuffer& a, bool inject) {
  if (!usable(core, method)) [[unlikely]]
    return nullptr;
  Buf b;
  if (!take_buffer(method, a.buf, kind == OpKind::read, a.len, &b)) [[unlikely]]
    return nullptr;
  call::Transfer t;
  t.kind = kind;
  t.inject = inject;
  t.local = local_of(b);
  t.flags = core->ep->config().tx_op_flags;
  if (!target_ok(method, a.addr, a.key, &t.addr, &t.key) || !to_u64(a.peer, &t.dest, method, peer_name(kind)) ||
      !convert_desc(core, a.desc, method, &t.local)) [[unlikely]] {
    return nullptr;
  }
  if (a.data != nullptr) {
    t.flags |= nic::flag::kRemoteCqData;
    if (!to_u64(a.data, &t.imm, method, "data")) return nullptr;
  }
  const Buf* bufs[] = {&b};
  return check_and_post(core, method, t, a.context, inject, bufs, t.dest, b.length);
}

}  // namespace

PyObject* ep_write(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse(g_write, args, nargs, kwnames, a)) return nullptr;
  const auto& [buf, desc, dest_addr, addr, key, context, len] = a;
  return one_buffer(self_of(self), "write", OpKind::write,
                    {.buf = buf,
                     .len = len,
                     .desc = desc,
                     .peer = dest_addr,
                     .addr = addr,
                     .key = key,
                     .context = context,
                     .data = nullptr},
                    false);
}
PyObject* ep_read(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse(g_read, args, nargs, kwnames, a)) return nullptr;
  const auto& [buf, desc, src_addr, addr, key, context, len] = a;
  return one_buffer(self_of(self), "read", OpKind::read,
                    {.buf = buf,
                     .len = len,
                     .desc = desc,
                     .peer = src_addr,
                     .addr = addr,
                     .key = key,
                     .context = context,
                     .data = nullptr},
                    false);
}
PyObject* ep_writedata(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[8];
  if (!parse(g_writedata, args, nargs, kwnames, a)) return nullptr;
  const auto& [buf, desc, data, dest_addr, addr, key, context, len] = a;
  if (!present("writedata", {{data, "data"}})) return nullptr;
  return one_buffer(self_of(self), "writedata", OpKind::write,
                    {.buf = buf,
                     .len = len,
                     .desc = desc,
                     .peer = dest_addr,
                     .addr = addr,
                     .key = key,
                     .context = context,
                     .data = data},
                    false);
}
PyObject* ep_inject_write(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[5];
  if (!parse(g_inject_write, args, nargs, kwnames, a)) return nullptr;
  const auto& [buf, dest_addr, addr, key, len] = a;
  const nb::object context = inject_context(self);
  return one_buffer(self_of(self), "inject_write", OpKind::write,
                    {.buf = buf,
                     .len = len,
                     .desc = nullptr,
                     .peer = dest_addr,
                     .addr = addr,
                     .key = key,
                     .context = context.ptr(),
                     .data = nullptr},
                    true);
}
PyObject* ep_inject_writedata(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[6];
  if (!parse(g_inject_writedata, args, nargs, kwnames, a)) return nullptr;
  const auto& [buf, data, dest_addr, addr, key, len] = a;
  if (!present("inject_writedata", {{data, "data"}})) return nullptr;
  const nb::object context = inject_context(self);
  return one_buffer(self_of(self), "inject_writedata", OpKind::write,
                    {.buf = buf,
                     .len = len,
                     .desc = nullptr,
                     .peer = dest_addr,
                     .addr = addr,
                     .key = key,
                     .context = context.ptr(),
                     .data = data},
                    true);
}

// ---- lists of buffers ----------------------------------------------------------------------------------------------

namespace {

Signature g_readv{"readv", {"iov", "desc", "src_addr", "addr", "key", "context", "count"}, 6, 1, {}};
Signature g_writev{"writev", {"iov", "desc", "dest_addr", "addr", "key", "context", "count"}, 6, 1, {}};

PyObject* run(EndpointCore* core, const char* method, call::ListTransfer& t, PyObject* context, const BufList& list) {
  return check_and_post(core, method, t, context, false, {list.pointers.data(), list.count}, t.dest, t.total);
}

PyObject* vector_call(PyObject* self, Signature& signature, OpKind kind, PyObject* const* args, Py_ssize_t nargs,
                      PyObject* kwnames) {
  PyObject* a[7];
  if (!parse(signature, args, nargs, kwnames, a)) return nullptr;
  const auto& [iov, desc, peer, addr, key, context, count] = a;
  EndpointCore* core = self_of(self);
  const char* method = signature.method;
  if (!usable(core, method)) return nullptr;
  BufList list;
  wire::RmaRange range;
  call::ListTransfer t;
  if (!list.acquire(core, iov, kind == OpKind::read, count, method) ||
      !target_ok(method, addr, key, &range.addr, &range.key) || !to_u64(peer, &t.dest, method, peer_name(kind)) ||
      !list.convert_descs(core, desc, method)) {
    return nullptr;
  }
  range.length = list.total();
  t.kind = kind;
  t.flags = core->ep->config().tx_op_flags;
  t.local = list.span();
  t.remote = {&range, 1};
  return run(core, method, t, context, list);
}

}  // namespace

PyObject* ep_readv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return vector_call(self, g_readv, OpKind::read, args, nargs, kwnames);
}
PyObject* ep_writev(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return vector_call(self, g_writev, OpKind::write, args, nargs, kwnames);
}

namespace {

Signature g_readmsg{"readmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_writemsg{"writemsg", {"msg", "flags"}, 2, 1, {}};
Signature g_writedatamsg{"writedata", {"msg", "flags"}, 2, 1, {}};

PyObject* msg_call(PyObject* self, Signature& signature, OpKind kind, PyObject* const* args, Py_ssize_t nargs,
                   PyObject* kwnames, bool implied_data = false) {
  PyObject* a[2];
  if (!parse(signature, args, nargs, kwnames, a)) return nullptr;
  return transfer_msg(self_of(self), signature.method, kind, a[0], a[1], implied_data);
}

}  // namespace

PyObject* transfer_msg(EndpointCore* core, const char* method, OpKind kind, PyObject* msg, PyObject* flags,
                       bool implied_data, Deferral* later) {
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
  t.data = implied_data;
  t.local = list.span();
  t.remote = {remote.data(), remote_count};
  if (later != nullptr) return queue(core, method, t, context.value, {list.pointers.data(), list.count}, *later);
  return run(core, method, t, context.value, list);
}

PyObject* ep_readmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return msg_call(self, g_readmsg, OpKind::read, args, nargs, kwnames);
}
PyObject* ep_writemsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return msg_call(self, g_writemsg, OpKind::write, args, nargs, kwnames);
}
PyObject* ep_writedatamsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return msg_call(self, g_writedatamsg, OpKind::write, args, nargs, kwnames, true);
}

// ---- vectored calls ------------------------------------------------------------------------------------------------

namespace {

Signature g_read_batch{"read_batch", {"local", "descs", "context", "flags"}, 4, 2, {}};
Signature g_write_batch{"write_batch", {"local", "descs", "context", "flags"}, 4, 2, {}};

PyObject* batch_call(PyObject* self, Signature& signature, OpKind kind, PyObject* const* args, Py_ssize_t nargs,
                     PyObject* kwnames) {
  PyObject* a[4];
  if (!parse(signature, args, nargs, kwnames, a)) return nullptr;
  const auto& [local_arg, descs_arg, context, flags] = a;
  EndpointCore* core = self_of(self);
  const char* method = signature.method;
  if (!usable(core, method)) return nullptr;
  Buf local, descs;
  if (!local.acquire(local_arg, kind == OpKind::read) || !descs.acquire(descs_arg, true)) return nullptr;
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
  b.flags = core->ep->config().tx_op_flags;
  if (flags != Py_None && !to_u64(flags, &b.flags, method, "flags")) return nullptr;
  const Buf* bufs[] = {&local, &descs};
  return check_and_post(core, method, b, context, false, bufs, 0, local.length);
}

}  // namespace

PyObject* ep_read_batch(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return batch_call(self, g_read_batch, OpKind::read, args, nargs, kwnames);
}
PyObject* ep_write_batch(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return batch_call(self, g_write_batch, OpKind::write, args, nargs, kwnames);
}

}  // namespace weft::bind
