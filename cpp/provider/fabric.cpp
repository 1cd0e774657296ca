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

int fabric_trywait(ofi::FidFabric* fid, ofi::Fid** fids, int count) {
  Fabric& fabric = of(fid);
  for (int i = 0; i < count; ++i) {
    switch (fids[i]->fclass) {
      case kClassCq:
        if (!may_sleep(of(as<ofi::FidCq>(fids[i])))) return -fi_err::kEAGAIN;
        break;
      case kClassCntr:
        of(as<ofi::FidCntr>(fids[i])).domain->host->nic().prepare_app_sleep();
        break;
      case kClassEq:
        if (!eq_is_empty(fids[i])) return -fi_err::kEAGAIN;
        break;
      default:
        return refuse(fabric.front, Subject::fabric, "fi_trywait", fi_err::kEINVAL,
                      "fi_trywait: an object that is no completion queue, counter or event queue");
    }
  }
  return 0;
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
