// cpp/host/host.hpp: a NIC on a real machine: real clock and random numbers, epoll, memfds, the self, shm and tcp
// links. The composition root: HostNic makes every object that cpp/nic takes as a parameter, for the binding, the C++
// tests and the microbenchmarks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/slab.hpp"
#include "host/trace_file.hpp"
#include "host/viewers.hpp"
#include "host/world.hpp"
#include "link/epoll.hpp"
#include "link/self.hpp"
#include "link/shm.hpp"
#include "link/tcp.hpp"
#include "mem/cache.hpp"
#include "mem/life.hpp"
#include "nic/nic.hpp"

namespace weft::host {

struct HostConfig {
  bool engine_thread = true;  // WEFT_ENGINE=thread; false: manual progress
  link::ShmConfig shm;
  bool shm_link = true;
  bool viewers = true;  // WEFT_TOP: processes of this user may look at the NIC's state
  link::TcpConfig tcp;
  mem::CacheLimits cache;
  std::string cache_monitor;  // FI_MR_CACHE_MONITOR; empty: the default of this machine
  std::string trace;          // WEFT_TRACE: the folder of the trace; empty: nothing is recorded
  size_t trace_records = 1u << 18;
  nic::Limits limits;
  // The numbers of NICs of other hosts, for NICs that share addresses; null: the NIC has a table of its own. The owner
  // of a table that NICs share calls its before_fork() and after_fork().
  std::shared_ptr<link::Routes> routes;
  // Called for each link: returns a link that wraps it (link::Link::wrap_in), or null. Null: no link is wrapped.
  std::function<std::unique_ptr<link::Link>(link::Link& inner, Clock& clock, Random& random)> wrap;
};

class HostNic {
 public:
  explicit HostNic(const HostConfig& config);
  ~HostNic();
  HostNic(const HostNic&) = delete;
  HostNic& operator=(const HostNic&) = delete;

  [[nodiscard]] nic::Nic& nic() noexcept { return *nic_; }
  [[nodiscard]] link::TcpLink& tcp() noexcept { return *tcp_; }
  [[nodiscard]] link::Routes& routes() noexcept { return *routes_; }
  [[nodiscard]] mem::RegistrationCache& cache() noexcept { return *cache_; }
  [[nodiscard]] HostWorld& world() noexcept { return *world_; }
  [[nodiscard]] const HostConfig& config() const noexcept { return config_; }
#if !defined(NDEBUG)
  // Ends the process if the NIC, its memory table, its ring or a slab contradicts itself. The caller holds no lock.
  void check() {
    nic_->check();
    table_->check();
    if (shm_) shm_->check();
    Slab::check_all();
  }
#endif
  void before_fork() {
    nic_->before_fork();
    cache_->before_fork();
    if (config_.routes == nullptr) routes_->before_fork();
  }
  void after_fork_in_parent() noexcept {
    if (config_.routes == nullptr) routes_->after_fork();
    cache_->after_fork_in_parent();
    nic_->after_fork_in_parent();
  }
  // In a child after fork(): closes every descriptor, so that peers still notice the parent's death.
  void after_fork_in_child() noexcept;

 private:
  HostConfig config_;
  std::unique_ptr<Clock> clock_;
  std::unique_ptr<Random> random_;
  std::unique_ptr<HostWorld> world_;
  std::unique_ptr<link::EpollWaiter> waiter_;
  std::shared_ptr<mem::Monitor> monitor_;  // watches system memory; null: no cache
  std::unique_ptr<mem::SegmentSet> segments_;
  std::unique_ptr<mem::Devices> devices_;
  std::unique_ptr<mem::RegistrationCache> cache_;
  std::unique_ptr<mem::Table> table_;
  std::unique_ptr<mem::LifeMark> life_;  // in the table
  std::shared_ptr<link::Routes> routes_;
  std::unique_ptr<link::SelfLink> self_;
  std::unique_ptr<link::ShmLink> shm_;
  std::unique_ptr<link::TcpLink> tcp_;
  std::vector<std::unique_ptr<link::Link>> wrapping_;
  std::unique_ptr<ViewerSocket> viewers_;
  std::unique_ptr<TraceFile> trace_;
  std::unique_ptr<nic::Nic> nic_;
};

// The time of the day, since 1970.
Clock& calendar() noexcept;

// Writes to an eventfd, which the caller keeps open until forget().
class FdNotifier final : public nic::Notifier {
 public:
  explicit FdNotifier(int fd) noexcept : fd_(fd) {}
  void notify() noexcept override {
    const int fd = fd_.load(std::memory_order_acquire);
    if (fd >= 0) link::ring_eventfd(fd);
  }
  void forget() noexcept { fd_.store(-1, std::memory_order_release); }

 private:
  std::atomic<int> fd_;
};

// A descriptor that becomes readable when it is notified (FI_WAIT_FD). Nobody can wait on a descriptor that nobody has
// asked for: until then notify() and drain() make no system call.
class EventfdNotifier final : public nic::Notifier {
 public:
  EventfdNotifier() : fd_(link::make_eventfd()) {}
  void notify() noexcept override {
    if ((word_.fetch_or(kRaised) & kRaised) == 0) settle();
  }
  // The caller checks the state of its queue afterwards, and sees what a notify() in between tells.
  void drain() noexcept {
    if (raised() && (word_.fetch_and(kClaimed) & kRaised) != 0) settle();
  }
  [[nodiscard]] bool raised() const noexcept { return (word_.load(std::memory_order_relaxed) & kRaised) != 0; }
  [[nodiscard]] int fd() noexcept {
    if (!asked_.exchange(true)) settle();
    return fd_.get();
  }

 private:
  static constexpr uint8_t kRaised = 1, kClaimed = 2;

  // Makes the descriptor say what the word says: one thread at a time, which sees what others change meanwhile.
  void settle() noexcept {
    if (!asked_ || (word_.fetch_or(kClaimed) & kClaimed) != 0) return;
    uint8_t word = word_;
    do {
      if (const bool is = (word & kRaised) != 0; is != std::exchange(shown_, is))
        is ? link::ring_eventfd(fd_.get()) : link::drain_eventfd(fd_.get());
    } while (!word_.compare_exchange_strong(word, word & kRaised));
  }

  UniqueFd fd_;
  std::atomic<uint8_t> word_{0};
  std::atomic<bool> asked_{false};
  bool shown_ = false;  // the claiming thread's: the descriptor is readable
};

}  // namespace weft::host
