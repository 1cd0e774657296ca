// cpp/bind/desc.hpp: local descriptors, the desc arguments of transfers: when one is needed, and whether it is valid.
//
// fi_mr(3): under FI_MR_LOCAL each buffer that the NIC accesses is registered and its descriptor given, under
// FI_MR_HMEM each buffer that is a device's memory. Otherwise a descriptor may be given, and then it is valid: an open
// region of the endpoint's domain that covers the buffer and was registered for what the transfer does with it. A
// transfer reads its source by WRITE or SEND and writes its result by READ or RECV; which of the two is not told apart,
// as fi_mr(3) allows under "access". A slice of a region, (region, offset) and a region are their own descriptors.
#pragma once

#include "bind/common.hpp"

namespace weft::bind {

enum class LocalUse : uint8_t { source, result };  // what a transfer does with a buffer: reads it, writes it

[[nodiscard]] bool desc_ok_slow(EndpointCore* core, PyObject* desc, const Buf& buf, LocalUse use, bool device,
                                const char* method);

// HOT: one buffer and its descriptor, or None; false with a Python error set.
[[nodiscard]] inline bool desc_ok(EndpointCore* core, PyObject* desc, const Buf& buf, LocalUse use, bool device,
                                  const char* method) {
  if ((desc == nullptr || desc == Py_None) && !core->box->mr_local && !core->box->mr_hmem) [[likely]]
    return true;
  return desc_ok_slow(core, desc, buf, use, device, method);
}

// A list of buffers: a descriptor or None for each of them, one region that covers them all, or None. device: bit i
// says that bufs[i] is a device's memory.
[[nodiscard]] bool descs_ok(EndpointCore* core, PyObject* descs, std::span<const Buf> bufs, uint8_t device,
                            LocalUse use, const char* method);

}  // namespace weft::bind
