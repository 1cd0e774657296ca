// cpp/nic/reduction.cpp: what each operation does to four lanes, the reproducible sum, and accumulators.
#include "nic/reduction.hpp"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace weft::nic {

namespace {

constexpr uint64_t kSignBit = uint64_t{1} << 63;
constexpr uint64_t kQuietBit = uint64_t{1} << 51;
constexpr uint64_t kExponentBits = uint64_t{0x7ff} << 52;
constexpr uint64_t kMantissaBits = (uint64_t{1} << 52) - 1;
constexpr uint8_t kFlushToZero = 4;

constexpr uint8_t code(ReduceOp op) noexcept {
  return static_cast<uint8_t>(op);
}

constexpr bool is_float_sum(ReduceOp op) noexcept {
  return op >= ReduceOp::float_sum && op <= ReduceOp::float_sum_last;
}

constexpr bool is_general(ReduceOp op) noexcept {
  return op >= ReduceOp::general;
}

constexpr bool is_minmaxloc(ReduceOp op) noexcept {
  return op == ReduceOp::int_minmaxloc || op == ReduceOp::float_minmaxloc || op == ReduceOp::float_minmaxnumloc;
}

constexpr AtomicOp general_op(ReduceOp op) noexcept {
  return static_cast<AtomicOp>(code(op) - code(ReduceOp::general));
}

// Doubles as bits: comparisons and classes that no floating-point environment changes.
constexpr bool is_nan(uint64_t bits) noexcept {
  return (bits & ~kSignBit) > kExponentBits;
}
constexpr bool is_infinite(uint64_t bits) noexcept {
  return (bits & ~kSignBit) == kExponentBits;
}
constexpr bool is_signalling(uint64_t bits) noexcept {
  return is_nan(bits) && (bits & kQuietBit) == 0;
}
constexpr bool is_subnormal(uint64_t bits) noexcept {
  return (bits & kExponentBits) == 0 && (bits & kMantissaBits) != 0;
}

// Orders doubles that are not NaN. -0 is before +0, so that the least and the greatest of both zeros do not depend on
// the order in which members are combined.
constexpr int64_t ordered(uint64_t bits) noexcept {
  return static_cast<int64_t>((bits & kSignBit) != 0 ? ~bits ^ kSignBit : bits);
}

void note(Partial& partial, ReduceStatus status) noexcept {
  partial.status = std::max(partial.status, status);
}

// ---- minima and maxima -------------------------------------------------------------------------------------------

enum class Keep : uint8_t { first, second, both };  // both: equal values

Keep compare_int(uint64_t first, uint64_t second, bool minimum) noexcept {
  const auto a = static_cast<int64_t>(first);
  const auto b = static_cast<int64_t>(second);
  if (a == b) return Keep::both;
  return (a < b) == minimum ? Keep::first : Keep::second;
}

// Two NaN: the larger pattern is kept, so that the result depends on no order.
Keep compare_float(uint64_t first, uint64_t second, bool minimum, bool prefer_numbers) noexcept {
  if (is_nan(first) || is_nan(second)) {
    if (is_nan(first) && is_nan(second)) {
      return first == second ? Keep::both : first > second ? Keep::first : Keep::second;
    }
    return is_nan(first) != prefer_numbers ? Keep::first : Keep::second;
  }
  const int64_t a = ordered(first);
  const int64_t b = ordered(second);
  if (a == b) return Keep::both;
  return (a < b) == minimum ? Keep::first : Keep::second;
}

struct Comparison {
  bool is_float = false;
  bool prefer_numbers = false;

  Keep operator()(uint64_t first, uint64_t second, bool minimum) const noexcept {
    return is_float ? compare_float(first, second, minimum, prefer_numbers) : compare_int(first, second, minimum);
  }
};

void combine_extremes(Partial& into, const Partial& from, Comparison compare, bool minimum) noexcept {
  for (size_t i = 0; i < 4; ++i) {
    if (compare(into.lanes[i], from.lanes[i], minimum) == Keep::second) into.lanes[i] = from.lanes[i];
  }
}

// Lanes {minimum, its index, maximum, its index}; of equal values the smallest index, for the maximum too.
void combine_minmaxloc(Partial& into, const Partial& from, Comparison compare) noexcept {
  for (size_t i = 0; i < 4; i += 2) {
    switch (compare(into.lanes[i], from.lanes[i], i == 0)) {
      case Keep::first:
        break;
      case Keep::second:
        into.lanes[i] = from.lanes[i];
        into.lanes[i + 1] = from.lanes[i + 1];
        break;
      case Keep::both:
        into.lanes[i + 1] = std::min(into.lanes[i + 1], from.lanes[i + 1]);
        break;
    }
  }
}

// ---- sums --------------------------------------------------------------------------------------------------------

void combine_int_sum(Partial& into, const Partial& from) noexcept {
  for (size_t i = 0; i < 4; ++i) {
    int64_t sum = 0;
    if (__builtin_add_overflow(static_cast<int64_t>(into.lanes[i]), static_cast<int64_t>(from.lanes[i]), &sum)) {
      note(into, ReduceStatus::int_overflow);
    }
    into.lanes[i] = static_cast<uint64_t>(sum);  // wraps
  }
}

// Sets the rounding that a sum's operation names, with every exception masked, and restores all of the thread's
// environment. Subnormals are not flushed by hardware here: add() does it, for all processors alike.
class RoundingScope {
 public:
#if defined(__x86_64__)
  explicit RoundingScope(uint8_t rounding) noexcept : saved_(_mm_getcsr()) {
    constexpr unsigned kControl[4] = {0u << 13, 2u << 13, 1u << 13, 3u << 13};  // MXCSR: nearest, up, down, zero
    constexpr unsigned kAllMasked = 0x1f80;
    _mm_setcsr(kAllMasked | kControl[rounding & 3]);
  }
  ~RoundingScope() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  explicit RoundingScope(uint8_t rounding) noexcept {
    constexpr int kMode[4] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
    std::fesetround(kMode[rounding & 3]);
  }
  ~RoundingScope() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
 public:
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;
};

void combine_float_sum(Partial& into, const Partial& from) noexcept {
  const auto rounding = static_cast<uint8_t>(code(into.op) - code(ReduceOp::float_sum));
  // Volatile: compilers do not know that additions depend on MXCSR; volatile accesses stay between its two changes.
  volatile double first[4];
  volatile double second[4];
  volatile double sum[4];
  {
    const RoundingScope scope(rounding);
    for (size_t i = 0; i < 4; ++i) {
      first[i] = std::bit_cast<double>(into.lanes[i]);
      second[i] = std::bit_cast<double>(from.lanes[i]);
      sum[i] = first[i] + second[i];
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    const double value = sum[i];
    auto bits = std::bit_cast<uint64_t>(value);
    if (is_infinite(bits)) note(into, ReduceStatus::float_overflow);
    if (is_nan(bits) && !is_nan(into.lanes[i]) && !is_nan(from.lanes[i])) note(into, ReduceStatus::float_invalid);
    if ((rounding & kFlushToZero) != 0 && is_subnormal(bits)) bits &= kSignBit;
    into.lanes[i] = bits;
  }
}

// ---- the reproducible sum ----------------------------------------------------------------------------------------
//
// The range of exponents is cut into bins of 40 bits. A value becomes at most three slices, each of its bits that lie
// in one bin, with the value's sign; a sum adds slices bin by bin. Slices depend on their value alone, and integer
// addition is associative, so a bin's content depends on no order. Only the top four bins are kept, and the top bin is
// that of the largest value, so which bins are kept depends on no order either. Source: fi_cxi(7) FI_CXI_REPSUM;
// Ahrens, Nguyen, Demmel, EECS-2016-121 (indexed accumulators).

constexpr int kBinBits = 40;
constexpr int8_t kMinusInfinity = 125;
constexpr int8_t kPlusInfinity = 126;
constexpr int8_t kNan = 127;
constexpr int8_t kBottomBin = -26;  // floor(-1022 / 40): zero and subnormals
constexpr int8_t kTopBin = 25;      // floor(1023 / 40)

constexpr bool is_number(const Partial& partial) noexcept {
  return partial.repsum_m < kMinusInfinity;
}

constexpr int bin_of(int exponent) noexcept {
  return exponent >= 0 ? exponent / kBinBits : -((39 - exponent) / kBinBits);
}
static_assert(bin_of(-1022) == kBottomBin && bin_of(1023) == kTopBin && bin_of(-1) == -1 && bin_of(-40) == -1 &&
              bin_of(-41) == -2 && bin_of(39) == 0);

void repsum_from(Partial& partial, uint64_t bits) noexcept {
  partial.lanes = {};
  const bool negative = (bits & kSignBit) != 0;
  if (is_nan(bits)) {
    partial.repsum_m = kNan;
    if (is_signalling(bits)) note(partial, ReduceStatus::float_invalid);
    return;
  }
  if (is_infinite(bits)) {
    partial.repsum_m = negative ? kMinusInfinity : kPlusInfinity;
    note(partial, ReduceStatus::float_overflow);
    return;
  }
  const int biased = static_cast<int>((bits & kExponentBits) >> 52);
  const uint64_t mantissa = (bits & kMantissaBits) | (biased != 0 ? uint64_t{1} << 52 : 0);
  const int exponent = std::max(biased, 1) - 1023;  // of bit 52; the value is mantissa * 2^(exponent - 52)
  const int bin = bin_of(exponent);
  partial.repsum_m = static_cast<int8_t>(bin);
  // The mantissa in units of the bin two below the top: at most 120 bits, three slices.
  const int shift = exponent - 52 - kBinBits * (bin - 2);  // 28 to 67
  const auto wide = static_cast<unsigned __int128>(mantissa) << shift;
  constexpr uint64_t kSlice = (uint64_t{1} << kBinBits) - 1;
  for (size_t i = 1; i < 4; ++i) {
    const uint64_t slice = static_cast<uint64_t>(wide >> (kBinBits * (static_cast<int>(i) - 1))) & kSlice;
    partial.lanes[i] = negative ? uint64_t{0} - slice : slice;
  }
}

void combine_repsum(Partial& into, const Partial& from) noexcept {
  Partial low = from;
  if (low.repsum_m > into.repsum_m) {
    std::swap(low.lanes, into.lanes);
    std::swap(low.repsum_m, into.repsum_m);
  }
  if (into.repsum_m == kPlusInfinity && low.repsum_m == kMinusInfinity) {
    into.repsum_m = kNan;
    note(into, ReduceStatus::float_invalid);
  }
  if (!is_number(into)) {
    into.lanes = {};
    return;
  }
  const int dropped = into.repsum_m - low.repsum_m;  // bins of `low` below into's four
  for (int i = 0; i + dropped < 4; ++i) {
    auto& lane = into.lanes[static_cast<size_t>(i)];
    int64_t sum = 0;
    const auto addend = static_cast<int64_t>(low.lanes[static_cast<size_t>(i + dropped)]);
    if (__builtin_add_overflow(static_cast<int64_t>(lane), addend, &sum)) {
      note(into, ReduceStatus::float_overflow);  // after at least 2^23 additions; the bin wraps
    }
    lane = static_cast<uint64_t>(sum);
  }
}

// The sum of the bins, exactly, in units of the lowest: at most 185 bits with the sign.
struct Wide {
  std::array<uint64_t, 4> words{};

  void add(int64_t value, int shift) noexcept {
    const uint64_t sign = value < 0 ? ~uint64_t{0} : 0;
    const auto word = static_cast<size_t>(shift / 64);
    const int bit = shift % 64;
    const auto low = static_cast<uint64_t>(value);
    std::array<uint64_t, 4> addend;
    addend.fill(sign);
    for (size_t i = 0; i < word; ++i) addend[i] = 0;
    addend[word] = low << bit;
    if (bit != 0 && word + 1 < 4) addend[word + 1] = (low >> (64 - bit)) | (sign << bit);
    uint64_t carry = 0;
    for (size_t i = 0; i < 4; ++i) {
      const auto sum = static_cast<unsigned __int128>(words[i]) + addend[i] + carry;
      words[i] = static_cast<uint64_t>(sum);
      carry = static_cast<uint64_t>(sum >> 64);
    }
  }

  bool make_positive() noexcept {  // returns: was negative
    if ((words[3] & kSignBit) == 0) return false;
    uint64_t carry = 1;
    for (uint64_t& word : words) {
      word = ~word + carry;
      carry = carry != 0 && word == 0 ? 1 : 0;
    }
    return true;
  }

  [[nodiscard]] int width() const noexcept {
    for (size_t i = 4; i-- > 0;) {
      if (words[i] != 0) return static_cast<int>(i) * 64 + 64 - std::countl_zero(words[i]);
    }
    return 0;
  }

  [[nodiscard]] bool bit(int index) const noexcept {
    return (words[static_cast<size_t>(index / 64)] >> (index % 64) & 1) != 0;
  }

  [[nodiscard]] bool any_below(int index) const noexcept {
    for (int i = 0; i < index; ++i) {
      if (bit(i)) return true;
    }
    return false;
  }
};

// Nearest even, by integers alone, so that the thread's rounding and flush-to-zero do not matter.
uint64_t repsum_result(const Partial& partial) noexcept {
  switch (partial.repsum_m) {
    case kNan:
      return kExponentBits | kQuietBit;
    case kPlusInfinity:
      return kExponentBits;
    case kMinusInfinity:
      return kExponentBits | kSignBit;
    default:
      break;
  }
  Wide sum;
  for (int i = 0; i < 4; ++i) sum.add(static_cast<int64_t>(partial.lanes[static_cast<size_t>(i)]), kBinBits * i);
  const uint64_t sign = sum.make_positive() ? kSignBit : 0;
  const int unit = kBinBits * (partial.repsum_m - 3);  // exponent of bit 0
  const int width = sum.width();
  if (width == 0) return 0;  // +0, also of -0 + -0: bins have no sign of zero
  // The lowest bit kept: 53 bits, or fewer where the result is subnormal.
  const int last = std::max(width - 53, -1074 - unit);
  uint64_t mantissa = 0;
  for (int i = width - 1; i >= std::max(last, 0); --i) mantissa = mantissa << 1 | (sum.bit(i) ? 1u : 0u);
  if (last < 0) mantissa <<= -last;  // fewer than 53 bits and all of them kept
  int exponent = unit + last;        // of the mantissa's bit 0
  if (last > 0 && sum.bit(last - 1) && ((mantissa & 1) != 0 || sum.any_below(last - 1))) ++mantissa;
  if (mantissa >> 53 != 0) {
    mantissa >>= 1;
    ++exponent;
  }
  if (mantissa >> 52 == 0) return sign | mantissa;  // subnormal or zero: exponent is -1074
  const int biased = exponent + 52 + 1023;
  if (biased >= 0x7ff) return sign | kExponentBits;
  return sign | static_cast<uint64_t>(biased) << 52 | (mantissa & kMantissaBits);
}

// ---- contributions -----------------------------------------------------------------------------------------------

// Notes NaN and infinities that a member brings; a signalling NaN becomes quiet.
void inspect_double(Partial& partial, size_t lane, bool note_nan) noexcept {
  uint64_t& bits = partial.lanes[lane];
  if (is_infinite(bits) || (note_nan && is_nan(bits))) note(partial, ReduceStatus::float_overflow);
  if (!is_signalling(bits)) return;
  note(partial, ReduceStatus::float_invalid);
  bits |= kQuietBit;
}

void combine_general(Partial& into, const Partial& from) noexcept {
  alignas(32) uint64_t target[4];
  alignas(32) uint64_t operand[4];
  std::memcpy(target, into.lanes.data(), sizeof target);
  std::memcpy(operand, from.lanes.data(), sizeof operand);
  atomic_apply(general_op(into.op), into.datatype, target, operand, nullptr, nullptr,
               kReducePayloadBytes / datatype_size(into.datatype));
  std::memcpy(into.lanes.data(), target, sizeof target);
}

}  // namespace

uint8_t thread_rounding() noexcept {
  uint8_t rounding = 0;
  switch (std::fegetround()) {
    case FE_UPWARD:
      rounding = 1;
      break;
    case FE_DOWNWARD:
      rounding = 2;
      break;
    case FE_TOWARDZERO:
      rounding = 3;
      break;
    default:
      break;
  }
#if defined(__x86_64__)
  constexpr unsigned kFlushBit = 1u << 15;
  if ((_mm_getcsr() & kFlushBit) != 0) rounding |= kFlushToZero;
#elif defined(__aarch64__)
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  if ((control >> 24 & 1) != 0) rounding |= kFlushToZero;
#endif
  return rounding;
}

std::optional<ReduceOp> reduce_op(uint16_t op, Datatype datatype, bool prefer_numbers) noexcept {
  const bool is_int = datatype == Datatype::int64;
  const bool is_float = datatype == Datatype::float64;
  const bool is_unsigned = datatype == Datatype::uint8 || datatype == Datatype::uint16 ||
                           datatype == Datatype::uint32 || datatype == Datatype::uint64;
  const auto either = [&](ReduceOp ints, ReduceOp floats) -> std::optional<ReduceOp> {
    if (is_int) return ints;
    if (is_float) return floats;
    return std::nullopt;
  };
  const auto only = [](bool allowed, ReduceOp found) { return allowed ? std::optional(found) : std::nullopt; };
  switch (op) {
    case static_cast<uint16_t>(AtomicOp::bor):
      return only(is_unsigned, ReduceOp::bor);
    case static_cast<uint16_t>(AtomicOp::band):
      return only(is_unsigned, ReduceOp::band);
    case static_cast<uint16_t>(AtomicOp::bxor):
      return only(is_unsigned, ReduceOp::bxor);
    case static_cast<uint16_t>(AtomicOp::min):
      return either(ReduceOp::int_min, prefer_numbers ? ReduceOp::float_minnum : ReduceOp::float_min);
    case static_cast<uint16_t>(AtomicOp::max):
      return either(ReduceOp::int_max, prefer_numbers ? ReduceOp::float_maxnum : ReduceOp::float_max);
    case static_cast<uint16_t>(AtomicOp::sum):
      return either(ReduceOp::int_sum, is_float ? ReduceOp(code(ReduceOp::float_sum) + thread_rounding()) : ReduceOp{});
    case kCxiMinmaxloc:
      return either(ReduceOp::int_minmaxloc, prefer_numbers ? ReduceOp::float_minmaxnumloc : ReduceOp::float_minmaxloc);
    case kCxiMinnum:
      return only(is_float, ReduceOp::float_minnum);
    case kCxiMaxnum:
      return only(is_float, ReduceOp::float_maxnum);
    case kCxiMinmaxnumloc:
      return only(is_float, ReduceOp::float_minmaxnumloc);
    case kCxiRepsum:
      return only(is_float, ReduceOp::repsum);
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> general_reduce_op(uint16_t op, Datatype datatype) noexcept {
  if (op > static_cast<uint16_t>(AtomicOp::bxor)) return std::nullopt;
  if (!atomic_valid(datatype, static_cast<AtomicOp>(op), AtomicFamily::base)) return std::nullopt;
  return static_cast<ReduceOp>(code(ReduceOp::general) + op);
}

std::optional<size_t> payload_bytes(ReduceOp op, Datatype datatype, size_t count) noexcept {
  const size_t size = datatype_size(datatype);
  if (op == ReduceOp::barrier || size == 0 || count == 0 || count > kReducePayloadBytes / size) return std::nullopt;
  if (is_minmaxloc(op)) return count == 1 ? std::optional(kReducePayloadBytes) : std::nullopt;
  if (op == ReduceOp::repsum && count != 1) return std::nullopt;
  return size * count;
}

Partial contribution(ReduceOp op, Datatype datatype, const void* data, size_t count) noexcept {
  Partial partial;
  partial.op = op;
  partial.contributions = 1;
  partial.filled = 1;
  if (is_general(op)) partial.datatype = datatype;
  if (data != nullptr) std::memcpy(partial.lanes.data(), data, payload_bytes(op, datatype, count).value_or(0));
  switch (op) {
    case ReduceOp::float_min:
    case ReduceOp::float_max:
    case ReduceOp::float_minnum:
    case ReduceOp::float_maxnum:
      for (size_t i = 0; i < 4; ++i) inspect_double(partial, i, true);
      break;
    case ReduceOp::float_minmaxloc:
    case ReduceOp::float_minmaxnumloc:
      for (size_t i = 0; i < 4; i += 2) inspect_double(partial, i, false);
      break;
    case ReduceOp::repsum:
      repsum_from(partial, partial.lanes[0]);
      break;
    default:
      if (is_float_sum(op)) {
        for (size_t i = 0; i < 4; ++i) inspect_double(partial, i, true);
      }
      break;
  }
  return partial;
}

bool check(const Partial& partial) noexcept {
  constexpr Partial kEmpty;
  if (partial.filled == 0) return std::memcmp(&partial, &kEmpty, sizeof kEmpty) == 0;
  if (partial.filled > 1 || static_cast<uint8_t>(partial.status) > kReduceStatusLast) return false;
  if (partial.unused != kEmpty.unused) return false;
  const ReduceOp op = partial.op;
  if (op != ReduceOp::repsum && partial.repsum_m != 0) return false;
  if (is_general(op)) return general_reduce_op(static_cast<uint16_t>(general_op(op)), partial.datatype) == op;
  if (partial.datatype != Datatype{}) return false;
  if (op == ReduceOp::repsum) {
    const int bin = partial.repsum_m;
    return (bin >= kBottomBin && bin <= kTopBin) || bin >= kMinusInfinity;
  }
  switch (op) {
    case ReduceOp::barrier:
      return partial.lanes == kEmpty.lanes;
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
    case ReduceOp::int_min:
    case ReduceOp::int_max:
    case ReduceOp::int_minmaxloc:
    case ReduceOp::int_sum:
    case ReduceOp::float_min:
    case ReduceOp::float_max:
    case ReduceOp::float_minmaxloc:
    case ReduceOp::float_minnum:
    case ReduceOp::float_maxnum:
    case ReduceOp::float_minmaxnumloc:
      return true;
    default:
      return is_float_sum(op);
  }
}

void combine(Partial& into, const Partial& from) noexcept {
  if (!check(from)) return note(into, ReduceStatus::mismatch);
  if (from.filled == 0) return;
  if (into.filled == 0) {
    const ReduceStatus status = into.status;
    into = from;
    return note(into, status);
  }
  note(into, from.status);
  into.contributions += from.contributions;
  if (into.op != from.op || into.datatype != from.datatype) return note(into, ReduceStatus::mismatch);
  switch (into.op) {
    case ReduceOp::barrier:
      return;
    case ReduceOp::band:
      for (size_t i = 0; i < 4; ++i) into.lanes[i] &= from.lanes[i];
      return;
    case ReduceOp::bor:
      for (size_t i = 0; i < 4; ++i) into.lanes[i] |= from.lanes[i];
      return;
    case ReduceOp::bxor:
      for (size_t i = 0; i < 4; ++i) into.lanes[i] ^= from.lanes[i];
      return;
    case ReduceOp::int_min:
      return combine_extremes(into, from, {}, true);
    case ReduceOp::int_max:
      return combine_extremes(into, from, {}, false);
    case ReduceOp::int_minmaxloc:
      return combine_minmaxloc(into, from, {});
    case ReduceOp::int_sum:
      return combine_int_sum(into, from);
    case ReduceOp::float_min:
      return combine_extremes(into, from, {true, false}, true);
    case ReduceOp::float_max:
      return combine_extremes(into, from, {true, false}, false);
    case ReduceOp::float_minmaxloc:
      return combine_minmaxloc(into, from, {true, false});
    case ReduceOp::float_minnum:
      return combine_extremes(into, from, {true, true}, true);
    case ReduceOp::float_maxnum:
      return combine_extremes(into, from, {true, true}, false);
    case ReduceOp::float_minmaxnumloc:
      return combine_minmaxloc(into, from, {true, true});
    case ReduceOp::repsum:
      return combine_repsum(into, from);
    default:
      return is_general(into.op) ? combine_general(into, from) : combine_float_sum(into, from);
  }
}

void result(const Partial& partial, Datatype datatype, void* out, size_t count) noexcept {
  if (partial.op == ReduceOp::repsum) {
    const uint64_t bits = repsum_result(partial);
    std::memcpy(out, &bits, sizeof bits);
    return;
  }
  std::memcpy(out, partial.lanes.data(), payload_bytes(partial.op, datatype, count).value_or(0));
}

std::optional<Partial> pre_reduced(const void* accumulator) noexcept {
  Partial partial;
  std::memcpy(&partial, accumulator, sizeof partial);
  if (partial.filled == 0 || !check(partial)) return std::nullopt;
  partial.contributions = 1;
  return partial;
}

bool fold(void* accumulator, const Partial& from) noexcept {
  Partial partial;
  std::memcpy(&partial, accumulator, sizeof partial);
  if (!check(partial)) return false;
  combine(partial, from);
  if (partial.filled != 0) partial.contributions = 1;
  std::memcpy(accumulator, &partial, sizeof partial);
  return true;
}

}  // namespace weft::nic
