// cpp/bind/ep.cpp: endpoints as Python types.
#include "bind/ep.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>

namespace weft::bind {

bool refuse(EndpointCore* core, const char* method, const call::Why& refused) {
  call::Why why = refused;
  call::put_state_first(*core->ep, &why);
  set_error(core->ep->config().rules.errno_of(why.refusal), call::explain(*core->ep, method, why));
  return false;
}

bool refuse(EndpointCore* core, const char* method, Refusal refusal, uint64_t dest, uint64_t total) {
  call::Why why;
  why.dest = dest;
  why.asked = total;
  why.set(refusal);
  return refuse(core, method, why);
}

bool refuse_forked(EndpointCore* core, const char* method) {
  call::Why why;
  why.set(Refusal::forked);
  // Do not call explain() with the endpoint: its NIC belongs to the parent process.
  set_error(core->ep->config().rules.errno_of(Refusal::forked),
            std::string(method) + ": this endpoint belongs to the parent process: a forked child opens its own fabric");
  return false;
}

void hold_buffers(EndpointCore* core, uint64_t op_id, const Buf* const* bufs, size_t count) {
  std::array<uint64_t, 3 * nic::kIovMax> cookies;  // an atomic's operands, compare values and results
  size_t held = 0;
  for (size_t i = 0; i < count && held < cookies.size(); ++i) {
    PyObject* o = bufs[i]->hold();
    if (o == nullptr)
      PyErr_Clear();
    else
      cookies[held++] = reinterpret_cast<uint64_t>(o);
  }
  if (!core->box->domain->attach(op_id, std::span(cookies).first(held))) {
    for (size_t i = 0; i < held; ++i) Py_DECREF(reinterpret_cast<PyObject*>(cookies[i]));
  }
}

bool target_ok(const char* method, PyObject* addr, PyObject* key, uint64_t* addr_out, uint64_t* key_out) {
  if (addr == nullptr || key == nullptr) [[unlikely]] {
    PyErr_Format(PyExc_TypeError,
                 "%s() needs the argument '%s': the place in the peer's region (an offset from its start; a virtual "
                 "address under MR_VIRT_ADDR) and the region's key",
                 method, addr == nullptr ? "addr" : "key");
    return false;
  }
  return to_u64(addr, addr_out, method, "addr") && to_u64(key, key_out, method, "key");
}

bool convert_desc_slow(EndpointCore* core, PyObject* desc, const char* method, call::Local* local) {
  local->desc_given = true;
  if (core->ep->config().rules.desc_ignored) return true;
  if (!PyObject_TypeCheck(desc, g_mr_type)) {
    set_error(fi_err::kEINVAL, std::string(method) + ": desc is " + Py_TYPE(desc)->tp_name +
                                   ": pass mr.desc of a region that covers the buffer, or None");
    return false;
  }
  local->desc = nb::inst_ptr<MemoryRegionCore>(desc)->region.get();
  return true;
}

bool check_buffer(EndpointCore* core, const Buf& buf, const char* method, bool writable, bool* device) {
  call::Why why;
  const auto use = writable ? call::LocalUse::result : call::LocalUse::source;
  if (call::check_local(*core->ep, local_of(buf), use, false, device, &why) == Refusal::none) [[likely]]
    return true;
  return refuse(core, method, why);
}

bool present(const char* method, std::initializer_list<std::pair<PyObject*, const char*>> args) {
  for (const auto& [value, name] : args) {
    if (value == nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", method, name);
      return false;
    }
  }
  return true;
}

namespace {

#define WEFT_METHOD(name, doc) \
  {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(ep_##name)), METH_FASTCALL | METH_KEYWORDS, doc}

PyMethodDef g_methods[] = {
    WEFT_METHOD(
        read,
        "Copies bytes of a peer's region into buf (fi_read).\n\n"
        "buf       writable C-contiguous buffer of n bytes, 0 <= n <= max_msg_size; a slice of a registered region\n"
        "          is fastest. Held until completion; do not use its bytes before.\n"
        "desc      mr.desc of a region that covers buf (required under MR_LOCAL), or None.\n"
        "src_addr  the peer: what av.insert() returned.\n"
        "addr      byte offset from the region's start; its virtual address under MR_VIRT_ADDR.\n"
        "key       the region's remote key.\n"
        "context   any object; the completion returns it as op_context.\n"
        "len       number of bytes, if fewer than buf has.\n\n"
        "Raises Again (a queue is full: read the completion queue, retry), MessageTooLong, AccessDenied (buf is\n"
        "read-only), InvalidArgument, BadState. A refusal by the peer (key, bounds, access) is a failed completion.\n"
        "Source: fi_rma(3) fi_read."),
    WEFT_METHOD(
        readv,
        "As read, into a list of up to iov_limit buffers, in order (fi_readv).\n\n"
        "iov    writable C-contiguous buffers, filled one after the other.\n"
        "desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or None.\n"
        "count  number of buffers to use; None: all.\n\n"
        "Source: fi_rma(3) fi_readv."),
    WEFT_METHOD(
        readmsg,
        "A read with all options: msg is an fi.MsgRma, with up to rma_iov_limit remote ranges (fi_readmsg).\n\n"
        "flags  for this read alone, in place of the endpoint's: COMPLETION, MORE, FENCE, completion levels.\n\n"
        "Raises BadFlags, and as read. Source: fi_rma(3) fi_readmsg."),
    WEFT_METHOD(
        write,
        "Copies buf into a peer's region (fi_write).\n\n"
        "buf        C-contiguous buffer of n bytes, 0 <= n <= max_msg_size; a slice of a registered region is\n"
        "           fastest. Held until completion; do not change its bytes before.\n"
        "dest_addr  the peer: what av.insert() returned.\n"
        "desc, addr, key, context, len   as for read.\n\n"
        "Raises Again (a queue is full: read the completion queue, retry), MessageTooLong, InvalidArgument,\n"
        "BadState. A refusal by the peer (key, bounds, access) is a failed completion. Source: fi_rma(3) fi_write."),
    WEFT_METHOD(
        writev,
        "As write, from a list of up to iov_limit buffers, in order (fi_writev).\n\n"
        "iov    C-contiguous buffers, written one after the other.\n"
        "desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or None.\n"
        "count  number of buffers to use; None: all.\n\n"
        "Source: fi_rma(3) fi_writev."),
    WEFT_METHOD(
        writemsg,
        "A write with all options: msg is an fi.MsgRma, with up to rma_iov_limit remote ranges (fi_writemsg).\n\n"
        "flags  for this write alone, in place of the endpoint's: REMOTE_CQ_DATA, COMPLETION, MORE, INJECT, FENCE,\n"
        "       INJECT_COMPLETE, TRANSMIT_COMPLETE, DELIVERY_COMPLETE.\n\n"
        "If there are several remote ranges, all of them are checked before the first is written.\n"
        "Raises BadFlags, and as write. Source: fi_rma(3) fi_writemsg."),
    WEFT_METHOD(inject_write,
                "As write, of at most inject_size bytes (fi_inject_write). buf may be reused when the call returns.\n"
                "A success has no completion; a failure has one.\n\n"
                "Raises MessageTooLong, and as write. Source: fi_rma(3) fi_inject_write."),
    WEFT_METHOD(writedata,
                "As write, and delivers data (64 bits) to the peer's completion queue (fi_writedata).\n\n"
                "Raises as write. Source: fi_rma(3) fi_writedata."),
    WEFT_METHOD(inject_writedata,
                "As inject_write, and delivers data (64 bits) to the peer's completion queue (fi_inject_writedata).\n\n"
                "Raises as inject_write. Source: fi_rma(3) fi_inject_writedata."),
    WEFT_METHOD(
        read_batch,
        "Many reads in one call, with one completion for all of them. Weft's own: libfabric has no such call.\n\n"
        "local  writable C-contiguous buffer; local_offset of a descriptor counts from its start.\n"
        "descs  writable C-contiguous array of dtype fi.RMA_DESC: local_offset, length, dest_addr, remote_addr,\n"
        "       key. The NIC writes status: 0, or the error number of this transfer; valid at the completion.\n"
        "flags  in place of the endpoint's; None: the endpoint's.\n\n"
        "Both buffers are held until completion. The completion's len is the sum of the bytes moved; the completion\n"
        "is a failed one if any transfer failed. Raises as read."),
    WEFT_METHOD(
        write_batch,
        "Many writes in one call, with one completion for all of them. Weft's own: libfabric has no such call.\n\n"
        "Arguments as read_batch; local may be read-only. Raises as write."),
    WEFT_METHOD(atomic,
                "Updates elements of a peer's region with those of buf, each atomically (fi_atomic).\n\n"
                "buf       C-contiguous buffer with the operands. The call copies them: buf may be reused when the\n"
                "          call returns.\n"
                "addr      as for write; a multiple of the datatype's alignment.\n"
                "datatype  fi.INT64, fi.DOUBLE ...   op  fi.SUM, fi.MIN ...; atomicvalid() returns which pairs exist.\n"
                "count     number of elements; None: all of buf.\n\n"
                "Raises NotSupported (no such pair), Again (a queue is full: read the completion queue, retry),\n"
                "MessageTooLong (more elements than atomicvalid() returns), InvalidArgument.\n"
                "Source: fi_atomic(3) fi_atomic."),
    WEFT_METHOD(atomicv,
                "As atomic, from a list of up to iov_limit buffers (fi_atomicv). Source: fi_atomic(3) fi_atomicv."),
    WEFT_METHOD(atomicmsg,
                "An atomic with all options: msg is an fi.MsgAtomic; flags are for this call alone (fi_atomicmsg).\n\n"
                "Raises BadFlags, and as atomic. Source: fi_atomic(3) fi_atomicmsg."),
    WEFT_METHOD(inject_atomic,
                "As atomic, of at most inject_size bytes (fi_inject_atomic). A success has no completion; a failure\n"
                "has one.\n\n"
                "Raises as atomic. Source: fi_atomic(3) fi_inject_atomic."),
    WEFT_METHOD(fetch_atomic,
                "As atomic; result also receives the old values of the elements (fi_fetch_atomic).\n\n"
                "buf     operands; not used by ATOMIC_READ, which takes None.\n"
                "result  writable C-contiguous buffer of as many elements. Held until completion.\n\n"
                "Raises as atomic. Source: fi_atomic(3) fi_fetch_atomic."),
    WEFT_METHOD(fetch_atomicv,
                "As fetch_atomic, with lists of buffers (fi_fetch_atomicv). Source: fi_atomic(3) fi_fetch_atomicv."),
    WEFT_METHOD(fetch_atomicmsg,
                "A fetching atomic with all options (fi_fetch_atomicmsg). Source: fi_atomic(3) fi_fetch_atomicmsg."),
    WEFT_METHOD(
        compare_atomic,
        "Compares elements of a peer's region with compare and, where they satisfy op (CSWAP ... MSWAP), puts buf\n"
        "there, each atomically; result receives the old values of the elements (fi_compare_atomic).\n\n"
        "buf, compare  C-contiguous buffers of as many elements. The call copies them.\n"
        "result        writable C-contiguous buffer of as many elements. Held until completion.\n\n"
        "Raises as atomic. Source: fi_atomic(3) fi_compare_atomic."),
    WEFT_METHOD(
        compare_atomicv,
        "As compare_atomic, with lists of buffers (fi_compare_atomicv). Source: fi_atomic(3) fi_compare_atomicv."),
    WEFT_METHOD(
        compare_atomicmsg,
        "A comparing atomic with all options (fi_compare_atomicmsg). Source: fi_atomic(3) fi_compare_atomicmsg."),
    {"_writedatamsg", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(ep_writedatamsg)),
     METH_FASTCALL | METH_KEYWORDS, "writemsg with remote data, whether or not writemsg itself takes REMOTE_CQ_DATA."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot g_slots[] = {{Py_tp_methods, g_methods}, {0, nullptr}};

}  // namespace

EndpointCore::~EndpointCore() {
  if (!box || !ep || box->forked()) return;
  if (alias) {
    ep->close_lane(nic::lane_of(lane));
    return;
  }
  {
    const ReleasedGil released;
    ep->close();
  }
  box->drain();
}

void register_endpoint(nb::module_& m) {
  nb::class_<EndpointCore>(m, "EndpointCore", nb::type_slots(g_slots), "The NIC's side of an endpoint: its data path.")
      .def(
          "__init__",
          [](EndpointCore* self, DomainCore& d, uint64_t caps, uint32_t tx_size, uint64_t inject_size,
             uint64_t max_msg_size, uint64_t msg_order, uint64_t tx_op_flags, uint64_t iov_limit,
             uint64_t rma_iov_limit, uint16_t vni, bool foreign_key, bool connected, std::pair<uint32_t, uint32_t> pids,
             bool fence_covers_all, const nic::OpRules* rules, bool holds_more, const nic::TrafficRules* traffic,
             uint8_t tclass, std::optional<bool> desc_ignored,
             const std::optional<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>>& reorder, bool tells_lengths) {
            if (!d.box || d.box->closed) raise(fi_err::kEOPBADSTATE, "the domain is closed");
            nic::EndpointConfig config;
            config.caps = caps;
            config.tx_size = tx_size;
            config.inject_size = inject_size;
            config.max_msg_size = max_msg_size;
            config.msg_order = msg_order;
            config.tx_op_flags = tx_op_flags;
            config.vni = vni;
            config.foreign_key = foreign_key;
            config.connected = connected;
            config.fence_covers_all = fence_covers_all;
            config.pids = {pids.first, pids.second};
            if (rules != nullptr) config.rules = *rules;
            config.holds_more = holds_more;
            config.tells_lengths = tells_lengths;
            if (traffic != nullptr) config.traffic = *traffic;
            const auto limit = [](uint64_t asked, uint32_t rule) {  // asked 0: no limit besides the rule's
              return asked == 0 ? rule : static_cast<uint32_t>(std::min<uint64_t>(asked, rule));
            };
            config.rules.iov_max = limit(iov_limit, config.rules.iov_max);
            config.rules.rma_iov_max = limit(rma_iov_limit, config.rules.rma_iov_max);
            config.rules.mr_local = d.box->mr_local;
            config.rules.mr_hmem = d.box->mr_hmem;
            config.rules.hmem = d.box->hmem;
            config.rules.desc_ignored = desc_ignored.value_or(d.box->desc_ignored);
            config.tclass = tclass;
            if (reorder) {
              const auto [seed, raw, war, waw] = *reorder;
              config.reorder = {true, seed, raw, war, waw};
            }
            new (self) EndpointCore(d.box, d.box->domain->make_endpoint(config));
          },
          nb::arg("domain"), nb::kw_only(), nb::arg("caps"), nb::arg("tx_size"), nb::arg("inject_size"),
          nb::arg("max_msg_size"), nb::arg("msg_order"), nb::arg("tx_op_flags"), nb::arg("iov_limit"),
          nb::arg("rma_iov_limit"), nb::arg("vni"), nb::arg("foreign_key") = false, nb::arg("connected") = false,
          nb::arg("pids") = std::pair{nic::PidRange{}.first, nic::PidRange{}.last}, nb::arg("fence_covers_all") = false,
          nb::arg("rules").none() = nb::none(), nb::arg("holds_more") = false, nb::arg("traffic").none() = nb::none(),
          nb::arg("tclass") = 0, nb::arg("desc_ignored").none() = nb::none(), nb::arg("reorder").none() = nb::none(),
          nb::arg("tells_lengths") = true,
          "fence_covers_all          FI_FENCE waits for operations to every peer, not only to the operation's own.\n"
          "iov_limit, rma_iov_limit  the most local buffers and remote ranges of a call, besides the limits of the\n"
          "                          rules; 0: the rules alone.\n"
          "rules                     the rules of calls; None: all that the NIC can do is admitted.\n"
          "holds_more                operations with MORE wait for the next one without it, or until no more fit.\n"
          "traffic                   how telemetry counts operations; None: not counted.\n"
          "tclass                    the traffic class in telemetry, 0 to 4.\n"
          "desc_ignored              local descriptors are ignored; None: the domain's setting.\n"
          "reorder                   (seed, raw, war, waw): operations overtake each other wherever no rule orders\n"
          "                          them. raw, war, waw: bytes up to which the order of a read after a write, a\n"
          "                          write after a read and a write after a write holds.\n"
          "tells_lengths             completions of the endpoint's operations have the length; False: 0.")
      .def(
          "_alias",
          [](EndpointCore& e) {
            auto* made = new EndpointCore(e.box, e.ep);
            made->alias = true;
            made->lane = uint64_t{e.ep->open_lane()} << nic::flag::kLaneShift;
            return made;
          },
          nb::rv_policy::take_ownership, nb::sig("def _alias(self) -> EndpointCore"),
          "The same endpoint for an alias, whose operations no order ties to others.")
      .def(
          "_set_lane",
          [](EndpointCore& e, uint64_t msg_order, uint8_t tclass) {
            e.ep->set_lane(nic::lane_of(e.lane), msg_order, tclass);
          },
          nb::arg("msg_order"), nb::arg("tclass"), "The order of an alias's operations, and their traffic class.")
      .def(
          "bind_cq",
          [](EndpointCore& e, CompletionQueueCore& cq, uint64_t flags) {
            translating([&] { e.ep->bind_cq(cq.cq, flags); });
          },
          nb::arg("cq"), nb::arg("flags"))
      .def(
          "bind_cntr",
          [](EndpointCore& e, CounterCore& c, uint64_t flags) {
            translating([&] { e.ep->bind_counter(c.counter, flags); });
          },
          nb::arg("cntr"), nb::arg("flags"))
      .def(
          "bind_av", [](EndpointCore& e, AddressVectorCore& a) { translating([&] { e.ep->bind_av(a.av); }); },
          nb::arg("av"))
      .def(
          "enable_at",
          [](EndpointCore& e, uint32_t nic, std::optional<uint32_t> pid, const std::vector<uint16_t>& vnis) {
            if (e.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
            return translating([&] { return e.ep->enable(nic, pid, vnis); });
          },
          nb::arg("nic"), nb::arg("pid").none(), nb::arg("vnis") = std::vector<uint16_t>{},
          nb::sig("def enable_at(self, nic: int, pid: int | None, vnis: Sequence[int] = ()) -> int"),
          "Claims the address and opens the endpoint. pid None: the NIC chooses a free one. Returns the pid.\n\n"
          "vnis  under FI_AV_AUTH_KEY all VNIs that the endpoint accepts.\n\n"
          "Raises AddressInUse, BadState, FabricError (ENOAV, ENOCQ: no address vector, no completion queue).")
      .def(
          "try_at",
          [](EndpointCore& e, uint32_t nic, std::optional<uint32_t> pid, const std::vector<uint16_t>& vnis) {
            if (e.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
            translating([&] { e.ep->enable(nic, pid, vnis, nic::Endpoint::Claim::try_only); });
          },
          nb::arg("nic"), nb::arg("pid").none(), nb::arg("vnis") = std::vector<uint16_t>{},
          nb::sig("def try_at(self, nic: int, pid: int | None, vnis: Sequence[int] = ()) -> None"),
          "Raises AddressInUse if enable_at() would find the address taken. Checks nothing else.")
      .def(
          "bind_cm",
          [](EndpointCore& e, CmQueueCore& queue, uint64_t token, bool listens) {
            e.ep->bind_cm(queue.queue, token, listens);
          },
          nb::arg("queue"), nb::arg("token"), nb::arg("listens"),
          "Passes connection messages for the endpoint to the queue, with the token. listens: requests are accepted.")
      .def(
          "send_cm",
          [](EndpointCore& e, std::tuple<uint32_t, uint32_t, uint16_t> to, uint32_t kind, uint64_t connection,
             nb::bytes data) {
            if (e.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
            const auto [nic, pid, vni] = to;
            const std::span bytes(static_cast<const std::byte*>(data.data()), data.size());
            const nic::PostResult r = translating(
                [&] { return e.ep->send_cm({nic, pid, vni, 0}, static_cast<nic::CmKind>(kind), connection, bytes); });
            if (r.refusal != Refusal::none) {
              refuse(&e, "connect", r.refusal, 0, 0);
              throw nb::python_error();
            }
          },
          nb::arg("to"), nb::arg("kind"), nb::arg("connection"), nb::arg("data"),
          "Sends a connection message to the endpoint at an address (nic, pid, vni).")
      .def(
          "connect_to",
          [](EndpointCore& e, std::optional<std::tuple<uint32_t, uint32_t, uint16_t>> peer) {
            std::optional<wire::EpAddress> address;
            if (peer) address = wire::EpAddress{std::get<0>(*peer), std::get<1>(*peer), std::get<2>(*peer), 0};
            e.ep->connect_to(address);
          },
          nb::arg("peer").none(),
          "Directs transfers to this peer, the only one that may access the endpoint's regions. None: no peer.")
      .def(
          "cancel",
          [](EndpointCore& e, nb::handle context) {
            if (e.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
            if (e.ep->closed()) raise(fi_err::kEOPBADSTATE, "the endpoint is closed");
            const size_t n = e.ep->cancel(reinterpret_cast<uint64_t>(context.ptr()));
            e.box->drain();
            if (n == 0) raise(2 /* FI_ENOENT */, "cancel: no operation with this context waits to be started");
          },
          nb::arg("context").none(), nb::sig("def cancel(self, context: object) -> None"),
          "Cancels operations with this context that have not started (fi_cancel); each completes as canceled.\n\n"
          "Raises FabricError (ENOENT) if there is no such operation: it may have completed just before.\n"
          "Source: fi_endpoint(3) fi_cancel.")
      .def(
          "atomic_limit",
          [](const EndpointCore& e, uint64_t datatype, uint64_t op, uint64_t family) {
            const nic::Limits& limits = e.ep->domain()->nic()->limits();
            const call::AtomicLimit a = call::atomic_limit(e.ep->config().rules, limits, datatype, op, family);
            return nb::make_tuple(a.count, a.size);
          },
          nb::arg("datatype"), nb::arg("op"), nb::arg("family"),
          nb::sig("def atomic_limit(self, datatype: int, op: int, family: int) -> tuple[int, int]"),
          "Returns the limit (elements of one call, bytes of one element); (0, size) if the operation does not exist.")
      .def_prop_ro(
          "address",
          [](const EndpointCore& e) {
            const wire::EpAddress& a = e.ep->address();
            return nb::make_tuple(a.nic, a.pid, a.vni);
          },
          nb::sig("def address(self) -> tuple[int, int, int]"), "(nic, pid, vni) of the enabled endpoint.")
      .def(
          "statistics",
          [](const EndpointCore& e) {
            nb::dict d;
            d["tx_pending"] = e.ep->outstanding();
            d["tx_size"] = e.ep->config().tx_size;
            d["batches"] = e.ep->batches();
            return d;
          },
          nb::sig("def statistics(self) -> dict[str, int]"),
          "tx_pending: number of operations under way; tx_size: the most at a time; batches: how often the endpoint "
          "has\n"
          "begun the operations that it held for MORE.")
      .def("close", [](EndpointCore& e) {
        if (e.box->forked() || e.alias) return;
        {
          const ReleasedGil released;
          e.ep->close();
        }
        e.box->drain();
      });
}

}  // namespace weft::bind
