// tests/cpp/tcp_rogue.hpp: peers of a tcp link: a Victim that listens, a Listener, and a Rogue, which talks to a NIC
// over a real connection. A Rogue may know the secret; it then seals the packets that it makes up.
#pragma once

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <boost/test/unit_test.hpp>

#include "fabric.hpp"

namespace weft::test {

inline const std::string kSecret = "a secret of the tests, for tcp";

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline link::TcpSecret secret_of(const std::string& text) {
  return {sodium(), key_of(text)};
}

// A side that listens and makes progress only when the test calls it.
struct Victim {
  explicit Victim(uint64_t timeout_ns = link::TcpConfig{}.timeout_ns) : side(config(timeout_ns)) {
    memory = side.alloc(kAll);
    std::memset(memory, 0x5a, kAll);
    region = side.reg(memory + kGuard, kBytes, 42);
    at = *side.host->tcp().listening();
  }
  static SideConfig config(uint64_t timeout_ns = link::TcpConfig{}.timeout_ns) {
    SideConfig c;
    c.host.tcp.timeout_ns = timeout_ns;
    c.host.engine_thread = false;
    c.host.shm_link = false;
    c.listen = true;
    return c;
  }
  void step(int rounds = 3) {
    for (int i = 0; i < rounds; ++i) side.nic().progress();
  }
  [[nodiscard]] bool guards_hold() const {
    const auto intact = [](const std::byte* p) {
      return std::all_of(p, p + kGuard, [](std::byte b) { return b == std::byte{0x5a}; });
    };
    return intact(memory) && intact(memory + kGuard + kBytes);
  }
  [[nodiscard]] std::string last_reason() const {
    const auto log = side.host->tcp().log();
    return log.empty() ? "" : log.back();
  }

  // Posts an operation to an endpoint at that address, which the NIC must find first.
  void call(const wire::HostAddress& there, uint32_t pid = 5) {
    static const uint64_t word = 1;
    const uint64_t dest = side.av->insert({routes()->number({there, 0}), pid, 0, 0});
    BOOST_REQUIRE(post(*side.ep, write_of(dest, &word, 8, 0, 42)).refusal == Refusal::none);
  }
  [[nodiscard]] link::TcpLink::Statistics counts() const { return side.host->tcp().statistics(); }
  [[nodiscard]] size_t connections() const { return side.host->tcp().peers().size(); }

  static constexpr size_t kGuard = 1 << 16, kBytes = 1 << 16, kAll = kGuard + kBytes + kGuard;
  Side side;
  std::byte* memory;
  std::shared_ptr<nic::MemoryRegion> region;
  wire::HostAddress at;
};

// The address at which a Rogue is called.
struct Listener {
  Listener() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_storage name;
    socklen_t length = link::to_sockaddr(link::parse_host("127.0.0.1", 0), &name);
    BOOST_REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0);
    BOOST_REQUIRE(::listen(fd.get(), 16) == 0);
    length = sizeof(name);
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length);
    at = link::from_sockaddr(name);
  }
  UniqueFd fd;
  wire::HostAddress at;
};

constexpr std::array<uint8_t, 16> kLargestUuid = {255, 255, 255, 255, 255, 255, 255, 255,
                                                  255, 255, 255, 255, 255, 255, 255, 255};
constexpr std::array<uint8_t, 16> kSmallestUuid = {};
constexpr uint64_t kForever = 1'000'000'000'000;  // longer than any wait of a test

// The Rogue's end of the connection, handled by the test.
struct Rogue {
  explicit Rogue(Victim& v, const std::string& secret = kSecret) : victim(v), secret_(secret_of(secret)) {
    sockaddr_storage name;
    const socklen_t length = link::to_sockaddr(v.at, &name);
    fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    BOOST_REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0);
    timeval patience{20, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  // A Rogue that the victim calls at `listener`, or has called.
  Rogue(Victim& v, const Listener& listener) : victim(v), secret_(secret_of(kSecret)), dialer(false) {
    BOOST_REQUIRE(poll_until(
        [&] {
          fd = UniqueFd(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
          return fd.valid();
        },
        [&] { victim.step(1); }));
  }
  // Rogues with the same uuid and listening address act as one NIC.
  Rogue& as(const std::array<uint8_t, 16>& uuid, const wire::HostAddress& listen) {
    self.uuid = uuid;
    self.listen = listen;
    return *this;
  }
  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN) return;  // the victim may hang up
      if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
      if (n < 0 || !bytes.empty()) {
        victim.step(1);
        drain();
      }
    }
  }
  std::optional<wire::Greeting> hear() {
    std::array<std::byte, sizeof(wire::Greeting)> in;
    size_t have = 0;
    const bool all = poll_until(
        [&] {
          const ssize_t n = ::recv(fd.get(), in.data() + have, in.size() - have, MSG_DONTWAIT);
          if (n > 0) have += static_cast<size_t>(n);
          return have == in.size() || n == 0 || (n < 0 && errno != EAGAIN);
        },
        [&] { victim.step(1); });
    BOOST_REQUIRE(all);
    return have == in.size() ? wire::parse_greeting(in) : std::nullopt;
  }
  void say(const wire::Greeting& g) {
    std::array<std::byte, sizeof(wire::Greeting)> out;
    wire::emit_greeting(g, out);
    send(out);
  }
  void say_hello(uint16_t vni = 0) {
    hand.emplace(dialer, secret_, self, vni, victim.at);
    if (dialer) say(hand->hello());
  }
  // Reads the next greeting and makes the answer to it.
  link::Handshake::Step hear_one(wire::Greeting* out) {
    const auto in = hear();
    return in ? hand->on(*in, out) : link::Handshake::Step::failed;
  }
  // True: the victim has accepted the connection.
  bool greet(uint16_t vni = 0) {
    say_hello(vni);
    return go_on();
  }
  bool go_on() {
    for (;;) {
      wire::Greeting out;
      const link::Handshake::Step step = hear_one(&out);
      switch (step) {
        case link::Handshake::Step::reply:
          say(out);
          break;
        case link::Handshake::Step::last:
          say(out);
          [[fallthrough]];
        case link::Handshake::Step::done:
          keys = hand->keys();
          return true;
        case link::Handshake::Step::refused:
          say(out);
          [[fallthrough]];
        default:
          refused = hand->reason();
          return false;
      }
    }
  }
  // True: the victim sends something more over this connection.
  bool is_told() {
    return poll_until([&] { return drain() != 0; }, [&] { victim.step(1); });
  }
  // Waits until the bytes sent are in the victim's kernel.
  void wait_until_taken() const {
    BOOST_REQUIRE(poll_until(
        [&] {
          int left = 0;
          return ::ioctl(fd.get(), SIOCOUTQ, &left) == 0 && left == 0;
        },
        [] {}));
  }
  void reset() {
    const linger at_once{1, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    fd.reset();
  }
  std::vector<std::byte> packet(wire::Frame f, std::span<const std::byte> payload, const wire::DoneBody& done = {}) {
    f.where = wire::PayloadWhere::none;
    f.payload_length = 0;
    std::vector<std::byte> out(wire::frame_bytes(payload.size()));
    std::ranges::copy(payload, out.begin() + static_cast<std::ptrdiff_t>(wire::payload_at(payload.size())));
    BOOST_REQUIRE(wire::emit_frame(keys.send, f, done, payload.size(), out.data()) == out.size());
    return out;
  }
  // A write that the victim's endpoint grants.
  wire::Frame write(size_t n, uint64_t addr) {
    wire::Frame f;
    f.kind = wire::FrameKind::write;
    f.flags = wire::kFrameLast;
    f.op_id = ++op;
    f.access.key = 42;
    f.access.addr = addr;
    f.access.length = n;
    f.ep_index = victim.side.ep->index();
    f.ep_generation = victim.side.nic().table().ep(f.ep_index).generation.load();
    f.staged_chunk = static_cast<uint32_t>(n);
    return f;
  }
  size_t drain() {
    std::array<std::byte, 65536> nowhere;
    size_t all = 0;
    for (;;) {
      const ssize_t n = ::recv(fd.get(), nowhere.data(), nowhere.size(), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno == ECONNRESET)) hung_up = true;
      if (n <= 0) return all;
      all += static_cast<size_t>(n);
    }
  }
  bool dropped() {
    return poll_until(
        [&] {
          drain();
          return hung_up;
        },
        [&] { victim.step(1); });
  }

  Victim& victim;
  link::TcpSecret secret_;
  bool dialer = true;
  UniqueFd fd;
  link::Handshake::Self self{{1, 2, 3}, key_of("a nonce"), key_of("a scalar"), {}, 0, false};
  std::optional<link::Handshake> hand;
  link::SessionKeys keys;
  uint64_t op = 0;
  bool hung_up = false;
  wire::TcpReject refused = wire::TcpReject::none;
};

// A correct peer reaches the victim, regardless of what the Rogues did.
inline void expect_served(Victim& v) {
  SideConfig config;
  config.host.engine_thread = false;
  config.host.shm_link = false;
  config.listen = true;
  Side good(config);
  const uint64_t dest = good.insert(v.side);
  const auto data = pattern(4096);
  std::vector<std::byte> back(data.size());
  for (const auto& access :
       {write_of(dest, data.data(), data.size(), 0, 42), read_of(dest, back.data(), back.size(), 0, 42)}) {
    BOOST_REQUIRE(post(*good.ep, access).refusal == Refusal::none);
    std::optional<Completion> c;
    BOOST_REQUIRE(poll_until([&] { return (c = try_completion(good)).has_value(); },
                             [&] {
                               good.progress();
                               v.step(1);
                             }));
    BOOST_TEST(c->error == 0, c->text);
  }
  BOOST_TEST((back == data));
}

inline void expect_dropped(Victim& v, Rogue& rogue, const char* reason) {
  BOOST_TEST(rogue.dropped());
  BOOST_TEST(v.last_reason().find(reason) != std::string::npos, v.last_reason());
  BOOST_TEST(v.guards_hold());
}

}  // namespace weft::test
