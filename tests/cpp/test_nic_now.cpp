// tests/cpp/test_nic_now.cpp: accesses that end within the call, or do not begin (nic/now.cpp), on every path.
#include <atomic>
#include <numeric>
#include <thread>

#include "every_path.hpp"

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(nic_now)

namespace {

constexpr size_t kBytes = 1 << 20;

bool is_mapped(Path path) {
  return path == Path::self || path == Path::direct;
}

// Without the owner's engine, which frames need.
bool ends_now(Path path) {
  return !uses_frames(path);
}

// A pair that has met: the route is open.
std::unique_ptr<Pair> met(PairConfig config) {
  config.bytes = kBytes;
  auto pair = std::make_unique<Pair>(config);
  const uint64_t word = 0;
  BOOST_REQUIRE(pair->write(&word, 8, 0).error == 0);
  return pair;
}

std::byte* bytes_of(auto& values) {
  return reinterpret_cast<std::byte*>(std::data(values));
}

bool move(Pair& pair, OpKind kind, std::byte* local, size_t n, uint64_t addr) {
  return pair.a->ep->move_now(kind, local, n, pair.dest, addr, pair.key());
}

}  // namespace

BOOST_AUTO_TEST_CASE(test_copies_now_are_done_where_memory_is_mapped_or_the_kernel_copies) {
  on_every_path([](PairConfig config) {
    const auto pair = met(config);
    for (const size_t n : {size_t{0}, size_t{1}, size_t{8}, size_t{4096}, size_t{600'000}}) {
      std::vector<std::byte> given = pattern(n, n), got(n);
      BOOST_TEST(move(*pair, OpKind::write, given.data(), n, 16) == ends_now(config.path));
      if (!ends_now(config.path)) continue;
      BOOST_TEST((pair->look(16, n) == given));
      BOOST_TEST(move(*pair, OpKind::read, got.data(), n, 16));
      BOOST_TEST((got == given));
    }
    BOOST_TEST(pair->a->unread() == 0U);
    expect_idle(*pair);
    if (ends_now(config.path)) return;
    for (const std::byte found : pair->look(0, 64)) BOOST_TEST(static_cast<int>(found) == 0);
  });
}

BOOST_AUTO_TEST_CASE(test_copies_now_that_are_refused_change_nothing) {
  for (const Path path : {Path::self, Path::direct, Path::cma}) {
    const auto pair = met(pair_of(path));
    nic::Endpoint& ep = *pair->a->ep;
    uint64_t word = ~uint64_t{0};
    auto* const local = reinterpret_cast<std::byte*>(&word);
    std::vector<std::byte> foreign(64);
    std::byte* const other = path == Path::cma ? foreign.data() : pair->b->alloc(64);
    pair->b->reg(other, 64, 77, mem::kRemoteRead);
    for (int round = 0; round < 2; ++round) {
      BOOST_TEST(!ep.move_now(OpKind::write, local, 8, pair->dest, 0, 99));               // no such key
      BOOST_TEST(!ep.move_now(OpKind::write, local, 8, pair->dest + 7, 0, pair->key()));  // no such peer
      BOOST_TEST(!ep.move_now(OpKind::write, local, 8, pair->dest, kBytes - 7, pair->key()));
      BOOST_TEST(!ep.move_now(OpKind::write, local, 8, pair->dest, ~uint64_t{3}, pair->key()));
      BOOST_TEST(!ep.move_now(OpKind::write, local, 8, pair->dest, 0, 77));  // read only
      BOOST_TEST(
          !ep.update_now({.op = AtomicOp::sum, .datatype = Datatype::uint64, .operand = local}, pair->dest, 0, 77)
               .done);
      BOOST_TEST(ep.move_now(OpKind::read, local, 8, pair->dest, 0, 77));
      BOOST_TEST(word == 0U);
      word = ~uint64_t{0};
    }
    std::string why;
    BOOST_REQUIRE(pair->region->close(&why));
    BOOST_TEST(!move(*pair, OpKind::write, local, 8, 0));
    ep.close();
    BOOST_TEST(!ep.move_now(OpKind::read, local, 8, pair->dest, 0, 77));
    for (const std::byte found : pair->look(0, 64)) BOOST_TEST(static_cast<int>(found) == 0);
  }
}

BOOST_AUTO_TEST_CASE(test_rows_now_end_at_the_first_index_out_of_range) {
  for (const Path path : {Path::self, Path::direct}) {
    const auto pair = met(pair_of(path));
    for (const size_t row : {size_t{8}, size_t{64}, size_t{40'000}}) {
      const size_t limit = std::min<size_t>(kBytes / row, 1000);
      std::vector<std::byte> table = pattern(limit * row, row);
      BOOST_REQUIRE(move(*pair, OpKind::write, table.data(), table.size(), 0));
      std::vector<int64_t> index(limit);
      for (size_t i = 0; i < limit; ++i) {
        index[i] = static_cast<int64_t>(i * 7 % limit);
        if (i % 3 == 0) index[i] -= static_cast<int64_t>(limit);  // counts from the end
      }
      std::vector<std::byte> got(limit * row);
      nic::Rows rows{.local = got.data(),
                     .bytes = row,
                     .count = limit,
                     .local_step = row,
                     .addr = 0,
                     .step = static_cast<int64_t>(row),
                     .index = index.data(),
                     .limit = limit};
      BOOST_TEST(pair->a->ep->move_rows_now(OpKind::read, rows, pair->dest, pair->key()) == limit);
      for (size_t i = 0; i < limit; ++i) {
        BOOST_TEST_REQUIRE(std::memcmp(&got[i * row], &table[i * 7 % limit * row], row) == 0);
      }
      for (const int64_t bad : {static_cast<int64_t>(limit), -static_cast<int64_t>(limit) - 1, INT64_MAX, INT64_MIN}) {
        index[limit - 2] = bad;
        BOOST_TEST(pair->a->ep->move_rows_now(OpKind::write, rows, pair->dest, pair->key()) == limit - 2);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_rows_now_that_leave_the_region_are_not_moved) {
  const auto pair = met(pair_of(Path::direct));
  std::vector<std::byte> room(64 * 8);
  nic::Rows rows{.local = room.data(), .bytes = 8, .count = 64, .local_step = 8, .addr = kBytes - 16, .step = 8};
  BOOST_TEST(pair->a->ep->move_rows_now(OpKind::read, rows, pair->dest, pair->key()) == 2U);
  rows.addr = 8;
  rows.step = -8;
  BOOST_TEST(pair->a->ep->move_rows_now(OpKind::read, rows, pair->dest, pair->key()) == 2U);
}

BOOST_AUTO_TEST_CASE(test_updates_now_are_those_of_atomics) {
  on_every_path([](PairConfig config) {
    const auto pair = met(config);
    constexpr size_t kCount = 5000;
    std::vector<uint64_t> first(kCount), ones(kCount, 1), before(kCount), twos(kCount, 2);
    std::iota(first.begin(), first.end(), 0);
    nic::Endpoint& ep = *pair->a->ep;
    nic::Update add{.op = AtomicOp::sum, .datatype = Datatype::uint64, .operand = bytes_of(ones), .count = kCount};
    if (!is_mapped(config.path)) {
      BOOST_TEST(ep.update_now(add, pair->dest, 0, pair->key()).done == 0U);
      BOOST_TEST(static_cast<int>(pair->look(0, 8)[0]) == 0);
      return;
    }
    BOOST_REQUIRE(move(*pair, OpKind::write, bytes_of(first), kCount * 8, 0));
    BOOST_TEST(ep.update_now(add, pair->dest, 0, pair->key()).done == kCount);
    nic::Update swap{.family = AtomicFamily::compare,
                     .op = AtomicOp::cswap,
                     .datatype = Datatype::uint64,
                     .operand = bytes_of(ones),
                     .compare = bytes_of(twos),
                     .result = bytes_of(before),
                     .count = kCount};
    BOOST_TEST(ep.update_now(swap, pair->dest, 0, pair->key()).done == kCount);
    for (size_t i = 0; i < kCount; ++i) BOOST_TEST_REQUIRE(before[i] == i + 1);
    std::vector<uint64_t> after(kCount);
    BOOST_REQUIRE(move(*pair, OpKind::read, bytes_of(after), kCount * 8, 0));
    for (size_t i = 0; i < kCount; ++i) BOOST_TEST_REQUIRE(after[i] == (i == 1 ? 1 : i + 1));
    BOOST_TEST(ep.update_now(add, pair->dest, 4, pair->key()).done == 0U);  // misaligned: the posted call refuses
    BOOST_TEST(ep.update_now(add, pair->dest, kBytes - 8, pair->key()).done == 0U);
    BOOST_TEST(pair->a->unread() == 0U);
    expect_idle(*pair);
  });
}

BOOST_AUTO_TEST_CASE(test_row_updates_now_count_each_index) {
  const auto pair = met(pair_of(Path::direct));
  for (const size_t elements : {size_t{1}, size_t{3}, size_t{1000}}) {
    const std::vector<uint64_t> zeros(10 * elements);
    pair->fill(std::byte{0});
    const std::vector<int64_t> index{3, 3, -7, 9, 3, 10};
    std::vector<uint64_t> values(index.size() * elements, 2), got(10 * elements);
    nic::Rows rows{.local = bytes_of(values),
                   .bytes = elements * 8,
                   .count = index.size(),
                   .local_step = elements * 8,
                   .addr = 0,
                   .step = static_cast<int64_t>(elements * 8),
                   .index = index.data(),
                   .limit = 10};
    const nic::Update add{.op = AtomicOp::sum, .datatype = Datatype::uint64};
    const nic::Updated u = pair->a->ep->update_rows_now(add, rows, pair->dest, pair->key());
    BOOST_TEST(u.done == 5U);  // 10 is out of range
    BOOST_TEST(!u.fault);
    BOOST_REQUIRE(move(*pair, OpKind::read, bytes_of(got), got.size() * 8, 0));
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t row = i / elements;
      BOOST_TEST_REQUIRE(got[i] == (row == 3 ? 8U : row == 9 ? 2U : 0U));
    }
  }
}

BOOST_AUTO_TEST_CASE(test_copies_now_end_when_the_region_is_closed) {
  for (const Path path : {Path::self, Path::direct, Path::cma}) {
    const auto pair = met(pair_of(path));
    std::vector<std::byte> ones(kBytes, std::byte{1});
    std::atomic<int> copied{0};
    std::vector<std::thread> threads;
    for (const size_t n : {size_t{8}, size_t{100'000}, kBytes}) {
      threads.emplace_back([&, n] {
        while (move(*pair, OpKind::write, ones.data(), n, 0)) ++copied;
      });
    }
    while (copied < 100) sched_yield();
    std::string why;
    BOOST_REQUIRE(pair->region->close(&why));
    std::memset(pair->memory, 2, kBytes);  // no copy is running: nothing is overwritten
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < kBytes; ++i) BOOST_TEST_REQUIRE(static_cast<int>(pair->memory[i]) == 2);
  }
}

BOOST_AUTO_TEST_SUITE_END()
