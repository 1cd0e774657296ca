// cpp/nic/check.cpp: what must be true of a NIC whenever no thread is inside its locks; in builds with assertions.
#if !defined(NDEBUG)
#include <cassert>
#include <map>

#include "nic/fast.inl"
#include "nic/nic.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

void OpTable::check() const {
  std::vector<bool> is_free(slots_.size());
  for (const uint32_t slot : free_) {
    assert(slot < slots_.size() && !is_free[slot] && "a free slot is in the list once");
    assert((!slots_[slot] || slots_[slot]->id == 0) && "no operation is under way in a free slot");
    is_free[slot] = true;
  }
  assert((slots_.empty() || free_.capacity() >= slots_.size()) && "remove() allocates nothing");
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (is_free[slot]) continue;
    assert(slots_[slot] && slots_[slot]->id != 0 && "a slot that is not free has an operation");
    const Op& op = *slots_[slot];
    assert(slot_of(op.id) == slot && domain_of(op.id) == domain_ && "a number names its operation's slot and domain");
    assert(op.sequence < next_ && (op.id >> kSlotBits & kSequenceMask) == (op.sequence & kSequenceMask));
    assert(op.tx != nullptr && op.flow && op.has_body() && "an operation has an endpoint, a flow and its kind's body");
    if (op.parent != nullptr) {
      assert(find(op.parent->id) == op.parent && op.parent->kind == OpKind::batch && "a part's call is under way");
    }
  }
}

void Flow::check() const {
  assert(route && "a flow has a route");
  for (size_t c = 0; c < kClassCount; ++c) {
    const ClassSet bit = class_bit(static_cast<OpClass>(c));
    assert(((busy & bit) != 0) == (under_way[c] != 0) && "busy has a bit for each class with operations under way");
    assert(((copying & bit) != 0) == (long_copies[c] != 0) && "copying has a bit for each class with long copies");
    assert(long_copies[c] <= under_way[c] && "a long copy is under way");
  }
  assert(((busy & kWaiting) != 0) == waits() && "kWaiting: operations wait");
  assert((first == nullptr) == (last == nullptr) && "a list has both ends");
  assert((waits() || (next_waiting == nullptr && previous_waiting == nullptr)) && "only flows that wait are listed");
  const Op* end = nullptr;
  for (const Op* op = first; op != nullptr; op = op->next) {
    assert(op->flow.get() == this && op->id != 0 && "an operation waits in its own flow");
    end = op;
  }
  assert(end == last && "the list of waiting operations ends with the last");
  assert(credits <= credits_max && "a receiver gives a flow at most credits_max at a time");
}

void Domain::check() const {
  assert_held();
  ops_.check();
  struct Sums {
    std::array<uint32_t, kClassCount> counted{};
  };
  std::map<const Flow*, Sums> flows;
  std::map<const TxPort*, uint32_t> outstanding;
  std::map<const CompletionQueue*, uint32_t> promised;
  ops_.each([&](const Op* op) {
    assert(op->tx->domain() == this && "an operation is in the table of its domain");
    Sums& sums = flows[op->flow.get()];
    if (op->counted) ++sums.counted[static_cast<size_t>(class_of(op->kind))];
    if (op->parent == nullptr && op->kind != OpKind::pull) ++outstanding[op->tx];
    if (op->holds_cq_room) ++promised[op->tx->queue()];
  });
  size_t waiting = 0;
  for (const auto& [flow, sums] : flows) {
    flow->check();
    waiting += flow->waits() ? 1 : 0;
    for (size_t c = 0; c < kClassCount; ++c) {
      assert(flow->under_way[c] - flow->long_copies[c] == sums.counted[c] &&
             "a flow counts the operations that have sent a frame");
    }
  }
  for (const auto& [tx, count] : outstanding) {
    assert(tx->outstanding() == count && "outstanding_ is the number of the endpoint's operations");
  }
  for (const auto& [cq, count] : promised) {
    assert(cq->reserved() >= count && "a queue has room for the operations to which room was promised");
  }
  const Flow* before = nullptr;
  for (const Flow* flow = waiting_; flow != nullptr; before = flow, flow = flow->next_waiting) {
    assert(flow->previous_waiting == before && flow->waits() && flows.contains(flow) && "a listed flow waits");
    --waiting;
  }
  assert(waiting == 0 && "every flow that waits is listed");
}

void MatchUnit::check() const {
  posted_.check();
  unexpected_.check();
  std::array<uint32_t, kShapeCount> by_shape{};
  size_t listed = 0, unhashed = 0, claimed = 0;
  for (uint32_t id = 0; id < posted_.capacity(); ++id) {
    const Posted& p = posted_[id];
    if (p.state != Posted::State::listed) continue;
    ++listed;
    assert(p.used <= p.length && "messages take at most the buffer");
    if (p.shape == kUnhashed) {
      ++unhashed;
      continue;
    }
    assert(p.shape < kShapeCount && "a hashed receive has a shape");
    ++by_shape[p.shape];
    const Shape& shape = shapes_[p.shape];
    const uint64_t want = p.tag & ~p.ignore;
    const uint32_t oldest = by_key_.first(hash(p.shape, want, p.source), [&](const Posted& other) {
      return other.shape == p.shape && other.source == p.source && (other.tag & ~shape.ignore) == want;
    });
    assert(oldest != kNoEntry && posted_[oldest].sequence <= p.sequence && "a listed receive is found by its key");
  }
  assert(listed == listed_ && unhashed == unhashed_ && "listed receives are counted");
  constexpr uint32_t kUntagged = 1u << kUntaggedFrom | 1u << kUntaggedAny;
  for (size_t i = 0; i < kShapeCount; ++i) {
    assert(shapes_[i].posted == by_shape[i] && "a shape counts its receives");
    assert(((active_[0] | active_[1]) >> i & 1) == (by_shape[i] != 0) && "a shape with receives is active");
  }
  assert((active_[0] & ~kUntagged) == 0 && (active_[1] & kUntagged) == 0 && "shapes are tagged or untagged");
  uint32_t before = kNoEntry;
  for (uint32_t id = unhashed_first_; id != kNoEntry; before = id, id = posted_[id].by_key.next) {
    assert(posted_[id].by_key.prev == before && posted_[id].state == Posted::State::listed && unhashed != 0);
    --unhashed;
  }
  assert(unhashed == 0 && unhashed_last_ == before && "the list of receives without a hash is whole");
  for (size_t tagged = 0; tagged < arrivals_.size(); ++tagged) {
    size_t count = 0;
    before = kNoEntry;
    for (uint32_t id = arrivals_[tagged].first; id != kNoEntry; before = id, id = unexpected_[id].later) {
      const Unexpected& u = unexpected_[id];
      assert(u.state == Unexpected::State::listed && u.tagged == (tagged != 0) && u.earlier == before);
      const uint32_t oldest =
          exact_.first(hash(u.tagged ? kTaggedFrom : kUntaggedFrom, u.tag, u.source), [&](const Unexpected& other) {
            return other.tag == u.tag && other.source == u.source && other.tagged == u.tagged;
          });
      assert(oldest != kNoEntry && "a message is found by its tag and source");
      ++count;
    }
    assert(count == arrivals_[tagged].count && arrivals_[tagged].last == before && "messages lie in order of arrival");
  }
  for (uint32_t id = 0; id < unexpected_.capacity(); ++id) {
    claimed += unexpected_[id].state == Unexpected::State::claimed ? 1 : 0;
  }
  assert(claimed == claimed_ && "claimed messages are counted");
  uint32_t indexed = 0;
  for (size_t i = 0; i < indexes_.size(); ++i) {
    if (indexes_[i].shape == kUnhashed) continue;
    ++indexed;
    assert(shapes_[indexes_[i].shape].index == i && "an index and its shape name each other");
  }
  assert(indexed == indexed_ && "indexes of messages are counted");
}

void RxContext::check() {
  const Guard guard(lock_);
  match_.check();
  const MatchUnit::Statistics match = match_.statistics();
  std::unordered_map<uint64_t, uint32_t> flows;
  size_t used = 0, by_index = 0, early = 0;
  for (uint32_t i = 0; i < senders_.size(); ++i) {
    const Sender& s = senders_[i];
    if (s.peer == 0) continue;
    ++used;
    ++flows[s.peer];
    by_index += s.index != kNoIndex ? 1 : 0;
    assert(s.credits + s.early <= config_.credits && "a flow has at most its credits, used ones included");
    const auto held = early_.find(i);
    assert(s.early == (held == early_.end() ? 0 : held->second.size()) && "a flow counts its early messages");
    early += s.early;
    assert(s.source < source_numbers_ && "a flow's source has a number");
  }
  assert(used + senders_free_.size() == senders_.size() && "a record is used, or free");
  assert(by_index == indexed_ && "flows by index are counted");
  assert(early == early_count_ && "early messages are counted");
  for (const auto& [peer, count] : flows_of_) {
    const auto found = flows.find(peer);
    assert(count == (found == flows.end() ? 0 : found->second) && "a connection's flows are counted");
  }
  assert(sources_.size() + sources_free_.size() == source_numbers_ && "a source's number is in use, or free");
  assert(claimed_.size() == match.claimed && "claimed messages are listed");
  // While bytes are copied to or from the buffers, messages that receives have taken lie there too.
  const size_t kept = match.unexpected + match.claimed;
  if (!closed_ && copies_ == 0) assert(buffers_.statistics().messages == kept && "a kept message has room");
}

void Nic::check() {
  const Guard progress(progress_mutex_);
  const Guard objects(objects_mutex_);
  for (const std::atomic<Domain*>& slot : domains_) {
    const Domain* const domain = slot.load(std::memory_order_relaxed);
    if (domain == nullptr) continue;
    assert(domains_[domain->index()].load(std::memory_order_relaxed) == domain && "a domain is at its number");
    const DomainLock guard(const_cast<Domain*>(domain));
    domain->check();
    for (const std::shared_ptr<Endpoint>& ep : eps_) {
      if (!ep || ep->domain() != domain) continue;
      for (const std::shared_ptr<Flow>& flow : ep->flows()) {
        if (flow) flow->check();
      }
    }
  }
  for (const std::shared_ptr<Endpoint>& ep : eps_) {
    if (ep && ep->port() != nullptr) ep->port()->context().check();
  }
}

}  // namespace weft::nic
#endif
