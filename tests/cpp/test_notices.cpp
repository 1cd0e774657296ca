// tests/cpp/test_notices.cpp: frames without answers that wait for room at their peer: order, bounds, peers that go.
#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "nic/notices.hpp"

namespace {

using namespace weft;
using nic::Notices;

// A link with room for some frames in all, or of one peer; it remembers the frames that it took.
struct FakeLink : link::Link {
  FakeLink() : Link(link::LinkKind::memory) {}
  struct Sent {
    const link::Peer* peer;
    uint64_t op_id;
    std::vector<std::byte> payload;
  };
  size_t room = 0;
  std::vector<const link::Peer*> deaf;
  std::vector<Sent> sent;
  size_t asked = 0;

  Status submit(link::Peer& peer, wire::Frame& frame, std::span<const std::byte> payload) override {
    ++asked;
    if (peer.dead()) return Status::peer_gone;
    if (room == 0 || std::ranges::find(deaf, &peer) != deaf.end()) return Status::again;
    --room;
    sent.push_back({&peer, frame.op_id, {payload.begin(), payload.end()}});
    return Status::ok;
  }
  void claim(const wire::EpAddress&, uint32_t, uint32_t) override {}
  void release(const wire::EpAddress&) noexcept override {}
  Resolving resolve(const wire::EpAddress&, const std::shared_ptr<void>&, Found*) override { return Resolving::no; }
  void request_segment(link::Peer&, uint32_t) override {}
  [[nodiscard]] bool maybe_ready() const noexcept override { return false; }
  size_t poll(link::FrameSink&, size_t) override { return 0; }
  size_t poll_events(link::FrameSink&) override { return 0; }
  bool prepare_sleep() override { return true; }
  [[nodiscard]] bool has_timers() const override { return false; }
  void after_fork_in_child() noexcept override {}
  [[nodiscard]] std::vector<std::shared_ptr<link::Peer>> peers() const override { return {}; }
};

struct FakePeer : link::Peer {
  explicit FakePeer(link::Link* link) : link::Peer(link) {}
  [[nodiscard]] std::string describe() const override { return "a peer"; }
  Status cma_copy(bool, std::span<const iovec>, std::span<const iovec>) override { return Status::again; }
  void die() noexcept { mark_dead(); }
};

struct Fixture {
  FakeLink link;
  std::shared_ptr<FakePeer> a = std::make_shared<FakePeer>(&link), b = std::make_shared<FakePeer>(&link);
  Notices notices;
  std::vector<Notices::Lost> lost;

  bool give(const std::shared_ptr<FakePeer>& peer, uint64_t op_id, std::span<const std::byte> payload = {}) {
    wire::Frame f{};
    f.kind = wire::FrameKind::ready;
    f.op_id = op_id;
    return notices.give(peer, f, payload);
  }
  std::vector<uint64_t> sent_to(const std::shared_ptr<FakePeer>& peer) const {
    std::vector<uint64_t> ids;
    for (const FakeLink::Sent& one : link.sent) {
      if (one.peer == peer.get()) ids.push_back(one.op_id);
    }
    return ids;
  }
};

BOOST_FIXTURE_TEST_SUITE(notices_of_a_nic, Fixture)

BOOST_AUTO_TEST_CASE(test_notice_leaves_at_once_where_there_is_room) {
  link.room = 1;
  BOOST_TEST(!give(a, 1));
  BOOST_TEST(link.sent.size() == 1U);
  BOOST_TEST(notices.empty());
}

BOOST_AUTO_TEST_CASE(test_notices_of_a_peer_keep_their_order_and_their_bytes) {
  const std::vector<std::byte> payload(Notices::kPayloadMax, std::byte{7});
  BOOST_TEST(give(a, 1, payload));
  link.room = 1;
  BOOST_TEST(give(a, 2));  // not past notice 1
  BOOST_TEST(notices.send(&lost) == 1U);
  BOOST_TEST(notices.count() == 1U);
  link.room = 5;
  BOOST_TEST(notices.send(&lost) == 1U);
  BOOST_TEST(sent_to(a) == (std::vector<uint64_t>{1, 2}), boost::test_tools::per_element());
  BOOST_TEST((link.sent[0].payload == payload));
  BOOST_TEST(notices.empty());
}

BOOST_AUTO_TEST_CASE(test_deaf_peer_delays_no_other_and_is_asked_once_a_round) {
  link.deaf = {a.get()};
  for (uint64_t i = 0; i < 100; ++i) give(a, i);
  link.room = 1;
  BOOST_TEST(!give(b, 7));
  BOOST_TEST(sent_to(b).size() == 1U);
  link.asked = 0;
  BOOST_TEST(notices.send(&lost) == 0U);
  BOOST_TEST(link.asked == 1U);
  BOOST_TEST(notices.count() == 100U);
}

BOOST_AUTO_TEST_CASE(test_peer_that_takes_nothing_is_lost_at_the_bound) {
  link.deaf = {a.get()};
  for (uint64_t i = 0; i < Notices::kWaitingMax; ++i) give(a, i);
  (void)notices.send(&lost);
  BOOST_TEST(lost.empty());
  for (uint64_t i = 0; i < 10; ++i) give(a, i);
  BOOST_TEST(notices.count() == Notices::kWaitingMax);  // the memory grows no more
  (void)notices.send(&lost);
  BOOST_TEST_REQUIRE(lost.size() == 1U);
  BOOST_TEST((lost[0].peer == a));
  BOOST_TEST((lost[0].why == Status::protocol));
  BOOST_TEST(notices.empty());
}

BOOST_AUTO_TEST_CASE(test_notices_of_a_peer_that_died_are_dropped) {
  for (uint64_t i = 0; i < 5; ++i) give(a, i);
  a->die();
  (void)notices.send(&lost);
  BOOST_TEST(notices.empty());
  BOOST_TEST(lost.empty());
  BOOST_TEST(a.use_count() == 1);  // nothing keeps the peer
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
