// tests/cpp/test_rx_land.cpp: the receive context: eager messages of several frames, which the receiver pulls at their
// arrival. What receives, claims, discards and ends do while such a message lands.
#include <algorithm>
#include <functional>

#include "rx_support.hpp"

namespace {

using namespace weft;
using namespace weft::test::receiving;

constexpr size_t kLength = 3000, kHere = 100;
constexpr uint16_t kAnnounced = rx_flag::kTagged | rx_flag::kRendezvous | rx_flag::kWhole;

RxReply send_whole(SendFlow& flow, uint64_t tag, uint16_t flags = kAnnounced, size_t length = kLength) {
  RxMessage m = flow.make(tag, length, flags);
  m.key = 77;
  return flow.pass(m, bytes_of(std::min(length, kHere), static_cast<unsigned>(tag)));
}

// Makes the oldest pull as a port does. The sender's buffer is that of the tag.
void run(Rx& rx, uint64_t tag, Status status = Status::ok) {
  BOOST_REQUIRE(!rx.pulls.empty());
  const RxPull p = rx.pulls.front();
  rx.pulls.erase(rx.pulls.begin());
  if (status == Status::ok) {
    const auto whole = bytes_of(kLength, static_cast<unsigned>(tag));
    const std::byte* const from = p.lies != 0 ? reinterpret_cast<const std::byte*>(p.lies) : whole.data() + p.from;
    std::memcpy(reinterpret_cast<void*>(p.to), from, p.bytes);
  }
  rx.pulled(p, status);
}

bool holds(const std::vector<std::byte>& room, uint64_t tag, size_t length = kLength) {
  const auto whole = bytes_of(length, static_cast<unsigned>(tag));
  return std::ranges::equal(std::span(room).first(length), whole);
}

void expect_empty(Rx& rx) {
  BOOST_TEST(rx.pulls.empty());
  BOOST_TEST(rx.statistics().match.unexpected_used == 0U);
  BOOST_TEST(rx.statistics().match.posted_used == 0U);
  BOOST_TEST(rx.statistics().buffers.messages == 0U);
}

BOOST_AUTO_TEST_SUITE(rx_land)

BOOST_AUTO_TEST_CASE(test_message_with_a_receive_is_pulled_into_the_buffer_of_the_receive) {
  Rx rx;
  SendFlow flow{rx};
  std::vector<std::byte> to(kLength);
  rx.post(receive(5, to.data(), to.size()));
  BOOST_TEST((send_whole(flow, 5).answer == RxAnswer::arrived));
  BOOST_TEST_REQUIRE(rx.pulls.size() == 1U);
  BOOST_TEST(rx.pulls[0].eager);
  BOOST_TEST(rx.pulls[0].to == reinterpret_cast<uint64_t>(to.data()) + kHere);
  BOOST_TEST(rx.dones.empty());
  run(rx, 5);
  BOOST_TEST(rx.next().length == kLength);
  BOOST_TEST(holds(to, 5));
  BOOST_TEST_REQUIRE(rx.dones.size() == 1U);
  BOOST_TEST(rx.dones[0].op_id == flow.op);
  expect_empty(rx);
}

BOOST_AUTO_TEST_CASE(test_sender_of_a_message_without_a_receive_hears_of_its_end_when_the_bytes_have_landed) {
  Rx rx;
  SendFlow flow{rx};
  BOOST_TEST((send_whole(flow, 5).answer == RxAnswer::arrived));
  BOOST_TEST(rx.dones.empty());
  run(rx, 5);
  BOOST_TEST_REQUIRE(rx.dones.size() == 1U);
  BOOST_TEST(rx.dones[0].op_id == flow.op);
  BOOST_TEST(rx.dones[0].bytes == kLength);
  BOOST_TEST(rx.completions.empty());
  std::vector<std::byte> to(kLength);
  rx.post(receive(5, to.data(), to.size()));
  run(rx, 0);  // from the memory of kept messages
  const RxCompletion c = rx.next();
  BOOST_TEST(c.length == kLength);
  BOOST_TEST(c.cut == 0U);
  BOOST_TEST(c.tag == 5U);
  BOOST_TEST((c.source == kFrom));
  BOOST_TEST(holds(to, 5));
  BOOST_TEST(rx.dones.size() == 1U);
  expect_empty(rx);
}

BOOST_AUTO_TEST_CASE(test_receive_that_comes_while_a_message_lands_has_it_afterwards) {
  Rx rx;
  SendFlow flow{rx};
  std::vector<std::byte> to(kLength);
  send_whole(flow, 5);
  rx.post(receive(5, to.data(), to.size()));
  BOOST_TEST(rx.pulls.size() == 1U);
  BOOST_TEST(rx.completions.empty());
  BOOST_TEST(!rx.cancel(1));  // the receive has a message
  run(rx, 5);
  BOOST_TEST(rx.dones.size() == 1U);
  BOOST_TEST(rx.completions.empty());
  run(rx, 0);
  BOOST_TEST(rx.next().length == kLength);
  BOOST_TEST(holds(to, 5));
  expect_empty(rx);
}

BOOST_AUTO_TEST_CASE(test_receive_without_room_gets_what_fits) {
  for (const size_t room : {size_t{0}, size_t{50}, size_t{2000}}) {
    for (const bool landed : {true, false}) {
      Rx rx;
      SendFlow flow{rx};
      std::vector<std::byte> to(kLength);
      send_whole(flow, 5);
      if (landed) run(rx, 5);
      rx.post(receive(5, to.data(), room));
      if (!landed) run(rx, 5);
      if (room != 0) run(rx, 0);
      const RxCompletion c = rx.next();
      BOOST_TEST((c.status == Status::ok));
      BOOST_TEST(c.length == room);
      BOOST_TEST(c.cut == kLength - room);
      BOOST_TEST(holds(to, 5, room));
      BOOST_TEST((to[room] == std::byte{0}));
      BOOST_TEST(rx.dones.size() == 1U);
      expect_empty(rx);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_sender_that_wants_the_match_hears_of_the_receive_once) {
  for (const bool landed : {true, false}) {
    Rx rx;
    SendFlow flow{rx};
    std::vector<std::byte> to(kLength);
    send_whole(flow, 5, kAnnounced | rx_flag::kWantsMatch);
    if (landed) run(rx, 5);
    BOOST_TEST(rx.dones.empty());
    rx.post(receive(5, to.data(), to.size()));
    if (!landed) run(rx, 5);
    run(rx, 0);
    BOOST_TEST_REQUIRE(rx.dones.size() == 1U);
    BOOST_TEST(rx.dones[0].bytes == kLength);
    BOOST_TEST(holds(to, 5));
    expect_empty(rx);
  }
}

BOOST_AUTO_TEST_CASE(test_peek_finds_a_message_that_lands) {
  Rx rx;
  SendFlow flow{rx};
  send_whole(flow, 5);
  BOOST_TEST((rx.peek({5, 0, kAnySource, true}, RxContext::Peek::look, 8, 0) == RxContext::Found::found));
  BOOST_TEST(rx.next().length == kLength);
  size_t total = 0;
  BOOST_TEST(rx.unexpected_messages(10, &total).size() == 1U);
  run(rx, 5);
}

BOOST_AUTO_TEST_CASE(test_claimed_message_is_received_after_it_has_landed) {
  for (const bool landed : {true, false}) {
    Rx rx;
    SendFlow flow{rx};
    std::vector<std::byte> to(kLength);
    send_whole(flow, 5);
    rx.peek({5, 0, kAnySource, true}, RxContext::Peek::claim, 8, 0);
    rx.next();
    if (landed) run(rx, 5);
    BOOST_TEST((rx.receive_claimed(receive(5, to.data(), to.size(), 8), false) == RxContext::Found::found));
    if (!landed) run(rx, 5);
    BOOST_TEST(rx.completions.empty());
    run(rx, 0);
    BOOST_TEST(rx.next().length == kLength);
    BOOST_TEST(holds(to, 5));
    BOOST_TEST(rx.dones.size() == 1U);
    expect_empty(rx);
  }
}

BOOST_AUTO_TEST_CASE(test_memory_of_a_discarded_message_is_in_use_until_it_has_landed) {
  for (const bool claimed : {true, false}) {
    for (const uint16_t wants : {uint16_t{0}, rx_flag::kWantsMatch}) {
      Rx rx;
      SendFlow flow{rx};
      send_whole(flow, 5, static_cast<uint16_t>(kAnnounced | wants));
      rx.peek({5, 0, kAnySource, true}, claimed ? RxContext::Peek::claim : RxContext::Peek::discard, 8, 0);
      if (claimed) rx.receive_claimed(receive(5, nullptr, 0, 8), true);
      BOOST_TEST(rx.statistics().buffers.messages == 1U);
      BOOST_TEST(rx.dones.empty());
      run(rx, 5);
      BOOST_TEST(rx.dones.size() == 1U);
      expect_empty(rx);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_message_whose_bytes_fail_to_come_is_gone_and_its_sender_hears_why) {
  Rx rx;
  SendFlow flow{rx};
  send_whole(flow, 5);
  run(rx, 5, Status::fault);
  BOOST_TEST(rx.dones.empty());
  BOOST_TEST_REQUIRE(rx.losses.size() == 1U);
  BOOST_TEST(rx.losses[0].op_id == flow.op);
  BOOST_TEST((rx.reasons[0] == Status::fault));
  expect_empty(rx);
  std::byte to[8];
  rx.post(receive(6, to, 8));
  BOOST_TEST((flow.send(6).answer == RxAnswer::done));  // the flow goes on
  BOOST_TEST(rx.next().tag == 6U);
}

BOOST_AUTO_TEST_CASE(test_receive_of_a_message_whose_bytes_fail_to_come_fails) {
  for (const bool claimed : {true, false}) {
    Rx rx;
    SendFlow flow{rx};
    std::vector<std::byte> to(kLength);
    send_whole(flow, 5);
    if (claimed) {
      rx.peek({5, 0, kAnySource, true}, RxContext::Peek::claim, 8, 0);
      rx.next();
      run(rx, 5, Status::peer_gone);
      rx.receive_claimed(receive(5, to.data(), to.size(), 8), false);
    } else {
      rx.post(receive(5, to.data(), to.size()));
      run(rx, 5, Status::peer_gone);
    }
    const RxCompletion c = rx.next();
    BOOST_TEST((c.status == Status::peer_gone));
    BOOST_TEST(c.length == 0U);
    BOOST_TEST(rx.losses.size() == 1U);
    expect_empty(rx);
  }
}

BOOST_AUTO_TEST_CASE(test_message_that_is_longer_than_a_buffer_is_refused_until_a_receive_takes_it) {
  for (const size_t length : {size_t{4096}, size_t{1} << 40, ~size_t{0}}) {
    Rx rx;  // buffers of 4096 bytes
    SendFlow flow{rx};
    BOOST_TEST((send_whole(flow, 5, kAnnounced, length).answer == RxAnswer::refused));
    BOOST_TEST(rx.pulls.empty());
    BOOST_TEST(rx.statistics().match.unexpected_used == 0U);
    BOOST_TEST(rx.statistics().buffers.messages == 0U);
    std::vector<std::byte> to(kLength);
    rx.post(receive(5, to.data(), to.size()));
    BOOST_TEST(rx.readies.size() == 1U);
    BOOST_TEST((send_whole(flow, 5, kAnnounced, length).answer == RxAnswer::arrived));
    run(rx, 5);
    BOOST_TEST(rx.next().cut == length - kLength);
  }
}

BOOST_AUTO_TEST_CASE(test_messages_are_counted_whole_against_the_buffers) {
  RxContext::Config c = config();
  c.buffers.count_max = 3;
  Rx rx(c);
  SendFlow flow{rx};
  for (int i = 0; i < 3; ++i) BOOST_TEST((send_whole(flow, 5).answer == RxAnswer::arrived));
  BOOST_TEST((send_whole(flow, 5).answer == RxAnswer::refused));
  BOOST_TEST(rx.statistics().refused == 1U);
  std::vector<std::byte> to(kLength);
  for (int i = 0; i < 3; ++i) run(rx, 5);
  rx.post(receive(5, to.data(), to.size()));
  BOOST_TEST(rx.readies.empty());  // the memory is in use until its bytes have been copied
  run(rx, 0);
  BOOST_TEST(rx.readies.size() == 1U);
  BOOST_TEST((send_whole(flow, 5).answer == RxAnswer::arrived));
  run(rx, 5);
}

BOOST_AUTO_TEST_CASE(test_close_tells_the_senders_of_messages_that_land_once) {
  enum class How : uint8_t { listed, claimed, discarded, received, landed };
  for (const How how : {How::listed, How::claimed, How::discarded, How::received, How::landed}) {
    for (const Status status : {Status::ok, Status::canceled}) {
      Rx rx;
      SendFlow flow{rx};
      std::vector<std::byte> to(kLength);
      send_whole(flow, 5);
      const Pattern five{5, 0, kAnySource, true};
      if (how == How::claimed) rx.peek(five, RxContext::Peek::claim, 8, 0);
      if (how == How::discarded) rx.peek(five, RxContext::Peek::discard, 8, 0);
      if (how == How::received) rx.post(receive(5, to.data(), to.size()));
      if (how == How::landed) {
        run(rx, 5);
        rx.post(receive(5, to.data(), to.size()));
      }
      rx.completions.clear();
      rx.close();
      BOOST_TEST(rx.statistics().buffers.buffers != 0U);  // a thread may be copying
      run(rx, how == How::landed ? 0 : 5, status);
      BOOST_TEST(rx.pulls.empty());
      BOOST_TEST(rx.statistics().buffers.buffers == 0U);
      BOOST_TEST(rx.dones.size() == (how == How::landed ? 1U : 0U));
      BOOST_TEST(rx.losses.size() == (how == How::landed ? 0U : 1U));
      if (how != How::landed) BOOST_TEST((rx.reasons[0] == Status::no_endpoint));
      BOOST_TEST(rx.dropped_one.size() == (how == How::received || how == How::landed ? 1U : 0U));
      BOOST_TEST(rx.completions.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(test_canceled_buffer_for_several_messages_ends_after_the_message_that_lands) {
  Rx rx;
  SendFlow flow{rx};
  std::vector<std::byte> to(2 * kLength + 100);
  send_whole(flow, 5);
  Receive r = receive(5, to.data(), to.size());
  r.multi = true;
  r.min_left = 64;
  rx.post(r);
  send_whole(flow, 5);  // straight into the buffer, behind the room of the first
  BOOST_TEST(rx.cancel(1));
  BOOST_TEST(rx.completions.empty());
  run(rx, 5);  // the first has landed
  run(rx, 5);  // the second is in its place
  const RxCompletion second = rx.next();
  BOOST_TEST(second.buffer == reinterpret_cast<uint64_t>(to.data()) + kLength);
  BOOST_TEST(!second.multi_last);
  run(rx, 0);
  const RxCompletion first = rx.next();
  BOOST_TEST(first.buffer == reinterpret_cast<uint64_t>(to.data()));
  BOOST_TEST((rx.next().status == Status::canceled));
  BOOST_TEST(holds(to, 5));
  expect_empty(rx);
}

BOOST_AUTO_TEST_CASE(test_list_entry_of_a_message_is_given_back_when_its_bytes_have_been_copied) {
  RxContext::Config c = config();
  c.mode.mode = MatchMode::hardware;
  Rx rx(c);
  BOOST_REQUIRE(rx.open());
  SendFlow flow{rx};
  std::vector<std::byte> to(kLength);
  send_whole(flow, 5);
  BOOST_TEST(rx.statistics().mode.messages == 1U);
  run(rx, 5);
  rx.post(receive(5, to.data(), to.size()));
  run(rx, 0);
  BOOST_TEST(rx.statistics().mode.messages == 0U);
}

BOOST_AUTO_TEST_CASE(test_announcement_that_no_sender_makes_breaks_the_protocol) {
  const auto answer = [](uint16_t flags, size_t length, size_t here) {
    Rx rx;
    SendFlow flow{rx};
    flow.send(1);
    const RxMessage m = flow.make(5, length, flags);
    return flow.pass(m, bytes_of(here)).answer;
  };
  BOOST_TEST((answer(kAnnounced, 100, 100) == RxAnswer::broken));  // nothing is left to pull
  BOOST_TEST((answer(kAnnounced, 100, 101) == RxAnswer::broken));
  BOOST_TEST((answer(rx_flag::kTagged | rx_flag::kWhole, 100, 100) == RxAnswer::broken));
  BOOST_TEST((answer(kAnnounced | rx_flag::kCredited, 100, 50) == RxAnswer::broken));
}

BOOST_AUTO_TEST_CASE(test_unordered_message_without_a_receive_is_refused) {
  Rx rx;
  SendFlow flow{rx};
  BOOST_TEST((send_whole(flow, 5, kAnnounced | rx_flag::kUnordered).answer == RxAnswer::refused));
  BOOST_TEST(rx.pulls.empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
