// cpp/nic/parking.cpp: see parking.hpp.
#include "nic/parking.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "mem/guard.hpp"
#include "nic/nic.hpp"

namespace weft::nic {

namespace {

// After a process was lost: how long its end may take, and how often the system is asked meanwhile.
constexpr uint64_t kLookForNs = 2'000'000'000, kLookEveryNs = 5'000'000;
// Pauses between the looks at a watch, each twice the one before. A pause of length p ends at a multiple of p, so all
// watches together, however many, make the engine look at most kWatchLooks times in kWatchNsMax.
constexpr uint64_t kWatchNsMax = 250'000'000, kWatchLooks = 16, kWatchNsMin = kWatchNsMax / kWatchLooks;
// The engine's shortest sleep between two looks.
constexpr uint64_t kSleepNsMin = 1'000'000;

uint64_t mix(uint64_t x) noexcept {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return x ^ x >> 32;
}

uint64_t name_of(uint64_t peer, const wire::Frame& frame, uint64_t token) noexcept {
  return mix(mix(mix(peer ^ frame.access.key) + frame.access.addr) ^ token);
}

}  // namespace

// Two peers never have the same token, whatever they say.
uint64_t Parking::token_of(const link::Peer& peer, const wire::CallRequest& request) noexcept {
  return mix(peer.number * 0x9e3779b97f4a7c15ull ^ mix(request.token)) | 1;
}

void Parking::serve(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                    std::span<const std::byte> payload) {
  const auto parsed = wire::parse_call(payload);
  if (!parsed || frame.access.length != payload.size() || payload.size() > nic_->limits().atomic_bytes_max ||
      frame.family != static_cast<uint8_t>(AtomicFamily::fetch)) {
    nic_->answer(peer, frame, Status::protocol, {});
    return;
  }
  wire::CallRequest request = *parsed;
  room_.resize(std::max(room_.size(), payload.size()));
  const std::span<std::byte> room{room_.data(), payload.size()};
  if ((request.flags & wire::kCallCancel) != 0) {
    cancel(peer, frame, request, room);
    return;
  }
  const bool watches = (request.flags & wire::kCallWatch) != 0;
  const bool mapped = (request.flags & wire::kCallMapped) != 0;
  const bool ours = peer->same_process || (peer->process_id > 0 && peer->table.valid());
  if (mapped && (!ours || static_cast<uint32_t>(peer->process_id) != request.pid)) {
    nic_->answer(peer, frame, Status::invalid, {});  // a call for another process, or from another host
    return;
  }
  if (!watches && !mapped && !remember(*peer, frame, token_of(*peer, request))) {
    nic_->answer(peer, frame, Status::no_memory, {});
    return;
  }
  const auto in = payload.subspan(sizeof(request), request.in_bytes);
  const auto out = room.subspan(sizeof(wire::CallAnswer), request.out_bytes);
  // A put is done after the frames that have come with it. So while this process is stopped, a peer that comes to its
  // deadline cancels the put in time.
  if (!watches && request.op == static_cast<uint16_t>(sync::Op::put) && park(peer, frame, request, payload)) {
    parked_.back().is_new = true;
    return;
  }
  Result result = run(peer.get(), frame, request, in, out, false);
  if (waits(result) && (request.flags & wire::kCallPark) != 0 && park(peer, frame, request, payload)) {
    Parked& last = parked_.back();
    if (watches) {
      begin_looks(last);
      nic_->world().fence_all();
    }
    // SYNC POINT: a peer that changes the object after this look sees that calls are parked.
    result = run(peer.get(), frame, last.request, in, out, true);
    if (waits(result)) return;
    request = last.request;
    drop(std::prev(parked_.end()));
  }
  note(*peer, request, result, in, out);
  answer(peer, frame, result, room);
}

// Not done yet. A process that is changing the object does not report the end of the change: look again soon.
bool Parking::waits(const Result& result) noexcept {
  if (result.status != Status::ok) return false;
  if (result.outcome == sync::Outcome::busy) look_soon_.store(true, std::memory_order_relaxed);
  return result.outcome == sync::Outcome::again || result.outcome == sync::Outcome::busy;
}

// One attempt, with what the frame may access now.
Parking::Result Parking::run(const link::Peer* peer, const wire::Frame& frame, wire::CallRequest& request,
                             std::span<const std::byte> in, std::span<std::byte> out, bool look) noexcept {
  Result result;
  const bool watches = (request.flags & wire::kCallWatch) != 0;
  const Guard serving(nic_->serve_lock());  // SYNC POINT: quiesce() takes this lock after revoking the key
  mem::MrView view;
  result.status = nic_->table().check(frame.source, frame.ep_index, frame.ep_generation, frame.access.key,
                                      frame.access.addr, watches ? in.size() : sizeof(sync::Head),
                                      watches ? mem::kRemoteRead : mem::kRemoteRead | mem::kRemoteWrite, view);
  if (result.status != Status::ok) return result;
  const mem::MrEntry& e = *view.entry;
  if (e.segment == mem::kIovSegment || e.segment == mem::kDeviceSegment || (e.access & mem::kMrSingleUse) != 0) {
    result.status = Status::unsupported;
    return result;
  }
  auto* const here = reinterpret_cast<std::byte*>(e.local_addr + view.offset);
  if (watches) return watch(here, in);
  // Objects are in memory of the NIC's segments, whose pages are always there.
  if (e.segment == mem::kNoSegment || reinterpret_cast<uintptr_t>(here) % kCacheLine != 0) {
    result.status = Status::misaligned;
    return result;
  }
  const auto object = sync::open(here, e.length - view.offset);
  sync::Call& call = result.call;
  const bool known = (request.op >= 1 && request.op < static_cast<uint16_t>(sync::Op::gone)) ||
                     request.op == static_cast<uint16_t>(sync::Op::put_back);
  if (!object || (peer != nullptr && !known)) {
    result.outcome = sync::Outcome::damaged;
    return result;
  }
  result.kind = object->kind;
  call.op = static_cast<sync::Op>(request.op);
  call.for_other = (request.flags & wire::kCallMapped) == 0;
  call.who = call.for_other ? nic_->world().self() : sync::Who{request.pid, request.start};
  call.token = call.for_other ? (peer == nullptr ? request.token : token_of(*peer, request)) : 0;
  call.look = look;
  call.a = request.a;
  call.b = request.b;
  if (peer != nullptr && call.op == sync::Op::put) call.b = mix(token_of(*peer, request) ^ mix(request.id)) | 1;
  call.state = request.state;
  call.in = in.data();
  call.in_bytes = in.size();
  call.out = out.data();
  call.out_bytes = out.size();
  result.outcome = sync::step(*object, call, nic_->world());
  request.state = call.state;
  return result;
}

Parking::Result Parking::watch(const std::byte* here, std::span<const std::byte> in) const noexcept {
  Result result;
  std::byte now[4096];
  if (in.size() > sizeof(now)) {
    result.status = Status::protocol;
  } else if (!in.empty() && !mem::copy_guarded(now, here, in.size())) {
    result.status = Status::fault;
  } else {
    const bool same = in.empty() || std::memcmp(now, in.data(), in.size()) == 0;
    result.outcome = same ? sync::Outcome::again : sync::Outcome::done;
  }
  return result;
}

void Parking::answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, const Result& result,
                     std::span<std::byte> room) noexcept {
  if (result.status != Status::ok) {
    nic_->answer(peer, frame, result.status, {});
    return;
  }
  const sync::Call& call = result.call;
  wire::CallAnswer said;
  said.outcome = static_cast<uint32_t>(result.outcome == sync::Outcome::busy ? sync::Outcome::again : result.outcome);
  const bool brings = result.outcome == sync::Outcome::done && call.op == sync::Op::get;
  said.length = brings ? static_cast<uint32_t>(call.length) : 0;
  said.value = call.value;
  said.value2 = call.value2;
  said.value3 = call.value3;
  said.state = call.state;
  std::memcpy(room.data(), &said, sizeof(said));
  // The room may have bytes of an earlier answer.
  const size_t end = sizeof(said) + std::min<size_t>(said.length, room.size() - sizeof(said));
  std::fill(room.begin() + static_cast<std::ptrdiff_t>(end), room.end(), std::byte{});
  nic_->answer(peer, frame, Status::ok, room);
}

bool Parking::park(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, const wire::CallRequest& request,
                   std::span<const std::byte> payload) {
  if (parked_.size() >= kParkedMax) return false;
  size_t& of_peer = per_peer_[peer->number];
  if (of_peer >= kParkedPerPeerMax) return false;
  parked_.push_back({peer, frame, request, {payload.begin(), payload.end()}});
  ++of_peer;
  count_.store(parked_.size(), std::memory_order_relaxed);
  nic_->table().parked().fetch_add(1, std::memory_order_seq_cst);
  return true;
}

std::list<Parking::Parked>::iterator Parking::drop(std::list<Parked>::iterator at) noexcept {
  if (at->peer) {
    const auto of_peer = per_peer_.find(at->peer->number);
    if (of_peer != per_peer_.end() && --of_peer->second == 0) per_peer_.erase(of_peer);
  } else if (const auto of = alone_.find(at->given_up_by); of != alone_.end() && --of->second == 0) {
    alone_.erase(of);
  }
  const auto next = parked_.erase(at);
  count_.store(parked_.size(), std::memory_order_relaxed);
  if (parked_.empty()) next_look_ns_.store(kNever, std::memory_order_relaxed);
  nic_->table().parked().fetch_sub(1, std::memory_order_relaxed);
  return next;
}

void Parking::cancel(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                     const wire::CallRequest& request, std::span<std::byte> room) noexcept {
  Result result;
  result.outcome = sync::Outcome::done;
  for (auto at = parked_.begin(); at != parked_.end(); ++at) {
    if (at->peer != peer || at->request.id != request.a || at->request.token != request.token) continue;
    Result canceled;
    canceled.outcome = sync::Outcome::canceled;
    canceled.call.state = at->request.state;
    canceled.call.op = static_cast<sync::Op>(at->request.op);
    note(*peer, at->request, canceled, {}, {});
    const wire::Frame of = at->frame;
    const size_t bytes = at->payload.size();
    drop(at);
    // The canceled call's own answer first: its room is as long as its request.
    std::byte said[4096];
    answer(peer, of, canceled, {said, std::min(bytes, sizeof(said))});
    result.call.value = 1;
    break;
  }
  if ((request.flags & wire::kCallGivenUp) != 0 && give_back(*peer, frame, request)) result.call.value = 1;
  answer(peer, frame, result, room);
}

// Remembers how to end a call that has just got its answer. Without memory it cannot be ended.
void Parking::note(const link::Peer& peer, const wire::CallRequest& request, const Result& result,
                   std::span<const std::byte> in, std::span<const std::byte> out) noexcept try {
  const bool done = result.status == Status::ok && result.outcome == sync::Outcome::done;
  const bool open = result.outcome == sync::Outcome::again || result.outcome == sync::Outcome::busy ||
                    result.outcome == sync::Outcome::canceled;
  if ((request.flags & wire::kCallWatch) != 0 || (!done && !open)) return;
  wire::CallRequest undo;
  std::span<const std::byte> record;
  const auto by = [&](sync::Op op, uint64_t a, uint64_t b) {
    undo.op = static_cast<uint16_t>(op);
    undo.a = a;
    undo.b = b;
  };
  const sync::Call& call = result.call;
  if (done && call.op == sync::Op::take) {
    by(sync::Op::release, result.kind == sync::Kind::semaphore ? 1 : call.value2, 0);
  } else if (done && call.op == sync::Op::put) {
    by(sync::Op::unput, call.value, call.b);
  } else if (done && call.op == sync::Op::reserve) {
    by(sync::Op::free_slot, call.value, 0);
  } else if (done && call.op == sync::Op::claim) {
    by(sync::Op::free_slot, call.value, 2);
  } else if (done && call.op == sync::Op::get) {
    by(sync::Op::put_back, call.value3, 0);
    record = out.first(std::min<size_t>(call.length, out.size()));
  } else if (open && call.op == sync::Op::put_back) {  // the call is not done, and has to be done
    by(sync::Op::put_back, request.a, 0);
    record = in;
  } else if (open && call.op == sync::Op::free_slot) {
    by(sync::Op::free_slot, request.a, 2);
  } else if (open && call.op == sync::Op::release) {
    by(sync::Op::release, request.a, 0);
  } else if (open && call.op == sync::Op::wait && call.state != 0) {  // a party that has come to a barrier
    by(sync::Op::withdraw, 0, 0);
    undo.state = call.state;
  } else {
    return;
  }
  undo.flags = request.flags & wire::kCallMapped;
  undo.pid = request.pid;
  undo.start = request.start;
  undo.token = token_of(peer, request);
  NotedOfPeer& of = noted_[peer.number];
  if (of.all.size() < kNotedPerPeer) {
    of.all.emplace_back();
    of.next = of.all.size() - 1;
  }
  Noted& one = of.all[of.next];
  one.id = 0;
  one.record.assign(record.begin(), record.end());
  one.undo = undo;
  one.id = request.id;
  of.next = (of.next + 1) % kNotedPerPeer;
} catch (const std::bad_alloc&) {
}

bool Parking::give_back(const link::Peer& peer, const wire::Frame& frame, const wire::CallRequest& request) noexcept {
  const auto of = noted_.find(peer.number);
  if (of == noted_.end() || request.a == 0) return false;
  const auto one = std::ranges::find_if(of->second.all, [&](const Noted& noted) {
    return noted.id == request.a && noted.undo.token == token_of(peer, request);
  });
  if (one == of->second.all.end()) return false;
  // A peer could fill a queue, and put records back into it for ever.
  if (const auto waits = alone_.find(peer.number); waits != alone_.end() && waits->second >= kAlonePerPeer)
    return false;
  one->id = 0;
  run_alone(peer.number, frame, one->undo, one->record);
  return true;
}

// A call by this NIC itself, parked until it can be done.
void Parking::run_alone(uint64_t peer, const wire::Frame& frame, wire::CallRequest request,
                        std::span<const std::byte> record) noexcept {
  if (!waits(run(nullptr, frame, request, record, {}, true))) return;
  try {
    parked_.push_back({.peer = nullptr,
                       .frame = frame,
                       .request = request,
                       .payload = {record.begin(), record.end()},
                       .given_up_by = peer});
  } catch (const std::bad_alloc&) {  // what is to go back stays taken
    return;
  }
  try {
    ++alone_[peer];
  } catch (const std::bad_alloc&) {  // the call is not counted
    parked_.back().given_up_by = 0;
  }
  nic_->table().parked().fetch_add(1, std::memory_order_seq_cst);
  count_.store(parked_.size(), std::memory_order_relaxed);
  // SYNC POINT: as in serve().
  Parked& last = parked_.back();
  if (!waits(run(nullptr, frame, last.request, last.payload, {}, true))) drop(std::prev(parked_.end()));
}

bool Parking::due_for_dead() noexcept {
  const uint64_t until = look_until_ns_.load(std::memory_order_relaxed);
  if (until == 0) return false;
  const uint64_t now = nic_->clock().now_ns();
  if (now > until) look_until_ns_.store(0, std::memory_order_relaxed);
  if (now - looked_ns_ < kLookEveryNs) return false;
  looked_ns_ = now;
  return true;
}

void Parking::begin_looks(Parked& watch) noexcept {
  const uint64_t now = nic_->clock().now_ns();
  watch.look_every_ns = kWatchNsMin;
  watch.look_at_ns = (now / kWatchNsMin + 1) * kWatchNsMin;
  if (watch.look_at_ns >= next_look_ns_.load(std::memory_order_relaxed)) return;
  // SYNC POINT: the engine says that it rests, then reads the time of the next look.
  next_look_ns_.store(watch.look_at_ns, std::memory_order_seq_cst);
  nic_->need_engine();
}

int64_t Parking::next_look_in() const noexcept {
  const uint64_t at = next_look_ns_.load(std::memory_order_seq_cst);
  if (at == kNever) return -1;
  const uint64_t now = nic_->clock().now_ns();
  return static_cast<int64_t>(std::max(at > now ? at - now : 0, kSleepNsMin));
}

size_t Parking::look_again() noexcept {
  const bool look = due_for_dead();
  look_soon_.store(false, std::memory_order_relaxed);
  const bool watches = next_look_ns_.load(std::memory_order_relaxed) != kNever;
  const uint64_t now = watches ? nic_->clock().now_ns() : 0;
  uint64_t next_look = kNever;
  size_t n = 0;
  for (auto at = parked_.begin(); at != parked_.end();) {
    const std::span<const std::byte> payload = at->payload;
    try {
      room_.resize(std::max(room_.size(), payload.size()));
    } catch (const std::bad_alloc&) {
      return n;
    }
    const std::span<std::byte> room{room_.data(), payload.size()};
    const bool alone = at->peer == nullptr;
    const auto in = alone ? payload : payload.subspan(sizeof(wire::CallRequest), at->request.in_bytes);
    const auto out = alone ? room : room.subspan(sizeof(wire::CallAnswer), at->request.out_bytes);
    const bool stays = alone || (at->request.flags & wire::kCallPark) != 0, is_new = std::exchange(at->is_new, false);
    Result result = run(at->peer.get(), at->frame, at->request, in, out, look || alone);
    if (is_new && stays && waits(result)) result = run(at->peer.get(), at->frame, at->request, in, out, true);
    if (waits(result) && stays) {
      if (at->look_at_ns <= now) {
        at->look_every_ns = std::min(2 * at->look_every_ns, kWatchNsMax);
        at->look_at_ns = (now / at->look_every_ns + 1) * at->look_every_ns;
      }
      next_look = std::min(next_look, at->look_at_ns);
      ++at;
      continue;
    }
    const std::shared_ptr<link::Peer> peer = at->peer;
    const wire::Frame frame = at->frame;
    if (peer) note(*peer, at->request, result, in, out);
    at = drop(at);
    ++n;
    if (peer) answer(peer, frame, result, room);
  }
  next_look_ns_.store(next_look, std::memory_order_relaxed);
  if (parked_.empty()) look_until_ns_.store(0, std::memory_order_relaxed);
  return n;
}

bool Parking::remember(const link::Peer& peer, const wire::Frame& frame, uint64_t token) {
  const uint64_t name = name_of(peer.number, frame, token);
  if (sessions_.contains(name)) return true;
  size_t& of_peer = sessions_of_[peer.number];
  if (of_peer >= kSessionsPerPeerMax) return false;
  sessions_.emplace(name, Session{peer.number, frame, token});
  ++of_peer;
  return true;
}

void Parking::on_peer_down(const link::Peer& peer) noexcept {
  for (auto at = parked_.begin(); at != parked_.end();) at = at->peer.get() == &peer ? drop(at) : std::next(at);
  noted_.erase(peer.number);
  if (sessions_of_.erase(peer.number) != 0) {
    for (auto at = sessions_.begin(); at != sessions_.end();) {
      if (at->second.peer != peer.number) {
        ++at;
        continue;
      }
      wire::CallRequest request;
      request.op = static_cast<uint16_t>(sync::Op::gone);
      request.token = at->second.token;
      run_alone(peer.number, at->second.frame, request, {});
      at = sessions_.erase(at);
    }
    count_.store(parked_.size(), std::memory_order_relaxed);
  }
  if (parked_.empty()) return;
  look_until_ns_.store(nic_->clock().now_ns() + kLookForNs, std::memory_order_relaxed);
  looked_ns_ = 0;
}

}  // namespace weft::nic
