// cpp/provider/mr.cpp: memory regions: the rules of keys and of enabling come with the domain's record.

#include "call/admit.hpp"
#include "nic/region.hpp"
#include "provider/objects.hpp"

namespace weft::provider {

namespace {

constexpr uint64_t kRemote = nic::flag::kRemoteRead | nic::flag::kRemoteWrite;
constexpr uint64_t kModeEndpoint = 1u << 9, kModeRmaEvent = 1u << 8, kModeMmuNotify = 1u << 7, kModeRaw = 1u << 3;
constexpr uint64_t kDmabuf = uint64_t{1} << 40;               // FI_MR_DMABUF: iov is no iov then
constexpr int32_t kRegionEntries = 1, kOptimizedEntries = 2;  // of the ledger, of one region

int mr_refuse(const Domain& d, const char* call, int number, const std::string& text) {
  return refuse(d.fabric->front, Subject::mr, call, number, text);
}

// ---- keys of the provider -------------------------------------------------------------------------------------------

int32_t take_number(Keys& keys) {
  const Guard guard(keys.lock);
  if (!keys.free.empty()) {
    const uint32_t found = keys.free.back();
    keys.free.pop_back();
    return static_cast<int32_t>(found);
  }
  return keys.next < keys.count ? static_cast<int32_t>(keys.next++) : -1;
}

void give_number(Keys& keys, int32_t number) noexcept {
  if (number < 0) return;
  const Guard guard(keys.lock);
  try {
    keys.free.push_back(static_cast<uint32_t>(number));
  } catch (const std::bad_alloc&) {  // the number is not used again
  }
}

void give_entries(Mr& mr) noexcept {
  if (mr.took != 0) mr.domain->ledger->give(mr.domain->slot, mr.took_kind, mr.took);
  mr.took = 0;
}

// The entries that peers' access to the region takes; throws ENOSPC.
void take_entries(Mr& mr, bool optimized) {
  Domain& d = *mr.domain;
  if (d.ledger == nullptr || mr.took != 0) return;
  const auto kind = static_cast<uint32_t>(d.rules.number(optimized ? "ledger.ptes" : "ledger.les"));
  const int32_t count = optimized ? kOptimizedEntries : kRegionEntries;
  if (!d.ledger->take(d.slot, kind, count)) {
    (void)Helper::of_process().ask("reclaim", d.lease);
    if (!d.ledger->take(d.slot, kind, count)) {
      throw Error(fi_err::kENOSPC,
                  std::string("the service has no ") + (optimized ? "portal" : "list") +
                      " entry left for the region\n  try: close regions, or a service with more (weft service create)");
    }
  }
  mr.took = count;
  mr.took_kind = kind;
}

void enable_region(Mr& mr) {
  Domain& d = *mr.domain;
  if (mr.later) {
    take_entries(mr, false);
    uint64_t sequence, kind;
    {
      const Guard guard(d.keys.lock);
      sequence = ++d.keys.sequence & d.keys.sequence_mask;
      kind = d.keys.base;
    }
    if (mr.wants_event || !mr.counters.empty()) kind |= d.rules.number("ledger.key_events");
    mr.region->enable(kind | sequence << d.keys.shift | static_cast<uint64_t>(mr.number));
    mr.later = false;
  } else {
    if (d.ledger != nullptr && (mr.region->access() & kRemote) != 0)
      take_entries(mr, mr.region->key() < d.rules.number("ledger.optimized_below"));
    mr.region->enable();
  }
}

// ---- calls on regions -----------------------------------------------------------------------------------------------

int mr_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<MrShell*>(fid);
  Mr& mr = shell->of;
  if (mr.forked()) return 0;  // the parent's
  if (mr.keeps != nullptr && !mr.keeps->closed()) {
    return mr_refuse(*mr.domain, "fi_close", fi_err::kEBUSY,
                     "fi_close: the region is bound to an endpoint that is open\n  rule: fi_mr(3), \"fi_mr_bind\": the "
                     "endpoint is closed first");
  }
  std::string why;
  if (!mr.region->close_at_once() && !mr.region->close(&why))
    return mr_refuse(*mr.domain, "fi_close", fi_err::kEBUSY, "fi_close: the region: " + why + "; try again later");
  give_entries(mr);
  give_number(mr.domain->keys, mr.number);
  if (mr.bound != nullptr && mr.keeps == nullptr) --mr.bound->uses;
  for (Object* counter : mr.counters) --counter->uses;
  mr.domain->forget_released();
  --mr.domain->uses;
  delete shell;
  return 0;
}

int mr_bind(ofi::Fid* fid, ofi::Fid* to, uint64_t flags) {
  auto* const shell = reinterpret_cast<MrShell*>(fid);
  Mr& mr = shell->of;
  Domain& d = *mr.domain;
  if (mr.forked()) return refuse_forked(mr, "fi_mr_bind");
  return guarded(d.fabric->front, Subject::mr, "fi_mr_bind", [&] {
    if (mr.fixed)
      return mr_refuse(d, "fi_mr_bind", d.errno_of("MR_BIND_STATE"),
                       "fi_mr_bind: the region is enabled\n  rule: bindings come before fi_mr_enable, fi_mr(3)");
    if (to->fclass == kClassEp) {
      Ep& ep = of(whole(as<ofi::FidEp>(to)));
      if (ep.domain != &d)
        return mr_refuse(d, "fi_mr_bind", fi_err::kEINVAL, "fi_mr_bind: an endpoint of another domain");
      if (mr.bound != nullptr)
        return mr_refuse(d, "fi_mr_bind", fi_err::kEINVAL, "fi_mr_bind: the region is bound to an endpoint already");
      // fi_mr(3): an endpoint is enabled before a region is bound; a disabled one has no identity that a region keeps.
      if (!ep.ep->enabled())
        return mr_refuse(d, "fi_mr_bind", d.errno_of("MR_BIND_ENDPOINT"),
                         "fi_mr_bind: the endpoint is not enabled\n  try: fi_enable(ep) first");
      mr.may_enable = true;
      if (mr.region->enabled() && (mr.region->access() & kRemote) == 0) return 0;  // no peer has a right to limit
      mr.region->bind_endpoint(*ep.ep);
      mr.bound = &ep;
      if (d.domain->config().regions.ep_busy) {
        ++ep.uses;
      } else {
        mr.keeps = ep.ep;
      }
      return 0;
    }
    if (to->fclass == kClassCntr) {
      Cntr& c = of(as<ofi::FidCntr>(to));
      if ((flags & nic::flag::kRemoteWrite) == 0)
        return mr_refuse(d, "fi_mr_bind", d.errno_of("MR_BIND_FLAGS"), "fi_mr_bind: a counter counts FI_REMOTE_WRITE");
      if (mr.counted >= d.rules.number("mr.counters_max"))
        return mr_refuse(d, "fi_mr_bind", d.errno_of("MR_BIND_COUNT"), "fi_mr_bind: the region has a counter already");
      d.domain->bind_region_counter(mr.region, c.counter, flags & kRemote);
      mr.counters.push_back(&c);
      ++mr.counted;
      ++c.uses;
      return 0;
    }
    return mr_refuse(d, "fi_mr_bind", fi_err::kEINVAL, "fi_mr_bind: a region takes endpoints and counters");
  });
}

int mr_control(ofi::Fid* fid, int command, void*) {
  auto* const shell = reinterpret_cast<MrShell*>(fid);
  Mr& mr = shell->of;
  Domain& d = *mr.domain;
  if (mr.forked()) return refuse_forked(mr, "fi_control");
  if (command != ofi::kEnable) {
    return mr_refuse(
        d, "fi_control", d.errno_of("MR_CONTROL"),
        "fi_control: a region has no command " + std::to_string(command) + "\n  try: FI_ENABLE (fi_mr_enable)");
  }
  if (!mr.may_enable && d.domain->config().regions.needs_bind && (d.mr_mode & kModeEndpoint) != 0) {
    return mr_refuse(d, "fi_mr_enable", d.errno_of("MR_ENABLE_UNBOUND"),
                     "fi_mr_enable: under FI_MR_ENDPOINT a region is bound to an endpoint first\n  try: fi_mr_bind(mr, "
                     "&ep->fid, 0), then fi_mr_enable(mr)\n  rule: fi_mr(3), \"FI_MR_ENDPOINT\"");
  }
  return guarded(d.fabric->front, Subject::mr, "fi_mr_enable", [&] {
    try {
      if (!mr.region->enabled()) enable_region(mr);
    } catch (...) {
      give_entries(mr);
      throw;
    }
    mr.fixed = true;
    shell->fid.key = mr.region->key();
    return 0;
  });
}

ofi::FidOps g_mr_fid_ops = fid_ops(mr_close, mr_control, mr_bind);

// ---- registering ----------------------------------------------------------------------------------------------------

int check_region(const Domain& d, const char* call, const ofi::MrAttr& a, uint64_t flags, uint64_t* key, bool remote) {
  const Record& r = d.rules;
  const nic::RegionRules& rules = d.domain->config().regions;
  if ((a.access & ~rules.access) != 0)
    return mr_refuse(d, call, fi_err::kEINVAL, std::string(call) + ": access bits that are no permission");
  if ((flags & ~r.number("mr.flags")) != 0)
    return mr_refuse(d, call, d.errno_of("MR_FLAGS"), std::string(call) + ": flags that this provider does not know");
  if ((flags & kDmabuf) != 0)
    return mr_refuse(d, call, fi_err::kENOSYS, std::string(call) + ": FI_MR_DMABUF is not there yet for C programs");
  if (a.offset != 0 && !r.flag("mr.offset_ignored"))
    return mr_refuse(d, call, fi_err::kEINVAL, std::string(call) + ": offset is reserved and must be 0, fi_mr(3)");
  const uint64_t buffers = a.iov != nullptr ? a.iov_count : 0, most = r.number("mr.iov_limit");
  if (buffers == 0 || buffers > most)
    return mr_refuse(d, call, buffers == 0 ? fi_err::kEINVAL : d.errno_of("MR_IOV_LIMIT"),
                     std::string(call) + ": " + std::to_string(buffers) + " buffers; domain_attr->mr_iov_limit is " +
                         std::to_string(most));
  if ((d.mr_mode & (kModeRaw | kModeMmuNotify)) != 0)
    return mr_refuse(d, call, fi_err::kENOSYS,
                     std::string(call) + ": FI_MR_RAW and FI_MR_MMU_NOTIFY are not there yet for C programs");
  if (rules.key_ignored || (rules.local_free && !remote)) {
    *key = 0;
  } else if (*key >= rules.key_end || (*key & rules.key_meanings) != 0) {
    return mr_refuse(d, call, fi_err::kEKEYREJECTED,
                     std::string(call) + ": requested_key " + std::to_string(*key) +
                         " is out of range: domain_attr->mr_key_size says how long a key is");
  }
  return 0;
}

// What an authorization key of a region's own says: the policy knows keys, and has the vectors' keys.
struct Authorized {
  mem::AccessGuard guard;
  bool limited = false;  // by the guard
  Av* av = nullptr;      // whose keys they are
};

int authorize(const Domain& d, const char* call, const ofi::MrAttr& a, uint64_t flags, Authorized* out) {
  if (a.auth_key_size == 0 && !d.av_auth_key) return 0;
  Record question = question_about("mr_auth_key", d.lease);
  question.add("call", std::string_view(call), "size", a.auth_key_size, "flags", flags);
  if (d.av_auth_key && a.auth_key != nullptr && a.auth_key_size == sizeof(ofi::MrAuthKey)) {
    const auto& key = *reinterpret_cast<const ofi::MrAuthKey*>(a.auth_key);
    if (key.av == nullptr || key.av->fid.fclass != kClassAv)
      return mr_refuse(d, call, fi_err::kEINVAL, std::string(call) + ": av of the fi_mr_auth_key is no address vector");
    out->av = &of(key.av);
    question.add("av", out->av->lease, "src_addr", key.src_addr);
  } else if (a.auth_key != nullptr && !d.av_auth_key) {
    question.add("key", key_of(a.auth_key, a.auth_key_size));
  }
  const Record answer = Helper::of_process().ask(question);
  if (const int r = refused(d.fabric->front, Subject::mr, call, answer); r != 0) return r;
  std::vector<uint16_t> vnis;
  for (const uint64_t vni : answer.numbers("vni")) vnis.push_back(static_cast<uint16_t>(vni));
  std::optional<wire::EpAddress> source;
  if (answer.has("source.nic")) {
    source = {static_cast<uint32_t>(answer.number("source.nic")), static_cast<uint32_t>(answer.number("source.pid")),
              static_cast<uint16_t>(answer.number("source.vni")), 0};
  }
  out->guard = call::admit(d.host->nic(), vnis, source);
  out->limited = source || !vnis.empty();
  return 0;
}

int register_memory(ofi::Fid* domain_fid, const char* call, const ofi::MrAttr& a, uint64_t flags, ofi::FidMr** out) {
  Domain& d = of(as<ofi::FidDomain>(domain_fid));
  if (d.forked()) return refuse_forked(d, call);
  return guarded(d.fabric->front, Subject::mr, call, [&] {
    Authorized by;
    if (const int r = authorize(d, call, a, flags, &by); r != 0) return r;
    if (by.av != nullptr) flags &= ~kAuthKeyFlag;
    const bool remote = (a.access & kRemote) != 0;
    uint64_t key = a.requested_key;
    if (const int r = check_region(d, call, a, flags, &key, remote); r != 0) return r;
    uint64_t length = 0;
    for (size_t i = 0; i < a.iov_count; ++i) length += a.iov[i].iov_len;
    if (const auto code = static_cast<int>(d.domain->config().empty_region_errno); length == 0 && code != 0)
      return mr_refuse(d, call, code, std::string(call) + ": a region has at least 1 byte, fi_mr(3)");
    const bool free = d.domain->config().regions.local_free && !remote;
    const bool event = (flags & nic::flag::kRmaEvent) != 0 && (d.mr_mode & kModeRmaEvent) != 0;
    const bool disabled = (d.domain->config().regions.disabled || event) && !free;
    auto shell = std::make_unique<MrShell>();
    Mr& mr = shell->of;
    mr.domain = &d;
    mr.wants_event = (flags & nic::flag::kRmaEvent) != 0;
    nic::RegionExtra extra;
    if (by.limited) extra.guard = &by.guard;
    extra.later = mr.later = d.keys.made && !free;
    if (mr.later) {
      mr.number = take_number(d.keys);
      if (mr.number < 0) return mr_refuse(d, call, fi_err::kENOSPC, std::string(call) + ": no key is left");
    }
    try {
      const bool asks = d.ledger != nullptr && remote;
      mr.region = d.domain->register_region({a.iov, a.iov_count}, a.access, key, true, !disabled && !mr.later && !asks,
                                            0, extra);
      if (!disabled && !mr.region->enabled()) enable_region(mr);
    } catch (...) {
      std::string why;
      if (mr.region != nullptr) (void)mr.region->close(&why);
      give_entries(mr);
      give_number(d.keys, mr.number);
      throw;
    }
    shell->fid.fid = {kClassMr, a.context, &g_mr_fid_ops};
    shell->fid.mem_desc = shell.get();
    shell->fid.key = mr.region->key();
    if (by.av != nullptr) {
      mr.counters.push_back(by.av);
      ++by.av->uses;
    }
    ++d.uses;
    *out = &shell.release()->fid;
    return 0;
  });
}

ofi::MrAttr attr_of(const iovec* iov, size_t count, uint64_t access, uint64_t offset, uint64_t key, void* context) {
  ofi::MrAttr a{};
  a.iov = iov;
  a.iov_count = count;
  a.access = access;
  a.offset = offset;
  a.requested_key = key;
  a.context = context;
  return a;
}

int mr_reg(ofi::Fid* domain, const void* buf, size_t length, uint64_t access, uint64_t offset, uint64_t key,
           uint64_t flags, ofi::FidMr** out, void* context) {
  const iovec iov{const_cast<void*>(buf), length};
  return register_memory(domain, "fi_mr_reg", attr_of(&iov, 1, access, offset, key, context), flags, out);
}

int mr_regv(ofi::Fid* domain, const iovec* iov, size_t count, uint64_t access, uint64_t offset, uint64_t key,
            uint64_t flags, ofi::FidMr** out, void* context) {
  return register_memory(domain, "fi_mr_regv", attr_of(iov, count, access, offset, key, context), flags, out);
}

// The fields up to `device` are there since 1.9; later ones are read only if a flag says that they have a meaning.
int mr_regattr(ofi::Fid* domain, const ofi::MrAttr* attr, uint64_t flags, ofi::FidMr** out) {
  const Domain& d = of(as<ofi::FidDomain>(domain));
  ofi::MrAttr a = attr_of(attr->iov, attr->iov_count, attr->access, attr->offset, attr->requested_key, attr->context);
  a.auth_key_size = attr->auth_key_size;
  a.auth_key = attr->auth_key;
  if (attr->iface != 0 && d.domain->config().hmem)
    return mr_refuse(d, "fi_mr_regattr", fi_err::kENOSYS,
                     "fi_mr_regattr: device memory is not there yet for C programs\n  try: iface FI_HMEM_SYSTEM");
  return register_memory(domain, "fi_mr_regattr", a, flags, out);
}

}  // namespace

ofi::MrOps g_mr_ops{sizeof(ofi::MrOps), mr_reg, mr_regv, mr_regattr};

}  // namespace weft::provider
