// tests/cpp/test_nic_window.cpp: the NIC's services for a dialect with requests: completions only of operations that
// outlast the call, operations only if they end in the call, a peer's bytes as mapped in this process, and how a
// connection ended.
#include "fabric.hpp"
#include "nic/window.hpp"

namespace {

using namespace weft;
using namespace weft::test;

template <typename Body>
void on_every_path(Body&& body) {
  for (const Path path : kPaths) {
    for (const bool manual : {false, true}) {
      BOOST_TEST_CONTEXT("path " << path << (manual ? ", manual" : ", engine")) {
        PairConfig config = pair_of(path, manual);
        config.a.cq_flags |= flag::kSelectiveCompletion;
        body(config);
      }
    }
  }
}

// Connects to the peer, and makes the region known.
void warm(Pair& pair) {
  uint64_t word = 0;
  Access first = read_of(pair.dest, &word, 8, 0, pair.key());
  first.flags = flag::kCompletion;
  const auto c = pair.run(first);
  BOOST_TEST_REQUIRE(c.error == 0, c.text);
}

bool in_place(Path path) {
  return path == Path::self || path == Path::direct || path == Path::cma;
}

BOOST_AUTO_TEST_SUITE(nic_window)

BOOST_AUTO_TEST_CASE(test_if_unfinished_operation_completes_only_if_it_waited) {
  on_every_path([](const PairConfig& config) {
    Pair pair(config);
    warm(pair);
    const uint64_t word = 0x1122334455667788;
    Access write = write_of(pair.dest, &word, 8, 16, pair.key(), 9);
    write.flags = flag::kIfUnfinished;
    const PostResult r = post(*pair.a->ep, write);
    BOOST_TEST(r.refusal == Refusal::none);
    BOOST_TEST(r.context_used == !in_place(pair.path()));
    if (r.context_used) {
      const auto c = pair.wait();
      BOOST_TEST_REQUIRE(c.error == 0, c.text);
      BOOST_TEST(c.entry.context == 9U);
    }
    BOOST_TEST((pair.look(16, 8) ==
                std::vector(reinterpret_cast<const std::byte*>(&word), reinterpret_cast<const std::byte*>(&word) + 8)));
    BOOST_TEST(!try_completion(*pair.a).has_value());
    // A refused operation reports its failure, wherever it was refused.
    Access wrong = write_of(pair.dest, &word, 8, 0, 4711, 10);
    wrong.flags = flag::kIfUnfinished;
    BOOST_TEST(post(*pair.a->ep, wrong).context_used);
    const auto c = pair.wait();
    BOOST_TEST(c.status == Status::no_key);
    BOOST_TEST(c.entry.context == 10U);
  });
}

BOOST_AUTO_TEST_CASE(test_if_unfinished_atomic_completes_only_if_it_waited) {
  on_every_path([](const PairConfig& config) {
    Pair pair(config);
    warm(pair);
    pair.fill(std::byte{0});
    uint64_t one = 1, old = 99;
    const iovec operand{&one, 8}, result{&old, 8};
    const wire::RmaRange range{8, 8, pair.key()};
    nic::AtomicArgs args;
    args.dest = pair.dest;
    args.family = AtomicFamily::fetch;
    args.op = AtomicOp::sum;
    args.datatype = Datatype::uint64;
    args.operand = {&operand, 1};
    args.result = {&result, 1};
    args.remote = {&range, 1};
    args.flags = flag::kIfUnfinished;
    args.context = 3;
    for (uint64_t i = 0; i < 3; ++i) {
      const PostResult r = pair.a->ep->post_atomic(args);
      BOOST_TEST(r.refusal == Refusal::none);
      // The owner's engine updates foreign memory.
      BOOST_TEST(r.context_used == (pair.path() != Path::self && pair.path() != Path::direct));
      if (r.context_used) {
        const auto c = pair.wait();
        BOOST_TEST_REQUIRE(c.error == 0, c.text);
      }
      BOOST_TEST(old == i);
    }
  });
}

BOOST_AUTO_TEST_CASE(test_only_now_operation_is_refused_if_it_would_wait) {
  on_every_path([](const PairConfig& config) {
    Pair pair(config);
    pair.fill(std::byte{0xee});
    const uint64_t word = 5;
    Access write = write_of(pair.dest, &word, 8, 0, pair.key());
    write.flags = flag::kOnlyNow;
    if (pair.path() != Path::self)
      BOOST_TEST(post(*pair.a->ep, write).refusal == Refusal::not_now);  // no connection yet
    BOOST_TEST(pair.a->ep->outstanding() == 0U);
    warm(pair);
    const PostResult r = post(*pair.a->ep, write);
    BOOST_TEST(r.refusal == (in_place(pair.path()) ? Refusal::none : Refusal::not_now));
    BOOST_TEST(!r.context_used);
    const auto seen = pair.look(0, 8);
    BOOST_TEST((seen[0] == (in_place(pair.path()) ? std::byte{5} : std::byte{0xee})));
    BOOST_TEST(pair.a->ep->outstanding() == 0U);
    BOOST_TEST(!try_completion(*pair.a).has_value());
  });
}

BOOST_AUTO_TEST_CASE(test_full_queue_refuses_what_would_report) {
  PairConfig config = pair_of(Path::ring, true);
  config.a.cq_flags |= flag::kSelectiveCompletion;
  config.a.cq_capacity = 4;
  Pair pair(config);
  warm(pair);
  const uint64_t word = 5;
  Access write = write_of(pair.dest, &word, 8, 0, pair.key());
  write.flags = flag::kIfUnfinished;
  for (int i = 0; i < 4; ++i) BOOST_TEST(post(*pair.a->ep, write).refusal == Refusal::none);
  BOOST_TEST(post(*pair.a->ep, write).refusal == Refusal::cq_full);
  for (int i = 0; i < 4; ++i) BOOST_TEST(pair.wait().error == 0);
  BOOST_TEST(post(*pair.a->ep, write).refusal == Refusal::none);
  BOOST_TEST(pair.wait().error == 0);
}

BOOST_AUTO_TEST_CASE(test_window_shows_a_peers_bytes_where_loads_get_there) {
  on_every_path([](const PairConfig& config) {
    Pair pair(config);
    constexpr uint32_t kBoth = mem::kRemoteRead | mem::kRemoteWrite;
    const auto window = [&](uint64_t key, uint64_t at, uint64_t n, uint32_t want) {
      nic::Endpoint::Window w;
      pair.until([&] { return (w = pair.a->ep->window(pair.dest, key, at, n, want)).status != Status::again; },
                 "a window");
      return w;
    };
    BOOST_TEST((pair.a->ep->window(pair.dest, pair.key(), 0, 8, kBoth).status ==
                Status::again));  // no operation has made the connection yet
    warm(pair);
    auto w = window(pair.key(), 100, 50, kBoth);
    BOOST_TEST(w.status == Status::ok);
    const bool reached = pair.path() == Path::self || pair.path() == Path::direct;
    BOOST_TEST((w.pointer != nullptr) == reached);
    if (!reached) return;
    pair.fill(std::byte{7});
    BOOST_TEST((*w.pointer == std::byte{7}));
    BOOST_TEST(window(pair.key(), pair.b->nic().segments().allocated(pair.memory), 1, kBoth).status == Status::bounds);
    BOOST_TEST(window(4711, 0, 8, kBoth).status == Status::no_key);
    std::byte* other = pair.allocate(4096);
    pair.b->reg(other, 4096, 50, mem::kRemoteRead);
    BOOST_TEST(window(50, 0, 8, kBoth).status == Status::access);
    BOOST_TEST((window(50, 0, 8, mem::kRemoteRead).pointer != nullptr));
    // The bytes stay mapped although the region is closed and no further pointer is given out; the place is not reused.
    BOOST_TEST(w.keep->current());
    std::string why;
    BOOST_REQUIRE(pair.region->close(&why));
    BOOST_TEST(!w.keep->current());
    mem::SegmentSet& segments = pair.b->nic().segments();
    const size_t bytes = segments.allocated(pair.memory);
    segments.free(pair.memory);
    BOOST_TEST(segments.resting_bytes() == bytes);
    BOOST_TEST((*w.pointer == std::byte{7}));
    BOOST_TEST(window(pair.key(), 0, 8, kBoth).status != Status::ok);
    w.keep.reset();
    if (pair.path() == Path::direct) {
      pair.until([&] { return !segments.resting(); }, "the place");  // the owner is told
    } else {
      segments.look_at_holds();
    }
    BOOST_TEST(!segments.resting());
    BOOST_TEST((segments.allocate(bytes) == pair.memory));
  });
}

BOOST_AUTO_TEST_CASE(test_lost_peer_is_reported_and_wakes_sleepers) {
  for (const Path path : {Path::direct, Path::strict, Path::tcp}) {
    BOOST_TEST_CONTEXT("path " << path) {
      Pair pair(pair_of(path));
      BOOST_TEST(pair.a->ep->down_status(pair.dest) == Status::ok);
      Access first = write_of(pair.dest, &path, sizeof(path), 0, pair.key());
      BOOST_TEST(pair.run(first).error == 0);
      BOOST_TEST(pair.a->ep->down_status(pair.dest) == Status::ok);
      const uint64_t downs = pair.a->nic().downs();
      pair.a->cq->event.enter();
      const uint32_t seen = pair.a->cq->event.sequence();
      pair.b.reset();
      BOOST_TEST_REQUIRE(poll_until([&] { return pair.a->nic().downs() != downs; }, [&] { pair.a->progress(); }));
      BOOST_TEST(pair.a->ep->down_status(pair.dest) != Status::ok);
      BOOST_TEST_REQUIRE(poll_until([&] { return pair.a->cq->event.sequence() != seen; }, [&] { pair.a->progress(); }));
      pair.a->cq->event.leave();
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
