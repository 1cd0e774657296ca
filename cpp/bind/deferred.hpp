// cpp/bind/deferred.hpp: calls that are queued as deferred work. See trigger.cpp.
#pragma once

#include <memory>
#include <span>

#include "bind/ep.hpp"
#include "call/deferred.hpp"

namespace weft::bind {

// Raises a refusal of cpp/call/deferred.hpp, with Python's names.
[[noreturn]] void refuse_work(std::string why);

struct Deferral {
  uint64_t threshold = 0;
  std::shared_ptr<nic::Counter> trigger, counter;
  bool write_back = false;
  bool may_wait = true;  // for an entry of the service
  PyObject* owner = nullptr;
};

// Queues work that is filled in, except for the deferral. Takes its cookies and its context, unless it is refused: then
// returns null with a Python error set. Otherwise the name of a nic::TriggerUnit::Queued.
PyObject* queue_work(DomainBox& box, const char* method, std::unique_ptr<nic::Work> work, const Deferral& later);

// Checks a call with these buffers, and queues it.
template <typename Call>
PyObject* queue(EndpointCore* core, const char* method, Call& c, PyObject* context, std::span<const Buf* const> bufs,
                const Deferral& later) {
  if (context == nullptr) context = Py_None;
  if constexpr (requires { c.has_context; }) c.has_context = context != Py_None;
  c.context = reinterpret_cast<uint64_t>(context);
  auto work = std::make_unique<nic::Work>();
  call::Why why;
  if (call::defer(*core->ep, c, core->lane, work.get(), &why) != Refusal::none) return refuse(core, method, why);
  work->cookies.reserve(bufs.size() + 1);
  Py_INCREF(context);
  for (const Buf* b : bufs) {
    PyObject* o = b->hold();
    if (o == nullptr) {
      for (const uint64_t held : work->cookies) Py_DECREF(reinterpret_cast<PyObject*>(held));
      Py_DECREF(context);
      return nullptr;
    }
    work->cookies.push_back(reinterpret_cast<uint64_t>(o));
  }
  return queue_work(*core->box, method, std::move(work), later);
}

}  // namespace weft::bind
