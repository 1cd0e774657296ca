// tests/cpp/test_nic_transfers.cpp: transfers, batches and atomics have the same result on every path.
#include <algorithm>
#include <numeric>
#include <thread>

#include "every_path.hpp"

using namespace weft;
using namespace weft::test;

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
    BOOST_TEST(pair.write(data.data(), 64, 0).error == 0);  // and the endpoint still works
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_pieces_and_ranges_meet_at_any_boundary) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    std::mt19937_64 random(17);
    const auto data = pattern(40'000, 9);
    for (int round = 0; round < 12; ++round) {
      // The same bytes, divided differently on the two sides.
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

BOOST_AUTO_TEST_CASE(test_inject_copies_its_buffer_and_completes_silently) {
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
    BOOST_TEST(pair.run(bad).status == Status::no_key);  // an error is reported nevertheless
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
    // Reads; all valid: one success completion with the sum of the bytes.
    std::vector<std::byte> back(60'000);
    std::vector<nic::BatchDesc> descs;
    for (uint64_t i = 0; i < 100; ++i) descs.push_back({i * 600, 600, pair.dest, i * 600, pair.key(), 77, 0});
    BOOST_TEST(pair.a->ep->post_batch(OpKind::read, back.data(), back.size(), descs, 0, 22).refusal == Refusal::none);
    const auto done = pair.wait();
    BOOST_TEST(done.error == 0, done.text);
    BOOST_TEST(done.entry.len == 60'000U);
    BOOST_TEST(done.entry.flags == (flag::kRma | flag::kRead));
    BOOST_TEST((back == pair.look(0, 60'000)));
    // An empty batch.
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
    BOOST_TEST(run(AtomicFamily::fetch, AtomicOp::sum, Datatype::int64, ops, nullptr, old, 8, 132).status ==
               Status::misaligned);
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
    for (int i = 0; i < 2; ++i) {  // not aligned to its size: updated under the owner's lock
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

BOOST_AUTO_TEST_CASE(test_post_refuses_empty_lists_and_overflowing_sums) {
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
    std::vector<std::byte> large(8192);
    const iovec one{buffer, 8}, two{buffer, 16}, most{large.data(), large.size()};
    const wire::RmaRange range{0, 8, pair.key()}, all{0, large.size(), pair.key()};
    const auto atomic = [&](AtomicFamily family, AtomicOp op, const iovec* operand, const iovec* compare,
                            const iovec* result, const wire::RmaRange* at) {
      return pair.a->ep->post_atomic(atomic_of(pair.dest, family, op, Datatype::int64, operand, compare, result, at))
          .refusal;
    };
    const auto fetch = AtomicFamily::fetch, swap = AtomicFamily::compare;
    BOOST_TEST(atomic(fetch, AtomicOp::sum, &two, nullptr, &one, &range) == Refusal::length_mismatch);
    BOOST_TEST(atomic(fetch, AtomicOp::sum, &one, nullptr, &two, &range) == Refusal::length_mismatch);
    BOOST_TEST(atomic(swap, AtomicOp::cswap, &one, &two, &one, &range) == Refusal::length_mismatch);
    BOOST_TEST(atomic(AtomicFamily::base, AtomicOp::sum, &most, nullptr, nullptr, &all) == Refusal::too_long);
    BOOST_TEST(pair.a->unread() == 0U);
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_SUITE_END()
