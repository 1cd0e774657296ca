// cpp/bind/mr_steps.cpp: bind(), enable() and close() of a region. Calls on ordinary regions run here, without Python.
// All other calls, and all calls that will be refused, go to weft.fi.MemoryRegion (_bind, _enable, _close).
#include <algorithm>

#include "bind/held.hpp"
#include "bind/objects.hpp"
#include "bind/takes.hpp"

namespace weft::bind {

namespace {

Signature g_bind_sig{"mr.bind", {"fid", "flags"}, 2, 1, {}};

const RegionTakes::Some& some_of(const RegionTakes& takes, MemoryRegionCore::Took took) {
  return took == MemoryRegionCore::Took::low ? takes.low : takes.high;
}

bool usable(const MemoryRegionCore& r) {
  return r.staged && !r.py_closed && r.box && !r.box->forked();
}

}  // namespace

void MemoryRegionCore::give_back() {
  RegionTakes* takes = box->rules.takes;
  if (takes == nullptr) return;
  if (number != kNoNumber) takes->numbers->give(std::exchange(number, kNoNumber));
  if (took != Took::nothing) takes->give(some_of(*takes, std::exchange(took, Took::nothing)));
}

bool close_region(MemoryRegionCore& r) {
  if (r.box->forked()) return true;
  std::string why;
  bool done;
  {
    const ReleasedGil released;
    done = r.region->close(&why);
  }
  r.box->drain();
  if (!done) {
    set_error(fi_err::kEBUSY, "the region cannot be closed: " + why + "; try again later");
    return false;
  }
  r.delist();
  r.give_back();
  r.keep.clear();
  if (g_holding) [[unlikely]]
    held_pages().release(&r);
  return true;
}

// HOT.
PyObject* region_bind(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[2];
  if (!parse(g_bind_sig, args, nargs, kwnames, a)) return nullptr;
  auto* r = nb::inst_ptr<MemoryRegionCore>(self);
  static const nb::handle endpoint_type = nb::type<EndpointCore>();
  if (usable(*r) && !r->fixed && !r->bound.is_valid() && a[1] == nullptr &&
      PyObject_TypeCheck(a[0], reinterpret_cast<PyTypeObject*>(endpoint_type.ptr())) && nb::inst_ready(a[0]))
      [[likely]] {
    const auto* e = nb::inst_ptr<EndpointCore>(a[0]);
    if (e->box == r->box && e->ep && e->ep->enabled()) [[likely]] {
      try {
        r->region->bind_endpoint(*e->ep);
      } catch (const Error& refused) {
        set_error(refused.fi_code(), refused.what());
        return nullptr;
      }
      r->bound = nb::borrow(a[0]);
      if (!PyObject_GC_IsTracked(self)) PyObject_GC_Track(self);
      Py_RETURN_NONE;
    }
  }
  static PyObject* name = PyUnicode_InternFromString("_bind");
  PyObject* forwarded[3] = {self, a[0], a[1]};
  return PyObject_VectorcallMethod(name, forwarded, a[1] != nullptr ? 3 : 2, nullptr);
}

// HOT.
PyObject* region_enable(PyObject* self, PyObject*) {
  auto* r = nb::inst_ptr<MemoryRegionCore>(self);
  if (usable(*r)) [[likely]] {
    const RegionRules& rules = r->box->rules;
    if (r->fixed) Py_RETURN_NONE;
    const bool here = !rules.decided || (rules.takes != nullptr && !rules.key_later);
    if (here && (!rules.needs_bind || r->bound.is_valid())) [[likely]] {
      if (rules.decided) {
        const auto took =
            r->region->key() < rules.takes->below ? MemoryRegionCore::Took::low : MemoryRegionCore::Took::high;
        if (!rules.takes->take(some_of(*rules.takes, took))) return nullptr;
        if (r->took != MemoryRegionCore::Took::nothing) {  // while `more` ran, another thread enabled the region
          rules.takes->give(some_of(*rules.takes, took));
          Py_RETURN_NONE;
        }
        r->took = took;
      }
      try {
        r->region->enable();
      } catch (const Error& refused) {
        if (r->took != MemoryRegionCore::Took::nothing) {
          rules.takes->give(some_of(*rules.takes, std::exchange(r->took, MemoryRegionCore::Took::nothing)));
        }
        set_error(refused.fi_code(), refused.what());
        return nullptr;
      }
      r->fixed = true;
      Py_RETURN_NONE;
    }
  }
  static PyObject* name = PyUnicode_InternFromString("_enable");
  return PyObject_CallMethodNoArgs(self, name);
}

// HOT. Closes a region without sub-MRs and counters; for other regions MemoryRegion._close checks those first.
PyObject* region_close(PyObject* self, PyObject*) {
  auto* r = nb::inst_ptr<MemoryRegionCore>(self);
  if (r->py_closed) Py_RETURN_NONE;
  bool python = r->special || (r->box && r->box->forked());
  if (!python && r->bound.is_valid() && !r->box->rules.ep_busy) {
    const auto* e = PyTuple_Check(r->bound.ptr()) ? nullptr : nb::inst_ptr<EndpointCore>(r->bound);
    python = e == nullptr || !e->ep || !e->ep->closed();
  }
  if (python) {
    static PyObject* name = PyUnicode_InternFromString("_close");
    return PyObject_CallMethodNoArgs(self, name);
  }
  if (!close_region(*r)) return nullptr;
  r->py_closed = true;
  r->bound.reset();
  Py_RETURN_NONE;
}

}  // namespace weft::bind
