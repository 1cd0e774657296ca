// cpp/ucp/worker.hpp: the state machine of a UCP worker: operations under way, flushes, and unreported failures.
//
// It knows neither the NIC nor Python. The binding posts operations, passes every completion to settle() and acts on
// the outcomes (callbacks, references). The binding makes all calls under its lock.
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
  // The peer is gone. True the first time: the caller then reports the failure.
  bool fail(int status, const std::string& text);
  // The first unreported failure; its seq is 0 if there is none.
  [[nodiscard]] Failure untold() const;
  // Marks the failures of all operations with a number below `seq` as reported.
  void told_before(uint64_t seq);
  // After close(), flushes skip the endpoint and failures are dropped.
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
    bool endpoint_failed = false;  // this outcome has failed the endpoint, which had not failed before
  };
  enum class FlushStart { done, failed, under_way };

  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  [[nodiscard]] size_t under_way() const noexcept { return under_way_.size(); }
  [[nodiscard]] const std::set<Endpoint*>& endpoints() const noexcept { return endpoints_; }
  [[nodiscard]] bool has_flushes() const noexcept { return !flushes_.empty(); }

  // One part of a request has ended. `status`: a ucs_status_t; `ends`: the peer is gone.
  Outcome settle(Request& r, int status, bool ends, const std::string& text);
  // An operation was posted on `ep`. If all its parts have ended already, the request ends at once.
  Outcome begin(Request& r, Endpoint& ep);
  // Starts a flush of one endpoint, or of all (null). done: no operation is under way, and none has failed. failed:
  // *failure had not been reported yet, or the endpoint has failed. under_way: end_flushes() will end the request.
  // `always`: start a request even if no operation is under way and none has failed.
  FlushStart begin_flush(Request& r, Endpoint* ep, bool always, Failure* failure);
  // Ends and returns the flushes whose operations have all ended.
  std::vector<Request*> end_flushes();
  // False: the flush is not under way.
  bool cancel_flush(Request& r);
  // Operations that end as canceled after this call count as failures: the application did not cancel them.
  void begin_close() noexcept { closing_ = true; }
  // Ends the remaining flushes as canceled and returns them.
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
