// bench/cpp/sides.hpp: NICs to measure, and peers in separate processes.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "../../tests/cpp/sodium.hpp"
#include "host/host.hpp"
#include "nic/queue.hpp"
#include "rows.hpp"

namespace weft::bench {

namespace flag = nic::flag;

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
    config.caps = flag::kRma | flag::kAtomic | flag::kRead | flag::kWrite | flag::kRemoteRead | flag::kRemoteWrite |
                  flag::kMsg | flag::kTagged | flag::kSend | flag::kRecv;
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
    host::PollPacer pacer;
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

inline std::byte* private_memory(size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) die("mmap");
  std::memset(p, 1, bytes);
  return static_cast<std::byte*>(p);
}
inline std::byte* shared_memory(size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) die("mmap");
  return static_cast<std::byte*>(p);
}

inline void be_idle_target(int fd) {
  Side side;
  std::byte* memory = side.host->nic().segments().allocate(kBytes);
  std::memset(memory, 1, kBytes);
  std::byte* foreign = private_memory(kBytes);
  side.reg(memory, kBytes, kKey);
  side.reg(foreign, kBytes, kForeignKey);
  tell(fd, Told{side.ep->address(), side.host->nic().segments().find(memory, kBytes)->offset,
                reinterpret_cast<uint64_t>(foreign)});
  for (;;) ::pause();  // the engine sleeps, too
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
    for (int done = 0; done < n;) done += static_cast<int>(side.take(entries, std::size(entries)));
  }
  Peer peer;
  Told told;
  Side side;
  uint64_t dest = 0;
  nic::CqEntry entries[64];  // of the program: to fill a new array with its defaults takes 45 ns
  std::byte* local = nullptr;
  std::byte* target = nullptr;  // the target's memory in our own mapping
};

}  // namespace weft::bench
