// tests/cpp/test_match.cpp: the match unit: which receive takes which message, where its bytes go, what searches cost,
// and a property test against a model that compares everything in turn. WEFT_SEED repeats a run of the property test
// with another seed, WEFT_MATCH_MESSAGES says how many messages it has.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <vector>

#include "nic/match.hpp"

namespace {

using namespace weft::nic;

constexpr uint64_t kSeed = 0x5eed;

Receive tagged_receive(uint64_t tag, uint64_t context, uint64_t source = kAnySource, uint64_t ignore = 0) {
  Receive r;
  r.what = {tag, ignore, source, true};
  r.length = 64;
  r.context = context;
  return r;
}
Receive untagged_receive(uint64_t context, uint64_t source = kAnySource) {
  Receive r;
  r.what.source = source;
  r.length = 64;
  r.context = context;
  return r;
}
Receive multi_receive(uint64_t length, uint64_t min_left, uint64_t context) {
  Receive r = untagged_receive(context);
  r.length = length;
  r.min_left = min_left;
  r.multi = true;
  return r;
}
Arrival tagged_message(uint64_t tag, uint64_t source, uint64_t cookie = 0, uint64_t length = 8) {
  return {tag, source, length, 0, cookie, 0, true};
}
Arrival untagged_message(uint64_t source, uint64_t cookie = 0, uint64_t length = 8) {
  return {0, source, length, 0, cookie, 0, false};
}

// Checks with Boost.Test cost microseconds, too much for code that runs a hundred thousand times.
struct Unit : MatchUnit {
  explicit Unit(const Limits& l = {}, uint64_t seed = kSeed) : MatchUnit(l, seed) {}

  // Posts a receive; the cookie of the unexpected message that it takes, or 0.
  uint64_t give(const Receive& r) {
    Posted* const p = post(r);
    if (p == nullptr) BOOST_FAIL("post() refused");
    Match m;
    if (!take_unexpected(p, &m)) return 0;
    if (m.posted != p) BOOST_FAIL("another receive");
    const uint64_t cookie = m.unexpected->cookie;
    release(m.unexpected);
    if (!take_unexpected(p, &m)) finish(p);
    return cookie;
  }
  // A message arrives; the context of the receive that takes it, or 0, and then the message is kept.
  uint64_t arrive(const Arrival& message) {
    Match m;
    if (!match(message, &m)) {
      if (keep(message) == nullptr) BOOST_FAIL("keep() refused");
      return 0;
    }
    if (m.unexpected != nullptr) BOOST_FAIL("the message has just arrived");
    const uint64_t context = m.posted->context;
    finish(m.posted);
    return context;
  }
  void finish(Posted* p) {
    if (end_use(p)) release(p);
  }
  uint64_t peeked(const Pattern& what) {
    const Unexpected* const u = peek(what);
    return u == nullptr ? 0 : u->cookie;
  }
};

BOOST_AUTO_TEST_SUITE(match)

// ---- what matches
// ------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_message_goes_to_the_receive_with_its_tag) {
  Unit unit;
  unit.give(tagged_receive(1, 101));
  unit.give(tagged_receive(2, 102));
  BOOST_TEST(unit.arrive(tagged_message(2, 7)) == 102U);
  BOOST_TEST(unit.arrive(tagged_message(1, 7)) == 101U);
  BOOST_TEST(unit.arrive(tagged_message(1, 7)) == 0U);
}

BOOST_AUTO_TEST_CASE(test_tagged_and_untagged_never_match) {
  Unit unit;
  unit.give(untagged_receive(101));
  unit.give(tagged_receive(0, 102, kAnySource, ~uint64_t{0}));
  BOOST_TEST(unit.arrive(tagged_message(0, 7)) == 102U);
  BOOST_TEST(unit.arrive(tagged_message(0, 7, 1)) == 0U);
  BOOST_TEST(unit.arrive(untagged_message(7)) == 101U);
  BOOST_TEST(unit.arrive(untagged_message(7, 2)) == 0U);
  BOOST_TEST(unit.give(untagged_receive(103)) == 2U);
  BOOST_TEST(unit.give(tagged_receive(0, 104)) == 1U);
}

BOOST_AUTO_TEST_CASE(test_equal_receives_match_in_the_order_of_posting) {
  Unit unit;
  for (uint64_t i = 1; i <= 10; ++i) unit.give(tagged_receive(5, i));
  for (uint64_t i = 1; i <= 10; ++i) BOOST_TEST(unit.arrive(tagged_message(5, 7)) == i);
}

BOOST_AUTO_TEST_CASE(test_equal_messages_are_taken_in_order_of_arrival) {
  Unit unit;
  for (uint64_t i = 1; i <= 10; ++i) unit.arrive(tagged_message(5, 7, i));
  for (uint64_t i = 1; i <= 10; ++i) BOOST_TEST(unit.give(tagged_receive(5, 0)) == i);
}

BOOST_AUTO_TEST_CASE(test_ignored_bits_of_the_tag_are_not_compared) {
  Unit unit;
  unit.give(tagged_receive(0xab00, 101, kAnySource, 0xff));
  BOOST_TEST(unit.arrive(tagged_message(0xac12, 7, 1)) == 0U);
  BOOST_TEST(unit.arrive(tagged_message(0xab12, 7)) == 101U);
  BOOST_TEST(unit.give(tagged_receive(0xac99, 102, kAnySource, 0xff)) == 1U);
}

BOOST_AUTO_TEST_CASE(test_directed_receive_takes_messages_of_its_source_only) {
  Unit unit;
  unit.give(tagged_receive(5, 101, 8));
  unit.give(untagged_receive(102, 8));
  BOOST_TEST(unit.arrive(tagged_message(5, 7, 1)) == 0U);
  BOOST_TEST(unit.arrive(untagged_message(7, 2)) == 0U);
  BOOST_TEST(unit.arrive(tagged_message(5, 8)) == 101U);
  BOOST_TEST(unit.arrive(untagged_message(8)) == 102U);
  BOOST_TEST(unit.give(untagged_receive(103, 9)) == 0U);
  BOOST_TEST(unit.give(untagged_receive(104, 7)) == 2U);
  BOOST_TEST(unit.give(tagged_receive(5, 105, 7)) == 1U);
}

BOOST_AUTO_TEST_CASE(test_first_posted_wins_across_masks_and_sources) {
  // Every kind of list, in every order of posting.
  const std::vector<Receive> kinds = {
      tagged_receive(5, 1, 7),                // tag and source
      tagged_receive(5, 2),                   // tag
      tagged_receive(0, 3, 7, ~uint64_t{0}),  // source
      tagged_receive(4, 4, kAnySource, 3),    // some bits
      tagged_receive(0, 5, kAnySource, ~uint64_t{0}),
  };
  std::vector<size_t> order = {0, 1, 2, 3, 4};
  do {
    Unit unit;
    for (const size_t i : order) unit.give(kinds[i]);
    for (const size_t i : order) BOOST_TEST(unit.arrive(tagged_message(5, 7)) == kinds[i].context);
  } while (std::next_permutation(order.begin(), order.end()));
}

BOOST_AUTO_TEST_CASE(test_order_of_posting_holds_beyond_the_hashed_masks) {
  // More masks than are hashed at a time: the later ones are compared in turn.
  Unit unit;
  const uint64_t masks = 2 * MatchUnit::kMaskedShapes;
  for (uint64_t i = 0; i < masks; ++i) unit.give(tagged_receive(0, 1 + i, kAnySource, uint64_t{1} << i));
  unit.give(tagged_receive(0, 1000));
  BOOST_TEST(unit.statistics().unhashed == MatchUnit::kMaskedShapes);
  for (uint64_t i = 0; i < masks; ++i) BOOST_TEST(unit.arrive(tagged_message(0, 7)) == 1 + i);
  BOOST_TEST(unit.arrive(tagged_message(0, 7)) == 1000U);
  BOOST_TEST(unit.statistics().unhashed == 0U);
}

BOOST_AUTO_TEST_CASE(test_masks_out_of_use_make_place_for_others) {
  Unit unit;
  for (uint64_t i = 0; i < 5 * MatchUnit::kMaskedShapes; ++i) {
    unit.give(tagged_receive(i << 8, 1 + i, kAnySource, 1 + i));
    BOOST_TEST(unit.statistics().unhashed == 0U);
    BOOST_TEST(unit.arrive(tagged_message(i << 8, 7)) == 1 + i);
  }
}

// ---- where the bytes go
// ------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_longer_message_is_cut_to_the_buffer) {
  Unit unit;
  Match m;
  unit.give(tagged_receive(5, 101));
  BOOST_TEST_REQUIRE(unit.match(tagged_message(5, 7, 0, 100), &m));
  BOOST_TEST(m.offset == 0U);
  BOOST_TEST(m.stored == 64U);
  BOOST_TEST(m.cut == 36U);
  BOOST_TEST(m.last);
  BOOST_TEST(unit.end_use(m.posted));
  unit.release(m.posted);
}

BOOST_AUTO_TEST_CASE(test_multi_recv_packs_messages_until_the_room_is_below_the_minimum) {
  Unit unit;
  unit.give(multi_receive(100, 20, 101));
  const struct {
    uint64_t length, offset;
    bool last;
  } expected[] = {{30, 0, false}, {0, 30, false}, {50, 30, false}, {1, 80, true}};
  for (const auto& e : expected) {
    Match m;
    BOOST_TEST_REQUIRE(unit.match(untagged_message(7, 0, e.length), &m));
    BOOST_TEST(m.offset == e.offset);
    BOOST_TEST(m.stored == e.length);
    BOOST_TEST(m.cut == 0U);
    BOOST_TEST(m.last == e.last);
    BOOST_TEST(unit.end_use(m.posted) == e.last);
    if (e.last) unit.release(m.posted);
  }
  BOOST_TEST(unit.arrive(untagged_message(7)) == 0U);
}

BOOST_AUTO_TEST_CASE(test_truncated_message_is_the_last_of_a_multi_recv_buffer) {
  Unit unit;
  Match m;
  unit.give(multi_receive(100, 0, 101));
  BOOST_TEST_REQUIRE(unit.match(untagged_message(7, 0, 60), &m));
  BOOST_TEST(!unit.end_use(m.posted));
  BOOST_TEST_REQUIRE(unit.match(untagged_message(7, 0, 60), &m));
  BOOST_TEST(m.offset == 60U);
  BOOST_TEST(m.stored == 40U);
  BOOST_TEST(m.cut == 20U);
  BOOST_TEST(m.last);
  BOOST_TEST(unit.end_use(m.posted));
  unit.release(m.posted);
}

BOOST_AUTO_TEST_CASE(test_full_multi_recv_buffer_is_retired_without_a_minimum) {
  Unit unit;
  unit.give(multi_receive(16, 0, 101));
  unit.give(multi_receive(16, 0, 102));
  BOOST_TEST(unit.arrive(untagged_message(7)) == 101U);
  BOOST_TEST(unit.arrive(untagged_message(7)) == 101U);
  BOOST_TEST(unit.arrive(untagged_message(7)) == 102U);
}

BOOST_AUTO_TEST_CASE(test_multi_recv_ends_with_its_last_message_under_way) {
  // Messages finish in any order; the last to finish ends the buffer.
  Unit unit;
  unit.give(multi_receive(16, 0, 101));
  Match first, second;
  BOOST_TEST_REQUIRE(unit.match(untagged_message(7), &first));
  BOOST_TEST_REQUIRE(unit.match(untagged_message(7), &second));
  BOOST_TEST(second.last);
  BOOST_TEST(!unit.end_use(second.posted));
  BOOST_TEST(unit.end_use(first.posted));
  unit.release(first.posted);
}

BOOST_AUTO_TEST_CASE(test_multi_recv_takes_all_unexpected_messages_that_fit) {
  Unit unit;
  for (uint64_t i = 1; i <= 4; ++i) unit.arrive(untagged_message(7, i));
  Posted* const p = unit.post(multi_receive(24, 1, 101));
  for (uint64_t i = 1; i <= 3; ++i) {
    Match m;
    BOOST_TEST_REQUIRE(unit.take_unexpected(p, &m));
    BOOST_TEST(m.unexpected->cookie == i);
    BOOST_TEST(m.offset == 8 * (i - 1));
    BOOST_TEST(m.last == (i == 3));
    unit.release(m.unexpected);
    BOOST_TEST(unit.end_use(p) == (i == 3));
  }
  Match m;
  BOOST_TEST(!unit.take_unexpected(p, &m));
  unit.release(p);
  BOOST_TEST(unit.statistics().unexpected == 1U);
  BOOST_TEST(unit.statistics().posted == 0U);
}

// ---- cancel
// ------------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_canceled_receive_matches_nothing) {
  Unit unit;
  unit.give(tagged_receive(5, 101));
  unit.give(tagged_receive(5, 102));
  Posted* const p = unit.cancel(101);
  BOOST_TEST_REQUIRE(p != nullptr);
  BOOST_TEST(p->context == 101U);
  BOOST_TEST(p->under_way == 0U);
  unit.release(p);
  BOOST_TEST(unit.cancel(101) == nullptr);
  BOOST_TEST(unit.arrive(tagged_message(5, 7)) == 102U);
}

BOOST_AUTO_TEST_CASE(test_cancel_takes_the_oldest_receive_of_a_context) {
  Unit unit;
  for (uint64_t tag = 1; tag <= 3; ++tag) unit.give(tagged_receive(tag, 101));
  for (uint64_t tag = 1; tag <= 3; ++tag) {
    Posted* const p = unit.cancel(101);
    BOOST_TEST_REQUIRE(p != nullptr);
    BOOST_TEST(p->tag == tag);
    unit.release(p);
  }
}

BOOST_AUTO_TEST_CASE(test_matched_receive_cannot_be_canceled) {
  Unit unit;
  Match m;
  unit.give(tagged_receive(5, 101));
  BOOST_TEST_REQUIRE(unit.match(tagged_message(5, 7), &m));
  BOOST_TEST(unit.cancel(101) == nullptr);
  unit.finish(m.posted);
}

BOOST_AUTO_TEST_CASE(test_canceled_multi_recv_ends_with_its_messages_under_way) {
  Unit unit;
  Match m;
  unit.give(multi_receive(100, 1, 101));
  BOOST_TEST_REQUIRE(unit.match(untagged_message(7), &m));
  Posted* const p = unit.cancel(101);
  BOOST_TEST(p == m.posted);
  BOOST_TEST(p->under_way == 1U);
  BOOST_TEST(unit.arrive(untagged_message(7, 1)) == 0U);
  BOOST_TEST(unit.end_use(p));
  BOOST_TEST((p->state == Posted::State::canceled));
  unit.release(p);
}

BOOST_AUTO_TEST_CASE(test_listed_receives_are_given_in_the_order_of_posting) {
  Unit unit;
  for (uint64_t i = 1; i <= 600; ++i) unit.give(tagged_receive(i, i));
  for (uint64_t i = 2; i <= 600; i += 2) BOOST_TEST(unit.arrive(tagged_message(i, 7)) == i);
  for (uint64_t i = 2; i <= 600; i += 2) unit.give(untagged_receive(600 + i));  // reuses entries
  const std::vector<Posted*> all = unit.listed();
  BOOST_TEST_REQUIRE(all.size() == 600U);
  for (size_t i = 0; i < 300; ++i) {
    BOOST_TEST(all[i]->context == 2 * i + 1);
    BOOST_TEST(all[300 + i]->context == 600 + 2 * (i + 1));
  }
}

// ---- peek, claim, discard
// ----------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_peek_leaves_the_message) {
  Unit unit;
  const Pattern five{5, 0, kAnySource, true};
  BOOST_TEST(unit.peeked(five) == 0U);
  unit.arrive(tagged_message(4, 7, 1));
  BOOST_TEST(unit.peeked(five) == 0U);
  unit.arrive(tagged_message(5, 7, 2));
  unit.arrive(tagged_message(5, 8, 3));
  BOOST_TEST(unit.peeked(five) == 2U);
  BOOST_TEST(unit.peeked({5, 0, 8, true}) == 3U);
  BOOST_TEST(unit.peeked({0, 7, kAnySource, true}) == 1U);
  BOOST_TEST(unit.peeked(five) == 2U);
  BOOST_TEST(unit.give(tagged_receive(5, 101)) == 2U);
}

BOOST_AUTO_TEST_CASE(test_peek_never_sees_a_posted_receive) {
  Unit unit;
  unit.give(tagged_receive(5, 101));
  BOOST_TEST(unit.peek({5, 0, kAnySource, true}) == nullptr);
}

BOOST_AUTO_TEST_CASE(test_claimed_message_is_seen_by_its_context_only) {
  Unit unit;
  const Pattern five{5, 0, kAnySource, true};
  for (uint64_t i = 1; i <= 3; ++i) unit.arrive(tagged_message(5, 7, i));
  BOOST_TEST(unit.claim(unit.peek(five), 201));
  BOOST_TEST(unit.claim(unit.peek(five), 202));
  BOOST_TEST(unit.peeked(five) == 3U);
  BOOST_TEST(unit.give(tagged_receive(5, 101)) == 3U);
  BOOST_TEST(unit.statistics().claimed == 2U);
  BOOST_TEST(unit.take_claimed(203) == nullptr);
  Unexpected* const second = unit.take_claimed(202);
  BOOST_TEST_REQUIRE(second != nullptr);
  BOOST_TEST(second->cookie == 2U);
  unit.release(second);
  Unexpected* const first = unit.take_claimed(201);
  BOOST_TEST_REQUIRE(first != nullptr);
  BOOST_TEST(first->cookie == 1U);
  unit.release(first);
  BOOST_TEST(unit.take_claimed(201) == nullptr);
  BOOST_TEST(unit.statistics().unexpected_used == 0U);
}

BOOST_AUTO_TEST_CASE(test_discarded_message_is_gone) {
  Unit unit;
  unit.arrive(tagged_message(5, 7, 1));
  unit.arrive(tagged_message(5, 7, 2));
  Unexpected* const u = unit.peek({5, 0, kAnySource, true});
  unit.take(u);
  unit.release(u);
  BOOST_TEST(unit.give(tagged_receive(5, 101)) == 2U);
  BOOST_TEST(unit.statistics().unexpected_used == 0U);
}

BOOST_AUTO_TEST_CASE(test_unexpected_messages_are_visited_in_order_of_arrival) {
  Unit unit;
  for (uint64_t i = 1; i <= 6; ++i) unit.arrive(i % 2 == 0 ? tagged_message(i, 7, i) : untagged_message(7, i));
  std::vector<uint64_t> seen;
  unit.each_unexpected([&](Unexpected& u) {
    seen.push_back(u.cookie);
    if (u.cookie == 3) {
      unit.take(&u);
      unit.release(&u);
    }
  });
  BOOST_TEST((seen == std::vector<uint64_t>{1, 3, 5, 2, 4, 6}));
  BOOST_TEST(unit.statistics().unexpected == 5U);
}

// ---- limits and cost
// ---------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_limits_are_answers_and_entries_come_back) {
  Unit unit({2, 1});
  unit.give(tagged_receive(1, 101));
  unit.give(tagged_receive(2, 102));
  BOOST_TEST(unit.post(tagged_receive(3, 103)) == nullptr);
  unit.arrive(tagged_message(9, 7, 1));
  Match m;
  BOOST_TEST(!unit.match(tagged_message(9, 7), &m));
  BOOST_TEST(unit.keep(tagged_message(9, 7)) == nullptr);
  Unexpected* const promised = unit.keep(tagged_message(9, 7, 2), true);
  BOOST_TEST_REQUIRE(promised != nullptr);
  unit.take(promised);
  unit.release(promised);
  BOOST_TEST(unit.arrive(tagged_message(1, 7)) == 101U);
  BOOST_TEST(unit.give(tagged_receive(9, 104)) == 1U);
  BOOST_TEST(unit.keep(tagged_message(9, 7)) != nullptr);
  unit.set_limits({2, 2});
  BOOST_TEST(unit.keep(tagged_message(9, 7)) != nullptr);
  BOOST_TEST(unit.keep(tagged_message(9, 7)) == nullptr);
}

BOOST_AUTO_TEST_CASE(test_no_unexpected_messages_under_a_limit_of_zero) {
  Unit unit({8, 0});  // FI_PROTO_CXI_RNR
  Match m;
  BOOST_TEST(!unit.match(untagged_message(7), &m));
  BOOST_TEST(unit.keep(untagged_message(7)) == nullptr);
}

constexpr uint64_t kMany = 100'000;

BOOST_AUTO_TEST_CASE(test_matching_compares_nothing_in_turn_with_many_receives) {
  Unit unit;
  constexpr uint64_t kLow = 0xffff'ffff;
  for (uint64_t i = 0; i < kMany; ++i) {
    unit.give(tagged_receive(i, 1 + i, i % 3 == 0 ? 7 : kAnySource));
    unit.give(tagged_receive((1 + i) << 32, 1, kAnySource, kLow));
    unit.give(tagged_receive((1 + i) << 32, 2, 9, kLow));
  }
  for (uint64_t i = kMany; i-- > 0;) {
    if (unit.arrive(tagged_message(i, 7)) != 1 + i) BOOST_FAIL("wrong receive");
    if (unit.arrive(tagged_message((1 + i) << 32 | i, 9)) != 1) BOOST_FAIL("wrong receive");
    if (unit.arrive(tagged_message((1 + i) << 32 | i, 9)) != 2) BOOST_FAIL("wrong receive");
  }
  BOOST_TEST(unit.statistics().compared == 0U);
}

BOOST_AUTO_TEST_CASE(test_cancels_among_many_receives_make_one_pass) {
  Unit unit;
  for (int round = 1; round <= 2; ++round) {
    for (uint64_t i = 0; i < kMany; ++i) unit.give(tagged_receive(i, 1 + i));
    for (uint64_t i = kMany; i-- > 0;) {
      Posted* const p = i % 2 == 0 ? unit.cancel(1 + i) : nullptr;
      if (p != nullptr) {
        if (p->tag != i) BOOST_FAIL("wrong receive");
        unit.release(p);
      } else if (unit.arrive(tagged_message(i, 7)) != 1 + i) {
        BOOST_FAIL("wrong receive");
      }
    }
    BOOST_TEST(unit.statistics().compared <= kMany);
  }
}

BOOST_AUTO_TEST_CASE(test_cancel_works_again_after_a_time_without_cancels) {
  Unit unit;
  for (const bool cancels : {true, true, false, false, true}) {
    for (uint64_t i = 1; i <= 20; ++i) unit.give(tagged_receive(i, 100 + i));
    if (cancels) {
      unit.release(unit.cancel(107));
      BOOST_TEST(unit.cancel(107) == nullptr);
    }
    for (uint64_t i = 1; i <= 20; ++i) {
      if (!cancels || i != 7) BOOST_TEST(unit.arrive(tagged_message(i, 7)) == 100 + i);
    }
    BOOST_TEST(unit.statistics().posted_used == 0U);
  }
}

BOOST_AUTO_TEST_CASE(test_exact_receives_compare_nothing_in_turn_with_many_messages) {
  Unit unit;
  for (uint64_t i = 0; i < kMany; ++i) unit.arrive(tagged_message(i, 7, 1 + i));
  for (uint64_t i = kMany; i-- > 1;) {
    if (unit.give(tagged_receive(i, 0, 7)) != 1 + i) BOOST_FAIL("wrong message");
  }
  BOOST_TEST(unit.give(tagged_receive(99, 0, kAnySource, ~uint64_t{0})) == 1U);
  BOOST_TEST(unit.statistics().compared == 0U);
}

BOOST_AUTO_TEST_CASE(test_masked_receives_index_many_messages) {
  // Three combinations of mask and source, each with an index: a few passes, not one for each receive.
  Unit unit;
  for (uint64_t i = 0; i < kMany; ++i) unit.arrive(tagged_message(i << 8 | (i & 0xff), i % 5, 1 + i));
  for (uint64_t i = kMany; i-- > 0;) {
    const Receive r = i % 3 == 0   ? tagged_receive(i << 8 | (i & 0xff), 0)
                      : i % 3 == 1 ? tagged_receive(i << 8, 0, kAnySource, 0xff)
                                   : tagged_receive(i << 8, 0, i % 5, 0xff);
    if (unit.give(r) != 1 + i) BOOST_FAIL("wrong message");
  }
  const auto s = unit.statistics();
  BOOST_TEST(s.indexes_made == 3U);
  BOOST_TEST(s.compared <= 3 * 5 * kMany);
  BOOST_TEST(s.unexpected == 0U);
}

BOOST_AUTO_TEST_CASE(test_unused_index_makes_place_for_another_mask) {
  Unit unit;
  for (uint64_t i = 0; i < 1000; ++i) unit.arrive(tagged_message(i << 8, 7, 1 + i));
  for (unsigned mask = 1; mask <= 6; ++mask) {
    for (int n = 0; n < 20; ++n)
      BOOST_TEST(unit.peeked({999 << 8, (uint64_t{1} << mask) - 1, kAnySource, true}) == 1000U);
  }
  BOOST_TEST(unit.statistics().indexes_made == 6U);
  BOOST_TEST(unit.arrive(tagged_message(2000 << 8, 7, 2000)) == 0U);
  BOOST_TEST(unit.peeked({2000 << 8, 1, kAnySource, true}) == 2000U);
}

BOOST_AUTO_TEST_CASE(test_one_key_with_many_entries_delays_no_other_key) {
  // Bad seeds do not exist; many entries of one tag must not lengthen the search for tags in the same bucket.
  Unit unit;
  for (uint64_t i = 0; i < kMany; ++i) unit.give(tagged_receive(1, 0, 7));
  for (uint64_t i = 2; i < 2000; ++i) unit.give(tagged_receive(i, i, 7));
  for (uint64_t i = 2; i < 2000; ++i) BOOST_TEST(unit.arrive(tagged_message(i, 7)) == i);
  for (uint64_t i = 0; i < kMany; ++i) {
    Match m;
    if (!unit.match(tagged_message(1, 7), &m)) BOOST_FAIL("no receive");
    unit.finish(m.posted);
  }
  BOOST_TEST(unit.statistics().posted_used == 0U);
}

BOOST_AUTO_TEST_CASE(test_index_stays_while_other_masks_are_used) {
  Unit unit;
  for (uint64_t i = 0; i < 1000; ++i) unit.arrive(tagged_message(i << 8, 7, 1 + i));
  for (int n = 0; n < 20; ++n) BOOST_TEST(unit.peeked({999 << 8, 1, kAnySource, true}) == 1000U);
  // The first message fits: these searches are short.
  for (uint64_t mask = 2; mask < 100; ++mask) BOOST_TEST(unit.peeked({0, mask, kAnySource, true}) == 1U);
  const uint64_t compared = unit.statistics().compared;
  BOOST_TEST(unit.peeked({999 << 8, 1, kAnySource, true}) == 1000U);
  BOOST_TEST(unit.statistics().compared == compared);
  BOOST_TEST(unit.statistics().indexes == 1U);
}

BOOST_AUTO_TEST_CASE(test_index_ends_when_a_list_drains_without_using_it) {
  Unit unit;
  for (const bool use : {true, true, false}) {
    for (uint64_t i = 0; i < 1000; ++i) unit.arrive(tagged_message(i << 8, 7, 1 + i));
    for (int n = 0; use && n < 20; ++n) BOOST_TEST(unit.peeked({999 << 8, 1, kAnySource, true}) == 1000U);
    for (uint64_t i = 0; i < 1000; ++i) BOOST_TEST(unit.give(tagged_receive(i << 8, 0, 7)) == 1 + i);
    BOOST_TEST(unit.statistics().indexes == (use ? 1U : 0U));
  }
  BOOST_TEST(unit.statistics().indexes_made == 1U);
}

BOOST_AUTO_TEST_CASE(test_keys_with_equal_hashes_are_told_apart) {
  // Among so many keys some pairs have equal hashes of 32 bits, whatever the seed.
  constexpr uint64_t kKeys = 400'000, kTags = 640;
  Unit unit;
  for (uint64_t i = 0; i < kKeys; ++i) unit.give(tagged_receive(i % kTags, i, i / kTags));
  for (uint64_t i = kKeys; i-- > 0;) {
    if (unit.arrive(tagged_message(i % kTags, i / kTags)) != i) BOOST_FAIL("wrong receive");
  }
  for (uint64_t i = 0; i < kKeys; ++i) unit.arrive(tagged_message(i % kTags, i / kTags, i));
  for (uint64_t i = kKeys; i-- > 0;) {
    if (unit.give(tagged_receive(i % kTags, 0, i / kTags)) != i) BOOST_FAIL("wrong message");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
