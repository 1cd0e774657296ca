// tests/cpp/messaging.hpp: a pair of endpoints for messages, with short forms of sends and receives.
#pragma once

#include <string>

#include "every_path.hpp"

namespace weft::test {

inline PairConfig message_pair(Path path, bool manual = false) {
  PairConfig c;
  c.path = path;
  c.manual = manual;
  for (SideConfig* side : {&c.a, &c.b}) side->ep.caps |= flag::kMsg | flag::kTagged | flag::kSend | flag::kRecv;
  return c;
}

template <typename Body>
void on_every_message_path(Body&& body) {
  for (const Path path : kPaths) {
    for (const bool manual : {false, true}) {
      BOOST_TEST_CONTEXT("path " << path << (manual ? ", manual" : ", engine")) {
        body(message_pair(path, manual));
      }
    }
  }
}

struct Send {
  uint64_t tag = 0, context = 1, flags = 0, data = 0;
  bool tagged = true, inject = false;
};
inline PostResult send(nic::Endpoint& ep, uint64_t dest, std::span<const iovec> from, const Send& how = {}) {
  nic::SendArgs args;
  args.dest = dest;
  args.local = from;
  args.tag = how.tag;
  args.data = how.data;
  args.flags = how.flags;
  args.context = how.context;
  args.tagged = how.tagged;
  args.inject_call = how.inject;
  return ep.post_send(args);
}
inline PostResult send(nic::Endpoint& ep, uint64_t dest, const void* from, size_t n, const Send& how = {}) {
  const iovec v{const_cast<void*>(from), n};
  return send(ep, dest, std::span(&v, 1), how);
}

struct Recv {
  uint64_t tag = 0, ignore = 0, source = ~uint64_t{0}, context = 2, flags = 0;
  bool tagged = true;
  std::vector<uint64_t> cookies = {};
};
inline PostResult receive(nic::Endpoint& ep, std::span<const iovec> to, const Recv& how = {}) {
  nic::ReceiveArgs args;
  args.local = to;
  args.tag = how.tag;
  args.ignore = how.ignore;
  args.source = how.source;
  args.flags = how.flags;
  args.context = how.context;
  args.tagged = how.tagged;
  args.cookies = how.cookies;
  return ep.post_receive(args);
}
inline PostResult receive(nic::Endpoint& ep, void* to, size_t n, const Recv& how = {}) {
  const iovec v{to, n};
  return receive(ep, std::span(&v, 1), how);
}

inline std::vector<std::byte> text_of(size_t n, unsigned seed = 1) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + seed);
  return bytes;
}

}  // namespace weft::test
