// tests/cpp/test_tcp_callers.cpp: callers that have not proved the secret lock out no other caller; and each way in
// which
// a call or a connection ends has its own status.
#include <sys/resource.h>
#include <sys/socket.h>

#include <boost/test/unit_test.hpp>

#include "fabric.hpp"

using namespace weft;
using namespace weft::test;

namespace {

const link::TcpSecret& secret() {
  static const link::TcpSecret same{sodium(), key_of("a secret of the tests, for tcp")};
  return same;
}
constexpr size_t kAddresses = link::kCallersMax / link::kCallersOfOneMax;

SideConfig listening(uint64_t hurry_ns = 1'000'000'000'000) {
  SideConfig c;
  c.host.tcp.hurry_ns = hurry_ns;
  c.host.tcp.timeout_ns = 1'000'000'000'000;  // longer than any wait of a test
  c.host.engine_thread = false;
  c.host.shm_link = false;
  c.listen = true;
  return c;
}

// A caller from 127.0.0.`from`, which the limits count as a separate host.
struct Caller {
  explicit Caller(const Side& called, size_t from = 1) : side(called) {
    sockaddr_storage name;
    const std::string own = "127.0.0." + std::to_string(from);
    socklen_t length = link::to_sockaddr(link::parse_host(own, 0), &name);
    BOOST_REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0);
    length = link::to_sockaddr(*called.host->tcp().listening(), &name);
    BOOST_REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0);
  }
  void say(const wire::Greeting& g) const {
    BOOST_REQUIRE(::send(fd.get(), &g, sizeof(g), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(g)));
  }
  // Returns nothing if the other side hung up.
  [[nodiscard]] std::optional<wire::Greeting> hear() const {
    std::array<std::byte, sizeof(wire::Greeting)> in;
    ssize_t n = -1;
    BOOST_REQUIRE(poll_until(
        [&] {
          n = ::recv(fd.get(), in.data(), in.size(), MSG_DONTWAIT);
          return n >= 0 || errno == ECONNRESET;
        },
        [&] { side.progress(); }));
    return n == static_cast<ssize_t>(in.size()) ? wire::parse_greeting(in) : std::nullopt;
  }
  void say_hello() { say(hand.hello()); }
  // True: the other side has accepted the connection. Call it after say_hello().
  bool go_on() {
    for (;;) {
      const auto in = hear();
      wire::Greeting out;
      const auto step = in ? hand.on(*in, &out) : link::Handshake::Step::failed;
      if (step == link::Handshake::Step::reply) {
        say(out);
      } else {
        return step == link::Handshake::Step::done;
      }
    }
  }

  const Side& side;
  UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  link::Handshake hand{true, secret(), {{1, 2, 3}, key_of("a nonce"), key_of("a scalar"), {}, 0, false}, 0, {}};
};

// From the first free number on the process has only `more` descriptors, as long as this object lives.
struct FewDescriptors {
  explicit FewDescriptors(rlim_t more) {
    BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
    const int lowest_free = ::dup(0);
    ::close(lowest_free);
    const rlimit few{static_cast<rlim_t>(lowest_free) + more, usual.rlim_max};
    BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  }
  ~FewDescriptors() { (void)::setrlimit(RLIMIT_NOFILE, &usual); }
  rlimit usual{};
};

// The outcome of a write from `a` to an endpoint at `there`.
Completion write_to(Side& a, const wire::HostAddress& there, const std::function<void()>& meanwhile) {
  const uint64_t word = 1, dest = a.av->insert({routes()->number({there, 0}), 5, 0, 0});
  BOOST_REQUIRE(post(*a.ep, write_of(dest, &word, 8, 0, 42)).refusal == Refusal::none);
  std::optional<Completion> c;
  BOOST_REQUIRE(poll_until([&] { return (c = try_completion(a)).has_value(); },
                           [&] {
                             a.progress();
                             meanwhile();
                           }));
  return *c;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tcp_callers)

BOOST_AUTO_TEST_CASE(test_caller_with_a_greeting_is_not_evicted) {
  const Side side(listening());
  Caller greeted(side);
  greeted.say_hello();
  side.progress();
  std::vector<std::unique_ptr<Caller>> silent;
  for (size_t i = 0; i < link::kCallersMax + 40; ++i) {
    silent.push_back(std::make_unique<Caller>(side, 2 + i % (kAddresses + 1)));
    side.progress();
  }
  const auto first = silent.front()->hear();
  BOOST_TEST((first && first->reason == wire::TcpReject::busy));
  BOOST_TEST(greeted.go_on());
  Caller late(side);
  late.say_hello();
  BOOST_TEST(late.go_on());
}

// `count` callers from each address that have sent a hello and send no more.
std::vector<std::unique_ptr<Caller>> stalled(const Side& side, size_t addresses) {
  std::vector<std::unique_ptr<Caller>> callers;
  for (size_t i = 0; i < addresses * link::kCallersOfOneMax; ++i) {
    callers.push_back(std::make_unique<Caller>(side, 1 + i / link::kCallersOfOneMax));
    callers.back()->say_hello();
    BOOST_REQUIRE(callers.back()->hear());  // the challenge
  }
  return callers;
}

BOOST_AUTO_TEST_CASE(test_tcp_new_caller_is_rejected_if_all_others_have_greeted) {
  const Side side(listening());
  const auto greeted = stalled(side, kAddresses - 1);
  Caller first(side, 100), second(side, 100);
  first.say_hello();
  const auto more = stalled(side, 0);
  std::vector<std::unique_ptr<Caller>> others;
  for (size_t i = 0; i < link::kCallersOfOneMax - 2; ++i) {
    others.push_back(std::make_unique<Caller>(side, 101));
    others.back()->say_hello();
    side.progress();
  }
  second.say_hello();
  side.progress();
  Caller late(side, 102);
  const auto answer = late.hear();
  BOOST_TEST((answer && answer->reason == wire::TcpReject::busy));
  BOOST_TEST(first.go_on());
  BOOST_TEST(second.go_on());
  Caller next(side, 102);
  next.say_hello();
  BOOST_TEST(next.go_on());
}

BOOST_AUTO_TEST_CASE(test_callers_of_one_address_leave_room_for_other_addresses) {
  const Side side(listening());
  const auto greeted = stalled(side, 1);
  Caller same(side, 1);
  const auto answer = same.hear();
  BOOST_TEST((answer && answer->reason == wire::TcpReject::busy));
  Caller other(side, 2);
  other.say_hello();
  BOOST_TEST(other.go_on());
}

BOOST_AUTO_TEST_CASE(test_callers_that_stall_lose_their_place_while_others_come) {
  const Side side(listening(0));
  const auto greeted = stalled(side, 1);
  Caller same(side, 1);
  same.say_hello();
  BOOST_TEST(same.go_on());
  const auto first = greeted.front()->hear();
  BOOST_TEST((first && first->reason == wire::TcpReject::busy));
}

BOOST_AUTO_TEST_CASE(test_call_that_finds_no_room_is_made_again) {
  const Side side(listening());
  auto greeted = stalled(side, 1);
  SideConfig config = listening();
  Side caller(config);
  const uint64_t turned_away = side.host->tcp().statistics().refused;
  const Completion c = write_to(caller, *side.host->tcp().listening(), [&] {
    side.progress();
    if (side.host->tcp().statistics().refused > turned_away) greeted.clear();  // now there is room
  });
  BOOST_TEST(c.error == fi_err::kECONNREFUSED, c.text);  // the peer was asked: the endpoint does not exist
  BOOST_TEST(caller.host->tcp().statistics().called >= 2U);
}

BOOST_AUTO_TEST_CASE(test_callers_leave_the_last_descriptors_to_the_application) {
  const Side side(listening());
  Caller known(side);
  known.say_hello();
  BOOST_REQUIRE(known.go_on());
  std::vector<std::unique_ptr<Caller>> silent;
  for (int i = 0; i < 60; ++i) silent.push_back(std::make_unique<Caller>(side));
  Caller late(side);
  late.say_hello();
  const FewDescriptors few(30);
  for (int i = 0; i < 10; ++i) side.progress();
  std::vector<UniqueFd> mine;
  for (int i = 0; i < 8; ++i) mine.emplace_back(::dup(0));
  const bool all = std::ranges::all_of(mine, [](const UniqueFd& fd) { return fd.valid(); });
  mine.clear();
  const bool in = late.go_on();
  BOOST_TEST(all);
  BOOST_TEST(in);
}

BOOST_AUTO_TEST_CASE(test_every_caller_is_turned_away_while_no_descriptor_is_left) {
  const Side side(listening());
  const Caller first(side), second(side), third(side);
  const FewDescriptors none(0);
  for (const Caller* caller : {&first, &second, &third}) {
    const auto answer = caller->hear();
    BOOST_TEST((answer && answer->reason == wire::TcpReject::busy));
  }
  BOOST_TEST(side.host->tcp().statistics().refused == 3U);
}

BOOST_AUTO_TEST_CASE(test_flood_of_calls_leaves_time_for_connections_between_its_rounds) {
  const Side side(listening());
  std::vector<std::unique_ptr<Caller>> silent;
  constexpr size_t kBeyond = 100;
  for (size_t i = 0; i < link::kCallersOfOneMax + kBeyond; ++i) silent.push_back(std::make_unique<Caller>(side));
  const auto refused = [&] { return side.host->tcp().statistics().refused; };
  side.progress();
  BOOST_TEST(refused() == 0U);  // the round has taken no more calls than there is room for
  BOOST_TEST(poll_until([&] { return refused() == kBeyond; }, [&] { side.progress(); }));
}

BOOST_AUTO_TEST_CASE(test_peer_that_closed_and_peer_that_died_differ) {
  Pair pair(pair_of(Path::tcp, true));
  const std::byte byte{1};
  BOOST_REQUIRE(pair.write(&byte, 1, 0).error == 0);
  pair.b.reset();
  BOOST_TEST(poll_until([&] { return pair.a->nic().statistics().peers == 0; }, [&] { pair.a->progress(); }));
  BOOST_TEST((pair.a->ep->down_status(pair.dest) == Status::closed));

  const Side side(listening());
  auto caller = std::make_unique<Caller>(side);
  caller->say_hello();
  BOOST_REQUIRE(caller->go_on());
  const auto peers = side.host->tcp().peers();
  BOOST_REQUIRE(peers.size() == 1U);
  caller.reset();
  BOOST_TEST(poll_until([&] { return peers[0]->dead(); }, [&] { side.progress(); }));
  BOOST_TEST((peers[0]->down_status() == Status::peer_gone));
}

BOOST_AUTO_TEST_CASE(test_another_secret_ends_the_call_with_its_own_status) {
  const Side side(listening());
  SideConfig config = listening();
  config.listen = false;
  Side stranger(config);
  stranger.host->tcp().set_secret(sodium(), key_of("quite another secret"));
  const Completion c = write_to(stranger, *side.host->tcp().listening(), [&] { side.progress(); });
  BOOST_TEST((c.status == Status::secret));
  BOOST_TEST(c.error == fi_err::kEACCES);
  BOOST_TEST(c.text.find("the secrets differ") != std::string::npos, c.text);
}

BOOST_AUTO_TEST_CASE(test_another_version_ends_the_call_with_its_own_status) {
  Side side(listening());
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage name;
  socklen_t length = link::to_sockaddr(link::parse_host("127.0.0.1", 0), &name);
  BOOST_REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&name), length) == 0);
  BOOST_REQUIRE(::listen(listener.get(), 16) == 0);
  length = sizeof(name);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&name), &length);
  UniqueFd fd;
  const Completion c = write_to(side, link::from_sockaddr(name), [&] {
    if (fd.valid()) return;
    fd = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    wire::Greeting g;
    g.type = wire::GreetingType::reject;
    g.reason = wire::TcpReject::version;
    g.version = wire::kTcpVersion + 1;
    if (fd.valid()) (void)!::send(fd.get(), &g, sizeof(g), MSG_NOSIGNAL);
  });
  BOOST_TEST((c.status == Status::version));
  BOOST_TEST(c.error == fi_err::kEACCES);
  BOOST_TEST(c.text.find("same version of Weft") != std::string::npos, c.text);
}

BOOST_AUTO_TEST_SUITE_END()
