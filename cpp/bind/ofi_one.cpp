// cpp/bind/ofi_one.cpp: the calls of a real libfabric's endpoints that have one buffer.
//
// HOT: post(). Plain calls of an endpoint that reports every operation go from the arguments to the library's table in
// one function; all others through general().
#include "bind/ofi_plain.hpp"

namespace weft::bind {

namespace {

// HOT where arguments are given by name. Handles every form of a call, and makes the errors.
template <typename M>
[[gnu::noinline]] PyObject* general(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  constexpr const char* method = M::kName;
  constexpr bool receives = M::kKind == OfiKind::receives, writable = receives || M::kKind == OfiKind::fetches;
  BufferArgs a;
  if (!M::Args::read(args, nargs, kwnames, &a)) return nullptr;
  OfiEp* ep = ofi_ep_of(self, method);
  Buf b;
  OfiCall c;
  if (ep == nullptr || !ofi_take(a.buf, writable, a.len, method, &b) || !ofi_desc(a.desc, method, &c.desc) ||
      !ofi_numbers<M>(*ep, a, receives, &c)) {
    return nullptr;
  }
  c.data = b.data;
  c.length = b.length;
  if constexpr (M::kKind == OfiKind::injects) {
    if (b.length > ep->inject_size) {
      return set_error(fi_err::kEMSGSIZE, method, ": ", b.length, " bytes; at most inject_size ", ep->inject_size,
                       "\n  try: the call without inject, or fewer bytes");
    }
    return ofi_post_inject(ep, {method}, [&] { return M::call(ep->get(), c, nullptr); });
  }
  const OfiOp op{method, receives ? flag::kRecv : kOfiTransmit, receives ? ep->rx_flags : ep->tx_flags, b.length,
                 receives};
  if (!ofi_described(*ep, method, b, c.desc) || !ofi_fits(*ep, op, 1, !writable)) return nullptr;
  const Buf* bufs[] = {&b};
  return ofi_post(ep, op, a.context, bufs, a.buf == Py_None ? 0 : 1,
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
      return refused(ep, M::kName, cq, slot, r, kReceives ? flag::kRecv : kOfiTransmit);
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
    using Args = Method<BufferArgs, #name, params>;                                                   \
    static constexpr const char* kName = #name;                                                       \
    static constexpr const auto& kNames = Args::kNames;                                               \
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
