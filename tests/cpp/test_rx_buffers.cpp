// tests/cpp/test_rx_buffers.cpp: memory of unexpected messages: where they lie, and how many buffers there are.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "nic/rx_buffers.hpp"

namespace {

using namespace weft::nic;
using weft::kCacheLine;

constexpr size_t kBytes = 4096;

RxBuffers::Config sized(uint32_t posted_min, uint32_t cached_max = 0, uint32_t count_max = 1000) {
  return {kBytes, posted_min, cached_max, count_max};
}

BOOST_AUTO_TEST_SUITE(rx_buffers)

BOOST_AUTO_TEST_CASE(test_no_buffer_is_mapped_before_the_first_message) {
  RxBuffers buffers(sized(3));
  BOOST_TEST(buffers.statistics().buffers == 0U);
  BOOST_TEST(buffers.take(1).memory != nullptr);
  BOOST_TEST(buffers.statistics().buffers == 3U);
  BOOST_TEST(buffers.statistics().posted == 3U);
}

BOOST_AUTO_TEST_CASE(test_messages_lie_one_behind_the_other) {
  RxBuffers buffers(sized(1));
  const auto a = buffers.take(1), b = buffers.take(65), c = buffers.take(0), d = buffers.take(64);
  BOOST_TEST(b.memory == a.memory + kCacheLine);
  BOOST_TEST(c.memory == b.memory + 2 * kCacheLine);
  BOOST_TEST(d.memory == c.memory);
  BOOST_TEST(buffers.statistics().messages == 4U);
}

BOOST_AUTO_TEST_CASE(test_number_of_buffers_grows_with_the_messages) {
  RxBuffers buffers(sized(2));
  for (int i = 0; i < 10; ++i) BOOST_TEST(buffers.take(kBytes).memory != nullptr);
  const auto s = buffers.statistics();
  BOOST_TEST(s.buffers >= 10U);
  BOOST_TEST(s.buffers <= 11U);
  BOOST_TEST(s.messages == 10U);
}

BOOST_AUTO_TEST_CASE(test_larger_buffers_take_more_messages) {
  for (const size_t times : {1, 4}) {
    RxBuffers buffers({times * kBytes, 1, 0, 1});
    size_t taken = 0;
    while (buffers.take(512).memory != nullptr) ++taken;
    BOOST_TEST(taken == times * kBytes / 512);
  }
}

BOOST_AUTO_TEST_CASE(test_message_longer_than_a_buffer_has_no_room) {
  RxBuffers buffers(sized(2));
  BOOST_TEST(buffers.take(kBytes + 1).memory == nullptr);
  BOOST_TEST(buffers.take(~size_t{0}).memory == nullptr);
  BOOST_TEST(buffers.take(kBytes).memory != nullptr);
}

BOOST_AUTO_TEST_CASE(test_limit_of_buffers_is_an_answer_and_ends_with_a_message) {
  RxBuffers buffers(sized(1, 0, 2));
  const auto a = buffers.take(kBytes), b = buffers.take(kBytes);
  BOOST_TEST(b.memory != nullptr);
  BOOST_TEST(buffers.take(1).memory == nullptr);
  const auto promised = buffers.take(1, true);
  BOOST_TEST(promised.memory != nullptr);
  BOOST_TEST(buffers.statistics().buffers == 3U);
  BOOST_TEST(buffers.take(kBytes).memory == nullptr);
  buffers.give(a.buffer);
  BOOST_TEST(buffers.take(kBytes).memory != nullptr);
}

BOOST_AUTO_TEST_CASE(test_drained_current_buffer_begins_again) {
  RxBuffers buffers(sized(1));
  const auto a = buffers.take(100);
  buffers.give(a.buffer);
  BOOST_TEST(buffers.take(100).memory == a.memory);
}

std::vector<uint32_t> burst(RxBuffers& buffers, int count) {
  std::vector<uint32_t> taken;
  for (int i = 0; i < count; ++i) {
    const auto room = buffers.take(kBytes);
    BOOST_REQUIRE(room.memory != nullptr);
    taken.push_back(room.buffer);
  }
  return taken;
}

BOOST_AUTO_TEST_CASE(test_all_buffers_stay_with_a_cache_limit_of_zero) {
  RxBuffers buffers(sized(2, 0));
  for (const uint32_t b : burst(buffers, 20)) buffers.give(b);
  const uint32_t before = buffers.statistics().buffers;
  BOOST_TEST(before >= 20U);
  BOOST_TEST(buffers.statistics().posted == before);
  for (const uint32_t b : burst(buffers, 20)) buffers.give(b);
  BOOST_TEST(buffers.statistics().buffers == before);
}

BOOST_AUTO_TEST_CASE(test_buffers_shrink_to_the_cache_limit_after_a_burst) {
  RxBuffers buffers(sized(2, 6));
  for (int round = 0; round < 3; ++round) {
    for (const uint32_t b : burst(buffers, 20)) buffers.give(b);
    BOOST_TEST(buffers.statistics().buffers == 6U);
    BOOST_TEST(buffers.statistics().posted == 6U);
    BOOST_TEST(buffers.statistics().messages == 0U);
  }
  BOOST_TEST(buffers.statistics().buffers_most >= 20U);
}

BOOST_AUTO_TEST_CASE(test_posted_minimum_wins_over_the_cache_limit) {
  RxBuffers buffers(sized(3, 1));
  for (const uint32_t b : burst(buffers, 20)) buffers.give(b);
  BOOST_TEST(buffers.statistics().posted == 3U);
  BOOST_TEST(buffers.statistics().buffers == 3U);
}

BOOST_AUTO_TEST_CASE(test_messages_never_overlap) {
  RxBuffers buffers(sized(2, 3));
  struct Held {
    RxBuffers::Room room;
    std::vector<std::byte> bytes;
  };
  std::vector<Held> held;
  std::mt19937_64 random(7);
  for (int step = 0; step < 20'000; ++step) {
    if (held.size() < 40 && random() % 2 == 0) {
      std::vector<std::byte> bytes(random() % 700, static_cast<std::byte>(random()));
      const auto room = buffers.take(bytes.size());
      if (room.memory == nullptr) BOOST_FAIL("no room");
      std::copy(bytes.begin(), bytes.end(), room.memory);
      held.push_back({room, std::move(bytes)});
    } else if (!held.empty()) {
      const size_t i = random() % held.size();
      if (!std::equal(held[i].bytes.begin(), held[i].bytes.end(), held[i].room.memory)) BOOST_FAIL("overwritten");
      buffers.give(held[i].room.buffer);
      std::swap(held[i], held.back());
      held.pop_back();
    }
  }
  BOOST_TEST(buffers.statistics().messages == held.size());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
