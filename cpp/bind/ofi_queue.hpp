// cpp/bind/ofi_queue.hpp: shared by the queues and counters of a real libfabric: waiting in slices, and their
// descriptors.
#pragma once

#include <time.h>

#include <algorithm>
#include <array>

#include "bind/ofi.hpp"
#include "bind/wait.hpp"

namespace weft::bind {

constexpr int kWaitNone = 0, kWaitUnspec = 1, kWaitYield = 5;  // FI_WAIT_NONE ...
constexpr int kSliceMs = 50;                                   // a waiting thread looks for Ctrl-C after this time

// Milliseconds to wait in one call: at least one, so that a short rest of the time is not spent spinning.
inline int slice_ms(uint64_t deadline) {
  if (deadline == kForever) return kSliceMs;
  const uint64_t now = now_ns();
  if (now >= deadline) return 0;
  return static_cast<int>(std::clamp<uint64_t>((deadline - now + 999'999) / 1'000'000, 1, kSliceMs));
}
inline void rest() {
  const ReleasedGil released;
  const timespec moment{0, 200'000};
  ::nanosleep(&moment, nullptr);
}

// ---- a completion queue's side of the library (ofi_cq.cpp) ---------------------------------------------------------

constexpr const char* kCqName = "completion queue";
// HOT. Takes entries, which own their contexts: their number, or -1 with an error set. from: with their sources.
Py_ssize_t ofi_cq_take(OfiCq& cq, const char* call, nic::CqEntry* out, size_t count, bool from);
// Waits for a slice of the time, after which the queue is to be read again. False with an error set: the time is over,
// or cq.signals is no longer `signals`.
bool ofi_cq_wait(OfiCq& cq, const char* call, size_t count, bool from, uint64_t cond, uint64_t deadline,
                 uint64_t signals);
// Takes the error entry at the head; false: there is none.
bool ofi_cq_error(OfiCq& cq, uint64_t flags, nic::CqEntry* entry, nic::CqError* error);
void ofi_cq_signal(OfiCq& cq);
void ofi_cq_close(OfiCq& cq);
// From now on sread looks again and again, instead of waiting in the library; returns when no thread waits there.
void ofi_cq_look(OfiCq& cq);

// fi_trywait: true if it is safe to sleep on the descriptors of these open objects.
bool ofi_trywait(OfiFabric& fabric, std::vector<ofi::Fid*> fids);

// ---- waiting -------------------------------------------------------------------------------------------------------

// Opens a queue or counter with the wait object that `attr` asks for, or one that does the same.
//
// The library's own choice may be FI_WAIT_YIELD, which disregards the limit of a wait (YIELD_HAS_NO_LIMIT of the table
// of quirks). Weft yields itself there, and FI_WAIT_UNSPEC is a descriptor where the provider has one, else `last`.
template <typename T, typename By, typename Attr, typename FidType>
void open_waiting(T& made, const char* call, By* by, int (*open)(By*, Attr*, FidType**, void*), Attr attr,
                  int last = kWaitNone) {
  if (open == nullptr) ofi_raise_missing(call);
  made.asked = attr.wait_obj;
  if (made.asked == kWaitYield) attr.wait_obj = kWaitNone;
  if (made.asked == kWaitUnspec) attr.wait_obj = static_cast<int>(kWaitFd);
  FidType* fid = nullptr;
  int r = open(by, &attr, &fid, nullptr);
  if (made.asked == kWaitUnspec && (r == -fi_err::kENOSYS || r == -fi_err::kEOPNOTSUPP || r == -fi_err::kEINVAL)) {
    attr.wait_obj = last;
    r = open(by, &attr, &fid, nullptr);
  }
  ofi_check(call, r);
  made.h.fid = &fid->fid;
  made.has_wait = attr.wait_obj != kWaitNone;
}
// The descriptor of an open object that was opened with FI_WAIT_FD; else -1.
template <typename T>
int descriptor(T& t) {
  if (t.h.fid == nullptr) return -1;
  if (t.fd < 0 && t.asked == static_cast<int>(kWaitFd) && !t.h.closing && !t.h.forked())
    ofi_check("fi_control(FI_GETWAIT)", t.h.fid->ops->control(t.h.fid, ofi::kGetWait, &t.fd));
  return t.fd;
}
// Members that queues and counters have for the sake of a real libfabric; lib: its place, null for one of Weft's NIC.
template <typename Core, typename T>
void def_waits(Class<Core>& type, std::shared_ptr<T> Core::* lib, const char* about_fd) {
  const auto fd = [lib](const Core& c) {
    if (c.*lib) return descriptor(*(c.*lib));
    if constexpr (requires { c.notifier; }) return c.notifier ? c.notifier->fd() : -1;
    return -1;
  };
  const auto fid = [lib](const Core& c) { return c.*lib ? reinterpret_cast<uint64_t>((c.*lib)->h.fid) : uint64_t{0}; };
  type.template def_prop<"fid">(fid)
      .template def_prop<"_has_wait">([lib](const Core& c) { return c.*lib && (c.*lib)->has_wait; })
      .about(about_fd)
      .template def_prop<"fd">(fd)
      .about("True while an object of a real libfabric that uses this one exists.")
      .template def_prop<"in_use">([lib](const Core& c) { return (c.*lib).use_count() > 1; });
}

template <typename T>
nb::str words_of(const OfiCore<T>& self, int prov_errno, const nb::bytes& err_data, const char* name) {
  T& t = ofi_open(self, name);
  std::array<char, 512> room{};
  using Ops = std::remove_pointer_t<decltype(t.get()->ops)>;
  const auto call = ofi::op(t.get()->ops, &Ops::strerror);
  const char* found = call == nullptr ? nullptr
                                      : call(t.get(), prov_errno, err_data.size() != 0 ? err_data.c_str() : nullptr,
                                             room.data(), room.size());
  return ofi_words(found);
}

}  // namespace weft::bind
