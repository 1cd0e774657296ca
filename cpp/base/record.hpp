// cpp/base/record.hpp: settings as bytes, for another process or a file: the answer of a provider's policy.
//
// Head, 16 bytes: "WFTR", format (u16), the table's id (u16), bytes of the body (u32), their checksum (u32, FNV-1a).
// Body: fields one behind the other, each: tag (u16), kind (u8), mark (u8), bytes of the value (u32), value. Numbers
// are little-endian; numbers, truth values and choices have 8 bytes, arrays of them 8 for each element; a table is a
// body; an array of tables has the bytes (u32) before each; labels are a number, the bytes of the name (u32) and the
// name each.
//
// The two sides may be of different versions. A writer writes every field that it has, and marks those that are not at
// their default. A reader
//   keeps its default of a field that the record lacks: the default is the conduct before the field existed;
//   skips a field that it does not know, unless the field is marked: then it refuses the record;
//   takes the elements of an array that the record has. Any other record is refused with a text: another table, a
// format of the future, bytes that are missing, left over or changed, a value that its field does not take. Values that
// were read have passed the checks that values from Python pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/fields.hpp"

namespace weft {

constexpr uint16_t kRecordFormat = 1;
constexpr size_t kRecordHeadBytes = 16;
constexpr size_t kRecordBytesMax = size_t{1} << 20;

std::vector<std::byte> write_record(const TableInfo& table, const void* object);
// Throws Error: EPROTO (damaged), EOPNOTSUPP (made by a newer version, which has settings that are not known here),
// EINVAL (a record of another table). The object, which begins at the defaults, is then partly written.
void read_record(std::span<const std::byte> bytes, const TableInfo& table, void* object);
// The head of a record with this body.
void seal_record(std::vector<std::byte>* record, uint16_t table) noexcept;

template <typename T>
std::vector<std::byte> record_of(const T& object) {
  return write_record(table_of<T>(), &object);
}
template <typename T>
T from_record(std::span<const std::byte> bytes) {
  T object{};
  read_record(bytes, table_of<T>(), &object);
  return object;
}

}  // namespace weft
