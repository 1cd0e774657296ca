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
[[nodiscard]] Refusal check(const nic::Endpoint& ep, Send& s, Why* why);
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
[[nodiscard]] Refusal check(const nic::Endpoint& ep, Receive& r, Why* why);
PostResult post(nic::Endpoint& ep, const Receive& r);

}  // namespace weft::call
