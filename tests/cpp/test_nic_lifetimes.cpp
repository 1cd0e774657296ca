// tests/cpp/test_nic_lifetimes.cpp: domains and endpoints that one thread makes and closes while others handle frames.
// Frames find both without the NIC's mutex, so an object that a handler has found must live until the handler is done.
#include <atomic>
#include <mutex>
#include <thread>

#include "messaging.hpp"

namespace {

using namespace weft;
using namespace weft::test;

constexpr size_t kLong = 20'000;  // pulled by its receiver
constexpr uint64_t kKey = 42;

// The statuses that a peer gets for an endpoint that is closed or gone; no other status.
bool is_of_closing(Status s) {
  return s == Status::ok || s == Status::no_endpoint || s == Status::canceled || s == Status::stale_key ||
         s == Status::no_key || s == Status::not_enabled;
}

// Receives messages of one tag, one at a time, and reads and counts completions.
struct Reader {
  Reader(const Side& s, uint64_t t) : side(s), tag(t), buffer(kLong) {}
  void step() {
    if (!receiving) receiving = receive(*side.ep, buffer.data(), buffer.size(), {.tag = tag}).refusal == Refusal::none;
    side.progress();
    while (const auto c = try_completion(side)) {
      if ((c->entry.flags & flag::kRecv) != 0) receiving = false;
      (c->error == 0 ? ok : is_of_closing(c->status) ? failed : strange)++;
      if (c->error != 0 && !is_of_closing(c->status)) text = c->text;
    }
  }
  const Side& side;
  uint64_t tag;
  std::vector<std::byte> buffer;
  bool receiving = false;
  uint64_t ok = 0, failed = 0, strange = 0;
  std::string text;
};

// The address of the endpoint that is open at present, from one thread to another.
class Newest {
 public:
  void set(const wire::EpAddress& address) {
    const std::lock_guard guard(mutex_);
    address_ = address;
  }
  std::optional<wire::EpAddress> take() {
    const std::lock_guard guard(mutex_);
    return std::exchange(address_, std::nullopt);
  }

 private:
  std::mutex mutex_;
  std::optional<wire::EpAddress> address_;
};

// An endpoint in a domain of its own, with a counted region; it asks `peer` for something and closes before the answer.
void live_shortly(const SideConfig& config, const Side& peer, Newest* newest, int round) {
  Side side(config);
  std::byte* memory = side.alloc(4096);
  const auto region = side.reg(memory, 4096, kKey + 1);
  side.domain->bind_region_counter(region, std::make_shared<nic::Counter>(), flag::kRemoteWrite);
  newest->set(side.address());
  const uint64_t dest = side.insert(peer);
  static const std::vector<std::byte> bytes(kLong);
  (void)post(*side.ep, read_of(dest, memory, 4096, 0, kKey));
  (void)send(*side.ep, dest, bytes.data(), bytes.size(), {.tag = 1});
  (void)send(*side.ep, dest, bytes.data(), 8, {.tag = 1});
  for (int i = 0; i < round % 32; ++i) {
    side.progress();
    sched_yield();
  }
}

void run(PairConfig config) {
  config.a.counters = config.b.counters = true;
  config.a.cq_capacity = config.b.cq_capacity = 4096;
  Pair pair(config);
  const auto at_a = pair.a->reg(pair.a->alloc(4096), 4096, kKey);
  SideConfig shortly = config.b;
  shortly.shared = pair.b->host;
  shortly.listen = false;
  shortly.cq_capacity = 4;  // so that data finds no room
  shortly.host.engine_thread = true;

  Newest newest;
  std::atomic<bool> done{false};
  std::thread maker([&] {
    for (int round = 0; round < 150; ++round) live_shortly(shortly, *pair.a, &newest, round);
    done = true;
  });
  Reader of_a(*pair.a, 1), of_b(*pair.b, 2);
  const std::vector<std::byte> out(64);
  std::vector<uint64_t> dests{pair.dest};
  uint64_t posted = 0;
  const bool ended = poll_until([&] { return done.load(); },
                                [&] {
                                  if (const auto address = newest.take()) dests.push_back(pair.a->av->insert(*address));
                                  for (const uint64_t dest : {pair.dest, dests.back()}) {
                                    const uint64_t key = dest == pair.dest ? kKey : kKey + 1;
                                    Access with_data = write_of(dest, out.data(), 8, 0, key);
                                    with_data.flags = flag::kRemoteCqData;
                                    posted += post(*pair.a->ep, with_data).refusal == Refusal::none;
                                    posted +=
                                        send(*pair.a->ep, dest, out.data(), 8, {.tag = 2}).refusal == Refusal::none;
                                  }
                                  of_a.step();
                                  of_b.step();
                                });
  maker.join();
  BOOST_TEST(ended);
  pair.until(
      [&] {
        of_a.step();
        of_b.step();
        return pair.a->ep->outstanding() == 0;
      },
      "the answers");
  BOOST_TEST(of_a.strange == 0U, of_a.text);
  BOOST_TEST(of_b.strange == 0U, of_b.text);
  BOOST_TEST(of_a.ok != 0U);
  BOOST_TEST_MESSAGE(name_of(pair.path()) << ": " << posted << " posted, " << of_a.ok << " ok, " << of_a.failed
                                          << " to closed endpoints, " << dests.size() - 1 << " endpoints seen");
}

BOOST_AUTO_TEST_SUITE(nic_lifetimes)

BOOST_AUTO_TEST_CASE(test_endpoints_and_domains_close_while_frames_for_them_arrive) {
  for (const Path path : {Path::strict, Path::tcp}) {
    BOOST_TEST_CONTEXT("path " << path) {
      run(message_pair(path));
    }
  }
}

// Making a domain publishes it to threads that make progress, which must never find it half made.
BOOST_AUTO_TEST_CASE(test_domains_are_made_while_other_threads_make_progress) {
  PairConfig config = pair_of(Path::strict);
  config.a.cq_capacity = 64;
  Pair pair(config);
  std::atomic<bool> done{false};
  std::thread maker([&] {
    for (int round = 0; round < 2000; ++round) nic::Domain domain(&pair.a->nic(), {});
    done = true;
  });
  const auto data = of_value(std::byte{1}, 64);
  uint64_t bad = 0;
  const bool ended = poll_until([&] { return done.load(); },
                                [&] {
                                  (void)post(*pair.a->ep, write_of(pair.dest, data.data(), 64, 0, pair.key()));
                                  while (const auto c = try_completion(*pair.a)) bad += c->error != 0;
                                  pair.a->progress();
                                });
  maker.join();
  BOOST_TEST(ended);
  BOOST_TEST(bad == 0U);
  pair.until([&] { return !try_completion(*pair.a) && pair.a->ep->outstanding() == 0; }, "the answers");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
