// cpp/bind/ofi_info.cpp: struct fi_info of a real libfabric, and what Python makes of its fields.
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>

#include "bind/ofi.hpp"
#include "ofi/fields.hpp"

namespace weft::bind {

namespace {

// The parts of an Info in Python, by ofi::Part.
constexpr const char* kParts[] = {nullptr, "tx_attr", "rx_attr", "ep_attr", "domain_attr", "fabric_attr"};

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

// Each text, and each address or key with its length: text(part, name, place), octets(part, name, place, length).
template <typename Text, typename Octets>
void each_pointer(ofi::Info& i, Text&& text, Octets&& octets) {
  using ofi::Part;
  octets(Part::info, "src_addr", &i.src_addr, &i.src_addrlen);
  octets(Part::info, "dest_addr", &i.dest_addr, &i.dest_addrlen);
  if (i.ep != nullptr) octets(Part::ep, "auth_key", &i.ep->auth_key, &i.ep->auth_key_size);
  if (i.domain != nullptr) {
    text(Part::domain, "name", &i.domain->name);
    octets(Part::domain, "auth_key", &i.domain->auth_key, &i.domain->auth_key_size);
  }
  if (i.fabric == nullptr) return;
  text(Part::fabric, "name", &i.fabric->name);
  text(Part::fabric, "prov_name", &i.fabric->prov_name);
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
    WEFT_PUT(d, *nic->link, mtu, speed, state);
    d["network_type"] = text(nic->link->network_type);
  }
  return d;
}

nb::dict fields_of(const OfiInfo& self) {
  ofi::Info& i = *self.info;
  nb::dict d;
  for (const char* name : std::span(kParts).subspan(1)) d[name] = nb::dict();
  const auto part = [&](ofi::Part one) { return one == ofi::Part::info ? d : nb::cast<nb::dict>(d[kParts[int(one)]]); };
  for (const ofi::Field& f : ofi::kInfoFields) {
    const std::byte* const from = ofi::part_of(i, f.part);
    if (from == nullptr || f.since > ofi::library()->version) continue;
    uint64_t value = 0;
    std::memcpy(&value, from + f.offset, f.size);  // little-endian machines
    part(f.part)[ofi::name_of(f)] = value;
  }
  d["handle"] = reinterpret_cast<uint64_t>(i.handle);
  each_pointer(
      i, [&](ofi::Part in, const char* name, char** place) { part(in)[name] = text(*place); },
      [&](ofi::Part in, const char* name, auto** place, const size_t* size) {
        part(in)[name] = octets(*place, *size);
        if (in != ofi::Part::info) part(in)["auth_key_size"] = *size;
      });
  d["nic"] = nic_fields(i.nic);
  return d;
}

OfiInfo* make_info(const nb::dict& fields, const OfiInfo* base) {
  const ofi::Library* library = ofi::library();
  if (library == nullptr) raise(kOfiNoDevice, "no libfabric is loaded");
  auto made = std::make_unique<OfiInfo>();
  made->info = library->dupinfo(base == nullptr ? nullptr : base->info);
  if (made->info == nullptr) raise(fi_err::kENOMEM, "fi_dupinfo failed");
  ofi::Info& i = *made->info;
  const auto part = [&](ofi::Part one) {
    if (one == ofi::Part::info) return fields;
    const char* const name = kParts[int(one)];
    return fields.contains(name) ? nb::cast<nb::dict>(fields[name]) : nb::dict();
  };
  for (const ofi::Field& f : ofi::kInfoFields) {  // fields that are not given keep their values
    std::byte* const to = ofi::part_of(i, f.part);
    const char* const name = ofi::name_of(f);
    const nb::dict from = part(f.part);
    if (to == nullptr || f.since > library->version || !from.contains(name)) continue;
    const uint64_t value = number_of(from[name], "getinfo", name);
    std::memcpy(to + f.offset, &value, f.size);
  }
  each_pointer(
      i, [&](ofi::Part in, const char* name, char** place) { put_text(part(in), name, place); },
      [&](ofi::Part in, const char* name, auto** place, size_t* size) { put_octets(part(in), name, place, size); });
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

nb::str ofi_words(const char* words) {
  if (words == nullptr) return nb::str("");
  const auto size = static_cast<Py_ssize_t>(std::strlen(words));
  auto made = nb::steal<nb::str>(PyUnicode_DecodeUTF8(words, size, "replace"));
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
      .about("Its numbers, texts and addresses; those of its parts in dictionaries.")
      .def<"fields(self) -> dict[str, Any]">(&fields_of);
  m.about("A copy of `base`, or an empty fi_info, with these fields, as OfiInfo.fields() has them.")
      .def<"ofi_info(fields: dict[str, Any], base: OfiInfo | None = None) -> OfiInfo">(&make_info,
                                                                                       nb::rv_policy::take_ownership);
  m.about("fi_getinfo of the library. Raises its error: NoData if nothing meets the hints.")
      .def<
          "ofi_getinfo(version: int, node?: str | None, service?: str | None, flags: int, hints?: OfiInfo | None) -> "
          "list[OfiInfo]">(&find_infos);
  m.about("Opens a libfabric, unless one is open. Returns the reason if there is none.")
      .def<"ofi_load(path)">([](const std::string& path) -> std::optional<std::string> {
        std::string why;
        count_forks();  // no NIC of Weft's may ever be opened here
        if (ofi::load(path.c_str(), &why) == nullptr) return why;
        return std::nullopt;
      });
  m.about("(path, version) of the open libfabric, or None.")
      .def<"ofi_library">([]() -> std::optional<std::pair<std::string, uint32_t>> {
        const ofi::Library* library = ofi::library();
        if (library == nullptr) return std::nullopt;
        return std::pair(library->path, library->version);
      });
  m.about("fi_strerror of the library.").def<"ofi_strerror(errno)">([](int code) -> std::string {
    const ofi::Library* library = ofi::library();
    // INT_MIN is no errno, and has no positive int.
    const int positive = code == std::numeric_limits<int>::min() ? code : std::abs(code);
    return library == nullptr ? "" : library->strerror(positive);
  });
}

}  // namespace weft::bind
