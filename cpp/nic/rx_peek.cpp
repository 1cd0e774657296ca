// cpp/nic/rx_peek.cpp: peeks, claims and discards of messages that no receive has taken.
#include <new>

#include "nic/rx.hpp"

namespace weft::nic {

RxCompletion RxContext::seen(const Unexpected& u, uint64_t context, uint64_t flags) noexcept {
  RxCompletion c;
  c.context = context;
  c.flags = flags;
  c.length = u.length;
  c.tag = u.tag;
  c.data = u.data;
  c.source = parked(u).source;
  c.index = parked(u).index;
  c.tagged = u.tagged;
  c.has_data = (u.flags & rx_flag::kHasData) != 0;
  return c;
}

RxContext::Found RxContext::peek(const Pattern& what, Peek how, uint64_t context, uint64_t flags,
                                 const wire::EpAddress* from) noexcept {
  const Guard guard(lock_);
  if (closed_) return Found::closed;
  if (mode_.changing() || !ring()) [[unlikely]]
    return Found::changing;
  Pattern pattern = what;
  if (from != nullptr) {
    const auto known = sources_.find(*from);
    if (known == sources_.end()) return Found::missing;
    pattern.source = known->second;
  }
  Unexpected* const u = match_.peek(pattern);
  if (u == nullptr) return Found::missing;
  if (how == Peek::claim && !claim(u, context)) return Found::full;
  sink_->completed(seen(*u, context, flags));
  if (how == Peek::discard) {
    match_.take(u);
    drop(u);
  }
  return Found::found;
}

// Ends a message, out of the lists, that no receive takes.
void RxContext::drop(Unexpected* taken) noexcept {
  if ((taken->flags & rx_flag::kLanding) != 0) return;  // landed() goes on
  const RxMessage message = message_of(*taken);
  forget(taken);
  if ((message.flags & (rx_flag::kRendezvous | rx_flag::kWantsMatch)) != 0) sink_->done(message.peer, message.op_id, 0);
}

bool RxContext::claim(Unexpected* message, uint64_t context) noexcept try {
  lock_.assert_held();
  claimed_.push_back(message);
  if (match_.claim(message, context)) return true;
  claimed_.pop_back();
  return false;
} catch (const std::bad_alloc&) {
  return false;
}

RxContext::Found RxContext::receive_claimed(const Receive& receive, bool discard) noexcept {
  const Guard guard(lock_);
  if (closed_) return Found::closed;
  if (mode_.changing() || !ring()) [[unlikely]]
    return Found::changing;
  Posted* const p = discard ? nullptr : match_.post(receive);
  if (p == nullptr && !discard) return Found::full;
  Unexpected* const u = match_.take_claimed(receive.context);
  if (u == nullptr) {
    if (p != nullptr) match_.release(p);
    return Found::missing;
  }
  std::erase(claimed_, u);
  if (discard) {
    sink_->completed(seen(*u, receive.context, receive.flags));
    drop(u);
    return Found::found;
  }
  Match match;
  match_.give(p, u, &match);
  receive_parked(match);
  return Found::found;
}

}  // namespace weft::nic
