// tests/cpp/test_nic_manual.cpp: without an engine thread progress happens only in calls (FI_PROGRESS_MANUAL), and an
// access that needs no help of the target needs no call there. With an engine thread, calls and the engine do not take
// each other's work.
#include <thread>

#include "fabric.hpp"

namespace {

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(nic_manual)

BOOST_AUTO_TEST_CASE(test_target_serves_nothing_until_it_calls) {
  Pair pair(pair_of(Path::strict, true));
  const uint64_t word = 7;
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);  // connects both sides
  const auto served = pair.b->nic().statistics().frames_served;
  const uint64_t next = 8;
  BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, &next, 8, 0, pair.key())).refusal == Refusal::none);
  for (int i = 0; i < 1000; ++i) pair.a->nic().progress();
  BOOST_TEST(pair.a->unread() == 0U);
  BOOST_TEST(pair.b->nic().statistics().frames_served == served);
  BOOST_TEST(*reinterpret_cast<uint64_t*>(pair.memory) == 7U);
  while (pair.b->nic().progress() == 0) sched_yield();
  BOOST_TEST(*reinterpret_cast<uint64_t*>(pair.memory) == 8U);
  BOOST_TEST(pair.a->unread() == 0U);  // the initiator has not polled yet
  while (pair.a->nic().progress() == 0) sched_yield();
  BOOST_TEST(pair.a->unread() == 1U);
}

BOOST_AUTO_TEST_CASE(test_direct_access_needs_no_call_of_the_target) {
  for (const Path path : {Path::direct, Path::cma}) {
    Pair pair(pair_of(path, true));
    const auto data = pattern(30'000);
    BOOST_TEST(pair.write(data.data(), 8, 0).error == 0);
    for (const size_t n : {8, 30'000}) {
      BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, data.data(), n, 0, pair.key())).refusal == Refusal::none);
      BOOST_TEST(pair.a->unread() == 1U);  // done in the call
      BOOST_TEST(std::memcmp(pair.memory, data.data(), n) == 0);
      BOOST_TEST(try_completion(*pair.a)->error == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_a_sleeper_in_the_engines_place_is_woken_by_a_frame) {
  Pair pair(pair_of(Path::strict, true));
  const uint64_t word = 7;
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);
  std::atomic<bool> done{false};
  std::thread sleeper([&] {
    while (!done.load()) pair.b->nic().wait_as_engine(1'000'000'000);
  });
  for (int i = 0; i < 50; ++i) {
    BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key())).refusal == Refusal::none);
    std::optional<Completion> c;
    BOOST_TEST(poll_until([&] { return (c = try_completion(*pair.a)).has_value(); },
                          [&] { pair.a->nic().wait_as_engine(50'000'000); }));
  }
  done.store(true);
  pair.b->nic().waiter().wake();
  sleeper.join();
}

/// An application thread that polls beside the engine may consume the doorbell's signal. That thread must then also
/// take
/// the frame that the signal announced, because nothing wakes the engine after that.
BOOST_AUTO_TEST_CASE(test_engine_serves_frames_after_the_application_stops_polling) {
  Pair pair(pair_of(Path::strict, false));
  const uint64_t word = 7;
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);
  std::atomic<bool> polling{false};
  std::jthread application([&](const std::stop_token& over) {
    while (!over.stop_requested()) {
      if (polling.load()) {
        pair.b->nic().progress();
      } else {
        usleep(50);
      }
    }
  });
  for (int round = 0; round < 2000; ++round) {
    usleep(round % 7 * 10);  // the engine sleeps, or is about to
    polling.store(true);
    BOOST_REQUIRE(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key())).refusal == Refusal::none);
    usleep(round % 5 * 3);
    polling.store(false);
    std::optional<Completion> c;
    BOOST_REQUIRE_MESSAGE(
        poll_until([&] { return (c = try_completion(*pair.a)).has_value(); }, [&] { pair.a->progress(); }),
        "round " << round << ": " << pair.a->state() << "; target: " << pair.b->state());
  }
}

/// An endless wait ends early while an operation must be retried.
BOOST_AUTO_TEST_CASE(test_endless_wait_retries_what_found_no_room) {
  PairConfig config = pair_of(Path::strict, true);
  config.a.ep.tx_size = config.a.cq_capacity = 8192;
  Pair pair(config);
  const uint64_t word = 7;
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);
  for (int i = 0; i < 5000; ++i)
    BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key())).refusal == Refusal::none);
  BOOST_TEST(pair.a->nic().statistics().waiting_ops > 0U);
  pair.a->nic().wait_as_engine(-1);  // returns although the wait has no limit
  pair.until([&] { return pair.a->unread() == 5000; }, "all writes");
}

#if !defined(WEFT_TEST_NO_FORK)

/// A peer killed during a copy leaves its activity word busy. Closing the region notices that without other help.
BOOST_AUTO_TEST_CASE(test_region_closes_although_a_peer_died_in_a_copy) {
  for (const bool manual : {true, false}) {
    BOOST_TEST_CONTEXT((manual ? "manual" : "engine")) {
      struct Told {
        wire::EpAddress address;
      };
      Child initiator([](int fd) {
        SideConfig config;
        config.host.engine_thread = false;
        Side side(config);
        tell(fd, 0);
        const auto told = hear<Told>(fd);
        const uint64_t dest = side.av->insert(told->address), word = 1;
        (void)post(*side.ep, write_of(dest, &word, 8, 0, 1));
        (void)poll_until([&] { return try_completion(side).has_value(); }, [&] { side.progress(); });
        side.domain->lock();  // like a process stopped in the middle of a direct access
        tell(fd, 1);
        for (;;) ::pause();
      });
      SideConfig config;
      config.host.engine_thread = !manual;
      config.host.limits.close_wait_ns = 1'000'000'000;
      Side side(config);
      auto region = side.reg(side.alloc(4096), 4096, 1);
      BOOST_REQUIRE(hear<int>(initiator.fd()).has_value());
      tell(initiator.fd(), Told{side.ep->address()});
      BOOST_TEST(poll_until(
          [&] {
            pollfd p{initiator.fd(), POLLIN, 0};
            return ::poll(&p, 1, 0) == 1;
          },
          [&] { side.progress(); }));
      std::string why;
      BOOST_TEST(!region->close(&why));  // the peer may still write: the region stays, and the text names the peer
      BOOST_TEST(why.find(std::to_string(initiator.pid())) != std::string::npos, why);
      BOOST_TEST(!region->closed());
      initiator.kill(SIGKILL);
      initiator.wait();
      // A close waits for a second at most; the kernel may take longer to report the death.
      const auto closes = [&] {
        why.clear();
        return region->close(&why);
      };
      BOOST_TEST(poll_until(closes, [&] { side.progress(); }), why);
    }
  }
}

#endif

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
