// cpp/link/tcp_names.cpp: see tcp_names.hpp.
#include "link/tcp_names.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/fd.hpp"

namespace weft::link {

socklen_t here_name(const wire::HostAddress& host, bool wildcard, sockaddr_un* out) noexcept {
  std::memset(out, 0, sizeof(*out));
  out->sun_family = AF_UNIX;
  const std::string where = wildcard ? "*:" + std::to_string(host.port) : text_of(host);
  const int n = std::snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "weft-tcp-%u-%s",
                              static_cast<unsigned>(::geteuid()), where.c_str());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                std::min(static_cast<size_t>(n), sizeof(out->sun_path) - 2));
}

bool is_wildcard(const wire::HostAddress& host) noexcept {
  return host.ip == std::array<uint8_t, 16>{};
}

bool is_ours(const wire::HostAddress& host) noexcept {
  sockaddr_storage name;
  wire::HostAddress any_port = host;
  any_port.port = 0;
  const socklen_t length = to_sockaddr(any_port, &name);
  const UniqueFd fd(::socket(name.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd.valid() && ::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0;
}

wire::HostAddress usual_address(uint8_t family, uint16_t port) noexcept {
  // Documentation prefixes (RFC 5737, RFC 3849): connect() of a datagram socket only looks up the route.
  wire::HostAddress far = parse_host(family == 4 ? "192.0.2.1" : "2001:db8::1", 9);
  sockaddr_storage name;
  socklen_t length = to_sockaddr(far, &name);
  const UniqueFd fd(::socket(name.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (fd.valid() && ::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0) {
    length = sizeof(name);
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length) == 0) {
      wire::HostAddress found = from_sockaddr(name);
      found.port = port;
      return found;
    }
  }
  wire::HostAddress found = parse_host(family == 4 ? "127.0.0.1" : "::1", port);
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* a = all; a != nullptr; a = a->ifa_next) {
    if (a->ifa_addr == nullptr || (a->ifa_flags & IFF_UP) == 0 || (a->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const int wanted = family == 4 ? AF_INET : AF_INET6;
    if (a->ifa_addr->sa_family != wanted) continue;
    sockaddr_storage one{};
    std::memcpy(&one, a->ifa_addr, family == 4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    const wire::HostAddress candidate = from_sockaddr(one);
    if (candidate.scope != 0) continue;  // a scoped address is meaningless on another host
    found = candidate;
    found.port = port;
    break;
  }
  ::freeifaddrs(all);
  return found;
}

}  // namespace weft::link
