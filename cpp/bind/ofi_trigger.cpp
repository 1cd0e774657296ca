// cpp/bind/ofi_trigger.cpp: triggered operations of a real libfabric (fi_trigger(3), FI_TRIGGER).
#include "bind/ofi_ep.hpp"

namespace weft::bind {

namespace {

constexpr uint64_t kThreshold = 0;  // FI_TRIGGER_THRESHOLD

bool refused(int code, const char* method, const std::string& why) {
  return set_error(code, method, ": TRIGGER: ", why);
}

// A field of a struct; an invalid object with an error set if there is no such field.
nb::object field(nb::handle owner, const char* name) {
  return nb::steal(PyObject_GetAttrString(owner.ptr(), name));
}

}  // namespace

bool OfiTrigger::take(const OfiEp& ep, const char* method, uint64_t flags, PyObject* context) {
  if ((flags & kOfiTrigger) == 0) [[likely]]
    return true;
  if (!ep.triggers) {
    return refused(fi_err::kEBADFLAGS, method,
                   "the endpoint was opened without the capability: ask for it in the hints of getinfo");
  }
  const nb::object kind = field(context, "event_type"), trigger = field(context, "trigger");
  if (!kind.is_valid() || !trigger.is_valid()) {
    PyErr_Clear();
    return refused(fi_err::kEINVAL, method, "the context of the message has to be an fi.TriggeredContext");
  }
  uint64_t number = 0;
  if (!to_u64(kind.ptr(), &number, method, "event_type")) return false;
  if (number != kThreshold) return refused(fi_err::kENOSYS, method, "event_type has to be TRIGGER_THRESHOLD");
  const nb::object counter = field(trigger, "cntr"), value = field(trigger, "threshold");
  uint64_t wanted = 0;
  if (!counter.is_valid() || !value.is_valid())
    return type_error("%s(): TRIGGER: context.trigger must be an fi.TriggerThreshold, not %R", method, trigger.ptr());
  if (!to_u64(value.ptr(), &wanted, method, "threshold")) return false;
  if (!nb::isinstance<CounterCore>(counter) || !nb::cast<CounterCore&>(counter).lib)
    return type_error("%s(): trigger.cntr must be a Counter of the endpoint's domain, not %R", method, counter.ptr());
  const OfiCntr& found = *nb::cast<CounterCore&>(counter).lib;
  if (found.h.fid == nullptr || found.h.closing) return refused(fi_err::kEOPBADSTATE, method, "the counter is closed");
  if (found.domain != ep.domain) return refused(fi_err::kEINVAL, method, "the counter is of another domain");
  cntr = found.get();
  threshold = wanted;
  held.owner = held.keepalive = nb::object(counter).release().ptr();
  return true;
}

void OfiTrigger::fill(ofi::Slot* slot) const {
  slot->internal[0] = reinterpret_cast<void*>(kThreshold);
  slot->internal[1] = cntr;
  slot->internal[2] = reinterpret_cast<void*>(threshold);
  slot->hold(reinterpret_cast<uint64_t>(Py_NewRef(held.owner)));
}

}  // namespace weft::bind
