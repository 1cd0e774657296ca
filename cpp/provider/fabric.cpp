// cpp/provider/fabric.cpp: fabrics.
#include "provider/fabric.hpp"

#include "provider/objects.hpp"

namespace weft::provider {

namespace {

int fabric_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<FabricShell*>(fid);
  if (shell->of.uses != 0) {
    return refuse(shell->of.front, Subject::fabric, "fi_close", fi_err::kEBUSY,
                  "fi_close: the fabric has open domains or event queues\n  try: close them first");
  }
  delete shell;
  return 0;
}

// Whether a thread may sleep on an object's descriptor: 0, or a number.
int trywait(ofi::Fid* fid) {
  if (fid->fclass == kClassCq) {
    Cq& cq = of(as<ofi::FidCq>(fid));
    return cq.wait_obj == 0 ? fi_err::kEINVAL : may_sleep(cq) ? 0 : fi_err::kEAGAIN;
  }
  if (fid->fclass == kClassCntr) {
    Cntr& c = of(as<ofi::FidCntr>(fid));
    if (c.trywaits && c.wait_obj != 0) c.domain->host->nic().prepare_app_sleep();
    return !c.trywaits ? fi_err::kENOSYS : c.wait_obj == 0 ? fi_err::kEINVAL : 0;
  }
  if (fid->fclass != kClassEq) return fi_err::kEINVAL;
  const Eq& eq = of(as<ofi::FidEq>(fid));
  if (!eq.trywaits) return fi_err::kENOSYS;
  return eq.wait_obj == 0 ? fi_err::kEINVAL : eq_is_empty(fid) ? 0 : fi_err::kEAGAIN;
}

int fabric_trywait(ofi::FidFabric* fid, ofi::Fid** fids, int count) {
  int r = 0;
  for (int i = 0; i < count && r == 0; ++i) r = trywait(fids[i]);
  if (r == 0 || r == fi_err::kEAGAIN) return -r;
  return refuse(of(fid).front, Subject::fabric, "fi_trywait", r,
                "fi_trywait: no queue or counter, one with FI_WAIT_NONE, or of a kind for which this provider has no "
                "descriptor (cxi: event queues, counters)\n  try: completion queues with wait_obj FI_WAIT_FD");
}

int fabric_domain2(ofi::FidFabric* fid, ofi::Info* info, ofi::FidDomain** out, uint64_t flags, void* context) {
  if (flags == 0) return open_domain(fid, info, out, context);
  return refuse(of(fid).front, Subject::domain, "fi_domain2", fi_err::kENOSYS,
                "fi_domain2: flags; the domain of a peer is not there\n  try: fi_domain");
}

ofi::FidOps g_fabric_fid_ops = fid_ops(fabric_close);

ofi::FabricOps make_fabric_ops() noexcept {
  using Ops = ofi::FabricOps;
  Ops ops = stubs<Ops, &Ops::domain, &Ops::passive_ep, &Ops::eq_open, &Ops::wait_open, &Ops::trywait, &Ops::domain2>();
  ops.domain = open_domain;
  ops.domain2 = fabric_domain2;
  ops.passive_ep = open_passive_endpoint;
  ops.eq_open = open_eq;
  ops.trywait = fabric_trywait;
  return ops;
}
ofi::FabricOps g_fabric_ops = make_fabric_ops();

}  // namespace

int open_fabric(const Front& front, ofi::FabricAttr* attr, ofi::FidFabric** out, void* context) {
  return guarded(front, Subject::fabric, "fi_fabric", [&] {
    auto shell = std::make_unique<FabricShell>();
    shell->fid.fid = {kClassFabric, context, &g_fabric_fid_ops};
    shell->fid.ops = &g_fabric_ops;
    shell->fid.api_version = attr->api_version;  // libfabric sets it again
    shell->of.front = front;
    shell->of.origin = &front;
    if (attr->name != nullptr) shell->of.name = attr->name;
    *out = &shell.release()->fid;
    return 0;
  });
}

void cleanup(const Front& front) {
  front_ends(front);
  end_nic();
  Helper::of_process().close();
}

}  // namespace weft::provider
