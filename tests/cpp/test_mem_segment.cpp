// tests/cpp/test_mem_segment.cpp: the allocator of shared segments: allocations never overlap, and freed memory can
// always be allocated again.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "mem/huge_pages.hpp"
#include "mem/lease.hpp"
#include "mem/segment.hpp"

namespace {

using namespace weft;
using namespace weft::mem;

BOOST_AUTO_TEST_SUITE(mem_segment)

BOOST_AUTO_TEST_CASE(test_segment_allocation_is_page_aligned_zero_and_writable) {
  SegmentSet set;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{4097}, size_t{1} << 20}) {
    std::byte* p = set.allocate(bytes);
    BOOST_TEST(reinterpret_cast<uintptr_t>(p) % kAllocationAlign == 0U);
    for (size_t i = 0; i < bytes; ++i) BOOST_REQUIRE(p[i] == std::byte{0});
    std::memset(p, 0xff, bytes);
  }
  BOOST_TEST(set.count() == 1U);
}

BOOST_AUTO_TEST_CASE(test_huge_pages_keep_the_bytes_and_never_reach_neighbours) {
  SegmentSet set;
  constexpr size_t kBytes = (size_t{5} << 20) + 4096;  // two blocks of 2 MiB, and an end that keeps small pages
  std::byte* const p = set.allocate(kBytes);
  std::byte* const next = set.allocate(4096);
  std::memset(p, 0x5a, 3 << 20);  // a whole block, half of the second, nothing of the rest
  std::memset(next, 0x33, 4096);
  (void)use_huge_pages(reinterpret_cast<uint64_t>(p), kBytes);  // kernels before 6.1 refuse
  size_t wrong = 0;
  for (size_t i = 0; i < kBytes; ++i) wrong += p[i] != (i < (size_t{3} << 20) ? std::byte{0x5a} : std::byte{0});
  for (size_t i = 0; i < 4096; ++i) wrong += next[i] != std::byte{0x33};
  BOOST_TEST(wrong == 0U);
}

BOOST_AUTO_TEST_CASE(test_huge_pages_of_a_range_without_a_whole_block_are_none) {
  SegmentSet set;
  std::byte* const p = set.allocate(8 << 20);
  const auto at = reinterpret_cast<uint64_t>(p);
  BOOST_TEST(use_huge_pages(at + 4096, (2 << 20) - 4096));
  unsigned char resident = 1;
  BOOST_REQUIRE(::mincore(p + 4096, 4096, &resident) == 0);
  BOOST_TEST((resident & 1) == 0);
}

BOOST_AUTO_TEST_CASE(test_huge_pages_of_unmapped_memory_are_refused) {
  void* const hole = ::mmap(nullptr, 8 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BOOST_REQUIRE(hole != MAP_FAILED);
  ::munmap(hole, 8 << 20);
  BOOST_TEST(!use_huge_pages(reinterpret_cast<uint64_t>(hole), 8 << 20));
}

BOOST_AUTO_TEST_CASE(test_segment_find_names_place_or_nothing) {
  SegmentSet set;
  std::byte* p = set.allocate(8192);
  const auto place = set.find(p + 100, 50);
  BOOST_REQUIRE(place.has_value());
  const auto start = set.find(p, 8192);
  BOOST_REQUIRE(start.has_value());
  BOOST_TEST(place->offset == start->offset + 100);
  BOOST_TEST(set.find(p, set.bytes(0) - start->offset).has_value());
  BOOST_TEST(!set.find(p, set.bytes(0) - start->offset + 1).has_value());
  BOOST_TEST(!set.find(p - start->offset - 1, 2).has_value());
  BOOST_TEST(!set.find(p, ~size_t{0}).has_value());
  int local = 0;
  BOOST_TEST(!set.find(&local, sizeof(local)).has_value());
  BOOST_TEST(set.fd(0) >= 0);
  BOOST_TEST(set.fd(1) == -1);
  BOOST_TEST(set.bytes(7) == 0U);
}

BOOST_AUTO_TEST_CASE(test_segment_freed_neighbours_become_one) {
  SegmentSet set;
  std::vector<std::byte*> p;
  for (int i = 0; i < 9; ++i) p.push_back(set.allocate(4096));
  for (int i : {1, 7, 3, 5, 2, 6, 4}) set.free(p[static_cast<size_t>(i)]);  // leaves 0 and 8
  BOOST_TEST(set.allocate(7 * 4096) == p[1]);                               // best fit: exactly the hole
  BOOST_TEST(set.allocated_bytes() == 9U * 4096);
}

BOOST_AUTO_TEST_CASE(test_segment_large_allocation_is_huge_page_aligned_and_zero) {
  SegmentSet set;
  (void)set.allocate(4096);
  std::byte* p = set.allocate(3 << 20);
  BOOST_TEST(reinterpret_cast<uintptr_t>(p) % (2 << 20) == 0U);
  std::memset(p, 1, 3 << 20);
  set.free(p);
  std::byte* again = set.allocate(3 << 20);
  BOOST_TEST(again == p);
  BOOST_TEST(std::to_integer<int>(again[12345]) == 0);  // punched out
}

BOOST_AUTO_TEST_CASE(test_segment_overlay_keeps_the_addresses_and_leaves_the_segment) {
  constexpr size_t kBytes = 3 * 4096;
  SegmentSet set, other;
  std::byte* before = set.allocate(4096);
  std::byte* p = set.allocate(kBytes);
  std::byte* after = set.allocate(4096);
  std::byte* source = other.allocate(kBytes);
  std::memset(p, 1, kBytes);
  std::memset(source, 2, kBytes);
  BOOST_TEST(!set.overlay(p + 4096, kBytes - 4096, source));  // no allocation begins there
  BOOST_TEST(!set.overlay(p, 4096, source));                  // only the whole allocation
  BOOST_TEST(std::to_integer<int>(p[0]) == 1);
  BOOST_REQUIRE(set.overlay(p, kBytes, source));
  BOOST_TEST(std::to_integer<int>(p[kBytes - 1]) == 2);
  p[5] = std::byte{7};
  BOOST_TEST(std::to_integer<int>(source[5]) == 7);  // the same pages
  source[6] = std::byte{8};
  BOOST_TEST(std::to_integer<int>(p[6]) == 8);
  BOOST_TEST(!set.find(p, kBytes).has_value());
  BOOST_TEST(set.find(before, 4096).has_value());
  BOOST_TEST(set.find(after, 4096).has_value());
  BOOST_REQUIRE(set.overlay(p, kBytes, source));  // again: the array is kept once more
  set.free(p);
  std::byte* q = set.allocate(kBytes);
  BOOST_TEST(q == p);  // the place has its own pages again
  BOOST_TEST(set.find(q, kBytes).has_value());
  std::memset(q, 9, kBytes);
  BOOST_TEST(std::to_integer<int>(source[5]) == 7);
}

BOOST_AUTO_TEST_CASE(test_segment_larger_than_one_segment_gets_its_own) {
  SegmentSet set;
  (void)set.allocate(1);
  std::byte* p = set.allocate(kSegmentBytes + 1);
  BOOST_TEST(set.count() == 2U);
  BOOST_TEST(set.find(p, kSegmentBytes + 1)->segment == 1U);
  p[kSegmentBytes] = std::byte{7};
  set.free(p);
}

BOOST_AUTO_TEST_CASE(test_segment_impossible_size_is_refused_and_harms_nothing) {
  SegmentSet set;
  std::byte* p = set.allocate(64);
  const auto out_of_memory = [](const Error& e) { return e.fi_code() == fi_err::kENOMEM; };
  BOOST_CHECK_EXCEPTION((void)set.allocate(~size_t{0}), Error, out_of_memory);
  BOOST_CHECK_EXCEPTION((void)set.allocate((size_t{1} << 46) + 1), Error, out_of_memory);
  p[0] = std::byte{1};
  set.free(p);
  set.free(p);  // no longer known: ignored
  set.free(nullptr);
  BOOST_TEST(set.allocated_bytes() == 0U);
}

BOOST_AUTO_TEST_CASE(test_segment_random_allocations_never_overlap) {
  SegmentSet set;
  std::mt19937_64 random(11);
  std::map<std::byte*, std::pair<size_t, std::byte>> live;
  uint64_t sum = 0;
  for (int step = 0; step < 6000; ++step) {
    if (live.empty() || random() % 5 < 3) {
      const size_t bytes = random() % 16 == 0 ? random() % (3 << 20) : random() % 40'000;
      std::byte* p = set.allocate(bytes);
      const auto mark = static_cast<std::byte>(random());
      const auto next = live.lower_bound(p);
      if (next != live.end()) BOOST_REQUIRE(p + bytes <= next->first);
      if (next != live.begin()) BOOST_REQUIRE(std::prev(next)->first + std::prev(next)->second.first <= p);
      if (bytes != 0) p[0] = p[bytes - 1] = mark;
      live.emplace(p, std::pair{bytes, mark});
      sum += (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096;
    } else {
      const auto it = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      const auto [bytes, mark] = it->second;
      if (bytes != 0) BOOST_REQUIRE((it->first[0] == mark && it->first[bytes - 1] == mark));
      set.free(it->first);
      sum -= (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096;
      live.erase(it);
    }
    BOOST_REQUIRE(set.allocated_bytes() == sum);
  }
  for (const auto& [p, what] : live) set.free(p);
  BOOST_TEST(set.count() == 1U);
  // The segment is whole again: one free span contains everything.
  std::byte* all = set.allocate(set.bytes(0) - kGateBytes);
  BOOST_TEST(set.find(all, set.bytes(0) - kGateBytes)->offset == 0U);
}

// Addresses that no mapping uses, while this object exists.
struct Reserved {
  explicit Reserved(size_t n) : bytes(n) {
    void* p = ::mmap(nullptr, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BOOST_REQUIRE(p != MAP_FAILED);
    at = static_cast<std::byte*>(p);
  }
  ~Reserved() { ::munmap(at, bytes); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  std::byte* at;
  size_t bytes;
};

BOOST_AUTO_TEST_CASE(test_segment_placed_allocation_has_the_wanted_address) {
  SegmentSet set;
  std::byte* anywhere = set.allocate(4096);
  const Reserved room(1 << 20);
  BOOST_TEST((set.allocate_at(room.at, 8192, false) == nullptr));  // other memory is mapped there
  std::byte* p = set.allocate_at(room.at + 4096, 8000, true);
  BOOST_TEST((p == room.at + 4096));
  std::memset(p, 0x5a, 8192);
  const auto place = set.find(p + 10, 8000);
  BOOST_REQUIRE(place.has_value());
  const auto other = set.find(anywhere, 1);
  BOOST_REQUIRE(other.has_value());
  // The same bytes as in the segment, which peers map.
  BOOST_TEST((anywhere[place->offset - other->offset] == std::byte{0x5a}));
  BOOST_TEST(!set.find(p, 8193).has_value());
  BOOST_TEST(!set.find(p - 1, 1).has_value());
  BOOST_TEST(set.allocated(p) == 8192U);
  BOOST_TEST((set.allocate_at(p, 4096, true) ==
              nullptr));  // other allocations, and the allocation's own segment, are never replaced
  BOOST_TEST((set.allocate_at(p - 4096, 8192, true) == nullptr));
  BOOST_TEST((set.allocate_at(anywhere, 4096, true) == nullptr));
  BOOST_TEST(set.allocated_bytes() == 4096U + 8192U);
  set.free(p);
  BOOST_TEST(set.allocated_bytes() == 4096U);
  BOOST_TEST(!set.find(p, 1).has_value());
  unsigned char there = 0;
  BOOST_TEST(::mincore(p, 4096, &there) == -1);  // no memory is mapped there any more
  BOOST_TEST((set.allocate_at(p, 8192, false) == p));
  set.free(p);
  set.free(anywhere);
}

// The addresses where the system would map the next segment; they are free.
std::byte* next_segment() {
  const Reserved probe(kSegmentBytes);
  return probe.at;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which map more than any limit leaves
struct Limited {
  rlimit usual{};
  explicit Limited(size_t room) {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    BOOST_REQUIRE(::getrlimit(RLIMIT_AS, &usual) == 0);
    const rlimit few{pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + room, usual.rlim_max};
    BOOST_REQUIRE(::setrlimit(RLIMIT_AS, &few) == 0);
  }
  ~Limited() { (void)::setrlimit(RLIMIT_AS, &usual); }
};

BOOST_AUTO_TEST_CASE(test_segment_fits_a_limited_address_space) {
  const Limited limited(size_t{4} << 30);
  SegmentSet set;
  std::byte* one = set.allocate(4096);
  std::byte* large = set.allocate(size_t{1} << 30);
  one[0] = large[(size_t{1} << 30) - 1] = std::byte{7};
  BOOST_TEST(set.find(one, 4096)->segment != set.find(large, size_t{1} << 30)->segment);
}
#endif

BOOST_AUTO_TEST_CASE(test_segment_placed_allocation_avoids_its_new_segment) {
  for (const bool replace : {true, false}) {
    SegmentSet set;
    std::byte* wanted = next_segment() + kSegmentBytes / 2;
    for (int round = 0; round < 3; ++round) {  // and frees the addresses
      std::byte* p = set.allocate_at(wanted, 8192, replace);
      BOOST_REQUIRE((p == wanted));
      std::memset(p, 0x11 + round, 8192);
      std::vector<std::byte*> others;
      for (int i = 0; i < 6; ++i) others.push_back(set.allocate(size_t{3} << 30));  // more than one segment
      for (std::byte* other : others) {
        BOOST_TEST((other + (size_t{3} << 30) <= p || p + 8192 <= other));
        std::memset(other, 0xff, 4096);
      }
      for (size_t i = 0; i < 8192; i += 4096) BOOST_TEST((p[i] == static_cast<std::byte>(0x11 + round)));
      for (std::byte* other : others) set.free(other);
      set.free(p);
      if (round == 0) BOOST_TEST((set.allocate_at(wanted, 4096, replace) == wanted));
      if (round == 0) set.free(wanted);
    }
  }
}

// Holds the places that the test names.
struct Holders final : PlaceHolders {
  void held_places(std::vector<HeldPlace>& out) override {
    ++looks;
    out.insert(out.end(), held.begin(), held.end());
  }
  uint64_t holds_stamp() override { return stamp; }
  std::vector<HeldPlace> held;
  uint64_t stamp = 1;
  int looks = 0;
};

BOOST_AUTO_TEST_CASE(test_held_place_rests_until_nobody_holds_it) {
  Holders holders;
  SegmentSet set;
  set.held_by(&holders);
  std::byte* p = set.allocate(8192);
  const auto place = set.find(p, 8192);
  BOOST_REQUIRE(place.has_value());
  std::memset(p, 0x42, 8192);
  for (const HeldPlace& held : {HeldPlace{0, place->offset, 1}, HeldPlace{0, place->offset + 8191, 1},
                                HeldPlace{0, 0, ~uint64_t{0}}, HeldPlace{0, place->offset, 8192}}) {
    holders.held = {{7, place->offset, 8192}, held};
    set.free(p);
    BOOST_TEST(set.resting());
    BOOST_TEST(set.resting_bytes() == 8192U);
    BOOST_TEST(set.allocated_bytes() == 0U);
    std::byte* other = set.allocate(8192);
    BOOST_TEST((other != p));
    BOOST_TEST((p[100] == std::byte{0x42}));  // the holder still reads the old bytes
    set.free(other);
    const int looks = holders.looks;
    for (int i = 0; i < 100; ++i) set.free(set.allocate(4096));
    BOOST_TEST(holders.looks ==
               looks + 100);  // for newly freed places; no hold has ended, so the resting places are not checked again
    holders.held.clear();
    ++holders.stamp;
    BOOST_TEST((set.allocate(8192) == p));
    BOOST_TEST(!set.resting());
  }
}

// A lease is a file lock of the kernel: it needs no peer, and no hold.
BOOST_AUTO_TEST_CASE(test_leased_place_rests_until_the_last_mapping_is_gone) {
  Holders holders;
  SegmentSet set;
  set.held_by(&holders);
  (void)set.allocate(4096);
  std::byte* p = set.allocate(8192);
  const auto place = set.find(p, 8192);
  BOOST_REQUIRE(place.has_value());
  Lease writable = Lease::take(set.fd(0), place->offset + 100, 50, true);
  Lease reader = Lease::take(set.fd(0), place->offset + 5000, 3192, false);
  BOOST_TEST_REQUIRE(writable.locked());
  BOOST_TEST_REQUIRE(reader.locked());
  writable.data()[0] = std::byte{7};
  p[5000] = std::byte{8};
  BOOST_TEST((p[100] == std::byte{7}));
  BOOST_TEST((reader.data()[0] == std::byte{8}));
  BOOST_TEST(leased(set.fd(0), place->offset, 101));
  BOOST_TEST(!leased(set.fd(0), place->offset, 100));
  set.free(p);
  for (Lease* one : {&writable, &reader}) {
    std::byte* other = set.allocate(8192);
    BOOST_TEST((other != p));
    set.free(other);
    BOOST_TEST(set.resting_bytes() == 8192U);
    one->reset();
  }
  BOOST_TEST(set.resting_bytes() == 0U);
  BOOST_TEST((set.allocate(8192) == p));
}

BOOST_AUTO_TEST_CASE(test_lease_beside_a_place_does_not_keep_it) {
  Holders holders;
  SegmentSet set;
  set.held_by(&holders);
  std::byte* p[3];
  for (std::byte*& one : p) one = set.allocate(4096);
  for (std::byte* one : p) BOOST_REQUIRE(set.find(one, 4096).has_value());
  const Lease lease = Lease::take(set.fd(0), set.find(p[1], 4096)->offset, 4096, false);
  for (std::byte* one : p) set.free(one);
  BOOST_TEST(set.resting_bytes() == 4096U);
  BOOST_TEST((set.allocate(4096) == p[0]));
  BOOST_TEST((set.allocate(4096) == p[2]));
  BOOST_TEST((set.allocate(4096) != p[1]));
}

BOOST_AUTO_TEST_CASE(test_read_only_lease_stays_read_only) {
  SegmentSet set;
  std::byte* p = set.allocate(4096);
  const auto place = set.find(p, 4096);
  const Lease lease = Lease::take(set.fd(0), place->offset, 4096, false);
  BOOST_TEST(::mprotect(lease.data(), 4096, PROT_READ | PROT_WRITE) == -1);
}

BOOST_AUTO_TEST_CASE(test_large_lease_lies_as_huge_pages_need_it) {
  SegmentSet set;
  (void)set.allocate(4096);
  std::byte* p = set.allocate(9 << 20);
  const auto place = set.find(p, 9 << 20);
  constexpr uint64_t kHuge = 2 << 20, kInside = 3 * 4096 + 5;
  const Lease lease = Lease::take(set.fd(0), place->offset + kInside, 8 << 20, true);
  BOOST_TEST((reinterpret_cast<uintptr_t>(lease.data()) - place->offset - kInside) % kHuge == 0U);
  lease.data()[0] = std::byte{1};
  lease.data()[(8 << 20) - 1] = std::byte{2};
  BOOST_TEST((p[kInside] == std::byte{1}));
  BOOST_TEST((p[kInside + (8 << 20) - 1] == std::byte{2}));
}

BOOST_AUTO_TEST_CASE(test_place_beside_a_held_one_is_used_again) {
  Holders holders;
  SegmentSet set;
  set.held_by(&holders);
  std::byte* p[3];
  for (std::byte*& one : p) one = set.allocate(4096);
  const auto middle = set.find(p[1], 4096);
  BOOST_REQUIRE(middle.has_value());
  holders.held = {{0, middle->offset, 4096}};
  for (std::byte* one : p) set.free(one);
  BOOST_TEST(set.resting_bytes() == 4096U);
  BOOST_TEST((set.allocate(4096) == p[0]));
  BOOST_TEST((set.allocate(4096) == p[2]));
  set.look_at_holds();
  BOOST_TEST(set.resting_bytes() == 4096U);
  holders.held.clear();
  set.look_at_holds();
  BOOST_TEST((set.allocate(4096) == p[1]));
}

// A place comes to rest after another thread has read the holds and before that thread reads the places.
BOOST_AUTO_TEST_CASE(test_segment_place_resting_during_a_check_stays_held) {
  struct Late final : PlaceHolders {
    void held_places(std::vector<HeldPlace>& out) override {
      out.insert(out.end(), held.begin(), held.end());
      if (auto then = std::exchange(meanwhile, nullptr)) then();
    }
    uint64_t holds_stamp() override { return 1; }
    std::vector<HeldPlace> held;
    std::function<void()> meanwhile;
  } holders;
  SegmentSet set;
  set.held_by(&holders);
  std::byte *first = set.allocate(4096), *second = set.allocate(4096);
  const auto one = set.find(first, 4096), two = set.find(second, 4096);
  BOOST_REQUIRE((one.has_value() && two.has_value()));
  holders.held = {{0, one->offset, 4096}};
  set.free(first);
  holders.held.clear();
  holders.meanwhile = [&] {
    holders.held = {{0, two->offset, 4096}};
    set.free(second);
  };
  set.look_at_holds();
  BOOST_TEST(set.resting_bytes() == 4096U);
  BOOST_TEST((set.allocate(4096) == first));
  BOOST_TEST((set.allocate(4096) != second));
}

BOOST_AUTO_TEST_CASE(test_segment_place_never_registered_has_no_holds) {
  Holders holders;
  SegmentSet set;
  set.held_by(&holders);
  set.free(set.allocate(4096));
  BOOST_TEST(holders.looks == 0);
}

BOOST_AUTO_TEST_CASE(test_segment_discard_zeroes_and_populate_allocates_pages) {
  SegmentSet set;
  std::byte* p = set.allocate(16384);
  std::memset(p, 0xff, 16384);
  set.free(p);
  std::byte* again = set.allocate(16384);
  BOOST_TEST((again == p));
  set.discard(again);
  unsigned char there[4] = {};
  BOOST_REQUIRE(::mincore(again, 16384, there) == 0);
  for (const unsigned char page : there) BOOST_TEST((page & 1) == 0);
  BOOST_TEST(populate(reinterpret_cast<uint64_t>(again) + 5000, 1, true));
  BOOST_REQUIRE(::mincore(again, 16384, there) == 0);
  BOOST_TEST((there[0] & 1) == 0);
  BOOST_TEST((there[1] & 1) == 1);
  BOOST_TEST(populate(reinterpret_cast<uint64_t>(again), 16384, true));
  BOOST_REQUIRE(::mincore(again, 16384, there) == 0);
  for (const unsigned char page : there) BOOST_TEST((page & 1) == 1);
  for (size_t i = 0; i < 16384; ++i) BOOST_REQUIRE((again[i] == std::byte{0}));
  const Reserved nothing(4096);
  BOOST_TEST(!populate(reinterpret_cast<uint64_t>(nothing.at), 4096, true));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
