// cpp/provider/domain.cpp: domains, and what they take of a service.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "base/fd.hpp"
#include "provider/ext.hpp"
#include "provider/group.hpp"
#include "provider/info.hpp"
#include "provider/network.hpp"
#include "provider/objects.hpp"
#include "provider/rules.hpp"

namespace weft::provider {

namespace {

int domain_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<DomainShell*>(fid);
  Domain& d = shell->of;
  if (d.forked()) return 0;  // the parent's
  if (d.uses != 0)
    return in_use(d,
                  "the domain has open objects\n  try: close endpoints, queues, counters, vectors and regions first");
  d.domain->close();
  d.domain.reset();
  if (d.ledger != nullptr) d.ledger->close(d.slot);
  --d.fabric->uses;
  delete shell;
  return 0;
}

int domain_query_atomic(ofi::FidDomain* fid, int datatype, int op, ofi::AtomicAttr* attr, uint64_t flags) {
  Domain& d = of(fid);
  if (d.forked()) return refuse_forked(d, "fi_query_atomic");
  if (attr == nullptr)
    return refuse(d.fabric->front, Subject::domain, "fi_query_atomic", fi_err::kEINVAL,
                  "fi_query_atomic: attr is NULL");
  return guarded(d.fabric->front, Subject::domain, "fi_query_atomic", [&] {
    Record question = question_about("query_atomic", d.lease);
    question.add("datatype", static_cast<uint64_t>(datatype), "op", static_cast<uint64_t>(op), "flags", flags);
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(d.fabric->front, Subject::domain, "fi_query_atomic", answer); r != 0) return r;
    *attr = {answer.number("count"), answer.number("size")};
    return 0;
  });
}

int domain_endpoint2(ofi::FidDomain* fid, ofi::Info* info, ofi::FidEp** out, uint64_t flags, void* context) {
  if (flags == 0) return open_endpoint(fid, info, out, context);
  return refuse(of(fid).fabric->front, Subject::ep_ctrl, "fi_endpoint2", fi_err::kENOSYS,
                "fi_endpoint2: flags; peer endpoints are not there\n  try: fi_endpoint");
}

int domain_bind(ofi::Fid* fid, ofi::Fid* to, uint64_t flags) {
  return refuse(of(as<ofi::FidDomain>(fid)).fabric->front, Subject::domain, "fi_domain_bind", fi_err::kENOSYS,
                to->fclass == kClassEq && flags == 0
                    ? "fi_domain_bind: events of memory registration are not there yet\n  try: without FI_REG_MR"
                    : "fi_domain_bind: there is nothing to bind");
}

ofi::FidOps make_domain_fid_ops() noexcept {
  ofi::FidOps ops = fid_ops(domain_close);
  ops.bind = domain_bind;
  ops.control = domain_control;
  ops.ops_open = domain_open_ops;
  ops.ops_set = domain_set_ops;
  return ops;
}
ofi::FidOps g_domain_fid_ops = make_domain_fid_ops();

ofi::DomainOps make_domain_ops() noexcept {
  using Ops = ofi::DomainOps;
  Ops ops =
      stubs<Ops, &Ops::av_open, &Ops::cq_open, &Ops::endpoint, &Ops::scalable_ep, &Ops::cntr_open, &Ops::poll_open,
            &Ops::stx_ctx, &Ops::srx_ctx, &Ops::query_atomic, &Ops::query_collective, &Ops::endpoint2>();
  ops.av_open = open_av;
  ops.cq_open = open_cq;
  ops.endpoint = open_endpoint;
  ops.endpoint2 = domain_endpoint2;
  ops.cntr_open = open_cntr;
  ops.query_atomic = domain_query_atomic;
  ops.query_collective = query_collective;
  return ops;
}
ofi::DomainOps g_domain_ops = make_domain_ops();

// The identity of this process in a ledger, as src/weft/providers/cxi/processes.py makes it.
mem::Ledger::Who who() noexcept {
  mem::Ledger::Who me;
  me.pid = static_cast<uint64_t>(::getpid());
  char text[1024];
  if (const UniqueFd fd(::open("/proc/self/stat", O_RDONLY | O_CLOEXEC)); fd.get() >= 0) {
    const ssize_t n = ::read(fd.get(), text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    const char* at = std::strrchr(text, ')');
    for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
    if (at != nullptr) me.start = std::strtoull(at + 1, nullptr, 10);
  }
  struct stat space;
  if (::stat("/proc/self/ns/pid", &space) == 0) me.space = static_cast<uint32_t>(space.st_ino);
  return me;
}

void open_ledger(Domain& d) {
  const std::string path(d.rules.text("ledger.path"));
  if (path.empty()) return;
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (fd.get() < 0) throw Error(errno, path + ": " + std::strerror(errno));
  d.ledger = std::make_unique<mem::Ledger>(fd.get(), host::calendar());
  const auto service = static_cast<uint32_t>(d.rules.number("ledger.service"));
  try {
    d.slot = d.ledger->open(who(), service);
  } catch (const Error&) {  // dead processes have the slots
    (void)Helper::of_process().ask("reclaim", d.lease);
    d.slot = d.ledger->open(who(), service);
  }
}

// The devices' pages, in which the NIC counts, and which say whether a link is down. Without a page a domain works.
void attach_pages(Domain& d) {
  for (const Record& page : d.rules.all("page")) {
    const std::string path(page.text("path"));
    try {
      const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
      if (fd.get() < 0) throw Error(errno, std::strerror(errno));
      d.host->nic().telemetry().attach(static_cast<uint32_t>(page.number("nic")), fd.get());
    } catch (const Error& reason) {
      explain(d.fabric->front, Subject::domain, "fi_domain",
              "telemetry leaves this process out: " + path + ": " + reason.what());
    }
  }
}

}  // namespace

int open_domain(ofi::FidFabric* fabric_fid, ofi::Info* info, ofi::FidDomain** out, void* context) {
  Fabric& fabric = of(fabric_fid);
  if (info == nullptr || info->fabric == nullptr || info->domain == nullptr)
    return refuse(fabric.front, Subject::domain, "fi_domain", fi_err::kEINVAL,
                  "fi_domain: info, or a part of it, is NULL\n  try: an info that fi_getinfo returned");
  return guarded(fabric.front, Subject::domain, "fi_domain", [&] {
    Record asked = record_of(*info, fabric_fid->api_version);
    Record question;
    question.add("ask", "domain", "info", asked, "provider", fabric.front.name, "version", fabric_fid->api_version,
                 "variables", network_variables());
    auto shell = std::make_unique<DomainShell>();
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(fabric.front, Subject::domain, "fi_domain", answer); r != 0) return r;
    Domain& d = shell->of;
    d.lease.take(answer);
    d.fabric = &fabric;
    d.api_version = fabric_fid->api_version;
    d.rules = answer;
    d.host = nic_of_process(answer.nested("nic"));
    open_ledger(d);
    attach_pages(d);
    d.domain = std::make_unique<nic::Domain>(&d.host->nic(), settings_of<nic::DomainConfig>(answer));
    d.work.cancels = answer.flag("work_cancels");
    d.work.semaphore = answer.text("ledger.semaphore");
    if (d.ledger != nullptr)
      d.domain->triggers().set_entries({d.ledger.get(), d.slot, static_cast<uint32_t>(answer.number("ledger.tles"))});
    d.addr_format = static_cast<uint32_t>(answer.number("addr_format"));
    d.fabric_base = static_cast<uint32_t>(answer.number("fabric_base"));
    d.vni = static_cast<uint16_t>(answer.number("vni"));
    take_hosts(d);
    d.av_auth_key = answer.flag("av_auth_key");
    d.address_vni = answer.flag("address_vni");
    d.asks_outcome = answer.flag("asks_outcome");
    d.mr_mode = answer.number("mr_mode");
    d.keys.made = d.domain->config().regions.key_later;
    d.keys.shift = static_cast<uint32_t>(answer.number("ledger.key_shift"));
    d.keys.count = static_cast<uint32_t>(answer.number("ledger.key_count"));
    d.keys.sequence_mask = answer.number("ledger.key_sequence_mask");
    {
      const Guard guard(d.keys.lock);
      d.keys.base = answer.number("ledger.key_base");
      d.keys.sequence = answer.number("ledger.key_sequence");
    }
    shell->fid.fid = {kClassDomain, context, &g_domain_fid_ops};
    shell->fid.ops = &g_domain_ops;
    shell->fid.mr = &g_mr_ops;
    ++fabric.uses;
    *out = &shell.release()->fid;
    return 0;
  });
}

}  // namespace weft::provider
