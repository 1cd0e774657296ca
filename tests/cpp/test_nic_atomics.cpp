// tests/cpp/test_nic_atomics.cpp: every (operation, datatype, family) of the atomics unit against the expressions of
// fi_atomic(3) written in plain C++, the small floats exhaustively, and a search for lost updates with four threads.
#include "nic/atomics.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

using namespace weft::nic;
__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 Uint128;
using Bytes = std::array<unsigned char, 32>;

constexpr Datatype type_at(size_t i) {
  return static_cast<Datatype>(i);
}
constexpr AtomicOp op_at(size_t i) {
  return static_cast<AtomicOp>(i);
}

// ---- a slow, obvious codec for the small floats: search the table of all values
// ------------------------------------------

struct Codec {
  int exponent_bits, mantissa_bits;
  bool finite;
  int width() const { return 1 + exponent_bits + mantissa_bits; }
  double decode(unsigned code) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = static_cast<int>(code) & ((1 << mantissa_bits) - 1);
    const double sign = (code >> (width() - 1)) != 0 ? -1.0 : 1.0;
    const bool top = exponent == (1 << exponent_bits) - 1;
    if (top && finite && mantissa == (1 << mantissa_bits) - 1) return std::numeric_limits<double>::quiet_NaN();
    if (top && !finite)
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  // Positive codes have the order of their values. The value after the largest finite one, which gives the overflow
  // threshold, is the value that its code would have if the exponents continued.
  double ladder(unsigned code) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(code >> mantissa_bits),
              mantissa = static_cast<int>(code) & ((1 << mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  unsigned overflow() const {
    return finite ? (1U << (width() - 1)) - 1 : ((1U << exponent_bits) - 1) << mantissa_bits;
  }
  unsigned encode(double x) const {
    const unsigned sign = std::signbit(x) ? 1U << (width() - 1) : 0;
    if (std::isnan(x)) return sign | (finite ? overflow() : overflow() | 1U << (mantissa_bits - 1));
    x = std::fabs(x);
    unsigned low = 0, high = overflow();  // ladder(low) <= x, unless x is beyond everything
    if (x >= ladder(high)) return sign | high;
    while (high - low > 1) {
      const unsigned middle = (low + high) / 2;
      (ladder(middle) <= x ? low : high) = middle;
    }
    const double below = x - ladder(low), above = ladder(high) - x;  // exact: neighbours differ by one bit
    if (below < above || (below == above && low % 2 == 0)) return sign | low;
    return sign | high;
  }
};
constexpr Codec kFloat16{5, 10, false}, kBfloat16{8, 7, false}, kE4m3{4, 3, true}, kE5m2{5, 2, false};

// ---- the page's expressions
// ----------------------------------------------------------------------------------------------

template <class T>
struct IsComplex : std::false_type {};
template <class T>
struct IsComplex<std::complex<T>> : std::true_type {};
template <class T>
inline constexpr bool kIsInt = std::is_integral_v<T> || std::is_same_v<T, Int128> || std::is_same_v<T, Uint128>;

template <class T>
T wrap_add(T a, T b) {
  if constexpr (std::is_same_v<T, Int128>)
    return static_cast<T>(static_cast<Uint128>(a) + static_cast<Uint128>(b));
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return a + b;
}
template <class T>
T wrap_sub(T a, T b) {
  if constexpr (std::is_same_v<T, Int128>)
    return static_cast<T>(static_cast<Uint128>(a) - static_cast<Uint128>(b));
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  else
    return a - b;
}
template <class T>
T wrap_mul(T a, T b) {
  if constexpr (std::is_same_v<T, Int128>)
    return static_cast<T>(static_cast<Uint128>(a) * static_cast<Uint128>(b));
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else if constexpr (IsComplex<T>::value)
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  else
    return a * b;
}

/// True if the operation exists for T; then `addr` is updated. fi_atomic(3), one line per operation.
template <class T>
bool page(AtomicOp op, T& addr, T buf, T compare) {
  const bool a = addr != T(0), b = buf != T(0);
  switch (op) {
    case AtomicOp::sum:
      addr = wrap_add(addr, buf);
      return true;
    case AtomicOp::diff:
      addr = wrap_sub(addr, buf);
      return true;
    case AtomicOp::prod:
      addr = wrap_mul(addr, buf);
      return true;
    case AtomicOp::lor:
      addr = T(a || b ? 1 : 0);
      return true;
    case AtomicOp::land:
      addr = T(a && b ? 1 : 0);
      return true;
    case AtomicOp::lxor:
      addr = T((a && !b) || (!a && b) ? 1 : 0);
      return true;
    case AtomicOp::atomic_read:
      return true;
    case AtomicOp::atomic_write:
      addr = buf;
      return true;
    case AtomicOp::cswap:
      if (compare == addr) addr = buf;
      return true;
    case AtomicOp::cswap_ne:
      if (compare != addr) addr = buf;
      return true;
    default:
      break;
  }
  if constexpr (!IsComplex<T>::value) {
    switch (op) {
      case AtomicOp::min:
        if (buf < addr) addr = buf;
        return true;
      case AtomicOp::max:
        if (buf > addr) addr = buf;
        return true;
      case AtomicOp::cswap_le:
        if (compare <= addr) addr = buf;
        return true;
      case AtomicOp::cswap_lt:
        if (compare < addr) addr = buf;
        return true;
      case AtomicOp::cswap_ge:
        if (compare >= addr) addr = buf;
        return true;
      case AtomicOp::cswap_gt:
        if (compare > addr) addr = buf;
        return true;
      default:
        break;
    }
  }
  if constexpr (kIsInt<T>) {
    switch (op) {
      case AtomicOp::bor:
        addr = static_cast<T>(addr | buf);
        return true;
      case AtomicOp::band:
        addr = static_cast<T>(addr & buf);
        return true;
      case AtomicOp::bxor:
        addr = static_cast<T>(addr ^ buf);
        return true;
      case AtomicOp::mswap:
        addr = static_cast<T>((buf & compare) | (addr & static_cast<T>(~compare)));
        return true;
      default:
        break;
    }
  }
  return false;
}

template <class T>
T get(const Bytes& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}
template <class T>
Bytes put(T value) {
  Bytes bytes{};
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
Bytes put_long_double(long double value) {  // the padding is zero, as the unit writes it
  Bytes bytes{};
  std::memcpy(bytes.data(), &value, std::numeric_limits<long double>::digits == 64 ? 10 : sizeof value);
  return bytes;
}

template <class T>
bool page_bytes(AtomicOp op, Bytes& addr, const Bytes& buf, const Bytes& compare) {
  T value = get<T>(addr);
  const Bytes before = addr;
  if (!page<T>(op, value, get<T>(buf), get<T>(compare))) return false;
  if (op == AtomicOp::atomic_read)
    addr = before;
  else if constexpr (std::is_same_v<T, long double>)
    addr = put_long_double(value);
  else if constexpr (std::is_same_v<T, std::complex<long double>>) {
    addr = put_long_double(value.real());
    const Bytes imaginary = put_long_double(value.imag());
    std::memcpy(addr.data() + 16, imaginary.data(), 16);
  } else
    addr = put(value);
  return true;
}

bool page_small(const Codec& codec, AtomicOp op, Bytes& addr, const Bytes& buf, const Bytes& compare) {
  const auto code = [&](const Bytes& bytes) {
    return codec.width() == 16 ? get<uint16_t>(bytes) : get<uint8_t>(bytes);
  };
  const double before = codec.decode(code(addr));
  double value = before;
  if (!page<double>(op, value, codec.decode(code(buf)), codec.decode(code(compare)))) return false;
  const unsigned result = codec.encode(value);
  Bytes out{};
  std::memcpy(out.data(), &result, static_cast<size_t>(codec.width() / 8));
  addr = out;
  return true;
}

bool reference(AtomicOp op, Datatype type, Bytes& addr, const Bytes& buf, const Bytes& compare) {
  switch (type) {
    case Datatype::int8:
      return page_bytes<int8_t>(op, addr, buf, compare);
    case Datatype::uint8:
      return page_bytes<uint8_t>(op, addr, buf, compare);
    case Datatype::int16:
      return page_bytes<int16_t>(op, addr, buf, compare);
    case Datatype::uint16:
      return page_bytes<uint16_t>(op, addr, buf, compare);
    case Datatype::int32:
      return page_bytes<int32_t>(op, addr, buf, compare);
    case Datatype::uint32:
      return page_bytes<uint32_t>(op, addr, buf, compare);
    case Datatype::int64:
      return page_bytes<int64_t>(op, addr, buf, compare);
    case Datatype::uint64:
      return page_bytes<uint64_t>(op, addr, buf, compare);
    case Datatype::float32:
      return page_bytes<float>(op, addr, buf, compare);
    case Datatype::float64:
      return page_bytes<double>(op, addr, buf, compare);
    case Datatype::float_complex:
      return page_bytes<std::complex<float>>(op, addr, buf, compare);
    case Datatype::double_complex:
      return page_bytes<std::complex<double>>(op, addr, buf, compare);
    case Datatype::long_double:
      return page_bytes<long double>(op, addr, buf, compare);
    case Datatype::long_double_complex:
      return page_bytes<std::complex<long double>>(op, addr, buf, compare);
    case Datatype::int128:
      return page_bytes<Int128>(op, addr, buf, compare);
    case Datatype::uint128:
      return page_bytes<Uint128>(op, addr, buf, compare);
    case Datatype::float16:
      return page_small(kFloat16, op, addr, buf, compare);
    case Datatype::bfloat16:
      return page_small(kBfloat16, op, addr, buf, compare);
    case Datatype::fp8_e4m3:
      return page_small(kE4m3, op, addr, buf, compare);
    case Datatype::fp8_e5m2:
      return page_small(kE5m2, op, addr, buf, compare);
  }
  return false;
}

/// A small number as the datatype's bytes; complex types get a second number.
Bytes number(Datatype type, int real, int imaginary) {
  switch (type) {
    case Datatype::int8:
    case Datatype::uint8:
      return put(static_cast<int8_t>(real));
    case Datatype::int16:
    case Datatype::uint16:
      return put(static_cast<int16_t>(real));
    case Datatype::int32:
    case Datatype::uint32:
      return put(static_cast<int32_t>(real));
    case Datatype::int64:
    case Datatype::uint64:
      return put(static_cast<int64_t>(real));
    case Datatype::int128:
    case Datatype::uint128:
      return put(static_cast<Int128>(real));
    case Datatype::float32:
      return put(static_cast<float>(real));
    case Datatype::float64:
      return put(static_cast<double>(real));
    case Datatype::float_complex:
      return put(std::complex<float>(static_cast<float>(real), static_cast<float>(imaginary)));
    case Datatype::double_complex:
      return put(std::complex<double>(real, imaginary));
    case Datatype::long_double:
      return put_long_double(real);
    case Datatype::long_double_complex: {
      Bytes bytes = put_long_double(real);
      const Bytes second = put_long_double(imaginary);
      std::memcpy(bytes.data() + 16, second.data(), 16);
      return bytes;
    }
    case Datatype::float16:
      return put(static_cast<uint16_t>(kFloat16.encode(real)));
    case Datatype::bfloat16:
      return put(static_cast<uint16_t>(kBfloat16.encode(real)));
    case Datatype::fp8_e4m3:
      return put(static_cast<uint8_t>(kE4m3.encode(real)));
    case Datatype::fp8_e5m2:
      return put(static_cast<uint8_t>(kE5m2.encode(real)));
  }
  return {};
}

bool is_integer(Datatype type) {
  return type <= Datatype::uint64 || type == Datatype::int128 || type == Datatype::uint128;
}

bool exists(AtomicOp op, Datatype type) {
  Bytes zero = number(type, 0, 0);
  return reference(op, type, zero, zero, zero);
}

std::vector<Bytes> samples(Datatype type, std::mt19937_64& random) {
  std::vector<Bytes> values;
  for (int real : {0, 1, -1, 2, 3, 7, -5, 12}) values.push_back(number(type, real, real == 3 ? 0 : 2 - real));
  if (is_integer(type)) {
    for (int i = 0; i < 6; ++i) values.push_back(put(std::array<uint64_t, 2>{random(), random()}));
    values.push_back(put(std::array<uint64_t, 2>{~uint64_t{0}, ~uint64_t{0} >> 1}));
    Bytes lowest{};
    lowest[datatype_size(type) - 1] = 0x80;
    values.push_back(lowest);
  }
  for (auto& value : values) std::memset(value.data() + datatype_size(type), 0, value.size() - datatype_size(type));
  return values;
}

void check_pairing(AtomicOp op, Datatype type, size_t target_offset, size_t local_offset) {
  std::mt19937_64 random(42);
  const auto values = samples(type, random);
  const size_t size = datatype_size(type);
  alignas(32) unsigned char target[8 * 32 + 32];
  unsigned char operand[8 * 32 + 1], compare[8 * 32 + 1], result[8 * 32 + 1];
  for (size_t fetch = 0; fetch < 2; ++fetch) {
    for (size_t round = 0; round < 64; ++round) {
      const size_t count = 1 + round % 3;
      std::vector<Bytes> old(count), expected(count);
      std::memset(target, 0xa5, sizeof target);
      std::memset(result, 0x5a, sizeof result);
      for (size_t i = 0; i < count; ++i) {
        old[i] = values[random() % values.size()];
        const Bytes& buf = values[random() % values.size()];
        const Bytes& cmp = random() % 2 == 0 ? old[i] : values[random() % values.size()];
        expected[i] = old[i];
        BOOST_REQUIRE(reference(op, type, expected[i], buf, cmp));
        std::memcpy(target + target_offset + i * size, old[i].data(), size);
        std::memcpy(operand + local_offset + i * size, buf.data(), size);
        std::memcpy(compare + local_offset + i * size, cmp.data(), size);
      }
      const bool needs_compare = atomic_valid(type, op, AtomicFamily::compare);
      atomic_apply(op, type, target + target_offset, op == AtomicOp::atomic_read ? nullptr : operand + local_offset,
                   needs_compare ? compare + local_offset : nullptr, fetch != 0 ? result + local_offset : nullptr,
                   count);
      for (size_t i = 0; i < count; ++i) {
        BOOST_TEST(std::memcmp(target + target_offset + i * size, expected[i].data(), size) == 0,
                   "op " << static_cast<int>(op) << " datatype " << static_cast<int>(type) << " element " << i
                         << " round " << round);
        if (fetch != 0)
          BOOST_TEST(std::memcmp(result + local_offset + i * size, old[i].data(), size) == 0,
                     "result of op " << static_cast<int>(op));
      }
      BOOST_TEST(target[target_offset + count * size] == 0xa5);  // no byte beyond the elements changes
      if (target_offset != 0) BOOST_TEST(target[target_offset - 1] == 0xa5);
    }
  }
}

BOOST_AUTO_TEST_SUITE(nic_atomics)

/// fi_atomic(3) "Base/Fetch/Compare Atomic Functions" and the pairings of libfabric's own table of handlers.
BOOST_AUTO_TEST_CASE(test_atomics_valid_follows_the_page) {
  for (size_t o = 0; o < kAtomicOpCount; ++o) {
    for (size_t d = 0; d < kDatatypeCount; ++d) {
      const bool swaps = o >= 12 && o <= 18, reads = o == 10;
      const bool exists_here = exists(op_at(o), type_at(d));
      BOOST_TEST(atomic_valid(type_at(d), op_at(o), AtomicFamily::base) == (exists_here && !swaps && !reads));
      BOOST_TEST(atomic_valid(type_at(d), op_at(o), AtomicFamily::fetch) == (exists_here && !swaps));
      BOOST_TEST(atomic_valid(type_at(d), op_at(o), AtomicFamily::compare) == (exists_here && swaps));
    }
  }
  BOOST_TEST(!atomic_valid(type_at(20), AtomicOp::sum, AtomicFamily::base));
  BOOST_TEST(!atomic_valid(type_at(256), AtomicOp::sum, AtomicFamily::base));  // FI_VOID
  BOOST_TEST(!atomic_valid(Datatype::int64, op_at(20), AtomicFamily::base));
  BOOST_TEST(!atomic_valid(Datatype::int64, op_at(256), AtomicFamily::fetch));  // FI_NOOP
  BOOST_TEST(!atomic_valid(Datatype::int64, AtomicOp::sum, static_cast<AtomicFamily>(3)));
}

BOOST_AUTO_TEST_CASE(test_atomics_sizes_and_widths) {
  static_assert(datatype_size(Datatype::long_double_complex) == 32 && datatype_size(type_at(20)) == 0);
  static_assert(sizeof(long double) == 16);
  BOOST_TEST(atomic_alignment(Datatype::float_complex) == 4U);
  BOOST_TEST((atomic_width(Datatype::int64, 64) == AtomicWidth::native));
  BOOST_TEST((atomic_width(Datatype::int64, 68) == AtomicWidth::locked));
  BOOST_TEST((atomic_width(Datatype::float_complex, 64) == AtomicWidth::native));
  BOOST_TEST((atomic_width(Datatype::float_complex, 68) == AtomicWidth::locked));
  const auto wide = detail::has_wide_atomics() ? AtomicWidth::wide : AtomicWidth::locked;
  for (auto type : {Datatype::double_complex, Datatype::int128, Datatype::uint128, Datatype::long_double}) {
    BOOST_TEST((atomic_width(type, 64) == wide));
    BOOST_TEST((atomic_width(type, 72) == AtomicWidth::locked));
  }
  BOOST_TEST((atomic_width(Datatype::long_double_complex, 64) == AtomicWidth::locked));
  BOOST_TEST((atomic_width(type_at(20), 64) == AtomicWidth::locked));
}

BOOST_AUTO_TEST_CASE(test_atomics_every_pairing_equals_the_page) {
  for (size_t o = 0; o < kAtomicOpCount; ++o)
    for (size_t d = 0; d < kDatatypeCount; ++d)
      if (exists(op_at(o), type_at(d))) check_pairing(op_at(o), type_at(d), 32, 0);
}

BOOST_AUTO_TEST_CASE(test_atomics_local_buffers_may_be_unaligned) {
  for (size_t d = 0; d < kDatatypeCount; ++d) {
    check_pairing(AtomicOp::sum, type_at(d), 32, 1);
    check_pairing(AtomicOp::cswap, type_at(d), 32, 1);
  }
}

BOOST_AUTO_TEST_CASE(test_atomics_half_aligned_complex_target_is_updated_plainly) {
  for (size_t d = 0; d < kDatatypeCount; ++d) {
    const size_t alignment = atomic_alignment(type_at(d));
    check_pairing(AtomicOp::sum, type_at(d), alignment, 0);
    check_pairing(AtomicOp::cswap_ne, type_at(d), alignment, 0);
    check_pairing(AtomicOp::sum, type_at(d), 1, 0);  // even an operation that the NIC refuses does no harm
  }
}

BOOST_AUTO_TEST_CASE(test_atomics_invalid_pairing_touches_nothing) {
  for (size_t o = 0; o < kAtomicOpCount; ++o) {
    for (size_t d = 0; d < kDatatypeCount; ++d) {
      if (exists(op_at(o), type_at(d))) continue;
      alignas(32) unsigned char target[32] = {1, 2, 3}, other[32] = {9, 9, 9}, result[32] = {7};
      atomic_apply(op_at(o), type_at(d), target, other, other, result, 1);
      BOOST_TEST(target[0] == 1);
      BOOST_TEST(result[0] == 7);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_atomics_result_may_be_the_operand) {
  alignas(16) int64_t target[2] = {10, 20};
  int64_t both[2] = {1, 2};
  atomic_apply(AtomicOp::sum, Datatype::int64, target, both, nullptr, both, 2);
  BOOST_TEST(target[0] == 11);
  BOOST_TEST(target[1] == 22);
  BOOST_TEST(both[0] == 10);
  BOOST_TEST(both[1] == 20);
}

BOOST_AUTO_TEST_CASE(test_atomics_count_zero_touches_nothing) {
  alignas(16) int64_t target = 5;
  atomic_apply(AtomicOp::sum, Datatype::int64, &target, nullptr, nullptr, nullptr, 0);
  BOOST_TEST(target == 5);
}

template <class T>
void check_nan(Datatype type) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const auto run = [&](AtomicOp op, T target, T buf, T compare) {
    alignas(16) T cell = target;
    atomic_apply(op, type, &cell, &buf, &compare, nullptr, 1);
    return cell;
  };
  for (auto op : {AtomicOp::min, AtomicOp::max}) {
    BOOST_TEST(run(op, T(3), nan, T(0)) == T(3));
    BOOST_TEST(std::isnan(run(op, nan, T(3), T(0))));
  }
  for (auto op : {AtomicOp::cswap, AtomicOp::cswap_le, AtomicOp::cswap_lt, AtomicOp::cswap_ge, AtomicOp::cswap_gt}) {
    BOOST_TEST(run(op, T(3), T(9), nan) == T(3));
    BOOST_TEST(std::isnan(run(op, nan, T(9), T(3))));
    BOOST_TEST(std::isnan(run(op, nan, T(9), nan)));
  }
  BOOST_TEST(run(AtomicOp::cswap_ne, nan, T(9), nan) == T(9));
  BOOST_TEST(std::isnan(run(AtomicOp::sum, nan, T(9), nan)));
  BOOST_TEST(run(AtomicOp::lor, nan, T(0), nan) == T(1));
  BOOST_TEST(run(AtomicOp::cswap, T(-0.0), T(9), T(0)) == T(9));  // -0 equals +0
}

BOOST_AUTO_TEST_CASE(test_atomics_nan_compares_as_in_c) {
  check_nan<float>(Datatype::float32);
  check_nan<double>(Datatype::float64);
  check_nan<long double>(Datatype::long_double);
}

// ---- small floats
// --------------------------------------------------------------------------------------------------------

template <class Bits>
void check_codec(const Codec& codec, double (*decode)(Bits) noexcept, Bits (*encode)(double) noexcept) {
  const unsigned codes = 1U << codec.width();
  size_t wrong = 0;
  for (unsigned code = 0; code < codes; ++code) {
    const double value = decode(static_cast<Bits>(code)), expected = codec.decode(code);
    if (std::isnan(expected) ? !std::isnan(value) : std::bit_cast<uint64_t>(value) != std::bit_cast<uint64_t>(expected))
      ++wrong;
    if (encode(value) != code) ++wrong;  // NaN payloads included
    if (std::isnan(expected)) continue;
    // The values around each code and around the midpoint to the next: rounding errors would appear there.
    for (double point :
         {value, (value + codec.ladder((code & (codes / 2 - 1)) + 1) * (std::signbit(value) ? -1 : 1)) / 2}) {
      for (double near : {point, std::nextafter(point, 1e300), std::nextafter(point, -1e300)}) {
        if (std::isinf(near)) continue;
        if (encode(near) != codec.encode(near)) ++wrong;
      }
    }
  }
  for (double x : {1e300, -1e300, 5e-324, -5e-324, 1e-310, std::numeric_limits<double>::infinity()})
    if (encode(x) != codec.encode(x)) ++wrong;
  BOOST_TEST(wrong == 0U);
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const double x =
        std::ldexp(static_cast<double>(static_cast<int64_t>(random())), static_cast<int>(random() % 320) - 220);
    if (encode(x) != codec.encode(x)) ++wrong;
  }
  BOOST_TEST(wrong == 0U);
}

BOOST_AUTO_TEST_CASE(test_atomics_float16_codec_all_codes) {
  check_codec<uint16_t>(kFloat16, decode_float16, encode_float16);
}
BOOST_AUTO_TEST_CASE(test_atomics_bfloat16_codec_all_codes) {
  check_codec<uint16_t>(kBfloat16, decode_bfloat16, encode_bfloat16);
}
BOOST_AUTO_TEST_CASE(test_atomics_fp8_e4m3_codec_all_codes) {
  check_codec<uint8_t>(kE4m3, decode_fp8_e4m3, encode_fp8_e4m3);
}
BOOST_AUTO_TEST_CASE(test_atomics_fp8_e5m2_codec_all_codes) {
  check_codec<uint8_t>(kE5m2, decode_fp8_e5m2, encode_fp8_e5m2);
}

BOOST_AUTO_TEST_CASE(test_atomics_fp8_limits) {
  BOOST_TEST(decode_fp8_e4m3(0x7e) == 448.0);
  BOOST_TEST(std::isnan(decode_fp8_e4m3(0x7f)));
  BOOST_TEST(encode_fp8_e4m3(464.0) == 0x7e);  // a tie rounds to the even mantissa
  BOOST_TEST(encode_fp8_e4m3(465.0) == 0x7f);  // above the tie: NaN, because there is no infinity
  BOOST_TEST(encode_fp8_e4m3(std::numeric_limits<double>::infinity()) == 0x7f);
  BOOST_TEST(decode_fp8_e5m2(0x7b) == 57344.0);
  BOOST_TEST(encode_fp8_e5m2(61440.0) == 0x7c);
  BOOST_TEST(encode_float16(65519.0) == 0x7bff);
  BOOST_TEST(encode_float16(65520.0) == 0x7c00);
}

/// All 65536 pairs of the 8-bit types, for the three arithmetic operations.
BOOST_AUTO_TEST_CASE(test_atomics_fp8_arithmetic_all_pairs) {
  for (auto [type, codec] : {std::pair{Datatype::fp8_e4m3, kE4m3}, std::pair{Datatype::fp8_e5m2, kE5m2}}) {
    for (auto op : {AtomicOp::sum, AtomicOp::diff, AtomicOp::prod}) {
      size_t wrong = 0;
      for (unsigned a = 0; a < 256; ++a) {
        for (unsigned b = 0; b < 256; ++b) {
          auto cell = static_cast<uint8_t>(a);
          const auto operand = static_cast<uint8_t>(b);
          atomic_apply(op, type, &cell, &operand, nullptr, nullptr, 1);
          const double x = codec.decode(a), y = codec.decode(b);
          const double exact = op == AtomicOp::sum ? x + y : op == AtomicOp::diff ? x - y : x * y;
          if (std::isnan(exact) ? !std::isnan(codec.decode(cell)) : cell != codec.encode(exact)) ++wrong;
        }
      }
      BOOST_TEST(wrong == 0U);
    }
  }
}

/// bfloat16 products below float's normal range: rounding twice would change the last bit.
BOOST_AUTO_TEST_CASE(test_atomics_bfloat16_subnormal_product_is_rounded_once) {
  std::mt19937_64 random(11);
  size_t wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    const auto a = static_cast<uint16_t>(0x1f00 + random() % 0x180),
               b = static_cast<uint16_t>(0x1f00 + random() % 0x180);
    uint16_t cell = a;
    atomic_apply(AtomicOp::prod, Datatype::bfloat16, &cell, &b, nullptr, nullptr, 1);
    if (cell != kBfloat16.encode(kBfloat16.decode(a) * kBfloat16.decode(b))) ++wrong;
  }
  BOOST_TEST(wrong == 0U);
}

// ---- concurrency
// ---------------------------------------------------------------------------------------------------------

/// Four threads add one; the total is known. Types too small for the total count modulo their range or up to
/// 2^mantissa.
BOOST_AUTO_TEST_CASE(test_atomics_four_threads_lose_no_sum) {
  for (size_t d = 0; d < kDatatypeCount; ++d) {
    const Datatype type = type_at(d);
    alignas(64) Bytes cell = number(type, 0, 0);
    if (atomic_width(type, reinterpret_cast<uintptr_t>(cell.data())) == AtomicWidth::locked) continue;
    const int rounds = is_integer(type)             ? 20000
                       : type == Datatype::float16  ? 500
                       : type == Datatype::bfloat16 ? 60
                       : type == Datatype::fp8_e4m3 ? 4
                       : type == Datatype::fp8_e5m2 ? 2
                                                    : 20000;
    const Bytes one = number(type, 1, 2);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < rounds; ++i)
          atomic_apply(AtomicOp::sum, type, cell.data(), one.data(), nullptr, nullptr, 1);
      });
    for (auto& thread : threads) thread.join();
    const Bytes expected = number(type, 4 * rounds, 8 * rounds);
    BOOST_TEST(std::memcmp(cell.data(), expected.data(), datatype_size(type)) == 0, "datatype " << d);
  }
}

/// Fetch-add returns every value exactly once; readers of a 16-byte pair never see half of an update.
BOOST_AUTO_TEST_CASE(test_atomics_four_threads_fetch_distinct_values) {
  constexpr int kRounds = 20000;
  alignas(64) int64_t cell = 0;
  std::vector<std::vector<int64_t>> seen(4);
  std::vector<std::thread> threads;
  for (auto& mine : seen)
    threads.emplace_back([&] {
      const int64_t one = 1;
      for (int i = 0; i < kRounds; ++i) {
        int64_t before = -1;
        atomic_apply(AtomicOp::sum, Datatype::int64, &cell, &one, nullptr, &before, 1);
        mine.push_back(before);
      }
    });
  for (auto& thread : threads) thread.join();
  std::vector<bool> handed(4 * kRounds, false);
  size_t twice = 0;
  for (const auto& mine : seen)
    for (int64_t value : mine) {
      if (handed.at(static_cast<size_t>(value))) ++twice;
      handed[static_cast<size_t>(value)] = true;
    }
  BOOST_TEST(twice == 0U);
}

BOOST_AUTO_TEST_CASE(test_atomics_wide_read_is_never_torn) {
  if (!detail::has_wide_atomics()) return;
  alignas(64) std::complex<double> cell(0, 0);
  std::vector<std::thread> threads;
  size_t torn = 0;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      const std::complex<double> step(1, 2);
      for (int i = 0; i < 20000; ++i)
        atomic_apply(AtomicOp::sum, Datatype::double_complex, &cell, &step, nullptr, nullptr, 1);
    });
  threads.emplace_back([&] {
    for (int i = 0; i < 20000; ++i) {
      std::complex<double> value;
      atomic_apply(AtomicOp::atomic_read, Datatype::double_complex, &cell, nullptr, nullptr, &value, 1);
      if (value.imag() != 2 * value.real()) ++torn;
    }
  });
  for (auto& thread : threads) thread.join();
  BOOST_TEST(torn == 0U);
  BOOST_TEST(cell.real() == 40000.0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
