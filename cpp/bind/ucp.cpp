// cpp/bind/ucp.cpp: the data path of weft.ucp: ucp_put_nbx, ucp_get_nbx, ucp_atomic_op_nbx, progress and flush.
//
// HOT: put_nbx, get_nbx, atomic_op_nbx and progress, as the data path of an endpoint (bind/endpoint.cpp). What load and
// store can do is over when the call returns: nothing is allocated, no completion is written, and the request that
// would have stood for it waits for the next call. Benchmark: bench/bench_ucp.py.
//
// Everything here is under the GIL, except long copies.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <set>

#include "bind/common.hpp"
#include "bind/wait.hpp"

namespace weft::bind {

namespace {

using nic::OpKind;
using nic::Refusal;

// ucs_status_t
constexpr int kOk = 0, kInProgress = 1, kNoResource = -2, kIoError = -3, kNoMemory = -4, kInvalidParam = -5,
              kUnreachable = -6, kUnsupported = -22, kRejected = -23, kConnectionReset = -25, kCanceled = -16,
              kEndpointTimeout = -80;
// ucp_op_attr_t
constexpr uint64_t kAttrCallback = 1u << 1, kAttrUserData = 1u << 2, kAttrDatatype = 1u << 3, kAttrFlags = 1u << 4,
                   kAttrReply = 1u << 5, kAttrMemh = 1u << 8, kNoImmCmpl = 1u << 16, kFastCmpl = 1u << 17,
                   kForceImmCmpl = 1u << 18, kMultiSend = 1u << 19;
// ucp_datatype_t
constexpr uint64_t kClassMask = 7, kClassContig = 0, kClassIov = 2, kClassShift = 3;
// ucp_atomic_op_t
enum : uint64_t { kAdd, kSwap, kCswap, kAnd, kOr, kXor, kAtomicOps };
// Features of a context.
constexpr uint32_t kFeatureRma = 2, kFeatureAmo32 = 4, kFeatureAmo64 = 8;

constexpr uint64_t kReleaseGilBytes = 131072;  // as in bind/endpoint.cpp

constexpr int ucs_status(Status s) noexcept {
  switch (s) {
    case Status::ok:
      return kOk;
    case Status::no_endpoint:
    case Status::unreachable:
      return kUnreachable;
    case Status::peer_gone:
      return kConnectionReset;
    case Status::refused:
      return kRejected;
    case Status::misaligned:
    case Status::invalid:
      return kInvalidParam;
    case Status::canceled:
      return kCanceled;
    case Status::timeout:
      return kEndpointTimeout;
    case Status::unsupported:
      return kUnsupported;
    case Status::no_memory:
      return kNoMemory;
    default:  // what the owner's memory table refuses
      return kIoError;
  }
}

// After these an endpoint is no way to its peer any more.
constexpr bool ends_endpoint(Status s) noexcept {
  return s == Status::no_endpoint || s == Status::unreachable || s == Status::peer_gone || s == Status::refused ||
         s == Status::timeout || s == Status::protocol;
}

PyObject* g_error = nullptr;  // (status, message) or (None, exception) -> UcsError
PyTypeObject* g_request_type = nullptr;
PyTypeObject* g_rkey_type = nullptr;
PyObject* g_region_type = nullptr;      // weft.ucp.mem.Region
PyTypeObject* g_params_type = nullptr;  // weft.ucp.MemMapParams
PyObject* g_done = nullptr;             // the request of what was done in place

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

std::string hex(uint64_t n) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(n));
  return text;
}

struct Worker;
struct Ep;

// ucp_rkey_h
struct Rkey {
  Ep* ep = nullptr;
  nb::object owner;  // the endpoint's object
  uint64_t key = 0, dest = 0, address = 0, length = 0;
  uint64_t bias = 0;       // what is added to an address of the owner's to name it in its memory table
  bool symmetric = false;  // good for every endpoint of the worker, where the peer has a region of the same layout
  bool destroyed = false;
  uint32_t in_flight = 0;
};

// What a status pointer points to: an operation under way.
struct Request {
  int status = kInProgress;
  int first_failure = kOk;
  uint32_t parts = 0;    // completions to come
  bool freed = false;    // the user wants to hear no more of it
  bool has_user = true;  // false: an atomic without a reply, of which only a flush tells
  uint64_t seq = 0;      // 0: not counted as under way
  std::string text;
  nb::object cb, user_data, worker, ep, rkey;
  std::vector<nb::object> keep;  // buffers
};

struct Worker {
  nb::object domain_object, cq_object, av_object, ep_object;
  CompletionQueueCore* cq = nullptr;
  EndpointCore* ep = nullptr;
  uint32_t features = 0;
  uint64_t next_seq = 1, fence = 0, downs = 0;
  std::set<uint64_t> under_way;
  std::set<Ep*> eps;
  std::vector<nb::object> flushes;
  std::vector<nb::object> to_call;  // requests whose callback is due
  std::vector<nb::object> failed;   // endpoints whose failure is to be told
  PyObject* spare = nullptr;        // a request for the next operation
  bool closed = false;
  PollPacer pacer;
  ~Worker() { Py_XDECREF(spare); }
};

struct Ep {
  nb::object worker_object;
  Worker* worker = nullptr;
  PyObject* self = nullptr;
  uint64_t dest = 0, fence = 0;
  std::set<uint64_t> under_way;
  int failed = kOk;
  std::string why;
  int lost = kOk;  // a failure that no request told of
  std::string lost_text;
  bool closing = false;  // close_nbx() waits for what was posted
  bool closed = false;
  bool watched = false;  // UCP_ERR_HANDLING_MODE_PEER
  ~Ep() {
    if (worker != nullptr) worker->eps.erase(this);
  }
};

// ucp_context_h
struct Context : DomainCore {
  explicit Context(DomainCore&& domain) : DomainCore(std::move(domain)) {}
  uint64_t next_key = 1;
  uint64_t access = 0;  // of memory that was mapped without a protection mode
};

// ---- completion ----------------------------------------------------------------------------------------------------

void fail_endpoint(Ep& ep, int status, const std::string& text) {
  if (ep.failed != kOk || ep.closed) return;
  ep.failed = status;
  ep.why = text;
  ep.worker->failed.push_back(nb::borrow(ep.self));
}

// The operation is over; takes the caller's reference.
void finish(Worker& worker, nb::object object, Request& r) {
  r.status = r.first_failure;
  if (r.seq != 0) {
    worker.under_way.erase(r.seq);
    if (r.ep.is_valid()) nb::inst_ptr<Ep>(r.ep)->under_way.erase(r.seq);
  }
  if (r.rkey.is_valid()) {
    --nb::inst_ptr<Rkey>(r.rkey)->in_flight;
    r.rkey = nb::object();
  }
  if (r.status != kOk && (!r.has_user || r.freed) && r.ep.is_valid()) {
    Ep& ep = *nb::inst_ptr<Ep>(r.ep);
    if (ep.lost == kOk) ep.lost = r.status, ep.lost_text = r.text;
  }
  r.keep.clear();
  if (r.cb.is_valid() && !r.freed) worker.to_call.push_back(std::move(object));
}

// One of the NIC's completions; takes the context's reference.
void settle(Worker& worker, uint64_t context, Status status, const std::string& text) {
  if (context == 0) return;
  nb::object object = nb::steal(reinterpret_cast<PyObject*>(context));
  Request& r = *nb::inst_ptr<Request>(object);
  if (status != Status::ok) {
    if (r.first_failure == kOk) {
      r.first_failure = ucs_status(status);
      r.text = text;
    }
    if (ends_endpoint(status) && r.ep.is_valid()) fail_endpoint(*nb::inst_ptr<Ep>(r.ep), ucs_status(status), text);
  }
  if (--r.parts == 0) finish(worker, std::move(object), r);
}

// The failure that a flush has to tell of, once.
int take_lost(Worker& worker, Ep* only, std::string* text) {
  for (Ep* ep : worker.eps) {
    if ((only == nullptr || ep == only) && ep->lost != kOk) {
      *text = std::move(ep->lost_text);
      return std::exchange(ep->lost, kOk);
    }
  }
  return kOk;
}

size_t end_flushes(Worker& worker) {
  size_t ended = 0;
  for (size_t i = 0; i < worker.flushes.size();) {
    Request& r = *nb::inst_ptr<Request>(worker.flushes[i]);
    Ep* only = r.ep.is_valid() ? nb::inst_ptr<Ep>(r.ep) : nullptr;
    const auto& under_way = only != nullptr ? only->under_way : worker.under_way;
    if (!under_way.empty() && *under_way.begin() < r.seq) {
      ++i;
      continue;
    }
    nb::object object = std::move(worker.flushes[i]);
    worker.flushes.erase(worker.flushes.begin() + static_cast<std::ptrdiff_t>(i));
    r.seq = 0;
    r.first_failure = take_lost(worker, only, &r.text);
    finish(worker, std::move(object), r);
    ++ended;
  }
  return ended;
}

// Takes what the NIC has completed. Callbacks are for progress() to call.
size_t collect(Worker& worker) {
  constexpr size_t kReadMax = 64;
  alignas(nic::CqEntry) std::byte room[kReadMax * sizeof(nic::CqEntry)];
  auto* entries = reinterpret_cast<nic::CqEntry*>(room);
  nic::Domain* domain = worker.ep->box->domain.get();
  size_t total = 0;
  for (;;) {
    bool error_waits = false, failed = false;
    nic::CqEntry bad;
    nic::CqError error;
    size_t n;
    {
      const nic::DomainLock guard(domain);
      n = worker.cq->cq->read(entries, kReadMax, &error_waits);
      if (n == 0 && error_waits) failed = worker.cq->cq->read_error(&bad, &error);
      if (worker.cq->notifier && worker.cq->cq->unread() == 0) worker.cq->notifier->drain();
    }
    for (size_t i = 0; i < n; ++i) settle(worker, entries[i].context, Status::ok, {});
    if (failed) settle(worker, bad.context, static_cast<Status>(error.prov_errno), error.text);
    if (n == 0 && !failed) break;
    total += n + (failed ? 1 : 0);
  }
  if (!worker.flushes.empty()) [[unlikely]]
    total += end_flushes(worker);
  return total;
}

bool worker_usable(Worker& worker, const char* method) {
  if (worker.closed) [[unlikely]] {
    refuse(kInvalidParam, std::string(method) + ": the worker is destroyed\n  try: context.worker_create()");
    return false;
  }
  if (worker.ep->box->forked()) [[unlikely]] {
    refuse(kInvalidParam,
           std::string(method) +
               ": this worker belongs to the parent process\n  try: a context of the forked child's own");
    return false;
  }
  worker.ep->box->drain();
  return true;
}

// Calls what is due. False with the first exception of a callback set; the others were called all the same.
bool run_callbacks(Worker& worker) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  const auto remember = [&] {
    if (type == nullptr) {
      PyErr_Fetch(&type, &value, &trace);
    } else {
      PyErr_WriteUnraisable(nullptr);
    }
  };
  while (!worker.to_call.empty() || !worker.failed.empty()) {
    for (nb::object& object : std::exchange(worker.to_call, {})) {
      Request& r = *nb::inst_ptr<Request>(object);
      nb::object cb = std::move(r.cb);
      r.cb = nb::object();
      if (r.freed) continue;
      PyObject* result = PyObject_CallFunction(cb.ptr(), "OiO", object.ptr(), r.status,
                                               r.user_data.is_valid() ? r.user_data.ptr() : Py_None);
      result == nullptr ? remember() : Py_DECREF(result);
    }
    for (nb::object& object : std::exchange(worker.failed, {})) {
      const Ep& ep = *nb::inst_ptr<Ep>(object);
      PyObject* result = PyObject_CallMethod(object.ptr(), "_on_failure", "is", ep.failed, ep.why.c_str());
      result == nullptr ? remember() : Py_DECREF(result);
    }
  }
  if (type == nullptr) return true;
  PyErr_Restore(type, value, trace);
  return false;
}

PyObject* worker_progress(PyObject* self, PyObject*) {
  Worker& worker = *nb::inst_ptr<Worker>(self);
  if (!worker_usable(worker, "progress")) return nullptr;
  nic::Nic* nic = worker.ep->box->domain->nic();
  size_t n = collect(worker);
  if (n == 0 && nic->poll_from_app() != 0) n = collect(worker);
  if (const uint64_t downs = nic->downs(); downs != worker.downs) [[unlikely]] {
    worker.downs = downs;
    for (Ep* ep : worker.eps) {
      if (!ep->watched || ep->closed || ep->failed != kOk) continue;
      if (const Status s = worker.ep->ep->down_status(ep->dest); s != Status::ok) {
        fail_endpoint(*ep, ucs_status(s), "the peer's process died, closed its NIC, or its host is out of reach");
        ++n;
      }
    }
  }
  if (n == 0) {
    if (worker.pacer.due()) [[unlikely]] {
      const ReleasedGil released;
      worker.pacer.yield_measured();
    }
  } else {
    worker.pacer.found();
  }
  if ((!worker.to_call.empty() || !worker.failed.empty()) && !run_callbacks(worker)) return nullptr;
  return PyLong_FromSize_t(n);
}

// ---- posting -------------------------------------------------------------------------------------------------------

struct Options {
  uint64_t flags = 0, datatype = 0, count = 0;
  bool has_datatype = false, has_count = false;
  PyObject *cb = nullptr, *user_data = nullptr, *memh = nullptr, *reply = nullptr;  // borrowed
  std::unique_ptr<std::array<nb::object, 4>> held;                                  // where they are of a param
};

bool given(PyObject* o) {
  return o != nullptr && o != Py_None;
}

// A ucp_request_param: a field counts where its bit is set.
bool read_param(PyObject* param, Options& o) {
  const auto get = [&](const char* name) { return nb::steal(PyObject_GetAttrString(param, name)); };
  const nb::object mask_object = get("op_attr_mask");
  uint64_t mask = 0;
  if (!mask_object.is_valid() || !to_u64(mask_object.ptr(), &mask)) return false;
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
    if (!datatype.is_valid() || !to_u64(datatype.ptr(), &o.datatype)) return false;
  }
  return true;
}

bool read_options(const char* method, PyObject* param, PyObject* count, PyObject* cb, PyObject* user_data,
                  PyObject* memh, PyObject* flags, PyObject* datatype, Options& o) {
  if (given(param) && !read_param(param, o)) return false;
  if (given(count)) {
    o.has_count = true;
    if (!to_u64(count, &o.count)) return false;
  }
  if (given(cb)) o.cb = cb;
  if (given(user_data)) o.user_data = user_data;
  if (given(memh)) o.memh = memh;
  uint64_t more = 0;
  if (given(flags) && !to_u64(flags, &more)) return false;
  o.flags |= more;
  if (given(datatype)) {
    o.has_datatype = true;
    if (!to_u64(datatype, &o.datatype)) return false;
  }
  if ((o.flags & kFastCmpl) != 0 && (o.flags & kMultiSend) != 0) {
    refuse(kInvalidParam,
           std::string(method) + ": FAST_CMPL and MULTI_SEND exclude each other\n  try: one of them, or none");
    return false;
  }
  return true;
}

bool usable(Ep& ep, const char* method, uint32_t feature, const char* feature_name) {
  if (ep.closed || ep.closing) [[unlikely]] {
    refuse(kInvalidParam, std::string(method) + (ep.closed ? ": the endpoint is closed" : ": the endpoint is closing") +
                              "\n  try: another to the same address, worker.ep_create(address)");
    return false;
  }
  if (!worker_usable(*ep.worker, method)) [[unlikely]]
    return false;
  if (ep.failed != kOk) [[unlikely]] {
    refuse(ep.failed, std::string(method) + ": the endpoint has failed: " + ep.why +
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
bool address_of(Ep& ep, const char* method, PyObject* rkey, Rkey** out, uint64_t* dest) {
  if (rkey == nullptr || !PyObject_TypeCheck(rkey, g_rkey_type)) [[unlikely]] {
    refuse(kInvalidParam, std::string(method) + ": rkey is " + (rkey == nullptr ? "missing" : Py_TYPE(rkey)->tp_name) +
                              "\n  try: the remote key that ep.rkey_unpack(buffer) returns");
    return false;
  }
  Rkey& key = *nb::inst_ptr<Rkey>(rkey);
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

PyObject* new_request() {
  PyObject* object = nb::inst_alloc(reinterpret_cast<PyObject*>(g_request_type)).release().ptr();
  new (nb::inst_ptr<Request>(object)) Request();
  nb::inst_mark_ready(object);
  return object;
}

// Does what `post` does until there is room for it; false with an error set (Ctrl-C).
template <typename Post>
bool with_room(Worker& worker, Post&& post, nic::PostResult* r) {
  Backoff backoff(32, 64);
  for (;;) {
    *r = post();
    if (r->refusal != Refusal::cq_full && r->refusal != Refusal::tx_full) [[likely]]
      return true;
    // Finished operations make room. Their callbacks wait for progress().
    if (collect(worker) == 0) {
      nic::Nic* nic = worker.ep->box->domain->nic();
      const ReleasedGil released;
      nic->progress(!nic->has_engine());
      backoff.pause();
    }
    if (PyErr_CheckSignals() != 0) return false;
  }
}

// An operation was posted that is not over: its request learns what it needs, and goes to the caller.
[[gnu::noinline]] PyObject* begun(Ep& ep, PyObject* object, Rkey* rkey, PyObject* rkey_object, const Options* o,
                                  bool quiet, const Buf* const* bufs, size_t buf_count) {
  Worker& worker = *ep.worker;
  Request& request = *nb::inst_ptr<Request>(object);
  request.worker = ep.worker_object;
  request.ep = nb::borrow(ep.self);
  if (o != nullptr && given(o->cb)) request.cb = nb::borrow(o->cb);
  if (o != nullptr && given(o->user_data)) request.user_data = nb::borrow(o->user_data);
  request.has_user = !quiet;
  if (request.parts == 0) {  // it ended already, while we made room or in another thread's progress()
    finish(worker, nb::borrow(object), request);
  } else {
    request.seq = worker.next_seq++;
    worker.under_way.insert(request.seq);
    ep.under_way.insert(request.seq);
    ++rkey->in_flight;
    request.rkey = nb::borrow(rkey_object);
    for (size_t i = 0; i < buf_count; ++i) {
      PyObject* held = bufs[i]->hold();
      held == nullptr ? PyErr_Clear() : request.keep.push_back(nb::steal(held));
    }
  }
  if (quiet) {
    Py_DECREF(object);
    Py_INCREF(g_done);
    return g_done;
  }
  return object;
}

// HOT. One operation that keeps the GIL, is asked for nothing special and may be done in place; null where it has to go
// the long way. The request that would stand for it is the next one's if nobody needs it.
template <typename Post>
[[gnu::always_inline]] inline PyObject* attempt(Ep& ep, Rkey* rkey, PyObject* rkey_object, const Options* o, bool quiet,
                                                const Buf* const* bufs, size_t buf_count, Post&& post) {
  Worker& worker = *ep.worker;
  if (ep.fence != worker.fence || worker.spare == nullptr) [[unlikely]]
    return nullptr;
  PyObject* object = worker.spare;
  const nic::PostResult r = post(reinterpret_cast<uint64_t>(object), nic::flag::kIfUnfinished);
  if (r.refusal != Refusal::none) [[unlikely]]
    return nullptr;
  if (!r.context_used) [[likely]] {
    Py_INCREF(g_done);
    return g_done;
  }
  worker.spare = nullptr;  // the queue has its reference, and the caller gets another
  Py_INCREF(object);
  nb::inst_ptr<Request>(object)->parts = 1;
  return begun(ep, object, rkey, rkey_object, o, quiet, bufs, buf_count);
}

// Posts, in one part or several, and makes of it what the caller gets. `post(part, context, flags)`.
template <typename Post>
PyObject* launch(Ep& ep, const char* method, Rkey* rkey, PyObject* rkey_object, const Options& o, size_t parts,
                 bool replies, bool quiet, const Buf* const* bufs, size_t buf_count, Post&& post) {
  Worker& worker = *ep.worker;
  const bool now = (o.flags & kForceImmCmpl) != 0, always = (o.flags & kNoImmCmpl) != 0;
  if (now && replies) {
    refuse(kNoResource,
           std::string(method) +
               ": FORCE_IMM_CMPL: an operation that brings data back is never immediate\n  try: without it");
    return nullptr;
  }
  PyObject* object = std::exchange(worker.spare, nullptr);
  if (object == nullptr) object = new_request();
  Request& request = *nb::inst_ptr<Request>(object);
  uint64_t flags = now ? nic::flag::kOnlyNow : always ? nic::flag::kCompletion : nic::flag::kIfUnfinished;
  if (ep.fence != worker.fence) [[unlikely]]
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
  ep.fence = worker.fence;
  --request.parts;
  if (!pending) [[likely]] {
    if (worker.spare == nullptr) {
      worker.spare = object;
    } else {
      Py_DECREF(object);
    }
    Py_INCREF(g_done);
    return g_done;
  }
  if (now) [[unlikely]] {  // the owner's table refused it: that stands in the queue already
    while (request.parts != 0 && collect(worker) != 0) continue;
    refuse(request.first_failure, std::string(method) + ": " + request.text);
    Py_DECREF(object);
    return nullptr;
  }
  return begun(ep, object, rkey, rkey_object, &o, quiet, bufs, buf_count);
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
bool by_memh(const Options& o, PyObject** buffer, bool writes, nb::object& held) {
  if (!given(o.memh)) [[likely]]
    return true;
  if (!PyObject_HasAttrString(o.memh, "_as_local")) {
    refuse(kInvalidParam, std::string("memh is ") + Py_TYPE(o.memh)->tp_name + ": it has to be what mem_map returned");
    return false;
  }
  held = nb::steal(PyObject_CallMethod(o.memh, "_as_local", "OO", *buffer, writes ? Py_True : Py_False));
  *buffer = held.ptr();
  return held.is_valid();
}

bool length_of(const char* method, const Options& o, uint64_t available, uint64_t* length) {
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

PyObject* transfer_list(Ep& ep, const char* method, OpKind kind, PyObject* list, uint64_t remote, PyObject* rkey_object,
                        const Options& o);

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
  Ep& ep = *nb::inst_ptr<Ep>(self);
  if (!usable(ep, method, kFeatureRma, "RMA")) [[unlikely]]
    return nullptr;
  Options o;
  bool plain = true;
  for (size_t i = 3; i < 10; ++i) plain = plain && !given(a[i]);
  if (!plain && !read_options(method, a[3], a[4], a[5], a[6], a[7], a[8], a[9], o)) return translated();
  uint64_t remote = 0;
  if (!to_u64(a[1], &remote)) return nullptr;
  if (o.has_datatype && (o.datatype & kClassMask) == kClassIov) {
    return transfer_list(ep, method, kind, a[0], remote, a[2], o);
  }
  const bool writes = kind == OpKind::read;
  PyObject* buffer = a[0];
  nb::object held;
  if (!by_memh(o, &buffer, writes, held)) return nullptr;
  if (!slice_ok(buffer, writes, method)) return nullptr;
  Buf b;
  if (!b.acquire(buffer, writes, nullptr)) return translated();
  uint64_t length = b.length;
  if ((o.has_count || o.has_datatype) && !length_of(method, o, b.length, &length)) return nullptr;
  if (length == 0) {  // as UCX: whatever the key and the address
    Py_INCREF(g_done);
    return g_done;
  }
  Rkey* rkey;
  uint64_t dest;
  if (!address_of(ep, method, a[2], &rkey, &dest)) [[unlikely]]
    return nullptr;
  if (rkey->length == 0) [[unlikely]] {
    refuse(kInvalidParam, std::string(method) +
                              ": the remote key is that of a region without bytes\n  try: map a region that has some");
    return nullptr;
  }
  EndpointCore* core = ep.worker->ep;
  bool device = false;
  if (!is_device(*core->box, b, method, writes, &device)) return translated();
  const Buf* bufs[] = {&b};
  const KeptMemory kept(b);
  return launch(ep, method, rkey, a[2], o, 1, writes, false, bufs, 1,
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
                    return core->ep->post_one(kind, b.data, length, dest, remote + rkey->bias, rkey->key, flags,
                                              context, 0, false);
                  };
                  if (length >= kReleaseGilBytes || device) {
                    const ReleasedGil released;
                    return post();
                  }
                  return post();
                });
}

// UCP_DATATYPE_IOV: pieces of local memory, one after the other at the remote address.
PyObject* transfer_list(Ep& ep, const char* method, OpKind kind, PyObject* list, uint64_t remote, PyObject* rkey_object,
                        const Options& o) {
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
  std::vector<KeptMemory> kept;
  std::vector<iovec> pieces;
  EndpointCore* core = ep.worker->ep;
  bool device = false;
  uint64_t total = 0;
  for (size_t i = 0; i < n; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(i));
    if (!by_memh(o, &item, writes, held[i]) || !slice_ok(item, writes, method)) return nullptr;
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
    Py_INCREF(g_done);
    return g_done;
  }
  Rkey* rkey;
  uint64_t dest;
  if (!address_of(ep, method, rkey_object, &rkey, &dest)) return nullptr;
  const size_t parts = (pieces.size() + nic::kIovMax - 1) / nic::kIovMax;
  uint64_t offset = 0;
  return launch(ep, method, rkey, rkey_object, o, parts, writes, false, pointers.data(), pointers.size(),
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
}

// HOT. put_nbx(buffer, remote_addr, rkey) and get_nbx of what is short, in host memory, and has a way: null without an
// error where it is anything else.
[[gnu::always_inline]] inline PyObject* transfer_plain(PyObject* self, const char* method, OpKind kind,
                                                       PyObject* const* args) {
  Ep& ep = *nb::inst_ptr<Ep>(self);
  if (!usable(ep, method, kFeatureRma, "RMA")) [[unlikely]]
    return nullptr;
  const bool writes = kind == OpKind::read;
  if (!PyLong_CheckExact(args[1])) return nullptr;
  if (!slice_ok(args[0], writes, method)) return nullptr;
  Buf b;
  if (!b.acquire(args[0], writes, nullptr)) return translated();
  if (b.length == 0 || b.length >= kReleaseGilBytes || b.iface != mem::kHmemSystem || b.bare) return nullptr;
  Rkey* rkey;
  uint64_t dest, remote = 0;
  if (!to_u64(args[1], &remote) || !address_of(ep, method, args[2], &rkey, &dest)) return nullptr;
  if (rkey->length == 0) [[unlikely]]
    return nullptr;
  const Buf* bufs[] = {&b};
  return attempt(ep, rkey, args[2], nullptr, false, bufs, 1, [&](uint64_t context, uint64_t flags) {
    return ep.worker->ep->ep->post_one(kind, b.data, b.length, dest, remote + rkey->bias, rkey->key, flags, context, 0,
                                       false);
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

PyObject* ep_atomic_op_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const char* const method = "atomic_op_nbx";
  PyObject* a[12];
  if (!parse_slow(g_atomic, args, nargs, kwnames, a)) return nullptr;
  Ep& ep = *nb::inst_ptr<Ep>(self);
  Options o;
  bool plain = true;
  for (size_t i = 4; i < 11; ++i) plain = plain && !given(a[i]);
  if (!plain && !read_options(method, a[4], a[5], a[6], a[7], a[8], a[9], a[10], o)) return translated();
  if (given(a[11])) o.reply = a[11];
  uint64_t opcode = 0, remote = 0;
  if (!to_u64(a[0], &opcode) || !to_u64(a[2], &remote)) return nullptr;

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
    operand = PyLong_AsUnsignedLongLongMask(a[1]);
    if (operand == ~uint64_t{0} && PyErr_Occurred()) return nullptr;
  } else {
    nb::object held;
    PyObject* buffer = a[1];
    if (!by_memh(o, &buffer, false, held) || !slice_ok(buffer, false, method)) return nullptr;
    if (!b.acquire_host(buffer, false)) return translated();
    if (!o.has_datatype) size = b.length;
  }
  if (size != 4 && size != 8) {
    refuse(kInvalidParam, std::string(method) + ": elements of " + std::to_string(size) +
                              " B\n  rule: the datatype is dt_make_contig(4) or dt_make_contig(8), and one element");
    return nullptr;
  }
  if (!number) {
    if (b.length < size) {
      refuse(kInvalidParam, std::string(method) + ": the buffer has " + std::to_string(b.length) + " B, the element " +
                                std::to_string(size));
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
  Rkey* rkey;
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
    return ep.worker->ep->ep->post_atomic(atomic);
  };
  if (o.flags == 0) [[likely]] {
    if (PyObject* r = attempt(ep, rkey, a[3], &o, quiet, bufs, replies ? 1 : 0, post); r != nullptr || PyErr_Occurred())
      return r;
  }
  const KeptMemory kept(reply);
  return launch(ep, method, rkey, a[3], o, 1, replies, quiet, bufs, replies ? 1 : 0,
                [&](size_t, uint64_t context, uint64_t flags) { return post(context, flags); });
}

// ---- flush ---------------------------------------------------------------------------------------------------------

PyObject* flush(nb::object worker_object, PyObject* ep_object, PyObject* param, PyObject* cb, PyObject* user_data,
                PyObject* flags_arg) {
  Worker& worker = *nb::inst_ptr<Worker>(worker_object);
  Ep* ep = ep_object != nullptr ? nb::inst_ptr<Ep>(ep_object) : nullptr;
  Options o;
  if (!read_options("flush_nbx", param, nullptr, cb, user_data, nullptr, flags_arg, nullptr, o)) return translated();
  if (!worker_usable(worker, "flush_nbx")) return nullptr;
  if (ep != nullptr && ep->closed) {
    refuse(kInvalidParam, "flush_nbx: the endpoint is closed");
    return nullptr;
  }
  collect(worker);
  const auto& under_way = ep != nullptr ? ep->under_way : worker.under_way;
  if (under_way.empty()) {
    std::string text;
    int status = take_lost(worker, ep, &text);
    if (status == kOk && ep != nullptr && ep->failed != kOk) status = ep->failed, text = ep->why;
    if (status != kOk) {
      refuse(status, "flush_nbx: " + text);
      return nullptr;
    }
    if ((o.flags & kNoImmCmpl) == 0) {
      Py_INCREF(g_done);
      return g_done;
    }
  }
  nb::object object = nb::steal(new_request());
  Request& r = *nb::inst_ptr<Request>(object);
  r.worker = std::move(worker_object);
  if (ep_object != nullptr) r.ep = nb::borrow(ep_object);
  if (given(o.cb)) r.cb = nb::borrow(o.cb);
  if (given(o.user_data)) r.user_data = nb::borrow(o.user_data);
  r.seq = worker.next_seq;  // all operations before this one have smaller numbers
  worker.flushes.push_back(object);
  return object.release().ptr();
}

Signature g_flush{"flush_nbx", {"param", "cb", "user_data", "flags"}, 1, 0, {}};

PyObject* worker_flush_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[4];
  if (!parse_slow(g_flush, args, nargs, kwnames, a)) return nullptr;
  return flush(nb::borrow(self), nullptr, a[0], a[1], a[2], a[3]);
}
PyObject* ep_flush_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[4];
  if (!parse_slow(g_flush, args, nargs, kwnames, a)) return nullptr;
  return flush(nb::inst_ptr<Ep>(self)->worker_object, self, a[0], a[1], a[2], a[3]);
}

// ---- waiting -------------------------------------------------------------------------------------------------------

// True once something is there to be progressed, or signal() was called; false at the timeout.
PyObject* worker_wait_core(PyObject* self, PyObject* timeout) {
  Worker& worker = *nb::inst_ptr<Worker>(self);
  if (!worker_usable(worker, "wait")) return nullptr;
  uint64_t deadline;
  if (!deadline_of(timeout, &deadline)) return nullptr;
  const nb::object keep = nb::borrow(self);
  if (end_flushes(worker) != 0 || !worker.to_call.empty() || !worker.failed.empty()) Py_RETURN_TRUE;
  nic::Domain* domain = worker.ep->box->domain.get();
  const auto cq = worker.cq->cq;
  const uint64_t downs = worker.downs;
  const int r = wait_for(*domain->nic(), cq->event, deadline, [&] {
    if (cq->signaled.load(std::memory_order_acquire) || domain->nic()->downs() != downs) return true;
    const nic::DomainLock guard(domain);
    return cq->unread() != 0;
  });
  if (r < 0) return nullptr;
  cq->signaled.store(false);
  return PyBool_FromLong(r);
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
PyMethodDef g_worker_methods[] = {
    {"progress", worker_progress, METH_NOARGS,
     "Moves operations on and calls callbacks (ucp_worker_progress). Returns how much was done; 0: nothing.\n\n"
     "An exception that a callback raises comes out of here, after the others were called.\n"
     "Source: UCP, ucp_worker_progress."},
    WEFT_METHOD(worker, flush_nbx,
                "As Endpoint.flush_nbx, for all endpoints of the worker (ucp_worker_flush_nbx).\n\n"
                "Source: UCP, ucp_worker_flush_nbx."),
    {"wait_core", worker_wait_core, METH_O, "True once progress() has something to do, or signal() was called."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot g_ep_slots[] = {{Py_tp_methods, g_ep_methods}, {0, nullptr}};
PyType_Slot g_worker_slots[] = {{Py_tp_methods, g_worker_methods}, {0, nullptr}};

// ---- memory of a peer, mapped here
// -----------------------------------------------------------------------------------

struct PeerMemory {
  std::byte* data = nullptr;
  size_t length = 0;
  bool readonly = false;
  std::shared_ptr<void> keep;
};
int peer_memory_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  auto* m = nb::inst_ptr<PeerMemory>(self);
  return PyBuffer_FillInfo(view, self, m->data, static_cast<Py_ssize_t>(m->length), m->readonly ? 1 : 0, flags);
}
PyType_Slot g_peer_memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(peer_memory_getbuffer)}, {0, nullptr}};

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
      "set_ucp_request",
      [](nb::type_object type, nb::object done) {
        g_request_type = reinterpret_cast<PyTypeObject*>(type.release().ptr());
        auto* r = nb::inst_ptr<Request>(done);
        r->status = kOk;
        g_done = done.release().ptr();
      },
      nb::arg("type"), nb::arg("done"), "Registers the class of requests, and the one of what was done in place.");
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

  nb::class_<PeerMemory>(m, "PeerMemory", nb::type_slots(g_peer_memory_slots),
                         "Bytes of a peer's process, mapped here: a buffer. They stay mapped while it lives.")
      .def_prop_ro("address", [](const PeerMemory& p) { return reinterpret_cast<uint64_t>(p.data); })
      .def_prop_ro("nbytes", [](const PeerMemory& p) { return p.length; });
  m.def(
      "peer_memory",
      [](EndpointCore& ep, uint64_t dest, uint64_t key, uint64_t addr, uint64_t length, bool writable) -> nb::object {
        const uint32_t want = mem::kRemoteRead | (writable ? mem::kRemoteWrite : 0);
        const auto w = ep.ep->window(dest, key, addr, length, want);
        if (w.status != Status::ok) return nb::int_(static_cast<int>(w.status));
        if (w.pointer == nullptr) return nb::none();
        auto p = std::make_unique<PeerMemory>();
        p->data = w.pointer;
        p->length = length;
        p->readonly = !writable;
        p->keep = w.keep;
        return nb::cast(std::move(p));
      },
      nb::arg("ep"), nb::arg("dest"), nb::arg("key"), nb::arg("addr"), nb::arg("length"), nb::arg("writable"),
      nb::sig("def peer_memory(ep: EndpointCore, dest: int, key: int, addr: int, length: int, writable: bool) -> "
              "PeerMemory | int | None"),
      "A peer's bytes as this process has them mapped; None where loads and stores do not get there; a number of the\n"
      "NIC's statuses where it is refused (16: not yet, try again).");

  nb::class_<Request>(m, "UcpRequestCore", "The NIC's side of a request.")
      .def(nb::init<>())
      .def("__bool__", [](nb::handle self) { return self.ptr() != g_done; })
      .def_prop_ro("status_code", [](const Request& r) { return r.status; })
      .def_prop_ro("text", [](const Request& r) { return r.text; })
      .def_prop_ro(
          "worker", [](const Request& r) { return r.worker.is_valid() ? r.worker : nb::none(); },
          nb::sig("def worker(self) -> Any"))
      .def_prop_ro(
          "ep", [](const Request& r) { return r.ep.is_valid() ? r.ep : nb::none(); }, nb::sig("def ep(self) -> Any"))
      .def_prop_rw("freed", [](const Request& r) { return r.freed; }, [](Request& r, bool on) { r.freed = on; });

  nb::class_<Context, DomainCore>(m, "UcpContextCore", nb::type_slots(g_context_slots), "The NIC's side of a context.")
      .def(
          "__init__",
          [](Context* self, PyNic& nic, uint64_t access) {
            new (self) Context(make_domain(nic, {0, false, true, false}));
            self->box->hmem = true;
            self->access = access;
            // Counted keys never come again, and have the upper bit clear: those of symmetric regions have it set.
            self->next_key = self->box->domain->nic()->random().next() >> 2;
          },
          nb::arg("nic"), nb::arg("access"))
      .def("take_key", [](Context& c) { return c.next_key++; }, "A key that no region of this context ever had.");

  nb::class_<Worker>(m, "UcpWorkerCore", nb::type_slots(g_worker_slots), "The NIC's side of a worker.")
      .def(
          "__init__",
          [](Worker* self, nb::object domain, nb::object cq, nb::object av, nb::object ep, uint32_t features) {
            new (self) Worker();
            self->cq = nb::inst_ptr<CompletionQueueCore>(cq);
            self->ep = nb::inst_ptr<EndpointCore>(ep);
            self->domain_object = std::move(domain);
            self->cq_object = std::move(cq);
            self->av_object = std::move(av);
            self->ep_object = std::move(ep);
            self->features = features;
            self->downs = self->ep->box->domain->nic()->downs();
          },
          nb::arg("domain"), nb::arg("cq"), nb::arg("av"), nb::arg("ep"), nb::arg("features"),
          nb::sig("def __init__(self, domain: DomainCore, cq: CompletionQueueCore, av: AddressVectorCore, ep: "
                  "EndpointCore, features: int) -> None"))
      .def("fence", [](Worker& w) { ++w.fence; })
      .def(
          "arm_core",
          [](Worker& w) {
            const auto& cq = w.cq->cq;
            const bool signaled = cq->signaled.exchange(false);
            if (w.cq->notifier) {
              const nic::DomainLock guard(w.ep->box->domain.get());
              if (cq->unread() == 0) w.cq->notifier->drain();
            }
            return !signaled && end_flushes(w) == 0 && w.to_call.empty() && w.failed.empty() &&
                   w.downs == w.ep->box->domain->nic()->downs();
          },
          "False where there is something to progress that no entry of the queue tells of, or signal() was called.")
      .def(
          "under_way", [](const Worker& w) { return w.under_way.size(); }, "Operations that are not done yet.")
      .def(
          "cancel_flush",
          [](Worker& w, nb::object request) {
            const auto it = std::ranges::find_if(w.flushes, [&](const nb::object& f) { return f.is(request); });
            if (it == w.flushes.end()) return false;
            Request& r = *nb::inst_ptr<Request>(request);
            w.flushes.erase(it);
            r.seq = 0;
            r.first_failure = kCanceled;
            r.text = "canceled";
            finish(w, std::move(request), r);
            return true;
          },
          nb::arg("request"), nb::sig("def cancel_flush(self, request: Any) -> bool"))
      .def("shut", [](Worker& w) {
        if (w.closed) return;
        if (!w.ep->box->forked()) {
          collect(w);
          for (nb::object& f : std::exchange(w.flushes, {})) {
            Request& r = *nb::inst_ptr<Request>(f);
            r.seq = 0;
            r.first_failure = kCanceled;
            r.text = "the worker was destroyed";
            r.cb = nb::object();
            finish(w, std::move(f), r);
          }
        }
        w.closed = true;
      });

  nb::class_<Ep>(m, "UcpEndpointCore", nb::type_slots(g_ep_slots), "The NIC's side of a UCP endpoint: its data path.")
      .def(
          "__init__",
          [](nb::pointer_and_handle<Ep> self, nb::object worker, uint64_t dest, bool watched) {
            new (self.p) Ep();
            self.p->self = self.h.ptr();
            self.p->worker = nb::inst_ptr<Worker>(worker);
            self.p->worker_object = std::move(worker);
            self.p->dest = dest;
            self.p->fence = self.p->worker->fence;
            self.p->watched = watched;
            self.p->worker->eps.insert(self.p);
          },
          nb::arg("worker"), nb::arg("dest"), nb::arg("watched"),
          nb::sig("def __init__(self, worker: UcpWorkerCore, dest: int, watched: bool) -> None"))
      .def_prop_ro("dest", [](const Ep& e) { return e.dest; })
      .def_prop_ro("failed_status", [](const Ep& e) { return e.failed; })
      .def_prop_ro("why", [](const Ep& e) { return e.why; })
      .def("under_way", [](const Ep& e) { return e.under_way.size(); })
      .def(
          "begin_close", [](Ep& e) { e.closing = true; }, "From here on it takes no operations.")
      .def("shut", [](Ep& e) {
        e.closed = true;
        e.worker->eps.erase(&e);
      });

  nb::class_<Rkey> rkey(m, "UcpRkeyCore", "The NIC's side of a remote key.");
  rkey.def(
          "__init__",
          [](Rkey* self, nb::object ep, uint64_t key, uint64_t dest, uint64_t address, uint64_t length, uint64_t bias,
             bool symmetric) {
            new (self) Rkey();
            self->ep = nb::inst_ptr<Ep>(ep);
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
      .def_ro("key", &Rkey::key)
      .def_ro("dest", &Rkey::dest)
      .def_ro("address", &Rkey::address)
      .def_ro("length", &Rkey::length)
      .def_ro("bias", &Rkey::bias)
      .def_ro("symmetric", &Rkey::symmetric)
      .def_ro("destroyed", &Rkey::destroyed)
      .def_ro("in_flight", &Rkey::in_flight)
      .def("forget", [](Rkey& r) { r.destroyed = true; });
  g_rkey_type = reinterpret_cast<PyTypeObject*>(rkey.ptr());
}

}  // namespace weft::bind
