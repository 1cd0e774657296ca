// tests/cpp/test_wire.cpp: frames, hellos and keys against literal bytes; the parsers refuse what no correct peer
// sends.
#include <boost/test/unit_test.hpp>
#include <random>
#include <vector>

#include "wire/brief.hpp"
#include "wire/call.hpp"
#include "wire/frame.hpp"
#include "wire/hello.hpp"
#include "wire/key.hpp"

namespace {

using namespace weft;
using namespace weft::wire;

Frame example_frame() {
  Frame f;
  f.kind = FrameKind::write;
  f.where = PayloadWhere::in_frame;
  f.flags = kFrameHasData | kFrameLast;
  f.family = 2;
  f.datatype = 0x03;
  f.atomic_op = 0x04;
  f.traffic = 0x05;
  f.status = 0x0a090807;
  f.payload_length = 3;
  f.op_id = 0x1817161514131211;
  f.access.key = 0x2827262524232221;
  f.access.addr = 0x3837363534333231;
  f.access.length = 0x4847464544434241;
  f.access.frag_offset = 0x5857565554535251;
  f.access.data = 0x6867666564636261;
  f.ep_index = 0x74737271;
  f.ep_generation = 0x84838281;
  f.source = {0x94939291, 0xa4a3a2a1, 0xb2b1, 0};
  f.staged_chunk = 0xc4c3c2c1;
  return f;
}

constexpr unsigned char kFrameBytes[88] = {
    0x01, 0x01, 0x03, 0x02, 0x03, 0x04, 0x05, 0x00, 0x07, 0x08, 0x09, 0x0a, 0x03, 0x00, 0x00, 0x00,  // kind .. length
    0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x71, 0x72, 0x73, 0x74, 0x81, 0x82, 0x83, 0x84,  // op_id, endpoint
    0x91, 0x92, 0x93, 0x94, 0xa1, 0xa2, 0xa3, 0xa4, 0xb1, 0xb2, 0x00, 0x00, 0xc1, 0xc2, 0xc3, 0xc4,  // source, chunk
    0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,  // key, addr
    0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58,  // length, offset
    0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68};                                                 // data

// The body of a message, behind the same head.
constexpr unsigned char kMessageBytes[40] = {
    0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,  // tag, data
    0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58,  // length, key
    0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68};                                                 // sequence, sender

std::vector<std::byte> bytes_of(const Frame& f, size_t payload) {
  std::vector<std::byte> out(sizeof(Frame) + payload);
  emit(f, out);
  return out;
}

BOOST_AUTO_TEST_SUITE(wire_formats)

BOOST_AUTO_TEST_CASE(test_call_has_its_bytes_and_lies_are_refused) {
  constexpr unsigned char kBytes[] = {0x0a, 0x00, 0x05, 0x00, 0x11, 0x12, 0x13, 0x14,
                                      0x21, 0x22, 0x23, 0x24, 0x03, 0x00, 0x00, 0x00,  // op .. in_bytes
                                      0x1b, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                                      0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,  // out_bytes, token
                                      0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
                                      0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58,  // id, a
                                      0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68,
                                      0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78,  // b, state
                                      0x01, 0x02, 0x03};                               // data
  const auto bytes = [&](size_t n) { return std::as_bytes(std::span(kBytes, n)); };
  CallRequest r;
  r.op = 10;
  r.flags = kCallPark | kCallCancel;
  r.pid = 0x14131211;
  r.start = 0x24232221;
  r.in_bytes = 3;
  r.out_bytes = 27;
  r.token = 0x3837363534333231;
  r.id = 0x4847464544434241;
  r.a = 0x5857565554535251;
  r.b = 0x6867666564636261;
  r.state = 0x7877767574737271;
  BOOST_TEST(std::memcmp(&r, kBytes, sizeof(r)) == 0);
  const auto found = parse_call(bytes(sizeof(kBytes)));
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST(std::memcmp(&*found, kBytes, sizeof(r)) == 0);
  BOOST_TEST(!parse_call(bytes(sizeof(kBytes) - 1)).has_value());  // shorter than it says
  BOOST_TEST(!parse_call(bytes(10)).has_value());
  const auto refused = [&](size_t at, unsigned char value) {
    std::array<unsigned char, sizeof(kBytes)> changed;
    std::memcpy(changed.data(), kBytes, sizeof(kBytes));
    changed[at] = value;
    return !parse_call(std::as_bytes(std::span(changed))).has_value();
  };
  BOOST_TEST(refused(2, 0x20));   // an unknown flag
  BOOST_TEST(refused(12, 4));     // more data than there is
  BOOST_TEST(refused(16, 0x1c));  // an answer longer than the request
  BOOST_TEST(refused(20, 1));     // reserved
  BOOST_TEST(!refused(0, 99));    // what the operation means is not a matter of form
}

BOOST_AUTO_TEST_CASE(test_brief_has_its_bytes_and_lies_are_refused) {
  constexpr unsigned char kBytes[] = {
      0x11, 0x02, 0x03, 0x0b, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,  // .. sender, tag
      0x41, 0x42, 0x43, 0x44, 0x51, 0x52, 0x53, 0x54,                     // generation, sequence
      0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x01, 0x02, 0x03};  // data, payload
  const auto bytes = [&](size_t n) { return std::as_bytes(std::span(kBytes, n)); };
  const auto all = parse_brief(bytes(sizeof(kBytes)));
  BOOST_REQUIRE(all.has_value());
  Brief b;
  b.ep_index = 0x0211;
  b.flags = kMessageTagged | kMessageHasData;
  b.rest = 11;
  b.sender = 0x24232221;
  b.tag = 0x3837363534333231;
  b.ep_generation = 0x44434241;
  b.sequence = 0x54535251;
  BOOST_TEST(std::memcmp(&b, kBytes, sizeof(b)) == 0);
  BOOST_TEST(std::memcmp(&all->head, kBytes, sizeof(b)) == 0);
  BOOST_TEST(all->data == 0x6867666564636261U);
  BOOST_TEST(all->payload.size() == 3U);
  BOOST_TEST(static_cast<int>(all->payload[2]) == 3);
  for (size_t n = 0; n < sizeof(kBytes); ++n) BOOST_TEST(!parse_brief(bytes(n)).has_value());

  const auto refuses = [](uint8_t flags, uint8_t rest, size_t there) {
    std::vector<std::byte> in(sizeof(Brief) + there);
    Brief brief;
    brief.flags = flags;
    brief.rest = rest;
    std::memcpy(in.data(), &brief, sizeof(brief));
    return !parse_brief(in).has_value();
  };
  BOOST_TEST(!refuses(kMessageTagged, 0, 0));
  BOOST_TEST(!refuses(kMessageTagged | kBriefCounted, 0, 0));
  BOOST_TEST(!refuses(0, kInlinePayloadMax, kInlinePayloadMax));
  BOOST_TEST(!refuses(kMessageHasData, kBriefRestMax, kBriefRestMax));
  BOOST_TEST(refuses(0, kInlinePayloadMax + 1, kInlinePayloadMax + 1));
  BOOST_TEST(refuses(0, 8, 9));
  BOOST_TEST(refuses(0, 9, 8));
  BOOST_TEST(refuses(kMessageHasData, 7, 7));
  for (const uint8_t flag :
       {kMessageRendezvous, kMessageCredited, kMessageFirst, kMessageUnordered, kMessageWantsMatch}) {
    BOOST_TEST(refuses(flag, 0, 0));
  }
}

BOOST_AUTO_TEST_CASE(test_frame_emit_is_these_bytes) {
  std::byte out[sizeof(Frame)];
  emit(example_frame(), out);
  BOOST_TEST(std::memcmp(out, kFrameBytes, sizeof(out)) == 0);
}

BOOST_AUTO_TEST_CASE(test_frame_of_a_message_is_these_bytes) {
  Frame f = example_frame();
  f.kind = FrameKind::message;
  f.message = {.tag = 0x2827262524232221,
               .data = 0x3837363534333231,
               .length = 0x4847464544434241,
               .key = 0x5857565554535251,
               .sequence = 0x64636261,
               .sender = 0x68676665};
  std::byte out[sizeof(Frame)];
  emit(f, out);
  BOOST_TEST(std::memcmp(out + 1, kFrameBytes + 1, 47) == 0);
  BOOST_TEST(std::memcmp(out + 48, kMessageBytes, sizeof(kMessageBytes)) == 0);
}

BOOST_AUTO_TEST_CASE(test_reduce_frame_with_a_field_out_of_range_is_refused) {
  Frame good;
  good.kind = FrameKind::reduce;
  good.where = PayloadWhere::none;
  good.reduce = {};
  good.reduce.what = kReduceWhatMax;
  good.reduce.tier = 1;
  const auto parses = [](const Frame& f) {
    std::byte bytes[sizeof(Frame)];
    emit(f, bytes);
    return parse(bytes).has_value();
  };
  BOOST_TEST(parses(good));
  for (auto break_it : {+[](Frame& f) { f.reduce.what = 0; }, +[](Frame& f) { f.reduce.what = kReduceWhatMax + 1; },
                        +[](Frame& f) { f.reduce.tier = 2; }, +[](Frame& f) { f.reduce.reserved = 1; }}) {
    Frame f = good;
    break_it(f);
    BOOST_TEST(!parses(f));
  }
}

BOOST_AUTO_TEST_CASE(test_frame_parse_is_the_inverse_of_emit) {
  std::vector<std::byte> in(91);
  std::memcpy(in.data(), kFrameBytes, sizeof(kFrameBytes));
  const auto f = parse(in);
  BOOST_REQUIRE(f.has_value());
  std::byte again[sizeof(Frame)];
  emit(*f, again);
  BOOST_TEST(std::memcmp(again, kFrameBytes, sizeof(again)) == 0);
  BOOST_TEST(f->access.addr == 0x3837363534333231u);
  BOOST_TEST(f->source.vni == 0xb2b1);
}

BOOST_AUTO_TEST_CASE(test_frame_shorter_than_its_head_is_refused) {
  const auto whole = bytes_of(example_frame(), 3);
  for (size_t n = 0; n < sizeof(Frame); ++n) BOOST_TEST(!parse(std::span(whole).first(n)).has_value(), n);
}

BOOST_AUTO_TEST_CASE(test_frame_fields_out_of_range_are_refused) {
  const auto refused = [](auto&& change, size_t payload = 3) {
    Frame f = example_frame();
    change(f);
    return !parse(bytes_of(f, payload)).has_value();
  };
  BOOST_TEST(!refused([](Frame&) {}));
  for (int kind : {0, 14, 16, 255}) BOOST_TEST(refused([&](Frame& f) { f.kind = static_cast<FrameKind>(kind); }), kind);
  for (int where : {3, 4, 255})
    BOOST_TEST(refused([&](Frame& f) { f.where = static_cast<PayloadWhere>(where); }), where);
  for (int bit : {32, 64}) BOOST_TEST(!refused([&](Frame& f) { f.flags = static_cast<uint8_t>(f.flags | bit); }), bit);
  BOOST_TEST(refused([&](Frame& f) { f.flags = static_cast<uint8_t>(f.flags | 128); }));
  for (const uint64_t length : {kStagedPayloadMax, kStagedPayloadMax + 1}) {
    BOOST_TEST(refused([&](Frame& f) {
                 f.kind = FrameKind::message;
                 f.flags = kMessageRendezvous | kMessageWhole;
                 f.message.length = length;
               }) == (length == kStagedPayloadMax));
  }
  for (int family : {3, 4, 255})
    BOOST_TEST(refused([&](Frame& f) { f.family = static_cast<uint8_t>(family); }), family);
  BOOST_TEST(refused([](Frame& f) { f.source.reserved = 1; }));
  BOOST_TEST(refused([](Frame& f) { f.reserved = 1; }));
  BOOST_TEST(refused([](Frame& f) { f.payload_length = 4; }));  // more bytes than the frame states
  BOOST_TEST(!refused([](Frame& f) { f.payload_length = kInlinePayloadMax; }, kInlinePayloadMax));
  BOOST_TEST(refused([](Frame& f) { f.payload_length = kInlinePayloadMax + 1; }, kInlinePayloadMax + 1));
  BOOST_TEST(refused([](Frame& f) { f.payload_length = ~0u; }));
  BOOST_TEST(refused([](Frame& f) { f.where = PayloadWhere::none; }));  // no payload, and yet a length
  const auto staged = [](uint32_t length) {
    return [=](Frame& f) {
      f.where = PayloadWhere::staged;
      f.payload_length = length;
    };
  };
  BOOST_TEST(!refused(staged(kStagedPayloadMax)));
  BOOST_TEST(refused(staged(kStagedPayloadMax + 1)));
}

BOOST_AUTO_TEST_CASE(test_frame_random_bytes_are_refused_or_in_range) {
  std::mt19937_64 random(20261121);
  std::vector<std::byte> bytes(240);
  uint64_t accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    const size_t n = random() % (bytes.size() + 1);
    for (size_t i = 0; i < n; i += 8) {
      const uint64_t word = random();
      std::memcpy(&bytes[i], &word, std::min<size_t>(8, n - i));
    }
    if (n >= sizeof(Frame) && random() % 2 != 0) {  // half of them almost valid
      bytes[0] = static_cast<std::byte>(random() % 16);
      bytes[1] = static_cast<std::byte>(random() % 4);
      bytes[2] = static_cast<std::byte>(random() % 16);
      bytes[3] = static_cast<std::byte>(random() % 4);
      bytes[7] = bytes[42] = bytes[43] = std::byte{0};
      const auto length = static_cast<uint32_t>(random() % 200);
      std::memcpy(&bytes[12], &length, 4);
    }
    const auto f = parse(std::span(bytes).first(n));
    if (!f) continue;
    ++accepted;
    const bool fits = f->where == PayloadWhere::none     ? f->payload_length == 0
                      : f->where == PayloadWhere::staged ? f->payload_length <= kStagedPayloadMax
                                                         : sizeof(Frame) + f->payload_length <= n;
    BOOST_REQUIRE(fits);
  }
  BOOST_TEST(accepted > 1000U);
}

BOOST_AUTO_TEST_CASE(test_provider_key_is_slot_and_generation) {
  BOOST_TEST((ProviderKey{5, 3}.emit()) == 0xc00005u);
  BOOST_TEST(ProviderKey::parse(0xc00005).slot == 5U);
  BOOST_TEST(ProviderKey::parse(0xc00005).generation == 3U);
  BOOST_TEST((ProviderKey{kKeySlotMax, (uint64_t{1} << 42) - 1}.emit()) == ~uint64_t{0});
  std::mt19937_64 random(7);
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t key = random();
    BOOST_REQUIRE(ProviderKey::parse(key).emit() == key);
  }
}

Hello example_hello() {
  Hello h;
  h.type = HelloType::welcome;
  h.flags = kHelloStrict;
  for (size_t i = 0; i < 16; ++i) h.uuid[i] = static_cast<uint8_t>(0x10 + i);
  h.address = {0x04030201, 0x08070605, 0x0a09, 0};
  h.producer_id = 0x14131211;
  h.ep_index = 0x24232221;
  h.ep_generation = 0x34333231;
  h.reason = RejectReason::user;
  h.ring_slot_count = 0x44434241;
  h.staging_bytes = 0x5857565554535251;
  h.table_bytes = 0x6867666564636261;
  h.mr_count_max = 0x74737271;
  h.segment_count = 0x84838281;
  h.segment = 0x94939291;
  h.segment_bytes = 0xa8a7a6a5a4a3a2a1;
  h.probe_address = 0xb8b7b6b5b4b3b2b1;
  for (size_t i = 0; i < 16; ++i) h.nonce[i] = static_cast<uint8_t>(0xe0 + i);
  return h;
}

constexpr unsigned char kHelloBytes[120] = {
    'W',  'E',  'F',  'T',  0x0a, 0x00, 0x02, 0x01,                                                  // magic .. flags
    0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f,  // uuid
    0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x00, 0x00, 0x11, 0x12, 0x13, 0x14,  // address, id
    0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34, 0x02, 0x00, 0x00, 0x00, 0x41, 0x42, 0x43, 0x44,  // ep .. slots
    0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68,  // staging, table
    0x71, 0x72, 0x73, 0x74, 0x81, 0x82, 0x83, 0x84, 0x91, 0x92, 0x93, 0x94, 0x00, 0x00, 0x00, 0x00,  // counts
    0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8,  // segment, probe
    0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xeb, 0xec, 0xed, 0xee, 0xef};

BOOST_AUTO_TEST_CASE(test_hello_is_these_bytes) {
  const Hello h = example_hello();
  BOOST_TEST(std::memcmp(&h, kHelloBytes, sizeof(h)) == 0);
  const auto parsed = parse_hello(std::as_bytes(std::span(kHelloBytes)));
  BOOST_REQUIRE(parsed.has_value());
  BOOST_TEST(std::memcmp(&*parsed, &h, sizeof(h)) == 0);
}

BOOST_AUTO_TEST_CASE(test_hello_of_another_kind_is_refused) {
  const auto refused = [](auto&& change) {
    Hello h = example_hello();
    change(h);
    return !parse_hello(std::as_bytes(std::span(&h, 1))).has_value();
  };
  BOOST_TEST(!refused([](Hello&) {}));
  BOOST_TEST(refused([](Hello& h) { h.magic ^= 1; }));
  for (int type : {0, 7, 255}) BOOST_TEST(refused([&](Hello& h) { h.type = static_cast<HelloType>(type); }), type);
  const Hello h = example_hello();
  for (size_t n = 0; n < sizeof(h); ++n) BOOST_TEST(!parse_hello(std::as_bytes(std::span(&h, 1)).first(n)).has_value());
}

BOOST_AUTO_TEST_CASE(test_hello_random_bytes_are_refused_or_in_range) {
  std::mt19937_64 random(4);
  std::byte bytes[160];
  for (int round = 0; round < 100'000; ++round) {
    for (size_t i = 0; i < sizeof(bytes); i += 8) {
      const uint64_t word = random();
      std::memcpy(&bytes[i], &word, 8);
    }
    if (round % 2 == 0) std::memcpy(bytes, "WEFT", 4);
    const auto h = parse_hello(std::span(bytes).first(random() % (sizeof(bytes) + 1)));
    if (h) BOOST_REQUIRE(static_cast<int>(h->type) <= 6);
  }
}

BOOST_AUTO_TEST_CASE(test_address_text_and_order) {
  const EpAddress a{1, 2, 3, 0};
  BOOST_TEST(a.text() == "weft://1/3/2");
  BOOST_TEST((a < EpAddress{1, 3, 0, 0}));
  BOOST_TEST(EpAddressHash{}(a) == EpAddressHash{}(EpAddress{1, 2, 3, 0}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
