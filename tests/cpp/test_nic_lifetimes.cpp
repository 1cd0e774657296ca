// tests/cpp/test_nic_lifetimes.cpp: domains, endpoints, regions and connections that one thread or process makes and
// closes between two steps of another. Frames find domains and endpoints without the NIC's
// mutex, so an object that a handler has found must live until the handler is done.
#include <atomic>
#include <mutex>
#include <thread>

#include "mem/gate.hpp"
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

// Calls once, in the thread that adds an entry.
class Hook final : public nic::Notifier {
 public:
  explicit Hook(std::function<void()> call) : call_(std::move(call)) {}
  void notify() noexcept override {
    if (on.exchange(false)) call_();
  }
  std::atomic<bool> on{false};

 private:
  std::function<void()> call_;
};

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

// A thread of a side that is within an access, until end().
class Within {
 public:
  explicit Within(const Side& side)
      : thread_([this, &side] {
          const nic::DomainLock access(side.domain.get());
          step_ = 1;
          while (step_ != 2) std::this_thread::yield();
        }) {
    while (step_ != 1) std::this_thread::yield();
  }
  ~Within() { end(); }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;
  void end() {
    step_ = 2;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<int> step_{0};
  std::thread thread_;
};

BOOST_AUTO_TEST_CASE(test_used_region_stays_used_when_a_stopped_peer_keeps_it_from_closing) {
  PairConfig config = pair_of(Path::direct);
  config.b.host.limits.close_wait_ns = 20'000'000;
  Pair pair(config);
  const iovec memory{pair.memory, 8};
  const auto region = pair.b->domain->register_region({&memory, 1}, mem::kRemoteRead | mem::kRemoteWrite, 7, false,
                                                      true, mem::kMrSingleUse);
  const uint64_t word = 1;
  BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, 7)).error == 0);
  BOOST_TEST(region->used_up());
  Within stopped(*pair.a);
  std::string why;
  BOOST_TEST(!region->close_at_once());
  BOOST_TEST(region->used_up());
  BOOST_TEST(!region->close(&why));
  BOOST_TEST(region->used_up());
  stopped.end();
  BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, 7)).status == Status::stale_key);
  BOOST_TEST(region->close(&why));
}

// `who` gives its connections up.
void hang_up(const Side& who) {
  const uint64_t downs = who.nic().downs();
  for (link::Link* link : who.nic().links()) {
    for (const auto& peer : link->peers()) {
      if (!peer->same_process) link->hang_up(*peer, Status::protocol);
    }
  }
  BOOST_TEST_REQUIRE(poll_until([&] { return who.nic().downs() != downs; }, [&] { who.progress(); }));
}

size_t users_of(const Side& side) {
  size_t count = 0;
  for (link::Link* link : side.nic().links()) {
    for (const auto& peer : link->users()) count += peer->same_process ? 0 : 1;
  }
  return count;
}

// The owner gives the connection up while a thread of the peer is within an access: the thread goes on, because it has
// done all its checks.
BOOST_AUTO_TEST_CASE(test_close_waits_for_a_peer_whose_connection_was_given_up) {
  PairConfig config = pair_of(Path::direct, true);
  config.b.host.limits.close_wait_ns = 20'000'000;
  Pair pair(config);
  const uint64_t word = 1;
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);
  Within access(*pair.a);
  hang_up(*pair.b);
  for (int i = 0; i < 100; ++i) pair.b->progress();
  std::string why;
  BOOST_TEST(!pair.region->close_at_once());
  BOOST_TEST(!pair.region->close(&why));
  BOOST_TEST(why.find("has been copying") != std::string::npos, why);
  access.end();
  BOOST_TEST(pair.region->close(&why), why);
  pair.until([&] { return users_of(*pair.a) + users_of(*pair.b) == 0; }, "both to part");
}

// A pointer to the memory of an owner that gives the connection up.
BOOST_AUTO_TEST_CASE(test_place_rests_while_a_peer_without_a_connection_holds_it) {
  Pair pair(pair_of(Path::direct, true));
  const uint64_t word = 1;
  BOOST_TEST(pair.write(&word, 8, 0).error == 0);
  auto window = pair.a->ep->window(pair.dest, pair.key(), 0, 8, mem::kRemoteRead);
  BOOST_REQUIRE(window.pointer != nullptr);
  hang_up(*pair.b);
  for (int i = 0; i < 100; ++i) pair.poll();
  std::string why;
  BOOST_REQUIRE(pair.region->close(&why));
  mem::SegmentSet& segments = pair.b->nic().segments();
  segments.free(pair.memory);
  segments.look_at_holds();
  BOOST_TEST(segments.resting());
  window.keep.reset();
  segments.look_at_holds();
  BOOST_TEST(!segments.resting());
  pair.until([&] { return users_of(*pair.a) + users_of(*pair.b) == 0; }, "both to part");
}

// The engine has served a write, and comes to the counters when another region has got the slot.
BOOST_AUTO_TEST_CASE(test_counter_counts_no_access_to_the_region_that_had_the_slot_before) {
  Pair pair(pair_of(Path::strict, true));
  const uint64_t words[] = {1, 2};
  BOOST_TEST(pair.write(&words[0], 8, 0).error == 0);
  const iovec memory{pair.memory, 8};
  auto& target = *reinterpret_cast<std::atomic<uint64_t>*>(pair.memory);
  const auto make = [&](uint64_t key, const std::shared_ptr<nic::Counter>& counter) {
    auto region = pair.b->domain->register_region({&memory, 1}, mem::kRemoteWrite, key, false, true);
    pair.b->domain->bind_region_counter(region, counter, flag::kRemoteWrite);
    return region;
  };
  uint64_t counted = 0;
  for (uint64_t round = 100; round < 300; ++round) {
    const auto first = std::make_shared<nic::Counter>(), second = std::make_shared<nic::Counter>();
    auto region = make(round, first);
    target = 0;
    BOOST_REQUIRE(post(*pair.a->ep, write_of(pair.dest, &words[1], 8, 0, round)).refusal == Refusal::none);
    std::jthread engine;
    {
      const Guard objects(pair.b->nic().objects_lock());
      engine = std::jthread([&](const std::stop_token& over) {
        while (!over.stop_requested()) pair.b->progress();
      });
      while (target != words[1]) std::this_thread::yield();
      for (int spins = 0; spins < 1000; ++spins) cpu_relax();  // up to the counters' lock
    }
    std::string why;
    BOOST_REQUIRE(region->close(&why));
    region = make(round + 1000, second);
    while (!try_completion(*pair.a)) pair.a->progress();
    engine = {};
    counted += second->value();
    BOOST_REQUIRE(region->close(&why));
  }
  BOOST_TEST(counted == 0U);
}

// The handler of a message has found the endpoint, which then closes, and then finds the queue full. The queue lives
// on.
BOOST_AUTO_TEST_CASE(test_queue_tells_a_closed_endpoint_of_no_room) {
  PairConfig config = message_pair(Path::direct, true);
  Pair pair(config);
  Side& b = *pair.b;
  std::atomic<int> step{0};
  const auto await = [&](int at) {
    while (step < at) std::this_thread::yield();
  };
  const auto receiving = std::make_shared<Hook>([&] {  // under the lock of the receive context
    step = 1;
    await(3);
  });
  const auto closing = std::make_shared<Hook>([&] {  // under the domain's lock
    step = 3;
    await(4);
  });
  const auto received = std::make_shared<nic::CompletionQueue>(4), sent = std::make_shared<nic::CompletionQueue>(64);
  received->event.set_notifier(receiving);
  sent->event.set_notifier(closing);
  auto ep = b.domain->make_endpoint(config.b.ep);
  ep->bind_cq(received, flag::kRecv);
  ep->bind_cq(sent, flag::kSend);
  ep->bind_av(b.av);
  ep->enable(0, std::nullopt);
  const uint64_t to_b = pair.a->av->insert(ep->address()), to_a = b.insert(*pair.a);
  const std::vector<std::byte> bytes = text_of(20'000);
  std::vector<std::byte> room(400);
  const auto come = [&](uint32_t messages) {
    BOOST_REQUIRE(send(*pair.a->ep, to_b, bytes.data(), 300).refusal == Refusal::none);
    pair.until([&] { return ep->port()->context().statistics().matched == messages || messages == 4; }, "a message");
  };
  for (uint32_t i = 1; i <= 3; ++i) {
    BOOST_REQUIRE(receive(*ep, room.data(), room.size()).refusal == Refusal::none);
    come(i);
  }
  BOOST_REQUIRE(send(*ep, to_a, bytes.data(), 300).refusal == Refusal::none);
  come(4);  // without a receive
  pair.until([&] { return ep->outstanding() == 0 && pair.a->ep->outstanding() == 0; }, "the answers");
  BOOST_REQUIRE(send(*ep, to_a, bytes.data(), bytes.size()).refusal == Refusal::none);  // ends when the endpoint closes
  while (b.nic().progress() != 0) {
  }
  BOOST_REQUIRE(send(*pair.a->ep, to_b, bytes.data(), 300).refusal == Refusal::none);
  receiving->on = closing->on = true;
  std::jthread receiver([&] { (void)receive(*ep, room.data(), room.size()); });
  await(1);
  std::jthread engine([&] {
    step = 2;
    while (b.nic().progress() == 0) std::this_thread::yield();
    step = 4;
  });
  await(2);
  usleep(10'000);  // until the engine waits for the receive context; an engine that comes later finds no endpoint
  ep->close();
  engine.join();
  receiver.join();
  BOOST_TEST(step == 4);
  const std::weak_ptr<nic::Endpoint> gone = ep;
  ep.reset();
  BOOST_REQUIRE(gone.expired());
  // The endpoint's memory has other content now, so a call on the endpoint ends the process.
  std::vector<std::vector<std::byte>> others(64);
  for (auto& other : others) other.assign(sizeof(nic::Endpoint) + 16, std::byte{0xa5});
  CqEntry entries[8];
  bool error_waits = false;
  const nic::DomainLock guard(b.domain.get());
  BOOST_TEST(received->read(entries, 8, &error_waits) == 4U);
}

// A process that calls a second endpoint of a NIC gives the new connection up, because it has one.
BOOST_AUTO_TEST_CASE(test_turns_of_a_process_outlive_a_further_connection) {
  Pair pair(pair_of(Path::direct, true));
  const auto second = pair.b->extra_endpoint();
  const uint64_t one = 1;
  const auto add = [&](uint64_t dest) {
    const iovec operand{const_cast<uint64_t*>(&one), 8};
    const wire::RmaRange range{0, 8, pair.key()};
    nic::AtomicArgs args;
    args.dest = dest;
    args.family = AtomicFamily::base;
    args.op = AtomicOp::sum;
    args.datatype = Datatype::uint64;
    args.operand = {&operand, 1};
    args.remote = {&range, 1};
    BOOST_REQUIRE(pair.a->ep->post_atomic(args).refusal == Refusal::none);
    BOOST_TEST(pair.wait().error == 0);
  };
  add(pair.dest);
  mem::Gate& gate = *pair.b->nic().segments().gate(0);
  const mem::Updater updater = pair.a->nic().updater(pair.a->domain->index());
  BOOST_TEST(gate.slots[0].updater.load() == updater);
  const uint64_t downs = pair.b->nic().downs();
  add(pair.a->av->insert(second->address()));
  pair.until([&] { return pair.b->nic().downs() != downs; }, "the end of the further connection");
  BOOST_TEST(gate.slots[0].updater.load() == updater);
  // Its connection given up, the process ends the update that is under way; then its turns are free.
  Within update(*pair.a);
  hang_up(*pair.b);
  for (int i = 0; i < 100; ++i) pair.b->progress();
  BOOST_TEST(gate.slots[0].updater.load() == updater);
  update.end();
  pair.until([&] { return gate.slots[0].updater.load() == 0; }, "the end of the turns");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
