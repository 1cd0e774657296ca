// cpp/nic/trace_calls.cpp: the records of an endpoint (trace.hpp): its calls and operations.
#include "nic/nic.hpp"

namespace weft::nic {

// Records a call that posted an operation, or a refusal that the caller repeats. Returns `result`.
PostResult TxPort::traced(OpKind kind, uint64_t dest, uint64_t bytes, uint64_t arg, uint64_t began_ns,
                          PostResult result) {
  if (result.refusal == Refusal::not_now) return result;  // the caller begins the operation in another way
  if (result.refusal != Refusal::none && config_.rules.errno_of(result.refusal) == fi_err::kEAGAIN) {
    trace_->refused(static_cast<uint8_t>(result.refusal));
    return result;
  }
  if (result.refusal == Refusal::none) trace_->went_on();
  TraceRecord r;
  r.kind = TraceKind::call;
  r.t_ns = began_ns;
  r.duration_ns = trace_->now_ns() - began_ns;
  r.what = static_cast<uint8_t>(kind);
  r.id = result.op_id;
  r.bytes = bytes;
  r.arg = arg;
  r.status = static_cast<int32_t>(result.refusal);
  {
    const DomainLock guard(domain_);
    const uint64_t to = dest_of(dest);
    if (to < flows_.size() && flows_[to]) r.peer = flows_[to]->route->address.pid;
  }
  trace_->add(r);
  return result;
}

void TxPort::record(TraceKind kind, const Op& op) noexcept {
  TraceRecord r;
  r.kind = kind;
  r.what = static_cast<uint8_t>(op.kind);
  r.id = op.id;
  r.bytes = op.total;
  r.arg = op.kind == OpKind::send ? op.send().tag : 0;
  r.status = static_cast<int32_t>(op.status);
  r.peer = op.flow->route->address.pid;
  trace_->add(r);
}

void TxPort::record(TraceKind kind, const Route* route, uint64_t id, uint64_t bytes, uint64_t arg,
                    Status status) noexcept {
  TraceRecord r;
  r.kind = kind;
  r.id = id;
  r.bytes = bytes;
  r.arg = arg;
  r.status = static_cast<int32_t>(status);
  if (route != nullptr) r.peer = route->address.pid;
  trace_->add(r);
}

}  // namespace weft::nic
