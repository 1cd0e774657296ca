// cpp/link/routes.hpp: local NIC numbers for NICs of other hosts, and the texts of addresses.
//
// wire::EpAddress contains a NIC number of 32 bits. A Routes table assigns the numbers from wire::kRemoteNic on, one
// for each (host, port, NIC there) that it is told of; they are valid only for those who use the same table. The table
// only grows, so a number keeps its meaning. It is older than the NICs that use it where addresses are parsed before
// there is a NIC: the binding has one for the process.
#pragma once

#include <sys/socket.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/lock.hpp"
#include "wire/tcp.hpp"

namespace weft::link {

struct Route {
  wire::HostAddress host;
  uint32_t nic = 0;  // its number there

  auto operator<=>(const Route&) const = default;
};

// Thread-safe.
class Routes {
 public:
  // The numbers that each listening process of a host can have told us: the table never shrinks.
  static constexpr uint32_t kToldNicsMax = 1024;

  // Returns the number of a route and assigns one if the route is new.
  uint32_t number(const Route& route);
  // The same for a route that a peer announces; beyond kToldNicsMax new ones of its host kUnknownNic.
  uint32_t told_number(const Route& route);
  [[nodiscard]] std::optional<Route> find(uint32_t nic) const;
  // "weft://10.0.0.1:7000/0/1/5"; for an address of this host, EpAddress::text().
  [[nodiscard]] std::string text_of(const wire::EpAddress& address) const;
  // Around fork(), which waits for the thread that holds the lock, so that the child gets a consistent table and a free
  // lock. After those of the NICs, which hold their locks while they take this one.
  void before_fork() { lock_.lock_at_fork(); }
  void after_fork() noexcept { lock_.unlock_after_fork(); }

 private:
  uint32_t add(const Route& route);  // requires the lock

  mutable RankedMutex<lock_rank::kRoutes> lock_;
  std::map<Route, uint32_t> numbers_ GUARDED_BY(lock_);
  std::vector<Route> routes_ GUARDED_BY(lock_);
  std::map<wire::HostAddress, uint32_t> told_
      GUARDED_BY(lock_);  // how many numbers each listening process of a host has used
};

std::string ip_of(const wire::HostAddress& host);
// "10.0.0.1:7000", "[fe80::1%eth0]:7000".
std::string text_of(const wire::HostAddress& host);

// Parses numeric addresses only, without name lookup. Throws Error(EINVAL).
wire::HostAddress parse_host(const std::string& ip, uint16_t port);

wire::HostAddress from_sockaddr(const sockaddr_storage& from) noexcept;
socklen_t to_sockaddr(const wire::HostAddress& host, sockaddr_storage* out) noexcept;

}  // namespace weft::link
