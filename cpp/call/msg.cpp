// cpp/call/msg.cpp: the rules of the calls of fi_msg(3) and fi_tagged(3).
#include "call/msg.hpp"

namespace weft::call {

namespace {

constexpr uint64_t kPeeks = nic::flag::kPeek | nic::flag::kClaim | nic::flag::kDiscard;

Refusal check_capable(const nic::Endpoint& ep, bool tagged, bool send, Why* why) {
  const uint64_t needed = message_caps(tagged, send);
  if ((ep.config().caps & needed) == needed) [[likely]]
    return Refusal::none;
  why->what = tagged ? (send ? "TAGGED and SEND" : "TAGGED and RECV") : (send ? "MSG and SEND" : "MSG and RECV");
  return why->set(Refusal::no_capability);
}

// Checks a tag or an ignore mask.
Refusal check_tag(const nic::Endpoint& ep, uint64_t bits, const char* what, Why* why) {
  const uint64_t mask = ep.config().rules.messages.tag_mask;
  if ((bits & ~mask) == 0) [[likely]]
    return Refusal::none;
  why->what = what;
  return why->set(Refusal::bad_tag, bits, mask);
}

// Adds up the lengths of the buffers, and checks the sum.
Refusal check_length(const nic::Endpoint& ep, std::span<const Local> local, uint64_t* total, Why* why) {
  uint64_t sum = 0;
  for (const Local& l : local) {
    if (__builtin_add_overflow(sum, l.length, &sum)) sum = ~uint64_t{0};
  }
  *total = sum;
  return sum <= ep.config().max_msg_size ? Refusal::none : why->set(Refusal::too_long, sum, ep.config().max_msg_size);
}

// Checks the buffers, and fills in their iovecs.
Refusal check_buffers(const nic::Endpoint& ep, std::span<const Local> local, LocalUse use, bool with_desc, iovec* iov,
                      uint8_t* device, Why* why) {
  *device = 0;
  for (size_t i = 0; i < local.size(); ++i) {
    bool of_device = false;
    if (const Refusal r = check_local(ep, local[i], use, with_desc, &of_device, why); r != Refusal::none) return r;
    if (of_device) *device = static_cast<uint8_t>(*device | 1u << i);
    iov[i] = {local[i].data, local[i].length};
  }
  return Refusal::none;
}

Refusal clash(const char* what, Why* why) {
  why->what = what;
  return why->set(Refusal::flags_clash);
}

// The flags of a receive that look at messages: PEEK, CLAIM, DISCARD.
Refusal check_peek(const Receive& r, Why* why) {
  const bool peek = (r.flags & nic::flag::kPeek) != 0, claim = (r.flags & nic::flag::kClaim) != 0;
  const bool discard = (r.flags & nic::flag::kDiscard) != 0;
  if (discard && peek == claim) {
    return clash(peek ? "PEEK, CLAIM and DISCARD together" : "DISCARD without PEEK or CLAIM", why);
  }
  if (claim && !r.has_context) return why->set(Refusal::no_context);
  if (claim && !peek && (r.flags & nic::flag::kMultiRecv) != 0) return clash("CLAIM with MULTI_RECV", why);
  return Refusal::none;
}

}  // namespace

Refusal check_all(const nic::Endpoint& ep, Send& s, Why* why) {
  why->dest = s.dest;
  if (const Refusal r = check_capable(ep, s.tagged, true, why); r != Refusal::none) [[unlikely]]
    return r;
  if (s.local.size() > 1) {
    if (const Refusal r = check_local_count(ep, s.local.size(), why); r != Refusal::none) return r;
  }
  if (s.message) {
    const FlagCall call = s.tagged ? FlagCall::tsend : FlagCall::send;
    if (const Refusal r = check_flags(ep, call, s.flags, why); r != Refusal::none) return r;
  }
  if (s.data) s.flags |= nic::flag::kRemoteCqData;
  if ((s.flags & nic::flag::kRemoteCqData) != 0 && !ep.config().rules.messages.data) [[unlikely]]
    return why->set(Refusal::no_message_data);
  if ((s.flags & nic::flag::kFence) != 0) {
    if (const Refusal r = check_fence(ep, s.flags, why); r != Refusal::none) return r;
  }
  if (const Refusal r = check_length(ep, s.local, &s.total, why); r != Refusal::none) [[unlikely]]
    return r;
  const bool inject = s.inject || (s.flags & nic::flag::kInject) != 0;
  if (inject && s.total > ep.config().inject_size) [[unlikely]] {
    why->what = s.tagged ? "tsend()" : "send()";
    return why->set(Refusal::inject_too_long, s.total, ep.config().inject_size);
  }
  if (s.tagged) {
    if (const Refusal r = check_tag(ep, s.tag, "tag", why); r != Refusal::none) [[unlikely]]
      return r;
  }
  return check_buffers(ep, s.local, LocalUse::send, !s.inject, s.iov.data(), &s.device, why);
}

PostResult post(nic::Endpoint& ep, const Send& s) {
  nic::SendArgs args;
  args.dest = s.dest;
  args.local = {s.iov.data(), s.local.size()};
  args.tag = s.tag;
  args.data = (s.flags & nic::flag::kRemoteCqData) != 0 ? s.imm : 0;
  args.flags = s.flags;
  args.context = s.context;
  args.tagged = s.tagged;
  args.inject_call = s.inject;
  args.device = s.device;
  return ep.post_send(args);
}

Refusal check_all(const nic::Endpoint& ep, Receive& r, Why* why) {
  const nic::EndpointConfig& config = ep.config();
  why->dest = r.source;
  if (const Refusal no = check_capable(ep, r.tagged, false, why); no != Refusal::none) [[unlikely]]
    return no;
  if ((config.caps & directed_caps(r.tagged)) == 0) r.source = kNoPeer;
  if (r.tagged && (config.caps & nic::rx_cap::kTaggedMultiRecv) == 0) r.flags &= ~nic::flag::kMultiRecv;
  if (r.message) {
    const FlagCall call = r.tagged ? FlagCall::trecv : FlagCall::recv;
    if (const Refusal no = check_flags(ep, call, r.flags, why); no != Refusal::none) return no;
  }
  if ((r.flags & kPeeks) != 0) [[unlikely]] {
    if (const Refusal no = check_peek(r, why); no != Refusal::none) return no;
  }
  if (r.local.size() > 1) {
    if ((r.flags & nic::flag::kMultiRecv) != 0) return why->set(Refusal::too_many_buffers, r.local.size(), 1);
    if (const Refusal no = check_local_count(ep, r.local.size(), why, true); no != Refusal::none) return no;
  }
  if (const Refusal no = check_length(ep, r.local, &r.total, why); no != Refusal::none) [[unlikely]]
    return no;
  if (r.tagged) {
    if (const Refusal no = check_tag(ep, r.tag, "tag", why); no != Refusal::none) [[unlikely]]
      return no;
    if (const Refusal no = check_tag(ep, r.ignore, "ignore", why); no != Refusal::none) [[unlikely]]
      return no;
  }
  return check_buffers(ep, r.local, LocalUse::receive, true, r.iov.data(), &r.device, why);
}

PostResult post(nic::Endpoint& ep, const Receive& r) {
  constexpr uint64_t kPassed =
      nic::flag::kCompletion | nic::flag::kMultiRecv | nic::flag::kMore | kPeeks | nic::flag::kLane;
  nic::ReceiveArgs args;
  args.source = r.source;
  args.local = {r.iov.data(), r.local.size()};
  args.tag = r.tag;
  args.ignore = r.ignore;
  args.flags = r.flags & kPassed;
  args.context = r.context;
  args.tagged = r.tagged;
  args.device = r.device;
  args.cookies = r.cookies;
  args.deferred = r.deferred;
  args.counter = r.counter;
  return ep.post_receive(args);
}

}  // namespace weft::call
