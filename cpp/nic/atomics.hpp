// cpp/nic/atomics.hpp: the atomics unit: the updates of target memory for fi_atomic, fi_fetch_atomic and
// fi_compare_atomic.
// Callers:  any thread of any process that has the target mapped; no state, no lock.
// Progress: native sums, bit operations and swaps are one instruction; all others are lock-free CAS loops.
// Ordering: every update is an acquire-release operation on its element; elements of one call have no order.
// Limits:   an element is atomic against elements of the same size at the same address. Accesses of different sizes
//           that overlap are not atomic; fi_atomic(3) does not promise it either.
// Source: fi_atomic(3) "Atomic Data Types", "Atomic Operations", "Base/Fetch/Compare Atomic Functions".
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::nic {

/// enum fi_datatype, by number.
enum class Datatype : uint16_t {
  int8 = 0,
  uint8 = 1,
  int16 = 2,
  uint16 = 3,
  int32 = 4,
  uint32 = 5,
  int64 = 6,
  uint64 = 7,
  float32 = 8,
  float64 = 9,
  float_complex = 10,
  double_complex = 11,
  long_double = 12,
  long_double_complex = 13,
  int128 = 14,
  uint128 = 15,
  float16 = 16,
  bfloat16 = 17,
  fp8_e4m3 = 18,
  fp8_e5m2 = 19,
};
inline constexpr size_t kDatatypeCount = 20;

/// enum fi_op, by number.
enum class AtomicOp : uint16_t {
  min = 0,
  max = 1,
  sum = 2,
  prod = 3,
  lor = 4,
  land = 5,
  bor = 6,
  band = 7,
  lxor = 8,
  bxor = 9,
  atomic_read = 10,
  atomic_write = 11,
  cswap = 12,
  cswap_ne = 13,
  cswap_le = 14,
  cswap_lt = 15,
  cswap_ge = 16,
  cswap_gt = 17,
  mswap = 18,
  diff = 19,
};
inline constexpr size_t kAtomicOpCount = 20;

/// Which call carries the operation: fi_atomic, fi_fetch_atomic or fi_compare_atomic.
enum class AtomicFamily : uint8_t { base, fetch, compare };

/// How one element is made atomic.
enum class AtomicWidth : uint8_t {
  native,  // one CPU instruction, or a CAS loop, on at most 8 naturally aligned bytes
  wide,    // cmpxchg16b on 16 bytes, 16-byte aligned
  locked,  // no CPU instruction: the caller must exclude others (a lock per region, or the owner executes it)
};

namespace detail {
// By datatype. Outside the functions: a function's own table would be built on the stack by each call.
inline constexpr uint8_t kSizes[kDatatypeCount] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 16, 32, 16, 16, 2, 2, 1, 1};
inline constexpr uint8_t kAlignments[kDatatypeCount] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 4, 8, 16, 16, 16, 16, 2, 2, 1, 1};
}  // namespace detail

/// Bytes of one element, a power of two; 0 for an unknown datatype.
[[nodiscard]] constexpr size_t datatype_size(Datatype datatype) noexcept {
  const auto index = static_cast<size_t>(datatype);
  return index < kDatatypeCount ? detail::kSizes[index] : 0;
}

/// The alignment that a target must have: natural for a scalar, its component's for a complex; 0 for an unknown
/// datatype. A complex that has this but not its full size's alignment is `locked`.
[[nodiscard]] constexpr size_t atomic_alignment(Datatype datatype) noexcept {
  const auto index = static_cast<size_t>(datatype);
  return index < kDatatypeCount ? detail::kAlignments[index] : 0;
}

namespace detail {
/// True if the processor has cmpxchg16b (every x86-64 since 2006). If not, 16-byte types are `locked`.
[[nodiscard]] bool has_wide_atomics() noexcept;

// Handlers of the dispatch table; unused pointers may be null.
using AtomicFn = void (*)(void* target, const void* operand, const void* compare, void* result, size_t count) noexcept;
extern const AtomicFn kAtomicTable[kAtomicOpCount][kDatatypeCount];
}  // namespace detail

/// How atomic_apply() updates a target at `addr`. The caller takes its lock if the answer is `locked`.
/// Never `native` or `wide` for a target that is not aligned to its size. Same answer in every process of a host.
[[nodiscard]] inline AtomicWidth atomic_width(Datatype datatype, uintptr_t addr) noexcept {
  const size_t size = datatype_size(datatype);
  if (size == 0 || size > 16 || (addr & (size - 1)) != 0) return AtomicWidth::locked;
  if (size <= 8) return AtomicWidth::native;
  return detail::has_wide_atomics() ? AtomicWidth::wide : AtomicWidth::locked;
}

/// fi_atomicvalid, fi_fetch_atomicvalid, fi_compare_atomicvalid: does this operation exist for this datatype and call?
/// Accepts any numbers; false for unknown ones.
///   min max, cswap_le/lt/ge/gt: all but complex (no order).     bor band bxor mswap: integers only.
///   sum prod diff lor land lxor read write cswap cswap_ne: every datatype.
///   base: min .. bxor, diff, atomic_write.   fetch: the same and atomic_read.   compare: cswap .. mswap.
[[nodiscard]] bool atomic_valid(Datatype datatype, AtomicOp op, AtomicFamily family) noexcept;

/// Applies `op` to `count` elements at `target`, one by one, each atomically as atomic_width says.
///
///   target   memory of the region. Aligned to its size, else the update is a plain read-modify-write (width `locked`).
///   operand  `buf` of fi_atomic(3), `count` elements; not read by atomic_read.
///   compare  `count` elements; read by cswap* and mswap only. As in the man page: swap if (compare OP target).
///   result   receives the old values; may be null. operand, compare and result may have any alignment; result may
///            be the same memory as operand or compare (each element is read before its result is written).
///
///   Precondition: atomic_valid(datatype, op, some family). A valid number with an invalid pairing does nothing.
///
/// Floating point: arithmetic is the type's own (round to nearest even; the small types compute in double and round
/// once). Comparisons follow IEEE 754, like the man page's C expressions: with a NaN on either side min, max, cswap and
/// cswap_le/lt/ge/gt leave the target unchanged (min and max neither store nor replace a NaN), and cswap_ne swaps; -0
/// equals +0. A NaN counts as true in lor, land, lxor. Logical results are 1 or 0 of the type (complex: 1+0i).
/// atomic_write, swaps and min/max move bits, so a NaN's payload survives; sums and products give the CPU's NaN.
/// fp8_e4m3 is the OCP "fn" variant: no infinity, largest 448, overflow gives NaN; the others overflow to infinity.
/// The calling thread's MXCSR applies (a thread that flushes denormals flushes them here too).
///
// HOT: no syscall, no allocation, no lock. Touches one line of kAtomicTable (read), the handler's code, one target line
// an element, and the local buffers. An int64 sum is one indirect call
// and one locked instruction. Benchmark: bench/cpp/main.cpp (units).
inline void atomic_apply(AtomicOp op, Datatype datatype, void* target, const void* operand, const void* compare,
                         void* result, size_t count) noexcept {
  detail::kAtomicTable[static_cast<size_t>(op)][static_cast<size_t>(datatype)](target, operand, compare, result, count);
}

/// The same for memory whose pages may fail (mem/guard.hpp). False: a page failed; earlier elements may be updated.
[[nodiscard]] bool atomic_guarded(AtomicOp op, Datatype datatype, void* target, const void* operand,
                                  const void* compare, void* result, size_t count) noexcept;

/// This processor has vectors of 32 bytes.
[[nodiscard]] bool has_wide_vectors() noexcept;

/// Combines `count` elements at `target` with those at `operand`, as atomic_apply() does without results, by plain
/// loads and stores: the caller keeps all other updates away (mem/gate.hpp). False: a page failed; some elements may be
/// updated. wide: with vectors of 32 bytes.
[[nodiscard]] bool block_guarded(AtomicOp op, Datatype datatype, void* target, const void* operand, size_t count,
                                 bool wide = has_wide_vectors()) noexcept;

/// The small floats' codecs: exact to double, rounded to nearest even back. Bits above the format's width must be zero.
[[nodiscard]] double decode_float16(uint16_t bits) noexcept;
[[nodiscard]] double decode_bfloat16(uint16_t bits) noexcept;
[[nodiscard]] double decode_fp8_e4m3(uint8_t bits) noexcept;
[[nodiscard]] double decode_fp8_e5m2(uint8_t bits) noexcept;
[[nodiscard]] uint16_t encode_float16(double value) noexcept;
[[nodiscard]] uint16_t encode_bfloat16(double value) noexcept;
[[nodiscard]] uint8_t encode_fp8_e4m3(double value) noexcept;
[[nodiscard]] uint8_t encode_fp8_e5m2(double value) noexcept;

}  // namespace weft::nic
