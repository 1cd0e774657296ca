// cpp/nic/group_reduce.cpp: the reductions of a collective group: contributions up the tree, results down. See
// group.hpp.
#include <algorithm>
#include <cstring>

#include "mem/guard.hpp"
#include "nic/group.hpp"
#include "nic/nic.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

using wire::ReduceWhat;

namespace {

std::span<const std::byte> bytes_of(const Partial& partial) noexcept {
  return std::as_bytes(std::span(&partial, 1));
}

const char* meaning(ReduceStatus status) noexcept {
  switch (status) {
    case ReduceStatus::repsum_inexact:
      return "the reproducible sum lost bits";
    case ReduceStatus::int_overflow:
      return "a sum of integers overflowed";
    case ReduceStatus::contributions:
      return "a member has contributed twice, or not at all";
    case ReduceStatus::mismatch:
      return "members disagree on the operation, the datatype or the rounding mode: all of them make the same calls in "
             "the same order";
    default:
      return "it was not carried out";
  }
}

}  // namespace

// HOT: no system call unless a neighbour sleeps, no allocation; one ring slot for each neighbour that is due.
ReduceRefusal Group::post(const ReduceArgs& args) noexcept {
  const DomainLock guard(domain_);
  if (state_ == State::closed) return ReduceRefusal::closed;
  if (state_ != State::joined && state_ != State::broken) return ReduceRefusal::not_joined;
  if (posted_ - done_ >= kReductionsMax) return ReduceRefusal::all_busy;
  const bool wants = !ep_->selective() || (args.flags & flag::kCompletion) != 0;
  if (wants ? !ep_->queue()->has_room() : ep_->queue()->full()) return ReduceRefusal::cq_full;
  if (state_ == State::broken) {
    std::string text;
    try {
      text = describe_loss();
    } catch (const std::bad_alloc&) {  // without its text
    }
    fail(args.context, ReduceStatus::tx_failure, broken_, std::move(text));
    domain_->release_received(args.cookies, 0);
    return ReduceRefusal::none;
  }
  if (wants) ep_->queue()->reserve();
  Slot& slot = slot_of(posted_);
  slot.op = args.mine.op;
  slot.out = args.out;
  slot.out_bytes = std::min(args.out_bytes, kReducePayloadBytes);
  slot.context = args.context;
  slot.wants = wants;
  slot.cookie_count = static_cast<uint8_t>(std::min(args.cookies.size(), kCookiesMax));
  std::copy_n(args.cookies.begin(), slot.cookie_count, slot.cookies.begin());
  if (slot.heard == 0) {
    slot.partial = args.mine;
  } else {
    combine(slot.partial, args.mine);
  }
  ++posted_;
  advance();
  return ReduceRefusal::none;
}

// Each member sends its contribution to all others, and all combine them in the order of the members. This takes the
// time of one message, a tree the time of two; and on one core one turn of each member, a tree two of the root. A
// member sends its own contribution before it completes, so a reduction that completes here completes everywhere.
void Group::exchange() {
  for (; state_ == State::joined && sent_ != posted_; ++sent_) {
    for (const Edge& e : tiers_[1].edges) {
      send(e, 1, ReduceWhat::part, {.sequence = sent_}, bytes_of(slot_of(sent_).partial));
    }
  }
  const auto has_sent = [&](const Edge& e) { return e.next != done_; };
  while (done_ != sent_ && std::ranges::all_of(tiers_[1].edges, has_sent)) {
    Slot& slot = slot_of(done_);
    Partial partial;
    for (uint32_t member = 0; member < count_; ++member) {
      combine(partial, member == config_.member ? slot.partial : contribution_of(member, done_));
    }
    if (partial.contributions != count_) partial.status = std::max(partial.status, ReduceStatus::contributions);
    complete(slot, partial);
    slot = {};
    ++done_;
  }
}

// Exchange: what can be completed is completed; what a member will not contribute to any more, fails.
void Group::settle() {
  exchange();
  const auto has_ended = [&](const Edge& e) { return e.ended != Status::ok && e.next == done_; };
  if (state_ == State::broken && std::ranges::any_of(tiers_[1].edges, has_ended)) fail_reductions(broken_);
}

// Passes on every reduction to which this member and all below it have contributed.
void Group::advance() {
  if (exchanges_) return exchange();
  const Tier& tier = tiers_[1];
  while (state_ == State::joined && sent_ != posted_) {
    Slot& slot = slot_of(sent_);
    if (slot.heard != tier.children) return;
    if (slot.partial.contributions != tier.below) {
      slot.partial.status = std::max(slot.partial.status, ReduceStatus::contributions);
    }
    ++sent_;
    if (tier.parent == nullptr) {
      finish(slot.partial);
    } else {
      send(*tier.parent, 1, ReduceWhat::part, {.sequence = sent_ - 1}, bytes_of(slot.partial));
    }
  }
}

void Group::on_part(Edge& edge, const wire::Frame& frame, std::span<const std::byte> payload) {
  const uint32_t sequence = frame.reduce.sequence;
  // A neighbour contributes to one reduction after the other, and to none before the one eight earlier is complete.
  const uint32_t ahead = exchanges_ ? 2 * kReductionsMax : kReductionsMax;
  if (sequence != edge.next || sequence - done_ >= ahead || payload.size() != sizeof(Partial) ||
      edge.ended != Status::ok) {
    ++ignored_;
    return;
  }
  ++edge.next;
  if (exchanges_) {
    std::memcpy(static_cast<void*>(&contribution_of(edge.member, sequence)), payload.data(), sizeof(Partial));
    settle();
    return;
  }
  Slot& slot = slot_of(sequence);
  ++slot.heard;
  Partial part;
  std::memcpy(static_cast<void*>(&part), payload.data(), sizeof(part));
  combine(slot.partial, part);
  if (sequence == sent_ && sent_ != posted_) advance();
}

void Group::on_result(const wire::Frame& frame, std::span<const std::byte> payload) {
  if (frame.reduce.sequence != done_ || done_ == sent_ || payload.size() != sizeof(Partial)) {
    ++ignored_;
    return;
  }
  Partial partial;
  std::memcpy(static_cast<void*>(&partial), payload.data(), sizeof(partial));
  if (!check(partial)) partial.status = ReduceStatus::mismatch;
  finish(partial);
}

// Reduction `done_` is complete.
void Group::finish(const Partial& partial) {
  for (const Edge& e : tiers_[1].edges) {
    if (e.child) send(e, 1, ReduceWhat::result, {.sequence = done_}, bytes_of(partial));
  }
  Slot& slot = slot_of(done_);
  complete(slot, partial);
  slot = {};
  ++done_;
}

void Group::complete(Slot& slot, const Partial& partial) {
  if (slot.wants) ep_->queue()->unreserve();
  ReduceStatus status = partial.status;
  if (completes(status) && (partial.op != slot.op || partial.datatype != slot.partial.datatype)) {
    status = ReduceStatus::mismatch;
  }
  Status landed = Status::ok;
  if (completes(status) && slot.out != nullptr) {
    std::array<uint64_t, 4> bytes = partial.lanes;
    if (partial.op == ReduceOp::repsum) result(partial, Datatype::float64, bytes.data(), 1);
    if (!mem::copy_guarded(static_cast<std::byte*>(slot.out), reinterpret_cast<const std::byte*>(bytes.data()),
                           slot.out_bytes)) {
      landed = Status::fault;
    }
  }
  domain_->release_received(std::span(slot.cookies).first(slot.cookie_count), 0);
  if (!completes(status) || landed != Status::ok) {
    std::string text;
    try {
      text = "reduction " + std::to_string(done_) + " of the group: ";
      text += landed != Status::ok ? "no memory behind the result's buffer" : meaning(status);
    } catch (const std::bad_alloc&) {  // without its text
    }
    fail(slot.context, landed != Status::ok ? ReduceStatus::rdma_data : status, landed, std::move(text));
  } else if (slot.wants) {
    ep_->queue()->push_local(slot.context, config_.completion_flags, 0);
  } else {
    domain_->release_context(slot.context);
  }
}

// status: of a loss or a fault; ok: the reduction itself has failed.
void Group::fail(uint64_t context, ReduceStatus why, Status status, std::string text) noexcept {
  ++domain_->statistics.failed;
  CqEntry entry;
  entry.context = context;
  entry.flags = config_.completion_flags;
  CqError error;
  error.err = config_.always || status == Status::ok ? config_.failed_err : domain_->config().statuses[status].err;
  error.prov_errno = reduce_prov_errno(why);
  error.decided = config_.always || status == Status::ok;
  error.status = status == Status::ok ? Status::refused : status;
  error.text = std::move(text);
  error.own = ep_->address();
  ep_->queue()->push_error(entry, std::move(error));
}

void Group::fail_reductions(Status status) noexcept {
  for (; done_ != posted_; ++done_) {
    Slot& slot = slot_of(done_);
    if (slot.wants) ep_->queue()->unreserve();
    std::string text;
    try {
      text = "reduction " + std::to_string(done_) + " of the group: " + describe_loss();
    } catch (const std::bad_alloc&) {  // without its text
    }
    domain_->release_received(std::span(slot.cookies).first(slot.cookie_count), 0);
    fail(slot.context, ReduceStatus::tx_failure, status, std::move(text));
    slot = {};
  }
  sent_ = posted_;
}

Group::Look Group::look() const {
  const DomainLock guard(domain_);
  Look l;
  l.state = state_;
  l.number = number_;
  l.multicast = multicast_;
  l.root = mcast_root_;
  l.error = join_error_;
  l.status = broken_;
  l.lost = lost_;
  l.posted = posted_;
  l.done = done_;
  l.frames = frames_;
  l.ignored = ignored_;
  l.radix = config_.radix;
  l.block = config_.block;
  l.children = tiers_[1].children;
  if (broken_ != Status::ok && join_error_ == 0) l.text = describe_loss();
  return l;
}

}  // namespace weft::nic
