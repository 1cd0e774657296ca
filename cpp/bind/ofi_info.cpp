// cpp/bind/ofi_info.cpp: struct fi_info of a real libfabric, and what Python makes of its fields.
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "bind/ofi.hpp"

namespace weft::bind {

namespace {

template <typename S>
struct Number {
  const char* name;
  uint64_t (*get)(const S&);
  void (*set)(S&, uint64_t);
};
#define WEFT_NUMBER(S, field)                                                          \
  {#field, [](const ofi::S& s) -> uint64_t { return static_cast<uint64_t>(s.field); }, \
   [](ofi::S& s, uint64_t v) { s.field = static_cast<decltype(s.field)>(v); }}

constexpr Number<ofi::TxAttr> kTx[] = {WEFT_NUMBER(TxAttr, caps),          WEFT_NUMBER(TxAttr, mode),
                                       WEFT_NUMBER(TxAttr, op_flags),      WEFT_NUMBER(TxAttr, msg_order),
                                       WEFT_NUMBER(TxAttr, comp_order),    WEFT_NUMBER(TxAttr, inject_size),
                                       WEFT_NUMBER(TxAttr, size),          WEFT_NUMBER(TxAttr, iov_limit),
                                       WEFT_NUMBER(TxAttr, rma_iov_limit), WEFT_NUMBER(TxAttr, tclass)};
constexpr Number<ofi::RxAttr> kRx[] = {WEFT_NUMBER(RxAttr, caps),       WEFT_NUMBER(RxAttr, mode),
                                       WEFT_NUMBER(RxAttr, op_flags),   WEFT_NUMBER(RxAttr, msg_order),
                                       WEFT_NUMBER(RxAttr, comp_order), WEFT_NUMBER(RxAttr, total_buffered_recv),
                                       WEFT_NUMBER(RxAttr, size),       WEFT_NUMBER(RxAttr, iov_limit)};
constexpr Number<ofi::EpAttr> kEp[] = {WEFT_NUMBER(EpAttr, type),
                                       WEFT_NUMBER(EpAttr, protocol),
                                       WEFT_NUMBER(EpAttr, protocol_version),
                                       WEFT_NUMBER(EpAttr, max_msg_size),
                                       WEFT_NUMBER(EpAttr, msg_prefix_size),
                                       WEFT_NUMBER(EpAttr, max_order_raw_size),
                                       WEFT_NUMBER(EpAttr, max_order_war_size),
                                       WEFT_NUMBER(EpAttr, max_order_waw_size),
                                       WEFT_NUMBER(EpAttr, mem_tag_format),
                                       WEFT_NUMBER(EpAttr, tx_ctx_cnt),
                                       WEFT_NUMBER(EpAttr, rx_ctx_cnt)};
constexpr Number<ofi::DomainAttr> kDomain[] = {
    WEFT_NUMBER(DomainAttr, threading),      WEFT_NUMBER(DomainAttr, control_progress),
    WEFT_NUMBER(DomainAttr, data_progress),  WEFT_NUMBER(DomainAttr, resource_mgmt),
    WEFT_NUMBER(DomainAttr, av_type),        WEFT_NUMBER(DomainAttr, mr_mode),
    WEFT_NUMBER(DomainAttr, mr_key_size),    WEFT_NUMBER(DomainAttr, cq_data_size),
    WEFT_NUMBER(DomainAttr, cq_cnt),         WEFT_NUMBER(DomainAttr, ep_cnt),
    WEFT_NUMBER(DomainAttr, tx_ctx_cnt),     WEFT_NUMBER(DomainAttr, rx_ctx_cnt),
    WEFT_NUMBER(DomainAttr, max_ep_tx_ctx),  WEFT_NUMBER(DomainAttr, max_ep_rx_ctx),
    WEFT_NUMBER(DomainAttr, max_ep_stx_ctx), WEFT_NUMBER(DomainAttr, max_ep_srx_ctx),
    WEFT_NUMBER(DomainAttr, cntr_cnt),       WEFT_NUMBER(DomainAttr, mr_iov_limit),
    WEFT_NUMBER(DomainAttr, caps),           WEFT_NUMBER(DomainAttr, mode),
    WEFT_NUMBER(DomainAttr, max_err_data),   WEFT_NUMBER(DomainAttr, mr_cnt),
    WEFT_NUMBER(DomainAttr, tclass)};
constexpr Number<ofi::DomainAttr> kDomainKeys[] = {WEFT_NUMBER(DomainAttr, max_ep_auth_key)};
constexpr Number<ofi::DomainAttr> kDomainGroups[] = {WEFT_NUMBER(DomainAttr, max_group_id),
                                                     WEFT_NUMBER(DomainAttr, max_cntr_value),
                                                     WEFT_NUMBER(DomainAttr, max_err_cntr_value)};
constexpr Number<ofi::FabricAttr> kFabric[] = {WEFT_NUMBER(FabricAttr, prov_version),
                                               WEFT_NUMBER(FabricAttr, api_version)};

template <typename S, size_t N>
void show(nb::dict& to, const Number<S> (&fields)[N], const S& from) {
  for (const Number<S>& f : fields) to[f.name] = f.get(from);
}
// Fields that the dictionary has; the others keep their values.
template <typename S, size_t N>
void take(const nb::dict& from, const Number<S> (&fields)[N], S* to) {
  for (const Number<S>& f : fields) {
    if (from.contains(f.name)) f.set(*to, number_of(from[f.name], "getinfo", f.name));
  }
}

nb::object text(const char* s) {
  return s == nullptr ? nb::none() : nb::object(nb::steal(PyUnicode_DecodeFSDefault(s)));
}
nb::object octets(const void* data, size_t size) {
  return data == nullptr ? nb::none() : nb::object(nb::bytes(data, size));
}
// Replaces a string of the struct, which freeinfo() will free.
void put_text(const nb::dict& from, const char* name, char** to) {
  if (!from.contains(name)) return;
  std::free(*to);
  *to = nullptr;
  const nb::object value = from[name];
  if (!value.is_none()) *to = ::strdup(nb::cast<std::string>(value).c_str());
}
template <typename T>
void put_octets(const nb::dict& from, const char* name, T** to, size_t* size) {
  if (!from.contains(name)) return;
  std::free(*to);
  *to = nullptr;
  *size = 0;
  const nb::object value = from[name];
  if (value.is_none()) return;
  const auto given = nb::cast<nb::bytes>(value);
  *to = static_cast<T*>(std::malloc(given.size() == 0 ? 1 : given.size()));
  if (*to == nullptr) throw std::bad_alloc();
  std::memcpy(*to, given.data(), given.size());
  *size = given.size();
}

nb::object nic_fields(const ofi::FidNic* nic) {
  if (nic == nullptr) return nb::none();
  nb::dict d;
  if (nic->device != nullptr) {
    d["name"] = text(nic->device->name);
    d["device_id"] = text(nic->device->device_id);
    d["device_version"] = text(nic->device->device_version);
    d["vendor_id"] = text(nic->device->vendor_id);
    d["driver"] = text(nic->device->driver);
    d["firmware"] = text(nic->device->firmware);
  }
  if (nic->bus != nullptr) d["bus_type"] = nic->bus->bus_type;
  if (nic->link != nullptr) {
    d["address"] = text(nic->link->address);
    d["mtu"] = nic->link->mtu;
    d["speed"] = nic->link->speed;
    d["state"] = nic->link->state;
    d["network_type"] = text(nic->link->network_type);
  }
  return d;
}

nb::dict fields_of(const OfiInfo& self) {
  const ofi::Info& i = *self.info;
  const uint32_t version = ofi::library()->version;
  nb::dict d, tx, rx, ep, domain, fabric;
  d["caps"] = i.caps;
  d["mode"] = i.mode;
  d["addr_format"] = i.addr_format;
  d["src_addr"] = octets(i.src_addr, i.src_addrlen);
  d["dest_addr"] = octets(i.dest_addr, i.dest_addrlen);
  d["handle"] = reinterpret_cast<uint64_t>(i.handle);
  if (i.tx != nullptr) show(tx, kTx, *i.tx);
  if (i.rx != nullptr) show(rx, kRx, *i.rx);
  if (i.ep != nullptr) {
    show(ep, kEp, *i.ep);
    ep["auth_key"] = octets(i.ep->auth_key, i.ep->auth_key_size);
    ep["auth_key_size"] = i.ep->auth_key_size;
  }
  if (i.domain != nullptr) {
    show(domain, kDomain, *i.domain);
    if (version >= ofi::kErrAuthKeys) show(domain, kDomainKeys, *i.domain);
    if (version >= ofi::kGroups) show(domain, kDomainGroups, *i.domain);
    domain["name"] = text(i.domain->name);
    domain["auth_key"] = octets(i.domain->auth_key, i.domain->auth_key_size);
    domain["auth_key_size"] = i.domain->auth_key_size;
  }
  if (i.fabric != nullptr) {
    show(fabric, kFabric, *i.fabric);
    fabric["name"] = text(i.fabric->name);
    fabric["prov_name"] = text(i.fabric->prov_name);
  }
  d["tx_attr"] = tx;
  d["rx_attr"] = rx;
  d["ep_attr"] = ep;
  d["domain_attr"] = domain;
  d["fabric_attr"] = fabric;
  d["nic"] = nic_fields(i.nic);
  return d;
}

nb::dict part(const nb::dict& fields, const char* name) {
  return fields.contains(name) ? nb::cast<nb::dict>(fields[name]) : nb::dict();
}

OfiInfo* make_info(const nb::dict& fields, const OfiInfo* base) {
  const ofi::Library* library = ofi::library();
  if (library == nullptr) raise(kOfiNoDevice, "no libfabric is loaded");
  auto made = std::make_unique<OfiInfo>();
  made->info = library->dupinfo(base == nullptr ? nullptr : base->info);
  if (made->info == nullptr) raise(fi_err::kENOMEM, "fi_dupinfo failed");
  ofi::Info& i = *made->info;
  if (fields.contains("caps")) i.caps = number_of(fields["caps"], "getinfo", "caps");
  if (fields.contains("mode")) i.mode = number_of(fields["mode"], "getinfo", "mode");
  if (fields.contains("addr_format"))
    i.addr_format = static_cast<uint32_t>(number_of(fields["addr_format"], "getinfo", "addr_format"));
  put_octets(fields, "src_addr", &i.src_addr, &i.src_addrlen);
  put_octets(fields, "dest_addr", &i.dest_addr, &i.dest_addrlen);
  if (i.tx != nullptr) take(part(fields, "tx_attr"), kTx, i.tx);
  if (i.rx != nullptr) take(part(fields, "rx_attr"), kRx, i.rx);
  if (i.ep != nullptr) {
    const nb::dict ep = part(fields, "ep_attr");
    take(ep, kEp, i.ep);
    put_octets(ep, "auth_key", &i.ep->auth_key, &i.ep->auth_key_size);
  }
  if (i.domain != nullptr) {
    const nb::dict domain = part(fields, "domain_attr");
    take(domain, kDomain, i.domain);
    if (library->version >= ofi::kErrAuthKeys) take(domain, kDomainKeys, i.domain);
    if (library->version >= ofi::kGroups) take(domain, kDomainGroups, i.domain);
    put_text(domain, "name", &i.domain->name);
    put_octets(domain, "auth_key", &i.domain->auth_key, &i.domain->auth_key_size);
  }
  if (i.fabric != nullptr) {
    const nb::dict fabric = part(fields, "fabric_attr");
    take(fabric, kFabric, i.fabric);
    put_text(fabric, "name", &i.fabric->name);
    put_text(fabric, "prov_name", &i.fabric->prov_name);
  }
  return made.release();
}

nb::list find_infos(uint32_t version, std::optional<std::string> node, std::optional<std::string> service,
                    uint64_t flags, const OfiInfo* hints) {
  const ofi::Library* library = ofi::library();
  if (library == nullptr) raise(kOfiNoDevice, "no libfabric is loaded");
  ofi::Info* found = nullptr;
  int r = 0;
  {
    const ReleasedGil released;  // the first call looks for devices, which takes long
    r = library->getinfo(std::min(version, library->version), node ? node->c_str() : nullptr,
                         service ? service->c_str() : nullptr, flags, hints == nullptr ? nullptr : hints->info, &found);
  }
  if (r < 0) ofi_raise("fi_getinfo", r);
  nb::list made;
  while (found != nullptr) {
    auto one = std::make_unique<OfiInfo>();
    one->info = found;
    found = found->next;
    one->info->next = nullptr;
    made.append(nb::cast(one.release(), nb::rv_policy::take_ownership));
  }
  return made;
}

}  // namespace

nb::object ofi_address(const void* data, size_t length, bool as_text) {
  const char* chars = static_cast<const char*>(data);
  if (!as_text) return nb::bytes(chars, length);
  const auto size = static_cast<Py_ssize_t>(::strnlen(chars, length));
  const nb::object made = nb::steal(PyUnicode_DecodeUTF8(chars, size, "surrogateescape"));  // a name may be any bytes
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

nb::object ofi_words(const char* words) {
  if (words == nullptr) return nb::str("");
  const nb::object made =
      nb::steal(PyUnicode_DecodeUTF8(words, static_cast<Py_ssize_t>(std::strlen(words)), "replace"));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

std::string ofi_address_bytes(const nb::bytes& address, bool as_text) {
  std::string bytes(address.c_str(), address.size());
  if (as_text) bytes.push_back('\0');
  return bytes;
}

void register_ofi_info(Module& m) {
  Class<OfiInfo>(m, "OfiInfo", "A struct fi_info of the library.")
      .def("fields", &fields_of, nb::sig("def fields(self) -> dict[str, Any]"),
           "Its numbers, texts and addresses; those of its parts in dictionaries.");
  m.def("ofi_info", &make_info, nb::arg("fields"), nb::arg("base").none() = nb::none(), nb::rv_policy::take_ownership,
        nb::sig("def ofi_info(fields: dict[str, Any], base: OfiInfo | None = None) -> OfiInfo"),
        "A copy of `base`, or an empty fi_info, with these fields, as OfiInfo.fields() has them.");
  m.def("ofi_getinfo", &find_infos, nb::arg("version"), nb::arg("node").none(), nb::arg("service").none(),
        nb::arg("flags"), nb::arg("hints").none(),
        nb::sig("def ofi_getinfo(version: int, node: str | None, service: str | None, flags: int, hints: OfiInfo | "
                "None) -> list[OfiInfo]"),
        "fi_getinfo of the library. Raises its error: NoData if nothing meets the hints.");
  m.def(
      "ofi_load",
      [](const std::string& path) -> nb::object {
        std::string why;
        count_forks();  // no NIC of Weft's may ever be opened here
        if (ofi::load(path.c_str(), &why) == nullptr) return nb::str(why.c_str());
        return nb::none();
      },
      nb::arg("path"), nb::sig("def ofi_load(path: str) -> str | None"),
      "Opens a libfabric, unless one is open. Returns the reason if there is none.");
  m.def(
      "ofi_library",
      []() -> nb::object {
        const ofi::Library* library = ofi::library();
        if (library == nullptr) return nb::none();
        return nb::make_tuple(library->path, library->version);
      },
      nb::sig("def ofi_library() -> tuple[str, int] | None"), "(path, version) of the open libfabric, or None.");
  m.def(
      "ofi_strerror",
      [](int code) -> std::string {
        const ofi::Library* library = ofi::library();
        // INT_MIN is no errno, and has no positive int.
        const int positive = code == std::numeric_limits<int>::min() ? code : std::abs(code);
        return library == nullptr ? "" : library->strerror(positive);
      },
      nb::arg("errno"), nb::sig("def ofi_strerror(errno: int) -> str"), "fi_strerror of the library.");
}

}  // namespace weft::bind
