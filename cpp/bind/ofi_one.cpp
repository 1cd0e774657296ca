// cpp/bind/ofi_one.cpp: the calls of a real libfabric's endpoints that have one buffer.
//
// HOT: post(). Plain calls of an endpoint that reports every operation go from the arguments to the library's table in
// one function; all others through general().
#include "bind/ep.hpp"
#include "bind/ofi_plain.hpp"

namespace weft::bind {

namespace {

// A method, for general().
struct Method {
  Signature* signature;
  OfiKind kind;
  int desc, peer, tag, ignore, addr, key, context, data, len;  // places of the parameters; -1: it has none
  ssize_t (*call)(ofi::FidEp*, const OfiCall&, void* context);
};

// HOT where arguments are given by name. Handles every form of a call, and makes the errors.
PyObject* general(const Method& m, PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[8];
  Signature& s = *m.signature;
  if (!parse(s, args, nargs, kwnames, a)) return nullptr;
  const auto given = [&](int at) { return at < 0 ? nullptr : a[at]; };
  for (const int at : {m.data, m.tag}) {
    if (at >= 0 && a[at] == nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", s.method, s.names[static_cast<size_t>(at)]);
      return nullptr;
    }
  }
  OfiEp* ep = ofi_ep_of(self, s.method);
  if (ep == nullptr) return nullptr;
  const bool receives = m.kind == OfiKind::receives, injects = m.kind == OfiKind::injects;
  const bool writable = receives || m.kind == OfiKind::fetches;
  Buf b;
  OfiCall c;
  const auto take = [&](int at, uint64_t* out) {
    PyObject* o = given(at);
    return o == nullptr || plain_number(o, out) || to_u64(o, out, s.method, s.names[static_cast<size_t>(at)]);
  };
  if (!ofi_take(a[0], writable, given(m.len), s.method, &b) ||
      (m.key >= 0 && (a[m.addr] == nullptr || a[m.key] == nullptr) &&
       !target_ok(s.method, a[m.addr], a[m.key], &c.addr, &c.key)) ||
      !take(m.addr, &c.addr) || !take(m.key, &c.key) || !take(m.peer, &c.peer) || !take(m.tag, &c.tag) ||
      !take(m.ignore, &c.ignore) || !take(m.data, &c.value) || !ofi_desc(given(m.desc), s.method, &c.desc) ||
      !ofi_ready(*ep, s.method, c.peer, receives) || !ofi_tag(*ep, s.method, c.tag, &c.ignore)) {
    return nullptr;
  }
  c.data = b.data;
  c.length = b.length;
  if (injects) {
    if (b.length > ep->inject_size) {
      set_error(fi_err::kEMSGSIZE, std::string(s.method) + ": " + std::to_string(b.length) +
                                       " bytes; at most inject_size " + std::to_string(ep->inject_size) +
                                       "\n  try: the call without inject, or fewer bytes");
      return nullptr;
    }
    return ofi_post_inject(ep, {s.method}, [&] { return m.call(ep->get(), c, nullptr); });
  }
  const OfiOp op{s.method, receives ? kOfiRecv : kOfiTransmit, receives ? ep->rx_flags : ep->tx_flags, b.length,
                 receives};
  if (!ofi_described(*ep, s.method, b, c.desc) || !ofi_fits(*ep, op, 1, !writable)) return nullptr;
  const Buf* bufs[] = {&b};
  return ofi_post(ep, op, given(m.context), bufs, a[0] == Py_None ? 0 : 1,
                  [&](void* context) { return m.call(ep->get(), c, context); });
}

// The library has refused: the operation's slot, or null.
[[gnu::cold, gnu::noinline]] PyObject* refused(OfiEp* ep, const char* method, OfiCq* cq, ofi::Slot* slot, ssize_t r,
                                               uint64_t side) {
  if (slot != nullptr) ofi_release_slot(cq, cq->slots, slot);
  return ofi_refuse(ep, {method, side}, r);
}

template <typename M>
Signature g_signature{
    M::kNames.method, {M::kNames.names.begin(), M::kNames.names.end()}, M::kNames.names.size() - 1, 1, {}};
template <typename M>
const Method g_method{&g_signature<M>,         M::kKind,
                      M::kNames.at("desc"),    M::kNames.peer(),
                      M::kNames.at("tag"),     M::kNames.at("ignore"),
                      M::kNames.at("addr"),    M::kNames.at("key"),
                      M::kNames.at("context"), M::kNames.at("data"),
                      M::kNames.at("len"),     &M::call};

// HOT. Whether a peer is an index in the endpoint's vector, or, of a receive, unspecified.
template <bool Receives>
[[gnu::always_inline]] inline bool plain_peer(const OfiEp& ep, ofi::Addr peer) {
  if (Receives && peer == ~uint64_t{0}) return true;
  const OfiAv* av = ep.av.get();
  return av == nullptr || av->has_index(peer);
}

// HOT.
template <typename M>
PyObject* post(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  constexpr bool kInjects = M::kKind == OfiKind::injects, kReceives = M::kKind == OfiKind::receives;
  OfiEp* ep = nb::inst_ptr<OfiCore<OfiEp>>(self)->box.get();
  OfiCall c;
  PyObject* context = nullptr;
  if (!plain_call<M>(args, nargs, kwnames, &c, &context) || ep == nullptr || !ep->usable() ||
      !plain_peer<kReceives>(*ep, c.peer) || !M::whole(*ep)) [[unlikely]] {
    return general(g_method<M>, self, args, nargs, kwnames);
  }
  if constexpr (kInjects) {
    if (c.length > ep->inject_size) [[unlikely]]
      return general(g_method<M>, self, args, nargs, kwnames);
    const ssize_t r = M::jump(ep->get(), c, nullptr);
    if (r != 0) [[unlikely]]
      return refused(ep, M::kNames.method, nullptr, nullptr, r, kOfiTransmit);
    Py_RETURN_NONE;
  } else {
    const bool plain = kReceives ? ep->plain_rx : ep->plain_tx, described = (c.desc != nullptr) | !ep->mr_local;
    if ((plain & described & (c.length < kReleaseGilBytes)) == 0) [[unlikely]]
      return general(g_method<M>, self, args, nargs, kwnames);
    OfiCq* cq = (kReceives ? ep->rx : ep->tx).get();
    ofi::Slot* slot = cq->slots.take(ep->owner);
    Py_XINCREF(context);
    slot->context = reinterpret_cast<uint64_t>(context);
    slot->held[0] = reinterpret_cast<uint64_t>(Py_NewRef(args[0]));
    slot->receives = kReceives;
    const ssize_t r = M::jump(ep->get(), c, slot);
    if (r != 0) [[unlikely]]
      return refused(ep, M::kNames.method, cq, slot, r, kReceives ? kOfiRecv : kOfiTransmit);
    Py_RETURN_NONE;
  }
}

#define WEFT_NAMES(...) {__VA_ARGS__}
// A method: what it does with its buffer, its parameters, and the call of the library's table, whose arguments are
// OfiCall c's, and `context`.
#define WEFT_ONE(name, kind, parameters, table, Ops, entry, ...)                                      \
  namespace {                                                                                         \
  struct name##_call {                                                                                \
    static constexpr OfiNames kNames{#name, std::to_array<const char*>(parameters)};                  \
    static constexpr OfiKind kKind = OfiKind::kind;                                                   \
    static bool whole(const OfiEp& ep) { return ep.table != nullptr && ep.table == ep.get()->table; } \
    static ssize_t jump(ofi::FidEp* ep, const OfiCall& c, [[maybe_unused]] void* context) {           \
      return ep->table->entry(ep, c.data, c.length, __VA_ARGS__);                                     \
    }                                                                                                 \
    static ssize_t call(ofi::FidEp* ep, const OfiCall& c, [[maybe_unused]] void* context) {           \
      const auto found = ofi::op(ep->table, &ofi::Ops::entry);                                        \
      return found == nullptr ? -fi_err::kENOSYS : found(ep, c.data, c.length, __VA_ARGS__);          \
    }                                                                                                 \
  };                                                                                                  \
  }                                                                                                   \
  PyObject* ofi_##name(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {  \
    return post<name##_call>(self, args, nargs, kwnames);                                             \
  }

}  // namespace

// ---- fi_msg(3) -----------------------------------------------------------------------------------------------------

WEFT_ONE(send, sends, WEFT_NAMES("buf", "desc", "dest_addr", "context", "len"), msg, MsgOps, send, c.desc, c.peer,
         context)
WEFT_ONE(senddata, sends, WEFT_NAMES("buf", "desc", "data", "dest_addr", "context", "len"), msg, MsgOps, senddata,
         c.desc, c.value, c.peer, context)
WEFT_ONE(inject, injects, WEFT_NAMES("buf", "dest_addr", "len"), msg, MsgOps, inject, c.peer)
WEFT_ONE(injectdata, injects, WEFT_NAMES("buf", "data", "dest_addr", "len"), msg, MsgOps, injectdata, c.value, c.peer)
WEFT_ONE(recv, receives, WEFT_NAMES("buf", "desc", "src_addr", "context", "len"), msg, MsgOps, recv, c.desc, c.peer,
         context)

// ---- fi_tagged(3) --------------------------------------------------------------------------------------------------

WEFT_ONE(tsend, sends, WEFT_NAMES("buf", "desc", "dest_addr", "tag", "context", "len"), tagged, TaggedOps, send, c.desc,
         c.peer, c.tag, context)
WEFT_ONE(tsenddata, sends, WEFT_NAMES("buf", "desc", "data", "dest_addr", "tag", "context", "len"), tagged, TaggedOps,
         senddata, c.desc, c.value, c.peer, c.tag, context)
WEFT_ONE(tinject, injects, WEFT_NAMES("buf", "dest_addr", "tag", "len"), tagged, TaggedOps, inject, c.peer, c.tag)
WEFT_ONE(tinjectdata, injects, WEFT_NAMES("buf", "data", "dest_addr", "tag", "len"), tagged, TaggedOps, injectdata,
         c.value, c.peer, c.tag)
WEFT_ONE(trecv, receives, WEFT_NAMES("buf", "desc", "src_addr", "tag", "ignore", "context", "len"), tagged, TaggedOps,
         recv, c.desc, c.peer, c.tag, c.ignore, context)

// ---- fi_rma(3) -----------------------------------------------------------------------------------------------------

WEFT_ONE(read, fetches, WEFT_NAMES("buf", "desc", "src_addr", "addr", "key", "context", "len"), rma, RmaOps, read,
         c.desc, c.peer, c.addr, c.key, context)
WEFT_ONE(write, sends, WEFT_NAMES("buf", "desc", "dest_addr", "addr", "key", "context", "len"), rma, RmaOps, write,
         c.desc, c.peer, c.addr, c.key, context)
WEFT_ONE(writedata, sends, WEFT_NAMES("buf", "desc", "data", "dest_addr", "addr", "key", "context", "len"), rma, RmaOps,
         writedata, c.desc, c.value, c.peer, c.addr, c.key, context)
WEFT_ONE(inject_write, injects, WEFT_NAMES("buf", "dest_addr", "addr", "key", "len"), rma, RmaOps, inject, c.peer,
         c.addr, c.key)
WEFT_ONE(inject_writedata, injects, WEFT_NAMES("buf", "data", "dest_addr", "addr", "key", "len"), rma, RmaOps,
         injectdata, c.value, c.peer, c.addr, c.key)

}  // namespace weft::bind
