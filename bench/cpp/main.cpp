// bench/cpp/main.cpp: weft_microbench: the NIC's paths from C++, each beside its limit taken in the same run.
//
//   weft_microbench [--json] [--list] [FILTER ...]     a filter is a part of a bench's name
//
// A row: median and 99th percentile (of batches; of single round trips for the ping-pongs), the limit by name and
// value, the share of it that was reached (1: at the limit), the budget of DESIGN.md and whether it was met. Peers are
// forked processes. Poll loops give the core away (PollPacer): two cores are enough for everything here.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../../tests/cpp/sodium.hpp"
#include "base/backoff.hpp"
#include "host/host.hpp"
#include "mem/maps.hpp"
#include "nic/atomics.hpp"
#include "ring/mpsc.hpp"

namespace {

using namespace weft;
namespace flag = nic::flag;

// ---- rows --------------------------------------------------------------------------------------------------------

struct Row {
  std::string name;
  const char* unit = "ns";  // or GB/s, where larger is better
  double median = 0, p99 = 0;
  std::string limit_name;
  double limit = 0;
  std::string budget;  // empty: none in DESIGN.md
  bool met = true;
};

std::vector<Row> g_rows;
bool g_json = false;

double share_of(const Row& r) {
  if (r.limit == 0 || r.median == 0) return 0;
  return std::strcmp(r.unit, "ns") == 0 ? r.limit / r.median : r.median / r.limit;
}

void add(Row row) {
  if (g_json) {
    std::printf(
        "{\"name\": \"%s\", \"unit\": \"%s\", \"median\": %.4g, \"p99\": %.4g, \"limit_name\": \"%s\", "
        "\"limit_value\": %.4g, "
        "\"limit_share\": %.4g, \"budget\": \"%s\", \"met\": %s}\n",
        row.name.c_str(), row.unit, row.median, row.p99, row.limit_name.c_str(), row.limit, share_of(row),
        row.budget.c_str(),
        row.budget.empty() ? "null"
        : row.met          ? "true"
                           : "false");
  } else {
    if (g_rows.empty()) {
      std::printf("%-46s %9s %9s %-5s %-26s %9s %6s  %-22s\n", "", "median", "p99", "", "limit", "", "share", "budget");
    }
    std::printf("%-46s %9.1f %9.1f %-5s %-26s %9.1f %6.2f  %-22s %s\n", row.name.c_str(), row.median, row.p99, row.unit,
                row.limit_name.c_str(), row.limit, share_of(row), row.budget.c_str(),
                row.budget.empty() ? ""
                : row.met          ? "met"
                                   : "NOT MET");
  }
  std::fflush(stdout);
  g_rows.push_back(std::move(row));
}

double now_ns() {
  return static_cast<double>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

struct Timed {
  double median = 0, p99 = 0;
};
Timed quantiles(std::vector<double>& ns) {
  std::sort(ns.begin(), ns.end());
  return {ns[ns.size() / 2], ns[std::min(ns.size() - 1, ns.size() * 99 / 100)]};
}

// Nanoseconds a call, over batches of `calls`.
template <typename Body>
Timed measure(int calls, Body&& body, int batches = 51) {
  std::vector<double> ns;
  body();
  for (int b = 0; b < batches; ++b) {
    const double start = now_ns();
    for (int i = 0; i < calls; ++i) body();
    ns.push_back((now_ns() - start) / calls);
  }
  return quantiles(ns);
}

// Two bodies in turn, batch by batch: what the machine does to one it does to the other.
template <typename Ours, typename Limit>
std::pair<Timed, Timed> measure_both(int calls, Ours&& ours, Limit&& limit, int batches = 51) {
  std::vector<double> a, b;
  ours();
  limit();
  for (int i = 0; i < batches; ++i) {
    double start = now_ns();
    for (int k = 0; k < calls; ++k) ours();
    a.push_back((now_ns() - start) / calls);
    start = now_ns();
    for (int k = 0; k < calls; ++k) limit();
    b.push_back((now_ns() - start) / calls);
  }
  return {quantiles(a), quantiles(b)};
}

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "weft_microbench: %s\n", what);
  std::exit(1);
}

// After a round that found nothing.
void rest(PollPacer& pacer) {
  if (pacer.due()) pacer.yield_measured();
}

// ---- sides and peers ---------------------------------------------------------------------------------------------

struct Side {
  explicit Side(bool cma = true, uint32_t mr_count_max = 1 << 12, bool tcp = false, bool encrypted = false) {
    host::HostConfig config;
    config.shm.cma = cma;
    config.shm_link = !tcp;
    config.tcp.encryption = encrypted ? link::Encryption::on : link::Encryption::off;
    config.limits.mr_count_max = mr_count_max;
    host = std::make_unique<host::HostNic>(config);
    if (tcp) {
      host->tcp().set_secret(test::sodium(), test::key_of("a secret of the benchmark"));
      host->tcp().listen(link::parse_host("127.0.0.1", 0), std::nullopt);
    }
    domain = std::make_unique<nic::Domain>(&host->nic(), nic::DomainConfig{});
    cq = std::make_shared<nic::CompletionQueue>(4096);
    av = std::make_shared<nic::AddressVector>(domain.get());
    ep = endpoint(flag::kSend | flag::kRecv);
    quiet = endpoint(flag::kSend | flag::kRecv | flag::kSelectiveCompletion);
  }
  ~Side() {
    for (auto& r : regions) {
      std::string why;
      r->close(&why);
    }
    ep->close();
    quiet->close();
  }
  std::shared_ptr<nic::Endpoint> endpoint(uint64_t cq_flags) {
    nic::EndpointConfig config;
    config.caps = flag::kRma | flag::kAtomic | flag::kRead | flag::kWrite | flag::kRemoteRead | flag::kRemoteWrite;
    auto made = domain->make_endpoint(config);
    made->bind_cq(cq, cq_flags);
    made->bind_av(av);
    made->enable(0, {});
    return made;
  }
  void reg(void* address, size_t length, uint64_t key) {
    const iovec v{address, length};
    regions.push_back(domain->register_region({&v, 1}, mem::kRemoteRead | mem::kRemoteWrite, key, false, true));
  }
  size_t take(nic::CqEntry* out, size_t max) {
    bool error_waits = false;
    size_t n;
    {
      const nic::DomainLock guard(domain.get());
      n = cq->read(out, max, &error_waits);
    }
    if (error_waits) {
      nic::CqEntry entry;
      nic::CqError error;
      const nic::DomainLock guard(domain.get());
      cq->read_error(&entry, &error);
      die(error.text.c_str());
    }
    return n;
  }
  void wait_one() {
    nic::CqEntry entry;
    PollPacer pacer;
    while (take(&entry, 1) == 0) {
      host->nic().poll_from_app();
      rest(pacer);
    }
  }
  nic::PostResult one(nic::OpKind kind, void* local, size_t n, uint64_t dest, uint64_t addr, uint64_t key) {
    return ep->post_one(kind, local, n, dest, addr, key, 0, 1, 0, false);
  }
  std::unique_ptr<host::HostNic> host;
  std::unique_ptr<nic::Domain> domain;
  std::shared_ptr<nic::CompletionQueue> cq;
  std::shared_ptr<nic::AddressVector> av;
  std::shared_ptr<nic::Endpoint> ep, quiet;
  std::vector<std::shared_ptr<nic::MemoryRegion>> regions;
};

constexpr size_t kBytes = size_t{4} << 20;
constexpr uint64_t kKey = 1, kForeignKey = 2;

struct Told {
  wire::EpAddress address;
  uint64_t offset = 0;   // of its segment memory, in its segment 0
  uint64_t foreign = 0;  // its private memory, in its address space
};

// A forked process. Fork while this process has no NIC.
class Peer {
 public:
  explicit Peer(const std::function<void(int)>& body) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) die("socketpair");
    std::fflush(stdout);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(120);
      body(ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    fd_ = ends[0];
  }
  ~Peer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(fd_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
  int fd_;
};

template <typename T>
void tell(int fd, const T& value) {
  if (::send(fd, &value, sizeof(value), MSG_NOSIGNAL) != sizeof(value)) ::_exit(1);
}
template <typename T>
T hear(int fd) {
  T value;
  if (::recv(fd, &value, sizeof(value), 0) != sizeof(value)) die("the other process is gone");
  return value;
}

std::byte* private_memory(size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) die("mmap");
  std::memset(p, 1, bytes);
  return static_cast<std::byte*>(p);
}
std::byte* shared_memory(size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) die("mmap");
  return static_cast<std::byte*>(p);
}

void be_idle_target(int fd) {
  Side side;
  std::byte* memory = side.host->nic().segments().allocate(kBytes);
  std::memset(memory, 1, kBytes);
  std::byte* foreign = private_memory(kBytes);
  side.reg(memory, kBytes, kKey);
  side.reg(foreign, kBytes, kForeignKey);
  tell(fd, Told{side.ep->address(), side.host->nic().segments().find(memory, kBytes)->offset,
                reinterpret_cast<uint64_t>(foreign)});
  for (;;) ::pause();  // its engine sleeps, too
}

// An initiator beside an idle target in another process.
struct Fabric {
  explicit Fabric(bool cma = true, uint32_t mr_count_max = 1 << 12)
      : peer(be_idle_target), told(hear<Told>(peer.fd())), side(cma, mr_count_max) {
    dest = side.av->insert(told.address);
    local = side.host->nic().segments().allocate(kBytes);
    std::memset(local, 2, kBytes);
    for (const uint64_t key : {kKey, kForeignKey}) {
      side.one(nic::OpKind::write, local, 8, dest, 0, key);
      side.wait_one();
    }
    for (link::Link* link : side.host->nic().links()) {
      for (const auto& p : link->peers()) {
        if (!p->same_process && p->segment_base(0) != nullptr) target = p->segment_base(0) + told.offset;
      }
    }
  }
  void complete_all(int n) {
    nic::CqEntry entries[64];
    for (int done = 0; done < n;) done += static_cast<int>(side.take(entries, 64));
  }
  Peer peer;
  Told told;
  Side side;
  uint64_t dest = 0;
  std::byte* local = nullptr;
  std::byte* target = nullptr;  // the target's memory in our own mapping
};

// ---- benches -----------------------------------------------------------------------------------------------------

void bench_put8() {
  Fabric f;
  auto& side = f.side;
  auto* word = reinterpret_cast<uint64_t*>(f.local);
  nic::CqEntry entry;
  std::atomic<uint64_t> bare{0};
  std::atomic<uint64_t> there{0};
  // What no put with a lock and a completion can do without: one locked instruction and two stores.
  const auto limit = [&] {
    bare.fetch_add(1, std::memory_order_seq_cst);
    there.store(*word, std::memory_order_relaxed);
    bare.store(0, std::memory_order_release);
  };
  auto [single, limit_ns] = measure_both(
      5000,
      [&] {
        side.one(nic::OpKind::write, word, 8, f.dest, 0, kKey);
        if (side.take(&entry, 1) != 1) die("no completion");
      },
      limit);
  add({"put 8 B, each completion read",
       "ns",
       single.median,
       single.p99,
       "locked add, two stores",
       limit_ns.median,
       {},
       true});
  auto [many, limit_many] = measure_both(
      64,
      [&] {
        for (int i = 0; i < 64; ++i) side.one(nic::OpKind::write, word, 8, f.dest, 0, kKey);
        f.complete_all(64);
      },
      [&] {
        for (int i = 0; i < 64; ++i) limit();
      });
  add({"put 8 B, completions read by 64", "ns", many.median / 64, many.p99 / 64, "locked add, two stores",
       limit_many.median / 64, "<= 15 ns", many.median / 64 <= 15});
  auto [quiet, limit_quiet] = measure_both(
      5000, [&] { (void)side.quiet->post_one(nic::OpKind::write, word, 8, f.dest, 0, kKey, 0, 1, 0, true); }, limit);
  add({"inject_write 8 B", "ns", quiet.median, quiet.p99, "locked add, two stores", limit_quiet.median, "<= 15 ns",
       quiet.median <= 15});
  const auto get = measure(5000, [&] {
    side.one(nic::OpKind::read, word, 8, f.dest, 0, kKey);
    if (side.take(&entry, 1) != 1) die("no completion");
  });
  add({"get 8 B, each completion read",
       "ns",
       get.median,
       get.p99,
       "locked add, two stores",
       limit_ns.median,
       {},
       true});
}

void bench_copy() {
  Fabric f;
  if (f.target == nullptr) die("the target's segment is not mapped");
  for (const size_t n : {size_t{4096}, size_t{65536}, size_t{1} << 20}) {
    const int calls = static_cast<int>(std::max<size_t>(4, (size_t{8} << 20) / n / 4));
    for (const bool put : {true, false}) {
      auto [ours, bare] = measure_both(
          calls,
          [&] {
            f.side.one(put ? nic::OpKind::write : nic::OpKind::read, f.local, n, f.dest, 0, kKey);
            f.complete_all(1);
          },
          [&] {
            put ? std::memcpy(f.target, f.local, n) : std::memcpy(f.local, f.target, n);
            asm volatile("" ::: "memory");
          },
          101);
      Row row{std::string(put ? "put " : "get ") + std::to_string(n / 1024) + " KiB, direct",
              "GB/s",
              static_cast<double>(n) / ours.median,
              static_cast<double>(n) / ours.p99,
              "memcpy, same buffers",
              static_cast<double>(n) / bare.median,
              {},
              true};
      if (n >= 65536) {
        row.budget = ">= 0.97 x memcpy";
        row.met = share_of(row) >= 0.97;
      }
      add(row);
    }
  }
}

void bench_foreign() {
  Fabric f;
  for (const size_t n : {size_t{4096}, size_t{65536}, size_t{1} << 20}) {
    const int calls = static_cast<int>(std::max<size_t>(2, (size_t{2} << 20) / n));
    for (const bool put : {true, false}) {
      const iovec local{f.local, n}, remote{reinterpret_cast<void*>(f.told.foreign), n};
      auto [ours, bare] = measure_both(
          calls,
          [&] {
            f.side.one(put ? nic::OpKind::write : nic::OpKind::read, f.local, n, f.dest, 0, kForeignKey);
            f.complete_all(1);
          },
          [&] {
            const ssize_t moved = put ? ::process_vm_writev(f.peer.pid(), &local, 1, &remote, 1, 0)
                                      : ::process_vm_readv(f.peer.pid(), &local, 1, &remote, 1, 0);
            if (moved != static_cast<ssize_t>(n)) die("process_vm_writev");
          });
      Row row{std::string(put ? "put " : "get ") + std::to_string(n / 1024) + " KiB, foreign memory",
              "GB/s",
              static_cast<double>(n) / ours.median,
              static_cast<double>(n) / ours.p99,
              put ? "bare process_vm_writev" : "bare process_vm_readv",
              static_cast<double>(n) / bare.median,
              {},
              true};
      if (n >= 65536) {
        row.budget = ">= 0.95 x bare";
        row.met = share_of(row) >= 0.95;
      }
      add(row);
    }
  }
}

void bench_ring() {
  Fabric f(false);  // no process_vm_*: foreign memory goes through the target's engine
  auto& side = f.side;
  std::vector<double> ns;
  for (int i = 0; i < 400; ++i) {
    const double start = now_ns();
    side.one(nic::OpKind::write, f.local, 8, f.dest, 0, kForeignKey);
    side.wait_one();
    ns.push_back(now_ns() - start);
  }
  const auto single = quantiles(ns);
  add({"put 8 B, owner's engine, alone", "ns", single.median, single.p99, "", 0, {}, true});
  nic::CqEntry entries[64];
  const auto stream = [&](size_t n, int count) {
    PollPacer pacer;
    for (int posted = 0, done = 0; done < count;) {
      while (posted < count && posted - done < 256 &&
             side.one(nic::OpKind::write, f.local, n, f.dest, 0, kForeignKey).refusal == nic::Refusal::none) {
        ++posted;
      }
      side.host->nic().poll_from_app();
      const auto got = static_cast<int>(side.take(entries, 64));
      done += got;
      got != 0 ? pacer.found() : rest(pacer);
    }
  };
  const auto small = measure(1, [&] { stream(8, 5000); }, 9);
  add({"put 8 B, owner's engine, stream", "ns", small.median / 5000, small.p99 / 5000, "", 0, {}, true});
  constexpr size_t kBig = 1 << 20;
  auto [big, bare] = measure_both(
      1, [&] { stream(kBig, 32); },
      [&] {
        for (int i = 0; i < 32; ++i) {
          std::memcpy(f.local + kBig, f.local, kBig);
          asm volatile("" ::: "memory");
        }
      },
      9);
  add({"put 1 MiB, owner's engine, stream",
       "GB/s",
       32.0 * kBig / big.median,
       32.0 * kBig / big.p99,
       "memcpy (the ring copies twice)",
       32.0 * kBig / bare.median,
       {},
       true});
}

void bench_vectored() {
  Fabric f;
  constexpr size_t kCount = 1024;
  for (const size_t n : {size_t{8}, size_t{256}}) {
    std::vector<nic::BatchDesc> descs;
    std::mt19937 random(1);
    for (size_t i = 0; i < kCount; ++i)
      descs.push_back({i * n, n, f.dest, random() % (kBytes / n / 8) * n, kKey, 0, 0});
    auto [ours, bare] = measure_both(
        20,
        [&] {
          (void)f.side.ep->post_batch(nic::OpKind::write, f.local, kBytes, descs, 0, 1);
          f.complete_all(1);
        },
        [&] {
          for (const auto& d : descs) std::memcpy(f.target + d.remote_addr, f.local + d.local_offset, d.length);
          asm volatile("" ::: "memory");
        });
    const double each = ours.median / kCount, copy = bare.median / kCount;
    add({"vectored put, " + std::to_string(n) + " B a descriptor", "ns", each, ours.p99 / kCount,
         "memcpy of the same pieces", copy, "<= 12 ns + copy", each <= 12 + copy});
  }
}

void bench_fetch_add() {
  Fabric f;
  int64_t one = 1, old = 0;
  const iovec operand{&one, 8}, result{&old, 8};
  const wire::RmaRange range{64, 8, kKey};
  nic::AtomicArgs args;
  args.dest = f.dest;
  args.family = nic::AtomicFamily::fetch;
  args.op = nic::AtomicOp::sum;
  args.datatype = nic::Datatype::int64;
  args.operand = {&operand, 1};
  args.result = {&result, 1};
  args.remote = {&range, 1};
  auto* cell = reinterpret_cast<int64_t*>(f.target + 64);
  auto [ours, bare] = measure_both(
      64,
      [&] {
        for (int i = 0; i < 64; ++i) (void)f.side.ep->post_atomic(args);
        f.complete_all(64);
      },
      [&] {
        for (int i = 0; i < 64; ++i) old += __atomic_fetch_add(cell, 1, __ATOMIC_SEQ_CST);
      });
  add({"fetch-add int64, completions read by 64", "ns", ours.median / 64, ours.p99 / 64, "lock xadd, same cell",
       bare.median / 64, "<= 20 ns", ours.median / 64 <= 20});
}

void bench_registration() {
  Fabric f(true, 1 << 21);
  auto& domain = *f.side.domain;
  const iovec v{f.local, kBytes};
  const auto reg = [&](uint64_t key) {
    return domain.register_region({&v, 1}, mem::kRemoteRead | mem::kRemoteWrite, key, false, true);
  };
  std::string why;
  uint64_t next_key = uint64_t{1} << 32;
  const auto cycle = [&](const char* with, size_t live) {
    std::vector<std::shared_ptr<nic::MemoryRegion>> regions(1000);
    std::vector<double> opens, closes;
    for (int b = 0; b < 31; ++b) {
      double start = now_ns();
      for (auto& r : regions) r = reg(next_key++);
      opens.push_back((now_ns() - start) / 1000);
      start = now_ns();
      for (auto& r : regions) r->close(&why);
      closes.push_back((now_ns() - start) / 1000);
    }
    const auto o = quantiles(opens), c = quantiles(closes);
    (void)live;
    add({std::string("register 4 MiB, ") + with, "ns", o.median, o.p99, "", 0, "<= 100 ns", o.median <= 100});
    add({std::string("deregister, ") + with, "ns", c.median, c.p99, "", 0, {}, true});
  };
  cycle("few regions live", 0);
  // Access through the own NIC: does the number of regions matter? Keys in random order, so that nothing is in cache.
  const uint64_t self = f.side.av->insert(f.side.ep->address());
  std::mt19937_64 random(2);
  const auto access = [&](const std::vector<uint64_t>& keys) {
    size_t at = 0;
    nic::CqEntry entry;
    return measure(2000, [&] {
      f.side.one(nic::OpKind::write, f.local, 8, self, 0, keys[at]);
      at = at + 1 == keys.size() ? 0 : at + 1;
      if (f.side.take(&entry, 1) != 1) f.side.wait_one();
    });
  };
  std::vector<std::shared_ptr<nic::MemoryRegion>> all;
  all.push_back(reg(10));
  const auto one = access({10});
  all.reserve(1'000'001);
  std::vector<uint64_t> keys;
  const double start = now_ns();
  for (uint64_t k = 0; k < 1'000'000; ++k) {
    keys.push_back(1000 + k);
    all.push_back(reg(1000 + k));
  }
  const double each = (now_ns() - start) / 1e6;
  add({"register 10^6 regions, each", "ns", each, each, "", 0, "<= 100 ns", each <= 100});
  cycle("10^6 live", 1'000'000);
  std::vector<uint64_t> few(keys.begin(), keys.begin() + 1000);
  const auto thousand = access(few);
  add({"put 8 B to 1,000 of 10^6 regions in turn",
       "ns",
       thousand.median,
       thousand.p99,
       "the same region always",
       one.median,
       {},
       true});
  std::shuffle(keys.begin(), keys.end(), random);
  const auto million = access(keys);
  // Four lines of memory that are in no cache: endpoint and key entry, index word, and the completion.
  add({"put 8 B to 10^6 regions at random",
       "ns",
       million.median,
       million.p99,
       "the same region always",
       one.median,
       {},
       true});
  for (auto& r : all) r->close(&why);
}

// Round trips between two processes that poll. Every second block is a bare line.
struct PingResult {
  Timed put, bare;
  double longest_us = 0;
};

constexpr int kPingBlocks = 12, kPingsABlock = 2000;

template <typename Look>
void poll_word(Look&& look) {
  PollPacer pacer;
  while (!look()) {
    cpu_relax();
    rest(pacer);
  }
}

void play(Side& side, uint64_t dest, uint64_t* mine, uint64_t* line, bool first, std::vector<double>* put_ns,
          std::vector<double>* bare_ns, int blocks, int pings) {
  uint64_t sequence = 0, bare_sequence = __atomic_load_n(line, __ATOMIC_ACQUIRE);
  nic::CqEntry entry;
  uint64_t word = 0;
  const auto put = [&] {
    word = sequence;
    if (side.quiet->post_one(nic::OpKind::write, &word, 8, dest, 0, kKey, 0, 1, 0, true).refusal != nic::Refusal::none)
      die("put refused");
  };
  const auto wait_put = [&] { poll_word([&] { return __atomic_load_n(mine, __ATOMIC_ACQUIRE) == sequence; }); };
  (void)entry;
  for (int b = 0; b < blocks; ++b) {
    for (int i = 0; i < pings; ++i) {
      ++sequence;
      if (first) {
        const double start = now_ns();
        put();
        wait_put();
        put_ns->push_back((now_ns() - start) / 2);
      } else {
        wait_put();
        put();
      }
    }
    for (int i = 0; i < pings; ++i) {
      if (first) {
        const double start = now_ns();
        __atomic_store_n(line, bare_sequence + 1, __ATOMIC_RELEASE);
        poll_word([&] { return __atomic_load_n(line, __ATOMIC_ACQUIRE) == bare_sequence + 2; });
        bare_ns->push_back((now_ns() - start) / 2);
      } else {
        poll_word([&] { return __atomic_load_n(line, __ATOMIC_ACQUIRE) == bare_sequence + 1; });
        __atomic_store_n(line, bare_sequence + 2, __ATOMIC_RELEASE);
      }
      bare_sequence += 2;
    }
  }
}

// One player: region, handshake over `fd`, connection, then the game.
void join_game(int fd, bool first, uint64_t* line, std::vector<double>* put_ns, std::vector<double>* bare_ns,
               int blocks, int pings) {
  Side side;
  std::byte* memory = side.host->nic().segments().allocate(4096);
  std::memset(memory, 0, 4096);
  side.reg(memory, 4096, kKey);
  tell(fd, side.ep->address());
  const uint64_t dest = side.av->insert(hear<wire::EpAddress>(fd));
  uint64_t zero = 0;
  side.one(nic::OpKind::write, &zero, 8, dest, 64, kKey);  // find each other
  side.wait_one();
  tell(fd, 1);
  (void)hear<int>(fd);
  play(side, dest, reinterpret_cast<uint64_t*>(memory), line, first, put_ns, bare_ns, blocks, pings);
  tell(fd, 2);
  (void)hear<int>(fd);  // the other one still needs our memory
}

PingResult ping(int pairs, int blocks, int pings) {
  struct Out {
    double put, put_p99, bare, bare_p99, longest;
  };
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<Out> outs;
  for (int p = 0; p < pairs; ++p) {
    // A process that forks the other player and reports; so this process makes no NIC.
    peers.push_back(std::make_unique<Peer>([&](int fd) {
      auto* line = reinterpret_cast<uint64_t*>(shared_memory(4096));
      Peer other([&](int to_first) { join_game(to_first, false, line, nullptr, nullptr, blocks, pings); });
      std::vector<double> put_ns, bare_ns;
      join_game(other.fd(), true, line, &put_ns, &bare_ns, blocks, pings);
      const double longest = *std::max_element(put_ns.begin(), put_ns.end());
      const auto a = quantiles(put_ns), b = quantiles(bare_ns);
      tell(fd, Out{a.median, a.p99, b.median, b.p99, longest});
      ::pause();
    }));
  }
  for (auto& p : peers) outs.push_back(hear<Out>(p->fd()));
  PingResult r;
  for (const Out& o : outs) {  // the slowest pair
    if (o.put >= r.put.median) r.put = {o.put, o.put_p99}, r.bare = {o.bare, o.bare_p99};
    r.longest_us = std::max(r.longest_us, o.longest / 1000);
  }
  return r;
}

// ---- between hosts, over loopback
// ------------------------------------------------------------------------------------

struct Street {
  wire::HostAddress host;
  wire::EpAddress address;
  [[nodiscard]] wire::EpAddress known_as() const {
    wire::EpAddress a = address;
    a.nic = link::route_number({host, a.nic});
    return a;
  }
};

// A connected pair of bare sockets: made before the fork, one end each.
struct BareTcp {
  BareTcp() {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_storage name;
    socklen_t length = link::to_sockaddr(link::parse_host("127.0.0.1", 0), &name);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&name), length) != 0 || ::listen(listener, 1) != 0) die("listen");
    length = sizeof(name);
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&name), &length);
    ends[0] = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(ends[0], reinterpret_cast<sockaddr*>(&name), length) != 0) die("connect");
    ends[1] = ::accept(listener, nullptr, nullptr);
    ::close(listener);
    const int one = 1;
    constexpr char kControl[] = "reno";  // as the link has it within a host
    for (const int fd : ends) {
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
      (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kControl, sizeof(kControl) - 1);
    }
  }
  int ends[2];
};

void receive_all(int fd, std::byte* to, size_t n) {
  PollPacer pacer;
  for (size_t have = 0; have < n;) {
    const ssize_t got = ::recv(fd, to + have, n - have, MSG_DONTWAIT);
    if (got > 0) have += static_cast<size_t>(got);
    if (got == 0) die("the other process is gone");
    if (got < 0) rest(pacer);
  }
}
void send_all(int fd, const std::byte* from, size_t n) {
  for (size_t sent = 0; sent < n;) {
    const ssize_t got = ::send(fd, from + sent, n - sent, MSG_NOSIGNAL);
    if (got <= 0) die("the other process is gone");
    sent += static_cast<size_t>(got);
  }
}

// This process, its engine too, on one core: where the scheduler puts two engines beside two pollers on few cores
// decides more than what is measured.
void stay_on_core(int which) {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof(all), &all);
  CPU_ZERO(&one);
  for (int cpu = 0, n = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all) && n++ == which) CPU_SET(cpu, &one);
  }
  if (CPU_COUNT(&one) != 0) sched_setaffinity(0, sizeof(one), &one);
}

constexpr int kTcpBlocks = 200, kTcpPings = 200;
constexpr size_t kTcpLarge = size_t{1} << 20;

struct TcpTimes {
  std::vector<double> put, bare, put_rate, get_rate, bare_rate, sealed_rate;
};

// One side of the game; the first takes the times. `encrypted`: of the link, and of the bare socket that seals.
void play_tcp(int fd, int bare, bool first, bool encrypted, TcpTimes* times) {
  stay_on_core(first ? 0 : 1);
  Side side(true, 1 << 12, true, encrypted);
  std::byte* memory = side.host->nic().segments().allocate(kBytes);
  std::byte* local = side.host->nic().segments().allocate(kBytes);
  std::memset(memory, 0, kBytes);
  std::memset(local, 1, kBytes);
  side.reg(memory, kBytes, kKey);
  tell(fd, Street{*side.host->tcp().listening(), side.ep->address()});
  const uint64_t dest = side.av->insert(hear<Street>(fd).known_as());
  uint64_t zero = 0;
  side.one(nic::OpKind::write, &zero, 8, dest, 64, kKey);
  side.wait_one();
  tell(fd, 1);
  (void)hear<int>(fd);
  uint64_t sequence = 0;
  auto* mine = reinterpret_cast<uint64_t*>(memory);
  const auto put = [&] {
    if (side.quiet->post_one(nic::OpKind::write, &sequence, 8, dest, 0, kKey, 0, 1, 0, true).refusal !=
        nic::Refusal::none) {
      die("put refused");
    }
  };
  const auto await = [&] {
    PollPacer pacer;
    while (__atomic_load_n(mine, __ATOMIC_ACQUIRE) != sequence) {
      if (side.host->nic().poll_from_app() == 0) rest(pacer);
    }
  };
  for (int b = 0; b < kTcpBlocks; ++b) {
    double start = now_ns();
    for (int i = 0; i < kTcpPings; ++i) {
      ++sequence;
      if (first) put();
      await();
      if (!first) put();
    }
    if (first) times->put.push_back((now_ns() - start) / (2 * kTcpPings));
    std::byte word[8] = {};
    start = now_ns();
    for (int i = 0; i < kTcpPings; ++i) {
      if (first) send_all(bare, word, 8);
      receive_all(bare, word, 8);
      if (!first) send_all(bare, word, 8);
    }
    if (first) times->bare.push_back((now_ns() - start) / (2 * kTcpPings));
  }
  // Bandwidth: one side moves, the other only serves (Weft: its engine; the bare socket: a loop of recv).
  constexpr int kMoves = 64, kRounds = 9;
  for (int b = 0; b < kRounds; ++b) {
    for (const nic::OpKind kind : {nic::OpKind::write, nic::OpKind::read}) {
      if (first) {
        const double start = now_ns();
        int posted = 0, done = 0;
        nic::CqEntry entries[16];
        PollPacer pacer;
        while (done < kMoves) {
          while (posted < kMoves && posted - done < 8) {
            side.one(kind, local, kTcpLarge, dest, 0, kKey);
            ++posted;
          }
          const size_t n = side.take(entries, 16);
          done += static_cast<int>(n);
          if (n == 0 && side.host->nic().poll_from_app() == 0) rest(pacer);
        }
        (kind == nic::OpKind::write ? times->put_rate : times->get_rate)
            .push_back(kMoves * double{kTcpLarge} / (now_ns() - start));
        tell(fd, 3);
      } else {
        (void)hear<int>(fd);  // its engine serves meanwhile
      }
    }
    double start = now_ns();
    for (int i = 0; i < kMoves; ++i) first ? send_all(bare, local, kTcpLarge) : receive_all(bare, memory, kTcpLarge);
    std::byte over{};
    first ? receive_all(bare, &over, 1) : send_all(bare, &over, 1);
    if (first) times->bare_rate.push_back(kMoves * double{kTcpLarge} / (now_ns() - start));
    // As TLS would: each piece is sealed into a buffer, sent, received into a buffer, opened and copied to its place.
    constexpr size_t kPiece = wire::kTcpPayloadMax;
    const auto key = test::key_of("of the bare socket");
    wire::Seal seal(test::sodium(), std::span(key).first<wire::kSealKeyBytes>(), encrypted);
    std::vector<std::byte> piece(kPiece + wire::kTagBytes);
    start = now_ns();
    for (size_t at = 0; at < kMoves * kTcpLarge; at += kPiece) {
      if (first) {
        std::memcpy(piece.data(), local + at % kTcpLarge, kPiece);
        seal.close(piece.data(), 0, kPiece);
        send_all(bare, piece.data(), piece.size());
      } else {
        receive_all(bare, piece.data(), piece.size());
        if (!seal.open(piece.data(), 0, kPiece)) die("a piece was changed");
        std::memcpy(memory + at % kTcpLarge, piece.data(), kPiece);
      }
    }
    first ? receive_all(bare, &over, 1) : send_all(bare, &over, 1);
    if (first) times->sealed_rate.push_back(kMoves * double{kTcpLarge} / (now_ns() - start));
  }
  tell(fd, 2);
  (void)hear<int>(fd);
}

void bench_tcp_of(bool encrypted) {
  struct Out {
    double put, put_p99, bare, ratio, put_rate, get_rate, bare_rate, sealed_rate;
  };
  Peer game([encrypted](int fd) {
    const BareTcp bare;
    Peer other([&](int to_first) { play_tcp(to_first, bare.ends[1], false, encrypted, nullptr); });
    TcpTimes t;
    play_tcp(other.fd(), bare.ends[0], true, encrypted, &t);
    std::vector<double> ratio;
    for (size_t i = 0; i < t.put.size(); ++i) ratio.push_back(t.put[i] / t.bare[i]);
    const auto p = quantiles(t.put);
    tell(fd, Out{p.median, p.p99, quantiles(t.bare).median, quantiles(ratio).median, quantiles(t.put_rate).median,
                 quantiles(t.get_rate).median, quantiles(t.bare_rate).median, quantiles(t.sealed_rate).median});
    ::pause();
  });
  const auto o = hear<Out>(game.fd());
  const std::string link = encrypted ? "tcp, encrypted: " : "tcp: ";
  const char* sealing = encrypted ? "bare socket, encrypting" : "bare socket, authenticating";
  add({link + "put 8 B, half round trip to a polling peer", "ns", o.put, o.put_p99, "bare socket, both polling", o.bare,
       "<= 1.15 x", o.ratio <= 1.15});
  add({link + "put 1 MiB, 8 at a time", "GB/s", o.put_rate, 0, "bare socket", o.bare_rate, ">= 0.95",
       o.put_rate >= 0.95 * o.bare_rate});
  add({link + "get 1 MiB, 8 at a time", "GB/s", o.get_rate, 0, "bare socket", o.bare_rate, ">= 0.95",
       o.get_rate >= 0.95 * o.bare_rate});
  add({link + "put 1 MiB, 8 at a time", "GB/s", o.put_rate, 0, sealing, o.sealed_rate, {}, true});
}

void bench_tcp() {
  bench_tcp_of(false);
  bench_tcp_of(true);
}

void bench_ping() {
  const auto r = ping(1, kPingBlocks, kPingsABlock);
  add({"put 8 B, half round trip to a polling peer", "ns", r.put.median, r.put.p99, "bare line, same processes",
       r.bare.median, "<= 1.1 x floor", r.put.median <= 1.1 * r.bare.median});
}

void bench_oversubscribed() {
  cpu_set_t before, two;
  sched_getaffinity(0, sizeof(before), &before);
  CPU_ZERO(&two);
  for (int cpu = 0, n = 0; cpu < CPU_SETSIZE && n < 2; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &two);
      ++n;
    }
  }
  sched_setaffinity(0, sizeof(two), &two);
  const auto r = ping(2, 4, 2000);
  sched_setaffinity(0, sizeof(before), &before);
  add({"put 8 B, half round trip, 4 pollers on 2 cores", "ns", r.put.median, r.put.p99, "bare line, same processes",
       r.bare.median, "<= 1500 ns", r.put.median <= 1500});
  add({"  the longest of them", "ns", r.longest_us * 1000, r.longest_us * 1000, "", 0, "< 4 ms (99th percentile)",
       r.put.p99 < 4e6});
}

void bench_units() {
  using namespace weft::nic;
  using namespace weft::ring;
  alignas(64) static int64_t cell = 0;
  const auto lock = measure(20'000, [] { __atomic_fetch_add(&cell, 1, __ATOMIC_SEQ_CST); }, 21);
  alignas(64) static unsigned char target[64] = {};
  static unsigned char operand[32] = {1}, compare[32] = {}, result[32];
  const auto atomic = [&](const char* name, AtomicOp op, Datatype type, bool fetch) {
    // The operation must not be a constant that the compiler sees through.
    volatile uint16_t op_number = static_cast<uint16_t>(op), type_number = static_cast<uint16_t>(type);
    const auto t = measure(
        20'000,
        [&] {
          atomic_apply(static_cast<AtomicOp>(op_number), static_cast<Datatype>(type_number), target, operand, compare,
                       fetch ? result : nullptr, 1);
        },
        21);
    add({std::string("atomics unit: ") + name, "ns", t.median, t.p99, "lock add", lock.median, {}, true});
  };
  atomic("int64 sum", AtomicOp::sum, Datatype::int64, false);
  atomic("int64 sum, fetch", AtomicOp::sum, Datatype::int64, true);
  atomic("int64 cswap", AtomicOp::cswap, Datatype::int64, true);
  atomic("int64 read", AtomicOp::atomic_read, Datatype::int64, true);
  atomic("int64 min, fetch", AtomicOp::min, Datatype::int64, true);
  atomic("double sum, fetch", AtomicOp::sum, Datatype::float64, true);
  atomic("float16 sum", AtomicOp::sum, Datatype::float16, false);
  atomic("int128 sum, fetch (cmpxchg16b)", AtomicOp::sum, Datatype::int128, true);
  atomic("int128 read", AtomicOp::atomic_read, Datatype::int128, true);
  const auto with_ring = [&](const char* name, size_t length, bool doorbell) {
    constexpr uint32_t kSlots = 64;
    void* memory = std::aligned_alloc(64, ring_bytes(kSlots));
    const std::span<std::byte> span(static_cast<std::byte*>(memory), ring_bytes(kSlots));
    auto consumer = MpscConsumer::create(span, kSlots).value();
    auto producer = MpscProducer::attach(span, kSlots, 1).value();
    Message message;
    std::byte payload[kPayloadBytes] = {};
    const auto t = measure(
        20'000,
        [&] {
          const Claim claim = producer.try_claim();
          std::memcpy(claim.payload().data(), payload, length);
          producer.publish(claim, length);
          if (doorbell && producer.needs_doorbell()) std::abort();
          if (consumer.poll(message) != PollStatus::message) std::abort();
        },
        21);
    add({std::string("ring: ") + name, "ns", t.median, t.p99, "lock add", lock.median, {}, true});
    std::free(memory);
  };
  with_ring("push + pop, 32 bytes", 32, false);
  with_ring("push + pop, 240 bytes", 240, false);
  with_ring("push + doorbell check + pop, 32 bytes", 32, true);
}

void bench_cache() {
  constexpr uint64_t kPage = 4096, kEntries = 1000;
  mem::RegistrationCache cache({}, mem::make_system_monitor(""));
  const auto room =
      Mapping::shared(make_memfd("bench-cache", kEntries * 2 * kPage).get(), kEntries * 2 * kPage, true, "");
  const auto at = [&](uint64_t i) { return reinterpret_cast<uint64_t>(room.data()) + i * 2 * kPage; };
  uint64_t resolved = 0;
  const auto search = [&](uint64_t address, uint64_t length) {
    const auto ref = cache.search(address, length, mem::kHmemSystem, 0, [&](uint64_t a, uint64_t n) {
      ++resolved;
      mem::CachedMapping m;
      m.address = a;
      m.length = n;
      return m;
    });
    return ref->persistent;
  };
  for (uint64_t i = 0; i < kEntries; ++i) (void)search(at(i), kPage);
  const auto same = measure(1000, [&] { (void)search(at(5) + 8, 64); });
  std::mt19937_64 random(1);
  std::vector<uint64_t> order(4096);
  for (uint64_t& i : order) i = random() % kEntries;
  size_t next = 0;
  const auto any = measure(1000, [&] { (void)search(at(order[next++ % order.size()]), 64); });
  if (resolved != kEntries) die("the cache resolved what it had");
  const auto asked =
      measure(10, [&] { (void)mem::describe_system_memory(at(5), 64); });  // what a hit saves, in a small process
  const char* limit = "/proc/self/maps";
  add({"cache hit, the same range", "ns", same.median, same.p99, limit, asked.median, "<= 150 ns", same.median <= 150});
  add({"cache hit, one of 1,000 at random", "ns", any.median, any.p99, limit, asked.median, "<= 150 ns",
       any.median <= 150});
  // The monitor's price for everybody else: a pair of calls that concerns no entry, with and without it.
  const auto pair = [] {
    void* p = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ::munmap(p, kPage);
  };
  const auto hooked = measure(100, pair);
  (void)cache.flush(false);
  const auto bare = measure(100, pair);
  add({"mmap + munmap of another's, watched", "ns", hooked.median, hooked.p99, "not watched", bare.median, {}, true});
}

struct Bench {
  const char* name;
  void (*run)();
};
constexpr Bench kBenches[] = {
    {"put8", bench_put8},
    {"ping", bench_ping},
    {"tcp", bench_tcp},
    {"copy", bench_copy},
    {"foreign", bench_foreign},
    {"ring", bench_ring},
    {"vectored", bench_vectored},
    {"fetch_add", bench_fetch_add},
    {"registration", bench_registration},
    {"cache", bench_cache},
    {"oversubscribed", bench_oversubscribed},
    {"units", bench_units},
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> filters;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--json") {
      g_json = true;
    } else if (arg == "--list") {
      for (const Bench& b : kBenches) std::printf("%s\n", b.name);
      return 0;
    } else if (!arg.empty() && arg[0] == '-') {
      std::fprintf(stderr, "usage: weft_microbench [--json] [--list] [BENCH ...]\n");
      return 2;
    } else {
      filters.push_back(arg);
    }
  }
  for (const Bench& b : kBenches) {
    const bool wanted = filters.empty() || std::any_of(filters.begin(), filters.end(), [&](const std::string& f) {
                          return std::string(b.name).find(f) != std::string::npos;
                        });
    if (wanted) b.run();
  }
  return 0;
}
