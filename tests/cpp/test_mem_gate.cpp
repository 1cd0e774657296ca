// tests/cpp/test_mem_gate.cpp: updates of elements and of blocks take turns, whatever the other side does.
#include "mem/gate.hpp"

#include <boost/test/unit_test.hpp>

#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "mem/segment.hpp"
#include "nic/atomics.hpp"

namespace {

using namespace weft;
using namespace weft::mem;

// The last page of a segment, as a process maps it.
struct Page {
  Page() : gate(set.gate((set.allocate(1), 0))) {}
  SegmentSet set;
  Gate* gate;
};

BOOST_AUTO_TEST_SUITE(mem_gate)

BOOST_AUTO_TEST_CASE(test_updater_has_one_slot_until_it_is_forgotten) {
  Page page;
  BOOST_REQUIRE(page.gate != nullptr);
  const Updater a = updater_of(1, 2, 0), b = updater_of(1, 2, 1), c = updater_of(3, 4, 0);
  Gate::Slot* const slot = page.gate->slot_of(a);
  BOOST_REQUIRE(slot != nullptr);
  BOOST_TEST(page.gate->slot_of(a) == slot);
  BOOST_TEST(page.gate->slot_of(b) != slot);
  BOOST_TEST(&slot->gate() == page.gate);
  Gate::Slot* const other = page.gate->slot_of(c);
  page.gate->forget(updater_of(1, 2, 7));
  BOOST_TEST(slot->updater.load() == 0U);
  BOOST_TEST(other->updater.load() == c);
}

BOOST_AUTO_TEST_CASE(test_updater_beyond_the_last_slot_gets_none) {
  Page page;
  std::set<Gate::Slot*> found;
  for (uint32_t i = 0; i < Gate::kSlotCount; ++i) found.insert(page.gate->slot_of(updater_of(i + 1, 0, 0)));
  BOOST_TEST(found.size() == Gate::kSlotCount);
  BOOST_TEST(!found.contains(nullptr));
  BOOST_TEST(page.gate->slot_of(updater_of(1000, 0, 0)) == nullptr);
  page.gate->forget(updater_of(7, 0, 0));
  BOOST_TEST(page.gate->slot_of(updater_of(1000, 0, 0)) != nullptr);
}

BOOST_AUTO_TEST_CASE(test_updaters_of_different_nics_differ) {
  std::set<Updater> found;
  for (uint64_t nic = 0; nic < 1000; ++nic) {
    for (uint32_t domain : {0U, 1U, 255U, 0xffffU}) {
      const Updater one = updater_of(nic, nic * 7, domain);
      BOOST_REQUIRE(one != 0U);
      found.insert(one);
    }
  }
  BOOST_TEST(found.size() == 4000U);
}

BOOST_AUTO_TEST_CASE(test_elements_and_blocks_lose_no_update) {
  constexpr size_t kWords = 64;
  constexpr int kElementRounds = 20'000, kBlockRounds = 2'000;
  Page page;
  std::vector<uint64_t> words(kWords);
  std::vector<std::thread> threads;
  std::atomic<int> broken{0};
  for (uint32_t n = 0; n < 3; ++n) {
    threads.emplace_back([&, n] {
      Gate::Slot* const slot = page.gate->slot_of(updater_of(n + 1, 0, 0));
      for (int i = 0; i < kElementRounds; ++i) {
        const ElementTurn turn(slot);
        __atomic_fetch_add(&words[static_cast<size_t>(i) % kWords], 1, __ATOMIC_ACQ_REL);
      }
    });
  }
  for (uint32_t n = 0; n < 2; ++n) {
    threads.emplace_back([&, n] {
      for (int i = 0; i < kBlockRounds;) {
        BlockTurn turn(page.gate, updater_of(n + 10, 0, 0));
        if (!turn.taken()) continue;
        for (uint64_t& word : words) ++word;  // plain
        if (!turn.end()) ++broken;
        ++i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t sum = 0;
  for (const uint64_t word : words) sum += word;
  BOOST_TEST(sum == 3U * kElementRounds + 2U * kBlockRounds * kWords);
  BOOST_TEST(broken.load() == 0);
}

BOOST_AUTO_TEST_CASE(test_block_gives_up_where_an_element_is_never_done) {
  Page page;
  Gate::Slot* const stopped = page.gate->slot_of(updater_of(1, 0, 0));
  stopped->phase.store(Gate::updating);
  {
    const BlockTurn turn(page.gate, updater_of(2, 0, 0));
    BOOST_TEST(!turn.taken());
  }
  BOOST_TEST(page.gate->claim.load() == 0U);
  page.gate->forget(updater_of(1, 0, 0));  // the stopped process is killed
  const BlockTurn turn(page.gate, updater_of(2, 0, 0));
  BOOST_TEST(turn.taken());
}

BOOST_AUTO_TEST_CASE(test_block_gives_up_where_another_block_is_never_done) {
  Page page;
  page.gate->claim.store(updater_of(1, 0, 0));
  const BlockTurn turn(page.gate, updater_of(2, 0, 0));
  BOOST_TEST(!turn.taken());
  BOOST_TEST(page.gate->claim.load() == updater_of(1, 0, 0));
}

BOOST_AUTO_TEST_CASE(test_block_goes_on_beside_an_element_that_waits_for_ever) {
  Page page;
  page.gate->slot_of(updater_of(1, 0, 0))->phase.store(Gate::waiting);  // its process is stopped
  BlockTurn turn(page.gate, updater_of(2, 0, 0));
  BOOST_TEST(turn.taken());
  BOOST_TEST(turn.end());
}

BOOST_AUTO_TEST_CASE(test_element_goes_on_when_the_holder_of_the_claim_is_forgotten) {
  Page page;
  Gate::Slot* const slot = page.gate->slot_of(updater_of(1, 0, 0));
  page.gate->claim.store(updater_of(2, 0, 0));
  page.gate->forget(updater_of(3, 0, 0));  // another process
  BOOST_TEST(page.gate->claim.load() != 0U);
  std::thread thread([&] { const ElementTurn turn(slot); });
  page.gate->forget(updater_of(2, 0, 5));
  thread.join();
  BOOST_TEST(slot->phase.load() == Gate::idle);
}

BOOST_AUTO_TEST_CASE(test_stopped_block_finds_out_that_an_element_went_on) {
  Page page;
  Gate::Slot* const slot = page.gate->slot_of(updater_of(1, 0, 0));
  BlockTurn stopped(page.gate, updater_of(2, 0, 0));
  BOOST_REQUIRE(stopped.taken());
  {
    const ElementTurn turn(slot);
  }  // takes seconds
  BlockTurn next(page.gate, updater_of(3, 0, 0));
  BOOST_TEST(next.taken());
  BOOST_TEST(!stopped.end());
  BOOST_TEST(next.end());
}

BOOST_AUTO_TEST_CASE(test_element_goes_on_beside_a_process_that_claims_for_ever) {
  Page page;
  Gate::Slot* const slot = page.gate->slot_of(updater_of(1, 0, 0));
  std::atomic<bool> done{false};
  std::thread liar([&] {
    for (uint64_t n = 1; !done.load(); ++n) {
      page.gate->claims.store(n);
      page.gate->claim.store(updater_of(2, 0, 0));
      std::this_thread::yield();
    }
  });
  {
    const ElementTurn turn(slot);
  }  // takes seconds
  done.store(true);
  liar.join();
  BOOST_TEST(slot->phase.load() == Gate::idle);
}

BOOST_AUTO_TEST_CASE(test_memory_of_large_allocations_takes_turns) {
  SegmentSet set;
  std::byte* const small = set.allocate(kTurnsBytesMin - 4096);
  std::byte* const large = set.allocate(kTurnsBytesMin);
  BOOST_TEST(!set.takes_turns(small, 8));
  BOOST_TEST(!set.takes_turns(small, kTurnsBytesMin - 4096));
  BOOST_TEST(set.takes_turns(large, 8));
  BOOST_TEST(set.takes_turns(large + kTurnsBytesMin - 8, 8));
  BOOST_TEST(set.takes_turns(large - 8, 16));
  int outside = 0;
  BOOST_TEST(!set.takes_turns(&outside, sizeof(outside)));
  set.free(large);
  BOOST_TEST(!set.takes_turns(large, 8));
}

BOOST_AUTO_TEST_CASE(test_blocks_compute_what_atomics_compute) {
  using namespace weft::nic;
  constexpr size_t kCount = 67;
  alignas(64) std::byte one[kCount * 32], two[kCount * 32], operand[kCount * 32 + 1];
  uint64_t state = 12345;
  for (uint16_t type = 0; type < kDatatypeCount; ++type) {
    for (uint16_t op = 0; op < kAtomicOpCount; ++op) {
      const auto datatype = static_cast<Datatype>(type);
      const auto which = static_cast<AtomicOp>(op);
      if (!atomic_valid(datatype, which, AtomicFamily::base)) continue;
      for (int round = 0; round < 20; ++round) {
        for (std::byte* bytes : {one, operand}) {
          for (size_t i = 0; i < kCount * 32; ++i) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = static_cast<std::byte>(state >> 56);
          }
        }
        std::memcpy(two, one, sizeof(one));
        std::byte* const from = operand + round % 2;  // of any alignment
        const bool wide = has_wide_vectors() && round / 2 % 2 != 0;
        BOOST_REQUIRE(block_guarded(which, datatype, one, from, kCount - 1, wide));
        atomic_apply(which, datatype, two, from, nullptr, nullptr, kCount - 1);
        BOOST_TEST_INFO("datatype " << type << ", op " << op);
        BOOST_REQUIRE(std::memcmp(one, two, sizeof(one)) == 0);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
