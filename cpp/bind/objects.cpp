// cpp/bind/objects.cpp: the NIC, domains, queues, counters, address vectors and regions as Python types.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind/common.hpp"
#include "bind/wait.hpp"
#include "nic/atomics.hpp"

namespace weft::bind {

std::shared_ptr<NicBox>& box_of(PyNic& nic) {
  if (!nic.box) raise(fi_err::kEOPBADSTATE, "the NIC is closed");
  if (nic.box->fork_generation != g_fork_generation) {
    raise(fi_err::kEOPBADSTATE, "this NIC belongs to the parent process: a forked child makes its own");
  }
  return nic.box;
}

namespace {

PyObject* g_entry_types[5] = {};  // context, msg, data, tagged, error

struct Allocation {
  std::shared_ptr<NicBox> box;
  std::byte* address = nullptr;
  size_t nbytes = 0;
  ~Allocation() {
    if (box && box->fork_generation == g_fork_generation) box->host->nic().segments().free(address);
  }
};

std::shared_ptr<DomainBox>& box_of(DomainCore& d) {
  if (!d.box || d.box->closed) raise(fi_err::kEOPBADSTATE, "the domain is closed");
  if (d.box->forked()) {
    raise(fi_err::kEOPBADSTATE, "this domain belongs to the parent process: a forked child opens its own fabric");
  }
  return d.box;
}

template <typename T>
void check_usable(const T& core, const char* what) {
  if (!core.box || core.closed) raise(fi_err::kEOPBADSTATE, std::string(what) + " is closed");
  if (core.box->forked()) {
    raise(fi_err::kEOPBADSTATE,
          std::string("this ") + what + " belongs to the parent process: a forked child opens its own fabric");
  }
}

// ---- completion queues
// -----------------------------------------------------------------------------------------------

constexpr int kWaitFd = 3;       // FI_WAIT_FD
constexpr size_t kReadMax = 64;  // entries taken under one hold of the lock

PyObject* number(uint64_t n) {
  return PyLong_FromUnsignedLongLong(n);
}

// Completion flags: a handful of values, too large for Python's own cache of small integers.
PyObject* flags_number(uint64_t flags) {
  static uint64_t known[4] = {};
  static PyObject* numbers[4] = {};
  const size_t at =
      (flags >> 8 ^ flags >> 3) & 3;  // MSG RMA TAGGED ATOMIC, READ WRITE SEND RECV: bits 1 to 5 and 8 to 11
  if (numbers[at] == nullptr || known[at] != flags) [[unlikely]] {
    PyObject* n = number(flags);
    if (n == nullptr) return nullptr;
    Py_XDECREF(numbers[at]);
    numbers[at] = n;
    known[at] = flags;
  }
  Py_INCREF(numbers[at]);
  return numbers[at];
}

// Room for entries that read() fills: an array of CqEntry would be cleared first, 4 KiB a call.
struct Entries {
  alignas(nic::CqEntry) std::byte bytes[kReadMax * sizeof(nic::CqEntry)];
  nic::CqEntry* data() noexcept { return reinterpret_cast<nic::CqEntry*>(bytes); }
};
static_assert(std::is_trivially_copyable_v<nic::CqEntry>);

// A tuple of the format's class. Takes over the context's reference.
PyObject* make_entry(int format, const nic::CqEntry& e) {
  static constexpr Py_ssize_t kFields[] = {1, 1, 3, 5, 6};
  const int f = format < 1 || format > 4 ? 1 : format;
  auto* type = reinterpret_cast<PyTypeObject*>(g_entry_types[f - 1]);
  PyObject* context = e.context != 0 ? reinterpret_cast<PyObject*>(e.context) : none_or(nullptr);
  PyObject* t = type->tp_alloc(type, kFields[f]);
  if (t == nullptr) {
    Py_DECREF(context);
    return nullptr;
  }
  PyTuple_SET_ITEM(t, 0, context);
  if (f >= 2) {
    PyTuple_SET_ITEM(t, 1, flags_number(e.flags));
    PyTuple_SET_ITEM(t, 2, number(e.len));
  }
  if (f >= 3) {
    PyTuple_SET_ITEM(t, 3, number(e.buf));
    PyTuple_SET_ITEM(t, 4, number(e.data));
  }
  if (f >= 4) PyTuple_SET_ITEM(t, 5, number(e.tag));
  return t;
}

bool cq_usable(CompletionQueueCore* self) {
  if (self->closed || !self->box) {
    set_error(fi_err::kEOPBADSTATE, "the completion queue is closed");
    return false;
  }
  if (self->box->forked()) {
    set_error(fi_err::kEOPBADSTATE,
              "this completion queue belongs to the parent process: a forked child opens its own fabric");
    return false;
  }
  return true;
}

// Takes what is there; -1 with EAVAIL set when an error entry is at the head.
Py_ssize_t take(CompletionQueueCore* self, nic::CqEntry* out, size_t count) {
  bool error_waits = false;
  size_t n;
  {
    const nic::DomainLock guard(self->box->domain.get());
    n = self->cq->read(out, count, &error_waits);
    if (self->notifier && self->cq->unread() == 0) self->notifier->drain();
  }
  if (n == 0 && !error_waits && self->cq->overrun) {
    set_error(fi_err::kEOVERRUN,
              std::string("the completion queue has overrun: it holds ") + std::to_string(self->cq->capacity()) +
                  " entries, " +
                  (self->cq->may_overrun
                       ? "peers wrote more with data than was read, and under RM_DISABLED nobody holds them back"
                       : "and there was no memory for one more") +
                  "; what came later is lost, and nothing comes any more\n"
                  "  try: a larger queue that is read more often, or resource_mgmt=fi.RM_ENABLED");
    return -1;
  }
  if (n == 0 && error_waits) {
    set_error(fi_err::kEAVAIL,
              "an operation failed: its entry is at the head of the completion queue; read it with readerr()");
    return -1;
  }
  return static_cast<Py_ssize_t>(n);
}

// Once more after progress. 0 when there is nothing.
Py_ssize_t take_polling(CompletionQueueCore* self, nic::CqEntry* out, size_t count) {
  Py_ssize_t n = take(self, out, count);
  if (n != 0) return n;
  nic::Nic* nic = self->box->domain->nic();
  if (nic->poll_from_app() != 0) n = take(self, out, count);
  if (n == 0) {
    if (self->pacer.due()) [[unlikely]] {
      const ReleasedGil released;
      self->pacer.yield_measured();
    }
  } else {
    self->pacer.found();
  }
  return n;
}

PyObject* entries_to_list(CompletionQueueCore* self, const nic::CqEntry* entries, Py_ssize_t n, bool with_source) {
  PyObject* list = PyList_New(n);
  if (list == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* entry = make_entry(self->format, entries[i]);
    if (entry != nullptr && with_source) {
      PyObject* pair = PyTuple_New(2);
      PyTuple_SET_ITEM(pair, 0, entry);
      PyTuple_SET_ITEM(pair, 1, number(entries[i].source));
      entry = pair;
    }
    if (entry == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, i, entry);
  }
  return list;
}

PyObject* read_up_to(CompletionQueueCore* self, size_t count, bool with_source) {
  Entries room;
  nic::CqEntry* entries = room.data();
  self->box->drain();
  const Py_ssize_t n = take_polling(self, entries, std::min(count, kReadMax));
  if (n < 0) return nullptr;
  PyObject* list = entries_to_list(self, entries, n, with_source);
  // More than a handful asked for: go on while there is more.
  while (list != nullptr && n != 0 && static_cast<size_t>(PyList_GET_SIZE(list)) < count &&
         static_cast<size_t>(PyList_GET_SIZE(list)) % kReadMax == 0) {
    const Py_ssize_t m = take(self, entries, std::min(count - static_cast<size_t>(PyList_GET_SIZE(list)), kReadMax));
    if (m <= 0) {
      PyErr_Clear();  // an error entry waits behind successes: the next read tells
      break;
    }
    PyObject* more = entries_to_list(self, entries, m, with_source);
    if (more == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SetSlice(list, PY_SSIZE_T_MAX, PY_SSIZE_T_MAX, more);
    Py_DECREF(more);
  }
  return list;
}

Signature g_read_sig{"read", {"count"}, 1, 0, {}};
Signature g_readfrom_sig{"readfrom", {"count"}, 1, 0, {}};
Signature g_sread_sig{"sread", {"count", "cond", "timeout"}, 3, 0, {}};

PyObject* cq_read(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  uint64_t count = kReadMax;
  if (nargs != 0 || kwnames != nullptr) {
    PyObject* a[1];
    if (!parse_slow(g_read_sig, args, nargs, kwnames, a) || !to_u64(a[0], &count, "cq.read", "count")) return nullptr;
  }
  auto* core = nb::inst_ptr<CompletionQueueCore>(self);
  return cq_usable(core) ? read_up_to(core, count, false) : nullptr;
}

PyObject* cq_readfrom(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  uint64_t count = kReadMax;
  PyObject* a[1];
  if (!parse_slow(g_readfrom_sig, args, nargs, kwnames, a) || !to_u64(a[0], &count, "cq.readfrom", "count"))
    return nullptr;
  auto* core = nb::inst_ptr<CompletionQueueCore>(self);
  return cq_usable(core) ? read_up_to(core, count, true) : nullptr;
}

PyObject* sread_common(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, bool with_source) {
  PyObject* a[3];
  uint64_t count = kReadMax, deadline, threshold = 1;
  if (!parse_slow(g_sread_sig, args, nargs, kwnames, a) || !to_u64(a[0], &count, "cq.sread", "count") ||
      !deadline_of(a[2], &deadline)) {
    return nullptr;
  }
  if (a[1] != nullptr && a[1] != Py_None && !to_u64(a[1], &threshold, "cq.sread", "cond"))
    return nullptr;  // FI_CQ_COND_THRESHOLD
  auto* core = nb::inst_ptr<CompletionQueueCore>(self);
  if (!cq_usable(core)) return nullptr;
  nic::Domain* domain = core->box->domain.get();
  const auto cq = core->cq;
  const auto keep = core->box;
  for (;;) {
    const int r = wait_for(*domain->nic(), cq->event, deadline, [&] {
      if (core->closed.load(std::memory_order_relaxed) || cq->signaled.load(std::memory_order_acquire)) return true;
      const nic::DomainLock guard(domain);
      return cq->unread() >= threshold || cq->error_waits() || cq->overrun;
    });
    if (r < 0) return nullptr;
    if (!cq_usable(core)) return nullptr;  // closed by another thread meanwhile
    Entries entries;
    const Py_ssize_t n = take(core, entries.data(), std::min<size_t>(count, kReadMax));
    if (n < 0) return nullptr;
    if (n > 0) return entries_to_list(core, entries.data(), n, with_source);
    if (cq->signaled.exchange(false)) {
      set_error(fi_err::kECANCELED, "the wait was ended by signal()");
      return nullptr;
    }
    if (r == 0) {
      set_error(fi_err::kEAGAIN, "no completion came before the timeout");
      return nullptr;
    }
  }
}

PyObject* cq_sread(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return sread_common(self, args, nargs, kwnames, false);
}
PyObject* cq_sreadfrom(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return sread_common(self, args, nargs, kwnames, true);
}

PyMethodDef g_cq_methods[] = {
    {"read", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(cq_read)), METH_FASTCALL | METH_KEYWORDS,
     "Takes completions without waiting (fi_cq_read).\n\n"
     "count  at most so many.\n\n"
     "Returns a list of entries of the queue's format, oldest first, empty when there is none. An entry's op_context "
     "is the\n"
     "object given to the operation.\n"
     "Raises Available when the entry at the head is a failed operation: readerr() takes it.\n"
     "Polling drives the NIC's progress. Source: fi_cq(3) fi_cq_read."},
    {"readfrom", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(cq_readfrom)), METH_FASTCALL | METH_KEYWORDS,
     "As read, with the initiator of each: a list of (entry, fi_addr) (fi_cq_readfrom).\n\n"
     "fi_addr is ADDR_NOTAVAIL for operations of this side, and for peers that are not in the address vector.\n"
     "Source: fi_cq(3) fi_cq_readfrom."},
    {"sread", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(cq_sread)), METH_FASTCALL | METH_KEYWORDS,
     "Waits until there is a completion, then takes up to count of them (fi_cq_sread).\n\n"
     "cond     with CQ_COND_THRESHOLD the number of entries to wait for.\n"
     "timeout  seconds; None or negative: forever.\n\n"
     "Spins briefly, yields, then sleeps; other Python threads run meanwhile and Ctrl-C ends it.\n"
     "Raises Again (timeout), Available (a failed operation is at the head), Canceled (signal()).\n"
     "Source: fi_cq(3) fi_cq_sread."},
    {"sreadfrom", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(cq_sreadfrom)), METH_FASTCALL | METH_KEYWORDS,
     "As sread, with the initiator of each: a list of (entry, fi_addr) (fi_cq_sreadfrom).\n\n"
     "Source: fi_cq(3) fi_cq_sreadfrom."},
    {nullptr, nullptr, 0, nullptr}};

// ---- counters
// --------------------------------------------------------------------------------------------------------

bool cntr_usable(CounterCore* core) {
  if (!core->closed && core->box && !core->box->forked()) return true;
  set_error(fi_err::kEOPBADSTATE, "the counter is closed, or belongs to the parent process");
  return false;
}

PyObject* cntr_read(PyObject* self, PyObject*) {
  auto* core = nb::inst_ptr<CounterCore>(self);
  if (!cntr_usable(core)) return nullptr;
  core->box->drain();
  if (core->notifier) core->notifier->drain();
  core->box->domain->nic()->poll_from_app();
  if (core->pacer.due()) [[unlikely]] {
    const ReleasedGil released;
    core->pacer.yield_measured();
  }
  return number(core->counter->value());
}

Signature g_wait_sig{"wait", {"threshold", "timeout"}, 2, 1, {}};

PyObject* cntr_wait(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[2];
  uint64_t threshold = 0, deadline;
  if (!parse_slow(g_wait_sig, args, nargs, kwnames, a) || !to_u64(a[0], &threshold, "cntr.wait", "threshold") ||
      !deadline_of(a[1], &deadline)) {
    return nullptr;
  }
  auto* core = nb::inst_ptr<CounterCore>(self);
  if (!cntr_usable(core)) return nullptr;
  const auto counter = core->counter;
  const auto keep = core->box;
  const uint64_t errors = counter->errors();
  const int r = wait_for(*keep->domain->nic(), counter->event, deadline, [&] {
    return counter->value() >= threshold || counter->errors() != errors || core->closed.load(std::memory_order_relaxed);
  });
  if (r < 0) return nullptr;
  if (!cntr_usable(core)) return nullptr;  // closed by another thread meanwhile
  if (counter->value() >= threshold) Py_RETURN_NONE;
  if (counter->errors() != errors) {
    set_error(fi_err::kEAVAIL, "an operation that the counter counts failed: its entry is in the completion queue");
  } else {
    set_error(fi_err::kETIMEDOUT, "the counter stands at " + std::to_string(counter->value()) + " of " +
                                      std::to_string(threshold) + " at the timeout" +
                                      (errors == 0 ? std::string()
                                                   : ", and " + std::to_string(errors) +
                                                         " operations had failed before: see readerr() and the "
                                                         "completion queue"));
  }
  return nullptr;
}

PyMethodDef g_cntr_methods[] = {
    {"read", cntr_read, METH_NOARGS,
     "The number of successful events so far (fi_cntr_read). Drives the NIC's progress.\n\nSource: fi_cntr(3) "
     "fi_cntr_read."},
    {"wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(cntr_wait)), METH_FASTCALL | METH_KEYWORDS,
     "Waits until the value reaches threshold (fi_cntr_wait).\n\n"
     "timeout  seconds; None or negative: forever.\n"
     "Raises TimedOut; Available when the error value changed meanwhile. Source: fi_cntr(3) fi_cntr_wait."},
    {nullptr, nullptr, 0, nullptr}};

int allocation_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  auto* a = nb::inst_ptr<Allocation>(self);
  return PyBuffer_FillInfo(view, self, a->address, static_cast<Py_ssize_t>(a->nbytes), 0, flags);
}

PyType_Slot g_allocation_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(allocation_getbuffer)}, {0, nullptr}};
PyType_Slot g_cq_slots[] = {{Py_tp_methods, g_cq_methods}, {0, nullptr}};
PyType_Slot g_cntr_slots[] = {{Py_tp_methods, g_cntr_methods}, {0, nullptr}};

// ---- regions
// ---------------------------------------------------------------------------------------------------------

PyObject* g_region_type = nullptr;  // weft.fi.MemoryRegion

// References to the buffers of a list, for as long as they are looked at.
struct RegionKeep {
  explicit RegionKeep(std::span<PyObject* const> list) : list_(list) {
    for (PyObject* o : list_) Py_INCREF(o);
  }
  RegionKeep(const RegionKeep&) = delete;
  RegionKeep& operator=(const RegionKeep&) = delete;
  ~RegionKeep() {
    for (PyObject* o : list_) Py_DECREF(o);
  }
  std::span<PyObject* const> list_;
};

// What the table says of a device's memory; host memory of a device's runtime is the owner's to copy.
bool note_device(DomainBox& box, Buf& buf, size_t count, size_t at, std::vector<mem::DeviceNote>* notes,
                 uint32_t* kind) {
  std::optional<mem::DeviceMemory> found;
  if (!find_device_slow(box, buf, "mr_reg", &found)) return false;
  mem::Devices& devices = box.domain->nic()->devices();
  if (found) {
    notes->resize(count);
    (*notes)[at] = devices.note(*found, box.mr_allocated);
  } else if (devices.any() && !box.domain->nic()->segments().find(buf.data, buf.length) &&
             devices.find(reinterpret_cast<uint64_t>(buf.data))) {
    *kind |= mem::kMrByOwner;
  }
  return true;
}

}  // namespace

bool make_region(MemoryRegionCore* self, const std::shared_ptr<DomainBox>& box, std::span<PyObject* const> buffers,
                 uint64_t access, uint64_t requested_key, bool owned, bool enabled, uint32_t kind,
                 nic::RegionExtra extra, bool unowned) {
  constexpr uint64_t kWrites = mem::kRemoteWrite | nic::flag::kRead | nic::flag::kRecv;
  constexpr size_t kFew = 4;
  iovec few[kFew];
  std::vector<iovec> many;
  if (buffers.size() > kFew) many.resize(buffers.size());
  iovec* list = many.empty() ? few : many.data();
  std::vector<nb::object> keep;
  keep.reserve(buffers.size());
  uint64_t length = 0;
  bool readonly = false, bare = false;
  std::vector<mem::DeviceNote> notes;
  for (size_t i = 0; i < buffers.size(); ++i) {
    Buf b;
    if (!b.acquire(buffers[i], false)) return false;
    if (box->hmem || b.iface != mem::kHmemSystem) [[unlikely]] {
      if (!note_device(*box, b, buffers.size(), i, &notes, &kind)) return false;
    }
    if (b.readonly && (access & kWrites) != 0) {
      set_error(fi_err::kEACCES, std::string("the buffer (") + Py_TYPE(buffers[i])->tp_name +
                                     ") is read-only and the access asked for writes to it: register it without "
                                     "REMOTE_WRITE, READ and RECV, or give a writable one");
      return false;
    }
    list[i] = {b.data, b.length};
    if (b.length > ~uint64_t{0} - length) {
      set_error(fi_err::kEINVAL, "mr_reg: the buffers together have more bytes than an address space");
      return false;
    }
    length += b.length;
    readonly = readonly || b.readonly;
    // Memory that a device's runtime vouches for is there, whoever names it.
    bare = bare || (b.bare && (kind & mem::kMrByOwner) == 0 && (notes.empty() || notes[i].iface == 0));
    PyObject* held = b.hold();
    if (held == nullptr) return false;
    keep.push_back(nb::steal(held));
    if (b.region != nullptr) [[unlikely]]
      keep.push_back(nb::borrow(b.owner));
  }
  if (length == 0 && box->empty_region_errno != 0) {
    set_error(box->empty_region_errno, "a region has at least 1 byte, fi_mr(3); what was given to register has none");
    return false;
  }
  try {
    extra.notes = notes;
    auto region = box->domain->register_region({list, buffers.size()}, access, requested_key,
                                               unowned || (bare && !owned), enabled, kind, extra);
    new (self) MemoryRegionCore(box, std::move(region), std::move(keep), length, readonly);
    self->bare = unowned || (bare && !owned);
    for (const mem::DeviceNote& note : notes) {
      if (note.iface != mem::kHmemSystem) self->iface = note.iface, self->device = note.device;
    }
    return true;
  } catch (const Error& e) {
    set_error(e.fi_code(), e.what());
    return false;
  }
}

namespace {

StatusMap status_map(const std::vector<std::pair<int32_t, int32_t>>& statuses) {
  StatusMap map;
  if (statuses.empty()) return map;
  if (statuses.size() != kStatusCount) raise(fi_err::kEINVAL, "statuses: one pair for each status");
  for (size_t i = 0; i < kStatusCount; ++i) map.entries[i] = {statuses[i].first, statuses[i].second};
  return map;
}

}  // namespace

DomainCore make_domain(PyNic& nic, const nic::DomainConfig& config) {
  const auto make = [&] { return std::make_shared<DomainBox>(box_of(nic), config); };
  return DomainCore{translating([&] {
    try {
      return make();
    } catch (const Error& e) {
      if (e.fi_code() != fi_err::kENOSPC) throw;
      PyGC_Collect();  // closed ones that an exception's traceback still holds
      return make();
    }
  })};
}

namespace {

bool close_region(MemoryRegionCore& r) {
  if (r.box->forked()) return true;
  std::string why;
  bool done;
  {
    const ReleasedGil released;
    done = r.region->close(&why);
  }
  r.box->drain();
  if (!done) {
    set_error(fi_err::kEBUSY, "the region cannot be closed: " + why + "; try again later");
    return false;
  }
  r.delist();
  r.keep.clear();
  return true;
}

Signature g_mr_reg_sig{"mr_reg", {"buf", "access", "offset", "requested_key", "flags", "context", "len"}, 6, 2, {}};

bool absent(PyObject* o) {
  return o == nullptr || o == Py_None;
}

// Where the caller of this C function is: what sys._getframe() would say.
void note_site(MemoryRegionCore* core) {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return;
  core->site = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
#if PY_VERSION_HEX >= 0x030B0000
  core->site_at = PyFrame_GetLasti(frame);
#else
  if (PyObject* at = PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_lasti")) {
    core->site_at = static_cast<int>(PyLong_AsLong(at));
    Py_DECREF(at);
  }
#endif
}

// HOT: some programs register for every transfer. Benchmark: bench/bench_registration.py.
// Anything out of the ordinary goes to weft.fi.Domain._mr_reg, with the same arguments.
PyObject* domain_mr_reg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse_slow(g_mr_reg_sig, args, nargs, kwnames, a)) return nullptr;
  auto* core = nb::inst_ptr<DomainCore>(self);
  uint64_t access = 0, key = 0, offset = 0, flags = 0;
  const auto plain_number = [](PyObject* o, uint64_t* out) {  // others are for Python to explain
    if (o == nullptr) return true;
    if (!PyLong_Check(o)) return false;
    *out = PyLong_AsUnsignedLongLong(o);
    if (*out != ~uint64_t{0}) return true;
    PyErr_Clear();
    return false;
  };
  if (core->mr_plain && core->box && !core->box->closed && !core->box->forked() && absent(a[6]) &&
      plain_number(a[1], &access) && plain_number(a[2], &offset) && plain_number(a[3], &key) &&
      plain_number(a[4], &flags) && (access & ~core->mr_access) == 0 && (offset | flags) == 0 &&
      // Under FI_MR_ALLOCATED somebody looks whether pages are behind bare addresses.
      !(core->box->mr_allocated && PyTuple_CheckExact(a[0])) && g_region_type != nullptr) [[likely]] {
    core->box->drain();
    nb::object region = nb::inst_alloc(g_region_type);
    auto* made = nb::inst_ptr<MemoryRegionCore>(region);
    if (!make_region(made, core->box, {&a[0], 1}, access, key, false, true)) return nullptr;
    nb::inst_mark_ready(region);
    made->domain = nb::borrow(self);
    made->enlist(region.ptr());
    note_site(made);
    return region.release().ptr();
  }
  static PyObject* name = PyUnicode_InternFromString("_mr_reg");
  constexpr size_t kArgsMax = 8;
  const Py_ssize_t total = nargs + (kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0);
  PyObject* forwarded[kArgsMax] = {self};
  std::copy(args, args + total, forwarded + 1);  // parse_slow accepted them, so there are no more than parameters
  return PyObject_VectorcallMethod(name, forwarded, static_cast<size_t>(nargs) + 1, kwnames);
}

PyMethodDef g_domain_methods[] = {
    {"mr_reg", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(domain_mr_reg)), METH_FASTCALL | METH_KEYWORDS,
     "Register memory (fi_mr_reg).\n\n"
     "buf             a buffer of at least 1 byte, or (address, length). Held until the region is closed. Memory that\n"
     "                Weft allocated (`Domain.alloc`, `weft.empty`) is the quickest for peers.\n"
     "access          what may be done with it: `fi.READ`, `fi.WRITE` (as local buffer of transfers),\n"
     "                `fi.REMOTE_READ`, `fi.REMOTE_WRITE` (by peers) ...\n"
     "offset          reserved, 0.\n"
     "requested_key   the key that peers will use, below 2**64 - 1; ignored under `fi.MR_PROV_KEY`.\n"
     "flags           `fi.RMA_EVENT`: a counter will be bound.\n"
     "context         for the event of an asynchronous registration.\n"
     "len             bytes from the start; all where None.\n\n"
     "Raises NoKey (the key is in use), KeyRejected (out of range), AccessDenied (read-only memory and an access that\n"
     "writes), InvalidArgument (no bytes, unknown access, offset), BadFlags.\n"
     "Thread safety: any thread. Source: fi_mr(3) fi_mr_reg."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot g_domain_slots[] = {{Py_tp_methods, g_domain_methods}, {0, nullptr}};

// HOT. mr[a:b] and slices of slices.
PyObject* new_slice(MemoryRegionCore* core, PyObject* owner, std::byte* data, size_t length, PyObject* index) {
  if (!PySlice_Check(index)) {
    PyErr_Format(PyExc_TypeError, "a registered region is indexed by a slice of bytes, [start:stop], not by %s",
                 Py_TYPE(index)->tp_name);
    return nullptr;
  }
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(index, &start, &stop, &step) < 0) return nullptr;
  if (step != 1) {
    PyErr_SetString(PyExc_IndexError, "a registered slice is contiguous: the step must be 1");
    return nullptr;
  }
  const Py_ssize_t count = PySlice_AdjustIndices(static_cast<Py_ssize_t>(length), &start, &stop, step);
  nb::object slice = nb::inst_alloc(reinterpret_cast<PyObject*>(g_mr_slice_type));
  new (nb::inst_ptr<MrSlice>(slice)) MrSlice{core, nb::borrow(owner), data + start, static_cast<size_t>(count)};
  nb::inst_mark_ready(slice);
  return slice.release().ptr();
}

PyObject* slice_subscript(PyObject* self, PyObject* index) {
  const auto* s = nb::inst_ptr<MrSlice>(self);
  return new_slice(s->core, s->owner.ptr(), s->data, s->length, index);
}
Py_ssize_t slice_length(PyObject* self) {
  return static_cast<Py_ssize_t>(nb::inst_ptr<MrSlice>(self)->length);
}

PyType_Slot g_slice_slots[] = {{Py_mp_subscript, reinterpret_cast<void*>(slice_subscript)},
                               {Py_mp_length, reinterpret_cast<void*>(slice_length)},
                               {0, nullptr}};

PyObject* region_subscript(PyObject* self, PyObject* index) {
  auto* r = nb::inst_ptr<MemoryRegionCore>(self);
  if (r->region->buffers().size() != 1) {
    PyErr_SetString(PyExc_IndexError, "only a region of one buffer can be sliced");
    return nullptr;
  }
  return new_slice(r, self, reinterpret_cast<std::byte*>(r->region->buffers()[0].local_addr), r->length, index);
}

// close(): here for a region that nothing else knows of, else MemoryRegion._close, which looks at bindings and sub-MRs.
PyObject* region_close(PyObject* self, PyObject*) {
  auto* r = nb::inst_ptr<MemoryRegionCore>(self);
  if (r->py_closed) Py_RETURN_NONE;
  if (r->special || (r->box && r->box->forked())) {
    static PyObject* name = PyUnicode_InternFromString("_close");
    return PyObject_CallMethodNoArgs(self, name);
  }
  if (!close_region(*r)) return nullptr;
  r->py_closed = true;
  Py_RETURN_NONE;
}

// A region that nobody closed: weft.fi warns. A closed one costs no Python.
void region_finalize(PyObject* self) {
  if (!nb::inst_ready(self)) return;  // registration failed
  auto* r = nb::inst_ptr<MemoryRegionCore>(self);
  if (r->py_closed || !r->site.is_valid() || !r->box || r->box->forked()) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* done = PyObject_CallMethod(self, "_finalize", nullptr);
  if (done == nullptr) PyErr_WriteUnraisable(self);
  Py_XDECREF(done);
  PyErr_Restore(type, value, trace);
}

PyMethodDef g_region_methods[] = {
    {"close", region_close, METH_NOARGS,
     "Close the region (fi_close): its key is invalid from here on, and a peer that uses it gets an error.\n\n"
     "Waits, for a bounded time, for peers that are copying. Operations of this process that have the region as their\n"
     "buffer go on, and hold its memory until they are over. Closing again does nothing.\n\n"
     "Raises Busy, naming them: sub-MRs; endpoints and counters that are bound to it and still open (close those\n"
     "first); peers that did not finish in time.\n"
     "Source: fi_mr(3) fi_close."},
    {nullptr, nullptr, 0, nullptr}};

template <bool MemoryRegionCore::* member>
PyObject* get_bool(PyObject* self, void*) {
  return PyBool_FromLong(nb::inst_ptr<MemoryRegionCore>(self)->*member);
}
template <bool MemoryRegionCore::* member>
int set_bool(PyObject* self, PyObject* value, void*) {
  const int on = value == nullptr ? 0 : PyObject_IsTrue(value);
  if (on < 0) return -1;
  nb::inst_ptr<MemoryRegionCore>(self)->*member = on != 0;
  return 0;
}

PyGetSetDef g_region_getset[] = {
    {"_closed", get_bool<&MemoryRegionCore::py_closed>, set_bool<&MemoryRegionCore::py_closed>, nullptr, nullptr},
    {"_special", get_bool<&MemoryRegionCore::special>, set_bool<&MemoryRegionCore::special>,
     "close() has to look at bindings or sub-MRs.", nullptr},
    {"_site",
     [](PyObject* self, void*) -> PyObject* {
       const auto* r = nb::inst_ptr<MemoryRegionCore>(self);
       if (!r->site.is_valid()) Py_RETURN_NONE;
       return Py_BuildValue("(Oi)", r->site.ptr(), r->site_at);
     },
     [](PyObject* self, PyObject* value, void*) {
       auto* r = nb::inst_ptr<MemoryRegionCore>(self);
       PyObject* code = nullptr;
       int at = 0;
       if (value != nullptr && value != Py_None && !PyArg_ParseTuple(value, "Oi", &code, &at)) return -1;
       r->site = code != nullptr ? nb::borrow(code) : nb::object();
       r->site_at = at;
       return 0;
     },
     "Where it was made: (code, instruction), or None.", nullptr},
    {"domain",
     [](PyObject* self, void*) -> PyObject* {
       const auto* r = nb::inst_ptr<MemoryRegionCore>(self);
       return none_or(r->domain.ptr());
     },
     [](PyObject* self, PyObject* value, void*) {
       auto* r = nb::inst_ptr<MemoryRegionCore>(self);
       r->domain = nb::borrow(value);
       r->enlist(self);
       return 0;
     },
     "The Domain that it was registered with.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot g_region_slots[] = {{Py_tp_methods, g_region_methods},
                                {Py_tp_getset, g_region_getset},
                                {Py_tp_finalize, reinterpret_cast<void*>(region_finalize)},
                                {Py_mp_subscript, reinterpret_cast<void*>(region_subscript)},
                                {0, nullptr}};

}  // namespace

PyObject* none_or(PyObject* o) {
  PyObject* r = o != nullptr ? o : Py_None;
  Py_INCREF(r);
  return r;
}

CompletionQueueCore::~CompletionQueueCore() {
  if (!box || !cq || box->forked()) return;
  // Contexts of entries that nobody read.
  std::vector<uint64_t> contexts;
  {
    const nic::DomainLock guard(box->domain.get());
    nic::CqEntry e;
    nic::CqError error;
    bool error_waits = true;
    while (cq->read(&e, 1, &error_waits) == 1 || (error_waits && cq->read_error(&e, &error)))
      contexts.push_back(e.context);
  }
  for (const uint64_t c : contexts) {
    if (c != 0) Py_DECREF(reinterpret_cast<PyObject*>(c));
  }
}

MemoryRegionCore::~MemoryRegionCore() {
  delist();  // before another thread may run: it must not find an object that is being freed
  if (!box || !region || box->forked()) return;
  std::string why;
  bool done;
  {
    const ReleasedGil released;
    done = region->close(&why);
  }
  // A peer that never finishes: its memory must stay where it is. The leak is the lesser evil, and is told.
  if (!done) {
    for (nb::object& o : keep) (void)o.release();
    PySys_WriteStderr("weft: a region was dropped while %s; its memory is kept\n", why.c_str());
  }
}

EndpointCore::~EndpointCore() {
  if (!box || !ep || box->forked()) return;
  {
    const ReleasedGil released;
    ep->close();
  }
  box->drain();
}

// A number from Python, or the error that names the argument.
static uint64_t number_of(nb::handle value, const char* method, const char* name) {
  uint64_t n = 0;
  if (!to_u64(value.ptr(), &n, method, name)) throw nb::python_error();
  return n;
}

void register_objects(nb::module_& m) {
  nb::set_leak_warnings(false);  // an interpreter that ends with live handles is none of the user's business
  m.def(
      "set_region_type",
      [](nb::type_object type) {
        Py_XDECREF(g_region_type);
        g_region_type = type.release().ptr();
      },
      nb::arg("type"), "Registers the class of regions that DomainCore.mr_reg makes: a subclass of MemoryRegionCore.");
  m.def(
      "set_entry_types",
      [](nb::type_object a, nb::type_object b, nb::type_object c, nb::type_object d, nb::type_object e) {
        PyObject* types[] = {a.ptr(), b.ptr(), c.ptr(), d.ptr(), e.ptr()};
        for (int i = 0; i < 5; ++i) {
          if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(types[i]), &PyTuple_Type)) {
            throw nb::type_error("entry types must be tuples");
          }
          Py_INCREF(types[i]);
          Py_XDECREF(g_entry_types[i]);
          g_entry_types[i] = types[i];
        }
      },
      nb::arg("context"), nb::arg("msg"), nb::arg("data"), nb::arg("tagged"), nb::arg("error"),
      nb::sig("def set_entry_types(context: type, msg: type, data: type, tagged: type, error: type) -> None"),
      "Registers the NamedTuple classes of completion entries, one a format.");

  // ---- NIC
  nb::class_<Allocation> allocation(m, "Allocation", nb::type_slots(g_allocation_slots),
                                    "Memory in a segment that peers map: they reach it by load and store. A writable "
                                    "buffer of bytes; freed with its last "
                                    "reference.");
  allocation
      .def_prop_ro(
          "address", [](const Allocation& a) { return reinterpret_cast<uint64_t>(a.address); },
          "Virtual address of the first byte.")
      .def_prop_ro("nbytes", [](const Allocation& a) { return a.nbytes; }, "Length in bytes.");

  nb::class_<PyNic> nic_class(m, "Nic", "The software NIC of this process: one engine, its links, its memory table.");
  nic_class
      .def(
          "__init__",
          [](PyNic* self, const std::string& engine, const std::string& isolation, bool cma, bool shm, bool tcp_log,
             uint32_t mr_count_max, const std::string& cache_monitor, uint64_t cache_count_max,
             uint64_t cache_bytes_max, const std::vector<uint32_t>& cache_off) {
            host::HostConfig config;
            config.cache_monitor = cache_monitor;
            config.cache = {cache_count_max, cache_bytes_max};
            if (engine != "thread" && engine != "manual") {
              raise(fi_err::kEINVAL, "engine is '" + engine + "': say thread or manual (WEFT_ENGINE)");
            }
            if (isolation != "shared" && isolation != "strict") {
              raise(fi_err::kEINVAL, "isolation is '" + isolation + "': say shared or strict (WEFT_ISOLATION)");
            }
            config.engine_thread = engine == "thread";
            config.shm.strict = isolation == "strict";
            config.shm.cma = cma;
            config.shm_link = shm;
            config.tcp.log = tcp_log;
            config.limits.mr_count_max = mr_count_max;
            new (self) PyNic{translating([&] { return std::make_shared<NicBox>(config); })};
            for (const uint32_t iface : cache_off) self->box->host->cache().set_enabled(iface, false);
          },
          nb::kw_only(), nb::arg("engine") = "thread", nb::arg("isolation") = "shared", nb::arg("cma") = true,
          nb::arg("shm") = true, nb::arg("tcp_log") = false, nb::arg("mr_count_max") = uint32_t{1} << 21,
          nb::arg("cache_monitor") = "", nb::arg("cache_count_max") = mem::kCacheCountDefault,
          nb::arg("cache_bytes_max") = mem::kUnlimited, nb::arg("cache_off") = std::vector<uint32_t>(),
          "engine        thread: an engine thread serves peers; manual: only calls into the NIC do.\n"
          "isolation     shared: peers map our segments; strict: nothing is shared, our engine does every access.\n"
          "cma           whether process_vm_readv/writev may be tried.\n"
          "shm           whether processes of this host are reached by shared memory; otherwise by tcp, as others "
          "are.\n"
          "tcp_log       write to stderr why callers were turned away and connections were lost.\n"
          "mr_count_max  regions at a time, a power of two.\n"
          "cache_*       the registration cache: monitor of system memory (\"\": this machine's default), limits, and "
          "the\n"
          "              interfaces whose memory is not kept.")
      .def_prop_ro("engine", [](PyNic& n) { return box_of(n)->host->config().engine_thread ? "thread" : "manual"; })
      .def_prop_ro("isolation", [](PyNic& n) { return box_of(n)->host->config().shm.strict ? "strict" : "shared"; })
      .def(
          "progress",
          [](PyNic& n) {
            auto box = box_of(n);
            const ReleasedGil released;
            return box->host->nic().progress();
          },
          "Does what waits to be done: frames, connections, operations. Returns how much it was.")
      .def(
          "statistics",
          [](PyNic& n) {
            const nic::NicStatistics s = box_of(n)->host->nic().statistics();
            nb::dict d;
            d["direct_ops"] = s.direct_ops;
            d["cma_ops"] = s.cma_ops;
            d["framed_ops"] = s.framed_ops;
            d["failed_ops"] = s.failed_ops;
            d["bytes"] = s.bytes;
            d["frames_served"] = s.frames_served;
            d["engine_wakes"] = s.engine_wakes;
            d["peers"] = s.peers;
            d["regions"] = s.regions;
            d["allocated_bytes"] = s.allocated_bytes;
            d["resting_bytes"] = s.resting_bytes;
            return d;
          },
          nb::sig("def statistics(self) -> dict[str, int]"),
          "Counts since the NIC was made: operations by path (direct, cma, framed), failures, bytes, frames served "
          "for\n"
          "peers, engine wakes; and how many peers, regions and allocated bytes there are now.")
      .def(
          "missing_page",
          [](PyNic& n, uint64_t address, uint64_t length) {
            auto box = box_of(n);
            const ReleasedGil released;
            return box->host->nic().missing_page(address, length);
          },
          nb::arg("address"), nb::arg("length"),
          "The first page of [address, address + length) that the kernel does not read for another process, or None.")
      .def(
          "hmem_load",
          [](PyNic& n, uint32_t iface, const std::string& library) -> std::optional<std::string> {
            mem::Devices& devices = box_of(n)->host->nic().devices();
            if (devices.runtime(iface) != nullptr) return std::nullopt;
            std::string why;
            std::unique_ptr<mem::DeviceRuntime> runtime;
            {
              const ReleasedGil released;
              if (iface == 1) runtime = mem::load_cuda(library, &why);
              if (iface == 2) runtime = mem::load_rocr(library, &why);
            }
            if (!runtime) return why.empty() ? "this release has no data path to that interface" : why;
            devices.add(std::move(runtime));
            if (mem::RegistrationCache* cache = box_of(n)->host->nic().cache()) {
              cache->set_monitor(iface, mem::make_device_monitor(devices, iface));
            }
            return std::nullopt;
          },
          nb::arg("iface"), nb::arg("library"),
          "Loads the runtime of a device interface (1 CUDA, 2 ROCR); returns None, or why it cannot be used.")
      .def(
          "hmem_devices",
          [](PyNic& n, uint32_t iface) -> std::optional<uint64_t> {
            mem::DeviceRuntime* r = box_of(n)->host->nic().devices().runtime(iface);
            return r == nullptr ? std::nullopt : std::optional(r->device_count());
          },
          nb::arg("iface"), "How many devices of a loaded interface there are; None where it is not loaded.")
      .def(
          "hmem_find",
          [](PyNic& n, uint64_t address) -> nb::object {
            const auto found = box_of(n)->host->nic().devices().find(address);
            if (!found) return nb::none();
            constexpr const char* kKinds[] = {"device", "managed", "host"};
            return nb::make_tuple(found->iface, kKinds[static_cast<int>(found->kind)], found->device, found->base,
                                  found->length);
          },
          nb::arg("address"), nb::sig("def hmem_find(self, address: int) -> tuple[int, str, int, int, int] | None"),
          "(iface, kind, device, base, length) of the allocation at an address, as the loaded runtimes know it.")
      .def(
          "hmem_copy",
          [](PyNic& n, uint64_t to, uint64_t from, uint64_t length) {
            auto box = box_of(n);
            Status status;
            {
              const ReleasedGil released;
              const mem::Devices& devices = box->host->nic().devices();
              status = devices.copy({reinterpret_cast<void*>(to), devices.find(to).has_value()},
                                    {reinterpret_cast<void*>(from), devices.find(from).has_value()}, length);
            }
            if (status != Status::ok) raise(fi_errno(status), "the device's runtime could not copy");
          },
          nb::arg("to"), nb::arg("from_"), nb::arg("length"), "Copies bytes, either side of which may be a device's.")
      .def(
          "hmem_p2p", [](PyNic& n, bool on) { box_of(n)->host->nic().devices().set_p2p(on); }, nb::arg("on"),
          "Whether peers open each other's device memory, or its owner copies (FI_HMEM_DISABLE_P2P).")
      .def(
          "hmem_alloc",
          [](PyNic& n, uint32_t iface, uint64_t nbytes, bool managed) {
            mem::DeviceRuntime* r = box_of(n)->host->nic().devices().runtime(iface);
            if (r == nullptr) raise(fi_err::kENOSYS, "that interface's runtime is not loaded");
            std::string why;
            const uint64_t address = r->allocate(nbytes, managed, &why);
            if (address == 0) {
              raise(fi_err::kENOMEM, std::to_string(nbytes) + " B of device memory cannot be allocated: " + why);
            }
            return address;
          },
          nb::arg("iface"), nb::arg("nbytes"), nb::arg("managed") = false,
          "Memory of the first device; hmem_free gives it back. Raises FabricError (ENOMEM, ENOSYS).")
      .def(
          "hmem_free",
          [](PyNic& n, uint32_t iface, uint64_t address) {
            if (mem::DeviceRuntime* r = box_of(n)->host->nic().devices().runtime(iface)) r->release(address);
          },
          nb::arg("iface"), nb::arg("address"))
      .def(
          "hmem_dmabuf",
          [](PyNic& n, uint32_t iface, uint64_t address, uint64_t length) {
            mem::DeviceRuntime* r = box_of(n)->host->nic().devices().runtime(iface);
            if (r == nullptr) raise(fi_err::kENOSYS, "that interface's runtime is not loaded");
            std::string why;
            const int fd = r->export_dmabuf(address, length, &why);
            if (fd < 0) raise(fi_err::kEOPNOTSUPP, "no DMA-buf of this memory: " + why);
            return fd;
          },
          nb::arg("iface"), nb::arg("address"), nb::arg("length"),
          "A DMA-buf descriptor of device memory, the caller's to close.")
      .def(
          "peers",
          [](PyNic& n) {
            nb::list out;
            for (link::Link* link : box_of(n)->host->nic().links()) {
              for (const auto& p : link->peers()) {
                nb::dict d;
                d["pid"] = p->process_id;
                d["same_process"] = p->same_process;
                d["peer"] = p->describe();
                d["path"] = p->link() == &box_of(n)->host->tcp() ? "tcp"
                            : !p->table.valid()                  ? "frames"
                            : p->cma                             ? "direct+cma"
                                                                 : "direct";
                d["dead"] = p->dead();
                d["cma_reason"] = p->cma_reason;
                out.append(d);
              }
            }
            return out;
          },
          nb::sig("def peers(self) -> list[dict[str, object]]"),
          "The processes that this NIC is connected to: pid, path (direct+cma, direct, frames or tcp), dead, and why "
          "cma is "
          "off.")
      .def(
          "alloc",
          [](PyNic& n, size_t nbytes, uint64_t address, bool fixed, bool fresh) {
            auto box = box_of(n);
            mem::SegmentSet& segments = box->host->nic().segments();
            std::byte* p = nullptr;
            translating([&] {
              if (address != 0) p = segments.allocate_at(reinterpret_cast<std::byte*>(address), nbytes, fixed);
              if (p == nullptr && !fixed) p = segments.allocate(nbytes);
            });
            if (p == nullptr) {
              char text[64];
              std::snprintf(text, sizeof(text),
                            "%llu B cannot be mapped at 0x%llx: ", static_cast<unsigned long long>(nbytes),
                            static_cast<unsigned long long>(address));
              raise(fi_err::kENOMEM,
                    text + std::string("it is no address of this process's, or memory of Weft lies there"));
            }
            if (fresh) segments.discard(p);
            auto a = std::make_unique<Allocation>();
            a->box = box;
            a->address = p;
            a->nbytes = nbytes;
            return a;
          },
          nb::arg("nbytes"), nb::kw_only(), nb::arg("address") = 0, nb::arg("fixed") = false, nb::arg("fresh") = false,
          "Memory that peers reach by load and store. Raises FabricError (ENOMEM).\n\n"
          "address  a page where it should lie, if nothing is mapped there; with `fixed` it lies there, and what was\n"
          "         mapped is gone.\n"
          "fresh    it reads as zero, and no page of it is there yet.")
      .def(
          "region_in",
          [](PyNic& n, uint64_t address, uint64_t nbytes) -> nb::object {
            for (const DomainBox* domain : box_of(n)->domains) {
              for (const MemoryRegionCore* r = domain->regions; r != nullptr; r = r->next) {
                if (r->region->closed()) continue;
                for (const mem::MrBuffer& b : r->region->buffers()) {
                  if (b.local_addr < address + nbytes && address < b.local_addr + b.length)
                    return nb::make_tuple(b.local_addr, b.length);
                }
              }
            }
            return nb::none();
          },
          nb::arg("address"), nb::arg("nbytes"),
          nb::sig("def region_in(self, address: int, nbytes: int) -> tuple[int, int] | None"),
          "(address, length) of an open region's buffer that lies in these addresses, or None.")
      .def(
          "close",
          [](PyNic& n) {
            if (!n.box) return;
            if (n.box->fork_generation == g_fork_generation) {
              const ReleasedGil released;
              n.box->host->nic().stop_engine();
            }
            n.box.reset();
          },
          "Stops the engine. Objects made on the NIC keep their memory until they are closed.");

  register_tcp(m, nic_class);

  // ---- Domain
  nb::class_<DomainCore>(m, "DomainCore", nb::type_slots(g_domain_slots), "The NIC's side of a domain.")
      .def(
          "__init__",
          [](DomainCore* self, PyNic& nic, uint32_t nic_index, bool prov_key, bool virt_addr, bool mr_local,
             bool rm_enabled, bool hmem, bool mr_hmem, bool mr_allocated, bool desc_ignored, bool raw_keys,
             int empty_region_errno, const std::vector<std::pair<int32_t, int32_t>>& statuses) {
            new (self) DomainCore(make_domain(nic, {nic_index, prov_key, virt_addr, raw_keys, status_map(statuses)}));
            self->box->empty_region_errno = empty_region_errno;
            self->box->mr_local = mr_local;
            self->box->may_overrun = !rm_enabled;
            self->box->hmem = hmem;
            self->box->mr_hmem = mr_hmem;
            self->box->mr_allocated = mr_allocated;
            self->box->desc_ignored = desc_ignored;
          },
          nb::arg("nic"), nb::kw_only(), nb::arg("nic_index") = 0, nb::arg("prov_key") = false,
          nb::arg("virt_addr") = false, nb::arg("mr_local") = false, nb::arg("rm_enabled") = true,
          nb::arg("hmem") = false, nb::arg("mr_hmem") = false, nb::arg("mr_allocated") = false,
          nb::arg("desc_ignored") = false, nb::arg("raw_keys") = false, nb::arg("empty_region_errno") = fi_err::kEINVAL,
          nb::arg("statuses") = std::vector<std::pair<int32_t, int32_t>>{},
          "empty_region_errno  what a region of 0 bytes is refused with; 0: such regions are made.\n"
          "statuses            by Status, (err, prov_errno) of operations that end so; empty: the man pages' codes "
          "and\n"
          "                    the statuses themselves.")
      .def(
          "map_key", [](DomainCore& d, uint64_t key) { return box_of(d)->domain->map_raw(key); }, nb::arg("key"),
          "A handle by which transfers of a domain with raw keys name a peer's key.")
      .def(
          "unmap_handle", [](DomainCore& d, uint64_t handle) { return box_of(d)->domain->unmap_raw(handle); },
          nb::arg("handle"), "Gives a handle back; False for one that is none.")
      .def(
          "set_mr_plain", [](DomainCore& d, bool plain, uint64_t access) { d.mr_plain = plain, d.mr_access = access; },
          nb::arg("plain"), nb::arg("access"),
          "plain: mr_reg without flags needs no Python. access: the bits that exist; others are left to _mr_reg.")
      .def(
          "regions",
          [](DomainCore& d) {
            nb::list out;
            if (!d.box || d.box->forked()) return out;
            for (MemoryRegionCore* r = d.box->regions; r != nullptr; r = r->next) out.append(nb::borrow(r->self));
            return out;
          },
          nb::sig("def regions(self) -> list[Any]"), "The open regions.")
      .def("close", [](DomainCore& d) {
        if (!d.box || d.box->closed || d.box->forked()) return;
        d.box->drain();
        d.box->closed = true;
      });

  // ---- CmQueue
  nb::class_<CmQueueCore>(m, "CmQueue", "Where endpoints find what others tell them to connect.")
      .def(
          "__init__",
          [](CmQueueCore* self, PyNic& nic, int fd) {
            auto& box = box_of(nic);
            auto notifier = std::make_shared<host::FdNotifier>(fd);
            new (self) CmQueueCore{box, std::make_shared<nic::CmQueue>(notifier), notifier};
          },
          nb::arg("nic"), nb::arg("fd"), "fd  an eventfd that is written to when something came.")
      .def(
          "pop",
          [](CmQueueCore& q) -> nb::object {
            const auto e = q.queue->pop();
            if (!e) return nb::none();
            return nb::make_tuple(e->token, static_cast<uint32_t>(e->kind), static_cast<uint32_t>(e->what),
                                  nb::make_tuple(e->source.nic, e->source.pid, e->source.vni), e->connection, e->status,
                                  nb::bytes(reinterpret_cast<const char*>(e->data.data()), e->data.size()));
          },
          nb::sig("def pop(self) -> tuple[int, int, int, tuple[int, int, int], int, Status, bytes] | None"),
          "(token, kind, what, source, connection, status, data), oldest first; None when there is nothing.")
      .def("unread", [](const CmQueueCore& q) { return q.queue->unread(); })
      .def("close", [](CmQueueCore& q) { q.notifier->forget(); }, "Rings no more: the descriptor may be closed.");

  // ---- AddressVector
  nb::class_<AddressVectorCore>(m, "AddressVectorCore", "The NIC's side of an address vector.")
      .def(
          "__init__",
          [](AddressVectorCore* self, DomainCore& d) {
            auto& box = box_of(d);
            new (self) AddressVectorCore{box, std::make_shared<nic::AddressVector>(box->domain.get())};
          },
          nb::arg("domain"))
      .def(
          "insert_address",
          [](AddressVectorCore& a, uint32_t nic, uint32_t pid, uint16_t vni) {
            check_usable(a, "address vector");
            return a.av->insert({nic, pid, vni, 0});
          },
          nb::arg("nic"), nb::arg("pid"), nb::arg("vni"),
          "Enters an address; returns its fi_addr, the same if it is there.")
      .def(
          "remove_address",
          [](AddressVectorCore& a, uint64_t fi_addr) {
            check_usable(a, "address vector");
            if (!a.av->remove(fi_addr))
              raise(fi_err::kEINVAL, "fi_addr " + std::to_string(fi_addr) + " is not in the address vector");
          },
          nb::arg("fi_addr"))
      .def(
          "lookup_address",
          [](AddressVectorCore& a, uint64_t fi_addr) {
            check_usable(a, "address vector");
            const auto found = a.av->lookup(fi_addr);
            if (!found) raise(fi_err::kEINVAL, "fi_addr " + std::to_string(fi_addr) + " is not in the address vector");
            return nb::make_tuple(found->nic, found->pid, found->vni);
          },
          nb::arg("fi_addr"), nb::sig("def lookup_address(self, fi_addr: int) -> tuple[int, int, int]"))
      .def("count", [](AddressVectorCore& a) { return a.av->count(); })
      .def("close", [](AddressVectorCore& a) { a.closed = true; });

  // ---- CompletionQueue
  nb::class_<CompletionQueueCore> cq(m, "CompletionQueueCore", nb::type_slots(g_cq_slots),
                                     "The NIC's side of a completion queue.");
  cq.def(
        "__init__",
        [](CompletionQueueCore* self, DomainCore& d, uint32_t size, int format, int wait_obj) {
          auto& box = box_of(d);
          auto queue = std::make_shared<nic::CompletionQueue>(std::max<uint32_t>(size, 1), box->may_overrun);
          std::shared_ptr<host::EventfdNotifier> notifier;
          if (wait_obj == kWaitFd) {
            notifier = translating([] { return std::make_shared<host::EventfdNotifier>(); });
            queue->event.set_notifier(notifier);
          }
          new (self) CompletionQueueCore{box, std::move(queue), std::move(notifier), format, false, {}};
        },
        nb::arg("domain"), nb::kw_only(), nb::arg("size"), nb::arg("format"), nb::arg("wait_obj"))
      .def_prop_ro(
          "fd", [](const CompletionQueueCore& c) { return c.notifier ? c.notifier->fd() : -1; },
          "A descriptor that is readable while entries may be unread (wait_obj FD), or -1.")
      .def_prop_ro(
          "capacity", [](const CompletionQueueCore& c) { return c.cq->capacity(); }, "Entries that it holds.")
      .def(
          "pending",
          [](CompletionQueueCore& c) {
            check_usable(c, "completion queue");
            const nic::DomainLock guard(c.box->domain.get());
            return c.cq->unread();
          },
          "Entries that nobody has read yet.")
      .def(
          "readerr",
          [](CompletionQueueCore& c, nb::handle flags) {
            (void)number_of(flags, "cq.readerr", "flags");
            check_usable(c, "completion queue");
            nic::CqEntry e;
            nic::CqError error;
            bool found;
            {
              const nic::DomainLock guard(c.box->domain.get());
              found = c.cq->read_error(&e, &error);
              if (c.notifier && c.cq->unread() == 0) c.notifier->drain();
            }
            if (!found) raise(fi_err::kEAGAIN, "no failed operation is at the head of the completion queue");
            auto* type = reinterpret_cast<PyTypeObject*>(g_entry_types[4]);
            PyObject* t = type->tp_alloc(type, 12);
            if (t == nullptr) throw nb::python_error();
            PyTuple_SET_ITEM(t, 0, e.context != 0 ? reinterpret_cast<PyObject*>(e.context) : none_or(nullptr));
            PyTuple_SET_ITEM(t, 1, number(e.flags));
            PyTuple_SET_ITEM(t, 2, number(e.len));
            PyTuple_SET_ITEM(t, 3, number(e.buf));
            PyTuple_SET_ITEM(t, 4, number(e.data));
            PyTuple_SET_ITEM(t, 5, number(e.tag));
            PyTuple_SET_ITEM(t, 6, number(error.olen));
            PyTuple_SET_ITEM(t, 7, PyLong_FromLong(error.err));
            PyTuple_SET_ITEM(t, 8, PyLong_FromLong(error.prov_errno));
            PyTuple_SET_ITEM(t, 9,
                             PyBytes_FromStringAndSize(error.text.data(), static_cast<Py_ssize_t>(error.text.size())));
            PyTuple_SET_ITEM(t, 10, number(e.source));
            PyTuple_SET_ITEM(t, 11, nb::cast(error.status).release().ptr());
            return nb::steal(t);
          },
          nb::arg("flags").none() = 0, nb::sig("def readerr(self, flags: int = 0) -> Any"),
          "Takes the failed operation at the head (fi_cq_readerr): a CqErrEntry whose err_data says in words what was "
          "asked\n"
          "and what was found. Raises Again when there is none. Source: fi_cq(3) fi_cq_readerr.")
      .def(
          "signal",
          [](CompletionQueueCore& c) {
            check_usable(c, "completion queue");
            c.cq->signaled.store(true, std::memory_order_seq_cst);
            c.cq->event.tell();
            c.box->domain->nic()->waiter().wake();
          },
          "Ends one waiting sread (fi_cq_signal). Source: fi_cq(3) fi_cq_signal.")
      .def(
          "trywait",
          [](CompletionQueueCore& c) {
            check_usable(c, "completion queue");
            {
              const nic::DomainLock guard(c.box->domain.get());
              if (c.cq->unread() != 0) return false;
            }
            c.box->domain->nic()->prepare_app_sleep();
            const nic::DomainLock guard(c.box->domain.get());
            return c.cq->unread() == 0;
          },
          "True when the fd may be waited on; False when entries are unread (fi_trywait). Source: fi_poll(3) "
          "fi_trywait.")
      .def("close", [](CompletionQueueCore& c) {
        c.closed = true;
        if (!c.box->forked()) c.cq->event.tell();  // who waits for it in another thread is told that it is closed
      });

  // ---- Counter
  nb::class_<CounterCore> cntr(m, "CounterCore", nb::type_slots(g_cntr_slots), "The NIC's side of a counter.");
  cntr.def(
          "__init__",
          [](CounterCore* self, DomainCore& d, int events, int wait_obj) {
            auto& box = box_of(d);
            auto counter = std::make_shared<nic::Counter>();
            counter->counts_bytes = events == 1;
            std::shared_ptr<host::EventfdNotifier> notifier;
            if (wait_obj == kWaitFd) {
              notifier = translating([] { return std::make_shared<host::EventfdNotifier>(); });
              counter->event.set_notifier(notifier);
            }
            new (self) CounterCore{box, std::move(counter), std::move(notifier), false, {}};
          },
          nb::arg("domain"), nb::kw_only(), nb::arg("events") = 0, nb::arg("wait_obj") = 1)
      .def_prop_ro(
          "fd", [](const CounterCore& c) { return c.notifier ? c.notifier->fd() : -1; },
          "A descriptor that becomes readable when the counter changes (wait_obj FD), or -1.")
      .def(
          "readerr",
          [](CounterCore& c) {
            check_usable(c, "counter");
            c.box->domain->nic()->poll_from_app();
            return c.counter->errors();
          },
          "The number of failed events so far (fi_cntr_readerr).")
      .def(
          "add",
          [](CounterCore& c, nb::handle value) {
            check_usable(c, "counter");
            c.counter->add(number_of(value, "cntr.add", "value"));
          },
          nb::arg("value").none(), nb::sig("def add(self, value: int) -> None"), "Adds to the value (fi_cntr_add).")
      .def(
          "set",
          [](CounterCore& c, nb::handle value) {
            check_usable(c, "counter");
            c.counter->set(number_of(value, "cntr.set", "value"));
          },
          nb::arg("value").none(), nb::sig("def set(self, value: int) -> None"), "Sets the value (fi_cntr_set).")
      .def(
          "adderr",
          [](CounterCore& c, nb::handle value) {
            check_usable(c, "counter");
            c.counter->add_errors(number_of(value, "cntr.adderr", "value"));
          },
          nb::arg("value").none(), nb::sig("def adderr(self, value: int) -> None"),
          "Adds to the error value (fi_cntr_adderr).")
      .def(
          "seterr",
          [](CounterCore& c, nb::handle value) {
            check_usable(c, "counter");
            c.counter->set_errors(number_of(value, "cntr.seterr", "value"));
          },
          nb::arg("value").none(), nb::sig("def seterr(self, value: int) -> None"),
          "Sets the error value (fi_cntr_seterr).")
      .def("close", [](CounterCore& c) {
        c.closed = true;
        if (!c.box->forked()) c.counter->event.tell();
      });

  // ---- MemoryRegion
  nb::class_<MrSlice> slice(m, "MrSlice", nb::type_slots(g_slice_slots), nb::pooled(),
                            "Bytes of a registered region: the local buffer that is quickest to use.");
  slice.def_prop_ro(
           "address", [](const MrSlice& s) { return reinterpret_cast<uint64_t>(s.data); }, "Virtual address.")
      .def("__repr__", [](const MrSlice& s) {
        char text[96];
        std::snprintf(text, sizeof(text), "<MrSlice 0x%llx, %zu B>",
                      static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(s.data)), s.length);
        return std::string(text);
      });
  g_mr_slice_type = reinterpret_cast<PyTypeObject*>(slice.ptr());

  nb::class_<MemoryRegionCore> mr(m, "MemoryRegionCore", nb::type_slots(g_region_slots), "The NIC's side of a region.");
  mr.def(
        "__init__",
        [](MemoryRegionCore* self, DomainCore& d, nb::handle buffers, uint64_t access, uint64_t requested_key,
           uint64_t flags, nb::handle context, bool enabled, bool owned, bool unowned, bool by_owner,
           std::optional<uint64_t> base, const std::vector<uint16_t>& vnis,
           std::optional<std::tuple<uint32_t, uint32_t, uint16_t>> source) {
          (void)context;
          const uint32_t kind = ((flags & nic::flag::kMrSingleUse) != 0 ? mem::kMrSingleUse : 0) |
                                ((flags & nic::flag::kRmaPmem) != 0 ? mem::kMrPersistent : 0) |
                                (by_owner ? mem::kMrByOwner : 0);
          mem::AccessGuard guard;
          guard.vni_count = static_cast<uint32_t>(vnis.size());
          if (vnis.size() > guard.vnis.size()) {
            raise(fi_err::kENOSPC, std::to_string(vnis.size()) + " authorization keys; a region takes at most " +
                                       std::to_string(guard.vnis.size()));
          }
          std::ranges::copy(vnis, guard.vnis.begin());
          if (source) {
            guard.has_source = 1;
            guard.source = {std::get<0>(*source), std::get<1>(*source), std::get<2>(*source), 0};
            // Frames of this host's processes carry the name that this host knows.
            if (const auto here = box_of(d)->domain->nic()->local_name(guard.source)) guard.source = *here;
          }
          nic::RegionExtra extra;
          extra.base = base;
          if (source || !vnis.empty()) extra.guard = &guard;
          auto& box = box_of(d);
          box->drain();
          std::vector<PyObject*> list;
          for (nb::handle h : nb::iter(buffers)) list.push_back(h.ptr());
          const RegionKeep held(list);
          if (!make_region(self, box, list, access, requested_key, owned, enabled, kind, extra, unowned)) {
            throw nb::python_error();
          }
        },
        nb::arg("domain"), nb::arg("buffers"), nb::kw_only(), nb::arg("access"), nb::arg("requested_key") = 0,
        nb::arg("flags") = 0, nb::arg("context").none() = nb::none(), nb::arg("enabled") = true,
        nb::arg("owned") = false, nb::arg("unowned") = false, nb::arg("by_owner") = false, nb::arg("base") = nb::none(),
        nb::arg("vnis") = std::vector<uint16_t>{}, nb::arg("source") = nb::none(),
        nb::sig(
            "def __init__(self, domain: DomainCore, buffers: Iterable[object], *, access: int, requested_key: int = 0, "
            "flags: int = 0, context: object = None, enabled: bool = True, owned: bool = False, unowned: bool = False, "
            "by_owner: bool = "
            "False, base: int | None = None, vnis: Sequence[int] = (), source: tuple[int, int, int] | None = None) -> "
            "None"),
        "owned     somebody else keeps the memory of (address, length) pairs where it is.\n"
        "unowned   pages of the memory may go missing, whoever keeps it.\n"
        "by_owner  the kernel reads it for no other process: this process's engine copies.\n"
        "base      address of the first byte under virtual addressing, where it is not the buffer's own.\n"
        "vnis, source  whom the region admits: initiators of these VNIs, only this endpoint (nic, pid, vni).")
      .def_prop_ro(
          "key", [](const MemoryRegionCore& r) { return r.region->key(); }, "The remote key, or KEY_NOTAVAIL.")
      .def_prop_ro(
          "desc", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def desc(self) -> object"),
          "Local descriptor, for the desc argument of data transfers (fi_mr_desc).")
      .def_prop_ro(
          "length", [](const MemoryRegionCore& r) { return r.length; }, "Bytes.")
      .def_prop_ro(
          "address",
          [](const MemoryRegionCore& r) {
            return r.region->buffers().empty() ? uint64_t{0} : r.region->buffers()[0].local_addr;
          },
          "Virtual address of the first byte.")
      .def_prop_ro(
          "base", [](const MemoryRegionCore& r) { return r.region->base(); },
          "What remote accesses call the first byte: 0, or a virtual address.")
      .def_prop_ro(
          "access", [](const MemoryRegionCore& r) { return r.region->access(); }, "Access bits.")
      .def_prop_ro(
          "iface", [](const MemoryRegionCore& r) { return r.iface; },
          "Whose memory it is (enum fi_hmem_iface): 0 for the host's.")
      .def_prop_ro(
          "device", [](const MemoryRegionCore& r) { return r.device; },
          "Number of the device; 0 for the host's memory.")
      .def_prop_ro(
          "state",
          [](const MemoryRegionCore& r) {
            return r.region->closed()    ? "closed"
                   : r.region->used_up() ? "used up"
                   : r.region->enabled() ? "enabled"
                                         : "disabled";
          },
          "disabled, enabled, used up (MR_SINGLE_USE) or closed.")
      .def_ro("readonly", &MemoryRegionCore::readonly, "True where its buffer may not be written to.")
      .def_prop_ro(
          "direct",
          [](const MemoryRegionCore& r) {
            return !r.region->buffers().empty() && std::ranges::all_of(r.region->buffers(), [&](const auto& b) {
              return b.segment != mem::kNoSegment && r.iface == mem::kHmemSystem;
            });
          },
          "True when peers reach it by load and store: its memory was allocated by Weft.")
      .def(
          "bind_ep",
          [](MemoryRegionCore& r, EndpointCore& ep) { translating([&] { r.region->bind_endpoint(*ep.ep); }); },
          nb::arg("ep"))
      .def(
          "bind_cntr",
          [](MemoryRegionCore& r, CounterCore& c, uint64_t flags) {
            translating([&] { r.box->domain->bind_region_counter(r.region, c.counter, flags); });
          },
          nb::arg("cntr"), nb::arg("flags"))
      .def("enable", [](MemoryRegionCore& r) { translating([&] { r.region->enable(); }); })
      .def(
          "disable_core",
          [](MemoryRegionCore& r) {
            std::string why;
            bool done = false;
            translating([&] {
              const ReleasedGil released;
              done = r.region->disable(&why);
            });
            if (!done) raise(fi_err::kEBUSY, "the region cannot be disabled: " + why + "; try again later");
          },
          "Takes access away until enable(); returns when no access is under way.")
      .def(
          "missing_page",
          [](MemoryRegionCore& r, uint64_t address, uint64_t length) {
            const ReleasedGil released;
            return r.box->nic->host->nic().missing_page(address, length);
          },
          nb::arg("address"), nb::arg("length"),
          nb::sig("def missing_page(self, address: int, length: int) -> int | None"),
          "The first page of [address, address + length) that is not there.")
      .def("close_core", [](MemoryRegionCore& r) {
        if (!close_region(r)) throw nb::python_error();
      });
  g_mr_type = reinterpret_cast<PyTypeObject*>(mr.ptr());

  m.def(
      "atomic_valid",
      [](uint32_t datatype, uint32_t op, uint32_t family) {
        const auto d = static_cast<nic::Datatype>(datatype);
        const size_t size = datatype < nic::kDatatypeCount ? nic::datatype_size(d) : 0;
        const bool ok = size != 0 && op < nic::kAtomicOpCount && family <= 2 &&
                        nic::atomic_valid(d, static_cast<nic::AtomicOp>(op), static_cast<nic::AtomicFamily>(family));
        return nb::make_tuple(ok ? nic::Limits{}.atomic_bytes_max / size : 0, size);
      },
      nb::arg("datatype"), nb::arg("op"), nb::arg("family"),
      nb::sig("def atomic_valid(datatype: int, op: int, family: int) -> tuple[int, int]"),
      "(elements that one call may hold, bytes of an element); (0, size) where the pair does not exist.");
}

}  // namespace weft::bind
