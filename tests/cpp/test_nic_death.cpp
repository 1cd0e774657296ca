// tests/cpp/test_nic_death.cpp: kill -9 of an initiator or a target at a random instant. For every posted operation the
// survivor gets a success or an error and never waits without end; traffic between two other processes is not affected.
// WEFT_KILL_ROUNDS: the number of rounds (default 40); WEFT_SEED repeats a run.
#include "fabric.hpp"

#if !defined(WEFT_TEST_NO_FORK)

namespace {

using namespace weft;
using namespace weft::test;

constexpr size_t kBytes = 1 << 18;

SideConfig config_of(Path path) {
  SideConfig config;
  config.host.shm.strict = path == Path::strict;
  config.host.shm.cma = path != Path::ring;
  config.cq_capacity = 256;
  config.ep.tx_size = 128;
  return config;
}

std::byte* memory_of(const Side& side, Path path) {
  if (path == Path::direct || path == Path::strict) return side.alloc(kBytes);
  void* p = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  BOOST_REQUIRE(p != MAP_FAILED);
  return static_cast<std::byte*>(p);
}

// A target: sends its address, then serves until it is killed.
void be_target(int fd, Path path, uint64_t seed) {
  SideConfig config = config_of(path);
  config.counters = seed % 2 == 0;  // then initiators send notices
  Side side(config);
  side.reg(memory_of(side, path), kBytes, 1);
  tell(fd, side.ep->address());
  for (;;) {
    side.progress();
    (void)try_completion(side);
    if (seed % 3 == 0)
      usleep(100);  // sometimes only the engine serves
    else
      sched_yield();
  }
}

// Posts a random mixture and takes completions.
struct Traffic {
  Traffic(Side& s, uint64_t to, uint64_t seed) : side(s), dest(to), random(seed), data(kBytes), back(kBytes) {}
  void post_some() {
    const size_t sizes[] = {8, 64, 300, 5000, 20'000, 100'000};
    const size_t n = sizes[random() % 6];
    const uint64_t at = random() % (kBytes - n) / 16 * 16;
    switch (random() % 6) {
      case 0:
        posted += post(*side.ep, read_of(dest, back.data(), n, at, 1)).refusal == Refusal::none;
        break;
      case 1: {
        Access w = write_of(dest, data.data(), n, at, 1);
        w.flags = flag::kRemoteCqData;
        posted += post(*side.ep, w).refusal == Refusal::none;
        break;
      }
      case 2: {
        static int64_t one = 1, old;
        const iovec operand{&one, 8}, result{&old, 8};
        const wire::RmaRange range{at, 8, 1};
        nic::AtomicArgs args;
        args.dest = dest;
        args.family = AtomicFamily::fetch;
        args.op = AtomicOp::sum;
        args.datatype = Datatype::int64;
        args.operand = {&operand, 1};
        args.result = {&result, 1};
        args.remote = {&range, 1};
        posted += side.ep->post_atomic(args).refusal == Refusal::none;
        break;
      }
      case 3: {
        Access w = write_of(dest, data.data(), n, at, 1);
        w.local = {{data.data(), n / 2}, {data.data() + n / 2, n - n / 2}};
        w.remote = {{at, n / 4, 1}, {at, n - n / 4, 1}};
        posted += post(*side.ep, w).refusal == Refusal::none;
        break;
      }
      case 4: {
        if (in_batch != 0) break;  // the descriptors are in use
        descs.assign(20, {0, 100, dest, at / 2, 1, 0, 0});
        if (side.ep->post_batch(OpKind::write, data.data(), data.size(), descs, 0, 0xba7c4).refusal != Refusal::none)
          break;
        ++posted;
        ++in_batch;
        break;
      }
      default:
        posted += post(*side.ep, write_of(dest, data.data(), n, at, 1)).refusal == Refusal::none;
    }
  }
  void take() {
    while (const auto c = try_completion(side)) {
      if ((c->entry.flags & flag::kRemoteCqData) != 0 && c->error == 0) continue;
      ++done;
      if (c->entry.context == 0xba7c4) --in_batch;
      if (c->error == 0) continue;
      ++failed;
      // process_vm_* may find that the pages of a dying process are gone before the NIC notices the hang-up.
      if (c->status != Status::peer_gone && c->status != Status::no_endpoint && c->status != Status::fault) {
        ++strange;
        text = c->text;
      }
    }
  }
  Side& side;
  uint64_t dest;
  std::mt19937_64 random;
  std::vector<std::byte> data, back;
  std::vector<nic::BatchDesc> descs;
  uint64_t posted = 0, done = 0, failed = 0, strange = 0, in_batch = 0;
  std::string text;
};

// An initiator: writes to `address` until it is killed.
void be_initiator(int fd, Path path, uint64_t seed) {
  Side side(config_of(path));
  tell(fd, 0);
  const auto address = hear<wire::EpAddress>(fd);
  if (!address) return;
  Traffic traffic(side, side.av->insert(*address), seed);
  for (;;) {
    traffic.post_some();
    side.progress();
    traffic.take();
    if (seed % 4 == 0) sched_yield();
  }
}

void wait_a_little(std::mt19937_64& random, const std::function<void()>& work) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 6000);
  while (std::chrono::steady_clock::now() < end) work();
}

BOOST_AUTO_TEST_SUITE(nic_death)

BOOST_AUTO_TEST_CASE(test_killed_target_ends_every_operation_and_harms_no_third) {
  const uint64_t seed = test_seed();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937_64 random(seed);
  const int rounds = kill_rounds(40) / 2;
  for (int round = 0; round < rounds; ++round) {
    const Path path = std::array{Path::direct, Path::cma, Path::ring, Path::strict}[static_cast<size_t>(round) % 4];
    BOOST_TEST_CONTEXT("seed " << seed << " round " << round << " path " << path) {
      const uint64_t a = random(), b = random();
      Child victim([&](int fd) { be_target(fd, path, a); });
      Child third([&](int fd) { be_target(fd, path, b); });
      const auto victim_address = hear<wire::EpAddress>(victim.fd()), third_address = hear<wire::EpAddress>(third.fd());
      BOOST_REQUIRE((victim_address && third_address));
      Side side(config_of(path));
      Traffic dying(side, side.av->insert(*victim_address), random());
      SideConfig other = config_of(path);
      other.shared = side.host;
      Side second(other);  // the traffic of the third process has its own queue
      Traffic living(second, second.av->insert(*third_address), random());
      const auto work = [&] {
        dying.post_some();
        living.post_some();
        side.progress();
        dying.take();
        living.take();
        sched_yield();
      };
      wait_a_little(random, work);
      victim.kill(SIGKILL);
      side.check();
      wait_a_little(random, work);
      BOOST_TEST_REQUIRE(poll_until(
                             [&] {
                               dying.take();
                               living.take();
                               return dying.done == dying.posted && living.done == living.posted;
                             },
                             [&] { side.progress(); }),
                         "done " << dying.done << " of " << dying.posted << ", third " << living.done << " of "
                                 << living.posted << "; " << side.state());
      BOOST_TEST(dying.strange == 0U, dying.text);
      BOOST_TEST(living.failed == 0U, living.text);
      victim.wait();
      BOOST_TEST(poll_until([&] { return side.nic().statistics().peers == 1; }, [&] { side.progress(); }));
      side.check();
      // The third process's traffic continues.
      for (int i = 0; i < 20; ++i) living.post_some();
      BOOST_TEST(poll_until(
          [&] {
            living.take();
            return living.done == living.posted;
          },
          [&] { side.progress(); }));
      BOOST_TEST(living.failed == 0U, living.text);
      BOOST_TEST(side.nic().statistics().waiting_ops == 0U);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_killed_initiator_leaves_its_target_and_others_whole) {
  const uint64_t seed = test_seed();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937_64 random(seed);
  const int rounds = kill_rounds(40) / 2;
  for (int round = 0; round < rounds; ++round) {
    const Path path = std::array{Path::direct, Path::cma, Path::ring, Path::strict}[static_cast<size_t>(round) % 4];
    BOOST_TEST_CONTEXT("seed " << seed << " round " << round << " path " << path) {
      const uint64_t a = random(), b = random();
      Child victim([&](int fd) { be_initiator(fd, path, a); });
      Child third([&](int fd) { be_initiator(fd, path, b); });
      BOOST_REQUIRE(hear<int>(victim.fd()).has_value());
      BOOST_REQUIRE(hear<int>(third.fd()).has_value());
      SideConfig config = config_of(path);
      config.counters = true;
      Side side(config);
      auto region = side.reg(memory_of(side, path), kBytes, 1);
      tell(victim.fd(), side.ep->address());
      tell(third.fd(), side.ep->address());
      const auto work = [&] {
        side.progress();
        (void)try_completion(side);
        sched_yield();
      };
      BOOST_TEST(poll_until([&] { return side.remote_write_cntr->value() > 10; }, work));
      wait_a_little(random, work);
      victim.kill(SIGKILL);
      wait_a_little(random, work);
      victim.wait();
      // The writes of the other initiator still arrive.
      const uint64_t before = side.remote_write_cntr->value();
      BOOST_TEST(poll_until([&] { return side.remote_write_cntr->value() > before + 20; }, work));
      BOOST_TEST(poll_until([&] { return side.nic().statistics().peers == 1; }, work));
      // The region can be closed during the survivor's traffic, and no call waits for the dead process.
      std::string why;
      BOOST_TEST(region->close(&why), why);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

#endif
