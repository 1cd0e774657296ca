// tests/cpp/test_rx.cpp: the receive context: completions, buffers for several messages, peek, cancel, rendezvous.
#include <algorithm>
#include <thread>

#include "rx_support.hpp"

namespace {

using namespace weft;
using namespace weft::test::receiving;

BOOST_AUTO_TEST_SUITE(rx)

BOOST_AUTO_TEST_CASE(test_expected_message_is_copied_and_completed) {
  Rx rx;
  SendFlow flow{rx};
  std::byte to[16] = {};
  BOOST_TEST((rx.post(receive(5, to, 16)) == RxContext::Post::ok));
  RxMessage m = flow.make(5, 8, rx_flag::kTagged | rx_flag::kHasData);
  m.data = 99;
  BOOST_TEST((flow.pass(m, bytes_of(8, 5)).answer == RxAnswer::done));
  const RxCompletion c = rx.next();
  BOOST_TEST(c.context == 1U);
  BOOST_TEST(c.length == 8U);
  BOOST_TEST(c.tag == 5U);
  BOOST_TEST(c.data == 99U);
  BOOST_TEST(c.has_data);
  BOOST_TEST((c.source == kFrom));
  BOOST_TEST((c.status == Status::ok));
  BOOST_TEST(std::ranges::equal(std::span(to, 8), bytes_of(8, 5)));
  BOOST_TEST(rx.statistics().match.posted_used == 0U);
}

BOOST_AUTO_TEST_CASE(test_unexpected_message_gives_the_same_completion) {
  Rx rx;
  SendFlow flow{rx};
  BOOST_TEST((flow.send(5, 100).answer == RxAnswer::done));
  BOOST_TEST(rx.completions.empty());
  std::byte to[100] = {};
  BOOST_TEST((rx.post(receive(5, to, 100)) == RxContext::Post::ok));
  const RxCompletion c = rx.next();
  BOOST_TEST(c.length == 100U);
  BOOST_TEST(c.tag == 5U);
  BOOST_TEST((c.source == kFrom));
  BOOST_TEST(std::ranges::equal(to, bytes_of(100, 5)));
  const auto s = rx.statistics();
  BOOST_TEST(s.match.unexpected_used == 0U);
  BOOST_TEST(s.buffers.messages == 0U);
  BOOST_TEST(rx.dones.empty());
}

BOOST_AUTO_TEST_CASE(test_longer_message_is_cut) {
  for (const bool early : {true, false}) {
    Rx rx;
    SendFlow flow{rx};
    std::byte to[16] = {};
    if (early) rx.post(receive(5, to, 10));
    flow.send(5, 30);
    if (!early) rx.post(receive(5, to, 10));
    const RxCompletion c = rx.next();
    BOOST_TEST(c.length == 10U);
    BOOST_TEST(c.cut == 20U);
    BOOST_TEST(std::ranges::equal(std::span(to, 10), bytes_of(10, 5)));
    BOOST_TEST((to[10] == std::byte{0}));
  }
}

BOOST_AUTO_TEST_CASE(test_directed_receive_takes_messages_of_its_address) {
  Rx rx;
  const wire::EpAddress other{1, 9, 3, 0};
  rx.post(receive(5, nullptr, 0), &other);
  SendFlow first{rx}, second{rx, 12, other};
  first.send(5, 0);
  BOOST_TEST(rx.completions.empty());
  second.send(5, 0);
  BOOST_TEST((rx.next().source == other));
}

BOOST_AUTO_TEST_CASE(test_two_flows_of_one_address_are_one_source) {
  Rx rx;
  SendFlow first{rx}, second{rx};
  first.send(1, 0);
  second.send(2, 0);
  BOOST_TEST(first.sender != second.sender);
  for (const uint64_t tag : {1, 2}) {
    rx.post(receive(tag, nullptr, 0), &kFrom);
    BOOST_TEST(rx.next().tag == tag);
  }
}

// ---- addresses that peers name
// ----------------------------------------------------------------------------------------

// A flow that one message begins, and that ends.
void visit(Rx& rx, uint64_t peer, uint32_t address, uint64_t tag) {
  SendFlow flow{rx, peer, {1, address, 9, 0}};
  BOOST_REQUIRE((flow.send(tag).answer == RxAnswer::done));
  rx.end_flow(peer, flow.sender);
}

BOOST_AUTO_TEST_CASE(test_peer_that_names_addresses_without_end_keeps_nobody_out) {
  Rx rx;
  constexpr uint32_t kNamed = (1u << 20) + 10;
  for (uint32_t i = 0; i < kNamed; ++i) {
    rx.post(receive(5, nullptr, 0));
    visit(rx, kPeer, i, 5);
    rx.completions.clear();
    rx.matched.clear();
  }
  BOOST_TEST(rx.statistics().sources < 10'000U);
  SendFlow other{rx, 12};
  BOOST_TEST((other.send(5).answer == RxAnswer::done));
  BOOST_TEST((other.send(5).answer == RxAnswer::done));
}

BOOST_AUTO_TEST_CASE(test_addresses_in_use_keep_their_numbers) {
  Rx rx(config(1000, 30'000));
  const wire::EpAddress posted{1, 500'001, 9, 0}, kept{1, 500'002, 9, 0}, claimed{1, 500'003, 9, 0};
  rx.post(receive(1, nullptr, 0, 1), &posted);
  visit(rx, kPeer, kept.pid, 2);
  visit(rx, kPeer, claimed.pid, 3);
  BOOST_REQUIRE(
      (rx.peek({3, 0, kAnySource, true}, RxContext::Peek::claim, 33, 0, &claimed) == RxContext::Found::found));
  SendFlow lasting{rx, 12};
  BOOST_REQUIRE((lasting.send(4).answer == RxAnswer::done));
  rx.completions.clear();
  for (uint32_t i = 0; i < 20'000; ++i) visit(rx, kPeer, i, 1000);  // the receive and the messages are not of these
  const auto others = rx.completions.size();
  BOOST_TEST(others == 0U);
  const auto is_from = [&](const wire::EpAddress& address) { return rx.next().source == address; };
  visit(rx, kPeer, posted.pid, 1);
  BOOST_TEST(is_from(posted));
  for (const auto& [tag, address] : {std::pair<uint64_t, wire::EpAddress>{2, kept}, {4, kFrom}}) {
    BOOST_TEST((rx.post(receive(tag, nullptr, 0), &posted) == RxContext::Post::ok));
    BOOST_TEST(rx.completions.empty());
    rx.post(receive(tag, nullptr, 0), &address);
    BOOST_TEST(is_from(address));
  }
  BOOST_TEST((rx.receive_claimed(receive(0, nullptr, 0, 33), false) == RxContext::Found::found));
  BOOST_TEST(is_from(claimed));
  // The messages are gone, and so are their addresses after some others.
  while (rx.statistics().match.unexpected != 0) {
    rx.post(receive(1000, nullptr, 0));
    rx.completions.clear();
  }
  for (uint32_t i = 0; i < 50'000; ++i) {
    rx.post(receive(7, nullptr, 0));
    visit(rx, kPeer, 1'000'000 + i, 7);
  }
  BOOST_TEST(rx.statistics().sources < 10'000U);
}

// ---- several messages to a buffer, peek, cancel
// ------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_multi_recv_takes_unexpected_and_later_messages) {
  Rx rx;
  SendFlow flow{rx};
  flow.send(0, 10, 0);
  flow.send(0, 20, 0);
  std::byte to[64] = {};
  Receive r = receive(0, to, 64);
  r.what.tagged = false;
  r.multi = true;
  r.min_left = 16;
  rx.post(r);
  flow.send(0, 20, 0);
  const uint64_t base = reinterpret_cast<uint64_t>(to);
  for (const uint64_t at : {0, 10, 30}) {
    const RxCompletion c = rx.next();
    BOOST_TEST(c.buffer == base + at);
    BOOST_TEST(c.multi_last == (at == 30));
  }
  BOOST_TEST(rx.statistics().match.posted_used == 0U);
}

BOOST_AUTO_TEST_CASE(test_multi_recv_ends_with_the_message_that_finishes_last) {
  Rx rx;
  SendFlow flow{rx};
  std::byte to[64] = {};
  Receive r = receive(0, to, 64);
  r.multi = true;
  r.min_left = 16;
  rx.post(r);
  BOOST_TEST((flow.send_rendezvous(0, 40, 8).answer == RxAnswer::arrived));
  flow.send(0, 20);
  BOOST_TEST(!rx.next().multi_last);
  BOOST_TEST_REQUIRE(rx.pulls.size() == 1U);
  rx.pulled(rx.pulls[0], Status::ok);
  const RxCompletion c = rx.next();
  BOOST_TEST(c.multi_last);
  BOOST_TEST(c.length == 40U);
}

BOOST_AUTO_TEST_CASE(test_canceled_receive_completes_as_canceled) {
  Rx rx;
  SendFlow flow{rx};
  rx.post(receive(5, nullptr, 0, 42));
  BOOST_TEST(rx.cancel(42));
  BOOST_TEST(!rx.cancel(42));
  const RxCompletion c = rx.next();
  BOOST_TEST((c.status == Status::canceled));
  BOOST_TEST(c.context == 42U);
  flow.send(5, 0);
  BOOST_TEST(rx.completions.empty());
}

BOOST_AUTO_TEST_CASE(test_cancel_of_multi_recv_waits_for_its_pull) {
  Rx rx;
  SendFlow flow{rx};
  std::byte to[64] = {};
  Receive r = receive(0, to, 64, 42);
  r.multi = true;
  rx.post(r);
  flow.send_rendezvous(0, 20, 4);
  BOOST_TEST(rx.cancel(42));
  BOOST_TEST(rx.completions.empty());
  rx.pulled(rx.pulls.at(0), Status::ok);
  BOOST_TEST(!rx.next().multi_last);
  const RxCompletion c = rx.next();
  BOOST_TEST((c.status == Status::canceled));
  BOOST_TEST(c.multi_last);
}

BOOST_AUTO_TEST_CASE(test_peek_reports_length_tag_and_data_and_leaves_the_message) {
  Rx rx;
  SendFlow flow{rx};
  const Pattern five{5, 0, kAnySource, true};
  BOOST_TEST((rx.peek(five, RxContext::Peek::look, 8, 0) == RxContext::Found::missing));
  flow.send(5, 30);
  for (int i = 0; i < 2; ++i) {
    BOOST_TEST((rx.peek(five, RxContext::Peek::look, 8, 0) == RxContext::Found::found));
    const RxCompletion c = rx.next();
    BOOST_TEST(c.length == 30U);
    BOOST_TEST(c.tag == 5U);
    BOOST_TEST(c.context == 8U);
    BOOST_TEST((c.source == kFrom));
  }
}

BOOST_AUTO_TEST_CASE(test_claimed_message_is_received_by_its_context) {
  Rx rx;
  SendFlow flow{rx};
  flow.send(5, 30);
  const Pattern five{5, 0, kAnySource, true};
  BOOST_TEST((rx.peek(five, RxContext::Peek::claim, 8, 0) == RxContext::Found::found));
  rx.completions.clear();
  BOOST_TEST((rx.peek(five, RxContext::Peek::look, 9, 0) == RxContext::Found::missing));
  std::byte to[10];
  BOOST_TEST((rx.receive_claimed(receive(0, to, 10, 9), false) == RxContext::Found::missing));
  BOOST_TEST((rx.receive_claimed(receive(0, to, 10, 8), false) == RxContext::Found::found));
  const RxCompletion c = rx.next();
  BOOST_TEST(c.length == 10U);
  BOOST_TEST(c.cut == 20U);
  BOOST_TEST(c.tag == 5U);
  BOOST_TEST(rx.statistics().match.posted_used == 0U);
  BOOST_TEST(rx.statistics().match.unexpected_used == 0U);
}

BOOST_AUTO_TEST_CASE(test_discarded_rendezvous_ends_at_its_sender) {
  for (const bool claimed : {false, true}) {
    Rx rx;
    SendFlow flow{rx};
    flow.send_rendezvous(5, 5000, 10);
    const Pattern five{5, 0, kAnySource, true};
    if (claimed) {
      rx.peek(five, RxContext::Peek::claim, 8, 0);
      BOOST_TEST(rx.dones.empty());
      BOOST_TEST((rx.receive_claimed(receive(0, nullptr, 0, 8), true) == RxContext::Found::found));
    } else {
      rx.peek(five, RxContext::Peek::discard, 8, 0);
    }
    BOOST_TEST_REQUIRE(rx.dones.size() == 1U);
    BOOST_TEST(rx.dones[0].op_id == flow.op);
    BOOST_TEST(rx.dones[0].bytes == 0U);
    BOOST_TEST(rx.statistics().match.unexpected_used == 0U);
    BOOST_TEST(rx.statistics().buffers.messages == 0U);
  }
}

// ---- rendezvous
// --------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_rendezvous_pulls_what_did_not_come_eagerly) {
  for (const bool early : {true, false}) {
    Rx rx;
    SendFlow flow{rx};
    std::vector<std::byte> to(5000);
    if (early) rx.post(receive(5, to.data(), to.size()));
    BOOST_TEST((flow.send_rendezvous(5, 5000, 100).answer == RxAnswer::arrived));
    if (!early) {
      BOOST_TEST(rx.pulls.empty());
      rx.post(receive(5, to.data(), to.size()));
    }
    BOOST_TEST_REQUIRE(rx.pulls.size() == 1U);
    const RxPull& p = rx.pulls[0];
    BOOST_TEST(p.key == 77U);
    BOOST_TEST(p.from == 100U);
    BOOST_TEST(p.to == reinterpret_cast<uint64_t>(to.data()) + 100);
    BOOST_TEST(p.bytes == 4900U);
    BOOST_TEST(rx.completions.empty());
    BOOST_TEST(rx.dones.empty());
    rx.pulled(p, Status::ok);
    BOOST_TEST(rx.next().length == 5000U);
    BOOST_TEST_REQUIRE(rx.dones.size() == 1U);
    BOOST_TEST(rx.dones[0].op_id == flow.op);
    BOOST_TEST(rx.dones[0].bytes == 5000U);
    BOOST_TEST(std::ranges::equal(std::span(to).first(100), bytes_of(100, 5)));
  }
}

BOOST_AUTO_TEST_CASE(test_rendezvous_cut_to_its_eager_part_pulls_nothing) {
  for (const bool early : {true, false}) {
    Rx rx;
    SendFlow flow{rx};
    std::byte to[50];
    if (early) rx.post(receive(5, to, 50));
    const RxReply r = flow.send_rendezvous(5, 5000, 100);
    if (!early) rx.post(receive(5, to, 50));
    BOOST_TEST(rx.pulls.empty());
    BOOST_TEST(rx.next().cut == 4950U);
    BOOST_TEST((r.answer == (early ? RxAnswer::done : RxAnswer::arrived)));
    BOOST_TEST(rx.dones.size() == (early ? 0U : 1U));
  }
}

BOOST_AUTO_TEST_CASE(test_failed_pull_fails_the_receive_and_the_send) {
  Rx rx;
  SendFlow flow{rx};
  std::byte to[64];
  rx.post(receive(5, to, 64));
  flow.send_rendezvous(5, 64, 0);
  rx.pulled(rx.pulls.at(0), Status::peer_gone);
  const RxCompletion c = rx.next();
  BOOST_TEST((c.status == Status::peer_gone));
  BOOST_TEST(c.length == 0U);
  BOOST_TEST(rx.statistics().match.posted_used == 0U);
  BOOST_TEST(rx.dones.empty());
  BOOST_TEST(rx.losses.size() == 1U);
  BOOST_TEST((rx.reasons.at(0) == Status::peer_gone));
}

BOOST_AUTO_TEST_CASE(test_sender_that_wants_the_match_hears_of_it) {
  Rx rx;
  SendFlow flow{rx};
  constexpr uint16_t kFlags = rx_flag::kTagged | rx_flag::kWantsMatch;
  BOOST_TEST((flow.send(5, 8, kFlags).answer == RxAnswer::arrived));
  std::byte to[8];
  rx.post(receive(5, to, 8));
  BOOST_TEST_REQUIRE(rx.dones.size() == 1U);
  BOOST_TEST(rx.dones[0].op_id == flow.op);
  rx.post(receive(5, to, 8));
  BOOST_TEST((flow.send(5, 8, kFlags).answer == RxAnswer::done));
  BOOST_TEST(rx.dones.size() == 1U);
}

BOOST_AUTO_TEST_CASE(test_threads_post_and_messages_arrive_at_once) {
  struct Counting final : RxSink {
    void completed(const RxCompletion& c) noexcept override {
      sum += c.data;
      ++count;
    }
    void pull(const RxPull&) noexcept override {}
    void done(uint64_t, uint64_t, uint64_t) noexcept override {}
    void ready(uint64_t, uint64_t, uint32_t) noexcept override {}
    void lost(uint64_t, uint64_t, Status) noexcept override {}
    void dropped(uint64_t, uint64_t, bool) noexcept override {}
    void unsettled() noexcept override {}
    uint64_t now_ns() noexcept override { return 0; }
    bool is_full() noexcept override { return false; }
    bool store(uint32_t, uint64_t, std::span<const std::byte>) noexcept override { return false; }
    uint64_t sum = 0, count = 0;  // under the context's lock
  } sink;
  RxContext rx(config(1u << 20, 1u << 20), &sink);
  constexpr uint64_t kEach = 20'000;
  std::thread receiver([&] {
    static std::byte to[64];
    for (uint64_t i = 0; i < 2 * kEach; ++i) (void)rx.post(receive(5, to, 64));
  });
  SendFlow flow{rx};
  for (uint64_t i = 0; i < 2 * kEach; ++i) {
    RxMessage m = flow.make(5, 8, rx_flag::kTagged | rx_flag::kHasData);
    m.data = i;
    (void)flow.pass(m, bytes_of(8));
  }
  receiver.join();
  BOOST_TEST(sink.count == 2 * kEach);
  BOOST_TEST(sink.sum == kEach * (2 * kEach - 1));
}

BOOST_AUTO_TEST_CASE(test_close_drops_each_receive_once_and_loses_the_messages_whose_senders_wait) {
  Rx rx;
  std::byte one[8], many[256], wide[128];
  Receive multi = receive(9, many, sizeof(many), 2);
  multi.multi = true;
  multi.min_left = 8;
  BOOST_REQUIRE((rx.post(receive(7, one, 8, 1)) == RxContext::Post::ok));
  BOOST_REQUIRE((rx.post(multi) == RxContext::Post::ok));
  BOOST_REQUIRE((rx.post(receive(3, wide, 128, 3)) == RxContext::Post::ok));
  SendFlow flow{rx};
  flow.send_rendezvous(3, 128, 8);  // its pull is under way
  flow.send_rendezvous(9, 128, 8);  // one of the buffer for several messages
  BOOST_REQUIRE(rx.pulls.size() == 2U);
  flow.send_rendezvous(4, 128, 8);
  const uint64_t kept = flow.op;
  flow.send(5, 8, rx_flag::kTagged | rx_flag::kWantsMatch);
  const uint64_t claimed = flow.op;
  BOOST_REQUIRE((rx.peek({5, 0, kAnySource, true}, RxContext::Peek::claim, 77, 0) == RxContext::Found::found));
  flow.send(6, 8);  // its sender does not wait
  rx.close();
  rx.close();
  BOOST_TEST(rx.dropped_one == std::vector<uint64_t>{1}, boost::test_tools::per_element());
  BOOST_TEST(rx.dropped_multi.empty());
  BOOST_TEST_REQUIRE(rx.losses.size() == 2U);
  BOOST_TEST(rx.losses[0].op_id == kept);
  BOOST_TEST(rx.losses[1].op_id == claimed);
  for (const RxPull& pull : rx.pulls) rx.pulled(pull, Status::canceled);
  BOOST_TEST((rx.dropped_one == std::vector<uint64_t>{1, 3}));
  BOOST_TEST((rx.dropped_multi == std::vector<uint64_t>{2}));
  BOOST_TEST(rx.losses.size() == 4U);
  BOOST_TEST(rx.dones.empty());
}

BOOST_AUTO_TEST_CASE(test_unexpected_messages_are_listed_up_to_a_number_and_counted_all) {
  Rx rx;
  SendFlow flow{rx};
  for (uint64_t tag = 0; tag < 5; ++tag) flow.send(tag, 8 + tag);
  size_t total = 0;
  const std::vector<RxCompletion> some = rx.unexpected_messages(3, &total);
  BOOST_TEST(total == 5U);
  BOOST_TEST_REQUIRE(some.size() == 3U);
  for (uint64_t tag = 0; tag < 3; ++tag) {
    BOOST_TEST(some[tag].tag == tag);
    BOOST_TEST(some[tag].length == 8 + tag);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
