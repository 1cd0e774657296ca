// cpp/nic/rx_flows.cpp: the flows and senders of a receive context: their numbers, and how they end. See rx.hpp.
#include <algorithm>

#include "nic/rx.hpp"

namespace weft::nic {

// The number of an address; it is in use as soon as a flow's record, a receive or a message has it. Throws
// std::bad_alloc.
uint32_t RxContext::source_of(const wire::EpAddress& address) {
  lock_.assert_held();
  if (const auto known = sources_.find(address); known != sources_.end()) return known->second;
  if (sources_.size() >= sources_kept_) forget_sources();
  const bool again = !sources_free_.empty();
  const uint32_t number = again ? sources_free_.back() : source_numbers_;
  sources_.emplace(address, number);
  again ? sources_free_.pop_back() : void(++source_numbers_);
  return number;
}

// Peers may name any addresses, so unused numbers are given to other addresses. The number of entries examined here
// sets how many addresses come before the next examination: a new address costs constant time, and only addresses in
// use cost memory.
void RxContext::forget_sources() {
  lock_.assert_held();
  std::vector<bool> used(source_numbers_);
  size_t looked = 0;
  const auto use = [&](uint64_t source) {
    ++looked;
    if (source < used.size()) used[source] = true;  // otherwise kAnySource
  };
  for (const Sender& s : senders_) {
    if (s.peer != 0) use(s.source);
  }
  for (const Posted* p : match_.listed()) use(p->source);
  for (const Waiting& w : waiting_) use(w.receive.what.source);
  match_.each_unexpected([&](const Unexpected& u) { use(u.source); });
  for (const Unexpected* u : claimed_) use(u->source);
  sources_free_.reserve(source_numbers_);
  std::erase_if(sources_, [&](const auto& known) {
    if (used[known.second]) return false;
    lock_.assert_held();
    sources_free_.push_back(known.second);
    return true;
  });
  sources_kept_ = sources_.size() + std::max(kSourcesMore, looked);
}

void RxContext::cut(uint64_t peer, uint32_t sender) noexcept {
  const Guard guard(lock_);
  if (sender < senders_.size() && senders_[sender].peer == peer && peer != 0) senders_[sender].cut = true;
}

void RxContext::drop_flow(uint32_t number) noexcept {
  lock_.assert_held();
  Sender& s = senders_[number];
  // The refused messages of the flow never come. The credited messages behind them are whole, and in order.
  if (auto held = early_.extract(number)) {
    early_count_ -= held.mapped().size();
    for (const Early& next : held.mapped()) (void)take_in(next.message, s, next.bytes);
  }
  if (const auto flows = flows_of_.find(s.peer); flows != flows_of_.end() && --flows->second == 0)
    flows_of_.erase(flows);
  s.peer = 0;
  if (s.index != kNoIndex) --indexed_;
  senders_free_.push_back(number);  // add_flow() has reserved room
}

void RxContext::end_flow(uint64_t peer, uint32_t sender) noexcept {
  const Guard guard(lock_);
  if (sender < senders_.size() && senders_[sender].peer == peer && peer != 0) drop_flow(sender);
}

void RxContext::peer_down(uint64_t peer) noexcept {
  const Guard guard(lock_);
  if (!flows_of_.contains(peer)) return;
  for (uint32_t i = 0; i < senders_.size(); ++i) {
    if (senders_[i].peer == peer) drop_flow(i);
  }
}

}  // namespace weft::nic
