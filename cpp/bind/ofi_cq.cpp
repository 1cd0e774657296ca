// cpp/bind/ofi_cq.cpp: the side of a completion queue that is of a real libfabric.
//
// HOT: take. It asks the library once, and finds the operation of each entry by the address of its context.
// Benchmark: bench/bench_ofi.py.
#include <algorithm>
#include <array>

#include "bind/ofi_queue.hpp"

namespace weft::bind {

namespace {

// The entries of one call of the library, whose size depends on the queue's format.
struct Raw {
  alignas(ofi::CqEntry) std::byte bytes[kReadMax * sizeof(ofi::CqEntry)];
  ofi::Addr sources[kReadMax];
  [[nodiscard]] ofi::CqEntry at(size_t i, int format) const noexcept {
    switch (format) {
      case 1:
        return entry<1>(i);
      case 2:
        return entry<2>(i);
      case 3:
        return entry<3>(i);
      default:
        return entry<4>(i);
    }
  }

 private:
  template <int Format>
  [[nodiscard]] ofi::CqEntry entry(size_t i) const noexcept {
    ofi::CqEntry e{};
    std::memcpy(&e, bytes + i * ofi::kEntrySize[Format], ofi::kEntrySize[Format]);
    return e;
  }
};

// Ends the operation of an entry. *context: a new reference, or null. False: the application must not see the entry.
bool take_over(OfiCq& cq, const ofi::CqEntry& e, bool failed, PyObject** context) {
  ofi::Slot* slot = cq.slots.find(e.context);
  *context = nullptr;
  if (slot == nullptr) slot = cq.slots.unname(e.context);
  if (slot == nullptr) return true;  // a write with data of a peer
  *context = reinterpret_cast<PyObject*>(slot->context);
  if (slot->multi && !failed && (e.flags & nic::flag::kMultiRecv) == 0) {  // the buffer stays posted
    Py_XINCREF(*context);
    return true;
  }
  if (slot->claim == ofi::Slot::Claim::peeks && !failed) {  // the message stays with the context, until it is claimed
    slot->claim = ofi::Slot::Claim::has;
    Py_XINCREF(*context);
    return true;
  }
  const bool silent = slot->silent && !failed;
  if (slot->silent) --cq.silent;
  if (slot->large) --cq.large;
  const ofi::Owners owners = slot->take_owners();
  cq.slots.give(slot);
  owners.each(ofi_drop);
  if (silent) Py_CLEAR(*context);
  return !silent;
}

// One call of the library: entries, or a negative number. wait_ms: 0 reads only.
ssize_t ask(OfiCq& cq, Raw* raw, size_t count, bool from, const void* cond, int wait_ms) {
  const ofi::CqOps* ops = cq.get()->ops;
  if (wait_ms > 0) {
    std::fill_n(raw->sources, count, ~uint64_t{0});
    if (const auto call = from ? nullptr : ofi::op(ops, &ofi::CqOps::sread))
      return call(cq.get(), raw->bytes, count, cond, wait_ms);
    return ofi_call(ops, &ofi::CqOps::sreadfrom, cq.get(), raw->bytes, count, raw->sources, cond, wait_ms);
  }
  if (from) {
    std::fill_n(raw->sources, count, ~uint64_t{0});
    return ofi_call(ops, &ofi::CqOps::readfrom, cq.get(), raw->bytes, count, raw->sources);
  }
  return ofi_call(ops, &ofi::CqOps::read, cq.get(), raw->bytes, count);
}

// An entry for the application.
nic::CqEntry entry_of(const ofi::CqEntry& e, PyObject* context, ofi::Addr source) {
  nic::CqEntry made{};
  made.context = reinterpret_cast<uint64_t>(context);
  made.flags = e.flags;
  made.len = e.len;
  made.buf = reinterpret_cast<uint64_t>(e.buf);
  made.data = e.data;
  made.tag = e.tag;
  made.source = source;
  return made;
}

// Ends the operations of entries. Those that the application may see go to `out`, with their contexts; their number.
size_t take_all(OfiCq& cq, const Raw& raw, ssize_t n, bool from, nic::CqEntry* out) {
  size_t taken = 0;
  for (ssize_t i = 0; i < n; ++i) {
    const ofi::CqEntry e = raw.at(static_cast<size_t>(i), cq.format);
    PyObject* context = nullptr;
    if (!take_over(cq, e, false, &context)) continue;
    out[taken++] = entry_of(e, context, from ? raw.sources[i] : ~uint64_t{0});
  }
  return taken;
}
// Keeps entries for the application, which has not asked for them yet.
void keep_all(OfiCq& cq, const Raw& raw, ssize_t n) {
  CqRoom room;
  const size_t taken = take_all(cq, raw, n, true, room.data());
  cq.side.insert(cq.side.end(), room.data(), room.data() + taken);
}

Failed refuse_read(const char* call, ssize_t code) {
  if (code == -fi_err::kENOSYS) return ofi_missing(call);
  if (code != -fi_err::kEAVAIL) return ofi_set_error(call, code);
  return set_error(fi_err::kEAVAIL,
                   "an operation failed: its entry is at the head of the completion queue; read it with readerr()");
}

}  // namespace

// HOT.
Py_ssize_t ofi_cq_take(OfiCq& cq, const char* call, nic::CqEntry* out, size_t count, bool from) {
  size_t taken = 0;
  if (count == 0) ofi_progress(cq);
  while (taken < count) {
    if (!cq.side.empty()) [[unlikely]] {
      out[taken++] = cq.side.front();
      cq.side.pop_front();
      continue;
    }
    Raw raw;
    const size_t room = count - taken;
    ssize_t n = 0;
    {
      const OfiReleased released(&cq.h, cq.large > 0 && cq.domain->thread_safe);  // the library may copy for long
      n = ask(cq, &raw, room, from, nullptr, 0);
    }
    if (n < 0 && n != -fi_err::kEAGAIN && taken == 0) {
      refuse_read(call, n);
      return -1;
    }
    if (n > 0) taken += take_all(cq, raw, n, from, out + taken);
    if (n < static_cast<ssize_t>(room)) break;
  }
  return static_cast<Py_ssize_t>(taken);
}

bool ofi_cq_wait(OfiCq& cq, const char* call, size_t count, bool from, uint64_t cond, uint64_t deadline,
                 uint64_t signals) {
  constexpr int kInterrupted = 4, kCanceled = 125, kTimedOut = 110;  // FI_EINTR ...
  const auto refuse = [&](int code, const char* text) { return set_error(code, call, text); };
  const int ms = slice_ms(deadline);
  if (ms == 0) return refuse(fi_err::kEAGAIN, ": no completion within the timeout");
  if (cq.looks()) {
    rest();
  } else {
    Raw raw;
    ssize_t n = 0;
    {
      const OfiReleased released(&cq.h, true);
      n = ask(cq, &raw, std::min(count, kReadMax), from, cond == 0 ? nullptr : reinterpret_cast<const void*>(cond), ms);
    }
    keep_all(cq, raw, n);
    const bool closed = cq.h.closing || cq.h.fid == nullptr;
    if (n == -kCanceled && !closed && cq.looks()) return true;  // look() signalled
    if (n == -kCanceled && closed) return refuse(fi_err::kECANCELED, ": the queue was closed");
    if (n < 0 && n != -fi_err::kEAGAIN && n != -fi_err::kEAVAIL && n != -kInterrupted && n != -kTimedOut) {
      return refuse_read(call, n);
    }
  }
  if (cq.signals != signals) return ofi_set_error(call, -kCanceled);
  if (PyErr_CheckSignals() != 0) return false;
  if (cq.h.closing || cq.h.fid == nullptr)
    return refuse(fi_err::kECANCELED, ": the queue was closed while this thread waited");
  return ofi_usable(cq.h, call, kCqName);
}

void ofi_cq_close(OfiCq& cq) {
  if (cq.h.fid != nullptr && !cq.h.forked() && cq.h.calls > 0 && !cq.looks()) {
    if (const auto call = ofi::op(cq.get()->ops, &ofi::CqOps::signal)) (void)call(cq.get());
  }
  const bool drops = ofi_may_drop(cq.h);
  ofi_check("cq.close", cq.h.shut());
  if (!drops) return;
  ofi_drop_all(cq.slots);
  while (!cq.side.empty()) {
    auto* const context = reinterpret_cast<PyObject*>(cq.side.front().context);
    cq.side.pop_front();
    Py_XDECREF(context);
  }
}

bool ofi_cq_error(OfiCq& cq, uint64_t flags, nic::CqEntry* entry, nic::CqError* error) {
  if (!ofi_usable(cq.h, "cq.readerr", kCqName)) throw nb::python_error();
  const auto call = ofi::op(cq.get()->ops, &ofi::CqOps::readerr);
  if (call == nullptr) ofi_raise_missing("cq.readerr");
  std::array<char, 1024> data{};
  ofi::CqErrEntry e{};
  e.err_data = data.data();
  e.err_data_size = data.size();
  e.src_addr = ~uint64_t{0};
  const ssize_t r = call(cq.get(), &e, flags);
  if (r == -fi_err::kEAGAIN || r == 0) return false;
  ofi_check("cq.readerr", r);
  const size_t told = e.err_data == nullptr || e.err_data_size == data.size() ? 0 : e.err_data_size;
  error->text.assign(static_cast<const char*>(e.err_data), told);
  PyObject* context = nullptr;
  const ofi::CqEntry failed{e.context, e.flags, e.len, e.buf, e.data, e.tag};
  (void)take_over(cq, failed, true, &context);
  *entry = entry_of(failed, context, e.src_addr);
  error->olen = e.olen;
  error->err = std::abs(e.err);  // some providers have errors negative
  error->prov_errno = e.prov_errno;
  return true;
}

void ofi_cq_signal(OfiCq& cq) {
  ++cq.signals;
  if (cq.looks()) return;  // without a wait object the library crashes
  ofi_run("cq.signal", cq, &ofi::CqOps::signal);
}

void ofi_cq_look(OfiCq& cq) {
  if (cq.h.fid == nullptr || cq.h.forked() || cq.looks()) return;
  cq.polls = true;
  const auto call = ofi::op(cq.get()->ops, &ofi::CqOps::signal);
  while (cq.h.calls > 0 && cq.h.fid != nullptr) {
    if (call != nullptr) (void)call(cq.get());
    const ReleasedGil released;
    ::usleep(200);
  }
}

void ofi_drop_all(ofi::Slots& slots) noexcept {
  std::vector<uint64_t> owners;
  slots.each([&](ofi::Slot* slot) {
    if (slot->context != 0) owners.push_back(slot->context);
    slot->take_owners().each([&](uint64_t owner) { owners.push_back(owner); });
    slots.give(slot);
  });
  for (const uint64_t owner : owners) ofi_drop(owner);  // last: dropping may run Python code
}

OfiCq::~OfiCq() {
  const Seam seam;
  if (h.fid == nullptr) return;
  const bool drops = ofi_may_drop(h);
  if (h.shut() != 0 || !drops) return;
  ofi_drop_all(slots);
  for (const nic::CqEntry& one : side) Py_XDECREF(reinterpret_cast<PyObject*>(one.context));
}

void ofi_sweep(OfiCq& cq) {
  if (cq.h.fid == nullptr || cq.h.closing || cq.h.unready != 0) return;
  Raw raw;
  keep_all(cq, raw, ask(cq, &raw, kReadMax, true, nullptr, 0));
}

void ofi_progress(OfiCq& cq) noexcept {
  if (cq.h.fid == nullptr || cq.h.closing || cq.h.unready != 0) return;
  Raw raw;
  (void)ask(cq, &raw, 0, false, nullptr, 0);
}

}  // namespace weft::bind
