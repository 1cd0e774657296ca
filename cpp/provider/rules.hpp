// cpp/provider/rules.hpp: the settings that the policy helper sends as records of their tables (base/record.hpp).
#pragma once

#include <span>

#include "base/record.hpp"
#include "nic/config.hpp"
#include "provider/record.hpp"

namespace weft::provider {

// The table in the bytes of an answer. Throws Error for damaged bytes, and for bytes of another table.
template <typename Table>
Table settings_of(const Record& answer, std::string_view name = "config") {
  const std::string_view bytes = answer.text(name);
  return from_record<Table>(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

}  // namespace weft::provider
