// cpp/ucp/worker.cpp: see worker.hpp.
#include "ucp/worker.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace weft::ucp {

// ---- requests ------------------------------------------------------------------------------------------------------

void Request::observed() {
  if (!ended()) return;
  if (flush) {
    // The flush has reported its own failure and the failures of all operations that it waited for.
    if (status == kOk || status == kCanceled || worker == nullptr) return;
    if (ep != nullptr) {
      ep->told_before(seq);
    } else {
      for (Endpoint* each : worker->endpoints_) each->told_before(seq);
    }
  } else if (untold) {
    untold = false;
    ep->untold_.erase(seq);
  }
}

Request::~Request() {
  if (!untold) return;
  assert(ep != nullptr && ended() && "only a request that has failed is untold");
  ep->untold_.erase(seq);
  ep->lose(*this);
}

// ---- endpoints -----------------------------------------------------------------------------------------------------

Endpoint::Endpoint(Worker& worker) : worker_(&worker) {
  worker.endpoints_.insert(this);
}

Endpoint::~Endpoint() {
  close();
}

bool Endpoint::fail(int status, const std::string& text) {
  if (failed_ != kOk || closed_) return false;
  failed_ = status;
  why_ = text;
  return true;
}

void Endpoint::lose(const Request& r) {
  if (closed_) return;
  Failure failure{r.seq, r.status, r.text};
  if (first_lost_.seq == 0) {
    first_lost_ = last_lost_ = std::move(failure);
  } else if (r.seq < first_lost_.seq) {
    first_lost_ = std::move(failure);
  } else if (r.seq > last_lost_.seq) {
    last_lost_ = std::move(failure);
  }
}

Failure Endpoint::untold() const {
  if (!untold_.empty() && (first_lost_.seq == 0 || untold_.begin()->first < first_lost_.seq)) {
    const Request& r = *untold_.begin()->second;
    return {r.seq, r.status, r.text};
  }
  return first_lost_;
}

void Endpoint::told_before(uint64_t seq) {
  while (!untold_.empty() && untold_.begin()->first < seq) {
    untold_.begin()->second->untold = false;
    untold_.erase(untold_.begin());
  }
  // Only the first and the last failure are kept: the failures between would repeat the same text.
  if (last_lost_.seq < seq) {
    first_lost_ = last_lost_ = {};
  } else if (first_lost_.seq < seq) {
    first_lost_ = last_lost_;
  }
}

void Endpoint::close() {
  told_before(~uint64_t{0});
  closed_ = true;
  worker_->endpoints_.erase(this);
}

// ---- operations ----------------------------------------------------------------------------------------------------

Worker::Outcome Worker::settle(Request& r, int status, bool ends, const std::string& text) {
  Outcome out;
  if (status != kOk) {
    if (r.first_failure == kOk) {
      r.first_failure = status;
      r.text = text;
    }
    if (ends) {
      r.ends_endpoint = true;
      if (r.ep != nullptr) out.endpoint_failed = r.ep->fail(status, text);
    }
  }
  assert(r.parts != 0 && "a part of the request is under way");
  if (--r.parts == 0 && r.seq != 0) {
    end(r);
    out.ended = true;
  }
  return out;
}

Worker::Outcome Worker::begin(Request& r, Endpoint& ep) {
  Outcome out;
  assert(r.seq == 0 && ep.worker_ == this && "a request begins once, on an endpoint of this worker");
  r.ep = &ep;
  r.worker = this;
  r.seq = next_seq_++;
  if (r.ends_endpoint) out.endpoint_failed = ep.fail(r.first_failure, r.text);
  if (r.parts == 0) {
    end(r);
    out.ended = true;
  } else {
    under_way_.insert(r.seq);
    ep.under_way_.insert(r.seq);
  }
  return out;
}

void Worker::end(Request& r) {
  assert(r.parts == 0 && r.ep != nullptr && "all parts have ended");
  under_way_.erase(r.seq);
  r.ep->under_way_.erase(r.seq);
  r.status.store(r.first_failure, std::memory_order_release);
  if (r.first_failure == kOk || (r.first_failure == kCanceled && !closing_)) return;
  for (Request* f : flushes_) {
    if (f->first_failure == kOk && r.seq < f->seq && (f->ep == nullptr || f->ep == r.ep)) {
      f->first_failure = r.first_failure;
      f->text = r.text;
    }
  }
  if (r.ep->closed_ || closing_) return;
  if (r.quiet || r.freed) {
    r.ep->lose(r);
  } else {
    r.untold = true;
    r.ep->untold_.emplace(r.seq, &r);
  }
}

// ---- flushes -------------------------------------------------------------------------------------------------------

Worker::FlushStart Worker::begin_flush(Request& r, Endpoint* ep, bool always, Failure* failure) {
  Failure first;
  const auto look = [&](const Endpoint& each) {
    Failure f = each.untold();
    if (f.seq != 0 && (first.seq == 0 || f.seq < first.seq)) first = std::move(f);
  };
  if (ep != nullptr) {
    look(*ep);
  } else {
    for (const Endpoint* each : endpoints_) look(*each);
  }
  if ((ep != nullptr ? ep->under_way_ : under_way_).empty()) {
    if (first.status == kOk && ep != nullptr && ep->failed_ != kOk) first = {0, ep->failed_, ep->why_};
    if (first.status != kOk) {
      if (ep != nullptr) {
        ep->told_before(next_seq_);
      } else {
        for (Endpoint* each : endpoints_) each->told_before(next_seq_);
      }
      *failure = std::move(first);
      return FlushStart::failed;
    }
    if (!always) return FlushStart::done;
  }
  assert(r.seq == 0 && (ep == nullptr || ep->worker_ == this));
  r.flush = true;
  r.ep = ep;
  r.worker = this;
  r.seq = next_seq_++;  // operations before this one have smaller numbers
  r.first_failure = first.status;
  r.text = std::move(first.text);
  flushes_.push_back(&r);
  return FlushStart::under_way;
}

std::vector<Request*> Worker::end_flushes() {
  std::vector<Request*> over;
  std::erase_if(flushes_, [&](Request* f) {
    const std::set<uint64_t>& waited_for = f->ep != nullptr ? f->ep->under_way_ : under_way_;
    if (!waited_for.empty() && *waited_for.begin() < f->seq) return false;
    f->status.store(f->first_failure, std::memory_order_release);
    over.push_back(f);
    return true;
  });
  return over;
}

bool Worker::cancel_flush(Request& r) {
  if (std::erase(flushes_, &r) == 0) return false;
  r.text = "canceled";
  r.status.store(r.first_failure = kCanceled, std::memory_order_release);
  return true;
}

std::vector<Request*> Worker::abandon_flushes() {
  std::vector<Request*> over = std::exchange(flushes_, {});
  for (Request* f : over) {
    f->text = "the worker was destroyed";
    f->status.store(f->first_failure = kCanceled, std::memory_order_release);
  }
  return over;
}

}  // namespace weft::ucp
