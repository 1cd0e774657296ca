// cpp/provider/log.hpp: what a C program hears of a refusal besides its number: the explanation, in libfabric's log.
#pragma once

#include <new>
#include <string_view>

#include "provider/front.hpp"
#include "provider/record.hpp"

namespace weft::provider {

// libfabric's subsystems.
enum class Subject : int { core, fabric, domain, ep_ctrl, ep_data, av, cq, eq, mr, cntr };

// Whether FI_LOG_LEVEL and WEFT_EXPLAIN ask for explanations: making one costs more than the refused call.
[[nodiscard]] bool explains(const Front& front, Subject subject) noexcept;
// Writes a text of several lines at the level "warn", and appends it to the file of WEFT_EXPLAIN.
void explain(const Front& front, Subject subject, const char* call, std::string_view text) noexcept;
// Runs what makes and writes an explanation, if there is a reader. Without memory the caller's number says all.
template <typename Write>
void if_explained(const Front& front, Subject subject, Write&& write) noexcept {
  if (!explains(front, subject)) return;
  try {
    write();
  } catch (const std::bad_alloc&) {
  }
}
// The negative number of a refused call, explained.
int refuse(const Front& front, Subject subject, const char* call, int code, std::string_view text) noexcept;
// The same for an answer of the policy helper; 0: the answer is no refusal.
int refused(const Front& front, Subject subject, const char* call, const Record& answer) noexcept;

// A call of a table that fi_open_ops gave may name no object of Weft, and so no front: the front by which such a call
// is explained, until the front ends.
void explain_tables_by(const Front* origin) noexcept;
void front_ends(const Front& origin) noexcept;
// The refusal of such a call: what it got, and what it takes.
int refuse_kind(const char* call, const ofi::Fid* got, const char* takes) noexcept;

}  // namespace weft::provider
