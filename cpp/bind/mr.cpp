// cpp/bind/mr.cpp: memory regions and their slices as Python types.
#include <algorithm>

#include "bind/held.hpp"
#include "bind/held_error.hpp"
#include "bind/objects.hpp"
#include "bind/params.hpp"
#include "bind/signatures.hpp"
#include "call/admit.hpp"

namespace weft::bind {

namespace {

// Holds references to the buffers of a list during a registration.
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

// Makes the table's note of device memory. The owner's engine copies host memory that a device's runtime allocated.
bool note_device(DomainBox& box, Buf& buf, size_t count, size_t at, std::vector<mem::DeviceNote>* notes,
                 uint32_t* kind) {
  std::optional<mem::DeviceMemory> found;
  if (!find_device(box, buf, "mr_reg", &found)) return false;
  mem::Devices& devices = box.domain->nic()->devices();
  if (found) {
    notes->resize(count);
    (*notes)[at] = devices.note(*found, box.config.mr_allocated);
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
  Kept keep;
  uint64_t length = 0;
  bool readonly = false, bare = false;
  std::vector<mem::DeviceNote> notes;
  for (size_t i = 0; i < buffers.size(); ++i) {
    Buf b;
    if (!b.acquire(buffers[i], false)) return false;
    if (box->config.hmem || b.iface != mem::kHmemSystem) [[unlikely]] {
      if (!note_device(*box, b, buffers.size(), i, &notes, &kind)) return false;
    }
    if (b.readonly && (access & kWrites) != 0) {
      return set_error(fi_err::kEACCES, "the buffer (", Py_TYPE(buffers[i])->tp_name,
                       ") is read-only and the access asked for writes to it: register it without "
                       "REMOTE_WRITE, READ and RECV, or give a writable one");
    }
    list[i] = {b.data, b.length};
    if (g_holding && buffers.size() == 1) [[unlikely]]
      hold(box.get(), self, &list[i]);
    if (b.length > ~uint64_t{0} - length)
      return set_error(fi_err::kEINVAL, "mr_reg: the buffers together have more bytes than an address space");
    length += b.length;
    readonly = readonly || b.readonly;
    // Memory known to a device's runtime exists, even if it was given as a bare address.
    bare = bare || (b.bare && (kind & mem::kMrByOwner) == 0 && (notes.empty() || notes[i].iface == 0));
    PyObject* held = b.hold();
    if (held == nullptr) return false;
    keep.push_back(nb::steal(held));
    if (b.region != nullptr) [[unlikely]]
      keep.push_back(nb::borrow(b.owner));
  }
  if (length == 0 && box->config.empty_region_errno != 0) {
    return set_error(box->config.empty_region_errno,
                     "a region has at least 1 byte, fi_mr(3); the given memory has none");
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
    if (g_holding) held_pages().release(self);
    return set_error(e.fi_code(), e.what());
  }
}

namespace {

// HOT. mr[a:b] and slices of slices.
PyObject* new_slice(MemoryRegionCore* core, PyObject* owner, std::byte* data, size_t length, PyObject* index) {
  if (!PySlice_Check(index)) {
    return type_error("a registered region is indexed by a slice of bytes, [start:stop], not by %s",
                      Py_TYPE(index)->tp_name);
  }
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(index, &start, &stop, &step) < 0) return nullptr;
  if (step != 1) return PyErr_Format(PyExc_IndexError, "a registered slice is contiguous: the step must be 1");
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

PyType_Slot g_slice_slots[] = {
    {Py_mp_subscript, slot<slice_subscript>()}, {Py_mp_length, slot<slice_length>()}, {0, nullptr}};

PyObject* region_subscript(PyObject* self, PyObject* index) {
  auto* r = nb::inst_ptr<MemoryRegionCore>(self);
  if (r->region == nullptr || r->region->buffers().size() != 1)
    return PyErr_Format(PyExc_IndexError, "only a region of one buffer can be sliced");
  return new_slice(r, self, reinterpret_cast<std::byte*>(r->region->buffers()[0].local_addr), r->length, index);
}

// The finalizer of a region that was not closed calls weft.fi, which warns. A closed region runs no Python.
void region_finalize(PyObject* self) {
  if (!nb::inst_ready(self)) return;  // registration failed
  auto* r = nb::inst_ptr<MemoryRegionCore>(self);
  if (r->py_closed || !r->site.is_valid() || !r->box || r->box->forked()) return;
  const HeldError error;
  PyObject* done = PyObject_CallMethod(self, "_finalize", nullptr);
  if (done == nullptr) PyErr_WriteUnraisable(self);
  Py_XDECREF(done);
}

PyMethodDef g_region_methods[] = {
    {"bind", method<parsed<region_bind, "mr.bind", "fid! flags">>(), kFast,
     "Associate the region with a counter or an endpoint (fi_mr_bind).\n\n"
     "fid     a Counter, which then counts the accesses that flags select; or an Endpoint: under `fi.MR_ENDPOINT`\n"
     "        one through which peers may access the region, otherwise an association without effect, so that a\n"
     "        program written for `fi.MR_ENDPOINT` runs unchanged.\n"
     "flags   for a counter `fi.REMOTE_WRITE`: each RMA write and each atomic that may modify the region, made\n"
     "        through an endpoint opened with `fi.RMA_EVENT`. All atomics except ATOMIC_READ count, including\n"
     "        comparisons that fail and change nothing. For an endpoint 0.\n\n"
     "A region may be bound to several objects: each of its counters counts every access, each of its endpoints\n"
     "serves it. Binding the same object again changes nothing. A binding ends with its endpoint; endpoints that\n"
     "are opened later do not serve the region.\n\n"
     "Raises BadFlags; BadState (the region was enabled with `enable()` already; a counter under `fi.MR_RMA_EVENT`\n"
     "on a region registered without `fi.RMA_EVENT`); WrongDomain; InvalidArgument (some other object).\n"
     "Source: fi_mr(3) fi_mr_bind."},
    {"enable", method<region_enable>(), METH_NOARGS,
     "Enable a region that was created disabled (fi_mr_enable). An enabled region takes no further bindings.\n\n"
     "Regions are created disabled under `fi.MR_ENDPOINT`, and under `fi.MR_RMA_EVENT` with the flag `fi.RMA_EVENT`.\n"
     "Enabling an enabled region changes nothing.\n\n"
     "Raises BadState under `fi.MR_ENDPOINT` before the region is bound to an endpoint.\n"
     "Source: fi_mr(3) fi_mr_enable."},
    {"close", method<region_close>(), METH_NOARGS,
     "Close the region (fi_close): its key is invalid from here on, and a peer that uses the key gets an error.\n\n"
     "The call waits, for a bounded time, for peers that are copying. Operations of this process that have the\n"
     "region as their buffer continue, and hold its memory until they end. Closing again does nothing.\n\n"
     "Raises Busy, with a text that names the obstacle: sub-MRs; endpoints and counters that are bound to the\n"
     "region and still open (close those first); peers that did not finish in time.\n"
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
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {"_fixed", get_bool<&MemoryRegionCore::fixed>, set_bool<&MemoryRegionCore::fixed>,
     "enable() was called: no further bindings.", nullptr},
    {"_staged", get_bool<&MemoryRegionCore::staged>, nullptr,
     "bind() and enable() may run without Python: this is an ordinary region of a domain whose regions start disabled.",
     nullptr},
    {"_associated",
     [](PyObject* self, void*) -> PyObject* {
       const Seam seam;
       PyObject* bound = nb::inst_ptr<MemoryRegionCore>(self)->bound.ptr();
       if (bound == nullptr) return PyTuple_New(0);
       if (!PyTuple_Check(bound)) return PyTuple_Pack(1, bound);
       return Py_NewRef(bound);
     },
     [](PyObject* self, PyObject* value, void*) {
       const Seam seam;
       if (value == nullptr || !PyTuple_Check(value)) {
         PyErr_SetString(PyExc_TypeError, "_associated: a tuple");
         return -1;
       }
       nb::inst_ptr<MemoryRegionCore>(self)->bound = nb::borrow(value);
       return 0;
     },
     "The endpoints and counters to which the region is bound.", nullptr},
    {"_closed", get_bool<&MemoryRegionCore::py_closed>, set_bool<&MemoryRegionCore::py_closed>, nullptr, nullptr},
    {"_special", get_bool<&MemoryRegionCore::special>, set_bool<&MemoryRegionCore::special>,
     "close() must check bindings or sub-MRs.", nullptr},
    {"_site",
     [](PyObject* self, void*) -> PyObject* {
       const Seam seam;
       const auto* r = nb::inst_ptr<MemoryRegionCore>(self);
       if (!r->site.is_valid()) Py_RETURN_NONE;
       return Py_BuildValue("(Oi)", r->site.ptr(), r->site_at);
     },
     [](PyObject* self, PyObject* value, void*) {
       const Seam seam;
       auto* r = nb::inst_ptr<MemoryRegionCore>(self);
       PyObject* code = nullptr;
       int at = 0;
       if (value != nullptr && value != Py_None && !PyArg_ParseTuple(value, "Oi", &code, &at)) return -1;
       r->site = code != nullptr ? nb::borrow(code) : nb::object();
       r->site_at = at;
       return 0;
     },
     "The place that made the region: (code, instruction), or None.", nullptr},
    {"domain",
     [](PyObject* self, void*) -> PyObject* {
       const Seam seam;
       const auto* r = nb::inst_ptr<MemoryRegionCore>(self);
       return none_or(r->domain.ptr());
     },
     [](PyObject* self, PyObject* value, void*) {
       const Seam seam;
       auto* r = nb::inst_ptr<MemoryRegionCore>(self);
       r->domain = nb::borrow(value);
       r->enlist(self);
       return 0;
     },
     "The Domain with which the region was registered.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot g_region_slots[] = {{Py_tp_methods, with_signatures("MemoryRegionCore", g_region_methods)},
                                {Py_tp_getset, g_region_getset},
                                {Py_tp_traverse, reinterpret_cast<void*>(region_traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(region_clear)},
                                {Py_tp_setattro, slot<region_setattro>()},
                                {Py_tp_finalize, slot<region_finalize>()},
                                {Py_mp_subscript, slot<region_subscript>()},
                                {0, nullptr}};

}  // namespace

bool close_released(nic::MemoryRegion& region, std::string* why) {
  const ReleasedGil released;
  return region.close(why);
}

MemoryRegionCore::~MemoryRegionCore() {
  const Seam seam;
  delist();  // before releasing the GIL: another thread must not find an object that is being freed
  if (!box || !region || box->forked()) return;
  if (region->closed()) return;
  std::string why;
  // A peer did not finish its copy in time. The peer could write to freed memory, so leak the memory and report it.
  if (!close_released(*region, &why)) {
    keep.each([](const nb::object& o) { Py_INCREF(o.ptr()); });
    PySys_WriteStderr("weft: a region was dropped while %s; its memory is kept\n", why.c_str());
    return;
  }
  give_back();
  if (g_holding) held_pages().release(this);
}

MappingCore::~MappingCore() {
  const Seam seam;
  if (!box || !region || box->forked()) return;
  std::string why;  // if a peer does not finish, the NIC keeps the mapping, and its memory is not reused
  if (close_released(*region, &why) && g_holding) held_pages().release(this);
}

void register_mr(Module& m) {
  Class<MrSlice> slice(m, "MrSlice", nb::type_slots(g_slice_slots), nb::pooled(),
                       "A range of bytes of a registered region: the fastest kind of local buffer.");
  slice.about("Virtual address.")
      .def_prop<"address">([](const MrSlice& s) { return reinterpret_cast<uint64_t>(s.data); })
      .def<"__repr__">([](const MrSlice& s) {
        char text[96];
        std::snprintf(text, sizeof(text), "<MrSlice 0x%llx, %zu B>",
                      static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(s.data)), s.length);
        return std::string(text);
      });
  g_mr_slice_type = reinterpret_cast<PyTypeObject*>(slice.ptr());

  Class<MemoryRegionCore> mr(m, "MemoryRegionCore", nb::type_slots(g_region_slots), nb::dynamic_attr(),
                             nb::is_weak_referenceable(), "The NIC's side of a region.");
  mr.about(
        "owned          memory given as (address, length) has an owner that keeps it mapped.\n"
        "unowned        pages of the memory may go missing, even if an object owns the memory.\n"
        "by_owner       the kernel reads the memory for no other process: this process's engine copies.\n"
        "base           under virtual addressing the address of the first byte, if it is not the buffer's own.\n"
        "vnis, source   the initiators that the region admits: those with one of these VNIs; only this endpoint\n"
        "               (nic, pid, vni).\n"
        "key_later      the region gets its key when it is enabled: from the NIC, or as the argument of enable_core().")
      .def<
          "__init__(self, domain: DomainCore, buffers: Iterable[object], *, access: int, requested_key: int = 0, "
          "flags: int = 0, context: object = None, enabled: bool = True, owned: bool = False, unowned: bool = False, "
          "by_owner: bool = False, base: int | None = None, vnis: Sequence[int] = (), source: tuple[int, int, int] | "
          "None = None, key_later: bool = False) -> None">(
          [](MemoryRegionCore* self, DomainCore& d, nb::handle buffers, uint64_t access, uint64_t requested_key,
             uint64_t flags, nb::handle context, bool enabled, bool owned, bool unowned, bool by_owner,
             std::optional<uint64_t> base, const std::vector<uint16_t>& vnis,
             std::optional<std::tuple<uint32_t, uint32_t, uint16_t>> source, bool key_later) {
            (void)context;
            const uint32_t kind = ((flags & nic::flag::kMrSingleUse) != 0 ? mem::kMrSingleUse : 0) |
                                  ((flags & nic::flag::kRmaPmem) != 0 ? mem::kMrPersistent : 0) |
                                  (by_owner ? mem::kMrByOwner : 0);
            std::optional<wire::EpAddress> only;
            if (source) only = {std::get<0>(*source), std::get<1>(*source), std::get<2>(*source), 0};
            const mem::AccessGuard guard = call::admit(*box_of(d)->domain->nic(), vnis, only);
            nic::RegionExtra extra;
            extra.base = base;
            extra.later = key_later;
            if (key_later && enabled) raise(fi_err::kEINVAL, "key_later excludes enabled: enable_core() makes the key");
            if (source || !vnis.empty()) extra.guard = &guard;
            auto& box = box_of(d);
            box->drain();
            std::vector<PyObject*> list;
            for (nb::handle h : nb::iter(buffers)) list.push_back(h.ptr());
            const RegionKeep held(list);
            if (!make_region(self, box, list, access, requested_key, owned, enabled, kind, extra, unowned)) {
              throw nb::python_error();
            }
          })
      .about("The remote key, or KEY_NOTAVAIL.")
      .def_prop<"key">([](const MemoryRegionCore& r) { return r.region->key(); })
      .about("Local descriptor, for the desc argument of data transfers (fi_mr_desc).")
      .def_prop<"desc(self) -> object">([](nb::handle self) { return nb::borrow(self); })
      .about("Length in bytes.")
      .def_prop<"length">([](const MemoryRegionCore& r) { return r.length; })
      .about("Virtual address of the first byte.")
      .def_prop<"address">([](const MemoryRegionCore& r) {
        if (r.region->buffers().empty()) return uint64_t{0};
        const uint64_t address = r.region->buffers()[0].local_addr;
        return g_holding ? held_pages().original(&r, address) : address;
      })
      .about("The address of the first byte in remote accesses: 0, or a virtual address.")
      .def_prop<"base">([](const MemoryRegionCore& r) { return r.region->base(); })
      .about("Access bits.")
      .def_prop<"access">([](const MemoryRegionCore& r) { return r.region->access(); })
      .about("The memory's interface (enum fi_hmem_iface); 0: host memory.")
      .def_prop<"iface">([](const MemoryRegionCore& r) { return r.iface; })
      .about("The device's number; 0 for host memory.")
      .def_prop<"device">([](const MemoryRegionCore& r) { return r.device; })
      .about("disabled, enabled, used up (after the one operation of MR_SINGLE_USE) or closed.")
      .def_prop<"state">([](const MemoryRegionCore& r) {
        return r.region->closed()    ? "closed"
               : r.region->used_up() ? "used up"
               : r.region->enabled() ? "enabled"
                                     : "disabled";
      })
      .about("True if the region's buffer is read-only.")
      .def_ro<"readonly">(&MemoryRegionCore::readonly)
      .about("True if peers access the memory by load and store, because Weft allocated it.")
      .def_prop<"direct">([](const MemoryRegionCore& r) {
        return !r.region->buffers().empty() && std::ranges::all_of(r.region->buffers(), [&](const auto& b) {
          return b.segment != mem::kNoSegment && r.iface == mem::kHmemSystem;
        });
      })
      .def<"bind_ep(ep)">([](MemoryRegionCore& r, EndpointCore& ep) { r.region->bind_endpoint(*ep.ep); })
      .def<"bind_cntr(cntr, flags)">([](MemoryRegionCore& r, CounterCore& c, uint64_t flags) {
        check_usable(c, "counter");
        r.box->domain->bind_region_counter(r.region, c.counter, flags);
      })
      .about(
          "Enables the region for peers. key: needed by a region with key_later if the NIC makes no keys.\n"
          "Raises NoKey (the key is in use), NoSpace.")
      .def<"enable_core(key=None)">([](MemoryRegionCore& r, std::optional<uint64_t> key) { r.region->enable(key); })
      .about(
          "Replaces enable_core() for a region with key_later: peers access the memory through the mapping, and the\n"
          "region gets the mapping's key.")
      .def<"enable_mapped(mapping)">(
          [](MemoryRegionCore& r, const MappingCore& mapping) { r.region->enable_mapped(mapping.region); })
      .about(
          "Revokes the access of peers until enable(); returns when no access is under way. Raises Busy (a peer did\n"
          "not finish in time).")
      .def<"disable_core">([](MemoryRegionCore& r) {
        std::string why;
        bool done = false;
        {
          const ReleasedGil released;
          done = r.region->disable(&why);
        }
        if (!done) raise(fi_err::kEBUSY, "the region cannot be disabled: ", why, "; try again later");
      })
      .about("Returns the address of the first missing page in [address, address + length), or None.")
      .def<"missing_page(address, length)">([](MemoryRegionCore& r, uint64_t address, uint64_t length) {
        const ReleasedGil released;
        return r.box->nic->host->nic().missing_page(address, length);
      })
      .about("Leaves the further steps to Python, and gives back what mr_reg took of RegionTakes.")
      .def<"unstage">([](MemoryRegionCore& r) {
        if (!r.staged) return;
        r.staged = false;
        r.give_back();
      })
      .def<"close_core">([](MemoryRegionCore& r) {
        if (!close_region(r)) throw nb::python_error();
      });
  g_mr_type = reinterpret_cast<PyTypeObject*>(mr.ptr());
  own_objects(g_mr_type);
  m.about("Whether mr_reg makes its objects without nanobind's table of instances.")
      .def<"light_regions">(&light_regions);
  m.about("For tests: False has nanobind make every object; True makes light ones again, where that is possible.")
      .def<"allow_light_regions(allowed)">(&allow_light_regions);

  Class<MappingCore>(
      m, "Mapping",
      "Memory that peers access through an endpoint, independent of the regions for which it was mapped. A mapping\n"
      "covers whole pages; its offset 0 is `address`.\n\n"
      "A mapping ends with close(), with the last reference to it, when its endpoint is closed, and when memory\n"
      "that Weft allocated is freed. A mapping keeps no other memory alive: accesses to pages that are gone fail.")
      .about(
          "access  REMOTE_READ, REMOTE_WRITE or both.\n\n"
          "Raises NoKey (the key is in use), NoSpace.")
      .def<"__init__(domain, ep, *, address, length, access, key)">([](MappingCore* self, DomainCore& d,
                                                                       EndpointCore& ep, uint64_t address,
                                                                       uint64_t length, uint64_t access, uint64_t key) {
        auto& box = box_of(d);
        if (ep.box != box) raise(fi_err::kEINVAL, "the endpoint of a mapping must belong to the mapping's domain");
        iovec piece{reinterpret_cast<void*>(address), length};  // NOLINT: an address of the process
        if (g_holding) [[unlikely]]
          hold(box.get(), self, &piece);
        const auto first = reinterpret_cast<uint64_t>(piece.iov_base);
        new (self) MappingCore{box, box->domain->map_memory(*ep.ep, first, length, access, key), address, length};
      })
      .about("The key that peers use.")
      .def_prop<"key">([](const MappingCore& r) { return r.region->key(); })
      .about("Virtual address that offset 0 names.")
      .def_ro<"address">(&MappingCore::address)
      .about("The requested bytes from `address` on. Peers can access all of the pages that contain them.")
      .def_ro<"length">(&MappingCore::length)
      .about("True for memory that Weft allocated. The mapping ends when that memory is freed.")
      .def_prop<"direct">([](const MappingCore& r) { return r.region->buffers()[0].segment != mem::kNoSegment; })
      .def_prop<"closed">([](const MappingCore& r) { return r.region->closed(); })
      .about("Revokes the key; returns when no access is under way.")
      .def<"close">([](MappingCore& r) {
        if (r.box->forked()) return;
        std::string why;
        if (!close_released(*r.region, &why))
          raise(fi_err::kEBUSY, "the mapping cannot be closed: ", why, "; try again later");
        if (g_holding) held_pages().release(&r);
      });
}

}  // namespace weft::bind
