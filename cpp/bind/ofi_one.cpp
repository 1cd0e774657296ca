// cpp/bind/ofi_one.cpp: the calls of a real libfabric's endpoints that have one buffer.
//
// HOT: post(). Plain calls of an endpoint that reports every operation go from the arguments to the library's table in
// one function; all others through general().
#include "bind/ep.hpp"
#include "bind/ofi_plain.hpp"

namespace weft::bind {

namespace {

// HOT where arguments are given by name. Handles every form of a call, and makes the errors.
template <typename M>
[[gnu::noinline]] PyObject* general(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  constexpr const auto& n = M::kNames;
  constexpr const char* method = M::kName;
  constexpr bool receives = M::kKind == OfiKind::receives, writable = receives || M::kKind == OfiKind::fetches;
  static Signature signature{method, n.list(), n.positional, 1, {}};
  PyObject* a[n.count];
  if (!parse(signature, args, nargs, kwnames, a)) return nullptr;
  const auto given = [&](int at) { return at < 0 ? nullptr : a[at]; };
  for (const int at : {n.at("data"), n.at("tag")}) {
    if (at >= 0 && a[at] == nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", method, n.name(static_cast<size_t>(at)));
      return nullptr;
    }
  }
  OfiEp* ep = ofi_ep_of(self, method);
  if (ep == nullptr) return nullptr;
  Buf b;
  OfiCall c;
  const auto take = [&](int at, uint64_t* out) {
    PyObject* o = given(at);
    return o == nullptr || plain_number(o, out) || to_u64(o, out, method, n.name(static_cast<size_t>(at)));
  };
  constexpr int addr = n.at("addr"), key = n.at("key");
  if (!ofi_take(a[0], writable, given(n.at("len")), method, &b) ||
      (key >= 0 && (given(addr) == nullptr || given(key) == nullptr) &&
       !target_ok(method, given(addr), given(key), &c.addr, &c.key)) ||
      !take(addr, &c.addr) || !take(key, &c.key) || !take(peer_of(n), &c.peer) || !take(n.at("tag"), &c.tag) ||
      !take(n.at("ignore"), &c.ignore) || !take(n.at("data"), &c.value) ||
      !ofi_desc(given(n.at("desc")), method, &c.desc) || !ofi_ready(*ep, method, c.peer, receives) ||
      !ofi_tag(*ep, method, c.tag, &c.ignore)) {
    return nullptr;
  }
  c.data = b.data;
  c.length = b.length;
  if constexpr (M::kKind == OfiKind::injects) {
    if (b.length > ep->inject_size) {
      set_error(fi_err::kEMSGSIZE, std::string(method) + ": " + std::to_string(b.length) +
                                       " bytes; at most inject_size " + std::to_string(ep->inject_size) +
                                       "\n  try: the call without inject, or fewer bytes");
      return nullptr;
    }
    return ofi_post_inject(ep, {method}, [&] { return M::call(ep->get(), c, nullptr); });
  }
  const OfiOp op{method, receives ? kOfiRecv : kOfiTransmit, receives ? ep->rx_flags : ep->tx_flags, b.length,
                 receives};
  if (!ofi_described(*ep, method, b, c.desc) || !ofi_fits(*ep, op, 1, !writable)) return nullptr;
  const Buf* bufs[] = {&b};
  return ofi_post(ep, op, given(n.at("context")), bufs, a[0] == Py_None ? 0 : 1,
                  [&](void* context) { return M::call(ep->get(), c, context); });
}

// The library has refused: the operation's slot, or null.
[[gnu::cold, gnu::noinline]] PyObject* refused(OfiEp* ep, const char* method, OfiCq* cq, ofi::Slot* slot, ssize_t r,
                                               uint64_t side) {
  if (slot != nullptr) ofi_release_slot(cq, cq->slots, slot);
  return ofi_refuse(ep, {method, side}, r);
}

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
    return general<M>(self, args, nargs, kwnames);
  }
  if constexpr (kInjects) {
    if (c.length > ep->inject_size) [[unlikely]]
      return general<M>(self, args, nargs, kwnames);
    const ssize_t r = M::jump(ep->get(), c, nullptr);
    if (r != 0) [[unlikely]]
      return refused(ep, M::kName, nullptr, nullptr, r, kOfiTransmit);
    Py_RETURN_NONE;
  } else {
    const bool plain = kReceives ? ep->plain_rx : ep->plain_tx, described = (c.desc != nullptr) | !ep->mr_local;
    if ((plain & described & (c.length < kReleaseGilBytes)) == 0) [[unlikely]]
      return general<M>(self, args, nargs, kwnames);
    OfiCq* cq = (kReceives ? ep->rx : ep->tx).get();
    ofi::Slot* slot = cq->slots.take(ep->owner);
    Py_XINCREF(context);
    slot->context = reinterpret_cast<uint64_t>(context);
    slot->held[0] = reinterpret_cast<uint64_t>(Py_NewRef(args[0]));
    slot->receives = kReceives;
    const ssize_t r = M::jump(ep->get(), c, slot);
    if (r != 0) [[unlikely]]
      return refused(ep, M::kName, cq, slot, r, kReceives ? kOfiRecv : kOfiTransmit);
    Py_RETURN_NONE;
  }
}

template <typename M, typename Entry>
[[gnu::always_inline]] inline ssize_t call_entry(Entry entry, ofi::FidEp* ep, const OfiCall& c, void* context) {
  return [&]<size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
    return entry(ep, c.data, c.length, argument<M, I + 1>(c, context)...);
  }(std::make_index_sequence<M::kNames.positional - 1>());
}

// A method with one buffer, which it sends, receives, reads or writes.
#define WEFT_ONE(name, table, Ops, entry, form, does, params)                                         \
  namespace {                                                                                         \
  struct name##_call {                                                                                \
    static constexpr const char* kName = #name;                                                       \
    static constexpr Names<params> kNames{};                                                          \
    static constexpr OfiKind kKind = kind_of(Form::form, #does);                                      \
    static bool whole(const OfiEp& ep) { return ep.table != nullptr && ep.table == ep.get()->table; } \
    static ssize_t jump(ofi::FidEp* ep, const OfiCall& c, void* context) {                            \
      return call_entry<name##_call>(ep->table->entry, ep, c, context);                               \
    }                                                                                                 \
    static ssize_t call(ofi::FidEp* ep, const OfiCall& c, void* context) {                            \
      const auto found = ofi::op(ep->table, &ofi::Ops::entry);                                        \
      return found == nullptr ? -fi_err::kENOSYS : call_entry<name##_call>(found, ep, c, context);    \
    }                                                                                                 \
  };                                                                                                  \
  }                                                                                                   \
  PyObject* ofi_##name(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {  \
    return post<name##_call>(self, args, nargs, kwnames);                                             \
  }
#define WEFT_SINGLE_one WEFT_ONE
#define WEFT_SINGLE_inject WEFT_ONE
#define WEFT_SINGLE_list(...)
#define WEFT_SINGLE_message(...)

}  // namespace

#define WEFT_TRANSFER(name, entry, form, kind, params, doc) \
  WEFT_SINGLE_##form(name, rma, RmaOps, entry, form, kind, params)
#define WEFT_MESSAGE(name, table, entry, form, side, params, doc) \
  WEFT_SINGLE_##form(name, table, WEFT_OPS_##table, entry, form, side, params)
#include "bind/calls.inl"

}  // namespace weft::bind
