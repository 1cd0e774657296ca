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

// name, place, name, place ...
template <typename P, typename... Pairs>
consteval auto params(Pairs... pairs) {
  const std::tuple all(pairs...);
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return std::array{Param<P>{std::get<2 * I>(all), std::get<2 * I + 1>(all)}...};
  }(std::make_index_sequence<sizeof...(Pairs) / 2>());
}

// The names of a method's parameters, of a list as calls.inl has them.
template <Text kList>
struct Names {
  static constexpr size_t kMost = 16;
  char text[sizeof(kList.text)]{};               // the names, each with its zero
  size_t count = 0, positional = 0, enough = 0;  // enough: arguments by position that contain the necessary ones
  std::array<size_t, kMost> begin{};
  std::array<bool, kMost> needed{};

  consteval Names() {
    const auto given = kList;  // under a sanitizer GCC takes no address within a template's argument for a constant
    const std::string_view list(given.text);
    const size_t bar = std::min(list.find('|'), list.size());
    for (size_t at = 0; at < list.size();) {
      const size_t end = std::min(list.find_first_of(" |", at), list.size());
      const std::string_view entry = list.substr(at, end - at), name = entry.substr(0, entry.find_first_of("!="));
      needed[count] = entry.ends_with('!');
      std::copy(name.begin(), name.end(), text + at);
      begin[count] = at;
      ++count;
      if (needed[count - 1]) enough = count;
      if (end <= bar) positional = count;
      at = end + 1;
    }
  }
  [[nodiscard]] constexpr const char* name(size_t i) const { return text + begin[i]; }
  // -1: the method has no such parameter.
  [[nodiscard]] consteval int at(std::string_view wanted) const {
    for (size_t i = 0; i < count; ++i) {
      if (wanted == name(i)) return static_cast<int>(i);
    }
    return -1;
  }
  // At runtime, for a Signature.
  [[nodiscard]] std::vector<const char*> list() const {
    std::vector<const char*> all;
    for (size_t i = 0; i < count; ++i) all.push_back(name(i));
    return all;
  }
};

// P::kParams has the places of the parameters of kList; absent arguments stay null.
template <typename P, Text kMethod, Text kList>
class Method {
 public:
  static constexpr Names<kList> kNames{};

 private:
  static consteval auto find_places() {
    std::array<PyObject * P::*, kNames.kMost> place{};
    for (size_t i = 0; i < kNames.count; ++i) {
      place[i] = std::find_if(P::kParams.begin(), P::kParams.end(), [&](const auto& p) {
                   return p.name == kNames.name(i);
                 })->place;  // no constant if P has no such parameter
    }
    return place;
  }
  static constexpr auto kPlaces = find_places();
  static inline Signature signature_{kMethod.text, kNames.list(), kNames.positional, 0, {}};
  [[gnu::cold, gnu::noinline]] static bool refuse(PyObject* const* a) {
    for (size_t i = 0; i < kNames.count; ++i) {
      if (!kNames.needed[i] || a[i] != nullptr) continue;
      PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", kName, kNames.name(i));
      break;
    }
    return false;
  }

 public:
  static constexpr const char* kName = kMethod.text;
  // False with an error set.
  static bool read(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, P* out) {
    constexpr auto kAll = std::make_index_sequence<kNames.count>();
    const auto given = static_cast<size_t>(nargs);
    if (kwnames == nullptr && given >= kNames.enough && given <= kNames.positional) [[likely]] {
      // One by one, here and below: two at once would wait for the stores of both.
      [&]<size_t... I>(std::index_sequence<I...>) {
        ((I < given ? void(out->*kPlaces[I] = args[I]) : void()), ...);
      }(kAll);
      return true;
    }
    return read_named(args, nargs, kwnames, out, kAll);
  }

 private:
  template <size_t... I>
  static bool read_named(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, P* out,
                         std::index_sequence<I...> /*all*/) {
    PyObject* a[kNames.count];
    if (!parse(signature_, args, nargs, kwnames, a)) return false;
    ((a[I] != nullptr ? void(out->*kPlaces[I] = a[I]) : void()), ...);
    return ((!kNames.needed[I] || a[I] != nullptr) && ...) || refuse(a);
  }
};

// A method of CPython that gets its arguments in an array, in the order of kList; null where absent.
template <Text kMethod, Text kList>
struct Parsed {
  static constexpr Names<kList> kNames{};
  static inline Signature signature{kMethod.text, kNames.list(), kNames.positional, kNames.enough, {}};
};
template <auto F, Text kMethod, Text kList>
PyObject* parsed(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  using P = Parsed<kMethod, kList>;
  PyObject* a[P::kNames.count];
  return parse(P::signature, args, nargs, kwnames, a) ? F(self, a) : nullptr;
}

// The arguments of a call with one buffer, or with a list of them; null where absent. buf None: C's NULL.
struct BufferArgs {
  PyObject *buf = nullptr, *len = nullptr, *desc = nullptr, *peer = nullptr, *tag = nullptr, *ignore = nullptr,
           *addr = nullptr, *key = nullptr, *context = nullptr, *data = nullptr;
  using P = BufferArgs;
  static constexpr auto kParams =
      params<P>("buf", &P::buf, "iov", &P::buf, "len", &P::len, "count", &P::len, "desc", &P::desc, "dest_addr",
                &P::peer, "src_addr", &P::peer, "tag", &P::tag, "ignore", &P::ignore, "addr", &P::addr, "key", &P::key,
                "context", &P::context, "data", &P::data);
};

// The arguments of a call with a message struct.
struct StructArgs {
  PyObject *msg = nullptr, *flags = nullptr;
  using P = StructArgs;
  static constexpr auto kParams = params<P>("msg", &P::msg, "flags", &P::flags);
};

// The form of a call of calls.inl, and the arguments of the form; P: those of calls with buffers.
enum class Form : uint8_t { one, inject, list, message };
template <Form form, typename P>
using ArgsOf = std::conditional_t<form == Form::message, StructArgs, P>;

// Defines a method of CPython: its arguments are `a`, of type P, and its name is M::kName.
#define WEFT_METHOD(function, P, name, list, result)                                               \
  PyObject* function(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) { \
    using M = Method<P, name, list>;                                                               \
    P a;                                                                                           \
    return M::read(args, nargs, kwnames, &a) ? (result) : nullptr;                                 \
  }

}  // namespace weft::bind
