// tests/cpp/test_mem_monitor.cpp: one suite over both monitors of system memory: when a call that unmaps, moves,
// replaces
// or drops memory has returned, the cache no longer finds that memory.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/status.hpp"
#include "mem/cache.hpp"
#include "mem/maps.hpp"
#include "mem/segment.hpp"
#include "page.hpp"

namespace {

using namespace weft;
using weft::test::kPage;
using namespace weft::mem;
namespace data = boost::unit_test::data;

const std::array<const char*, 2> kNames{"memhooks", "userfaultfd"};

std::byte* map(size_t pages, void* at = nullptr) {
  void* p = ::mmap(at, pages * kPage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED : 0), -1, 0);
  if (p == MAP_FAILED) std::abort();  // not an assertion of Boost.Test, which works in one thread only
  return static_cast<std::byte*>(p);
}

uint64_t number(const void* p) {
  return reinterpret_cast<uint64_t>(p);
}

struct Watched {
  explicit Watched(const char* name) : monitor(make_system_monitor(name)), cache({}, monitor) {}
  // False if this machine does not allow the monitor.
  bool works() {
    std::string why;
    const bool yes = monitor->available(&why);
    if (!yes) BOOST_TEST_MESSAGE("skipped: " << why);
    return yes;
  }
  bool knows(const void* p, size_t length = kPage) { return static_cast<bool>(cache.find(number(p), length, 0, 0)); }
  // The range is cached from here on.
  void learn(const void* p, size_t length = kPage) {
    const auto ref = cache.search(number(p), length, 0, 0, describe_system_memory);
    BOOST_REQUIRE_MESSAGE(ref.cached(), cache.reason());
    BOOST_REQUIRE(knows(p, length));
  }
  std::shared_ptr<Monitor> monitor;
  RegistrationCache cache;
};

BOOST_AUTO_TEST_SUITE(mem_monitor)

BOOST_DATA_TEST_CASE(test_monitor_sees_munmap_mmap_over_mremap_and_madvise, data::make(kNames), name) {
  Watched w(name);
  if (!w.works()) return;
  std::byte* p = map(8);
  std::memset(p, 1, 8 * kPage);
  w.learn(p);
  w.learn(p + kPage, 2 * kPage);
  w.learn(p + 6 * kPage);
  BOOST_TEST(::munmap(p + 2 * kPage, kPage) == 0);
  BOOST_TEST(!w.knows(p + kPage, 2 * kPage));
  BOOST_TEST(w.knows(p));
  (void)map(1, p);
  BOOST_TEST(!w.knows(p));
  w.learn(p + 4 * kPage, 2 * kPage);
  BOOST_TEST(::madvise(p + 5 * kPage, kPage, MADV_DONTNEED) == 0);
  BOOST_TEST(!w.knows(p + 4 * kPage, 2 * kPage));
  BOOST_TEST(w.knows(p + 6 * kPage));
  std::byte* to = map(1);
  w.learn(to);
  BOOST_TEST(::mremap(p + 6 * kPage, kPage, kPage, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
  BOOST_TEST(!w.knows(p + 6 * kPage));
  BOOST_TEST(!w.knows(to));
  ::munmap(p, 8 * kPage);
  ::munmap(to, kPage);
}

BOOST_DATA_TEST_CASE(test_monitor_sees_calls_through_dlsym_and_from_inside_libc, data::make(kNames), name) {
  Watched w(name);
  if (!w.works()) return;
  std::byte* p = map(1);
  w.learn(p);
  const auto unmap = reinterpret_cast<int (*)(void*, size_t)>(::dlsym(RTLD_DEFAULT, "munmap"));
  BOOST_TEST(unmap(p, kPage) == 0);
  BOOST_TEST(!w.knows(p));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their malloc is a different one
  auto* block =
      static_cast<std::byte*>(std::malloc(64 << 20));  // above any threshold: malloc makes a mapping of its own
  auto* page = reinterpret_cast<std::byte*>((number(block) + kPage) & ~(kPage - 1));
  page[0] = std::byte{1};
  w.learn(page);
  std::free(block);
  BOOST_TEST(!w.knows(page));
  auto* top = static_cast<std::byte*>(::sbrk(4 * kPage));
  auto* heap = reinterpret_cast<std::byte*>((number(top) + kPage - 1) & ~(kPage - 1));
  heap[0] = std::byte{1};
  w.learn(heap);
  if (::sbrk(0) == top + 4 * kPage) {
    BOOST_TEST(::brk(top) == 0);
    BOOST_TEST(!w.knows(heap));
  }
#endif
}

BOOST_DATA_TEST_CASE(test_monitor_sees_shared_memory_detached, data::make(kNames), name) {
  Watched w(name);
  if (!w.works()) return;
  const int id = ::shmget(IPC_PRIVATE, 4 * kPage, IPC_CREAT | 0600);
  if (id < 0) return;
  auto* p = static_cast<std::byte*>(::shmat(id, nullptr, 0));
  ::shmctl(id, IPC_RMID, nullptr);
  p[kPage] = std::byte{1};
  if (w.monitor->name() == "userfaultfd") {  // the kernel does not report shmdt, so such memory is not cached
    BOOST_TEST(!w.cache.search(number(p + kPage), kPage, 0, 0, describe_system_memory).cached());
    BOOST_TEST(w.cache.reason().find("System V") != std::string::npos);
  } else {
    w.learn(p + kPage);
  }
  BOOST_TEST(::shmdt(p) == 0);
  BOOST_TEST(!w.knows(p + kPage));
}

BOOST_DATA_TEST_CASE(test_monitor_runs_only_while_there_are_entries, data::make(kNames), name) {
  Watched w(name);
  if (!w.works()) return;
  const auto* code = static_cast<const std::byte*>(::dlsym(::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "munmap"));
  std::array<std::byte, 16> before;
  std::memcpy(before.data(), code, before.size());
  BOOST_TEST(!w.monitor->active());
  std::byte* p = map(2);
  w.learn(p);
  BOOST_TEST(w.monitor->active());
  (void)w.cache.flush(false);
  BOOST_TEST(!w.monitor->active());
  BOOST_TEST(std::memcmp(before.data(), code, before.size()) == 0);
  for (int i = 0; i < 50; ++i) {  // a second time
    w.learn(p);
    (void)w.cache.flush(true);
  }
  BOOST_TEST(std::memcmp(before.data(), code, before.size()) == 0);
  ::munmap(p, 2 * kPage);
}

BOOST_DATA_TEST_CASE(test_monitor_leaves_calls_and_their_errors_as_they_are, data::make(kNames), name) {
  Watched w(name);
  if (!w.works()) return;
  std::byte* p = map(4);
  w.learn(p);
  errno = 0;
  BOOST_TEST(::munmap(p + 1, kPage) == -1);
  BOOST_TEST(errno == EINVAL);
  BOOST_TEST(::madvise(p + 1, kPage, MADV_DONTNEED) == -1);
  BOOST_TEST(::mremap(p, kPage, 2 * kPage, 0) == MAP_FAILED);
  BOOST_TEST(errno == ENOMEM);
  BOOST_TEST(::mmap(p + 1, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED);
  // Under userfaultfd a cached range is a separate mapping, and mremap takes only one mapping.
  if (w.monitor->name() == "userfaultfd") (void)w.cache.flush(false);
  void* grown = ::mremap(p, 4 * kPage, 5 * kPage, MREMAP_MAYMOVE);
  BOOST_TEST(grown != MAP_FAILED);
  ::munmap(grown, 5 * kPage);
}

BOOST_AUTO_TEST_CASE(test_monitor_names_are_checked) {
  BOOST_TEST(make_system_monitor("disabled") == nullptr);
  BOOST_TEST(make_system_monitor("uffd")->name() == "userfaultfd");
  BOOST_TEST(make_system_monitor("") != nullptr);
  BOOST_CHECK_EXCEPTION((void)make_system_monitor("hooks"), Error,
                        [](const Error& e) { return std::string(e.what()).find("kdreg2") != std::string::npos; });
  std::string why;
  if (!make_system_monitor("kdreg2")->available(&why)) BOOST_TEST(why.find("/dev/kdreg2") != std::string::npos);
}

// Threads change pages of an arena and look them up. The resolver records a page's first byte: a hit with another value
// than the page has is stale. A lock for each page separates look-ups of the page from its changes (an application must
// do
// that too); everything else is concurrent.
BOOST_DATA_TEST_CASE(test_monitor_under_fire_no_hit_is_stale, data::make(kNames), name) {
  Watched w(name);
  if (!w.works()) return;
  constexpr size_t kPages = 48;
  std::byte* arena = map(kPages);
  std::vector<std::mutex> locks(kPages);
  std::array<bool, kPages> lost{};
  std::atomic<uint32_t> next{1};
  std::atomic<int> stale{0}, hits{0};
  const auto stamp = [&](std::byte* page) {
    const uint32_t id = next.fetch_add(1);
    std::memcpy(page, &id, sizeof(id));
  };
  for (size_t i = 0; i < kPages; ++i) stamp(arena + i * kPage);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t + 17);
      for (int step = 0; step < 3000; ++step) {
        const size_t at = random() % kPages;
        std::byte* page = arena + at * kPage;
        const std::lock_guard guard(locks[at]);
        if (lost[at]) continue;
        switch (random() % 10) {
          case 0:  // away and back, unless another thread gets the addresses in between
            ::munmap(page, kPage);
            lost[at] = ::mmap(page, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                              -1, 0) != page;
            if (!lost[at]) stamp(page);
            break;
          case 1:
            (void)map(1, page);
            stamp(page);
            break;
          case 2:
            ::madvise(page, kPage, MADV_DONTNEED);
            stamp(page);
            break;
          case 3: {
            std::byte* other = map(1);
            stamp(other);
            if (::mremap(other, kPage, kPage, MREMAP_MAYMOVE | MREMAP_FIXED, page) != page) std::abort();
            break;
          }
          default: {
            bool resolved = false;
            const auto ref = w.cache.search(number(page), kPage, 0, 0, [&](uint64_t a, uint64_t n) {
              resolved = true;
              CachedMapping m;
              m.address = a;
              m.length = n;
              uint32_t id;
              std::memcpy(&id, page, sizeof(id));
              m.user = id;
              return m;
            });
            uint32_t id;
            std::memcpy(&id, page, sizeof(id));
            if (!resolved) ++hits;
            if (ref->user != id) ++stale;
          }
        }
      }
    });
  }
  std::thread noise([] {  // other threads allocate and free meanwhile
    for (int i = 0; i < 300; ++i) {
      std::vector<char> block(size_t{1} << 20, 'x');
      asm volatile("" : : "r"(block.data()) : "memory");
    }
  });
  for (auto& thread : threads) thread.join();
  noise.join();
  BOOST_TEST(stale == 0);
  BOOST_TEST(hits > 0);
  ::munmap(arena, kPages * kPage);
}

BOOST_DATA_TEST_CASE(test_segment_pages_mapped_over_leave_the_segment, data::make(kNames), name) {
  const auto monitor = make_system_monitor(name);
  std::string why;
  if (!monitor->available(&why)) return;
  SegmentSet set;
  set.watch_with(monitor);
  std::byte* p = set.allocate(16 * kPage);
  std::byte* next = set.allocate(kPage);
  BOOST_TEST(!monitor->active());
  BOOST_TEST(set.find(p, 16 * kPage).has_value());  // from here on the segment is watched
  BOOST_TEST(monitor->active());
  ::madvise(p, kPage, MADV_DONTNEED);
  BOOST_TEST(set.find(p, 16 * kPage).has_value());  // pages come back from the segment's file
  (void)map(1, p + 4 * kPage);
  BOOST_TEST(!set.find(p, 16 * kPage).has_value());
  BOOST_TEST(!set.find(p + 4 * kPage, 1).has_value());
  BOOST_TEST(set.find(p, 4 * kPage).has_value());
  BOOST_TEST(set.find(p + 5 * kPage, 11 * kPage).has_value());
  BOOST_TEST(set.find(next, kPage).has_value());
  ::munmap(p + 8 * kPage, kPage);
  BOOST_TEST(!set.find(p + 8 * kPage + 1, 1).has_value());
  // After their allocation is freed, the holes are never allocated again.
  set.free(p);
  for (int i = 0; i < 40; ++i) {
    std::byte* q = set.allocate(2 * kPage);
    BOOST_REQUIRE(set.find(q, 2 * kPage).has_value());
    std::memset(q, 1, 2 * kPage);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
