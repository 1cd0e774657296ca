// cpp/link/epoll.hpp: the waiter of an engine: epoll over the links' descriptors, and an eventfd to wake it.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>

#include "base/fd.hpp"
#include "link/link.hpp"

namespace weft::link {

inline UniqueFd make_eventfd() {
  UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.valid()) throw Error(fi_err::kEMFILE, std::string("eventfd: ") + std::strerror(errno));
  return fd;
}
inline void ring_eventfd(int fd) noexcept {
  const uint64_t one = 1;
  (void)!::write(fd, &one, sizeof(one));
}
inline void drain_eventfd(int fd) noexcept {
  uint64_t n;
  (void)!::read(fd, &n, sizeof(n));
}

// An epoll set; each member has a 64-bit name.
class EpollSet {
 public:
  EpollSet() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (!fd_.valid()) throw Error(fi_err::kEMFILE, std::string("epoll_create1: ") + std::strerror(errno));
  }
  void add(int fd, uint64_t name, uint32_t events = EPOLLIN) {
    if (!try_add(fd, name, events)) {
      throw Error(fi_err::kENOMEM, std::string("epoll_ctl: ") + std::strerror(errno));
    }
  }
  [[nodiscard]] bool try_add(int fd, uint64_t name, uint32_t events) noexcept {
    epoll_event e{};
    e.events = events;
    e.data.u64 = name;
    return ::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &e) == 0;
  }
  void remove(int fd) noexcept { (void)::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }
  int wait(epoll_event* out, int count, int timeout_ms) noexcept {
    return ::epoll_wait(fd_.get(), out, count, timeout_ms);
  }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void close() noexcept { fd_.reset(); }

 private:
  UniqueFd fd_;
};

class EpollWaiter final : public Waiter {
 public:
  EpollWaiter() : wake_(make_eventfd()) { set_.add(wake_.get(), 0); }
  void wait(int64_t timeout_ns) override {
    epoll_event events[8];
    const int ms = timeout_ns < 0 ? -1 : static_cast<int>((timeout_ns + 999'999) / 1'000'000);
    const int n = set_.wait(events, 8, ms);
    for (int i = 0; i < n; ++i) {
      if (events[i].data.u64 == 0) drain_eventfd(wake_.get());
      if (events[i].data.u64 >= kFirstFlag) {
        flags_[events[i].data.u64 - kFirstFlag]->store(true, std::memory_order_relaxed);
      }
    }
  }
  void wake() override { ring_eventfd(wake_.get()); }
  void watch(int fd) override { set_.add(fd, 1); }
  // The same; sets *readable whenever it finds the descriptor readable. Call before the first wait.
  void watch(int fd, std::atomic<bool>* readable) {
    flags_.push_back(readable);
    set_.add(fd, kFirstFlag + flags_.size() - 1);
  }
  void close() noexcept {
    set_.close();
    wake_.reset();
  }

 private:
  static constexpr uint64_t kFirstFlag = 2;
  UniqueFd wake_;
  EpollSet set_;
  std::deque<std::atomic<bool>*> flags_;
};

}  // namespace weft::link
