// cpp/bind/params.hpp: the parameters of a data-path method, written once: its signature, and where its arguments go.
//
// HOT: read() of arguments that are given by position: a load and a store each, to a place that is a constant.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "bind/common.hpp"

namespace weft::bind {

// A parameter's name, and its place in the arguments P.
template <typename P>
struct Param {
  std::string_view name;
  PyObject* P::* place;
};

template <size_t N>
struct Text {
  consteval Text(const char (&from)[N]) { std::copy_n(from, N, text); }  // NOLINT: implicit
  char text[N]{};
};

// kList: names in order, as in "buf! desc len|count". "!": the argument is necessary. Names behind "|" are given by
// name only. P::kParams has their places; absent arguments stay null.
template <typename P, Text kMethod, Text kList>
class Method {
  static constexpr size_t kMost = 16;
  struct Layout {
    char text[sizeof(kList.text)]{};               // the names, each with its zero
    size_t count = 0, positional = 0, enough = 0;  // enough: arguments by position that contain the necessary ones
    std::array<size_t, kMost> begin{};
    std::array<PyObject * P::*, kMost> place{};
    std::array<bool, kMost> needed{};
    [[nodiscard]] constexpr const char* name(size_t i) const { return text + begin[i]; }
  };
  static consteval Layout lay_out() {
    Layout l;
    const auto given = kList;  // under a sanitizer GCC takes no address within a template's argument for a constant
    const std::string_view list(given.text);
    const size_t bar = std::min(list.find('|'), list.size());
    for (size_t at = 0; at < list.size();) {
      const size_t end = std::min(list.find_first_of(" |", at), list.size());
      std::string_view name = list.substr(at, end - at);
      l.needed[l.count] = name.ends_with('!');
      if (l.needed[l.count]) name.remove_suffix(1);
      std::copy(name.begin(), name.end(), l.text + at);
      l.begin[l.count] = at;
      l.place[l.count] = std::find_if(P::kParams.begin(), P::kParams.end(), [&](const auto& p) {
                           return p.name == name;
                         })->place;  // no constant if P has no such parameter
      ++l.count;
      if (l.needed[l.count - 1]) l.enough = l.count;
      if (end <= bar) l.positional = l.count;
      at = end + 1;
    }
    return l;
  }
  static constexpr Layout kLayout = lay_out();
  template <size_t... I>
  static std::vector<const char*> names(std::index_sequence<I...>) {
    return {kLayout.name(I)...};
  }
  static inline Signature signature_{
      kMethod.text, names(std::make_index_sequence<kLayout.count>()), kLayout.positional, 0, {}};
  [[gnu::cold, gnu::noinline]] static bool refuse(PyObject* const* a) {
    for (size_t i = 0; i < kLayout.count; ++i) {
      if (!kLayout.needed[i] || a[i] != nullptr) continue;
      PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", kName, kLayout.name(i));
      break;
    }
    return false;
  }

 public:
  static constexpr const char* kName = kMethod.text;
  // False with an error set.
  static bool read(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, P* out) {
    constexpr auto kAll = std::make_index_sequence<kLayout.count>();
    const auto given = static_cast<size_t>(nargs);
    if (kwnames == nullptr && given >= kLayout.enough && given <= kLayout.positional) [[likely]] {
      // One by one, here and below: two at once would wait for the stores of both.
      [&]<size_t... I>(std::index_sequence<I...>) {
        ((I < given ? void(out->*kLayout.place[I] = args[I]) : void()), ...);
      }(kAll);
      return true;
    }
    return read_named(args, nargs, kwnames, out, kAll);
  }

 private:
  template <size_t... I>
  static bool read_named(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, P* out,
                         std::index_sequence<I...> /*all*/) {
    PyObject* a[kLayout.count];
    if (!parse(signature_, args, nargs, kwnames, a)) return false;
    ((a[I] != nullptr ? void(out->*kLayout.place[I] = a[I]) : void()), ...);
    return ((!kLayout.needed[I] || a[I] != nullptr) && ...) || refuse(a);
  }
};

// The arguments of a call with a message struct.
struct StructArgs {
  PyObject *msg = nullptr, *flags = nullptr;
  static constexpr auto kParams =
      std::to_array<Param<StructArgs>>({{"msg", &StructArgs::msg}, {"flags", &StructArgs::flags}});
};

// Defines a method of CPython: its arguments are `a`, of type P, and its name is M::kName.
#define WEFT_METHOD(function, P, name, list, result)                                               \
  PyObject* function(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) { \
    using M = Method<P, name, list>;                                                               \
    P a;                                                                                           \
    return M::read(args, nargs, kwnames, &a) ? (result) : nullptr;                                 \
  }

}  // namespace weft::bind
