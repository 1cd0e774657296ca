// cpp/bind/ofi_cq.cpp: completion queues of a real libfabric.
//
// HOT: read. It asks the library once, and finds the operation of each entry by the address of its context.
// Benchmark: bench/bench_ofi.py.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>

#include "bind/ofi_plain.hpp"
#include "bind/ofi_queue.hpp"
#include "bind/signatures.hpp"
#include "bind/wait.hpp"

namespace weft::bind {

namespace {

constexpr size_t kReadMax = 64;            // entries that one call of the library returns
constexpr uint64_t kMultiRecv = 1u << 16;  // FI_MULTI_RECV
PyObject* g_ofi_entry_types[5] = {};       // context, msg, data, tagged, error

OfiCq* cq_of(PyObject* self, const char* call) {
  OfiCq* cq = nb::inst_ptr<OfiCore<OfiCq>>(self)->box.get();
  if (cq == nullptr || cq->h.fid == nullptr || cq->h.closing) {
    set_error(fi_err::kEOPBADSTATE, std::string(call) + ": the completion queue is closed");
    return nullptr;
  }
  if (cq->h.forked()) {
    set_error(fi_err::kEOPBADSTATE,
              std::string(call) +
                  ": this completion queue belongs to the parent process: a forked child opens its own "
                  "fabric");
    return nullptr;
  }
  return ofi_all_enabled(cq->h, call) ? cq : nullptr;
}

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
  if (slot->multi && !failed && (e.flags & kMultiRecv) == 0) {  // the buffer stays posted
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

// The number of an entry's flags, mostly equal to the flags of the entry before.
PyObject* flags_number(uint64_t flags) {
  static uint64_t seen = 0;
  static PyObject* object = nullptr;
  if (object == nullptr || seen != flags) {
    PyObject* made = number(flags);
    if (made == nullptr) return nullptr;
    Py_XSETREF(object, made);
    seen = flags;
  }
  return Py_NewRef(object);
}

PyObject* make_entry(int format, const ofi::CqEntry& e, PyObject* context) {
  static constexpr Py_ssize_t kFields[] = {1, 1, 3, 5, 6};
  auto* type = reinterpret_cast<PyTypeObject*>(g_ofi_entry_types[format - 1]);
  PyObject* t = type->tp_alloc(type, kFields[format]);
  if (context == nullptr) context = Py_NewRef(Py_None);
  if (t == nullptr) {
    Py_DECREF(context);
    return nullptr;
  }
  PyTuple_SET_ITEM(t, 0, context);
  if (format >= 2) {
    PyTuple_SET_ITEM(t, 1, flags_number(e.flags));
    PyTuple_SET_ITEM(t, 2, number(e.len));
  }
  if (format >= 3) {
    PyTuple_SET_ITEM(t, 3, number(reinterpret_cast<uint64_t>(e.buf)));
    PyTuple_SET_ITEM(t, 4, number(e.data));
  }
  if (format >= 4) PyTuple_SET_ITEM(t, 5, number(e.tag));
  return t;
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

// The result of read() or readfrom() for an entry. Steals the context.
PyObject* shown(const OfiCq& cq, const ofi::CqEntry& e, PyObject* context, ofi::Addr source, bool from) {
  PyObject* entry = make_entry(cq.format, e, context);
  if (!from || entry == nullptr) return entry;
  PyObject* n = number(source);
  PyObject* pair = n == nullptr ? nullptr : PyTuple_Pack(2, entry, n);
  Py_XDECREF(n);
  Py_DECREF(entry);
  return pair;
}
bool append(PyObject* list, const OfiCq& cq, const ofi::CqEntry& e, PyObject* context, ofi::Addr source, bool from) {
  PyObject* entry = shown(cq, e, context, source, from);
  if (entry == nullptr) return false;
  const bool ok = PyList_Append(list, entry) == 0;
  Py_DECREF(entry);
  return ok;
}

// Moves the library's entries into the list. 0, or the library's error.
ssize_t move_entries(OfiCq& cq, PyObject* list, size_t count, bool from, bool* broken) {
  while (static_cast<size_t>(PyList_GET_SIZE(list)) < count) {
    if (!cq.side.empty()) {
      const OfiCq::Entry first = cq.side.front();
      cq.side.pop_front();
      if (!append(list, cq, first.e, first.context, first.source, from)) *broken = true;
      if (*broken) return 0;
      continue;
    }
    Raw raw;
    const size_t room = std::min(count - static_cast<size_t>(PyList_GET_SIZE(list)), kReadMax);
    ssize_t n = 0;
    {
      const OfiReleased released(&cq.h, cq.large > 0 && cq.domain->thread_safe);  // the library may copy for long
      n = ask(cq, &raw, room, from, nullptr, 0);
    }
    if (n <= 0) return n == -fi_err::kEAGAIN ? 0 : n;
    for (ssize_t i = 0; i < n; ++i) {
      const ofi::CqEntry e = raw.at(static_cast<size_t>(i), cq.format);
      PyObject* context = nullptr;
      if (take_over(cq, e, false, &context) && (*broken || !append(list, cq, e, context, raw.sources[i], from))) {
        *broken = true;
      }
    }
    if (*broken || static_cast<size_t>(n) < room) return 0;
  }
  return 0;
}

PyObject* refuse_read(const char* call, ssize_t code) {
  if (code == -fi_err::kEAVAIL) {
    set_error(fi_err::kEAVAIL,
              "an operation failed: its entry is at the head of the completion queue; read it with readerr()");
  } else if (code == -fi_err::kENOSYS) {
    (void)ofi_missing(call);
  } else {
    ofi_set_error(call, code);
  }
  return nullptr;
}

// HOT. Asks the library once. The entries become a list at the end: ending an operation may run Python code.
PyObject* read_once(OfiCq& cq, const char* call, size_t count, bool from) {
  Raw raw;
  const ssize_t n = ask(cq, &raw, count, from, nullptr, 0);
  if (n <= 0) return n == 0 || n == -fi_err::kEAGAIN ? PyList_New(0) : refuse_read(call, n);
  std::array<PyObject*, kReadMax> made;
  bool broken = false;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    const ofi::CqEntry e = raw.at(i, cq.format);
    PyObject* context = nullptr;
    (void)take_over(cq, e, false, &context);
    made[i] = shown(cq, e, context, raw.sources[i], from);
    broken = broken || made[i] == nullptr;
  }
  PyObject* list = broken ? nullptr : PyList_New(n);
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    if (list != nullptr) {
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), made[i]);
    } else {
      Py_XDECREF(made[i]);
    }
  }
  return list;
}

PyObject* read_now(OfiCq& cq, const char* call, size_t count, bool from) {
  if (cq.side.empty() && cq.silent == 0 && cq.large == 0 && count - 1 < kReadMax) [[likely]]
    return read_once(cq, call, count, from);
  PyObject* list = PyList_New(0);
  if (list == nullptr) return nullptr;
  if (count == 0) ofi_progress(cq);
  bool broken = false;
  const ssize_t r = move_entries(cq, list, count, from, &broken);
  if (broken || (r < 0 && PyList_GET_SIZE(list) == 0)) {
    Py_DECREF(list);
    return broken ? nullptr : refuse_read(call, r);
  }
  return list;
}

Signature g_read{"read", {"count"}, 1, 0, {}};
Signature g_readfrom{"readfrom", {"count"}, 1, 0, {}};
Signature g_sread{"sread", {"count", "cond", "timeout"}, 3, 0, {}};
Signature g_sreadfrom{"sreadfrom", {"count", "cond", "timeout"}, 3, 0, {}};

bool count_of(const char* call, PyObject* given, uint64_t* count) {
  *count = kReadMax;
  return given == nullptr || to_u64(given, count, call, "count");
}

PyObject* read_call(PyObject* self, Signature& s, bool from, PyObject* const* args, Py_ssize_t nargs,
                    PyObject* kwnames) {
  uint64_t count = 0;
  if (kwnames != nullptr || nargs != 1 || !plain_number(args[0], &count)) {
    PyObject* a[1];
    if (!parse(s, args, nargs, kwnames, a) || !count_of(s.method, a[0], &count)) return nullptr;
  }
  OfiCq* cq = cq_of(self, s.method);
  return cq == nullptr ? nullptr : read_now(*cq, s.method, count, from);
}

PyObject* cq_read(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return read_call(self, g_read, false, args, nargs, kwnames);
}
PyObject* cq_readfrom(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return read_call(self, g_readfrom, true, args, nargs, kwnames);
}

PyObject* wait_call(PyObject* self, Signature& s, bool from, PyObject* const* args, Py_ssize_t nargs,
                    PyObject* kwnames) {
  PyObject* a[3];
  uint64_t count = 0, deadline = 0, cond = 0;
  if (!parse(s, args, nargs, kwnames, a) || !count_of(s.method, a[0], &count) ||
      !deadline_of(a[2], &deadline, s.method) ||
      (a[1] != nullptr && a[1] != Py_None && !to_u64(a[1], &cond, s.method, "cond"))) {
    return nullptr;
  }
  OfiCq* cq = cq_of(self, s.method);
  if (cq == nullptr) return nullptr;
  if (!cq->waits) {
    set_error(fi_err::kEINVAL, std::string("cq.") + s.method +
                                   ": the queue was opened with WAIT_NONE\n  try: read(), or open it with WAIT_UNSPEC "
                                   "or WAIT_FD");
    return nullptr;
  }
  const std::shared_ptr<OfiCq> kept = nb::inst_ptr<OfiCore<OfiCq>>(self)->box;
  const uint64_t signals = cq->signals;
  for (;;) {
    PyObject* list = read_now(*cq, s.method, count, from);
    if (list == nullptr || PyList_GET_SIZE(list) > 0 || count == 0) return list;
    Py_DECREF(list);
    const int ms = slice_ms(deadline);
    if (ms == 0) {
      set_error(fi_err::kEAGAIN, std::string(s.method) + ": no completion within the timeout");
      return nullptr;
    }
    if (cq->looks()) {
      rest();
    } else {
      Raw raw;
      ssize_t n = 0;
      {
        const OfiReleased released(&cq->h, true);
        n = ask(*cq, &raw, std::min<size_t>(count, kReadMax), from,
                cond == 0 ? nullptr : reinterpret_cast<const void*>(cond), ms);
      }
      for (ssize_t i = 0; i < n; ++i) {
        const ofi::CqEntry e = raw.at(static_cast<size_t>(i), cq->format);
        PyObject* context = nullptr;
        if (take_over(*cq, e, false, &context)) cq->side.push_back({e, raw.sources[i], context});
      }
      if (n == -fi_err::kENOSYS) return refuse_read(s.method, n);
      if (n == -125 && !cq->h.closing && cq->h.fid != nullptr && cq->looks()) continue;  // look_core() signalled
      if (n == -125) {                                                                   // FI_ECANCELED: fi_cq_signal
        if (cq->h.closing || cq->h.fid == nullptr) {
          set_error(fi_err::kECANCELED, std::string(s.method) + ": the queue was closed");
        } else {
          ofi_set_error(s.method, n);
        }
        return nullptr;
      }
      if (n < 0 && n != -fi_err::kEAGAIN && n != -fi_err::kEAVAIL && n != -4 && n != -110) {  // FI_EINTR, FI_ETIMEDOUT
        ofi_set_error(s.method, n);
        return nullptr;
      }
    }
    if (cq->signals != signals) {
      ofi_set_error(s.method, -125);  // FI_ECANCELED
      return nullptr;
    }
    if (PyErr_CheckSignals() != 0) return nullptr;
    if (cq->h.closing || cq->h.fid == nullptr) {
      set_error(fi_err::kECANCELED, std::string(s.method) + ": the queue was closed while this thread waited");
      return nullptr;
    }
    if (!ofi_all_enabled(cq->h, s.method)) return nullptr;
  }
}

PyObject* cq_sread(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return wait_call(self, g_sread, false, args, nargs, kwnames);
}
PyObject* cq_sreadfrom(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return wait_call(self, g_sreadfrom, true, args, nargs, kwnames);
}

PyMethodDef g_cq_methods[] = {
    {"read", method<cq_read>(), METH_FASTCALL | METH_KEYWORDS,
     "At most count completions, as a list; an empty one if there are none (fi_cq_read).\n\n"
     "Raises Available while an error entry is at the head: take it with readerr(). Source: fi_cq(3) fi_cq_read."},
    {"readfrom", method<cq_readfrom>(), METH_FASTCALL | METH_KEYWORDS,
     "As read, but (completion, fi_addr of the source) pairs (fi_cq_readfrom)."},
    {"sread", method<cq_sread>(), METH_FASTCALL | METH_KEYWORDS,
     "As read, but waits, without the GIL (fi_cq_sread). timeout: seconds; None: no limit.\n\n"
     "Raises Again when the time is over, Canceled when signal() or close() woke the call. Source: fi_cq(3)."},
    {"sreadfrom", method<cq_sreadfrom>(), METH_FASTCALL | METH_KEYWORDS,
     "As sread, but (completion, fi_addr of the source) pairs (fi_cq_sreadfrom)."},
    {nullptr, nullptr, 0, nullptr}};

// ---- set-up --------------------------------------------------------------------------------------------------------

void make_cq(OfiCore<OfiCq>* self, const OfiCore<OfiDomain>& domain, size_t size, uint64_t flags, int format,
             int wait_obj, int signaling_vector, int wait_cond, bool waits) {
  OfiDomain& d = ofi_open(domain, "cq_open");
  const auto call = ofi::op(d.get()->ops, &ofi::DomainOps::cq_open);
  if (call == nullptr) ofi_raise_missing("cq_open");
  if (format < 1 || format > 4) raise(fi_err::kEINVAL, "cq_open: no such format");
  ofi::CqAttr attr{size, flags, format, wait_obj, signaling_vector, wait_cond, nullptr};
  ofi::FidCq* fid = nullptr;
  ofi_check("cq_open", call(d.get(), &attr, &fid, nullptr));
  auto box = std::make_shared<OfiCq>();
  box->domain = domain.box;
  box->h.fid = &fid->fid;
  box->format = format;
  box->waits = waits;
  box->polls = wait_obj == 0;
  new (self) OfiCore<OfiCq>{box};
}

void close_cq(OfiCore<OfiCq>& self) {
  OfiCq& cq = *self.box;
  if (cq.h.fid != nullptr && !cq.h.forked() && cq.h.calls > 0 && !cq.looks()) {
    if (const auto call = ofi::op(cq.get()->ops, &ofi::CqOps::signal)) (void)call(cq.get());
  }
  const bool drops = ofi_may_drop(cq.h);
  const int r = cq.h.shut();
  if (r < 0) ofi_raise("cq.close", r);
  if (!drops) return;
  ofi_drop_all(cq.slots);
  while (!cq.side.empty()) {
    PyObject* context = cq.side.front().context;
    cq.side.pop_front();
    Py_XDECREF(context);
  }
}

// (context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, src_addr), or None.
nb::object read_error(OfiCore<OfiCq>& self, uint64_t flags) {
  OfiCq& cq = ofi_open(self, "cq.readerr");
  if (!ofi_all_enabled(cq.h, "cq.readerr")) throw nb::python_error();
  const auto call = ofi::op(cq.get()->ops, &ofi::CqOps::readerr);
  if (call == nullptr) ofi_raise_missing("cq.readerr");
  std::array<char, 1024> data{};
  ofi::CqErrEntry e{};
  e.err_data = data.data();
  e.err_data_size = data.size();
  e.src_addr = ~uint64_t{0};
  const ssize_t r = call(cq.get(), &e, flags);
  if (r == -fi_err::kEAGAIN || r == 0) return nb::none();
  ofi_check("cq.readerr", r);
  ofi::CqEntry plain{e.context, e.flags, e.len, e.buf, e.data, e.tag};
  PyObject* context = nullptr;
  const size_t told = e.err_data == nullptr || e.err_data_size == data.size() ? 0 : e.err_data_size;
  const nb::bytes err_data(static_cast<const char*>(e.err_data), told);
  (void)take_over(cq, plain, true, &context);
  const nb::object owned = context == nullptr ? nb::none() : nb::steal(context);
  return nb::make_tuple(owned, e.flags, e.len, reinterpret_cast<uint64_t>(e.buf), e.data, e.tag, e.olen, e.err,
                        e.prov_errno, err_data, e.src_addr);
}

}  // namespace

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
  for (const Entry& one : side) Py_XDECREF(one.context);
}

void ofi_sweep(OfiCq& cq) {
  if (cq.h.fid == nullptr || cq.h.closing || cq.h.unready != 0) return;
  Raw raw;
  const ssize_t n = ask(cq, &raw, kReadMax, true, nullptr, 0);
  for (ssize_t i = 0; i < n; ++i) {
    const ofi::CqEntry e = raw.at(static_cast<size_t>(i), cq.format);
    PyObject* context = nullptr;
    if (take_over(cq, e, false, &context)) cq.side.push_back({e, raw.sources[i], context});
  }
}

void ofi_progress(OfiCq& cq) noexcept {
  if (cq.h.fid == nullptr || cq.h.closing || cq.h.unready != 0) return;
  Raw raw;
  (void)ask(cq, &raw, 0, false, nullptr, 0);
}

PyType_Slot g_ofi_cq_slots[] = {{Py_tp_methods, with_signatures("OfiCompletionQueueCore", g_cq_methods)}, {0, nullptr}};

void register_ofi_queues(Module& m) {
  m.def(
      "set_ofi_entry_types",
      [](nb::type_object a, nb::type_object b, nb::type_object c, nb::type_object d) {
        PyObject* types[] = {a.ptr(), b.ptr(), c.ptr(), d.ptr()};
        for (int i = 0; i < 4; ++i) {
          if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(types[i]), &PyTuple_Type))
            throw nb::type_error("entry types must be tuples");
          Py_INCREF(types[i]);
          Py_XDECREF(g_ofi_entry_types[i]);
          g_ofi_entry_types[i] = types[i];
        }
      },
      nb::arg("context"), nb::arg("msg"), nb::arg("data"), nb::arg("tagged"),
      nb::sig("def set_ofi_entry_types(context: type, msg: type, data: type, tagged: type) -> None"),
      "Registers the NamedTuple classes of completion entries, one for each format.");
  Class<OfiCore<OfiCq>>(m, "OfiCompletionQueueCore", nb::type_slots(g_ofi_cq_slots),
                        "A completion queue of a real libfabric.")
      .def("__init__", &make_cq, nb::arg("domain"), nb::arg("size"), nb::arg("flags"), nb::arg("format"),
           nb::arg("wait_obj"), nb::arg("signaling_vector"), nb::arg("wait_cond"), nb::arg("waits"),
           "waits: sread is allowed. If wait_obj is WAIT_NONE, sread looks again and again.")
      .def("close_core", &close_cq)
      .def_prop_ro("in_use", &ofi_in_use<OfiCq>, "True while an object that uses this one exists.")
      .def("readerr_core", &read_error, nb::arg("flags"), nb::sig("def readerr_core(self, flags: int) -> Any"))
      .def("fd_core", &descriptor<OfiCq>)
      .def_prop_ro("fid", &number_of_fid<OfiCq>)
      .def(
          "waiting", [](OfiCore<OfiCq>& self) { return self.box->side.size(); },
          "Entries that were read for other reasons, before the application asked.")
      .def(
          "outstanding", [](OfiCore<OfiCq>& self) { return self.box->slots.busy(); },
          "Operations whose completions the queue has not reported yet.")
      .def("signal_core",
           [](OfiCore<OfiCq>& self) {
             OfiCq& cq = ofi_open(self, "cq.signal");
             if (!cq.waits) {
               raise(fi_err::kEINVAL,
                     "cq.signal: the queue was opened with WAIT_NONE, so no thread waits\n  try: open it with "
                     "WAIT_UNSPEC or WAIT_FD");
             }
             ++cq.signals;
             if (cq.looks()) return;  // without a wait object the library crashes
             const auto call = ofi::op(cq.get()->ops, &ofi::CqOps::signal);
             if (call == nullptr) ofi_raise_missing("cq.signal");
             ofi_check("cq.signal", call(cq.get()));
           })
      .def(
          "look_core",
          [](OfiCore<OfiCq>& self) {
            OfiCq& cq = *self.box;
            if (cq.h.fid == nullptr || cq.h.forked() || cq.looks()) return;
            cq.polls = true;
            const auto call = ofi::op(cq.get()->ops, &ofi::CqOps::signal);
            while (cq.h.calls > 0 && cq.h.fid != nullptr) {
              if (call != nullptr) (void)call(cq.get());
              const ReleasedGil released;
              ::usleep(200);
            }
          },
          "From now on sread looks again and again, instead of waiting in the library; returns when no thread waits "
          "there.")
      .def(
          "strerror_core",
          [](OfiCore<OfiCq>& self, int prov_errno, const nb::bytes& err_data) {
            return words_of(self, prov_errno, err_data, "cq.strerror");
          },
          nb::arg("prov_errno"), nb::arg("err_data"),
          nb::sig("def strerror_core(self, prov_errno: int, err_data: bytes) -> str"));
}

}  // namespace weft::bind
