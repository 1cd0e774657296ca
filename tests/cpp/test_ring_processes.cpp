// tests/cpp/test_ring_processes.cpp: the ring between threads and processes. The kill test is seeded and prints its
// seed;
// no test limits its run time.
#include "ring_support.hpp"

#if defined(__SANITIZE_THREAD__)
#define WEFT_TEST_NO_FORK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEFT_TEST_NO_FORK 1
#endif
#endif

using namespace weft::ring;

BOOST_AUTO_TEST_SUITE(ring_mpsc)

// ---- threads and processes
// ----------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_ring_four_threads_keep_their_order) {
  for (uint32_t slot_count : {2U, 16U}) {
    Ring ring(slot_count);
    constexpr uint64_t kCount = 20000;
    std::vector<std::thread> threads;
    for (uint16_t id = 0; id < 4; ++id)
      threads.emplace_back([&ring, id] {
        auto producer = ring.producer(id);
        for (uint64_t i = 0; i < kCount; ++i) {
          while (true) {
            const Claim claim = producer.try_claim();
            if (!claim) {
              std::this_thread::yield();
              continue;
            }
            if (i % 97 == 0) std::this_thread::yield();  // holes
            fill(claim, i, length_of(i));
            producer.publish(claim, length_of(i), static_cast<uint32_t>(i));
            break;
          }
        }
      });
    std::vector<uint64_t> next(4, 0);
    uint64_t taken = 0, wrong = 0;
    Message message;
    while (taken < 4 * kCount) {
      const PollStatus status = ring.consumer.poll(message);
      if (status == PollStatus::empty) {
        std::this_thread::yield();
        continue;
      }
      if (status != PollStatus::message || message.producer >= 4 || check(message) != next[message.producer])
        ++wrong;
      else
        ++next[message.producer];
      ++taken;
    }
    for (auto& thread : threads) thread.join();
    BOOST_TEST(wrong == 0U);
    BOOST_TEST(ring.consumer.empty());
    BOOST_TEST_MESSAGE(slot_count << " slots: " << ring.consumer.statistics().holes_opened << " holes");
  }
}

#if !defined(WEFT_TEST_NO_FORK)
[[noreturn]] void produce_for_ever(std::span<std::byte> memory, uint32_t slot_count, uint16_t id) {
  auto producer = *MpscProducer::attach(memory, slot_count, id);
  for (uint64_t i = 0;; ++i) {
    Claim claim = producer.try_claim();
    while (!claim) {
      sched_yield();
      claim = producer.try_claim();
    }
    fill(claim, i, length_of(i));
    if (i % 3 == 0) sched_yield();  // most kills happen between claim and publish
    producer.publish(claim, length_of(i), static_cast<uint32_t>(i));
  }
}

/// Producers are killed with SIGKILL at random instants and replaced. The consumer gets a gapless sequence from each;
/// the
/// other producers continue meanwhile, and at the end the ring is undamaged. Rounds: WEFT_KILL_ROUNDS (default 60),
/// seed:
/// WEFT_SEED.
BOOST_AUTO_TEST_CASE(test_ring_killed_processes_harm_only_themselves) {
  const char* rounds_text = std::getenv("WEFT_KILL_ROUNDS");
  const char* seed_text = std::getenv("WEFT_SEED");
  const int rounds = rounds_text != nullptr ? std::atoi(rounds_text) : 60;
  const uint64_t seed = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 0) : std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937_64 random(seed);
  Ring ring(8);
  std::map<uint16_t, uint64_t> next;
  std::vector<std::pair<pid_t, uint16_t>> children;
  uint16_t next_id = 1;
  const auto start = [&] {
    const uint16_t id = next_id++;
    const pid_t pid = fork();
    BOOST_REQUIRE(pid >= 0);
    if (pid == 0) produce_for_ever(ring.shared.span(), ring.consumer.slot_count(), id);
    children.emplace_back(pid, id);
    next[id] = 0;
  };
  for (int i = 0; i < 3; ++i) start();
  Message message;
  uint64_t wrong = 0, freed = 0;
  const auto poll = [&] {
    const PollStatus status = ring.consumer.poll(message);
    if (status == PollStatus::message) {
      auto& expected = next[message.producer];
      if (check(message) != expected) ++wrong;
      ++expected;
    } else if (status == PollStatus::corrupt)
      ++wrong;
    return status != PollStatus::empty;
  };
  for (int round = 0; round < rounds; ++round) {
    const auto wait_for = random() % 300;  // messages: the survivors' traffic serves as the clock
    for (uint64_t i = 0; i < wait_for;) {
      if (poll())
        ++i;
      else
        sched_yield();
    }
    const size_t victim = random() % children.size();
    const auto [pid, id] = children[victim];
    kill(pid, SIGKILL);
    const auto before_hearing = random() % 40;  // the other producers continue before the consumer knows of the death
    for (uint64_t i = 0; i < before_hearing;) {
      if (poll())
        ++i;
      else
        sched_yield();
    }
    BOOST_REQUIRE(waitpid(pid, nullptr, 0) == pid);
    freed += ring.consumer.producers_dead(only(id));
    children.erase(children.begin() + static_cast<std::ptrdiff_t>(victim));
    start();
  }
  for (const auto& [pid, id] : children) kill(pid, SIGKILL);
  for (const auto& [pid, id] : children) {
    BOOST_REQUIRE(waitpid(pid, nullptr, 0) == pid);
    freed += ring.consumer.producers_dead(only(id));
  }
  while (poll()) {
  }
  BOOST_TEST(wrong == 0U, "seed " << seed);
  BOOST_TEST(ring.consumer.empty());
  BOOST_TEST((ring.consumer.audit() == PollStatus::empty));
  auto producer = ring.producer(60000);
  for (uint64_t i = 0; i < 8; ++i) BOOST_TEST(push(producer, i), "seed " << seed);
  for (uint64_t i = 0; i < 8; ++i) expect(ring.consumer, 60000, i);
  BOOST_TEST_MESSAGE(rounds << " kills, " << freed << " claims freed, " << ring.consumer.statistics().taken
                            << " messages");
}
#endif

BOOST_AUTO_TEST_SUITE_END()
