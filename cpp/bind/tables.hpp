// cpp/bind/tables.hpp: tables of settings and enumerations (base/fields.hpp) as Python types.
#pragma once

#include "base/fields.hpp"
#include "base/record.hpp"
#include "bind/common.hpp"

namespace weft::bind {

// ---- what the templates below share ---------------------------------------------------------------------------------

// Remembers the Python type of a table or an enumeration.
void know_type(const TableInfo& table, nb::handle type);
void know_type(const ChoiceTable& choices, nb::handle type);
// The texts for nanobind, kept until the process ends.
const char* init_signature(const TableInfo& table);
const char* replace_signature(const TableInfo& table);
const char* from_record_signature(const TableInfo& table);
const char* get_signature(const FieldInfo& field);
const char* set_signature(const FieldInfo& field);
// Arrays of numbers and labels have calls of their own instead of a property.
bool has_property(const FieldInfo& field) noexcept;
// Sets the fields that the keywords name. Raises TypeError for an unknown name or a value of another type,
// InvalidArgument for a value out of its range.
void fill(const TableInfo& table, void* object, nb::handle given);

struct GetField {
  const TableInfo* table;
  const FieldInfo* field;
  nb::object operator()(nb::handle self) const;
};
struct SetField {
  const TableInfo* table;
  const FieldInfo* field;
  void operator()(nb::handle self, nb::handle value) const;
};
// Of a table: a copy with other values, the text, the comparison, and the record.
nb::object replaced(nb::handle self, const nb::kwargs& changes);
nb::str table_text(nb::handle self);
bool table_equals(nb::handle self, nb::handle other);
nb::bytes table_record(nb::handle self);

// ---- types ----------------------------------------------------------------------------------------------------------

template <typename E, typename... Extra>
void register_choices_as(Module& m, const char* name, const Extra&... extra) {
  const ChoiceTable& table = choices_of(E{});
  nb::enum_<E> type(m, name, table.text, extra...);
  for (const Choice& one : table.choices) type.value(one.name, static_cast<E>(one.value), one.text);
  know_type(table, type);
}
template <typename E, typename... Extra>
void register_choices(Module& m, const Extra&... extra) {
  register_choices_as<E>(m, choices_of(E{}).name, extra...);
}

template <typename T>
Class<T> register_table(Module& m) {
  const TableInfo& table = table_of<T>();
  Class<T> type(m, table.name, table.text);
  know_type(table, type);
  type.def(
      "__init__",
      [](T* self, const nb::kwargs& given) {
        T made{};
        fill(table_of<T>(), &made, given);
        new (self) T(std::move(made));
      },
      nb::sig(init_signature(table)));
  for (const FieldInfo& field : table.fields) {
    if (!has_property(field)) continue;
    type.def_prop_rw(field.name, GetField{&table, &field}, SetField{&table, &field},
                     nb::for_getter(nb::sig(get_signature(field))), nb::for_setter(nb::sig(set_signature(field))),
                     nb::for_setter(nb::arg("value").none()), field.text);
  }
  type.def("replace", replaced, nb::sig(replace_signature(table)), "A copy with other values.")
      .def("to_record", table_record, nb::sig("def to_record(self) -> bytes"),
           "The settings as bytes, for another process (cpp/base/record.hpp).")
      .def_static(
          "from_record",
          [](const nb::bytes& record) {
            const std::span bytes(reinterpret_cast<const std::byte*>(record.c_str()), record.size());
            return from_record<T>(bytes);
          },
          nb::arg("record"), nb::sig(from_record_signature(table)),
          "The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer\n"
          "version of Weft, or are a record of another table.")
      .def("__repr__", table_text)
      .def("__eq__", table_equals, nb::sig("def __eq__(self, other: object, /) -> bool"));
  return type;
}

}  // namespace weft::bind
