// tests/cpp/test_link_hostile.cpp: what a process of a host can and cannot do to others of the same user.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "fabric.hpp"
#include "link/shm_area.hpp"
#include "link/shm_names.hpp"
#include "raw_peer.hpp"

namespace {

using namespace weft;
using namespace weft::test;

SideConfig manual_side(bool strict) {
  SideConfig config;
  config.host.engine_thread = false;
  config.host.shm.strict = strict;
  return config;
}

// Posts, and polls both sides until the operation has ended.
Completion run(Side& from, Side& to, const Access& access) {
  BOOST_TEST_REQUIRE(post(*from.ep, access).refusal == Refusal::none);
  std::optional<Completion> c;
  BOOST_TEST_REQUIRE(poll_until([&] { return (c = try_completion(from)).has_value(); },
                                [&] {
                                  from.progress();
                                  to.progress();
                                }));
  return *c;
}

wire::Frame write_frame(const Hello& welcome, uint64_t key) {
  wire::Frame f;
  f.kind = wire::FrameKind::write;
  f.where = wire::PayloadWhere::in_frame;
  f.flags = wire::kFrameLast;
  f.payload_length = 8;
  f.op_id = 1;
  f.access.key = key;
  f.access.length = 8;
  f.ep_index = welcome.ep_index;
  f.ep_generation = welcome.ep_generation;
  return f;
}

bool holds(const Mapping& memory, std::string_view text) {
  const auto* begin = reinterpret_cast<const char*>(memory.data());
  return std::string_view(begin, memory.size()).find(text) != std::string_view::npos;
}

uint64_t file_of(int fd) {
  struct stat status{};
  BOOST_REQUIRE(::fstat(fd, &status) == 0);
  return status.st_ino;
}

BOOST_AUTO_TEST_SUITE(link_hostile)

/// A peer that asks for a doorbell at every frame, and never reads its doorbells, soon has a full socket.
BOOST_AUTO_TEST_CASE(test_doorbell_that_nobody_hears_blocks_nobody) {
  for (const bool is_private : {true, false}) {
    Pair pair(pair_of(is_private ? Path::strict : Path::direct, true));
    expect_serves(pair);
    RawPeer deaf(pair.b->ep->address(), is_private);
    const Hello welcome = deaf.shake_hands(*pair.b);
    auto& armed = reinterpret_cast<ring::detail::Header*>(deaf.ring_mapping.data())->armed;
    std::byte bytes[sizeof(wire::Frame) + 8]{};
    wire::emit(write_frame(welcome, pair.key()), bytes);
    for (int i = 0; i < 20'000; ++i) {
      if (i % 200 == 0) deaf.clear_ring();
      armed.store(1);
      deaf.push(bytes);
      pair.b->progress();
    }
    expect_serves(pair);
  }
}

BOOST_AUTO_TEST_CASE(test_strict_peers_read_nothing_of_each_other) {
  Pair pair(pair_of(Path::strict, true));
  RawPeer early(pair.b->ep->address());
  (void)early.shake_hands(*pair.b);
  std::string inline_secret = "a secret that fits a slot", staged_secret;
  for (int i = 0; i < 400; ++i) staged_secret += "a secret of many bytes; ";
  for (int i = 0; i < 20; ++i) {
    BOOST_TEST(pair.write(inline_secret.data(), inline_secret.size(), 0).error == 0);
    BOOST_TEST(pair.write(staged_secret.data(), staged_secret.size(), 4096).error == 0);
    std::vector<char> back(staged_secret.size());
    BOOST_TEST(pair.read(back.data(), back.size(), 4096).error == 0);
    BOOST_TEST((std::string(back.begin(), back.end()) == staged_secret));
  }
  RawPeer late(pair.b->ep->address());
  (void)late.shake_hands(*pair.b);
  for (RawPeer* raw : {&early, &late}) {
    const auto staging = Mapping::shared(raw->their_fds[1].get(), raw->shape.staging_bytes(), false, "their staging");
    BOOST_TEST(!holds(raw->their_ring, "a secret"));
    BOOST_TEST(!holds(staging, "a secret"));
  }
  BOOST_TEST(file_of(early.their_fds[0].get()) != file_of(late.their_fds[0].get()));
  BOOST_TEST(file_of(early.their_fds[1].get()) != file_of(late.their_fds[1].get()));
}

BOOST_AUTO_TEST_CASE(test_frame_in_anothers_name_is_hung_up_on) {
  Pair pair(pair_of(Path::strict, true));
  expect_serves(pair);
  RawPeer liar(pair.b->ep->address());
  const Hello welcome = liar.shake_hands(*pair.b);
  liar.producer = ring::MpscProducer::attach(std::span(liar.their_ring.data(), liar.their_ring.size()),
                                             liar.shape.slot_count, static_cast<uint16_t>(welcome.producer_id + 1));
  std::byte bytes[sizeof(wire::Frame) + 8]{};
  wire::emit(write_frame(welcome, pair.key()), bytes);
  pair.fill(std::byte{0x11});
  liar.push(bytes);
  (void)liar.until_hung_up(*pair.b);
  BOOST_TEST((pair.look(0, 8) == std::vector<std::byte>(8, std::byte{0x11})));
  expect_serves(pair);
}

BOOST_AUTO_TEST_CASE(test_brief_that_breaks_the_protocol_is_hung_up_on) {
  const auto lies = [](bool is_private, size_t bytes, const std::function<void(wire::Brief&)>& lie) {
    PairConfig config = pair_of(is_private ? Path::strict : Path::direct, true);
    for (SideConfig* side : {&config.a, &config.b}) side->ep.caps |= flag::kMsg | flag::kSend | flag::kRecv;
    Pair pair(config);
    expect_serves(pair);
    RawPeer liar(pair.b->ep->address(), is_private);
    const Hello welcome = liar.shake_hands(*pair.b);
    wire::Brief brief;
    brief.ep_index = static_cast<uint16_t>(welcome.ep_index);
    brief.ep_generation = welcome.ep_generation;
    brief.rest = 8;
    lie(brief);
    std::byte out[sizeof(brief) + 200]{};
    std::memcpy(out, &brief, sizeof(brief));
    liar.push(std::span(out, bytes), link::kBriefSlot);
    (void)liar.until_hung_up(*pair.b);
    expect_serves(pair);
  };
  constexpr size_t kWhole = sizeof(wire::Brief) + 8;
  lies(false, kWhole, [](wire::Brief&) {});  // of no flow
  lies(false, kWhole, [](wire::Brief& b) { b.sender = 1u << 30; });
  lies(false, kWhole, [](wire::Brief& b) { b.rest = 200; });
  lies(false, sizeof(wire::Brief) - 1, [](wire::Brief&) {});
  lies(true, kWhole, [](wire::Brief&) {});  // no credits on such a connection
}

BOOST_AUTO_TEST_CASE(test_strict_side_takes_no_caller_into_a_shared_ring) {
  Side side(manual_side(true));
  RawPeer raw(side.ep->address(), false);
  raw.send(raw.good_hello(), raw.good_fds());
  BOOST_TEST((raw.until_hung_up(side) == RejectReason::wants_private));
}

/// More peers than one poll reads: a peer that was silent for long rings when it sends again.
BOOST_AUTO_TEST_CASE(test_many_strict_peers_are_all_served) {
  Side target(manual_side(true));
  target.reg(target.alloc(4096), 4096, 1);
  std::vector<std::unique_ptr<Side>> all;
  std::vector<uint64_t> dests;
  for (int i = 0; i < 24; ++i) {
    all.push_back(std::make_unique<Side>(manual_side(i % 2 == 0)));
    dests.push_back(all.back()->insert(target));
  }
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      const uint64_t word = i;
      const auto done = run(*all[i], target, write_of(dests[i], &word, 8, 8 * i, 1));
      BOOST_TEST(done.error == 0, done.text);
    }
    for (int i = 0; i < 3000; ++i) target.progress();
  }
  BOOST_TEST(target.nic().statistics().peers == all.size());
  all.erase(all.begin(), all.begin() + 12);
  BOOST_TEST(poll_until([&] { return target.nic().statistics().peers == 12; }, [&] { target.progress(); }));
  const uint64_t word = 1;
  BOOST_TEST(run(*all.back(), target, write_of(dests.back(), &word, 8, 0, 1)).error == 0);
}

BOOST_AUTO_TEST_CASE(test_peers_can_add_no_seal_to_what_they_get) {
  for (const bool is_private : {true, false}) {
    Side side(manual_side(false));
    (void)side.alloc(4096);
    RawPeer raw(side.ep->address(), is_private);
    (void)raw.shake_hands(side);
    BOOST_TEST(raw.their_fds.size() == 4U);
    for (const UniqueFd& fd : raw.their_fds) {
      errno = 0;
      BOOST_TEST(::fcntl(fd.get(), F_ADD_SEALS, 0x0010 /* F_SEAL_FUTURE_WRITE */) == -1);
      BOOST_TEST(errno == EPERM);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_shm_new_peers_connect_after_a_ring_was_overwritten) {
  for (const int scribble : {0x00, 0x5a, 0xff}) {
    for (const bool all : {false, true}) {
      PairConfig config = pair_of(Path::ring, true);
      Pair pair(config);
      expect_serves(pair);
      RawPeer raw(pair.b->ep->address(), false);
      (void)raw.shake_hands(*pair.b);
      std::memset(raw.their_ring.data(), scribble, all ? raw.their_ring.size() : sizeof(ring::detail::Header));
      for (int i = 0; i < 100; ++i) pair.poll();
      Side late(manual_side(false));
      const uint64_t dest = late.insert(*pair.b);
      Completion done;
      for (int i = 0; i < 50; ++i) {  // until the owner has noticed, operations may fail, but none may hang
        const uint64_t word = 5;
        done = run(late, *pair.b, write_of(dest, &word, 8, 0, pair.key()));
      }
      BOOST_TEST(done.error == 0, done.text);
      (void)pair.write(&scribble, sizeof(scribble), 0);  // fails if this operation was the first to notice
      expect_serves(pair);
    }
  }
}

/// A peer that was hung up on publishes the frame for which it had claimed a slot: nobody else has the slot meanwhile.
BOOST_AUTO_TEST_CASE(test_late_frame_of_a_peer_without_a_connection_harms_nobody) {
  Pair pair(pair_of(Path::ring, true));
  expect_serves(pair);
  RawPeer raw(pair.b->ep->address(), false);
  (void)raw.shake_hands(*pair.b);
  auto late = raw.producer->try_claim();
  BOOST_REQUIRE(late);
  raw.send(std::as_bytes(std::span("no packet of Weft")), {});
  (void)raw.until_hung_up(*pair.b);
  {
    RawPeer other(pair.b->ep->address(), false);
    (void)other.shake_hands(*pair.b);
  }
  const uint64_t before = pair.b->nic().downs();
  pair.until([&] { return pair.b->nic().downs() != before; }, "the end of the other");
  const uint64_t downs = pair.b->nic().downs();
  for (uint32_t i = 0; i < raw.shape.slot_count + 10; ++i) {
    expect_serves(pair);
    if (i == 10) raw.producer->publish(late, 0);
  }
  BOOST_TEST(pair.b->nic().downs() == downs);
}

/// A lost frame in a shared ring has no known sender, so all peers that share the ring learn of the loss at once.
BOOST_AUTO_TEST_CASE(test_lost_frame_fails_its_operation_with_a_reason) {
  Pair pair(pair_of(Path::ring, true));
  expect_serves(pair);
  RawPeer raw(pair.b->ep->address(), false);
  (void)raw.shake_hands(*pair.b);
  const auto data = pattern(300);
  for (int i = 0; i < 100; ++i) pair.b->progress();
  BOOST_TEST_REQUIRE(post(*pair.a->ep, write_of(pair.dest, data.data(), 300, 0, pair.key())).refusal == Refusal::none);
  for (int i = 0; i < 10; ++i) pair.a->progress();
  auto* slots = ring::detail::slots_of(reinterpret_cast<ring::detail::Header*>(raw.their_ring.data()));
  for (uint32_t i = 0; i < raw.shape.slot_count; ++i) slots[i].state.store(0x5a5a5a5a5a5a5a5a);
  const auto done = pair.wait();
  BOOST_TEST((done.status == Status::protocol), done.text);
  BOOST_TEST(done.text.find("frames may be lost") != std::string::npos, done.text);
  expect_serves(pair);
}

BOOST_AUTO_TEST_CASE(test_callers_that_never_greet_shut_nobody_out) {
  for (const bool is_private : {true, false}) {
    Pair pair(pair_of(is_private ? Path::strict : Path::ring, true));
    RawPeer greeted(pair.b->ep->address(), is_private);
    const Hello welcome = greeted.shake_hands(*pair.b);
    std::vector<std::unique_ptr<RawPeer>> silent;
    for (int i = 0; i < 300; ++i) {
      silent.push_back(std::make_unique<RawPeer>(pair.b->ep->address()));
      if (i % 32 == 31) pair.b->progress();
    }
    for (int i = 0; i < 10; ++i) pair.b->progress();
    BOOST_TEST((silent.front()->until_hung_up(*pair.b) == RejectReason::busy));
    expect_serves(pair);  // a new peer
    std::byte bytes[sizeof(wire::Frame) + 8]{};
    wire::emit(write_frame(welcome, pair.key()), bytes);
    bytes[sizeof(wire::Frame)] = std::byte{0x77};
    greeted.push(bytes);
    pair.until([&] { return pair.look(0, 1)[0] == std::byte{0x77}; }, "the frame of one that has greeted");
    Side caller(manual_side(is_private));  // the newest silent caller blocks no other either
    const uint64_t dest = caller.insert(*pair.b), word = 1;
    BOOST_TEST(run(caller, *pair.b, write_of(dest, &word, 8, 0, pair.key())).error == 0);
  }
}

BOOST_AUTO_TEST_CASE(test_flood_of_calls_leaves_time_for_peers_between_its_rounds) {
  Pair pair(pair_of(Path::strict, true));
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (size_t i = 0; i < link::kShmPendingMax + 30; ++i)
    silent.push_back(std::make_unique<RawPeer>(pair.b->ep->address()));
  pair.b->progress();
  BOOST_TEST(!silent.front()->answered());  // a round takes no more calls than there is room for
  BOOST_TEST((silent.front()->until_hung_up(*pair.b) == RejectReason::busy));
  expect_serves(pair);
}

/// The last descriptors of a process are reserved for its application and its peers; callers do not get them.
BOOST_AUTO_TEST_CASE(test_callers_leave_descriptors_to_the_application) {
  Pair pair(pair_of(Path::strict, true));
  expect_serves(pair);
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(std::make_unique<RawPeer>(pair.b->ep->address()));
  rlimit usual{};
  BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const int lowest_free = ::dup(0);
  ::close(lowest_free);
  const rlimit few{static_cast<rlim_t>(lowest_free) + 30, usual.rlim_max};
  BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  for (int i = 0; i < 10; ++i) pair.b->progress();
  std::vector<UniqueFd> mine;
  for (int i = 0; i < 8; ++i) mine.emplace_back(::dup(0));
  const bool all = std::ranges::all_of(mine, [](const UniqueFd& fd) { return fd.valid(); });
  mine.clear();
  const auto word = pattern(8);
  const auto done = pair.write(word.data(), 8, 0);
  BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  BOOST_TEST(all);
  BOOST_TEST(done.error == 0, done.text);
}

BOOST_AUTO_TEST_CASE(test_peer_that_closed_and_peer_that_died_differ) {
  for (const Path path : {Path::direct, Path::ring, Path::strict}) {
    Pair pair(pair_of(path, true));
    expect_serves(pair);
    pair.b.reset();
    BOOST_TEST(poll_until([&] { return pair.a->nic().statistics().peers == 0; }, [&] { pair.a->progress(); }));
    BOOST_TEST((pair.a->ep->down_status(pair.dest) == Status::closed));
  }
  for (const bool says_goodbye : {true, false}) {
    Side side(manual_side(true));
    auto raw = std::make_unique<RawPeer>(side.ep->address());
    (void)raw->shake_hands(side);
    std::vector<std::shared_ptr<link::Peer>> peers;
    for (link::Link* link : side.nic().links()) {
      for (const auto& peer : link->peers()) {
        if (!peer->same_process) peers.push_back(peer);
      }
    }
    BOOST_TEST_REQUIRE(peers.size() == 1U);
    Hello goodbye = raw->good_hello();
    goodbye.type = HelloType::goodbye;
    if (says_goodbye) raw->send(goodbye, {});
    raw.reset();
    BOOST_TEST(poll_until([&] { return peers[0]->dead(); }, [&] { side.progress(); }));
    BOOST_TEST((peers[0]->down_status() == (says_goodbye ? Status::closed : Status::peer_gone)));
  }
}

#if !defined(WEFT_TEST_NO_FORK)

/// Any user may bind any abstract name. Only root can act as another user in this test.
BOOST_AUTO_TEST_CASE(test_name_that_another_user_took_keeps_nobody_out) {
  if (::geteuid() != 0) {
    BOOST_TEST_MESSAGE("not root: nobody to play another user");
    return;
  }
  constexpr uint32_t kPid = 4711;
  for (const bool listens : {true, false}) {
    Child squatter([&](int fd) {
      sockaddr_un name{};
      name.sun_family = AF_UNIX;
      const int n =
          std::snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "weft-%u-0-0-0-%u", wire::kHelloVersion, kPid);
      if (::setgid(65000) != 0 || ::setuid(65000) != 0) ::_exit(6);
      const UniqueFd name_fd(::socket(AF_UNIX, SOCK_SEQPACKET, 0));  // after setuid(): a socket is its maker's
      const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
      if (::bind(name_fd.get(), reinterpret_cast<sockaddr*>(&name), length) != 0) ::_exit(7);
      if (listens && ::listen(name_fd.get(), 8) != 0) ::_exit(8);
      tell(fd, 1);
      (void)hear<int>(fd);
    });
    BOOST_REQUIRE(hear<int>(squatter.fd()) == 1);
    Side caller(manual_side(false));
    {  // no endpoint of ours has the name yet
      const uint64_t nowhere = caller.av->insert({0, kPid, 0, 0}), word = 1;
      const auto done = run(caller, caller, write_of(nowhere, &word, 8, 0, 1));
      BOOST_TEST((done.status == (listens ? Status::refused : Status::no_endpoint)), done.text);
      if (listens) BOOST_TEST(done.text.find("user 65000") != std::string::npos, done.text);
    }
    SideConfig config = manual_side(false);
    config.pid = kPid;
    Side owner(config);
    owner.reg(owner.alloc(64), 64, 1);
    const uint64_t dest = caller.av->insert(owner.ep->address()), word = 5;
    const auto done = run(caller, owner, write_of(dest, &word, 8, 0, 1));
    BOOST_TEST(done.error == 0, done.text);
    BOOST_CHECK_EXCEPTION(Side{config}, Error,
                          [](const Error& e) { return e.fi_code() == fi_err::kEADDRINUSE; });  // the name is taken now
    tell(squatter.fd(), 1);
    squatter.wait();
    BOOST_TEST(run(caller, owner, write_of(dest, &word, 8, 8, 1)).error == 0);
    Side late(
        manual_side(false));  // the usual name is free again, and callers still find the endpoint under its other name
    const uint64_t again = late.av->insert(owner.ep->address());
    BOOST_TEST(run(late, owner, write_of(again, &word, 8, 16, 1)).error == 0);
  }
}

#endif

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
