// cpp/provider/log.cpp: explanations in libfabric's log: log.hpp.
#include "provider/log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "base/status.hpp"

namespace weft::provider {

namespace {

constexpr int kWarn = 0;

const char* explain_file() noexcept {
  static const char* const file = std::getenv("WEFT_EXPLAIN");
  return file != nullptr && *file != '\0' ? file : nullptr;
}

}  // namespace

bool explains(const Front& front, Subject subject) noexcept {
  return explain_file() != nullptr || front.log_enabled(front.provider, kWarn, static_cast<int>(subject)) != 0;
}

void explain(const Front& front, Subject subject, const char* call, std::string_view text) noexcept {
  const int saved = errno;
  if (front.log_enabled(front.provider, kWarn, static_cast<int>(subject)) != 0) {
    front.log(front.provider, kWarn, static_cast<int>(subject), call, 0, "%.*s\n", static_cast<int>(text.size()),
              text.data());
  }
  if (const char* const file = explain_file(); file != nullptr) {
    try {
      const int fd = ::open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (fd >= 0) {
        const std::string line =
            std::string(front.name) + " " + std::to_string(::getpid()) + ": " + std::string(text) + "\n";
        (void)!::write(fd, line.data(), line.size());
        ::close(fd);
      }
    } catch (const std::bad_alloc&) {
    }
  }
  errno = saved;
}

int refuse(const Front& front, Subject subject, const char* call, int code, std::string_view text) noexcept {
  if (explains(front, subject)) explain(front, subject, call, text);
  return -code;
}

int refused(const Front& front, Subject subject, const char* call, const Record& answer) noexcept {
  const auto code = static_cast<int>(answer.number("errno"));
  return code == 0 ? 0 : refuse(front, subject, call, code, answer.text("text"));
}

}  // namespace weft::provider
