// tests/cpp/test_nic_connection.cpp: what calls and messages make of a connected endpoint's state.
#include "every_path.hpp"

using namespace weft;
using namespace weft::test;
using nic::CmKind;
using nic::CmNews;
using nic::CmState;

namespace {

struct Unread final : nic::Notifier {
  void notify() noexcept override {}
};

PairConfig config() {
  PairConfig c = pair_of(Path::direct, true);
  c.a.ep.connected = true;
  return c;
}

struct Connecting {
  Pair pair{config()};
  nic::Connection& connection = pair.a->ep->connection();
  const wire::EpAddress peer = pair.b->ep->address(), stranger{77, 7, 1, 0};

  CmNews take(CmKind kind, uint64_t number, const wire::EpAddress& source, CmKind what = {}) {
    nic::CmEvent message;
    message.kind = kind;
    message.what = what;
    message.source = source;
    message.connection = number;
    return connection.take(message);
  }
  void connect(uint64_t number) { BOOST_REQUIRE(connection.connect(peer, number, {}).refusal == Refusal::none); }
  void accept(uint64_t number) { BOOST_REQUIRE(connection.accept(peer, number, {}).refusal == Refusal::none); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(nic_connection)

BOOST_AUTO_TEST_CASE(answers_to_an_earlier_request_change_nothing) {
  Connecting c;
  c.connect(7);
  BOOST_CHECK(c.take(CmKind::reject, 6, c.peer) == CmNews::none);
  BOOST_CHECK(c.take(CmKind::accept, 6, c.peer) == CmNews::none);
  BOOST_CHECK(c.take(CmKind::failed, 6, c.peer, CmKind::request) == CmNews::none);
  BOOST_CHECK(c.connection.state() == CmState::connecting);
  BOOST_CHECK(c.take(CmKind::reject, 7, c.peer) == CmNews::rejected);
  c.connect(8);  // a rejected endpoint may try again
  BOOST_CHECK(c.take(CmKind::failed, 8, c.peer, CmKind::request) == CmNews::failed);
  BOOST_CHECK(c.connection.state() == CmState::idle);
}

BOOST_AUTO_TEST_CASE(only_the_peer_ends_a_connection) {
  Connecting c;
  c.connect(7);
  BOOST_CHECK(c.take(CmKind::shutdown, 7, c.peer) == CmNews::none);  // before there is one
  BOOST_CHECK(c.take(CmKind::accept, 7, c.peer) == CmNews::connected);
  BOOST_REQUIRE(c.connection.peer().has_value());
  BOOST_CHECK(*c.connection.peer() == c.peer);
  BOOST_CHECK(c.take(CmKind::reject, 7, c.peer) == CmNews::none);
  BOOST_CHECK(c.take(CmKind::accept, 7, c.stranger) == CmNews::none);
  BOOST_CHECK(c.take(CmKind::shutdown, 7, c.stranger) == CmNews::none);
  BOOST_CHECK(c.connection.state() == CmState::connected);
  BOOST_CHECK(c.take(CmKind::shutdown, 7, c.peer) == CmNews::ended);
  BOOST_CHECK(!c.connection.peer().has_value());
  BOOST_CHECK(c.take(CmKind::shutdown, 7, c.peer) == CmNews::none);  // told once
}

BOOST_AUTO_TEST_CASE(endpoint_that_accepts_is_connected_once_the_answer_has_arrived) {
  Connecting c;
  c.accept(9);
  BOOST_CHECK(c.take(CmKind::delivered, 9, c.peer, CmKind::request) == CmNews::none);
  BOOST_CHECK(c.connection.state() == CmState::accepting);
  BOOST_CHECK(c.take(CmKind::delivered, 9, c.peer, CmKind::accept) == CmNews::connected);
  BOOST_CHECK(c.take(CmKind::lost, 0, c.peer) == CmNews::ended);
  BOOST_CHECK(c.connection.state() == CmState::shut_down);
}

BOOST_AUTO_TEST_CASE(answer_that_cannot_be_delivered_ends_the_endpoint) {
  Connecting c;
  c.accept(9);
  BOOST_CHECK(c.take(CmKind::failed, 9, c.peer, CmKind::accept) == CmNews::failed);
  BOOST_CHECK(c.connection.state() == CmState::shut_down);
  BOOST_CHECK(!c.connection.peer().has_value());
}

BOOST_AUTO_TEST_CASE(caller_hears_of_a_process_that_ends_before_its_answer) {
  Connecting c;
  const auto heard = std::make_shared<nic::CmQueue>(std::make_shared<Unread>());
  const auto told = std::make_shared<nic::CmQueue>(std::make_shared<Unread>());
  c.pair.b->ep->cm().bind(heard, 1, true);
  c.pair.a->ep->cm().bind(told, 2, false);
  std::optional<nic::CmEvent> event;
  c.connect(7);
  c.pair.until([&] { return (event = told->pop()).has_value(); }, "the arrival of the request");
  BOOST_CHECK(c.connection.take(*event) == CmNews::none);
  c.pair.b.reset();
  BOOST_REQUIRE(poll_until([&] { return (event = told->pop()).has_value(); }, [&] { c.pair.a->progress(); }));
  BOOST_CHECK(event->kind == CmKind::lost);
  BOOST_CHECK(!event->data.empty());
  BOOST_CHECK(c.take(CmKind::lost, 6, {}) == CmNews::none);  // of an earlier request
  BOOST_CHECK(c.connection.take(*event) == CmNews::failed);
  BOOST_CHECK(c.connection.state() == CmState::idle);
}

BOOST_AUTO_TEST_CASE(listener_that_closes_rejects_what_waits_and_refuses_what_comes) {
  Connecting c;
  const auto heard = std::make_shared<nic::CmQueue>(std::make_shared<Unread>());
  const auto told = std::make_shared<nic::CmQueue>(std::make_shared<Unread>());
  c.pair.b->ep->cm().bind(heard, 1, true);
  c.pair.a->ep->cm().bind(told, 2, false);
  const auto next = [&] {
    std::optional<nic::CmEvent> event;
    c.pair.until([&] { return (event = told->pop()).has_value(); }, "news of a request");
    return event->kind;
  };
  c.connect(1);
  BOOST_CHECK(next() == CmKind::delivered);
  BOOST_TEST(heard->unread() == 1U);
  c.pair.b->ep->cm().refuse_waiting();
  BOOST_CHECK(next() == CmKind::reject);
  BOOST_REQUIRE(c.pair.a->ep->cm().send(c.peer, CmKind::request, 2, {}).refusal == Refusal::none);
  BOOST_CHECK(next() == CmKind::failed);
}

BOOST_AUTO_TEST_SUITE_END()
