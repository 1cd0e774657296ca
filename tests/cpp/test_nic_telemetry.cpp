// tests/cpp/test_nic_telemetry.cpp: what NICs count for operators, over every path; operations held by FI_MORE.
#include <fcntl.h>

#include "messaging.hpp"
#include "nic/telemetry.hpp"

namespace {

using namespace weft;
using namespace weft::test;
using nic::Telemetry;
using nic::TelemetryPage;

constexpr uint32_t kNicA = 4, kNicB = 5;
constexpr uint64_t kUnreliable = uint64_t{1} << 61, kHrp = uint64_t{1} << 60, kPcie = uint64_t{1} << 57;
constexpr uint64_t kOptimized = 7, kStandard = 200;

nic::TrafficRules rules() {
  nic::TrafficRules r;
  r.on = true;
  r.optimized_below = 100;
  r.provider_bit = uint64_t{1} << 63;
  r.cached_bit = uint64_t{1} << 62;
  r.optimized_bit = uint64_t{1} << 61;
  r.events_bit = uint64_t{1} << 60;
  r.flush_flags = flag::kDeliveryComplete;
  r.unreliable_flag = kUnreliable;
  r.hrp_flag = kHrp;
  r.pcie_flag = kPcie;
  return r;
}

// Initiator and target on separate NICs; both NICs have attached both pages.
struct Counted {
  explicit Counted(Path path, uint64_t key = kOptimized, uint64_t msg_order = 0) : pair(config(path, key, msg_order)) {
    for (const uint32_t number : {kNicA, kNicB}) {
      const UniqueFd fd = make_memfd("telemetry of a test", TelemetryPage::kBytes);
      pair.a->nic().telemetry().attach(number, fd.get());
      if (path != Path::self) pair.b->nic().telemetry().attach(number, fd.get());
    }
    pair.a->ep->enable(kNicA, std::nullopt);  // an endpoint takes the page that is attached when it is enabled
  }
  static PairConfig config(Path path, uint64_t key, uint64_t msg_order) {
    PairConfig c = pair_of(path);
    c.a.domain.nic = kNicA;
    c.a.enable = false;
    c.b.domain.nic = kNicB;
    c.a.ep.traffic = rules();
    c.a.ep.msg_order = msg_order;
    c.key = key;
    return c;
  }
  [[nodiscard]] uint64_t at(Telemetry what) const {
    const uint32_t number = nic::at_initiator(what) ? kNicA : kNicB;
    const Side& side = nic::at_initiator(what) ? *pair.a : *pair.b;
    return side.nic().telemetry().of(number).total(what);
  }
  int write(size_t bytes, uint64_t flags = 0) {
    Access access = write_of(pair.dest, data.data(), bytes, 0, pair.key());
    access.flags = flags;
    return pair.run(access).error;
  }
  int add(uint64_t flags, AtomicFamily family = AtomicFamily::base, Datatype datatype = Datatype::uint64) {
    nic::AtomicArgs args;
    const size_t size = nic::datatype_size(datatype);
    const iovec operand{data.data(), size}, result{data.data() + 64, size};
    const wire::RmaRange range{0, size, pair.key()};
    args.dest = pair.dest;
    args.family = family;
    args.op = AtomicOp::sum;
    args.datatype = datatype;
    args.operand = {&operand, 1};
    if (family != AtomicFamily::base) args.result = {&result, 1};
    args.remote = {&range, 1};
    args.flags = flags;
    BOOST_REQUIRE(pair.a->ep->post_atomic(args).refusal == Refusal::none);
    return pair.wait().error;
  }
  Pair pair;
  std::vector<std::byte> data = pattern(1 << 14);
};

BOOST_AUTO_TEST_SUITE(nic_telemetry)

BOOST_AUTO_TEST_CASE(test_target_counts_packets_by_format_on_every_path) {
  for (const Path path : kPaths) {
    BOOST_TEST_CONTEXT(name_of(path)) {
      Counted c(path);
      for (int i = 0; i < 3; ++i) BOOST_TEST(c.write(8) == 0);
      BOOST_TEST(c.at(Telemetry::restricted_pkt) == 3U);
      BOOST_TEST(c.at(Telemetry::unrestricted_pkt) == 0U);
      BOOST_TEST(c.at(Telemetry::entry_hit) == 3U);
      BOOST_TEST(c.at(Telemetry::success) == 3U);
      BOOST_TEST(c.write(5000) == 0);  // three packets of 2048 bytes
      BOOST_TEST(c.at(Telemetry::restricted_pkt) == 6U);
      BOOST_TEST(c.write(0) == 0);  // and one without payload
      BOOST_TEST(c.at(Telemetry::restricted_pkt) == 7U);
      BOOST_TEST(c.at(Telemetry::success) == 5U);
      BOOST_TEST(c.at(Telemetry::flush) == 0U);
      BOOST_TEST(c.at(Telemetry::hrp_ack) == 0U);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_standard_region_or_ordered_write_is_unrestricted) {
  for (const Path path : {Path::direct, Path::strict}) {
    Counted standard(path, kStandard);
    BOOST_TEST(standard.write(8) == 0);
    BOOST_TEST(standard.at(Telemetry::restricted_pkt) == 0U);
    BOOST_TEST(standard.at(Telemetry::unrestricted_pkt) == 1U);
    BOOST_TEST(standard.at(Telemetry::entry_hit) == 0U);
    for (const uint64_t order : {nic::order::kWaw, nic::order::kRmaWaw}) {
      Counted ordered(path, kOptimized, order);
      BOOST_TEST(ordered.write(8) == 0);
      BOOST_TEST(ordered.at(Telemetry::restricted_pkt) == 0U);
      uint64_t word = 0;
      BOOST_TEST(ordered.pair.read(&word, 8, 0).error == 0);  // a read needs no order of writes
      BOOST_TEST(ordered.at(Telemetry::restricted_pkt) == 1U);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_telemetry_counts_flushes_pcie_atomics_and_hrp_acks) {
  for (const Path path : {Path::direct, Path::strict}) {
    Counted c(path);
    BOOST_TEST(c.write(8, flag::kDeliveryComplete) == 0);
    BOOST_TEST(c.at(Telemetry::flush) == 1U);
    BOOST_TEST(c.write(8, kHrp) == 0);
    BOOST_TEST(c.at(Telemetry::hrp_ack) == 1U);
    BOOST_TEST(c.at(Telemetry::restricted_pkt) == 2U);
    BOOST_TEST(c.add(0) == 0);  // reliable: not restricted; the flag alone makes no High Rate Put
    BOOST_TEST(c.add(kHrp) == 0);
    BOOST_TEST(c.at(Telemetry::restricted_pkt) == 2U);
    BOOST_TEST(c.at(Telemetry::unrestricted_pkt) == 2U);
    BOOST_TEST(c.at(Telemetry::hrp_ack) == 1U);
    BOOST_TEST(c.add(kUnreliable) == 0);
    BOOST_TEST(c.add(kUnreliable, AtomicFamily::fetch) == 0);
    BOOST_TEST(c.at(Telemetry::restricted_pkt) == 4U);
    BOOST_TEST(c.add(kUnreliable | kHrp) == 0);
    BOOST_TEST(c.at(Telemetry::hrp_ack) == 2U);
    BOOST_TEST(c.add(kPcie, AtomicFamily::fetch) == 0);
    BOOST_TEST(c.at(Telemetry::cpu_fetch_amo) == 1U);
    BOOST_TEST(c.at(Telemetry::flush) == 1U);
  }
}

// The initiator's NIC has another page for the target's device, so only the target knows of its link.
BOOST_AUTO_TEST_CASE(test_short_message_to_a_device_whose_link_is_down_does_not_arrive) {
  for (const Path path : {Path::direct, Path::strict}) {
    BOOST_TEST_CONTEXT(name_of(path)) {
      PairConfig config = message_pair(path);
      config.a.ep.traffic = rules();
      config.b.domain.nic = kNicB;
      Pair pair(config);
      const UniqueFd fd = make_memfd("telemetry of a test", TelemetryPage::kBytes);
      pair.b->nic().telemetry().attach(kNicB, fd.get());
      uint64_t out = 5, in = 0;
      const auto pass = [&] {
        BOOST_REQUIRE((receive(*pair.b->ep, &in, sizeof(in)).refusal == Refusal::none));
        BOOST_REQUIRE((send(*pair.a->ep, pair.dest, &out, sizeof(out)).refusal == Refusal::none));
        BOOST_TEST(pair.wait(pair.a.get()).error == 0);
      };
      for (; out < 10; ++out) {  // the first message has an answer, which brings credits
        pass();
        BOOST_TEST(pair.wait(pair.b.get()).error == 0);
        BOOST_TEST(in == out);
      }
      pair.b->nic().telemetry().of(kNicB).down.store(1);
      if (path == Path::direct) {
        pass();  // with a credit: nobody waits for an answer
      } else {
        BOOST_REQUIRE((receive(*pair.b->ep, &in, sizeof(in)).refusal == Refusal::none));
        BOOST_REQUIRE((send(*pair.a->ep, pair.dest, &out, sizeof(out)).refusal == Refusal::none));
        (void)pair.wait(pair.a.get());
      }
      for (int i = 0; i < 20; ++i) pair.poll();
      BOOST_TEST(!try_completion(*pair.b));
      BOOST_TEST(in == 9U);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_failed_operations_and_other_endpoints_are_not_counted) {
  for (const Path path : {Path::direct, Path::strict}) {
    Counted c(path);
    BOOST_TEST(c.pair.run(write_of(c.pair.dest, c.data.data(), 8, 0, 9)).error != 0);
    const auto plain = c.pair.a->extra_endpoint();
    BOOST_TEST(c.pair.run(write_of(c.pair.dest, c.data.data(), 8, 0, c.pair.key()), plain.get()).error == 0);
    for (size_t i = 0; i < nic::kTelemetryCount; ++i) BOOST_TEST(c.at(static_cast<Telemetry>(i)) == 0U);
  }
}

BOOST_AUTO_TEST_CASE(test_traffic_rules_read_optimized_and_events_from_keys) {
  nic::TrafficRules r = rules();
  const auto restricted = [&](uint64_t key) {
    return (r.of(OpKind::write, {}, {}, key, 0, false) & nic::traffic::kRestricted) != 0;
  };
  const uint64_t provider = r.provider_bit, optimized = r.optimized_bit, cached = r.cached_bit, events = r.events_bit;
  BOOST_TEST(restricted(99));
  BOOST_TEST(!restricted(100));
  BOOST_TEST(!restricted(provider | 5));
  BOOST_TEST(restricted(provider | optimized | 5));
  BOOST_TEST(!restricted(provider | optimized | events | 5));
  BOOST_TEST(restricted(provider | optimized | cached | events));  // in a cached key that bit is part of an offset
  r.client_events = true;
  BOOST_TEST(!restricted(99));
  BOOST_TEST(restricted(provider | optimized | 5));
  r.hrp_without_uint32 = true;
  r.client_events = false;
  const auto hrp = [&](Datatype datatype) {
    return (r.of(OpKind::atomic, AtomicFamily::base, datatype, 7, kUnreliable | kHrp, false) & nic::traffic::kHrp) != 0;
  };
  BOOST_TEST(hrp(Datatype::uint64));
  BOOST_TEST(!hrp(Datatype::uint32));
}

BOOST_AUTO_TEST_CASE(test_page_is_attached_before_anything_is_counted) {
  nic::TelemetryPages pages;
  const UniqueFd fd = make_memfd("telemetry of a test", TelemetryPage::kBytes);
  pages.writer(1)->add(Telemetry::flush, 1);
  BOOST_CHECK_THROW(pages.attach(1, fd.get()), Error);
  pages.attach(2, fd.get());
  pages.writer(2)->add(Telemetry::flush, 3);
  pages.attach(2, fd.get());
  nic::TelemetryPages others;  // counts of another process
  others.attach(2, fd.get());
  BOOST_TEST(others.of(2).total(Telemetry::flush) == 3U);
  const UniqueFd other = make_memfd("telemetry of a test", TelemetryPage::kBytes);
  others.attach(2, other.get());
  BOOST_TEST(others.of(2).total(Telemetry::flush) == 0U);
  const UniqueFd small = make_memfd("telemetry of a test", 100);
  BOOST_CHECK_THROW(others.attach(3, small.get()), Error);
}

BOOST_AUTO_TEST_CASE(test_each_writer_counts_in_a_block_of_its_own_while_there_are_blocks) {
  const UniqueFd fd = make_memfd("telemetry of a test", TelemetryPage::kBytes);
  const std::string again = "/proc/self/fd/" + std::to_string(fd.get());
  const auto open_again = [&] { return UniqueFd(::open(again.c_str(), O_RDWR | O_CLOEXEC)); };
  nic::TelemetryPages ours, theirs;  // as two processes: each has opened the file itself
  ours.attach(1, open_again().get());
  theirs.attach(1, open_again().get());
  std::vector<std::unique_ptr<nic::TelemetryWriter>> writers;
  for (size_t i = 0; i < TelemetryPage::kBlocks + 2; ++i) {  // the last two share
    writers.push_back((i % 2 == 0 ? ours : theirs).writer(1));
    writers.back()->add(Telemetry::success, i + 1);
  }
  const TelemetryPage& page = ours.of(1);
  for (size_t i = 0; i < TelemetryPage::kBlocks; ++i) {
    BOOST_TEST(page.blocks[i].word(Telemetry::success).load() == i + 1);
  }
  BOOST_TEST(page.shared.word(Telemetry::success).load() == 31U + 32U);
  // A block that a writer gave back goes to the next one with its counts.
  writers[4].reset();
  const auto next = theirs.writer(1);
  next->add(Telemetry::success, 100);
  BOOST_TEST(page.blocks[4].word(Telemetry::success).load() == 105U);
  BOOST_TEST(page.total(Telemetry::success) == 32U * 33U / 2 + 100U);
}

BOOST_AUTO_TEST_SUITE_END()

// ---- FI_MORE --------------------------------------------------------------------------------------------------------

struct Held {
  explicit Held(Path path, uint32_t tx_size = 1024, uint32_t cq = 1024) : pair(config(path, tx_size, cq)) {
    BOOST_TEST(pair.write(&zero, 8, 0).error == 0);  // connects both sides
  }
  static PairConfig config(Path path, uint32_t tx_size, uint32_t cq) {
    PairConfig c = pair_of(path);
    c.a.ep.holds_more = true;
    c.a.ep.tx_size = tx_size;
    c.a.cq_capacity = cq;
    return c;
  }
  PostResult write(const uint64_t* from, uint64_t at, uint64_t flags) {
    Access access = write_of(pair.dest, from, 8, at, pair.key());
    access.flags = flags;
    return post(*pair.a->ep, access);
  }
  [[nodiscard]] uint64_t word(size_t at) const {
    uint64_t w = 0;
    std::memcpy(&w, pair.look(at, 8).data(), 8);
    return w;
  }
  void rest() {  // long enough for any operation that would begin
    for (int i = 0; i < 50; ++i) {
      pair.poll();
      usleep(100);
    }
  }
  Pair pair;
  uint64_t zero = 0;
};

BOOST_AUTO_TEST_SUITE(nic_more)

BOOST_AUTO_TEST_CASE(test_operations_with_more_wait_for_the_next_without_it) {
  for (const Path path : kPaths) {
    BOOST_TEST_CONTEXT(name_of(path)) {
      Held h(path);
      const uint64_t words[] = {11, 12, 13};
      BOOST_TEST(h.write(&words[0], 0, flag::kMore).refusal == Refusal::none);
      BOOST_TEST(h.write(&words[1], 8, flag::kMore).refusal == Refusal::none);
      h.rest();
      BOOST_TEST(h.pair.a->unread() == 0U);
      BOOST_TEST(h.word(0) == 0U);
      BOOST_TEST(h.write(&words[2], 16, 0).refusal == Refusal::none);
      for (int i = 0; i < 3; ++i) BOOST_TEST(h.pair.wait().error == 0);
      for (int i = 0; i < 3; ++i) BOOST_TEST(h.word(static_cast<size_t>(8 * i)) == words[i]);
      BOOST_TEST(h.write(&words[0], 24, 0).refusal == Refusal::none);  // afterwards all is as before
      BOOST_TEST(h.pair.wait().error == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_a_full_queue_begins_what_is_held) {
  const uint64_t word = 7;
  for (const auto& [tx_size, cq] : {std::pair{4U, 1024U}, std::pair{1024U, 4U}}) {
    Held h(Path::direct, tx_size, cq);
    for (uint64_t i = 0; i < 3; ++i) BOOST_TEST(h.write(&word, 8 * i, flag::kMore).refusal == Refusal::none);
    h.rest();
    BOOST_TEST(h.pair.a->unread() == 0U);
    BOOST_TEST(h.write(&word, 24, flag::kMore).refusal == Refusal::none);
    for (int i = 0; i < 4; ++i) BOOST_TEST(h.pair.wait().error == 0);
    BOOST_TEST(h.word(24) == 7U);
  }
}

BOOST_AUTO_TEST_CASE(test_held_inject_is_a_copy_and_close_and_cancel_end_it) {
  Held h(Path::direct);
  uint64_t word = 21;
  Access access = write_of(h.pair.dest, &word, 8, 0, h.pair.key());
  access.flags = flag::kMore | flag::kInject;
  BOOST_TEST(post(*h.pair.a->ep, access).refusal == Refusal::none);
  word = 22;
  BOOST_TEST(h.write(&word, 8, 0).refusal == Refusal::none);
  BOOST_TEST(h.pair.wait().error == 0);
  BOOST_TEST(h.pair.wait().error == 0);
  BOOST_TEST(h.word(0) == 21U);
  access.flags = flag::kMore;
  access.context = 77;
  BOOST_TEST(post(*h.pair.a->ep, access).refusal == Refusal::none);
  BOOST_TEST(h.pair.a->ep->cancel(77) == 1U);
  BOOST_TEST(h.pair.wait().status == Status::canceled);
  BOOST_TEST(post(*h.pair.a->ep, access).refusal == Refusal::none);
  h.pair.a->ep->close();
  BOOST_TEST(h.pair.wait().status == Status::canceled);
  BOOST_TEST(h.word(0) == 21U);
}

BOOST_AUTO_TEST_CASE(test_an_endpoint_that_does_not_hold_begins_at_once) {
  Pair pair(pair_of(Path::direct));
  const uint64_t word = 5;
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);
  Access access = write_of(pair.dest, &word, 8, 8, pair.key());
  access.flags = flag::kMore;
  BOOST_TEST(pair.run(access).error == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
