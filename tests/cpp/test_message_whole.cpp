// tests/cpp/test_message_whole.cpp: eager messages of several frames between two endpoints, on every path: the receiver
// has them at once, without a receive.
#include <random>

#include "messaging.hpp"

namespace {

using namespace weft;
using namespace weft::test;

constexpr size_t kEagerMax = size_t{1} << 20, kFrame = size_t{64} << 10;

PairConfig whole(PairConfig config, size_t buffer_bytes = 2 * kEagerMax, uint32_t buffers = 1000) {
  for (SideConfig* side : {&config.a, &config.b}) {
    side->ep.messages.eager_max = kEagerMax;
    side->ep.messages.eager_part = 2048;
    side->ep.messages.buffers.bytes = buffer_bytes;
    side->ep.messages.buffers.count_max = buffers;
  }
  return config;
}

uint32_t kept(Pair& pair) {
  return pair.b->ep->port()->context().statistics().buffers.messages;
}

BOOST_AUTO_TEST_SUITE(message_whole)

BOOST_AUTO_TEST_CASE(test_send_ends_without_a_receive_and_its_buffer_is_free) {
  on_every_message_path([](PairConfig config) {
    Pair pair(whole(config));
    for (const size_t n : {kFrame, kFrame + 1, size_t{300'000}, kEagerMax}) {
      for (const bool tagged : {false, true}) {
        BOOST_TEST_CONTEXT(n << " bytes, " << (tagged ? "tagged" : "untagged")) {
          auto from = text_of(n, static_cast<unsigned>(n));
          const auto original = from;
          std::vector<std::byte> to(n + 8);
          BOOST_REQUIRE((send(*pair.a->ep, pair.dest, from.data(), n,
                              {.tag = 7, .flags = flag::kRemoteCqData, .data = 99, .tagged = tagged})
                             .refusal == Refusal::none));
          const Completion sent = pair.wait(pair.a.get());
          BOOST_TEST(sent.error == 0, sent.text);
          std::ranges::fill(from, std::byte{0});
          BOOST_TEST(kept(pair) == 1U);
          receive(*pair.b->ep, to.data(), to.size(), {.tag = 7, .tagged = tagged});
          const Completion got = pair.wait(pair.b.get());
          BOOST_TEST(got.error == 0, got.text);
          BOOST_TEST(got.entry.len == n);
          BOOST_TEST(got.entry.data == 99U);
          BOOST_TEST(std::equal(original.begin(), original.end(), to.begin()));
          BOOST_TEST(kept(pair) == 0U);
        }
      }
    }
    BOOST_TEST(pair.b->ep->port()->pulls().gets == 0U);  // none was a rendezvous
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_message_that_is_longer_than_the_eager_ones_waits_for_its_receive) {
  on_every_message_path([](PairConfig config) {
    Pair pair(whole(config));
    const auto from = text_of(kEagerMax + 1);
    std::vector<std::byte> to(from.size());
    send(*pair.a->ep, pair.dest, from.data(), from.size(), {.tag = 7});
    pair.until([&] { return pair.b->ep->port()->context().statistics().unexpected == 1; }, "the message");
    for (int i = 0; i < 50; ++i) pair.poll();
    BOOST_TEST(!try_completion(*pair.a));
    receive(*pair.b->ep, to.data(), to.size(), {.tag = 7});
    BOOST_TEST(pair.wait(pair.b.get()).error == 0);
    BOOST_TEST(pair.wait(pair.a.get()).error == 0);
    BOOST_TEST((to == from));
    BOOST_TEST(pair.b->ep->port()->pulls().gets == 1U);
  });
}

BOOST_AUTO_TEST_CASE(test_message_of_several_buffers_goes_to_several_buffers_early_and_late) {
  on_every_message_path([](PairConfig config) {
    Pair pair(whole(config));
    const size_t n = 300'000;
    for (const bool late : {false, true}) {
      auto from = text_of(n);
      std::vector<std::byte> to(n);
      const iovec out[] = {{from.data(), n / 3}, {from.data() + n / 3, n - n / 3}};
      const iovec in[] = {
          {to.data(), n / 2}, {to.data() + n / 2, n / 4}, {to.data() + n / 2 + n / 4, n - n / 2 - n / 4}};
      if (!late) receive(*pair.b->ep, in);
      send(*pair.a->ep, pair.dest, out);
      const Completion sent = pair.wait(pair.a.get());
      if (late) receive(*pair.b->ep, in);
      const Completion got = pair.wait(pair.b.get());
      BOOST_TEST(sent.error == 0, sent.text);
      BOOST_TEST(got.error == 0, got.text);
      BOOST_TEST((to == from));
    }
  });
}

BOOST_AUTO_TEST_CASE(test_inject_flag_frees_the_buffer_with_the_call) {
  on_every_message_path([](PairConfig config) {
    config.a.ep.inject_size = kEagerMax;
    Pair pair(whole(config));
    auto from = text_of(200'000);
    const auto original = from;
    std::vector<std::byte> to(from.size());
    send(*pair.a->ep, pair.dest, from.data(), from.size(), {.tag = 1, .flags = flag::kInject | flag::kCompletion});
    std::ranges::fill(from, std::byte{0});
    BOOST_TEST(pair.wait(pair.a.get()).error == 0);
    receive(*pair.b->ep, to.data(), to.size(), {.tag = 1});
    BOOST_TEST(pair.wait(pair.b.get()).error == 0);
    BOOST_TEST((to == original));
  });
}

BOOST_AUTO_TEST_CASE(test_match_complete_send_ends_with_the_receive) {
  on_every_message_path([](PairConfig config) {
    Pair pair(whole(config));
    const auto from = text_of(200'000);
    std::vector<std::byte> to(from.size());
    send(*pair.a->ep, pair.dest, from.data(), from.size(), {.tag = 1, .flags = flag::kMatchComplete});
    send(*pair.a->ep, pair.dest, from.data(), from.size(), {.tag = 2, .context = 5});
    BOOST_TEST(pair.wait(pair.a.get()).entry.context == 5U);
    BOOST_TEST(!try_completion(*pair.a));
    receive(*pair.b->ep, to.data(), to.size(), {.tag = 1});
    BOOST_TEST(pair.wait(pair.b.get()).error == 0);
    BOOST_TEST(pair.wait(pair.a.get()).entry.context == 1U);
  });
}

// 3 buffers of one message each: the rest waits at the sender, in order.
BOOST_AUTO_TEST_CASE(test_messages_beyond_the_buffers_wait_at_the_sender_and_keep_their_order) {
  on_every_message_path([](PairConfig config) {
    constexpr size_t kLength = 150'000, kCount = 12;
    Pair pair(whole(config, 200'000, 3));
    std::vector<std::vector<std::byte>> from;
    size_t posted = 0;
    for (size_t i = 0; i < kCount; ++i) {
      from.push_back(text_of(kLength, static_cast<unsigned>(i)));
      if (send(*pair.a->ep, pair.dest, from[i].data(), kLength, {.context = i + 1, .data = i}).refusal != Refusal::none)
        break;
      ++posted;
    }
    BOOST_TEST_REQUIRE(posted > 3U);
    pair.until([&] { return pair.b->ep->port()->context().statistics().refused != 0; }, "a refusal");
    BOOST_TEST(kept(pair) <= 3U);
    std::vector<std::byte> to(kLength);
    for (size_t i = 0; i < posted; ++i) {
      receive(*pair.b->ep, to.data(), to.size());
      const Completion got = pair.wait(pair.b.get());
      BOOST_TEST(got.error == 0, got.text);
      BOOST_TEST((to == from[i]));
      BOOST_TEST(pair.b->ep->port()->context().statistics().buffers.buffers <= 3U);
    }
    for (size_t i = 0; i < posted; ++i) BOOST_TEST(pair.wait(pair.a.get()).error == 0);
    expect_idle(pair);
  });
}

// Neither side may wait for the other: where the receiver asks for frames, the sender closes between them.
BOOST_AUTO_TEST_CASE(test_close_of_the_sender_while_a_message_lands_leaves_nothing_of_it_or_the_whole) {
  on_every_message_path([](PairConfig config) {
    Pair pair(whole(config));
    const auto from = text_of(kEagerMax);
    std::vector<std::byte> to(kEagerMax);
    for (int i = 0; i < 4; ++i) send(*pair.a->ep, pair.dest, from.data(), from.size(), {.tag = 1});
    pair.until([&] { return pair.b->ep->port()->context().statistics().unexpected != 0; }, "a message");
    pair.a->ep->close();
    const auto settled = [&] {
      const auto s = pair.b->ep->port()->context().statistics();
      return s.buffers.messages == s.match.unexpected && !pair.b->ep->port()->has_pulls();
    };
    for (;;) {
      pair.until(settled, "the end of the pulls");
      if (pair.b->ep->port()->context().statistics().match.unexpected == 0) break;
      std::ranges::fill(to, std::byte{0});
      receive(*pair.b->ep, to.data(), to.size(), {.tag = 1});
      std::optional<Completion> got;
      const auto ended = [&] {
        got = try_completion(*pair.b);
        return got || pair.b->ep->port()->context().statistics().match.posted != 0;  // the message went before
      };
      pair.until(ended, "the end of a receive");
      if (!got) break;
      BOOST_TEST((got->error != 0 || to == from));
      if (got->error != 0) BOOST_TEST(got->entry.len == 0U);
    }
  });
}

BOOST_AUTO_TEST_CASE(test_close_of_the_receiver_while_messages_land_ends_their_sends) {
  on_every_message_path([](PairConfig config) {
    Pair pair(whole(config));
    const auto from = text_of(kEagerMax);
    constexpr int kCount = 4;
    for (int i = 0; i < kCount; ++i) send(*pair.a->ep, pair.dest, from.data(), from.size(), {.tag = 1});
    pair.until([&] { return pair.b->ep->port()->context().statistics().unexpected != 0; }, "a message");
    pair.b->ep->close();
    for (int i = 0; i < kCount; ++i) {
      const Completion sent = pair.wait(pair.a.get());
      BOOST_TEST((sent.error == 0 || sent.error == fi_err::kECONNREFUSED || sent.error == fi_err::kECONNRESET),
                 sent.text);
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
