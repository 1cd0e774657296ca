// cpp/call/local.hpp: the local buffers of a call: whether they are there, whose memory they are, and whether their
// descriptors are valid.
//
// fi_mr(3): under FI_MR_LOCAL each buffer that the NIC accesses is registered and its descriptor given; under
// FI_MR_HMEM each buffer in device memory. Otherwise a descriptor may be given, and then it has to be valid: an open
// region of the endpoint's domain that covers the buffer and was registered for what the call does with it. A call
// reads its source by WRITE or SEND and writes its result by READ or RECV; which of the two is not told apart, as
// fi_mr(3) allows under "access". A piece of a region is its own descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "nic/nic.hpp"

namespace weft::call {

using nic::Refusal;

enum class LocalUse : uint8_t { source, result };  // what a call does with a buffer: reads it, writes it

struct Local {
  std::byte* data = nullptr;
  uint64_t length = 0;
  const nic::MemoryRegion* desc = nullptr;  // the descriptor that the caller gave
  const nic::MemoryRegion* own = nullptr;   // the region that the buffer is a piece of
  uint32_t iface = mem::kHmemSystem;        // whose memory it is, as far as the caller says
  bool bare = false;                        // (address, length): no object keeps the memory alive
  bool desc_given = false;                  // desc may be null all the same where descriptors are ignored
};

// A refusal, with what its explanation needs. Only `refusal` is set while nothing is refused.
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

// The device allocation that a buffer lies in; nothing for what loads and stores reach. hmem: device memory is
// admitted.
Refusal find_device(nic::Nic& nic, bool hmem, const Local& local, std::optional<mem::DeviceMemory>* found, Why* why);
// Whether a buffer may be the source or the result of an operation. *device: it is device memory, to be copied by its
// runtime. with_desc: its descriptor is looked at.
Refusal check_local_slow(const nic::Endpoint& ep, const Local& local, LocalUse use, bool with_desc, bool* device,
                         Why* why);

// HOT. Memory of the host that nothing more is asked of.
inline bool is_plain(const nic::Endpoint& ep, const Local& local) noexcept {
  const nic::OpRules& rules = ep.config().rules;
  return local.iface == mem::kHmemSystem && !local.bare && !local.desc_given && !rules.mr_local && !rules.mr_hmem;
}

// HOT.
inline Refusal check_local(const nic::Endpoint& ep, const Local& local, LocalUse use, bool with_desc, bool* device,
                           Why* why) {
  if (is_plain(ep, local)) [[likely]]
    return Refusal::none;
  return check_local_slow(ep, local, use, with_desc, device, why);
}

}  // namespace weft::call
