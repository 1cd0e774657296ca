// cpp/nic/model.cpp: see model.hpp.
#include "nic/model.hpp"

#include "nic/endpoint.hpp"

namespace weft::nic {

Model::Parts::Parts(TxPort& tx, const EndpointConfig& config, const Aliases& aliases)
    : traffic(config.traffic, aliases), pager(config.page_requests_max) {
  if (config.commands.slots != 0) commands.emplace(config.commands);
  if (config.reorder.on) reorder = std::make_unique<Reorder>(tx, config.reorder, aliases);
}

Model::Model(TxPort& tx, const EndpointConfig& config, const Aliases& aliases) {
  if (config.traffic.on || config.page_requests_max != 0 || config.commands.slots != 0 || config.reorder.on) {
    parts_ = std::make_unique<Parts>(tx, config, aliases);
  }
}

void Model::count_traffic(Route& route, OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key,
                          uint64_t flags, uint64_t bytes, bool event, bool framed) noexcept {
  parts_->traffic.count(route, kind, family, datatype, key, flags, bytes, event, framed);
}

}  // namespace weft::nic
