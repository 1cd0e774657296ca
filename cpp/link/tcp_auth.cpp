// cpp/link/tcp_auth.cpp: see tcp_auth.hpp.
#include "link/tcp_auth.hpp"

#include <cstring>
#include <string_view>

namespace weft::link {

namespace {

std::span<const std::byte> bytes_of(std::string_view text) noexcept {
  return std::as_bytes(std::span(text.data(), text.size()));
}
template <typename T>
std::span<const std::byte> bytes_of(const T& value) noexcept {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

Handshake::Handshake(bool dialer, std::span<const std::byte> secret, const Self& self, uint16_t vni,
                     const wire::HostAddress& called)
    : dialer_(dialer),
      secret_(secret),
      self_(self),
      expected_(dialer ? wire::GreetingType::challenge : wire::GreetingType::hello) {
  if (dialer) {
    hello_ = reply(wire::GreetingType::hello);
    hello_.vni = vni;
    hello_.called = called;
  }
}

wire::Greeting Handshake::reply(wire::GreetingType type) const {
  wire::Greeting g;
  g.type = type;
  g.vni = hello_.vni;
  g.nic = self_.nic;
  g.uuid = self_.uuid;
  if (type != wire::GreetingType::reject) {  // who is refused learns no more than why
    g.listen = self_.listen;
    if (type == wire::GreetingType::hello || type == wire::GreetingType::challenge) g.nonce = self_.nonce;
  }
  return g;
}

Handshake::Step Handshake::refuse(wire::TcpReject reason, wire::Greeting* out) {
  reason_ = reason;
  *out = reply(wire::GreetingType::reject);
  out->reason = reason;
  return Step::refused;
}

// Over what both have heard. Whoever changed a byte on the way is found here.
Digest Handshake::mac(const char* label) const {
  const Digest vni_key = HmacSha256(secret_)
                             .update(bytes_of(std::string_view("weft tcp vni")))
                             .update(bytes_of(hello_.vni))
                             .update(bytes_of(wire::kTcpVersion))
                             .finish();
  return HmacSha256(vni_key)
      .update(bytes_of(std::string_view(label)))
      .update(bytes_of(hello_))
      .update(bytes_of(challenge_))
      .finish();
}

Handshake::Step Handshake::on(const wire::Greeting& in, wire::Greeting* out) {
  if (in.type == wire::GreetingType::reject && dialer_) {
    reason_ = in.reason == wire::TcpReject::none ? wire::TcpReject::malformed : in.reason;
    return Step::failed;
  }
  if (in.type != expected_) return refuse(wire::TcpReject::malformed, out);
  if (in.version != wire::kTcpVersion) return refuse(wire::TcpReject::version, out);
  switch (in.type) {
    case wire::GreetingType::hello:
      hello_ = in;
      challenge_ = reply(wire::GreetingType::challenge);
      *out = challenge_;
      expected_ = wire::GreetingType::proof;
      return Step::reply;
    case wire::GreetingType::challenge:
      if (in.vni != hello_.vni || in.uuid == self_.uuid) return refuse(wire::TcpReject::malformed, out);
      challenge_ = in;
      *out = reply(wire::GreetingType::proof);
      out->mac = mac("weft tcp proof of the dialer");
      expected_ = wire::GreetingType::welcome;
      return Step::reply;
    case wire::GreetingType::proof:
      if (!equal_in_constant_time(in.mac, mac("weft tcp proof of the dialer"))) {
        return refuse(wire::TcpReject::secret, out);
      }
      *out = reply(wire::GreetingType::welcome);
      out->mac = mac("weft tcp proof of the acceptor");
      return Step::last;
    case wire::GreetingType::welcome:
      if (!equal_in_constant_time(in.mac, mac("weft tcp proof of the acceptor"))) {
        return refuse(wire::TcpReject::secret, out);
      }
      return Step::done;
    case wire::GreetingType::reject:
      break;
  }
  return refuse(wire::TcpReject::malformed, out);
}

SessionKeys Handshake::keys() const {
  const auto key = [&](const char* label) { return MacKey(bytes_of(mac(label)).first<32>()); };
  const MacKey forth = key("weft tcp packets of the dialer"), back = key("weft tcp packets of the acceptor");
  return dialer_ ? SessionKeys{forth, back} : SessionKeys{back, forth};
}

const char* text_of(wire::TcpReject reason) noexcept {
  switch (reason) {
    case wire::TcpReject::none:
      return "no reason";
    case wire::TcpReject::version:
      return "it speaks another version of Weft's tcp protocol";
    case wire::TcpReject::secret:
      return "the secrets differ: give both processes the same WEFT_SECRET";
    case wire::TcpReject::malformed:
      return "what was said is no greeting of Weft";
    case wire::TcpReject::busy:
      return "it has no room for another connection";
    case wire::TcpReject::crossed:
      return "it was just calling us";
  }
  return "an unknown reason";
}

Status status_of(wire::TcpReject reason) noexcept {
  switch (reason) {
    case wire::TcpReject::crossed:
      return Status::again;
    case wire::TcpReject::secret:
      return Status::secret;
    case wire::TcpReject::version:
      return Status::version;
    default:
      return Status::refused;
  }
}

}  // namespace weft::link
