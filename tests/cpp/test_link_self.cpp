// tests/cpp/test_link_self.cpp: the link of a process with itself.
#include "link/self.hpp"
#include "mem/guard.hpp"

#include <thread>

#include "fabric.hpp"
#include "mem/guard.hpp"

namespace {

using namespace weft;
using namespace weft::test;

struct Heard final : link::FrameSink {
  void on_frame(const std::shared_ptr<link::Peer>& from, const wire::Frame& frame,
                std::span<const std::byte> payload) override {
    peer = from;
    ids.push_back(frame.op_id);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
  }
  void on_resolved(const std::shared_ptr<void>&, Status, const std::shared_ptr<link::Peer>&, uint32_t,
                   uint32_t) override {}
  void on_peer_down(const std::shared_ptr<link::Peer>&) override {}
  std::shared_ptr<link::Peer> peer;
  std::vector<uint64_t> ids;
  std::vector<std::byte> bytes;
};

struct CountingWaiter final : link::Waiter {
  void wait(int64_t) override {}
  void wake() override { ++wakes; }
  void watch(int) override {}
  std::atomic<int> wakes{0};
};

struct Fixture {
  // Boost installs its own handlers before each test, and this test makes no NIC, which would put ours in front again.
  Fixture() { mem::keep_fault_handler(); }
  mem::Table table{16};
  CountingWaiter waiter;
  link::SelfLink link{table, waiter};
  Heard heard;
  link::Link::Found found;
};

const wire::EpAddress kHere{1, 2, 3, 0};

BOOST_AUTO_TEST_SUITE(link_self)

BOOST_AUTO_TEST_CASE(test_self_claim_resolve_release) {
  Fixture f;
  BOOST_TEST((f.link.resolve(kHere, nullptr, &f.found) == link::Link::Resolving::no));
  f.link.claim(kHere, 5, 7);
  BOOST_CHECK_EXCEPTION(f.link.claim(kHere, 6, 1), Error,
                        [](const Error& e) { return e.fi_code() == fi_err::kEADDRINUSE; });
  BOOST_REQUIRE((f.link.resolve(kHere, nullptr, &f.found) == link::Link::Resolving::found));
  BOOST_TEST(f.found.ep_index == 5U);
  BOOST_TEST(f.found.ep_generation == 7U);
  BOOST_TEST(f.found.peer->same_process);
  BOOST_TEST(f.found.peer->table.valid());
  f.link.release(kHere);
  BOOST_TEST((f.link.resolve(kHere, nullptr, &f.found) == link::Link::Resolving::no));
  f.link.claim(kHere, 6, 1);
}

BOOST_AUTO_TEST_CASE(test_self_copy_moves_every_byte_or_reports_a_missing_page) {
  Fixture f;
  f.link.claim(kHere, 5, 7);
  BOOST_REQUIRE((f.link.resolve(kHere, nullptr, &f.found) == link::Link::Resolving::found));
  link::Peer& self = *f.found.peer;
  constexpr size_t kBytes = 3 << 20;
  std::vector<std::byte> from = pattern(kBytes), to(kBytes);
  const iovec in[] = {{from.data(), 5}, {from.data() + 5, 0}, {from.data() + 5, kBytes - 5}};
  const iovec out[] = {{to.data(), kBytes - 100'000}, {to.data() + kBytes - 100'000, 100'000}};
  BOOST_TEST(self.cma_copy(false, out, in) == Status::ok);
  BOOST_TEST((from == to));
  const long page = ::sysconf(_SC_PAGESIZE);
  auto* hole = static_cast<std::byte*>(
      ::mmap(nullptr, static_cast<size_t>(page), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const iovec missing{hole, 64}, here{to.data(), 64};
  mem::keep_fault_handler();  // the test runner installs its own handler at each test
  for (const bool write : {false, true}) {
    BOOST_TEST(self.cma_copy(write, {&missing, 1}, {&here, 1}) == Status::fault);
    BOOST_TEST(self.cma_copy(write, {&here, 1}, {&missing, 1}) == Status::fault);
  }
  ::munmap(hole, static_cast<size_t>(page));
}

BOOST_AUTO_TEST_CASE(test_self_frames_arrive_in_order_and_are_bounded) {
  Fixture f;
  f.link.claim(kHere, 0, 1);
  (void)f.link.resolve(kHere, nullptr, &f.found);
  wire::Frame frame;
  frame.kind = wire::FrameKind::write;
  uint64_t sent = 0;
  std::vector<std::byte> payload(3, std::byte{9});
  for (;; ++sent) {
    frame.op_id = sent;
    if (f.link.submit(*f.found.peer, frame, payload) != Status::ok) break;
  }
  BOOST_TEST(sent > 1000U);
  BOOST_TEST(f.link.maybe_ready());
  payload.assign(3, std::byte{0});  // submitted memory may be reused
  BOOST_TEST(f.link.poll(f.heard, 10) == 10U);
  frame.op_id = sent++;
  BOOST_TEST((f.link.submit(*f.found.peer, frame, {}) == Status::ok));
  while (f.link.poll(f.heard, 100) != 0) {
  }
  BOOST_TEST(f.heard.ids.size() == sent);
  for (uint64_t i = 0; i < sent; ++i) BOOST_REQUIRE(f.heard.ids[i] == i);
  BOOST_TEST(f.heard.bytes.size() == 3 * (sent - 1));
  BOOST_TEST((f.heard.bytes.back() == std::byte{9}));
  BOOST_TEST(!f.link.maybe_ready());
}

BOOST_AUTO_TEST_CASE(test_self_wakes_a_sleeper_once_and_never_misses_one) {
  Fixture f;
  f.link.claim(kHere, 0, 1);
  (void)f.link.resolve(kHere, nullptr, &f.found);
  wire::Frame frame;
  frame.kind = wire::FrameKind::write;
  (void)f.link.submit(*f.found.peer, frame, {});
  BOOST_TEST(f.waiter.wakes.load() == 0);
  BOOST_TEST(!f.link.prepare_sleep());
  f.link.poll(f.heard, 10);
  BOOST_TEST(f.link.prepare_sleep());
  for (int i = 0; i < 3; ++i) (void)f.link.submit(*f.found.peer, frame, {});
  BOOST_TEST(f.waiter.wakes.load() >= 1);

  // A thread that checks before it sleeps sees the frame, or is woken.
  for (int round = 0; round < 3000; ++round) {
    f.link.poll(f.heard, 1000);
    (void)f.link.prepare_sleep();  // consumes an earlier arming
    f.link.poll(f.heard, 1000);
    f.waiter.wakes.store(0);
    std::thread sender;
    if (round % 50 == 0) {
      sender = std::thread([&] { (void)f.link.submit(*f.found.peer, frame, {}); });
    } else {
      (void)f.link.submit(*f.found.peer, frame, {});
    }
    const bool idle = f.link.prepare_sleep();
    if (sender.joinable()) sender.join();
    BOOST_REQUIRE((!idle || f.waiter.wakes.load() > 0));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
