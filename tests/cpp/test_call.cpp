// tests/cpp/test_call.cpp: the rules of calls, one by one; and an endpoint's own rules replace the defaults. The tests
// need no peer: a refused call never reaches one.
#include "call/call.hpp"
#include "call/deferred.hpp"
#include "fabric.hpp"

namespace weft::test {

using call::Atomic;
using call::Batch;
using call::ListTransfer;
using call::Local;
using call::Transfer;
using call::Why;

namespace {

struct Caller {
  explicit Caller(const std::function<void(nic::EndpointConfig&)>& change = [](nic::EndpointConfig&) {})
      : side(config_with(change)) {}

  static SideConfig config_with(const std::function<void(nic::EndpointConfig&)>& change) {
    SideConfig config;
    change(config.ep);
    return config;
  }
  [[nodiscard]] nic::Endpoint& ep() const { return *side.ep; }
  [[nodiscard]] int errno_of(Refusal r) const { return ep().config().rules.errno_of(r); }
  Local local(size_t offset, size_t length) {
    Local l;
    l.data = bytes.data() + offset;
    l.length = length;
    return l;
  }
  Transfer transfer(OpKind kind, size_t length) {
    Transfer t;
    t.kind = kind;
    t.dest = 0;
    t.local = local(0, length);
    return t;
  }
  Refusal check(Transfer t) { return call::check(ep(), t, &why); }
  Refusal check_list(OpKind kind, size_t buffers, size_t ranges, uint64_t flags = 0, bool message = true,
                     size_t each = 8) {
    std::vector<Local> locals(buffers, local(0, each));
    std::vector<wire::RmaRange> remote(ranges, {0, each, 1});
    ListTransfer t;
    t.kind = kind;
    t.message = message;
    t.flags = flags;
    t.dest = 0;
    t.local = locals;
    t.remote = remote;
    return call::check(ep(), t, &why);
  }
  // Of as many buffers as ranges, of `each` bytes.
  Refusal check_atomic_list(size_t buffers, size_t each) {
    std::vector<Local> operand(buffers, local(0, each));
    std::vector<wire::RmaRange> remote(buffers, {0, each, 1});
    Atomic a;
    a.datatype = static_cast<uint64_t>(Datatype::int64);
    a.op = static_cast<uint64_t>(AtomicOp::sum);
    a.dest = 0;
    a.operand = operand;
    a.remote = remote;
    if (const Refusal r = call::check_pair(ep(), a, &why); r != Refusal::none) return r;
    return call::check(ep(), a, &why);
  }
  struct AtomicCall {
    AtomicFamily family = AtomicFamily::base;
    Datatype datatype = Datatype::int64;
    AtomicOp op = AtomicOp::sum;
    size_t operand = 8, compare = 8, result = 8;  // bytes
    uint64_t count = call::kAllElements;
    bool inject = false;
    uint64_t flags = 0;
    bool message = false;
  };
  Refusal check_atomic(const AtomicCall& asked) {
    const Local operand = local(0, asked.operand), compare = local(0, asked.compare), result = local(0, asked.result);
    wire::RmaRange range;
    Atomic a;
    a.family = asked.family;
    a.datatype = static_cast<uint64_t>(asked.datatype);
    a.op = static_cast<uint64_t>(asked.op);
    a.single = true;
    a.count = asked.count;
    a.inject = asked.inject;
    a.flags = asked.flags;
    a.message = asked.message;
    a.dest = 0;
    a.operand = {&operand, 1};
    a.compare = {&compare, 1};
    a.result = {&result, 1};
    a.remote = {&range, 1};
    a.whole = true;
    if (const Refusal r = call::check_pair(ep(), a, &why); r != Refusal::none) return r;
    const Refusal r = call::check(ep(), a, &why);
    if (r == Refusal::none) BOOST_TEST(range.length == a.total);
    return r;
  }
  std::shared_ptr<nic::MemoryRegion> region(size_t offset, size_t length, uint64_t access) {
    return side.reg(bytes.data() + offset, length, next_key++, access);
  }

  Side side;
  Why why;
  std::vector<std::byte> bytes = std::vector<std::byte>(16384);
  uint64_t next_key = 100;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(call_rules)

BOOST_AUTO_TEST_CASE(a_call_without_its_capability_is_refused) {
  Caller reader([](auto& ep) { ep.caps = flag::kRma | flag::kRead; });
  BOOST_TEST(reader.check(reader.transfer(OpKind::read, 8)) == Refusal::none);
  BOOST_TEST(reader.check(reader.transfer(OpKind::write, 8)) == Refusal::no_capability);
  BOOST_TEST(reader.check_list(OpKind::write, 1, 1) == Refusal::no_capability);
  BOOST_TEST(reader.check_atomic({}) == Refusal::no_capability);
  Batch batch;
  batch.local = reader.local(0, 8);
  BOOST_TEST(call::check(reader.ep(), batch, &reader.why) == Refusal::no_capability);
  BOOST_TEST(reader.errno_of(Refusal::no_capability) == fi_err::kEOPNOTSUPP);
  // The direction alone is no capability: RMA is needed too.
  Caller bare([](auto& ep) { ep.caps = flag::kAtomic | flag::kWrite; });
  BOOST_TEST(bare.check(bare.transfer(OpKind::write, 8)) == Refusal::no_capability);
  BOOST_TEST(bare.check_atomic({}) == Refusal::none);
  // Atomics need either side of an initiator: a target alone initiates nothing.
  for (const uint64_t side : {uint64_t{0}, flag::kRemoteRead, flag::kRemoteRead | flag::kRemoteWrite}) {
    Caller target([side](auto& ep) { ep.caps = flag::kRma | flag::kAtomic | side; });
    BOOST_TEST(target.check_atomic({}) == Refusal::no_capability);
    BOOST_TEST(target.check(target.transfer(OpKind::read, 8)) == Refusal::no_capability);
    BOOST_TEST(target.check(target.transfer(OpKind::write, 8)) == Refusal::no_capability);
  }
}

BOOST_AUTO_TEST_CASE(a_refusal_has_the_errno_that_the_rules_give) {
  Caller strange([](auto& ep) {
    ep.caps = flag::kRma | flag::kRead;
    ep.rules.errnos[static_cast<size_t>(Refusal::no_capability)] = fi_err::kENOSYS;
  });
  BOOST_TEST(strange.check(strange.transfer(OpKind::write, 8)) == Refusal::no_capability);
  BOOST_TEST(strange.errno_of(Refusal::no_capability) == fi_err::kENOSYS);
  BOOST_TEST(strange.errno_of(Refusal::bad_flags) == fi_err::kEBADFLAGS);  // all other codes stay as in the man pages
}

BOOST_AUTO_TEST_CASE(flags_that_the_rules_do_not_admit_are_refused) {
  Caller c;
  BOOST_TEST(c.check_list(OpKind::write, 1, 1, flag::kRemoteCqData | flag::kFence) == Refusal::none);
  BOOST_TEST(c.check_list(OpKind::read, 1, 1, flag::kRemoteCqData) == Refusal::bad_flags);
  BOOST_TEST(c.why.asked == flag::kRemoteCqData);
  BOOST_TEST(c.check_list(OpKind::write, 1, 1, uint64_t{1} << 40) == Refusal::bad_flags);
  BOOST_TEST(c.check_atomic({.flags = flag::kInject, .message = true}) == Refusal::none);
  BOOST_TEST(c.check_atomic({.family = AtomicFamily::fetch, .flags = flag::kInject, .message = true}) ==
             Refusal::bad_flags);
  Batch batch;
  batch.local = c.local(0, 8);
  batch.flags = flag::kFence;
  BOOST_TEST(call::check(c.ep(), batch, &c.why) == Refusal::bad_flags);
  Caller strict([](auto& ep) { ep.rules.flags[static_cast<size_t>(nic::FlagCall::write)] = flag::kFence; });
  BOOST_TEST(strict.check_list(OpKind::write, 1, 1, flag::kFence) == Refusal::none);
  BOOST_TEST(strict.check_list(OpKind::write, 1, 1, flag::kCompletion) == Refusal::bad_flags);
  BOOST_TEST(strict.check_list(OpKind::read, 1, 1, flag::kCompletion) == Refusal::none);
}

BOOST_AUTO_TEST_CASE(default_flags_are_those_that_each_call_takes) {
  nic::OpRules rules;
  rules.flags[static_cast<size_t>(call::FlagCall::tsend)] = nic::flag::kFence | nic::flag::kRemoteCqData;
  nic::CallFlags calls{};
  const auto of = [&](call::FlagCall call) { return calls[static_cast<size_t>(call)]; };
  const uint64_t sends = nic::flag::kInject | nic::flag::kFence | nic::flag::kRemoteCqData;
  call::set_default_flags(rules, false, sends, &calls);
  BOOST_TEST(of(call::FlagCall::write) == (nic::flag::kInject | nic::flag::kFence));
  BOOST_TEST(of(call::FlagCall::read) == nic::flag::kFence);
  BOOST_TEST(of(call::FlagCall::batch) == 0u);
  BOOST_TEST(of(call::FlagCall::tsend) == nic::flag::kFence);
  BOOST_TEST(of(call::FlagCall::trecv) == 0u);
  call::set_default_flags(rules, true, nic::flag::kMultiRecv | nic::flag::kFence, &calls);
  BOOST_TEST(of(call::FlagCall::recv) == nic::flag::kMultiRecv);
  BOOST_TEST(of(call::FlagCall::write) == (nic::flag::kInject | nic::flag::kFence));
}

BOOST_AUTO_TEST_CASE(lists_longer_than_the_rules_admit_are_refused) {
  Caller c;
  BOOST_TEST(c.check_list(OpKind::write, nic::kIovMax, nic::kIovMax) == Refusal::none);
  BOOST_TEST(c.check_list(OpKind::write, nic::kIovMax + 1, 1) == Refusal::too_many_buffers);
  BOOST_TEST(c.check_list(OpKind::write, 1, nic::kIovMax + 1) == Refusal::bad_range_count);
  BOOST_TEST(c.check_list(OpKind::write, 1, 0) == Refusal::bad_range_count);
  Caller single([](auto& ep) { ep.rules.iov_max = ep.rules.rma_iov_max = 1; });
  BOOST_TEST(single.check_list(OpKind::read, 1, 1) == Refusal::none);
  BOOST_TEST(single.check_list(OpKind::read, 2, 1) == Refusal::too_many_buffers);
  BOOST_TEST(single.why.asked == 2u);
  BOOST_TEST(single.why.limit == 1u);
  BOOST_TEST(single.check_list(OpKind::read, 1, 2) == Refusal::bad_range_count);
  // Rules that allow more than the NIC can describe do not extend what the NIC can do.
  Caller generous([](auto& ep) { ep.rules.iov_max = 1000; });
  BOOST_TEST(generous.check_list(OpKind::read, nic::kIovMax + 1, 1) == Refusal::too_many_buffers);
}

BOOST_AUTO_TEST_CASE(what_is_injected_has_at_most_inject_size_bytes) {
  Caller c([](auto& ep) { ep.inject_size = 64; });
  Transfer t = c.transfer(OpKind::write, 64);
  t.inject = true;
  BOOST_TEST(c.check(t) == Refusal::none);
  t.local.length = 65;
  BOOST_TEST(c.check(t) == Refusal::inject_too_long);
  BOOST_TEST(c.why.limit == 64u);
  BOOST_TEST(c.errno_of(Refusal::inject_too_long) == fi_err::kEMSGSIZE);
  t.inject = false;
  BOOST_TEST(c.check(t) == Refusal::none);
  t.flags = flag::kInject;  // a default flag
  BOOST_TEST(c.check(t) == Refusal::inject_too_long);
  t.kind = OpKind::read;
  BOOST_TEST(c.check(t) == Refusal::none);
  BOOST_TEST(c.check_list(OpKind::write, 1, 1, flag::kInject, true, 64) == Refusal::none);
  BOOST_TEST(c.check_list(OpKind::write, 1, 1, flag::kInject, true, 65) == Refusal::inject_too_long);
  BOOST_TEST(c.check_atomic({.operand = 64, .inject = true}) == Refusal::none);
  BOOST_TEST(c.check_atomic({.operand = 72, .inject = true}) == Refusal::inject_too_long);
}

BOOST_AUTO_TEST_CASE(a_message_longer_than_max_msg_size_is_refused) {
  Caller c([](auto& ep) { ep.max_msg_size = 64; });
  BOOST_TEST(c.check_list(OpKind::write, 2, 1, 0, false, 32) == Refusal::none);
  BOOST_TEST(c.check_list(OpKind::write, 2, 1, 0, false, 40) == Refusal::too_long);
  BOOST_TEST(c.why.asked == 80u);
  // For a bare address the length is checked before the memory.
  Transfer t = c.transfer(OpKind::write, 65);
  t.local.bare = true;
  t.local.data = nullptr;
  BOOST_TEST(c.check(t) == Refusal::too_long);
}

BOOST_AUTO_TEST_CASE(an_atomic_outside_of_the_table_is_refused) {
  Caller c;
  BOOST_TEST(c.check_atomic({}) == Refusal::none);
  BOOST_TEST(c.check_atomic({.datatype = Datatype::float64, .op = AtomicOp::bor}) == Refusal::no_atomic);
  BOOST_TEST(c.check_atomic({.datatype = static_cast<Datatype>(200)}) == Refusal::unknown_atomic);
  BOOST_TEST(c.check_atomic({.op = static_cast<AtomicOp>(200)}) == Refusal::unknown_atomic);
  BOOST_TEST(c.check_atomic({.op = AtomicOp::cswap}) == Refusal::no_atomic);  // a number of another family
  BOOST_TEST(c.check_atomic({.family = AtomicFamily::compare, .op = AtomicOp::cswap}) == Refusal::none);
  Caller sparse([](auto& ep) {
    ep.rules.atomics = {};
    ep.rules.atomics[0][static_cast<size_t>(AtomicOp::sum)] = 1u << static_cast<uint32_t>(Datatype::uint64);
  });
  BOOST_TEST(sparse.check_atomic({.datatype = Datatype::uint64}) == Refusal::none);
  BOOST_TEST(sparse.check_atomic({.datatype = Datatype::int64}) == Refusal::no_atomic);
  BOOST_TEST(sparse.check_atomic({.family = AtomicFamily::fetch, .datatype = Datatype::uint64}) == Refusal::no_atomic);
}

BOOST_AUTO_TEST_CASE(atomic_needs_whole_elements_within_the_limit) {
  Caller c;
  BOOST_TEST(c.check_atomic({.operand = 4096}) == Refusal::none);
  BOOST_TEST(c.check_atomic({.operand = 4104}) == Refusal::too_long);
  BOOST_TEST(c.why.limit == 4096u);
  BOOST_TEST(c.check_atomic({.operand = 12}) == Refusal::part_element);
  BOOST_TEST(c.check_atomic({.operand = 12, .count = 1}) == Refusal::none);
  BOOST_TEST(c.check_atomic({.operand = 0}) == Refusal::no_element);
  BOOST_TEST(c.check_atomic({.count = 0}) == Refusal::no_element);
  BOOST_TEST(c.check_atomic({.operand = 8, .count = 2}) == Refusal::short_buffer);
  BOOST_TEST(c.check_atomic({.operand = 8, .count = ~uint64_t{0} / 4}) == Refusal::short_buffer);
  BOOST_TEST(c.check_atomic({.family = AtomicFamily::fetch, .operand = 16, .result = 8}) == Refusal::short_buffer);
  BOOST_TEST(std::string(c.why.what) == "result");
  BOOST_TEST(c.check_atomic_list(2, 16) == Refusal::none);
  BOOST_TEST(c.check_atomic_list(2, 12) == Refusal::part_element);  // three elements in two buffers
  BOOST_TEST(c.check_atomic_list(2, 0) == Refusal::no_element);
  Caller one([](auto& ep) { ep.rules.atomic_count_max = 1; });
  BOOST_TEST(one.check_atomic({.operand = 8}) == Refusal::none);
  BOOST_TEST(one.check_atomic({.operand = 16}) == Refusal::too_many_elements);
  BOOST_TEST(one.why.limit == 1u);
}

BOOST_AUTO_TEST_CASE(atomic_limits_are_those_of_the_rules_and_of_the_nic) {
  nic::OpRules rules;
  nic::Limits limits;
  const auto sum = static_cast<uint64_t>(AtomicOp::sum), int64 = static_cast<uint64_t>(Datatype::int64);
  BOOST_TEST(call::atomic_limit(rules, limits, int64, sum, 0).count == 512u);
  limits.atomic_bytes_max = 1024;
  BOOST_TEST(call::atomic_limit(rules, limits, int64, sum, 0).count == 128u);
  rules.atomic_count_max = 1;
  BOOST_TEST(call::atomic_limit(rules, limits, int64, sum, 0).count == 1u);
  BOOST_TEST(call::atomic_limit(rules, limits, int64, sum, 3).count == 0u);
  BOOST_TEST(call::atomic_limit(rules, limits, ~uint64_t{0}, sum, 0).count == 0u);
  rules.atomics = {};
  BOOST_TEST(call::atomic_limit(rules, limits, int64, sum, 0).count == 0u);
  BOOST_TEST(call::atomic_limit(rules, limits, int64, sum, 0).size == 8u);
}

BOOST_AUTO_TEST_CASE(under_mr_local_each_buffer_needs_a_valid_descriptor) {
  Caller c([](auto& ep) { ep.rules.mr_local = true; });
  const auto source = c.region(0, 4096, flag::kWrite), result = c.region(0, 4096, flag::kRead);
  Transfer t = c.transfer(OpKind::write, 64);
  BOOST_TEST(c.check(t) == Refusal::no_desc);
  BOOST_TEST(c.check_list(OpKind::write, 2, 1) == Refusal::no_desc);
  BOOST_TEST(c.check_atomic({}) == Refusal::no_desc);
  t.local.length = 0;
  BOOST_TEST(c.check(t) == Refusal::none);  // no memory is accessed
  t.local.length = 64;
  t.inject = true;
  BOOST_TEST(c.check(t) == Refusal::none);  // injected data is copied
  t.inject = false;
  t.local.own = source.get();
  BOOST_TEST(c.check(t) == Refusal::none);  // a slice of a region is its own descriptor
  t.local.own = nullptr;
  t.local.desc_given = true;
  t.local.desc = source.get();
  BOOST_TEST(c.check(t) == Refusal::none);
  t.local.desc = result.get();
  BOOST_TEST(c.check(t) == Refusal::desc_no_right);
  t.kind = OpKind::read;
  BOOST_TEST(c.check(t) == Refusal::none);
}

BOOST_AUTO_TEST_CASE(a_descriptor_that_is_given_has_to_be_valid) {
  Caller c;
  const auto right = c.region(64, 64, flag::kWrite);
  Transfer t = c.transfer(OpKind::write, 64);
  BOOST_TEST(c.check(t) == Refusal::none);
  t.local.desc_given = true;
  t.local.desc = right.get();
  BOOST_TEST(c.check(t) == Refusal::desc_elsewhere);
  BOOST_TEST(call::explain(c.ep(), "write", c.why).find("does not cover") != std::string::npos);
  t.local = {c.bytes.data() + 64, 64, right.get(), nullptr, mem::kHmemSystem, false, true};
  BOOST_TEST(c.check(t) == Refusal::none);
  t.local.length = 65;
  BOOST_TEST(c.check(t) == Refusal::desc_elsewhere);
  t.local.length = 64;
  Caller stranger;
  BOOST_TEST(call::check(stranger.ep(), t, &stranger.why) == Refusal::desc_foreign);
  std::string why;
  BOOST_REQUIRE(right->close(&why));
  BOOST_TEST(c.check(t) == Refusal::desc_closed);
  Caller old([](auto& ep) { ep.rules.desc_ignored = true; });
  BOOST_TEST(call::check(old.ep(), t, &old.why) == Refusal::none);
}

BOOST_AUTO_TEST_CASE(device_memory_is_refused_where_nobody_can_copy_it) {
  Caller c;
  Transfer t = c.transfer(OpKind::write, 64);
  t.local.iface = 1;
  BOOST_TEST(c.check(t) == Refusal::no_hmem);
  BOOST_TEST(c.errno_of(Refusal::no_hmem) == fi_err::kENOSYS);
  Caller hmem([](auto& ep) { ep.rules.hmem = true; });
  t.local.data = hmem.bytes.data();
  BOOST_TEST(hmem.check(t) == Refusal::no_device_runtime);
}

BOOST_AUTO_TEST_CASE(a_bare_address_without_memory_is_refused) {
  Caller c;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* hole = ::mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  BOOST_REQUIRE(hole != MAP_FAILED);
  Transfer t = c.transfer(OpKind::write, 8);
  t.local.bare = true;
  BOOST_TEST(c.check(t) == Refusal::none);
  t.local.data = static_cast<std::byte*>(hole);
  BOOST_TEST(c.check(t) == Refusal::no_page);
  BOOST_TEST(c.errno_of(Refusal::no_page) == fi_err::kEFAULT);
  ::munmap(hole, page);
}

BOOST_AUTO_TEST_CASE(a_call_that_is_admitted_moves_its_bytes) {
  Caller c;
  auto* there = reinterpret_cast<uint64_t*>(c.side.alloc(4096));
  c.side.reg(there, 4096, 7, flag::kRemoteRead | flag::kRemoteWrite);
  const uint64_t self = c.side.insert(c.side);
  *reinterpret_cast<uint64_t*>(c.bytes.data()) = 42;
  Transfer t = c.transfer(OpKind::write, 8);
  t.dest = self, t.key = 7, t.context = 1;
  BOOST_REQUIRE(call::check(c.ep(), t, &c.why) == Refusal::none);
  BOOST_REQUIRE(call::post(c.ep(), t).refusal == Refusal::none);
  std::optional<Completion> done;
  BOOST_REQUIRE(poll_until([&] { return (done = try_completion(c.side)).has_value(); }, [&] { c.side.progress(); }));
  BOOST_TEST(done->status == Status::ok);
  BOOST_TEST(*there == 42u);

  const Local operand = c.local(0, 8), result = c.local(8, 8);
  wire::RmaRange range{0, 0, 7};
  Atomic a;
  a.family = AtomicFamily::fetch;
  a.datatype = static_cast<uint64_t>(Datatype::uint64), a.op = static_cast<uint64_t>(AtomicOp::sum);
  a.single = true, a.whole = true, a.dest = self, a.context = 2;
  a.operand = {&operand, 1}, a.result = {&result, 1}, a.remote = {&range, 1};
  BOOST_REQUIRE(call::check_pair(c.ep(), a, &c.why) == Refusal::none);
  BOOST_REQUIRE(call::check(c.ep(), a, &c.why) == Refusal::none);
  BOOST_REQUIRE(call::post(c.ep(), a).refusal == Refusal::none);
  BOOST_REQUIRE(poll_until([&] { return (done = try_completion(c.side)).has_value(); }, [&] { c.side.progress(); }));
  BOOST_TEST(done->status == Status::ok);
  BOOST_TEST(*there == 84u);
  BOOST_TEST(*reinterpret_cast<uint64_t*>(c.bytes.data() + 8) == 42u);
}

BOOST_AUTO_TEST_CASE(an_endpoint_without_a_completion_queue_posts_nothing) {
  Side side;
  nic::EndpointConfig config;  // without a capability for initiating, so it may be enabled without a queue
  const auto ep = side.domain->make_endpoint(config);
  ep->bind_av(side.av);
  ep->enable(0, std::nullopt);
  const uint64_t self = side.insert(side);
  std::array<std::byte, 64> bytes{};
  const iovec piece{bytes.data(), 8};
  const wire::RmaRange range{0, 8, 1};
  for (const bool inject : {false, true}) {
    BOOST_TEST(ep->post_one(OpKind::write, bytes.data(), 8, self, 0, 1, 0, 1, 0, inject).refusal == Refusal::no_cq);
    nic::RmaArgs rma;
    rma.dest = self, rma.local = {&piece, 1}, rma.remote = {&range, 1}, rma.inject_call = inject;
    BOOST_TEST(ep->post(rma).refusal == Refusal::no_cq);
    nic::AtomicArgs atomic;
    atomic.dest = self, atomic.op = AtomicOp::sum, atomic.datatype = Datatype::int64, atomic.inject_call = inject;
    atomic.operand = {&piece, 1}, atomic.remote = {&range, 1};
    BOOST_TEST(ep->post_atomic(atomic).refusal == Refusal::no_cq);
  }
  nic::BatchDesc desc{0, 8, self, 0, 1, 0, 0};
  BOOST_TEST(ep->post_batch(OpKind::write, bytes.data(), 8, {&desc, 1}, 0, 1).refusal == Refusal::no_cq);
  ep->close();
}

BOOST_AUTO_TEST_CASE(every_refusal_has_words_and_a_code) {
  Caller c;
  for (size_t i = 1; i < nic::kRefusalCount; ++i) {
    Why why;
    why.set(static_cast<Refusal>(i));
    const std::string text = call::explain(c.ep(), "write", why);
    BOOST_TEST(text.starts_with("write: "), text);
    BOOST_TEST(text.find("refused (") == std::string::npos, text);
    BOOST_TEST(c.errno_of(why.refusal) > 0);
  }
}

BOOST_AUTO_TEST_CASE(a_key_without_a_form_that_keys_have_is_refused) {
  Caller caller([](auto& ep) {
    ep.caps = flag::kRma | flag::kRead | flag::kWrite | flag::kAtomic;
    ep.max_msg_size = 1 << 12;
    ep.rules.key_form_count = 2;
    ep.rules.key_forms[0] = {.mask = 0xffffffff00000000, .value = 0};
    ep.rules.key_forms[1] = {.mask = 3ull << 62,
                             .value = 3ull << 62,
                             .offset_mask = (1ull << 58) - 1,
                             .offset_shift = 3,
                             .sum_max = 1ull << 56};
  });
  const auto write = [&](uint64_t key, uint64_t addr, size_t length = 8) {
    Transfer t = caller.transfer(OpKind::write, length);
    t.key = key;
    t.addr = addr;
    return caller.check(t);
  };
  BOOST_TEST(write(0xffffffff, 0) == Refusal::none);
  BOOST_TEST(write(0x100000000, 0) == Refusal::bad_key);
  BOOST_TEST(caller.errno_of(Refusal::bad_key) == fi_err::kEKEYREJECTED);
  BOOST_TEST(write(1ull << 63, 0) == Refusal::bad_key);
  const uint64_t cached = 3ull << 62 | ((1ull << 56) - 16) << 3 | 5;
  BOOST_TEST(write(cached, 8) == Refusal::none);
  BOOST_TEST(write(cached, 9) == Refusal::key_offset);
  BOOST_TEST(write(cached, ~uint64_t{0}) == Refusal::key_offset);
  BOOST_TEST(caller.errno_of(Refusal::key_offset) == fi_err::kEINVAL);
  // A call that is too long is refused with the reason that it is too long.
  BOOST_TEST(write(0x100000000, 0, 8192) == Refusal::too_long);
  // Every kind of call. The ranges of a list have key 1, which is a valid key.
  BOOST_TEST(caller.check_list(OpKind::write, 1, 1) == Refusal::none);
  std::vector<nic::BatchDesc> descs(2);
  descs[1].key = 0x100000000;
  Batch batch;
  batch.local = caller.local(0, 8);
  batch.descs = descs;
  BOOST_TEST(call::check(caller.ep(), batch, &caller.why) == Refusal::bad_key);
}

BOOST_AUTO_TEST_CASE(a_fence_needs_its_capability_where_the_rules_say_so) {
  const auto rules = [](uint64_t caps) {
    return [caps](nic::EndpointConfig& ep) {
      ep.caps = flag::kRma | flag::kWrite | caps;
      ep.rules.fence_needs_cap = true;
      ep.rules.fence_also = 1ull << 60;
      ep.rules.flags[static_cast<size_t>(call::FlagCall::write)] |= 1ull << 60;
    };
  };
  Caller without(rules(0)), with(rules(flag::kFence));
  BOOST_TEST(without.check_list(OpKind::write, 1, 1, flag::kFence) == Refusal::no_fence);
  BOOST_TEST(without.errno_of(Refusal::no_fence) == fi_err::kEINVAL);
  BOOST_TEST(without.check_list(OpKind::write, 1, 1, 1ull << 60) == Refusal::none);
  BOOST_TEST(with.check_list(OpKind::write, 1, 1, flag::kFence) == Refusal::none);
  const wire::RmaRange range{0, 8, 1};
  uint64_t flags = 1ull << 60;
  BOOST_TEST(call::check_more(without.ep(), &flags, {&range, 1}, &without.why) == Refusal::none);
  BOOST_TEST(flags == flag::kFence);
}

BOOST_AUTO_TEST_CASE(the_length_of_a_call_may_be_that_of_its_buffers_alone) {
  Caller caller([](auto& ep) {
    ep.caps = flag::kRma | flag::kWrite;
    ep.rules.local_lengths = true;
  });
  const Local local = caller.local(0, 8);
  const wire::RmaRange range{16, 999, 1};
  ListTransfer t;
  t.local = {&local, 1};
  t.remote = {&range, 1};
  BOOST_TEST(call::check(caller.ep(), t, &caller.why) == Refusal::none);
  BOOST_TEST(t.remote[0].length == 8U);
  BOOST_TEST(t.remote[0].addr == 16U);
}

BOOST_AUTO_TEST_CASE(rules_of_the_domain_refuse_deferred_work) {
  using call::WorkOp;
  using call::WorkShape;
  SideConfig config;
  config.domain.work = {.receives_wait = false, .single = true, .flags = flag::kFence, .sends_unchecked = true};
  config.domain.work.write_back = 1ull << 60;
  const Side strict(config), lax;
  uint64_t flags = 0;
  bool write_back = false;
  const auto why = [&](const Side& side, const WorkShape& shape) {
    return call::check_work(*side.ep, shape, &flags, &write_back);
  };
  const WorkShape refused[] = {
      {WorkOp::recv, flag::kPeek, 0, 1, 1, true},
      {WorkOp::trecv, flag::kDiscard, 0, 1, 1, true},
      {WorkOp::send, flag::kInject, 0, 1, 1, true},
      {WorkOp::write, flag::kDeliveryComplete, 0, 1, 1, true},
      {WorkOp::recv, 0, 1, 1, 1, true},
      {WorkOp::atomic, 0, 0, 2, 1, true},
      {WorkOp::read, 0, 0, 0, 1, false},
      {WorkOp::write, 0, 0, 1, 2, true},
      {WorkOp::fetch_atomic, 0, 0, 1, 0, true},
      {WorkOp::tsend, flag::kInject, 0, 0, 1, true},
  };
  for (const WorkShape& one : refused) {
    BOOST_TEST_CONTEXT("operation " << static_cast<int>(one.op)) {
      BOOST_TEST(!why(strict, one).empty());
      const bool looks = call::receives(one.op) && one.flags != 0;
      BOOST_TEST(why(lax, one).empty() == !looks);
    }
  }
  const uint64_t asked = config.domain.work.write_back | flag::kMore | flag::kFence;
  BOOST_TEST(why(strict, {WorkOp::write, asked, 7, 1, 1, true}).empty());
  BOOST_TEST(flags == flag::kFence);
  BOOST_TEST(write_back);
  BOOST_TEST(why(strict, {WorkOp::send, 1ull << 61, 7, 0, 1, true}).empty());
  BOOST_TEST(flags == 0U);  // a send has only the flags that it knows
  BOOST_TEST(!write_back);
}

BOOST_AUTO_TEST_CASE(deferred_work_sets_a_counter_up_to_its_limit) {
  nic::Work work;
  const auto counter = std::make_shared<nic::Counter>(nic::CounterLimits{.value_max = 100});
  BOOST_TEST(call::fill_counting(call::WorkOp::cntr_add, counter, 100, &work).empty());
  BOOST_TEST((work.kind == nic::Work::Kind::add));
  BOOST_TEST(work.value == 100U);
  BOOST_TEST(!call::fill_counting(call::WorkOp::cntr_set, counter, 101, &work).empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace weft::test
