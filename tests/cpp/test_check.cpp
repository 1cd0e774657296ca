// check() of every kind ends the process when the state is wrong. This file is compiled without access control, so that
// it can make a state wrong.
#include <memory>
#include <vector>

#include "base/slab.hpp"
#include "death.hpp"
#include "fabric.hpp"
#include "host/host.hpp"
#include "mem/ledger.hpp"
#include "nic/match.hpp"
#include "nic/rx.hpp"
#include "ring_support.hpp"
#include "rx_support.hpp"

#if !defined(WEFT_TEST_NO_FORK)

namespace {

using namespace weft;
using namespace weft::test;

BOOST_AUTO_TEST_SUITE(check)

// `make` gives a state, on which `damage` works; check() passes before, and ends the process after.
template <typename Make, typename Damage, typename Check>
void sees(const char* rule, Make&& make, Damage&& damage, Check&& check) {
  BOOST_TEST(death_of([&] {
               auto state = make();
               check(*state);
             }).signal == 0);
  BOOST_TEST(aborts_saying(
                 [&] {
                   auto state = make();
                   damage(*state);
                   check(*state);
                 },
                 rule),
             rule);
}

struct Operations {
  std::shared_ptr<nic::Route> route = std::make_shared<nic::Route>(nullptr, wire::EpAddress{});
  std::shared_ptr<nic::Flow> flow = std::make_shared<nic::Flow>(route);
  nic::OpTable table{3};
  nic::Op* op = table.add();
  Operations() {
    op->set_kind(OpKind::write);
    op->tx = reinterpret_cast<nic::TxPort*>(this);  // never followed
    op->flow = flow;
  }
};

BOOST_AUTO_TEST_CASE(operation_table_that_contradicts_itself_ends_the_process) {
  const auto make = [] { return std::make_unique<Operations>(); };
  const auto check = [](Operations& s) { s.table.check(); };
  sees("no operation is under way in a free slot", make, [](Operations& s) { s.table.free_.push_back(0); }, check);
  sees("names its operation's slot and domain", make, [](Operations& s) { s.op->id += 1; }, check);
  sees("a free slot is in the list once", make, [](Operations& s) { s.table.free_.push_back(5); }, check);
  sees("its kind's body", make, [](Operations& s) { s.op->kind = OpKind::send; }, check);
}

BOOST_AUTO_TEST_CASE(flow_that_contradicts_itself_ends_the_process) {
  const auto make = [] {
    auto made = std::make_unique<Operations>();
    made->flow->begin(nic::OpClass::write);
    return made;
  };
  const auto check = [](Operations& s) { s.flow->check(); };
  sees("each class with operations under way", make, [](Operations& s) { s.flow->under_way = {}; }, check);
  sees("kWaiting: operations wait", make, [](Operations& s) { s.flow->busy |= nic::Flow::kWaiting; }, check);
  sees("a list has both ends", make, [](Operations& s) { s.flow->last = s.op; }, check);
}

// The target polls nothing, so an operation of the initiator stays under way.
std::unique_ptr<Pair> with_operation() {
  auto pair = std::make_unique<Pair>(pair_of(Path::strict, true));
  static std::byte bytes[64];
  if (post(*pair->a->ep, write_of(pair->dest, bytes, sizeof(bytes), 0, pair->key())).refusal != Refusal::none) {
    ::_exit(2);
  }
  return pair;
}

BOOST_AUTO_TEST_CASE(domain_whose_sums_are_wrong_ends_the_process) {
  const auto check = [](Pair& pair) {
    pair.a->check();
    ::_exit(0);  // the end of a damaged fabric shows nothing
  };
  sees("outstanding_ is the number", with_operation, [](Pair& pair) { ++pair.a->ep->outstanding_; }, check);
  sees(
      "the operations that have sent a frame", with_operation,
      [](Pair& pair) { pair.a->ep->flows_[pair.dest]->begin(nic::OpClass::read); }, check);
  sees(
      "every flow that waits is listed", with_operation, [](Pair& pair) { pair.a->domain->waiting_ = nullptr; }, check);
}

BOOST_AUTO_TEST_CASE(match_unit_that_contradicts_itself_ends_the_process) {
  const auto make = [] {
    auto unit = std::make_unique<nic::MatchUnit>(nic::MatchUnit::Limits{}, 1);
    nic::Receive receive;
    receive.what.tagged = true;
    receive.what.tag = 9;
    nic::Match none;
    (void)unit->take_unexpected(unit->post(receive), &none);
    nic::Arrival message;
    message.tag = 10;
    message.tagged = true;
    (void)unit->keep(message);
    return unit;
  };
  using Unit = nic::MatchUnit;
  const auto check = [](Unit& unit) { unit.check(); };
  sees("listed receives are counted", make, [](Unit& unit) { ++unit.listed_; }, check);
  sees("a shape with receives is active", make, [](Unit& unit) { unit.active_ = {}; }, check);
  sees("a listed receive is found by its key", make, [](Unit& unit) { unit.posted_[0].tag = 8; }, check);
  sees("in order of arrival", make, [](Unit& unit) { ++unit.arrivals_[1].count; }, check);
  sees(
      "a free entry is in the list once", make,
      [](Unit& unit) { unit.posted_.free_.push_back(unit.posted_.free_.back()); }, check);
}

BOOST_AUTO_TEST_CASE(receive_context_whose_credits_are_wrong_ends_the_process) {
  struct State {
    receiving::Sink sink;
    nic::RxContext context{nic::RxContext::Config{}, &sink};
  };
  const auto make = [] {
    auto state = std::make_unique<State>();
    nic::RxMessage message;
    message.peer = 1;
    message.flags = nic::rx_flag::kFirst | nic::rx_flag::kTagged;
    if (state->context.arrive(message, {}).answer != nic::RxAnswer::done) ::_exit(2);
    return state;
  };
  const auto check = [](State& s) { s.context.check(); };
  sees("at most its credits", make, [](State& s) { s.context.senders_[0].credits += 1; }, check);
  sees(
      "counts its early messages", make,
      [](State& s) {
        s.context.senders_[0].credits = 0;
        s.context.senders_[0].early = 1;
      },
      check);
  sees("a connection's flows are counted", make, [](State& s) { ++s.context.flows_of_[1]; }, check);
  sees("a kept message has room", make, [](State& s) { s.context.buffers_.give(s.context.buffers_.current_); }, check);
}

BOOST_AUTO_TEST_CASE(memory_table_that_contradicts_itself_ends_the_process) {
  const auto make = [] {
    auto table = std::make_unique<mem::Table>(64);
    const mem::MrBuffer buffer{.local_addr = 4096, .length = 64};
    mem::MrRequest request;
    request.buffers = {&buffer, 1};
    request.client_key = 7;
    (void)table->insert(request);
    return table;
  };
  using mem::Table;
  const auto check = [](Table& table) { table.check(); };
  sees("is live, or free", make, [](Table& table) { ++table.live_count_; }, check);
  sees(
      "the index leads to the slot", make, [](Table& table) { table.index()[table.indexed_at_[0].second] = 0; }, check);
  sees("a free endpoint is in the list once", make, [](Table& table) { table.ep_free_.push_back(1); }, check);
}

BOOST_AUTO_TEST_CASE(ledger_with_wrong_sums_ends_the_process) {
  struct State {
    UniqueFd fd = make_memfd("weft-ledger-of-a-test", mem::Ledger::bytes());
    mem::Ledger book{fd.get(), host::calendar()};
  };
  const auto make = [] {
    auto state = std::make_unique<State>();
    mem::Ledger::Counts totals;
    totals.fill(100);
    state->book.begin(1, totals);
    const uint32_t slot = state->book.open({1, 1, 1}, 5);
    mem::Ledger::Limits limits;
    limits.service = 5;
    limits.most.fill(50);
    state->book.set_limits(std::span(&limits, 1));
    if (!state->book.take(slot, 0, 9)) ::_exit(2);
    return state;
  };
  sees(
      "a row has the sum of what its users hold", make,
      [](State& s) {
        // Ledger::Row: a service and its number of users, then the most, the reserved and the held units of each kind.
        const size_t at = 4096 + 8 + 2 * sizeof(mem::Ledger::Counts);
        ++*reinterpret_cast<int32_t*>(s.book.mapping_.data() + at);
      },
      [](State& s) { s.book.check(); });
}

BOOST_AUTO_TEST_CASE(ring_that_contradicts_itself_ends_the_process) {
  using ring::Ring;
  const auto make = [] { return std::make_unique<Ring>(8); };
  const auto check = [](Ring& ring) { ring.consumer.check(); };
  sees("a hole has one bit", make, [](Ring& ring) { ring.consumer.hole_bits_[0] = 1; }, check);
  sees("a full batch is freed", make, [](Ring& ring) { ring.consumer.taken_unfreed_ = 16; }, check);
}

#if !defined(__SANITIZE_ADDRESS__)  // there each slot is an allocation of its own
BOOST_AUTO_TEST_CASE(slab_that_contradicts_itself_ends_the_process) {
  const auto make = [] {
    auto slab = std::make_unique<Slab>(64);
    void* const first = slab->take();
    (void)slab->take();
    slab->give(first);
    return slab;
  };
  const auto check = [](Slab& slab) {
    slab.check();
    ::_exit(0);  // a slot is taken
  };
  sees("is taken, or free", make, [](Slab& slab) { ++slab.open_->taken; }, check);
  sees("a block knows its neighbours", make, [](Slab& slab) { slab.open_->previous = slab.open_; }, check);
}
#endif

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

#endif
