// cpp/bind/cq.cpp: completion queues as Python types: one type, of Weft's NIC or of a real libfabric
// (CompletionQueueCore::lib, ofi_cq.cpp).
#include <algorithm>
#include <tuple>

#include "bind/ofi_plain.hpp"
#include "bind/ofi_queue.hpp"
#include "bind/signatures.hpp"
#include "nic/queue.hpp"

namespace weft::bind {

namespace {

PyObject* g_entry_types[5] = {};  // context, msg, data, tagged, error

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

bool cq_usable(CompletionQueueCore* self, const char* call) {
  if (self->lib) return ofi_usable(self->lib->h, call, kCqName);
  if (self->closed || !self->box) return set_error(fi_err::kEOPBADSTATE, "the completion queue is closed");
  if (self->box->forked()) {
    return set_error(fi_err::kEOPBADSTATE,
                     "this completion queue belongs to the parent process: a forked child opens its own fabric");
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
        fi_err::kEOVERRUN, "the completion queue has overrun: it holds ", self->cq->capacity(), " entries, ",
        (self->cq->may_overrun
             ? "peers wrote more with data than the application read, and under RM_DISABLED they are not held back"
             : "and there was no memory for one more"),
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
  Py_ssize_t n = (self->notifier && self->notifier->raised()) || !self->cq->looks_empty() ? take(self, out, count) : 0;
  if (n != 0) return n;
  nic::Nic* nic = self->box->domain->nic();
  const bool worked = nic->poll_from_app() != 0;
  if (worked) n = take(self, out, count);
  if (n == 0 && !worked) {
    if (self->pacer.due()) [[unlikely]] {
      const ReleasedGil released;
      self->pacer.yield_or_rest();
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

PyObject* read_up_to(CompletionQueueCore* self, const char* call, size_t count, bool with_source) {
  CqRoom room;
  nic::CqEntry* entries = room.data();
  Py_ssize_t n;
  if (self->lib) [[unlikely]] {
    n = ofi_cq_take(*self->lib, call, entries, std::min(count, kReadMax), with_source);
  } else {
    self->box->drain();
    n = take_polling(self, entries, std::min(count, kReadMax));
  }
  if (n < 0) return nullptr;
  PyObject* list = entries_to_list(self, entries, n, with_source);
  // The caller wants more than kReadMax: continue while batches are full.
  while (list != nullptr && n != 0 && static_cast<size_t>(PyList_GET_SIZE(list)) < count &&
         static_cast<size_t>(PyList_GET_SIZE(list)) % kReadMax == 0) {
    const size_t rest = std::min(count - static_cast<size_t>(PyList_GET_SIZE(list)), kReadMax);
    const Py_ssize_t m =
        self->lib ? ofi_cq_take(*self->lib, call, entries, rest, with_source) : take(self, entries, rest);
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

PyObject* read_common(PyObject* self, Signature& s, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                      bool with_source) {
  uint64_t count = kReadMax;
  if (kwnames != nullptr || nargs > 1 || (nargs == 1 && !plain_number(args[0], &count))) {
    PyObject* a[1];
    count = kReadMax;
    if (!parse(s, args, nargs, kwnames, a) || !to_u64(a[0], &count, with_source ? "cq.readfrom" : "cq.read", "count"))
      return nullptr;
  }
  auto* core = nb::inst_ptr<CompletionQueueCore>(self);
  return cq_usable(core, s.method) ? read_up_to(core, s.method, count, with_source) : nullptr;
}
PyObject* cq_read(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return read_common(self, g_read_sig, args, nargs, kwnames, false);
}
PyObject* cq_readfrom(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return read_common(self, g_readfrom_sig, args, nargs, kwnames, true);
}

PyObject* lib_sread(CompletionQueueCore* core, const char* call, size_t count, uint64_t cond, uint64_t deadline,
                    bool with_source) {
  const std::shared_ptr<OfiCq> cq = core->lib;
  const uint64_t signals = cq->signals;
  for (;;) {
    PyObject* list = read_up_to(core, call, count, with_source);
    if (list == nullptr || PyList_GET_SIZE(list) > 0 || count == 0) return list;
    Py_DECREF(list);
    if (!ofi_cq_wait(*cq, call, count, with_source, cond, deadline, signals)) return nullptr;
  }
}

template <bool with_source>
PyObject* cq_sread(PyObject* self, PyObject* (&a)[3]) {
  constexpr const char* call = with_source ? "sreadfrom" : "sread";
  uint64_t count = kReadMax, deadline, threshold = 0;
  if (!to_u64(a[0], &count, "cq.sread", "count") || !deadline_of(a[2], &deadline, "cq.sread")) return nullptr;
  const bool chosen = a[1] != nullptr && a[1] != Py_None;  // FI_CQ_COND_THRESHOLD
  if (chosen && !to_u64(a[1], &threshold, "cq.sread", "cond")) return nullptr;
  auto* core = nb::inst_ptr<CompletionQueueCore>(self);
  if (!cq_usable(core, call)) return nullptr;
  if (core->lib) return lib_sread(core, call, count, threshold, deadline, with_source);
  if (!chosen) threshold = 1;
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
    if (!cq_usable(core, call)) return nullptr;  // another thread has closed the queue
    CqRoom entries;
    const Py_ssize_t n = take(core, entries.data(), std::min<size_t>(count, kReadMax));
    if (n < 0) return nullptr;
    if (n > 0) return entries_to_list(core, entries.data(), n, with_source);
    if (cq->signaled.exchange(false)) return set_error(fi_err::kECANCELED, "the wait was ended by signal()");
    if (r == 0) return set_error(fi_err::kEAGAIN, "no completion came before the timeout");
  }
}

PyMethodDef g_cq_methods[] = {
    {"read", method<cq_read>(), kFast,
     "Takes completions without waiting (fi_cq_read).\n\n"
     "count  the most completions to take.\n\n"
     "Returns a list of entries of the queue's format, oldest first; the list is empty if the queue is. An entry's\n"
     "op_context is the object given to the operation.\n"
     "Raises Available when the entry at the head is a failed operation: readerr() takes it.\n"
     "Polling drives the NIC's progress. Source: fi_cq(3) fi_cq_read."},
    {"readfrom", method<cq_readfrom>(), kFast,
     "As read, with the initiator of each: a list of (entry, fi_addr) (fi_cq_readfrom).\n\n"
     "fi_addr is ADDR_NOTAVAIL for operations of this side, for peers that are not in the address vector, and if\n"
     "the endpoint was opened without fi.SOURCE in its capabilities.\n"
     "Raises Available, as read. Source: fi_cq(3) fi_cq_readfrom."},
    {"sread", method<parsed<cq_sread<false>, "sread", "count cond timeout">>(), kFast,
     "Waits until there is a completion, then takes up to count of them (fi_cq_sread).\n\n"
     "count    the most completions to take.\n"
     "cond     with CQ_COND_THRESHOLD the number of entries to wait for.\n"
     "timeout  seconds; None or negative: no limit.\n\n"
     "The call spins briefly, yields, then sleeps. Other Python threads run during the wait, and Ctrl-C ends it.\n"
     "Raises Again (timeout), Available (a failed operation is at the head), Canceled (signal()).\n"
     "Source: fi_cq(3) fi_cq_sread."},
    {"sreadfrom", method<parsed<cq_sread<true>, "sreadfrom", "count cond timeout">>(), kFast,
     "As sread, with the initiator of each: a list of (entry, fi_addr) (fi_cq_sreadfrom).\n\n"
     "Raises Again, Available, Canceled, as sread. Source: fi_cq(3) fi_cq_sreadfrom."},
    {nullptr, nullptr, 0, nullptr}};

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

namespace {

// The NIC's queue, usable.
nic::DomainLock locked(const CompletionQueueCore& c) {
  check_usable(c, "completion queue");
  return nic::DomainLock(c.box->domain.get());
}

// The queue of a real libfabric, open.
OfiCq& cq_open(const CompletionQueueCore& c, const char* call) {
  return ofi_open(OfiCore<OfiCq>{c.lib}, call);
}

}  // namespace

void register_cq(Module& m) {
  m.about("Registers the NamedTuple classes of completion entries, one for each format.")
      .def<"set_entry_types(context: type, msg: type, data: type, tagged: type, error: type) -> None">(
          [](nb::type_object a, nb::type_object b, nb::type_object c, nb::type_object d, nb::type_object e) {
            PyObject* types[] = {a.ptr(), b.ptr(), c.ptr(), d.ptr(), e.ptr()};
            for (int i = 0; i < 5; ++i) {
              if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(types[i]), &PyTuple_Type)) {
                throw nb::type_error("entry types must be tuples");
              }
              keep(g_entry_types[i], nb::borrow(types[i]));
              Py_CLEAR(g_known_entries[i].entry);
            }
          });

  Class<CompletionQueueCore> cq(m, "CompletionQueueCore",
                                nb::type_slots(method_slots<"CompletionQueueCore", g_cq_methods>()),
                                "The NIC's side of a completion queue.");
  def_waits(cq, &CompletionQueueCore::lib,
            "A descriptor that is readable while entries may be unread (wait_obj FD), or -1.");
  cq.def<"__init__(domain, config, size=0, flags=0, signaling_vector=0, wait_cond=0)">(
        [](CompletionQueueCore* self, DomainCore& d, const nic::QueueConfig& config, nb::handle, nb::handle, nb::handle,
           nb::handle) {
          auto& box = box_of(d);
          auto queue = std::make_shared<nic::CompletionQueue>(std::max<uint32_t>(config.size, 1),
                                                              box->config.may_overrun, config.huge);
          queue->acknowledge_by(config.ack_batch);
          if (!config.reserves) queue->fill_by_entries();
          std::shared_ptr<host::EventfdNotifier> notifier;
          if (config.wait_obj == kWaitFd || config.wait_obj == kWaitPollFd) {
            notifier = std::make_shared<host::EventfdNotifier>();
            queue->event.set_notifier(notifier);
          }
          new (self) CompletionQueueCore();
          self->box = box;
          self->cq = std::move(queue);
          self->notifier = std::move(notifier);
          self->format = static_cast<int>(config.format);
        })
      .about("The arguments after `config` are of struct fi_cq_attr, for a real libfabric.")
      .def<"__init__(domain, config, size, flags, signaling_vector, wait_cond)">(
          [](CompletionQueueCore* self, const OfiCore<OfiDomain>& domain, const nic::QueueConfig& config, size_t size,
             uint64_t flags, int signaling_vector, int wait_cond) {
            ofi::FidDomain* const d = ofi_open(domain, "cq_open").get();
            const auto format = static_cast<int>(config.format);
            auto made = std::make_shared<OfiCq>();
            made->domain = domain.box;
            made->format = format;
            open_waiting(*made, "cq_open", d, ofi::op(d->ops, &ofi::DomainOps::cq_open),
                         ofi::CqAttr{size, flags, format, static_cast<int>(config.wait_obj), signaling_vector,
                                     wait_cond, nullptr});
            new (self) CompletionQueueCore();
            self->lib = std::move(made);
            self->format = format;
          })
      .about(
          "(True if the entries lie in huge pages, the kernel's error number if it refused huge pages, otherwise 0).")
      .def_prop<"huge_pages">([](const CompletionQueueCore& c) {
        return c.lib ? std::pair{false, 0} : std::pair{c.cq->in_huge_pages(), c.cq->huge_error()};
      })
      .about("The number of entries that the queue holds.")
      .def_prop<"capacity">([](const CompletionQueueCore& c) { return c.lib ? 0 : c.cq->capacity(); })
      .about("How often a batch of entries that were read has been acknowledged to the NIC; 0 without batches.")
      .def_prop<"acknowledgements">([](CompletionQueueCore& c) {
        const nic::DomainLock guard = locked(c);
        return c.cq->acknowledgements();
      })
      .about(
          "The number of unread entries; with a real libfabric, which does not tell how many it has, of those that "
          "Weft\n"
          "has read before the application asked.")
      .def<"pending">([](CompletionQueueCore& c) -> size_t {
        if (c.lib) return c.lib->side.size();
        const nic::DomainLock guard = locked(c);
        return c.cq->unread();
      })
      .about("Operations of a real libfabric whose completions the queue has not reported yet.")
      .def<"outstanding">([](const CompletionQueueCore& c) -> size_t {
        if (c.lib) return c.lib->slots.busy();
        check_usable(c, "completion queue");
        return 0;
      })
      .about(
          "Takes the failed operation at the head (fi_cq_readerr): a CqErrEntry whose err_data says in words what\n"
          "was asked and what was found. Raises Again if no failed operation is at the head.\n\n"
          "decide  called as decide(status, key, peer, own); returns (err, prov_errno), which replace those of the\n"
          "        domain's map. peer and own are addresses (nic, pid, vni); peer is None if the operation had no\n"
          "        target.")
      .def<
          "readerr_core(self, flags?: int = 0, decide: Callable[[Status, int, tuple[int, int, int] | None, tuple[int, "
          "int, int]], tuple[int, int]] | None = None) -> Any">(
          [](CompletionQueueCore& c, nb::handle flags, nb::handle decide) {
            const uint64_t asked = number_of(flags, "cq.readerr", "flags");
            nic::CqEntry e;
            nic::CqError error;
            bool found;
            if (c.lib) {
              found = ofi_cq_error(*c.lib, asked, &e, &error);
              if (!found) raise(fi_err::kEAGAIN, "cq.readerr: no error entry in the queue");
            } else {
              check_usable(c, "completion queue");
              const nic::DomainLock guard(c.box->domain.get());
              found = c.cq->read_error(&e, &error);
              if (c.notifier && c.cq->unread() == 0) c.notifier->drain();
            }
            if (!found) raise(fi_err::kEAGAIN, "no failed operation is at the head of the completion queue");
            if (!c.lib && !decide.is_none() && !error.decided && error.status != Status::canceled) {
              const auto tuple = [](const wire::EpAddress& a) { return nb::make_tuple(a.nic, a.pid, a.vni); };
              const nb::object peer = error.peer.vni != 0 ? nb::object(tuple(error.peer)) : nb::none();
              try {
                const nb::object told = decide(error.status, error.key, peer, tuple(error.own));
                std::tie(error.err, error.prov_errno) = nb::cast<std::pair<int, int>>(told);
              } catch (nb::python_error& failed) {  // the entry is already taken: return it with the domain's codes
                failed.discard_as_unraisable("the provider's decision on a failed operation");
              }
            }
            PyObject* const fields[] = {
                context_of(e),
                number(e.flags),
                number(e.len),
                number(e.buf),
                number(e.data),
                number(e.tag),
                number(error.olen),
                PyLong_FromLong(error.err),
                PyLong_FromLong(error.prov_errno),
                PyBytes_FromStringAndSize(error.text.data(), static_cast<Py_ssize_t>(error.text.size())),
                number(e.source),
                nb::cast(error.status).release().ptr()};
            auto* type = reinterpret_cast<PyTypeObject*>(g_entry_types[4]);
            PyObject* t = type->tp_alloc(type, std::size(fields));
            if (t == nullptr) throw nb::python_error();
            for (size_t i = 0; i < std::size(fields); ++i) PyTuple_SET_ITEM(t, static_cast<Py_ssize_t>(i), fields[i]);
            return nb::steal(t);
          })
      .about("Ends one waiting sread (fi_cq_signal). Source: fi_cq(3) fi_cq_signal.")
      .def<"signal">([](CompletionQueueCore& c) {
        if (c.lib) return cq_open(c, "cq.signal"), ofi_cq_signal(*c.lib);
        check_usable(c, "completion queue");
        c.cq->signaled.store(true, std::memory_order_seq_cst);
        c.cq->event.tell();
        c.box->domain->nic()->waiter().wake();
      })
      .about(
          "True when the fd may be waited on; False when entries are unread (fi_trywait). Source: fi_poll(3) "
          "fi_trywait.")
      .def<"trywait">([](CompletionQueueCore& c) {
        if (c.lib) {
          OfiCq& queue = cq_open(c, "cq.trywait");
          if (!queue.side.empty()) return false;
          if (queue.has_wait) return ofi_trywait(*queue.domain->fabric, {queue.h.fid});
          raise(fi_err::kEINVAL, "cq.trywait: ", nb::repr(nb::find(c)).c_str(),
                " has no wait object\n  try: wait_obj=fi.WAIT_FD");
        }
        check_usable(c, "completion queue");
        {
          const nic::DomainLock guard(c.box->domain.get());
          if (c.cq->unread() != 0 || c.box->domain->software_waits()) return false;
        }
        c.box->domain->nic()->prepare_app_sleep();
        const nic::DomainLock guard(c.box->domain.get());
        return c.cq->unread() == 0 && !c.box->domain->software_waits();
      })
      .about("From now on sread of a real libfabric's queue looks again and again; returns when no thread waits there.")
      .def<"_look">([](CompletionQueueCore& c) {
        if (c.lib) ofi_cq_look(*c.lib);
      })
      .about("The text of a real libfabric's provider for an error number.")
      .def<"_words(prov_errno, err_data)">([](const CompletionQueueCore& c, int prov_errno, const nb::bytes& err_data) {
        return words_of(OfiCore<OfiCq>{c.lib}, prov_errno, err_data, "cq.strerror");
      })
      .def<"close">([](CompletionQueueCore& c) {
        if (c.lib) return ofi_cq_close(*c.lib);
        c.closed = true;
        if (!c.box->forked()) c.cq->event.tell();  // wakes threads in sread(), which raise that the queue is closed
      });
}

}  // namespace weft::bind
