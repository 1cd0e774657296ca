// cpp/nic/atomics.cpp: the atomics unit: one handler for each (operation, datatype), made from an element type and an
// access. An element type converts between bits and values; an access exchanges the bits with memory. See atomics.hpp.
#include "nic/atomics.hpp"

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "mem/guard.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace weft::nic {
namespace {

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 Uint128;

// ---- accesses: how an image (the element's bits) is read, replaced and swapped --------------------------------------

template <size_t Size>
struct ImageOf;
template <>
struct ImageOf<1> {
  using Type = uint8_t;
};
template <>
struct ImageOf<2> {
  using Type = uint16_t;
};
template <>
struct ImageOf<4> {
  using Type = uint32_t;
};
template <>
struct ImageOf<8> {
  using Type = uint64_t;
};
template <>
struct ImageOf<16> {
  using Type = Uint128;
};
struct Image32 {
  Uint128 real, imaginary;
};
template <>
struct ImageOf<32> {
  using Type = Image32;
};

/// CAS of the element's width. may_alias: the region's owner may use these bytes as any type.
template <class Image>
struct NativeAccess {
  using Word [[gnu::may_alias]] = Image;
  static constexpr bool kAtomic = true, kSingleInstruction = true;
  static Word* at(void* p) noexcept { return static_cast<Word*>(p); }

  static Image load(void* p) noexcept { return __atomic_load_n(at(p), __ATOMIC_ACQUIRE); }
  static bool replace(void* p, Image& expected, Image desired) noexcept {
    // SYNC POINT: a thread that reads the new value with acquire sees the earlier writes of the initiator's process.
    return __atomic_compare_exchange_n(at(p), &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }
  static void store(void* p, Image value) noexcept { __atomic_store_n(at(p), value, __ATOMIC_RELEASE); }
  static Image exchange(void* p, Image value) noexcept { return __atomic_exchange_n(at(p), value, __ATOMIC_ACQ_REL); }
  static Image add(void* p, Image value) noexcept { return __atomic_fetch_add(at(p), value, __ATOMIC_ACQ_REL); }
  static Image sub(void* p, Image value) noexcept { return __atomic_fetch_sub(at(p), value, __ATOMIC_ACQ_REL); }
  static Image bit_or(void* p, Image value) noexcept { return __atomic_fetch_or(at(p), value, __ATOMIC_ACQ_REL); }
  static Image bit_and(void* p, Image value) noexcept { return __atomic_fetch_and(at(p), value, __ATOMIC_ACQ_REL); }
  static Image bit_xor(void* p, Image value) noexcept { return __atomic_fetch_xor(at(p), value, __ATOMIC_ACQ_REL); }
};

/// No atomicity: the caller excludes others. memcpy, because the target may have any alignment.
template <class Image>
struct PlainAccess {
  static constexpr bool kAtomic = false, kSingleInstruction = false;
  static Image load(void* p) noexcept {
    Image image;
    std::memcpy(&image, p, sizeof image);
    return image;
  }
  static bool replace(void* p, Image&, const Image& desired) noexcept {
    std::memcpy(p, &desired, sizeof desired);
    return true;
  }
};

#if defined(__x86_64__)
struct CpuFeatures {
  bool cx16 = false;
  bool avx = false;
  CpuFeatures() noexcept {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) {
      cx16 = (ecx & (1U << 13)) != 0;  // Intel SDM vol. 2A, CPUID leaf 1: CMPXCHG16B
      avx = (ecx & (1U << 28)) != 0;
    }
  }
};
const CpuFeatures g_cpu;

/// Inline assembly, because __atomic builtins on 16 bytes call libatomic, whose locks other processes do not share.
struct WideAccess {
  static constexpr bool kAtomic = true, kSingleInstruction = false;

  static bool replace(void* p, Uint128& expected, Uint128 desired) noexcept {
    auto low = static_cast<uint64_t>(expected);
    auto high = static_cast<uint64_t>(expected >> 64);
    bool done;
    // SYNC POINT: a locked instruction, hence a full barrier; "memory" stops the compiler as well.
    __asm__ __volatile__("lock cmpxchg16b %[target]"
                         : "=@ccz"(done), [target] "+m"(*static_cast<Uint128*>(p)), "+a"(low), "+d"(high)
                         : "b"(static_cast<uint64_t>(desired)), "c"(static_cast<uint64_t>(desired >> 64))
                         : "memory");
    if (!done) expected = (static_cast<Uint128>(high) << 64) | low;
    return done;
  }
  static Uint128 load(void* p) noexcept {
    // A 16-byte aligned SSE load is atomic on processors with AVX (Intel SDM vol. 3A 9.1.1; AMD APM vol. 2 7.3.2),
    // and, unlike cmpxchg16b, it works on a read-only mapping.
    if (g_cpu.avx) [[likely]] {
      typedef uint64_t Vector __attribute__((vector_size(16)));
      Vector value;
      __asm__ __volatile__("movdqa %[target], %[value]"
                           : [value] "=x"(value)
                           : [target] "m"(*static_cast<const Uint128*>(p))
                           : "memory");
      return (static_cast<Uint128>(value[1]) << 64) | value[0];
    }
    Uint128 value = 0;
    replace(p, value, 0);
    return value;
  }
};
#endif

// ---- element types: image <-> value ---------------------------------------------------------------------------------

template <class T>
struct IntegerElement {
  using Value = T;
  using Image = typename ImageOf<sizeof(T)>::Type;
  static constexpr bool kInteger = true, kComplex = false;
  static Value value(Image image) noexcept { return static_cast<Value>(image); }
  static Image image(Value value) noexcept { return static_cast<Image>(value); }
  // Unsigned arithmetic at full width: signed overflow wraps as in the CPU, and uint16 is not promoted to int.
  using Wide = std::conditional_t<(sizeof(T) > 8), Uint128, uint64_t>;
  static Value add(Value a, Value b) noexcept {
    return static_cast<Value>(static_cast<Wide>(a) + static_cast<Wide>(b));
  }
  static Value sub(Value a, Value b) noexcept {
    return static_cast<Value>(static_cast<Wide>(a) - static_cast<Wide>(b));
  }
  static Value mul(Value a, Value b) noexcept {
    return static_cast<Value>(static_cast<Wide>(a) * static_cast<Wide>(b));
  }
  static bool truth(Value a) noexcept { return a != 0; }
  static Value from_bool(bool b) noexcept { return static_cast<Value>(b ? 1 : 0); }
  static bool equal(Value a, Value b) noexcept { return a == b; }
  static bool less(Value a, Value b) noexcept { return a < b; }
  static bool less_equal(Value a, Value b) noexcept { return a <= b; }
};

template <class T>
struct RealArithmetic {
  using Value = T;
  static constexpr bool kInteger = false, kComplex = false;
  static Value add(Value a, Value b) noexcept { return a + b; }
  static Value sub(Value a, Value b) noexcept { return a - b; }
  static Value mul(Value a, Value b) noexcept { return a * b; }
  static bool truth(Value a) noexcept { return a != 0; }
  static Value from_bool(bool b) noexcept { return b ? Value(1) : Value(0); }
  static bool equal(Value a, Value b) noexcept { return a == b; }
  static bool less(Value a, Value b) noexcept { return a < b; }
  static bool less_equal(Value a, Value b) noexcept { return a <= b; }
};

// x87 extended precision fills 10 of its 16 bytes. The padding of a result is zero, so that equal values have equal
// images.
template <class T>
inline constexpr size_t kValueBytes = (sizeof(T) == 16 && std::numeric_limits<T>::digits == 64) ? 10 : sizeof(T);

template <class T>
struct FloatElement : RealArithmetic<T> {
  using Image = typename ImageOf<sizeof(T)>::Type;
  static T value(Image image) noexcept {
    T value;
    std::memcpy(&value, &image, sizeof value);
    return value;
  }
  static Image image(T value) noexcept {
    Image image{};
    std::memcpy(&image, &value, kValueBytes<T>);
    return image;
  }
};

template <class T>
struct Complex {
  T real, imaginary;
};

template <class T>
struct ComplexElement {
  using Value = Complex<T>;
  using Image = typename ImageOf<2 * sizeof(T)>::Type;
  static constexpr bool kInteger = false, kComplex = true;
  static Value value(const Image& image) noexcept {
    Value value;
    std::memcpy(&value, &image, sizeof value);
    return value;
  }
  static Image image(const Value& value) noexcept {
    Image image{};
    auto* bytes = reinterpret_cast<unsigned char*>(&image);
    std::memcpy(bytes, &value.real, kValueBytes<T>);
    std::memcpy(bytes + sizeof(T), &value.imaginary, kValueBytes<T>);
    return image;
  }
  static Value add(Value a, Value b) noexcept { return {a.real + b.real, a.imaginary + b.imaginary}; }
  static Value sub(Value a, Value b) noexcept { return {a.real - b.real, a.imaginary - b.imaginary}; }
  // The textbook product, without the recovery of infinities of C's Annex G, which costs a library call.
  static Value mul(Value a, Value b) noexcept {
    return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
  }
  static bool truth(Value a) noexcept { return a.real != 0 || a.imaginary != 0; }
  static Value from_bool(bool b) noexcept { return {b ? T(1) : T(0), T(0)}; }
  static bool equal(Value a, Value b) noexcept { return a.real == b.real && a.imaginary == b.imaginary; }
};

// ---- small floats ---------------------------------------------------------------------------------------------------

/// A float of 1 + Exponent + Mantissa bits, converted through double's bits. Computing in double and rounding once
/// equals rounding the exact result: 53 bits are more than twice the format's 11 and two, and no result is subnormal in
/// double. (Computing in float is not enough for bfloat16: products below 2^-126 would be rounded twice.)
template <int Exponent, int Mantissa, bool Finite>
struct SmallFloat {
  using Bits = std::conditional_t<(Exponent + Mantissa > 7), uint16_t, uint8_t>;
  static constexpr int kBias = (1 << (Exponent - 1)) - 1;
  static constexpr uint64_t kMantissaMask = (uint64_t{1} << Mantissa) - 1;
  static constexpr uint64_t kExponentMax = (uint64_t{1} << Exponent) - 1;
  static constexpr int kDoubleMantissa = 52, kDoubleBias = 1023;
  static constexpr int kDropped = kDoubleMantissa - Mantissa;
  // "fn" has no infinity: overflow and NaN are both all ones; else overflow is the infinity.
  static constexpr uint64_t kNan =
      Finite ? (kExponentMax << Mantissa | kMantissaMask) : (kExponentMax << Mantissa | uint64_t{1} << (Mantissa - 1));
  static constexpr uint64_t kOverflow = Finite ? kNan : kExponentMax << Mantissa;

  static double decode(Bits bits) noexcept {
    const uint64_t sign = static_cast<uint64_t>((bits >> (Exponent + Mantissa)) & 1) << 63;
    const uint64_t exponent = (bits >> Mantissa) & kExponentMax;
    const uint64_t mantissa = bits & kMantissaMask;
    const bool special = Finite ? (exponent == kExponentMax && mantissa == kMantissaMask) : exponent == kExponentMax;
    uint64_t image;
    if (special) {
      image = uint64_t{0x7ff} << kDoubleMantissa | mantissa << kDropped;  // keeps infinity and a NaN's payload
    } else if (exponent == 0) {
      // Subnormal: mantissa * 2^(1 - bias - Mantissa), exact in double.
      constexpr double kUnit =
          std::bit_cast<double>(static_cast<uint64_t>(kDoubleBias + 1 - kBias - Mantissa) << kDoubleMantissa);
      image = std::bit_cast<uint64_t>(static_cast<double>(mantissa) * kUnit);
    } else {
      image = (exponent - kBias + kDoubleBias) << kDoubleMantissa | mantissa << kDropped;
    }
    return std::bit_cast<double>(sign | image);
  }

  static Bits encode(double value) noexcept {
    const auto image = std::bit_cast<uint64_t>(value);
    const uint64_t sign = (image >> 63) << (Exponent + Mantissa);
    const uint64_t magnitude = image & ~(uint64_t{1} << 63);
    const auto exponent = static_cast<int>(magnitude >> kDoubleMantissa);
    uint64_t mantissa = magnitude & ((uint64_t{1} << kDoubleMantissa) - 1);
    if (exponent == 0x7ff) {
      if (mantissa == 0) return static_cast<Bits>(sign | kOverflow);
      if (Finite) return static_cast<Bits>(sign | kNan);
      const uint64_t payload = mantissa >> kDropped;
      return static_cast<Bits>(sign | kExponentMax << Mantissa | (payload != 0 ? payload : kNan & kMantissaMask));
    }
    if (exponent == 0) return static_cast<Bits>(sign);  // zero, and doubles far below half of the smallest value
    mantissa |= uint64_t{1} << kDoubleMantissa;
    const int scaled = exponent - kDoubleBias + kBias;  // our biased exponent; < 1 is subnormal here
    const int shift = kDropped + (scaled < 1 ? 1 - scaled : 0);
    if (shift > kDoubleMantissa + 2) return static_cast<Bits>(sign);  // below half of the smallest value
    uint64_t kept = mantissa >> shift;
    const uint64_t rest = mantissa & ((uint64_t{1} << shift) - 1);
    const uint64_t half = uint64_t{1} << (shift - 1);
    if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;  // nearest, ties to even
    // Adding (not or-ing) the exponent lets a mantissa that rounded up carry into it, from subnormal to normal too.
    const uint64_t bits = scaled < 1 ? kept : (static_cast<uint64_t>(scaled - 1) << Mantissa) + kept;
    return static_cast<Bits>(sign | (bits < kOverflow ? bits : kOverflow));
  }
};

using Float16 = SmallFloat<5, 10, false>;
using Bfloat16 = SmallFloat<8, 7, false>;
using Fp8E4m3 = SmallFloat<4, 3, true>;
using Fp8E5m2 = SmallFloat<5, 2, false>;

template <class Format>
struct SmallFloatElement : RealArithmetic<double> {
  using Image = typename Format::Bits;
  static double value(Image image) noexcept { return Format::decode(image); }
  static Image image(double value) noexcept { return Format::encode(value); }
};

// ---- operations -----------------------------------------------------------------------------------------------------

constexpr bool uses_compare(AtomicOp op) noexcept {
  return op >= AtomicOp::cswap && op <= AtomicOp::mswap;
}
constexpr bool uses_operand(AtomicOp op) noexcept {
  return op != AtomicOp::atomic_read;
}
constexpr bool integer_only(AtomicOp op) noexcept {
  return op == AtomicOp::bor || op == AtomicOp::band || op == AtomicOp::bxor || op == AtomicOp::mswap;
}
constexpr bool needs_order(AtomicOp op) noexcept {
  return op == AtomicOp::min || op == AtomicOp::max || (op >= AtomicOp::cswap_le && op <= AtomicOp::cswap_gt);
}

template <class E, AtomicOp op>
inline constexpr bool kSupported = (E::kInteger || !integer_only(op)) && (!E::kComplex || !needs_order(op));

/// The element type whose handler does the same: reads and writes move images, and without an order signed integers are
/// unsigned ones. A third of the handlers need not be compiled.
template <class E, AtomicOp op, class Image = typename E::Image>
using Same = std::conditional_t<sizeof(Image) <= 16 && (op == AtomicOp::atomic_read || op == AtomicOp::atomic_write ||
                                                        (E::kInteger && !needs_order(op))),
                                IntegerElement<Image>, E>;

/// Computes the target's new image from its old one; false: the target is unchanged. Each line is the man page's
/// expression.
template <class E, AtomicOp op, class Image = typename E::Image>
bool next_image(const Image& old, const Image& operand, const Image& compare, Image& desired) noexcept {
  using enum AtomicOp;
  if constexpr (op == atomic_write) {
    desired = operand;
    return true;
  } else if constexpr (op == atomic_read) {
    return false;
  } else if constexpr (op == bor) {
    desired = static_cast<Image>(old | operand);
    return true;
  } else if constexpr (op == band) {
    desired = static_cast<Image>(old & operand);
    return true;
  } else if constexpr (op == bxor) {
    desired = static_cast<Image>(old ^ operand);
    return true;
  } else if constexpr (op == mswap) {
    desired = static_cast<Image>((operand & compare) | (old & ~compare));
    return true;
  } else if constexpr (uses_compare(op)) {
    const auto c = E::value(compare);
    const auto t = E::value(old);
    desired = operand;
    if constexpr (op == cswap)
      return E::equal(c, t);
    else if constexpr (op == cswap_ne)
      return !E::equal(c, t);
    else if constexpr (op == cswap_le)
      return E::less_equal(c, t);
    else if constexpr (op == cswap_lt)
      return E::less(c, t);
    else if constexpr (op == cswap_ge)
      return E::less_equal(t, c);
    else
      return E::less(t, c);
  } else {
    const auto b = E::value(operand);
    const auto t = E::value(old);
    if constexpr (op == min) {
      desired = operand;
      return E::less(b, t);
    } else if constexpr (op == max) {
      desired = operand;
      return E::less(t, b);
    } else {
      if constexpr (op == sum)
        desired = E::image(E::add(t, b));
      else if constexpr (op == diff)
        desired = E::image(E::sub(t, b));
      else if constexpr (op == prod)
        desired = E::image(E::mul(t, b));
      else if constexpr (op == lor)
        desired = E::image(E::from_bool(E::truth(t) || E::truth(b)));
      else if constexpr (op == land)
        desired = E::image(E::from_bool(E::truth(t) && E::truth(b)));
      else
        desired = E::image(E::from_bool(E::truth(t) != E::truth(b)));
      return true;
    }
  }
}

template <class E, AtomicOp op, class Access, bool Fetch, class Image = typename E::Image>
Image update(void* target, const Image& operand, const Image& compare) noexcept {
  using enum AtomicOp;
  if constexpr (Access::kSingleInstruction) {
    if constexpr (op == atomic_write) {
      if constexpr (Fetch) return Access::exchange(target, operand);
      Access::store(target, operand);
      return Image{};
    } else if constexpr (E::kInteger) {
      if constexpr (op == sum)
        return Access::add(target, operand);
      else if constexpr (op == diff)
        return Access::sub(target, operand);
      else if constexpr (op == bor)
        return Access::bit_or(target, operand);
      else if constexpr (op == band)
        return Access::bit_and(target, operand);
      else if constexpr (op == bxor)
        return Access::bit_xor(target, operand);
      else if constexpr (op == cswap) {
        Image expected = compare;  // an integer value has one image, so the CPU's comparison is the man page's
        Access::replace(target, expected, operand);
        return expected;
      }
    }
  }
  Image old = Access::load(target);
  Image desired{};
  while (next_image<E, op>(old, operand, compare, desired) && !Access::replace(target, old, desired)) {
  }
  return old;
}

template <class E, AtomicOp op, class Access, bool Fetch>
void loop(void* target, const void* operand, const void* compare, void* result, size_t count) noexcept {
  using Image = typename E::Image;
  auto* t = static_cast<unsigned char*>(target);
  auto* b = static_cast<const unsigned char*>(operand);
  auto* c = static_cast<const unsigned char*>(compare);
  auto* r = static_cast<unsigned char*>(result);
  for (size_t offset = 0; offset < count * sizeof(Image); offset += sizeof(Image)) {
    Image operand_image{}, compare_image{};
    if constexpr (uses_operand(op)) std::memcpy(&operand_image, b + offset, sizeof(Image));
    if constexpr (uses_compare(op)) std::memcpy(&compare_image, c + offset, sizeof(Image));
    const Image old = update<E, op, Access, Fetch>(t + offset, operand_image, compare_image);
    if (Fetch && (Access::kAtomic || r != nullptr)) std::memcpy(r + offset, &old, sizeof(Image));
  }
}

template <class E, AtomicOp op, class Access>
void with_access(void* target, const void* operand, const void* compare, void* result, size_t count) noexcept {
  if (!Access::kAtomic || result != nullptr)  // One loop is enough where other updates are kept away
    loop<E, op, Access, true>(target, operand, compare, result, count);
  else
    loop<E, op, Access, false>(target, operand, compare, result, count);
}

template <class E, AtomicOp op>
void handler(void* target, const void* operand, const void* compare, void* result, size_t count) noexcept {
  using Image = typename E::Image;
  [[maybe_unused]] const bool aligned = (reinterpret_cast<uintptr_t>(target) & (sizeof(Image) - 1)) == 0;
  if constexpr (sizeof(Image) <= 8) {
    if (aligned) [[likely]]
      return with_access<E, op, NativeAccess<Image>>(target, operand, compare, result, count);
  }
#if defined(__x86_64__)
  if constexpr (sizeof(Image) == 16) {
    if (aligned && g_cpu.cx16) [[likely]]
      return with_access<E, op, WideAccess>(target, operand, compare, result, count);
  }
#endif
  with_access<E, op, PlainAccess<Image>>(target, operand, compare, result, count);
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

/// A loop that the compiler turns into vector instructions where the type and the operation have them.
template <class E, AtomicOp op>
[[gnu::always_inline]] inline void block_loop(void* target, const void* operand, size_t count) noexcept {
  using Image = typename E::Image;
  auto* t = static_cast<unsigned char*>(target);
  auto* b = static_cast<const unsigned char*>(operand);
  for (size_t at = 0; at < count * sizeof(Image); at += sizeof(Image)) {
    Image old, given, desired;
    std::memcpy(&old, t + at, sizeof(Image));
    std::memcpy(&given, b + at, sizeof(Image));
    if constexpr (op == AtomicOp::min || op == AtomicOp::max) {
      const bool replaces = next_image<E, op>(old, given, given, desired);
      desired = replaces ? given : old;
    } else {
      (void)next_image<E, op>(old, given, given, desired);
    }
    std::memcpy(t + at, &desired, sizeof(Image));
  }
}

using BlockFn = void (*)(void* target, const void* operand, size_t count) noexcept;

template <class E, AtomicOp op>
void block(void* target, const void* operand, size_t count) noexcept {
  block_loop<E, op>(target, operand, count);
}
#if defined(__x86_64__)
// The same with vectors of 32 bytes, which a build for every x86-64 processor cannot assume.
template <class E, AtomicOp op>
[[gnu::target("avx2"), gnu::flatten]] void block_avx2(void* target, const void* operand, size_t count) noexcept {
  block_loop<E, op>(target, operand, count);
}
#endif

template <class E, AtomicOp op>
BlockFn block_for([[maybe_unused]] bool wide) noexcept {
#if defined(__x86_64__)
  if (wide) return &block_avx2<Same<E, op>, op>;
#endif
  return &block<Same<E, op>, op>;
}

template <AtomicOp op>
BlockFn block_of(Datatype datatype, bool wide) noexcept {
  switch (datatype) {
    case Datatype::int8:
      return block_for<IntegerElement<int8_t>, op>(wide);
    case Datatype::uint8:
      return block_for<IntegerElement<uint8_t>, op>(wide);
    case Datatype::int16:
      return block_for<IntegerElement<int16_t>, op>(wide);
    case Datatype::uint16:
      return block_for<IntegerElement<uint16_t>, op>(wide);
    case Datatype::int32:
      return block_for<IntegerElement<int32_t>, op>(wide);
    case Datatype::uint32:
      return block_for<IntegerElement<uint32_t>, op>(wide);
    case Datatype::int64:
      return block_for<IntegerElement<int64_t>, op>(wide);
    case Datatype::uint64:
      return block_for<IntegerElement<uint64_t>, op>(wide);
    default:
      break;
  }
  if constexpr (!integer_only(op)) {
    if (datatype == Datatype::float32) return block_for<FloatElement<float>, op>(wide);
    if (datatype == Datatype::float64) return block_for<FloatElement<double>, op>(wide);
    if constexpr (!needs_order(op)) {
      if (datatype == Datatype::float_complex) return block_for<ComplexElement<float>, op>(wide);
      if (datatype == Datatype::double_complex) return block_for<ComplexElement<double>, op>(wide);
    }
  }
  return nullptr;
}

/// Null: the pair has no loop of its own.
BlockFn block_of(AtomicOp op, Datatype datatype, bool wide) noexcept {
  switch (op) {
    case AtomicOp::sum:
      return block_of<AtomicOp::sum>(datatype, wide);
    case AtomicOp::prod:
      return block_of<AtomicOp::prod>(datatype, wide);
    case AtomicOp::min:
      return block_of<AtomicOp::min>(datatype, wide);
    case AtomicOp::max:
      return block_of<AtomicOp::max>(datatype, wide);
    case AtomicOp::bor:
      return block_of<AtomicOp::bor>(datatype, wide);
    case AtomicOp::band:
      return block_of<AtomicOp::band>(datatype, wide);
    case AtomicOp::bxor:
      return block_of<AtomicOp::bxor>(datatype, wide);
    default:
      return nullptr;
  }
}

/// The handler of a pair that atomic_valid refuses for every family.
void nothing(void*, const void*, const void*, void*, size_t) noexcept {}

template <class E, AtomicOp op>
constexpr detail::AtomicFn pick() noexcept {
  if constexpr (kSupported<E, op>)
    return &handler<Same<E, op>, op>;
  else
    return &nothing;
}

}  // namespace

namespace detail {

bool has_wide_atomics() noexcept {
#if defined(__x86_64__)
  return g_cpu.cx16;
#else
  return false;
#endif
}

#define WEFT_ATOMIC_ROW(op)                                                         \
  {pick<IntegerElement<int8_t>, op>(),     pick<IntegerElement<uint8_t>, op>(),     \
   pick<IntegerElement<int16_t>, op>(),    pick<IntegerElement<uint16_t>, op>(),    \
   pick<IntegerElement<int32_t>, op>(),    pick<IntegerElement<uint32_t>, op>(),    \
   pick<IntegerElement<int64_t>, op>(),    pick<IntegerElement<uint64_t>, op>(),    \
   pick<FloatElement<float>, op>(),        pick<FloatElement<double>, op>(),        \
   pick<ComplexElement<float>, op>(),      pick<ComplexElement<double>, op>(),      \
   pick<FloatElement<long double>, op>(),  pick<ComplexElement<long double>, op>(), \
   pick<IntegerElement<Int128>, op>(),     pick<IntegerElement<Uint128>, op>(),     \
   pick<SmallFloatElement<Float16>, op>(), pick<SmallFloatElement<Bfloat16>, op>(), \
   pick<SmallFloatElement<Fp8E4m3>, op>(), pick<SmallFloatElement<Fp8E5m2>, op>()}

constexpr AtomicFn kAtomicTable[kAtomicOpCount][kDatatypeCount] = {
    WEFT_ATOMIC_ROW(AtomicOp::min),         WEFT_ATOMIC_ROW(AtomicOp::max),
    WEFT_ATOMIC_ROW(AtomicOp::sum),         WEFT_ATOMIC_ROW(AtomicOp::prod),
    WEFT_ATOMIC_ROW(AtomicOp::lor),         WEFT_ATOMIC_ROW(AtomicOp::land),
    WEFT_ATOMIC_ROW(AtomicOp::bor),         WEFT_ATOMIC_ROW(AtomicOp::band),
    WEFT_ATOMIC_ROW(AtomicOp::lxor),        WEFT_ATOMIC_ROW(AtomicOp::bxor),
    WEFT_ATOMIC_ROW(AtomicOp::atomic_read), WEFT_ATOMIC_ROW(AtomicOp::atomic_write),
    WEFT_ATOMIC_ROW(AtomicOp::cswap),       WEFT_ATOMIC_ROW(AtomicOp::cswap_ne),
    WEFT_ATOMIC_ROW(AtomicOp::cswap_le),    WEFT_ATOMIC_ROW(AtomicOp::cswap_lt),
    WEFT_ATOMIC_ROW(AtomicOp::cswap_ge),    WEFT_ATOMIC_ROW(AtomicOp::cswap_gt),
    WEFT_ATOMIC_ROW(AtomicOp::mswap),       WEFT_ATOMIC_ROW(AtomicOp::diff),
};
#undef WEFT_ATOMIC_ROW

}  // namespace detail

bool atomic_valid(Datatype datatype, AtomicOp op, AtomicFamily family) noexcept {
  const auto type = static_cast<unsigned>(datatype);
  if (type >= kDatatypeCount || static_cast<unsigned>(op) >= kAtomicOpCount) return false;
  const bool integer =
      type <= static_cast<unsigned>(Datatype::uint64) || datatype == Datatype::int128 || datatype == Datatype::uint128;
  const bool complex = datatype == Datatype::float_complex || datatype == Datatype::double_complex ||
                       datatype == Datatype::long_double_complex;
  if ((integer_only(op) && !integer) || (needs_order(op) && complex)) return false;
  switch (family) {
    case AtomicFamily::base:
      return !uses_compare(op) && op != AtomicOp::atomic_read;
    case AtomicFamily::fetch:
      return !uses_compare(op);
    case AtomicFamily::compare:
      return uses_compare(op);
  }
  return false;
}

bool atomic_guarded(AtomicOp op, Datatype datatype, void* target, const void* operand, const void* compare,
                    void* result, size_t count) noexcept {
  const size_t bytes = count * datatype_size(datatype);
  const mem::MemoryRange ranges[] = {{target, bytes},
                                     {operand, operand != nullptr ? bytes : 0},
                                     {compare, compare != nullptr ? bytes : 0},
                                     {result, result != nullptr ? bytes : 0}};
  return mem::guarded(ranges, [=] {
#if defined(WEFT_GUARD_TSAN)
    mem::touch(target, bytes, op != AtomicOp::atomic_read);
#endif
    atomic_apply(op, datatype, target, operand, compare, result, count);
  });
}

bool has_wide_vectors() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

bool block_guarded(AtomicOp op, Datatype datatype, void* target, const void* operand, size_t count,
                   bool wide) noexcept {
  const BlockFn plain = block_of(op, datatype, wide);
  if (plain == nullptr) return atomic_guarded(op, datatype, target, operand, nullptr, nullptr, count);
  const size_t bytes = count * datatype_size(datatype);
  const mem::MemoryRange ranges[] = {{target, bytes}, {operand, bytes}};
  return mem::guarded(ranges, [=] { plain(target, operand, count); });
}

double decode_float16(uint16_t bits) noexcept {
  return Float16::decode(bits);
}
double decode_bfloat16(uint16_t bits) noexcept {
  return Bfloat16::decode(bits);
}
double decode_fp8_e4m3(uint8_t bits) noexcept {
  return Fp8E4m3::decode(bits);
}
double decode_fp8_e5m2(uint8_t bits) noexcept {
  return Fp8E5m2::decode(bits);
}
uint16_t encode_float16(double value) noexcept {
  return Float16::encode(value);
}
uint16_t encode_bfloat16(double value) noexcept {
  return Bfloat16::encode(value);
}
uint8_t encode_fp8_e4m3(double value) noexcept {
  return Fp8E4m3::encode(value);
}
uint8_t encode_fp8_e5m2(double value) noexcept {
  return Fp8E5m2::encode(value);
}

}  // namespace weft::nic
