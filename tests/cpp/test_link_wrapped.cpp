// tests/cpp/test_link_wrapped.cpp: links that wrap the links of a real NIC (wrapping.hpp): a link that delays and
// reorders frames, and a link that loses connections.
#include <unistd.h>

#include <numeric>
#include <thread>

#include "messaging.hpp"
#include "wrapping.hpp"

using namespace weft;
using namespace weft::test;

namespace {

template <typename Made, typename Make>
void wrap_links(host::HostConfig& host, std::vector<Made*>& made, Make&& make) {
  host.wrap = [&made, make](link::Link& inner, Clock& clock, Random&) {
    auto outer = make(inner, clock);
    made.push_back(outer.get());
    return outer;
  };
}

}  // namespace

BOOST_AUTO_TEST_SUITE(link_wrapped)

BOOST_AUTO_TEST_CASE(test_link_that_delays_and_reorders_loses_nothing_and_keeps_flows_in_order) {
  uint64_t overtaken = 0;
  on_every_message_path([&](PairConfig config) {
    uint64_t seed = test_seed();
    BOOST_TEST_CONTEXT("WEFT_SEED=" << seed) {
      Seeded random(seed);
      std::vector<DelayingLink*> links;
      const auto delaying = [&seed](link::Link& inner, Clock& clock) {
        return std::make_unique<DelayingLink>(inner, clock, ++seed, 300'000);
      };
      wrap_links(config.a.host, links, delaying);
      wrap_links(config.b.host, links, delaying);
      Pair pair(config);
      SideConfig second = config.b;
      second.pid = std::nullopt;
      const auto other = pair.b->extra_endpoint(second);
      auto other_address = pair.b->address();
      other_address.pid = other->address().pid;
      const uint64_t dests[] = {pair.dest, pair.a->av->insert(other_address)};

      constexpr uint32_t kMessages = 60, kBytes = 700;
      std::vector<std::vector<std::byte>> from(2 * kMessages), to(2 * kMessages, std::vector<std::byte>(kBytes));
      std::vector<std::vector<std::byte>> written(kMessages), back(kMessages);
      for (uint32_t i = 0; i < 2 * kMessages; ++i) {
        nic::Endpoint& ep = i % 2 == 0 ? *pair.b->ep : *other;
        BOOST_TEST(receive(ep, to[i].data(), kBytes, {.context = 1000 + i, .tagged = false}).refusal == Refusal::none);
        from[i] = text_of(1 + random.below(kBytes), i);
      }
      uint32_t sent = 0, wrote = 0, received = 0;
      uint32_t next[2] = {1000, 1001};  // the context of each endpoint's next receive
      const auto drain = [&](Side& side) {
        while (const auto c = try_completion(side)) {
          BOOST_TEST(c->error == 0, c->text);
          if (c->entry.context >= 1000) {
            uint32_t& expected = next[c->entry.context % 2];
            BOOST_TEST(c->entry.context == expected);
            expected += 2;
            ++received;
          } else {
            c->entry.context == 1 ? ++sent : ++wrote;
          }
        }
      };
      const auto both = [&] { drain(*pair.a), drain(*pair.b); };
      for (uint32_t i = 0; i < 2 * kMessages; ++i) {
        pair.until(
            [&] {
              both();
              return send(*pair.a->ep, dests[i % 2], from[i].data(), from[i].size(), {.context = 1, .tagged = false})
                         .refusal == Refusal::none;
            },
            "room for a message");
        if (i % 2 != 0) continue;
        const size_t at = i / 2;
        written[at] = pattern(512, seed + i);
        pair.until(
            [&] {
              both();
              return post(*pair.a->ep, write_of(pair.dest, written[at].data(), 512, 512 * at, pair.key(), 3)).refusal ==
                     Refusal::none;
            },
            "room for a write");
      }
      pair.until([&] { return both(), sent == 2 * kMessages && received == sent && wrote == kMessages; },
                 "every completion");
      for (uint32_t i = 0; i < 2 * kMessages; ++i) {
        to[i].resize(from[i].size());
        BOOST_TEST((to[i] == from[i]), "message " << i);
      }
      for (uint32_t i = 0; i < kMessages; ++i) BOOST_TEST((pair.look(512 * i, 512) == written[i]), "write " << i);
      uint64_t delayed = 0;
      for (const DelayingLink* link : links) delayed += link->delayed(), overtaken += link->overtaken();
      BOOST_TEST(delayed >= 2 * kMessages);
    }
  });
  BOOST_TEST(overtaken != 0U);
}

BOOST_AUTO_TEST_CASE(test_link_that_loses_connections_ends_their_operations_and_the_next_ones_connect_again) {
  uint64_t failed = 0;
  for (const Path path : {Path::ring, Path::strict, Path::tcp}) {
    for (const bool manual : {false, true}) {
      BOOST_TEST_CONTEXT("path " << path << (manual ? ", manual" : ", engine")) {
        const uint64_t seed = test_seed();
        BOOST_TEST_CONTEXT("WEFT_SEED=" << seed) {
          constexpr size_t kBytes = 200'000;  // several frames
          constexpr uint32_t kAtOnce = 6;     // some are under way when an answer to another one brings the loss
          PairConfig config = pair_of(path, manual);
          config.bytes = kBytes;
          std::vector<LosingLink*> links;
          wrap_links(config.a.host, links,
                     [&](link::Link& inner, Clock&) { return std::make_unique<LosingLink>(inner, seed, 8, 4); });
          Pair pair(config);
          const auto lost = [&] {
            return std::accumulate(links.begin(), links.end(), uint64_t{0},
                                   [](auto n, auto* l) { return n + l->lost(); });
          };
          const auto data = pattern(kBytes, seed);
          uint64_t after = 0;
          for (uint32_t i = 0; after < 20; ++i) {
            BOOST_TEST_REQUIRE(i < 2'000U);
            pair.until([&] { return pair.a->nic().downs() >= lost(); }, "the news of the loss");
            const bool over = lost() == 4;
            for (uint32_t n = 0; n < kAtOnce; ++n) {
              const auto access = write_of(pair.dest, data.data(), kBytes, 0, pair.key(), n + 1);
              BOOST_TEST(post(*pair.a->ep, access).refusal == Refusal::none);
            }
            for (uint32_t n = 0; n < kAtOnce; ++n) {
              const Completion c = pair.wait();
              if (c.error != 0) BOOST_TEST(c.status == Status::peer_gone, c.text);
              if (over) BOOST_TEST(c.error == 0, c.text);
              failed += c.error != 0;
            }
            after += over;
          }
          BOOST_TEST((pair.look(0, kBytes) == data));
          expect_idle(pair);
        }
      }
    }
  }
  BOOST_TEST(failed != 0U);
}

BOOST_AUTO_TEST_CASE(test_links_that_wrap_each_other_all_see_what_passes) {
  PairConfig config = pair_of(Path::strict, true);
  std::vector<std::unique_ptr<link::Link>> inside;
  std::vector<DelayingLink*> links;
  config.a.host.wrap = [&](link::Link& inner, Clock& clock, Random& random) {
    auto near = std::make_unique<DelayingLink>(inner, clock, random.next(), 1'000);
    inner.wrap_in(*near);
    auto far = std::make_unique<DelayingLink>(*near, clock, random.next(), 1'000);
    links.push_back(near.get());
    links.push_back(far.get());
    inside.push_back(std::move(near));
    return far;
  };
  Pair pair(config);
  const auto data = pattern(300);
  const auto done = pair.write(data.data(), 300, 0);
  BOOST_TEST(done.error == 0, done.text);
  uint64_t seen = 0;
  for (size_t i = 0; i < links.size(); i += 2) {
    BOOST_TEST(links[i]->delayed() == links[i + 1]->delayed());
    seen += links[i]->delayed();
  }
  BOOST_TEST(seen != 0U);
  for (auto& peer : pair.a->nic().links().at(1)->peers()) BOOST_TEST(peer->link() == links.at(3));
  pair.a.reset();  // before the links inside
}

/// The engine serves connections; a thread that polls without a pause has the NIC nearly always, and then serves them
/// in the engine's place.
BOOST_AUTO_TEST_CASE(test_thread_that_keeps_the_nic_from_the_engine_serves_connections) {
  class HoldingLink final : public WrappingLink {
   public:
    using WrappingLink::WrappingLink;
    [[nodiscard]] bool maybe_ready() const noexcept override { return true; }
    size_t poll(link::FrameSink& sink, size_t budget) override {
      if (std::this_thread::get_id() == application_) usleep(2'000);  // the engine tries each millisecond
      return WrappingLink::poll(sink, budget);
    }
    size_t poll_events(link::FrameSink& sink) override {
      if (std::this_thread::get_id() == application_) ++served;
      return WrappingLink::poll_events(sink);
    }
    int served = 0;  // by the application's thread

   private:
    std::thread::id application_ = std::this_thread::get_id();
  };
  std::vector<HoldingLink*> links;
  SideConfig config;
  config.host.engine_thread = true;
  wrap_links(config.host, links, [](link::Link& inner, Clock&) { return std::make_unique<HoldingLink>(inner); });
  Side side(config);
  const auto poll = [&] {
    side.nic().waiter().wake();  // as a connection would: the engine may have gone to sleep before the first poll
    side.nic().poll_from_app();
  };
  BOOST_TEST(poll_until([&] { return links.front()->served > 0; }, poll));
}

BOOST_AUTO_TEST_SUITE_END()
