// cpp/bind/mr_steps.cpp: bind(), enable() and close() of a region. Calls on ordinary regions run here, without Python.
// All other calls, and all calls that will be refused, go to weft.fi.MemoryRegion (_bind, _enable, _close).

#include "bind/held.hpp"
#include "bind/held_error.hpp"
#include "bind/objects.hpp"
#include "bind/takes.hpp"

namespace weft::bind {

namespace {

bool usable(const MemoryRegionCore& r) {
  return r.staged && !r.py_closed && r.box && !r.box->forked();
}

using Place = RegionTakes::Place;

Place place_of(const MemoryRegionCore& r) {
  return {r.bound.ptr(), r.region->buffers()[0].local_addr, r.length, r.readonly};
}

// Calls `map` or `unmap`; null with a Python error set.
PyObject* call_of_place(const nb::object& function, const MemoryRegionCore& r, const Place& place) {
  PyObject* exporter = r.keep.first();
  if (exporter == nullptr || PyTuple_Check(exporter)) exporter = Py_None;
  return PyObject_CallFunction(
      function.ptr(), "OOKKOO", r.domain.ptr(), place.ep, static_cast<unsigned long long>(place.address),
      static_cast<unsigned long long>(place.length), place.readonly ? Py_True : Py_False, exporter);
}

// The mapping through which peers access the region; null with a Python error set.
const MappingCore* map(RegionTakes& takes, const MemoryRegionCore& r, const Place& place) {
  RegionTakes::Mapped* known = &takes.mapped[place];
  if (known->regions == 0 || nb::inst_ptr<MappingCore>(known->mapping)->region->closed()) {
    PyObject* made = call_of_place(takes.map, r, place);
    known = &takes.mapped[place];  // Python ran: the table may have changed
    if (made == nullptr) {
      if (known->regions == 0) takes.mapped.erase(place);
      return nullptr;
    }
    known->mapping = nb::steal(made);
    ++known->users;
  }
  ++known->regions;
  return nb::inst_ptr<MappingCore>(known->mapping);
}

// The reverse of map(). May run in a finalizer, so exceptions are printed.
void unmap(RegionTakes& takes, const MemoryRegionCore& r, const Place& place) {
  const auto known = takes.mapped.find(place);
  if (known == takes.mapped.end()) return;
  RegionTakes::Mapped last;
  nb::object kept;
  if (--known->second.regions == 0) {
    last = std::move(known->second);
    takes.mapped.erase(known);
  } else {
    kept = std::exchange(takes.kept, nb::object());
  }
  const HeldError error;
  const auto report = [](PyObject* done, const nb::object& by) {
    if (done == nullptr) PyErr_WriteUnraisable(by.ptr());
    Py_XDECREF(done);
  };
  for (uint32_t i = 0; i < last.users; ++i) report(call_of_place(takes.unmap, r, place), takes.unmap);
  if (kept.is_valid()) report(PyObject_CallNoArgs(kept.ptr()), kept);
}

// Enables a region whose key the provider makes: takes its resources and makes the key. False: a Python error is set,
// or weft.fi must enable the region.
bool enable_with_key(RegionTakes& takes, MemoryRegionCore& r) {
  using Took = MemoryRegionCore::Took;
  // While Python code ran, another thread may have enabled the region, or handed the region to weft.fi.
  const auto mine = [&] { return r.staged && !r.fixed && !r.mapped && r.took == Took::nothing; };
  if (takes.map.is_valid()) {
    if (r.iface != mem::kHmemSystem || r.length == 0 || g_holding) return false;
    const Place place = place_of(r);
    const MappingCore* mapping = map(takes, r, place);
    if (mapping == nullptr) return false;
    if (!mine()) {
      unmap(takes, r, place);
      return r.fixed;
    }
    r.mapped = true;
    r.region->enable_mapped(mapping->region);
    return true;
  }
  Took took = Took::high;
  if (takes.may_have_low(r.number)) {
    if (takes.take_or_ask(Took::low)) {
      took = Took::low;
    } else if (PyErr_ExceptionMatches(PyExc_OSError)) {
      PyErr_Clear();  // none is free: use `high` instead
    } else {
      return false;
    }
  }
  if (took == Took::high && !takes.take_or_ask(Took::high)) return false;
  if (!mine()) {
    takes.give_quietly(took);
    return r.fixed;
  }
  r.took = took;
  r.region->enable(takes.make_key(took, r.number));
  return true;
}

}  // namespace

void MemoryRegionCore::give_back() {
  RegionTakes* takes = box->rules.takes;
  if (takes == nullptr) return;
  if (mapped) {
    mapped = false;
    unmap(*takes, *this, place_of(*this));
  }
  if (number != kNoNumber) takes->numbers->give(std::exchange(number, kNoNumber));
  if (took != Took::nothing) takes->give_quietly(std::exchange(took, Took::nothing));
}

bool close_region(MemoryRegionCore& r) {
  if (r.box->forked()) return true;
  std::string why;
  const bool done = r.region->close_at_once() || close_released(*r.region, &why);
  r.box->drain();
  if (!done) return set_error(fi_err::kEBUSY, "the region cannot be closed: ", why, "; try again later");
  r.delist();
  r.give_back();
  r.keep.clear();
  if (g_holding) [[unlikely]]
    held_pages().release(&r);
  return true;
}

// HOT.
PyObject* region_bind(PyObject* self, PyObject* (&a)[2]) {
  auto* r = nb::inst_ptr<MemoryRegionCore>(self);
  static const nb::handle endpoint_type = nb::type<EndpointCore>();
  if (usable(*r) && !r->fixed && !r->bound.is_valid() && a[1] == nullptr &&
      PyObject_TypeCheck(a[0], reinterpret_cast<PyTypeObject*>(endpoint_type.ptr())) && nb::inst_ready(a[0]))
      [[likely]] {
    const auto* e = nb::inst_ptr<EndpointCore>(a[0]);
    if (e->box == r->box && e->ep && !e->alias && e->ep->enabled()) [[likely]] {
      try {
        r->region->bind_endpoint(*e->ep);
      } catch (const Error& refused) {
        return set_error(refused.fi_code(), refused.what());
      }
      r->bound = nb::borrow(a[0]);
      if (!PyObject_GC_IsTracked(self)) PyObject_GC_Track(self);
      Py_RETURN_NONE;
    }
  }
  return forward(self, interned<"_bind">(), a, a[1] != nullptr ? 2 : 1);
}

namespace {

// enable_with_key(). If it returns false, the region has no resources of `takes` but its number.
bool enabled_with_key(RegionTakes& takes, MemoryRegionCore& r) {
  try {
    if (enable_with_key(takes, r)) return true;
  } catch (const Error&) {  // weft.fi tries again, and raises the provider's refusal
  }
  if (std::exchange(r.mapped, false)) unmap(takes, r, place_of(r));
  if (r.took != MemoryRegionCore::Took::nothing) {
    takes.give_quietly(std::exchange(r.took, MemoryRegionCore::Took::nothing));
  }
  return false;
}

}  // namespace

// HOT.
PyObject* region_enable(PyObject* self, PyObject*) {
  auto* r = nb::inst_ptr<MemoryRegionCore>(self);
  if (usable(*r)) [[likely]] {
    const RegionRules& rules = r->box->rules;
    if (r->fixed) Py_RETURN_NONE;
    const bool bound = !rules.needs_bind || r->bound.is_valid();
    if (rules.decided && rules.key_later && rules.takes != nullptr && rules.takes->sequence != nullptr &&
        r->bound.is_valid() && r->took == MemoryRegionCore::Took::nothing && !r->mapped) {
      if (enabled_with_key(*rules.takes, *r)) {
        r->fixed = true;
        Py_RETURN_NONE;
      }
      if (PyErr_Occurred()) return nullptr;
    } else if ((!rules.decided || (rules.takes != nullptr && !rules.key_later)) && bound) [[likely]] {
      if (rules.decided) {
        const auto took = rules.takes->for_key(r->region->key());
        if (!rules.takes->take_or_ask(took)) return nullptr;
        if (r->took != MemoryRegionCore::Took::nothing) {  // while `more` ran, another thread enabled the region
          rules.takes->give_quietly(took);
          Py_RETURN_NONE;
        }
        r->took = took;
      }
      try {
        r->region->enable();
      } catch (const Error& refused) {
        if (r->took != MemoryRegionCore::Took::nothing) {
          rules.takes->give_quietly(std::exchange(r->took, MemoryRegionCore::Took::nothing));
        }
        return set_error(refused.fi_code(), refused.what());
      }
      r->fixed = true;
      Py_RETURN_NONE;
    }
  }
  return PyObject_CallMethodNoArgs(self, interned<"_enable">());
}

// HOT. Closes a region without sub-MRs and counters; for other regions MemoryRegion._close checks them first.
PyObject* region_close(PyObject* self, PyObject*) {
  auto* r = nb::inst_ptr<MemoryRegionCore>(self);
  if (r->py_closed || !nb::inst_ready(self)) Py_RETURN_NONE;  // not ready: nothing was registered
  bool python = r->special || (r->box && r->box->forked());
  if (!python && r->bound.is_valid() && !r->box->rules.ep_busy) {
    const auto* e = PyTuple_Check(r->bound.ptr()) ? nullptr : nb::inst_ptr<EndpointCore>(r->bound);
    python = e == nullptr || !e->ep || !e->ep->closed();
  }
  if (python) {
    return PyObject_CallMethodNoArgs(self, interned<"_close">());
  }
  if (!close_region(*r)) return nullptr;
  r->py_closed = true;
  r->bound.reset();
  Py_RETURN_NONE;
}

}  // namespace weft::bind
