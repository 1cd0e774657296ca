// tests/cpp/test_group.cpp: collective groups: trees, joins, reductions, and what happens when members are lost or lie.
#include <numeric>
#include <set>

#include "group_support.hpp"

namespace {

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(group)

// ---- trees ---------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_every_tree_reaches_every_member_once) {
  for (const uint32_t radix : {1u, 2u, 3u, 16u, 64u}) {
    for (const uint32_t block : {1u, 2u, 5u, 8u, 100u}) {
      for (uint32_t count = 1; count <= 70; ++count) {
        std::vector<nic::Tree> trees;
        for (uint32_t m = 0; m < count; ++m) trees.push_back(nic::Tree::of(m, count, radix, block));
        std::vector<uint32_t> seen(count), sizes(count, 1);
        for (uint32_t m = 0; m < count; ++m) {
          for (const uint32_t child : trees[m].children) {
            BOOST_REQUIRE(child > m && child < count);
            BOOST_REQUIRE(trees[child].parent == m);
            ++seen[child];
          }
        }
        for (uint32_t m = count; m-- > 1;) {
          BOOST_REQUIRE(seen[m] == 1);
          sizes[trees[m].parent] += sizes[m];
        }
        for (uint32_t m = 0; m < count; ++m) BOOST_REQUIRE(trees[m].below == sizes[m]);
        BOOST_REQUIRE(trees[0].parent == 0 && sizes[0] == count);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_only_the_first_of_a_block_has_neighbours_in_other_blocks) {
  for (uint32_t m = 0; m < 32; ++m) {
    const auto tree = nic::Tree::of(m, 32, 16, 8);
    for (const uint32_t child : tree.children) BOOST_TEST((child / 8 == m / 8 || m % 8 == 0));
    BOOST_TEST(tree.children.size() <= 16 + nic::Tree::kBlockRadix);
  }
}

// ---- joining and reducing ------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_groups_of_one_to_32_members_sum) {
  for (uint32_t count = 1; count <= 32; count = count < 8 ? count + 1 : count * 2) {
    for (const uint32_t radix : {1u, 2u, 16u}) {
      BOOST_TEST_CONTEXT("count " << count << " radix " << radix) {
        Members m(count);
        GroupConfig c;
        c.radix = radix;
        c.join_radix = 1 + count % 3;
        c.block = count > 4 ? 3 : 0;
        m.join_all(c);
        std::vector<int64_t> out(count, -1);
        for (int round = 0; round < 20; ++round) {
          for (uint32_t i = 0; i < count; ++i) {
            BOOST_REQUIRE(m.groups[i]->post(sum_of(int64_t{i} + round, &out[i], 100 + i)) == ReduceRefusal::none);
          }
          for (uint32_t i = 0; i < count; ++i) {
            const Completion done = m.next(i);
            BOOST_REQUIRE(done.error == 0);
            BOOST_REQUIRE(done.entry.context == 100 + i);
            BOOST_REQUIRE(out[i] == int64_t{count} * (count - 1) / 2 + round * int64_t{count});
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_members_on_other_nics_reduce_over_every_link) {
  for (const Over over : kOver) {
    for (const bool engine : {false, true}) {
      BOOST_TEST_CONTEXT("over " << name_of(over) << (engine ? ", engine" : ", manual")) {
        Members m(5, over, engine);
        GroupConfig c;
        c.radix = 2;
        m.join_all(c);
        std::vector<int64_t> out(5);
        for (int round = 0; round < 50; ++round) {
          for (uint32_t i = 0; i < 5; ++i) {
            BOOST_REQUIRE(m.groups[i]->post(sum_of(round, &out[i])) == ReduceRefusal::none);
          }
          for (uint32_t i = 0; i < 5; ++i) BOOST_REQUIRE(m.next(i).error == 0);
          for (const int64_t sum : out) BOOST_REQUIRE(sum == 5 * round);
        }
        for (const auto& g : m.groups) BOOST_TEST(g->look().ignored == 0u);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_eight_reductions_are_under_way_and_the_ninth_waits) {
  for (const uint32_t count : {2u, 3u}) {
    Members m(count);
    m.join_all();
    std::vector<std::array<int64_t, 9>> out(count);
    for (uint64_t n = 0; n < 8; ++n) {
      BOOST_TEST(m.groups[1]->post(sum_of(1, &out[1][n], n)) == ReduceRefusal::none);
    }
    BOOST_TEST(m.groups[1]->post(sum_of(1, &out[1][8], 8)) == ReduceRefusal::all_busy);
    m.progress();
    BOOST_TEST(m.sides[1]->unread() == 0u);  // a reduction waits for every member
    for (uint32_t i = 0; i < count; i += 2) {
      for (uint64_t n = 0; n < 8; ++n) BOOST_TEST(m.groups[i]->post(sum_of(1, &out[i][n], n)) == ReduceRefusal::none);
    }
    for (uint32_t i = 0; i < count; ++i) {
      for (uint64_t n = 0; n < 8; ++n) BOOST_TEST(m.next(i).entry.context == n);  // in the order of the calls
      for (uint64_t n = 0; n < 8; ++n) BOOST_TEST(out[i][n] == count);
    }
    BOOST_TEST(m.groups[1]->post(sum_of(1, &out[1][8], 8)) == ReduceRefusal::none);
  }
}

BOOST_AUTO_TEST_CASE(test_a_join_waits_for_every_member) {
  Members m(4);
  for (const uint32_t i : {2u, 0u, 3u}) {
    m.join(i);
    for (int n = 0; n < 50; ++n) m.progress();
  }
  BOOST_TEST(m.all_are(GroupState::gathering));
  BOOST_TEST(m.groups[0]->post(barrier()) == ReduceRefusal::not_joined);
  m.join(1);
  BOOST_TEST(m.await([&] { return m.all_are(GroupState::joined); }));
  const uint64_t number = m.groups[0]->look().number;
  for (const auto& g : m.groups) BOOST_TEST(g->look().number == number);
}

BOOST_AUTO_TEST_CASE(test_member_0_supplies_the_multicast_address_or_an_error) {
  for (const uint16_t error : {uint16_t{0}, uint16_t{2048}}) {
    Members m(3);
    GroupConfig c;
    c.asks = true;
    for (uint32_t i = 0; i < 3; ++i) m.join(i, c);
    BOOST_REQUIRE(m.await([&] { return m.all_are(GroupState::agreed); }));
    for (int n = 0; n < 50; ++n) m.progress();
    BOOST_TEST(m.all_are(GroupState::agreed));
    m.groups[0]->supply(4711, 2, error);
    BOOST_TEST(m.await([&] { return m.all_are(error == 0 ? GroupState::joined : GroupState::broken); }));
    for (const auto& g : m.groups) {
      const auto l = g->look();
      BOOST_TEST(l.multicast == 4711);
      BOOST_TEST(l.root == 2u);
      BOOST_TEST(l.error == error);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_joins_of_one_set_follow_each_other) {
  Members m(3);
  std::vector<std::vector<std::shared_ptr<Group>>> all(3);
  for (uint32_t i = 0; i < 3; ++i) {
    for (int n = 0; n < 4; ++n) all[i].push_back(m.join(i));
  }
  BOOST_REQUIRE(m.await([&] { return m.all_are(GroupState::joined); }));
  std::set<uint64_t> numbers;
  for (size_t n = 0; n < 4; ++n) {
    for (uint32_t i = 0; i < 3; ++i) BOOST_TEST((all[i][n]->look().number == all[0][n]->look().number));
    numbers.insert(all[0][n]->look().number);
  }
  BOOST_TEST(numbers.size() == 4u);
}

BOOST_AUTO_TEST_CASE(test_a_join_may_begin_before_the_last_one_has_its_address) {
  for (const Over over : {Over::self, Over::shm}) {
    Members m(3, over);
    GroupConfig c;
    c.asks = true;
    std::vector<std::vector<std::shared_ptr<Group>>> all(3);
    for (int n = 0; n < 5; ++n) {
      for (uint32_t i = 0; i < 3; ++i) all[i].push_back(m.join(i, c));
      for (int round = 0; round < 30; ++round) m.progress();
    }
    for (size_t n = 0; n < 5; ++n) {
      const auto is = [&](GroupState state) {
        return [&, state] {
          return std::ranges::all_of(all, [&](const auto& mine) { return mine[n]->look().state == state; });
        };
      };
      BOOST_REQUIRE(m.await(is(GroupState::agreed)));
      all[0][n]->supply(static_cast<uint16_t>(n), 0, 0);
      BOOST_REQUIRE(m.await(is(GroupState::joined)));
    }
  }
}

BOOST_AUTO_TEST_CASE(test_sets_with_the_same_key_do_not_mix) {
  // Keys are hashes: members tell joins apart by their neighbours.
  Members m(3);
  const auto all = m.set();
  const auto join = [&](uint32_t side, std::vector<wire::EpAddress> set, uint32_t member) {
    GroupConfig c;
    c.key = 5;
    c.members = std::move(set);
    c.member = member;
    return m.sides[side]->ep->join(std::move(c));
  };
  const auto a0 = join(0, {all[0], all[1]}, 0);
  const auto b1 = join(2, {all[0], all[2]}, 1);
  const auto a1 = join(1, {all[0], all[1]}, 1);
  BOOST_REQUIRE(m.await([&] { return a1->look().state == GroupState::joined; }));
  BOOST_TEST((b1->look().state == GroupState::gathering));
  const auto b0 = join(0, {all[0], all[2]}, 0);
  BOOST_TEST(m.await([&] { return b0->look().state == GroupState::joined && b1->look().state == GroupState::joined; }));
}

BOOST_AUTO_TEST_CASE(test_one_endpoint_may_be_every_member) {
  for (const uint32_t count : {4u, 8u}) {
    Members m(1);
    std::vector<std::shared_ptr<Group>> ranks;
    for (uint32_t i = 0; i < count; ++i) {
      GroupConfig c;
      c.members.assign(count, m.sides[0]->ep->address());
      c.member = i;
      c.key = 3;
      c.radix = count == 8 ? 2 : 16;
      ranks.push_back(m.sides[0]->ep->join(std::move(c)));
    }
    const auto joined = [](const auto& g) { return g->look().state == GroupState::joined; };
    BOOST_REQUIRE(m.await([&] { return std::ranges::all_of(ranks, joined); }));
    std::vector<int64_t> out(count);
    for (uint32_t i = 0; i < count; ++i) BOOST_TEST(ranks[i]->post(sum_of(i, &out[i], i)) == ReduceRefusal::none);
    for (uint32_t i = 0; i < count; ++i) BOOST_TEST(m.next(0).error == 0);
    for (const int64_t sum : out) BOOST_TEST(sum == count * (count - 1) / 2);
  }
}

// ---- failures of reductions ----------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_members_that_call_different_operations_all_get_a_mismatch) {
  for (const uint32_t count : {2u, 4u}) {
    Members m(count);
    m.join_all();
    int64_t out = -1;
    for (uint32_t i = 0; i < count; ++i) {
      const auto args = i == count / 2 ? barrier() : sum_of(1, i == 0 ? &out : nullptr);
      BOOST_TEST(m.groups[i]->post(args) == ReduceRefusal::none);
    }
    for (uint32_t i = 0; i < count; ++i) BOOST_TEST(m.next(i).error == 256);
    BOOST_TEST(out == -1);
  }
}

BOOST_AUTO_TEST_CASE(test_all_members_get_the_same_bits) {
  // The sum of two NaN is one of them, and which one depends on the order.
  for (const uint32_t count : {2u, 3u, 4u}) {
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    do {
      Members m(count);
      m.join_all();
      std::vector<uint64_t> out(count);
      for (const uint32_t i : order) {
        const uint64_t nan = 0x7ff8'0000'0000'0001 + i;
        ReduceArgs a;
        a.mine = nic::contribution(ReduceOp::float_sum, Datatype::float64, &nan, 1);
        a.out = &out[i];
        a.out_bytes = sizeof(uint64_t);
        BOOST_TEST(m.groups[i]->post(a) == ReduceRefusal::none);
        m.progress();
      }
      for (uint32_t i = 0; i < count; ++i) (void)m.next(i);
      for (const uint64_t bits : out) BOOST_TEST(bits == 0x7ff8'0000'0000'0001);
    } while (std::ranges::next_permutation(order).found);
  }
}

BOOST_AUTO_TEST_CASE(test_bytes_that_are_no_contribution_are_a_mismatch) {
  for (const uint32_t liar : {0u, 1u}) {
    Members m(2, Over::shm);
    m.join_all();
    const uint32_t other = 1 - liar;
    wire::Frame f;
    f.kind = wire::FrameKind::reduce;
    f.ep_index = m.sides[other]->ep->index();
    f.ep_generation = m.sides[other]->ep->generation();
    f.source = m.sides[liar]->ep->address();
    f.reduce = {};
    f.reduce.group = m.groups[other]->look().number;
    f.reduce.from = liar;
    f.reduce.to = other;
    f.reduce.what = static_cast<uint8_t>(wire::ReduceWhat::part);
    f.reduce.tier = 1;
    std::array<std::byte, sizeof(Partial)> wrong;
    wrong.fill(std::byte{0xff});
    for (link::Link* l : m.sides[liar]->nic().links()) {
      for (const auto& peer : l->peers()) {
        if (!peer->same_process) (void)l->submit(*peer, f, wrong);
      }
    }
    int64_t out = 0;
    BOOST_TEST(m.groups[other]->post(sum_of(1, &out)) == ReduceRefusal::none);
    BOOST_TEST(m.next(other).error == 256);
    BOOST_TEST(out == 0);
  }
}

BOOST_AUTO_TEST_CASE(test_an_overflow_is_every_members_error) {
  Members m(3);
  GroupConfig c;
  c.always = true;
  c.failed_err = -256;
  m.join_all(c);
  for (uint32_t i = 0; i < 3; ++i) {
    BOOST_TEST(m.groups[i]->post(sum_of(INT64_MAX, nullptr)) == ReduceRefusal::none);
  }
  for (uint32_t i = 0; i < 3; ++i) {
    CqEntry entry;
    CqError error;
    BOOST_REQUIRE(m.await([&] { return m.sides[i]->read_error(&entry, &error); }));
    BOOST_TEST(error.err == -256);
    BOOST_TEST(error.prov_errno == 1026);
  }
}

BOOST_AUTO_TEST_CASE(test_a_full_completion_queue_refuses) {
  Members m(2);
  m.join_all();
  const uint32_t room = m.sides[0]->cq->capacity();
  uint32_t posted = 0;
  for (; posted < room; ++posted) {
    BOOST_REQUIRE(m.groups[0]->post(barrier(posted)) == ReduceRefusal::none);
    BOOST_REQUIRE(m.groups[1]->post(barrier(posted)) == ReduceRefusal::none);
    BOOST_REQUIRE(m.await([&] { return m.groups[0]->look().done > posted && m.groups[1]->look().done > posted; }));
  }
  BOOST_TEST(m.groups[0]->post(barrier()) == ReduceRefusal::cq_full);
  BOOST_TEST(m.next(0).entry.context == 0u);
  BOOST_TEST(m.groups[0]->post(barrier()) == ReduceRefusal::none);
}

// ---- loss ----------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_a_member_that_leaves_ends_the_reductions_of_all) {
  for (const Over over : kOver) {
    for (const uint32_t leaver : {0u, 1u, 6u}) {
      BOOST_TEST_CONTEXT("over " << name_of(over) << ", member " << leaver << " leaves") {
        Members m(7, over);
        GroupConfig c;
        c.radix = 2;
        m.join_all(c);
        for (uint32_t i = 0; i < 7; ++i) {
          if (i != leaver) BOOST_TEST(m.groups[i]->post(barrier(i)) == ReduceRefusal::none);
        }
        m.progress();
        if (leaver == 1) {
          m.groups[leaver]->close();
        } else {
          m.sides[leaver]->ep->close();
        }
        for (uint32_t i = 0; i < 7; ++i) {
          if (i == leaver) continue;
          BOOST_TEST(m.next(i).error != 0);
          BOOST_TEST(m.groups[i]->look().lost == leaver);
          BOOST_TEST(m.groups[i]->post(barrier(i)) == ReduceRefusal::none);  // a later one fails as well
          BOOST_TEST(m.next(i).error != 0);
        }
        BOOST_TEST(m.groups[leaver]->post(barrier()) == ReduceRefusal::closed);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_what_has_completed_anywhere_completes_everywhere) {
  // The first to complete leaves at once.
  for (int round = 0; round < 30; ++round) {
    const uint32_t count = std::array{2u, 4u, 6u}[static_cast<size_t>(round) % 3];  // two and four exchange
    Members m(count, round % 2 == 0 ? Over::shm : Over::strict);
    GroupConfig c;
    c.radix = count == 4 ? 16 : 1 + static_cast<uint32_t>(round) % 3;
    m.join_all(c);
    for (uint32_t i = 0; i < count; ++i) BOOST_REQUIRE(m.groups[i]->post(barrier()) == ReduceRefusal::none);
    std::vector<bool> ended(count);
    for (size_t left = count; left != 0;) {
      for (uint32_t i = 0; i < count; ++i) {
        m.sides[i]->progress();
        if (ended[i]) continue;
        const auto done = try_completion(*m.sides[i]);
        if (!done) continue;
        BOOST_REQUIRE_MESSAGE(done->error == 0, done->text);
        m.groups[i]->close();
        ended[i] = true;
        --left;
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_own_reductions_are_canceled_by_close) {
  Members m(2);
  m.join_all();
  BOOST_TEST(m.groups[0]->post(barrier()) == ReduceRefusal::none);
  m.groups[0]->close();
  BOOST_TEST(m.next(0).error == fi_err::kECANCELED);
}

BOOST_AUTO_TEST_CASE(test_a_member_without_an_endpoint_fails_the_join) {
  for (const Over over : {Over::self, Over::shm, Over::tcp}) {
    for (const uint32_t missing : {0u, 1u, 4u}) {
      BOOST_TEST_CONTEXT("over " << name_of(over) << ", member " << missing) {
        Members m(5, over);
        GroupConfig c;
        c.members = m.set();
        m.sides[missing]->ep->close();
        const auto set = c.members;
        for (uint32_t i = 0; i < 5; ++i) {
          if (i == missing) continue;
          GroupConfig mine;
          mine.members = set;
          mine.member = i;
          mine.key = 9;
          m.groups[i] = m.sides[i]->ep->join(std::move(mine));
        }
        BOOST_TEST_REQUIRE(m.await([&] { return m.all_are(GroupState::broken); }), m.states());
        for (uint32_t i = 0; i < 5; ++i) {
          if (i != missing) BOOST_TEST(m.groups[i]->look().lost == missing);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_an_endpoint_that_closes_without_joining_fails_the_join) {
  for (const Over over : kOver) {
    for (const uint32_t missing : {0u, 1u, 4u}) {
      BOOST_TEST_CONTEXT("over " << name_of(over) << ", member " << missing) {
        Members m(5, over);
        for (uint32_t i = 0; i < 5; ++i) {
          if (i != missing) m.join(i);
        }
        for (int n = 0; n < 2000; ++n) m.progress();
        BOOST_TEST(m.all_are(GroupState::gathering), m.states());
        m.sides[missing]->ep->close();
        BOOST_TEST_REQUIRE(m.await([&] { return m.all_are(GroupState::broken); }), m.states());
      }
    }
  }
}

// The frame of a member is under way as the endpoint closes: the answer has no endpoint as its source.
BOOST_AUTO_TEST_CASE(test_a_call_that_meets_a_closed_endpoint_fails_the_join) {
  for (const Over over : {Over::shm, Over::strict}) {
    BOOST_TEST_CONTEXT("over " << name_of(over)) {
      Members m(3, over, false, 300);
      m.join_all();  // they know each other now
      for (const auto& group : m.groups) group->close();
      for (int n = 0; n < 2000; ++n) m.progress();
      m.join(1);  // calls 0, its parent, which has not read the call when it closes
      m.sides[0]->ep->close();
      BOOST_TEST_REQUIRE(m.await([&] { return m.groups[1]->look().state == GroupState::broken; }), m.states());
      BOOST_TEST(m.groups[1]->look().lost == 0u);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_a_member_that_joins_after_the_failure_fails_too) {
  for (const Over over : {Over::self, Over::shm, Over::tcp}) {
    for (const bool removed : {false, true}) {
      BOOST_TEST_CONTEXT("over " << name_of(over) << (removed ? ", removed" : "")) {
        Members m(4, over);
        const auto set = m.set();
        const auto join = [&](uint32_t i) {
          GroupConfig c;
          c.members = set;
          c.member = i;
          c.key = 9;
          m.groups[i] = m.sides[i]->ep->join(std::move(c));
        };
        m.sides[3]->ep->close();
        for (const uint32_t i : {0u, 1u}) join(i);
        BOOST_TEST_REQUIRE(m.await([&] { return m.all_are(GroupState::broken); }), m.states());
        if (removed) {
          m.groups[0]->close();
          m.groups[1]->close();
          m.groups[0] = m.groups[1] = nullptr;
        }
        join(2);
        BOOST_TEST(m.await([&] { return m.groups[2]->look().state == GroupState::broken; }), m.states());
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_a_join_that_is_closed_fails_for_the_others_and_can_be_repeated) {
  Members m(3, Over::shm);
  m.join(0);
  m.join(1);
  for (int n = 0; n < 200; ++n) m.progress();
  m.groups[1]->close();
  m.groups[1] = nullptr;
  BOOST_TEST(m.await([&] { return m.groups[0]->look().state == GroupState::broken; }));
  m.groups[0]->close();
  m.join_all();
}

// ---- peers that lie ------------------------------------------------------------------------------------------------

// Frames with fields of `random`, from the NIC of member 1 to member 0.
void lie(Members& m, std::mt19937_64& random) {
  const auto link = m.sides[1]->nic().links();
  const auto& other = *m.sides[0];
  wire::Frame f;
  f.kind = wire::FrameKind::reduce;
  f.ep_index = other.ep->index();
  f.ep_generation = other.ep->generation() + (random() % 16 == 0 ? 1 : 0);
  f.source = m.sides[random() % m.sides.size()]->ep->address();
  f.status = static_cast<int32_t>(random() % 80) - 8;
  f.reduce = {};
  f.reduce.group = random() % 2 == 0 ? 77 : m.groups[0]->look().number;
  f.reduce.value = random() % 3 == 0 ? random() : random() % 8;
  f.reduce.from = static_cast<uint32_t>(random() % 5);
  f.reduce.to = static_cast<uint32_t>(random() % 3 == 0 ? random() % 5 : 0);
  f.reduce.sequence = static_cast<uint32_t>(random() % 4 == 0 ? random() : random() % 20);
  f.reduce.block = static_cast<uint32_t>(random() % 10);
  f.reduce.error = 0;
  f.reduce.what = static_cast<uint8_t>(1 + random() % wire::kReduceWhatMax);
  f.reduce.tier = static_cast<uint8_t>(random() % 2);
  std::vector<std::byte> payload(random() % 3 == 0 ? random() % 64 : 64);
  for (std::byte& b : payload) b = static_cast<std::byte>(random());
  for (link::Link* l : link) {
    for (const auto& peer : l->peers()) {
      if (!peer->same_process || peer->link() == link.front()) (void)l->submit(*peer, f, payload);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_lying_frames_harm_no_other_group) {
  const uint64_t seed = test_seed();
  BOOST_TEST_MESSAGE("WEFT_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (const Over over : {Over::self, Over::shm}) {
    for (int round = 0; round < 20; ++round) {
      Members m(4, over);
      m.join_all();
      // A second group, of members 2 and 3, that the liar knows nothing of.
      Members honest(2, over);
      honest.join_all();
      for (uint32_t i = 0; i < 4; ++i) (void)m.groups[i]->post(barrier());
      for (int n = 0; n < 200; ++n) {
        lie(m, random);
        m.progress();
      }
      // Every member's reductions end, well or badly.
      for (uint32_t i = 0; i < 4; ++i) (void)m.next(i);
      int64_t out[2] = {};
      for (uint32_t i = 0; i < 2; ++i) BOOST_TEST(honest.groups[i]->post(sum_of(21, &out[i])) == ReduceRefusal::none);
      for (uint32_t i = 0; i < 2; ++i) BOOST_TEST(honest.next(i).error == 0);
      BOOST_TEST(out[0] == 42);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_a_doubled_contribution_is_ignored) {
  Members m(2, Over::shm);
  m.join_all();
  int64_t out[2] = {};
  BOOST_TEST(m.groups[1]->post(sum_of(1, &out[1])) == ReduceRefusal::none);
  const auto number = m.groups[0]->look().number;
  for (int n = 0; n < 3; ++n) {
    wire::Frame f;
    f.kind = wire::FrameKind::reduce;
    f.ep_index = m.sides[0]->ep->index();
    f.ep_generation = m.sides[0]->ep->generation();
    f.source = m.sides[1]->ep->address();
    f.reduce = {};
    f.reduce.group = number;
    f.reduce.from = 1;
    f.reduce.what = static_cast<uint8_t>(wire::ReduceWhat::part);
    f.reduce.tier = 1;
    const Partial part = nic::contribution(ReduceOp::int_sum, Datatype::int64, &out[0], 1);
    for (link::Link* l : m.sides[1]->nic().links()) {
      for (const auto& peer : l->peers()) {
        if (!peer->same_process) (void)l->submit(*peer, f, std::as_bytes(std::span(&part, 1)));
      }
    }
  }
  BOOST_TEST(m.groups[0]->post(sum_of(1, &out[0])) == ReduceRefusal::none);
  BOOST_TEST(m.next(0).error == 0);
  BOOST_TEST(m.next(1).error == 0);
  BOOST_TEST(out[0] == 2);
  BOOST_TEST(m.groups[0]->look().ignored >= 3u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
