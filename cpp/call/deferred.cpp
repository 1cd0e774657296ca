// cpp/call/deferred.cpp: see deferred.hpp.
#include <cassert>
#include <utility>

#include "call/deferred.hpp"

#include "mem/guard.hpp"
#include "nic/iov.hpp"

namespace weft::call {

namespace {

using nic::Work;

// Replaces the operation's data by a copy, if the call is one with FI_INJECT. `device` data stays where it is.
Refusal copy_injected(uint64_t flags, Work* work) {
  if ((flags & nic::flag::kInject) == 0 || work->device != 0) return Refusal::none;
  assert(work->held.empty() && nic::sum_bytes(work->local) == work->total);
  work->held.resize(work->total);
  if (nic::gather(work->local, 0, work->held.data(), work->total) != Status::ok) return Refusal::no_page;
  work->local.set(iovec{work->held.data(), work->held.size()});
  return Refusal::none;
}

Refusal fill_common(nic::Endpoint& ep, uint64_t dest, uint64_t flags, uint64_t context, uint64_t data, uint64_t total,
                    Work* work) {
  assert(work->ep == nullptr && "a piece of work is filled once");
  work->ep = ep.shared_from_this();
  work->flags = flags & ~nic::flag::kMore;
  work->context = context;
  work->data = data;
  work->total = total;
  return ep.check_deferred(dest, &work->flow);
}

}  // namespace

std::string check_looks(WorkOp op, uint64_t flags) {
  constexpr uint64_t kLooks = nic::flag::kPeek | nic::flag::kClaim | nic::flag::kDiscard;
  return receives(op) && (flags & kLooks) != 0 ? "a deferred receive takes no FI_PEEK, FI_CLAIM or FI_DISCARD" : "";
}

std::string check_work(const nic::Endpoint& ep, const WorkShape& work, uint64_t* flags, bool* write_back) {
  const nic::WorkRules& rules = ep.domain()->config().work;
  if (const std::string why = check_looks(work.op, work.flags); !why.empty()) return why;
  *write_back = (work.flags & rules.write_back) != 0;
  *flags = work.flags & ~(rules.write_back | nic::flag::kMore);
  if (rules.sends_unchecked && (work.op == WorkOp::send || work.op == WorkOp::tsend)) {
    if ((*flags & nic::flag::kInject) != 0) return "FI_INJECT of a deferred send: its data would have to be copied";
    *flags &= ep.config().rules.flags_of(work.op == WorkOp::tsend ? nic::FlagCall::tsend : nic::FlagCall::send);
  } else if ((*flags & ~rules.flags) != 0) {
    return "flags " + hex(work.flags) + "\n  rule: " + flag_names(ep.config().rules, rules.flags) + " at most";
  }
  if (receives(work.op) && work.threshold != 0 && !rules.receives_wait)
    return "threshold " + std::to_string(work.threshold) + " of a receive; here it has to be 0";
  if (!rules.single) return {};
  if (work.local > 1) return std::to_string(work.local) + " local buffers; deferred work has at most 1";
  if ((work.op == WorkOp::read || work.op == WorkOp::write) && !work.has_local)
    return "no msg_iov: deferred reads and writes need a buffer";
  return work.remote == 1 ? "" : std::to_string(work.remote) + " remote ranges; deferred work has 1";
}

std::string fill_counting(WorkOp op, std::shared_ptr<nic::Counter> counter, uint64_t value, Work* work) {
  const uint64_t most = counter->limits().value_max;
  if (value > most) return "value " + std::to_string(value) + "; a counter holds at most " + std::to_string(most);
  work->kind = op == WorkOp::cntr_add ? Work::Kind::add : Work::Kind::set;
  work->counter = std::move(counter);
  work->value = value;
  return {};
}

Refusal fill(nic::Endpoint& ep, const ListTransfer& t, Work* work) {
  if (nic::sum_bytes(t.remote) != t.total) return Refusal::length_mismatch;
  work->kind = Work::Kind::transfer;
  work->access = t.kind;
  work->local.set(std::span<const iovec>(t.iov.data(), t.local.size()));
  work->remote.set(t.remote);
  work->device = t.device;
  if (const Refusal r = fill_common(ep, t.dest, t.flags, t.context, t.imm, t.total, work); r != Refusal::none) return r;
  return t.kind == OpKind::write ? copy_injected(t.flags, work) : Refusal::none;
}

Refusal fill(nic::Endpoint& ep, const Atomic& a, Work* work) {
  const auto list = [](const std::array<iovec, nic::kIovMax>& iov, std::span<const Local> of) {
    return std::span<const iovec>(iov.data(), of.size());
  };
  const uint64_t total = nic::sum_bytes(a.remote);
  if (total > ep.domain()->nic()->limits().atomic_bytes_max) return Refusal::too_long;
  work->kind = Work::Kind::atomic;
  work->family = a.family;
  work->op = static_cast<nic::AtomicOp>(a.op);
  work->datatype = static_cast<nic::Datatype>(a.datatype);
  if (a.has_operand) work->local.set(list(a.operand_iov, a.operand));
  if (a.has_compare()) work->compare.set(list(a.compare_iov, a.compare));
  if (a.has_result()) work->result.set(list(a.result_iov, a.result));
  work->remote.set(a.remote);
  work->device = a.operand_device;
  work->compare_device = a.compare_device;
  work->result_device = a.result_device;
  if ((a.has_operand && nic::sum_bytes(work->local) != total) ||
      (a.has_compare() && nic::sum_bytes(work->compare) != total) ||
      (a.has_result() && nic::sum_bytes(work->result) != total)) {
    return Refusal::length_mismatch;
  }
  if (const Refusal r = fill_common(ep, a.dest, a.flags, a.context, a.imm, total, work); r != Refusal::none) return r;
  return a.has_operand && !a.has_compare() ? copy_injected(a.flags, work) : Refusal::none;
}

Refusal fill(nic::Endpoint& ep, const Send& s, Work* work) {
  work->kind = Work::Kind::send;
  work->local.set(std::span<const iovec>(s.iov.data(), s.local.size()));
  work->tag = s.tag;
  work->tagged = s.tagged;
  work->device = s.device;
  const uint64_t data = (s.flags & nic::flag::kRemoteCqData) != 0 ? s.imm : 0;
  if (const Refusal r = fill_common(ep, s.dest, s.flags, s.context, data, s.total, work); r != Refusal::none) return r;
  return copy_injected(s.flags, work);
}

Refusal fill(nic::Endpoint& ep, const Receive& r, Work* work) {
  if (ep.port() == nullptr) return ep.closed() ? Refusal::closed : Refusal::not_enabled;
  constexpr uint64_t kPassed = nic::flag::kCompletion | nic::flag::kMultiRecv | nic::flag::kLane;
  work->kind = Work::Kind::receive;
  work->ep = ep.shared_from_this();
  work->local.set(std::span<const iovec>(r.iov.data(), r.local.size()));
  work->source = r.source;
  work->tag = r.tag;
  work->ignore = r.ignore;
  work->tagged = r.tagged;
  work->flags = r.flags & kPassed;
  work->context = r.context;
  work->device = r.device;
  work->total = r.total;
  return Refusal::none;
}

}  // namespace weft::call
