// cpp/bind/ofi_work.cpp: deferred work of a real libfabric (fi_trigger(3), FI_QUEUE_WORK).
//
// The library looks at the work, at its message and at the lists of the message until the operation has ended. This
// object has them all. It lives as long as the operation's slot holds it: until the queue reports the operation
// (FI_COMPLETION is always asked for; entries that the application does not want are left out), the work is cancelled,
// or the endpoint is closed. Some providers report deferred work to counters alone: the object then lives until the
// endpoint is closed.
#include "bind/arglist.hpp"
#include "bind/deferred.hpp"
#include "bind/ofi_ep.hpp"

namespace weft::bind {

namespace {

constexpr const char* kCall = "deferred work";

using call::WorkOp;

[[noreturn]] void refuse(int code, const std::string& why) {
  raise(code, kCall, ": ", why);
}
[[noreturn]] void failed() {
  throw nb::python_error();
}

struct Work {
  ofi::DeferredWork work{};
  OfiList operand, compare, result;
  OfiRemote remote;
  union Op {
    ofi::OpMsg msg;
    ofi::OpTagged tagged;
    ofi::OpRma rma;
    ofi::OpAtomic atomic;
    ofi::OpFetchAtomic fetch;
    ofi::OpCompareAtomic compare;
    ofi::OpCntr cntr;
  } op{};
  std::shared_ptr<OfiDomain> domain;
  std::weak_ptr<OfiEp> endpoint;  // the slot holds this object, which must not keep the endpoint
  std::shared_ptr<OfiCntr> trigger, done, changed;
  uint64_t wanted = 0;        // flags, as the application gave them
  ofi::Slot* slot = nullptr;  // of the operation, while it is named in the slots
  [[nodiscard]] WorkOp type() const noexcept { return static_cast<WorkOp>(work.op_type); }
  [[nodiscard]] bool receives() const noexcept { return call::receives(type()); }
  [[nodiscard]] bool counts() const noexcept { return call::counts(type()); }
  [[nodiscard]] OfiCq* cq(const OfiEp& ep) const noexcept { return receives() ? ep.rx.get() : ep.tx.get(); }
  [[nodiscard]] ofi::Slots& slots(OfiEp& ep) const noexcept {
    return cq(ep) != nullptr ? cq(ep)->slots : ep.owner->own;
  }
};

std::shared_ptr<OfiCntr> counter(const CounterCore* core, const char* name) {
  return core == nullptr ? nullptr : ofi_counter(*core, (std::string(kCall) + ": " + name).c_str());
}

void begin(Work& w, int kind, uint64_t threshold, const CounterCore& trigger, const CounterCore* done) {
  w.trigger = counter(&trigger, "triggering_cntr");
  w.done = counter(done, "completion_cntr");
  w.work.threshold = threshold;
  w.work.triggering = w.trigger->get();
  w.work.completion = w.done == nullptr ? nullptr : w.done->get();
  w.work.op_type = kind;
  w.work.op = &w.op;
}

struct Numbers {
  ofi::Addr peer = ~uint64_t{0};
  uint64_t data = 0, tag = 0, ignore = 0, datatype = 0, op = 0;
};

uint64_t number(PyObject* msg, const char* name) {
  const Attr value(msg, name);
  uint64_t out = 0;
  if (value.value == nullptr || !to_u64(value.value, &out, kCall, name)) failed();
  return out;
}

void take_values(OfiList& list, nb::handle iov, nb::handle desc, bool writable, size_t element) {
  if (!list.acquire(iov.ptr(), writable, nullptr, kCall, element) || !list.take_descs(desc.ptr(), kCall)) failed();
}

// Reads the message of a transfer; the struct of the operation refers to the lists.
void make_transfer(OfiCore<Work>* self, OfiCore<OfiEp>& endpoint, int kind, nb::object msg, uint64_t flags,
                   nb::object comparev, nb::object compare_desc, nb::object resultv, nb::object result_desc,
                   uint64_t threshold, const CounterCore& trigger, const CounterCore* done) {
  auto box = std::make_shared<Work>();
  Work& w = *box;
  begin(w, kind, threshold, trigger, done);
  OfiEp& ep = ofi_open(endpoint, kCall);
  w.endpoint = endpoint.box;
  w.domain = ep.domain;
  w.wanted = flags;
  const WorkOp op_type = w.type();
  const bool tagged = op_type == WorkOp::trecv || op_type == WorkOp::tsend, atomic = op_type >= WorkOp::atomic;
  const bool fetches = op_type >= WorkOp::fetch_atomic, compares = op_type == WorkOp::compare_atomic;
  const bool remote = op_type >= WorkOp::read, writable = w.receives() || op_type == WorkOp::read;
  if (const std::string why = call::check_looks(op_type, flags); !why.empty()) refuse_work(why);
  Numbers n;
  n.peer = number(msg.ptr(), "addr");
  n.data = number(msg.ptr(), "data");
  size_t element = 0;
  if (tagged) {
    n.tag = number(msg.ptr(), "tag");
    n.ignore = number(msg.ptr(), "ignore");
    if (!ofi_tag(ep, kCall, n.tag, &n.ignore)) failed();
  }
  if (atomic) {
    n.datatype = number(msg.ptr(), "datatype");
    n.op = number(msg.ptr(), "op");
    element = element_bytes(n.datatype);
    if (element == 0 || n.op >= 1024)
      refuse(fi_err::kEOPNOTSUPP, "the datatype and the operation are no pair of fi_atomic(3)");
    w.operand.datatype = w.result.datatype = w.compare.datatype = n.datatype;
  }
  const Attr iov(msg.ptr(), "msg_iov"), count(msg.ptr(), "iov_count"), desc(msg.ptr(), "desc");
  if (iov.value == nullptr || count.value == nullptr || desc.value == nullptr ||
      !w.operand.acquire(iov.value, writable, count.value, kCall, element) ||
      !w.operand.take_descs(desc.value, kCall)) {
    failed();
  }
  if (fetches) take_values(w.result, resultv, result_desc, true, element);
  if (compares) take_values(w.compare, comparev, compare_desc, false, element);
  if (remote) {
    const Attr rma(msg.ptr(), "rma_iov"), rma_count(msg.ptr(), "rma_iov_count");
    if (rma.value == nullptr || rma_count.value == nullptr ||
        !ofi_remote(rma.value, rma_count.value, kCall, atomic, &w.remote.iov, &w.remote.count)) {
      failed();
    }
  }
  const uint64_t local = atomic ? w.operand.total / element : w.operand.total;
  if (w.result.total < (fetches ? w.operand.total : 0) || w.compare.total < (compares ? w.operand.total : 0)) {
    refuse(fi_err::kEINVAL, "the lists of values and results are shorter than the operands");
  }
  const OfiOp op{kCall, w.receives() ? flag::kRecv : kOfiTransmit, flags, w.operand.total, w.receives()};
  if (!ofi_ready(ep, kCall, n.peer, w.receives()) || !w.operand.all_described(ep, kCall) ||
      !w.compare.all_described(ep, kCall) || !w.result.all_described(ep, kCall) ||
      !ofi_fits(ep, op, w.operand.count, !writable) || !ofi_fits(ep, op, w.result.count, false) ||
      !ofi_fits(ep, op, w.compare.count, false) ||
      (remote && !w.remote.fits(ep, kCall, local, atomic ? "elements" : "bytes"))) {
    failed();
  }
  void* const context = &w.work;
  const uint64_t given = flags | flag::kCompletion;
  if (tagged) {
    w.op.tagged = {ep.get(),
                   {w.operand.iov.data(), w.operand.descs(), w.operand.count, n.peer, n.tag, n.ignore, context, n.data},
                   given};
  } else if (!remote) {
    w.op.msg = {ep.get(), {w.operand.iov.data(), w.operand.descs(), w.operand.count, n.peer, context, n.data}, given};
  } else if (!atomic) {
    w.op.rma = {ep.get(),
                {w.operand.iov.data(), w.operand.descs(), w.operand.count, n.peer, w.remote.iov.data(), w.remote.count,
                 context, n.data},
                given};
  } else {
    const ofi::MsgAtomic message{w.operand.ioc.data(),
                                 w.operand.descs(),
                                 w.operand.count,
                                 n.peer,
                                 w.remote.iov.data(),
                                 w.remote.count,
                                 static_cast<int>(n.datatype),
                                 static_cast<int>(n.op),
                                 context,
                                 n.data};
    const ofi::MsgValues fetch{w.result.ioc.data(), w.result.descs(), w.result.count};
    if (!fetches) {
      w.op.atomic = {ep.get(), message, given};
    } else if (!compares) {
      w.op.fetch = {ep.get(), message, fetch, given};
    } else {
      w.op.compare = {ep.get(), message, fetch, {w.compare.ioc.data(), w.compare.descs(), w.compare.count}, given};
    }
  }
  new (self) OfiCore<Work>{box};
}

void make_counting(OfiCore<Work>* self, OfiCore<OfiDomain>& domain, const CounterCore& changed, int kind,
                   uint64_t value, uint64_t threshold, const CounterCore& trigger) {
  auto box = std::make_shared<Work>();
  begin(*box, kind, threshold, trigger, nullptr);
  (void)ofi_open(domain, kCall);
  box->domain = domain.box;
  box->changed = counter(&changed, "op.cntr");
  box->op.cntr = {box->changed->get(), value};
  new (self) OfiCore<Work>{box};
}

int command(OfiDomain& d, int which, void* arg) {
  return d.h.fid->ops->control(d.h.fid, which, arg);
}

// Queues the work. context: of the message.
void queue(nb::handle self, nb::handle context) {
  Work& w = *nb::inst_ptr<OfiCore<Work>>(self)->box;
  if (w.domain->h.fid == nullptr) refuse(fi_err::kEOPBADSTATE, "the domain is closed");
  if (w.counts()) {
    ofi_check(kCall, command(*w.domain, ofi::kQueueWork, &w.work));
    return;
  }
  const std::shared_ptr<OfiEp> ep = w.endpoint.lock();
  if (ep == nullptr || ep->h.fid == nullptr || ep->h.closing) refuse(fi_err::kEOPBADSTATE, "the endpoint is closed");
  Buf own;
  own.owner = self.ptr();
  std::array<const Buf*, 1 + 3 * ofi::kIovMax> bufs{&own};
  size_t held = 1;
  for (const OfiList* list : {&w.operand, &w.compare, &w.result}) {
    for (size_t i = 0; i < list->count; ++i) bufs[held++] = list->pointers[i];
  }
  const OfiOp op{kCall, w.receives() ? flag::kRecv : kOfiTransmit, w.wanted | flag::kCompletion, 0, w.receives()};
  PyObject* const done = ofi_post(ep.get(), op, context.ptr(), bufs.data(), held, [&](void* place) -> ssize_t {
    w.slot = static_cast<ofi::Slot*>(place);
    w.slots(*ep).name(&w.work, w.slot);
    const int r = command(*w.domain, ofi::kQueueWork, &w.work);
    if (r != 0) (void)w.slots(*ep).unname(&w.work);
    return r;
  });
  if (done == nullptr) failed();
  OfiCq* cq = w.cq(*ep);
  if ((w.wanted & flag::kCompletion) == 0 && cq != nullptr) {
    w.slot->silent = true;
    ++cq->silent;
  }
}

// The library has dropped the work: its memory is free.
void release(Work& w) {
  const std::shared_ptr<OfiEp> ep = w.endpoint.lock();
  if (ep == nullptr || ep->h.fid == nullptr) return;
  ofi::Slots& slots = w.slots(*ep);
  ofi::Slot* slot = slots.unname(&w.work);
  if (slot != nullptr) ofi_release_slot(w.cq(*ep), slots, slot);
}

void cancel(OfiCore<Work>& self) {
  const std::shared_ptr<Work> w = self.box;
  ofi_check("domain.control(CANCEL_WORK)", command(*w->domain, ofi::kCancelWork, &w->work));
  release(*w);
}

// After FI_FLUSH_WORK: work whose counter is below its threshold has not started, and was dropped.
void flushed(OfiCore<Work>& self) {
  const std::shared_ptr<Work> w = self.box;
  if (w->trigger->h.fid == nullptr || w->trigger->h.unready != 0) return;
  const auto read = ofi::op(w->trigger->get()->ops, &ofi::CntrOps::read);
  if (read != nullptr && read(w->trigger->get()) < w->work.threshold) release(*w);
}

}  // namespace

void register_ofi_work(Module& m) {
  Class<OfiCore<Work>>(m, "OfiWorkCore", nb::is_weak_referenceable(), "Deferred work of a real libfabric.")
      .def<
          "__init__(self, ep: OfiEndpointCore, kind: int, msg: object, flags: int, comparev?: object, compare_desc?: "
          "object, resultv?: object, result_desc?: object, threshold: int, trigger: CounterCore, completion?: "
          "CounterCore | None) -> None">(&make_transfer)
      .def<"__init__(domain, cntr, kind, value, threshold, trigger)">(&make_counting)
      .about("FI_QUEUE_WORK.")
      .def<"queue(self, context?: object) -> None">([](nb::handle self, nb::handle context) { queue(self, context); })
      .about("FI_CANCEL_WORK.")
      .def<"cancel">(&cancel)
      .about("Gives the memory of work back that FI_FLUSH_WORK has dropped.")
      .def<"flushed">(&flushed);
  m.about("FI_FLUSH_WORK.").def<"ofi_flush_work(domain)">([](OfiCore<OfiDomain>& domain) {
    OfiDomain& d = ofi_open(domain, "domain.control(FLUSH_WORK)");
    ofi_check("domain.control(FLUSH_WORK)", command(d, ofi::kFlushWork, nullptr));
  });
}

}  // namespace weft::bind
