// tests/cpp/test_nic_route.cpp: the cached translation of a route that a key uses; routes to an address that another
// endpoint has got.
#include <boost/test/unit_test.hpp>

#include <array>
#include <set>
#include <thread>

#include "messaging.hpp"
#include "nic/route.hpp"
#include "stepwise.hpp"

using namespace weft;        // NOLINT
using namespace weft::test;  // NOLINT
using weft::nic::kTranslationCount;
using weft::nic::translation_of;

namespace {

// The endpoint of `b` closes, and another one takes its address. Returns that one.
std::shared_ptr<nic::Endpoint> replace(Pair& pair, SideConfig config) {
  const auto last = pair.b->endpoints.empty() ? pair.b->ep : pair.b->endpoints.back();
  config.pid = last->address().pid;
  last->close();
  return pair.b->extra_endpoint(config);
}

// The owner disables the region at every instant of the first access, in which the initiator makes its translation.
void disable_at_every_instant(Path path) {
  Pair pair(pair_of(path, true));
  const uint64_t words[] = {1, 2};
  BOOST_TEST(pair.write(&words[0], 8, 0).error == 0);  // connects both sides, and maps the memory
  auto& target = *reinterpret_cast<uint64_t*>(pair.memory);
  std::atomic<uint64_t> ended{0}, key{0};
  std::jthread initiator([&](const std::stop_token& over) {
    while (!over.stop_requested()) {
      if (post(*pair.a->ep, write_of(pair.dest, &words[0], 8, 0, key.load())).refusal == Refusal::none) {
        while (!try_completion(*pair.a)) pair.a->progress();
      }
      ended.fetch_add(1);
    }
  });
  const auto accesses = [&](uint64_t count) {
    const uint64_t begun = ended.load();
    BOOST_REQUIRE(poll_until([&] { return ended.load() >= begun + count; }, [&] { pair.b->progress(); }));
  };
  uint64_t written_late = 0;
  for (uint64_t round = 100; round < 6100; ++round) {
    const auto region = pair.b->domain->register_region(std::array{iovec{pair.memory, 64}},
                                                        mem::kRemoteRead | mem::kRemoteWrite, round, false, true);
    key.store(round);
    for (uint64_t spins = round % 512; spins > 0; --spins) cpu_relax();
    std::string why;
    BOOST_REQUIRE(region->disable(&why));
    target = words[1];
    accesses(2);
    written_late += target != words[1] ? 1 : 0;
    BOOST_REQUIRE(region->close(&why));
  }
  BOOST_TEST(written_late == 0U);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(nic_route)

BOOST_AUTO_TEST_CASE(test_four_keys_in_a_row_use_four_translations) {
  for (uint64_t first = 0; first < 4096; first += 4) {
    std::set<size_t> used;
    for (uint64_t key = first; key < first + 4; ++key) used.insert(translation_of(key));
    BOOST_TEST_REQUIRE(used.size() == kTranslationCount);
  }
}

BOOST_AUTO_TEST_CASE(test_keys_with_different_upper_bits_use_several_translations) {
  // Generations of a slot, offsets of cached keys, keys that an application makes of two numbers.
  for (unsigned shift = 2; shift <= 61; ++shift) {
    std::set<size_t> used;
    for (uint64_t i = 0; i < 8; ++i) used.insert(translation_of(i << shift | 1));
    BOOST_TEST_REQUIRE(used.size() >= 3U);
    BOOST_TEST_REQUIRE(*used.rbegin() < kTranslationCount);
  }
}

BOOST_AUTO_TEST_CASE(test_translation_made_while_the_region_is_disabled_gives_no_access) {
  disable_at_every_instant(Path::direct);
  disable_at_every_instant(Path::cma);
}

BOOST_AUTO_TEST_CASE(test_translation_gives_no_right_that_the_region_lacks) {
  for (const Path path : {Path::direct, Path::cma}) {
    Pair pair(pair_of(path, true));
    const uint64_t word = 7;
    uint64_t found = 0;
    BOOST_TEST(pair.write(&word, 8, 0).error == 0);
    const auto read_only = pair.b->reg(pair.memory, 64, 100, mem::kRemoteRead);
    const auto counted = pair.b->reg(pair.memory, 64, 101);
    const auto counter = std::make_shared<nic::Counter>();
    pair.b->domain->bind_region_counter(counted, counter, flag::kRemoteWrite);
    for (int i = 0; i < 3; ++i) BOOST_TEST(pair.run(read_of(pair.dest, &found, 8, 0, 100)).error == 0);
    BOOST_TEST(found == 7U);
    BOOST_TEST(pair.run(write_of(pair.dest, &found, 8, 8, 100)).error == fi_err::kEACCES);
    BOOST_TEST(pair.run(read_of(pair.dest, &found, 8, 60, 100)).error != 0);  // past the end
    for (int i = 0; i < 3; ++i) {
      BOOST_TEST(pair.run(read_of(pair.dest, &found, 8, 0, 101)).error == 0);
      BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 16, 101)).error == 0);
    }
    pair.until([&] { return counter->value() == 3; }, "the counter");
    const auto by_kernel = pair.a->nic().statistics().cma_ops;
    BOOST_TEST((path == Path::cma ? by_kernel > 9 : by_kernel == 0));
    BOOST_TEST(reinterpret_cast<const uint64_t*>(pair.memory)[1] == 0U);
  }
}

BOOST_AUTO_TEST_CASE(test_page_that_goes_under_a_known_translation_is_an_error) {
  Pair pair(pair_of(Path::cma, true));
  void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  BOOST_REQUIRE(page != MAP_FAILED);
  const auto region = pair.b->reg(page, 4096, 100);
  const uint64_t word = 7;
  for (int i = 0; i < 3; ++i) BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, 100)).error == 0);
  BOOST_REQUIRE(::munmap(page, 4096) == 0);
  for (int i = 0; i < 2; ++i) BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, 100)).error == fi_err::kEFAULT);
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);
}

#if defined(WEFT_TEST_STEPWISE)
// A peer that shares its memory may write anything into its table, at any instant.
BOOST_AUTO_TEST_CASE(test_translation_ends_where_its_segment_ends) {
  Pair pair(pair_of(Path::direct, true));
  const uint64_t word = 1, bytes = 1 << 16;
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);  // connects both sides, and maps the memory
  auto& length = const_cast<mem::MrEntry&>(pair.b->nic().table().mr(0)).length;
  BOOST_REQUIRE(length == bytes);
  uint64_t learned = 0, longest = 0;
  const auto forget = [&] {
    const nic::DomainLock guard(pair.a->domain.get());
    for (auto& t : pair.a->domain->route_to(pair.b->address())->translations) {
      learned += t.entry != nullptr ? 1 : 0;
      longest = std::max(longest, std::exchange(t, {}).length);
    }
  };
  forget();
  uint64_t there = 1;
  for (uint64_t steps = 0; interrupted(
           steps,
           [&] {
             (void)pair.a->ep->move_now(OpKind::read, reinterpret_cast<std::byte*>(&there), 8, pair.dest, 0,
                                        pair.key());
           },
           [&] { length = uint64_t{1} << 60; });
       steps += 8) {  // two reads of the length would be a call apart
    length = bytes;
    forget();
  }
  BOOST_TEST(learned > 0U);
  BOOST_TEST(longest == bytes);
}
#endif

#if defined(WEFT_TEST_STEPWISE)
// A region closes while another thread binds a counter to it: the region that gets its place in the table is nobody's.
BOOST_AUTO_TEST_CASE(test_counter_is_bound_to_no_region_that_closes_meanwhile) {
  Side side;
  uint64_t word = 0;
  const iovec memory{&word, sizeof(word)};
  const auto make = [&] {
    return side.domain->register_region({&memory, 1}, mem::kRemoteRead | mem::kRemoteWrite, 7, false, true);
  };
  const auto counter = std::make_shared<nic::Counter>();
  std::string why;
  bool more = true;
  for (uint64_t steps = 0; more; ++steps) {
    const auto region = make();
    more = interrupted(
        steps,
        [&] {
          try {
            side.domain->bind_region_counter(region, counter, flag::kRemoteWrite);
          } catch (const Error&) {  // the region was closed before
          }
        },
        [&] { (void)region->close_at_once(); });
    if (region->closed()) {
      const auto next = make();
      BOOST_TEST_REQUIRE((side.nic().table().mr(0).access & mem::kMrNotifyWrite) == 0U, "after " << steps << " steps");
      BOOST_REQUIRE(next->close(&why));
    }
    BOOST_REQUIRE(region->close(&why));
  }
}
#endif

BOOST_AUTO_TEST_CASE(test_region_bound_to_another_endpoint_while_disabled_refuses_the_first) {
  Pair pair(pair_of(Path::direct));
  const uint64_t word = 1;
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);
  std::string why;
  BOOST_REQUIRE(pair.region->disable(&why));
  pair.region->bind_endpoint(*pair.b->extra_endpoint());
  pair.region->enable();
  BOOST_TEST(pair.write(&word, 8, 0).status == Status::wrong_endpoint);
}

BOOST_AUTO_TEST_CASE(test_access_reaches_the_endpoint_that_has_the_address_now) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    uint64_t word = 5;
    BOOST_TEST(pair.write(&word, 8, 0).error == 0);
    for (word = 6; word < 9; ++word) {
      (void)replace(pair, config.b);
      const auto written = pair.write(&word, 8, 0);
      BOOST_TEST(written.error == 0, written.text);
      (void)replace(pair, config.b);
      uint64_t seen = 0;
      const auto read = pair.read(&seen, 8, 0);
      BOOST_TEST(read.error == 0, read.text);
      BOOST_TEST(seen == word);
      (void)replace(pair, config.b);
      const uint64_t one = 1;
      const iovec operand{const_cast<uint64_t*>(&one), 8}, result{&seen, 8};
      const wire::RmaRange range{0, 8, pair.key()};
      BOOST_TEST((pair.a->ep
                      ->post_atomic(atomic_of(pair.dest, AtomicFamily::fetch, AtomicOp::sum, Datatype::uint64, &operand,
                                              nullptr, &result, &range))
                      .refusal == Refusal::none));
      const auto added = pair.wait();
      BOOST_TEST(added.error == 0, added.text);
      BOOST_TEST(seen == word);
      (void)replace(pair, config.b);
      nic::BatchDesc desc{0, 8, pair.dest, 0, pair.key(), 0, 0};
      (void)pair.a->ep->post_batch(nic::OpKind::write, reinterpret_cast<std::byte*>(&word), 8, {&desc, 1}, 0, 3);
      const auto batch = pair.wait();
      BOOST_TEST(batch.error == 0, batch.text);
      BOOST_TEST(desc.status == 0);
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_messages_reach_the_endpoint_that_has_the_address_now_in_their_order) {
  on_every_message_path([](PairConfig config) {
    for (const size_t length : {size_t{8}, size_t{5000}, size_t{200'000}}) {
      Pair pair(config);
      std::vector<std::byte> to(length);
      const auto first = text_of(length);
      BOOST_TEST((receive(*pair.b->ep, to.data(), length).refusal == Refusal::none));
      BOOST_TEST((send(*pair.a->ep, pair.dest, first.data(), length).refusal == Refusal::none));
      BOOST_TEST(pair.wait(pair.b.get()).error == 0);
      BOOST_TEST(pair.wait(pair.a.get()).error == 0);
      const auto next = replace(pair, config.b);
      std::vector<std::vector<std::byte>> sent, got(6, std::vector<std::byte>(length));
      for (unsigned i = 0; i < got.size(); ++i) {
        sent.push_back(text_of(length, i));
        BOOST_TEST((receive(*next, got[i].data(), length).refusal == Refusal::none));
      }
      for (const auto& one : sent) {
        BOOST_TEST((send(*pair.a->ep, pair.dest, one.data(), length).refusal == Refusal::none));
      }
      for (size_t i = 0; i < got.size(); ++i) {
        const auto arrived = pair.wait(pair.b.get()), left = pair.wait(pair.a.get());
        BOOST_TEST(arrived.error == 0, arrived.text);
        BOOST_TEST(left.error == 0, left.text);
      }
      BOOST_TEST((got == sent));
      expect_idle(pair);
    }
  });
}

BOOST_AUTO_TEST_SUITE_END()
