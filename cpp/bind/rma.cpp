// cpp/bind/rma.cpp: the data-path methods of fi_rma(3).
//
// HOT: write, read, inject_write. Arguments are parsed in place, the buffer is looked at without an export
// where its type allows, the GIL is kept for short copies, and nothing is allocated. Benchmark: bench/bench_rma.py.
#include <algorithm>
#include <array>

#include "bind/arglist.hpp"

namespace weft::bind {

namespace {

// One RMA operation; bufs are what must be kept if it takes longer than the call.
bool post_rma(EndpointCore* core, const char* method, nic::RmaArgs& args, PyObject* context, const Buf* const* bufs,
              size_t buf_count, uint64_t total) {
  PyObject* c = context != nullptr ? context : Py_None;
  if (!args.inject_call) {
    Py_INCREF(c);
    args.context = reinterpret_cast<uint64_t>(c);
  }
  nic::PostResult r;
  if (total >= kReleaseGilBytes || args.device != 0) {
    std::vector<KeptMemory> kept;
    for (size_t i = 0; i < buf_count; ++i) kept.emplace_back(*bufs[i]);
    const ReleasedGil released;
    r = core->ep->post(args);
  } else {
    r = core->ep->post(args);
  }
  if (!args.inject_call && !r.context_used) Py_DECREF(c);
  if (r.refusal != Refusal::none) [[unlikely]]
    return refuse(core, method, r.refusal, args.dest, total);
  if (r.op_id != 0) [[unlikely]]
    return hold_buffers(core, r.op_id, bufs, buf_count);
  return true;
}

constexpr const char* peer_name(OpKind kind) noexcept {
  return kind == OpKind::read ? "src_addr" : "dest_addr";
}
constexpr LocalUse use_of(OpKind kind) noexcept {
  return kind == OpKind::read ? LocalUse::result : LocalUse::source;
}

// ---- one buffer
// -------------------------------------------------------------------------------------------------------

Signature g_read{"read", {"buf", "desc", "src_addr", "addr", "key", "context", "len"}, 6, 1, {}};
Signature g_write{"write", {"buf", "desc", "dest_addr", "addr", "key", "context", "len"}, 6, 1, {}};
Signature g_writedata{"writedata", {"buf", "desc", "data", "dest_addr", "addr", "key", "context", "len"}, 7, 1, {}};
Signature g_inject_write{"inject_write", {"buf", "dest_addr", "addr", "key", "len"}, 4, 1, {}};
Signature g_inject_writedata{"inject_writedata", {"buf", "data", "dest_addr", "addr", "key", "len"}, 5, 1, {}};

PyObject* one_buffer(EndpointCore* core, const char* method, OpKind kind, PyObject* buf, PyObject* length,
                     PyObject* desc, PyObject* dest, PyObject* addr, PyObject* key, PyObject* context, PyObject* data,
                     bool has_data, bool inject) {
  const bool capable = kind == OpKind::read ? core->can_read : core->can_write;
  if (!usable(core, capable, method, kind == OpKind::read ? "RMA and READ" : "RMA and WRITE")) [[unlikely]]
    return nullptr;
  Buf b;
  if (!b.acquire(buf, kind == OpKind::read, length)) [[unlikely]]
    return nullptr;
  wire::RmaRange range{0, b.length, 0};
  nic::RmaArgs args;
  args.kind = kind;
  args.dest = ~uint64_t{0};
  args.flags = core->ep->config().tx_op_flags;
  if (!target_ok(method, addr, key, &range) || !to_u64(dest, &args.dest, method, peer_name(kind))) [[unlikely]]
    return nullptr;
  bool device = false;
  if (b.bare && b.length > core->ep->config().max_msg_size) [[unlikely]] {  // before anybody looks for so much memory
    refuse(core, method, Refusal::too_long, args.dest, b.length);
    return nullptr;
  }
  if (!is_device(*core->box, b, method, kind == OpKind::read, &device)) [[unlikely]]
    return nullptr;
  if ((!inject || device) && !desc_ok(core, desc, b, use_of(kind), device, method)) [[unlikely]]
    return nullptr;
  if (has_data) {
    args.flags |= nic::flag::kRemoteCqData;
    if (!to_u64(data, &args.imm, method, "data")) return nullptr;
  }
  if (inject) {
    args.inject_call = true;
    if (!inject_length_ok(core, method, b.length)) [[unlikely]]
      return nullptr;
  }
  PyObject* c = context != nullptr ? context : Py_None;
  if (!inject) Py_INCREF(c);
  const auto post = [&] {
    if (device) [[unlikely]] {
      const iovec piece{b.data, b.length};
      args.local = {&piece, 1};
      args.remote = {&range, 1};
      args.context = inject ? 0 : reinterpret_cast<uint64_t>(c);
      args.device = 1;
      return core->ep->post(args);
    }
    return core->ep->post_one(kind, b.data, b.length, args.dest, range.addr, range.key, args.flags,
                              inject ? 0 : reinterpret_cast<uint64_t>(c), args.imm, inject);
  };
  nic::PostResult r;
  if (b.length >= kReleaseGilBytes || device) {
    const KeptMemory kept(b);
    const ReleasedGil released;
    r = post();
  } else {
    r = post();
  }
  if (!inject && !r.context_used) Py_DECREF(c);
  if (r.refusal != Refusal::none) [[unlikely]] {
    refuse(core, method, r.refusal, args.dest, b.length);
    return nullptr;
  }
  if (r.op_id != 0 && !inject) [[unlikely]] {  // what is injected was copied
    const Buf* bufs[] = {&b};
    hold_buffers(core, r.op_id, bufs, 1);
  }
  Py_RETURN_NONE;
}

}  // namespace

PyObject* ep_write(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse_slow(g_write, args, nargs, kwnames, a)) return nullptr;
  return one_buffer(self_of(self), "write", OpKind::write, a[0], a[6], a[1], a[2], a[3], a[4], a[5], nullptr, false,
                    false);
}
PyObject* ep_read(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse_slow(g_read, args, nargs, kwnames, a)) return nullptr;
  return one_buffer(self_of(self), "read", OpKind::read, a[0], a[6], a[1], a[2], a[3], a[4], a[5], nullptr, false,
                    false);
}
PyObject* ep_writedata(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[8];
  if (!parse_slow(g_writedata, args, nargs, kwnames, a)) return nullptr;
  return one_buffer(self_of(self), "writedata", OpKind::write, a[0], a[7], a[1], a[3], a[4], a[5], a[6], a[2], true,
                    false);
}
PyObject* ep_inject_write(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[5];
  if (!parse_slow(g_inject_write, args, nargs, kwnames, a)) return nullptr;
  return one_buffer(self_of(self), "inject_write", OpKind::write, a[0], a[4], nullptr, a[1], a[2], a[3], nullptr,
                    nullptr, false, true);
}
PyObject* ep_inject_writedata(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[6];
  if (!parse_slow(g_inject_writedata, args, nargs, kwnames, a)) return nullptr;
  return one_buffer(self_of(self), "inject_writedata", OpKind::write, a[0], a[5], nullptr, a[2], a[3], a[4], nullptr,
                    a[1], true, true);
}

namespace {

Signature g_readv{"readv", {"iov", "desc", "src_addr", "addr", "key", "context", "count"}, 6, 1, {}};
Signature g_writev{"writev", {"iov", "desc", "dest_addr", "addr", "key", "context", "count"}, 6, 1, {}};

PyObject* vector_call(EndpointCore* core, const char* method, OpKind kind, PyObject** a) {
  const bool capable = kind == OpKind::read ? core->can_read : core->can_write;
  if (!usable(core, capable, method, kind == OpKind::read ? "RMA and READ" : "RMA and WRITE")) return nullptr;
  BufList list;
  if (!list.acquire(*core, a[0], kind == OpKind::read, a[6], method)) return nullptr;
  wire::RmaRange range{0, list.total, 0};
  nic::RmaArgs args;
  args.kind = kind;
  args.dest = ~uint64_t{0};
  args.flags = core->ep->config().tx_op_flags;
  if (!target_ok(method, a[3], a[4], &range) || !to_u64(a[2], &args.dest, method, peer_name(kind))) return nullptr;
  if (!list.descs_ok(core, a[1], use_of(kind), method)) return nullptr;
  args.device = list.device;
  args.local = list.span();
  args.remote = {&range, 1};
  if (!post_rma(core, method, args, a[5], list.pointers.data(), list.count, list.total)) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace

PyObject* ep_readv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse_slow(g_readv, args, nargs, kwnames, a)) return nullptr;
  return vector_call(self_of(self), "readv", OpKind::read, a);
}
PyObject* ep_writev(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse_slow(g_writev, args, nargs, kwnames, a)) return nullptr;
  return vector_call(self_of(self), "writev", OpKind::write, a);
}

namespace {

Signature g_readmsg{"readmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_writemsg{"writemsg", {"msg", "flags"}, 2, 1, {}};

PyObject* msg_call(EndpointCore* core, const char* method, OpKind kind, PyObject* msg, PyObject* flags_arg) {
  const bool capable = kind == OpKind::read ? core->can_read : core->can_write;
  if (!usable(core, capable, method, kind == OpKind::read ? "RMA and READ" : "RMA and WRITE")) return nullptr;
  uint64_t flags = 0;
  if (!to_u64(flags_arg, &flags, method, "flags")) return nullptr;
  const uint64_t allowed =
      kind == OpKind::read ? kMsgFlags & ~(nic::flag::kRemoteCqData | nic::flag::kInject | nic::flag::kCommitComplete)
                           : kMsgFlags;
  if (!flags_ok(flags, allowed, method)) return nullptr;
  const Attr iov(msg, "msg_iov"), iov_count(msg, "iov_count"), rma(msg, "rma_iov"), rma_count(msg, "rma_iov_count"),
      addr(msg, "addr"), desc(msg, "desc"), context(msg, "context"), data(msg, "data");
  for (const Attr* a : {&iov, &iov_count, &rma, &rma_count, &addr, &desc, &context, &data}) {
    if (a->value == nullptr) return nullptr;
  }
  BufList list;
  std::array<wire::RmaRange, nic::kIovMax> remote;
  size_t remote_count = 0;
  nic::RmaArgs args;
  if (!list.acquire(*core, iov.value, kind == OpKind::read, iov_count.value, method) ||
      !remote_list(*core, rma.value, rma_count.value, method, 0, remote, &remote_count) ||
      !to_u64(addr.value, &args.dest, method, "addr") || !to_u64(data.value, &args.imm, method, "data") ||
      !list.descs_ok(core, desc.value, use_of(kind), method)) {
    return nullptr;
  }
  if ((flags & nic::flag::kInject) != 0 && !inject_length_ok(core, method, list.total)) return nullptr;
  args.kind = kind;
  args.flags = flags;
  args.device = list.device;
  args.local = list.span();
  args.remote = {remote.data(), remote_count};
  if (!post_rma(core, method, args, context.value, list.pointers.data(), list.count, list.total)) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace

PyObject* ep_readmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[2];
  if (!parse_slow(g_readmsg, args, nargs, kwnames, a)) return nullptr;
  return msg_call(self_of(self), "readmsg", OpKind::read, a[0], a[1]);
}
PyObject* ep_writemsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[2];
  if (!parse_slow(g_writemsg, args, nargs, kwnames, a)) return nullptr;
  return msg_call(self_of(self), "writemsg", OpKind::write, a[0], a[1]);
}

namespace {

// ---- vectored calls
// --------------------------------------------------------------------------------------------------

Signature g_read_batch{"read_batch", {"local", "descs", "context", "flags"}, 4, 2, {}};
Signature g_write_batch{"write_batch", {"local", "descs", "context", "flags"}, 4, 2, {}};

PyObject* batch_call(EndpointCore* core, const char* method, OpKind kind, PyObject** a) {
  const bool capable = kind == OpKind::read ? core->can_read : core->can_write;
  if (!usable(core, capable, method, kind == OpKind::read ? "RMA and READ" : "RMA and WRITE")) return nullptr;
  Buf local, descs;
  if (!local.acquire(a[0], kind == OpKind::read) || !descs.acquire(a[1], true)) return nullptr;
  bool device = false;
  if (!is_device(*core->box, local, method, kind == OpKind::read, &device) ||
      !desc_ok(core, nullptr, local, use_of(kind), device, method))
    return nullptr;
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
  uint64_t flags = core->ep->config().tx_op_flags;
  if (a[3] != nullptr && a[3] != Py_None) {
    flags = 0;
    if (!to_u64(a[3], &flags, method, "flags")) return nullptr;
  }
  constexpr uint64_t kBatchFlags = nic::flag::kCompletion | nic::flag::kMore | nic::flag::kTransmitComplete |
                                   nic::flag::kDeliveryComplete | nic::flag::kInjectComplete |
                                   nic::flag::kCommitComplete;
  if (!flags_ok(flags, kBatchFlags, method)) return nullptr;
  PyObject* c = a[2] != nullptr ? a[2] : Py_None;
  Py_INCREF(c);
  const std::span<nic::BatchDesc> list(reinterpret_cast<nic::BatchDesc*>(descs.data),
                                       descs.length / sizeof(nic::BatchDesc));
  nic::PostResult r;
  if (list.size() > 64 || device) {
    const KeptMemory kept(local), kept_descs(descs);
    const ReleasedGil released;
    r = core->ep->post_batch(kind, local.data, local.length, list, flags, reinterpret_cast<uint64_t>(c), device);
  } else {
    r = core->ep->post_batch(kind, local.data, local.length, list, flags, reinterpret_cast<uint64_t>(c));
  }
  if (!r.context_used) Py_DECREF(c);
  if (r.refusal != Refusal::none) {
    refuse(core, method, r.refusal, 0, local.length);
    return nullptr;
  }
  if (r.op_id != 0) {
    const Buf* bufs[] = {&local, &descs};
    hold_buffers(core, r.op_id, bufs, 2);
  }
  Py_RETURN_NONE;
}

}  // namespace

PyObject* ep_read_batch(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[4];
  if (!parse_slow(g_read_batch, args, nargs, kwnames, a)) return nullptr;
  return batch_call(self_of(self), "read_batch", OpKind::read, a);
}
PyObject* ep_write_batch(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[4];
  if (!parse_slow(g_write_batch, args, nargs, kwnames, a)) return nullptr;
  return batch_call(self_of(self), "write_batch", OpKind::write, a);
}

}  // namespace weft::bind
