// tests/cpp/test_nic_lengths.cpp: payload goes only to its place, whatever offset and length its frame states.
#include <limits>

#include "fabric.hpp"

namespace {

using namespace weft;
using namespace weft::test;

constexpr size_t kHalf = 4096, kBytes = 2 * kHalf;

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
                              {0, kBytes + 1},
                              {std::numeric_limits<uint64_t>::max(), 1},
                              {std::numeric_limits<uint64_t>::max() - kHalf, kBytes}};

const std::vector<std::byte> kPayload(2 * kBytes, std::byte{0xaa});

void bring(nic::Nic& nic, const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, size_t bytes) {
  nic.between_frames([&] { nic.on_frame(peer, frame, std::span(kPayload).first(bytes)); });
}

BOOST_AUTO_TEST_SUITE(nic_lengths)

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
  f.access.key = pair.key();
  f.access.length = kBytes;  // of a longer region
  f.access.frag_offset = kHalf;
  f.payload_length = kHalf;
  bring(pair.b->nic(), peer, f, kHalf);
  BOOST_TEST((pair.memory[kHalf] == std::byte{0xaa} && pair.memory[kBytes - 1] == std::byte{0xaa}));
  const std::vector<std::byte> before(pair.memory, pair.memory + 3 * kBytes);
  for (const Range& range : kOutside) {
    f.access.frag_offset = range.at;
    f.payload_length = range.length;
    bring(pair.b->nic(), peer, f, range.length);
    BOOST_TEST((std::equal(before.begin(), before.end(), pair.memory)));
  }
}

BOOST_AUTO_TEST_CASE(test_answer_lands_only_within_the_buffer_of_its_read) {
  constexpr Range kInside{kHalf, kHalf};
  const auto answered = [](const Range& range, bool fits) {
    Pair pair(pair_of(Path::strict, true));
    const std::byte byte{1};
    BOOST_REQUIRE(pair.write(&byte, 1, 0).error == 0);
    std::vector<std::byte> buffer(3 * kBytes);
    const PostResult posted = post(*pair.a->ep, read_of(pair.dest, buffer.data() + kBytes, kBytes, 0, pair.key()));
    BOOST_REQUIRE(posted.op_id != 0);
    wire::Frame f;
    f.kind = wire::FrameKind::answer;
    f.op_id = posted.op_id;
    f.access.data = range.at;
    f.payload_length = range.length;
    bring(pair.a->nic(), other(*pair.a), f, range.length);
    const auto touched = std::ranges::count(buffer, std::byte{0xaa});
    BOOST_TEST(touched == (fits ? static_cast<std::ptrdiff_t>(range.length) : 0));
    BOOST_TEST(pair.wait().error == (fits ? 0 : fi_err::kEPROTO));
    if (fits) BOOST_TEST((buffer[kBytes + kHalf] == std::byte{0xaa} && buffer[2 * kBytes] == std::byte{0}));
  };
  answered(kInside, true);
  for (const Range& range : kOutside) answered(range, false);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
