// cpp/base/fields.cpp: the values of fields, whatever their struct.
#include "base/fields.hpp"

#include <algorithm>
#include <cstring>

namespace weft {

const FieldInfo* TableInfo::find(std::string_view wanted) const noexcept {
  const auto found = std::ranges::find(fields, wanted, [](const FieldInfo& f) { return std::string_view(f.name); });
  return found == fields.end() ? nullptr : &*found;
}

const FieldInfo* TableInfo::find(uint16_t tag) const noexcept {
  const auto found = std::ranges::find(fields, tag, &FieldInfo::tag);
  return found == fields.end() ? nullptr : &*found;
}

uint64_t value_of(const FieldInfo& field, const void* object, size_t at) noexcept {
  uint64_t value = 0;
  std::memcpy(&value, member<std::byte>(field, object) + at * field.size, field.size);  // little-endian machines
  if (field.kind == FieldKind::integer && field.size < 8 && (value >> (8 * field.size - 1) & 1) != 0)
    value |= ~uint64_t{0} << (8 * field.size);
  return value;
}

bool set_value(const FieldInfo& field, void* object, uint64_t value, size_t at) noexcept {
  switch (field.kind) {
    case FieldKind::boolean:
      if (value > 1) return false;
      break;
    case FieldKind::number:
      if (value < field.least || value > field.most) return false;
      break;
    case FieldKind::integer: {
      const auto asked = static_cast<int64_t>(value);
      const auto most = static_cast<int64_t>(field.most);
      if (asked > most || asked < -most - 1) return false;
      break;
    }
    case FieldKind::choice:
      if (std::ranges::find(field.choices->choices, static_cast<int64_t>(value), &Choice::value) ==
          field.choices->choices.end()) {
        return false;
      }
      break;
    default:
      return false;
  }
  std::memcpy(member<std::byte>(field, object) + at * field.size, &value, field.size);
  return true;
}

bool equal(const FieldInfo& field, const void* a, const void* b) noexcept {
  const size_t count = std::max<size_t>(field.count, 1);
  switch (field.kind) {
    case FieldKind::text:
      return *member<std::string>(field, a) == *member<std::string>(field, b);
    case FieldKind::labels: {
      const Labels &x = *member<Labels>(field, a), &y = *member<Labels>(field, b);
      const bool none_x = x == nullptr || x->empty(), none_y = y == nullptr || y->empty();
      return none_x || none_y ? none_x == none_y : *x == *y;
    }
    case FieldKind::table:
      for (size_t i = 0; i < count; ++i) {
        if (!equal(field.table(), nested(field, a, i), nested(field, b, i))) return false;
      }
      return true;
    default:
      return std::memcmp(member<std::byte>(field, a), member<std::byte>(field, b), count * field.size) == 0;
  }
}

bool equal(const TableInfo& table, const void* a, const void* b) noexcept {
  return std::ranges::all_of(table.fields, [&](const FieldInfo& f) { return equal(f, a, b); });
}

std::string names_of(const ChoiceTable& choices) {
  std::string text;
  for (size_t i = 0; i < choices.choices.size(); ++i) {
    if (i != 0) text += i + 1 == choices.choices.size() ? " or " : ", ";
    text += choices.choices[i].name;
  }
  return text;
}

}  // namespace weft
