// tests/fuzz/target.hpp: shared by all fuzz targets: the input as a sequence of choices, a node (a NIC with one
// endpoint),
// and the memory that two nodes share.
//
// A target is a file fuzz_<name>.cpp with LLVMFuzzerTestOneInput. It makes everything anew for each input, so that an
// input
// alone is enough to repeat a crash. Nodes have no engine thread (the target decides which node makes progress when)
// and do
// not use process_vm_writev: both nodes are in this process, and a peer with wrong addresses would write into the
// fuzzer
// itself.
#pragma once

#include <dirent.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../cpp/sodium.hpp"
#include "host/host.hpp"
#include "nic/queue.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace weft::fuzz {

[[noreturn]] inline void broken(const char* what) {
  std::fprintf(stderr, "fuzz: broken: %s\n", what);
  std::abort();
}
inline void must(bool holds, const char* what) {
  if (!holds) broken(what);
}

// The input, read from the front; past the end everything is 0.
class Input {
 public:
  Input(const uint8_t* data, size_t size) noexcept : rest_(data, size) {}

  [[nodiscard]] bool empty() const noexcept { return rest_.empty(); }
  template <typename T>
  T take() noexcept {
    T value{};
    const size_t n = std::min(sizeof(T), rest_.size());
    std::memcpy(static_cast<void*>(&value), rest_.data(), n);
    rest_ = rest_.subspan(n);
    return value;
  }
  uint32_t below(uint32_t limit) noexcept { return take<uint8_t>() % limit; }
  bool coin() noexcept { return (take<uint8_t>() & 1) != 0; }
  std::span<const std::byte> bytes(size_t n) noexcept {
    n = std::min(n, rest_.size());
    const auto out = std::as_bytes(rest_.first(n));
    rest_ = rest_.subspan(n);
    return out;
  }
  // Changes up to 15 bytes of `in`; the input chooses their positions.
  void patch(std::span<std::byte> in) noexcept {
    for (uint32_t count = below(16); count > 0 && !empty(); --count) {
      const auto at = take<uint16_t>();
      in[at % in.size()] = static_cast<std::byte>(take<uint8_t>());
    }
  }
  // A number, often one at the limit of a rule.
  uint64_t number(std::span<const uint64_t> likely) noexcept {
    const uint32_t choice = take<uint8_t>();
    if (choice < 200) return likely[choice % likely.size()];
    if (choice < 240) return take<uint16_t>();
    return take<uint64_t>();
  }

 private:
  std::span<const uint8_t> rest_;
};

struct NodeConfig {
  bool strict = false, shm = true, tcp = false;
};

constexpr char kSecret[] = "a secret of the fuzz targets";
constexpr uint64_t kKey = 42, kWordsKey = 43;

// A NIC with a domain, a queue, an address vector, an enabled endpoint and two regions, with guard bytes around them.
class Node {
 public:
  explicit Node(const NodeConfig& config) : host_(config_of(config)) {
    if (config.tcp) {
      host_.tcp().set_secret(test::sodium(), test::key_of(kSecret));
      host_.tcp().listen(link::parse_host("127.0.0.1", 0), std::nullopt);
    }
    domain_ = std::make_unique<nic::Domain>(&nic(), nic::DomainConfig{});
    cq_ = std::make_shared<nic::CompletionQueue>(256);
    av_ = std::make_shared<nic::AddressVector>(domain_.get());
    nic::EndpointConfig ep;
    ep.tx_size = 64;
    ep.caps = nic::flag::kRma | nic::flag::kAtomic | nic::flag::kRead | nic::flag::kWrite | nic::flag::kRemoteRead |
              nic::flag::kRemoteWrite | nic::flag::kRmaEvent | nic::flag::kMsg | nic::flag::kTagged | nic::flag::kSend |
              nic::flag::kRecv;
    ep.messages.eager_max = 1024;
    ep.messages.eager_part = 100;
    ep.messages.unexpected_max = 32;
    ep.messages.buffers.bytes = size_t{16} << 10;
    ep_ = domain_->make_endpoint(ep);
    ep_->bind_cq(cq_, nic::flag::kSend | nic::flag::kRecv);
    ep_->bind_av(av_);
    ep_->enable(0, std::nullopt);
    memory = nic().segments().allocate(kAll);
    std::memset(memory, kGuardByte, kAll);
    std::memset(memory + kGuard, 0, kBytes);
    const iovec v{memory + kGuard, kBytes};
    regions_.push_back(
        domain_->register_region(std::span(&v, 1), mem::kRemoteRead | mem::kRemoteWrite, kKey, false, true));
    // A second region of two buffers that Weft did not allocate: frames reach it, loads and stores do not.
    const iovec parts[2] = {{foreign_.data() + kGuard, 512}, {foreign_.data() + kGuard + 1024, 512}};
    foreign_.fill(std::byte{kGuardByte});
    received_.fill(std::byte{kGuardByte});
    regions_.push_back(domain_->register_region(parts, mem::kRemoteRead | mem::kRemoteWrite, kWordsKey, false, true));
    local_.fill(std::byte{1});
  }
  ~Node() {
    ep_->close();
    for (auto& region : regions_) {
      std::string why;
      (void)region->close(&why);
    }
    host_.check();
    domain_->close();
    host_.check();
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  [[nodiscard]] nic::Nic& nic() { return host_.nic(); }
  [[nodiscard]] host::HostNic& host() { return host_; }
  [[nodiscard]] nic::Endpoint& ep() { return *ep_; }
  [[nodiscard]] uint32_t generation() { return nic().table().ep(ep_->index()).generation.load(); }
  uint64_t insert(Node& other) {
    wire::EpAddress address = other.ep_->address();
    if (const auto at = other.host_.tcp().listening()) address.nic = host_.routes().number({*at, address.nic});
    return av_->insert(address);
  }
  uint64_t insert(const wire::EpAddress& address) { return av_->insert(address); }
  void progress(int rounds = 1) {
    for (int i = 0; i < rounds; ++i) nic().progress();
  }
  // Operations on a peer's region, and their outcomes. Refusals are as good as any other outcome.
  void post(Input& in, uint64_t dest) {
    static constexpr uint64_t kKeys[] = {kKey, kWordsKey, 44, 0, ~uint64_t{0}};
    static constexpr uint64_t kAddrs[] = {0, 8, kBytes - 8, kBytes, 512, 508};
    static constexpr uint64_t kLengths[] = {8, 0, 1, 200, 1024, kBytes};
    const uint64_t key = in.number(kKeys), addr = in.number(kAddrs);
    const uint64_t length = std::min<uint64_t>(in.number(kLengths), local_.size());
    const uint32_t kind = in.below(8);
    if (kind >= 4) {
      post_message(in, dest, kind, length);
    } else if (kind < 2) {
      nic::RmaArgs args;
      const iovec local{local_.data(), length};
      const wire::RmaRange remote{addr, length, key};
      args.kind = kind == 0 ? nic::OpKind::write : nic::OpKind::read;
      args.dest = dest;
      args.local = std::span(&local, 1);
      args.remote = std::span(&remote, 1);
      args.context = 7;
      (void)ep_->post(args);
    } else {
      nic::AtomicArgs args;
      iovec operand{local_.data(), 8}, result{local_.data() + 64, 8};
      const wire::RmaRange remote{addr, 8, key};
      args.dest = dest;
      args.family = kind == 2 ? nic::AtomicFamily::base : nic::AtomicFamily::fetch;
      args.op = nic::AtomicOp::sum;
      args.datatype = nic::Datatype::uint64;
      args.operand = std::span(&operand, 1);
      if (kind == 3) args.result = std::span(&result, 1);
      args.remote = std::span(&remote, 1);
      args.context = 7;
      (void)ep_->post_atomic(args);
    }
  }
  // Receives into guarded memory, sends and cancels, with tags that meet often.
  void post_message(Input& in, uint64_t dest, uint32_t kind, uint64_t length) {
    if (kind == 7) {
      (void)ep_->cancel(7);
      return;
    }
    const iovec local{kind == 6 ? local_.data() : received_.data() + kGuard, std::min(length, kReceived)};
    if (kind == 6) {
      nic::SendArgs args;
      args.dest = dest;
      args.local = std::span(&local, 1);
      args.tag = in.below(4);
      args.tagged = in.coin();
      args.flags = in.coin() ? nic::flag::kMatchComplete : 0;
      args.context = 7;
      (void)ep_->post_send(args);
      return;
    }
    nic::ReceiveArgs args;
    args.local = std::span(&local, 1);
    args.tag = in.below(4);
    args.ignore = in.below(2);
    args.tagged = in.coin();
    args.flags = in.coin() ? nic::flag::kMultiRecv : in.coin() ? nic::flag::kPeek : 0;
    args.context = 7;
    (void)ep_->post_receive(args);
  }
  size_t collect() {
    const nic::DomainLock guard(domain_.get());
    size_t found = 0;
    for (;;) {
      nic::CqEntry entries[16];
      nic::CqError error;
      bool error_waits = false;
      const size_t n = cq_->read(entries, 16, &error_waits);
      if (n == 0 && !(error_waits && cq_->read_error(entries, &error))) return found;
      found += std::max<size_t>(n, 1);
    }
  }
  // A write of 8 bytes with any outcome.
  nic::Refusal call(uint64_t dest) {
    nic::RmaArgs args;
    const iovec local{local_.data(), 8};
    const wire::RmaRange remote{0, 8, kKey};
    args.dest = dest;
    args.local = std::span(&local, 1);
    args.remote = std::span(&remote, 1);
    args.context = 9;
    return ep_->post(args).refusal;
  }
  // One write that must succeed; both nodes make progress meanwhile.
  bool serves(Node& good) {
    if (good.call(good.insert(*this)) != nic::Refusal::none) return false;
    for (int i = 0; i < 20'000; ++i) {
      good.progress();
      progress();
      nic::CqEntry entry;
      bool error_waits = false;
      const nic::DomainLock guard(good.domain_.get());
      if (good.cq_->read(&entry, 1, &error_waits) == 1) return true;
      if (error_waits) return false;
    }
    return false;
  }
  // The bytes around the regions are unchanged.
  void check_guards() const {
    const auto whole = [](const std::byte* p, size_t n) {
      return std::all_of(p, p + n, [](std::byte b) { return b == std::byte{kGuardByte}; });
    };
    must(whole(memory, kGuard) && whole(memory + kGuard + kBytes, kGuard), "bytes outside a region were written");
    must(whole(foreign_.data(), kGuard) && whole(foreign_.data() + kGuard + 512, 512) &&
             whole(foreign_.data() + kGuard + 1536, kGuard),
         "bytes outside a foreign region were written");
    must(whole(received_.data(), kGuard) && whole(received_.data() + kGuard + kReceived, kGuard),
         "bytes outside a receive's buffer were written");
  }

  static constexpr size_t kGuard = 4096, kBytes = 8192, kAll = kGuard + kBytes + kGuard;
  static constexpr uint8_t kGuardByte = 0x5a;
  std::byte* memory;

 private:
  static host::HostConfig config_of(const NodeConfig& config) {
    host::HostConfig h;
    h.engine_thread = false;
    h.shm.strict = config.strict;
    h.shm.cma = false;
    h.shm_link = config.shm;
    h.limits.mr_count_max = 64;
    h.limits.close_wait_ns = 1'000'000;
    return h;
  }
  host::HostNic host_;
  std::unique_ptr<nic::Domain> domain_;
  std::shared_ptr<nic::CompletionQueue> cq_;
  std::shared_ptr<nic::AddressVector> av_;
  std::shared_ptr<nic::Endpoint> ep_;
  std::vector<std::shared_ptr<nic::MemoryRegion>> regions_;
  std::array<std::byte, kGuard + 1536 + kGuard> foreign_{};
  std::array<std::byte, kBytes> local_{};
  static constexpr uint64_t kReceived = 4096;
  std::array<std::byte, kGuard + kReceived + kGuard> received_{};
};

// The shared memory that this process has mapped and may write, by the name that its owner gave it.
struct Shared {
  std::string name;
  uint64_t inode = 0;
  std::span<std::byte> bytes;
};
inline std::vector<Shared> shared_memory() {
  std::vector<Shared> found;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  must(maps != nullptr, "/proc/self/maps");
  char line[512];
  while (std::fgets(line, sizeof(line), maps) != nullptr) {
    unsigned long from = 0, to = 0, inode = 0;
    char rights[8] = "", path[256] = "";
    if (std::sscanf(line, "%lx-%lx %7s %*s %*s %lu %255s", &from, &to, rights, &inode, path) != 5) continue;
    if (rights[1] != 'w' || std::strncmp(path, "/memfd:weft-", 12) != 0) continue;
    found.push_back({path + 12, inode, {reinterpret_cast<std::byte*>(from), to - from}});
  }
  std::fclose(maps);
  return found;
}

// The abstract name, without its leading zero, at which a node's shm link listens, as the kernel reports it.
inline std::string listener_name(uint32_t pid) {
  const std::string ending = "-" + std::to_string(pid);
  std::string found;
  DIR* fds = ::opendir("/proc/self/fd");
  must(fds != nullptr, "/proc/self/fd");
  while (const dirent* entry = ::readdir(fds)) {
    sockaddr_un name{};
    socklen_t length = sizeof(name);
    int listens = 0;
    socklen_t size = sizeof(listens);
    const int fd = std::atoi(entry->d_name);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0 || name.sun_family != AF_UNIX) continue;
    const std::string text(name.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
    if (text.ends_with(ending)) found = text;
  }
  ::closedir(fds);
  must(!found.empty(), "the node listens nowhere");
  return found;
}

struct NoRoom {};  // the system has run out of a resource that the target needs: no result for this input

// Runs a target. An Error that leaves the target is a fault: a node must survive any bytes of a peer.
template <typename Body>
int run(const uint8_t* data, size_t size, Body&& body) {
  Input in(data, size);
  try {
    body(in);
  } catch (const NoRoom&) {
    return -1;
  } catch (const Error& e) {
    std::fprintf(stderr, "fuzz: an error came out of a call that has to take anything: %s\n", e.what());
    std::abort();
  }
  return 0;
}

}  // namespace weft::fuzz
