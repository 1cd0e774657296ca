// cpp/provider/process.cpp: the NIC of this process, and forks.
#include <pthread.h>

#include <algorithm>

#include "provider/network.hpp"
#include "provider/objects.hpp"

namespace weft::provider {

std::atomic<int> g_forks{0};

namespace {

RankedMutex<lock_rank::kProviderNic> g_nic_lock;
std::shared_ptr<host::HostNic>& current_nic() {
  static auto* const nic = new std::shared_ptr<host::HostNic>();  // no destructor: end_nic() says when
  return *nic;
}

void before_fork() {
  g_nic_lock.lock_at_fork();
  if (current_nic() != nullptr) current_nic()->before_fork();
  helper_before_fork();
}
void after_fork_in_parent() {
  helper_after_fork();
  if (current_nic() != nullptr) current_nic()->after_fork_in_parent();
  g_nic_lock.unlock_after_fork();
}
void after_fork_in_child() {
  helper_after_fork();
  g_forks.fetch_add(1, std::memory_order_relaxed);
  if (current_nic() != nullptr) {
    current_nic()->after_fork_in_child();
    (void)new std::shared_ptr<host::HostNic>(std::move(current_nic()));  // the parent's threads and connections
    current_nic() = nullptr;
  }
  g_nic_lock.unlock_after_fork();
}

}  // namespace

std::shared_ptr<host::HostNic> nic_of_process(const Record& how) {
  const Guard guard(g_nic_lock);
  if (current_nic() == nullptr) {
    static const int watched = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    (void)watched;
    host::HostConfig config;
    config.engine_thread = !how.flag("manual");
    config.shm.strict = how.flag("strict");
    config.shm.cma = how.flag("cma");
    config.shm_link = how.flag("shm");
    config.viewers = how.flag("viewers");
    config.trace = how.text("trace");
    config.trace_records = how.number("trace_records");
    config.cache_monitor = how.text("cache_monitor");
    config.cache = {how.number("cache_count_max"), how.number("cache_bytes_max")};
    const Record network = how.nested("network");
    config.tcp.log = network.flag("log");
    config.tcp.timeout_ns = network.number("timeout_ns", config.tcp.timeout_ns);
    config.tcp.encryption = static_cast<link::Encryption>(std::min<uint64_t>(network.number("encryption"), 2));
    auto made = std::make_shared<host::HostNic>(config);
    open_network(*made, network);
    current_nic() = std::move(made);
  }
  return current_nic();
}

void end_nic() noexcept {
  const Guard guard(g_nic_lock);
  if (current_nic() == nullptr) return;
  if (current_nic().use_count() == 1) {
    current_nic() = nullptr;
  } else {
    current_nic()->nic().stop_engine();  // the program has not closed its domains
  }
}

int refuse_forked(const Front& front, Subject subject, const char* call) noexcept {
  if (explains(front, subject)) {
    try {
      explain(front, subject, call,
              std::string(call) +
                  ": the object belongs to the process that forked this one\n  rule: a NIC and everything on it stay "
                  "with the process that opened them\n  try: open a fabric and its objects in the child");
    } catch (const std::bad_alloc&) {
    }
  }
  return -fi_err::kEOPBADSTATE;
}

ofi::FidOps fid_ops(int (*close)(ofi::Fid*)) noexcept {
  ofi::FidOps ops = stubs(&ofi::FidOps::close, &ofi::FidOps::bind, &ofi::FidOps::control, &ofi::FidOps::ops_open,
                          &ofi::FidOps::tostr, &ofi::FidOps::ops_set);
  ops.close = close;
  return ops;
}

}  // namespace weft::provider
