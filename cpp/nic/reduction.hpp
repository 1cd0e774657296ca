// cpp/nic/reduction.hpp: the reduction unit: what the NICs of a collective group compute on their members' data.
// Callers:  any thread; values only: no state, no lock, no NIC.
// Progress: every function returns after a bounded number of instructions.
// Ordering: every operation gives the same Partial in whatever order and grouping contributions are combined, except
//           float_sum (rounds at each step) and the general operations on floating point.
// Source:   fi_cxi(7) "Collectives (accelerated)", fi_collective(3); fi_cxi_ext.h struct cxip_coll_accumulator.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "nic/atomics.hpp"

namespace weft::nic {

inline constexpr size_t kReducePayloadBytes = 32;      // fi_cxi(7): payloads are limited to 32-byte data structures
inline constexpr size_t kReduceAccumulatorBytes = 64;  // struct cxip_coll_accumulator

/// The NIC's operation codes. 0x80 + AtomicOp is an operation of the general provider, on elements of
/// `Partial::datatype`.
enum class ReduceOp : uint8_t {
  barrier = 0x00,
  band = 0x01,
  bor = 0x02,
  bxor = 0x03,
  int_min = 0x10,
  int_max = 0x11,
  int_minmaxloc = 0x12,
  int_sum = 0x14,
  float_min = 0x20,  // plain: a NaN spreads
  float_max = 0x21,
  float_minmaxloc = 0x22,
  float_minnum = 0x24,  // a number is preferred to a NaN
  float_maxnum = 0x25,
  float_minmaxnumloc = 0x26,
  float_sum = 0x28,  // + 0..3 rounding: nearest, up, down, zero; + 4 flush to zero
  float_sum_last = 0x2f,
  repsum = 0x30,
  general = 0x80,  // + AtomicOp
};

/// What happened in a reduction; the result's is the largest seen.
enum class ReduceStatus : uint8_t {
  success = 0,
  float_inexact = 1,
  float_overflow = 3,
  float_invalid = 4,
  repsum_inexact = 5,  // only switches note it: this unit never does
  int_overflow = 6,
  contributions = 7,
  mismatch = 8,
  tx_failure = 9,
  rdma_failure = 10,
  rdma_data = 11,
};
inline constexpr uint8_t kReduceStatusLast = 11;

/// True where the completion is a success: nothing noted, or something about floating point only.
[[nodiscard]] constexpr bool completes(ReduceStatus status) noexcept {
  return status <= ReduceStatus::float_invalid;
}

/// prov_errno of the error entry (fi_cxi_ext.h FI_CXI_ERRNO_RED_*); 0 where the status completes successfully.
[[nodiscard]] constexpr int reduce_prov_errno(ReduceStatus status) noexcept {
  if (completes(status)) return 0;
  switch (status) {
    case ReduceStatus::int_overflow:
      return 1026;
    case ReduceStatus::contributions:
      return 1027;
    case ReduceStatus::mismatch:
      return 1028;
    case ReduceStatus::rdma_failure:
      return 1030;
    case ReduceStatus::rdma_data:
      return 1031;
    default:
      return 1032;
  }
}

/// Numbers of operators that only collectives have (fi_cxi_ext.h enum cxip_coll_op). The present header has no numbers
/// for the NUM variants that fi_cxi(7) describes; the NIC's operation codes serve.
inline constexpr uint16_t kCxiMinmaxloc = 32;
inline constexpr uint16_t kCxiRepsum = 33;
inline constexpr uint16_t kCxiMinnum = 0x24;
inline constexpr uint16_t kCxiMaxnum = 0x25;
inline constexpr uint16_t kCxiMinmaxnumloc = 0x26;

/// One or several members' contributions, combined: what travels in a frame, and the content of an accumulator. All
/// bytes zero is an empty one: it changes nothing where it is combined. Plain bytes: copy freely.
struct Partial {
  std::array<uint64_t, 4> lanes{};  // values as the user's bytes; repsum: T[0..3], signed, T[3] the top bin
  uint32_t contributions = 0;       // members
  ReduceOp op = ReduceOp::barrier;
  ReduceStatus status = ReduceStatus::success;
  int8_t repsum_m = 0;  // number of the top bin: its unit is 2^(40 m); 125 -inf, 126 +inf, 127 NaN
  uint8_t filled = 0;   // 1: holds a contribution
  Datatype datatype{};  // of general operations; else 0
  std::array<uint8_t, 22> unused{};
};
static_assert(sizeof(Partial) == kReduceAccumulatorBytes && std::is_trivially_copyable_v<Partial>);
static_assert(offsetof(Partial, contributions) == 32 && offsetof(Partial, op) == 36 &&
              offsetof(Partial, datatype) == 40);

/// The rounding of double sums, as the low three bits of float_sum, from the calling thread's floating-point
/// environment (fegetround; flush-to-zero bit of MXCSR on x86-64, FZ bit of FPCR on AArch64).
[[nodiscard]] uint8_t thread_rounding() noexcept;

/// The NIC's operation for `op` (AtomicOp's number or a kCxi... number) on `datatype`; nullopt: it has none, and the
/// call is refused. Sums of doubles take the calling thread's rounding. Any numbers may be given.
///   bor band bxor: uint8 to uint64.   min max sum minmaxloc: int64, float64.   minnum maxnum minmaxnumloc repsum:
///   float64.
/// prefer_numbers: min, max and minmaxloc of doubles are the NUM operations, as in the provider's code of later
/// releases; fi_cxi(7) says otherwise ("MIN(NaN, value) => NaN").
/// Model: that code also accepts int8 to int32 for bit operations; we follow the page ("Only unsigned bitwise
/// operators").
[[nodiscard]] std::optional<ReduceOp> reduce_op(uint16_t op, Datatype datatype, bool prefer_numbers = false) noexcept;

/// The same for the general provider: min max sum prod lor land bor band lxor bxor, on every datatype that fi_atomic
/// has for them. They have atomic_apply's arithmetic: integers wrap, min and max skip NaN.
[[nodiscard]] std::optional<ReduceOp> general_reduce_op(uint16_t op, Datatype datatype) noexcept;

/// Bytes of user data of `count` elements, as source and as result; nullopt: the count is refused (0, more than 32
/// bytes, not 1 for minmaxloc and repsum). minmaxloc: 32, {value, index, value, index}. repsum: 8. barrier: nullopt.
[[nodiscard]] std::optional<size_t> payload_bytes(ReduceOp op, Datatype datatype, size_t count) noexcept;

/// One member's data as a Partial with one contribution; notes what is already NaN or infinite.
///   data   payload_bytes(op, datatype, count) bytes, any alignment; null gives zeros (barrier; a broadcast's others).
/// Precondition: op is from reduce_op() or general_reduce_op() for this datatype, or barrier, or bor (broadcast: the
/// datatype gives only the size); payload_bytes() accepted the count.
[[nodiscard]] Partial contribution(ReduceOp op, Datatype datatype, const void* data, size_t count) noexcept;

/// Combines `from` into `into`: data by the operation, statuses by maximum, contributions by addition. Operations that
/// differ give status mismatch and leave the data. Takes any bytes as `from`: one that check() refuses is a mismatch.
/// A float_sum rounds as its operation says; the calling thread's floating-point environment is neither used nor
/// changed, flags included.
void combine(Partial& into, const Partial& from) noexcept;

/// Writes the result as the user's data: payload_bytes(op, datatype, count) bytes at `out`, any alignment. A repsum is
/// its bins' exact sum, rounded once to nearest even (Model: the provider rounds at each of four additions).
void result(const Partial& partial, Datatype datatype, void* out, size_t count) noexcept;

/// False where no call of this unit made these bytes: a peer's frame, or memory that is no accumulator.
[[nodiscard]] bool check(const Partial& partial) noexcept;

/// FI_CXI_PRE_REDUCED: the content of a cxip_coll_accumulator (64 bytes, any alignment) as one member's contribution;
/// nullopt: these bytes are no accumulator, or an empty one.
[[nodiscard]] std::optional<Partial> pre_reduced(const void* accumulator) noexcept;

/// FI_MORE: folds `from` (contribution() or pre_reduced()) into an accumulator: 64 bytes, any alignment, zeroed before
/// the first fold. It stays one contribution. False: the bytes are no accumulator; they are left as they were.
/// A pure function of its arguments; callers that share an accumulator exclude each other.
[[nodiscard]] bool fold(void* accumulator, const Partial& from) noexcept;

}  // namespace weft::nic
