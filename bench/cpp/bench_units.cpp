// bench/cpp/bench_units.cpp: nanoseconds of the parts in isolation, one thread, everything in cache: what a call costs
// before any line has to travel. Build: g++ -std=c++20 -O2 -Icpp bench/cpp/bench_units.cpp cpp/nic/atomics.cpp
// cpp/ring/mpsc.cpp
#include "nic/atomics.hpp"
#include "ring/mpsc.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace {

/// Median of 21 batches, in ns a call.
template <class Body>
void measure(const char* name, Body&& body) {
  constexpr int kBatches = 21, kCalls = 100'000;
  double ns[kBatches];
  for (double& batch : ns) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) body();
    batch = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kCalls;
  }
  std::sort(ns, ns + kBatches);
  std::printf("%-44s %8.1f ns   (best %.1f)\n", name, ns[kBatches / 2], ns[0]);
}

}  // namespace

int main() {
  using namespace weft::nic;
  using namespace weft::ring;

  alignas(64) static int64_t cell = 0;
  measure("limit: lock add", [] { __atomic_fetch_add(&cell, 1, __ATOMIC_SEQ_CST); });
  alignas(64) static unsigned char target[64] = {};
  unsigned char operand[32] = {1}, compare[32] = {}, result[32];
  const auto atomic = [&](const char* name, AtomicOp op, Datatype type, bool fetch) {
    // The operation must not be a constant that the compiler sees through.
    volatile uint16_t op_number = static_cast<uint16_t>(op), type_number = static_cast<uint16_t>(type);
    measure(name, [&] {
      atomic_apply(static_cast<AtomicOp>(op_number), static_cast<Datatype>(type_number), target, operand, compare,
                   fetch ? result : nullptr, 1);
    });
  };
  atomic("int64 sum", AtomicOp::sum, Datatype::int64, false);
  atomic("int64 sum, fetch", AtomicOp::sum, Datatype::int64, true);
  atomic("int64 cswap", AtomicOp::cswap, Datatype::int64, true);
  atomic("int64 read", AtomicOp::atomic_read, Datatype::int64, true);
  atomic("int64 min, fetch", AtomicOp::min, Datatype::int64, true);
  atomic("double sum, fetch", AtomicOp::sum, Datatype::float64, true);
  atomic("float16 sum", AtomicOp::sum, Datatype::float16, false);
  atomic("int128 sum, fetch (cmpxchg16b)", AtomicOp::sum, Datatype::int128, true);
  atomic("int128 read", AtomicOp::atomic_read, Datatype::int128, true);

  const auto with_ring = [&](const char* name, size_t length, bool doorbell) {
    constexpr uint32_t kSlots = 64;
    void* memory = std::aligned_alloc(64, ring_bytes(kSlots));
    const std::span<std::byte> span(static_cast<std::byte*>(memory), ring_bytes(kSlots));
    auto consumer = MpscConsumer::create(span, kSlots).value();
    auto producer = MpscProducer::attach(span, 1).value();
    Message message;
    std::byte payload[kPayloadBytes] = {};
    measure(name, [&] {
      const Claim claim = producer.try_claim();
      std::memcpy(claim.payload().data(), payload, length);
      producer.publish(claim, length);
      if (doorbell && producer.needs_doorbell()) std::abort();
      if (consumer.poll(message) != PollStatus::message) std::abort();
    });
    measure("  empty poll", [&] {
      if (consumer.poll(message) != PollStatus::empty) std::abort();
    });
    std::free(memory);
  };
  with_ring("ring push + pop, 32 bytes", 32, false);
  with_ring("ring push + pop, 240 bytes", 240, false);
  with_ring("ring push + doorbell check + pop, 32 bytes", 32, true);
}
