// tests/cpp/test_group_exchange.cpp: small collective groups, whose members send their contributions to all others.
#include "group_support.hpp"

namespace {

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(group_exchange)

// A frame of member `from` to member `to` which `from` has not sent.
void forge(Members& m, uint32_t from, uint32_t to, wire::ReduceWhat what, std::span<const std::byte> payload = {}) {
  wire::Frame f;
  f.kind = wire::FrameKind::reduce;
  f.status = static_cast<int32_t>(Status::closed);
  f.ep_index = m.sides[to]->ep->index();
  f.ep_generation = m.sides[to]->ep->generation();
  f.source = m.sides[from]->ep->address();
  f.reduce = {};
  f.reduce.group = m.groups[to]->look().number;
  f.reduce.value = from;
  f.reduce.from = from;
  f.reduce.to = to;
  f.reduce.what = static_cast<uint8_t>(what);
  f.reduce.tier = 1;
  for (link::Link* l : m.sides[from]->nic().links()) {
    for (const auto& peer : l->peers()) {
      if (!peer->same_process) (void)l->submit(*peer, f, payload);
    }
  }
}

// All three have gathered, and wait for the multicast address.
void agree(Members& m) {
  GroupConfig c;
  c.asks = true;
  for (uint32_t i = 0; i < 3; ++i) m.join(i, c);
  BOOST_REQUIRE(m.await([&] { return m.all_are(GroupState::agreed); }));
  for (int n = 0; n < 200; ++n) m.progress();
}

BOOST_AUTO_TEST_CASE(test_a_contribution_that_comes_before_the_end_of_the_join_counts) {
  Members m(3, Over::shm);
  agree(m);
  const int64_t value = 50;
  const Partial part = nic::contribution(ReduceOp::int_sum, Datatype::int64, &value, 1);
  forge(m, 1, 2, wire::ReduceWhat::part, std::as_bytes(std::span(&part, 1)));
  for (int n = 0; n < 10; ++n) m.progress();
  m.groups[0]->supply(0, 0, 0);
  BOOST_REQUIRE(m.await([&] { return m.all_are(GroupState::joined); }));
  std::array<int64_t, 3> out{};
  for (uint32_t i = 0; i < 3; ++i) BOOST_TEST(m.groups[i]->post(sum_of(1, &out[i])) == ReduceRefusal::none);
  for (uint32_t i = 0; i < 3; ++i) BOOST_TEST(m.next(i).error == 0);
  BOOST_TEST(out == (std::array<int64_t, 3>{3, 3, 52}));
}

BOOST_AUTO_TEST_CASE(test_a_member_may_be_sixteen_reductions_behind_another) {
  Members m(3, Over::strict);  // a ring for each peer: the two rings of member 2 are read one after the other
  m.join_all();
  std::array<std::array<int64_t, 16>, 3> out{};
  const auto post = [&](uint32_t i, uint64_t first) {
    for (uint64_t n = first; n < first + 8; ++n) {
      BOOST_REQUIRE(m.groups[i]->post(sum_of(static_cast<int64_t>(n), &out[i][n], n)) == ReduceRefusal::none);
    }
  };
  const auto done = [&](uint32_t i, uint32_t count) { return m.groups[i]->look().done == count; };
  for (uint32_t i = 0; i < 3; ++i) post(i, 0);
  BOOST_REQUIRE(poll_until([&] { return done(0, 8) && done(1, 8); },
                           [&] {
                             m.sides[0]->progress();
                             m.sides[1]->progress();
                           }));
  post(0, 8);
  post(1, 8);
  BOOST_TEST(done(2, 0));
  BOOST_REQUIRE_MESSAGE(m.await([&] { return done(2, 8); }), m.states());
  post(2, 8);
  for (uint32_t i = 0; i < 3; ++i) {
    for (uint64_t n = 0; n < 16; ++n) {
      BOOST_TEST(m.next(i).entry.context == n);
      BOOST_TEST(out[i][n] == 3 * static_cast<int64_t>(n));
    }
    BOOST_TEST(m.groups[i]->look().ignored == 0u);
  }
}

BOOST_AUTO_TEST_CASE(test_a_contribution_counts_after_its_member_has_left) {
  // Members 0 and 1 hear of the loss while the contribution of member 2 is still to come.
  for (const bool comes : {false, true}) {
    for (const Over over : {Over::shm, Over::strict, Over::tcp}) {
      BOOST_TEST_CONTEXT("over " << name_of(over)
                                 << (comes ? ", member 2 contributes" : ", member 2 hears of it too")) {
        Members m(4, over);
        m.join_all();
        for (const uint32_t i : {3u, 0u, 1u}) BOOST_TEST(m.groups[i]->post(barrier()) == ReduceRefusal::none);
        m.groups[3]->close();
        const auto broken = [&](uint32_t i) { return m.groups[i]->look().state == GroupState::broken; };
        BOOST_REQUIRE(poll_until([&] { return broken(0) && broken(1); },
                                 [&] {
                                   for (const uint32_t i : {0u, 1u, 3u}) m.sides[i]->progress();
                                 }));
        for (const uint32_t i : {0u, 1u}) {
          BOOST_TEST(m.sides[i]->unread() == 0u);
          BOOST_TEST(m.groups[i]->post(barrier(2)) == ReduceRefusal::none);  // fails at once
          BOOST_TEST(m.next(i).entry.context == 2u);
        }
        if (comes) BOOST_TEST(m.groups[2]->post(barrier()) == ReduceRefusal::none);
        for (uint32_t i = 0; i < (comes ? 3u : 2u); ++i) BOOST_TEST((m.next(i).error == 0) == comes);
        for (uint32_t i = 0; i < 3; ++i) {
          BOOST_REQUIRE(m.await([&] { return broken(i); }));
          BOOST_TEST(m.groups[i]->look().lost == 3u);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_a_broken_group_that_waits_may_be_closed) {
  Members m(3, Over::shm);
  m.join_all();
  for (const uint32_t i : {2u, 0u}) BOOST_TEST(m.groups[i]->post(barrier()) == ReduceRefusal::none);
  m.groups[2]->close();
  BOOST_REQUIRE(
      poll_until([&] { return m.groups[0]->look().state == GroupState::broken; }, [&] { m.sides[0]->progress(); }));
  BOOST_TEST(m.sides[0]->unread() == 0u);
  m.groups[0]->close();
  BOOST_TEST(m.next(0).error == fi_err::kECANCELED);
}

BOOST_AUTO_TEST_CASE(test_a_member_that_leaves_after_the_join_does_not_fail_the_join) {
  // Member 1's `lost` arrives before member 0's `joined`.
  Members m(3, Over::shm);
  agree(m);
  forge(m, 1, 2, wire::ReduceWhat::lost);
  for (int n = 0; n < 10; ++n) m.progress();
  BOOST_TEST(m.all_are(GroupState::agreed), m.states());
  m.groups[0]->supply(0, 0, 0);
  BOOST_TEST(m.await([&] { return m.groups[2]->look().state == GroupState::broken; }), m.states());
  BOOST_TEST(m.groups[2]->look().error == 0u);
  BOOST_TEST(m.groups[2]->look().lost == 1u);
}

BOOST_AUTO_TEST_CASE(test_a_join_ends_when_the_members_have_found_each_other) {
  Members m(3, Over::shm);
  for (uint32_t i = 0; i < 3; ++i) m.join(i);
  const auto state = [&](uint32_t i) { return m.groups[i]->look().state; };
  uint32_t next = 0;
  BOOST_REQUIRE(poll_until([&] { return state(0) == GroupState::agreed; }, [&] { m.sides[next++ % 3]->progress(); }));
  for (const uint32_t i : {2u, 1u}) {  // each has member 0 alone to talk to
    for (int n = 0; n < 500; ++n) {
      m.sides[0]->progress();
      m.sides[i]->progress();
    }
    BOOST_TEST((state(0) == GroupState::agreed && state(i) == GroupState::agreed), m.states());
  }
  BOOST_REQUIRE(m.await([&] { return m.all_are(GroupState::joined); }));
}

BOOST_AUTO_TEST_CASE(test_a_member_that_is_lost_before_its_word_fails_the_join) {
  // Member 2 has not said `up`, because member 1 has not called it: nobody else waits for the two.
  Members m(3, Over::shm);
  m.join_all();  // they know each other now
  for (const auto& group : m.groups) group->close();
  for (int n = 0; n < 500; ++n) m.progress();
  for (uint32_t i = 0; i < 3; ++i) m.join(i);
  const auto state = [&](uint32_t i) { return m.groups[i]->look().state; };
  uint32_t next = 0;
  BOOST_REQUIRE(poll_until([&] { return state(0) == GroupState::agreed; }, [&] { m.sides[next++ % 3]->progress(); }));
  BOOST_REQUIRE(poll_until([&] { return state(2) == GroupState::agreed; }, [&] { m.sides[2]->progress(); }));
  forge(m, 1, 2, wire::ReduceWhat::lost);
  const auto failed = [&] { return state(0) == GroupState::broken && state(2) == GroupState::broken; };
  BOOST_TEST(poll_until(failed, [&] {
    for (const uint32_t i : {0u, 2u}) m.sides[i]->progress();
  }));
}

BOOST_AUTO_TEST_CASE(test_an_endpoint_that_is_gone_does_not_join) {
  // The answer to a call of member 2, which looks for the endpoint again, and gets no answer before the join ends.
  Members m(3, Over::tcp);
  m.join_all();  // they know each other now
  for (const auto& group : m.groups) group->close();
  for (int n = 0; n < 500; ++n) m.progress();
  agree(m);
  forge(m, 1, 2, wire::ReduceWhat::gone);
  const auto only_others = [&] {
    m.sides[0]->progress();
    m.sides[2]->progress();
  };
  for (int n = 0; n < 200; ++n) only_others();
  m.groups[0]->supply(0, 0, 0);
  BOOST_TEST(poll_until([&] { return m.groups[2]->look().state == GroupState::broken; }, only_others), m.states());
  BOOST_TEST(m.groups[2]->look().lost == 1u);
  BOOST_TEST(m.groups[2]->post(barrier()) == ReduceRefusal::none);
  BOOST_TEST(m.next(2).error != 0);
}

BOOST_AUTO_TEST_CASE(test_members_find_an_endpoint_that_has_taken_anothers_place) {
  Members m(4, Over::shm, false, 300);
  m.join_all();  // they know each other now
  for (const auto& group : m.groups) group->close();
  SideConfig c;
  c.shared = m.sides[2]->host;
  c.pid = 302;
  m.sides[2]->ep->close();
  auto anew = std::make_unique<Side>(c);
  m.sides[2] = std::move(anew);
  m.join_all();
  for (uint32_t i = 0; i < 4; ++i) BOOST_TEST(m.groups[i]->post(barrier()) == ReduceRefusal::none);
  for (uint32_t i = 0; i < 4; ++i) BOOST_TEST(m.next(i).error == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
