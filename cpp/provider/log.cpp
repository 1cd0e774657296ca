// cpp/provider/log.cpp: explanations in libfabric's log: log.hpp.
#include "provider/log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "provider/objects.hpp"

namespace weft::provider {

namespace {

constexpr int kWarn = 0;
std::atomic<const Front*> g_of_tables{nullptr};

const char* explain_file() noexcept {
  static const char* const file = std::getenv("WEFT_EXPLAIN");
  return file != nullptr && *file != '\0' ? file : nullptr;
}

constexpr std::pair<size_t, const char*> kNames[] = {{kClassFabric, "a fabric"},
                                                     {kClassDomain, "a domain"},
                                                     {kClassEp, "an endpoint"},
                                                     {4, "an endpoint"},  // FI_CLASS_SEP
                                                     {kClassPep, "a passive endpoint"},
                                                     {kClassAv, "an address vector"},
                                                     {kClassMr, "a region"},
                                                     {kClassEq, "an event queue"},
                                                     {kClassCq, "a completion queue"},
                                                     {kClassCntr, "a counter"},
                                                     {kClassRequest, "a connection request"}};

const char* name_of_class(size_t fclass) noexcept {
  for (const auto& [number, name] : kNames)
    if (number == fclass) return name;
  return "no object of libfabric";
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
      const int fd = ::open(file, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);  // gone: its reader was killed
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

void explain_tables_by(const Front* origin) noexcept {
  g_of_tables.store(origin, std::memory_order_release);
}

void front_ends(const Front& origin) noexcept {
  const Front* ended = &origin;
  (void)g_of_tables.compare_exchange_strong(ended, nullptr);
}

int refuse_kind(const char* call, const ofi::Fid* got, const char* takes) noexcept {
  const Front* const front = g_of_tables.load(std::memory_order_acquire);
  if (front == nullptr) return -fi_err::kEINVAL;
  if_explained(*front, Subject::core, [&] {
    explain(*front, Subject::core, call,
            std::string(call) + ": the object is " + (got == nullptr ? "NULL" : name_of_class(got->fclass)) +
                "\n  try: " + takes + " that is open");
  });
  return -fi_err::kEINVAL;
}

}  // namespace weft::provider
