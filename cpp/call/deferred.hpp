// cpp/call/deferred.hpp: calls that are queued as deferred work instead of posted: checked by check() as the calls of
// call.hpp and msg.hpp, then copied into a nic::Work.
#pragma once

#include "call/msg.hpp"
#include "nic/trigger.hpp"

namespace weft::call {

// Fill in the work's operation. The checks are the checks of post(), except for room in the queues. The data of
// calls with FI_INJECT is copied. Throw std::bad_alloc.
[[nodiscard]] Refusal fill(nic::Endpoint& ep, const ListTransfer& t, nic::Work* work);
[[nodiscard]] Refusal fill(nic::Endpoint& ep, const Atomic& a, nic::Work* work);
[[nodiscard]] Refusal fill(nic::Endpoint& ep, const Send& s, nic::Work* work);
[[nodiscard]] Refusal fill(nic::Endpoint& ep, const Receive& r, nic::Work* work);

// Checks a call and makes it a piece of work, with these flags besides its own: of the handle.
template <typename Call>
[[nodiscard]] Refusal defer(nic::Endpoint& ep, Call& c, uint64_t more, nic::Work* work, Why* why) {
  if (check(ep, c, why) != Refusal::none) return why->refusal;
  c.flags |= more;
  if (const Refusal r = fill(ep, c, work); r != Refusal::none) return why->set(r, work->total, 0);
  return Refusal::none;
}

}  // namespace weft::call
