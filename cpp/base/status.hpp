// cpp/base/status.hpp: how an operation ended, and the errors of the control path.
// Status is what the hardware would report for one operation; the domain's StatusMap translates it for applications.
// Only control-path calls throw Error; the data path returns Status and never throws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace weft {

enum class Status : int32_t {
  ok = 0,
  no_key = 1,          // no region has this key
  stale_key = 2,       // the key's region was closed; its slot may hold a newer one
  access = 3,          // the region does not grant the requested access
  bounds = 4,          // the range passes the end (or the start) of the region
  not_enabled = 5,     // region registered but not enabled
  wrong_endpoint = 6,  // region bound to another endpoint
  no_endpoint = 7,     // no endpoint listens at that address, or the endpoint was closed
  peer_gone = 8,       // the process at that address died, or the connection was lost
  refused = 9,         // the peer refused us (other user, no room)
  misaligned = 10,     // atomic on an address that is not a multiple of the datatype
  canceled = 11,
  fault = 12,  // no memory behind the address
  timeout = 13,
  unsupported = 14,
  invalid = 15,
  again = 16,            // the operation has not ended: try later
  protocol = 17,         // the peer broke the protocol
  no_memory = 18,        // could not map or allocate
  device = 19,           // a device's runtime refused to copy
  unauthorized = 20,     // the region admits other authorization keys, or another peer
  unreachable = 21,      // no route to that host
  endpoint_access = 22,  // the endpoint's capabilities do not include the operation
  closed = 23,           // the process at that address closed its NIC
  secret = 24,           // the two processes have different secrets (tcp)
  version = 25,          // the two processes speak different versions
  corrupted = 26,        // bytes changed on the way
  backlog = 27,          // the listener's queue of connection requests is full
  truncated = 28,        // a message was longer than its receive
  no_message = 29,       // no message matches a peek
  no_source = 30,        // the sender of a message is not in the address vector (FI_SOURCE_ERR)
  not_ready = 31,        // no receive was posted in time (FI_PROTO_CXI_RNR)
  page_request = 32,     // on-demand paging: a missing page did not come in time
  no_entry = 33,         // no list entry became free for a receive (FI_PROTO_CXI_RNR)
};
constexpr size_t kStatusCount = 34;

// FI_ error numbers (libfabric rdma/fi_errno.h) that the NIC itself needs.
namespace fi_err {
constexpr int kEIO = 5, kEAGAIN = 11, kENOMEM = 12, kEACCES = 13, kEFAULT = 14, kEBUSY = 16, kEINVAL = 22, kEMFILE = 24,
              kENOSPC = 28, kENOMSG = 42, kENOTCONN = 107, kENOSYS = 38, kEPROTO = 71, kEMSGSIZE = 90, kEOPNOTSUPP = 95,
              kEADDRINUSE = 98, kEADDRNOTAVAIL = 99, kECONNRESET = 104, kETIMEDOUT = 110, kECONNREFUSED = 111,
              kEHOSTUNREACH = 113, kECANCELED = 125, kEKEYREJECTED = 129, kEOPBADSTATE = 258, kEAVAIL = 259,
              kEBADFLAGS = 260, kENOCQ = 263, kETRUNC = 265, kENOKEY = 266, kENOAV = 267, kEOVERRUN = 268;
}

// The man pages' code for each status: the default where a domain's provider sets no other.
constexpr int fi_errno(Status status) noexcept {
  switch (status) {
    case Status::ok:
      return 0;
    case Status::no_key:
    case Status::stale_key:
      return fi_err::kEKEYREJECTED;
    case Status::access:
    case Status::endpoint_access:
    case Status::bounds:
    case Status::not_enabled:
    case Status::wrong_endpoint:
    case Status::unauthorized:
      return fi_err::kEACCES;
    case Status::no_endpoint:
    case Status::backlog:
      return fi_err::kECONNREFUSED;
    case Status::peer_gone:
    case Status::closed:
      return fi_err::kECONNRESET;
    case Status::refused:
    case Status::secret:
    case Status::version:
      return fi_err::kEACCES;
    case Status::misaligned:
    case Status::invalid:
      return fi_err::kEINVAL;
    case Status::canceled:
      return fi_err::kECANCELED;
    case Status::fault:
      return fi_err::kEFAULT;
    case Status::timeout:
      return fi_err::kETIMEDOUT;
    case Status::unsupported:
      return fi_err::kEOPNOTSUPP;
    case Status::again:
      return fi_err::kEAGAIN;
    case Status::protocol:
      return fi_err::kEPROTO;
    case Status::no_memory:
      return fi_err::kENOMEM;
    case Status::truncated:
      return fi_err::kETRUNC;
    case Status::no_message:
      return fi_err::kENOMSG;
    case Status::no_source:
      return fi_err::kEADDRNOTAVAIL;
    case Status::device:
    case Status::corrupted:
    case Status::not_ready:
    case Status::page_request:
    case Status::no_entry:
      return fi_err::kEIO;
    case Status::unreachable:
      return fi_err::kEHOSTUNREACH;
  }
  return fi_err::kEIO;
}

// What an application sees of each status: the FI_ code and the provider's number. The domain's policy fills it.
struct StatusMap {
  struct Entry {
    int32_t err;
    int32_t prov;
  };
  std::array<Entry, kStatusCount> entries{};

  constexpr StatusMap() noexcept {
    for (size_t i = 0; i < kStatusCount; ++i) {
      entries[i] = {fi_errno(static_cast<Status>(i)), static_cast<int32_t>(i)};
    }
  }
  [[nodiscard]] constexpr const Entry& operator[](Status status) const noexcept {
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
