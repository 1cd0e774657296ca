// bench/cpp/tcp.cpp: round trips and bandwidth over tcp, beside bare sockets, over loopback.
#include "sides.hpp"

namespace weft::bench {

namespace {

struct Street {
  wire::HostAddress host;
  wire::EpAddress address;
  [[nodiscard]] wire::EpAddress known_to(const Side& side) const {
    wire::EpAddress a = address;
    a.nic = side.host->routes().number({host, a.nic});
    return a;
  }
};

// A connected pair of bare sockets, made before the fork: one end for each process.
struct BareTcp {
  BareTcp() {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_storage name;
    socklen_t length = link::to_sockaddr(link::parse_host("127.0.0.1", 0), &name);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&name), length) != 0 || ::listen(listener, 1) != 0) die("listen");
    length = sizeof(name);
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&name), &length);
    ends[0] = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(ends[0], reinterpret_cast<sockaddr*>(&name), length) != 0) die("connect");
    ends[1] = ::accept(listener, nullptr, nullptr);
    ::close(listener);
    const int one = 1;
    constexpr char kControl[] = "reno";  // the link's setting within a host
    for (const int fd : ends) {
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
      (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kControl, sizeof(kControl) - 1);
    }
  }
  int ends[2];
};

void receive_all(int fd, std::byte* to, size_t n) {
  host::PollPacer pacer;
  for (size_t have = 0; have < n;) {
    const ssize_t got = ::recv(fd, to + have, n - have, MSG_DONTWAIT);
    if (got > 0) have += static_cast<size_t>(got);
    if (got == 0) die("the other process is gone");
    if (got < 0) rest(pacer);
  }
}
void send_all(int fd, const std::byte* from, size_t n) {
  for (size_t sent = 0; sent < n;) {
    const ssize_t got = ::send(fd, from + sent, n - sent, MSG_NOSIGNAL);
    if (got <= 0) die("the other process is gone");
    sent += static_cast<size_t>(got);
  }
}

// Binds this process, including its engine, to one core. Otherwise the scheduler's placement of two engines and two
// pollers on few cores decides the result.
void stay_on_core(int which) {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof(all), &all);
  CPU_ZERO(&one);
  for (int cpu = 0, n = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all) && n++ == which) CPU_SET(cpu, &one);
  }
  if (CPU_COUNT(&one) != 0) sched_setaffinity(0, sizeof(one), &one);
}

constexpr int kTcpBlocks = 200, kTcpPings = 200;
constexpr size_t kTcpLarge = size_t{1} << 20;

struct TcpTimes {
  std::vector<double> put, bare, put_rate, get_rate, bare_rate, sealed_rate;
};

// One side of the round trips; the first side measures. `encrypted`: for the link, and for the bare socket that seals.
void play_tcp(int fd, int bare, bool first, bool encrypted, TcpTimes* times) {
  stay_on_core(first ? 0 : 1);
  Side side(true, 1 << 12, true, encrypted);
  std::byte* memory = side.host->nic().segments().allocate(kBytes);
  std::byte* local = side.host->nic().segments().allocate(kBytes);
  std::memset(memory, 0, kBytes);
  std::memset(local, 1, kBytes);
  side.reg(memory, kBytes, kKey);
  tell(fd, Street{*side.host->tcp().listening(), side.ep->address()});
  const uint64_t dest = side.av->insert(hear<Street>(fd).known_to(side));
  uint64_t zero = 0;
  side.one(nic::OpKind::write, &zero, 8, dest, 64, kKey);
  side.wait_one();
  tell(fd, 1);
  (void)hear<int>(fd);
  uint64_t sequence = 0;
  auto* mine = reinterpret_cast<uint64_t*>(memory);
  const auto put = [&] {
    if (side.quiet->post_one(nic::OpKind::write, &sequence, 8, dest, 0, kKey, 0, 1, 0, true).refusal !=
        nic::Refusal::none) {
      die("put refused");
    }
  };
  const auto await = [&] {
    host::PollPacer pacer;
    while (__atomic_load_n(mine, __ATOMIC_ACQUIRE) != sequence) {
      if (side.host->nic().poll_from_app() == 0) rest(pacer);
    }
  };
  for (int b = 0; b < kTcpBlocks; ++b) {
    double start = now_ns();
    for (int i = 0; i < kTcpPings; ++i) {
      ++sequence;
      if (first) put();
      await();
      if (!first) put();
    }
    if (first) times->put.push_back((now_ns() - start) / (2 * kTcpPings));
    std::byte word[8] = {};
    start = now_ns();
    for (int i = 0; i < kTcpPings; ++i) {
      if (first) send_all(bare, word, 8);
      receive_all(bare, word, 8);
      if (!first) send_all(bare, word, 8);
    }
    if (first) times->bare.push_back((now_ns() - start) / (2 * kTcpPings));
  }
  // Bandwidth: one side sends, the other only serves (Weft: its engine; the bare socket: a loop of recv).
  constexpr int kMoves = 64, kRounds = 9;
  for (int b = 0; b < kRounds; ++b) {
    for (const nic::OpKind kind : {nic::OpKind::write, nic::OpKind::read}) {
      if (first) {
        const double start = now_ns();
        int posted = 0, done = 0;
        nic::CqEntry entries[16];
        host::PollPacer pacer;
        while (done < kMoves) {
          while (posted < kMoves && posted - done < 8) {
            side.one(kind, local, kTcpLarge, dest, 0, kKey);
            ++posted;
          }
          const size_t n = side.take(entries, 16);
          done += static_cast<int>(n);
          if (n == 0 && side.host->nic().poll_from_app() == 0) rest(pacer);
        }
        (kind == nic::OpKind::write ? times->put_rate : times->get_rate)
            .push_back(kMoves * double{kTcpLarge} / (now_ns() - start));
        tell(fd, 3);
      } else {
        (void)hear<int>(fd);  // its engine serves meanwhile
      }
    }
    double start = now_ns();
    for (int i = 0; i < kMoves; ++i) first ? send_all(bare, local, kTcpLarge) : receive_all(bare, memory, kTcpLarge);
    std::byte over{};
    first ? receive_all(bare, &over, 1) : send_all(bare, &over, 1);
    if (first) times->bare_rate.push_back(kMoves * double{kTcpLarge} / (now_ns() - start));
    // Like TLS: each piece is sealed into a buffer, sent, received into a buffer, opened and copied to its place.
    constexpr size_t kPiece = wire::kTcpPayloadMax;
    const auto key = test::key_of("of the bare socket");
    wire::Seal seal(test::sodium(), std::span(key).first<wire::kSealKeyBytes>(), encrypted);
    std::vector<std::byte> piece(kPiece + wire::kTagBytes);
    start = now_ns();
    for (size_t at = 0; at < kMoves * kTcpLarge; at += kPiece) {
      if (first) {
        std::memcpy(piece.data(), local + at % kTcpLarge, kPiece);
        seal.close(piece.data(), 0, kPiece);
        send_all(bare, piece.data(), piece.size());
      } else {
        receive_all(bare, piece.data(), piece.size());
        if (!seal.open(piece.data(), 0, kPiece)) die("a piece was changed");
        std::memcpy(memory + at % kTcpLarge, piece.data(), kPiece);
      }
    }
    first ? receive_all(bare, &over, 1) : send_all(bare, &over, 1);
    if (first) times->sealed_rate.push_back(kMoves * double{kTcpLarge} / (now_ns() - start));
  }
  tell(fd, 2);
  (void)hear<int>(fd);
}

void bench_tcp_of(bool encrypted) {
  struct Out {
    double put, put_p99, bare, ratio, put_rate, get_rate, bare_rate, sealed_rate;
  };
  Peer game([encrypted](int fd) {
    const BareTcp bare;
    Peer other([&](int to_first) { play_tcp(to_first, bare.ends[1], false, encrypted, nullptr); });
    TcpTimes t;
    play_tcp(other.fd(), bare.ends[0], true, encrypted, &t);
    std::vector<double> ratio;
    for (size_t i = 0; i < t.put.size(); ++i) ratio.push_back(t.put[i] / t.bare[i]);
    const auto p = quantiles(t.put);
    tell(fd, Out{p.median, p.p99, quantiles(t.bare).median, quantiles(ratio).median, quantiles(t.put_rate).median,
                 quantiles(t.get_rate).median, quantiles(t.bare_rate).median, quantiles(t.sealed_rate).median});
    ::pause();
  });
  const auto o = hear<Out>(game.fd());
  const std::string link = encrypted ? "tcp, encrypted: " : "tcp: ";
  const char* sealing = encrypted ? "bare socket, encrypting" : "bare socket, authenticating";
  add({link + "put 8 B, half round trip to a polling peer", "ns", o.put, o.put_p99, "bare socket, both polling", o.bare,
       "<= 1.15 x", o.ratio <= 1.15});
  add({link + "put 1 MiB, 8 at a time", "GB/s", o.put_rate, 0, "bare socket", o.bare_rate, {}, true});
  add({link + "get 1 MiB, 8 at a time", "GB/s", o.get_rate, 0, "bare socket", o.bare_rate, {}, true});
  // A seal costs a processor at each end a third of what the socket costs it: on two processors no link that seals
  // reaches the bare socket.
  add({link + "put 1 MiB beside a sealed socket", "GB/s", o.put_rate, 0, sealing, o.sealed_rate, ">= 0.9 of the limit",
       o.put_rate >= 0.9 * o.sealed_rate});
  add({link + "get 1 MiB beside a sealed socket", "GB/s", o.get_rate, 0, sealing, o.sealed_rate, ">= 0.9 of the limit",
       o.get_rate >= 0.9 * o.sealed_rate});
}

}  // namespace

void bench_tcp() {
  bench_tcp_of(false);
  bench_tcp_of(true);
}

}  // namespace weft::bench
