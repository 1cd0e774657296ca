// tests/cpp/test_nic_route.cpp: the cached translation of a route that a key uses.
#include <boost/test/unit_test.hpp>

#include <set>

#include "nic/route.hpp"

using weft::nic::kTranslationCount;
using weft::nic::translation_of;

BOOST_AUTO_TEST_SUITE(nic_route)

BOOST_AUTO_TEST_CASE(test_four_keys_in_a_row_use_four_translations) {
  for (uint64_t first = 0; first < 4096; first += 4) {
    std::set<size_t> used;
    for (uint64_t key = first; key < first + 4; ++key) used.insert(translation_of(key));
    BOOST_TEST_REQUIRE(used.size() == kTranslationCount);
  }
}

BOOST_AUTO_TEST_CASE(test_keys_with_different_upper_bits_use_several_translations) {
  // Generations of a slot, offsets of cached keys, keys that an application makes of two numbers.
  for (unsigned shift = 2; shift <= 61; ++shift) {
    std::set<size_t> used;
    for (uint64_t i = 0; i < 8; ++i) used.insert(translation_of(i << shift | 1));
    BOOST_TEST_REQUIRE(used.size() >= 3U);
    BOOST_TEST_REQUIRE(*used.rbegin() < kTranslationCount);
  }
}

BOOST_AUTO_TEST_SUITE_END()
