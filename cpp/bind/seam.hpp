// cpp/bind/seam.hpp: one caller at a time in the binding, where Python has no GIL.
//
// The binding keeps what its objects share (lists of open objects, queues of finished operations, cached entries) under
// the GIL. Free-threaded Python has none, so there every entry of the extension holds a critical section on one object,
// g_seam, which has the GIL's rules: one thread at a time, and released wherever the GIL would be (ReleasedGil, a
// Python lock that is waited for, a Python call that blocks). With a GIL nothing here costs anything.
//
// An entry is: a method in a type's slots, registered by `method<f>()` or `slot<f>()`; a nanobind function, made by the
// `def...` of `Class` and `Module`; a destructor of an object that others can find; a callback that takes the GIL.
// tests/meta/test_seam.py finds entries that are registered in another way.
#pragma once
#include <Python.h>
#include <nanobind/nanobind.h>

#include <utility>

namespace weft::bind {

namespace nb = nanobind;

// Called first by the module's initialisation.
void make_seam();

#ifdef Py_GIL_DISABLED
extern PyObject* g_seam;  // never freed

class Seam {
 public:
  Seam() { PyCriticalSection_Begin(&section_, g_seam); }
  ~Seam() { PyCriticalSection_End(&section_); }
  Seam(const Seam&) = delete;
  Seam& operator=(const Seam&) = delete;

 private:
  PyCriticalSection section_;
};

template <auto F, typename = decltype(F)>
struct Guarded;
template <auto F, typename R, typename... A>
struct Guarded<F, R (*)(A...)> {
  static R call(A... a) {
    const Seam seam;
    return F(a...);
  }
};
template <auto F, typename R, typename... A>
struct Guarded<F, R (*)(A...) noexcept> : Guarded<static_cast<R (*)(A...)>(F)> {};
template <auto F>
constexpr auto kEntry = &Guarded<F>::call;
#else
class Seam {
 public:
  Seam() noexcept {}  // not defaulted: the compiler would call a guard of the type unused
};
template <auto F>
constexpr auto kEntry = F;
#endif

// An entry for a PyMethodDef; for a PyType_Slot.
template <auto F>
PyCFunction method() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(kEntry<F>));
}
template <auto F>
void* slot() {
  return reinterpret_cast<void*>(kEntry<F>);
}

// nanobind's class_ and module_, whose functions are entries.
template <typename T, typename... Ts>
class Class : public nb::class_<T, Ts...> {
  using Base = nb::class_<T, Ts...>;
  using Guard = nb::call_guard<Seam>;

 public:
  using Base::Base;

  template <typename F, typename... Extra>
  Class& def(const char* name, F&& f, const Extra&... extra) {
    Base::def(name, std::forward<F>(f), extra..., Guard());
    return *this;
  }
  template <typename... Args, typename... Extra>
  Class& def(nb::init<Args...>&& made, const Extra&... extra) {
    Base::def(std::move(made), extra..., Guard());
    return *this;
  }
  template <typename F, typename... Extra>
  Class& def_static(const char* name, F&& f, const Extra&... extra) {
    Base::def_static(name, std::forward<F>(f), extra..., Guard());
    return *this;
  }
  template <typename Get, typename... Extra>
  Class& def_prop_ro(const char* name, Get&& get, const Extra&... extra) {
    Base::def_prop_ro(name, std::forward<Get>(get), extra..., Guard());
    return *this;
  }
  template <typename Get, typename Set, typename... Extra>
  Class& def_prop_rw(const char* name, Get&& get, Set&& set, const Extra&... extra) {
    Base::def_prop_rw(name, std::forward<Get>(get), std::forward<Set>(set), extra..., Guard());
    return *this;
  }
  template <typename C, typename D, typename... Extra>
  Class& def_ro(const char* name, D C::* member, const Extra&... extra) {
    Base::def_ro(name, member, extra..., Guard());
    return *this;
  }
  template <typename C, typename D, typename... Extra>
  Class& def_rw(const char* name, D C::* member, const Extra&... extra) {
    Base::def_rw(name, member, extra..., Guard());
    return *this;
  }
};

class Module : public nb::module_ {
 public:
  explicit Module(const nb::module_& module) : nb::module_(module) {}

  template <typename F, typename... Extra>
  Module& def(const char* name, F&& f, const Extra&... extra) {
    nb::module_::def(name, std::forward<F>(f), extra..., nb::call_guard<Seam>());
    return *this;
  }
};

// An object in a list of the binding: a new reference, or null if it is being destroyed. With a GIL no other thread can
// find such an object, because its destructor takes it off the list first.
PyObject* still_alive(PyObject* object) noexcept;

}  // namespace weft::bind
