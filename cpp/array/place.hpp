// cpp/array/place.hpp: a selection of an owner's array, the way to the owner, and accesses to the elements that end
// within the call, or do not begin (nic/now.cpp).
//
// HOT: accesses to one element or one piece. The caller decides which calls run without its own lock.
#pragma once

#include <memory>

#include "array/element.hpp"
#include "array/select.hpp"
#include "nic/nic.hpp"

namespace weft::array {

constexpr size_t kPlaceDimsMax = 8;

struct Place {
  uint64_t base = 0, key = 0;  // of the first element
  size_t dims = 0;
  int64_t shape[kPlaceDimsMax], strides[kPlaceDimsMax];
  int64_t row = 0;    // bytes of t[i]
  bool rows = false;  // t[i] is one piece of memory
  ElementType type;
  std::shared_ptr<nic::Endpoint> ep;  // null: the array is not attached
  uint64_t peer = 0;

  [[nodiscard]] Layout layout() const noexcept { return {{shape, dims}, {strides, dims}}; }
  [[nodiscard]] bool has_op(nic::AtomicOp op, nic::AtomicFamily family) const noexcept {
    return type.atomic && ep->config().rules.has_atomic(type.datatype, op, family, 0);
  }
};

// The target of a call: pieces of memory, and their shape.
struct Picked : Selection, Pieces {
  uint64_t addr = 0;
  [[nodiscard]] bool one_element() const noexcept { return dims == 0 && !whole; }
};

// HOT. The target of t[i]; false: out of bounds. Requires p.rows.
inline bool pick_row(const Place& p, int64_t i, Picked* s) noexcept {
  assert(p.rows && "each t[i] is one piece");
  uint64_t offset = 0;
  if (!row_of(p.layout(), i, &offset)) return false;
  s->whole = false;
  s->addr = p.base + offset;
  s->block = static_cast<uint64_t>(p.row);
  s->count = 1;
  s->step = 0;
  s->dims = static_cast<int>(p.dims) - 1;
  for (int d = 0; d < s->dims; ++d) s->shape[d] = p.shape[d + 1];
  return true;
}
// These return false for accesses that take more than pieces with one step. HOT. The pieces of a selection; Selection
// is filled in.
inline bool pick_selected(const Place& p, Picked* s) noexcept {
  s->addr = p.base + s->offset;
  const auto dims = static_cast<size_t>(s->dims);
  return fold({{s->shape, dims}, {s->strides, dims}}, p.type.bytes, s);
}
inline bool pick(const Place& p, std::span<const Index> index, Picked* s) noexcept {
  return !select(p.layout(), index, s) && pick_selected(p, s);
}
// t[...].
bool pick_all(const Place& p, Picked* s) noexcept;
// The rows that these indices select along the first dimension, as an array of `dims` dimensions, and their shape.
bool pick_rows(const Place& p, std::span<const int64_t> indices, std::span<const int64_t> dims, nic::Rows* rows,
               Picked* s) noexcept;

// ---- accesses; false: not everything was copied -------------------------------------------------------------------

inline bool move_rows(nic::OpKind kind, const Place& p, const nic::Rows& rows) noexcept {
  return p.ep->move_rows_now(kind, rows, p.peer, p.key) == rows.count;
}
// HOT.
inline bool move_piece(nic::OpKind kind, const Place& p, uint64_t addr, std::byte* local, uint64_t bytes) noexcept {
  return p.ep->move_now(kind, local, bytes, p.peer, addr, p.key);
}
// The pieces as rows of local memory in one piece.
inline nic::Rows rows_of(const Picked& s, std::byte* local) noexcept {
  nic::Rows rows;
  rows.local = local;
  rows.bytes = rows.local_step = s.block;
  rows.count = s.count;
  rows.addr = s.addr;
  rows.step = s.step;
  return rows;
}
// HOT. A selection from or to local memory in one piece.
inline bool move(nic::OpKind kind, const Place& p, const Picked& s, std::byte* local) noexcept {
  if (s.count == 1) [[likely]]
    return move_piece(kind, p, s.addr, local, s.block);
  return move_rows(kind, p, rows_of(s, local));
}
// Atomics of the place's datatype.
inline nic::Updated update(const Place& p, nic::Update u, uint64_t addr) noexcept {
  u.datatype = p.type.datatype;
  return p.ep->update_now(u, p.peer, addr, p.key);
}
inline nic::Updated update_rows(const Place& p, nic::AtomicOp op, const nic::Rows& rows) noexcept {
  return p.ep->update_rows_now({.op = op, .datatype = p.type.datatype}, rows, p.peer, p.key);
}
// Writes one element's bytes to all elements of a selection, or of the rows that were chosen (null: none were).
bool spread(const Place& p, const Picked& s, const nic::Rows* chosen, const std::byte* element) noexcept;

}  // namespace weft::array
