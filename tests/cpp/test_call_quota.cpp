// tests/cpp/test_call_quota.cpp: the resources that regions take of their provider (call/quota.hpp).
#include "call/quota.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include <memory>
#include <set>

#include "host/host.hpp"

namespace {

using namespace weft;
using namespace weft::call;
using Took = RegionQuota::Took;

/// A quota of 8 resources of kind 0 and 100 of kind 1.
struct Owned {
  Owned() {
    fd = ::memfd_create("ledger", 0);
    BOOST_REQUIRE(fd >= 0);
    BOOST_REQUIRE(::ftruncate(fd, static_cast<off_t>(mem::Ledger::bytes())) == 0);
    ledger = std::make_unique<mem::Ledger>(fd, host::calendar());
    mem::Ledger::Counts totals{};
    totals[0] = 8;
    totals[1] = 100;
    ledger->begin(1, totals);
    quota.slot = ledger->open({1, 2, 3}, 0);
    const mem::Ledger::Limits limits[] = {{.service = 0, .most = totals, .reserved = {}}};
    ledger->set_limits(limits);
    quota.numbers = &numbers;
    quota.ledger = ledger.get();
    quota.taken = &stock;
    quota.sequence = &sequence;
    quota.low = {0, 3};
    quota.high = {1, 60};
  }
  ~Owned() { ::close(fd); }
  int fd = -1;
  std::unique_ptr<mem::Ledger> ledger;
  Numbers numbers{4};
  Stock stock{{"a", "b", "c", "d", "e", "f", "g", "h"}};
  Sequence sequence{5, 4};
  RegionQuota quota;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(call_quota)

BOOST_AUTO_TEST_CASE(test_the_lowest_free_number_is_taken_and_none_twice) {
  Numbers numbers(130);
  std::set<uint32_t> all;
  for (int i = 0; i < 130; ++i) all.insert(*numbers.take());
  BOOST_TEST(all.size() == 130U);
  BOOST_TEST(*all.rbegin() == 129U);
  BOOST_TEST(!numbers.take().has_value());
  BOOST_TEST(numbers.give(70));
  BOOST_TEST(numbers.give(3));
  BOOST_TEST(!numbers.give(3));
  BOOST_TEST(!numbers.give(130));
  BOOST_TEST(*numbers.take() == 3U);
  BOOST_TEST(*numbers.take() == 70U);
  BOOST_TEST(numbers.taken() == 130U);
}

BOOST_AUTO_TEST_CASE(test_a_stock_gives_all_or_nothing) {
  Stock stock({"x", "y"});
  BOOST_TEST(*stock.kind("y") == 1U);
  BOOST_TEST(!stock.kind("z").has_value());
  stock[1] = 3;
  BOOST_TEST(!stock.take(1, 4));
  BOOST_TEST(stock[1] == 3);
  BOOST_TEST(stock.take(1, 3));
  BOOST_TEST(stock[1] == 0);
}

BOOST_AUTO_TEST_CASE(test_regions_take_until_fewer_are_free_and_give_back) {
  Owned owned;
  RegionQuota& quota = owned.quota;
  BOOST_TEST(quota.take(Took::low));
  BOOST_TEST(quota.take(Took::low));
  BOOST_TEST(!quota.take(Took::low));  // 2 of 8 are left
  BOOST_TEST(quota.take(Took::high));
  BOOST_TEST(!quota.take(Took::high));
  BOOST_TEST(owned.stock[0] == 6);
  BOOST_TEST(owned.stock[1] == 60);
  quota.give(Took::low);
  BOOST_TEST(owned.stock[0] == 3);
  BOOST_TEST(quota.take(Took::low));
}

BOOST_AUTO_TEST_CASE(test_a_quota_whose_slot_was_given_back_takes_and_returns_nothing) {
  Owned owned;
  BOOST_TEST(owned.quota.take(Took::low));
  owned.quota.closed = true;
  BOOST_TEST(!owned.quota.take(Took::low));
  owned.quota.give(Took::low);
  BOOST_TEST(owned.stock[0] == 3);
}

BOOST_AUTO_TEST_CASE(test_keys_say_which_resources_a_region_has) {
  Owned owned;
  RegionQuota& quota = owned.quota;
  quota.below = 100;
  BOOST_TEST((quota.for_key(99) == Took::low));
  BOOST_TEST((quota.for_key(100) == Took::high));
  quota.base = uint64_t{1} << 63;
  quota.optimized_bit = uint64_t{1} << 62;
  quota.shift = 8;
  quota.numbers_below = 2;
  BOOST_TEST(quota.may_have_low(1));
  BOOST_TEST(!quota.may_have_low(2));
  BOOST_TEST(quota.make_key(Took::low, 1) == (quota.base | quota.optimized_bit | 6 << 8 | 1));
  BOOST_TEST(quota.make_key(Took::high, 3) == (quota.base | 7 << 8 | 3));
  Sequence wraps(15, 4);
  BOOST_TEST(wraps.next() == 0U);
}

BOOST_AUTO_TEST_SUITE_END()
