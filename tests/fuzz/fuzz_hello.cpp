// tests/fuzz/fuzz_hello.cpp: strangers on the shm link's socket, as callers and as a listener that the victim calls:
// greetings with any content and with descriptors of any kind.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "target.hpp"
#include "wire/hello.hpp"

using namespace weft;
using namespace weft::fuzz;
using wire::Hello;

namespace {

UniqueFd file_of(size_t size, bool sealed) {
  UniqueFd fd = make_memfd("fuzz", size);
  if (sealed) seal_size(fd.get());
  return fd;
}

// A node's greeting with its descriptors, recorded from a real node, so that this file needs to know only where a
// greeting has its address.
struct Greeting {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
};

// A descriptor of the kind that the input asks for; mostly the kind that belongs in this place.
UniqueFd descriptor(Input& in, size_t place, const Greeting& good) {
  const uint32_t kind = in.take<uint8_t>();
  if (!good.fds.empty() && kind >= 96) {
    const size_t which = kind < 240 ? place % good.fds.size() : in.below(static_cast<uint32_t>(good.fds.size()));
    return UniqueFd(::fcntl(good.fds[which].get(), F_DUPFD_CLOEXEC, 3));
  }
  switch (kind % 16 + 4) {
    case 4:
      return UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    case 5:  // full: one more and a write to it blocks
      return UniqueFd(::eventfd(0xfffffffe, EFD_CLOEXEC));
    case 6:
      return file_of(1 << 20, false);
    case 7:
      return file_of(1, true);
    case 8: {
      UniqueFd fd = file_of(1 << 20, false);
      seal_read_only(fd.get());
      return fd;
    }
    case 9: {  // the writing end, without a reader
      int ends[2];
      must(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
      ::close(ends[0]);
      return UniqueFd(ends[1]);
    }
    case 10: {
      int ends[2];
      must(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
      ::close(ends[1]);
      return UniqueFd(ends[0]);
    }
    case 11:
      return UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
    case 12:
      return UniqueFd(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    case 13:
      return UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    case 14:
      return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    case 15:
      return UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    case 16:
      return UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    case 17:
      return UniqueFd(::open("/proc/self/exe", O_PATH | O_CLOEXEC));
    case 18:
      return UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC));
    default:
      return UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
  }
}

void send_packet(int fd, std::span<const std::byte> bytes, const std::vector<UniqueFd>& fds) {
  iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 64)] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    for (size_t i = 0; i < fds.size(); ++i) {
      const int one = fds[i].get();
      std::memcpy(CMSG_DATA(c) + i * sizeof(int), &one, sizeof(int));
    }
  }
  (void)!::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// The next packet; empty if there is none.
std::optional<Greeting> hear(int fd) {
  Greeting heard;
  heard.bytes.resize(8192);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)];
  iovec iov{heard.bytes.data(), heard.bytes.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n <= 0) return std::nullopt;
  heard.bytes.resize(static_cast<size_t>(n));
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int one;
      std::memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      heard.fds.emplace_back(one);
    }
  }
  return heard;
}

void address_to(Greeting& g, const wire::EpAddress& address) {
  must(g.bytes.size() >= sizeof(Hello), "a greeting is a hello");
  std::memcpy(g.bytes.data() + offsetof(Hello, address), &address, sizeof(address));
}

// The packet of a correct peer, except for what the input changes.
void speak(Input& in, int fd, const Greeting& good, const wire::EpAddress& address) {
  Greeting said{good.bytes, {}};
  address_to(said, address);
  if (in.below(4) == 0) said.bytes[offsetof(Hello, type)] = static_cast<std::byte>(in.below(10));
  in.patch(said.bytes);
  if (in.below(16) == 0) said.bytes.resize(in.take<uint8_t>());
  size_t count = good.fds.size();
  if (in.below(4) == 0) count = in.below(20);
  for (size_t i = 0; i < count; ++i) {
    if (UniqueFd one = descriptor(in, i, good); one.valid()) said.fds.push_back(std::move(one));
  }
  send_packet(fd, said.bytes, said.fds);
}

UniqueFd unix_socket(const std::string& abstract, bool listens) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, abstract.data(), abstract.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + abstract.size());
  auto* at = reinterpret_cast<sockaddr*>(&name);
  if (listens) {
    must(::bind(fd.get(), at, length) == 0 && ::listen(fd.get(), 8) == 0, "the rogue's listener");
  } else if (::connect(fd.get(), at, length) != 0) {
    fd.reset();
  }
  return fd;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return run(data, size, [](Input& in) {
    const uint8_t mode = in.take<uint8_t>();
    Node rogue({.strict = (mode & 2) != 0});
    Node victim({.strict = (mode & 1) != 0});
    const wire::EpAddress address = victim.ep().address();
    const std::string name = listener_name(address.pid);
    // A listener that both nodes call. Its name differs from the victim's only in the number.
    const wire::EpAddress elsewhere{address.nic, address.pid ^ 1, address.vni, 0};
    const UniqueFd listener = unix_socket(name.substr(0, name.rfind('-') + 1) + std::to_string(elsewhere.pid), true);
    const auto called_by = [&](Node& node) {
      (void)node.call(node.insert(elsewhere));
      UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      for (int i = 0; i < 8 && !fd.valid(); ++i) {
        node.progress();
        fd = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      }
      return fd;
    };
    // The rogue's hello for the victim, and its welcome, which answers a hello of the victim.
    UniqueFd from_rogue = called_by(rogue), from_victim = called_by(victim);
    must(from_rogue.valid() && from_victim.valid(), "a node calls");
    const auto hello = hear(from_rogue.get());
    auto theirs = hear(from_victim.get());
    must(hello && theirs, "a node greets");
    address_to(*theirs, rogue.ep().address());
    const UniqueFd to_rogue = unix_socket(listener_name(rogue.ep().address().pid), false);
    send_packet(to_rogue.get(), theirs->bytes, theirs->fds);
    rogue.progress(3);
    const auto welcome = hear(to_rogue.get());
    must(welcome.has_value(), "a node answers");

    const uint64_t dest = victim.insert(elsewhere);
    std::vector<std::pair<UniqueFd, bool>> calls;  // true: the victim made the call
    calls.emplace_back(std::move(from_victim), true);
    for (int step = 0; step < 64 && !in.empty(); ++step) {
      switch (in.below(8)) {
        case 0:
          if (UniqueFd fd = unix_socket(name, false); fd.valid() && calls.size() < 8) {
            calls.emplace_back(std::move(fd), false);
          }
          break;
        case 1:
          victim.post(in, dest);
          if (UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)); fd.valid()) {
            calls.emplace_back(std::move(fd), true);
          }
          break;
        case 2:
        case 3:
        case 4:
          if (!calls.empty()) {
            const auto& [fd, called] = calls[in.below(static_cast<uint32_t>(calls.size()))];
            speak(in, fd.get(), called ? *welcome : *hello, called ? elsewhere : address);
          }
          break;
        case 5:
          if (!calls.empty()) {
            const size_t which = in.below(static_cast<uint32_t>(calls.size()));
            if (!hear(calls[which].first.get()) && in.coin()) {
              calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(which));
            }
          }
          break;
        default:
          victim.progress(2);
          (void)victim.collect();
      }
    }
    victim.progress(4);
    (void)victim.collect();
    victim.check_guards();
    if ((mode & 4) != 0) {
      calls.clear();
      Node friendly({});
      must(victim.serves(friendly), "a victim serves others whoever called it");
    }
  });
}
