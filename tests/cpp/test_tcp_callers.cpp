// tests/cpp/test_tcp_callers.cpp: callers that have proved nothing yet shut nobody out, and how a call or a connection
// ended is told by its own status.
#include <sys/resource.h>
#include <sys/socket.h>

#include <boost/test/unit_test.hpp>

#include "fabric.hpp"

using namespace weft;
using namespace weft::test;

namespace {

constexpr std::string_view kSecret = "a secret of the tests, for tcp";
constexpr size_t kCallersMax = 256;

SideConfig listening() {
  SideConfig c;
  c.host.tcp.timeout_ns = 1'000'000'000'000;  // longer than any wait of a test
  c.host.engine_thread = false;
  c.host.shm_link = false;
  c.listen = true;
  return c;
}

struct Caller {
  explicit Caller(const Side& called) : side(called) {
    sockaddr_storage name;
    const socklen_t length = link::to_sockaddr(*called.host->tcp().listening(), &name);
    BOOST_REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), length) == 0);
  }
  void say(const wire::Greeting& g) const {
    BOOST_REQUIRE(::send(fd.get(), &g, sizeof(g), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(g)));
  }
  // Nothing: it hung up.
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
  // True: it is in. After say_hello().
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
  link::Handshake hand{true, std::as_bytes(std::span(kSecret)), {{1, 2, 3}, {4, 5, 6}, {}, 0}, 0, {}};
};

// The outcome of a write from `a` to an endpoint at `there`.
Completion write_to(Side& a, const wire::HostAddress& there, const std::function<void()>& meanwhile) {
  const uint64_t word = 1, dest = a.av->insert({link::route_number({there, 0}), 5, 0, 0});
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

BOOST_AUTO_TEST_CASE(test_caller_that_greeted_is_kept_when_silent_ones_crowd_in) {
  const Side side(listening());
  Caller greeted(side);
  greeted.say_hello();
  side.progress();
  std::vector<std::unique_ptr<Caller>> silent;
  for (size_t i = 0; i < kCallersMax + 40; ++i) {
    silent.push_back(std::make_unique<Caller>(side));
    side.progress();
  }
  const auto first = silent.front()->hear();
  BOOST_TEST((first && first->reason == wire::TcpReject::busy));
  BOOST_TEST(greeted.go_on());
  Caller late(side);
  late.say_hello();
  BOOST_TEST(late.go_on());
}

BOOST_AUTO_TEST_CASE(test_newcomer_is_turned_away_while_all_callers_have_greeted) {
  const Side side(listening());
  std::vector<std::unique_ptr<Caller>> greeted;
  for (size_t i = 0; i < kCallersMax; ++i) {
    greeted.push_back(std::make_unique<Caller>(side));
    greeted.back()->say_hello();
    side.progress();
  }
  Caller late(side);
  const auto answer = late.hear();
  BOOST_TEST((answer && answer->reason == wire::TcpReject::busy));
  BOOST_TEST(greeted.front()->go_on());
  BOOST_TEST(greeted.back()->go_on());
  Caller next(side);
  next.say_hello();
  BOOST_TEST(next.go_on());
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
  rlimit usual{};
  BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const int lowest_free = ::dup(0);
  ::close(lowest_free);
  const rlimit few{static_cast<rlim_t>(lowest_free) + 30, usual.rlim_max};
  BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  for (int i = 0; i < 10; ++i) side.progress();
  std::vector<UniqueFd> mine;
  for (int i = 0; i < 8; ++i) mine.emplace_back(::dup(0));
  const bool all = std::ranges::all_of(mine, [](const UniqueFd& fd) { return fd.valid(); });
  mine.clear();
  const bool in = late.go_on();
  BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  BOOST_TEST(all);
  BOOST_TEST(in);
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
  stranger.host->tcp().set_secret(std::as_bytes(std::span("quite another secret, as long")));
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
