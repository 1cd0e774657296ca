// cpp/nic/rx_brief.cpp: credited messages in their short form, from the frame to the completion entry.
#include "mem/guard.hpp"
#include "nic/domain.hpp"
#include "nic/queue.hpp"
#include "nic/rx_port.hpp"

namespace weft::nic {

// HOT. Lines: as arrive(). A message whose turn it is, and that fits into a receive of one buffer and one message, ends
// here; all others take the long way, with the same outcome.
RxAnswer RxContext::arrive_brief(uint64_t peer, const wire::BriefView& brief) noexcept {
  const Guard guard(lock_);
  if (closed_) [[unlikely]]
    return RxAnswer::closed;
  const wire::Brief& head = brief.head;
  if (head.sender >= senders_.size()) [[unlikely]]
    return RxAnswer::broken;
  Sender& from = senders_[head.sender];
  if (from.peer != peer) [[unlikely]]
    return RxAnswer::broken;
  if (from.cut) [[unlikely]]
    return RxAnswer::closed;
  const size_t length = brief.payload.size();
  const bool in_turn = from.credits != 0 && head.sequence == from.expected && !from.refusing;
  if (!in_turn || length > config_.credited_bytes_max || config_.relaxed) [[unlikely]]
    return take_credited(&from, message_of(peer, from, brief), brief.payload);
  Posted* const p = match_.find_posted((head.flags & wire::kMessageTagged) != 0, head.tag, from.source);
  if (p == nullptr) {
    const RxMessage message = message_of(peer, from, brief);
    Arrival arrival = arrival_of(message, from);
    --from.credits;
    const RxAnswer kept = keep(message, from, arrival, brief.payload);
    if (kept >= RxAnswer::refused) [[unlikely]]
      return kept;
    ++from.expected;
    return RxAnswer::none;
  }
  // The buffer is this process's own, as the buffers of its puts are.
  if (p->multi || length > p->length || (p->flags & kRxScattered) != 0 ||
      (length != 0 && !mem::copy_guarded_hot(reinterpret_cast<std::byte*>(p->address), brief.payload.data(), length)))
      [[unlikely]]
    return take_credited(&from, message_of(peer, from, brief), brief.payload);
  --from.credits;
  ++from.expected;
  ++matched_;
  if (mode_.accounts()) [[unlikely]]
    mode_.unlisted();
  match_.finish(p);
  sink_->received(*p, brief, from.address, from.index);
  return RxAnswer::none;
}

RxMessage RxContext::message_of(uint64_t peer, const Sender& from, const wire::BriefView& brief) noexcept {
  RxMessage m;
  m.peer = peer;
  m.source = from.address;
  m.sender = brief.head.sender;
  m.sequence = brief.head.sequence;
  m.tag = brief.head.tag;
  m.data = brief.data;
  m.length = brief.payload.size();
  m.flags = wire::message_flags(brief.head.flags) | rx_flag::kCredited;
  return m;
}

// ---- the sink -------------------------------------------------------------------------------------------------------

void RxSink::received(const Posted& receive, const wire::BriefView& message, const wire::EpAddress& source,
                      uint32_t index) noexcept {
  RxCompletion c;
  c.context = receive.context;
  c.flags = receive.flags;
  c.extra = receive.extra;
  c.object = receive.callers_object();
  c.buffer = receive.address;
  c.length = message.payload.size();
  c.tag = message.head.tag;
  c.data = message.data;
  c.source = source;
  c.index = index;
  c.tagged = (message.head.flags & wire::kMessageTagged) != 0;
  c.has_data = (message.head.flags & wire::kMessageHasData) != 0;
  c.ends = true;
  completed(c);
}

// HOT. What completed() does for most receives: one entry, written into the queue's memory.
void RxPort::received(const Posted& r, const wire::BriefView& m, const wire::EpAddress& source,
                      uint32_t index) noexcept {
  if (counter_ != nullptr || trace_ != nullptr || (r.flags & kHasMore) != 0) [[unlikely]] {
    RxSink::received(r, m, source, index);
    return;
  }
  uint64_t context = r.context;
  if ((r.flags & kWants) != 0) [[likely]] {
    const bool has_data = (m.head.flags & wire::kMessageHasData) != 0;
    const uint64_t kind = (m.head.flags & wire::kMessageTagged) != 0 ? flag::kTagged : flag::kMsg;
    cq_->push_received([&](RxEntry& e) {
      e.entry.context = context;
      e.entry.flags = flag::kRecv | kind | (has_data ? flag::kRemoteCqData : uint64_t{0});
      e.entry.len = m.payload.size();
      e.entry.buf = tells_buffers_ ? r.address : 0;
      e.entry.data = m.data;
      e.entry.tag = m.head.tag;
      e.entry.source = ~uint64_t{0};
      e.entry.error = e.entry.reserved = 0;
      e.status = Status::ok;
      e.sources = sources_;
      if (sources_ == nullptr) return;  // nobody reads the rest
      e.from = source;
      e.index = index;
      e.source_error = source_error_;
      e.cut = 0;
      if (source_error_) e.no_source = domain_->config().statuses[Status::no_source];
    });
    context = 0;
  }
  if (r.extra != kNoExtra || r.object != 0 || context != 0) release(r.extra, r.object, context);
}

}  // namespace weft::nic
