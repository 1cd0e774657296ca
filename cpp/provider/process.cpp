// cpp/provider/process.cpp: the NIC of this process, and forks.
#include <pthread.h>

#include <algorithm>
#include <type_traits>

#include "provider/group.hpp"
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
  helper_after_fork_in_child();
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
  if_explained(front, subject, [&] {
    explain(front, subject, call,
            std::string(call) +
                ": the object belongs to the process that forked this one\n  rule: a NIC and everything on it stay "
                "with the process that opened them\n  try: open a fabric and its objects in the child");
  });
  return -fi_err::kEOPBADSTATE;
}

namespace {

// The front and the subject of an object of Weft; null: another object.
const Front* front_of_fid(ofi::Fid* fid, Subject* subject) noexcept {
  const auto found = [&](const auto& object) {
    *subject = subject_of<std::remove_cvref_t<decltype(object)>>();
    return &front_of(object);
  };
  switch (fid->fclass) {
    case kClassFabric:
      *subject = Subject::fabric;
      return &of(as<ofi::FidFabric>(fid)).front;
    case kClassDomain:
      return found(of(as<ofi::FidDomain>(fid)));
    case kClassEp:
      return found(of(as<ofi::FidEp>(fid)));
    case kClassPep:
      return found(of(as<ofi::FidPep>(fid)));
    case kClassAv:
      return found(of(as<ofi::FidAv>(fid)));
    case kClassAvSet:
      *subject = Subject::av;
      return &front_of(of(as<ofi::FidAvSet>(fid)));
    case kClassMc:
      *subject = Subject::ep_ctrl;
      return &front_of(reinterpret_cast<McShell*>(fid)->of);
    case kClassMr:
      return found(reinterpret_cast<MrShell*>(fid)->of);
    case kClassEq:
      return found(of(as<ofi::FidEq>(fid)));
    case kClassCq:
      return found(of(as<ofi::FidCq>(fid)));
    case kClassCntr:
      return found(of(as<ofi::FidCntr>(fid)));
    default:
      return nullptr;
  }
}

}  // namespace

int refuse_missing(const ofi::Fid* fid, std::string_view member) noexcept {
  Subject subject{};
  const Front* const front = front_of_fid(const_cast<ofi::Fid*>(fid), &subject);
  if (front == nullptr) return -fi_err::kENOSYS;
  if_explained(*front, subject, [&] {
    const size_t call = member.rfind("::"), table = member.rfind("::", call - 1) + 2;
    std::string name = "fi_ops";  // weft::ofi::DomainOps::scalable_ep is struct fi_ops_domain's
    const std::string_view kind = member.substr(table, call - table - std::string_view("Ops").size());
    if (kind != "Fid") name += '_';
    for (const char c : kind == "Fid" ? std::string_view() : kind) name += static_cast<char>(c | 0x20);
    name += "->" + std::string(member.substr(call + 2));
    explain(*front, subject, name.c_str(),
            name +
                ": the object has no such call\n  rule: an endpoint has the calls of its capabilities\n  try: "
                "hints->caps; docs/howto/c-programs.md names what no C program has here");
  });
  return -fi_err::kENOSYS;
}

ofi::FidOps fid_ops(int (*close)(ofi::Fid*), int (*control)(ofi::Fid*, int, void*),
                    int (*bind)(ofi::Fid*, ofi::Fid*, uint64_t),
                    int (*open)(ofi::Fid*, const char*, uint64_t, void**, void*)) noexcept {
  ofi::FidOps ops = stubs<ofi::FidOps, &ofi::FidOps::close, &ofi::FidOps::bind, &ofi::FidOps::control,
                          &ofi::FidOps::ops_open, &ofi::FidOps::tostr, &ofi::FidOps::ops_set>();
  ops.close = close;
  if (control != nullptr) ops.control = control;
  if (bind != nullptr) ops.bind = bind;
  if (open != nullptr) ops.ops_open = open;
  return ops;
}

}  // namespace weft::provider
