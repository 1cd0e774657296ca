// tests/fuzz/fuzz_hello.cpp: strangers on the shm link's socket: greetings with any content and with descriptors of any
// kind, of a caller and of a listener that the victim itself calls.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "ring/mpsc.hpp"
#include "target.hpp"
#include "wire/hello.hpp"

using namespace weft;
using namespace weft::fuzz;
using wire::Hello;
using wire::HelloType;

namespace {

constexpr uint32_t kMrCount = 64;

UniqueFd file_of(size_t size, bool sealed, uint32_t ring_slots = 0) {
  UniqueFd fd = make_memfd("fuzz", size);
  if (ring_slots != 0) {
    const Mapping mapping = Mapping::shared(fd.get(), size, true, "a ring");
    (void)ring::MpscConsumer::create(std::span(mapping.data(), mapping.size()), ring_slots);
  }
  if (sealed) seal_size(fd.get());
  return fd;
}

// Descriptors that behave, each made once: what a node does to them does not change them for the next input.
struct Good {
  explicit Good(const link::AreaShape& shape)
      : ring(file_of(shape.ring_bytes(), true, shape.slot_count)), staging(file_of(shape.staging_bytes(), true)) {}
  UniqueFd ring, staging, table = file_of(mem::TableLayout(kMrCount).bytes, true), segment = file_of(1 << 21, true);
};

UniqueFd copy_of(const UniqueFd& fd) {
  return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
}

// A descriptor of the kind that the input asks for; `usual` is the one that belongs in this place.
UniqueFd descriptor(Input& in, size_t place, const Good& good) {
  uint32_t kind = in.take<uint8_t>();
  if (kind < 160) kind = static_cast<uint32_t>(std::min<size_t>(place + 1, 4));
  switch (kind % 20) {
    case 0:
      return UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    case 1:
      return copy_of(good.ring);
    case 2:
      return copy_of(good.staging);
    case 3:
      return copy_of(good.table);
    case 4:
      return copy_of(good.segment);
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
    case 9: {  // the end that is written, with nobody at the other
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

// Takes one packet and closes what came with it; false where there is none.
bool take_packet(int fd) {
  std::byte bytes[4096];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)];
  iovec iov{bytes, sizeof(bytes)};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); n > 0 && c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int one;
      std::memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      ::close(one);
    }
  }
  return n > 0;
}

// A packet as a good peer would send it, but for what the input changes.
void speak(Input& in, int fd, HelloType usual, const wire::EpAddress& address) {
  static const Good shared(link::kSharedArea), own(link::kPrivateArea);
  static constexpr uint64_t kCounts[] = {1, 0, 2, 64, 4096, ~uint32_t{0}};
  Hello h;
  h.type = in.below(4) != 0 ? usual : static_cast<HelloType>(in.below(7));
  static constexpr uint8_t kFlags[] = {0, wire::kHelloPrivate, wire::kHelloPrivate | wire::kHelloStrict,
                                       wire::kHelloStrict};
  h.flags = kFlags[in.below(4)];
  const bool is_private = (h.flags & wire::kHelloPrivate) != 0;
  const Good& good = is_private ? own : shared;
  const link::AreaShape& shape = link::area_shape(is_private);
  h.uuid.fill(in.take<uint8_t>());
  h.address = address;
  h.producer_id = 1;
  h.ring_slot_count = shape.slot_count;
  h.staging_bytes = shape.staging_bytes();
  h.table_bytes = mem::TableLayout(kMrCount).bytes;
  h.mr_count_max = kMrCount;
  h.segment_count = (h.flags & wire::kHelloStrict) != 0 ? 0 : static_cast<uint32_t>(in.number(kCounts));
  h.segment = static_cast<uint32_t>(in.number(kCounts));
  h.segment_bytes = 1 << 21;
  std::vector<std::byte> bytes(sizeof(h));
  std::memcpy(bytes.data(), &h, sizeof(h));
  for (uint32_t i = 0; i < std::min(h.segment_count, 64U); ++i) {
    const uint64_t size = in.below(4) != 0 ? 1 << 21 : in.take<uint64_t>();
    const auto* p = reinterpret_cast<const std::byte*>(&size);
    bytes.insert(bytes.end(), p, p + sizeof(size));
  }
  in.patch(bytes);
  if (in.below(16) == 0) bytes.resize(in.take<uint8_t>());
  size_t count = 2 + ((h.flags & wire::kHelloStrict) != 0 ? 0 : 1 + std::min(h.segment_count, 8U));
  if (h.type == HelloType::segment) count = 1;
  if (h.type == HelloType::segment_request || h.type == HelloType::reject || h.type == HelloType::goodbye) count = 0;
  if (in.below(8) == 0) count = in.below(20);
  std::vector<UniqueFd> fds;
  for (size_t i = 0; i < count; ++i) {
    UniqueFd one = descriptor(in, h.type == HelloType::segment ? 3 : i, good);
    if (one.valid()) fds.push_back(std::move(one));
  }
  send_packet(fd, bytes, fds);
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
    Node victim({.strict = (mode & 1) != 0});
    const wire::EpAddress address = victim.ep().address();
    const std::string name = listener_name(address.pid);
    // Somebody whom the victim calls: the same name but for the number.
    const wire::EpAddress elsewhere{address.nic, address.pid ^ 1, address.vni, 0};
    const UniqueFd listener = unix_socket(name.substr(0, name.rfind('-') + 1) + std::to_string(elsewhere.pid), true);
    const uint64_t dest = victim.insert(elsewhere);
    std::vector<std::pair<UniqueFd, bool>> calls;  // and whether the victim made it
    for (int step = 0; step < 64 && !in.empty(); ++step) {
      switch (in.below(8)) {
        case 0:
          if (UniqueFd fd = unix_socket(name, false); fd.valid() && calls.size() < 8)
            calls.emplace_back(std::move(fd), false);
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
            speak(in, fd.get(), called ? HelloType::welcome : HelloType::hello, called ? elsewhere : address);
          }
          break;
        case 5:
          if (!calls.empty()) {
            const size_t which = in.below(static_cast<uint32_t>(calls.size()));
            if (!take_packet(calls[which].first.get()) && in.coin())
              calls.erase(calls.begin() + static_cast<long>(which));
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
