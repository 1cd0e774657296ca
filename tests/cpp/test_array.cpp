// tests/cpp/test_array.cpp: what an index selects (array/select.hpp), elements of numbers (array/element.hpp), and
// copies of selections (array/place.hpp).
#include <limits>
#include <numeric>

#include "array/place.hpp"
#include "every_path.hpp"

using namespace weft;
using namespace weft::test;
using array::ElementKind;
using array::Index;
using array::Number;
using array::Picked;
using array::Place;
using array::Refused;
using array::Selection;

BOOST_AUTO_TEST_SUITE(arrays)

namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max(), kSmallest = std::numeric_limits<int64_t>::min();

Index at(int64_t i) {
  return {.kind = Index::Kind::integer, .at = i};
}
Index slice(int64_t start, int64_t stop, int64_t step = 1) {
  return {.kind = Index::Kind::slice, .start = start, .stop = stop, .step = step};
}
constexpr Index kAll{.kind = Index::Kind::slice, .start = 0, .stop = kLargest, .step = 1};
constexpr Index kEllipsis{.kind = Index::Kind::ellipsis}, kNewAxis{.kind = Index::Kind::new_axis},
    kNone{.kind = Index::Kind::other};

struct Found {
  Refused refused;
  int64_t offset = 0;
  bool whole = false;
  std::vector<int64_t> shape, strides;
};
Found select(std::vector<int64_t> shape, std::vector<int64_t> strides, const std::vector<Index>& index) {
  Selection s;
  Found found;
  found.refused = array::select({shape, strides}, index, &s);
  if (found.refused) return found;
  found.offset = static_cast<int64_t>(s.offset);
  found.whole = s.whole;
  found.shape.assign(s.shape, s.shape + s.dims);
  found.strides.assign(s.strides, s.strides + s.dims);
  return found;
}

std::vector<uint64_t> addresses(const array::Pieces& pieces, uint64_t offset, int64_t item) {
  std::vector<uint64_t> found;
  for (uint64_t i = 0; i < pieces.count; ++i) {
    const uint64_t start = offset + i * static_cast<uint64_t>(pieces.step);
    for (uint64_t b = 0; b < pieces.block; b += static_cast<uint64_t>(item)) found.push_back(start + b);
  }
  return found;
}

// Of every element of a selection, in C order.
std::vector<uint64_t> addresses(const Found& s) {
  std::vector<uint64_t> found{static_cast<uint64_t>(s.offset)};
  for (size_t d = 0; d < s.shape.size(); ++d) {
    std::vector<uint64_t> more;
    for (const uint64_t from : found) {
      for (int64_t i = 0; i < s.shape[d]; ++i) more.push_back(from + static_cast<uint64_t>(i * s.strides[d]));
    }
    found = std::move(more);
  }
  return found;
}

}  // namespace

BOOST_AUTO_TEST_CASE(test_an_index_of_integers_is_one_element) {
  const Found found = select({3, 4}, {32, 8}, {at(1), at(-1)});
  BOOST_TEST(found.offset == 32 + 24);
  BOOST_TEST(found.shape.empty());
  BOOST_TEST(!found.whole);
}

BOOST_AUTO_TEST_CASE(test_an_ellipsis_stands_for_the_dimensions_that_the_other_items_leave) {
  const Found found = select({2, 3, 4}, {96, 32, 8}, {at(1), kEllipsis, kNewAxis, slice(0, 4, 2)});
  BOOST_TEST(found.offset == 96);
  BOOST_TEST((found.shape == std::vector<int64_t>{3, 1, 2}));
  BOOST_TEST((found.strides == std::vector<int64_t>{32, 0, 16}));
  BOOST_TEST(found.whole);
  BOOST_TEST((select({2, 3}, {24, 8}, {}).shape == std::vector<int64_t>{2, 3}));
}

BOOST_AUTO_TEST_CASE(test_a_slice_of_any_bounds_and_step_has_the_elements_that_python_counts) {
  const int64_t bounds[] = {kSmallest, -7, -5, -4, -1, 0, 1, 4, 5, 7, kLargest};
  for (const int64_t n : {0, 1, 5}) {
    for (const int64_t start : bounds) {
      for (const int64_t stop : bounds) {
        for (const int64_t step : {int64_t{1}, int64_t{2}, int64_t{-1}, int64_t{-3}, kLargest, kSmallest}) {
          // Python's rule, element by element.
          const bool back = step < 0;
          const int64_t low = back ? -1 : 0, high = back ? n - 1 : n;
          const auto bound = [&](int64_t i) { return std::clamp(i < 0 && i > -100 ? i + n : i, low, high); };
          std::vector<int64_t> wanted;
          const int64_t first = bound(start), end = bound(stop);
          for (int64_t i = first; back ? i > end : i < end;) {
            wanted.push_back(i);
            if (__builtin_add_overflow(i, step, &i)) break;
          }
          const Found found = select({n}, {8}, {slice(start, stop, step)});
          BOOST_TEST_CONTEXT(n << ": " << start << " " << stop << " " << step) {
            BOOST_TEST(found.shape[0] == static_cast<int64_t>(wanted.size()));
            if (!wanted.empty()) BOOST_TEST(found.offset == 8 * wanted[0]);
            if (wanted.size() > 1) BOOST_TEST(found.strides[0] == 8 * step);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_an_index_that_selects_nothing_says_which_item_and_why) {
  using Why = Refused::Why;
  BOOST_TEST((select({3}, {8}, {at(3)}).refused.why == Why::bounds));
  BOOST_TEST((select({3}, {8}, {at(-4)}).refused.why == Why::bounds));
  BOOST_TEST((select({3}, {8}, {at(kSmallest)}).refused.why == Why::bounds));
  BOOST_TEST((select({3}, {8}, {at(0), at(0)}).refused.why == Why::too_many));
  BOOST_TEST((select({3}, {8}, {kEllipsis, kEllipsis}).refused.why == Why::ellipses));
  const Refused other = select({3, 3}, {24, 8}, {kNewAxis, at(0), kNone}).refused;
  BOOST_TEST((other.why == Why::other));
  BOOST_TEST(other.item == 2);
  // The items are looked at in their order.
  BOOST_TEST((select({3, 3}, {24, 8}, {at(9), kNone}).refused.why == Why::bounds));
  const Refused bounds = select({3, 2}, {16, 8}, {kAll, at(9)}).refused;
  BOOST_TEST(explain(bounds, "9") == "index 9 is out of bounds for axis 1 with size 2");
  BOOST_TEST((select({}, {}, std::vector<Index>(65, kNewAxis)).refused.why == Why::dims));
  BOOST_TEST(select({}, {}, std::vector<Index>(64, kNewAxis)).shape.size() == 64U);
}

BOOST_AUTO_TEST_CASE(test_pieces_of_a_selection_are_its_elements) {
  std::mt19937_64 random(test_seed());
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  int folded = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<int64_t> shape, strides;
    for (int64_t d = below(4); d >= 0; --d) shape.push_back(1 + below(4));
    strides.assign(shape.size(), 8);
    for (size_t d = shape.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * shape[d + 1];
    std::vector<Index> index;
    for (const int64_t n : shape) {
      const int64_t kind = below(4);
      if (kind == 0) index.push_back(at(below(n)));
      if (kind == 1) index.push_back(kAll);
      if (kind == 2) index.push_back(slice(below(n), kLargest, 1 + below(3)));
      if (kind == 3) index.push_back(slice(kLargest, kSmallest, -1));
    }
    const Found found = select(shape, strides, index);
    BOOST_REQUIRE(!found.refused);
    const std::vector<uint64_t> wanted = addresses(found);
    size_t outer = 0;
    const uint64_t block = array::piece_bytes({found.shape, found.strides}, 8, &outer);
    BOOST_TEST(wanted.size() * 8 % block == 0U);
    array::Pieces pieces;
    if (!array::fold({found.shape, found.strides}, 8, &pieces)) continue;
    ++folded;
    BOOST_TEST(pieces.block == block);
    BOOST_TEST((addresses(pieces, static_cast<uint64_t>(found.offset), 8) == wanted));
  }
  BOOST_TEST(folded > 500);
}

BOOST_AUTO_TEST_CASE(test_selections_without_elements_are_no_pieces) {
  array::Pieces pieces;
  const int64_t shape[] = {3, 0}, strides[] = {8, 8};
  BOOST_TEST(!array::fold({shape, strides}, 8, &pieces));
}

BOOST_AUTO_TEST_CASE(test_a_number_that_numpy_would_refuse_or_warn_of_is_stored_by_nobody) {
  std::byte out[array::kElementBytesMax];
  const auto stores = [&](char letter, int64_t bytes, const Number& number, bool wraps = false) {
    return array::store(array::element_type(letter, bytes), number, out, wraps);
  };
  const auto whole = [](int64_t n) { return Number{.bits = static_cast<uint64_t>(n)}; };
  const Number large{.kind = Number::Kind::large, .bits = uint64_t{1} << 63};
  const auto real = [](double x) { return Number{.kind = Number::Kind::real, .real = x}; };
  BOOST_TEST(stores('i', 1, whole(-128)));
  BOOST_TEST(!stores('i', 1, whole(128)));
  BOOST_TEST(stores('i', 8, whole(kSmallest)));
  BOOST_TEST(!stores('i', 8, large));
  BOOST_TEST(stores('u', 8, large));
  BOOST_TEST(!stores('u', 4, large));
  BOOST_TEST(!stores('u', 4, whole(-1)));
  BOOST_TEST(stores('u', 4, whole(-1), true));
  BOOST_TEST(!stores('f', 8, large));
  BOOST_TEST(stores('f', 8, whole(7)));
  BOOST_TEST(!stores('f', 4, real(1e39)));
  BOOST_TEST(stores('f', 4, real(std::numeric_limits<double>::infinity())));
  BOOST_TEST(!stores('f', 2, real(65536)));
  BOOST_TEST(!stores('f', 8, Number{.kind = Number::Kind::boolean, .bits = 1}));
  BOOST_TEST(stores('b', 1, Number{.kind = Number::Kind::boolean, .bits = 1}));
  BOOST_TEST(!stores('b', 1, whole(1)));
  BOOST_TEST(stores('c', 8, Number{.kind = Number::Kind::complex, .real = 1, .imag = 2}));
  BOOST_TEST(!stores('c', 8, Number{.kind = Number::Kind::complex, .real = 1, .imag = 1e39}));
  BOOST_TEST(!stores('M', 8, whole(1)));
  BOOST_TEST((array::find_op("replace") != nullptr));
  BOOST_TEST((array::find_op("sums") == nullptr));
}

// ---- copies
// ------------------------------------------------------------------------------------------------------------

namespace {

// An array of 6 rows of 1,000 doubles at the target's address 0, on a pair that has met.
struct Owned {
  static constexpr int64_t kRows = 6, kColumns = 1000;
  explicit Owned(Path path) : config(pair_of(path)) {
    config.bytes = kRows * kColumns * 8;
    pair = std::make_unique<Pair>(config);
    const uint64_t word = 0;
    BOOST_REQUIRE(pair->write(&word, 8, 0).error == 0);
    place.key = pair->key();
    place.dims = 2;
    place.shape[0] = kRows, place.shape[1] = kColumns;
    place.strides[0] = kColumns * 8, place.strides[1] = 8;
    place.type = array::element_type('f', 8);
    place.rows = array::rows_are_whole(place.layout(), 8, &place.row);
    place.ep = pair->a->ep;
    place.peer = pair->dest;
  }
  std::vector<double> look() const {
    const auto bytes = pair->look(0, kRows * kColumns * 8);
    std::vector<double> found(kRows * kColumns);
    std::memcpy(found.data(), bytes.data(), bytes.size());
    return found;
  }
  PairConfig config;
  std::unique_ptr<Pair> pair;
  Place place;
};

}  // namespace

BOOST_AUTO_TEST_CASE(test_one_value_spread_over_a_selection_changes_the_selection_alone) {
  for (const Path path : {Path::self, Path::direct}) {
    Owned owned(path);
    const double five = 5;
    const auto* element = reinterpret_cast<const std::byte*>(&five);
    std::vector<double> wanted(Owned::kRows * Owned::kColumns);
    const auto spread = [&](const std::vector<Index>& index) {
      Picked s;
      return array::pick(owned.place, index, &s) && array::spread(owned.place, s, nullptr, element);
    };
    BOOST_TEST(spread({at(2)}));  // longer than one copy step
    std::fill_n(wanted.begin() + 2 * Owned::kColumns, Owned::kColumns, 5.0);
    BOOST_TEST((owned.look() == wanted));
    BOOST_TEST(spread({kAll, at(7)}));
    for (int64_t i = 0; i < Owned::kRows; ++i) wanted[static_cast<size_t>(i * Owned::kColumns + 7)] = 5;
    BOOST_TEST((owned.look() == wanted));
  }
}

BOOST_AUTO_TEST_CASE(test_one_value_to_chosen_rows_longer_than_a_copy_is_left_to_the_caller) {
  Owned owned(Path::direct);
  const double five = 5;
  const std::vector<int64_t> indices{2}, dims{1};
  nic::Rows rows;
  Picked s;
  BOOST_REQUIRE(array::pick_rows(owned.place, indices, dims, &rows, &s));
  BOOST_TEST(!array::spread(owned.place, s, &rows, reinterpret_cast<const std::byte*>(&five)));
  BOOST_TEST((owned.look() == std::vector<double>(Owned::kRows * Owned::kColumns)));
}

BOOST_AUTO_TEST_CASE(test_a_selection_is_read_and_written_in_c_order) {
  for (const Path path : {Path::self, Path::direct}) {
    Owned owned(path);
    std::vector<double> given(Owned::kRows), got(Owned::kRows);
    std::iota(given.begin(), given.end(), 1.0);
    Picked s;
    BOOST_REQUIRE(array::pick(owned.place, std::vector<Index>{slice(kLargest, kSmallest, -1), at(3)}, &s));
    BOOST_TEST(array::move(OpKind::write, owned.place, s, reinterpret_cast<std::byte*>(given.data())));
    BOOST_TEST(array::move(OpKind::read, owned.place, s, reinterpret_cast<std::byte*>(got.data())));
    BOOST_TEST((got == given));
    BOOST_TEST(owned.look()[3] == 6.0);
    BOOST_REQUIRE(array::pick_row(owned.place, -1, &s));
    BOOST_TEST(s.addr == static_cast<uint64_t>(5 * Owned::kColumns * 8));
    BOOST_TEST(!array::pick_row(owned.place, 6, &s));
  }
}

BOOST_AUTO_TEST_CASE(test_rows_by_index_are_refused_when_one_index_is_out_of_bounds) {
  Owned owned(Path::self);
  nic::Rows rows;
  Picked s;
  const std::vector<int64_t> dims{2};
  BOOST_TEST(array::pick_rows(owned.place, std::vector<int64_t>{-6, 5}, dims, &rows, &s));
  BOOST_TEST(!array::pick_rows(owned.place, std::vector<int64_t>{-7, 5}, dims, &rows, &s));
  BOOST_TEST(!array::pick_rows(owned.place, std::vector<int64_t>{0, 6}, dims, &rows, &s));
  BOOST_TEST(!array::pick_rows(owned.place, {}, dims, &rows, &s));
}

BOOST_AUTO_TEST_SUITE_END()
