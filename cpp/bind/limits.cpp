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

void register_limits(nb::module_& m) {
  nb::class_<NicLimits>(m, "Limits", "What a NIC has room for, unless it was made with other numbers.")
      .def_ro("endpoint_count", &NicLimits::endpoint_count, "Endpoints of a NIC that are open at a time.")
      .def_ro("domain_count", &NicLimits::domain_count, "Domains of a NIC that are open at a time.")
      .def_ro("region_count", &NicLimits::region_count, "Regions of a NIC at a time.")
      .def_ro("region_vni_count", &NicLimits::region_vni_count, "VNIs that a region may admit.")
      .def_ro("iov_count", &NicLimits::iov_count, "Buffers, and remote ranges, of an operation.")
      .def_ro("inject_bytes", &NicLimits::inject_bytes, "Bytes that an endpoint injects unless told otherwise.")
      .def_ro("message_bytes", &NicLimits::message_bytes, "Bytes of an operation.")
      .def_ro("atomic_bytes", &NicLimits::atomic_bytes, "Bytes of an atomic operation.")
      .def_ro("cm_bytes", &NicLimits::cm_bytes, "Private data of a connection request or an answer.");
  m.def("limits", [] { return NicLimits{}; }, "The limits of a NIC that is made with the defaults.");
}

}  // namespace weft::bind
