// cpp/bind/ucp.cpp: the data path of weft.ucp: ucp_put_nbx, ucp_get_nbx, ucp_atomic_op_nbx, progress and flush.
//
// HOT: put_nbx, get_nbx, atomic_op_nbx and progress, as the data path of an endpoint (bind/endpoint.cpp). What load and
// store can do is over when the call returns: nothing is allocated, no completion is written, and the request that
// would have stood for it waits for the next call. Benchmark: bench/bench_ucp.py.
//
// Everything here is under the GIL, except long copies.
#include "bind/ucp.hpp"

namespace weft::bind {

namespace {

using nic::OpKind;
using nic::Refusal;

// ucp_datatype_t
constexpr uint64_t kClassMask = 7, kClassContig = 0, kClassIov = 2, kClassShift = 3;
// ucp_atomic_op_t
enum : uint64_t { kAdd, kSwap, kCswap, kAnd, kOr, kXor, kAtomicOps };
// Features of a context.
constexpr uint32_t kFeatureRma = 2, kFeatureAmo32 = 4, kFeatureAmo64 = 8;

constexpr uint64_t kReleaseGilBytes = 131072;  // as in bind/endpoint.cpp

PyObject* g_error = nullptr;  // (status, message) or (None, exception) -> UcsError
PyTypeObject* g_rkey_type = nullptr;
PyObject* g_region_type = nullptr;      // weft.ucp.mem.Region
PyTypeObject* g_params_type = nullptr;  // weft.ucp.MemMapParams

}  // namespace

void refuse(int status, const std::string& message) {
  PyObject* e = PyObject_CallFunction(g_error, "is", status, message.c_str());
  if (e == nullptr) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(e)), e);
  Py_DECREF(e);
}

// The other dialect's error, which the shared helpers raise, becomes this one's.
PyObject* translated() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  PyObject* e = value != nullptr ? PyObject_CallFunction(g_error, "OO", Py_None, value) : nullptr;
  if (e != nullptr && e != value) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(e)), e);
    Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
  } else {
    PyErr_Restore(type, value, trace);
  }
  Py_XDECREF(e);
  return nullptr;
}

bool ucp_u64(const char* method, const char* name, PyObject* o, uint64_t* out) {
  if (to_u64(o, out, method, name)) [[likely]]
    return true;
  translated();
  return false;
}

namespace {

std::string hex(uint64_t n) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(n));
  return text;
}

}  // namespace

UcpEp::UcpEp(nb::object object, UcpWorker& of) : UcpEpRefs{std::move(object)}, ucp::Endpoint(of), worker(&of) {}

namespace {

// ucp_context_h
struct Context : DomainCore {
  explicit Context(DomainCore&& domain) : DomainCore(std::move(domain)) {}
  uint64_t next_key = 1;
  uint64_t access = 0;  // of memory that was mapped without a protection mode
};

// ---- posting -------------------------------------------------------------------------------------------------------

// A ucp_request_param: a field counts where its bit is set.
bool read_param(const char* method, PyObject* param, UcpOptions& o) {
  const auto get = [&](const char* name) { return nb::steal(PyObject_GetAttrString(param, name)); };
  const nb::object mask_object = get("op_attr_mask");
  uint64_t mask = 0;
  if (!mask_object.is_valid()) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s: param is %s; it has to be a ucp.RequestParam", method, Py_TYPE(param)->tp_name);
    return false;
  }
  if (!ucp_u64(method, "op_attr_mask", mask_object.ptr(), &mask)) return false;
  o.held = std::make_unique<std::array<nb::object, 4>>();
  // Flags are bits of the mask; the field `flags` is for receives.
  o.flags = mask & (kNoImmCmpl | kFastCmpl | kForceImmCmpl | kMultiSend);
  const auto object = [&](uint64_t bit, const char* name, size_t at, PyObject** out) {
    if ((mask & bit) == 0) return true;
    (*o.held)[at] = get(name);
    *out = (*o.held)[at].ptr();
    return (*o.held)[at].is_valid();
  };
  if (!object(kAttrCallback, "cb", 0, &o.cb) || !object(kAttrUserData, "user_data", 1, &o.user_data) ||
      !object(kAttrMemh, "memh", 2, &o.memh) || !object(kAttrReply, "reply_buffer", 3, &o.reply)) {
    return false;
  }
  if ((mask & kAttrDatatype) != 0) {
    const nb::object datatype = get("datatype");
    o.has_datatype = true;
    if (!datatype.is_valid() || !ucp_u64(method, "datatype", datatype.ptr(), &o.datatype)) return false;
  }
  return true;
}

}  // namespace

bool read_options(const char* method, PyObject* param, PyObject* count, PyObject* cb, PyObject* user_data,
                  PyObject* memh, PyObject* flags, PyObject* datatype, UcpOptions& o) {
  if (given(param) && !read_param(method, param, o)) return false;
  if (given(count)) {
    o.has_count = true;
    if (!ucp_u64(method, "count", count, &o.count)) return false;
  }
  if (given(cb)) o.cb = cb;
  if (given(user_data)) o.user_data = user_data;
  if (given(memh)) o.memh = memh;
  uint64_t more = 0;
  if (given(flags) && !ucp_u64(method, "flags", flags, &more)) return false;
  o.flags |= more;
  if (given(datatype)) {
    o.has_datatype = true;
    if (!ucp_u64(method, "datatype", datatype, &o.datatype)) return false;
  }
  if ((o.flags & kFastCmpl) != 0 && (o.flags & kMultiSend) != 0) {
    refuse(kInvalidParam,
           std::string(method) + ": FAST_CMPL and MULTI_SEND exclude each other\n  try: one of them, or none");
    return false;
  }
  return true;
}

namespace {

bool usable(UcpEp& ep, const char* method, uint32_t feature, const char* feature_name) {
  if (ep.closed() || ep.closing) [[unlikely]] {
    refuse(kInvalidParam, std::string(method) +
                              (ep.closed() ? ": the endpoint is closed" : ": the endpoint is closing") +
                              "\n  try: another to the same address, worker.ep_create(address)");
    return false;
  }
  if (!worker_usable(*ep.worker, method)) [[unlikely]]
    return false;
  if (ep.failed() != kOk) [[unlikely]] {
    refuse(ep.failed(), std::string(method) + ": the endpoint has failed: " + ep.why() +
                            "\n  try: close it, and make another to the peer's new address");
    return false;
  }
  if ((ep.worker->features & feature) == 0) [[unlikely]] {
    refuse(kInvalidParam, std::string(method) + ": the context was made without the feature " + feature_name +
                              "\n  try: Context(features=ucp.FEATURE_RMA | ucp.FEATURE_AMO32 | ucp.FEATURE_AMO64)");
    return false;
  }
  return true;
}

// Where an operation with this key goes; false with an error set. HOT.
bool address_of(UcpEp& ep, const char* method, PyObject* rkey, UcpRkey** out, uint64_t* dest) {
  if (rkey == nullptr || !PyObject_TypeCheck(rkey, g_rkey_type)) [[unlikely]] {
    refuse(kInvalidParam, std::string(method) + ": rkey is " + (rkey == nullptr ? "missing" : Py_TYPE(rkey)->tp_name) +
                              "\n  try: the remote key that ep.rkey_unpack(buffer) returns");
    return false;
  }
  UcpRkey& key = *nb::inst_ptr<UcpRkey>(rkey);
  if (key.destroyed) [[unlikely]] {
    refuse(kInvalidParam,
           std::string(method) + ": the remote key was destroyed\n  try: unpack the buffer again for a new one");
    return false;
  }
  *out = &key;
  *dest = key.dest;
  if (key.ep == &ep) [[likely]]
    return true;
  if (key.symmetric && key.ep->worker == ep.worker) {
    *dest = ep.dest;
    return true;
  }
  refuse(kInvalidParam,
         std::string(method) +
             ": the remote key was unpacked on another endpoint\n"
             "  rule: a key serves no endpoint but the one that unpacked it, ucp_ep_rkey_unpack; keys of\n"
             "  regions mapped with MEM_MAP_SYMMETRIC_RKEY serve every endpoint of the worker\n"
             "  try: ep.rkey_unpack(buffer) on this endpoint");
  return false;
}

}  // namespace

PyObject* new_request() {
  PyObject* object = nb::inst_alloc(reinterpret_cast<PyObject*>(g_ucp_request_type)).release().ptr();
  new (nb::inst_ptr<UcpRequest>(object)) UcpRequest();
  nb::inst_mark_ready(object);
  return object;
}

namespace {

// Does what `post` does until there is room for it; false with an error set (Ctrl-C).
template <typename Post>
bool with_room(UcpWorker& worker, Post&& post, nic::PostResult* r) {
  Backoff backoff(32, 64);
  for (;;) {
    *r = post();
    if (r->refusal != Refusal::cq_full && r->refusal != Refusal::tx_full) [[likely]]
      return true;
    // Finished operations make room. Their callbacks wait for progress().
    if (collect(worker) == 0) {
      nic::Nic* nic = worker.nic_ep->box->domain->nic();
      const ReleasedGil released;
      nic->progress(!nic->has_engine());
      backoff.pause();
    }
    if (PyErr_CheckSignals() != 0) return false;
  }
}

// An operation was posted that is not over: its request learns what it needs, and goes to the caller.
[[gnu::noinline]] PyObject* begun(UcpEp& ep, PyObject* object, UcpRkey* rkey, PyObject* rkey_object,
                                  const UcpOptions* o, bool quiet, const Buf* const* bufs, size_t buf_count) {
  UcpWorker& worker = *ep.worker;
  UcpRequest& request = *nb::inst_ptr<UcpRequest>(object);
  request.worker_object = ep.worker_object;
  request.ep_object = nb::borrow(ep.self);
  request.quiet = quiet;
  // A post returns "done in place", after which a callback never comes (as in C); a flush tells how it went.
  if (!quiet && o != nullptr && given(o->cb)) request.cb = nb::borrow(o->cb);
  if (!quiet && o != nullptr && given(o->user_data)) request.user_data = nb::borrow(o->user_data);
  if (request.parts != 0) {  // else it ended already, while we made room
    ++rkey->in_flight;
    request.rkey = nb::borrow(rkey_object);
    for (size_t i = 0; i < buf_count; ++i) {
      PyObject* held = bufs[i]->hold();
      held == nullptr ? PyErr_Clear() : request.keep.push_back(nb::steal(held));
    }
  }
  follow(worker, nb::borrow(object), worker.begin(request, ep));
  if (quiet) {
    Py_DECREF(object);
    Py_INCREF(g_ucp_done);
    return g_ucp_done;
  }
  return object;
}

// HOT. One operation that keeps the GIL, is asked for nothing special and may be done in place; null where it has to go
// the long way. The request that would stand for it is the next one's if nobody needs it.
template <typename Post>
[[gnu::always_inline]] inline PyObject* attempt(UcpEp& ep, UcpRkey* rkey, PyObject* rkey_object, const UcpOptions* o,
                                                bool quiet, const Buf* const* bufs, size_t buf_count, Post&& post) {
  UcpWorker& worker = *ep.worker;
  if (ep.fence != worker.fence_count || worker.spare == nullptr) [[unlikely]]
    return nullptr;
  PyObject* object = worker.spare;
  const nic::PostResult r = post(reinterpret_cast<uint64_t>(object), nic::flag::kIfUnfinished);
  if (r.refusal != Refusal::none) [[unlikely]]
    return nullptr;
  if (!r.context_used) [[likely]] {
    Py_INCREF(g_ucp_done);
    return g_ucp_done;
  }
  worker.spare = nullptr;  // the queue has its reference, and the caller gets another
  Py_INCREF(object);
  nb::inst_ptr<UcpRequest>(object)->parts = 1;
  return begun(ep, object, rkey, rkey_object, o, quiet, bufs, buf_count);
}

// Posts, in one part or several, and makes of it what the caller gets. `post(part, context, flags)`.
template <typename Post>
PyObject* launch(UcpEp& ep, const char* method, UcpRkey* rkey, PyObject* rkey_object, const UcpOptions& o, size_t parts,
                 bool replies, bool quiet, const Buf* const* bufs, size_t buf_count, Post&& post) {
  UcpWorker& worker = *ep.worker;
  const bool now = (o.flags & kForceImmCmpl) != 0, always = (o.flags & kNoImmCmpl) != 0;
  if (now && replies) {
    refuse(kNoResource,
           std::string(method) +
               ": FORCE_IMM_CMPL: an operation that brings data back is never immediate\n  try: without it");
    return nullptr;
  }
  PyObject* object = std::exchange(worker.spare, nullptr);
  if (object == nullptr) object = new_request();
  UcpRequest& request = *nb::inst_ptr<UcpRequest>(object);
  uint64_t flags = now ? nic::flag::kOnlyNow : always ? nic::flag::kCompletion : nic::flag::kIfUnfinished;
  if (ep.fence != worker.fence_count) [[unlikely]]
    flags |= nic::flag::kFence;
  bool pending = false;
  request.parts = 1;  // ours, until all are posted: completions may come before that
  for (size_t i = 0; i < parts; ++i) {
    ++request.parts;
    Py_INCREF(object);
    nic::PostResult r;
    const bool ok = with_room(worker, [&] { return post(i, reinterpret_cast<uint64_t>(object), flags); }, &r);
    if (ok && r.refusal == Refusal::none && r.context_used) {
      pending = true;
    } else {
      --request.parts;
      Py_DECREF(object);
    }
    if (!ok || r.refusal != Refusal::none) [[unlikely]] {
      if (ok) {
        if (r.refusal == Refusal::not_now) {
          refuse(kNoResource,
                 std::string(method) +
                     ": FORCE_IMM_CMPL: it would take longer than the call (the peer's memory is not mapped "
                     "here yet, or is reached through its engine)\n  try: without FORCE_IMM_CMPL");
        } else if (r.refusal == Refusal::closed || r.refusal == Refusal::not_enabled) {
          refuse(kInvalidParam, std::string(method) + ": the worker is destroyed\n  try: context.worker_create()");
        } else {
          refuse(kInvalidParam, std::string(method) + ": the operation cannot be described to the NIC (refusal " +
                                    std::to_string(static_cast<int>(r.refusal)) + ")");
        }
      }
      if (!pending) {
        Py_DECREF(object);
        return nullptr;
      }
      // Parts of it are under way. They end by themselves, and a flush waits for them; the caller hears of this.
      --request.parts;
      PyObject *type, *value, *trace;
      PyErr_Fetch(&type, &value, &trace);
      request.freed = true;
      Py_XDECREF(begun(ep, object, rkey, rkey_object, nullptr, false, bufs, buf_count));
      PyErr_Restore(type, value, trace);
      return nullptr;
    }
    flags &= ~nic::flag::kFence;
  }
  ep.fence = worker.fence_count;
  --request.parts;
  if (!pending) [[likely]] {
    if (worker.spare == nullptr) {
      worker.spare = object;
    } else {
      Py_DECREF(object);
    }
    Py_INCREF(g_ucp_done);
    return g_ucp_done;
  }
  if (now) [[unlikely]] {  // the owner's table refused it: that stands in the queue already
    while (request.parts != 0 && collect(worker) != 0) continue;
    refuse(request.first_failure, std::string(method) + ": " + request.text);
    Py_DECREF(object);
    return nullptr;
  }
  return begun(ep, object, rkey, rkey_object, &o, quiet, bufs, buf_count);
}

// What a get into imported memory returned, once its bytes have a way on to the memory's owner.
PyObject* delivering(PyObject* result, nb::object delivers) {
  if (result == nullptr || !delivers.is_valid()) return result;
  UcpRequest& request = *nb::inst_ptr<UcpRequest>(result);
  if (!request.ended()) {
    request.delivers = std::move(delivers);
    return result;
  }
  if (request.status == kOk && !deliver(delivers)) {  // it was over when the call returned
    Py_DECREF(result);
    return nullptr;
  }
  return result;
}

// Notes a local buffer of imported memory that is not mapped here.
void note_delivery(const UcpOptions& o, bool writes, nb::handle buffer, nb::object& delivers) {
  if (!writes || !given(o.memh) || !PyObject_HasAttrString(buffer.ptr(), "deliver")) return;
  if (!delivers.is_valid()) delivers = nb::list();
  nb::borrow<nb::list>(delivers).append(buffer);
}

// PROT_LOCAL_READ, PROT_LOCAL_WRITE of a region that a slice is given of.
bool slice_ok(PyObject* buffer, bool writes, const char* method) {
  if (Py_TYPE(buffer) != g_mr_slice_type) return true;
  const auto* slice = nb::inst_ptr<MrSlice>(buffer);
  if ((slice->core->region->access() & (writes ? nic::flag::kRead : nic::flag::kWrite)) != 0) return true;
  refuse(kInvalidParam, std::string(method) + ": the local region was mapped without " +
                            (writes ? "MEM_MAP_PROT_LOCAL_WRITE" : "MEM_MAP_PROT_LOCAL_READ") +
                            "\n  try: map it with the right, or give the memory itself as buffer");
  return false;
}

// The buffer of a call with memh: checked against it, and where it really is.
bool by_memh(UcpEp& ep, const UcpOptions& o, PyObject** buffer, bool writes, nb::object& held) {
  if (!given(o.memh)) [[likely]]
    return true;
  if (!PyObject_HasAttrString(o.memh, "_as_local")) {
    refuse(kInvalidParam, std::string("memh is ") + Py_TYPE(o.memh)->tp_name + ": it has to be what mem_map returned");
    return false;
  }
  held = nb::steal(PyObject_CallMethod(o.memh, "_as_local", "OOO", ep.worker->domain_object.ptr(), *buffer,
                                       writes ? Py_True : Py_False));
  *buffer = held.ptr();
  return held.is_valid();
}

bool length_of(const char* method, const UcpOptions& o, uint64_t available, uint64_t* length) {
  const uint64_t element = o.has_datatype ? o.datatype >> kClassShift : 1;
  if (o.has_datatype && (o.datatype & kClassMask) != kClassContig) {
    refuse(kUnsupported, std::string(method) + ": datatypes of class " + std::to_string(o.datatype & kClassMask) +
                             " are not for this call\n  try: ucp.dt_make_contig(n), or ucp.DATATYPE_IOV with a list");
    return false;
  }
  uint64_t n = available;
  if (o.has_count && __builtin_mul_overflow(o.count, element, &n)) n = ~uint64_t{0};
  if (n > available) {
    refuse(kInvalidParam, std::string(method) + ": count " + std::to_string(o.count) + " of " +
                              std::to_string(element) + " B passes the end of a buffer of " +
                              std::to_string(available) + " B");
    return false;
  }
  if (!o.has_count && element > 1) n -= n % element;
  *length = n;
  return true;
}

PyObject* transfer_list(UcpEp& ep, const char* method, OpKind kind, PyObject* list, uint64_t remote,
                        PyObject* rkey_object, const UcpOptions& o);

Signature g_put{"put_nbx",
                {"buffer", "remote_addr", "rkey", "param", "count", "cb", "user_data", "memh", "flags", "datatype"},
                4,
                3,
                {}};
Signature g_get{"get_nbx",
                {"buffer", "remote_addr", "rkey", "param", "count", "cb", "user_data", "memh", "flags", "datatype"},
                4,
                3,
                {}};

PyObject* transfer(PyObject* self, const char* method, OpKind kind, PyObject** a) {
  UcpEp& ep = *nb::inst_ptr<UcpEp>(self);
  if (!usable(ep, method, kFeatureRma, "RMA")) [[unlikely]]
    return nullptr;
  UcpOptions o;
  bool plain = true;
  for (size_t i = 3; i < 10; ++i) plain = plain && !given(a[i]);
  if (!plain && !read_options(method, a[3], a[4], a[5], a[6], a[7], a[8], a[9], o)) return translated();
  uint64_t remote = 0;
  if (!ucp_u64(method, "remote_addr", a[1], &remote)) return nullptr;
  if (o.has_datatype && (o.datatype & kClassMask) == kClassIov) {
    return transfer_list(ep, method, kind, a[0], remote, a[2], o);
  }
  const bool writes = kind == OpKind::read;
  PyObject* buffer = a[0];
  nb::object held;
  if (!by_memh(ep, o, &buffer, writes, held)) return nullptr;
  nb::object delivers;
  note_delivery(o, writes, buffer, delivers);
  if (!slice_ok(buffer, writes, method)) return nullptr;
  Buf b;
  if (!b.acquire(buffer, writes, nullptr)) return translated();
  uint64_t length = b.length;
  if ((o.has_count || o.has_datatype) && !length_of(method, o, b.length, &length)) return nullptr;
  if (length == 0) {  // as UCX: whatever the key and the address
    Py_INCREF(g_ucp_done);
    return g_ucp_done;
  }
  UcpRkey* rkey;
  uint64_t dest;
  if (!address_of(ep, method, a[2], &rkey, &dest)) [[unlikely]]
    return nullptr;
  if (rkey->length == 0) [[unlikely]] {
    refuse(kInvalidParam, std::string(method) +
                              ": the remote key is that of a region without bytes\n  try: map a region that has some");
    return nullptr;
  }
  EndpointCore* core = ep.worker->nic_ep;
  bool device = false;
  if (!is_device(*core->box, b, method, writes, &device)) return translated();
  const Buf* bufs[] = {&b};
  const KeptMemory kept(b);
  PyObject* result = launch(ep, method, rkey, a[2], o, 1, writes, false, bufs, 1,
                            [&](size_t, uint64_t context, uint64_t flags) -> nic::PostResult {
                              const auto post = [&] {
                                if (device) {
                                  const iovec piece{b.data, length};
                                  const wire::RmaRange range{remote + rkey->bias, length, rkey->key};
                                  nic::RmaArgs args;
                                  args.kind = kind;
                                  args.dest = dest;
                                  args.local = {&piece, 1};
                                  args.remote = {&range, 1};
                                  args.flags = flags;
                                  args.context = context;
                                  args.device = 1;
                                  return core->ep->post(args);
                                }
                                return core->ep->post_one(kind, b.data, length, dest, remote + rkey->bias, rkey->key,
                                                          flags, context, 0, false);
                              };
                              if (length >= kReleaseGilBytes || device) {
                                const ReleasedGil released;
                                return post();
                              }
                              return post();
                            });
  return delivering(result, std::move(delivers));
}

// A request that ended with what the owner's memory table says of a range outside of the region.
PyObject* refused_whole(UcpEp& ep, const char* method, OpKind kind, UcpRkey* rkey, PyObject* rkey_object,
                        const UcpOptions& o, uint64_t remote, uint64_t total) {
  const std::string text = std::string(kind == OpKind::read ? "read of " : "write of ") + std::to_string(total) +
                           " B at address " + hex(remote) + " with key " + hex(rkey->key) +
                           ": passes the end of the region (the region has " + std::to_string(rkey->length) +
                           " B from address " + hex(rkey->address) + ")";
  if ((o.flags & kForceImmCmpl) != 0) {
    refuse(kIoError, std::string(method) + ": " + text);
    return nullptr;
  }
  PyObject* object = new_request();
  UcpRequest& request = *nb::inst_ptr<UcpRequest>(object);
  request.first_failure = kIoError;
  request.text = text;
  return begun(ep, object, rkey, rkey_object, &o, false, nullptr, 0);
}

// UCP_DATATYPE_IOV: pieces of local memory, one after the other at the remote address.
PyObject* transfer_list(UcpEp& ep, const char* method, OpKind kind, PyObject* list, uint64_t remote,
                        PyObject* rkey_object, const UcpOptions& o) {
  const bool writes = kind == OpKind::read;
  const nb::object fast = nb::steal(PySequence_Fast(list, "DATATYPE_IOV: buffer must be a list of buffers"));
  if (!fast.is_valid()) return nullptr;
  auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
  if (o.has_count) {
    if (o.count > n) {
      refuse(kInvalidParam, std::string(method) + ": count is " + std::to_string(o.count) + " and the list has " +
                                std::to_string(n) + " buffers");
      return nullptr;
    }
    n = o.count;
  }
  std::vector<std::unique_ptr<Buf>> bufs;
  std::vector<const Buf*> pointers;
  std::vector<nb::object> held(n);
  nb::object delivers;
  std::vector<KeptMemory> kept;
  std::vector<iovec> pieces;
  EndpointCore* core = ep.worker->nic_ep;
  bool device = false;
  uint64_t total = 0;
  for (size_t i = 0; i < n; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(i));
    if (!by_memh(ep, o, &item, writes, held[i]) || !slice_ok(item, writes, method)) return nullptr;
    note_delivery(o, writes, item, delivers);
    auto b = std::make_unique<Buf>();
    if (!b->acquire(item, writes, nullptr) || !is_device(*core->box, *b, method, writes, &device)) return translated();
    if (b->length == 0) continue;
    kept.emplace_back(*b);
    total += b->length;
    pieces.push_back({b->data, b->length});
    pointers.push_back(b.get());
    bufs.push_back(std::move(b));
  }
  if (total == 0) {
    Py_INCREF(g_ucp_done);
    return g_ucp_done;
  }
  UcpRkey* rkey;
  uint64_t dest;
  if (!address_of(ep, method, rkey_object, &rkey, &dest)) return nullptr;
  const size_t parts = (pieces.size() + nic::kIovMax - 1) / nic::kIovMax;
  // The owner checks each part. Of a list that passes the end it must not see the parts that fit.
  const uint64_t at = remote - rkey->address;
  if (parts > 1 && (remote < rkey->address || total > rkey->length || at > rkey->length - total)) {
    return refused_whole(ep, method, kind, rkey, rkey_object, o, remote, total);
  }
  uint64_t offset = 0;
  PyObject* result = launch(ep, method, rkey, rkey_object, o, parts, writes, false, pointers.data(), pointers.size(),
                            [&](size_t part, uint64_t context, uint64_t flags) {
                              const size_t first = part * nic::kIovMax;
                              const std::span local(&pieces[first], std::min(nic::kIovMax, pieces.size() - first));
                              uint64_t bytes = 0;
                              for (const iovec& v : local) bytes += v.iov_len;
                              const wire::RmaRange range{remote + offset + rkey->bias, bytes, rkey->key};
                              nic::RmaArgs args;
                              args.kind = kind;
                              args.dest = dest;
                              args.local = local;
                              args.remote = {&range, 1};
                              args.flags = flags;
                              args.context = context;
                              args.device = device ? 0xff : 0;
                              nic::PostResult r;
                              {
                                const ReleasedGil released;
                                r = core->ep->post(args);
                              }
                              if (r.refusal == Refusal::none) offset += bytes;
                              return r;
                            });
  return delivering(result, std::move(delivers));
}

// HOT. put_nbx(buffer, remote_addr, rkey) and get_nbx of what is short, in host memory, and has a way: null without an
// error where it is anything else.
[[gnu::always_inline]] inline PyObject* transfer_plain(PyObject* self, const char* method, OpKind kind,
                                                       PyObject* const* args) {
  UcpEp& ep = *nb::inst_ptr<UcpEp>(self);
  if (!usable(ep, method, kFeatureRma, "RMA")) [[unlikely]]
    return nullptr;
  const bool writes = kind == OpKind::read;
  if (!PyLong_CheckExact(args[1])) return nullptr;
  if (!slice_ok(args[0], writes, method)) return nullptr;
  Buf b;
  if (!b.acquire(args[0], writes, nullptr)) return translated();
  if (b.length == 0 || b.length >= kReleaseGilBytes || b.iface != mem::kHmemSystem || b.bare) return nullptr;
  UcpRkey* rkey;
  uint64_t dest, remote = 0;
  if (!ucp_u64(method, "remote_addr", args[1], &remote) || !address_of(ep, method, args[2], &rkey, &dest))
    return nullptr;
  if (rkey->length == 0) [[unlikely]]
    return nullptr;
  const Buf* bufs[] = {&b};
  return attempt(ep, rkey, args[2], nullptr, false, bufs, 1, [&](uint64_t context, uint64_t flags) {
    return ep.worker->nic_ep->ep->post_one(kind, b.data, b.length, dest, remote + rkey->bias, rkey->key, flags, context,
                                           0, false);
  });
}

PyObject* ep_put_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (nargs == 3 && kwnames == nullptr) [[likely]] {
    if (PyObject* r = transfer_plain(self, "put_nbx", OpKind::write, args); r != nullptr || PyErr_Occurred()) return r;
  }
  PyObject* a[10];
  if (!parse_slow(g_put, args, nargs, kwnames, a)) return nullptr;
  return transfer(self, "put_nbx", OpKind::write, a);
}
PyObject* ep_get_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (nargs == 3 && kwnames == nullptr) [[likely]] {
    if (PyObject* r = transfer_plain(self, "get_nbx", OpKind::read, args); r != nullptr || PyErr_Occurred()) return r;
  }
  PyObject* a[10];
  if (!parse_slow(g_get, args, nargs, kwnames, a)) return nullptr;
  return transfer(self, "get_nbx", OpKind::read, a);
}

Signature g_atomic{"atomic_op_nbx",
                   {"opcode", "buffer", "remote_addr", "rkey", "param", "count", "cb", "user_data", "memh", "flags",
                    "datatype", "reply_buffer"},
                   5,
                   4,
                   {}};

// An operand that is a number, as the element's bits; false with UcsError where the element cannot hold it.
bool operand_of(const char* method, PyObject* number, uint64_t size, uint64_t* out) {
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(number, &overflow);
  bool fits = overflow == 0 && (size == 8 || (n >= INT32_MIN && n <= UINT32_MAX));
  *out = static_cast<uint64_t>(n);
  if (overflow > 0 && size == 8) {
    *out = PyLong_AsUnsignedLongLong(number);
    fits = PyErr_Occurred() == nullptr;
    PyErr_Clear();
  }
  if (fits) return true;
  const nb::object text = nb::steal(PyObject_Repr(number));
  PyErr_Clear();
  refuse(kInvalidParam, std::string(method) + ": the operand " +
                            (text.is_valid() ? nb::cast<std::string>(text).substr(0, 60) : "given") +
                            " does not fit an element of " + std::to_string(size) +
                            " B\n  rule: a signed or an unsigned number of the element's size");
  return false;
}

PyObject* ep_atomic_op_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const method = "atomic_op_nbx";
  PyObject* a[12];
  if (!parse_slow(g_atomic, args, nargs, kwnames, a)) return nullptr;
  UcpEp& ep = *nb::inst_ptr<UcpEp>(self);
  UcpOptions o;
  bool plain = true;
  for (size_t i = 4; i < 11; ++i) plain = plain && !given(a[i]);
  if (!plain && !read_options(method, a[4], a[5], a[6], a[7], a[8], a[9], a[10], o)) return translated();
  if (given(a[11])) o.reply = a[11];
  uint64_t opcode = 0, remote = 0;
  if (!ucp_u64(method, "opcode", a[0], &opcode) || !ucp_u64(method, "remote_addr", a[2], &remote)) return nullptr;

  // The operand: a number, or the first element of a buffer.
  alignas(8) uint64_t operand = 0, desired = 0, old = 0;
  Buf b;
  uint64_t size = 0;
  if (o.has_datatype) {
    size = (o.datatype & kClassMask) == kClassContig ? o.datatype >> kClassShift : 0;
  } else if (given(a[4])) {
    refuse(kInvalidParam, std::string(method) +
                              ": param has no datatype\n  try: OP_ATTR_FIELD_DATATYPE in op_attr_mask, and "
                              "datatype=ucp.dt_make_contig(4 or 8)");
    return nullptr;
  }
  const bool number = PyLong_Check(a[1]);
  if (number) {
    if (!o.has_datatype) size = 8;
    if ((size == 4 || size == 8) && !operand_of(method, a[1], size, &operand)) return nullptr;
  } else {
    nb::object held;
    PyObject* buffer = a[1];
    if (!by_memh(ep, o, &buffer, false, held) || !slice_ok(buffer, false, method)) return nullptr;
    if (!b.acquire_host(buffer, false)) return translated();
    if (!o.has_datatype) size = b.length;
  }
  if (size != 4 && size != 8) {
    refuse(kInvalidParam, std::string(method) + ": elements of " + std::to_string(size) +
                              " B\n  rule: the datatype is dt_make_contig(4) or dt_make_contig(8), and one element");
    return nullptr;
  }
  if (!number) {
    if (b.length == 0 || b.length % size != 0) {
      refuse(kInvalidParam, std::string(method) + ": the buffer has " + std::to_string(b.length) + " B, the element " +
                                std::to_string(size) + "\n  rule: the operand is the first of whole elements");
      return nullptr;
    }
    std::memcpy(&operand, b.data, size);
  }
  if (o.has_count && o.count != 1) {
    refuse(kInvalidParam, std::string(method) + ": count is " + std::to_string(o.count) +
                              "; it has to be 1\n  try: a call for each element");
    return nullptr;
  }
  if (!usable(ep, method, size == 4 ? kFeatureAmo32 : kFeatureAmo64, size == 4 ? "AMO32" : "AMO64")) return nullptr;
  if (opcode >= kAtomicOps) {
    refuse(kInvalidParam, std::string(method) + ": there is no atomic operation " + std::to_string(opcode) +
                              "\n  rule: ATOMIC_OP_ADD, SWAP, CSWAP, AND, OR or XOR");
    return nullptr;
  }
  const bool replies = given(o.reply);
  if (!replies && (opcode == kSwap || opcode == kCswap)) {
    refuse(kInvalidParam, std::string(method) + ": " + (opcode == kSwap ? "SWAP" : "CSWAP") +
                              " needs a reply_buffer: the old value goes there" +
                              (opcode == kCswap ? ", and the new one is taken from there" : ""));
    return nullptr;
  }
  if (remote % size != 0) {
    refuse(kInvalidParam, std::string(method) + ": remote_addr " + hex(remote) + " is no multiple of " +
                              std::to_string(size) + ": atomics need natural alignment\n  try: align the element");
    return nullptr;
  }
  Buf reply;
  if (replies) {
    if (!slice_ok(o.reply, true, method)) return nullptr;
    if (!reply.acquire_host(o.reply, true)) return translated();
    if (reply.length < size) {
      refuse(kInvalidParam, std::string(method) + ": reply_buffer has " + std::to_string(reply.length) +
                                " B, the element " + std::to_string(size));
      return nullptr;
    }
  }
  UcpRkey* rkey;
  uint64_t dest;
  if (!address_of(ep, method, a[3], &rkey, &dest)) return nullptr;
  if (rkey->length == 0) {
    refuse(kInvalidParam, std::string(method) +
                              ": the remote key is that of a region without bytes\n  try: map a region that has some");
    return nullptr;
  }

  nic::AtomicArgs atomic;
  const wire::RmaRange range{remote + rkey->bias, size, rkey->key};
  iovec operand_piece{&operand, size}, compare_piece{&operand, size}, result_piece{&old, size};
  atomic.datatype = size == 4 ? nic::Datatype::uint32 : nic::Datatype::uint64;
  atomic.family = !replies           ? nic::AtomicFamily::base
                  : opcode == kCswap ? nic::AtomicFamily::compare
                                     : nic::AtomicFamily::fetch;
  static constexpr nic::AtomicOp kOps[] = {nic::AtomicOp::sum,  nic::AtomicOp::atomic_write, nic::AtomicOp::cswap,
                                           nic::AtomicOp::band, nic::AtomicOp::bor,          nic::AtomicOp::bxor};
  atomic.op = kOps[opcode];
  atomic.dest = dest;
  atomic.remote = {&range, 1};
  atomic.operand = {&operand_piece, 1};
  if (opcode == kCswap) {  // the reply buffer has the new value, `buffer` the one that is expected
    std::memcpy(&desired, reply.data, size);
    operand_piece.iov_base = &desired;
    atomic.compare = {&compare_piece, 1};
  }
  if (replies) {
    result_piece.iov_base = reply.data;
    atomic.result = {&result_piece, 1};
  }
  const Buf* bufs[] = {&reply};
  const bool quiet = !replies && (o.flags & kNoImmCmpl) == 0;
  const auto post = [&](uint64_t context, uint64_t flags) {
    atomic.flags = flags;
    atomic.context = context;
    return ep.worker->nic_ep->ep->post_atomic(atomic);
  };
  if (o.flags == 0) [[likely]] {
    if (PyObject* r = attempt(ep, rkey, a[3], &o, quiet, bufs, replies ? 1 : 0, post); r != nullptr || PyErr_Occurred())
      return r;
  }
  const KeptMemory kept(reply);
  return launch(ep, method, rkey, a[3], o, 1, replies, quiet, bufs, replies ? 1 : 0,
                [&](size_t, uint64_t context, uint64_t flags) { return post(context, flags); });
}

// ---- mapping -------------------------------------------------------------------------------------------------------

// HOT: some programs map for every transfer. mem_map(buffer); anything else goes to Context._mem_map, with the same
// arguments. Benchmark: bench/bench_registration.py.
PyObject* context_mem_map(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto* context = nb::inst_ptr<Context>(self);
  if (nargs == 1 && kwnames == nullptr && context->box && !context->box->closed && !context->box->forked() &&
      !PyObject_TypeCheck(args[0], g_params_type) && !PyTuple_Check(args[0])) [[likely]] {
    context->box->drain();
    Buf b;
    if (b.acquire(args[0], false, nullptr) && b.length != 0) [[likely]] {
      nb::object region = nb::inst_alloc(g_region_type);
      auto* made = nb::inst_ptr<MemoryRegionCore>(region);
      if (make_region(made, context->box, {&args[0], 1}, context->access, context->next_key, false, true)) {
        ++context->next_key;
        nb::inst_mark_ready(region);
        made->domain = nb::borrow(self);
        made->enlist(region.ptr());
        return region.release().ptr();
      }
    }
    PyErr_Clear();  // Python says what is wrong
  }
  static PyObject* name = PyUnicode_InternFromString("_mem_map");
  constexpr size_t kArgsMax = 16;
  const Py_ssize_t total = nargs + (kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0);
  if (static_cast<size_t>(total) >= kArgsMax) {
    PyErr_SetString(PyExc_TypeError, "mem_map: too many arguments");
    return nullptr;
  }
  PyObject* forwarded[kArgsMax] = {self};
  std::copy(args, args + total, forwarded + 1);
  return PyObject_VectorcallMethod(name, forwarded, static_cast<size_t>(nargs) + 1, kwnames);
}

PyMethodDef g_context_methods[] = {
    {"mem_map", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(context_mem_map)), METH_FASTCALL | METH_KEYWORDS,
     "Map memory, or allocate and map it (ucp_mem_map).\n\n"
     "    context.mem_map(array)\n"
     "    context.mem_map(length=1 << 20, allocate=True)\n"
     "    context.mem_map(ucp.MemMapParams(field_mask=..., address=..., length=...))\n\n"
     "params      a `MemMapParams`, as C has it; or a buffer (array, bytearray ...), which is held until it is\n"
     "            unmapped; or nothing.\n"
     "address, length, flags, prot, memory_type, exported_memh_buffer   as its fields, given by being there.\n"
     "allocate, nonblock, symmetric   MEM_MAP_ALLOCATE, NONBLOCK, SYMMETRIC_RKEY.\n\n"
     "Memory at a bare address may go away while it is mapped: an access is then an error. Memory that Weft allocated\n"
     "is whole pages, reads as zero, and is what peers reach by load and store. Without NONBLOCK its pages are there\n"
     "when the call returns. With FIXED it takes the place of what is at the address, unless that holds data.\n\n"
     "Returns a `MemHandle`. Raises UcsError: INVALID_PARAM (the matrix of the page; memory that ends past the "
     "address\n"
     "space), NO_MEMORY, UNREACHABLE (an exported handle of another host, or of a process that is gone).\n"
     "Source: UCP, \"ucp_mem_map\", \"Matrix of behavior\"."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot g_context_slots[] = {{Py_tp_methods, g_context_methods}, {0, nullptr}};

#define WEFT_METHOD(of, name, doc) \
  {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(of##_##name)), METH_FASTCALL | METH_KEYWORDS, doc}

PyMethodDef g_ep_methods[] = {
    WEFT_METHOD(
        ep, put_nbx,
        "Copies a local buffer to a peer's memory (ucp_put_nbx).\n\n"
        "buffer       C-contiguous bytes of this process: any buffer, a slice of a memory handle (quickest), or\n"
        "             (address, length). Under DATATYPE_IOV a list of them. Leave it alone until the request is done.\n"
        "remote_addr  virtual address in the peer's process.\n"
        "rkey         what rkey_unpack() of this endpoint returned.\n"
        "param        a RequestParam; its fields count where their bit of op_attr_mask is set.\n"
        "count        elements of the datatype, bytes without one; all of the buffer where None.\n"
        "cb, user_data, memh, flags, datatype   as param's fields, which they come before; flags: OP_ATTR_FLAG_*.\n\n"
        "Returns a request: false as a truth value where the operation was done in place (C's NULL; cb is not "
        "called).\n"
        "Done means that the buffer may be used again; the peer sees the bytes for certain after a flush.\n\n"
        "Raises UcsError: INVALID_PARAM (closed or foreign key, no such feature, memh without the right),\n"
        "NO_RESOURCE (FORCE_IMM_CMPL). What the owner's memory table refuses ends the request with IO_ERROR.\n"
        "Waits while the transmit queue is full. Source: UCP, ucp_put_nbx."),
    WEFT_METHOD(ep, get_nbx,
                "Copies a peer's memory into a local, writable buffer (ucp_get_nbx). Arguments as put_nbx.\n\n"
                "Done means that the data is there. Source: UCP, ucp_get_nbx."),
    WEFT_METHOD(
        ep, atomic_op_nbx,
        "Updates one element of a peer's memory atomically (ucp_atomic_op_nbx).\n\n"
        "opcode        ATOMIC_OP_ADD, SWAP, CSWAP, AND, OR or XOR.\n"
        "buffer        the operand: a buffer of 4 or 8 bytes, or an int. For CSWAP the value that is expected.\n"
        "remote_addr   a multiple of the element's size.\n"
        "datatype      dt_make_contig(4) or dt_make_contig(8); the buffer's size where neither it nor param is given.\n"
        "reply_buffer  receives the old value. Required by SWAP and CSWAP, which takes the new value from it.\n"
        "count         1.   Others as put_nbx.\n\n"
        "Without a reply_buffer the request is done at once (NO_IMM_CMPL: when the peer has it), and a failure is\n"
        "told by the next flush. Raises UcsError (INVALID_PARAM). Source: UCP, ucp_atomic_op_nbx."),
    WEFT_METHOD(
        ep, flush_nbx,
        "Completes when every operation posted so far on this endpoint is done at both ends (ucp_ep_flush_nbx).\n\n"
        "A failure that no request has told of is told here. Source: UCP, ucp_ep_flush_nbx."),
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot g_ep_slots[] = {{Py_tp_methods, g_ep_methods}, {0, nullptr}};

}  // namespace

void register_ucp(nb::module_& m) {
  m.def(
      "set_ucs_error",
      [](nb::object f) {
        Py_XDECREF(g_error);
        g_error = f.release().ptr();
      },
      nb::arg("f"), nb::sig("def set_ucs_error(f: Callable[[int | None, Any], BaseException]) -> None"),
      "Registers the function (status, message) or (None, exception) -> exception that makes weft.ucp's errors.");
  m.def(
      "set_ucp_region",
      [](nb::type_object region, nb::type_object params) {
        g_region_type = region.release().ptr();
        g_params_type = reinterpret_cast<PyTypeObject*>(params.release().ptr());
      },
      nb::arg("region"), nb::arg("params"), "Registers the classes of memory handles and of mem_map's parameters.");
  m.def(
      "region_exporters",
      [](const MemoryRegionCore& r) {
        nb::list out;
        for (const nb::object& o : r.keep) out.append(o);
        return out;
      },
      nb::arg("region"), nb::sig("def region_exporters(region: MemoryRegionCore) -> list[Any]"),
      "What keeps a region's memory where it is.");
  m.def(
      "populate",
      [](uint64_t address, uint64_t length, bool writable) {
        const ReleasedGil released;
        return mem::populate(address, length, writable);
      },
      nb::arg("address"), nb::arg("length"), nb::arg("writable") = true,
      "Has the pages of memory there before they are touched; False where that cannot be.");

  nb::class_<Context, DomainCore>(m, "UcpContextCore", nb::type_slots(g_context_slots), "The NIC's side of a context.")
      .def(
          "__init__",
          [](Context* self, PyNic& nic, uint64_t access) {
            new (self) Context(make_domain(nic, {.virt_addr = true, .statuses = {}}));
            self->box->hmem = true;
            self->access = access;
            // Counted keys never come again, and have the upper bit clear: those of symmetric regions have it set.
            self->next_key = self->box->domain->nic()->random().next() >> 2;
          },
          nb::arg("nic"), nb::arg("access"))
      .def("take_key", [](Context& c) { return c.next_key++; }, "A key that no region of this context ever had.");

  register_ucp_worker(m);

  nb::class_<UcpEp>(m, "UcpEndpointCore", nb::type_slots(g_ep_slots),
                    "The NIC's side of a UCP endpoint: its data path.")
      .def(
          "__init__",
          [](nb::pointer_and_handle<UcpEp> self, nb::object worker, uint64_t dest, bool watched) {
            new (self.p) UcpEp(worker, *nb::inst_ptr<UcpWorker>(worker));
            self.p->self = self.h.ptr();
            self.p->dest = dest;
            self.p->fence = self.p->worker->fence_count;
            self.p->watched = watched;
          },
          nb::arg("worker"), nb::arg("dest"), nb::arg("watched"),
          nb::sig("def __init__(self, worker: UcpWorkerCore, dest: int, watched: bool) -> None"))
      .def_prop_ro("dest", [](const UcpEp& e) { return e.dest; })
      .def_prop_ro("failed_status", [](const UcpEp& e) { return e.failed(); })
      .def_prop_ro("why", [](const UcpEp& e) { return e.why(); })
      .def("under_way", [](const UcpEp& e) { return e.under_way(); })
      .def(
          "begin_close", [](UcpEp& e) { e.closing = true; }, "From here on it takes no operations.")
      .def(
          "tell_failure",
          [](UcpEp& e) {
            const ucp::Failure failure = e.untold();
            if (failure.seq == 0) return;
            e.told_before(~uint64_t{0});
            refuse(failure.status, failure.text);
            throw nb::python_error();
          },
          "Raises UcsError for the first failure that nobody has been told of.")
      .def("shut", [](UcpEp& e) { e.close(); });

  nb::class_<UcpRkey> rkey(m, "UcpRkeyCore", "The NIC's side of a remote key.");
  rkey.def(
          "__init__",
          [](UcpRkey* self, nb::object ep, uint64_t key, uint64_t dest, uint64_t address, uint64_t length,
             uint64_t bias, bool symmetric) {
            new (self) UcpRkey();
            self->ep = nb::inst_ptr<UcpEp>(ep);
            self->owner = std::move(ep);
            self->key = key;
            self->dest = dest;
            self->address = address;
            self->length = length;
            self->bias = bias;
            self->symmetric = symmetric;
          },
          nb::arg("ep"), nb::arg("key"), nb::arg("dest"), nb::arg("address"), nb::arg("length"), nb::arg("bias"),
          nb::arg("symmetric"),
          nb::sig("def __init__(self, ep: UcpEndpointCore, key: int, dest: int, address: int, length: int, bias: int, "
                  "symmetric: bool) -> None"))
      .def_ro("key", &UcpRkey::key)
      .def_ro("dest", &UcpRkey::dest)
      .def_ro("address", &UcpRkey::address)
      .def_ro("length", &UcpRkey::length)
      .def_ro("bias", &UcpRkey::bias)
      .def_ro("symmetric", &UcpRkey::symmetric)
      .def_ro("destroyed", &UcpRkey::destroyed)
      .def_ro("in_flight", &UcpRkey::in_flight)
      .def("forget", [](UcpRkey& r) { r.destroyed = true; });
  g_rkey_type = reinterpret_cast<PyTypeObject*>(rkey.ptr());
}

}  // namespace weft::bind
