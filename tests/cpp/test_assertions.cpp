// tests/cpp/test_assertions.cpp: in each room a wrong state, or a wrong call, ends a build with assertions.
#include "array/place.hpp"
#include "call/quota.hpp"
#include "death.hpp"
#include "host/pacer.hpp"
#include "ofi/slots.hpp"
#include "provider/objects.hpp"

#if !defined(WEFT_TEST_NO_FORK)

namespace {

using namespace weft;
using test::aborts_saying;

BOOST_AUTO_TEST_SUITE(assertions)

BOOST_AUTO_TEST_CASE(selection_beyond_the_dimensions_ends_the_process) {
  const int64_t shape[] = {3}, strides[] = {8};
  array::Selection found;
  BOOST_TEST(aborts_saying(
      [&] {
        array::Selecting selecting({shape, strides}, &found);
        selecting.integer(0);
        selecting.integer(0);
      },
      "the item has a dimension"));
  BOOST_TEST(aborts_saying([&] { array::Selecting({shape, {strides, 0}}, &found); }, "each dimension has a stride"));
  BOOST_TEST(aborts_saying(
      [] {
        array::Picked picked;
        (void)array::pick_row(array::Place{}, 0, &picked);
      },
      "each t[i] is one piece"));
}

BOOST_AUTO_TEST_CASE(slot_that_is_given_back_twice_or_with_owners_ends_the_process) {
  BOOST_TEST(aborts_saying(
      [] {
        ofi::Slots slots;
        ofi::Slot* const slot = slots.take(nullptr);
        slots.give(slot);
        slots.give(slot);
      },
      "a slot is given back once"));
  BOOST_TEST(aborts_saying(
      [] {
        ofi::Slots slots;
        ofi::Slot* const slot = slots.take(nullptr);
        slot->hold(1);
        slots.give(slot);
      },
      "its owners have been taken out"));
}

BOOST_AUTO_TEST_CASE(pace_that_no_mask_gives_ends_the_process) {
  BOOST_TEST(aborts_saying([] { host::PollPacer(4, 63, 63, 1); }, "a power of two less one"));
  BOOST_TEST(aborts_saying([] { host::PollPacer(63, 3, 63, 1); }, "a busy core yields more often"));
}

BOOST_AUTO_TEST_CASE(resources_that_nobody_took_end_the_process) {
  BOOST_TEST(aborts_saying([] { (void)call::Stock({"les"})[1]; }, "a kind of this stock"));
  BOOST_TEST(aborts_saying([] { (void)call::Sequence(0, 64); }, "the numbers fit"));
  BOOST_TEST(aborts_saying([] { (void)call::RegionQuota{}.make_key(call::RegionQuota::Took::low, 1); },
                           "the provider makes the keys"));
  BOOST_TEST(aborts_saying([] { (void)call::RegionQuota{}.take(call::RegionQuota::Took::low); },
                           "a region takes something of a service"));
}

BOOST_AUTO_TEST_CASE(struct_of_another_kind_ends_the_process) {
  BOOST_TEST(aborts_saying(
      [] {
        provider::CqShell cq;
        cq.fid.fid.fclass = provider::kClassCntr;
        (void)provider::of(&cq.fid);
      },
      "the struct is one of the call's kind"));
  BOOST_TEST(aborts_saying(
      [] {
        provider::Record record;
        record.add(std::string(256, 'x'), uint64_t{1});
      },
      "a name's length is a byte"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

#endif
