// tests/cpp/test_nic_faults.cpp: memory runs out while a NIC serves. Every allocation of this program passes the
// operators
// below; an armed operator fails, only in the thread that armed it.
#include <cstdlib>
#include <new>

#include "fabric.hpp"

namespace {

thread_local int64_t g_left = -1;  // allocations until one fails; negative: none fails
thread_local uint64_t g_failed = 0;

[[gnu::noinline]] void release(
    void* p) noexcept {  // a separate function: the compiler would pair free() with operator new
  std::free(p);
}

void* allocate(std::size_t bytes) noexcept {
  if (g_left >= 0 && g_left-- == 0) {
    ++g_failed;
    return nullptr;
  }
  return std::malloc(bytes != 0 ? bytes : 1);
}

}  // namespace

void* operator new(std::size_t bytes) {
  if (void* p = allocate(bytes)) return p;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) {
  return operator new(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void operator delete(void* p) noexcept {
  release(p);
}
void operator delete[](void* p) noexcept {
  release(p);
}
void operator delete(void* p, std::size_t) noexcept {
  release(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  release(p);
}
void operator delete(void* p, const std::nothrow_t&) noexcept {
  release(p);
}
void operator delete[](void* p, const std::nothrow_t&) noexcept {
  release(p);
}

namespace {

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(nic_faults)

// The later the receive was posted, the smaller is its entry's number.
BOOST_AUTO_TEST_CASE(test_cancel_without_memory_for_an_index_takes_the_oldest_receive) {
  nic::MatchUnit unit({}, 1);
  nic::Match match;
  const auto posted = [&](uint64_t tag) {
    nic::Receive receive;
    receive.what = {tag, 0, nic::kAnySource, true};
    receive.context = 101;
    nic::Posted* const p = unit.post(receive);
    BOOST_REQUIRE(p != nullptr);
    BOOST_REQUIRE(!unit.take_unexpected(p, &match));
    return p;
  };
  for (nic::Posted* const p : {posted(1), posted(2), posted(3)}) {
    unit.cancel(p);
    unit.release(p);
  }
  const nic::Posted* const first = posted(1);
  posted(2);
  BOOST_REQUIRE(posted(3)->id < first->id);
  g_failed = 0;
  for (uint64_t tag = 1; tag <= 3; ++tag) {
    g_left = 0;
    nic::Posted* const p = unit.cancel(101);
    g_left = -1;
    BOOST_TEST(g_failed == tag);
    BOOST_TEST_REQUIRE(p != nullptr);
    BOOST_TEST(p->tag == tag);
    unit.release(p);
  }
}

// A target without an engine thread, and two initiators in other NICs.
struct Target {
  explicit Target(Path path) : pair(config_of(path)) {
    SideConfig config = pair_of(path, true).a;
    config.host.engine_thread = false;
    config.host.shm.strict = path == Path::strict;
    config.host.shm_link = path != Path::tcp;
    config.listen = path == Path::tcp;
    other = std::make_unique<Side>(config);
    to_b = other->insert(*pair.b);
    const iovec pieces[2] = {{pair.memory + 32768, 4096}, {pair.memory + 40960, 4096}};
    list = pair.b->reg_list(pieces, kListKey);
  }
  static PairConfig config_of(Path path) {
    PairConfig config = pair_of(path, true);
    config.b.cq_capacity = 4;  // memory for entries beyond it may be missing
    config.b.counters = true;
    return config;
  }
  static constexpr uint64_t kListKey = 43;
  Pair pair;
  std::unique_ptr<Side> other;
  uint64_t to_b = 0;
  std::shared_ptr<nic::MemoryRegion> list;
};

// Writes, reads, atomics, lists and refused accesses of `side`; true when all have ended, in whatever way.
bool mixed_work(const Side& side, uint64_t dest, const std::function<void()>& work, uint64_t key) {
  static std::vector<std::byte> room(65536);
  uint64_t word = 1, before = 0, operand = 3;
  int open = 0;
  const auto begin = [&](const PostResult& r) { open += r.refusal == Refusal::none ? 1 : 0; };
  begin(post(*side.ep, write_of(dest, &word, 8, 0, key)));
  begin(post(*side.ep, write_of(dest, room.data(), 20'000, 64, key)));
  begin(post(*side.ep, read_of(dest, room.data(), 20'000, 64, key)));
  begin(post(*side.ep, read_of(dest, room.data(), 6000, 100, Target::kListKey)));
  begin(post(*side.ep, write_of(dest, &word, 8, 0, key + 1000)));
  Access several = write_of(dest, room.data(), 64, 0, key);
  several.remote = {{0, 32, key}, {128, 32, key}};
  begin(post(*side.ep, several));
  Access with_data = write_of(dest, &word, 8, 0, key);
  with_data.flags = flag::kRemoteCqData;
  for (int i = 0; i < 6; ++i) begin(post(*side.ep, with_data));
  nic::AtomicArgs atomic;
  const iovec o{&operand, 8}, r{&before, 8};
  const wire::RmaRange range{8, 8, key};
  atomic.dest = dest;
  atomic.family = AtomicFamily::fetch;
  atomic.op = AtomicOp::sum;
  atomic.datatype = Datatype::uint64;
  atomic.operand = {&o, 1};
  atomic.result = {&r, 1};
  atomic.remote = {&range, 1};
  begin(side.ep->post_atomic(atomic));
  return poll_until(
      [&] {
        while (try_completion(side)) --open;
        return open <= 0 && side.ep->outstanding() == 0;
      },
      work);
}

/// The n-th allocation of one side's progress fails, for every n: both sides survive, the initiator's operations end,
/// and
/// another initiator's operations succeed afterwards.
void fail_each_allocation(bool in_target) {
  uint64_t rounds = 0;  // rounds in which an allocation failed
  for (const Path path : {Path::strict, Path::ring, Path::tcp}) {
    BOOST_TEST_CONTEXT(path) {
      Target target(path);
      Pair& pair = target.pair;
      const auto read_entries = [&] {
        while (try_completion(*pair.b)) {
        }
      };
      const auto other_works = [&](uint64_t value) {
        uint64_t seen = 0;
        for (const bool write : {true, false}) {
          const Access access = write ? write_of(target.to_b, &value, 8, 1024, pair.key())
                                      : read_of(target.to_b, &seen, 8, 1024, pair.key());
          if (post(*target.other->ep, access).refusal != Refusal::none) return false;
          std::optional<Completion> c;
          if (!poll_until([&] { return (c = try_completion(*target.other)).has_value(); },
                          [&] {
                            target.other->progress();
                            pair.b->progress();
                            read_entries();
                          }) ||
              c->error != 0) {
            return false;
          }
        }
        return seen == value;
      };
      BOOST_REQUIRE(other_works(1));
      for (int64_t n = 0;; ++n) {
        BOOST_TEST_CONTEXT("allocation " << n) {
          // Both are connected again, in case the last round cost the connection.
          BOOST_REQUIRE(poll_until(
              [&] {
                const uint64_t word = 1;
                return pair.run(write_of(pair.dest, &word, 8, 0, pair.key())).error == 0;
              },
              [] {}));
          int64_t left = n;
          uint32_t polls = 0;
          const uint64_t failed_before = g_failed;
          BOOST_REQUIRE(mixed_work(
              *pair.a, pair.dest,
              [&] {
                const Side& failing = in_target ? *pair.b : *pair.a;
                (in_target ? *pair.a : *pair.b).progress();
                g_left = left;
                failing.nic().progress();
                left = std::exchange(g_left, -1);
                if (left < 0 || ++polls % 64 == 0) read_entries();
              },
              pair.key()));
          BOOST_REQUIRE(other_works(static_cast<uint64_t>(n) + 2));
          const bool failed = g_failed != failed_before;
          rounds += failed ? 1 : 0;
          if (!failed) break;
        }
      }
      std::string why;
      BOOST_TEST(target.list->close(&why), why);  // no lock is held
    }
  }
  BOOST_TEST_MESSAGE(rounds << " allocations failed");
  BOOST_TEST(rounds > 3U);
}

BOOST_AUTO_TEST_CASE(test_target_allocation_failure_affects_one_peer) {
  fail_each_allocation(true);
}

BOOST_AUTO_TEST_CASE(test_initiator_allocation_failure_ends_its_operation) {
  fail_each_allocation(false);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
