// cpp/nic/traffic.cpp: see traffic.hpp.
#include "nic/traffic.hpp"

#include "nic/domain.hpp"

namespace weft::nic {

void Traffic::begin(Domain& domain, uint32_t nic) {
  if (rules_.on) counts_ = &domain.telemetry(nic);
}

// HOT (CXI). Lines: the lines of the domain's two blocks of counts, which no other thread writes.
void Traffic::count_known(Route& route, uint16_t how, uint64_t flags, uint64_t bytes, bool event,
                          bool framed) noexcept {
  counts_->add_sent(aliases_.of(flags).tclass, packets_of(bytes));
  if (!framed && (route.telemetry != nullptr || find_counts(route))) [[likely]]
    route.telemetry->add_target(how, bytes, event);
  if ((how & traffic::kHrp) != 0) {
    counts_->add(Telemetry::hrp_ack, 1);
    if ((flags & flag::kMerged) == 0) counts_->add(Telemetry::hrp_response, 1);
  }
}

bool Traffic::find_counts(Route& route) noexcept {
  if (route.telemetry == nullptr) {
    try {
      route.telemetry = &route.domain->telemetry(route.address.nic);
    } catch (const std::exception&) {  // out of memory for a page: operations to this peer are not counted
    }
  }
  return route.telemetry != nullptr;
}

}  // namespace weft::nic
