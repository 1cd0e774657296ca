// tests/cpp/test_nic_parking.cpp: calls on objects in a peer's memory, and watches of its bytes, on every path; those
// that wait are kept and answered; and what a peer may ask that no correct peer asks.
#include "fabric.hpp"
#include "nic/parking.hpp"
#include "wire/call.hpp"

namespace weft::sync {
static std::ostream& operator<<(std::ostream& out, Outcome outcome) {
  return out << "outcome " << static_cast<uint32_t>(outcome);
}
}  // namespace weft::sync

namespace {

using namespace weft;
using namespace weft::test;
using sync::Outcome;
using wire::CallAnswer;
using wire::CallRequest;

// The answer is written here: keep it until the completion.
struct [[nodiscard]] Asked {
  std::vector<std::byte> request, answer;
  PostResult posted;
};

// Posts a call with `bytes` of data behind the request.
Asked ask(Pair& pair, const CallRequest& head, uint64_t addr = 0, std::span<const std::byte> data = {},
          uint64_t context = 1, size_t room = 0) {
  Asked asked;
  CallRequest request = head;
  request.in_bytes = static_cast<uint32_t>(data.size());
  request.out_bytes = static_cast<uint32_t>(room);
  asked.request.resize(std::max(sizeof(request) + data.size(), sizeof(CallAnswer) + room));
  std::memcpy(asked.request.data(), &request, sizeof(request));
  if (!data.empty()) std::memcpy(asked.request.data() + sizeof(request), data.data(), data.size());
  asked.answer.resize(asked.request.size());
  asked.posted = pair.a->ep->post_call({pair.dest, addr, pair.key(), asked.request, asked.answer.data(), context});
  return asked;
}
CallAnswer answer_of(const Asked& asked) {
  CallAnswer answer;
  std::memcpy(&answer, asked.answer.data(), sizeof(answer));
  return answer;
}
CallRequest request_of(sync::Op op, uint16_t flags = 0, uint64_t id = 0) {
  CallRequest r;
  r.op = static_cast<uint16_t>(op);
  r.flags = flags;
  r.token = 77;
  r.id = id;
  return r;
}
Outcome outcome_of(const Asked& asked) {
  return static_cast<Outcome>(answer_of(asked).outcome);
}

constexpr Path kReached[] = {Path::self, Path::direct, Path::strict, Path::tcp};

template <typename Body>
void on_paths(std::span<const Path> paths, Body&& body) {
  for (const Path path : paths) {
    BOOST_TEST_CONTEXT("path " << path) {
      Pair pair(pair_of(path));
      std::memset(pair.memory, 0, 4096);
      body(pair);
    }
  }
}

BOOST_AUTO_TEST_SUITE(nic_parking)

BOOST_AUTO_TEST_CASE(test_call_is_done_by_the_owners_nic) {
  on_paths(kReached, [](Pair& pair) {
    (void)sync::create(pair.memory, sync::Kind::lock, 0, 0, 0);
    Asked taken = ask(pair, request_of(sync::Op::take));
    BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(outcome_of(taken) == Outcome::done);
    Asked again = ask(pair, request_of(sync::Op::take));
    BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(outcome_of(again) == Outcome::again);
    Asked released = ask(pair, request_of(sync::Op::release));
    BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(outcome_of(released) == Outcome::done);
  });
}

BOOST_AUTO_TEST_CASE(test_parked_call_is_answered_when_it_can_be_done) {
  on_paths(kReached, [](Pair& pair) {
    (void)sync::create(pair.memory, sync::Kind::queue, 4, 100, 0);
    Asked got = ask(pair, request_of(sync::Op::get, wire::kCallPark), 0, {}, 5, 100);
    BOOST_TEST(!try_completion(*pair.a).has_value());
    const auto text = pattern(60);
    Asked put = ask(pair, request_of(sync::Op::put), 0, text, 6);
    for (int i = 0; i < 2; ++i) BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(outcome_of(put) == Outcome::done);
    BOOST_TEST(outcome_of(got) == Outcome::done);
    BOOST_TEST(answer_of(got).length == 60U);
    BOOST_TEST(std::memcmp(got.answer.data() + sizeof(CallAnswer), text.data(), 60) == 0);
    BOOST_TEST(pair.b->nic().table().parked().load() == 0U);
  });
}

BOOST_AUTO_TEST_CASE(test_watch_is_answered_when_the_bytes_change) {
  on_paths(kPaths, [](Pair& pair) {
    const uint64_t zero = 0, one = 1;
    CallRequest watch = request_of(sync::Op::take, wire::kCallWatch | wire::kCallPark);
    for (int i = 0; i < 3; ++i) {
      pair.fill(std::byte{0});
      Asked asked = ask(pair, watch, 512, std::as_bytes(std::span(&zero, 1)), 5);
      pair.until([&] { return pair.b->nic().table().parked().load() == 1; }, "the watch");
      BOOST_TEST(!try_completion(*pair.a).has_value());
      BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, &one, 8, 512, pair.key(), 6)).refusal == Refusal::none);
      for (int k = 0; k < 2; ++k) BOOST_TEST(pair.wait().error == 0);
      BOOST_TEST(outcome_of(asked) == Outcome::done);
    }
    Asked at_once = ask(pair, watch, 512, std::as_bytes(std::span(&zero, 1)));
    BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(outcome_of(at_once) == Outcome::done);
  });
}

uint64_t wakes_of(const Side& side) {
  return side.nic().statistics().engine_wakes;
}
// A watch of the 8 bytes at `addr`, which are 0; parked.
Asked watch_zero(Pair& pair, uint64_t addr, uint64_t id = 9) {
  const uint64_t zero = 0;
  const uint32_t parked = pair.b->nic().table().parked().load();
  const CallRequest watch = request_of(sync::Op::take, wire::kCallWatch | wire::kCallPark, id);
  Asked asked = ask(pair, watch, addr, std::as_bytes(std::span(&zero, 1)), id);
  pair.until([&] { return pair.b->nic().table().parked().load() > parked; }, "the watch");
  return asked;
}

BOOST_AUTO_TEST_CASE(test_watch_is_answered_after_a_store_that_nobody_announces) {
  on_paths(kPaths, [](Pair& pair) {
    if (pair.path() == Path::self) return;  // polling for the answer is progress of the owner's NIC too
    pair.fill(std::byte{0});
    const Asked asked = watch_zero(pair, 512);
    const uint64_t looks = wakes_of(*pair.b);
    const auto only_a = [&] { pair.a->progress(); };
    BOOST_TEST(poll_until([&] { return wakes_of(*pair.b) > looks + 3; }, only_a));
    std::atomic_ref(*reinterpret_cast<uint64_t*>(pair.memory + 512)).store(1);
    std::optional<Completion> c;
    BOOST_TEST_REQUIRE(poll_until([&] { return (c = try_completion(*pair.a)).has_value(); }, only_a));
    BOOST_TEST(c->error == 0);
    BOOST_TEST(outcome_of(asked) == Outcome::done);
  });
}

BOOST_AUTO_TEST_CASE(test_watches_of_all_ages_share_their_looks) {
  constexpr Path kStrict[] = {Path::strict};
  on_paths(kStrict, [](Pair& pair) {
    std::vector<Asked> watches;
    for (uint64_t i = 1; i <= nic::Parking::kParkedPerPeerMax; ++i) {
      const uint64_t now = wakes_of(*pair.b);
      watches.push_back(watch_zero(pair, 8 * i, i));
      if (i % 8 == 0) BOOST_TEST(poll_until([&] { return wakes_of(*pair.b) > now; }, [] {}));
    }
    const uint64_t before = wakes_of(*pair.b);
    const auto begun = std::chrono::steady_clock::now();
    BOOST_TEST(poll_until([&] { return wakes_of(*pair.b) >= before + 12; }, [] {}));
    // At most one look in 15.6 ms. A busy machine only looks more rarely.
    BOOST_TEST((std::chrono::steady_clock::now() - begun >= 10 * std::chrono::microseconds(15'625)));
  });
}

BOOST_AUTO_TEST_CASE(test_engine_sleeps_again_when_the_last_watch_has_ended) {
  constexpr Path kStrict[] = {Path::strict};
  on_paths(kStrict, [](Pair& pair) {
    const Asked watched = watch_zero(pair, 512);
    CallRequest cancel = request_of(sync::Op::take, wire::kCallCancel);
    cancel.a = 9;
    const Asked canceled = ask(pair, cancel);
    for (int i = 0; i < 2; ++i) BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(answer_of(canceled).value == 1U);
    const uint64_t before = wakes_of(*pair.b);
    constexpr auto kALittle = std::chrono::milliseconds(200);
    const auto begun = std::chrono::steady_clock::now();
    (void)poll_until([&] { return false; }, [] {}, kALittle);
    // A busy machine takes longer. A watch looks 12 times in each of these.
    const auto times = (std::chrono::steady_clock::now() - begun) / kALittle + 1;
    BOOST_TEST(wakes_of(*pair.b) <= before + 8 * static_cast<uint64_t>(times));
  });
}

BOOST_AUTO_TEST_CASE(test_watch_ends_with_its_region_though_the_bytes_change) {
  on_paths(kPaths, [](Pair& pair) {
    pair.fill(std::byte{0});
    const Asked asked = watch_zero(pair, 512);
    std::string why;
    BOOST_TEST(pair.region->close(&why));
    std::memset(pair.memory, 1, 4096);  // the place is used again
    BOOST_TEST((pair.wait().error != 0));
  });
}

BOOST_AUTO_TEST_CASE(test_watch_of_a_lost_peer_ends) {
  on_paths(kPaths, [](Pair& pair) {
    if (pair.path() == Path::self) return;
    pair.fill(std::byte{0});
    const Asked asked = watch_zero(pair, 512);
    pair.a.reset();
    BOOST_TEST(poll_until([&] { return pair.b->nic().table().parked().load() == 0; }, [&] { pair.b->progress(); }));
  });
}

BOOST_AUTO_TEST_CASE(test_canceled_call_is_answered_as_canceled) {
  on_paths(kReached, [](Pair& pair) {
    (void)sync::create(pair.memory, sync::Kind::event, 0, 0, 0);
    Asked wait = ask(pair, request_of(sync::Op::wait, wire::kCallPark, 9), 0, {}, 5);
    CallRequest cancel = request_of(sync::Op::take, wire::kCallCancel);
    cancel.a = 8;
    Asked other = ask(pair, cancel, 0, {}, 6);  // another call's number
    BOOST_TEST(pair.wait().entry.context == 6U);
    BOOST_TEST(answer_of(other).value == 0U);
    cancel.a = 9;
    Asked found = ask(pair, cancel, 0, {}, 7);
    for (int i = 0; i < 2; ++i) BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(answer_of(found).value == 1U);
    BOOST_TEST(outcome_of(wait) == Outcome::canceled);
  });
}

BOOST_AUTO_TEST_CASE(test_closed_region_ends_parked_calls) {
  on_paths(kReached, [](Pair& pair) {
    (void)sync::create(pair.memory, sync::Kind::event, 0, 0, 0);
    Asked wait = ask(pair, request_of(sync::Op::wait, wire::kCallPark), 0, {}, 5);
    pair.until([&] { return pair.b->nic().table().parked().load() == 1; }, "the call");
    std::string why;
    BOOST_TEST(pair.region->close(&why));
    BOOST_TEST((pair.wait().error != 0));
  });
}

BOOST_AUTO_TEST_CASE(test_objects_are_in_memory_of_segments_only) {
  constexpr Path kForeign[] = {Path::cma, Path::ring};
  on_paths(kForeign, [](Pair& pair) {
    (void)sync::create(pair.memory, sync::Kind::lock, 0, 0, 0);
    const Asked asked = ask(pair, request_of(sync::Op::take));
    BOOST_TEST(pair.wait().status == Status::misaligned);
  });
}

BOOST_AUTO_TEST_CASE(test_wrong_calls_are_refused) {
  on_paths(kReached, [](Pair& pair) {
    const auto status_of = [&](const CallRequest& request, uint64_t addr = 0, std::span<const std::byte> data = {}) {
      const Asked asked = ask(pair, request, addr, data);
      BOOST_TEST_REQUIRE(asked.posted.refusal == Refusal::none);
      const Completion c = pair.wait();
      return std::pair{c.status, c.error == 0 ? outcome_of(asked) : Outcome::done};
    };
    // No object there, or none that fits; beyond the region; not aligned.
    BOOST_TEST((status_of(request_of(sync::Op::take), 2048).second == Outcome::damaged));
    (void)sync::create(pair.memory, sync::Kind::lock, 0, 0, 0);
    BOOST_TEST(status_of(request_of(sync::Op::take), 1 << 16).first == Status::bounds);
    BOOST_TEST(status_of(request_of(sync::Op::take), 8).first == Status::misaligned);
    // Operations that peers do not have; that the object does not have.
    for (const auto op :
         {sync::Op::gone, sync::Op::close, static_cast<sync::Op>(0), static_cast<sync::Op>(999), sync::Op::put}) {
      BOOST_TEST((status_of(request_of(op)).second == Outcome::damaged));
    }
    // In the name of another process.
    CallRequest mapped = request_of(sync::Op::take, wire::kCallMapped);
    mapped.pid = 1;
    BOOST_TEST(status_of(mapped).first == Status::invalid);
    // Flags and lengths outside their range.
    CallRequest flags = request_of(sync::Op::take);
    flags.flags = 0x80;
    BOOST_TEST(status_of(flags).first == Status::protocol);
    std::vector<std::byte> request(sizeof(CallRequest)), answer(sizeof(CallRequest));
    CallRequest longer = request_of(sync::Op::take);
    longer.in_bytes = 1000;
    std::memcpy(request.data(), &longer, sizeof(longer));
    (void)pair.a->ep->post_call({pair.dest, 0, pair.key(), request, answer.data(), 1});
    BOOST_TEST(pair.wait().status == Status::protocol);
    const std::vector<std::byte> shorter(20);
    (void)pair.a->ep->post_call({pair.dest, 0, pair.key(), shorter, answer.data(), 1});
    BOOST_TEST(pair.wait().status == Status::protocol);
    // A region that the peer may only read.
    std::byte* const memory = pair.allocate(4096);
    (void)sync::create(memory, sync::Kind::lock, 0, 0, 0);
    const auto region = pair.b->reg(memory, 4096, 43, mem::kRemoteRead);
    CallRequest take = request_of(sync::Op::take);
    std::memcpy(request.data(), &take, sizeof(take));
    (void)pair.a->ep->post_call({pair.dest, 0, 43, request, answer.data(), 1});
    BOOST_TEST(pair.wait().status == Status::access);
  });
}

BOOST_AUTO_TEST_CASE(test_a_peer_has_a_limited_number_of_parked_calls) {
  constexpr Path kStrict[] = {Path::strict};
  on_paths(kStrict, [](Pair& pair) {
    (void)sync::create(pair.memory, sync::Kind::event, 0, 0, 0);
    std::vector<Asked> calls;
    calls.reserve(nic::Parking::kParkedPerPeerMax + 1);
    for (size_t i = 0; i < nic::Parking::kParkedPerPeerMax; ++i) {
      calls.push_back(ask(pair, request_of(sync::Op::wait, wire::kCallPark, i), 0, {}, i));
    }
    calls.push_back(ask(pair, request_of(sync::Op::wait, wire::kCallPark), 0, {}, 4711));
    BOOST_TEST(pair.wait().entry.context == 4711U);
    BOOST_TEST(outcome_of(calls.back()) == Outcome::again);
    const Asked set = ask(pair, request_of(sync::Op::set), 0, {}, 4712);
    for (size_t i = 0; i < nic::Parking::kParkedPerPeerMax + 1; ++i) BOOST_TEST(pair.wait().error == 0);
    for (size_t i = 0; i < nic::Parking::kParkedPerPeerMax; ++i) BOOST_TEST(outcome_of(calls[i]) == Outcome::done);
  });
}

BOOST_AUTO_TEST_CASE(test_call_that_is_given_up_while_another_changes_the_object_is_done_then) {
  constexpr Path kStrict[] = {Path::strict};
  on_paths(kStrict, [](Pair& pair) {
    const sync::Object object = sync::create(pair.memory, sync::Kind::semaphore, 0, 8, 0);
    object.head->word.store(sync::holder_word({static_cast<uint32_t>(::getpid()), 0}, false));  // the guard is held
    const Asked release = ask(pair, [] {
      CallRequest r = request_of(sync::Op::release, 0, 5);
      r.a = 1;
      return r;
    }());
    BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(outcome_of(release) == Outcome::again);
    CallRequest give_up = request_of(sync::Op::release, wire::kCallCancel | wire::kCallGivenUp);
    give_up.a = 5;
    const Asked given_up = ask(pair, give_up);
    BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(answer_of(given_up).value == 1U);
    BOOST_TEST(pair.b->nic().table().parked().load() == 1U);
    object.head->word.store(0);
    BOOST_TEST(poll_until([&] { return pair.b->nic().table().parked().load() == 0; }, [&] { pair.b->progress(); }));
    const Asked take = ask(pair, request_of(sync::Op::take));
    BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(outcome_of(take) == Outcome::done);
  });
}

// The owner's process is stopped: it does nothing between the two frames.
BOOST_AUTO_TEST_CASE(test_put_is_not_done_if_the_frame_that_gives_it_up_has_come) {
  for (const Path path : {Path::strict, Path::tcp}) {
    for (const uint16_t flags : {uint16_t{0}, wire::kCallPark}) {
      Pair pair(pair_of(path, true));
      std::memset(pair.memory, 0, 4096);
      (void)sync::create(pair.memory, sync::Kind::queue, 4, 64, 0);
      const auto text = pattern(10);
      const Asked first = ask(pair, request_of(sync::Op::put, flags, 4), 0, text, 4);  // which connects
      BOOST_TEST(pair.wait().error == 0);
      BOOST_TEST(outcome_of(first) == Outcome::done);
      const Asked put = ask(pair, request_of(sync::Op::put, flags, 5), 0, text, 5);
      CallRequest give_up = request_of(sync::Op::put, wire::kCallCancel | wire::kCallGivenUp);
      give_up.a = 5;
      const Asked given_up = ask(pair, give_up, 0, {}, 6);
      for (int i = 0; i < 2; ++i) BOOST_TEST(pair.wait().error == 0);
      BOOST_TEST(outcome_of(put) == Outcome::canceled);
      BOOST_TEST(answer_of(given_up).value == 1U);
      const Asked look = ask(pair, request_of(sync::Op::look), 0, {}, 7);
      BOOST_TEST(pair.wait().error == 0);
      BOOST_TEST(answer_of(look).value == 1U);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_put_that_is_given_up_after_its_answer_is_taken_back) {
  on_paths(kReached, [](Pair& pair) {
    (void)sync::create(pair.memory, sync::Kind::queue, 4, 64, 0);
    const auto text = pattern(10);
    for (uint64_t id = 5; id < 7; ++id) {
      const Asked put = ask(pair, request_of(sync::Op::put, 0, id), 0, text);
      BOOST_TEST(pair.wait().error == 0);
      BOOST_TEST(outcome_of(put) == Outcome::done);
    }
    CallRequest give_up = request_of(sync::Op::put, wire::kCallCancel | wire::kCallGivenUp);
    give_up.a = 5;
    const Asked given_up = ask(pair, give_up);
    BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(answer_of(given_up).value == 1U);
    const Asked look = ask(pair, request_of(sync::Op::look));
    BOOST_TEST(pair.wait().error == 0);
    BOOST_TEST(answer_of(look).value == 1U);
  });
}

// Without kCallPark the call does not wait for room.
BOOST_AUTO_TEST_CASE(test_put_into_a_full_queue_is_answered_again) {
  on_paths(kReached, [](Pair& pair) {
    (void)sync::create(pair.memory, sync::Kind::queue, 1, 64, 0);
    for (const Outcome expected : {Outcome::done, Outcome::again}) {
      const Asked put = ask(pair, request_of(sync::Op::put), 0, pattern(10));
      BOOST_TEST(pair.wait().error == 0);
      BOOST_TEST(outcome_of(put) == expected);
      BOOST_TEST(pair.b->nic().table().parked().load() == 0U);
    }
  });
}

BOOST_AUTO_TEST_CASE(test_a_peer_gives_up_a_limited_number_of_calls_that_must_wait) {
  constexpr Path kStrict[] = {Path::strict};
  on_paths(kStrict, [](Pair& pair) {
    (void)sync::create(pair.memory, sync::Kind::queue, 2, 64, 0);
    const auto text = pattern(10);
    const auto done = [&](const Asked& asked) {
      BOOST_TEST(pair.wait().error == 0);
      return answer_of(asked);
    };
    for (int i = 0; i < 2; ++i) (void)done(ask(pair, request_of(sync::Op::put), 0, text));
    (void)done(ask(pair, request_of(sync::Op::get), 0, {}, 1, 64));
    (void)done(ask(pair, request_of(sync::Op::put), 0, text));  // full, and a record was got: one can be put back
    uint64_t kept = 0;
    for (uint64_t id = 1; id <= nic::Parking::kAlonePerPeer + 50; ++id) {
      const Asked put = ask(pair, request_of(sync::Op::put_back, 0, id), 0, text);
      BOOST_TEST(static_cast<Outcome>(done(put).outcome) == Outcome::again);
      CallRequest give_up = request_of(sync::Op::put_back, wire::kCallCancel | wire::kCallGivenUp);
      give_up.a = id;
      const Asked given_up = ask(pair, give_up);
      kept += done(given_up).value;
    }
    BOOST_TEST(kept == nic::Parking::kAlonePerPeer);
    BOOST_TEST(pair.b->nic().table().parked().load() == nic::Parking::kAlonePerPeer);
    const Asked got = ask(pair, request_of(sync::Op::get), 0, {}, 1, 64);  // room for one of the records
    BOOST_TEST(static_cast<Outcome>(done(got).outcome) == Outcome::done);
    BOOST_TEST(poll_until([&] { return pair.b->nic().table().parked().load() == nic::Parking::kAlonePerPeer - 1; },
                          [&] { pair.b->progress(); }));
  });
}

#if !defined(WEFT_TEST_NO_FORK)
BOOST_AUTO_TEST_CASE(test_lost_peer_gives_back_what_was_taken_for_it) {
  for (const Path path : {Path::strict, Path::tcp}) {
    // Forked before the parent has a NIC.
    Child child([path](int fd) {
      const auto address = hear<wire::EpAddress>(fd);
      const auto route = hear<wire::HostAddress>(fd);
      SideConfig config = pair_of(path).a;
      config.host.shm.strict = path == Path::strict;
      config.host.shm_link = path != Path::tcp;
      config.listen = path == Path::tcp;
      Side side(config);
      wire::EpAddress to = *address;
      if (path == Path::tcp) to.nic = routes()->number({*route, address->nic});
      const uint64_t dest = side.av->insert(to);
      CallRequest take = request_of(sync::Op::take);
      std::byte answer[sizeof(CallRequest)];
      (void)side.ep->post_call({dest, 0, 42, std::as_bytes(std::span(&take, 1)), answer, 1});
      std::optional<Completion> c;
      (void)poll_until([&] { return (c = try_completion(side)).has_value(); }, [&] { side.progress(); });
      tell(fd, c->error);
      ::pause();
    });
    SideConfig config = pair_of(path).b;
    config.host.shm.strict = path == Path::strict;
    config.host.shm_link = path != Path::tcp;
    config.listen = path == Path::tcp;
    Side owner(config);
    std::byte* const memory = owner.alloc(4096);
    std::memset(memory, 0, 4096);
    const sync::Object object = sync::create(memory, sync::Kind::lock, 0, 0, 0);
    const auto region = owner.reg(memory, 4096, 42);
    tell(child.fd(), owner.ep->address());
    tell(child.fd(), owner.host->tcp().listening().value_or(wire::HostAddress{}));
    const auto error = hear<int>(child.fd());
    BOOST_TEST_REQUIRE(error.has_value());
    BOOST_TEST(*error == 0);
    BOOST_TEST(sync::is_held(object.head->word.load()));
    child.kill(SIGKILL);
    child.wait();
    BOOST_TEST(poll_until([&] { return (object.head->word.load() & sync::kMarked) != 0; }, [&] { owner.progress(); }));
  }
}
#endif

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
