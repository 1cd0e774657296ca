// cpp/bind/tables.cpp: the values of tables from and to Python.
#include "bind/tables.hpp"

#include <deque>
#include <map>

#include "bind/objects.hpp"
#include "nic/config.hpp"
#include "sync/object.hpp"

namespace weft::bind {

namespace {

// Filled once, when the module is imported; the types live until the process ends.
std::map<const void*, PyObject*>& types() {
  static std::map<const void*, PyObject*> all;
  return all;
}

PyObject* type_of(const void* described) {
  return types().at(described);
}

const char* kept(std::string text) {
  static std::deque<std::string> all;
  return all.emplace_back(std::move(text)).c_str();
}

const TableInfo& table_at(nb::handle self) {
  for (const auto& [described, type] : types()) {
    if (type == reinterpret_cast<PyObject*>(Py_TYPE(self.ptr()))) return *static_cast<const TableInfo*>(described);
  }
  throw nb::type_error("not a table of settings");
}

void* object_of(nb::handle self, const TableInfo& table, const char* name) {
  if (Py_TYPE(self.ptr()) == reinterpret_cast<PyTypeObject*>(type_of(&table)) && nb::inst_ready(self))
    return nb::inst_ptr<void>(self);
  throw nb::type_error(kept(std::string(table.name) + "." + name + ": the object is no " + table.name));
}

std::string type_text(const FieldInfo& field, bool taken) {
  switch (field.kind) {
    case FieldKind::boolean:
      return "bool";
    case FieldKind::text:
      return "str";
    case FieldKind::choice:
      return field.choices->name;
    case FieldKind::table:
      if (field.count == 0) return field.table().name;
      return taken ? std::string("Sequence[") + field.table().name + " | tuple[int, ...]]"
                   : std::string("tuple[") + field.table().name + ", ...]";
    default:
      return "int";
  }
}

std::string number_text(const FieldInfo& field, uint64_t value) {
  if (field.kind == FieldKind::integer) return std::to_string(static_cast<int64_t>(value));
  if (value < (uint64_t{1} << 32) - 2) return std::to_string(value);
  char hex[24];
  std::snprintf(hex, sizeof(hex), "0x%llx", static_cast<unsigned long long>(value));
  return hex;
}

std::string choice_name(const FieldInfo& field, uint64_t value) {
  return std::string(field.choices->name) + "." + name_of(*field.choices, value);
}

std::string value_text(const FieldInfo& field, const void* object);

std::string object_text(const TableInfo& table, const void* object) {
  std::string text;
  with_defaults(table, [&](const void* defaults) {
    for (const FieldInfo& field : table.fields) {
      if (equal(field, object, defaults)) continue;
      text += std::string(text.empty() ? "" : ", ") + field.name + "=" + value_text(field, object);
    }
  });
  return std::string(table.name) + "(" + text + ")";
}

std::string value_text(const FieldInfo& field, const void* object) {
  if (field.kind == FieldKind::table) {
    return field.count == 0 ? object_text(field.table(), nested(field, object)) : std::string("...");
  }
  if (field.kind == FieldKind::labels || field.count != 0) return "...";
  if (field.kind == FieldKind::text)
    return nb::cast<std::string>(nb::repr(nb::cast(*member<std::string>(field, object))));
  const uint64_t value = value_of(field, object);
  if (field.kind == FieldKind::boolean) return value != 0 ? "True" : "False";
  return field.kind == FieldKind::choice ? choice_name(field, value) : number_text(field, value);
}

[[noreturn]] void refuse_type(const TableInfo& table, const FieldInfo& field, nb::handle value) {
  std::string wanted = field.kind == FieldKind::boolean ? "True or False"
                       : field.kind == FieldKind::text  ? "a text"
                       : field.kind == FieldKind::table || field.kind == FieldKind::choice
                           ? "of type " + type_text(field, true)
                           : "a number";
  if (field.kind == FieldKind::choice) wanted += ": " + names_of(*field.choices);
  PyErr_Format(PyExc_TypeError, "%s.%s is %s, not %R", table.name, field.name, wanted.c_str(), value.ptr());
  throw nb::python_error();
}

[[noreturn]] void refuse_value(const TableInfo& table, const FieldInfo& field, nb::handle value) {
  const std::string range =
      field.kind == FieldKind::integer
          ? std::to_string(-static_cast<int64_t>(field.most) - 1) + " to " + std::to_string(field.most)
          : number_text(field, field.least) + " to " + number_text(field, field.most);
  raise(fi_err::kEINVAL, table.name, ".", field.name, " is ", range, ", not ", nb::cast<std::string>(nb::str(value)));
}

void set_number(const TableInfo& table, const FieldInfo& field, void* object, nb::handle value) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    refuse_type(table, field, value);
  }
  uint64_t number;
  if (field.kind == FieldKind::integer) {
    number = static_cast<uint64_t>(PyLong_AsLongLong(index.ptr()));
  } else {
    number = PyLong_AsUnsignedLongLong(index.ptr());
  }
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    refuse_value(table, field, value);
  }
  if (!set_value(field, object, number)) refuse_value(table, field, value);
}

void set_table(const TableInfo& table, const FieldInfo& field, void* to, nb::handle value) {
  const TableInfo& inner = field.table();
  if (Py_TYPE(value.ptr()) == reinterpret_cast<PyTypeObject*>(type_of(&inner)) && nb::inst_ready(value)) {
    inner.assign(to, nb::inst_ptr<void>(value));
    return;
  }
  // Of an array: the fields in their order.
  if (field.count == 0 || !PyTuple_Check(value.ptr()) ||
      static_cast<size_t>(PyTuple_GET_SIZE(value.ptr())) != inner.fields.size()) {
    refuse_type(table, field, value);
  }
  for (size_t i = 0; i < inner.fields.size(); ++i)
    set_number(inner, inner.fields[i], to, PyTuple_GET_ITEM(value.ptr(), static_cast<Py_ssize_t>(i)));
}

void set_field(const TableInfo& table, const FieldInfo& field, void* object, nb::handle value) {
  switch (field.kind) {
    case FieldKind::boolean:
      if (!PyBool_Check(value.ptr())) refuse_type(table, field, value);
      set_value(field, object, value.is(Py_True) ? 1 : 0);
      return;
    case FieldKind::text:
      if (!PyUnicode_Check(value.ptr())) refuse_type(table, field, value);
      *member<std::string>(field, object) = nb::cast<std::string>(value);
      return;
    case FieldKind::choice:
      if (reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())) != type_of(field.choices)) refuse_type(table, field, value);
      set_value(field, object, nb::cast<uint64_t>(value.attr("value")));
      return;
    case FieldKind::table: {
      if (field.count == 0) {
        set_table(table, field, nested(field, object), value);
        return;
      }
      const nb::object all = nb::steal(PySequence_Fast(value.ptr(), "a sequence"));
      if (!all.is_valid()) {
        PyErr_Clear();
        refuse_type(table, field, value);
      }
      const Py_ssize_t count = PySequence_Fast_GET_SIZE(all.ptr());
      if (count != static_cast<Py_ssize_t>(field.count)) {
        raise(fi_err::kEINVAL, table.name, ".", field.name, " has ", field.count, " elements, not ", count);
      }
      for (Py_ssize_t i = 0; i < count; ++i)
        set_table(table, field, nested(field, object, static_cast<size_t>(i)), PySequence_Fast_GET_ITEM(all.ptr(), i));
      return;
    }
    default:
      set_number(table, field, object, value);
  }
}

}  // namespace

void know_type(const TableInfo& table, nb::handle type) {
  types()[&table] = type.ptr();
}

void know_type(const ChoiceTable& choices, nb::handle type) {
  types()[&choices] = type.ptr();
}

bool has_property(const FieldInfo& field) noexcept {
  return field.kind == FieldKind::table || (field.count == 0 && field.kind != FieldKind::labels);
}

const char* init_signature(const TableInfo& table) {
  std::string text = "def __init__(self, *";
  with_defaults(table, [&](const void* defaults) {
    for (const FieldInfo& field : table.fields) {
      if (!has_property(field)) continue;
      const bool plain = field.kind != FieldKind::table && field.kind != FieldKind::choice;
      text += std::string(", ") + field.name + ": " + type_text(field, true) + " = " +
              (plain ? value_text(field, defaults) : std::string("..."));
    }
  });
  return kept(text + ") -> None");
}

const char* replace_signature(const TableInfo& table) {
  return kept(std::string("def replace(self, **changes: Any) -> ") + table.name);
}

const char* from_record_signature(const TableInfo& table) {
  return kept(std::string("def from_record(record: bytes) -> ") + table.name);
}

const char* get_signature(const FieldInfo& field) {
  return kept(std::string("def ") + field.name + "(self) -> " + type_text(field, false));
}

const char* set_signature(const FieldInfo& field) {
  return kept(std::string("def ") + field.name + "(self, value: " + type_text(field, true) + ", /) -> None");
}

void fill(const TableInfo& table, void* object, nb::handle given) {
  PyObject *key, *value;
  Py_ssize_t at = 0;
  while (PyDict_Next(given.ptr(), &at, &key, &value) != 0) {
    const std::string name = nb::cast<std::string>(nb::handle(key));
    const FieldInfo* field = table.find(std::string_view(name));
    if (field == nullptr || !has_property(*field)) {
      std::string known;
      for (const FieldInfo& one : table.fields) {
        if (has_property(one)) known += std::string(known.empty() ? "" : ", ") + one.name;
      }
      PyErr_Format(PyExc_TypeError, "%s has no field '%s'; there are %s", table.name, name.c_str(), known.c_str());
      throw nb::python_error();
    }
    set_field(table, *field, object, value);
  }
}

nb::object GetField::operator()(nb::handle self) const {
  void* object = object_of(self, *table, field->name);
  switch (field->kind) {
    case FieldKind::boolean:
      return nb::bool_(value_of(*field, object) != 0);
    case FieldKind::text:
      return nb::cast(*member<std::string>(*field, object));
    case FieldKind::choice:
      return nb::handle(type_of(field->choices))(value_of(*field, object));
    case FieldKind::table: {
      const nb::handle type = type_of(&field->table());
      if (field->count == 0) return nb::inst_reference(type, nested(*field, object), self);
      nb::list all;
      for (size_t i = 0; i < field->count; ++i) all.append(nb::inst_reference(type, nested(*field, object, i), self));
      return nb::tuple(all);
    }
    case FieldKind::integer:
      return nb::int_(static_cast<int64_t>(value_of(*field, object)));
    default:
      return nb::int_(value_of(*field, object));
  }
}

void SetField::operator()(nb::handle self, nb::handle value) const {
  set_field(*table, *field, object_of(self, *table, field->name), value);
}

nb::object replaced(nb::handle self, const nb::kwargs& changes) {
  const TableInfo& table = table_at(self);
  nb::object made = nb::inst_alloc(self.type());
  nb::inst_copy(made, self);
  fill(table, nb::inst_ptr<void>(made), changes);
  return made;
}

nb::str table_text(nb::handle self) {
  return nb::str(object_text(table_at(self), nb::inst_ptr<void>(self)).c_str());
}

bool table_equals(nb::handle self, nb::handle other) {
  return Py_TYPE(self.ptr()) == Py_TYPE(other.ptr()) && nb::inst_ready(other) &&
         equal(table_at(self), nb::inst_ptr<void>(self), nb::inst_ptr<void>(other));
}

nb::bytes table_record(nb::handle self) {
  const std::vector<std::byte> record = write_record(table_at(self), nb::inst_ptr<void>(self));
  return nb::bytes(record.data(), record.size());
}

namespace {

const char* kind_text(const FieldInfo& field) {
  if (field.kind == FieldKind::table) return field.table().name;
  if (field.kind == FieldKind::choice) return field.choices->name;
  if (field.kind == FieldKind::labels) return "names of numbers";
  if (field.kind == FieldKind::text) return "text";
  return field.kind == FieldKind::boolean ? "bool" : "number";
}

// (name, text, [(tag, field, type, unit, default, text)]) of each table, for the reference page.
nb::list described_tables() {
  nb::list all;
  for (const auto& [described, type] : types()) {
    if (!nb::type_check(type)) continue;  // an enumeration
    const auto& table = *static_cast<const TableInfo*>(described);
    nb::list fields;
    with_defaults(table, [&](const void* defaults) {
      for (const FieldInfo& field : table.fields) {
        std::string kind = kind_text(field);
        if (field.count != 0) kind.append(1, '[').append(std::to_string(field.count)).append(1, ']');
        const bool shown = field.count == 0 && field.kind != FieldKind::table && field.kind != FieldKind::labels;
        fields.append(nb::make_tuple(field.tag, field.name, kind, unit_name(field.unit),
                                     shown ? value_text(field, defaults) : std::string("..."), field.text));
      }
    });
    all.append(nb::make_tuple(table.name, table.text, fields));
  }
  return all;
}

// (name, text, [(value, number, text)]) of each enumeration.
nb::list described_choices() {
  nb::list all;
  for (const auto& [described, type] : types()) {
    if (nb::type_check(type)) continue;
    const auto& table = *static_cast<const ChoiceTable*>(described);
    nb::list values;
    for (const Choice& one : table.choices) values.append(nb::make_tuple(one.name, one.value, one.text));
    all.append(nb::make_tuple(nb::str(nb::handle(type).attr("__name__")), table.text, values));
  }
  return all;
}

}  // namespace

void register_tables(Module& m) {
  m.about("The tables of settings: (name, text, [(tag, field, type, unit, default, text)]).")
      .def<"tables() -> list[tuple[str, str, list[tuple[int, str, str, str, str, str]]]]">(described_tables)
      .about("The enumerations of settings: (name, text, [(value, number, text)]).")
      .def<"choices() -> list[tuple[str, str, list[tuple[str, int, str]]]]">(described_choices);
  register_choices<Status>(m, nb::is_arithmetic());
  m.about("The FI_ code of a status according to the man pages.").def<"status_errno(status)">([](Status status) {
    return fi_errno(status);
  });
  register_choices<nic::MatchMode>(m);
  register_choices<nic::WriteBack>(m);
  register_choices<nic::LowLatencyRing>(m);
  register_choices<nic::TargetOrder>(m);
  register_choices_as<sync::Kind>(m, "SyncKind", nb::is_arithmetic());
  register_choices_as<sync::Op>(m, "SyncOp", nb::is_arithmetic());
  register_choices_as<sync::Outcome>(m, "SyncOutcome", nb::is_arithmetic());
  register_table<StatusCode>(m);
  register_table<StatusMap>(m);
  register_table<nic::AddressText>(m);
  register_table<nic::RegionRules>(m);
  register_table<nic::WorkRules>(m);
  register_table<nic::DomainConfig>(m);
  register_table<nic::RxBufferConfig>(m);
  register_table<nic::TrafficRules>(m);
  register_table<nic::ReorderConfig>(m);
  register_table<nic::PidRange>(m);
  register_table<nic::CommandQueueConfig>(m);
  register_table<nic::QueueConfig>(m);
  register_table<nic::CounterConfig>(m);
  register_table<nic::EndpointConfig>(m);
}

}  // namespace weft::bind
