// tests/cpp/test_message.cpp: messages between two endpoints, on every path: protocols, order, completions, ends.
#include <random>

#include "messaging.hpp"

namespace {

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(messages)

BOOST_AUTO_TEST_CASE(test_message_of_every_protocol_arrives_whether_the_receive_is_first_or_last) {
  on_every_message_path([](PairConfig config) {
    Pair pair(config);
    for (const size_t n : {size_t{0}, size_t{8}, size_t{152}, size_t{153}, size_t{4096}, size_t{16384}, size_t{16385},
                           size_t{1} << 20}) {
      for (const bool late : {false, true}) {
        const auto from = text_of(n, static_cast<unsigned>(n));
        std::vector<std::byte> to(n + 8);
        if (!late) BOOST_REQUIRE((receive(*pair.b->ep, to.data(), to.size(), {.tag = 7}).refusal == Refusal::none));
        BOOST_REQUIRE((send(*pair.a->ep, pair.dest, from.data(), n, {.tag = 7}).refusal == Refusal::none));
        if (late) {
          for (int i = 0; i < 20; ++i) pair.poll();
          BOOST_REQUIRE((receive(*pair.b->ep, to.data(), to.size(), {.tag = 7}).refusal == Refusal::none));
        }
        const Completion sent = pair.wait(pair.a.get()), got = pair.wait(pair.b.get());
        BOOST_TEST_CONTEXT(n << " bytes, " << (late ? "late" : "early")) {
          BOOST_TEST(sent.error == 0, sent.text);
          BOOST_TEST(sent.entry.flags == (flag::kSend | flag::kTagged));
          BOOST_TEST(sent.entry.context == 1U);
          BOOST_TEST(got.error == 0, got.text);
          BOOST_TEST(got.entry.flags == (flag::kRecv | flag::kTagged));
          BOOST_TEST(got.entry.len == n);
          BOOST_TEST(got.entry.tag == 7U);
          BOOST_TEST(got.entry.context == 2U);
          BOOST_TEST(std::equal(from.begin(), from.end(), to.begin()));
        }
      }
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_messages_of_mixed_lengths_arrive_in_order) {
  on_every_message_path([](PairConfig config) {
    Pair pair(config);
    constexpr size_t kCount = 200, kMost = 40'000;
    std::mt19937_64 random(5);
    std::vector<std::vector<std::byte>> from, to;
    for (size_t i = 0; i < kCount; ++i) {
      const size_t lengths[] = {8, 100, 300, 5000, 20'000, kMost};
      from.push_back(text_of(lengths[random() % 6], static_cast<unsigned>(i)));
      to.emplace_back(kMost);
    }
    size_t posted = 0, ended = 0, received = 0;
    for (size_t i = 0; i < kCount; ++i) {
      for (; posted < kCount && random() % 2 != 0; ++posted)
        BOOST_REQUIRE(
            (receive(*pair.b->ep, to[posted].data(), kMost, {.context = posted + 1}).refusal == Refusal::none));
      pair.until(
          [&] {
            const auto r = send(*pair.a->ep, pair.dest, from[i].data(), from[i].size(), {.data = i});
            BOOST_REQUIRE(
                (r.refusal == Refusal::none || r.refusal == Refusal::cq_full || r.refusal == Refusal::tx_full));
            return r.refusal == Refusal::none;
          },
          "room for a message");
    }
    for (; posted < kCount; ++posted)
      BOOST_REQUIRE((receive(*pair.b->ep, to[posted].data(), kMost, {.context = posted + 1}).refusal == Refusal::none));
    std::vector<bool> seen(kCount);
    pair.until(
        [&] {
          while (const auto c = try_completion(*pair.a)) {
            BOOST_REQUIRE(c->error == 0);
            ++ended;
          }
          while (const auto c = try_completion(*pair.b)) {
            BOOST_REQUIRE_MESSAGE(c->error == 0, c->text);
            if ((c->entry.flags & flag::kRecv) == 0) continue;
            const size_t i = c->entry.context - 1;
            BOOST_REQUIRE(!seen[i]);
            seen[i] = true;
            BOOST_REQUIRE(c->entry.len == from[i].size());
            BOOST_REQUIRE(std::equal(from[i].begin(), from[i].end(), to[i].begin()));
            ++received;
          }
          return received == kCount && ended == kCount;
        },
        "all messages");
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_receive_shorter_than_its_message_is_an_error_with_the_bytes_that_fit) {
  on_every_message_path([](PairConfig config) {
    Pair pair(config);
    for (const size_t n : {size_t{100}, size_t{5000}, size_t{100'000}}) {
      const auto from = text_of(n);
      std::vector<std::byte> to(n);
      receive(*pair.b->ep, to.data(), n / 2, {.tag = 1});
      send(*pair.a->ep, pair.dest, from.data(), n, {.tag = 1});
      const Completion sent = pair.wait(pair.a.get()), got = pair.wait(pair.b.get());
      BOOST_TEST(sent.error == 0, sent.text);
      BOOST_TEST(got.error == fi_err::kETRUNC);
      BOOST_TEST(got.entry.len == n / 2);
      BOOST_TEST(got.olen == n - n / 2);
      BOOST_TEST(std::equal(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(n / 2), from.begin()));
      BOOST_TEST((to[n / 2] == std::byte{0}));
    }
  });
}

BOOST_AUTO_TEST_CASE(test_message_of_several_buffers_goes_to_several_buffers) {
  on_every_message_path([](PairConfig config) {
    Pair pair(config);
    for (const size_t n : {size_t{30}, size_t{3000}, size_t{300'000}}) {
      auto from = text_of(n);
      std::vector<std::byte> to(n);
      const iovec out[] = {{from.data(), n / 3}, {from.data() + n / 3, n - n / 3}};
      const iovec in[] = {
          {to.data(), n / 2}, {to.data() + n / 2, n / 4}, {to.data() + n / 2 + n / 4, n - n / 2 - n / 4}};
      receive(*pair.b->ep, in);
      send(*pair.a->ep, pair.dest, out);
      const Completion sent = pair.wait(pair.a.get()), got = pair.wait(pair.b.get());
      BOOST_TEST(sent.error == 0, sent.text);
      BOOST_TEST(got.error == 0, got.text);
      BOOST_TEST((to == from));
    }
  });
}

BOOST_AUTO_TEST_CASE(test_message_with_match_complete_ends_when_a_receive_has_it) {
  on_every_message_path([](PairConfig config) {
    Pair pair(config);
    const auto from = text_of(64);
    std::vector<std::byte> to(64);
    for (int round = 0; round < 3; ++round) {
      send(*pair.a->ep, pair.dest, from.data(), 64, {.tag = 3, .flags = flag::kMatchComplete});
      for (int i = 0; i < 50; ++i) pair.poll();
      BOOST_TEST(!try_completion(*pair.a).has_value());
      receive(*pair.b->ep, to.data(), 64, {.tag = 3});
      BOOST_TEST(pair.wait(pair.a.get()).error == 0);
      BOOST_TEST(pair.wait(pair.b.get()).error == 0);
    }
  });
}

BOOST_AUTO_TEST_CASE(test_inject_reports_nothing_and_its_buffer_is_free_at_once) {
  on_every_message_path([](PairConfig config) {
    Pair pair(config);
    std::vector<std::byte> to(200);
    for (unsigned i = 0; i < 100; ++i) {
      auto from = text_of(200, i);
      const auto copy = from;
      BOOST_REQUIRE(
          (send(*pair.a->ep, pair.dest, from.data(), 200, {.tag = 9, .inject = true}).refusal == Refusal::none));
      std::ranges::fill(from, std::byte{0xee});
      receive(*pair.b->ep, to.data(), 200, {.tag = 9});
      BOOST_TEST(pair.wait(pair.b.get()).error == 0);
      BOOST_TEST((to == copy));
    }
    pair.until([&] { return pair.a->ep->outstanding() == 0; }, "idleness");
    BOOST_TEST(!try_completion(*pair.a).has_value());
  });
}

BOOST_AUTO_TEST_CASE(test_remote_cq_data_comes_with_a_message_of_any_length) {
  on_every_message_path([](PairConfig config) {
    Pair pair(config);
    std::vector<std::byte> to(1 << 16);
    for (const size_t n : {size_t{0}, size_t{100}, size_t{60'000}}) {
      const auto from = text_of(n);
      receive(*pair.b->ep, to.data(), to.size(), {.tagged = false});
      send(*pair.a->ep, pair.dest, from.data(), n,
           {.flags = flag::kRemoteCqData, .data = 0x1122334455667788, .tagged = false});
      BOOST_TEST(pair.wait(pair.a.get()).entry.flags == (flag::kSend | flag::kMsg));
      const Completion got = pair.wait(pair.b.get());
      BOOST_TEST(got.entry.flags == (flag::kRecv | flag::kMsg | flag::kRemoteCqData));
      BOOST_TEST(got.entry.data == 0x1122334455667788U);
    }
  });
}

BOOST_AUTO_TEST_CASE(test_flood_of_unexpected_messages_is_received_in_order) {
  on_every_message_path([](PairConfig config) {
    config.a.ep.tx_size = 64;
    Pair pair(config);
    constexpr uint64_t kCount = 5000;
    size_t ended = 0;
    const auto drain = [&] {
      while (const auto c = try_completion(*pair.a)) {
        BOOST_REQUIRE_MESSAGE(c->error == 0, c->text);
        ++ended;
      }
    };
    for (uint64_t i = 0; i < kCount; ++i) {
      pair.until(
          [&] {
            drain();
            return send(*pair.a->ep, pair.dest, &i, 8, {.tag = i % 3}).refusal == Refusal::none;
          },
          "room for a message");
    }
    pair.until(
        [&] {
          drain();
          return ended == kCount;
        },
        "the ends of all messages");
    for (uint64_t tag = 0; tag < 3; ++tag) {
      for (uint64_t i = tag; i < kCount; i += 3) {
        uint64_t value = 0;
        receive(*pair.b->ep, &value, 8, {.tag = tag});
        BOOST_REQUIRE(pair.wait(pair.b.get()).error == 0);
        BOOST_REQUIRE(value == i);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(test_message_to_a_closed_endpoint_is_an_error) {
  on_every_message_path([](PairConfig config) {
    Pair pair(config);
    uint64_t word = 5;
    receive(*pair.b->ep, &word, 8);
    send(*pair.a->ep, pair.dest, &word, 8);
    BOOST_TEST(pair.wait(pair.a.get()).error == 0);
    BOOST_TEST(pair.wait(pair.b.get()).error == 0);
    pair.b->ep->close();
    std::vector<std::byte> more(1000);
    send(*pair.a->ep, pair.dest, more.data(), more.size());
    const Completion c = pair.wait(pair.a.get());
    BOOST_TEST(c.error == fi_err::kECONNREFUSED, c.text);
  });
}

BOOST_AUTO_TEST_CASE(test_close_of_the_sender_under_a_rendezvous_ends_the_receive_with_an_error) {
  for (const Path path : {Path::direct, Path::cma, Path::ring, Path::strict, Path::tcp}) {
    BOOST_TEST_CONTEXT("path " << path) {
      Pair pair(message_pair(path));
      const auto from = text_of(100'000);
      std::vector<std::byte> to(100'000);
      send(*pair.a->ep, pair.dest, from.data(), from.size(), {.tag = 1});
      pair.until([&] { return pair.b->ep->port()->context().statistics().unexpected == 1; }, "the message");
      pair.a->ep->close();
      receive(*pair.b->ep, to.data(), to.size(), {.tag = 1});
      const Completion c = pair.wait(pair.b.get());
      BOOST_TEST(c.error != 0);
      BOOST_TEST(c.entry.len == 0U);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_close_of_the_receiver_returns_the_objects_of_its_receives) {
  Pair pair(message_pair(Path::direct));
  std::byte to[64];
  for (uint64_t i = 1; i <= 3; ++i)
    receive(*pair.b->ep, to, sizeof(to), {.tag = i, .context = 100 + i, .cookies = {i}});
  pair.b->ep->close();
  auto released = pair.b->domain->take_released();
  std::ranges::sort(released);
  BOOST_TEST((released == std::vector<uint64_t>{1, 2, 3, 101, 102, 103}));
}

BOOST_AUTO_TEST_CASE(test_entries_after_a_multi_receives_own_their_contexts) {
  nic::CompletionQueue cq(4);
  CqEntry out[4];
  bool error_waits = false;
  nic::RxEntry shared;
  shared.entry.context = 9;
  shared.entry.reserved = CqEntry::kSharedContext;
  for (int round = 0; round < 8; ++round) {  // through every slot of the ring
    cq.push_received(shared);
    BOOST_TEST(cq.read(out, 4, &error_waits) == 1U);
    BOOST_TEST(out[0].reserved == CqEntry::kSharedContext);
    for (int i = 0; i < 4; ++i) cq.push_local(1, flag::kSend, 0);
    BOOST_TEST(cq.read(out, 4, &error_waits) == 4U);
    for (const CqEntry& e : out) BOOST_TEST(e.reserved == 0U);
  }
}

BOOST_AUTO_TEST_CASE(test_queue_keeps_every_entry_of_a_receive_in_order) {
  nic::CompletionQueue cq(256);
  std::mt19937 random(7);
  CqEntry out[64];
  bool error_waits = false;
  uint64_t pushed = 0, read = 0;
  nic::RxEntry e;
  for (int round = 0; round < 2000; ++round) {
    const uint64_t burst = random() % 100;
    for (uint64_t i = 0; i < burst && pushed - read < 1000; ++i) {  // at times more than the queue has room for
      e.entry.context = pushed++;
      cq.push_received(e);
    }
    BOOST_TEST_REQUIRE(cq.unread() == pushed - read);
    const size_t n = cq.read(out, 1 + random() % 64, &error_waits);
    BOOST_TEST_REQUIRE(!error_waits);
    for (size_t i = 0; i < n; ++i) BOOST_TEST_REQUIRE(out[i].context == read++);
  }
  while (const size_t n = cq.read(out, 64, &error_waits)) {
    for (size_t i = 0; i < n; ++i) BOOST_TEST_REQUIRE(out[i].context == read++);
  }
  BOOST_TEST(read == pushed);
  // A failed receive is an error at its place.
  cq.push_received(e);
  e.status = Status::truncated;
  cq.push_received(e);
  BOOST_TEST(cq.read(out, 64, &error_waits) == 1U);
  BOOST_TEST(error_waits);
  nic::CqError error;
  BOOST_TEST(cq.read_error(&out[0], &error));
  BOOST_TEST((error.status == Status::truncated));
}

BOOST_AUTO_TEST_CASE(test_sender_without_credits_waits_for_those_that_are_under_way) {
  Pair pair(message_pair(Path::direct));
  constexpr uint64_t kCount = 2000;
  std::vector<uint64_t> to(kCount, ~uint64_t{0});
  for (uint64_t i = 0; i < kCount; ++i) {
    BOOST_TEST_REQUIRE((receive(*pair.b->ep, &to[i], 8, {.context = i}).refusal == Refusal::none));
  }
  uint64_t sent = 0, received = 0;
  pair.until(
      [&] {
        for (; sent < kCount; ++sent) {
          const iovec v{&sent, 8};
          nic::SendArgs args;
          args.dest = pair.dest;
          args.local = {&v, 1};
          args.inject_call = true;
          args.tagged = true;
          if (pair.a->ep->post_send(args).refusal != nic::Refusal::none) break;
        }
        while (const auto c = try_completion(*pair.b)) BOOST_TEST_REQUIRE(c->entry.context == received++);
        pair.poll();
        return received == kCount;
      },
      "all messages");
  for (uint64_t i = 0; i < kCount; ++i) BOOST_TEST_REQUIRE(to[i] == i);
  // One message in 16 has an answer; the bound leaves room for the beginning.
  const nic::DomainLock guard(pair.a->domain.get());  // the engine may still send
  BOOST_TEST(pair.a->domain->statistics.framed.value() < kCount / 8);
}

BOOST_AUTO_TEST_CASE(test_cancel_ends_the_oldest_receive_with_the_context) {
  Pair pair(message_pair(Path::direct));
  uint64_t first = 0, second = 0;
  receive(*pair.b->ep, &first, 8, {.context = 5});
  receive(*pair.b->ep, &second, 8, {.context = 6});
  BOOST_TEST(pair.b->ep->cancel(5) == 1U);
  BOOST_TEST(pair.b->ep->cancel(5) == 0U);
  const Completion c = pair.wait(pair.b.get());
  BOOST_TEST(c.error == fi_err::kECANCELED);
  BOOST_TEST(c.entry.context == 5U);
  const uint64_t word = 77;
  send(*pair.a->ep, pair.dest, &word, 8);
  BOOST_TEST(pair.wait(pair.b.get()).entry.context == 6U);
  BOOST_TEST(second == 77U);
}

BOOST_AUTO_TEST_CASE(test_refused_messages_are_sent_again_and_keep_their_order) {
  on_every_message_path([](PairConfig config) {
    config.b.ep.messages.unexpected_max = 10;
    Pair pair(config);
    constexpr uint64_t kCount = 400;
    uint64_t sent = 0, ended = 0, received = 0;
    std::mt19937_64 random(7);
    std::vector<uint64_t> to(kCount);
    pair.until(
        [&] {
          if (sent < kCount && send(*pair.a->ep, pair.dest, &sent, 8, {.data = sent}).refusal == Refusal::none) ++sent;
          while (const auto c = try_completion(*pair.a)) {
            BOOST_REQUIRE_MESSAGE(c->error == 0, c->text);
            if ((c->entry.flags & flag::kSend) != 0) ++ended;
          }
          if (random() % 4 == 0 && received < kCount) {
            receive(*pair.b->ep, &to[received], 8);
            ++received;
          }
          pair.poll();
          return sent == kCount && received == kCount && ended >= kCount;
        },
        "all messages");
    pair.until([&] { return to.back() == kCount - 1; }, "the last message");
    for (uint64_t i = 0; i < kCount; ++i) BOOST_REQUIRE(to[i] == i);
    const uint64_t refused = pair.b->ep->port()->context().statistics().refused;
    BOOST_TEST(refused > 0U);
    BOOST_TEST(refused < 8 * kCount);
  });
}

BOOST_AUTO_TEST_CASE(test_endpoint_that_takes_a_closed_ones_place_receives_from_the_start) {
  on_every_message_path([](PairConfig config) {
    config.b.pid = 17;
    Pair pair(config);
    uint64_t word = 1, to = 0;
    for (int i = 0; i < 40; ++i) {  // into the use of credits
      receive(*pair.b->ep, &to, 8);
      send(*pair.a->ep, pair.dest, &word, 8);
      BOOST_TEST(pair.wait(pair.a.get()).error == 0);
      BOOST_TEST(pair.wait(pair.b.get()).error == 0);
    }
    for (const bool by_write : {false, true}) {
      auto& old = pair.b->endpoints.empty() ? pair.b->ep : pair.b->endpoints.back();
      old->close();
      // Whichever operation finds the endpoint closed, the next message begins anew.
      if (by_write) {
        BOOST_TEST(pair.write(&word, 8, 0).error == fi_err::kECONNREFUSED);
      } else {
        send(*pair.a->ep, pair.dest, &word, 8, {.flags = flag::kMatchComplete});
        BOOST_TEST(pair.wait(pair.a.get()).error == fi_err::kECONNREFUSED);
      }
      const auto next = pair.b->extra_endpoint(config.b);
      for (word = 100; word < 140; ++word) {
        receive(*next, &to, 8);
        send(*pair.a->ep, pair.dest, &word, 8);
        const Completion sent = pair.wait(pair.a.get());
        BOOST_TEST(sent.error == 0, sent.text);
        BOOST_TEST(pair.wait(pair.b.get()).error == 0);
        BOOST_TEST(to == word);
      }
    }
  });
}

PairConfig unordered_pair(PairConfig config) {
  for (SideConfig* side : {&config.a, &config.b}) {
    side->ep.messages.unordered = true;
    side->ep.messages.credits = 0;
  }
  return config;
}

BOOST_AUTO_TEST_CASE(test_unordered_message_without_a_receive_is_tried_again_until_one_is_posted) {
  on_every_message_path([](PairConfig config) {
    config.a.ep.messages.retry_ns_max = 60'000'000'000;
    Pair pair(unordered_pair(config));
    for (const size_t n : {size_t{8}, size_t{3000}, size_t{200'000}}) {
      const auto from = text_of(n);
      std::vector<std::byte> to(n);
      send(*pair.a->ep, pair.dest, from.data(), n, {.tag = 1});
      pair.until([&] { return pair.b->ep->port()->context().statistics().refused >= 3; }, "three refusals");
      // A later message passes the message that finds no receive.
      receive(*pair.b->ep, to.data(), n, {.tag = 2});
      send(*pair.a->ep, pair.dest, from.data(), n, {.tag = 2, .context = 9});
      BOOST_TEST(pair.wait(pair.a.get()).entry.context == 9U);
      BOOST_TEST(pair.wait(pair.b.get()).entry.tag == 2U);
      receive(*pair.b->ep, to.data(), n, {.tag = 1});
      const Completion sent = pair.wait(pair.a.get()), got = pair.wait(pair.b.get());
      BOOST_TEST(sent.error == 0, sent.text);
      BOOST_TEST(got.error == 0, got.text);
      BOOST_TEST((to == from));
      BOOST_TEST(pair.b->ep->port()->context().statistics().unexpected == 0U);
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_unordered_message_that_finds_no_receive_in_time_fails) {
  for (const uint64_t limit : {uint64_t{0}, uint64_t{2'000'000}}) {
    PairConfig config = message_pair(Path::direct);
    config.a.ep.messages.retry_ns_max = limit;
    Pair pair(unordered_pair(config));
    const uint64_t word = 3;
    send(*pair.a->ep, pair.dest, &word, 8, {.tag = 1});
    const Completion c = pair.wait(pair.a.get());
    BOOST_TEST(c.status == Status::not_ready);
    BOOST_TEST(c.olen == 8U);
    BOOST_TEST(c.text.find("no receive was posted") != std::string::npos, c.text);
    if (limit == 0) BOOST_TEST(pair.b->ep->port()->context().statistics().refused == 1U);
  }
}

BOOST_AUTO_TEST_CASE(test_message_has_the_length_and_the_number_that_its_endpoint_admits) {
  PairConfig config = message_pair(Path::direct);
  config.a.ep.max_msg_size = 40'000;
  config.a.ep.messages.tagged_ids = 2;
  Pair pair(config);
  const auto from = text_of(40'001);
  const auto refusal = [&](size_t n, bool tagged) {
    return send(*pair.a->ep, pair.dest, from.data(), n, {.tagged = tagged}).refusal;
  };
  BOOST_TEST(refusal(40'001, true) == Refusal::too_long);
  for (int i = 0; i < 2; ++i) BOOST_TEST(refusal(40'000, true) == Refusal::none);
  BOOST_TEST(refusal(40'000, true) == Refusal::rdzv_full);  // two wait to be pulled
  BOOST_TEST(refusal(40'000, false) == Refusal::none);
  BOOST_TEST(refusal(8, true) == Refusal::none);
  std::vector<std::byte> to(40'000);
  BOOST_TEST(receive(*pair.b->ep, to.data(), to.size()).refusal == Refusal::none);
  BOOST_TEST(pair.wait(pair.b.get()).entry.len == 40'000U);
  pair.until([&] { return pair.a->ep->messages().state().tagged_ids == 1; }, "the first message");
  BOOST_TEST(refusal(40'000, true) == Refusal::none);
}

BOOST_AUTO_TEST_CASE(test_cancel_ends_an_unordered_message_between_its_attempts) {
  PairConfig config = message_pair(Path::direct);
  config.a.ep.messages.retry_ns_max = 60'000'000'000;
  Pair pair(unordered_pair(config));
  const uint64_t word = 3;
  send(*pair.a->ep, pair.dest, &word, 8, {.tag = 1, .context = 4});
  pair.until([&] { return pair.a->ep->cancel(4) == 1; }, "a time between two attempts");
  BOOST_TEST(pair.wait(pair.a.get()).error == fi_err::kECANCELED);
  expect_idle(pair);
}

BOOST_AUTO_TEST_CASE(test_close_of_the_receiver_ends_the_sends_that_wait_for_its_receives) {
  on_every_message_path([](PairConfig config) {
    Pair pair(config);
    const auto from = text_of(100'000);
    constexpr uint64_t kMatch = flag::kMatchComplete;
    send(*pair.a->ep, pair.dest, from.data(), from.size(), {.tag = 1, .context = 11});
    send(*pair.a->ep, pair.dest, from.data(), from.size(), {.tag = 2, .context = 12, .flags = kMatch});
    send(*pair.a->ep, pair.dest, from.data(), 100, {.tag = 3, .context = 13, .flags = kMatch});
    nic::RxContext& rx = pair.b->ep->port()->context();
    pair.until([&] { return rx.statistics().match.unexpected == 3; }, "the messages");
    BOOST_REQUIRE((receive(*pair.b->ep, {}, {.tag = 2, .context = 5, .flags = flag::kPeek | flag::kClaim}).refusal ==
                   Refusal::none));
    BOOST_TEST(pair.wait(pair.b.get()).entry.tag == 2U);
    pair.b->ep->close();
    std::vector<uint64_t> contexts;
    for (int i = 0; i < 3; ++i) {
      const Completion c = pair.wait(pair.a.get());
      BOOST_TEST(c.error == fi_err::kECONNREFUSED, c.text);
      contexts.push_back(c.entry.context);
    }
    std::ranges::sort(contexts);
    BOOST_TEST((contexts == std::vector<uint64_t>{11, 12, 13}));
    BOOST_TEST(pair.a->ep->outstanding() == 0U);
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
