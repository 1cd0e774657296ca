// tests/cpp/fabric.hpp: small fabrics for tests: a Side is a NIC with one domain, queue, address vector and endpoint; a
// Pair is an initiator and a target over one of the paths that an access can take; a Child is a forked process.
//
// Tests run on few cores: every wait polls and yields, and a watchdog ends it with a report of what the NICs were
// doing.
#pragma once

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "host/host.hpp"
#include "nic/queue.hpp"
#include "sodium.hpp"

#if defined(__SANITIZE_THREAD__)
#define WEFT_TEST_NO_FORK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEFT_TEST_NO_FORK 1  // its run-time library does not survive a fork whose child starts threads
#endif
#endif

namespace weft {
inline std::ostream& operator<<(std::ostream& out, Status s) {
  return out << "status " << static_cast<int>(s);
}
namespace nic {
inline std::ostream& operator<<(std::ostream& out, Refusal r) {
  return out << "refusal " << static_cast<int>(r);
}
}  // namespace nic
}  // namespace weft

namespace weft::test {

using nic::AtomicFamily;
using nic::AtomicOp;
using nic::CqEntry;
using nic::CqError;
using nic::Datatype;
using nic::OpKind;
using nic::PostResult;
using nic::Refusal;
namespace flag = nic::flag;

constexpr auto kPatience = std::chrono::seconds(60);  // the longest wait on an idle machine

// How many times longer work takes than on an idle machine: more threads may be ready to run than there are processors.
inline double slowness() {
  double load[1] = {1};
  if (::getloadavg(load, 1) != 1) return 1;
  return std::clamp(load[0] / static_cast<double>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))), 1.0, 20.0);
}

inline uint64_t test_seed() {
  const char* text = std::getenv("WEFT_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device{}();
}
inline int kill_rounds(int usual) {
  const char* text = std::getenv("WEFT_KILL_ROUNDS");
  return text != nullptr ? std::atoi(text) : usual;
}

// Polls until `done` is true. False when patience ends first; patience grows while other threads want the processors.
template <typename Done, typename Work>
bool poll_until(Done&& done, Work&& work, std::chrono::nanoseconds patience = kPatience) {
  auto left = std::chrono::duration<double>(patience);
  auto seen = std::chrono::steady_clock::now();
  for (uint32_t round = 0; !done(); ++round) {
    work();
    sched_yield();
    if (round % 64 == 63) {
      usleep(200);
      const auto now = std::chrono::steady_clock::now();
      left -= (now - seen) / slowness();
      seen = now;
      if (left.count() < 0) return false;
    }
  }
  return true;
}

// All NICs of a test name NICs of other hosts by the same numbers, so that their addresses mean the same to them.
inline const std::shared_ptr<link::Routes>& routes() {
  static const auto all = std::make_shared<link::Routes>();
  return all;
}

struct SideConfig {
  host::HostConfig host;
  nic::DomainConfig domain;
  nic::EndpointConfig ep;
  uint32_t cq_capacity = 1024;
  bool cq_overruns = false;
  uint64_t cq_flags = flag::kSend | flag::kRecv;
  std::optional<uint32_t> pid;
  bool counters = false;  // one counter of each kind: peers then send notices of their loads and stores
  bool enable = true;
  bool listen = false;                    // on tcp
  std::shared_ptr<host::HostNic> shared;  // the second side of a process that has one NIC

  SideConfig() {
    host.limits.mr_count_max = 1024;
    host.routes = routes();
    ep.caps = flag::kRma | flag::kAtomic | flag::kRead | flag::kWrite | flag::kRemoteRead | flag::kRemoteWrite |
              flag::kRmaEvent;
  }
};

class Side {
 public:
  explicit Side(const SideConfig& config = {})
      : host(config.shared ? config.shared : std::make_shared<host::HostNic>(config.host)),
        domain(std::make_unique<nic::Domain>(&host->nic(), config.domain)),
        cq(std::make_shared<nic::CompletionQueue>(config.cq_capacity, config.cq_overruns)),
        av(std::make_shared<nic::AddressVector>(domain.get())),
        manual(!host->config().engine_thread) {
    if (config.listen) {
      host->tcp().set_secret(sodium(), key_of("a secret of the tests, for tcp"));
      host->tcp().listen(link::parse_host("127.0.0.1", 0), std::nullopt);
    }
    ep = make_endpoint(config);
    if (config.enable) ep->enable(config.domain.nic, config.pid);
  }
  ~Side() {
    for (auto& region : regions) {
      std::string why;
      region->close(&why);
    }
    check();
    if (ep) ep->close();
    for (auto& extra : endpoints) extra->close();
    check();
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  std::shared_ptr<nic::Endpoint> make_endpoint(const SideConfig& config) {
    auto made = domain->make_endpoint(config.ep);
    made->bind_cq(cq, config.cq_flags);
    made->bind_av(av);
    if (config.counters) {
      made->bind_counter(write_cntr, flag::kWrite);
      made->bind_counter(read_cntr, flag::kRead);
      made->bind_counter(remote_write_cntr, flag::kRemoteWrite);
      made->bind_counter(remote_read_cntr, flag::kRemoteRead);
    }
    return made;
  }
  std::shared_ptr<nic::Endpoint> extra_endpoint(const SideConfig& config = {}) {
    auto made = make_endpoint(config);
    made->enable(config.domain.nic, config.pid);
    endpoints.push_back(made);
    return made;
  }

  [[nodiscard]] nic::Nic& nic() const { return host->nic(); }
  [[nodiscard]] wire::EpAddress address() const {  // as other sides know it
    wire::EpAddress address = ep->address();
    if (const auto at = host->tcp().listening()) address.nic = routes()->number({*at, address.nic});
    return address;
  }
  uint64_t insert(const Side& other) const { return av->insert(other.address()); }
  // Ends the process if the NIC contradicts itself.
  void check() const {
#if !defined(NDEBUG)
    host->check();
#endif
  }
  void progress() const { manual ? nic().progress() : nic().poll_from_app(); }
  // Makes all earlier memory accesses of this side's engine visible to the test, and the reverse. Only for tests: the
  // thread sanitizer does not see the synchronization between two processes, or two mappings of the same memory.
  void fence() const {
    std::byte dummy{};
    const iovec v{&dummy, 1};
    const auto region =
        domain->register_region(std::span(&v, 1), mem::kRemoteRead, 0xfe7ce0000ull + fences++, false, true);
    std::string why;
    BOOST_REQUIRE(region->close(&why));
  }

  std::byte* alloc(size_t bytes) const { return nic().segments().allocate(bytes); }
  std::shared_ptr<nic::MemoryRegion> reg(void* address, size_t length, uint64_t key,
                                         uint64_t access = mem::kRemoteRead | mem::kRemoteWrite, bool enabled = true) {
    const iovec v{address, length};
    return reg_list(std::span(&v, 1), key, access, enabled);
  }
  std::shared_ptr<nic::MemoryRegion> reg_list(std::span<const iovec> list, uint64_t key,
                                              uint64_t access = mem::kRemoteRead | mem::kRemoteWrite,
                                              bool enabled = true, bool unowned = false) {
    auto region = domain->register_region(list, access, key, unowned, enabled);
    regions.push_back(region);
    return region;
  }

  size_t read_cq(CqEntry* out, size_t max, bool* error_waits) const {
    const nic::DomainLock guard(domain.get());
    return cq->read(out, max, error_waits);
  }
  bool read_error(CqEntry* entry, CqError* error) const {
    const nic::DomainLock guard(domain.get());
    return cq->read_error(entry, error);
  }
  [[nodiscard]] uint32_t unread() const {
    const nic::DomainLock guard(domain.get());
    return cq->unread();
  }
  [[nodiscard]] std::string state() const {
    const auto s = nic().statistics();
    const nic::DomainLock guard(domain.get());
    return "unread " + std::to_string(cq->unread()) + ", reserved " + std::to_string(cq->reserved()) +
           ", outstanding " + std::to_string(ep->outstanding()) + ", direct " + std::to_string(s.direct_ops) +
           ", cma " + std::to_string(s.cma_ops) + ", framed " + std::to_string(s.framed_ops) + ", failed " +
           std::to_string(s.failed_ops) + ", served " + std::to_string(s.frames_served) + ", peers " +
           std::to_string(s.peers);
  }

  std::shared_ptr<host::HostNic> host;
  std::unique_ptr<nic::Domain> domain;
  std::shared_ptr<nic::CompletionQueue> cq;
  std::shared_ptr<nic::AddressVector> av;
  std::shared_ptr<nic::Endpoint> ep;
  std::shared_ptr<nic::Counter> write_cntr = std::make_shared<nic::Counter>(),
                                read_cntr = std::make_shared<nic::Counter>(),
                                remote_write_cntr = std::make_shared<nic::Counter>(),
                                remote_read_cntr = std::make_shared<nic::Counter>();
  std::vector<std::shared_ptr<nic::Endpoint>> endpoints;
  std::vector<std::shared_ptr<nic::MemoryRegion>> regions;
  bool manual;
  mutable uint64_t fences = 0;
};

// The entries read from a completion queue.
struct Completion {
  CqEntry entry;
  int error = 0;  // FI_ code
  Status status = Status::ok;
  std::string text;
  uint64_t olen = 0;
};

inline std::optional<Completion> try_completion(const Side& side) {
  Completion c;
  bool error_waits = false;
  if (side.read_cq(&c.entry, 1, &error_waits) == 1) return c;
  if (!error_waits) return std::nullopt;
  CqError error;
  if (!side.read_error(&c.entry, &error)) return std::nullopt;
  c.error = error.err;
  c.status = error.status;
  c.text = error.text;
  c.olen = error.olen;
  return c;
}

// A short form for posting one remote access.
struct Access {
  OpKind kind = OpKind::write;
  uint64_t dest = 0;
  std::vector<iovec> local;
  std::vector<wire::RmaRange> remote;
  uint64_t flags = 0, context = 0, imm = 0;
  bool inject = false;
};

inline PostResult post(nic::Endpoint& ep, const Access& a) {
  nic::RmaArgs args;
  args.kind = a.kind;
  args.dest = a.dest;
  args.local = a.local;
  args.remote = a.remote;
  args.flags = a.flags;
  args.context = a.context;
  args.imm = a.imm;
  args.inject_call = a.inject;
  if (a.local.size() == 1 && a.remote.size() == 1 && a.local[0].iov_len == a.remote[0].length) {  // as fi_write does
    return ep.post_one(a.kind, a.local[0].iov_base, a.local[0].iov_len, a.dest, a.remote[0].addr, a.remote[0].key,
                       a.flags, a.context, a.imm, a.inject);
  }
  return ep.post(args);
}
inline Access write_of(uint64_t dest, const void* from, size_t n, uint64_t addr, uint64_t key, uint64_t context = 1) {
  return {OpKind::write, dest, {{const_cast<void*>(from), n}}, {{addr, n, key}}, 0, context, 0, false};
}
inline Access read_of(uint64_t dest, void* to, size_t n, uint64_t addr, uint64_t key, uint64_t context = 1) {
  return {OpKind::read, dest, {{to, n}}, {{addr, n, key}}, 0, context, 0, false};
}

// ---- paths -------------------------------------------------------------------------------------------------------

enum class Path {
  self,    // both endpoints in one process
  direct,  // memory that Weft allocated: load and store
  cma,     // foreign memory: process_vm_readv/writev
  ring,    // foreign memory, and the kernel refuses process_vm_*: through the owner's engine
  strict,  // no shared memory: every access through the owner's engine
  tcp,     // the two sides treat each other as other hosts
};
constexpr Path kPaths[] = {Path::self, Path::direct, Path::cma, Path::ring, Path::strict, Path::tcp};
constexpr const char* name_of(Path path) {
  constexpr const char* kNames[] = {"self", "direct", "cma", "ring", "strict", "tcp"};
  return kNames[static_cast<size_t>(path)];
}
inline std::ostream& operator<<(std::ostream& out, Path path) {
  return out << name_of(path);
}

struct PairConfig {
  Path path = Path::direct;
  bool manual = false;
  SideConfig a, b;
  size_t bytes = 1 << 16;
  uint64_t key = 42;
};

// Initiator `a`, target `b` with one region of `bytes` bytes at offset 0 under `key`.
class Pair {
 public:
  explicit Pair(PairConfig config) : config_(std::move(config)) {
    for (SideConfig* side : {&config_.a, &config_.b}) {
      side->host.engine_thread = !config_.manual;
      side->host.shm.strict = config_.path == Path::strict;
      side->host.shm.cma = config_.path != Path::ring;
      side->host.shm_link = config_.path != Path::tcp;
      side->listen = config_.path == Path::tcp;
    }
    a = std::make_unique<Side>(config_.a);
    if (config_.path == Path::self) config_.b.shared = a->host;
    b = std::make_unique<Side>(config_.b);
    memory = allocate(config_.bytes);
    region = b->reg(memory, config_.bytes, config_.key);
    b->fence();
    dest = a->insert(*b);
  }
  ~Pair() {
    a.reset();
    b.reset();
    for (auto [address, bytes] : foreign_) ::munmap(address, bytes);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  // Memory of the target, of the kind for which accesses take this path.
  std::byte* allocate(size_t bytes) {
    if (config_.path != Path::cma && config_.path != Path::ring) return b->alloc(bytes);
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(p != MAP_FAILED);
    foreign_.emplace_back(p, bytes);
    return static_cast<std::byte*>(p);
  }
  void poll() const {
    a->progress();
    b->progress();
  }
  template <typename Done>
  void until(Done&& done, const char* what) {
    if (!poll_until(done, [&] { poll(); })) {
      BOOST_FAIL(name_of(config_.path) << ": waited too long for " << what << "\n a: " << a->state()
                                       << "\n b: " << b->state());
    }
  }
  Completion wait(Side* side = nullptr) {
    std::optional<Completion> c;
    until([&] { return (c = try_completion(side != nullptr ? *side : *a)).has_value(); }, "a completion");
    return *c;
  }
  // Posts and waits. A refused call returns an entry with error -1.
  Completion run(const Access& access, nic::Endpoint* ep = nullptr) {
    const PostResult r = post(ep != nullptr ? *ep : *a->ep, access);
    if (r.refusal != Refusal::none) {
      Completion c;
      c.error = -1;
      c.text = "refused " + std::to_string(static_cast<int>(r.refusal));
      return c;
    }
    return wait();
  }
  Completion write(const void* from, size_t n, uint64_t addr) {
    return run(write_of(dest, from, n, addr, config_.key));
  }
  Completion read(void* to, size_t n, uint64_t addr) { return run(read_of(dest, to, n, addr, config_.key)); }
  // A copy of the target's memory, taken while the target's engine does not access it.
  std::vector<std::byte> look(size_t offset, size_t n) const {
    b->fence();
    std::vector<std::byte> copy(memory + offset, memory + offset + n);
    b->fence();
    return copy;
  }
  void fill(std::byte value) const {
    b->fence();
    std::memset(memory, static_cast<int>(value), config_.bytes);
    b->fence();
  }
  [[nodiscard]] uint64_t key() const { return config_.key; }
  [[nodiscard]] Path path() const { return config_.path; }

  std::unique_ptr<Side> a, b;
  std::byte* memory = nullptr;
  std::shared_ptr<nic::MemoryRegion> region;
  uint64_t dest = 0;

 private:
  PairConfig config_;
  std::vector<std::pair<void*, size_t>> foreign_;
};

inline PairConfig pair_of(Path path, bool manual = false) {
  PairConfig config;
  config.path = path;
  config.manual = manual;
  return config;
}

inline std::vector<std::byte> pattern(size_t n, uint64_t seed = 1) {
  std::vector<std::byte> bytes(n);
  std::mt19937_64 random(seed);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// ---- processes ---------------------------------------------------------------------------------------------------

// A forked process that runs `body` with one end of a socket pair. The destructor kills it.
// Fork before the parent has made a NIC: the child of a fork has none of the parent's threads.
class Child {
 public:
  explicit Child(const std::function<void(int)>& body) {
    int ends[2];
    BOOST_REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    pid_ = ::fork();
    BOOST_REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::close(ends[0]);
      for (int s : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) std::signal(s, SIG_DFL);
      ::alarm(1200);  // ends the child if the test run hangs
      try {
        body(ends[1]);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "child %d: %s\n", ::getpid(), e.what());
        ::_exit(3);
      } catch (...) {
        ::_exit(4);
      }
      ::_exit(0);
    }
    ::close(ends[1]);
    fd_ = ends[0];
  }
  ~Child() {
    kill(SIGKILL);
    wait();
    ::close(fd_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }
  int wait() {
    if (pid_ <= 0) return status_;
    ::waitpid(pid_, &status_, 0);
    pid_ = -1;
    return status_;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
  int status_ = 0;
};

template <typename T>
void tell(int fd, const T& value) {
  if (::send(fd, &value, sizeof(value), MSG_NOSIGNAL) != sizeof(value)) ::_exit(5);
}
template <typename T>
std::optional<T> hear(int fd, int patience_ms = 60'000) {
  pollfd p{fd, POLLIN, 0};
  T value;
  if (::poll(&p, 1, patience_ms) != 1 || ::recv(fd, &value, sizeof(value), 0) != sizeof(value)) return std::nullopt;
  return value;
}

}  // namespace weft::test
