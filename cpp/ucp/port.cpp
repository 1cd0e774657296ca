// cpp/ucp/port.cpp: the texts of refusals, and statuses; see port.hpp.
#include "ucp/port.hpp"

namespace weft::ucp {

Refused why_closed() {
  return {kInvalidParam, ": the worker is destroyed\n  try: context.worker_create()"};
}

Refused why_closed(const Peer& ep) {
  if (ep.port == nullptr) return {kInvalidParam, ": no endpoint was made\n  try: worker.ep_create(address)"};
  return {kInvalidParam, std::string(ep.closed() ? ": the endpoint is closed" : ": the endpoint is closing") +
                             "\n  try: another to the same address, worker.ep_create(address)"};
}

Refused why_unable(const Peer& ep, uint32_t feature) {
  if (ep.failed() != kOk) {
    return {ep.failed(),
            ": the endpoint has failed: " + ep.why() + "\n  try: close it, and make another to the peer's new address"};
  }
  const char* name = feature == kFeatureRma ? "RMA" : feature == kFeatureAmo32 ? "AMO32" : "AMO64";
  return {kInvalidParam, std::string(": the context was made without the feature ") + name +
                             "\n  try: Context(features=ucp.FEATURE_RMA | ucp.FEATURE_AMO32 | ucp.FEATURE_AMO64)"};
}

Refused why_unresolved(const Rkey& key) {
  if (key.destroyed) {
    return {kInvalidParam, ": the remote key was destroyed\n  try: unpack the buffer again for a new one"};
  }
  return {kInvalidParam,
          ": the remote key was unpacked on another endpoint\n"
          "  rule: a key serves no endpoint but the one that unpacked it, ucp_ep_rkey_unpack; keys of\n"
          "  regions mapped with MEM_MAP_SYMMETRIC_RKEY serve every endpoint of the worker\n"
          "  try: ep.rkey_unpack(buffer) on this endpoint"};
}

int status_on(const Port& port, const Peer* ep, Status status, std::string* text) {
  if (ep != nullptr && (status == Status::no_endpoint || status == Status::unreachable)) {
    if (const Status down = port.nic->down_status(ep->dest); down != Status::ok) {
      *text += " (the peer was reached before: its process died, closed its NIC, or its host is out of reach)";
      return ucs_status(down);
    }
  }
  return ucs_status(status);
}

}  // namespace weft::ucp
