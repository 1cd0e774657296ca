// cpp/bind/collective.cpp: collective groups as a Python type, and the data-path methods of fi_collective(3).
//
// HOT: the methods. They parse arguments in place, copy the contribution into a frame, and allocate nothing.
// Benchmark: bench/bench_collective.py.
#include "call/collective.hpp"
#include "bind/collective_args.hpp"
#include "bind/ep.hpp"
#include "bind/reduction.hpp"

namespace weft::bind {

bool to_coll_addr(const char* method, PyObject* coll_addr, uint64_t* number) {
  if (coll_addr == nullptr) {
    PyErr_Format(PyExc_TypeError, "%s() needs the argument 'coll_addr': the addr of a group", method);
    return false;
  }
  nb::object addr;
  if (!PyLong_Check(coll_addr)) {
    addr = nb::steal(PyObject_GetAttrString(coll_addr, "addr"));
    if (addr.is_valid()) {
      coll_addr = addr.ptr();
    } else {
      PyErr_Clear();
    }
  }
  return to_u64(coll_addr, number, method, "coll_addr");
}

bool to_root_addr(const char* method, PyObject* root, uint64_t* name) {
  if (root != nullptr) [[likely]]
    return to_u64(root, name, method, "root_addr");
  PyErr_Format(PyExc_TypeError, "%s() needs the argument 'root_addr': the fi_addr of the root", method);
  return false;
}

namespace {

struct GroupCore {
  std::shared_ptr<DomainBox> box;
  std::shared_ptr<nic::Endpoint> ep;  // the group refers to it
  std::shared_ptr<nic::Group> group;
  ~GroupCore() {
    const Seam seam;
    if (!box || !group || box->forked()) return;
    group->close();
    box->drain();
  }
};

// A closed endpoint has no groups; it says why.
bool open_and_usable(EndpointCore* core, const char* method) {
  if (!usable(core, method)) return false;
  return !core->ep->closed() || refuse(core, method, Refusal::closed, 0, 0);
}

using call::CollectiveFault;
using call::CollectiveKind;

bool given(PyObject* value) {
  return value != nullptr && value != Py_None;
}

PyObject* refuse(EndpointCore* core, const char* method, const call::CollectiveWhy& why) {
  if (why.fault == CollectiveFault::endpoint) {
    refuse(core, method, why.of_endpoint);
  } else {
    set_error(call::code_of(*core->ep, why), call::explain(*core->ep, method, why));
  }
  return nullptr;
}

// The numbers of a call.
bool to_numbers(EndpointCore* core, const char* method, const CollectiveArgs& a, call::Collective* c) {
  c->flags = core->flags_of(nic::FlagCall::write) & nic::flag::kCompletion;
  if (given(a.flags) && !to_u64(a.flags, &c->flags, method, "flags")) return false;
  if (given(a.op) && !to_u64(a.op, &c->op, method, "op")) return false;
  if (given(a.count) && !to_u64(a.count, &c->count, method, "count")) return false;
  return !given(a.datatype) || to_u64(a.datatype, &c->datatype, method, "datatype");
}

// Its group and its root. A reduction with MORE has none.
bool to_members(const char* method, const CollectiveArgs& a, call::Collective* c) {
  const bool rooted = c->kind == CollectiveKind::broadcast || c->kind == CollectiveKind::reduce;
  return to_coll_addr(method, a.group, &c->coll_addr) && (!rooted || to_root_addr(method, a.root, &c->root_addr));
}

// Its buffer, which stays the caller's None where there is none.
bool to_buffer(EndpointCore* core, const char* method, const CollectiveArgs& a, Buf* buf, call::Collective* c) {
  c->has_buf = given(a.buf);
  if (!c->has_buf) return true;
  const bool tells = !given(a.datatype) && !(c->kind != CollectiveKind::broadcast && c->pre_reduced(*core->ep));
  if ((tells && !datatype_of(method, a.buf, &c->datatype)) || !buf->acquire_host(a.buf, false)) return false;
  c->buf = local_of(*buf);
  return convert_desc(core, a.desc, method, &c->buf);
}

// HOT. Posts; `held` keeps the result's memory.
PyObject* post(EndpointCore* core, const char* method, call::Collective& c, const Buf* held, PyObject* context) {
  uint64_t cookie = 0;
  if (held != nullptr) {
    PyObject* o = held->hold();
    if (o == nullptr) return nullptr;
    cookie = reinterpret_cast<uint64_t>(o);
    c.args.cookies = {&cookie, 1};
  }
  if (context == nullptr) context = Py_None;
  Py_INCREF(context);
  c.args.context = reinterpret_cast<uint64_t>(context);
  call::CollectiveWhy why;
  if (call::post(c, &why) == CollectiveFault::none) [[likely]]
    Py_RETURN_NONE;
  Py_DECREF(context);
  if (cookie != 0) Py_DECREF(reinterpret_cast<PyObject*>(cookie));
  return refuse(core, method, why);
}

PyObject* barrier(PyObject* self, const char* method, const CollectiveArgs& a) {
  EndpointCore* core = self_of(self);
  call::Collective c;
  call::CollectiveWhy why;
  if (!open_and_usable(core, method) || !to_numbers(core, method, a, &c) || !to_members(method, a, &c)) return nullptr;
  if (call::check(*core->ep, c, &why) != CollectiveFault::none) [[unlikely]]
    return refuse(core, method, why);
  return post(core, method, c, nullptr, a.context);
}

PyObject* broadcast(PyObject* self, const char* method, const CollectiveArgs& a) {
  EndpointCore* core = self_of(self);
  call::Collective c;
  c.kind = CollectiveKind::broadcast;
  call::CollectiveWhy why;
  Buf buf;
  if (!open_and_usable(core, method) || !to_numbers(core, method, a, &c) || !to_buffer(core, method, a, &buf, &c) ||
      !to_members(method, a, &c)) {
    return nullptr;
  }
  if (call::check(*core->ep, c, &why) != CollectiveFault::none) [[unlikely]]
    return refuse(core, method, why);
  if (!c.is_root && buf.readonly) {
    fail(fi_err::kEACCES, method, "buf is read-only, and every member but the root receives into it");
    return nullptr;
  }
  return post(core, method, c, &buf, a.context);
}

// rooted: fi_reduce, whose result only the root receives.
template <bool rooted>
PyObject* reduction(PyObject* self, const char* method, const CollectiveArgs& a) {
  EndpointCore* core = self_of(self);
  call::Collective c;
  c.kind = rooted ? CollectiveKind::reduce : CollectiveKind::allreduce;
  call::CollectiveWhy why;
  Buf buf, result;
  if (!open_and_usable(core, method) || !to_numbers(core, method, a, &c)) return nullptr;
  if (!given(a.op) && !c.pre_reduced(*core->ep)) {
    PyErr_Format(PyExc_TypeError, "%s() needs the argument 'op'", method);
    return nullptr;
  }
  if (!to_buffer(core, method, a, &buf, &c)) return nullptr;
  const bool more = core->ep->config().accelerated && (c.flags & nic::flag::kMore) != 0;
  if (!more && !to_members(method, a, &c)) return nullptr;
  if (call::check(*core->ep, c, &why) != CollectiveFault::none) [[unlikely]]
    return refuse(core, method, why);
  if (c.folds) {
    buf.release();
    if (!fold_buffers(method, a.buf, given(a.result) ? a.result : Py_None, c.count, c.datatype, c.op,
                      c.pre_reduced(*core->ep), false, core->ep->config().prefer_numbers)) {
      return nullptr;
    }
    Py_RETURN_NONE;
  }
  if (c.receives) {
    if (given(a.result) && !result.acquire_host(a.result, true)) return nullptr;
    call::Local local = local_of(result);
    if (!convert_desc(core, a.result_desc, method, &local)) return nullptr;
    if (call::check_result(*core->ep, c, local, given(a.result), &why) != CollectiveFault::none) [[unlikely]]
      return refuse(core, method, why);
  }
  return post(core, method, c, c.receives ? &result : nullptr, a.context);
}
constexpr auto reduce = reduction<true>, allreduce = reduction<false>;

}  // namespace

#define WEFT_COLLECTIVE(name, kind, params, doc) \
  WEFT_METHOD(ep_##name, CollectiveArgs, #name, params, kind(self, M::kName, a))
#include "bind/calls.inl"

void register_collective(Module& m) {
  using Address = std::tuple<uint32_t, uint32_t, uint16_t>;
  Class<GroupCore>(m, "GroupCore", "The NIC's side of a collective group: one member.")
      .about(
          "Begins to join a group of the endpoints at the addresses `members` (nic, pid, vni), in an order that all\n"
          "members use. The endpoint's event queue learns how it goes: CmKind.group_agreed, group_joined,\n"
          "group_failed, with `addr` as the connection.\n\n"
          "member       this one's place in members.\n"
          "names, name  how calls name the members, and this one (root_addr).\n"
          "key          the same for all members of this join, another for other sets.\n"
          "join_radix   children of a member in the tree of the join, the same for all members.\n"
          "radix, block the group's own tree, which member 0 decides: children of a member within a block of\n"
          "             `block` members that follow each other (0: all).\n"
          "asks         of member 0: the join waits for supply().\n\n"
          "Raises BadState (the endpoint is not enabled), InvalidArgument.")
      .def<"__init__(ep, members, member, names, name, key, join_radix, radix, block, asks)">(
          [](GroupCore* self, EndpointCore& ep, const std::vector<Address>& members, uint32_t member,
             std::vector<uint64_t> names, uint64_t name, uint64_t key, uint32_t join_radix, uint32_t radix,
             uint32_t block, bool asks) {
            if (ep.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
            nic::GroupConfig config;
            config.members.reserve(members.size());
            for (const auto& [nic, pid, vni] : members) config.members.push_back({nic, pid, vni, 0});
            config.member = member;
            config.names = std::move(names);
            config.name = name;
            config.key = key;
            config.join_radix = join_radix;
            config.radix = radix;
            config.block = block;
            config.asks = asks;
            call::take_rules(*ep.ep, &config);
            const auto group = ep.ep->join(std::move(config));
            new (self) GroupCore{ep.box, ep.ep, group};
          })
      .about("The number that calls take.")
      .def_prop<"addr">([](const GroupCore& g) { return g.group->address(); })
      .about("Member 0, after group_agreed: the multicast address and its root's member, or every member's error.")
      .def<"supply(multicast, root, error)">([](GroupCore& g, uint16_t multicast, uint32_t root, uint16_t error) {
        if (!g.box->forked()) g.group->supply(multicast, root, error);
      })
      .about("The group as this member sees it.")
      .def<"look(self) -> dict[str, Any]">([](const GroupCore& g) {
        const auto l = g.group->look();
        nb::dict d;
        d["state"] = name_of(l.state);
        d["number"] = l.number;
        d["multicast"] = l.multicast == nic::Group::kMulticastNone ? nb::none() : nb::object(nb::int_(l.multicast));
        WEFT_PUT(d, l, root, error);
        d["status"] = static_cast<int>(l.status);
        WEFT_PUT(d, l, lost, posted, done, frames, ignored, radix, block, children, text);
        return d;
      })
      .about("Leaves the group: its other members' reductions fail from now on, and this one's are canceled.")
      .def<"close">([](GroupCore& g) {
        if (g.box->forked()) return;
        g.group->close();
        g.box->drain();
      });
}

}  // namespace weft::bind
