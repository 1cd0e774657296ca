// cpp/bind/ep.cpp: endpoints as Python types.
#include "bind/ep.hpp"
#include "nic/queue.hpp"

#include <array>

namespace weft::bind {

Failed refuse(EndpointCore* core, const char* method, const call::Why& refused) {
  call::Why why = refused;
  call::put_state_first(*core->ep, &why);
  const int code = core->ep->config().rules.errno_of(why.refusal);
  if (code == fi_err::kEAGAIN) core->ep->note_again();
  return set_error(code, call::explain(*core->ep, method, why));
}

Failed refuse(EndpointCore* core, const char* method, Refusal refusal, uint64_t dest, uint64_t total) {
  call::Why why;
  why.dest = dest;
  why.asked = total;
  why.set(refusal);
  return refuse(core, method, why);
}

Failed refuse_forked(EndpointCore* core, const char* method) {
  call::Why why;
  why.set(Refusal::forked);
  // Do not call explain() with the endpoint: its NIC belongs to the parent process.
  return set_error(core->ep->config().rules.errno_of(Refusal::forked), method,
                   ": this endpoint belongs to the parent process: a forked child opens its own fabric");
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

namespace {

using CmAddress = std::tuple<uint32_t, uint32_t, uint16_t>;  // nic, pid, vni

wire::EpAddress cm_address(const CmAddress& of) noexcept {
  return {std::get<0>(of), std::get<1>(of), std::get<2>(of), 0};
}

std::span<const std::byte> cm_bytes(const nb::bytes& data) {
  return {static_cast<const std::byte*>(data.data()), data.size()};
}

// Posts a message of connecting; raises its refusal.
template <typename Post>
void answer_cm(EndpointCore& e, Post&& post) {
  if (e.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
  const nic::PostResult r = post();
  if (r.refusal == Refusal::none) return;
  refuse(&e, "connect", r.refusal, 0, 0);
  throw nb::python_error();
}

}  // namespace

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
    return set_error(fi_err::kEINVAL, method, ": desc is ", Py_TYPE(desc)->tp_name,
                     ": pass mr.desc of a region that covers the buffer, or None");
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

EndpointCore::EndpointCore(PyObject* object, std::shared_ptr<DomainBox> b, const nic::EndpointConfig& config)
    : box(std::move(b)), ep(box->domain->make_endpoint(config.in(box->config))), tells_context(config.tells_context) {
  if (self_of(object) != this) raise(fi_err::kENOSYS, "EndpointCore: nanobind lays its objects out in another way");
  call::set_default_flags(config.rules, false, config.tx_op_flags, &flags);
  call::set_default_flags(config.rules, true, config.rules.messages.receive_flags, &flags);
}

EndpointCore::EndpointCore(PyObject* /*object*/, const EndpointCore& original)
    : box(original.box),
      ep(original.ep),
      goes(original.goes),
      lane(uint64_t{ep->open_lane()} << nic::flag::kLaneShift),
      one_sided(lane),
      flags(original.flags),
      alias(true),
      tells_context(original.tells_context) {}

EndpointCore::~EndpointCore() {
  const Seam seam;
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

void register_endpoint(Module& m) {
  Class<EndpointCore>(m, "EndpointCore", nb::type_slots(g_endpoint_slots),
                      "The NIC's side of an endpoint: its data path.")
      .def<"__init__(domain, config)">(
          [](nb::pointer_and_handle<EndpointCore> self, DomainCore& d, const nic::EndpointConfig& config) {
            if (!d.box || d.box->closed) raise(fi_err::kEOPBADSTATE, "the domain is closed");
            new (self.p) EndpointCore(self.h.ptr(), d.box, config);
          })
      .about(
          "An alias: the same endpoint of the NIC with flags and a lane of its own, at first the original's flags. No "
          "order ties its operations to others.")
      .def<"__init__(original)">([](nb::pointer_and_handle<EndpointCore> self, const EndpointCore& original) {
        new (self.p) EndpointCore(self.h.ptr(), original);
      })
      .about(
          "OPT_MIN_MULTI_RECV of receives that are posted later: bytes that a buffer for several messages must have\n"
          "left to take one more.")
      .def<"set_min_multi_recv(bytes)">([](EndpointCore& e, uint64_t bytes) { e.ep->set_min_multi_recv(bytes); })
      .about(
          "Where messages are matched, with the sizes of the mode and its request buffers, of an endpoint that is not\n"
          "enabled yet; other values of the MessageConfig do not matter. Raises BadState.")
      .def<"set_match_mode(config)">([](EndpointCore& e, const nic::MessageConfig& config) {
        if (!e.ep->set_match_mode(config))
          raise(fi_err::kEOPBADSTATE, "the match mode is set before the endpoint is enabled");
      })
      .about("MessageConfig.retry_ns_max of messages that are refused for the first time later.")
      .def<"set_retry_time(ns)">([](EndpointCore& e, uint64_t ns) { e.ep->messages().set_retry_time(ns); })
      .about(
          "The order of the handle's operations, their traffic class, and the flags that all transfers and atomics\n"
          "have besides those of their calls.")
      .def<"_set_lane(msg_order, tclass, call_flags)">(
          [](EndpointCore& e, uint64_t msg_order, uint8_t tclass, uint64_t call_flags) {
            e.ep->set_lane(nic::lane_of(e.lane), msg_order, tclass);
            e.one_sided = call::one_sided_flags(e.ep->config().rules, e.lane, call_flags);
          })
      .about("The handle's default flags of one side.")
      .def<"_set_op_flags(receives, flags)">([](EndpointCore& e, bool receives, uint64_t flags) {
        call::set_default_flags(e.ep->config().rules, receives, flags, &e.flags);
      })
      .about("Calls that _asked(call, *args, **kwargs) of the handle sees first; they go on if it says NotImplemented.")
      .def<"_ask(calls)">([](EndpointCore& e, const std::vector<std::string>& calls) {
        for (const std::string& call : calls) e.goes &= ~bit_of(call);
      })
      .def<"bind_cq(cq, flags)">([](EndpointCore& e, CompletionQueueCore& cq, uint64_t flags) {
        check_usable(cq, "completion queue");
        e.ep->bind_cq(cq.cq, flags);
      })
      .def<"bind_cntr(cntr, flags)">([](EndpointCore& e, CounterCore& c, uint64_t flags) {
        check_usable(c, "counter");
        e.ep->bind_counter(c.counter, flags);
      })
      .def<"bind_av(av)">([](EndpointCore& e, AddressVectorCore& a) { e.ep->bind_av(a.av); })
      .about(
          "Claims the address and opens the endpoint. pid None: the NIC chooses a free one. Returns the pid.\n\n"
          "vnis  under FI_AV_AUTH_KEY all VNIs that the endpoint accepts.\n\n"
          "Raises AddressInUse, BadState, FabricError (ENOAV, ENOCQ: no address vector, no completion queue).")
      .def<"enable_at(self, nic: int, pid?: int | None, vnis: Sequence[int] = ()) -> int">(
          [](EndpointCore& e, uint32_t nic, std::optional<uint32_t> pid, const std::vector<uint16_t>& vnis) {
            if (e.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
            return e.ep->enable(nic, pid, vnis);
          })
      .about("Raises AddressInUse if enable_at() would find the address taken. Checks nothing else.")
      .def<"try_at(self, nic: int, pid?: int | None, vnis: Sequence[int] = ()) -> None">(
          [](EndpointCore& e, uint32_t nic, std::optional<uint32_t> pid, const std::vector<uint16_t>& vnis) {
            if (e.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
            e.ep->enable(nic, pid, vnis, nic::Endpoint::Claim::try_only);
          })
      .about(
          "Passes connection messages for the endpoint to the queue, with the token. listens: requests are accepted.")
      .def<"bind_cm(queue, token, listens)">([](EndpointCore& e, CmQueueCore& queue, uint64_t token, bool listens) {
        e.ep->cm().bind(queue.queue, token, listens);
      })
      .about("Sends a connection message to the endpoint at an address (nic, pid, vni).")
      .def<"send_cm(to, kind, connection, data)">(
          [](EndpointCore& e, const CmAddress& to, uint32_t kind, uint64_t connection, nb::bytes data) {
            answer_cm(e, [&] {
              return e.ep->cm().send(cm_address(to), static_cast<nic::CmKind>(kind), connection, cm_bytes(data));
            });
          })
      .about("Asks the endpoint at an address (nic, pid, vni) for a connection, accepts its request, or shuts down.")
      .def<"cm_step(kind, to, connection, data)">([](EndpointCore& e, uint32_t kind, const CmAddress& to,
                                                     uint64_t connection, nb::bytes data) {
        answer_cm(e, [&] {
          return e.ep->connection().step(static_cast<nic::CmKind>(kind), cm_address(to), connection, cm_bytes(data));
        });
      })
      .about("Changes the connection as a message of CmQueue.pop() says; what the application hears of the message.")
      .def<"cm_take(kind, what, source, connection)">(
          [](EndpointCore& e, uint32_t kind, uint32_t what, const CmAddress& source, uint64_t connection) {
            nic::CmEvent message;
            message.kind = static_cast<nic::CmKind>(kind), message.what = static_cast<nic::CmKind>(what);
            message.source = cm_address(source), message.connection = connection;
            return e.ep->connection().take(message);
          })
      .about("The connection: its state, the address (nic, pid, vni) of the peer if there is one, and its number.")
      .def<"cm_look">([](EndpointCore& e) {
        const nic::Connection& c = e.ep->connection();
        const wire::EpAddress p = c.peer().value_or(wire::EpAddress{});
        return std::tuple(c.state(), CmAddress{p.nic, p.pid, p.vni}, c.number());
      })
      .about(
          "Cancels operations with this context that have not started (fi_cancel); each completes as canceled.\n\n"
          "Raises FabricError (ENOENT) if there is no such operation: it may have completed just before.\n"
          "Source: fi_endpoint(3) fi_cancel.")
      .def<"cancel(self, context?: object) -> None">([](EndpointCore& e, nb::handle context) {
        if (e.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
        if (e.ep->closed()) raise(fi_err::kEOPBADSTATE, "the endpoint is closed");
        const size_t n = e.ep->cancel(reinterpret_cast<uint64_t>(context.ptr()));
        e.box->drain();
        if (n == 0) raise(2 /* FI_ENOENT */, "cancel: no operation with this context waits to be started");
      })
      .about(
          "Returns the limit (elements of one call, bytes of one element); (0, size) if the operation does not exist.")
      .def<"atomic_limit(datatype, op, family)">(
          [](const EndpointCore& e, uint64_t datatype, uint64_t op, uint64_t family) {
            const nic::Limits& limits = e.ep->domain()->nic()->limits();
            const call::AtomicLimit a = call::atomic_limit(e.ep->config().rules, limits, datatype, op, family);
            return std::pair(a.count, a.size);
          })
      .about("(nic, pid, vni) of the enabled endpoint.")
      .def_prop<"address">([](const EndpointCore& e) {
        const wire::EpAddress& a = e.ep->address();
        return CmAddress{a.nic, a.pid, a.vni};
      })
      .about("Counts of messages: see fi.MessageStatistics.")
      .def<"message_statistics(self) -> dict[str, Any]">([](EndpointCore& e) { return message_statistics(*e.ep); })
      .about(
          "The oldest messages that no receive has taken: (flags, length, data, tag, fi_addr of the sender) of each,\n"
          "untagged ones first; and the number of all.")
      .def<"unreceived(self, max: int) -> tuple[list[tuple[int, int, int, int, int]], int]">(
          [](EndpointCore& e, size_t max) { return unreceived(*e.ep, max); })
      .about(
          "tx_pending: number of operations under way; tx_size: the most at a time; batches: how often the endpoint "
          "has\n"
          "begun the operations that it held for MORE; fi.EndpointStatistics describes the others.")
      .def<"statistics(self) -> dict[str, int]">([](const EndpointCore& e) {
        nb::dict d;
        d["tx_pending"] = e.ep->outstanding();
        d["tx_size"] = e.ep->config().tx_size;
        d["batches"] = e.ep->batches();
        const auto [commands, free_slots] = e.ep->commands();
        d["commands"] = commands.commands;
        d["low_latency_commands"] = commands.low_latency;
        WEFT_PUT(d, commands, doorbells, write_backs);
        d["free_commands"] = free_slots;
        d["page_requests"] = e.ep->page_requests();
        d["page_timeouts"] = e.ep->page_timeouts();
        return d;
      })
      .def<"close">([](EndpointCore& e) {
        if (e.box->forked()) return;
        if (e.alias) {
          e.goes = 0;
          return;
        }
        {
          const ReleasedGil released;
          e.ep->close();
        }
        e.box->drain();
      });
}

}  // namespace weft::bind
