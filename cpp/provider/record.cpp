// cpp/provider/record.cpp: the form of records: record.hpp.
#include "provider/record.hpp"

#include <cstring>

namespace weft::provider {

namespace {

constexpr char kHead[] = {'W', 'R', 1};
constexpr size_t kNameMax = 255;

}  // namespace

bool Record::parse(std::string_view bytes, Record* out) {
  out->entries_.clear();
  if (bytes.size() < sizeof(kHead) || std::memcmp(bytes.data(), kHead, sizeof(kHead)) != 0) return false;
  bytes.remove_prefix(sizeof(kHead));
  while (!bytes.empty()) {
    if (bytes.size() < 2) return false;
    const char kind = bytes[0];
    const auto length = static_cast<uint8_t>(bytes[1]);
    bytes.remove_prefix(2);
    if (bytes.size() < length) return false;
    Entry e{std::string(bytes.substr(0, length)), 0, {}, kind == 'n'};
    bytes.remove_prefix(length);
    if (kind == 'n') {
      if (bytes.size() < sizeof(e.number)) return false;
      std::memcpy(&e.number, bytes.data(), sizeof(e.number));  // little-endian machines
      bytes.remove_prefix(sizeof(e.number));
    } else if (kind == 'b') {
      uint32_t size = 0;
      if (bytes.size() < sizeof(size)) return false;
      std::memcpy(&size, bytes.data(), sizeof(size));
      bytes.remove_prefix(sizeof(size));
      if (bytes.size() < size) return false;
      e.text = bytes.substr(0, size);
      bytes.remove_prefix(size);
    } else {
      return false;
    }
    out->entries_.push_back(std::move(e));
  }
  return true;
}

std::string Record::bytes() const {
  std::string out(kHead, sizeof(kHead));
  const auto put = [&](const auto& value) { out.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  for (const Entry& e : entries_) {
    out += e.is_number ? 'n' : 'b';
    out += static_cast<char>(e.name.size() < kNameMax ? e.name.size() : kNameMax);
    out.append(e.name, 0, kNameMax);
    if (e.is_number) {
      put(e.number);
    } else {
      put(static_cast<uint32_t>(e.text.size()));
      out += e.text;
    }
  }
  return out;
}

Record Record::nested(std::string_view name) const {
  Record found;
  (void)parse(text(name), &found);
  return found;
}

std::vector<uint64_t> Record::numbers(std::string_view name) const {
  std::vector<uint64_t> found;
  for (const Entry& e : entries_) {
    if (e.is_number && e.name == name) found.push_back(e.number);
  }
  return found;
}

std::vector<std::string_view> Record::texts(std::string_view name) const {
  std::vector<std::string_view> found;
  for (const Entry& e : entries_) {
    if (!e.is_number && e.name == name) found.emplace_back(e.text);
  }
  return found;
}

std::vector<Record> Record::all(std::string_view name) const {
  std::vector<Record> found;
  for (const std::string_view bytes : texts(name)) {
    if (!parse(bytes, &found.emplace_back())) found.pop_back();
  }
  return found;
}

}  // namespace weft::provider
