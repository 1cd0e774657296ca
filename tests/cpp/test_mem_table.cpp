// tests/cpp/test_mem_table.cpp: the memory table: who may access which region, and a closed region is closed for every
// peer.
#include "mem/table.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "stepwise.hpp"

namespace {

using namespace weft;
using namespace weft::mem;

constexpr uint32_t kBoth = kRemoteRead | kRemoteWrite;
constexpr uint32_t kEpBoth = kEpRemoteRead | kEpRemoteWrite;

struct Fixture {
  explicit Fixture(uint32_t mr_count = 1024, uint32_t ep_flags = kEpBoth) : table(mr_count) {
    ep = table.open_ep(3, ep_flags, {}, &generation);
  }
  uint32_t insert(std::optional<uint64_t> key, uint64_t length = 100, uint32_t access = kBoth, uint16_t domain = 3,
                  uint64_t base = 0) {
    const MrBuffer buffer{0x1000, length, 0, kNoSegment};
    MrRequest request;
    request.buffers = {&buffer, 1};
    request.access = access;
    request.domain = domain;
    request.base = base;
    request.client_key = key;
    return table.insert(request);
  }
  uint32_t open(std::optional<uint64_t> key, uint64_t length = 100, uint32_t access = kBoth) {
    const uint32_t slot = insert(key, length, access);
    table.enable(slot);
    return slot;
  }
  void serve(uint32_t ep_flags) {  // from an endpoint with these capabilities
    table.close_ep(ep);
    ep = table.open_ep(3, ep_flags, {}, &generation);
  }
  void close(uint32_t slot) {
    table.begin_close(slot);
    table.release(slot);
  }
  Status check(uint64_t key, uint64_t addr = 0, uint64_t length = 1, uint32_t want = kRemoteWrite) const {
    MrView view;
    return table.check(from, ep, generation, key, addr, length, want, view);
  }
  Table table;
  uint32_t ep = 0, generation = 0;
  wire::EpAddress from{0, 1, 7, 0};
};

const auto kNoSpace = [](const Error& e) { return e.fi_code() == fi_err::kENOSPC; };

}  // namespace

namespace weft {
std::ostream& operator<<(std::ostream& out, Status status) {
  return out << "status " << static_cast<int>(status);
}
}  // namespace weft

namespace {

BOOST_AUTO_TEST_SUITE(mem_table)

/// The search for an absent key continues to the end of the run that the key falls into. So runs must stay short,
/// however
/// applications choose their keys, and however many there are.
BOOST_AUTO_TEST_CASE(test_key_index_has_no_long_runs) {
  constexpr uint32_t kKeys = 1u << 17, kIndex = kKeys * 2;
  struct Way {
    const char* name;
    uint64_t (*key)(uint64_t);
  };
  const Way ways[] = {
      {"dense", [](uint64_t i) { return i; }},
      {"two dense ranges", [](uint64_t i) { return (i & 1) << 32 | i >> 1; }},
      {"dense from 2^20", [](uint64_t i) { return (uint64_t{1} << 20) + i; }},
      {"a page apart", [](uint64_t i) { return i << 12; }},
      {"high halves only", [](uint64_t i) { return i << 32; }},
      {"rank and number", [](uint64_t i) { return (i & 1023) << 48 | i >> 10; }},
      {"all bits", [](uint64_t i) -> uint64_t { return i * 0x9e3779b97f4a7c15ull; }},
  };
  for (const auto& [name, key] : ways) {
    std::vector<bool> taken(kIndex);
    for (uint64_t i = 0; i < kKeys; ++i) {
      auto at = static_cast<uint32_t>(TableView::key_hash(static_cast<uint32_t>(i % 3), key(i))) & (kIndex - 1);
      while (taken[at]) at = (at + 1) & (kIndex - 1);
      taken[at] = true;
    }
    uint32_t longest = 0, run = 0;
    for (const bool t : taken) longest = std::max(longest, run = t ? run + 1 : 0);
    BOOST_TEST(longest < 4096U, name << ": a run of " << longest);
  }
}

BOOST_AUTO_TEST_CASE(test_region_is_reachable_from_enable_to_close) {
  Fixture f;
  const uint32_t slot = f.insert(42);
  BOOST_TEST(f.check(42) == Status::not_enabled);
  f.table.enable(slot);
  BOOST_TEST(f.check(42) == Status::ok);
  f.table.begin_close(slot);
  BOOST_TEST(f.check(42) == Status::stale_key);
  f.table.reopen(slot);
  BOOST_TEST(f.check(42) == Status::ok);
  f.close(slot);
  BOOST_TEST(f.check(42) == Status::no_key);
  BOOST_TEST(f.table.live_count() == 0U);
}

BOOST_AUTO_TEST_CASE(test_registered_bytes_are_those_of_the_open_regions) {
  Fixture f;
  f.open(1, 100);
  const uint32_t second = f.insert(2, 50);
  BOOST_TEST(f.table.registered_bytes() == 150U);
  f.close(second);
  BOOST_TEST(f.table.registered_bytes() == 100U);
  f.open(3, UINT64_MAX);  // the whole address space
  BOOST_TEST(f.table.registered_bytes() == UINT64_MAX);
}

BOOST_AUTO_TEST_CASE(test_bounds_at_every_edge) {
  Fixture f;
  f.open(1, 100);
  BOOST_TEST(f.check(1, 0, 100) == Status::ok);
  BOOST_TEST(f.check(1, 99, 1) == Status::ok);
  BOOST_TEST(f.check(1, 100, 0) == Status::ok);
  BOOST_TEST(f.check(1, 100, 1) == Status::bounds);
  BOOST_TEST(f.check(1, 101, 0) == Status::bounds);
  BOOST_TEST(f.check(1, 0, 101) == Status::bounds);
  BOOST_TEST(f.check(1, ~uint64_t{0}, 1) == Status::bounds);
  BOOST_TEST(f.check(1, 1, ~uint64_t{0}) == Status::bounds);
  const uint32_t slot = f.insert(2, 100, kBoth, 3, 0x7000);
  f.table.enable(slot);
  MrView view;
  BOOST_TEST(f.table.check(f.from, f.ep, f.generation, 2, 0x7010, 4, kRemoteRead, view) == Status::ok);
  BOOST_TEST(view.offset == 0x10U);
  BOOST_TEST(f.check(2, 0x6fff, 1) == Status::bounds);
  BOOST_TEST(f.check(2, 0x7064, 1) == Status::bounds);
}

BOOST_AUTO_TEST_CASE(test_access_needs_region_and_endpoint) {
  Fixture f;
  f.open(1, 100, kRemoteRead);
  f.open(2, 100, kRemoteWrite);
  BOOST_TEST(f.check(1, 0, 1, kRemoteRead) == Status::ok);
  BOOST_TEST(f.check(1, 0, 1, kRemoteWrite) == Status::access);
  BOOST_TEST(f.check(1, 0, 1, kBoth) == Status::access);
  BOOST_TEST(f.check(2, 0, 1, kRemoteRead) == Status::access);
  f.open(3);
  f.serve(kEpRemoteRead);
  BOOST_TEST(f.check(3, 0, 1, kRemoteRead) == Status::ok);
  BOOST_TEST(f.check(3, 0, 1, kRemoteWrite) == Status::endpoint_access);
}

BOOST_AUTO_TEST_CASE(test_endpoint_serves_atomics_and_rma_by_rights_of_their_own) {
  Fixture f;
  f.open(1);
  f.open(2, 100, kRemoteRead);
  BOOST_TEST(f.check(1, 0, 8, kAtomicWrite) == Status::endpoint_access);
  f.serve(kEpAtomicRead | kEpAtomicWrite);
  BOOST_TEST(f.check(1, 0, 8, kAtomicRead | kAtomicWrite) == Status::ok);
  BOOST_TEST(f.check(1, 0, 8, kRemoteWrite) == Status::endpoint_access);
  BOOST_TEST(f.check(2, 0, 8, kAtomicRead) == Status::ok);
  BOOST_TEST(f.check(2, 0, 8, kAtomicWrite) == Status::access);
}

BOOST_AUTO_TEST_CASE(test_fetches_may_need_both_rights) {
  for (const bool both : {false, true}) {
    Fixture f(1024, kEpAtomicRead | kEpAtomicWrite);
    for (const uint32_t access : {uint32_t{kRemoteRead}, kBoth}) {
      const MrBuffer buffer{0x1000, 100, 0, kNoSegment};
      MrRequest request;
      request.buffers = {&buffer, 1};
      request.access = access;
      request.domain = 3;
      request.client_key = access;
      request.fetches_need_both = both;
      f.table.enable(f.table.insert(request));
      BOOST_TEST(f.check(access, 0, 8, kAtomicRead) == (both && access != kBoth ? Status::access : Status::ok));
    }
  }
}

BOOST_AUTO_TEST_CASE(test_bound_region_is_reachable_through_its_endpoint_only) {
  Fixture f;
  const uint32_t slot = f.insert(1);
  const uint32_t binding = ep_binding(f.ep, f.generation);
  f.table.bind_eps(slot, {&binding, 1});
  f.table.enable(slot);
  uint32_t generation = 0;
  const uint32_t other = f.table.open_ep(3, kEpBoth, {}, &generation);
  MrView view;
  BOOST_TEST(f.check(1) == Status::ok);
  BOOST_TEST(f.table.check(f.from, other, generation, 1, 0, 1, kRemoteWrite, view) == Status::wrong_endpoint);
}

BOOST_AUTO_TEST_CASE(test_bound_region_is_closed_to_a_later_endpoint_of_the_slot) {
  Fixture f;
  const uint32_t slot = f.insert(1);
  const uint32_t binding = ep_binding(f.ep, f.generation);
  f.table.bind_eps(slot, {&binding, 1});
  f.table.enable(slot);
  f.table.close_ep(f.ep);
  uint32_t generation = 0;
  while (f.table.open_ep(3, kEpBoth, {}, &generation) != f.ep) {
  }
  f.generation = generation;
  BOOST_TEST(f.check(1) == Status::wrong_endpoint);
}

BOOST_AUTO_TEST_CASE(test_region_bound_to_several_endpoints_serves_each_of_them) {
  Fixture f;
  // More bindings than the list's first entry holds; their entries in the iov area are freed again.
  struct Ep {
    uint32_t index, generation;
  };
  std::vector<Ep> eps{{f.ep, f.generation}};
  for (int i = 1; i < 40; ++i) {
    uint32_t generation = 0;
    const uint32_t index = f.table.open_ep(3, kEpBoth, {}, &generation);
    eps.push_back({index, generation});
  }
  const Ep stranger = eps.back();
  eps.pop_back();
  std::vector<uint32_t> bindings;
  for (const Ep& ep : eps) bindings.push_back(ep_binding(ep.index, ep.generation));
  MrView view;
  for (uint64_t round = 0; round < kIovEntryCount; ++round) {
    const uint32_t slot = f.insert(1);
    f.table.bind_eps(slot, bindings);
    f.table.enable(slot);
    if (round == 0) {
      for (const Ep& ep : eps) {
        BOOST_TEST(f.table.check(f.from, ep.index, ep.generation, 1, 0, 1, kRemoteWrite, view) == Status::ok);
      }
      BOOST_TEST(f.table.check(f.from, stranger.index, stranger.generation, 1, 0, 1, kRemoteWrite, view) ==
                 Status::wrong_endpoint);
      f.table.disable(slot);
      f.table.bind_eps(slot, std::span(bindings).first(2));  // once more, with others: the first list is freed
      f.table.enable(slot);
      BOOST_TEST(f.table.check(f.from, eps[1].index, eps[1].generation, 1, 0, 1, kRemoteWrite, view) == Status::ok);
      BOOST_TEST(f.table.check(f.from, eps[2].index, eps[2].generation, 1, 0, 1, kRemoteWrite, view) ==
                 Status::wrong_endpoint);
    }
    f.close(slot);
  }
}

BOOST_AUTO_TEST_CASE(test_endpoint_slot_refuses_an_old_generation) {
  Fixture f;
  f.open(1);
  f.table.close_ep(f.ep);
  BOOST_TEST(f.check(1) == Status::no_endpoint);
  uint32_t generation = 0;
  std::vector<uint32_t> opened;
  do opened.push_back(f.table.open_ep(3, kEpBoth, {}, &generation));
  while (opened.back() != f.ep);
  BOOST_TEST(generation != f.generation);
  BOOST_TEST(f.check(1) == Status::no_endpoint);
  f.generation = generation;
  BOOST_TEST(f.check(1) == Status::ok);
  BOOST_TEST(opened.size() >
             1000U);  // the slot that was free longest comes first: readers of the old endpoint have time to finish
}

BOOST_AUTO_TEST_CASE(test_endpoints_are_limited_and_come_back) {
  Fixture f;
  uint32_t generation = 0;
  for (uint32_t i = 1; i < kEpCountMax; ++i) (void)f.table.open_ep(0, 0, {}, &generation);
  BOOST_CHECK_EXCEPTION((void)f.table.open_ep(0, 0, {}, &generation), Error, kNoSpace);
  f.table.close_ep(17);
  BOOST_TEST(f.table.open_ep(0, 0, {}, &generation) == 17U);
}

BOOST_AUTO_TEST_CASE(test_client_keys_are_unique_per_domain) {
  Fixture f;
  f.open(42);
  BOOST_CHECK_EXCEPTION(f.insert(42), Error, [](const Error& e) { return e.fi_code() == fi_err::kENOKEY; });
  const uint32_t other = f.insert(42, 100, kBoth, 4);
  f.table.enable(other);
  BOOST_TEST(f.table.find_client_key(4, 42) == other);
  BOOST_TEST(f.table.find_client_key(5, 42) == TableView::kNoSlot);
  // A key of another domain gives no access through this endpoint.
  const uint32_t only_there = f.insert(43, 100, kBoth, 4);
  f.table.enable(only_there);
  BOOST_TEST(f.check(43) == Status::no_key);
}

BOOST_AUTO_TEST_CASE(test_provider_key_of_a_closed_region_stays_stale) {
  Fixture f(8, kEpBoth | kEpProvKey);
  std::vector<uint64_t> keys;
  for (int i = 0; i < 100; ++i) {
    const uint32_t slot = f.open(std::nullopt);
    keys.push_back(f.table.mr(slot).key);
    BOOST_TEST(f.check(keys.back()) == Status::ok);
    for (size_t old = 0; old + 1 < keys.size(); ++old) BOOST_TEST(f.check(keys[old]) == Status::stale_key);
    f.close(slot);
    BOOST_TEST(f.check(keys.back()) == Status::stale_key);
  }
  BOOST_TEST(f.check(0) == Status::no_key);
  BOOST_TEST(f.check(~uint64_t{0}) == Status::no_key);                       // slot outside the table
  BOOST_TEST(f.check(wire::ProviderKey{0, 1000}.emit()) == Status::no_key);  // a generation that was never used
  BOOST_TEST(f.check(wire::ProviderKey{7, 1}.emit()) == Status::no_key);     // a slot that was never used
}

BOOST_AUTO_TEST_CASE(test_table_full_is_refused_and_a_close_makes_room) {
  Fixture f(8);
  std::vector<uint32_t> slots;
  for (uint64_t k = 0; k < 8; ++k) slots.push_back(f.open(k));
  BOOST_CHECK_EXCEPTION(f.insert(100), Error, kNoSpace);
  f.close(slots[3]);
  BOOST_TEST(f.open(100) == slots[3]);
}

BOOST_AUTO_TEST_CASE(test_table_size_must_be_a_power_of_two) {
  const auto invalid = [](const Error& e) { return e.fi_code() == fi_err::kEINVAL; };
  for (uint32_t n : {0u, 3u, 1000u, 1u << 22, ~0u}) BOOST_CHECK_EXCEPTION(Table{n}, Error, invalid);
}

BOOST_AUTO_TEST_CASE(test_refused_insert_of_many_buffers_leaks_no_slot) {
  Fixture f(16);
  std::vector<MrBuffer> buffers(kIovEntryCount / 2 + 1, MrBuffer{0x1000, 1, 0, kNoSegment});
  MrRequest request;
  request.buffers = buffers;
  request.access = kBoth;
  request.domain = 3;
  request.client_key = 1;
  (void)f.table.insert(request);
  for (uint64_t k = 2; k < 100; ++k) {
    request.client_key = k;
    BOOST_CHECK_EXCEPTION(f.table.insert(request), Error, kNoSpace);
  }
  for (uint64_t k = 2; k < 17; ++k) f.open(k);
  BOOST_TEST(f.table.live_count() == 16U);
}

BOOST_AUTO_TEST_CASE(test_buffer_entries_of_closed_regions_join_again) {
  Fixture f(1 << 16);
  const auto insert = [&](size_t count, uint64_t key) {
    std::vector<MrBuffer> buffers(count, MrBuffer{0x1000, 10, 0, kNoSegment});
    MrRequest request;
    request.buffers = buffers;
    request.access = kBoth;
    request.domain = 3;
    request.client_key = key;
    return f.table.insert(request);
  };
  for (const bool last_first : {false, true}) {
    std::vector<uint32_t> slots;
    for (uint64_t k = 0; k < kIovEntryCount / 2; ++k) slots.push_back(insert(2, k));
    BOOST_CHECK_EXCEPTION(insert(3, 1 << 20), Error, kNoSpace);
    if (last_first) std::ranges::reverse(slots);
    for (const uint32_t slot : slots) f.close(slot);
    const uint32_t all = insert(kIovEntryCount - 10, 1);
    BOOST_TEST(f.table.iov(f.table.mr(all)).size() == kIovEntryCount - 10);
    BOOST_TEST(f.table.mr(all).length == 10u * (kIovEntryCount - 10));
    f.close(all);
  }
}

BOOST_AUTO_TEST_CASE(test_table_random_inserts_and_closes_keep_other_keys) {
  Fixture f(1 << 12);
  std::mt19937_64 random(5);
  std::map<uint64_t, uint32_t> live;
  for (int step = 0; step < 60'000; ++step) {
    // Dense keys make long runs in the index; erasing them makes tombstones, and tombstones cause rebuilds.
    const uint64_t key = random() % 8 == 0 ? random() : random() % 6000;
    const auto it = live.find(key);
    if (it != live.end()) {
      f.close(it->second);
      live.erase(it);
      BOOST_REQUIRE(f.check(key) == Status::no_key);
    } else if (live.size() < 4096) {
      live.emplace(key, f.open(key));
      BOOST_REQUIRE(f.check(key) == Status::ok);
    }
    if (step % 5000 == 0) {
      for (const auto& [k, slot] : live) BOOST_REQUIRE(f.table.find_client_key(3, k) == slot);
    }
  }
  for (const auto& [k, slot] : live) BOOST_REQUIRE(f.table.find_client_key(3, k) == slot);
  BOOST_TEST(f.table.header().index_version.load() > 0U);
  BOOST_TEST(f.table.live_count() == live.size());
}

BOOST_AUTO_TEST_CASE(test_small_table_survives_any_order_of_keys) {
  for (uint32_t size : {1u, 2u, 8u, 32u}) {
    Fixture f(size);
    std::mt19937_64 random(size);
    std::vector<std::pair<uint64_t, uint32_t>> live;
    for (int step = 0; step < 5000; ++step) {
      if (live.size() < size && random() % 2 == 0) {
        const uint64_t key = static_cast<uint64_t>(step);
        live.emplace_back(key, f.open(key));
      } else if (!live.empty()) {
        const size_t at = random() % live.size();
        f.close(live[at].second);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      }
      for (const auto& [k, slot] : live) BOOST_REQUIRE(f.table.find_client_key(3, k) == slot);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_a_hundred_thousand_regions_are_all_reachable) {
  Fixture f(1 << 17);
  for (uint64_t k = 0; k < 100'000; ++k) f.open(k * 7);
  BOOST_TEST(f.table.live_count() == 100'000U);
  uint64_t wrong = 0;
  for (uint64_t k = 0; k < 100'000; ++k) wrong += f.check(k * 7) != Status::ok;
  for (uint64_t k = 0; k < 100'000; ++k) wrong += f.check(k * 7 + 1) != Status::no_key;
  BOOST_TEST(wrong == 0U);
}

/// An owner killed during a rebuild of its index leaves an odd version; a reader must not wait for that owner without
/// end.
BOOST_AUTO_TEST_CASE(test_reader_stops_if_the_owner_died_in_a_rebuild) {
  Fixture f(64);
  f.open(1);
  f.open(2);
  f.table.begin_close(0);
  f.table.release(0);  // key 1 leaves a tombstone, so that readers take the slow search
  auto& version = const_cast<std::atomic<uint64_t>&>(f.table.header().index_version);
  version.fetch_add(1);
  BOOST_TEST(f.check(1) == Status::no_key);
  BOOST_TEST(f.check(2) == Status::ok);
  version.fetch_add(1);
}

#if defined(WEFT_TEST_STEPWISE)
BOOST_AUTO_TEST_CASE(test_flag_that_is_added_while_the_region_is_disabled_leaves_it_disabled) {
  for (uint64_t steps = 0, more = 1; more != 0; ++steps) {
    Fixture f(64);
    const uint32_t slot = f.open(1);
    more = test::interrupted(
               steps, [&] { f.table.add_access_flags(slot, kMrNotifyRead); }, [&] { f.table.disable(slot); })
               ? 1
               : 0;
    BOOST_TEST(f.check(1) == (more != 0 ? Status::not_enabled : Status::ok));
  }
}
#endif

/// The activity protocol (table.hpp): readers publish an activity word and check; the owner revokes, waits for the
/// words, then changes the memory of the region. No reader gets `ok` while the test's guard says "closed".
void hammer(bool provider_keys) {
  constexpr uint32_t kRegions = 4;
  constexpr int kReaders = 3;
  Fixture f(64, kEpBoth | (provider_keys ? kEpProvKey : 0));
  struct Guard {
    std::atomic<uint64_t> open{0};  // the key of the open region
    std::atomic<uint64_t> key{0};   // the key that readers try
  } guards[kRegions];
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0}, ok{0}, refused{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < kReaders; ++r) {
    readers.emplace_back([&, r] {
      auto& word = f.table.own_activity(static_cast<uint32_t>(r)).word;
      std::mt19937 random(static_cast<unsigned>(r));
      uint64_t mine = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        Guard& guard = guards[random() % kRegions];
        const uint64_t key = guard.key.load(std::memory_order_relaxed);
        word.exchange(++mine, std::memory_order_seq_cst);  // odd: busy
        if (f.check(key) == Status::ok) {
          if (guard.open.load(std::memory_order_relaxed) != key) wrong.fetch_add(1);
          ok.fetch_add(1, std::memory_order_relaxed);
        } else {
          refused.fetch_add(1, std::memory_order_relaxed);
        }
        word.store(++mine, std::memory_order_release);
        if (mine % 128 == 0) std::this_thread::yield();
      }
    });
  }
  uint64_t next_key = 100;
  uint32_t slots[kRegions] = {};
  for (int round = 0; round < 3000; ++round) {
    const auto i = static_cast<uint32_t>(round) % kRegions;
    Guard& guard = guards[i];
    if (guard.open.load(std::memory_order_relaxed) != 0) {
      f.table.begin_close(slots[i]);
      for (uint32_t r = 0; r < kReaders; ++r) {
        const auto& word = f.table.own_activity(r).word;
        const uint64_t seen = word.load(std::memory_order_seq_cst);
        while ((seen & 1) != 0 && word.load(std::memory_order_acquire) == seen) std::this_thread::yield();
      }
      guard.open.store(0, std::memory_order_relaxed);
      f.table.release(slots[i]);
    }
    // Client keys: some are used again, and may become valid for a reader that read the key long ago: that is allowed.
    const uint64_t key = next_key++;
    slots[i] = f.insert(provider_keys ? std::nullopt : std::optional(key));
    const uint64_t real = provider_keys ? f.table.mr(slots[i]).key : key;
    guard.open.store(real, std::memory_order_relaxed);
    f.table.enable(slots[i]);
    guard.key.store(real, std::memory_order_relaxed);
    if (round % 16 == 0) std::this_thread::yield();
  }
  // The machine may have run no reader until now. The regions are open, and their keys are known.
  while (ok.load(std::memory_order_relaxed) == 0) std::this_thread::yield();
  stop.store(true);
  for (auto& t : readers) t.join();
  BOOST_TEST(wrong.load() == 0U);
  BOOST_TEST(ok.load() > 0U);
  BOOST_TEST_MESSAGE("ok " << ok.load() << ", refused " << refused.load());
}

BOOST_AUTO_TEST_CASE(test_readers_never_reach_a_closed_region_with_client_keys) {
  hammer(false);
}
BOOST_AUTO_TEST_CASE(test_readers_never_reach_a_closed_region_with_provider_keys) {
  hammer(true);
}

/// A rebuild of the index hides no key from a reader at any moment.
BOOST_AUTO_TEST_CASE(test_readers_find_a_live_key_throughout_rebuilds) {
  Fixture f(1 << 10);
  for (uint64_t k = 0; k < 64; ++k) f.open(k * 3);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> missed{0}, found{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&] {
      for (uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
        (f.check(i % 64 * 3) == Status::ok ? found : missed).fetch_add(1, std::memory_order_relaxed);
        if (i % 256 == 0) std::this_thread::yield();
      }
    });
  }
  while (found.load() == 0 && missed.load() == 0) std::this_thread::yield();  // a reader runs: the machine may be busy
  for (int round = 0; round < 300; ++round) {
    std::vector<uint32_t> slots;
    for (uint64_t k = 0; k < 100; ++k) slots.push_back(f.open(k / 2 * 3 + 1 + k % 2));
    for (const uint32_t slot : slots) f.close(slot);
    if (round % 8 == 0) std::this_thread::yield();
  }
  stop.store(true);
  for (auto& t : readers) t.join();
  BOOST_TEST(missed.load() == 0U);
  BOOST_TEST(found.load() > 0U);
  BOOST_TEST(f.table.header().index_version.load() > 100U);
}

BOOST_AUTO_TEST_CASE(guarded_region_admits_its_keys_and_its_peer_alone) {
  Fixture f;
  AccessGuard guard;
  guard.vni_count = 2;
  guard.vnis[0] = 7;
  guard.vnis[1] = 9;
  const auto enter = [&](uint64_t key) {
    const MrBuffer buffer{0x1000, 100, 0, kNoSegment};
    MrRequest request;
    request.buffers = {&buffer, 1};
    request.access = kBoth;
    request.domain = 3;
    request.client_key = key;
    request.guard = &guard;
    const uint32_t slot = f.table.insert(request);
    f.table.enable(slot);
    return slot;
  };
  const uint32_t by_key = enter(1);
  guard.has_source = 1;
  guard.source = {0, 5, 9, 0};
  const uint32_t by_peer = enter(2);
  BOOST_TEST(f.check(1) == Status::ok);
  f.from.vni = 8;
  BOOST_TEST(f.check(1) == Status::unauthorized);
  BOOST_TEST(f.check(1, 0, 101) == Status::bounds);
  f.from.vni = 9;
  BOOST_TEST(f.check(1) == Status::ok);
  BOOST_TEST(f.check(2) == Status::unauthorized);  // the key is right, the endpoint is wrong
  f.from.pid = 5;
  BOOST_TEST(f.check(2) == Status::ok);
  f.close(by_key);
  f.close(by_peer);
  // Their entries in the iov area are free again.
  for (int i = 0; i < 3 * static_cast<int>(kIovEntryCount / kIovPerRecord); ++i) f.close(enter(3));
}

BOOST_AUTO_TEST_CASE(device_notes_lie_with_their_buffers_and_are_given_back) {
  Fixture f;
  const MrBuffer buffers[] = {{0x1000, 100, 0, kNoSegment}, {0x5000, 50, 0, kNoSegment}};
  DeviceNote notes[2];
  notes[1].iface = 1;
  notes[1].base = 0x4000;
  for (int round = 0; round < 3 * static_cast<int>(kIovEntryCount); round += 5) {
    MrRequest request;
    request.buffers = buffers;
    request.notes = notes;
    request.access = kBoth;
    request.client_key = 1;
    const uint32_t slot = f.table.insert(request);
    f.table.enable(slot);
    const auto list = f.table.iov(f.table.mr(slot));
    BOOST_REQUIRE(list.size() == 2);
    BOOST_TEST(list[0].segment == kNoSegment);
    BOOST_TEST(list[1].segment == kDeviceSegment);
    const DeviceNote* note = f.table.note(list[1].where);
    BOOST_REQUIRE(note != nullptr);
    BOOST_TEST(note->base == 0x4000u);
    f.close(slot);
  }
  MrRequest single;
  single.buffers = {&buffers[1], 1};
  single.notes = {&notes[1], 1};
  single.access = kBoth;
  single.client_key = 2;
  for (int round = 0; round < 3 * static_cast<int>(kIovEntryCount / kIovPerRecord); ++round) {
    const uint32_t slot = f.table.insert(single);
    BOOST_TEST(f.table.mr(slot).segment == kDeviceSegment);
    f.close(slot);
  }
  BOOST_TEST(f.table.note(kIovEntryCount) == nullptr);
  BOOST_TEST(f.table.note(~uint64_t{0}) == nullptr);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
