// tests/cpp/test_tcp_crossing.cpp: answers that travel with frames, and NICs that call each other at once.
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

// Two NICs that call each other. Either's uuid may be the smaller one.
struct Crossing {
  explicit Crossing(bool manual) : pair(pair_of(Path::tcp, manual)) {
    std::byte* mine = pair.a->alloc(4096);
    (void)pair.a->reg(mine, 4096, 43);
    back = pair.b->insert(*pair.a);
  }
  Refusal call(bool from_a) {  // runs in two threads at once, and Boost's macros support only one
    static const uint64_t words[] = {1, 2};
    const auto access = from_a ? write_of(pair.dest, &words[0], 8, 0, pair.key()) : write_of(back, &words[1], 8, 0, 43);
    return post(from_a ? *pair.a->ep : *pair.b->ep, access).refusal;
  }
  // Waits until both accesses, and so both calls, have ended. True: one connection was used, and no failure was
  // counted.
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
    return uuid_at(*pair.b) < uuid_at(*pair.a);  // uuid_at() of one side is the other's uuid
  }
  Pair pair;
  uint64_t back = 0;
};

// Two NICs that write to each other in turn: the answer to one side's write travels with the other side's write.
struct Exchange {
  explicit Exchange(bool manual) : pair(pair_of(Path::tcp, manual)) {
    words = reinterpret_cast<uint64_t*>(pair.a->alloc(4096));
    std::memset(words, 0, 4096);
    region = pair.a->reg(words, 4096, 43);
    back = pair.b->insert(*pair.a);
  }
  // Both sides have sent one write, and the second has arrived. Each side posts, then polls only until its own wait
  // ends.
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

BOOST_AUTO_TEST_CASE(test_tcp_answer_is_delivered_a_round_after_its_frame) {
  Exchange x(true);
  link::TcpLink& link = x.pair.a->host->tcp();
  int late = 0;
  for (int i = 0; i < 100; ++i) {
    x.turn();
    if (x.pair.a->unread() == 0) {
      ++late;
      BOOST_TEST(!link.prepare_sleep());  // no thread may sleep while the answer is left
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
  BOOST_TEST(late >= 50);  // not before a thread has polled for a while
}

BOOST_AUTO_TEST_CASE(test_tcp_delayed_answer_is_taken_without_further_polls) {
  Exchange x(false);
  for (int i = 0; i < 500; ++i) {
    x.turn();
    // From here on only the engines make progress.
    BOOST_REQUIRE(poll_until([&] { return x.pair.a->unread() == 1 && x.pair.b->unread() == 1; }, [] {}));
    BOOST_TEST_REQUIRE(try_completion(*x.pair.a)->error == 0);
    BOOST_TEST_REQUIRE(try_completion(*x.pair.b)->error == 0);
  }
}

BOOST_AUTO_TEST_CASE(test_tcp_delayed_answer_counts_if_the_connection_is_lost) {
  Exchange x(true);
  for (int i = 0; i < 40; ++i) {  // until answers are left behind frames
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

BOOST_AUTO_TEST_CASE(test_tcp_simultaneous_calls_succeed_over_one_connection) {
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

BOOST_AUTO_TEST_CASE(test_tcp_crossing_calls_end_in_one_connection) {
  const uint64_t seed = test_seed();
  BOOST_TEST_MESSAGE("WEFT_SEED=" << seed);
  std::mt19937_64 random(seed);
  constexpr int kRounds = 300;
  int two = 0, smaller = 0;
  for (int round = 0; round < kRounds; ++round) {
    Crossing c(true);
    std::array<bool, 2> called{}, done{};
    const uint64_t haste = 1 + random() % 6;  // probability of a call at each step: 1 / haste
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
    } else {  // the hello is in the kernel, and the victim has not read it
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

BOOST_AUTO_TEST_CASE(test_tcp_half_a_greeting_does_not_delay_a_call) {
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
  BOOST_TEST(c->error == fi_err::kECONNREFUSED, c->text);  // the peer was asked: the endpoint does not exist
  BOOST_TEST(v.counts().called == 1U);
  stranger.drain();
  BOOST_TEST(!stranger.hung_up);  // the victim still waits for the stranger's greeting
}

BOOST_AUTO_TEST_CASE(test_tcp_call_goes_ahead_if_the_peers_greeting_is_slow) {
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

BOOST_AUTO_TEST_CASE(test_tcp_rejected_call_uses_the_peers_connection) {
  for (const bool late : {false, true}) {
    Victim v(kForever);
    const Listener there;
    v.call(there.at);
    Rogue theirs(v), called(v, there);  // `theirs` has the smaller uuid: the victim answers it in spite of its own call
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

// The peer has lost the connection without the victim's knowledge: the peer's next call but one succeeds, whether its
// kernel answers the ping (with a reset) or no answer ever comes.
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
      Rogue mute(v);  // cannot be called, so the victim has no call of its own to prefer
      BOOST_TEST(mute.as(kLargestUuid, {}).greet());
      Rogue renamed(v);  // calls an address that the connection is not known by
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
    v.call(there.at, 6);  // over the working connection
    BOOST_TEST(last.is_told());
    BOOST_TEST(v.counts().called == 1U);
    BOOST_TEST(v.counts().refused == 0U);
  }
}

BOOST_AUTO_TEST_CASE(test_tcp_finds_the_process_that_replaced_another) {
  Victim v(kForever);
  const Listener there;
  Rogue old(v), fresh(v);
  BOOST_REQUIRE(old.as({1}, there.at).greet());
  BOOST_REQUIRE(fresh.as({2}, there.at).greet());
  v.call(there.at);
  BOOST_TEST(fresh.is_told());
  BOOST_TEST(old.drain() == 0U);
}

// While a thread polls, few connections are read one by one and are in no epoll set; many connections are asked through
// the set. A sleeper is woken in both cases, also when few become many or many become few.
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
    usleep(3000);  // the engine takes the sockets back before it sleeps
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
  const uint64_t dest = side.av->insert({routes()->number({link::parse_host("127.0.0.1", 9), 0}), 5, 0, 0});
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
  const UniqueFd taken(::socket(AF_INET, SOCK_STREAM, 0));  // bound, not listening: no other socket gets the port
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
    const uint64_t dest = side.av->insert({routes()->number({c.host, 0}), c.pid, 0, 0});
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
