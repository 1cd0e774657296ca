// tests/cpp/test_nic_op.cpp: operations under way are found by their own numbers only.
#include <set>

#include "fabric.hpp"
#include "nic/op.hpp"

namespace {

using namespace weft;
using nic::Op;
using nic::OpKind;
using nic::OpTable;
using nic::ShortList;

BOOST_AUTO_TEST_SUITE(nic_op)

BOOST_AUTO_TEST_CASE(test_operation_is_found_by_its_number_until_it_is_removed) {
  OpTable table(7, 1);
  std::vector<Op*> ops;
  std::set<uint64_t> numbers;
  for (int i = 0; i < 3000; ++i) {  // more than the table keeps for reuse
    ops.push_back(table.add());
    BOOST_TEST_REQUIRE(OpTable::domain_of(ops.back()->id) == 7U);
    BOOST_TEST_REQUIRE(numbers.insert(ops.back()->id).second);
    BOOST_TEST_REQUIRE(table.find(ops.back()->id) == ops.back());
    if (i != 0) BOOST_TEST_REQUIRE(ops.back()->sequence > ops[static_cast<size_t>(i) - 1]->sequence);
  }
  size_t seen = 0;
  table.each([&](Op*) { ++seen; });
  BOOST_TEST(seen == 3000U);
  for (Op* op : ops) table.remove(op);
  for (const uint64_t id : numbers) BOOST_TEST_REQUIRE(table.find(id) == nullptr);
  table.each([](Op*) { BOOST_ERROR("none is left"); });
  for (int i = 0; i < 3000; ++i) {  // slots are used again, numbers are not
    Op* op = table.add();
    BOOST_TEST_REQUIRE(numbers.insert(op->id).second);
    BOOST_TEST_REQUIRE(table.find(op->id) == op);
  }
}

BOOST_AUTO_TEST_CASE(test_removed_operation_leaves_nothing_to_the_next) {
  OpTable table(0, 1);
  Op* op = table.add();
  op->set_kind(OpKind::write);
  op->held.assign(100, std::byte{9});
  op->cookies = {1, 2};
  op->status = Status::fault;
  op->submitted = op->counted = op->holds_cq_room = true;
  const wire::RmaRange ranges[3] = {};
  op->access().remote.set(ranges);
  op->access().at_total = 77;
  table.remove(op);
  Op* const next = table.add();
  BOOST_TEST_REQUIRE(next == op);
  next->set_kind(OpKind::read);
  BOOST_TEST((next->held.empty() && next->cookies.empty() && next->status == Status::ok));
  BOOST_TEST(!(next->submitted || next->counted || next->holds_cq_room));
  BOOST_TEST((next->access().remote.empty() && next->access().at_total == 0 && next->peer == nullptr && !next->flow));
}

BOOST_AUTO_TEST_CASE(test_op_table_never_assigns_number_0_after_a_wrap) {
  OpTable table(0, OpTable::kSequenceMask - 2);
  std::set<uint64_t> numbers;
  for (int i = 0; i < 8; ++i) {
    Op* op = table.add();
    BOOST_TEST_REQUIRE(op->id != 0U);
    BOOST_TEST_REQUIRE(numbers.insert(op->id).second);
    BOOST_TEST_REQUIRE(table.find(op->id) == op);
    const uint64_t id = op->id;
    table.remove(op);  // always the same slot
    BOOST_TEST_REQUIRE(table.find(id) == nullptr);
  }
  BOOST_TEST(table.find(0) == nullptr);
  BOOST_TEST(table.find(~uint64_t{0}) == nullptr);
  BOOST_TEST(table.next() > OpTable::kSequenceMask);
}

BOOST_AUTO_TEST_CASE(test_short_list_has_one_element_in_place_and_several_elsewhere) {
  ShortList<uint64_t> list;
  BOOST_TEST(list.empty());
  list.set(7);
  BOOST_TEST(list.size() == 1U);
  BOOST_TEST((static_cast<const void*>(list.data()) >= &list && static_cast<const void*>(list.data()) < &list + 1));
  const uint64_t several[] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const size_t n : {size_t{8}, size_t{2}, size_t{1}, size_t{0}, size_t{3}}) {
    list.set(std::span(several, n));
    BOOST_TEST(std::span<const uint64_t>(list) == std::span(several, n), boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
