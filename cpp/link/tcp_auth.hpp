// cpp/link/tcp_auth.hpp: the greeting of two NICs, without sockets: takes and makes greetings, derives the keys.
//
// A password-authenticated key exchange, CPace (Haase and Labrique, 2019; the CFRG's draft), over the prime-order group
// of edwards25519:
//
//   generator G = Elligator2(BLAKE2b(secret, VNI, version, the dialer's nonce))
//   shares      D = d G, A = a G, with d and a fresh for each connection
//   session     S = BLAKE2b keyed with d a G, over hello and challenge
//   proofs      and the key of each direction: BLAKE2b keyed with S, each under its own label
//
// Properties. A passive attacker sees shares and proofs but cannot test a guess of the secret: without d or a it cannot
// compute the common point for any secret. An active attacker, who calls or answers calls without the secret, can test
// one guess per connection, and the NIC logs each attempt. An attacker who learns the secret later cannot decrypt
// recorded traffic. The proofs cover all fields of hello and challenge, so an attacker cannot change version, VNI,
// addresses or the encryption flag. Labels differ by direction, so a reflected proof fails. The acceptor proves itself
// first; in this exchange the order reveals nothing.
#pragma once

#include "wire/tcp.hpp"

namespace weft::link {

// `key`: 32 bytes that both NICs have; code outside of the NIC derives them from a passphrase (Argon2id).
struct TcpSecret {
  Sodium sodium;
  wire::Bytes32 key{};
};

struct SessionKeys {
  wire::Seal send, receive;
};

class Handshake {
 public:
  // The acceptor takes the VNI from the hello.
  struct Self {
    std::array<uint8_t, 16> uuid{};
    wire::Bytes32 nonce{};   // fresh for each connection, of the dialer
    wire::Bytes32 scalar{};  // fresh for each connection, secret
    wire::HostAddress listen;
    uint32_t nic = 0;
    bool encrypt = true;  // requests encryption; a request of one side is enough
  };
  // The dialer's handshake computes its share here: about 0.2 ms.
  Handshake(bool dialer, const TcpSecret& secret, const Self& self, uint16_t vni, const wire::HostAddress& called);
  ~Handshake();
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  [[nodiscard]] const wire::Greeting& hello() const noexcept { return hello_; }  // the dialer's first greeting

  enum class Step {
    reply,  // send *out, wait for more
    last,   // send *out; the handshake is done
    done,
    refused,  // send *out (a reject), hang up
    failed,   // the other side refused: reason()
  };
  // Handles a received greeting. A hello or a challenge takes about 0.3 ms, the others negligible time.
  Step on(const wire::Greeting& in, wire::Greeting* out);

  [[nodiscard]] wire::TcpReject reason() const noexcept { return reason_; }
  [[nodiscard]] const wire::Greeting& theirs() const noexcept { return dialer_ ? challenge_ : hello_; }
  [[nodiscard]] uint16_t vni() const noexcept { return hello_.vni; }
  [[nodiscard]] bool encrypts() const noexcept { return (hello_.encrypt | challenge_.encrypt) != 0; }
  [[nodiscard]] SessionKeys keys() const;  // once done

 private:
  [[nodiscard]] wire::Bytes32 derive(const char* label) const;
  [[nodiscard]] bool proves(const wire::Bytes32& proof, const char* label) const;
  [[nodiscard]] bool make_share(wire::Bytes32* share) const;
  bool meet(const wire::Bytes32& theirs);
  [[nodiscard]] wire::Greeting reply(wire::GreetingType type) const;
  Step refuse(wire::TcpReject reason, wire::Greeting* out);

  bool dialer_;
  const TcpSecret& secret_;  // the link's
  Self self_;
  wire::Greeting hello_, challenge_;  // the input of the proofs: challenge_ without its own proof
  std::array<std::byte, 64> session_{};
  wire::GreetingType expected_;
  wire::TcpReject reason_ = wire::TcpReject::none;
};

const char* text_of(wire::TcpReject reason) noexcept;
// The status of a call that was rejected for `reason`. again: a connection is on its way, or there will be room later.
Status status_of(wire::TcpReject reason) noexcept;

}  // namespace weft::link
