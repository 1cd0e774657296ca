// tests/cpp/every_path.hpp: runs a test on every path that an access can take (self, direct, process_vm_*, the owner's
// engine, strict isolation), with an engine thread and with manual progress.
#pragma once

#include <numeric>

#include "fabric.hpp"
#include "nic/queue.hpp"

namespace weft::test {

template <typename Body>
void on_every_path(Body&& body) {
  for (const Path path : kPaths) {
    for (const bool manual : {false, true}) {
      BOOST_TEST_CONTEXT("path " << path << (manual ? ", manual" : ", engine")) {
        body(pair_of(path, manual));
      }
    }
  }
}

inline bool uses_frames(Path path) {
  return path == Path::ring || path == Path::strict || path == Path::tcp;
}

// When every operation has been answered, no side keeps any state of operations.
inline void expect_idle(Pair& pair) {
  pair.until([&] { return pair.a->ep->outstanding() == 0; }, "idleness");
  BOOST_TEST(pair.a->nic().statistics().waiting_ops == 0U);
  BOOST_TEST(pair.b->nic().statistics().waiting_ops == 0U);
  const nic::DomainLock guard(pair.a->domain.get());
  BOOST_TEST(pair.a->cq->reserved() == 0U);
}

inline std::vector<std::byte> of_value(std::byte value, size_t n) {
  return std::vector<std::byte>(n, value);
}

inline nic::AtomicArgs atomic_of(uint64_t dest, AtomicFamily family, AtomicOp op, Datatype type, const iovec* operand,
                                 const iovec* compare, const iovec* result, const wire::RmaRange* range,
                                 uint64_t context = 7) {
  nic::AtomicArgs args;
  args.dest = dest;
  args.family = family;
  args.op = op;
  args.datatype = type;
  if (operand != nullptr) args.operand = {operand, 1};
  if (compare != nullptr) args.compare = {compare, 1};
  if (result != nullptr) args.result = {result, 1};
  args.remote = {range, 1};
  args.context = context;
  return args;
}

}  // namespace weft::test
