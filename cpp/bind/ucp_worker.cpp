// cpp/bind/ucp_worker.cpp: the rest of weft.ucp's data path: completion, progress, flush, waiting.
//
// HOT: progress. cpp/ucp decides which request has ended and which failure a flush reports; this file reads the NIC's
// queue, holds references, and calls callbacks. Benchmark: bench/bench_ucp.py.
#include <algorithm>
#include <utility>

#include "bind/held_error.hpp"
#include "bind/params.hpp"
#include "bind/signatures.hpp"
#include "bind/ucp.hpp"
#include "bind/wait.hpp"
#include "nic/queue.hpp"

namespace weft::bind {

PyTypeObject* g_ucp_request_type = nullptr;
PyObject* g_ucp_done = nullptr;

namespace {

PyObject* g_waker = nullptr;  // weft.ucp.aio.wake

// ---- completion ----------------------------------------------------------------------------------------------------

// Ends a request: drops its references, and queues its callback and the tasks that await the request.
void over(UcpWorker& worker, nb::object object) {
  UcpRequest& r = *nb::inst_ptr<UcpRequest>(object);
  if (r.rkey.is_valid()) {
    --nb::inst_ptr<UcpRkey>(r.rkey)->in_flight;
    r.rkey = nb::object();
  }
  r.keep.clear();
  if (!r.cb.is_valid()) r.user_data = nb::object();
  for (nb::object& future : std::exchange(r.waiters, {})) worker.to_wake.push_back(std::move(future));
  if (r.cb.is_valid() && !r.freed) worker.to_call.push_back(std::move(object));
}

// Takes the current UcsError, as a status and a text.
int failure_of(std::string& text) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  int status = kIoError;
  const nb::object number = nb::steal(value != nullptr ? PyObject_GetAttrString(value, "status") : nullptr);
  if (number.is_valid() && PyLong_Check(number.ptr())) status = static_cast<int>(PyLong_AsLong(number.ptr()));
  const nb::object said = nb::steal(value != nullptr ? PyObject_Str(value) : nullptr);
  if (said.is_valid()) text = nb::cast<std::string>(said);
  PyErr_Clear();
  Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
  return status;
}

// Handles one completion of the NIC; takes the context's reference.
void settle(UcpWorker& worker, uint64_t context, Status status, std::string text) {
  if (context == 0) return;
  nb::object object = nb::steal(reinterpret_cast<PyObject*>(context));
  UcpRequest& r = *nb::inst_ptr<UcpRequest>(object);
  int told = kOk;
  if (status != Status::ok) [[unlikely]]
    told = ucp::status_on(worker, static_cast<UcpEp*>(r.ep), status, &text);
  if (r.delivers.is_valid() && r.parts == 1) [[unlikely]] {
    const nb::object delivers = std::exchange(r.delivers, nb::object());
    if (told == kOk && r.first_failure == kOk && !deliver(delivers)) told = failure_of(text);
  }
  const auto outcome = worker.settle(r, told, ucp::ends_endpoint(status), text);
  follow(worker, std::move(object), outcome);
}

size_t end_flushes(UcpWorker& worker, std::vector<ucp::Request*> ended) {
  for (ucp::Request* f : ended) over(worker, nb::steal(static_cast<UcpRequest*>(f)->self));
  return ended.size();
}

// Resumes tasks whose request has ended. Runs only Python code of Weft, no callback of the application.
void wake(UcpWorker& worker) {
  for (const nb::object& future : std::exchange(worker.to_wake, {})) {
    PyObject* r = PyObject_CallOneArg(g_waker, future.ptr());
    r == nullptr ? PyErr_WriteUnraisable(g_waker) : Py_DECREF(r);
  }
}

// Wakes threads that sleep in wait_core(): this thread may have taken the completion that they wait for.
void tell_others(UcpWorker& worker) {
  if (worker.sleepers != 0) worker.cq->cq->event.notify();
  if (!worker.to_wake.empty()) wake(worker);
}

}  // namespace

bool deliver(const nb::object& delivers) {
  for (nb::handle each : nb::borrow<nb::list>(delivers)) {
    PyObject* r = PyObject_CallMethod(each.ptr(), "deliver", nullptr);
    if (r == nullptr) return false;
    Py_DECREF(r);
  }
  return true;
}

void follow(UcpWorker& worker, nb::object object, ucp::Worker::Outcome outcome) {
  if (outcome.endpoint_failed) worker.failed.push_back(nb::inst_ptr<UcpRequest>(object)->ep_object);
  if (outcome.ended) over(worker, std::move(object));
}

size_t collect(UcpWorker& worker) {
  const auto emptied = [&] {
    if (worker.cq->notifier && worker.queue->unread() == 0) worker.cq->notifier->drain();
  };
  size_t total = ucp::take_completions(
      worker, worker.nic_ep->box->domain.get(), emptied,
      [&](uint64_t context, Status status, std::string text) { settle(worker, context, status, std::move(text)); });
  if (worker.has_flushes()) [[unlikely]]
    total += end_flushes(worker, worker.end_flushes());
  if (total != 0) tell_others(worker);
  return total;
}

bool worker_usable(UcpWorker& worker, const char* method) {
  if (!ucp::is_open(worker)) [[unlikely]]
    return refuse(method, ucp::why_closed());
  if (worker.nic_ep->box->forked()) [[unlikely]] {
    return refuse(kInvalidParam,
                  std::string(method) +
                      ": this worker belongs to the parent process\n  try: a context of the forked child's own");
  }
  worker.nic_ep->box->drain();
  return true;
}

namespace {

// Runs all callbacks and handlers that are due. False with the first exception set.
bool run_callbacks(UcpWorker& worker) {
  std::optional<HeldError> first;  // is set at the end
  const auto remember = [&] { first.has_value() ? PyErr_WriteUnraisable(nullptr) : void(first.emplace()); };
  while (worker.due()) {
    for (nb::object& object : std::exchange(worker.to_call, {})) {
      UcpRequest& r = *nb::inst_ptr<UcpRequest>(object);
      // Drop both references: the objects may refer to the request.
      const nb::object cb = std::exchange(r.cb, nb::object());
      const nb::object user_data = std::exchange(r.user_data, nb::object());
      if (r.freed) continue;
      r.observed();
      PyObject* result = PyObject_CallFunction(cb.ptr(), "OiO", object.ptr(), r.status.load(),
                                               user_data.is_valid() ? user_data.ptr() : Py_None);
      result == nullptr ? remember() : Py_DECREF(result);
    }
    for (nb::object& object : std::exchange(worker.failed, {})) {
      const UcpEp& ep = *nb::inst_ptr<UcpEp>(object);
      PyObject* result = PyObject_CallMethod(object.ptr(), "_on_failure", "is", ep.failed(), ep.why().c_str());
      result == nullptr ? remember() : Py_DECREF(result);
    }
  }
  return !first.has_value();
}

PyObject* worker_call_due(PyObject* self, PyObject*) {
  if (!run_callbacks(*nb::inst_ptr<UcpWorker>(self))) return nullptr;
  Py_RETURN_NONE;
}

PyObject* worker_progress(PyObject* self, PyObject*) {
  UcpWorker& worker = *nb::inst_ptr<UcpWorker>(self);
  if (!worker_usable(worker, "progress")) return nullptr;
  nic::Nic* nic = worker.nic_ep->box->domain->nic();
  size_t n = collect(worker);
  const bool worked = n == 0 && nic->poll_from_app() != 0;
  if (worked) n = collect(worker);
  if (const uint64_t downs = nic->downs(); downs != worker.downs) [[unlikely]] {
    n += ucp::note_downs(worker, downs,
                         [&](ucp::Peer& ep) { worker.failed.push_back(nb::borrow(static_cast<UcpEp&>(ep).self)); });
  }
  if (n == 0 && !worked) {
    if (worker.pacer.due()) [[unlikely]] {
      const ReleasedGil released;
      worker.pacer.yield_or_rest();
    }
  } else {
    worker.pacer.found();
  }
  if (worker.due() && !run_callbacks(worker)) return nullptr;
  return PyLong_FromSize_t(n);
}

// ---- flush ---------------------------------------------------------------------------------------------------------

PyObject* flush(nb::object worker_object, PyObject* ep_object, PyObject* param, PyObject* cb, PyObject* user_data,
                PyObject* flags_arg) {
  UcpWorker& worker = *nb::inst_ptr<UcpWorker>(worker_object);
  UcpEp* ep = ep_object != nullptr ? nb::inst_ptr<UcpEp>(ep_object) : nullptr;
  UcpOptions o;
  if (!read_options("flush_nbx", param, nullptr, cb, user_data, nullptr, flags_arg, nullptr, o)) return translated();
  if (!worker_usable(worker, "flush_nbx")) return nullptr;
  if (ep != nullptr && ep->closed()) return refuse("flush_nbx", {kInvalidParam, ": the endpoint is closed"});
  collect(worker);
  nb::object object = nb::steal(worker.spare != nullptr ? std::exchange(worker.spare, nullptr) : new_request());
  UcpRequest& r = *nb::inst_ptr<UcpRequest>(object);
  ucp::Failure failure;
  const auto start = worker.begin_flush(r, ep, (o.flags & ucp::kNoImmCmpl) != 0, &failure);
  if (start != ucp::Worker::FlushStart::under_way) {
    worker.spare = object.release().ptr();
    if (start == ucp::Worker::FlushStart::done) return Py_NewRef(g_ucp_done);
    return refuse("flush_nbx", {failure.status, ": " + failure.text});
  }
  r.worker_object = std::move(worker_object);
  if (ep_object != nullptr) r.ep_object = nb::borrow(ep_object);
  if (given(o.cb)) r.cb = nb::borrow(o.cb);
  if (given(o.user_data)) r.user_data = nb::borrow(o.user_data);
  r.self = object.inc_ref().ptr();  // the worker's reference, until the flush ends
  return object.release().ptr();
}

PyObject* worker_flush_nbx(PyObject* self, PyObject* (&a)[4]) {
  return flush(nb::borrow(self), nullptr, a[0], a[1], a[2], a[3]);
}

}  // namespace

PyObject* ep_flush_nbx(PyObject* self, PyObject* (&a)[4]) {
  const UcpEp& ep = *nb::inst_ptr<UcpEp>(self);
  if (ep.port == nullptr) return refuse("flush_nbx", ucp::why_closed(ep));  // __init__() has not run
  return flush(ep.worker_object, self, a[0], a[1], a[2], a[3]);
}

namespace {

// ---- waiting -------------------------------------------------------------------------------------------------------

// wait_core(seconds, request=None). True when there is work for progress(), when the request has ended, or, without a
// request, when signal() is called; false at the timeout.
PyObject* worker_wait_core(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs < 1 || nargs > 2) return type_error("wait_core(seconds, request=None)");
  UcpWorker& worker = *nb::inst_ptr<UcpWorker>(self);
  if (!worker_usable(worker, "wait")) return nullptr;
  uint64_t deadline = kForever;
  if (args[0] != Py_None) {
    const double s = PyFloat_AsDouble(args[0]);
    if (s == -1.0 && PyErr_Occurred()) return nullptr;
    if (!(s > 0)) {
      deadline = 0;  // the deadline has passed: check once
    } else if (s < 1e9) {
      deadline = now_ns() + static_cast<uint64_t>(s * 1e9);
    }
  }
  const UcpRequest* r = nullptr;
  if (nargs == 2 && PyObject_TypeCheck(args[1], g_ucp_request_type)) r = nb::inst_ptr<UcpRequest>(args[1]);
  const nb::object keep = nb::borrow(self);
  if (end_flushes(worker, worker.end_flushes()) != 0) tell_others(worker);
  if (worker.due() || (r != nullptr && r->ended())) Py_RETURN_TRUE;
  nic::Domain* domain = worker.nic_ep->box->domain.get();
  const auto cq = worker.cq->cq;
  const uint64_t downs = worker.downs;
  ++worker.sleepers;
  const int found = wait_for(*domain->nic(), cq->event, worker.cq->pacer, deadline, [&] {
    if (r != nullptr ? r->ended() : cq->signaled.load(std::memory_order_acquire)) return true;
    if (domain->nic()->downs() != downs) return true;
    const nic::DomainLock guard(domain);
    return cq->unread() != 0;
  });
  --worker.sleepers;
  if (found < 0) return nullptr;
  if (r == nullptr) cq->signaled.store(false);
  return PyBool_FromLong(found);
}

PyMethodDef g_worker_methods[] = {
    {"progress", method<worker_progress>(), METH_NOARGS,
     "Advances operations and calls callbacks (ucp_worker_progress). Returns how much was done; 0: nothing.\n\n"
     "Raises the first exception of a callback, after all due callbacks were called.\n"
     "Source: UCP, ucp_worker_progress."},
    {"flush_nbx", method<parsed<worker_flush_nbx, "flush_nbx", "param|cb user_data flags">>(), kFast,
     "As Endpoint.flush_nbx, for all endpoints of the worker (ucp_worker_flush_nbx).\n\n"
     "Source: UCP, ucp_worker_flush_nbx."},
    {"wait_core", method<worker_wait_core>(), METH_FASTCALL,
     "Waits until progress() has something to do, the request has ended, or signal() was called: True. False at the "
     "timeout."},
    {"call_due", method<worker_call_due>(), METH_NOARGS,
     "Calls the callbacks that are due. Raises the first exception of a callback."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void register_ucp_worker(Module& m) {
  m.about("Registers the class of requests, and the request that operations done in place return.")
      .def<"set_ucp_request(type, done)">([](nb::type_object type, nb::object done) {
        g_ucp_request_type = reinterpret_cast<PyTypeObject*>(type.release().ptr());
        nb::inst_ptr<UcpRequest>(done)->status = kOk;
        g_ucp_done = done.release().ptr();
      });
  m.about("Registers the function (future) -> None that ends the wait of a task whose request has ended.")
      .def<"set_ucp_waker(f: Callable[[Any], None]) -> None">([](nb::object f) { keep(g_waker, std::move(f)); });

  Class<UcpRequest>(m, "UcpRequestCore", "The NIC's side of a request.")
      .def(nb::init<>())
      .def<"__bool__">([](nb::handle self) { return self.ptr() != g_ucp_done; })
      .about("The ucs_status_t. Reading a failure here reports it: later flushes do not repeat it.")
      .def_prop<"status_code">([](UcpRequest& r) {
        r.observed();
        return r.status.load();
      })
      .def_prop<"ended">([](const UcpRequest& r) { return r.ended(); })
      .about("As status_code, for texts: reading a failure here does not report it.")
      .def_prop<"peeked">([](const UcpRequest& r) { return r.status.load(); })
      .def_prop<"text">([](const UcpRequest& r) { return r.text; })
      .def_prop<"worker(self) -> Any">(
          [](const UcpRequest& r) { return r.worker_object.is_valid() ? r.worker_object : nb::none(); })
      .def_prop<"ep(self) -> Any">(
          [](const UcpRequest& r) { return r.ep_object.is_valid() ? r.ep_object : nb::none(); })
      .def_prop<"freed">([](const UcpRequest& r) { return r.freed; }, [](UcpRequest& r, bool on) { r.freed = on; })
      .about("Makes the waker be called with the future when the request ends. False if the request has already ended.")
      .def<"add_waiter(self, future: Any) -> bool">([](UcpRequest& r, nb::object future) {
        if (r.ended()) return false;
        r.waiters.push_back(std::move(future));
        return true;
      })
      .def<"drop_waiter(self, future: Any) -> None">([](UcpRequest& r, nb::handle future) {
        std::erase_if(r.waiters, [&](const nb::object& o) { return o.is(future); });
      });

  Class<UcpWorker>(m, "UcpWorkerCore", nb::type_slots(method_slots<"UcpWorkerCore", g_worker_methods>()),
                   "The NIC's side of a worker.")
      .def<"__init__(domain, cq, av, ep, features)">(
          [](UcpWorker* self, nb::handle_t<DomainCore> domain, nb::handle_t<CompletionQueueCore> cq,
             nb::handle_t<AddressVectorCore> av, nb::handle_t<EndpointCore> ep, uint32_t features) {
            new (self) UcpWorker();
            self->cq = nb::inst_ptr<CompletionQueueCore>(cq);
            self->nic_ep = nb::inst_ptr<EndpointCore>(ep);
            self->domain_object = nb::borrow(domain);
            self->cq_object = nb::borrow(cq);
            self->av_object = nb::borrow(av);
            self->ep_object = nb::borrow(ep);
            self->nic = self->nic_ep->ep.get();
            self->queue = self->cq->cq.get();
            self->features = features;
            self->downs = self->nic_ep->box->domain->nic()->downs();
          })
      .def<"fence">([](UcpWorker& w) { ++w.fence_count; })
      .about("False if progress() has work that is not an entry of the queue, or if signal() was called.")
      .def<"arm_core">([](UcpWorker& w) {
        const auto& cq = w.cq->cq;
        const bool signaled = cq->signaled.exchange(false);
        if (w.cq->notifier) {
          const nic::DomainLock guard(w.nic_ep->box->domain.get());
          if (cq->unread() == 0) w.cq->notifier->drain();
        }
        const size_t ended = end_flushes(w, w.end_flushes());
        if (ended != 0) tell_others(w);
        return !signaled && ended == 0 && !w.due() && w.downs == w.nic_ep->box->domain->nic()->downs();
      })
      .about("The number of operations under way.")
      .def<"under_way">([](const UcpWorker& w) { return w.under_way(); })
      .def<"cancel_flush(self, request: Any) -> bool">([](UcpWorker& w, nb::object request) {
        if (!PyObject_TypeCheck(request.ptr(), g_ucp_request_type)) {
          throw nb::type_error("cancel_flush: the request is one of flush_nbx()");
        }
        UcpRequest& r = *nb::inst_ptr<UcpRequest>(request);
        if (!w.cancel_flush(r)) return false;
        over(w, nb::steal(r.self));
        tell_others(w);
        return true;
      })
      .about("From here on operations that end as canceled count as failures: the application did not cancel them.")
      .def<"begin_close">([](UcpWorker& w) { w.begin_close(); })
      .def<"shut">([](UcpWorker& w) {
        if (w.closed) return;
        if (!w.nic_ep->box->forked()) {
          collect(w);
          end_flushes(w, w.abandon_flushes());
          tell_others(w);
        }
        w.closed = true;
      });
}

}  // namespace weft::bind
