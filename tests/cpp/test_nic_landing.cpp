// tests/cpp/test_nic_landing.cpp: payload that goes from a socket straight to its place goes nowhere else, whatever the
// frame says of where and how long.
#include <limits>

#include "fabric.hpp"

namespace {

using namespace weft;
using namespace weft::test;

constexpr size_t kHalf = 4096, kBytes = 2 * kHalf;

/// A socket that has as much as is asked for, all of one byte.
class Socket final : public link::PayloadSource {
 public:
  size_t read(std::span<const iovec> into) override {
    for (const iovec& v : into) {
      std::memset(v.iov_base, 0xaa, v.iov_len);
      taken += v.iov_len;
    }
    return taken;
  }
  [[nodiscard]] bool fault() const noexcept override { return false; }
  size_t taken = 0;
};

std::shared_ptr<link::Peer> other(const Side& side) {
  for (link::Link* link : side.nic().links()) {
    for (const auto& peer : link->peers()) {
      if (!peer->same_process) return peer;
    }
  }
  return nullptr;
}

struct Range {
  uint64_t at;
  uint32_t length;
};
constexpr Range kOutside[] = {{kHalf, kHalf + 1},
                              {kBytes, 1},
                              {kBytes + 1, 0},
                              {0, kBytes + 1},
                              {std::numeric_limits<uint64_t>::max(), 1},
                              {std::numeric_limits<uint64_t>::max() - kHalf, kBytes}};

BOOST_AUTO_TEST_SUITE(nic_landing)

BOOST_AUTO_TEST_CASE(test_write_lands_only_within_the_range_that_it_names) {
  Pair pair(pair_of(Path::strict, true));
  const std::byte byte{1};
  BOOST_REQUIRE(pair.write(&byte, 1, 0).error == 0);
  const auto peer = other(*pair.b);
  wire::Frame f;
  f.kind = wire::FrameKind::write;
  f.ep_index = pair.b->ep->index();
  f.ep_generation = pair.b->nic().table().ep(f.ep_index).generation.load();
  f.source = pair.a->ep->address();
  f.key = pair.key();
  f.length = kBytes;  // of a region that is longer
  size_t got = 0;
  {
    Socket socket;
    f.frag_offset = kHalf;
    f.payload_length = kHalf;
    BOOST_TEST(pair.b->nic().land(peer, f, 0, socket, &got) == Status::ok);
    BOOST_TEST(got == kHalf);
    BOOST_TEST((pair.memory[kHalf] == std::byte{0xaa} && pair.memory[kBytes] == std::byte{0}));
  }
  for (const Range& range : kOutside) {
    Socket socket;
    f.frag_offset = range.at;
    f.payload_length = range.length;
    BOOST_TEST(pair.b->nic().land(peer, f, 0, socket, &got) == Status::protocol);
    BOOST_TEST(socket.taken == 0U);
  }
}

BOOST_AUTO_TEST_CASE(test_answer_lands_only_within_the_buffer_of_its_read) {
  Pair pair(pair_of(Path::strict, true));
  const std::byte byte{1};
  BOOST_REQUIRE(pair.write(&byte, 1, 0).error == 0);
  const auto peer = other(*pair.a);
  std::vector<std::byte> buffer(3 * kBytes);
  const PostResult posted = post(*pair.a->ep, read_of(pair.dest, buffer.data() + kBytes, kBytes, 0, pair.key()));
  BOOST_REQUIRE(posted.op_id != 0);
  wire::Frame f;
  f.kind = wire::FrameKind::answer;
  f.op_id = posted.op_id;
  size_t got = 0;
  for (const Range& range : kOutside) {
    Socket socket;
    f.imm_data = range.at;
    f.payload_length = range.length;
    BOOST_TEST(pair.a->nic().land(peer, f, 0, socket, &got) == Status::protocol);
    BOOST_TEST(socket.taken == 0U);
  }
  BOOST_TEST((std::ranges::all_of(buffer, [](std::byte b) { return b == std::byte{0}; })));
  Socket socket;
  f.imm_data = kHalf;
  f.payload_length = kHalf;
  BOOST_TEST(pair.a->nic().land(peer, f, 0, socket, &got) == Status::ok);
  BOOST_TEST(got == kHalf);
  BOOST_TEST((buffer[kBytes + kHalf] == std::byte{0xaa} && buffer[2 * kBytes] == std::byte{0}));
  BOOST_TEST(pair.wait().error == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
