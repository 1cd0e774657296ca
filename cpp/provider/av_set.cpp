// cpp/provider/av_set.cpp: sets of a vector's addresses (fi_av_set(3)).
#include "nic/av.hpp"
#include "provider/group.hpp"

namespace weft::provider {

namespace {

int set_refuse(const AvSet& set, const char* call, int number, const std::string& text) {
  return refuse(front_of(set), Subject::av, call, number, std::string(call) + ": " + text);
}

int set_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<AvSetShell*>(fid);
  AvSet& set = shell->of;
  if (set.forked()) return 0;  // the parent's
  if (set.uses != 0)
    return set_refuse(set, "fi_close", fi_err::kEBUSY, "a collective group uses the set\n  try: close the group first");
  --set.av->uses;
  delete shell;
  return 0;
}

// Changes a set; 0, or the refusal of one that a group uses.
template <typename Change>
int changing(ofi::FidAvSet* fid, const char* call, Change&& change) {
  AvSet& set = of(fid);
  if (set.forked()) return refuse_forked(front_of(set), Subject::av, call);
  return guarded(front_of(set), Subject::av, call, [&] {
    if (set.fixed && set.uses != 0) {
      return set_refuse(set, call, set.joined_errno,
                        "a collective group uses the set\n  try: close the group first, or another set");
    }
    return change(set);
  });
}

template <std::string (call::AddressSet::*change)(uint64_t)>
int change_one(ofi::FidAvSet* fid, const char* call, ofi::Addr address) {
  return changing(fid, call, [&](AvSet& set) {
    const std::string why = (set.members.*change)(address);
    return why.empty() ? 0 : set_refuse(set, call, set.member_errno, why);
  });
}

template <void (call::AddressSet::*change)(const call::AddressSet&)>
int combine(ofi::FidAvSet* fid, const char* call, const ofi::FidAvSet* from) {
  return changing(fid, call, [&](AvSet& set) {
    const AvSet& other = of(const_cast<ofi::FidAvSet*>(from));
    if (other.av != set.av)
      return set_refuse(set, call, set.vector_errno, "the source is a set of another vector than the destination");
    (set.members.*change)(other.members);
    return 0;
  });
}

int set_union(ofi::FidAvSet* to, const ofi::FidAvSet* from) {
  return combine<&call::AddressSet::unite>(to, "fi_av_set_union", from);
}
int set_intersect(ofi::FidAvSet* to, const ofi::FidAvSet* from) {
  return combine<&call::AddressSet::intersect>(to, "fi_av_set_intersect", from);
}
int set_diff(ofi::FidAvSet* to, const ofi::FidAvSet* from) {
  return combine<&call::AddressSet::subtract>(to, "fi_av_set_diff", from);
}
int set_insert(ofi::FidAvSet* fid, ofi::Addr address) {
  return change_one<&call::AddressSet::insert>(fid, "fi_av_set_insert", address);
}
int set_remove(ofi::FidAvSet* fid, ofi::Addr address) {
  return change_one<&call::AddressSet::remove>(fid, "fi_av_set_remove", address);
}

// What a join takes as coll_addr; the address for calls comes from the join.
int set_addr(ofi::FidAvSet*, ofi::Addr* coll_addr) {
  *coll_addr = kAddrNotAvail;
  return 0;
}

ofi::FidOps g_set_fid_ops = fid_ops(set_close);
ofi::AvSetOps g_set_ops{sizeof(ofi::AvSetOps), set_union, set_intersect, set_diff, set_insert, set_remove, set_addr};

}  // namespace

int open_av_set(ofi::FidAv* av_fid, ofi::AvSetAttr* attr, ofi::FidAvSet** out, void* context) {
  static const char* const call = "fi_av_set";
  Av& av = of(av_fid);
  const Front& front = front_of(av);
  if (av.forked()) return refuse_forked(av, call);
  if (attr == nullptr || out == nullptr)
    return refuse(front, Subject::av, call, fi_err::kEINVAL, "fi_av_set: attr, or the place of the set, is NULL");
  return guarded(front, Subject::av, call, [&] {
    Record question = question_about("av_set", av.lease);
    question.add("count", attr->count, "start_addr", attr->start_addr, "end_addr", attr->end_addr, "stride",
                 attr->stride, "flags", attr->flags, "comm_key_size", attr->comm_key_size);
    if (attr->comm_key != nullptr && attr->comm_key_size != 0)
      question.add("comm_key", key_of(attr->comm_key, attr->comm_key_size));
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(front, Subject::av, call, answer); r != 0) return r;
    auto shell = std::make_unique<AvSetShell>();
    AvSet& set = shell->of;
    set.domain = av.domain;
    set.av = &av;
    if (answer.has("first")) {
      set.members = call::AddressSet(
          av.av->in_use(answer.number("first"), answer.number("last"), answer.number("stride"), answer.number("most")));
    }
    if (answer.has("comm_key")) set.comm_key = answer.text("comm_key");
    set.fixed = answer.flag("fixed");
    set.member_errno = static_cast<int>(answer.number("member_errno"));
    set.vector_errno = static_cast<int>(answer.number("vector_errno"));
    set.joined_errno = static_cast<int>(answer.number("joined_errno"));
    shell->fid.fid = {kClassAvSet, context, &g_set_fid_ops};
    shell->fid.ops = &g_set_ops;
    ++av.uses;
    *out = &shell.release()->fid;
    return 0;
  });
}

}  // namespace weft::provider
