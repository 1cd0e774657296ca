// cpp/bind/cq.cpp: completion queues as Python types.
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <tuple>

#include "bind/objects.hpp"
#include "bind/signatures.hpp"
#include "bind/wait.hpp"
#include "nic/queue.hpp"

namespace weft::bind {

namespace {

PyObject* g_entry_types[5] = {};  // context, msg, data, tagged, error

constexpr size_t kReadMax = 64;  // entries taken under one hold of the lock

// Caches the numbers of completion flags: few values, but too large for Python's cache of small integers.
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

// Uninitialized memory for entries: constructing an array of CqEntry would clear 4 KiB per call.
struct Entries {
  alignas(nic::CqEntry) std::byte bytes[kReadMax * sizeof(nic::CqEntry)];
  nic::CqEntry* data() noexcept { return reinterpret_cast<nic::CqEntry*>(bytes); }
};
static_assert(std::is_trivially_copyable_v<nic::CqEntry>);

// The last entry of each format without a context. Entries are immutable, so repeated equal completions share one
// entry. Requires the GIL.
struct KnownEntry {
  PyObject* entry = nullptr;
  uint64_t flags = 0, len = 0, buf = 0, data = 0, tag = 0;
};
KnownEntry g_known_entries[5];

// The context of an entry, as a new reference: the entry's own, unless a later entry has the context too.
PyObject* context_of(const nic::CqEntry& e) noexcept {
  if (e.context == 0) return none_or(nullptr);
  auto* const context = reinterpret_cast<PyObject*>(e.context);
  if ((e.reserved & nic::CqEntry::kSharedContext) != 0) [[unlikely]]
    Py_INCREF(context);
  return context;
}

// A tuple of the format's class. Takes over the context's reference.
PyObject* make_entry(int format, const nic::CqEntry& e) {
  static constexpr Py_ssize_t kFields[] = {1, 1, 3, 5, 6};
  const int f = format < 1 || format > 4 ? 1 : format;
  PyObject* context = context_of(e);
  KnownEntry& known = g_known_entries[f];
  const bool plain = context == Py_None;
  if (plain && known.entry != nullptr &&
      (f < 2 || (known.flags == e.flags && known.len == e.len &&
                 (f < 3 || (known.buf == e.buf && known.data == e.data && (f < 4 || known.tag == e.tag))))))
      [[likely]] {
    Py_DECREF(context);
    Py_INCREF(known.entry);
    return known.entry;
  }
  auto* type = reinterpret_cast<PyTypeObject*>(g_entry_types[f - 1]);
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
  if (plain) {
    Py_INCREF(t);
    Py_XDECREF(known.entry);
    known = {t, e.flags, e.len, e.buf, e.data, e.tag};
  }
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

// Takes up to `count` entries; -1 with EAVAIL set when an error entry is at the head.
Py_ssize_t take(CompletionQueueCore* self, nic::CqEntry* out, size_t count) {
  bool error_waits = false;
  size_t n;
  {
    const nic::DomainLock guard(self->box->domain.get());
    n = self->cq->read(out, count, &error_waits);
    if (self->notifier && self->cq->unread() == 0) self->notifier->drain();
  }
  if (n == 0 && !error_waits && self->cq->overrun) {
    set_error(
        fi_err::kEOVERRUN,
        std::string("the completion queue has overrun: it holds ") + std::to_string(self->cq->capacity()) +
            " entries, " +
            (self->cq->may_overrun
                 ? "peers wrote more with data than the application read, and under RM_DISABLED they are not held back"
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

// Like take(); if the queue is empty, makes progress and tries again. 0 if the queue is still empty.
Py_ssize_t take_polling(CompletionQueueCore* self, nic::CqEntry* out, size_t count) {
  self->box->domain->software_progress();
  // A notifier is drained when its queue was found empty, which needs the lock.
  Py_ssize_t n = self->notifier || !self->cq->looks_empty() ? take(self, out, count) : 0;
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
  // The caller wants more than kReadMax: continue while batches are full.
  while (list != nullptr && n != 0 && static_cast<size_t>(PyList_GET_SIZE(list)) < count &&
         static_cast<size_t>(PyList_GET_SIZE(list)) % kReadMax == 0) {
    const Py_ssize_t m = take(self, entries, std::min(count - static_cast<size_t>(PyList_GET_SIZE(list)), kReadMax));
    if (m <= 0) {
      PyErr_Clear();  // an error entry follows the successes: the next read raises
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
    if (!parse(g_read_sig, args, nargs, kwnames, a) || !to_u64(a[0], &count, "cq.read", "count")) return nullptr;
  }
  auto* core = nb::inst_ptr<CompletionQueueCore>(self);
  return cq_usable(core) ? read_up_to(core, count, false) : nullptr;
}

PyObject* cq_readfrom(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  uint64_t count = kReadMax;
  PyObject* a[1];
  if (!parse(g_readfrom_sig, args, nargs, kwnames, a) || !to_u64(a[0], &count, "cq.readfrom", "count")) return nullptr;
  auto* core = nb::inst_ptr<CompletionQueueCore>(self);
  return cq_usable(core) ? read_up_to(core, count, true) : nullptr;
}

PyObject* sread_common(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, bool with_source) {
  PyObject* a[3];
  uint64_t count = kReadMax, deadline, threshold = 1;
  if (!parse(g_sread_sig, args, nargs, kwnames, a) || !to_u64(a[0], &count, "cq.sread", "count") ||
      !deadline_of(a[2], &deadline, "cq.sread")) {
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
    const int r = wait_for(*domain->nic(), cq->event, core->pacer, deadline, [&] {
      domain->software_progress();
      if (core->closed.load(std::memory_order_relaxed) || cq->signaled.load(std::memory_order_acquire)) return true;
      if (cq->looks_empty()) return false;
      const nic::DomainLock guard(domain);
      return cq->unread() >= threshold || cq->error_waits() || cq->overrun;
    });
    if (r < 0) return nullptr;
    if (!cq_usable(core)) return nullptr;  // another thread has closed the queue
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
    {"read", method<cq_read>(), METH_FASTCALL | METH_KEYWORDS,
     "Takes completions without waiting (fi_cq_read).\n\n"
     "count  the most completions to take.\n\n"
     "Returns a list of entries of the queue's format, oldest first; the list is empty if the queue is. An entry's\n"
     "op_context is the object given to the operation.\n"
     "Raises Available when the entry at the head is a failed operation: readerr() takes it.\n"
     "Polling drives the NIC's progress. Source: fi_cq(3) fi_cq_read."},
    {"readfrom", method<cq_readfrom>(), METH_FASTCALL | METH_KEYWORDS,
     "As read, with the initiator of each: a list of (entry, fi_addr) (fi_cq_readfrom).\n\n"
     "fi_addr is ADDR_NOTAVAIL for operations of this side, for peers that are not in the address vector, and if\n"
     "the endpoint was opened without fi.SOURCE in its capabilities.\n"
     "Raises Available, as read. Source: fi_cq(3) fi_cq_readfrom."},
    {"sread", method<cq_sread>(), METH_FASTCALL | METH_KEYWORDS,
     "Waits until there is a completion, then takes up to count of them (fi_cq_sread).\n\n"
     "count    the most completions to take.\n"
     "cond     with CQ_COND_THRESHOLD the number of entries to wait for.\n"
     "timeout  seconds; None or negative: no limit.\n\n"
     "The call spins briefly, yields, then sleeps. Other Python threads run during the wait, and Ctrl-C ends it.\n"
     "Raises Again (timeout), Available (a failed operation is at the head), Canceled (signal()).\n"
     "Source: fi_cq(3) fi_cq_sread."},
    {"sreadfrom", method<cq_sreadfrom>(), METH_FASTCALL | METH_KEYWORDS,
     "As sread, with the initiator of each: a list of (entry, fi_addr) (fi_cq_sreadfrom).\n\n"
     "Raises Again, Available, Canceled, as sread. Source: fi_cq(3) fi_cq_sreadfrom."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot g_cq_slots[] = {{Py_tp_methods, with_signatures("CompletionQueueCore", g_cq_methods)}, {0, nullptr}};

}  // namespace

CompletionQueueCore::~CompletionQueueCore() {
  const Seam seam;
  if (!box || !cq || box->forked()) return;
  // Drop the contexts of unread entries.
  std::vector<uint64_t> contexts;
  {
    const nic::DomainLock guard(box->domain.get());
    nic::CqEntry e;
    nic::CqError error;
    bool error_waits = true;
    while (cq->read(&e, 1, &error_waits) == 1 || (error_waits && cq->read_error(&e, &error)))
      if ((e.reserved & nic::CqEntry::kSharedContext) == 0) contexts.push_back(e.context);
  }
  for (const uint64_t c : cq->take_contexts()) contexts.push_back(c);
  for (const uint64_t c : contexts) {
    if (c != 0) Py_DECREF(reinterpret_cast<PyObject*>(c));
  }
}

void register_cq(Module& m) {
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
          Py_CLEAR(g_known_entries[i].entry);
        }
      },
      nb::arg("context"), nb::arg("msg"), nb::arg("data"), nb::arg("tagged"), nb::arg("error"),
      nb::sig("def set_entry_types(context: type, msg: type, data: type, tagged: type, error: type) -> None"),
      "Registers the NamedTuple classes of completion entries, one for each format.");

  Class<CompletionQueueCore> cq(m, "CompletionQueueCore", nb::type_slots(g_cq_slots),
                                "The NIC's side of a completion queue.");
  cq.def(
        "__init__",
        [](CompletionQueueCore* self, DomainCore& d, const nic::QueueConfig& config) {
          auto& box = box_of(d);
          auto queue = std::make_shared<nic::CompletionQueue>(std::max<uint32_t>(config.size, 1),
                                                              box->config.may_overrun, config.huge);
          queue->acknowledge_by(config.ack_batch);
          if (!config.reserves) queue->fill_by_entries();
          std::shared_ptr<host::EventfdNotifier> notifier;
          if (config.wait_obj == kWaitFd) {
            notifier = translating([] { return std::make_shared<host::EventfdNotifier>(); });
            queue->event.set_notifier(notifier);
          }
          new (self) CompletionQueueCore{
              box, std::move(queue), std::move(notifier), static_cast<int>(config.format), false, {}};
        },
        nb::arg("domain"), nb::arg("config"))
      .def_prop_ro(
          "huge_pages",
          [](const CompletionQueueCore& c) { return std::pair{c.cq->in_huge_pages(), c.cq->huge_error()}; },
          "(True if the entries lie in huge pages, the kernel's error number if it refused huge pages, otherwise 0).")
      .def_prop_ro(
          "fd", [](const CompletionQueueCore& c) { return c.notifier ? c.notifier->fd() : -1; },
          "A descriptor that is readable while entries may be unread (wait_obj FD), or -1.")
      .def_prop_ro(
          "capacity", [](const CompletionQueueCore& c) { return c.cq->capacity(); },
          "The number of entries that the queue holds.")
      .def_prop_ro(
          "acknowledgements",
          [](CompletionQueueCore& c) {
            check_usable(c, "completion queue");
            const nic::DomainLock guard(c.box->domain.get());
            return c.cq->acknowledgements();
          },
          "How often a batch of entries that were read has been acknowledged to the NIC; 0 without batches.")
      .def(
          "pending",
          [](CompletionQueueCore& c) {
            check_usable(c, "completion queue");
            const nic::DomainLock guard(c.box->domain.get());
            return c.cq->unread();
          },
          "The number of unread entries.")
      .def(
          "readerr_core",
          [](CompletionQueueCore& c, nb::handle flags, nb::handle decide) {
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
            if (!decide.is_none() && !error.decided && error.status != Status::canceled) {
              const auto tuple = [](const wire::EpAddress& a) { return nb::make_tuple(a.nic, a.pid, a.vni); };
              const nb::object peer = error.peer.vni != 0 ? nb::object(tuple(error.peer)) : nb::none();
              try {
                const nb::object told = decide(error.status, error.key, peer, tuple(error.own));
                std::tie(error.err, error.prov_errno) = nb::cast<std::pair<int, int>>(told);
              } catch (nb::python_error& failed) {  // the entry is already taken: return it with the domain's codes
                failed.discard_as_unraisable("the provider's decision on a failed operation");
              }
            }
            auto* type = reinterpret_cast<PyTypeObject*>(g_entry_types[4]);
            PyObject* t = type->tp_alloc(type, 12);
            if (t == nullptr) throw nb::python_error();
            PyTuple_SET_ITEM(t, 0, context_of(e));
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
          nb::arg("flags").none() = 0, nb::arg("decide").none() = nb::none(),
          nb::sig("def readerr_core(self, flags: int = 0, decide: Callable[[Status, int, tuple[int, int, int] | None, "
                  "tuple[int, int, int]], tuple[int, int]] | None = None) -> Any"),
          "Takes the failed operation at the head (fi_cq_readerr): a CqErrEntry whose err_data says in words what\n"
          "was asked and what was found. Raises Again if no failed operation is at the head.\n\n"
          "decide  called as decide(status, key, peer, own); returns (err, prov_errno), which replace those of the\n"
          "        domain's map. peer and own are addresses (nic, pid, vni); peer is None if the operation had no\n"
          "        target.")
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
              if (c.cq->unread() != 0 || c.box->domain->software_waits()) return false;
            }
            c.box->domain->nic()->prepare_app_sleep();
            const nic::DomainLock guard(c.box->domain.get());
            return c.cq->unread() == 0 && !c.box->domain->software_waits();
          },
          "True when the fd may be waited on; False when entries are unread (fi_trywait). Source: fi_poll(3) "
          "fi_trywait.")
      .def("close", [](CompletionQueueCore& c) {
        c.closed = true;
        if (!c.box->forked()) c.cq->event.tell();  // wakes threads in sread(), which raise that the queue is closed
      });
}

}  // namespace weft::bind
