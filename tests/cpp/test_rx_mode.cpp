// tests/cpp/test_rx_mode.cpp: match modes: list entries that two endpoints share, flow control, the change to software.
#include <sys/mman.h>
#include <unistd.h>

#include "mem/ledger.hpp"
#include "rx_support.hpp"

namespace weft::test {

using namespace receiving;
using State = RxMode::State;
using Cause = RxMode::Cause;

namespace {

constexpr uint32_t kKind = 2;

// A ledger whose service has `entries` of one kind.
struct Service {
  explicit Service(int32_t entries) : fd(memfd_create("ledger", MFD_CLOEXEC)) {
    BOOST_REQUIRE(ftruncate(fd, static_cast<off_t>(mem::Ledger::bytes())) == 0);
    ledger.emplace(fd, host::calendar());
    mem::Ledger::Counts totals{};
    totals.fill(1000);
    ledger->begin(7, totals);
    mem::Ledger::Limits limits;
    limits.service = 3;
    limits.most.fill(1000);
    limits.most[kKind] = entries;
    slot = ledger->open({1, 2, 3}, 3);
    ledger->set_limits({&limits, 1});
  }
  ~Service() { ::close(fd); }
  [[nodiscard]] int32_t there() { return ledger->there(3, kKind); }
  int fd;
  std::optional<mem::Ledger> ledger;
  uint32_t slot = 0;
};

RxContext::Config config_for(Service& service, MatchMode mode) {
  RxContext::Config c = config();
  c.mode.mode = mode;
  c.mode.entries = {&*service.ledger, service.slot, kKind};
  c.mode.buffers = 1;
  c.mode.requests = 2;
  c.requests = c.buffers;
  c.requests.bytes = 8192;
  c.requests.posted_min = 2;
  return c;
}

struct Endpoint : Rx {
  Endpoint(Service& service, MatchMode mode) : Endpoint(config_for(service, mode)) {}
  explicit Endpoint(const Config& c) : Rx(c) { BOOST_REQUIRE(open()); }
  RxMode::Statistics mode() { return statistics().mode; }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(rx_mode)

BOOST_AUTO_TEST_CASE(test_receives_messages_and_buffers_take_entries_and_return_them) {
  Service service(10);
  std::byte to[8];
  {
    Endpoint rx(service, MatchMode::hardware);
    BOOST_TEST(service.there() == 9);
    rx.post(receive(1, to, 8));
    rx.post(receive(2, to, 8, 55));
    BOOST_TEST(service.there() == 7);
    SendFlow flow{rx};
    flow.send(9);
    BOOST_TEST(service.there() == 6);
    flow.send(1);  // matches
    BOOST_TEST(service.there() == 7);
    rx.post(receive(9, to, 8));  // takes the message, so it is never listed
    BOOST_TEST(service.there() == 8);
    BOOST_TEST(rx.cancel(55));
    BOOST_TEST(service.there() == 9);
    flow.send(4);
    rx.post(receive(5, to, 8));
    BOOST_TEST(rx.mode().wanted_most == 4U);
    rx.close();
    BOOST_TEST(service.there() == 10);
  }
  BOOST_TEST(service.there() == 10);
}

BOOST_AUTO_TEST_CASE(test_endpoint_without_entries_for_its_buffers_cannot_open) {
  Service service(0);
  Rx rx(config_for(service, MatchMode::hardware));
  BOOST_TEST(!rx.open());
}

BOOST_AUTO_TEST_CASE(test_exhausted_hardware_endpoint_refuses_onloads_and_goes_on_in_order) {
  Service service(3);
  Endpoint rx(service, MatchMode::hardware);
  SendFlow flow{rx};
  BOOST_TEST((flow.send(0).answer == RxAnswer::done));
  BOOST_TEST((flow.send(1).answer == RxAnswer::done));
  BOOST_TEST((flow.send(2).answer == RxAnswer::refused));
  BOOST_TEST((rx.mode().state == State::changing));
  BOOST_TEST(rx.unsettled_calls > 0);
  std::byte to[8];
  BOOST_TEST((rx.post(receive(0, to, 8)) == RxContext::Post::changing));
  BOOST_TEST((rx.peek({0, 0, kAnySource, true}, RxContext::Peek::look, 0, 0) == RxContext::Found::changing));
  BOOST_TEST(rx.readies.empty());
  BOOST_TEST(rx.settle());
  BOOST_TEST(rx.readies.size() == 1U);
  const RxMode::Statistics after = rx.mode();
  BOOST_TEST((after.state == State::hardware));
  BOOST_TEST((after.cause == Cause::no_entry_for_message));
  BOOST_TEST(after.onloaded == 2U);
  BOOST_TEST(after.stops == 1U);
  BOOST_TEST(service.there() == 2);
  flow.send(2);
  flow.send(3);
  for (uint64_t tag = 0; tag < 4; ++tag) {
    BOOST_TEST((rx.post(receive(tag, to, 8)) == RxContext::Post::ok));
    BOOST_TEST(rx.next().tag == tag);
  }
  BOOST_TEST(service.there() == 2);
  BOOST_TEST(rx.mode().wanted_most == 5U);
}

BOOST_AUTO_TEST_CASE(test_entries_of_another_endpoint_make_flow_control_come_again) {
  Service service(4);
  Endpoint other(service, MatchMode::hardware), rx(service, MatchMode::hardware);
  std::byte to[8];
  other.post(receive(1, to, 8, 5));
  other.post(receive(1, to, 8, 6));
  SendFlow flow{rx};
  for (int i = 0; i < 3; ++i) {
    BOOST_TEST((flow.send(1).answer == RxAnswer::refused));
    BOOST_TEST(rx.settle());
  }
  BOOST_TEST(rx.readies.empty());  // nothing was reclaimed: the sender waits for its time
  BOOST_TEST(rx.mode().stops == 3U);
  BOOST_TEST(other.cancel(5));
  BOOST_TEST((flow.send(1).answer == RxAnswer::done));
}

BOOST_AUTO_TEST_CASE(test_receive_without_an_entry_is_refused_when_no_message_can_return_one) {
  Service service(3);
  Endpoint rx(service, MatchMode::hardware);
  std::byte to[8];
  SendFlow flow{rx};
  flow.send(7);
  BOOST_TEST((rx.post(receive(1, to, 8, 1)) == RxContext::Post::ok));
  BOOST_TEST((rx.post(receive(2, to, 8, 2)) == RxContext::Post::ok));  // with the entry of the message
  BOOST_TEST(rx.mode().onloaded == 1U);
  BOOST_TEST((rx.post(receive(3, to, 8, 3)) == RxContext::Post::no_entry));
  BOOST_TEST(rx.mode().no_entries == 1U);
  BOOST_TEST((rx.post(receive(7, to, 8, 4)) == RxContext::Post::ok));  // the message is there
  flow.send(2);
  BOOST_TEST(rx.next().context == 4U);
  BOOST_TEST(rx.next().context == 2U);
  BOOST_TEST((rx.post(receive(3, to, 8, 3)) == RxContext::Post::ok));
}

BOOST_AUTO_TEST_CASE(test_hybrid_endpoint_changes_to_software_and_loses_nothing) {
  Service service(6);
  Endpoint rx(service, MatchMode::hybrid);
  std::byte to[8];
  SendFlow flow{rx};
  rx.post(receive(100, to, 8, 100));
  for (uint64_t tag = 0; tag < 4; ++tag) BOOST_TEST((flow.send(tag).answer == RxAnswer::done));
  BOOST_TEST(service.there() == 0);
  BOOST_TEST((flow.send(4).answer == RxAnswer::refused));
  BOOST_TEST(rx.settle());
  const RxMode::Statistics after = rx.mode();
  BOOST_TEST((after.state == State::software));
  BOOST_TEST(after.changes == 1U);
  BOOST_TEST(after.buffers == 2U);
  BOOST_TEST(service.there() == 4);
  BOOST_TEST(rx.readies.size() == 1U);
  for (uint64_t tag = 4; tag < 400; ++tag) BOOST_TEST((flow.send(tag).answer == RxAnswer::done));
  BOOST_TEST(rx.next().context == 100U);
  for (uint64_t tag = 0; tag < 400; ++tag) {
    if (tag == 100) continue;
    BOOST_TEST((rx.post(receive(tag, to, 8, tag + 1000)) == RxContext::Post::ok));
    BOOST_TEST(rx.next().tag == tag);
  }
  for (uint64_t i = 0; i < 50; ++i) BOOST_TEST((rx.post(receive(1, to, 8, 9000 + i)) == RxContext::Post::ok));
  BOOST_TEST(service.there() == 4);
  BOOST_TEST(!rx.settle());
}

BOOST_AUTO_TEST_CASE(test_hybrid_receive_without_an_entry_is_kept) {
  Service service(2);
  Endpoint rx(service, MatchMode::hybrid);
  std::byte to[8];
  BOOST_TEST((rx.post(receive(1, to, 8, 1)) == RxContext::Post::ok));
  BOOST_TEST((rx.post(receive(2, to, 8, 2)) == RxContext::Post::ok));
  BOOST_TEST((rx.post(receive(3, to, 8, 3)) == RxContext::Post::changing));
  SendFlow flow{rx};
  BOOST_TEST((flow.send(2).answer == RxAnswer::refused));
  BOOST_TEST(rx.settle());
  BOOST_TEST((rx.mode().cause == Cause::no_entry_for_receive));
  flow.send(2);
  BOOST_TEST(rx.next().context == 2U);
}

BOOST_AUTO_TEST_CASE(test_software_endpoint_takes_entries_for_its_buffers_only) {
  Service service(2);
  Endpoint rx(service, MatchMode::software);
  BOOST_TEST(service.there() == 0);
  std::byte to[8];
  SendFlow flow{rx};
  for (uint64_t tag = 0; tag < 100; ++tag) {
    BOOST_TEST((rx.post(receive(tag + 1000, to, 8)) == RxContext::Post::ok));
    BOOST_TEST((flow.send(tag).answer == RxAnswer::done));
  }
  BOOST_TEST(rx.mode().wanted_most == 201U);
}

BOOST_AUTO_TEST_CASE(test_lossless_endpoint_pauses_without_flow_control) {
  Service service(2);
  RxContext::Config c = config_for(service, MatchMode::hardware);
  c.mode.lossless = true;
  Endpoint rx(c);
  std::byte to[8];
  SendFlow flow{rx};
  BOOST_TEST((flow.send(0).answer == RxAnswer::done));
  BOOST_TEST((flow.send(1).answer == RxAnswer::refused));
  BOOST_TEST((rx.mode().state == State::hardware));
  BOOST_TEST(rx.mode().pauses == 1U);
  BOOST_TEST(rx.mode().stops == 0U);
  BOOST_TEST(rx.settle());
  BOOST_TEST((rx.post(receive(0, to, 8)) == RxContext::Post::ok));
  BOOST_TEST(rx.readies.size() == 1U);
  BOOST_TEST((flow.send(1).answer == RxAnswer::done));
}

BOOST_AUTO_TEST_CASE(test_preemptive_options_change_before_entries_run_out) {
  const auto cause_of = [](auto set, auto use) {
    Service service(8);
    RxContext::Config c = config_for(service, MatchMode::hybrid);
    c.mode.size = 3;
    set(c.mode);
    Endpoint rx(c);
    use(rx);
    rx.settle();
    BOOST_TEST(rx.mode().changes == 1U);
    return rx.mode().cause;
  };
  std::byte to[8];
  const auto receives = [&](int n) {
    return [&, n](Endpoint& rx) {
      for (int i = 0; i < n; ++i) BOOST_TEST((rx.post(receive(1, to, 8)) == RxContext::Post::ok));
    };
  };
  const auto one_too_many = [&](Endpoint& rx) {
    receives(3)(rx);
    BOOST_TEST((rx.post(receive(1, to, 8)) == RxContext::Post::changing));
    rx.settle();
    receives(1)(rx);
  };
  const auto messages = [](int n) {
    return [n](Endpoint& rx) {
      SendFlow flow{rx};
      for (int i = 0; i < n; ++i) (void)flow.send(1);
    };
  };
  BOOST_TEST((cause_of([](RxModeConfig& m) { m.by_receives = true; }, one_too_many) == Cause::many_receives));
  BOOST_TEST((cause_of([](RxModeConfig& m) { m.by_messages = true; }, messages(4)) == Cause::many_messages));
  BOOST_TEST((cause_of([](RxModeConfig& m) { m.early_for_receives = true; }, receives(6)) == Cause::few_entries));
  BOOST_TEST((cause_of([](RxModeConfig& m) { m.early_for_messages = true; }, messages(6)) == Cause::few_entries));
}

BOOST_AUTO_TEST_CASE(test_receives_with_more_are_listed_by_the_next_one_without_it_or_when_full) {
  Service service(9);
  RxContext::Config c = config_for(service, MatchMode::hardware);
  c.mode.size = 3;
  Endpoint rx(c);
  std::byte to[8];
  const auto more = [&](uint64_t tag) {
    Receive r = receive(tag, to, 8, tag);
    r.more = true;
    return rx.post(r);
  };
  SendFlow flow{rx};
  flow.send(1);
  BOOST_TEST((more(1) == RxContext::Post::ok));
  BOOST_TEST((more(2) == RxContext::Post::ok));
  BOOST_TEST(rx.mode().receives == 0U);
  BOOST_TEST((rx.post(receive(3, to, 8, 3)) == RxContext::Post::ok));
  BOOST_TEST(rx.next().tag == 1U);  // the message that was there; the other two are listed
  BOOST_TEST(rx.mode().receives == 2U);
  for (uint64_t tag = 4; tag < 7; ++tag) BOOST_TEST((more(tag) == RxContext::Post::ok));
  BOOST_TEST(rx.mode().receives == 5U);  // the queue is full with three
  BOOST_TEST((more(7) == RxContext::Post::ok));
  BOOST_TEST(rx.cancel(7));
  BOOST_TEST(!rx.cancel(7));
  BOOST_TEST((rx.post(receive(8, to, 8, 8)) == RxContext::Post::ok));
  BOOST_TEST(rx.mode().receives == 6U);
  rx.close();
  BOOST_TEST(service.there() == 9);
}

BOOST_AUTO_TEST_CASE(test_credited_messages_are_kept_during_a_change) {
  Service service(3);
  Endpoint rx(service, MatchMode::hybrid);
  std::byte to[8];
  SendFlow flow{rx};
  BOOST_REQUIRE((flow.send(0).answer == RxAnswer::done));  // brings credits
  BOOST_TEST((flow.send(1, 8, kQuick).answer == RxAnswer::none));
  BOOST_TEST((flow.send(2, 8, kQuick).answer == RxAnswer::none));
  BOOST_TEST((rx.mode().state == State::changing));
  BOOST_TEST((flow.send(3, 8, kQuick).answer == RxAnswer::none));
  rx.settle();
  for (uint64_t tag = 0; tag < 4; ++tag) {
    rx.post(receive(tag, to, 8));
    BOOST_TEST(rx.next().tag == tag);
  }
}

BOOST_AUTO_TEST_CASE(test_receive_waits_for_an_entry_and_fails_after_its_time) {
  Service service(3);
  RxContext::Config c = config_for(service, MatchMode::hardware);
  c.append_retry_ns = 1000;
  Endpoint rx(c);
  std::byte to[8];
  for (uint64_t i = 1; i <= 5; ++i) BOOST_TEST((rx.post(receive(i, to, 8, i)) == RxContext::Post::ok));
  BOOST_TEST(rx.statistics().waiting == 3U);
  BOOST_TEST(!rx.settle());
  BOOST_TEST(rx.completions.empty());
  BOOST_TEST(rx.cancel(5));
  BOOST_TEST((rx.next().status == Status::canceled));
  SendFlow flow{rx};
  BOOST_TEST((flow.send(1, 8, rx_flag::kTagged | rx_flag::kUnordered).answer == RxAnswer::done));
  BOOST_TEST(rx.next().context == 1U);
  rx.settle();  // the third receive has the entry
  BOOST_TEST(rx.statistics().waiting == 1U);
  rx.now = 2000;
  rx.settle();
  const RxCompletion failed = rx.next();
  BOOST_TEST(failed.context == 4U);
  BOOST_TEST((failed.status == Status::no_entry));
  BOOST_TEST(failed.ends);
  BOOST_TEST(rx.statistics().waiting == 0U);
  BOOST_TEST(rx.statistics().append_attempts >= 3U);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace weft::test
