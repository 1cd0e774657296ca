// cpp/ucp/port.hpp: a worker and its endpoints on the NIC: what they refuse, where a remote key leads, and completions.
//
// HOT: can_post(), resolve(), take_completions(). The caller makes all calls under its lock.
#pragma once

#include "nic/nic.hpp"
#include "nic/queue.hpp"
#include "ucp/worker.hpp"

namespace weft::ucp {

// Features of a context.
constexpr uint32_t kFeatureRma = 2, kFeatureAmo32 = 4, kFeatureAmo64 = 8;

// Why a call is refused: a ucs_status_t, and the text that follows the name of the call.
struct Refused {
  int status = kOk;
  std::string text;
  explicit operator bool() const noexcept { return status != kOk; }
};

struct Port : Worker {
  nic::Endpoint* nic = nullptr;  // null before the worker is made
  nic::CompletionQueue* queue = nullptr;
  uint32_t features = 0;
  uint64_t fence_count = 0, downs = 0;
  bool closed = false;
};

struct Peer : Endpoint {
  explicit Peer(Port& of) : Endpoint(of), port(&of), fence(of.fence_count) {}
  Port* port;  // null before the endpoint is made
  uint64_t dest = 0, fence;
  bool closing = false;  // close_nbx() waits for the posted operations
  bool watched = false;  // UCP_ERR_HANDLING_MODE_PEER
};

struct Rkey {
  Peer* ep = nullptr;
  uint64_t key = 0, dest = 0, address = 0, length = 0;
  uint64_t bias = 0;       // added to an address of the owner to get the address in its memory table
  bool symmetric = false;  // valid on every endpoint of the worker whose peer has a region of the same layout
  bool destroyed = false;
  uint32_t in_flight = 0;
};

// HOT. The worker takes calls.
inline bool is_open(const Port& port) noexcept {
  return !port.closed && port.nic != nullptr;
}
Refused why_closed();
// HOT. The endpoint takes operations, if its worker does.
inline bool is_open(const Peer& ep) noexcept {
  return ep.port != nullptr && !ep.closed() && !ep.closing;
}
Refused why_closed(const Peer& ep);
// HOT. The open endpoint reaches its peer, and the context has the feature.
inline bool is_able(const Peer& ep, uint32_t feature) noexcept {
  return ep.failed() == kOk && (ep.port->features & feature) != 0;
}
Refused why_unable(const Peer& ep, uint32_t feature);

// HOT. The destination of an operation with this key; false: the key does not serve the endpoint.
inline bool resolve(const Peer& ep, const Rkey& key, uint64_t* dest) noexcept {
  *dest = key.ep == &ep ? key.dest : ep.dest;
  return !key.destroyed && (key.ep == &ep || (key.symmetric && key.ep->port == ep.port));
}
Refused why_unresolved(const Rkey& key);

// The status of an operation on `ep`. After a connected peer has died the status is the same, whether the operation was
// under way at that time or later found no endpoint at the address.
int status_on(const Port& port, const Peer* ep, Status status, std::string* text);

// Fails the watched endpoints whose peer has died since the last call, and calls failed(ep) for each.
template <typename Failed>
size_t note_downs(Port& port, uint64_t downs, Failed&& failed) {
  size_t n = 0;
  port.downs = downs;
  for (Endpoint* each : port.endpoints()) {
    auto* ep = static_cast<Peer*>(each);
    if (!ep->watched) continue;
    const Status s = port.nic->down_status(ep->dest);
    if (s == Status::ok) continue;
    if (ep->fail(ucs_status(s), "the peer's process died, closed its NIC, or its host is out of reach")) {
      failed(*ep);
      ++n;
    }
  }
  return n;
}

// Takes the queue's entries, and calls ended(context, status, text) for each completion, outside the domain's lock.
// emptied(): under the lock, when the queue may be empty. Returns the number of completions.
template <typename Emptied, typename Ended>
size_t take_completions(Port& port, nic::Domain* domain, Emptied&& emptied, Ended&& ended) {
  constexpr size_t kReadMax = 64;
  alignas(nic::CqEntry) std::byte room[kReadMax * sizeof(nic::CqEntry)];
  auto* entries = reinterpret_cast<nic::CqEntry*>(room);
  for (size_t total = 0;;) {
    bool error_waits = false, failed = false;
    nic::CqEntry bad;
    nic::CqError error;
    size_t n;
    {
      const nic::DomainLock guard(domain);
      n = port.queue->read(entries, kReadMax, &error_waits);
      if (n == 0 && error_waits) failed = port.queue->read_error(&bad, &error);
      emptied();
    }
    for (size_t i = 0; i < n; ++i) ended(entries[i].context, Status::ok, std::string());
    if (failed) ended(bad.context, error.status, std::move(error.text));
    if (n == 0 && !failed) return total;
    total += n + (failed ? 1 : 0);
  }
}

}  // namespace weft::ucp
