// cpp/bind/ofi_ep.hpp: shared by the data-path methods of a real libfabric's endpoints.
//
// A call parses its arguments in place, takes a slot, and jumps through the library's table; it keeps the GIL for short
// copies. Calls with one buffer have a shorter way: ofi_one.cpp. Benchmark: bench/bench_ofi.py.
#pragma once

#include <array>

#include "bind/ofi.hpp"

namespace weft::bind {

namespace flag = nic::flag;                     // libfabric's
constexpr uint64_t kOfiTransmit = flag::kSend;  // FI_TRANSMIT is FI_SEND
constexpr uint64_t kOfiTrigger = 1u << 20;      // FI_TRIGGER
constexpr size_t kOfiSilentMax = 64;  // operations without entries that may be under way before the queue is read

// The endpoint of a method, or null with an error set.
inline OfiEp* ofi_ep_of(PyObject* self, const char* call) {
  OfiEp* ep = nb::inst_ptr<OfiCore<OfiEp>>(self)->box.get();
  if (ep != nullptr && ep->h.fid != nullptr && !ep->h.closing && !ep->h.forked()) [[likely]]
    return ep;
  return set_error(fi_err::kEOPBADSTATE, call,
                   (ep != nullptr && ep->h.fid != nullptr && ep->h.forked()
                        ? ": this endpoint belongs to the parent process: a forked child opens its own fabric"
                        : ": the endpoint is closed"));
}

// Takes a buffer, or a region of the library as one; None is no bytes.
bool ofi_take(PyObject* obj, bool writable, PyObject* len, const char* method, Buf* b);
// The library's descriptor of a region; null for None.
bool ofi_desc(PyObject* desc, const char* method, void** out);

struct OfiList {
  std::array<Buf, ofi::kIovMax> bufs;
  std::array<iovec, ofi::kIovMax> iov;
  std::array<ofi::Ioc, ofi::kIovMax> ioc;
  std::array<void*, ofi::kIovMax> desc{};
  std::array<const Buf*, ofi::kIovMax> pointers{};
  size_t count = 0, total = 0;
  bool described = false;
  uint64_t datatype = ~uint64_t{0};  // of an atomic's elements

  // element: bytes of an element of an atomic, whose lists may be of fi.Ioc; 0: bytes.
  bool acquire(PyObject* list, bool writable, PyObject* count_arg, const char* method, size_t element = 0);
  bool take_descs(PyObject* descs, const char* method);
  [[nodiscard]] bool all_described(const OfiEp& ep, const char* method) const;
  [[nodiscard]] void** descs() { return described ? desc.data() : nullptr; }
};
// Remote pieces: objects with .addr, .len (.count) and .key, or triples.
bool ofi_remote(PyObject* list, PyObject* count_arg, const char* method, bool atomic,
                std::array<ofi::RmaIov, ofi::kIovMax>* out, size_t* count);

// HOT. Whether a peer is in the endpoint's vector, which the library does not check.
inline bool ofi_known(const OfiEp& ep, ofi::Addr peer, bool receives) {
  const OfiAv* av = ep.av.get();
  return av == nullptr || av->knows(peer) || (receives && peer == ~uint64_t{0});
}
// Checks that the endpoint is enabled, and the peer. Again that the endpoint is open: the arguments were converted,
// which may have run Python code.
Failed ofi_refuse_state(const OfiEp& ep, const char* method, ofi::Addr peer);
inline bool ofi_ready(const OfiEp& ep, const char* method, ofi::Addr peer, bool receives) {
  if (ep.usable() && ofi_known(ep, peer, receives)) [[likely]]
    return true;
  return ofi_refuse_state(ep, method, peer);
}
// Under FI_MR_LOCAL the library needs a descriptor of a buffer with bytes.
Failed ofi_refuse_desc(const char* method);
inline bool ofi_described(const OfiEp& ep, const char* method, const Buf& b, const void* desc) {
  return !ep.domain->mr_local || desc != nullptr || b.length == 0 || ofi_refuse_desc(method);
}

// Keeps a tagged call away from the messages of libfabric's own collectives: a receive that took one would end the
// process. *ignore: of a receive.
Failed ofi_refuse_tag(const OfiEp& ep, const char* method, uint64_t tag);
inline bool ofi_tag(const OfiEp& ep, const char* method, uint64_t tag, uint64_t* ignore) {
  *ignore &= ~ep.reserved_tag;
  return (tag & ep.reserved_tag) == 0 || ofi_refuse_tag(ep, method, tag);
}

// What starts a triggered operation: struct fi_triggered_context, which is in the slot.
struct OfiTrigger {
  ofi::FidCntr* cntr = nullptr;  // null: the operation is not triggered
  size_t threshold = 0;
  Buf held;  // the counter

  // Reads an fi.TriggeredContext, where `flags` have FI_TRIGGER: the library takes the context for this struct.
  bool take(const OfiEp& ep, const char* method, uint64_t flags, PyObject* context);
  void fill(ofi::Slot* slot) const;
};

// An operation, for post().
struct OfiOp {
  const char* method;
  uint64_t side = kOfiTransmit;
  uint64_t flags = 0;  // of the call, or the endpoint's
  size_t total = 0;    // bytes
  bool receives = false;
  ofi::Slot* slot = nullptr;  // of a message that was claimed; null: a new one
  const OfiTrigger* trigger = nullptr;
};

// Checks the length of a list and the bytes of FI_INJECT: some providers do not, and write beyond their own memory.
// outbound: the library reads the buffers.
Failed ofi_refuse_size(const OfiEp& ep, const OfiOp& op, size_t count);
inline bool ofi_fits(const OfiEp& ep, const OfiOp& op, size_t count, bool outbound) {
  if (count <= (op.receives ? ep.rx_iov_limit : ep.iov_limit) &&
      (!outbound || (op.flags & flag::kInject) == 0 || op.total <= ep.inject_size)) [[likely]] {
    return true;
  }
  return ofi_refuse_size(ep, op, count);
}
// The remote side of a message struct.
struct OfiRemote {
  std::array<ofi::RmaIov, ofi::kIovMax> iov;
  size_t count = 0;
  [[nodiscard]] uint64_t total() const noexcept;  // of len: bytes, or elements; saturates
  // The pieces are at most rma_iov_limit, and as long together as the local buffers.
  [[nodiscard]] bool fits(const OfiEp& ep, const char* method, uint64_t local, const char* unit) const;
};

void ofi_release_slot(OfiCq* cq, ofi::Slots& slots, ofi::Slot* slot) noexcept;
Failed ofi_refuse(OfiEp* ep, const OfiOp& op, ssize_t code);

// Posts an operation that completes: f(context) calls the library.
template <typename F>
PyObject* ofi_post(OfiEp* ep, const OfiOp& op, PyObject* context, const Buf* const* bufs, size_t count, F&& f) {
  OfiCq* cq = op.side == kOfiTransmit ? ep->tx.get() : ep->rx.get();
  if (cq != nullptr && cq->silent >= kOfiSilentMax) [[unlikely]]
    ofi_sweep(*cq);
  ofi::Slots& slots = cq != nullptr ? cq->slots : ep->owner->own;
  ofi::Slot* slot = op.slot != nullptr ? op.slot : slots.take(ep->owner);
  if (op.slot == nullptr && context != nullptr && context != Py_None)
    slot->context = reinterpret_cast<uint64_t>(Py_NewRef(context));
  slot->receives = op.receives;
  if (op.receives && (op.flags & (flag::kPeek | flag::kClaim)) != 0) [[unlikely]]
    slot->claim = (op.flags & (flag::kPeek | flag::kClaim)) == (flag::kPeek | flag::kClaim) ? ofi::Slot::Claim::peeks
                                                                                            : ofi::Slot::Claim::none;
  slot->multi = op.receives && (op.flags & flag::kMultiRecv) != 0;
  if (op.trigger != nullptr) [[unlikely]]
    op.trigger->fill(slot);
  for (size_t i = 0; i < count; ++i) {
    PyObject* owner = bufs[i]->hold();
    if (owner == nullptr) [[unlikely]] {
      ofi_release_slot(cq, slots, slot);
      return nullptr;
    }
    slot->hold(reinterpret_cast<uint64_t>(owner));
  }
  if (cq != nullptr) {
    if ((ep->selective & op.side) != 0 && (op.flags & flag::kCompletion) == 0) {
      slot->silent = true;
      ++cq->silent;
    }
    if (op.total >= kReleaseGilBytes) {
      slot->large = true;
      ++cq->large;
    }
  }
  ssize_t r = 0;
  {
    const OfiReleased released(&ep->h, op.total >= kReleaseGilBytes && ep->domain->thread_safe);
    r = f(static_cast<void*>(slot));
  }
  if (r == 0) [[likely]]
    Py_RETURN_NONE;
  ofi_release_slot(cq, slots, slot);
  return ofi_refuse(ep, op, r);
}

// Posts an inject call, which has no completion.
template <typename F>
PyObject* ofi_post_inject(OfiEp* ep, const OfiOp& op, F&& f) {
  const ssize_t r = f();
  if (r == 0) [[likely]]
    Py_RETURN_NONE;
  return ofi_refuse(ep, op, r);
}

#define WEFT_CALL(name, params, doc) \
  PyObject* ofi_##name(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
#define WEFT_BATCH(...)
#include "bind/calls.inl"

}  // namespace weft::bind
