// cpp/ucp/worker.hpp: the state machine of a UCP worker: operations under way, flushes, and unreported failures.
//
// It knows neither the NIC nor Python. The binding posts operations, hands every completion to settle(), and does what
// the returned outcomes ask for (callbacks, references). All calls are made under the binding's lock.
//
// Every failure is reported at least once: by the request (callback, status, exception), or otherwise by the next flush
// of the endpoint or the worker, or by closing the endpoint. A flush that was under way when the operation failed
// reports the failure in any case, because the flush waited for the operation.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ucp/request.hpp"

namespace weft::ucp {

struct Failure {
  uint64_t seq = 0;  // of the operation; 0: there is none
  int status = kOk;
  std::string text;
};

class Endpoint {
 public:
  explicit Endpoint(Worker& worker);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  [[nodiscard]] Worker& worker() const noexcept { return *worker_; }
  [[nodiscard]] size_t under_way() const noexcept { return under_way_.size(); }
  [[nodiscard]] int failed() const noexcept { return failed_; }
  [[nodiscard]] const std::string& why() const noexcept { return why_; }
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  // The peer is gone. True the first time: the failure is to be reported.
  bool fail(int status, const std::string& text);
  // The first unreported failure; its seq is 0 if there is none.
  [[nodiscard]] Failure untold() const;
  // All failures of operations with a number below `seq` have been reported.
  void told_before(uint64_t seq);
  // From here on flushes and failures pass the endpoint by.
  void close();

 private:
  friend class Worker;
  friend struct Request;
  void lose(const Request& r);

  Worker* worker_;
  std::set<uint64_t> under_way_;
  std::map<uint64_t, Request*> untold_;  // by number; failures of requests that the application holds
  Failure first_lost_, last_lost_;       // failures of requests that the application does not hold
  int failed_ = kOk;
  std::string why_;
  bool closed_ = false;
};

class Worker {
 public:
  struct Outcome {
    bool ended = false;            // the request is over
    bool endpoint_failed = false;  // its endpoint has failed just now
  };
  enum class FlushStart { done, failed, under_way };

  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  [[nodiscard]] size_t under_way() const noexcept { return under_way_.size(); }
  [[nodiscard]] const std::set<Endpoint*>& endpoints() const noexcept { return endpoints_; }
  [[nodiscard]] bool has_flushes() const noexcept { return !flushes_.empty(); }

  // One part of a request has ended. `status` is how UCP calls it; `ends` that the peer is gone.
  Outcome settle(Request& r, int status, bool ends, const std::string& text);
  // An operation was posted on `ep`. Its parts may have ended before: then it is over at once.
  Outcome begin(Request& r, Endpoint& ep);
  // Starts a flush of one endpoint, or of all (null). Done: nothing is under way, and nothing had failed. Failed:
  // *failure had not been reported yet, or the endpoint has failed. Under way: end_flushes() will end the request.
  // `always`: make it a request even though nothing is under way.
  FlushStart begin_flush(Request& r, Endpoint* ep, bool always, Failure* failure);
  // Takes the flushes that have nothing left to wait for.
  std::vector<Request*> end_flushes();
  // False: it is not under way.
  bool cancel_flush(Request& r);
  // From here on operations that end as canceled count as failures: the application did not cancel them.
  void begin_close() noexcept { closing_ = true; }
  // Removes the remaining flushes, to be ended as canceled.
  std::vector<Request*> abandon_flushes();

 private:
  friend class Endpoint;
  friend struct Request;
  void end(Request& r);

  uint64_t next_seq_ = 1;
  std::set<uint64_t> under_way_;
  std::set<Endpoint*> endpoints_;
  std::vector<Request*> flushes_;
  bool closing_ = false;
};

}  // namespace weft::ucp
