// tests/cpp/test_ucp_post.cpp: what UCP's operations are refused for, and how they are posted (ucp/port.hpp,
// ucp/post.hpp).
#include "ucp/post.hpp"

#include <deque>

#include "every_path.hpp"

using namespace weft;
using namespace weft::test;
using namespace weft::ucp;
using End = Launched::End;

BOOST_AUTO_TEST_SUITE(ucp_post)

namespace {

constexpr size_t kBytes = 1 << 16;

/// A request's owner: counts the references, and decides the queue's answer when there is no room.
struct Counted {
  int references = 0, waits = 0, rooms = 1'000'000;
  void keep() { ++references; }
  void forget() { --references; }
  static size_t collect() { return 0; }
  bool wait() { return ++waits <= rooms; }
};

/// A worker with one endpoint and one key, on a pair that has met.
struct Fabric {
  explicit Fabric(Path path) : config(pair_of(path)) {
    config.bytes = kBytes;
    config.a.cq_flags |= flag::kSelectiveCompletion;  // as a worker's endpoint
    pair = std::make_unique<Pair>(config);
    port.nic = pair->a->ep.get();
    port.queue = pair->a->cq.get();
    port.features = kFeatureRma | kFeatureAmo64;
    ep = std::make_unique<Peer>(port);
    ep->dest = pair->dest;
    key = {.ep = ep.get(), .key = pair->key(), .dest = pair->dest, .length = kBytes};
    uint64_t word = 0;
    Request met;
    met.parts = 1;
    BOOST_REQUIRE((port.nic
                       ->post_one(OpKind::write, &word, 8, pair->dest, 0, pair->key(), flag::kCompletion,
                                  reinterpret_cast<uint64_t>(&met), 0, false)
                       .refusal == Refusal::none));
    port.begin(met, *ep);
    finish(met);
  }
  size_t collect() {
    pair->a->host->nic().poll_from_app();
    return take_completions(
        port, pair->a->domain.get(), [] {},
        [&](uint64_t context, Status status, const std::string& text) {
          if (context == 0) return;
          auto& r = *reinterpret_cast<Request*>(context);
          port.settle(r, ucs_status(status), ends_endpoint(status), text);
        });
  }
  void finish(Request& r) {
    BOOST_REQUIRE(poll_until([&] { return r.ended(); }, [&] { collect(); }));
  }
  PairConfig config;
  std::unique_ptr<Pair> pair;
  Port port;
  std::unique_ptr<Peer> ep;
  Rkey key;
};

nic::PostResult answer(Refusal refusal, bool under_way = false) {
  return {.refusal = refusal, .context_used = under_way};
}

}  // namespace

// ---- refusals ------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_an_endpoint_that_is_closed_failed_or_without_the_feature_takes_no_operation) {
  Fabric f(Path::self);
  BOOST_TEST(is_open(f.port));
  BOOST_TEST(is_open(*f.ep));
  BOOST_TEST(is_able(*f.ep, kFeatureRma));
  BOOST_TEST(!is_able(*f.ep, kFeatureAmo32));
  BOOST_TEST(why_unable(*f.ep, kFeatureAmo32).text.find("without the feature AMO32") != std::string::npos);
  f.ep->fail(kConnectionReset, "gone");
  BOOST_TEST(!is_able(*f.ep, kFeatureRma));
  BOOST_TEST(why_unable(*f.ep, kFeatureRma).status == kConnectionReset);
  f.ep->closing = true;
  BOOST_TEST(!is_open(*f.ep));
  BOOST_TEST(why_closed(*f.ep).text.find("is closing") != std::string::npos);
  f.ep->close();
  BOOST_TEST(why_closed(*f.ep).text.find("is closed") != std::string::npos);
  f.port.closed = true;
  BOOST_TEST(!is_open(f.port));
  BOOST_TEST(!is_open(Port()));
}

BOOST_AUTO_TEST_CASE(test_a_key_serves_its_endpoint_and_a_symmetric_key_its_worker) {
  Fabric f(Path::self);
  Peer other(f.port);
  other.dest = 77;
  Port port2;
  Peer elsewhere(port2);
  uint64_t dest = 0;
  BOOST_TEST(resolve(*f.ep, f.key, &dest));
  BOOST_TEST(dest == f.key.dest);
  BOOST_TEST(!resolve(other, f.key, &dest));
  BOOST_TEST(why_unresolved(f.key).text.find("another endpoint") != std::string::npos);
  f.key.symmetric = true;
  BOOST_TEST(resolve(other, f.key, &dest));
  BOOST_TEST(dest == 77U);
  BOOST_TEST(!resolve(elsewhere, f.key, &dest));
  f.key.destroyed = true;
  BOOST_TEST(!resolve(*f.ep, f.key, &dest));
  BOOST_TEST(why_unresolved(f.key).text.find("was destroyed") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(test_a_length_is_whole_elements_that_the_buffer_has) {
  const auto length = [](Amount amount, uint64_t available) {
    uint64_t found = 0;
    return length_of(amount, available, &found) ? ~uint64_t{0} : found;
  };
  const auto contiguous = [](uint64_t n) { return n << kClassShift | kClassContig; };
  BOOST_TEST(length({}, 10) == 10U);
  BOOST_TEST(length({.datatype = contiguous(4)}, 10) == 8U);
  BOOST_TEST(length({.datatype = contiguous(4), .count = 2}, 10) == 8U);
  BOOST_TEST(length({.datatype = contiguous(4), .count = 3}, 10) == ~uint64_t{0});
  BOOST_TEST(length({.datatype = contiguous(1 << 20), .count = ~uint64_t{0}}, 10) == ~uint64_t{0});
  BOOST_TEST(length({.datatype = contiguous(0)}, 10) == 10U);
  uint64_t found = 0;
  BOOST_TEST(length_of({.datatype = 5}, 10, &found).status == kUnsupported);
  BOOST_TEST(check_flags(kFastCmpl | kMultiSend).status == kInvalidParam);
  BOOST_TEST(!check_flags(kFastCmpl));
}

BOOST_AUTO_TEST_CASE(test_an_atomic_is_of_one_aligned_element_and_a_known_operation) {
  const auto atomic = [](uint64_t opcode, uint64_t remote, uint64_t size) {
    Atomic a;
    a.opcode = opcode;
    a.remote = remote;
    a.size = size;
    return a;
  };
  const auto says = [](const Refused& why, const char* text) {
    return why.status == kInvalidParam && why.text.find(text) != std::string::npos;
  };
  BOOST_TEST(atomic(kAdd, 8, 8).has_operand(8, std::nullopt));
  BOOST_TEST(atomic(kAdd, 8, 4).has_operand(12, 1));
  BOOST_TEST(!atomic(kAdd, 8, 2).has_operand(2, std::nullopt));
  BOOST_TEST(says(atomic(kAdd, 8, 2).why_no_operand(2, std::nullopt), "elements of 2 B"));
  BOOST_TEST(!atomic(kAdd, 8, 8).has_operand(12, 1));
  BOOST_TEST(says(atomic(kAdd, 8, 8).why_no_operand(12, 1), "the buffer has 12 B, the element 8"));
  BOOST_TEST(!atomic(kAdd, 8, 8).has_operand(0, 1));
  BOOST_TEST(!atomic(kAdd, 8, 8).has_operand(8, 2));
  BOOST_TEST(says(atomic(kAdd, 8, 8).why_no_operand(8, 2), "count is 2"));
  BOOST_TEST(atomic(kXor, 8, 8).is_operation(false));
  BOOST_TEST(atomic(kAdd, 4, 4).is_operation(false));
  BOOST_TEST(!atomic(kAtomicOps, 8, 8).is_operation(true));
  BOOST_TEST(says(atomic(kAtomicOps, 8, 8).why_no_operation(true), "no atomic operation 6"));
  BOOST_TEST(!atomic(kSwap, 8, 8).is_operation(false));
  BOOST_TEST(says(atomic(kSwap, 8, 8).why_no_operation(false), "SWAP needs a reply_buffer"));
  BOOST_TEST(!atomic(kAdd, 4, 8).is_operation(false));
  BOOST_TEST(says(atomic(kAdd, 4, 8).why_no_operation(false), "remote_addr 0x4 is no multiple of 8"));
  BOOST_TEST(says(atomic(kAdd, 8, 8).why_no_room(7), "reply_buffer has 7 B"));
}

// ---- posting -------------------------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(test_a_put_ends_in_place_where_this_process_copies_and_by_a_completion_elsewhere) {
  on_every_path([](PairConfig config) {
    Fabric f(config.path);
    const bool copies = config.path == Path::self || config.path == Path::direct || config.path == Path::cma;
    uint64_t word = 0x1234;
    const iovec piece{&word, 8};
    Transfer t{.kind = OpKind::write, .dest = f.key.dest, .remote = 64, .key = &f.key, .pieces = {&piece, 1}};
    Request r;
    Counted holder;
    const Launched launched = launch(*f.ep, r, 0, t.parts(), holder, [&](size_t part, uint64_t flags) {
      return t.post(*f.port.nic, part, reinterpret_cast<uint64_t>(&r), flags);
    });
    BOOST_TEST((launched.end == (copies ? End::done : End::under_way)));
    BOOST_TEST(holder.references == (copies ? 0 : 1));
    if (!copies) {
      f.port.begin(r, *f.ep);
      f.finish(r);
      BOOST_TEST(r.status == kOk);
    }
    BOOST_TEST(r.parts == 0U);
    uint64_t found = 0;
    std::memcpy(&found, f.pair->look(64, 8).data(), 8);
    BOOST_TEST(found == 0x1234U);
  });
}

BOOST_AUTO_TEST_CASE(test_a_list_of_many_pieces_is_posted_in_parts_one_after_the_other) {
  Fabric f(Path::direct);
  std::vector<uint64_t> words(20);
  for (size_t i = 0; i < words.size(); ++i) words[i] = i + 1;
  std::vector<iovec> pieces;
  for (uint64_t& word : words) pieces.push_back({&word, 8});
  Transfer t{.kind = OpKind::write, .dest = f.key.dest, .remote = 0, .key = &f.key, .pieces = pieces};
  BOOST_TEST(t.parts() == 3U);
  BOOST_TEST(t.bytes() == 160U);
  BOOST_TEST(!t.passes_end());
  Request r;
  Counted holder;
  const Launched launched = launch(*f.ep, r, 0, t.parts(), holder, [&](size_t part, uint64_t flags) {
    return t.post(*f.port.nic, part, reinterpret_cast<uint64_t>(&r), flags);
  });
  BOOST_TEST((launched.end == End::done));
  std::vector<uint64_t> found(20);
  std::memcpy(found.data(), f.pair->look(0, 160).data(), 160);
  BOOST_TEST((found == words));
  t.remote = kBytes - 152;
  BOOST_TEST(t.passes_end());
  BOOST_TEST(t.why_passes_end().find("passes the end of the region") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(test_an_atomic_updates_and_replies) {
  Fabric f(Path::direct);
  uint64_t old = 0;
  const auto run = [&](uint64_t opcode, uint64_t operand, uint64_t reply) {
    Atomic a;
    a.opcode = opcode;
    a.size = 8;
    a.remote = 8;
    a.operand = operand;
    old = reply;
    a.reply = reinterpret_cast<std::byte*>(&old);
    AtomicPost post(a, f.key, f.key.dest);
    BOOST_TEST((post(*f.port.nic, 0, nic::flag::kIfUnfinished).refusal == Refusal::none));
    return old;
  };
  BOOST_TEST(run(kAdd, 5, 0) == 0U);
  BOOST_TEST(run(kCswap, 5, 9) == 5U);  // 5 is expected, 9 is new
  BOOST_TEST(run(kCswap, 5, 1) == 9U);
  BOOST_TEST(run(kOr, 6, 0) == 9U);
  BOOST_TEST(run(kSwap, 2, 0) == 15U);
}

BOOST_AUTO_TEST_CASE(test_a_call_waits_for_room_and_may_be_given_up) {
  Fabric f(Path::self);
  Request r;
  Counted holder;
  std::deque<nic::PostResult> answers{answer(Refusal::tx_full), answer(Refusal::cq_full), answer(Refusal::none)};
  const auto post = [&](size_t, uint64_t) {
    const nic::PostResult next = answers.front();
    answers.pop_front();
    return next;
  };
  BOOST_TEST((launch(*f.ep, r, 0, 1, holder, post).end == End::done));
  BOOST_TEST(holder.waits == 2);
  BOOST_TEST(holder.references == 0);
  answers = {answer(Refusal::none, true), answer(Refusal::tx_full), answer(Refusal::tx_full)};
  holder = {.rooms = 1};
  const Launched launched = launch(*f.ep, r, 0, 3, holder, post);
  BOOST_TEST((launched.end == End::given_up));
  BOOST_TEST(launched.partly);  // the first part is under way, with its reference
  BOOST_TEST(holder.references == 1);
  BOOST_TEST(r.parts == 1U);
}

BOOST_AUTO_TEST_CASE(test_only_the_first_part_after_a_fence_is_fenced) {
  Fabric f(Path::self);
  Request r;
  Counted holder;
  std::vector<bool> fenced;
  const auto post = [&](size_t, uint64_t flags) {
    fenced.push_back((flags & nic::flag::kFence) != 0);
    return answer(Refusal::none);
  };
  ++f.port.fence_count;
  launch(*f.ep, r, 0, 2, holder, post);
  launch(*f.ep, r, 0, 1, holder, post);
  BOOST_TEST((fenced == std::vector<bool>{true, false, false}));
}

BOOST_AUTO_TEST_CASE(test_an_immediate_operation_that_would_not_end_in_the_call_is_refused) {
  Fabric f(Path::self);
  Request r;
  Counted holder;
  const auto launched = launch(*f.ep, r, kForceImmCmpl, 1, holder, [&](size_t, uint64_t flags) {
    BOOST_TEST((flags & nic::flag::kOnlyNow) != 0U);
    return answer(Refusal::not_now);
  });
  BOOST_TEST((launched.end == End::refused));
  BOOST_TEST(launched.why.status == kNoResource);
  BOOST_TEST(!launched.partly);
  BOOST_TEST(holder.references == 0);
  BOOST_TEST(refused_by_nic(Refusal::closed).status == kInvalidParam);
}

BOOST_AUTO_TEST_CASE(test_an_endpoint_that_is_watched_fails_when_its_peer_dies) {
  Fabric f(Path::direct);
  f.ep->watched = true;
  int failed = 0;
  BOOST_TEST(note_downs(f.port, 1, [&](Peer&) { ++failed; }) == 0U);
  f.pair->b.reset();
  const auto down = [&] { return f.port.nic->down_status(f.ep->dest) != Status::ok; };
  BOOST_REQUIRE(poll_until(down, [&] {
    uint64_t word = 0;
    (void)f.port.nic->post_one(OpKind::write, reinterpret_cast<std::byte*>(&word), 8, f.key.dest, 0, f.key.key, 0, 0, 0,
                               false);
    f.collect();
  }));
  BOOST_TEST(note_downs(f.port, 2, [&](Peer& ep) { failed += &ep == f.ep.get() ? 1 : 0; }) == 1U);
  BOOST_TEST(note_downs(f.port, 3, [&](Peer&) { ++failed; }) == 0U);
  BOOST_TEST(failed == 1);
  std::string text;
  BOOST_TEST(status_on(f.port, f.ep.get(), Status::no_endpoint, &text) == f.ep->failed());
  BOOST_TEST(text.find("was reached before") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
