// cpp/link/tcp_auth.hpp: the greeting of two NICs, without sockets: greetings in, greetings out, keys at the end.
//
// Both sides prove that they know the VNI's secret, over everything that was said: versions, VNI, both NICs, both
// nonces, what was called and where each can be called. A proof carries its direction in its label, so that none can be
// sent back to where it came from; the nonces make each proof good for one connection.
#pragma once

#include <span>

#include "wire/tcp.hpp"

namespace weft::link {

struct SessionKeys {
  MacKey send, receive;
};

class Handshake {
 public:
  // The acceptor takes the VNI from the hello.
  struct Self {
    std::array<uint8_t, 16> uuid{};
    std::array<uint8_t, 32> nonce{};
    wire::HostAddress listen;
    uint32_t nic = 0;
  };
  Handshake(bool dialer, std::span<const std::byte> secret, const Self& self, uint16_t vni,
            const wire::HostAddress& called);

  [[nodiscard]] const wire::Greeting& hello() const noexcept { return hello_; }  // the dialer's first words

  enum class Step {
    reply,  // send *out, wait for more
    last,   // send *out; it is done
    done,
    refused,  // send *out (a reject), hang up
    failed,   // the other side refused: reason()
  };
  Step on(const wire::Greeting& in, wire::Greeting* out);

  [[nodiscard]] wire::TcpReject reason() const noexcept { return reason_; }
  [[nodiscard]] const wire::Greeting& theirs() const noexcept { return dialer_ ? challenge_ : hello_; }
  [[nodiscard]] uint16_t vni() const noexcept { return hello_.vni; }
  [[nodiscard]] SessionKeys keys() const;  // once done

 private:
  [[nodiscard]] Digest mac(const char* label) const;
  [[nodiscard]] wire::Greeting reply(wire::GreetingType type) const;
  Step refuse(wire::TcpReject reason, wire::Greeting* out);

  bool dialer_;
  std::span<const std::byte> secret_;  // the link's
  Self self_;
  wire::Greeting hello_, challenge_;
  wire::GreetingType expected_;
  wire::TcpReject reason_ = wire::TcpReject::none;
};

const char* text_of(wire::TcpReject reason) noexcept;
// How a call ends that was turned down so. again: the connection is on its way.
Status status_of(wire::TcpReject reason) noexcept;

}  // namespace weft::link
