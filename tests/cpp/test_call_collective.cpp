// tests/cpp/test_call_collective.cpp: sets of addresses (call/av_set.hpp), and the checks of collectives
// (call/collective.hpp).
#include "call/collective.hpp"

#include <array>
#include <string>
#include <vector>

#include "call/av_set.hpp"
#include "group_support.hpp"

namespace {

using namespace weft;
using namespace weft::test;
using call::AddressSet;
using call::CollectiveFault;
using call::CollectiveKind;

using List = std::vector<uint64_t>;

BOOST_AUTO_TEST_SUITE(call_collective)

BOOST_AUTO_TEST_CASE(test_set_has_each_address_once_in_order) {
  AddressSet set;
  for (const uint64_t one : {7, 0, 9}) BOOST_TEST(set.insert(one).empty());
  BOOST_TEST(set.insert(0) == "fi_addr 0 is in the set already");
  BOOST_TEST(set.insert(~uint64_t{0}).ends_with("is no fi_addr of a peer"));
  BOOST_TEST(set.remove(0).empty());
  BOOST_TEST(set.remove(0) == "fi_addr 0 is not in the set");
  BOOST_TEST(set.addresses() == (List{7, 9}));
  BOOST_TEST(set.insert(0).empty());
  BOOST_TEST(set.addresses() == (List{7, 9, 0}));
}

BOOST_AUTO_TEST_CASE(test_sets_are_combined_in_order_also_with_themselves) {
  AddressSet a({8, 1, 5});
  const AddressSet b({5, 2, 8});
  a.unite(b);
  BOOST_TEST(a.addresses() == (List{8, 1, 5, 2}));
  a.intersect(AddressSet({2, 9, 8, 5}));
  BOOST_TEST(a.addresses() == (List{8, 5, 2}));
  BOOST_TEST(a.insert(1).empty());  // it is no member any more
  AddressSet c({1, 9});
  c.subtract(a);
  BOOST_TEST(c.addresses() == (List{9}));
  a.unite(a);
  a.intersect(a);
  BOOST_TEST(a.addresses() == (List{8, 5, 2, 1}));
  a.subtract(a);
  BOOST_TEST(a.addresses().empty());
  BOOST_TEST(!a.has(8));
}

// An allreduce of `count` 64-bit integers at member 0.
struct Case {
  explicit Case(const Members& members) : ep(*members.sides[0]->ep) {
    c.kind = CollectiveKind::allreduce;
    c.has_buf = true;
    c.buf.data = reinterpret_cast<std::byte*>(in.data());
    c.buf.length = sizeof(in);
    c.count = 2;
    c.datatype = static_cast<uint64_t>(Datatype::int64);
    c.op = static_cast<uint64_t>(nic::AtomicOp::sum);
    c.coll_addr = members.groups[0]->address();
  }
  CollectiveFault check() { return call::check(ep, c, &why); }
  CollectiveFault check_result(uint64_t length, bool has = true) {
    call::Local local;
    local.data = reinterpret_cast<std::byte*>(out.data());
    local.length = length;
    return call::check_result(ep, c, local, has, &why);
  }
  [[nodiscard]] std::string text() const { return call::explain(ep, "fi_x", why); }

  nic::Endpoint& ep;
  std::array<int64_t, 8> in{1, 2}, out{};
  call::Collective c;
  call::CollectiveWhy why;
};

BOOST_AUTO_TEST_CASE(test_call_that_passes_is_posted) {
  Members members(2);
  members.join_all();
  Case one(members);
  BOOST_REQUIRE(one.check() == CollectiveFault::none);
  BOOST_TEST(one.c.receives);
  BOOST_TEST(one.c.args.out_bytes == 16u);
  BOOST_REQUIRE(one.check_result(16) == CollectiveFault::none);
  one.c.args.context = 5;
  BOOST_REQUIRE(call::post(one.c, &one.why) == CollectiveFault::none);
}

BOOST_AUTO_TEST_CASE(test_each_rule_has_its_fault_code_and_text) {
  Members members(2);
  members.join_all();
  const auto refused = [&](CollectiveFault fault, int code, const char* text, auto&& change) {
    Case one(members);
    change(one);
    BOOST_TEST((one.check() == fault), text);
    BOOST_TEST(call::code_of(one.ep, one.why) == code);
    BOOST_TEST(one.text().find(text) != std::string::npos, one.text());
  };
  refused(CollectiveFault::flags, fi_err::kEBADFLAGS, "are none of collectives", [](Case& k) { k.c.flags = 8; });
  refused(CollectiveFault::no_buffer, fi_err::kEINVAL, "buf is needed", [](Case& k) { k.c.has_buf = false; });
  refused(CollectiveFault::datatype, fi_err::kEOPNOTSUPP, "datatype 99", [](Case& k) { k.c.datatype = 99; });
  refused(CollectiveFault::datatype, fi_err::kEOPNOTSUPP, "datatype 65537", [](Case& k) { k.c.datatype = 0x10001; });
  refused(CollectiveFault::pair, fi_err::kEINVAL, "operation 65536", [](Case& k) { k.c.op = 0x10000; });
  refused(CollectiveFault::count, fi_err::kEINVAL, "count 5 of", [](Case& k) { k.c.count = 5; });
  refused(CollectiveFault::count, fi_err::kEINVAL, "count 0 of", [](Case& k) { k.c.count = 0; });
  refused(CollectiveFault::too_short, fi_err::kEINVAL, "buf has 15 bytes; 16", [](Case& k) { k.c.buf.length = 15; });
  refused(CollectiveFault::no_group, fi_err::kEINVAL, "coll_addr 0", [](Case& k) { k.c.coll_addr = 0; });
  refused(CollectiveFault::no_group, fi_err::kEINVAL, "names no group", [&](Case& k) {
    k.c.coll_addr = members.groups[1]->address();  // another endpoint's
  });
}

BOOST_AUTO_TEST_CASE(test_count_that_is_left_out_is_all_of_the_buffer) {
  Members members(2);
  members.join_all();
  Case one(members);
  one.c.count = call::kAllElements;
  one.c.buf.length = 24;
  BOOST_REQUIRE(one.check() == CollectiveFault::none);
  BOOST_TEST(one.c.args.out_bytes == 24u);
}

BOOST_AUTO_TEST_CASE(test_result_is_needed_and_long_enough) {
  Members members(2);
  members.join_all();
  Case one(members);
  BOOST_REQUIRE(one.check() == CollectiveFault::none);
  BOOST_TEST((one.check_result(15) == CollectiveFault::too_short));
  BOOST_TEST(one.text() == "fi_x: result has 15 bytes; 16 are needed");
  BOOST_TEST((one.check_result(16, false) == CollectiveFault::no_buffer));
  BOOST_TEST((one.check_result(call::kLongEnough) == CollectiveFault::none));
}

BOOST_AUTO_TEST_CASE(test_only_the_root_of_a_reduce_receives) {
  GroupConfig config;
  config.names = {4, 6};
  config.name = 4;
  Members members(2);
  members.join_all(config);
  Case one(members);
  one.c.kind = CollectiveKind::reduce;
  one.c.root_addr = 6;
  BOOST_REQUIRE(one.check() == CollectiveFault::none);
  BOOST_TEST(!one.c.receives);
  Case root(members);
  root.c.kind = CollectiveKind::reduce;
  root.c.root_addr = 4;
  BOOST_REQUIRE(root.check() == CollectiveFault::none);
  BOOST_TEST(root.c.receives);
  BOOST_TEST((root.check_result(16, false) == CollectiveFault::no_result_of_root));
  Case stranger(members);
  stranger.c.kind = CollectiveKind::broadcast;
  stranger.c.root_addr = 5;
  BOOST_TEST((stranger.check() == CollectiveFault::root));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
