// tests/fuzz/fuzz_wire.cpp: every parser of bytes that come from a peer. Everything that a parser accepts is in range,
// and
// is unchanged after it was emitted and parsed again.
#include "target.hpp"
#include "wire/brief.hpp"
#include "wire/hello.hpp"
#include "wire/tcp.hpp"

using namespace weft;
using fuzz::must;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz::run(data, size, [&](fuzz::Input& in) {
    const uint32_t which = in.below(5);
    const std::span<const std::byte> bytes = in.bytes(size);
    switch (which) {
      case 0:
        if (const auto b = wire::parse_brief(bytes)) {
          must(b->payload.size() <= wire::kInlinePayloadMax, "a brief's payload is too long");
          must(b->payload.data() + b->payload.size() == bytes.data() + bytes.size(), "a brief's payload is elsewhere");
        }
        if (const auto f = wire::parse(bytes)) {
          must((f->flags & ~wire::flags_mask(f->kind)) == 0 && f->family <= wire::kFrameFamilyMax, "a frame's flags");
          must(f->where != wire::PayloadWhere::in_frame || sizeof(wire::Frame) + f->payload_length <= bytes.size(),
               "a frame's payload lies behind it");
          must(f->where != wire::PayloadWhere::staged || f->payload_length <= wire::kStagedPayloadMax,
               "a staged payload is too long");
          must(f->where != wire::PayloadWhere::none || f->payload_length == 0, "payload that is nowhere");
          std::array<std::byte, sizeof(wire::Frame)> out;
          wire::emit(*f, out);
          must(std::memcmp(out.data(), bytes.data(), out.size()) == 0, "a frame changed on its way");
        }
        break;
      case 1:
        if (const auto h = wire::parse_hello(bytes)) {
          const auto type = static_cast<uint8_t>(h->type);
          must(h->magic == wire::kHelloMagic && type >= 1 && type <= static_cast<uint8_t>(wire::HelloType::goodbye),
               "a hello's head");
        }
        break;
      case 2:
        if (const auto g = wire::parse_greeting(bytes)) {
          must(g->reserved == 0 && (g->listen.family == 0 || g->listen.family == 4 || g->listen.family == 6),
               "a greeting's fields");
          std::array<std::byte, sizeof(wire::Greeting)> out;
          wire::emit_greeting(*g, out);
          must(wire::parse_greeting(out).has_value(), "a greeting is refused the second time");
        }
        break;
      case 3:
        if (const auto p = wire::parse_prefix(bytes)) {
          const size_t body = wire::body_bytes(p->type);
          must(p->length >= body && p->length - body <= wire::kTcpPayloadMax, "a packet's length");
        }
        break;
      default: {
        const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        try {
          const wire::HostAddress host = link::parse_host(text, 7);
          must(host.family == 4 || host.family == 6, "a host without a family");
        } catch (const Error&) {  // not an address: the error is reported to the caller
        }
      }
    }
  });
}
