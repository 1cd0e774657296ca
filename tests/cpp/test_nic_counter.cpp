// tests/cpp/test_nic_counter.cpp: counters: their limits, the word that the NIC writes back, the page for plain stores.
#include <atomic>
#include <thread>

#include "fabric.hpp"
#include "mem/guard.hpp"
#include "nic/client_memory.hpp"
#include "nic/counter.hpp"

namespace {

using namespace weft;
using namespace weft::test;
using nic::ClientMemory;
using nic::Counter;
using nic::CounterPage;
using nic::writeback::kWritten;
using nic::writeback::word;

const nic::CounterLimits kCxi{nic::writeback::kValueMax, nic::writeback::kErrorsMax};

struct Written {
  Written() : counter(std::make_shared<Counter>(kCxi)) {
    counter->set_memory(std::make_unique<ClientMemory>(counter.get(), nullptr));
    memory().set_buffer(&buffer, false);
  }
  ~Written() { memory().set_buffer(nullptr, false); }
  [[nodiscard]] ClientMemory& memory() const { return *counter->memory(); }
  std::shared_ptr<Counter> counter;
  uint64_t buffer = 0;
};

// A client's store.
void store(const CounterPage& page, size_t offset, uint64_t value) {
  __atomic_store_n(reinterpret_cast<uint64_t*>(page.data() + offset), value, __ATOMIC_RELAXED);
}

BOOST_AUTO_TEST_SUITE(nic_counter)

BOOST_AUTO_TEST_CASE(test_counts_stand_still_at_their_largest_values) {
  Counter counter(kCxi);
  counter.add(kCxi.value_max - 1);
  counter.add(5);
  BOOST_TEST(counter.value() == kCxi.value_max);
  counter.add(1);
  BOOST_TEST(counter.value() == kCxi.value_max);
  counter.add_errors(100);
  counter.add_errors(100);
  BOOST_TEST(counter.errors() == 127U);
  Counter wide;
  wide.add(~uint64_t{0});
  wide.add(2);
  BOOST_TEST(wide.value() == ~uint64_t{0});
}

BOOST_AUTO_TEST_CASE(test_counter_word_has_value_failures_and_written_bit) {
  BOOST_TEST(word(5, 3) == ((uint64_t{1} << 63) | (uint64_t{3} << 48) | 5));
  BOOST_TEST(nic::writeback::value_of(word(kCxi.value_max, 127)) == kCxi.value_max);
  BOOST_TEST(nic::writeback::errors_of(word(kCxi.value_max, 127)) == 127U);
}

BOOST_AUTO_TEST_CASE(test_counter_write_back_only_at_documented_moments) {
  Written w;
  BOOST_TEST(w.buffer == word(0, 0));  // written when the buffer is set
  w.counter->add(3);
  BOOST_TEST(w.buffer == word(0, 0));
  BOOST_TEST(w.memory().read(false) == 3U);
  BOOST_TEST(w.buffer == word(3, 0));  // written at a read
  w.counter->set(9);
  BOOST_TEST(w.buffer == word(3, 0));
  w.counter->add_errors(1);
  BOOST_TEST(w.buffer == word(9, 1));  // written when the failures leave 0
  w.counter->add_errors(1);
  BOOST_TEST(w.buffer == word(9, 1));
  w.counter->set(0);
  BOOST_TEST(w.buffer == word(0, 2));  // written when set to 0
  w.counter->set_errors(0);
  BOOST_TEST(w.buffer == word(0, 0));
}

BOOST_AUTO_TEST_CASE(test_counter_is_written_back_at_the_requested_value) {
  Written w;
  w.memory().write_back_at(4);
  w.memory().write_back_at(6);
  w.counter->add(3);
  BOOST_TEST(w.buffer == word(0, 0));
  w.counter->add(1);
  BOOST_TEST(w.buffer == word(4, 0));
  w.counter->add(1);
  BOOST_TEST(w.buffer == word(4, 0));
  w.counter->add(5);
  BOOST_TEST(w.buffer == word(10, 0));
  w.counter->add(1);
  BOOST_TEST(w.buffer == word(10, 0));  // once each
  w.memory().write_back_at(11);         // the value has been reached
  BOOST_TEST(w.buffer == word(11, 0));
}

BOOST_AUTO_TEST_CASE(test_old_buffer_is_not_written_any_more) {
  Written w;
  uint64_t other = 0;
  w.memory().set_buffer(&other, false);
  w.buffer = 0;
  w.counter->add(2);
  (void)w.memory().read(false);
  BOOST_TEST(w.buffer == 0U);
  BOOST_TEST(other == word(2, 0));
  w.memory().set_buffer(&w.buffer, false);
}

BOOST_AUTO_TEST_CASE(test_counter_cached_read_returns_the_last_write_back) {
  Written w;
  w.memory().cached = true;
  w.counter->add(7);
  BOOST_TEST(w.memory().read(false) == 0U);
  BOOST_TEST(w.buffer == word(7, 0));
  BOOST_TEST(w.memory().read(false) == 7U);
}

BOOST_AUTO_TEST_CASE(test_buffer_without_memory_is_told_and_ends_nothing) {
  mem::keep_fault_handler();  // the test framework has installed its own
  Written w;
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  w.memory().set_buffer(page, false);
  BOOST_TEST(!w.memory().take_fault());
  ::munmap(page, 4096);
  w.counter->add(1);
  BOOST_TEST(w.memory().read(false) == 1U);
  BOOST_TEST(w.memory().take_fault());
  BOOST_TEST(!w.memory().take_fault());
}

BOOST_AUTO_TEST_CASE(test_stores_to_the_page_add_and_reset) {
  Written w;
  const auto page = w.memory().page();
  store(*page, CounterPage::kAddValue, 5);
  store(*page, CounterPage::kAddErrors, 2);
  BOOST_TEST(w.memory().read(false) == 5U);
  BOOST_TEST(w.memory().read(true) == 2U);
  BOOST_TEST(!w.memory().look());  // each store counts once
  BOOST_TEST(w.counter->value() == 5U);
  store(*page, CounterPage::kResetValue, 0);
  BOOST_TEST(w.memory().look());
  BOOST_TEST(w.counter->value() == 0U);
  BOOST_TEST(w.buffer == word(0, 2));  // the NIC writes a reset back
  store(*page, CounterPage::kResetErrors, 0);
  BOOST_TEST(w.memory().look());
  BOOST_TEST(w.buffer == word(0, 0));
  w.counter->add(1);
  store(*page, CounterPage::kResetValue, 8);  // only 0 resets
  BOOST_TEST(!w.memory().look());
  BOOST_TEST(w.counter->value() == 1U);
}

BOOST_AUTO_TEST_CASE(test_counter_page_keeps_the_last_of_two_stores) {
  Written w;
  const auto page = w.memory().page();
  store(*page, CounterPage::kAddValue, 5);
  store(*page, CounterPage::kAddValue, 6);
  BOOST_TEST(w.memory().look());
  BOOST_TEST(w.counter->value() == 6U);
  for (int i = 0; i < 10; ++i) w.memory().store(CounterPage::kAddValue, 5);
  BOOST_TEST(w.counter->value() == 56U);
}

BOOST_AUTO_TEST_CASE(test_one_look_takes_resets_before_sums) {
  Written w;
  const auto page = w.memory().page();
  w.counter->add(50);
  store(*page, CounterPage::kAddValue, 3);
  store(*page, CounterPage::kResetValue, 0);
  BOOST_TEST(w.memory().look());
  BOOST_TEST(w.counter->value() == 3U);
}

BOOST_AUTO_TEST_CASE(test_progress_and_the_engine_look_at_pages) {
  for (const bool manual : {false, true}) {
    Pair pair(pair_of(Path::direct, manual));
    Written w;
    const auto page = w.memory().page();
    pair.a->nic().watch(w.counter);
    store(*page, CounterPage::kAddValue, 4);
    BOOST_TEST(poll_until([&] { return w.counter->value() == 4; },
                          [&] {
                            if (manual) pair.a->nic().progress();
                          }));
    pair.a->nic().unwatch(w.counter.get());
    store(*page, CounterPage::kAddValue, 4);
    pair.a->nic().progress();
    usleep(5'000);
    BOOST_TEST(w.counter->value() == 4U);
  }
}

BOOST_AUTO_TEST_CASE(test_threads_that_add_store_and_read_lose_nothing) {
  Written w;
  constexpr int kRounds = 20'000;
  w.memory().write_back_at(3 * kRounds);
  std::thread adds([&] {
    for (int i = 0; i < kRounds; ++i) w.counter->add(1);
  });
  std::thread stores([&] {
    for (int i = 0; i < kRounds; ++i) w.memory().store(CounterPage::kAddValue, 2);
  });
  uint64_t before = 0;
  bool grows = true;
  while (before < 3 * kRounds) {
    const uint64_t now = w.memory().read(false);
    grows = grows && now >= before;
    before = now;
    sched_yield();
  }
  adds.join();
  stores.join();
  BOOST_TEST(grows);
  BOOST_TEST(w.counter->value() == uint64_t{3 * kRounds});
  BOOST_TEST(w.buffer == word(3 * kRounds, 0));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
