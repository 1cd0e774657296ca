// tests/cpp/test_nic_reorder.cpp: operations that overtake each other: which may pass which, and none is lost.
#include "fabric.hpp"
#include "nic/reorder.hpp"

namespace {

using namespace weft;
using namespace weft::test;
using nic::Decisions;
using nic::must_follow;
using nic::OpClass;
using nic::Ordered;
using nic::ReorderConfig;
namespace order = nic::order;

Ordered of(OpClass cls, bool reads, bool writes, uint64_t bytes = 8) {
  Ordered o;
  o.cls = cls;
  o.reads = reads;
  o.writes = writes;
  o.bytes = bytes;
  return o;
}
const Ordered kWrite = of(OpClass::write, false, true), kRead = of(OpClass::read, true, false),
              kUpdate = of(OpClass::atomic, false, true), kFetch = of(OpClass::atomic, true, false),
              kAdd = of(OpClass::atomic, true, true);

BOOST_AUTO_TEST_SUITE(nic_reorder)

BOOST_AUTO_TEST_CASE(test_order_bits_decide_what_follows) {
  const ReorderConfig any;
  BOOST_TEST(!must_follow(kWrite, kWrite, 0, any));
  BOOST_TEST(must_follow(kWrite, kWrite, order::kRmaWaw, any));
  BOOST_TEST(!must_follow(kWrite, kWrite, order::kAtomicWaw, any));
  BOOST_TEST(!must_follow(kWrite, kUpdate, order::kRmaWaw | order::kAtomicWaw, any));
  BOOST_TEST(must_follow(kWrite, kUpdate, order::kWaw, any));
  BOOST_TEST(must_follow(kFetch, kWrite, order::kWaw, any));
  BOOST_TEST(!must_follow(kFetch, kFetch, order::kWaw, any));
  BOOST_TEST(!must_follow(kRead, kWrite, order::kWaw, any));
  BOOST_TEST(must_follow(kRead, kWrite, order::kRmaWar, any));
  BOOST_TEST(must_follow(kUpdate, kFetch, order::kAtomicRaw, any));
  BOOST_TEST(!must_follow(kUpdate, kFetch, order::kAtomicWar, any));
  BOOST_TEST(must_follow(kFetch, kUpdate, order::kAtomicWar, any));
  for (const uint64_t bit : {order::kAtomicRaw, order::kAtomicWar, order::kAtomicWaw, order::kAtomicRar}) {
    BOOST_TEST(must_follow(kAdd, kAdd, bit, any), "an atomic that reads and writes is both");
  }
}

BOOST_AUTO_TEST_CASE(test_what_no_order_ties) {
  ReorderConfig limited;
  limited.waw_bytes = 64;
  BOOST_TEST(must_follow(kWrite, of(OpClass::write, false, true, 64), order::kRmaWaw, limited));
  BOOST_TEST(!must_follow(kWrite, of(OpClass::write, false, true, 65), order::kRmaWaw, limited));
  const ReorderConfig any;
  for (const auto change :
       {+[](Ordered& o) { o.lane = 1; }, +[](Ordered& o) { o.unordered = true; }, +[](Ordered& o) { o.pcie = true; }}) {
    Ordered other = kUpdate;
    change(other);
    BOOST_TEST(!must_follow(kUpdate, other, ~uint64_t{0}, any));
    BOOST_TEST(!must_follow(other, kUpdate, ~uint64_t{0}, any));
  }
}

BOOST_AUTO_TEST_CASE(test_ordered_write_places_its_last_packet_last) {
  Decisions r({true, 5});
  bool gap = false;
  for (int i = 0; i < 200; ++i) {
    const auto left = r.late_packets(8 * nic::kPacketBytes, true);
    BOOST_TEST(left.size() == 8U);
    BOOST_TEST(bool(left.back()));
    gap = gap || (left[0] && !left[1]);
    const auto strict = r.late_packets(8 * nic::kPacketBytes - 1, false);
    BOOST_TEST(strict.size() == 8U);
    BOOST_TEST(std::ranges::is_sorted(strict));
    BOOST_TEST(bool(strict.back()));
  }
  BOOST_TEST(gap);
}

BOOST_AUTO_TEST_CASE(test_nothing_is_lost_on_any_path) {
  for (const Path path : kPaths) {
    for (const uint64_t seed : {1, 2, 3}) {
      BOOST_TEST_CONTEXT("path " << path << ", seed " << seed) {
        PairConfig config = pair_of(path);
        config.a.ep.reorder = {true, seed};
        Pair pair(config);
        constexpr size_t kCount = 48, kBytes = 300;
        const auto data = pattern(kCount * kBytes, seed);
        size_t wanted = 0;
        for (size_t i = 0; i < kCount; ++i) {
          Access write = write_of(pair.dest, data.data() + i * kBytes, kBytes, i * kBytes, pair.key(), i + 1);
          write.inject = i % 3 == 0 && path != Path::tcp;
          if (i % 7 == 0) write.flags = flag::kFence;
          BOOST_REQUIRE(post(*pair.a->ep, write).refusal == Refusal::none);
          if (!write.inject) ++wanted;
        }
        for (size_t i = 0; i < wanted; ++i) BOOST_TEST(pair.wait().error == 0);
        Access last = write_of(pair.dest, data.data(), 8, 0, pair.key());
        last.flags = flag::kFence | flag::kDeliveryComplete;
        BOOST_TEST(pair.run(last).error == 0);
        BOOST_TEST((pair.look(0, data.size()) == data));
        BOOST_TEST(pair.a->ep->outstanding() == 0U);
        BOOST_TEST(pair.a->nic().statistics().waiting_ops == 0U);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_canceled_and_closed_endpoints_leave_nothing_behind) {
  PairConfig config = pair_of(Path::direct, true);
  config.a.ep.reorder = {true, 11};
  Pair pair(config);
  BOOST_TEST(pair.write(pattern(8).data(), 8, 0).error == 0);
  const auto data = pattern(16 * 8);
  for (size_t i = 0; i < 16; ++i) {
    BOOST_REQUIRE(post(*pair.a->ep, write_of(pair.dest, data.data() + 8 * i, 8, 8 * i, pair.key(), 100 + i)).refusal ==
                  Refusal::none);
  }
  size_t canceled = 0;
  for (size_t i = 8; i < 16; ++i) canceled += pair.a->ep->cancel(100 + i);
  BOOST_TEST(canceled > 0U);
  for (size_t i = 0; i < 16; ++i) (void)pair.wait();
  pair.a->ep->close();
  BOOST_TEST(pair.a->nic().statistics().waiting_ops == 0U);
  const auto seen = pair.look(0, 64);
  BOOST_TEST((std::vector(data.begin(), data.begin() + 64) == seen));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
