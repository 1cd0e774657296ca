// tests/cpp/test_tcp.cpp: how the tcp link treats packets that are damaged or made up.
//
// WEFT_SEED=n replays a run; WEFT_FUZZ_FRAMES=n is the number of made-up frames to send (make fuzz: 1,000,000).
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
  attack("repeated, or records are missing", [&](Rogue& r) {  // in the wrong order
    const auto first = r.packet(r.write(1000, 0), data), second = r.packet(r.write(1000, 0), data);
    r.send(second);
    r.send(first);
  });
  attack("not the one that was due", [&](Rogue& r) {  // a record that the victim itself sent
    r.keys.send = r.keys.receive;
    r.send(r.packet(r.write(1000, 0), data));
  });
  attack("changed on its way", [&](Rogue& r) {
    auto packet = r.packet(r.write(1000, 0), data);
    packet[8 + 32] ^= std::byte{1};  // the address in the region
    r.send(packet);
  });
  attack("changed on its way", [&](Rogue& r) {  // shorter than before
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
  attack("outside its range", [&](Rogue& r) {  // a cost that is not the request's own
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
  attack("another VNI", [&](Rogue& r) {  // claims a source on this host
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
  // Reads whose answers the Rogue never takes: the kernel's buffers fill, and then the owner hangs up.
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

// Frames of every kind with random fields, sealed by a peer that knows the secret; some of them are damaged.
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
    f.datatype = static_cast<uint8_t>(draw(20));
    f.atomic_op = static_cast<uint8_t>(draw(24));
    if (draw(8) == 0) f.access.key = draw(64);
    // Around the region's edges, and far away.
    f.access.addr = draw(4) == 0 ? random() : draw(2) == 0 ? draw(64) : Victim::kBytes - draw(64);
    f.access.length = draw(4) == 0 ? random() : draw(Victim::kBytes + 64);
    f.access.frag_offset = draw(4) == 0 ? random() : draw(128);
    f.access.data = random();
    if (draw(16) == 0) f.ep_index = static_cast<uint32_t>(random());
    if (draw(16) == 0) f.ep_generation = static_cast<uint32_t>(random());
    f.status = f.kind == wire::FrameKind::read ? static_cast<int32_t>(draw(4096)) : static_cast<int32_t>(random());
    size_t n = f.kind == wire::FrameKind::read ? 0 : draw(200);
    if (draw(64) == 0 && n != 0) n = draw(wire::kTcpPayloadMax);
    if (f.kind == wire::FrameKind::atomic && draw(2) == 0) f.access.length = n;
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
        rogue->keys.send.skip_to(rogue->keys.send.number() - 1);  // the next record repeats this record's number
        break;
      case 3: {
        const auto noise = pattern(1 + draw(300), random());
        packet.insert(packet.begin() + static_cast<std::ptrdiff_t>(draw(packet.size())), noise.begin(), noise.end());
        break;
      }
      case 4: {  // a packet of another kind, complete: all bytes of its body are random
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
    // Both sides write and read all of the other's memory, in pieces of odd sizes that are under way together.
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
    // Without msg_order a read has no order with either side's writes to the same place, so check the memory itself.
    BOOST_TEST((pair.look(0, config.bytes) == there));
    BOOST_TEST(std::memcmp(mine, here.data(), config.bytes) == 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()
