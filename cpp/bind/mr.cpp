// cpp/bind/mr.cpp: memory regions and their slices as Python types.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind/objects.hpp"

namespace weft::bind {

namespace {

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

// Notes device memory for the table. Host memory that a device's runtime allocated is copied by its owner's engine.
bool note_device(DomainBox& box, Buf& buf, size_t count, size_t at, std::vector<mem::DeviceNote>* notes,
                 uint32_t* kind) {
  std::optional<mem::DeviceMemory> found;
  if (!find_device(box, buf, "mr_reg", &found)) return false;
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
    // Memory that a device's runtime knows exists, also if it was given as a bare address.
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

// close(): here for a region without bindings and sub-MRs; otherwise MemoryRegion._close looks at those first.
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

// The finalizer of a region that was not closed calls weft.fi, which warns. A closed region runs no Python.
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

MemoryRegionCore::~MemoryRegionCore() {
  delist();  // before the GIL is released: another thread must not find an object that is being freed
  if (!box || !region || box->forked()) return;
  std::string why;
  bool done;
  {
    const ReleasedGil released;
    done = region->close(&why);
  }
  // A peer is still copying and did not finish in time. Freeing the memory would corrupt it, so leak it, and say so.
  if (!done) {
    for (nb::object& o : keep) (void)o.release();
    PySys_WriteStderr("weft: a region was dropped while %s; its memory is kept\n", why.c_str());
  }
}

void register_mr(nb::module_& m) {
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
            // Frames from processes of this host carry the address's local name.
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
}

}  // namespace weft::bind
