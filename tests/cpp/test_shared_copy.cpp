// tests/cpp/test_shared_copy.cpp: long copies that the receiver and the sender of a message make together.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "link/copy_job.hpp"
#include "messaging.hpp"

namespace {

using namespace weft;
using namespace weft::test;
using link::CopyJob;
using link::CopyShare;
using Theirs = link::CopyShare::Theirs;

constexpr size_t kLong = size_t{32} << 20;

link::Peer& peer_with_job(const Side& side) {
  for (link::Link* link : side.nic().links()) {
    for (const auto& one : link->peers()) {
      if (one->help.ours != nullptr) return *one;
    }
  }
  BOOST_FAIL("no peer with a job");
  std::abort();
}

// A pair whose messages go through the kernel, and the thread of the test in the place of the sender: it takes parts of
// the receiver's copies, and reports them or not. The sender's own NIC makes no progress meanwhile.
class Copying {
 public:
  explicit Copying(size_t bytes = kLong, uint64_t close_wait_ns = nic::Limits{}.close_wait_ns)
      : pair(config(close_wait_ns)), from(text_of(bytes)), to(bytes) {
    exchange(1);  // connects
    job = &peer().help.theirs->left;
  }
  ~Copying() {
    if (receiver.joinable()) join();
  }
  // The receiver copies, and the sender takes a part. The receiver copies everything while this thread does not run:
  // then the next message.
  CopyShare::Part take() {
    for (int tries = 0; tries < 100; ++tries) {
      const uint64_t before = job->load();
      receive(*pair.b->ep, to.data(), to.size(), {.tag = 7});
      send(*pair.a->ep, pair.dest, from.data(), from.size(), {.tag = 7});
      stop = ended = false;
      receiver = std::thread([this] {
        for (; !stop.load(); sched_yield()) {
          pair.b->progress();
          if (!got && (got = try_completion(*pair.b))) ended = true;
        }
      });
      while (job->load() == before && !ended) cpu_relax();
      share.emplace(peer().help.theirs, static_cast<uint32_t>(job->load() >> 32), from.size());
      if (const auto part = share->take_back()) return *part;
      BOOST_REQUIRE(result().error == 0);
      pair.wait(pair.a.get());
      got.reset();
      std::ranges::fill(to, std::byte{0});
    }
    BOOST_FAIL("the receiver always had everything");
    std::abort();
  }
  void copy(const CopyShare::Part& part) {
    std::memcpy(to.data() + part.offset, from.data() + part.offset, part.bytes);
  }
  // The receiver has done what it can.
  void settle() {
    const auto all_taken = [&] {
      const uint64_t left = job->load();
      return (left >> 16 & 0xffff) == (left & 0xffff);
    };
    BOOST_REQUIRE(poll_until(all_taken, [] {}));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void join() {
    stop = true;
    receiver.join();
  }
  Completion result() {
    join();
    return got ? *got : pair.wait(pair.b.get());
  }
  link::Peer& peer() { return peer_with_job(*pair.a); }

  Pair pair;
  std::vector<std::byte> from, to;
  std::optional<Completion> got;  // of the receiver's thread until join()
  std::thread receiver;
  std::atomic<bool> stop{false}, ended{false};
  std::optional<CopyShare> share;
  std::atomic<uint64_t>* job = nullptr;

 private:
  static PairConfig config(uint64_t close_wait_ns) {
    PairConfig c = message_pair(Path::cma, true);
    c.b.host.limits.close_wait_ns = close_wait_ns;
    return c;
  }
  void exchange(size_t bytes) {
    receive(*pair.b->ep, to.data(), bytes, {.tag = 1});
    send(*pair.a->ep, pair.dest, from.data(), bytes, {.tag = 1});
    pair.wait(pair.a.get());
    pair.wait(pair.b.get());
  }
};

BOOST_AUTO_TEST_SUITE(shared_copy)

BOOST_AUTO_TEST_CASE(test_two_sides_take_every_byte_of_a_copy_once) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 200; ++round) {
    const uint64_t bytes = 1 + random() % (round % 4 == 0 ? uint64_t{1} << 40 : uint64_t{1} << 22);
    CopyJob job{};
    CopyShare ours(&job, 5, bytes), theirs(&job, 5, bytes);
    ours.begin();
    std::vector<CopyShare::Part> front, back;
    std::thread sender([&] {
      while (const auto part = theirs.take_back()) {
        back.push_back(*part);
        theirs.report(true);
      }
    });
    while (const auto part = ours.take_front()) front.push_back(*part);
    sender.join();
    BOOST_TEST((ours.theirs() == (back.empty() ? Theirs::mine : Theirs::copied)));
    std::vector<CopyShare::Part> all = front;
    all.insert(all.end(), back.rbegin(), back.rend());
    uint64_t at = 0;
    for (const CopyShare::Part& part : all) {
      BOOST_REQUIRE(part.offset == at);
      BOOST_REQUIRE(part.bytes != 0U);
      at += part.bytes;
    }
    BOOST_TEST(at == bytes);
  }
}

BOOST_AUTO_TEST_CASE(test_part_of_an_earlier_copy_is_not_to_be_had) {
  CopyJob job{};
  CopyShare first(&job, 5, kLong), late(&job, 5, kLong);
  first.begin();
  while (first.take_front()) {
  }
  CopyShare second(&job, 6, kLong);
  second.begin();
  BOOST_TEST(!late.take_back());
  BOOST_TEST(second.take_front().has_value());
}

BOOST_AUTO_TEST_CASE(test_word_that_the_other_side_has_overwritten_ends_the_sharing) {
  for (const uint64_t lie : {uint64_t{5} << 32 | 9, uint64_t{5} << 32 | 7 << 16 | 0xffff, uint64_t{0}, ~uint64_t{0}}) {
    CopyJob job{};
    CopyShare ours(&job, 5, kLong), theirs(&job, 5, kLong);
    ours.begin();
    BOOST_REQUIRE(ours.take_front().has_value());
    BOOST_REQUIRE(theirs.take_back().has_value());
    job.left = lie;
    BOOST_TEST(!ours.take_front());
    BOOST_TEST(!theirs.take_back());
    BOOST_TEST((ours.theirs() == Theirs::broken));
  }
  CopyJob job{};
  CopyShare ours(&job, 5, kLong);
  ours.begin();
  while (ours.take_front()) {
  }
  job.reported = uint64_t{5} << 32 | 1;  // of parts that the sender has not taken
  BOOST_TEST((ours.theirs() == Theirs::broken));
}

BOOST_AUTO_TEST_CASE(test_sender_that_polls_copies_a_part_of_its_message) {
  Pair pair(message_pair(Path::cma, true));
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    while (!stop) {
      pair.a->progress();
      sched_yield();
    }
  });
  std::vector<std::byte> to(kLong);
  for (unsigned round = 0; round < 1000 && pair.a->nic().statistics().helped_ops == 0; ++round) {
    const auto from = text_of(kLong - round, round);
    receive(*pair.b->ep, to.data(), to.size(), {.tag = 7});
    send(*pair.a->ep, pair.dest, from.data(), from.size(), {.tag = 7});
    std::optional<Completion> got, sent;
    BOOST_REQUIRE(poll_until(
        [&] { return (got || (got = try_completion(*pair.b))) && (sent || (sent = try_completion(*pair.a))); },
        [&] { pair.b->progress(); }));
    BOOST_TEST(got->error == 0, got->text);
    BOOST_TEST(got->entry.len == from.size());
    BOOST_TEST(std::equal(from.begin(), from.end(), to.begin()));
  }
  stop = true;
  sender.join();
  BOOST_TEST(pair.a->nic().statistics().helped_ops != 0U);
}

BOOST_AUTO_TEST_CASE(test_sender_helps_with_its_own_bytes_and_once) {
  constexpr uint64_t n = size_t{1} << 20;
  Pair pair(message_pair(Path::cma, true));
  const auto from = text_of(n);
  std::vector<std::byte> to(2 * n);
  send(*pair.a->ep, pair.dest, from.data(), n, {.tag = 7});
  pair.until([&] { return pair.b->ep->port()->context().statistics().unexpected == 1; }, "the message");
  uint64_t message = 0;
  {
    const nic::DomainLock guard(pair.a->domain.get());
    pair.a->domain->operations().each([&](nic::Op* op) { message = op->id; });
  }
  link::Peer& sender = peer_with_job(*pair.b);
  const auto helped = [&](uint64_t id, uint64_t offset, uint64_t length) {
    CopyShare share(sender.help.ours, ++sender.help.number, length);
    share.begin();
    wire::Frame f;
    f.kind = wire::FrameKind::help;
    f.op_id = id;
    f.help = {reinterpret_cast<uint64_t>(to.data()), offset, length, sender.help.number, {}};
    BOOST_REQUIRE(sender.link()->submit(sender, f, {}) == Status::ok);
    for (int i = 0; i < 100; ++i) pair.a->progress();
    while (share.take_front()) {
    }
    return share.theirs() == Theirs::copied;
  };
  BOOST_TEST(!helped(message + 1, 0, n));
  BOOST_TEST(!helped(message, 0, n + 1));
  BOOST_TEST(!helped(message, 1, n));
  BOOST_TEST(!helped(message, ~uint64_t{0}, 2));
  BOOST_TEST(helped(message, 1000, n - 1000));
  BOOST_TEST(std::equal(from.begin() + 1000, from.end(), to.begin()));
  BOOST_TEST(!helped(message, 1000, n - 1000));
}

BOOST_AUTO_TEST_CASE(test_receive_waits_for_the_part_that_the_sender_has_taken) {
  Copying copying;
  const CopyShare::Part part = copying.take();
  copying.settle();
  BOOST_TEST(copying.pair.b->unread() == 0U);
  copying.copy(part);
  copying.share->report(true);
  const Completion got = copying.result();
  BOOST_TEST(got.error == 0, got.text);
  BOOST_TEST((copying.to == copying.from));
}

BOOST_AUTO_TEST_CASE(test_receiver_copies_what_the_sender_could_not) {
  Copying copying;
  copying.take();
  copying.settle();
  copying.share->report(false);
  const Completion got = copying.result();
  BOOST_TEST(got.error == 0, got.text);
  BOOST_TEST((copying.to == copying.from));
}

BOOST_AUTO_TEST_CASE(test_receive_of_a_sender_that_is_lost_with_its_part_fails) {
  Copying copying;
  copying.take();
  copying.settle();
  copying.join();
  copying.pair.a.reset();
  std::optional<Completion> got;
  BOOST_REQUIRE(poll_until([&] { return (got = try_completion(*copying.pair.b)).has_value(); },
                           [&] { copying.pair.b->progress(); }));
  BOOST_TEST(got->status == Status::closed);
}

BOOST_AUTO_TEST_CASE(test_endpoint_that_closes_waits_for_the_part_that_the_sender_has_taken) {
  Copying copying(kLong, uint64_t{1'000'000'000'000});
  const CopyShare::Part part = copying.take();
  copying.settle();
  copying.join();
  std::atomic<bool> closed{false};
  std::thread closing([&] {
    copying.pair.b->ep->close();
    closed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  BOOST_TEST(!closed);
  copying.copy(part);
  copying.share->report(true);
  closing.join();
}

BOOST_AUTO_TEST_CASE(test_endpoint_closes_in_spite_of_a_stopped_sender) {
  Copying copying(kLong, uint64_t{50'000'000});
  copying.take();
  copying.settle();
  copying.join();
  copying.pair.b->ep->close();  // the sender never reports
  BOOST_TEST(!copying.pair.b->ep->enabled());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
