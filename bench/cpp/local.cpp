// bench/cpp/local.cpp: the data path between processes of a host, and the units below it.
#include "nic/atomics.hpp"
#include "ring/mpsc.hpp"

#include <thread>

#include "sides.hpp"

namespace weft::bench {

void bench_put8() {
  Fabric f;
  auto& side = f.side;
  auto* word = reinterpret_cast<uint64_t*>(f.local);
  nic::CqEntry entry;
  std::atomic<uint64_t> bare{0};
  std::atomic<uint64_t> there{0};
  // The least that a put with a lock and a completion needs: one locked instruction and two stores.
  const auto limit = [&] {
    bare.fetch_add(1, std::memory_order_seq_cst);
    there.store(*word, std::memory_order_relaxed);
    bare.store(0, std::memory_order_release);
  };
  auto [single, limit_ns] = measure_both(
      5000,
      [&] {
        side.one(nic::OpKind::write, word, 8, f.dest, 0, kKey);
        if (side.take(&entry, 1) != 1) die("no completion");
      },
      limit);
  add({"put 8 B, each completion read",
       "ns",
       single.median,
       single.p99,
       "locked add, two stores",
       limit_ns.median,
       {},
       true});
  auto [many, limit_many] = measure_both(
      64,
      [&] {
        for (int i = 0; i < 64; ++i) side.one(nic::OpKind::write, word, 8, f.dest, 0, kKey);
        f.complete_all(64);
      },
      [&] {
        for (int i = 0; i < 64; ++i) limit();
      });
  add({"put 8 B, completions read by 64", "ns", many.median / 64, many.p99 / 64, "locked add, two stores",
       limit_many.median / 64, "<= 15 ns", many.median / 64 <= 15});
  auto [quiet, limit_quiet] = measure_both(
      5000, [&] { (void)side.quiet->post_one(nic::OpKind::write, word, 8, f.dest, 0, kKey, 0, 1, 0, true); }, limit);
  add({"inject_write 8 B", "ns", quiet.median, quiet.p99, "locked add, two stores", limit_quiet.median, "<= 15 ns",
       quiet.median <= 15});
  const auto get = measure(5000, [&] {
    side.one(nic::OpKind::read, word, 8, f.dest, 0, kKey);
    if (side.take(&entry, 1) != 1) die("no completion");
  });
  add({"get 8 B, each completion read",
       "ns",
       get.median,
       get.p99,
       "locked add, two stores",
       limit_ns.median,
       {},
       true});
}

void bench_copy() {
  Fabric f;
  if (f.target == nullptr) die("the target's segment is not mapped");
  for (const size_t n : {size_t{4096}, size_t{65536}, size_t{1} << 20}) {
    const int calls = static_cast<int>(std::max<size_t>(4, (size_t{8} << 20) / n / 4));
    for (const bool put : {true, false}) {
      auto [ours, bare] = measure_both(
          calls,
          [&] {
            f.side.one(put ? nic::OpKind::write : nic::OpKind::read, f.local, n, f.dest, 0, kKey);
            f.complete_all(1);
          },
          [&] {
            put ? std::memcpy(f.target, f.local, n) : std::memcpy(f.local, f.target, n);
            asm volatile("" ::: "memory");
          },
          101);
      Row row{std::string(put ? "put " : "get ") + std::to_string(n / 1024) + " KiB, direct",
              "GB/s",
              static_cast<double>(n) / ours.median,
              static_cast<double>(n) / ours.p99,
              "memcpy, same buffers",
              static_cast<double>(n) / bare.median,
              {},
              true};
      if (n >= 65536) {
        row.budget = ">= 0.97 x memcpy";
        row.met = share_of(row) >= 0.97;
      }
      add(row);
    }
  }
}

void bench_foreign() {
  Fabric f;
  for (const size_t n : {size_t{4096}, size_t{65536}, size_t{1} << 20}) {
    const int calls = static_cast<int>(std::max<size_t>(2, (size_t{2} << 20) / n));
    for (const bool put : {true, false}) {
      const iovec local{f.local, n}, remote{reinterpret_cast<void*>(f.told.foreign), n};
      auto [ours, bare] = measure_both(
          calls,
          [&] {
            f.side.one(put ? nic::OpKind::write : nic::OpKind::read, f.local, n, f.dest, 0, kForeignKey);
            f.complete_all(1);
          },
          [&] {
            const ssize_t moved = put ? ::process_vm_writev(f.peer.pid(), &local, 1, &remote, 1, 0)
                                      : ::process_vm_readv(f.peer.pid(), &local, 1, &remote, 1, 0);
            if (moved != static_cast<ssize_t>(n)) die("process_vm_writev");
          });
      Row row{std::string(put ? "put " : "get ") + std::to_string(n / 1024) + " KiB, foreign memory",
              "GB/s",
              static_cast<double>(n) / ours.median,
              static_cast<double>(n) / ours.p99,
              put ? "bare process_vm_writev" : "bare process_vm_readv",
              static_cast<double>(n) / bare.median,
              {},
              true};
      if (n >= 65536) {
        row.budget = ">= 0.95 x bare";
        row.met = share_of(row) >= 0.95;
      }
      add(row);
    }
  }
}

void bench_ring() {
  Fabric f(false);  // no process_vm_*: foreign memory goes through the target's engine
  auto& side = f.side;
  std::vector<double> ns;
  for (int i = 0; i < 400; ++i) {
    const double start = now_ns();
    side.one(nic::OpKind::write, f.local, 8, f.dest, 0, kForeignKey);
    side.wait_one();
    ns.push_back(now_ns() - start);
  }
  const auto single = quantiles(ns);
  add({"put 8 B, owner's engine, alone", "ns", single.median, single.p99, "", 0, {}, true});
  nic::CqEntry entries[64];
  const auto stream = [&](size_t n, int count) {
    host::PollPacer pacer;
    for (int posted = 0, done = 0; done < count;) {
      while (posted < count && posted - done < 256 &&
             side.one(nic::OpKind::write, f.local, n, f.dest, 0, kForeignKey).refusal == nic::Refusal::none) {
        ++posted;
      }
      side.host->nic().poll_from_app();
      const auto got = static_cast<int>(side.take(entries, 64));
      done += got;
      got != 0 ? pacer.found() : rest(pacer);
    }
  };
  const auto small = measure(1, [&] { stream(8, 5000); }, 9);
  add({"put 8 B, owner's engine, stream", "ns", small.median / 5000, small.p99 / 5000, "", 0, {}, true});
  constexpr size_t kBig = 1 << 20;
  auto [big, bare] = measure_both(
      1, [&] { stream(kBig, 32); },
      [&] {
        for (int i = 0; i < 32; ++i) {
          std::memcpy(f.local + kBig, f.local, kBig);
          asm volatile("" ::: "memory");
        }
      },
      9);
  add({"put 1 MiB, owner's engine, stream",
       "GB/s",
       32.0 * kBig / big.median,
       32.0 * kBig / big.p99,
       "memcpy (the ring copies twice)",
       32.0 * kBig / bare.median,
       {},
       true});
}

void bench_vectored() {
  Fabric f;
  constexpr size_t kCount = 1024;
  for (const size_t n : {size_t{8}, size_t{256}}) {
    std::vector<nic::BatchDesc> descs;
    std::mt19937 random(1);
    for (size_t i = 0; i < kCount; ++i)
      descs.push_back({i * n, n, f.dest, random() % (kBytes / n / 8) * n, kKey, 0, 0});
    auto [ours, bare] = measure_both(
        20,
        [&] {
          (void)f.side.ep->post_batch(nic::OpKind::write, f.local, kBytes, descs, 0, 1);
          f.complete_all(1);
        },
        [&] {
          for (const auto& d : descs) std::memcpy(f.target + d.remote_addr, f.local + d.local_offset, d.length);
          asm volatile("" ::: "memory");
        });
    const double each = ours.median / kCount, copy = bare.median / kCount;
    add({"vectored put, " + std::to_string(n) + " B a descriptor", "ns", each, ours.p99 / kCount,
         "memcpy of the same pieces", copy, "<= 12 ns + copy", each <= 12 + copy});
  }
}

void bench_fetch_add() {
  Fabric f;
  int64_t one = 1, old = 0;
  const iovec operand{&one, 8}, result{&old, 8};
  const wire::RmaRange range{64, 8, kKey};
  nic::AtomicArgs args;
  args.dest = f.dest;
  args.family = nic::AtomicFamily::fetch;
  args.op = nic::AtomicOp::sum;
  args.datatype = nic::Datatype::int64;
  args.operand = {&operand, 1};
  args.result = {&result, 1};
  args.remote = {&range, 1};
  auto* cell = reinterpret_cast<int64_t*>(f.target + 64);
  auto [ours, bare] = measure_both(
      64,
      [&] {
        for (int i = 0; i < 64; ++i) (void)f.side.ep->post_atomic(args);
        f.complete_all(64);
      },
      [&] {
        for (int i = 0; i < 64; ++i) old += __atomic_fetch_add(cell, 1, __ATOMIC_SEQ_CST);
      });
  add({"fetch-add int64, completions read by 64", "ns", ours.median / 64, ours.p99 / 64, "lock xadd, same cell",
       bare.median / 64, "<= 20 ns", ours.median / 64 <= 20});
}

// Fetch-adds of several threads, each on a word of its own: of one domain, which has one lock; of a domain each.
void bench_threads() {
  Fabric f;
  constexpr int kMost = 4;
  std::vector<std::unique_ptr<nic::Domain>> domains;
  std::vector<std::shared_ptr<nic::Endpoint>> shared, own;
  std::vector<uint64_t> dests;
  nic::EndpointConfig config;
  config.caps = flag::kRma | flag::kAtomic | flag::kRead | flag::kWrite | flag::kRemoteRead | flag::kRemoteWrite;
  for (int i = 0; i < kMost; ++i) {
    shared.push_back(f.side.endpoint(flag::kSend | flag::kSelectiveCompletion));
    domains.push_back(std::make_unique<nic::Domain>(&f.side.host->nic(), nic::DomainConfig{}));
    auto av = std::make_shared<nic::AddressVector>(domains.back().get());
    dests.push_back(av->insert(f.told.address));
    own.push_back(domains.back()->make_endpoint(config));
    own.back()->bind_cq(std::make_shared<nic::CompletionQueue>(64), flag::kSend | flag::kSelectiveCompletion);
    own.back()->bind_av(av);
    own.back()->enable(0, {});
  }
  // Operations a microsecond of `count` threads together; the best of several goes.
  const auto rate = [&](int count, const std::function<void(int)>& one) {
    constexpr int kTurns = 200'000;
    double best = 0;
    for (int go = 0; go < 7; ++go) {
      std::atomic<int> ready{0};
      std::vector<std::thread> threads;
      std::vector<double> began(static_cast<size_t>(count)), ended(began);
      for (int i = 0; i < count; ++i) {
        threads.emplace_back([&, i] {
          const auto at = static_cast<size_t>(i);
          one(i);
          ready.fetch_add(1);
          poll_word([&] { return ready.load() == count; });
          began[at] = now_ns();
          for (int k = 0; k < kTurns; ++k) one(i);
          ended[at] = now_ns();
        });
      }
      for (std::thread& t : threads) t.join();
      best =
          std::max(best, 1e3 * kTurns * count / (*std::ranges::max_element(ended) - *std::ranges::min_element(began)));
    }
    return best;
  };
  const auto add_of = [&](const std::shared_ptr<nic::Endpoint>& ep, uint64_t dest, int i) {
    int64_t one = 1, old = 0;
    const iovec operand{&one, 8}, result{&old, 8};
    const wire::RmaRange range{static_cast<uint64_t>(64 * (i + 1)), 8, kKey};
    nic::AtomicArgs args;
    args.dest = dest;
    args.family = nic::AtomicFamily::fetch;
    args.op = nic::AtomicOp::sum;
    args.datatype = nic::Datatype::int64;
    args.operand = {&operand, 1};
    args.result = {&result, 1};
    args.remote = {&range, 1};
    args.inject_call = true;
    if (ep->post_atomic(args).refusal != nic::Refusal::none) die("a refusal");
  };
  for (int i = 0; i < kMost; ++i) {  // connected
    add_of(own[i], dests[i], i);
    add_of(shared[i], f.dest, i);
    while (own[i]->outstanding() + shared[i]->outstanding() != 0) f.side.host->nic().poll_from_app();
  }
  std::atomic<int64_t> words[kMost][8] = {};
  double alone[3] = {};
  for (const int count : {1, 2, kMost}) {
    const auto of = std::to_string(count) + (count == 1 ? " thread" : " threads");
    const double figures[] = {rate(count, [&](int i) { words[i][0].fetch_add(1); }),
                              rate(count, [&](int i) { add_of(own[i], dests[i], i); }),
                              rate(count, [&](int i) { add_of(shared[i], f.dest, i); })};
    if (count == 1) std::ranges::copy(figures, alone);
    add({"fetch-adds, a domain each, " + of, "/us", figures[1], figures[1], "of one thread", alone[1], {}, true});
    add({"fetch-adds, one domain, " + of, "/us", figures[2], figures[2], "of one thread", alone[2], {}, true});
    add({"bare locked adds, " + of, "/us", figures[0], figures[0], "of one thread", alone[0], {}, true});
  }
  for (const auto& ep : shared) ep->close();
  for (const auto& ep : own) ep->close();
}

void bench_units() {
  using namespace weft::nic;
  using namespace weft::ring;
  alignas(64) static int64_t cell = 0;
  const auto lock = measure(20'000, [] { __atomic_fetch_add(&cell, 1, __ATOMIC_SEQ_CST); }, 21);
  alignas(64) static unsigned char target[64] = {};
  static unsigned char operand[32] = {1}, compare[32] = {}, result[32];
  const auto atomic = [&](const char* name, AtomicOp op, Datatype type, bool fetch) {
    // Keep the operation from being a constant that the compiler can see.
    volatile uint16_t op_number = static_cast<uint16_t>(op), type_number = static_cast<uint16_t>(type);
    const auto t = measure(
        20'000,
        [&] {
          atomic_apply(static_cast<AtomicOp>(op_number), static_cast<Datatype>(type_number), target, operand, compare,
                       fetch ? result : nullptr, 1);
        },
        21);
    add({std::string("atomics unit: ") + name, "ns", t.median, t.p99, "lock add", lock.median, {}, true});
  };
  atomic("int64 sum", AtomicOp::sum, Datatype::int64, false);
  atomic("int64 sum, fetch", AtomicOp::sum, Datatype::int64, true);
  atomic("int64 cswap", AtomicOp::cswap, Datatype::int64, true);
  atomic("int64 read", AtomicOp::atomic_read, Datatype::int64, true);
  atomic("int64 min, fetch", AtomicOp::min, Datatype::int64, true);
  atomic("double sum, fetch", AtomicOp::sum, Datatype::float64, true);
  atomic("float16 sum", AtomicOp::sum, Datatype::float16, false);
  atomic("int128 sum, fetch (cmpxchg16b)", AtomicOp::sum, Datatype::int128, true);
  atomic("int128 read", AtomicOp::atomic_read, Datatype::int128, true);
  const auto with_ring = [&](const char* name, size_t length) {
    constexpr uint32_t kSlots = 64;
    void* memory = std::aligned_alloc(64, ring_bytes(kSlots));
    const std::span<std::byte> span(static_cast<std::byte*>(memory), ring_bytes(kSlots));
    auto consumer = MpscConsumer::create(span, kSlots).value();
    auto producer = MpscProducer::attach(span, kSlots, 1).value();
    Message message;
    std::byte payload[kPayloadBytes] = {};
    const auto t = measure(
        20'000,
        [&] {
          const Claim claim = producer.try_claim();
          std::memcpy(claim.payload().data(), payload, length);
          if (producer.publish(claim, length)) std::abort();
          if (consumer.poll(message) != PollStatus::message) std::abort();
        },
        21);
    add({std::string("ring: ") + name, "ns", t.median, t.p99, "lock add", lock.median, {}, true});
    std::free(memory);
  };
  with_ring("push + pop, 32 bytes", 32);
  with_ring("push + pop, 240 bytes", 240);
}

}  // namespace weft::bench
