// cpp/provider/work.cpp: fi_trigger(3): deferred work (FI_QUEUE_WORK and its like), and calls with FI_TRIGGER.
//
// cpp/call/deferred.hpp has the rules, and makes the NIC's work, as for Python programs. The structs of the program are
// read during the call alone; its buffers belong to the NIC until the operation is done.
#include <fcntl.h>
#include <sys/file.h>

#include <bit>

#include "base/fd.hpp"
#include "nic/counter.hpp"
#include "provider/calls.hpp"
#include "provider/ext.hpp"

namespace weft::provider {

namespace {

using call::WorkOp;
using nic::AtomicFamily;
using nic::OpKind;
using Queued = nic::TriggerUnit::Queued;

constexpr const char* kCall = "deferred work";
constexpr int kThreshold = 0;  // FI_TRIGGER_THRESHOLD

int no(const Domain& d, const char* call, int number, const std::string& why) {
  return refuse(d.fabric->front, Subject::domain, call, number, std::string(kCall) + ": " + why);
}
int invalid(const Domain& d, const char* call, const std::string& why) {
  return no(d, call, fi_err::kEINVAL, why);
}

// A counter of the domain; 0: it is.
int check_counter(const Domain& d, const char* call, const char* name, ofi::FidCntr* cntr) {
  if (cntr->fid.fclass != kClassCntr) return invalid(d, call, std::string(name) + " is no counter");
  return of(cntr).domain == &d ? 0 : invalid(d, call, std::string(name) + " is of another domain");
}

// What the structs of all operations of an endpoint have, and where their flags are.
struct Operation {
  ofi::FidEp* ep;
  uint64_t* flags;
  size_t local, remote;
  bool has_local;
};

Operation operation_of(int type, void* op) noexcept {
  const auto of_lists = [](auto* o) {
    return Operation{o->ep, &o->flags, o->msg.iov_count, o->msg.rma_iov_count, o->msg.iov != nullptr};
  };
  switch (type) {
    case ofi::kOpRecv:
    case ofi::kOpSend: {
      auto* const o = static_cast<ofi::OpMsg*>(op);
      return {o->ep, &o->flags, o->msg.iov_count, 1, true};
    }
    case ofi::kOpTrecv:
    case ofi::kOpTsend: {
      auto* const o = static_cast<ofi::OpTagged*>(op);
      return {o->ep, &o->flags, o->msg.iov_count, 1, true};
    }
    case ofi::kOpRead:
    case ofi::kOpWrite:
      return of_lists(static_cast<ofi::OpRma*>(op));
    case ofi::kOpAtomic:
      return of_lists(static_cast<ofi::OpAtomic*>(op));
    case ofi::kOpFetchAtomic:
      return of_lists(static_cast<ofi::OpFetchAtomic*>(op));
    default:
      return of_lists(static_cast<ofi::OpCompareAtomic*>(op));
  }
}

ssize_t post_later(Ep& ep, const char* call, int type, void* op, uint64_t flags, const Later& later) noexcept {
  switch (type) {
    case ofi::kOpRecv:
      return recv_message(ep, call, static_cast<ofi::OpMsg*>(op)->msg, flags, &later);
    case ofi::kOpSend:
      return send_message(ep, call, static_cast<ofi::OpMsg*>(op)->msg, flags, &later);
    case ofi::kOpTrecv:
      return recv_message(ep, call, static_cast<ofi::OpTagged*>(op)->msg, flags, &later);
    case ofi::kOpTsend:
      return send_message(ep, call, static_cast<ofi::OpTagged*>(op)->msg, flags, &later);
    case ofi::kOpRead:
      return transfer_message(ep, call, OpKind::read, static_cast<ofi::OpRma*>(op)->msg, flags, &later);
    case ofi::kOpWrite:
      return transfer_message(ep, call, OpKind::write, static_cast<ofi::OpRma*>(op)->msg, flags, &later);
    case ofi::kOpAtomic: {
      const auto* const o = static_cast<ofi::OpAtomic*>(op);
      return atomic_message(ep, call, AtomicFamily::base, o->msg, {}, {}, flags, &later);
    }
    case ofi::kOpFetchAtomic: {
      const auto* const o = static_cast<ofi::OpFetchAtomic*>(op);
      return atomic_message(ep, call, AtomicFamily::fetch, o->msg, {}, o->fetch, flags, &later);
    }
    default: {
      const auto* const o = static_cast<ofi::OpCompareAtomic*>(op);
      return atomic_message(ep, call, AtomicFamily::compare, o->msg, o->compare, o->fetch, flags, &later);
    }
  }
}

ssize_t queue_counting(Domain& d, const char* call, const ofi::DeferredWork& w, const Later& later) {
  const auto& op = *static_cast<const ofi::OpCntr*>(w.op);
  if (w.completion != nullptr) {
    return invalid(
        d, call, "work on a counter has no completion_cntr\n  try: chain further work by the counter that it changes");
  }
  if (op.cntr == nullptr) return invalid(d, call, "op.cntr is NULL: give the counter to change");
  if (const int r = check_counter(d, call, "op.cntr", op.cntr); r != 0) return r;
  auto work = std::make_unique<nic::Work>();
  const std::string why =
      call::fill_counting(static_cast<WorkOp>(w.op_type), of(op.cntr).counter, op.value, work.get());
  if (!why.empty()) return invalid(d, call, why);
  return queue_work(d, call, std::move(work), later);
}

// Queues the operation of a work; `owner`: its name for FI_CANCEL_WORK; 0: it has none.
ssize_t queue(Domain& d, const char* call, const ofi::DeferredWork& w, uint64_t owner) {
  if (w.triggering == nullptr)
    return invalid(d, call, "triggering_cntr is NULL: give the counter that starts the operation");
  if (const int r = check_counter(d, call, "triggering_cntr", w.triggering); r != 0) return r;
  const int type = w.op_type;
  if (type < ofi::kOpRecv || type > ofi::kOpCntrAdd) {
    return invalid(d, call, "op_type " + std::to_string(type) + ": FI_OP_RECV (0) to FI_OP_CNTR_ADD (10) are known");
  }
  if (w.op == nullptr) return invalid(d, call, "op is NULL: give the operation");
  Later later;
  later.threshold = w.threshold;
  later.owner = owner;
  later.trigger = of(w.triggering).counter;
  if (call::counts(static_cast<WorkOp>(type))) return queue_counting(d, call, w, later);
  if (w.completion != nullptr) {
    if (const int r = check_counter(d, call, "completion_cntr", w.completion); r != 0) return r;
    later.counter = of(w.completion).counter;
  }
  const Operation o = operation_of(type, w.op);
  if (o.ep == nullptr || o.ep->fid.fclass != kClassEp) return invalid(d, call, "op.ep is no endpoint");
  Ep& ep = of(o.ep);
  if (ep.domain != &d) return invalid(d, call, "op.ep is of another domain");
  const call::WorkShape shape{static_cast<WorkOp>(type), *o.flags, w.threshold, o.local, o.remote, o.has_local};
  uint64_t flags = 0;
  const std::string why = ep.no_work.empty() ? call::check_work(*ep.ep, shape, &flags, &later.write_back) : ep.no_work;
  if (!why.empty()) return invalid(d, call, why);
  return post_later(ep, call, type, w.op, flags, later);
}

// Work has to wait for an entry: the helper takes those of dead processes back, and says what would have sufficed.
// The log has its text at the first, second, fourth ... time.
void waits(Domain& d, const char* call) {
  Record question = question_about("work_waits", d.lease);
  question.add("waiting", d.domain->triggers().statistics().waiting);
  const Record answer = Helper::of_process().ask(question);
  if (std::has_single_bit(d.work.waited.fetch_add(1, std::memory_order_relaxed) + 1) && answer.has("text"))
    explain(d.fabric->front, Subject::domain, call, answer.text("text"));
}

// FI_CXI_ENABLE_TRIG_OP_LIMIT: one process at a time queues, and work for which there is no entry is refused.
ssize_t queue_limited(Domain& d, const char* call, std::unique_ptr<nic::Work>* work, bool write_back) {
  const UniqueFd held(::open(d.work.semaphore.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (held.get() < 0) throw Error(errno, d.work.semaphore + ": " + std::strerror(errno));
  while (::flock(held.get(), LOCK_EX) != 0) {
    if (errno != EINTR) throw Error(errno, d.work.semaphore + ": " + std::strerror(errno));
  }
  nic::TriggerUnit& unit = d.domain->triggers();
  if (unit.queue(work, write_back, false) != Queued::full) return 0;
  const Record answer = Helper::of_process().ask("work_full", d.lease);  // a refusal, unless there are entries now
  if (const int r = refused(d.fabric->front, Subject::domain, call, answer); r != 0) return r;
  return unit.queue(work, write_back, false) != Queued::full
             ? 0
             : no(d, call, fi_err::kENOSPC, "other processes have taken the entries of dead ones\n  try: retry");
}

int cancel(Domain& d, const char* call, const void* work) {
  if (work == nullptr) return invalid(d, call, "a struct fi_deferred_work is needed");
  const bool found = d.domain->triggers().cancel(reinterpret_cast<uint64_t>(work));
  d.forget_released();
  return found ? 0
               : refuse(d.fabric->front, Subject::domain, call, code::kENOENT,
                        "fi_control(FI_CANCEL_WORK): no such work waits: it has started, or was not queued");
}

}  // namespace

ssize_t queue_work(Domain& d, const char* call, std::unique_ptr<nic::Work> work, const Later& later) {
  work->threshold = later.threshold;
  work->trigger = later.trigger;
  if (work->counter == nullptr) work->counter = later.counter;
  work->owner = later.owner;
  ssize_t r = 0;
  if (!d.work.semaphore.empty()) {
    r = queue_limited(d, call, &work, later.write_back);
  } else if (d.domain->triggers().queue(&work, later.write_back, true) == Queued::waits) {
    waits(d, call);
  }
  d.domain->run_triggers();
  d.forget_released();
  return r;
}

ssize_t triggered(ofi::FidEp* fid, const char* name, int op_type, void* op, uint64_t* flags,
                  const void* context) noexcept {
  const Ep& ep = of(fid);
  if (ep.forked()) return refuse_forked(ep, name);
  Domain& d = *ep.domain;
  return guarded(d.fabric->front, Subject::ep_data, name, [&] {
    const auto* const when = static_cast<const ofi::TriggeredContext*>(context);
    if (when == nullptr) {
      return refuse(d.fabric->front, Subject::ep_data, name, fi_err::kEINVAL,
                    std::string(name) +
                        ": the context is NULL\n  rule: with FI_TRIGGER it is a struct fi_triggered_context, "
                        "fi_trigger(3)");
    }
    if (when->event_type != kThreshold) {
      return refuse(
          d.fabric->front, Subject::ep_data, name, fi_err::kENOSYS,
          std::string(name) + ": event_type " + std::to_string(when->event_type) + "; there is FI_TRIGGER_THRESHOLD");
    }
    *flags &= ~kTriggerFlag;
    const uint64_t side = call::receives(static_cast<WorkOp>(op_type)) ? nic::flag::kRecv : nic::flag::kSend;
    if ((of(whole(fid)).selective & side) == 0) *flags |= nic::flag::kCompletion;
    const ofi::DeferredWork work{{}, when->threshold, when->cntr, nullptr, op_type, op};
    return static_cast<int>(queue(d, name, work, 0));
  });
}

int control_work(Domain& d, int command, void* arg) noexcept {
  static const char* const call = "fi_control";
  return guarded(d.fabric->front, Subject::domain, call, [&] {
    if (command == ofi::kFlushWork) {
      (void)d.domain->triggers().flush();
      d.forget_released();
      return 0;
    }
    if (command == ofi::kCancelWork) return cancel(d, call, arg);
    if (arg == nullptr) return invalid(d, call, "a struct fi_deferred_work is needed");
    return static_cast<int>(
        queue(d, call, *static_cast<const ofi::DeferredWork*>(arg), reinterpret_cast<uint64_t>(arg)));
  });
}

}  // namespace weft::provider
