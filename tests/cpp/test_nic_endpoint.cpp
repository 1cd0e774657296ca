// tests/cpp/test_nic_endpoint.cpp: what an endpoint promises, the same on every path that an access can take (self,
// direct, process_vm_*, the owner's engine, strict isolation), with an engine thread and with manual progress.
#include <algorithm>
#include <numeric>
#include <thread>

#include "fabric.hpp"

namespace {

using namespace weft;
using namespace weft::test;

template <typename Body>
void on_every_path(Body&& body) {
  for (const Path path : kPaths) {
    for (const bool manual : {false, true}) {
      BOOST_TEST_CONTEXT("path " << path << (manual ? ", manual" : ", engine")) {
        body(pair_of(path, manual));
      }
    }
  }
}

bool uses_frames(Path path) {
  return path == Path::ring || path == Path::strict || path == Path::tcp;
}

// Nothing is left behind when everything was answered.
void expect_idle(Pair& pair) {
  pair.until([&] { return pair.a->ep->outstanding() == 0; }, "idleness");
  BOOST_TEST(pair.a->nic().statistics().waiting_ops == 0U);
  BOOST_TEST(pair.b->nic().statistics().waiting_ops == 0U);
  const nic::DomainLock guard(pair.a->domain.get());
  BOOST_TEST(pair.a->cq->reserved() == 0U);
}

std::vector<std::byte> of_value(std::byte value, size_t n) {
  return std::vector<std::byte>(n, value);
}

nic::AtomicArgs atomic_of(uint64_t dest, AtomicFamily family, AtomicOp op, Datatype type, const iovec* operand,
                          const iovec* compare, const iovec* result, const wire::RmaRange* range,
                          uint64_t context = 7) {
  nic::AtomicArgs args;
  args.dest = dest;
  args.family = family;
  args.op = op;
  args.datatype = type;
  if (operand != nullptr) args.operand = {operand, 1};
  if (compare != nullptr) args.compare = {compare, 1};
  if (result != nullptr) args.result = {result, 1};
  args.remote = {range, 1};
  args.context = context;
  return args;
}

BOOST_AUTO_TEST_SUITE(nic_endpoint)

BOOST_AUTO_TEST_CASE(test_write_and_read_move_exactly_their_bytes) {
  on_every_path([](PairConfig config) {
    config.bytes = 400'000;
    Pair pair(config);
    const auto data = pattern(400'000, 3);
    for (const size_t n : {0, 1, 4, 7, 8, 151, 152, 153, 4096, 8192, 8193, 65536, 65537, 300'001}) {
      const size_t at = 1000 + n % 7;
      pair.fill(std::byte{0xee});
      const auto w = pair.write(data.data(), n, at);
      BOOST_TEST_REQUIRE(w.error == 0, w.text);
      BOOST_TEST(w.entry.context == 1U);
      BOOST_TEST(w.entry.len == n);
      BOOST_TEST(w.entry.flags == (flag::kRma | flag::kWrite));
      auto expected = of_value(std::byte{0xee}, config.bytes);
      std::copy_n(data.begin(), n, expected.begin() + static_cast<std::ptrdiff_t>(at));
      BOOST_TEST((pair.look(0, config.bytes) == expected), "write of " << n);
      std::vector<std::byte> back(n + 1, std::byte{0x11});
      const auto r = pair.read(back.data(), n, at);
      BOOST_TEST_REQUIRE(r.error == 0, r.text);
      BOOST_TEST(r.entry.flags == (flag::kRma | flag::kRead));
      BOOST_TEST(std::equal(back.begin(), back.end() - 1, data.begin()), "read of " << n);
      BOOST_TEST((back[n] == std::byte{0x11}));
    }
    const auto s = pair.a->nic().statistics();
    switch (config.path) {
      case Path::self:
      case Path::direct:
        BOOST_TEST(s.cma_ops + s.framed_ops == 0U);
        break;
      case Path::cma:
        BOOST_TEST(s.framed_ops == 0U);
        break;
      default:
        BOOST_TEST(s.direct_ops + s.cma_ops == 0U);
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_failed_accesses_say_why_and_touch_nothing) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    Side& b = *pair.b;
    const auto other = b.extra_endpoint();
    std::byte* memory = pair.allocate(4096);
    b.reg(memory, 4096, 50, mem::kRemoteRead);
    b.reg(memory, 4096, 51, mem::kRemoteWrite);
    b.reg(memory, 4096, 52, mem::kRemoteRead | mem::kRemoteWrite, false);
    auto bound = b.reg(memory, 4096, 53, mem::kRemoteRead | mem::kRemoteWrite, false);
    bound->bind_endpoint(*other);
    bound->enable();
    auto closed = b.reg(memory, 4096, 54);
    std::string why;
    BOOST_REQUIRE(closed->close(&why));
    pair.fill(std::byte{0x77});
    b.fence();
    std::memset(memory, 0x77, 4096);
    b.fence();
    const auto data = of_value(std::byte{1}, 8192);
    auto back = of_value(std::byte{2}, 8192);
    const uint64_t top = config.bytes;
    struct {
      OpKind kind;
      uint64_t addr, length, key;
      Status status;
    } const cases[] = {
        {OpKind::write, 0, 8, 41, Status::no_key},
        {OpKind::read, 0, 8, 41, Status::no_key},
        {OpKind::write, 0, 8, 50, Status::access},
        {OpKind::read, 0, 8, 51, Status::access},
        {OpKind::write, 0, 8, 52, Status::not_enabled},
        {OpKind::read, 0, 8, 52, Status::not_enabled},
        {OpKind::write, 0, 8, 53, Status::wrong_endpoint},
        {OpKind::write, 0, 8, 54, Status::no_key},
        {OpKind::write, top - 7, 8, 42, Status::bounds},
        {OpKind::read, top - 7, 8, 42, Status::bounds},
        {OpKind::write, ~uint64_t{0} - 3, 8, 42, Status::bounds},
        {OpKind::write, top, 1, 42, Status::bounds},
        {OpKind::write, top - 4096, 8192, 42, Status::bounds},
        {OpKind::read, 4096, 1, 50, Status::bounds},
    };
    for (const auto& c : cases) {
      Access access{c.kind,
                    pair.dest,
                    {{c.kind == OpKind::write ? const_cast<std::byte*>(data.data()) : back.data(), c.length}},
                    {{c.addr, c.length, c.key}},
                    0,
                    99,
                    0,
                    false};
      const auto done = pair.run(access);
      BOOST_TEST(done.status == c.status, "key " << c.key << ": " << done.text);
      BOOST_TEST(done.error == fi_errno(c.status));
      BOOST_TEST(done.entry.context == 99U);
      BOOST_TEST(done.olen == c.length);
      BOOST_TEST(done.text.find(pair.a->nic().text_of(*pair.a->av->lookup(pair.dest))) != std::string::npos, done.text);
    }
    BOOST_TEST((pair.look(0, config.bytes) == of_value(std::byte{0x77}, config.bytes)));
    BOOST_TEST(std::all_of(memory, memory + 4096, [](std::byte x) { return x == std::byte{0x77}; }));
    BOOST_TEST((back == of_value(std::byte{2}, 8192)));
    b.fence();
    BOOST_TEST(pair.write(data.data(), 64, 0).error == 0);  // and the endpoint goes on
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_pieces_and_ranges_meet_at_any_boundary) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    std::mt19937_64 random(17);
    const auto data = pattern(40'000, 9);
    for (int round = 0; round < 12; ++round) {
      // The same bytes, cut differently on either side.
      const size_t total = round % 3 == 0 ? 600 : 30'000;
      const auto cuts = [&](size_t pieces) {
        std::vector<size_t> at{0, total};
        for (size_t i = 1; i < pieces; ++i) at.push_back(random() % (total + 1));
        std::sort(at.begin(), at.end());
        return at;
      };
      const auto here = cuts(1 + random() % 8), there = cuts(1 + random() % 8);
      Access w{OpKind::write, pair.dest, {}, {}, 0, 5, 0, false};
      auto from = data;
      for (size_t i = 0; i + 1 < here.size(); ++i) w.local.push_back({from.data() + here[i], here[i + 1] - here[i]});
      for (size_t i = 0; i + 1 < there.size(); ++i)
        w.remote.push_back({there[i] + i * 100, there[i + 1] - there[i], pair.key()});
      pair.fill(std::byte{0});
      const auto done = pair.run(w);
      BOOST_TEST_REQUIRE(done.error == 0, done.text);
      auto expected = of_value(std::byte{0}, config.bytes);
      for (size_t i = 0; i + 1 < there.size(); ++i) {
        std::copy(data.begin() + static_cast<std::ptrdiff_t>(there[i]),
                  data.begin() + static_cast<std::ptrdiff_t>(there[i + 1]),
                  expected.begin() + static_cast<std::ptrdiff_t>(there[i] + i * 100));
      }
      BOOST_TEST((pair.look(0, config.bytes) == expected));
      std::vector<std::byte> to(total);
      Access r = w;
      r.kind = OpKind::read;
      r.local.clear();
      for (size_t i = 0; i + 1 < here.size(); ++i) r.local.push_back({to.data() + here[i], here[i + 1] - here[i]});
      BOOST_TEST(pair.run(r).error == 0);
      BOOST_TEST(std::equal(to.begin(), to.end(), data.begin()));
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_one_bad_range_leaves_the_good_ones_untouched) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    pair.fill(std::byte{9});
    const auto data = pattern(3000);
    for (const size_t bad : {0, 1, 2}) {
      Access w{OpKind::write, pair.dest, {{const_cast<std::byte*>(data.data()), 3000}}, {}, 0, 5, 0, false};
      for (size_t i = 0; i < 3; ++i) w.remote.push_back({i * 1000, 1000, i == bad ? pair.key() + 1 : pair.key()});
      BOOST_TEST(pair.run(w).status == Status::no_key);
      Access outside = w;
      outside.remote[bad] = {config.bytes - 10, 1000, pair.key()};
      BOOST_TEST(pair.run(outside).status == Status::bounds);
    }
    BOOST_TEST((pair.look(0, config.bytes) == of_value(std::byte{9}, config.bytes)));
    BOOST_TEST(pair.write(data.data(), 3000, 0).error == 0);
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_region_of_several_buffers_is_one_range) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    std::byte* one = pair.allocate(4096);
    std::byte* two = pair.allocate(8192);
    const iovec list[] = {{one + 5, 1001}, {two + 1, 3}, {two + 100, 5000}};
    pair.b->reg_list(list, 77);
    pair.b->fence();
    const auto data = pattern(6004, 2);
    auto w = pair.run(write_of(pair.dest, data.data(), 6004, 0, 77));
    BOOST_TEST_REQUIRE(w.error == 0, w.text);
    pair.b->fence();
    BOOST_TEST(std::equal(data.begin(), data.begin() + 1001, one + 5));
    BOOST_TEST(std::equal(data.begin() + 1001, data.begin() + 1004, two + 1));
    BOOST_TEST(std::equal(data.begin() + 1004, data.end(), two + 100));
    std::vector<std::byte> back(500);
    BOOST_TEST(pair.run(read_of(pair.dest, back.data(), 500, 900, 77)).error == 0);
    BOOST_TEST(std::equal(back.begin(), back.end(), data.begin() + 900));
    BOOST_TEST(pair.run(read_of(pair.dest, back.data(), 5, 6000, 77)).status == Status::bounds);
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_inject_may_reuse_its_buffer_at_once_and_completes_silently) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    for (uint64_t i = 0; i < 20; ++i) {
      uint64_t word = i + 1;
      Access w = write_of(pair.dest, &word, 8, i * 8, pair.key());
      w.inject = true;
      BOOST_TEST(post(*pair.a->ep, w).refusal == Refusal::none);
      word = ~uint64_t{0};
    }
    expect_idle(pair);
    BOOST_TEST(pair.a->unread() == 0U);
    const auto seen = pair.look(0, 160);
    for (uint64_t i = 0; i < 20; ++i) {
      uint64_t word;
      std::memcpy(&word, seen.data() + i * 8, 8);
      BOOST_TEST(word == i + 1);
    }
    uint64_t word = 0;
    Access bad = write_of(pair.dest, &word, 8, 0, pair.key() + 1);
    bad.inject = true;
    BOOST_TEST(pair.run(bad).status == Status::no_key);  // an error is told all the same
  });
}

BOOST_AUTO_TEST_CASE(test_immediate_data_reaches_the_target_after_the_bytes) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    const uint64_t back = pair.b->insert(*pair.a);
    const auto data = pattern(70'000);
    for (const size_t n : {0, 8, 200, 20'000}) {
      for (const size_t pieces : {size_t{1}, size_t{3}}) {
        pair.fill(std::byte{0});
        Access w{OpKind::write, pair.dest, {}, {}, flag::kRemoteCqData, 5, 0xabcdef0123456789 + n, false};
        for (size_t i = 0; i < pieces; ++i) {
          w.local.push_back({const_cast<std::byte*>(data.data()), n});
          w.remote.push_back({i * 20'000, n, pair.key()});
        }
        BOOST_TEST(pair.run(w).error == 0);
        const auto event = pair.wait(pair.b.get());
        BOOST_TEST(event.entry.data == w.imm);
        BOOST_TEST(event.entry.flags == (flag::kRma | flag::kRemoteWrite | flag::kRemoteCqData));
        BOOST_TEST(event.entry.len == n * pieces);
        BOOST_TEST(event.entry.source == back);
        for (size_t i = 0; i < pieces; ++i) {
          const auto seen = pair.look(i * 20'000, n);
          BOOST_TEST(std::equal(seen.begin(), seen.end(), data.begin()));
        }
      }
    }
    // A failed write delivers nothing.
    Access bad = write_of(pair.dest, data.data(), 8, 0, pair.key() + 1);
    bad.flags = flag::kRemoteCqData;
    BOOST_TEST(pair.run(bad).status == Status::no_key);
    BOOST_TEST(pair.write(data.data(), 8, 0).error == 0);
    BOOST_TEST(pair.b->unread() == 0U);
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_counters_count_on_both_sides) {
  on_every_path([](PairConfig config) {
    config.a.counters = config.b.counters = true;
    Pair pair(config);
    Side &a = *pair.a, &b = *pair.b;
    auto region_writes = std::make_shared<nic::Counter>(), region_reads = std::make_shared<nic::Counter>();
    region_writes->counts_bytes = true;
    std::byte* memory = pair.allocate(4096);
    auto region = b.reg(memory, 4096, 60, mem::kRemoteRead | mem::kRemoteWrite, false);
    region->domain()->bind_region_counter(region, region_writes, flag::kRemoteWrite);
    region->domain()->bind_region_counter(region, region_reads, flag::kRemoteRead);
    region->enable();
    b.fence();
    std::byte buffer[2000] = {};
    BOOST_TEST(pair.run(write_of(pair.dest, buffer, 2000, 0, 60)).error == 0);
    BOOST_TEST(pair.run(write_of(pair.dest, buffer, 8, 0, 60)).error == 0);
    BOOST_TEST(pair.run(read_of(pair.dest, buffer, 100, 0, 60)).error == 0);
    int64_t one = 1, before = 0;
    const iovec operand{&one, 8}, result{&before, 8};
    const wire::RmaRange range{8, 8, 60};
    BOOST_TEST(a.ep->post_atomic(atomic_of(pair.dest, AtomicFamily::base, AtomicOp::sum, Datatype::int64, &operand,
                                           nullptr, nullptr, &range))
                   .refusal == Refusal::none);
    BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(a.ep->post_atomic(atomic_of(pair.dest, AtomicFamily::fetch, AtomicOp::sum, Datatype::int64, &operand,
                                           nullptr, &result, &range))
                   .refusal == Refusal::none);
    BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(pair.run(write_of(pair.dest, buffer, 8, 0, 61)).status == Status::no_key);
    pair.until([&] { return b.remote_write_cntr->value() == 3 && b.remote_read_cntr->value() == 2; },
               "the target's counters");
    BOOST_TEST(a.write_cntr->value() == 3U);
    BOOST_TEST(a.read_cntr->value() == 2U);
    BOOST_TEST(a.write_cntr->errors() == 1U);
    BOOST_TEST(a.read_cntr->errors() == 0U);
    BOOST_TEST(region_writes->value() == 2024U);  // the fetching atomic modifies the region, too
    BOOST_TEST(region_reads->value() == 2U);
    BOOST_TEST(a.remote_write_cntr->value() + b.write_cntr->value() == 0U);
  });
}

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
// reach the second. What is posted to the second is done in the call, or waits.
struct SlowAndFast {
  explicit SlowAndFast(uint64_t msg_order, bool fence_covers_all = false)
      : pair(config_of(msg_order, fence_covers_all)) {
    quick = pair.b->alloc(4096);
    quick_region = pair.b->reg(quick, 4096, 43);
    other = pair.a->extra_endpoint(config_of(msg_order, fence_covers_all).a);
    const uint64_t word = 1;
    for (nic::Endpoint* ep : {pair.a->ep.get(), other.get()}) {  // both know the way to both regions
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
  // A write of 1 MiB that is under way until the target is polled.
  void begin_long_write() {
    BOOST_TEST_REQUIRE(post(*pair.a->ep, write_of(pair.dest, data.data(), data.size(), 0, pair.key(), 100)).op_id !=
                       0U);
  }
  // Whether it was done in the call.
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
  // The endpoint that is writing keeps its order.
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
    if (!read) {  // what is posted behind an operation that waits, waits
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
  // FI_ORDER_WAR: writes, also those of atomics, do not pass reads, also those of atomics.
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

BOOST_AUTO_TEST_CASE(test_endpoints_reach_a_peer_that_left_and_came_back_to_the_vector) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    auto second = pair.a->extra_endpoint(config.a);
    const uint64_t word = 3;
    for (int round = 0; round < 3; ++round) {
      for (nic::Endpoint* ep : {pair.a->ep.get(), second.get()}) {
        BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, pair.key()), ep).error == 0);
      }
      BOOST_TEST(pair.a->av->remove(pair.dest));
      for (nic::Endpoint* ep : {pair.a->ep.get(), second.get()}) {
        BOOST_TEST(post(*ep, write_of(pair.dest, &word, 8, 0, pair.key())).refusal == Refusal::bad_address);
      }
      BOOST_TEST(pair.a->insert(*pair.b) == pair.dest);
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_region_for_one_endpoint_stays_closed_to_its_neighbour) {
  Pair pair(pair_of(Path::direct));
  auto second = pair.a->extra_endpoint();
  mem::AccessGuard guard;
  guard.has_source = 1;
  guard.source = pair.a->ep->address();
  nic::RegionExtra extra;
  extra.guard = &guard;
  std::byte* const memory = pair.b->alloc(64);
  const iovec v{memory, 64};
  pair.b->regions.push_back(pair.b->domain->register_region(std::span(&v, 1), mem::kRemoteRead | mem::kRemoteWrite, 77,
                                                            false, true, 0, extra));
  const uint64_t word = 9;
  for (int round = 0; round < 2; ++round) {
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, 77)).error == 0);
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, 77), second.get()).status == Status::unauthorized);
  }
}

BOOST_AUTO_TEST_CASE(test_selective_completion_tells_only_what_was_asked_for) {
  on_every_path([](PairConfig config) {
    config.a.cq_flags = flag::kSend | flag::kRecv | flag::kSelectiveCompletion;
    Pair pair(config);
    const uint64_t word = 5;
    for (uint64_t i = 0; i < 10; ++i) {
      Access w = write_of(pair.dest, &word, 8, 0, pair.key(), i);
      if (i == 7) w.flags = flag::kCompletion;
      BOOST_TEST(post(*pair.a->ep, w).refusal == Refusal::none);
    }
    BOOST_TEST(pair.wait().entry.context == 7U);
    expect_idle(pair);
    BOOST_TEST(pair.a->unread() == 0U);
    const auto bad = pair.run(write_of(pair.dest, &word, 8, 0, pair.key() + 1, 11));
    BOOST_TEST(bad.status == Status::no_key);
    // Contexts of what completed silently are given back.
    auto released = pair.a->domain->take_released();
    for (const uint64_t context : released) BOOST_TEST(context < 10U);
    BOOST_TEST(released.size() == (uses_frames(config.path) ? 8U : released.size()));  // 0 is no context
  });
}

BOOST_AUTO_TEST_CASE(test_full_completion_queue_refuses_until_it_is_read) {
  on_every_path([](PairConfig config) {
    config.a.cq_capacity = 4;
    Pair pair(config);
    const uint64_t word = 5;
    for (int round = 0; round < 3; ++round) {
      uint64_t posted = 0;
      while (post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key(), posted)).refusal == Refusal::none) ++posted;
      BOOST_TEST(posted == 4U);
      BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key())).refusal == Refusal::cq_full);
      nic::BatchDesc desc{0, 8, pair.dest, 0, pair.key(), 0, 0};
      BOOST_TEST(pair.a->ep
                     ->post_batch(OpKind::write, const_cast<std::byte*>(reinterpret_cast<const std::byte*>(&word)), 8,
                                  {&desc, 1}, 0, 3)
                     .refusal == Refusal::cq_full);
      for (int i = 0; i < 4; ++i) BOOST_TEST(pair.wait().error == 0);
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_full_transmit_queue_refuses_until_something_is_done) {
  for (const Path path : {Path::ring, Path::strict, Path::tcp}) {
    BOOST_TEST_CONTEXT("path " << path) {
      PairConfig config = pair_of(path, true);
      config.a.ep.tx_size = 8;
      Pair pair(config);
      const uint64_t word = 5;
      for (int i = 0; i < 8; ++i) {
        BOOST_TEST_REQUIRE(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key())).refusal == Refusal::none);
      }
      BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key())).refusal == Refusal::tx_full);
      for (int i = 0; i < 8; ++i) BOOST_TEST(pair.wait().error == 0);
      BOOST_TEST(pair.write(&word, 8, 0).error == 0);
      expect_idle(pair);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_vectored_call_is_one_operation_of_the_transmit_queue) {
  PairConfig config = pair_of(Path::strict, true);
  config.a.ep.tx_size = 8;
  Pair pair(config);
  std::array<uint64_t, 20> words{};
  std::vector<nic::BatchDesc> descs;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = i + 1;
    descs.push_back({8 * i, 8, pair.dest, 8 * i, pair.key(), 0, 0});
  }
  auto* local = reinterpret_cast<std::byte*>(words.data());
  const auto batch = [&] { return pair.a->ep->post_batch(OpKind::write, local, sizeof(words), descs, 0, 3).refusal; };
  BOOST_TEST(batch() == Refusal::none);
  BOOST_TEST(pair.a->ep->outstanding() == 1U);
  for (int i = 0; i < 7; ++i) {
    BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, words.data(), 8, 0, pair.key())).refusal == Refusal::none);
  }
  BOOST_TEST(batch() == Refusal::tx_full);
  for (int i = 0; i < 8; ++i) BOOST_TEST(pair.wait().error == 0);
  for (const auto& d : descs) BOOST_TEST(d.status == 0);
  BOOST_TEST(std::memcmp(pair.memory, words.data(), sizeof(words)) == 0);
  expect_idle(pair);
}

BOOST_AUTO_TEST_CASE(test_region_closed_by_two_threads_is_closed_once) {
  Side side;
  std::byte memory[64] = {};
  for (int round = 0; round < 500; ++round) {
    const auto region = side.reg(memory, sizeof(memory), 7);
    std::atomic<int> ready{0}, closed{0};
    const auto close = [&] {  // asserts nothing: the test framework is not for two threads
      ready.fetch_add(1);
      while (ready.load() != 2) sched_yield();
      std::string why;
      if (region->close(&why) && region->closed()) closed.fetch_add(1);
    };
    {
      const std::jthread other(close);
      close();
    }
    side.regions.clear();
    BOOST_REQUIRE(closed.load() == 2);
    BOOST_REQUIRE(side.nic().statistics().regions == 0U);
  }
  // A slot that was given back twice would be given out twice.
  const auto a = side.reg(memory, 8, 1), b = side.reg(memory, 8, 2);
  std::string why;
  BOOST_TEST(a->close(&why));
  BOOST_TEST(side.nic().statistics().regions == 1U);
  BOOST_TEST(side.nic().table().find_client_key(0, 2) != mem::TableView::kNoSlot);
}

BOOST_AUTO_TEST_CASE(test_batch_gives_every_descriptor_its_status) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    auto data = pattern(60'000, 6);
    for (const bool warm : {false, true}) {  // the first batch also has to find the peer
      pair.fill(std::byte{0});
      std::vector<nic::BatchDesc> descs;
      for (uint64_t i = 0; i < 600; ++i) descs.push_back({i * 64, 1 + i % 64, pair.dest, i * 64, pair.key(), 77, 0});
      descs[5].key = 1;
      descs[6].remote_addr = config.bytes;
      descs[7].local_offset = data.size() - 3;
      descs[8].dest_addr = 99;
      descs[300].length = 9000;  // longer than an inline copy
      descs[300].local_offset = 40'000;
      descs[300].remote_addr = 50'000;
      const auto posted = pair.a->ep->post_batch(OpKind::write, data.data(), data.size(), descs, 0, 21);
      BOOST_TEST_REQUIRE(posted.refusal == Refusal::none);
      const auto done = pair.wait();
      BOOST_TEST(done.error != 0);
      BOOST_TEST(done.entry.context == 21U);
      BOOST_TEST(descs[5].status == fi_errno(Status::no_key));
      BOOST_TEST(descs[6].status == fi_errno(Status::bounds));
      BOOST_TEST(descs[7].status == fi_errno(Status::invalid));
      BOOST_TEST(descs[8].status == fi_errno(Status::no_endpoint));
      auto expected = of_value(std::byte{0}, config.bytes);
      for (size_t i = 0; i < descs.size(); ++i) {
        const auto& d = descs[i];
        if (i >= 5 && i <= 8) continue;
        BOOST_TEST(d.status == 0, "descriptor " << i);
        std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(d.local_offset), d.length,
                    expected.begin() + static_cast<std::ptrdiff_t>(d.remote_addr));
      }
      BOOST_TEST((pair.look(0, config.bytes) == expected), "warm " << warm);
    }
    // Reads; all good; one success completion with all bytes.
    std::vector<std::byte> back(60'000);
    std::vector<nic::BatchDesc> descs;
    for (uint64_t i = 0; i < 100; ++i) descs.push_back({i * 600, 600, pair.dest, i * 600, pair.key(), 77, 0});
    BOOST_TEST(pair.a->ep->post_batch(OpKind::read, back.data(), back.size(), descs, 0, 22).refusal == Refusal::none);
    const auto done = pair.wait();
    BOOST_TEST(done.error == 0, done.text);
    BOOST_TEST(done.entry.len == 60'000U);
    BOOST_TEST(done.entry.flags == (flag::kRma | flag::kRead));
    BOOST_TEST((back == pair.look(0, 60'000)));
    // None at all.
    BOOST_TEST(pair.a->ep->post_batch(OpKind::read, back.data(), back.size(), {}, 0, 23).refusal == Refusal::none);
    BOOST_TEST(pair.wait().entry.context == 23U);
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_batch_error_names_the_descriptor_that_failed) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    std::byte data[64] = {};
    std::vector<nic::BatchDesc> descs;
    for (uint64_t i = 0; i < 8; ++i) descs.push_back({0, 8, pair.dest, i * 8, i == 3 ? 0x5150 : pair.key(), 0, 0});
    BOOST_TEST(pair.a->ep->post_batch(OpKind::write, data, 64, descs, 0, 1).refusal == Refusal::none);
    const auto done = pair.wait();
    BOOST_TEST(done.status == Status::no_key);
    BOOST_TEST(done.text.find("0x5150") != std::string::npos, done.text);
  });
}

BOOST_AUTO_TEST_CASE(test_atomics_fetch_compare_and_store) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    pair.fill(std::byte{0});
    Side& a = *pair.a;
    const auto run = [&](AtomicFamily family, AtomicOp op, Datatype type, const void* operand, const void* compare,
                         void* result, size_t n, uint64_t at) {
      const iovec o{const_cast<void*>(operand), n}, c{const_cast<void*>(compare), n}, r{result, n};
      const wire::RmaRange range{at, n, pair.key()};
      const auto posted =
          a.ep->post_atomic(atomic_of(pair.dest, family, op, type, operand != nullptr ? &o : nullptr,
                                      compare != nullptr ? &c : nullptr, result != nullptr ? &r : nullptr, &range));
      BOOST_TEST_REQUIRE(posted.refusal == Refusal::none);
      return pair.wait();
    };
    int64_t old[8] = {}, ops[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (int i = 0; i < 3; ++i) {
      const auto c = run(AtomicFamily::fetch, AtomicOp::sum, Datatype::int64, ops, nullptr, old, 64, 128);
      BOOST_TEST_REQUIRE(c.error == 0, c.text);
      BOOST_TEST(c.entry.flags == (flag::kAtomic | flag::kRead));
      for (int k = 0; k < 8; ++k) BOOST_TEST(old[k] == i * (k + 1));
    }
    BOOST_TEST(
        run(AtomicFamily::base, AtomicOp::atomic_write, Datatype::int64, ops, nullptr, nullptr, 64, 128).entry.flags ==
        (flag::kAtomic | flag::kWrite));
    BOOST_TEST(run(AtomicFamily::fetch, AtomicOp::atomic_read, Datatype::int64, nullptr, nullptr, old, 64, 128).error ==
               0);
    BOOST_TEST(std::equal(old, old + 8, ops));
    int64_t want = 1, next = 100;
    BOOST_TEST(run(AtomicFamily::compare, AtomicOp::cswap, Datatype::int64, &next, &want, old, 8, 128).error == 0);
    BOOST_TEST(old[0] == 1);
    BOOST_TEST(run(AtomicFamily::compare, AtomicOp::cswap, Datatype::int64, &next, &want, old, 8, 128).error == 0);
    BOOST_TEST(old[0] == 100);
    alignas(16) unsigned char wide[16] = {1}, wide_old[16] = {};
    BOOST_TEST(run(AtomicFamily::fetch, AtomicOp::sum, Datatype::uint128, wide, nullptr, wide_old, 16, 256).error == 0);
    BOOST_TEST(run(AtomicFamily::fetch, AtomicOp::sum, Datatype::uint128, wide, nullptr, wide_old, 16, 256).error == 0);
    BOOST_TEST(wide_old[0] == 1);
    float complex_sum[2] = {1.5f, -2.5f}, complex_old[2] = {};
    for (int i = 0; i < 2; ++i) {  // not aligned to its size: under the owner's lock
      const auto c =
          run(AtomicFamily::fetch, AtomicOp::sum, Datatype::float_complex, complex_sum, nullptr, complex_old, 8, 324);
      BOOST_TEST_REQUIRE(c.error == 0, c.text);
    }
    BOOST_TEST(complex_old[0] == 1.5f);
    BOOST_TEST(complex_old[1] == -2.5f);
    BOOST_TEST(run(AtomicFamily::base, AtomicOp::sum, Datatype::int64, ops, nullptr, nullptr, 8, 129).status ==
               Status::misaligned);
    BOOST_TEST(
        run(AtomicFamily::base, AtomicOp::sum, Datatype::int64, ops, nullptr, nullptr, 8, config.bytes - 4).status ==
        Status::bounds);
    const iovec o{ops, 8}, r{old, 8};
    const wire::RmaRange range{0, 16, pair.key()};
    BOOST_TEST(a.ep->post_atomic(atomic_of(pair.dest, AtomicFamily::fetch, AtomicOp::sum, Datatype::int64, &o, nullptr,
                                           &r, &range))
                   .refusal == Refusal::length_mismatch);
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_atomics_of_both_sides_lose_no_update) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    pair.fill(std::byte{0});
    constexpr int kCount = 300;
    const uint64_t home = pair.b->insert(*pair.b);  // the owner updates it through its own NIC
    int64_t one = 1;
    const iovec operand{&one, 8};
    const wire::RmaRange range{64, 8, pair.key()};
    int done = 0, done_b = 0;
    for (int i = 0; i < kCount; ++i) {
      BOOST_TEST_REQUIRE(pair.a->ep
                             ->post_atomic(atomic_of(pair.dest, AtomicFamily::base, AtomicOp::sum, Datatype::int64,
                                                     &operand, nullptr, nullptr, &range))
                             .refusal == Refusal::none);
      BOOST_TEST_REQUIRE(pair.b->ep
                             ->post_atomic(atomic_of(home, AtomicFamily::base, AtomicOp::sum, Datatype::int64, &operand,
                                                     nullptr, nullptr, &range))
                             .refusal == Refusal::none);
    }
    pair.until(
        [&] {
          while (const auto c = try_completion(*pair.a)) done += c->error == 0;
          while (const auto c = try_completion(*pair.b)) done_b += c->error == 0;
          return done == kCount && done_b == kCount;
        },
        "the sums");
    const auto seen = pair.look(64, 8);
    int64_t sum;
    std::memcpy(&sum, seen.data(), 8);
    BOOST_TEST(sum == 2 * kCount);
  });
}

BOOST_AUTO_TEST_CASE(test_descriptions_without_pieces_or_with_impossible_sums_are_refused) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    std::byte buffer[64] = {};
    BOOST_TEST(post(*pair.a->ep, {OpKind::write, pair.dest, {}, {}, 0, 1, 0, false}).refusal ==
               Refusal::length_mismatch);
    Access a = write_of(pair.dest, buffer, 8, 0, pair.key());
    a.remote[0].length = 9;
    BOOST_TEST(post(*pair.a->ep, a).refusal == Refusal::length_mismatch);
    a.local.clear();
    a.remote = {{0, uint64_t{1} << 63, pair.key()}, {0, uint64_t{1} << 63, pair.key()}};  // 0 modulo 2^64
    BOOST_TEST(post(*pair.a->ep, a).refusal == Refusal::length_mismatch);
    a.local.assign(9, {buffer, 1});
    a.remote = {{0, 9, pair.key()}};
    BOOST_TEST(post(*pair.a->ep, a).refusal == Refusal::too_many_pieces);
    BOOST_TEST(post(*pair.a->ep, write_of(17, buffer, 8, 0, pair.key())).refusal == Refusal::bad_address);
    nic::AtomicArgs none =
        atomic_of(pair.dest, AtomicFamily::base, AtomicOp::sum, Datatype::int64, nullptr, nullptr, nullptr, nullptr);
    none.remote = {};
    BOOST_TEST(pair.a->ep->post_atomic(none).refusal == Refusal::length_mismatch);
    BOOST_TEST(pair.a->unread() == 0U);
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_unknown_address_and_closed_endpoint_are_errors_and_a_new_endpoint_is_found_again) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    const uint64_t nobody = pair.a->av->insert({7, 123456, 0, 0});
    const uint64_t word = 5;
    BOOST_TEST(pair.run(write_of(nobody, &word, 8, 0, pair.key())).status == Status::no_endpoint);
    BOOST_TEST(pair.write(&word, 8, 0).error == 0);
    const auto address = pair.b->ep->address();
    pair.b->ep->close();
    BOOST_TEST(pair.write(&word, 8, 0).status == Status::no_endpoint);
    BOOST_TEST(pair.write(&word, 8, 0).status == Status::no_endpoint);
    SideConfig again;
    again.pid = address.pid;
    (void)pair.b->extra_endpoint(again);
    const auto done = pair.write(&word, 8, 0);
    BOOST_TEST(done.error == 0, done.text);
    expect_idle(pair);
  });
}

/// Endpoints of different VNIs do not reach each other, on no path and in no call.
BOOST_AUTO_TEST_CASE(test_endpoint_of_another_vni_is_an_error_and_touches_nothing) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    uint64_t word = 5;
    BOOST_TEST(pair.write(&word, 8, 0).error == 0);
    auto address = pair.b->ep->address();
    address.vni = static_cast<uint16_t>(address.vni + 1);
    const uint64_t stranger = pair.a->av->insert(address);
    word = 6;
    for (int i = 0; i < 3; ++i) {
      BOOST_TEST(pair.run(write_of(stranger, &word, 8, 0, pair.key())).status == Status::unauthorized);
    }
    BOOST_TEST(pair.read(&word, 8, 0).error == 0);
    BOOST_TEST(word == 5U);
    expect_idle(pair);
  });
}

/// No link answers for a strange address where the shm link is off: that is an error and not a wait for ever.
BOOST_AUTO_TEST_CASE(test_address_that_no_link_reaches_is_an_error) {
  SideConfig config;
  config.host.shm_link = false;
  Side side(config);
  const uint64_t nobody = side.av->insert({7, 123456, 0, 0});
  const uint64_t word = 5;
  BOOST_TEST(post(*side.ep, write_of(nobody, &word, 8, 0, 1)).refusal == Refusal::none);
  std::optional<Completion> c;
  BOOST_TEST(poll_until([&] { return (c = try_completion(side)).has_value(); }, [&] { side.progress(); },
                        std::chrono::seconds(5)));
  BOOST_TEST((c && c->status == Status::no_endpoint));
  BOOST_TEST(side.nic().statistics().waiting_ops == 0U);
}

BOOST_AUTO_TEST_CASE(test_cancel_ends_what_waits_and_nothing_else) {
  PairConfig config = pair_of(Path::strict, true);
  Pair pair(config);
  const uint64_t word = 5;
  for (uint64_t i = 1; i <= 3; ++i)
    BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key(), i)).refusal == Refusal::none);
  BOOST_TEST(pair.a->ep->cancel(2) == 1U);  // the peer is still being looked for
  BOOST_TEST(pair.a->ep->cancel(2) == 0U);
  std::vector<std::pair<uint64_t, Status>> seen;
  for (int i = 0; i < 3; ++i) {
    const auto c = pair.wait();
    seen.emplace_back(c.entry.context, c.status);
  }
  std::sort(seen.begin(), seen.end());
  BOOST_TEST(
      (seen == std::vector<std::pair<uint64_t, Status>>{{1, Status::ok}, {2, Status::canceled}, {3, Status::ok}}));
  BOOST_TEST(pair.a->ep->cancel(1) == 0U);
  expect_idle(pair);
}

BOOST_AUTO_TEST_CASE(test_closing_an_endpoint_cancels_what_is_under_way) {
  for (const Path path : kPaths) {
    BOOST_TEST_CONTEXT("path " << path) {
      Pair pair(pair_of(path, true));
      auto data = pattern(60'000);
      size_t posted = 0;
      for (uint64_t i = 0; i < 10; ++i) {
        posted += post(*pair.a->ep, write_of(pair.dest, data.data(), i % 2 == 0 ? 8 : 60'000, 0, pair.key(), i + 1))
                      .refusal == Refusal::none;
      }
      std::vector<nic::BatchDesc> descs;
      for (uint64_t i = 0; i < 10; ++i) descs.push_back({i * 64, 64, pair.dest, i * 64, pair.key(), 77, 0});
      BOOST_TEST(pair.a->ep->post_batch(OpKind::write, data.data(), data.size(), descs, 0, 21).refusal ==
                 Refusal::none);
      ++posted;
      pair.a->ep->close();
      size_t canceled = 0, ok = 0;
      while (const auto c = try_completion(*pair.a)) (c->error == 0 ? ok : canceled) += 1;
      BOOST_TEST(ok + canceled == posted);
      BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, data.data(), 8, 0, pair.key())).refusal == Refusal::closed);
      for (int i = 0; i < 200; ++i) pair.poll();  // late answers find nobody
      BOOST_TEST(pair.a->unread() == 0U);
      expect_idle(pair);
    }
  }
}

/// Operation numbers are not used again by the next domain: a late answer to an operation of a closed domain, or the
/// memory of its failed check, must not end or fail an operation of the new one.
BOOST_AUTO_TEST_CASE(test_answers_to_a_closed_domain_do_not_reach_the_next_one) {
  Pair pair(pair_of(Path::strict, true));
  const uint64_t word = 5;
  for (int round = 0; round < 3; ++round) {
    SideConfig config;
    config.shared = pair.a->host;
    Side first(config);
    const uint64_t dest = first.insert(*pair.b);
    Access bad{
        OpKind::write, dest, {{const_cast<uint64_t*>(&word), 8}}, {{0, 4, pair.key()}, {0, 4, pair.key() + 1}}, 0, 1, 0,
        false};
    BOOST_TEST(post(*first.ep, bad).refusal == Refusal::none);
    std::optional<Completion> c;
    pair.until([&] { return (c = try_completion(first)).has_value(); }, "the failed check");
    BOOST_TEST(c->status == Status::no_key);
    BOOST_TEST(post(*first.ep, write_of(dest, &word, 8, 0, pair.key())).refusal ==
               Refusal::none);  // answered after the close
  }
  SideConfig config;
  config.shared = pair.a->host;
  Side next(config);
  const uint64_t dest = next.insert(*pair.b);
  for (uint64_t i = 0; i < 4; ++i) {
    BOOST_TEST(post(*next.ep, write_of(dest, &word, 8, 0, i % 2 == 0 ? pair.key() : pair.key() + 1, i)).refusal ==
               Refusal::none);
  }
  for (uint64_t i = 0; i < 4; ++i) {
    std::optional<Completion> c;
    pair.until([&] { return (c = try_completion(next)).has_value(); }, "completions");
    BOOST_TEST(c->status == (c->entry.context % 2 == 0 ? Status::ok : Status::no_key),
               "operation " << c->entry.context << ": " << c->text);
  }
}

BOOST_AUTO_TEST_CASE(test_closing_regions_under_traffic_never_lets_a_late_write_through) {
  for (const Path path : kPaths) {
    BOOST_TEST_CONTEXT("path " << path) {
      PairConfig config = pair_of(path);
      config.a.cq_capacity = 64;
      Pair pair(config);
      std::byte* memory = pair.allocate(32'768);
      const auto data = of_value(std::byte{1}, 32'768);
      std::atomic<bool> stop{false};
      std::atomic<uint64_t> ok{0}, failed{0}, strange{0};
      std::thread writer([&] {
        uint64_t i = 0;
        const auto drain = [&] {
          while (const auto c = try_completion(*pair.a)) {
            if (c->error == 0)
              ++ok;
            else if (c->status == Status::no_key || c->status == Status::stale_key || c->status == Status::not_enabled)
              ++failed;
            else
              ++strange;
          }
        };
        while (!stop.load()) {
          ++i;
          (void)post(*pair.a->ep, write_of(pair.dest, data.data(), i % 3 == 0 ? 32'768 : 64, 0, 5, i));
          drain();
          pair.a->progress();
          if (i % 16 == 0) sched_yield();
        }
        poll_until(
            [&] {
              drain();
              return pair.a->ep->outstanding() == 0;
            },
            [&] { pair.a->progress(); });
        drain();
      });
      pair.until([&] { return ok.load() + failed.load() != 0; }, "the writer to find its peer");
      uint64_t late = 0;
      for (int round = 0; round < 60; ++round) {
        auto region =
            pair.b->domain->register_region(std::array{iovec{memory, 32'768}}, mem::kRemoteWrite, 5, false, true);
        for (int i = 0; i < 20; ++i) {
          pair.b->progress();
          sched_yield();
        }
        std::string why;
        BOOST_TEST_REQUIRE(region->close(&why), why);
        pair.b->fence();  // It is ours alone now.
        std::memset(memory, 0, 32'768);
        for (int i = 0; i < 10; ++i) {
          pair.b->progress();
          sched_yield();
        }
        late += !std::all_of(memory, memory + 32'768, [](std::byte x) { return x == std::byte{0}; });
        pair.b->fence();
      }
      stop.store(true);
      writer.join();
      BOOST_TEST(late == 0U);
      BOOST_TEST(strange.load() == 0U);
      BOOST_TEST(ok.load() + failed.load() > 0U);
      BOOST_TEST_MESSAGE(path << ": ok " << ok.load() << ", refused " << failed.load());
    }
  }
}

BOOST_AUTO_TEST_CASE(test_closing_the_target_endpoint_under_traffic_ends_every_operation) {
  for (const Path path : kPaths) {
    BOOST_TEST_CONTEXT("path " << path) {
      for (int round = 0; round < 4; ++round) {
        Pair pair(pair_of(path));
        auto data = pattern(40'000);
        uint64_t posted = 0, done = 0;
        for (int i = 0; i < 200; ++i) {
          if (i == 100) pair.b->ep->close();
          posted +=
              post(*pair.a->ep, write_of(pair.dest, data.data(), i % 2 == 0 ? 40'000 : 8, 0, pair.key())).refusal ==
              Refusal::none;
          while (const auto c = try_completion(*pair.a)) {
            ++done;
            BOOST_TEST((c->error == 0 || c->status == Status::no_endpoint), c->text);
          }
        }
        pair.until(
            [&] {
              while (try_completion(*pair.a)) ++done;
              return done == posted;
            },
            "every completion");
        expect_idle(pair);
      }
    }
  }
}

/// Long copies are made outside the domain's lock: the address vector may change, and other threads may post,
/// meanwhile.
BOOST_AUTO_TEST_CASE(test_long_copies_and_a_changing_address_vector) {
  for (const Path path : {Path::self, Path::direct, Path::cma}) {
    BOOST_TEST_CONTEXT("path " << path) {
      PairConfig config = pair_of(path);
      config.b.counters = true;  // a notice follows each copy
      config.bytes = 1 << 18;
      Pair pair(config);
      std::atomic<bool> stop{false};
      std::thread changer([&] {
        for (uint32_t i = 1; !stop.load(); ++i) {
          const uint64_t strange = pair.a->av->insert({1, 0x1000 + i, 1, 0});
          if (i % 4 == 0) pair.a->av->remove(strange);
          const uint64_t again = pair.a->av->insert(pair.b->ep->address());
          if (i % 8 == 0) pair.a->av->remove(again);
          sched_yield();
        }
      });
      auto data = pattern(1 << 18);
      std::deque<std::vector<nic::BatchDesc>> all_descs;  // theirs until the completion
      uint64_t posted = 0, done = 0, bad = 0;
      const auto drain = [&] {
        while (const auto c = try_completion(*pair.a)) {
          ++done;
          bad += c->error != 0;
        }
      };
      for (int i = 0; i < 400; ++i) {
        const uint64_t dest = pair.a->av->insert(pair.b->ep->address());
        if (i % 2 == 0) {
          posted += post(*pair.a->ep, write_of(dest, data.data(), 1 << 17, 0, pair.key())).refusal == Refusal::none;
        } else {
          auto& descs = all_descs.emplace_back(3, nic::BatchDesc{0, 1 << 16, dest, 0, pair.key(), 0, 0});
          // A vanished address is an error of the descriptor.
          posted +=
              pair.a->ep->post_batch(OpKind::write, data.data(), data.size(), descs, 0, 1).refusal == Refusal::none;
          pair.poll();
        }
        drain();
      }
      stop.store(true);
      changer.join();
      pair.until(
          [&] {
            drain();
            return done == posted;
          },
          "every completion");
      BOOST_TEST_MESSAGE(path << ": " << bad << " found their address gone");
      expect_idle(pair);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_two_threads_post_on_one_endpoint) {
  on_every_path([](PairConfig config) {
    if (config.manual) return;
    config.a.cq_capacity = 4096;
    Pair pair(config);
    constexpr int kEach = 500;
    std::vector<std::thread> threads;
    std::atomic<int> posted{0};
    const auto data = pattern(20'000);
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) {
          const size_t n = i % 50 == 0 ? 10'000 : 16;
          const auto access = write_of(pair.dest, data.data(), n, static_cast<uint64_t>(t) * 20'000, pair.key());
          while (post(*pair.a->ep, access).refusal != Refusal::none) {
            pair.a->progress();
            sched_yield();
          }
          ++posted;
        }
      });
    }
    int done = 0;
    pair.until(
        [&] {
          while (const auto c = try_completion(*pair.a)) {
            ++done;
            BOOST_TEST(c->error == 0, c->text);
          }
          return done == 2 * kEach;
        },
        "all writes");
    for (auto& t : threads) t.join();
    expect_idle(pair);
  });
}

/// More is under way than the ring and the staging memory hold, both ways at once.
BOOST_AUTO_TEST_CASE(test_more_traffic_than_the_ring_holds) {
  for (const Path path : {Path::ring, Path::strict, Path::tcp}) {
    for (const bool manual : {false, true}) {
      BOOST_TEST_CONTEXT("path " << path << (manual ? ", manual" : ", engine")) {
        PairConfig config = pair_of(path, manual);
        config.a.ep.tx_size = 20'000;
        config.a.cq_capacity = 20'000;
        config.bytes = 1 << 20;
        Pair pair(config);
        auto data = pattern(1 << 20);
        std::vector<std::byte> back(1 << 20);
        uint64_t posted = 0, done = 0;
        for (int i = 0; i < 6000; ++i) {
          posted += post(*pair.a->ep, write_of(pair.dest, data.data(), 8, 0, pair.key())).refusal == Refusal::none;
        }
        for (int i = 0; i < 24; ++i) {
          posted +=
              post(*pair.a->ep, write_of(pair.dest, data.data(), 1 << 20, 0, pair.key())).refusal == Refusal::none;
          posted += post(*pair.a->ep, read_of(pair.dest, back.data(), 1 << 20, 0, pair.key())).refusal == Refusal::none;
        }
        BOOST_TEST(posted == 6048U);
        pair.until(
            [&] {
              while (const auto c = try_completion(*pair.a)) {
                BOOST_TEST(c->error == 0, c->text);
                ++done;
              }
              return done == posted;
            },
            "all completions");
        BOOST_TEST((back == data));
        expect_idle(pair);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_virtual_addresses_and_provider_keys_on_every_path) {
  on_every_path([](PairConfig config) {
    config.b.domain.prov_key = config.b.domain.virt_addr = true;
    Pair pair(config);
    const auto base = reinterpret_cast<uint64_t>(pair.memory);
    const uint64_t key = pair.region->key();
    const uint64_t word = 0x0102030405060708;
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, base + 16, key)).error == 0);
    uint64_t back = 0;
    BOOST_TEST(pair.run(read_of(pair.dest, &back, 8, base + 16, key)).error == 0);
    BOOST_TEST(back == word);
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, base - 1, key)).status == Status::bounds);
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, key)).status == Status::bounds);
    std::string why;
    BOOST_TEST(pair.region->close(&why));
    auto again = pair.b->reg(pair.memory, config.bytes, 0);
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, base, key)).status == Status::stale_key);
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, base, again->key())).error == 0);
  });
}

/// Memory that was registered as a bare address range may not be there: that is an error, not a signal.
BOOST_AUTO_TEST_CASE(test_missing_pages_are_an_error) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    void* room = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(room != MAP_FAILED);
    const iovec list{room, 8192};
    pair.b->reg_list({&list, 1}, 90, mem::kRemoteRead | mem::kRemoteWrite, true, true);
    const auto data = pattern(4096);
    std::vector<std::byte> back(4096);
    BOOST_TEST(pair.run(write_of(pair.dest, data.data(), 4096, 0, 90)).error == 0);
    BOOST_TEST(pair.run(read_of(pair.dest, back.data(), 4096, 0, 90)).error == 0);
    BOOST_TEST((back == data));
    BOOST_REQUIRE(::munmap(room, 8192) == 0);
    BOOST_TEST(pair.run(write_of(pair.dest, data.data(), 64, 0, 90)).status == Status::fault);
    BOOST_TEST(pair.run(read_of(pair.dest, back.data(), 64, 4096, 90)).status == Status::fault);
    int64_t one = 1;
    const iovec operand{&one, 8};
    const wire::RmaRange range{0, 8, 90};
    BOOST_TEST(pair.a->ep
                   ->post_atomic(atomic_of(pair.dest, AtomicFamily::base, AtomicOp::sum, Datatype::int64, &operand,
                                           nullptr, nullptr, &range))
                   .refusal == Refusal::none);
    BOOST_TEST(pair.wait().status == Status::fault);
    BOOST_TEST(pair.write(data.data(), 64, 0).error == 0);
  });
}

struct Unheard final : nic::Notifier {
  void notify() noexcept override {}
};

BOOST_AUTO_TEST_CASE(test_passive_endpoint_forgets_whom_it_turned_down) {
  for (const Path path : {Path::direct, Path::tcp}) {
    SideConfig config;
    config.host.shm_link = path != Path::tcp;
    config.listen = path == Path::tcp;
    Side listener(config);
    const auto heard = std::make_shared<nic::CmQueue>(std::make_shared<Unheard>());
    listener.ep->bind_cm(heard, 1, true);
    std::optional<nic::CmEvent> event;
    const auto hear = [&](nic::CmKind kind) {
      BOOST_REQUIRE(poll_until([&] { return (event = heard->pop()).has_value(); }, [&] { listener.progress(); }));
      BOOST_TEST(static_cast<int>(event->kind) == static_cast<int>(kind));
    };
    wire::EpAddress address = listener.ep->address();
    if (const auto at = listener.host->tcp().listening()) address.nic = link::route_number({*at, address.nic});
    for (uint64_t number = 1; number <= 4; ++number) {
      auto caller = std::make_unique<Side>(config);
      const auto answers = std::make_shared<nic::CmQueue>(std::make_shared<Unheard>());
      caller->ep->bind_cm(answers, 2, false);
      BOOST_REQUIRE(caller->ep->send_cm(address, nic::CmKind::request, number, {}).refusal == Refusal::none);
      hear(nic::CmKind::request);
      BOOST_TEST(event->connection == number);
      const bool gone = number == 4;  // nobody is there any more to be turned down
      if (gone) caller.reset();
      BOOST_REQUIRE(listener.ep->send_cm(event->source, nic::CmKind::reject, number, {}).refusal == Refusal::none);
      hear(gone ? nic::CmKind::failed : nic::CmKind::delivered);
      const nic::DomainLock guard(listener.domain.get());
      BOOST_TEST(listener.av->count() == 0U);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_enable_needs_what_an_endpoint_needs) {
  SideConfig config;
  config.enable = false;
  Side side(config);
  const auto fails = [](int code) { return [code](const Error& e) { return e.fi_code() == code; }; };
  auto bare = side.domain->make_endpoint(config.ep);
  BOOST_CHECK_EXCEPTION(bare->enable(0, {}), Error, fails(fi_err::kENOAV));
  bare->bind_av(side.av);
  BOOST_CHECK_EXCEPTION(bare->enable(0, {}), Error, fails(fi_err::kENOCQ));
  bare->bind_cq(side.cq, flag::kSend);
  const uint64_t word = 0;
  BOOST_TEST(post(*bare, write_of(0, &word, 8, 0, 1)).refusal == Refusal::not_enabled);
  bare->enable(0, {});
  BOOST_CHECK_EXCEPTION(bare->enable(0, {}), Error, fails(fi_err::kEOPBADSTATE));
  BOOST_CHECK_EXCEPTION(bare->bind_cq(side.cq, flag::kSend), Error, fails(fi_err::kEOPBADSTATE));
  bare->close();
  bare->close();
  BOOST_CHECK_EXCEPTION(bare->enable(0, {}), Error, fails(fi_err::kEOPBADSTATE));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
