// cpp/link/shm_names.cpp: see shm_names.hpp.
#include "link/shm_names.hpp"

#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <vector>

#include "wire/hello.hpp"

namespace weft::link {

namespace {

constexpr int kBacklog = 4096;
constexpr size_t kCandidatesMax = 4096;  // names with a tail that a caller tries: about 10 ms
// UDIAG_SHOW_UID and UNIX_DIAG_UID of Linux 5.3, which older headers lack.
constexpr uint32_t kShowUid = 0x40;
constexpr uint16_t kDiagUid = 7;
constexpr char kListens[] = " 00010000 ";  // flags of a listening socket in /proc/net/unix: __SO_ACCEPTCON

std::string names_of(uint32_t nic, uint16_t vni) {
  return "weft-" + std::to_string(wire::kHelloVersion) + "-" + std::to_string(::geteuid()) + "-" + std::to_string(nic) +
         "-" + std::to_string(vni) + "-";
}

std::string usual_name(const wire::EpAddress& a) {
  return names_of(a.nic, a.vni) + std::to_string(a.pid);
}

socklen_t socket_name(const std::string& name, sockaddr_un* out) noexcept {
  std::memset(out, 0, sizeof(*out));
  out->sun_family = AF_UNIX;
  const size_t n = std::min(name.size(), sizeof(out->sun_path) - 1);
  std::memcpy(out->sun_path + 1, name.data(), n);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
}

UniqueFd make_socket() noexcept {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

enum class Holder { ours, other, full, nobody };

// Connects `fd` to the socket of this name; *who: the credentials of its process.
Holder connect_by_name(int fd, const std::string& name, ucred* who) noexcept {
  sockaddr_un there;
  const socklen_t length = socket_name(name, &there);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&there), length) != 0) {
    return errno == EAGAIN ? Holder::full : Holder::nobody;
  }
  *who = {};
  socklen_t size = sizeof(*who);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who, &size) != 0) return Holder::other;
  return who->uid == ::geteuid() ? Holder::ours : Holder::other;
}

std::string holder_text(const ucred& who) {
  return "user " + std::to_string(who.uid) + ", process " + std::to_string(who.pid);
}

// The names of this network namespace that consist of `usual` and a tail.
std::vector<std::string> names_with_tail(const std::string& usual) {
  std::vector<std::string> found;
  std::ifstream all("/proc/net/unix");
  const std::string wanted = "@" + usual + "-";
  for (std::string line; found.size() < kCandidatesMax && std::getline(all, line);) {
    const size_t at = line.find(wanted);
    if (at != std::string::npos) found.push_back(line.substr(at + 1));
  }
  return found;
}

// Connects `fd`, or a socket that takes its place, to this user's endpoint under a name with a tail.
Holder connect_with_tail(int fd, const std::string& usual) {
  Holder best = Holder::nobody;
  ucred who{};
  for (const std::string& name : names_with_tail(usual)) {
    // A connected socket cannot connect again, so try each name with a new socket and keep the successful one.
    UniqueFd trial = make_socket();
    if (!trial.valid()) return Holder::full;
    const Holder holder = connect_by_name(trial.get(), name, &who);
    if (holder == Holder::ours) return ::dup3(trial.get(), fd, O_CLOEXEC) == fd ? Holder::ours : Holder::full;
    if (holder == Holder::full) best = Holder::full;
  }
  return best;
}

// The user whose socket has this name, listening or not; nullopt: no socket, or the kernel (before 5.3) does not tell.
std::optional<uint32_t> owner_of(const std::string& name) {
  const UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd.valid()) return std::nullopt;
  struct {
    nlmsghdr head;
    unix_diag_req asked;
  } request{};
  request.head.nlmsg_len = sizeof(request);
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.asked.sdiag_family = AF_UNIX;
  // Ignore connections to a socket, which are listed under its name and outlive it.
  request.asked.udiag_states = 1U << TCP_LISTEN | 1U << TCP_CLOSE;
  request.asked.udiag_show = UDIAG_SHOW_NAME | kShowUid;
  if (::send(fd.get(), &request, sizeof(request), 0) < 0) return std::nullopt;
  alignas(nlmsghdr) char buffer[1 << 15];
  for (;;) {
    ssize_t left = ::recv(fd.get(), buffer, sizeof(buffer), 0);
    if (left <= 0) return std::nullopt;
    for (auto* m = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(m, left); m = NLMSG_NEXT(m, left)) {
      if (m->nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;  // the end, or an error
      auto* one = static_cast<unix_diag_msg*>(NLMSG_DATA(m));
      auto more = static_cast<int>(m->nlmsg_len - NLMSG_LENGTH(sizeof(*one)));
      std::string_view named;
      std::optional<uint32_t> owner;
      for (auto* a = reinterpret_cast<rtattr*>(one + 1); RTA_OK(a, more); a = RTA_NEXT(a, more)) {
        if (a->rta_type == UNIX_DIAG_NAME) named = {static_cast<const char*>(RTA_DATA(a)), RTA_PAYLOAD(a)};
        if (a->rta_type == kDiagUid) owner = *static_cast<const uint32_t*>(RTA_DATA(a));
      }
      if (one->udiag_type == SOCK_SEQPACKET && named.size() == name.size() + 1 && named.substr(1) == name) return owner;
    }
  }
}

}  // namespace

bool has_vni(uint32_t nic, uint16_t vni) {
  std::ifstream all("/proc/net/unix");
  std::string wanted = names_of(nic, vni);
  wanted.insert(wanted.begin(), '@');
  for (std::string line; std::getline(all, line);) {
    // Ignore connections to an endpoint, which are listed under its name and outlive it.
    if (line.find(wanted) != std::string::npos && line.find(kListens) != std::string::npos) return true;
  }
  return false;
}

UniqueFd listen_at(const wire::EpAddress& address, Random& random) {
  UniqueFd fd = make_socket();
  if (!fd.valid()) throw Error(fi_err::kEMFILE, std::string("socket: ") + std::strerror(errno));
  const std::string usual = usual_name(address);
  sockaddr_un name;
  socklen_t length = socket_name(usual, &name);
  bool bound = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0;
  if (!bound && errno == EADDRINUSE) {
    const auto taken = [&] {
      return Error(fi_err::kEADDRINUSE, "address " + address.text() +
                                            " is taken by another endpoint on this host: choose another service "
                                            "number, or none and let the endpoint choose");
    };
    const UniqueFd probe = make_socket();
    ucred who{};
    Holder holder = probe.valid() ? connect_by_name(probe.get(), usual, &who) : Holder::full;
    // An endpoint binds and then listens. A process stopped in between still has the address.
    if (holder == Holder::nobody && owner_of(usual) == ::geteuid()) throw taken();
    for (int turn = 0; holder == Holder::nobody && turn < 10; ++turn) {
      ::poll(nullptr, 0, 1);
      holder = connect_by_name(probe.get(), usual, &who);
    }
    const UniqueFd other = make_socket();
    if (holder == Holder::ours || !other.valid() || connect_with_tail(other.get(), usual) != Holder::nobody) {
      throw taken();
    }
    char tail[24];
    std::snprintf(tail, sizeof(tail), "-%016llx", static_cast<unsigned long long>(random.next()));
    length = socket_name(usual + tail, &name);
    bound = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0;
    if (!bound) {
      throw Error(fi_err::kEADDRINUSE, "address " + address.text() + ": its name is taken by " +
                                           (holder == Holder::other ? holder_text(who) : "another user's process") +
                                           ", and no other name could be bound: " + std::strerror(errno));
    }
  }
  if (!bound) throw Error(fi_err::kEIO, "bind " + address.text() + ": " + std::strerror(errno));
  if (::listen(fd.get(), kBacklog) != 0) throw Error(fi_err::kEIO, std::string("listen: ") + std::strerror(errno));
  return fd;
}

Status connect_to(int fd, const wire::EpAddress& address, std::string* why) {
  const std::string usual = usual_name(address);
  ucred who{};
  const Holder holder = connect_by_name(fd, usual, &who);
  if (holder == Holder::ours) return Status::ok;
  switch (connect_with_tail(fd, usual)) {
    case Holder::ours:
      return Status::ok;
    case Holder::full:
      return Status::again;
    case Holder::other:
    case Holder::nobody:
      break;
  }
  if (holder == Holder::full) return Status::again;
  if (holder == Holder::nobody) return Status::no_endpoint;
  *why = "the name of that address is taken by " + holder_text(who) + ", and no endpoint of this user is there";
  return Status::refused;
}

}  // namespace weft::link
