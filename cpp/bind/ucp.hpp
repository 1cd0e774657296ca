// cpp/bind/ucp.hpp: the objects of weft.ucp's data path, shared by bind/ucp_post, ucp_transfer and ucp_atomic
// (posting), ucp_worker (completion, flush, waiting) and ucp_types. Their state machine, without Python, is cpp/ucp.
//
// All code here runs under the GIL, except long copies and sleeping.
#pragma once

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <atomic>

#include "bind/common.hpp"
#include "nic/queue.hpp"
#include "ucp/worker.hpp"

namespace weft::bind {

using ucp::kCanceled, ucp::kInvalidParam, ucp::kIoError, ucp::kNoResource, ucp::kOk, ucp::kUnsupported;

// ucp_op_attr_t
constexpr uint64_t kAttrCallback = 1u << 1, kAttrUserData = 1u << 2, kAttrDatatype = 1u << 3, kAttrFlags = 1u << 4,
                   kAttrReply = 1u << 5, kAttrMemh = 1u << 8, kNoImmCmpl = 1u << 16, kFastCmpl = 1u << 17,
                   kForceImmCmpl = 1u << 18, kMultiSend = 1u << 19;

struct UcpWorker;

// The base that holds Python objects comes first, so that it outlives the cpp/ucp base, whose destructor needs them.
struct UcpEpRefs {
  nb::object worker_object;
};
struct UcpEp : UcpEpRefs, ucp::Endpoint {
  UcpEp(nb::object worker, UcpWorker& of);
  UcpWorker* worker;
  PyObject* self = nullptr;
  uint64_t dest = 0, fence = 0;
  bool closing = false;  // close_nbx() waits for the posted operations
  bool watched = false;  // UCP_ERR_HANDLING_MODE_PEER
};

// ucp_rkey_h
struct UcpRkey {
  UcpEp* ep = nullptr;
  nb::object owner;  // the endpoint's object
  uint64_t key = 0, dest = 0, address = 0, length = 0;
  uint64_t bias = 0;       // added to an address of the owner to get the address in its memory table
  bool symmetric = false;  // valid on every endpoint of the worker whose peer has a region of the same layout
  bool destroyed = false;
  uint32_t in_flight = 0;
};

struct UcpRequestRefs {
  nb::object cb, user_data, worker_object, ep_object, rkey;
  std::vector<nb::object> keep;     // buffers
  nb::object delivers;              // local buffers of imported memory, from which a get forwards its bytes
  std::vector<nb::object> waiters;  // futures of tasks that await the request
  PyObject* self = nullptr;         // of a flush: the worker's reference to the request
};
struct UcpRequest : UcpRequestRefs, ucp::Request {};

struct UcpWorker : ucp::Worker {
  nb::object domain_object, cq_object, av_object, ep_object;
  CompletionQueueCore* cq = nullptr;
  EndpointCore* nic_ep = nullptr;
  uint32_t features = 0;
  uint64_t fence_count = 0, downs = 0;
  uint32_t sleepers = 0;            // threads in wait_core()
  std::vector<nb::object> to_call;  // requests whose callback is due
  std::vector<nb::object> to_wake;  // futures of tasks whose request has ended
  std::vector<nb::object> failed;   // endpoints whose error handler is due
  PyObject* spare = nullptr;        // a request for the next operation
  bool closed = false;
  host::PollPacer pacer;
  ~UcpWorker() { Py_XDECREF(spare); }
  [[nodiscard]] bool due() const noexcept { return !to_call.empty() || !failed.empty(); }
};

// The optional arguments of an operation, converted.
struct UcpOptions {
  uint64_t flags = 0, datatype = 0, count = 0;
  bool has_datatype = false, has_count = false;
  PyObject *cb = nullptr, *user_data = nullptr, *memh = nullptr, *reply = nullptr;  // borrowed
  std::unique_ptr<std::array<nb::object, 4>> held;  // owns the objects if they come from a RequestParam
};

inline bool given(PyObject* o) {
  return o != nullptr && o != Py_None;
}

extern PyTypeObject* g_ucp_request_type;
extern PyTypeObject* g_ucp_rkey_type;
extern PyObject* g_ucp_done;  // the request returned for operations done in place

// Sets UcsError (status, message).
void refuse(int status, const std::string& message);
// Turns the current fi error, raised by a shared function, into a UcsError. Returns null.
PyObject* translated();
// Converts an unsigned argument; false with UcsError (INVALID_PARAM: out of range) or TypeError (not a number) set.
bool ucp_u64(const char* method, const char* name, PyObject* o, uint64_t* out);
// Reads a RequestParam and the keywords; false with an error set.
bool read_options(const char* method, PyObject* param, PyObject* count, PyObject* cb, PyObject* user_data,
                  PyObject* memh, PyObject* flags, PyObject* datatype, UcpOptions& o);

PyObject* new_request();
// Sends the bytes of a successful get on to the owner of imported memory; false with UcsError set.
bool deliver(const nb::object& delivers);
bool worker_usable(UcpWorker& worker, const char* method);
// Takes completions from the NIC's queue. progress() calls the callbacks.
size_t collect(UcpWorker& worker);
// Acts on the state machine's outcome of a completion: queues callbacks, handlers and waiting tasks.
void follow(UcpWorker& worker, nb::object request, ucp::Worker::Outcome outcome);

PyObject* ep_flush_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
void register_ucp_worker(Module& m);

}  // namespace weft::bind
