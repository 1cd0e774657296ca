// cpp/array/place.cpp: see place.hpp.
#include "array/place.hpp"

#include <cassert>
#include <cstring>

namespace weft::array {

bool pick_all(const Place& p, Picked* s) noexcept {
  static constexpr Index kAll[] = {{.kind = Index::Kind::ellipsis}};
  return pick(p, kAll, s);
}

bool pick_rows(const Place& p, std::span<const int64_t> indices, std::span<const int64_t> dims, nic::Rows* rows,
               Picked* s) noexcept {
  if (!p.rows || p.shape[0] == 0 || p.row == 0) return false;
  const size_t all = dims.size() + p.dims - 1;
  if (all > kDimsMax || all == 0 || indices.empty() || !are_within(indices, p.shape[0])) return false;
  s->whole = false;
  s->dims = static_cast<int>(all);
  std::copy_n(p.shape + 1, p.dims - 1, std::copy(dims.begin(), dims.end(), s->shape));
  s->addr = p.base;
  s->block = static_cast<uint64_t>(p.row);
  s->count = indices.size();
  s->step = p.strides[0];
  *rows = rows_of(*s, nullptr);
  rows->index = indices.data();
  rows->limit = static_cast<uint64_t>(p.shape[0]);
  return true;
}

bool spread(const Place& p, const Picked& s, const nic::Rows* chosen, const std::byte* element) noexcept {
  constexpr size_t kRoomBytes = 4096;
  const auto item = static_cast<size_t>(p.type.bytes);
  assert(item != 0 && item <= kRoomBytes && s.block % item == 0 && "a piece is of whole elements");
  alignas(16) std::byte room[kRoomBytes];
  const size_t whole = std::min<uint64_t>(kRoomBytes / item * item, s.block);
  for (size_t at = 0; at < whole; at += item) std::memcpy(room + at, element, item);
  nic::Rows rows = chosen != nullptr ? *chosen : rows_of(s, room);
  rows.local = room;
  rows.local_step = 0;
  if (s.block <= whole) return move_rows(nic::OpKind::write, p, rows);
  if (s.count != 1 || chosen != nullptr) return false;  // long pieces apart: by NumPy's broadcasting
  rows.bytes = whole;
  rows.count = s.block / whole;
  rows.addr = s.addr;
  rows.step = static_cast<int64_t>(whole);
  const uint64_t rest = s.block % whole;
  if (rest != 0 && !move_piece(nic::OpKind::write, p, s.addr + s.block - rest, room, rest)) return false;
  return move_rows(nic::OpKind::write, p, rows);
}

}  // namespace weft::array
