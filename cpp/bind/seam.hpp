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

#include "bind/declared.hpp"

namespace weft::bind {

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

constexpr int kFast = METH_FASTCALL | METH_KEYWORDS;  // how a PyMethodDef gets arguments by position and by name
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
//
//   .about("Binds a queue.")                                         the documentation of what follows, if there is any
//   .def<"bind_cq(cq, flags)">([](EndpointCore& e, ...) { ... })     as in declared.hpp
template <typename T, typename... Ts>
class Class : public nb::class_<T, Ts...> {
  using Base = nb::class_<T, Ts...>;
  using Guard = nb::call_guard<Seam>;

 public:
  using Base::Base;

  Class& about(const char* text) {
    about_ = text;
    return *this;
  }
  template <Text kText, typename F>
  Class& def(F&& f) {
    declare<kText>([&](const char* name, const auto&... all) { def(name, std::forward<F>(f), text(), all...); });
    return *this;
  }
  template <Text kText, typename F>
  Class& def_static(F&& f) {
    declare<kText>([&](const char* name, const auto&... all) { def_static(name, std::forward<F>(f), text(), all...); });
    return *this;
  }
  template <Text kText, typename Get, typename Set = std::nullptr_t>
  Class& def_prop(Get&& get, Set&& set = nullptr) {
    declare<kText>([&](const char* name, const auto&... all) {
      def_prop_rw(name, std::forward<Get>(get), std::forward<Set>(set), text(), all...);
    });
    return *this;
  }
  template <Text kText, typename C, typename D>
  Class& def_ro(D C::* member) {
    declare<kText>([&](const char* name, const auto&... all) { Base::def_ro(name, member, text(), all..., Guard()); });
    return *this;
  }

  // What only the program knows while it runs: nanobind's arguments.
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
  template <typename Get, typename Set, typename... Extra>
  Class& def_prop_rw(const char* name, Get&& get, Set&& set, const Extra&... extra) {
    Base::def_prop_rw(name, std::forward<Get>(get), std::forward<Set>(set), extra..., Guard());
    return *this;
  }

 private:
  const char* text() { return std::exchange(about_, ""); }
  const char* about_ = "";
};

class Module : public nb::module_ {
 public:
  explicit Module(const nb::module_& module) : nb::module_(module) {}

  Module& about(const char* text) {
    about_ = text;
    return *this;
  }
  template <Text kText, typename F, typename... Extra>
  Module& def(F&& f, const Extra&... extra) {
    declare<kText>([&](const char* name, const auto&... all) {
      nb::module_::def(name, std::forward<F>(f), std::exchange(about_, ""), all..., extra..., nb::call_guard<Seam>());
    });
    return *this;
  }

 private:
  const char* about_ = "";
};

// An object in a list of the binding: a new reference, or null if it is being destroyed. With a GIL no other thread can
// find such an object, because its destructor takes it off the list first.
PyObject* still_alive(PyObject* object) noexcept;

}  // namespace weft::bind
