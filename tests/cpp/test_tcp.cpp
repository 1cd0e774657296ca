// tests/cpp/test_tcp.cpp: what the tcp link does with peers that do not do as they should.
// A Rogue speaks to a NIC over a real connection: it may know the secret, and then seals what it makes up.
//
// WEFT_SEED=n replays a run; WEFT_FUZZ_FRAMES=n is how many made-up frames are sent (make fuzz: 1,000,000).
#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <boost/test/unit_test.hpp>
#include <latch>

#include "fabric.hpp"

using namespace weft;
using namespace weft::test;

namespace {

const std::string kSecret = "a secret of the tests, for tcp";

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
link::TcpSecret secret_of(const std::string& text) {
  return {sodium(), key_of(text)};
}

// A side that listens and makes progress only when it is told.
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

  // Something for an endpoint at that address, which must be found first.
  void call(const wire::HostAddress& there, uint32_t pid = 5) {
    static const uint64_t word = 1;
    const uint64_t dest = side.av->insert({link::route_number({there, 0}), pid, 0, 0});
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

// Where a Rogue is called.
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

// The other end, by hand.
struct Rogue {
  explicit Rogue(Victim& v, const std::string& secret = kSecret) : victim(v), secret_(secret_of(secret)) {
    sockaddr_storage name;
    const socklen_t length = link::to_sockaddr(v.at, &name);
    fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    BOOST_REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0);
    timeval patience{20, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  // Is called by the victim, or has been.
  Rogue(Victim& v, const Listener& listener) : victim(v), secret_(secret_of(kSecret)), dialer(false) {
    BOOST_REQUIRE(poll_until(
        [&] {
          fd = UniqueFd(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
          return fd.valid();
        },
        [&] { victim.step(1); }));
  }
  // One NIC with others of the same uuid, listening where they do.
  Rogue& as(const std::array<uint8_t, 16>& uuid, const wire::HostAddress& listen) {
    self.uuid = uuid;
    self.listen = listen;
    return *this;
  }
  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN) return;  // it hung up, as it may
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
  // The next greeting, and what is to be said to it.
  link::Handshake::Step hear_one(wire::Greeting* out) {
    const auto in = hear();
    return in ? hand->on(*in, out) : link::Handshake::Step::failed;
  }
  // True: it is in.
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
  // True: the victim says something more over this connection.
  bool is_told() {
    return poll_until([&] { return drain() != 0; }, [&] { victim.step(1); });
  }
  // What was sent is in the victim's kernel.
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
    f.key = 42;
    f.addr = addr;
    f.length = n;
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

// A peer that does as it should reaches the victim, whatever others did.
void expect_served(Victim& v) {
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

void expect_dropped(Victim& v, Rogue& rogue, const char* reason) {
  BOOST_TEST(rogue.dropped());
  BOOST_TEST(v.last_reason().find(reason) != std::string::npos, v.last_reason());
  BOOST_TEST(v.guards_hold());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tcp)

// AEGIS-128L with a tag of 256 bits and BLAKE2b, by the table: vectors of the CFRG's draft on AEGIS (test vector 2) and
// of RFC 7693, so that a table with functions in the wrong places is noticed.
BOOST_AUTO_TEST_CASE(test_sodium_table_computes_the_published_vectors) {
  const auto hex = [](std::span<const std::byte> bytes) {
    std::string text;
    for (const std::byte b : bytes) {
      char two[3];
      std::snprintf(two, sizeof(two), "%02x", std::to_integer<unsigned>(b));
      text += two;
    }
    return text;
  };
  const auto raw = [](auto& bytes) { return reinterpret_cast<Sodium::Byte*>(bytes.data()); };
  std::array<std::byte, 16> key{std::byte{0x10}, std::byte{1}}, nonce{std::byte{0x10}, std::byte{0}, std::byte{2}};
  std::array<std::byte, 48> out{};
  Sodium::Length length = 0;
  sodium().aegis128l_encrypt(raw(out), &length, raw(out), 16, nullptr, 0, nullptr, raw(nonce), raw(key));
  BOOST_TEST(hex(out) ==
             "c1c0e58bd913006feba00f4b3cc3594e25835bfbb21632176cf03840687cb968cace4617af1bd0f7d064c639a5c79ee4");
  std::array<std::byte, 64> digest;
  const std::string abc = "abc";
  sodium().blake2b(raw(digest), 64, reinterpret_cast<const Sodium::Byte*>(abc.data()), 3, nullptr, 0, nullptr, nullptr);
  BOOST_TEST(hex(digest).substr(0, 32) == "ba80a53f981c4d0d6a2797b69f12f6e9");
}

BOOST_AUTO_TEST_CASE(test_sealed_record_opens_once_in_its_turn_and_unchanged) {
  const auto key = key_of("of one direction");
  for (const bool encrypts : {false, true}) {
    const wire::Seal fresh(sodium(), std::span(key).first<wire::kSealKeyBytes>(), encrypts);
    const auto plain = pattern(300);
    auto sealed = plain;
    sealed.resize(plain.size() + wire::kTagBytes);
    wire::Seal writer = fresh;
    writer.close(sealed.data(), 8, plain.size() - 8);
    const bool seen = std::search(sealed.begin(), sealed.end(), plain.begin() + 8, plain.end()) != sealed.end();
    BOOST_TEST(seen == !encrypts);
    for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
      auto changed = sealed;
      changed[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      wire::Seal reader = fresh;
      BOOST_REQUIRE(!reader.open(changed.data(), 8, plain.size() - 8));
    }
    wire::Seal reader = fresh;
    auto opened = sealed;
    BOOST_TEST(reader.open(opened.data(), 8, plain.size() - 8));
    BOOST_TEST(std::equal(plain.begin(), plain.end(), opened.begin()));
    opened = sealed;
    BOOST_TEST(!reader.open(opened.data(), 8, plain.size() - 8));  // once more: the next one is due
    wire::Seal late = fresh;
    late.skip_to(1);
    opened = sealed;
    BOOST_TEST(!late.open(opened.data(), 8, plain.size() - 8));
    opened = sealed;
    wire::Seal elsewhere = fresh;
    if (encrypts) BOOST_TEST(!elsewhere.open(opened.data(), 7, plain.size() - 7));  // cut at another place
  }
}

BOOST_AUTO_TEST_CASE(test_packet_and_greeting_are_these_bytes) {
  constexpr std::array<uint8_t, 40> resolve = {
      // length 32    resolve, zeros
      32, 0, 0, 0, 3, 0, 0, 0,
      // id 7                  nic 9       pid 5       vni 3, 0    status      ep_index    ep_generation
      7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 255, 0, 0, 0};
  wire::ResolveBody body;
  body.id = 7;
  body.address = {9, 5, 3, 0};
  body.ep_index = 1;
  body.ep_generation = 255;
  const auto key = key_of("of one direction");
  wire::Seal seal(sodium(), std::span(key).first<wire::kSealKeyBytes>(), false);
  std::array<std::byte, wire::kPacketBytesMax> out;
  BOOST_TEST(wire::emit_packet(seal, wire::PacketType::resolve, body, out.data()) == 40U + wire::kTagBytes);
  BOOST_TEST(std::memcmp(out.data(), resolve.data(), resolve.size()) == 0);
  const auto prefix = wire::parse_prefix(out);
  BOOST_REQUIRE(prefix);
  BOOST_TEST(prefix->length == 32U);
  wire::Greeting g;
  g.type = wire::GreetingType::hello;
  g.vni = 0x0203;
  g.listen = link::parse_host("10.1.2.3", 0x1f90);
  g.encrypt = 1;
  std::array<std::byte, sizeof(g)> bytes;
  wire::emit_greeting(g, bytes);
  constexpr std::array<uint8_t, 10> head = {'W', 'F', 'T', 'C', 5, 0, 1, 0, 3, 2};
  BOOST_TEST(std::memcmp(bytes.data(), head.data(), head.size()) == 0);
  constexpr std::array<uint8_t, 12> listen = {4, 0, 0x90, 0x1f, 0, 0, 0, 0, 10, 1, 2, 3};
  BOOST_TEST(std::memcmp(bytes.data() + 64, listen.data(), listen.size()) == 0);
  BOOST_TEST((bytes[176] == std::byte{1}));
  BOOST_TEST((wire::parse_greeting(bytes)->listen == g.listen));
  BOOST_TEST(!wire::parse_other_version(bytes));
  bytes[4] = std::byte{4};
  const auto older = wire::parse_other_version(std::span(bytes).first(8));
  BOOST_REQUIRE(older);
  BOOST_TEST(older->version == 4U);
  bytes[4] = std::byte{5};
  bytes[64] = std::byte{5};  // no family
  BOOST_TEST(!wire::parse_greeting(bytes));
}

BOOST_AUTO_TEST_CASE(test_addresses_of_other_hosts_keep_their_number_and_their_text) {
  const link::Route a{link::parse_host("192.0.2.7", 7000), 3}, b{link::parse_host("2001:db8::7", 7000), 0};
  const uint32_t n = link::route_number(a);
  BOOST_TEST(n >= wire::kRemoteNic);
  BOOST_TEST(link::route_number(a) == n);
  BOOST_TEST(link::route_number(b) != n);
  BOOST_TEST((link::route_of(n) == a));
  BOOST_TEST(link::text_of(wire::EpAddress{n, 5, 1, 0}) == "weft://192.0.2.7:7000/3/1/5");
  BOOST_TEST(link::text_of(b.host) == "[2001:db8::7]:7000");
  BOOST_TEST(!link::route_of(0));
  BOOST_TEST(!link::route_of(wire::kUnknownNic));
  BOOST_CHECK_THROW(link::parse_host("host.example", 1), Error);
}

// What two NICs say to each other, with somebody on the way.
struct Talk {
  explicit Talk(const std::string& dialer = kSecret, const std::string& acceptor = kSecret)
      : ours(secret_of(dialer)), theirs(secret_of(acceptor)) {
    d.uuid = {1};
    a.uuid = {2};
    d.nonce = key_of("nonce of the dialer");
    d.scalar = key_of("scalar of the dialer");
    a.scalar = key_of("scalar of the acceptor");
    d.encrypt = a.encrypt = false;
  }
  // Why it came to nothing; none: both are in.
  template <typename OnTheWay>
  wire::TcpReject run(OnTheWay&& on_the_way) {
    one.emplace(true, ours, d, 5, link::parse_host("10.0.0.1", 1));
    two.emplace(false, theirs, a, 0, wire::HostAddress{});
    wire::Greeting forth = one->hello(), back;
    for (int words = 0; words < 8;) {
      on_the_way(forth, words++);
      const auto heard = two->on(forth, &back);
      on_the_way(back, words++);
      const auto answered = one->on(back, &forth);
      if (answered == link::Handshake::Step::done) return wire::TcpReject::none;
      if (heard == link::Handshake::Step::refused) return two->reason();
      if (answered != link::Handshake::Step::reply) return one->reason();
    }
    return wire::TcpReject::busy;
  }
  wire::TcpReject run() {
    return run([](wire::Greeting&, int) {});
  }
  link::TcpSecret ours, theirs;
  link::Handshake::Self d, a;
  std::optional<link::Handshake> one, two;
};

BOOST_AUTO_TEST_CASE(test_both_sides_of_a_greeting_must_know_the_secret) {
  const std::string wrong = "another secret, of the same length";
  Talk honest;
  BOOST_TEST((honest.run() == wire::TcpReject::none));
  const auto k1 = honest.one->keys(), k2 = honest.two->keys();
  BOOST_TEST((k1.send == k2.receive && k1.receive == k2.send && k1.send != k1.receive));
  BOOST_TEST(honest.two->vni() == 5);
  BOOST_TEST((Talk(wrong, kSecret).run() == wire::TcpReject::secret));
  BOOST_TEST((Talk(kSecret, wrong).run() == wire::TcpReject::secret));
}

BOOST_AUTO_TEST_CASE(test_greeting_changed_on_its_way_comes_to_nothing) {
  for (int word = 0; word < 4; ++word) {
    for (size_t at = 0; at < sizeof(wire::Greeting); ++at) {
      Talk talk;
      const auto end = talk.run([&](wire::Greeting& g, int now) {
        if (now == word) reinterpret_cast<std::byte*>(&g)[at] ^= std::byte{1};
      });
      // Bytes that a later greeting repeats, and that nobody uses there, are no part of what was agreed.
      const bool used = word < 2 || at == 4 || at == 5 || at == 6 || (at >= 112 && at < 144);
      if (used) BOOST_TEST((end != wire::TcpReject::none), "word " << word << ", byte " << at);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_connection_is_encrypted_where_either_side_asks_for_it) {
  for (const bool dialer : {false, true}) {
    for (const bool acceptor : {false, true}) {
      Talk talk;
      talk.d.encrypt = dialer;
      talk.a.encrypt = acceptor;
      BOOST_REQUIRE((talk.run() == wire::TcpReject::none));
      BOOST_TEST(talk.one->keys().send.encrypts() == (dialer || acceptor));
      BOOST_TEST((talk.two->keys().receive == talk.one->keys().send));
    }
  }
}

BOOST_AUTO_TEST_CASE(test_keys_differ_with_each_share_and_cannot_be_made_from_the_secret) {
  Talk first, again, fresh;
  fresh.a.scalar = key_of("another scalar");
  for (Talk* talk : {&first, &again, &fresh}) BOOST_REQUIRE((talk->run() == wire::TcpReject::none));
  BOOST_TEST((first.one->keys().send == again.one->keys().send));
  BOOST_TEST((first.one->keys().send != fresh.one->keys().send));
  // A third NIC knows the secret and has heard the hello, and has a scalar of its own.
  Talk listener;
  wire::Greeting hello, unused;
  Talk heard;
  BOOST_REQUIRE((heard.run([&](wire::Greeting& g, int now) {
    if (now == 0) hello = g;
  }) == wire::TcpReject::none));
  link::Handshake::Self mine = listener.a;
  mine.scalar = key_of("a scalar of somebody else");
  link::Handshake third(false, listener.theirs, mine, 0, wire::HostAddress{});
  BOOST_REQUIRE((third.on(hello, &unused) == link::Handshake::Step::reply));
  BOOST_TEST((third.keys().receive != heard.two->keys().receive));
}

BOOST_AUTO_TEST_CASE(test_share_that_is_no_point_of_the_group_is_refused) {
  wire::Bytes32 one{}, zero{}, order_two{}, twist{};
  one[0] = std::byte{1};  // the neutral element
  order_two.fill(std::byte{0xff});
  order_two[0] = std::byte{0xec};
  order_two[31] = std::byte{0x7f};  // y = -1: of order two
  twist[0] = std::byte{2};          // no point of the curve
  for (const wire::Bytes32& share : {one, zero, order_two, twist}) {
    for (const int word : {0, 1}) {
      Talk talk;
      const auto end = talk.run([&](wire::Greeting& g, int now) {
        if (now == word) g.share = share;
      });
      BOOST_TEST((end == wire::TcpReject::malformed));
    }
  }
}

BOOST_AUTO_TEST_CASE(test_greeting_sent_back_to_its_sender_comes_to_nothing) {
  Talk talk;
  talk.d.nonce = talk.a.nonce = key_of("one nonce");
  link::Handshake dialer(true, talk.ours, talk.d, 5, wire::HostAddress{});
  wire::Greeting mirrored = dialer.hello(), out;
  mirrored.type = wire::GreetingType::challenge;
  BOOST_TEST((dialer.on(mirrored, &out) == link::Handshake::Step::refused));
}

BOOST_AUTO_TEST_CASE(test_strangers_are_turned_away_with_a_reason) {
  Victim v;
  {
    Rogue rogue(v, "not the secret of this place");
    BOOST_TEST(!rogue.greet());
    BOOST_TEST((rogue.refused == wire::TcpReject::secret));
    expect_dropped(v, rogue, "secrets differ");
  }
  {
    Rogue rogue(v);
    wire::Greeting g;
    g.type = wire::GreetingType::hello;
    g.version = 77;
    rogue.say(g);
    const auto answer = rogue.hear();
    BOOST_REQUIRE(answer);
    BOOST_TEST((answer->reason == wire::TcpReject::version));
    expect_dropped(v, rogue, "another version");
  }
  {
    Rogue rogue(v);  // version 4, whose greetings were shorter
    wire::Greeting g;
    g.type = wire::GreetingType::hello;
    g.version = 4;
    rogue.send(std::as_bytes(std::span(&g, 1)).first(144));
    const auto answer = rogue.hear();
    BOOST_REQUIRE(answer);
    BOOST_TEST((answer->reason == wire::TcpReject::version));
    expect_dropped(v, rogue, "another version of Weft's tcp protocol (4, this one 5)");
  }
  {
    Rogue rogue(v);
    rogue.send(bytes_of("GET / HTTP/1.1\r\nHost: weft\r\n\r\n"));
    expect_dropped(v, rogue, "no greeting");
  }
  {
    Rogue rogue(v);  // a proof before it was asked for
    wire::Greeting g;
    g.type = wire::GreetingType::proof;
    rogue.say(g);
    expect_dropped(v, rogue, "no greeting");
  }
  {
    Rogue rogue(v);  // half a greeting, and gone
    const std::array<std::byte, 20> some{std::byte{'W'}, std::byte{'F'}, std::byte{'T'}, std::byte{'C'},
                                         std::byte{wire::kTcpVersion}};
    rogue.send(some);
    ::shutdown(rogue.fd.get(), SHUT_WR);
    expect_dropped(v, rogue, "hung up during the greeting");
  }
  BOOST_TEST(v.side.nic().statistics().peers == 0U);
  expect_served(v);
}

BOOST_AUTO_TEST_CASE(test_a_replayed_greeting_opens_nothing) {
  Victim v;
  Rogue first(v);
  link::Handshake::Self self;
  self.uuid = {1};
  self.scalar = key_of("a scalar");
  const link::TcpSecret secret = secret_of(kSecret);
  link::Handshake hand(true, secret, self, 0, v.at);
  first.say(hand.hello());
  wire::Greeting proof;
  BOOST_REQUIRE((hand.on(*first.hear(), &proof) == link::Handshake::Step::reply));
  Rogue second(v);  // says what the first one said and would have said
  second.say(hand.hello());
  (void)second.hear();
  second.say(proof);
  expect_dropped(v, second, "secrets differ");
}

BOOST_AUTO_TEST_CASE(test_damaged_packets_drop_their_sender_only) {
  Victim v;
  const auto data = pattern(1000);
  const auto attack = [&](const char* reason, auto&& how) {
    BOOST_TEST_CONTEXT(reason) {
      Rogue rogue(v);
      BOOST_REQUIRE(rogue.greet());
      how(rogue);
      expect_dropped(v, rogue, reason);
    }
  };
  attack("repeated", [&](Rogue& r) {
    const auto packet = r.packet(r.write(1000, 0), data);
    r.send(packet);
    r.send(packet);
  });
  attack("missing", [&](Rogue& r) {
    r.keys.send.skip_to(3);
    r.send(r.packet(r.write(1000, 0), data));
  });
  attack("repeated, or others are missing", [&](Rogue& r) {  // in the wrong order
    const auto first = r.packet(r.write(1000, 0), data), second = r.packet(r.write(1000, 0), data);
    r.send(second);
    r.send(first);
  });
  attack("not the one that was due", [&](Rogue& r) {  // what the victim itself said
    r.keys.send = r.keys.receive;
    r.send(r.packet(r.write(1000, 0), data));
  });
  attack("changed on its way", [&](Rogue& r) {
    auto packet = r.packet(r.write(1000, 0), data);
    packet[8 + 32] ^= std::byte{1};  // the address in the region
    r.send(packet);
  });
  attack("changed on its way", [&](Rogue& r) {  // shorter than it was
    auto packet = r.packet(r.write(1000, 0), data);
    packet[0] ^= std::byte{16};  // 1104 bytes become 1088
    packet.resize(packet.size() - 16);
    r.send(packet);
  });
  const auto long_data = pattern(200'000);  // more than one read takes
  for (const auto* payload : {&data, &long_data}) {
    const size_t n = std::min(payload->size(), Victim::kBytes);
    std::memset(v.memory + Victim::kGuard, 0x5a, n);
    attack("changed on its way", [&](Rogue& r) {
      auto packet = r.packet(r.write(n, 0), std::span(*payload).first(n));
      packet[packet.size() - wire::kTagBytes - 3] ^= std::byte{4};  // of the payload
      r.send(packet);
    });
    BOOST_TEST(std::all_of(v.memory + Victim::kGuard, v.memory + Victim::kGuard + n,
                           [](std::byte b) { return b == std::byte{0x5a}; }));
  }
  attack("no packet", [&](Rogue& r) { r.send(pattern(500, 9)); });
  attack("no packet", [&](Rogue& r) {
    auto packet = r.packet(r.write(1000, 0), data);
    const uint32_t huge = 0xfffffff0;
    std::memcpy(packet.data(), &huge, 4);
    r.send(packet);
  });
  attack("outside its range", [&](Rogue& r) {
    auto f = r.write(1000, 0);
    f.kind = wire::FrameKind::notice;
    r.send(r.packet(f, {}));
  });
  attack("outside its range", [&](Rogue& r) {  // a cost that is not its own
    auto f = r.write(1000, 0);
    f.staged_chunk = 0;
    r.send(r.packet(f, data));
  });
  attack("nobody asked for", [&](Rogue& r) {
    auto f = r.write(0, 0);
    f.kind = wire::FrameKind::answer;
    r.send(r.packet(f, {}));
  });
  attack("nobody asked for", [&](Rogue& r) { r.send(r.packet(r.write(1000, 0), data, {7, 8, 1})); });
  attack("outside its range", [&](Rogue& r) { r.send(r.packet(r.write(1000, 0), data, {7, 8, 2})); });
  attack("outside its range", [&](Rogue& r) {
    std::vector<std::byte> out(wire::kPacketBytesMax);
    out.resize(wire::emit_packet(r.keys.send, wire::PacketType::done, wire::DoneBody{7, 8, 0}, out.data()));
    r.send(out);
  });
  attack("another VNI", [&](Rogue& r) {
    auto f = r.write(1000, 0);
    f.source.vni = 9;
    r.send(r.packet(f, data));
  });
  attack("another VNI", [&](Rogue& r) {  // a source on this very host, it says
    auto f = r.write(1000, 0);
    f.source.nic = wire::kRemoteNic;
    r.send(r.packet(f, data));
  });
  attack("hung up", [&](Rogue& r) {  // in the middle of a long payload, whose region is closed meanwhile
    const auto large = pattern(60'000);
    const auto packet = r.packet(r.write(60'000, 0), large);
    r.send(std::span(packet).first(30'000));
    v.step();
    std::string why;
    BOOST_TEST(v.region->close(&why));
    std::memset(v.memory + Victim::kGuard, 0x33, Victim::kBytes);
    r.send(std::span(packet).subspan(30'000, 20'000));
    v.step();
    BOOST_TEST(std::all_of(v.memory + Victim::kGuard, v.memory + Victim::kGuard + Victim::kBytes,
                           [](std::byte b) { return b == std::byte{0x33}; }));
    v.region = v.side.reg(v.memory + Victim::kGuard, Victim::kBytes, 42);
    ::shutdown(r.fd.get(), SHUT_WR);
  });
  expect_served(v);
}

BOOST_AUTO_TEST_CASE(test_requests_beyond_the_limit_drop_their_sender) {
  Victim v;
  Rogue rogue(v);
  BOOST_REQUIRE(rogue.greet());
  // Reads that it never takes the answers of: the kernel's buffers fill, and then the owner's patience ends.
  wire::Frame f = rogue.write(60'000, 0);
  f.kind = wire::FrameKind::read;
  f.status = 60'000;
  f.staged_chunk = 60'000;
  for (int i = 0; i < 3000 && !rogue.hung_up; ++i) {
    f.op_id = static_cast<uint64_t>(i);
    const auto packet = rogue.packet(f, {});
    const ssize_t n = ::send(rogue.fd.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN) break;
    v.step(1);
  }
  BOOST_TEST(poll_until([&] { return v.last_reason().find("more requests at a time") != std::string::npos; },
                        [&] { v.step(1); }),
             v.last_reason());
  expect_served(v);
}

// Frames of every kind with fields drawn at random, sealed as by one who knows the secret, some of them damaged.
BOOST_AUTO_TEST_CASE(test_made_up_frames_touch_nothing_outside_the_region) {
  const char* asked = std::getenv("WEFT_FUZZ_FRAMES");
  const long frames = asked != nullptr ? std::atol(asked) : 20'000;
  const uint64_t seed = test_seed();
  BOOST_TEST_MESSAGE("WEFT_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto draw = [&](uint64_t below) { return random() % below; };
  Victim v;
  std::optional<Rogue> rogue;
  uint64_t connections = 0;
  const auto payload = pattern(wire::kTcpPayloadMax, seed);
  for (long i = 0; i < frames; ++i) {
    if (!rogue || rogue->hung_up) {
      rogue.emplace(v);
      BOOST_REQUIRE_MESSAGE(rogue->greet(), "WEFT_SEED=" << seed << ", frame " << i);
      ++connections;
    }
    wire::Frame f = rogue->write(0, 0);
    f.kind = static_cast<wire::FrameKind>(1 + draw(4));
    f.flags = static_cast<uint8_t>(draw(32));
    f.family = static_cast<uint8_t>(draw(3));
    f.datatype = static_cast<uint16_t>(draw(20));
    f.atomic_op = static_cast<uint16_t>(draw(24));
    if (draw(8) == 0) f.key = draw(64);
    // About the region's edges, and far away.
    f.addr = draw(4) == 0 ? random() : draw(2) == 0 ? draw(64) : Victim::kBytes - draw(64);
    f.length = draw(4) == 0 ? random() : draw(Victim::kBytes + 64);
    f.frag_offset = draw(4) == 0 ? random() : draw(128);
    f.imm_data = random();
    if (draw(16) == 0) f.ep_index = static_cast<uint32_t>(random());
    if (draw(16) == 0) f.ep_generation = static_cast<uint32_t>(random());
    f.status = f.kind == wire::FrameKind::read ? static_cast<int32_t>(draw(4096)) : static_cast<int32_t>(random());
    size_t n = f.kind == wire::FrameKind::read ? 0 : draw(200);
    if (draw(64) == 0 && n != 0) n = draw(wire::kTcpPayloadMax);
    if (f.kind == wire::FrameKind::atomic && draw(2) == 0) f.length = n;
    f.staged_chunk = f.kind == wire::FrameKind::read ? static_cast<uint32_t>(f.status) : static_cast<uint32_t>(n);
    auto packet = rogue->packet(f, std::span(payload).first(n));
    switch (draw(400)) {
      case 0:
        packet[draw(packet.size())] ^= static_cast<std::byte>(1 << draw(8));
        break;
      case 1:
        packet.resize(draw(packet.size()));
        break;
      case 2:
        rogue->keys.send.skip_to(rogue->keys.send.number() - 1);  // the next one repeats this one's number
        break;
      case 3: {
        const auto noise = pattern(1 + draw(300), random());
        packet.insert(packet.begin() + static_cast<std::ptrdiff_t>(draw(packet.size())), noise.begin(), noise.end());
        break;
      }
      case 4: {  // another kind, whole: all bytes of its body are drawn
        packet.resize(wire::kPacketBytesMax);
        wire::FrameBody body;
        for (size_t at = 0; at < sizeof(body); ++at) {
          reinterpret_cast<std::byte*>(&body)[at] = static_cast<std::byte>(random());
        }
        wire::Seal again = rogue->keys.send;
        again.skip_to(again.number() - (n > wire::kTogetherMax ? 2 : 1));
        (void)wire::emit_packet(again, wire::PacketType::frame, body, packet.data());
        break;
      }
      default:
        break;
    }
    rogue->send(packet);
    if (draw(4) == 0) {
      v.step(1);
      rogue->drain();
    }
    if (draw(1000) == 0) ::shutdown(rogue->fd.get(), SHUT_WR);
    if (i % 1024 == 0) BOOST_REQUIRE_MESSAGE(v.guards_hold(), "WEFT_SEED=" << seed << ", frame " << i);
  }
  v.step(10);
  BOOST_TEST(v.guards_hold());
  BOOST_TEST_MESSAGE(frames << " frames over " << connections << " connections");
  rogue.reset();
  BOOST_TEST(poll_until([&] { return v.side.nic().statistics().peers == 0; }, [&] { v.step(1); }));
  expect_served(v);
}

BOOST_AUTO_TEST_CASE(test_large_transfers_arrive_whole_in_both_directions_at_once) {
  for (const bool manual : {false, true}) {
    PairConfig config = pair_of(Path::tcp, manual);
    config.bytes = 8 << 20;
    Pair pair(config);
    std::byte* mine = pair.a->alloc(config.bytes);
    (void)pair.a->reg(mine, config.bytes, 43);
    const uint64_t back = pair.b->insert(*pair.a);
    const auto there = pattern(config.bytes, 1), here = pattern(config.bytes, 2);
    std::vector<std::byte> got_a(config.bytes), got_b(config.bytes);
    // Both write and read all of the other's memory, in pieces of odd sizes that are under way together.
    const size_t piece = 777'777;
    size_t posted = 0;
    for (size_t at = 0; at < config.bytes; at += piece) {
      const size_t n = std::min(piece, config.bytes - at);
      BOOST_REQUIRE(post(*pair.a->ep, write_of(pair.dest, there.data() + at, n, at, pair.key())).refusal ==
                    Refusal::none);
      BOOST_REQUIRE(post(*pair.b->ep, write_of(back, here.data() + at, n, at, 43)).refusal == Refusal::none);
      BOOST_REQUIRE(post(*pair.a->ep, read_of(pair.dest, got_a.data() + at, n, at, pair.key())).refusal ==
                    Refusal::none);
      BOOST_REQUIRE(post(*pair.b->ep, read_of(back, got_b.data() + at, n, at, 43)).refusal == Refusal::none);
      posted += 2;
    }
    for (Side* side : {pair.a.get(), pair.b.get()}) {
      for (size_t i = 0; i < posted; ++i) BOOST_REQUIRE(pair.wait(side).error == 0);
    }
    // A read is ordered after neither side's write of the same place? Not without msg_order: look at the memory itself.
    BOOST_TEST((pair.look(0, config.bytes) == there));
    BOOST_TEST(std::memcmp(mine, here.data(), config.bytes) == 0);
  }
}

// Two NICs that call each other. Either's uuid may be the smaller one.
struct Crossing {
  explicit Crossing(bool manual) : pair(pair_of(Path::tcp, manual)) {
    std::byte* mine = pair.a->alloc(4096);
    (void)pair.a->reg(mine, 4096, 43);
    back = pair.b->insert(*pair.a);
  }
  Refusal call(bool from_a) {  // from two threads at once, which Boost's macros are not for
    static const uint64_t words[] = {1, 2};
    const auto access = from_a ? write_of(pair.dest, &words[0], 8, 0, pair.key()) : write_of(back, &words[1], 8, 0, 43);
    return post(from_a ? *pair.a->ep : *pair.b->ep, access).refusal;
  }
  // Both accesses ended: by then each call has, too. True: over one connection, and nobody was told of trouble.
  bool ended_over_one() {
    bool one = true;
    for (Side* side : {pair.a.get(), pair.b.get()}) {
      const link::TcpLink& tcp = side->host->tcp();
      BOOST_TEST(tcp.statistics().refused == 0U);
      BOOST_TEST(tcp.statistics().lost == 0U);
      BOOST_TEST(tcp.log().empty());
      one = one && tcp.peers().size() == 1;
    }
    return one && pair.a->host->tcp().statistics().accepted + pair.b->host->tcp().statistics().accepted == 1;
  }
  [[nodiscard]] bool a_is_smaller() const {
    const auto uuid_at = [](const Side& side) {
      return std::static_pointer_cast<link::TcpPeer>(side.host->tcp().peers().at(0))->about.uuid;
    };
    return uuid_at(*pair.b) < uuid_at(*pair.a);  // of the other side each
  }
  Pair pair;
  uint64_t back = 0;
};

// Two NICs that write to each other in turn: the answer to what one wrote comes with what the other writes.
struct Exchange {
  explicit Exchange(bool manual) : pair(pair_of(Path::tcp, manual)) {
    words = reinterpret_cast<uint64_t*>(pair.a->alloc(4096));
    std::memset(words, 0, 4096);
    region = pair.a->reg(words, 4096, 43);
    back = pair.b->insert(*pair.a);
  }
  // Both have sent one, and the second has arrived. Each side posts, and polls for what it waits for only.
  void turn() {
    ++value;
    BOOST_TEST_REQUIRE(post(*pair.a->ep, write_of(pair.dest, &value, 8, 0, pair.key())).refusal == Refusal::none);
    auto* there = reinterpret_cast<uint64_t*>(pair.memory);
    until(*pair.b, [&] { return __atomic_load_n(there, __ATOMIC_ACQUIRE) == value; }, *pair.a);
    BOOST_TEST_REQUIRE(post(*pair.b->ep, write_of(back, &value, 8, 0, 43)).refusal == Refusal::none);
    until(*pair.a, [&] { return __atomic_load_n(words, __ATOMIC_ACQUIRE) == value; }, *pair.b);
  }
  template <typename Done>
  void until(Side& waits, Done&& done, Side& other) {
    BOOST_REQUIRE(poll_until(done, [&] {
      waits.progress();
      if (!done() && waits.manual) other.progress();
    }));
  }
  Pair pair;
  uint64_t* words;
  std::shared_ptr<nic::MemoryRegion> region;
  uint64_t back, value = 0;
};

BOOST_AUTO_TEST_CASE(test_an_answer_gives_way_to_the_frame_it_came_with_and_is_there_in_the_next_round) {
  Exchange x(true);
  link::TcpLink& link = x.pair.a->host->tcp();
  int late = 0;
  for (int i = 0; i < 100; ++i) {
    x.turn();
    if (x.pair.a->unread() == 0) {
      ++late;
      BOOST_TEST(!link.prepare_sleep());  // nobody may sleep on it
      x.pair.a->progress();
    }
    BOOST_TEST_REQUIRE(x.pair.a->unread() == 1U);
    while (x.pair.b->unread() == 0) {
      x.pair.a->progress();
      x.pair.b->progress();
    }
    BOOST_TEST_REQUIRE(try_completion(*x.pair.a)->error == 0);
    BOOST_TEST_REQUIRE(try_completion(*x.pair.b)->error == 0);
  }
  BOOST_TEST(late >= 50);  // not before somebody has polled for a while
}

BOOST_AUTO_TEST_CASE(test_an_answer_that_gave_way_is_taken_also_when_nobody_polls_any_more) {
  Exchange x(false);
  for (int i = 0; i < 500; ++i) {
    x.turn();
    // From here on the engines alone.
    BOOST_REQUIRE(poll_until([&] { return x.pair.a->unread() == 1 && x.pair.b->unread() == 1; }, [] {}));
    BOOST_TEST_REQUIRE(try_completion(*x.pair.a)->error == 0);
    BOOST_TEST_REQUIRE(try_completion(*x.pair.b)->error == 0);
  }
}

BOOST_AUTO_TEST_CASE(test_an_answer_that_gave_way_counts_although_the_connection_is_lost_behind_it) {
  Exchange x(true);
  for (int i = 0; i < 40; ++i) {  // until answers give way
    x.turn();
    x.until(*x.pair.a, [&] { return x.pair.a->unread() == 1 && x.pair.b->unread() == 1; }, *x.pair.b);
    BOOST_TEST_REQUIRE(try_completion(*x.pair.a)->error == 0);
    BOOST_TEST_REQUIRE(try_completion(*x.pair.b)->error == 0);
  }
  x.turn();
  BOOST_TEST_REQUIRE(x.pair.a->unread() == 0U);
  x.pair.b.reset();
  BOOST_REQUIRE(poll_until([&] { return x.pair.a->nic().statistics().peers == 0; }, [&] { x.pair.a->progress(); }));
  const auto c = try_completion(*x.pair.a);
  BOOST_TEST_REQUIRE(c.has_value());
  BOOST_TEST(c->error == 0, c->text);
}

BOOST_AUTO_TEST_CASE(test_nics_that_call_each_other_at_once_both_succeed_over_one_connection) {
  constexpr int kRounds = 100;
  int two = 0;
  for (int round = 0; round < kRounds; ++round) {
    Crossing c(false);
    std::latch both(2);
    Refusal theirs{};
    std::thread other([&] {
      both.arrive_and_wait();
      theirs = c.call(false);
    });
    both.arrive_and_wait();
    const Refusal ours = c.call(true);
    other.join();
    BOOST_REQUIRE(ours == Refusal::none);
    BOOST_REQUIRE(theirs == Refusal::none);
    for (Side* side : {c.pair.a.get(), c.pair.b.get()}) {
      const auto done = c.pair.wait(side);
      BOOST_TEST(done.error == 0, done.text);
    }
    two += c.ended_over_one() ? 0 : 1;
  }
  BOOST_TEST(two == 0, two << " of " << kRounds << " rounds ended with two connections");
}

BOOST_AUTO_TEST_CASE(test_calls_that_cross_in_any_order_of_steps_end_over_one_connection) {
  const uint64_t seed = test_seed();
  BOOST_TEST_MESSAGE("WEFT_SEED=" << seed);
  std::mt19937_64 random(seed);
  constexpr int kRounds = 300;
  int two = 0, smaller = 0;
  for (int round = 0; round < kRounds; ++round) {
    Crossing c(true);
    std::array<bool, 2> called{}, done{};
    const uint64_t haste = 1 + random() % 6;  // of calls, among steps
    const auto step = [&] {
      const bool a = random() % 2 == 0;
      Side& side = a ? *c.pair.a : *c.pair.b;
      if (!called[a] && random() % haste == 0) {
        BOOST_REQUIRE(c.call(a) == Refusal::none);
        called[a] = true;
      } else {
        side.nic().progress();
      }
      if (const auto end = try_completion(side)) {
        BOOST_TEST(end->error == 0, end->text);
        done[a] = true;
      }
    };
    BOOST_REQUIRE_MESSAGE(poll_until([&] { return done[0] && done[1]; }, step),
                          "WEFT_SEED=" << seed << ", round " << round);
    two += c.ended_over_one() ? 0 : 1;
    smaller += c.a_is_smaller() ? 1 : 0;
  }
  BOOST_TEST(two == 0, two << " of " << kRounds << " rounds ended with two connections, WEFT_SEED=" << seed);
  BOOST_TEST(smaller > 0);
  BOOST_TEST(smaller < kRounds);
}

BOOST_AUTO_TEST_CASE(test_a_call_waits_for_the_greeting_of_its_peer_and_uses_it) {
  for (const bool seen : {false, true}) {
    Victim v(kForever);
    const Listener there;
    Rogue rogue(v);
    rogue.as(kSmallestUuid, there.at).say_hello();
    wire::Greeting proof;
    if (seen) {
      BOOST_REQUIRE((rogue.hear_one(&proof) == link::Handshake::Step::reply));
    } else {  // the hello is in the kernel, and nobody has looked
      rogue.wait_until_taken();
    }
    v.call(there.at);
    BOOST_TEST(v.counts().called == 0U);
    if (seen) rogue.say(proof);
    BOOST_REQUIRE(rogue.go_on());
    BOOST_TEST(rogue.is_told());
    BOOST_TEST(v.connections() == 1U);
  }
}

BOOST_AUTO_TEST_CASE(test_half_a_greeting_from_the_peer_s_address_does_not_hold_a_call_up) {
  Victim v(kForever), good(kForever);
  Rogue stranger(v, "not the secret of this place");
  stranger.as(kLargestUuid, good.at).say_hello();
  stranger.wait_until_taken();
  v.call(good.at);
  BOOST_TEST(v.counts().called == 0U);
  std::optional<Completion> c;
  BOOST_REQUIRE(poll_until([&] { return (c = try_completion(v.side)).has_value(); },
                           [&] {
                             v.step(1);
                             good.step(1);
                           }));
  BOOST_TEST(c->error == fi_err::kECONNREFUSED, c->text);  // there is no such endpoint: it was asked
  BOOST_TEST(v.counts().called == 1U);
  stranger.drain();
  BOOST_TEST(!stranger.hung_up);  // it is still being waited for
}

BOOST_AUTO_TEST_CASE(test_a_greeting_that_took_too_long_gives_way_to_the_call_that_waited_for_it) {
  Victim v(kForever);
  const Listener there;
  Rogue slow(v);
  slow.as(kLargestUuid, there.at).say_hello();
  wire::Greeting proof;
  BOOST_REQUIRE((slow.hear_one(&proof) == link::Handshake::Step::reply));
  v.call(there.at);
  Rogue called(v, there);
  slow.say(proof);
  BOOST_TEST(!slow.go_on());
  BOOST_TEST((slow.refused == wire::TcpReject::crossed));
  called.as(kLargestUuid, there.at);
  BOOST_REQUIRE(called.greet());
  BOOST_TEST(called.is_told());
  BOOST_TEST(v.connections() == 1U);
  BOOST_TEST(v.counts().refused == 0U);
}

BOOST_AUTO_TEST_CASE(test_a_call_that_its_peer_turns_down_goes_over_the_peer_s_own) {
  for (const bool late : {false, true}) {
    Victim v(kForever);
    const Listener there;
    v.call(there.at);
    Rogue theirs(v), called(v, there);  // theirs is the smaller uuid's: the victim answers in spite of its own call
    theirs.as(kSmallestUuid, there.at);
    called.as(kSmallestUuid, there.at);
    if (!late) BOOST_REQUIRE(theirs.greet());
    BOOST_REQUIRE(called.hear());
    wire::Greeting crossed;
    crossed.type = wire::GreetingType::reject;
    crossed.reason = wire::TcpReject::crossed;
    called.say(crossed);
    BOOST_TEST(called.dropped());
    if (late) BOOST_REQUIRE(theirs.greet());
    BOOST_TEST(theirs.is_told());
    BOOST_TEST(v.counts().refused == 0U);
    BOOST_TEST(v.connections() == 1U);
  }
}

// The peer has lost the connection, and the victim does not know: the peer's next call but one comes through, whether
// its kernel answers the ping (with a reset) or nothing ever comes back.
BOOST_AUTO_TEST_CASE(test_a_peer_that_lost_the_connection_gets_in_again) {
  for (const bool answers : {true, false}) {
    Victim v(kForever);
    const Listener there;
    v.call(there.at);
    Rogue first(v, there);
    Rogue early(v);
    BOOST_TEST(!early.as(kLargestUuid, there.at).greet());  // the victim's own call is under way
    BOOST_TEST((early.refused == wire::TcpReject::crossed));
    BOOST_REQUIRE(first.as(kLargestUuid, there.at).greet());
    BOOST_REQUIRE(first.is_told());
    {
      Rogue mute(v);  // cannot be called, so that no call of ours can be the one that goes on
      BOOST_TEST(mute.as(kLargestUuid, {}).greet());
      Rogue renamed(v);  // calls what the connection is not known by
      renamed.as(kLargestUuid, there.at);
      wire::HostAddress elsewhere = v.at;
      elsewhere.ip[3] = 99;
      renamed.hand.emplace(true, renamed.secret_, renamed.self, uint16_t{0}, elsewhere);
      renamed.say(renamed.hand->hello());
      BOOST_TEST(renamed.go_on());
      mute.reset();
      renamed.reset();
    }
    BOOST_REQUIRE(poll_until([&] { return v.connections() == 1; }, [&] { v.step(1); }));
    first.drain();
    Rogue again(v);
    BOOST_TEST(!again.as(kLargestUuid, there.at).greet());
    BOOST_TEST((again.refused == wire::TcpReject::crossed));
    BOOST_TEST(first.is_told());  // the ping
    if (answers) {
      first.reset();
      BOOST_REQUIRE(poll_until([&] { return v.connections() == 0; }, [&] { v.step(1); }));
    }
    Rogue last(v);
    BOOST_REQUIRE(last.as(kLargestUuid, there.at).greet());
    BOOST_TEST(v.connections() == (answers ? 1U : 2U));
    v.call(there.at, 6);  // over the connection that works
    BOOST_TEST(last.is_told());
    BOOST_TEST(v.counts().called == 1U);
    BOOST_TEST(v.counts().refused == 0U);
  }
}

BOOST_AUTO_TEST_CASE(test_a_process_that_replaced_another_is_the_one_that_is_found) {
  Victim v(kForever);
  const Listener there;
  Rogue old(v), fresh(v);
  BOOST_REQUIRE(old.as({1}, there.at).greet());
  BOOST_REQUIRE(fresh.as({2}, there.at).greet());
  v.call(there.at);
  BOOST_TEST(fresh.is_told());
  BOOST_TEST(old.drain() == 0U);
}

// Few connections are read one by one while somebody polls, and are in no epoll set meanwhile; many are asked for by
// the set. Whoever sleeps is woken either way, also where the one becomes the other.
BOOST_AUTO_TEST_CASE(test_sleepers_are_woken_over_few_and_over_many_connections) {
  SideConfig config;
  config.host.shm_link = false;
  config.listen = true;
  Side hub(config);
  constexpr size_t kMany = 7;
  std::byte* memory = hub.alloc(kMany * 8);
  (void)hub.reg(memory, kMany * 8, 42);
  std::vector<std::unique_ptr<Side>> callers;
  std::vector<uint64_t> dests;
  uint64_t value = 0;
  const auto all_write = [&] {
    for (size_t i = 0; i < callers.size(); ++i) {
      ++value;
      BOOST_REQUIRE(post(*callers[i]->ep, write_of(dests[i], &value, 8, i * 8, 42)).refusal == Refusal::none);
      std::optional<Completion> c;
      BOOST_REQUIRE(
          poll_until([&] { return (c = try_completion(*callers[i])).has_value(); }, [&] { callers[i]->progress(); }));
      BOOST_TEST(c->error == 0, c->text);
      uint64_t seen = 0;
      hub.fence();
      std::memcpy(&seen, memory + i * 8, 8);
      hub.fence();
      BOOST_TEST(seen == value);
    }
  };
  const auto use = [&] {
    all_write();
    for (int i = 0; i < 1000; ++i) hub.nic().poll_from_app();  // the engine leaves the sockets to the polls
    all_write();
    usleep(3000);  // and takes them back, to sleep
    all_write();
  };
  for (size_t i = 0; i < kMany; ++i) {
    callers.push_back(std::make_unique<Side>(config));
    dests.push_back(callers.back()->insert(hub));
    use();
  }
  for (size_t i = 0; i < kMany - 1; ++i) {
    callers.pop_back();
    use();
  }
  BOOST_TEST(hub.host->tcp().statistics().accepted == kMany);
}

BOOST_AUTO_TEST_CASE(test_without_a_secret_there_is_no_link) {
  SideConfig config;
  config.host.shm_link = false;
  Side side(config);
  BOOST_CHECK_EXCEPTION(side.host->tcp().listen(link::parse_host("127.0.0.1", 0), std::nullopt), Error,
                        [](const Error& e) { return e.fi_code() == fi_err::kEACCES; });
  const uint64_t dest = side.av->insert({link::route_number({link::parse_host("127.0.0.1", 9), 0}), 5, 0, 0});
  const uint64_t word = 1;
  BOOST_REQUIRE(post(*side.ep, write_of(dest, &word, 8, 0, 42)).refusal == Refusal::none);
  std::optional<Completion> c;
  BOOST_REQUIRE(poll_until([&] { return (c = try_completion(side)).has_value(); }, [&] { side.progress(); }));
  BOOST_TEST(c->error == fi_err::kEACCES);
  BOOST_TEST(c->text.find("WEFT_SECRET") != std::string::npos, c->text);
  side.host->tcp().set_secret(sodium(), key_of(kSecret));
  side.host->tcp().set_secret(sodium(), key_of(kSecret));
  BOOST_CHECK_THROW(side.host->tcp().set_secret(sodium(), key_of("another one")), Error);
}

BOOST_AUTO_TEST_CASE(test_nobody_at_an_address_is_a_refused_connection) {
  SideConfig config = Victim::config();
  Side side(config);
  const UniqueFd taken(::socket(AF_INET, SOCK_STREAM, 0));  // bound, not listening: a port that nobody else gets
  sockaddr_storage name;
  socklen_t length = link::to_sockaddr(link::parse_host("127.0.0.1", 0), &name);
  BOOST_REQUIRE(::bind(taken.get(), reinterpret_cast<sockaddr*>(&name), length) == 0);
  length = sizeof(name);
  ::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&name), &length);
  Victim v;
  struct Case {
    wire::HostAddress host;
    uint32_t pid;
  };
  for (const auto& c : {Case{link::from_sockaddr(name), 5}, Case{v.at, 0x7fffffff}}) {  // no process; no endpoint
    const uint64_t dest = side.av->insert({link::route_number({c.host, 0}), c.pid, 0, 0});
    const uint64_t word = 1;
    BOOST_REQUIRE(post(*side.ep, write_of(dest, &word, 8, 0, 42)).refusal == Refusal::none);
    std::optional<Completion> done;
    BOOST_REQUIRE(poll_until([&] { return (done = try_completion(side)).has_value(); },
                             [&] {
                               side.progress();
                               v.step(1);
                             }));
    BOOST_TEST(done->error == fi_err::kECONNREFUSED, done->text);
  }
}

BOOST_AUTO_TEST_SUITE_END()
