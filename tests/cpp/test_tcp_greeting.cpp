// tests/cpp/test_tcp_greeting.cpp: the secret, the greeting, and addresses of other hosts.
#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <latch>

#include "tcp_rogue.hpp"

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(tcp)

// AEGIS-128L with a tag of 256 bits and BLAKE2b, called through the table: vectors of the CFRG's draft on AEGIS (test
// vector 2) and of RFC 7693. A table with functions in the wrong places fails this test.
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
    BOOST_TEST(!reader.open(opened.data(), 8, plain.size() - 8));  // the same record again: the next number is due
    wire::Seal late = fresh;
    late.skip_to(1);
    opened = sealed;
    BOOST_TEST(!late.open(opened.data(), 8, plain.size() - 8));
    opened = sealed;
    wire::Seal elsewhere = fresh;
    if (encrypts) BOOST_TEST(!elsewhere.open(opened.data(), 7, plain.size() - 7));  // divided at another place
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
  constexpr std::array<uint8_t, 10> head = {'W', 'F', 'T', 'C', 8, 0, 1, 0, 3, 2};
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

BOOST_AUTO_TEST_CASE(test_remote_address_keeps_its_number_and_text) {
  const link::Route a{link::parse_host("192.0.2.7", 7000), 3}, b{link::parse_host("2001:db8::7", 7000), 0};
  link::Routes table;
  const uint32_t n = table.number(a);
  BOOST_TEST(n >= wire::kRemoteNic);
  BOOST_TEST(table.number(a) == n);
  BOOST_TEST(table.number(b) != n);
  BOOST_TEST((table.find(n) == a));
  BOOST_TEST(table.text_of(wire::EpAddress{n, 5, 1, 0}) == "weft://192.0.2.7:7000/3/1/5");
  BOOST_TEST(link::text_of(b.host) == "[2001:db8::7]:7000");
  BOOST_TEST(!table.find(0));
  BOOST_TEST(!table.find(wire::kUnknownNic));
  BOOST_CHECK_THROW(link::parse_host("host.example", 1), Error);
}

// The greetings of two NICs, with a function on the way that may change them.
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
  // The reason why the greeting failed; none: both sides have finished.
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
      // Some bytes of later greetings repeat earlier ones and are never read: they are not part of the agreement.
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

BOOST_AUTO_TEST_CASE(test_tcp_keys_differ_per_connection_and_from_the_secret) {
  Talk first, again, fresh;
  fresh.a.scalar = key_of("another scalar");
  for (Talk* talk : {&first, &again, &fresh}) BOOST_REQUIRE((talk->run() == wire::TcpReject::none));
  BOOST_TEST((first.one->keys().send == again.one->keys().send));
  BOOST_TEST((first.one->keys().send != fresh.one->keys().send));
  // A third NIC knows the secret, has heard the hello, and has its own scalar.
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

BOOST_AUTO_TEST_CASE(test_tcp_reflected_greeting_fails) {
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
    Rogue rogue(v);  // version 4, with shorter greetings
    wire::Greeting g;
    g.type = wire::GreetingType::hello;
    g.version = 4;
    rogue.send(std::as_bytes(std::span(&g, 1)).first(144));
    const auto answer = rogue.hear();
    BOOST_REQUIRE(answer);
    BOOST_TEST((answer->reason == wire::TcpReject::version));
    expect_dropped(v, rogue, "another version of Weft's tcp protocol (4, this one 8)");
  }
  {
    Rogue rogue(v);
    rogue.send(bytes_of("GET / HTTP/1.1\r\nHost: weft\r\n\r\n"));
    expect_dropped(v, rogue, "no greeting");
  }
  {
    Rogue rogue(v);  // a proof before the challenge
    wire::Greeting g;
    g.type = wire::GreetingType::proof;
    rogue.say(g);
    expect_dropped(v, rogue, "no greeting");
  }
  {
    Rogue rogue(v);  // half a greeting, then a hang-up
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
  Rogue second(v);  // sends the first caller's messages, also the unsent ones
  second.say(hand.hello());
  (void)second.hear();
  second.say(proof);
  expect_dropped(v, second, "secrets differ");
}

BOOST_AUTO_TEST_SUITE_END()
