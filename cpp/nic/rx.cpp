// cpp/nic/rx.cpp: the receive context: the order of flows, matching, copies, flow control.
#include "nic/rx.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "mem/guard.hpp"

namespace weft::nic {

RxContext::Parked& RxContext::parked(const Unexpected& u) noexcept {
  return *reinterpret_cast<Parked*>(u.cookie);
}

RxMessage RxContext::message_of(const Unexpected& u) noexcept {
  const Parked& p = parked(u);
  RxMessage m;
  m.peer = p.peer;
  m.source = p.source;
  m.tag = u.tag;
  m.data = u.data;
  m.length = u.length;
  m.key = p.key;
  m.op_id = p.op_id;
  m.flags = u.flags;
  return m;
}

// ---- messages -------------------------------------------------------------------------------------------------------

// HOT. Lines: the lock and the heads of this object; the flow's record; match() of the match unit; the buffer, or the
// room of an unexpected message; the completion entry.
RxReply RxContext::arrive(const RxMessage& message, std::span<const std::byte> bytes) noexcept {
  const Guard guard(lock_);
  if (closed_) return {RxAnswer::closed};
  RxReply reply;
  reply.answer = admit(message, &reply.sender);
  if (reply.answer != RxAnswer::none) [[unlikely]]
    return reply;
  Sender* from = &senders_[reply.sender];
  const bool ordered = (message.flags & rx_flag::kUnordered) == 0;
  if ((message.flags & rx_flag::kCredited) != 0) return {take_credited(from, message, bytes), reply.sender};
  if (ordered && message.sequence != from->expected) [[unlikely]] {
    // Only behind a refused message.
    if (!from->refusing || static_cast<int32_t>(message.sequence - from->expected) < 0) return {RxAnswer::broken};
    ++refused_;
    reply.answer = RxAnswer::refused;
    return reply;
  }
  reply.answer = take_in(message, *from, bytes);
  if (reply.answer == RxAnswer::refused) [[unlikely]] {
    ++refused_;
    if (!ordered) return reply;
    from->refusing = untold_ = true;
    from->told = false;
    from->refused_op = message.op_id;
    return reply;
  }
  if (reply.answer > RxAnswer::refused) [[unlikely]]
    return reply;
  if (ordered) ++from->expected;
  if (from->refusing) [[unlikely]] {
    from->refusing = from->told = false;
    if (from->early != 0 && !release_early(reply.sender)) return {RxAnswer::no_memory};
  }
  reply.credits = config_.credits - from->credits - from->early;
  from->credits += reply.credits;
  return reply;
}

// none: the message has been taken.
RxAnswer RxContext::take_credited(Sender* from, const RxMessage& message, std::span<const std::byte> bytes) noexcept {
  lock_.assert_held();
  if (from->credits == 0 || bytes.size() > config_.credited_bytes_max) return RxAnswer::broken;
  --from->credits;
  const bool ordered = (message.flags & rx_flag::kUnordered) == 0;
  if (ordered && message.sequence != from->expected) [[unlikely]] {
    // Only behind a refused message.
    if (!from->refusing || static_cast<int32_t>(message.sequence - from->expected) < 0) return RxAnswer::broken;
    return hold_early(message, bytes);
  }
  const RxAnswer taken = take_in(message, *from, bytes);
  if (taken >= RxAnswer::refused) [[unlikely]]
    return taken;
  if (ordered) ++from->expected;
  if (from->refusing) [[unlikely]] {
    from->refusing = from->told = false;
    if (from->early != 0 && !release_early(message.sender)) return RxAnswer::no_memory;
  }
  return RxAnswer::none;
}

std::optional<wire::EpAddress> RxContext::source_of_flow(uint64_t peer, uint32_t sender) noexcept {
  const Guard guard(lock_);
  if (sender >= senders_.size() || senders_[sender].peer != peer || peer == 0) return std::nullopt;
  return senders_[sender].address;
}

uint32_t RxContext::credits_of_flow(uint64_t peer, uint32_t sender) noexcept {
  const Guard guard(lock_);
  return sender < senders_.size() && senders_[sender].peer == peer && peer != 0 ? senders_[sender].credits : 0;
}

// Finds the flow's record, or makes one. none: *number is the record.
RxAnswer RxContext::admit(const RxMessage& message, uint32_t* number) noexcept {
  lock_.assert_held();
  if ((message.flags & rx_flag::kFirst) != 0) [[unlikely]]
    return add_flow(message, number);
  if (message.sender >= senders_.size()) return RxAnswer::broken;
  const Sender& s = senders_[message.sender];
  if (s.peer != message.peer || s.address != message.source) return RxAnswer::broken;
  if (s.cut) [[unlikely]]
    return RxAnswer::closed;
  *number = message.sender;
  return RxAnswer::none;
}

RxAnswer RxContext::add_flow(const RxMessage& message, uint32_t* number) noexcept try {
  lock_.assert_held();
  if (message.sequence != 0 || (message.flags & rx_flag::kCredited) != 0) return RxAnswer::broken;
  uint32_t& flows = flows_of_[message.peer];
  if (flows >= config_.flows_max) return RxAnswer::no_memory;
  const uint32_t source = source_of(message.source);
  if (senders_free_.empty()) {
    senders_free_.reserve(senders_.size() + 1);
    senders_.emplace_back();
    senders_free_.push_back(static_cast<uint32_t>(senders_.size() - 1));
  }
  *number = senders_free_.back();
  senders_free_.pop_back();
  Sender& s = senders_[*number];
  s = {};
  s.peer = message.peer;
  s.address = message.source;
  s.source = source;
  s.index = message.sender;
  if (s.index != kNoIndex) ++indexed_;
  ++flows;
  return RxAnswer::none;
} catch (const std::bad_alloc&) {
  return RxAnswer::no_memory;
}

// Matches the message whose turn it is, or keeps it.
RxAnswer RxContext::take_in(const RxMessage& message, const Sender& from, std::span<const std::byte> bytes) noexcept {
  lock_.assert_held();
  const bool rendezvous = (message.flags & rx_flag::kRendezvous) != 0;
  const bool credited = (message.flags & rx_flag::kCredited) != 0, whole = (message.flags & rx_flag::kWhole) != 0;
  // An eager frame has all bytes of its message; a rendezvous has some. So has an eager message of several frames.
  if (rendezvous ? bytes.size() > message.length : bytes.size() != message.length) return RxAnswer::broken;
  if (whole && (!rendezvous || credited || bytes.size() == message.length)) [[unlikely]]
    return RxAnswer::broken;
  if (!credited && (mode_.changing() || sink_->is_full())) [[unlikely]]
    return RxAnswer::refused;
  Arrival arrival = arrival_of(message, from);
  Match match;
  if (match_.match(arrival, &match)) {
    ++matched_;
    if (match.last && mode_.accounts()) mode_.unlisted();
    return deliver(match, message, from.index, bytes) ? RxAnswer::done : RxAnswer::arrived;
  }
  if ((message.flags & rx_flag::kUnordered) != 0) return RxAnswer::refused;
  return keep(message, from, arrival, bytes);
}

Arrival RxContext::arrival_of(const RxMessage& message, const Sender& from) noexcept {
  Arrival arrival;
  arrival.tag = message.tag;
  arrival.source = from.source;
  arrival.length = message.length;
  arrival.data = message.data;
  arrival.flags = message.flags;
  arrival.tagged = (message.flags & rx_flag::kTagged) != 0;
  return arrival;
}

// Keeps a message that no receive matches.
RxAnswer RxContext::keep(const RxMessage& message, const Sender& from, Arrival& arrival,
                         std::span<const std::byte> bytes) noexcept {
  lock_.assert_held();
  const bool credited = (message.flags & rx_flag::kCredited) != 0, whole = (message.flags & rx_flag::kWhole) != 0;
  uint32_t epoch = 0;
  if (mode_.accounts()) {
    const bool may_stay = mode_.keep(credited, &epoch);
    if (!may_stay || mode_.changing()) [[unlikely]]
      sink_->unsettled();
    if (!may_stay) return RxAnswer::refused;
  }
  const RxBuffers::Room room = whole ? room_to_land(message) : buffers_.take(sizeof(Parked) + bytes.size(), credited);
  if (room.memory != nullptr) arrival.cookie = reinterpret_cast<uint64_t>(room.memory);
  Unexpected* const kept = room.memory == nullptr ? nullptr : match_.keep(arrival, credited);
  if (kept == nullptr) [[unlikely]] {
    if (room.memory != nullptr) buffers_.give(room.buffer);
    mode_.taken(epoch);
    return credited ? RxAnswer::no_memory : RxAnswer::refused;
  }
  ::new (room.memory) Parked{message.peer, message.key, message.op_id, message.source, room.buffer,
                             bytes.size(), epoch,       from.index,    message.flags};
  std::copy(bytes.begin(), bytes.end(), room.memory + sizeof(Parked));
  ++kept_;
  if (config_.traced) [[unlikely]]
    sink_->kept(message);
  if (whole) [[unlikely]]
    land(kept);
  const bool waits = (message.flags & (rx_flag::kRendezvous | rx_flag::kWantsMatch)) != 0;
  return waits ? RxAnswer::arrived : RxAnswer::done;
}

RxAnswer RxContext::hold_early(const RxMessage& message, std::span<const std::byte> bytes) noexcept try {
  lock_.assert_held();
  early_[message.sender].push_back({message, {bytes.begin(), bytes.end()}});
  ++senders_[message.sender].early;
  ++early_count_;
  return RxAnswer::none;
} catch (const std::bad_alloc&) {
  return RxAnswer::no_memory;
}

// The refused message has been taken: takes the credited messages behind it. False: no memory for one of them.
bool RxContext::release_early(uint32_t number) noexcept {
  lock_.assert_held();
  const auto found = early_.find(number);
  if (found == early_.end()) return true;
  Sender& s = senders_[number];
  std::vector<Early>& held = found->second;
  for (;;) {
    const auto at = std::ranges::find(held, s.expected, [](const Early& e) { return e.message.sequence; });
    if (at == held.end()) break;
    const Early next = std::move(*at);
    held.erase(at);
    --s.early;
    --early_count_;
    ++s.expected;
    if (take_in(next.message, s, next.bytes) > RxAnswer::refused) return false;
  }
  if (held.empty()) {
    early_.erase(found);
  } else {
    // Between two early messages a refused one is missing: the flow waits for the refused message.
    s.refusing = s.told = true;
  }
  return true;
}

// Copies a message to its receive, and completes the receive unless the rest has to be pulled. False: it has.
// Config::relaxed: the sink copies the message and completes the receive; the sender of an eager one does not wait.
bool RxContext::deliver(const Match& match, const RxMessage& message, uint32_t index,
                        std::span<const std::byte> bytes) noexcept {
  lock_.assert_held();
  Posted* const p = match.posted;
  RxCompletion c = completion_of(match, message, index);
  const size_t here = std::min<size_t>(bytes.size(), match.stored);
  const bool pulls = match.stored > here;
  RxPull pull;
  if (config_.relaxed && match.stored != 0 && (p->flags & kRxScattered) == 0) [[unlikely]]
    pull.carried = RxCarried::make(bytes.first(here));
  if (pull.carried == nullptr && here != 0 &&
      !((p->flags & kRxScattered) == 0 ? mem::copy_guarded(reinterpret_cast<std::byte*>(c.buffer), bytes.data(), here)
                                       : sink_->store(p->extra, 0, bytes.first(here)))) [[unlikely]] {
    c.status = Status::fault;
    c.length = 0;
  } else if (pulls || pull.carried != nullptr) {
    pull.peer = message.peer;
    pull.key = message.key;
    pull.op_id = pulls ? message.op_id : 0;
    pull.from = here;
    pull.to = c.buffer + here;
    pull.bytes = match.stored - here;
    pull.posted = p;
    pull.completion = c;
    pull.eager = (message.flags & rx_flag::kWhole) != 0;
    sink_->pull(pull);
    return !pulls;
  }
  end(p, c);
  return true;
}

// The completion of a receive with this message.
RxCompletion RxContext::completion_of(const Match& match, const RxMessage& message, uint32_t index) noexcept {
  const Posted& p = *match.posted;
  RxCompletion c;
  c.context = p.context;
  c.flags = p.flags;
  c.extra = p.extra;
  c.object = p.callers_object();
  c.buffer = p.address + match.offset;
  c.length = match.stored;
  c.cut = match.cut;
  c.tag = message.tag;
  c.data = message.data;
  c.source = message.source;
  c.index = index;
  c.tagged = p.tagged;
  c.has_data = (message.flags & rx_flag::kHasData) != 0;
  c.multi = p.multi;
  return c;
}

// Completes one message of a receive.
void RxContext::end(Posted* posted, RxCompletion& completion) noexcept {
  lock_.assert_held();
  const bool last = match_.end_use(posted), canceled = posted->state == Posted::State::canceled;
  completion.multi_last = last && posted->multi && !canceled;
  completion.ends = last && !canceled;
  if (last) match_.release(posted);
  if (closed_) {
    if (last) sink_->dropped(completion.context, completion.object, completion.multi);
    return;
  }
  sink_->completed(completion);
  if (last && canceled) {  // a buffer for several messages: the cancel waited for them
    RxCompletion c;
    c.context = completion.context;
    c.flags = completion.flags;
    c.extra = completion.extra;
    c.tagged = completion.tagged;
    c.multi = c.multi_last = c.ends = true;
    c.status = Status::canceled;
    sink_->completed(c);
  }
}

void RxContext::pulled(const RxPull& pull, Status status) noexcept {
  const Guard guard(lock_);
  if (pull.kept != nullptr) [[unlikely]] {
    pulled_whole(pull, status);
    return;
  }
  RxCompletion c = pull.completion;
  if (status != Status::ok) {
    c.status = status;
    c.length = 0;
  }
  end(pull.posted, c);
  if (pull.op_id == 0) return;  // an eager message
  if (status == Status::ok) {
    sink_->done(pull.peer, pull.op_id, c.length);
  } else {  // canceled: the endpoint closes
    sink_->lost(pull.peer, pull.op_id, status == Status::canceled || closed_ ? Status::no_endpoint : status);
  }
}

// ---- receives -------------------------------------------------------------------------------------------------------

RxContext::Post RxContext::post(const Receive& receive, const wire::EpAddress* from) noexcept {
  const Guard guard(lock_);
  if (from == nullptr) [[likely]]
    return post_locked(receive);
  try {
    Receive directed = receive;
    directed.what.source = source_of(*from);
    return post_locked(directed);
  } catch (const std::bad_alloc&) {
    return Post::full;
  }
}

RxContext::Post RxContext::post_locked(const Receive& receive) noexcept {
  lock_.assert_held();
  if (closed_) return Post::closed;
  if (mode_.changing()) [[unlikely]]
    return Post::changing;
  if (receive.more && mode_.state() == RxMode::State::hardware) [[unlikely]]
    return hold(receive);
  if (!held_.empty() && !ring()) [[unlikely]]
    return Post::changing;
  return post_now(receive);
}

// Receives with FI_MORE are commands without a doorbell: the NIC sees them with the next command that rings.
RxContext::Post RxContext::hold(const Receive& receive) noexcept try {
  lock_.assert_held();
  held_.push_back(receive);
  if (held_.size() >= config_.mode.size) (void)ring();  // the queue is full
  return Post::ok;
} catch (const std::bad_alloc&) {
  return Post::full;
}

bool RxContext::ring() noexcept {
  lock_.assert_held();
  while (!held_.empty()) {
    const Receive next = held_.front();
    const Post how = mode_.changing() ? Post::changing : post_now(next);
    if (how == Post::changing) return false;
    held_.pop_front();
    if (how == Post::ok) continue;
    RxCompletion c = ended(next);  // its call has returned
    c.status = how == Post::full ? Status::no_memory : Status::no_entry;
    sink_->completed(c);
  }
  return true;
}

RxContext::Post RxContext::post_now(const Receive& receive) noexcept {
  lock_.assert_held();
  if (!waiting_.empty()) [[unlikely]]
    return wait_for_entry(receive);
  const Post how = append(receive);
  if (how == Post::no_entry) [[unlikely]] {
    if (config_.append_retry_ns != 0) return wait_for_entry(receive);
    sink_->unsettled();
  }
  return how;
}

RxContext::Post RxContext::append(const Receive& receive) noexcept {
  lock_.assert_held();
  Posted* const p = match_.post(receive);
  if (p == nullptr) return Post::full;
  Match match;
  bool used = false;
  while (match_.take_unexpected(p, &match)) {
    const bool last = match.last;
    receive_parked(match);
    if (last) return Post::ok;  // the receive may have been released
    used = true;
  }
  if (mode_.accounts()) {
    if (!mode_.list(used)) [[unlikely]] {
      match_.cancel(p);
      match_.release(p);
      if (!mode_.changing()) return Post::no_entry;
      sink_->unsettled();
      return Post::changing;
    }
    if (mode_.changing()) [[unlikely]]
      sink_->unsettled();
  }
  if (untold_) [[unlikely]]
    tell_ready();  // the receive may match what was refused
  return Post::ok;
}

RxContext::Post RxContext::wait_for_entry(const Receive& receive) noexcept try {
  lock_.assert_held();
  waiting_.push_back({receive, sink_->now_ns() + config_.append_retry_ns});
  sink_->unsettled();
  return Post::ok;
} catch (const std::bad_alloc&) {
  return Post::full;
}

bool RxContext::settle() noexcept {
  const Guard guard(lock_);
  if (closed_) return false;
  if (mode_.changing()) {
    const bool reclaimed = mode_.finish();
    if (mode_.state() == RxMode::State::software) buffers_.change(config_.requests);
    if (reclaimed && untold_) tell_ready();
  }
  while (!waiting_.empty()) {
    const Waiting& first = waiting_.front();
    ++append_attempts_;
    const Post how = append(first.receive);
    if (how != Post::ok) {
      if (sink_->now_ns() < first.until_ns) {
        sink_->unsettled();
        break;
      }
      RxCompletion c = ended(first.receive);
      c.status = Status::no_entry;
      sink_->completed(c);
    }
    waiting_.pop_front();
  }
  const RxMode::Statistics now = mode_.statistics();
  const uint64_t events = now.changes + now.stops + now.pauses + (config_.append_retry_ns != 0 ? 0 : now.no_entries);
  const bool changed = std::exchange(events_told_, events) != events;
  if (changed && config_.traced) [[unlikely]]
    sink_->changed(now);
  return changed;
}

// The completion of a receive that no message has found.
RxCompletion RxContext::ended(const Receive& receive) noexcept {
  RxCompletion c;
  c.context = receive.context;
  c.flags = receive.flags;
  c.extra = receive.extra;
  c.object = receive.multi ? 0 : receive.object;
  c.ends = true;
  c.tagged = receive.what.tagged;
  c.multi = c.multi_last = receive.multi;
  return c;
}

// A receive takes an unexpected message.
void RxContext::receive_parked(const Match& match) noexcept {
  lock_.assert_held();
  Unexpected* const u = match.unexpected;
  if ((u->flags & rx_flag::kWhole) != 0) [[unlikely]] {
    receive_whole(match);
    return;
  }
  const Parked& p = parked(*u);
  const RxMessage message = message_of(*u);
  const std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(u->cookie) + sizeof(Parked), p.eager};
  const bool waits = (message.flags & (rx_flag::kRendezvous | rx_flag::kWantsMatch)) != 0;
  if (deliver(match, message, p.index, bytes) && waits) sink_->done(message.peer, message.op_id, match.stored);
  forget(u);
}

// Frees a message that has been taken out of the lists.
void RxContext::forget(Unexpected* message) noexcept {
  lock_.assert_held();
  mode_.taken(parked(*message).epoch);
  buffers_.give(parked(*message).buffer);
  match_.release(message);
  if (untold_ && !closed_) [[unlikely]]
    tell_ready();
}

void RxContext::tell_ready() noexcept {
  lock_.assert_held();
  untold_ = false;
  for (uint32_t i = 0; i < senders_.size(); ++i) {
    Sender& s = senders_[i];
    if (s.peer == 0 || !s.refusing || s.told) continue;
    s.told = true;
    sink_->ready(s.peer, s.refused_op, i);
  }
}

bool RxContext::cancel(uint64_t context) noexcept {
  const Guard guard(lock_);
  if (closed_) return false;
  Posted* const p = match_.cancel(context);
  if (p == nullptr) return cancel_waiting(context);
  if (mode_.accounts()) mode_.unlisted();
  if (p->under_way != 0) return true;  // end() reports it
  RxCompletion c;
  c.context = p->context;
  c.flags = p->flags;
  c.extra = p->extra;
  c.object = p->callers_object();
  c.ends = true;
  c.tagged = p->tagged;
  c.multi = c.multi_last = p->multi;
  c.status = Status::canceled;
  match_.release(p);
  sink_->completed(c);
  return true;
}

bool RxContext::cancel_waiting(uint64_t context) noexcept {
  lock_.assert_held();
  RxCompletion c;
  if (const auto w = std::ranges::find(waiting_, context, [](const Waiting& one) { return one.receive.context; });
      w != waiting_.end()) {
    c = ended(w->receive);
    waiting_.erase(w);
  } else if (const auto h = std::ranges::find(held_, context, &Receive::context); h != held_.end()) {
    c = ended(*h);
    held_.erase(h);
  } else {
    return false;
  }
  c.status = Status::canceled;
  sink_->completed(c);
  return true;
}

// ---- flows and ends -------------------------------------------------------------------------------------------------

void RxContext::set_limits(const MatchUnit::Limits& limits) noexcept {
  const Guard guard(lock_);
  match_.set_limits(limits);
  if (untold_) tell_ready();
}

void RxContext::resume() noexcept {
  const Guard guard(lock_);
  if (untold_) tell_ready();
}

void RxContext::close() noexcept {
  const Guard guard(lock_);
  if (closed_) return;
  closed_ = true;
  try {
    for (Posted* posted : match_.listed()) {
      match_.cancel(posted);
      if (posted->under_way != 0) continue;  // the last end() drops it
      sink_->dropped(posted->context, posted->callers_object(), posted->multi);
      match_.release(posted);
    }
  } catch (const std::bad_alloc&) {  // the contexts stay until the process ends
  }
  for (const Waiting& w : waiting_) sink_->dropped(w.receive.context, w.receive.object, w.receive.multi);
  waiting_.clear();
  for (const Receive& h : held_) sink_->dropped(h.context, h.object, h.multi);
  held_.clear();
  const auto lose = [this](const Unexpected& u) {
    if ((u.flags & (rx_flag::kRendezvous | rx_flag::kWantsMatch)) != 0)
      sink_->lost(parked(u).peer, parked(u).op_id, Status::no_endpoint);
  };
  match_.each_unexpected(lose);
  for (const Unexpected* u : claimed_) lose(*u);
  mode_.close();
  if (copies_ == 0) buffers_.close();  // otherwise the last copy does
}

std::vector<RxCompletion> RxContext::unexpected_messages(size_t max, size_t* total) {
  const Guard guard(lock_);
  std::vector<RxCompletion> all;
  *total = 0;
  if (closed_) return all;  // the messages are gone
  match_.each_unexpected([&](const Unexpected& u) {
    if (++*total <= max) all.push_back(seen(u, 0, 0));
  });
  return all;
}

bool RxContext::open() noexcept {
  const Guard guard(lock_);
  if (!mode_.open()) return false;
  buffers_.open();
  return true;
}

RxContext::Statistics RxContext::statistics() noexcept {
  const Guard guard(lock_);
  Statistics s;
  s.match = match_.statistics();
  s.buffers = buffers_.statistics();
  s.flows = senders_.size() - senders_free_.size();
  s.flows_by_index = indexed_;
  s.sources = sources_.size();
  s.matched = matched_;
  s.unexpected = kept_;
  s.refused = refused_;
  s.early = early_count_;
  s.mode = mode_.statistics();
  s.waiting = waiting_.size();
  s.append_attempts = append_attempts_;
  return s;
}

}  // namespace weft::nic
