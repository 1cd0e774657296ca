// cpp/bind/ofi_group.cpp: collective groups of a real libfabric, and the calls of fi_collective(3).
//
// Where the provider has no collectives of its own, they are libfabric's, made of messages (its provider "coll"). That
// part checks nothing, so the calls here do what keeps it within its memory:
//
// - it takes coll_addr for a pointer: only the numbers of this endpoint's groups are passed on;
// - it frees a group that its operations still use: such a group stays until its endpoint is closed;
// - it never ends a reduction that it does not have: each is looked up first;
// - it never ends a call whose messages are longer than the provider's buffers, 16 KiB by default;
// - a broadcast is in as many equal parts as there are members, and goes beyond a buffer that is no whole number of
//   them: such a buffer is broadcast by an allreduce, to which all but the root give zeros;
// - a broadcast's root is a place in the set, not a fi_addr.
#include "bind/ofi_group.hpp"

#include "bind/collective_args.hpp"
#include "bind/ofi_ep.hpp"
#include "bind/reduction.hpp"

namespace weft::bind {

int OfiGroup::shut() noexcept {
  if (mc == nullptr) return 0;
  OfiEp& endpoint = *ep->owner;
  const bool stays = under_way() && ofi_may_drop(mc->h);
  const int r = stays ? 0 : mc->h.shut();
  if (r < 0) return r;
  std::erase(endpoint.groups, this);
  if (stays) endpoint.left.push_back(std::move(mc));
  mc.reset();
  ep.reset();
  return 0;
}

OfiGroup::~OfiGroup() {
  const Seam seam;
  if (shut() < 0) {  // the endpoint tries again when it is closed
    std::erase(ep->owner->groups, this);
    ep->owner->left.push_back(std::move(mc));
  }
}

namespace {

using GroupOps = ofi::CollectiveOps;

constexpr int kAllreduce = 3;                      // FI_ALLREDUCE
constexpr int kUint8 = 1, kBor = 6;                // FI_UINT8, FI_BOR
constexpr ofi::Addr kNotAvailable = ~uint64_t{0};  // FI_ADDR_NOTAVAIL

// first: the only member so far; NOTAVAIL for none, which libfabric's own collectives refuse.
std::shared_ptr<OfiAvSet> make_set(const std::shared_ptr<OfiAv>& av, const char* call, size_t count,
                                   const std::optional<nb::bytes>& comm_key, uint64_t flags, ofi::Addr first) {
  const auto open = ofi::op(av->get()->ops, &ofi::AvOps::av_set);
  if (open == nullptr) ofi_raise_missing(call);
  ofi::AvSetAttr attr{count, first, first, uint64_t{first != kNotAvailable}, 0, nullptr, flags};
  if (comm_key) {
    attr.comm_key = reinterpret_cast<uint8_t*>(const_cast<char*>(comm_key->c_str()));
    attr.comm_key_size = comm_key->size();
  }
  ofi::FidAvSet* fid = nullptr;
  ofi_check(call, open(av->get(), &attr, &fid, nullptr));
  auto set = std::make_shared<OfiAvSet>();
  set->av = av;
  set->h.fid = &fid->fid;
  return set;
}

using GroupBox = OfiCore<OfiGroup>;

// Joins the group of `members`, in a set of its own: the library looks at the set as long as the group is open.
// number: the context of the event.
void join(GroupBox* self, OfiCore<OfiEp>& endpoint, OfiCore<OfiAv>& vector, std::vector<uint64_t> members, size_t mine,
          std::optional<nb::bytes> comm_key, uint64_t set_flags, uint64_t flags, uint64_t number) {
  const char* call = "ep.join_collective";
  OfiEp& ep = ofi_open(endpoint, call);
  (void)ofi_open(vector, call);
  const auto joins = ofi::op(ep.get()->cm, &ofi::CmOps::join);
  if (joins == nullptr) ofi_raise_missing(call);
  auto mc = std::make_shared<OfiMc>();
  const bool soft = ep.domain->soft_groups();
  if (members.empty()) raise(fi_err::kEINVAL, call, ": no members");
  mc->set = make_set(vector.box, call, members.size(), comm_key, set_flags, soft ? members[0] : kNotAvailable);
  ofi::FidAvSet* set = mc->set->get();  // its table has no size in some versions: libfabric's calls do not look
  for (size_t i = soft ? 1 : 0; i < members.size(); ++i) ofi_check(call, set->ops->insert(set, members[i]));
  ofi::CollectiveAddr to{set, kNotAvailable};
  // libfabric's own collectives take NOTAVAIL for a set that they may not have.
  if (soft) ofi_check(call, set->ops->addr(set, &to.coll_addr));
  ofi::FidMc* fid = nullptr;
  ofi_check(call, joins(ep.get(), &to, flags | flag::kCollective, &fid, reinterpret_cast<void*>(number)));
  mc->h.fid = &fid->fid;
  auto box = std::make_shared<OfiGroup>();
  box->token = nb::steal(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type)));
  box->ep = endpoint.box;
  box->mc = std::move(mc);
  box->members = std::move(members);
  box->mine = mine;
  box->addr = fid->addr;
  ep.owner->groups.push_back(box.get());
  new (self) GroupBox{box};
}

// The group of coll_addr: its number, or the object that has it as `addr`.
OfiGroup* group_of(const OfiEp& ep, const char* method, PyObject* coll_addr) {
  uint64_t number = 0;
  if (!to_coll_addr(method, coll_addr, &number)) return nullptr;
  for (OfiGroup* group : ep.owner->groups) {
    if (group->addr != number) continue;
    if (group->joined) return group;
    fail(fi_err::kEOPBADSTATE, method,
         "the group is not joined yet: read the event queue until JOIN_COMPLETE, then call");
    return nullptr;
  }
  fail(fi_err::kEINVAL, method,
       "coll_addr " + std::to_string(number) +
           " is no group of this endpoint\n  try: group.addr of join_collective(), before group.close()");
  return nullptr;
}

bool to_flags(const OfiEp& ep, const char* method, PyObject* flags, uint64_t* out) {
  *out = ep.tx_flags;
  return flags == nullptr || flags == Py_None || to_u64(flags, out, method, "flags");
}

// The buffer's datatype, elements and bytes.
bool to_elements(const char* method, const CollectiveArgs& c, const Buf& buf, uint64_t* datatype, uint64_t* count,
                 size_t* bytes) {
  const bool given = c.datatype != nullptr && c.datatype != Py_None;
  if (!(given ? to_u64(c.datatype, datatype, method, "datatype") : datatype_of(method, c.buf, datatype))) return false;
  const size_t size = element_bytes(*datatype);
  if (size == 0)
    return fail(fi_err::kEOPNOTSUPP, method, "datatype " + std::to_string(*datatype) + " is none of fi_atomic(3)");
  *count = buf.length / size;
  const uint64_t most = *count;
  if (c.count != nullptr && c.count != Py_None && !to_u64(c.count, count, method, "count")) return false;
  if (*count == 0 || *count > most || (*count == most && c.count == nullptr && buf.length % size != 0)) {
    return fail(fi_err::kEINVAL, method,
                "count " + std::to_string(*count) + " of elements of " + std::to_string(size) + " bytes; buf has " +
                    std::to_string(buf.length) + " bytes\n  rule: at least one, all in buf");
  }
  *bytes = *count * size;
  return true;
}

// libfabric's own reductions never complete where the operation is not among theirs.
bool has_reduction(const OfiEp& ep, const char* method, int op, int datatype) {
  const auto query = ofi::op(ep.domain->get()->ops, &ofi::DomainOps::query_collective);
  if (query == nullptr) return ofi_missing(method);
  ofi::CollectiveAttr attr{op, datatype, {}, 0, 0};
  const int r = query(ep.domain->get(), kAllreduce, &attr, 0);
  if (r == 0) [[likely]]
    return true;
  return ofi_set_error(method, r == -fi_err::kENOSYS ? -fi_err::kEOPNOTSUPP : r,
                       "operation " + std::to_string(op) + " on datatype " + std::to_string(datatype) +
                           " is no reduction here: Domain.query_collective knows the pairs");
}

// libfabric's own calls never end where their messages do not fit: the library then reports each to the application.
bool fits(const OfiEp& ep, const char* method, size_t bytes) {
  const size_t most = ep.domain->group_bytes;
  if (bytes <= most) [[likely]]
    return true;
  return fail(fi_err::kEMSGSIZE, method,
              std::to_string(bytes) + " bytes; the collectives of this library do not end with more than " +
                  std::to_string(most) + ", the size of the provider's buffers\n  try: several calls, or " +
                  ep.domain->group_setting + " at every member");
}

// Posts a call of a group; f(table, context) calls the library.
template <typename F>
PyObject* post(OfiEp* ep, const OfiGroup& group, const char* method, uint64_t flags, size_t total, PyObject* context,
               std::initializer_list<const Buf*> bufs, F&& f) {
  Buf ticket;  // until the call completes, the group cannot be freed: OfiGroup::under_way
  ticket.owner = group.token.ptr();
  std::array<const Buf*, 4> held{&ticket};
  size_t count = 1;
  for (const Buf* one : bufs) held[count++] = one;
  return ofi_post(ep, {method, kOfiTransmit, flags, total}, context, held.data(), count,
                  [&](void* c) { return f(ep->get()->collective, c); });
}

// The endpoint and the group of a call, after its other arguments, whose conversion may have run Python code.
OfiGroup* ready(OfiEp* ep, const char* method, PyObject* group) {
  return ofi_ready(*ep, method, kNotAvailable, true) ? group_of(*ep, method, group) : nullptr;
}

PyObject* barrier(PyObject* self, const char* method, const CollectiveArgs& c) {
  OfiEp* ep = ofi_ep_of(self, method);
  uint64_t flags = 0;
  if (ep == nullptr || !to_flags(*ep, method, c.flags, &flags)) return nullptr;
  OfiGroup* group = ready(ep, method, c.group);
  if (group == nullptr) return nullptr;
  return post(ep, *group, method, flags, 0, c.context, {}, [&](const GroupOps* ops, void* context) {
    return ofi::op(ops, &GroupOps::barrier2) != nullptr
               ? ofi_call(ops, &GroupOps::barrier2, ep->get(), group->addr, flags, context)
               : ofi_call(ops, &GroupOps::barrier, ep->get(), group->addr, context);
  });
}

// The root's place among the members.
bool to_root(const char* method, const OfiGroup& group, PyObject* root, size_t* place) {
  uint64_t name = 0;
  if (!to_root_addr(method, root, &name)) return false;
  const auto found = std::ranges::find(group.members, name);
  if (found == group.members.end())
    return fail(fi_err::kEINVAL, method, "root_addr " + std::to_string(name) + " is no member of the group");
  *place = static_cast<size_t>(found - group.members.begin());
  return true;
}

bool needed(const char* method, const char* name, PyObject* value) {
  return (value != nullptr && value != Py_None) || fail(fi_err::kEINVAL, method, std::string(name) + " is needed");
}

// Memory of the call's own.
bool make_scratch(Buf* b, size_t bytes) {
  b->keepalive = PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes));
  if (b->keepalive == nullptr) return false;
  b->data = reinterpret_cast<std::byte*>(PyByteArray_AS_STRING(b->keepalive));
  b->length = bytes;
  return true;
}

PyObject* broadcast(PyObject* self, const char* method, const CollectiveArgs& c) {
  OfiEp* ep = ofi_ep_of(self, method);
  Buf buf, scratch;
  void* desc = nullptr;
  uint64_t datatype = 0, count = 0, flags = 0;
  size_t bytes = 0, root = 0;
  if (ep == nullptr || !needed(method, "buf", c.buf) || !ofi_take(c.buf, false, nullptr, method, &buf) ||
      !ofi_desc(c.desc, method, &desc) || !to_elements(method, c, buf, &datatype, &count, &bytes) ||
      !to_flags(*ep, method, c.flags, &flags)) {
    return nullptr;
  }
  OfiGroup* group = ready(ep, method, c.group);
  if (group == nullptr || !to_root(method, *group, c.root, &root)) return nullptr;
  const bool soft = ep->domain->soft_groups(), gives = root == group->mine;
  if (!gives && buf.readonly) {
    fail(fi_err::kEACCES, method, "buf is read-only, and every member but the root receives into it");
    return nullptr;
  }
  if (!fits(*ep, method, bytes) || (!soft && !ofi_described(*ep, method, buf, desc))) return nullptr;
  std::byte* data = buf.data;
  if (soft && count % group->members.size() != 0) {
    if (!has_reduction(*ep, method, kBor, kUint8)) return nullptr;
    if ((!gives || buf.readonly) && !make_scratch(&scratch, bytes)) return nullptr;
    if (!gives) std::memset(scratch.data, 0, bytes);
    const std::byte* from = gives ? buf.data : scratch.data;
    std::byte* into = gives && buf.readonly ? scratch.data : buf.data;
    const Buf* own = scratch.keepalive != nullptr ? &scratch : &buf;
    return post(ep, *group, method, flags, bytes, c.context, {&buf, own}, [&](const GroupOps* ops, void* context) {
      return ofi_call(ops, &GroupOps::allreduce, ep->get(), from, bytes, nullptr, into, nullptr, group->addr, kUint8,
                      kBor, flags, context);
    });
  }
  if (soft && buf.readonly) {  // it receives into the root's buffer too: the same bytes
    if (!make_scratch(&scratch, bytes)) return nullptr;
    std::memcpy(scratch.data, buf.data, bytes);
    data = scratch.data;
  }
  const Buf* from = scratch.keepalive != nullptr ? &scratch : &buf;
  return post(ep, *group, method, flags, bytes, c.context, {from}, [&](const GroupOps* ops, void* context) {
    return ofi_call(ops, &GroupOps::broadcast, ep->get(), data, count, desc, group->addr,
                    soft ? root : group->members[root], static_cast<int>(datatype), flags, context);
  });
}

// rooted: fi_reduce, whose result only the root receives.
template <bool rooted>
PyObject* reduction(PyObject* self, const char* method, const CollectiveArgs& c) {
  OfiEp* ep = ofi_ep_of(self, method);
  Buf buf, result;
  void *desc = nullptr, *result_desc = nullptr;
  uint64_t datatype = 0, op = 0, count = 0, flags = 0;
  size_t bytes = 0, root = 0;
  if (ep == nullptr) return nullptr;
  if (c.op == nullptr) return type_error("%s() needs the argument 'op'", method);
  if (!needed(method, "buf", c.buf) || !to_u64(c.op, &op, method, "op") ||
      !ofi_take(c.buf, false, nullptr, method, &buf) || !ofi_desc(c.desc, method, &desc) ||
      !ofi_desc(c.result_desc, method, &result_desc) || !to_elements(method, c, buf, &datatype, &count, &bytes) ||
      !to_flags(*ep, method, c.flags, &flags)) {
    return nullptr;
  }
  const bool has_result = c.result != nullptr && c.result != Py_None;
  if (has_result && !ofi_take(c.result, true, nullptr, method, &result)) return nullptr;
  OfiGroup* group = ready(ep, method, c.group);
  if (group == nullptr || (rooted && !to_root(method, *group, c.root, &root))) return nullptr;
  if (!has_result && (!rooted || root == group->mine)) {
    fail(fi_err::kEINVAL, method, rooted ? "the root needs a result buffer" : "result is needed, not None");
    return nullptr;
  }
  if (has_result && result.length < bytes) {
    fail(fi_err::kEINVAL, method,
         "result has " + std::to_string(result.length) + " bytes; the reduction has " + std::to_string(bytes));
    return nullptr;
  }
  const auto number = static_cast<int>(std::min<uint64_t>(op, 1 << 20));
  const auto type = static_cast<int>(datatype);
  const bool soft = ep->domain->soft_groups();
  if (soft ? !has_reduction(*ep, method, number, type)
           : !ofi_described(*ep, method, buf, desc) || !ofi_described(*ep, method, result, result_desc)) {
    return nullptr;
  }
  if (!fits(*ep, method, bytes)) return nullptr;
  const Buf* second = has_result ? &result : &buf;
  return post(ep, *group, method, flags, bytes, c.context, {&buf, second}, [&](const GroupOps* ops, void* context) {
    if (rooted) {
      return ofi_call(ops, &GroupOps::reduce, ep->get(), buf.data, count, desc, result.data, result_desc, group->addr,
                      group->members[root], type, number, flags, context);
    }
    return ofi_call(ops, &GroupOps::allreduce, ep->get(), buf.data, count, desc, result.data, result_desc, group->addr,
                    type, number, flags, context);
  });
}
constexpr auto reduce = reduction<true>, allreduce = reduction<false>;

}  // namespace

#define WEFT_COLLECTIVE(name, kind, params, doc) \
  WEFT_METHOD(ofi_##name, CollectiveArgs, #name, params, kind(self, M::kName, a))
#include "bind/calls.inl"

void register_ofi_groups(Module& m) {
  Class<GroupBox>(m, "OfiGroupCore", "An endpoint's membership of a collective group of a real libfabric.")
      .def<"__init__(ep, av, members, mine, comm_key?, set_flags, flags, number)">(&join)
      .def<"close_core">(&ofi_close<"group.close", OfiGroup>)
      .about("The event of the join was read.")
      .def<"join_complete">([](GroupBox& self) { self.box->joined = true; })
      .about("coll_addr of the group's calls.")
      .def_prop<"addr">([](const GroupBox& self) { return self.box->addr; });
  m.about("Opens a set of the library and closes it (fi_av_set), for its refusal.")
      .def<"ofi_av_set_valid(av, count, comm_key?, flags)">(
          [](OfiCore<OfiAv>& av, size_t count, std::optional<nb::bytes> comm_key, uint64_t flags) {
            (void)ofi_open(av, "av_set");
            const bool soft = av.box->domain->soft_groups();
            (void)make_set(av.box, "av_set", std::max<size_t>(count, 1), comm_key, flags, soft ? 0 : kNotAvailable);
          });
}

}  // namespace weft::bind
