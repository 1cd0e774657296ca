// cpp/bind/collective.cpp: collective groups as a Python type, and the data-path methods of fi_collective(3).
//
// HOT: the methods. They parse arguments in place, copy the contribution into a frame, and allocate nothing.
// Benchmark: bench/bench_collective.py.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind/collective_args.hpp"
#include "bind/ep.hpp"
#include "bind/reduction.hpp"
#include "nic/group.hpp"

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

using nic::Partial;
using nic::ReduceOp;
using nic::ReduceRefusal;

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

constexpr uint64_t kFlags = nic::flag::kCompletion | nic::flag::kMore | nic::flag::kInjectComplete |
                            nic::flag::kTransmitComplete | nic::flag::kDeliveryComplete;

// A closed endpoint has no groups; it says why.
bool open_and_usable(EndpointCore* core, const char* method) {
  if (!usable(core, method)) return false;
  return !core->ep->closed() || refuse(core, method, Refusal::closed, 0, 0);
}

const char* state_of(nic::Group::State state) {
  switch (state) {
    case nic::Group::State::queued:
      return "queued";
    case nic::Group::State::gathering:
      return "gathering";
    case nic::Group::State::agreed:
      return "agreed";
    case nic::Group::State::joined:
      return "joined";
    case nic::Group::State::broken:
      return "broken";
    case nic::Group::State::closed:
      break;
  }
  return "closed";
}

bool to_datatype(const char* method, const CollectiveArgs& c, PyObject* array, nic::Datatype* out) {
  uint64_t number = 0;
  if (c.datatype == nullptr || c.datatype == Py_None) {
    if (!datatype_of(method, array, &number)) return false;
  } else if (!to_u64(c.datatype, &number, method, "datatype")) {
    return false;
  }
  if (number > 255 || nic::datatype_size(static_cast<nic::Datatype>(number)) == 0) {
    return fail(fi_err::kEOPNOTSUPP, method, "datatype " + std::to_string(number) + " is none that reductions have");
  }
  *out = static_cast<nic::Datatype>(number);
  return true;
}

bool to_flags(const EndpointCore* core, const char* method, const CollectiveArgs& c, uint64_t* out) {
  *out = core->flags_of(nic::FlagCall::write) & nic::flag::kCompletion;
  if (c.flags == nullptr || c.flags == Py_None) return true;
  if (!to_u64(c.flags, out, method, "flags")) return false;
  const bool accelerated = core->ep->config().accelerated;
  const uint64_t known = kFlags | (accelerated ? nic::flag::kPreReduced : 0);
  if ((*out & ~known) == 0) return true;
  return fail(fi_err::kEBADFLAGS, method,
              "flags " + std::to_string(*out & ~known) + " are none of collectives; there are COMPLETION, MORE" +
                  (accelerated ? " and cxi.PRE_REDUCED" : ""));
}

// The group of coll_addr: its number, or the object that has it as `addr`.
std::shared_ptr<nic::Group> group_of(EndpointCore* core, const char* method, PyObject* coll_addr) {
  uint64_t number = 0;
  if (!to_coll_addr(method, coll_addr, &number)) return nullptr;
  auto group = number == 0 ? nullptr : core->ep->group(number);
  if (!group) {
    fail(fi_err::kEINVAL, method,
         "coll_addr " + std::to_string(number) +
             " names no group of this endpoint\n  try: addr of the group that join_collective returned");
  }
  return group;
}

// Checks one buffer of `bytes` bytes; false with an error set.
bool check_buffer(EndpointCore* core, const char* method, const char* name, const Buf& buf, size_t bytes,
                  PyObject* desc, call::LocalUse use) {
  if (buf.length < bytes) {
    return fail(
        fi_err::kEINVAL, method,
        std::string(name) + " has " + std::to_string(buf.length) + " bytes; " + std::to_string(bytes) + " are needed");
  }
  call::Local local = local_of(buf);
  local.length = bytes;
  if (!convert_desc(core, desc, method, &local)) return false;
  if (call::is_plain(*core->ep, local) && !core->ep->config().rules.mr_collective) [[likely]]
    return true;
  call::Why why;
  bool device = false;
  if (call::check_local_slow(*core->ep, local, use, true, &device, &why) == Refusal::none) return true;
  return refuse(core, method, why);
}

bool needed(const char* method, const char* name, const PyObject* value) {
  if (value != nullptr && value != Py_None) [[likely]]
    return true;
  return fail(fi_err::kEINVAL, method, std::string(name) + " is needed, not None");
}

// HOT. Posts; `held` keeps the result's memory.
PyObject* post(EndpointCore* core, const char* method, nic::Group& group, nic::ReduceArgs& args, const Buf* held,
               PyObject* context) {
  uint64_t cookie = 0;
  if (held != nullptr) {
    PyObject* o = held->hold();
    if (o == nullptr) return nullptr;
    cookie = reinterpret_cast<uint64_t>(o);
    args.cookies = {&cookie, 1};
  }
  if (context == nullptr) context = Py_None;
  Py_INCREF(context);
  args.context = reinterpret_cast<uint64_t>(context);
  const ReduceRefusal r = group.post(args);
  if (r == ReduceRefusal::none) [[likely]]
    Py_RETURN_NONE;
  Py_DECREF(context);
  if (cookie != 0) Py_DECREF(reinterpret_cast<PyObject*>(cookie));
  switch (r) {
    case ReduceRefusal::all_busy:
      fail(fi_err::kEAGAIN, method,
           "8 reductions of the group are under way, and there may be no more: read the completion queue, then retry");
      break;
    case ReduceRefusal::cq_full:
      refuse(core, method, Refusal::cq_full, 0, 0);
      break;
    case ReduceRefusal::not_joined:
      fail(fi_err::kEOPBADSTATE, method,
           "the group is not joined yet: read the event queue until JOIN_COMPLETE, then call");
      break;
    default:
      fail(fi_err::kEOPBADSTATE, method, "the group is closed");
  }
  return nullptr;
}

PyObject* barrier(PyObject* self, const char* method, const CollectiveArgs& c) {
  EndpointCore* core = self_of(self);
  nic::ReduceArgs args;
  if (!open_and_usable(core, method) || !to_flags(core, method, c, &args.flags)) return nullptr;
  const auto group = group_of(core, method, c.group);
  if (!group) return nullptr;
  args.mine = nic::contribution(ReduceOp::barrier, nic::Datatype::uint8, nullptr, 0);
  return post(core, method, *group, args, nullptr, c.context);
}

bool is_member(const nic::Group& group, uint64_t name) {
  return std::ranges::binary_search(group.config().names, name);
}

bool to_root(const char* method, const nic::Group& group, PyObject* root, bool* is_root) {
  uint64_t name = 0;
  if (!to_root_addr(method, root, &name)) return false;
  if (!is_member(group, name)) {
    return fail(fi_err::kEINVAL, method, "root_addr " + std::to_string(name) + " is no member of the group");
  }
  *is_root = name == group.config().name;
  return true;
}

// Elements of a call, and their bytes.
bool to_bytes(const char* method, const CollectiveArgs& c, ReduceOp op, nic::Datatype datatype, size_t length,
              uint64_t* count, size_t* bytes) {
  if (c.count == nullptr || c.count == Py_None) {
    const bool one = op == ReduceOp::repsum || op == ReduceOp::int_minmaxloc || op == ReduceOp::float_minmaxloc ||
                     op == ReduceOp::float_minmaxnumloc;
    *count = one ? 1 : length / nic::datatype_size(datatype);
  } else if (!to_u64(c.count, count, method, "count")) {
    return false;
  }
  const auto n = nic::payload_bytes(op, datatype, *count);
  if (!n) {
    return fail(fi_err::kEINVAL, method,
                "count " + std::to_string(*count) + " of elements of " + std::to_string(nic::datatype_size(datatype)) +
                    " bytes\n  rule: at least 1, at most 32 bytes; exactly 1 for MINMAXLOC and REPSUM");
  }
  *bytes = *n;
  return true;
}

// fi_cxi(7): an allreduce with FI_BOR to which all members but the root give zeros.
PyObject* broadcast(PyObject* self, const char* method, const CollectiveArgs& c) {
  EndpointCore* core = self_of(self);
  nic::ReduceArgs args;
  if (!open_and_usable(core, method) || !needed(method, "buf", c.buf)) return nullptr;
  nic::Datatype datatype;
  Buf buf;
  uint64_t count = 0;
  if (!to_datatype(method, c, c.buf, &datatype) || !buf.acquire_host(c.buf, false) ||
      !to_bytes(method, c, ReduceOp::bor, datatype, buf.length, &count, &args.out_bytes) ||
      !to_flags(core, method, c, &args.flags)) {
    return nullptr;
  }
  if ((args.flags & (nic::flag::kMore | nic::flag::kPreReduced)) != 0 && core->ep->config().accelerated) {
    fail(fi_err::kEINVAL, method, "flags MORE and PRE_REDUCED are of reductions");
    return nullptr;
  }
  const auto group = group_of(core, method, c.group);
  bool is_root = false;
  if (!group || !to_root(method, *group, c.root, &is_root)) return nullptr;
  if (!is_root && buf.readonly) {
    fail(fi_err::kEACCES, method, "buf is read-only, and every member but the root receives into it");
    return nullptr;
  }
  if (!check_buffer(core, method, "buf", buf, args.out_bytes, c.desc,
                    is_root ? call::LocalUse::give : call::LocalUse::take)) {
    return nullptr;
  }
  args.mine = nic::contribution(ReduceOp::bor, datatype, is_root ? buf.data : nullptr, count);
  if (!is_root) args.out = buf.data;
  return post(core, method, *group, args, &buf, c.context);
}

// rooted: fi_reduce, whose result only the root receives.
PyObject* reduce(PyObject* self, const char* method, bool rooted, const CollectiveArgs& c) {
  EndpointCore* core = self_of(self);
  if (!open_and_usable(core, method)) return nullptr;
  const bool accelerated = core->ep->config().accelerated;
  nic::ReduceArgs args;
  if (!to_flags(core, method, c, &args.flags) || !needed(method, "buf", c.buf)) return nullptr;
  const bool folded = accelerated && (args.flags & nic::flag::kPreReduced) != 0;
  uint64_t op = 0, count = 0;
  if (c.op != nullptr && c.op != Py_None) {
    if (!to_u64(c.op, &op, method, "op")) return nullptr;
  } else if (!folded) {
    PyErr_Format(PyExc_TypeError, "%s() needs the argument 'op'", method);
    return nullptr;
  }
  if (accelerated && (args.flags & nic::flag::kMore) != 0) {  // local: no group, no network
    nic::Datatype datatype{};
    Buf length;
    if (!folded) {
      if (!to_datatype(method, c, c.buf, &datatype) || !length.acquire_host(c.buf, false)) return nullptr;
      const auto found = nic::reduce_op(static_cast<uint16_t>(op), datatype);  // for its length
      size_t bytes = 0;
      if (found && op <= 0xffff && !to_bytes(method, c, *found, datatype, length.length, &count, &bytes))
        return nullptr;
      length.release();
    }
    PyObject* const result = c.result != nullptr ? c.result : Py_None;
    if (!fold_buffers(method, c.buf, result, count, static_cast<uint64_t>(datatype), op, folded, false,
                      core->ep->config().prefer_numbers)) {
      return nullptr;
    }
    Py_RETURN_NONE;
  }
  Buf buf, result;
  if (!buf.acquire_host(c.buf, false)) return nullptr;
  const bool has_result = c.result != nullptr && c.result != Py_None;
  if (folded) {
    if (!check_buffer(core, method, "buf", buf, nic::kReduceAccumulatorBytes, c.desc, call::LocalUse::give)) {
      return nullptr;
    }
    const auto partial = nic::pre_reduced(buf.data);
    if (!partial) {
      fail(fi_err::kEINVAL, method, "buf is no accumulator: nothing was folded into it with MORE");
      return nullptr;
    }
    args.mine = *partial;
    args.out_bytes = partial->op == ReduceOp::repsum ? 8 : nic::kReducePayloadBytes;
  } else {
    nic::Datatype datatype;
    if (!to_datatype(method, c, c.buf, &datatype)) return nullptr;
    const auto number = static_cast<uint16_t>(std::min<uint64_t>(op, 0xffff));
    const auto found = accelerated ? nic::reduce_op(number, datatype, core->ep->config().prefer_numbers)
                                   : nic::general_reduce_op(number, datatype);
    if (!found) {
      fail(fi_err::kEINVAL, method,
           "operation " + std::to_string(op) + " on datatype " + std::to_string(static_cast<int>(datatype)) +
               " is no reduction here\n  try: Domain.query_collective, which knows the supported pairs");
      return nullptr;
    }
    if (!to_bytes(method, c, *found, datatype, buf.length, &count, &args.out_bytes) ||
        !check_buffer(core, method, "buf", buf, args.out_bytes, c.desc, call::LocalUse::give)) {
      return nullptr;
    }
    args.mine = nic::contribution(*found, datatype, buf.data, count);
  }
  const auto group = group_of(core, method, c.group);
  if (!group) return nullptr;
  bool receives = true;
  if (rooted && !to_root(method, *group, c.root, &receives)) return nullptr;
  if (receives) {
    if (!has_result) {
      fail(fi_err::kEINVAL, method, rooted ? "the root needs a result buffer" : "result is needed, not None");
      return nullptr;
    }
    if (!result.acquire_host(c.result, true)) return nullptr;
    if (folded) args.out_bytes = std::min(args.out_bytes, result.length);
    if (!check_buffer(core, method, "result", result, args.out_bytes, c.result_desc, call::LocalUse::take)) {
      return nullptr;
    }
    args.out = result.data;
  }
  return post(core, method, *group, args, receives ? &result : nullptr, c.context);
}

}  // namespace

bool datatype_of(const char* method, PyObject* array, uint64_t* out) {
  static constexpr struct {
    const char* name;
    nic::Datatype datatype;
  } kNames[] = {{"int8", nic::Datatype::int8},       {"uint8", nic::Datatype::uint8},
                {"int16", nic::Datatype::int16},     {"uint16", nic::Datatype::uint16},
                {"int32", nic::Datatype::int32},     {"uint32", nic::Datatype::uint32},
                {"int64", nic::Datatype::int64},     {"uint64", nic::Datatype::uint64},
                {"float32", nic::Datatype::float32}, {"float64", nic::Datatype::float64}};
  const nb::object dtype = nb::steal(PyObject_GetAttrString(array, "dtype"));
  const nb::object name = dtype.is_valid() ? nb::steal(PyObject_GetAttrString(dtype.ptr(), "name")) : nb::object();
  const char* text = name.is_valid() && PyUnicode_Check(name.ptr()) ? PyUnicode_AsUTF8(name.ptr()) : nullptr;
  PyErr_Clear();
  for (const auto& known : kNames) {
    if (text != nullptr && std::string_view(text) == known.name) {
      *out = static_cast<uint64_t>(known.datatype);
      return true;
    }
  }
  PyErr_Format(PyExc_TypeError,
               "%s() needs the argument 'datatype' where the buffer is no array of an integer or floating-point dtype",
               method);
  return false;
}

static PyObject* reduce(PyObject* self, const char* method, const CollectiveArgs& a) {
  return reduce(self, method, true, a);
}
static PyObject* allreduce(PyObject* self, const char* method, const CollectiveArgs& a) {
  return reduce(self, method, false, a);
}
#define WEFT_COLLECTIVE(name, kind, params, doc) \
  WEFT_METHOD(ep_##name, CollectiveArgs, #name, params, kind(self, M::kName, a))
#include "bind/calls.inl"

void register_collective(Module& m) {
  using Address = std::tuple<uint32_t, uint32_t, uint16_t>;
  Class<GroupCore>(m, "GroupCore", "The NIC's side of a collective group: one member.")
      .def(
          "__init__",
          [](GroupCore* self, EndpointCore& ep, const std::vector<Address>& members, uint32_t member,
             std::vector<uint64_t> names, uint64_t name, uint64_t key, uint32_t join_radix, uint32_t radix,
             uint32_t block, bool asks) {
            if (ep.box->forked()) raise(fi_err::kEOPBADSTATE, "this endpoint belongs to the parent process");
            nic::GroupConfig config;
            config.members.reserve(members.size());
            for (const auto& [nic, pid, vni] : members) config.members.push_back({nic, pid, vni, 0});
            config.member = member;
            config.names = std::move(names);
            std::ranges::sort(config.names);
            config.name = name;
            config.key = key;
            config.join_radix = join_radix;
            config.radix = radix;
            config.block = block;
            config.asks = asks;
            const bool accelerated = ep.ep->config().accelerated;
            config.always = accelerated;
            config.failed_err = accelerated ? -256 : 256;  // FI_EOTHER
            config.completion_flags = accelerated ? 0 : nic::flag::kCollective;
            const auto group = translating([&] { return ep.ep->join(std::move(config)); });
            new (self) GroupCore{ep.box, ep.ep, group};
          },
          nb::arg("ep"), nb::arg("members"), nb::arg("member"), nb::arg("names"), nb::arg("name"), nb::arg("key"),
          nb::arg("join_radix"), nb::arg("radix"), nb::arg("block"), nb::arg("asks"),
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
      .def_prop_ro(
          "addr", [](const GroupCore& g) { return g.group->address(); }, "The number that calls take.")
      .def(
          "supply",
          [](GroupCore& g, uint16_t multicast, uint32_t root, uint16_t error) {
            if (!g.box->forked()) g.group->supply(multicast, root, error);
          },
          nb::arg("multicast"), nb::arg("root"), nb::arg("error"),
          "Member 0, after group_agreed: the multicast address and its root's member, or every member's error.")
      .def(
          "look",
          [](const GroupCore& g) {
            const auto l = g.group->look();
            nb::dict d;
            d["state"] = state_of(l.state);
            d["number"] = l.number;
            d["multicast"] = l.multicast == nic::Group::kMulticastNone ? nb::none() : nb::object(nb::int_(l.multicast));
            d["root"] = l.root;
            d["error"] = l.error;
            d["status"] = static_cast<int>(l.status);
            d["lost"] = l.lost;
            d["posted"] = l.posted;
            d["done"] = l.done;
            d["frames"] = l.frames;
            d["ignored"] = l.ignored;
            d["radix"] = l.radix;
            d["block"] = l.block;
            d["children"] = l.children;
            d["text"] = l.text;
            return d;
          },
          nb::sig("def look(self) -> dict[str, Any]"), "The group as this member sees it.")
      .def(
          "close",
          [](GroupCore& g) {
            if (g.box->forked()) return;
            g.group->close();
            g.box->drain();
          },
          "Leaves the group: its other members' reductions fail from now on, and this one's are canceled.");
}

}  // namespace weft::bind
