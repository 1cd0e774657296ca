// tests/cpp/test_sync_deed.cpp: what undoes a call whose caller an exception has ended (sync/deed.hpp).
#include "sync/deed.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace weft::sync;
using Settled = std::tuple<Op, uint64_t, uint64_t>;

/// The undoer: writes down the calls, and refuses the calls in `refused`.
struct Undoer {
  std::vector<Settled> calls;
  std::vector<Settled> refused;
  bool record = false, kept = false, puts_back = true;
  std::vector<std::pair<Op, uint64_t>> handed_back;

  bool settle(Op op, uint64_t a, uint64_t b) {
    calls.emplace_back(op, a, b);
    return std::find(refused.begin(), refused.end(), calls.back()) == refused.end();
  }
  [[nodiscard]] bool has_record() const { return record; }
  void keep() { kept = true; }
  bool put_back(uint64_t type) {
    calls.emplace_back(Op::put_back, type, 0);
    return puts_back;
  }
  void hand_back(Op op, uint64_t id) { handed_back.emplace_back(op, id); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(sync_deed)

BOOST_AUTO_TEST_CASE(test_a_lock_of_the_dead_and_a_permit_are_released_as_they_were) {
  Taken taken;
  taken.note(Op::take, 1, 0, 77, 0, 0, false);
  Undoer lock, semaphore;
  undo(taken, false, lock);
  undo(taken, true, semaphore);
  BOOST_TEST((lock.calls == std::vector<Settled>{{Op::release, 77, 0}}));
  BOOST_TEST((semaphore.calls == std::vector<Settled>{{Op::release, 1, 0}}));
}

BOOST_AUTO_TEST_CASE(test_a_slot_to_write_is_freed_unless_it_was_committed) {
  Taken taken;
  taken.note(Op::reserve, 0, 5, 6, 0, 0, false);
  Undoer freed, none;
  undo(taken, false, freed);
  BOOST_TEST((freed.calls == std::vector<Settled>{{Op::free_slot, 5, 0}}));
  taken.note(Op::commit, 5, 0, 0, 0, 0, false);
  undo(taken, false, none);
  BOOST_TEST(none.calls.empty());
}

BOOST_AUTO_TEST_CASE(test_a_claimed_record_becomes_the_first_again_or_is_kept) {
  Taken taken;
  taken.note(Op::claim, 0, 5, 6, 9, 7, false);
  Undoer first;
  undo(taken, false, first);
  BOOST_TEST((first.calls == std::vector<Settled>{{Op::free_slot, 5, kFirstAgain}}));
  BOOST_TEST(!first.kept);
  BOOST_TEST(first.handed_back.empty());
  Undoer has;  // the record has been read already: its slot is only freed
  has.refused = first.calls;
  has.record = true;
  undo(taken, false, has);
  BOOST_TEST((has.calls.back() == Settled{Op::free_slot, 5, 0}));
  BOOST_TEST(has.kept);
  BOOST_TEST(has.handed_back.empty());
}

BOOST_AUTO_TEST_CASE(test_what_cannot_be_undone_in_time_goes_to_the_owners_nic) {
  const std::pair<Op, Settled> all[] = {{Op::take, {Op::release, 0, 0}},
                                        {Op::reserve, {Op::free_slot, 5, 0}},
                                        {Op::claim, {Op::free_slot, 5, kFirstAgain}}};
  for (const auto& [op, settles] : all) {
    Taken taken;
    taken.note(op, 0, 5, 0, 9, 71, false);
    Undoer undoer;
    undoer.refused = {settles};
    undo(taken, false, undoer);
    BOOST_TEST((undoer.calls == undoer.refused));
    BOOST_TEST((undoer.handed_back == std::vector<std::pair<Op, uint64_t>>{{op, 71}}));
    BOOST_TEST(!undoer.kept);
  }
}

BOOST_AUTO_TEST_CASE(test_a_record_that_was_read_and_freed_is_put_back_or_kept) {
  for (const bool puts_back : {true, false}) {
    Taken taken;
    taken.note(Op::claim, 0, 5, 6, 9, 7, false);
    taken.note(Op::free_slot, 4, 0, 0, 0, 0, true);  // of another record
    BOOST_TEST((taken.op == Op::claim));
    taken.note(Op::free_slot, 5, 0, 0, 0, 0, true);
    Undoer undoer;
    undoer.record = true;
    undoer.puts_back = puts_back;
    undo(taken, false, undoer);
    BOOST_TEST((undoer.calls == std::vector<Settled>{{Op::put_back, 9, 0}}));
    BOOST_TEST(undoer.kept == !puts_back);
  }
  Taken taken;
  taken.note(Op::claim, 0, 5, 6, 9, 7, false);
  taken.note(Op::free_slot, 5, 0, 0, 0, 0, false);
  BOOST_TEST((taken.op == Op{}));
}

BOOST_AUTO_TEST_CASE(test_calls_that_take_nothing_are_not_undone) {
  Taken taken;
  for (const Op op : {Op::look, Op::set, Op::wait, Op::put, Op::get}) taken.note(op, 1, 2, 3, 4, 5, true);
  Undoer undoer;
  undo(taken, false, undoer);
  BOOST_TEST(undoer.calls.empty());
}

BOOST_AUTO_TEST_SUITE_END()
