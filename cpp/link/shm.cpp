// cpp/link/shm.cpp: frames over shared memory: sending, polling, and preparing to sleep.
#include "link/shm.hpp"

#include <sys/timerfd.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "link/shm_peer.hpp"
#include "mem/guard.hpp"

namespace weft::link {

namespace {

constexpr size_t kPrivateEach = 16;           // up to this number, every poll reads all private rings
constexpr uint32_t kPrivateIdlePolls = 1024;  // above it, polls stop reading a ring after this many empty polls
constexpr time_t kAuditSeconds = 1;

}  // namespace

// Entries that can be under way when a peer learns that there is no room: a full ring, the unanswered requests, and one
// operation per domain that has already checked for room.
static_assert(kSharedArea.slot_count + wire::kUnansweredMax + mem::kDomainCountMax <= wire::kLateDataMax);

// HOT: no system call unless the other engine sleeps, no allocation; writes one ring slot (2 to 4 lines).
Status ShmLink::submit(Peer& base, wire::Frame& frame, std::span<const std::byte> payload) {
  auto& peer = static_cast<ShmPeer&>(base);
  const Guard lock(peer.submit_lock);
  // Checked under the lock: drop_conn() takes the lock after die(), so no chunk is staged after the peer's chunks were
  // given back.
  if (peer.dead()) return Status::peer_gone;
  assert(payload.size() <= wire::kStagedPayloadMax && "the NIC cuts payloads to the peer's payload_max");
  frame.payload_length = static_cast<uint32_t>(payload.size());
  frame.where = wire::PayloadWhere::none;
  constexpr uint32_t kNoChunk = ~uint32_t{0};
  uint32_t chunk = kNoChunk;
  Staging& staging = peer.area->staging;
  if (payload.size() > wire::kInlinePayloadMax) {
    peer.reclaim();
    const auto taken = staging.take(peer.staged.size());
    if (!taken) {
      if (!peer.is_private()) chunks_wanted_.store(true, std::memory_order_relaxed);
      return Status::again;
    }
    try {
      peer.staged.push_back(*taken);  // may throw, so before the claim: a claimed slot must be published
    } catch (const std::bad_alloc&) {
      staging.give_back(*taken);
      return Status::again;
    }
    frame.where = wire::PayloadWhere::staged;
    frame.staged_chunk = chunk = *taken;
  } else if (!payload.empty()) {
    frame.where = wire::PayloadWhere::in_frame;
  }
  const auto give_back = [&](Status status) {
    if (chunk != kNoChunk) {
      peer.submit_lock.assert_held();
      peer.staged.pop_back();
      staging.give_back(chunk);
    }
    return status;
  };
  const ring::Claim slot = peer.producer->try_claim();
  if (!slot) return give_back(Status::again);
  const std::span<std::byte> out = slot.payload();
  wire::emit(frame, out);
  const bool staged = chunk != kNoChunk;
  if (!payload.empty()) {
    std::byte* const to = staged ? staging.chunk(chunk) : out.data() + sizeof(wire::Frame);
    // Guarded: pages of the application's memory may be missing.
    if (!mem::copy_guarded(to, payload.data(), payload.size())) [[unlikely]] {
      peer.producer->abandon(slot);
      return give_back(Status::fault);
    }
  }
  const size_t used = sizeof(wire::Frame) + (staged ? 0 : payload.size());
  if (peer.producer->publish(slot, used)) ring_doorbell(peer.socket_fd);
  return Status::ok;
}

// HOT: writes one line of the slot for a short message. All of it is at hand before the claim, because the peer polls
// the slot: a load of its between our claim and our store would fetch the line twice.
Status ShmLink::submit_brief(Peer& base, const wire::Brief& brief, const std::byte* rest) {
  constexpr size_t kShort = ring::kCacheLine - 16 - sizeof(wire::Brief);
  auto& peer = static_cast<ShmPeer&>(base);
  const Guard lock(peer.submit_lock);  // as in submit()
  if (peer.dead()) return Status::peer_gone;
  assert(brief.rest <= wire::kBriefRestMax && "a brief fits in a slot");
  const ring::Claim slot = peer.producer->try_claim();
  if (!slot) return Status::again;
  std::byte* const out = slot.payload().data();
  std::memcpy(out, &brief, sizeof(brief));
  if (brief.rest <= kShort) [[likely]] {
    std::memcpy(out + sizeof(brief), rest, kShort);
  } else {
    std::memcpy(out + sizeof(brief), rest, brief.rest);
  }
  if (peer.producer->publish(slot, sizeof(brief) + brief.rest, kBriefSlot)) ring_doorbell(peer.socket_fd);
  return Status::ok;
}

// HOT. One lock for each frame: the ring tells at once whether there is a further frame, and the hint for pollers.
size_t ShmLink::poll(FrameSink& sink, size_t budget) {
  if (chunks_wanted_.load(std::memory_order_relaxed)) reclaim_all();
  size_t n = 0;
  ring::Message message;
  for (bool more = true; more && n < budget;) {
    ring::PollStatus polled;
    {
      const Guard lock(shared_.inbox_mutex);
      polled = shared_.inbox.consumer.poll(message);
      more = polled != ring::PollStatus::empty && !shared_.inbox.consumer.empty();
      store_hint();
    }
    if (polled == ring::PollStatus::empty) break;
    ++n;
    if (polled == ring::PollStatus::corrupt) {
      frames_lost_.store(true, std::memory_order_relaxed);
      continue;
    }
    // Only the polling thread changes the list, and not while it takes a frame.
    const uint16_t producer = message.producer;
    if (producer >= producers_.size() || producers_[producer] == nullptr) continue;  // its connection is gone
    const bool good = message.kind == kBriefSlot ? take_brief(sink, *producers_[producer], message)
                                                 : take(sink, producers_[producer], message);
    if (!good) {
      // The peer breaks the protocol: hang up. Its operations fail; other peers are not affected.
      const std::shared_ptr<ShmPeer> peer = producers_[producer];
      const Guard lock(mutex_);
      drop_conn(peer->conn_id, Status::protocol);
    }
  }
  if (!private_.empty()) n += poll_private(sink, budget);
  if (frames_lost_.load(std::memory_order_relaxed)) [[unlikely]]
    frames_were_lost();
  return n;
}

// False: the peer's message is not valid.
bool ShmLink::take_brief(FrameSink& sink, ShmPeer& peer, const ring::Message& message) {
  const auto brief = wire::parse_brief(message.bytes());
  if (!brief) return false;
  sink.on_brief(peer, *brief);
  return true;
}

// False: the peer's message is not a valid frame.
bool ShmLink::take(FrameSink& sink, const std::shared_ptr<ShmPeer>& peer, const ring::Message& message) {
  const std::span<const std::byte> bytes = message.bytes();
  const auto frame = wire::parse(bytes);
  if (!frame) return false;
  std::span<const std::byte> payload;
  const bool staged = frame->where == wire::PayloadWhere::staged;
  if (frame->where == wire::PayloadWhere::in_frame) {
    payload = bytes.subspan(sizeof(wire::Frame), frame->payload_length);
  } else if (staged) {
    const std::byte* from = peer->staged_payload(frame->staged_chunk);
    if (from == nullptr) return false;
    payload = {from, frame->payload_length};
  }
  sink.on_frame(peer, *frame, payload);
  if (staged) {
    // SYNC POINT: our reads of the payload end before the sender can reuse its chunk.
    peer->area->staging.consumed(peer->inbox_id).store(++peer->consumed_from_it, std::memory_order_release);
  }
  return true;
}

// Polls the private rings. If there are many, it reads only recently active rings; other peers ring the doorbell.
size_t ShmLink::poll_private(FrameSink& sink, size_t budget) {
  const size_t count = private_.size();
  size_t n = 0;
  std::vector<std::shared_ptr<ShmPeer>> broken, resting;
  for (size_t i = 0; i < count && n < budget; ++i) {
    if (++private_next_ >= count) private_next_ = 0;
    const std::shared_ptr<ShmPeer> peer = private_[private_next_];
    Area& area = *peer->own_area;
    ring::Message message;
    bool any = false, good = true;
    for (uint32_t turn = 0; turn < kPrivateTurn && good; ++turn) {
      ring::PollStatus polled;
      {
        const Guard lock(area.inbox_mutex);
        polled = area.inbox.consumer.poll(message);
      }
      if (polled == ring::PollStatus::empty) break;
      any = true;
      ++n;
      // Only this peer writes to the ring, so the peer is to blame for a corrupt ring.
      good = polled == ring::PollStatus::message && message.producer == kPrivateProducer &&
             message.kind != kBriefSlot && take(sink, peer, message);
    }
    if (!good) broken.push_back(peer);
    if (any) {
      area.idle.store(0, std::memory_order_relaxed);
    } else if (area.idle.fetch_add(1, std::memory_order_relaxed) > kPrivateIdlePolls && count > kPrivateEach) {
      const Guard lock(area.inbox_mutex);
      area.inbox.consumer.arm();
      if (area.inbox.consumer.empty()) resting.push_back(peer);
    }
  }
  if (!resting.empty()) {
    const Guard lock(private_mutex_);
    for (const auto& peer : resting) {
      peer->own_area->active = false;
      std::erase(private_, peer);
    }
    private_count_.store(private_.size(), std::memory_order_relaxed);
  }
  if (!broken.empty()) {
    const Guard lock(mutex_);
    for (const auto& peer : broken) drop_conn(peer->conn_id, Status::protocol);
  }
  return n;
}

// A peer's doorbell rang.
void ShmLink::awake(const std::shared_ptr<ShmPeer>& peer) {
  peer->own_area->idle.store(0, std::memory_order_relaxed);
  if (std::exchange(peer->own_area->active, true)) return;
  const Guard lock(private_mutex_);
  private_.push_back(peer);
  private_count_.store(private_.size(), std::memory_order_relaxed);
}

// A process has overwritten the ring that peers share. The ring does not show which frames are lost, and an operation
// whose frame or answer is lost would never end. So disconnect all peers that share the ring: their operations under
// way fail with this reason, and their next operation connects again.
void ShmLink::frames_were_lost() {
  const Guard lock(mutex_);
  frames_lost_.store(false, std::memory_order_relaxed);
  std::vector<uint32_t> sharers;
  for (const auto& [id, conn] : conns_) {
    if (conn.state == ConnState::live && !conn.is_private) sharers.push_back(id);
  }
  for (const uint32_t id : sharers) {
    Conn& conn = conns_.at(id);
    note(conn.address, "a process has written over this process's ring, so frames may be lost");
    part(conn.fd.get(), wire::RejectReason::lost_frames);
    drop_conn(id, Status::protocol);
  }
  const Guard ring(shared_.inbox_mutex);
  // Those who have no connection any more still publish what they have claimed.
  shared_.inbox.consumer.reset([&](uint16_t id) UNCHECKED { return is_producer(id); });
  store_hint();
}

// While peers share the ring, a timer audits the ring once a second: a peer may have overwritten a frame, or the word
// that tells producers that we sleep, and then no doorbell wakes us.
void ShmLink::watch_shared() {
  mutex_.assert_held();
  const bool wanted = std::ranges::any_of(
      conns_, [](const auto& c) { return c.second.state == ConnState::live && !c.second.is_private; });
  if (wanted == audit_timer_on_) return;
  audit_timer_on_ = wanted;
  itimerspec spec{};
  spec.it_value.tv_sec = spec.it_interval.tv_sec = wanted ? kAuditSeconds : 0;
  (void)::timerfd_settime(audit_timer_.get(), 0, &spec, nullptr);
}

void ShmLink::audit_shared() {
  mutex_.assert_held();
  drain_eventfd(audit_timer_.get());
  const Guard ring(shared_.inbox_mutex);
  auto& consumer = shared_.inbox.consumer;
  if (consumer.audit() == ring::PollStatus::corrupt || consumer.audit_slots() == ring::PollStatus::corrupt) {
    frames_lost_.store(true, std::memory_order_relaxed);
  }
}

void ShmLink::store_hint() noexcept {
  shared_.inbox_mutex.assert_held();
  const auto hint = shared_.inbox.consumer.hint();
  hint_free_.store(hint.free, std::memory_order_relaxed);
  hint_word_.store(hint.word, std::memory_order_relaxed);
}

void ShmLink::reclaim_all() noexcept {
  chunks_wanted_.store(false, std::memory_order_relaxed);
  for (const auto& peer : producers_) {
    if (!peer) continue;
    const Guard lock(peer->submit_lock);
    peer->reclaim();
  }
}

bool ShmLink::prepare_sleep() {
  if (deaths_due()) return false;
  bool idle = true;
  const auto arm = [&](Area& area) {
    const Guard lock(area.inbox_mutex);
    // Polls never read the ring's header, so repair it here: producers would see an overwritten ring as full.
    auto& consumer = area.inbox.consumer;
    if (consumer.audit() == ring::PollStatus::corrupt && &area == &shared_) {
      frames_lost_.store(true, std::memory_order_relaxed);
      idle = false;
    }
    consumer.arm();
    idle = consumer.empty() && idle;
  };
  arm(shared_);
  if (private_count_.load(std::memory_order_relaxed) != 0) {
    const Guard lock(private_mutex_);
    for (const auto& peer : private_) {
      arm(*peer->own_area);
      peer->own_area->idle.fetch_add(kPrivateTurn, std::memory_order_relaxed);
    }
  }
  return idle && happened_count_.load(std::memory_order_acquire) == 0 && !hang_ups_.load(std::memory_order_seq_cst);
}

bool ShmLink::has_timers() const {
  const Guard lock(mutex_);
  if (!retries_.empty()) return true;
  return std::any_of(conns_.begin(), conns_.end(), [](const auto& c) { return c.second.state != ConnState::live; });
}

}  // namespace weft::link
