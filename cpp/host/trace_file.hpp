// cpp/host/trace_file.hpp: the file of a process's trace (nic/trace.hpp): WEFT_TRACE names its folder.
//
// The file is mapped, so what has been recorded is in it when the process is killed. Its blocks are allocated in
// advance: a store into a hole of a file on a full disk would kill the process.
#pragma once

#include <string>

#include "base/clock.hpp"
#include "base/mapping.hpp"
#include "nic/trace.hpp"

namespace weft::host {

class TraceFile {
 public:
  // records: places of the ring, rounded up to a power of two, at least kRecordsMin. The file is
  // folder/<pid>-<random>.weft-trace. Throws Error with the system's reason.
  TraceFile(const std::string& folder, size_t records, Clock& clock, Random& random);
  [[nodiscard]] nic::Trace& trace() noexcept { return *trace_; }

  static constexpr size_t kRecordsMin = 64, kRecordsMax = size_t{1} << 26;

 private:
  Mapping memory_;
  std::unique_ptr<nic::Trace> trace_;
};

}  // namespace weft::host
