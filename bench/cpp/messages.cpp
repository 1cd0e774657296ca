// bench/cpp/messages.cpp: messages between two processes that poll: round trips of tagged messages, beside a bare cache
// line and a bare copy, and the rate of small messages.
#include "sides.hpp"

namespace weft::bench {

namespace {

constexpr int kBlocks = 12, kPings = 2000, kLongPings = 100;
constexpr size_t kLong = size_t{1} << 20;

struct Player {
  Side side;
  uint64_t dest = 0;
  std::byte* memory;
  int fd;

  explicit Player(int to) : memory(side.host->nic().segments().allocate(2 * kLong)), fd(to) {
    std::memset(memory, 1, 2 * kLong);
    tell(fd, side.ep->address());
    dest = side.av->insert(hear<wire::EpAddress>(fd));
  }
  void send(size_t n) {
    const iovec v{memory, n};
    nic::SendArgs args;
    args.dest = dest;
    args.local = {&v, 1};
    args.tag = 7;
    args.tagged = true;
    args.inject_call = n <= 64;
    for (;;) {
      const auto r = side.ep->post_send(args).refusal;
      if (r == nic::Refusal::none) return;
      if (r != nic::Refusal::cq_full && r != nic::Refusal::tx_full && r != nic::Refusal::flow_stopped) die("refused");
      side.host->nic().poll_from_app();
    }
  }
  void receive(size_t n) {
    const iovec v{memory + kLong, n};
    nic::ReceiveArgs args;
    args.local = {&v, 1};
    args.tag = 7;
    args.tagged = true;
    if (side.ep->post_receive(args).refusal != nic::Refusal::none) die("receive refused");
  }
  // Waits for the completion of a receive; completions of sends are taken on the way.
  void wait(uint64_t what) {
    nic::CqEntry entry;
    host::PollPacer pacer;
    for (;;) {
      if (side.take(&entry, 1) == 1) {
        if ((entry.flags & what) != 0) return;
      } else {
        side.host->nic().poll_from_app();
        rest(pacer);
      }
    }
  }
};

struct Results {
  double tagged, tagged_p99, line, line_p99, inbox, inbox_p99, large, large_p99, copy, rate;
};

// Two inboxes without a NIC: as many places as a ring has slots, each with a word in a line of its own.
struct Inboxes {
  static constexpr size_t kPlaces = 4096, kStep = 256 / sizeof(uint64_t);
  uint64_t* words;
  explicit Inboxes(std::byte* memory) : words(reinterpret_cast<uint64_t*>(memory)) {}
  static constexpr size_t bytes() noexcept { return 2 * kPlaces * kStep * sizeof(uint64_t); }
  uint64_t* place(bool of_first, uint64_t number) const noexcept {
    return words + ((of_first ? kPlaces : 0) + number % kPlaces) * kStep;
  }
};

void play(int fd, bool first, uint64_t* line, const Inboxes& inboxes, Results* out) {
  Player p(fd);
  std::vector<double> tagged, bare, large, copies, between;
  uint64_t at = 0, number = 0;
  p.receive(8);
  tell(fd, 1);
  (void)hear<int>(fd);
  for (int b = 0; b < kBlocks; ++b) {
    for (int i = 0; i < kPings; ++i) {
      const double start = now_ns();
      // Each message finds a receive posted, which is replaced while the next message is under way.
      if (!first) p.wait(flag::kRecv);
      p.send(8);
      p.receive(8);
      if (first) p.wait(flag::kRecv);
      if (first) tagged.push_back((now_ns() - start) / 2);
    }
    for (int i = 0; i < kPings; ++i, at += 2) {
      const double start = now_ns();
      if (first) {
        __atomic_store_n(line, at + 1, __ATOMIC_RELEASE);
        poll_word([&] { return __atomic_load_n(line, __ATOMIC_ACQUIRE) == at + 2; });
        bare.push_back((now_ns() - start) / 2);
      } else {
        poll_word([&] { return __atomic_load_n(line, __ATOMIC_ACQUIRE) == at + 1; });
        __atomic_store_n(line, at + 2, __ATOMIC_RELEASE);
      }
    }
    for (int i = 0; i < kPings; ++i) {
      const double start = now_ns();
      uint64_t *const there = inboxes.place(!first, number), *const here = inboxes.place(first, number);
      ++number;
      if (first) __atomic_store_n(there, number, __ATOMIC_RELEASE);
      poll_word([&] { return __atomic_load_n(here, __ATOMIC_ACQUIRE) == number; });
      if (!first) __atomic_store_n(there, number, __ATOMIC_RELEASE);
      if (first) between.push_back((now_ns() - start) / 2);
    }
  }
  // The receives of 8 bytes that are still posted take these messages.
  p.send(8);
  p.wait(flag::kRecv);
  p.receive(kLong);
  tell(fd, 2);
  (void)hear<int>(fd);
  for (int i = 0; i < kLongPings; ++i) {
    const double start = now_ns();
    if (first) p.send(kLong);
    p.wait(flag::kRecv);
    p.receive(kLong);
    if (!first) p.send(kLong);
    if (first) large.push_back((now_ns() - start) / 2);
    if (first) {
      const double copy = now_ns();
      std::memcpy(p.memory + kLong, p.memory, kLong);
      copies.push_back(now_ns() - copy);
    }
  }
  tell(fd, 3);
  (void)hear<int>(fd);
  // The rate of small messages: as many as the receiver takes.
  constexpr int kMany = 400'000;
  const double start = now_ns();
  if (first) {
    p.send(kLong);
    for (int i = 0; i < kMany; ++i) p.send(8);
    (void)hear<int>(fd);
    const double rate = (now_ns() - start) / kMany;
    const auto t = quantiles(tagged), l = quantiles(bare), g = quantiles(large), c = quantiles(copies);
    const auto b = quantiles(between);
    *out = {t.median, t.p99, l.median, l.p99, b.median, b.p99, g.median, g.p99, c.median, rate};
  } else {
    p.wait(flag::kRecv);  // the receive of the long messages
    for (int i = 0; i < 64; ++i) p.receive(8);
    for (int i = 0; i < kMany; ++i) {
      p.wait(flag::kRecv);
      p.receive(8);
    }
    tell(fd, 4);
  }
  if (first) tell(fd, 5);
  if (!first) (void)hear<int>(fd);
}

}  // namespace

void bench_messages() {
  Peer game([](int fd) {
    auto* line = reinterpret_cast<uint64_t*>(shared_memory(4096));
    const Inboxes inboxes(shared_memory(Inboxes::bytes()));
    Results results{};
    Peer other([&](int to_first) { play(to_first, false, line, inboxes, nullptr); });
    play(other.fd(), true, line, inboxes, &results);
    tell(fd, results);
    ::pause();
  });
  const auto r = hear<Results>(game.fd());
  add({"tagged 8 B, half round trip to a polling peer", "ns", r.tagged, r.tagged_p99, "bare line, same processes",
       r.line, "<= floor + 60 ns", r.tagged <= r.line + 60});
  add({"tagged 8 B, the same beside two inboxes", "ns", r.tagged, r.tagged_p99, "a bare line in each direction",
       r.inbox, "<= two inboxes + 60 ns", r.tagged <= r.inbox + 60});
  add({"tagged 1 MiB, half round trip", "ns", r.large, r.large_p99, "memcpy", r.copy, "<= 1.2 x (memcpy + line)",
       r.large <= 1.2 * (r.copy + r.line)});
  add({"tagged 8 B, one after the other", "ns", r.rate, r.rate, "", 0, "", true});
}

}  // namespace weft::bench
