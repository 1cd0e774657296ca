// cpp/provider/fabric.hpp: fabrics.
#pragma once

#include "provider/front.hpp"

namespace weft::provider {

int open_fabric(const Front& front, ofi::FabricAttr* attr, ofi::FidFabric** out, void* context);
// The libfabric of a front ends: closes what its program has left open.
void cleanup(const Front& front);

}  // namespace weft::provider
