// tests/cpp/test_nic_trigger.cpp: deferred work: order, chains, queues that are full, flush, and threads.
#include <atomic>
#include <thread>

#include "every_path.hpp"
#include "messaging.hpp"
#include "nic/trigger.hpp"

namespace {

using namespace weft;
using namespace weft::test;
using nic::Counter;
using nic::TriggerUnit;
using nic::Work;
using Queued = TriggerUnit::Queued;

std::shared_ptr<Counter> counter() {
  return std::make_shared<Counter>();
}

struct Deferred {
  std::shared_ptr<Counter> trigger;
  uint64_t threshold = 1;
  std::shared_ptr<Counter> completion = nullptr;
};

Queued queue(nic::Domain& domain, std::unique_ptr<Work> work, const Deferred& how) {
  work->trigger = how.trigger;
  work->threshold = how.threshold;
  if (!work->counter) work->counter = how.completion;
  const Queued queued = domain.triggers().queue(&work, false, true);
  domain.run_triggers();
  return queued;
}

Queued queue_access(nic::Endpoint& ep, const Access& a, const Deferred& how) {
  auto work = std::make_unique<Work>();
  work->kind = Work::Kind::transfer;
  work->access = a.kind;
  work->ep = ep.shared_from_this();
  work->local.set(std::span<const iovec>(a.local));
  work->remote.set(std::span<const wire::RmaRange>(a.remote));
  work->flags = a.flags;
  work->context = a.context;
  work->data = a.imm;
  for (const iovec& v : a.local) work->total += v.iov_len;
  BOOST_TEST_REQUIRE(ep.check_deferred(a.dest, &work->flow) == Refusal::none);
  return queue(*ep.domain(), std::move(work), how);
}

Queued queue_counting(nic::Domain& domain, bool add, std::shared_ptr<Counter> target, uint64_t value,
                      const Deferred& how) {
  auto work = std::make_unique<Work>();
  work->kind = add ? Work::Kind::add : Work::Kind::set;
  work->counter = std::move(target);
  work->value = value;
  return queue(domain, std::move(work), how);
}

// The steps of an application that has changed a counter.
void add(nic::Domain& domain, Counter& to, uint64_t n) {
  to.add(n);
  domain.run_triggers();
}

BOOST_AUTO_TEST_SUITE(nic_trigger)

BOOST_AUTO_TEST_CASE(test_work_starts_at_its_threshold_and_not_before) {
  on_every_path([](const PairConfig& config) {
    Pair pair(config);
    pair.fill(std::byte{0});
    const auto bytes = pattern(64);
    const auto trigger = counter(), done = counter();
    auto access = write_of(pair.dest, bytes.data(), bytes.size(), 128, pair.key());
    BOOST_TEST(static_cast<int>(queue_access(*pair.a->ep, access, {trigger, 3, done})) ==
               static_cast<int>(Queued::armed));
    add(*pair.a->domain, *trigger, 2);
    for (int i = 0; i < 20; ++i) pair.poll();
    BOOST_TEST(done->value() == 0U);
    BOOST_TEST((pair.look(128, 64) == of_value(std::byte{0}, 64)));
    add(*pair.a->domain, *trigger, 1);
    pair.until([&] { return done->value() == 1; }, "the deferred write");
    BOOST_TEST((pair.look(128, 64) == bytes));
    BOOST_TEST(pair.a->unread() == 0U);  // no completion was asked for
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_completion_counter_counts_instead_of_the_endpoints) {
  PairConfig config = pair_of(Path::direct);
  config.a.counters = true;
  Pair pair(config);
  const auto trigger = counter(), done = counter();
  uint64_t word = 7;
  auto access = write_of(pair.dest, &word, 8, 0, pair.key(), 99);
  access.flags = flag::kCompletion;
  queue_access(*pair.a->ep, access, {trigger, 1, done});
  queue_access(*pair.a->ep, access, {trigger, 1, nullptr});
  add(*pair.a->domain, *trigger, 1);
  BOOST_TEST(pair.wait().entry.context == 99U);
  BOOST_TEST(pair.wait().entry.context == 99U);
  BOOST_TEST(done->value() == 1U);
  BOOST_TEST(pair.a->write_cntr->value() == 1U);
}

BOOST_AUTO_TEST_CASE(test_failed_work_counts_as_failure_and_reports_an_error) {
  on_every_path([](const PairConfig& config) {
    Pair pair(config);
    const auto trigger = counter(), done = counter();
    uint64_t word = 0;
    queue_access(*pair.a->ep, read_of(pair.dest, &word, 8, 0, pair.key() + 1, 5), {trigger, 1, done});
    add(*pair.a->domain, *trigger, 1);
    const Completion c = pair.wait();
    BOOST_TEST(c.error != 0);
    BOOST_TEST(c.entry.context == 5U);
    BOOST_TEST(done->errors() == 1U);
    BOOST_TEST(done->value() == 0U);
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_work_of_one_counter_starts_by_threshold_then_in_order) {
  Pair pair(pair_of(Path::direct));
  const auto trigger = counter();
  std::vector<uint64_t> words(6);
  // context = the order in which the entries must come
  const std::pair<uint64_t, uint64_t> all[] = {{3, 4}, {1, 1}, {2, 3}, {1, 2}, {3, 5}, {9, 6}};
  for (size_t i = 0; i < std::size(all); ++i) {
    auto access = write_of(pair.dest, &words[i], 8, 8 * i, pair.key(), all[i].second);
    access.flags = flag::kCompletion;
    queue_access(*pair.a->ep, access, {trigger, all[i].first});
  }
  add(*pair.a->domain, *trigger, 3);
  for (uint64_t expected = 1; expected <= 5; ++expected) BOOST_TEST(pair.wait().entry.context == expected);
  BOOST_TEST(pair.a->unread() == 0U);
  BOOST_TEST(pair.a->domain->triggers().statistics().armed == 1U);
}

BOOST_AUTO_TEST_CASE(test_chain_of_1000_runs_without_a_call) {
  on_every_path([](const PairConfig& config) {
    Pair pair(config);
    constexpr size_t kLinks = 1000;
    std::vector<std::shared_ptr<Counter>> counters;
    for (size_t i = 0; i <= kLinks; ++i) counters.push_back(counter());
    std::vector<uint64_t> words(kLinks);
    std::iota(words.begin(), words.end(), 1);
    for (size_t i = 0; i < kLinks; ++i) {
      queue_access(*pair.a->ep, write_of(pair.dest, &words[i], 8, 8 * (i % 64), pair.key()),
                   {counters[i], 1, counters[i + 1]});
    }
    add(*pair.a->domain, *counters[0], 1);
    if (config.manual) {
      pair.until([&] { return counters[kLinks]->value() == 1; }, "the end of the chain");
    } else {  // the engines do it alone
      BOOST_TEST(poll_until([&] { return counters[kLinks]->value() == 1; }, [] {}));
    }
    for (const auto& c : counters) BOOST_TEST_REQUIRE(c->value() == 1U);
    uint64_t last;
    std::memcpy(&last, pair.look(8 * ((kLinks - 1) % 64), 8).data(), 8);
    BOOST_TEST(last == kLinks);
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_work_on_counters_sets_and_adds) {
  Side side;
  const auto trigger = counter(), one = counter(), two = counter();
  one->set(50);
  queue_counting(*side.domain, false, one, 7, {trigger, 1});
  queue_counting(*side.domain, true, two, 5, {one, 7});  // 50 is above the threshold: at once
  BOOST_TEST(two->value() == 5U);
  queue_counting(*side.domain, true, two, 5, {trigger, 2});
  add(*side.domain, *trigger, 1);
  BOOST_TEST(one->value() == 7U);
  BOOST_TEST(two->value() == 5U);
  add(*side.domain, *trigger, 1);
  BOOST_TEST(two->value() == 10U);
}

BOOST_AUTO_TEST_CASE(test_set_of_a_counter_triggers_and_a_reset_does_not) {
  Side side;
  const auto trigger = counter(), target = counter();
  queue_counting(*side.domain, true, target, 1, {trigger, 5});
  trigger->set(4);
  trigger->set(0);
  side.domain->run_triggers();
  BOOST_TEST(target->value() == 0U);
  trigger->set(6);
  trigger->set(0);  // the threshold was reached
  side.domain->run_triggers();
  BOOST_TEST(target->value() == 1U);
}

BOOST_AUTO_TEST_CASE(test_full_transmit_queue_delays_work_in_order) {
  PairConfig config = pair_of(Path::strict);
  config.a.ep.tx_size = 2;
  Pair pair(config);
  const auto trigger = counter(), done = counter();
  std::vector<uint64_t> words(32);
  for (size_t i = 0; i < words.size(); ++i) {
    auto access = write_of(pair.dest, &words[i], 8, 8 * i, pair.key(), i + 1);
    access.flags = flag::kCompletion;
    queue_access(*pair.a->ep, access, {trigger, 1, done});
  }
  add(*pair.a->domain, *trigger, 1);
  for (uint64_t i = 1; i <= words.size(); ++i) BOOST_TEST(pair.wait().entry.context == i);
  BOOST_TEST(done->value() == words.size());
  expect_idle(pair);
}

BOOST_AUTO_TEST_CASE(test_full_completion_queue_delays_work_until_it_is_read) {
  PairConfig config = pair_of(Path::direct);
  config.a.cq_capacity = 2;
  Pair pair(config);
  const auto trigger = counter(), done = counter();
  uint64_t word = 0;
  for (uint64_t i = 1; i <= 5; ++i) {
    auto access = write_of(pair.dest, &word, 8, 0, pair.key(), i);
    access.flags = flag::kCompletion;
    queue_access(*pair.a->ep, access, {trigger, 1, done});
  }
  add(*pair.a->domain, *trigger, 1);
  pair.until([&] { return done->value() == 2; }, "the work that has room");
  for (int i = 0; i < 20; ++i) pair.poll();
  BOOST_TEST(done->value() == 2U);
  for (uint64_t i = 1; i <= 5; ++i) BOOST_TEST(pair.wait().entry.context == i);
  BOOST_TEST(done->value() == 5U);
}

BOOST_AUTO_TEST_CASE(test_deferred_messages_arrive) {
  on_every_message_path([](const PairConfig& config) {
    Pair pair(config);
    for (const size_t n : {size_t{8}, size_t{4096}, size_t{200000}}) {
      const auto bytes = text_of(n);
      std::vector<std::byte> room(n);
      const auto trigger = counter(), done = counter();
      auto work = std::make_unique<Work>();
      work->kind = Work::Kind::send;
      work->ep = pair.a->ep;
      work->local.set(iovec{const_cast<std::byte*>(bytes.data()), n});
      work->tagged = true;
      work->tag = 77;
      work->total = n;
      BOOST_TEST_REQUIRE(pair.a->ep->check_deferred(pair.dest, &work->flow) == Refusal::none);
      queue(*pair.a->domain, std::move(work), {trigger, 1, done});
      BOOST_TEST_REQUIRE(receive(*pair.b->ep, room.data(), n, {.tag = 77}).refusal == Refusal::none);
      for (int i = 0; i < 10; ++i) pair.poll();
      BOOST_TEST(done->value() == 0U);
      add(*pair.a->domain, *trigger, 1);
      BOOST_TEST(pair.wait(pair.b.get()).entry.len == n);
      pair.until([&] { return done->value() == 1; }, "the send's count");
      BOOST_TEST((room == bytes));
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_peers_write_triggers_work_here) {
  on_every_path([](const PairConfig& paths) {
    PairConfig config = paths;
    config.b.counters = true;
    Pair pair(config);
    const auto done = counter();
    const uint64_t back = pair.b->insert(*pair.a);
    std::byte* home = pair.a->alloc(64);
    pair.a->reg(home, 64, 7);
    uint64_t word = 0x1234;
    queue_access(*pair.b->ep, write_of(back, &word, 8, 0, 7), {pair.b->remote_write_cntr, 1, done});
    uint64_t ping = 1;
    BOOST_TEST(pair.write(&ping, 8, 0).error == 0);
    // b polls only if it has no engine.
    BOOST_TEST(
        poll_until([&] { return done->value() == 1; }, [&] { config.manual ? pair.poll() : pair.a->progress(); }));
    pair.a->fence();
    uint64_t there;
    std::memcpy(&there, home, 8);
    BOOST_TEST(there == word);
  });
}

BOOST_AUTO_TEST_CASE(test_flush_drops_work_without_counts) {
  Pair pair(pair_of(Path::direct));
  const auto trigger = counter(), done = counter();
  uint64_t word = 0;
  for (uint64_t i = 1; i <= 4; ++i) {
    queue_access(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key(), 0), {trigger, i, done});
  }
  BOOST_TEST(pair.a->domain->triggers().flush() == 4U);
  add(*pair.a->domain, *trigger, 10);
  for (int i = 0; i < 10; ++i) pair.poll();
  BOOST_TEST(done->value() == 0U);
  BOOST_TEST(done->errors() == 0U);
  // The unit takes new work afterwards.
  queue_access(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key(), 0), {trigger, 1, done});
  pair.until([&] { return done->value() == 1; }, "the work after the flush");
}

BOOST_AUTO_TEST_CASE(test_closed_endpoint_and_forgotten_counter_drop_their_work) {
  Pair pair(pair_of(Path::direct));
  const auto trigger = counter(), other = counter(), done = counter();
  uint64_t word = 0;
  queue_access(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key(), 0), {trigger, 1, done});
  queue_counting(*pair.a->domain, true, done, 100, {other, 1});
  queue_counting(*pair.a->domain, true, done, 10, {trigger, 1});
  pair.a->domain->triggers().forget(other.get());
  pair.a->ep->close();
  add(*pair.a->domain, *other, 1);
  BOOST_TEST(done->value() == 0U);
  add(*pair.a->domain, *trigger, 1);
  BOOST_TEST(done->value() == 10U);
}

BOOST_AUTO_TEST_CASE(test_counter_of_another_domain_is_refused_and_outlives_its_domain) {
  const auto trigger = counter(), done = counter();
  Side other;
  {
    Side side;
    queue_counting(*side.domain, true, done, 1, {trigger, 5});
    auto work = std::make_unique<Work>();
    work->kind = Work::Kind::add;
    work->counter = done;
    work->trigger = trigger;
    BOOST_TEST((other.domain->triggers().queue(&work, false, true) == Queued::closed));
    BOOST_TEST(work != nullptr);
  }
  trigger->add(10);  // the domain is gone, and its work with it
  BOOST_TEST(done->value() == 0U);
}

BOOST_AUTO_TEST_CASE(test_threads_count_while_others_queue) {
  PairConfig config = pair_of(Path::direct);
  Pair pair(config);
  constexpr uint64_t kEach = 3000;
  constexpr int kThreads = 3;
  const auto trigger = counter(), done = counter();
  std::atomic<bool> stop{false};
  std::vector<std::thread> adders;
  for (int t = 0; t < kThreads; ++t) {
    adders.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        trigger->add(1);
        pair.a->domain->run_triggers();
        std::this_thread::yield();
      }
    });
  }
  std::vector<std::thread> queuers;
  for (int t = 0; t < kThreads; ++t) {
    queuers.emplace_back([&, t] {
      static thread_local uint64_t word = 0;
      for (uint64_t i = 0; i < kEach; ++i) {
        const Deferred how{trigger, trigger->value() + i % 5, done};
        if (t == 0) {
          queue_access(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key(), 0), how);
        } else {
          queue_counting(*pair.a->domain, true, done, 1, how);
        }
      }
      while (done->value() < kThreads * kEach) {
        pair.a->domain->run_triggers();
        std::this_thread::yield();
      }
    });
  }
  for (auto& t : queuers) t.join();
  stop.store(true);
  for (auto& t : adders) t.join();
  BOOST_TEST(done->value() == kThreads * kEach);
  BOOST_TEST(pair.a->nic().statistics().waiting_ops == 0U);
}

BOOST_AUTO_TEST_CASE(test_flush_beside_threads_that_count_loses_no_entry) {
  Side side;
  const auto trigger = counter(), done = counter();
  std::atomic<bool> stop{false};
  std::thread adder([&] {
    while (!stop.load()) {
      trigger->add(1);
      side.domain->run_triggers();
    }
  });
  uint64_t dropped = 0;
  constexpr uint64_t kWorks = 5000;
  for (uint64_t i = 0; i < kWorks; ++i) {
    queue_counting(*side.domain, true, done, 1, {trigger, trigger->value() + i % 20});
    if (i % 16 == 0) dropped += side.domain->triggers().flush();
  }
  dropped += side.domain->triggers().flush();
  stop.store(true);
  adder.join();
  side.domain->run_triggers();
  BOOST_TEST(done->value() + dropped == kWorks);
  BOOST_TEST(side.nic().statistics().waiting_ops == 0U);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
