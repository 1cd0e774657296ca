// tests/cpp/rx_support.hpp: a receive context, the sink of its completions, and flows of messages as senders number
// them.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <deque>
#include <vector>

#include "nic/rx.hpp"

namespace weft::test::receiving {

using namespace weft::nic;

struct Done {
  uint64_t peer, op_id, bytes;
};
struct Ready {
  uint64_t peer;
  uint32_t sender;
};

struct Sink : RxSink {
  void completed(const RxCompletion& c) noexcept override {
    completions.push_back(c);
    if (c.status == Status::ok && !ending_pull) matched.push_back(c);
  }
  void pull(const RxPull& p) noexcept override {
    pulls.push_back(p);
    matched.push_back(p.completion);
  }
  void done(uint64_t peer, uint64_t op_id, uint64_t bytes) noexcept override { dones.push_back({peer, op_id, bytes}); }
  void lost(uint64_t peer, uint64_t op_id, Status why) noexcept override {
    losses.push_back({peer, op_id, 0});
    reasons.push_back(why);
  }
  void dropped(uint64_t context, uint64_t, bool multi) noexcept override {
    (multi ? dropped_multi : dropped_one).push_back(context);
  }
  void unsettled() noexcept override { ++unsettled_calls; }
  uint64_t now_ns() noexcept override { return now; }
  bool is_full() noexcept override { return full; }
  bool store(uint32_t, uint64_t, std::span<const std::byte>) noexcept override { return false; }
  void ready(uint64_t peer, uint64_t, uint32_t sender) noexcept override { readies.push_back({peer, sender}); }

  RxCompletion next() {
    BOOST_REQUIRE(!completions.empty());
    const RxCompletion c = completions.front();
    completions.pop_front();
    return c;
  }
  std::deque<RxCompletion> completions;
  std::vector<RxCompletion> matched;  // in the order of matching
  bool ending_pull = false, full = false;
  std::vector<RxPull> pulls;
  std::vector<Done> dones, losses;
  std::vector<Status> reasons;  // of the losses
  std::vector<uint64_t> dropped_one, dropped_multi;
  int unsettled_calls = 0;
  uint64_t now = 0;
  std::vector<Ready> readies;
};

inline RxContext::Config config(uint32_t posted_max = 1000, uint32_t unexpected_max = 1000, uint32_t credits = 4) {
  RxContext::Config c;
  c.limits = {posted_max, unexpected_max};
  c.buffers.bytes = 4096;
  c.buffers.posted_min = 1;
  c.credits = credits;
  c.seed = 3;
  return c;
}

struct Rx : Sink, RxContext {
  explicit Rx(const Config& c = config()) : RxContext(c, this) {}
};

constexpr uint64_t kPeer = 11;
inline const wire::EpAddress kFrom{1, 2, 3, 0};

inline std::vector<std::byte> bytes_of(size_t n, unsigned seed = 1) {
  std::vector<std::byte> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(i * 7 + seed);
  return out;
}

// A flow of messages as a sender numbers them.
struct SendFlow {
  RxContext& rx;
  uint64_t peer = kPeer;
  wire::EpAddress source = kFrom;
  uint32_t sender = kNoSender, sequence = 0, credits = 0;
  uint64_t op = 100;

  RxMessage make(uint64_t tag, uint64_t length, uint16_t flags = rx_flag::kTagged) {
    RxMessage m;
    m.peer = peer;
    m.source = source;
    m.sender = sender;
    m.sequence = sequence;
    m.tag = tag;
    m.length = length;
    m.op_id = ++op;
    m.flags = static_cast<uint16_t>(flags | (sender == kNoSender ? rx_flag::kFirst : 0));
    return m;
  }
  RxReply pass(const RxMessage& m, std::span<const std::byte> bytes) {
    const RxReply r = rx.arrive(m, bytes);
    if (r.answer <= RxAnswer::refused) sender = r.sender;
    if (r.answer < RxAnswer::refused) ++sequence;
    credits += r.credits;
    return r;
  }
  RxReply send(uint64_t tag, size_t length = 8, uint16_t flags = rx_flag::kTagged) {
    const auto bytes = bytes_of(length, static_cast<unsigned>(tag));
    return pass(make(tag, length, flags), bytes);
  }
  RxReply send_rendezvous(uint64_t tag, size_t length, size_t eager) {
    RxMessage m = make(tag, length, rx_flag::kTagged | rx_flag::kRendezvous);
    m.key = 77;
    return pass(m, bytes_of(eager, static_cast<unsigned>(tag)));
  }
};

inline Receive receive(uint64_t tag, void* to, size_t length, uint64_t context = 1) {
  Receive r;
  r.what = {tag, 0, kAnySource, true};
  r.address = reinterpret_cast<uint64_t>(to);
  r.length = length;
  r.context = context;
  return r;
}

// Flags of a credited message.
constexpr uint16_t kQuick = rx_flag::kTagged | rx_flag::kCredited;

}  // namespace weft::test::receiving
