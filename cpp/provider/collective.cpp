// cpp/provider/collective.cpp: fi_collective(3): the calls of a group, and the query.
//
// HOT: the calls.
#include "call/collective.hpp"

#include "provider/calls.hpp"
#include "provider/group.hpp"

namespace weft::provider {

namespace {

using call::CollectiveFault;
using call::CollectiveKind;

[[gnu::noinline, gnu::cold]] ssize_t refuse_collective(Ep& ep, const char* name,
                                                       const call::CollectiveWhy& why) noexcept {
  if (why.fault == CollectiveFault::endpoint) return refuse_call(ep, name, why.of_endpoint);
  const int number = call::code_of(*ep.ep, why);
  if (number == fi_err::kEAGAIN) return -number;  // the caller tries again: not worth a text
  const Front& front = front_of(ep);
  if_explained(front, Subject::ep_data,
               [&] { explain(front, Subject::ep_data, name, call::explain(*ep.ep, name, why)); });
  return -number;
}

struct Result {
  void* buf = nullptr;
  void* desc = nullptr;
};

// HOT. Checks and posts a call.
ssize_t run(Ep& ep, const char* name, call::Collective& c, void* context, Result result = {}) noexcept {
  if (ep.forked()) [[unlikely]]
    return refuse_forked(ep, name);
  try {
    call::CollectiveWhy why;
    if (call::check(*ep.ep, c, &why) != CollectiveFault::none) [[unlikely]]
      return refuse_collective(ep, name, why);
    if (c.folds) {
      const auto fault = call::fold(*ep.ep, c, static_cast<std::byte*>(result.buf), &why);
      return fault == CollectiveFault::none ? 0 : refuse_collective(ep, name, why);
    }
    if (c.receives) {
      const call::Local local = local_of(ep, result.buf, call::kLongEnough, result.desc);
      if (call::check_result(*ep.ep, c, local, result.buf != nullptr, &why) != CollectiveFault::none) [[unlikely]]
        return refuse_collective(ep, name, why);
    }
    c.args.context = context_of(context);
    if (call::post(c, &why) != CollectiveFault::none) [[unlikely]]
      return refuse_collective(ep, name, why);
    return 0;
  } catch (const Error& e) {
    return refuse(front_of(ep), Subject::ep_data, name, e.fi_code(), e.what());
  } catch (const std::bad_alloc&) {
    return -fi_err::kENOMEM;
  }
}

call::Collective with_data(const Ep& ep, CollectiveKind kind, const void* buf, size_t count, void* desc,
                           ofi::Addr group, int type, uint64_t flags) noexcept {
  call::Collective c;
  c.kind = kind;
  c.has_buf = buf != nullptr;
  c.buf = local_of(ep, buf, call::kLongEnough, desc);
  c.count = count;
  c.coll_addr = group;
  c.datatype = static_cast<uint64_t>(type);
  c.flags = flags;
  return c;
}

ssize_t barrier(Ep& ep, const char* name, ofi::Addr group, uint64_t flags, void* context) noexcept {
  call::Collective c;
  c.coll_addr = group;
  c.flags = flags;
  return run(ep, name, c, context);
}

ssize_t collective_barrier(ofi::FidEp* fid, ofi::Addr group, void* context) {
  Ep& ep = of(fid);
  return barrier(ep, "fi_barrier", group, ep.flags_of(nic::FlagCall::write) & nic::flag::kCompletion, context);
}

ssize_t collective_barrier2(ofi::FidEp* fid, ofi::Addr group, uint64_t flags, void* context) {
  return barrier(of(fid), "fi_barrier2", group, flags, context);
}

ssize_t collective_broadcast(ofi::FidEp* fid, void* buf, size_t count, void* desc, ofi::Addr group, ofi::Addr root,
                             int type, uint64_t flags, void* context) {
  Ep& ep = of(fid);
  call::Collective c = with_data(ep, CollectiveKind::broadcast, buf, count, desc, group, type, flags);
  c.root_addr = root;
  return run(ep, "fi_broadcast", c, context);
}

ssize_t collective_allreduce(ofi::FidEp* fid, const void* buf, size_t count, void* desc, void* result,
                             void* result_desc, ofi::Addr group, int type, int op, uint64_t flags, void* context) {
  Ep& ep = of(fid);
  call::Collective c = with_data(ep, CollectiveKind::allreduce, buf, count, desc, group, type, flags);
  c.op = static_cast<uint64_t>(op);
  return run(ep, "fi_allreduce", c, context, {result, result_desc});
}

ssize_t collective_reduce(ofi::FidEp* fid, const void* buf, size_t count, void* desc, void* result, void* result_desc,
                          ofi::Addr group, ofi::Addr root, int type, int op, uint64_t flags, void* context) {
  Ep& ep = of(fid);
  call::Collective c = with_data(ep, CollectiveKind::reduce, buf, count, desc, group, type, flags);
  c.op = static_cast<uint64_t>(op);
  c.root_addr = root;
  return run(ep, "fi_reduce", c, context, {result, result_desc});
}

// The exchanges: neither provider has them, on hardware neither.
ssize_t no_exchange(ofi::FidEp* fid) {
  return refuse_missing(&fid->fid, "weft::ofi::CollectiveOps::(an exchange)");
}

ofi::CollectiveOps make_collective_ops() noexcept {
  using Ops = ofi::CollectiveOps;
  Ops ops{};
  ops.size = sizeof(Ops);
  for (auto Ops::* member :
       {&Ops::alltoall, &Ops::allgather, &Ops::reduce_scatter, &Ops::scatter, &Ops::gather, &Ops::msg})
    ops.*member = reinterpret_cast<void (*)()>(no_exchange);
  ops.barrier = collective_barrier;
  ops.barrier2 = collective_barrier2;
  ops.broadcast = collective_broadcast;
  ops.allreduce = collective_allreduce;
  ops.reduce = collective_reduce;
  return ops;
}

}  // namespace

ofi::CollectiveOps g_collective_ops = make_collective_ops();

int query_collective(ofi::FidDomain* fid, int collective, ofi::CollectiveAttr* attr, uint64_t flags) {
  static const char* const call = "fi_query_collective";
  Domain& d = of(fid);
  if (d.forked()) return refuse_forked(d, call);
  return guarded(front_of(d), Subject::domain, call, [&] {
    Record question = question_about("query_collective", d.lease);
    question.add("collective", static_cast<uint64_t>(collective), "flags", flags);
    if (attr != nullptr) {
      question.add("op", static_cast<uint64_t>(attr->op), "datatype", static_cast<uint64_t>(attr->datatype));
    }
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(front_of(d), Subject::domain, call, answer); r != 0 || attr == nullptr) return r;
    attr->datatype_attr = {answer.number("count"), answer.number("size")};
    attr->max_members = answer.number("max_members");
    attr->mode = answer.number("mode");
    return 0;
  });
}

}  // namespace weft::provider
