// cpp/call/local.cpp: the checks of local buffers; see local.hpp.
#include "call/local.hpp"

#include <span>

namespace weft::call {

namespace {

constexpr bool of_collective(LocalUse use) {
  return use == LocalUse::give || use == LocalUse::take;
}

// Whether these buffers contain all of [at, at + length); the range may cross the border of two adjacent buffers.
bool covers(std::span<const mem::MrBuffer> buffers, uint64_t at, uint64_t length) {
  for (;;) {
    const mem::MrBuffer* found = nullptr;
    for (const mem::MrBuffer& b : buffers) {
      if (at - b.local_addr < b.length) found = &b;
    }
    if (found == nullptr) return false;
    const uint64_t here = found->length - (at - found->local_addr);
    if (length <= here) return true;
    at += here;
    length -= here;
  }
}

Refusal check_region(const nic::Endpoint& ep, const nic::MemoryRegion& mr, const Local& local, LocalUse use) {
  if (mr.closed()) return Refusal::desc_closed;
  if (mr.domain() != ep.domain()) return Refusal::desc_foreign;
  if (local.length == 0) return Refusal::none;
  if (!covers(mr.buffers(), reinterpret_cast<uint64_t>(local.data), local.length)) return Refusal::desc_elsewhere;
  uint64_t needed = reads(use) ? nic::flag::kWrite | nic::flag::kSend : nic::flag::kRead | nic::flag::kRecv;
  if (of_collective(use)) {
    needed = ep.config().rules.mr_collective ? nic::flag::kCollective : needed | nic::flag::kCollective;
  }
  return (mr.access() & needed) != 0 ? Refusal::none : Refusal::desc_no_right;
}

Refusal check_desc(const nic::Endpoint& ep, const Local& local, LocalUse use, bool device) {
  const nic::OpRules& rules = ep.config().rules;
  if (!local.desc_given) {
    const bool needed = device ? rules.mr_hmem : rules.mr_local || (rules.mr_collective && of_collective(use));
    if (!needed || local.length == 0) return Refusal::none;
    if (local.own != nullptr) return check_region(ep, *local.own, local, use);
    return device ? Refusal::no_device_desc : Refusal::no_desc;
  }
  if (rules.desc_ignored || local.desc == nullptr) return Refusal::none;
  return check_region(ep, *local.desc, local, use);
}

}  // namespace

Refusal find_device(nic::Nic& nic, bool hmem, const Local& local, std::optional<mem::DeviceMemory>* found, Why* why) {
  why->local = local;
  if (!hmem) return why->set(Refusal::no_hmem);
  // Look up bare addresses, which carry no device information, and buffers that claim to be device memory. A buffer
  // object that says it is host memory is believed.
  if (local.length == 0 || (local.iface == mem::kHmemSystem && !local.bare)) return Refusal::none;
  const auto address = reinterpret_cast<uint64_t>(local.data);
  *found = nic.device_memory(address, local.length);
  if (!*found) {
    if (local.iface == mem::kHmemSystem) return Refusal::none;
    return why->set(nic.devices().runtime(local.iface) != nullptr ? Refusal::unknown_device_memory
                                                                  : Refusal::no_device_runtime);
  }
  const uint64_t there = (*found)->base + (*found)->length - address;
  if ((*found)->length != 0 && local.length > there) return why->set(Refusal::past_allocation, local.length, there);
  if ((*found)->kind == mem::DeviceMemoryKind::host) found->reset();  // pinned: loads and stores reach it
  return Refusal::none;
}

Refusal check_local_slow(const nic::Endpoint& ep, const Local& local, LocalUse use, bool with_desc, bool* device,
                         Why* why) {
  const nic::OpRules& rules = ep.config().rules;
  bool of_device = false;
  if (local.bare && local.data == nullptr && local.length != 0) {
    why->local = local;
    return why->set(Refusal::null_buffer);
  }
  if (local.iface != mem::kHmemSystem || local.bare) {
    std::optional<mem::DeviceMemory> found;
    if (rules.hmem || local.iface != mem::kHmemSystem) {
      if (const Refusal r = find_device(*ep.domain()->nic(), rules.hmem, local, &found, why); r != Refusal::none) {
        return r;
      }
    }
    of_device = found.has_value();
    // No object keeps the memory of a bare address alive, so check its pages before the processor accesses them.
    if (!of_device && local.bare && !mem::populate(reinterpret_cast<uint64_t>(local.data), local.length, !reads(use))) {
      why->local = local;
      why->use = use;
      return why->set(Refusal::no_page);
    }
    *device = *device || of_device;
  }
  if (!with_desc && !of_device) return Refusal::none;
  const Refusal r = check_desc(ep, local, use, of_device);
  if (r != Refusal::none) {
    why->local = local;
    why->use = use;
    why->set(r);
  }
  return r;
}

}  // namespace weft::call
