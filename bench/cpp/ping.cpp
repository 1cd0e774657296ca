// bench/cpp/ping.cpp: round trips between processes that poll.
#include "sides.hpp"

namespace weft::bench {

namespace {

// Round trips between two processes that poll. Every second block uses a bare cache line.
struct PingResult {
  Timed put, bare;
  double longest_us = 0;
};

constexpr int kPingBlocks = 12, kPingsABlock = 2000;

void play(Side& side, uint64_t dest, uint64_t* mine, uint64_t* line, bool first, std::vector<double>* put_ns,
          std::vector<double>* bare_ns, int blocks, int pings) {
  uint64_t sequence = 0, bare_sequence = __atomic_load_n(line, __ATOMIC_ACQUIRE);
  nic::CqEntry entry;
  uint64_t word = 0;
  const auto put = [&] {
    word = sequence;
    if (side.quiet->post_one(nic::OpKind::write, &word, 8, dest, 0, kKey, 0, 1, 0, true).refusal != nic::Refusal::none)
      die("put refused");
  };
  const auto wait_put = [&] { poll_word([&] { return __atomic_load_n(mine, __ATOMIC_ACQUIRE) == sequence; }); };
  (void)entry;
  for (int b = 0; b < blocks; ++b) {
    for (int i = 0; i < pings; ++i) {
      ++sequence;
      if (first) {
        const double start = now_ns();
        put();
        wait_put();
        put_ns->push_back((now_ns() - start) / 2);
      } else {
        wait_put();
        put();
      }
    }
    for (int i = 0; i < pings; ++i) {
      if (first) {
        const double start = now_ns();
        __atomic_store_n(line, bare_sequence + 1, __ATOMIC_RELEASE);
        poll_word([&] { return __atomic_load_n(line, __ATOMIC_ACQUIRE) == bare_sequence + 2; });
        bare_ns->push_back((now_ns() - start) / 2);
      } else {
        poll_word([&] { return __atomic_load_n(line, __ATOMIC_ACQUIRE) == bare_sequence + 1; });
        __atomic_store_n(line, bare_sequence + 2, __ATOMIC_RELEASE);
      }
      bare_sequence += 2;
    }
  }
}

// One player: region, handshake over `fd`, connection, then the round trips.
void join_game(int fd, bool first, uint64_t* line, std::vector<double>* put_ns, std::vector<double>* bare_ns,
               int blocks, int pings) {
  Side side;
  std::byte* memory = side.host->nic().segments().allocate(4096);
  std::memset(memory, 0, 4096);
  side.reg(memory, 4096, kKey);
  tell(fd, side.ep->address());
  const uint64_t dest = side.av->insert(hear<wire::EpAddress>(fd));
  uint64_t zero = 0;
  side.one(nic::OpKind::write, &zero, 8, dest, 64, kKey);  // the players find each other
  side.wait_one();
  tell(fd, 1);
  (void)hear<int>(fd);
  play(side, dest, reinterpret_cast<uint64_t*>(memory), line, first, put_ns, bare_ns, blocks, pings);
  tell(fd, 2);
  (void)hear<int>(fd);  // the other player still needs our memory
}

PingResult ping(int pairs, int blocks, int pings) {
  struct Out {
    double put, put_p99, bare, bare_p99, longest;
  };
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<Out> outs;
  for (int p = 0; p < pairs; ++p) {
    // A child process that forks the other player and reports. So this process makes no NIC.
    peers.push_back(std::make_unique<Peer>([&](int fd) {
      auto* line = reinterpret_cast<uint64_t*>(shared_memory(4096));
      Peer other([&](int to_first) { join_game(to_first, false, line, nullptr, nullptr, blocks, pings); });
      std::vector<double> put_ns, bare_ns;
      join_game(other.fd(), true, line, &put_ns, &bare_ns, blocks, pings);
      const double longest = *std::max_element(put_ns.begin(), put_ns.end());
      const auto a = quantiles(put_ns), b = quantiles(bare_ns);
      tell(fd, Out{a.median, a.p99, b.median, b.p99, longest});
      ::pause();
    }));
  }
  for (auto& p : peers) outs.push_back(hear<Out>(p->fd()));
  PingResult r;
  for (const Out& o : outs) {  // the slowest pair
    if (o.put >= r.put.median) r.put = {o.put, o.put_p99}, r.bare = {o.bare, o.bare_p99};
    r.longest_us = std::max(r.longest_us, o.longest / 1000);
  }
  return r;
}

}  // namespace

void bench_ping() {
  const auto r = ping(1, kPingBlocks, kPingsABlock);
  add({"put 8 B, half round trip to a polling peer", "ns", r.put.median, r.put.p99, "bare line, same processes",
       r.bare.median, "<= 1.1 x floor", r.put.median <= 1.1 * r.bare.median});
}

void bench_oversubscribed() {
  cpu_set_t before, two;
  sched_getaffinity(0, sizeof(before), &before);
  CPU_ZERO(&two);
  for (int cpu = 0, n = 0; cpu < CPU_SETSIZE && n < 2; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &two);
      ++n;
    }
  }
  sched_setaffinity(0, sizeof(two), &two);
  const auto r = ping(2, 4, 2000);
  sched_setaffinity(0, sizeof(before), &before);
  add({"put 8 B, half round trip, 4 pollers on 2 cores", "ns", r.put.median, r.put.p99, "bare line, same processes",
       r.bare.median, "<= 1500 ns", r.put.median <= 1500});
  add({"  the longest of them", "ns", r.longest_us * 1000, r.longest_us * 1000, "", 0, "< 4 ms (99th percentile)",
       r.put.p99 < 4e6});
}

}  // namespace weft::bench
