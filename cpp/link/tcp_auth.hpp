// cpp/link/tcp_auth.hpp: the greeting of two NICs, without sockets: greetings in, greetings out, keys at the end.
//
// A password-authenticated key exchange, CPace (Haase and Labrique, 2019; the CFRG's draft), over the prime-order group
// of edwards25519:
//
//   generator G = Elligator2(BLAKE2b(secret, VNI, version, the dialer's nonce))
//   shares      D = d G, A = a G, with d and a fresh for each connection
//   session     S = BLAKE2b keyed with d a G, over hello and challenge
//   proofs      and the key of each direction: BLAKE2b keyed with S, under a label each
//
// What follows from that. A listener, who sees shares and proofs, cannot test a guess of the secret: without d or a the
// common point is out of reach, whatever the secret is. Who calls, or answers a call, without the secret can test one
// guess a connection, and the NIC logs each. Who learns the secret later cannot read what was recorded. The proofs
// cover everything that hello and challenge say, so no version, VNI, address or wish to encrypt can be changed on the
// way. Labels differ by direction, so no proof can be sent back. The acceptor proves itself first; with this exchange
// the order gives nothing away.
#pragma once

#include <span>

#include "wire/tcp.hpp"

namespace weft::link {

// `key`: 32 bytes that both NICs have; a passphrase becomes that outside of the NIC (Argon2id).
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
    bool encrypt = true;  // asks for it: one side's wish is enough
  };
  // The dialer's computes its share: some 0.2 ms.
  Handshake(bool dialer, const TcpSecret& secret, const Self& self, uint16_t vni, const wire::HostAddress& called);
  ~Handshake();
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  [[nodiscard]] const wire::Greeting& hello() const noexcept { return hello_; }  // the dialer's first words

  enum class Step {
    reply,  // send *out, wait for more
    last,   // send *out; it is done
    done,
    refused,  // send *out (a reject), hang up
    failed,   // the other side refused: reason()
  };
  // A hello and a challenge take some 0.3 ms, the others nothing.
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
  wire::Greeting hello_, challenge_;  // as the proofs cover them: challenge_ without its own proof
  std::array<std::byte, 64> session_{};
  wire::GreetingType expected_;
  wire::TcpReject reason_ = wire::TcpReject::none;
};

const char* text_of(wire::TcpReject reason) noexcept;
// How a call ends that was turned down so. again: the connection is on its way, or there will be room later.
Status status_of(wire::TcpReject reason) noexcept;

}  // namespace weft::link
