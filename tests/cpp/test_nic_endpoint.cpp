// tests/cpp/test_nic_endpoint.cpp: addresses, queues, and the life of an endpoint, on every path.
#include <algorithm>
#include <numeric>
#include <thread>

#include "every_path.hpp"

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(nic_endpoint)

BOOST_AUTO_TEST_CASE(test_endpoint_reaches_a_peer_removed_and_inserted_again) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    auto second = pair.a->extra_endpoint(config.a);
    const uint64_t word = 3;
    for (int round = 0; round < 3; ++round) {
      for (nic::Endpoint* ep : {pair.a->ep.get(), second.get()}) {
        BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, pair.key()), ep).error == 0);
      }
      BOOST_TEST(pair.a->av->remove(pair.dest));
      for (nic::Endpoint* ep : {pair.a->ep.get(), second.get()}) {
        BOOST_TEST(post(*ep, write_of(pair.dest, &word, 8, 0, pair.key())).refusal == Refusal::bad_address);
      }
      BOOST_TEST(pair.a->insert(*pair.b) == pair.dest);
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_region_for_one_endpoint_stays_closed_to_its_neighbour) {
  Pair pair(pair_of(Path::direct));
  auto second = pair.a->extra_endpoint();
  mem::AccessGuard guard;
  guard.has_source = 1;
  guard.source = pair.a->ep->address();
  nic::RegionExtra extra;
  extra.guard = &guard;
  std::byte* const memory = pair.b->alloc(64);
  const iovec v{memory, 64};
  pair.b->regions.push_back(pair.b->domain->register_region(std::span(&v, 1), mem::kRemoteRead | mem::kRemoteWrite, 77,
                                                            false, true, 0, extra));
  const uint64_t word = 9;
  for (int round = 0; round < 2; ++round) {
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, 77)).error == 0);
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, 77), second.get()).status == Status::unauthorized);
  }
}

BOOST_AUTO_TEST_CASE(test_region_serves_the_endpoints_that_it_is_bound_to) {
  Pair pair(pair_of(Path::direct));
  const auto second = pair.b->extra_endpoint(), third = pair.b->extra_endpoint();
  const auto region = pair.b->reg(pair.b->alloc(64), 64, 77, mem::kRemoteRead | mem::kRemoteWrite, false);
  const auto late = pair.b->make_endpoint({});
  BOOST_CHECK_THROW(region->bind_endpoint(*late), Error);
  region->bind_endpoint(*pair.b->ep);
  region->bind_endpoint(*second);
  region->enable(std::nullopt);
  const uint64_t word = 9;
  const auto write_to = [&](const nic::Endpoint& ep) {
    return pair.run(write_of(pair.a->av->insert(ep.address()), &word, 8, 0, 77)).status;
  };
  BOOST_TEST(write_to(*pair.b->ep) == Status::ok);
  BOOST_TEST(write_to(*second) == Status::ok);
  BOOST_TEST(write_to(*third) == Status::wrong_endpoint);
  late->close();
}

BOOST_AUTO_TEST_CASE(test_selective_completion_reports_only_requested_entries) {
  on_every_path([](PairConfig config) {
    config.a.cq_flags = flag::kSend | flag::kRecv | flag::kSelectiveCompletion;
    Pair pair(config);
    const uint64_t word = 5;
    for (uint64_t i = 0; i < 10; ++i) {
      Access w = write_of(pair.dest, &word, 8, 0, pair.key(), i);
      if (i == 7) w.flags = flag::kCompletion;
      BOOST_TEST(post(*pair.a->ep, w).refusal == Refusal::none);
    }
    BOOST_TEST(pair.wait().entry.context == 7U);
    expect_idle(pair);
    BOOST_TEST(pair.a->unread() == 0U);
    const auto bad = pair.run(write_of(pair.dest, &word, 8, 0, pair.key() + 1, 11));
    BOOST_TEST(bad.status == Status::no_key);
    // The NIC returns the contexts of operations without a completion.
    auto released = pair.a->domain->take_released();
    for (const uint64_t context : released) BOOST_TEST(context < 10U);
    BOOST_TEST(released.size() == (uses_frames(config.path) ? 8U : released.size()));  // 0 is no context
  });
}

BOOST_AUTO_TEST_CASE(test_full_completion_queue_refuses_until_it_is_read) {
  on_every_path([](PairConfig config) {
    config.a.cq_capacity = 4;
    Pair pair(config);
    const uint64_t word = 5;
    for (int round = 0; round < 3; ++round) {
      uint64_t posted = 0;
      while (post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key(), posted)).refusal == Refusal::none) ++posted;
      BOOST_TEST(posted == 4U);
      BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key())).refusal == Refusal::cq_full);
      nic::BatchDesc desc{0, 8, pair.dest, 0, pair.key(), 0, 0};
      BOOST_TEST(pair.a->ep
                     ->post_batch(OpKind::write, const_cast<std::byte*>(reinterpret_cast<const std::byte*>(&word)), 8,
                                  {&desc, 1}, 0, 3)
                     .refusal == Refusal::cq_full);
      for (int i = 0; i < 4; ++i) BOOST_TEST(pair.wait().error == 0);
    }
    expect_idle(pair);
  });
}

BOOST_AUTO_TEST_CASE(test_full_transmit_queue_refuses_until_something_is_done) {
  for (const Path path : {Path::ring, Path::strict, Path::tcp}) {
    BOOST_TEST_CONTEXT("path " << path) {
      PairConfig config = pair_of(path, true);
      config.a.ep.tx_size = 8;
      Pair pair(config);
      const uint64_t word = 5;
      for (int i = 0; i < 8; ++i) {
        BOOST_TEST_REQUIRE(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key())).refusal == Refusal::none);
      }
      BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key())).refusal == Refusal::tx_full);
      for (int i = 0; i < 8; ++i) BOOST_TEST(pair.wait().error == 0);
      BOOST_TEST(pair.write(&word, 8, 0).error == 0);
      expect_idle(pair);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_vectored_call_is_one_operation_of_the_transmit_queue) {
  PairConfig config = pair_of(Path::strict, true);
  config.a.ep.tx_size = 8;
  Pair pair(config);
  std::array<uint64_t, 20> words{};
  std::vector<nic::BatchDesc> descs;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = i + 1;
    descs.push_back({8 * i, 8, pair.dest, 8 * i, pair.key(), 0, 0});
  }
  auto* local = reinterpret_cast<std::byte*>(words.data());
  const auto batch = [&] { return pair.a->ep->post_batch(OpKind::write, local, sizeof(words), descs, 0, 3).refusal; };
  BOOST_TEST(batch() == Refusal::none);
  BOOST_TEST(pair.a->ep->outstanding() == 1U);
  for (int i = 0; i < 7; ++i) {
    BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, words.data(), 8, 0, pair.key())).refusal == Refusal::none);
  }
  BOOST_TEST(batch() == Refusal::tx_full);
  for (int i = 0; i < 8; ++i) BOOST_TEST(pair.wait().error == 0);
  for (const auto& d : descs) BOOST_TEST(d.status == 0);
  BOOST_TEST(std::memcmp(pair.memory, words.data(), sizeof(words)) == 0);
  expect_idle(pair);
}

BOOST_AUTO_TEST_CASE(test_region_closed_by_two_threads_is_closed_once) {
  Side side;
  std::byte memory[64] = {};
  for (int round = 0; round < 500; ++round) {
    const auto region = side.reg(memory, sizeof(memory), 7);
    std::atomic<int> ready{0}, closed{0};
    const auto close = [&] {  // no assertion here: the test framework supports one thread only
      ready.fetch_add(1);
      while (ready.load() != 2) sched_yield();
      std::string why;
      if (region->close(&why) && region->closed()) closed.fetch_add(1);
    };
    {
      const std::jthread other(close);
      close();
    }
    side.regions.clear();
    BOOST_REQUIRE(closed.load() == 2);
    BOOST_REQUIRE(side.nic().statistics().regions == 0U);
  }
  // A slot that was freed twice would be allocated twice.
  const auto a = side.reg(memory, 8, 1), b = side.reg(memory, 8, 2);
  std::string why;
  BOOST_TEST(a->close(&why));
  BOOST_TEST(side.nic().statistics().regions == 1U);
  BOOST_TEST(side.nic().table().find_client_key(0, 2) != mem::TableView::kNoSlot);
}

BOOST_AUTO_TEST_CASE(test_closed_endpoint_is_an_error_and_its_successor_is_found) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    const uint64_t nobody = pair.a->av->insert({7, 123456, 0, 0});
    const uint64_t word = 5;
    BOOST_TEST(pair.run(write_of(nobody, &word, 8, 0, pair.key())).status == Status::no_endpoint);
    BOOST_TEST(pair.write(&word, 8, 0).error == 0);
    const auto address = pair.b->ep->address();
    pair.b->ep->close();
    BOOST_TEST(pair.write(&word, 8, 0).status == Status::no_endpoint);
    BOOST_TEST(pair.write(&word, 8, 0).status == Status::no_endpoint);
    SideConfig again;
    again.pid = address.pid;
    (void)pair.b->extra_endpoint(again);
    const auto done = pair.write(&word, 8, 0);
    BOOST_TEST(done.error == 0, done.text);
    expect_idle(pair);
  });
}

/// Endpoints of different VNIs do not reach each other, on any path and in any call.
BOOST_AUTO_TEST_CASE(test_endpoint_of_another_vni_is_an_error_without_effect) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    uint64_t word = 5;
    BOOST_TEST(pair.write(&word, 8, 0).error == 0);
    auto address = pair.b->ep->address();
    address.vni = static_cast<uint16_t>(address.vni + 1);
    const uint64_t stranger = pair.a->av->insert(address);
    word = 6;
    for (int i = 0; i < 3; ++i) {
      BOOST_TEST(pair.run(write_of(stranger, &word, 8, 0, pair.key())).status == Status::unauthorized);
    }
    BOOST_TEST(pair.read(&word, 8, 0).error == 0);
    BOOST_TEST(word == 5U);
    expect_idle(pair);
  });
}

/// No link reaches an unknown address if the shm link is off: the result is an error, not an endless wait.
BOOST_AUTO_TEST_CASE(test_address_that_no_link_reaches_is_an_error) {
  SideConfig config;
  config.host.shm_link = false;
  Side side(config);
  const uint64_t nobody = side.av->insert({7, 123456, 0, 0});
  const uint64_t word = 5;
  BOOST_TEST(post(*side.ep, write_of(nobody, &word, 8, 0, 1)).refusal == Refusal::none);
  std::optional<Completion> c;
  BOOST_TEST(poll_until([&] { return (c = try_completion(side)).has_value(); }, [&] { side.progress(); }));
  BOOST_TEST((c && c->status == Status::no_endpoint));
  BOOST_TEST(side.nic().statistics().waiting_ops == 0U);
}

BOOST_AUTO_TEST_CASE(test_cancel_ends_what_waits_and_nothing_else) {
  PairConfig config = pair_of(Path::strict, true);
  Pair pair(config);
  const uint64_t word = 5;
  for (uint64_t i = 1; i <= 3; ++i)
    BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, &word, 8, 0, pair.key(), i)).refusal == Refusal::none);
  BOOST_TEST(pair.a->ep->cancel(2) == 1U);  // the search for the peer is under way
  BOOST_TEST(pair.a->ep->cancel(2) == 0U);
  std::vector<std::pair<uint64_t, Status>> seen;
  for (int i = 0; i < 3; ++i) {
    const auto c = pair.wait();
    seen.emplace_back(c.entry.context, c.status);
  }
  std::sort(seen.begin(), seen.end());
  BOOST_TEST(
      (seen == std::vector<std::pair<uint64_t, Status>>{{1, Status::ok}, {2, Status::canceled}, {3, Status::ok}}));
  BOOST_TEST(pair.a->ep->cancel(1) == 0U);
  expect_idle(pair);
}

BOOST_AUTO_TEST_CASE(test_closing_an_endpoint_cancels_what_is_under_way) {
  for (const Path path : kPaths) {
    BOOST_TEST_CONTEXT("path " << path) {
      Pair pair(pair_of(path, true));
      auto data = pattern(60'000);
      size_t posted = 0;
      for (uint64_t i = 0; i < 10; ++i) {
        posted += post(*pair.a->ep, write_of(pair.dest, data.data(), i % 2 == 0 ? 8 : 60'000, 0, pair.key(), i + 1))
                      .refusal == Refusal::none;
      }
      std::vector<nic::BatchDesc> descs;
      for (uint64_t i = 0; i < 10; ++i) descs.push_back({i * 64, 64, pair.dest, i * 64, pair.key(), 77, 0});
      BOOST_TEST(pair.a->ep->post_batch(OpKind::write, data.data(), data.size(), descs, 0, 21).refusal ==
                 Refusal::none);
      ++posted;
      pair.a->ep->close();
      size_t canceled = 0, ok = 0;
      while (const auto c = try_completion(*pair.a)) (c->error == 0 ? ok : canceled) += 1;
      BOOST_TEST(ok + canceled == posted);
      BOOST_TEST(post(*pair.a->ep, write_of(pair.dest, data.data(), 8, 0, pair.key())).refusal == Refusal::closed);
      for (int i = 0; i < 200; ++i) pair.poll();  // late answers find no operation
      BOOST_TEST(pair.a->unread() == 0U);
      expect_idle(pair);
    }
  }
}

/// Operation numbers are not used again by the next domain: a late answer to an operation of a closed domain, or the
/// memory of its failed check, must not end or fail an operation of the new domain.
BOOST_AUTO_TEST_CASE(test_answers_to_a_closed_domain_do_not_reach_the_next_one) {
  Pair pair(pair_of(Path::strict, true));
  const uint64_t word = 5;
  for (int round = 0; round < 3; ++round) {
    SideConfig config;
    config.shared = pair.a->host;
    Side first(config);
    const uint64_t dest = first.insert(*pair.b);
    Access bad{
        OpKind::write, dest, {{const_cast<uint64_t*>(&word), 8}}, {{0, 4, pair.key()}, {0, 4, pair.key() + 1}}, 0, 1, 0,
        false};
    BOOST_TEST(post(*first.ep, bad).refusal == Refusal::none);
    std::optional<Completion> c;
    pair.until([&] { return (c = try_completion(first)).has_value(); }, "the failed check");
    BOOST_TEST(c->status == Status::no_key);
    BOOST_TEST(post(*first.ep, write_of(dest, &word, 8, 0, pair.key())).refusal ==
               Refusal::none);  // answered after the close
  }
  SideConfig config;
  config.shared = pair.a->host;
  Side next(config);
  const uint64_t dest = next.insert(*pair.b);
  for (uint64_t i = 0; i < 4; ++i) {
    BOOST_TEST(post(*next.ep, write_of(dest, &word, 8, 0, i % 2 == 0 ? pair.key() : pair.key() + 1, i)).refusal ==
               Refusal::none);
  }
  for (uint64_t i = 0; i < 4; ++i) {
    std::optional<Completion> c;
    pair.until([&] { return (c = try_completion(next)).has_value(); }, "completions");
    BOOST_TEST(c->status == (c->entry.context % 2 == 0 ? Status::ok : Status::no_key),
               "operation " << c->entry.context << ": " << c->text);
  }
}

BOOST_AUTO_TEST_CASE(test_virtual_addresses_and_provider_keys_on_every_path) {
  on_every_path([](PairConfig config) {
    config.b.domain.prov_key = config.b.domain.virt_addr = true;
    Pair pair(config);
    const auto base = reinterpret_cast<uint64_t>(pair.memory);
    const uint64_t key = pair.region->key();
    const uint64_t word = 0x0102030405060708;
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, base + 16, key)).error == 0);
    uint64_t back = 0;
    BOOST_TEST(pair.run(read_of(pair.dest, &back, 8, base + 16, key)).error == 0);
    BOOST_TEST(back == word);
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, base - 1, key)).status == Status::bounds);
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, 0, key)).status == Status::bounds);
    std::string why;
    BOOST_TEST(pair.region->close(&why));
    auto again = pair.b->reg(pair.memory, config.bytes, 0);
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, base, key)).status == Status::stale_key);
    BOOST_TEST(pair.run(write_of(pair.dest, &word, 8, base, again->key())).error == 0);
  });
}

/// Memory registered as a bare address range may be missing: the result is an error, not a signal.
BOOST_AUTO_TEST_CASE(test_missing_pages_are_an_error) {
  on_every_path([](PairConfig config) {
    Pair pair(config);
    void* room = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(room != MAP_FAILED);
    const iovec list{room, 8192};
    pair.b->reg_list({&list, 1}, 90, mem::kRemoteRead | mem::kRemoteWrite, true, true);
    const auto data = pattern(4096);
    std::vector<std::byte> back(4096);
    BOOST_TEST(pair.run(write_of(pair.dest, data.data(), 4096, 0, 90)).error == 0);
    BOOST_TEST(pair.run(read_of(pair.dest, back.data(), 4096, 0, 90)).error == 0);
    BOOST_TEST((back == data));
    BOOST_REQUIRE(::munmap(room, 8192) == 0);
    BOOST_TEST(pair.run(write_of(pair.dest, data.data(), 64, 0, 90)).status == Status::fault);
    BOOST_TEST(pair.run(read_of(pair.dest, back.data(), 64, 4096, 90)).status == Status::fault);
    int64_t one = 1;
    const iovec operand{&one, 8};
    const wire::RmaRange range{0, 8, 90};
    BOOST_TEST(pair.a->ep
                   ->post_atomic(atomic_of(pair.dest, AtomicFamily::base, AtomicOp::sum, Datatype::int64, &operand,
                                           nullptr, nullptr, &range))
                   .refusal == Refusal::none);
    BOOST_TEST(pair.wait().status == Status::fault);
    BOOST_TEST(pair.write(data.data(), 64, 0).error == 0);
  });
}

struct Unheard final : nic::Notifier {
  void notify() noexcept override {}
};

BOOST_AUTO_TEST_CASE(test_passive_endpoint_forgets_whom_it_turned_down) {
  for (const Path path : {Path::direct, Path::tcp}) {
    SideConfig config;
    config.host.shm_link = path != Path::tcp;
    config.listen = path == Path::tcp;
    Side listener(config);
    const auto heard = std::make_shared<nic::CmQueue>(std::make_shared<Unheard>());
    listener.ep->cm().bind(heard, 1, true);
    std::optional<nic::CmEvent> event;
    const auto hear = [&](nic::CmKind kind) {
      BOOST_REQUIRE(poll_until([&] { return (event = heard->pop()).has_value(); }, [&] { listener.progress(); }));
      BOOST_TEST(static_cast<int>(event->kind) == static_cast<int>(kind));
    };
    wire::EpAddress address = listener.ep->address();
    if (const auto at = listener.host->tcp().listening()) address.nic = routes()->number({*at, address.nic});
    for (uint64_t number = 1; number <= 4; ++number) {
      auto caller = std::make_unique<Side>(config);
      const auto answers = std::make_shared<nic::CmQueue>(std::make_shared<Unheard>());
      caller->ep->cm().bind(answers, 2, false);
      BOOST_REQUIRE(caller->ep->cm().send(address, nic::CmKind::request, number, {}).refusal == Refusal::none);
      hear(nic::CmKind::request);
      BOOST_TEST(event->connection == number);
      const bool gone = number == 4;  // the caller to reject no longer exists
      if (gone) caller.reset();
      BOOST_REQUIRE(listener.ep->cm().send(event->source, nic::CmKind::reject, number, {}).refusal == Refusal::none);
      hear(gone ? nic::CmKind::failed : nic::CmKind::delivered);
      const nic::DomainLock guard(listener.domain.get());
      BOOST_TEST(listener.av->count() == 0U);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_enable_needs_what_an_endpoint_needs) {
  SideConfig config;
  config.enable = false;
  Side side(config);
  const auto fails = [](int code) { return [code](const Error& e) { return e.fi_code() == code; }; };
  auto bare = side.domain->make_endpoint(config.ep);
  BOOST_CHECK_EXCEPTION(bare->enable(0, {}), Error, fails(fi_err::kENOAV));
  bare->bind_av(side.av);
  BOOST_CHECK_EXCEPTION(bare->enable(0, {}), Error, fails(fi_err::kENOCQ));
  bare->bind_cq(side.cq, flag::kSend);
  const uint64_t word = 0;
  BOOST_TEST(post(*bare, write_of(0, &word, 8, 0, 1)).refusal == Refusal::not_enabled);
  bare->enable(0, {});
  BOOST_CHECK_EXCEPTION(bare->enable(0, {}), Error, fails(fi_err::kEOPBADSTATE));
  BOOST_CHECK_EXCEPTION(bare->bind_cq(side.cq, flag::kSend), Error, fails(fi_err::kEOPBADSTATE));
  bare->close();
  bare->close();
  BOOST_CHECK_EXCEPTION(bare->enable(0, {}), Error, fails(fi_err::kEOPBADSTATE));
}

BOOST_AUTO_TEST_SUITE_END()
