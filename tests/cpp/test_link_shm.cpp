// tests/cpp/test_link_shm.cpp: the link between processes: how they find, check and lose each other.
#include "link/shm.hpp"

#include <sys/resource.h>

#include <fstream>
#include <thread>

#include "fabric.hpp"
#include "raw_peer.hpp"

namespace {

using namespace weft;
using namespace weft::test;

SideConfig manual_side() {
  SideConfig config;
  config.host.engine_thread = false;
  return config;
}

BOOST_AUTO_TEST_SUITE(link_shm)

BOOST_AUTO_TEST_CASE(test_address_is_taken_once_on_a_host) {
  SideConfig config = manual_side();
  config.pid = 777;
  config.domain.nic = 3;
  config.ep.vni = 5;
  const auto in_use = [](const Error& e) {
    return e.fi_code() == fi_err::kEADDRINUSE && std::string(e.what()).find("weft://3/5/777") != std::string::npos;
  };
  auto first = std::make_unique<Side>(config);
  BOOST_CHECK_EXCEPTION(Side{config}, Error, in_use);  // another NIC: the kernel knows the address
  SideConfig same = config;
  same.shared = first->host;
  BOOST_CHECK_EXCEPTION(Side{same}, Error, in_use);  // the same NIC
  SideConfig elsewhere = config;
  elsewhere.ep.vni = 6;
  Side other(elsewhere);
  first.reset();
  Side again(config);
  BOOST_TEST(again.ep->address().pid == 777U);
}

BOOST_AUTO_TEST_CASE(test_chosen_addresses_differ) {
  Side a(manual_side());
  for (int i = 0; i < 50; ++i) {
    const auto ep = a.extra_endpoint();
    BOOST_TEST(ep->address().pid != a.ep->address().pid);
    BOOST_TEST(ep->address().pid >= 0x40000000U);
  }
}

/// Two processes that first write to each other at the same time: both connect, and neither drops the connection that
/// the
/// other uses.
BOOST_AUTO_TEST_CASE(test_shm_simultaneous_connects_both_succeed) {
  for (const Path path : {Path::direct, Path::cma, Path::strict}) {
    BOOST_TEST_CONTEXT("path " << path) {
      Pair pair(pair_of(path, true));
      auto back_region = pair.a->reg(pair.a->alloc(4096), 4096, 43);
      pair.a->fence();
      const uint64_t back = pair.b->insert(*pair.a);
      const uint64_t word = 5;
      BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, 42)).refusal == Refusal::none);
      BOOST_TEST(post(*pair.b->ep, write_of(back, &word, 8, 0, 43)).refusal == Refusal::none);
      const auto from_a = pair.wait(pair.a.get());
      const auto from_b = pair.wait(pair.b.get());
      BOOST_TEST(from_a.error == 0, from_a.text);
      BOOST_TEST(from_b.error == 0, from_b.text);
      for (int i = 0; i < 100; ++i) pair.poll();
      for (int i = 0; i < 20; ++i) {
        BOOST_TEST(pair.write(&word, 8, 0).error == 0);
        BOOST_TEST(post(*pair.b->ep, write_of(back, &word, 8, 0, 43)).refusal == Refusal::none);
        const auto c = pair.wait(pair.b.get());
        BOOST_TEST(c.error == 0, c.text);
        pair.poll();
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_second_endpoint_of_a_peer_uses_the_same_connection) {
  for (const Path path : {Path::direct, Path::strict}) {
    Pair pair(pair_of(path, true));
    expect_serves(pair);
    for (int i = 0; i < 100; ++i) pair.poll();
    const auto peers = pair.a->nic().statistics().peers;
    for (int i = 0; i < 5; ++i) {
      const auto other = pair.b->extra_endpoint();
      const uint64_t dest = pair.a->av->insert(other->address());
      const uint64_t word = 5;
      BOOST_TEST(pair.run(write_of(dest, &word, 8, 0, 42)).error == 0);
    }
    expect_serves(pair);
    for (int i = 0; i < 100; ++i) pair.poll();
    BOOST_TEST(pair.a->nic().statistics().peers == peers);
    BOOST_TEST(pair.b->nic().statistics().peers == 1U);
  }
}

/// Both at once: A looks for a second endpoint of B while B looks for A. B must not choose the connection that A drops.
BOOST_AUTO_TEST_CASE(test_given_up_connection_is_nobodys_peer) {
  for (int turns = 0; turns < 12; ++turns) {
    Pair pair(pair_of(Path::strict, true));
    expect_serves(pair);
    auto back_region = pair.a->reg(pair.a->alloc(4096), 4096, 43);
    const auto second = pair.b->extra_endpoint();
    const uint64_t dest = pair.a->av->insert(second->address());
    const uint64_t back = pair.b->insert(*pair.a);
    const uint64_t word = 5;
    BOOST_TEST(post(*pair.a->ep, write_of(dest, &word, 8, 0, 42)).refusal == Refusal::none);
    if (turns % 2 == 0) BOOST_TEST(post(*pair.b->ep, write_of(back, &word, 8, 0, 43)).refusal == Refusal::none);
    for (int i = 0; i < turns / 4; ++i) pair.b->progress();
    for (int i = 0; i < turns / 2 % 2; ++i) pair.a->progress();
    if (turns % 2 != 0) BOOST_TEST(post(*pair.b->ep, write_of(back, &word, 8, 0, 43)).refusal == Refusal::none);
    BOOST_TEST(pair.wait(pair.a.get()).error == 0);
    const auto c = pair.wait(pair.b.get());
    BOOST_TEST(c.error == 0, c.text);
  }
}

BOOST_AUTO_TEST_CASE(test_malformed_hellos_are_refused_and_harm_nobody) {
  for (const bool manual : {true, false}) {
    Pair pair(pair_of(Path::direct, manual));
    const auto& b = *pair.b;
    const auto address = b.ep->address();
    expect_serves(pair);
    const auto refuses = [&](const char* what, auto&& change, auto&& fds_of, RejectReason why) {
      RawPeer raw(address);
      Hello h = raw.good_hello();
      change(h);
      raw.send(h, fds_of(raw));
      const auto found = raw.until_hung_up(b);
      BOOST_TEST(static_cast<int>(found) == static_cast<int>(why), what);
    };
    const auto good = [](RawPeer& raw) { return raw.good_fds(); };
    const auto nothing = [](Hello&) {};
    refuses("no descriptors", nothing, [](RawPeer&) { return std::vector<int>{}; }, RejectReason::malformed);
    refuses(
        "one too few", nothing, [](RawPeer& r) { return std::vector<int>{r.ring_fd.get()}; }, RejectReason::malformed);
    refuses(
        "one too many", nothing,
        [](RawPeer& r) {
          auto fds = r.good_fds();
          fds.push_back(r.ring_fd.get());
          return fds;
        },
        RejectReason::malformed);
    refuses("wrong version", [](Hello& h) { h.version = 99; }, good, RejectReason::version);
    refuses("wrong magic", [](Hello& h) { h.magic = 0; }, good, RejectReason::malformed);
    refuses("another endpoint", [](Hello& h) { h.address.pid ^= 1; }, good, RejectReason::no_endpoint);
    refuses("producer 0", [](Hello& h) { h.producer_id = 0; }, good, RejectReason::malformed);
    refuses(
        "producer too large", [](Hello& h) { h.producer_id = link::kPrivateArea.producer_count; }, good,
        RejectReason::malformed);
    refuses(
        "strict, in the ring of all", [](Hello& h) { h.flags = wire::kHelloStrict; }, good, RejectReason::malformed);
    refuses("another ring", [](Hello& h) { h.ring_slot_count = 8; }, good, RejectReason::malformed);
    refuses("another staging size", [](Hello& h) { h.staging_bytes = 4096; }, good, RejectReason::malformed);
    refuses("shares, without a table", [](Hello& h) { h.flags = wire::kHelloPrivate; }, good, RejectReason::malformed);
    refuses(
        "too many segments",
        [](Hello& h) {
          h.flags = wire::kHelloPrivate;
          h.segment_count = ~0u;
        },
        good, RejectReason::malformed);
    refuses(
        "a ring that is shorter than it says", nothing,
        [](RawPeer& r) {
          r.ring_fd = make_memfd("short", 4096);
          std::byte head[4096];
          std::memcpy(head, r.ring_mapping.data(), sizeof(head));
          BOOST_REQUIRE(::pwrite(r.ring_fd.get(), head, sizeof(head), 0) == sizeof(head));
          seal_size(r.ring_fd.get());
          return r.good_fds();
        },
        RejectReason::malformed);
    refuses(
        "staging memory that is shorter than it says", nothing,
        [](RawPeer& r) {
          r.staging_fd = make_memfd("short", 4096);
          seal_size(r.staging_fd.get());
          return r.good_fds();
        },
        RejectReason::malformed);
    refuses(
        "a ring that may still shrink", nothing,
        [](RawPeer& r) {
          const auto bytes = r.shape.ring_bytes();
          r.ring_fd = make_memfd("unsealed", bytes);
          std::vector<std::byte> copy(r.ring_mapping.data(), r.ring_mapping.data() + bytes);
          BOOST_REQUIRE(::pwrite(r.ring_fd.get(), copy.data(), bytes, 0) == static_cast<ssize_t>(bytes));
          return r.good_fds();
        },
        RejectReason::malformed);
    refuses("a welcome first", [](Hello& h) { h.type = HelloType::welcome; }, good, RejectReason::none);
    refuses("a request first", [](Hello& h) { h.type = HelloType::segment_request; }, good, RejectReason::none);
    expect_serves(pair);
    BOOST_TEST(b.nic().statistics().peers == 1U);
  }
}

BOOST_AUTO_TEST_CASE(test_garbage_on_the_socket_harms_nobody) {
  for (const bool manual : {true, false}) {
    Pair pair(pair_of(Path::strict, manual));
    std::mt19937_64 random(99);
    for (int round = 0; round < 150; ++round) {
      RawPeer raw(pair.b->ep->address());
      if (round % 5 == 4) continue;  // connects and hangs up
      if (round % 5 == 3) (void)raw.shake_hands(*pair.b);
      for (int packet = 0; packet < 3; ++packet) {
        std::vector<std::byte> bytes(1 + random() % 2500);
        for (auto& x : bytes) x = static_cast<std::byte>(random());
        if (round % 2 == 0 && bytes.size() >= sizeof(Hello)) {
          Hello h = raw.good_hello();
          h.type = static_cast<HelloType>(1 + random() % 6);
          h.segment = static_cast<uint32_t>(random());
          std::memcpy(bytes.data(), &h, sizeof(h));
        }
        raw.send(bytes, random() % 2 == 0 ? raw.good_fds() : std::vector<int>{});
        pair.poll();
      }
      pair.poll();
    }
    expect_serves(pair);
    pair.until([&] { return pair.b->nic().statistics().peers == 1; }, "the strangers to be gone");
  }
}

/// Without a free descriptor the caller is told so. Its call does not stay in the queue, where it would wake us again
/// and again.
BOOST_AUTO_TEST_CASE(test_process_out_of_descriptors_refuses_and_serves_on) {
  Pair pair(pair_of(Path::strict, true));
  const uint64_t word = 7;
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);
  {
    const RawPeer raw(pair.b->ep->address());
    raw.send(raw.good_hello(), raw.good_fds());
    rlimit usual{};
    BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
    const int lowest_free = ::dup(0);
    ::close(lowest_free);
    const rlimit none{static_cast<rlim_t>(lowest_free), usual.rlim_max};
    BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    const auto answer = raw.next(*pair.b);
    size_t events = 0;
    for (int i = 0; i < 10; ++i) events += pair.b->nic().progress();
    BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
    BOOST_TEST(events == 0U);
    BOOST_TEST((answer.hung_up || (answer.hello && answer.hello->type == HelloType::reject &&
                                   answer.hello->reason == RejectReason::too_many_peers)));
  }
  expect_serves(pair);
  RawPeer later(pair.b->ep->address());
  BOOST_TEST((later.shake_hands(*pair.b).type == HelloType::welcome));
}

BOOST_AUTO_TEST_CASE(test_garbage_in_the_ring_hangs_up_on_its_sender_only) {
  for (const bool manual : {true, false}) {
    Pair pair(pair_of(Path::strict, manual));
    expect_serves(pair);
    std::mt19937_64 random(7);
    for (int round = 0; round < 20; ++round) {
      RawPeer raw(pair.b->ep->address());
      (void)raw.shake_hands(*pair.b);
      std::vector<std::byte> bytes(240);
      for (auto& x : bytes) x = static_cast<std::byte>(random());
      bytes[0] = std::byte{0};  // no frame has kind 0
      raw.push(std::span(bytes).first(round % 3 == 0 ? 10 : 240));
      (void)raw.until_hung_up(*pair.b);
    }
    expect_serves(pair);
    BOOST_TEST(pair.b->nic().statistics().peers == 1U);
  }
}

/// Frames of valid form with any content are answered with an error or dropped; no byte outside the region changes.
BOOST_AUTO_TEST_CASE(test_random_frames_touch_nothing_outside_the_region) {
  Pair pair(pair_of(Path::strict, true));
  expect_serves(pair);
  std::byte* guarded = pair.b->alloc(3 * 4096);
  std::memset(guarded, 0x5e, 3 * 4096);
  pair.b->reg(guarded + 4096, 4096, 70);
  auto raw = std::make_unique<RawPeer>(pair.b->ep->address());
  Hello welcome = raw->shake_hands(*pair.b);
  std::mt19937_64 random(13);
  const auto any = [&](std::initializer_list<uint64_t> likely) {
    const size_t i = random() % (likely.size() + 1);
    return i == likely.size() ? random() : likely.begin()[i];
  };
  for (int i = 0; i < 30'000; ++i) {
    wire::Frame f;
    f.kind = static_cast<wire::FrameKind>(1 + random() % 6);
    f.where = static_cast<wire::PayloadWhere>(random() % 3);
    f.flags = static_cast<uint8_t>(random() % 16);
    f.family = static_cast<uint8_t>(random() % 3);
    f.datatype = static_cast<uint8_t>(any({0, 7, 13, 19, 20}));
    f.atomic_op = static_cast<uint8_t>(any({0, 2, 10, 12, 19, 20}));
    f.status = static_cast<int32_t>(any({0, 8, 4096, 65536, 65537, 0x80000000}));
    f.payload_length = f.where == wire::PayloadWhere::none       ? 0
                       : f.where == wire::PayloadWhere::in_frame ? static_cast<uint32_t>(random() % 153)
                                                                 : static_cast<uint32_t>(random() % 65537);
    f.op_id = any({1, 2, 3});
    f.access.key = any({70, 42, 71});
    f.access.addr = any({0, 8, 4095, 4096, ~uint64_t{0}});
    f.access.length = any({0, 8, 64, 4096, 4097, ~uint64_t{0}});
    f.access.frag_offset = any({0, 8, 4095, 4096, ~uint64_t{0}});
    f.access.data = random();
    f.ep_index = static_cast<uint32_t>(any({welcome.ep_index}));
    f.ep_generation = static_cast<uint32_t>(any({welcome.ep_generation}));
    f.staged_chunk = static_cast<uint32_t>(random() % link::kPrivateArea.chunk_count);
    std::byte bytes[240];
    for (size_t k = 0; k < sizeof(bytes); k += 8) {
      const uint64_t word = random();
      std::memcpy(bytes + k, &word, 8);
    }
    wire::emit(f, bytes);
    raw->push(bytes);
    if (i % 64 == 0) {
      pair.poll();
      // No side reads the answers: empty that ring, so that answers are sent and not deferred.
      raw->clear_ring();
    }
  }
  for (int i = 0; i < 200; ++i) pair.poll();
  BOOST_TEST(std::all_of(guarded, guarded + 4096, [](std::byte x) { return x == std::byte{0x5e}; }));
  BOOST_TEST(std::all_of(guarded + 8192, guarded + 12288, [](std::byte x) { return x == std::byte{0x5e}; }));
  expect_serves(pair);
  raw.reset();
  expect_serves(pair);
}

BOOST_AUTO_TEST_CASE(test_strict_shares_nothing) {
  for (const bool strict : {true, false}) {
    SideConfig config = manual_side();
    config.host.shm.strict = strict;
    Side side(config);
    (void)side.alloc(4096);
    RawPeer raw(side.ep->address());
    Hello hello = raw.good_hello();
    raw.send(hello, raw.good_fds());
    const auto a = raw.next(side);
    BOOST_REQUIRE(a.hello.has_value());
    BOOST_TEST(a.fds.size() == (strict ? 2U : 4U));
    BOOST_TEST(a.hello->segment_count == (strict ? 0U : 1U));
    Hello ask = raw.good_hello();
    ask.type = HelloType::segment_request;
    ask.segment = 0;
    raw.send(ask, {});
    const auto answer = raw.next(side);
    BOOST_REQUIRE((answer.hello && answer.hello->type == HelloType::segment));
    BOOST_TEST(answer.fds.size() == (strict ? 0U : 1U));
    BOOST_TEST((answer.hello->segment_bytes == 0) == strict);
  }
}

BOOST_AUTO_TEST_CASE(test_either_side_may_be_strict) {
  for (const bool a_strict : {true, false}) {
    SideConfig a_config = manual_side(), b_config = manual_side();
    a_config.host.shm.strict = a_strict;
    b_config.host.shm.strict = !a_strict;
    Side a(a_config), b(b_config);
    std::byte* memory = b.alloc(4096);
    b.reg(memory, 4096, 1);
    const uint64_t dest = a.insert(b), word = 77;
    BOOST_TEST(post(*a.ep, write_of(dest, &word, 8, 0, 1)).refusal == Refusal::none);
    std::optional<Completion> c;
    BOOST_TEST(poll_until([&] { return (c = try_completion(a)).has_value(); },
                          [&] {
                            a.progress();
                            b.progress();
                          }));
    BOOST_TEST((c && c->error == 0));
    BOOST_TEST(std::memcmp(memory, &word, 8) == 0);
    BOOST_TEST(a.nic().statistics().framed_ops == 1U);
  }
}

BOOST_AUTO_TEST_CASE(test_segment_made_after_the_connection_is_requested) {
  for (const bool manual : {true, false}) {
    Pair pair(pair_of(Path::direct, manual));
    expect_serves(pair);  // connected: one segment is known
    std::byte* later = pair.b->alloc(mem::kSegmentBytes);
    BOOST_TEST(pair.b->nic().segments().count() == 2U);
    pair.b->reg(later, mem::kSegmentBytes, 80);
    const auto data = pattern(10'000);
    for (int i = 0; i < 3; ++i) {
      const auto done = pair.run(write_of(pair.dest, data.data(), 10'000, mem::kSegmentBytes - 10'000, 80));
      BOOST_TEST(done.error == 0, done.text);
    }
    BOOST_TEST(std::memcmp(later + mem::kSegmentBytes - 10'000, data.data(), 10'000) == 0);
    BOOST_TEST(pair.a->nic().statistics().framed_ops == 0U);
    BOOST_TEST(pair.a->nic().statistics().waiting_ops == 0U);
  }
}

BOOST_AUTO_TEST_CASE(test_connect_queued_at_a_closing_endpoint_is_no_endpoint) {
  SideConfig config = manual_side();
  Side a(config), b(config);
  const uint64_t dest = a.insert(b), word = 1;
  BOOST_TEST(post(*a.ep, write_of(dest, &word, 8, 0, 1)).refusal == Refusal::none);
  b.ep->close();  // b has not read its socket
  std::optional<Completion> c;
  BOOST_TEST(poll_until([&] { return (c = try_completion(a)).has_value(); },
                        [&] {
                          a.progress();
                          b.progress();
                        }));
  BOOST_TEST((c && c->status == Status::no_endpoint), (c ? c->text : ""));
}

/// Frames wait for a stopped peer, but not so many that other peers must wait.
BOOST_AUTO_TEST_CASE(test_shm_frames_of_a_peer_come_before_its_end) {
  // The peer publishes and ends after this NIC has read its rings and before it looks at its sockets.
  struct Order : link::FrameSink {
    void on_frame(const std::shared_ptr<link::Peer>&, const wire::Frame&, std::span<const std::byte>) override {
      frames += downs == 0;
    }
    void on_resolved(const std::shared_ptr<void>&, Status, const std::shared_ptr<link::Peer>&, uint32_t,
                     uint32_t) override {}
    void on_peer_down(const std::shared_ptr<link::Peer>&) override { ++downs; }
    uint32_t frames = 0, downs = 0;
  };
  for (const Path path : {Path::cma, Path::strict}) {
    BOOST_TEST_CONTEXT("path " << path) {
      Pair pair(pair_of(path, true));
      const uint64_t word = 5;
      BOOST_TEST(pair.write(&word, 8, 0).error == 0);  // they are connected
      wire::Frame f;
      f.kind = wire::FrameKind::reduce;
      f.reduce = {};
      f.reduce.what = static_cast<uint8_t>(wire::ReduceWhat::lost);
      constexpr uint32_t kSent = 100;  // more than one turn of a private ring
      for (link::Link* l : pair.a->nic().links()) {
        for (const auto& peer : l->peers()) {
          for (uint32_t i = 0; i < kSent && !peer->same_process; ++i) BOOST_TEST(l->submit(*peer, f, {}) == Status::ok);
        }
      }
      pair.a.reset();
      Order order;
      const auto look = [&] {
        for (link::Link* l : pair.b->nic().links()) (void)l->poll_events(order);
      };
      BOOST_REQUIRE(poll_until([&] { return order.downs != 0; }, look));
      BOOST_TEST(order.frames >= kSent);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_shm_stopped_peer_leaves_staging_memory_to_others) {
  SideConfig config = manual_side();
  config.host.shm.strict = true;
  config.ep.tx_size = 4096;
  config.cq_capacity = 4096;
  Side a(config), stopped(config), live(config);
  std::byte *there = stopped.alloc(65536), *here = live.alloc(65536);
  stopped.reg(there, 65536, 1);
  live.reg(here, 65536, 1);
  const uint64_t to_stopped = a.insert(stopped), to_live = a.insert(live);
  const auto data = pattern(60'000);
  const auto drive = [&](bool both) {
    a.progress();
    live.progress();
    if (both) stopped.progress();
  };
  std::optional<Completion> c;
  for (const uint64_t dest : {to_stopped, to_live}) {
    BOOST_TEST(post(*a.ep, write_of(dest, data.data(), 8, 0, 1)).refusal == Refusal::none);
    BOOST_TEST(poll_until([&] { return (c = try_completion(a)).has_value(); }, [&] { drive(true); }));
  }
  for (int i = 0; i < 600; ++i)
    BOOST_TEST(post(*a.ep, write_of(to_stopped, data.data(), 60'000, 0, 1, 7)).refusal == Refusal::none);
  for (int i = 0; i < 20; ++i) {
    BOOST_TEST(post(*a.ep, write_of(to_live, data.data(), 60'000, 0, 1, 8)).refusal == Refusal::none);
    BOOST_TEST_REQUIRE(poll_until([&] { return (c = try_completion(a)).has_value(); }, [&] { drive(false); }));
    BOOST_TEST(c->entry.context == 8U);
  }
  size_t done = 0;
  BOOST_TEST(poll_until(
      [&] {
        while (try_completion(a)) ++done;
        return done == 600;
      },
      [&] { drive(true); }));
}

/// The same for answers: the owner's answers to a stopped reader do not delay another reader's answers.
BOOST_AUTO_TEST_CASE(test_reader_that_does_not_read_holds_up_no_other_reader) {
  SideConfig config = manual_side();
  config.host.shm.strict = true;
  config.ep.tx_size = 8192;
  config.cq_capacity = 8192;
  Side owner(config), stopped(config), live(config);
  owner.reg(owner.alloc(65536), 65536, 1);
  const uint64_t from_stopped = stopped.insert(owner), from_live = live.insert(owner);
  std::vector<std::byte> one(60'000), two(60'000);
  std::optional<Completion> c;
  BOOST_TEST(post(*stopped.ep, read_of(from_stopped, one.data(), 8, 0, 1)).refusal == Refusal::none);
  BOOST_TEST(poll_until([&] { return (c = try_completion(stopped)).has_value(); },
                        [&] {
                          stopped.progress();
                          owner.progress();
                        }));
  for (int i = 0; i < 2000; ++i)
    BOOST_TEST(post(*stopped.ep, read_of(from_stopped, one.data(), 60'000, 0, 1)).refusal == Refusal::none);
  for (int i = 0; i < 50; ++i) owner.progress();
  for (int i = 0; i < 10; ++i) {
    BOOST_TEST(post(*live.ep, read_of(from_live, two.data(), 60'000, 0, 1)).refusal == Refusal::none);
    BOOST_TEST_REQUIRE(poll_until([&] { return (c = try_completion(live)).has_value(); },
                                  [&] {
                                    live.progress();
                                    owner.progress();
                                  }));
    BOOST_TEST(c->error == 0, c->text);
  }
  size_t done = 0;
  BOOST_TEST(poll_until(
      [&] {
        while (try_completion(stopped)) ++done;
        return done == 2000;
      },
      [&] {
        stopped.progress();
        owner.progress();
      }));
}

#if !defined(WEFT_TEST_NO_FORK)

BOOST_AUTO_TEST_CASE(test_two_processes_read_write_and_notice_a_death) {
  for (const Path path : {Path::direct, Path::cma, Path::ring, Path::strict}) {
    for (const bool manual : {false, true}) {
      BOOST_TEST_CONTEXT("path " << path << (manual ? ", manual" : ", engine")) {
        const auto config_of = [&] {
          SideConfig config;
          config.host.engine_thread = !manual;
          config.host.shm.strict = path == Path::strict;
          config.host.shm.cma = path != Path::ring;
          return config;
        };
        Child target([&](int fd) {
          Side side(config_of());
          static std::byte foreign[65536];
          std::byte* memory = path == Path::cma || path == Path::ring ? foreign : side.alloc(65536);
          std::memset(memory, 0x33, 65536);
          side.reg(memory, 65536, 1);
          tell(fd, side.ep->address());
          for (;;) {
            side.progress();
            usleep(50);
          }
        });
        const auto address = hear<wire::EpAddress>(target.fd());
        BOOST_REQUIRE(address.has_value());
        Side side(config_of());
        const uint64_t dest = side.av->insert(*address);
        std::vector<std::byte> back(65536);
        const auto run = [&](const Access& access) {
          BOOST_TEST_REQUIRE(post(*side.ep, access).refusal == Refusal::none);
          std::optional<Completion> c;
          BOOST_TEST_REQUIRE(
              poll_until([&] { return (c = try_completion(side)).has_value(); }, [&] { side.progress(); }));
          return *c;
        };
        auto done = run(read_of(dest, back.data(), 65536, 0, 1));
        BOOST_TEST_REQUIRE(done.error == 0, done.text);
        BOOST_TEST((back == std::vector<std::byte>(65536, std::byte{0x33})));
        const auto data = pattern(65536);
        BOOST_TEST(run(write_of(dest, data.data(), 65536, 0, 1)).error == 0);
        BOOST_TEST(run(read_of(dest, back.data(), 65536, 0, 1)).error == 0);
        BOOST_TEST((back == data));
        target.kill(SIGKILL);
        target.wait();
        // Until the NIC has noticed the hang-up a direct write may succeed; afterwards every write is an error.
        BOOST_TEST(poll_until([&] { return run(write_of(dest, data.data(), 64, 0, 1)).error != 0; },
                              [&] { side.progress(); }));
        done = run(write_of(dest, data.data(), 64, 0, 1));
        BOOST_TEST((done.status == Status::no_endpoint || done.status == Status::peer_gone), done.text);
        BOOST_TEST(poll_until([&] { return side.nic().statistics().peers == 0; }, [&] { side.progress(); }));
        BOOST_TEST(side.nic().statistics().waiting_ops == 0U);
      }
    }
  }
}

/// A child of the target that lives on closes its inherited descriptors; otherwise no peer would notice the target's
/// death.
BOOST_AUTO_TEST_CASE(test_forked_child_does_not_hide_its_parents_death) {
  struct Told {
    wire::EpAddress address;
    pid_t grandchild;
  };
  Child target([](int fd) {
    SideConfig config;
    config.host.shm.strict = true;
    Side side(config);
    std::byte* memory = side.alloc(4096);
    side.reg(memory, 4096, 1);
    const uint64_t self = side.insert(side);
    uint64_t word = 0;
    (void)post(*side.ep, write_of(self, &word, 8, 0, 1));
    tell(fd, Told{side.ep->address(), 0});
    (void)hear<int>(fd);  // the peer is connected
    const pid_t pid = ::fork();
    if (pid == 0) {
      side.host->after_fork_in_child();
      ::alarm(60);
      for (;;) ::pause();
    }
    tell(fd, Told{side.ep->address(), pid});
    for (;;) ::pause();
  });
  const auto told = hear<Told>(target.fd());
  BOOST_REQUIRE(told.has_value());
  Side side;
  const uint64_t dest = side.av->insert(told->address);
  const uint64_t word = 1;
  const auto run = [&] {
    BOOST_TEST_REQUIRE(post(*side.ep, write_of(dest, &word, 8, 0, 1)).refusal == Refusal::none);
    std::optional<Completion> c;
    BOOST_TEST_REQUIRE(poll_until([&] { return (c = try_completion(side)).has_value(); }, [&] { side.progress(); }));
    return *c;
  };
  BOOST_TEST(run().error == 0);
  tell(target.fd(), 1);
  const auto forked = hear<Told>(target.fd());
  BOOST_REQUIRE(forked.has_value());
  target.kill(SIGKILL);
  target.wait();
  BOOST_TEST(poll_until([&] { return run().error != 0; }, [] {}));
  BOOST_TEST(::kill(forked->grandchild, 0) == 0);  // the child still lives
  ::kill(forked->grandchild, SIGKILL);
}

/// No thread polls the initiator; its engine alone sends the frames for which a stopped target's ring had no room.
BOOST_AUTO_TEST_CASE(test_engine_sends_deferred_frames_by_itself) {
  Child target([](int fd) {
    SideConfig config;
    config.host.engine_thread = false;
    Side side(config);
    side.reg(side.alloc(8), 8, 1);
    tell(fd, side.ep->address());
    uint64_t seen = 0;
    const auto sees = [&](uint64_t count) {
      while (try_completion(side)) ++seen;
      return seen == count;
    };
    (void)poll_until([&] { return sees(1); }, [&] { side.progress(); });
    tell(fd, 1);
    (void)hear<int>(fd);  // the target does not poll now
    const bool all = poll_until([&] { return sees(9000); }, [&] { side.progress(); }, std::chrono::seconds(20));
    tell(fd, all ? 2 : 3);
    (void)hear<int>(fd);
  });
  const auto address = hear<wire::EpAddress>(target.fd());
  BOOST_REQUIRE(address.has_value());
  SideConfig config;
  config.ep.tx_size = 10'000;
  config.cq_capacity = 16'384;
  Side side(config);
  const uint64_t dest = side.av->insert(*address);
  uint64_t word = 1;
  const auto announce = [&] {  // the store is done at once; its notice must find room
    Access w = write_of(dest, &word, 8, 0, 1);
    w.inject = true;
    w.flags = flag::kRemoteCqData;
    BOOST_TEST_REQUIRE(post(*side.ep, w).refusal == Refusal::none);
  };
  announce();
  BOOST_REQUIRE(hear<int>(target.fd()).has_value());
  usleep(20'000);  // the engine goes to sleep: no operation is under way
  for (word = 2; word <= 9000; ++word) announce();
  tell(target.fd(), 1);
  BOOST_TEST(hear<int>(target.fd()).value_or(0) == 2);
}

/// Shared memory has no name in a file system, so a killed process leaves nothing behind.
BOOST_AUTO_TEST_CASE(test_shared_memory_is_in_no_file_system) {
  Pair pair(pair_of(Path::direct));
  expect_serves(pair);
  std::ifstream maps("/proc/self/maps");
  size_t shared = 0;
  for (std::string line; std::getline(maps, line);) {
    BOOST_TEST(line.find("/dev/shm") == std::string::npos, line);
    shared += line.find("/memfd:weft-") != std::string::npos;
  }
  BOOST_TEST(shared > 0U);
}

#endif

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
