// tests/cpp/test_rx_flow.cpp: the receive context: credits, refused messages, peers that lie or go, and order.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "rx_support.hpp"

namespace {

using namespace weft;
using namespace weft::test::receiving;

BOOST_AUTO_TEST_SUITE(rx_flow)

// --------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_answers_bring_credits_and_credited_messages_have_no_answer) {
  Rx rx;
  SendFlow flow{rx};
  BOOST_TEST(flow.send(1).credits == 4U);
  for (int i = 0; i < 3; ++i) BOOST_TEST((flow.send(1, 8, kQuick).answer == RxAnswer::none));
  BOOST_TEST(flow.send(1).credits == 3U);
}

BOOST_AUTO_TEST_CASE(test_message_beyond_its_credits_breaks_the_protocol) {
  Rx rx;
  SendFlow flow{rx};
  flow.send(1);
  for (int i = 0; i < 4; ++i) flow.send(1, 8, kQuick);
  BOOST_TEST((flow.send(1, 8, kQuick).answer == RxAnswer::broken));
}

BOOST_AUTO_TEST_CASE(test_credited_message_is_kept_beyond_the_limit) {
  Rx rx(config(10, 1));
  SendFlow flow{rx};
  flow.send(1);
  BOOST_TEST((flow.send(2, 8, kQuick).answer == RxAnswer::none));
  BOOST_TEST((flow.send(3).answer == RxAnswer::refused));
  BOOST_TEST(rx.statistics().match.unexpected == 2U);
}

BOOST_AUTO_TEST_CASE(test_refused_flow_is_refused_until_the_message_comes_again) {
  Rx rx(config(10, 1));
  SendFlow flow{rx};
  flow.send(1);
  BOOST_TEST((flow.send(2).answer == RxAnswer::refused));
  const uint32_t refused = flow.sequence;
  flow.sequence = refused + 1;
  std::byte to[8];
  rx.post(receive(3, to, 8));  // message 3 would match, but must not pass message 2
  BOOST_TEST((flow.send(3).answer == RxAnswer::refused));
  rx.post(receive(1, to, 8));
  BOOST_TEST(rx.next().tag == 1U);
  flow.sequence = refused;
  BOOST_TEST((flow.send(2).answer == RxAnswer::done));
  BOOST_TEST((flow.send(3).answer == RxAnswer::done));
  BOOST_TEST(rx.next().tag == 3U);
}

BOOST_AUTO_TEST_CASE(test_refused_flow_is_told_once_when_room_returns) {
  Rx rx(config(10, 2));
  SendFlow flow{rx}, other{rx, 12, {1, 9, 3, 0}};
  flow.send(1);
  other.send(1);
  BOOST_TEST((flow.send(2).answer == RxAnswer::refused));
  BOOST_TEST(rx.readies.empty());
  std::byte to[8];
  rx.post(receive(1, to, 8));
  BOOST_TEST_REQUIRE(rx.readies.size() == 1U);
  BOOST_TEST(rx.readies[0].peer == kPeer);
  BOOST_TEST(rx.readies[0].sender == flow.sender);
  rx.post(receive(1, to, 8));
  BOOST_TEST(rx.readies.size() == 1U);
}

BOOST_AUTO_TEST_CASE(test_refused_flow_is_told_of_a_receive_that_may_match) {
  Rx rx(config(10, 1));
  SendFlow flow{rx};
  flow.send(1);
  BOOST_TEST((flow.send(2).answer == RxAnswer::refused));
  std::byte to[8];
  rx.post(receive(2, to, 8));
  BOOST_TEST(rx.readies.size() == 1U);
  BOOST_TEST((flow.send(2).answer == RxAnswer::done));
  BOOST_TEST(rx.next().tag == 2U);
}

BOOST_AUTO_TEST_CASE(test_credited_message_behind_a_refused_one_waits_its_turn) {
  Rx rx(config(10, 1));
  SendFlow flow{rx};
  flow.send(1);
  BOOST_TEST((flow.send(5, 100).answer == RxAnswer::refused));
  const uint32_t refused = flow.sequence;
  flow.sequence = refused + 1;
  BOOST_TEST((flow.send(5, 20, kQuick).answer == RxAnswer::none));
  BOOST_TEST(rx.statistics().early == 1U);
  std::byte to[100];
  rx.post(receive(5, to, 100));
  BOOST_TEST(rx.completions.empty());
  flow.sequence = refused;
  BOOST_TEST((flow.send(5, 100).answer == RxAnswer::done));
  BOOST_TEST(rx.next().length == 100U);
  BOOST_TEST(rx.statistics().early == 0U);
  flow.sequence = refused + 2;
  rx.post(receive(5, to, 100));
  BOOST_TEST(rx.next().length == 20U);
  rx.post(receive(6, to, 100));
  BOOST_TEST((flow.send(6, 10).answer == RxAnswer::done));
}

// A flow with credits, a refused message, and `held` credited messages behind it.
void hold_early(Rx& rx, SendFlow& flow, uint32_t held) {
  std::byte to[8];
  rx.post(receive(5, to, 8));
  BOOST_TEST_REQUIRE((flow.send(5).answer == RxAnswer::done));
  rx.full = true;
  BOOST_TEST_REQUIRE((flow.send(5).answer == RxAnswer::refused));
  const uint32_t refused = flow.sequence;
  for (uint32_t i = 1; i <= held; ++i) {
    flow.sequence = refused + i;
    BOOST_TEST_REQUIRE((flow.send(100 + i, 8, kQuick).answer == RxAnswer::none));
  }
  flow.sequence = refused;
  rx.full = false;
}

/// A flow's held messages are searched alone: if all were in one list, this test would take minutes.
BOOST_AUTO_TEST_CASE(test_held_messages_of_4096_flows_are_taken_when_their_peer_goes) {
  constexpr uint32_t kFlows = 4096, kHeld = 32;
  auto c = config(10, 1'000'000, kHeld);
  c.flows_max = kFlows;
  Rx rx(c);
  std::deque<SendFlow> flows;
  for (uint32_t i = 0; i < kFlows; ++i) {
    hold_early(rx, flows.emplace_back(rx, kPeer, wire::EpAddress{1, 10 + i, 3, 0}), kHeld);
  }
  BOOST_TEST(rx.statistics().early == size_t{kFlows} * kHeld);
  rx.peer_down(kPeer);
  BOOST_TEST(rx.statistics().early == 0U);
  BOOST_TEST(rx.statistics().match.unexpected == size_t{kFlows} * kHeld);
}

BOOST_AUTO_TEST_CASE(test_held_messages_of_a_flow_wait_for_its_own_refused_message) {
  Rx rx;
  SendFlow one{rx}, other{rx, kPeer, {1, 9, 3, 0}};
  hold_early(rx, one, 3);
  hold_early(rx, other, 2);
  BOOST_TEST((one.send(5).answer == RxAnswer::done));
  BOOST_TEST(rx.statistics().early == 2U);
  BOOST_TEST(rx.statistics().match.unexpected == 4U);
  BOOST_TEST((other.send(5).answer == RxAnswer::done));
  BOOST_TEST(rx.statistics().early == 0U);
  BOOST_TEST(rx.statistics().match.unexpected == 7U);
}

/// The buffer of a message that the match unit cannot keep is free again.
BOOST_AUTO_TEST_CASE(test_message_that_is_not_kept_gives_its_buffer_back) {
  auto c = config(10, 1);
  c.buffers.count_max = 1;
  Rx rx(c);
  SendFlow flow{rx};
  BOOST_TEST((flow.send(1).answer == RxAnswer::done));
  for (int i = 0; i < 100; ++i) BOOST_TEST_REQUIRE((flow.send(2, 1000).answer == RxAnswer::refused));
  std::byte to[8];
  rx.post(receive(1, to, 8));
  BOOST_TEST((flow.send(2, 1000).answer == RxAnswer::done));
}

BOOST_AUTO_TEST_CASE(test_full_buffers_refuse) {
  auto c = config();
  c.buffers.count_max = 1;
  Rx rx(c);
  SendFlow flow{rx};
  BOOST_TEST((flow.send(1, 3000).answer == RxAnswer::done));
  BOOST_TEST((flow.send(2, 3000).answer == RxAnswer::refused));
  std::vector<std::byte> to(3000);
  rx.post(receive(1, to.data(), to.size()));
  BOOST_TEST(rx.readies.size() == 1U);
  BOOST_TEST((flow.send(2, 3000).answer == RxAnswer::done));
}

BOOST_AUTO_TEST_CASE(test_unordered_message_without_receive_is_refused_alone) {
  Rx rx;
  SendFlow flow{rx};
  constexpr uint16_t kRnr = rx_flag::kTagged | rx_flag::kUnordered;
  BOOST_TEST((flow.send(1, 8, kRnr).answer == RxAnswer::refused));
  std::byte to[8];
  rx.post(receive(2, to, 8));
  BOOST_TEST((flow.send(2, 8, kRnr).answer == RxAnswer::done));
  rx.post(receive(1, to, 8));
  BOOST_TEST((flow.send(1, 8, kRnr).answer == RxAnswer::done));
  BOOST_TEST(rx.statistics().unexpected == 0U);
  BOOST_TEST(rx.readies.empty());
}

BOOST_AUTO_TEST_CASE(test_limit_of_receives_is_an_answer) {
  Rx rx(config(1));
  BOOST_TEST((rx.post(receive(1, nullptr, 0)) == RxContext::Post::ok));
  BOOST_TEST((rx.post(receive(2, nullptr, 0)) == RxContext::Post::full));
  BOOST_TEST((rx.receive_claimed(receive(2, nullptr, 0), false) == RxContext::Found::full));
}

BOOST_AUTO_TEST_CASE(test_messages_held_early_count_as_credits) {
  Rx rx(config(10, 1));
  SendFlow flow{rx};
  flow.send(1);
  const uint32_t refused = flow.sequence;
  BOOST_TEST((flow.send(2).answer == RxAnswer::refused));
  flow.sequence = refused + 2;
  BOOST_TEST((flow.send(2, 8, kQuick).answer == RxAnswer::none));
  std::byte to[8];
  rx.post(receive(2, to, 8));
  flow.sequence = refused;
  // The message between this one and the early one is still missing.
  BOOST_TEST(flow.send(2).credits == 0U);
  BOOST_TEST(rx.statistics().early == 1U);
  rx.post(receive(2, to, 8));
  BOOST_TEST(flow.send(2).credits == 1U);
  BOOST_TEST(rx.statistics().early == 0U);
}

// ---- bad peers, ends
// ---------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_frames_that_lie_break_the_protocol) {
  const auto broken = [](auto&& spoil) {
    Rx rx;
    SendFlow flow{rx};
    flow.send(1);
    RxMessage m = flow.make(1, 8);
    size_t bytes = 8;
    spoil(m, bytes);
    return rx.arrive(m, bytes_of(bytes)).answer == RxAnswer::broken && rx.statistics().match.unexpected == 1;
  };
  BOOST_TEST(!broken([](RxMessage&, size_t&) {}));
  BOOST_TEST(broken([](RxMessage& m, size_t&) { m.sender = 1; }));
  BOOST_TEST(broken([](RxMessage& m, size_t&) { m.sender = kNoSender; }));
  BOOST_TEST(broken([](RxMessage& m, size_t&) { m.peer = 12; }));
  BOOST_TEST(broken([](RxMessage& m, size_t&) { m.source.pid = 9; }));
  BOOST_TEST(broken([](RxMessage& m, size_t&) { ++m.sequence; }));
  BOOST_TEST(broken([](RxMessage& m, size_t&) { --m.sequence; }));
  BOOST_TEST(broken([](RxMessage&, size_t& bytes) { bytes = 7; }));
  BOOST_TEST(broken([](RxMessage&, size_t& bytes) { bytes = 9; }));
  BOOST_TEST(broken([](RxMessage& m, size_t&) { m.flags |= rx_flag::kFirst; }));
  BOOST_TEST(broken([](RxMessage& m, size_t& bytes) { m.flags |= rx_flag::kRendezvous, bytes = 9; }));
  BOOST_TEST(broken([](RxMessage& m, size_t& bytes) { m.flags |= rx_flag::kCredited, m.length = bytes = 300; }));
}

BOOST_AUTO_TEST_CASE(test_flows_of_a_connection_have_a_limit) {
  auto c = config();
  c.flows_max = 2;
  Rx rx(c);
  SendFlow a{rx}, b{rx}, over{rx}, elsewhere{rx, 12};
  a.send(1);
  b.send(1);
  BOOST_TEST((over.send(1).answer == RxAnswer::no_memory));
  BOOST_TEST((elsewhere.send(1).answer == RxAnswer::done));
  rx.end_flow(kPeer, a.sender);
  BOOST_TEST((over.send(1).answer == RxAnswer::done));
  BOOST_TEST(rx.statistics().flows == 3U);
}

BOOST_AUTO_TEST_CASE(test_messages_of_a_lost_peer_stay) {
  Rx rx(config(10, 2));
  SendFlow flow{rx};
  flow.send(1);
  flow.send(2);
  BOOST_TEST((flow.send(3).answer == RxAnswer::refused));
  ++flow.sequence;
  BOOST_TEST((flow.send(4, 8, kQuick).answer == RxAnswer::none));
  rx.peer_down(kPeer);
  BOOST_TEST(rx.statistics().flows == 0U);
  for (const uint64_t tag : {1, 2, 4}) {
    std::byte to[8];
    rx.post(receive(tag, to, 8));
    BOOST_TEST(rx.next().tag == tag);
  }
  BOOST_TEST(rx.readies.empty());
  BOOST_TEST((flow.send(5).answer == RxAnswer::broken));
}

BOOST_AUTO_TEST_CASE(test_closed_context_takes_nothing_and_reports_nothing) {
  Rx rx;
  SendFlow flow{rx};
  std::byte to[64];
  rx.post(receive(5, to, 64));
  flow.send_rendezvous(5, 64, 0);
  rx.post(receive(6, to, 64));
  rx.close();
  BOOST_TEST((flow.send(6).answer == RxAnswer::closed));
  BOOST_TEST((rx.post(receive(7, to, 8)) == RxContext::Post::closed));
  BOOST_TEST(!rx.cancel(1));
  rx.pulled(rx.pulls.at(0), Status::ok);
  BOOST_TEST(rx.completions.empty());
}

// ---- everything together
// -----------------------------------------------------------------------------------------------

// Senders with limited flows against receives of every kind: order within a flow, nothing lost, nothing twice.
BOOST_AUTO_TEST_CASE(test_flows_keep_order_under_every_mix_of_protocols) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    auto c = config(8, 6, 4);
    c.buffers.count_max = 3;
    Rx rx(c);
    struct Sender {
      SendFlow flow;
      std::deque<std::pair<RxMessage, std::vector<std::byte>>> waiting;  // refused, in order
      uint64_t next = 0, received = 0;
    };
    std::deque<Sender> senders;
    for (uint64_t i = 0; i < 3; ++i) senders.push_back({SendFlow{rx, 20 + i, {1, static_cast<uint32_t>(i), 3, 0}}, {}});
    constexpr uint64_t kMessages = 4000;
    std::map<uint64_t, std::unique_ptr<std::byte[]>> buffers;
    std::vector<uint64_t> posted;
    uint64_t context = 0, total = 0;
    // The data of a message is its number in its flow, so that a receive of any tag shows the order.
    while (total < 3 * kMessages) {
      Sender& s = senders[below(3)];
      if (s.next < kMessages && below(3) != 0) {
        const bool quick = s.flow.credits > 0 && below(2) == 0, rendezvous = !quick && below(4) == 0;
        const uint64_t length = quick ? below(200) : below(900);
        RxMessage m =
            s.flow.make(0, length,
                        static_cast<uint16_t>(rx_flag::kTagged | rx_flag::kHasData | (quick ? rx_flag::kCredited : 0) |
                                              (rendezvous ? rx_flag::kRendezvous : 0)));
        m.data = s.next;
        auto bytes = bytes_of(rendezvous ? below(length + 1) : length);
        // A stopped flow may have further messages under way, but its first message waits for its answer.
        if (s.waiting.empty() || (s.waiting.size() < 4 && s.flow.sender != kNoSender)) {
          m.sequence = static_cast<uint32_t>(s.next);
          ++s.next;
          if (quick) --s.flow.credits;
          const RxReply r = rx.arrive(m, bytes);
          if (r.answer > RxAnswer::refused) BOOST_FAIL("seed " << seed << ": message " << m.data << " was not taken");
          s.flow.sender = r.sender;
          s.flow.credits += r.credits;
          if (r.answer == RxAnswer::refused) s.waiting.emplace_back(m, std::move(bytes));
        }
      }
      if (!s.waiting.empty() && below(2) == 0) {
        // The whole row again, in order.
        auto row = std::move(s.waiting);
        s.waiting.clear();
        for (auto& [m, bytes] : row) {
          m.flags &= static_cast<uint16_t>(~rx_flag::kFirst);
          m.sender = s.flow.sender;
          const RxReply r = rx.arrive(m, bytes);
          if (r.answer > RxAnswer::refused)
            BOOST_FAIL("seed " << seed << ": message " << m.data << " was not taken again");
          s.flow.credits += r.credits;
          if (r.answer == RxAnswer::refused) s.waiting.emplace_back(m, std::move(bytes));
        }
      }
      if (below(2) == 0) {
        Receive r = receive(0, nullptr, 1000, ++context);
        const wire::EpAddress* from = below(2) == 0 ? nullptr : &senders[below(3)].flow.source;
        r.multi = below(4) == 0;
        r.min_left = 300;
        auto& memory = buffers[context] = std::make_unique<std::byte[]>(1000);
        r.address = reinterpret_cast<uint64_t>(memory.get());
        if (rx.post(r, from) == RxContext::Post::ok) posted.push_back(context);
      }
      if (below(8) == 0 && !posted.empty()) {  // also of receives that wait for a flow that has ended
        std::swap(posted[below(posted.size())], posted.back());
        (void)rx.cancel(posted.back());
        posted.pop_back();
      }
      rx.ending_pull = true;
      for (const RxPull& p : std::exchange(rx.pulls, {})) rx.pulled(p, Status::ok);
      rx.ending_pull = false;
      for (const RxCompletion& m : std::exchange(rx.matched, {})) {
        Sender& from = senders[m.source.pid];
        if (m.data != from.received++) BOOST_FAIL("seed " << seed << ": message " << m.data << " out of order");
        ++total;
      }
    }
    for (const Sender& s : senders) BOOST_TEST(s.received == kMessages);
    BOOST_TEST(rx.statistics().refused > 100U);
    BOOST_TEST(rx.statistics().match.unexpected_used == 0U);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
