// cpp/bind/ep.hpp: what the files of an endpoint (ep, rma, atomic, arglist) share.
#pragma once

#include "bind/desc.hpp"
#include "bind/objects.hpp"

namespace weft::bind {

using nic::OpKind;
using nic::Refusal;

constexpr uint64_t kMsgFlags = nic::flag::kRemoteCqData | nic::flag::kCompletion | nic::flag::kMore |
                               nic::flag::kInject | nic::flag::kInjectComplete | nic::flag::kTransmitComplete |
                               nic::flag::kDeliveryComplete | nic::flag::kFence | nic::flag::kCommitComplete;

inline EndpointCore* self_of(PyObject* self) {
  return nb::inst_ptr<EndpointCore>(self);
}

bool usable(EndpointCore* core, bool capable, const char* method, const char* needs);
bool refuse(EndpointCore* core, const char* method, Refusal refusal, uint64_t dest, uint64_t total);
// Keeps the buffers of an operation that is under way.
bool hold_buffers(EndpointCore* core, uint64_t op_id, const Buf* const* bufs, size_t count);
bool inject_length_ok(EndpointCore* core, const char* method, uint64_t length);
// Where at the peer: both are asked for, because a transfer that forgot one would go to the region with key 0.
bool target_ok(const char* method, PyObject* addr, PyObject* key, wire::RmaRange* range);
bool flags_ok(uint64_t flags, uint64_t allowed, const char* method);
bool present(const char* method, std::initializer_list<std::pair<PyObject*, const char*>> args);

PyObject* ep_write(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_read(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_writedata(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_inject_write(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_inject_writedata(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_readv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_writev(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_readmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_writemsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_read_batch(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_write_batch(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_inject_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_fetch_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_compare_atomic(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_atomicv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_fetch_atomicv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_compare_atomicv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_atomicmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_fetch_atomicmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_compare_atomicmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

}  // namespace weft::bind
