// cpp/bind/trigger.cpp: deferred work as Python functions: fi_control with FI_QUEUE_WORK and its like, fi_trigger(3).
#include "bind/atomic_args.hpp"
#include "bind/deferred.hpp"
#include "mem/ledger.hpp"

namespace weft::bind {

namespace {

using call::WorkOp;
using nic::AtomicFamily;
using Queued = nic::TriggerUnit::Queued;

const char* name_of(Queued queued) {
  return queued == Queued::armed ? "armed" : queued == Queued::waits ? "waits" : "full";
}

nic::TriggerUnit& unit_of(DomainCore& d) {
  return box_of(d)->domain->triggers();
}

// The entries of a message's list that count.
size_t count_of(nb::handle msg, const char* list, const char* count) {
  const nb::object given = msg.attr(count);
  if (!given.is_none()) return nb::cast<size_t>(given);
  const nb::object entries = msg.attr(list);
  return entries.is_none() ? 0 : nb::len(entries);
}

// The result is that of queue_work() below.
nb::object queue_op(EndpointCore& ep, WorkOp op, uint64_t flags, ListAtomic a, Deferral* later) {
  const char* const method = "queue_work";
  if (!usable(&ep, method)) throw nb::python_error();
  if (call::counts(op)) raise(fi_err::kEINVAL, method, ": an endpoint has no such operation");
  const nb::handle msg(a.msg);
  const size_t local = count_of(msg, "msg_iov", "iov_count");
  const size_t remote = op >= WorkOp::read ? count_of(msg, "rma_iov", "rma_iov_count") : 1;
  const call::WorkShape shape{op, flags, later->threshold, local, remote, !msg.attr("msg_iov").is_none()};
  if (const std::string why = call::check_work(*ep.ep, shape, &flags, &later->write_back); !why.empty())
    refuse_work(why);
  const nb::int_ left(flags);
  a.flags = left.ptr();
  PyObject* done = nullptr;
  switch (op) {
    case WorkOp::send:
    case WorkOp::tsend:
      done = send_msg(&ep, method, op == WorkOp::tsend, a.msg, a.flags, later);
      break;
    case WorkOp::recv:
    case WorkOp::trecv:
      done = recv_msg(&ep, method, op == WorkOp::trecv, a.msg, a.flags, later);
      break;
    case WorkOp::read:
    case WorkOp::write:
      done = transfer_msg(&ep, method, op == WorkOp::read ? OpKind::read : OpKind::write, a.msg, a.flags, later);
      break;
    default:
      done = atomic_msg(&ep, method, static_cast<AtomicFamily>(op - WorkOp::atomic), a, later);
      break;
  }
  if (done == nullptr) throw nb::python_error();
  return nb::steal(done);
}

Deferral deferral_of(uint64_t threshold, CounterCore& trigger, CounterCore* counter, nb::handle owner, bool may_wait) {
  check_usable(trigger, "counter");
  if (counter != nullptr) check_usable(*counter, "counter");
  return {threshold, trigger.counter, counter != nullptr ? counter->counter : nullptr, false, may_wait, owner.ptr()};
}

}  // namespace

void refuse_work(std::string why) {
  for (size_t at; (at = why.find("FI_")) != std::string::npos;) why.erase(at, 3);
  raise(fi_err::kEINVAL, "deferred work: ", why);
}

PyObject* queue_work(DomainBox& box, const char* method, std::unique_ptr<nic::Work> work, const Deferral& later) {
  work->threshold = later.threshold;
  work->trigger = later.trigger;
  if (!work->counter) work->counter = later.counter;
  work->owner = reinterpret_cast<uint64_t>(later.owner);
  if (later.owner != nullptr) {
    Py_INCREF(later.owner);
    work->cookies.push_back(work->owner);
  }
  const Queued queued = box.domain->triggers().queue(&work, later.write_back, later.may_wait);
  if (queued == Queued::full || queued == Queued::closed) {
    for (const uint64_t held : work->cookies) Py_DECREF(reinterpret_cast<PyObject*>(held));
    Py_XDECREF(reinterpret_cast<PyObject*>(work->context));
  }
  if (queued == Queued::closed)
    return set_error(fi_err::kEINVAL, method, ": the triggering counter is of another domain");
  run_triggers(box);
  return PyUnicode_FromString(name_of(queued));
}

void register_triggers(Module& m) {
  m.about(
       "Queues an operation of an endpoint, to be started when `trigger` reaches `threshold`, by the domain's "
       "WorkRules.\n"
       "A receive with the threshold 0 is posted at once, and the result is None.\n\n"
       "counter   counts the operation instead of the endpoint's counters.\n"
       "owner     any object, which is kept until the work has ended: the name of the work for cancel_work().\n"
       "may_wait  the work waits if the service has no free entry.\n\n"
       "Returns \"armed\"; \"waits\" (for an entry), or \"full\": nothing was queued.")
      .def<
          "queue_work(ep: EndpointCore, op_type: int, msg: object, flags: int, comparev?: object, compare_desc?: "
          "object, resultv?: object, result_desc?: object, threshold: int, trigger: CounterCore, counter?: CounterCore "
          "| None, owner: object, may_wait: bool) -> str | None">(
          [](EndpointCore& ep, uint8_t type, nb::handle msg, uint64_t flags, nb::handle comparev,
             nb::handle compare_desc, nb::handle resultv, nb::handle result_desc, uint64_t threshold,
             CounterCore& trigger, CounterCore* counter, nb::handle owner, bool may_wait) {
            Deferral later = deferral_of(threshold, trigger, counter, owner, may_wait);
            const ListAtomic a{.comparev = comparev.ptr(),
                               .compare_desc = compare_desc.ptr(),
                               .resultv = resultv.ptr(),
                               .result_desc = result_desc.ptr(),
                               .msg = msg.ptr()};
            return queue_op(ep, static_cast<WorkOp>(type), flags, a, &later);
          });
  m.about("As queue_work(), for work that sets a counter, or adds to it.")
      .def<
          "queue_counting(domain: DomainCore, target: CounterCore, op_type: int, value: int, threshold: int, trigger: "
          "CounterCore, owner: object, may_wait: bool) -> str">(
          [](DomainCore& d, CounterCore& target, uint8_t type, uint64_t value, uint64_t threshold, CounterCore& trigger,
             nb::handle owner, bool may_wait) {
            auto& box = box_of(d);
            check_usable(target, "counter");
            const Deferral later = deferral_of(threshold, trigger, nullptr, owner, may_wait);
            auto work = std::make_unique<nic::Work>();
            const std::string why = call::fill_counting(static_cast<WorkOp>(type), target.counter, value, work.get());
            if (!why.empty()) refuse_work(why);
            PyObject* done = queue_work(*box, "queue_work", std::move(work), later);
            if (done == nullptr) throw nb::python_error();
            return nb::steal(done);
          });
  m.about("Drops the deferred work that has not started. Returns its number.")
      .def<"flush_work(domain)">([](DomainCore& d) {
        auto& box = box_of(d);
        const size_t n = unit_of(d).flush();
        box->drain();
        return n;
      });
  m.about("Drops the deferred work with this owner; False: all of it has started, or there is none.")
      .def<"cancel_work(domain: DomainCore, owner?: object) -> bool">([](DomainCore& d, nb::handle owner) {
        auto& box = box_of(d);
        const bool found = unit_of(d).cancel(reinterpret_cast<uint64_t>(owner.ptr()));
        box->drain();
        return found;
      });
  m.about("Deferred work takes entries of the ledger from now on. Call it before any is queued.")
      .def<"limit_work(domain, ledger, slot, kind)">(
          [](DomainCore& d, nb::handle_t<mem::Ledger> ledger, uint32_t slot, uint32_t kind) {
            if (slot >= mem::Ledger::kSlotsMax || kind >= mem::Ledger::kKinds)
              raise(fi_err::kEINVAL, "limit_work: no such slot or kind");
            ledger.inc_ref();  // as MessageConfig.set_entries()
            unit_of(d).set_entries({nb::cast<mem::Ledger*>(ledger), slot, kind});
          });
  m.about(
       "Deferred work: armed (waits for its counter), waiting (for an entry), ready (for room in the queues of its\n"
       "endpoint), and started so far.")
      .def<"work_statistics(domain: DomainCore) -> dict[str, int]">([](DomainCore& d) {
        const nic::TriggerUnit::Statistics s = unit_of(d).statistics();
        nb::dict out;
        WEFT_PUT(out, s, armed, waiting, ready, started);
        return out;
      });
}

}  // namespace weft::bind
