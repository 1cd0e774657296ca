// cpp/link/tcp_auth.cpp: see tcp_auth.hpp.
#include "link/tcp_auth.hpp"

#include <cstring>

namespace weft::link {

namespace {

// BLAKE2b's personal strings: 16 bytes each.
constexpr char kGenerator[] = "weft tcp 5 gener";
constexpr char kSession[] = "weft tcp 5 sessi";
constexpr char kProofOfAcceptor[] = "weft tcp 5 accep";
constexpr char kProofOfDialer[] = "weft tcp 5 diale";
constexpr char kWelcome[] = "weft tcp 5 welco";
constexpr char kPacketsOfAcceptor[] = "weft tcp 5 packA";
constexpr char kPacketsOfDialer[] = "weft tcp 5 packD";
static_assert(sizeof(kGenerator) == 17 && sizeof(kSession) == 17 && sizeof(kProofOfAcceptor) == 17 &&
              sizeof(kProofOfDialer) == 17 && sizeof(kWelcome) == 17 && sizeof(kPacketsOfAcceptor) == 17 &&
              sizeof(kPacketsOfDialer) == 17);

template <typename T>
Sodium::Byte* raw(T* bytes) noexcept {
  return reinterpret_cast<Sodium::Byte*>(bytes);
}
template <typename T>
const Sodium::Byte* raw(const T* bytes) noexcept {
  return reinterpret_cast<const Sodium::Byte*>(bytes);
}

// Concatenates values of fixed sizes.
template <typename... Part>
auto joined(const Part&... part) noexcept {
  std::array<std::byte, (sizeof(Part) + ...)> out;
  size_t at = 0;
  ((std::memcpy(out.data() + at, &part, sizeof(part)), at += sizeof(part)), ...);
  return out;
}

}  // namespace

Handshake::Handshake(bool dialer, const TcpSecret& secret, const Self& self, uint16_t vni,
                     const wire::HostAddress& called)
    : dialer_(dialer),
      secret_(secret),
      self_(self),
      expected_(dialer ? wire::GreetingType::challenge : wire::GreetingType::hello) {
  if (dialer) {
    hello_ = reply(wire::GreetingType::hello);
    hello_.vni = vni;
    hello_.called = called;
    hello_.nonce = self.nonce;
    (void)make_share(&hello_.share);
  }
}

Handshake::~Handshake() {
  secret_.sodium.wipe(&self_.scalar, sizeof(self_.scalar));
  secret_.sodium.wipe(&session_, sizeof(session_));
}

wire::Greeting Handshake::reply(wire::GreetingType type) const {
  wire::Greeting g;
  g.type = type;
  g.vni = hello_.vni;
  g.nic = self_.nic;
  g.uuid = self_.uuid;
  if (type != wire::GreetingType::reject) g.listen = self_.listen;  // a refused caller learns only the reason
  if (type == wire::GreetingType::hello || type == wire::GreetingType::challenge) g.encrypt = self_.encrypt ? 1 : 0;
  return g;
}

Handshake::Step Handshake::refuse(wire::TcpReject reason, wire::Greeting* out) {
  reason_ = reason;
  *out = reply(wire::GreetingType::reject);
  out->reason = reason;
  return Step::refused;
}

// Computes our share: our scalar times the generator of this connection.
bool Handshake::make_share(wire::Bytes32* share) const {
  const Sodium& s = secret_.sodium;
  auto in = joined(secret_.key, hello_.vni, wire::kTcpVersion, hello_.nonce);
  wire::Bytes32 uniform, generator;
  s.blake2b(raw(&uniform), sizeof(uniform), raw(&in), sizeof(in), nullptr, 0, nullptr, raw(kGenerator));
  const bool made = s.point_from_uniform(raw(&generator), raw(&uniform)) == 0 &&
                    s.point_multiply(raw(share), raw(&self_.scalar), raw(&generator)) == 0;
  s.wipe(&in, sizeof(in));
  s.wipe(&uniform, sizeof(uniform));
  s.wipe(&generator, sizeof(generator));
  return made;
}

// Derives the session key once hello and challenge are known. False: the other side's share is not a point of the
// group.
bool Handshake::meet(const wire::Bytes32& theirs) {
  const Sodium& s = secret_.sodium;
  wire::Bytes32 common;
  if (s.point_multiply(raw(&common), raw(&self_.scalar), raw(&theirs)) != 0) return false;
  const auto said = joined(hello_, challenge_);
  s.blake2b(raw(&session_), sizeof(session_), raw(&said), sizeof(said), raw(&common), sizeof(common), nullptr,
            raw(kSession));
  s.wipe(&common, sizeof(common));
  return true;
}

wire::Bytes32 Handshake::derive(const char* label) const {
  wire::Bytes32 out;
  secret_.sodium.blake2b(raw(&out), sizeof(out), nullptr, 0, raw(&session_), sizeof(session_), nullptr, raw(label));
  return out;
}

bool Handshake::proves(const wire::Bytes32& proof, const char* label) const {
  const wire::Bytes32 due = derive(label);
  return secret_.sodium.compare(&proof, &due, sizeof(due)) == 0;
}

Handshake::Step Handshake::on(const wire::Greeting& in, wire::Greeting* out) {
  if (in.type == wire::GreetingType::reject) {
    reason_ = in.reason == wire::TcpReject::none ? wire::TcpReject::malformed : in.reason;
    return Step::failed;
  }
  if (in.version != wire::kTcpVersion) return refuse(wire::TcpReject::version, out);
  if (in.type != expected_) return refuse(wire::TcpReject::malformed, out);
  switch (in.type) {
    case wire::GreetingType::hello:
      hello_ = in;
      challenge_ = reply(wire::GreetingType::challenge);
      if (!make_share(&challenge_.share) || !meet(in.share)) return refuse(wire::TcpReject::malformed, out);
      *out = challenge_;
      out->proof = derive(kProofOfAcceptor);
      expected_ = wire::GreetingType::proof;
      return Step::reply;
    case wire::GreetingType::challenge:
      if (in.vni != hello_.vni || in.uuid == self_.uuid) return refuse(wire::TcpReject::malformed, out);
      challenge_ = in;
      challenge_.proof = {};
      if (!meet(in.share)) return refuse(wire::TcpReject::malformed, out);
      if (!proves(in.proof, kProofOfAcceptor)) return refuse(wire::TcpReject::secret, out);
      *out = reply(wire::GreetingType::proof);
      out->proof = derive(kProofOfDialer);
      expected_ = wire::GreetingType::welcome;
      return Step::reply;
    case wire::GreetingType::proof:
      if (!proves(in.proof, kProofOfDialer)) return refuse(wire::TcpReject::secret, out);
      *out = reply(wire::GreetingType::welcome);
      out->proof = derive(kWelcome);
      return Step::last;
    case wire::GreetingType::welcome:
      if (!proves(in.proof, kWelcome)) return refuse(wire::TcpReject::secret, out);
      return Step::done;
    case wire::GreetingType::reject:
      break;
  }
  return refuse(wire::TcpReject::malformed, out);
}

SessionKeys Handshake::keys() const {
  const auto seal = [&](const char* label) {
    wire::Bytes32 key = derive(label);
    const wire::Seal made(secret_.sodium, std::span(key).first<wire::kSealKeyBytes>(), encrypts());
    secret_.sodium.wipe(&key, sizeof(key));
    return made;
  };
  const wire::Seal forth = seal(kPacketsOfDialer), back = seal(kPacketsOfAcceptor);
  return dialer_ ? SessionKeys{forth, back} : SessionKeys{back, forth};
}

const char* text_of(wire::TcpReject reason) noexcept {
  const auto number = static_cast<size_t>(reason);  // from a peer
  return number < std::size(wire::kTcpRejectChoices) ? wire::kTcpRejectChoices[number].text : "an unknown reason";
}

Status status_of(wire::TcpReject reason) noexcept {
#define WEFT_STATUS_OF(name, number, text, status) Status::status,
  static constexpr Status kStatuses[] = {WEFT_TCP_REJECTS(WEFT_STATUS_OF)};
#undef WEFT_STATUS_OF
  const auto number = static_cast<size_t>(reason);
  return number < std::size(kStatuses) ? kStatuses[number] : Status::refused;
}

}  // namespace weft::link
