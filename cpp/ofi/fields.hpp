// cpp/ofi/fields.hpp: the numbers in struct fi_info, by name: as records and Python have them.
//
// Source: fi_getinfo(3), fi_endpoint(3), fi_domain(3), fi_fabric(3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ofi/library.hpp"

namespace weft::ofi {

enum class Part : uint8_t { info, tx, rx, ep, domain, fabric };

struct Field {
  const char* name;
  Part part;
  uint16_t offset;
  uint8_t size;
  uint32_t since = 0;  // the first interface version whose struct has the field
};

#define WEFT_INFO(part, type, prefix, member, ...) \
  {prefix #member, Part::part, offsetof(type, member), sizeof(type::member), ##__VA_ARGS__}
inline constexpr Field kInfoFields[] = {
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
    WEFT_INFO(domain, DomainAttr, "domain.", max_group_id, version(2, 1)),
    WEFT_INFO(domain, DomainAttr, "domain.", max_cntr_value, version(2, 5)),
    WEFT_INFO(domain, DomainAttr, "domain.", max_err_cntr_value, version(2, 5)),
    WEFT_INFO(fabric, FabricAttr, "fabric.", prov_version),
    WEFT_INFO(fabric, FabricAttr, "fabric.", api_version),
};
#undef WEFT_INFO

inline std::byte* part_of(const Info& info, Part part) noexcept {
  void* const found = [&]() -> void* {
    switch (part) {
      case Part::info:
        return const_cast<Info*>(&info);
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
// The name in its part, without "tx." ...
inline const char* name_of(const Field& f) noexcept {
  const char* const dot = std::strchr(f.name, '.');
  return dot == nullptr ? f.name : dot + 1;
}

}  // namespace weft::ofi
