// cpp/call/msg.hpp: the calls of fi_msg(3) and fi_tagged(3), checked and posted as those of call.hpp.
//
// HOT: Send and Receive with one buffer.
#pragma once

#include <array>
#include <span>

#include "call/call.hpp"

namespace weft::call {

// fi_send, fi_sendv, fi_sendmsg, fi_inject, fi_senddata, fi_injectdata, and their tagged forms.
struct Send {
  bool tagged = false;
  bool inject = false;   // fi_inject, fi_tinject: the buffer may be reused at once, and no success is reported
  bool message = false;  // flags are the call's own
  bool data = false;     // a call with remote data, which implies FI_REMOTE_CQ_DATA
  std::span<const Local> local;
  uint64_t dest = kNoPeer, tag = 0, imm = 0, flags = 0, context = 0;
  // Set by check().
  uint64_t total = 0;
  uint8_t device = 0;  // bit i: local[i] is device memory
  std::array<iovec, nic::kIovMax> iov;
};
[[nodiscard]] Refusal check_all(const nic::Endpoint& ep, Send& s, Why* why);
PostResult post(nic::Endpoint& ep, const Send& s);

// fi_recv, fi_recvv, fi_recvmsg, and their tagged forms. Under FI_PEEK there are no buffers.
struct Receive {
  bool tagged = false;
  bool message = false;      // flags are the call's own
  bool has_context = false;  // FI_CLAIM needs one
  std::span<const Local> local;
  uint64_t source = kNoPeer, tag = 0, ignore = 0, flags = 0, context = 0;
  std::span<const uint64_t> cookies;  // the NIC's if post() refuses nothing
  bool deferred = false;              // as of nic::ReceiveArgs
  std::shared_ptr<nic::Counter> counter;
  // Set by check().
  uint64_t total = 0;
  uint8_t device = 0;
  std::array<iovec, nic::kIovMax> iov;
};
[[nodiscard]] Refusal check_all(const nic::Endpoint& ep, Receive& r, Why* why);
PostResult post(nic::Endpoint& ep, const Receive& r);

// The capabilities that a call with messages needs, and those that a receive needs to choose a source.
constexpr uint64_t message_caps(bool tagged, bool send) noexcept {
  return (tagged ? nic::flag::kTagged : nic::flag::kMsg) | (send ? nic::flag::kSend : nic::flag::kRecv);
}
constexpr uint64_t directed_caps(bool tagged) noexcept {
  return nic::rx_cap::kDirectedRecv | (tagged ? nic::rx_cap::kTaggedDirectedRecv : uint64_t{0});
}

// HOT. One buffer of host memory, and no flag that has a rule of its own: six tests find nothing to refuse. Whatever
// they do not settle, check_all() does.
[[nodiscard]] inline Refusal check(const nic::Endpoint& ep, Send& s, Why* why) {
  constexpr uint64_t kRuled = nic::flag::kRemoteCqData | nic::flag::kFence;
  const nic::EndpointConfig& config = ep.config();
  if ((config.caps & message_caps(s.tagged, true)) != message_caps(s.tagged, true) || s.local.size() != 1 ||
      s.message || s.data || (s.flags & kRuled) != 0) [[unlikely]]
    return check_all(ep, s, why);
  const Local& one = s.local[0];
  const bool inject = s.inject || (s.flags & nic::flag::kInject) != 0;
  if (one.length > (inject ? config.inject_size : config.max_msg_size) ||
      (s.tagged && (s.tag & ~config.rules.messages.tag_mask) != 0) || !is_plain(ep, one)) [[unlikely]]
    return check_all(ep, s, why);
  s.total = one.length;
  s.device = 0;
  s.iov[0] = {one.data, one.length};
  return Refusal::none;
}
[[nodiscard]] inline Refusal check(const nic::Endpoint& ep, Receive& r, Why* why) {
  constexpr uint64_t kRuled = nic::flag::kPeek | nic::flag::kClaim | nic::flag::kDiscard | nic::flag::kMultiRecv;
  const nic::EndpointConfig& config = ep.config();
  if ((config.caps & message_caps(r.tagged, false)) != message_caps(r.tagged, false) || r.local.size() != 1 ||
      r.message || (r.flags & kRuled) != 0) [[unlikely]]
    return check_all(ep, r, why);
  const Local& one = r.local[0];
  const uint64_t bits = r.tagged ? r.tag | r.ignore : 0;
  if (one.length > config.max_msg_size || (bits & ~config.rules.messages.tag_mask) != 0 || !is_plain(ep, one))
      [[unlikely]]
    return check_all(ep, r, why);
  if ((config.caps & directed_caps(r.tagged)) == 0) r.source = kNoPeer;
  r.total = one.length;
  r.device = 0;
  r.iov[0] = {one.data, one.length};
  return Refusal::none;
}

}  // namespace weft::call
