// cpp/bind/limits.cpp: the NIC's limits as constants, so that providers need no copies of the numbers.
#include "bind/objects.hpp"
#include "bind/tables.hpp"
#include "mem/table.hpp"
#include "nic/cm.hpp"
#include "nic/endpoint.hpp"
#include "nic/op.hpp"

namespace weft::bind {

namespace {

struct Limits {
  WEFT_TABLE(19, Limits, "The default limits of a NIC.");
  WEFT_FIELD(1, endpoint_count, uint32_t, mem::kEpCountMax, none, "Open endpoints per NIC.");
  WEFT_FIELD(2, domain_count, uint32_t, mem::kDomainCountMax, none, "Open domains per NIC.");
  WEFT_FIELD(3, region_count, uint32_t, nic::Limits{}.mr_count_max, none, "Open regions per NIC.");
  WEFT_FIELD(4, region_vni_count, uint32_t, mem::AccessGuard::kVniMax, none, "VNIs that one region may admit.");
  WEFT_FIELD(5, iov_count, uint32_t, nic::kIovMax, none, "Local buffers of one operation; also its remote ranges.");
  WEFT_FIELD(6, inject_bytes, uint64_t, nic::EndpointConfig{}.inject_size, bytes,
             "Default inject_size of an endpoint.");
  WEFT_FIELD(7, message_bytes, uint64_t, nic::EndpointConfig{}.max_msg_size, bytes, "The most of one operation.");
  WEFT_FIELD(8, atomic_bytes, uint64_t, nic::Limits{}.atomic_bytes_max, bytes, "The most of one atomic operation.");
  WEFT_FIELD(9, cm_bytes, uint64_t, nic::kCmDataMax, bytes, "Private data in a connection request, and in its answer.");
};

}  // namespace

void register_limits(Module& m) {
  register_table<Limits>(m);
  m.about("Returns the default limits.").def<"limits">([] { return Limits{}; });
}

}  // namespace weft::bind
