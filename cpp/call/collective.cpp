// cpp/call/collective.cpp: see collective.hpp.
#include "call/collective.hpp"

#include <algorithm>

#include "call/fold.hpp"

namespace weft::call {

namespace {

using Fault = CollectiveFault;
using Kind = CollectiveKind;
using nic::ReduceOp;

constexpr uint64_t kFlags = nic::flag::kCompletion | nic::flag::kMore | nic::flag::kInjectComplete |
                            nic::flag::kTransmitComplete | nic::flag::kDeliveryComplete;

// Refuses unknown flags.
bool flags_are_known(const nic::Endpoint& ep, const Collective& c, CollectiveWhy* why) noexcept {
  const uint64_t known = kFlags | (ep.config().accelerated ? nic::flag::kPreReduced : 0);
  if ((c.flags & ~known) == 0) [[likely]]
    return true;
  why->set(Fault::flags, c.flags & ~known);
  return false;
}

// The operation by the caller's number.
std::optional<ReduceOp> op_of(const nic::Endpoint& ep, const Collective& c) noexcept {
  if (c.kind == Kind::broadcast) return ReduceOp::bor;  // fi_cxi(7): all members but the root give zeros
  const Reduction reduction{.op = c.op,
                            .datatype = c.datatype,
                            .general = !ep.config().accelerated,
                            .prefer_numbers = ep.config().prefer_numbers};
  return reduction.found();
}

// Elements of the call, and their bytes.
Fault measure(Collective& c, ReduceOp op, CollectiveWhy* why) noexcept {
  const auto datatype = static_cast<nic::Datatype>(c.datatype);
  const size_t element = nic::datatype_size(datatype);
  if (c.count == kAllElements) {
    const bool one = op == ReduceOp::repsum || op == ReduceOp::int_minmaxloc || op == ReduceOp::float_minmaxloc ||
                     op == ReduceOp::float_minmaxnumloc;
    c.count = one ? 1 : c.buf.length / element;
  }
  const auto bytes = nic::payload_bytes(op, datatype, c.count);
  if (!bytes) {
    why->element = element;
    return why->set(Fault::count, c.count);
  }
  c.args.out_bytes = *bytes;
  return Fault::none;
}

// A buffer of which the call uses `bytes` bytes.
Fault check_buffer(const nic::Endpoint& ep, const char* name, Local local, size_t bytes, LocalUse use,
                   CollectiveWhy* why) {
  if (local.length < bytes) {
    why->what = name;
    return why->set(Fault::too_short, local.length, bytes);
  }
  local.length = bytes;
  if (is_plain(ep, local) && !ep.config().rules.mr_collective) [[likely]]
    return Fault::none;
  bool device = false;
  if (check_local_slow(ep, local, use, true, &device, &why->of_endpoint) == Refusal::none) return Fault::none;
  return why->set(why->of_endpoint.refusal);
}

Fault find_group(const nic::Endpoint& ep, Collective& c, CollectiveWhy* why) noexcept {
  if (c.coll_addr != 0) c.group = ep.group(c.coll_addr);
  if (c.group == nullptr) return why->set(Fault::no_group, c.coll_addr);
  if (c.kind != Kind::broadcast && c.kind != Kind::reduce) return Fault::none;
  if (!std::ranges::binary_search(c.group->config().names, c.root_addr)) return why->set(Fault::root, c.root_addr);
  c.is_root = c.root_addr == c.group->config().name;
  return Fault::none;
}

// The contribution of a reduction.
Fault take_contribution(const nic::Endpoint& ep, Collective& c, CollectiveWhy* why) {
  if (c.pre_reduced(ep)) {
    if (const Fault f = check_buffer(ep, "buf", c.buf, nic::kReduceAccumulatorBytes, LocalUse::give, why);
        f != Fault::none)
      return f;
    const auto partial = nic::pre_reduced(c.buf.data);
    if (!partial) return why->set(Fault::accumulator);
    c.args.mine = *partial;
    c.args.out_bytes = partial->op == ReduceOp::repsum ? 8 : nic::kReducePayloadBytes;
    return Fault::none;
  }
  const auto op = op_of(ep, c);
  if (!op) {
    why->element = c.datatype;
    return why->set(Fault::pair, c.op);
  }
  if (const Fault f = measure(c, *op, why); f != Fault::none) return f;
  if (const Fault f = check_buffer(ep, "buf", c.buf, c.args.out_bytes, LocalUse::give, why); f != Fault::none) return f;
  c.args.mine = nic::contribution(*op, static_cast<nic::Datatype>(c.datatype), c.buf.data, c.count);
  return Fault::none;
}

Fault check_broadcast(const nic::Endpoint& ep, Collective& c, CollectiveWhy* why) {
  if (const Fault f = measure(c, ReduceOp::bor, why); f != Fault::none) return f;
  if (ep.config().accelerated && (c.flags & (nic::flag::kMore | nic::flag::kPreReduced)) != 0)
    return why->set(Fault::reduction_flags);
  if (const Fault f = find_group(ep, c, why); f != Fault::none) return f;
  const LocalUse use = c.is_root ? LocalUse::give : LocalUse::take;
  if (const Fault f = check_buffer(ep, "buf", c.buf, c.args.out_bytes, use, why); f != Fault::none) return f;
  const std::byte* const given = c.is_root ? c.buf.data : nullptr;
  c.args.mine = nic::contribution(ReduceOp::bor, static_cast<nic::Datatype>(c.datatype), given, c.count);
  if (!c.is_root) c.args.out = c.buf.data;
  return Fault::none;
}

}  // namespace

Fault check(const nic::Endpoint& ep, Collective& c, CollectiveWhy* why) {
  if (!flags_are_known(ep, c, why)) return why->fault;
  c.args.flags = c.flags;
  if (c.kind == Kind::barrier) {
    c.args.mine = nic::contribution(ReduceOp::barrier, nic::Datatype::uint8, nullptr, 0);
    return find_group(ep, c, why);
  }
  if (!c.has_buf) {
    why->what = "buf";
    return why->set(Fault::no_buffer);
  }
  const bool reduces = c.kind != Kind::broadcast;
  if (!(reduces && c.pre_reduced(ep)) &&
      (c.datatype > 255 || nic::datatype_size(static_cast<nic::Datatype>(c.datatype)) == 0)) {
    return why->set(Fault::datatype, c.datatype);
  }
  if (!reduces) return check_broadcast(ep, c, why);
  c.folds = ep.config().accelerated && (c.flags & nic::flag::kMore) != 0;
  if (c.folds) {  // no group, no network; fold() refuses an operation that there is not
    const auto op = op_of(ep, c);
    return op && !c.pre_reduced(ep) ? measure(c, *op, why) : Fault::none;
  }
  if (const Fault f = take_contribution(ep, c, why); f != Fault::none) return f;
  if (const Fault f = find_group(ep, c, why); f != Fault::none) return f;
  c.receives = c.kind == Kind::allreduce || c.is_root;
  return Fault::none;
}

Fault check_result(const nic::Endpoint& ep, Collective& c, Local result, bool has_result, CollectiveWhy* why) {
  if (!has_result && c.kind == Kind::reduce) return why->set(Fault::no_result_of_root);
  if (!has_result) {
    why->what = "result";
    return why->set(Fault::no_buffer);
  }
  if (c.pre_reduced(ep)) c.args.out_bytes = std::min<uint64_t>(c.args.out_bytes, result.length);
  if (const Fault f = check_buffer(ep, "result", result, c.args.out_bytes, LocalUse::take, why); f != Fault::none)
    return f;
  c.args.out = result.data;
  return Fault::none;
}

Fault post(Collective& c, CollectiveWhy* why) noexcept {
  switch (c.group->post(c.args)) {
    [[likely]] case nic::ReduceRefusal::none:
      return Fault::none;
    case nic::ReduceRefusal::all_busy:
      return why->set(Fault::busy);
    case nic::ReduceRefusal::cq_full:
      return why->set(Refusal::cq_full);
    case nic::ReduceRefusal::not_joined:
      return why->set(Fault::not_joined);
    case nic::ReduceRefusal::closed:
      break;
  }
  return why->set(Fault::closed);
}

Fault fold(const nic::Endpoint& ep, const Collective& c, std::byte* result, CollectiveWhy* why) {
  if (result == nullptr) {
    why->what = "result";
    return why->set(Fault::no_buffer);
  }
  const Reduction reduction{
      .op = c.op, .datatype = c.datatype, .count = c.count, .prefer_numbers = ep.config().prefer_numbers};
  const bool pre_reduced = c.pre_reduced(ep);
  const size_t bytes = pre_reduced ? nic::kReduceAccumulatorBytes : reduction.bytes().value_or(0);
  why->text = fold({c.buf.data, bytes}, {result, nic::kReduceAccumulatorBytes}, reduction, pre_reduced);
  return why->text.empty() ? Fault::none : why->set(Fault::fold);
}

int code_of(const nic::Endpoint& ep, const CollectiveWhy& why) noexcept {
  switch (why.fault) {
    case Fault::endpoint:
      return ep.config().rules.errno_of(why.of_endpoint.refusal);
    case Fault::flags:
      return fi_err::kEBADFLAGS;
    case Fault::datatype:
      return fi_err::kEOPNOTSUPP;
    case Fault::busy:
      return fi_err::kEAGAIN;
    case Fault::not_joined:
    case Fault::closed:
      return fi_err::kEOPBADSTATE;
    default:
      return fi_err::kEINVAL;
  }
}

std::string explain(nic::Endpoint& ep, const char* method, const CollectiveWhy& why) {
  if (why.fault == Fault::endpoint) return explain(ep, method, why.of_endpoint);
  const auto number = [](uint64_t n) { return std::to_string(n); };
  const std::string text = [&]() -> std::string {
    switch (why.fault) {
      case Fault::flags:
        return "flags " + number(why.asked) + " are none of collectives; there are COMPLETION, MORE" +
               (ep.config().accelerated ? " and cxi.PRE_REDUCED" : "");
      case Fault::reduction_flags:
        return "flags MORE and PRE_REDUCED are of reductions";
      case Fault::no_buffer:
        return std::string(why.what) + " is needed: there is no buffer";
      case Fault::no_result_of_root:
        return "the root needs a result buffer";
      case Fault::too_short:
        return std::string(why.what) + " has " + number(why.asked) + " bytes; " + number(why.limit) + " are needed";
      case Fault::datatype:
        return "datatype " + number(why.asked) + " is none that reductions have";
      case Fault::pair:
        return "operation " + number(why.asked) + " on datatype " + number(why.element) +
               " is no reduction here\n  try: Domain.query_collective (fi_query_collective), which knows the supported "
               "pairs";
      case Fault::count:
        return "count " + number(why.asked) + " of elements of " + number(why.element) +
               " bytes\n  rule: at least 1, at most 32 bytes; exactly 1 for MINMAXLOC and REPSUM";
      case Fault::accumulator:
        return "buf is no accumulator: nothing was folded into it with MORE";
      case Fault::fold:
        return why.text;
      case Fault::no_group:
        return "coll_addr " + number(why.asked) +
               " names no group of this endpoint\n  try: addr of the group that join_collective returned (fi_mc_addr)";
      case Fault::root:
        return "root_addr " + number(why.asked) + " is no member of the group";
      case Fault::busy:
        return number(nic::kReductionsMax) +
               " reductions of the group are under way, and there may be no more: read the completion queue, then "
               "retry";
      case Fault::not_joined:
        return "the group is not joined yet: read the event queue until JOIN_COMPLETE, then call";
      default:
        return "the group is closed";
    }
  }();
  return std::string(method) + ": " + text;
}

void take_rules(const nic::Endpoint& ep, nic::GroupConfig* group) {
  const bool accelerated = ep.config().accelerated;
  std::ranges::sort(group->names);
  group->always = accelerated;
  group->failed_err = accelerated ? -256 : 256;  // FI_EOTHER
  group->completion_flags = accelerated ? 0 : nic::flag::kCollective;
}

}  // namespace weft::call
