// cpp/provider/journal.cpp: which questions change what the helper has.
#include "provider/journal.hpp"

#include <algorithm>

namespace weft::provider {

namespace {

constexpr size_t kBytesMax = size_t{4} << 20;  // some ten thousand peers with keys

// Questions that change an object, apart from those that open one.
constexpr std::string_view kChanges[] = {
    "bind", "enable", "insert_auth_key", "insert_with_key", "remove_with_key", "key_user_id", "insertsvc", "set_ops"};
// Those of which one after an equal one changes nothing.
constexpr std::string_view kOptions[] = {"op_flags", "setopt", "set_val", "control"};
// What the NIC's objects here were made with: a new helper has to decide the same.
constexpr std::string_view kDecided[] = {"vni",         "source.nic",  "addr_format",   "address.nic", "address.pid",
                                         "address.vni", "fi_addr",     "nic",           "pid",         "entries",
                                         "key_base",    "entry_alone", "ledger.service"};

bool is_option(const Record& question) noexcept {
  const std::string_view ask = question.text("ask");
  return std::ranges::find(kOptions, ask) != std::end(kOptions) ||
         (ask == "dom_ops" && question.text("call").starts_with("enable_"));
}

bool changes(const Record& question, const Record& answer) noexcept {
  const std::string_view ask = question.text("ask");
  return answer.has("lease") || std::ranges::find(kChanges, ask) != std::end(kChanges) || is_option(question) ||
         (ask == "group" && question.text("task") == "have");
}

}  // namespace

void Journal::note(const Record& question, const std::string& bytes, const Record& answer) {
  if (answer.has("errno") || !changes(question, answer) || !whole_) return;
  const uint64_t of = question.number("of");
  if (is_option(question)) {
    const auto last = std::find_if(entries_.rbegin(), entries_.rend(), [&](const Entry& e) { return e.of == of; });
    if (last != entries_.rend() && last->question == bytes) return;
  }
  if (bytes_ + bytes.size() > kBytesMax) {
    whole_ = false;
    return;
  }
  entries_.push_back({of, answer.number("lease"), bytes, decided(answer)});
  bytes_ += bytes.size();
}

void Journal::drop(uint64_t lease) noexcept {
  lost_.erase(lease);
  std::erase_if(entries_, [&](const Entry& e) {
    const bool gone = e.lease == lease || e.of == lease;
    if (gone) bytes_ -= e.question.size();
    return gone;
  });
  if (entries_.empty()) whole_ = true;
}

void Journal::clear() noexcept {
  entries_.clear();
  lost_.clear();
  bytes_ = 0;
  whole_ = true;
}

std::string Journal::question_of(const Entry& one) {
  if (one.lease == 0) return one.question;
  Record question;
  (void)Record::parse(one.question, &question);
  question.add("lease", one.lease);
  return question.bytes();
}

std::string Journal::decided(const Record& answer) {
  Record found;
  for (const std::string_view name : kDecided) {
    for (const uint64_t number : answer.numbers(name)) found.add(name, number);
  }
  return found.bytes();
}

Journal::Outcome Journal::lose(std::string_view reason) {
  why_ = "the policy helper has ended, and a new one does not open what this process had: " + std::string(reason) +
         "\n  try: close every object, and open new ones";
  for (const Entry& one : entries_) {
    if (one.lease != 0) lost_.insert(one.lease);
  }
  entries_.clear();
  bytes_ = 0;
  whole_ = true;
  return Outcome::lost;
}

}  // namespace weft::provider
