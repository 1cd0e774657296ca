// tests/cpp/test_call_msg.cpp: the rules of the calls of messages, one by one; and an endpoint's own rules replace the
// defaults. The tests need no peer: a refused call never reaches one.
#include "call/msg.hpp"
#include "fabric.hpp"

namespace weft::test {

using call::Local;
using call::Receive;
using call::Send;
using call::Why;

namespace {

// The fields that the tests set; the others keep their defaults.
struct SendCall {
  bool tagged = false, inject = false, message = false, data = false;
  uint64_t tag = 0, flags = 0;
  [[nodiscard]] Send send() const {
    Send s;
    s.tagged = tagged;
    s.inject = inject;
    s.message = message;
    s.data = data;
    s.tag = tag;
    s.flags = flags;
    s.dest = 0;
    return s;
  }
};
struct ReceiveCall {
  bool tagged = false, message = false, has_context = false;
  uint64_t source = call::kNoPeer, tag = 0, ignore = 0, flags = 0;
  [[nodiscard]] Receive receive() const {
    Receive r;
    r.tagged = tagged;
    r.message = message;
    r.has_context = has_context;
    r.source = source;
    r.tag = tag;
    r.ignore = ignore;
    r.flags = flags;
    return r;
  }
};

constexpr uint64_t kMessages = flag::kMsg | flag::kTagged | flag::kSend | flag::kRecv;

struct Caller {
  explicit Caller(const std::function<void(nic::EndpointConfig&)>& change = [](nic::EndpointConfig&) {})
      : side(config_with(change)) {}

  static SideConfig config_with(const std::function<void(nic::EndpointConfig&)>& change) {
    SideConfig config;
    config.ep.caps |= kMessages;
    change(config.ep);
    return config;
  }
  [[nodiscard]] nic::Endpoint& ep() const { return *side.ep; }
  [[nodiscard]] int errno_of(Refusal r) const { return ep().config().rules.errno_of(r); }
  Local local(size_t length) {
    Local l;
    l.data = bytes.data();
    l.length = length;
    return l;
  }
  Refusal send(const SendCall& asked, size_t buffers = 1, size_t each = 8) {
    const std::vector<Local> locals(buffers, local(each));
    Send s = asked.send();
    s.local = locals;
    return call::check(ep(), s, &why);
  }
  Refusal receive(const ReceiveCall& asked, size_t buffers = 1, size_t each = 8) {
    const std::vector<Local> locals(buffers, local(each));
    Receive r = asked.receive();
    r.local = locals;
    return call::check(ep(), r, &why);
  }
  std::string text() { return call::explain(ep(), "call", why); }
  std::shared_ptr<nic::MemoryRegion> region(uint64_t access) {
    return side.reg(bytes.data(), bytes.size(), next_key++, access);
  }

  Side side;
  Why why;
  std::vector<std::byte> bytes = std::vector<std::byte>(16384);
  uint64_t next_key = 100;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(message_rules)

BOOST_AUTO_TEST_CASE(a_call_without_its_capability_is_refused) {
  for (const uint64_t kind : {flag::kMsg, flag::kTagged}) {
    const bool tagged = kind == flag::kTagged;
    Caller sender([&](auto& ep) { ep.caps = kind | flag::kSend; });
    BOOST_TEST(sender.send({.tagged = tagged}) == Refusal::none);
    BOOST_TEST(sender.send({.tagged = !tagged}) == Refusal::no_capability);
    BOOST_TEST(sender.receive({.tagged = tagged}) == Refusal::no_capability);
    BOOST_TEST(contains(sender.text(), tagged ? "without TAGGED and RECV" : "without MSG and RECV"));
    Caller receiver([&](auto& ep) { ep.caps = kind | flag::kRecv; });
    BOOST_TEST(receiver.receive({.tagged = tagged}) == Refusal::none);
    BOOST_TEST(receiver.receive({.tagged = !tagged}) == Refusal::no_capability);
    BOOST_TEST(receiver.send({.tagged = tagged}) == Refusal::no_capability);
    BOOST_TEST(receiver.errno_of(Refusal::no_capability) == fi_err::kEOPNOTSUPP);
  }
}

BOOST_AUTO_TEST_CASE(flags_that_the_rules_do_not_admit_are_refused) {
  Caller c;
  for (const bool tagged : {false, true}) {
    const SendCall s{.tagged = tagged, .message = true};
    SendCall all = s, strange = s;
    all.flags = flag::kMatchComplete | flag::kRemoteCqData | flag::kInject | flag::kFence | flag::kCompletion;
    strange.flags = flag::kPeek;
    BOOST_TEST(c.send(all) == Refusal::none);
    BOOST_TEST(c.send(strange) == Refusal::bad_flags);
    BOOST_TEST(c.why.asked == flag::kPeek);
    ReceiveCall r{.tagged = tagged, .message = true};
    r.flags = flag::kCompletion | flag::kPeek;
    BOOST_TEST(c.receive(r, 0) == Refusal::none);
    r.flags = flag::kFence;
    BOOST_TEST(c.receive(r) == Refusal::bad_flags);
  }
  // Each call has rules of its own.
  Caller strict([](auto& ep) { ep.rules.flags[static_cast<size_t>(nic::FlagCall::recv)] = flag::kCompletion; });
  BOOST_TEST(strict.receive({.message = true, .flags = flag::kPeek}, 0) == Refusal::bad_flags);
  BOOST_TEST(strict.receive({.tagged = true, .message = true, .flags = flag::kPeek}, 0) == Refusal::none);
}

BOOST_AUTO_TEST_CASE(tags_have_the_bits_of_the_rules) {
  Caller c([](auto& ep) { ep.rules.messages.tag_mask = (uint64_t{1} << 48) - 1; });
  const uint64_t most = (uint64_t{1} << 48) - 1;
  BOOST_TEST(c.send({.tagged = true, .tag = most}) == Refusal::none);
  BOOST_TEST(c.send({.tagged = true, .tag = most + 1}) == Refusal::bad_tag);
  BOOST_TEST(contains(c.text(), "tag 0x1000000000000 has bits that tags here do not have (0xffffffffffff"));
  BOOST_TEST(c.receive({.tagged = true, .tag = most + 1}) == Refusal::bad_tag);
  BOOST_TEST(c.receive({.tagged = true, .ignore = most + 1}) == Refusal::bad_tag);
  BOOST_TEST(contains(c.text(), "ignore 0x1000000000000"));
  BOOST_TEST(c.receive({.tagged = true, .tag = most, .ignore = most}) == Refusal::none);
  BOOST_TEST(c.errno_of(Refusal::bad_tag) == fi_err::kEINVAL);
  Caller wide;
  BOOST_TEST(wide.send({.tagged = true, .tag = ~uint64_t{0}}) == Refusal::none);
}

BOOST_AUTO_TEST_CASE(lists_longer_than_the_rules_admit_are_refused) {
  Caller c([](auto& ep) {
    ep.rules.iov_max = 2;
    ep.rules.messages.recv_iov_max = 3;
  });
  BOOST_TEST(c.send({}, 2) == Refusal::none);
  BOOST_TEST(c.send({}, 3) == Refusal::too_many_buffers);
  BOOST_TEST(c.receive({}, 3) == Refusal::none);
  BOOST_TEST(c.receive({}, 4) == Refusal::too_many_buffers);
  BOOST_TEST(c.why.limit == 3u);
  // A buffer for several messages is one.
  BOOST_TEST(c.receive({.message = true, .flags = flag::kMultiRecv}, 1) == Refusal::none);
  BOOST_TEST(c.receive({.message = true, .flags = flag::kMultiRecv}, 2) == Refusal::too_many_buffers);
}

BOOST_AUTO_TEST_CASE(a_message_has_at_most_the_bytes_of_its_call) {
  Caller c([](auto& ep) {
    ep.max_msg_size = 4096;
    ep.inject_size = 64;
  });
  BOOST_TEST(c.send({}, 0) == Refusal::none);
  BOOST_TEST(c.send({}, 2, 2048) == Refusal::none);
  BOOST_TEST(c.send({}, 2, 2049) == Refusal::too_long);
  BOOST_TEST(c.receive({}, 1, 4097) == Refusal::too_long);
  BOOST_TEST(c.send({.inject = true}, 1, 64) == Refusal::none);
  BOOST_TEST(c.send({.inject = true}, 1, 65) == Refusal::inject_too_long);
  BOOST_TEST(contains(c.text(), "inject_size, 64: use send()"));
  BOOST_TEST(c.send({.tagged = true, .message = true, .flags = flag::kInject}, 1, 65) == Refusal::inject_too_long);
  BOOST_TEST(contains(c.text(), "use tsend()"));
  BOOST_TEST(c.errno_of(Refusal::too_long) == fi_err::kEMSGSIZE);
}

BOOST_AUTO_TEST_CASE(without_remote_data_a_message_has_none) {
  Caller c([](auto& ep) { ep.rules.messages.data = false; });
  BOOST_TEST(c.send({}) == Refusal::none);
  BOOST_TEST(c.send({.data = true}) == Refusal::no_message_data);
  BOOST_TEST(c.send({.message = true, .flags = flag::kRemoteCqData}) == Refusal::no_message_data);
  BOOST_TEST(contains(c.text(), "cq_data_size"));
}

BOOST_AUTO_TEST_CASE(a_fence_may_need_its_capability) {
  Caller c([](auto& ep) { ep.rules.fence_needs_cap = true; });
  BOOST_TEST(c.send({.message = true, .flags = flag::kFence}) == Refusal::no_fence);
  Caller fencing([](auto& ep) {
    ep.rules.fence_needs_cap = true;
    ep.caps |= flag::kFence;
  });
  BOOST_TEST(fencing.send({.message = true, .flags = flag::kFence}) == Refusal::none);
}

BOOST_AUTO_TEST_CASE(a_source_counts_only_with_directed_receives) {
  const auto source_of = [](uint64_t caps, bool tagged) {
    Caller c([&](auto& ep) { ep.caps |= caps; });
    Receive r = ReceiveCall{.tagged = tagged, .source = 7}.receive();
    BOOST_TEST(call::check(c.ep(), r, &c.why) == Refusal::none);
    return r.source;
  };
  for (const bool tagged : {false, true}) {
    BOOST_TEST(source_of(0, tagged) == call::kNoPeer);
    BOOST_TEST(source_of(nic::rx_cap::kDirectedRecv, tagged) == 7u);
    BOOST_TEST(source_of(nic::rx_cap::kTaggedDirectedRecv, tagged) == (tagged ? 7u : call::kNoPeer));
  }
}

BOOST_AUTO_TEST_CASE(multi_recv_of_tagged_receives_needs_its_capability) {
  const auto flags_of = [](uint64_t caps, bool tagged) {
    Caller c([&](auto& ep) { ep.caps |= caps; });
    Receive r = ReceiveCall{.tagged = tagged, .message = true, .flags = flag::kMultiRecv}.receive();
    BOOST_TEST(call::check(c.ep(), r, &c.why) == Refusal::none);
    return r.flags;
  };
  BOOST_TEST(flags_of(0, false) == flag::kMultiRecv);
  BOOST_TEST(flags_of(0, true) == 0u);
  BOOST_TEST(flags_of(nic::rx_cap::kTaggedMultiRecv, true) == flag::kMultiRecv);
}

BOOST_AUTO_TEST_CASE(peek_claim_and_discard_have_their_combinations) {
  Caller c;
  const auto asked = [&](uint64_t flags, bool has_context = true) {
    return c.receive({.tagged = true, .message = true, .has_context = has_context, .flags = flags}, 0);
  };
  BOOST_TEST(asked(flag::kPeek, false) == Refusal::none);
  BOOST_TEST(asked(flag::kPeek | flag::kClaim) == Refusal::none);
  BOOST_TEST(asked(flag::kClaim) == Refusal::none);
  BOOST_TEST(asked(flag::kPeek | flag::kDiscard) == Refusal::none);
  BOOST_TEST(asked(flag::kClaim | flag::kDiscard) == Refusal::none);
  BOOST_TEST(asked(flag::kDiscard) == Refusal::flags_clash);
  BOOST_TEST(contains(c.text(), "DISCARD without PEEK or CLAIM"));
  BOOST_TEST(asked(flag::kPeek | flag::kClaim | flag::kDiscard) == Refusal::flags_clash);
  BOOST_TEST(asked(flag::kPeek | flag::kClaim, false) == Refusal::no_context);
  BOOST_TEST(asked(flag::kClaim, false) == Refusal::no_context);
  BOOST_TEST(contains(c.text(), "CLAIM without a context"));
  BOOST_TEST(c.receive({.message = true, .has_context = true, .flags = flag::kClaim | flag::kMultiRecv}) ==
             Refusal::flags_clash);
}

BOOST_AUTO_TEST_CASE(under_mr_local_each_buffer_needs_a_valid_descriptor) {
  Caller c([](auto& ep) { ep.rules.mr_local = true; });
  const auto sent = c.region(flag::kSend), received = c.region(flag::kRecv);
  BOOST_TEST(c.send({}) == Refusal::no_desc);
  BOOST_TEST(c.receive({}) == Refusal::no_desc);
  BOOST_TEST(c.send({.inject = true}) == Refusal::none);  // injected data is copied
  BOOST_TEST(c.send({}, 1, 0) == Refusal::none);          // no memory is accessed
  Local l = c.local(64);
  l.desc_given = true;
  const auto send = [&](const nic::MemoryRegion* mr) {
    l.desc = mr;
    Send s;
    s.local = {&l, 1};
    return call::check(c.ep(), s, &c.why);
  };
  const auto receive = [&](const nic::MemoryRegion* mr) {
    l.desc = mr;
    Receive r;
    r.local = {&l, 1};
    return call::check(c.ep(), r, &c.why);
  };
  BOOST_TEST(send(sent.get()) == Refusal::none);
  BOOST_TEST(send(received.get()) == Refusal::desc_no_right);
  BOOST_TEST(contains(c.text(), "FI_SEND for the source of a message"));
  BOOST_TEST(receive(received.get()) == Refusal::none);
  BOOST_TEST(receive(sent.get()) == Refusal::desc_no_right);
  BOOST_TEST(contains(c.text(), "FI_RECV for the buffer of a receive"));
}

BOOST_AUTO_TEST_CASE(refusals_of_the_nic_say_what_to_do) {
  Caller c;
  const auto text = [&](Refusal r) {
    c.why.set(r);
    return c.text();
  };
  BOOST_TEST(contains(text(Refusal::rx_full), "larger rx_attr.size"));
  BOOST_TEST(contains(text(Refusal::rdzv_full), "read the completion queue and retry"));
  BOOST_TEST(contains(text(Refusal::flow_stopped), "the receiver has to post receives"));
  BOOST_TEST(contains(text(Refusal::no_claim), "PEEK | CLAIM"));
  for (const Refusal r : {Refusal::rx_full, Refusal::rdzv_full, Refusal::flow_stopped}) {
    BOOST_TEST(c.errno_of(r) == fi_err::kEAGAIN);
  }
  BOOST_TEST(c.errno_of(Refusal::no_claim) == fi_err::kEINVAL);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace weft::test
