// cpp/bind/limits.cpp: the NIC's limits as constants, so that providers need no copies of the numbers.
#include "bind/objects.hpp"
#include "mem/table.hpp"
#include "nic/cm.hpp"
#include "nic/endpoint.hpp"
#include "nic/op.hpp"

namespace weft::bind {

namespace {

struct NicLimits {
  uint32_t endpoint_count = mem::kEpCountMax;
  uint32_t domain_count = mem::kDomainCountMax;
  uint32_t region_count = nic::Limits{}.mr_count_max;
  uint32_t region_vni_count = mem::AccessGuard::kVniMax;
  uint32_t iov_count = nic::kIovMax;
  uint64_t inject_bytes = nic::EndpointConfig{}.inject_size;
  uint64_t message_bytes = nic::EndpointConfig{}.max_msg_size;
  uint64_t atomic_bytes = nic::Limits{}.atomic_bytes_max;
  uint64_t cm_bytes = nic::kCmDataMax;
};

}  // namespace

void register_limits(Module& m) {
  Class<NicLimits>(m, "Limits", "The default limits of a NIC.")
      .def_ro("endpoint_count", &NicLimits::endpoint_count, "Open endpoints per NIC.")
      .def_ro("domain_count", &NicLimits::domain_count, "Open domains per NIC.")
      .def_ro("region_count", &NicLimits::region_count, "Open regions per NIC.")
      .def_ro("region_vni_count", &NicLimits::region_vni_count, "VNIs that one region may admit.")
      .def_ro("iov_count", &NicLimits::iov_count, "Local buffers of one operation; also its remote ranges.")
      .def_ro("inject_bytes", &NicLimits::inject_bytes, "Default inject_size of an endpoint, in bytes.")
      .def_ro("message_bytes", &NicLimits::message_bytes, "Bytes of one operation.")
      .def_ro("atomic_bytes", &NicLimits::atomic_bytes, "Bytes of one atomic operation.")
      .def_ro("cm_bytes", &NicLimits::cm_bytes, "Bytes of private data in a connection request, and in its answer.");
  m.def("limits", [] { return NicLimits{}; }, "Returns the default limits.");
}

}  // namespace weft::bind
