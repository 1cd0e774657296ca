// cpp/bind/ucp_post.cpp: options of operations, and functions for posting; see ucp_post.hpp.
#include "bind/ucp_post.hpp"

#include <algorithm>

namespace weft::bind {

namespace {

// Reads a ucp_request_param; a field is valid if its bit is set.
bool read_param(const char* method, PyObject* param, UcpOptions& o) {
  const auto get = [&](const char* name) { return nb::steal(PyObject_GetAttrString(param, name)); };
  const nb::object mask_object = get("op_attr_mask");
  uint64_t mask = 0;
  if (!mask_object.is_valid()) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s: param is %s; it has to be a ucp.RequestParam", method, Py_TYPE(param)->tp_name);
    return false;
  }
  if (!ucp_u64(method, "op_attr_mask", mask_object.ptr(), &mask)) return false;
  o.held = std::make_unique<std::array<nb::object, 4>>();
  // Flags are bits of the mask; the field `flags` is for receives.
  o.flags = mask & (ucp::kNoImmCmpl | ucp::kFastCmpl | ucp::kForceImmCmpl | ucp::kMultiSend);
  const auto object = [&](uint64_t bit, const char* name, size_t at, PyObject** out) {
    if ((mask & bit) == 0) return true;
    (*o.held)[at] = get(name);
    *out = (*o.held)[at].ptr();
    return (*o.held)[at].is_valid();
  };
  if (!object(kAttrCallback, "cb", 0, &o.cb) || !object(kAttrUserData, "user_data", 1, &o.user_data) ||
      !object(kAttrMemh, "memh", 2, &o.memh) || !object(kAttrReply, "reply_buffer", 3, &o.reply)) {
    return false;
  }
  if ((mask & kAttrDatatype) != 0) {
    const nb::object datatype = get("datatype");
    if (!datatype.is_valid() || !ucp_u64(method, "datatype", datatype.ptr(), &o.datatype.emplace())) return false;
  }
  return true;
}

}  // namespace

bool read_options(const char* method, PyObject* param, PyObject* count, PyObject* cb, PyObject* user_data,
                  PyObject* memh, PyObject* flags, PyObject* datatype, UcpOptions& o) {
  if (given(param) && !read_param(method, param, o)) return false;
  if (given(count) && !ucp_u64(method, "count", count, &o.count.emplace())) return false;
  if (given(cb)) o.cb = cb;
  if (given(o.cb) && !PyCallable_Check(o.cb)) {
    PyErr_Format(PyExc_TypeError, "%s: cb is %R; it has to be callable as cb(request, status, user_data), or None",
                 method, o.cb);
    return false;
  }
  if (given(user_data)) o.user_data = user_data;
  if (given(memh)) o.memh = memh;
  uint64_t more = 0;
  if (given(flags) && !ucp_u64(method, "flags", flags, &more)) return false;
  o.flags |= more;
  if (given(datatype) && !ucp_u64(method, "datatype", datatype, &o.datatype.emplace())) return false;
  if (const ucp::Refused why = ucp::check_flags(o.flags)) return refuse(method, why);
  return true;
}

bool usable(UcpEp& ep, const char* method, uint32_t feature) {
  if (!ucp::is_open(ep)) [[unlikely]]
    return refuse(method, ucp::why_closed(ep));
  if (!worker_usable(worker_of(ep), method)) [[unlikely]]
    return false;
  if (!ucp::is_able(ep, feature)) [[unlikely]]
    return refuse(method, ucp::why_unable(ep, feature));
  return true;
}

bool address_of(UcpEp& ep, const char* method, PyObject* rkey, UcpRkey** out, uint64_t* dest) {
  if (rkey == nullptr || !PyObject_TypeCheck(rkey, g_ucp_rkey_type)) [[unlikely]] {
    return refuse(kInvalidParam, std::string(method) + ": rkey is " +
                                     (rkey == nullptr ? "missing" : Py_TYPE(rkey)->tp_name) +
                                     "\n  try: the remote key that ep.rkey_unpack(buffer) returns");
  }
  *out = nb::inst_ptr<UcpRkey>(rkey);
  if (!ucp::resolve(ep, **out, dest)) [[unlikely]]
    return refuse(method, ucp::why_unresolved(**out));
  return true;
}

bool UcpHolder::wait() {
  // Finished operations make room. progress() calls their callbacks later.
  if (collect() == 0) {
    nic::Nic* nic = worker.nic_ep->box->domain->nic();
    const ReleasedGil released;
    nic->progress(!nic->has_engine());
    backoff.pause();
  }
  return PyErr_CheckSignals() == 0;
}

PyObject* new_request() {
  PyObject* object = nb::inst_alloc(reinterpret_cast<PyObject*>(g_ucp_request_type)).release().ptr();
  new (nb::inst_ptr<UcpRequest>(object)) UcpRequest();
  nb::inst_mark_ready(object);
  return object;
}

PyObject* begun(UcpEp& ep, PyObject* object, UcpRkey* rkey, PyObject* rkey_object, const UcpOptions* o, bool quiet,
                const Buf* const* bufs, size_t buf_count) {
  UcpWorker& worker = worker_of(ep);
  UcpRequest& request = *nb::inst_ptr<UcpRequest>(object);
  request.worker_object = ep.worker_object;
  request.ep_object = nb::borrow(ep.self);
  request.quiet = quiet;
  // A quiet operation has returned "done in place", so its callback is never called (as in C); a flush reports a
  // failure.
  if (!quiet && o != nullptr && given(o->cb)) request.cb = nb::borrow(o->cb);
  if (!quiet && o != nullptr && given(o->user_data)) request.user_data = nb::borrow(o->user_data);
  if (request.parts != 0) {  // 0: the operation ended while with_room() made progress
    ++rkey->in_flight;
    request.rkey = nb::borrow(rkey_object);
    for (size_t i = 0; i < buf_count; ++i) {
      if (nb::object mapped = mapped_memory(ep, *bufs[i]); mapped.is_valid()) request.keep.push_back(std::move(mapped));
      PyObject* held = bufs[i]->hold();
      held == nullptr ? PyErr_Clear() : request.keep.push_back(nb::steal(held));
    }
  }
  follow(worker, nb::borrow(object), worker.begin(request, ep));
  if (quiet) {
    Py_DECREF(object);
    return Py_NewRef(g_ucp_done);
  }
  return object;
}

bool slice_ok(PyObject* buffer, bool writes, const char* method) {
  if (Py_TYPE(buffer) != g_mr_slice_type) return true;
  const auto* slice = nb::inst_ptr<MrSlice>(buffer);
  if ((slice->core->region->access() & (writes ? nic::flag::kRead : nic::flag::kWrite)) != 0) return true;
  return refuse(kInvalidParam, std::string(method) + ": the local region was mapped without " +
                                   (writes ? "MEM_MAP_PROT_LOCAL_WRITE" : "MEM_MAP_PROT_LOCAL_READ") +
                                   "\n  try: map it with the right, or give the memory itself as buffer");
}

bool by_memh(UcpEp& ep, const UcpOptions& o, PyObject** buffer, bool writes, nb::object& held) {
  if (!given(o.memh)) [[likely]]
    return true;
  if (!PyObject_HasAttrString(o.memh, "_as_local")) {
    return refuse(kInvalidParam,
                  std::string("memh is ") + Py_TYPE(o.memh)->tp_name + ": it has to be what mem_map returned");
  }
  held = nb::steal(PyObject_CallMethod(o.memh, "_as_local", "OOO", worker_of(ep).domain_object.ptr(), *buffer,
                                       writes ? Py_True : Py_False));
  *buffer = held.ptr();
  return held.is_valid();
}

nb::object mapped_memory(const UcpEp& ep, const Buf& buffer) {
  if (!buffer.bare || buffer.keepalive != nullptr) return {};
  const auto begin = reinterpret_cast<uint64_t>(buffer.data);
  nb::list held;
  for (const DomainBox* domain : worker_of(ep).nic_ep->box->nic->domains) {
    for (const MemoryRegionCore* r = domain->regions; r != nullptr; r = r->next) {
      if (r->bare || r->region->closed()) continue;
      const bool overlaps = std::ranges::any_of(r->region->buffers(), [&](const mem::MrBuffer& part) {
        return part.local_addr < begin + buffer.length && begin < part.local_addr + part.length;
      });
      if (overlaps) r->keep.each([&](const nb::object& owner) { held.append(owner); });
    }
  }
  return held.size() == 0 ? nb::object() : held;
}

}  // namespace weft::bind
