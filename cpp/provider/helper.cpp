// cpp/provider/helper.cpp: the socket of the policy helper, and starting the helper.
#include "provider/helper.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/fd.hpp"
#include "base/lock.hpp"
#include "base/status.hpp"
#include "host/pacer.hpp"
#include "provider/network.hpp"

extern "C" char** environ;

namespace weft::provider {

namespace {

constexpr uint64_t kStartNs = 60'000'000'000;  // a helper takes 0.5 s to start; a machine that is busy, much longer
constexpr timeval kPatience{60, 0};            // a helper that is stopped must not stop this process for good
constexpr uint32_t kAnswerMax = 1u << 26;
constexpr int kTries = 3;                               // helpers that a question may outlive
RankedMutex<lock_rank::kProviderHelper> g_helper_lock;  // also held around fork(): helper_before_fork()

const char* variable(const char* name) noexcept {
  const char* found = std::getenv(name);
  return found == nullptr ? "" : found;
}

std::string own_path() {
  Dl_info here;
  static const int anchor = 0;
  return ::dladdr(&anchor, &here) != 0 && here.dli_fname != nullptr ? here.dli_fname : "";
}

bool has_prefix(std::string_view text, std::string_view prefix) noexcept {
  return text.substr(0, prefix.size()) == prefix;
}

// The variables that policy reads, without any that differ between the processes of a job: the ranks of `weft launch`
// share a helper.
bool is_of_policy(std::string_view entry) noexcept {
  for (const std::string_view other :
       {"FI_LOG_", "FI_HOOK", "FI_PROVIDER", "WEFT_EXPLAIN", "WEFT_PYTHON=", "WEFT_RANK=", "WEFT_SIZE="}) {
    if (has_prefix(entry, other)) return false;
  }
  if (is_of_network(entry)) return false;
  return has_prefix(entry, "WEFT_") || has_prefix(entry, "FI_") || has_prefix(entry, "SLINGSHOT_");
}

// FNV-1a of this installation and the environment.
std::string hash_of_environment() {
  std::vector<std::string> all{own_path()};
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    if (is_of_policy(*e)) all.emplace_back(*e);
  }
  std::sort(all.begin() + 1, all.end());
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::string& one : all) {
    for (const char c : one) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    hash = (hash ^ 0x100) * 0x100000001b3u;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// A private folder of this user, made if it is missing; false: another user owns it, or may write to it.
bool private_folder(const std::string& path) noexcept {
  (void)::mkdir(path.c_str(), 0700);
  struct stat found;
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() &&
         (found.st_mode & 077) == 0;
}

std::string folder_of_user() {
  const std::string run = variable("XDG_RUNTIME_DIR");
  struct stat found;
  if (!run.empty() && run[0] == '/' && ::stat(run.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return run + "/weft";
  const std::string temporary = *variable("TMPDIR") != '\0' ? variable("TMPDIR") : "/tmp";
  return temporary + "/weft-" + std::to_string(::geteuid());
}

// The address of a socket in a folder. A path of more than 107 bytes does not fit: then the address uses the folder's
// descriptor, which is held as long as the address is used.
class Address {
 public:
  Address(const std::string& folder, const std::string& name) noexcept {
    std::string path = folder + name;
    if (path.size() >= sizeof(of_.sun_path)) {
      folder_ = UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      path = "/proc/self/fd/" + std::to_string(folder_.get()) + name;
    }
    of_.sun_family = AF_UNIX;
    std::memcpy(of_.sun_path, path.c_str(), std::min(path.size() + 1, sizeof(of_.sun_path) - 1));
  }

  // Without /proc a descriptor has no path.
  [[nodiscard]] bool fits() const noexcept { return !folder_.valid() || ::access("/proc/self/fd", X_OK) == 0; }
  bool connect(int fd) const noexcept {
    return ::connect(fd, reinterpret_cast<const sockaddr*>(&of_), sizeof(of_)) == 0;
  }

 private:
  sockaddr_un of_{};
  UniqueFd folder_;
};

bool is_file(const std::string& path) noexcept {
  return ::access(path.c_str(), X_OK) == 0;
}

// The interpreter with this installation of Weft: WEFT_PYTHON, as `weft run` sets it, or the interpreter of the folder
// in which Weft is installed, .../lib/python3.x/site-packages/weft, or the first in PATH.
std::string python() {
  if (*variable("WEFT_PYTHON") != '\0') return variable("WEFT_PYTHON");
  std::string path = own_path();
  const size_t lib = path.rfind("/lib/python");
  if (lib != std::string::npos) {
    const std::string version = path.substr(lib + 5, path.find('/', lib + 5) - lib - 5);
    for (const std::string& name : {"/bin/" + version, std::string("/bin/python3"), std::string("/bin/python")}) {
      if (is_file(path.substr(0, lib) + name)) return path.substr(0, lib) + name;
    }
  }
  const std::string env = variable("VIRTUAL_ENV");
  if (!env.empty() && is_file(env + "/bin/python")) return env + "/bin/python";
  return "python3";
}

// Starts a helper that is no child of this process, and has no terminal of it. `life`: a pipe, which the helper holds
// open; it writes a byte and ends if another helper has the socket.
bool start(const std::string& socket, UniqueFd* life, std::string* why) {
  const std::string interpreter = python();
  const char* const command = "cd /; \"$0\" -m weft.policyhost \"$1\" </dev/null 2>\"$1.log\" &";
  const char* argv[] = {"sh", "-c", command, interpreter.c_str(), socket.c_str(), nullptr};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    *why = std::string("no pipe: ") + std::strerror(errno);
    return false;
  }
  *life = UniqueFd(ends[0]);
  const UniqueFd of_helper(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, of_helper.get(), STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  // Without the program's preloads (a sanitizer, FI_HOOK's kin), its PYTHONHOME, its secret and its listener.
  std::vector<char*> environment;
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    const bool left_out = has_prefix(*e, "LD_PRELOAD=") || has_prefix(*e, "PYTHONHOME=") || is_of_network(*e);
    if (!left_out) environment.push_back(*e);
  }
  environment.push_back(nullptr);
  pid_t shell = 0;
  const int failed =
      ::posix_spawn(&shell, "/bin/sh", &actions, &attributes, const_cast<char* const*>(argv), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) {
    *why = "/bin/sh cannot be started: " + std::string(std::strerror(failed));
    return false;
  }
  while (::waitpid(shell, nullptr, 0) < 0 && errno == EINTR) {
  }
  return true;
}

std::string tail_of(const std::string& log) {
  char text[2048];
  const UniqueFd fd(::open(log.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  const ssize_t n = ::read(fd.get(), text, sizeof(text));
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
}

std::string late(const std::string& what, const std::string& helper) {
  return "the policy helper " + what + " for " + std::to_string(kPatience.tv_sec) + " s: is it stopped?\n  try: end " +
         helper + " by kill -9; the next call starts another helper, which gets what this process has";
}

Record refusal(int code, const std::string& text) {
  Record r;
  r.add("errno", static_cast<uint64_t>(code));
  r.add("text", text);
  return r;
}

bool send_all(int fd, const char* bytes, size_t size) noexcept {
  while (size != 0) {
    const ssize_t n = ::send(fd, bytes, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool receive_all(int fd, char* bytes, size_t size) noexcept {
  while (size != 0) {
    const ssize_t n = ::recv(fd, bytes, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

void helper_before_fork() {
  g_helper_lock.lock_at_fork();
}
void helper_after_fork() {
  g_helper_lock.unlock_after_fork();
}
void helper_after_fork_in_child() {
  Helper::of_process().leave_to_parent();
  g_helper_lock.unlock_after_fork();
}

Helper& Helper::of_process() noexcept {
  static Helper* const helper = new Helper;  // no destructor: threads of groups may ask while the process exits
  return *helper;
}

bool Helper::connect(std::string* why) {
  if (fd_ >= 0) return true;
  const std::string folder = folder_of_user();
  const std::string name = "/policy-" + hash_of_environment() + ".sock", path = folder + name;
  if (!private_folder(folder)) {
    *why = folder + " is not a folder of this user alone (mode 0700)\n  try: another XDG_RUNTIME_DIR or TMPDIR";
    return false;
  }
  const Address address(folder, name);
  if (!address.fits()) {
    *why = path + ": a socket's address holds " + std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
           " bytes, and there is no /proc here by which longer paths are reached\n  try: a shorter XDG_RUNTIME_DIR or "
           "TMPDIR";
    return false;
  }
  const uint64_t deadline = host::now_ns() + kStartNs;
  UniqueFd life;
  for (int deaths = 0;;) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      *why = std::string("no socket: ") + std::strerror(errno);
      return false;
    }
    (void)::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
    (void)::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));  // connect() waits as long
    if (address.connect(fd)) {
      ucred peer{};
      socklen_t size = sizeof(peer);
      if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid()) {
        fd_ = fd;
        pid_ = ::getpid();
        helper_pid_ = peer.pid;
        return true;
      }
      ::close(fd);
      *why = path + " is the socket of another user, " + std::to_string(peer.uid);
      return false;
    }
    const bool full = errno == EAGAIN;
    ::close(fd);
    if (full) {
      *why = late("has taken no connection", "the process `" + python() + " -m weft.policyhost " + path + "`");
      return false;
    }
    if (life.get() < 0 && !start(path, &life, why)) return false;
    char other;
    pollfd heard{life.get(), POLLIN, 0};
    if (::poll(&heard, 1, 5) == 1) {  // another helper has the socket, or is just ending; or this one has died
      const bool died = ::read(life.get(), &other, 1) != 1;
      deaths += died ? 1 : 0;
      life = UniqueFd();
      const timespec pause{0, 20'000'000};
      ::nanosleep(&pause, nullptr);
    }
    if (const std::string log = deaths != 0 ? tail_of(path + ".log") : "";
        !log.empty() || deaths == kTries || host::now_ns() > deadline) {
      *why = "the policy helper does not start: " + python() + " -m weft.policyhost " + path + "\n" + log +
             "\n  try: weft run -- PROGRAM, which sets WEFT_PYTHON to the interpreter that has Weft";
      return false;
    }
  }
}

void Helper::disconnect() noexcept {
  if (fd_ < 0) return;
  // The helper must see the end although a child between fork() and exec() may hold the connection too.
  if (pid_ == ::getpid()) (void)::shutdown(fd_, SHUT_RDWR);
  leave_to_parent();
}

void Helper::leave_to_parent() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Helper::forget_parent() noexcept {
  if (pid_ == 0 || pid_ == ::getpid()) return;
  disconnect();
  journal_.clear();
  pid_ = 0;
}

Helper::Reply Helper::exchange(const std::string& question, Record* answer) noexcept {
  try {
    const auto size = static_cast<uint32_t>(question.size());
    uint32_t length = 0;
    errno = 0;
    if (!send_all(fd_, reinterpret_cast<const char*>(&size), sizeof(size)) ||
        !send_all(fd_, question.data(), question.size()) ||
        !receive_all(fd_, reinterpret_cast<char*>(&length), sizeof(length)) || length > kAnswerMax) {
      return errno == EAGAIN ? Reply::late : Reply::ended;
    }
    std::string bytes(length, '\0');
    if (receive_all(fd_, bytes.data(), length) && Record::parse(bytes, answer)) return Reply::whole;
    return errno == EAGAIN ? Reply::late : Reply::ended;
  } catch (const std::bad_alloc&) {
    return Reply::ended;
  }
}

Record Helper::ask(const Record& question) {
  const Guard guard(g_helper_lock);
  return ask_locked(question);
}

Record Helper::ask_locked(const Record& question) {
  g_helper_lock.assert_held();
  forget_parent();
  std::string why;
  const std::string bytes = question.bytes();
  // An idle helper that ends may have accepted a connection that it does not serve, and a helper may be killed: the
  // next one gets what this process has, and the question.
  for (int tries = 0; tries < kTries; ++tries) {
    if (journal_.is_lost(question.number("of"))) return refusal(fi_err::kEIO, journal_.why());
    const bool fresh = fd_ < 0;
    if (!connect(&why)) return refusal(fi_err::kEIO, why);
    Reply reply = Reply::whole;
    Record answer;
    const auto heard = [&](const std::string& asked, Record* found) {
      reply = exchange(asked, found);
      return reply == Reply::whole;
    };
    const bool same = !fresh || journal_.repeat(heard) == Journal::Outcome::same;
    if (same && heard(bytes, &answer)) {
      journal_.note(question, bytes, answer);
      return answer;
    }
    disconnect();
    if (reply == Reply::late) {
      return refusal(fi_err::kEIO, late("has not answered", "process " + std::to_string(helper_pid_)));
    }
  }
  return refusal(fi_err::kEIO, "the policy helper ended " + std::to_string(kTries) + " times before it had answered");
}

Record Helper::ask(std::string_view what, uint64_t lease) {
  return ask(question_about(what, lease));
}

void Helper::give_back(uint64_t lease) noexcept {
  if (lease == 0) return;
  try {
    const Guard guard(g_helper_lock);
    forget_parent();
    journal_.drop(lease);
    if (fd_ < 0) return;
    Record answer;
    if (exchange(question_about("close", lease).bytes(), &answer) != Reply::whole) disconnect();
  } catch (const std::bad_alloc&) {
  }
}

void Helper::close() noexcept {
  const Guard guard(g_helper_lock);
  disconnect();
}

}  // namespace weft::provider
