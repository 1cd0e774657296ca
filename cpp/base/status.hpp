// cpp/base/status.hpp: how an operation ended, and the errors of the control path.
// Status is what the hardware would report for one operation; the domain's StatusMap translates it for applications.
// Only control-path calls throw Error; the data path returns Status and never throws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "base/fields.hpp"

namespace weft {

// FI_ error numbers (libfabric rdma/fi_errno.h) that the NIC itself needs.
namespace fi_err {
constexpr int kEIO = 5, kEAGAIN = 11, kENOMEM = 12, kEACCES = 13, kEFAULT = 14, kEBUSY = 16, kEINVAL = 22, kEMFILE = 24,
              kENOSPC = 28, kENOMSG = 42, kENOTCONN = 107, kENOSYS = 38, kEPROTO = 71, kEMSGSIZE = 90, kEOPNOTSUPP = 95,
              kEADDRINUSE = 98, kEADDRNOTAVAIL = 99, kECONNRESET = 104, kETIMEDOUT = 110, kECONNREFUSED = 111,
              kEHOSTUNREACH = 113, kECANCELED = 125, kEKEYREJECTED = 129, kEOPBADSTATE = 258, kEAVAIL = 259,
              kEBADFLAGS = 260, kENOCQ = 263, kETRUNC = 265, kENOKEY = 266, kENOAV = 267, kEOVERRUN = 268;
}

// Each status: its number, which never changes (prov_errno of the general provider), what the operation ended with, and
// the man pages' code, the default where a domain's provider sets no other.
#define WEFT_STATUSES(X)                                                                                              \
  X(ok, 0, "no provider error", 0)                                                                                    \
  X(no_key, 1, "no region has that key", fi_err::kEKEYREJECTED)                                                       \
  X(stale_key, 2, "the key is stale: its region was closed", fi_err::kEKEYREJECTED)                                   \
  X(access, 3, "the region does not grant that access", fi_err::kEACCES)                                              \
  X(bounds, 4, "the access passes the bounds of the region", fi_err::kEACCES)                                         \
  X(not_enabled, 5, "the region is not enabled", fi_err::kEACCES)                                                     \
  X(wrong_endpoint, 6, "the region is bound to another endpoint", fi_err::kEACCES)                                    \
  X(no_endpoint, 7, "no endpoint has that address", fi_err::kECONNREFUSED)                                            \
  X(peer_gone, 8, "the peer's process is gone", fi_err::kECONNRESET)                                                  \
  X(refused, 9, "the peer refused the connection", fi_err::kEACCES)                                                   \
  X(misaligned, 10, "the address is not aligned to the datatype of the atomic", fi_err::kEINVAL)                      \
  X(canceled, 11, "the operation was canceled", fi_err::kECANCELED)                                                   \
  X(fault, 12, "no memory is mapped at the address", fi_err::kEFAULT)                                                 \
  X(timeout, 13, "no answer came in time", fi_err::kETIMEDOUT)                                                        \
  X(unsupported, 14, "the owner cannot do that with the region: COMMIT_COMPLETE needs RMA_PMEM", fi_err::kEOPNOTSUPP) \
  X(invalid, 15, "the operation has an invalid argument", fi_err::kEINVAL)                                            \
  X(again, 16, "the operation has not ended: try later", fi_err::kEAGAIN)                                             \
  X(protocol, 17, "the peer violated the protocol", fi_err::kEPROTO)                                                  \
  X(no_memory, 18, "out of memory or file descriptors", fi_err::kENOMEM)                                              \
  X(device, 19, "the device's runtime could not copy", fi_err::kEIO)                                                  \
  X(unauthorized, 20, "the region admits other authorization keys, or another peer", fi_err::kEACCES)                 \
  X(unreachable, 21, "the peer's host cannot be reached", fi_err::kEHOSTUNREACH)                                      \
  X(endpoint_access, 22, "the endpoint does not serve that access", fi_err::kEACCES)                                  \
  X(closed, 23, "the peer closed its NIC", fi_err::kECONNRESET)                                                       \
  X(secret, 24, "the two processes have different secrets", fi_err::kEACCES)                                          \
  X(version, 25, "the peer speaks another version of the protocol", fi_err::kEACCES)                                  \
  X(corrupted, 26, "bytes were changed on their way, and the connection was dropped", fi_err::kEIO)                   \
  X(backlog, 27, "the listener's queue of requests is full", fi_err::kECONNREFUSED)                                   \
  X(truncated, 28, "the message was longer than its receive", fi_err::kETRUNC)                                        \
  X(no_message, 29, "no message matches", fi_err::kENOMSG)                                                            \
  X(no_source, 30, "the sender is not in the address vector", fi_err::kEADDRNOTAVAIL)                                 \
  X(not_ready, 31, "no receive was posted in time", fi_err::kEIO)                                                     \
  X(page_request, 32, "a missing page did not come in time", fi_err::kEIO)                                            \
  X(no_entry, 33, "the receive waited too long for a list entry of its service", fi_err::kEIO)
WEFT_ENUM(Status, int32_t, WEFT_STATUSES,
          "How an operation ended. A domain's policy maps each status to the provider's error codes.");
constexpr size_t kStatusCount = std::size(kStatusChoices);

constexpr int fi_errno(Status status) noexcept {
#define WEFT_STATUS_ERRNO(name, number, text, code) code,
  constexpr int kCodes[] = {WEFT_STATUSES(WEFT_STATUS_ERRNO)};
#undef WEFT_STATUS_ERRNO
  const auto i = static_cast<size_t>(status);
  return i < kStatusCount ? kCodes[i] : fi_err::kEIO;
}

struct StatusCode {
  WEFT_TABLE(15, StatusCode, "What an application sees of a status.");
  WEFT_FIELD(1, err, int32_t, 0, code, "The FI_ code.");
  WEFT_FIELD(2, prov, int32_t, 0, code, "The provider's number.");
};
using StatusCodes = std::array<StatusCode, kStatusCount>;
// The man pages' codes, and the numbers of the statuses.
constexpr StatusCodes default_codes() noexcept {
  StatusCodes codes;
  for (size_t i = 0; i < kStatusCount; ++i) codes[i] = {fi_errno(static_cast<Status>(i)), static_cast<int32_t>(i)};
  return codes;
}

// The domain's policy fills it.
struct StatusMap {
  WEFT_TABLE(14, StatusMap, "What an application sees of each status of an operation.");
  WEFT_FIELD(1, entries, StatusCodes, default_codes(), none, "For each Status, by number.");

  [[nodiscard]] constexpr const StatusCode& operator[](Status status) const noexcept {
    const auto i = static_cast<size_t>(status);
    return entries[i < kStatusCount ? i : static_cast<size_t>(Status::protocol)];
  }
};

class Error : public std::runtime_error {
 public:
  Error(int fi_code, const std::string& what) : std::runtime_error(what), fi_code_(fi_code) {}
  [[nodiscard]] int fi_code() const noexcept { return fi_code_; }

 private:
  int fi_code_;
};

}  // namespace weft
