// cpp/bind/desc.cpp: the checks of local descriptors; see desc.hpp.
#include "bind/desc.hpp"

#include <cstdio>

namespace weft::bind {

namespace {

// The region that a buffer is a piece of by its type; null for any other buffer.
const MemoryRegionCore* region_of(const Buf& buf) {
  if (buf.owner == nullptr) return nullptr;
  if (Py_TYPE(buf.owner) == g_mr_slice_type) return nb::inst_ptr<MrSlice>(buf.owner)->core;
  if (PyObject_TypeCheck(buf.owner, g_mr_type)) return nb::inst_ptr<MemoryRegionCore>(buf.owner);
  return nullptr;
}

// Whether all of [at, at + length) lies in these buffers; of several, also across the border of two that adjoin.
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

bool refuse(const char* method, const char* what) {
  set_error(fi_err::kEINVAL, std::string(method) + ": " + what);
  return false;
}

bool valid(EndpointCore* core, const MemoryRegionCore* mr, const Buf& buf, LocalUse use, const char* method) {
  if (mr->region->closed()) return refuse(method, "the region of desc is closed");
  if (mr->box != core->box) return refuse(method, "the region of desc belongs to another domain");
  if (buf.length == 0) return true;
  char text[320];
  const auto at = reinterpret_cast<uint64_t>(buf.data);
  if (!covers(mr->region->buffers(), at, buf.length)) {
    const uint64_t first = mr->region->buffers().empty() ? 0 : mr->region->buffers()[0].local_addr;
    std::snprintf(text, sizeof(text),
                  "desc does not cover the buffer: %llu B at 0x%llx do not lie within its region, %llu B at 0x%llx%s\n"
                  "  rule: a desc is that of a region of the buffer's memory, fi_mr(3)\n"
                  "  try: register the buffer and pass that region's desc, or a slice of the region as the buffer",
                  static_cast<unsigned long long>(buf.length), static_cast<unsigned long long>(at),
                  static_cast<unsigned long long>(mr->length), static_cast<unsigned long long>(first),
                  mr->region->buffers().size() > 1 ? " and further buffers" : "");
    return refuse(method, text);
  }
  const uint64_t needed =
      use == LocalUse::source ? nic::flag::kWrite | nic::flag::kSend : nic::flag::kRead | nic::flag::kRecv;
  if ((mr->region->access() & needed) == 0) {
    std::snprintf(text, sizeof(text),
                  "the region of desc was registered without the right to be %s\n"
                  "  rule: fi_mr(3) access: %s of an RMA %s, or of an atomic\n"
                  "  try: register it with fi.%s among the access flags",
                  use == LocalUse::source ? "read by this side's transfers" : "written by this side's transfers",
                  use == LocalUse::source ? "FI_WRITE for the source" : "FI_READ for the result",
                  use == LocalUse::source ? "write" : "read", use == LocalUse::source ? "WRITE" : "READ");
    return refuse(method, text);
  }
  return true;
}

}  // namespace

bool desc_ok_slow(EndpointCore* core, PyObject* desc, const Buf& buf, LocalUse use, bool device, const char* method) {
  if (desc == nullptr || desc == Py_None) {
    const bool needed = device ? core->box->mr_hmem : core->box->mr_local;
    if (!needed || buf.length == 0) return true;
    if (const MemoryRegionCore* own = region_of(buf)) return valid(core, own, buf, use, method);
    return refuse(method, device ? "the buffer is device memory, the domain requires MR_HMEM, and no desc was given: "
                                   "register the buffer with mr_regattr and pass mr.desc, or a slice of the region"
                                 : "the domain requires MR_LOCAL and no desc was given: register the buffer and pass "
                                   "mr.desc, or a slice of the region");
  }
  if (core->box->desc_ignored) return true;
  if (!PyObject_TypeCheck(desc, g_mr_type)) {
    const std::string what =
        std::string("desc is ") + Py_TYPE(desc)->tp_name + ": pass mr.desc of a region that covers the buffer, or None";
    return refuse(method, what.c_str());
  }
  return valid(core, nb::inst_ptr<MemoryRegionCore>(desc), buf, use, method);
}

bool descs_ok(EndpointCore* core, PyObject* descs, std::span<const Buf> bufs, uint8_t device, LocalUse use,
              const char* method) {
  const bool none = descs == nullptr || descs == Py_None;
  if (none && !core->box->mr_local && !core->box->mr_hmem) [[likely]]
    return true;
  if (!none && core->box->desc_ignored) return true;
  const bool list = !none && PySequence_Check(descs) && !PyObject_TypeCheck(descs, g_mr_type);
  PyObject* fast = list ? PySequence_Fast(descs, "desc must be a sequence") : nullptr;
  if (list && fast == nullptr) return false;
  const size_t given = list ? static_cast<size_t>(PySequence_Fast_GET_SIZE(fast)) : bufs.size();
  bool ok = given >= bufs.size();
  if (!ok) {
    const std::string what = "desc has " + std::to_string(given) + " entries for " + std::to_string(bufs.size()) +
                             " buffers: give one for each, or None in its place";
    refuse(method, what.c_str());
  }
  for (size_t i = 0; ok && i < bufs.size(); ++i) {
    PyObject* one = list ? PySequence_Fast_GET_ITEM(fast, static_cast<Py_ssize_t>(i)) : descs;
    ok = desc_ok(core, one, bufs[i], use, (device >> i & 1) != 0, method);
  }
  Py_XDECREF(fast);
  return ok;
}

}  // namespace weft::bind
