// cpp/call/deferred.hpp: calls that are queued as deferred work instead of posted: checked by check() as the calls of
// call.hpp and msg.hpp, then copied into a nic::Work.
#pragma once

#include "call/msg.hpp"
#include "nic/trigger.hpp"

namespace weft::call {

enum class WorkOp : uint8_t {  // enum fi_op_type
  recv,
  send,
  trecv,
  tsend,
  read,
  write,
  atomic,
  fetch_atomic,
  compare_atomic,
  cntr_set,
  cntr_add
};
constexpr bool receives(WorkOp op) noexcept {
  return op == WorkOp::recv || op == WorkOp::trecv;
}
constexpr bool counts(WorkOp op) noexcept {
  return op >= WorkOp::cntr_set;
}
constexpr int operator-(WorkOp a, WorkOp b) noexcept {
  return static_cast<int>(a) - static_cast<int>(b);
}

// What the structs of an operation say. has_local: there is a list of local buffers, which may be empty.
struct WorkShape {
  WorkOp op;
  uint64_t flags, threshold;
  size_t local, remote;
  bool has_local;
};
// Why the domain's rules refuse to queue an operation, with C's names; empty: they do not, and `flags` are those of the
// operation's call, whose own checks follow.
[[nodiscard]] std::string check_work(const nic::Endpoint& ep, const WorkShape& work, uint64_t* flags, bool* write_back);
// Why a receive takes no such flags, under any rules; empty: the operation takes them.
[[nodiscard]] std::string check_looks(WorkOp op, uint64_t flags);
// Fills in work that sets a counter, or adds to it. Not empty: why the counter cannot have the value.
[[nodiscard]] std::string fill_counting(WorkOp op, std::shared_ptr<nic::Counter> counter, uint64_t value,
                                        nic::Work* work);

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
