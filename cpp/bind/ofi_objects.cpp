// cpp/bind/ofi_objects.cpp: fabrics, domains, address vectors and passive endpoints of a real libfabric.
#include <time.h>

#include <array>

#include "bind/ofi.hpp"

namespace weft::bind {

// ---- errors --------------------------------------------------------------------------------------------------------

namespace {

constexpr const char* kNotDone =
    "\n  the provider does not do this: fi_provider(7) and the provider's own page say what it does";
constexpr std::pair<int, const char*> kAdvice[] = {
    {fi_err::kEAGAIN, "\n  try: read the completion queues, then call again"},
    {fi_err::kEBUSY, "\n  try: close what uses the object first"},
    {fi_err::kENOSYS, kNotDone},
    {fi_err::kEOPNOTSUPP, kNotDone},
    {fi_err::kEOPBADSTATE, "\n  try: ep.enable() first; connect() or accept() for a connected endpoint"},
    {261 /* FI_ENOEQ */, "\n  try: bind(fabric.eq_open()) first"},
    {fi_err::kENOCQ, "\n  try: ep.bind(cq, fi.TRANSMIT | fi.RECV) before enable()"},
    {fi_err::kENOKEY,
     "\n  try: a requested_key that no open region of the domain has; without MR_PROV_KEY the application chooses the "
     "keys of all regions"},
    {fi_err::kENOAV, "\n  try: ep.bind(domain.av_open()) before enable()"},
};

const char* advice(int code) {
  const auto* const found = std::ranges::find(kAdvice, code, &std::pair<int, const char*>::first);
  return found == std::end(kAdvice) ? "" : found->second;
}

std::string version_text() {
  const ofi::Library* library = ofi::library();
  if (library == nullptr) return "";
  return std::to_string(library->version >> 16) + "." + std::to_string(library->version & 0xffff);
}

}  // namespace

Failed ofi_set_error(const std::string& call, ssize_t code, const std::string& more) {
  const int number = static_cast<int>(code < 0 ? -code : code);
  const ofi::Library* library = ofi::library();
  const char* text = library == nullptr ? "" : library->strerror(number);
  return set_error(number, call, ": libfabric: ", (text == nullptr ? "unknown error" : text),
                   (more.empty() ? "" : "\n  " + more), advice(number));
}
void ofi_raise(const std::string& call, ssize_t code, const std::string& more) {
  ofi_set_error(call, code, more);
  throw nb::python_error();
}
Failed ofi_missing(const std::string& call) {
  return set_error(fi_err::kEOPNOTSUPP, call, ": this libfabric (", version_text(),
                   ") or its provider has no such call\n  try: a newer libfabric (WEFT_LIBFABRIC), "
                   "or another provider");
}
void ofi_raise_missing(const std::string& call) {
  (void)ofi_missing(call);
  throw nb::python_error();
}

// ---- life ----------------------------------------------------------------------------------------------------------

// At the end of the process objects stay open: Python ends them in any order, and the process ends them anyway.
bool ofi_may_drop(const OfiHandle& handle) noexcept {
  return !handle.forked() && !interpreter_ends();
}

int OfiHandle::shut() noexcept {
  if (fid == nullptr) return 0;
  if (refused != 0) return refused;
  if (forked() || interpreter_ends()) {
    fid = nullptr;
    return 0;
  }
  closing = true;
  while (calls > 0) {
    const ReleasedGil released;
    const timespec moment{0, 200'000};
    ::nanosleep(&moment, nullptr);
  }
  if (fid == nullptr) return refused;  // another thread closed it meanwhile
  const int r = fid->ops->close(fid);
  closing = false;
  if (r < 0 && once) refused = r;
  if (r != 0) return r;
  fid = nullptr;
  const auto freed = std::move(bound);
  return 0;
}

// A read of a queue or counter makes progress on the endpoints that are bound to it, and ends the process if one of
// them is not enabled, in several providers: READ_BEFORE_ENABLE_CRASHES of the table of quirks.
Failed ofi_refuse_use(const OfiHandle& handle, const char* call, const char* what) {
  if (handle.fid == nullptr || handle.closing)
    return set_error(fi_err::kEOPBADSTATE, call, ": the ", what, " is closed");
  if (handle.forked()) {
    return set_error(fi_err::kEOPBADSTATE, call, ": this ", what,
                     " belongs to the parent process: a forked child opens its own fabric");
  }
  return set_error(fi_err::kEOPBADSTATE, call,
                   ": an endpoint that is bound to it is not enabled, and libfabric may end the process then\n"
                   "  try: ep.enable() first, or ep.close()");
}

bool ofi_trywait(OfiFabric& fabric, std::vector<ofi::Fid*> fids) {
  const auto call = ofi::op(fabric.get()->ops, &ofi::FabricOps::trywait);
  if (call == nullptr) ofi_raise_missing("trywait");
  const int r = call(fabric.get(), fids.data(), static_cast<int>(fids.size()));
  if (r < 0 && r != -fi_err::kEAGAIN) ofi_raise("trywait", r);
  return r == 0;
}

namespace {

template <typename T>
uint64_t number_of_fid(const OfiCore<T>& core) {
  return reinterpret_cast<uint64_t>(core.box->h.fid);
}

// ---- fabrics and domains -------------------------------------------------------------------------------------------

void make_fabric(OfiCore<OfiFabric>* self, const OfiInfo& info) {
  auto made = std::make_unique<OfiCore<OfiFabric>>();
  ofi::FidFabric* fid = nullptr;
  ofi_check("fi_fabric", ofi::library()->fabric(info.info->fabric, &fid, nullptr));
  made->box->h.fid = &fid->fid;
  new (self) OfiCore<OfiFabric>(*made);
}

constexpr int kThreadSafe = 1;       // FI_THREAD_SAFE
constexpr int kMrLocal = 1 << 2;     // FI_MR_LOCAL
constexpr uint32_t kFormatText = 9;  // FI_ADDR_STR

void make_domain_of(OfiCore<OfiDomain>* self, const OfiCore<OfiFabric>& fabric, const OfiInfo& info, uint64_t quirks,
                    size_t group_bytes, const std::string& group_setting) {
  OfiFabric& f = ofi_open(fabric, "fi_domain");
  auto box = std::make_shared<OfiDomain>();
  ofi::FidDomain* fid = nullptr;
  ofi_run("fi_domain", f, &ofi::FabricOps::domain, info.info, &fid, nullptr);
  box->fabric = fabric.box;
  box->h.fid = &fid->fid;
  box->thread_safe = info.info->domain->threading == kThreadSafe;
  box->text_addresses = info.info->addr_format == kFormatText;
  box->mr_local = (info.info->domain->mr_mode & kMrLocal) != 0;
  box->quirks = ofi::Quirks(quirks);
  box->h.once = box->quirks.has(ofi::Quirk::refused_close_frees);
  box->group_bytes = group_bytes;
  box->group_setting = group_setting;
  new (self) OfiCore<OfiDomain>{box};
}

std::pair<size_t, size_t> query_atomic(OfiCore<OfiDomain>& self, int datatype, int op, uint64_t flags) {
  OfiDomain& d = ofi_open(self, "query_atomic");
  ofi::AtomicAttr attr{};
  ofi_run("query_atomic", d, &ofi::DomainOps::query_atomic, datatype, op, &attr, flags);
  return {attr.count, attr.size};
}

std::tuple<size_t, size_t, size_t, uint64_t> query_collective(OfiCore<OfiDomain>& self, int collective, int op,
                                                              int datatype, uint64_t flags) {
  OfiDomain& d = ofi_open(self, "query_collective");
  ofi::CollectiveAttr attr{op, datatype, {}, 0, 0};
  ofi_run("query_collective", d, &ofi::DomainOps::query_collective, collective, &attr, flags);
  return {attr.datatype_attr.count, attr.datatype_attr.size, attr.max_members, attr.mode};
}

uint64_t map_raw(OfiCore<OfiDomain>& self, uint64_t base, const nb::bytes& raw, uint64_t flags) {
  OfiDomain& d = ofi_open(self, "map_raw");
  std::string copy(raw.c_str(), raw.size());
  uint64_t key = 0;
  ofi::MapRaw map{flags, base, reinterpret_cast<uint8_t*>(copy.data()), copy.size(), &key};
  ofi_check("map_raw", d.h.fid->ops->control(d.h.fid, ofi::kMapRawMr, &map));
  return key;
}

void unmap_key(OfiCore<OfiDomain>& self, uint64_t key) {
  OfiDomain& d = ofi_open(self, "unmap_key");
  ofi_check("unmap_key", d.h.fid->ops->control(d.h.fid, ofi::kUnmapKey, &key));
}

// ---- address vectors -----------------------------------------------------------------------------------------------

void make_av(OfiCore<OfiAv>* self, const OfiCore<OfiDomain>& domain, int type, int rx_ctx_bits, size_t count,
             size_t ep_per_node, std::optional<std::string> name, uint64_t flags) {
  OfiDomain& d = ofi_open(domain, "av_open");
  ofi::AvAttr attr{type, rx_ctx_bits, count, ep_per_node, name ? name->c_str() : nullptr, nullptr, flags};
  ofi::FidAv* fid = nullptr;
  ofi_run("av_open", d, &ofi::DomainOps::av_open, &attr, &fid, nullptr);
  auto box = std::make_shared<OfiAv>();
  box->domain = domain.box;
  box->h.fid = &fid->fid;
  box->any = rx_ctx_bits != 0;
  new (self) OfiCore<OfiAv>{box};
}

// The vector, open, and able to take addresses.
OfiAv& taking(OfiCore<OfiAv>& self, const char* call) {
  OfiAv& av = ofi_open(self, call);
  if (av.h.unready != 0 && av.domain->quirks.has(ofi::Quirk::insert_before_enable_crashes)) {
    raise(fi_err::kEOPBADSTATE, call,
          ": an endpoint that is bound to the vector is not enabled, and this provider of "
          "libfabric then ends the process\n  try: ep.enable() first, or ep.close()");
  }
  return av;
}

// given: under FI_AV_USER_ID an id for the peer, under FI_AUTH_KEY the fi_addr of a key.
uint64_t insert_one(OfiCore<OfiAv>& self, const nb::bytes& address, uint64_t flags, std::optional<uint64_t> given) {
  OfiAv& av = taking(self, "av.insert");
  const std::string bytes = ofi_address_bytes(address, av.domain->text_addresses);
  std::array<char, kOfiAddressMax> room{};  // some providers read the longest address that they have
  std::memcpy(room.data(), bytes.data(), std::min(bytes.size(), room.size()));
  ofi::Addr found = given.value_or(~uint64_t{0});
  const int r = ofi_run("av.insert", av, &ofi::AvOps::insert, room.data(), 1, &found, flags, nullptr);
  if (r == 0 || found == ~uint64_t{0})
    ofi_raise("av.insert", fi_err::kEINVAL, "the provider does not take the address");
  av.add(found);
  return found;
}

// Inserts addresses of one size, with an event that has `number` as its context. (what the library returned, fi_addrs).
std::pair<int, std::vector<uint64_t>> insert_with_event(OfiCore<OfiAv>& self, const std::vector<nb::bytes>& addresses,
                                                        uint64_t flags, uint64_t number) {
  OfiAv& av = taking(self, "av.insert");
  std::string room;
  for (const nb::bytes& one : addresses) room.append(one.c_str(), one.size());
  room.resize(room.size() + kOfiAddressMax);
  std::vector<uint64_t> found(addresses.size(), ~uint64_t{0});
  const int r = ofi_run("av.insert", av, &ofi::AvOps::insert, room.data(), found.size(), found.data(), flags,
                        reinterpret_cast<void*>(number));
  for (const uint64_t one : found) {
    if (one != ~uint64_t{0}) av.add(one);
  }
  return {r, found};
}

uint64_t insert_service(OfiCore<OfiAv>& self, std::optional<std::string> node, std::optional<std::string> service,
                        uint64_t flags) {
  OfiAv& av = taking(self, "av.insertsvc");
  ofi::Addr found = ~uint64_t{0};
  const int r = ofi_run("av.insertsvc", av, &ofi::AvOps::insertsvc, node ? node->c_str() : nullptr,
                        service ? service->c_str() : nullptr, &found, flags, nullptr);
  if (r == 0) ofi_raise("av.insertsvc", fi_err::kEINVAL, "the provider finds no such address");
  av.add(found);
  return found;
}

std::vector<uint64_t> insert_symmetric(OfiCore<OfiAv>& self, const std::string& node, size_t nodes,
                                       const std::string& service, size_t services, uint64_t flags) {
  OfiAv& av = taking(self, "av.insertsym");
  if (nodes > 1 << 20 || services > 1 << 20) raise(fi_err::kEINVAL, "av.insertsym: too many addresses");
  std::vector<uint64_t> found(nodes * services, ~uint64_t{0});
  ofi_run("av.insertsym", av, &ofi::AvOps::insertsym, node.c_str(), nodes, service.c_str(), services, found.data(),
          flags, nullptr);
  for (const uint64_t one : found) {
    if (one != ~uint64_t{0}) av.add(one);
  }
  return found;
}

// The library does not check a fi_addr. Another thread may have removed one since Python looked.
void expect_known(const OfiAv& av, uint64_t fi_addr, const char* call) {
  if (av.knows(fi_addr)) return;
  raise(fi_err::kEINVAL, call, ": fi_addr ", fi_addr,
        " is not in the vector\n  try: what av.insert() returned, before av.remove()");
}

void remove_one(OfiCore<OfiAv>& self, uint64_t fi_addr, uint64_t flags) {
  OfiAv& av = ofi_open(self, "av.remove");
  expect_known(av, fi_addr, "av.remove");
  ofi_run("av.remove", av, &ofi::AvOps::remove, &fi_addr, 1, flags);
  av.drop(fi_addr);
}

nb::object look_up(OfiCore<OfiAv>& self, uint64_t fi_addr) {
  OfiAv& av = ofi_open(self, "av.lookup");
  expect_known(av, fi_addr, "av.lookup");
  return ofi_address_by(av.domain->text_addresses, [&](void* room, size_t* length) {
    ofi_run("av.lookup", av, &ofi::AvOps::lookup, fi_addr, room, length);
  });
}

nb::str text_of(OfiCore<OfiAv>& self, const nb::bytes& address) {
  OfiAv& av = ofi_open(self, "av.straddr");
  const std::string bytes = ofi_address_bytes(address, av.domain->text_addresses);
  const auto call = ofi::op(av.get()->ops, &ofi::AvOps::straddr);
  if (call == nullptr) ofi_raise_missing("av.straddr");
  std::array<char, kOfiAddressMax> in{}, out{};
  std::memcpy(in.data(), bytes.data(), std::min(bytes.size(), in.size()));
  size_t length = out.size();
  const char* found = call(av.get(), in.data(), out.data(), &length);
  return ofi_words(found);
}

uint64_t insert_auth_key(OfiCore<OfiAv>& self, const nb::bytes& key, uint64_t flags) {
  OfiAv& av = ofi_open(self, "av.insert_auth_key");
  ofi::Addr found = ~uint64_t{0};
  ofi_run("av.insert_auth_key", av, &ofi::AvOps::insert_auth_key, key.c_str(), key.size(), &found, flags);
  return found;
}

nb::bytes lookup_auth_key(OfiCore<OfiAv>& self, uint64_t fi_addr) {
  OfiAv& av = ofi_open(self, "av.lookup_auth_key");
  return nb::bytes(ofi_address_by(false, [&](void* room, size_t* length) {
    ofi_run("av.lookup_auth_key", av, &ofi::AvOps::lookup_auth_key, fi_addr, room, length);
  }));
}

void set_user_id(OfiCore<OfiAv>& self, uint64_t fi_addr, uint64_t id, uint64_t flags) {
  OfiAv& av = ofi_open(self, "av.set_user_id");
  ofi_run("av.set_user_id", av, &ofi::AvOps::set_user_id, fi_addr, id, flags);
}

// ---- passive endpoints ---------------------------------------------------------------------------------------------

void make_pep(OfiCore<OfiPep>* self, const OfiCore<OfiFabric>& fabric, const OfiInfo& info) {
  OfiFabric& f = ofi_open(fabric, "passive_ep");
  ofi::FidPep* fid = nullptr;
  ofi_run("passive_ep", f, &ofi::FabricOps::passive_ep, info.info, &fid, nullptr);
  auto box = std::make_shared<OfiPep>();
  box->fabric = fabric.box;
  box->h.fid = &fid->fid;
  new (self) OfiCore<OfiPep>{box};
}

}  // namespace

void register_ofi(Module& m) {
  m.about("The names of the quirks that the extension guards, in the order of bits.").def<"ofi_quirks">([] {
    return std::vector<std::string>(ofi::kQuirks.begin(), ofi::kQuirks.end());
  });
  Class<OfiCore<OfiFabric>>(m, "OfiFabricCore", "A fabric of a real libfabric.")
      .def<"__init__(info)">(&make_fabric)
      .def<"close">(&ofi_close<"fabric.close", OfiFabric>)
      .about("True while an object that uses this one exists.")
      .def_prop<"in_use">(&ofi_in_use<OfiFabric>)
      .about("fi_trywait: True if it is safe to sleep on the descriptors of these open objects, given by `fid`.")
      .def<"trywait(fids)">([](OfiCore<OfiFabric>& self, const std::vector<uint64_t>& fids) {
        OfiFabric& f = ofi_open(self, "trywait");
        std::vector<ofi::Fid*> all;
        for (const uint64_t one : fids) all.push_back(reinterpret_cast<ofi::Fid*>(one));
        return ofi_trywait(f, all);
      });
  Class<OfiCore<OfiDomain>>(m, "OfiDomainCore", "A domain of a real libfabric.")
      .about(
          "quirks: bits in the order of ofi_quirks(). group_bytes: the most of a collective, and the provider's "
          "setting of that.")
      .def<"__init__(fabric, info, quirks, group_bytes, group_setting)">(&make_domain_of)
      .def<"close_core">([](OfiCore<OfiDomain>& c) {
        const int r = c.box->h.shut();
        if (r < 0) {
          const ofi::Library* library = ofi::library();
          raise(-r, "domain.close: libfabric: ", (library == nullptr ? "" : library->strerror(-r)),
                "\n  rule: all objects of the domain are closed, but the library still uses it, as some "
                "providers do after messages that did not end; it stays open until the process ends\n"
                "  try: read the completions of all messages before ep.close()");
        }
      })
      .about("True while an object that uses this one exists.")
      .def_prop<"in_use">(&ofi_in_use<OfiDomain>)
      .def<"bind_eq(eq, flags)">(&ofi_bound<"domain.bind", OfiDomain, OfiEq>)
      .about("(count, size) of fi_query_atomic.")
      .def<"query_atomic_core(datatype, op, flags)">(&query_atomic)
      .about("(count, size, max_members, mode) of fi_query_collective.")
      .def<"query_collective_core(coll, op, datatype, flags)">(&query_collective)
      .def<"map_raw_core(base_addr, raw_key, flags)">(&map_raw)
      .def<"unmap_key_core(key)">(&unmap_key)
      .about("True if collectives are libfabric's own, made of messages; False if the provider has its own.")
      .def_prop<"soft_groups">([](OfiCore<OfiDomain>& c) { return c.box->soft_groups(); })
      .def_prop<"thread_safe">([](OfiCore<OfiDomain>& c) { return c.box->thread_safe; });
  Class<OfiCore<OfiAv>>(m, "OfiAddressVectorCore", "An address vector of a real libfabric.")
      .def<"__init__(domain, type, rx_ctx_bits, count, ep_per_node, name?, flags)">(&make_av)
      .def<"close_core">(&ofi_close<"av.close", OfiAv>)
      .about("True while an object that uses this one exists.")
      .def_prop<"in_use">(&ofi_in_use<OfiAv>)
      .about("fi_av_insert of one address. given: fi_addr as an argument, under FI_AV_USER_ID and FI_AUTH_KEY.")
      .def<"insert_one(address, flags, given=None)">(&insert_one)
      .about("fi_av_insert of addresses of one size, which is reported to the event queue.")
      .def<"insert_event(addresses, flags, number)">(&insert_with_event)
      .def<"bind_eq(eq, flags)">(&ofi_bound<"av.bind", OfiAv, OfiEq>)
      .def<"insert_auth_key_core(key, flags)">(&insert_auth_key)
      .def<"lookup_auth_key_core(fi_addr)">(&lookup_auth_key)
      .def<"insertsvc_core(node?, service?, flags)">(&insert_service)
      .def<"insertsym_core(node, nodecnt, service, svccnt, flags)">(&insert_symmetric)
      .def<"_remove_one(fi_addr, flags)">(&remove_one)
      .def<"_lookup(self, fi_addr: int) -> bytes | str">(&look_up)
      .def<"straddr_core(address)">(&text_of)
      .def<"set_user_id_core(fi_addr, user_id, flags)">(&set_user_id);
}

void register_ofi_passive(Module& m) {
  Class<OfiCore<OfiPep>>(m, "OfiPassiveEndpointCore", "A passive endpoint of a real libfabric.")
      .def<"__init__(fabric, info)">(&make_pep)
      .def<"close_core">(&ofi_close<"pep.close", OfiPep>)
      .def_prop<"fid">(&number_of_fid<OfiPep>)
      .def<"bind_eq(eq)">(
          [](OfiCore<OfiPep>& self, OfiCore<OfiEq>& eq) { (void)ofi_bind("pep.bind", self, eq.box, 0); })
      .def<"listen_core">([](OfiCore<OfiPep>& self) {
        OfiPep& pep = ofi_open(self, "pep.listen");
        ofi_run("pep.listen", pep.get()->cm, &ofi::CmOps::listen, pep.get());
      })
      .def<"reject_core(handle, param)">([](OfiCore<OfiPep>& self, uint64_t handle, const nb::bytes& param) {
        OfiPep& pep = ofi_open(self, "pep.reject");
        ofi_run("pep.reject", pep.get()->cm, &ofi::CmOps::reject, pep.get(), reinterpret_cast<ofi::Fid*>(handle),
                param.c_str(), param.size());
      })
      .def<"setname_core(address, text)">([](OfiCore<OfiPep>& self, const nb::bytes& address, bool text) {
        OfiPep& pep = ofi_open(self, "pep.setname");
        std::string bytes = ofi_address_bytes(address, text);
        ofi_run("pep.setname", pep.get()->cm, &ofi::CmOps::setname, pep.h.fid, bytes.data(), bytes.size());
      })
      .def<"getname_core(self, text: bool) -> bytes | str">([](OfiCore<OfiPep>& self, bool text) {
        OfiPep& pep = ofi_open(self, "pep.getname");
        return ofi_address_by(text, [&](void* room, size_t* length) {
          ofi_run("pep.getname", pep.get()->cm, &ofi::CmOps::getname, pep.h.fid, room, length);
        });
      });
}

}  // namespace weft::bind
