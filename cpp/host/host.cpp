// cpp/host/host.cpp: see host.hpp.
#include "host/host.hpp"

#include <sys/random.h>
#include <time.h>

#include "mem/guard.hpp"

namespace weft::host {

namespace {

uint64_t read_ns(clockid_t which) noexcept {
  timespec ts;
  ::clock_gettime(which, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

class MonotonicClock final : public Clock {
 public:
  uint64_t now_ns() override { return read_ns(CLOCK_MONOTONIC); }
  uint64_t coarse_ns() override { return read_ns(CLOCK_MONOTONIC_COARSE); }
};

class Calendar final : public Clock {
 public:
  uint64_t now_ns() override { return read_ns(CLOCK_REALTIME); }
};
Calendar g_calendar;  // without state

class SystemRandom final : public Random {
 public:
  uint64_t next() override {
    uint64_t u = 0;
    if (::getrandom(&u, sizeof(u), 0) != sizeof(u)) throw Error(fi_err::kEIO, "getrandom failed");
    return u;
  }
};

}  // namespace

Clock& calendar() noexcept {
  return g_calendar;
}

HostNic::HostNic(const HostConfig& config)
    : config_(config),
      clock_(std::make_unique<MonotonicClock>()),
      random_(std::make_unique<SystemRandom>()),
      world_(std::make_unique<HostWorld>()),
      waiter_(std::make_unique<link::EpollWaiter>()),
      monitor_(config.cache.count_max == 0 ? nullptr : mem::make_system_monitor(config.cache_monitor)),
      segments_(std::make_unique<mem::SegmentSet>()),
      devices_(std::make_unique<mem::Devices>()),
      cache_(std::make_unique<mem::RegistrationCache>(config.cache, monitor_)),
      table_(std::make_unique<mem::Table>(config.limits.mr_count_max)),
      life_(std::make_unique<mem::LifeMark>(table_->life())),
      routes_(config.routes != nullptr ? config.routes : std::make_shared<link::Routes>()) {
  // The monitor watches our own segments only if the user names a monitor: watching patches functions of libc in the
  // program, and few programs map other memory over ours.
  if (!config.cache_monitor.empty()) segments_->watch_with(monitor_);
  nic::Nic::Parts parts;
  parts.clock = clock_.get();
  parts.random = random_.get();
  parts.world = world_.get();
  parts.waiter = waiter_.get();
  parts.table = table_.get();
  parts.segments = segments_.get();
  parts.devices = devices_.get();
  parts.cache = cache_.get();
  self_ = std::make_unique<link::SelfLink>(*table_, *waiter_);
  parts.links.push_back(self_.get());
  if (config.shm_link) {
    shm_ = std::make_unique<link::ShmLink>(config.shm, *table_, *segments_, *clock_, *random_, *waiter_);
    parts.links.push_back(shm_.get());
  }
  link::TcpConfig tcp = config.tcp;
  tcp.here_by_shm = config.shm_link;
  tcp_ = std::make_unique<link::TcpLink>(tcp, *routes_, *table_, *clock_, *random_, *waiter_);
  parts.links.push_back(tcp_.get());
  if (config.wrap) {
    for (link::Link*& link : parts.links) {
      auto outer = config.wrap(*link, *clock_, *random_);
      if (outer == nullptr) continue;
      assert(outer.get() != link && "a link wraps another link");
      link->wrap_in(*outer);
      link = wrapping_.emplace_back(std::move(outer)).get();
    }
  }
  if (config.viewers) viewers_ = std::make_unique<ViewerSocket>(*random_, *waiter_);
  parts.viewers = viewers_.get();
  if (!config.trace.empty()) {
    trace_ = std::make_unique<TraceFile>(config.trace, config.trace_records, *clock_, *random_);
    parts.trace = &trace_->trace();
  }
  mem::keep_fault_handler();
  nic_ = std::make_unique<nic::Nic>(std::move(parts), config.limits);
  segments_->held_by(nic_.get());
  if (config.engine_thread) nic_->start_engine();
}

HostNic::~HostNic() {
  if (nic_) nic_->stop_engine();
  segments_->held_by(nullptr);
}

void HostNic::after_fork_in_child() noexcept {
  if (config_.routes == nullptr) routes_->after_fork();
  mem::fault_handler_after_fork();
  cache_->after_fork_in_child();
  if (monitor_ != nullptr) monitor_->after_fork_in_child();
  nic_->after_fork_in_child();
  if (viewers_) viewers_->close();
  waiter_->close();
}

}  // namespace weft::host
