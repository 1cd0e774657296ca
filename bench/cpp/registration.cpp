// bench/cpp/registration.cpp: registration, access among many regions, and the registration cache.
#include "mem/maps.hpp"
#include "sides.hpp"

namespace weft::bench {

namespace {

// What `count` regions need of new memory, without Weft: an object of the heap each, an entry in a shared table, and a
// word at a random place of the table's index. Nanoseconds each.
double new_memory_ns(uint64_t count, uint64_t index_words) {
  constexpr uint64_t kObject = sizeof(nic::MemoryRegion) + 16, kEntry = sizeof(mem::MrEntry);
  const uint64_t index_at = count * kEntry, bytes = index_at + index_words * 4;
  const auto table = Mapping::shared(make_memfd("bench-table", bytes).get(), bytes, true, "");
  void* const heap = ::mmap(nullptr, count * kObject, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (heap == MAP_FAILED) die("mmap");
  std::mt19937_64 random(3);
  const double start = now_ns();
  for (uint64_t i = 0; i < count; ++i) {
    std::memset(static_cast<std::byte*>(heap) + i * kObject, 1, kObject);
    std::memset(table.data() + i * kEntry, 1, kEntry);
    std::memset(table.data() + index_at + random() % index_words * 4, 1, 4);
  }
  const double each = (now_ns() - start) / static_cast<double>(count);
  ::munmap(heap, count * kObject);
  return each;
}

}  // namespace

void bench_registration() {
  Fabric f(true, 1 << 21);
  auto& domain = *f.side.domain;
  const iovec v{f.local, kBytes};
  const auto reg = [&](uint64_t key) {
    return domain.register_region({&v, 1}, mem::kRemoteRead | mem::kRemoteWrite, key, false, true);
  };
  std::string why;
  uint64_t next_key = uint64_t{1} << 32;
  const auto cycle = [&](const char* with, bool has_budget) {
    std::vector<std::shared_ptr<nic::MemoryRegion>> regions(1000);
    std::vector<double> opens, closes;
    for (int b = 0; b < 31; ++b) {
      double start = now_ns();
      for (auto& r : regions) r = reg(next_key++);
      opens.push_back((now_ns() - start) / 1000);
      start = now_ns();
      for (auto& r : regions) r->close(&why);
      closes.push_back((now_ns() - start) / 1000);
    }
    const auto o = quantiles(opens), c = quantiles(closes);
    add({std::string("register 4 MiB, ") + with, "ns", o.median, o.p99, "", 0, has_budget ? "<= 100 ns" : "",
         !has_budget || o.median <= 100});
    add({std::string("deregister, ") + with, "ns", c.median, c.p99, "", 0, {}, true});
  };
  // The first keys touch the pages of the table's index, which is 16 MiB here, at random: a page fault each at first.
  cycle("first keys of a new table", false);
  for (int i = 0; i < 60'000; ++i) reg(next_key++)->close(&why);
  cycle("few regions live", true);
  // Access through the process's own NIC: does the number of regions matter? Keys in random order, so that no cache
  // line
  // is in a cache.
  const uint64_t self = f.side.av->insert(f.side.ep->address());
  std::mt19937_64 random(2);
  const auto access = [&](const std::vector<uint64_t>& keys) {
    size_t at = 0;
    nic::CqEntry entry;
    return measure(2000, [&] {
      f.side.one(nic::OpKind::write, f.local, 8, self, 0, keys[at]);
      at = at + 1 == keys.size() ? 0 : at + 1;
      if (f.side.take(&entry, 1) != 1) f.side.wait_one();
    });
  };
  std::vector<std::shared_ptr<nic::MemoryRegion>> all;
  all.push_back(reg(10));
  const auto one = access({10});
  all.reserve(1'000'001);
  std::vector<uint64_t> keys;
  const double start = now_ns();
  for (uint64_t k = 0; k < 1'000'000; ++k) {
    keys.push_back(1000 + k);
    all.push_back(reg(1000 + k));
  }
  const double each = (now_ns() - start) / 1e6;
  const double bare = new_memory_ns(1'000'000, 1 << 22);
  add({"register 10^6 regions, each", "ns", each, each, "as much new memory, written", bare, "<= limit + 100 ns",
       each <= bare + 100});
  cycle("10^6 live", true);
  std::vector<uint64_t> few(keys.begin(), keys.begin() + 1000);
  const auto thousand = access(few);
  add({"put 8 B to 1,000 of 10^6 regions in turn",
       "ns",
       thousand.median,
       thousand.p99,
       "the same region always",
       one.median,
       {},
       true});
  std::shuffle(keys.begin(), keys.end(), random);
  const auto million = access(keys);
  // Four lines of memory that are in no cache: endpoint and key entry, index word, and the completion.
  add({"put 8 B to 10^6 regions at random",
       "ns",
       million.median,
       million.p99,
       "the same region always",
       one.median,
       {},
       true});
  for (auto& r : all) r->close(&why);
}

void bench_cache() {
  constexpr uint64_t kPage = 4096, kEntries = 1000;
  mem::RegistrationCache cache({}, mem::make_system_monitor(""));
  const auto room =
      Mapping::shared(make_memfd("bench-cache", kEntries * 2 * kPage).get(), kEntries * 2 * kPage, true, "");
  const auto at = [&](uint64_t i) { return reinterpret_cast<uint64_t>(room.data()) + i * 2 * kPage; };
  uint64_t resolved = 0;
  const auto search = [&](uint64_t address, uint64_t length) {
    const auto ref = cache.search(address, length, mem::kHmemSystem, 0, [&](uint64_t a, uint64_t n) {
      ++resolved;
      mem::CachedMapping m;
      m.address = a;
      m.length = n;
      return m;
    });
    return ref->persistent;
  };
  for (uint64_t i = 0; i < kEntries; ++i) (void)search(at(i), kPage);
  const auto same = measure(1000, [&] { (void)search(at(5) + 8, 64); });
  std::mt19937_64 random(1);
  std::vector<uint64_t> order(4096);
  for (uint64_t& i : order) i = random() % kEntries;
  size_t next = 0;
  const auto any = measure(1000, [&] { (void)search(at(order[next++ % order.size()]), 64); });
  if (resolved != kEntries) die("the cache resolved what it had");
  const auto asked = measure(
      10, [&] { (void)mem::describe_system_memory(at(5), 64); });  // the cost that a hit saves, in a small process
  const char* limit = "/proc/self/maps";
  add({"cache hit, the same range", "ns", same.median, same.p99, limit, asked.median, "<= 150 ns", same.median <= 150});
  add({"cache hit, one of 1,000 at random", "ns", any.median, any.p99, limit, asked.median, "<= 150 ns",
       any.median <= 150});
  // The monitor's cost for the rest of the program: a pair of calls that concerns no entry, with and without the
  // monitor.
  const auto pair = [] {
    void* p = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ::munmap(p, kPage);
  };
  const auto hooked = measure(100, pair);
  (void)cache.flush(false);
  const auto bare = measure(100, pair);
  add({"mmap + munmap of another's, watched", "ns", hooked.median, hooked.p99, "not watched", bare.median, {}, true});
}

}  // namespace weft::bench
