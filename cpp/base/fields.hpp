// cpp/base/fields.hpp: settings described once: a line of a struct declares a field and describes it.
//
//     struct PidRange {
//       WEFT_TABLE(12, PidRange, "The range from which the NIC chooses an endpoint's number.");
//       WEFT_FIELD(1, first, uint32_t, 0x40000000u, none, "The smallest number.");
//     };
//
// The struct stays an aggregate, and the member an ordinary member. The Python type and its stub (bind/tables.cpp), the
// decision record (record.hpp), the JSON of a snapshot and the reference page are made from the lines. Arguments: the
// tag, the member, its type, its default, its unit, its text. A tag is the field's number in records: a tag is never
// given to another field, and the default of a field stays what the conduct was before the field existed.
// WEFT_FIELD_IN has the smallest and the largest value before the text. Members without such a line are no settings.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft {

// ---- enumerations ---------------------------------------------------------------------------------------------------

struct Choice {
  const char* name;
  int64_t value;
  const char* text;
};
struct ChoiceTable {
  const char* name;
  const char* text;
  std::span<const Choice> choices;
};

constexpr const char* name_of(const ChoiceTable& table, uint64_t value) noexcept {
  for (const Choice& one : table.choices)
    if (one.value == static_cast<int64_t>(value)) return one.name;
  return "?";
}

// An enumeration of a list macro: LIST(X) has a line X(name, number, text) for each value, and may have more columns
// (X(name, number, text, ...)). Defines the enumeration and choices_of().
#define WEFT_ENUMERATOR(name, number, ...) name = (number),
#define WEFT_CHOICE_TEXT(text, ...) text
#define WEFT_CHOICE(name, number, ...) ::weft::Choice{#name, number, WEFT_CHOICE_TEXT(__VA_ARGS__, )},
#define WEFT_ENUM(self, base, LIST, text)                                             \
  enum class self : base { LIST(WEFT_ENUMERATOR) };                                   \
  inline constexpr ::weft::Choice k##self##Choices[] = {LIST(WEFT_CHOICE)};           \
  inline constexpr ::weft::ChoiceTable k##self##Table{#self, text, k##self##Choices}; \
  constexpr const ::weft::ChoiceTable& choices_of(self) noexcept {                    \
    return k##self##Table;                                                            \
  }                                                                                   \
  constexpr const char* name_of(self value) noexcept {                                \
    return name_of(k##self##Table, static_cast<uint64_t>(value));                     \
  }                                                                                   \
  static_assert(sizeof(self) <= sizeof(int64_t))

// ---- fields ---------------------------------------------------------------------------------------------------------

enum class Unit : uint8_t { none, bytes, bits, nanoseconds, flags, code, key };
constexpr const char* unit_name(Unit unit) noexcept {
  constexpr const char* kNames[] = {"", "bytes", "bits", "ns", "flags", "error code", "key"};
  return kNames[static_cast<size_t>(unit)];
}

// labels: numbers with names, such as a provider's own flags.
enum class FieldKind : uint8_t { boolean = 1, number, integer, choice, text, labels, table };
using Labels = std::shared_ptr<const std::vector<std::pair<uint64_t, std::string>>>;

struct TableInfo;

struct FieldInfo {
  uint16_t tag = 0;
  FieldKind kind = FieldKind::number;
  Unit unit = Unit::none;
  uint8_t size = 0;     // bytes of a number; of an array: of each element
  uint32_t offset = 0;  // of the member in its struct
  uint32_t count = 0;   // elements of an array; 0: one value
  const char* name = "";
  const char* text = "";
  uint64_t least = 0, most = 0;           // kind number
  const ChoiceTable* choices = nullptr;   // kind choice
  const TableInfo& (*table)() = nullptr;  // kind table
};

struct TableInfo {
  uint16_t id;  // of its records; never given to another table
  const char* name;
  const char* text;
  size_t size;
  std::span<const FieldInfo> fields;
  void (*defaults)(void* context, void (*call)(void* context, const void* defaults));
  void (*assign)(void* to, const void* from);
  void (*settle)(void* object) noexcept;  // reduces a record's value to what the NIC can do

  [[nodiscard]] const FieldInfo* find(std::string_view name) const noexcept;
  [[nodiscard]] const FieldInfo* find(uint16_t tag) const noexcept;
};

// A number, truth value or choice of an object; `at`: of an array. Integers are extended with their sign.
uint64_t value_of(const FieldInfo& field, const void* object, size_t at = 0) noexcept;
// False: the field does not take the value, and is unchanged.
bool set_value(const FieldInfo& field, void* object, uint64_t value, size_t at = 0) noexcept;
bool equal(const FieldInfo& field, const void* a, const void* b) noexcept;
bool equal(const TableInfo& table, const void* a, const void* b) noexcept;
// Calls with an object at the defaults. No such object is kept: an object that is made at its first use has a lock,
// which a child of a fork would inherit.
template <typename Call>
void with_defaults(const TableInfo& table, Call&& call) {
  table.defaults(
      &call, [](void* context, const void* made) { (*static_cast<std::remove_reference_t<Call>*>(context))(made); });
}
// The values of a choice, for texts: "a, b or c".
std::string names_of(const ChoiceTable& choices);

// The member of an object that a field describes, if it is no number; `at`: of an array.
template <typename T>
T* member(const FieldInfo& field, void* object) noexcept {
  return reinterpret_cast<T*>(static_cast<std::byte*>(object) + field.offset);
}
template <typename T>
const T* member(const FieldInfo& field, const void* object) noexcept {
  return reinterpret_cast<const T*>(static_cast<const std::byte*>(object) + field.offset);
}
inline void* nested(const FieldInfo& field, void* object, size_t at = 0) noexcept {
  return member<std::byte>(field, object) + at * field.table().size;
}
inline const void* nested(const FieldInfo& field, const void* object, size_t at = 0) noexcept {
  return member<std::byte>(field, object) + at * field.table().size;
}

// ---- how the lines become a table -----------------------------------------------------------------------------------

template <uint16_t N>
struct FieldTag {};
constexpr uint16_t kFieldTagMax = 64;

struct TableName {
  uint16_t id;
  const char* name;
  const char* text;
};

template <typename T>
const TableInfo& table_of();

template <typename T>
struct FieldElement {
  using Type = T;
  static constexpr uint32_t kCount = 0;
};
template <typename T, size_t N>
struct FieldElement<std::array<T, N>> {
  using Type = typename FieldElement<T>::Type;
  static constexpr uint32_t kCount = N * (FieldElement<T>::kCount == 0 ? 1 : FieldElement<T>::kCount);
};

template <typename T>
constexpr FieldInfo describe(uint16_t tag, const char* name, size_t offset, Unit unit, const char* text,
                             uint64_t least = 0, uint64_t most = ~uint64_t{0}) noexcept {
  using E = typename FieldElement<T>::Type;
  FieldInfo f;
  f.tag = tag;
  f.name = name;
  f.offset = static_cast<uint32_t>(offset);
  f.unit = unit;
  f.text = text;
  f.count = FieldElement<T>::kCount;
  f.size = sizeof(E) <= 8 ? sizeof(E) : 0;
  if constexpr (std::is_same_v<E, bool>) {
    f.kind = FieldKind::boolean;
  } else if constexpr (std::is_enum_v<E>) {
    f.kind = FieldKind::choice;
    f.choices = &choices_of(E{});
  } else if constexpr (std::is_integral_v<E>) {
    f.kind = std::is_signed_v<E> ? FieldKind::integer : FieldKind::number;
    f.least = least;
    f.most = most < std::numeric_limits<E>::max() ? most : static_cast<uint64_t>(std::numeric_limits<E>::max());
  } else if constexpr (std::is_same_v<E, std::string>) {
    f.kind = FieldKind::text;
  } else if constexpr (std::is_same_v<E, Labels>) {
    f.kind = FieldKind::labels;
  } else {
    f.kind = FieldKind::table;
    f.table = &table_of<E>;
  }
  return f;
}

template <typename T>
concept Settles = requires(T& t) { t.settle(); };

template <typename T, size_t... I>
consteval auto fields_of(std::index_sequence<I...>) {
  constexpr size_t kCount = (0 + ... + (requires { T::weft_field(FieldTag<I + 1>{}); } ? 1 : 0));
  std::array<FieldInfo, kCount> all;
  size_t n = 0;
  (
      [&] {
        if constexpr (requires { T::weft_field(FieldTag<I + 1>{}); }) all[n++] = T::weft_field(FieldTag<I + 1>{});
      }(),
      ...);
  return all;
}

template <typename T>
const TableInfo& table_of() {
  static_assert(std::is_standard_layout_v<T>, "a table's members lie at fixed offsets");
  static constexpr auto kFields = fields_of<T>(std::make_index_sequence<kFieldTagMax>());
  static constexpr TableInfo kTable{
      T::weft_table.id,
      T::weft_table.name,
      T::weft_table.text,
      sizeof(T),
      kFields,
      [](void* context, void (*call)(void*, const void*)) {
        T made{};
        call(context, &made);
      },
      [](void* to, const void* from) { *static_cast<T*>(to) = *static_cast<const T*>(from); },
      [](void* object) noexcept {
        if constexpr (Settles<T>) static_cast<T*>(object)->settle();
      },
  };
  return kTable;
}

#define WEFT_TABLE(id, self, text)                \
  using Self = self;                              \
  static constexpr ::weft::TableName weft_table { \
    id, #self, text                               \
  }

// A template, so that units that only use the struct do not instantiate the description.
#define WEFT_FIELD(tag, member, type, value, unit, text) \
  WEFT_FIELD_IN(tag, member, type, value, unit, 0, ~uint64_t{0}, text)
#define WEFT_FIELD_IN(tag, member, type, value, unit, least, most, text)                                        \
  template <typename = void>                                                                                    \
  static constexpr ::weft::FieldInfo weft_field(::weft::FieldTag<tag>) noexcept {                               \
    return ::weft::describe<type>(tag, #member, offsetof(Self, member), ::weft::Unit::unit, text, least, most); \
  }                                                                                                             \
  type member = value

}  // namespace weft
