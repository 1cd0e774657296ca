// cpp/nic/batch.cpp: vectored calls: many descriptors, one completion.
#include <algorithm>

#include "nic/explain.hpp"
#include "nic/fast.inl"

namespace weft::nic {

PostResult TxPort::post_batch(OpKind kind, std::byte* local, uint64_t local_length, std::span<BatchDesc> descs,
                              uint64_t flags, uint64_t context, bool device) {
  if (trace_ != nullptr) [[unlikely]] {
    const uint64_t began_ns = trace_->now_ns();
    uint64_t bytes = 0;
    for (const BatchDesc& d : descs) bytes += d.length;
    return traced(OpKind::batch, descs.empty() ? ~uint64_t{0} : descs[0].dest_addr, bytes, descs.size(), began_ns,
                  post_batch_untraced(kind, local, local_length, descs, flags, context, device));
  }
  return post_batch_untraced(kind, local, local_length, descs, flags, context, device);
}

PostResult TxPort::post_batch_untraced(OpKind kind, std::byte* local, uint64_t local_length, std::span<BatchDesc> descs,
                                       uint64_t flags, uint64_t context, bool device) {
  // Descriptors per hold of the lock, which bounds the wait of other threads and of closing regions.
  constexpr size_t kChunk = 256;
  const bool hot = !device && raw_keys_ == 0 && (flags & kLongWay) == 0;
  const ClassSet stops = stops_[static_cast<size_t>(class_of(kind))];
  Op* parent = nullptr;
  bool wants = false;
  uint64_t total = 0;
  Status first_bad = Status::ok;
  size_t first_bad_at = 0;
  std::shared_ptr<Route> bad_route;
  for (size_t begin = 0; begin < descs.size() || begin == 0; begin += kChunk) {
    const PostLock guard(domain_);
    if (begin == 0) {
      if (config_.holds_more) ring();
      if (Reorder* const reorder = model_.reorder()) [[unlikely]]
        reorder->release_all();
      if (state_ != State::enabled) return {state_ == State::closed ? Refusal::closed : Refusal::not_enabled};
      wants = !selective_ || (flags & flag::kCompletion) != 0;
      if (config_.connected && fixed_dest_ == ~uint64_t{0}) return {Refusal::not_connected};
      if (!tx_cq_) return {Refusal::no_cq};
      if (wants ? !tx_cq_->has_room() : tx_cq_->full()) return {Refusal::cq_full};
      if (outstanding_ >= config_.tx_size) return {Refusal::tx_full};  // the call occupies one entry of the queue
      if (wants) tx_cq_->reserve();
      if (CommandQueue* const commands = model_.commands(); commands != nullptr) [[unlikely]] {
        for (size_t i = 0; i < descs.size(); ++i) {
          if (!commands->put(true)) commands->ring(false), commands->put(true);
        }
        commands->ring(false);
      }
    } else if (state_ != State::enabled) {
      for (size_t i = begin; i < descs.size(); ++i) descs[i].status = domain_->config().statuses[Status::canceled].err;
      if (first_bad == Status::ok) {
        first_bad = Status::canceled;
        first_bad_at = begin;
      }
      break;
    }
    const size_t end = std::min(descs.size(), begin + kChunk);
    for (size_t i = begin; i < end; ++i) {
      BatchDesc& d = descs[i];
      const uint64_t to = dest_of(d.dest_addr);
      Status status = Status::ok;
      if (state_ != State::enabled) [[unlikely]] {
        status = Status::canceled;  // the endpoint was closed during the previous descriptor's long copy
      } else if (d.local_offset > local_length || d.length > local_length - d.local_offset) {
        status = Status::invalid;
      } else if (Flow* const flow = flow_of(to); flow == nullptr) {
        status = Status::no_endpoint;
      } else {
        Route& route = *flow->route;
        const iovec piece{local + d.local_offset, d.length};
        const wire::RmaRange range{d.remote_addr, d.length, raw_keys_ == 0 ? d.key : domain_->mapped_key(d.key)};
        Moved moved = Moved::frames;
        if (const Status bar = barred(route); bar != Status::ok) [[unlikely]] {
          moved = Moved::failed;
          status = bar;
        }
        if (hot && route.ep_entry != nullptr && (flow->busy & stops) == 0 && d.length <= short_bytes_max_) {
          const bool write = kind == OpKind::write;
          std::byte* there =
              pointer_to(route, d.key, d.remote_addr, d.length, write ? mem::kRemoteWrite : mem::kRemoteRead);
          auto* here = local + d.local_offset;
          if (there != nullptr &&
              (write ? copy_guarded_hot(there, here, d.length) : copy_guarded_hot(here, there, d.length))) [[likely]] {
            if (write) Mover::tell_changed(route);
            ++domain_->statistics.direct;
            domain_->statistics.bytes += d.length;
            total += d.length;
            d.status = 0;
            model_.count(route, kind, {}, {}, d.key, flags, d.length, false, false);
            continue;
          }
        }
        // During a copy outside the lock other threads may change the address vector: keep the flow.
        const std::shared_ptr<Flow> kept = flow->shared_from_this();
        if (moved != Moved::failed && may_go_direct(*flow, class_of(kind), flags)) {
          moved = mover_.move(*flow,
                              {.kind = kind,
                               .local = {&piece, 1},
                               .remote = {&range, 1},
                               .total = d.length,
                               .flags = flags,
                               .device = static_cast<uint8_t>(device ? 1 : 0),
                               .may_unlock = true},
                              &status);
        }
        if (moved == Moved::failed && route.is_old()) moved = Moved::park;  // the address is resolved again
        if (moved == Moved::done || moved == Moved::failed) {
          // done: `status` has the result
        } else if (state_ != State::enabled) [[unlikely]] {
          status = Status::canceled;
        } else {
          if (parent == nullptr) {
            parent = make_op(OpKind::batch, *flow, false, flags, context, 0, 0, false);
            parent->batch().reads = kind == OpKind::read;
          }
          Op* child = make_op(kind, *flow, false, flags, 0, 0, d.length, false);
          Op::Access& access = child->access();
          access.data_done = moved == Moved::no_room;
          child->local.set(piece);
          access.remote.set(range);
          child->parent = parent;
          --outstanding_;  // count the call once, not once per waiting descriptor
          access.status_out = &d.status;
          ++parent->batch().children;
          d.status = domain_->config().statuses[Status::again].err;
          const std::span<const iovec> staged{&piece, 1}, nothing;
          if (device && !access.data_done &&
              !stage(child, kind == OpKind::write ? staged : nothing, kind == OpKind::write ? nothing : staged, 1,
                     d.length)) {
            finish(child);
            continue;
          }
          (void)queue_op(child);
          total += d.length;
          continue;
        }
      }
      d.status = domain_->config().statuses[status].err;
      if (status == Status::ok) {
        total += d.length;
      } else if (first_bad == Status::ok) {
        first_bad = status;
        first_bad_at = i;
        if (const Flow* const flow = flow_of(to); flow != nullptr) bad_route = flow->route;
      }
    }
  }
  const PostLock guard(domain_);
  if (wants) tx_cq_->unreserve();
  if (parent != nullptr) {
    parent->total = total;
    parent->wants_completion = wants;
    if (wants) {
      tx_cq_->reserve();
      parent->holds_cq_room = true;
    }
    if (first_bad != Status::ok) {
      parent->status = first_bad;
      parent->batch().failed_at = bad_route;
      parent->batch().failed_range = {descs[first_bad_at].remote_addr, descs[first_bad_at].length,
                                      descs[first_bad_at].key};
    }
    parent->submitted = true;
    const uint64_t id = parent->id;
    if (parent->batch().children == 0) {
      finish(parent);
      return {Refusal::none, true, 0};
    }
    return {Refusal::none, true, id};
  }
  const uint64_t done_flags = completion_flags(kind, {});
  if (first_bad == Status::ok) {
    complete(wants, context, done_flags, total);
    return {Refusal::none, wants};
  }
  const BatchDesc& bad = descs[first_bad_at];
  std::string text = "descriptor " + std::to_string(first_bad_at) + " of " + std::to_string(descs.size()) + ": ";
  if (bad_route) {
    text += explain(*this, kind == OpKind::read ? "read" : "write", {bad.remote_addr, bad.length, bad.key}, *bad_route,
                    first_bad);
  } else if (first_bad == Status::canceled) {
    text += "the endpoint was closed during the call";
  } else if (first_bad == Status::invalid) {
    text += "local_offset " + std::to_string(bad.local_offset) + " and length " + std::to_string(bad.length) +
            " pass the end of the local buffer of " + std::to_string(local_length) + " B";
  } else {
    text += "dest_addr " + std::to_string(bad.dest_addr) + " is not in the address vector";
  }
  fail(context, done_flags, first_bad, text + "; the status field of each descriptor has its own error number", total,
       {bad.remote_addr, bad.length, bad.key}, bad_route.get());
  count_remote(kind == OpKind::read, true, 0);
  return {Refusal::none, true};
}

}  // namespace weft::nic
