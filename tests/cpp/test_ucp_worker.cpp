// tests/cpp/test_ucp_worker.cpp: UCP's requests, flushes and failures without a NIC: which call reports which failure,
// and
// how often.
#include "ucp/worker.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

namespace {

using namespace weft::ucp;

/// An operation of `parts` parts, posted on an endpoint.
std::unique_ptr<Request> posted(Worker& worker, Endpoint& ep, uint32_t parts = 1) {
  auto r = std::make_unique<Request>();
  r->parts = parts;
  worker.begin(*r, ep);
  return r;
}

Worker::Outcome ended(Worker& worker, Request& r, int status = kOk) {
  return worker.settle(r, status, false, status == kOk ? "" : "why");
}

struct Flush {
  Flush(Worker& worker, Endpoint* ep) : start(worker.begin_flush(request, ep, false, &failure)) {}
  Request request;
  Failure failure;
  Worker::FlushStart start;
};

constexpr auto kDone = Worker::FlushStart::done, kFailed = Worker::FlushStart::failed,
               kUnderWay = Worker::FlushStart::under_way;

}  // namespace

BOOST_AUTO_TEST_SUITE(ucp_worker)

BOOST_AUTO_TEST_CASE(request_ends_with_its_last_part_and_the_first_failure) {
  Worker worker;
  Endpoint ep(worker);
  auto r = posted(worker, ep, 3);
  BOOST_TEST(!ended(worker, *r).ended);
  BOOST_TEST(!worker.settle(*r, kIoError, false, "first").ended);
  BOOST_TEST(!r->ended());
  BOOST_TEST(worker.settle(*r, kNoMemory, false, "second").ended);
  BOOST_TEST(r->status == kIoError);
  BOOST_TEST(r->text == "first");
  BOOST_TEST(worker.under_way() == 0u);
  BOOST_TEST(ep.under_way() == 0u);
}

BOOST_AUTO_TEST_CASE(parts_may_end_before_the_operation_is_begun) {
  Worker worker;
  Endpoint ep(worker);
  Request r;
  r.parts = 2;
  BOOST_TEST(!ended(worker, r).ended);
  BOOST_TEST(!worker.settle(r, kConnectionReset, true, "gone").endpoint_failed);  // not posted on an endpoint yet
  const auto outcome = worker.begin(r, ep);
  BOOST_TEST(outcome.ended);
  BOOST_TEST(outcome.endpoint_failed);
  BOOST_TEST(ep.failed() == kConnectionReset);
  BOOST_TEST(worker.under_way() == 0u);
}

BOOST_AUTO_TEST_CASE(endpoint_fails_once) {
  Worker worker;
  Endpoint ep(worker);
  auto a = posted(worker, ep), b = posted(worker, ep);
  BOOST_TEST(worker.settle(*a, kConnectionReset, true, "gone").endpoint_failed);
  BOOST_TEST(!worker.settle(*b, kUnreachable, true, "still").endpoint_failed);
  BOOST_TEST(ep.failed() == kConnectionReset);
  BOOST_TEST(ep.why() == "gone");
}

BOOST_AUTO_TEST_CASE(flush_waits_for_earlier_operations_of_its_endpoint) {
  Worker worker;
  Endpoint ep(worker), another(worker);
  auto before = posted(worker, ep), elsewhere = posted(worker, another);
  Flush flush(worker, &ep), all(worker, nullptr);
  BOOST_TEST((flush.start == kUnderWay && all.start == kUnderWay));
  auto after = posted(worker, ep);
  BOOST_TEST(worker.end_flushes().empty());
  ended(worker, *before);
  BOOST_TEST((worker.end_flushes() == std::vector<Request*>{&flush.request}));
  BOOST_TEST(flush.request.status == kOk);
  ended(worker, *elsewhere);
  BOOST_TEST((worker.end_flushes() == std::vector<Request*>{&all.request}));
  BOOST_TEST(!worker.has_flushes());
  BOOST_TEST((Flush(worker, &another).start == kDone));
}

BOOST_AUTO_TEST_CASE(flush_under_way_repeats_the_failure_of_a_request) {
  Worker worker;
  Endpoint ep(worker), another(worker);
  auto r = posted(worker, ep), other = posted(worker, another);
  Flush flush(worker, &ep), all(worker, nullptr), elsewhere(worker, &another);
  auto later = posted(worker, ep);
  ended(worker, *r, kIoError);
  r->observed();
  ended(worker, *later, kNoMemory);
  ended(worker, *other);
  BOOST_TEST(worker.end_flushes().size() == 3u);
  BOOST_TEST(flush.request.status == kIoError);
  BOOST_TEST(flush.request.text == "why");
  BOOST_TEST(all.request.status == kIoError);
  BOOST_TEST(elsewhere.request.status == kOk);
}

BOOST_AUTO_TEST_CASE(failure_of_a_dropped_request_is_reported_by_one_flush) {
  for (const bool whole : {false, true}) {
    Worker worker;
    Endpoint ep(worker);
    for (int i = 0; i < 3; ++i) {
      auto r = posted(worker, ep);
      ended(worker, *r, i == 0 ? kIoError : kNoMemory);
    }  // dropped
    Flush first(worker, whole ? nullptr : &ep);
    BOOST_TEST((first.start == kFailed));
    BOOST_TEST(first.failure.status == kIoError);
    BOOST_TEST((Flush(worker, whole ? nullptr : &ep).start == kDone));
  }
}

BOOST_AUTO_TEST_CASE(failure_is_reported_again_only_if_it_was_not_read) {
  Worker worker;
  Endpoint ep(worker);
  auto seen = posted(worker, ep), kept = posted(worker, ep);
  ended(worker, *seen, kIoError);
  ended(worker, *kept, kNoMemory);
  seen->observed();
  seen->observed();
  Flush flush(worker, &ep);
  BOOST_TEST((flush.start == kFailed));
  BOOST_TEST(flush.failure.status == kNoMemory);
  kept->observed();
  kept.reset();
  BOOST_TEST((Flush(worker, &ep).start == kDone));
}

BOOST_AUTO_TEST_CASE(failure_in_an_unread_flush_is_reported_again) {
  Worker worker;
  Endpoint ep(worker);
  {
    auto r = posted(worker, ep);
    Flush dropped(worker, &ep);
    ended(worker, *r, kIoError);
    BOOST_TEST(worker.end_flushes().size() == 1u);
    BOOST_TEST(dropped.request.status == kIoError);
  }
  auto r = posted(worker, ep);
  Flush looked_at(worker, nullptr);
  ended(worker, *r);
  BOOST_TEST(worker.end_flushes().size() == 1u);
  BOOST_TEST(looked_at.request.status == kIoError);
  looked_at.request.observed();
  BOOST_TEST((Flush(worker, &ep).start == kDone));
}

BOOST_AUTO_TEST_CASE(flush_read_by_the_application_keeps_later_failures) {
  Worker worker;
  Endpoint ep(worker);
  auto before = posted(worker, ep);
  Flush flush(worker, &ep);
  {
    auto after = posted(worker, ep);
    ended(worker, *after, kNoMemory);
  }
  ended(worker, *before, kIoError);
  before.reset();
  BOOST_TEST(worker.end_flushes().size() == 1u);
  flush.request.observed();
  Flush next(worker, &ep);
  BOOST_TEST((next.start == kFailed));
  BOOST_TEST(next.failure.status == kNoMemory);
}

BOOST_AUTO_TEST_CASE(quiet_and_freed_requests_leave_their_failure_to_a_flush) {
  Worker worker;
  Endpoint ep(worker);
  auto quiet = posted(worker, ep), freed = posted(worker, ep);
  quiet->quiet = freed->freed = true;
  ended(worker, *freed, kIoError);
  freed->observed();  // a freed request reports nothing
  freed.reset();
  ended(worker, *quiet, kNoMemory);
  Flush flush(worker, &ep);
  BOOST_TEST((flush.start == kFailed));
  BOOST_TEST(flush.failure.status == kNoMemory);  // the first in the order of posting
}

BOOST_AUTO_TEST_CASE(canceled_operation_is_a_failure_only_at_worker_close) {
  Worker worker;
  Endpoint ep(worker);
  auto r = posted(worker, ep);
  Flush flush(worker, &ep);
  ended(worker, *r, kCanceled);
  BOOST_TEST(worker.end_flushes().size() == 1u);
  BOOST_TEST(flush.request.status == kOk);
  auto last = posted(worker, ep);
  Flush waiting(worker, &ep);
  auto never = posted(worker, ep);
  Flush stays(worker, nullptr);
  worker.begin_close();
  ended(worker, *last, kCanceled);
  BOOST_TEST(worker.end_flushes().size() == 1u);
  BOOST_TEST(waiting.request.status == kCanceled);
  BOOST_TEST(worker.abandon_flushes().size() == 1u);
  BOOST_TEST(stays.request.status == kCanceled);
}

BOOST_AUTO_TEST_CASE(cancelled_flush_ends_and_leaves_the_failure_to_the_next) {
  Worker worker;
  Endpoint ep(worker);
  auto r = posted(worker, ep);
  Flush flush(worker, &ep);
  BOOST_TEST(worker.cancel_flush(flush.request));
  BOOST_TEST(!worker.cancel_flush(flush.request));
  BOOST_TEST(flush.request.status == kCanceled);
  flush.request.observed();
  ended(worker, *r, kIoError);
  r.reset();
  BOOST_TEST((Flush(worker, &ep).start == kFailed));
}

BOOST_AUTO_TEST_CASE(flush_of_a_failed_endpoint_fails_each_time) {
  Worker worker;
  Endpoint ep(worker);
  auto r = posted(worker, ep);
  worker.settle(*r, kConnectionReset, true, "gone");
  r->observed();
  for (int i = 0; i < 2; ++i) {
    Flush flush(worker, &ep);
    BOOST_TEST((flush.start == kFailed));
    BOOST_TEST(flush.failure.status == kConnectionReset);
  }
  BOOST_TEST((Flush(worker, nullptr).start == kDone));
}

BOOST_AUTO_TEST_CASE(closed_endpoint_reports_failures_only_to_a_waiting_flush) {
  Worker worker;
  auto ep = std::make_unique<Endpoint>(worker);
  auto early = posted(worker, *ep), late = posted(worker, *ep);
  ended(worker, *early, kIoError);
  Flush flush(worker, nullptr);
  BOOST_TEST(flush.request.first_failure == kIoError);
  ep->close();
  BOOST_TEST(worker.endpoints().empty());
  ended(worker, *late, kNoMemory);
  BOOST_TEST(worker.end_flushes().size() == 1u);
  early.reset();
  late.reset();
  ep.reset();
  BOOST_TEST((Flush(worker, nullptr).start == kDone));
}

// Random operations against a model that keeps every failure. Each failure that the state machine reports is an
// unreported one of the model; the machine reports one whenever there is one, and none twice.
BOOST_AUTO_TEST_CASE(failures_agree_with_a_model_that_keeps_them_all) {
  const unsigned seed = std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  const auto pick = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  Worker worker;
  Endpoint ep(worker);
  struct Known {
    std::unique_ptr<Request> request;
    int failure;
  };
  std::vector<Known> live;
  std::vector<Request*> untold;  // held by the application
  size_t lost = 0;               // dropped without having been reported
  for (int step = 0; step < 20000; ++step) {
    switch (pick(5)) {
      case 0:
        live.push_back({posted(worker, ep), 0});
        break;
      case 1: {
        if (live.empty()) break;
        Known& k = live[pick(live.size())];
        if (k.request->ended()) break;
        k.failure = pick(2) == 0 ? kOk : -100 - step;
        ended(worker, *k.request, k.failure);
        if (k.failure != kOk) untold.push_back(k.request.get());
        break;
      }
      case 2: {
        if (live.empty()) break;
        Known& k = live[pick(live.size())];
        k.request->observed();
        std::erase(untold, k.request.get());
        break;
      }
      case 3: {
        if (live.empty()) break;
        const size_t i = pick(live.size());
        if (!live[i].request->ended()) break;
        lost += std::erase(untold, live[i].request.get());
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      }
      default: {
        for (Known& k : live) {
          if (!k.request->ended()) ended(worker, *k.request);
        }
        Flush flush(worker, &ep);
        BOOST_REQUIRE((flush.start == kFailed) == (lost != 0 || !untold.empty()));
        if (flush.start == kFailed && lost == 0) {
          BOOST_REQUIRE(
              std::ranges::any_of(untold, [&](const Request* r) { return r->status == flush.failure.status; }));
        }
        untold.clear();
        lost = 0;
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
