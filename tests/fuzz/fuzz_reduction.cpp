// tests/fuzz/fuzz_reduction.cpp: the reduction unit on bytes of peers and of applications that write to accumulators.
// Bytes that check() accepts combine without a fault, in any order and grouping to the same data; other bytes are
// refused.
#include <array>
#include <cstring>

#include "nic/reduction.hpp"
#include "target.hpp"

using namespace weft;
using fuzz::must;
using nic::Partial;
using nic::ReduceOp;

namespace {

Partial combined(Partial into, const Partial& from) {
  nic::combine(into, from);
  return into;
}

bool same_data(const Partial& a, const Partial& b) {
  return a.lanes == b.lanes && a.repsum_m == b.repsum_m && a.filled == b.filled && a.contributions == b.contributions;
}

// Sums of doubles round at each step, and elements of general operations may be floating-point numbers.
bool has_no_order(ReduceOp op) {
  return op < ReduceOp::float_sum || op == ReduceOp::repsum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz::run(data, size, [&](fuzz::Input& in) {
    const bool alike = in.below(4) != 0;
    std::array<Partial, 3> p;
    for (Partial& one : p) {
      one = in.take<Partial>();
      if (in.below(16) != 0) {
        one.filled = 1;
        one.unused = {};
        if (one.op < ReduceOp::general) one.datatype = {};
        if (one.op != ReduceOp::repsum) one.repsum_m = 0;
        if (one.op == ReduceOp::barrier) one.lanes = {};
      }
      one.status = static_cast<nic::ReduceStatus>(static_cast<uint8_t>(one.status) % 14);
      if (alike) one.op = p[0].op, one.datatype = p[0].datatype;
      if (in.below(16) != 0) {
        one.filled = 1;
        one.unused = {};
        if (one.op < ReduceOp::general) one.datatype = {};
        if (one.op != ReduceOp::repsum) one.repsum_m = 0;
      }
      if (in.below(16) == 0) one = {};
    }
    for (const Partial& one : p) {
      std::array<std::byte, nic::kReduceAccumulatorBytes> memory;
      std::memcpy(memory.data(), &one, sizeof one);
      const bool good = nic::check(one);
      must(nic::fold(memory.data(), Partial{}) == good, "fold and check disagree");
      must(good || std::memcmp(memory.data(), &one, sizeof one) == 0, "a refused accumulator was changed");
      must(!nic::pre_reduced(memory.data()) == (!good || one.filled == 0), "pre_reduced and check disagree");
      if (good) continue;
      must(combined(p[0], one).status >= nic::ReduceStatus::mismatch, "bad bytes were combined");
      return;
    }
    const auto& [a, b, c] = p;
    const Partial left = combined(combined(a, b), c);
    must(nic::check(left), "a result is refused");
    must(left.status >= std::max({a.status, b.status, c.status}), "a status was lost");
    alignas(32) std::array<std::byte, nic::kReducePayloadBytes> out;
    const bool one = left.op == ReduceOp::repsum || left.op == ReduceOp::int_minmaxloc ||
                     left.op == ReduceOp::float_minmaxloc || left.op == ReduceOp::float_minmaxnumloc;
    nic::result(left, nic::Datatype::uint64, out.data(), one ? 1 : 4);
    const bool equal_ops = a.op == b.op && a.op == c.op && a.datatype == b.datatype && a.datatype == c.datatype;
    if (!equal_ops || !has_no_order(a.op)) return;
    must(same_data(left, combined(a, combined(b, c))), "the grouping changed the data");
    must(same_data(left, combined(combined(c, a), b)), "the order changed the data");
  });
}
