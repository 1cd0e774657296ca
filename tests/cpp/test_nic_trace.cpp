// tests/cpp/test_nic_trace.cpp: the ring of a trace: which records a reader finds, and who may write.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "nic/trace.hpp"

using namespace weft;
using nic::Trace;
using nic::TraceHead;
using nic::TraceKind;
using nic::TraceRecord;
using nic::TraceSlot;

BOOST_AUTO_TEST_SUITE(nic_trace)

// The suite is a namespace: a fixture without a name would make each case's type one that its base is not.
class Ticks final : public Clock {
 public:
  uint64_t now_ns() override { return ++now_; }

 private:
  std::atomic<uint64_t> now_{1000};
};

struct Fixture {
  static constexpr size_t kRecords = 64;
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  static std::unique_ptr<std::byte, Free> zeros() {
    auto* p = static_cast<std::byte*>(::operator new(Trace::bytes_for(kRecords), std::align_val_t{64}));
    std::memset(p, 0, Trace::bytes_for(kRecords));
    return std::unique_ptr<std::byte, Free>(p);
  }

  std::unique_ptr<std::byte, Free> memory = zeros();
  Ticks clock;
  Trace trace{{memory.get(), Trace::bytes_for(kRecords)}, kRecords, clock, 77, "program argument"};

  [[nodiscard]] TraceHead& head() const { return *reinterpret_cast<TraceHead*>(memory.get()); }
  [[nodiscard]] TraceSlot* slots() const { return reinterpret_cast<TraceSlot*>(memory.get() + TraceHead::kBytes); }
  // The whole records, by number, as a reader of the file finds them.
  [[nodiscard]] std::map<uint64_t, TraceRecord> found() const {
    std::map<uint64_t, TraceRecord> all;
    for (size_t i = 0; i < kRecords; ++i) {
      const uint64_t state = slots()[i].state.load();
      if (state != 0 && state % 2 == 0) all[state / 2 - 1] = slots()[i].record;
    }
    return all;
  }
  void add(uint64_t id) {
    TraceRecord r;
    r.kind = TraceKind::begin;
    r.id = id;
    trace.add(r);
  }
};

BOOST_FIXTURE_TEST_CASE(head_describes_the_file, Fixture) {
  BOOST_TEST(std::memcmp(head().magic, "WEFTTRC", 8) == 0);
  BOOST_TEST(head().slots == kRecords);
  BOOST_TEST(head().record_bytes == 64u);
  BOOST_TEST(head().started_at == 77u);
  BOOST_TEST(head().started_ns == 1001u);
  BOOST_TEST(std::string(head().command) == "program argument");
}

BOOST_FIXTURE_TEST_CASE(records_are_found_in_order, Fixture) {
  for (uint64_t i = 0; i < 10; ++i) add(i);
  BOOST_TEST(found().size() == 10u);
  for (const auto& [number, record] : found()) BOOST_TEST(record.id == number);
  BOOST_TEST(head().dropped.load() == 0u);
}

BOOST_FIXTURE_TEST_CASE(newest_replace_the_oldest, Fixture) {
  for (uint64_t i = 0; i < 3 * kRecords + 5; ++i) add(i);
  const auto all = found();
  BOOST_TEST(all.size() == kRecords);
  BOOST_TEST(all.begin()->first == 2 * kRecords + 5);
  BOOST_TEST(all.rbegin()->first == 3 * kRecords + 4);
  BOOST_TEST(head().added.load() == 3 * kRecords + 5);
}

BOOST_FIXTURE_TEST_CASE(place_of_a_stopped_writer_is_not_written, Fixture) {
  // The writer of record 3 has claimed its place, and is stopped there.
  for (uint64_t i = 0; i < 3; ++i) add(i);
  const uint64_t number = head().added.fetch_add(1);
  slots()[number].state.store(2 * number + 1);
  for (uint64_t i = 4; i < 2 * kRecords; ++i) add(i);
  BOOST_TEST(head().dropped.load() == 1u);  // of the next round
  BOOST_TEST(found().count(number + kRecords) == 0u);
  BOOST_TEST(slots()[number].state.load() == 2 * number + 1);
  // It continues: its record is whole, and old.
  slots()[number].state.store(2 * number + 2);
  BOOST_TEST(found().size() == kRecords);
  add(1000);
  BOOST_TEST(head().dropped.load() == 1u);
}

BOOST_FIXTURE_TEST_CASE(writer_that_was_overtaken_drops_its_record, Fixture) {
  for (uint64_t i = 0; i < 2 * kRecords; ++i) add(i);
  head().added.store(5);  // as if this thread had its number since then
  add(4711);
  BOOST_TEST(head().dropped.load() == 1u);
  for (const auto& [number, record] : found()) BOOST_TEST(record.id == number);
}

BOOST_FIXTURE_TEST_CASE(threads_lose_no_record_unseen, Fixture) {
  constexpr uint64_t kEach = 20'000, kThreads = 4;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        TraceRecord r;
        r.kind = TraceKind::begin;
        r.id = r.bytes = r.arg = t << 32 | i;
        trace.add(r);
      }
    });
  }
  for (std::thread& one : threads) one.join();
  BOOST_TEST(head().added.load() == kEach * kThreads);
  BOOST_TEST(head().thread_count.load() == kThreads);
  // Every place has a whole record of one writer.
  BOOST_TEST(found().size() == kRecords);
  for (const auto& [number, record] : found()) {
    BOOST_TEST((record.id == record.bytes && record.id == record.arg));
  }
}

BOOST_FIXTURE_TEST_CASE(threads_and_endpoints_have_names, Fixture) {
  add(1);
  add(2);
  BOOST_TEST(head().thread_count.load() == 1u);
  BOOST_TEST(head().threads[0].used.load() == 1u);
  BOOST_TEST(head().threads[0].thread == found().at(0).thread);
  const uint16_t at = trace.name_endpoint(3, 4, 5, 6, std::string(100, 'x'));
  BOOST_TEST(at == 0u);
  BOOST_TEST(head().endpoints[0].pid == 4u);
  BOOST_TEST(std::string(head().endpoints[0].text) == std::string(47, 'x'));
}

BOOST_FIXTURE_TEST_CASE(endpoints_beyond_the_table_have_no_name, Fixture) {
  for (size_t i = 0; i < TraceHead::kEndpoints; ++i) {
    BOOST_TEST(trace.name_endpoint(0, 0, 0, 0, "x") == i);
  }
  for (int i = 0; i < 3; ++i) BOOST_TEST(trace.name_endpoint(0, 0, 0, 0, "x") == TraceRecord::kNoEndpoint);
  BOOST_TEST(head().endpoint_count.load() == TraceHead::kEndpoints);
}

BOOST_FIXTURE_TEST_CASE(refused_calls_are_one_stall, Fixture) {
  nic::EndpointTrace ep(&trace);
  ep.went_on();
  BOOST_TEST(found().empty());
  for (int i = 0; i < 100; ++i) ep.refused(2);
  ep.went_on();
  ep.went_on();
  const auto all = found();
  BOOST_REQUIRE(all.size() == 2u);
  BOOST_TEST((all.at(0).kind == TraceKind::stall && all.at(0).what == 2));
  BOOST_TEST((all.at(1).kind == TraceKind::go_on && all.at(1).id == 100 && all.at(1).what == 2));
  BOOST_TEST(all.at(0).t_ns < all.at(1).t_ns);
}

BOOST_FIXTURE_TEST_CASE(triggered_work_is_recorded, Fixture) {
  trace.triggered(7, 2, 40, 9);
  const TraceRecord r = found().at(0);
  BOOST_TEST((r.kind == TraceKind::triggered && r.endpoint == 7 && r.what == 2 && r.arg == 40 && r.id == 9));
}

BOOST_AUTO_TEST_SUITE_END()
