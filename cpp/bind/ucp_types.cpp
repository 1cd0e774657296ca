// cpp/bind/ucp_types.cpp: weft.ucp's contexts, endpoints, remote keys and errors as Python types.
#include "bind/objects.hpp"
#include "bind/params.hpp"
#include "bind/signatures.hpp"
#include "bind/ucp_post.hpp"

namespace weft::bind {

PyTypeObject* g_ucp_rkey_type = nullptr;

namespace {

PyObject* g_error = nullptr;            // (status, message) or (None, exception) -> UcsError
PyObject* g_region_type = nullptr;      // weft.ucp.region.Region
PyTypeObject* g_params_type = nullptr;  // weft.ucp.MemMapParams

}  // namespace

Failed refuse(int status, const std::string& message) {
  PyObject* e = PyObject_CallFunction(g_error, "is", status, message.c_str());
  if (e == nullptr) return {};
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(e)), e);
  Py_DECREF(e);
  return {};
}

Failed refuse(const char* method, const ucp::Refused& why) {
  return refuse(why.status, method + why.text);
}

// Turns an fi error, raised by a shared function, into a UcsError.
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

UcpEp::UcpEp(nb::object object, UcpWorker& of) : UcpEpRefs{std::move(object)}, ucp::Peer(of) {}

namespace {

// ucp_context_h
struct Context : DomainCore {
  explicit Context(DomainCore&& domain) : DomainCore(std::move(domain)) {}
  uint64_t next_key = 1;
  uint64_t access = 0;  // for memory mapped without a protection mode
};

// HOT: some programs map for every transfer. mem_map(buffer); calls with more arguments go to Context._mem_map,
// unchanged. Benchmark: bench/bench_registration.py.
PyObject* context_mem_map(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto* context = nb::inst_ptr<Context>(self);
  if (nargs == 1 && kwnames == nullptr && context->box && !context->box->closed && !context->box->forked() &&
      !PyObject_TypeCheck(args[0], g_params_type) && !PyTuple_Check(args[0])) [[likely]] {
    context->box->drain();
    Buf b;
    if (b.acquire(args[0], false, nullptr) && b.length != 0) [[likely]] {
      MemoryRegionCore* made = nullptr;
      PyObject* region = new_region(g_region_type, &made);
      if (region == nullptr) return nullptr;
      if (make_region(made, context->box, {&args[0], 1}, context->access, context->next_key, false, true)) {
        ++context->next_key;
        region_made(region, made);
        made->domain = nb::borrow(self);
        made->enlist(region);
        return region;
      }
      drop_region(region);
    }
    PyErr_Clear();  // Context._mem_map explains the error
  }
  return forward(self, interned<"_mem_map">(), args, nargs, kwnames);
}

PyMethodDef g_context_methods[] = {
    {"mem_map", method<context_mem_map>(), kFast,
     "Map memory, or allocate and map it (ucp_mem_map).\n\n"
     "    context.mem_map(array)\n"
     "    context.mem_map(length=1 << 20, allocate=True)\n"
     "    context.mem_map(ucp.MemMapParams(field_mask=..., address=..., length=...))\n\n"
     "params      a `MemMapParams`, as in C; or a buffer (array, bytearray ...), which is held until it is\n"
     "            unmapped; or None.\n"
     "address, length, flags, prot, memory_type, exported_memh_buffer   as the fields of params; an argument that\n"
     "            is given sets its bit of field_mask.\n"
     "allocate, nonblock, symmetric   MEM_MAP_ALLOCATE, NONBLOCK, SYMMETRIC_RKEY.\n\n"
     "The application may unmap memory that it gave by a bare address: an access is then an error. Memory that Weft\n"
     "allocates is whole pages and reads as zero, and peers access it by load and store. Without NONBLOCK its pages\n"
     "are allocated when the call returns. With FIXED the memory replaces what is mapped at the address, unless\n"
     "that holds data.\n\n"
     "Returns a `MemHandle`. Raises UcsError: INVALID_PARAM (a combination that the matrix excludes; memory past\n"
     "the end of the address space), NO_MEMORY, UNREACHABLE (an exported handle of another host, or of a process\n"
     "that is gone).\n"
     "Source: UCP, \"ucp_mem_map\", \"Matrix of behavior\"."},
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef g_ep_methods[] = {
    {"put_nbx", method<ep_put_nbx>(), kFast,
     "Copies a local buffer to a peer's memory (ucp_put_nbx).\n\n"
     "buffer       C-contiguous bytes of this process: any buffer, a slice of a memory handle (fastest), or\n"
     "             (address, length). Under DATATYPE_IOV a list of these. Do not change it until the request is\n"
     "             done.\n"
     "remote_addr  virtual address in the peer's process.\n"
     "rkey         what rkey_unpack() of this endpoint returned.\n"
     "param        a RequestParam; a field counts if its bit of op_attr_mask is set.\n"
     "count        number of elements of the datatype, of bytes without one; None: all of the buffer.\n"
     "cb, user_data, memh, flags, datatype   as param's fields, over which they have precedence; flags:\n"
     "                                       OP_ATTR_FLAG_*.\n\n"
     "Returns a request, which is false as a truth value if the operation was done in place (C's NULL; cb is not\n"
     "called). When the request is done, the buffer may be used again; only a flush makes sure that the peer\n"
     "sees the bytes.\n\n"
     "Raises UcsError: INVALID_PARAM (closed or foreign key, no such feature, memh without the right),\n"
     "NO_RESOURCE (FORCE_IMM_CMPL). If the owner's memory table refuses the operation, the request ends with\n"
     "IO_ERROR. Waits while the transmit queue is full. Source: UCP, ucp_put_nbx."},
    {"get_nbx", method<ep_get_nbx>(), kFast,
     "Copies a peer's memory into a local, writable buffer (ucp_get_nbx). Arguments and errors as put_nbx.\n\n"
     "When the request is done, the buffer has the bytes. Source: UCP, ucp_get_nbx."},
    {"atomic_op_nbx",
     method<parsed<ep_atomic_op_nbx, "atomic_op_nbx",
                   "opcode! buffer! remote_addr! rkey! param|count cb user_data memh flags datatype reply_buffer">>(),
     kFast,
     "Updates one element of a peer's memory atomically (ucp_atomic_op_nbx).\n\n"
     "opcode        ATOMIC_OP_ADD, SWAP, CSWAP, AND, OR or XOR.\n"
     "buffer        the operand: a buffer of 4 or 8 bytes, or an int. For CSWAP the expected value.\n"
     "remote_addr   a multiple of the element's size.\n"
     "datatype      dt_make_contig(4) or dt_make_contig(8); without it and param, the buffer's size.\n"
     "reply_buffer  receives the old value. Required by SWAP and CSWAP, which takes the new value from\n"
     "              it.\n"
     "count         1.   Others as put_nbx.\n\n"
     "Without a reply_buffer the request is done at once (NO_IMM_CMPL: when the peer has the operation),\n"
     "and the next flush reports a failure. Raises UcsError (INVALID_PARAM). Source: UCP,\n"
     "ucp_atomic_op_nbx."},
    {"flush_nbx", method<parsed<ep_flush_nbx, "flush_nbx", "param|cb user_data flags">>(), kFast,
     "Completes when every operation posted so far on this endpoint is done at both ends (ucp_ep_flush_nbx).\n\n"
     "Also reports a failure that no request has reported. Source: UCP, ucp_ep_flush_nbx."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void register_ucp(Module& m) {
  m.about("Registers the function (status, message) or (None, exception) -> exception that makes weft.ucp's errors.")
      .def<"set_ucs_error(f: Callable[[int | None, Any], BaseException]) -> None">(
          [](nb::object f) { keep(g_error, std::move(f)); });
  m.about("Registers the classes of memory handles and of mem_map's parameters.")
      .def<"set_ucp_region(region, params)">([](nb::type_object region, nb::type_object params) {
        g_region_type = region.release().ptr();
        g_params_type = reinterpret_cast<PyTypeObject*>(params.release().ptr());
      });
  m.about("Returns the objects that keep a region's memory valid.")
      .def<"region_exporters(region: MemoryRegionCore) -> list[Any]">([](const MemoryRegionCore& r) {
        nb::list out;
        r.keep.each([&](const nb::object& o) { out.append(o); });
        return out;
      });
  m.about("Allocates the pages of memory before they are touched. False if the system cannot.")
      .def<"populate(address, length, writable=True)">([](uint64_t address, uint64_t length, bool writable) {
        const ReleasedGil released;
        return mem::populate(address, length, writable);
      });

  Class<Context, DomainCore>(m, "UcpContextCore", nb::type_slots(method_slots<"UcpContextCore", g_context_methods>()),
                             "The NIC's side of a context.")
      .def<"__init__(nic, access)">([](Context* self, PyNic& nic, uint64_t access) {
        nic::DomainConfig config;
        config.virt_addr = config.hmem = true;
        config.empty_region_errno = 0;
        new (self) Context(make_domain(nic, config));
        self->access = access;
        // Counted keys are never reused. Their top bit is clear; keys of symmetric regions have it set.
        self->next_key = self->box->domain->nic()->random().next() >> 2;
      })
      .about("Returns a key that no region of this context has ever had.")
      .def<"take_key">([](Context& c) { return c.next_key++; });
}

void register_ucp_endpoint(Module& m) {
  Class<UcpEp>(m, "UcpEndpointCore", nb::type_slots(method_slots<"UcpEndpointCore", g_ep_methods>()),
               "The NIC's side of a UCP endpoint: its data path.")
      .def<"__init__(worker, dest, watched)">(
          [](nb::pointer_and_handle<UcpEp> self, nb::handle_t<UcpWorker> worker, uint64_t dest, bool watched) {
            new (self.p) UcpEp(nb::borrow(worker), *nb::inst_ptr<UcpWorker>(worker));
            self.p->self = self.h.ptr();
            self.p->dest = dest;
            self.p->watched = watched;
          })
      .def_prop<"dest">([](const UcpEp& e) { return e.dest; })
      .def_prop<"failed_status">([](const UcpEp& e) { return e.failed(); })
      .def_prop<"why">([](const UcpEp& e) { return e.why(); })
      .def<"under_way">([](const UcpEp& e) { return e.under_way(); })
      .about("From here on the endpoint takes no operations.")
      .def<"begin_close">([](UcpEp& e) { e.closing = true; })
      .about("Raises UcsError for the first unreported failure.")
      .def<"tell_failure">([](UcpEp& e) {
        const ucp::Failure failure = e.untold();
        if (failure.seq == 0) return;
        e.told_before(~uint64_t{0});
        refuse(failure.status, failure.text);
        throw nb::python_error();
      })
      .def<"shut">([](UcpEp& e) { e.close(); });

  Class<UcpRkey> rkey(m, "UcpRkeyCore", "The NIC's side of a remote key.");
  rkey.def<"__init__(ep, key, dest, address, length, bias, symmetric)">(
          [](UcpRkey* self, nb::handle_t<UcpEp> ep, uint64_t key, uint64_t dest, uint64_t address, uint64_t length,
             uint64_t bias, bool symmetric) {
            new (self) UcpRkey{{nb::inst_ptr<UcpEp>(ep), key, dest, address, length, bias, symmetric}, nb::borrow(ep)};
          })
      .def_ro<"key">(&UcpRkey::key)
      .def_ro<"dest">(&UcpRkey::dest)
      .def_ro<"address">(&UcpRkey::address)
      .def_ro<"length">(&UcpRkey::length)
      .def_ro<"bias">(&UcpRkey::bias)
      .def_ro<"symmetric">(&UcpRkey::symmetric)
      .def_ro<"destroyed">(&UcpRkey::destroyed)
      .def_ro<"in_flight">(&UcpRkey::in_flight)
      .def<"forget">([](UcpRkey& r) { r.destroyed = true; });
  g_ucp_rkey_type = reinterpret_cast<PyTypeObject*>(rkey.ptr());
}

}  // namespace weft::bind
