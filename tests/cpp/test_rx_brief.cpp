// tests/cpp/test_rx_brief.cpp: the receive context: credited messages in their short form have the outcome of the same
// messages in the long form.
#include <array>
#include <cstring>
#include <random>
#include <string>

#include "mem/guard.hpp"
#include "rx_support.hpp"

namespace {

using namespace weft;
using namespace weft::test::receiving;

BOOST_AUTO_TEST_SUITE(rx_brief)

wire::BriefView brief_of(const RxMessage& m, std::span<const std::byte> bytes) {
  wire::BriefView v;
  v.head.flags = static_cast<uint8_t>(m.flags & (wire::kMessageTagged | wire::kMessageHasData));
  v.head.rest = static_cast<uint8_t>(bytes.size() + (m.data != 0 ? wire::kBriefDataBytes : 0));
  v.head.sender = m.sender;
  v.head.tag = m.tag;
  v.head.sequence = m.sequence;
  v.data = m.data;
  v.payload = bytes;
  return v;
}

std::string text_of(const RxCompletion& c, const std::byte* memory) {
  const auto base = reinterpret_cast<uint64_t>(memory);
  const std::array<uint64_t, 15> all{c.context,
                                     c.flags,
                                     c.extra,
                                     c.object,
                                     c.buffer == 0 ? 0 : c.buffer - base + 1,
                                     c.length,
                                     c.cut,
                                     c.tag,
                                     c.data,
                                     c.source.pid,
                                     c.index,
                                     static_cast<uint64_t>(c.status),
                                     uint64_t{c.tagged} + 2 * uint64_t{c.has_data},
                                     uint64_t{c.multi} + 2 * uint64_t{c.multi_last},
                                     c.ends};
  std::string out;
  for (const uint64_t n : all) out += std::to_string(n) + ' ';
  return out;
}

// A receiver, its memory, and what it has reported.
struct Receiver {
  explicit Receiver(const RxContext::Config& c) : rx(c) {}
  Rx rx;
  std::array<std::byte, 4096> memory{};

  std::string reported() {
    std::string out;
    while (!rx.completions.empty()) out += text_of(rx.next(), memory.data()) + '\n';
    return out;
  }
};

void play(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  RxContext::Config c = config(200, below(2) == 0 ? 2 : 200, 6);
  c.credited_bytes_max = 64;
  Receiver by_frames(c), by_briefs(c);
  SendFlow flow{by_frames.rx}, same{by_briefs.rx};
  uint64_t context = 0;
  const auto both = [&](uint64_t tag, size_t length, uint16_t flags) {
    const RxAnswer one = flow.send(tag, length, flags).answer, other = same.send(tag, length, flags).answer;
    BOOST_TEST((one == other));
    BOOST_TEST((flow.sequence == same.sequence && flow.credits == same.credits));
  };
  both(0, 4, rx_flag::kTagged);
  uint32_t left = flow.credits;
  for (int step = 0; step < 400; ++step) {
    const uint32_t what = below(10);
    if (what < 4) {
      Receive r;
      r.what = {below(3), below(4) == 0 ? uint64_t{1} : 0, kAnySource, below(4) != 0};
      const uint32_t at = below(32) * 64;
      r.length = below(5) == 0 ? below(16) : 64;
      r.context = ++context;
      r.flags = below(2) << 5;
      r.multi = below(8) == 0;
      r.min_left = 20;
      r.object = r.multi ? 0 : context * 3;
      r.extra = r.multi ? below(9) : kNoExtra;
      r.address = reinterpret_cast<uint64_t>(by_frames.memory.data() + at);
      const auto one = by_frames.rx.post(r);
      r.address = reinterpret_cast<uint64_t>(by_briefs.memory.data() + at);
      BOOST_TEST((by_briefs.rx.post(r) == one));
    } else if (what == 4 && context != 0) {
      const uint64_t which = 1 + below(static_cast<uint32_t>(context));
      BOOST_TEST(by_frames.rx.cancel(which) == by_briefs.rx.cancel(which));
    } else if (left == 0 || what == 5) {
      const uint32_t had = flow.credits;
      both(below(3), below(40), below(4) == 0 ? uint16_t{0} : rx_flag::kTagged);
      left += flow.credits - had;
    } else {
      RxMessage m = flow.make(below(3), below(41), below(4) == 0 ? rx_flag::kCredited : kQuick);
      if (below(3) == 0) {
        m.data = 1 + below(9);
        m.flags |= rx_flag::kHasData;
      }
      const auto bytes = bytes_of(m.length, static_cast<unsigned>(step));
      const RxAnswer long_form = flow.pass(m, bytes).answer;
      const RxAnswer short_form = by_briefs.rx.arrive_brief(m.peer, brief_of(m, bytes));
      BOOST_TEST((long_form == short_form));
      if (short_form < RxAnswer::refused) ++same.sequence;
      --left;
    }
    BOOST_TEST(by_frames.reported() == by_briefs.reported());
    BOOST_REQUIRE(std::memcmp(by_frames.memory.data(), by_briefs.memory.data(), by_frames.memory.size()) == 0);
    const auto one = by_frames.rx.statistics(), other = by_briefs.rx.statistics();
    BOOST_TEST(one.matched == other.matched);
    BOOST_TEST(one.unexpected == other.unexpected);
    BOOST_TEST(one.match.posted == other.match.posted);
    BOOST_TEST(one.match.posted_used == other.match.posted_used);
    BOOST_TEST(by_frames.rx.credits_of_flow(kPeer, flow.sender) == by_briefs.rx.credits_of_flow(kPeer, same.sender));
#if !defined(NDEBUG)
    by_briefs.rx.check();
#endif
  }
}

BOOST_AUTO_TEST_CASE(test_short_form_has_the_outcome_of_the_long_form) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      play(seed);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_short_form_that_breaks_the_protocol_is_refused) {
  Rx rx;
  SendFlow flow{rx};
  flow.send(1);
  const auto bytes = bytes_of(8);
  RxMessage m = flow.make(1, 8, kQuick);
  m.sender = flow.sender + 1;  // no such flow
  BOOST_TEST((rx.arrive_brief(kPeer, brief_of(m, bytes)) == RxAnswer::broken));
  m.sender = flow.sender;
  BOOST_TEST((rx.arrive_brief(kPeer + 1, brief_of(m, bytes)) == RxAnswer::broken));  // of another connection
  m.sequence += 1;                                                                   // nothing was refused
  BOOST_TEST((rx.arrive_brief(kPeer, brief_of(m, bytes)) == RxAnswer::broken));
  m.sequence -= 1;
  const auto many = bytes_of(rx_flag::kCredited + 1000);
  BOOST_TEST((rx.arrive_brief(kPeer, brief_of(m, many)) == RxAnswer::broken));  // longer than a credited message
  for (uint32_t left = rx.credits_of_flow(kPeer, flow.sender); left != 0; --left, ++m.sequence) {
    BOOST_TEST((rx.arrive_brief(kPeer, brief_of(m, bytes)) == RxAnswer::none));
  }
  BOOST_TEST((rx.arrive_brief(kPeer, brief_of(m, bytes)) == RxAnswer::broken));  // no credit is left
  rx.cut(kPeer, flow.sender);
  BOOST_TEST((rx.arrive_brief(kPeer, brief_of(m, bytes)) == RxAnswer::closed));
  rx.close();
  BOOST_TEST((rx.arrive_brief(kPeer, brief_of(m, bytes)) == RxAnswer::closed));
}

BOOST_AUTO_TEST_CASE(test_short_form_of_the_refused_message_lets_the_flow_go_on) {
  Rx rx(config(10, 1));
  SendFlow flow{rx};
  flow.send(1);
  BOOST_TEST((flow.send(2).answer == RxAnswer::refused));
  std::byte second[8], third[8];
  rx.post(receive(2, second, 8));
  rx.post(receive(3, third, 8));
  const auto bytes = bytes_of(8);
  RxMessage m = flow.make(3, 8, kQuick);
  m.sequence += 1;
  BOOST_TEST((rx.arrive_brief(kPeer, brief_of(m, bytes)) == RxAnswer::none));
  BOOST_TEST(rx.completions.empty());  // message 3 must not pass message 2
  BOOST_TEST((rx.arrive_brief(kPeer, brief_of(flow.make(2, 8, kQuick), bytes)) == RxAnswer::none));
  BOOST_TEST_REQUIRE(rx.completions.size() == 2U);
  BOOST_TEST(rx.next().tag == 2U);
  BOOST_TEST(rx.next().tag == 3U);
}

// A page of the receive fails: the receive ends with the error, as for any message.
BOOST_AUTO_TEST_CASE(test_short_form_for_a_receive_without_pages_fails_the_receive) {
  mem::keep_fault_handler();  // Boost's handler is in front of ours
  Rx rx;
  SendFlow flow{rx};
  flow.send(1);
  rx.post(receive(5, reinterpret_cast<void*>(64), 64));
  const RxMessage m = flow.make(5, 8, kQuick);
  BOOST_TEST((rx.arrive_brief(kPeer, brief_of(m, bytes_of(8))) == RxAnswer::none));
  const RxCompletion c = rx.next();
  BOOST_TEST((c.status == Status::fault));
  BOOST_TEST(c.length == 0U);
  BOOST_TEST(rx.statistics().match.posted_used == 0U);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
