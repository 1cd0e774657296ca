// cpp/bind/ucp_post.hpp: posting the transfers and atomics of weft.ucp, and their requests.
//
// HOT: attempt(). An operation done by load and store has ended when the call returns: it allocates nothing, writes no
// completion, and keeps its unused request for the next call. Benchmark: bench/bench_ucp.py.
//
// All code here runs under the GIL, except long copies.
#pragma once

#include "bind/ucp.hpp"

namespace weft::bind {

using nic::OpKind;
using nic::Refusal;

// ucp_datatype_t
constexpr uint64_t kClassMask = 7, kClassContig = 0, kClassIov = 2, kClassShift = 3;
// Features of a context.
constexpr uint32_t kFeatureRma = 2, kFeatureAmo32 = 4, kFeatureAmo64 = 8;

std::string hex(uint64_t n);
bool usable(UcpEp& ep, const char* method, uint32_t feature, const char* feature_name);
// Resolves the destination of an operation with this key; false with an error set. HOT.
bool address_of(UcpEp& ep, const char* method, PyObject* rkey, UcpRkey** out, uint64_t* dest);
// Fills in the request of an operation under way, and returns the call's result.
[[gnu::noinline]] PyObject* begun(UcpEp& ep, PyObject* object, UcpRkey* rkey, PyObject* rkey_object,
                                  const UcpOptions* o, bool quiet, const Buf* const* bufs, size_t buf_count);
// Checks PROT_LOCAL_READ or PROT_LOCAL_WRITE of the region of a slice.
bool slice_ok(PyObject* buffer, bool writes, const char* method);
// Checks the buffer of a call with memh against the handle, and replaces the buffer by the handle's memory.
bool by_memh(UcpEp& ep, const UcpOptions& o, PyObject** buffer, bool writes, nb::object& held);
// What owns the memory of the mapped regions in which a bare buffer lies; invalid if there are none. An operation under
// way keeps it, as it keeps that of a slice: after ucp_mem_unmap its late reply must not reach what is mapped there
// next. Looks at all regions of the process: 2.5 us for 1,000 of them.
nb::object mapped_memory(const UcpEp& ep, const Buf& buffer);
// The same for a call that releases the GIL: another thread may unmap the memory during the call.
inline void keep_mapped(const UcpEp& ep, Buf& buffer) {
  if (nb::object memory = mapped_memory(ep, buffer); memory.is_valid()) buffer.keepalive = memory.release().ptr();
}

// Calls `post` until there is room for the operation; false with an error set (Ctrl-C).
template <typename Post>
bool with_room(UcpWorker& worker, Post&& post, nic::PostResult* r) {
  Backoff backoff(32, 64);
  for (;;) {
    *r = post();
    if (r->refusal != Refusal::cq_full && r->refusal != Refusal::tx_full) [[likely]]
      return true;
    // Finished operations make room. progress() calls their callbacks later.
    if (collect(worker) == 0) {
      nic::Nic* nic = worker.nic_ep->box->domain->nic();
      const ReleasedGil released;
      nic->progress(!nic->has_engine());
      backoff.pause();
    }
    if (PyErr_CheckSignals() != 0) return false;
  }
}

// HOT. Tries one operation in place, with the GIL and without options; null without an error: use launch() instead.
// Keeps an unused request for the next operation.
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
  worker.spare = nullptr;  // the queue has this reference, and the caller gets another
  Py_INCREF(object);
  nb::inst_ptr<UcpRequest>(object)->parts = 1;
  return begun(ep, object, rkey, rkey_object, o, quiet, bufs, buf_count);
}

// Posts an operation in one or more parts by `post(part, context, flags)`, and returns the call's result.
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
  request.parts = 1;  // our own, dropped when all parts are posted: completions may come earlier
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
          refuse(kNoResource, std::string(method) +
                                  ": FORCE_IMM_CMPL: the operation would not end within the call (the peer's memory is "
                                  "not mapped here yet, or is reached through its engine)\n"
                                  "  try: without FORCE_IMM_CMPL");
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
      // Some parts are under way. They end by themselves and a flush waits for them; the caller gets this error.
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
  if (now) [[unlikely]] {  // the owner's table refused the operation: the error entry is already in the queue
    while (request.parts != 0 && collect(worker) != 0) continue;
    refuse(request.first_failure, std::string(method) + ": " + request.text);
    Py_DECREF(object);
    return nullptr;
  }
  return begun(ep, object, rkey, rkey_object, &o, quiet, bufs, buf_count);
}

PyObject* ep_put_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_get_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_atomic_op_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

}  // namespace weft::bind
