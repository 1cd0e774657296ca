// cpp/array/select.hpp: the part of an array that an index selects: NumPy's basic indexing on a shape and byte strides,
// and the contiguous pieces of memory of a selection.
//
// HOT: row_of(), Selecting and fold(): no allocation. Benchmark: bench/bench_elements.py.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

namespace weft::array {

constexpr int kDimsMax = 64;  // of a selection, as in NumPy

// The dimensions of an array; strides are in bytes. Both have the same length.
struct Layout {
  std::span<const int64_t> shape, strides;
};

// One item of an index.
struct Index {
  // other: the caller has an object that is no index; select() refuses it in its turn.
  enum class Kind : uint8_t { integer, slice, ellipsis, new_axis, other };
  Kind kind = Kind::other;
  int64_t at = 0;  // integer; a negative one counts from the end
  // slice; a bound that was not given is the largest number, or the smallest, in its direction. The step is not 0.
  int64_t start = 0, stop = 0, step = 1;
};

// Part of an array: its dimensions, and the bytes from the array's first element to the part's.
struct Selection {
  uint64_t offset = 0;  // modulo 2^64
  int dims = 0;
  bool whole = false;  // selected with an ellipsis: an array even without dimensions
  int64_t shape[kDimsMax], strides[kDimsMax];
};

// Why an index selects nothing.
struct Refused {
  enum class Why : uint8_t { nothing, ellipses, too_many, bounds, dims, other };
  Why why = Why::nothing;
  int item = -1;      // bounds, other: the item of the index
  int axis = 0;       // bounds
  int64_t size = 0;   // bounds: of the axis; too_many, dims: the array's dimensions
  int64_t count = 0;  // too_many: items that need a dimension; dims: of the selection
  explicit operator bool() const noexcept { return why != Why::nothing; }
};
// Fills in *found, whose shape may contain 0.
Refused select(const Layout& layout, std::span<const Index> index, Selection* found) noexcept;
// The text of an IndexError. given: the integer that is out of bounds.
std::string explain(const Refused& refused, const std::string& given);

// HOT. A selection, item by item: integers, slices, and the dimensions that no item names.
class Selecting {
 public:
  Selecting(const Layout& layout, Selection* found) noexcept : layout_(layout), found_(found) {
    assert(layout.shape.size() == layout.strides.size() && "each dimension has a stride");
  }
  [[nodiscard]] size_t left() const noexcept { return layout_.shape.size() - axis_; }  // dimensions
  // False: out of bounds. This and slice() require a dimension.
  bool integer(int64_t at) noexcept {
    assert(left() != 0 && "the item has a dimension");
    const int64_t n = layout_.shape[axis_];
    if (at < 0) at += n;
    if (at < 0 || at >= n) return false;
    skip(at);
    ++axis_;
    return true;
  }
  // As of Index.
  void slice(int64_t start, int64_t stop, int64_t step) noexcept {
    assert(left() != 0 && step != 0 && "the item has a dimension, and a slice its direction");
    const int64_t n = layout_.shape[axis_];
    step = std::max(step, -std::numeric_limits<int64_t>::max());
    const int64_t lowest = step < 0 ? -1 : 0, highest = step < 0 ? n - 1 : n;
    const auto bound = [&](int64_t at) { return at < 0 ? std::max(at + n, lowest) : std::min(at, highest); };
    start = bound(start);
    stop = bound(stop);
    int64_t count = 0;
    if (step == 1) [[likely]] {
      count = std::max<int64_t>(stop - start, 0);
    } else if (step < 0) {
      count = stop < start ? (start - stop - 1) / -step + 1 : 0;
    } else {
      count = start < stop ? (stop - start - 1) / step + 1 : 0;
    }
    if (count != 0) skip(start);
    int64_t apart = 0;
    // The stride of fewer than two elements may have any value.
    if (__builtin_mul_overflow(step, layout_.strides[axis_], &apart)) apart = 0;
    add(count, apart);
    ++axis_;
  }
  // All of the next dimensions.
  void whole(size_t dims) noexcept {
    const size_t end = std::min(axis_ + dims, layout_.shape.size());
    for (; axis_ < end; ++axis_) add(layout_.shape[axis_], layout_.strides[axis_]);
  }
  void new_axis() noexcept { add(1, 0); }
  // Requires dims() <= kDimsMax.
  void end(bool whole) noexcept {
    assert(dims_ <= kDimsMax && "the selection has room for its dimensions");
    found_->offset = offset_;
    found_->dims = dims_;
    found_->whole = whole;
  }
  [[nodiscard]] int dims() const noexcept { return dims_; }

 private:
  void skip(int64_t n) noexcept { offset_ += static_cast<uint64_t>(n) * static_cast<uint64_t>(layout_.strides[axis_]); }
  void add(int64_t n, int64_t stride) noexcept {
    if (dims_ < kDimsMax) [[likely]] {
      found_->shape[dims_] = n;
      found_->strides[dims_] = stride;
    }
    ++dims_;
  }

  Layout layout_;
  Selection* found_;
  size_t axis_ = 0;
  uint64_t offset_ = 0;
  int dims_ = 0;
};

// HOT. The bytes from the first element to row i; false: out of bounds.
inline bool row_of(const Layout& layout, int64_t i, uint64_t* offset) noexcept {
  assert(!layout.shape.empty() && "an array of rows");
  const int64_t n = layout.shape[0];
  if (i < 0) i += n;
  if (i < 0 || i >= n) return false;
  *offset = static_cast<uint64_t>(i) * static_cast<uint64_t>(layout.strides[0]);
  return true;
}

// The bytes of one contiguous piece of a selection; 0: it may have no elements. The pieces start at the elements of the
// first *outer dimensions, of which those of length 1 do not count.
inline uint64_t piece_bytes(const Layout& s, int64_t item, size_t* outer) noexcept {
  auto block = static_cast<uint64_t>(item);
  size_t left = s.shape.size();
  for (; left != 0; --left) {
    const int64_t n = s.shape[left - 1];
    if (n == 1) continue;
    if (static_cast<uint64_t>(s.strides[left - 1]) != block) break;
    block *= static_cast<uint64_t>(n);
  }
  *outer = left;
  return block;
}

// Equal pieces of memory, `step` bytes apart.
struct Pieces {
  uint64_t block = 0, count = 1;
  int64_t step = 0;
  [[nodiscard]] uint64_t bytes() const noexcept { return block * count; }
};
// HOT. False: the selection has no elements, or its pieces have more than one step.
inline bool fold(const Layout& s, int64_t item, Pieces* found) noexcept {
  size_t outer = 0;
  found->block = piece_bytes(s, item, &outer);
  found->count = 1;
  found->step = 0;
  if (found->block == 0) return false;
  for (; outer != 0; --outer) {
    const int64_t n = s.shape[outer - 1], stride = s.strides[outer - 1];
    if (n == 1) continue;
    if (n == 0) return false;
    if (found->count == 1) {
      found->step = stride;
    } else if (static_cast<uint64_t>(stride) != static_cast<uint64_t>(found->step) * found->count) {
      return false;
    }
    found->count *= static_cast<uint64_t>(n);
  }
  return true;
}

// True if each t[i] is one piece of memory, of *row bytes.
bool rows_are_whole(const Layout& layout, int64_t item, int64_t* row) noexcept;

// True if all are indices of a dimension of n elements; negative ones count from the end.
bool are_within(std::span<const int64_t> indices, int64_t n) noexcept;

}  // namespace weft::array
