// base/lock.hpp: a thread takes locks in rising rank, or the process ends.
#include <mutex>

#include "base/lock.hpp"
#include "death.hpp"
#include "fabric.hpp"

#if !defined(WEFT_TEST_NO_FORK)

namespace {

using namespace weft;
using weft::test::aborts_saying;
using weft::test::death_of;

RankedSpin<lock_rank::kRx> g_outer;
RankedSpin<lock_rank::kHeld> g_inner;
RankedMutex<lock_rank::kSegments> g_mutex;
RankedShared<lock_rank::kDeviceWindows> g_shared;

BOOST_AUTO_TEST_SUITE(lock)

BOOST_AUTO_TEST_CASE(locks_taken_in_rising_rank_are_taken) {
  const auto death = death_of([] {
    const std::lock_guard outer(g_outer);
    const std::lock_guard inner(g_inner);
    const std::shared_lock shared(g_shared);
    const std::lock_guard mutex(g_mutex);
    g_outer.assert_held();
    g_mutex.assert_held();
  });
  BOOST_TEST(death.signal == 0);
  BOOST_TEST(death.said == "");
}

BOOST_AUTO_TEST_CASE(lock_taken_below_a_held_rank_ends_the_process_with_both_names_and_the_rule) {
  BOOST_TEST(aborts_saying(
      [] {
        const std::lock_guard inner(g_inner);
        const std::lock_guard outer(g_outer);
      },
      "asks for RxContext::lock_", "holds RxPort::held_lock_", "rising rank", "base/lock_rank.hpp"));
}

BOOST_AUTO_TEST_CASE(lock_of_a_held_rank_ends_the_process_instead_of_waiting_for_itself) {
  BOOST_TEST(aborts_saying(
      [] {
        const std::lock_guard once(g_mutex);
        g_mutex.lock();
      },
      "asks for SegmentSet::mutex_", "holds SegmentSet::mutex_"));
  BOOST_TEST(aborts_saying(
      [] {
        RankedSpin<lock_rank::kRx> another;
        const std::lock_guard once(g_outer);
        const std::lock_guard twice(another);
      },
      "asks for RxContext::lock_", "holds RxContext::lock_"));
}

BOOST_AUTO_TEST_CASE(shared_lock_taken_below_a_held_rank_ends_the_process) {
  BOOST_TEST(aborts_saying(
      [] {
        const std::lock_guard mutex(g_mutex);
        const std::shared_lock shared(g_shared);
      },
      "asks for Devices::windows_mutex_", "holds SegmentSet::mutex_"));
}

BOOST_AUTO_TEST_CASE(lock_that_was_released_allows_a_lower_rank_whatever_the_order_of_releases) {
  BOOST_TEST(death_of([] {
               g_outer.lock();
               g_inner.lock();
               g_outer.unlock();
               g_inner.unlock();
               const std::lock_guard outer(g_outer);
               const std::lock_guard inner(g_inner);
             }).signal == 0);
}

BOOST_AUTO_TEST_CASE(try_lock_succeeds_against_the_order_and_its_rank_counts_for_the_next_lock) {
  BOOST_TEST(death_of([] {
               const std::lock_guard inner(g_inner);
               const std::unique_lock outer(g_outer, std::try_to_lock);
               if (!outer.owns_lock()) ::_exit(1);
               g_outer.assert_held();
             }).signal == 0);
  BOOST_TEST(aborts_saying(
      [] {
        const std::unique_lock inner(g_inner, std::try_to_lock);
        const std::lock_guard outer(g_outer);
      },
      "asks for RxContext::lock_"));
}

BOOST_AUTO_TEST_CASE(lock_that_another_thread_holds_is_not_held_by_this_thread) {
  BOOST_TEST(aborts_saying([] { g_inner.assert_held(); }, "guarded by RxPort::held_lock_"));
  BOOST_TEST(aborts_saying([] { g_inner.unlock(); }, "releases a lock that it does not hold"));
  BOOST_TEST(aborts_saying(
      [] {
        std::thread([] { g_inner.lock(); }).join();
        g_inner.assert_held();
      },
      "guarded by RxPort::held_lock_"));
}

BOOST_AUTO_TEST_CASE(locks_of_a_fork_are_in_no_threads_list) {
  BOOST_TEST(death_of([] {
               g_inner.lock_at_fork();
               g_outer.lock();
               g_outer.unlock();
               g_inner.unlock_after_fork();
             }).signal == 0);
}

BOOST_AUTO_TEST_CASE(objects_mutex_taken_under_a_domains_lock_ends_the_process) {
  BOOST_TEST(aborts_saying(
      [] {
        weft::test::SideConfig config;
        config.host.engine_thread = false;
        const weft::test::Side side(config);
        const nic::DomainLock guard(side.domain.get());
        (void)side.nic().statistics();
      },
      "asks for Nic::objects_mutex_", "holds Domain::lock()"));
  BOOST_TEST(aborts_saying(
      [] {
        weft::test::SideConfig config;
        config.host.engine_thread = false;
        const weft::test::Side side(config);
        side.domain->assert_held();
      },
      "guarded by Domain::lock()"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

#endif
