// cpp/nic/explain.hpp: the texts of failed operations, for the error entries that the application reads.
// Successful operations never ask for one, so these functions may allocate.
#pragma once

#include <string>

#include "base/status.hpp"
#include "nic/op.hpp"
#include "nic/route.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

class TxPort;

// what: "read", "write" ...
std::string explain(const TxPort& tx, const char* what, const wire::RmaRange& range, const Route& route, Status status);
// The same for a caller that cannot throw; empty if there is no memory for the text.
std::string explain_safely(const TxPort& tx, const char* what, const wire::RmaRange& range, const Route& route,
                           Status status) noexcept;
std::string explain_message(const TxPort& tx, const Op& op, const Route& route);

}  // namespace weft::nic
