// cpp/provider/info.cpp: struct fi_info as records (src/weft/policyhost/infos.py has the names), and struct fid_nic.
#include "provider/info.hpp"

#include <cstdlib>
#include <cstring>

#include "base/status.hpp"
#include "ofi/fields.hpp"
#include "provider/objects.hpp"

namespace weft::provider {

namespace {

using ofi::Field, ofi::kInfoFields, ofi::Part, ofi::part_of;

constexpr size_t kAvAuthKey = ~size_t{0};  // FI_AV_AUTH_KEY in the place of a key's size

// These bits of capabilities had other meanings before 2.0.
constexpr uint64_t kNewCaps = uint64_t{1} << 45 | uint64_t{1} << 46 | uint64_t{1} << 48;
bool names_caps(const Field& f) noexcept {
  return f.part <= Part::rx && std::string_view(f.name).ends_with("caps");
}

char* copy_text(std::string_view text) noexcept {
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

void* copy_bytes(std::string_view bytes) noexcept {
  void* const copy = std::malloc(bytes.size());
  if (copy != nullptr) std::memcpy(copy, bytes.data(), bytes.size());
  return copy;
}

// ---- struct fid_nic -------------------------------------------------------------------------------------------------

// The provider's attributes: struct cxip_nic_attr.
struct NicProvAttr {
  uint32_t version, addr, default_rgroup_id, default_vni;
};

// libfabric closes an fi_info's NIC with the fi_info, and copies it by FI_DUP.
struct InfoNic {
  ofi::FidNic fid{};
  ofi::DeviceAttr device{};
  ofi::BusAttr bus{};
  ofi::LinkAttr link{};
  NicProvAttr prov{};
  const Front* front = nullptr;
};

int nic_close(ofi::Fid* fid) {
  auto* const nic = reinterpret_cast<InfoNic*>(fid);
  for (char* text : {nic->device.name, nic->device.device_id, nic->device.device_version, nic->device.vendor_id,
                     nic->device.driver, nic->device.firmware, nic->link.address, nic->link.network_type}) {
    std::free(text);
  }
  delete nic;
  return 0;
}

int nic_bind(ofi::Fid*, ofi::Fid*, uint64_t) {
  return -fi_err::kENOSYS;
}
int nic_ops_open(ofi::Fid*, const char*, uint64_t, void**, void*) {
  return -fi_err::kENOSYS;
}
int nic_control(ofi::Fid* fid, int command, void* arg);

ofi::FidOps g_nic_ops{sizeof(ofi::FidOps), nic_close, nic_bind, nic_control, nic_ops_open, nullptr, nullptr};
constexpr size_t kClassNic = 20;

InfoNic* empty_nic() noexcept {
  auto* const nic = new (std::nothrow) InfoNic();
  if (nic == nullptr) return nullptr;
  nic->fid.fid = {kClassNic, nullptr, &g_nic_ops};
  nic->fid.device = &nic->device;
  nic->fid.bus = &nic->bus;
  nic->fid.link = &nic->link;
  return nic;
}

char* copy_text_or_null(const char* text) noexcept {
  return text == nullptr ? nullptr : copy_text(text);
}

void take_prov(InfoNic* nic, const Record& from) noexcept {
  if (!from.has("nic.prov.version")) return;
  const auto number = [&](const char* name) { return static_cast<uint32_t>(from.number(name)); };
  nic->prov = {number("nic.prov.version"), number("nic.prov.addr"), number("nic.prov.default_rgroup_id"),
               number("nic.prov.default_vni")};
  nic->fid.prov_attr = &nic->prov;
}

// A command of the provider: FI_OPT_CXI_NIC_REFRESH_ATTR.
int nic_command(InfoNic* nic, int command) {
  return guarded(*nic->front, Subject::core, "fi_control", [&] {
    Record question;
    question.add("ask", "nic_control", "provider", nic->front->name);
    if (nic->device.name != nullptr) question.add("name", std::string_view(nic->device.name));
    question.add("command", static_cast<uint64_t>(int64_t{command}));
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(*nic->front, Subject::core, "fi_control", answer); r != 0) return r;
    take_prov(nic, answer);
    return 0;
  });
}

int nic_control(ofi::Fid* fid, int command, void* arg) {
  auto* const nic = reinterpret_cast<InfoNic*>(fid);
  if (command != ofi::kDup) return nic_command(nic, command);
  InfoNic* const copy = empty_nic();
  if (copy == nullptr) return -fi_err::kENOMEM;
  const ofi::DeviceAttr& d = nic->device;
  copy->device = {copy_text_or_null(d.name),      copy_text_or_null(d.device_id), copy_text_or_null(d.device_version),
                  copy_text_or_null(d.vendor_id), copy_text_or_null(d.driver),    copy_text_or_null(d.firmware)};
  copy->bus = nic->bus;
  copy->link = {copy_text_or_null(nic->link.address), nic->link.mtu, nic->link.speed, nic->link.state,
                copy_text_or_null(nic->link.network_type)};
  copy->front = nic->front;
  copy->prov = nic->prov;
  if (nic->fid.prov_attr != nullptr) copy->fid.prov_attr = &copy->prov;
  *static_cast<ofi::Fid**>(arg) = &copy->fid.fid;
  return 0;
}

InfoNic* nic_of(const Front& front, const Record& offer) {
  if (!offer.has("nic.name")) return nullptr;
  InfoNic* const nic = empty_nic();
  if (nic == nullptr) return nullptr;
  const auto text = [&](const char* name) { return offer.has(name) ? copy_text(offer.text(name)) : nullptr; };
  nic->device = {text("nic.name"),      text("nic.device_id"), text("nic.device_version"),
                 text("nic.vendor_id"), text("nic.driver"),    text("nic.firmware")};
  nic->bus.bus_type = static_cast<int>(offer.number("nic.bus_type"));
  nic->link = {text("nic.address"), offer.number("nic.mtu"), offer.number("nic.speed"),
               static_cast<int>(offer.number("nic.state")), text("nic.network_type")};
  nic->front = &front;
  take_prov(nic, offer);
  return nic;
}

}  // namespace

Record record_of(const ofi::Info& info, uint32_t version) {
  Record out;
  for (const Field& f : kInfoFields) {
    const std::byte* const part = part_of(info, f.part);
    if (part == nullptr || version < f.since) continue;
    uint64_t value = 0;
    std::memcpy(&value, part + f.offset, f.size);  // little-endian machines
    if (version < provider::version(2, 0) && names_caps(f)) value &= ~kNewCaps;
    if (value != 0) out.add(f.name, value);
  }
  const auto text = [&](const char* name, const char* value) {
    if (value != nullptr) out.add(name, std::string_view(value));
  };
  const auto bytes = [&](const char* name, const void* value, size_t size) {
    if (value != nullptr && size != 0) out.add(name, std::string_view(static_cast<const char*>(value), size));
  };
  if (info.domain != nullptr) {
    text("domain.name", info.domain->name);
    const bool by_av = info.domain->auth_key_size == kAvAuthKey;
    if (by_av) out.add("domain.av_auth_key", 1);
    bytes("domain.auth_key", info.domain->auth_key, by_av ? 1 : info.domain->auth_key_size);
  }
  if (info.fabric != nullptr) {
    text("fabric.name", info.fabric->name);
    text("fabric.prov_name", info.fabric->prov_name);
  }
  if (info.ep != nullptr) bytes("ep.auth_key", info.ep->auth_key, info.ep->auth_key_size);
  bytes("src_addr", info.src_addr, info.src_addrlen);
  bytes("dest_addr", info.dest_addr, info.dest_addrlen);
  return out;
}

ofi::Info* info_of(const Front& front, const Record& offer) {
  // libfabric allocates the parts, whose sizes differ between its versions.
  ofi::Info* const info = front.dupinfo(nullptr);
  if (info == nullptr) return nullptr;
  for (const Field& f : kInfoFields) {
    std::byte* const part = part_of(*info, f.part);
    if (part == nullptr || front.version < f.since) continue;
    uint64_t value = offer.number(f.name);
    if (front.version < version(2, 0) && names_caps(f)) value &= ~kNewCaps;
    std::memcpy(part + f.offset, &value, f.size);
  }
  const auto put = [&](const char* name, void** at, size_t* size) {
    const std::string_view bytes = offer.text(name);
    if (bytes.empty()) return true;
    *at = copy_bytes(bytes);
    *size = bytes.size();
    return *at != nullptr;
  };
  if (offer.flag("domain.av_auth_key")) info->domain->auth_key_size = kAvAuthKey;
  const auto put_text = [&](const char* name, char** at) {
    if (!offer.has(name)) return true;
    *at = copy_text(offer.text(name));
    return *at != nullptr;
  };
  // prov_name is libfabric's to set.
  bool ok = put("src_addr", &info->src_addr, &info->src_addrlen) &&
            put("dest_addr", &info->dest_addr, &info->dest_addrlen) && put_text("domain.name", &info->domain->name) &&
            put_text("fabric.name", &info->fabric->name) &&
            put("domain.auth_key", reinterpret_cast<void**>(&info->domain->auth_key), &info->domain->auth_key_size) &&
            put("ep.auth_key", reinterpret_cast<void**>(&info->ep->auth_key), &info->ep->auth_key_size);
  if (ok) {
    InfoNic* const nic = nic_of(front, offer);
    info->nic = nic == nullptr ? nullptr : &nic->fid;
    ok = nic != nullptr || !offer.has("nic.name");
  }
  if (ok) return info;
  front.freeinfo(info);
  return nullptr;
}

}  // namespace weft::provider
