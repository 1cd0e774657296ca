// tests/cpp/test_notifier.cpp: the descriptor of FI_WAIT_FD says what its queue has, whenever somebody asks for it.
#include <poll.h>
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <thread>

#include "host/host.hpp"

namespace {

using weft::host::EventfdNotifier;

bool is_readable(int fd) {
  pollfd one{fd, POLLIN, 0};
  return ::poll(&one, 1, 0) == 1;
}

BOOST_AUTO_TEST_SUITE(notifier)

BOOST_AUTO_TEST_CASE(descriptor_asked_for_late_shows_what_was_notified) {
  EventfdNotifier notifier;
  notifier.notify();
  BOOST_TEST(notifier.raised());
  const int fd = notifier.fd();
  BOOST_TEST(is_readable(fd));
  notifier.drain();
  BOOST_TEST(!is_readable(fd));
  notifier.notify();
  BOOST_TEST(is_readable(fd));
}

BOOST_AUTO_TEST_CASE(descriptor_asked_for_after_a_drain_shows_nothing) {
  EventfdNotifier notifier;
  notifier.notify();
  notifier.drain();
  BOOST_TEST(!is_readable(notifier.fd()));
}

// A thread asks for the first time while another notifies and drains.
BOOST_AUTO_TEST_CASE(first_question_among_notices_and_drains_loses_none) {
  constexpr int kRounds = 2'000;
  for (int round = 0; round < kRounds; ++round) {
    EventfdNotifier notifier;
    std::atomic<bool> begun{false};
    std::thread asks([&] {
      while (!begun.load(std::memory_order_relaxed)) std::this_thread::yield();
      (void)notifier.fd();
    });
    notifier.notify();
    begun.store(true, std::memory_order_relaxed);
    if (round % 2 != 0) notifier.drain();
    asks.join();
    const int fd = notifier.fd();
    BOOST_REQUIRE_MESSAGE(is_readable(fd) <= notifier.raised(), "round " << round << ": readable, and no drain helps");
    if (round % 2 == 0) BOOST_REQUIRE_MESSAGE(is_readable(fd), "round " << round << ": a notice is lost");
    notifier.drain();
    BOOST_REQUIRE(!is_readable(fd));
    notifier.notify();
    BOOST_REQUIRE(is_readable(fd));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
