// cpp/provider/info.cpp: the fields of struct fi_info by name (src/weft/policyhost/infos.py has the same names), and
// struct fid_nic.
#include "provider/info.hpp"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "base/status.hpp"
#include "provider/objects.hpp"

namespace weft::provider {

namespace {

enum class Part : uint8_t { info, tx, rx, ep, domain, fabric };

struct Field {
  const char* name;
  Part part;
  uint16_t offset;
  uint8_t size;
  uint32_t since = 0;  // the first interface version whose struct has the field
};

#define WEFT_INFO(part, type, prefix, member, ...) \
  {prefix #member, Part::part, offsetof(ofi::type, member), sizeof(ofi::type::member), ##__VA_ARGS__}
constexpr Field kInfoFields[] = {
    WEFT_INFO(info, Info, "", caps),
    WEFT_INFO(info, Info, "", mode),
    WEFT_INFO(info, Info, "", addr_format),
    WEFT_INFO(tx, TxAttr, "tx.", caps),
    WEFT_INFO(tx, TxAttr, "tx.", mode),
    WEFT_INFO(tx, TxAttr, "tx.", op_flags),
    WEFT_INFO(tx, TxAttr, "tx.", msg_order),
    WEFT_INFO(tx, TxAttr, "tx.", comp_order),
    WEFT_INFO(tx, TxAttr, "tx.", inject_size),
    WEFT_INFO(tx, TxAttr, "tx.", size),
    WEFT_INFO(tx, TxAttr, "tx.", iov_limit),
    WEFT_INFO(tx, TxAttr, "tx.", rma_iov_limit),
    WEFT_INFO(tx, TxAttr, "tx.", tclass),
    WEFT_INFO(rx, RxAttr, "rx.", caps),
    WEFT_INFO(rx, RxAttr, "rx.", mode),
    WEFT_INFO(rx, RxAttr, "rx.", op_flags),
    WEFT_INFO(rx, RxAttr, "rx.", msg_order),
    WEFT_INFO(rx, RxAttr, "rx.", comp_order),
    WEFT_INFO(rx, RxAttr, "rx.", total_buffered_recv),
    WEFT_INFO(rx, RxAttr, "rx.", size),
    WEFT_INFO(rx, RxAttr, "rx.", iov_limit),
    WEFT_INFO(ep, EpAttr, "ep.", type),
    WEFT_INFO(ep, EpAttr, "ep.", protocol),
    WEFT_INFO(ep, EpAttr, "ep.", protocol_version),
    WEFT_INFO(ep, EpAttr, "ep.", max_msg_size),
    WEFT_INFO(ep, EpAttr, "ep.", msg_prefix_size),
    WEFT_INFO(ep, EpAttr, "ep.", max_order_raw_size),
    WEFT_INFO(ep, EpAttr, "ep.", max_order_war_size),
    WEFT_INFO(ep, EpAttr, "ep.", max_order_waw_size),
    WEFT_INFO(ep, EpAttr, "ep.", mem_tag_format),
    WEFT_INFO(ep, EpAttr, "ep.", tx_ctx_cnt),
    WEFT_INFO(ep, EpAttr, "ep.", rx_ctx_cnt),
    WEFT_INFO(domain, DomainAttr, "domain.", threading),
    WEFT_INFO(domain, DomainAttr, "domain.", control_progress),
    WEFT_INFO(domain, DomainAttr, "domain.", data_progress),
    WEFT_INFO(domain, DomainAttr, "domain.", resource_mgmt),
    WEFT_INFO(domain, DomainAttr, "domain.", av_type),
    WEFT_INFO(domain, DomainAttr, "domain.", mr_mode),
    WEFT_INFO(domain, DomainAttr, "domain.", mr_key_size),
    WEFT_INFO(domain, DomainAttr, "domain.", cq_data_size),
    WEFT_INFO(domain, DomainAttr, "domain.", cq_cnt),
    WEFT_INFO(domain, DomainAttr, "domain.", ep_cnt),
    WEFT_INFO(domain, DomainAttr, "domain.", tx_ctx_cnt),
    WEFT_INFO(domain, DomainAttr, "domain.", rx_ctx_cnt),
    WEFT_INFO(domain, DomainAttr, "domain.", max_ep_tx_ctx),
    WEFT_INFO(domain, DomainAttr, "domain.", max_ep_rx_ctx),
    WEFT_INFO(domain, DomainAttr, "domain.", max_ep_stx_ctx),
    WEFT_INFO(domain, DomainAttr, "domain.", max_ep_srx_ctx),
    WEFT_INFO(domain, DomainAttr, "domain.", cntr_cnt),
    WEFT_INFO(domain, DomainAttr, "domain.", mr_iov_limit),
    WEFT_INFO(domain, DomainAttr, "domain.", caps),
    WEFT_INFO(domain, DomainAttr, "domain.", mode),
    WEFT_INFO(domain, DomainAttr, "domain.", max_err_data),
    WEFT_INFO(domain, DomainAttr, "domain.", mr_cnt),
    WEFT_INFO(domain, DomainAttr, "domain.", tclass, version(1, 9)),
    WEFT_INFO(domain, DomainAttr, "domain.", max_ep_auth_key, version(1, 20)),
    WEFT_INFO(domain, DomainAttr, "domain.", max_group_id, version(2, 0)),
    WEFT_INFO(domain, DomainAttr, "domain.", max_cntr_value, version(2, 5)),
    WEFT_INFO(domain, DomainAttr, "domain.", max_err_cntr_value, version(2, 5)),
    WEFT_INFO(fabric, FabricAttr, "fabric.", prov_version),
    WEFT_INFO(fabric, FabricAttr, "fabric.", api_version),
};
#undef WEFT_INFO

std::byte* part_of(const ofi::Info& info, Part part) noexcept {
  void* const found = [&]() -> void* {
    switch (part) {
      case Part::info:
        return const_cast<ofi::Info*>(&info);
      case Part::tx:
        return info.tx;
      case Part::rx:
        return info.rx;
      case Part::ep:
        return info.ep;
      case Part::domain:
        return info.domain;
      case Part::fabric:
        return info.fabric;
    }
    return nullptr;
  }();
  return static_cast<std::byte*>(found);
}

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
    question.add("ask", "nic_control");
    question.add("provider", nic->front->name);
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
    bytes("domain.auth_key", info.domain->auth_key, info.domain->auth_key_size);
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
