// cpp/bind/ucp.hpp: the objects of weft.ucp's data path, shared by bind/ucp_post, ucp_transfer and ucp_atomic
// (posting), ucp_worker (completion, flush, waiting) and ucp_types. Their state machine, without Python, is cpp/ucp.
//
// All code here runs under the GIL, except long copies and sleeping.
#pragma once

#include <array>

#include "bind/common.hpp"
#include "ucp/post.hpp"

namespace weft::bind {

using ucp::kInvalidParam, ucp::kIoError, ucp::kOk;

// ucp_op_attr_t
constexpr uint64_t kAttrCallback = 1u << 1, kAttrUserData = 1u << 2, kAttrDatatype = 1u << 3, kAttrFlags = 1u << 4,
                   kAttrReply = 1u << 5, kAttrMemh = 1u << 8;

struct UcpWorker;

// The base that holds Python objects comes first, so that it outlives the cpp/ucp base, whose destructor needs them.
struct UcpEpRefs {
  nb::object worker_object;
};
struct UcpEp : UcpEpRefs, ucp::Peer {
  UcpEp(nb::object worker, UcpWorker& of);
  PyObject* self = nullptr;
};

// ucp_rkey_h
struct UcpRkey : ucp::Rkey {
  nb::object owner;  // the endpoint's object
};

struct UcpRequestRefs {
  nb::object cb, user_data, worker_object, ep_object, rkey;
  std::vector<nb::object> keep;     // buffers
  nb::object delivers;              // local buffers of imported memory, from which a get forwards its bytes
  std::vector<nb::object> waiters;  // futures of tasks that await the request
  PyObject* self = nullptr;         // of a flush: the worker's reference to the request
};
struct UcpRequest : UcpRequestRefs, ucp::Request {};

struct UcpWorker : ucp::Port {
  nb::object domain_object, cq_object, av_object, ep_object;
  CompletionQueueCore* cq = nullptr;
  EndpointCore* nic_ep = nullptr;
  uint32_t sleepers = 0;            // threads in wait_core()
  std::vector<nb::object> to_call;  // requests whose callback is due
  std::vector<nb::object> to_wake;  // futures of tasks whose request has ended
  std::vector<nb::object> failed;   // endpoints whose error handler is due
  PyObject* spare = nullptr;        // a request for the next operation
  host::PollPacer pacer;
  ~UcpWorker() { Py_XDECREF(spare); }
  [[nodiscard]] bool due() const noexcept { return !to_call.empty() || !failed.empty(); }
};

inline UcpWorker& worker_of(const UcpEp& ep) {
  return static_cast<UcpWorker&>(*ep.port);
}

// The optional arguments of an operation, converted.
struct UcpOptions : ucp::Amount {
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
Failed refuse(int status, const std::string& message);
// The same for a refusal of cpp/ucp.
Failed refuse(const char* method, const ucp::Refused& why);
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

PyObject* ep_flush_nbx(PyObject* self, PyObject* (&a)[4]);

}  // namespace weft::bind
