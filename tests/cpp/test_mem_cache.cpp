// tests/cpp/test_mem_cache.cpp: the registration cache: what it finds, what it removes, and when.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "base/status.hpp"
#include "mem/cache.hpp"

namespace {

using namespace weft;
using namespace weft::mem;

constexpr uint64_t kPage = 4096;

// A monitor that watches nothing: the test reports the changes.
class FakeMonitor final : public Monitor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "fake"; }
  [[nodiscard]] bool available(std::string*) override { return true; }
  bool subscribe(uint64_t begin, uint64_t end, ChangeLog& to, std::string* why) override {
    if (refuses) {
      *why = "this kind of memory cannot be watched";
      return false;
    }
    log = &to;
    ++ranges[{begin, end}];
    return true;
  }
  void unsubscribe(uint64_t begin, uint64_t end, ChangeLog&) noexcept override {
    if (--ranges[{begin, end}] == 0) ranges.erase({begin, end});
  }
  [[nodiscard]] bool changing(uint64_t, uint64_t) noexcept override { return in_flight; }
  [[nodiscard]] bool active() noexcept override { return !ranges.empty(); }
  [[nodiscard]] bool checks_hits() const noexcept override { return checks; }
  [[nodiscard]] bool valid(const CachedMapping& mapping, uint64_t, uint64_t) override {
    return mapping.buffer_id == buffer_id;
  }

  bool refuses = false, in_flight = false, checks = false;
  uint64_t buffer_id = 0;
  ChangeLog* log = nullptr;
  std::map<std::pair<uint64_t, uint64_t>, int> ranges;
};

struct Stack {
  explicit Stack(uint64_t count = 100, uint64_t bytes = kUnlimited) : cache({count, bytes}, monitor) {}
  // user: the number of the resolution.
  RegistrationCache::Ref search(uint64_t address, uint64_t length, uint32_t iface = kHmemSystem, uint64_t device = 0) {
    return cache.search(address, length, iface, device, [&](uint64_t a, uint64_t n) {
      CachedMapping m;
      m.address = a;
      m.length = n;
      m.buffer_id = monitor->buffer_id;
      m.user = ++resolved;
      return m;
    });
  }
  std::shared_ptr<FakeMonitor> monitor = std::make_shared<FakeMonitor>();
  RegistrationCache cache;
  uint64_t resolved = 0;
};

BOOST_AUTO_TEST_SUITE(mem_cache)

BOOST_AUTO_TEST_CASE(test_cache_hit_is_an_entry_that_contains_the_range) {
  Stack s;
  const auto first = s.search(16 * kPage, 4 * kPage);
  BOOST_TEST(first.cached());
  BOOST_TEST(s.search(16 * kPage, 4 * kPage)->user == 1U);
  BOOST_TEST(s.search(17 * kPage + 5, 100)->user == 1U);
  BOOST_TEST(s.search(16 * kPage, 4 * kPage + 1)->user == 2U);  // one byte more
  BOOST_TEST(s.search(16 * kPage - 1, 1)->user == 3U);
  const CacheStatistics counts = s.cache.statistics();
  BOOST_TEST(counts.hits == 2U);
  BOOST_TEST(counts.misses == 3U);
  BOOST_TEST(counts.held == 1U);
}

BOOST_AUTO_TEST_CASE(test_cache_system_memory_entry_covers_the_pages_asked_for) {
  Stack s;
  const auto found = s.cache.search(10 * kPage + 10, 20, kHmemSystem, 0, [](uint64_t, uint64_t) {
    CachedMapping m;
    m.address = 0;  // the resolver returns a much larger mapping
    m.length = 1 << 30;
    return m;
  });
  BOOST_TEST(found->address == 10 * kPage);
  BOOST_TEST(found->length == kPage);
  BOOST_TEST(s.search(10 * kPage, kPage)->user == 0U);
  BOOST_TEST(s.search(11 * kPage, 1)->user == 1U);
}

BOOST_AUTO_TEST_CASE(test_cache_interface_and_device_are_part_of_the_key) {
  Stack s;
  const auto device_monitor = std::make_shared<FakeMonitor>();
  s.cache.set_monitor(1, device_monitor);
  BOOST_TEST(s.search(kPage, 64)->user == 1U);
  BOOST_TEST(s.search(kPage, 64, 1, 0)->user == 2U);
  BOOST_TEST(s.search(kPage, 64, 1, 1)->user == 3U);
  BOOST_TEST(s.search(kPage, 64, 1, 0)->user == 2U);
  BOOST_TEST(s.search(kPage, 64)->user == 1U);
  BOOST_TEST(s.cache.notify(1, 0, ~uint64_t{0}) == 2U);  // both devices; entries of system memory stay
  BOOST_TEST(s.search(kPage, 64)->user == 1U);
  BOOST_TEST(!s.search(kPage, 64, 2, 0).cached());  // no monitor watches that interface
}

BOOST_AUTO_TEST_CASE(test_cache_change_removes_entries_and_marks_held_refs_stale) {
  Stack s;
  const auto low = s.search(0x10 * kPage, 2 * kPage);
  const auto high = s.search(0x20 * kPage, 2 * kPage);
  s.monitor->log->push({0x11 * kPage, 0x12 * kPage, true});
  BOOST_TEST(s.search(0x10 * kPage, 2 * kPage)->user == 3U);
  BOOST_TEST(low.stale());
  BOOST_TEST(low->user == 1U);  // still readable
  BOOST_TEST(!high.stale());
  BOOST_TEST(s.cache.statistics().invalidations == 1U);
}

BOOST_AUTO_TEST_CASE(test_cache_change_while_resolving_is_not_kept) {
  Stack s;
  const auto found = s.cache.search(kPage, 64, kHmemSystem, 0, [&](uint64_t a, uint64_t n) {
    s.monitor->log->push({kPage, 2 * kPage, true});
    (void)s.cache.statistics();  // another thread reads the changes before the resolver returns
    CachedMapping m;
    m.address = a;
    m.length = n;
    return m;
  });
  BOOST_TEST(!found.cached());
  BOOST_TEST(s.cache.statistics().entries == 0U);
  s.monitor->in_flight = true;  // began before the subscription, and has not taken effect yet
  BOOST_TEST(!s.search(kPage, 64).cached());
  s.monitor->in_flight = false;
  BOOST_TEST(s.search(kPage, 64).cached());
}

BOOST_AUTO_TEST_CASE(test_cache_log_overflow_removes_all_entries) {
  Stack s;
  (void)s.search(kPage, 64);
  (void)s.search(1000 * kPage, 64);
  for (size_t i = 0; i < ChangeLog::kChangeMax + 1; ++i) s.monitor->log->push({kPage, 2 * kPage, true});
  BOOST_TEST(!s.cache.find(1000 * kPage, 64, kHmemSystem, 0));
  BOOST_TEST(s.cache.statistics().entries == 0U);
}

BOOST_AUTO_TEST_CASE(test_cache_count_limit_evicts_the_oldest_unheld_entry) {
  Stack s(3);
  auto held = s.search(1 * kPage, 64);
  (void)s.search(2 * kPage, 64);
  (void)s.search(3 * kPage, 64);
  (void)s.search(2 * kPage, 64);  // used again
  (void)s.search(4 * kPage, 64);  // replaces 3
  BOOST_TEST(static_cast<bool>(s.cache.find(1 * kPage, 64, 0, 0)));
  BOOST_TEST(static_cast<bool>(s.cache.find(2 * kPage, 64, 0, 0)));
  BOOST_TEST(!s.cache.find(3 * kPage, 64, 0, 0));
  BOOST_TEST(s.cache.statistics().evictions == 1U);
  const auto also = s.search(2 * kPage, 64);
  const auto third = s.search(4 * kPage, 64);
  BOOST_TEST(!s.search(5 * kPage, 64).cached());  // all three are held
  BOOST_TEST(s.cache.statistics().entries == 3U);
  held.reset();
  BOOST_TEST(s.search(5 * kPage, 64).cached());
}

BOOST_AUTO_TEST_CASE(test_cache_bytes_limit_counts_all_entries) {
  Stack s(100, 10 * kPage);
  (void)s.search(0x100 * kPage, 6 * kPage);
  (void)s.search(0x200 * kPage, 4 * kPage);
  BOOST_TEST(s.cache.statistics().bytes == 10 * kPage);
  (void)s.search(0x300 * kPage, kPage);
  BOOST_TEST(s.cache.statistics().bytes == 5 * kPage);
  BOOST_TEST(!s.search(0x400 * kPage, 11 * kPage).cached());
  BOOST_TEST(s.cache.statistics().entries == 2U);
}

BOOST_AUTO_TEST_CASE(test_cache_of_no_entries_resolves_every_time) {
  Stack s(0);
  BOOST_TEST(s.search(kPage, 64)->user == 1U);
  BOOST_TEST(s.search(kPage, 64)->user == 2U);
  BOOST_TEST(s.monitor->ranges.empty());
}

BOOST_AUTO_TEST_CASE(test_cache_subscribes_each_entry_and_ends_it_with_the_entry) {
  Stack s(2);
  BOOST_TEST(s.monitor->ranges.empty());
  (void)s.search(1 * kPage, 64);
  (void)s.search(2 * kPage, 64);
  (void)s.search(3 * kPage, 64);
  BOOST_TEST(s.monitor->ranges.size() == 2U);
  BOOST_CHECK_THROW(
      (void)s.cache.search(9 * kPage, 64, 0, 0,
                           [](uint64_t, uint64_t) -> CachedMapping { throw Error(fi_err::kEFAULT, "nothing there"); }),
      Error);
  BOOST_TEST(s.monitor->ranges.size() == 2U);
  BOOST_TEST(s.cache.flush(true) == 2U);
  BOOST_TEST(s.monitor->ranges.empty());
  s.monitor->refuses = true;
  BOOST_TEST(!s.search(kPage, 64).cached());
  BOOST_TEST(s.cache.reason() == "this kind of memory cannot be watched");
}

BOOST_AUTO_TEST_CASE(test_cache_hit_refused_by_the_monitor_is_resolved_again) {
  Stack s;
  const auto device = std::make_shared<FakeMonitor>();
  device->checks = true;
  s.cache.set_monitor(1, device);
  const auto held = s.search(kPage, 64, 1, 0);
  BOOST_TEST(s.search(kPage, 64, 1, 0)->user == 1U);
  device->buffer_id = s.monitor->buffer_id = 7;  // another allocation has that address now
  BOOST_TEST(s.search(kPage, 64, 1, 0)->user == 2U);
  BOOST_TEST(held.stale());
  BOOST_TEST(s.search(kPage, 64, 1, 0)->user == 2U);
  s.cache.set_enabled(1, false);
  BOOST_TEST(!s.search(kPage, 64, 1, 0).cached());
}

BOOST_AUTO_TEST_CASE(test_cache_imported_monitor_has_precedence_until_removed) {
  Stack s;
  const auto mine = std::make_shared<FakeMonitor>();
  const auto held = s.search(kPage, 64);
  s.cache.import_monitor(kHmemSystem, mine);
  BOOST_TEST(held.stale());
  BOOST_TEST(s.monitor->ranges.empty());
  (void)s.search(kPage, 64);
  BOOST_TEST(mine->ranges.size() == 1U);
  s.cache.import_monitor(kHmemSystem, nullptr);
  BOOST_TEST(mine->ranges.empty());
  BOOST_TEST(s.search(kPage, 64).cached());
  BOOST_TEST(s.monitor->ranges.size() == 1U);
}

BOOST_AUTO_TEST_CASE(test_cache_imported_monitor_stays_while_another_thread_sets_the_nics_own) {
  Stack s;
  std::atomic<bool> ends{false};
  std::thread other([&] {
    while (!ends) s.cache.set_monitor(1, std::make_shared<FakeMonitor>());
  });
  bool stays = true;
  for (int i = 0; i < 100'000 && stays; ++i) {
    const auto mine = std::make_shared<FakeMonitor>();
    s.cache.import_monitor(1, mine);
    stays = s.cache.monitor(1) == mine;
  }
  ends = true;
  other.join();
  BOOST_TEST(stays);
}

BOOST_AUTO_TEST_CASE(test_cache_flush_keeps_held_entries_by_default) {
  Stack s;
  const auto held = s.search(kPage, 64);
  (void)s.search(2 * kPage, 64);
  BOOST_TEST(s.cache.flush(true) == 1U);
  BOOST_TEST(!held.stale());
  BOOST_TEST(s.cache.flush(false) == 1U);
  BOOST_TEST(held.stale());
  BOOST_TEST(held->user == 1U);
}

BOOST_AUTO_TEST_CASE(test_cache_resolver_must_contain_the_requested_range) {
  Stack s;
  BOOST_CHECK_EXCEPTION((void)s.cache.search(kPage, 64, 0, 0,
                                             [](uint64_t a, uint64_t) {
                                               CachedMapping m;
                                               m.address = a;
                                               m.length = 63;
                                               return m;
                                             }),
                        Error, [](const Error& e) { return e.fi_code() == fi_err::kEINVAL; });
  BOOST_CHECK_THROW((void)s.search(kPage, 0), Error);
  BOOST_CHECK_THROW((void)s.search(~uint64_t{0} - 1, 64), Error);
  BOOST_CHECK_THROW((void)s.search(kPage, 64, kIfaceMax, 0), Error);
  BOOST_TEST(s.monitor->ranges.empty());
}

// Compares the cache with a list of ranges: random look-ups, changes, holds and drops.
BOOST_AUTO_TEST_CASE(test_cache_random_operations_agree_with_a_list) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 30; ++round) {
    Stack s(1 + random() % 40);
    struct Known {
      uint64_t begin, end, user;
    };
    std::vector<Known> model;  // may have more entries than the cache, never fewer
    std::vector<RegistrationCache::Ref> held;
    for (int step = 0; step < 400; ++step) {
      const uint64_t begin = random() % 64 * kPage;
      const uint64_t length = (1 + random() % 8) * kPage;
      switch (random() % 8) {
        case 0:
          if (s.monitor->log != nullptr) s.monitor->log->push({begin, begin + length, true});
          std::erase_if(model, [&](const Known& k) { return k.begin < begin + length && begin < k.end; });
          break;
        case 1:
          if (!held.empty()) held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
          break;
        default: {
          const uint64_t before = s.resolved;
          auto ref = s.search(begin, length);
          BOOST_REQUIRE((ref->address <= begin && begin + length <= ref->address + ref->length));
          if (s.resolved == before) {
            BOOST_REQUIRE(std::ranges::any_of(model, [&](const Known& k) {
              return k.user == ref->user && k.begin <= begin && begin + length <= k.end;
            }));
            BOOST_REQUIRE(!ref.stale());
          } else if (ref.cached()) {
            model.push_back({begin, begin + length, ref->user});
          }
          if (random() % 4 == 0 && held.size() < 20) held.push_back(std::move(ref));
        }
      }
      const CacheStatistics counts = s.cache.statistics();
      BOOST_REQUIRE(counts.entries <= s.cache.limits().count_max);
      BOOST_REQUIRE(counts.held <= held.size());
    }
    held.clear();
    (void)s.cache.flush(true);
    BOOST_TEST(s.cache.statistics().entries == 0U);
    BOOST_TEST(s.cache.statistics().bytes == 0U);
    BOOST_TEST(s.monitor->ranges.empty());
  }
}

BOOST_AUTO_TEST_CASE(test_cache_threads_search_notify_and_flush_together) {
  // A monitor of its own whose maps are not shared with the test; it only counts subscriptions.
  class Counting final : public Monitor {
   public:
    [[nodiscard]] std::string_view name() const noexcept override { return "counting"; }
    [[nodiscard]] bool available(std::string*) override { return true; }
    bool subscribe(uint64_t, uint64_t, ChangeLog&, std::string*) override {
      ++count;
      return true;
    }
    void unsubscribe(uint64_t, uint64_t, ChangeLog&) noexcept override { --count; }
    [[nodiscard]] bool active() noexcept override { return count != 0; }
    std::atomic<int> count{0};
  };
  const auto monitor = std::make_shared<Counting>();
  RegistrationCache cache({50, kUnlimited}, monitor);
  std::atomic<uint64_t> version{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int i = 0; i < 4000; ++i) {
        const uint64_t at = random() % 100 * kPage;
        if (t == 0 && i % 64 == 0) {
          version.fetch_add(1);
          (void)cache.notify(kHmemSystem, 0, ~uint64_t{0});
        } else if (t == 1 && i % 100 == 0) {
          (void)cache.flush(true);
        } else {
          const uint64_t before = version.load();
          const auto ref = cache.search(at, kPage, kHmemSystem, 0, [&](uint64_t a, uint64_t n) {
            CachedMapping m;
            m.address = a;
            m.length = n;
            m.user = version.load();
            return m;
          });
          // After notify() has returned, look-ups no longer find the removed entry. The version is raised before
          // notify().
          if (ref->user + 1 < before) ++wrong;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  BOOST_TEST(wrong == 0);
  (void)cache.flush(false);
  BOOST_TEST(monitor->count == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
