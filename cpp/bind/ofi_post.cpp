// cpp/bind/ofi_post.cpp: what the calls of a real libfabric's endpoints share; those with lists and message structs.
#include "bind/arglist.hpp"
#include "bind/ofi_ep.hpp"

namespace weft::bind {

// ---- arguments -----------------------------------------------------------------------------------------------------

bool ofi_take(PyObject* obj, bool writable, PyObject* len, const char* method, Buf* b) {
  if (obj == Py_None) {  // C's NULL: a message of no bytes; elsewhere only where len says so
    const bool message = std::strstr(method, "write") == nullptr && std::strstr(method, "read") == nullptr &&
                         std::strstr(method, "atomic") == nullptr;
    uint64_t n = message ? 0 : 1;
    if (len != nullptr && len != Py_None && !to_u64(len, &n, method, "len")) return false;
    b->owner = obj;
    if (n == 0) return true;
    set_error(fi_err::kEINVAL, std::string(method) + ": buf is None and len " + std::to_string(n) +
                                   ": give memory, or None with len=0 for a transfer of no bytes");
    return false;
  }
  if (PyObject_TypeCheck(obj, g_ofi_mr_type)) {
    const OfiMr& mr = *nb::inst_ptr<OfiCore<OfiMr>>(obj)->box;
    if (mr.h.fid == nullptr || !mr.buffer.is_valid()) {
      set_error(fi_err::kEINVAL,
                std::string(method) + ": this region cannot be used as a buffer: it is closed or has several buffers");
      return false;
    }
    obj = mr.buffer.ptr();
  }
  if (!b->acquire(obj, writable, len)) [[unlikely]]
    return false;
  return !b->bare || b->length == 0 || b->iface != mem::kHmemSystem || bare_is_there(*b, method, writable);
}

bool ofi_desc(PyObject* desc, const char* method, void** out) {
  *out = nullptr;
  if (desc == nullptr || desc == Py_None) [[likely]]
    return true;
  if (!PyObject_TypeCheck(desc, g_ofi_mr_type)) {
    set_error(fi_err::kEINVAL, std::string(method) + ": desc is " + Py_TYPE(desc)->tp_name +
                                   ": pass mr.desc of a region of this domain that covers the buffer, or None");
    return false;
  }
  const OfiMr& mr = *nb::inst_ptr<OfiCore<OfiMr>>(desc)->box;
  if (mr.h.fid == nullptr) {
    set_error(fi_err::kEOPBADSTATE, std::string(method) + ": the region of desc is closed");
    return false;
  }
  *out = mr.get()->mem_desc;
  return true;
}

bool OfiList::acquire(PyObject* list, bool writable, PyObject* count_arg, const char* method, size_t element) {
  if (list == nullptr || list == Py_None) return true;
  const nb::object fast = nb::steal(PySequence_Fast(list, ""));
  if (!fast.is_valid()) {
    if (PyErr_ExceptionMatches(PyExc_TypeError))
      PyErr_Format(PyExc_TypeError, "%s: a list of buffers is needed, not %R", method, list);
    return false;
  }
  uint64_t n = static_cast<uint64_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
  if (count_arg != nullptr && count_arg != Py_None) {
    uint64_t wanted = 0;
    if (!to_u64(count_arg, &wanted, method, "count")) return false;
    if (wanted > n) {
      set_error(fi_err::kEINVAL, std::string(method) + ": count is " + std::to_string(wanted) + " but the list has " +
                                     std::to_string(n) + " buffers");
      return false;
    }
    n = wanted;
  }
  if (n > ofi::kIovMax) {
    set_error(fi_err::kEINVAL, std::string(method) + ": " + std::to_string(n) + " buffers; at most " +
                                   std::to_string(ofi::kIovMax) +
                                   ", and iov_limit of the endpoint\n  try: fewer buffers a call");
    return false;
  }
  for (size_t i = 0; i < n; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(i));
    nb::object addr, elements;
    if (element != 0 && !PyTuple_Check(item) && PyObject_HasAttrString(item, "addr") &&
        PyObject_HasAttrString(item, "count")) {
      addr = nb::steal(PyObject_GetAttrString(item, "addr"));
      elements = nb::steal(PyObject_GetAttrString(item, "count"));
    }
    Buf& b = bufs[i];
    if (item == Py_None) {
      set_error(fi_err::kEINVAL, std::string(method) + ": buffer " + std::to_string(i) +
                                     " is None (NULL): give memory, or None for the whole list for no bytes");
      return false;
    }
    if (!ofi_take(addr.is_valid() ? addr.ptr() : item, writable, nullptr, method, &b)) return false;
    if (element != 0 && !fits_datatype(method, "a buffer", addr.is_valid() ? addr.ptr() : item, datatype)) return false;
    if (elements.is_valid() && !elements.is_none()) {
      uint64_t e = 0;
      if (!to_u64(elements.ptr(), &e, method, "count")) return false;
      if (e > b.length / element) {
        set_error(fi_err::kEINVAL, std::string(method) + ": count " + std::to_string(e) +
                                       " passes the end of a buffer of " + std::to_string(b.length) + " bytes");
        return false;
      }
      b.length = e * element;
    }
    iov[i] = {b.data, b.length};
    ioc[i] = {b.data, element == 0 ? 0 : b.length / element};
    pointers[i] = &b;
    total += b.length;
    ++count;
  }
  return true;
}

bool OfiList::take_descs(PyObject* descs, const char* method) {
  if (descs == nullptr || descs == Py_None) return true;
  described = true;
  const bool list = PySequence_Check(descs) && !PyObject_TypeCheck(descs, g_ofi_mr_type);
  const nb::object fast = list ? nb::steal(PySequence_Fast(descs, "desc must be a sequence")) : nb::object();
  if (list && !fast.is_valid()) return false;
  const size_t given = list ? static_cast<size_t>(PySequence_Fast_GET_SIZE(fast.ptr())) : count;
  if (given < count) {
    set_error(fi_err::kEINVAL, std::string(method) + ": desc has " + std::to_string(given) + " entries for " +
                                   std::to_string(count) + " buffers: give one for each, or None in its place");
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    PyObject* one = list ? PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(i)) : descs;
    if (!ofi_desc(one, method, &desc[i])) return false;
  }
  return true;
}

bool OfiList::all_described(const OfiEp& ep, const char* method) const {
  for (size_t i = 0; i < count; ++i) {
    if (!ofi_described(ep, method, bufs[i], desc[i])) return false;
  }
  return true;
}

bool ofi_remote(PyObject* list, PyObject* count_arg, const char* method, bool atomic,
                std::array<ofi::RmaIov, ofi::kIovMax>* out, size_t* count) {
  const nb::object fast = nb::steal(PySequence_Fast(list, ""));
  if (!fast.is_valid()) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Format(PyExc_TypeError, "%s: rma_iov must be a sequence of fi.RmaIov (fi.RmaIoc for atomics), not %R",
                   method, list);
    }
    return false;
  }
  size_t n = static_cast<size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
  if (count_arg != nullptr && count_arg != Py_None) {
    uint64_t wanted = 0;
    if (!to_u64(count_arg, &wanted, method, "rma_iov_count")) return false;
    if (wanted > n) {
      set_error(fi_err::kEINVAL, std::string(method) + ": rma_iov_count is " + std::to_string(wanted) +
                                     " but rma_iov has " + std::to_string(n) + " entries");
      return false;
    }
    n = wanted;
  }
  if (n > ofi::kIovMax) {
    set_error(fi_err::kEINVAL, std::string(method) + ": " + std::to_string(n) + " remote pieces; at most " +
                                   std::to_string(ofi::kIovMax) +
                                   ", and rma_iov_limit of the endpoint\n  try: fewer pieces a call");
    return false;
  }
  for (size_t i = 0; i < n; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(i));
    uint64_t length = 0;
    bool ok;
    if (PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 3) {
      ok = to_u64(PyTuple_GET_ITEM(item, 0), &(*out)[i].addr, method, "addr of a remote piece") &&
           to_u64(PyTuple_GET_ITEM(item, 1), &length, method, "len of a remote piece") &&
           to_u64(PyTuple_GET_ITEM(item, 2), &(*out)[i].key, method, "key of a remote piece");
    } else {
      const Attr addr(item, "addr"), len(item, atomic ? "count" : "len"), key(item, "key");
      ok = addr.value != nullptr && len.value != nullptr && key.value != nullptr &&
           to_u64(addr.value, &(*out)[i].addr, method, "addr of a remote piece") &&
           to_u64(len.value, &length, method, "len of a remote piece") &&
           to_u64(key.value, &(*out)[i].key, method, "key of a remote piece");
    }
    if (!ok) return false;
    (*out)[i].len = length;
  }
  *count = n;
  return true;
}

bool ofi_refuse_state(const OfiEp& ep, const char* method, ofi::Addr peer) {
  if (ep.h.fid == nullptr || ep.h.closing) {
    set_error(fi_err::kEOPBADSTATE, std::string(method) + ": the endpoint was closed while its arguments were read");
  } else if (!ep.enabled) {
    set_error(fi_err::kEOPBADSTATE, std::string(method) + ": the endpoint is not enabled\n  try: ep.enable() first");
  } else {
    const std::string what = peer == ~uint64_t{0}
                                 ? "no peer was given"
                                 : "fi_addr " + std::to_string(peer) + " is not in the address vector of the endpoint";
    set_error(fi_err::kEINVAL, std::string(method) + ": " + what + "\n  try: what av.insert() returned for the peer");
  }
  return false;
}

bool ofi_refuse_desc(const char* method) {
  set_error(kOfiNoRegion, std::string(method) +
                              ": the domain was opened with MR_LOCAL, and desc is None\n  try: "
                              "desc=mr.desc of a region that covers the buffer");
  return false;
}

bool ofi_refuse_tag(const OfiEp& ep, const char* method, uint64_t tag) {
  set_error(fi_err::kEINVAL, std::string(method) + ": tag " + std::to_string(tag) +
                                 "\n  rule: on an endpoint with COLLECTIVE, bits above those of mem_tag_format are the "
                                 "library's own; there are " +
                                 std::to_string(std::popcount(~ep.reserved_tag)) + " for tags");
  return false;
}

bool ofi_refuse_size(const OfiEp& ep, const OfiOp& op, size_t count) {
  const size_t limit = op.receives ? ep.rx_iov_limit : ep.iov_limit;
  if (count > limit) {
    set_error(fi_err::kEINVAL, std::string(op.method) + ": " + std::to_string(count) +
                                   " buffers; the endpoint's iov_limit is " + std::to_string(limit) +
                                   "\n  try: fewer buffers a call, or one buffer that holds all");
  } else {
    set_error(fi_err::kEMSGSIZE, std::string(op.method) + ": " + std::to_string(op.total) +
                                     " bytes with FI_INJECT; at most inject_size " + std::to_string(ep.inject_size) +
                                     "\n  try: without FI_INJECT, or fewer bytes");
  }
  return false;
}

uint64_t OfiRemote::total() const noexcept {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) {
    if (__builtin_add_overflow(sum, iov[i].len, &sum)) return ~uint64_t{0};
  }
  return sum;
}

bool OfiRemote::fits(const OfiEp& ep, const char* method, uint64_t local, const char* unit) const {
  if (count > ep.rma_iov_limit) {
    set_error(fi_err::kEINVAL, std::string(method) + ": " + std::to_string(count) +
                                   " remote pieces; the endpoint's rma_iov_limit is " +
                                   std::to_string(ep.rma_iov_limit) + "\n  try: fewer pieces a call");
    return false;
  }
  if (total() == local) return true;
  set_error(fi_err::kEINVAL, std::string(method) + ": the local buffers have " + std::to_string(local) + " " + unit +
                                 ", the remote pieces " + std::to_string(total()) +
                                 "\n  try: the same number on both sides");
  return false;
}

// ---- posting -------------------------------------------------------------------------------------------------------

void ofi_release_slot(OfiCq* cq, ofi::Slots& slots, ofi::Slot* slot) noexcept {
  if (cq != nullptr) {
    if (slot->silent) --cq->silent;
    if (slot->large) --cq->large;
  }
  const uint64_t context = slot->context;
  const ofi::Owners owners = slot->take_owners();
  slots.give(slot);
  if (context != 0) ofi_drop(context);
  owners.each(ofi_drop);
}

PyObject* ofi_refuse(OfiEp* ep, const OfiOp& op, ssize_t code) {
  if (code == -fi_err::kENOSYS) {
    (void)ofi_missing(op.method);
    return nullptr;
  }
  std::string more;
  if (code == -fi_err::kEAGAIN) {
    OfiCq* cq = op.side == kOfiTransmit ? ep->tx.get() : ep->rx.get();
    if (cq != nullptr) more = std::to_string(cq->slots.busy()) + " operations of the queue are under way";
  }
  ofi_set_error(op.method, code, more);
  return nullptr;
}

namespace {

// A call with a list of buffers.
struct ListArgs {
  PyObject *iov, *desc, *peer, *tag, *ignore, *addr, *key, *context, *count;
};

constexpr const char* kPeerNames[] = {"dest_addr", "src_addr"};

// The numbers of a call.
struct Numbers {
  ofi::Addr peer = ~uint64_t{0};
  uint64_t tag = 0, ignore = 0, addr = 0, key = 0;
  bool take(const ListArgs& a, const char* method, bool tagged, bool remote, bool source) {
    if (tagged && a.tag == nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() needs the argument 'tag'", method);
      return false;
    }
    if (remote && !target_ok(method, a.addr, a.key, &addr, &key)) return false;
    return to_u64(a.peer, &peer, method, kPeerNames[source]) && to_u64(a.tag, &tag, method, "tag") &&
           to_u64(a.ignore, &ignore, method, "ignore");
  }
};

template <typename F>
PyObject* listed(PyObject* self, const char* method, const ListArgs& l, bool tagged, bool remote, bool receives,
                 F&& f) {
  OfiEp* ep = ofi_ep_of(self, method);
  if (ep == nullptr) return nullptr;
  OfiList list;
  Numbers n;
  const bool source = receives || (remote && std::strcmp(method, "readv") == 0);
  if (!list.acquire(l.iov, source, l.count, method) || !n.take(l, method, tagged, remote, source) ||
      !list.take_descs(l.desc, method) || !ofi_ready(*ep, method, n.peer, receives) ||
      !ofi_tag(*ep, method, n.tag, &n.ignore) || !list.all_described(*ep, method)) {
    return nullptr;
  }
  OfiOp op{method, receives ? kOfiRecv : kOfiTransmit, receives ? ep->rx_flags : ep->tx_flags, list.total, receives};
  if (!ofi_fits(*ep, op, list.count, !source)) return nullptr;
  return ofi_post(ep, op, l.context, list.pointers.data(), list.count,
                  [&](void* context) { return f(ep->get(), list, n, context); });
}

#define WEFT_CALL(table, Ops, name, ...)                 \
  const auto call = ofi::op(ep->table, &ofi::Ops::name); \
  return call == nullptr ? -fi_err::kENOSYS : call(ep, __VA_ARGS__)

Signature g_sendv{"sendv", {"iov", "desc", "dest_addr", "context", "count"}, 4, 1, {}};
Signature g_sendmsg{"sendmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_recvv{"recvv", {"iov", "desc", "src_addr", "context", "count"}, 4, 1, {}};
Signature g_recvmsg{"recvmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_tsendv{"tsendv", {"iov", "desc", "dest_addr", "tag", "context", "count"}, 5, 1, {}};
Signature g_tsendmsg{"tsendmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_trecvv{"trecvv", {"iov", "desc", "src_addr", "tag", "ignore", "context", "count"}, 6, 1, {}};
Signature g_trecvmsg{"trecvmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_readv{"readv", {"iov", "desc", "src_addr", "addr", "key", "context", "count"}, 6, 1, {}};
Signature g_readmsg{"readmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_writev{"writev", {"iov", "desc", "dest_addr", "addr", "key", "context", "count"}, 6, 1, {}};
Signature g_writemsg{"writemsg", {"msg", "flags"}, 2, 1, {}};

#define WEFT_DEFINE(name, count)                                                                     \
  PyObject* ofi_##name(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) { \
    PyObject* a[count];                                                                              \
    if (!parse(g_##name, args, nargs, kwnames, a)) return nullptr;

}  // namespace

// ---- fi_msg(3) -----------------------------------------------------------------------------------------------------

WEFT_DEFINE(sendv, 5)
return listed(self, "sendv", {a[0], a[1], a[2], nullptr, nullptr, nullptr, nullptr, a[3], a[4]}, false, false, false,
              [](ofi::FidEp* ep, OfiList& l, const Numbers& n, void* context) -> ssize_t {
                WEFT_CALL(msg, MsgOps, sendv, l.iov.data(), l.descs(), l.count, n.peer, context);
              });
}
WEFT_DEFINE(recvv, 5)
return listed(self, "recvv", {a[0], a[1], a[2], nullptr, nullptr, nullptr, nullptr, a[3], a[4]}, false, false, true,
              [](ofi::FidEp* ep, OfiList& l, const Numbers& n, void* context) -> ssize_t {
                WEFT_CALL(msg, MsgOps, recvv, l.iov.data(), l.descs(), l.count, n.peer, context);
              });
}

// ---- fi_tagged(3) --------------------------------------------------------------------------------------------------

WEFT_DEFINE(tsendv, 6)
return listed(self, "tsendv", {a[0], a[1], a[2], a[3], nullptr, nullptr, nullptr, a[4], a[5]}, true, false, false,
              [](ofi::FidEp* ep, OfiList& l, const Numbers& n, void* context) -> ssize_t {
                WEFT_CALL(tagged, TaggedOps, sendv, l.iov.data(), l.descs(), l.count, n.peer, n.tag, context);
              });
}
WEFT_DEFINE(trecvv, 7)
return listed(self, "trecvv", {a[0], a[1], a[2], a[3], a[4], nullptr, nullptr, a[5], a[6]}, true, false, true,
              [](ofi::FidEp* ep, OfiList& l, const Numbers& n, void* context) -> ssize_t {
                WEFT_CALL(tagged, TaggedOps, recvv, l.iov.data(), l.descs(), l.count, n.peer, n.tag, n.ignore, context);
              });
}

// ---- fi_rma(3) -----------------------------------------------------------------------------------------------------

WEFT_DEFINE(readv, 7)
return listed(self, "readv", {a[0], a[1], a[2], nullptr, nullptr, a[3], a[4], a[5], a[6]}, false, true, false,
              [](ofi::FidEp* ep, OfiList& l, const Numbers& n, void* context) -> ssize_t {
                WEFT_CALL(rma, RmaOps, readv, l.iov.data(), l.descs(), l.count, n.peer, n.addr, n.key, context);
              });
}
WEFT_DEFINE(writev, 7)
return listed(self, "writev", {a[0], a[1], a[2], nullptr, nullptr, a[3], a[4], a[5], a[6]}, false, true, false,
              [](ofi::FidEp* ep, OfiList& l, const Numbers& n, void* context) -> ssize_t {
                WEFT_CALL(rma, RmaOps, writev, l.iov.data(), l.descs(), l.count, n.peer, n.addr, n.key, context);
              });
}

// ---- message structs -----------------------------------------------------------------------------------------------

namespace {

struct MsgArgs {
  MsgArgs(PyObject* msg, const char* type)
      : iov(msg, "msg_iov", type),
        desc(msg, "desc", type),
        count(msg, "iov_count", type),
        addr(msg, "addr", type),
        context(msg, "context", type),
        data(msg, "data", type) {}
  [[nodiscard]] bool all() const {
    for (const Attr* one_attr : {&iov, &desc, &count, &addr, &context, &data}) {
      if (one_attr->value == nullptr) return false;
    }
    return true;
  }
  Attr iov, desc, count, addr, context, data;
};

ofi::Slot* claimed(const OfiEp& ep, PyObject* context) {
  ofi::Slot* found = nullptr;
  const uint64_t wanted = context == Py_None ? 0 : reinterpret_cast<uint64_t>(context);
  if (ep.rx) {
    ep.rx->slots.each([&](ofi::Slot* slot) {
      if (slot->endpoint == ep.owner && slot->claim == ofi::Slot::Claim::has && slot->context == wanted) found = slot;
    });
  }
  return found;
}

// A call with a struct. F: (FidEp*, OfiList, peer, data, flags, context) -> the library's answer.
template <typename F>
PyObject* of_struct(PyObject* self, const char* method, const char* type, PyObject* msg, PyObject* flags_arg,
                    bool writable, bool receives, const OfiRemote* remote, F&& f) {
  OfiEp* ep = ofi_ep_of(self, method);
  if (ep == nullptr) return nullptr;
  uint64_t flags = 0;
  if (!to_u64(flags_arg, &flags, method, "flags")) return nullptr;
  const MsgArgs m(msg, type);
  if (!m.all()) return nullptr;
  if ((flags & (kOfiPeek | kOfiClaim)) != 0 && ep->domain->quirks.has(ofi::Quirk::ignores_peek) &&
      std::strcmp(method, "recvmsg") == 0) {
    set_error(fi_err::kEOPNOTSUPP,
              "recvmsg: PEEK and CLAIM are of tagged messages here: this provider of libfabric ignores the flags, and "
              "the message would be received and cut\n  try: trecvmsg, with messages that have a tag");
    return nullptr;
  }
  // fi_tagged(3): DISCARD goes with PEEK or CLAIM. Not every provider looks: DISCARD_ALONE_CRASHES of the table of
  // quirks.
  if (receives && (flags & nic::flag::kDiscard) != 0 && ((flags & kOfiPeek) != 0) == ((flags & kOfiClaim) != 0)) {
    set_error(fi_err::kEINVAL, std::string(method) + ": DISCARD " +
                                   ((flags & kOfiPeek) != 0 ? "with both PEEK and CLAIM" : "without PEEK or CLAIM") +
                                   "\n  rule: fi_tagged(3): a peek, or the claim of a peeked message, may discard");
    return nullptr;
  }
  OfiList list;
  ofi::Addr peer = ~uint64_t{0};
  uint64_t data = 0;
  const bool buffers = !receives || (flags & kOfiPeek) == 0;  // a peek has none
  if ((buffers &&
       (!list.acquire(m.iov.value, writable, m.count.value, method) || !list.take_descs(m.desc.value, method))) ||
      !to_u64(m.addr.value, &peer, method, "addr") || !to_u64(m.data.value, &data, method, "data") ||
      !ofi_ready(*ep, method, peer, receives) || !list.all_described(*ep, method)) {
    return nullptr;
  }
  OfiTrigger trigger;
  if (!trigger.take(*ep, method, flags, m.context.value)) return nullptr;
  OfiOp op{method, receives ? kOfiRecv : kOfiTransmit, flags, list.total, receives};
  if (trigger.cntr != nullptr) op.trigger = &trigger;
  if (!ofi_fits(*ep, op, list.count, !writable) ||
      (remote != nullptr && !remote->fits(*ep, method, list.total, "bytes"))) {
    return nullptr;
  }
  if (receives && (flags & (kOfiClaim | kOfiPeek)) == kOfiClaim) {  // of a message that a peek took hold of
    op.slot = claimed(*ep, m.context.value);
    if (op.slot == nullptr) {
      set_error(fi_err::kEINVAL, std::string(method) + ": CLAIM: no peek with PEEK | CLAIM has this context");
      return nullptr;
    }
  }
  return ofi_post(ep, op, m.context.value, list.pointers.data(), list.count,
                  [&](void* context) { return f(ep->get(), list, peer, data, flags, context); });
}

bool number_attr(PyObject* msg, const char* method, const char* name, uint64_t* out) {
  const Attr attr(msg, name, "fi.MsgTagged");
  return attr.value != nullptr && to_u64(attr.value, out, method, name);
}

PyObject* message(PyObject* self, const char* method, PyObject* const* a, bool receives) {
  return of_struct(
      self, method, "fi.Msg", a[0], a[1], receives, receives, nullptr,
      [&](ofi::FidEp* ep, OfiList& l, ofi::Addr peer, uint64_t data, uint64_t flags, void* context) -> ssize_t {
        const ofi::Msg msg{l.iov.data(), l.descs(), l.count, peer, context, data};
        const auto call = ofi::op(ep->msg, receives ? &ofi::MsgOps::recvmsg : &ofi::MsgOps::sendmsg);
        return call == nullptr ? -fi_err::kENOSYS : call(ep, &msg, flags);
      });
}
PyObject* tagged_message(PyObject* self, const char* method, PyObject* const* a, bool receives) {
  uint64_t tag = 0, ignore = 0;
  OfiEp* ep = ofi_ep_of(self, method);
  if (ep == nullptr || !number_attr(a[0], method, "tag", &tag) || !number_attr(a[0], method, "ignore", &ignore) ||
      !ofi_tag(*ep, method, tag, &ignore)) {
    return nullptr;
  }
  return of_struct(
      self, method, "fi.MsgTagged", a[0], a[1], receives, receives, nullptr,
      [&](ofi::FidEp* fid, OfiList& l, ofi::Addr peer, uint64_t data, uint64_t flags, void* context) -> ssize_t {
        const ofi::MsgTagged msg{l.iov.data(), l.descs(), l.count, peer, tag, ignore, context, data};
        const auto call = ofi::op(fid->tagged, receives ? &ofi::TaggedOps::recvmsg : &ofi::TaggedOps::sendmsg);
        return call == nullptr ? -fi_err::kENOSYS : call(fid, &msg, flags);
      });
}
PyObject* rma_message(PyObject* self, const char* method, PyObject* const* a, bool reads) {
  OfiRemote remote;
  {
    const Attr rma(a[0], "rma_iov"), rma_count(a[0], "rma_iov_count");
    if (rma.value == nullptr || rma_count.value == nullptr ||
        !ofi_remote(rma.value, rma_count.value, method, false, &remote.iov, &remote.count)) {
      return nullptr;
    }
  }
  return of_struct(
      self, method, "fi.MsgRma", a[0], a[1], reads, false, &remote,
      [&](ofi::FidEp* ep, OfiList& l, ofi::Addr peer, uint64_t data, uint64_t flags, void* context) -> ssize_t {
        const ofi::MsgRma msg{l.iov.data(), l.descs(), l.count, peer, remote.iov.data(), remote.count, context, data};
        const auto call = ofi::op(ep->rma, reads ? &ofi::RmaOps::readmsg : &ofi::RmaOps::writemsg);
        return call == nullptr ? -fi_err::kENOSYS : call(ep, &msg, flags);
      });
}

}  // namespace

WEFT_DEFINE(sendmsg, 2)
return message(self, "sendmsg", a, false);
}
WEFT_DEFINE(recvmsg, 2)
return message(self, "recvmsg", a, true);
}
WEFT_DEFINE(tsendmsg, 2)
return tagged_message(self, "tsendmsg", a, false);
}
WEFT_DEFINE(trecvmsg, 2)
return tagged_message(self, "trecvmsg", a, true);
}
WEFT_DEFINE(readmsg, 2)
return rma_message(self, "readmsg", a, true);
}
WEFT_DEFINE(writemsg, 2)
return rma_message(self, "writemsg", a, false);
}

}  // namespace weft::bind
