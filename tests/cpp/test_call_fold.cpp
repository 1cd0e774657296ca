// tests/cpp/test_call_fold.cpp: folds into accumulators without a network (call/fold.hpp).
#include "call/fold.hpp"

#include <array>
#include <boost/test/unit_test.hpp>
#include <cstring>

namespace {

using namespace weft;
using call::Reduction;

constexpr uint64_t kSum = static_cast<uint64_t>(nic::AtomicOp::sum);
constexpr uint64_t kU64 = static_cast<uint64_t>(nic::Datatype::uint64);

template <typename T>
std::span<std::byte> bytes_of(T& values) {
  return std::as_writable_bytes(std::span(values));
}
bool says(const std::string& why, const char* what) {
  return why.find(what) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(call_fold)

BOOST_AUTO_TEST_CASE(test_folds_of_two_and_of_an_accumulator_are_one_reduction) {
  const Reduction sum{.op = kSum, .datatype = kU64, .count = 2, .general = true};
  std::array<uint64_t, 8> first{}, second{};
  std::array<uint64_t, 2> values{3, 4}, found{};
  BOOST_TEST(*sum.bytes() == 16U);
  BOOST_TEST(call::fold(bytes_of(values), bytes_of(first), sum, false).empty());
  BOOST_TEST(call::fold(bytes_of(values), bytes_of(second), sum, false).empty());
  BOOST_TEST(call::fold(bytes_of(second), bytes_of(first), {}, true).empty());
  int status = -1;
  BOOST_TEST(call::unfold(bytes_of(first), bytes_of(found), 2, kU64, &status).empty());
  BOOST_TEST(status == 0);
  BOOST_TEST(found[0] == 6U);
  BOOST_TEST(found[1] == 8U);
}

BOOST_AUTO_TEST_CASE(test_what_cannot_be_folded_is_named_and_changes_nothing) {
  const Reduction sum{.op = kSum, .datatype = kU64, .count = 2, .general = true};
  std::array<uint64_t, 8> accumulator{};
  std::array<uint64_t, 1> one{1};
  std::array<uint64_t, 2> two{1, 2};
  BOOST_TEST(says(call::fold(bytes_of(two), bytes_of(two), sum, false), "result has 16 bytes; 64 are needed"));
  BOOST_TEST(says(call::fold(bytes_of(one), bytes_of(accumulator), sum, false), "buf has 8 bytes; 16 are needed"));
  BOOST_TEST(says(call::fold(bytes_of(two), bytes_of(accumulator), sum, true), "buf has 16 bytes; 64 are needed"));
  for (const uint64_t op : {uint64_t{999}, uint64_t{1} << 40}) {
    Reduction unknown = sum;
    unknown.op = op;
    BOOST_TEST(!unknown.bytes().has_value());
    BOOST_TEST(says(call::fold(bytes_of(two), bytes_of(accumulator), unknown, false), "is no reduction here"));
  }
  for (const uint64_t count : {uint64_t{0}, uint64_t{5}, ~uint64_t{0}}) {
    Reduction many = sum;
    many.count = count;
    BOOST_TEST(*many.bytes() == 0U);
    BOOST_TEST(says(call::fold(bytes_of(two), bytes_of(accumulator), many, false), "rule: at least 1"));
  }
  BOOST_TEST((accumulator == std::array<uint64_t, 8>{}));
  accumulator.fill(~uint64_t{0});
  BOOST_TEST(says(call::fold(bytes_of(two), bytes_of(accumulator), sum, false), "result: these 64 bytes are no"));
  std::array<uint64_t, 8> other{};
  BOOST_TEST(says(call::fold(bytes_of(accumulator), bytes_of(other), {}, true), "buf: these 64 bytes are no"));
}

BOOST_AUTO_TEST_CASE(test_an_accumulator_is_read_by_its_own_operation) {
  const Reduction sum{.op = kSum, .datatype = kU64, .count = 2, .general = true};
  std::array<uint64_t, 8> accumulator{};
  std::array<uint64_t, 2> two{1, 2};
  int status = 5;
  BOOST_TEST(call::unfold(bytes_of(accumulator), bytes_of(two), 2, kU64, &status).empty());
  BOOST_TEST(status == -1);  // empty
  BOOST_TEST(call::fold(bytes_of(two), bytes_of(accumulator), sum, false).empty());
  std::array<uint64_t, 1> one{};
  BOOST_TEST(says(call::unfold(bytes_of(accumulator), bytes_of(one), 2, kU64, &status), "out has 8 bytes"));
  BOOST_TEST(says(call::unfold(bytes_of(accumulator), bytes_of(two), 5, kU64, &status), "does not fit"));
  BOOST_TEST(says(call::unfold(bytes_of(accumulator), bytes_of(two), 1, 1 << 20, &status), "does not fit"));
  BOOST_TEST(says(call::unfold(bytes_of(one), bytes_of(two), 1, kU64, &status), "accumulator has 8 bytes"));
}

BOOST_AUTO_TEST_SUITE_END()
