// cpp/bind/domain.cpp: domains as Python types, and mr_reg, their data path.
#include <algorithm>

#include "bind/objects.hpp"
#include "bind/signatures.hpp"
#include "bind/takes.hpp"

namespace weft::bind {

std::shared_ptr<DomainBox>& box_of(DomainCore& d) {
  if (!d.box || d.box->closed) raise(fi_err::kEOPBADSTATE, "the domain is closed");
  if (d.box->forked()) {
    raise(fi_err::kEOPBADSTATE, "this domain belongs to the parent process: a forked child opens its own fabric");
  }
  return d.box;
}

DomainCore make_domain(PyNic& nic, const nic::DomainConfig& config) {
  const auto make = [&] { return std::make_shared<DomainBox>(box_of(nic), config); };
  try {
    return DomainCore{make()};
  } catch (const Error& e) {
    if (e.fi_code() != fi_err::kENOSPC) throw;
    PyGC_Collect();  // frees closed domains that an exception's traceback still refers to
    return DomainCore{make()};
  }
}

namespace {

PyObject* g_region_type = nullptr;  // weft.fi.MemoryRegion

Signature g_mr_reg_sig{"mr_reg", {"buf", "access", "offset", "requested_key", "flags", "context", "len"}, 6, 2, {}};

bool absent(PyObject* o) {
  return o == nullptr || o == Py_None;
}

// Registers one buffer without options. Null: nothing was registered or taken; use _mr_reg.
PyObject* register_quickly(PyObject* self, const std::shared_ptr<DomainBox>& box, PyObject* buffer, uint64_t access,
                           uint64_t key) {
  const RegionRules& rules = box->rules;
  const bool free = rules.local_free && (access & (mem::kRemoteRead | mem::kRemoteWrite)) == 0;
  if (rules.key_ignored || free) {
    key = 0;
  } else if (key >= rules.key_end || (key & rules.key_meanings) != 0) [[unlikely]] {
    return nullptr;
  }
  box->drain();
  const bool staged = rules.disabled && !free;
  uint32_t number = MemoryRegionCore::kNoNumber;
  if (staged && rules.takes != nullptr) {
    const auto taken = rules.takes->numbers->take();
    if (!taken) return nullptr;
    number = *taken;
  }
  nic::RegionExtra extra;
  extra.later = staged && rules.key_later;
  MemoryRegionCore* made = nullptr;
  PyObject* region = new_region(g_region_type, &made);
  if (region == nullptr || !make_region(made, box, {&buffer, 1}, access, key, false, !staged, 0, extra)) {
    if (number != MemoryRegionCore::kNoNumber) rules.takes->numbers->give(number);
    if (region != nullptr) drop_region(region);
    return nullptr;
  }
  region_made(region, made);
  made->staged = staged;
  made->number = number;
  made->domain = nb::borrow(self);
  made->enlist(region);
  note_site(made);
  return region;
}

// HOT: some programs register for every transfer. Benchmark: bench/bench_registration.py.
// Calls with special arguments go to weft.fi.Domain._mr_reg, unchanged.
PyObject* domain_mr_reg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse(g_mr_reg_sig, args, nargs, kwnames, a)) return nullptr;
  auto* core = nb::inst_ptr<DomainCore>(self);
  uint64_t access = 0, key = 0, offset = 0, flags = 0;
  const auto plain_number = [](PyObject* o, uint64_t* out) {  // _mr_reg explains the errors of other objects
    if (o == nullptr) return true;
    if (!PyLong_Check(o)) return false;
    *out = PyLong_AsUnsignedLongLong(o);
    if (*out != ~uint64_t{0}) return true;
    PyErr_Clear();
    return false;
  };
  if (core->box && core->box->rules.quick && !core->box->closed && !core->box->forked() && absent(a[6]) &&
      plain_number(a[1], &access) && plain_number(a[2], &offset) && plain_number(a[3], &key) &&
      plain_number(a[4], &flags) && (access & ~core->box->rules.access) == 0 && (offset | flags) == 0 &&
      // Under FI_MR_ALLOCATED, _mr_reg checks that pages are mapped at bare addresses.
      !(core->box->config.mr_allocated && PyTuple_CheckExact(a[0])) && g_region_type != nullptr) [[likely]] {
    PyObject* region = register_quickly(self, core->box, a[0], access, key);
    if (region != nullptr) [[likely]]
      return region;
    PyErr_Clear();  // _mr_reg refuses it with the provider's error
  }
  constexpr size_t kArgsMax = 8;
  const Py_ssize_t total = nargs + (kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0);
  PyObject* forwarded[kArgsMax] = {self};
  std::copy(args, args + total, forwarded + 1);  // fits: parse() has accepted at most one argument per parameter
  return PyObject_VectorcallMethod(interned<"_mr_reg">(), forwarded, static_cast<size_t>(nargs) + 1, kwnames);
}

PyMethodDef g_domain_methods[] = {
    {"mr_reg", method<domain_mr_reg>(), kFast,
     "Register memory (fi_mr_reg). Returns a MemoryRegion.\n\n"
     "buf             a buffer of at least 1 byte, or (address, length). Held until the region is closed. Peers\n"
     "                access memory that Weft allocated (`Domain.alloc`, `weft.empty`) fastest.\n"
     "access          the permitted accesses: `fi.READ`, `fi.WRITE` (as local buffer of transfers),\n"
     "                `fi.REMOTE_READ`, `fi.REMOTE_WRITE` (by peers) ...\n"
     "offset          reserved, 0.\n"
     "requested_key   the key that peers will use, below 2**64 - 1; ignored under `fi.MR_PROV_KEY`.\n"
     "flags           `fi.RMA_EVENT`: a counter will be bound.\n"
     "context         for the event of an asynchronous registration.\n"
     "len             number of bytes from the start of buf; None: all.\n\n"
     "Raises NoKey (the key is in use), KeyRejected (out of range), AccessDenied (read-only memory and an access\n"
     "that writes), InvalidArgument (no bytes, unknown access, offset), BadFlags.\n"
     "Thread safety: any thread. Source: fi_mr(3) fi_mr_reg."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void register_domain(Module& m) {
  m.about("Registers the class of regions that DomainCore.mr_reg makes: a subclass of MemoryRegionCore.")
      .def<"set_region_type(type)">([](nb::type_object type) { keep(g_region_type, std::move(type)); });

  Class<DomainCore>(m, "DomainCore", nb::type_slots(method_slots<"DomainCore", g_domain_methods>()),
                    "The NIC's side of a domain.")
      .about("takes  the resources that a region takes of the provider.")
      .def<"__init__(self, nic: Nic, config: DomainConfig, takes: RegionTakes | None = None) -> None">(
          [](DomainCore* self, PyNic& nic, const nic::DomainConfig& config, nb::handle takes) {
            RegionTakes* const taken = takes.is_none() ? nullptr : nb::cast<RegionTakes*>(takes);
            new (self) DomainCore(make_domain(nic, config));
            self->box->rules.takes = taken;
            if (taken != nullptr) self->box->rules.takes_object = nb::borrow(takes);
          })
      .about("Returns a handle for a peer's key. Transfers of a domain with raw keys take handles in place of keys.")
      .def<"map_key(key)">([](DomainCore& d, uint64_t key) { return box_of(d)->domain->map_raw(key); })
      .about("Frees a handle of map_key(); False if there is no such handle.")
      .def<"unmap_handle(handle)">([](DomainCore& d, uint64_t handle) { return box_of(d)->domain->unmap_raw(handle); })
      .about("False: from now on every mr_reg calls _mr_reg.")
      .def<"set_mr_quick(quick)">([](DomainCore& d, bool quick) { d.box->rules.quick = quick; })
      .about("The open regions that were bound to an endpoint without Python.")
      .def<"staged_with(self, ep: object) -> list[Any]">([](DomainCore& d, nb::handle ep) {
        nb::list out;
        if (!d.box || d.box->forked()) return out;
        for (MemoryRegionCore* r = d.box->regions; r != nullptr; r = r->next) {
          PyObject* found = r->staged && r->bound.is(ep) ? still_alive(r->self) : nullptr;
          if (found != nullptr) out.append(nb::steal(found));
        }
        return out;
      })
      .about(
          "Calls callback(pid, what) soon after an endpoint has news, in a call that posts or reads. The callback "
          "must\n"
          "not refer to the domain. match_mode: the endpoint's message_statistics() about its match mode have "
          "changed.\n"
          "no_id: too many long messages waited to be pulled. stopped: a receiver has refused a message; the last two\n"
          "are told for the first, second, fourth ... time.")
      .def<"set_news(self, callback: Callable[[int, str], object]) -> None">(
          [](DomainCore& d, nb::object callback) { box_of(d)->on_news = std::move(callback); })
      .about("The open regions.")
      .def<"regions(self) -> list[Any]">([](DomainCore& d) {
        nb::list out;
        if (!d.box || d.box->forked()) return out;
        for (MemoryRegionCore* r = d.box->regions; r != nullptr; r = r->next) {
          if (PyObject* found = still_alive(r->self)) out.append(nb::steal(found));
        }
        return out;
      })
      .def<"close">([](DomainCore& d) {
        if (!d.box || d.box->closed || d.box->forked()) return;
        d.box->domain->triggers().flush();
        d.box->drain();
        d.box->on_news = nb::object();
        d.box->closed = true;
      });
}

}  // namespace weft::bind
