// cpp/provider/record.hpp: records: named values as bytes, in which questions to the policy helper and its answers
// travel. src/weft/policyhost/records.py is the other side, and describes the form.
#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::provider {

class Record {
 public:
  Record() = default;
  // False: the bytes are no record of this version. The record copies the bytes of nested records.
  static bool parse(std::string_view bytes, Record* out);
  [[nodiscard]] std::string bytes() const;

  void add(std::string_view name, uint64_t number) {
    assert(name.size() < 256 && "a name's length is a byte");
    entries_.push_back({std::string(name), number, {}, true});
  }
  void add(std::string_view name, std::string_view bytes) {
    assert(name.size() < 256 && "a name's length is a byte");
    entries_.push_back({std::string(name), 0, std::string(bytes), false});
  }
  void add(std::string_view name, const Record& nested) { add(name, std::string_view(nested.bytes())); }
  // Several, each a name and its value.
  template <typename Value, typename... More>
    requires(sizeof...(More) >= 2)
  void add(std::string_view name, const Value& value, const More&... more) {
    add(name, value);
    add(more...);
  }

  [[nodiscard]] bool has(std::string_view name) const noexcept { return find(name) != nullptr; }
  [[nodiscard]] uint64_t number(std::string_view name, uint64_t otherwise = 0) const noexcept {
    const Entry* e = find(name);
    return e != nullptr && e->is_number ? e->number : otherwise;
  }
  [[nodiscard]] bool flag(std::string_view name) const noexcept { return number(name) != 0; }
  [[nodiscard]] std::string_view text(std::string_view name) const noexcept {
    const Entry* e = find(name);
    return e != nullptr && !e->is_number ? std::string_view(e->text) : std::string_view();
  }
  // The record in bytes of this name; empty if there is none.
  [[nodiscard]] Record nested(std::string_view name) const;
  // All values of a name, in order.
  [[nodiscard]] std::vector<uint64_t> numbers(std::string_view name) const;
  [[nodiscard]] std::vector<Record> all(std::string_view name) const;
  [[nodiscard]] std::vector<std::string_view> texts(std::string_view name) const;

 private:
  struct Entry {
    std::string name;
    uint64_t number;
    std::string text;
    bool is_number;
  };
  [[nodiscard]] const Entry* find(std::string_view name) const noexcept {
    for (const Entry& e : entries_) {
      if (e.name == name) return &e;
    }
    return nullptr;
  }
  std::vector<Entry> entries_;
};

}  // namespace weft::provider
