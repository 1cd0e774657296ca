// cpp/nic/rx_land.cpp: eager messages of several frames. The frame announces such a message, and its rest is pulled at
// once: into the receive that matches, or, without one, into the memory of kept messages, where the message lands. Its
// sender hears `done` when the bytes are here. Long copies are pulls too: the sink makes them outside the lock.

#include "nic/rx.hpp"

namespace weft::nic {

namespace {

constexpr uint64_t whole_lines(uint64_t bytes) noexcept {
  return (bytes + kCacheLine - 1) & ~uint64_t{kCacheLine - 1};
}

}  // namespace

RxContext::Landing& RxContext::landing(const Unexpected& u) noexcept {
  return *reinterpret_cast<Landing*>(u.cookie + sizeof(Parked) + whole_lines(u.length));
}

// The length is the peer's word: a message that is longer than a buffer has no room.
RxBuffers::Room RxContext::room_to_land(const RxMessage& message) noexcept {
  lock_.assert_held();
  if (message.length > buffers_.config().bytes) return {};
  return buffers_.take(sizeof(Parked) + whole_lines(message.length) + sizeof(Landing));
}

// The rest of a kept message is pulled into its room.
void RxContext::land(Unexpected* message) noexcept {
  lock_.assert_held();
  const Parked& p = parked(*message);
  ::new (static_cast<void*>(&landing(*message))) Landing{};
  message->flags |= rx_flag::kLanding;
  RxPull pull;
  pull.peer = p.peer;
  pull.key = p.key;
  pull.op_id = p.op_id;
  pull.from = p.eager;
  pull.to = message->cookie + sizeof(Parked) + p.eager;
  pull.bytes = message->length - p.eager;
  pull.completion.source = p.source;
  pull.eager = true;
  pull.kept = message;
  ++copies_;
  sink_->pull(pull);
}

// A receive takes a message that has landed, or is landing.
void RxContext::receive_whole(const Match& match) noexcept {
  lock_.assert_held();
  Unexpected* const u = match.unexpected;
  Landing& l = landing(*u);
  if ((u->flags & rx_flag::kLanding) != 0) {
    l.match = match;  // landed() goes on
    return;
  }
  const RxMessage message = message_of(*u);
  RxCompletion c = completion_of(match, message, parked(*u).index);
  if (l.status != Status::ok) {
    c.status = l.status;
    c.length = 0;
  }
  if ((message.flags & rx_flag::kWantsMatch) != 0) sink_->done(message.peer, message.op_id, c.length);
  if (c.length == 0) {
    end(match.posted, c);
    forget(u);
    return;
  }
  RxPull pull;
  pull.to = c.buffer;
  pull.bytes = c.length;
  pull.posted = match.posted;
  pull.completion = c;
  pull.eager = true;
  pull.kept = u;
  pull.lies = u->cookie + sizeof(Parked);
  ++copies_;
  sink_->pull(pull);
}

void RxContext::pulled_whole(const RxPull& pull, Status status) noexcept {
  lock_.assert_held();
  if (pull.posted == nullptr) {
    landed(pull.kept, status);
  } else {
    RxCompletion c = pull.completion;
    if (status != Status::ok) {
      c.status = status;
      c.length = 0;
    }
    end(pull.posted, c);
    forget(pull.kept);
  }
  if (--copies_ == 0 && closed_) buffers_.close();
}

// The bytes of a kept message have come, or will not come. Meanwhile a receive may have taken the message, a call have
// claimed or discarded it, or the endpoint have closed.
void RxContext::landed(Unexpected* message, Status status) noexcept {
  lock_.assert_held();
  Landing& l = landing(*message);
  const RxMessage of = message_of(*message);
  const bool taken = message->state == Unexpected::State::taken;
  if (closed_) status = Status::canceled;
  l.status = status;
  message->flags &= static_cast<uint16_t>(~(rx_flag::kLanding | rx_flag::kRendezvous));
  if (status == Status::ok) {
    parked(*message).eager = message->length;
    if ((of.flags & rx_flag::kWantsMatch) == 0) sink_->done(of.peer, of.op_id, of.length);
  } else {
    message->flags &= static_cast<uint16_t>(~rx_flag::kWantsMatch);
    // close() has told the senders of the messages in the lists.
    if (!closed_ || taken) sink_->lost(of.peer, of.op_id, status == Status::canceled ? Status::no_endpoint : status);
  }
  if (taken && l.match.posted != nullptr) {
    receive_whole(Match(l.match));
  } else if (taken) {
    drop(message);
  } else if (status != Status::ok && !closed_ && message->state == Unexpected::State::listed) {
    match_.take(message);
    forget(message);
  }
}

}  // namespace weft::nic
