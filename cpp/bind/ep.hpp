// cpp/bind/ep.hpp: shared by the files of an endpoint (ep, rma, atomic, arglist).
#pragma once

#include "bind/objects.hpp"

namespace weft::bind {

using nic::OpKind;
using nic::Refusal;

inline EndpointCore* self_of(PyObject* self) {
  return nb::inst_ptr<EndpointCore>(self);
}

// Sets the error of a refusal; returns false.
bool refuse(EndpointCore* core, const char* method, const call::Why& why);
bool refuse(EndpointCore* core, const char* method, Refusal refusal, uint64_t dest, uint64_t total);
bool refuse_forked(EndpointCore* core, const char* method);

// HOT. Checks before a call: drops references of finished operations; false with an error set in a forked child.
inline bool usable(EndpointCore* core, const char* method) {
  if (core->box->forked()) [[unlikely]]
    return refuse_forked(core, method);
  core->box->drain();
  return true;
}

// The context of an operation: a reference that the NIC owns until the operation ends.
class OpContext {
 public:
  explicit OpContext(PyObject* o) : object_(o != nullptr ? o : Py_None) { Py_INCREF(object_); }
  ~OpContext() { Py_XDECREF(object_); }
  OpContext(const OpContext&) = delete;
  OpContext& operator=(const OpContext&) = delete;
  [[nodiscard]] uint64_t value() const noexcept { return reinterpret_cast<uint64_t>(object_); }
  void used() noexcept { object_ = nullptr; }

 private:
  PyObject* object_;
};

// Keeps the buffers of an operation that is under way.
void hold_buffers(EndpointCore* core, uint64_t op_id, const Buf* const* bufs, size_t count);
// Converts addr and key; both are required, because a transfer without a key would access the region with key 0.
bool target_ok(const char* method, PyObject* addr, PyObject* key, uint64_t* addr_out, uint64_t* key_out);
bool present(const char* method, std::initializer_list<std::pair<PyObject*, const char*>> args);

// Converts a buffer's descriptor argument; false with a Python error set.
bool convert_desc_slow(EndpointCore* core, PyObject* desc, const char* method, call::Local* local);
// HOT.
inline bool convert_desc(EndpointCore* core, PyObject* desc, const char* method, call::Local* local) {
  return desc == nullptr || desc == Py_None || convert_desc_slow(core, desc, method, local);
}
// Checks a host or device buffer (*device: which of them); for callers that post by themselves.
bool check_buffer(EndpointCore* core, const Buf& buf, const char* method, bool writable, bool* device);

PyObject* ep_write(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_read(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_writedata(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_inject_write(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_inject_writedata(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_readv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_writev(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_readmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_writemsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyObject* ep_writedatamsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
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
