// cpp/provider/rules.hpp: the NIC's configurations, made of the records of src/weft/policyhost/rules.py.
#pragma once

#include "nic/nic.hpp"
#include "provider/record.hpp"

namespace weft::provider {

nic::DomainConfig domain_config(const Record& domain);
// domain: the record of the endpoint's domain.
nic::EndpointConfig endpoint_config(const Record& domain, const Record& ep);

}  // namespace weft::provider
