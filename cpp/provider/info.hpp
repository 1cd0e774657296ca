// cpp/provider/info.hpp: struct fi_info as records, and records as struct fi_info.
#pragma once

#include "provider/front.hpp"
#include "provider/record.hpp"

namespace weft::provider {

// The record of an fi_info that a caller of this interface version passed: fields that its struct has not are left out.
Record record_of(const ofi::Info& info, uint32_t version);
// An fi_info of an offer, allocated by libfabric; null: out of memory.
ofi::Info* info_of(const Front& front, const Record& offer);

}  // namespace weft::provider
