// tests/cpp/test_routes.cpp: numbers of NICs of other hosts: a peer cannot make the table grow without bound.
#include <boost/test/unit_test.hpp>

#include "link/routes.hpp"
#include "wire/address.hpp"

using namespace weft;

BOOST_AUTO_TEST_SUITE(routes)

BOOST_AUTO_TEST_CASE(test_peer_has_so_many_numbers_and_no_more) {
  link::Routes routes;
  const auto host = link::parse_host("192.0.2.77", 7000);
  const uint32_t first = routes.told_number({host, 0});
  BOOST_TEST(first >= wire::kRemoteNic);
  for (uint32_t nic = 1; nic < link::Routes::kToldNicsMax; ++nic) {
    BOOST_TEST_REQUIRE(routes.told_number({host, nic}) != wire::kUnknownNic);
  }
  BOOST_TEST(routes.told_number({host, link::Routes::kToldNicsMax}) == wire::kUnknownNic);
  // Numbers that the peer announced earlier stay valid; other peers, and this process itself, are not affected.
  BOOST_TEST(routes.told_number({host, 0}) == first);
  BOOST_TEST(routes.told_number({link::parse_host("192.0.2.78", 7000), 5}) != wire::kUnknownNic);
  const uint32_t ours = routes.number({host, link::Routes::kToldNicsMax});
  BOOST_TEST(ours != wire::kUnknownNic);
  BOOST_TEST(routes.told_number({host, link::Routes::kToldNicsMax}) == ours);
}

BOOST_AUTO_TEST_CASE(test_number_of_a_large_nic_is_traced_back_to_it) {
  link::Routes routes;
  const link::Route route{link::parse_host("192.0.2.79", 7000), 0x40000880};
  const auto found = routes.find(routes.told_number(route));
  BOOST_TEST_REQUIRE(found.has_value());
  BOOST_TEST((*found == route));
}

BOOST_AUTO_TEST_CASE(test_two_tables_number_their_routes_apart) {
  link::Routes one, two;
  const link::Route a{link::parse_host("192.0.2.79", 7000), 1}, b{link::parse_host("192.0.2.80", 7000), 1};
  BOOST_TEST(one.number(a) == two.number(b));
  BOOST_TEST((one.find(one.number(a)) == a));
  BOOST_TEST((two.find(one.number(a)) == b));
  BOOST_TEST(!two.find(one.number(b)).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
