// cpp/provider/cm.cpp: fi_cm(3): the calls of connected endpoints (FI_EP_MSG), passive endpoints and their requests.
// The NIC carries the messages and keeps the state (nic/connection.hpp).
#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "nic/av.hpp"
#include "provider/calls.hpp"
#include "provider/info.hpp"
#include "provider/objects.hpp"
#include "provider/rules.hpp"

namespace weft::provider {

namespace {

constexpr int kOptCmDataSize = 1;
constexpr uint32_t kConnReq = 1, kConnected = 2, kShutdown = 3;
constexpr int kEisconn = 106, kEalready = 114, kEdomain = 33, kEconnrefused = fi_err::kECONNREFUSED;

std::span<const std::byte> data_of(const void* param, size_t size) noexcept {
  return {static_cast<const std::byte*>(param), param == nullptr ? 0 : size};
}

int refuse_size(const Front& front, const char* call, size_t size) noexcept {
  if (size <= nic::kCmDataMax) return 0;
  return refuse(front, Subject::ep_ctrl, call, fi_err::kEINVAL,
                std::string(call) + ": " + std::to_string(size) +
                    " B of private data; a request or an answer carries " + std::to_string(nic::kCmDataMax) +
                    " at most (FI_OPT_CM_DATA_SIZE)");
}

// ---- endpoints ------------------------------------------------------------------------------------------------------

int ep_refused(const Ep& ep, const char* call, int number, const char* text) noexcept {
  return refuse(ep.domain->fabric->front, Subject::ep_ctrl, call, number, std::string(call) + ": " + text);
}

// 0, or the number of the refusal: an endpoint of another type, or without an event queue, or too much private data.
int connectable(const Ep& ep, const char* call, size_t size = 0) {
  if (ep.forked()) return refuse_forked(ep, call);
  if (!ep.connected) {
    return ep_refused(ep, call, ep.domain->errno_of("EP_CONNECTIONLESS"),
                      "the endpoint is connectionless\n  try: hints->ep_attr->type = FI_EP_MSG");
  }
  if (ep.eq != nullptr) return refuse_size(ep.domain->fabric->front, call, size);
  return ep_refused(ep, call, code::kENOEQ, "no event queue is bound\n  try: fi_ep_bind(ep, &eq->fid, 0)");
}

// Enables the endpoint, and posts a message of an idle one under the queue's lock.
template <typename Post>
int connecting(Ep& ep, const char* call, Post&& post) {
  if (const int r = enable_endpoint(ep); r != 0) return r;
  const Guard guard(ep.eq->lock);
  const nic::CmState state = ep.ep->connection().state();
  if (state != nic::CmState::idle) {
    return ep_refused(ep, call, state == nic::CmState::connected ? kEisconn : kEalready,
                      "the endpoint has, or had, a connection\n  try: a new endpoint for another connection");
  }
  const nic::PostResult r = post();
  return r.refusal == Refusal::none ? 0 : static_cast<int>(refuse_post(ep, call, r.refusal, 0, 0));
}

int ep_connect(ofi::FidEp* fid, const void* address, const void* param, size_t size) {
  constexpr const char* kCall = "fi_connect";
  Ep& ep = of(whole(fid));
  if (const int r = connectable(ep, kCall, size); r != 0) return r;
  return guarded(ep.domain->fabric->front, Subject::ep_ctrl, kCall, [&] {
    const void* const given = address != nullptr ? address : ep.dest.data();
    wire::EpAddress to;
    bool has_pid = false;
    if (!parse_address(*ep.domain, given, address_size(*ep.domain, given), &to, &has_pid) || !has_pid) {
      return ep_refused(ep, kCall, fi_err::kEINVAL,
                        "no address of a passive endpoint was given, and the info has none as dest_addr\n"
                        "  rule: FI_ADDR_STR, weft://<nic>/<vni>/<pid>, as fi_getname returns it");
    }
    uint64_t number = 0;
    if (::getrandom(&number, sizeof(number), 0) != sizeof(number)) throw Error(fi_err::kEIO, "getrandom failed");
    return connecting(ep, kCall, [&] { return ep.ep->connection().connect(to, number >> 1, data_of(param, size)); });
  });
}

int ep_accept(ofi::FidEp* fid, const void* param, size_t size) {
  constexpr const char* kCall = "fi_accept";
  Ep& ep = of(whole(fid));
  if (const int r = connectable(ep, kCall, size); r != 0) return r;
  if (ep.request == nullptr) {
    return ep_refused(ep, kCall, fi_err::kEINVAL,
                      "the endpoint has no unanswered connection request\n  try: fi_endpoint(domain, entry.info, ...) "
                      "of an FI_CONNREQ event");
  }
  return guarded(ep.domain->fabric->front, Subject::ep_ctrl, kCall, [&] {
    return connecting(ep, kCall, [&] {
      const nic::PostResult r =
          ep.ep->connection().accept(ep.request->source, ep.request->connection, data_of(param, size));
      if (r.refusal == Refusal::none) ep.request.reset();
      return r;
    });
  });
}

int not_connected(const Ep& ep, const char* call) noexcept {
  return ep_refused(ep, call, fi_err::kENOTCONN, "the endpoint is not connected: read the FI_CONNECTED event");
}

int ep_shutdown(ofi::FidEp* fid, uint64_t flags) {
  Ep& ep = of(whole(fid));
  if (const int r = connectable(ep, "fi_shutdown"); r != 0) return r;
  if (flags != 0) return ep_refused(ep, "fi_shutdown", fi_err::kEBADFLAGS, "flags; they have to be 0");
  return guarded(ep.domain->fabric->front, Subject::ep_ctrl, "fi_shutdown", [&] {
    const Guard guard(ep.eq->lock);
    if (ep.ep->connection().state() != nic::CmState::connected) return not_connected(ep, "fi_shutdown");
    ep.ep->connection().shutdown();
    return 0;
  });
}

int ep_getpeer(ofi::FidEp* fid, void* out, size_t* length) {
  Ep& ep = of(whole(fid));
  if (const int r = connectable(ep, "fi_getpeer"); r != 0) return r;
  const Guard guard(ep.eq->lock);
  const nic::Connection& connection = ep.ep->connection();
  if (connection.state() != nic::CmState::connected) return not_connected(ep, "fi_getpeer");
  return copy_address(*ep.domain, *connection.peer(), out, length);
}

// ---- passive endpoints ----------------------------------------------------------------------------------------------

int pep_refused(const Pep& pep, const char* call, int number, const char* text) noexcept {
  return refuse(pep.fabric->front, Subject::ep_ctrl, call, number, std::string(call) + ": " + text);
}

struct FreeInfo {
  void (*free)(ofi::Info*);
  void operator()(ofi::Info* info) const noexcept { free(info); }
};

// A request of a peer, under the queue's lock.
void on_request(Eq& eq, ofi::Fid* fid, const nic::CmEvent& m) REQUIRES(eq.lock) {
  if (m.kind != nic::CmKind::request) return;  // such as the report that a rejection has arrived
  const Pep& pep = of(as<ofi::FidPep>(fid));
  const Front& front = pep.fabric->front;
  auto request = std::make_unique<Request>();
  request->fid.fclass = kClassRequest;
  request->listener = pep.listener;
  request->source = m.source;
  request->connection = m.connection;
  std::unique_ptr<ofi::Info, FreeInfo> info(front.dupinfo(pep.info), FreeInfo{front.freeinfo});
  char address[kAddressBytesMax];
  const size_t size = address_bytes(of(pep.domain), m.source, address);
  void* const dest = info == nullptr ? nullptr : std::malloc(size);
  if (dest == nullptr) {
    request->reject();
    return;
  }
  std::memcpy(dest, address, size);
  std::free(info->src_addr);
  std::free(info->dest_addr);
  info->src_addr = nullptr;
  info->src_addrlen = 0;
  info->dest_addr = dest;
  info->dest_addrlen = size;
  info->handle = &request->fid;
  const ofi::EqCmEntry entry{fid, info.get(), {}};
  Eq::Event event;
  event.number = kConnReq;
  event.fid = fid;
  event.entry = bytes_of(entry, offsetof(ofi::EqCmEntry, data));
  event.entry.append(reinterpret_cast<const char*>(m.data.data()), m.data.size());
  event.info = info.get();
  {
    const Guard guard(pep.fabric->requests_lock);
    pep.fabric->requests.emplace(info->handle, std::move(request));
  }
  eq.post(std::move(event));
  (void)info.release();  // the program's, when it reads the event
}

int pep_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<PepShell*>(fid);
  Pep& pep = shell->of;
  if (pep.forked()) return 0;  // the parent's
  if (pep.eq != nullptr) {
    pep.ep->cm().refuse_waiting();  // before the queue forgets the endpoint
    for (const Eq::Event& unread : detach(*pep.eq, fid, pep.token)) {
      if (const auto request = pep.fabric->take(unread.info->handle)) request->reject();
      pep.fabric->front.freeinfo(unread.info);
    }
    --pep.eq->uses;
  }
  {
    const Guard guard(pep.listener->lock);
    pep.listener->ep = nullptr;
  }
  pep.ep->close();
  pep.fabric->front.freeinfo(pep.info);
  --pep.fabric->uses;
  ofi::FidDomain* const domain = pep.domain;
  delete shell;
  --of(domain).uses;
  (void)domain->fid.ops->close(&domain->fid);
  return 0;
}

int pep_bind(ofi::Fid* fid, ofi::Fid* to, uint64_t flags) {
  Pep& pep = of(as<ofi::FidPep>(fid));
  if (pep.forked()) return refuse_forked(pep, "fi_pep_bind");
  if (to == nullptr || to->fclass != kClassEq)
    return pep_refused(pep, "fi_pep_bind", fi_err::kEINVAL, "a passive endpoint takes an event queue");
  Eq& eq = of(as<ofi::FidEq>(to));
  if (flags != 0) return pep_refused(pep, "fi_pep_bind", fi_err::kEBADFLAGS, "flags; they have to be 0");
  if (eq.fabric != pep.fabric) return pep_refused(pep, "fi_pep_bind", kEdomain, "the queue is another fabric's");
  if (pep.eq != nullptr)
    return pep_refused(pep, "fi_pep_bind", fi_err::kEINVAL, "requests are reported to another queue already");
  return guarded(pep.fabric->front, Subject::ep_ctrl, "fi_pep_bind", [&] {
    pep.token = attach(eq, fid, on_request, of(pep.domain).host, *pep.ep, true);
    pep.eq = &eq;
    ++eq.uses;
    return 0;
  });
}

int pep_listen(ofi::FidPep* fid) {
  Pep& pep = of(fid);
  if (pep.forked()) return refuse_forked(pep, "fi_listen");
  if (pep.listens) return 0;
  if (pep.eq == nullptr)
    return pep_refused(pep, "fi_listen", code::kENOEQ, "no event queue is bound\n  try: fi_pep_bind(pep, &eq->fid, 0)");
  return guarded(pep.fabric->front, Subject::ep_ctrl, "fi_listen", [&] {
    pep.address.pid = pep.ep->enable(pep.address.nic, pep.has_pid ? std::optional(pep.address.pid) : std::nullopt);
    pep.has_pid = pep.listens = true;
    return 0;
  });
}

int pep_getname(ofi::Fid* fid, void* out, size_t* length) {
  const Pep& pep = of(as<ofi::FidPep>(fid));
  if (pep.forked()) return refuse_forked(pep, "fi_getname");
  if (!pep.listens) {
    return pep_refused(pep, "fi_getname", fi_err::kEOPBADSTATE,
                       "a passive endpoint has no address before fi_listen\n  try: fi_listen(pep)");
  }
  return copy_address(of(pep.domain), pep.address, out, length, true);
}

int pep_setname(ofi::Fid* fid, void* address, size_t length) {
  Pep& pep = of(as<ofi::FidPep>(fid));
  if (pep.forked()) return refuse_forked(pep, "fi_setname");
  const Domain& d = of(pep.domain);
  if (pep.listens) return pep_refused(pep, "fi_setname", fi_err::kEOPBADSTATE, "the address is fixed since fi_listen");
  wire::EpAddress found;
  bool has_pid = false;
  if (!parse_address(d, address, std::min(length, address_size(d, address)), &found, &has_pid) ||
      found.nic != pep.address.nic || found.vni != pep.address.vni) {
    return pep_refused(pep, "fi_setname", fi_err::kEINVAL,
                       "no address on the NIC and VNI of the endpoint's info, as fi_getname returns it");
  }
  pep.address.pid = found.pid;
  pep.has_pid = has_pid;
  return 0;
}

int pep_reject(ofi::FidPep* fid, ofi::Fid* handle, const void* param, size_t size) {
  Pep& pep = of(fid);
  if (pep.forked()) return refuse_forked(pep, "fi_reject");
  if (const int r = refuse_size(pep.fabric->front, "fi_reject", size); r != 0) return r;
  return guarded(pep.fabric->front, Subject::ep_ctrl, "fi_reject", [&] {
    const auto request = pep.fabric->take(handle, pep.listener.get());
    if (request == nullptr) {
      return pep_refused(
          pep, "fi_reject", fi_err::kEINVAL,
          "the handle is no unanswered connection request to this endpoint\n  try: entry.info->handle of "
          "an FI_CONNREQ event, once");
    }
    (void)request->reject(data_of(param, size));
    return 0;
  });
}

int pep_getopt(ofi::Fid* fid, int level, int name, void* value, size_t* length) {
  const Pep& pep = of(as<ofi::FidPep>(fid));
  if (value == nullptr || length == nullptr)
    return pep_refused(pep, "fi_getopt", fi_err::kEINVAL, "room for the value and its length is needed");
  if (level != 0 || name != kOptCmDataSize)
    return pep_refused(pep, "fi_getopt", fi_err::kENOSYS, "a passive endpoint has FI_OPT_CM_DATA_SIZE alone");
  const size_t room = *length, found = nic::kCmDataMax;
  *length = sizeof(found);
  if (room < sizeof(found)) return -code::kETOOSMALL;
  std::memcpy(value, &found, sizeof(found));
  return 0;
}

ofi::FidOps g_pep_fid_ops = fid_ops(pep_close, nullptr, pep_bind);

ofi::EpOps make_pep_ops() noexcept {
  using Ops = ofi::EpOps;
  Ops ops = stubs<Ops, &Ops::cancel, &Ops::getopt, &Ops::setopt, &Ops::tx_ctx, &Ops::rx_ctx, &Ops::rx_size_left,
                  &Ops::tx_size_left>();
  ops.getopt = pep_getopt;
  return ops;
}
ofi::EpOps g_pep_ops = make_pep_ops();

ofi::CmOps make_pep_cm_ops() noexcept {
  using Ops = ofi::CmOps;
  Ops ops = stubs<Ops, &Ops::setname, &Ops::getname, &Ops::getpeer, &Ops::connect, &Ops::listen, &Ops::accept,
                  &Ops::reject, &Ops::shutdown, &Ops::join>();
  ops.setname = pep_setname;
  ops.getname = pep_getname;
  ops.listen = pep_listen;
  ops.reject = pep_reject;
  return ops;
}
ofi::CmOps g_pep_cm_ops = make_pep_cm_ops();

}  // namespace

void put_connection_calls(ofi::CmOps* ops) noexcept {
  ops->getpeer = ep_getpeer;
  ops->connect = ep_connect;
  ops->accept = ep_accept;
  ops->shutdown = ep_shutdown;
}

void on_connection(Eq& eq, ofi::Fid* fid, const nic::CmEvent& m) {
  const Ep& ep = of(as<ofi::FidEp>(fid));
  const nic::CmNews news = ep.ep->connection().take(m);
  if (news == nic::CmNews::none) return;
  const std::string data(reinterpret_cast<const char*>(m.data.data()), m.data.size());
  Eq::Event event;
  event.fid = fid;
  if (news == nic::CmNews::connected || news == nic::CmNews::ended) {
    event.number = news == nic::CmNews::connected ? kConnected : kShutdown;
    event.entry = bytes_of(ofi::EqCmEntry{fid, nullptr, {}}, offsetof(ofi::EqCmEntry, data));
    if (m.kind == nic::CmKind::accept) event.entry += data;
  } else {
    ofi::EqErrEntry error{fid, fid->context, 0, kEconnrefused, 0, nullptr, 0};
    if (news == nic::CmNews::failed) {
      const auto [err, prov] = ep.domain->domain->config().statuses[m.status];
      error.err = err;
      error.prov_errno = prov;
      explain(ep.domain->fabric->front, Subject::eq, "fi_eq_readerr", data);
    } else {
      event.err_data = data;
    }
    event.failed = true;
    event.entry = bytes_of(error);
  }
  eq.post(std::move(event));
}

void end_connection(Ep& ep) {
  (void)guarded(ep.domain->fabric->front, Subject::ep_ctrl, "fi_close", [&] {
    // The request was not accepted. Where the passive endpoint is closed, the answer leaves from this one.
    if (ep.request != nullptr && !ep.request->reject() && ep.ep->enabled())
      (void)ep.ep->cm().send(ep.request->source, nic::CmKind::reject, ep.request->connection, {});
    if (ep.eq == nullptr) return 0;
    const Guard guard(ep.eq->lock);
    ep.ep->connection().shutdown();
    return 0;
  });
}

int open_passive_endpoint(ofi::FidFabric* fabric_fid, ofi::Info* info, ofi::FidPep** out, void* context) {
  Fabric& fabric = of(fabric_fid);
  ofi::FidDomain* domain = nullptr;
  if (const int r = open_domain(fabric_fid, info, &domain, nullptr); r != 0) return r;
  Domain& d = of(domain);
  const int result = guarded(fabric.front, Subject::ep_ctrl, "fi_passive_ep", [&] {
    Record question = question_about("passive_ep", d.lease);
    question.add("info", record_of(*info, fabric.front.version));
    auto shell = std::make_unique<PepShell>();
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(fabric.front, Subject::ep_ctrl, "fi_passive_ep", answer); r != 0) return r;
    Pep& pep = shell->of;
    pep.lease.take(answer);
    pep.fabric = &fabric;
    pep.domain = domain;
    pep.address = {static_cast<uint32_t>(answer.number("address.nic")),
                   static_cast<uint32_t>(answer.number("address.pid")),
                   static_cast<uint16_t>(answer.number("address.vni")), 0};
    pep.has_pid = answer.has("address.pid");
    pep.ep = d.domain->make_endpoint(settings_of<nic::EndpointConfig>(answer).in(d.domain->config()));
    pep.ep->bind_av(std::make_shared<nic::AddressVector>(d.domain.get(), false, false));
    pep.info = fabric.front.dupinfo(info);
    if (pep.info == nullptr) throw std::bad_alloc();
    const Guard guard(pep.listener->lock);
    pep.listener->ep = pep.ep.get();
    shell->fid.fid = {kClassPep, context, &g_pep_fid_ops};
    shell->fid.ops = &g_pep_ops;
    shell->fid.cm = &g_pep_cm_ops;
    ++d.uses;
    ++fabric.uses;
    *out = &shell.release()->fid;
    return 0;
  });
  if (result != 0) (void)domain->fid.ops->close(&domain->fid);
  return result;
}

}  // namespace weft::provider
