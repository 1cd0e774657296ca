// cpp/provider/av.cpp: address vectors, and the two forms of addresses: FI_ADDR_STR (weft://nic/vni/pid) and
// FI_ADDR_CXI (eight bytes).
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "nic/av.hpp"
#include "provider/group.hpp"
#include "provider/network.hpp"
#include "provider/objects.hpp"

namespace weft::provider {

namespace {

constexpr uint32_t kAddrStr = 9;
constexpr uint32_t kCxiPidBits = 9, kCxiPidAny = 511;
constexpr size_t kCxiBytes = 8;
constexpr uint64_t kNotAvail = ~uint64_t{0};
constexpr uint64_t kAvTable = 2;
constexpr uint64_t kSyncErr = uint64_t{1} << 58;  // FI_SYNC_ERR: context is an array of int
constexpr uint64_t kMore = uint64_t{1} << 18;
constexpr uint64_t kUserId = uint64_t{1} << 41;  // FI_AV_USER_ID

int av_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<AvShell*>(fid);
  Av& av = shell->of;
  if (av.forked()) return 0;  // the parent's
  if (av.uses != 0)
    return in_use(
        av, "an endpoint is bound to the address vector, or sets of its addresses are open\n  try: close them first");
  --av.domain->uses;
  delete shell;
  return 0;
}

// ---- authorization keys (FI_AV_AUTH_KEY) ----------------------------------------------------------------------------
//
// The policy's vector has the keys, and the peers with the keys that they use: it answers these calls, also with the
// refusals of vectors that have no keys.

Record question_of_keys(const Av& av, const char* ask, uint64_t flags) {
  Record question = question_about(ask, av.lease);
  question.add("flags", flags);
  return question;
}

int no_room(const Av& av, const char* call, const char* what) {
  return refuse(av.domain->fabric->front, Subject::av, call, fi_err::kEINVAL,
                std::string(call) + ": " + what + " is NULL");
}

int av_insert_auth_key(ofi::FidAv* fid, const void* key, size_t size, ofi::Addr* out, uint64_t flags) {
  static const char* const call = "fi_av_insert_auth_key";
  const Av& av = of(fid);
  if (av.forked()) return refuse_forked(av, call);
  if (key == nullptr || out == nullptr) return no_room(av, call, key == nullptr ? "auth_key" : "fi_addr");
  return guarded(av.domain->fabric->front, Subject::av, call, [&] {
    Record question = question_of_keys(av, "insert_auth_key", flags);
    question.add("size", size, "key", key_of(key, size));
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(av.domain->fabric->front, Subject::av, call, answer); r != 0) return r;
    *out = answer.number("fi_addr");
    return 0;
  });
}

int av_lookup_auth_key(ofi::FidAv* fid, ofi::Addr address, void* key, size_t* size) {
  static const char* const call = "fi_av_lookup_auth_key";
  const Av& av = of(fid);
  if (av.forked()) return refuse_forked(av, call);
  if (key == nullptr || size == nullptr) return no_room(av, call, key == nullptr ? "auth_key" : "auth_key_size");
  return guarded(av.domain->fabric->front, Subject::av, call, [&] {
    Record question = question_of_keys(av, "lookup_auth_key", 0);
    question.add("fi_addr", address);
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(av.domain->fabric->front, Subject::av, call, answer); r != 0) return r;
    const std::string_view found = answer.text("key");
    std::memcpy(key, found.data(), std::min(*size, found.size()));
    *size = found.size();
    return 0;
  });
}

// Inserts peers, each with the key whose number is in its place of the array. `errors` gets the numbers of refusals;
// without it the first refusal ends the call.
int av_insert_with_keys(Av& av, const char* at, size_t count, ofi::Addr* out, uint64_t flags, int* errors) {
  static const char* const call = "fi_av_insert";
  return guarded(av.domain->fabric->front, Subject::av, call, [&] {
    int inserted = 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t size = address_size(*av.domain, at);
      const Guard guard(av.keyed_lock);
      Record question = question_of_keys(av, "insert_with_key", flags);
      question.add("address", std::string_view(at, size));
      if (out != nullptr) question.add("key", out[i]);
      const Record answer = Helper::of_process().ask(question);
      const int r = refused(av.domain->fabric->front, Subject::av, call, answer);
      if (errors != nullptr) errors[i] = -r;
      at += size;
      if (r != 0) {
        if (out != nullptr) out[i] = kNotAvail;
        if (errors == nullptr) return inserted == 0 ? r : inserted;
        continue;
      }
      const uint64_t found =
          av.av->insert({static_cast<uint32_t>(answer.number("nic")), static_cast<uint32_t>(answer.number("pid")),
                         static_cast<uint16_t>(answer.number("vni")), 0});
      assert(found == answer.number("fi_addr") && "both vectors have the same peers");
      if (out != nullptr) out[i] = found;
      ++inserted;
    }
    return inserted;
  });
}

int av_remove_with_keys(Av& av, const ofi::Addr* addresses, size_t count, uint64_t flags) {
  static const char* const call = "fi_av_remove";
  return guarded(av.domain->fabric->front, Subject::av, call, [&] {
    for (size_t i = 0; i < count; ++i) {
      const Guard guard(av.keyed_lock);
      Record question = question_of_keys(av, "remove_with_key", flags);
      question.add("fi_addr", addresses[i]);
      const Record answer = Helper::of_process().ask(question);
      if (const int r = refused(av.domain->fabric->front, Subject::av, call, answer); r != 0) return r;
      if (answer.flag("gone")) (void)av.av->remove(addresses[i]);
    }
    return 0;
  });
}

// Insertions that the provider counts have to be removed as often.
uint64_t put_address(Av& av, const wire::EpAddress& address, bool counted) {
  const Guard guard(av.keyed_lock);
  const uint64_t found = av.av->insert(address);
  if (counted) ++av.insertions[found];
  return found;
}

bool remove_address(Av& av, uint64_t fi_addr) {
  const Guard guard(av.keyed_lock);
  if (const auto it = av.insertions.find(fi_addr); it != av.insertions.end()) {
    if (--it->second != 0) return true;
    av.insertions.erase(it);
  }
  return av.av->remove(fi_addr);
}

int av_insert(ofi::FidAv* fid, const void* addresses, size_t count, ofi::Addr* out, uint64_t flags, void* context) {
  Av& av = of(fid);
  const Front& front = av.domain->fabric->front;
  if (av.forked()) return refuse_forked(av, "fi_av_insert");
  if (addresses == nullptr && count != 0) return no_room(av, "fi_av_insert", "addr");
  if (av.domain->av_auth_key || (flags & kAuthKeyFlag) != 0)
    return av_insert_with_keys(av, static_cast<const char*>(addresses), count, out, flags & ~kSyncErr,
                               (flags & kSyncErr) != 0 ? static_cast<int*>(context) : nullptr);
  if ((flags & ~(av.domain->rules.number("av.insert_flags") & (kSyncErr | kMore | kUserId))) != 0)
    return refuse(front, Subject::av, "fi_av_insert", av.domain->errno_of("AV_INSERT_FLAGS"),
                  "fi_av_insert: flags that this provider does not know\n  rule: weft has FI_MORE and FI_SYNC_ERR, cxi "
                  "FI_MORE and FI_AV_USER_ID");
  if ((flags & kUserId) != 0 && out == nullptr) {
    return refuse(front, Subject::av, "fi_av_insert", fi_err::kEINVAL,
                  "fi_av_insert: with FI_AV_USER_ID, the array of fi_addr has the user ids");
  }
  return guarded(front, Subject::av, "fi_av_insert", [&] {
    const bool counted = av.domain->rules.flag("av.counted");
    const auto* at = static_cast<const char*>(addresses);
    int* const errors = (flags & kSyncErr) != 0 ? static_cast<int*>(context) : nullptr;
    int inserted = 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t size = address_size(*av.domain, at);
      wire::EpAddress address;
      bool has_pid = false;
      const bool good = parse_address(*av.domain, at, size, &address, &has_pid) && has_pid;
      if (good) {
        const uint64_t found = put_address(av, address, counted);
        if ((flags & kUserId) != 0) (void)av.av->set_user_id(found, out[i]);
        if (out != nullptr) out[i] = found;
        ++inserted;
      } else {
        if (out != nullptr) out[i] = kNotAvail;
        (void)refuse(front, Subject::av, "fi_av_insert", fi_err::kEINVAL,
                     "fi_av_insert: entry " + std::to_string(i) + " is no address of an endpoint\n  rule: " +
                         (av.domain->addr_format == kAddrStr
                              ? "FI_ADDR_STR, weft://<nic>/<vni>/<pid> or weft://<host>:<port>/<nic>/<vni>/<pid>"
                              : "FI_ADDR_CXI, 8 bytes") +
                         ", as fi_getname returns it");
      }
      if (errors != nullptr) errors[i] = good ? 0 : fi_err::kEINVAL;
      at += size;
    }
    return inserted;
  });
}

// Inserts the address that the policy finds for names.
int av_insert_named(ofi::FidAv* fid, const char* call, uint64_t flags, const char* node, const char* service,
                    ofi::Addr* out) {
  Av& av = of(fid);
  const Front& front = av.domain->fabric->front;
  if (av.forked()) return refuse_forked(av, call);
  return guarded(front, Subject::av, call, [&] {
    Record question = question_of_keys(av, call + std::string_view("fi_av_").size(), flags);
    if (node != nullptr) question.add("node", std::string_view(node));
    if (service != nullptr) question.add("service", std::string_view(service));
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(front, Subject::av, call, answer); r != 0) return r;
    const std::string bytes(answer.text("address"));
    wire::EpAddress address;
    bool has_pid = false;
    if (!parse_address(*av.domain, bytes.data(), bytes.size(), &address, &has_pid) || !has_pid) {
      return refuse(front, Subject::av, call, fi_err::kEINVAL,
                    std::string(call) + ": " + (node != nullptr ? node : "") + " is no address of an endpoint");
    }
    const uint64_t found = put_address(av, address, av.domain->rules.flag("av.counted"));
    if (out != nullptr) *out = found;
    return 1;
  });
}

int av_insertsvc(ofi::FidAv* fid, const char* node, const char* service, ofi::Addr* out, uint64_t flags, void*) {
  return av_insert_named(fid, "fi_av_insertsvc", flags, node, service, out);
}

// No provider has the call: the policy says what to do.
int av_insertsym(ofi::FidAv* fid, const char* node, size_t, const char* service, size_t, ofi::Addr* out, uint64_t,
                 void*) {
  return av_insert_named(fid, "fi_av_insertsym", 0, node, service, out);
}

int av_set_user_id(ofi::FidAv* fid, ofi::Addr address, ofi::Addr id, uint64_t flags) {
  const Av& av = of(fid);
  static const char* const call = "fi_av_set_user_id";
  if (av.forked()) return refuse_forked(av, call);
  const Front& front = av.domain->fabric->front;
  if ((flags & ~kAuthKeyFlag) != 0) {
    return refuse(front, Subject::av, call, av.domain->errno_of("AV_INSERT_FLAGS"),
                  "fi_av_set_user_id: flags; FI_AUTH_KEY alone is supported");
  }
  if (flags != 0) {
    return guarded(front, Subject::av, call, [&] {
      Record question = question_of_keys(av, "key_user_id", flags);
      question.add("fi_addr", address, "id", id);
      return refused(front, Subject::av, call, Helper::of_process().ask(question));
    });
  }
  return guarded(front, Subject::av, call, [&] {
    if (!av.user_ids) {
      return refuse(
          front, Subject::av, call, fi_err::kEINVAL,
          "fi_av_set_user_id: the vector was opened without FI_AV_USER_ID\n  try: fi_av_attr.flags FI_AV_USER_ID");
    }
    if (!av.av->set_user_id(address, id)) {
      return refuse(front, Subject::av, call, fi_err::kEINVAL,
                    "fi_av_set_user_id: fi_addr " + std::to_string(address) + " is not in the address vector");
    }
    return 0;
  });
}

int av_remove(ofi::FidAv* fid, ofi::Addr* addresses, size_t count, uint64_t flags) {
  Av& av = of(fid);
  if (av.forked()) return refuse_forked(av, "fi_av_remove");
  if (addresses == nullptr && count != 0) return no_room(av, "fi_av_remove", "fi_addr");
  if (av.domain->av_auth_key || (flags & kAuthKeyFlag) != 0) return av_remove_with_keys(av, addresses, count, flags);
  if (flags != 0) {
    return refuse(av.domain->fabric->front, Subject::av, "fi_av_remove", av.domain->errno_of("AV_REMOVE_FLAGS"),
                  "fi_av_remove: flags; FI_AUTH_KEY alone is supported");
  }
  for (size_t i = 0; i < count; ++i) {
    if (!remove_address(av, addresses[i]) && !av.domain->rules.flag("av.remove_ignores")) {
      return refuse(av.domain->fabric->front, Subject::av, "fi_av_remove", fi_err::kEINVAL,
                    "fi_av_remove: fi_addr " + std::to_string(addresses[i]) + " is not in the address vector");
    }
  }
  return 0;
}

int av_lookup(ofi::FidAv* fid, ofi::Addr address, void* out, size_t* length) {
  Av& av = of(fid);
  if (av.forked()) return refuse_forked(av, "fi_av_lookup");
  if (length == nullptr) return no_room(av, "fi_av_lookup", "addrlen");
  const auto found = av.av->lookup(address);
  if (!found) {
    return refuse(av.domain->fabric->front, Subject::av, "fi_av_lookup", fi_err::kEINVAL,
                  "fi_av_lookup: fi_addr " + std::to_string(address) + " is not in the address vector");
  }
  const int r = copy_address(*av.domain, *found, out, length);
  return r == -code::kETOOSMALL ? 0 : r;  // fi_av(3): the address is cut, and its length returned
}

const char* av_straddr(ofi::FidAv* fid, const void* address, char* out, size_t* length) {
  const Av& av = of(fid);
  char text[kAddressBytesMax];
  if (av.domain->addr_format == kAddrStr) {
    std::snprintf(text, sizeof(text), "%s", static_cast<const char*>(address));
  } else {
    uint32_t word = 0;
    std::memcpy(&word, address, sizeof(word));
    std::snprintf(text, sizeof(text), "nic 0x%x, pid %u", word >> kCxiPidBits & 0xfffff, word & kCxiPidAny);
  }
  const size_t room = *length;
  *length = std::strlen(text) + 1;
  if (room != 0) std::snprintf(out, room, "%s", text);
  return out;
}

ofi::FidOps g_av_fid_ops = fid_ops(av_close);

ofi::AvOps make_av_ops() noexcept {
  using Ops = ofi::AvOps;
  Ops ops = stubs<Ops, &Ops::insert, &Ops::insertsvc, &Ops::insertsym, &Ops::remove, &Ops::lookup, &Ops::av_set,
                  &Ops::insert_auth_key, &Ops::lookup_auth_key, &Ops::set_user_id>();
  ops.insert = av_insert;
  ops.insertsvc = av_insertsvc;
  ops.insertsym = av_insertsym;
  ops.remove = av_remove;
  ops.lookup = av_lookup;
  ops.av_set = open_av_set;
  ops.straddr = av_straddr;
  ops.insert_auth_key = av_insert_auth_key;
  ops.lookup_auth_key = av_lookup_auth_key;
  ops.set_user_id = av_set_user_id;
  return ops;
}
ofi::AvOps g_av_ops = make_av_ops();

}  // namespace

size_t address_bytes(const Domain& domain, const wire::EpAddress& address, char (&out)[kAddressBytesMax],
                     bool for_peers) noexcept {
  if (domain.addr_format == kAddrStr) {
    const std::string with_host = for_peers ? text_for_peers(domain, address) : text_of_remote(domain, address);
    if (!with_host.empty()) {
      return 1 + static_cast<size_t>(std::snprintf(out, sizeof(out), "%s", with_host.c_str()));
    }
    return 1 + static_cast<size_t>(
                   std::snprintf(out, sizeof(out), "weft://%u/%u/%u", address.nic, unsigned{address.vni}, address.pid));
  }
  std::memset(out, 0, kCxiBytes);
  const uint32_t word = nic_in_fabric(domain, address.nic) << kCxiPidBits | (address.pid & kCxiPidAny);
  std::memcpy(out, &word, sizeof(word));
  if (domain.address_vni) std::memcpy(out + sizeof(word), &address.vni, sizeof(address.vni));
  return kCxiBytes;
}

int copy_address(const Domain& domain, const wire::EpAddress& address, void* out, size_t* length,
                 bool for_peers) noexcept {
  char bytes[kAddressBytesMax];
  if (length == nullptr)
    return refuse(domain.fabric->front, Subject::ep_ctrl, "fi_getname", fi_err::kEINVAL,
                  "fi_getname: addrlen is NULL\n  try: a pointer to the size of the buffer");
  const size_t size = address_bytes(domain, address, bytes, for_peers), room = *length;
  *length = size;
  if (out != nullptr) std::memcpy(out, bytes, room < size ? room : size);
  return room < size ? -code::kETOOSMALL : 0;
}

size_t address_size(const Domain& domain, const void* bytes) noexcept {
  if (bytes == nullptr) return 0;
  return domain.addr_format == kAddrStr ? ::strnlen(static_cast<const char*>(bytes), 255) + 1 : kCxiBytes;
}

bool parse_address(const Domain& domain, const void* bytes, size_t size, wire::EpAddress* out, bool* has_pid) noexcept {
  if (domain.addr_format != kAddrStr) {
    if (size != kCxiBytes) return false;
    uint32_t word = 0;
    std::memcpy(&word, bytes, sizeof(word));
    // Peers are reached on the VNI of this domain's key, whatever VNI the address has.
    *out = {nic_of_fabric(domain, word >> kCxiPidBits & 0xfffff), word & kCxiPidAny, domain.vni, 0};
    *has_pid = (word & kCxiPidAny) != kCxiPidAny;
    return true;
  }
  const auto* const given = static_cast<const char*>(bytes);
  if (parse_remote(domain, {given, ::strnlen(given, size)}, out, has_pid)) return true;
  char text[64] = {};
  if (size >= sizeof(text)) return false;
  std::memcpy(text, bytes, size);
  unsigned nic = 0, vni = 0, pid = 0;
  int end = 0;
  const int found = std::sscanf(text, "weft://%u/%u%n/%u%n", &nic, &vni, &end, &pid, &end);
  if (found < 2 || text[end] != '\0' || nic >> 31 != 0 || vni > 0xffff) return false;
  *out = {nic, pid, static_cast<uint16_t>(vni), 0};
  *has_pid = found == 3;
  return true;
}

int open_av(ofi::FidDomain* domain_fid, ofi::AvAttr* attr, ofi::FidAv** out, void* context) {
  Domain& d = of(domain_fid);
  if (d.forked()) return refuse_forked(d, "fi_av_open");
  return guarded(d.fabric->front, Subject::av, "fi_av_open", [&] {
    const ofi::AvAttr none{};
    const ofi::AvAttr& a = attr != nullptr ? *attr : none;
    Record question = question_about("av", d.lease);
    question.add("type", static_cast<uint64_t>(a.type), "rx_ctx_bits", static_cast<uint64_t>(a.rx_ctx_bits), "count",
                 a.count, "ep_per_node", a.ep_per_node, "flags", a.flags);
    if (a.name != nullptr) question.add("name", std::string_view(a.name));
    auto shell = std::make_unique<AvShell>();
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(d.fabric->front, Subject::av, "fi_av_open", answer); r != 0) return r;
    shell->of.lease.take(answer);
    shell->of.domain = &d;
    constexpr uint64_t kSymmetric = uint64_t{1} << 59;
    shell->of.av = std::make_shared<nic::AddressVector>(
        d.domain.get(), (a.flags & kSymmetric) != 0 && answer.number("type") == kAvTable && !d.av_auth_key,
        (a.flags & kUserId) != 0);
    shell->of.user_ids = (a.flags & kUserId) != 0;
    shell->fid.fid = {kClassAv, context, &g_av_fid_ops};
    shell->fid.ops = &g_av_ops;
    if (attr != nullptr) attr->type = static_cast<int>(answer.number("type"));
    ++d.uses;
    *out = &shell.release()->fid;
    return 0;
  });
}

}  // namespace weft::provider
