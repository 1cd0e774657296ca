// tests/cpp/ring_support.hpp: a ring in shared memory, and messages that can be checked.
#pragma once

#include "ring/mpsc.hpp"

#include <boost/test/unit_test.hpp>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace weft::ring {

/// Anonymous shared memory: a forked child has the same memory.
class Shared {
 public:
  explicit Shared(size_t size)
      : size_(size), memory_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    BOOST_REQUIRE(memory_ != MAP_FAILED);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { munmap(memory_, size_); }
  std::span<std::byte> span() const { return {static_cast<std::byte*>(memory_), size_}; }

 private:
  size_t size_;
  void* memory_;
};

struct Ring {
  explicit Ring(uint32_t slot_count, uint64_t first_ticket = 0)
      : shared(ring_bytes(slot_count)),
        consumer(MpscConsumer::create(shared.span(), slot_count, first_ticket).value()) {}
  MpscProducer producer(uint16_t id) const {
    return MpscProducer::attach(shared.span(), consumer.slot_count(), id).value();
  }
  detail::Header& header() const { return *reinterpret_cast<detail::Header*>(shared.span().data()); }
  detail::Slot& slot(size_t i) const { return reinterpret_cast<detail::Slot*>(&header() + 1)[i]; }
  Shared shared;
  MpscConsumer consumer;
};

inline void fill(const Claim& claim, uint64_t sequence, size_t length) {
  std::memcpy(claim.payload().data(), &sequence, sizeof sequence);
  for (size_t i = 8; i < length; ++i) claim.payload()[i] = static_cast<std::byte>(sequence * 31 + i);
}
inline size_t length_of(uint64_t sequence) {
  return 8 + sequence * 37 % (kPayloadBytes - 7);
}

/// *rings: the consumer has to be woken.
inline bool push(MpscProducer& producer, uint64_t sequence, bool* rings = nullptr) {
  const Claim claim = producer.try_claim();
  if (!claim) return false;
  fill(claim, sequence, length_of(sequence));
  const bool asked = producer.publish(claim, length_of(sequence), static_cast<uint32_t>(sequence));
  if (rings != nullptr) *rings = asked;
  return true;
}
/// The sequence number; empty if the message differs from what fill() wrote.
inline std::optional<uint64_t> check(const Message& message) {
  uint64_t sequence = 0;
  if (message.length < 8) return std::nullopt;
  std::memcpy(&sequence, message.payload, sizeof sequence);
  if (message.length != length_of(sequence) || message.kind != static_cast<uint32_t>(sequence)) return std::nullopt;
  for (size_t i = 8; i < message.length; ++i)
    if (message.payload[i] != static_cast<std::byte>(sequence * 31 + i)) return std::nullopt;
  return sequence;
}
inline std::optional<std::pair<uint16_t, uint64_t>> take(MpscConsumer& consumer) {
  auto message = std::make_unique<Message>();
  const bool was_empty = consumer.empty();
  const PollStatus status = consumer.poll(*message);
  BOOST_TEST((status == PollStatus::empty || !was_empty));  // without concurrent producers empty() is exact
  if (status != PollStatus::message) return std::nullopt;
  const auto sequence = check(*message);
  BOOST_REQUIRE(sequence.has_value());
  return std::pair{message->producer, *sequence};
}
inline auto only(uint16_t producer) {
  return [producer](uint16_t id) { return id == producer; };
}
using Taken = std::pair<uint16_t, uint64_t>;
inline void expect(MpscConsumer& consumer, uint16_t producer, uint64_t sequence) {
  const auto taken = take(consumer);
  BOOST_REQUIRE(taken.has_value());
  BOOST_TEST(taken->first == producer);
  BOOST_TEST(taken->second == sequence);
}

}  // namespace weft::ring
