// tests/cpp/test_sync_semaphore.cpp: permits, the seats in which they are noted, and calls without the guard.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <thread>
#include <vector>

#include "sync_objects.hpp"

namespace {

using namespace weft;
using namespace weft::sync;
using namespace weft::test_sync;

BOOST_AUTO_TEST_SUITE(sync_semaphore)

BOOST_AUTO_TEST_CASE(test_permits_of_the_dead_come_back) {
  TestWorld world;
  const Shared shared(Kind::semaphore, 3, 8);
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take, 0, as(6)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take).outcome == Outcome::again);
  world.dead.insert(5);
  BOOST_TEST(run(shared, world, Op::take, 0, look).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::look).call.value == 1U);
  BOOST_TEST(run(shared, world, Op::release, 2, as(6)).outcome == Outcome::done);  // one more than it had
  BOOST_TEST(run(shared, world, Op::look).call.value == 3U);
  BOOST_TEST(run(shared, world, Op::take, 0, in_place_of(1)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::gone, 0, in_place_of(1)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::look).call.value == 3U);
}

BOOST_AUTO_TEST_CASE(test_semaphore_has_as_many_seats_as_it_was_made_with) {
  TestWorld world;
  const Shared shared(Kind::semaphore, 10, 3);
  for (uint32_t pid = 2; pid < 5; ++pid) BOOST_TEST(run(shared, world, Op::take, 0, as(pid)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).outcome == Outcome::no_seat);
  BOOST_TEST(run(shared, world, Op::take, 0, as(4)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::release, 1, as(2)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).outcome == Outcome::done);
}

BOOST_AUTO_TEST_CASE(test_permit_that_was_given_back_is_anybodys) {
  TestWorld world;
  const Shared shared(Kind::semaphore, 2, 2);
  Head& head = *shared.object.head;
  const uint64_t five = holder_word({5, 105}, false), six = holder_word({6, 106}, false);
  const Call of_five = run(shared, world, Op::take, 0, as(5)).call;
  BOOST_TEST(!take_permit(head, of_five.seat, of_five.tag, five));  // nothing is idle
  BOOST_TEST(give_permit(head, of_five.seat, of_five.tag, five));
  BOOST_TEST(!give_permit(head, of_five.seat, of_five.tag, five));  // it has none: step() adds one
  BOOST_TEST(run(shared, world, Op::look).call.value == 2U);
  BOOST_TEST(take_permit(head, of_five.seat, of_five.tag, five));
  BOOST_TEST(run(shared, world, Op::look).call.value == 1U);
  BOOST_TEST(!take_permit(head, of_five.seat, of_five.tag, six));
  BOOST_TEST(give_permit(head, of_five.seat, of_five.tag, five));
  // Another process takes both permits, and so the seat's idle one; a third one gets the seat.
  const Call of_six = run(shared, world, Op::take, 0, as(6)).call;
  BOOST_TEST(run(shared, world, Op::take, 0, as(6)).outcome == Outcome::done);
  BOOST_TEST(!take_permit(head, of_five.seat, of_five.tag, five));
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).outcome == Outcome::again);
  BOOST_TEST(give_permit(head, of_six.seat, of_six.tag, six));
  const Call of_seven = run(shared, world, Op::take, 0, as(7)).call;
  BOOST_TEST(of_seven.seat == of_five.seat);
  BOOST_TEST(give_permit(head, of_seven.seat, of_seven.tag, holder_word({7, 107}, false)));
  BOOST_TEST(!take_permit(head, of_five.seat, of_five.tag, five));
  // Seats with nothing but idle permits go to callers that want a permit.
  BOOST_TEST(give_permit(head, of_six.seat, of_six.tag, six));
  BOOST_TEST(run(shared, world, Op::take, 0, as(8)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take, 0, as(9)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::look).call.value == 0U);
}

BOOST_AUTO_TEST_CASE(test_seat_that_came_back_to_its_process_has_another_tag) {
  TestWorld world;
  const Shared shared(Kind::semaphore, 1, 1);
  const uint64_t five = holder_word({5, 105}, false);
  const Call old = run(shared, world, Op::take, 0, as(5)).call;
  BOOST_TEST(run(shared, world, Op::release, 1, as(5)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).call.tag != old.tag);
  BOOST_TEST(!give_permit(*shared.object.head, old.seat, old.tag, five));
}

BOOST_AUTO_TEST_CASE(test_idle_permits_of_the_dead_come_back) {
  TestWorld world;
  const Shared shared(Kind::semaphore, 2, 8);
  const Call call = run(shared, world, Op::take, 0, as(5)).call;
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).outcome == Outcome::done);
  BOOST_TEST(give_permit(*shared.object.head, call.seat, call.tag, holder_word({5, 105}, false)));
  world.dead = {5};
  BOOST_TEST(run(shared, world, Op::look).call.value == 1U);
  BOOST_TEST(run(shared, world, Op::take).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take, 0, look).outcome == Outcome::done);
}

// A process that is killed while it holds the guard, after any of the stores of take(): the next one finds a semaphore
// in which the permit was either taken by the dead, and so comes back, or not taken.
BOOST_AUTO_TEST_CASE(test_guard_of_the_dead_is_inherited) {
  TestWorld world;
  const Shared shared(Kind::semaphore, 2, 4);
  BOOST_TEST(run(shared, world, Op::take, 0, as(6)).outcome == Outcome::done);
  for (int stores = 0; stores < 4; ++stores) {
    Head& head = *shared.object.head;
    BOOST_TEST(try_take(head.word, holder_word({5, 105}, false)));
    Seat& seat = seats_of(shared.object)[1];
    if (stores > 0) seat.word.store(holder_word({5, 105}, false));
    if (stores > 1) seat.permits.store(kTag | kTaken);
    if (stores > 2) semaphore_of(shared.object).seated.fetch_add(1);
    world.dead = {5};
    BOOST_TEST(run(shared, world, Op::look).outcome == Outcome::busy);
    BOOST_TEST(run(shared, world, Op::look, 0, look).call.value == 1U);
    BOOST_TEST(!is_held(head.word.load()));
  }
}

// Threads of two "processes": the calls without the guard beside calls with it. Never more than the permits at a time.
BOOST_AUTO_TEST_CASE(test_threads_of_two_processes_share_permits) {
  const Shared shared(Kind::semaphore, 2, 2);
  std::atomic<int> inside{0}, most{0};
  std::atomic<uint64_t> quick{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      TestWorld world(1 + i % 2);
      const uint64_t mine = holder_word(world.self(), false);
      Seat* seat = nullptr;
      uint64_t tag = 0;
      for (int k = 0; k < 20'000; ++k) {
        if (take_permit(*shared.object.head, seat, tag, mine)) {
          ++quick;
        } else {
          Call call;
          call.op = Op::take;
          call.who = world.self();
          if (wait_for(shared, world, call) != Outcome::done) std::abort();
          seat = call.seat;
          tag = call.tag;
        }
        const int now = ++inside;
        for (int seen = most.load(); seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        --inside;
        if (!give_permit(*shared.object.head, seat, tag, mine)) {
          Call call;
          call.op = Op::release;
          call.who = world.self();
          call.a = 1;
          if (wait_for(shared, world, call) != Outcome::done) std::abort();
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  TestWorld world;
  BOOST_TEST(most.load() <= 2);
  BOOST_TEST(quick.load() > 0U);
  BOOST_TEST(run(shared, world, Op::look).call.value == 2U);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
