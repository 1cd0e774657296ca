// bench/peers/ofi_calls.cpp: libfabric's own calls for bench_ofi.py, on the endpoint that it has opened: in a loop of
// C++, and as the least method that Python's C API allows, which reads no arguments.
//
// An extension module, compiled by the benchmark. libfabric's calls are jumps through the tables that its objects point
// to, so no library is linked.
#include <Python.h>
#include <time.h>

#include "ofi/abi.hpp"

namespace {

using namespace weft::ofi;

// The objects of the calls: set by use().
FidEp* g_ep;
FidCq* g_cq;
FidCntr* g_cntr;
char* g_data;
size_t g_length;
Addr g_peer;
uint64_t g_addr, g_key;

// fi_context2: what a provider may write to while an operation is under way.
struct Context {
  void* words[8];
};
constexpr size_t kContexts = 1024;
Context g_contexts[kContexts];
size_t g_at;
void* context() {
  return &g_contexts[g_at++ % kContexts];
}

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

ssize_t fi_write() {
  return g_ep->rma->write(g_ep, g_data, g_length, nullptr, g_peer, g_addr, g_key, context());
}
ssize_t fi_inject_write() {
  return g_ep->rma->inject(g_ep, g_data, g_length, g_peer, g_addr, g_key);
}
ssize_t fi_tsend() {
  return g_ep->tagged->send(g_ep, g_data, g_length, nullptr, g_peer, 7, context());
}
ssize_t fi_tinject() {
  return g_ep->tagged->inject(g_ep, g_data, g_length, g_peer, 7);
}
alignas(64) std::byte g_room[64 * 64];
ssize_t fi_cq_read() {  // of an empty queue
  return g_cq->ops->read(g_cq, g_room, 64) == -11 ? 0 : -1;
}
ssize_t fi_cntr_read() {
  return g_cntr->ops->read(g_cntr) == ~uint64_t{0} ? -1 : 0;
}

PyObject* refused() {
  PyErr_SetString(PyExc_OSError, "the provider refused a call");
  return nullptr;
}
template <ssize_t (*Call)()>
PyObject* least(PyObject*, PyObject*) {
  if (Call() != 0) return refused();
  Py_RETURN_NONE;
}
// Nanoseconds of n calls.
template <ssize_t (*Call)()>
PyObject* loop(PyObject*, PyObject* n_arg) {
  const long n = PyLong_AsLong(n_arg);
  const uint64_t begun = now_ns();
  for (long i = 0; i < n; ++i) {
    if (Call() != 0) return refused();
  }
  return PyLong_FromUnsignedLongLong(now_ns() - begun);
}
// Nanoseconds of reading n entries, up to 64 at a time.
PyObject* loop_entries(PyObject*, PyObject* n_arg) {
  ssize_t left = PyLong_AsLong(n_arg);
  const uint64_t begun = now_ns();
  while (left > 0) {
    const ssize_t got = g_cq->ops->read(g_cq, g_room, 64);
    if (got > 0) {
      left -= got;
    } else if (got != -11) {
      return refused();
    }
  }
  return PyLong_FromUnsignedLongLong(now_ns() - begun);
}

PyObject* use(PyObject*, PyObject* args) {
  unsigned long long ep, cq, cntr, data, length, peer, addr, key;
  if (!PyArg_ParseTuple(args, "KKKKKKKK", &ep, &cq, &cntr, &data, &length, &peer, &addr, &key)) return nullptr;
  g_ep = reinterpret_cast<FidEp*>(ep);
  g_cq = reinterpret_cast<FidCq*>(cq);
  g_cntr = reinterpret_cast<FidCntr*>(cntr);
  g_data = reinterpret_cast<char*>(data);
  g_length = length, g_peer = peer, g_addr = addr, g_key = key;
  Py_RETURN_NONE;
}

#define CALL(name)                                         \
  {"loop_" #name, loop<fi_##name>, METH_O, nullptr}, {     \
    "least_" #name, least<fi_##name>, METH_NOARGS, nullptr \
  }
PyMethodDef g_methods[] = {{"use", use, METH_VARARGS, nullptr},
                           CALL(write),
                           CALL(inject_write),
                           CALL(tsend),
                           CALL(tinject),
                           CALL(cq_read),
                           CALL(cntr_read),
                           {"loop_entries", loop_entries, METH_O, nullptr},
                           {}};
PyModuleDef g_module{PyModuleDef_HEAD_INIT, "ofi_calls", nullptr, -1, g_methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_ofi_calls() {
  return PyModule_Create(&g_module);
}
