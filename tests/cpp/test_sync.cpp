// tests/cpp/test_sync.cpp: the objects of cpp/sync: what each call does, what the death of a process leaves behind at
// each of its stores, memory that others have written into, threads, and processes that are killed.
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "fabric.hpp"
#include "stepwise.hpp"
#include "sync_objects.hpp"

namespace {

using namespace weft;
using namespace weft::sync;
using namespace weft::test_sync;

Outcome put(const Shared& shared, World& world, std::string_view text, uint32_t pid = 1) {
  return run(shared, world, Op::put, 0,
             [&](Call& call) {
               call.who = {pid, 100 + pid};
               call.in = reinterpret_cast<const std::byte*>(text.data());
               call.in_bytes = text.size();
             })
      .outcome;
}
// The next record, or the outcome in brackets.
std::string get(const Shared& shared, World& world, bool looks = false) {
  std::vector<std::byte> room(shared.object.item);
  const Done done = run(shared, world, Op::get, 0, [&](Call& call) {
    call.out = room.data();
    call.out_bytes = room.size();
    call.look = looks;
  });
  if (done.outcome != Outcome::done) return "[" + std::to_string(static_cast<uint32_t>(done.outcome)) + "]";
  return {reinterpret_cast<const char*>(room.data()), done.call.length};
}

BOOST_AUTO_TEST_SUITE(sync)

// ---- objects
// ---------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_object_opens_only_where_it_fits) {
  const Shared shared(Kind::queue, 4, 100);
  BOOST_TEST(open(shared.bytes().data(), shared.bytes().size()).has_value());
  BOOST_TEST(!open(shared.bytes().data(), shared.bytes().size() - 1).has_value());
  BOOST_TEST(!open(shared.bytes().data(), 64).has_value());
  BOOST_TEST(!bytes_of(Kind::queue, 0, 1).has_value());
  BOOST_TEST(!bytes_of(Kind::queue, kSlotsMax, uint64_t{1} << 40).has_value());
  BOOST_TEST(!bytes_of(Kind::barrier, 0, 0).has_value());
  BOOST_TEST(!bytes_of(Kind::semaphore, 1, kSeatsMax + 1).has_value());
  BOOST_TEST(!bytes_of(static_cast<Kind>(9), 1, 1).has_value());
  alignas(64) std::byte nothing[512]{};
  BOOST_TEST(!open(nothing, 256).has_value());
  std::memcpy(nothing + 8, shared.bytes().data(), 256);  // an object where none can be
  BOOST_TEST(!open(nothing + 8, sizeof(nothing) - 8).has_value());
}

BOOST_AUTO_TEST_CASE(test_closed_object_refuses_every_call) {
  TestWorld world;
  const Shared shared(Kind::lock);
  BOOST_TEST(run(shared, world, Op::take).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::close).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::release).outcome == Outcome::closed);
  BOOST_TEST(!take_lock(*shared.object.head, holder_word(world.self(), false)));
}

// ---- locks
// -----------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_lock_names_its_holder) {
  TestWorld world;
  const Shared shared(Kind::lock);
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take, 0, as(6)).outcome == Outcome::again);
  world.now += 3'000'000'000;
  const Done found = run(shared, world, Op::look);
  BOOST_TEST(found.call.value == 5U);
  BOOST_TEST(found.call.value2 == 3'000'000'000U);  // since process 6 found it taken
  const Done refused = run(shared, world, Op::release, 0, as(6));
  BOOST_TEST(refused.outcome == Outcome::not_holder);
  BOOST_TEST(refused.call.value == 5U);
  BOOST_TEST(run(shared, world, Op::release, 0, as(5)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::look).call.value == 0U);
}

BOOST_AUTO_TEST_CASE(test_lock_of_the_dead_is_marked_until_it_is_recovered) {
  TestWorld world;
  const Shared shared(Kind::lock);
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).outcome == Outcome::done);
  world.dead.insert(5);
  BOOST_TEST(run(shared, world, Op::take).outcome == Outcome::again);  // nobody has asked the system yet
  const Done told = run(shared, world, Op::take, 0, look);
  BOOST_TEST(told.outcome == Outcome::died);
  BOOST_TEST(told.call.value == 5U);
  BOOST_TEST(run(shared, world, Op::take).outcome == Outcome::died);
  BOOST_TEST(run(shared, world, Op::release, 0, as(5)).outcome == Outcome::not_holder);
  const Done recovered = run(shared, world, Op::take, 1);
  BOOST_TEST(recovered.outcome == Outcome::done);
  BOOST_TEST(recovered.call.value == 1U);
  BOOST_TEST(run(shared, world, Op::release).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take, 1).call.value == 0U);
}

BOOST_AUTO_TEST_CASE(test_lock_held_for_another_is_its_tokens) {
  TestWorld world;
  const Shared shared(Kind::lock);
  BOOST_TEST(run(shared, world, Op::take, 0, in_place_of(11)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::look).call.value == 4711U);
  BOOST_TEST(run(shared, world, Op::release).outcome == Outcome::not_holder);  // the process itself does not hold it
  BOOST_TEST(!release_lock(*shared.object.head, holder_word(world.self(), false)));
  BOOST_TEST(run(shared, world, Op::release, 0, in_place_of(12)).outcome == Outcome::not_holder);
  BOOST_TEST(run(shared, world, Op::gone, 0, in_place_of(12)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take).outcome == Outcome::again);
  BOOST_TEST(run(shared, world, Op::gone, 0, in_place_of(11)).outcome == Outcome::done);
  const Done told = run(shared, world, Op::take);
  BOOST_TEST(told.outcome == Outcome::died);
  BOOST_TEST(told.call.value == 4711U);
  BOOST_TEST(run(shared, world, Op::release, 0, in_place_of(11)).outcome == Outcome::not_holder);
}

// ---- events, semaphores, barriers
// ------------------------------------------------------------------------------------

// Two threads of the holder release at the same time: the second release must not free the lock of the next holder.
BOOST_AUTO_TEST_CASE(test_lock_is_released_once) {
  TestWorld world;
  const Shared shared(Kind::lock);
  Head& head = *shared.object.head;
  const uint64_t mine = holder_word(world.self(), false);
  BOOST_TEST(run(shared, world, Op::take).outcome == Outcome::done);
  uint64_t word = 0;
  BOOST_TEST(announce_sleep(head.word, &word));
  BOOST_TEST(release_lock(head, mine));
  BOOST_TEST(!release_lock(head, mine));
  BOOST_TEST(run(shared, world, Op::take, 0, as(6)).outcome == Outcome::done);
  BOOST_TEST(!release_lock(head, mine));
  BOOST_TEST(run(shared, world, Op::release).outcome == Outcome::not_holder);
  BOOST_TEST(run(shared, world, Op::look).call.value == 6U);
}

#if !defined(WEFT_TEST_NO_FORK)
BOOST_AUTO_TEST_CASE(test_world_knows_which_processes_have_ended) {
  host::HostWorld world;
  BOOST_TEST(!world.gone(world.self()));
  BOOST_TEST(!world.gone({}));
  BOOST_TEST(world.gone({world.self().pid, world.self().start + 1}));  // an earlier process with this pid
  int ends[2];
  BOOST_REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  BOOST_REQUIRE(pid >= 0);
  if (pid == 0) {  // its main thread ends, and another one goes on
    std::thread([ends] {
      const host::HostWorld own;
      const Who who = own.self();
      if (::write(ends[1], &who, sizeof(who)) < 0) ::_exit(1);
      ::pause();
    }).detach();
    ::syscall(SYS_exit, 0);
  }
  Who who;
  BOOST_REQUIRE(::read(ends[0], &who, sizeof(who)) == static_cast<ssize_t>(sizeof(who)));
  BOOST_TEST(who.pid == static_cast<uint32_t>(pid));
  for (int i = 0; i < 20; ++i) BOOST_TEST(!world.gone(who));
  BOOST_TEST(world.gone({who.pid, who.start + 1}));
  ::kill(pid, SIGKILL);
  siginfo_t info;
  BOOST_TEST(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0);
  BOOST_TEST(world.gone(who));  // a zombie
  BOOST_TEST(::waitpid(pid, nullptr, 0) == pid);
  BOOST_TEST(world.gone(who));
  for (const int end : ends) ::close(end);
}
#endif

BOOST_AUTO_TEST_CASE(test_event_that_was_set_and_cleared_ends_a_wait) {
  TestWorld world;
  const Shared shared(Kind::event);
  Done wait = run(shared, world, Op::wait);
  BOOST_TEST(wait.outcome == Outcome::again);
  BOOST_TEST(step(shared.object, wait.call, world) == Outcome::again);
  (void)run(shared, world, Op::set);
  (void)run(shared, world, Op::clear);
  BOOST_TEST(step(shared.object, wait.call, world) == Outcome::done);
  BOOST_TEST(run(shared, world, Op::wait).outcome == Outcome::again);
}

BOOST_AUTO_TEST_CASE(test_barrier_lets_pass_when_all_have_come) {
  TestWorld world;
  const Shared shared(Kind::barrier, 3);
  for (int phase = 0; phase < 3; ++phase) {
    Done first = run(shared, world, Op::wait, 0, as(2)), second = run(shared, world, Op::wait, 0, as(3));
    BOOST_TEST(first.outcome == Outcome::again);
    BOOST_TEST(second.outcome == Outcome::again);
    BOOST_TEST(run(shared, world, Op::look).call.value == 2U);
    // The first party leaves and comes again: the numbers stay different.
    first.call.op = Op::withdraw;
    BOOST_TEST(step(shared.object, first.call, world) == Outcome::done);
    BOOST_TEST(first.call.value == 0U);
    first = run(shared, world, Op::wait, 0, as(2));
    const Done last = run(shared, world, Op::wait, 0, as(4));
    BOOST_TEST(last.outcome == Outcome::done);
    BOOST_TEST(step(shared.object, first.call, world) == Outcome::done);
    BOOST_TEST(step(shared.object, second.call, world) == Outcome::done);
    BOOST_TEST(
        (std::set<uint64_t>{first.call.value, second.call.value, last.call.value} == std::set<uint64_t>{0, 1, 2}));
  }
}

BOOST_AUTO_TEST_CASE(test_party_that_ends_breaks_the_barrier) {
  TestWorld world;
  const Shared shared(Kind::barrier, 2);
  Done wait = run(shared, world, Op::wait, 0, as(2));
  BOOST_TEST(run(shared, world, Op::wait, 0, as(3)).outcome == Outcome::done);
  BOOST_TEST(step(shared.object, wait.call, world) == Outcome::done);
  Done again = run(shared, world, Op::wait, 0, as(2));
  world.dead.insert(3);  // it passed the last time, and has not come yet
  again.call.look = true;
  BOOST_TEST(step(shared.object, again.call, world) == Outcome::broken);
  BOOST_TEST(again.call.value == 3U);
  BOOST_TEST(run(shared, world, Op::wait, 0, as(4)).outcome == Outcome::broken);
  BOOST_TEST(run(shared, world, Op::reset).outcome == Outcome::done);
  Done anew = run(shared, world, Op::wait, 0, as(2));
  anew.call.look = true;
  BOOST_TEST(step(shared.object, anew.call, world) == Outcome::again);  // arrivals before the reset do not count
  BOOST_TEST(run(shared, world, Op::wait, 0, as(4)).outcome == Outcome::done);
}

BOOST_AUTO_TEST_CASE(test_reset_ends_waits_as_broken) {
  TestWorld world;
  const Shared shared(Kind::barrier, 3);
  Done first = run(shared, world, Op::wait, 0, as(2)), second = run(shared, world, Op::wait, 0, as(3));
  BOOST_TEST(run(shared, world, Op::reset).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::reset).outcome == Outcome::done);  // a second reset changes nothing
  BOOST_TEST(step(shared.object, first.call, world) == Outcome::broken);
  BOOST_TEST(first.call.value2 == 1U);
  second.call.op = Op::withdraw;
  BOOST_TEST(step(shared.object, second.call, world) == Outcome::done);
  BOOST_TEST(second.call.value == 0U);  // not all have come
  for (uint32_t pid = 2; pid < 4; ++pid) {
    BOOST_TEST(run(shared, world, Op::wait, 0, as(pid)).outcome == Outcome::again);
  }
  BOOST_TEST(run(shared, world, Op::wait, 0, as(4)).outcome == Outcome::done);
}

// A process that is killed while it comes, or leaves, may be neither counted nor missed: nobody waits for it.
BOOST_AUTO_TEST_CASE(test_barrier_whose_guard_a_dead_process_held_is_broken) {
  TestWorld world;
  const Shared shared(Kind::barrier, 2);
  Done wait = run(shared, world, Op::wait, 0, as(2));
  BOOST_TEST(try_take(shared.object.head->word, holder_word({5, 105}, false)));
  world.dead = {5};
  BOOST_TEST(step(shared.object, wait.call, world) == Outcome::again);
  wait.call.look = true;
  BOOST_TEST(step(shared.object, wait.call, world) == Outcome::broken);
  BOOST_TEST(wait.call.value == 5U);
}

// A call asks about some processes at a time, and the calls take turns.
BOOST_AUTO_TEST_CASE(test_dead_parties_are_found_among_many) {
  constexpr uint32_t kMany = 100;
  for (const uint32_t dead : {3U, 50U, kMany - 2}) {
    TestWorld world;
    const Shared shared(Kind::barrier, kMany);
    std::vector<Done> waits;
    for (uint32_t pid = 1; pid < kMany; ++pid) waits.push_back(run(shared, world, Op::wait, 0, as(pid)));
    world.dead = {dead};
    Done& last = waits.back();
    last.call.look = true;
    Outcome outcome = Outcome::again;
    for (uint32_t i = 0; i <= kMany / kAskedPerStep && outcome == Outcome::again; ++i) {
      outcome = step(shared.object, last.call, world);
    }
    BOOST_TEST(outcome == Outcome::broken);
    BOOST_TEST(last.call.value == dead);
  }
  for (const uint32_t dead : {3U, 50U, kMany - 2}) {
    TestWorld world;
    const Shared shared(Kind::semaphore, kMany, kMany);
    for (uint32_t pid = 1; pid <= kMany; ++pid)
      BOOST_TEST(run(shared, world, Op::take, 0, as(pid)).outcome == Outcome::done);
    world.dead = {dead};
    Outcome outcome = Outcome::again;
    for (uint32_t i = 0; i <= kMany / kAskedPerStep && outcome == Outcome::again; ++i) {
      outcome = run(shared, world, Op::take, 0, look).outcome;
    }
    BOOST_TEST(outcome == Outcome::done);
  }
}

// ---- queues
// ----------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_queue_is_first_in_first_out) {
  TestWorld world;
  const Shared shared(Kind::queue, 3, 16);
  for (int lap = 0; lap < 5; ++lap) {
    for (const char* text : {"one", "two", "three"}) BOOST_TEST(put(shared, world, text) == Outcome::done);
    BOOST_TEST(put(shared, world, "four") == Outcome::again);
    BOOST_TEST(run(shared, world, Op::look).call.value == 3U);
    for (const char* text : {"one", "two"}) BOOST_TEST(get(shared, world) == text);
    BOOST_TEST(put(shared, world, "four") == Outcome::done);
    for (const char* text : {"three", "four"}) BOOST_TEST(get(shared, world) == text);
    BOOST_TEST(get(shared, world) == "[1]");
  }
  BOOST_TEST(put(shared, world, "more than 16 bytes") == Outcome::too_long);
}

// A producer that is killed after any of the stores of put(): its record is not delivered, or whole.
BOOST_AUTO_TEST_CASE(test_half_written_record_is_never_delivered) {
  for (int stores = 0; stores < 4; ++stores) {
    TestWorld world;
    const Shared shared(Kind::queue, 3, 16);
    BOOST_TEST(put(shared, world, "first") == Outcome::done);
    Slot& slot = slot_of(shared.object, 1);
    BOOST_TEST(try_take(shared.object.head->word, holder_word({5, 105}, false)));
    if (stores > 0) slot.length.store(9);
    if (stores > 1) std::memcpy(record_of(slot), "half", 4);
    if (stores > 2) slot.state.store(kSlotFull);
    world.dead = {5};
    BOOST_TEST(get(shared, world) == "[10]");
    BOOST_TEST(get(shared, world, true) == "first");
    BOOST_TEST(put(shared, world, "second") == Outcome::done);
    BOOST_TEST(get(shared, world) == "second");
    BOOST_TEST(get(shared, world) == "[1]");
  }
}

BOOST_AUTO_TEST_CASE(test_slot_of_a_dead_writer_is_stepped_over) {
  TestWorld world;
  const Shared shared(Kind::queue, 3, kCopyUnderGuard + 1);
  const Done reserved = run(shared, world, Op::reserve, kCopyUnderGuard + 1, as(5));
  BOOST_TEST(reserved.outcome == Outcome::done);
  BOOST_TEST(put(shared, world, "behind") == Outcome::done);
  BOOST_TEST(get(shared, world, true) == "[1]");  // first in, first out: the writer may come to its end
  BOOST_TEST(run(shared, world, Op::commit, reserved.call.value, as(6)).outcome == Outcome::not_holder);
  world.dead = {5};
  BOOST_TEST(get(shared, world) == "[1]");
  BOOST_TEST(get(shared, world, true) == "behind");
  BOOST_TEST(run(shared, world, Op::commit, reserved.call.value, as(5)).outcome == Outcome::not_holder);
}

BOOST_AUTO_TEST_CASE(test_slot_that_is_given_back_is_stepped_over) {
  TestWorld world;
  const Shared shared(Kind::queue, 3, 16);
  const Done reserved = run(shared, world, Op::reserve, 4, as(5));
  BOOST_TEST(put(shared, world, "behind") == Outcome::done);
  BOOST_TEST(get(shared, world) == "[1]");
  BOOST_TEST(run(shared, world, Op::free_slot, reserved.call.value, as(6)).outcome == Outcome::not_holder);
  BOOST_TEST(run(shared, world, Op::free_slot, reserved.call.value, as(5)).outcome == Outcome::done);
  BOOST_TEST(get(shared, world) == "behind");
  BOOST_TEST(run(shared, world, Op::commit, reserved.call.value, as(5)).outcome == Outcome::not_holder);
}

BOOST_AUTO_TEST_CASE(test_slot_of_a_dead_reader_is_used_again) {
  TestWorld world;
  const Shared shared(Kind::queue, 1, 16);
  BOOST_TEST(put(shared, world, "taken") == Outcome::done);
  const Done claimed = run(shared, world, Op::claim, 0, as(5));
  BOOST_TEST(claimed.outcome == Outcome::done);
  BOOST_TEST(claimed.call.state == 5U);  // the record's length
  BOOST_TEST(put(shared, world, "next") == Outcome::again);
  world.dead = {5};
  BOOST_TEST(put(shared, world, "next") == Outcome::again);
  BOOST_TEST(run(shared, world, Op::put, 0, look).outcome == Outcome::done);
  BOOST_TEST(get(shared, world).empty());
}

BOOST_AUTO_TEST_CASE(test_slots_of_a_lost_token_come_back) {
  TestWorld world;
  const Shared shared(Kind::queue, 2, 16);
  BOOST_TEST(run(shared, world, Op::reserve, 4, in_place_of(9)).outcome == Outcome::done);
  BOOST_TEST(put(shared, world, "mine") == Outcome::done);
  BOOST_TEST(get(shared, world) == "[1]");
  BOOST_TEST(run(shared, world, Op::gone, 0, in_place_of(8)).outcome == Outcome::done);
  BOOST_TEST(get(shared, world) == "[1]");
  BOOST_TEST(run(shared, world, Op::gone, 0, in_place_of(9)).outcome == Outcome::done);
  BOOST_TEST(get(shared, world) == "mine");
}

// ---- all kinds
// -------------------------------------------------------------------------------------------------------

// Random bytes in the memory: every call returns, and touches no byte outside.
BOOST_AUTO_TEST_CASE(test_overwritten_memory_does_no_harm) {
  const uint64_t seed = test::test_seed();
  BOOST_TEST_MESSAGE("WEFT_SEED=" << seed);
  std::mt19937_64 random(seed);
  constexpr Kind kKinds[] = {Kind::lock, Kind::semaphore, Kind::event, Kind::barrier, Kind::queue};
  for (int round = 0; round < 3000; ++round) {
    TestWorld world;
    const Kind kind = kKinds[random() % 5];
    const Shared shared(kind, 1 + random() % 5, 1 + random() % 70);
    std::vector<std::byte> room(100);
    for (int i = 0; i < 30; ++i) {
      const size_t at = random() % shared.bytes().size(),
                   n = std::min<size_t>(1 + random() % 8, shared.bytes().size() - at);
      for (size_t k = 0; k < n; ++k)
        shared.bytes()[at + k] = static_cast<std::byte>(random() % 3 == 0 ? 0xff : random());
      world.dead = {static_cast<uint32_t>(random() % 4), static_cast<uint32_t>(random() & kPidMask)};
      const auto found = open(shared.bytes().data(), shared.bytes().size());
      for (const Object* object : {&shared.object, found ? &*found : nullptr}) {
        if (object == nullptr) continue;
        Call call;
        call.op = static_cast<Op>(1 + random() % kOpMax);
        call.who = {static_cast<uint32_t>(random() % 4), 100};
        call.look = random() % 2 == 0;
        call.for_other = random() % 2 == 0;
        call.token = random() % 3;
        call.a = random() % 8;
        call.state = random() % 2 == 0 ? 0 : random();
        call.in = room.data();
        call.in_bytes = random() % room.size();
        call.out = room.data();
        call.out_bytes = room.size();
        (void)step(*object, call, world);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_threads_count_under_a_lock) {
  TestWorld world;
  const Shared shared(Kind::lock);
  uint64_t count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20'000; ++k) {
        Call call;
        call.op = Op::take;
        call.who = world.self();
        if (wait_for(shared, world, call) != Outcome::done) std::abort();
        ++count;
        if (!release_lock(*shared.object.head, holder_word(world.self(), false))) std::abort();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  BOOST_TEST(count == 80'000U);
}

BOOST_AUTO_TEST_CASE(test_threads_pass_records_of_all_lengths) {
  TestWorld world;
  for (const uint64_t item : {uint64_t{16}, kCopyUnderGuard + 100}) {
    const Shared shared(Kind::queue, 3, item);
    const uint64_t per_thread = item > kCopyUnderGuard ? 500 : 20'000;
    std::atomic<uint64_t> sum{0};
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        std::vector<std::byte> record(item);
        for (uint64_t k = 0; k < per_thread; ++k) {
          const uint64_t number = i * per_thread + k;
          std::memcpy(record.data(), &number, 8);
          std::memcpy(record.data() + item - 8, &number, 8);
          Call call;
          call.op = Op::put;
          call.who = world.self();
          call.in = record.data();
          call.in_bytes = item;
          if (wait_for(shared, world, call) != Outcome::done) std::abort();
        }
      });
      threads.emplace_back([&] {
        std::vector<std::byte> record(item);
        for (uint64_t k = 0; k < per_thread; ++k) {
          Call call;
          call.op = Op::get;
          call.who = world.self();
          call.out = record.data();
          call.out_bytes = item;
          if (wait_for(shared, world, call) != Outcome::done || call.length != item) std::abort();
          uint64_t first, last;
          std::memcpy(&first, record.data(), 8);
          std::memcpy(&last, record.data() + item - 8, 8);
          if (first != last) std::abort();
          sum += first;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    BOOST_TEST(sum == 3 * per_thread * (3 * per_thread - 1) / 2);
  }
}

#if defined(WEFT_TEST_STEPWISE)
// A bell on which nobody sleeps, although its bit is set, and a thread that goes to sleep at this instant.
BOOST_AUTO_TEST_CASE(test_sleeper_that_comes_while_a_bell_rings_is_woken_by_the_next_ring) {
  for (uint64_t steps = 0, more = 1; more != 0; ++steps) {
    Bell bell{1};
    std::atomic<pid_t> sleeps{0};
    std::atomic<bool> woken{false};
    std::jthread sleeper;
    const auto asleep = [&] {
      std::ifstream status("/proc/self/task/" + std::to_string(sleeps) + "/stat");
      std::string number, name, state;
      return woken || (status >> number >> name >> state && state == "S");
    };
    more = test::interrupted(
               steps, [&] { weft::sync::ring(bell); },
               [&] {
                 sleeper = std::jthread([&] {
                   const uint32_t heard = listen(bell);
                   sleeps = static_cast<pid_t>(::syscall(SYS_gettid));
                   futex_wait(&bell, heard, 60'000'000'000);
                   woken = true;
                 });
                 while (sleeps == 0 || !asleep()) sched_yield();
               })
               ? 1
               : 0;
    const bool rung = more == 0 || test::poll_until([&] { return woken.load(); }, [&] { weft::sync::ring(bell); },
                                                    std::chrono::milliseconds(200));
    if (!rung) futex_wake(&bell, 1);
    BOOST_REQUIRE(rung);
  }
}

BOOST_AUTO_TEST_CASE(test_party_of_a_broken_barrier_finds_it_broken_or_reset) {
  TestWorld world;
  std::set<std::pair<uint64_t, uint64_t>> values;
  for (uint64_t steps = 0;; ++steps) {
    const Shared shared(Kind::barrier, 3);
    Call call = run(shared, world, Op::wait).call;
    (void)run(shared, world, Op::abort);
    Outcome outcome{};
    const bool more = test::interrupted(
        steps, [&] { outcome = step(shared.object, call, world); }, [&] { (void)run(shared, world, Op::reset); });
    if (outcome == Outcome::again) outcome = step(shared.object, call, world);
    BOOST_TEST(outcome == Outcome::broken);
    values.insert({call.value, call.value2});
    if (!more) break;
  }
  // Aborted; or reset() has ended the wait.
  BOOST_TEST((values == std::set<std::pair<uint64_t, uint64_t>>{{0, 0}, {0, 1}}));
}

BOOST_AUTO_TEST_CASE(test_look_at_a_queue_finds_no_more_than_it_has) {
  TestWorld world;
  const Shared shared(Kind::queue, 64, 16);
  uint64_t size = 0;
  for (uint64_t steps = 0; test::interrupted(
           steps, [&] { size = run(shared, world, Op::look).call.value; },
           [&] {
             for (int i = 0; i < 5; ++i) (void)put(shared, world, "x");
             for (int i = 0; i < 5; ++i) (void)get(shared, world);
           });
       ++steps) {
    BOOST_TEST(size <= 5U);
  }
}
#endif

#if !defined(WEFT_TEST_NO_FORK)
// Processes put and get without pause, and are killed at random instants: what arrives is whole, and nothing twice.
BOOST_AUTO_TEST_CASE(test_killed_processes_tear_no_record) {
  const uint64_t seed = test::test_seed();
  BOOST_TEST_MESSAGE("WEFT_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (const uint64_t item : {uint64_t{64}, kCopyUnderGuard + 1024}) {
    const Shared shared(Kind::queue, 8, item);
    std::map<uint64_t, uint64_t> next;  // by producer
    std::vector<std::byte> record(item);
    host::HostWorld here;
    const auto take_all = [&] {
      for (;;) {
        Call call;
        call.op = Op::get;
        call.who = here.self();
        call.look = true;
        call.out = record.data();
        call.out_bytes = item;
        const Outcome outcome = step(shared.object, call, here);
        if (outcome == Outcome::busy) continue;
        if (outcome != Outcome::done) return;
        BOOST_TEST_REQUIRE(call.length == item);
        uint64_t head[2], tail[2];
        std::memcpy(head, record.data(), 16);
        std::memcpy(tail, record.data() + item - 16, 16);
        BOOST_TEST_REQUIRE(head[0] == tail[0]);
        BOOST_TEST_REQUIRE(head[1] == tail[1]);
        BOOST_TEST_REQUIRE(head[1] == next[head[0]]);
        ++next[head[0]];
      }
    };
    const int rounds = test::kill_rounds(20);
    for (int round = 0; round < rounds; ++round) {
      const pid_t pid = ::fork();
      BOOST_REQUIRE(pid >= 0);
      if (pid == 0) {
        host::HostWorld world;
        std::vector<std::byte> mine(item);
        for (uint64_t number[2] = {static_cast<uint64_t>(round), 0};; ++number[1]) {
          std::memcpy(mine.data(), number, 16);
          std::memcpy(mine.data() + item - 16, number, 16);
          Call call;
          call.op = Op::put;
          call.who = world.self();
          call.in = mine.data();
          call.in_bytes = item;
          if (wait_for(shared, world, call) != Outcome::done) ::_exit(1);
        }
      }
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 3000);
      while (std::chrono::steady_clock::now() < until) take_all();
      ::kill(pid, SIGKILL);
      int status = 0;
      ::waitpid(pid, &status, 0);
      BOOST_TEST_REQUIRE(WIFSIGNALED(status));
      take_all();
      take_all();
      Call size;
      size.op = Op::look;
      BOOST_TEST_REQUIRE((step(shared.object, size, here) == Outcome::done));
      BOOST_TEST_REQUIRE(size.value == 0U);
    }
  }
}
#endif

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
