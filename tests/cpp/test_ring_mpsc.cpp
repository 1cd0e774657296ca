// tests/cpp/test_ring_mpsc.cpp: the ring's promises: order per producer, full and empty, laps, holes, dead producers,
// corrupt words, and a model of all calls.
#include "ring_support.hpp"

using namespace weft::ring;

BOOST_AUTO_TEST_SUITE(ring_mpsc)

BOOST_AUTO_TEST_CASE(test_ring_create_refuses_bad_memory) {
  Shared shared(ring_bytes(8));
  BOOST_TEST(!MpscConsumer::create(shared.span(), 7).has_value());
  BOOST_TEST(!MpscConsumer::create(shared.span(), 1).has_value());
  BOOST_TEST(!MpscConsumer::create(shared.span(), 0).has_value());
  BOOST_TEST(!MpscConsumer::create(shared.span(), 16).has_value());
  BOOST_TEST(!MpscConsumer::create(shared.span().subspan(8), 4).has_value());
  BOOST_TEST(!MpscConsumer::create(shared.span().first(16), 8).has_value());
  BOOST_TEST(MpscConsumer::create(shared.span(), 8).has_value());
  BOOST_TEST(!MpscProducer::attach(shared.span().first(shared.span().size() - 1), 8, 1).has_value());
  BOOST_TEST(!MpscProducer::attach(shared.span().first(64), 8, 1).has_value());
  BOOST_TEST(!MpscProducer::attach(shared.span(), 7, 1).has_value());
  BOOST_TEST(!MpscProducer::attach(shared.span(), 1U << 31, 1).has_value());
  BOOST_TEST(MpscProducer::attach(shared.span(), 8, 1)->slot_count() == 8U);
}

BOOST_AUTO_TEST_CASE(test_ring_attaches_although_the_header_was_overwritten) {
  for (const int scribble : {0x00, 0x7f, 0xff}) {
    Ring ring(8);
    MpscProducer first = ring.producer(1);
    BOOST_TEST(push(first, 1));
    std::memset(static_cast<void*>(&ring.header()), scribble, sizeof(detail::Header));
    (void)ring.consumer.audit();
    MpscProducer late = ring.producer(2);
    for (uint64_t i = 0; i < 40; ++i) {  // five laps
      BOOST_TEST_REQUIRE(push(late, i));
      uint64_t seen = 0;
      Message message;
      PollStatus status = PollStatus::empty;
      for (int turn = 0; turn < 32 && !(status == PollStatus::message && message.producer == 2); ++turn) {
        (void)ring.consumer.audit();
        status = ring.consumer.poll(message);
      }
      BOOST_TEST_REQUIRE((status == PollStatus::message && message.producer == 2));
      std::memcpy(&seen, message.payload, sizeof(seen));
      BOOST_TEST_REQUIRE(seen == i);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_scribbled_tail_a_little_ahead_stalls_nobody) {
  Ring ring(8);
  MpscProducer producer = ring.producer(1);
  ring.header().tail.store(3);  // no producer claims tickets 0, 1, 2
  BOOST_TEST(push(producer, 7));
  Message message;
  BOOST_TEST((ring.consumer.audit() == PollStatus::corrupt));
  BOOST_TEST((ring.consumer.poll(message) == PollStatus::message));
  BOOST_TEST(ring.consumer.empty());
  BOOST_TEST((ring.consumer.audit() == PollStatus::empty));
}

BOOST_AUTO_TEST_CASE(test_ring_audit_finds_old_slots_and_reset_repairs_the_ring) {
  Ring ring(8);
  MpscProducer producer = ring.producer(1);
  Message message;
  for (uint64_t i = 0; i < 3; ++i) {
    BOOST_TEST(push(producer, i));
    BOOST_TEST((ring.consumer.poll(message) == PollStatus::message));
  }
  BOOST_TEST((ring.consumer.audit_slots() == PollStatus::empty));
  std::memset(ring.shared.span().data(), 0, ring.shared.span().size());
  BOOST_TEST(push(producer, 7));  // with ticket 0: the scan has passed it
  BOOST_TEST((ring.consumer.poll(message) == PollStatus::empty));
  BOOST_TEST((ring.consumer.audit_slots() == PollStatus::corrupt));
  ring.consumer.reset([](uint16_t) { return false; });
  for (uint64_t i = 0; i < 40; ++i) {
    BOOST_TEST_REQUIRE(push(producer, i));
    BOOST_TEST_REQUIRE((ring.consumer.poll(message) == PollStatus::message));
  }
  BOOST_TEST((ring.consumer.audit() == PollStatus::empty));
  BOOST_TEST((ring.consumer.audit_slots() == PollStatus::empty));
}

// A producer whose connection has ended publishes what it has claimed, before the reset or while the ring went on.
BOOST_AUTO_TEST_CASE(test_ring_reset_keeps_claims_that_may_be_published) {
  for (const bool hole : {false, true}) {
    Ring ring(8);
    MpscProducer late = ring.producer(1), other = ring.producer(2), busy = ring.producer(3);
    Message message;
    auto claim = late.try_claim(), lost = other.try_claim();
    BOOST_REQUIRE((claim && lost));
    for (uint64_t i = 0; hole && i < 20; ++i) {  // past the claims
      BOOST_TEST_REQUIRE(push(busy, i));
      BOOST_TEST_REQUIRE((ring.consumer.poll(message) == PollStatus::message));
    }
    ring.consumer.reset([](uint16_t id) { return id == 1; });
    for (uint64_t i = 0; i < 20; ++i) {
      BOOST_TEST_REQUIRE(push(busy, i));
      BOOST_TEST_REQUIRE((ring.consumer.poll(message) == PollStatus::message));
      if (i == 10) late.publish(claim, 0);
      if (i == 10) BOOST_TEST_REQUIRE((ring.consumer.poll(message) == PollStatus::message && message.producer == 1));
    }
    BOOST_TEST((ring.consumer.audit() == PollStatus::empty));
    BOOST_TEST((ring.consumer.audit_slots() == PollStatus::empty));
    BOOST_TEST(ring.consumer.statistics().holes == 0U);
  }
}

BOOST_AUTO_TEST_CASE(test_claims_in_the_name_of_nobody_are_taken_back) {
  Ring ring(8);
  MpscProducer honest = ring.producer(1);
  for (size_t i = 0; i < 8; ++i) ring.slot(i).state.store(detail::make_state(0, 999, detail::Phase::claimed));
  BOOST_TEST(!push(honest, 1));
  BOOST_TEST(ring.consumer.producers_dead([](uint16_t id) { return id != 1; }) == 8U);
  Message message;
  BOOST_TEST((ring.consumer.poll(message) == PollStatus::empty));
  BOOST_TEST(push(honest, 1));
  BOOST_TEST((ring.consumer.poll(message) == PollStatus::message));
}

BOOST_AUTO_TEST_CASE(test_ring_empty_full_and_laps_keep_order) {
  Ring ring(4);
  auto producer = ring.producer(7);
  BOOST_TEST(ring.consumer.empty());
  BOOST_TEST(!take(ring.consumer).has_value());
  uint64_t pushed = 0, popped = 0;
  for (int round = 0; round < 50; ++round) {
    while (push(producer, pushed)) ++pushed;
    BOOST_TEST(pushed - popped == 4U);  // every slot is usable
    for (int i = 0; i <= round % 4; ++i) expect(ring.consumer, 7, popped++);
  }
  while (popped < pushed) expect(ring.consumer, 7, popped++);
  BOOST_TEST(ring.consumer.empty());
  BOOST_TEST(ring.consumer.statistics().taken == pushed);
  BOOST_TEST(ring.consumer.statistics().holes_opened == 0U);
}

BOOST_AUTO_TEST_CASE(test_ring_lap_number_wraps_around) {
  const uint64_t first = (uint64_t{1} << 48) - 10;  // lap 2^46 - 3 of four slots
  Ring ring(4, first);
  auto producer = ring.producer(1), other = ring.producer(2);
  for (uint64_t i = 0; i < 40; ++i) {
    BOOST_REQUIRE(push(producer, i));
    if (i == 8) {  // a hole across the wrap
      const Claim claim = other.try_claim();
      BOOST_REQUIRE(push(producer, i + 1000));
      expect(ring.consumer, 1, i);
      expect(ring.consumer, 1, i + 1000);
      other.abandon(claim);
      continue;
    }
    expect(ring.consumer, 1, i);
  }
  BOOST_TEST(!take(ring.consumer).has_value());
  BOOST_TEST(ring.consumer.statistics().corruptions == 0U);
}

BOOST_AUTO_TEST_CASE(test_ring_zero_length_and_full_length_messages) {
  Ring ring(2);
  auto producer = ring.producer(1);
  Message message;
  producer.publish(producer.try_claim(), 0, 5);
  BOOST_TEST((ring.consumer.poll(message) == PollStatus::message));
  BOOST_TEST(message.length == 0U);
  BOOST_TEST(message.kind == 5U);
  const Claim claim = producer.try_claim();
  BOOST_TEST(claim.payload().size() == 240U);
  producer.publish(claim, kPayloadBytes);
  size_t seen = 0;
  BOOST_TEST((ring.consumer.poll_in_place([&](uint16_t, uint32_t, std::span<const std::byte> payload) {
    seen = payload.size();
  }) == PollStatus::message));
  BOOST_TEST(seen == 240U);
}

BOOST_AUTO_TEST_CASE(test_ring_abandoned_slots_are_passed) {
  Ring ring(4);
  auto producer = ring.producer(1);
  for (uint64_t i = 0; i < 20; ++i) {
    producer.abandon(producer.try_claim());
    BOOST_REQUIRE(push(producer, i));
    expect(ring.consumer, 1, i);
  }
  producer.abandon(producer.try_claim());
  BOOST_TEST(!take(ring.consumer).has_value());
  BOOST_TEST(ring.consumer.empty());
  BOOST_TEST(ring.consumer.statistics().skipped == 21U);
}

BOOST_AUTO_TEST_CASE(test_ring_unpublished_slot_delays_only_itself_for_many_laps) {
  Ring ring(4);
  auto stuck = ring.producer(1), live = ring.producer(2);
  BOOST_REQUIRE(push(live, 0));
  const Claim claim = stuck.try_claim();
  BOOST_REQUIRE(claim);
  for (uint64_t i = 1; i < 60; ++i) {
    BOOST_REQUIRE(push(live, i));
    expect(ring.consumer, 2, i - 1);
  }
  uint64_t i = 60;
  while (push(live, i)) ++i;
  BOOST_TEST(i >= 62U);  // three of four slots are in use
  fill(claim, 500, length_of(500));
  stuck.publish(claim, length_of(500), 500);
  expect(ring.consumer, 1, 500);  // late, but complete
  for (uint64_t j = 59; j < i; ++j) expect(ring.consumer, 2, j);
  BOOST_TEST(ring.consumer.empty());
  BOOST_TEST(ring.consumer.statistics().holes == 0U);
  for (uint64_t j = 0; j < 20; ++j) {  // and its slot is in use again
    for (uint64_t k = 0; k < 4; ++k) BOOST_REQUIRE(push(live, 4 * j + k));
    BOOST_TEST(!push(live, 0));
    for (uint64_t k = 0; k < 4; ++k) expect(ring.consumer, 2, 4 * j + k);
  }
  BOOST_TEST(ring.consumer.statistics().corruptions == 0U);
}

BOOST_AUTO_TEST_CASE(test_ring_open_claim_holds_back_its_producers_messages) {
  Ring ring(8);
  auto first = ring.producer(1), second = ring.producer(2);
  const Claim held = first.try_claim();
  BOOST_REQUIRE(push(first, 1));  // the same producer, claimed later
  BOOST_REQUIRE(push(second, 10));
  BOOST_REQUIRE(push(first, 2));
  expect(ring.consumer, 2, 10);
  BOOST_TEST(!take(ring.consumer).has_value());
  BOOST_TEST(ring.consumer.empty());
  fill(held, 0, length_of(0));
  first.publish(held, length_of(0), 0);
  BOOST_TEST(!ring.consumer.empty());
  for (uint64_t i = 0; i < 3; ++i) expect(ring.consumer, 1, i);
  BOOST_TEST(!take(ring.consumer).has_value());
}

/// The consumer polls while the slot is claimed; then the producer publishes this slot and a later one. The order
/// stays.
BOOST_AUTO_TEST_CASE(test_ring_late_hole_precedes_its_producers_next_message) {
  Ring ring(8);
  auto first = ring.producer(1), second = ring.producer(2);
  const Claim slow = first.try_claim();
  BOOST_REQUIRE(push(second, 0));
  expect(ring.consumer, 2, 0);  // passed slow
  fill(slow, 0, length_of(0));
  first.publish(slow, length_of(0), 0);
  BOOST_REQUIRE(push(first, 1));
  expect(ring.consumer, 1, 0);
  expect(ring.consumer, 1, 1);
}

BOOST_AUTO_TEST_CASE(test_ring_dead_producers_claims_are_freed_its_messages_kept) {
  Ring ring(4);
  auto dead = ring.producer(1), live = ring.producer(2);
  BOOST_REQUIRE(push(dead, 0));
  (void)dead.try_claim();  // the producer dies here
  BOOST_REQUIRE(push(live, 0));
  (void)dead.try_claim();
  BOOST_TEST(!push(live, 1));  // the ring is full
  expect(ring.consumer, 1, 0);
  expect(ring.consumer, 2, 0);
  BOOST_TEST(ring.consumer.producers_dead(only(1)) == 2U);
  BOOST_TEST(!take(ring.consumer).has_value());
  for (uint64_t i = 0; i < 20; ++i) {
    for (uint64_t k = 0; k < 4; ++k) BOOST_REQUIRE(push(live, 4 * i + k));
    for (uint64_t k = 0; k < 4; ++k) expect(ring.consumer, 2, 4 * i + k);
  }
  BOOST_TEST(ring.consumer.producers_dead(only(1)) == 0U);
}

BOOST_AUTO_TEST_CASE(test_ring_death_between_claim_and_tail_is_helped) {
  Ring ring(4);
  auto dead = ring.producer(1), live = ring.producer(2);
  BOOST_REQUIRE(push(live, 0));
  (void)dead.try_claim();
  ring.header().tail.store(1);  // as if the producer had died before it moved the tail
  BOOST_REQUIRE(push(live, 1));
  expect(ring.consumer, 2, 0);
  expect(ring.consumer, 2, 1);
  (void)dead.try_claim();
  ring.header().tail.store(3);  // once more, but now the consumer learns of the death first
  ring.consumer.producers_dead(only(1));
  BOOST_TEST(!take(ring.consumer).has_value());
  for (uint64_t i = 0; i < 12; ++i) {
    BOOST_REQUIRE(push(live, i));
    expect(ring.consumer, 2, i);
  }
  BOOST_TEST((ring.consumer.audit() == PollStatus::empty));
}

BOOST_AUTO_TEST_CASE(test_ring_all_slots_claimed_by_the_dead) {
  Ring ring(4);
  auto dead = ring.producer(1), live = ring.producer(2);
  for (int i = 0; i < 4; ++i) BOOST_REQUIRE(dead.try_claim());
  BOOST_TEST(!dead.try_claim());
  BOOST_TEST(!push(live, 0));
  BOOST_TEST(!take(ring.consumer).has_value());
  BOOST_TEST(ring.consumer.producers_dead(only(1)) == 4U);
  BOOST_TEST(!take(ring.consumer).has_value());
  BOOST_REQUIRE(push(live, 0));
  expect(ring.consumer, 2, 0);
}

// ---- doorbell
// --------------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_ring_doorbell_is_asked_for_once) {
  Ring ring(8);
  auto first = ring.producer(1), second = ring.producer(2);
  uint64_t sequence = 0;
  const auto rings = [&](MpscProducer& producer) {
    bool asked = false;
    BOOST_REQUIRE(push(producer, sequence++, &asked));
    return asked;
  };
  BOOST_TEST(!rings(first));
  ring.consumer.arm();
  BOOST_TEST(!ring.consumer.empty());  // so the consumer does not sleep
  BOOST_TEST(rings(first));
  BOOST_TEST(!rings(second));
  ring.consumer.arm();
  ring.consumer.disarm();
  BOOST_TEST(!rings(second));
  for (uint64_t i = 0; i < sequence; ++i) expect(ring.consumer, i < 2 ? 1 : 2, i);
}

BOOST_AUTO_TEST_CASE(test_ring_producer_that_dies_before_it_moves_the_tail_stops_nobody) {
  Ring ring(8);
  auto dead = ring.producer(1), live = ring.producer(2);
  (void)dead.try_claim();  // the producer dies here: the tail is behind its claim
  for (uint64_t i = 0; i < 5; ++i) {
    BOOST_REQUIRE(push(live, i));
    expect(ring.consumer, 2, i);
  }
  BOOST_TEST(ring.consumer.producers_dead(only(1)) == 1U);
  for (uint64_t i = 5; i < 30; ++i) {
    BOOST_REQUIRE(push(live, i));
    expect(ring.consumer, 2, i);
  }
  BOOST_TEST((ring.consumer.audit() == PollStatus::empty));
}

BOOST_AUTO_TEST_CASE(test_ring_slots_of_taken_messages_are_freed_in_batches) {
  Ring ring(64);  // four slots a batch
  auto producer = ring.producer(1);
  uint64_t sent = 0, taken = 0;
  while (push(producer, sent)) ++sent;
  BOOST_REQUIRE(sent == 64U);
  for (; taken < 3; ++taken) expect(ring.consumer, 1, taken);
  BOOST_TEST(!push(producer, sent));
  expect(ring.consumer, 1, taken++);
  for (int i = 0; i < 4; ++i) BOOST_TEST(push(producer, sent++));
  BOOST_TEST(!push(producer, sent));
  // A consumer that goes to sleep, or checks its ring, keeps no slot.
  for (int i = 0; i < 2; ++i) expect(ring.consumer, 1, taken++);
  ring.consumer.arm();
  BOOST_TEST(push(producer, sent++));
  expect(ring.consumer, 1, taken++);
  BOOST_TEST((ring.consumer.audit_slots() == PollStatus::empty));
  for (int i = 0; i < 2; ++i) BOOST_TEST(push(producer, sent++));
  while (taken != sent) expect(ring.consumer, 1, taken++);
  BOOST_TEST((ring.consumer.audit() == PollStatus::empty));
  BOOST_TEST(ring.consumer.statistics().corruptions == 0U);
}

BOOST_AUTO_TEST_CASE(test_ring_slots_are_freed_when_there_is_no_message_or_at_the_latest_after_a_batch) {
  Ring ring(1024);  // 16 slots when idle, 64 at the latest
  auto producer = ring.producer(1);
  uint64_t sent = 0, taken = 0;
  Message message;
  while (push(producer, sent)) ++sent;
  BOOST_REQUIRE(sent == 1024U);
  for (; taken < 63; ++taken) expect(ring.consumer, 1, taken);
  BOOST_TEST(!push(producer, sent));
  expect(ring.consumer, 1, taken++);
  for (int i = 0; i < 64; ++i) BOOST_TEST(push(producer, sent++));
  BOOST_TEST(!push(producer, sent));
  while (taken != sent) expect(ring.consumer, 1, taken++);
  // All batches are full and freed. Fifteen messages more are none, and sixteen are one.
  for (int i = 0; i < 15; ++i) {
    BOOST_REQUIRE(push(producer, sent++));
    expect(ring.consumer, 1, taken++);
  }
  BOOST_TEST((ring.consumer.poll(message) == PollStatus::empty));
  BOOST_TEST(!ring.consumer.wants_idle());
  BOOST_REQUIRE(push(producer, sent++));
  expect(ring.consumer, 1, taken++);
  BOOST_TEST(ring.consumer.wants_idle());
  BOOST_TEST(ring.consumer.hint().word == nullptr);  // a poll has work
  BOOST_TEST((ring.consumer.poll(message) == PollStatus::empty));
  BOOST_TEST(!ring.consumer.wants_idle());
  BOOST_TEST(ring.consumer.hint().word != nullptr);
  for (int i = 0; i < 1024; ++i) BOOST_REQUIRE(push(producer, sent++));
  BOOST_TEST(!push(producer, sent));
}

/// One consumer that sleeps whenever it may, one producer: a lost wake-up would hang the test.
BOOST_AUTO_TEST_CASE(test_ring_sleeping_consumer_is_always_woken) {
  Ring ring(8);
  constexpr uint64_t kCount = 20000;
  int bell[2];
  BOOST_REQUIRE(pipe(bell) == 0);
  uint64_t unrung = 0;  // Boost's macros work in one thread only
  std::thread thread([&, producer = ring.producer(1)]() mutable {
    for (uint64_t i = 0; i < kCount; ++i) {
      bool rings = false;
      while (!push(producer, i, &rings)) std::this_thread::yield();
      if (rings && write(bell[1], "x", 1) != 1) ++unrung;
    }
  });
  uint64_t next = 0, sleeps = 0, wrong = 0;
  Message message;
  while (next < kCount) {
    if (ring.consumer.poll(message) == PollStatus::message) {
      if (check(message) != next) ++wrong;
      ++next;
      continue;
    }
    ring.consumer.arm();
    if (!ring.consumer.empty()) {
      ring.consumer.disarm();
      continue;
    }
    char byte;
    if (read(bell[0], &byte, 1) != 1) ++wrong;
    ++sleeps;
  }
  thread.join();
  close(bell[0]);
  close(bell[1]);
  BOOST_TEST(wrong == 0U);
  BOOST_TEST(unrung == 0U);
  BOOST_TEST_MESSAGE("slept " << sleeps << " times");
}

// ---- corrupt words
// ----------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_ring_corrupt_state_is_reported_and_the_ring_goes_on) {
  using detail::make_state;
  using detail::Phase;
  for (uint64_t word :
       {make_state(0, 1, Phase::full), make_state(9, 1, Phase::full), make_state(3, 0, Phase::free),
        make_state(1, 5, Phase::claimed), make_state(2, 9, Phase::free), ~uint64_t{0}, uint64_t{1} << 63}) {
    Ring ring(4);
    auto producer = ring.producer(1);
    for (uint64_t i = 0; i < 10; ++i) {
      BOOST_REQUIRE(push(producer, i));
      expect(ring.consumer, 1, i);
    }
    ring.slot(2).state.store(word);  // ticket 10: lap 2
    Message message;
    BOOST_TEST(!ring.consumer.empty());
    BOOST_TEST((ring.consumer.poll(message) == PollStatus::corrupt), "word " << std::hex << word);
    BOOST_TEST((ring.consumer.last_corruption().what == Corruption::What::state));
    BOOST_TEST(ring.consumer.last_corruption().slot == 2U);
    BOOST_TEST(ring.consumer.last_corruption().found == word);
    for (uint64_t i = 0; i < 30; ++i) {
      BOOST_REQUIRE(push(producer, i));
      expect(ring.consumer, 1, i);
    }
    BOOST_TEST(ring.consumer.statistics().corruptions == 1U);
  }
}

BOOST_AUTO_TEST_CASE(test_ring_corrupt_hole_is_reported) {
  Ring ring(4);
  auto stuck = ring.producer(1), live = ring.producer(2);
  (void)stuck.try_claim();
  BOOST_REQUIRE(push(live, 0));
  expect(ring.consumer, 2, 0);
  ring.slot(0).state.store(detail::make_state(0, 3, detail::Phase::full));  // another producer's id
  Message message;
  BOOST_TEST((ring.consumer.poll(message) == PollStatus::corrupt));
  for (uint64_t i = 0; i < 20; ++i) {
    BOOST_REQUIRE(push(live, i));
    expect(ring.consumer, 2, i);
  }
}

BOOST_AUTO_TEST_CASE(test_ring_corrupt_length_is_reported) {
  Ring ring(4);
  auto producer = ring.producer(1);
  for (uint32_t length : {241U, 0xffffffffU}) {
    BOOST_REQUIRE(push(producer, 0));
    for (size_t i = 0; i < 4; ++i) ring.slot(i).length = length;
    Message message;
    BOOST_TEST((ring.consumer.poll(message) == PollStatus::corrupt));
    BOOST_TEST((ring.consumer.last_corruption().what == Corruption::What::length));
    BOOST_REQUIRE(push(producer, 1));
    expect(ring.consumer, 1, 1);
  }
}

BOOST_AUTO_TEST_CASE(test_ring_scribbled_tail_is_repaired) {
  for (uint64_t tail :
       {uint64_t{1000}, uint64_t{16}, uint64_t{1} << 47}) {  // (some, like 2^63, mean the same lap: harmless)
    Ring ring(4);
    auto producer = ring.producer(1);
    for (uint64_t i = 0; i < 9; ++i) {
      BOOST_REQUIRE(push(producer, i));
      expect(ring.consumer, 1, i);
    }
    BOOST_TEST((ring.consumer.audit() == PollStatus::empty));
    ring.header().tail.store(tail);
    BOOST_TEST(!push(producer, 0));
    BOOST_TEST((ring.consumer.audit() == PollStatus::corrupt));
    BOOST_TEST(ring.consumer.last_corruption().found == tail);
    for (uint64_t i = 0; i < 20; ++i) {
      BOOST_REQUIRE(push(producer, i));
      expect(ring.consumer, 1, i);
    }
  }
  Ring ring(4);  // a tail that was set back repairs itself
  auto producer = ring.producer(1);
  for (uint64_t i = 0; i < 40; ++i) {
    BOOST_REQUIRE(push(producer, i));
    expect(ring.consumer, 1, i);
    if (i % 7 == 0) ring.header().tail.store(i / 2);
  }
}

/// Random words everywhere: the consumer reports corruption, or returns wrong messages of valid length, and never
/// leaves
/// its memory.
BOOST_AUTO_TEST_CASE(test_ring_random_scribbling_never_escapes) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    Ring ring(8);
    auto producer = ring.producer(1), other = ring.producer(2);
    std::deque<Claim> open;
    for (int step = 0; step < 200; ++step) {
      switch (random() % 8) {
        case 0:
          ring.slot(random() % 8).state.store(random() % 2 != 0 ? random() : random() % 4096);
          break;
        case 1:
          ring.header().tail.store(random() % 2 != 0 ? random() : random() % 64);
          break;
        case 2:
          ring.header().head_hint.store(random() % 2 != 0 ? random() : random() % 64);
          break;
        case 3:
          if (const Claim claim = other.try_claim()) open.push_back(claim);
          break;
        case 4:
          if (!open.empty()) {
            other.publish(open.front(), random() % 300);
            open.pop_front();
          }
          break;
        case 5:
          (void)push(producer, static_cast<uint64_t>(step));
          break;
        case 6:
          if (random() % 4 == 0) ring.consumer.producers_dead(only(static_cast<uint16_t>(random() % 3)));
          break;
        default: {
          Message message;
          for (int i = 0; i < 20; ++i)
            if (ring.consumer.poll(message) == PollStatus::empty) break;
          (void)ring.consumer.empty();
          BOOST_REQUIRE(message.length <= kPayloadBytes);
          BOOST_REQUIRE(ring.consumer.statistics().holes <= 8);
        }
      }
      if (random() % 16 == 0) (void)ring.consumer.audit();
      ring.consumer.check();
    }
  }
}

// ---- a model: one thread, random interleavings of all calls
// -------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_ring_random_interleavings_keep_order_and_lose_nothing) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    std::mt19937_64 random(seed);
    const uint32_t slot_count = 1U << (1 + random() % 4);
    Ring ring(slot_count);
    struct State {
      MpscProducer producer;
      std::deque<std::pair<Claim, uint64_t>> open;
      uint64_t next = 0, expected = 0;
      std::deque<uint64_t> sent;  // in the order of claims, without abandoned ones
    };
    std::map<uint16_t, State> states;
    for (uint16_t id = 0; id < 3; ++id) states.emplace(id, State{ring.producer(id), {}, 0, 0, {}});
    size_t wrong = 0;
    const auto poll = [&] {
      const auto taken = take(ring.consumer);
      if (!taken) return false;
      State& state = states.at(taken->first);
      if (state.sent.empty() || state.sent.front() != taken->second)
        ++wrong;
      else
        state.sent.pop_front();
      return true;
    };
    uint16_t next_id = 3;
    for (int step = 0; step < 300; ++step) {
      const auto it = std::next(states.begin(), static_cast<std::ptrdiff_t>(random() % states.size()));
      State& state = it->second;
      const unsigned action = static_cast<unsigned>(random() % 16);
      if (action < 6) {
        if (const Claim claim = state.producer.try_claim()) {
          fill(claim, state.next, length_of(state.next));
          state.open.emplace_back(claim, state.next);
          state.sent.push_back(state.next++);
        }
      } else if (action < 10 && !state.open.empty()) {
        const auto which = static_cast<std::ptrdiff_t>(random() % state.open.size());
        const auto [claim, sequence] = state.open[static_cast<size_t>(which)];
        if (random() % 5 == 0) {
          state.producer.abandon(claim);
          std::erase(state.sent, sequence);
        } else {
          state.producer.publish(claim, length_of(sequence), static_cast<uint32_t>(sequence));
        }
        state.open.erase(state.open.begin() + which);
      } else if (action == 10 && random() % 4 == 0) {  // death: open claims are lost, the other messages arrive
        for (const auto& [claim, sequence] : state.open) std::erase(state.sent, sequence);
        state.open.clear();
        ring.consumer.producers_dead(only(it->first));
        if (state.sent.empty()) {
          states.erase(it);
          states.emplace(next_id, State{ring.producer(next_id), {}, 0, 0, {}});
          ++next_id;
        }
      } else {
        (void)poll();
      }
      ring.consumer.check();
    }
    for (auto& [id, state] : states)
      for (auto& [claim, sequence] : state.open)
        state.producer.publish(claim, length_of(sequence), static_cast<uint32_t>(sequence));
    while (poll()) {
    }
    for (auto& [id, state] : states) wrong += state.sent.size();
    BOOST_REQUIRE_MESSAGE(wrong == 0, "seed " << seed << ", " << slot_count << " slots");
    BOOST_REQUIRE(ring.consumer.statistics().corruptions == 0U);
    BOOST_REQUIRE((ring.consumer.audit() == PollStatus::empty));
    // The ring is undamaged: every slot can be used.
    auto fresh = ring.producer(999);
    for (uint64_t i = 0; i < slot_count; ++i) BOOST_REQUIRE_MESSAGE(push(fresh, i), "seed " << seed << " slot " << i);
  }
}

BOOST_AUTO_TEST_SUITE_END()
