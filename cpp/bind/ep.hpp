// cpp/bind/ep.hpp: shared by the files of an endpoint (ep, rma, atomic, arglist).
#pragma once

#include <array>
#include <string_view>
#include <type_traits>

#include "bind/objects.hpp"
#include "call/msg.hpp"

namespace weft::bind {

using nic::OpKind;
using nic::Refusal;

// HOT. As nb::inst_ptr(), without its call: nanobind puts the C++ object of an instance behind a header of this size.
// Each __init__() checks that.
inline EndpointCore* self_of(PyObject* self) noexcept {
  return reinterpret_cast<EndpointCore*>(reinterpret_cast<std::byte*>(self) + sizeof(PyObject) + sizeof(uint64_t));
}

// Sets the error of a refusal.
Failed refuse(EndpointCore* core, const char* method, const call::Why& why);
Failed refuse(EndpointCore* core, const char* method, Refusal refusal, uint64_t dest, uint64_t total);
Failed refuse_forked(EndpointCore* core, const char* method);

// HOT. Checks before a call, and drops references of finished operations. False with an error set in a forked child.
inline bool usable(EndpointCore* core, const char* method) {
  if (core->box->forked()) [[unlikely]]
    return refuse_forked(core, method);
  core->box->drain();
  return true;
}

// The context of an inject call, which has none of its own, for the entry of its failure: the endpoint's, or empty.
inline nb::object inject_context(PyObject* self) {
  if (!self_of(self)->tells_context) [[likely]]
    return {};
  PyObject* found = PyObject_GetAttr(self, interned<"context">());
  if (found == nullptr) PyErr_Clear();
  return nb::steal(found);
}

// Keeps the buffers of an operation that is under way.
void hold_buffers(EndpointCore* core, uint64_t op_id, const Buf* const* bufs, size_t count);

// Whether the call may copy for long, so that other Python threads should run meanwhile.
constexpr size_t kReleaseGilDescs = 64;
inline bool takes_long(const call::Transfer& t) {
  return t.local.length >= kReleaseGilBytes || t.device;
}
inline bool takes_long(const call::Batch& b) {
  return b.descs.size() > kReleaseGilDescs || b.device;
}
template <typename ListCall>
bool takes_long(const ListCall& c) {
  return c.total >= kReleaseGilBytes || c.device != 0;
}

// Posts, without the GIL for a long copy. kept: the buffers.
template <typename Call>
nic::PostResult post_released(EndpointCore* core, const Call& call, std::span<const Buf* const> kept) {
  if (!takes_long(call)) [[likely]]
    return call::post(*core->ep, call);
  std::array<PyObject*, nic::kIovMax> memory;
  for (size_t i = 0; i < kept.size(); ++i) {
    memory[i] = kept[i]->region_memory();
    Py_XINCREF(memory[i]);
  }
  nic::PostResult r;
  {
    const ReleasedGil released;
    r = call::post(*core->ep, call);
  }
  for (size_t i = 0; i < kept.size(); ++i) Py_XDECREF(memory[i]);
  return r;
}

// HOT. Checks a call with these buffers, posts it, and keeps the buffers if the operation outlasts the call. peer,
// total: for the text of a refusal. inject: the data is copied, and no success is
// reported; the context, if any, is for a failure.
template <typename Call>
PyObject* check_and_post(EndpointCore* core, const char* method, Call& c, PyObject* context, bool inject,
                         std::span<const Buf* const> bufs, const uint64_t& peer, const uint64_t& total) {
  call::Why why;
  if (call::check(*core->ep, c, &why) != Refusal::none) [[unlikely]]
    return refuse(core, method, why);
  c.flags |= std::is_same_v<Call, call::Send> ? core->lane : core->one_sided;
  const bool has_context = !inject || context != nullptr;
  if (context == nullptr) context = Py_None;
  if (has_context) {
    Py_INCREF(context);
    c.context = reinterpret_cast<uint64_t>(context);
  }
  const nic::PostResult r = post_released(core, c, bufs);
  if (has_context && !r.context_used) Py_DECREF(context);
  if (r.refusal != Refusal::none) [[unlikely]]
    return refuse(core, method, r.refusal, peer, total);
  if (r.op_id != 0 && !inject) [[unlikely]]  // injected data was copied
    hold_buffers(core, r.op_id, bufs.data(), bufs.size());
  Py_RETURN_NONE;
}
// Converts addr and key; both are required, because a transfer without a key would access the region with key 0.
bool target_ok(const char* method, PyObject* addr, PyObject* key, uint64_t* addr_out, uint64_t* key_out);

// Converts a buffer's descriptor argument; false with a Python error set.
bool convert_desc_slow(EndpointCore* core, PyObject* desc, const char* method, call::Local* local);
// HOT.
inline bool convert_desc(EndpointCore* core, PyObject* desc, const char* method, call::Local* local) {
  return desc == nullptr || desc == Py_None || convert_desc_slow(core, desc, method, local);
}
// Checks a host or device buffer (*device: which of them); for callers that post by themselves.
bool check_buffer(EndpointCore* core, const Buf& buf, const char* method, bool writable, bool* device);

extern PyType_Slot g_endpoint_slots[];  // ep_methods.cpp

// A call with a message struct that is queued as deferred work instead of posted (trigger.cpp).
struct Deferral;

using EpMethod = PyObject*(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
#define WEFT_CALL(name, params, doc) EpMethod ep_##name;
#include "bind/calls.inl"
// The bit of a call in EndpointCore::goes; raises if an endpoint has no such call.
uint64_t bit_of(std::string_view call);
// The calls above whose arguments are a message struct; later: they are queued, and nothing is posted.
PyObject* transfer_msg(EndpointCore* core, const char* method, OpKind kind, PyObject* msg, PyObject* flags,
                       Deferral* later = nullptr);
PyObject* send_msg(EndpointCore* core, const char* method, bool tagged, PyObject* msg, PyObject* flags,
                   Deferral* later = nullptr);
PyObject* recv_msg(EndpointCore* core, const char* method, bool tagged, PyObject* msg, PyObject* flags,
                   Deferral* later = nullptr);
struct ListAtomic;  // atomic_args.hpp
PyObject* atomic_msg(EndpointCore* core, const char* method, nic::AtomicFamily family, ListAtomic p,
                     Deferral* later = nullptr);

nb::dict message_statistics(nic::Endpoint& ep);
nb::tuple unreceived(nic::Endpoint& ep, size_t max);

}  // namespace weft::bind
