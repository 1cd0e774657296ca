// cpp/bind/declared.hpp: what a nanobind function is called and takes, in one text, as Python declares it.
//
//   "bind_cq(cq, flags)"                                  the types are those of the C++ function
//   "alloc(nbytes, *, address=0, fixed=False)"            defaults; names behind "*" are given by name only
//   "cancel(self, context?: object) -> None"              types for the stub, where C++ has none; "?": may be None
#pragma once

#include <nanobind/eval.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <utility>

namespace weft::bind {

namespace nb = nanobind;

// A text as an argument of a template.
template <size_t N>
struct Text {
  consteval Text(const char (&from)[N]) { std::copy_n(from, N, text); }  // NOLINT: implicit
  char text[N]{};
};

// The parts of the text, each with its zero.
template <Text kText>
struct Declared {
  static constexpr size_t kMost = 20;
  struct Param {
    size_t name = 0, value = 0;  // where they are in `parts`; value 0: no default
    bool none = false;           // may be None
  };
  struct {
    char parts[sizeof(kText.text)]{};
    char typed[sizeof(kText.text) + 4]{};  // for nb::sig; empty without types
  } texts;
  std::array<Param, kMost> params{};
  size_t count = 0, positional = kMost;

  consteval Declared() {
    const auto given = kText;  // under a sanitizer GCC takes no address within a template's argument for a constant
    const std::string_view all(given.text);
    const size_t open = std::min(all.find('('), all.size());
    put(0, all.substr(0, open));
    int depth = 0;
    for (size_t at = open + 1, end = at; end < all.size() && depth >= 0; ++end) {
      depth += all[end] == '[' || all[end] == '(' ? 1 : all[end] == ']' || all[end] == ')' ? -1 : 0;
      if (depth > 0 || (depth == 0 && all[end] != ',')) continue;
      take(at, all.substr(at, end - at));
      at = end + 2;  // ", "
    }
    if (all.find("->") == all.npos) return;
    std::string_view("def ").copy(texts.typed, 4);
    std::ranges::copy_if(all, texts.typed + 4, [](char c) { return c != '?'; });
  }

 private:
  consteval void put(size_t at, std::string_view part) { std::ranges::copy(part, texts.parts + at); }
  consteval void take(size_t at, std::string_view entry) {
    if (entry == "self" || entry.empty()) return;
    if (entry == "*") {
      positional = count;
      return;
    }
    Param& p = params[count++];
    const std::string_view name = entry.substr(0, entry.find_first_of("?:= "));
    p = {at, 0, entry.substr(name.size()).starts_with('?')};
    put(at, name);
    const size_t equals = entry.find('=');
    if (equals == entry.npos) return;
    const size_t value = entry.find_first_not_of(' ', equals + 1);
    p.value = at + value;
    p.none = p.none || entry.substr(value) == "None";
    put(p.value, entry.substr(value));
  }
};

// What nanobind takes besides a function.
template <Text kText>
struct Declaration {
  static constexpr Declared<kText> kAll{};
  static constexpr auto kTexts = kAll.texts;                               // all that the program needs when it runs
  static constexpr size_t kFirst = std::min(kAll.positional, kAll.count);  // may be given by position

  template <size_t i>
  static auto param() {
    constexpr auto p = kAll.params[i];
    if constexpr (p.value != 0 && p.none) return name<i>().none() = value(kTexts.parts + p.value);
    if constexpr (p.value != 0 && !p.none) return name<i>() = value(kTexts.parts + p.value);
    if constexpr (p.value == 0 && p.none) return name<i>().none();
    if constexpr (p.value == 0 && !p.none) return name<i>();
  }
  // f(name, more...)
  template <typename F, size_t... I, size_t... J>
  static void give(F&& f, std::index_sequence<I...> /*first*/, std::index_sequence<J...> /*others*/) {
    const auto types = [] {
      if constexpr (kTexts.typed[0] != 0) return nb::sig(kTexts.typed);
      if constexpr (kTexts.typed[0] == 0) return nullptr;
    }();
    if constexpr (sizeof...(J) == 0) {
      f(kTexts.parts, types, param<I>()...);
    } else {
      f(kTexts.parts, types, param<I>()..., nb::kw_only(), param<kFirst + J>()...);
    }
  }

 private:
  template <size_t i>
  static nb::arg name() {
    return nb::arg(kTexts.parts + kAll.params[i].name);
  }
  static nb::object value(const char* text) { return nb::eval(nb::str(text), nb::dict()); }
};
template <Text kText, typename F>
void declare(F&& f) {
  using D = Declaration<kText>;
  D::give(f, std::make_index_sequence<D::kFirst>(), std::make_index_sequence<D::kAll.count - D::kFirst>());
}

}  // namespace weft::bind
