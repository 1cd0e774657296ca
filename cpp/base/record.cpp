// cpp/base/record.cpp: writes and reads records.
#include "base/record.hpp"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <string>

#include "base/status.hpp"

namespace weft {

namespace {

constexpr char kMagic[4] = {'W', 'F', 'T', 'R'};
constexpr uint8_t kMarked = 1;  // the value is not the default

uint32_t checksum(std::span<const std::byte> bytes) noexcept {
  uint32_t sum = 2166136261u;
  for (const std::byte b : bytes) sum = (sum ^ static_cast<uint32_t>(b)) * 16777619u;
  return sum;
}

// ---- writing ----

template <typename T>
void put(std::vector<std::byte>* out, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out->insert(out->end(), bytes, bytes + sizeof(value));
}

void put_text(std::vector<std::byte>* out, std::string_view text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  out->insert(out->end(), bytes, bytes + text.size());
}

// Writes the bytes of `body` before them.
template <typename Body>
void put_sized(std::vector<std::byte>* out, Body&& body) {
  const size_t at = out->size();
  put(out, uint32_t{0});
  body();
  const auto size = static_cast<uint32_t>(out->size() - at - sizeof(uint32_t));
  std::memcpy(out->data() + at, &size, sizeof(size));
}

void put_body(std::vector<std::byte>* out, const TableInfo& table, const void* object);

void put_value(std::vector<std::byte>* out, const FieldInfo& field, const void* object) {
  switch (field.kind) {
    case FieldKind::text:
      put_text(out, *member<std::string>(field, object));
      return;
    case FieldKind::labels:
      if (const Labels& labels = *member<Labels>(field, object); labels != nullptr) {
        for (const auto& [number, name] : *labels) {
          put(out, number);
          put_sized(out, [&] { put_text(out, name); });
        }
      }
      return;
    case FieldKind::table:
      if (field.count == 0) {
        put_body(out, field.table(), nested(field, object));
        return;
      }
      for (size_t i = 0; i < field.count; ++i)
        put_sized(out, [&] { put_body(out, field.table(), nested(field, object, i)); });
      return;
    default:
      for (size_t i = 0; i < std::max<size_t>(field.count, 1); ++i) put(out, value_of(field, object, i));
  }
}

void put_body(std::vector<std::byte>* out, const TableInfo& table, const void* object) {
  with_defaults(table, [&](const void* defaults) {
    for (const FieldInfo& field : table.fields) {
      put(out, field.tag);
      put(out, static_cast<uint8_t>(field.kind));
      put(out, equal(field, object, defaults) ? uint8_t{0} : kMarked);
      put_sized(out, [&] { put_value(out, field, object); });
    }
  });
}

// ---- reading ----

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const TableInfo& table) noexcept : left_(bytes), table_(table) {}

  [[nodiscard]] bool empty() const noexcept { return left_.empty(); }
  [[nodiscard]] size_t left() const noexcept { return left_.size(); }
  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> take(size_t bytes) {
    if (bytes > left_.size()) {
      damaged(std::to_string(bytes) + " bytes should follow, and there are " + std::to_string(left_.size()) +
              ": the record was cut");
    }
    const auto taken = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return taken;
  }
  [[noreturn]] void damaged(const std::string& why) const { refuse(fi_err::kEPROTO, why); }
  [[noreturn]] void refuse(int code, const std::string& why) const {
    throw Error(code, std::string("a record of ") + table_.name + ": " + why);
  }

 private:
  std::span<const std::byte> left_;
  const TableInfo& table_;
};

std::string named(const FieldInfo& field) {
  return "field " + std::to_string(field.tag) + " (" + field.name + ")";
}

void read_body(std::span<const std::byte> bytes, const TableInfo& table, void* object);

void read_value(std::span<const std::byte> bytes, const TableInfo& table, const FieldInfo& field, void* object) {
  Reader in(bytes, table);
  switch (field.kind) {
    case FieldKind::text:
      member<std::string>(field, object)->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return;
    case FieldKind::labels: {
      std::vector<std::pair<uint64_t, std::string>> labels;
      while (!in.empty()) {
        const auto number = in.take<uint64_t>();
        const auto name = in.take(in.take<uint32_t>());
        labels.emplace_back(number, std::string(reinterpret_cast<const char*>(name.data()), name.size()));
      }
      *member<Labels>(field, object) =
          labels.empty() ? nullptr : std::make_shared<const std::vector<std::pair<uint64_t, std::string>>>(labels);
      return;
    }
    case FieldKind::table:
      if (field.count == 0) {
        read_body(bytes, field.table(), nested(field, object));
        return;
      }
      for (size_t i = 0; i < field.count && !in.empty(); ++i)
        read_body(in.take(in.take<uint32_t>()), field.table(), nested(field, object, i));
      return;
    default: {
      const size_t count = std::max<size_t>(field.count, 1);
      if (bytes.size() % sizeof(uint64_t) != 0 || (field.count == 0 && bytes.size() != sizeof(uint64_t)))
        in.damaged(named(field) + " has " + std::to_string(bytes.size()) + " bytes; a number has 8");
      for (size_t i = 0; i < count && !in.empty(); ++i) {
        const auto value = in.take<uint64_t>();
        if (!set_value(field, object, value, i)) {
          in.damaged(
              named(field) + " does not take the value " +
              (field.kind == FieldKind::integer ? std::to_string(static_cast<int64_t>(value)) : std::to_string(value)) +
              (field.kind == FieldKind::choice ? ": it is " + names_of(*field.choices) : ""));
        }
      }
    }
  }
}

void read_body(std::span<const std::byte> bytes, const TableInfo& table, void* object) {
  Reader in(bytes, table);
  std::bitset<kFieldTagMax + 1> seen;
  while (!in.empty()) {
    const auto tag = in.take<uint16_t>();
    const auto kind = in.take<uint8_t>();
    const auto mark = in.take<uint8_t>();
    const auto value = in.take(in.take<uint32_t>());
    if (mark > kMarked) in.damaged("field " + std::to_string(tag) + " has the mark " + std::to_string(mark));
    const FieldInfo* field = table.find(tag);
    if (field == nullptr) {
      if (mark == 0) continue;
      in.refuse(fi_err::kEOPNOTSUPP, "field " + std::to_string(tag) +
                                         " is not known here, and is not at its default: a newer version of Weft made "
                                         "the record\n  try: the same version on both sides");
    }
    if (kind != static_cast<uint8_t>(field->kind)) {
      in.damaged(named(*field) + " has kind " + std::to_string(kind) + ", not " +
                 std::to_string(static_cast<int>(field->kind)));
    }
    if (seen.test(tag)) in.damaged(named(*field) + " is there twice");
    seen.set(tag);
    read_value(value, table, *field, object);
  }
  table.settle(object);
}

}  // namespace

void seal_record(std::vector<std::byte>* record, uint16_t table) noexcept {
  const auto body = std::span<const std::byte>(*record).subspan(kRecordHeadBytes);
  const auto size = static_cast<uint32_t>(body.size());
  const uint32_t sum = checksum(body);
  std::byte* head = record->data();
  std::memcpy(head, kMagic, 4);
  std::memcpy(head + 4, &kRecordFormat, 2);
  std::memcpy(head + 6, &table, 2);
  std::memcpy(head + 8, &size, 4);
  std::memcpy(head + 12, &sum, 4);
}

std::vector<std::byte> write_record(const TableInfo& table, const void* object) {
  std::vector<std::byte> record(kRecordHeadBytes);
  put_body(&record, table, object);
  seal_record(&record, table.id);
  return record;
}

void read_record(std::span<const std::byte> bytes, const TableInfo& table, void* object) {
  Reader in(bytes, table);
  if (bytes.size() > kRecordBytesMax) in.damaged(std::to_string(bytes.size()) + " bytes; a record has at most 1 MiB");
  const auto magic = in.take(sizeof(kMagic));
  if (std::memcmp(magic.data(), kMagic, sizeof(kMagic)) != 0) in.damaged("these bytes are no record of Weft");
  const auto format = in.take<uint16_t>();
  const auto id = in.take<uint16_t>();
  const auto size = in.take<uint32_t>();
  const auto sum = in.take<uint32_t>();
  if (format != kRecordFormat) {
    in.refuse(fi_err::kEOPNOTSUPP, "format " + std::to_string(format) + " is not known here, only " +
                                       std::to_string(kRecordFormat) + "\n  try: the same version on both sides");
  }
  if (id != table.id) {
    in.refuse(fi_err::kEINVAL,
              "these bytes are a record of table " + std::to_string(id) + ", not of table " + std::to_string(table.id));
  }
  if (in.left() != size) {
    in.damaged("the head says " + std::to_string(size) + " bytes, and " + std::to_string(in.left()) + " follow");
  }
  const auto body = in.take(size);
  if (checksum(body) != sum) in.damaged("the checksum is wrong: bytes were changed on their way");
  read_body(body, table, object);
}

}  // namespace weft
