// bench/cpp/trigger.cpp: deferred work: from the count that reaches the threshold to the bytes at the target.
#include <atomic>
#include <thread>

#include "nic/trigger.hpp"
#include "sides.hpp"

namespace weft::bench {

namespace {

std::unique_ptr<nic::Work> put(Fabric& f, void* from, uint64_t addr, const std::shared_ptr<nic::Counter>& trigger,
                               uint64_t threshold, const std::shared_ptr<nic::Counter>& done) {
  auto work = std::make_unique<nic::Work>();
  work->kind = nic::Work::Kind::transfer;
  work->access = nic::OpKind::write;
  work->ep = f.side.ep;
  work->local.set(iovec{from, 8});
  work->remote.set(wire::RmaRange{addr, 8, kKey});
  work->total = 8;
  work->trigger = trigger;
  work->threshold = threshold;
  work->counter = done;
  if (f.side.ep->check_deferred(f.dest, &work->flow) != nic::Refusal::none) die("no flow");
  return work;
}

}  // namespace

void bench_trigger() {
  Fabric f;
  nic::TriggerUnit& unit = f.side.domain->triggers();
  auto* word = reinterpret_cast<uint64_t*>(f.local);
  auto* there = reinterpret_cast<uint64_t*>(f.target);
  nic::CqEntry entry;
  std::vector<double> fired, direct, links;
  for (int round = 0; round < 20'000; ++round) {
    const auto trigger = std::make_shared<nic::Counter>(), done = std::make_shared<nic::Counter>();
    auto work = put(f, word, 0, trigger, 1, done);
    if (unit.queue(&work, false, true) != nic::TriggerUnit::Queued::armed) die("not armed");
    *word = static_cast<uint64_t>(round) + 1;
    double start = now_ns();
    trigger->add(1);
    f.side.domain->run_triggers();
    poll_word([&] { return done->value() == 1; });  // the engine may have been faster
    fired.push_back(now_ns() - start);
    if (__atomic_load_n(there, __ATOMIC_RELAXED) != *word) die("the word is not there");
    start = now_ns();
    f.side.one(nic::OpKind::write, word, 8, f.dest, 0, kKey);
    if (f.side.take(&entry, 1) != 1) die("no completion");
    direct.push_back(now_ns() - start);
  }
  // The counting thread starts nothing. In the engine's place a thread makes progress all the time.
  f.side.host->nic().stop_engine();
  std::vector<double> awake;
  std::atomic<bool> stop{false};
  std::thread engine([&] {
    host::PollPacer pacer;
    while (!stop.load(std::memory_order_relaxed)) {
      if (f.side.host->nic().progress(false) == 0) rest(pacer);
    }
  });
  for (int round = 0; round < 5'000; ++round) {
    const auto trigger = std::make_shared<nic::Counter>(), done = std::make_shared<nic::Counter>();
    auto work = put(f, word, 0, trigger, 1, done);
    if (unit.queue(&work, false, true) != nic::TriggerUnit::Queued::armed) die("not armed");
    const double start = now_ns();
    trigger->add(1);
    poll_word([&] { return done->value() == 1; });
    awake.push_back(now_ns() - start);
  }
  stop.store(true);
  engine.join();
  f.side.host->nic().start_engine();
  constexpr size_t kLinks = 100;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::shared_ptr<nic::Counter>> counters;
    for (size_t i = 0; i <= kLinks; ++i) counters.push_back(std::make_shared<nic::Counter>());
    for (size_t i = 0; i < kLinks; ++i) {
      auto work = put(f, word, 8 * i, counters[i], 1, counters[i + 1]);
      if (unit.queue(&work, false, true) != nic::TriggerUnit::Queued::armed) die("not armed");
    }
    const double start = now_ns();
    counters[0]->add(1);
    f.side.domain->run_triggers();
    poll_word([&] { return counters[kLinks]->value() == 1; });
    links.push_back((now_ns() - start) / kLinks);
  }
  const Timed put8 = quantiles(direct), one = quantiles(fired), link = quantiles(links), by_nic = quantiles(awake);
  add({"trigger to 8 B at the target, counted", "ns", one.median, one.p99, "put 8 B, completion read", put8.median,
       "<= 2000 ns", one.median <= 2000});
  add({"the same, started by a NIC that is awake", "ns", by_nic.median, by_nic.p99, "put 8 B, completion read",
       put8.median, "<= 2000 ns", by_nic.median <= 2000});
  add({"link of a chain of 100 triggered puts", "ns", link.median, link.p99, "put 8 B, completion read", put8.median});
}

}  // namespace weft::bench
