// tests/cpp/death.hpp: code that must end its process, run in a forked child.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <string>

namespace weft::test {

struct Death {
  int signal = 0;    // that ended the child; 0: the child went on to its end
  std::string said;  // on stderr
};

// Fork before the test has made a thread. The child leaves no core file.
template <typename Body>
Death death_of(Body&& body) {
  int ends[2];
  BOOST_REQUIRE(::pipe(ends) == 0);
  const pid_t pid = ::fork();
  BOOST_REQUIRE(pid >= 0);
  if (pid == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    std::signal(SIGABRT, SIG_DFL);  // not the test framework's
    ::alarm(60);
    ::dup2(ends[1], STDERR_FILENO);
    body();
    ::_exit(0);
  }
  ::close(ends[1]);
  Death death;
  char part[512];
  for (ssize_t n; (n = ::read(ends[0], part, sizeof(part))) > 0;) death.said.append(part, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  BOOST_REQUIRE(::waitpid(pid, &status, 0) == pid);
  if (WIFSIGNALED(status)) death.signal = WTERMSIG(status);
  return death;
}

// True if `body` aborts, and its last words contain all of these.
template <typename Body, typename... Words>
bool aborts_saying(Body&& body, const Words&... words) {
  const Death death = death_of(body);
  const bool all = death.signal == SIGABRT && ((death.said.find(words) != std::string::npos) && ...);
  if (!all) BOOST_TEST_MESSAGE("signal " << death.signal << ", said: " << death.said);
  return all;
}

}  // namespace weft::test
