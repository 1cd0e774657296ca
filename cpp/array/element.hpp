// cpp/array/element.hpp: elements of arrays: their types, and the element that a number becomes, as NumPy converts it.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "nic/atomics.hpp"

namespace weft::array {

constexpr size_t kElementBytesMax = 32;

// How a number becomes an element; none: numbers do not become elements here.
enum class ElementKind : uint8_t { none, boolean, integer, natural, real16, real32, real64, complex64, complex128 };

struct ElementType {
  int64_t bytes = 0;
  ElementKind kind = ElementKind::none;
  bool atomic = false;  // `datatype` is valid
  nic::Datatype datatype{};
};
// A type of native byte order by NumPy's letter for its kind: b, i, u, f or c.
ElementType element_type(char letter, int64_t bytes) noexcept;

// A number of the caller. large: above the largest int64.
struct Number {
  enum class Kind : uint8_t { boolean, integer, large, real, complex } kind = Kind::integer;
  uint64_t bits = 0;  // boolean, integer, large
  double real = 0, imag = 0;
};
// HOT. Writes the element; false: NumPy would refuse the number, warn, or convert it in another way. wraps: negative
// numbers become unsigned ones.
bool store(const ElementType& type, const Number& number, std::byte* out, bool wraps = false) noexcept;

// An atomic operation by its name; null: there is none of this name.
struct NamedOp {
  std::string_view name;
  nic::AtomicOp op;
};
const NamedOp* find_op(std::string_view name) noexcept;

// ---- inline ---------------------------------------------------------------------------------------------------------

namespace detail {

template <typename T>
bool put(T value, std::byte* out) noexcept {
  std::memcpy(out, &value, sizeof(T));
  return true;
}
// False: the number becomes infinite, of which NumPy warns.
inline bool narrow(double from, float* to) noexcept {
  *to = static_cast<float>(from);
  return !std::isinf(*to) || std::isinf(from);
}
template <typename T>
bool put_integer(int64_t n, std::byte* out) noexcept {
  return n == static_cast<T>(n) && put(static_cast<T>(n), out);
}
template <typename T>
bool put_natural(uint64_t n, bool wrapped, std::byte* out) noexcept {
  return (wrapped || n == static_cast<T>(n)) && put(static_cast<T>(n), out);
}

}  // namespace detail

inline bool store(const ElementType& type, const Number& number, std::byte* out, bool wraps) noexcept {
  using detail::put;
  using Kind = Number::Kind;
  const auto whole = static_cast<int64_t>(number.bits);
  const bool is_real = number.kind == Kind::real || number.kind == Kind::integer;
  const double real = number.kind == Kind::integer ? static_cast<double>(whole) : number.real;
  switch (type.kind) {
    case ElementKind::none:
      return false;
    case ElementKind::boolean:
      return number.kind == Kind::boolean && put(static_cast<uint8_t>(number.bits), out);
    case ElementKind::integer:
      if (number.kind != Kind::integer) return false;
      switch (type.bytes) {
        case 1:
          return detail::put_integer<int8_t>(whole, out);
        case 2:
          return detail::put_integer<int16_t>(whole, out);
        case 4:
          return detail::put_integer<int32_t>(whole, out);
        default:
          return put(whole, out);
      }
    case ElementKind::natural: {
      const bool negative = number.kind == Kind::integer && whole < 0;
      if ((number.kind != Kind::integer && number.kind != Kind::large) || (negative && !wraps)) return false;
      switch (type.bytes) {
        case 1:
          return detail::put_natural<uint8_t>(number.bits, negative, out);
        case 2:
          return detail::put_natural<uint16_t>(number.bits, negative, out);
        case 4:
          return detail::put_natural<uint32_t>(number.bits, negative, out);
        default:
          return put(number.bits, out);
      }
    }
    case ElementKind::real16: {
      if (!is_real) return false;
      const uint16_t bits = nic::encode_float16(real);
      return (std::isinf(real) || (bits & 0x7fff) != 0x7c00) && put(bits, out);
    }
    case ElementKind::real32: {
      float single = 0;
      return is_real && detail::narrow(real, &single) && put(single, out);
    }
    case ElementKind::real64:
      return is_real && put(real, out);
    case ElementKind::complex64:
    case ElementKind::complex128: {
      if (!is_real && number.kind != Kind::complex) return false;
      const double imag = number.kind == Kind::complex ? number.imag : 0;
      if (type.kind == ElementKind::complex128) return put(std::array{real, imag}, out);
      std::array<float, 2> parts{};
      return detail::narrow(real, &parts[0]) && detail::narrow(imag, &parts[1]) && put(parts, out);
    }
  }
  return false;
}

}  // namespace weft::array
