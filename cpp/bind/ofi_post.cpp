// cpp/bind/ofi_post.cpp: what the calls of a real libfabric's endpoints share; those with lists and message structs.
#include "bind/arglist.hpp"
#include "bind/ofi_plain.hpp"
#include "bind/params.hpp"

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
    return set_error(fi_err::kEINVAL, method, ": buf is None and len ", n,
                     ": give memory, or None with len=0 for a transfer of no bytes");
  }
  if (PyObject_TypeCheck(obj, g_ofi_mr_type)) {
    const OfiMr& mr = *nb::inst_ptr<OfiCore<OfiMr>>(obj)->box;
    if (mr.h.fid == nullptr || !mr.buffer.is_valid()) {
      return set_error(fi_err::kEINVAL, method,
                       ": this region cannot be used as a buffer: it is closed or has several buffers");
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
    return set_error(fi_err::kEINVAL, method, ": desc is ", Py_TYPE(desc)->tp_name,
                     ": pass mr.desc of a region of this domain that covers the buffer, or None");
  }
  const OfiMr& mr = *nb::inst_ptr<OfiCore<OfiMr>>(desc)->box;
  if (mr.h.fid == nullptr) return set_error(fi_err::kEOPBADSTATE, method, ": the region of desc is closed");
  *out = mr.get()->mem_desc;
  return true;
}

bool OfiList::acquire(PyObject* list, bool writable, PyObject* count_arg, const char* method, size_t element) {
  if (list == nullptr || list == Py_None) return true;
  Entries entries;
  if (!entries.take(list, count_arg, false, method)) return false;
  if (entries.count > ofi::kIovMax) {
    return set_error(fi_err::kEINVAL, method, ": ", entries.count, " buffers; at most ", ofi::kIovMax,
                     ", and iov_limit of the endpoint\n  try: fewer buffers a call");
  }
  for (size_t i = 0; i < entries.count; ++i) {
    const BufEntry entry(entries[i], element);
    Buf& b = bufs[i];
    if (entries[i] == Py_None) {
      return set_error(fi_err::kEINVAL, method, ": buffer ", i,
                       " is None (NULL): give memory, or None for the whole list for no bytes");
    }
    if (!ofi_take(entry.buffer, writable, nullptr, method, &b) || !entry.shorten(&b, method, datatype)) return false;
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
  return each_desc(descs, !PySequence_Check(descs) || PyObject_TypeCheck(descs, g_ofi_mr_type), count, method,
                   [&](PyObject* one, size_t i) { return ofi_desc(one, method, &desc[i]); });
}

bool OfiList::all_described(const OfiEp& ep, const char* method) const {
  for (size_t i = 0; i < count; ++i) {
    if (!ofi_described(ep, method, bufs[i], desc[i])) return false;
  }
  return true;
}

bool ofi_remote(PyObject* list, PyObject* count_arg, const char* method, bool atomic,
                std::array<ofi::RmaIov, ofi::kIovMax>* out, size_t* count) {
  Entries entries;
  if (!entries.take(list, count_arg, true, method)) return false;
  if (entries.count > ofi::kIovMax) {
    return set_error(fi_err::kEINVAL, method, ": ", entries.count, " remote pieces; at most ", ofi::kIovMax,
                     ", and rma_iov_limit of the endpoint\n  try: fewer pieces a call");
  }
  for (size_t i = 0; i < entries.count; ++i) {
    ofi::RmaIov& to = (*out)[i];
    uint64_t length = 0;
    if (!remote_piece(entries[i], atomic, method, &to.addr, &length, &to.key)) return false;
    to.len = length;
  }
  *count = entries.count;
  return true;
}

Failed ofi_refuse_state(const OfiEp& ep, const char* method, ofi::Addr peer) {
  if (ep.h.fid == nullptr || ep.h.closing)
    return set_error(fi_err::kEOPBADSTATE, method, ": the endpoint was closed while its arguments were read");
  if (!ep.enabled)
    return set_error(fi_err::kEOPBADSTATE, method, ": the endpoint is not enabled\n  try: ep.enable() first");
  const std::string what = peer == ~uint64_t{0}
                               ? "no peer was given"
                               : "fi_addr " + std::to_string(peer) + " is not in the address vector of the endpoint";
  return set_error(fi_err::kEINVAL, method, ": ", what, "\n  try: what av.insert() returned for the peer");
}

Failed ofi_refuse_desc(const char* method) {
  return set_error(kOfiNoRegion, method,
                   ": the domain was opened with MR_LOCAL, and desc is None\n  try: "
                   "desc=mr.desc of a region that covers the buffer");
}

Failed ofi_refuse_tag(const OfiEp& ep, const char* method, uint64_t tag) {
  return set_error(fi_err::kEINVAL, method, ": tag ", tag,
                   "\n  rule: on an endpoint with COLLECTIVE, bits above those of mem_tag_format are the "
                   "library's own; there are ",
                   std::popcount(~ep.reserved_tag), " for tags");
}

Failed ofi_refuse_size(const OfiEp& ep, const OfiOp& op, size_t count) {
  const size_t limit = op.receives ? ep.rx_iov_limit : ep.iov_limit;
  if (count > limit) {
    return set_error(fi_err::kEINVAL, op.method, ": ", count, " buffers; the endpoint's iov_limit is ", limit,
                     "\n  try: fewer buffers a call, or one buffer that holds all");
  }
  return set_error(fi_err::kEMSGSIZE, op.method, ": ", op.total, " bytes with FI_INJECT; at most inject_size ",
                   ep.inject_size, "\n  try: without FI_INJECT, or fewer bytes");
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
    return set_error(fi_err::kEINVAL, method, ": ", count, " remote pieces; the endpoint's rma_iov_limit is ",
                     ep.rma_iov_limit, "\n  try: fewer pieces a call");
  }
  if (total() == local) return true;
  return set_error(fi_err::kEINVAL, method, ": the local buffers have ", local, " ", unit, ", the remote pieces ",
                   total(), "\n  try: the same number on both sides");
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

Failed ofi_refuse(OfiEp* ep, const OfiOp& op, ssize_t code) {
  if (code == -fi_err::kENOSYS) return ofi_missing(op.method);
  std::string more;
  if (code == -fi_err::kEAGAIN) {
    OfiCq* cq = op.side == kOfiTransmit ? ep->tx.get() : ep->rx.get();
    if (cq != nullptr) more = std::to_string(cq->slots.busy()) + " operations of the queue are under way";
  }
  return ofi_set_error(op.method, code, more);
}

namespace {

// A call with a list of buffers.
template <typename M, typename Find>
PyObject* listed(PyObject* self, const BufferArgs& a, OfiKind kind, Find&& find) {
  constexpr const char* method = M::kName;
  OfiEp* ep = ofi_ep_of(self, method);
  const bool receives = kind == OfiKind::receives, writable = receives || kind == OfiKind::fetches;
  OfiList list;
  OfiCall c;
  if (ep == nullptr || !list.acquire(a.buf, writable, a.len, method) || !list.take_descs(a.desc, method) ||
      !ofi_numbers<M>(*ep, a, receives, &c) || !list.all_described(*ep, method)) {
    return nullptr;
  }
  OfiOp op{method, receives ? flag::kRecv : kOfiTransmit, receives ? ep->rx_flags : ep->tx_flags, list.total, receives};
  if (!ofi_fits(*ep, op, list.count, !writable)) return nullptr;
  return ofi_post(ep, op, a.context, list.pointers.data(), list.count, [&](void* context) {
    const auto entry = find(ep->get());
    if (entry == nullptr) return ssize_t{-fi_err::kENOSYS};
    return [&]<size_t... I>(std::index_sequence<I...>) {  // the parameters behind iov and desc
      return entry(ep->get(), list.iov.data(), list.descs(), list.count, argument<M, I + 2>(c, context)...);
    }(std::make_index_sequence<M::kNames.positional - 2>());
  });
}

}  // namespace

#define WEFT_LISTED(name, table, Ops, entry, does, params)   \
  WEFT_METHOD(ofi_##name, BufferArgs, #name, params,         \
              listed<M>(self, a, kind_of(Form::list, #does), \
                        [](ofi::FidEp* ep) { return ofi::op(ep->table, &ofi::Ops::entry); }))

// ---- message structs -----------------------------------------------------------------------------------------------

namespace {

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
  const MsgFields m(msg, type);
  if (!m.all()) return nullptr;
  if ((flags & (flag::kPeek | flag::kClaim)) != 0 && ep->domain->quirks.has(ofi::Quirk::ignores_peek) &&
      std::strcmp(method, "recvmsg") == 0) {
    return set_error(
        fi_err::kEOPNOTSUPP,
        "recvmsg: PEEK and CLAIM are of tagged messages here: this provider of libfabric ignores the flags, and "
        "the message would be received and cut\n  try: trecvmsg, with messages that have a tag");
  }
  // fi_tagged(3): DISCARD goes with PEEK or CLAIM. Not every provider looks: DISCARD_ALONE_CRASHES of the table of
  // quirks.
  if (receives && (flags & nic::flag::kDiscard) != 0 && ((flags & flag::kPeek) != 0) == ((flags & flag::kClaim) != 0)) {
    return set_error(fi_err::kEINVAL, method, ": DISCARD ",
                     ((flags & flag::kPeek) != 0 ? "with both PEEK and CLAIM" : "without PEEK or CLAIM"),
                     "\n  rule: fi_tagged(3): a peek, or the claim of a peeked message, may discard");
  }
  OfiList list;
  ofi::Addr peer = ~uint64_t{0};
  uint64_t data = 0;
  const bool buffers = !receives || (flags & flag::kPeek) == 0;  // a peek has none
  if ((buffers &&
       (!list.acquire(m.iov.value, writable, m.count.value, method) || !list.take_descs(m.desc.value, method))) ||
      !to_u64(m.addr.value, &peer, method, "addr") || !to_u64(m.data.value, &data, method, "data") ||
      !ofi_ready(*ep, method, peer, receives) || !list.all_described(*ep, method)) {
    return nullptr;
  }
  OfiTrigger trigger;
  if (!trigger.take(*ep, method, flags, m.context.value)) return nullptr;
  OfiOp op{method, receives ? flag::kRecv : kOfiTransmit, flags, list.total, receives};
  if (trigger.cntr != nullptr) op.trigger = &trigger;
  if (!ofi_fits(*ep, op, list.count, !writable) ||
      (remote != nullptr && !remote->fits(*ep, method, list.total, "bytes"))) {
    return nullptr;
  }
  if (receives && (flags & (flag::kClaim | flag::kPeek)) == flag::kClaim) {  // of a message that a peek took hold of
    op.slot = claimed(*ep, m.context.value);
    if (op.slot == nullptr)
      return set_error(fi_err::kEINVAL, method, ": CLAIM: no peek with PEEK | CLAIM has this context");
  }
  return ofi_post(ep, op, m.context.value, list.pointers.data(), list.count,
                  [&](void* context) { return f(ep->get(), list, peer, data, flags, context); });
}

bool number_attr(PyObject* msg, const char* method, const char* name, uint64_t* out) {
  const Attr attr(msg, name, "fi.MsgTagged");
  return attr.value != nullptr && to_u64(attr.value, out, method, name);
}

PyObject* msg_struct(PyObject* self, const char* method, const StructArgs& a, OfiKind kind) {
  const bool receives = kind == OfiKind::receives;
  return of_struct(
      self, method, "fi.Msg", a.msg, a.flags, receives, receives, nullptr,
      [&](ofi::FidEp* ep, OfiList& l, ofi::Addr peer, uint64_t data, uint64_t flags, void* context) -> ssize_t {
        const ofi::Msg msg{l.iov.data(), l.descs(), l.count, peer, context, data};
        return ofi_call(ep->msg, receives ? &ofi::MsgOps::recvmsg : &ofi::MsgOps::sendmsg, ep, &msg, flags);
      });
}
PyObject* tagged_struct(PyObject* self, const char* method, const StructArgs& a, OfiKind kind) {
  const bool receives = kind == OfiKind::receives;
  uint64_t tag = 0, ignore = 0;
  OfiEp* ep = ofi_ep_of(self, method);
  if (ep == nullptr || !number_attr(a.msg, method, "tag", &tag) || !number_attr(a.msg, method, "ignore", &ignore) ||
      !ofi_tag(*ep, method, tag, &ignore)) {
    return nullptr;
  }
  return of_struct(
      self, method, "fi.MsgTagged", a.msg, a.flags, receives, receives, nullptr,
      [&](ofi::FidEp* fid, OfiList& l, ofi::Addr peer, uint64_t data, uint64_t flags, void* context) -> ssize_t {
        const ofi::MsgTagged msg{l.iov.data(), l.descs(), l.count, peer, tag, ignore, context, data};
        return ofi_call(fid->tagged, receives ? &ofi::TaggedOps::recvmsg : &ofi::TaggedOps::sendmsg, fid, &msg, flags);
      });
}
PyObject* rma_struct(PyObject* self, const char* method, const StructArgs& a, OfiKind kind) {
  const bool reads = kind == OfiKind::fetches;
  OfiRemote remote;
  {
    const Attr rma(a.msg, "rma_iov"), rma_count(a.msg, "rma_iov_count");
    if (rma.value == nullptr || rma_count.value == nullptr ||
        !ofi_remote(rma.value, rma_count.value, method, false, &remote.iov, &remote.count)) {
      return nullptr;
    }
  }
  return of_struct(
      self, method, "fi.MsgRma", a.msg, a.flags, reads, false, &remote,
      [&](ofi::FidEp* ep, OfiList& l, ofi::Addr peer, uint64_t data, uint64_t flags, void* context) -> ssize_t {
        const ofi::MsgRma msg{l.iov.data(), l.descs(), l.count, peer, remote.iov.data(), remote.count, context, data};
        return ofi_call(ep->rma, reads ? &ofi::RmaOps::readmsg : &ofi::RmaOps::writemsg, ep, &msg, flags);
      });
}

}  // namespace

#define WEFT_STRUCT(name, table, Ops, entry, does, params) \
  WEFT_METHOD(ofi_##name, StructArgs, #name, params, table##_struct(self, M::kName, a, kind_of(Form::message, #does)))

#define WEFT_one(...)
#define WEFT_inject(...)
#define WEFT_list WEFT_LISTED
#define WEFT_message WEFT_STRUCT
#define WEFT_TRANSFER(name, entry, form, kind, params, doc) WEFT_##form(name, rma, RmaOps, entry, kind, params)
#define WEFT_MESSAGE(name, table, entry, form, side, params, doc) \
  WEFT_##form(name, table, WEFT_OPS_##table, entry, side, params)
#include "bind/calls.inl"

}  // namespace weft::bind
