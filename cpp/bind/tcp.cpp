// cpp/bind/tcp.cpp: the tcp link of a NIC, and addresses of other hosts.
#include <cstring>

#include "bind/common.hpp"
#include "link/shm_names.hpp"

namespace weft::bind {

namespace {

using Place = std::pair<std::string, uint16_t>;

Place place_of(const wire::HostAddress& host) {
  return {link::ip_of(host), host.port};
}

}  // namespace

void register_tcp(Module& m, Class<PyNic>& nic) {
  nic.about(
         "Sets the key that both sides of a tcp connection must have: 32 bytes. It is set once.\n\n"
         "sodium   addresses of libsodium's functions (sodium_functions()), which must stay loaded.\n\n"
         "Raises ValueError (another length), KeyError (a function is missing), FabricError: Busy (another key is "
         "set).")
      .def<"tcp_secret(self, key: bytes, sodium: dict[str, int]) -> None">([](PyNic& n, nb::bytes key,
                                                                              nb::dict sodium) {
        auto box = box_of(n);
        std::array<void*, Sodium::kNames.size()> addresses;
        for (size_t i = 0; i < addresses.size(); ++i) {
          const char* name = Sodium::kNames[i];
          addresses[i] = sodium.contains(name) ? reinterpret_cast<void*>(nb::cast<uintptr_t>(sodium[name])) : nullptr;
          if (addresses[i] == nullptr) throw nb::key_error(name);
        }
        wire::Bytes32 bytes;
        if (key.size() != bytes.size()) throw nb::value_error("the key has 32 bytes");
        std::memcpy(bytes.data(), key.c_str(), bytes.size());
        box->host->tcp().set_secret(Sodium::from(addresses), bytes);
      })
      .about("Names of the functions that tcp_secret() needs.")
      .def_static<"sodium_functions">(
          [] { return std::vector<std::string>(Sodium::kNames.begin(), Sodium::kNames.end()); })
      .about("Whether tcp_secret() was called.")
      .def<"tcp_has_secret">([](PyNic& n) { return box_of(n)->host->tcp().has_secret(); })
      .about("Sets the time in seconds within which the NIC notices a dead host. Raises Busy once the link is in use.")
      .def<"tcp_timeout(seconds)">([](PyNic& n, double seconds) {
        auto box = box_of(n);
        box->host->tcp().set_timeout(static_cast<uint64_t>(seconds * 1e9));
      })
      .about(
          "Sets which packets are encrypted: \"auto\" (all except between loopback addresses), \"on\" or \"off\".\n"
          "\"on\" of one side is enough. All packets are authenticated in any case. Raises Busy once the link is in "
          "use.")
      .def<"tcp_encryption(when)">([](PyNic& n, const std::string& when) {
        if (when != "auto" && when != "on" && when != "off") throw nb::value_error("auto, on or off");
        auto box = box_of(n);
        const auto mode = when == "auto" ? link::Encryption::automatic
                          : when == "on" ? link::Encryption::on
                                         : link::Encryption::off;
        box->host->tcp().set_encryption(mode);
      })
      .about(
          "Accepts connections of other hosts. Returns the address to give to peers.\n\n"
          "port      0: any free port.\n"
          "known_as  the IP address to give to peers; needed if `ip` is a wildcard.\n\n"
          "Raises FabricError: AccessDenied (no secret), AddressInUse, Busy (this process already listens at another\n"
          "address), InvalidArgument.")
      .def<"tcp_listen(ip, port=0, known_as=None)">(
          [](PyNic& n, const std::string& ip, uint16_t port, std::optional<std::string> known_as) {
            auto box = box_of(n);
            std::optional<wire::HostAddress> as;
            if (known_as) as = link::parse_host(*known_as, 0);
            return place_of(box->host->tcp().listen(link::parse_host(ip, port), as));
          })
      .about("The address at which other hosts can call; None if the NIC does not listen.")
      .def<"tcp_listening">([](PyNic& n) -> std::optional<Place> {
        const auto at = box_of(n)->host->tcp().listening();
        if (!at) return std::nullopt;
        return place_of(*at);
      })
      .about("The last 64 rejected callers and lost connections, oldest first, with the reasons.")
      .def<"tcp_log">([](PyNic& n) { return box_of(n)->host->tcp().log(); })
      .about("Numbers of connections so far: accepted, called, failed greetings (refused), lost.")
      .def<"tcp_statistics(self) -> dict[str, int]">([](PyNic& n) {
        const auto s = box_of(n)->host->tcp().statistics();
        nb::dict d;
        WEFT_PUT(d, s, accepted, called, refused, lost);
        return d;
      });

  m.about(
       "Returns the number by which this process names a NIC of another host. Raises InvalidArgument (not an IP "
       "address).")
      .def<"route_number(ip, port, nic=0)">([](const std::string& ip, uint16_t port, uint32_t nic_number) {
        return routes()->number({link::parse_host(ip, port), nic_number});
      });
  m.about("Returns (ip, port, nic) of a number from route_number(); None for a NIC of this host.")
      .def<"route_of(number)">([](uint32_t number) -> std::optional<std::tuple<std::string, uint16_t, uint32_t>> {
        const auto route = routes()->find(number);
        if (!route) return std::nullopt;
        return std::tuple{link::ip_of(route->host), route->host.port, route->nic};
      });

  m.about("True if an endpoint of this user, in any process of this host, has this NIC and VNI.")
      .def<"has_vni(nic, vni)">([](uint32_t number, uint16_t vni) {
        const ReleasedGil released;
        return link::has_vni(number, vni);
      });
}

}  // namespace weft::bind
