// tests/cpp/test_nic_reduction.cpp: every operation of the reduction unit against plain expressions, the reproducible
// sum against exact arithmetic over random trees, rounding under every mode, and bytes that no call made.
#include "nic/reduction.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using namespace weft::nic;
using Engine = std::mt19937_64;
using Lanes = std::array<uint64_t, 4>;
using Doubles = std::array<double, 4>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kQuiet = std::numeric_limits<double>::quiet_NaN();
constexpr uint64_t kSignallingBits = 0x7ff0000000000001;

uint64_t bits(double value) {
  return std::bit_cast<uint64_t>(value);
}

template <typename T>
Partial of(ReduceOp op, Datatype datatype, const std::vector<T>& values) {
  const size_t count =
      (op == ReduceOp::int_minmaxloc || op == ReduceOp::float_minmaxloc || op == ReduceOp::float_minmaxnumloc)
          ? 1
          : values.size();
  return contribution(op, datatype, values.data(), count);
}

Partial double_of(ReduceOp op, const std::vector<double>& values) {
  return of(op, Datatype::float64, values);
}

double first_double(const Partial& partial) {
  double value = 0;
  result(partial, Datatype::float64, &value, 1);
  return value;
}

// Combines all in a random order and grouping.
Partial combine_randomly(std::vector<Partial> partials, Engine& random) {
  while (partials.size() > 1) {
    std::swap(partials[random() % partials.size()], partials.back());
    const Partial from = partials.back();
    partials.pop_back();
    combine(partials[random() % partials.size()], from);
  }
  return partials.front();
}

// A number with 2,300 bits below and above the point: exact sums of doubles. Two's complement, 32 bits a word.
class Exact {
 public:
  static constexpr int kLowest = -1200;  // exponent of bit 0

  void add(double value, int unit) {  // the bits of `value` below 2^unit are cut off
    if (value == 0) return;
    int exponent = 0;
    auto mantissa = static_cast<uint64_t>(std::ldexp(std::frexp(std::fabs(value), &exponent), 53));
    exponent -= 53;
    if (unit > exponent) {
      const int cut = unit - exponent;
      mantissa = cut > 63 ? 0 : mantissa >> cut << cut;
    }
    const int shift = exponent - kLowest;
    const auto wide = static_cast<unsigned __int128>(mantissa) << (shift % 32);
    int64_t carry = 0;
    for (size_t i = static_cast<size_t>(shift / 32), part = 0; i < words_.size(); ++i, ++part) {
      const auto piece = part < 4 ? static_cast<int64_t>(static_cast<uint32_t>(wide >> (32 * part))) : 0;
      const int64_t sum = static_cast<int64_t>(words_[i]) + (value < 0 ? -piece : piece) + carry;
      words_[i] = static_cast<uint32_t>(sum);
      carry = sum >> 32;
    }
  }

  [[nodiscard]] int sign() const {
    if (words_.back() >> 31 != 0) return -1;
    return std::any_of(words_.begin(), words_.end(), [](uint32_t word) { return word != 0; }) ? 1 : 0;
  }

 private:
  std::array<uint32_t, 80> words_{};
};

int bin_of(double value) {
  const int exponent = value == 0 ? -1022 : std::max(std::ilogb(value), -1022);
  return static_cast<int>(std::floor(exponent / 40.0));
}

// Is `sum` the nearest double to the exact sum of the values, each cut off below the lowest of the top four bins?
// Compares 2 * exact with sum + neighbour, on both sides; a tie has to have gone to the even mantissa.
bool is_nearest(double sum, const std::vector<double>& values) {
  int top = -27;
  for (const double value : values) top = std::max(top, bin_of(value));
  const int unit = 40 * (top - 3);
  const auto compare = [&](double a, double b) {  // sign of 2 * exact - a - b
    Exact difference;
    for (const double value : values) difference.add(value, unit), difference.add(value, unit);
    difference.add(-a, Exact::kLowest);
    difference.add(-b, Exact::kLowest);
    return difference.sign();
  };
  const int below = compare(sum, std::nextafter(sum, -kInfinity));
  const int above = compare(sum, std::nextafter(sum, kInfinity));
  const bool even = (bits(sum) & 1) == 0;
  return (below > 0 || (below == 0 && even)) && (above < 0 || (above == 0 && even));
}

std::vector<Partial> as_partials(const std::vector<double>& values) {
  std::vector<Partial> partials;
  for (const double value : values) partials.push_back(double_of(ReduceOp::repsum, {value}));
  return partials;
}

// Values of one of several kinds: near each other, over the whole range, subnormal, or with much cancellation.
std::vector<double> random_values(Engine& random, int kind) {
  std::vector<double> values;
  const size_t count = 1 + random() % 40;
  for (size_t i = 0; i < count; ++i) {
    const auto mantissa = static_cast<double>(static_cast<int64_t>(random()));
    switch (kind) {
      case 0:
        values.push_back(std::ldexp(mantissa, static_cast<int>(random() % 60) - 90));
        break;
      case 1:
        values.push_back(std::ldexp(mantissa, static_cast<int>(random() % 2070) - 1130));
        break;
      case 2:
        values.push_back(std::bit_cast<double>(random() & 0x800fffffffffffff));
        break;
      default:
        values.push_back(std::ldexp(mantissa, static_cast<int>(random() % 200) - 160));
        if (random() % 2 != 0) values.push_back(-values[random() % values.size()]);
    }
  }
  return values;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(nic_reduction)

BOOST_AUTO_TEST_CASE(partial_is_the_64_bytes_of_an_accumulator) {
  BOOST_TEST(sizeof(Partial) == 64u);
  const Partial empty{};
  const std::array<unsigned char, 64> zeros{};
  BOOST_TEST(std::memcmp(&empty, zeros.data(), 64) == 0);
}

BOOST_AUTO_TEST_CASE(reduce_op_is_the_table_of_the_page) {
  for (uint16_t op = 0; op < 70; ++op) {
    for (uint16_t type = 0; type < 24; ++type) {
      const auto datatype = static_cast<Datatype>(type);
      const bool is_unsigned = type == 1 || type == 3 || type == 5 || type == 7;
      const bool bitwise = op == 6 || op == 7 || op == 9;
      const bool arithmetic = op <= 2 || op == 32;
      const bool doubles_only = op == 33 || (op >= 0x24 && op <= 0x26);
      const bool expected =
          (bitwise && is_unsigned) || (arithmetic && (type == 6 || type == 9)) || (doubles_only && type == 9);
      BOOST_TEST(reduce_op(op, datatype).has_value() == expected, "op " << op << " datatype " << type);
    }
  }
  BOOST_TEST((reduce_op(2, Datatype::float64) == ReduceOp::float_sum));
  BOOST_TEST((reduce_op(32, Datatype::int64) == ReduceOp::int_minmaxloc));
}

BOOST_AUTO_TEST_CASE(payload_is_at_most_32_bytes) {
  BOOST_TEST(payload_bytes(ReduceOp::bor, Datatype::uint8, 32).value() == 32u);
  BOOST_TEST(!payload_bytes(ReduceOp::bor, Datatype::uint8, 33).has_value());
  BOOST_TEST(!payload_bytes(ReduceOp::int_sum, Datatype::int64, 0).has_value());
  BOOST_TEST(!payload_bytes(ReduceOp::int_sum, Datatype::int64, SIZE_MAX / 8 + 2).has_value());
  BOOST_TEST(payload_bytes(ReduceOp::int_minmaxloc, Datatype::int64, 1).value() == 32u);
  BOOST_TEST(!payload_bytes(ReduceOp::int_minmaxloc, Datatype::int64, 2).has_value());
  BOOST_TEST(payload_bytes(ReduceOp::repsum, Datatype::float64, 1).value() == 8u);
  BOOST_TEST(!payload_bytes(ReduceOp::repsum, Datatype::float64, 2).has_value());
  BOOST_TEST(!payload_bytes(ReduceOp::barrier, Datatype::uint8, 1).has_value());
}

BOOST_AUTO_TEST_CASE(integer_operations_equal_plain_expressions) {
  Engine random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint64_t> a(4);
    std::vector<uint64_t> b(4);
    for (size_t i = 0; i < 4; ++i) a[i] = random() >> random() % 64, b[i] = random() >> random() % 64;
    const auto combined = [&](ReduceOp op) {
      Partial into = of(op, Datatype::uint64, a);
      combine(into, of(op, Datatype::uint64, b));
      BOOST_TEST(into.contributions == 2u);
      return into;
    };
    const Partial sum = combined(ReduceOp::int_sum);
    bool overflows = false;
    for (size_t i = 0; i < 4; ++i) {
      const auto x = static_cast<int64_t>(a[i]);
      const auto y = static_cast<int64_t>(b[i]);
      int64_t expected = 0;
      overflows |= __builtin_add_overflow(x, y, &expected);
      BOOST_TEST(sum.lanes[i] == static_cast<uint64_t>(expected));
      BOOST_TEST(combined(ReduceOp::band).lanes[i] == (a[i] & b[i]));
      BOOST_TEST(combined(ReduceOp::bor).lanes[i] == (a[i] | b[i]));
      BOOST_TEST(combined(ReduceOp::bxor).lanes[i] == (a[i] ^ b[i]));
      BOOST_TEST(combined(ReduceOp::int_min).lanes[i] == static_cast<uint64_t>(std::min(x, y)));
      BOOST_TEST(combined(ReduceOp::int_max).lanes[i] == static_cast<uint64_t>(std::max(x, y)));
    }
    BOOST_TEST((sum.status == (overflows ? ReduceStatus::int_overflow : ReduceStatus::success)));
  }
}

BOOST_AUTO_TEST_CASE(small_unsigned_elements_share_lanes_exactly) {
  std::vector<uint8_t> a(32);
  std::vector<uint8_t> b(32);
  for (size_t i = 0; i < 32; ++i) a[i] = static_cast<uint8_t>(i * 37), b[i] = static_cast<uint8_t>(i * 91 + 5);
  Partial into = of(ReduceOp::bxor, Datatype::uint8, a);
  combine(into, of(ReduceOp::bxor, Datatype::uint8, b));
  std::array<uint8_t, 33> out{};
  out[32] = 0x5a;
  result(into, Datatype::uint8, out.data(), 32);
  for (size_t i = 0; i < 32; ++i) BOOST_TEST(out[i] == (a[i] ^ b[i]));
  BOOST_TEST(out[32] == 0x5a);
}

BOOST_AUTO_TEST_CASE(minmaxloc_takes_the_smallest_index_of_equal_values) {
  Engine random(2);
  for (const ReduceOp op : {ReduceOp::int_minmaxloc, ReduceOp::float_minmaxloc, ReduceOp::float_minmaxnumloc}) {
    const bool ints = op == ReduceOp::int_minmaxloc;
    const auto value = [&](int64_t v) { return ints ? static_cast<uint64_t>(v) : bits(static_cast<double>(v)); };
    for (int round = 0; round < 300; ++round) {
      std::vector<Partial> partials;
      std::array<int64_t, 4> expected{};
      for (int64_t rank = 0; rank < 12; ++rank) {
        const auto low = static_cast<int64_t>(random() % 5) - 2;
        const auto high = static_cast<int64_t>(random() % 5) - 2;
        if (rank == 0 || low < expected[0]) expected[0] = low, expected[1] = rank;
        if (rank == 0 || high > expected[2]) expected[2] = high, expected[3] = rank;
        const auto index = static_cast<uint64_t>(rank);
        partials.push_back(of(op, ints ? Datatype::int64 : Datatype::float64,
                              std::vector<uint64_t>{value(low), index, value(high), index}));
      }
      const Partial all = combine_randomly(partials, random);
      BOOST_TEST(all.lanes[0] == value(expected[0]));
      BOOST_TEST(all.lanes[1] == static_cast<uint64_t>(expected[1]));
      BOOST_TEST(all.lanes[2] == value(expected[2]));
      BOOST_TEST(all.lanes[3] == static_cast<uint64_t>(expected[3]));
    }
  }
}

BOOST_AUTO_TEST_CASE(plain_min_max_spread_a_nan_and_num_variants_skip_it) {
  for (const auto& [a, b] : {std::pair{kQuiet, 2.0}, std::pair{2.0, kQuiet}}) {
    for (const ReduceOp op : {ReduceOp::float_min, ReduceOp::float_max}) {
      Partial into = double_of(op, {a});
      combine(into, double_of(op, {b}));
      BOOST_TEST(std::isnan(first_double(into)));
      BOOST_TEST((into.status == ReduceStatus::float_overflow));  // a contribution that is already NaN
    }
    for (const ReduceOp op : {ReduceOp::float_minnum, ReduceOp::float_maxnum}) {
      Partial into = double_of(op, {a});
      combine(into, double_of(op, {b}));
      BOOST_TEST(first_double(into) == 2.0);
    }
  }
  Partial both = double_of(ReduceOp::float_minnum, {kQuiet});
  combine(both, double_of(ReduceOp::float_minnum, {kQuiet}));
  BOOST_TEST(std::isnan(first_double(both)));
}

BOOST_AUTO_TEST_CASE(minmaxloc_of_nan_is_plain_or_num) {
  const auto lanes = [](double low, uint64_t a, double high, uint64_t b) {
    return std::vector<uint64_t>{bits(low), a, bits(high), b};
  };
  Partial plain = of(ReduceOp::float_minmaxloc, Datatype::float64, lanes(1, 0, 1, 0));
  combine(plain, of(ReduceOp::float_minmaxloc, Datatype::float64, lanes(kQuiet, 7, kQuiet, 7)));
  BOOST_TEST(std::isnan(std::bit_cast<double>(plain.lanes[0])));
  BOOST_TEST(plain.lanes[1] == 7u);
  Partial num = of(ReduceOp::float_minmaxnumloc, Datatype::float64, lanes(kQuiet, 7, kQuiet, 7));
  combine(num, of(ReduceOp::float_minmaxnumloc, Datatype::float64, lanes(1, 3, 1, 3)));
  BOOST_TEST(std::bit_cast<double>(num.lanes[0]) == 1.0);
  BOOST_TEST(num.lanes[1] == 3u);
  BOOST_TEST(num.lanes[3] == 3u);
}

BOOST_AUTO_TEST_CASE(signalling_nan_becomes_quiet_and_is_noted) {
  for (const ReduceOp op : {ReduceOp::float_min, ReduceOp::float_maxnum, ReduceOp::float_sum}) {
    const Partial partial = of(op, Datatype::float64, std::vector<uint64_t>{kSignallingBits});
    BOOST_TEST((partial.status == ReduceStatus::float_invalid));
    BOOST_TEST((partial.lanes[0] & uint64_t{1} << 51) != 0u);
  }
  const Partial repsum = of(ReduceOp::repsum, Datatype::float64, std::vector<uint64_t>{kSignallingBits});
  BOOST_TEST((repsum.status == ReduceStatus::float_invalid));
}

BOOST_AUTO_TEST_CASE(extremes_of_doubles_depend_on_no_order) {
  Engine random(3);
  const std::array<double, 8> pool = {0.0, -0.0, kInfinity, -kInfinity, kQuiet, -kQuiet, 1.0, 5e-324};
  for (const ReduceOp op : {ReduceOp::float_min, ReduceOp::float_max, ReduceOp::float_minnum, ReduceOp::float_maxnum}) {
    for (int round = 0; round < 300; ++round) {
      std::vector<Partial> partials;
      for (int i = 0; i < 6; ++i) partials.push_back(double_of(op, {pool[random() % pool.size()]}));
      const Partial once = combine_randomly(partials, random);
      for (int again = 0; again < 4; ++again) {
        BOOST_TEST((combine_randomly(partials, random).lanes == once.lanes));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(float_sum_rounds_as_its_operation_says) {
  const std::array<int, 4> modes = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  Engine random(4);
  for (int round = 0; round < 4000; ++round) {
    const double a = std::ldexp(static_cast<double>(static_cast<int64_t>(random())), static_cast<int>(random() % 80));
    const double b = static_cast<double>(static_cast<int64_t>(random()));
    for (size_t mode = 0; mode < 4; ++mode) {
      const auto op = static_cast<ReduceOp>(static_cast<size_t>(ReduceOp::float_sum) + mode);
      Partial into = double_of(op, {a, -a});
      const Partial from = double_of(op, {b, -b});
      std::fesetround(modes[(mode + 1) % 4]);  // the thread's own mode must not matter
      combine(into, from);
      const int kept = std::fegetround();
      std::fesetround(modes[mode]);
      volatile double x = a;
      volatile double y = b;
      volatile double sum = x + y;
      volatile double negative = -x - y;
      std::fesetround(FE_TONEAREST);
      BOOST_TEST(kept == modes[(mode + 1) % 4]);
      BOOST_TEST(into.lanes[0] == bits(sum));
      BOOST_TEST(into.lanes[1] == bits(negative));
    }
  }
}

BOOST_AUTO_TEST_CASE(flush_to_zero_is_the_operations_and_not_the_threads) {
  const double smallest = std::numeric_limits<double>::min();
  for (int mode = 0; mode < 4; ++mode) {
    for (const bool flush : {false, true}) {
      const auto op = static_cast<ReduceOp>(static_cast<int>(ReduceOp::float_sum) + mode + (flush ? 4 : 0));
      Partial into = double_of(op, {1.5 * smallest, -1.5 * smallest, 5e-324});
      const Partial from = double_of(op, {-smallest, smallest, smallest});
#if defined(__x86_64__)
      const unsigned saved = _mm_getcsr();
      _mm_setcsr(saved | (flush ? 0u : 0x8040u));  // the other mode, and subnormal arguments as zero
#endif
      combine(into, from);
#if defined(__x86_64__)
      BOOST_TEST(_mm_getcsr() == (saved | (flush ? 0u : 0x8040u)));
      _mm_setcsr(saved);
#endif
      BOOST_TEST(into.lanes[0] == (flush ? 0 : bits(0.5 * smallest)));
      BOOST_TEST(into.lanes[1] == (flush ? bits(-0.0) : bits(-0.5 * smallest)));
      BOOST_TEST(into.lanes[2] == bits(smallest) + 1);
    }
  }
}

BOOST_AUTO_TEST_CASE(combine_leaves_the_threads_exception_flags) {
  std::feclearexcept(FE_ALL_EXCEPT);
  Partial into = double_of(ReduceOp::float_sum, {1e308, 1, kInfinity});
  combine(into, double_of(ReduceOp::float_sum, {1.7e308, 1e-30, -kInfinity}));
  BOOST_TEST(std::fetestexcept(FE_ALL_EXCEPT) == 0);
  BOOST_TEST((into.status == ReduceStatus::float_invalid));
}

BOOST_AUTO_TEST_CASE(thread_rounding_is_the_calling_threads) {
  std::fesetround(FE_DOWNWARD);
  const auto here = reduce_op(2, Datatype::float64);
  std::optional<ReduceOp> there;
  std::thread([&] {
    std::fesetround(FE_TOWARDZERO);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8000);
#endif
    there = reduce_op(2, Datatype::float64);
  }).join();
  std::fesetround(FE_TONEAREST);
  BOOST_TEST(static_cast<int>(*here) == 0x2a);
#if defined(__x86_64__)
  BOOST_TEST(static_cast<int>(*there) == 0x2f);
#else
  BOOST_TEST(static_cast<int>(*there) == 0x2b);
#endif
}

BOOST_AUTO_TEST_CASE(sum_to_infinity_notes_an_overflow) {
  Partial into = double_of(ReduceOp::float_sum, {1e308});
  combine(into, double_of(ReduceOp::float_sum, {1e308}));
  BOOST_TEST((into.status == ReduceStatus::float_overflow));
  BOOST_TEST(completes(into.status));
}

BOOST_AUTO_TEST_CASE(repsum_of_one_value_is_the_value) {
  Engine random(5);
  for (int round = 0; round < 200000; ++round) {
    uint64_t pattern = random();
    if (round % 3 == 0) pattern &= 0x800fffffffffffff;  // subnormal
    const auto value = std::bit_cast<double>(pattern);
    if (std::isnan(value) || value == 0) continue;
    if (bits(first_double(double_of(ReduceOp::repsum, {value}))) != pattern) BOOST_FAIL("pattern " << pattern);
  }
}

BOOST_AUTO_TEST_CASE(repsum_is_exact_arithmetic_rounded_once_over_random_trees) {
  Engine random(6);
  for (int round = 0; round < 1500; ++round) {
    const auto values = random_values(random, round % 4);
    if (std::any_of(values.begin(), values.end(), [](double value) { return !std::isfinite(value); })) continue;
    const auto partials = as_partials(values);
    const Partial once = combine_randomly(partials, random);
    const double sum = first_double(once);
    if (std::isfinite(sum)) BOOST_TEST(is_nearest(sum, values), "round " << round);
    for (int again = 0; again < 6; ++again) {
      const Partial other = combine_randomly(partials, random);
      BOOST_TEST((other.lanes == once.lanes && other.repsum_m == once.repsum_m), "round " << round);
      BOOST_TEST(bits(first_double(other)) == bits(sum));
    }
  }
}

BOOST_AUTO_TEST_CASE(repsum_ignores_the_threads_environment) {
  Engine random(7);
  const auto partials = as_partials(random_values(random, 3));
  const uint64_t nearest = bits(first_double(combine_randomly(partials, random)));
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const uint64_t other = bits(first_double(combine_randomly(partials, random)));
    std::fesetround(FE_TONEAREST);
    BOOST_TEST(other == nearest);
  }
}

BOOST_AUTO_TEST_CASE(repsum_cancels_what_a_double_loses) {
  Engine random(8);
  const auto sum = [&](std::vector<double> values) {
    return first_double(combine_randomly(as_partials(values), random));
  };
  BOOST_TEST(sum({1e16, 1, -1e16}) == 1.0);
  BOOST_TEST(sum({1.7e308, 1.7e308, -1.7e308}) == 1.7e308);
  BOOST_TEST(sum({1.7e308, 1.7e308}) == kInfinity);
  BOOST_TEST(sum({5e-324, 5e-324, -5e-324}) == 5e-324);
  BOOST_TEST(sum({2.2250738585072014e-308, -5e-324}) == 2.2250738585072009e-308);
  BOOST_TEST(bits(sum({-0.0, -0.0})) == 0u);
}

BOOST_AUTO_TEST_CASE(repsum_of_infinities_and_nan) {
  Engine random(9);
  const auto sum = [&](std::vector<double> values) { return combine_randomly(as_partials(values), random); };
  for (int round = 0; round < 50; ++round) {
    BOOST_TEST(first_double(sum({1, kInfinity, 2, -3})) == kInfinity);
    BOOST_TEST(first_double(sum({1, -kInfinity, 2, -kInfinity})) == -kInfinity);
    const Partial both = sum({kInfinity, 1, -kInfinity, 2});
    BOOST_TEST(std::isnan(first_double(both)));
    BOOST_TEST((both.status == ReduceStatus::float_invalid));
    BOOST_TEST(std::isnan(first_double(sum({kInfinity, kQuiet, 1}))));
  }
}

BOOST_AUTO_TEST_CASE(repsum_notes_a_bin_that_overflows) {
  Partial total = double_of(ReduceOp::repsum, {std::nextafter(std::ldexp(1, 40), 0)});
  int doublings = 0;
  while (total.status == ReduceStatus::success && doublings < 64) combine(total, Partial(total)), ++doublings;
  BOOST_TEST(doublings == 24);  // 2^23 additions of 2^40 - 1 fit into 63 bits
  BOOST_TEST((total.status == ReduceStatus::float_overflow));
}

BOOST_AUTO_TEST_CASE(different_operations_are_a_mismatch_and_leave_the_data) {
  Partial into = of(ReduceOp::int_sum, Datatype::int64, std::vector<int64_t>{5});
  combine(into, of(ReduceOp::int_min, Datatype::int64, std::vector<int64_t>{3}));
  BOOST_TEST((into.status == ReduceStatus::mismatch));
  BOOST_TEST(into.lanes[0] == 5u);
  BOOST_TEST(into.contributions == 2u);
  BOOST_TEST(reduce_prov_errno(into.status) == 1028);
  BOOST_TEST(!completes(into.status));
}

BOOST_AUTO_TEST_CASE(statuses_map_to_the_errors_of_the_completion) {
  const std::array<int, 12> expected = {0, 0, 0, 0, 0, 1032, 1026, 1027, 1028, 1032, 1030, 1031};
  for (uint8_t status = 0; status < expected.size(); ++status) {
    BOOST_TEST(reduce_prov_errno(static_cast<ReduceStatus>(status)) == expected[status]);
  }
}

BOOST_AUTO_TEST_CASE(general_operations_are_those_of_the_atomics_unit) {
  Engine random(10);
  size_t pairs = 0;
  for (uint16_t op = 0; op < 40; ++op) {
    for (uint16_t type = 0; type < 24; ++type) {
      const auto datatype = static_cast<Datatype>(type);
      const auto found = general_reduce_op(op, datatype);
      const bool valid = op <= 9 && atomic_valid(datatype, static_cast<AtomicOp>(op), AtomicFamily::base);
      BOOST_TEST(found.has_value() == valid);
      if (!found) continue;
      ++pairs;
      const size_t count = 32 / datatype_size(datatype);
      alignas(32) Lanes a{random(), random(), random(), random()};
      alignas(32) Lanes b{random(), random(), random(), random()};
      Partial into = contribution(*found, datatype, a.data(), count);
      combine(into, contribution(*found, datatype, b.data(), count));
      atomic_apply(static_cast<AtomicOp>(op), datatype, a.data(), b.data(), nullptr, nullptr, count);
      alignas(32) Lanes out{};
      result(into, datatype, out.data(), count);
      BOOST_TEST((into.status == ReduceStatus::success));
      if (datatype == Datatype::long_double || datatype == Datatype::long_double_complex) continue;  // padding bytes
      BOOST_TEST((out == a), "op " << op << " datatype " << type);
    }
  }
  BOOST_TEST(pairs > 100u);
}

BOOST_AUTO_TEST_CASE(fold_gives_what_combine_gives_as_one_contribution) {
  alignas(1) std::array<unsigned char, 65> memory{};
  unsigned char* accumulator = memory.data() + 1;  // any alignment
  Partial expected{};
  for (int64_t value = 1; value <= 10; ++value) {
    const Partial from = of(ReduceOp::int_sum, Datatype::int64, std::vector<int64_t>{value, -value});
    combine(expected, from);
    BOOST_TEST(fold(accumulator, from));
  }
  const auto content = pre_reduced(accumulator);
  BOOST_REQUIRE(content.has_value());
  BOOST_TEST((content->lanes == expected.lanes));
  BOOST_TEST(content->contributions == 1u);
  std::array<int64_t, 2> out{};
  result(*content, Datatype::int64, out.data(), 2);
  BOOST_TEST(out[0] == 55);
  BOOST_TEST(out[1] == -55);
  std::array<unsigned char, 64> second{};
  BOOST_TEST(fold(second.data(), *content));
  BOOST_TEST(fold(second.data(), *content));
  result(*pre_reduced(second.data()), Datatype::int64, out.data(), 2);
  BOOST_TEST(out[0] == 110);
}

BOOST_AUTO_TEST_CASE(an_empty_partial_changes_nothing) {
  std::array<unsigned char, 64> zeros{};
  BOOST_TEST(!pre_reduced(zeros.data()).has_value());
  Partial into = of(ReduceOp::int_max, Datatype::int64, std::vector<int64_t>{-4});
  combine(into, Partial{});
  BOOST_TEST(into.lanes[0] == static_cast<uint64_t>(-4));
  BOOST_TEST(into.contributions == 1u);
  BOOST_TEST((into.status == ReduceStatus::success));
}

BOOST_AUTO_TEST_CASE(bytes_that_no_call_made_are_refused_or_computed_safely) {
  Engine random(11);
  size_t accepted = 0;
  for (int round = 0; round < 200000; ++round) {
    std::array<uint64_t, 8> bytes{};
    for (uint64_t& word : bytes) word = random() >> random() % 64;
    Partial from;
    std::memcpy(static_cast<void*>(&from), bytes.data(), 64);
    from.filled = static_cast<uint8_t>(random() % 3);
    if (random() % 8 != 0) from.unused = {};
    if (random() % 8 != 0 && from.op != ReduceOp::repsum) from.repsum_m = 0;
    if (from.op == ReduceOp::barrier) from.lanes = {};
    from.status = static_cast<ReduceStatus>(random() % 14);
    from.datatype = static_cast<Datatype>(random() % 2 * (random() % 24));
    Partial into = from;
    if (check(from)) {
      ++accepted;
      combine(into, from);
      alignas(32) Lanes out{};
      result(into, Datatype::uint64, out.data(), into.op == ReduceOp::repsum ? 1 : 4);
    } else {
      std::array<unsigned char, 64> target;
      std::memcpy(target.data(), &from, 64);
      BOOST_TEST(!fold(target.data(), Partial{}));
      BOOST_TEST(!pre_reduced(target.data()).has_value());
      Partial good = of(ReduceOp::int_max, Datatype::int64, std::vector<int64_t>{1});
      combine(good, from);
      BOOST_TEST((good.status == ReduceStatus::mismatch));
    }
  }
  BOOST_TEST(accepted > 1000u);
}

BOOST_AUTO_TEST_SUITE_END()
