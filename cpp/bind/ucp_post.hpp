// cpp/bind/ucp_post.hpp: posting the transfers and atomics of weft.ucp, and their requests.
//
// HOT: attempt(). An operation done by load and store has ended when the call returns: it allocates nothing, writes no
// completion, and keeps its unused request for the next call. Benchmark: bench/bench_ucp.py.
//
// All code here runs under the GIL, except long copies.
#pragma once

#include "bind/held_error.hpp"
#include "bind/ucp.hpp"

namespace weft::bind {

using nic::OpKind;

bool usable(UcpEp& ep, const char* method, uint32_t feature);
// Resolves the destination of an operation with this key; false with an error set. HOT.
bool address_of(UcpEp& ep, const char* method, PyObject* rkey, UcpRkey** out, uint64_t* dest);
// Fills in the request of an operation under way, and returns the call's result.
[[gnu::noinline]] PyObject* begun(UcpEp& ep, PyObject* object, UcpRkey* rkey, PyObject* rkey_object,
                                  const UcpOptions* o, bool quiet, const Buf* const* bufs, size_t buf_count);
// Checks PROT_LOCAL_READ or PROT_LOCAL_WRITE of the region of a slice.
bool slice_ok(PyObject* buffer, bool writes, const char* method);
// Checks the buffer of a call with memh against the handle, and replaces the buffer by the handle's memory.
bool by_memh(UcpEp& ep, const UcpOptions& o, PyObject** buffer, bool writes, nb::object& held);
// The owner of the memory of the mapped regions in which a bare buffer lies; invalid if there are none. An operation
// under way keeps it, as it keeps a slice's owner: after ucp_mem_unmap its late reply must not reach what is mapped
// there next. Looks at all regions of the process: 2.5 us for 1,000 of them.
nb::object mapped_memory(const UcpEp& ep, const Buf& buffer);
// The same for a call that releases the GIL: another thread may unmap the memory during the call.
inline void keep_mapped(const UcpEp& ep, Buf& buffer) {
  if (nb::object memory = mapped_memory(ep, buffer); memory.is_valid()) buffer.keepalive = memory.release().ptr();
}

// HOT. Tries one operation in place, with the GIL and without options; null without an error: use launch() instead.
// Keeps an unused request for the next operation.
template <typename Post>
[[gnu::always_inline]] inline PyObject* attempt(UcpEp& ep, UcpRkey* rkey, PyObject* rkey_object, const UcpOptions* o,
                                                bool quiet, const Buf* const* bufs, size_t buf_count, Post&& post) {
  UcpWorker& worker = worker_of(ep);
  if (ep.fence != worker.fence_count || worker.spare == nullptr) [[unlikely]]
    return nullptr;
  PyObject* object = worker.spare;
  const nic::PostResult r = post(reinterpret_cast<uint64_t>(object), nic::flag::kIfUnfinished);
  if (r.refusal != nic::Refusal::none) [[unlikely]]
    return nullptr;
  if (!r.context_used) [[likely]]
    return Py_NewRef(g_ucp_done);
  worker.spare = nullptr;  // the queue has this reference, and the caller gets another
  Py_INCREF(object);
  nb::inst_ptr<UcpRequest>(object)->parts = 1;
  return begun(ep, object, rkey, rkey_object, o, quiet, bufs, buf_count);
}

// The Python object of a request, for ucp::launch().
struct UcpHolder {
  UcpWorker& worker;
  PyObject* object;
  void keep() const { Py_INCREF(object); }
  void forget() const { Py_DECREF(object); }
  size_t collect() const { return bind::collect(worker); }
  bool wait();
  Backoff backoff{32, 64};
};

// Posts an operation in one or more parts by `post(part, context, flags)`, and returns the call's result. Not inlined:
// its registers and strings would be the caller's, whose operation has most often ended in attempt().
template <typename Post>
[[gnu::noinline]] PyObject* launch(UcpEp& ep, const char* method, UcpRkey* rkey, PyObject* rkey_object,
                                   const UcpOptions& o, size_t parts, bool replies, bool quiet, const Buf* const* bufs,
                                   size_t buf_count, Post&& post) {
  using End = ucp::Launched::End;
  if (replies && (o.flags & ucp::kForceImmCmpl) != 0) return refuse(method, ucp::never_immediate());
  UcpWorker& worker = worker_of(ep);
  PyObject* object = std::exchange(worker.spare, nullptr);
  if (object == nullptr) object = new_request();
  UcpRequest& request = *nb::inst_ptr<UcpRequest>(object);
  UcpHolder holder{worker, object};
  const auto launched = ucp::launch(ep, request, o.flags, parts, holder, [&](size_t part, uint64_t flags) {
    return post(part, reinterpret_cast<uint64_t>(object), flags);
  });
  if (launched.end == End::under_way) return begun(ep, object, rkey, rkey_object, &o, quiet, bufs, buf_count);
  if (launched.end == End::done) [[likely]] {
    worker.spare == nullptr ? void(worker.spare = object) : Py_DECREF(object);
    return Py_NewRef(g_ucp_done);
  }
  if (launched.end == End::refused) refuse(method, launched.why);
  if (!launched.partly) {
    Py_DECREF(object);
    return nullptr;
  }
  // Some parts are under way. A flush waits for them; the caller gets this error.
  const HeldError error;
  request.freed = true;
  Py_XDECREF(begun(ep, object, rkey, rkey_object, nullptr, false, bufs, buf_count));
  return nullptr;
}

PyObject* ep_put_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_get_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_atomic_op_nbx(PyObject* self, PyObject* (&a)[12]);

}  // namespace weft::bind
