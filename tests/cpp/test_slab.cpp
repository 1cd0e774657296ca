// tests/cpp/test_slab.cpp: memory for small objects of one size.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/slab.hpp"

namespace {

using weft::Slab;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kPlain = true;  // each slot is an allocation of its own
#else
constexpr bool kPlain = false;
#endif

}  // namespace

BOOST_AUTO_TEST_SUITE(slab)

BOOST_AUTO_TEST_CASE(test_slots_do_not_overlap_whatever_the_order_of_giving) {
  constexpr size_t kBytes = 200;
  Slab slab(kBytes);
  std::mt19937 random(5);
  std::vector<std::pair<unsigned char*, unsigned char>> taken;
  for (int step = 0; step < 60000; ++step) {
    if (taken.empty() || random() % 5 < 3) {
      auto* slot = static_cast<unsigned char*>(slab.take());
      const auto mark = static_cast<unsigned char>(random());
      std::memset(slot, mark, kBytes);
      taken.emplace_back(slot, mark);
    } else {
      std::swap(taken[random() % taken.size()], taken.back());
      const auto [slot, mark] = taken.back();
      taken.pop_back();
      BOOST_REQUIRE(std::all_of(slot, slot + kBytes, [&](unsigned char c) { return c == mark; }));
      slab.give(slot);
    }
    if (step % 997 == 0) slab.check();
  }
  if (!kPlain) BOOST_TEST(slab.blocks() > 1U);
  for (const auto& [slot, mark] : taken) slab.give(slot);
}

BOOST_AUTO_TEST_CASE(test_blocks_without_slots_go_back_to_the_system) {
  if (kPlain) return;
  Slab slab(1000);
  std::vector<void*> taken;
  for (size_t i = 0; i < 5 * slab.slots_per_block(); ++i) taken.push_back(slab.take());
  BOOST_TEST(slab.blocks() == 5U);
  BOOST_TEST(std::set<void*>(taken.begin(), taken.end()).size() == taken.size());
  for (void* slot : taken) slab.give(slot);
  BOOST_TEST(slab.blocks() <= 2U);  // the one in use, and a spare one
  BOOST_TEST(slab.take() != nullptr);
  // A slab with a taken slot is not destroyed in programs; here the slot goes with its block.
}

BOOST_AUTO_TEST_CASE(test_one_block_without_slots_is_kept_beside_those_in_use) {
  if (kPlain) return;
  Slab slab(1000);
  const size_t each = slab.slots_per_block();
  std::vector<void*> taken;
  for (size_t i = 0; i < 3 * each; ++i) taken.push_back(slab.take());
  const auto give = [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) slab.give(taken[i]);
  };
  give(2 * each, 3 * each);
  give(each, each + 1);
  give(0, each);
  BOOST_TEST(slab.blocks() == 2U);
  give(each + 1, 2 * each);
}

BOOST_AUTO_TEST_CASE(test_threads_take_and_give_at_once) {
  Slab slab(64);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::vector<uint64_t*> mine;
      for (uint64_t i = 0; i < 20000; ++i) {
        auto* slot = static_cast<uint64_t*>(slab.take());
        *slot = static_cast<uint64_t>(t) << 32 | i;
        mine.push_back(slot);
        if (mine.size() < 50) continue;
        for (uint64_t* one : mine) {
          if (*one >> 32 != static_cast<uint64_t>(t)) ++wrong;
          slab.give(one);
        }
        mine.clear();
      }
      for (uint64_t* one : mine) slab.give(one);
    });
  }
  for (auto& thread : threads) thread.join();
  BOOST_TEST(wrong.load() == 0);
}

#if !defined(__SANITIZE_THREAD__)  // whose run-time library does not support threads in a child of a fork
BOOST_AUTO_TEST_CASE(test_child_of_a_fork_finds_the_slab_unlocked) {
  Slab slab(64);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load(std::memory_order_relaxed)) slab.give(slab.take());
  });
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(10);  // a lock that stays held ends the child
      slab.give(slab.take());
      ::_exit(0);
    }
    int status = 0;
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    BOOST_TEST(status == 0);
  }
  stop.store(true);
  busy.join();
}
#endif

BOOST_AUTO_TEST_SUITE_END()
