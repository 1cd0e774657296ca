// tests/cpp/test_host.cpp: the descriptor of FI_WAIT_FD says what its queue has, whenever somebody asks for it; a
// poller that finds nothing leaves its core.
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "host/host.hpp"
#include "host/pacer.hpp"
#include "nic/event.hpp"

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

// One thread writes the state and then looks for waiters, the other says that it waits and then looks at the state: one
// of the two sees the other, at whatever distance. Only of two processors' own.
BOOST_AUTO_TEST_CASE(test_waiter_and_notifier_never_miss_each_other) {
  constexpr uint32_t kRounds = 5'000;
  weft::nic::Event event;
  std::atomic<uint32_t> round{0}, state{0}, told{0};
  const auto until = [](const std::atomic<uint32_t>& word, uint32_t value) {
    for (uint32_t i = 1; word.load(std::memory_order_acquire) != value; ++i) {
      if (i % 4096 == 0) std::this_thread::yield();
    }
  };
  std::jthread notifier([&] {
    for (uint32_t r = 1; r <= kRounds; ++r) {
      until(round, r);
      state.store(r, std::memory_order_release);
      event.notify();
      told.store(r, std::memory_order_release);
    }
  });
  uint32_t missed = 0;
  for (uint32_t r = 1; r <= kRounds; ++r) {
    round.store(r, std::memory_order_release);
    std::atomic<uint32_t> distance{r % 64};
    while (distance.fetch_sub(1, std::memory_order_relaxed) > 1) {
    }
    event.enter();
    const uint32_t seen = event.sequence();
    const bool waits = state.load(std::memory_order_acquire) != r;
    until(told, r);
    if (waits && event.sequence() == seen) ++missed;  // it would sleep now, and nobody would wake it
    event.leave();
  }
  BOOST_TEST(missed == 0U);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(polling)

// How often this thread has slept. A yield that runs another thread is no sleep.
long sleeps() {
  rusage use{};
  BOOST_REQUIRE(::getrusage(RUSAGE_THREAD, &use) == 0);
  return use.ru_nvcsw;
}

bool crowded() noexcept {
  return true;
}

// Polls that find nothing, as those of fi_cq_read, on a machine with more runners than processors; returns when `ended`
// is true, or false after a minute.
template <typename Ended>
bool poll_until(weft::host::PollPacer& poller, Ended&& ended, bool (*is_crowded)() noexcept = crowded) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (;;) {
    if (!poller.due()) continue;
    poller.yield_or_rest(is_crowded);
    if (ended()) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
}

BOOST_AUTO_TEST_CASE(poller_that_finds_nothing_sleeps_now_and_then) {
  weft::host::PollPacer poller;
  const long before = sleeps();
  BOOST_TEST(poll_until(poller, [&] { return sleeps() >= before + 3; }));
}

BOOST_AUTO_TEST_CASE(poller_of_a_machine_with_a_processor_for_each_thread_does_not_sleep) {
  weft::host::PollPacer poller;
  const long before = sleeps();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  BOOST_TEST(
      poll_until(poller, [&] { return std::chrono::steady_clock::now() > end; }, []() noexcept { return false; }));
  BOOST_TEST(sleeps() < before + 3);
}

BOOST_AUTO_TEST_CASE(machine_whose_threads_outnumber_the_processors_is_crowded) {
  std::atomic<bool> ended{false};
  std::vector<std::thread> runners;
  const auto more = static_cast<unsigned>(::sysconf(_SC_NPROCESSORS_ONLN)) + 1;
  for (unsigned i = 0; i < more; ++i) {
    runners.emplace_back([&] {
      while (!ended.load(std::memory_order_relaxed)) ::sched_yield();
    });
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  bool found = false;
  while (!found && std::chrono::steady_clock::now() < deadline) found = weft::host::is_crowded();
  ended.store(true, std::memory_order_relaxed);
  for (std::thread& one : runners) one.join();
  BOOST_TEST(found);
}

// Whatever queue it waits for, a program that is busy with another one does not sleep.
BOOST_AUTO_TEST_CASE(poller_does_not_sleep_while_another_queue_of_the_process_has_entries) {
  weft::host::PollPacer poller, other;
  const long before = sleeps();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  BOOST_TEST(poll_until(poller, [&] {
    other.found();
    return std::chrono::steady_clock::now() > end;
  }));
  BOOST_TEST(sleeps() < before + 3);
}

BOOST_AUTO_TEST_CASE(poller_serves_posters_until_nothing_has_been_posted_for_a_while) {
  weft::host::PollPacer poller;
  BOOST_TEST(!poller.serves_posters(0));
  BOOST_TEST(poller.serves_posters(1));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  bool serves = true;
  while (serves && std::chrono::steady_clock::now() < deadline) serves = poller.serves_posters(1);
  BOOST_TEST(!serves);
  BOOST_TEST(poller.serves_posters(2));
}

BOOST_AUTO_TEST_CASE(counter_that_changes_is_a_find) {
  weft::host::PollPacer poller;
  uint64_t value = 0;
  const long before = sleeps();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  BOOST_TEST(poll_until(poller, [&] {
    poller.saw(++value);
    return std::chrono::steady_clock::now() > end;
  }));
  BOOST_TEST(sleeps() < before + 3);
  BOOST_TEST(poll_until(poller, [&] {
    poller.saw(value);
    return sleeps() >= before + 6;
  }));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
