// tests/cpp/test_nic_order.cpp: fences, and the order of classes of operations.
#include <algorithm>
#include <numeric>
#include <thread>

#include "every_path.hpp"

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(nic_endpoint)

BOOST_AUTO_TEST_CASE(test_fenced_write_comes_after_everything_before_it) {
  on_every_path([](PairConfig config) {
    config.bytes = 1 << 20;
    Pair pair(config);
    const auto data = pattern(500'000);
    for (int round = 0; round < 5; ++round) {
      for (uint64_t i = 0; i < 4; ++i) {
        const auto r =
            post(*pair.a->ep, write_of(pair.dest, data.data(), i % 2 == 0 ? 500'000 : 8, i * 8, pair.key(), i));
        BOOST_TEST_REQUIRE(r.refusal == Refusal::none);
      }
      Access fenced = write_of(pair.dest, data.data(), 8, 0, pair.key(), 100);
      fenced.flags = flag::kFence;
      BOOST_TEST_REQUIRE(post(*pair.a->ep, fenced).refusal == Refusal::none);
      std::vector<uint64_t> order;
      for (int i = 0; i < 5; ++i) {
        const auto c = pair.wait();
        BOOST_TEST(c.error == 0, c.text);
        order.push_back(c.entry.context);
      }
      BOOST_TEST(order.back() == 100U);
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_ordered_endpoint_completes_in_order) {
  on_every_path([](PairConfig config) {
    config.a.ep.msg_order = nic::order::kStrict;
    Pair pair(config);
    const auto data = pattern(60'000);
    for (uint64_t i = 0; i < 40; ++i) {
      const size_t n = i % 3 == 0 ? 60'000 : i % 3 == 1 ? 8 : 300;
      Access access = i % 5 == 4 ? read_of(pair.dest, const_cast<std::byte*>(data.data()), n, 0, pair.key(), i)
                                 : write_of(pair.dest, data.data(), n, 0, pair.key(), i);
      BOOST_TEST_REQUIRE(post(*pair.a->ep, access).refusal == Refusal::none);
    }
    for (uint64_t i = 0; i < 40; ++i) {
      const auto c = pair.wait();
      BOOST_TEST(c.error == 0, c.text);
      BOOST_TEST(c.entry.context == i);
    }
    expect_idle(pair);
  });
}

// A target with two regions: frames reach the pair's own, and are answered when the target is polled; loads and stores
// reach the second. An operation on the second region is done in the call, or waits.
struct SlowAndFast {
  explicit SlowAndFast(uint64_t msg_order, bool fence_covers_all = false)
      : pair(config_of(msg_order, fence_covers_all)) {
    quick = pair.b->alloc(4096);
    quick_region = pair.b->reg(quick, 4096, 43);
    other = pair.a->extra_endpoint(config_of(msg_order, fence_covers_all).a);
    const uint64_t word = 1;
    for (nic::Endpoint* ep : {pair.a->ep.get(), other.get()}) {  // both know the routes to both regions
      for (const uint64_t key : {pair.key(), uint64_t{43}}) {
        BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, key), ep).error == 0);
        BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, key), ep).error == 0);
      }
    }
  }
  static PairConfig config_of(uint64_t msg_order, bool fence_covers_all) {
    PairConfig config = pair_of(Path::ring, true);
    config.bytes = 1 << 20;
    config.a.ep.msg_order = msg_order;
    config.a.ep.fence_covers_all = fence_covers_all;
    return config;
  }
  // A write of 1 MiB that stays under way until the target is polled.
  void begin_long_write() {
    BOOST_TEST_REQUIRE(post(*pair.a->ep, write_of(pair.dest, data.data(), data.size(), 0, pair.key(), 100)).op_id !=
                       0U);
  }
  // True if the operation was done in the call.
  bool is_done(nic::Endpoint& ep, const Access& access) {
    const PostResult r = post(ep, access);
    BOOST_TEST_REQUIRE(r.refusal == Refusal::none);
    if (r.op_id != 0) return false;
    const auto c = try_completion(*pair.a);
    BOOST_TEST_REQUIRE(c.has_value());
    BOOST_TEST(c->error == 0, c->text);
    BOOST_TEST(c->entry.context == access.context);
    return true;
  }
  void finish(int completions) {
    for (int i = 0; i < completions; ++i) BOOST_TEST(pair.wait().error == 0);
    expect_idle(pair);
  }
  Pair pair;
  std::byte* quick = nullptr;
  std::shared_ptr<nic::MemoryRegion> quick_region;
  std::shared_ptr<nic::Endpoint> other;
  std::vector<std::byte> data = pattern(1 << 20);
};

BOOST_AUTO_TEST_CASE(test_long_write_does_not_delay_another_endpoint_to_the_peer) {
  SlowAndFast fabric(nic::order::kStrict);
  fabric.begin_long_write();
  const uint64_t word = 0x1234;
  BOOST_TEST(fabric.is_done(*fabric.other, write_of(fabric.pair.dest, &word, 8, 8, 43, 7)));
  BOOST_TEST(std::memcmp(fabric.quick + 8, &word, 8) == 0);
  uint64_t back = 0;
  BOOST_TEST(fabric.is_done(*fabric.other, read_of(fabric.pair.dest, &back, 8, 8, 43, 8)));
  BOOST_TEST(back == word);
  nic::AtomicArgs add;
  const iovec one{const_cast<uint64_t*>(&word), 8};
  const wire::RmaRange cell{16, 8, 43};
  add.dest = fabric.pair.dest;
  add.op = AtomicOp::sum;
  add.datatype = Datatype::uint64;
  add.operand = {&one, 1};
  add.remote = {&cell, 1};
  BOOST_TEST(fabric.other->post_atomic(add).op_id == 0U);
  BOOST_TEST(try_completion(*fabric.pair.a).has_value());
  // The endpoint with the long write keeps its order.
  BOOST_TEST(!fabric.is_done(*fabric.pair.a->ep, write_of(fabric.pair.dest, &word, 8, 24, 43, 9)));
  fabric.finish(2);
}

BOOST_AUTO_TEST_CASE(test_order_holds_for_the_classes_that_were_asked_for) {
  using namespace nic::order;
  const uint64_t word = 5;
  uint64_t back = 0;
  for (const uint64_t msg_order : {uint64_t{0}, kWaw, kRaw, kRmaWaw, kRmaRaw, kRaw | kWaw, kRar}) {
    SlowAndFast fabric(msg_order);
    auto& ep = *fabric.pair.a->ep;
    fabric.begin_long_write();
    const bool read = fabric.is_done(ep, read_of(fabric.pair.dest, &back, 8, 0, 43, 1));
    BOOST_TEST(read == ((msg_order & (kRaw | kRmaRaw)) == 0));
    if (!read) {  // operations posted behind a waiting operation wait too
      fabric.finish(2);
      fabric.begin_long_write();
    }
    const bool written = fabric.is_done(ep, write_of(fabric.pair.dest, &word, 8, 0, 43, 2));
    BOOST_TEST(written == ((msg_order & (kWaw | kRmaWaw)) == 0));
    fabric.finish(written ? 1 : 2);
  }
}

BOOST_AUTO_TEST_CASE(test_order_rules_follow_the_manual_page) {
  using namespace nic::order;
  using nic::class_bit;
  using nic::OpClass;
  const auto none = nic::order_rules(0, false);
  const auto all = nic::order_rules(kStrict, true);
  for (const OpClass c : {OpClass::send, OpClass::write, OpClass::read, OpClass::atomic}) {
    BOOST_TEST(none.of(c) == 0);
    BOOST_TEST(all.of(c) == nic::kEveryClass);
  }
  BOOST_TEST(!none.fence_covers_all);
  BOOST_TEST(all.fence_covers_all);
  const auto sas = nic::order_rules(kSas, false);
  BOOST_TEST(sas.of(OpClass::send) == class_bit(OpClass::send));
  BOOST_TEST(sas.of(OpClass::write) == 0);
  // FI_ORDER_WAR: writes, also of atomics, do not pass reads, also of atomics.
  const auto war = nic::order_rules(kWar, false);
  BOOST_TEST(war.of(OpClass::write) == (class_bit(OpClass::read) | class_bit(OpClass::atomic)));
  BOOST_TEST(war.of(OpClass::read) == 0);
  BOOST_TEST(war.of(OpClass::atomic) == (class_bit(OpClass::read) | class_bit(OpClass::atomic)));
  const auto rma = nic::order_rules(kRmaRaw, false);
  BOOST_TEST(rma.of(OpClass::read) == class_bit(OpClass::write));
  BOOST_TEST(rma.of(OpClass::atomic) == 0);
  const auto atomic = nic::order_rules(kAtomicWaw, false);
  BOOST_TEST(atomic.of(OpClass::write) == 0);
  BOOST_TEST(atomic.of(OpClass::atomic) == class_bit(OpClass::atomic));
}

BOOST_AUTO_TEST_CASE(test_fence_covers_its_peer_or_every_peer) {
  const uint64_t word = 6;
  for (const bool every : {false, true}) {
    SlowAndFast fabric(0, every);
    SideConfig third_config;
    third_config.shared = fabric.pair.a->host;
    Side third(third_config);
    std::byte* const memory = third.alloc(64);
    third.reg(memory, 64, 44);
    const uint64_t dest = fabric.pair.a->insert(third);
    auto& ep = *fabric.pair.a->ep;
    BOOST_TEST(fabric.pair.run(write_of(dest, &word, 8, 0, 44)).error == 0);
    fabric.begin_long_write();
    Access fenced = write_of(dest, &word, 8, 8, 44, 3);
    fenced.flags = flag::kFence;
    BOOST_TEST(fabric.is_done(ep, fenced) == !every);
    Access to_same = write_of(fabric.pair.dest, &word, 8, 0, 43, 4);
    to_same.flags = flag::kFence;
    BOOST_TEST(!fabric.is_done(ep, to_same));
    fabric.finish(every ? 3 : 2);
    BOOST_TEST(std::memcmp(memory + 8, &word, 8) == 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()
