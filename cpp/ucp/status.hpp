// cpp/ucp/status.hpp: the NIC's statuses as ucs_status_t.
// Source: ucs/type/status.h.
#pragma once

#include "base/status.hpp"

namespace weft::ucp {

// The values of ucs_status_t that the data path uses.
constexpr int kOk = 0, kInProgress = 1, kNoResource = -2, kIoError = -3, kNoMemory = -4, kInvalidParam = -5,
              kUnreachable = -6, kCanceled = -16, kUnsupported = -22, kRejected = -23, kConnectionReset = -25,
              kEndpointTimeout = -80;

constexpr int ucs_status(Status s) noexcept {
  switch (s) {
    case Status::ok:
      return kOk;
    case Status::no_endpoint:
    case Status::unreachable:
      return kUnreachable;
    case Status::peer_gone:
    case Status::closed:
      return kConnectionReset;
    case Status::refused:
    case Status::secret:
    case Status::version:
      return kRejected;
    case Status::misaligned:
    case Status::invalid:
      return kInvalidParam;
    case Status::canceled:
      return kCanceled;
    case Status::timeout:
      return kEndpointTimeout;
    case Status::unsupported:
      return kUnsupported;
    case Status::no_memory:
      return kNoMemory;
    default:  // refusals of the owner's memory table
      return kIoError;
  }
}

// Statuses after which the endpoint can no longer reach its peer.
constexpr bool ends_endpoint(Status s) noexcept {
  return s == Status::no_endpoint || s == Status::unreachable || s == Status::peer_gone || s == Status::refused ||
         s == Status::timeout || s == Status::protocol || s == Status::closed || s == Status::secret ||
         s == Status::version || s == Status::corrupted;
}

}  // namespace weft::ucp
