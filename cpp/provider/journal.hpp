// cpp/provider/journal.hpp: what the policy helper has for this process, as the questions that made it. A helper that
// is started anew, because the last one was killed, is asked them again: it then has the same objects under the same
// leases.
//
// Callers hold the helper's lock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "provider/record.hpp"

namespace weft::provider {

class Journal {
 public:
  enum class Outcome { same, ended, lost };

  // Keeps a question that was answered, if it changed what the helper has.
  void note(const Record& question, const std::string& bytes, const Record& answer);
  // The object is closed.
  void drop(uint64_t lease) noexcept;
  // This process is a fork of the one that asked.
  void clear() noexcept;
  // Asks a new helper everything again. ended: that helper has ended too. lost: it refuses, or decides otherwise than
  // the last one, so everything is lost; why() says so.
  template <typename Ask>  // false: the helper has ended
  Outcome repeat(Ask&& ask) {
    if (!whole_) return lose("this process had opened more than is kept to be opened again");
    for (const Entry& one : entries_) {
      Record answer;
      if (!ask(question_of(one), &answer)) return Outcome::ended;
      if (answer.has("errno")) return lose(answer.text("text"));
      if (decided(answer) != one.decided) return lose("the configuration has changed meanwhile");
    }
    return Outcome::same;
  }
  [[nodiscard]] bool is_lost(uint64_t lease) const noexcept { return lost_.contains(lease); }
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

 private:
  struct Entry {
    uint64_t of, lease;    // the object that was asked, and the new one; 0: none
    std::string question;  // bytes
    std::string decided;   // by the answer
  };
  static std::string question_of(const Entry& one);
  static std::string decided(const Record& answer);
  Outcome lose(std::string_view reason);

  std::vector<Entry> entries_;
  size_t bytes_ = 0;
  bool whole_ = true;
  std::unordered_set<uint64_t> lost_;
  std::string why_;
};

}  // namespace weft::provider
