// cpp/ucp/request.hpp: the object behind a UCP status pointer: an operation or a flush under way, and its result.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "ucp/status.hpp"

namespace weft::ucp {

class Endpoint;
class Worker;

// The binding embeds one in each of its request objects, which hold the endpoint and the worker.
struct Request {
  // Atomic: threads that sleep until the request has ended read it without the binding's lock.
  std::atomic<int> status{kInProgress};
  int first_failure = kOk;  // of the request's parts; of a flush: of the operations that the flush waits for
  uint32_t parts = 0;       // outstanding completions
  bool quiet =
      false;  // the application does not hold the request (an atomic without a reply): a flush reports its failure
  bool freed = false;          // released by the application: no callback
  bool ends_endpoint = false;  // the failure means that the peer is gone
  bool untold = false;         // the request failed, and the failure has not been reported
  uint64_t seq = 0;            // place in the order of posting; 0: not posted
  Endpoint* ep = nullptr;      // null: a flush of the whole worker
  Worker* worker = nullptr;
  bool flush = false;
  std::string text;  // why it failed

  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  // An unreported failure stays with the endpoint, for the next flush.
  ~Request();

  [[nodiscard]] bool ended() const noexcept { return status.load(std::memory_order_acquire) != kInProgress; }
  // Call it when a callback, a status or an exception has reported the failure: later flushes do not repeat it.
  void observed();
};

}  // namespace weft::ucp
