// cpp/provider/helper.hpp: asks the policy helper (src/weft/policyhost): starts it if none runs, and keeps one
// connection for this process.
//
// A helper serves the programs of one user, one environment and one installation of Weft: the name of its socket has a
// hash of environment and installation. Both sides check the other's user. The connection belongs to the process that
// opened it: a forked child opens its own. The helper takes back this process's objects when the connection ends. If
// the helper is killed, the next question starts another one, which first opens these objects again (journal.hpp).
#pragma once

#include <string>
#include <string_view>

#include "provider/journal.hpp"
#include "provider/record.hpp"

namespace weft::provider {

// About an object that the helper holds for this process.
inline Record question_about(std::string_view what, uint64_t lease) {
  Record question;
  question.add("ask", what, "of", lease);
  return question;
}

class Helper {
 public:
  static Helper& of_process() noexcept;

  // The answer to a question. A refusal, and a helper that cannot be reached, is an answer with errno and text.
  // Any thread, without a lock of the NIC.
  Record ask(const Record& question);
  // Ask about an object that the helper holds for this process.
  Record ask(std::string_view what, uint64_t lease);
  // The object is closed. No helper is started for that: without a connection there is nobody who has the object.
  void give_back(uint64_t lease) noexcept;
  void close() noexcept;
  // In a forked child: the connection is the parent's, and ends with the parent.
  void leave_to_parent() noexcept;

 private:
  Record ask_locked(const Record& question);
  enum class Reply { whole, late, ended };
  Reply exchange(const std::string& question, Record* answer) noexcept;
  bool connect(std::string* why);
  void disconnect() noexcept;
  // In a forked child: the journal is the parent's too.
  void forget_parent() noexcept;

  int fd_ = -1;
  int pid_ = 0;  // the process that opened fd_
  int helper_pid_ = 0;
  Journal journal_;
};

// Around fork().
void helper_before_fork();
void helper_after_fork();
void helper_after_fork_in_child();

}  // namespace weft::provider
