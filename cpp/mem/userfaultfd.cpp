// cpp/mem/userfaultfd.cpp: the kernel reports changes of the mappings in registered ranges.
//
// The monitor registers ranges for write protection but never write-protects them. So no access faults to the monitor,
// and it receives only the reports (unmapped, removed, moved). With asynchronous write protection (Linux 6.7) any kind
// of mapping can be registered; older kernels accept anonymous and shared memory.
//
// A thread that changes a registered range sleeps in the kernel until its report has been read. So the reading thread
// neither allocates nor frees memory, and takes no lock that a thread could hold while it changes memory. It marks the
// logs (ChangeLog::begin_taking) before it reads, because the read already lets the other thread continue.
//
// Limits: the kernel does not report shmdt, so System V shared memory is not watched. A watched range is a separate
// mapping, and mremap refuses ranges of several mappings. The report comes after the change. A change waits while no
// thread reads the reports (the process is stopped). Unprivileged processes can use userfaultfd from Linux 5.11 on
// (UFFD_USER_MODE_ONLY); containers often forbid the system call.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <thread>

#include "base/fd.hpp"
#include "base/lock.hpp"
#include "mem/maps.hpp"
#include "mem/monitor.hpp"

// Definitions that the oldest supported kernel headers lack.
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

namespace weft::mem {

namespace {

constexpr size_t kLogMax = 64;
constexpr size_t kMessagesAtOnce = 16;

class UserfaultfdMonitor final : public Monitor {
 public:
  ~UserfaultfdMonitor() override {
    const Guard guard(mutex_);
    if (reader_.joinable()) stop();
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "userfaultfd"; }

  [[nodiscard]] bool available(std::string* why) override {
    const Guard guard(mutex_);
    return fd_.valid() || open_descriptor(why).valid();
  }

  bool subscribe(uint64_t begin, uint64_t end, ChangeLog& log, std::string* why) override {
    if (has_system_v_memory(begin, end)) {
      *why = "userfaultfd does not report that System V shared memory is detached: it is not cached";
      return false;
    }
    const Guard guard(mutex_);
    if (!reader_.joinable() && !start(why)) return false;
    if (!attach(log)) {
      *why = "too many caches watch memory at the same time";
      return false;
    }
    uffdio_register wanted{};
    wanted.range = {begin, end - begin};
    wanted.mode = UFFDIO_REGISTER_MODE_WP;
    if (::ioctl(fd_.get(), UFFDIO_REGISTER, &wanted) != 0) {
      *why = std::string("userfaultfd cannot watch this kind of memory: ") + std::strerror(errno);
      detach(log);
      if (ranges_.empty()) stop();
      return false;
    }
    ranges_.emplace(begin, end);
    return true;
  }

  void unsubscribe(uint64_t begin, uint64_t end, ChangeLog& log) noexcept override {
    const Guard guard(mutex_);
    const auto [first, last] = ranges_.equal_range(begin);
    const auto it = std::find_if(first, last, [&](const auto& range) { return range.second == end; });
    if (it == last) return;  // in a forked child
    ranges_.erase(it);
    const bool shared =
        std::ranges::any_of(ranges_, [&](const auto& range) { return range.first < end && begin < range.second; });
    if (!shared) unregister(begin, end);
    detach(log);
    if (ranges_.empty()) stop();
  }

  [[nodiscard]] bool active() noexcept override {
    const Guard guard(mutex_);
    return reader_.joinable();
  }

  void after_fork_in_child() noexcept override {
    // The ranges and the reader belong to the parent: the kernel registers nothing in a child. The child never uses or
    // destroys this object (bind/common.hpp, NicBox).
    fd_.reset();
    stop_fd_.reset();
  }

 private:
  struct Attached {
    ChangeLog* log = nullptr;
    size_t ranges = 0;
  };

  static UniqueFd open_descriptor(std::string* why) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
    if (!fd.valid() && errno == EINVAL) {  // before Linux 5.11
      fd = UniqueFd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
    }
    const int refused = errno;
    if (!fd.valid()) {
      const UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
      if (device.valid()) fd = UniqueFd(::ioctl(device.get(), USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK));
    }
    if (!fd.valid()) {
      *why = std::string("userfaultfd does not work here: ") + std::strerror(refused) +
             (refused == EPERM ? "; allow the system call in the container's seccomp profile, or set sysctl "
                                 "vm.unprivileged_userfaultfd=1, or give this user access to /dev/userfaultfd"
                               : "") +
             "; or set FI_MR_CACHE_MONITOR to memhooks";
      return fd;
    }
    constexpr uint64_t kReports = UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP;
    constexpr uint64_t kWritable = UFFD_FEATURE_PAGEFAULT_FLAG_WP;
    // From new to old kernels: every kind of mapping; shared and anonymous memory; anonymous memory.
    for (const uint64_t more : {kWritable | UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_WP_ASYNC,
                                kWritable | UFFD_FEATURE_WP_HUGETLBFS_SHMEM, kWritable}) {
      uffdio_api api{};
      api.api = UFFD_API;
      api.features = kReports | more;
      if (::ioctl(fd.get(), UFFDIO_API, &api) == 0) return fd;
    }
    *why =
        "userfaultfd of this kernel does not report changes of mappings (Linux 5.7 is needed); set "
        "FI_MR_CACHE_MONITOR to memhooks";
    return {};
  }

  bool start(std::string* why) {
    fd_ = open_descriptor(why);
    if (!fd_.valid()) return false;
    stop_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    if (!stop_fd_.valid()) {
      *why = std::string("eventfd: ") + std::strerror(errno);
      fd_.reset();
      return false;
    }
    // Block all signals for the reader: a handler of the application could change memory.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    reader_ = std::thread([this, fd = fd_.get(), stop = stop_fd_.get()] { read_reports(fd, stop); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return true;
  }

  void stop() noexcept REQUIRES(mutex_) {
    for (const auto& [begin, end] : ranges_) unregister(begin, end);
    const uint64_t one = 1;
    (void)!::write(stop_fd_.get(), &one, sizeof(one));
    reader_.join();
    fd_.reset();  // releases threads that still wait for a reader of their reports
    stop_fd_.reset();
  }

  void unregister(uint64_t begin, uint64_t end) noexcept {
    uffdio_range range{begin, end - begin};
    (void)::ioctl(fd_.get(), UFFDIO_UNREGISTER, &range);  // fails if the range is no longer mapped
  }

  bool attach(ChangeLog& log) noexcept {
    const Guard guard(logs_lock_);
    auto it = std::ranges::find(logs_, &log, &Attached::log);
    if (it == logs_.end()) it = std::ranges::find(logs_, nullptr, &Attached::log);
    if (it == logs_.end()) return false;
    it->log = &log;
    ++it->ranges;
    return true;
  }
  void detach(const ChangeLog& log) noexcept {
    const Guard guard(logs_lock_);
    const auto it = std::ranges::find(logs_, &log, &Attached::log);
    if (it != logs_.end() && --it->ranges == 0) it->log = nullptr;
  }

  // The reader thread. Between begin_taking() and end_taking() it only reads and pushes, and so never waits.
  void read_reports(int fd, int stop) noexcept {
    pollfd watched[2] = {{fd, POLLIN, 0}, {stop, POLLIN, 0}};
    uffd_msg messages[kMessagesAtOnce];
    for (;;) {
      if (::poll(watched, 2, -1) < 0 && errno != EINTR) return;
      if ((watched[0].revents & POLLIN) != 0) {
        const Guard guard(logs_lock_);  // other threads hold it only to add or remove a log
        each_log([](ChangeLog& log) { log.begin_taking(); });
        const ssize_t got = ::read(fd, messages, sizeof(messages));
        for (ssize_t i = 0; i < got / static_cast<ssize_t>(sizeof(uffd_msg)); ++i) {
          const Change change = change_of(messages[i]);
          each_log([&](ChangeLog& log) {
            if (log.concerns(change.begin, change.end)) log.push(change);
          });
        }
        each_log([](ChangeLog& log) { log.end_taking(); });
      } else if ((watched[0].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
        return;
      }
      if (watched[1].revents != 0) return;
    }
  }

  static Change change_of(const uffd_msg& message) noexcept {
    switch (message.event) {
      case UFFD_EVENT_UNMAP:
        return {message.arg.remove.start, message.arg.remove.end, true};
      case UFFD_EVENT_REMOVE:
        return {message.arg.remove.start, message.arg.remove.end, false};
      case UFFD_EVENT_REMAP:
        return {message.arg.remap.from, message.arg.remap.from + message.arg.remap.len, true};
      default:
        return {};
    }
  }

  template <typename Each>
  void each_log(Each&& each) noexcept REQUIRES(logs_lock_) {
    for (const Attached& attached : logs_) {
      if (attached.log != nullptr) each(*attached.log);
    }
  }

  RankedMutex<lock_rank::kUserfaultfd> mutex_;  // the reader never takes it
  UniqueFd fd_, stop_fd_;
  std::thread reader_;
  std::multimap<uint64_t, uint64_t> ranges_ GUARDED_BY(mutex_);
  RankedSpin<lock_rank::kUserfaultfdLogs> logs_lock_;
  std::array<Attached, kLogMax> logs_ GUARDED_BY(logs_lock_){};
};

}  // namespace

std::shared_ptr<Monitor> make_userfaultfd_monitor() {
  return std::make_shared<UserfaultfdMonitor>();
}

}  // namespace weft::mem
