// cpp/nic/rx_port.cpp: see rx_port.hpp.
#include "nic/rx_port.hpp"

#include <algorithm>
#include <mutex>
#include <new>

#include "base/backoff.hpp"
#include "mem/guard.hpp"
#include "nic/iov.hpp"
#include "nic/nic.hpp"
#include "nic/queue.hpp"
#include "nic/reach.hpp"

namespace weft::nic {

namespace {

// The packets of a message come into memory in any order: each of them has PCIe's Relaxed Order bit.
bool is_relaxed(const EndpointConfig& config) noexcept {
  return config.reorder.on && config.messages.reads_max == 0;
}

RxContext::Config config_of(const EndpointConfig& config, mem::Devices* devices, uint64_t seed, bool traced) noexcept {
  const MessageConfig& m = config.messages;
  RxContext::Config c;
  c.limits = {m.posted_max, m.unexpected_max};
  c.buffers = m.buffers;
  c.credits = m.credits;
  c.credited_bytes_max = wire::kInlinePayloadMax;
  c.seed = seed;
  c.relaxed = is_relaxed(config);
  c.mode = m.match;
  c.mode.buffers = m.buffers.posted_min;
  c.mode.requests = m.requests.posted_min;
  c.requests = m.requests;
  c.append_retry_ns = m.append_retry_ns;
  c.traced = traced;
  if (m.registers_buffers) c.buffers.devices = c.requests.devices = devices;
  return c;
}

}  // namespace

RxPort::RxPort(Endpoint* ep, std::shared_ptr<CompletionQueue> cq, std::shared_ptr<Counter> counter, bool selective,
               const AddressVector* sources, uint64_t seed)
    : ep_(ep),
      domain_(ep->domain()),
      nic_(ep->domain()->nic()),
      cq_(std::move(cq)),
      counter_(std::move(counter)),
      sources_(sources),
      trace_(ep->trace()),
      generation_(ep->generation()),
      selective_(selective),
      source_error_(ep->config().messages.source_error),
      tells_buffers_(ep->config().messages.tells_buffers),
      software_counts_(ep->config().messages.software_counts),
      min_multi_recv_(ep->config().messages.min_multi_recv),
      reads_max_(ep->config().messages.reads_max),
      rx_(config_of(ep->config(), &nic_->devices(), seed, ep->trace() != nullptr), this) {
  if (!is_relaxed(ep->config())) return;
  ReorderConfig relaxed = ep->config().reorder;
  relaxed.target = TargetOrder::relaxed;
  relaxed_.emplace(relaxed);
}

RxReply RxPort::arrive(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                       std::span<const std::byte> payload) {
  RxMessage m;
  m.peer = peer->number;
  m.source = frame.source;
  m.sender = frame.message.sender;
  m.sequence = frame.message.sequence;
  m.tag = frame.message.tag;
  m.data = frame.message.data;
  m.length = frame.message.length;
  m.key = frame.message.key;
  m.op_id = frame.op_id;
  m.flags = frame.flags;
  return rx_.arrive(m, payload);
}

// ---- receives ------------------------------------------------------------------------------------------------------

PostResult RxPort::post(const ReceiveArgs& args, const wire::EpAddress* from) {
  Receive r;
  r.what = {args.tag, args.ignore, kAnySource, args.tagged};
  if ((args.flags & flag::kPeek) != 0) return peek(args, r.what, from);
  const uint64_t length = sum_bytes(args.local);
  if (length == kNoSum) return {Refusal::length_mismatch};
  const bool discard = (args.flags & flag::kDiscard) != 0;
  const bool plain = args.local.size() <= 1 && args.device == 0;
  r.length = length;
  r.context = args.context;
  r.flags = (args.flags & flag::kMultiRecv) |
            ((!selective_ && !args.deferred) || (args.flags & flag::kCompletion) != 0 ? kWants : uint64_t{0});
  r.multi = (args.flags & flag::kMultiRecv) != 0;
  r.more = (args.flags & flag::kMore) != 0 && ep_->config().holds_more;
  r.min_left = min_multi_recv_.load(std::memory_order_relaxed);
  r.extra = kNoExtra;
  if (!args.local.empty()) r.address = reinterpret_cast<uint64_t>(args.local[0].iov_base);
  try {
    if (plain && !r.multi && !args.counter && args.cookies.size() <= 1) [[likely]] {
      if (!args.cookies.empty()) r.object = args.cookies[0];
    } else if (!plain || !args.cookies.empty() || args.counter) {
      r.extra = hold(args, length, &r.flags);
    }
  } catch (const std::bad_alloc&) {
    return {Refusal::rx_full};
  }
  if (args.device != 0) {
    r.address = reinterpret_cast<uint64_t>(more(r.extra).bounce.data());
  } else if (!plain) {
    r.flags |= kRxScattered;
  }
  Refusal refusal = Refusal::none;
  if ((args.flags & flag::kClaim) != 0) {
    switch (rx_.receive_claimed(r, discard)) {
      case RxContext::Found::found:
        break;
      case RxContext::Found::missing:
        refusal = Refusal::no_claim;
        break;
      case RxContext::Found::full:
        refusal = Refusal::rx_full;
        break;
      case RxContext::Found::closed:
        refusal = Refusal::closed;
        break;
      case RxContext::Found::changing:
        refusal = Refusal::rx_changing;
        break;
    }
  } else {
    switch (rx_.post(r, from)) {
      case RxContext::Post::ok:
        break;
      case RxContext::Post::full:
        refusal = Refusal::rx_full;
        break;
      case RxContext::Post::closed:
        refusal = Refusal::closed;
        break;
      case RxContext::Post::changing:
        refusal = Refusal::rx_changing;
        break;
      case RxContext::Post::no_entry:
        refusal = Refusal::rx_no_entry;
        break;
    }
  }
  if (refusal != Refusal::none) [[unlikely]] {
    if (r.extra != kNoExtra) (void)take_held(r.extra);  // the caller keeps its objects
    return {refusal};
  }
  if (discard && (r.extra != kNoExtra || r.object != 0)) release(r.extra, r.object, 0);
  if (trace_ != nullptr) [[unlikely]]
    record(TraceKind::post, length, args.tag, 0, args.context);
  if (has_pulls()) [[unlikely]]
    run_pulls();
  return {Refusal::none, true};
}

PostResult RxPort::peek(const ReceiveArgs& args, const Pattern& what, const wire::EpAddress* from) noexcept {
  const auto how = (args.flags & flag::kClaim) != 0     ? RxContext::Peek::claim
                   : (args.flags & flag::kDiscard) != 0 ? RxContext::Peek::discard
                                                        : RxContext::Peek::look;
  switch (rx_.peek(what, how, args.context, kWants, from)) {
    case RxContext::Found::found:
      break;
    case RxContext::Found::missing: {
      RxCompletion c;
      c.context = args.context;
      c.flags = kWants;
      c.tag = what.tag;
      c.tagged = what.tagged;
      report(c, Status::no_message, flag::kRecv | (what.tagged ? flag::kTagged : flag::kMsg));
      break;
    }
    case RxContext::Found::full:
      return {Refusal::rx_full};
    case RxContext::Found::closed:
      return {Refusal::closed};
    case RxContext::Found::changing:
      return {Refusal::rx_changing};
  }
  return {Refusal::none, true};
}

uint32_t RxPort::hold(const ReceiveArgs& args, uint64_t length, uint64_t* flags) {
  Held made;
  if (!args.cookies.empty()) made.cookie = args.cookies[0];
  if (args.device != 0 || args.local.size() > 1 || args.cookies.size() > 1 || args.counter) [[unlikely]] {
    *flags |= kHasMore;
    made.more = std::make_unique<More>();
    made.more->device = args.device;
    if (args.cookies.size() > 1) made.more->cookies.assign(args.cookies.begin() + 1, args.cookies.end());
    made.more->counter = args.counter;
    if (args.device != 0 || args.local.size() > 1) made.more->list.assign(args.local.begin(), args.local.end());
    if (args.device != 0) made.more->bounce.resize(length);
  }
  const Guard guard(held_lock_);
  if (held_free_.empty()) {
    if (held_free_.capacity() <= held_.size())
      held_free_.reserve(2 * held_.size() + 16);  // take_held() allocates nothing
    held_.emplace_back();
    held_free_.push_back(static_cast<uint32_t>(held_.size() - 1));
  }
  const uint32_t extra = held_free_.back();
  held_free_.pop_back();
  held_[extra] = std::move(made);
  return extra;
}

RxPort::More& RxPort::more(uint32_t extra) noexcept {
  const Guard guard(held_lock_);
  return *held_[extra].more;
}

RxPort::Held RxPort::take_held(uint32_t extra) noexcept {
  const Guard guard(held_lock_);
  held_free_.push_back(extra);
  return std::exchange(held_[extra], {});
}

// Returns the objects of a receive, and its context if no completion has taken the context.
void RxPort::release(uint32_t extra, uint64_t object, uint64_t context) noexcept {
  if (extra != kNoExtra) [[unlikely]] {
    const Held held = take_held(extra);
    if (held.cookie != 0) domain_->release_received({&held.cookie, 1}, std::exchange(context, 0));
    if (held.more) domain_->release_received(held.more->cookies, 0);
  }
  domain_->release_received({&object, object != 0 ? size_t{1} : size_t{0}}, context);
}

// ---- the sink: under the context's lock ----------------------------------------------------------------------------

bool RxPort::is_full() noexcept {
  return cq_->is_full_of_receives(ep_->receiver());
}

bool RxPort::store(uint32_t extra, uint64_t offset, std::span<const std::byte> bytes) noexcept {
  return scatter(more(extra).list, offset, bytes.data(), bytes.size()) == Status::ok;
}

void RxPort::completed(const RxCompletion& c) noexcept {
  Status status = c.status;
  Counter* counter = counter_.get();
  const More* const m = (c.flags & kHasMore) != 0 ? &more(c.extra) : nullptr;
  if (m != nullptr) [[unlikely]] {
    if (m->counter) counter = m->counter.get();
    if (m->device != 0 && status == Status::ok) {
      std::byte* const from = reinterpret_cast<std::byte*>(c.buffer);
      status = copy_device_part(nic_->devices(), m->list, m->device, static_cast<uint64_t>(from - m->bounce.data()),
                                {from, c.length}, false);
    }
  }
  if (status == Status::ok && c.cut != 0) status = Status::truncated;
  if (trace_ != nullptr) [[unlikely]]
    record(TraceKind::received, c.length, c.tag, c.source.pid, c.context, status);
  if (counter != nullptr) [[unlikely]] {
    const uint64_t errors = status != Status::ok ? 1 : 0;
    const uint64_t n = errors != 0 || !(c.ends || c.multi) ? 0 : counter->counts_bytes ? c.length : 1;
    if (software_counts_ && counter == counter_.get()) {  // a counter of deferred work belongs to the NIC
      counter->add_late(n, errors);
      domain_->note_software();
    } else if (errors != 0) {
      counter->add_errors(errors);
    } else if (n != 0) {
      counter->add(n);
    }
  }
  const bool wants = (c.flags & kWants) != 0 || status != Status::ok;
  uint64_t context = c.context;
  if (wants) {
    RxCompletion told = c;
    if (m != nullptr && m->device != 0) [[unlikely]]
      told.buffer = device_address(*m, c.buffer);
    report(told, status,
           flag::kRecv | (c.tagged ? flag::kTagged : flag::kMsg) | (c.has_data ? flag::kRemoteCqData : uint64_t{0}) |
               (c.multi_last ? flag::kMultiRecv : uint64_t{0}));
    if (c.ends) context = 0;
  } else if (c.multi_last) {
    RxCompletion last;  // the buffer is the application's again
    last.context = c.context;
    last.ends = true;
    report(last, Status::ok, flag::kMultiRecv);
    context = 0;
  }
  if (c.ends && (c.extra != kNoExtra || c.object != 0 || context != 0)) release(c.extra, c.object, context);
}

// Where the bytes at an address of `bounce` belong.
uint64_t RxPort::device_address(const More& more, uint64_t in_bounce) noexcept {
  uint64_t offset = in_bounce - reinterpret_cast<uint64_t>(more.bounce.data());
  for (const iovec& v : more.list) {
    if (offset < v.iov_len) return reinterpret_cast<uint64_t>(v.iov_base) + offset;
    offset -= v.iov_len;
  }
  return more.list.empty() ? 0 : reinterpret_cast<uint64_t>(more.list[0].iov_base);
}

void RxPort::report(const RxCompletion& c, Status status, uint64_t flags) noexcept {
  cq_->push_received([&](RxEntry& e) {
    e.entry.context = c.context;
    e.entry.flags = flags;
    e.entry.len = c.length;
    e.entry.buf = c.multi || tells_buffers_ || status == Status::truncated ? c.buffer : 0;
    e.entry.data = c.data;
    e.entry.tag = c.tag;
    e.entry.source = ~uint64_t{0};
    e.entry.error = 0;
    // The context belongs to the receive's last entry; earlier ones share it.
    e.entry.reserved = c.multi && !c.ends ? CqEntry::kSharedContext : 0;
    e.from = c.source;
    e.index = c.index;
    const bool tells = (flags & flag::kRecv) != 0 && status != Status::canceled && status != Status::no_message;
    e.sources = tells ? sources_ : nullptr;
    e.source_error = tells && source_error_;
    e.status = status;
    e.cut = c.cut;
    if (status != Status::ok) [[unlikely]]
      e.code = domain_->config().statuses[status];
    if (e.source_error) [[unlikely]]
      e.no_source = domain_->config().statuses[Status::no_source];
  });
}

void RxPort::kept(const RxMessage& message) noexcept {
  record(TraceKind::kept, message.length, message.tag, message.source.pid, message.op_id);
}

void RxPort::record(TraceKind kind, uint64_t bytes, uint64_t tag, uint32_t peer, uint64_t id, Status status) noexcept {
  TraceRecord r;
  r.kind = kind;
  r.id = id;
  r.bytes = bytes;
  r.arg = tag;
  r.peer = peer;
  r.status = static_cast<int32_t>(status);
  trace_->add(r);
}

void RxPort::done(uint64_t peer, uint64_t op_id, uint64_t bytes) noexcept {
  tell_done(peer, op_id, Status::ok, bytes);
}

void RxPort::lost(uint64_t peer, uint64_t op_id, Status why) noexcept {
  tell_done(peer, op_id, why, 0);
}

void RxPort::dropped(uint64_t context, uint64_t object, bool multi) noexcept {
  if (multi) {
    cq_->keep_context(context);
  } else {
    release(kNoExtra, object, context);
  }
}

void RxPort::tell_done(uint64_t peer, uint64_t op_id, Status status, uint64_t bytes) noexcept {
  const std::shared_ptr<link::Peer> to = nic_->peer_of(peer);
  if (!to) return;  // the sender has been told that the endpoint is closed
  wire::Frame f;
  f.kind = wire::FrameKind::done;
  f.status = static_cast<int32_t>(status);
  f.op_id = op_id;
  f.reply = {};
  f.reply.length = bytes;
  nic_->send_notice(to, f);
}

void RxPort::ready(uint64_t peer, uint64_t op_id, uint32_t sender) noexcept {
  const std::shared_ptr<link::Peer> to = nic_->peer_of(peer);
  if (!to) return;
  wire::Frame f;
  f.kind = wire::FrameKind::ready;
  f.op_id = op_id;
  f.reply = {};
  f.reply.sender = sender;
  nic_->send_notice(to, f);
}

void RxPort::pull(const RxPull& pull) noexcept {
  if (trace_ != nullptr && !pull.eager) [[unlikely]]
    record(TraceKind::matched, pull.bytes, pull.completion.tag, pull.completion.source.pid, pull.op_id);
  {
    const Guard guard(held_lock_);
    try {
      if (is_read(pull)) {
        reads_waiting_.push_back(pull);
      } else {
        pulls_.push_back(pull);
        pull_count_.fetch_add(1, std::memory_order_relaxed);
      }
    } catch (const std::bad_alloc&) {
      // The receive stays open until its endpoint is closed.
    }
  }
  if (pull.lies != 0) [[unlikely]]
    nic_->wake_pulls();  // no other call may follow when a message has landed
  if (is_read(pull) || relaxed_) [[unlikely]] {
    domain_->note_software();
    cq_->event.notify();  // a waiting reader makes the progress
  }
}

// ---- the match mode ------------------------------------------------------------------------------------------------

void RxPort::unsettled() noexcept {
  unsettled_.store(true, std::memory_order_relaxed);
  nic_->wake_pulls();
}

uint64_t RxPort::now_ns() noexcept {
  return nic_->clock().now_ns();
}

void RxPort::settle() noexcept {
  if (unsettled_.exchange(false, std::memory_order_relaxed) && rx_.settle())
    domain_->tell(ep_->address().pid, News::match_mode);
}

void RxPort::changed(const RxMode::Statistics& mode) noexcept {
  TraceRecord r;
  r.kind = TraceKind::match_mode;
  r.what = static_cast<uint8_t>(mode.state);
  r.arg = static_cast<uint64_t>(mode.cause);
  trace_->add(r);
}

// ---- pulls ---------------------------------------------------------------------------------------------------------

size_t RxPort::run_pulls(bool at_once) noexcept {
  size_t n = 0;
  std::unique_lock<decltype(relaxed_lock_)> alone;
  if (relaxed_) [[unlikely]] {
    alone = std::unique_lock(relaxed_lock_, std::try_to_lock);
    if (!alone.owns_lock()) {
      domain_->note_software();
      return 0;
    }
  }
  for (uint32_t left = pull_count_.load(std::memory_order_relaxed); left != 0; --left) {
    RxPull next;
    {
      const Guard guard(held_lock_);
      if (pulls_.empty() || closed_.load(std::memory_order_relaxed)) break;
      next = pulls_.front();
      pulls_.pop_front();
      pulling_.fetch_add(1, std::memory_order_relaxed);
      pull_count_.fetch_sub(1, std::memory_order_relaxed);
    }
    n += run_pull(next, at_once) ? 1 : 0;
    pulling_.fetch_sub(1, std::memory_order_release);
  }
  if (has_pulls()) nic_->wake_pulls();
  return n;
}

// Starts reads, at most reads_max_ at a time; end_read() goes on.
void RxPort::run_reads() noexcept {
  for (;;) {
    RxPull next;
    {
      const Guard guard(held_lock_);
      if (reads_waiting_.empty() || closed_.load(std::memory_order_relaxed) || reads_now_ == reads_max_) return;
      if (++reads_now_ > reads_most_.load(std::memory_order_relaxed))
        reads_most_.store(reads_now_, std::memory_order_relaxed);
      next = reads_waiting_.front();
      reads_waiting_.pop_front();
      pulling_.fetch_add(1, std::memory_order_relaxed);
    }
    run_pull(next, true);
    pulling_.fetch_sub(1, std::memory_order_release);
  }
}

bool RxPort::run_pull(RxPull& pull, bool at_once) noexcept {
  Status status = Status::peer_gone;
  Pulled how = Pulled::ended;
  if (pull.lies != 0) {
    status = copy_kept(pull);
  } else {
    const std::shared_ptr<link::Peer> peer = nic_->peer_of(pull.peer);
    if (pull.carried != nullptr) [[unlikely]] {
      if (!run_carried(pull, peer, at_once, &status)) return false;
      if (pull.bytes == 0 || status != Status::ok) {
        pulled(pull, status);
        return true;
      }
      status = Status::peer_gone;
    }
    if (pull.shared != 0) [[unlikely]] {
      how = end_shared(pull, &status);
    } else if (peer) {
      how = is_read(pull) ? Pulled::by_frames : pull_now(pull, peer, &status);
    }
    if (!pull.eager && how != Pulled::later) (reads_max_ != 0 ? reads_ : gets_).fetch_add(1, std::memory_order_relaxed);
    if (!pull.eager && ep_->config().traffic.on &&
        (how == Pulled::by_frames || (how == Pulled::ended && status == Status::ok))) {
      nic_->count_at(pull.completion.source.nic, reads_max_ != 0 ? traffic::kRestricted : uint16_t{0}, pull.bytes,
                     false);
    }
    if ((how == Pulled::by_frames && !ep_->pull_by_frames(*this, pull, peer)) ||
        (how == Pulled::later && !put_back(pull))) {
      await_shared(pull);
      status = Status::no_memory;
      how = Pulled::ended;
    }
  }
  if (how != Pulled::ended) return false;
  pulled(pull, status);
  return true;
}

// WEFT_CXI_REORDER. True: the carried bytes are in the buffer, or failed to be. False: some are late, and the pull
// waits.
bool RxPort::run_carried(RxPull& pull, const std::shared_ptr<link::Peer>& peer, bool at_once, Status* status) noexcept {
  RxCarried& carried = *pull.carried;
  const uint64_t now = now_ns();
  const bool waits = !carried.begun || (!at_once && now < carried.due_ns);
  if (!carried.begun) {
    land_some(pull, peer);
    carried.begun = true;
    carried.due_ns = now + Decisions::kDueNs;
  }
  if (waits && put_back(pull)) {
    domain_->note_software();
    return false;
  }
  *status = mem::copy_guarded(reinterpret_cast<std::byte*>(pull.to) - pull.from, carried.bytes.data(), pull.from)
                ? Status::ok
                : Status::fault;
  return true;
}

// The bytes of a kept message go into the buffer of its receive.
Status RxPort::copy_kept(const RxPull& pull) noexcept {
  const auto* const from = reinterpret_cast<const std::byte*>(pull.lies);
  if ((pull.completion.flags & kRxScattered) != 0)
    return scatter(more(pull.completion.extra).list, 0, from, pull.bytes);
  return mem::copy_guarded(reinterpret_cast<std::byte*>(pull.to), from, pull.bytes) ? Status::ok : Status::fault;
}

// False: out of memory.
bool RxPort::put_back(const RxPull& pull) noexcept try {
  const Guard guard(held_lock_);
  pulls_.push_back(pull);
  pull_count_.fetch_add(1, std::memory_order_relaxed);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// WEFT_CXI_REORDER: copies some packets of a message, while the others are late.
void RxPort::land_some(const RxPull& pull, const std::shared_ptr<link::Peer>& peer) noexcept try {
  const std::vector<bool> late = relaxed_->late_packets(pull.from + pull.bytes, false);
  auto* const start = reinterpret_cast<std::byte*>(pull.to) - pull.from;
  for (size_t i = 0; i < late.size(); ++i) {
    if (late[i]) continue;
    const uint64_t at = i * kPacketBytes, end = std::min(at + kPacketBytes, pull.from + pull.bytes);
    const uint64_t carried = std::clamp(pull.from, at, end);  // up to here the frame has brought it
    if (carried != at) (void)mem::copy_guarded(start + at, pull.carried->bytes.data() + at, carried - at);
    if (carried == end || !peer) continue;
    RxPull part = pull;
    part.from = carried;
    part.to = reinterpret_cast<uint64_t>(start + carried);
    part.bytes = end - carried;
    Status status = Status::ok;  // the pull of everything reports failures
    (void)pull_now(part, peer, &status);
  }
} catch (const std::bad_alloc&) {  // then all of them are late
}

void RxPort::pulled(const RxPull& pull, Status status) noexcept {
  rx_.pulled(pull, status);
  if (is_read(pull)) [[unlikely]]
    end_read();
}

void RxPort::end_read() noexcept {
  {
    const Guard guard(held_lock_);
    --reads_now_;
    if (reads_waiting_.empty()) return;
  }
  domain_->note_software();
  cq_->event.notify();
}

std::vector<iovec> RxPort::buffers_of(const RxPull& pull) {
  if ((pull.completion.flags & kRxScattered) == 0) return {{reinterpret_cast<void*>(pull.to), pull.bytes}};
  return part_of(more(pull.completion.extra).list, pull.from, pull.bytes);
}

// Copies from the sender's memory, if load and store or the kernel reach it.
RxPort::Pulled RxPort::pull_now(RxPull& pull, const std::shared_ptr<link::Peer>& peer, Status* status) noexcept try {
  if (pull.key == 0 || !peer->table.valid()) return Pulled::by_frames;
  if (peer->dead()) {
    *status = peer->down_status();
    return Pulled::ended;
  }
  // SYNC POINT: the activity is visible before the entry is read, so a sender that closes the entry waits for the copy.
  const uint32_t activity = nic_->begin_long_activity(static_cast<uint32_t>(pull.key & wire::kKeySlotMax));
  mem::MrView view;
  Piece pieces[kMaxPieces];
  uint32_t count = 0, missing = 0;
  Opened opened;
  Pulled how = Pulled::ended;
  *status = peer->table.check_lent(pull.key, pull.from, pull.bytes, view);
  if (*status == Status::ok) {
    switch (translate(*peer, nic_->devices(), view, pull.bytes, pieces, &count, &missing, &opened)) {
      case Reach::missing:
        peer->link()->request_segment(*peer, missing);
        how = Pulled::later;
        break;
      case Reach::frames:
      case Reach::device:
        how = Pulled::by_frames;
        break;
      case Reach::cma:
        if (count == 1 && may_share(pull, *peer)) {
          how = pull_shared(pull, peer, pieces[0].remote, status);
          break;
        }
        [[fallthrough]];
      case Reach::direct:
      case Reach::mixed: {
        const std::vector<iovec> here = buffers_of(pull);
        *status = move(*peer, false, here.data(), here.size(), pieces, count);
        if (*status == Status::access) *status = Status::fault;
        if (*status == Status::ok && peer->dead()) *status = peer->down_status();
        break;
      }
    }
  }
  nic_->end_long_activity(activity);
  return how;
} catch (const std::bad_alloc&) {
  *status = Status::no_memory;
  return Pulled::ended;
}

void RxPort::close() noexcept {
  closed_.store(true, std::memory_order_relaxed);
  rx_.close();
  if (sources_ != nullptr) cq_->forget_sources(sources_);
}

void RxPort::end_pulls() noexcept {
  Backoff backoff;
  while (pulling_.load(std::memory_order_acquire) != 0) backoff.pause();
  std::deque<RxPull> left;
  {
    const Guard guard(held_lock_);
    left.swap(pulls_);
    left.insert(left.end(), reads_waiting_.begin(), reads_waiting_.end());
    reads_waiting_.clear();
    pull_count_.store(0, std::memory_order_relaxed);
  }
  for (RxPull& pull : left) {
    await_shared(pull);
    rx_.pulled(pull, Status::canceled);
  }
  for (uint32_t i = 0;; ++i) {
    bool used = false;
    {
      const Guard guard(held_lock_);
      if (i == held_.size()) break;
      used = held_[i].used();
    }
    if (used) release(i, 0, 0);
  }
}

}  // namespace weft::nic
