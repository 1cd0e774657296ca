// tests/cpp/test_call_ask.cpp: calls that an owner's NIC does (call/ask.hpp), over a line that answers by a script.
#include "call/ask.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <deque>
#include <map>
#include <ostream>
#include <vector>

namespace {

using namespace weft;
using namespace weft::call;
using sync::Op;
using sync::Outcome;

constexpr uint64_t kSecond = 1'000'000'000;

/// A line whose owner answers by a script, on a clock that only waits and pauses move.
struct Script {
  struct Letter {
    uint64_t id = 0;
    bool done = false;
    wire::CallAnswer answer;
    [[nodiscard]] wire::CallAnswer head() const { return answer; }
  };
  struct Sent {
    uint64_t id;
    Question q;
    uint16_t flags;
  };
  // What happens during one wait: answers to letters by number, and how the wait ends.
  struct Step {
    Waited how = Waited::done;
    std::vector<std::pair<uint64_t, wire::CallAnswer>> answers{};
    bool raises = false;
  };

  bool post(Letter& letter, const Question& q, uint16_t flags) {
    if (posts_left-- == 0) return false;
    letter.id = sent.size() + 1;
    sent.push_back({letter.id, q, flags});
    letters[letter.id] = &letter;
    return true;
  }
  Waited wait(const Letter& want, uint64_t deadline, bool ends) {
    waits.emplace_back(deadline, ends);
    if (want.done) return Waited::done;
    BOOST_REQUIRE(!steps.empty());
    const Step step = steps.front();
    steps.pop_front();
    for (const auto& [id, answer] : step.answers) {
      letters[id]->done = true;
      letters[id]->answer = answer;
    }
    if (step.raises) held = true;
    if (step.how == Waited::late) now = std::max(now, deadline);
    return step.how;
  }
  [[nodiscard]] uint64_t now_ns() const { return now; }
  bool pause(uint64_t ns) {
    pauses.push_back(ns);
    now += ns;
    return pauses.size() == pauses_max;
  }
  void hold_error() { held = true; }
  [[nodiscard]] bool holds_error() const { return held; }

  std::deque<Step> steps;
  std::vector<Sent> sent;
  std::map<uint64_t, Letter*> letters;
  std::vector<std::pair<uint64_t, bool>> waits;
  std::vector<uint64_t> pauses;
  uint64_t now = kSecond;
  int posts_left = 100;
  size_t pauses_max = 100;  // then the caller waits no longer
  bool held = false;
};
using End = Asked<Script>::End;

wire::CallAnswer answer(Outcome outcome, uint64_t value = 0, uint64_t state = 0) {
  wire::CallAnswer a;
  a.outcome = static_cast<uint32_t>(outcome);
  a.value = value;
  a.state = state;
  return a;
}
bool is(const wire::CallAnswer& a, Outcome outcome) {
  return a.outcome == static_cast<uint32_t>(outcome);
}

Question question(uint64_t deadline_ns) {
  Question q;
  q.op = static_cast<uint16_t>(Op::take);
  q.deadline_ns = deadline_ns;
  q.patience_ns = kSecond;
  return q;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(call_ask)

BOOST_AUTO_TEST_CASE(test_a_call_that_undoes_another_goes_on_whatever_signals_come) {
  Script line;
  line.held = true;
  line.steps = {{.answers = {{1, answer(Outcome::again)}}, .raises = true},
                {.answers = {{2, answer(Outcome::done, 7)}}}};
  Question q = question(line.now + kSecond);
  q.signals_end = false;
  const auto asked = ask(line, q);
  BOOST_TEST((asked.end == End::answered));
  BOOST_TEST(asked.head.value == 7U);
  BOOST_TEST(line.sent.size() == 2U);
  for (const auto& [deadline, ends] : line.waits) BOOST_TEST(!ends);
}

BOOST_AUTO_TEST_CASE(test_a_call_that_does_not_wait_is_one_request_and_one_answer) {
  Script line;
  line.steps = {{.answers = {{1, answer(Outcome::done, 7)}}}};
  const auto asked = ask(line, question(0));
  BOOST_TEST((asked.end == End::answered));
  BOOST_TEST(is(asked.head, Outcome::done));
  BOOST_TEST(asked.head.value == 7U);
  BOOST_TEST(asked.idle);
  BOOST_TEST(line.sent.size() == 1U);
  BOOST_TEST(line.sent[0].flags == 0U);
  BOOST_TEST(line.waits[0].first == 2 * kSecond);
}

BOOST_AUTO_TEST_CASE(test_a_call_that_waits_is_parked_and_asked_again_after_some_seconds) {
  Script line;
  // No answer within the time of parking: canceled; the owner says that nothing was done; asked again; done.
  line.steps = {{.how = Waited::late},
                {.answers = {{1, answer(Outcome::canceled, 0, 55)}, {2, answer(Outcome::done)}}},
                {.answers = {{3, answer(Outcome::done)}}}};
  const auto asked = ask(line, question(60 * kSecond));
  BOOST_TEST((asked.end == End::answered));
  BOOST_TEST(is(asked.head, Outcome::done));
  BOOST_TEST(line.sent.size() == 3U);
  BOOST_TEST(line.sent[0].flags == wire::kCallPark);
  BOOST_TEST(line.sent[1].flags == wire::kCallCancel);
  BOOST_TEST(line.sent[1].q.a == 1U);  // the call that is canceled
  BOOST_TEST(line.sent[2].flags == wire::kCallPark);
  BOOST_TEST(line.sent[2].q.state == 55U);  // as the owner left it
  BOOST_TEST(line.waits[0].first == kSecond + kParkedNs);
}

BOOST_AUTO_TEST_CASE(test_a_call_whose_time_is_over_ends_as_again) {
  Script line;
  line.steps = {{.how = Waited::late}, {.answers = {{1, answer(Outcome::canceled)}, {2, answer(Outcome::done)}}}};
  const auto asked = ask(line, question(2 * kSecond));
  BOOST_TEST((asked.end == End::answered));
  BOOST_TEST(is(asked.head, Outcome::again));
  BOOST_TEST(asked.idle);
  BOOST_TEST(line.sent.size() == 2U);
}

BOOST_AUTO_TEST_CASE(test_a_call_that_is_done_while_it_is_canceled_is_done) {
  Script line;
  line.steps = {{.how = Waited::raised, .raises = true},
                {.answers = {{1, answer(Outcome::done, 3)}, {2, answer(Outcome::done)}}}};
  const auto asked = ask(line, question(60 * kSecond));
  BOOST_TEST((asked.end == End::answered));
  BOOST_TEST(is(asked.head, Outcome::done));
  BOOST_TEST(asked.head.value == 3U);
  BOOST_TEST(line.held);  // the caller raises it, and undoes what was taken
}

BOOST_AUTO_TEST_CASE(test_an_owner_without_room_is_asked_after_pauses_that_grow) {
  Script line;
  for (uint64_t id = 1; id <= 9; ++id) line.steps.push_back({.answers = {{id, answer(Outcome::again)}}});
  line.steps.push_back({.answers = {{10, answer(Outcome::done)}}});
  const auto asked = ask(line, question(60 * kSecond));
  BOOST_TEST(is(asked.head, Outcome::done));
  BOOST_TEST(line.pauses.size() == 9U);
  BOOST_TEST(line.pauses.front() == kPauseNsMin);
  BOOST_TEST(line.pauses.back() == kPauseNsMax);
}

BOOST_AUTO_TEST_CASE(test_a_caller_that_waits_no_longer_ends_its_call_as_the_deadline_does) {
  Script line;
  line.steps = {{.how = Waited::ended}, {.answers = {{1, answer(Outcome::canceled)}, {2, answer(Outcome::done)}}}};
  const auto asked = ask(line, question(60 * kSecond));
  BOOST_TEST((asked.end == End::answered));
  BOOST_TEST(is(asked.head, Outcome::again));
  BOOST_TEST(asked.idle);
  BOOST_TEST(line.sent.size() == 2U);
  BOOST_TEST(line.sent[1].flags == wire::kCallCancel);
  Script full;  // the owner has no room; the caller gives up in a pause
  full.pauses_max = 2;
  full.steps = {{.answers = {{1, answer(Outcome::again)}}}, {.answers = {{2, answer(Outcome::again)}}}};
  BOOST_TEST(is(ask(full, question(60 * kSecond)).head, Outcome::again));
  BOOST_TEST(full.sent.size() == 2U);
}

BOOST_AUTO_TEST_CASE(test_an_owner_that_says_nothing_is_told_that_the_call_is_given_up) {
  Script line;
  line.steps = {{.how = Waited::late}, {.how = Waited::late}};
  const auto asked = ask(line, question(2 * kSecond));
  BOOST_TEST((asked.end == End::silent));
  BOOST_TEST(asked.posted);
  BOOST_TEST(line.sent.back().flags == (wire::kCallCancel | wire::kCallGivenUp));
  BOOST_TEST(line.sent.back().q.a == 1U);
  BOOST_TEST(asked.head.state == 0U);  // nothing is left to leave
}

BOOST_AUTO_TEST_CASE(test_a_line_that_fails_ends_the_call_at_once) {
  Script line;
  line.steps = {{.how = Waited::failed}};
  BOOST_TEST((ask(line, question(60 * kSecond)).end == End::failed));
  Script none;
  none.posts_left = 0;
  const auto asked = ask(none, question(60 * kSecond));
  BOOST_TEST((asked.end == End::raised));
  BOOST_TEST(!asked.posted);
}

BOOST_AUTO_TEST_CASE(test_a_party_that_waits_no_longer_leaves_its_barrier_unless_the_last_one_has_come) {
  for (const bool complete : {false, true}) {
    Script line;
    line.steps = {{.how = Waited::late},
                  {.answers = {{1, answer(Outcome::canceled, 0, 9)}, {2, answer(Outcome::done)}}},
                  {.answers = {{3, answer(Outcome::done, complete ? 1 : 0)}}}};
    Question q = question(2 * kSecond);
    q.leaves = true;
    const auto asked = ask(line, q);
    BOOST_TEST((asked.end == End::answered));
    BOOST_TEST(is(asked.head, complete ? Outcome::done : Outcome::again));
    BOOST_TEST(line.sent[2].q.op == static_cast<uint16_t>(Op::withdraw));
    BOOST_TEST(line.sent[2].q.state == 9U);
  }
}

BOOST_AUTO_TEST_CASE(test_a_request_has_the_length_of_its_answer_and_zeros_behind_its_data) {
  std::array<std::byte, kRequestBytesMax> text;
  text.fill(std::byte{0xff});
  const std::array in{std::byte{1}, std::byte{2}};
  Question q = question(0);
  q.in = in;
  q.room = 500;
  const size_t bytes = write_request({.pid = 5, .start = 6, .token = 7}, q, wire::kCallPark, 8, text);
  BOOST_TEST(bytes == sizeof(wire::CallAnswer) + 500);
  wire::CallRequest request;
  std::memcpy(&request, text.data(), sizeof(request));
  BOOST_TEST(request.pid == 5U);
  BOOST_TEST(request.token == 7U);
  BOOST_TEST(request.id == 8U);
  BOOST_TEST(request.flags == wire::kCallPark);
  BOOST_TEST(request.in_bytes == 2U);
  BOOST_TEST((text[sizeof(request) + 1] == std::byte{2}));
  BOOST_TEST((text[sizeof(request) + 2] == std::byte{0}));
  BOOST_TEST((text[bytes - 1] == std::byte{0}));
  q.room = kRequestBytesMax;
  BOOST_TEST(write_request({}, q, 0, 8, text) == 0U);
}

BOOST_AUTO_TEST_SUITE_END()
