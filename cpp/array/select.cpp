// cpp/array/select.cpp: see select.hpp.
#include "array/select.hpp"

namespace weft::array {

Refused select(const Layout& layout, std::span<const Index> index, Selection* found) noexcept {
  using Kind = Index::Kind;
  using Why = Refused::Why;
  const size_t dims = layout.shape.size();
  size_t used = 0;
  bool whole = false;
  for (const Index& each : index) {
    if (each.kind == Kind::ellipsis) {
      if (whole) return {.why = Why::ellipses};
      whole = true;
    } else if (each.kind != Kind::new_axis) {
      ++used;
    }
  }
  if (used > dims) {
    return {.why = Why::too_many, .size = static_cast<int64_t>(dims), .count = static_cast<int64_t>(used)};
  }
  Selecting selecting(layout, found);
  for (size_t item = 0; item < index.size(); ++item) {
    const Index& each = index[item];
    const size_t axis = dims - selecting.left();
    switch (each.kind) {
      case Kind::ellipsis:
        selecting.whole(dims - used);
        break;
      case Kind::new_axis:
        selecting.new_axis();
        break;
      case Kind::integer:
        if (selecting.integer(each.at)) break;
        return {.why = Why::bounds,
                .item = static_cast<int>(item),
                .axis = static_cast<int>(axis),
                .size = layout.shape[axis]};
      case Kind::slice:
        selecting.slice(each.start, each.stop, each.step);
        break;
      case Kind::other:
        return {.why = Why::other, .item = static_cast<int>(item)};
    }
  }
  selecting.whole(selecting.left());
  if (selecting.dims() > kDimsMax) {
    return {.why = Why::dims, .size = static_cast<int64_t>(dims), .count = selecting.dims()};
  }
  selecting.end(whole);
  return {};
}

std::string explain(const Refused& refused, const std::string& given) {
  switch (refused.why) {
    case Refused::Why::ellipses:
      return "an index can only have a single ellipsis ('...')";
    case Refused::Why::too_many:
      return "too many indices: the array has " + std::to_string(refused.size) + " dimensions, " +
             std::to_string(refused.count) + " were indexed";
    case Refused::Why::bounds:
      return "index " + given + " is out of bounds for axis " + std::to_string(refused.axis) + " with size " +
             std::to_string(refused.size);
    case Refused::Why::dims:
      return "the selection would have " + std::to_string(refused.count) + " dimensions\n  rule: at most " +
             std::to_string(kDimsMax) + ", as in NumPy";
    default:
      return {};
  }
}

bool rows_are_whole(const Layout& layout, int64_t item, int64_t* row) noexcept {
  *row = item;
  bool whole = !layout.shape.empty();
  for (size_t i = layout.shape.size(); i-- > 1;) {
    if (layout.shape[i] == 0) whole = false;
    if (layout.shape[i] == 1) continue;
    if (layout.strides[i] != *row) whole = false;
    if (__builtin_mul_overflow(*row, layout.shape[i], row)) whole = false;
  }
  return whole;
}

bool are_within(std::span<const int64_t> indices, int64_t n) noexcept {
  bool good = true;
  for (const int64_t i : indices) good &= i >= -n && i < n;
  return good;
}

}  // namespace weft::array
