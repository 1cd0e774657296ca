// tests/cpp/test_sync_undone.cpp: calls taken back: a party that leaves a barrier, records and locks that somebody
// took in vain; whose slot and seat it is; and who is woken.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "sync_objects.hpp"

namespace {

using namespace weft;
using namespace weft::sync;
using namespace weft::test_sync;

Outcome put_text(const Shared& shared, World& world, std::string_view text, Op op = Op::put) {
  return run(shared, world, op, 0,
             [&](Call& call) {
               call.in = reinterpret_cast<const std::byte*>(text.data());
               call.in_bytes = text.size();
             })
      .outcome;
}
std::string get_text(const Shared& shared, World& world) {
  std::vector<std::byte> room(shared.object.item);
  const Done done = run(shared, world, Op::get, 0, [&](Call& call) {
    call.out = room.data();
    call.out_bytes = room.size();
  });
  if (done.outcome != Outcome::done) return "[" + std::to_string(static_cast<uint32_t>(done.outcome)) + "]";
  return {reinterpret_cast<const char*>(room.data()), done.call.length};
}

// As in_place_of(), for a slot that was read.
auto read_by(uint64_t token) {
  return [token](Call& call) {
    in_place_of(token)(call);
    call.b = 0;
  };
}

BOOST_AUTO_TEST_SUITE(sync)

// ---- barriers ------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_party_that_moves_to_the_seat_of_one_that_left_is_looked_for_there) {
  TestWorld world;
  const Shared shared(Kind::barrier, 4);
  Done first = run(shared, world, Op::wait, 0, as(5));
  Done last = run(shared, world, Op::wait, 0, as(6));
  first.call.op = Op::withdraw;
  BOOST_TEST(step(shared.object, first.call, world) == Outcome::done);
  world.dead = {5};  // has left: no longer a party
  last.call.look = true;
  BOOST_TEST(step(shared.object, last.call, world) == Outcome::again);
  Done other = run(shared, world, Op::wait, 0, as(7));
  world.dead = {6};
  other.call.look = true;
  BOOST_TEST(step(shared.object, other.call, world) == Outcome::broken);
  BOOST_TEST(other.call.value == 6U);
}

// ---- queues --------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_record_longer_than_its_slot_is_damage) {
  TestWorld world;
  const Shared shared(Kind::queue, 2, 16);
  BOOST_TEST(put_text(shared, world, "text") == Outcome::done);
  std::array<std::byte, 64> room{};
  for (const uint64_t length : {uint64_t{17}, ~uint64_t{0}}) {
    slot_of(shared.object, 0).length.store(length);
    const Done done = run(shared, world, Op::get, 0, [&](Call& call) {
      call.out = room.data();
      call.out_bytes = room.size();
    });
    BOOST_TEST(done.outcome == Outcome::damaged);
    BOOST_TEST(run(shared, world, Op::claim).outcome == Outcome::damaged);
  }
  slot_of(shared.object, 0).length.store(4);
  BOOST_TEST(get_text(shared, world) == "text");
}

BOOST_AUTO_TEST_CASE(test_slot_held_for_another_is_its_tokens) {
  TestWorld world;
  const Shared shared(Kind::queue, 2, 16);
  const Done reserved = run(shared, world, Op::reserve, 4, in_place_of(21));
  BOOST_TEST(reserved.outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::commit, reserved.call.value, in_place_of(22)).outcome == Outcome::not_holder);
  BOOST_TEST(run(shared, world, Op::free_slot, reserved.call.value, in_place_of(22)).outcome == Outcome::not_holder);
  BOOST_TEST(run(shared, world, Op::commit, reserved.call.value, in_place_of(21)).outcome == Outcome::done);
  const Done claimed = run(shared, world, Op::claim, 0, in_place_of(21));
  BOOST_TEST(run(shared, world, Op::free_slot, claimed.call.value, read_by(22)).outcome == Outcome::not_holder);
  BOOST_TEST(run(shared, world, Op::free_slot, claimed.call.value, read_by(21)).outcome == Outcome::done);
}

BOOST_AUTO_TEST_CASE(test_record_that_was_got_in_vain_is_the_first_again) {
  TestWorld world;
  const Shared shared(Kind::queue, 2, 16);
  BOOST_TEST(put_text(shared, world, "never got", Op::put_back) == Outcome::again);
  for (int lap = 0; lap < 5; ++lap) {
    BOOST_TEST(put_text(shared, world, "a") == Outcome::done);
    BOOST_TEST(put_text(shared, world, "b") == Outcome::done);
    BOOST_TEST(get_text(shared, world) == "a");
    BOOST_TEST(put_text(shared, world, "a", Op::put_back) == Outcome::done);
    BOOST_TEST(put_text(shared, world, "full", Op::put_back) == Outcome::again);
    BOOST_TEST(run(shared, world, Op::look).call.value == 2U);
    BOOST_TEST(get_text(shared, world) == "a");
    BOOST_TEST(get_text(shared, world) == "b");
  }
  BOOST_TEST(put_text(shared, world, "more than 16 bytes", Op::put_back) == Outcome::too_long);
}

BOOST_AUTO_TEST_CASE(test_put_that_is_taken_back_leaves_the_other_records) {
  TestWorld world;
  const Shared shared(Kind::queue, 3, 16);
  const auto numbered = [&](uint64_t number) { return [=](Call& call) { call.b = number; }; };
  const auto put = [&](std::string_view text, uint64_t number) {
    return run(shared, world, Op::put, 0,
               [&](Call& call) {
                 call.in = reinterpret_cast<const std::byte*>(text.data());
                 call.in_bytes = text.size();
                 call.b = number;
               })
        .call.value;
  };
  const auto unput = [&](uint64_t position, uint64_t number) {
    return run(shared, world, Op::unput, position, numbered(number)).outcome;
  };
  for (int lap = 0; lap < 3; ++lap) {
    const uint64_t a = put("a", 1), b = put("b", 2), c = put("c", 3);
    BOOST_TEST(unput(b, 3) == Outcome::not_holder);
    BOOST_TEST(unput(c + 1, 3) == Outcome::not_holder);
    BOOST_TEST(unput(b, 2) == Outcome::done);  // between others
    BOOST_TEST(unput(b, 2) == Outcome::not_holder);
    BOOST_TEST(unput(c, 3) == Outcome::done);  // the last
    const uint64_t d = put("d", 4);
    BOOST_TEST(d == c);
    BOOST_TEST(unput(a, 1) == Outcome::done);  // the first
    BOOST_TEST(get_text(shared, world) == "d");
    BOOST_TEST(unput(d, 4) == Outcome::not_holder);
    BOOST_TEST(run(shared, world, Op::look).call.value == 0U);
  }
  const uint64_t e = put("e", 5);
  BOOST_TEST(get_text(shared, world) == "e");
  BOOST_TEST(put_text(shared, world, "f", Op::put_back) == Outcome::done);  // at the place of "e"
  BOOST_TEST(unput(e, 5) == Outcome::not_holder);
  BOOST_TEST(get_text(shared, world) == "f");
}

BOOST_AUTO_TEST_CASE(test_record_is_not_put_back_into_a_slot_that_is_read) {
  TestWorld world;
  const Shared shared(Kind::queue, 2, 16);
  BOOST_TEST(put_text(shared, world, "a") == Outcome::done);
  const Done claimed = run(shared, world, Op::claim, 0, in_place_of(21));
  BOOST_TEST(put_text(shared, world, "b", Op::put_back) == Outcome::again);
  BOOST_TEST(run(shared, world, Op::free_slot, claimed.call.value, read_by(21)).outcome == Outcome::done);
  BOOST_TEST(put_text(shared, world, "b", Op::put_back) == Outcome::done);
  BOOST_TEST(get_text(shared, world) == "b");
}

BOOST_AUTO_TEST_CASE(test_slot_that_was_claimed_in_vain_is_the_first_again) {
  TestWorld world;
  const Shared shared(Kind::queue, 3, 16);
  BOOST_TEST(put_text(shared, world, "a") == Outcome::done);
  BOOST_TEST(put_text(shared, world, "b") == Outcome::done);
  const auto back = [&](const Done& claimed, uint64_t token) {
    return run(shared, world, Op::free_slot, claimed.call.value,
               [&](Call& call) {
                 in_place_of(token)(call);
                 call.b = 1;
               })
        .outcome;
  };
  const Done first = run(shared, world, Op::claim, 0, in_place_of(21));
  BOOST_TEST(back(first, 22) == Outcome::not_holder);
  BOOST_TEST(back(first, 21) == Outcome::done);
  BOOST_TEST(back(first, 21) == Outcome::not_holder);
  const Done again = run(shared, world, Op::claim, 0, in_place_of(21));
  BOOST_TEST(get_text(shared, world) == "b");
  BOOST_TEST(back(again, 21) == Outcome::again);  // a later one has been taken: the slot stays its process's
  BOOST_TEST(run(shared, world, Op::free_slot, again.call.value, read_by(21)).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::look).call.value == 0U);
}

// A record that is copied without the guard may have kept several producers from the slot: all look again.
BOOST_AUTO_TEST_CASE(test_slot_of_a_long_record_wakes_all_who_want_room) {
  TestWorld world;
  const Shared shared(Kind::queue, 1, kCopyUnderGuard + 1);
  const std::string text(kCopyUnderGuard + 1, 'x');
  BOOST_TEST(put_text(shared, world, text) == Outcome::done);
  Bell& room = shared.object.head->room;
  std::array<std::atomic<long>, 3> tids{};
  std::array<std::atomic<int>, 3> errors{};
  std::vector<std::thread> sleepers;
  for (size_t i = 0; i < tids.size(); ++i) {
    sleepers.emplace_back([&, i] {
      const uint32_t heard = listen(room);
      const timespec limit{60, 0};  // a sleeper that is not woken ends so
      tids[i] = ::syscall(SYS_gettid);
      if (::syscall(SYS_futex, &room, FUTEX_WAIT, heard, &limit, nullptr, 0) != 0) errors[i] = errno;
    });
  }
  for (const auto& tid : tids) {
    for (std::string state; state != "S";) {
      std::this_thread::yield();
      std::ifstream stat("/proc/self/task/" + std::to_string(tid.load()) + "/stat");
      std::string number, name;
      if (tid.load() != 0) stat >> number >> name >> state;
    }
  }
  BOOST_TEST(get_text(shared, world) == text);
  for (std::thread& sleeper : sleepers) sleeper.join();
  for (const auto& error : errors) BOOST_TEST(error.load() != ETIMEDOUT);
}

BOOST_AUTO_TEST_CASE(test_text_of_a_queue_is_behind_its_slots) {
  const std::string_view form = R"(["<f8",[2]])";
  std::vector<std::byte> memory(*bytes_of(Kind::queue, 2, 16, form.size()) + kCacheLine);
  auto* const at = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
  (void)create(at, Kind::queue, 2, 16, 7, std::as_bytes(std::span(form)));
  const uint64_t bytes = *bytes_of(Kind::queue, 2, 16, form.size());
  BOOST_TEST(open(at, bytes).has_value());
  BOOST_TEST(!open(at, bytes - 1).has_value());
  BOOST_TEST(std::string_view(reinterpret_cast<char*>(at) + bytes - form.size(), form.size()) == form);
  BOOST_TEST(!bytes_of(Kind::queue, 2, 16, kFormBytesMax + 1).has_value());
  BOOST_TEST(!bytes_of(Kind::lock, 0, 0, 1).has_value());
}

// ---- locks and semaphores ------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_lock_taken_from_the_dead_in_vain_is_theirs_again) {
  TestWorld world;
  const Shared shared(Kind::lock);
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).outcome == Outcome::done);
  world.dead = {5};
  BOOST_TEST(run(shared, world, Op::take, 0, look).outcome == Outcome::died);
  const Done taken = run(shared, world, Op::take, 1);
  BOOST_TEST(taken.outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::release, taken.call.value2).outcome == Outcome::done);
  const Done next = run(shared, world, Op::take);
  BOOST_TEST(next.outcome == Outcome::died);
  BOOST_TEST(next.call.value == 5U);
  BOOST_TEST(run(shared, world, Op::take, 1).call.value == 1U);
  BOOST_TEST(run(shared, world, Op::release).outcome == Outcome::done);
  BOOST_TEST(run(shared, world, Op::take).outcome == Outcome::done);
}

BOOST_AUTO_TEST_CASE(test_process_with_the_most_permits_gets_no_more) {
  TestWorld world;
  const Shared shared(Kind::semaphore, uint64_t{1} << 40, 4);
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).outcome == Outcome::done);
  Seat& seat = seats_of(shared.object)[0];
  seat.permits.store((seat.permits.load() & kTagMask) | kTakenMask);
  BOOST_TEST(run(shared, world, Op::take, 0, as(5)).outcome == Outcome::no_seat);
  BOOST_TEST((seat.permits.load() & kIdleMask) == 0U);
  BOOST_TEST(run(shared, world, Op::take, 0, as(6)).outcome == Outcome::done);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
