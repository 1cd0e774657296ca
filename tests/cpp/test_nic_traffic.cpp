// tests/cpp/test_nic_traffic.cpp: objects that close, and address vectors that change, under traffic.
#include <algorithm>
#include <numeric>
#include <thread>

#include "every_path.hpp"

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(nic_endpoint)

BOOST_AUTO_TEST_CASE(test_region_close_under_traffic_admits_no_late_write) {
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
        pair.b->fence();  // no peer writes here any more
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

BOOST_AUTO_TEST_CASE(test_close_of_the_target_endpoint_ends_every_operation) {
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

/// Long copies are made outside the domain's lock: meanwhile the address vector may change, and other threads may post.
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
      std::deque<std::vector<nic::BatchDesc>> all_descs;  // the NIC uses them until the completion
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
          // A removed address is an error of the descriptor.
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

/// More operations are under way than the ring and the staging memory hold, in both directions at once.
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

BOOST_AUTO_TEST_SUITE_END()
