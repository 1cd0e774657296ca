// cpp/call/rma.cpp: the rules of fi_rma(3)'s calls.
#include <algorithm>

#include "call/call.hpp"

namespace weft::call {

void set_default_flags(const nic::OpRules& rules, bool receives, uint64_t op_flags, nic::CallFlags* calls) noexcept {
  for (size_t i = 0; i < calls->size(); ++i) {
    const auto call = static_cast<FlagCall>(i);
    const bool of_receives = call == FlagCall::recv || call == FlagCall::trecv;
    if (of_receives == receives) (*calls)[i] = op_flags & rules.flags_of(call) & ~nic::flag::kRemoteCqData;
  }
}

Refusal check_flags(const nic::Endpoint& ep, FlagCall call, uint64_t flags, Why* why) {
  const uint64_t unknown = flags & ~ep.config().rules.flags_of(call);
  return unknown == 0 ? Refusal::none : why->set(Refusal::bad_flags, unknown, ep.config().rules.flags_of(call));
}

Refusal check_local_count(const nic::Endpoint& ep, uint64_t count, Why* why, bool receives) {
  const nic::OpRules& rules = ep.config().rules;
  const uint64_t limit = std::min<uint64_t>(receives ? rules.messages.recv_iov_max : rules.iov_max, nic::kIovMax);
  return count <= limit ? Refusal::none : why->set(Refusal::too_many_buffers, count, limit);
}

Refusal check_remote_count(const nic::Endpoint& ep, uint64_t count, Why* why) {
  const uint64_t limit = std::min<uint64_t>(ep.config().rules.rma_iov_max, nic::kIovMax);
  return count != 0 && count <= limit ? Refusal::none : why->set(Refusal::bad_range_count, count, limit);
}

Refusal check_fence(const nic::Endpoint& ep, uint64_t flags, Why* why) {
  const bool may = !ep.config().rules.fence_needs_cap || (ep.config().caps & nic::flag::kFence) != 0;
  return (flags & nic::flag::kFence) == 0 || may ? Refusal::none : why->set(Refusal::no_fence);
}

Refusal check_more(const nic::Endpoint& ep, uint64_t* flags, std::span<const wire::RmaRange> remote, Why* why) {
  const nic::OpRules& rules = ep.config().rules;
  if (const Refusal r = check_fence(ep, *flags, why); r != Refusal::none) return r;
  if ((*flags & rules.fence_also) != 0) *flags = (*flags & ~rules.fence_also) | nic::flag::kFence;
  if ((*flags & nic::flag::kRemoteCqData) != 0) {
    for (const wire::RmaRange& range : remote) {
      if ((range.key & rules.data_key_mask) == rules.data_key_value) continue;
      why->what = "a write with data to a region whose key does not say that it takes data";
      return why->set(Refusal::flags_clash);
    }
  }
  if (rules.key_form_count == 0) return Refusal::none;
  const std::span forms(rules.key_forms.data(), std::min<size_t>(rules.key_form_count, nic::kKeyFormMax));
  for (const wire::RmaRange& range : remote) {
    const auto form = std::ranges::find_if(forms, [&](const nic::KeyForm& f) { return f.has(range.key); });
    if (form == forms.end()) return why->set(Refusal::bad_key, range.key, 0);
    if (form->offset_mask != 0 && !form->reaches(range.key, range.addr, range.length)) {
      return why->set(Refusal::key_offset, range.key, range.addr);
    }
  }
  return Refusal::none;
}

Refusal refuse_flags_first(const nic::Endpoint& ep, const Transfer& t, Refusal refusal, Why* why) {
  const Refusal flags = check_fence(ep, t.flags, why);
  return flags != Refusal::none ? flags : refuse_transfer(ep, t, refusal, why);
}

Refusal check_more(const nic::Endpoint& ep, Transfer& t, Why* why) {
  if (const Refusal r = check_fence(ep, t.flags, why); r != Refusal::none) return r;
  if (t.local.length > ep.config().max_msg_size) return refuse_transfer(ep, t, Refusal::too_long, why);
  const wire::RmaRange range{t.addr, t.local.length, t.key};
  why->dest = t.dest;
  return check_more(ep, &t.flags, {&range, 1}, why);
}

void put_state_first(const nic::Endpoint& ep, Why* why) noexcept {
  if (why->refusal == Refusal::forked || ep.enabled()) return;
  why->refusal = ep.closed() ? Refusal::closed : Refusal::not_enabled;
}

namespace {

Refusal no_capability(OpKind kind, Why* why) {
  why->what = kind == OpKind::read ? "RMA and READ" : "RMA and WRITE";
  return why->set(Refusal::no_capability);
}

}  // namespace

Refusal refuse_transfer(const nic::Endpoint& ep, const Transfer& t, Refusal refusal, Why* why) {
  why->dest = t.dest;
  if (refusal == Refusal::no_capability) return no_capability(t.kind, why);
  return why->set(refusal, t.local.length,
                  refusal == Refusal::inject_too_long ? ep.config().inject_size : ep.config().max_msg_size);
}

PostResult post_device(nic::Endpoint& ep, const Transfer& t) {
  const iovec piece{t.local.data, t.local.length};
  const wire::RmaRange range{t.addr, t.local.length, t.key};
  nic::RmaArgs args;
  args.kind = t.kind;
  args.dest = t.dest;
  args.local = {&piece, 1};
  args.remote = {&range, 1};
  args.flags = t.flags;
  args.context = t.context;
  args.imm = t.imm;
  args.inject_call = t.inject;
  args.device = 1;
  return ep.post(args);
}

Refusal check(const nic::Endpoint& ep, ListTransfer& t, Why* why) {
  why->dest = t.dest;
  if (!capable(ep, t.kind)) return no_capability(t.kind, why);
  if (const Refusal r = check_local_count(ep, t.local.size(), why); r != Refusal::none) return r;
  if (const Refusal r = check_remote_count(ep, t.remote.size(), why); r != Refusal::none) return r;
  if (t.message) {
    if (const Refusal r = check_flags(ep, flag_call(t.kind), t.flags, why); r != Refusal::none) return r;
    if (const Refusal r = check_fence(ep, t.flags, why); r != Refusal::none) return r;
  }
  t.total = 0;
  for (const Local& l : t.local) {
    if (__builtin_add_overflow(t.total, l.length, &t.total)) return why->set(Refusal::length_mismatch);
  }
  if (t.total > ep.config().max_msg_size) return why->set(Refusal::too_long, t.total, ep.config().max_msg_size);
  t.device = 0;
  for (size_t i = 0; i < t.local.size(); ++i) {
    bool device = false;
    if (const Refusal r = check_local(ep, t.local[i], use_of(t.kind), true, &device, why); r != Refusal::none) return r;
    if (device) t.device = static_cast<uint8_t>(t.device | 1u << i);
    t.iov[i] = {t.local[i].data, t.local[i].length};
  }
  if (t.total > ep.config().inject_size && injects(t.kind, false, t.flags)) {
    return why->set(Refusal::inject_too_long, t.total, ep.config().inject_size);
  }
  const nic::OpRules& rules = ep.config().rules;
  if (!rules.more) return Refusal::none;
  if (rules.local_lengths && t.remote.size() == 1) {
    t.whole = {t.remote[0].addr, t.total, t.remote[0].key};
    t.remote = {&t.whole, 1};
  }
  return check_more(ep, &t.flags, t.remote, why);
}

PostResult post(nic::Endpoint& ep, const ListTransfer& t) {
  nic::RmaArgs args;
  args.kind = t.kind;
  args.dest = t.dest;
  args.local = {t.iov.data(), t.local.size()};
  args.remote = t.remote;
  args.flags = t.flags;
  args.context = t.context;
  args.imm = t.imm;
  args.device = t.device;
  return ep.post(args);
}

Refusal check(const nic::Endpoint& ep, Batch& b, Why* why) {
  if (!capable(ep, b.kind)) return no_capability(b.kind, why);
  if (const Refusal r = check_flags(ep, FlagCall::batch, b.flags, why); r != Refusal::none) return r;
  const Refusal r = check_local(ep, b.local, use_of(b.kind), true, &b.device, why);
  if (r != Refusal::none || !ep.config().rules.more) return r;
  if (const Refusal fence = check_more(ep, &b.flags, {}, why); fence != Refusal::none) return fence;
  for (const nic::BatchDesc& d : b.descs) {
    const wire::RmaRange range{d.remote_addr, d.length, d.key};
    if (const Refusal key = check_more(ep, &b.flags, {&range, 1}, why); key != Refusal::none) return key;
  }
  return Refusal::none;
}

PostResult post(nic::Endpoint& ep, const Batch& b) {
  return ep.post_batch(b.kind, b.local.data, b.local.length, b.descs, b.flags, b.context, b.device);
}

}  // namespace weft::call
