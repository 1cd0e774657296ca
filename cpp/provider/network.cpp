// cpp/provider/network.cpp: other hosts: network.hpp.
#include "provider/network.hpp"

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/sodium.hpp"
#include "link/routes.hpp"
#include "provider/objects.hpp"

namespace weft::provider {

namespace {

constexpr std::string_view kScheme = "weft://";
constexpr uint16_t kDefaultVni = 1;  // of an address without one
constexpr std::array<const char*, 5> kVariables = {"WEFT_SECRET", "WEFT_SECRET_FILE", "WEFT_LISTEN", "WEFT_ADVERTISE",
                                                   "WEFT_TCP_LOG"};

// The functions in a library, which stays loaded; none if it cannot be loaded or has not all of them.
std::optional<Sodium> functions_of(const std::string& path, std::string* why) {
  void* const library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    *why += "\n  " + std::string(::dlerror());
    return std::nullopt;
  }
  std::array<void*, Sodium::kNames.size()> found{};
  const char* missing = nullptr;
  for (size_t i = 0; i < found.size() && missing == nullptr; ++i) {
    found[i] = ::dlsym(library, Sodium::kNames[i]);
    if (found[i] == nullptr) missing = Sodium::kNames[i];
  }
  auto* const begin = reinterpret_cast<int (*)()>(::dlsym(library, "sodium_init"));
  if (missing == nullptr && begin != nullptr && begin() >= 0) return Sodium::from(found);
  *why += "\n  " + path + " has no " + (missing != nullptr ? missing : "working sodium_init");
  ::dlclose(library);
  return std::nullopt;
}

Sodium find_sodium(const Record& how) {
  std::string why;
  for (const std::string_view path : how.texts("library")) {
    if (const auto found = functions_of(std::string(path), &why)) return *found;
  }
  throw Error(fi_err::kENOSYS,
              "the tcp link needs libsodium 1.0.20, and no library here has its functions:" + why +
                  "\n  try: an XDG_RUNTIME_DIR from which libraries can be loaded (not noexec), or libsodium 1.0.20 "
                  "where the loader finds it");
}

// The text up to a separator, which is removed too.
std::string_view cut(std::string_view* text, char separator) noexcept {
  const std::string_view found = text->substr(0, text->find(separator));
  text->remove_prefix(std::min(text->size(), found.size() + 1));
  return found;
}

bool number_of(std::string_view text, uint64_t most, uint64_t* out) noexcept {
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return bad == std::errc() && end == text.data() + text.size() && *out <= most;
}

// IPv4 first, as in Python: a name often has both kinds, and a listener on 0.0.0.0 accepts only IPv4.
std::optional<wire::HostAddress> host_of(const std::string& name, uint16_t port) {
  addrinfo asked{};
  asked.ai_socktype = SOCK_STREAM;
  addrinfo* all = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &asked, &all) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> freed(all, ::freeaddrinfo);
  const addrinfo* chosen = nullptr;
  for (const addrinfo* one = all; one != nullptr; one = one->ai_next) {
    if (one->ai_family == AF_INET || (one->ai_family == AF_INET6 && chosen == nullptr)) chosen = one;
    if (one->ai_family == AF_INET) break;
  }
  if (chosen == nullptr) return std::nullopt;
  sockaddr_storage name_of{};
  std::memcpy(&name_of, chosen->ai_addr, chosen->ai_addrlen);
  wire::HostAddress host = link::from_sockaddr(name_of);
  host.port = port;
  return host;
}

// The number of a NIC of a host; if the host is this process, the NIC's own.
uint32_t number_of_route(const Domain& domain, const link::Route& route) {
  const auto here = domain.host->tcp().listening();
  return here && *here == route.host ? route.nic : domain.host->routes().number(route);
}

}  // namespace

bool is_of_network(std::string_view entry) noexcept {
  const std::string_view name = entry.substr(0, entry.find('='));
  for (const char* one : kVariables) {
    if (name == one) return true;
  }
  return false;
}

Record network_variables() {
  Record found;
  for (const char* name : kVariables) {
    const char* const value = std::getenv(name);
    if (value == nullptr) continue;
    std::string text = value;
    if (std::strcmp(name, "WEFT_SECRET_FILE") == 0 && !text.empty() && text[0] != '/') {
      char folder[4096];
      if (::getcwd(folder, sizeof(folder)) != nullptr) text = std::string(folder) + "/" + text;
    }
    found.add(name, std::string_view(text));
  }
  return found;
}

void open_network(host::HostNic& host, const Record& how) {
  const std::string_view key = how.text("key");
  if (!key.empty()) {
    wire::Bytes32 bytes;
    if (key.size() != bytes.size()) throw Error(fi_err::kEIO, "the policy helper's key has another size");
    std::memcpy(bytes.data(), key.data(), bytes.size());
    host.tcp().set_secret(find_sodium(how), bytes);
  }
  const std::string ip(how.text("listen.ip"));
  if (ip.empty()) return;
  std::optional<wire::HostAddress> known_as;
  if (how.has("listen.known_as")) known_as = link::parse_host(std::string(how.text("listen.known_as")), 0);
  (void)host.tcp().listen(link::parse_host(ip, static_cast<uint16_t>(how.number("listen.port"))), known_as);
}

bool parse_remote(const Domain& domain, std::string_view text, wire::EpAddress* out, bool* has_pid) noexcept {
  if (text.substr(0, kScheme.size()) != kScheme) return false;
  text.remove_prefix(kScheme.size());
  std::string_view place = cut(&text, '/');
  const size_t colon = place.rfind(':');
  if (colon == std::string_view::npos) return false;
  uint64_t port = 0, nic = 0, vni = kDefaultVni, pid = 0;
  if (!number_of(place.substr(colon + 1), 0xffff, &port) || port == 0) return false;
  std::string_view name = place.substr(0, colon);
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  // Host and port alone: the endpoint with the port's number.
  pid = port;
  *has_pid = text.empty();
  if (!text.empty()) {
    if (!number_of(cut(&text, '/'), wire::kRemoteNic - 1, &nic)) return false;
    if (!text.empty() && !number_of(cut(&text, '/'), 0xffff, &vni)) return false;
    if (!text.empty()) {
      if (!number_of(cut(&text, '/'), 0xffffffff, &pid) || !text.empty()) return false;
      *has_pid = true;
    }
  }
  try {
    const auto host = host_of(std::string(name), static_cast<uint16_t>(port));
    if (!host) return false;
    const uint32_t number = number_of_route(domain, {*host, static_cast<uint32_t>(nic)});
    *out = {number, static_cast<uint32_t>(pid), static_cast<uint16_t>(vni), 0};
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::string text_of_remote(const Domain& domain, const wire::EpAddress& address) noexcept {
  try {
    return address.nic < wire::kRemoteNic ? std::string() : domain.host->routes().text_of(address);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

std::string text_for_peers(const Domain& domain, const wire::EpAddress& address) noexcept {
  try {
    const auto here = domain.host->tcp().listening();
    if (!here || address.nic >= wire::kRemoteNic) return text_of_remote(domain, address);
    return std::string(kScheme) + link::text_of(*here) + "/" + std::to_string(address.nic) + "/" +
           std::to_string(address.vni) + "/" + std::to_string(address.pid);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

uint32_t nic_of_fabric(const Domain& domain, uint32_t nic) noexcept {
  const auto found = domain.elsewhere.find(nic);
  return found != domain.elsewhere.end() ? found->second : domain.fabric_base | nic;
}

uint32_t nic_in_fabric(const Domain& domain, uint32_t number) noexcept {
  if (number < wire::kRemoteNic) return number & 0xfffff;
  const auto route = domain.host->routes().find(number);
  return (route ? route->nic : number) & 0xfffff;
}

void take_hosts(Domain& domain) {
  for (const Record& one : domain.rules.all("elsewhere")) {
    const auto nic = static_cast<uint32_t>(one.number("nic"));
    const auto host = link::parse_host(std::string(one.text("ip")), static_cast<uint16_t>(one.number("port")));
    domain.elsewhere[nic] = number_of_route(domain, {host, domain.fabric_base | nic});
  }
}

}  // namespace weft::provider
