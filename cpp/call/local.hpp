// cpp/call/local.hpp: checks of a call's local buffers: their pages exist, host or device memory, validity of their
// descriptors.
//
// fi_mr(3): under FI_MR_LOCAL the application registers each buffer that the NIC accesses and passes its descriptor;
// under FI_MR_HMEM each buffer in device memory. Otherwise a descriptor is optional, but must be valid if given: an
// open region of the endpoint's domain that covers the buffer and has the access right for the call. The source of a
// call or a send needs WRITE or SEND, the result of a call or a receive READ or RECV; either right of the pair is
// enough, as fi_mr(3) allows under "access". A slice of a region carries its region as its descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "nic/nic.hpp"

namespace weft::call {

using nic::Refusal;

// source, send, give: the NIC reads the buffer; result, receive, take: the NIC writes it. give, take: of collectives.
enum class LocalUse : uint8_t { source, result, send, receive, give, take };

constexpr bool reads(LocalUse use) noexcept {
  return use == LocalUse::source || use == LocalUse::send || use == LocalUse::give;
}

struct Local {
  std::byte* data = nullptr;
  uint64_t length = 0;
  const nic::MemoryRegion* desc = nullptr;  // the descriptor that the caller gave
  const nic::MemoryRegion* own = nullptr;   // the region of which the buffer is a slice
  uint32_t iface = mem::kHmemSystem;        // the memory's interface, as the caller states it
  bool bare = false;                        // (address, length): no object keeps the memory alive
  bool desc_given = false;                  // true with a null desc: rules.desc_ignored, the value was not read
};

// A refusal and the values that its text needs. While nothing is refused, only `refusal` is meaningful.
struct Why {
  Refusal refusal = Refusal::none;
  LocalUse use = LocalUse::source;
  Local local;
  uint64_t dest = 0;
  uint64_t asked = 0, limit = 0, element = 0;
  const char* what = "";  // the argument

  Refusal set(Refusal r) noexcept { return refusal = r; }
  Refusal set(Refusal r, uint64_t found, uint64_t allowed) noexcept {
    asked = found, limit = allowed;
    return refusal = r;
  }
};

// Finds the device allocation that contains a buffer; empty if loads and stores reach the memory. hmem: the endpoint
// allows device memory.
Refusal find_device(nic::Nic& nic, bool hmem, const Local& local, std::optional<mem::DeviceMemory>* found, Why* why);
// Checks that a buffer may be the source or the result of an operation. *device: the buffer is device memory, and the
// device's runtime must copy it. with_desc: also check its descriptor.
Refusal check_local_slow(const nic::Endpoint& ep, const Local& local, LocalUse use, bool with_desc, bool* device,
                         Why* why);

// HOT. Host memory, for which the rules demand no further check.
inline bool is_plain(const nic::Endpoint& ep, const Local& local) noexcept {
  const nic::OpRules& rules = ep.config().rules;
  if (local.iface != mem::kHmemSystem || local.bare) [[unlikely]]
    return false;
  return local.desc_given ? rules.desc_ignored || local.desc == nullptr : !rules.mr_local && !rules.mr_hmem;
}

// HOT.
inline Refusal check_local(const nic::Endpoint& ep, const Local& local, LocalUse use, bool with_desc, bool* device,
                           Why* why) {
  if (is_plain(ep, local)) [[likely]]
    return Refusal::none;
  return check_local_slow(ep, local, use, with_desc, device, why);
}

}  // namespace weft::call
