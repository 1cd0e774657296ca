// tests/cpp/test_nic_bounds.cpp: the memory that a peer can make a NIC keep is bounded, and at the bound only that peer
// is harmed.
#include "messaging.hpp"

namespace {

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(nic_bounds)

// The only other process to which `side` is connected.
std::shared_ptr<link::Peer> peer_of(const Side& side) {
  for (link::Link* link : side.nic().links()) {
    for (const auto& peer : link->peers()) {
      if (!peer->same_process) return peer;
    }
  }
  return nullptr;
}

// A frame to the pair's region, as an initiator makes it.
wire::Frame frame_to(const Pair& pair, wire::FrameKind kind, uint64_t length) {
  wire::Frame f;
  f.kind = kind;
  f.flags = wire::kFrameLast;
  f.op_id = 1;
  f.access.key = pair.key();
  f.access.length = length;
  f.ep_index = pair.b->ep->index();
  f.ep_generation = pair.b->nic().table().ep(f.ep_index).generation.load();
  f.source = pair.a->ep->address();
  return f;
}

// A second endpoint of the target, with its own queue, and an initiator in another process that writes to it.
struct Bystander {
  explicit Bystander(const Pair& pair, Path path)
      : queue(std::make_shared<nic::CompletionQueue>(16)), ep(pair.b->domain->make_endpoint(SideConfig{}.ep)) {
    ep->bind_cq(queue, flag::kSend | flag::kRecv);
    ep->bind_av(pair.b->av);
    ep->enable(0, std::nullopt);
    SideConfig config;
    config.host.engine_thread = false;
    config.host.shm.strict = path == Path::strict;
    config.host.shm.cma = path != Path::ring;
    config.host.shm_link = path != Path::tcp;
    config.listen = path == Path::tcp;
    side = std::make_unique<Side>(config);
    to_other = side->av->insert(name_of(pair, *ep));
    from_a = pair.a->av->insert(name_of(pair, *ep));
  }
  ~Bystander() { ep->close(); }
  static wire::EpAddress name_of(const Pair& pair, const nic::Endpoint& ep) {
    wire::EpAddress address = ep.address();
    if (const auto at = pair.b->host->tcp().listening()) address.nic = routes()->number({*at, address.nic});
    return address;
  }
  // Writes with data, and checks that the data arrives.
  bool writes(const Pair& pair, uint64_t data) {
    const uint64_t word = data;
    Access access = write_of(to_other, &word, 8, 8, pair.key());
    access.flags = flag::kRemoteCqData;
    access.imm = data;
    if (post(*side->ep, access).refusal != Refusal::none) return false;
    CqEntry entry{};
    bool done = false, came = false;
    return poll_until(
               [&] {
                 if (const auto c = try_completion(*side)) done = c->error == 0;
                 const nic::DomainLock guard(pair.b->domain.get());
                 bool error_waits = false;
                 came = came || queue->read(&entry, 1, &error_waits) == 1;
                 return done && came;
               },
               [&] {
                 side->progress();
                 pair.b->progress();
               }) &&
           entry.data == data;
  }
  std::shared_ptr<nic::CompletionQueue> queue;
  std::shared_ptr<nic::Endpoint> ep;
  std::unique_ptr<Side> side;
  uint64_t to_other = 0, from_a = 0;
};

/// Reads, checks, fetching atomics and refused writes whose answers the peer never takes: the answers wait, as many as
/// the
/// protocol permits, and then the NIC hangs up on the peer. An initiator in another process notices nothing.
BOOST_AUTO_TEST_CASE(test_peer_that_takes_no_answers_is_hung_up_on) {
  struct Asked {
    const char* name;
    wire::FrameKind kind;
    uint64_t length, key;
    size_t payload;
  };
  const Asked all[] = {{"reads", wire::FrameKind::read, 4096, 42, 0},
                       {"writes behind reads", wire::FrameKind::write, 32768, 42, 32768},
                       {"refused writes", wire::FrameKind::write, 8, 7, 8},
                       {"checks", wire::FrameKind::check, 0, 42, sizeof(wire::RmaRange)},
                       {"fetching atomics", wire::FrameKind::atomic, 8, 42, 8}};
  for (const Asked& asked : all) {
    for (const Path path : {Path::strict, Path::direct}) {
      BOOST_TEST_CONTEXT(asked.name << ", " << path) {
        Pair pair(pair_of(path, true));
        const uint64_t word = 7;
        BOOST_REQUIRE(pair.write(&word, 8, 0).error == 0);
        const auto peer = peer_of(*pair.a);
        Bystander other(pair, path);
        BOOST_REQUIRE(other.writes(pair, 76));
        BOOST_REQUIRE(pair.b->nic().statistics().peers == 2U);
        BOOST_REQUIRE(peer != nullptr);
        const std::vector<std::byte> payload(asked.payload);
        uint64_t most = 0;
        bool ended = false;
        for (int i = 0; i < 40'000 && !ended; ++i) {
          wire::Frame f = frame_to(pair, asked.kind, asked.length);
          f.access.key = asked.key;
          if (asked.kind == wire::FrameKind::read || (asked.payload == 32768 && i < 4096)) {
            f.kind = wire::FrameKind::read;  // answers of reads fill the peer's ring
            f.access.length = 4096;
            f.status = 4096;
          }
          if (asked.kind == wire::FrameKind::atomic) {
            f.family = static_cast<uint8_t>(AtomicFamily::fetch);
            f.atomic_op = static_cast<uint8_t>(AtomicOp::sum);
            f.datatype = static_cast<uint8_t>(Datatype::uint64);
          }
          const bool bare = f.kind == wire::FrameKind::read;
          const Status s = peer->link()->submit(*peer, f, bare ? std::span<const std::byte>{} : payload);
          BOOST_REQUIRE((s == Status::ok || s == Status::again || s == Status::peer_gone));
          pair.b->nic().progress();
          most = std::max(most, pair.b->nic().statistics().deferred);
          ended = pair.b->nic().statistics().peers == 1 || most > 2 * wire::kUnansweredMax;
        }
        BOOST_TEST(ended);
        BOOST_TEST(most <= wire::kUnansweredMax);
        BOOST_TEST(most >= 1U);
        BOOST_TEST(pair.b->nic().statistics().deferred == 0U);
        BOOST_TEST(other.writes(pair, 77));
      }
    }
  }
}

/// A peer that keeps to the protocol may be stopped for any time: its requests wait, and all are answered when the peer
/// continues.
BOOST_AUTO_TEST_CASE(test_stopped_peer_is_kept_and_gets_all_its_answers) {
  PairConfig config = pair_of(Path::strict, true);
  config.a.ep.tx_size = config.a.cq_capacity = 2048;
  config.bytes = 1 << 17;
  Pair pair(config);
  const auto data = pattern(config.bytes);
  std::memcpy(pair.memory, data.data(), data.size());
  std::vector<std::byte> long_room(65536), room(65536);
  BOOST_REQUIRE(pair.read(room.data(), 8, 0).error == 0);
  for (int i = 0; i < 1500; ++i) {
    const bool is_long = i < 1000;
    auto& into = is_long ? long_room : room;
    const PostResult r =
        post(*pair.a->ep, read_of(pair.dest, into.data(), is_long ? 65536 : 8, is_long ? 65536 : 0, pair.key()));
    BOOST_REQUIRE(r.refusal == Refusal::none);
    pair.b->nic().progress();
  }
  for (int i = 0; i < 2000; ++i) pair.b->nic().progress();
  const auto statistics = pair.b->nic().statistics();
  BOOST_TEST(statistics.peers == 1U);
  BOOST_TEST(statistics.deferred > 0U);
  BOOST_TEST(statistics.deferred <= wire::kUnansweredMax);
  for (int i = 0; i < 1500; ++i) BOOST_REQUIRE(pair.wait().error == 0);
  BOOST_TEST(std::memcmp(long_room.data(), data.data() + 65536, 65536) == 0);
  BOOST_TEST(std::memcmp(room.data(), data.data(), 8) == 0);
  BOOST_TEST(pair.b->nic().statistics().deferred == 0U);
}

// A peer that does not take the answers of its reads, so its later requests wait at the target, and among them messages
// that it has sent with credits. Another peer has stopped too, and holds all the memory for long answers.
struct Stopped {
  static constexpr size_t kTalkers = 4, kReads = 300;
  static PairConfig config() {
    PairConfig c = message_pair(Path::ring, true);
    for (SideConfig* side : {&c.a, &c.b}) side->ep.tx_size = side->cq_capacity = 4096;
    c.bytes = 1 << 17;
    return c;
  }
  Stopped() : pair(config()), holder(config_of_holder()), room(65536), next(kTalkers) {
    const uint64_t held = holder.insert(*pair.b);
    for (size_t i = 0; i < wire::kUnansweredMax; ++i) {
      BOOST_REQUIRE(post(*holder.ep, read_of(held, room.data(), 65536, 0, pair.key())).refusal == Refusal::none);
      if (i == 0) {  // connects
        pair.until([&] { return holder.progress(), try_completion(holder).has_value(); }, "the holder's first read");
      }
      pair.b->nic().progress();
    }
    for (size_t i = 0; i < kTalkers; ++i) {
      talkers.push_back(pair.a->extra_endpoint(config().a));
      BOOST_REQUIRE(talk(i));
      BOOST_REQUIRE(pair.wait().error == 0);  // the answer brings credits
    }
    for (size_t i = 0; i < kReads; ++i) {
      const Access read = read_of(pair.dest, room.data(), 65536, 0, pair.key());
      BOOST_REQUIRE(post(*pair.a->ep, read).refusal == Refusal::none);
      pair.b->nic().progress();
    }
    for (size_t i = 0; i < kTalkers; ++i) {
      for (int k = 0; k < 12; ++k) BOOST_REQUIRE(talk(i));
      pair.b->nic().progress();
    }
    for (int i = 0; i < 2000; ++i) pair.b->nic().progress();
  }
  bool talk(size_t talker) {
    const uint64_t tag = talker << 32 | next[talker]++;
    return send(*talkers[talker], pair.dest, &tag, 8, {.tag = tag, .context = 5}).refusal == Refusal::none;
  }
  // The peer goes on: every read and every send ends, and the messages arrive, each talker's in order.
  void go_on() {
    std::vector<uint64_t> came(kTalkers);
    uint64_t messages = 0, sent = 0, word = 0;
    for (const uint64_t n : next) sent += n;
    while (holder.nic().progress() != 0) pair.b->nic().progress();
    while (messages != sent) {
      BOOST_REQUIRE(receive(*pair.b->ep, &word, 8, {.ignore = ~uint64_t{0}}).refusal == Refusal::none);
      const Completion c = pair.wait(pair.b.get());
      BOOST_REQUIRE(c.error == 0);
      BOOST_REQUIRE(c.entry.tag == word);
      BOOST_REQUIRE((word & 0xffffffff) == came[word >> 32]++);
      ++messages;
    }
    for (size_t i = 0; i < kReads + sent - kTalkers; ++i) BOOST_REQUIRE(pair.wait().error == 0);
    for (size_t i = 1; i < wire::kUnansweredMax; ++i) {
      pair.until([&] { return holder.progress(), try_completion(holder).has_value(); }, "the holder's reads");
    }
    BOOST_TEST(pair.b->nic().statistics().deferred == 0U);
    BOOST_TEST(pair.b->nic().statistics().peers == 2U);
  }
  static SideConfig config_of_holder() {
    SideConfig c = config().a;
    c.host.engine_thread = false;
    c.host.shm.cma = false;
    return c;
  }
  Pair pair;
  Side holder;
  std::vector<std::byte> room;
  std::vector<std::shared_ptr<nic::Endpoint>> talkers;
  std::vector<uint64_t> next;  // number of each talker's next message
};

/// A stopped peer may have kUnansweredMax requests without an answer, and besides them credited messages, as many as it
/// has credits.
BOOST_AUTO_TEST_CASE(test_stopped_peer_may_use_its_credits_beside_its_requests) {
  Stopped s;
  BOOST_TEST(s.pair.b->nic().statistics().deferred > wire::kUnansweredMax);
  s.go_on();
}

/// The end of a flow waits behind the flow's messages.
BOOST_AUTO_TEST_CASE(test_endpoint_of_a_stopped_peer_closes_behind_its_messages) {
  Stopped s;
  s.talkers[0]->close();
  s.talkers[3]->close();
  for (int i = 0; i < 100; ++i) s.pair.b->nic().progress();
  s.go_on();
}

/// A stopped peer that sends more messages than it has credits is hung up on.
BOOST_AUTO_TEST_CASE(test_stopped_peer_that_sends_without_credits_is_hung_up_on) {
  Stopped s;
  const auto peer = peer_of(*s.pair.a);
  wire::Frame f = frame_to(s.pair, wire::FrameKind::message, 0);
  f.flags = wire::kMessageTagged | wire::kMessageCredited;
  f.op_id = 0;
  f.source = s.talkers[0]->address();
  int sent = 0;
  while (sent < 1000 && s.pair.b->nic().statistics().peers == 2) {
    f.message = {
        .tag = 9, .data = 0, .length = 0, .key = 0, .sequence = 13u + static_cast<uint32_t>(sent), .sender = 0};
    sent += peer->link()->submit(*peer, f, {}) == Status::ok;
    s.pair.b->nic().progress();
  }
  BOOST_TEST(s.pair.b->nic().statistics().peers == 1U);
  BOOST_TEST(sent <= 32);
}

// Writes with data until the transmit queue refuses; returns the number of accepted writes.
uint64_t write_until_refused(Pair& pair, uint64_t* word, uint64_t first = 0) {
  uint64_t posted = first;
  int refused = 0;
  const bool ended = poll_until(
      [&] {
        Access access = write_of(pair.dest, word, 8, 0, pair.key());
        access.flags = flag::kRemoteCqData;
        access.imm = posted;
        const Refusal r = post(*pair.a->ep, access).refusal;
        if (r == Refusal::none) {
          ++posted;
          refused = 0;
        } else {
          BOOST_REQUIRE(r == Refusal::tx_full);
          ++refused;
        }
        while (try_completion(*pair.a)) {
        }
        return refused > 500 || posted > 60'000;
      },
      [&] { pair.poll(); });
  BOOST_REQUIRE(ended);
  return posted;
}

/// A target that does not read its completion queue: writers with data are held back, nothing is lost, the order stays,
/// and neither another endpoint of the target nor another process is delayed.
BOOST_AUTO_TEST_CASE(test_full_target_queue_holds_writers_with_data_back) {
  for (const Path path : kPaths) {
    BOOST_TEST_CONTEXT(path) {
      PairConfig config = pair_of(path, true);
      config.b.cq_capacity = 8;
      config.a.ep.tx_size = 64;
      Pair pair(config);
      uint64_t word = 5;
      BOOST_REQUIRE(pair.write(&word, 8, 0).error == 0);
      const uint64_t posted = write_until_refused(pair, &word);
      BOOST_TEST(posted < 1000U);
      BOOST_TEST(pair.b->unread() < 1000U);
      BOOST_TEST(pair.a->ep->held_back(pair.dest));
      if (path != Path::self) {
        Bystander other(pair, path);
        BOOST_TEST(other.writes(pair, 77));
        // The same initiator, to the other endpoint: its own transmit queue is full, a further endpoint's queue is not.
        const auto second = pair.a->extra_endpoint();
        Access access = write_of(other.from_a, &word, 8, 8, pair.key());
        access.flags = flag::kRemoteCqData;
        access.imm = 78;
        BOOST_TEST(pair.run(access, second.get()).error == 0);
      }
      uint64_t seen = 0;
      while (seen < posted) {
        CqEntry entry{};
        bool error_waits = false;
        pair.until([&] { return pair.b->read_cq(&entry, 1, &error_waits) == 1; }, "an entry of what was written");
        BOOST_REQUIRE(entry.data == seen);
        BOOST_REQUIRE(entry.flags == (flag::kRma | flag::kRemoteWrite | flag::kRemoteCqData));
        ++seen;
      }
      pair.until([&] { return pair.a->ep->outstanding() == 0; }, "the last write");
      BOOST_TEST(!pair.a->ep->held_back(pair.dest));
      while (const auto c = try_completion(*pair.a)) BOOST_TEST(c->error == 0);
      BOOST_TEST(pair.b->unread() == 0U);
    }
  }
}

/// When the target goes, the initiators that are held back are told at once.
BOOST_AUTO_TEST_CASE(test_writers_that_are_held_back_end_with_their_target) {
  for (const Path path : {Path::direct, Path::ring, Path::strict, Path::tcp}) {
    for (const bool whole : {false, true}) {
      BOOST_TEST_CONTEXT(path << (whole ? ", the process" : ", the endpoint")) {
        PairConfig config = pair_of(path, true);
        config.b.cq_capacity = 8;
        config.a.ep.tx_size = 16;
        Pair pair(config);
        uint64_t word = 5;
        BOOST_REQUIRE(pair.write(&word, 8, 0).error == 0);
        (void)write_until_refused(pair, &word);
        if (whole) {
          pair.region.reset();
          pair.b.reset();
        } else {
          pair.b->ep->close();
        }
        int failed = 0;
        const bool ended = poll_until(
            [&] {
              while (const auto c = try_completion(*pair.a)) {
                if (c->error == 0) continue;
                ++failed;
                BOOST_TEST(c->error == (whole ? fi_err::kECONNRESET : fi_err::kECONNREFUSED), c->text);
              }
              return pair.a->ep->outstanding() == 0;
            },
            [&] {
              pair.a->progress();
              if (pair.b) pair.b->progress();
            });
        BOOST_TEST(ended);
        BOOST_TEST(failed > 0);
      }
    }
  }
}

/// Operations that are held back and have not begun can be canceled.
BOOST_AUTO_TEST_CASE(test_writes_that_are_held_back_can_be_canceled) {
  for (const Path path : {Path::direct, Path::strict, Path::tcp}) {
    BOOST_TEST_CONTEXT(path) {
      PairConfig config = pair_of(path, true);
      config.b.cq_capacity = 8;
      config.a.ep.tx_size = 16;
      Pair pair(config);
      uint64_t word = 5;
      BOOST_REQUIRE(pair.write(&word, 8, 0).error == 0);
      (void)write_until_refused(pair, &word);
      BOOST_TEST(pair.a->ep->cancel(1) > 0U);
      BOOST_TEST(pair.a->ep->outstanding() == 0U);
      CqEntry entry{};
      bool error_waits = false;
      while (pair.b->read_cq(&entry, 1, &error_waits) == 1) {
      }
      while (try_completion(*pair.a)) {
      }
      Access access = write_of(pair.dest, &word, 8, 0, pair.key());
      access.flags = flag::kRemoteCqData;
      access.imm = 99;
      BOOST_TEST(pair.run(access).error == 0);
      pair.until([&] { return pair.b->read_cq(&entry, 1, &error_waits) == 1; }, "the entry");
      BOOST_TEST(entry.data == 99U);
    }
  }
}

/// Under FI_RM_DISABLED the queue overruns: the entries in it can be read, no memory is allocated for more, and no
/// further entries follow.
BOOST_AUTO_TEST_CASE(test_queue_without_resource_management_overruns) {
  for (const Path path : {Path::direct, Path::strict}) {
    PairConfig config = pair_of(path, true);
    config.b.cq_capacity = 8;
    config.b.cq_overruns = true;
    Pair pair(config);
    uint64_t word = 5;
    for (uint64_t i = 0; i < 100; ++i) {
      Access access = write_of(pair.dest, &word, 8, 0, pair.key());
      access.flags = flag::kRemoteCqData;
      access.imm = i;
      BOOST_REQUIRE(pair.run(access).error == 0);
    }
    pair.until([&] { return pair.b->cq->overrun.load(); }, "the overrun");
    BOOST_TEST(pair.b->unread() == 8U);
    CqEntry entry{};
    bool error_waits = false;
    for (uint64_t i = 0; i < 8; ++i) {
      BOOST_TEST(pair.b->read_cq(&entry, 1, &error_waits) == 1U);
      BOOST_TEST(entry.data == i);
    }
    BOOST_TEST(pair.b->read_cq(&entry, 1, &error_waits) == 0U);
    const nic::DomainLock guard(pair.b->domain.get());
    BOOST_TEST(!pair.b->cq->has_room());
  }
}

/// The NIC hangs up on a peer that goes on to send data although the queue has no room.
BOOST_AUTO_TEST_CASE(test_peer_that_floods_a_full_queue_is_hung_up_on) {
  PairConfig config = pair_of(Path::direct, true);
  config.b.cq_capacity = 8;
  Pair pair(config);
  const uint64_t word = 7;
  BOOST_REQUIRE(pair.write(&word, 8, 0).error == 0);
  const auto peer = peer_of(*pair.a);
  for (int i = 0; i < 200'000 && pair.b->nic().statistics().peers != 0; ++i) {
    wire::Frame f = frame_to(pair, wire::FrameKind::notice, 8);
    f.flags |= wire::kFrameHasData;
    (void)peer->link()->submit(*peer, f, {});
    if (i % 64 == 0) pair.b->nic().progress();
  }
  BOOST_TEST(pair.b->nic().statistics().peers == 0U);
  BOOST_TEST(pair.b->unread() <= 8U + wire::kLateDataMax + 1);
}

/// Operations that report only failures find the queue full of failures: the call is refused, and nothing is kept.
BOOST_AUTO_TEST_CASE(test_full_queue_refuses_operations_that_could_fail) {
  for (const Path path : kPaths) {
    BOOST_TEST_CONTEXT(path) {
      PairConfig config = pair_of(path, true);
      config.a.cq_capacity = 4;
      config.a.ep.tx_size = 16;
      Pair pair(config);
      const uint64_t word = 7;
      BOOST_REQUIRE(pair.write(&word, 8, 0).error == 0);
      Access access = write_of(pair.dest, &word, 8, 0, pair.key() + 1);
      access.inject = true;
      bool refused = false;
      for (int i = 0; i < 1000; ++i) {
        const Refusal r = post(*pair.a->ep, access).refusal;
        BOOST_REQUIRE((r == Refusal::none || r == Refusal::cq_full || r == Refusal::tx_full));
        refused = refused || r == Refusal::cq_full;
        pair.poll();
      }
      BOOST_TEST(refused);
      BOOST_TEST(pair.a->unread() <= 4U + 16U);
      pair.until([&] { return pair.a->ep->outstanding() == 0; }, "the last failure");
      int failures = 0;
      while (const auto c = try_completion(*pair.a)) {
        BOOST_TEST(c->error == fi_err::kEKEYREJECTED);
        ++failures;
      }
      BOOST_TEST(failures >= 4);
      BOOST_TEST(post(*pair.a->ep, access).refusal == Refusal::none);
    }
  }
}

/// A peer that asks for endpoints without end and reads no answer is dropped before many answers wait for it.
BOOST_AUTO_TEST_CASE(test_tcp_peer_that_asks_and_never_reads_is_dropped) {
  Pair pair(pair_of(Path::tcp, true));
  const uint64_t word = 7;
  BOOST_REQUIRE(pair.write(&word, 8, 0).error == 0);
  const auto peer = std::dynamic_pointer_cast<link::TcpPeer>(peer_of(*pair.a));
  BOOST_REQUIRE(peer != nullptr);
  const wire::ResolveBody ask{1, pair.b->ep->address(), 0, 0, 0};
  const auto lost = [&] { return pair.b->host->tcp().statistics().lost; };
  for (int i = 0; i < 4'000'000 && lost() == 0 && peer->broken() == Status::ok; ++i) {
    peer->send_control(wire::PacketType::resolve, ask);
    if (i % 64 == 0) pair.b->nic().progress();
  }
  BOOST_TEST(lost() == 1U);
  const auto log = pair.b->host->tcp().log();
  BOOST_REQUIRE(!log.empty());
  BOOST_TEST(log.back().find("does not read the answers") != std::string::npos, log.back());
}

/// More requests for endpoints of one host than may be unanswered: the rest waits.
BOOST_AUTO_TEST_CASE(test_tcp_asks_for_many_endpoints_wait_their_turn) {
  PairConfig config = pair_of(Path::tcp, true);
  config.a.ep.tx_size = config.a.cq_capacity = 4096;
  Pair pair(config);
  const uint64_t word = 7;
  BOOST_REQUIRE(pair.write(&word, 8, 0).error == 0);
  wire::EpAddress address = *pair.a->av->lookup(pair.dest);
  constexpr uint32_t kMany = 3 * wire::kTcpAsksMax;
  for (uint32_t i = 0; i < kMany; ++i) {
    address.pid = 1000 + i;
    const uint64_t dest = pair.a->av->insert(address);
    BOOST_REQUIRE(post(*pair.a->ep, write_of(dest, &word, 8, 0, pair.key())).refusal == Refusal::none);
  }
  for (uint32_t i = 0; i < kMany; ++i) BOOST_REQUIRE(pair.wait().error == fi_err::kECONNREFUSED);
  BOOST_TEST(pair.b->host->tcp().statistics().lost == 0U);
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);
}

/// Connection requests that the application does not read: a backlog of them is kept, the rest is refused.
BOOST_AUTO_TEST_CASE(test_requests_beyond_a_listeners_backlog_are_refused) {
  struct Quiet final : nic::Notifier {
    void notify() noexcept override {}
  };
  Pair pair(pair_of(Path::strict, true));
  const auto listener = std::make_shared<nic::CmQueue>(std::make_shared<Quiet>());
  const auto caller = std::make_shared<nic::CmQueue>(std::make_shared<Quiet>());
  pair.b->ep->cm().bind(listener, 1, true);
  pair.a->ep->cm().bind(caller, 2, false);
  constexpr uint32_t kMore = 100;
  for (uint32_t i = 0; i < nic::kBacklogMax + kMore; ++i) {
    BOOST_REQUIRE(pair.a->ep->cm().send(pair.b->ep->address(), nic::CmKind::request, i, {}).refusal == Refusal::none);
    pair.poll();
  }
  uint32_t delivered = 0, refused = 0;
  const auto told = [&] {
    while (const auto event = caller->pop()) {
      if (event->kind == nic::CmKind::delivered) ++delivered;
      if (event->kind == nic::CmKind::failed) {
        ++refused;
        BOOST_TEST(fi_errno(event->status) == fi_err::kECONNREFUSED);
      }
    }
    return delivered + refused == nic::kBacklogMax + kMore;
  };
  pair.until(told, "all answers");
  BOOST_TEST(delivered == nic::kBacklogMax);
  BOOST_TEST(refused == kMore);
  BOOST_TEST(listener->unread() == nic::kBacklogMax);
  // The messages to a connected endpoint are bounded too, by a limit of their own.
  for (uint32_t i = 0; i < 100; ++i) {
    BOOST_REQUIRE(pair.b->ep->cm().send(pair.a->ep->address(), nic::CmKind::shutdown, i, {}).refusal == Refusal::none);
    pair.poll();
  }
  pair.until([&] { return pair.b->ep->outstanding() == 0; }, "the answers to what was said");
  BOOST_TEST(caller->unread() == nic::kUnreadFromPeerMax);
  while (listener->unread() >= nic::kBacklogMax) (void)listener->pop();
  BOOST_REQUIRE(pair.a->ep->cm().send(pair.b->ep->address(), nic::CmKind::request, 1, {}).refusal == Refusal::none);
  std::optional<nic::CmEvent> answer;
  pair.until(
      [&] {
        answer = caller->pop();
        return answer && answer->kind >= nic::CmKind::delivered;
      },
      "the answer to a request that has room now");
  BOOST_TEST(static_cast<int>(answer->kind) == static_cast<int>(nic::CmKind::delivered));
}

BOOST_AUTO_TEST_CASE(test_counter_stops_at_its_largest_value) {
  nic::Counter counter;
  counter.add(~uint64_t{0} - 2);
  counter.add(1);
  BOOST_TEST(counter.value() == ~uint64_t{0} - 1);
  counter.add(~uint64_t{0});
  BOOST_TEST(counter.value() == ~uint64_t{0});
  counter.add_errors(~uint64_t{0});
  counter.add_errors(7);
  BOOST_TEST(counter.errors() == ~uint64_t{0});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
