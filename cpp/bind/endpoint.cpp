// cpp/bind/endpoint.cpp: the data-path methods of an endpoint: fi_rma(3) and fi_atomic(3).
//
// HOT: write, read, inject_write, atomics. Arguments are parsed in place, the buffer is looked at without an export
// where its type allows, the GIL is kept for short copies, and nothing is allocated. Benchmark: bench/bench_rma.py.
#include <algorithm>
#include <array>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind/common.hpp"
#include "bind/desc.hpp"

namespace weft::bind {

namespace {

using nic::OpKind;
using nic::Refusal;

// From here on the GIL is given away for the copy. Away and back costs a tenth of a 64 KiB copy in cache when nobody
// wants it, and several such copies when somebody does; other threads wait 3 to 13 us for it at most.
constexpr uint64_t kReleaseGilBytes = 131072;

constexpr uint64_t kMsgFlags = nic::flag::kRemoteCqData | nic::flag::kCompletion | nic::flag::kMore |
                               nic::flag::kInject | nic::flag::kInjectComplete | nic::flag::kTransmitComplete |
                               nic::flag::kDeliveryComplete | nic::flag::kFence | nic::flag::kCommitComplete;

EndpointCore* self_of(PyObject* self) {
  return nb::inst_ptr<EndpointCore>(self);
}

bool usable(EndpointCore* core, bool capable, const char* method, const char* needs) {
  if (core->box->forked()) [[unlikely]] {
    set_error(fi_err::kEOPBADSTATE, std::string(method) +
                                        ": this endpoint belongs to the parent process: a forked child "
                                        "opens its own fabric");
    return false;
  }
  if (!capable) [[unlikely]] {
    set_error(fi_err::kEOPNOTSUPP, std::string(method) + ": the endpoint was opened without " + needs +
                                       ": ask for it in the capabilities of the hints");
    return false;
  }
  core->box->drain();
  return true;
}

bool refuse(EndpointCore* core, const char* method, Refusal refusal, uint64_t dest, uint64_t total) {
  const auto& config = core->ep->config();
  const std::string m = std::string(method) + ": ";
  switch (refusal) {
    case Refusal::none:
      return true;
    case Refusal::cq_full:
    case Refusal::tx_full: {
      const nic::CompletionQueue* cq = core->ep->tx_cq();
      const bool of_cq = refusal == Refusal::cq_full;
      const std::string full = of_cq ? "completion queue full, " + std::to_string(cq->unread()) + " unread and " +
                                           std::to_string(cq->reserved()) + " under way of " +
                                           std::to_string(cq->capacity()) + " entries: "
                                     : "transmit queue full, " + std::to_string(core->ep->outstanding()) + " of " +
                                           std::to_string(config.tx_size) + " operations under way: ";
      const char* usual = of_cq ? "read the queue and retry, or open it larger" : "read the completion queue and retry";
      set_error(fi_err::kEAGAIN,
                m + full +
                    (core->ep->held_back(dest) ? "the completion queue of the peer at fi_addr " + std::to_string(dest) +
                                                     " is full and takes no data; retry when the peer has read it"
                                               : std::string(usual)));
      break;
    }
    case Refusal::not_enabled:
      set_error(fi_err::kEOPBADSTATE, m + "the endpoint is not enabled: call enable()");
      break;
    case Refusal::closed:
      set_error(fi_err::kEOPBADSTATE, m + "the endpoint is closed");
      break;
    case Refusal::no_cq:
      set_error(fi_err::kENOCQ, m + "no completion queue is bound");
      break;
    case Refusal::bad_address:
      set_error(fi_err::kEINVAL,
                m + (dest == ~uint64_t{0} ? std::string("no peer was given: pass what av.insert() returned")
                                          : "fi_addr " + std::to_string(dest) + " is not in the address vector"));
      break;
    case Refusal::not_connected:
      set_error(fi_err::kENOTCONN,
                m + "the endpoint is not connected: connect() or accept(), and read the CONNECTED event");
      break;
    case Refusal::length_mismatch:
      set_error(fi_err::kEINVAL, m + "the local and the remote lists describe different numbers of bytes");
      break;
    case Refusal::too_long:
      set_error(fi_err::kEMSGSIZE,
                m + std::to_string(total) + " bytes are more than one call may carry (" +
                    (total > config.max_msg_size ? "max_msg_size " + std::to_string(config.max_msg_size)
                                                 : std::string("atomics: 4096")) +
                    "): split it");
      break;
    case Refusal::too_many_pieces:
      set_error(fi_err::kEINVAL, m + "more than " + std::to_string(nic::kIovMax) + " pieces in a list: split the call");
      break;
    case Refusal::no_capability:
      set_error(fi_err::kEOPNOTSUPP, m + "not supported by this endpoint");
      break;
    case Refusal::not_now:
      set_error(fi_err::kEAGAIN, m + "it would take longer than the call");
      break;
    case Refusal::forked:
      set_error(fi_err::kEOPBADSTATE, m + "the endpoint belongs to the parent process");
      break;
  }
  return false;
}

// Keeps the buffers of an operation that is under way.
bool hold_buffers(EndpointCore* core, uint64_t op_id, const Buf* const* bufs, size_t count) {
  std::array<uint64_t, 3 * nic::kIovMax> cookies;  // an atomic's operands, compare values and results
  size_t held = 0;
  for (size_t i = 0; i < count && held < cookies.size(); ++i) {
    PyObject* o = bufs[i]->hold();
    if (o == nullptr)
      PyErr_Clear();
    else
      cookies[held++] = reinterpret_cast<uint64_t>(o);
  }
  if (!core->box->domain->attach(op_id, std::span(cookies).first(held))) {
    for (size_t i = 0; i < held; ++i) Py_DECREF(reinterpret_cast<PyObject*>(cookies[i]));
  }
  return true;
}

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

bool inject_length_ok(EndpointCore* core, const char* method, uint64_t length) {
  const uint64_t max = core->ep->config().inject_size;
  if (length <= max) [[likely]]
    return true;
  set_error(fi_err::kEMSGSIZE, std::string(method) + ": " + std::to_string(length) +
                                   " bytes are more than inject_size, " + std::to_string(max) + ": use write()");
  return false;
}

// Where at the peer: both are asked for, because a transfer that forgot one would go to the region with key 0.
bool target_ok(const char* method, PyObject* addr, PyObject* key, wire::RmaRange* range) {
  if (addr == nullptr || key == nullptr) [[unlikely]] {
    PyErr_Format(PyExc_TypeError,
                 "%s() needs the argument '%s': the place in the peer's region (an offset from its start; a virtual "
                 "address under MR_VIRT_ADDR) and the region's key",
                 method, addr == nullptr ? "addr" : "key");
    return false;
  }
  return to_u64(addr, &range->addr, method, "addr") && to_u64(key, &range->key, method, "key");
}

constexpr const char* peer_name(OpKind kind) noexcept {
  return kind == OpKind::read ? "src_addr" : "dest_addr";
}
constexpr LocalUse use_of(OpKind kind) noexcept {
  return kind == OpKind::read ? LocalUse::result : LocalUse::source;
}

// ---- fi_rma(3): one buffer
// -------------------------------------------------------------------------------------------

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

// ---- lists of buffers
// --------------------------------------------------------------------------------------------------

struct BufList {
  std::array<Buf, nic::kIovMax> bufs;
  std::array<const Buf*, nic::kIovMax> pointers{};
  std::array<iovec, nic::kIovMax> iov{};
  size_t count = 0;
  uint64_t total = 0;
  uint8_t device = 0;  // bit i: bufs[i] is a device's memory

  // `list`: a sequence of buffers (or of objects with .addr and .count, then in elements of `element` bytes).
  bool acquire(EndpointCore& core, PyObject* list, bool writable, PyObject* count_arg, const char* method,
               size_t element = 0) {
    if (list == nullptr || list == Py_None) return true;
    PyObject* fast = PySequence_Fast(list, "");
    if (fast == nullptr) {
      if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Format(PyExc_TypeError, "%s: a list of buffers is needed, not %R", method, list);
      }
      return false;
    }
    size_t n = static_cast<size_t>(PySequence_Fast_GET_SIZE(fast));
    if (count_arg != nullptr && count_arg != Py_None) {
      uint64_t wanted = 0;
      if (!to_u64(count_arg, &wanted, method, "count")) {
        Py_DECREF(fast);
        return false;
      }
      if (wanted > n) {
        Py_DECREF(fast);
        set_error(fi_err::kEINVAL, std::string(method) + ": count is " + std::to_string(wanted) + " but the list has " +
                                       std::to_string(n) + " buffers");
        return false;
      }
      n = wanted;
    }
    bool ok = n <= core.iov_limit;
    if (!ok) {
      set_error(fi_err::kEINVAL, std::string(method) + ": " + std::to_string(n) + " buffers are more than iov_limit, " +
                                     std::to_string(core.iov_limit) + ": split the call");
    }
    for (size_t i = 0; ok && i < n; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(fast, static_cast<Py_ssize_t>(i));
      PyObject* addr = nullptr;
      PyObject* elements = nullptr;
      if (element != 0 && PyObject_HasAttrString(item, "addr") && PyObject_HasAttrString(item, "count") &&
          !PyTuple_Check(item)) {
        addr = PyObject_GetAttrString(item, "addr");
        elements = PyObject_GetAttrString(item, "count");
      }
      bool of_device = false;
      ok = bufs[i].acquire(addr != nullptr ? addr : item, writable) &&
           is_device(*core.box, bufs[i], method, writable, &of_device);
      if (of_device) device = static_cast<uint8_t>(device | 1u << i);
      if (ok && elements != nullptr && elements != Py_None) {
        uint64_t e = 0;
        ok = to_u64(elements, &e, method, "count");
        if (ok && e > bufs[i].length / element) {
          set_error(fi_err::kEINVAL, std::string(method) + ": count " + std::to_string(e) +
                                         " passes the end of a buffer of " + std::to_string(bufs[i].length) + " bytes");
          ok = false;
        }
        if (ok) bufs[i].length = e * element;
      }
      // The item's own attribute object may be temporary: the item in the caller's list keeps the memory.
      Py_XDECREF(elements);
      Py_XDECREF(addr);
      if (!ok) break;
      pointers[i] = &bufs[i];
      iov[i] = {bufs[i].data, bufs[i].length};
      total += bufs[i].length;
      ++count;
    }
    Py_DECREF(fast);
    return ok;
  }
  [[nodiscard]] std::span<const iovec> span() const { return {iov.data(), count}; }
  [[nodiscard]] bool descs_ok(EndpointCore* core, PyObject* descs, LocalUse use, const char* method) const {
    return bind::descs_ok(core, descs, std::span(bufs).first(count), device, use, method);
  }
};

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

// An attribute of a message struct; an owned reference that lives as long as the holder.
struct Attr {
  explicit Attr(PyObject* owner, const char* name) : value(PyObject_GetAttrString(owner, name)) {
    if (value == nullptr && PyErr_ExceptionMatches(PyExc_AttributeError)) {
      PyErr_Format(PyExc_TypeError, "msg must be an fi.MsgRma (fi.MsgAtomic for atomics): %R has no attribute '%s'",
                   owner, name);
    }
  }
  Attr(const Attr&) = delete;
  Attr& operator=(const Attr&) = delete;
  ~Attr() { Py_XDECREF(value); }
  PyObject* value;
};

// The remote list of a message: objects with .addr, .len (or .count, in elements) and .key, or triples.
bool remote_list(const EndpointCore& core, PyObject* list, PyObject* count_arg, const char* method, size_t element,
                 std::array<wire::RmaRange, nic::kIovMax>& out, size_t* count) {
  PyObject* fast = PySequence_Fast(list, "");
  if (fast == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Format(PyExc_TypeError, "%s: rma_iov must be a sequence of fi.RmaIov (fi.RmaIoc for atomics), not %R",
                   method, list);
    }
    return false;
  }
  size_t n = static_cast<size_t>(PySequence_Fast_GET_SIZE(fast));
  bool ok = true;
  if (count_arg != nullptr && count_arg != Py_None) {
    uint64_t wanted = 0;
    ok = to_u64(count_arg, &wanted, method, "rma_iov_count");
    if (ok && wanted > n) {
      set_error(fi_err::kEINVAL, std::string(method) + ": rma_iov_count is " + std::to_string(wanted) +
                                     " but rma_iov has " + std::to_string(n) + " entries");
      ok = false;
    }
    n = wanted;
  }
  if (ok && (n == 0 || n > core.rma_iov_limit)) {
    set_error(fi_err::kEINVAL, std::string(method) + ": rma_iov has " + std::to_string(n) + " entries; 1 to " +
                                   std::to_string(core.rma_iov_limit) + " (rma_iov_limit) are possible");
    ok = false;
  }
  for (size_t i = 0; ok && i < n; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(fast, static_cast<Py_ssize_t>(i));
    uint64_t length = 0;
    if (PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 3) {
      ok = to_u64(PyTuple_GET_ITEM(item, 0), &out[i].addr, method, "addr of a remote piece") &&
           to_u64(PyTuple_GET_ITEM(item, 1), &length, method, "len of a remote piece") &&
           to_u64(PyTuple_GET_ITEM(item, 2), &out[i].key, method, "key of a remote piece");
    } else {
      const Attr addr(item, "addr"), len(item, element != 0 ? "count" : "len"), key(item, "key");
      ok = addr.value != nullptr && len.value != nullptr && key.value != nullptr &&
           to_u64(addr.value, &out[i].addr, method, "addr of a remote piece") &&
           to_u64(len.value, &length, method, "len of a remote piece") &&
           to_u64(key.value, &out[i].key, method, "key of a remote piece");
    }
    if (ok && element != 0 && length > ~uint64_t{0} / element) {
      set_error(fi_err::kEMSGSIZE, std::string(method) + ": count " + std::to_string(length) + " is too large");
      ok = false;
    }
    out[i].length = element != 0 ? length * element : length;
  }
  *count = n;
  Py_DECREF(fast);
  return ok;
}

bool flags_ok(uint64_t flags, uint64_t allowed, const char* method) {
  if ((flags & ~allowed) == 0) return true;
  char text[160];
  std::snprintf(text, sizeof(text), "%s: flags 0x%llx are not for this call", method,
                static_cast<unsigned long long>(flags & ~allowed));
  set_error(fi_err::kEBADFLAGS, text);
  return false;
}

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

// ---- vectored calls
// ------------------------------------------------------------------------------------------------------

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

// ---- fi_atomic(3)
// --------------------------------------------------------------------------------------------------------

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

bool present(const char* method, std::initializer_list<std::pair<PyObject*, const char*>> args) {
  for (const auto& [value, name] : args) {
    if (value == nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", method, name);
      return false;
    }
  }
  return true;
}

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

#define WEFT_METHOD(name, doc) \
  {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(ep_##name)), METH_FASTCALL | METH_KEYWORDS, doc}

PyMethodDef g_methods[] = {
    WEFT_METHOD(
        read,
        "Copies bytes of a peer's region into buf (fi_read).\n\n"
        "buf       writable C-contiguous buffer of n bytes, 0 <= n <= max_msg_size; a slice of a registered region is\n"
        "          quickest. Held until completion; leave it alone until then.\n"
        "desc      mr.desc of a region that covers buf, or None.\n"
        "src_addr  the peer: what av.insert() returned.\n"
        "addr      byte offset from the region's start; its virtual address under MR_VIRT_ADDR.\n"
        "key       the region's remote key.\n"
        "context   any object; comes back as op_context of the completion.\n"
        "len       bytes, if fewer than buf has.\n\n"
        "Raises Again (a queue is full: read the completion queue, retry), MessageTooLong, InvalidArgument, BadState.\n"
        "What the peer refuses (key, bounds, access) is a failed completion. Source: fi_rma(3) fi_read."),
    WEFT_METHOD(readv,
                "As read, into a list of up to iov_limit buffers, in order (fi_readv).\n\n"
                "count  how many of them are used. Source: fi_rma(3) fi_readv."),
    WEFT_METHOD(readmsg,
                "A read in full: msg is an fi.MsgRma, with up to rma_iov_limit remote pieces (fi_readmsg).\n\n"
                "flags  for this read alone, in place of the endpoint's: COMPLETION, MORE, FENCE, completion levels.\n"
                "Raises BadFlags, and as read. Source: fi_rma(3) fi_readmsg."),
    WEFT_METHOD(
        write,
        "Copies buf into a peer's region (fi_write).\n\n"
        "buf        C-contiguous buffer of n bytes, 0 <= n <= max_msg_size; a slice of a registered region is "
        "quickest.\n"
        "           Held until completion.\n"
        "dest_addr  the peer: what av.insert() returned.\n"
        "desc, addr, key, context, len   as for read.\n\n"
        "Raises Again (a queue is full: read the completion queue, retry), MessageTooLong, InvalidArgument, BadState.\n"
        "What the peer refuses (key, bounds, access) is a failed completion. Source: fi_rma(3) fi_write."),
    WEFT_METHOD(writev,
                "As write, from a list of up to iov_limit buffers, in order (fi_writev).\n\n"
                "count  how many of them are used. Source: fi_rma(3) fi_writev."),
    WEFT_METHOD(
        writemsg,
        "A write in full: msg is an fi.MsgRma, with up to rma_iov_limit remote pieces (fi_writemsg).\n\n"
        "flags  for this write alone, in place of the endpoint's: REMOTE_CQ_DATA, COMPLETION, MORE, INJECT, FENCE,\n"
        "       INJECT_COMPLETE, TRANSMIT_COMPLETE, DELIVERY_COMPLETE.\n"
        "Several remote pieces are checked before the first is written. Source: fi_rma(3) fi_writemsg."),
    WEFT_METHOD(inject_write,
                "As write, of at most inject_size bytes; buf may be reused at once, and success is not reported\n"
                "(fi_inject_write). A failure is. Source: fi_rma(3) fi_inject_write."),
    WEFT_METHOD(writedata,
                "As write, and delivers data (64 bits) to the peer's completion queue (fi_writedata).\n\n"
                "Source: fi_rma(3) fi_writedata."),
    WEFT_METHOD(inject_writedata,
                "As inject_write, and delivers data (64 bits) to the peer's completion queue (fi_inject_writedata).\n\n"
                "Source: fi_rma(3) fi_inject_writedata."),
    WEFT_METHOD(
        read_batch,
        "Many reads in one call, with one completion for all of them.\n\n"
        "local  writable buffer that every descriptor's local_offset counts in.\n"
        "descs  C-contiguous array of dtype fi.RMA_DESC: local_offset, length, dest_addr, remote_addr, key. status is\n"
        "       written: 0, or why this one failed; valid at the completion. Both are held until then.\n"
        "The completion's len is the sum of what was moved; it is a failed one if any descriptor failed."),
    WEFT_METHOD(write_batch, "Many writes in one call, with one completion for all of them. Arguments as read_batch."),
    WEFT_METHOD(
        atomic,
        "Updates elements of a peer's region with those of buf, each atomically (fi_atomic).\n\n"
        "buf       C-contiguous operands; count of them, or all.\n"
        "addr      as for write; a multiple of the datatype's alignment.\n"
        "datatype  fi.INT64, fi.DOUBLE ...   op  fi.SUM, fi.MIN ...; atomicvalid() tells which pairs exist.\n\n"
        "Raises NotSupported, Again, MessageTooLong (more elements than atomicvalid() tells). Source: fi_atomic(3)."),
    WEFT_METHOD(atomicv, "As atomic, from a list of buffers (fi_atomicv). Source: fi_atomic(3)."),
    WEFT_METHOD(
        atomicmsg,
        "An atomic in full: msg is an fi.MsgAtomic; flags for this call alone (fi_atomicmsg). Source: fi_atomic(3)."),
    WEFT_METHOD(inject_atomic,
                "As atomic, of at most inject_size bytes; buf may be reused at once, success is not reported\n"
                "(fi_inject_atomic). Source: fi_atomic(3)."),
    WEFT_METHOD(fetch_atomic,
                "As atomic, and result receives the elements as they were before (fi_fetch_atomic).\n\n"
                "buf     operands; not used by ATOMIC_READ, which takes None.\n"
                "result  writable, as long as buf. Held until completion. Source: fi_atomic(3)."),
    WEFT_METHOD(fetch_atomicv, "As fetch_atomic, with lists of buffers (fi_fetch_atomicv). Source: fi_atomic(3)."),
    WEFT_METHOD(fetch_atomicmsg, "A fetching atomic in full (fi_fetch_atomicmsg). Source: fi_atomic(3)."),
    WEFT_METHOD(
        compare_atomic,
        "Compares elements of a peer's region with compare and, where they satisfy op (CSWAP ... MSWAP), puts buf\n"
        "there, each atomically; result receives the elements as they were before (fi_compare_atomic).\n\n"
        "Source: fi_atomic(3)."),
    WEFT_METHOD(compare_atomicv,
                "As compare_atomic, with lists of buffers (fi_compare_atomicv). Source: fi_atomic(3)."),
    WEFT_METHOD(compare_atomicmsg, "A comparing atomic in full (fi_compare_atomicmsg). Source: fi_atomic(3)."),
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot g_slots[] = {{Py_tp_methods, g_methods}, {0, nullptr}};

}  // namespace

void register_endpoint(nb::module_& m) {
  nb::class_<EndpointCore>(m, "EndpointCore", nb::type_slots(g_slots), "The NIC's side of an endpoint: its data path.")
      .def(
          "__init__",
          [](EndpointCore* self, DomainCore& d, uint64_t caps, uint32_t tx_size, uint64_t inject_size,
             uint64_t max_msg_size, uint64_t msg_order, uint64_t tx_op_flags, uint64_t iov_limit,
             uint64_t rma_iov_limit, uint16_t vni, bool foreign_key, bool connected,
             std::pair<uint32_t, uint32_t> pids) {
            if (!d.box || d.box->closed) raise(fi_err::kEOPBADSTATE, "the domain is closed");
            nic::EndpointConfig config;
            config.caps = caps;
            config.tx_size = tx_size;
            config.inject_size = inject_size;
            config.max_msg_size = max_msg_size;
            config.msg_order = msg_order;
            config.tx_op_flags = tx_op_flags;
            config.vni = vni;
            config.foreign_key = foreign_key;
            config.connected = connected;
            config.pids = {pids.first, pids.second};
            new (self) EndpointCore{d.box, d.box->domain->make_endpoint(config)};
            const auto limit = [](uint64_t asked) {  // 0: as many as there may be
              return asked == 0 ? nic::kIovMax : std::min<uint64_t>(asked, nic::kIovMax);
            };
            self->iov_limit = limit(iov_limit);
            self->rma_iov_limit = limit(rma_iov_limit);
            const bool rma = (caps & nic::flag::kRma) != 0;
            self->can_read = rma && (caps & nic::flag::kRead) != 0;
            self->can_write = rma && (caps & nic::flag::kWrite) != 0;
            self->can_atomic = (caps & nic::flag::kAtomic) != 0;
          },
          nb::arg("domain"), nb::kw_only(), nb::arg("caps"), nb::arg("tx_size"), nb::arg("inject_size"),
          nb::arg("max_msg_size"), nb::arg("msg_order"), nb::arg("tx_op_flags"), nb::arg("iov_limit"),
          nb::arg("rma_iov_limit"), nb::arg("vni"), nb::arg("foreign_key") = false, nb::arg("connected") = false,
          nb::arg("pids") = std::pair{nic::PidRange{}.first, nic::PidRange{}.last})
      .def(
          "bind_cq",
          [](EndpointCore& e, CompletionQueueCore& cq, uint64_t flags) {
            translating([&] { e.ep->bind_cq(cq.cq, flags); });
          },
          nb::arg("cq"), nb::arg("flags"))
      .def(
          "bind_cntr",
          [](EndpointCore& e, CounterCore& c, uint64_t flags) {
            translating([&] { e.ep->bind_counter(c.counter, flags); });
          },
          nb::arg("cntr"), nb::arg("flags"))
      .def(
          "bind_av", [](EndpointCore& e, AddressVectorCore& a) { translating([&] { e.ep->bind_av(a.av); }); },
          nb::arg("av"))
      .def(
          "enable_at",
          [](EndpointCore& e, uint32_t nic, std::optional<uint32_t> pid, const std::vector<uint16_t>& vnis) {
            if (e.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
            return translating([&] { return e.ep->enable(nic, pid, vnis); });
          },
          nb::arg("nic"), nb::arg("pid").none(), nb::arg("vnis") = std::vector<uint16_t>{},
          nb::sig("def enable_at(self, nic: int, pid: int | None, vnis: Sequence[int] = ()) -> int"),
          "Claims the address and opens the endpoint; without a pid a free one is chosen. Returns the pid.\n\n"
          "vnis  under FI_AV_AUTH_KEY: all that the endpoint answers to.")
      .def(
          "bind_cm",
          [](EndpointCore& e, CmQueueCore& queue, uint64_t token, bool listens) {
            e.ep->bind_cm(queue.queue, token, listens);
          },
          nb::arg("queue"), nb::arg("token"), nb::arg("listens"),
          "What arrives for the endpoint goes to the queue, with the token.")
      .def(
          "send_cm",
          [](EndpointCore& e, std::tuple<uint32_t, uint32_t, uint16_t> to, uint32_t kind, uint64_t connection,
             nb::bytes data) {
            if (e.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
            const auto [nic, pid, vni] = to;
            const std::span bytes(static_cast<const std::byte*>(data.data()), data.size());
            const nic::PostResult r = translating(
                [&] { return e.ep->send_cm({nic, pid, vni, 0}, static_cast<nic::CmKind>(kind), connection, bytes); });
            if (r.refusal != Refusal::none && !refuse(&e, "connect", r.refusal, 0, 0)) throw nb::python_error();
          },
          nb::arg("to"), nb::arg("kind"), nb::arg("connection"), nb::arg("data"),
          "Sends a message of connecting to the endpoint at an address.")
      .def(
          "connect_to",
          [](EndpointCore& e, std::optional<std::tuple<uint32_t, uint32_t, uint16_t>> peer) {
            std::optional<wire::EpAddress> address;
            if (peer) address = wire::EpAddress{std::get<0>(*peer), std::get<1>(*peer), std::get<2>(*peer), 0};
            e.ep->connect_to(address);
          },
          nb::arg("peer").none(), "From here on the endpoint transfers to this peer, and it alone reaches it.")
      .def(
          "cancel",
          [](EndpointCore& e, nb::handle context) {
            if (e.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
            if (e.ep->closed()) raise(fi_err::kEOPBADSTATE, "the endpoint is closed");
            const size_t n = e.ep->cancel(reinterpret_cast<uint64_t>(context.ptr()));
            e.box->drain();
            if (n == 0) raise(2 /* FI_ENOENT */, "cancel: no operation with this context waits to be started");
          },
          nb::arg("context").none(), nb::sig("def cancel(self, context: object) -> None"),
          "Cancels operations with this context that have not started (fi_cancel); each completes as canceled.\n"
          "Raises FabricError (ENOENT) when there is none: it may just have completed. Source: fi_endpoint(3) "
          "fi_cancel.")
      .def_prop_ro(
          "address",
          [](const EndpointCore& e) {
            const wire::EpAddress& a = e.ep->address();
            return nb::make_tuple(a.nic, a.pid, a.vni);
          },
          nb::sig("def address(self) -> tuple[int, int, int]"), "(nic, pid, vni), once it is enabled.")
      .def(
          "statistics",
          [](const EndpointCore& e) {
            nb::dict d;
            d["tx_pending"] = e.ep->outstanding();
            d["tx_size"] = e.ep->config().tx_size;
            return d;
          },
          nb::sig("def statistics(self) -> dict[str, int]"),
          "tx_pending: operations under way; tx_size: how many there may be.")
      .def("close", [](EndpointCore& e) {
        if (e.box->forked()) return;
        {
          const ReleasedGil released;
          e.ep->close();
        }
        e.box->drain();
      });
}

}  // namespace weft::bind
